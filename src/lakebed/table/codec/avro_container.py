"""The container of Avro record files: header, blocks, codecs, sync markers; a cursor over bytes; numbers. Pure.

Owns: everything around the records, and `DamageError`, an error without the path. Invariants: every block has the sync
marker of its file. In files of lakebed the marker is the digest of the header.
"""

from __future__ import annotations

import base64
import hashlib
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Final

import numpy as np
import numpy.typing as npt
import zstandard

from lakebed.errors import UnsupportedFormat

MAGIC: Final = b"Obj\x01"
SYNC_BYTES: Final = 16
LENGTHS_KEY: Final = b"lakebed.record-lengths"
VARINT_BYTES_MAX: Final = 10


class DamageError(Exception):
    """Damage of a file; the caller adds the path."""


# Container ------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Header:
    """Everything before the first block."""

    entries: dict[bytes, bytes]
    sync: bytes
    end: int
    """Position of the first block."""


class Cursor:
    """A cursor over a file's bytes."""

    def __init__(self, data: bytes) -> None:
        self.data = data
        self.position = 0

    def long(self) -> int:
        """The next number, in zigzag encoding of variable length. Raises `DamageError`."""
        if self.position < len(self.data) and (only := self.data[self.position]) < 0x80:
            self.position += 1
            return (only >> 1) ^ -(only & 1)
        result = 0
        for shift in range(0, 7 * VARINT_BYTES_MAX, 7):
            if self.position >= len(self.data):
                break
            byte = self.data[self.position]
            self.position += 1
            result |= (byte & 0x7F) << shift
            if byte < 0x80:
                if result >> 64:
                    raise DamageError("a number has more than 64 bits")
                return (result >> 1) ^ -(result & 1)
        raise DamageError("it ends inside a number")

    def bytes(self, size: int) -> bytes:
        """The next `size` bytes. Raises `DamageError` when there are fewer."""
        end = self.position + size
        if size < 0 or end > len(self.data):
            raise DamageError(f"it ends {end - len(self.data)} bytes early")
        chunk = self.data[self.position : end]
        self.position = end
        return chunk


@lru_cache(maxsize=65_536)
def encode_long(number: int) -> bytes:
    """An ``int`` or ``long``: zigzag, 7 bits a byte."""
    rest = (number << 1) ^ (number >> 63)
    body = bytearray()
    while rest > 0x7F:
        body.append(rest & 0x7F | 0x80)
        rest >>= 7
    body.append(rest)
    return bytes(body)


def encode_text(value: str | bytes) -> bytes:
    """A ``string`` (as UTF-8) or ``bytes``."""
    content = value.encode() if isinstance(value, str) else value
    return encode_long(len(content)) + content


def encode_header(entries: Mapping[str, str | bytes]) -> bytes:
    """Everything in a file before its first sync marker."""
    texts = [encode_text(name) + encode_text(value) for name, value in entries.items()]
    return b"".join((MAGIC, encode_long(len(texts)), *texts, b"\x00"))


def read_header(reader: Cursor) -> Header:
    """Read the header; the cursor is then at the first block. Raises `DamageError`."""
    if reader.bytes(len(MAGIC)) != MAGIC:
        raise DamageError("it does not begin as one")
    entries = {}
    while (count := reader.long()) != 0:
        if count < 0:
            reader.long()
        for _ in range(abs(count)):
            key = reader.bytes(reader.long())
            entries[key] = reader.bytes(reader.long())
    header_bytes = reader.data[: reader.position]
    header = Header(entries, reader.bytes(SYNC_BYTES), reader.position)
    if LENGTHS_KEY in entries and header.sync != digest(header_bytes):
        raise DamageError("its header was altered")
    return header


def digest(header: bytes) -> bytes:
    """The sync marker of lakebed's files: a digest of 16 bytes over everything before it."""
    return hashlib.blake2b(header, digest_size=SYNC_BYTES).digest()


def decompress_block(codec: bytes, block: bytes) -> bytes:
    """The records of a block. Raises `UnsupportedFormat` for an unknown codec, and the errors of the codec."""
    if codec == b"null":
        return block
    if codec == b"deflate":
        return zlib.decompress(block, -15)
    if codec != b"zstandard":
        raise UnsupportedFormat(f"Avro codec {codec.decode(errors='replace')!r} is not supported.")
    stream = zstandard.ZstdDecompressor().decompressobj()
    content = stream.decompress(block)
    if not stream.eof or stream.unused_data:
        raise DamageError("a compressed block is cut short")
    return content


def read_blocks(reader: Cursor, header: Header) -> tuple[list[int], list[bytes]]:
    """``(record counts, contents)`` of all blocks. Raises `DamageError`."""
    counts, blocks = [], []
    codec = header.entries.get(b"avro.codec", b"null")
    while reader.position < len(reader.data):
        count = reader.long()
        body = reader.bytes(reader.long())
        if count < 0 or reader.bytes(SYNC_BYTES) != header.sync:
            raise DamageError("a block does not end with the file's sync marker")
        counts.append(count)
        blocks.append(decompress_block(codec, body))
    return counts, blocks


def unpack_lengths(packed: bytes) -> npt.NDArray[np.uint32]:
    """The length of every record in bytes, from the header entry `LENGTHS_KEY`."""
    return np.frombuffer(decompress_block(b"zstandard", base64.b64decode(packed, validate=True)), dtype="<u4")
