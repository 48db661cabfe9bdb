"""Sets of numbers as bytes: the portable format of Roaring bitmaps. Pure.

Owns: `encode_positions`; `decode_positions` for 32-bit and `decode_positions_64` for 64-bit bitmaps; and `unite`, which
makes one bitmap of several that users stored. A bitmap is divided by the upper 16 bits of its values into containers. A
container holds the lower 16 bits as a sorted array, as 8 KiB of bits, or as runs. Little-endian. DO NOT CHANGE: on
disk, shared with other clients.

Invariants: positions are int64, ascending, without repetitions. Damaged bytes raise `DamageError` where the structure
shows the damage; callers also compare a checksum. CRoaring reads bitmaps, and checks what it read. It does not write
positions: it makes a run of a full container, and bytes on disk must stay as they are.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from typing import Any, Final, Literal

import numpy as np
import numpy.typing as npt
from typing_extensions import Buffer

from lakebed.table.codec.avro_container import DamageError

Positions = npt.NDArray[np.int64]

POSITION_MAX: Final = 2**31 - 1
"""Other clients store a position in 31 bits."""

_COOKIE: Final = 12_346
_ARRAY_MAX: Final = 4096
"""Most values that a container holds as an array."""
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
    return _decode(body, "BitMap", np.uint32)


def decode_positions_64(body: Buffer) -> Positions:
    """The positions in the bytes of a 64-bit bitmap: a count, and for each upper half a 32-bit bitmap.

    Raises `DamageError`.
    """
    return _decode(body, "BitMap64", np.uint64)


def unite(bodies: Sequence[bytes]) -> bytes:
    """The bytes of the 32-bit bitmap with every value of some others, with runs where these are smaller.

    Args:
        bodies: bitmaps of any client, at least one; values use all 32 bits.

    Raises `DamageError`. Cost: 1 us for a small bitmap.
    """
    import pyroaring

    try:
        bitmap = pyroaring.BitMap.union(*map(pyroaring.BitMap.deserialize, bodies))
    except (ValueError, IndexError) as error:
        raise DamageError("a bitmap is cut off, or does not hold what its headers say") from error
    bitmap.run_optimize()
    return bytes(bitmap.serialize())


def _decode(body: Buffer, kind: Literal["BitMap", "BitMap64"], dtype: type[np.unsignedinteger[Any]]) -> Positions:
    import pyroaring

    bitmaps: type[pyroaring.BitMap] = getattr(pyroaring, kind)
    view: Any = memoryview(body).cast("B")  # it accepts any buffer, which its stubs do not say
    try:
        positions = np.frombuffer(bitmaps.deserialize(view).to_array(), dtype).astype(np.int64)
    except (ValueError, IndexError) as error:  # IndexError: no bytes at all
        raise DamageError("a bitmap is cut off, or does not hold what its headers say") from error
    with suppress(ValueError, IndexError):
        bitmaps.deserialize(view[:-1])  # the library reads exactly to the end of the bitmap
        raise DamageError("bytes follow a bitmap")
    if len(positions) and positions[-1] < 0:
        raise DamageError("a bitmap holds a position beyond 63 bits")
    return positions
