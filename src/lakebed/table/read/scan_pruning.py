"""What a scan need not open: manifests by partition, files by partition, bucket, key range and statistics. Pure.

Owns: the order of these steps, and which columns each may use. `file_stats.may_match` decides about single files.
Invariants: only what cannot hold a matching row is dropped. In a primary-key table only partition, bucket and key
columns are used before the merge.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Collection, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow as pa

import lakebed.compute as pc
from lakebed.table.codec.binary_row import EMPTY_ROW
from lakebed.table.codec.manifest import ENTRY_SCHEMA
from lakebed.table.files.bucket import bucket_of
from lakebed.table.model.model import ManifestMeta, TableSchema
from lakebed.table.model.options import BUCKET, BUCKET_FUNCTION, TableOptions
from lakebed.table.model.predicate_tree import Predicate, all_of, columns_of, conjuncts, possible_values
from lakebed.table.model.types import arrow_type
from lakebed.table.read.file_stats import may_match
from lakebed.table.schema.schema import bucket_function, bucket_keys, require_column

BUCKET_VALUES_MAX = 256
"""Combinations of key values that are hashed to find their buckets; a predicate that allows more reads all buckets."""

SchemaOf = Callable[[int], TableSchema]


def only_on(where: Predicate | None, columns: Collection[str]) -> Predicate | None:
    """The conjuncts of `where` that use these columns only; None if there is none."""
    if where is None:
        return None
    return all_of(part for part in conjuncts(where) if columns_of(part) <= set(columns))


def prune_manifests(metas: Sequence[ManifestMeta], *, where: Predicate, schema: TableSchema) -> frozenset[str]:
    """Names of the manifests whose partition range can match."""
    part = only_on(where, schema.partition_keys)
    if part is None or not metas:
        return frozenset(meta.file_name for meta in metas)
    # A manifest is judged like a file whose statistics are those of its partition columns.
    entries = _as_entries(metas, columns=schema.partition_keys, schema_id=schema.id)
    plain_schema = replace(schema, partition_keys=(), primary_keys=())
    may = may_match(entries, part, schema=plain_schema, schema_of=lambda _: plain_schema)
    return frozenset(meta.file_name for meta, keep in zip(metas, may, strict=True) if keep)


def prune_files(entries: pa.Table, *, where: Predicate, schema: TableSchema, schema_of: SchemaOf) -> pa.Table:
    """The files that may hold a matching row or, in a primary-key table, may be needed to merge one."""
    entries = prune_partitions(entries, where=where, schema=schema, schema_of=schema_of)
    if all(columns_of(part) <= set(schema.partition_keys) for part in conjuncts(where)):
        return entries
    entries = prune_buckets(entries, where=where, schema=schema)
    stats_columns = schema.trimmed_primary_keys if schema.primary_keys else None
    may = may_match(entries, where, schema=schema, schema_of=schema_of, stats_columns=stats_columns)
    return entries if may.all() else entries.filter(pa.array(may))


def prune_partitions(entries: pa.Table, *, where: Predicate, schema: TableSchema, schema_of: SchemaOf) -> pa.Table:
    """Drop partitions that cannot hold a matching row. Cost: one test for each partition, not for each file."""
    part = only_on(where, schema.partition_keys)
    if part is None or entries.num_rows == 0:
        return entries
    encoded = entries.column("partition").combine_chunks().dictionary_encode()
    codes = encoded.indices.to_numpy()
    _, first = np.unique(codes, return_index=True)
    may = may_match(entries.take(pa.array(first)), part, schema=schema, schema_of=schema_of, stats_columns=())
    return entries if may.all() else entries.filter(pa.array(may[codes]))


def prune_buckets(entries: pa.Table, *, where: Predicate, schema: TableSchema) -> pa.Table:
    """Drop buckets that cannot hold a row with the required key values."""
    bucket_count = TableOptions(schema.options).get(BUCKET)
    if bucket_count < 2 or entries.num_rows == 0:
        return entries
    if schema.options.get(BUCKET_FUNCTION.name, "default").strip().lower() not in ("default", "mod"):
        return entries  # the bucket of a row is unknown
    fields = [require_column(schema, name) for name in bucket_keys(schema)]
    if any(pa.types.is_floating(arrow_type(field.type)) for field in fields):
        return entries  # 0.0 and -0.0 are equal, but hash to different buckets
    values = [possible_values(where, field.name) for field in fields]
    allowed_values = [choices for choices in values if choices is not None]
    if (
        len(allowed_values) < len(fields)
        or np.prod([float(len(choices)) for choices in allowed_values]) > BUCKET_VALUES_MAX
    ):
        return entries
    types = [arrow_type(field.type) for field in fields]
    rows = [row for row in itertools.product(*allowed_values) if all(v.is_valid for v in row)]
    if any(value.type != kind for row in rows for value, kind in zip(row, types, strict=True)):
        return entries
    columns = [pa.array([row[i] for row in rows], kind) for i, kind in enumerate(types)]
    if not rows:
        return entries.slice(0, 0)
    buckets = np.unique(
        bucket_of(
            columns,
            [field.type for field in fields],
            bucket_count=bucket_count,
            function=bucket_function(schema),
        )
    )
    same_count = pc.equal(entries.column("total_buckets"), bucket_count)
    hit = pc.is_in(entries.column("bucket"), pa.array(buckets, pa.int32()))
    return entries.filter(pc.or_(pc.invert(same_count), hit))


def _as_entries(metas: Sequence[ManifestMeta], *, columns: Sequence[str], schema_id: int) -> pa.Table:
    """Manifests in the form of file entries, with their partition statistics as value statistics."""
    constants: dict[str, Any] = {
        "kind": 0, "partition": EMPTY_ROW, "bucket": 0, "total_buckets": 1, "file_size": 0, "row_count": 2**62,
        "min_key": EMPTY_ROW, "max_key": EMPTY_ROW, "key_stats_min": EMPTY_ROW, "key_stats_max": EMPTY_ROW,
        "min_sequence_number": 0, "max_sequence_number": 0, "schema_id": schema_id, "level": 0, "extra_files": [],
        "value_stats_cols": list(columns),
    }  # fmt: skip
    varying = {
        "file_name": [meta.file_name for meta in metas],
        "value_stats_min": [meta.partition_stats.min_values for meta in metas],
        "value_stats_max": [meta.partition_stats.max_values for meta in metas],
        "value_stats_null_counts": [meta.partition_stats.null_counts for meta in metas],
    }
    arrays = [
        pa.array(varying.get(field.name, [constants.get(field.name)] * len(metas)), field.type)
        for field in ENTRY_SCHEMA
    ]
    return pa.Table.from_arrays(arrays, schema=ENTRY_SCHEMA)
