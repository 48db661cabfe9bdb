"""Checks of a plan beyond its own text and its tables: columns, input files and SQL. Changes nothing.

Owns: the checks of ``pipeline run --check`` that a run does not make before its first step (those are in `preflight`).
Invariants: if a check fails here, its step would fail for the same reason. What only a run can know (columns of a
query, or of files without a schema) is not checked.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import Literal

import pyarrow as pa

import lakebed.spark
from lakebed.errors import InvalidRequest
from lakebed.lake.lake import Lake
from lakebed.pipeline.context import fields_of
from lakebed.pipeline.files import find_files
from lakebed.pipeline.model import Plan, PlannedStep
from lakebed.pipeline.nodes import SourceLocation, nearest
from lakebed.pipeline.plain import plain_type
from lakebed.pipeline.steps import KINDS
from lakebed.pipeline.steps.merge import without_key
from lakebed.spark.java import require_java, require_pyspark
from lakebed.table.model.model import DataField
from lakebed.table.model.types import arrow_type
from lakebed.table.schema.conform import may_become


@dataclass(frozen=True, slots=True)
class CheckReport:
    """The result of a check that found no mistake."""

    plan: Plan
    sql_unchecked: str | None
    """Why the SQL was not parsed, as a sentence; None: it was parsed."""


@dataclass(frozen=True, slots=True)
class _Target:
    """A table, as far as its columns are known."""

    fields: tuple[DataField, ...]
    """Empty: the first rows that are written determine the columns."""
    keys: tuple[str, ...]


def check_columns(plan: Plan, lake: Lake | None) -> None:
    """Check that the rows of every ingest and merge fit their table: its keys, ``deletes``, names and types."""
    targets: dict[str, _Target] = {}
    views: dict[str, Mapping[str, str]] = {}
    for step in plan.steps:
        settings = step.settings
        if step.kind == "ingest":
            shaped = settings["select"] is not None or settings["schema"] is None
            columns = None if shaped else settings["schema"]
            if settings["as"] is not None:
                views.pop(settings["as"], None)
                if columns is not None:
                    views[settings["as"]] = columns
        elif step.kind == "merge":
            columns = views.get(settings["from"])
        else:
            continue
        name = settings.get("into")
        if name is not None and name not in targets:
            targets[name] = _target(name, plan, lake)
        if step.kind == "merge" and name is not None and not targets[name].keys:
            raise plan.location(step).error(without_key(name))
        if columns is not None and name is not None:
            _check_fit(columns, targets[name], name, step, plan.location(step))


def _target(name: str, plan: Plan, lake: Lake | None) -> _Target:
    if lake is not None and lake.has_table(name):
        schema = lake.table(name).schema
        return _Target(schema.fields, schema.primary_keys)
    spec = plan.tables[name]
    return _Target(fields_of(spec) if spec.columns else (), spec.primary_key)


def _check_fit(
    columns: Mapping[str, str], target: _Target, name: str, step: PlannedStep, location: SourceLocation
) -> None:
    deletes = step.settings.get("deletes")
    if deletes is not None and deletes not in columns:
        raise location.error(f"the rows have no column '{deletes}', which `deletes` names.{nearest(deletes, columns)}")
    for key in target.keys:
        if key not in columns:
            raise location.error(f"the rows have no column '{key}', which is a key of '{name}'.{nearest(key, columns)}")
    fields = {field.name: field for field in target.fields}
    for column, kind in columns.items():
        if not fields or (column == deletes and column not in fields):
            continue
        if column not in fields:
            raise location.error(
                f"the table '{name}' has no column '{column}', which the rows have.{nearest(column, fields)}"
            )
        source, target_type = plain_type(kind), arrow_type(fields[column].type)
        if source is not None and not _fits(source, target_type):
            raise location.error(
                f"column '{column}' of the table '{name}' is {fields[column].type}, and the rows have {kind}, "
                "which cannot be converted to it: change one of them, or cast it with `select`."
            )


def _fits(source: pa.DataType, target: pa.DataType) -> bool:
    is_time = pa.types.is_timestamp(source) and pa.types.is_timestamp(target)
    # A time with a zone is stored in UTC if the table's column has no zone.
    return (is_time and source.tz is not None) or source == target or may_become(source, target)


def check_inputs(plan: Plan) -> None:
    """Check that every local input file exists, and that every pattern matches one."""
    missing: list[InvalidRequest] = []
    for step in plan.steps:
        if KINDS[step.kind].reads_files:
            try:
                find_files(step.settings["from"], location=plan.location(step))
            except InvalidRequest as error:
                missing.append(error)
    if len(missing) > 1:
        raise InvalidRequest(f"{missing[0].message} {len(missing) - 1:,} more are missing.", **missing[0].facts)
    if missing:
        raise missing[0]


def check_sql(plan: Plan, tables: Collection[str]) -> str | None:
    """Check that Spark's parser accepts every expression and query, and that the tables and views they read exist.

    Args:
        tables: the tables of the lake, as a query names them.

    Returns:
        Why nothing was checked (no Java), as a sentence; None when it was.

    Cost: 2 to 4 s to start a JVM, unless Spark runs; nothing for a plan without SQL.
    """
    texts = list(_sql(plan))
    if not texts:
        return None
    try:
        require_pyspark()
        require_java()
    except InvalidRequest as error:
        return f"Its SQL was not checked: {error.message}"
    names_by_step = _names_by_step(plan, tables)
    accepted: dict[tuple[str, str], frozenset[str]] = {}
    with lakebed.spark.sql_parser.sql_parser() as parse:
        for step, subject, kind, text in texts:
            if (kind, text) not in accepted:
                parse_result = parse(kind, text)
                if parse_result.wrong is not None:
                    raise plan.location(step).error(
                        f"{subject} is not SQL that Spark understands: {parse_result.wrong}"
                    )
                accepted[kind, text] = parse_result.tables
            names = names_by_step[step.ordinal]
            for name in sorted(accepted[kind, text]):
                if name.lower() not in {other.lower() for other in names}:  # Spark ignores case
                    raise plan.location(step).error(
                        f"{subject} reads '{name}': there is neither a table nor a view of this name in the lake, and "
                        f"`tables` declares none.{nearest(name, names)}"
                    )
    return None


def _names_by_step(plan: Plan, tables: Collection[str]) -> dict[int, frozenset[str]]:
    """Return the names that a step's query may use, by ordinal: tables, and views of steps before it."""
    known_names = frozenset((*tables, *plan.tables))
    names: dict[int, frozenset[str]] = {}
    for step in plan.steps:
        names[step.ordinal] = known_names | {"files"} if KINDS[step.kind].reads_files else known_names
        view = step.settings.get("as")
        known_names = known_names if view is None or view in known_names else known_names | {view}
    return names


def _sql(plan: Plan) -> Iterator[tuple[PlannedStep, str, Literal["expression", "query"], str]]:
    """Yield step, name, kind and text of all SQL. Expressions have the form in which Spark will get them."""
    for step in plan.steps:
        for key in KINDS[step.kind].keys:
            value = step.settings.get(key.name)
            if value is None:
                continue
            if key.kind in ("expression", "query"):
                yield step, f"'{key.name}'", key.kind, value
            elif key.kind == "predicates":
                for name, text in value.items():
                    yield step, f"expectation '{name}'", "expression", f"coalesce(({text}), false)"
