"""Sets of row numbers as bytes: the portable format of Roaring bitmaps. Pure.

Owns: `encode_positions`, and `decode_positions` for 32-bit and `decode_positions_64` for 64-bit bitmaps. A bitmap is
cut by the upper 16 bits of its values into containers; a container holds the lower 16 bits as a sorted array, as 8 KiB
of bits, or as runs. Little-endian. DO NOT CHANGE: on disk, shared with other clients.

Invariants: positions are int64, ascending, each once. Damaged bytes raise `DamageError` and never yield other sets
silently where the structure shows the damage; callers also compare a checksum. No library is needed: the format is
small, numpy decodes it to arrays at once, and bytes of other clients never reach a parser that trusts them.
"""

from __future__ import annotations

from typing import Final

import numpy as np
import numpy.typing as npt
from typing_extensions import Buffer

from lakebed.table.codec.avro_container import DamageError

Positions = npt.NDArray[np.int64]

POSITION_MAX: Final = 2**31 - 1
"""Other clients hold a position in 31 bits."""

_COOKIE: Final = 12_346
_COOKIE_WITH_RUNS: Final = 12_347
_OFFSETS_COUNT_MIN: Final = 4
"""A bitmap with runs states where its containers begin if it has at least so many."""
_ARRAY_MAX: Final = 4096
"""Values that a container holds as an array at most."""
_BITS_BYTES: Final = 8192


def encode_positions(positions: Positions) -> bytes:
    """The bytes of a 32-bit bitmap, without runs.

    Args:
        positions: ascending, each once, at most `POSITION_MAX`.
    """
    high = positions >> 16
    keys, starts = np.unique(high, return_index=True)
    low = (positions & 0xFFFF).astype("<u2")
    parts = np.split(low, starts[1:]) if len(keys) else []
    bodies = [part.tobytes() if len(part) <= _ARRAY_MAX else _bits(part) for part in parts]
    header = np.empty((len(keys), 2), "<u2")
    header[:, 0] = keys
    header[:, 1] = [len(part) - 1 for part in parts]
    sizes = np.array([len(body) for body in bodies], np.int64)
    first = 8 + 8 * len(keys)
    offsets = (first + np.cumsum(sizes) - sizes).astype("<u4")
    return b"".join([np.array([_COOKIE, len(keys)], "<u4").tobytes(), header.tobytes(), offsets.tobytes(), *bodies])


def _bits(low: npt.NDArray[np.uint16]) -> bytes:
    bits = np.zeros(8 * _BITS_BYTES, np.uint8)
    bits[low] = 1
    return np.packbits(bits, bitorder="little").tobytes()


def decode_positions(body: Buffer) -> Positions:
    """The positions in the bytes of a 32-bit bitmap. Raises `DamageError`."""
    reader = _Reader(body)
    return reader.check_positions(reader.bitmap())


def decode_positions_64(body: Buffer) -> Positions:
    """The positions in the bytes of a 64-bit bitmap: a count, and for each upper half a 32-bit bitmap.

    Raises `DamageError`.
    """
    reader = _Reader(body)
    count = int(reader.numbers("<u8", 1)[0])
    if count < 0:
        raise DamageError("a bitmap claims more parts than there are")
    parts = [np.zeros(0, np.int64)]
    for _ in range(count):
        high = int(reader.numbers("<u4", 1)[0])
        parts.append(reader.bitmap() + (high << 32))
    return reader.check_positions(np.concatenate(parts))


class _Reader:
    """Reads bitmaps from the front of some bytes; every read is checked against their end."""

    def __init__(self, body: Buffer) -> None:
        self._bytes = np.frombuffer(memoryview(body), np.uint8)
        self._at = 0

    def numbers(self, dtype: str, count: int) -> npt.NDArray[np.int64]:
        """The next `count` numbers."""
        end = self._at + count * np.dtype(dtype).itemsize
        if end > len(self._bytes):
            raise DamageError("a bitmap ends too early")
        values: npt.NDArray[np.int64] = self._bytes[self._at : end].view(dtype).astype(np.int64)
        self._at = end
        return values

    def bitmap(self) -> Positions:
        """The next 32-bit bitmap."""
        (cookie,) = self.numbers("<u4", 1).tolist()
        if cookie == _COOKIE:
            (count,) = self.numbers("<u4", 1).tolist()
            has_runs = np.zeros(count if count <= 1 << 16 else 0, np.bool_)
        elif cookie & 0xFFFF == _COOKIE_WITH_RUNS:
            count = (cookie >> 16) + 1
            flags = self.numbers("u1", (count + 7) // 8).astype(np.uint8)
            has_runs = np.unpackbits(flags, bitorder="little")[:count].astype(np.bool_)
        else:
            raise DamageError("a bitmap does not begin with its cookie")
        if count > 1 << 16:
            raise DamageError("a bitmap claims more containers than there are")
        keys, cardinalities = self.numbers("<u2", 2 * count).reshape(-1, 2).T
        if (np.diff(keys) <= 0).any():
            raise DamageError("the containers of a bitmap do not ascend")
        if cookie == _COOKIE or count >= _OFFSETS_COUNT_MIN:
            self.numbers("<u4", count)
        parts = [np.zeros(0, np.int64)]
        for key, cardinality, is_run in zip(keys.tolist(), (cardinalities + 1).tolist(), has_runs, strict=True):
            low = self._container(cardinality, is_run=bool(is_run))
            if len(low) != cardinality or (np.diff(low) <= 0).any() or int(low[-1]) > 0xFFFF:
                raise DamageError("a container of a bitmap does not hold what its header says")
            parts.append(low + (key << 16))
        return np.concatenate(parts)

    def _container(self, cardinality: int, *, is_run: bool) -> Positions:
        if is_run:
            (count,) = self.numbers("<u2", 1).tolist()
            starts, lengths = self.numbers("<u2", 2 * count).reshape(-1, 2).T
            ends = np.cumsum(lengths + 1)
            if count == 0 or int(ends[-1]) != cardinality:
                raise DamageError("the runs of a bitmap do not hold what its header says")
            within = np.arange(cardinality) - np.repeat(ends - lengths - 1, lengths + 1)
            return np.repeat(starts, lengths + 1) + within
        if cardinality <= _ARRAY_MAX:
            return self.numbers("<u2", cardinality)
        bits = np.unpackbits(self.numbers("u1", _BITS_BYTES).astype(np.uint8), bitorder="little")
        return np.flatnonzero(bits)

    def check_positions(self, positions: Positions) -> Positions:
        """What was read, when nothing is left over."""
        if self._at != len(self._bytes):
            raise DamageError("bytes follow a bitmap")
        if (np.diff(positions) <= 0).any() or (len(positions) and int(positions[0]) < 0):
            raise DamageError("the positions of a bitmap do not ascend")
        return positions
