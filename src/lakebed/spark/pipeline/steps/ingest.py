"""``ingest``: files (CSV, JSON or Parquet; also zipped) into a table, or as a view for later steps.

Metrics: into a table: ``table``, ``snapshot``, and what it did to files (see `..measure`); as a view: ``view``.
``files_read`` counts input files where they are local.

Idempotent: the commit carries the run's identity. A view commits nothing and is made again when a resumed run needs it.
The schema of CSV and JSON is the given one, or is inferred once and then pinned in the lake, so that tomorrow's file
cannot change a type silently.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from lakebed.spark.pipeline.context import RunContext
from lakebed.spark.pipeline.files import FORMATS, find_files, format_of, unpacked
from lakebed.spark.pipeline.keys import Key, StepKind
from lakebed.spark.pipeline.measure import commit_metrics
from lakebed.spark.pipeline.model import PlannedStep
from lakebed.spark.pipeline.pinned import pinned_schema

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

__all__ = ["KIND"]


def run(step: PlannedStep, context: RunContext) -> dict[str, Any]:
    """One Spark job and one commit; or, as a view, the reading of the files."""
    settings = step.settings
    paths = find_files(settings["from"], place=context.place(step))
    if settings["as"] is not None:
        recall(step, context)
        context.frame(settings["as"])
        return {"view": settings["as"], "files_read": len(paths)}
    name = settings["into"]
    if not context.has_table(name) and not context.declares_columns(name):
        context.create_like(name, rows_of(step, context), step=step)
    table = context.table(name, step=step)
    snapshot = context.engine().append(
        rows_of(step, context), table, place=context.place(step), **context.identity(step)
    )
    metrics: dict[str, Any] = {"table": name, "files_read": len(paths), "rows": 0}
    if snapshot is not None:
        metrics.update(commit_metrics(table, snapshot, name=name, before=reversed(context.records)))
    return metrics


def recall(step: PlannedStep, context: RunContext) -> None:
    """Name the view again, for the steps of a resumed run; the files are read when one of them asks."""
    view = step.settings["as"]
    if view is not None:
        context.name_view(view, lambda: rows_of(step, context))


def rows_of(step: PlannedStep, context: RunContext) -> DataFrame:
    """The files' rows, through ``select`` when there is one."""
    settings, place, engine = step.settings, context.place(step), context.engine()
    file_format = settings["format"] or format_of(settings["from"], place=place)
    paths = unpacked(find_files(settings["from"], place=place), context.scratch_folder, place=place)
    options = dict(settings["options"])
    schema = settings["schema"]
    if schema is None and file_format != "parquet":
        schema = pinned_schema(
            step,
            context,
            infer=lambda: engine.infer_schema(paths, file_format=file_format, options=options, place=place),
        )
    rows = engine.read_files(paths, file_format=file_format, options=options, schema=schema, place=place)
    if settings["select"] is not None:
        rows = engine.query(settings["select"], views={"files": rows}, place=place)
    return engine.kept(rows) if settings["cache"] else rows


def check(settings: Mapping[str, Any]) -> str | None:
    """Exactly one of ``into`` and ``as``; only a view can be cached."""
    if settings["cache"] and settings["as"] is None:
        return "only a view can be cached: 'cache' goes with 'as'."
    if (settings["into"] is None) == (settings["as"] is None):
        return "say where the rows go: either 'into' (a table) or 'as' (a view for later steps), not both."
    return None


KIND = StepKind(
    verb="ingest",
    summary="read files into a table or a view",
    keys=(
        Key(
            "from",
            "text",
            "a file, a folder, a pattern such as `in/*.csv`, or a URL that Spark can read",
            required=True,
        ),
        Key("format", "text", "csv, json or parquet; without it, by the name's ending", choices=FORMATS),
        Key("options", "texts", "options of Spark's reader", default={}),
        Key("schema", "texts", "the files' columns with their Spark SQL types, in order"),
        Key("select", "sql", "a SELECT over `files`, to shape the rows"),
        Key("into", "table", "the table to append to (or merge into, when it has a primary key)"),
        Key("as", "word", "the name of a view for later steps"),
        Key("cache", "flag", "keep the view's rows in memory: worth it when many steps read many rows", default=False),
    ),
    run=run,
    check=check,
    recall=recall,
)
