"""Deletion vectors in Iceberg's form: Puffin files with a blob for each data file. Pure.

A blob is the length (big-endian), a magic number, a 64-bit Roaring bitmap and the CRC-32 of the last two (big-endian).
DO NOT CHANGE: other clients read it.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

import msgspec

from lakebed.table.codec.roaring import Positions, encode_positions

_MAGIC: Final = b"PFA1"
_VECTOR_MAGIC: Final = b"\xd1\xd3\x39\x64"
_ROW_POSITION_ID: Final = 2_147_483_645
"""Iceberg's reserved field of row positions."""


@dataclass(frozen=True, slots=True)
class Blob:
    """Where the vector of a data file is in a Puffin file."""

    offset: int
    size_bytes: int
    row_count: int


def encode_puffin(vectors: Mapping[str, Positions]) -> tuple[bytes, dict[str, Blob]]:
    """The bytes of a Puffin file of vectors by URL of the data file, and where each is."""
    body, blobs, members = bytearray(_MAGIC), dict[str, Blob](), []
    for url, positions in vectors.items():
        # One bitmap for the upper half 0: positions have at most 31 bits.
        content = _VECTOR_MAGIC + struct.pack("<QI", 1, 0) + encode_positions(positions)
        blob = struct.pack(">I", len(content)) + content + struct.pack(">I", zlib.crc32(content))
        blobs[url] = Blob(len(body), len(blob), len(positions))
        members.append(
            {
                "type": "deletion-vector-v1",
                "fields": [_ROW_POSITION_ID],
                "snapshot-id": -1,
                "sequence-number": -1,
                "offset": len(body),
                "length": len(blob),
                "properties": {"referenced-data-file": url, "cardinality": str(len(positions))},
            }
        )
        body += blob
    footer = msgspec.json.encode({"blobs": members, "properties": {}})
    body += _MAGIC + footer + struct.pack("<I", len(footer)) + bytes(4) + _MAGIC
    return bytes(body), blobs
