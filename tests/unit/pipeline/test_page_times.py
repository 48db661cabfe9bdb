"""The report's page over time: what it said of an expiry, a run or a stop holds, or says what came after. No Spark."""

from __future__ import annotations

import datetime
import re
import uuid
from dataclasses import replace

import pyarrow as pa
import pytest

from lakebed.lake.lake import Lake, open_lake
from lakebed.pipeline import Pipeline
from lakebed.pipeline.collect import collect
from lakebed.pipeline.execute import RunCall, execute
from lakebed.pipeline.ledger import AttemptEnd, Ledger
from lakebed.pipeline.measure import commit_metrics
from lakebed.pipeline.model import RunSummary, StepRecord
from lakebed.pipeline.page import Statement, render, state_outcome
from lakebed.pipeline.report_model import ReportFacts
from lakebed.pipeline.workspace import Workspace
from lakebed.runtime import Environment
from lakebed.table.table import Table
from lakebed.testing import ManualClock

EXPIRE = "name: clean\nlake: l\nsteps:\n  - {step: expire, table: t, keep: 1}\n"


@pytest.fixture
def lake() -> Lake:
    """A lake with an empty table."""
    made = open_lake(f"memory://{uuid.uuid4().hex}")
    schema = pa.schema([pa.field("id", pa.int64(), nullable=False), ("text", pa.string())])
    made.create_table("t", schema, primary_keys=["id"], options={"bucket": "1"})
    return made


def run(lake: Lake, text: str, run_id: str) -> RunSummary:
    """One call of a pipeline that needs no Spark."""
    ledger = Ledger(lake.store, run_id=run_id, environment=Environment())
    plan = Pipeline.parse(text).plan()
    return execute(RunCall(plan, Workspace(lake), ledger, Environment()))


def merge(lake: Lake, count: int, *, recorded: bool = True) -> Table:
    """`count` commits of 1,000 other rows each; recorded as a run's merges or made outside of pipelines."""
    table = lake.table("t")
    ledger = Ledger(lake.store, run_id="daily-1", environment=Environment())
    for _ in range(count):
        number = 0 if (newest := table.latest()) is None else newest.id
        rows = pa.table({"id": range(1000 * number, 1000 * (number + 1)), "text": [uuid.uuid4().hex] * 1000})
        snapshot = table.upsert(rows)
        if recorded:
            metrics = {"table": "t", **commit_metrics(table, snapshot, name="t")}
            ledger.record(
                StepRecord(snapshot.id, f"merge {snapshot.id}", "merge", "", "f", snapshot.time_ms, 0.1, metrics)
            )
    return table


def facts_of(lake: Lake) -> ReportFacts:
    return collect(lake, environment=Environment(), title="")


def bars(page: str) -> list[list[str]]:
    """Texts of the legends of the expiries' bars, each with its size."""
    section = page.split("<h2>What expiry freed</h2>")[1].split("</section>")[0]
    return [re.findall(r"</i>([^<]*)</li>", part) for part in section.split('class="stack"')[1:]]


def data_files(table: Table) -> dict[str, int]:
    """Path and size of every data file on the store."""
    return {meta.path: meta.size_bytes for meta in table.store.list() if "bucket-" in meta.path}


def begin_daily(lake: Lake) -> None:
    plan = Pipeline.parse(EXPIRE.replace("clean", "daily")).plan()
    Ledger(lake.store, run_id="daily-1", environment=Environment()).begin(plan)


def test_the_bar_of_an_expiry_stays_as_it_was(lake: Lake) -> None:
    """What a later version needs is not part of an expiry before it."""
    begin_daily(lake)
    table = merge(lake, 3)
    older = data_files(table)
    table.create_tag("kept", snapshot_id=2)
    table.compact(full=True)
    newest = sum(data_files(table).values()) - sum(older.values())
    run(lake, EXPIRE, "clean-1")
    first = bars(render(facts_of(lake)))
    assert len(first) == 1
    assert first[0][0] == f"newest version then {newest / 1000:.1f} kB"
    merge(lake, 3)
    run(lake, EXPIRE, "clean-2")
    assert bars(render(facts_of(lake)))[0] == first[0]


def test_what_an_expiry_freed_is_not_on_the_store_later(lake: Lake) -> None:
    """The plot of the storage falls at each expiry; the highest point is what the store held at the worst time."""
    begin_daily(lake)
    pin = []
    for number in (1, 2, 3):
        table = merge(lake, 3)
        table.compact(full=True)
        pin.append(sum(data_files(table).values()))
        run(lake, EXPIRE, f"clean-{number}")
    merge(lake, 1)
    page = render(facts_of(lake))
    assert f"the store had at most {max(pin) / 1000:.1f} kB" in page
    section = page.split("<h2>Storage by version</h2>")[1].split("</section>")[0]
    assert section.count('class="vertical"') == 3


def test_an_expiry_recorded_without_its_newest_version_is_not_guessed_at(lake: Lake) -> None:
    """An older lakebed wrote no such number: a version that is known and was the newest one then is, no other."""
    begin_daily(lake)
    table = merge(lake, 2)
    known = sum(data_files(table).values())
    ledger = Ledger(lake.store, run_id="clean-1", environment=Environment())
    ledger.begin(Pipeline.parse(EXPIRE).plan())
    sizes = dict.fromkeys(("disk_bytes_before", "disk_bytes_after", "data_bytes_before", "data_bytes_after"), 50_000)
    metrics = {"table": "t", "snapshots_expired": 1, "files_deleted": 0, **sizes}
    newest = table.latest()
    assert newest is not None
    ledger.record(StepRecord(1, "expire", "expire", "", "f", newest.time_ms, 0.1, metrics))
    assert bars(render(facts_of(lake)))[0][0] == f"newest version then {known / 1000:.1f} kB"
    merge(lake, 1, recorded=False)
    merge(lake, 1)
    assert bars(render(facts_of(lake)))[0][0] == f"newest version then {known / 1000:.1f} kB"
    table.expire(retain_max=1)
    assert bars(render(facts_of(lake)))[0][0] == "kept 50 kB"


def test_rows_that_some_steps_did_not_count_are_no_total(lake: Lake) -> None:
    """An ingest of Parquet as a view counts no rows: the sum is of the others, and says how many are left out."""
    begin_daily(lake)
    ledger = Ledger(lake.store, run_id="daily-1", environment=Environment())
    for number, rows in enumerate(({"rows": 99_557}, {}, {})):
        ledger.record(StepRecord(number, f"ingest {number}", "ingest", "", "f", 1, 0.1, {"view": "v", **rows}))
    ledger.record(StepRecord(5, "audit", "audit", "", "f", 1, 0.1, {"rows": 124_614}))
    for number, metrics in enumerate(({"table": "t"}, {"table": "t", "rows": 7}), start=6):
        ledger.record(StepRecord(number, f"compact {number}", "compact", "", "f", 1, 0.1, metrics))
    page = render(facts_of(lake))
    assert '<td data-label="rows">99,557 <small>2 steps not counted</small></td>' in page
    assert '<td data-label="rows">124,614</td>' in page
    assert '<td data-label="rows">7</td>' in page


def test_a_call_that_does_nothing_leaves_the_run_as_it_was(lake: Lake) -> None:
    """Its end is when its last step was done, and its calls are those that had something to do."""
    merge(lake, 1, recorded=False)
    run(lake, EXPIRE, "clean-1")
    ledger = Ledger(lake.store, run_id="clean-1", environment=Environment())
    before = ledger.status()
    objects = {meta.path for meta in lake.store.list()}
    summary = run(lake, EXPIRE, "clean-1")
    assert (summary.steps_run, summary.steps_skipped) == (0, 1)
    assert ledger.status() == before
    assert {meta.path for meta in lake.store.list()} == objects


def test_a_run_killed_after_its_last_step_is_completed_by_the_next_call(lake: Lake) -> None:
    """Every step is recorded and the end is not: the call that finds that writes it."""
    merge(lake, 1, recorded=False)
    ledger = Ledger(lake.store, run_id="clean-1", environment=Environment())
    plan = Pipeline.parse(EXPIRE).plan()
    ledger.begin(plan)
    (step,) = plan.steps
    metrics = {"table": "t", "snapshots_expired": 0, "files_deleted": 0, "disk_bytes_before": 1, "disk_bytes_after": 1}
    ledger.record(StepRecord(1, step.name, "expire", "", step.fingerprint, 1, 0.1, metrics))
    assert ledger.status().state == "unfinished"
    run(lake, EXPIRE, "clean-1")
    assert (ledger.status().state, ledger.status().attempts) == ("complete", 2)


FAILING = "name: clean\nlake: l\nvars: {keep: 5}\nsteps:\n  - {step: compact, table: t}\n"
EDITED = FAILING.replace("compact, table: t", "expire, table: t, keep: '${keep}'")


def stopped_and_then(
    lake: Lake, text: str = EDITED, *, kind: str = "syntax", run_id: str | None = None, **variables: str
) -> ReportFacts:
    """A run that an error stopped, then another one, which completes."""
    plan = Pipeline.parse(FAILING).plan()
    earlier = Environment(clock=ManualClock())
    ledger = Ledger(lake.store, run_id=plan.default_run_id, environment=earlier)
    ledger.end(ledger.begin(plan), AttemptEnd(1, "failed", step="compact", error_kind=kind, error="It is wrong."))
    after = Pipeline.parse(text).plan(variables=variables)
    ledger = Ledger(lake.store, run_id=run_id or after.default_run_id, environment=Environment())
    execute(RunCall(after, Workspace(lake), ledger, Environment()))
    return facts_of(lake)


def test_a_run_that_the_edited_pipeline_went_on_with_is_no_alarm(lake: Lake) -> None:
    """The stop stays in the report, with the run that went on; the page has its tick again."""
    merge(lake, 2, recorded=False)
    facts = stopped_and_then(lake)
    first = state_outcome(facts)[0]
    assert first == Statement("good", "1 run is not complete; a later run of the pipeline continued in its place.")
    later = Pipeline.parse(EDITED).plan().default_run_id
    assert [run.continued_by for run in facts.runs] == [later, None]
    page = render(facts)
    assert f"continued by <code>{later}</code>" in page
    assert "It is wrong." in page


def test_a_stop_stays_when_what_came_later_was_other_work(lake: Lake) -> None:
    """Other variables, another pipeline, an id of its own; or the stopped run was called again and stopped."""
    merge(lake, 2, recorded=False)
    assert state_outcome(stopped_and_then(lake, keep="6"))[0].mark == "bad"
    assert state_outcome(stopped_and_then(lake, EDITED.replace("clean", "other")))[0].mark == "bad"
    assert state_outcome(stopped_and_then(lake, run_id="tonight"))[0].mark == "bad"
    assert state_outcome(stopped_and_then(lake))[0].mark == "good"
    plan, later = Pipeline.parse(FAILING).plan(), Environment(clock=ManualClock(start_ms=4_000_000_000_000))
    ledger = Ledger(lake.store, run_id=plan.default_run_id, environment=later)
    ledger.end(ledger.begin(plan), AttemptEnd(4_000_000_000_001, "failed", error="Again."))
    assert state_outcome(facts_of(lake))[0].mark == "bad"


def test_rows_that_were_refused_keep_the_tick_away(lake: Lake) -> None:
    """No record shows whether they came in with the later run."""
    merge(lake, 2, recorded=False)
    assert state_outcome(stopped_and_then(lake, kind="audit_failed"))[0].mark == "open"


def test_a_repeated_increment_that_was_refused_is_named_as_that(lake: Lake) -> None:
    """It is not an error of the pipeline: the lake protected its rows."""
    facts = stopped_and_then(lake, kind="merged_already", keep="6")
    page = render(facts)
    assert "<dd>1</dd><dt>repeated increment refused</dt>" in page
    assert "other stop" not in page
    assert state_outcome(facts)[0].mark == "open"


def test_bad_rows_that_were_dropped_are_on_the_page(lake: Lake) -> None:
    """How many, and by which steps; of what a run took over the other run speaks."""
    begin_daily(lake)
    ledger = Ledger(lake.store, run_id="daily-1", environment=Environment())
    for number, dropped in enumerate((1, 0, *range(2, 14)), start=1):
        metrics = {"view": "v", "rows": 100} | ({"rows_dropped": dropped} if dropped else {})
        ledger.record(StepRecord(number, f"ingest <{number}>", "ingest", "day", "f", 1, 0.1, metrics))
    ledger.carry(1, [replace(ledger.own_records()[1], ordinal=99, name="taken over", carried_from="daily-0/1")])
    page = render(facts_of(lake))
    total = 1 + sum(range(2, 14))
    assert f"<dd>{total}</dd><dt>bad rows dropped</dt><p>by 13 steps: see the runs</p>" in page
    assert f"{total} bad rows were dropped: 13 by &#39;ingest &lt;14&gt;&#39;, 12 by" in page
    assert f", {1 + 2 + 3} by 3 other steps.</p>" in page


def test_a_tag_says_until_when_it_is_kept(lake: Lake) -> None:
    """Without a tag of limited time there is no such column; what is not counted is a dash."""
    begin_daily(lake)
    table = merge(lake, 2)
    table.create_tag("always", snapshot_id=1)
    metrics = {"table": "t", "tag": "always", "snapshot": 1, "rows": 1000, "checksum": "7"}
    ledger = Ledger(lake.store, run_id="daily-1", environment=Environment())
    ledger.record(StepRecord(9, "tag", "tag", "", "f", 1, 0.1, metrics))
    assert "kept until" not in render(facts_of(lake))
    table.create_tag("weekly", snapshot_id=2, lifetime_ms=7 * 86_400_000)
    made_ms = table.tag("weekly").create_time_ms
    assert made_ms is not None
    end = datetime.datetime.fromtimestamp(made_ms / 1000, datetime.UTC) + datetime.timedelta(days=7)
    always, weekly = re.findall(r'<tr><th scope="row">(?:always|weekly).*?</tr>', render(facts_of(lake)))
    assert '<td data-label="kept until">deleted</td>' in always
    assert f'<td data-label="kept until">{end.day} {end:%b %Y, %H:%M:%S}</td>' in weekly
    assert '<td data-label="rows">1,000</td>' in always
    assert '<td data-label="rows">–</td>' in weekly
