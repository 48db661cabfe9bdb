"""``compact``: rewrite small files of a table into large ones.

Metrics: ``table``, ``snapshot`` (absent when there was nothing to do) and what it did to files: see `..measure`.
Idempotent: compact files are not rewritten, so a repetition commits nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from lakebed.pipeline.context import RunContext
from lakebed.pipeline.keys import Key, StepKind
from lakebed.pipeline.measure import commit_metrics
from lakebed.pipeline.model import PlannedStep
from lakebed.texts import format_count


def run(step: PlannedStep, context: RunContext) -> dict[str, Any]:
    """Compact the table with a Spark job, one task for each bucket."""
    settings = step.settings
    table = context.table(settings["table"], step=step)
    snapshot = context.engine().compact(table, full=settings["full"])
    metrics: dict[str, Any] = {"table": settings["table"]}
    if snapshot is not None:
        metrics.update(commit_metrics(table, snapshot, name=settings["table"], before=context.before()))
    return metrics


def describe(metrics: Mapping[str, Any]) -> list[str]:
    """Return the numbers of files before and after."""
    if "snapshot" not in metrics:
        return ["nothing to do"]
    return [f"{format_count(metrics.get('files_removed', 0), 'file')} into {metrics.get('files_added', 0):,}"]


KIND = StepKind(
    name="compact",
    summary="rewrite small files into large ones",
    keys=(
        Key("table", "table", "the table to compact", required=True),
        Key(
            "full",
            "flag",
            "rewrite every bucket into one sorted run, even where a cheaper step would do",
            default=False,
        ),
    ),
    run=run,
    describe=describe,
    rewrites="table",
)
