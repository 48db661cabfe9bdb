"""Checksums that clients of S3 send with a body: CRC32, CRC32C, CRC64NVME, SHA-1, SHA-256. Pure.

Owns: their names and forms, and the two that Python's library lacks: CRC32C and CRC64NVME. numpy computes these in many
lanes at once, and joins the lanes, which is possible because a CRC is linear. Cost: about 6 ms a MiB.
"""

from __future__ import annotations

import hashlib
import zlib
from collections.abc import Callable
from functools import cache
from typing import Final, Protocol

import numpy as np
import numpy.typing as npt
from typing_extensions import Buffer

_LANE_BYTES: Final = 256
"""Bytes of one lane. A shorter body is computed byte by byte."""

Words = npt.NDArray[np.uint64]


class Checksum(Protocol):
    """A running checksum."""

    def update(self, piece: Buffer, /) -> None:
        """Add the next bytes."""

    def digest(self) -> bytes:
        """Return the checksum of all bytes so far, as its header has it before base64."""


class _Crc32:
    """CRC32 by zlib."""

    def __init__(self) -> None:
        self._value = 0

    def update(self, piece: Buffer, /) -> None:
        self._value = zlib.crc32(piece, self._value)

    def digest(self) -> bytes:
        return self._value.to_bytes(4, "big")


@cache
def _table(polynomial: int) -> Words:
    """Return the state after each byte, for a reflected polynomial and thus reflected checksums."""
    values = np.arange(256, dtype=np.uint64)
    for _ in range(8):
        values = np.where(
            values & np.uint64(1), (values >> np.uint64(1)) ^ np.uint64(polynomial), values >> np.uint64(1)
        )
    return values


@cache
def _shift(polynomial: int, byte_count_log2: int) -> Words:
    """Return the state that each bit of a state becomes after ``2 ** byte_count_log2`` zero bytes."""
    if byte_count_log2 == 0:
        bits = np.uint64(1) << np.arange(64, dtype=np.uint64)
        return np.asarray(_table(polynomial)[bits & np.uint64(0xFF)] ^ (bits >> np.uint64(8)), dtype=np.uint64)
    half = _shift(polynomial, byte_count_log2 - 1)
    return _apply(half, half)


def _apply(matrix: Words, states: Words) -> Words:
    """Advance each state by a matrix of `_shift`."""
    new_states = np.zeros_like(states)
    for bit in range(64):
        new_states ^= np.where((states >> np.uint64(bit)) & np.uint64(1), matrix[bit], np.uint64(0))
    return new_states


class LinearCrc:
    """A reflected checksum whose state begins and ends inverted.

    Args:
        polynomial: reflected.
        size_bytes: size of the checksum.
    """

    def __init__(self, polynomial: int, *, size_bytes: int) -> None:
        self._polynomial = polynomial
        self._size_bytes = size_bytes
        self._mask = (1 << 8 * size_bytes) - 1
        self._state = self._mask

    def update(self, piece: Buffer, /) -> None:
        """Add the next bytes."""
        values = np.frombuffer(memoryview(piece), np.uint8)
        count = len(values) // _LANE_BYTES
        if count > 1:
            lanes = 1 << (count.bit_length() - 1)  # a power of two, because lanes are joined in pairs
            while lanes > 1:
                self._add_lanes(values[: lanes * _LANE_BYTES].reshape(lanes, _LANE_BYTES))
                values = values[lanes * _LANE_BYTES :]
                count -= lanes
                lanes = 1 << (count.bit_length() - 1) if count else 0
        table, state = self._bytes_table(), self._state
        for value in values.tobytes():
            state = table[(state ^ value) & 0xFF] ^ (state >> 8)
        self._state = state

    def _bytes_table(self) -> tuple[int, ...]:
        return _plain_table(self._polynomial)

    def _add_lanes(self, lanes: npt.NDArray[np.uint8]) -> None:
        table = _table(self._polynomial)
        states = np.zeros(len(lanes), np.uint64)
        states[0] = self._state
        for column in np.ascontiguousarray(lanes.T):
            states = table[(states ^ column) & np.uint64(0xFF)] ^ (states >> np.uint64(8))
        log2 = _LANE_BYTES.bit_length() - 1
        while len(states) > 1:
            states = _apply(_shift(self._polynomial, log2), states[0::2]) ^ states[1::2]
            log2 += 1
        self._state = int(states[0])

    def digest(self) -> bytes:
        """Return the checksum of all bytes so far."""
        return (self._state ^ self._mask).to_bytes(self._size_bytes, "big")


@cache
def _plain_table(polynomial: int) -> tuple[int, ...]:
    return tuple(_table(polynomial).tolist())


_MAKERS: Final[dict[str, Callable[[], Checksum]]] = {
    "crc32": _Crc32,
    "crc32c": lambda: LinearCrc(0x82F63B78, size_bytes=4),
    "crc64nvme": lambda: LinearCrc(0x9A6C9329AC4BC9B5, size_bytes=8),
    "sha1": lambda: hashlib.sha1(usedforsecurity=False),
    "sha256": hashlib.sha256,
}

HEADER: Final = "x-amz-checksum-"
"""Prefix of the header, or of the trailer, of a checksum."""


_NO_CHECKSUMS: Final = frozenset(HEADER + name for name in ("algorithm", "mode", "type"))


def is_checksum(header: str) -> bool:
    """Whether a header or trailer, in lower case, states a checksum of a known or unknown kind."""
    return header.startswith(HEADER) and header not in _NO_CHECKSUMS


def new_checksum(name: str) -> Checksum | None:
    """Return a new checksum by its name in lower case; None: S3 has no checksum of this name."""
    maker = _MAKERS.get(name)
    return None if maker is None else maker()
