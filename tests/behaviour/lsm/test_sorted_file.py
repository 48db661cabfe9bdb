"""Sorted files on every kind of store."""

from __future__ import annotations

from typing import Any

import pytest

from lakebed.errors import Corruption, NotFound
from lakebed.lsm.cache import BlockCache
from lakebed.lsm.file_id import mint_file_id
from lakebed.lsm.file_writer import FileOptions
from lakebed.lsm.files import FileStore
from lakebed.lsm.filter import hash_keys
from lakebed.lsm.memtable import batch_of
from lakebed.lsm.model import Kind, Row
from lakebed.lsm.row_merge import rows_of_batch
from lakebed.runtime import Environment


def test_a_file_is_written_and_read(store: Any) -> None:
    """One PUT writes a file, one GET opens it, one GET reads a block; a missing or short file is named by its path."""
    environment = Environment()
    rows = [Row(b"%05d" % number, number, int(Kind.PUT), b"value %d" % number, None) for number in range(2000)]
    files = FileStore(
        store,
        path_of="sst/{}.sst".format,
        cache=BlockCache(1 << 20),
        options=FileOptions(block_bytes=4096),
        environment=environment,
    )
    with store.count() as requests:
        writer = files.writer(mint_file_id(environment=environment))
        writer.write(batch_of(rows))
        meta = writer.finish()
    assert (requests.put, requests.total) == (1, 1)
    reader = files.reader(meta)
    with store.count() as requests:
        assert reader.get(b"01234") == [rows[1234]]
    # A folder of this machine maps the file: that is the one request.
    expected = 1 if store.root_url.startswith("file:") else 2
    assert (requests.get, requests.total) == (expected, expected)
    assert [row for block in reader.batches() for row in rows_of_batch(block.batch)] == rows
    keys = [rows[number].key for number in (3, 700, 701, 1999)]
    assert reader.get_many([], hashes=hash_keys([])) == {}
    values = reader.get_many(keys, hashes=hash_keys(keys))
    assert [row for key in keys for row in values[key]] == [rows[number] for number in (3, 700, 701, 1999)]

    path = f"sst/{meta.id}.sst"
    body = bytes(store.get(path))
    files.forget(meta.id)
    for length in (meta.tail_offset - 1, meta.tail_offset, meta.size_bytes - 1):
        store.put(path, body[:length])
        with pytest.raises(Corruption) as damaged:
            files.reader(meta).get(b"01234")
        assert damaged.value.facts["path"] == path
    store.delete([path])
    with pytest.raises(NotFound) as gone:
        files.reader(meta).get(b"01234")
    assert gone.value.facts["path"] == path
