"""How a manifest list describes a manifest: counts, and bounds of its partitions. Pure."""

from __future__ import annotations

import pyarrow as pa

import lakebed.compute as pc
from lakebed.table.codec.binary_row import EMPTY_ROW, decode_rows
from lakebed.table.codec.manifest import DELETE
from lakebed.table.codec.stats import compute_stats
from lakebed.table.model.model import ManifestMeta, Stats, TableSchema


def manifest_meta(entries: pa.Table, *, file_name: str, file_size: int, schema: TableSchema) -> ManifestMeta:
    """How a manifest list describes a manifest that holds `entries`."""
    deleted_count = pc.sum(pc.equal(entries["kind"], DELETE)).as_py() or 0
    return ManifestMeta(
        file_name=file_name,
        file_size=file_size,
        added_file_count=entries.num_rows - deleted_count,
        deleted_file_count=deleted_count,
        partition_stats=_partition_stats(entries, schema),
        schema_id=schema.id,
    )


def _partition_stats(entries: pa.Table, schema: TableSchema) -> Stats:
    fields = schema.partition_fields
    if not fields:
        return Stats(min_values=EMPTY_ROW, max_values=EMPTY_ROW, null_counts=())
    columns = decode_rows(pc.unique(entries["partition"]), [field.type for field in fields])
    return compute_stats(pa.table(columns, names=[field.name for field in fields]), fields)
