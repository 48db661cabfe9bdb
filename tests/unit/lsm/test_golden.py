"""Sorted files of released formats open, and hold what they held."""

from __future__ import annotations

import json
import struct
import uuid
from pathlib import Path

import msgspec
import pytest

from lakebed.lsm.cache import BlockCache
from lakebed.lsm.compact import run_compaction
from lakebed.lsm.file_id import mint_file_id
from lakebed.lsm.file_reader import FileReader
from lakebed.lsm.file_writer import FileOptions
from lakebed.lsm.files import FileStore
from lakebed.lsm.filter import hash_keys
from lakebed.lsm.model import FileMeta, FileSet, Kind, Row
from lakebed.lsm.plan import CompactionTask
from lakebed.lsm.row_merge import rows_of_batch
from lakebed.objects import open_store
from lakebed.runtime import Environment
from lakebed.testing import ManualClock

GOLDEN = Path(__file__).parents[2] / "golden" / "lsm"


IDS = [f"01HF7YAT00000000000000000{number}" for number in (1, 2, 3, 4, 5, 6)]
"""Three compressions of version 1, and the same of version 2."""


def meta_of(file_id: str) -> FileMeta:
    """What a version remembers of a file."""
    return msgspec.json.decode((GOLDEN / f"{file_id}.json").read_bytes(), type=FileMeta)


@pytest.mark.parametrize("cache_bytes", [0, 1 << 20])
@pytest.mark.parametrize("file_id", IDS)
def test_own_sorted_files(file_id: str, cache_bytes: int) -> None:
    """A sorted file with every kind of row, in each compression, reads row by row and as a whole as it was written."""
    rows = [
        Row(bytes.fromhex(key), sequence, kind, bytes.fromhex(value), expires_at_ms)
        for key, sequence, kind, value, expires_at_ms in json.loads((GOLDEN / "rows.json").read_text())
    ]
    cache = BlockCache(cache_bytes)
    reader = FileReader(open_store(str(GOLDEN)), f"{file_id}.sst", meta=meta_of(file_id), cache=cache)
    assert [row for block in reader.batches() for row in rows_of_batch(block.batch)] == rows
    assert reader.block_count > 8
    for row in rows:
        expected = [other for other in rows if other.key == row.key] if row.kind == Kind.MERGE else [row]
        if row.sequence in (4, 11):  # the newer operand of this key comes first
            continue
        assert reader.get(row.key) == expected
    assert reader.get(b"counter", sequence=4) == [Row(b"counter", 4, int(Kind.PUT), b"40", None)]
    assert reader.get(b"key 0005") == []
    keys = sorted({row.key for row in rows} | {b"key 0005"})
    assert reader.get_many(keys, hashes=hash_keys(keys)) == {key: reader.get(key) for key in keys if key != b"key 0005"}


@pytest.mark.parametrize(("file_id", "version"), [(IDS[0], 1), (IDS[3], 2)])
def test_versions_of_golden_files(file_id: str, version: int) -> None:
    """The golden files are of both versions, so a reader that forgets one is noticed."""
    body = (GOLDEN / f"{file_id}.sst").read_bytes()
    (length,) = struct.unpack("<I", body[-20:-16])
    footer = json.loads(body[-20 - length : -20])
    assert (footer["format"], footer["min_reader"], "pages" in footer) == (version, version, version > 1)


def test_compaction_rewrites_version_1() -> None:
    """What is compacted from files of version 1 is of the newest version, with the same rows."""
    store = open_store(f"memory://{uuid.uuid4().hex}")
    for suffix in ("sst", "json"):
        store.put(f"{IDS[0]}.{suffix}", (GOLDEN / f"{IDS[0]}.{suffix}").read_bytes())
    environment = Environment(clock=ManualClock())
    files = FileStore(
        store, path_of="{}.sst".format, cache=BlockCache(), options=FileOptions(), environment=environment
    )
    file_set = FileSet(l0=(meta_of(IDS[0]),))
    run = run_compaction(
        CompactionTask((IDS[0],), (), bottom=False),
        files=files,
        file_set=file_set,
        next_file_id=lambda: mint_file_id(environment=environment),
        run_file_bytes=1 << 20,
        operator=None,
        retain_since_sequence=0,
    )
    assert run is not None
    (written,) = run.files
    assert files.reader(meta_of(IDS[0])).tail().pages is None
    assert files.reader(written).tail().pages is not None
    before, after = (
        [row for block in files.reader(meta).batches() for row in rows_of_batch(block.batch)]
        for meta in (meta_of(IDS[0]), written)
    )
    assert after == before
