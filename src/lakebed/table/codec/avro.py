"""Avro container files to and from flat Arrow columns, without a Python loop over records. Pure.

Owns: reading and writing record files with the kinds of fields that manifests have. A column is named by its path
through nested records, such as ``_FILE._KEY_STATS._MIN_VALUES``.

Method: given the start of each record, all records are decoded together, field by field, with a few numpy calls for
each field over the positions of all records. lakebed's files state the length of every record in the header entry
`LENGTHS_KEY` (base64 of zstandard over uint32; other readers ignore it). In files of other clients `avro_foreign` skips
from record to record.

Invariants: damaged bytes always raise `Corruption` with the path of the file, and never yield fewer records. Every
record must end where the next begins, every block has the sync marker, lakebed's blocks have zstandard's checksum, and
the sync marker of lakebed's files is the digest of their header.
"""

from __future__ import annotations

import base64
import itertools
import json
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import pyarrow as pa
import zstandard
from typing_extensions import Buffer

import lakebed.compute as pc
from lakebed.errors import Corruption, UnsupportedFormat
from lakebed.table.codec.avro_container import (
    LENGTHS_KEY,
    VARINT_BYTES_MAX,
    Cursor,
    DamageError,
    Header,
    digest,
    encode_header,
    encode_long,
    encode_text,
    read_blocks,
    read_header,
    unpack_lengths,
)
from lakebed.table.codec.avro_few import FewRecords, arrow_type, is_record, leaves_of, read_few, resolve_type
from lakebed.table.codec.ragged import I64, Bytes, binary_array, byte_strings, gather_bytes, pad, valid_mask

__all__ = [
    "LENGTHS_KEY",
    "SMALL_COUNT_MAX",
    "Content",
    "FewRecords",
    "JoinedFiles",
    "RecordSchema",
    "decode_columns",
    "decode_extended",
    "decode_joined",
    "encode_columns",
    "encode_values",
    "explain_damage",
]

BLOCK_BYTES_TARGET: Final = 1 << 20
SMALL_COUNT_MAX: Final = 64
"""Files of up to this many records are encoded and decoded record by record."""
_JOINED_COUNT_MIN: Final = 4
"""If fewer files have one schema, decoding them one by one is faster."""
_FIXED_WIDTH: Final = {"boolean": (1, "u1"), "float": (4, "<f4"), "double": (8, "<f8")}


def _record_starts(header: Header, counts: list[int], blocks: list[bytes], schema: dict[str, Any]) -> I64:
    """The start of each record in the joined blocks, and the end of the last one."""
    total = sum(counts)
    starts = np.zeros(total + 1, dtype=np.int64)
    packed_lengths = header.entries.get(LENGTHS_KEY)
    if packed_lengths is not None:
        lengths = unpack_lengths(packed_lengths)
        if len(lengths) != total:
            raise DamageError(f"it has {total} records and states {len(lengths)}")
        np.cumsum(lengths, out=starts[1:])
    else:
        from lakebed.table.codec.avro_foreign import record_ends  # loads fastavro

        starts[1:] = record_ends(schema, counts, blocks)
    _check_blocks(starts, counts, blocks)
    return starts


def _check_blocks(starts: I64, counts: list[int], blocks: list[bytes]) -> None:
    """Raise unless each block ends with its last record."""
    ends = np.cumsum([len(block) for block in blocks], dtype=np.int64)
    if not np.array_equal(starts[np.cumsum(counts, dtype=np.int64)], ends):
        raise DamageError("a block's records do not fill it")


def decode_columns(
    body: Buffer, *, path: str, narrow: Mapping[str, pa.DataType] | None = None
) -> tuple[int, dict[str, pa.Array]]:
    """The records of a container file, one Arrow array for each leaf field.

    Args:
        body: the bytes of the file.
        narrow: types of integers, by path, to which few records are decoded directly; others may still be int64.

    Returns:
        ``(record count, columns by path)``: numbers as int64, ``bytes`` and ``string`` as such, arrays as lists.

    Raises:
        Corruption: anything wrong with the bytes; names the path.
        UnsupportedFormat: a codec or a kind of field lakebed does not read.

    Cost: about 3 us a record in files of lakebed, 8 us in others. Memory: the result and one field.
    """
    with explain_damage(path):
        content = _read_content(body)
        few_records = _few_records(content)
        return (
            _decode_content(content)
            if few_records is None
            else (len(few_records.rows), few_records.columns(narrow or {}))
        )


@dataclass(frozen=True, slots=True)
class Content:
    """The records of a container file, not decoded."""

    schema_json: bytes
    blocks: bytes
    """All blocks, uncompressed."""
    count: int


def decode_extended(
    body: Buffer, *, path: str, parts: Sequence[Content]
) -> tuple[Content, int, int, FewRecords | dict[str, pa.Array]]:
    """The records of a container file that come after those it shares with other files.

    Args:
        parts: what the file may begin with, one after the other. The longest run of them with which it does begin is
            not decoded again. Files of lakebed, which state the lengths of their records, are always decoded whole.

    Returns:
        ``(content, number of parts that the file begins with, count of the other records, their columns)``. The last
        two are as `decode_columns` returns them, or few records that were not converted to columns; without other
        records there are no columns.

    Raises as `decode_columns`. Cost: as `decode_columns`, for the other records only.
    """
    with explain_damage(path):
        header, counts, blocks = _read_content(body)
        content = Content(header.entries[b"avro.schema"], b"".join(blocks), sum(counts))
        known_count, end, count = 0, 0, 0
        for part in parts if LENGTHS_KEY not in header.entries else ():
            if part.schema_json != content.schema_json or not content.blocks.startswith(part.blocks, end):
                break
            known_count, end, count = known_count + 1, end + len(part.blocks), count + part.count
        if known_count:
            counts, blocks = [content.count - count], [content.blocks[end:]]
            if counts == [0] and blocks == [b""]:
                return content, known_count, 0, {}
            if counts[0] < 0:
                raise DamageError("it has fewer records than it states")
        few_records = _few_records((header, counts, blocks))
        if few_records is not None:
            return content, known_count, len(few_records.rows), few_records
        return content, known_count, *_decode_content((header, counts, blocks))


def _read_content(body: Buffer) -> tuple[Header, list[int], list[bytes]]:
    """The header, and the record counts and contents of all blocks."""
    reader = Cursor(bytes(body))
    other_format = next((name for start, name in _OTHER_FORMATS.items() if reader.data.startswith(start)), None)
    if other_format is not None:
        raise UnsupportedFormat(f"It is {other_format}; this version of lakebed reads manifests in Avro only.")
    header = read_header(reader)
    return header, *read_blocks(reader, header)


def _few_records(content: tuple[Header, list[int], list[bytes]]) -> FewRecords | None:
    """The records, one by one; None: there are many, or some can be read only as columns."""
    header, counts, blocks = content
    if sum(counts) > SMALL_COUNT_MAX:
        return None
    leaves = leaves_of(header.entries[b"avro.schema"])
    return None if leaves is None else read_few(leaves, header, counts, blocks)


def _decode_content(content: tuple[Header, list[int], list[bytes]]) -> tuple[int, dict[str, pa.Array]]:
    header, counts, blocks = content
    schema = json.loads(header.entries[b"avro.schema"])
    starts = _record_starts(header, counts, blocks, schema)
    return len(starts) - 1, _decode_records(schema, starts, blocks)


@contextmanager
def explain_damage(path: str) -> Iterator[None]:
    """Add the file's path to errors that occur while its content is read."""
    try:
        yield
    except UnsupportedFormat as error:
        raise UnsupportedFormat(f"{path}: {error.message}", path=path) from error
    except _UNREADABLE as error:
        raise Corruption(f"{path} is not a readable Avro file: {error}.", path=path) from error


def _decode_records(schema: Any, starts: I64, blocks: list[bytes]) -> dict[str, pa.Array]:
    decoder = _Decoder(pad(np.frombuffer(b"".join(blocks), dtype=np.uint8)), int(starts[-1]))
    columns: dict[str, pa.Array] = {}
    ends = decoder.record(resolve_type(schema, {}), starts[:-1].copy(), "", columns)
    if not np.array_equal(ends, starts[1:]):
        raise DamageError("a record does not end where the next one begins")
    return columns


@dataclass(frozen=True, slots=True)
class JoinedFiles:
    """Files of one schema that were decoded together: their records, one file after the other."""

    positions: list[int]
    """Positions of the files, ascending."""
    counts: list[int]
    """Records of each file."""
    columns: dict[str, pa.Array]
    """As `decode_columns` returns them; integers are int64."""


@dataclass(slots=True)
class _Joining:
    """The files of one schema, before they are decoded."""

    positions: list[int]
    totals: list[int]
    counts: list[int]
    blocks: list[bytes]
    lengths: list[Any]


def decode_joined(bodies: Sequence[Buffer]) -> list[JoinedFiles]:
    """The records of many container files; all files of one schema are decoded in one pass.

    A file is in no result if only `decode_columns` can decode it, or say what is wrong with it. That is so when another
    client wrote it, when it is damaged, when another file of its schema is damaged, or when few files have its schema.

    Cost: 50 us a file and 3 us a record. Memory: all files, uncompressed, and the result.
    """
    by_schema: dict[bytes, _Joining] = {}
    for position, body in enumerate(bodies):
        try:
            reader = Cursor(bytes(body))
            header = read_header(reader)
            lengths = unpack_lengths(header.entries[LENGTHS_KEY])
            counts, blocks = read_blocks(reader, header)
            if sum(counts) != len(lengths):
                continue
            joining = by_schema.setdefault(header.entries[b"avro.schema"], _Joining([], [], [], [], []))
        except (UnsupportedFormat, *_UNREADABLE):
            continue
        joining.positions.append(position)
        joining.totals.append(len(lengths))
        joining.counts += counts
        joining.blocks += blocks
        joining.lengths.append(lengths)
    results = []
    for schema_json, joining in by_schema.items():
        if len(joining.positions) < _JOINED_COUNT_MIN:
            continue
        try:
            starts = np.zeros(sum(joining.totals) + 1, dtype=np.int64)
            np.cumsum(np.concatenate(joining.lengths), out=starts[1:])
            _check_blocks(starts, joining.counts, joining.blocks)
            columns = _decode_records(json.loads(schema_json), starts, joining.blocks)
        except (UnsupportedFormat, *_UNREADABLE):
            continue
        results.append(JoinedFiles(joining.positions, joining.totals, columns))
    return results


_OTHER_FORMATS: Final = {b"ORC": "ORC", b"PAR1": "Parquet"}
"""Other formats by their first bytes."""

_UNREADABLE: Final = (
    DamageError,
    ValueError,
    EOFError,
    KeyError,
    IndexError,
    TypeError,
    AttributeError,
    OverflowError,
    MemoryError,
    zstandard.ZstdError,
    zlib.error,
)
"""Errors of the underlying parsers for damaged bytes (pa.ArrowInvalid is a ValueError)."""


# Decoding -------------------------------------------------------------------------------------------------------------


class _Decoder:
    """Decodes one field of all records at once. Every method takes positions and returns the ends of the field."""

    def __init__(self, data: Bytes, end: int) -> None:
        self.data = data
        self.end = end

    def longs(self, at: I64) -> tuple[I64, I64]:
        byte = self.data[at]
        value = (byte & 0x7F).astype(np.uint64)
        position = at + 1
        more = np.flatnonzero(byte & 0x80)
        shift = 7
        while len(more):
            if shift >= 7 * VARINT_BYTES_MAX:
                raise DamageError("a number has more than ten bytes")
            byte = self.data[position[more]]
            if shift == 63 and (byte & 0x7E).any():
                raise DamageError("a number has more than 64 bits")
            position[more] += 1
            value[more] |= (byte & 0x7F).astype(np.uint64) << np.uint64(shift)
            more = more[byte >= 0x80]
            shift += 7
        return (value >> np.uint64(1)).astype(np.int64) ^ -(value & np.uint64(1)).astype(np.int64), position

    def strings(self, at: I64, *, text: bool) -> tuple[pa.Array, I64]:
        lengths, starts = self.longs(at)
        ends = starts + lengths
        if len(at) and (int(lengths.min()) < 0 or int(ends.max()) > self.end or int(ends.min()) < 0):
            raise DamageError("a string reaches beyond the block")
        return binary_array(gather_bytes(self.data, starts, lengths), lengths, text=text), ends

    def value(self, kind: Any, at: I64) -> tuple[pa.Array, I64]:
        """Decode a field that is not a record."""
        if isinstance(kind, list):
            return self.union(kind, at)
        if isinstance(kind, dict):
            if kind["type"] == "array":
                return self.array(kind["items"], at)
            if kind["type"] == "enum":
                numbers, ends = self.longs(at)
                return pa.array(numbers), ends
            if kind["type"] == "record":  # an element of an array
                members: dict[str, pa.Array] = {}
                ends = self.record(kind, at, "", members)
                return pa.StructArray.from_arrays(list(members.values()), names=list(members)), ends
        elif kind in ("int", "long"):
            numbers, ends = self.longs(at)
            return pa.array(numbers), ends
        elif kind in ("bytes", "string"):
            return self.strings(at, text=kind == "string")
        elif kind == "null":
            return pa.nulls(len(at)), at
        elif kind in _FIXED_WIDTH:
            width, dtype = _FIXED_WIDTH[kind]
            content = self.data[at[:, None] + np.arange(width)]
            return pa.array(np.ascontiguousarray(content).view(dtype).reshape(-1)), at + width
        raise UnsupportedFormat(f"Avro type {kind!r} is not supported.")

    def union(self, branches: list[Any], at: I64) -> tuple[pa.Array, I64]:
        present, rows, ends = self.branch(branches, at)
        if not len(rows):
            return pa.nulls(len(at), arrow_type(present)), ends
        values, value_ends = self.value(present, ends[rows])
        ends[rows] = value_ends
        return _spread(values, rows, len(at)), ends

    def branch(self, branches: list[Any], at: I64) -> tuple[Any, I64, I64]:
        """``(the type that is not null, rows that have it, where the branch number ends)`` of an optional field."""
        if len(branches) != 2 or "null" not in branches:
            raise UnsupportedFormat(f"An Avro union of {len(branches)} types is not supported.")
        branch_numbers, ends = self.longs(at)
        if len(at) and not ((branch_numbers == 0) | (branch_numbers == 1)).all():
            raise DamageError("a union names a branch that it does not have")
        null_index = branches.index("null")
        return branches[1 - null_index], np.flatnonzero(branch_numbers != null_index), ends

    def array(self, items: Any, at: I64) -> tuple[pa.Array, I64]:
        counts = np.zeros(len(at), dtype=np.int64)
        pieces, piece_rows, piece_steps = [], [], []
        ends = at.copy()
        open_rows = np.arange(len(at), dtype=np.int64)
        while len(open_rows):
            counts_left, ends[open_rows] = self.longs(ends[open_rows])
            sized = open_rows[counts_left < 0]
            if len(sized):
                _, ends[sized] = self.longs(ends[sized])
            counts_left = np.abs(counts_left)
            if len(counts_left) and int(counts_left.max()) > self.end:
                raise DamageError("an array claims more elements than there are bytes")
            open_rows, counts_left = open_rows[counts_left > 0], counts_left[counts_left > 0]
            rows = open_rows
            while len(rows):
                piece, ends[rows] = self.value(items, ends[rows])
                pieces.append(piece)
                piece_rows.append(rows)
                piece_steps.append(counts[rows])
                counts[rows] += 1
                counts_left = counts_left - 1
                rows, counts_left = rows[counts_left > 0], counts_left[counts_left > 0]
        offsets = np.zeros(len(at) + 1, dtype=np.int32)
        np.cumsum(counts, out=offsets[1:])
        if not pieces:
            return pa.ListArray.from_arrays(pa.array(offsets), pa.nulls(0, arrow_type(items))), ends
        order = np.empty(int(counts.sum()), dtype=np.int64)
        order[offsets[np.concatenate(piece_rows)] + np.concatenate(piece_steps)] = np.arange(len(order))
        values = pa.concat_arrays(pieces).take(pa.array(order))
        return pa.ListArray.from_arrays(pa.array(offsets), values), ends

    def record(self, kind: Any, at: I64, prefix: str, columns: dict[str, pa.Array]) -> I64:
        """Decode every field of a record into `columns`; return the ends of the records."""
        if isinstance(kind, list):
            present, rows, ends = self.branch(kind, at)
            inner: dict[str, pa.Array] = {}
            ends[rows] = self.record(present, ends[rows], prefix, inner)
            columns.update({name: _spread(values, rows, len(at)) for name, values in inner.items()})
            return ends
        for field in kind["fields"]:
            name = prefix + field["name"]
            if is_record(field["type"]):
                at = self.record(field["type"], at, name + ".", columns)
            else:
                columns[name], at = self.value(field["type"], at)
        return at


def _spread(values: pa.Array, rows: I64, count: int) -> pa.Array:
    """Values of some rows as a column of all rows, null elsewhere."""
    if len(rows) == count:
        return values
    indices = np.zeros(count, dtype=np.int64)
    indices[rows] = np.arange(len(rows))
    absent = np.ones(count, dtype=np.bool_)
    absent[rows] = False
    return values.take(pa.array(indices, mask=absent))


# Encoding -------------------------------------------------------------------------------------------------------------


class RecordSchema:
    """An Avro record schema, with its text and an encoder for each plain field."""

    def __init__(self, record: dict[str, Any]) -> None:
        self.record = record
        self.text = json.dumps(record).encode()
        self.leaves = tuple(_leaves_of(record, ""))

    @classmethod
    def of(cls, name: str, fields: Mapping[str, Any], *, names: Mapping[str, str] | None = None) -> RecordSchema:
        """The schema of a record with these leaves.

        Args:
            name: of the record.
            fields: the type of each leaf by its path (``_FILE._FILE_NAME``), in order; a list of types, null first,
                makes the field optional.
            names: of nested records, by field; default: ``record`` and the field.
        """
        return cls(_record(name, fields, names or {}))


def _record(name: str, fields: Mapping[str, Any], names: Mapping[str, str]) -> dict[str, Any]:
    record_fields: list[dict[str, Any]] = []
    for field, paths in itertools.groupby(fields, lambda path: path.partition(".")[0]):
        if field in fields:
            (path,) = paths
            record_fields.append({"name": field, "type": fields[path]})
            if isinstance(fields[path], list):
                record_fields[-1]["default"] = None
        else:
            child_fields = {path.partition(".")[2]: fields[path] for path in paths}
            record_fields.append(
                {"name": field, "type": _record(names.get(field, f"record{field}"), child_fields, names)}
            )
    return {"type": "record", "name": name, "fields": record_fields}


def encode_columns(schema: RecordSchema, columns: Mapping[str, pa.Array], count: int) -> bytes:
    """Encode `count` records as a container file; inverse of `decode_columns`.

    Args:
        schema: a record of ints, longs, bytes, strings, arrays of these, optional ones, and records of them.
        columns: by path, each with `count` elements.
    """
    if count <= SMALL_COUNT_MAX:
        return encode_values(schema, {path: column.to_pylist() for path, column in columns.items()}, count)
    parts: list[pa.Array] = []
    _encode_record(schema.record, columns, "", parts)
    records, lengths = _join_bytes(*parts)
    return _container(schema, records.data, lengths)


def encode_values(schema: RecordSchema, values: Mapping[str, Sequence[Any]], count: int) -> bytes:
    """`encode_columns` from Python values by path.

    For few records: up to `SMALL_COUNT_MAX` a loop is faster than whole columns.
    """
    rows = [bytearray() for _ in range(count)]
    for path, encode in schema.leaves:
        for row, value in zip(rows, values[path], strict=True):
            row += encode(value)
    return _container(schema, memoryview(b"".join(rows)), np.array([len(row) for row in rows], dtype=np.int64))


def _container(schema: RecordSchema, content: memoryview, lengths: I64) -> bytes:
    compressor = zstandard.ZstdCompressor(write_checksum=True)
    header = encode_header(
        {
            "avro.codec": "zstandard",
            "avro.schema": schema.text,
            # Some readers require header entries to be text.
            LENGTHS_KEY.decode(): base64.b64encode(compressor.compress(lengths.astype("<u4").tobytes())),
        }
    )
    sync = digest(header)
    out = bytearray(header + sync)
    ends = np.cumsum(lengths)
    starts = ends - lengths
    first, count = 0, len(lengths)
    while first < count:
        last = max(first + 1, int(np.searchsorted(ends, starts[first] + BLOCK_BYTES_TARGET, side="right")))
        block = compressor.compress(content[int(starts[first]) : int(ends[last - 1])])
        out += encode_long(last - first) + encode_long(len(block)) + block + sync
        first = last
    return bytes(out)


def _leaves_of(record: Mapping[str, Any], prefix: str) -> Iterator[tuple[str, Callable[[Any], bytes]]]:
    """Path and encoder of every field that is not a record, in order."""
    for field in record["fields"]:
        kind, path = field["type"], prefix + field["name"]
        if isinstance(kind, dict) and kind["type"] == "record":
            yield from _leaves_of(kind, path + ".")
        else:
            yield path, _encoder_of(kind)


def _encoder_of(kind: Any) -> Callable[[Any], bytes]:
    if isinstance(kind, list):
        null_index = kind.index("null")
        null, some, inner = encode_long(null_index), encode_long(1 - null_index), _encoder_of(kind[1 - null_index])
        return lambda value: null if value is None else some + inner(value)
    if isinstance(kind, dict) and kind["type"] == "array":
        item = _encoder_of(kind["items"])
        return lambda values: encode_long(len(values)) + b"".join(map(item, values)) + b"\x00" if values else b"\x00"
    if isinstance(kind, dict) and kind["type"] == "record":  # an element of an array
        members = [(field["name"], _encoder_of(field["type"])) for field in kind["fields"]]
        return lambda value: b"".join(encode(value[name]) for name, encode in members)
    type_name = kind["type"] if isinstance(kind, dict) else kind
    return encode_long if type_name in ("int", "long") else encode_text


def _encode_record(
    schema: Mapping[str, Any], columns: Mapping[str, pa.Array], prefix: str, parts: list[pa.Array]
) -> None:
    for field in schema["fields"]:
        kind, name = field["type"], prefix + field["name"]
        if isinstance(kind, dict) and kind["type"] == "record":
            _encode_record(kind, columns, name + ".", parts)
        else:
            parts.append(_large_binary(*_encode(kind, columns[name])))


def _large_binary(blob: Bytes, lengths: I64) -> pa.Array:
    offsets = np.zeros(len(lengths) + 1, dtype=np.int64)
    np.cumsum(lengths, out=offsets[1:])
    return pa.Array.from_buffers(pa.large_binary(), len(lengths), [None, pa.py_buffer(offsets), pa.py_buffer(blob)])


def _encode(kind: Any, array: pa.Array) -> tuple[Bytes, I64]:
    """Encode one field of every record: the concatenated bytes, and the number of bytes of each."""
    if isinstance(kind, list):
        return _encode_optional(kind, array)
    if isinstance(kind, dict) and kind["type"] == "array":
        return _encode_array(kind["items"], array)
    type_name = kind["type"] if isinstance(kind, dict) else kind
    if type_name in ("int", "long"):
        return _encode_longs(array.cast(pa.int64()).to_numpy(zero_copy_only=False))
    buffer, starts, lengths = byte_strings(array)
    sizes, size_lengths = _encode_longs(lengths)
    contents = _large_binary(gather_bytes(buffer, starts, lengths), lengths)
    return _join_bytes(_large_binary(sizes, size_lengths), contents)


def _join_bytes(*parts: pa.Array) -> tuple[Bytes, I64]:
    rows = pc.binary_join_element_wise(*parts, pa.scalar(b"", pa.large_binary()))
    buffer, _, lengths = byte_strings(rows)
    return buffer[: int(lengths.sum())], lengths


def _encode_longs(values: I64) -> tuple[Bytes, I64]:
    zigzag = ((values << 1) ^ (values >> 63)).view(np.uint64)
    lengths = np.ones(len(values), dtype=np.int64)
    for size in range(1, VARINT_BYTES_MAX):
        longer = zigzag >= np.uint64(1 << (7 * size))
        if not longer.any():
            break
        lengths += longer
    starts = np.cumsum(lengths) - lengths
    blob = np.empty(int(lengths.sum()), dtype=np.uint8)
    rows = np.arange(len(values), dtype=np.int64)
    step = 0
    while len(rows):
        has_more = lengths[rows] > step + 1
        byte = ((zigzag[rows] >> np.uint64(7 * step)) & np.uint64(0x7F)).astype(np.uint8)
        blob[starts[rows] + step] = byte | (has_more.astype(np.uint8) << 7)
        rows = rows[has_more]
        step += 1
    return blob, lengths


def _encode_optional(branches: list[Any], array: pa.Array) -> tuple[Bytes, I64]:
    null_index = branches.index("null")
    valid = valid_mask(array)
    tags = np.where(valid, 2 * (1 - null_index), 2 * null_index).astype(np.uint8)
    ones = np.ones(len(tags), dtype=np.int64)
    if not valid.any():
        return tags, ones
    blob, inner = _encode(branches[1 - null_index], array if valid.all() else array.filter(pa.array(valid)))
    lengths = np.zeros(len(tags), dtype=np.int64)
    lengths[valid] = inner
    return _join_bytes(_large_binary(tags, ones), _large_binary(blob, lengths))


def _encode_array(items: Any, array: pa.Array) -> tuple[Bytes, I64]:
    counts = pc.list_value_length(array).to_numpy(zero_copy_only=False).astype(np.int64)
    blob, item_lengths = _encode(items, array.flatten())
    edges = np.zeros(len(item_lengths) + 1, dtype=np.int64)
    np.cumsum(item_lengths, out=edges[1:])
    item_ends = np.cumsum(counts)
    lengths = edges[item_ends] - edges[item_ends - counts]
    # An empty array is only an end mark; any other is one block.
    sizes, size_lengths = _encode_longs(counts)
    ends = np.zeros(int((counts > 0).sum()), dtype=np.uint8)
    return _join_bytes(
        _large_binary(sizes, size_lengths),
        _large_binary(blob, lengths),
        _large_binary(ends, (counts > 0).astype(np.int64)),
    )
