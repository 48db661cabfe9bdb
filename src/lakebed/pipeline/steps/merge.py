"""``merge``: apply an increment to a primary-key table: insert new rows, update existing ones, delete marked ones.

Metrics: ``table``, ``snapshot`` (absent when the increment had no rows) and what it did to files: see `..measure`;
``content``: the identity of the increment (see `..inputs`). Idempotent: the commit carries the run's identity. An
increment that another run merged is refused before anything is committed, unless the table orders rows by
``sequence.field``, because then a late row never replaces a newer one.
"""

from __future__ import annotations

from typing import Any

from lakebed.pipeline.context import RunContext
from lakebed.pipeline.keys import Key, StepKind
from lakebed.pipeline.measure import commit_metrics
from lakebed.pipeline.model import PlannedStep
from lakebed.pipeline.source import SOURCE_KEYS, check_source, source_rows
from lakebed.table.engines.sequence import sequence_order
from lakebed.table.table import Table


def run(step: PlannedStep, context: RunContext) -> dict[str, Any]:
    """Merge in one commit, after a Spark job unless the rows are few and in this process."""
    settings = step.settings
    name = settings["into"]
    if not context.has_table(name) and not context.declares_columns(name):
        context.create_like(name, source_rows(step, context), step=step, without=settings["deletes"])
    table = context.table(name, step=step)
    if not table.schema.primary_keys:
        raise context.location(step).error(without_key(name))
    _check_sequence(step, table, context)
    content = context.content(step)
    identity = context.increment(step, table, name=name, content=content)
    snapshot = context.engine().merge(
        source_rows(step, context), table, deletes=settings["deletes"], location=context.location(step), **identity
    )
    metrics: dict[str, Any] = {"table": name, "rows": 0, "content": content}
    if snapshot is not None:
        metrics.update(commit_metrics(table, snapshot, name=name, before=context.before()))
    return metrics


def without_key(name: str) -> str:
    """Return why rows cannot be merged into a table without a primary key."""
    return (
        f"'{name}' has no primary key, so rows cannot be merged into it; use 'ingest' to append, or declare "
        "`primary_key` when the table is created."
    )


def _check_sequence(step: PlannedStep, table: Table, context: RunContext) -> None:
    """Refuse a table that was created without the order that the pipeline asks for: it cannot be added later."""
    spec = context.plan.tables.get(step.settings["into"])
    declared_sequence = "" if spec is None else spec.options.get("sequence.field", "")
    sequence = step.settings["sequence"] or tuple(part.strip() for part in declared_sequence.split(",") if part.strip())
    order = sequence_order(table.schema)
    columns = () if order is None else order.columns
    if sequence and sequence != columns:
        state = f"orders rows by {', '.join(columns)}" if columns else "was made without an order of rows"
        raise context.location(step).error(
            f"the rows of '{step.settings['into']}' are to be ordered by {', '.join(sequence)}, but the table "
            f"{state}, which is fixed when a table is created; make a new table and copy the rows."
        )


KIND = StepKind(
    name="merge",
    summary="merge an increment into a primary-key table",
    keys=(
        Key("into", "table", "the primary-key table", required=True),
        *SOURCE_KEYS,
        Key("deletes", "word", "a boolean column of the increment: true deletes the row's key"),
        Key("sequence", "names", "columns that tell an older row of a key from a newer one", is_later=True),
    ),
    run=run,
    check=check_source,
    writes="into",
)
