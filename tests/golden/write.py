"""Writes `lakebed/`: one object of every format, with fixed content.

Run it once for each release that adds a format: ``PYTHONPATH=tests python tests/golden/write.py``.
"""

from __future__ import annotations

import dataclasses
import datetime
import pathlib
from decimal import Decimal

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from lakebed.table.codec.index_manifest import DELETION_VECTORS, IndexEntry, encode_index_manifest
from lakebed.table.codec.manifest import encode_manifest, encode_manifest_list, entries_of_changes
from lakebed.table.codec.snapshot_json import encode_snapshot, encode_tag
from lakebed.table.codec.stats import EMPTY_STATS
from lakebed.table.files.dynamic_bucket import encode_hashes
from lakebed.table.model.model import BucketChange, DataFile, ManifestMeta, Snapshot, Stats
from lakebed.table.read.vectors import encode_vectors
from lakebed.table.schema.schema import add_column, encode_schema, new_schema
from worlds.binary_rows import encode_row

COLUMNS = pa.schema(
    [
        ("day", pa.date32()),
        ("id", pa.int64()),
        ("name", pa.string()),
        ("price", pa.decimal128(30, 2)),
        ("at", pa.timestamp("us")),
        ("tags", pa.list_(pa.string())),
    ]
)
SCHEMA = add_column(
    new_schema(
        COLUMNS,
        primary_keys=["day", "id"],
        partition_keys=["day"],
        options={"bucket": "2"},
        comment="golden",
        time_ms=1_700_000_000_000,
    ),
    "extra",
    "ROW<a: INT, b: MAP<STRING, DOUBLE>>",
)
PARTITION = encode_row([datetime.date(2013, 1, 1)], ["DATE"])
KEY = [encode_row([number], ["BIGINT"]) for number in (1, 9)]
FILE = DataFile(
    file_name="data-00000000-0000-4000-8000-000000000000-0.parquet",
    file_size=1234,
    row_count=3,
    min_key=KEY[0],
    max_key=KEY[1],
    key_stats=Stats(KEY[0], KEY[1], (0,)),
    value_stats=Stats(
        encode_row(["a", Decimal("1.50")], ["STRING", "DECIMAL(30, 2)"]),
        encode_row(["a name beyond seven", None], ["STRING", "DECIMAL(30, 2)"]),
        (1, None),
    ),
    min_sequence_number=0,
    max_sequence_number=2,
    schema_id=1,
    level=0,
    extra_files=("data-0.parquet.index",),
    creation_time_ms=1_700_000_000_123,
    delete_row_count=0,
    file_source=0,
    value_stats_cols=("name", "price"),
)
CHANGES = (
    BucketChange(PARTITION, 1, 2, added=(FILE, dataclasses.replace(FILE, file_name="restored", commit_snapshot=3))),
    BucketChange(PARTITION, 0, 2, deleted=(dataclasses.replace(FILE, file_name="old", level=5, commit_snapshot=2),)),
)
METAS = (
    ManifestMeta("manifest-0-0", 1000, 2, 1, Stats(PARTITION, PARTITION, (0,)), 1, added_snapshot=7),
    ManifestMeta("manifest-0-1", 1001, 1, 0, EMPTY_STATS, 0),
)
SNAPSHOT = Snapshot(
    id=7,
    schema_id=1,
    base_manifest_list="manifest-list-0-0",
    delta_manifest_list="manifest-list-0-1",
    commit_user="00000000-0000-4000-8000-000000000001",
    commit_identifier=2**63 - 1,
    commit_kind="APPEND",
    time_ms=1_700_000_000_456,
    total_record_count=6,
    delta_record_count=3,
    uuid="00000000-0000-4000-8000-000000000002",
    base_manifest_list_size=10,
    delta_manifest_list_size=11,
    watermark=5,
    properties={"note": "golden ✓"},
)
ROWS = pa.table(
    {"_KEY_id": [1, 9], "_SEQUENCE_NUMBER": [0, 1], "_VALUE_KIND": pa.array([0, 3], pa.int8()), "id": [1, 9]}
)


VECTORS = {
    "data-array.parquet": np.array([0, 3, 65_535, 65_536, 2**31 - 1]),
    "data-bits.parquet": np.arange(0, 20_000, 2),
}
"""Deleted rows: in two containers of arrays and a third, and in one of bits."""


def index_files() -> dict[str, bytes]:
    """An index file of deletion vectors, and an index manifest that names it, one of keys and one without a vector."""
    vectors, ranges = encode_vectors(VECTORS)
    empty, _ = encode_vectors({})
    keys = encode_hashes(np.array([-5, 0, 2**31 - 1], np.int32))
    entries = [
        IndexEntry(PARTITION, 0, "index-0-0", len(vectors), len(ranges), DELETION_VECTORS, ranges),
        IndexEntry(PARTITION, 1, "index-0-1", len(empty), 0, DELETION_VECTORS),
        IndexEntry(PARTITION, 0, "index-0-2", len(keys), 3),
    ]
    return {
        "index-0-0": vectors,
        "index-0-1": empty,
        "index-0-2": keys,
        "index-manifest-0-3": encode_index_manifest(entries),
    }


def main() -> None:
    """Write every file that is not there yet."""
    snapshot = encode_snapshot(SNAPSHOT)
    bodies = {
        "schema-1": encode_schema(SCHEMA),
        "snapshot-7": snapshot,
        "tag-kept": encode_tag(snapshot),
        "tag-month": encode_tag(snapshot, create_time_ms=1_700_000_000_789, lifetime_ms=86_400_250),
        "manifest-0-0": encode_manifest(entries_of_changes(CHANGES)),
        "manifest-list-0-1": encode_manifest_list(METAS),
        **index_files(),
    }
    folder = pathlib.Path(__file__).parent / "lakebed"
    folder.mkdir(exist_ok=True)
    for name, body in bodies.items():
        if not (folder / name).exists():
            (folder / name).write_bytes(body)
    if not (folder / "data-0.parquet").exists():
        pq.write_table(ROWS, folder / "data-0.parquet", compression="zstd")


if __name__ == "__main__":
    main()
