"""The rows of the key-value store in memory: sorted blocks against a dictionary."""

from __future__ import annotations

import random

import pytest

from worlds import memory_key_value as memory
from worlds.memory_key_value import MemoryKeyValue, MemorySpace

STEPS = 300


@pytest.mark.parametrize("seed", range(6))
def test_blocks_are_a_dictionary(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Puts and deletes of few and of many keys, in blocks of any size: scans, gets and older snapshots all agree."""
    rng = random.Random(seed)
    monkeypatch.setattr(memory, "_BLOCK_ROW_COUNT_MAX", rng.choice([2, 3, 16, 512]))
    key_value, model, taken = MemoryKeyValue(), dict[bytes, bytes](), []

    def some_keys(count: int) -> list[bytes]:
        return [bytes(rng.choices(b"\x00ab\xff", k=rng.randint(1, 5))) for _ in range(count)]

    for step in range(STEPS):
        value = b"%d" % step
        puts, deletes = some_keys(rng.choice([0, 1, 3, 60])), some_keys(rng.choice([0, 1, 3, 60]))
        if rng.random() < 0.05:
            deletes = list(model)
        key_value.write([(key, value) for key in puts], deletes)
        for key in deletes:
            model.pop(key, None)
        model.update(dict.fromkeys(puts, value))
        if step % 10 == 0:
            taken.append((key_value.snapshot(), dict(model)))
        snapshot, then = rng.choice(taken)
        start, end = sorted(some_keys(2))
        assert list(snapshot.scan()) == sorted(then.items())
        assert list(snapshot.scan(start, end)) == sorted((k, v) for k, v in then.items() if start <= k < end)
        assert list(snapshot.scan(start)) == sorted((k, v) for k, v in then.items() if start <= k)
        asked = some_keys(5)
        assert snapshot.get_many(asked) == [then.get(key) for key in asked]
        assert [key_value.get(key) for key in asked] == [model.get(key) for key in asked]


def test_a_snapshot_copies_no_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    """A snapshot shares every block, and a write afterwards replaces just the one that it touches."""
    monkeypatch.setattr(memory, "_BLOCK_ROW_COUNT_MAX", 8)
    space = MemorySpace()
    key_value = MemoryKeyValue(space)
    key_value.put_columns([b"k%03d" % number for number in range(100)], [b"v"] * 100)
    before = space.rows()
    assert space.rows() is before
    key_value.set(b"k050", b"new")
    after = space.rows()
    changed = [block for block, other in zip(before.blocks, after.blocks, strict=True) if block is not other]
    assert len(changed) == 1


def test_handles_share_a_space() -> None:
    """Two handles on one space see each other's writes at once; closing one leaves the other."""
    space = MemorySpace()
    first, second = MemoryKeyValue(space), MemoryKeyValue(space)
    first.set(b"k", b"1")
    first.close()
    second.set_if(b"k", b"2", expected=b"1")
    assert second.get(b"k") == b"2"
