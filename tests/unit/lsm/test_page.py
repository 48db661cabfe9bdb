"""Pages of blocks: finding a key among others that contain it, wide pages, and what a lookup reads of a file."""

from __future__ import annotations

import itertools
import random
import struct
import uuid
from collections.abc import Callable, Sequence
from itertools import pairwise
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from lakebed.errors import Corruption
from lakebed.lsm import file_reader, format
from lakebed.lsm import page as page_module
from lakebed.lsm.block import Compression
from lakebed.lsm.cache import BlockCache
from lakebed.lsm.file_reader import FileReader, unload_mapped
from lakebed.lsm.file_writer import FileOptions, FileWriter
from lakebed.lsm.filter import hash_key, hash_keys
from lakebed.lsm.key_batch import KeyBatch
from lakebed.lsm.memtable import batch_of
from lakebed.lsm.model import ROWS_DECIDE, FileMeta, Kind, Row
from lakebed.lsm.page import (
    BadPageError,
    _layout_of,
    add_pairs,
    batch_of_pages,
    find_among_all,
    find_rows,
    find_value,
    find_values,
    form_pages,
    pack_pages,
)
from lakebed.lsm.row_merge import rows_of_batch
from lakebed.lsm.short_scan import Newest
from lakebed.objects import open_store
from lakebed.objects.port import ObjectStore


def put(key: bytes, sequence: int, value: bytes = b"v") -> Row:
    """A row that puts a value for ever."""
    return Row(key, sequence, int(Kind.PUT), value, None)


def page_of(rows: Sequence[Row]) -> bytes:
    """The one page of these rows, before compression."""
    page, (size_bytes,) = form_pages(batch_of(rows), np.zeros(1, np.int64))
    assert page.size == size_bytes
    return page.to_pybytes()


NESTED = [bytes(text) for size in range(1, 6) for text in itertools.product(b"a\0", repeat=size)]


@pytest.mark.parametrize(
    "keys", [NESTED, [b"a" * size for size in range(1, 60)], [b"a" * 40, b"b", b"ba"], [b"", b"a", b"aa"]]
)
def test_keys_inside_other_keys(keys: list[bytes]) -> None:
    """A key is found where a row has it, and not where its bytes only stand in or across other keys."""
    rows = [put(key, number, key[::-1]) for number, key in enumerate(sorted(keys), 1)]
    asked = {*keys, *(key + b"a" for key in keys), *(key[1:] + b"\0" for key in keys)}
    for kept in (rows, rows[::2], rows[1::3], rows[-1:]):
        page = page_of(kept)
        for key in asked:
            assert find_rows(page, key)[0] == [row for row in kept if row.key == key]
            assert find_rows(page, key, sequence=3)[0] == [row for row in kept if row.key == key and row.sequence <= 3]


def test_an_empty_key() -> None:
    """Alone, before a key that begins at the same byte, and in several versions."""
    empty, merge, other = put(b"", 2), Row(b"", 3, int(Kind.MERGE), b"+1", None), put(b"a", 1)
    for rows in ([empty], [empty, other], [merge, empty], [merge, empty, other], [other]):
        page = page_of(rows)
        assert find_rows(page, b"")[0] == [row for row in rows if row.key == b""]
        assert find_rows(page, b"a")[0] == [row for row in rows if row.key == b"a"]


@pytest.mark.parametrize(
    "rows",
    [
        [put(b"a", 1), put(b"b", 1 << 32)],
        [put(b"a", 1), put(b"b", (1 << 32) + 1)],
        [put(b"a", 0), put(b"b", (1 << 64) - 1)],
        [put(b"a", 3, b"v" * 65_535), put(b"b", 4, b"")],
        [put(b"a", 3, b"v" * 65_535), put(b"b", 4, b"w")],
        [put(b"k" * 65_535, 9), put(b"k" * 65_535, 8), put(b"l", 1)],
        [put(b"a", 7), Row(b"b", 6, int(Kind.MERGE), b"+1", 5), Row(b"b", 5, int(Kind.DELETE), b"", None)],
        [put(b"a", 1 << 40), Row(b"b", 6, int(Kind.MERGE), b"+1", -5), Row(b"b", 5, int(Kind.PUT), b"w", 0)],
    ],
)
def test_wide_and_special_pages(rows: list[Row]) -> None:
    """Large numbers, long contents, kinds and ends are kept, in a page alone and beside a usual one."""
    page, usual = page_of(rows), page_of([put(b"x", 5), put(b"y", 6)])
    assert rows_of_batch(batch_of_pages([page])) == rows
    assert rows_of_batch(batch_of_pages([page, usual, page])) == [*rows, put(b"x", 5), put(b"y", 6), *rows]
    for row in {row.key: row for row in reversed(rows)}.values():
        expected = [other for other in rows if other.key == row.key]
        assert find_rows(page, row.key)[0] == (expected if row.kind == Kind.MERGE else [row])


@pytest.mark.parametrize("count", [1, 8, 9, 64, 73, 4_096])
def test_the_columns_of_pages_have_all_their_bytes(count: int) -> None:
    """Arrow finds no buffer, those of nulls included, that is shorter than so many rows need."""
    page = page_of([put(b"%04d" % number, number + 1) for number in range(count)])
    for pages in ([page], [page, page_of([Row(b"x", 6, int(Kind.MERGE), b"+1", 5)])]):
        batch_of_pages(pages).validate(full=True)


def test_the_value_of_a_key_alone() -> None:
    """It is that of its newest row, and where that is not settled the rows decide; no other key's is taken for it."""
    pages = [
        [put(b"k%03d" % number, number, b"v%d" % number) for number in range(40)],
        [put(b"k%03d" % number, 900 - number) for number in range(40, 60)],
        [put(b"061", 7, b"newer"), put(b"061", 6, b"older"), Row(b"062", 5, int(Kind.DELETE), b"", None)],
        [put(b"063" + b"x" * size, size + 1, b"y" * size) for size in range(30)],
        [put(b"07", 1, b"w" * 70_000), put(b"071", 2)],
        [put(b"08", 1), Row(b"081", 2, int(Kind.PUT), b"ends", 5)],
    ]
    contents = [page_of(rows) for rows in pages]
    asked = [
        (key, place)
        for place, rows in enumerate(pages)
        for row in rows
        for key in (row.key, row.key[:-1], row.key + b"x")
        if key
    ]
    for sequence in (None, 0, 30, 870):
        for key, place in asked:
            value = find_value(contents[place], key, sequence=sequence)
            rows = [row for row in pages[place] if row.key == key and (sequence is None or row.sequence <= sequence)]
            assert value is ROWS_DECIDE or value == (rows[0].value if rows else None)
            assert value is not ROWS_DECIDE or place > 1 or sequence is not None or not rows
    values: dict[bytes, bytes] = {}
    for some in (asked, asked[::-1], asked[:1]):
        left = find_values(contents, [key for key, _ in some], [place for _, place in some], values)
        assert {place for key, place in left if find_value(contents[place], key) is not ROWS_DECIDE} <= {4}
        assert values.items() <= {row.key: row.value for rows in pages for row in rows}.items()
        for key, place in set(some) - set(left):
            assert find_value(contents[place], key) == values.get(key)
    for place in (0, 3, 4):
        for page in (contents[place], memoryview(contents[place])):
            pairs: tuple[list[bytes], list[bytes]] = ([], [])
            add_pairs([page], *pairs)
            assert pairs == ([row.key for row in pages[place]], [row.value for row in pages[place]])


@pytest.mark.parametrize("count", [1, 2, 9])
def test_a_page_of_equal_lengths_is_read_by_one_call(count: int) -> None:
    """What that call has to read first is what stands there, or each lookup would go the long way."""
    page = page_of([put(b"key%02d" % number, number + 1, b"value%02d" % number) for number in range(count)])
    read, size_bytes, head, values_at = _layout_of(struct.unpack_from("<IIII", page))
    fields = read(page)
    assert (size_bytes, fields[: len(head)]) == (len(page), head)
    assert fields[values_at:] == tuple(b"value%02d" % number for number in range(count))


def test_many_keys_of_few_pages() -> None:
    """Of plain pages, with contents of one length and of several; a page that contradicts itself is named."""
    pages = [
        [put(b"k%03d" % number, number, b"v%03d" % number) for number in range(40)],
        [put(b"l" + b"x" * size, size, b"y" * (size % 7)) for size in range(1, 30)],
        [put(b"m", 1, b"w" * 70_000), put(b"n", 2)],
    ]
    contents = [page_of(rows) for rows in pages]
    expected = {row.key: row.value for rows in pages for row in rows}
    values: dict[bytes, bytes] = {}
    find_among_all(contents, [*expected, b"k", b"k0001", b"z"], values)
    assert values == expected
    for place in range(3):
        with pytest.raises(BadPageError) as caught:
            find_among_all([page + b"!" * (number == place) for number, page in enumerate(contents)], [b"k"], {})
        assert caught.value.place == place


def test_a_page_that_contradicts_itself() -> None:
    """A value that ends before it begins, or behind the page, is noticed."""
    page = page_of([put(b"a", 1, b"12"), put(b"b", 2, b"34"), put(b"c", 3, b"56")])
    for at, byte, key in ((26, 5, b"a"), (34, 200, b"a"), (42, 250, b"c")):
        bad = bytearray(page)
        bad[at] = byte
        with pytest.raises(BadPageError):
            find_value(bytes(bad), key)
        assert find_values([page, bytes(bad)], [key, key], [0, 1], {}) == [(key, 1)]
    assert find_values([page + b"!"], [b"a"], [0], {}) == [(b"a", 0)]


ROWS = [put(b"%06d" % number, number, b"value %d" % number * 3) for number in range(6000)]
OPTIONS = FileOptions(block_bytes=16 << 10, page_bytes=1 << 10)


def written(store: ObjectStore, *, compression: Compression | None = "lz4") -> FileMeta:
    """A file of many blocks with many pages each."""
    options = FileOptions(block_bytes=16 << 10, page_bytes=1 << 10, compression=compression)
    writer = FileWriter(store, "x", file_id="x", options=options)
    writer.write(batch_of(ROWS))
    return writer.finish()


def full_reader(store: ObjectStore, meta: FileMeta) -> FileReader:
    """A reader whose cache keeps the open file and has no space for more."""
    tail = FileReader(store, "x", meta=meta, cache=BlockCache(0)).tail()
    reader = FileReader(store, "x", meta=meta, cache=BlockCache(tail.size_bytes + 1000))
    assert reader.tail().block_count > 10
    return reader


@pytest.mark.parametrize("block_bytes", [1, 200, 1 << 16])
def test_many_versions_of_one_key(block_bytes: int) -> None:
    """Of a key with more versions than a page or a block holds, each is found, wherever the sequence asked for lies."""
    versions = [put(b"key", sequence, b"%d" % sequence) for sequence in range(60, 0, -1)]
    rows = [put(b"before", 1), *versions, put(b"key\0", 5), put(b"later", 2)]
    store = open_store(f"memory://{uuid.uuid4().hex}")
    writer = FileWriter(store, "x", file_id="x", options=FileOptions(block_bytes=block_bytes, page_bytes=40))
    writer.write(batch_of(rows))
    reader = FileReader(store, "x", meta=writer.finish(), cache=BlockCache(0))
    assert [row for block in reader.batches() for row in rows_of_batch(block.batch)] == rows
    assert reader.get(b"key") == [versions[0]]
    for sequence in (0, 1, 30, 59, 60, 99):
        assert reader.get(b"key", sequence=sequence) == [row for row in versions if row.sequence <= sequence][:1]
    keys = [b"before", b"key", b"key\0", b"later"]
    many = reader.get_many(keys, hashes=hash_keys(keys), sequence=30)
    assert many == {b"before": rows[:1], b"key": versions[30:31], b"key\0": rows[-2:-1], b"later": rows[-1:]}


def test_what_a_lookup_reads() -> None:
    """With a full cache a get is one request of one page, neighbours of a batch are one request, absent keys none."""
    store = open_store(f"memory://{uuid.uuid4().hex}")
    reader = full_reader(store, written(store))
    with store.count() as requests:
        assert reader.get(ROWS[3000].key) == [ROWS[3000]]
    assert (requests.get, requests.total) == (1, 1)
    assert requests.bytes_read <= 1 << 10
    some = ROWS[1000:1200]
    keys = [row.key for row in some]
    with store.count() as requests:
        assert reader.get_many(keys, hashes=hash_keys(keys)) == {row.key: [row] for row in some}
    assert (requests.get, requests.total) == (1, 1)
    absent = [key for key in (b"%06dx" % number for number in range(3000)) if not reader.may_contain(hash_of(key))]
    with store.count() as requests:
        assert reader.get_many(absent, hashes=hash_keys(absent)) == {}
        assert reader.get(absent[0]) == []
    assert requests.total == 0


def hash_of(key: bytes) -> int:
    """The hash of one key."""
    return int(hash_keys([key])[0])


@pytest.mark.parametrize("has_space", [True, False])
def test_keys_of_a_mapped_file(tmp_path: Path, has_space: bool) -> None:
    """Alone, a few, and many together, near each other and far apart, each has its value; absent ones are settled."""
    store = open_store(str(tmp_path))
    meta = written(store)
    reader = FileReader(store, "x", meta=meta, cache=BlockCache(1 << 24)) if has_space else full_reader(store, meta)
    tail = reader.tail()
    absent = [row.key + b"x" for row in ROWS[::50]] + [b"!", b"~"]
    for _ in range(2):
        assert all(reader.find_value(tail, row.key) == row.value for row in ROWS[::61])
        assert [reader.find_value(tail, key) for key in absent] == [None] * len(absent)
        for some in (ROWS[::900], ROWS[1000:1300], ROWS[::-7], ROWS[:1] * 20):
            keys = [key for row in some for key in (row.key, row.key + b"x")]
            values: dict[bytes, bytes] = {}
            rows: dict[bytes, list[Row]] = {}
            reader.find_many(KeyBatch(keys), sequence=None, rows_by_key=rows, values=values)
            assert (rows, values) == ({}, {row.key: row.value for row in some})
            assert reader.get_many(keys, hashes=hash_keys(keys)) == {row.key: [row] for row in some}
    assert reader.get_many(absent, hashes=hash_keys(absent)) == {}


def test_many_keys_of_an_older_moment(tmp_path: Path) -> None:
    """Of a mapped file, rows that are newer than what is asked for are passed over, far apart as well as near."""
    reader = full_reader(store := open_store(str(tmp_path)), written(store))
    for some in (ROWS[::60], ROWS[2900:3100]):
        values: dict[bytes, bytes] = {}
        rows: dict[bytes, list[Row]] = {}
        reader.find_many(KeyBatch([row.key for row in some]), sequence=3000, rows_by_key=rows, values=values)
        assert values | {key: row.value for key, (row,) in rows.items()} == {
            row.key: row.value for row in some if row.sequence <= 3000
        }


def test_a_filter_is_not_asked_while_nearly_all_keys_are_here(tmp_path: Path) -> None:
    """Of a mapped file; absent keys read as such then, and make it be asked again. By requests it is asked always."""
    store = open_store(str(tmp_path))
    here, absent = [row.key for row in ROWS[::90]], [row.key + b"x" for row in ROWS[::90]]
    for url in (str(tmp_path), f"memory://{uuid.uuid4().hex}"):
        store = open_store(url)
        reader = full_reader(store, written(store))
        for _ in range(9):
            assert reader.get_many(here, hashes=hash_keys(here)).keys() == set(here)
        assert (len(reader.select(KeyBatch(absent))) == len(absent)) == (url == str(tmp_path))
        assert reader.get_many(absent, hashes=hash_keys(absent)) == {}
        assert len(reader.select(KeyBatch(absent))) < len(absent) // 4


def test_neighbours_of_a_mapped_file(tmp_path: Path) -> None:
    """Keys of a few pages have their values, absent ones none; of others, and below newer rows, nothing is said."""
    reader = full_reader(store := open_store(str(tmp_path)), written(store))
    for some in (ROWS[1000:1300], ROWS[59::-1], ROWS[-40:], ROWS[:1] * 20):
        keys = [key for row in some for key in (row.key, row.key + b"x")]
        values: dict[bytes, bytes] = {}
        assert reader.find_neighbours(keys, sequence=None, values=values)
        assert values == {row.key: row.value for row in some}
    assert not reader.find_neighbours([row.key for row in ROWS[::60]], sequence=None, values=values)
    assert not reader.find_neighbours([ROWS[0].key, ROWS[-1].key, ROWS[0].key] * 9, sequence=None, values=values)
    assert not reader.find_neighbours([row.key for row in ROWS[:50]], sequence=len(ROWS) - 2, values=values)


def test_neighbours_of_which_one_is_deleted(tmp_path: Path) -> None:
    """Where a row is not the value of its key, rows decide, and each key reads as it does alone."""
    rows = [*ROWS[:40], Row(ROWS[40].key, 7, int(Kind.DELETE), b"", None), *ROWS[41:80]]
    writer = FileWriter(open_store(str(tmp_path)), "x", file_id="x", options=OPTIONS)
    writer.write(batch_of(rows))
    reader = FileReader(open_store(str(tmp_path)), "x", meta=writer.finish(), cache=BlockCache(0))
    values: dict[bytes, bytes] = {}
    assert not reader.find_neighbours([row.key for row in rows], sequence=None, values=values)
    assert values == {}


@pytest.mark.parametrize("other_bytes", [int(0.95 * (1 << 20)), 0])
def test_a_page_that_does_not_have_the_key_is_not_kept(tmp_path: Path, other_bytes: int) -> None:
    """Absent keys that a filter lets pass, however often, put nothing into a cache, full or not; others do."""
    store = open_store(str(tmp_path))
    cache = BlockCache(1 << 20)
    cache.put("other", 0, b"", size_bytes=other_bytes)
    reader = FileReader(store, "x", meta=written(store), cache=cache)
    tail, count = reader.tail(), len(cache)
    for _ in range(3):
        assert [reader.find_value(tail, row.key + b"x") for row in ROWS[::500]] == [None] * len(ROWS[::500])
        values: dict[bytes, bytes] = {}
        likely = KeyBatch([row.key + b"x" for row in ROWS[::500]])
        reader.find_many(likely, sequence=None, rows_by_key={}, values=values)
        assert values == {}
    assert len(cache) == count
    for _ in range(3):
        assert reader.find_value(tail, ROWS[500].key) == ROWS[500].value
    assert len(cache) == count + 1


@pytest.mark.parametrize("compression", ["lz4", None])
def test_a_get_of_a_large_mapped_file_reads_a_page(tmp_path: Path, compression: Compression | None) -> None:
    """Also while the cache has space: the page is kept if it is compressed. Of one that fits in, the block is kept."""
    store = open_store(str(tmp_path))
    meta, row = written(store, compression=compression), ROWS[500]
    for bytes_max, is_by_block in ((2 * meta.size_bytes - 1, False), (2 * meta.size_bytes, True)):
        cache = BlockCache(bytes_max)
        reader = FileReader(store, "x", meta=meta, cache=cache)
        tail = reader.tail()
        assert cache.has_space
        for _ in range(2):
            assert reader.find_value(tail, row.key) == row.value
            assert reader.get(row.key) == [row]
            assert reader.get_many([row.key] * 20, hashes=hash_keys([row.key] * 20)) == {row.key: [row]}
        numbers = cache.numbers_of(f"{store.root_url}/x")
        assert any(number >= 0 for number in numbers) == is_by_block
        assert len(numbers) == (2 if is_by_block or compression else 1)


def test_a_mapped_page_that_is_not_compressed_is_not_kept(tmp_path: Path) -> None:
    """However often a full cache is asked for its keys, by either way to a single one; they are found."""
    store = open_store(str(tmp_path))
    cache = BlockCache(1 << 20)
    cache.put("other", 0, b"", size_bytes=int(0.95 * (1 << 20)))
    reader = FileReader(store, "x", meta=written(store, compression=None), cache=cache)
    tail, count = reader.tail(), len(cache)
    for row in 3 * ROWS[::500]:
        assert reader.find_value(tail, row.key) == row.value
        assert reader.get(row.key) == [row]
    assert len(cache) == count


LENGTHS = [
    [4_096] * 16,
    [24, 4_100, 65_536, 1, *range(4_000, 4_100)],
    [4_096] * 40 + [65_537],  # too long for one block of a frame
    [4_096] * 15,
]


@pytest.mark.parametrize("reason", ["", "another layout"])
@pytest.mark.parametrize("lengths", LENGTHS, ids=[str(number) for number in range(len(LENGTHS))])
def test_pages_are_compressed_together_as_they_are_alone(
    monkeypatch: pytest.MonkeyPatch, lengths: list[int], reason: str
) -> None:
    """Byte by byte, whatever a page has; also where Arrow's message is not as it is expected."""
    rng = random.Random(len(lengths))
    pages = [rng.randbytes(length) if rng.random() < 0.2 else (b"%09d" * length)[:length] for length in lengths]
    if reason:
        places = page_module._read_buffer_places
        monkeypatch.setattr(page_module, "_read_buffer_places", lambda metadata: places(metadata) + np.array([8, 0]))
    packed = pack_pages(pa.py_buffer(b"".join(pages)), lengths, compression="lz4")
    assert len(packed) == len(pages)
    codec = pa.Codec("lz4_raw")
    for stored, content in zip(packed, pages, strict=True):
        small = codec.compress(content, asbytes=True)
        assert bytes(stored) == (small if len(small) < len(content) - len(content) // 32 else content)


@pytest.mark.parametrize("share", [0, 2, 8])
def test_pages_that_compression_hardly_makes_smaller(tmp_path: Path, share: int) -> None:
    """They are stored as they are, and read like others, alone, together and in blocks, beside some that are not.

    Args:
        share: of the rows, as a divisor, those that compress well.
    """
    rng = random.Random(share)
    rows = [
        put(b"user%08d" % number, number, bytes(300) if share and number // 40 % share == 0 else rng.randbytes(300))
        for number in range(900)
    ]
    store = open_store(str(tmp_path))
    writer = FileWriter(store, "x", file_id="x", options=OPTIONS)
    writer.write(batch_of(rows))
    reader = FileReader(store, "x", meta=writer.finish(), cache=BlockCache(0))
    pages = reader.tail().pages
    assert pages is not None
    table = pages.take(range(len(pages)))
    stored = table["length"] == table["raw_length"]
    assert stored.any()
    assert stored.all() == (share == 0)
    assert [row for block in reader.batches() for row in rows_of_batch(block.batch)] == rows
    assert all(reader.get(row.key) == [row] for row in rows[::17])
    for start in range(0, 900, 70):
        newest: Newest = {}
        rest = None
        keys = [rows[place].key for place in (start, start + 1, start + 90, start + 91) if place < 900]
        for low, bound in pairwise([*keys, None]):
            assert low is not None
            _, place = reader.find_pages(low, 900)
            assert place is not None
            _, rest = reader.take_pages(place, low, bound, newest, rest=rest)
        assert list(newest.items()) == [(row.key, row.value) for row in rows[start:]]


@pytest.mark.parametrize("compression", ["lz4", "zstd", None])
def test_files_of_a_folder_are_mapped(tmp_path: Path, compression: Compression | None) -> None:
    """A file of a folder is opened by one request and read without any, also when its name was deleted."""
    store = open_store(str(tmp_path))
    reader = full_reader(store, written(store, compression=compression))
    store.delete(["x"])
    with store.count() as requests:
        assert all(reader.get(row.key) == [row] for row in ROWS[::97])
        assert [row for block in reader.batches() for row in rows_of_batch(block.batch)] == ROWS
    assert requests.total == 0


def test_a_mapped_file_of_another_length(tmp_path: Path) -> None:
    """A file that is shorter or longer than was written to it is `Corruption` before a byte of its map is touched."""
    store = open_store(str(tmp_path))
    meta = written(store)
    body = (tmp_path / "x").read_bytes()
    for other in (b"", body[:1], body[: meta.tail_offset], body[:-1], body + b"x"):
        (tmp_path / "x").write_bytes(other)
        with pytest.raises(Corruption) as caught:
            FileReader(store, "x", meta=meta, cache=BlockCache(0)).get(ROWS[0].key)
        assert caught.value.facts["path"] == "x"


def offset_of_damage(reader: FileReader, *few: Row) -> int | None:
    """Where a get of these rows, one or some, says that the file is damaged; None: it found them."""
    values: dict[bytes, bytes] = {}
    try:
        if len(few) == 1:
            assert reader.get(few[0].key) == [*few]
        else:
            keys = KeyBatch([row.key for row in few])
            reader.find_many(keys, sequence=None, rows_by_key={}, values=values)
            assert values == {row.key: row.value for row in few}
    except Corruption as error:
        return int(error.facts["offset"])
    return None


@pytest.mark.parametrize("compression", ["lz4", None])
def test_damage_under_a_map(tmp_path: Path, compression: Compression | None) -> None:
    """A changed byte of a mapped file is `Corruption` with the place of its page; other pages answer."""
    store = open_store(str(tmp_path))
    meta = written(store, compression=compression)
    body = (tmp_path / "x").read_bytes()
    for place in range(0, meta.size_bytes, meta.size_bytes // 40):
        (tmp_path / "x").unlink()
        (tmp_path / "x").write_bytes(body[:place] + bytes([body[place] ^ 1]) + body[place + 1 :])
        reader = FileReader(store, "x", meta=meta, cache=BlockCache(0))
        few = ROWS[::251][:15]
        offsets = [offset for row in few if (offset := offset_of_damage(reader, row)) is not None]
        assert offset_of_damage(reader, *few) == next(iter(offsets), None)
        offsets = [offset for row in ROWS[::251] if (offset := offset_of_damage(reader, row)) is not None]
        assert place >= meta.tail_offset or all(place - (1 << 11) < offset <= place for offset in offsets)
        assert len(offsets) <= (1 if place < meta.tail_offset else len(ROWS[::251]))
        with pytest.raises(Corruption):
            list(reader.batches())
        if place < meta.tail_offset:
            keys = [row.key for row in ROWS]
            with pytest.raises(Corruption) as caught:
                full_reader(store, meta).get_many(keys, hashes=hash_keys(keys))
            assert place - (1 << 11) < int(caught.value.facts["offset"]) <= place
            with pytest.raises(Corruption) as caught:
                reader.find_neighbours(keys, sequence=None, values={})
            assert place - (1 << 11) < int(caught.value.facts["offset"]) <= place
            _, pages = reader.find_pages(ROWS[0].key, len(ROWS))
            assert pages is not None
            with pytest.raises(Corruption) as caught:
                reader.take_pages(pages, ROWS[0].key, None, {})
            assert place - (1 << 11) < int(caught.value.facts["offset"]) <= place


def is_made(holder: object, name: str) -> bool:
    """Whether a part that is made when it is first asked for is there."""
    try:
        object.__getattribute__(holder, name)
    except AttributeError:
        return False
    return True


def test_what_nothing_asks_for_is_not_decoded(tmp_path: Path) -> None:
    """The filter's no needs neither index nor pages; scans and a few gets read the directory where it is stored."""
    store = open_store(str(tmp_path))
    reader = FileReader(store, "x", meta=written(store), cache=BlockCache(1 << 20))
    absent = next(b"%d" % number for number in range(1000) if not reader.may_contain(hash_key(b"%d" % number)))
    assert reader.get(absent) == []
    tail = reader.tail()
    assert not is_made(tail, "pages")
    assert sum(block.row_count for block in reader.batches()) == len(ROWS)
    assert reader.get(ROWS[7].key) == [ROWS[7]]
    assert tail.pages is not None
    assert not is_made(tail.pages, "table")
    start, _, length, *_ = tail.pages.entry(len(tail.pages) - 1)
    assert start + length == reader.meta.tail_offset
    with pytest.raises(AttributeError):
        tail.missing  # type: ignore[attr-defined]  # noqa: B018


def loaded_bytes(path: Path) -> int:
    """How much of a mapped file is in the memory of this process, by what the system counts."""
    is_of_file, size_bytes = False, 0
    for line in Path("/proc/self/smaps").read_text().splitlines():
        first, *others = line.split()
        if not first.endswith(":"):
            is_of_file = line.endswith(str(path))
        elif is_of_file and first == "Rss:":
            size_bytes += int(others[0]) << 10
    return size_bytes


@pytest.mark.skipif(not Path("/proc/self/smaps").exists(), reason="only Linux tells what is loaded of a map")
@pytest.mark.parametrize("reverse", [False, True])
def test_a_scan_takes_what_it_has_passed_of_a_map_out_of_memory(tmp_path: Path, reverse: bool) -> None:
    """Of a file of 12 MB not more than half is in memory at any time, and rows are found in it afterwards."""
    store = open_store(str(tmp_path))
    writer = FileWriter(store, "x", file_id="x", options=FileOptions())
    rng = random.Random(1)
    rows = [put(b"%08d" % number, number + 1, rng.randbytes(4000)) for number in range(3000)]
    writer.write(batch_of(rows))
    reader = FileReader(store, "x", meta=writer.finish(), cache=BlockCache(64 << 20))
    loaded, row_count = [], 0
    for number, block in enumerate(reader.batches(reverse=reverse)):
        row_count += block.row_count
        if number % 16 == 0:
            loaded.append(loaded_bytes(tmp_path / "x"))
    assert row_count == len(rows)
    assert max(loaded) < 6 << 20
    assert reader.get(rows[1500].key) == [rows[1500]]
    assert loaded_bytes(tmp_path / "x") > 0


@pytest.mark.skipif(not Path("/proc/self/smaps").exists(), reason="only Linux tells what is loaded of a map")
@pytest.mark.parametrize("start", [None, b"00000100"])
def test_where_many_files_are_merged_none_stays_loaded_while_it_waits(tmp_path: Path, start: bytes | None) -> None:
    """From its first batch on nothing of a file is in memory while its reader holds a batch, nor is its tail."""
    store = open_store(str(tmp_path))
    writer = FileWriter(store, "x", file_id="x", options=FileOptions())
    rng = random.Random(1)
    rows = [put(b"%08d" % number, number + 1, rng.randbytes(4000)) for number in range(1500)]
    writer.write(batch_of(rows))
    reader = FileReader(store, "x", meta=writer.finish(), cache=BlockCache(64 << 20))
    row_count = 0
    for block in reader.batches(start, ahead_bytes=200 << 10):
        row_count += block.row_count
        assert loaded_bytes(tmp_path / "x") == 0
    assert row_count == (len(rows) if start is None else len(rows) - 100)
    assert reader.get(rows[750].key) == [rows[750]]
    assert loaded_bytes(tmp_path / "x") > 0


@pytest.mark.skipif(not Path("/proc/self/smaps").exists(), reason="only Linux tells what is loaded of a map")
def test_open_files_leave_memory_and_stay_open(tmp_path: Path) -> None:
    """Of what was touched of a map nothing is in memory afterwards, and rows are found in it as before."""
    store, cache = open_store(str(tmp_path)), BlockCache(1 << 24)
    reader = FileReader(store, "x", meta=written(store), cache=cache)
    assert all(reader.get(row.key) == [row] for row in ROWS[::50])
    assert loaded_bytes(tmp_path / "x") > 0
    unload_mapped(cache)
    assert loaded_bytes(tmp_path / "x") == 0
    cache.resize(20_000)  # so that blocks go, and are read again
    assert all(reader.get(row.key) == [row] for row in ROWS[::61])


def test_few_cached_blocks_do_not_part_what_a_scan_decodes(tmp_path: Path) -> None:
    """A scan of a mapped file gives the same batches whether or not single blocks of it are cached."""
    store = open_store(str(tmp_path))
    meta = written(store)
    reader = FileReader(store, "x", meta=meta, cache=BlockCache(1 << 20))
    before = [rows_of_batch(block.batch) for block in reader.batches()]
    assert reader.get(ROWS[len(ROWS) // 2].key)
    assert [rows_of_batch(block.batch) for block in reader.batches()] == before


def test_whole_pages_are_decoded_together(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each by itself only where one is damaged, to name it: of a mapped file, and of one that is read by requests."""
    for url in (str(tmp_path), f"memory://{uuid.uuid4().hex}"):
        reader = full_reader(store := open_store(url), written(store))
        keys = [row.key for row in ROWS[::9]]
        monkeypatch.setattr(format, "decode_page", None)
        values: dict[bytes, bytes] = {}
        reader.find_many(KeyBatch(keys), sequence=None, rows_by_key={}, values=values)
        assert len(values) > 10


def test_a_mapped_page_that_contradicts_itself_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where its checksum is right: a key alone and a few at once are `Corruption` with a place."""
    reader = full_reader(store := open_store(str(tmp_path)), written(store))

    def contradict(body: bytes, key: bytes, **_: object) -> bytes:
        raise BadPageError

    monkeypatch.setattr(file_reader, "find_value", contradict)
    acts: list[Callable[[], object]] = [
        lambda: reader.find_value(reader.tail(), ROWS[900].key),
        lambda: reader.find_many(KeyBatch([ROWS[900].key]), sequence=None, rows_by_key={}, values={}),
    ]
    places = []
    for act in acts:
        with pytest.raises(Corruption) as caught:
            act()
        assert caught.value.facts["path"].endswith("x")
        places.append(caught.value.facts["offset"])
    assert places[0] == places[1] > 0
