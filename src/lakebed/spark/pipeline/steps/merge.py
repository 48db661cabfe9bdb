"""``merge``: an increment into a primary-key table: insert what is new, update what is there, delete what is marked.

Metrics: ``table``, ``snapshot`` (absent when the increment had no rows) and what it did to files: see `..measure`.

Idempotent: the commit carries the run's identity; and merging an increment again, late or twice, sets the same rows
to the same values.
"""

from __future__ import annotations

from typing import Any

from lakebed.spark.pipeline.context import RunContext
from lakebed.spark.pipeline.keys import Key, StepKind
from lakebed.spark.pipeline.measure import commit_metrics
from lakebed.spark.pipeline.model import PlannedStep
from lakebed.spark.pipeline.source import SOURCE_KEYS, check_source, source_frame

__all__ = ["KIND"]


def run(step: PlannedStep, context: RunContext) -> dict[str, Any]:
    """One Spark job and one commit."""
    settings = step.settings
    name = settings["into"]
    if not context.has_table(name) and not context.declares_columns(name):
        context.create_like(name, source_frame(step, context), step=step, without=settings["deletes"])
    table = context.table(name, step=step)
    if not table.schema.primary_keys:
        raise context.place(step).error(
            f"'{name}' has no primary key, so rows cannot be merged into it; use 'ingest' to append, or declare "
            "`primary_key` when the table is created."
        )
    snapshot = context.engine().merge(
        source_frame(step, context),
        table,
        deletes=settings["deletes"],
        place=context.place(step),
        **context.identity(step),
    )
    metrics: dict[str, Any] = {"table": name, "rows": 0}
    if snapshot is not None:
        metrics.update(commit_metrics(table, snapshot, name=name, before=reversed(context.records)))
    return metrics


KIND = StepKind(
    verb="merge",
    summary="merge an increment into a primary-key table",
    keys=(
        Key("into", "table", "the primary-key table", required=True),
        *SOURCE_KEYS,
        Key("deletes", "word", "a boolean column of the increment: true deletes the row's key"),
    ),
    run=run,
    check=check_source,
)
