"""A page: rows of a block that are stored, checked and read separately, about 4 KiB before compression. Pure.

Owns: the bytes of a page (`docs/format/sorted-file.md` defines every one), finding a key in one page, and forming one
Arrow record batch of many pages.

Invariants:
- Rows are sorted by (key ascending, sequence descending).
- All rows of a key in one block are in one page.
- Nothing is returned from a page that contradicts itself.

One call into C searches for the bytes of a key among those of all keys of the page. Then it is checked whether a row
begins where the bytes were found. No Python object is made except for the row that is returned.
"""

from __future__ import annotations

import struct
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Sequence
from functools import cache, lru_cache
from itertools import accumulate, pairwise
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from typing_extensions import Buffer
from xxhash import xxh32_intdigest

import lakebed.compute as pc
from lakebed.lsm.block import CODEC_NUMBERS, CODECS, NOT_COMPRESSED, Compression, offsets_of
from lakebed.lsm.columns import ends_of, flags_of, indices_of, numbers_of
from lakebed.lsm.model import ROW_SCHEMA, ROWS_DECIDE, Kind, Row, RowsDecide

PAGE_BYTES: Final = 4096
"""Size of a page before compression. Rows that begin in the same stretch of this size in a block form one page."""

# Everything up to the next empty line is on disk: DO NOT CHANGE.
_HEADER: Final = struct.Struct("<IIIIQ")  # flags, rows, bytes of keys, bytes of values, smallest sequence
_HEADER_TYPE: Final = np.dtype([("flags", "<u4"), ("rows", "<u4"), ("keys", "<u4"), ("values", "<u4"), ("base", "<u8")])
_NARROW: Final = np.dtype([("key", "<u2"), ("value", "<u2"), ("sequence", "<u4")])
_WIDE: Final = np.dtype([("key", "<u4"), ("value", "<u4"), ("sequence", "<u8")])
_IS_WIDE: Final = 1
_HAS_KINDS: Final = 2
_HAS_ENDS: Final = 4

PAGE_HEADER_BYTES: Final = _HEADER.size
_HEAD: Final = struct.Struct("<IIII")
"""The header without its sequence."""
_HEADER_PLACES: Final = np.arange(PAGE_HEADER_BYTES)
_NARROW_ROW: Final = struct.Struct("<HHI")
_WIDE_ROW: Final = struct.Struct("<IIQ")
_END: Final = struct.Struct("<q")
_NARROW_BYTES_MAX: Final = (1 << 16) - 1
_NARROW_SPAN_MAX: Final = (1 << 32) - 1

_FRAME_MAGIC: Final = b"\x04\x22\x4d\x18"
_FRAME_OF_SEPARATE_BLOCKS: Final = 0x60
"""Version 1, independent blocks, no checksums, no content size."""
_FRAME_CODES: Final = {4: 64 << 10, 5: 256 << 10, 6: 1 << 20, 7: 4 << 20}
_FRAME_STORED: Final = 1 << 31
_FRAME_END: Final = bytes(4)
_FRAMES: Final = pa.Codec("lz4")
_PREFIX_TYPE: Final = np.dtype([("length", "<i8"), ("frame", "S7"), ("block", "<u4")])
"""The header before the block in a compressed buffer of Arrow."""
_ARROW_BLOCK_BYTES: Final = _FRAME_CODES[4]
"""Largest block in Arrow's frames."""
_PACK_AT_ONCE_MIN: Final = 16
"""Fewer pages are compressed one by one: a message takes as long as ten pages."""
_PAGES_SCHEMA: Final = pa.schema([("pages", pa.binary_view())])
_ONE_VIEW: Final = pa.py_buffer(bytes(16))
_PACKED_BY_ONE: Final = pa.ipc.IpcWriteOptions(compression="lz4", use_threads=False)

_SAVED_SHARE: Final = 32
"""A page is stored uncompressed, and read without a copy, if compression saves less than its length divided by this."""

_FALSE_MATCHES_MAX: Final = 8
"""Most places with the bytes of a key at which no such key begins. After these the rows are bisected instead."""

_EQUAL_ROWS_MAX: Final = 1024
"""A page of more rows is not read by one call, because the reader of a layout is kept."""

_PUT: Final = int(Kind.PUT)
_MERGE: Final = int(Kind.MERGE)
_ZEROS: Final = pa.py_buffer(bytes(128 << 10))
_BINARY, _LARGE_BINARY, _UINT8, _UINT64, _INT64 = pa.binary(), pa.large_binary(), pa.uint8(), pa.uint64(), pa.int64()
_NO_BYTES: Final = pa.py_buffer(b"")
_NOTHING: Final = pa.Array.from_buffers(_LARGE_BINARY, 1, [None, _ZEROS, _ZEROS])[0]
"""An empty value. Arrow's own conversion from Python to a scalar loads pandas; see `lakebed.lsm.columns`."""
_OFFSET_MAX: Final = (1 << 31) - 1
"""Largest offset in Arrow's binary columns."""
_new_row: Final = tuple.__new__
_read_u16: Final = struct.Struct("<H").unpack_from
_read_u32: Final = struct.Struct("<I").unpack_from
_read_i32: Final = struct.Struct("<i").unpack_from
_read_header: Final = _HEADER.unpack_from
_read_head: Final = _HEAD.unpack_from
_read_narrow: Final = _NARROW_ROW.unpack_from
_read_two: Final = struct.Struct("<HHIHH").unpack_from
"""Read a row of a page that is not wide, and the start of the next row."""


class BadPageError(Exception):
    """A page contradicts itself. The reader of the page knows its place in the file, and raises `Corruption`.

    Attributes:
        place: index of the page among the pages that were read together.
    """

    def __init__(self, place: int = 0) -> None:
        super().__init__(place)
        self.place = place


def form_pages(batch: pa.RecordBatch, starts: npt.NDArray[np.int64]) -> tuple[pa.Buffer, npt.NDArray[np.int64]]:
    """Return the bytes of neighbouring pages, one after another and not compressed, and the length of each page.

    Args:
        batch: rows of `ROW_SCHEMA`, sorted; at most 2 GiB of keys and of values.
        starts: the rows with which pages begin, ascending; the first is 0.

    Cost: about 0.5 us a page, and a copy.
    """
    count = batch.num_rows
    ends = np.append(starts[1:], count)
    sizes = ends - starts
    key_offsets, value_offsets = offsets_of(batch.column(0)), offsets_of(batch.column(3))
    sequences, kinds = numbers_of(batch.column(1)), numbers_of(batch.column(2))
    heads = np.zeros(len(starts), _HEADER_TYPE)
    heads["rows"] = sizes
    heads["keys"] = key_offsets[ends] - key_offsets[starts]
    heads["values"] = value_offsets[ends] - value_offsets[starts]
    heads["base"] = bases = np.minimum.reduceat(sequences, starts)
    is_wide = (np.maximum.reduceat(sequences, starts) - bases > _NARROW_SPAN_MAX) | (
        np.maximum(heads["keys"], heads["values"]) > _NARROW_BYTES_MAX
    )
    heads["flags"] = is_wide * _IS_WIDE + np.logical_or.reduceat(kinds != _PUT, starts) * _HAS_KINDS
    has_ends = batch.column(4).null_count < count
    if has_ends:
        is_valid = flags_of(batch.column(4).is_valid())
        ends_ms = np.where(is_valid, numbers_of(batch.column(4)), 0).astype("<i8")
        heads["flags"] += np.logical_or.reduceat(is_valid, starts).astype(np.uint32) * _HAS_ENDS
    rows = np.empty(count, _NARROW if not is_wide.any() else _WIDE)
    rows["key"] = key_offsets[:-1] - np.repeat(key_offsets[starts], sizes)
    rows["value"] = value_offsets[:-1] - np.repeat(value_offsets[starts], sizes)
    rows["sequence"] = sequences - np.repeat(bases, sizes)
    narrow = rows.astype(_NARROW, copy=False)
    places = np.append(starts, count)
    fixed_buffer, fixed_offsets = pa.py_buffer(narrow), narrow.itemsize * places
    if heads["flags"].any():
        texts: list[bytes] = []
        for flag, start, end in zip(heads["flags"].tolist(), starts.tolist(), ends.tolist(), strict=True):
            text = (rows if flag & _IS_WIDE else narrow)[start:end].tobytes()
            if flag & _HAS_KINDS:
                text += kinds[start:end].tobytes()
            if flag & _HAS_ENDS:
                text += ends_ms[start:end].tobytes() + is_valid[start:end].tobytes()
            texts.append(text)
        fixed_buffer, fixed_offsets = pa.py_buffer(b"".join(texts)), np.cumsum([0, *map(len, texts)])
    head_offsets = np.arange(0, (len(starts) + 1) * PAGE_HEADER_BYTES, PAGE_HEADER_BYTES)
    columns = [
        _texts(head_offsets, pa.py_buffer(heads)),
        _texts(fixed_offsets, fixed_buffer),
        _texts(key_offsets[places], batch.column(0).buffers()[2]),
        _texts(value_offsets[places], batch.column(3).buffers()[2]),
    ]
    pages = pc.binary_join_element_wise(*columns, _NOTHING)
    _, offsets, content = pages.buffers()
    bounds = np.frombuffer(offsets, np.int64, len(starts) + 1)
    return content, bounds[1:] - bounds[:-1]


def _texts(offsets: npt.NDArray[Any], content: pa.Buffer | None) -> pa.LargeBinaryArray:
    """Return the texts between neighbouring offsets of a buffer."""
    buffers = [None, pa.py_buffer(offsets.astype(np.int64)), content or _ZEROS]
    return pa.Array.from_buffers(_LARGE_BINARY, len(offsets) - 1, buffers, 0)


def pack_pages(content: pa.Buffer, lengths: Sequence[int], *, compression: Compression | None) -> list[memoryview]:
    """Return the stored form of neighbouring pages: compressed, unless this saves hardly anything.

    Args:
        content: the pages, one after another.
        lengths: the length of each page.

    Cost: that of the compression. With LZ4 one call compresses all pages, and runs no Python code.
    """
    bounds = list(accumulate(lengths, initial=0))
    view = memoryview(content)
    pages = list(map(view.__getitem__, map(slice, bounds, bounds[1:])))
    if compression is None:
        return pages
    packed_pages = None
    if compression == "lz4" and len(lengths) >= _PACK_AT_ONCE_MIN:
        packed_pages = _pack_at_once(content, bounds, lengths)
    if packed_pages is None:
        pack = CODECS[CODEC_NUMBERS[compression]].compress
        packed_pages = [memoryview(pack(page, asbytes=True)) for page in pages]
    return [
        small if len(small) < length - length // _SAVED_SHARE else page
        for small, page, length in zip(packed_pages, pages, lengths, strict=True)
    ]


def _pack_at_once(content: pa.Buffer, bounds: Sequence[int], lengths: Sequence[int]) -> list[memoryview] | None:
    """Compress pages to LZ4 blocks by Arrow's only call for many buffers: as the buffers of a column of a message.

    Returns:
        None if a page is too long for one block, or if the message has another form than expected.

    Source: Arrow Columnar Format 1.5: a compressed buffer is its length before compression and an LZ4 frame, here of
    one block. The frame is a header of 7 bytes, the length of the block, the block, and an end mark.
    """
    if max(lengths) > _ARROW_BLOCK_BYTES:
        return None
    column = pa.Array.from_buffers(pa.binary_view(), 1, [None, _ONE_VIEW, *map(content.slice, bounds[:-1], lengths)])
    stream = pa.BufferOutputStream()
    with pa.ipc.new_stream(stream, _PAGES_SCHEMA, options=_PACKED_BY_ONE) as writer:
        writer.write_batch(pa.record_batch([column], schema=_PAGES_SCHEMA))
    messages = pa.ipc.MessageReader.open_stream(stream.getvalue())
    messages.read_next_message()  # the schema
    message = messages.read_next_message()
    body = memoryview(message.body)
    places = _read_buffer_places(message.metadata)[2:]  # after validity and views
    if len(places) != len(lengths) or int(places.sum(axis=1).max()) > len(body):
        return None
    starts, ends = places[:, 0] + _PREFIX_TYPE.itemsize, places[:, 0] + places[:, 1] - len(_FRAME_END)
    prefix_places = places[:, :1] + np.arange(_PREFIX_TYPE.itemsize)
    prefixes = np.frombuffer(body, np.uint8)[prefix_places].view(_PREFIX_TYPE).ravel()
    is_known = (
        (prefixes["length"] == lengths)
        & (prefixes["frame"] == _FRAME_MAGIC + prefixes["frame"][0][len(_FRAME_MAGIC) :])
        & (prefixes["block"] & (_FRAME_STORED - 1) == ends - starts)
    )
    if not is_known.all():
        return None
    return list(map(body.__getitem__, map(slice, starts.tolist(), ends.tolist())))


def _read_buffer_places(metadata: pa.Buffer) -> npt.NDArray[np.int64]:
    """Return the start and length of each buffer of a record batch in the body of its message.

    Source: Message.fbs and Schema.fbs of Arrow, and the internals of FlatBuffers: a table begins with the distance back
    to its list of fields. The list has at 4 + 2 n the offset of field n in the table. There is the distance to the
    field's value.
    """
    view = memoryview(metadata)
    (position,) = _read_u32(view, 0)
    for number in (2, 2):  # the message's header, which is a record batch; then the batch's buffers
        (distance,) = _read_i32(view, position)
        position += _read_u16(view, position - distance + 4 + 2 * number)[0]
        position += _read_u32(view, position)[0]
    (count,) = _read_u32(view, position)
    return np.frombuffer(metadata, np.dtype("<i8"), 2 * count, position + 4).reshape(count, 2)


def unpack_pages(
    body: memoryview, bounds: npt.NDArray[np.int64], raw_lengths: npt.NDArray[np.int64], *, codec: int
) -> bytes | pa.Buffer:
    """Return neighbouring pages as they were before compression, one after another.

    Args:
        body: the stored bytes of these pages and perhaps of others.
        bounds: the offset of each page there, and the end of the last one.
        raw_lengths, codec: as for `unpack_each`, which also lists the errors.
    """
    lengths = bounds[1:] - bounds[:-1]
    if codec == NOT_COMPRESSED:
        return bytes(body[int(bounds[0]) : int(bounds[-1])])
    if CODECS[codec].name == "lz4_raw" and len(lengths) > 1:
        code = _frame_code(int(raw_lengths.max()))
        if code is not None and not np.array_equal(lengths, raw_lengths):
            return _unpack_as_frame(body, bounds, raw_lengths, code=code)
    ends = bounds.tolist()
    pieces = list(map(body.__getitem__, map(slice, ends, ends[1:])))
    return b"".join(unpack_each(pieces, raw_lengths.tolist(), codec=codec))


def unpack_each(pieces: Sequence[memoryview], raw_lengths: Sequence[int], *, codec: int) -> list[bytes]:
    """Return each of some pages as it was before compression.

    Args:
        pieces: the stored bytes of each page, at least one.
        raw_lengths: lengths before compression. A page of this stored length was not compressed.

    Raises:
        KeyError: the codec is unknown.
        OSError, pa.ArrowException: the pages cannot be decompressed.
    """
    if codec == NOT_COMPRESSED:
        return list(map(bytes, pieces))
    unpack = CODECS[codec].decompress
    return [
        bytes(piece) if len(piece) == size else unpack(piece, size, asbytes=True)
        for piece, size in zip(pieces, raw_lengths, strict=True)
    ]


def _frame_code(size_bytes: int) -> int | None:
    """Return the code in an LZ4 frame for blocks of at most this many bytes; None: no code allows so many."""
    return next((code for code, limit in _FRAME_CODES.items() if size_bytes <= limit), None)


def _unpack_as_frame(
    body: memoryview, bounds: npt.NDArray[np.int64], raw_lengths: npt.NDArray[np.int64], *, code: int
) -> pa.Buffer:
    """Decompress LZ4 blocks by one call, which runs no Python code. The blocks are put into a frame that is made here.

    Source: LZ4 Frame Format 1.6: magic number, descriptor with a byte of its checksum, blocks, each preceded by its
    size, end mark. The highest bit of a size is set if the block is not compressed.
    """
    descriptor = bytes((_FRAME_OF_SEPARATE_BLOCKS, code << 4))
    header = _FRAME_MAGIC + descriptor + bytes((xxh32_intdigest(descriptor) >> 8 & 0xFF,))
    lengths = bounds[1:] - bounds[:-1]
    sizes = lengths.astype("<u4")
    sizes[lengths == raw_lengths] |= _FRAME_STORED
    # Join each size and its block. The header and the end mark are also joined, each with an empty text.
    size_bounds = np.arange(len(header) - 4, len(header) + 4 * len(sizes) + 5, 4)
    size_bounds[0] = 0
    block_bounds = np.concatenate([bounds[:1], bounds, bounds[-1:]])
    marks = _texts(size_bounds, pa.py_buffer(header + sizes.tobytes() + _FRAME_END))
    frame = pc.binary_join_element_wise(marks, _texts(block_bounds, pa.py_buffer(body)), _NOTHING)
    # Use Arrow's pool, which reuses memory: a bytes object of this size may get new pages of memory for each call.
    return _FRAMES.decompress(frame.buffers()[2], int(raw_lengths.sum()))


def find_value(page: bytes, key: bytes, *, sequence: int | None = None) -> bytes | RowsDecide | None:
    """Return the value of a key whose newest row is a PUT that does not expire.

    Args:
        sequence: as for `find_rows`.

    Returns:
        None if the key is not in the page; `ROWS_DECIDE` if the caller has to use `find_rows`.
    Raises `BadPageError`. Cost: about 0.7 us.
    """
    flags, count, key_bytes, value_bytes, base = _read_header(page)
    if flags:
        return ROWS_DECIDE
    keys_at = PAGE_HEADER_BYTES + 8 * count
    values_at = keys_at + key_bytes
    if values_at + value_bytes != len(page):
        raise BadPageError
    place = page.find(key, keys_at, values_at) - keys_at
    if place < 0:
        return None
    # If keys are equally long, the place determines the row.
    row = place * count // (key_bytes or 1)
    if row + 1 < count:
        start, value_start, number, end, value_end = _read_two(page, PAGE_HEADER_BYTES + 8 * row)
    else:
        start, value_start, number = _read_narrow(page, PAGE_HEADER_BYTES + 8 * row)
        end, value_end = key_bytes, value_bytes
    if start != place or end - start != len(key) or (sequence is not None and base + number > sequence):
        return ROWS_DECIDE
    if not value_start <= value_end <= value_bytes:
        raise BadPageError
    return page[values_at + value_start : values_at + value_end]


def find_values(
    pages: Sequence[bytes], keys: Sequence[bytes], places: Sequence[int], values: dict[bytes, bytes]
) -> list[tuple[bytes, int]]:
    """As `find_value`, of many keys, each in one of some pages.

    Args:
        keys: none is empty.
        places: for each key the index of the page that may contain it.
        values: receives the values.

    Returns:
        The remaining keys, with their places: their rows decide, or the page contradicts itself.
    Cost: about 1.2 us a key. A call of `find_value` for each key would take a tenth longer.
    """
    keys_left: list[tuple[bytes, int]] = []
    for key, place in zip(keys, places, strict=True):
        page = pages[place]
        flags, count, key_bytes, value_bytes = _read_head(page)
        keys_at = PAGE_HEADER_BYTES + 8 * count
        values_at = keys_at + key_bytes
        if flags or values_at + value_bytes != len(page):
            keys_left.append((key, place))
            continue
        key_start = page.find(key, keys_at, values_at) - keys_at
        if key_start < 0:
            continue
        row = key_start * count // key_bytes  # as in `find_value`
        if row + 1 < count:
            start, value_start, _, end, value_end = _read_two(page, PAGE_HEADER_BYTES + 8 * row)
        else:
            start, value_start, _ = _read_narrow(page, PAGE_HEADER_BYTES + 8 * row)
            end, value_end = key_bytes, value_bytes
        if start == key_start and end - start == len(key) and value_start <= value_end <= value_bytes:
            values[key] = page[values_at + value_start : values_at + value_end]
        else:
            keys_left.append((key, place))
    return keys_left


def find_rows(page: bytes, key: bytes, *, sequence: int | None = None) -> tuple[list[Row], bool]:
    """Return the rows of one key, newest first, down to the first that is not a MERGE.

    Args:
        sequence: skip rows above this sequence; None: skip no row.

    Returns:
        The rows, and whether more of them may be in the next block, if this is the last page of its block.
    Raises `BadPageError`. Cost: about 1 us.
    """
    flags, count, key_bytes, value_bytes, base = _read_header(page)
    if flags:
        return _find_special(page, key, sequence=sequence)
    keys_at = PAGE_HEADER_BYTES + 8 * count
    values_at = keys_at + key_bytes
    if values_at + value_bytes != len(page):
        raise BadPageError
    place = page.find(key, keys_at, values_at) - keys_at
    if place < 0:
        return [], True
    row = place * count // (key_bytes or 1)  # as in `find_value`
    if row + 1 < count:
        start, value_start, number, end, value_end = _read_two(page, PAGE_HEADER_BYTES + 8 * row)
    else:
        start, value_start, number = _read_narrow(page, PAGE_HEADER_BYTES + 8 * row)
        end, value_end = key_bytes, value_bytes
    if start == place and end - start == len(key) and (sequence is None or base + number <= sequence):
        value = page[values_at + value_start : values_at + value_end]
        return [_new_row(Row, (key, base + number, _PUT, value, None))], False
    return _find_special(page, key, sequence=sequence)


def _find_special(page: bytes, key: bytes, *, sequence: int | None) -> tuple[list[Row], bool]:
    """As `find_rows`, of a page with any flags."""
    flags, count, key_bytes, value_bytes, base = _read_header(page)
    read_row, width = (_WIDE_ROW.unpack_from, 16) if flags & _IS_WIDE else (_read_narrow, 8)
    kinds_at = PAGE_HEADER_BYTES + width * count
    ends_at = kinds_at + (count if flags & _HAS_KINDS else 0)
    keys_at = ends_at + (9 * count if flags & _HAS_ENDS else 0)
    values_at = keys_at + key_bytes
    if values_at + value_bytes != len(page):
        raise BadPageError
    fields = memoryview(page)[PAGE_HEADER_BYTES:kinds_at].cast("I" if flags & _IS_WIDE else "H")
    starts, value_starts = fields[::4], fields[1::4]
    row = _first_row(page, key, starts, keys_at=keys_at, values_at=values_at)
    versions: list[Row] = []
    while row < count:
        end = starts[row + 1] if row + 1 < count else key_bytes
        if page[keys_at + starts[row] : keys_at + end] != key:
            return versions, False
        number = base + read_row(page, PAGE_HEADER_BYTES + width * row)[2]
        if sequence is None or number <= sequence:
            kind = page[kinds_at + row] if flags & _HAS_KINDS else _PUT
            ends_ms = None
            if flags & _HAS_ENDS and page[ends_at + 8 * count + row]:
                (ends_ms,) = _END.unpack_from(page, ends_at + 8 * row)
            value_end = value_starts[row + 1] if row + 1 < count else value_bytes
            value = page[values_at + value_starts[row] : values_at + value_end]
            versions.append(_new_row(Row, (key, number, kind, value, ends_ms)))
            if kind != _MERGE:
                return versions, False
        row += 1
    return versions, True


def rows_of_page(page: bytes) -> list[Row]:
    """Return all rows of a page, in its order. Raises `BadPageError`. Cost: about 1 us, and 0.5 us a row."""
    flags, count, key_bytes, value_bytes, base = _read_header(page)
    reader = _WIDE_ROW if flags & _IS_WIDE else _NARROW_ROW
    kinds_at = PAGE_HEADER_BYTES + reader.size * count
    ends_at = kinds_at + (count if flags & _HAS_KINDS else 0)
    keys_at = ends_at + (9 * count if flags & _HAS_ENDS else 0)
    values_at = keys_at + key_bytes
    if not count or values_at + value_bytes != len(page):
        raise BadPageError
    kinds = page[kinds_at:ends_at] if flags & _HAS_KINDS else bytes(count)
    ends_ms: list[int | None] = [None] * count
    if flags & _HAS_ENDS:
        is_valid = page[ends_at + 8 * count : keys_at]
        for row, (end_ms,) in enumerate(_END.iter_unpack(page[ends_at : ends_at + 8 * count])):
            ends_ms[row] = end_ms if is_valid[row] else None
    fields = [*reader.iter_unpack(page[PAGE_HEADER_BYTES:kinds_at]), (key_bytes, value_bytes, 0)]
    return [
        _new_row(
            Row,
            (
                page[keys_at + key_at : keys_at + key_end],
                base + sequence,
                kind,
                page[values_at + value_at : values_at + value_end],
                end_ms,
            ),
        )
        for ((key_at, value_at, sequence), (key_end, value_end, _)), kind, end_ms in zip(
            pairwise(fields), kinds, ends_ms, strict=True
        )
    ]


def add_pairs(pages: Sequence[bytes | memoryview], keys: list[bytes], values: list[bytes]) -> None:
    """Add the keys and values of all rows of some pages, in their order.

    Raises `BadPageError`. Cost: about 1 us a page, and for each row 0.05 us if keys and values are equally long, else
    0.25 us.
    """
    read_row, size_bytes, head, values_at = _NO_LAYOUT
    head_length = len(head)
    for place, page in enumerate(pages):
        # Most pages have the layout of the page before. Then one call reads the page, and one comparison proves it.
        fields = read_row(page) if len(page) == size_bytes else ()
        if fields[:head_length] != head:
            if len(page) < PAGE_HEADER_BYTES:
                raise BadPageError(place)
            read_row, size_bytes, head, values_at = _layout_of(_read_head(page))
            head_length = len(head)
            fields = read_row(page) if len(page) == size_bytes else ()
            if fields[:head_length] != head:
                try:
                    _add_pairs(bytes(page), keys, values)
                except BadPageError as error:
                    raise BadPageError(place) from error
                continue
        keys += fields[head_length:values_at]
        values += fields[values_at:]


def _add_pairs(page: bytes, keys: list[bytes], values: list[bytes]) -> None:
    """As `add_pairs`, of one page of any layout."""
    flags, count, key_bytes, value_bytes, _ = _read_header(page)
    if flags:
        rows = rows_of_page(page)
        keys += [row.key for row in rows]
        values += [row.value for row in rows]
        return
    top = PAGE_HEADER_BYTES + 8 * count
    bottom = top + key_bytes
    if not count or bottom + value_bytes != len(page):
        raise BadPageError
    places = _read_places(count)(page, PAGE_HEADER_BYTES)
    starts, value_starts = places[::4], places[1::4]
    cut_key, cut_value = page[top:bottom].__getitem__, page[bottom:].__getitem__
    keys += map(cut_key, map(slice, starts, (*starts[1:], key_bytes)))
    values += map(cut_value, map(slice, value_starts, (*value_starts[1:], value_bytes)))


def find_among_all(pages: Sequence[bytes], keys: Sequence[bytes], values: dict[bytes, bytes]) -> None:
    """Add the values of some keys. Every row of the pages is a PUT that does not expire, and the only row of its key.

    Raises `BadPageError`. Cost: as `add_pairs` of all pages, and 0.1 us a key.
    """
    pairs: tuple[list[bytes], list[bytes]] = ([], [])
    add_pairs(pages, *pairs)
    rows = dict(zip(*pairs, strict=True))
    for key in keys:
        if key in rows:
            values[key] = rows[key]


_Layout = tuple[Callable[[Buffer], tuple[Any, ...]], int, tuple[int, ...], int]
"""A function that reads a page in one call; the length of the page; the values that it must read first; and the index
of the first value in its result. The values that come first are the fields of the head, and for each row the places of
its key and value as one number. They are followed by the keys and then by the values."""

_NO_LAYOUT: Final[_Layout] = (struct.Struct("").unpack, -1, (-1,), 0)
"""The layout of pages that cannot be read by one call. No page has this length."""


@lru_cache(1024)
def _layout_of(head: tuple[int, int, int, int]) -> _Layout:
    """Return how to read a page whose keys are all equally long, and whose values are too, by one call.

    Args:
        head: the first four fields of the page.

    Returns:
        `_NO_LAYOUT` if the lengths cannot be equal.
    """
    flags, count, key_bytes, value_bytes = head
    if flags or not count or key_bytes % count or value_bytes % count or count > _EQUAL_ROWS_MAX:
        return _NO_LAYOUT
    key_width, value_width = key_bytes // count, value_bytes // count
    reader = struct.Struct(f"<IIII8x{'I4x' * count}{f'{key_width}s' * count}{f'{value_width}s' * count}")
    layout = (*head, *(row * key_width | row * value_width << 16 for row in range(count)))
    return reader.unpack, reader.size, layout, len(layout) + count


@cache
def _read_places(count: int) -> Callable[[Buffer, int], tuple[int, ...]]:
    """Return a reader of the fields of `count` rows that are not wide, two bytes at a time."""
    return struct.Struct(f"<{4 * count}H").unpack_from


def _first_row(page: bytes, key: bytes, starts: memoryview, *, keys_at: int, values_at: int) -> int:
    """Return the first row whose key is `key`; the count of rows if there is none."""
    count, length, position = len(starts), len(key), keys_at - 1
    for _ in range(_FALSE_MATCHES_MAX):
        position = page.find(key, position + 1, values_at)
        if position < 0:
            return count
        # Only empty keys begin where another key does. They are the first, and the next key begins there too.
        row = bisect_right(starts, position - keys_at) - 1 if length else 0
        if starts[row] == position - keys_at:
            end = starts[row + 1] if row + 1 < count else values_at - keys_at
            if end - starts[row] == length:
                return row

    def key_at(row: int) -> bytes:
        end = starts[row + 1] if row + 1 < count else values_at - keys_at
        return page[keys_at + starts[row] : keys_at + end]

    row = bisect_left(range(count), key, key=key_at)
    return row if row < count and key_at(row) == key else count


def batch_of_run(content: bytes | pa.Buffer, raw_lengths: npt.NDArray[np.int64]) -> pa.RecordBatch:
    """Return the rows of neighbouring pages, at least one, as one batch of `ROW_SCHEMA`. The pages are contiguous.

    Raises `BadPageError`. Cost: about 40 us, and 1 us a page.
    """
    ends = raw_lengths.cumsum()
    starts = ends - raw_lengths
    if int(ends[-1]) != len(content) or int(raw_lengths.min()) < PAGE_HEADER_BYTES:
        raise BadPageError
    octets = np.frombuffer(content, np.uint8)
    heads = octets[starts[:, None] + _HEADER_PLACES].view(_HEADER_TYPE).ravel()
    if heads["flags"].any() or len(content) > _OFFSET_MAX:
        pairs = zip(starts.tolist(), ends.tolist(), strict=True)
        return batch_of_pages([content[start:end] for start, end in pairs])
    counts, key_bytes, value_bytes = (heads[name].astype(np.int64) for name in ("rows", "keys", "values"))
    tops_at = starts + PAGE_HEADER_BYTES
    keys_at = tops_at + 8 * counts
    values_at = keys_at + key_bytes
    if not counts.all() or not np.array_equal(values_at + value_bytes, ends):
        raise BadPageError
    # Header, rows, keys and values of each page are four texts in sequence. Arrow takes every fourth text by one call.
    bounds = np.empty(4 * len(starts) + 1, np.int64)
    bounds[0:-1:4], bounds[1::4], bounds[2::4], bounds[3::4], bounds[-1] = starts, tops_at, keys_at, values_at, ends[-1]
    parts = _texts(bounds, pa.py_buffer(content))
    fixed_parts, keys, values = (
        parts.take(indices_of(np.arange(number, len(parts), 4))).buffers()[2] or _NO_BYTES for number in (1, 2, 3)
    )
    rows = np.frombuffer(fixed_parts, _NARROW)
    sequences = np.repeat(heads["base"], counts)
    sequences += rows["sequence"]
    count = len(rows)
    columns = [
        _binary(rows["key"], key_bytes.cumsum() - key_bytes, counts, keys),
        pa.Array.from_buffers(_UINT64, count, [None, pa.py_buffer(sequences)], 0),
        _zeros(count),
        _binary(rows["value"], value_bytes.cumsum() - value_bytes, counts, values),
        _nulls(count),
    ]
    return pa.RecordBatch.from_arrays(columns, schema=ROW_SCHEMA)


def batch_of_pages(pages: Sequence[bytes]) -> pa.RecordBatch:
    """Return the rows of neighbouring pages, at least one, as one batch of `ROW_SCHEMA`.

    Raises `BadPageError`. Cost: about 20 us, and 0.5 us a page.
    """
    heads = np.frombuffer(b"".join([page[:PAGE_HEADER_BYTES] for page in pages]), _HEADER_TYPE)
    counts, key_bytes, value_bytes = (heads[name].astype(np.int64) for name in ("rows", "keys", "values"))
    flags = heads["flags"].tolist() if heads["flags"].any() else []
    tops_at = PAGE_HEADER_BYTES + counts * (np.where(heads["flags"] & _IS_WIDE, 16, 8) if flags else 8)
    keys_at = tops_at + counts * _special_bytes(heads["flags"]) if flags else tops_at
    values_at = keys_at + key_bytes
    lengths = np.fromiter(map(len, pages), np.int64, len(pages))
    if not counts.all() or not np.array_equal(values_at + value_bytes, lengths):
        raise BadPageError
    tops, key_starts, value_starts = tops_at.tolist(), keys_at.tolist(), values_at.tolist()
    keys = b"".join([page[low:high] for page, low, high in zip(pages, key_starts, value_starts, strict=True)])
    values = b"".join([page[low:] for page, low in zip(pages, value_starts, strict=True)])
    fixed_parts = [page[PAGE_HEADER_BYTES:top] for page, top in zip(pages, tops, strict=True)]
    rows = _join_wide(fixed_parts, flags) if flags else np.frombuffer(b"".join(fixed_parts), _NARROW)
    sequences = np.repeat(heads["base"], counts)
    sequences += rows["sequence"]
    columns = [
        _binary(rows["key"], np.cumsum(key_bytes) - key_bytes, counts, keys),
        pa.Array.from_buffers(_UINT64, len(sequences), [None, pa.py_buffer(sequences)], 0),
        _kinds(pages, flags, counts.tolist(), tops) if flags else _zeros(len(rows)),
        _binary(rows["value"], np.cumsum(value_bytes) - value_bytes, counts, values),
        _ends(pages, flags, counts.tolist(), key_starts) if flags else pa.nulls(len(rows), pa.int64()),
    ]
    return pa.RecordBatch.from_arrays(columns, schema=ROW_SCHEMA)


def _special_bytes(flags: npt.NDArray[np.uint32]) -> npt.NDArray[np.int64]:
    """Return the bytes for each row of the columns that only some pages have."""
    return np.where(flags & _HAS_KINDS, 1, 0) + np.where(flags & _HAS_ENDS, 9, 0)


def _join_wide(fixed: Sequence[bytes], flags: Sequence[int]) -> npt.NDArray[Any]:
    """Return the rows of pages, of which some may be wide."""
    parts = [
        np.frombuffer(text, _WIDE if flag & _IS_WIDE else _NARROW) for text, flag in zip(fixed, flags, strict=True)
    ]
    return np.concatenate([part.astype(_WIDE, copy=False) for part in parts])


def _binary(
    starts: npt.NDArray[Any], bases: npt.NDArray[np.int64], counts: npt.NDArray[np.int64], content: Buffer
) -> pa.BinaryArray:
    """Return a binary array of joined contents. `starts` are relative to the beginning of each content, in `bases`."""
    offsets = np.empty(len(starts) + 1, np.int32)
    offsets[:-1] = starts
    offsets[:-1] += np.repeat(bases.astype(np.int32), counts)
    offsets[-1] = memoryview(content).nbytes
    if (offsets[1:] < offsets[:-1]).any():
        raise BadPageError
    return pa.Array.from_buffers(_BINARY, len(starts), [None, pa.py_buffer(offsets), pa.py_buffer(content)], 0)


def _zeros(count: int) -> pa.Array:
    buffer = _ZEROS.slice(0, count) if count <= _ZEROS.size else pa.py_buffer(bytes(count))
    return pa.Array.from_buffers(_UINT8, count, [None, buffer], 0)


def _nulls(count: int) -> pa.Array:
    """Return a column of `count` ends that are null. All use one buffer, like zeros, if it is long enough."""
    if 8 * count > _ZEROS.size:
        return pa.nulls(count, _INT64)
    buffers = [_ZEROS.slice(0, (count + 7) // 8), _ZEROS.slice(0, 8 * count)]
    return pa.Array.from_buffers(_INT64, count, buffers, count)


def _kinds(pages: Sequence[bytes], flags: Sequence[int], counts: Sequence[int], tops: Sequence[int]) -> pa.Array:
    parts = [
        page[top : top + count] if flag & _HAS_KINDS else bytes(count)
        for page, flag, count, top in zip(pages, flags, counts, tops, strict=True)
    ]
    return pa.Array.from_buffers(pa.uint8(), sum(counts), [None, pa.py_buffer(b"".join(parts))], 0)


def _ends(pages: Sequence[bytes], flags: Sequence[int], counts: Sequence[int], keys_at: Sequence[int]) -> pa.Array:
    if not any(flag & _HAS_ENDS for flag in flags):
        return pa.nulls(sum(counts), pa.int64())
    parts = [
        page[keys_start - 9 * count : keys_start] if flag & _HAS_ENDS else bytes(9 * count)
        for page, flag, count, keys_start in zip(pages, flags, counts, keys_at, strict=True)
    ]
    ends_ms = b"".join([part[: 8 * count] for part, count in zip(parts, counts, strict=True)])
    is_valid = b"".join([part[8 * count :] for part, count in zip(parts, counts, strict=True)])
    return ends_of(np.frombuffer(ends_ms, "<i8"), np.frombuffer(is_valid, np.bool_))
