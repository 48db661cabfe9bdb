"""Sorted files in a store: how many requests each way of reading takes, and what goes wrong is said."""

from __future__ import annotations

import errno
import random
import uuid
from collections.abc import Callable, Sequence
from itertools import pairwise
from pathlib import Path

import pyarrow as pa
import pytest

from lakebed.errors import AlreadyExists, InternalError, LakebedError, NotFound, OutcomeUnknown, Unavailable
from lakebed.lsm import file_writer
from lakebed.lsm.block import Block
from lakebed.lsm.cache import BlockCache
from lakebed.lsm.file_id import mint_file_id
from lakebed.lsm.file_writer import FileOptions, separate_pages
from lakebed.lsm.files import FileStore
from lakebed.lsm.filter import hash_key, hash_key_column, hash_keys
from lakebed.lsm.memtable import batch_of
from lakebed.lsm.model import FileMeta, Kind, Row
from lakebed.objects import open_store
from lakebed.objects.port import ObjectStore
from lakebed.runtime import Environment

ENVIRONMENT = Environment()
OPTIONS = FileOptions(block_bytes=1000)
COUNT = 1000


@pytest.fixture
def memory() -> ObjectStore:
    """A memory store of its own."""
    return open_store(f"memory://{uuid.uuid4().hex}")


def key_of(number: int) -> bytes:
    """Keys with gaps between them."""
    return b"key %06d" % (2 * number)


def put_of(number: int, value: bytes = b"v" * 40) -> Row:
    """A plain row."""
    return Row(key_of(number), number, int(Kind.PUT), value, None)


def files_in(store: ObjectStore, *, cache_bytes: int = 1 << 20, options: FileOptions = OPTIONS) -> FileStore:
    """Files in the folder `sst`."""
    cache = BlockCache(cache_bytes)
    return FileStore(store, path_of="sst/{}.sst".format, cache=cache, options=options, environment=ENVIRONMENT)


def write(files: FileStore, rows: Sequence[Row] | None = None) -> FileMeta:
    """A file of these rows, by default of `COUNT` plain ones."""
    writer = files.writer(mint_file_id(environment=ENVIRONMENT))
    writer.write(batch_of([put_of(number) for number in range(COUNT)] if rows is None else rows))
    return writer.finish()


def test_a_file_is_one_put(memory: ObjectStore) -> None:
    """Nothing is in the store before the end, then all is, by one request; an abandoned file is nowhere."""
    files = files_in(memory)
    with memory.count() as requests:
        writer = files.writer(mint_file_id(environment=ENVIRONMENT))
        for number in range(COUNT):
            writer.write(batch_of([put_of(number)]))
        size_bytes = writer.size_bytes
        assert requests.total == 0
        meta = writer.finish()
        assert (requests.put, requests.total, requests.bytes_written) == (1, 1, meta.size_bytes)
        assert 0 < size_bytes <= meta.size_bytes
        abandoned = files.writer(mint_file_id(environment=ENVIRONMENT))
        abandoned.write(batch_of([put_of(1)]))
        abandoned.abandon()
    assert requests.put == 1


def test_a_file_outgrows_its_place(memory: ObjectStore, monkeypatch: pytest.MonkeyPatch) -> None:
    """What was written before a file got another place in memory is in it, for every size up to a large one."""
    monkeypatch.setattr(file_writer, "_LARGE_BODY_BYTES", 2 << 20)
    files, chance = files_in(memory), random.Random(1)
    rows = [put_of(number, chance.randbytes(1 << (number % 18))) for number in range(300)]
    writer = files.writer(mint_file_id(environment=ENVIRONMENT))
    for row in rows:
        writer.write(batch_of([row]))
    meta = writer.finish()
    assert meta.size_bytes > 4 << 20
    reader = files_in(memory).reader(meta)
    assert [row.key for row in rows if reader.get(row.key) != [row]] == []


def test_requests_of_lookups(memory: ObjectStore) -> None:
    """Opening is 1 GET of the tail; a key 1 GET of one block, then none; an absent one none when the filter says no."""
    meta = write(files_in(memory))
    files = files_in(memory)
    reader = files.reader(meta)
    with memory.count() as requests:
        block_count = reader.block_count
    assert (requests.get, requests.total) == (1, 1)
    assert requests.bytes_read == meta.size_bytes - meta.tail_offset
    with memory.count() as requests:
        assert reader.get(key_of(500)) == [put_of(500)]
    assert (requests.get, requests.total) == (1, 1)
    assert requests.bytes_read < 3 * meta.tail_offset / block_count
    with memory.count() as requests:
        assert reader.get(key_of(500)) == [put_of(500)]
        absent = [key + b"!" for key in map(key_of, range(0, COUNT, 50))]
        absent = [
            key
            for key, number in zip(absent, hash_keys(absent).tolist(), strict=True)
            if not reader.may_contain(number)
        ]
        assert len(absent) > 15
        assert [reader.get(key) for key in absent] == [[]] * len(absent)
        assert reader.get(b"a") == reader.get(b"z") == []
    assert requests.total == 0


@pytest.mark.parametrize("lengths", [(9, 16), (16, 16), (17, 32), (24, 24), (8, 16), (16, 17), (1, 40), (32, 33)])
def test_hashes_of_a_column(lengths: tuple[int, int]) -> None:
    """Keys hashed as a column have the hashes by which a lookup asks for them, whatever their lengths."""
    chance = random.Random(sum(lengths))
    keys = [chance.randbytes(chance.randint(*lengths)) for _ in range(10_000)]
    column = pa.array(keys, pa.binary())
    hashes = zip(keys, hash_key_column(column).tolist(), hash_keys(keys).tolist(), strict=True)
    # A few, for a comparison of long lists takes minutes to say where they differ.
    assert [key for key, *numbers in hashes if {*numbers} != {hash_key(key)}][:5] == []
    assert hash_key_column(column.slice(7, 100)).tolist() == hash_keys(keys[7:107]).tolist()
    assert hash_key_column(column.slice(0, 0)).tolist() == []


def test_separators_of_pages() -> None:
    """Between two pages stands the shortest beginning of the later key that is above the earlier one."""
    chance = random.Random(1)
    keys = sorted({bytes(chance.choices(b"\0\1a", k=chance.randint(1, 24))) for _ in range(3000)})
    for common in (b"", b"all keys begin so"):
        pairs = [(common + earlier, common + later) for earlier, later in pairwise(keys)]
        separators = separate_pages(*map(list, zip(*pairs, strict=True)))
        for (earlier, later), separator in zip(pairs, separators, strict=True):
            assert earlier < separator <= later
            assert later.startswith(separator)
            assert separator[:-1] <= earlier


def test_requests_without_a_filter(memory: ObjectStore) -> None:
    """Without a filter a key before the first costs nothing, and one between two keys costs a block."""
    files = files_in(memory, options=FileOptions(block_bytes=1000, bits_per_key=0))
    reader = files.reader(write(files))
    assert reader.block_count > 10
    with memory.count() as requests:
        assert reader.get(b"a") == []
        assert requests.get == 0
        assert reader.get(key_of(3) + b"!") == []
        assert requests.get == 1


def test_requests_of_many_keys(memory: ObjectStore) -> None:
    """Keys of neighbouring blocks are read by 1 GET, and what is cached is not read again."""
    meta = write(files_in(memory))
    reader = files_in(memory).reader(meta)
    reader.tail()
    keys = [key_of(number) for number in range(400, 500)]
    with memory.count() as requests:
        assert reader.get_many(keys, hashes=hash_keys(keys)) == {
            key_of(number): [put_of(number)] for number in range(400, 500)
        }
    assert (requests.get, requests.total) == (1, 1)
    with memory.count() as requests:
        reader.get_many(keys, hashes=hash_keys(keys))
        assert reader.get_many([], hashes=hash_keys([])) == {}
    assert requests.total == 0


def test_requests_of_scans(memory: ObjectStore) -> None:
    """A scan reads one block first, then twice as much each time, up to its bound; it leaves the cache as it is."""
    meta = write(files_in(memory))
    files = files_in(memory)
    reader = files.reader(meta)
    block_count = reader.block_count
    kept_bytes = files.cache.size_bytes
    with memory.count() as requests:
        blocks = reader.batches()
        next(blocks)
        assert (requests.get, requests.bytes_read) == (1, reader.tail().lengths[0])
        assert sum(block.row_count for block in blocks) == COUNT - next(reader.batches()).row_count
    assert requests.get - 1 <= block_count.bit_length() + 1
    assert files.cache.size_bytes == kept_bytes
    row_counts = [block.row_count for block in reader.batches()]
    assert all(count <= 3 * before for before, count in pairwise(row_counts)), "one that ends soon reads too much"
    with memory.count() as requests:
        assert sum(block.row_count for block in reader.batches(reverse=True, ahead_bytes=0)) == COUNT
    assert requests.get == block_count
    with memory.count() as requests:
        list(reader.batches(ahead_bytes=meta.tail_offset // 4))
    assert 4 < requests.get < 12
    list(reader.batches(fill_cache=True))
    with memory.count() as requests:
        assert sum(block.row_count for block in reader.batches(key_of(10), key_of(900))) == 890
        assert list(reader.batches(b"x", b"y")) == list(reader.batches(b"b", b"a")) == []
    assert requests.total == 0


def test_a_small_cache_is_kept_to(memory: ObjectStore) -> None:
    """With a cache smaller than a tail every lookup reads the tail, answers are right, and nothing stays."""
    meta = write(files_in(memory))
    files = files_in(memory, cache_bytes=100)
    with memory.count() as requests:
        assert files.reader(meta).get(key_of(7)) == [put_of(7)]
        assert files.reader(meta).get(key_of(7)) == [put_of(7)]
    assert (requests.get, files.cache.size_bytes) == (4, 0)


def test_what_the_cache_counts(memory: ObjectStore) -> None:
    """A block counts for at least the memory of its batch, and a tail for at least its bytes."""
    files = files_in(memory)
    reader = files.reader(write(files))
    tail_bytes = reader.meta.size_bytes - reader.meta.tail_offset
    assert reader.tail().size_bytes >= tail_bytes + sum(map(len, reader.tail().first_keys))
    for block in reader.batches():
        assert block.size_bytes >= block.batch.nbytes + sum(map(len, block.batch.column(0).to_pylist()))


def test_a_tail_counts_the_keys_from_which_pages_begin(memory: ObjectStore) -> None:
    """Decoded, each of them has its whole length, however much of it all keys share in the file."""
    files = files_in(memory, cache_bytes=1 << 24, options=FileOptions())
    rows = [Row(b"p" * 1_000 + key_of(number), number + 1, int(Kind.PUT), b"v", None) for number in range(1_000)]
    meta = write(files, rows)
    tail = files.reader(meta).tail()
    assert tail.pages is not None
    page_count, former_bytes = len(tail.pages), files.cache.size_bytes
    assert page_count > 10 * tail.block_count
    for row in rows:
        files.reader(meta).find_value(tail, row.key)
    assert tail.pages.keys is not None
    assert tail.pages.loaded_bytes > page_count * 1_000
    grown_bytes = sum(entry.grown_bytes for entry in files.cache.entries.values())
    assert grown_bytes == tail.pages.loaded_bytes == files.cache.size_bytes - former_bytes


def test_slices_are_views(memory: ObjectStore) -> None:
    """Blocks cut at the edges of a range share the memory of whole ones, and can be searched like them."""
    files = files_in(memory)
    reader = files.reader(write(files))
    (whole,) = list(reader.batches(end=key_of(1), fill_cache=True))
    (part,) = list(reader.batches(key_of(3), key_of(6)))
    assert isinstance(part, Block)
    assert part.batch.column(3).buffers()[2].address == whole.batch.column(3).buffers()[2].address
    assert part.row_count == 3
    assert [part.find(key_of(number)) for number in (2, 3, 4, 5, 6)] == [0, 0, 1, 2, 3]
    assert part.rows_of(key_of(4)) == ([put_of(4)], False)
    assert part.rows_of(key_of(2)) == ([], False)


def test_large_values(memory: ObjectStore) -> None:
    """A value larger than a block has a block of its own, and its neighbours are not read with it."""
    files = files_in(memory, cache_bytes=8 << 20)
    rows = [put_of(1), put_of(2, bytes(range(256)) * 4000), put_of(3), put_of(4)]
    reader = files.reader(write(files, rows))
    assert [block.row_count for block in reader.batches()] == [1, 1, 2]
    with memory.count() as requests:
        assert [reader.get(row.key) for row in rows] == [[row] for row in rows]
    assert requests.get == 3


def test_versions_that_go_on_in_the_next_block(memory: ObjectStore) -> None:
    """A key whose operands fill several blocks is read whole, and one whose newest row is enough costs one block."""
    files = files_in(memory)
    rows = [put_of(0), *(Row(key_of(1), 900 - number, int(Kind.MERGE), b"+" * 100, None) for number in range(40))]
    rows += [Row(key_of(1), 5, int(Kind.PUT), b"base", None), put_of(2)]
    reader = files.reader(write(files, rows))
    with memory.count() as requests:
        assert reader.get(key_of(1)) == rows[1:-1]
    assert requests.get == reader.block_count + 1
    assert reader.get(key_of(1), sequence=5) == [rows[-2]]
    assert reader.get(key_of(1), sequence=4) == []


def test_a_missing_file(memory: ObjectStore) -> None:
    """A file that is gone is `NotFound` with its path."""
    files = files_in(memory)
    meta = write(files)
    memory.delete([f"sst/{meta.id}.sst"])
    with pytest.raises(NotFound) as caught:
        files.reader(meta).get(key_of(1))
    assert caught.value.facts["path"] == f"sst/{meta.id}.sst"


def test_files_of_another_database(memory: ObjectStore) -> None:
    """`locate` says where a file is read; a new one always goes to our own place."""
    parent = open_store(f"memory://{uuid.uuid4().hex}")
    theirs = write(files_in(parent))

    def locate(file_id: str) -> tuple[ObjectStore, str]:
        return (parent if file_id == theirs.id else memory), f"sst/{file_id}.sst"

    cache = BlockCache()
    files = FileStore(
        memory, path_of="sst/{}.sst".format, locate=locate, cache=cache, options=OPTIONS, environment=ENVIRONMENT
    )
    ours = write(files, [put_of(5000)])
    assert files.reader(theirs).get(key_of(3)) == [put_of(3)]
    assert files.reader(ours).get(key_of(5000)) == [put_of(5000)]
    assert [meta.path for meta in memory.list()] == [f"sst/{ours.id}.sst"]


def test_handles(memory: ObjectStore) -> None:
    """A handle is made once; forgetting a file drops it and what was cached of the file, and of no other."""
    files = files_in(memory)
    first, second = write(files), write(files)
    for meta in (first, second):
        files.reader(meta).get(key_of(1))
    assert files.reader(first) is files.reader(first)
    half = files.cache.size_bytes // 2
    files.forget(first.id)
    files.forget("0" * 26)
    assert abs(files.cache.size_bytes - half) < 100
    with memory.count() as requests:
        files.reader(second).get(key_of(1))
        assert requests.total == 0
        files.reader(first).get(key_of(1))
    assert requests.get == 2


class Faltering:
    """A store whose next puts fail as the test says: before their effect, or after it."""

    def __init__(self, store: ObjectStore, *errors: LakebedError, lands: bool) -> None:
        self._store, self._errors, self._lands = store, list(errors), lands

    def __getattr__(self, name: str) -> object:
        return getattr(self._store, name)

    def put(self, path: str, body: bytes, *, create_only: bool, durable: bool) -> None:
        """Fail, or pass it on."""
        assert (create_only, durable) == (True, True)
        if not self._errors:
            self._store.put(path, body, create_only=True)
            return
        if self._lands:
            self._store.put(path, body, create_only=True)
        raise self._errors.pop(0)


def test_a_put_may_be_tried_again(memory: ObjectStore) -> None:
    """What the store says comes through as it is, and `finish` may be called again."""
    messages = [Unavailable("no answer"), *(OutcomeUnknown("perhaps") for _ in range(3))]
    files = files_in(Faltering(memory, *messages, lands=False))  # type: ignore[arg-type]
    writer = files.writer(mint_file_id(environment=ENVIRONMENT))
    writer.write(batch_of([put_of(1)]))
    for error in (messages[0], messages[-1]):
        with pytest.raises(type(error)) as caught:
            writer.finish()
        assert caught.value is error
    meta = writer.finish()
    assert files_in(memory).reader(meta).get(key_of(1)) == [put_of(1)]


def test_a_lost_reply_is_no_failure(memory: ObjectStore) -> None:
    """An unclear answer is followed by the same bytes under the same name, at once."""
    files = files_in(Faltering(memory, OutcomeUnknown("perhaps"), lands=True))  # type: ignore[arg-type]
    meta = write(files)
    assert files_in(memory).reader(meta).get(key_of(2)) == [put_of(2)]


def test_another_file_in_its_place(memory: ObjectStore) -> None:
    """A file of the same name that is not ours is never replaced."""
    files = files_in(memory)
    meta = write(files)
    writer = files.writer(meta.id)
    writer.write(batch_of([put_of(1)]))
    with pytest.raises(AlreadyExists):
        writer.finish()
    assert files_in(memory).reader(meta).get(key_of(2)) == [put_of(2)]


def test_a_full_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A full disk raises the store's own error, and leaves nothing behind."""
    store = open_store(str(tmp_path / "database"))
    files = files_in(store)

    def full(*_: object) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr("os.fsync", full)
        with pytest.raises(Unavailable, match="disk is full"):
            write(files)
    assert list(store.list()) == []
    assert files.reader(write(files)).get(key_of(1)) == [put_of(1)]


def test_our_own_mistakes_are_caught(memory: ObjectStore) -> None:
    """Unsorted rows, other columns, rows after the end and a file without rows are errors, and nothing is stored."""
    faltering = files_in(Faltering(memory, Unavailable("no answer"), lands=False))  # type: ignore[arg-type]
    ended = faltering.writer(mint_file_id(environment=ENVIRONMENT))
    ended.write(batch_of([put_of(1)]))
    with pytest.raises(Unavailable):
        ended.finish()
    with pytest.raises(InternalError):
        ended.write(batch_of([put_of(2)]))
    meta = ended.finish()
    wrong: list[Callable[[FileStore], object]] = [
        lambda files: write(files, []),
        lambda files: write(files, [put_of(number) for number in (2, 3, 1)]),
        lambda files: files.writer("x").write(batch_of([put_of(1)]).rename_columns(["a", "b", "c", "d", "e"])),
        lambda files: (writer := files.writer("x")).write(batch_of([put_of(2)])) or writer.write(batch_of([put_of(1)])),
        lambda files: (writer := files.writer("x")).write(batch_of([put_of(2)])) or writer.write(batch_of([put_of(2)])),
    ]
    assert meta.row_count == 1
    for mistake in wrong:
        with pytest.raises(InternalError):
            mistake(files_in(memory))
    assert [entry.path for entry in memory.list()] == [f"sst/{meta.id}.sst"]
