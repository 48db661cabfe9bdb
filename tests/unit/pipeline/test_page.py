"""The report's page: each sentence follows from the facts, labels fit, stops stay, times are given."""

from __future__ import annotations

import re
import uuid
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pytest

from lakebed.lake.lake import Lake, open_lake
from lakebed.pipeline import Check, Pipeline
from lakebed.pipeline.collect import collect
from lakebed.pipeline.execute import RunCall, execute
from lakebed.pipeline.ledger import AttemptEnd, Ledger
from lakebed.pipeline.measure import commit_metrics
from lakebed.pipeline.model import StepRecord
from lakebed.pipeline.page import Statement, render, state_outcome
from lakebed.pipeline.page_parts import bytes_text, sizes_that_differ
from lakebed.pipeline.page_table import _group_ticks
from lakebed.pipeline.plots import Flag, Tick, timeline
from lakebed.pipeline.report_model import Fingerprint, ReportFacts
from lakebed.pipeline.workspace import Workspace
from lakebed.runtime import Environment

AUDIT = AttemptEnd(60_000, "failed", step="merge 2024-01-02", error_kind="audit_failed", error="Two rows are wrong.")
TYPE = AttemptEnd(61_000, "failed", step="merge 2024-01-02", error_kind="type_mismatch", error="A type does not fit.")
EXPIRY = {"table": "t", "snapshots_expired": 2, "files_deleted": 1, "bytes_freed": 16_100, "warnings": []}
READ = {("t", f"2024-01-0{day}"): Fingerprint(day, f"-123456789012345678{day}") for day in (1, 2)}
"""The tags of `lake_of`, as they read when nothing has changed."""
SIZES = {"disk_bytes_before": 42_916_100, "disk_bytes_after": 42_900_000, "data_bytes_before": 1, "data_bytes_after": 1}


def lake_of(*, ends: tuple[AttemptEnd, ...] = (), complete: bool = True, fingerprints: bool = True) -> Lake:
    """A lake with two days, each merged and tagged, by one run with these failed calls."""
    lake = open_lake(f"memory://{uuid.uuid4().hex}")
    ledger = Ledger(lake.store, run_id="daily-1", environment=Environment())
    plan = Pipeline.parse("name: daily\nlake: l\nsteps:\n  - {step: expire, table: t, keep: 1}\n").plan()
    for end in ends:
        ledger.end(ledger.begin(plan), end)
    attempt = ledger.begin(plan)
    schema = pa.schema([pa.field("id", pa.int64(), nullable=False)])
    table = lake.create_table("t", schema, primary_keys=["id"], options={"bucket": "1"})
    for day in (1, 2):
        snapshot = table.upsert(pa.table({"id": [day]}))
        table.create_tag(f"2024-01-0{day}", snapshot_id=snapshot.id)
        merged = {"table": "t", **commit_metrics(table, snapshot, name="t")}
        ledger.record(StepRecord(2 * day, f"merge 2024-01-0{day}", "merge", "", "f", 100_000, 2.5, merged))
        tagged = {"table": "t", "tag": f"2024-01-0{day}", "snapshot": snapshot.id}
        tagged |= {"rows": day, "checksum": f"-123456789012345678{day}"} if fingerprints else {}
        ledger.record(StepRecord(2 * day + 1, f"tag {day}", "tag", "", "f", 100_000, 0.1, tagged))
    ledger.record(StepRecord(9, "expire", "expire", "", "f", 100_000, 0.1, {**EXPIRY, **SIZES}))
    if complete:
        ledger.end(attempt, AttemptEnd(86_400_000 + 3_723_000, "complete"))
    return lake


def facts_of(lake: Lake, **options: object) -> ReportFacts:
    """The facts, with the heading that a report gets by default."""
    return collect(lake, environment=Environment(), title="", **options)  # type: ignore[arg-type]


def marks_of(facts: ReportFacts) -> list[str]:
    """The marks of the statements at the top of the page, without notes."""
    return [statement.mark for statement in state_outcome(facts) if statement.mark != "note"]


def test_only_what_was_compared_is_said_to_be() -> None:
    """Without a reading or a check there is no column and no word of one."""
    page = render(facts_of(lake_of()))
    assert "compared with" not in page
    assert "verified" not in page
    assert "checked" not in page
    read = {("t", "2024-01-01"): Fingerprint(1, "-1234567890123456781")}
    page = render(facts_of(lake_of(), fingerprints=read))
    assert "1 of 2 tags was read again in full for this report and compared with the day of tagging." in page
    assert "outside of the lake" not in page
    checks = [Check("Tag", True, "equals the source", table="t", tag=f"2024-01-0{day}") for day in (1, 2)]
    page = render(facts_of(lake_of(fingerprints=False), checks=checks))
    assert "All 2 tags were compared with a source outside of the lake." in page
    assert "read again" not in page


def test_a_check_and_a_reading_of_a_tag_share_a_cell_that_wraps() -> None:
    """So that a table of tags with long verdicts is as wide as its card; all other cells stay on one line."""
    checks = [Check("Tag", True, "equals the source", table="t", tag="2024-01-01")]
    page = render(facts_of(with_readings(lake_of(), (90_000_000, 1, "-1234567890123456781")), checks=checks))
    cells = re.findall(r'<td data-label="verdict">(.*?)</td>', page)
    assert "equals the source" in cells[0]
    assert "<br>" in cells[0]
    assert "unchanged on 2 Jan 1970, 01:00:00 UTC" in cells[0]
    assert page.count("<table class=words><thead>") == 1
    assert re.search(r"\.words td:last-child\{white-space:normal", page)


def with_readings(lake: Lake, *readings: tuple[int, int, str]) -> Lake:
    """With a run of report steps that read the first tag: (start in ms, rows, checksum) of each."""
    plan = Pipeline.parse("name: pages\nlake: l\nsteps:\n  - {step: report, to: x.html}\n").plan()
    ledger = Ledger(lake.store, run_id="pages-1", environment=Environment())
    attempt = ledger.begin(plan)
    for number, (started_ms, rows, checksum) in enumerate(readings):
        read = {"table": "t", "tag": "2024-01-01", "rows": rows, "checksum": checksum}
        metrics = {"html": "x.html", "json": "x.json", "tags_read": [read]}
        ledger.record(StepRecord(number, f"report {number}", "report", "", "f", started_ms, 1.0, metrics))
    ledger.end(attempt, AttemptEnd(200_000_000, "complete"))
    return lake


def test_a_reading_of_an_earlier_report_is_said_with_its_time() -> None:
    """A report that did not read a tag has no tick, no verified tag, and says when the tag was last read."""
    facts = facts_of(with_readings(lake_of(), (90_000_000, 1, "-1234567890123456781")))
    tag = facts.tables[0].tags[0]
    assert (tag.reads_same, tag.read_ms, tag.read_now) == (True, 90_000_000, False)
    page = render(facts)
    assert marks_of(facts) == ["open"]
    assert "✓" not in page
    assert "verified" not in page
    assert "reads as it did" not in page
    assert "unchanged on 2 Jan 1970, 01:00:00 UTC" in page
    assert "This report did not read the 2 tags again; 1 matched when last read on 2 Jan 1970, 01:00:00 UTC." in page
    now = facts_of(with_readings(lake_of(), (90_000_000, 1, "-1234567890123456781")), fingerprints=READ)
    assert [(tag.reads_same, tag.read_ms, tag.read_now) for tag in now.tables[0].tags] == [
        (True, now.generated_ms, True)
    ] * 2
    assert marks_of(now) == ["good"]
    page = render(now)
    assert "<dd>2/2</dd><dt>tags verified</dt><p>for this report</p>" in page
    assert "All 2 tags were read again in full for this report" in page


def test_of_two_readings_the_later_in_time_counts() -> None:
    """Also when it found a change, which stays a finding with its time; one from before the tag was taken is none."""
    facts = facts_of(with_readings(lake_of(), (90_000_000, 7, "7"), (80_000_000, 1, "-1234567890123456781")))
    sentence = "Something does not hold: 2024-01-01 (read on 2 Jan 1970, 01:00:00 UTC)."
    assert state_outcome(facts)[0] == Statement("bad", sentence)
    assert "</span> changed when last read, on 2 Jan 1970, 01:00:00 UTC</span>" in render(facts)
    facts = facts_of(with_readings(lake_of(), (99_999, 7, "7")))
    assert [tag.reads_same for tag in facts.tables[0].tags] == [None, None]


def test_a_checksum_is_shown_whole() -> None:
    """As the console prints it, so that the two can be compared."""
    page = render(facts_of(lake_of()))
    assert "-1234567890123456782" in page


def test_a_stop_that_was_repaired_stays_in_the_report() -> None:
    """A bad load is one, whatever came after; a type that does not fit is none."""
    facts = facts_of(lake_of(ends=(AUDIT, AUDIT, TYPE)))
    assert [(stop.bad_load, stop.repaired_ms) for stop in facts.runs[0].stops] == [
        (True, 102_500),
        (True, 102_500),
        (False, 102_500),
    ]
    page = render(facts)
    assert "<dd>1</dd><dt>bad load stopped</dt><p>1 repaired later</p>" in page
    assert "<dd>1</dd><dt>other stop</dt>" in page
    assert (
        "1 Jan 1970, 00:01:00 UTC</b> Two rows are wrong. Repaired: the step was done at 1 Jan 1970, 00:01:42" in page
    )


def test_a_run_has_its_times_and_its_state() -> None:
    """The run that writes the report is named as that; another one that has not ended is not complete."""
    page = render(facts_of(lake_of()))
    assert re.search(r"\d{4}, \d\d:\d\d:\d\d to 2 Jan 1970, 01:02:03 UTC", page)
    assert ">complete</small>" in page
    page = render(facts_of(lake_of(complete=False), writing_run="daily-1"))
    assert ">this report is a step of it</small>" in page
    assert "not complete" not in page
    facts = facts_of(lake_of(complete=False), fingerprints=READ)
    assert "1 run is not complete: running, or killed." in render(facts)
    assert marks_of(facts) == ["open", "good"]


def test_a_run_counts_no_time_of_steps_that_it_took_over() -> None:
    """What earlier runs did is named as theirs; a step that stopped and was then taken over was repaired by no call."""
    lake = lake_of()
    plan = Pipeline.parse("name: daily\nlake: l\nsteps:\n  - {step: expire, table: t, keep: 2}\n").plan()
    merged = Ledger(lake.store, run_id="daily-1", environment=Environment()).own_records()[4]
    ledger = Ledger(lake.store, run_id="daily-2", environment=Environment())
    ledger.end(ledger.begin(plan), AUDIT)
    ledger.carry(ledger.begin(plan), [replace(merged, carried_from="daily-1/4")])
    facts = facts_of(lake)
    assert [run.stops[0].repaired_ms for run in facts.runs if run.stops] == [None]
    page = render(facts)
    assert "0 of 1 step done in 0.0 s, 1 taken over from earlier runs, 2 calls" in page
    assert page.count('<th scope="row">merge</th>') == 1


def test_a_table_that_was_dropped_does_not_stop_a_report(tmp_path: Path) -> None:
    """Its tags cannot be read again; the page is about the tables that are there."""
    lake = lake_of()
    lake.drop_table("t", force=True)
    text = f"name: last\nlake: l\nsteps:\n  - {{step: report, to: {tmp_path}/report.html}}\n"
    plan = Pipeline.parse(text).plan()
    ledger = Ledger(lake.store, run_id="last-1", environment=Environment())
    summary = execute(RunCall(plan, Workspace(lake), ledger, Environment()))
    assert summary.records[-1].metrics["tags_read"] == []


def test_a_stopped_run_is_said_first() -> None:
    """A refused delivery is the pipeline at work; any other error needs attention; both stand before what is well."""
    for end, mark, words in ((AUDIT, "open", "because of refused rows"), (TYPE, "bad", "by an error")):
        lake = lake_of(complete=False)
        Ledger(lake.store, run_id="daily-1", environment=Environment()).end(1, end)
        facts = facts_of(lake, fingerprints=READ)
        assert marks_of(facts) == [mark, "good"]
        assert words in state_outcome(facts)[0].sentence
        assert [f'<li class="{shown}"' in render(facts) for shown in (mark, "good")] == [True, True]


def test_the_heading_names_the_pipelines() -> None:
    """Not the last part of a path."""
    assert facts_of(lake_of()).title == "Pipeline daily"
    assert facts_of(open_lake(f"memory://{uuid.uuid4().hex}")).title == "No pipeline has run yet"


def test_sizes_that_differ_look_different() -> None:
    """As many digits as that takes."""
    assert sizes_that_differ(42_916_100, 42_900_000) == ("42.92 MB", "42.90 MB")
    assert sizes_that_differ(5e6, 1e6) == ("5 MB", "1 MB")
    assert bytes_text(16_100) == "16.1 kB"
    page = render(facts_of(lake_of()))
    assert "had <b>42.92 MB</b> before and <b>42.90 MB</b> after" in page
    assert "<dd>0.04 %</dd>" in page


def test_space_given_back_counts_each_byte_once() -> None:
    """Of what the table had: what came back, and what is left. A second expiry does not count the same bytes again."""
    lake = lake_of()
    ledger = Ledger(lake.store, run_id="daily-1", environment=Environment())
    sizes = {"disk_bytes_before": 42_900_000, "disk_bytes_after": 21_458_050}
    ledger.record(StepRecord(10, "expire 2", "expire", "", "f", 100_001, 0.1, {**EXPIRY, **SIZES, **sizes}))
    page = render(facts_of(lake))
    assert "<dd>50 %</dd><dt>of the space given back</dt><p>21.5 MB of 42.9 MB</p>" in page


def test_an_expiry_counts_the_files_of_snapshots_and_the_others() -> None:
    """An expiry that deletes snapshot files only is not said to delete nothing."""
    assert "2 snapshots expired: 2 snapshot files and 1 other file deleted;" in render(facts_of(lake_of()))


def test_one_of_a_thing_is_singular() -> None:
    """One row, one tag, one snapshot, one table."""
    lake = open_lake(f"memory://{uuid.uuid4().hex}")
    plan = Pipeline.parse("name: one\nlake: l\nsteps:\n  - {step: expire, table: t, keep: 1}\n").plan()
    ledger = Ledger(lake.store, run_id="one-1", environment=Environment())
    attempt = ledger.begin(plan)
    schema = pa.schema([pa.field("id", pa.int64(), nullable=False)])
    table = lake.create_table("t", schema, primary_keys=["id"], options={"bucket": "1"})
    snapshot = table.upsert(pa.table({"id": [1]}))
    table.create_tag("only", snapshot_id=snapshot.id)
    merged = {"table": "t", **commit_metrics(table, snapshot, name="t")}
    ledger.record(StepRecord(1, "merge", "merge", "", "f", 100_000, 2.5, merged))
    ledger.end(attempt, AttemptEnd(200_000, "complete"))
    page = render(facts_of(lake))
    assert "1 snapshot, of which 1 is kept; 1 tag" in page
    assert (
        re.search(r"\b1(/1)?(</dd><dt>)? ?(rows|tags|snapshots|steps|increments|runs|tables|files|compactions)\b", page)
        is None
    )
    assert "tags (1)" not in page


def test_what_has_no_room_beside_the_page_is_inside() -> None:
    """Hidden table heads take no width on a phone; a label at the right border of a plot ends at its tick."""
    style = re.search(r"@media \(max-width:620px\)\{.*?\n\}", render(facts_of(lake_of())), re.DOTALL)
    assert style is not None
    assert "thead{position:absolute;width:1px;height:1px;overflow:hidden" in style[0]
    html = timeline([], [], label="x", x_max=100, axis=[Tick(50, "middle"), Tick(99.5, "border")])
    assert '<span style="left:50.00%">middle</span><span class="end" style="left:99.50%">border</span>' in html


def test_a_flag_has_the_name_of_its_tag() -> None:
    """A tag of a month is flagged as it is called: by that name it is read."""
    lake = lake_of()
    lake.table("t").create_tag("2026-10", snapshot_id=1)
    flags = render(facts_of(lake)).split('class="flags wide"')[1].split("</div>")[0]
    assert ">2026-10</span>" in flags


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        (["2026-01", "2026-02"], ["Jan", "Feb"]),
        (["2025-12", "2026-01"], ["2025-12", "2026-01"]),
        (["New York", "Oslo"], ["New York", "Oslo"]),
    ],
)
def test_a_group_has_its_value_below_the_plot(values: list[str], expected: list[str]) -> None:
    """Whole, also when there are spaces in it; months of one year are short."""
    version = facts_of(lake_of()).tables[0].versions[0]
    result = _group_ticks([replace(version, group=f"place {value}") for value in values])
    assert [tick.label for tick in result] == expected


@pytest.mark.parametrize("count", [1, 12, 31, 400])
def test_labels_of_tags_never_cover_each_other(count: int) -> None:
    """In each of the widths; a wrong tag and the last one have their label before others."""
    flags = [Flag(n + 0.5, f"2024-tag-{n}", "flag wrong" if n == count // 2 else "flag") for n in range(count)]
    html = timeline([], flags, label="x", x_max=count, axis=[])
    assert html.count('class="pole"') == count
    for css, width in (("narrow", 270), ("middle", 500), ("wide", 860)):
        layer = html.split(f'class="flags {css}"')[1].split("</div>")[0]
        matches = re.findall(r'<span class="(flag(?: wrong)?) row(\d)( end)?" style="left:([\d.]+)%">([^<]*)', layer)
        assert f"2024-tag-{count // 2}" in [label for *_, label in matches]
        assert f"2024-tag-{count - 1}" in [label for *_, label in matches]
        ends = {"0": 0.0, "1": 0.0}
        for _, row, at_end, left, label in sorted(matches, key=lambda one: float(one[3])):
            size = 14 + 7 * len(label)
            start = float(left) / 100 * width - (size if at_end else 0)
            assert start >= ends[row] - 1, label
            ends[row] = start + size
