"""Sorted tables of lakeFS: what is written is read, whatever is in it, and damage is an error."""

from __future__ import annotations

import contextlib
import hashlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lakebed.errors import LakebedError
from lakebed.objects import open_store
from lakebed.repo.lakefs.metaranges import LakefsNamespace, hash_properties, hash_rows, lakefs_range_path
from lakebed.repo.lakefs.sstable import SSTable
from lakebed.repo.lakefs.sstable_writer import encode_sstable

ROWS = [(b"data/part-%05d" % number, b"%d" % (number * number) * (number % 7)) for number in range(3_000)]


@given(st.dictionaries(st.binary(max_size=40), st.binary(max_size=400), max_size=60))
def test_rows_come_back(rows: dict[bytes, bytes]) -> None:
    """Empty and long keys and values, with and without common beginnings, in order."""
    ordered = sorted(rows.items())
    assert list(SSTable(encode_sstable(ordered, properties={}), path="x").rows()) == ordered


def test_a_table_of_many_blocks_has_its_properties() -> None:
    """Rows of many blocks, and the texts that were given with them."""
    table = SSTable(encode_sstable(ROWS, properties={"type": "ranges", "max_key": "größe"}), path="x")
    assert list(table.rows()) == ROWS
    assert table.properties == {"type": "ranges", "max_key": "größe"}


def test_every_damage_is_an_error() -> None:
    """A byte that is changed, or an end that is missing, gives an error with the file's path: never other rows."""
    content = encode_sstable(ROWS[:200], properties={"type": "ranges"})
    digest = hashlib.sha256()
    hash_rows(digest, ROWS[:200])
    hash_properties(digest, {"type": "ranges"})
    id = digest.hexdigest()
    store = open_store("memory://damage-of-a-sorted-table")
    namespace = LakefsNamespace(store)
    path = lakefs_range_path(id)
    store.put(path, content)
    assert namespace.rows(id) == ROWS[:200]
    step = max(1, len(content) // 150)
    for at in range(0, len(content), step):
        damaged = content[:at] + bytes((content[at] ^ 0x55,)) + content[at + 1 :]
        store.put(path, damaged)
        with contextlib.suppress(LakebedError):
            assert namespace.rows(id) == ROWS[:200]  # a byte that says nothing of the rows, such as a checksum
        store.put(path, content[:at])
        with pytest.raises(LakebedError, match=id):
            namespace.rows(id)
