"""Finding keys in a block: the first time, when it was searched before, and in a run of its rows."""

from __future__ import annotations

import gc
import random
import tracemalloc

import pyarrow as pa
import pytest
from xxhash import xxh3_64_intdigest

from lakebed.lsm.block import PLAIN, Block, BlockEntry, decode_block
from lakebed.lsm.key_batch import KeyBatch
from lakebed.lsm.memtable import batch_of
from lakebed.lsm.model import ROWS_DECIDE, Kind, Row


def stored(rows: list[Row], *, flags: int = 0) -> Block:
    """A block of these rows, as it comes out of a file of version 1."""
    message = batch_of(rows).serialize()
    view = memoryview(pa.Codec("lz4_raw").compress(message)).cast("B")
    entry = BlockEntry(0, len(view), len(rows), xxh3_64_intdigest(view, seed=0), 0, 1 << 60, flags, 1, message.size)
    return decode_block(view, entry=entry, path="sst/x")


def mixed_rows(count: int) -> list[Row]:
    """Sorted rows of keys of many lengths, with up to four versions each, of every kind, some of which end."""
    rng = random.Random(count)
    rows = []
    for key in sorted({rng.randbytes(rng.randrange(1, 20)) for _ in range(count)}):
        for sequence in sorted(rng.sample(range(1, 1000), rng.randrange(1, 5)), reverse=True):
            kind = rng.choice(list(Kind))
            end = rng.choice([None, None, 5])
            rows.append(Row(key, sequence, int(kind), b"" if kind == Kind.DELETE else rng.randbytes(9), end))
    return rows


@pytest.mark.parametrize("count", [1, 2, 15, 16, 17, 33, 200])
def test_finding_again_and_in_runs(count: int) -> None:
    """A key is found at the same place by the first search, the later ones, and in any run of the rows."""
    rows = mixed_rows(count)
    asked = [key + tail for key in {row.key for row in rows} for tail in (b"", b"\0")] + [b"\0", b"\xff" * 30]
    whole = stored(rows)
    for start, end in (
        (0, len(rows)),
        (len(rows) // 3, len(rows)),
        (0, len(rows) // 2 + 1),
        (len(rows) - 1, len(rows)),
    ):
        inside = rows[start:end]
        block = whole.slice(start, end)
        for key in asked:
            expected = sum(row.key < key for row in inside)
            versions = [row for row in inside if row.key == key]
            newest = versions[
                : 1 + next((at for at, row in enumerate(versions) if row.kind != Kind.MERGE), len(versions))
            ]
            fresh = Block(whole.batch, flags=0, min_sequence=0, max_sequence=0).slice(start, end)
            assert fresh.find(key) == block.find(key) == block.find(key) == expected
            result, unfinished = block.rows_of(key)
            assert result == newest
            assert unfinished == (
                not (newest and newest[-1].kind != Kind.MERGE) and all(row.key <= key for row in inside)
            )
            assert block.rows_of(key, sequence=0)[0] == []


@pytest.mark.parametrize("count", [1, 16, 17, 200])
def test_values_of_plain_blocks(count: int) -> None:
    """The value of a key is found by the first search and by later ones, alone and with others, and in runs of rows."""
    rng = random.Random(count)
    keys = sorted({rng.choice([b"", b"a" * 9]) + rng.randbytes(rng.randrange(1, 12)) for _ in range(count)})
    rows = [Row(key, 5 + number, int(Kind.PUT), rng.randbytes(7), None) for number, key in enumerate(keys)]
    whole = stored(rows, flags=PLAIN)
    for start, end in ((0, len(rows)), (len(rows) // 3, len(rows)), (len(rows) - 1, len(rows))):
        values = {row.key: row.value for row in rows[start:end]}
        asked = [key + tail for key in keys for tail in (b"", b"\0")] + [key[:-1] for key in keys if key[:-1]]
        asked += [b"\0", b"\xff" * 30] * 16
        for _ in range(2):
            block = Block(whole.batch, flags=PLAIN, min_sequence=5, max_sequence=999).slice(start, end)
            assert block.find_value(asked[0]) == values.get(asked[0])
        several: dict[bytes, bytes] = {}
        undecided = block.find_values(KeyBatch(asked), several)
        assert several == {key: values[key] for key in asked if key in values and key not in undecided}
        for key in asked:
            # A key whose bytes are in another at or before its place is left to the rows.
            value = block.find_value(key)
            assert value == values.get(key) or (value is ROWS_DECIDE and (len(key) < 9 or key not in values))
            assert value is ROWS_DECIDE or key not in undecided
        assert len(several) > len(values) // 2
        assert block.find_values(KeyBatch(asked), {}, sequence=6) == asked
    mixed = stored(rows)
    assert mixed.find_values(KeyBatch(keys), {}) == keys
    assert mixed.find_value(keys[0]) is ROWS_DECIDE


def test_keys_that_differ_late() -> None:
    """Keys of which eight bytes are equal, or that are a beginning of each other, are found among many."""
    keys = sorted({b"common" + b"\0" * size + tail for size in range(12) for tail in (b"", b"a", b"ab", b"b" * 9)})
    rows = [Row(key, 5, int(Kind.PUT), b"value of " + key, None) for key in keys]
    block = stored(rows, flags=PLAIN)
    asked = keys + [key + b"\0" for key in keys] + [b"commo", b"common" + b"c" * 20, b"z", b"\0"]
    values: dict[bytes, bytes] = {}
    undecided = block.find_values(KeyBatch(asked), values)
    for key in undecided:
        values |= {row.key: row.value for row in block.rows_of(key)[0]}
    assert values == {row.key: row.value for row in rows}


def test_what_a_search_makes_is_accounted() -> None:
    """A block that was searched often holds no more than it says, and no less than two thirds of it."""
    rows = [Row(b"%016d" % number, number, int(Kind.PUT), b"v" * 20, None) for number in range(1200)]
    pool = pa.default_memory_pool()
    stored(rows, flags=PLAIN).find(b"x")  # what is made once a process
    gc.collect()  # what other tests left is not freed meanwhile
    tracemalloc.start()
    try:
        pin, before = tracemalloc.get_traced_memory()[0], pool.bytes_allocated()
        blocks = [stored(rows, flags=PLAIN) for _ in range(20)]
        for block in blocks:
            for row in rows[::100]:
                assert block.rows_of(row.key) == ([row], False)
        pin = tracemalloc.get_traced_memory()[0] - pin + pool.bytes_allocated() - before
    finally:
        tracemalloc.stop()
    said = sum(block.size_bytes for block in blocks)
    assert 2 / 3 * said < pin < said, (pin, said)
