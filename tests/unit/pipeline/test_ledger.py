"""The run ledger: what is done is remembered, what is damaged is named, two runs never mix."""

from __future__ import annotations

import uuid
from dataclasses import replace

import pytest

from lakebed.errors import Conflict, Corruption, InvalidRequest, NotFound, UnsupportedFormat
from lakebed.lake.lake import open_lake
from lakebed.objects import open_store
from lakebed.objects.port import ObjectStore
from lakebed.pipeline import Pipeline, Plan, status
from lakebed.pipeline.ledger import AttemptEnd, Ledger, run_statuses
from lakebed.pipeline.model import PlannedStep, StepRecord
from lakebed.runtime import Environment

TEXT = """\
name: small
lake: lake
vars: {keep: 3}
steps:
  - {step: compact, table: t}
  - {step: expire, table: t, keep: "${keep}"}
"""


@pytest.fixture
def store() -> ObjectStore:
    """An empty lake."""
    return open_store(f"memory://{uuid.uuid4().hex}")


def plan_of(**variables: str) -> Plan:
    """Two steps."""
    return Pipeline.parse(TEXT).plan(variables=variables)


def ledger_of(store: ObjectStore, run_id: str = "r1") -> Ledger:
    """A ledger."""
    return Ledger(store, run_id=run_id, environment=Environment())


def record_of(step: PlannedStep) -> StepRecord:
    """A step that is done."""
    return StepRecord(step.ordinal, step.name, step.kind, step.group, step.fingerprint, 1000, 0.5, {"rows": 7})


def test_recorded_steps_are_read_back(store: ObjectStore) -> None:
    """Another process sees exactly what was recorded, in order."""
    plan, ledger = plan_of(), ledger_of(store)
    assert ledger.begin(plan) == 1
    for step in reversed(plan.steps):
        ledger.record(record_of(step))
    assert list(ledger_of(store).records().values()) == [record_of(step) for step in plan.steps]


def test_a_run_goes_from_unfinished_over_failed_to_complete(store: ObjectStore) -> None:
    """A call that wrote no end was killed (or runs); the last call's end is the run's state."""
    plan, ledger = plan_of(), ledger_of(store)
    ledger.begin(plan)
    assert ledger.status().state == "unfinished"
    assert ledger.begin(plan) == 2
    ledger.end(2, AttemptEnd(ended_ms=5, outcome="failed", step="expire", error_kind="conflict", error="It did."))
    status = ledger.status()
    assert (status.state, status.failed_step, status.error, status.attempts) == ("failed", "expire", "It did.", 2)
    assert ledger.begin(plan) == 3
    ledger.record(record_of(plan.steps[0]))
    ledger.end(3, AttemptEnd(ended_ms=9, outcome="complete"))
    status = ledger.status()
    assert (status.state, status.steps_done, status.steps_total, status.error) == ("complete", 1, 2, None)


def test_a_run_id_belongs_to_one_plan(store: ObjectStore) -> None:
    """Other variables under the same id would mix two runs."""
    ledger_of(store).begin(plan_of())
    with pytest.raises(InvalidRequest, match="another version of the pipeline 'small'") as caught:
        ledger_of(store).begin(plan_of(keep="4"))
    assert caught.value.kind == "run_id_taken"


def test_two_processes_cannot_record_one_step(store: ObjectStore) -> None:
    """The second gets an error that says what runs, and what to do."""
    plan = plan_of()
    ledger_of(store).begin(plan)
    ledger_of(store).record(record_of(plan.steps[0]))
    with pytest.raises(Conflict, match=r"Another process is running the run 'r1' too .* Let the other one finish"):
        ledger_of(store).record(record_of(plan.steps[0]))


def test_a_call_beside_the_one_that_completes_a_run_does_not_hide_that(store: ObjectStore) -> None:
    """A run whose steps are all done is complete, also where a later call stopped, failed or was killed before."""
    plan, ledger = plan_of(), ledger_of(store)
    first, second, third = (ledger.begin(plan) for _ in range(3))
    ledger.record(record_of(plan.steps[0]))
    ledger.end(second, AttemptEnd(ended_ms=5, outcome="failed", step="expire", error="It did."))
    assert (ledger.status().state, ledger.is_complete()) == ("unfinished", False)
    ledger.record(record_of(plan.steps[1]))
    assert (ledger.status().state, ledger.is_complete()) == ("unfinished", False)
    ledger.end(first, AttemptEnd(ended_ms=7, outcome="complete"))
    assert (ledger.status().state, ledger.status().ended_ms, ledger.is_complete()) == ("complete", 7, True)
    ledger.end(third, AttemptEnd(ended_ms=9, outcome="failed", step="expire", error="It did."))
    assert (ledger.status().state, ledger.status().error, ledger.is_complete()) == ("complete", None, True)


@pytest.mark.parametrize("run_id", ["", "../up", "a b", "a/b", "x" * 129, ".hidden"])
def test_a_run_id_is_a_plain_name(store: ObjectStore, run_id: str) -> None:
    """It becomes a folder."""
    with pytest.raises(InvalidRequest, match="is not a valid run id"):
        ledger_of(store, run_id)


def test_a_missing_run_is_named(store: ObjectStore) -> None:
    """With the lake it is not in."""
    with pytest.raises(NotFound, match="no run 'r9' in memory://"):
        ledger_of(store, "r9").status()


@pytest.mark.parametrize("name", ["run.json", "steps/000001.json", "attempts/000001-end.json"])
@pytest.mark.parametrize("body", [b"", b"{", b"[1]", b'{"ordinal": "x"}', b"\xff\xfe"])
def test_a_damaged_ledger_is_named_by_its_path(store: ObjectStore, name: str, body: bytes) -> None:
    """Never a decoder's traceback."""
    plan, ledger = plan_of(), ledger_of(store)
    ledger.begin(plan)
    store.put(f"_lakebed/runs/r1/{name}", body)
    read = ledger.records if name.startswith("steps") else ledger.status
    with pytest.raises(Corruption) as caught:
        read()
    assert caught.value.facts["path"] == f"_lakebed/runs/r1/{name}"


def test_a_newer_ledger_is_not_guessed_at(store: ObjectStore) -> None:
    """It says which format it found."""
    ledger = ledger_of(store)
    ledger.begin(plan_of())
    body = bytes(memoryview(store.get("_lakebed/runs/r1/run.json"))).replace(b'"format":2', b'"format":3')
    store.put("_lakebed/runs/r1/run.json", body)
    with pytest.raises(UnsupportedFormat, match="ledger format 3"):
        ledger.run()


def test_runs_of_a_lake_are_listed(store: ObjectStore) -> None:
    """All of them, and a lake without runs has none."""
    assert run_statuses(store, environment=Environment()) == []
    for run_id in ("a", "b"):
        ledger_of(store, run_id).begin(plan_of())
    assert {status.run_id for status in run_statuses(store, environment=Environment())} == {"a", "b"}


def test_the_status_of_a_run_counts_dropped_rows(store: ObjectStore) -> None:
    """By step, also of steps that were taken over; a list of all runs does not read their steps."""
    open_lake(store.root_url)
    plan, ledger = plan_of(), ledger_of(store)
    attempt = ledger.begin(plan)
    first, second = (record_of(step) for step in plan.steps)
    ledger.carry(attempt, [replace(first, name="ingest d1", metrics={"rows": 10, "rows_dropped": 2})])
    ledger.record(replace(second, name="ingest d2", metrics={"rows": 10}))
    assert [difference.rows_dropped for difference in status(store.root_url, run_id="r1")] == [{"ingest d1": 2}]
    assert [difference.rows_dropped for difference in status(store.root_url)] == [None]


def test_recording_a_step_is_one_request(store: ObjectStore) -> None:
    """On object storage a ledger must not cost more than what it protects."""
    plan, ledger = plan_of(), ledger_of(store)
    ledger.begin(plan)
    with store.count() as requests:
        ledger.record(record_of(plan.steps[0]))
    assert (requests.put, requests.total) == (1, 1)
