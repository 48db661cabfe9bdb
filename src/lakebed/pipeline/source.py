"""The source of a step's rows: a table, a view, or a query over them.

Owns: the keys ``from``, ``version``, ``where``, ``query``, and turning them into rows. Invariants: a query can name
every table of the lake and every view of the pipeline; Spark's errors about SQL become one sentence with the step's
line.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from lakebed.pipeline.context import RunContext
from lakebed.pipeline.keys import Key
from lakebed.pipeline.model import PlannedStep
from lakebed.pipeline.rows import Rows

SOURCE_KEYS = (
    Key("from", "rows", "the table or view to read"),
    Key("version", "text", "a snapshot id or tag of that table"),
    Key("where", "expression", "which of its rows"),
    Key("query", "query", "a SELECT over tables and views, instead of 'from'"),
)

_WORD = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


def check_source(settings: Mapping[str, Any]) -> str | None:
    """Require exactly one of ``from`` and ``query``."""
    if (settings["from"] is None) == (settings["query"] is None):
        return "say where the rows come from: either 'from' (a table or view) or 'query' (a SELECT), not both."
    if settings["query"] is not None and (settings["where"] is not None or settings["version"] is not None):
        return "'where' and 'version' belong to 'from'; write them into the query."
    return None


def source_rows(step: PlannedStep, context: RunContext) -> Rows:
    """Return the rows that a step reads.

    Raises `InvalidRequest`: no such table or view, or SQL that Spark does not accept; names the step's line.
    """
    settings = step.settings
    if settings["query"] is not None:
        words = set(_WORD.findall(settings["query"]))
        views = {name: _rows_of(name, step, context) for name in sorted(words & context.row_sources())}
        return context.engine().query(settings["query"], views=views, location=context.location(step))
    return _rows_of(settings["from"], step, context, version=settings["version"], where=settings["where"])


def _rows_of(
    name: str, step: PlannedStep, context: RunContext, *, version: str | None = None, where: str | None = None
) -> Rows:
    engine, location = context.engine(), context.location(step)
    view = context.view(name)
    if view is not None:
        return engine.filter_rows(view, where, location=location)
    return engine.read_table(context.table(name, step=step), version=version, where=where, location=location)
