"""Pipelines that two processes run at the same time: steps that need no Spark."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa

import lakebed
from lakebed.errors import Conflict
from lakebed.pipeline import Pipeline, status
from lakebed.pipeline.model import PlannedStep
from lakebed.pipeline.progress import SilentProgress
from worlds.errors import raises

TEXT = """
name: nightly
lake: {lake}
steps:
  - step: tag
    table: trips
    tag: monday
    name: tag monday
  - step: tag
    table: trips
    tag: again
    name: tag again
"""


class _RunsMeanwhile(SilentProgress):
    """Runs the whole pipeline in another call once a step has started."""

    def __init__(self, pipeline: Pipeline) -> None:
        self.pipeline = pipeline

    def step_started(self, step: PlannedStep) -> None:
        self.pipeline.run()


def test_of_two_calls_at_once_one_stops_and_the_run_is_complete(tmp_path: Path) -> None:
    """The call that stops says why; the run's state is that of the call that did its steps."""
    trips = lakebed.open(tmp_path).create_table("trips", pa.schema([("id", pa.int64())]))
    trips.append(pa.table({"id": [1]}))
    pipeline = Pipeline.parse(TEXT.format(lake=tmp_path))
    with raises(Conflict, "run_elsewhere"):
        pipeline.run(progress=_RunsMeanwhile(pipeline))
    assert [(run.state, run.steps_done, run.failed_step) for run in status(str(tmp_path))] == [("complete", 2, None)]
    assert sorted(tag.name for tag in trips.tags()) == ["again", "monday"]
    assert pipeline.run().steps_run == 0
