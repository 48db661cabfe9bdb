"""Writing a sorted file: cut rows into blocks as they arrive, pack the blocks, and put the whole file.

Invariants:
- Before `finish` the store has no part of the file. After it, the store has the whole file durably, or nothing.
- A block has at most `block_bytes` before compression, or one row.

A file is formed in memory, which is possible because files have at most 128 MiB, or at its final location if the store
supports it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from itertools import accumulate, pairwise
from typing import Final, NamedTuple

import msgspec
import numpy as np
import numpy.typing as npt
import pyarrow as pa
from xxhash import xxh3_64_intdigest

from lakebed.errors import InternalError
from lakebed.lsm.block import CODEC_NUMBERS, CONTINUES, NOT_COMPRESSED, PLAIN, TOMBSTONES_ONLY, Compression, offsets_of
from lakebed.lsm.columns import flags_of, numbers_of
from lakebed.lsm.filter import BITS_PER_KEY, build_filter, hash_key_column
from lakebed.lsm.format import INDEX_SCHEMA, PageColumns, encode_tail
from lakebed.lsm.key_batch import count_common, cut, words_of
from lakebed.lsm.model import ROW_SCHEMA, FileMeta, Kind
from lakebed.lsm.page import PAGE_BYTES, form_pages, pack_pages
from lakebed.objects.create_once import put_new
from lakebed.objects.port import ObjectStore, Upload
from lakebed.runtime import Pool, begin_call

_ROW_BYTES: Final = 8 + 1 + 8 + 2 * 4
"""Bytes of a row in addition to key and value: sequence, kind, end, and two offsets."""

_PAGE_ROW_BYTES: Final = 2 * 2 + 4
"""Bytes of a usual row in a page: the starts of key and value, and the sequence."""

_MANY_BLOCKS: Final = 32
"""After this many blocks that came together, the remaining rows become a smaller block instead of being held: joining
them to the next rows takes as long as five blocks."""

_SMALL_BODY_BYTES: Final = 1 << 20
_LARGE_BODY_BYTES: Final = 160 << 20
"""Memory reserved for a file that is larger than a small one; most files need less."""

_BELOW_BYTES: Final = np.uint64(1) << np.arange(8, 64, 8, dtype=np.uint64)
"""The number of these that are greater than the XOR of two words is the number of equal bytes with which they begin."""


@dataclass(frozen=True, slots=True)
class FileOptions:
    """How to write files. A reader does not need these options."""

    block_bytes: int = 64 << 10
    """Block size before compression. Larger blocks: scans take fewer steps, and the cache keeps coarser parts."""
    page_bytes: int = PAGE_BYTES
    """Page size before compression. Smaller pages: a get reads less, and the directory of pages grows."""
    bits_per_key: int = BITS_PER_KEY
    """Bits of the filter. With twelve, about 0.5 % of the lookups of absent keys read a page in vain; 0: no filter."""
    compression: Compression | None = "lz4"
    """Compression of blocks. With zstd files are smaller and reads slower."""


class FileWriter:
    """A file that is being written. Not thread-safe.

    Args:
        store, path: the location of the file.
        file_id: its id (`lakebed.lsm.file_id`).
        in_place: write the bytes at the final location, if the store supports it, and do not keep them in memory. After
            an error the file has to be written again. The file must be finished or abandoned.
        pool: packs blocks of a file in place while the caller brings more rows; None: the caller packs them. This does
            not affect the size that the file reports meanwhile.
    """

    def __init__(
        self,
        store: ObjectStore,
        path: str,
        *,
        file_id: str,
        options: FileOptions,
        in_place: bool = False,
        pool: Pool | None = None,
    ) -> None:
        self._store = store
        self._path = path
        self._file_id = file_id
        self._options = options
        self._pool = pool
        self._is_in_place = in_place
        self._packing: Iterator[None] | None = None
        self._packing_bytes = 0  # bytes before compression
        self._packed_bytes = 0
        self._blocks: list[_Blocks] = []
        self._upload = store.begin_put(path) if in_place else None
        self._body = _Body(self._upload)
        self._index = _Index()
        self._hashes: list[npt.NDArray[np.uint64]] = []
        self._held: list[pa.RecordBatch] = []  # rows of a block that is not yet full
        self._held_bytes = 0
        self._counts = {"row_count": 0, "tombstone_count": 0, "merge_count": 0, "expiring_count": 0}
        self._first_key: bytes | None = None
        self._last: tuple[bytes, int] | None = None
        self._finished: FileMeta | None = None

    @property
    def row_count(self) -> int:
        """Number of rows written so far."""
        return self._counts["row_count"]

    @property
    def size_bytes(self) -> int:
        """Approximate size of the file so far: its packed blocks, and the rows that are not yet compressed."""
        return self._packed_bytes + self._packing_bytes + self._held_bytes

    def write(self, rows: pa.RecordBatch | pa.Table) -> None:
        """Add rows of `ROW_SCHEMA`, sorted by (key ascending, sequence descending), all after those written before.

        Keeps views of the last of these rows until the next call. Cost: no request.
        """
        if self._finished is not None:
            raise InternalError(f"rows to write to {self._path} came after its end")
        if not rows.schema.equals(ROW_SCHEMA):
            raise InternalError(f"rows to write have the columns {rows.schema}, and need {ROW_SCHEMA}")
        for batch in rows.to_batches() if isinstance(rows, pa.Table) else (rows,):
            if batch.num_rows:
                self._take(batch)

    def settle(self) -> None:
        """Wait for the other thread that packs blocks. After this, the thread that ends the file packs the rest.

        So the end of a file may be a call in the same pool: it waits for no other call.
        """
        self._end_packing()
        self._pool = None

    def encode(self) -> FileMeta:
        """End the file, in memory. `object` is then what must be put. Cost: no request."""
        if self._finished is None:
            self._finished = self._write_tail()
        return self._finished

    @property
    def object(self) -> tuple[str, memoryview]:
        """Path and bytes of the encoded file."""
        return self._path, self._body.view()

    def finish(self) -> FileMeta:
        """Create the file, durably. After most errors of the store it may be called again.

        Raises:
            AlreadyExists: another file has this path.
            Unavailable, OutcomeUnknown: as the store reports them. With OutcomeUnknown the file may exist. With the
                kind ``unsynced`` the file exists, and a power loss may delete it. A second call would not detect this,
                so write the file again with another id. Do the same after any error of a file that is written in place.
        Cost: 1 PUT. After a lost reply 1 PUT more, and 1 GET if the store reports that the file exists.
        """
        meta = self.encode()
        if self._upload is None:
            put_new(self._store, *self.object)
        else:
            self._upload.finish()
            self._upload = None
        self.abandon()
        return meta

    def abandon(self) -> None:
        """Release memory and upload. An unfinished file is not stored."""
        packing, self._packing = self._packing, None
        if packing is not None and self._pool is not None:
            with suppress(Exception):
                next(packing)  # afterwards no thread writes to the upload
        upload, self._upload = self._upload, None
        if upload is not None:
            upload.abandon()
        self._body, self._held, self._hashes, self._finished = _Body(None), [], [], None

    def _take(self, batch: pa.RecordBatch) -> None:
        """Cut whole blocks from a batch, and hold the remaining rows."""
        self._note(batch)
        sizes = _cumulate_bytes(batch)
        row_count, start, block_bytes = batch.num_rows, 0, self._options.block_bytes
        if self._held:
            start = int(np.searchsorted(sizes, block_bytes - self._held_bytes, side="right"))
            if start == row_count:
                self._hold(batch, int(sizes[-1]))
                return
            self._cut_held([batch.slice(0, start)] if start else [])
        taken_bytes = int(sizes[start - 1]) if start else 0
        whole_end = start
        ends: list[int] = []
        while True:
            end = int(sizes.searchsorted(taken_bytes + block_bytes, side="right"))
            if end == row_count:
                break
            whole_end = max(end, whole_end + 1)
            ends.append(whole_end - start)
            taken_bytes = int(sizes[whole_end - 1])
        if len(ends) >= _MANY_BLOCKS and whole_end < row_count:
            whole_end = row_count
            ends.append(whole_end - start)
        if ends:
            self._cut(batch.slice(start, whole_end - start), ends)
        self._begin_packing()
        if whole_end < row_count:
            self._hold(batch.slice(whole_end), int(sizes[-1]) - taken_bytes)

    def _note(self, batch: pa.RecordBatch) -> None:
        """Count rows, and check that they come after the rows before."""
        keys, sequences = batch.column(0), batch.column(1)
        first = (keys[0].as_py(), -sequences[0].as_py())
        if self._last is not None and first <= self._last:
            raise InternalError(f"rows to write to {self._path} are not sorted: {first} came after {self._last}")
        self._last = (keys[-1].as_py(), -sequences[-1].as_py())
        if self._first_key is None:
            self._first_key = first[0]
        kinds = numbers_of(batch.column(2))
        self._counts["row_count"] += batch.num_rows
        if kinds.any():
            self._counts["tombstone_count"] += int(np.count_nonzero(kinds == Kind.DELETE))
            self._counts["merge_count"] += int(np.count_nonzero(kinds == Kind.MERGE))
        self._counts["expiring_count"] += batch.num_rows - batch.column(4).null_count

    def _hold(self, batch: pa.RecordBatch, size_bytes: int) -> None:
        self._held.append(batch)
        self._held_bytes += size_bytes

    def _cut_held(self, more: list[pa.RecordBatch]) -> None:
        batches = self._held + more
        self._held, self._held_bytes = [], 0
        block = batches[0] if len(batches) == 1 else pa.concat_batches(batches)
        self._cut(block, [block.num_rows])

    def _cut(self, batch: pa.RecordBatch, ends: Sequence[int]) -> None:
        """Form the pages of neighbouring blocks: the rows of `batch` up to each of `ends`."""
        block_starts = [0, *ends[:-1]]
        hashes = hash_key_column(batch.column(0))
        self._hashes.append(hashes)
        is_repeat = self._index.add_rows(batch, starts=block_starts, hashes=hashes)
        starts = _page_starts(batch, block_starts, is_repeat=is_repeat, page_bytes=self._options.page_bytes)
        keys = _border_keys(batch.column(0), starts)
        content, lengths = form_pages(batch, starts)
        bounds = starts.searchsorted([0, *ends]).tolist()
        self._blocks.append(_Blocks(content, lengths.tolist(), bounds, *keys))

    def _begin_packing(self) -> None:
        """Start packing the blocks that were cut, once the blocks before them are in the file."""
        self._end_packing()
        blocks, self._blocks = self._blocks, []
        self._packing_bytes = sum(block.content.size for block in blocks)
        self._packing = begin_call(partial(self._pack, blocks), self._pool)
        if not self._is_in_place:
            self._end_packing()

    def _end_packing(self) -> None:
        """Wait until the blocks that were cut last are in the file."""
        packing, self._packing = self._packing, None
        if packing is not None:
            next(packing)
        self._packing_bytes, self._packed_bytes = 0, self._body.size_bytes

    def _pack(self, formed: Sequence[_Blocks]) -> None:
        """Compress pages and add them to the file."""
        compression = self._options.compression
        codec = NOT_COMPRESSED if compression is None else CODEC_NUMBERS[compression]
        for blocks in formed:
            self._add_keys(blocks)
            pages = pack_pages(blocks.content, blocks.lengths, compression=compression)
            offset = self._body.size_bytes
            self._body.append(self._index.add_blocks(pages, blocks.lengths, blocks.bounds, offset=offset, codec=codec))

    def _add_keys(self, blocks: _Blocks) -> None:
        first_keys, last_keys = blocks.first_keys, blocks.last_keys
        separators = separate_pages(last_keys[:-1], first_keys[1:])
        for first, stop in pairwise(blocks.bounds):
            # The merge guarantees the order of single rows. This check keeps a completely wrong order out of a file.
            if first_keys[first] > last_keys[stop - 1] or (first and last_keys[first - 1] > first_keys[first]):
                raise InternalError(f"rows to write to {self._path} are not sorted near {first_keys[first]!r}")
            self._index.add_separators(first_keys[first], separators[first : stop - 1])

    def _write_tail(self) -> FileMeta:
        """Add the tail."""
        if self._held:
            self._cut_held([])
            self._begin_packing()
        self._end_packing()
        if self._first_key is None or self._last is None:
            raise InternalError(f"a sorted file without rows was to be written to {self._path}")
        hashes = np.concatenate(self._hashes)
        meta = FileMeta(
            id=self._file_id,
            size_bytes=0,
            tail_offset=self._body.size_bytes,
            first_key=self._first_key,
            last_key=self._last[0],
            min_sequence=min(self._index.min_sequences),
            max_sequence=max(self._index.max_sequences),
            **self._counts,
        )
        self._body.append(
            encode_tail(
                meta,
                filter_body=build_filter(hashes, bits_per_key=self._options.bits_per_key),
                index=self._index.batch(),
                pages=self._index.pages,
            )
        )
        return msgspec.structs.replace(meta, size_bytes=self._body.size_bytes)


class _Blocks(NamedTuple):
    """Neighbouring blocks that are not yet packed."""

    content: pa.Buffer
    """The pages, one after another."""
    lengths: list[int]
    """Length of each page."""
    bounds: list[int]
    """Number of the first page of each block, followed by the count of pages."""
    first_keys: list[bytes]
    """First key of each page."""
    last_keys: list[bytes]


class _Body:
    """A growing body of bytes, in memory or in an upload.

    A file that is not small gets all its memory at once, of which only the written part counts: for such arrays numpy
    requests large pages from the system. A growing `bytearray` touches page after page of 4 KiB, while other threads
    wait for the interpreter's lock.
    """

    def __init__(self, upload: Upload | None) -> None:
        self._upload = upload
        self._space = np.empty(0, np.uint8)
        self.size_bytes = 0

    def append(self, piece: bytes) -> None:
        """Add a piece. Cost: a copy of it. For a file of at least 160 MB, sometimes also a copy of the bytes before."""
        start, end = self.size_bytes, self.size_bytes + len(piece)
        if self._upload is not None:
            self._upload.write(memoryview(piece))
        else:
            if end > len(self._space):
                space = np.empty(max(2 * end, _LARGE_BODY_BYTES if end > _SMALL_BODY_BYTES else 0), np.uint8)
                space[:start] = self._space[:start]
                self._space = space
            self._space[start:end] = np.frombuffer(piece, np.uint8)
        self.size_bytes = end

    def view(self) -> memoryview:
        """Return all bytes that are in memory, without a copy."""
        return self._space[: self.size_bytes].data


class _Index:
    """The columns of the index while blocks are added."""

    def __init__(self) -> None:
        self.first_keys: list[bytes] = []
        self.offsets: list[int] = []
        self.lengths: list[int] = []
        self.row_counts: list[int] = []
        self.checksums: list[int] = []
        self.min_sequences: list[int] = []
        self.max_sequences: list[int] = []
        self.flags: list[int] = []
        self.codecs: list[int] = []
        self.raw_lengths: list[int] = []
        self.pages = PageColumns([], [], [], [], [], [])
        self._last_hash: np.uint64 | None = None

    def add_blocks(
        self, pages: Sequence[memoryview], raw_lengths: Sequence[int], bounds: Sequence[int], *, offset: int, codec: int
    ) -> bytes:
        """Add neighbouring blocks. Return their bytes.

        Args:
            pages: the stored bytes of each of their pages.
            raw_lengths: the length of each page before compression.
            bounds: the number of the first page of each block, followed by the count of pages.
            offset: the offset of the first block.
        """
        stops = list(accumulate(map(len, pages), initial=0))
        seeds = map(offset.__add__, stops)
        self.pages.checksums += map(xxh3_64_intdigest, pages, seeds)
        self.pages.raw_lengths += raw_lengths
        body = b"".join(pages)
        view = memoryview(body)
        for first, stop in pairwise(bounds):
            start, end = stops[first], stops[stop]
            self.pages.ends += map((-start).__add__, stops[first + 1 : stop + 1])
            self.pages.page_counts.append(stop - first)
            self.offsets.append(offset + start)
            self.lengths.append(end - start)
            self.checksums.append(xxh3_64_intdigest(view[start:end], offset + start))
            self.codecs.append(codec)
            self.raw_lengths.append(sum(raw_lengths[first:stop]))
        return body

    def add_separators(self, first_key: bytes, separators: Sequence[bytes]) -> None:
        """Add the separators of the next block, which begins with `first_key`: one for each page except the first."""
        common_bytes = count_common(first_key, separators[-1]) if separators else 0
        self.first_keys.append(first_key)
        self.pages.separators += [b"", *[separator[common_bytes:] for separator in separators]]
        self.pages.prefix_bytes.append(common_bytes)

    def add_rows(
        self, batch: pa.RecordBatch, *, starts: list[int], hashes: npt.NDArray[np.uint64]
    ) -> npt.NDArray[np.bool_]:
        """Add the rows of the next blocks, which begin at the rows `starts`. `hashes` are the hashes of their keys.

        Returns:
            For each row, whether its key may be that of the row before.
        """
        self.row_counts += np.diff(starts, append=batch.num_rows).tolist()
        sequences = numbers_of(batch.column(1))
        self.min_sequences += np.minimum.reduceat(sequences, starts).tolist()
        self.max_sequences += np.maximum.reduceat(sequences, starts).tolist()
        return self._add_flags(batch, starts=starts, hashes=hashes)

    def _add_flags(
        self, batch: pa.RecordBatch, *, starts: list[int], hashes: npt.NDArray[np.uint64]
    ) -> npt.NDArray[np.bool_]:
        kinds = numbers_of(batch.column(2))
        # Keys with equal hashes are taken to be equal. A collision costs time and never loses a row.
        repeats = np.empty(len(hashes), bool)
        repeats[0] = self._last_hash is not None and hashes[0] == self._last_hash
        np.equal(hashes[1:], hashes[:-1], out=repeats[1:])
        special = (kinds != Kind.PUT) | repeats
        if batch.column(4).null_count < batch.num_rows:
            special |= flags_of(batch.column(4).is_valid())
        is_plain = ~np.logical_or.reduceat(special, starts)
        tombstones_only = np.logical_and.reduceat(kinds == Kind.DELETE, starts)
        continues = repeats[starts]
        flags = is_plain * PLAIN + tombstones_only * TOMBSTONES_ONLY + continues * CONTINUES
        # A key that continues in the next block has several rows.
        flags[:-1][continues[1:]] &= ~PLAIN
        if continues[0]:
            self.flags[-1] &= ~PLAIN
        self.flags += flags.tolist()
        self._last_hash = hashes[-1]
        return repeats

    def batch(self) -> pa.RecordBatch:
        """Return the index as a batch of `INDEX_SCHEMA`."""
        columns = [
            self.offsets,
            self.lengths,
            self.row_counts,
            self.checksums,
            self.min_sequences,
            self.max_sequences,
            self.flags,
            self.codecs,
            self.raw_lengths,
        ]
        count = len(self.first_keys)
        key_offsets = np.zeros(count + 1, np.int32)
        np.cumsum(list(map(len, self.first_keys)), out=key_offsets[1:])
        buffers = [None, pa.py_buffer(key_offsets), pa.py_buffer(b"".join(self.first_keys))]
        arrays = [pa.Array.from_buffers(pa.binary(), count, buffers, 0)]
        for column, field in zip(columns, list(INDEX_SCHEMA)[1:], strict=True):
            # Arrow's own conversion of lists loads pandas; see `lakebed.lsm.columns`.
            numbers = pa.py_buffer(np.array(column, np.dtype(str(field.type))))
            arrays.append(pa.Array.from_buffers(field.type, count, [None, numbers], 0))
        return pa.record_batch(arrays, schema=INDEX_SCHEMA)


def _border_keys(keys: pa.BinaryArray, starts: npt.NDArray[np.int64]) -> tuple[list[bytes], list[bytes]]:
    """Return the first and the last key of each page. Pages begin at the rows `starts`."""
    offsets, content = offsets_of(keys).astype(np.int64), memoryview(keys.buffers()[2] or b"")
    stops = np.append(starts[1:], len(keys))
    firsts = cut(content, offsets[starts], offsets[starts + 1])
    return firsts, cut(content, offsets[stops - 1], offsets[stops])


def separate_pages(lasts: Sequence[bytes], firsts: Sequence[bytes]) -> list[bytes]:
    """Return separators: each the shortest prefix of a page's first key that is above the last key of the page before.

    Args:
        lasts, firsts: last key of each page, and first key of the next; ascending together. No last key is above its
            first key. If they are equal, the separator is this key.
    """
    if not firsts:
        return []
    depth = count_common(lasts[0], firsts[-1])
    differences = words_of(lasts, depth) ^ words_of(firsts, depth)
    common = depth + np.count_nonzero(differences[:, None] < _BELOW_BYTES, axis=1)
    common = np.minimum(common, np.fromiter(map(len, lasts), np.int64, len(lasts)))
    for place in np.flatnonzero(differences == 0).tolist():
        common[place] = count_common(lasts[place], firsts[place])
    return [key[: count + 1] for key, count in zip(firsts, common.tolist(), strict=True)]


def _page_starts(
    batch: pa.RecordBatch, starts: list[int], *, is_repeat: npt.NDArray[np.bool_], page_bytes: int
) -> npt.NDArray[np.int64]:
    """Return the first row of each page of blocks that begin at rows `starts`. Versions of a key stay together."""
    befores = _cumulate_bytes(batch, row_bytes=_PAGE_ROW_BYTES)
    befores[1:] = befores[:-1]
    befores[0] = 0
    bases = befores[starts]
    numbers = (befores - np.repeat(bases, np.diff(starts, append=batch.num_rows))) // page_bytes
    begins = np.empty(batch.num_rows, bool)
    np.not_equal(numbers[1:], numbers[:-1], out=begins[1:])
    begins &= ~is_repeat
    begins[starts] = True
    return np.flatnonzero(begins)


def _cumulate_bytes(batch: pa.RecordBatch, *, row_bytes: int = _ROW_BYTES) -> npt.NDArray[np.int64]:
    """Return the cumulated sizes of the rows, as they count for the size of a block."""
    keys, values = offsets_of(batch.column(0)), offsets_of(batch.column(3))
    sizes: npt.NDArray[np.int64] = np.arange(1, batch.num_rows + 1, dtype=np.int64) * row_bytes
    sizes += keys[1:]
    sizes += values[1:]
    sizes -= int(keys[0]) + int(values[0])
    return sizes
