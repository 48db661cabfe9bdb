"""The bytes of a sorted file, except for its blocks and filter: index, pages, statistics, footer. Pure.

Owns: the layout (`docs/format/sorted-file.md` defines every byte), the checksums, and how damaged or newer
files are detected.

    blocks ... | filter | index | pages | statistics | footer | trailer
               ^ tail_offset

Files of version 1 have no section of pages: each of their blocks is one Arrow message. They are still read, but no
longer written.

Invariants:
- Every byte of a file is covered by the checksum of the smallest part that is read with it. The checksum of a page is
  in the section of pages, a block's in the index, a section's in the footer, and the footer's in the trailer.
- Checksums are xxh3-64, seeded with the offset of the first byte, so the right bytes in the wrong place are detected.
- Parts follow each other without a gap.
- Any violation is `Corruption` with path and offset, or `UnsupportedFormat`.
"""

from __future__ import annotations

import struct
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import reduce
from itertools import groupby, pairwise
from operator import and_
from typing import Any, Final, NoReturn

import msgspec
import numpy as np
import numpy.typing as npt
import pyarrow as pa
from xxhash import xxh3_64_intdigest

from lakebed.decoding import decode_json
from lakebed.errors import Corruption, LakebedError, UnsupportedFormat
from lakebed.lsm.block import (
    CODECS,
    CONTINUES,
    NOT_COMPRESSED,
    PLAIN,
    TOMBSTONES_ONLY,
    Block,
    BlockEntry,
    damage_error,
    decode_block,
    offsets_of,
    unknown_codec_error,
)
from lakebed.lsm.columns import numbers_of
from lakebed.lsm.filter import FILTER_BLOCK_BYTES, Filter
from lakebed.lsm.key_batch import KeyBatch, count_common, cut, words_of
from lakebed.lsm.model import FileMeta
from lakebed.lsm.page import PAGE_HEADER_BYTES, BadPageError, batch_of_run, unpack_each, unpack_pages

MAGIC: Final = b"lakebed\x01"
"""The last eight bytes of every sorted file. On disk: DO NOT CHANGE."""

FORMAT_VERSION: Final = 2
"""The version that this code writes, and the newest that it reads."""

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
"""One row for each block, in the order of the file. On disk: DO NOT CHANGE."""

_PYTHON_BYTES_OF_BLOCK: Final = 72
"""Memory of a first key in addition to its bytes: a bytes object, its slot in a list, and the first page's number."""
_PAGE_ENTRY: Final = struct.Struct("=QQIIIBBxx")
_PAGE_TYPE: Final = np.dtype(
    [
        ("start", np.uint64),
        ("checksum", np.uint64),
        ("length", np.uint32),
        ("raw_length", np.uint32),
        ("block", np.uint32),
        ("codec", np.uint8),
        ("flags", np.uint8),
        ("unused", np.uint16),
    ]
)
"""The same values as `PageEntry`, contiguous in memory. Only in memory."""
PAGE_ENTRY_BYTES: Final = _PAGE_ENTRY.size
read_page_entry: Final = _PAGE_ENTRY.unpack_from
"""`PageEntry` as a plain tuple, from `Pages.octets` at `PAGE_ENTRY_BYTES` times the number of the page."""

_PYTHON_BYTES_OF_PAGE: Final = 89
"""Memory of a page after `Pages.load`, without its separator's bytes: a bytes object, its slot, its word, its entry."""
_FEW_KEYS: Final = 16
"""Up to this count, keys are looked up one by one: setting up arrays would take longer."""
_INDEX_ENTRY_BYTES: Final = 50
"""Bytes of a block in the index, in addition to its key."""
_PYTHON_BYTES_OF_TAIL: Final = 4096
"""Memory of the objects around one tail."""


class Section(msgspec.Struct, frozen=True):
    """Where a part of the tail is. Field names are on disk: DO NOT CHANGE."""

    offset: int
    length: int
    checksum: int


class Footer(msgspec.Struct, frozen=True):
    """The values that a reader needs before any others. Field names are on disk: DO NOT CHANGE."""

    format: int
    min_reader: int
    """Oldest `FORMAT_VERSION` that may read the file."""
    features: tuple[str, ...]
    """Names of the features that a reader must support."""
    filter: Section
    index: Section
    statistics: Section
    pages: Section | None = None
    """None: version 1."""


class _Envelope(msgspec.Struct, frozen=True):
    """The fields that the footers of all versions have."""

    format: int
    min_reader: int
    features: tuple[str, ...]


class Statistics(msgspec.Struct, frozen=True):
    """The values that a version remembers of the file, except its size. Field names are on disk: DO NOT CHANGE."""

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


@dataclass(slots=True)
class PageColumns:
    """The directory of pages while a file is written. The order of the fields is on disk: DO NOT CHANGE."""

    page_counts: list[int]
    """Number of pages of each block."""
    prefix_bytes: list[int]
    """For each block, the length of the prefix of its first key that precedes every separator."""
    ends: list[int]
    """End of each page, relative to the start of its block."""
    raw_lengths: list[int]
    separators: list[bytes]
    """Separator of each page, without the prefix; empty for the first page of a block."""
    checksums: list[int]

    def encode(self) -> bytes:
        """Return the bytes of the section."""
        separator_ends = np.cumsum(np.fromiter(map(len, self.separators), np.int64, len(self.separators)))
        columns = (self.page_counts, self.prefix_bytes, self.ends, self.raw_lengths, separator_ends)
        parts = [len(self.ends).to_bytes(4, "little"), *(np.asarray(column, "<u4").tobytes() for column in columns)]
        return b"".join([*parts, np.asarray(self.checksums, "<u8").tobytes(), *self.separators])


PageEntry = tuple[int, int, int, int, int, int, int]
"""A page: its start, its checksum, its length as stored and before compression, its block's number, codec and flags."""


@dataclass(slots=True)
class Pages:
    """The directory of the pages of a file: the place of each page and the key with which it begins.

    It is read where it is stored: in the map of the file, or in the tail that a request read. A page is found by the
    first keys of the blocks, and then by the separators of one block. `load` makes a form that is searched in fewer
    steps, and takes about 100 bytes for each page. As a sequence, this is the key with which each page begins: no key
    in the page, or behind it, is smaller.
    """

    first_keys: list[bytes]
    """First key of each block."""
    starts: memoryview
    """Number of the first page of each block, followed by the count of pages."""
    ends: memoryview
    """End of each page, relative to the start of its block. This and the following columns are as stored."""
    raw_lengths: memoryview
    checksums: memoryview
    separators: memoryview
    """Concatenated separators of all pages, without the prefix that those of a block have in common."""
    separator_ends: memoryview
    prefix_bytes: memoryview
    """For each block, the length of the prefix of its first key that precedes every separator."""
    raw_length_max: int
    common_bytes: int
    """Length of the common prefix of all keys of the file."""
    block_columns: dict[str, npt.NDArray[Any]]
    """The columns of the index, with one value for each block."""
    loaded_bytes: int
    """Approximate memory of the results of `load`."""
    search_count: int = 0
    """Number of searches before `load`. A lost update does no harm."""
    keys: list[bytes] | None = None
    """The keys with which all pages begin; None: not loaded. The attributes below exist if this is not None."""
    table: npt.NDArray[np.void] = field(init=False, repr=False)
    """For each page its start, its checksum, its length as stored and before compression, its block's number, codec
    and flags."""
    octets: memoryview = field(init=False, repr=False)
    """The bytes of `table`."""
    words: npt.NDArray[np.uint64] | None = None
    """The 8 bytes behind `common_bytes` of each key of `keys`, as one number. Made at the first search of many keys."""

    def __len__(self) -> int:
        return len(self.ends)

    def __getitem__(self, page: int) -> bytes:
        if self.keys is not None:
            return self.keys[page]
        block = bisect_right(self.starts, page) - 1
        first_key = self.first_keys[block]
        return first_key if page == self.starts[block] else first_key[: self.prefix_bytes[block]] + self._text(page)

    def _text(self, page: int) -> bytes:
        """Return the separator of a page that is not the first of its block, as stored."""
        return self.separators[self.separator_ends[page - 1] : self.separator_ends[page]].tobytes()

    def find(self, key: bytes) -> int:
        """Return the only page that may contain a key; -1 if the key is below the first.

        If the versions of a key begin in the block before (`CONTINUES`), return the first page of the later block.
        Cost: 0.5 us, before `load` about 3 us.
        """
        if self.keys is not None:
            return bisect_right(self.keys, key) - 1
        block = bisect_right(self.first_keys, key) - 1
        return -1 if block < 0 else self.find_within(block, key)

    def find_within(self, block: int, key: bytes) -> int:
        """Return the only page of a block that may contain a key. The key is not below the first key of the block."""
        low, stop = self.starts[block] + 1, self.starts[block + 1]
        if self.keys is not None:
            return bisect_right(self.keys, key, low, stop) - 1
        prefix_bytes = self.prefix_bytes[block]
        if not key.startswith(self.first_keys[block][:prefix_bytes]):
            return stop - 1  # the key is above all keys of the block
        text = key[prefix_bytes:]
        while low < stop:
            middle = (low + stop) >> 1
            if text < self._text(middle):
                stop = middle
            else:
                low = middle + 1
        return low - 1

    def find_each(self, batch: KeyBatch) -> npt.NDArray[np.int64]:
        """As `find`, of some keys that begin with the common prefix of the file (`common_bytes`)."""
        first_keys, keys = self.keys, batch.keys
        if first_keys is None or len(keys) < _FEW_KEYS:
            return np.array(list(map(self.find, keys)))
        if self.words is None:
            self.words = words_of(first_keys, self.common_bytes)
        words = batch.words(self.common_bytes)
        numbers: npt.NDArray[np.int64] = self.words.searchsorted(words, side="right")
        numbers -= 1
        # If these 8 bytes are equal, the following bytes decide.
        for tie in (self.words.take(numbers, mode="clip") == words).nonzero()[0].tolist():
            numbers[tie] = bisect_right(first_keys, keys[tie]) - 1
        return numbers

    def entry(self, page: int) -> PageEntry:
        """Return the entry of a page. Cost: 0.2 us, before `load` about 1 us."""
        if self.keys is not None:
            return read_page_entry(self.octets, PAGE_ENTRY_BYTES * page)
        block, columns = bisect_right(self.starts, page) - 1, self.block_columns
        begin, end = self.ends[page - 1] if page > self.starts[block] else 0, self.ends[page]
        return (
            int(columns["offset"][block]) + begin,
            self.checksums[page],
            end - begin,
            self.raw_lengths[page],
            block,
            int(columns["codec"][block]),
            int(columns["flags"][block]),
        )

    def entries(self, first: int, behind: int) -> Iterable[PageEntry]:
        """As `entry`, of each of the pages [first, behind)."""
        if self.keys is not None:
            return _PAGE_ENTRY.iter_unpack(self.octets[PAGE_ENTRY_BYTES * first : PAGE_ENTRY_BYTES * behind])
        return map(self.entry, range(first, behind))

    def take(self, pages: Sequence[int] | npt.NDArray[np.int64]) -> npt.NDArray[np.void]:
        """As `table`, of some pages. A number below 0 stands for the first page."""
        if self.keys is not None:
            return self.table.take(pages, mode="clip")
        numbers = np.maximum(pages, 0)
        starts, columns = np.asarray(self.starts), self.block_columns
        blocks = starts.searchsorted(numbers, side="right") - 1
        ends = _take(self.ends, numbers)
        begins = np.where(starts.take(blocks) == numbers, 0, _take(self.ends, np.maximum(numbers - 1, 0)))
        table = np.zeros(len(numbers), _PAGE_TYPE)
        table["start"] = columns["offset"].take(blocks) + begins.astype(np.uint64)
        table["checksum"] = _take(self.checksums, numbers)
        table["length"] = ends - begins
        table["raw_length"] = _take(self.raw_lengths, numbers)
        table["block"] = blocks
        table["codec"] = columns["codec"].take(blocks)
        table["flags"] = columns["flags"].take(blocks)
        return table

    def load(self) -> None:
        """Make `keys` and `table`. Cost: about 0.4 us a page."""
        content, ends = bytes(self.separators), self.separator_ends.tolist()
        keys: list[bytes] = []
        for first_key, prefix_bytes, (first, last) in zip(
            self.first_keys, self.prefix_bytes.tolist(), pairwise(self.starts.tolist()), strict=True
        ):
            prefix = first_key[:prefix_bytes]
            keys.append(first_key)
            keys += [prefix + content[start:end] for start, end in pairwise(ends[first:last])]
        self.table = table = self.take(np.arange(len(keys)))
        self.octets = table.view(np.uint8).data
        self.keys = keys  # last: another thread reads the other attributes once this is set

    def as_stored(self) -> Pages:
        """Return the same directory, not loaded."""
        return replace(self, search_count=0, keys=None, words=None)


def _take(column: memoryview, places: npt.NDArray[np.int64]) -> npt.NDArray[Any]:
    """Take numbers from a column at any address. Records, because numpy would copy the whole unaligned column first."""
    records = np.frombuffer(column, np.dtype((np.void, column.itemsize)))
    return records.take(places).view(f"<u{column.itemsize}")


@dataclass(frozen=True, slots=True)
class Tail:
    """An open file: everything of the file except its blocks, checked.

    Of many files only the filter is used. So index and directory of pages are decoded at the first use of one of their
    attributes, which raises `Corruption` if they contradict themselves.
    """

    filter: Filter
    mapped: memoryview | None
    """The whole file, if its store can map it."""
    size_bytes: int
    """Approximate memory of this object, decoded."""
    decode: Callable[[], dict[str, Any]]
    """Returns the attributes below, by name."""
    first_keys: list[bytes] = field(init=False)
    """First key of each block, ascending."""
    flags: bytes = field(init=False)
    offsets: memoryview = field(init=False)
    lengths: memoryview = field(init=False)
    row_counts: memoryview = field(init=False)
    checksums: memoryview = field(init=False)
    min_sequences: memoryview = field(init=False)
    max_sequences: memoryview = field(init=False)
    codecs: memoryview = field(init=False)
    raw_lengths: memoryview = field(init=False)
    pages: Pages | None = field(init=False)
    """None: version 1."""

    def __getattr__(self, name: str) -> Any:
        """Decode. Cost: about 0.2 ms for 8,000 pages."""
        if name not in Tail.__slots__:
            raise AttributeError(name)
        for field_name, value in self.decode().items():
            object.__setattr__(self, field_name, value)
        return getattr(self, name)

    def unload_pages(self) -> None:
        """Undo `Pages.load`, even if it has just begun. A reader of the loaded form continues with it."""
        if self.pages is not None:
            object.__setattr__(self, "pages", self.pages.as_stored())

    @property
    def block_count(self) -> int:
        """Number of blocks, at least one."""
        return len(self.first_keys)

    def block(self, number: int) -> BlockEntry:
        """Return the entry of a block in the index."""
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
        """Yield the entries of the blocks [first, last) in the index."""
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


def encode_tail(meta: FileMeta, *, filter_body: bytes, index: pa.RecordBatch, pages: PageColumns) -> bytes:
    """Return the tail: filter, index, pages, statistics, footer and trailer. `meta` does not need its size."""
    fields = {name: getattr(meta, name) for name in Statistics.__struct_fields__}
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, INDEX_SCHEMA) as writer:
        writer.write_batch(index)
    bodies = (filter_body, sink.getvalue().to_pybytes(), pages.encode(), msgspec.json.encode(Statistics(**fields)))
    sections = []
    offset = meta.tail_offset
    for body in bodies:
        sections.append(Section(offset, len(body), xxh3_64_intdigest(body, seed=offset)))
        offset += len(body)
    at_filter, at_index, at_pages, at_statistics = sections
    footer = msgspec.json.encode(
        Footer(FORMAT_VERSION, FORMAT_VERSION, (), at_filter, at_index, at_statistics, at_pages)
    )
    trailer = _TRAILER.pack(len(footer), xxh3_64_intdigest(footer, seed=offset), MAGIC)
    return b"".join((*bodies, footer, trailer))


def decode_tail(body: memoryview, *, meta: FileMeta, path: str, mapped: memoryview | None = None) -> Tail:
    """Check and decode the bytes from ``meta.tail_offset`` to the end of the file.

    Args:
        mapped: the whole file, if blocks will be read there.

    Raises:
        Corruption: the bytes were changed, or belong to another file than the one that `meta` describes.
        UnsupportedFormat: a newer lakebed wrote the file.
    """
    if len(body) != meta.size_bytes - meta.tail_offset:
        _corrupt(path, meta.tail_offset + len(body), f"it ends here, and {meta.size_bytes:,} bytes were written to it")
    footer, footer_offset = _footer(body, size_bytes=meta.size_bytes, tail_offset=meta.tail_offset, path=path)
    sections = {"filter": footer.filter, "index": footer.index}
    if footer.pages is not None:
        sections["pages"] = footer.pages
    sections["statistics"] = footer.statistics
    parts: dict[str, memoryview] = {}
    expected = meta.tail_offset
    for name, section in sections.items():
        if section.offset != expected or section.length < 0 or section.offset + section.length > footer_offset:
            _corrupt(path, expected, f"its {name} is said to be at {section.offset:,}, {section.length:,} bytes long")
        start = section.offset - meta.tail_offset
        part = body[start : start + section.length]
        if xxh3_64_intdigest(part, seed=section.offset) != section.checksum:
            _corrupt(path, section.offset, f"the checksum of its {name} is wrong")
        parts[name] = part
        expected += section.length
    if expected != footer_offset:
        _corrupt(path, expected, "there are bytes between its statistics and its footer")
    if len(parts["filter"]) % FILTER_BLOCK_BYTES:
        _corrupt(path, meta.tail_offset, f"its filter has {len(parts['filter']):,} bytes, no whole number of blocks")
    _check_statistics(parts["statistics"], meta=meta, path=path, offset=footer.statistics.offset)

    def decode() -> dict[str, Any]:
        index = _Index(parts["index"], meta=meta, path=path, section=footer.index)
        pages = None if footer.pages is None else index.pages(parts["pages"], offset=footer.pages.offset)
        return {"pages": pages, **index.columns()}

    size_bytes = _estimate_bytes(parts) + (len(body) if mapped is None else 0)
    return Tail(Filter(parts["filter"]), mapped, size_bytes, decode)


def _estimate_bytes(parts: Mapping[str, memoryview]) -> int:
    """Return the approximate memory of the decoded index. The directory of pages is read where it is stored."""
    block_count = len(parts["index"]) // _INDEX_ENTRY_BYTES
    return _PYTHON_BYTES_OF_TAIL + len(parts["index"]) + block_count * _PYTHON_BYTES_OF_BLOCK


def _footer(body: memoryview, *, size_bytes: int, tail_offset: int, path: str) -> tuple[Footer, int]:
    """Return the footer in the tail of a file of `size_bytes`, and its offset in the file."""
    trailer_offset = size_bytes - _TRAILER.size
    if len(body) < _TRAILER.size:
        _corrupt(path, tail_offset, "its tail is too short to be one")
    length, checksum, magic = _TRAILER.unpack(body[-_TRAILER.size :])
    if magic != MAGIC:
        _corrupt(path, size_bytes - len(MAGIC), "it does not end as a sorted file does")
    offset = trailer_offset - length
    if offset < tail_offset:
        _corrupt(path, trailer_offset, f"its footer is said to have {length:,} bytes")
    text = body[offset - tail_offset : len(body) - _TRAILER.size]
    if xxh3_64_intdigest(text, seed=offset) != checksum:
        _corrupt(path, offset, "the checksum of its footer is wrong")
    try:
        envelope = decode_json(text, _Envelope)
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
        return decode_json(text, Footer), offset
    except msgspec.DecodeError as error:
        _corrupt(path, offset, f"its footer cannot be read ({error})", cause=error)


def read_meta(body: memoryview, *, path: str) -> FileMeta:
    """Return the entry that a version has of a file, from all bytes of the file: for a reader without such a version.

    Raises:
        Corruption, UnsupportedFormat: as `decode_tail`. Does not check the blocks.
    """
    footer, footer_offset = _footer(body, size_bytes=len(body), tail_offset=0, path=path)
    section = footer.statistics
    if section.length < 0 or not 0 <= section.offset <= footer_offset - section.length:
        _corrupt(path, footer_offset, f"its statistics are said to be at {section.offset:,}")
    text = body[section.offset : section.offset + section.length]
    if xxh3_64_intdigest(text, seed=section.offset) != section.checksum:
        _corrupt(path, section.offset, "the checksum of its statistics is wrong")
    statistics = _decode_statistics(text, path=path, offset=section.offset)
    return FileMeta(size_bytes=len(body), **msgspec.structs.asdict(statistics))


def _decode_statistics(text: memoryview, *, path: str, offset: int) -> Statistics:
    try:
        return decode_json(text, Statistics)
    except msgspec.DecodeError as error:
        _corrupt(path, offset, f"its statistics cannot be read ({error})", cause=error)


def _check_statistics(text: memoryview, *, meta: FileMeta, path: str, offset: int) -> None:
    statistics = _decode_statistics(text, path=path, offset=offset)
    for name in Statistics.__struct_fields__:
        file_value, stated_value = getattr(statistics, name), getattr(meta, name)
        if file_value != stated_value:
            _corrupt(path, offset, f"its {name} is {file_value!r}, and the version that names it says {stated_value!r}")


class _Index:
    """The index while it is checked.

    Args:
        body: the bytes of its section.
    """

    def __init__(self, body: memoryview, *, meta: FileMeta, path: str, section: Section) -> None:
        self._path, self._offset = path, section.offset
        self._last_key = meta.last_key
        index = self._read(body)
        # Copies, because the bytes may be at any address, and views of numbers need aligned ones.
        self._columns = {
            name: numbers_of(index.column(position)).copy()
            for position, name in enumerate(index.schema.names)
            if position
        }
        lengths, row_counts = self._columns["length"], self._columns["row_count"]
        ends = np.cumsum(lengths, dtype=np.uint64)
        if not np.array_equal(self._columns["offset"], ends - lengths) or int(ends[-1]) != meta.tail_offset:
            self._fail("its blocks do not follow each other up to its tail")
        if int(row_counts.sum()) != meta.row_count or int(row_counts.min()) < 1:
            self._fail(f"its blocks have {int(row_counts.sum()):,} rows, and the file {meta.row_count:,}")
        offsets = offsets_of(index.column(0)).astype(np.int64)
        self._key_lengths = np.diff(offsets)
        self._first_keys = cut(index.column(0).buffers()[2], offsets[:-1], offsets[1:])
        if self._first_keys[0] != meta.first_key or self._first_keys != sorted(self._first_keys):
            self._fail("its blocks are not in the order of their keys")

    def pages(self, body: memoryview, *, offset: int) -> Pages:
        """Check and decode the directory of pages, which is at `offset`."""
        block_count = len(self._first_keys)
        count = int.from_bytes(body[:4], "little")
        numbers_end = 4 + 4 * (2 * block_count + 3 * count)
        if len(body) < numbers_end + 8 * count or not count:
            self._fail(f"its directory of pages has {len(body):,} bytes, and {count:,} pages", offset=offset)
        # In a mapped file these are at any address. Aligned copies are checked and then dropped.
        columns: list[memoryview] = []
        place = 4
        for length in (block_count, block_count, count, count, count):
            columns.append(body[place : place + 4 * length].cast("I"))
            place += 4 * length
        counts, prefixes, ends, raw_lengths, separator_ends = (np.array(column) for column in columns)
        starts = np.zeros(block_count + 1, np.int64)
        np.cumsum(counts, out=starts[1:])
        if not counts.all() or starts[-1] != count:
            self._fail(f"its blocks have {starts[-1]:,} pages, and {count:,} are named", offset=offset)
        grows = np.ones(count + 1, bool)
        np.greater(ends[1:], ends[:-1], out=grows[1:-1])
        grows[starts] = True
        if not grows.all() or not ends.all() or not np.array_equal(ends[starts[1:] - 1], self._columns["length"]):
            self._fail("the pages of a block do not follow each other up to its end", offset=offset)
        if int(raw_lengths.min()) < PAGE_HEADER_BYTES:
            self._fail(f"it has a page of {int(raw_lengths.min())} bytes, less than the header of one", offset=offset)
        texts = body[numbers_end + 8 * count :]
        if (separator_ends[1:] < separator_ends[:-1]).any() or int(separator_ends[-1]) != len(texts):
            self._fail("the keys between pages do not follow each other up to its end", offset=offset)
        if (prefixes > self._key_lengths).any():
            self._fail("the pages of a block share more than its first key has", offset=offset)
        prefixes_length = int((prefixes.astype(np.int64) * (counts.astype(np.int64) - 1)).sum())
        return Pages(
            self._first_keys,
            starts.data,
            columns[2],
            columns[3],
            body[numbers_end : numbers_end + 8 * count].cast("Q"),
            texts,
            columns[4],
            columns[1],
            int(raw_lengths.max()),
            count_common(self._first_keys[0], self._last_key),
            self._columns,
            len(texts) + prefixes_length + count * _PYTHON_BYTES_OF_PAGE,
        )

    def columns(self) -> dict[str, Any]:
        """Return the attributes of a `Tail` that have a value for each block, by name."""
        columns: dict[str, Any] = {f"{name}s": column.data for name, column in self._columns.items() if name != "flags"}
        return {**columns, "flags": self._columns["flags"].tobytes(), "first_keys": self._first_keys}

    def _read(self, body: memoryview) -> pa.RecordBatch:
        try:
            with pa.ipc.open_stream(pa.py_buffer(body)) as reader:
                index = reader.read_next_batch()
        except (pa.ArrowException, OSError, EOFError, StopIteration) as error:
            _corrupt(self._path, self._offset, f"its index cannot be read ({error})", cause=error)
        if not index.schema.equals(INDEX_SCHEMA) or not index.num_rows:
            self._fail(f"its index has {index.num_rows} rows of {index.schema.names}")
        return index

    def _fail(self, what: str, *, offset: int | None = None) -> NoReturn:
        _corrupt(self._path, self._offset if offset is None else offset, what)


def decode_blocks(tail: Tail, first: int, behind: int, body: memoryview, *, path: str) -> Block:
    """Check and decode neighbouring blocks as one; of version 1 only one block. Does not keep `body`.

    Args:
        first, behind: numbers of the first block, and of the one behind the last.
        body: the stored bytes of the blocks, one after another.
        path: the file's path, for errors.

    Raises:
        Corruption: the bytes were changed.
        UnsupportedFormat: the blocks were compressed by a codec that this code does not know.
    Cost: about 50 us, and 1.5 us for each page with LZ4.
    """
    if tail.pages is None:
        return decode_block(body, entry=tail.block(first), path=path)
    pages = tail.pages
    offsets, checksums = tail.offsets[first:behind].tolist(), tail.checksums[first:behind].tolist()
    places = [offset - offsets[0] for offset in offsets]
    blocks = map(body.__getitem__, map(slice, places, [*places[1:], len(body)]))
    sums = list(map(xxh3_64_intdigest, blocks, offsets))
    if sums != checksums:
        damaged = next(place for place, pair in enumerate(zip(sums, checksums, strict=True)) if pair[0] != pair[1])
        raise damage_error(path, offsets[damaged], "its checksum is wrong")
    starts = np.array(pages.starts[first : behind + 1])
    low, high = int(starts[0]), int(starts[-1])
    raw_lengths = np.array(pages.raw_lengths[low:high], np.int64)
    bounds = np.zeros(high - low + 1, np.int64)
    bounds[1:] = pages.ends[low:high]
    bounds[1:] += np.repeat(places, np.diff(starts))
    contents: list[bytes | pa.Buffer] = []
    for codec, some in groupby(range(behind - first), tail.codecs[first:behind].tolist().__getitem__):
        numbers = list(some)
        start, end = int(starts[numbers[0]]) - low, int(starts[numbers[-1] + 1]) - low
        try:
            contents.append(unpack_pages(body, bounds[start : end + 1], raw_lengths[start:end], codec=codec))
        except (KeyError, pa.ArrowException, OSError) as error:
            raise _unpack_error(error, offset=offsets[numbers[0]], codec=codec, path=path) from error
    try:
        batch = batch_of_run(contents[0] if len(contents) == 1 else b"".join(contents), raw_lengths)
    except BadPageError as error:
        raise damage_error(path, offsets[0], "it cannot be decoded (a page contradicts itself)") from error
    row_count = sum(tail.row_counts[first:behind])
    if batch.num_rows != row_count:
        raise damage_error(path, offsets[0], f"it has {batch.num_rows} rows, and the index says {row_count}")
    return Block(
        batch,
        flags=reduce(and_, tail.flags[first:behind], PLAIN | TOMBSTONES_ONLY) | tail.flags[first] & CONTINUES,
        min_sequence=min(tail.min_sequences[first:behind]),
        max_sequence=max(tail.max_sequences[first:behind]),
    )


def decode_page(tail: Tail, number: int, piece: memoryview, *, path: str) -> bytes:
    """Check and decompress one page by its number in the file; `piece` is as stored. Raises as `decode_blocks`."""
    assert tail.pages is not None, "a file without pages has none"
    return unpack_page(tail.pages.entry(number), piece, path=path)


def unpack_page(entry: PageEntry, piece: memoryview, *, path: str) -> bytes:
    """As `decode_page`, given an entry of `Pages.entry`."""
    start, checksum, length, raw_length, _, codec, _ = entry
    if xxh3_64_intdigest(piece, start) != checksum:
        raise damage_error(path, start, "the checksum of a page is wrong")
    if length == raw_length or codec == NOT_COMPRESSED:
        return bytes(piece)
    try:
        body: bytes = CODECS[codec].decompress(piece, raw_length, asbytes=True)
    except (KeyError, pa.ArrowException, OSError) as error:
        raise _unpack_error(error, offset=start, codec=codec, path=path) from error
    return body


def read_mapped_pages(tail: Tail, first: int, last: int, *, path: str) -> tuple[list[bytes | memoryview], int]:
    """As `decode_page`, of each of the neighbouring pages [first, last) of a mapped file.

    Pages that are not compressed are not copied. Cost: about 1 us a page, 2 us more with LZ4.

    Returns:
        The pages, and the flags that the blocks of all of them have.
    """
    pages, mapped = tail.pages, tail.mapped
    assert pages is not None, "a file without pages has none"
    assert mapped is not None, "a file that is not mapped is read by requests"
    bodies: list[bytes | memoryview] = []
    shared_flags = 0xFF
    for entry in pages.entries(first, last):
        start, checksum, length, raw_length, _, _, flags = entry
        body = mapped[start : start + length]
        if length != raw_length:
            bodies.append(unpack_page(entry, body, path=path))
        elif xxh3_64_intdigest(body, start) == checksum:
            bodies.append(body)
        else:
            raise damage_error(path, start, "the checksum of a page is wrong")
        shared_flags &= flags
    return bodies, shared_flags


def decode_pages(
    tail: Tail, numbers: Sequence[int] | npt.NDArray[np.int64], pieces: Sequence[memoryview] | None, *, path: str
) -> list[bytes]:
    """As `decode_page`, of each of at least one page. Without `pieces`, read the pages from the mapped file.

    Cost: about 10 us, and 2 us for each page with LZ4.
    """
    pages = tail.pages
    assert pages is not None, "a file without pages has none"
    entries = pages.take(numbers)
    offsets = entries["start"].tolist()
    if pieces is None:
        assert tail.mapped is not None, "pages are given, or they are mapped"
        ends = (entries["start"] + entries["length"]).tolist()
        pieces = list(map(tail.mapped.__getitem__, map(slice, offsets, ends)))
    sums, checksums = list(map(xxh3_64_intdigest, pieces, offsets)), entries["checksum"].tolist()
    codecs = set(entries["codec"].tolist())
    if sums == checksums and len(codecs) == 1:
        with suppress(KeyError, pa.ArrowException, OSError):
            return unpack_each(pieces, entries["raw_length"].tolist(), codec=codecs.pop())
    # Decode each page alone to raise the error of the wrong one.
    return [decode_page(tail, int(page), piece, path=path) for page, piece in zip(numbers, pieces, strict=True)]


def _unpack_error(error: Exception, *, offset: int, codec: int, path: str) -> LakebedError:
    if isinstance(error, KeyError):
        return unknown_codec_error(path, offset, codec)
    return damage_error(path, offset, f"it cannot be decoded ({error})")


def _corrupt(path: str, offset: int, what: str, *, cause: BaseException | None = None) -> NoReturn:
    raise Corruption(f"{path} is damaged at byte {offset:,}: {what}.", path=path, offset=offset) from cause
