"""The rows that differ between two sets of splits: by key, or whole rows as a multiset. Knows no snapshots.

Owns: `diff_splits`, the comparisons that it uses, and `group_splits`: which splits are compared with each other.
Invariants: both sides are read with one plan, so they have the same columns; a key is in one group.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

import lakebed.compute as pc
from lakebed.errors import InvalidRequest
from lakebed.objects.port import ObjectStore
from lakebed.table.codec.comparable import encode_comparable
from lakebed.table.engines.merge import encode_keys, is_strictly_increasing
from lakebed.table.files.data_file import cast_stored
from lakebed.table.files.dynamic_bucket import is_dynamic
from lakebed.table.files.splits import in_key_order
from lakebed.table.model.model import DataField, Split, TableSchema
from lakebed.table.model.types import arrow_schema, parse_type
from lakebed.table.read.read import Cursor, ReadPlan, cut_complete, read_split, read_split_table

Positions = npt.NDArray[np.int64]

Parts = tuple[pa.Table, pa.Table, pa.Table, pa.Table]
"""Rows added, rows removed, changed rows before the change, changed rows after it."""


def diff_splits(
    store: ObjectStore,
    before: Sequence[Split],
    after: Sequence[Split],
    *,
    plan: ReadPlan,
    keys: Sequence[str],
    at_once_bytes_max: int | None = None,
) -> Iterator[Parts]:
    """Compare the rows of two sets of splits.

    Args:
        keys: columns that identify a row; empty: whole rows are compared.
        at_once_bytes_max: for the sections of one bucket and the primary key: encoded bytes above which both sides are
            read in windows. None: they are compared at once.

    Raises `InvalidRequest`: the keys are not unique. Cost: reads all splits.
    """
    schema = plan.schema
    size_bytes = sum(file.file_size for split in (*before, *after) for file in split.files)
    if at_once_bytes_max is not None and size_bytes > at_once_bytes_max:
        yield from _diff_windows(store, before, after, plan=plan, schema=schema)
        return
    old, new = (_rows_of(store, splits, plan) for splits in (before, after))
    yield diff_keyed(old, new, keys, _values(schema, keys)) if keys else _diff_rows(old, new, schema)


def diff_buckets(
    store: ObjectStore, before: Sequence[Split], after: Sequence[Split], *, plan: ReadPlan, at_once_bytes_max: int
) -> Iterator[Parts]:
    """Compare the rows of a group of a primary-key table by their keys, bucket by bucket.

    With dynamic buckets a key is in one bucket in each version, and may be in different buckets in two versions,
    because an overwrite forgets the buckets of its keys. A row that disappears from one bucket and appears in another
    is one row, changed or unchanged.

    Args: as `diff_splits`. Memory: windows; with dynamic buckets also the rows that disappear or appear.
    """
    schema, keys = plan.schema, plan.schema.primary_keys
    goes, comes = [], []
    for old, new in group_splits(before, after, by_bucket=True):
        parts = diff_splits(store, old, new, plan=plan, keys=keys, at_once_bytes_max=at_once_bytes_max)
        if is_dynamic(schema):
            for added_rows, removed_rows, old_rows, new_rows in parts:
                comes.append(added_rows)
                goes.append(removed_rows)
                yield added_rows.slice(0, 0), removed_rows.slice(0, 0), old_rows, new_rows
        else:
            yield from parts
    if goes:
        yield diff_keyed(pa.concat_tables(goes), pa.concat_tables(comes), keys, _values(schema, keys))


def group_splits(
    before: Sequence[Split], after: Sequence[Split], *, by_bucket: bool
) -> list[tuple[list[Split], list[Split]]]:
    """The splits of each bucket, or of each partition."""
    groups: dict[tuple[bytes, int], tuple[list[Split], list[Split]]] = {}
    for side, splits in enumerate((before, after)):
        for split in splits:
            groups.setdefault((split.partition, split.bucket if by_bucket else 0), ([], []))[side].append(split)
    return list(groups.values())


def refuse_nested_keys(fields: Iterable[DataField]) -> None:
    """Raise `InvalidRequest` for columns whose values cannot be used to pair rows."""
    for field in fields:
        kind = parse_type(field.type)
        if kind.is_nested or kind.root in ("VARIANT", "BLOB"):
            raise InvalidRequest(
                f"Column {field.name!r} is {field.type}: rows cannot be paired by nested columns; leave it out of the "
                "keys.",
                kind="not_comparable",
                column=field.name,
            )


def _rows_of(store: ObjectStore, splits: Sequence[Split], plan: ReadPlan) -> pa.Table:
    schema = arrow_schema(plan.fields)
    tables = [read_split_table(store, split, plan=plan) for split in splits]
    return pa.concat_tables([schema.empty_table(), *(cast_stored(table, schema) for table in tables)]).combine_chunks()


def _values(schema: TableSchema, keys: Sequence[str]) -> list[DataField]:
    return [field for field in schema.fields if field.name not in keys]


def diff_keyed(before: pa.Table, after: pa.Table, keys: Sequence[str], values: Sequence[DataField]) -> Parts:
    """Compare rows by key.

    Args:
        before, after: with the same columns; each has a key at most once.
        values: the columns that make a row a changed one when their values differ.

    Raises `InvalidRequest`: the keys are not unique.
    """
    codes = encode_keys([[table.column(key) for key in keys] for table in (before, after)])
    orders = [np.argsort(run, kind="stable") for run in codes]
    old, new = (run[order] for run, order in zip(codes, orders, strict=True))
    if not (is_strictly_increasing(old) and is_strictly_increasing(new)):
        raise InvalidRequest(
            f"({', '.join(keys)}) is not unique in both versions, so rows cannot be paired by it.",
            kind="keys_not_unique",
        )
    before, after = (table.take(pa.array(order)) for table, order in zip((before, after), orders, strict=True))
    place = np.searchsorted(old, new)
    is_common = np.zeros(len(new), np.bool_)
    if len(old):
        is_common = old[np.minimum(place, len(old) - 1)] == new
    in_new, in_old = np.flatnonzero(is_common), place[is_common]
    is_gone = np.ones(len(old), np.bool_)
    is_gone[in_old] = False
    old_rows, new_rows = before.take(pa.array(in_old)), after.take(pa.array(in_new))
    if values and len(in_old):
        differs = pc.not_equal(_encode(old_rows, values), _encode(new_rows, values))
        old_rows, new_rows = old_rows.filter(differs), new_rows.filter(differs)
    else:
        old_rows, new_rows = old_rows.slice(0, 0), new_rows.slice(0, 0)
    return after.filter(pa.array(~is_common)), before.filter(pa.array(is_gone)), old_rows, new_rows


def _diff_windows(
    store: ObjectStore, before: Sequence[Split], after: Sequence[Split], *, plan: ReadPlan, schema: TableSchema
) -> Iterator[Parts]:
    """As `diff_keyed` by the primary key over the splits of one bucket, window by window."""
    plan = replace(plan, window_bytes=plan.window_bytes // 2)
    names = schema.trimmed_primary_keys

    def batches_of(splits: Sequence[Split]) -> Iterator[tuple[str, pa.Table]]:
        for split in in_key_order(splits, schema=schema):
            for batch in read_split(store, split, plan=plan):
                yield split.folder, cast_stored(pa.Table.from_batches([batch]), no_rows.schema)

    no_rows = arrow_schema(plan.fields).empty_table()
    cursors = [Cursor(batches=batches_of(splits), rows=no_rows) for splits in (before, after)]
    while True:
        for cursor in cursors:
            cursor.fill()
        if not any(cursor.rows.num_rows for cursor in cursors):
            return
        (old, _), (new, _) = cut_complete(cursors, names)
        if old.num_rows or new.num_rows:
            yield diff_keyed(old, new, names, _values(schema, names))


def _diff_rows(before: pa.Table, after: pa.Table, schema: TableSchema) -> Parts:
    """Compare whole rows as a multiset: a row is added as many times as the newer version has more of it."""
    rows = pa.concat_arrays([_encode(before, schema.fields), _encode(after, schema.fields)]).dictionary_encode()
    codes = rows.indices.to_numpy()
    old, new = codes[: before.num_rows], codes[before.num_rows :]
    count = len(rows.dictionary)
    surplus = np.bincount(new, minlength=count) - np.bincount(old, minlength=count)
    no_rows = after.slice(0, 0)
    return after.take(_first_of_each(new, surplus)), before.take(_first_of_each(old, -surplus)), no_rows, no_rows


def _first_of_each(codes: npt.NDArray[Any], counts: Positions) -> pa.Array:
    """Positions of the first `wanted[code]` rows of every code."""
    order = np.argsort(codes, kind="stable")
    ordered_codes = codes[order]
    starts = np.searchsorted(ordered_codes, np.arange(len(counts)))
    rank = np.arange(len(ordered_codes)) - starts[ordered_codes]
    return pa.array(np.sort(order[rank < counts[ordered_codes]]))


def _encode(rows: pa.Table, fields: Sequence[DataField]) -> pa.Array:
    """Every row as bytes that are equal exactly when the rows are, nulls included."""
    return encode_comparable([rows.column(field.name) for field in fields], [field.type for field in fields])
