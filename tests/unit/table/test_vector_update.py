"""Which vectors a commit checks and writes: no deleted row returns."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pyarrow as pa
import pytest

from lakebed.errors import Conflict
from lakebed.table.codec.binary_row import EMPTY_ROW
from lakebed.table.codec.index_manifest import DELETION_VECTORS, IndexEntry, VectorRange
from lakebed.table.codec.roaring import Positions, encode_positions
from lakebed.table.commit.vector_update import INDEX_FILE_BYTES, VectorUpdate, check_vectors, vector_update
from lakebed.table.model.layout import Layout
from lakebed.table.model.model import BucketChange, TableSchema, VectorPlace
from lakebed.table.schema.schema import new_schema
from worlds.table.made_up import data_file

SCHEMA = new_schema(pa.schema([("id", pa.int64())]), time_ms=0)
BUCKETED = new_schema(pa.schema([("id", pa.int64())]), options={"bucket": "2", "bucket-key": "id"}, time_ms=0)
OLD = VectorPlace("index/old", 1, 8, 1, 100)
NEW = VectorPlace("index/new", 1, 8, 2, 100)
STORED = {"a": [1, 5], "b": [2], "c": [3]}


def deleting(*positions: int) -> BucketChange:
    """A change that deletes rows of the file a."""
    return BucketChange(EMPTY_ROW, 0, -1, vectors={"a": encode_positions(np.array(positions, np.int64))})


def updated(
    changes: list[BucketChange], *, schema: TableSchema, file_size: int, gone: tuple[str, ...] = ()
) -> dict[str, list[int]]:
    """The vectors after a commit, by file: those of index files that stay, and those that are written."""
    layout = Layout()
    entries = [
        IndexEntry(EMPTY_ROW, 0, f"of-{name}", file_size, 1, DELETION_VECTORS, (VectorRange(name, 1, 8, len(stored)),))
        for name, stored in STORED.items()
    ]

    def load(place: VectorPlace) -> Positions:
        return np.array(STORED[place.path.rpartition("-")[2]], np.int64)

    result = vector_update(changes, entries=entries, gone=gone, schema=schema, layout=layout, load=load)
    if result is None:
        result = VectorUpdate(tuple(entries), ())
    pairs = [(part.data_file, STORED[part.data_file]) for entry in result.kept for part in entry.ranges]
    pairs += [(name, list(positions)) for _, _, vectors in result.written for name, positions in vectors.items()]
    assert len(dict(pairs)) == len(pairs), "a file has one vector"
    return dict(pairs)


@pytest.mark.parametrize("file_size", [100, INDEX_FILE_BYTES, 2 * INDEX_FILE_BYTES])
@pytest.mark.parametrize("schema", [SCHEMA, BUCKETED], ids=["without-buckets", "buckets"])
@pytest.mark.parametrize("gone", [(), ("b",), ("a", "b", "c")], ids=["none", "one", "all"])
def test_no_deleted_row_returns(file_size: int, schema: TableSchema, gone: tuple[str, ...]) -> None:
    """Whatever index files are large or small: each file has all its deleted rows in one vector, unless it is gone."""
    expected = {name: stored for name, stored in STORED.items() if name not in gone}
    assert updated([], schema=schema, file_size=file_size, gone=gone) == expected
    if "a" not in gone:
        expected["a"] = [1, 4, 5, 9]
        assert updated([deleting(4), deleting(5, 9)], schema=schema, file_size=file_size, gone=gone) == expected


@pytest.mark.parametrize("now", [None, OLD, NEW], ids=["no-vector", "old", "new"])
@pytest.mark.parametrize("at_basis", [None, OLD, NEW], ids=["none-at-basis", "old-at-basis", "new-at-basis"])
@pytest.mark.parametrize("applied", ["not-stated", None, OLD, NEW], ids=str)
@pytest.mark.parametrize("verb", ["replace", "mark"])
def test_a_change_fits_the_vectors_that_it_was_made_with(
    verb: str, applied: VectorPlace | str | None, at_basis: VectorPlace | None, now: VectorPlace | None
) -> None:
    """What a change states that it read counts, else what its basis had; another vector now is a conflict."""
    stated = {} if isinstance(applied, str) else {"a": applied}
    change = replace(deleting(4), applied=stated)
    if verb == "replace":
        change = BucketChange(EMPTY_ROW, 0, -1, deleted=(data_file("a"),), applied=stated)
    read_with = at_basis if isinstance(applied, str) else applied
    positions = {OLD: np.array([1]), NEW: np.array([1, 2])}

    def check() -> None:
        check_vectors(
            [change],
            now={} if now is None else {"a": now},
            at_basis={} if at_basis is None else {"a": at_basis},
            load=positions.__getitem__,
        )

    if read_with == now:
        check()
    else:
        with pytest.raises(Conflict, match="deleted rows of the file a"):
            check()
