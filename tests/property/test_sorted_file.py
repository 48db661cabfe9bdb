"""Laws of the sorted file: what is read is what was written, by any way of reading, and damage is always noticed."""

from __future__ import annotations

import bisect
import itertools
import json
import random
import struct
import uuid
from collections.abc import Callable, Sequence

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from xxhash import xxh3_64_intdigest

from lakebed.errors import Corruption, UnsupportedFormat
from lakebed.lsm.block import Compression
from lakebed.lsm.cache import BlockCache
from lakebed.lsm.file_id import mint_file_id
from lakebed.lsm.file_reader import FileReader
from lakebed.lsm.file_writer import FileOptions
from lakebed.lsm.files import FileStore
from lakebed.lsm.filter import BITS_PER_KEY, Filter, LevelsFilter, build_filter, hash_key, hash_keys
from lakebed.lsm.memtable import batch_of
from lakebed.lsm.model import FileMeta, Kind, Row
from lakebed.lsm.row_merge import rows_of_batch
from lakebed.objects import open_store
from lakebed.objects.port import ObjectStore
from lakebed.runtime import Environment
from lakebed.testing import seed_count

ENVIRONMENT = Environment()


def new_store() -> ObjectStore:
    """A memory store of its own; files lie in it under their ids."""
    return open_store(f"memory://{uuid.uuid4().hex}")


def new_files(options: FileOptions, *, store: ObjectStore | None = None, cache_bytes: int = 1 << 20) -> FileStore:
    """Files in a store."""
    cache = BlockCache(cache_bytes)
    return FileStore(store or new_store(), path_of=str, cache=cache, options=options, environment=ENVIRONMENT)


def write(files: FileStore, rows: Sequence[Row], *, cuts: Sequence[int] = ()) -> FileMeta:
    """A file of these rows, written in pieces."""
    writer = files.writer(mint_file_id(environment=ENVIRONMENT))
    for low, high in itertools.pairwise([0, *sorted(min(cut, len(rows)) for cut in cuts), len(rows)]):
        writer.write(batch_of(rows[low:high]))
    assert writer.row_count == len(rows)
    return writer.finish()


def scanned(reader: FileReader, start: bytes | None = None, end: bytes | None = None, **how: int) -> list[Row]:
    """All rows of a range, by blocks; backwards the blocks are turned round again."""
    blocks = list(reader.batches(start, end, **how))
    assert all(block.row_count for block in blocks)
    return [row for block in (reversed(blocks) if how.get("reverse") else blocks) for row in rows_of_batch(block.batch)]


def expected_of(rows: Sequence[Row], key: bytes, sequence: int | None = None) -> list[Row]:
    """What `FileReader.get` promises, row by row."""
    items: list[Row] = []
    for row in rows:
        if row.key == key and (sequence is None or row.sequence <= sequence):
            items.append(row)
            if row.kind != Kind.MERGE:
                break
    return items


KEYS = st.one_of(st.binary(min_size=1, max_size=3), st.sampled_from([b"a", b"a\0", b"a\0\0", b"\xff" * 9, b"k" * 40]))


@st.composite
def sorted_rows(draw: st.DrawFn) -> list[Row]:
    """At least one row, of every kind, with several versions of some keys."""
    numbers = draw(st.lists(st.tuples(KEYS, st.integers(0, 2**64 - 1)), min_size=1, max_size=60, unique=True))
    rows = []
    for key, sequence in sorted(numbers, key=lambda pair: (pair[0], -pair[1])):
        kind = draw(st.sampled_from([Kind.PUT, Kind.PUT, Kind.MERGE, Kind.DELETE]))
        value = b"" if kind == Kind.DELETE else draw(st.one_of(st.binary(max_size=9), st.just(b"v" * 300)))
        expires = None if kind == Kind.DELETE else draw(st.sampled_from([None, None, None, 0, -1, 2**62]))
        rows.append(Row(key, sequence, int(kind), value, expires))
    return rows


OPTIONS = st.builds(
    FileOptions,
    block_bytes=st.sampled_from([1, 60, 200, 1 << 16]),
    page_bytes=st.sampled_from([1, 50, 400, 4096]),
    bits_per_key=st.sampled_from([0, 10]),
    compression=st.sampled_from([None, "lz4", "zstd"]),
)


@settings(max_examples=seed_count(20), deadline=None)
@given(rows=sorted_rows(), options=OPTIONS, cuts=st.lists(st.integers(0, 60), max_size=4), data=st.data())
def test_every_way_of_reading_gives_what_was_written(
    rows: list[Row], options: FileOptions, cuts: list[int], data: st.DataObject
) -> None:
    """Scans of any range in both directions, and lookups of one and of many keys at any sequence, equal the model."""
    files = new_files(options, cache_bytes=data.draw(st.sampled_from([0, 1 << 20])))
    meta = write(files, rows, cuts=cuts)
    reader = files.reader(meta)
    assert scanned(reader) == rows
    assert (meta.first_key, meta.last_key, meta.row_count) == (rows[0].key, rows[-1].key, len(rows))
    assert (meta.min_sequence, meta.max_sequence) == (min(r.sequence for r in rows), max(r.sequence for r in rows))
    kinds = [row.kind for row in rows]
    assert (meta.tombstone_count, meta.merge_count) == (kinds.count(Kind.DELETE), kinds.count(Kind.MERGE))
    assert meta.expiring_count == sum(row.expires_at_ms is not None for row in rows)

    here = sorted({row.key for row in rows})
    near = sorted({*here, *(key + b"\0" for key in here), *(key[:-1] for key in here if key[:-1]), b"\0"})
    sequences = [None, 0, *data.draw(st.lists(st.sampled_from([row.sequence for row in rows]), max_size=3))]
    for sequence in sequences:
        expected = {key: expected_of(rows, key, sequence) for key in near}
        assert {key: reader.get(key, sequence=sequence) for key in near} == expected
        many = reader.get_many(near, hashes=hash_keys(near), sequence=sequence)
        assert many == {key: result for key, result in expected.items() if result}

    start, end = (data.draw(st.one_of(st.none(), st.sampled_from(near))) for _ in range(2))
    inside = [row for row in rows if (start is None or start <= row.key) and (end is None or row.key < end)]
    ahead_bytes = data.draw(st.sampled_from([0, 500, 1 << 20]))
    assert scanned(reader, start, end, ahead_bytes=ahead_bytes) == inside
    assert scanned(reader, start, end, ahead_bytes=ahead_bytes, reverse=True, fill_cache=True) == inside
    assert scanned(reader, start, end, ahead_bytes=ahead_bytes) == inside


@settings(max_examples=seed_count(20), deadline=None)
@given(rows=sorted_rows(), options=OPTIONS)
def test_flags_of_blocks_are_true(rows: list[Row], options: FileOptions) -> None:
    """A plain block has only puts that never end, of keys that are once in the file; the other flags likewise."""
    files = new_files(options)
    versions = {key: len(list(group)) for key, group in itertools.groupby(rows, key=lambda row: row.key)}
    for block in files.reader(write(files, rows)).batches():
        inside = rows_of_batch(block.batch)
        assert block.plain == all(
            row.kind == Kind.PUT and row.expires_at_ms is None and versions[row.key] == 1 for row in inside
        )
        assert block.tombstones_only == all(row.kind == Kind.DELETE for row in inside)
        bounds = (min(row.sequence for row in inside), max(row.sequence for row in inside))
        assert (block.min_sequence, block.max_sequence) == bounds
        for key in {row.key + tail for row in inside for tail in (b"", b"\0")} | {b"\0"}:
            assert block.find(key) == sum(row.key < key for row in inside)


@settings(max_examples=seed_count(15), deadline=None)
@given(keys=st.sets(st.binary(min_size=1, max_size=40), min_size=1, max_size=500), bits=st.integers(1, 20))
def test_filter_has_no_false_negatives(keys: set[bytes], bits: int) -> None:
    """Every key that was put into a filter is found in it; asked one by one or together, it says the same."""
    hashes = hash_keys(sorted(keys))
    asked = Filter(build_filter(hashes, bits_per_key=bits))
    assert all(asked.may_contain(number) for number in hashes.tolist())
    others = hash_keys([key + b"?" for key in keys])
    each = [asked.may_contain(number) for number in others.tolist()]
    passed = [place for place, may_be_there in enumerate(each) if may_be_there]
    assert asked.select(others).tolist() == passed
    # So many that they are asked in the other way.
    assert asked.select(np.tile(others, 520)).tolist() == [
        place + len(others) * turn for turn in range(520) for place in passed
    ]
    assert Filter(b"").select(others).tolist() == list(range(len(others)))


@settings(max_examples=seed_count(15), deadline=None)
@given(
    keys=st.lists(st.binary(min_size=1, max_size=20), min_size=5, max_size=300, unique=True),
    file_counts=st.lists(st.integers(1, 5), min_size=1, max_size=3),
    asked_count=st.sampled_from([1, 40, 1200]),
    seed=st.integers(0, 9),
)
def test_filters_of_levels_say_what_each_says(
    keys: list[bytes], file_counts: list[int], asked_count: int, seed: int
) -> None:
    """Of a key that of the file with the smallest last key that is not below it; of a larger one that of the last."""
    chance = random.Random(seed)
    levels = []
    for file_count in file_counts:
        some = sorted(chance.sample(keys, 5)) if chance.random() < 0.5 else sorted(keys)
        bounds = [len(some) * number // file_count for number in range(file_count + 1)]
        parts = [some[low:high] for low, high in itertools.pairwise(bounds)]
        bodies = [build_filter(hash_keys(part), bits_per_key=10) for part in parts]
        # Each at another address, odd ones among them, as filters stand in files.
        filters = [Filter(memoryview(bytes(number) + body)[number:]) for number, body in enumerate(bodies)]
        levels.append(([part[-1] for part in parts], filters))
    asked = [chance.choice(keys) + chance.choice([b"", b"\0", b"\xff"]) for _ in range(asked_count)]
    passed = LevelsFilter(levels).select(asked)
    assert len(passed) == len(levels)
    for places, (last_keys, filters) in zip(passed, levels, strict=True):
        expected = []
        for place, key in enumerate(asked):
            number = next((n for n, last_key in enumerate(last_keys) if key <= last_key), len(last_keys) - 1)
            if filters[number].may_contain(hash_key(key)):
                expected.append(place)
        assert places == expected


@pytest.mark.parametrize("file_count", [256, 257, 700])
def test_filters_of_many_files_of_a_level_say_what_each_says(file_count: int) -> None:
    """Of as many files as a byte counts, and of more, the one in whose range a key is says whether it may be there."""
    keys = [b"%05d" % (3 * number) for number in range(file_count)]
    filters = [Filter(build_filter(hash_keys([key]), bits_per_key=10)) for key in keys]
    asked = [*keys, *(b"%05d" % number for number in range(3 * file_count + 9))]
    expected = [
        place
        for place, key in enumerate(asked)
        if filters[min(bisect.bisect_left(keys, key), file_count - 1)].may_contain(hash_key(key))
    ]
    assert LevelsFilter([(keys, filters)]).select(asked) == [expected]
    (places,) = LevelsFilter([(keys, filters)]).select(keys[-100:])
    assert places == list(range(100))


@pytest.mark.parametrize(
    ("bits", "least", "most", "size_bytes"), [(10, 1, 1.5, 125_024), (BITS_PER_KEY, 0.3, 0.6, 150_016)]
)
def test_filter_rarely_lies(tell: Callable[[str], None], bits: int, least: float, most: float, size_bytes: int) -> None:
    """With twelve bits a key, the default, about one absent key in 200 is said to be there; with ten, one in 80."""
    hashes = np.random.default_rng(1).integers(0, 2**64, 200_000, np.uint64)
    asked = Filter(build_filter(hashes[:100_000], bits_per_key=bits))
    wrong = sum(asked.may_contain(number) for number in hashes[100_000:].tolist())
    tell(f"filter at {bits} bits a key: {wrong / 1000:.2f} % false positives")
    assert least < wrong / 1000 < most
    assert asked.size_bytes == size_bytes


# Damage

ROWS = [
    Row(b"a", 9, int(Kind.MERGE), b"+1", None),
    Row(b"a", 8, int(Kind.MERGE), b"+2", 50),
    Row(b"a", 7, int(Kind.PUT), b"one" * 30, None),
    Row(b"b", 3, int(Kind.DELETE), b"", None),
    Row(b"c", 5, int(Kind.PUT), b"", 77),
    Row(b"d", 6, int(Kind.PUT), b"plain", None),
    Row(b"e", 4, int(Kind.PUT), b"plain too", None),
]


def read_damaged(body: bytes, meta: FileMeta, store: ObjectStore) -> None:
    """Read everything from these bytes by every way: lookups are right or fail as they should, scans fail."""
    store.put(meta.id, body)
    seen: list[object] = []
    reads: list[Callable[[FileReader], object]] = [
        *(lambda reader, key=row.key: reader.get(key) == expected_of(ROWS, key) for row in ROWS),
        lambda reader: scanned(reader) == ROWS,
        lambda reader: scanned(reader, reverse=True) == ROWS,
    ]
    for read in reads:
        reader = FileReader(store, meta.id, meta=meta, cache=BlockCache(0))
        try:
            assert read(reader), "a wrong answer"
            seen.append("right")
        except Corruption as error:
            seen.append((error.facts["path"], 0 <= error.facts["offset"] <= meta.size_bytes))
    assert seen[-1] == seen[-2] == (meta.id, True), "a scan saw nothing"
    assert set(seen) <= {(meta.id, True), "right"}


@pytest.mark.parametrize("compression", ["lz4", pytest.param(None, marks=pytest.mark.long)])
def test_every_damaged_byte_is_noticed(compression: Compression | None, tell: Callable[[str], None]) -> None:
    """With any byte changed, dropped or cut off: `Corruption` with path and offset, or a right answer.

    Without compression in the long tests: a block is checked before it is decompressed.
    """
    store = new_store()
    files = new_files(FileOptions(block_bytes=110, compression=compression), store=store)
    meta = write(files, ROWS)
    body = bytes(store.get(meta.id))
    assert files.reader(meta).block_count >= 4
    rng = random.Random(1)
    for place in range(len(body)):
        flipped = bytes([body[place] ^ (1 << rng.randrange(8))])
        read_damaged(body[:place] + flipped + body[place + 1 :], meta, store)
        read_damaged(body[:place] + body[place + 1 :], meta, store)
        read_damaged(body[:place], meta, store)
    tell(f"each of {len(body)} bytes of a sorted file changed, dropped and cut off ({compression or 'not compressed'})")


@pytest.mark.parametrize("field", [name for name in FileMeta.__struct_fields__ if name != "through_sequence"])
def test_a_file_is_checked_against_what_a_version_remembers(field: str) -> None:
    """A meta that describes another file is `Corruption`, in any differing field but the ceiling."""
    store = new_store()
    meta = write(new_files(FileOptions(), store=store), ROWS)
    value = getattr(meta, field)
    other: object = value + 1 if isinstance(value, int) else value + (b"x" if isinstance(value, bytes) else "x")
    wrong = msgspec.structs.replace(meta, **{field: other})
    reader = FileReader(store, meta.id, meta=wrong, cache=BlockCache(0))
    with pytest.raises(Corruption):
        reader.tail()


@pytest.mark.parametrize(
    ("change", "said"),
    [({"min_reader": 3, "format": 4}, "format 4"), ({"features": ["secrecy"]}, "secrecy"), ({"min_reader": 99}, "99")],
)
def test_a_newer_file_is_refused_as_such(change: dict[str, object], said: str) -> None:
    """A format or feature that this code does not know is `UnsupportedFormat`, though the footer has other fields."""
    store = new_store()
    files = new_files(FileOptions(), store=store)
    meta = write(files, ROWS)
    body = bytes(store.get(meta.id))
    length, _, magic = struct.unpack("<IQ8s", body[-20:])
    footer = json.loads(body[-20 - length : -20]) | change
    del footer["index"]
    text = json.dumps(footer).encode()
    offset = len(body) - 20 - length
    trailer = struct.pack("<IQ8s", len(text), xxh3_64_intdigest(text, seed=offset), magic)
    newer = body[:offset] + text + trailer
    store.put(meta.id, newer)
    with pytest.raises(UnsupportedFormat, match=said):
        files.reader(msgspec.structs.replace(meta, size_bytes=len(newer))).tail()
