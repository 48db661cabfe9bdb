"""Avro container files as flat Arrow columns. Pure.

Owns: reading and writing record files of the kinds manifests use. A column is named by its path through nested
records, such as ``_FILE._KEY_STATS._MIN_VALUES``. Invariant: whatever is wrong with the bytes is `Corruption` with the
path of the file, never another error and never a silently shorter answer.
"""

from __future__ import annotations

import datetime
import hashlib
import io
import json
import zlib
from collections.abc import Mapping
from typing import Any

import fastavro
import pyarrow as pa
import zstandard
from typing_extensions import Buffer

from lakebed.errors import Corruption

__all__ = ["decode_columns", "encode_columns"]

MAGIC = b"Obj\x01"


def _flatten(record: Mapping[str, Any], prefix: str, lists: dict[str, list[Any]]) -> None:
    for name, value in record.items():
        if isinstance(value, dict):
            _flatten(value, f"{prefix}{name}.", lists)
        else:
            if isinstance(value, datetime.datetime):
                value = round(value.timestamp() * 1000)
            lists.setdefault(prefix + name, []).append(value)


def _varint(data: bytes, position: int) -> tuple[int, int]:
    result = shift = 0
    while True:
        byte = data[position]
        position += 1
        result |= (byte & 0x7F) << shift
        if byte < 0x80:
            return (result >> 1) ^ -(result & 1), position
        shift += 7


def _zigzag(value: int) -> bytes:
    value = (value << 1) ^ (value >> 63)
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def decode_columns(body: Buffer, *, path: str) -> tuple[int, dict[str, pa.Array]]:
    """``(record count, columns by path)`` of a container file.

    Raises:
        Corruption: anything wrong with the bytes; names the path.
    """
    lists: dict[str, list[Any]] = {}
    count = 0
    try:
        for record in _records(bytes(body)):
            _flatten(record, "", lists)
            count += 1
    except (ValueError, EOFError, KeyError, IndexError, TypeError, OSError, zstandard.ZstdError, zlib.error) as error:
        raise Corruption(f"{path} is not a readable Avro file: {error}.", path=path) from error
    return count, {name: pa.array(values) for name, values in lists.items()}


def _records(data: bytes) -> Any:
    if data[:4] != MAGIC:
        raise ValueError("it does not begin as one")
    position = 4
    meta = {}
    while True:
        entries, position = _varint(data, position)
        if entries == 0:
            break
        if entries < 0:
            _, position = _varint(data, position)
        for _ in range(abs(entries)):
            size, position = _varint(data, position)
            key = data[position : position + size]
            position += size
            size, position = _varint(data, position)
            meta[key] = data[position : position + size]
            position += size
    sync = data[position : position + 16]
    position += 16
    schema = fastavro.parse_schema(json.loads(meta[b"avro.schema"]))
    codec = meta.get(b"avro.codec", b"null").decode()
    while position < len(data):
        count, position = _varint(data, position)
        size, position = _varint(data, position)
        block = data[position : position + size]
        position += size
        if data[position : position + 16] != sync:
            raise ValueError("a block does not end with the sync marker")
        position += 16
        if codec == "zstandard":
            block = zstandard.ZstdDecompressor().decompressobj().decompress(block)
        elif codec == "deflate":
            block = zlib.decompress(block, -15)
        elif codec != "null":
            raise ValueError(f"unknown codec {codec}")
        stream = io.BytesIO(block)
        for _ in range(count):
            yield fastavro.schemaless_reader(stream, schema)


def _nested(schema: Mapping[str, Any], columns: Mapping[str, list[Any]], row: int, prefix: str) -> dict[str, Any]:
    record = {}
    for field in schema["fields"]:
        kind, name = field["type"], prefix + field["name"]
        if isinstance(kind, dict) and kind["type"] == "record":
            record[field["name"]] = _nested(kind, columns, row, name + ".")
        else:
            record[field["name"]] = columns[name][row]
    return record


def encode_columns(schema: dict[str, Any], columns: Mapping[str, pa.Array], count: int) -> bytes:
    """A container file of `count` records, zstandard-compressed."""
    lists = {name: column.to_pylist() for name, column in columns.items()}
    block = io.BytesIO()
    parsed = fastavro.parse_schema(schema)
    for row in range(count):
        fastavro.schemaless_writer(block, parsed, _nested(schema, lists, row, ""))
    text = json.dumps(schema).encode()
    sync = hashlib.md5(block.getvalue() + text, usedforsecurity=False).digest()
    meta = {b"avro.codec": b"zstandard", b"avro.schema": text}
    out = bytearray(MAGIC + _zigzag(len(meta)))
    for key, value in meta.items():
        out += _zigzag(len(key)) + key + _zigzag(len(value)) + value
    out += b"\x00" + sync
    if count:
        packed = zstandard.ZstdCompressor().compress(block.getvalue())
        out += _zigzag(count) + _zigzag(len(packed)) + packed + sync
    return bytes(out)
