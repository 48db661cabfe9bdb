"""What a run prints: what each step did in a few words, a line for each group, how the run ended. No Spark."""

from __future__ import annotations

from io import StringIO
from typing import Any

import pytest
from rich.console import Console

from lakebed.pipeline import Pipeline
from lakebed.pipeline.model import Plan, StepRecord
from lakebed.pipeline.progress import BarProgress, LineProgress, describe

TEXT = """\
name: month
lake: lake
tables:
  sales: {primary_key: [id], schema: {id: BIGINT}}
  seen: {schema: {id: BIGINT}}
steps:
  - for_each: {day: [d1]}
    steps:
      - {step: ingest, from: d1.csv, as: delivery, schema: {id: bigint}, bad_rows: drop}
      - {step: audit, from: delivery, overall: {some: count(*) > 0}}
      - {step: merge, into: sales, from: delivery}
      - {step: ingest, name: "keep ${day}", from: d1.csv, into: seen, schema: {id: bigint}}
"""
METRICS: list[dict[str, Any]] = [
    {"view": "delivery", "rows": 10, "rows_dropped": 2},
    {"rows": 10, "expectations": 1},
    {"table": "sales", "rows": 10, "snapshot": 1},
    {"table": "seen", "rows": 1, "snapshot": 1},
]


def record(verb: str, **metrics: object) -> StepRecord:
    """What a step of the kind did."""
    return StepRecord(1, verb, verb, "", "f", 0, 0.1, metrics)


def records_of(plan: Plan) -> list[StepRecord]:
    """The records of a run of `TEXT`."""
    return [
        StepRecord(step.ordinal, step.name, step.kind, step.group, "f", 0, 0.1, metrics)
        for step, metrics in zip(plan.steps, METRICS, strict=True)
    ]


@pytest.mark.parametrize(("kind", "is_terminal"), [(LineProgress, False), (BarProgress, True)])
def test_rows_that_a_loop_drops_are_shown(kind: Any, is_terminal: bool) -> None:
    """In the line of the group, and above a bar."""
    plan = Pipeline.parse(TEXT).plan()
    out = StringIO()
    progress = kind(Console(file=out, width=200, force_terminal=is_terminal, highlight=False))
    progress.run_began(plan, run_id="r", steps_done=0)
    for step, done in zip(plan.steps, records_of(plan), strict=True):
        progress.step_started(step)
        progress.step_finished(step, done)
    progress.run_ended(None)
    assert "2 bad rows dropped" in out.getvalue()


def test_a_group_counts_the_rows_that_it_wrote() -> None:
    """Merged ones and those that an ingest wrote into a table; a view is not written."""
    plan = Pipeline.parse(TEXT).plan()
    out = StringIO()
    progress = LineProgress(Console(file=out, width=200))
    for step, done in zip(plan.steps, records_of(plan), strict=True):
        progress.step_started(step)
        progress.step_finished(step, done)
    progress.run_ended(None)
    assert out.getvalue() == (
        "  day d1: 2 ingest, 1 audit, 1 merge; 10 rows merged; 1 row ingested; 2 bad rows dropped, 0.4 s\n"
    )


@pytest.mark.parametrize(
    ("before", "after", "words"),
    [
        (3_012_100, 3_000_000, "22 snapshots, 12.1 kB freed"),
        (3_000_000, 1_000_000, "22 snapshots, 2.0 MB freed"),
        (900, 900, "22 snapshots, 0 B freed"),
    ],
)
def test_freed_space_has_a_unit_that_fits(before: int, after: int, words: str) -> None:
    """A few kilobytes are not 0.0 MB."""
    metrics = {"snapshots_expired": 22, "disk_bytes_before": before, "disk_bytes_after": after}
    assert describe(record("expire", **metrics)) == words


def test_one_of_a_thing_is_singular() -> None:
    """Rows, expectations, files."""
    assert describe(record("audit", rows=1, expectations=1)) == "1 row, 1 expectation holds"
    assert describe(record("audit", rows=2, expectations=3)) == "2 rows, 3 expectations hold"
    assert describe(record("merge", rows=1, snapshot=4)) == "1 row, snapshot 4"
    assert describe(record("compact", snapshot=4, files_removed=2, files_added=1)) == "2 files into 1"
    assert describe(record("ingest", rows=1, rows_dropped=1)) == "1 row, 1 bad row dropped"
