"""Update the rows that match a predicate: read them, change columns, and write them back, in one commit.

Owns: `update` and `check_updatable`. Invariants: rows are read and replaced in one version. If another writer meanwhile
changed these rows or replaced their files, the update is repeated on the new state.
"""

from __future__ import annotations

import datetime
from collections.abc import Callable, Mapping
from decimal import Decimal

import numpy as np
import pyarrow as pa

from lakebed.arguments import check_keywords
from lakebed.errors import Conflict, InvalidRequest
from lakebed.table.branch.context import TableBranch
from lakebed.table.branch.discard import discard_changes
from lakebed.table.commit.commit import Basis, CommitOptions
from lakebed.table.engines.registry import engine_name, engine_of
from lakebed.table.model.model import BucketChange, Snapshot, TableSchema
from lakebed.table.model.predicate_text import as_predicate
from lakebed.table.model.predicate_tree import Predicate
from lakebed.table.model.types import arrow_type
from lakebed.table.read.scan import scan_snapshot
from lakebed.table.rows.rows import CHANGED_KINDS, TRIES_MAX, commit_or_discard, new_writer, without_matching
from lakebed.table.schema.schema import require_column
from lakebed.texts import format_count, format_value

Columns = Mapping[str, object | Callable[[pa.Table], pa.Array | pa.ChunkedArray]]
"""New values by column: one value for all rows, or a function of the matching rows."""


def update(branch: TableBranch, where: Predicate | str, columns: Columns, *, options: CommitOptions) -> Snapshot | None:
    """Change columns of the rows for which a predicate is true; None when there are no such rows. See `Table.update`.

    Cost: as a delete by predicate, and writing the matching rows.
    """
    check_keywords(options, CommitOptions)
    predicate = as_predicate(where)
    for tries_left in reversed(range(TRIES_MAX)):
        basis = Basis(branch.snapshots.latest())
        view = branch.look()
        check_updatable(view.schema, name=branch.name)
        _check_columns(view.schema, columns)
        changes = _changes(view, basis, predicate, columns)
        if not changes:
            return None
        try:
            if view.schema.primary_keys:
                return commit_or_discard(view, changes, basis=basis, options=options)
            return commit_or_discard(view, changes, kind="OVERWRITE", options=options)
        except Conflict as error:
            if tries_left == 0 or error.kind not in CHANGED_KINDS:
                raise
    raise AssertionError("the last try returns or raises")


def check_updatable(schema: TableSchema, *, name: str) -> None:
    """Raise `InvalidRequest` for a table whose rows are not replaced by writing them again."""
    if schema.primary_keys and not engine_of(schema).replaces_rows:
        raise InvalidRequest(
            f"Rows of {name} cannot be updated: the table merges rows by the engine "
            f"{engine_name(schema.options)!r}, which does not replace a row by the next one of its key; "
            "INSERT rows, which it merges, or DELETE by a condition on columns.",
            kind="unsupported_update",
        )


def _check_columns(schema: TableSchema, columns: Columns) -> None:
    for name in columns:
        require_column(schema, name)
        if name in schema.primary_keys:
            raise InvalidRequest(
                f"An update changes the primary key column {name!r}: delete the row and insert another.",
                kind="key_updated",
                column=name,
            )


def _changes(branch: TableBranch, basis: Basis, where: Predicate, columns: Columns) -> list[BucketChange]:
    """The matching rows with their new values, and in an append table the files without them."""
    matches = scan_snapshot(branch, basis.snapshot, merges_new=True, where=where).to_arrow()
    if matches.num_rows == 0:
        return []
    rows = matches
    for name, value in columns.items():
        position = rows.schema.get_field_index(name)
        rows = rows.set_column(position, name, _values(branch.schema, name, value, matches))
    writer = new_writer(branch)
    writer.write(rows)
    changes = writer.finish()
    if branch.schema.primary_keys:
        return changes
    try:
        return [*changes, *without_matching(branch, where, basis=basis)]
    except BaseException:
        discard_changes(branch, changes)
        raise


def _values(schema: TableSchema, name: str, value: object, matches: pa.Table) -> pa.Array | pa.ChunkedArray:
    if callable(value):
        values: pa.Array | pa.ChunkedArray = value(matches)
        if not isinstance(values, pa.Array | pa.ChunkedArray) or len(values) != matches.num_rows:
            result_text = f"{len(values):,} values" if hasattr(values, "__len__") else type(values).__name__
            raise InvalidRequest(
                f"The function for column {name!r} returned {result_text} for {format_count(matches.num_rows, 'row')}: "
                "return an Arrow array with a value for each row that it gets.",
                kind="invalid_value",
                column=name,
            )
        return values
    field = require_column(schema, name)
    type_ = arrow_type(field.type)
    if isinstance(value, pa.Scalar) and not value.is_valid:  # Arrow (26.0) has no list of it
        value = None
    try:
        _refuse_loss(value, type_)
        return pa.repeat(pa.scalar(value, type_), matches.num_rows)
    except (ValueError, TypeError, ArithmeticError, pa.ArrowException) as error:
        raise InvalidRequest(
            f"{format_value(str(value))} is not a value of column {name!r}, which is {field.type}: give another one "
            f"({error}).",
            kind="invalid_value",
            column=name,
        ) from error


def _has_zone(value: datetime.datetime) -> bool:
    return value.utcoffset() is not None


def _refuse_loss(value: object, kind: pa.DataType) -> None:
    """Raise `ValueError` for values that Arrow (26.0) would silently cut or guess.

    These are fractions, times of day and unknown fields; and time zones, which written rows must neither lose nor gain.
    """
    if isinstance(value, float | np.floating | Decimal):
        counts = pa.types.is_integer(kind) or pa.types.is_temporal(kind)
        if counts and value != int(value):
            raise ValueError("it has a fraction")
    elif isinstance(value, datetime.datetime) and pa.types.is_date(kind):
        if value.replace(tzinfo=None) != datetime.datetime(value.year, value.month, value.day):
            raise ValueError("it has a time of day")
    elif isinstance(value, datetime.datetime) and pa.types.is_timestamp(kind) and _has_zone(value) != bool(kind.tz):
        raise ValueError("it has no time zone" if kind.tz else "it has a time zone, which the column has not")
    elif isinstance(value, datetime.datetime | datetime.time) and pa.types.is_temporal(kind):
        pa.scalar(value).cast(kind)  # refuses fractions of a second that are finer than the type
    elif pa.types.is_struct(kind):
        members = dict(value) if isinstance(value, Mapping | list | tuple) else {}
        unknown_names = [name for name in members if name not in {field.name for field in kind}]
        if unknown_names:
            raise ValueError(f"it has no field {unknown_names[0]!r}")
        for field in kind:
            _refuse_loss(members.get(field.name), field.type)
    elif pa.types.is_map(kind):
        pairs = value.items() if isinstance(value, Mapping) else value if isinstance(value, list | tuple) else ()
        for key, item in pairs:
            _refuse_loss(key, kind.key_type)
            _refuse_loss(item, kind.item_type)
    elif pa.types.is_list(kind) and isinstance(value, list | tuple):
        for item in value:
            _refuse_loss(item, kind.value_type)
