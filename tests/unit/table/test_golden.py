"""Files of released formats, lakebed's and another client's, open and hold what they held."""

from __future__ import annotations

import datetime
import json
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from lakebed.objects.open import open_store
from lakebed.table.codec.avro import decode_columns
from lakebed.table.codec.binary_row import decode_rows
from lakebed.table.codec.index_manifest import decode_index_manifest, encode_index_manifest
from lakebed.table.codec.manifest import decode_manifest, decode_manifest_list, encode_manifest, files_of, fold
from lakebed.table.codec.snapshot_json import decode_snapshot, decode_tag, encode_snapshot
from lakebed.table.files.bucket import bucket_of
from lakebed.table.model.model import VectorPlace
from lakebed.table.model.types import arrow_type
from lakebed.table.read.vectors import encode_vectors, load_positions
from lakebed.table.schema.schema import decode_schema, encode_schema
from worlds.binary_rows import decode_row, encode_row

GOLDEN = Path(__file__).parents[2] / "golden"
OURS = GOLDEN / "lakebed"
THEIRS = GOLDEN / "pypaimon"


def body(path: Path) -> bytes:
    """A golden file's bytes."""
    return path.read_bytes()


def test_own_snapshot() -> None:
    """A snapshot file of this version opens, and is written the same today."""
    result = body(OURS / "snapshot-7")
    snapshot = decode_snapshot(result, path="snapshot-7")
    assert (snapshot.id, snapshot.commit_identifier, snapshot.watermark) == (7, 2**63 - 1, 5)
    assert snapshot.properties == {"note": "golden ✓"}
    assert encode_snapshot(snapshot) == result


def test_own_tags() -> None:
    """A tag without a lifetime is the snapshot's bytes; one with a lifetime has it to the millisecond."""
    assert body(OURS / "tag-kept") == body(OURS / "snapshot-7")
    tag = decode_tag(body(OURS / "tag-month"), name="month", path="tag-month")
    assert (tag.create_time_ms, tag.lifetime_ms) == (1_700_000_000_789, 86_400_250)
    assert tag.snapshot == decode_snapshot(body(OURS / "snapshot-7"), path="snapshot-7")


def test_own_schema() -> None:
    """A schema file with nested columns opens, and is written the same today."""
    result = body(OURS / "schema-1")
    schema = decode_schema(result, path="schema-1")
    assert [field.id for field in schema.fields] == [0, 1, 2, 3, 4, 5, 6]
    assert schema.fields[-1].type == "ROW<a@7: INT, b@8: MAP<STRING, DOUBLE>>"
    assert (schema.highest_field_id, schema.trimmed_primary_keys) == (8, ("id",))
    assert encode_schema(schema) == result


def test_own_manifest() -> None:
    """A manifest file opens with every field, and its commit snapshots follow the rules."""
    entries = decode_manifest(body(OURS / "manifest-0-0"), path="m", added_snapshot=7)
    assert entries.column("kind").to_pylist() == [0, 0, 1]
    assert entries.column("commit_snapshot").to_pylist() == [7, 3, 2]
    first = files_of(entries)[0]
    assert first.value_stats.null_counts == (1, None)
    assert decode_row(first.value_stats.min_values, ["STRING", "DECIMAL(30, 2)"]) == ("a", Decimal("1.50"))
    assert (first.extra_files, first.creation_time_ms) == (("data-0.parquet.index",), 1_700_000_000_123)


def test_own_manifest_list() -> None:
    """A manifest list opens with the snapshot that added each manifest."""
    metas = decode_manifest_list(body(OURS / "manifest-list-0-1"), path="l")
    assert [(meta.file_name, meta.added_snapshot) for meta in metas] == [("manifest-0-0", 7), ("manifest-0-1", None)]


def test_own_data_file() -> None:
    """A data file of a primary-key table has key columns, sequence number and kind before the values."""
    assert pq.read_table(OURS / "data-0.parquet").column_names == ["_KEY_id", "_SEQUENCE_NUMBER", "_VALUE_KIND", "id"]


def test_own_index_files() -> None:
    """Index files of vectors and keys, and the manifest that names them, open, and are written the same today."""
    manifest = body(OURS / "index-manifest-0-3")
    entries = decode_index_manifest(manifest, path="i")
    assert [(entry.index_type, entry.bucket, entry.row_count) for entry in entries] == [
        ("DELETION_VECTORS", 0, 2),
        ("DELETION_VECTORS", 1, 0),
        ("HASH", 0, 3),
    ]
    assert [(part.data_file, part.cardinality) for part in entries[0].ranges] == [
        ("data-array.parquet", 5),
        ("data-bits.parquet", 10_000),
    ]
    assert decode_index_manifest(encode_index_manifest(entries), path="i") == entries
    _, columns = decode_columns(manifest, path="i")
    lists = columns["_DELETIONS_VECTORS_RANGES"].to_pylist()
    assert [None if item is None else len(item) for item in lists] == [2, 0, None]
    places = {
        part.data_file: VectorPlace("index-0-0", part.offset, part.length, part.cardinality, entries[0].file_size)
        for part in entries[0].ranges
    }
    store = open_store(f"file://{OURS}")
    result = {name: load_positions(store, place) for name, place in places.items()}
    assert {name: positions.tolist() for name, positions in result.items()} == {
        "data-array.parquet": [0, 3, 65_535, 65_536, 2**31 - 1],
        "data-bits.parquet": list(range(0, 20_000, 2)),
    }
    assert encode_vectors(result)[0] == body(OURS / "index-0-0")
    assert body(OURS / "index-0-1") == b"\x01"
    assert body(OURS / "index-0-2").hex() == "fffffffb000000007fffffff"


def parsed(text: str | None, kind: str) -> Any:
    """A value of `vectors.json`."""
    root = kind.partition("(")[0]
    if text is None or root == "STRING":
        return text
    if root == "BYTES":
        return bytes.fromhex(text)
    if root == "BOOLEAN":
        return text == "true"
    if root in ("DATE", "TIME"):
        return getattr(datetime, root.lower()).fromisoformat(text)
    if root.startswith("TIMESTAMP"):
        return datetime.datetime.fromisoformat(text)
    return Decimal(text) if root == "DECIMAL" else float(text) if root in ("FLOAT", "DOUBLE") else int(text)


VECTORS = json.loads((THEIRS / "vectors.json").read_text(encoding="utf-8"))


@pytest.mark.parametrize("index", range(len(VECTORS["vectors"])))
def test_foreign_rows_and_buckets(index: int) -> None:
    """BinaryRow bytes and buckets are those another client computed, for every plain type, alone and together."""
    vector = VECTORS["vectors"][index]
    types = vector["types"]
    values = [parsed(text, kind) for text, kind in zip(vector["values"], types, strict=True)]
    assert encode_row(values, types).hex() == vector["row"]
    columns = [pa.array([value], arrow_type(kind)) for value, kind in zip(values, types, strict=True)]
    for count, bucket in zip(VECTORS["bucket_counts"], vector["buckets"], strict=True):
        assert bucket_of(columns, types, bucket_count=count).tolist() == [bucket]
    decoded = decode_rows(pa.array([bytes.fromhex(vector["row"])]), types)
    assert all(result.equals(column) for result, column in zip(decoded, columns, strict=True))


@pytest.mark.parametrize("table", ["app", "pk"])
def test_foreign_metadata(table: str) -> None:
    """Every snapshot, schema, list and manifest of another client opens; its files' first commit is unknown."""
    root = THEIRS / table
    assert decode_schema(body(root / "schema/schema-0"), path="s").id == 0
    snapshots = sorted((root / "snapshot").glob("snapshot-*"))
    snapshot = decode_snapshot(body(snapshots[-1]), path="p")
    tables = []
    for name in (snapshot.base_manifest_list, snapshot.delta_manifest_list):
        for meta in decode_manifest_list(body(root / "manifest" / name), path=name):
            assert meta.added_snapshot is None
            result = body(root / "manifest" / meta.file_name)
            assert len(result) == meta.file_size
            entries = decode_manifest(result, path=meta.file_name, added_snapshot=meta.added_snapshot)
            assert entries.num_rows == meta.added_file_count + meta.deleted_file_count
            again = decode_manifest(encode_manifest(entries), path="again", added_snapshot=99)
            assert again.equals(entries)
            tables.append(entries)
    live = fold(pa.concat_tables(tables))
    assert set(live.column("commit_snapshot").to_pylist()) == {-1}
    assert sum(live.column("row_count").to_pylist()) == snapshot.total_record_count
    names = {path.name for path in root.rglob("data-*")}
    assert names == set(live.column("file_name").to_pylist())


def test_foreign_statistics() -> None:
    """Statistics another client wrote for every plain type decode to its rows' bounds."""
    root = THEIRS / "app"
    schema = decode_schema(body(root / "schema/schema-0"), path="s")
    manifest = next(path for path in (root / "manifest").glob("manifest-*") if "list" not in path.name)
    entries = decode_manifest(body(manifest), path="m", added_snapshot=None)
    types = [field.type for field in schema.fields]
    lows = decode_rows(entries.column("value_stats_min").combine_chunks(), types)
    low = {field.name: column.to_pylist() for field, column in zip(schema.fields, lows, strict=True)}
    assert low["dt"] == ["2013-01-01", "2013-01-02"]
    assert low["big"] == [Decimal("123456789012345678.901"), Decimal("-5.001")]
    assert low["ts6"][0] == datetime.datetime(2013, 1, 1, 1, 2, 3, 456789)


def test_foreign_tag() -> None:
    """A tag another client made without a lifetime is kept until deleted."""
    tag = decode_tag(body(THEIRS / "pk/tag/tag-t1"), name="t1", path="t")
    assert (tag.snapshot.id, tag.create_time_ms, tag.lifetime_ms) == (2, None, None)
