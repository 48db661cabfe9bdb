"""Values of paths: an identity followed by the entry; and the addresses of new objects.

Owns: the bytes of a value, ``identity (16 bytes) | msgpack(Entry)``; what two entries must share to be the same; the
names of uploaded objects. Layout: docs/format/repository.md. DO NOT CHANGE: values are stored.

Invariants: two entries are the same exactly if their identities are equal, whatever their addresses and times. Equal
entries have equal bytes, so that ranges of equal entries have equal hashes. `TOMBSTONE`, the empty value, has the
identity zero, which no entry has.
"""

from __future__ import annotations

from collections.abc import Sequence
from hashlib import blake2b
from typing import Any, Final, cast

import msgspec
import numpy as np
import numpy.typing as npt
import pyarrow as pa

from lakebed.decoding import msgpack_decoder
from lakebed.errors import Corruption
from lakebed.lsm.block import offsets_of
from lakebed.lsm.file_id import is_file_id, mint_file_id
from lakebed.repo.model.layout import DATA_FOLDER, UPLOAD_FOLDER, made_ulid, upload_path
from lakebed.repo.model.model import Entry
from lakebed.runtime import Environment

IDENTITY_BYTES: Final = 16
"""Length of the identity, with which every value except a tombstone begins. On disk: DO NOT CHANGE."""

SIZE_BYTES_MAX: Final = (1 << 63) - 1
"""Largest reported sum of sizes. Sizes of imported objects may be anything: their owner states them."""

_ADDRESS_START: Final = f"{DATA_FOLDER}/"
_UPLOAD_START: Final = f"{UPLOAD_FOLDER}/"

_ENTRY: Final = 0x90 + len(Entry.__struct_fields__)
_FIXED_STR: Final = np.uint8(0xA0)
_FIXED_STR_LENGTH: Final = np.uint8(0x1F)
_STR_8: Final = 0xD9
_FIXED_NUMBER_MAX: Final = 0x7F
_UINT_8: Final = 0xCC
_UINT_64: Final = 0xCF
"""The constants above: first bytes of an entry, of texts and of numbers in MessagePack."""
_NUMBER_BYTES: Final = 8
"""Bytes of the largest number."""

_encode: Final = msgspec.msgpack.Encoder(order="deterministic").encode
_decode: Final = msgpack_decoder(Entry).decode


def encode_entry(entry: Entry) -> bytes:
    """Encode an entry as the value of a path. Equal entries have equal bytes. Cost: about 1.5 us."""
    identity: tuple[Any, ...] = (entry.checksum, entry.size_bytes, entry.content_type, entry.metadata)
    if not entry.checksum:
        identity += (entry.address,)  # only the address identifies the bytes
    return blake2b(_encode(identity), digest_size=IDENTITY_BYTES).digest() + _encode(entry)


def encode_entries(entries: Sequence[Entry]) -> list[bytes]:
    """Encode entries, in order. Cost: that of `encode_entry` for each."""
    return [encode_entry(entry) for entry in entries]


def decode_entry(value: bytes, *, where: str) -> Entry:
    """Decode the entry of a value that is not a tombstone.

    Args:
        where: the source of the value, for the error: a key, a path, a file.

    Raises:
        Corruption: the bytes are not an entry.
    Cost: about 0.4 us.
    """
    try:
        return _decode(value[IDENTITY_BYTES:])
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise Corruption(
            f"The entry of {where} is damaged: its {len(value):,} bytes cannot be read ({error}).", path=where
        ) from error


def identities(values: pa.BinaryArray, *, where: str = "a column of entries") -> npt.NDArray[np.uint64]:
    """The identities of a column of values.

    Args:
        values: encoded entries; tombstones and nulls are allowed.
        where: the source of the column, for the error.

    Returns:
        Shape (n, 2): two numbers a value; zeros for tombstones and nulls.

    Raises:
        Corruption: a value is too short to begin with an identity.
    Cost: about 10 ns a value; the values are not copied.
    """
    pairs = np.zeros((len(values), 2), np.uint64)
    if not len(values):
        return pairs
    offsets = offsets_of(values)
    lengths = np.diff(offsets)
    shortest = int(lengths.min())
    if shortest >= IDENTITY_BYTES and not values.null_count:
        return _pairs(values)[offsets[:-1]]
    present = lengths > 0
    if values.null_count:
        present &= values.is_valid().to_numpy(zero_copy_only=False)
    if not present.any():
        return pairs
    if int(lengths[present].min()) < IDENTITY_BYTES:
        raise Corruption(
            f"{where[:1].upper()}{where[1:]} is damaged: a value has {int(lengths[present].min())} bytes, fewer than "
            f"an identity's {IDENTITY_BYTES}.",
            path=where,
        )
    pairs[present] = _pairs(values)[offsets[:-1][present]]
    return pairs


def _pairs(values: pa.BinaryArray) -> npt.NDArray[np.uint64]:
    """A view of a column's content: row i has the 16 bytes that begin at byte i, as two numbers."""
    content = values.buffers()[2]
    count = content.size - IDENTITY_BYTES + 1
    return np.ndarray((count, 2), "<u8", cast(Any, content), 0, (1, 8))


def sizes_of(values: pa.BinaryArray, *, where: str) -> npt.NDArray[np.uint64]:
    """The sizes of the objects of a column of values, in bytes; zeros for tombstones.

    Args:
        values: encoded entries without nulls.
        where: the source of the column, for the error.

    Raises:
        Corruption: a value is not an entry.
    Cost: about 30 ns a value: the sizes are read at their places in the MessagePack, without decoding the rest.
    """
    sizes = np.zeros(len(values), np.uint64)
    offsets = offsets_of(values) if len(values) else np.zeros(1, np.int32)
    lengths = np.diff(offsets)
    rows = np.flatnonzero(lengths)
    if not len(rows):
        return sizes
    is_known = np.zeros(len(rows), np.bool_)
    if int(lengths[rows].min()) >= IDENTITY_BYTES + _NUMBER_BYTES:
        sizes[rows], is_known = _sizes_behind_addresses(values, offsets[:-1][rows], offsets[1:][rows])
    for row in rows[~is_known].tolist():
        size_bytes = decode_entry(values[row].as_py(), where=where).size_bytes
        if size_bytes < 0:
            raise Corruption(f"An entry of {where} is damaged: its size is {size_bytes:,} bytes.", path=where)
        sizes[row] = size_bytes
    return sizes


def total_size(sizes: npt.NDArray[np.uint64]) -> int:
    """The sum of sizes, limited to `SIZE_BYTES_MAX`: records cannot hold more, and the sum must not wrap around."""
    if not len(sizes):
        return 0
    fits = int(sizes.max()) <= SIZE_BYTES_MAX // len(sizes)
    return int(sizes.sum()) if fits else min(sum(sizes.tolist()), SIZE_BYTES_MAX)


def _sizes_behind_addresses(
    values: pa.BinaryArray, starts: npt.NDArray[np.int32], stops: npt.NDArray[np.int32]
) -> tuple[npt.NDArray[np.uint64], npt.NDArray[np.bool_]]:
    """Read the second field, the size, of the values between starts and stops, without decoding them.

    Returns the sizes, and for each value whether its size is known: if the address is a text of up to 255 bytes.
    """
    content = np.frombuffer(values.buffers()[2], np.uint8)
    begins, last = starts.astype(np.int64) + IDENTITY_BYTES, len(content) - 1
    # The first byte of the address gives its length, and the first byte behind it the width of the size (MessagePack).
    letters = content[begins + 1]
    ends = begins + 2 + (letters & _FIXED_STR_LENGTH)
    is_long = letters == _STR_8
    if is_long.any():
        ends[is_long] = begins[is_long] + 3 + content[begins[is_long] + 2]
    kinds = content[np.minimum(ends, last)]
    is_number = (kinds >= _UINT_8) & (kinds <= _UINT_64)
    is_known = (content[begins] == _ENTRY) & (((letters & ~_FIXED_STR_LENGTH) == _FIXED_STR) | is_long)
    is_known &= (is_number | (kinds <= _FIXED_NUMBER_MAX)) & (ends + 1 + _NUMBER_BYTES <= stops)
    numbers = np.ndarray(len(content) - _NUMBER_BYTES + 1, ">u8", cast(Any, content), 0, (1,))
    bits = np.where(is_number, 8 << (kinds & 3), 64).astype(np.uint64)
    values_behind = numbers[np.where(is_known, ends + 1, 0)].astype(np.uint64) >> (np.uint64(64) - bits)
    return np.where(is_number, values_behind, kinds), is_known


def new_address(environment: Environment) -> str:
    """A new address for an object's bytes: ``data/<ulid>``, of the present time."""
    return _ADDRESS_START + mint_file_id(environment=environment)


def address_ulid(address: str) -> str | None:
    """The ULID of an address from `new_address`; None: the object is imported, and so never deleted."""
    if not address.startswith(_ADDRESS_START):
        return None
    ulid = address[len(_ADDRESS_START) :]
    return ulid if is_file_id(ulid) else None


def new_upload(environment: Environment) -> str:
    """A new path, of the present time, for bytes that are put with a URL signed by a vendor. No entry names it."""
    return upload_path(mint_file_id(environment=environment))


def is_upload(address: str) -> bool:
    """Whether an address is from `new_upload`, or from its older version: a bare id, which no collection deletes."""
    return address.startswith(_UPLOAD_START) and (
        is_file_id(address[len(_UPLOAD_START) :]) or made_ulid(address) is not None
    )
