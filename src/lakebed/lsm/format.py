"""The bytes of a sorted file, but for its blocks and filter: index, statistics, footer. Pure.

Owns: the layout (`docs/format/sorted-file.md` defines every byte), the checksums, and how damaged or newer
files are detected.

    blocks ... | filter | index | statistics | footer | trailer
               ^ tail_offset

Invariants: every byte of a file lies under exactly one checksum (a block's stands in the index, a section's in the
footer, the footer's in the trailer); checksums are xxh3-64 seeded with the place where the bytes begin, so right bytes
in the wrong place are wrong; parts follow each other without a gap. Whatever is wrong is `Corruption` with path and
offset, or `UnsupportedFormat`.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import Final, NoReturn

import msgspec
import numpy as np
import pyarrow as pa
from xxhash import xxh3_64_intdigest

from lakebed.errors import Corruption, UnsupportedFormat
from lakebed.lsm.block import BlockEntry, keys_of
from lakebed.lsm.filter import FILTER_BLOCK_BYTES, Filter
from lakebed.lsm.model import FileMeta

MAGIC: Final = b"lakebed\x01"
"""The last eight bytes of every sorted file. On disk: DO NOT CHANGE."""

FORMAT_VERSION: Final = 1
"""What this code writes, and the newest that it reads."""

_TRAILER: Final = struct.Struct("<IQ8s")  # footer's bytes, footer's checksum, magic. On disk: DO NOT CHANGE

INDEX_SCHEMA: Final = pa.schema(
    [
        pa.field("first_key", pa.binary(), nullable=False),
        pa.field("offset", pa.uint64(), nullable=False),
        pa.field("length", pa.uint32(), nullable=False),
        pa.field("row_count", pa.uint32(), nullable=False),
        pa.field("checksum", pa.uint64(), nullable=False),
        pa.field("min_sequence", pa.uint64(), nullable=False),
        pa.field("max_sequence", pa.uint64(), nullable=False),
        pa.field("flags", pa.uint8(), nullable=False),
        pa.field("codec", pa.uint8(), nullable=False),
        pa.field("raw_length", pa.uint32(), nullable=False),
    ]
)
"""One row a block, in the order of the file. On disk: DO NOT CHANGE."""

_PYTHON_BYTES_OF_BLOCK: Final = 64
"""What a first key costs in addition to its bytes: a bytes object and its slot in a list."""
_PYTHON_BYTES_OF_TAIL: Final = 4096
"""What the objects around one tail cost."""


class Section(msgspec.Struct, frozen=True):
    """Where a part of the tail is. Field names are on disk: DO NOT CHANGE."""

    offset: int
    length: int
    checksum: int


class Footer(msgspec.Struct, frozen=True):
    """What a reader must know before anything else. Field names are on disk: DO NOT CHANGE."""

    format: int
    min_reader: int
    """Oldest `FORMAT_VERSION` that may read the file."""
    features: tuple[str, ...]
    """What a reader must know how to do, by name."""
    filter: Section
    index: Section
    statistics: Section


class _Envelope(msgspec.Struct, frozen=True):
    """What every footer of any version has."""

    format: int
    min_reader: int
    features: tuple[str, ...]


class Statistics(msgspec.Struct, frozen=True):
    """What a version remembers of the file, but for its size. Field names are on disk: DO NOT CHANGE."""

    id: str
    tail_offset: int
    row_count: int
    first_key: bytes
    last_key: bytes
    min_sequence: int
    max_sequence: int
    tombstone_count: int
    merge_count: int
    expiring_count: int


@dataclass(frozen=True, slots=True)
class Tail:
    """Everything of a file but its blocks, decoded: what an open file is."""

    filter: Filter
    first_keys: list[bytes]
    """Of each block, ascending."""
    flags: bytes
    offsets: memoryview
    lengths: memoryview
    row_counts: memoryview
    checksums: memoryview
    min_sequences: memoryview
    max_sequences: memoryview
    codecs: memoryview
    raw_lengths: memoryview
    size_bytes: int
    """What it holds in memory."""

    @property
    def block_count(self) -> int:
        """Number of blocks, at least one."""
        return len(self.first_keys)

    def block(self, number: int) -> BlockEntry:
        """What the index says of a block."""
        return BlockEntry(
            self.offsets[number],
            self.lengths[number],
            self.row_counts[number],
            self.checksums[number],
            self.min_sequences[number],
            self.max_sequences[number],
            self.flags[number],
            self.codecs[number],
            self.raw_lengths[number],
        )

    def entries(self, first: int, last: int) -> Iterator[BlockEntry]:
        """What the index says of the blocks [first, last)."""
        return map(
            BlockEntry,
            self.offsets[first:last].tolist(),
            self.lengths[first:last].tolist(),
            self.row_counts[first:last].tolist(),
            self.checksums[first:last].tolist(),
            self.min_sequences[first:last].tolist(),
            self.max_sequences[first:last].tolist(),
            self.flags[first:last],
            self.codecs[first:last].tolist(),
            self.raw_lengths[first:last].tolist(),
        )


def encode_tail(meta: FileMeta, *, filter_body: bytes, index: pa.RecordBatch) -> bytes:
    """Filter, index, statistics, footer and trailer, to stand at ``meta.tail_offset``; its size is not read."""
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, INDEX_SCHEMA) as writer:
        writer.write_batch(index)
    fields = {name: getattr(meta, name) for name in Statistics.__struct_fields__}
    bodies = (filter_body, sink.getvalue().to_pybytes(), msgspec.json.encode(Statistics(**fields)))
    sections = []
    offset = meta.tail_offset
    for body in bodies:
        sections.append(Section(offset, len(body), xxh3_64_intdigest(body, seed=offset)))
        offset += len(body)
    footer = msgspec.json.encode(Footer(FORMAT_VERSION, FORMAT_VERSION, (), *sections))
    trailer = _TRAILER.pack(len(footer), xxh3_64_intdigest(footer, seed=offset), MAGIC)
    return b"".join((*bodies, footer, trailer))


def decode_tail(body: memoryview, *, meta: FileMeta, path: str) -> Tail:
    """Check and decode the bytes from ``meta.tail_offset`` to the end of the file.

    Raises:
        Corruption: they are not what was written, or belong to another file than `meta` tells of.
        UnsupportedFormat: a newer lakebed wrote them.
    """
    if len(body) != meta.size_bytes - meta.tail_offset:
        _corrupt(path, meta.tail_offset + len(body), f"it ends here, and {meta.size_bytes:,} bytes were written to it")
    footer, footer_offset = _footer(body, meta=meta, path=path)
    parts: list[memoryview] = []
    expected = meta.tail_offset
    for name, section in (("filter", footer.filter), ("index", footer.index), ("statistics", footer.statistics)):
        if section.offset != expected or section.length < 0 or section.offset + section.length > footer_offset:
            _corrupt(path, expected, f"its {name} is said to be at {section.offset:,}, {section.length:,} bytes long")
        start = section.offset - meta.tail_offset
        part = body[start : start + section.length]
        if xxh3_64_intdigest(part, seed=section.offset) != section.checksum:
            _corrupt(path, section.offset, f"the checksum of its {name} is wrong")
        parts.append(part)
        expected += section.length
    if expected != footer_offset:
        _corrupt(path, expected, "there are bytes between its statistics and its footer")
    if len(parts[0]) % FILTER_BLOCK_BYTES:
        _corrupt(path, meta.tail_offset, f"its filter has {len(parts[0]):,} bytes, no whole number of blocks")
    _check_statistics(parts[2], meta=meta, path=path, offset=footer.statistics.offset)
    return _tail(parts[0], parts[1], body=body, meta=meta, path=path, offset=footer.index.offset)


def _footer(body: memoryview, *, meta: FileMeta, path: str) -> tuple[Footer, int]:
    """The footer, and where it begins in the file."""
    trailer_offset = meta.size_bytes - _TRAILER.size
    if len(body) < _TRAILER.size:
        _corrupt(path, meta.tail_offset, "its tail is too short to be one")
    length, checksum, magic = _TRAILER.unpack(body[-_TRAILER.size :])
    if magic != MAGIC:
        _corrupt(path, meta.size_bytes - len(MAGIC), "it does not end as a sorted file does")
    offset = trailer_offset - length
    if offset < meta.tail_offset:
        _corrupt(path, trailer_offset, f"its footer is said to have {length:,} bytes")
    text = body[offset - meta.tail_offset : len(body) - _TRAILER.size]
    if xxh3_64_intdigest(text, seed=offset) != checksum:
        _corrupt(path, offset, "the checksum of its footer is wrong")
    try:
        envelope = msgspec.json.decode(text, type=_Envelope)
    except msgspec.DecodeError as error:
        _corrupt(path, offset, f"its footer cannot be read ({error})", cause=error)
    if envelope.min_reader > FORMAT_VERSION:
        raise UnsupportedFormat(
            f"{path} is a sorted file of format {envelope.format}, which needs a reader of at least "
            f"{envelope.min_reader}, and this lakebed reads up to {FORMAT_VERSION}: upgrade lakebed.",
            path=path,
            format=envelope.format,
        )
    if envelope.features:
        raise UnsupportedFormat(
            f"{path} is a sorted file with {', '.join(envelope.features)}, which this lakebed does not know: upgrade.",
            path=path,
            features=envelope.features,
        )
    try:
        return msgspec.json.decode(text, type=Footer), offset
    except msgspec.DecodeError as error:
        _corrupt(path, offset, f"its footer cannot be read ({error})", cause=error)


def _check_statistics(text: memoryview, *, meta: FileMeta, path: str, offset: int) -> None:
    try:
        statistics = msgspec.json.decode(text, type=Statistics)
    except msgspec.DecodeError as error:
        _corrupt(path, offset, f"its statistics cannot be read ({error})", cause=error)
    for name in Statistics.__struct_fields__:
        written, remembered = getattr(statistics, name), getattr(meta, name)
        if written != remembered:
            _corrupt(path, offset, f"its {name} is {written!r}, and the version that names it says {remembered!r}")


def _tail(
    filter_body: memoryview, index_body: memoryview, *, body: memoryview, meta: FileMeta, path: str, offset: int
) -> Tail:
    try:
        with pa.ipc.open_stream(pa.py_buffer(index_body)) as reader:
            index = reader.read_next_batch()
    except (pa.ArrowException, OSError, EOFError, StopIteration) as error:
        _corrupt(path, offset, f"its index cannot be read ({error})", cause=error)
    if not index.schema.equals(INDEX_SCHEMA) or not index.num_rows:
        _corrupt(path, offset, f"its index has {index.num_rows} rows of {index.schema.names}")
    # Copies, for what is read stands at any address, and views of numbers want theirs to be even.
    offsets, lengths, row_counts, checksums, min_sequences, max_sequences, flags, codecs, raw_lengths = (
        index.column(position).to_numpy().copy() for position in range(1, index.num_columns)
    )
    ends = np.cumsum(lengths, dtype=np.uint64)
    if not np.array_equal(offsets, ends - lengths) or int(ends[-1]) != meta.tail_offset:
        _corrupt(path, offset, "its blocks do not follow each other up to its tail")
    if int(row_counts.sum()) != meta.row_count or int(row_counts.min()) < 1:
        _corrupt(path, offset, f"its blocks have {int(row_counts.sum()):,} rows, and the file {meta.row_count:,}")
    first_keys = keys_of(index.column(0))
    if first_keys[0] != meta.first_key or any(left > right for left, right in pairwise(first_keys)):
        _corrupt(path, offset, "its blocks are not in the order of their keys")
    return Tail(
        Filter(filter_body),
        first_keys,
        flags.tobytes(),
        offsets.data,
        lengths.data,
        row_counts.data,
        checksums.data,
        min_sequences.data,
        max_sequences.data,
        codecs.data,
        raw_lengths.data,
        size_bytes=len(body) + len(index_body) + len(first_keys) * _PYTHON_BYTES_OF_BLOCK + _PYTHON_BYTES_OF_TAIL,
    )


def _corrupt(path: str, offset: int, what: str, *, cause: BaseException | None = None) -> NoReturn:
    raise Corruption(f"{path} is damaged at byte {offset:,}: {what}.", path=path, offset=offset) from cause
