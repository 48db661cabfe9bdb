"""Roaring bitmaps: bytes that the reference library wrote, round trips, and damage."""

from __future__ import annotations

import random

import numpy as np
import pytest

from lakebed.table.codec.avro_container import DamageError
from lakebed.table.codec.roaring import decode_positions, decode_positions_64, encode_positions

REFERENCE: dict[str, tuple[list[int], str, bool]] = {
    "empty": ([], "3a30000000000000", False),
    "one": ([7], "3a3000000100000000000000100000000700", False),
    "three in two containers": (
        [1, 5, 70_000],
        "3a300000020000000000010001000000180000001c000000010005007011",
        False,
    ),
    "runs without offsets": (
        [*range(10, 300), *range(1_000, 9_000), 65_535],
        "3b300000010000622003000a002101e8033f1fffff0000",
        True,
    ),
    "runs in five containers": (
        [*range(5), *range(65_530, 262_150)],
        "3b3004001f00000a000100ffff0200ffff0300ffff040005002d000000370000003d0000004300000049000000020000000400faff05"
        "0001000000ffff01000000ffff01000000ffff010000000500",
        True,
    ),
}
"""What CRoaring (pyroaring 1.2) wrote: the set, its bytes as hex, and whether these have runs."""


@pytest.mark.parametrize("name", REFERENCE)
def test_bytes_of_the_reference_library(name: str) -> None:
    """Arrays, bits and runs, with and without offsets, are read; what has no runs is written byte for byte."""
    pin, text, has_runs = REFERENCE[name]
    body = bytes.fromhex(text)
    positions = np.array(sorted(pin), np.int64)
    assert np.array_equal(decode_positions(body), positions)
    if not has_runs:
        assert encode_positions(positions) == body


def sample(rng: random.Random) -> set[int]:
    """Dense, sparse and empty sets."""
    kind = rng.randrange(4)
    if kind == 0:
        return set(rng.sample(range(200_000), rng.randrange(300)))
    if kind == 1:
        return set(range(rng.randrange(1000), rng.randrange(1000, 200_000)))
    if kind == 2:
        return {rng.randrange(2**31) for _ in range(rng.randrange(500))}
    return set(rng.sample(range(70_000), rng.randrange(5_000, 60_000)))


def test_round_trips() -> None:
    """Every set is read as it was written; the 64-bit format wraps the same bytes."""
    rng = random.Random(5)
    for _ in range(40):
        positions = np.array(sorted(sample(rng)), np.int64)
        body = encode_positions(positions)
        assert np.array_equal(decode_positions(body), positions)
        wide = (2).to_bytes(8, "little") + b"".join(key.to_bytes(4, "little") + body for key in (0, 3))
        assert np.array_equal(decode_positions_64(wide), np.concatenate([positions, positions + (3 << 32)]))


def test_damage() -> None:
    """Bytes that end too early, go on or have a wrong header are an error, and never take much memory."""
    body = encode_positions(np.arange(0, 100_000, 3))
    for end in range(0, len(body), 37):
        with pytest.raises(DamageError):
            decode_positions(body[:end])
    with pytest.raises(DamageError):
        decode_positions(body + b"\0")
    rng = random.Random(6)
    for _ in range(300):
        broken = bytearray(body)
        broken[rng.randrange(24)] ^= 1 << rng.randrange(8)
        try:
            decode_positions(broken)
        except DamageError:
            continue
    with pytest.raises(DamageError):
        decode_positions(b"\x3a\x30\0\0" + b"\xff\xff\xff\x7f")
    with pytest.raises(DamageError):
        decode_positions_64(b"\xff" * 8)
    with pytest.raises(DamageError):
        decode_positions(b"")


@pytest.mark.parametrize("high", [0x7FFF_FFFF, 0x8000_0000, 0xFFFF_FFFF])
def test_positions_beyond_63_bits(high: int) -> None:
    """An upper half that no position has is damage, and not another number."""
    body = (1).to_bytes(8, "little") + high.to_bytes(4, "little") + encode_positions(np.array([5], np.int64))
    if high < 1 << 31:
        assert decode_positions_64(body).tolist() == [(high << 32) + 5]
    else:
        with pytest.raises(DamageError):
            decode_positions_64(body)


def test_a_full_container_is_written_as_bits() -> None:
    """The bytes of a vector that marks every row stay what they were: no runs."""
    body = encode_positions(np.arange(1 << 16))
    assert body == bytes.fromhex("3a300000010000000000ffff10000000") + b"\xff" * 8192
