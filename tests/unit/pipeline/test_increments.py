"""Which increments were merged: known by content, merged once in any race, never twice unasked. No Spark."""

from __future__ import annotations

import uuid
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from lakebed.errors import AlreadyExists, Corruption, InvalidRequest, Rejected, UnsupportedFormat
from lakebed.lake.lake import Lake, open_lake
from lakebed.pipeline import Pipeline, Plan
from lakebed.pipeline.identity import identities
from lakebed.pipeline.increments import INCREMENTS_FOLDER, StepCommit, commit_identity
from lakebed.pipeline.ledger import AttemptEnd, Ledger
from lakebed.pipeline.model import StepRecord
from lakebed.pipeline.nodes import SourceLocation
from lakebed.pipeline.preflight import check_tags, earlier_runs, which_run
from lakebed.pipeline.progress import ending
from lakebed.runtime import Environment

TEXT = """\
name: small
lake: lake
vars: {where: "id > 0"}
tables: {t: {primary_key: [id], schema: {id: BIGINT, v: INT}}}
steps:
  - {step: ingest, from: in.csv, as: rows, schema: {id: bigint, v: int}}
  - {step: merge, into: t, from: rows, where: "${where}"}
  - {step: tag, table: t, tag: first}
"""
ROWS = pa.table({"id": pa.array([1, 2], pa.int64()), "v": pa.array([5, 6], pa.int32())})
MERGE = 2


@pytest.fixture
def lake() -> Lake:
    """A lake with an empty table."""
    made = open_lake(f"memory://{uuid.uuid4().hex}")
    made.create_table("t", ROWS.schema, primary_keys=["id"], options={"bucket": "1"})
    return made


def plan_of(**variables: str) -> Plan:
    return Pipeline.parse(TEXT, file="small.yaml").plan(variables=variables)


def ledger_of(lake: Lake, run_id: str) -> Ledger:
    return Ledger(lake.store, run_id=run_id, environment=Environment())


def ask(
    lake: Lake,
    run_id: str,
    *,
    content: str | None = "c",
    replayed: bool = False,
    resumed: bool = False,
    **variables: str,
) -> dict[str, Any]:
    """Which commit a run's merge step makes."""
    commit = StepCommit(
        table=lake.table("t"),
        name="t",
        identity=identities(plan_of(**variables))[MERGE - 1],
        own={"commit_user": f"pipeline:{run_id}", "commit_identifier": MERGE},
        run_id=run_id,
        location=SourceLocation("small.yaml", 7),
        is_resumed=resumed,
        is_replayed=replayed,
    )
    return commit_identity(lake.store, commit, content=content, ledger_of=lambda one: ledger_of(lake, one))


def record(lake: Lake, run_id: str, snapshot: int, *, rows: int = 2, content: str = "c") -> None:
    """The step is done and in the ledger."""
    step = plan_of().steps[MERGE - 1]
    metrics = {"table": "t", "snapshot": snapshot, "committed_ms": 1, "rows": rows, "content": content}
    ledger_of(lake, run_id).record(StepRecord(MERGE, step.name, "merge", "", step.fingerprint, 1, 0.1, metrics))


def merged(lake: Lake, run_id: str, **options: Any) -> int:
    """Claim, commit and record: a whole step. The snapshot."""
    snapshot = lake.table("t").upsert(ROWS, **ask(lake, run_id, **options))
    record(lake, run_id, snapshot.id)
    return snapshot.id


def test_the_same_increment_under_another_run_is_refused(lake: Lake) -> None:
    """Before anything is committed, naming that run; a replay, another increment and an unknown one are not."""
    merged(lake, "r1")
    with pytest.raises(Rejected, match=r"line 7: merge stopped the run: the run 'r1' merged the same") as caught:
        ask(lake, "r2")
    assert "as snapshot 1" in caught.value.message
    assert caught.value.facts["run_id"] == "r1"
    assert ask(lake, "r2", replayed=True)["commit_user"] == "pipeline:r2"
    assert ask(lake, "r2", content="other")["commit_user"] == "pipeline:r2"
    assert ask(lake, "r2", content=None)["commit_user"] == "pipeline:r2"
    assert ask(lake, "r1")["commit_user"] == "pipeline:r1"


@pytest.mark.parametrize(
    ("change", "said"), [((b'"format":1', b'"format":2'), "format 2"), ((b'"format":1', b'"format":'), "is damaged")]
)
def test_a_claim_that_cannot_be_read_stops_the_run(lake: Lake, change: tuple[bytes, bytes], said: str) -> None:
    """It may say that the increment was merged: nothing is committed."""
    ask(lake, "r1")
    path = next(meta.path for meta in lake.store.list(INCREMENTS_FOLDER))
    lake.store.put(path, bytes(lake.store.get(path)).replace(*change))
    with pytest.raises(UnsupportedFormat if "2" in said else Corruption, match=said):
        ask(lake, "r2")


def test_an_increment_without_rows_is_nothing_to_protect(lake: Lake) -> None:
    """Empty deliveries look all alike."""
    snapshot = lake.table("t").upsert(ROWS.slice(0, 0), **ask(lake, "r1"))
    record(lake, "r1", snapshot.id, rows=0)
    assert ask(lake, "r2")["commit_user"] == "pipeline:r2"


@pytest.mark.parametrize("is_committed", [False, True])
def test_a_run_killed_in_its_merge_is_finished_by_another_one(lake: Lake, is_committed: bool) -> None:
    """Killed before or after the commit: the other run gives the commit the same identity, so it is made once."""
    table = lake.table("t")
    table.upsert(ROWS, commit_user="somebody")
    mine = ask(lake, "r1")
    if is_committed:
        table.upsert(ROWS, **mine)
    theirs = ask(lake, "r2")
    assert theirs == mine
    first = table.upsert(ROWS, **theirs)
    newer = table.upsert(ROWS.set_column(1, "v", pa.array([7, 8], pa.int32())), commit_user="day two")
    late = lake.table("t").upsert(ROWS, **mine)  # the first run was not dead: it commits late, over newer rows
    assert late.id == first.id == newer.id - 1
    assert lake.table("t").read()["v"].to_pylist() == [7, 8]


def test_a_commit_without_record_of_another_step_is_not_taken_for_done(lake: Lake) -> None:
    """The same file with another selection was merged: that is not what this step does, so a person decides."""
    lake.table("t").upsert(ROWS, **ask(lake, "r1"))
    with pytest.raises(Rejected, match="merged the same increment"):
        ask(lake, "r2", where="id > 1")


@pytest.mark.parametrize("is_committed", [False, True])
def test_an_input_that_was_corrected_after_a_kill_is_not_taken_for_merged(lake: Lake, is_committed: bool) -> None:
    """Killed between the commit and its record: a person decides. Killed before the commit: the new rows go in."""
    mine = ask(lake, "r1")
    if not is_committed:
        assert ask(lake, "r1", content="corrected", resumed=True) == mine
        return
    lake.table("t").upsert(ROWS, **mine)
    assert ask(lake, "r1", resumed=True) == mine
    for _ in range(2):
        with pytest.raises(Rejected, match="made as snapshot 1 when the run was killed, and its input has changed"):
            ask(lake, "r1", content="corrected", resumed=True)
    again = ask(lake, "r1", content="corrected", resumed=True, replayed=True)
    assert ask(lake, "r1", content="corrected", resumed=True) == again
    corrected = ROWS.set_column(1, "v", pa.array([7, 8], pa.int32()))
    assert [lake.table("t").upsert(corrected, **again).id for _ in range(2)] == [2, 2]
    assert lake.table("t").read()["v"].to_pylist() == [7, 8]


def test_a_table_that_was_made_anew_has_no_increments(lake: Lake) -> None:
    """What was merged into a dropped table of the same name says nothing."""
    merged(lake, "r1")
    lake.drop_table("t")
    options = {"bucket": "1"}
    lake.create_table("t", ROWS.schema, primary_keys=["id"], options=options)
    assert ask(lake, "r2")["commit_user"] == "pipeline:r2"


def test_two_runs_at_once_agree_on_one_commit(lake: Lake) -> None:
    """The first to write names the commit; a lost reply of that write changes nothing."""
    answers = [ask(lake, run_id) for run_id in ("r1", "r2", "r1", "r3")]
    assert {answer["commit_user"] for answer in answers} == {"pipeline:r1"}
    assert len({lake.table("t").upsert(ROWS, **answer).id for answer in answers}) == 1


def test_a_damaged_record_is_named(lake: Lake) -> None:
    """Not guessed at: what it said is unknown."""
    ask(lake, "r1")
    (meta,) = lake.store.list(INCREMENTS_FOLDER)
    lake.store.put(meta.path, b"{")
    with pytest.raises(Corruption, match=meta.path):
        ask(lake, "r2")


def test_tags_are_looked_at_before_anything_is_done(lake: Lake) -> None:
    """A tag that a step would have to move is found, a free one and one at its place are not."""
    plan = plan_of()
    check_tags(plan, lake, {})
    snapshot = merged(lake, "r1")
    lake.table("t").create_tag("first", snapshot_id=snapshot)
    with pytest.raises(AlreadyExists, match=r"line 8: the tag 'first' of 't' is already on snapshot 1"):
        check_tags(plan, lake, {})
    done = ledger_of(lake, "r1").own_records()
    check_tags(plan, lake, done)
    lake.table("t").upsert(ROWS)
    lake.table("t").replace_tag("first", snapshot_id=2)
    with pytest.raises(AlreadyExists, match="already on snapshot 2"):
        check_tags(plan, lake, done)


def test_a_run_that_was_killed_after_its_tag_goes_on(lake: Lake) -> None:
    """Of a table that others write: the tag is on the newest snapshot, where its step would put it."""
    text = "name: nightly\nlake: lake\nsteps:\n  - {step: tag, table: t, tag: tonight}\n"
    plan = Pipeline.parse(text, file="nightly.yaml").plan()
    lake.table("t").upsert(ROWS)
    lake.table("t").create_tag("tonight")
    check_tags(plan, lake, {})
    lake.table("t").upsert(ROWS)
    with pytest.raises(AlreadyExists, match="already on snapshot 1"):
        check_tags(plan, lake, {})


def test_a_replay_of_what_a_run_has_done_is_a_run_of_its_own(lake: Lake) -> None:
    """A run does each step once: to do one again another run begins, and goes on when it is called again."""
    plan, environment = plan_of(), Environment()

    def chosen(*replay: str) -> str:
        return which_run(plan, lake, replay=replay, environment=environment)

    base = plan.default_run_id
    assert chosen() == chosen("merge") == base
    ledger_of(lake, base).begin(plan)
    assert chosen("merge") == base
    record(lake, base, 1)
    assert chosen("tag") == base
    assert chosen("merge") == f"{base}-r2"
    ledger_of(lake, base).end(1, AttemptEnd(ended_ms=1, outcome="complete"))
    assert chosen() == base
    assert chosen("tag") == f"{base}-r2"
    ledger_of(lake, f"{base}-r2").begin(plan, replay=["merge"])
    record(lake, f"{base}-r2", 2)
    assert chosen() == chosen("merge") == f"{base}-r2"
    assert chosen("*") == f"{base}-r3"
    runs = earlier_runs(plan, lake, run_id=f"{base}-r2", environment=environment)
    assert [(run.run_id, sorted(run.records)) for run in runs] == [(base, [MERGE])]


def test_a_replay_of_what_a_run_took_over_is_a_run_of_its_own(lake: Lake) -> None:
    """Although the run is unfinished: its record of the step would stand, and the replay would do nothing."""
    plan, environment = plan_of(), Environment()
    base = plan.default_run_id
    record(lake, "earlier", 1)
    (taken,) = ledger_of(lake, "earlier").own_records().values()
    ledger_of(lake, base).carry(ledger_of(lake, base).begin(plan), [taken])
    assert which_run(plan, lake, replay=["merge"], environment=environment) == f"{base}-r2"
    assert which_run(plan, lake, replay=["tag"], environment=environment) == base


def test_a_replay_in_a_run_that_has_done_the_step_is_refused(lake: Lake) -> None:
    """A call with the id of the run, which would do nothing; the call that began the run may be repeated."""
    lake.table("t").upsert(ROWS)
    step = "{step: tag, name: first, table: t, tag: one}"
    pipeline = Pipeline.parse(f"name: n\nlake: {lake.url}\nsteps:\n  - {step}\n")
    assert pipeline.run(run_id="mine", replay=["fir*"]).steps_run == 1
    assert pipeline.run(run_id="mine", replay=["fir*"]).steps_run == 0
    with pytest.raises(InvalidRequest, match=r"--replay names 'first', which the run mine has done.* another --run-id"):
        pipeline.run(run_id="mine", replay=["first"])
    lake.table("t").delete_tag("one")
    assert pipeline.run(run_id="other", replay=["first"]).steps_run == 1


def test_a_complete_run_says_that_an_input_has_changed(tmp_path: Path) -> None:
    """The call does nothing, as before; the same bytes written again are not a change."""
    source = tmp_path / "in.csv"
    source.write_text("id\n1\n")
    pipeline = Pipeline.parse(
        f"name: nightly\nlake: {tmp_path / 'lake'}\nsteps:\n"
        f"  - {{step: ingest, from: {source}, as: rows, schema: {{id: bigint}}}}\n"
        "  - {step: audit, from: rows, overall: {some: count(*) > 0}}\n"
    )
    assert pipeline.run().inputs_changed == ()
    source.write_text("id\n1\n")
    assert pipeline.run().inputs_changed == ()
    source.write_text("id\n2\n")
    summary = pipeline.run()
    assert (summary.inputs_changed, summary.steps_run) == (("ingest",), 0)
    assert "The input of 'ingest' has changed since" in ending(summary)
    source.unlink()
    assert pipeline.run().inputs_changed == ()


def test_what_was_carried_by_consent_is_not_asked_for_again(lake: Lake) -> None:
    """A whole run after a whole run: the consent of the second one is read from its ledger by the third."""
    lake.table("t").upsert(ROWS)
    text = f"name: nightly\nlake: {lake.url}\nsteps:\n  - {{step: tag, name: first, table: t, tag: one}}\n"
    Pipeline.parse(text).run()
    changed = text.replace("tag: one", "tag: one, keep: 7 days")
    with pytest.raises(InvalidRequest, match=r"'first' \(line 4: it was changed\)"):
        Pipeline.parse(changed).run()
    assert Pipeline.parse(changed).run(carry=["first"]).steps_carried == 1
    summary = Pipeline.parse(changed + "  - {step: tag, name: second, table: t, tag: two}\n").run()
    assert (summary.steps_carried, summary.steps_run) == (1, 1)
    assert summary.records[0].carried_from.endswith("/1")


def test_what_was_taken_over_is_read_back_and_counted(lake: Lake) -> None:
    """One object a call, all or nothing; the run's own records win, and a ledger of the first format is read."""
    plan, ledger = plan_of(), ledger_of(lake, "r2")
    record(lake, "r1", 1)
    (taken,) = ledger_of(lake, "r1").own_records().values()
    attempt = ledger.begin(plan)
    ledger.carry(attempt, [taken])
    ledger.carry(attempt + 1, [])
    assert ledger.records() == {MERGE: taken}
    assert ledger.own_records() == {}
    assert ledger.record_of(MERGE) is None
    assert ledger.status().steps_done == 1
    record(lake, "r2", 9)
    assert ledger.records()[MERGE].metrics["snapshot"] == 9
    assert ledger.status().steps_done == 1
    path = "_lakebed/runs/r2/run.json"
    body = bytes(memoryview(lake.store.get(path))).replace(b'"format":2', b'"format":1').replace(b',"replay":[]', b"")
    lake.store.put(path, body)
    assert ledger.run().replay == ()
