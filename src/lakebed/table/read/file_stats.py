"""Which files cannot match a predicate, by their manifest entries only: partitions, column bounds, null counts.

Owns: `may_match`.

Invariants:
- False means that no row of the file matches; True proves nothing.
- Statistics are found by field id, through schema evolution: a renamed column keeps its bounds, a widened one is
  compared in its new type, and a column added after the file was written is null in it.
- Statistics that are missing or do not have the form of their schema prove nothing. Neither do bounds that older
  versions and other clients compute wrongly, unless the entry has the current `STATS_VERSION` (`_is_proven`).

Does not know: which columns may be used. In a primary-key table a file may hold old versions of a row, so its value
columns prove nothing; the caller passes `stats_columns`.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa

import lakebed.compute as pc
from lakebed.table.codec.binary_row import decode_columns
from lakebed.table.model.model import STATS_VERSION, TableSchema
from lakebed.table.model.predicate import bind
from lakebed.table.model.predicate_tree import And, Compare, In, IsNull, Known, Not, OneOf, Or, Predicate, StartsWith
from lakebed.table.model.types import arrow_schema, arrow_type, parse_type

Mask = npt.NDArray[np.bool_]
_FEW_ENTRIES = 64
"""Up to this many entries are grouped faster one by one."""
_IN_VALUES_MAX = 64
"""An IN of more values is compared only by its smallest and largest value."""


@dataclass(frozen=True, slots=True)
class _Bounds:
    """What is known about one column in some files, one element for each file."""

    low: pa.Array
    high: pa.Array
    has_null: Mask
    has_value: Mask


def partition_columns(entries: pa.Table, schema: TableSchema) -> dict[str, pa.Array]:
    """The partition values of some entries, by column name, one element an entry.

    Each distinct partition is decoded once.
    """
    if not schema.partition_keys:
        return {}
    encoded = entries.column("partition").combine_chunks().dictionary_encode()
    if isinstance(encoded, pa.ChunkedArray):
        encoded = encoded.combine_chunks()
    types = [field.type for field in schema.partition_fields]
    columns = decode_columns(encoded.dictionary, types, range(len(types)))
    return {name: values.take(encoded.indices) for name, values in zip(schema.partition_keys, columns, strict=True)}


@dataclass(frozen=True, slots=True)
class ColumnExtent:
    """The nulls and the extremes of one column over all rows of some files."""

    null_count: int
    is_exact: bool
    """Whether the extremes are known."""
    least: pa.Scalar | None
    """None: every value is null, or the extremes are not known."""
    greatest: pa.Scalar | None


def column_extent(
    entries: pa.Table, name: str, *, schema: TableSchema, schema_of: Callable[[int], TableSchema]
) -> ColumnExtent | None:
    """The nulls and the extremes of a column, where manifest entries state them exactly.

    Partition values are exact. So are, in files whose entries have `STATS_VERSION`, the null counts, and the bounds of
    numbers, dates and timestamps. A zero among the extremes of floats is not exact: its sign may not be that of the
    value. Bounds of texts and bytes are not exact: they may be cut off, and a cut upper bound may be raised to a
    shorter text.

    Args: as of `may_match`; every row of the files counts.

    Returns None where the nulls are not known.
    """
    kind = arrow_type(schema.select_fields([name])[0].type)
    is_partition = name in schema.partition_keys
    is_exact = _has_exact_bounds(kind) if not is_partition else not pa.types.is_floating(kind)
    partitions = partition_columns(entries, schema)
    null_count = 0
    ends: list[pa.Array] = []
    for rows, stats_names in _groups(entries) if entries.num_rows else ():
        group = entries.take(pa.array(rows))
        values = {key: column.take(pa.array(rows)) for key, column in partitions.items()}
        file_schema = schema_of(int(group.column("schema_id")[0].as_py()))
        file_bounds = _FileBounds(group, values, schema, file_schema, stats_names, None)
        counts = file_bounds.null_counts(name)
        if counts is None or (counts < 0).any() or not (is_partition or _is_proven(group)):
            return None
        null_count += int(counts.sum())
        bounds = file_bounds.of(name) if is_exact else None
        if bounds is None:
            is_exact = False
            continue
        filled = pa.array(counts < group.column("row_count").to_numpy())
        ends += [bounds.low.filter(filled), bounds.high.filter(filled)]
    all_ends = pa.chunked_array(ends if is_exact else [], kind)
    if not is_exact or all_ends.null_count:
        return ColumnExtent(null_count, False, None, None)
    if not all_ends.length():
        return ColumnExtent(null_count, True, None, None)
    extremes = pc.min_max(all_ends)
    if pa.types.is_floating(kind) and 0.0 in extremes.as_py().values():
        return ColumnExtent(null_count, False, None, None)
    return ColumnExtent(null_count, True, extremes["min"], extremes["max"])


def _has_exact_bounds(kind: pa.DataType) -> bool:
    types = pa.types
    is_number = types.is_signed_integer(kind) or types.is_decimal(kind) or types.is_floating(kind)
    return bool(is_number or types.is_date(kind) or types.is_timestamp(kind))


def _is_proven(group: pa.Table) -> bool:
    versions = group.column("stats_version")
    return bool(versions.null_count == 0 and pc.all(pc.equal(versions, STATS_VERSION)).as_py())


def may_match(
    entries: pa.Table,
    predicate: Predicate,
    *,
    schema: TableSchema,
    schema_of: Callable[[int], TableSchema],
    stats_columns: Collection[str] | None = None,
) -> Mask:
    """For each entry, whether its file may hold a row for which the predicate is true.

    Args:
        entries: `manifest.ENTRY_SCHEMA`.
        schema: the predicate uses its column names and types.
        schema_of: schemas by id, for files written under older ones.
        stats_columns: columns whose statistics may be used, in addition to partition columns; None: all.

    Raises `InvalidRequest`: the predicate names an unknown column, or compares a column with a value of another type;
    `Corruption`: a partition or a statistics row is damaged. Cost: linear in the entries, vectorised; only columns of
    the predicate are decoded.
    """
    bound = bind(predicate, arrow_schema(schema.fields))
    result = np.ones(entries.num_rows, dtype=np.bool_)
    if entries.num_rows == 0:
        return result
    partitions = partition_columns(entries, schema)
    for rows, stats_names in _groups(entries):
        indices = pa.array(rows)
        group = entries.take(indices) if len(rows) != entries.num_rows else entries
        values = {name: column.take(indices) for name, column in partitions.items()}
        file_schema = schema_of(int(group.column("schema_id")[0].as_py()))
        file_bounds = _FileBounds(group, values, schema, file_schema, stats_names, stats_columns)
        result[rows] = _possible(bound, file_bounds, negated=False)
    return result


def _groups(entries: pa.Table) -> list[tuple[npt.NDArray[np.int64], tuple[str, ...] | None]]:
    """Rows whose statistics have the same columns: same schema, same named columns, same arity."""
    stats_columns, write_columns = entries.column("value_stats_cols"), entries.column("write_cols")
    # Group also by the arity of the rows: a file without statistics must not share a group with files that have them.
    arity = pc.binary_slice(entries.column("value_stats_min"), 0, 4)
    members = [
        entries.column("schema_id"),
        pc.binary_join(stats_columns, "\0"),
        pc.binary_join(write_columns, "\0"),
        arity,
    ]
    if entries.num_rows <= _FEW_ENTRIES:
        rows_of: dict[object, list[int]] = {}
        for row, key in enumerate(zip(*(column.to_pylist() for column in members), strict=True)):
            rows_of.setdefault(key, []).append(row)
        positions = [np.array(rows) for rows in rows_of.values()]
    else:
        names = ["schema_id", "stats", "written", "arity"]
        keys = pa.table([*members, pa.array(np.arange(entries.num_rows))], [*names, "row"])
        grouped_rows = keys.group_by(names, use_threads=False).aggregate([("row", "list")])
        positions = list(grouped_rows.column("row_list").to_numpy())
    groups = []
    for rows in positions:
        first = int(rows[0])
        stats = stats_columns[first].as_py()
        if stats is None:
            stats = write_columns[first].as_py()
        groups.append((rows, None if stats is None else tuple(stats)))
    return groups


class _FileBounds:
    """Bounds of the predicate's columns in one group of files, decoded when first used."""

    def __init__(
        self,
        group: pa.Table,
        partitions: dict[str, pa.Array],
        schema: TableSchema,
        file_schema: TableSchema,
        stats_names: tuple[str, ...] | None,
        stats_columns: Collection[str] | None,
    ) -> None:
        self.group = group
        self.partitions = partitions
        self.schema = schema
        self.file_schema = file_schema
        names = stats_names if stats_names is not None else tuple(field.name for field in file_schema.fields)
        self.stats_names = [field.name for field in file_schema.select_fields(names)]
        self.stats_columns = stats_columns
        self.count = group.num_rows
        self._bounds: dict[str, _Bounds | None] = {}

    def of(self, name: str) -> _Bounds | None:
        """The bounds of a column; None: nothing is known."""
        if name not in self._bounds:
            self._bounds[name] = self._find(name)
        return self._bounds[name]

    def _find(self, name: str) -> _Bounds | None:
        if name in self.partitions:
            values = self.partitions[name]
            null = pc.is_null(values).to_numpy(zero_copy_only=False)
            return _Bounds(values, values, null, ~null)
        if self.stats_columns is not None and name not in self.stats_columns:
            return None
        column = self.schema.field_by_name(name)
        assert column is not None
        old_column = next((field for field in self.file_schema.fields if field.id == column.id), None)
        if old_column is None:
            no_values = pa.nulls(self.count, arrow_type(column.type))
            return _Bounds(no_values, no_values, np.ones(self.count, np.bool_), np.zeros(self.count, np.bool_))
        keys = list(self.file_schema.trimmed_primary_keys)
        bounds = None
        if old_column.name in keys:
            bounds = self._decode("key_stats", keys, old_column.name, column.type)
        if bounds is None and old_column.name in self.stats_names:
            bounds = self._decode("value_stats", self.stats_names, old_column.name, column.type)
        return bounds

    def null_counts(self, name: str) -> npt.NDArray[np.int64] | None:
        """How many nulls each file has in a column; negative: unknown; None: nothing is known."""
        row_counts: npt.NDArray[np.int64] = self.group.column("row_count").to_numpy()
        if name in self.partitions:
            return np.where(pc.is_null(self.partitions[name]).to_numpy(zero_copy_only=False), row_counts, 0)
        column = self.schema.field_by_name(name)
        old_column = next(
            (field for field in self.file_schema.fields if column is not None and field.id == column.id), None
        )
        if old_column is None:
            return row_counts
        if old_column.name not in self.stats_names:
            return None
        return self._null_counts("value_stats", self.stats_names.index(old_column.name))

    def _decode(self, stats: str, names: list[str], name: str, type_text: str) -> _Bounds | None:
        types = [field.type for field in self.file_schema.select_fields(names)]
        index = names.index(name)
        rows = [self.group.column(f"{stats}_{end}").combine_chunks() for end in ("min", "max")]
        arity = len(names).to_bytes(4, "big")
        for side in rows:
            heads = pc.binary_slice(side, 0, 4)
            if not pc.all(pc.equal(heads, pa.scalar(arity, heads.type))).as_py():
                return None
        try:
            low, high = (decode_columns(side, types, [index])[0] for side in rows)
            if parse_type(type_text).is_nested:  # no bounds, and its members may have been added and dropped
                low = high = pa.nulls(self.count, arrow_type(type_text))
            low, high = (side.cast(arrow_type(type_text)) for side in _drop_doubtful(low, high, self.group))
        except pa.ArrowInvalid:
            return None
        nulls, row_counts = self._null_counts(stats, index), self.group.column("row_count").to_numpy()
        # Negative null counts are unknown.
        has_null, has_value = nulls != 0, (nulls < 0) | (nulls < row_counts)
        return _Bounds(low, high, has_null, has_value)

    def _null_counts(self, stats: str, index: int) -> npt.NDArray[np.int64]:
        counts = self.group.column(f"{stats}_null_counts").combine_chunks()
        long_enough = pc.fill_null(pc.greater(pc.list_value_length(counts), index), False)
        null = pa.scalar(None, counts.type)
        padded = pc.if_else(long_enough, counts, null)
        null_counts: npt.NDArray[np.int64] = pc.fill_null(pc.list_element(padded, index), -1).to_numpy(
            zero_copy_only=False
        )
        return null_counts


def _drop_doubtful(low: pa.Array, high: pa.Array, group: pa.Table) -> tuple[pa.Array, pa.Array]:
    """The bounds, with null where they may be wrong.

    Without `STATS_VERSION` two kinds of bounds are not trusted: bounds of floats, because writers ignored the bounds of
    parts with NaN (lakebed before version 1, and clients that merge Parquet footers); and upper bounds of bytes,
    because writers ignored parts whose greatest value begins with 16 bytes 0xFF.
    """
    if not (pa.types.is_floating(low.type) or pa.types.is_binary(low.type)):
        return low, high
    is_proven = pc.fill_null(pc.equal(group.column("stats_version").combine_chunks(), STATS_VERSION), False)
    null = pa.scalar(None, low.type)
    if pa.types.is_binary(low.type):
        return low, pc.if_else(is_proven, high, null)
    is_proven = pc.and_(is_proven, pc.invert(pc.fill_null(pc.or_(pc.is_nan(low), pc.is_nan(high)), False)))
    return pc.if_else(is_proven, low, null), pc.if_else(is_proven, high, null)


def _possible(bound: Predicate, known: _FileBounds, *, negated: bool) -> Mask:
    """For each file, whether the predicate may be true for some row; if `negated`, its negation."""
    if isinstance(bound, Not):
        return _possible(bound.part, known, negated=not negated)
    if isinstance(bound, And | Or):
        parts = [_possible(part, known, negated=negated) for part in bound.parts]
        conjunction = isinstance(bound, And) != negated
        result = np.full(known.count, conjunction, dtype=np.bool_)
        for part in parts:
            result = result & part if conjunction else result | part
        return result
    assert isinstance(bound, Compare | In | IsNull | StartsWith | OneOf | Known)
    if isinstance(bound, In):
        # No value is in an empty list, not even null: the negation is true for every row.
        return np.full(known.count, negated, dtype=np.bool_)
    bounds = known.of(bound.column)
    if bounds is None:
        return np.ones(known.count, dtype=np.bool_)
    if isinstance(bound, IsNull):
        return bounds.has_value if negated else bounds.has_null
    if isinstance(bound, Known):
        return bounds.has_value if bound.truth != negated else np.zeros(known.count, dtype=np.bool_)
    if negated and pa.types.is_floating(bounds.low.type):
        # Bounds leave NaN out, and "not above 5" is true for NaN.
        return bounds.has_value
    if isinstance(bound, Compare):
        may = _compare(bounds, bound.op if not negated else _NEGATED[bound.op], bound.value)
    elif isinstance(bound, OneOf):
        may = _one_of(bounds, bound, negated=negated)
    else:
        may = _starts_with(bounds, bound.prefix, negated=negated)
    return bounds.has_value & may


_NEGATED = {"=": "<>", "<>": "=", "<": ">=", "<=": ">", ">": "<=", ">=": "<"}


def _true_or_unknown(condition: pa.Array) -> Mask:
    """Evaluate a condition over bounds; true where a bound is null, that is unknown."""
    mask: Mask = pc.fill_null(condition, True).to_numpy(zero_copy_only=False)
    return mask


def _true(condition: pa.Array) -> Mask:
    """Evaluate a condition over bounds; false where a bound is null."""
    mask: Mask = pc.fill_null(condition, False).to_numpy(zero_copy_only=False)
    return mask


def _versus(bound: pa.Array, value: pa.Scalar) -> pa.Array:
    return bound if bound.type == value.type else bound.cast(value.type, safe=False)


def _compare(bounds: _Bounds, op: str, value: pa.Scalar) -> Mask:
    if not value.is_valid:
        return np.zeros(len(bounds.low), dtype=np.bool_)
    low, high = _versus(bounds.low, value), _versus(bounds.high, value)
    if op == "=":
        return _true_or_unknown(pc.less_equal(low, value)) & _true_or_unknown(pc.greater_equal(high, value))
    if op == "<>":
        if pa.types.is_floating(bounds.low.type):
            return np.ones(len(bounds.low), dtype=np.bool_)
        return _true_or_unknown(pc.not_equal(low, value)) | _true_or_unknown(pc.not_equal(high, value))
    if op == "<":
        return _true_or_unknown(pc.less(low, value))
    if op == "<=":
        return _true_or_unknown(pc.less_equal(low, value))
    if op == ">":
        return _true_or_unknown(pc.greater(high, value))
    return _true_or_unknown(pc.greater_equal(high, value))


def _one_of(bounds: _Bounds, bound: OneOf, *, negated: bool) -> Mask:
    if negated:
        if bound.has_null:
            return np.zeros(len(bounds.low), dtype=np.bool_)
        result = np.ones(len(bounds.low), dtype=np.bool_)
        for value in bound.values[:_IN_VALUES_MAX]:
            result &= _compare(bounds, "<>", value)
        return result
    if len(bound.values) > _IN_VALUES_MAX:
        extremes = pc.min_max(bound.values)
        return _compare(bounds, "<=", extremes["max"]) & _compare(bounds, ">=", extremes["min"])
    result = np.zeros(len(bounds.low), dtype=np.bool_)
    for value in bound.values:
        result |= _compare(bounds, "=", value)
    return result


def _starts_with(bounds: _Bounds, prefix: str, *, negated: bool) -> Mask:
    low_has = pc.starts_with(bounds.low, pattern=prefix)
    high_has = pc.starts_with(bounds.high, pattern=prefix)
    if negated:
        return ~_true(pc.and_(low_has, high_has))
    start = pa.scalar(prefix, bounds.low.type)
    reaches = _true_or_unknown(pc.greater_equal(bounds.high, start))
    begins = _true_or_unknown(pc.or_(pc.less_equal(bounds.low, start), low_has))
    return reaches & begins
