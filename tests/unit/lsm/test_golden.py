"""Sorted files of released formats open, and hold what they held."""

from __future__ import annotations

import json
from pathlib import Path

import msgspec
import pytest

from lakebed.lsm.cache import BlockCache
from lakebed.lsm.file_reader import FileReader
from lakebed.lsm.model import FileMeta, Kind, Row
from lakebed.lsm.row_merge import rows_of_batch
from lakebed.objects import open_store

GOLDEN = Path(__file__).parents[2] / "golden" / "lsm"


@pytest.mark.parametrize("file_id", [f"01HF7YAT00000000000000000{number}" for number in (1, 2, 3)])
def test_own_sorted_files(file_id: str) -> None:
    """A sorted file with every kind of row, in each compression, reads row by row and as a whole as it was written."""
    rows = [
        Row(bytes.fromhex(key), sequence, kind, bytes.fromhex(value), expires_at_ms)
        for key, sequence, kind, value, expires_at_ms in json.loads((GOLDEN / "rows.json").read_text())
    ]
    meta = msgspec.json.decode((GOLDEN / f"{file_id}.json").read_bytes(), type=FileMeta)
    reader = FileReader(open_store(str(GOLDEN)), f"{file_id}.sst", meta=meta, cache=BlockCache())
    assert [row for block in reader.batches() for row in rows_of_batch(block.batch)] == rows
    assert reader.block_count > 8
    for row in rows:
        expected = [other for other in rows if other.key == row.key] if row.kind == Kind.MERGE else [row]
        if row.sequence in (4, 11):  # the newer operand of this key comes first
            continue
        assert reader.get(row.key) == expected
    assert reader.get(b"counter", sequence=4) == [Row(b"counter", 4, int(Kind.PUT), b"40", None)]
    assert reader.get(b"key 0005") == []
