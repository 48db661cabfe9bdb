"""The system table ``$statistics`` reads the files that ANALYZE of other clients leaves."""

from __future__ import annotations

import json
import uuid
from dataclasses import replace

import pyarrow as pa
import pytest

from lakebed.errors import Corruption
from lakebed.objects.open import open_store
from lakebed.table.codec.snapshot_json import encode_snapshot
from lakebed.table.table import Table

STATISTICS = {
    "snapshotId": 1,
    "schemaId": 0,
    "mergedRecordCount": 3,
    "mergedRecordSize": 1200,
    "colStats": {"id": {"colId": 0, "distinctCount": 3, "min": "1", "max": "3"}},
}


def made() -> Table:
    """A table in memory."""
    store = open_store(f"memory://statistics-{uuid.uuid4()}")
    return Table.create(store, name="t", schema=pa.schema([("id", pa.int64())]))


def analyzed(table: Table, body: bytes) -> None:
    """Add what ANALYZE of another client does: a file, and a snapshot that names it."""
    head = table.latest()
    assert head is not None
    table.store.put(table.context.layout.statistics("stat-x"), body)
    following = replace(head, id=head.id + 1, commit_kind="ANALYZE", statistics="stat-x", delta_record_count=0)
    table.store.put(table.context.layout.snapshot(following.id), encode_snapshot(following))


def test_statistics_of_another_client() -> None:
    """None before; after it one row, in the versions that name the file and in later ones."""
    table = made()
    assert table.system("statistics").num_rows == 0
    table.append(pa.table({"id": [1, 2, 3]}))
    analyzed(table, json.dumps(STATISTICS).encode())
    table.append(pa.table({"id": [4]}))
    for version in (None, 2, 3):
        (row,) = table.system("$statistics", version=version).to_pylist()
        assert {name: row[name] for name in ("snapshot_id", "schema_id", "mergedRecordCount", "mergedRecordSize")} == {
            "snapshot_id": 1,
            "schema_id": 0,
            "mergedRecordCount": 3,
            "mergedRecordSize": 1200,
        }
        assert json.loads(row["colstat"]) == STATISTICS["colStats"]
    assert table.system("statistics", version=1).num_rows == 0


@pytest.mark.parametrize("body", [b"{}", b"[", b'{"snapshotId": "1", "schemaId": 0}'])
def test_a_damaged_file_of_statistics(body: bytes) -> None:
    """It is corruption, by its name."""
    table = made()
    table.append(pa.table({"id": [1]}))
    analyzed(table, body)
    with pytest.raises(Corruption, match="statistics/stat-x is not"):
        table.system("statistics")
