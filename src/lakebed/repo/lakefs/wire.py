"""The wire format of Protocol Buffers: read and write the numbered fields of a message. Pure.

Owns: varints, tags and lengths, as far as lakeFS's messages use them. Invariants: fields with their default value are
not written. A reader skips fields that it does not know. Source: Protocol Buffers, "Encoding".
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from lakebed.errors import Corruption

_VARINT = 0
_FIXED_64 = 1
_BYTES = 2
_FIXED_32 = 5
_VARINT_BITS_MAX = 64


def read_varint(data: bytes, at: int) -> tuple[int, int]:
    """Read an unsigned number of variable length; return it and the position behind it. Raises `Corruption`."""
    value = shift = 0
    while at < len(data) and shift < _VARINT_BITS_MAX:
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, at
        shift += 7
    raise Corruption(f"A number of variable length does not end within {len(data):,} bytes.")


def encode_varint(value: int) -> bytes:
    """Encode an unsigned number in its shortest form."""
    varint = bytearray()
    while value > 0x7F:
        varint.append(value & 0x7F | 0x80)
        value >>= 7
    varint.append(value)
    return bytes(varint)


def read_signed(data: bytes, at: int) -> tuple[int, int]:
    """Read a zigzag number of variable length, as Go's ``binary.Varint``; return it and the position behind it."""
    value, at = read_varint(data, at)
    return (value >> 1) ^ -(value & 1), at


def encode_signed(value: int) -> bytes:
    """Encode a number as Go's ``binary.PutVarint``."""
    return encode_varint(value << 1 if value >= 0 else ~value << 1 | 1)


def read_fields(message: bytes) -> Iterator[tuple[int, int | bytes]]:
    """Iterate over the fields of a message, in the order of its bytes: each field's number, and its number or bytes.

    Raises:
        Corruption: the bytes are not a message.
    Cost: about 0.5 us a field.
    """
    position, end = 0, len(message)
    while position < end:
        tag, position = read_varint(message, position)
        kind = tag & 7
        if kind == _BYTES:
            size, position = read_varint(message, position)
            if position + size > end:
                raise Corruption(
                    f"A field of {size:,} bytes begins {end - position:,} bytes before the end of its message."
                )
            yield tag >> 3, message[position : position + size]
            position += size
        elif kind == _VARINT:
            value, position = read_varint(message, position)
            yield tag >> 3, value
        elif kind in (_FIXED_64, _FIXED_32):
            size = 8 if kind == _FIXED_64 else 4
            if position + size > end:
                raise Corruption(
                    f"A number of {size} bytes begins {end - position} bytes before the end of its message."
                )
            yield tag >> 3, int.from_bytes(message[position : position + size], "little")
            position += size
        else:
            raise Corruption(f"A field has the wire type {kind}, which no message has.")


def signed_64(value: int) -> int:
    """The signed value of an ``int64`` field, whose varint holds it in two's complement."""
    return value - (1 << 64) if value >= 1 << 63 else value


def number_field(field: int, value: int) -> bytes:
    """Encode a field with a number, in two's complement; empty for 0."""
    return encode_varint(field << 3 | _VARINT) + encode_varint(value & (1 << 64) - 1) if value else b""


def bytes_field(field: int, value: bytes) -> bytes:
    """Encode a field with bytes; empty for no bytes."""
    return encode_varint(field << 3 | _BYTES) + encode_varint(len(value)) + value if value else b""


def text_field(field: int, value: str) -> bytes:
    """Encode a field with a text; empty for the empty text."""
    return bytes_field(field, value.encode())


def map_field(field: int, values: Mapping[str, str]) -> bytes:
    """Encode a field with a map of texts, in the order of keys."""
    pieces = []
    for key in sorted(values):
        pair = text_field(1, key) + text_field(2, values[key])
        pieces.append(encode_varint(field << 3 | _BYTES) + encode_varint(len(pair)) + pair)
    return b"".join(pieces)
