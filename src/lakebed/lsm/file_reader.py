"""Reading a sorted file: single keys, many keys, and runs of blocks.

Invariants:
- A row above the file's ceiling (`FileMeta.through_sequence`) is never returned.
- Opening costs one ranged GET of the tail, when something is first asked that needs it. A key costs at most one GET of
  one block (a second one for a key whose versions continue in the next block), none when the filter says no.
- Tail and blocks are kept in the cache alone, so its bound holds.
- Files are immutable: any number of threads may read.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence
from itertools import compress
from typing import Final

import numpy as np
import numpy.typing as npt
from typing_extensions import Buffer

from lakebed.errors import Corruption, InvalidRequest
from lakebed.lsm.block import CONTINUES, Block, BlockEntry, decode_block
from lakebed.lsm.cache import BlockCache
from lakebed.lsm.filter import Probe, probe_hash, probe_key
from lakebed.lsm.format import Tail, decode_tail
from lakebed.lsm.model import FileMeta, Row
from lakebed.objects.port import ObjectStore

AHEAD_BYTES_DEFAULT: Final = 4 << 20
"""Most bytes that a scan reads at once."""

_FEW_KEYS: Final = 16
"""So many keys are asked of a filter one by one: setting up arrays would take longer."""

_TAIL: Final = -1
"""The tail's number in the cache, where blocks count from 0."""


class FileReader:
    """One file that can be read. Holds no part of it, so that it is cheap to keep.

    Args:
        store, path: where it is.
        meta: what the version that names the file remembers of it.
    """

    __slots__ = ("_cache", "_ceiling", "_name", "_path", "_store", "meta")

    def __init__(self, store: ObjectStore, path: str, *, meta: FileMeta, cache: BlockCache) -> None:
        self.meta = meta
        self._ceiling = meta.ceiling
        self._store = store
        self._path = path
        self._cache = cache
        # Ids are unique but for copies of a database and for simulations, where one seed mints them twice.
        self._name = f"{store.root_url}/{path}"

    @property
    def path(self) -> str:
        """Where it is in its store."""
        return self._path

    @property
    def block_count(self) -> int:
        """Number of blocks. Opens the file."""
        return self.tail().block_count

    def tail(self) -> Tail:
        """The open file: filter and index, checked. Cost: 1 GET when it is not in the cache.

        Raises:
            NotFound: the file is gone.
            Corruption: the tail is damaged, or is not what `meta` says.
            UnsupportedFormat: a newer lakebed wrote it.
        """
        tail: Tail | None = self._cache.get(self._name, _TAIL)
        if tail is None:
            body = self._read(self.meta.tail_offset, self.meta.size_bytes)
            tail = decode_tail(body, meta=self.meta, path=self._path)
            self._cache.put(self._name, _TAIL, tail, size_bytes=tail.size_bytes)
        return tail

    def forget(self) -> None:
        """Drop it from the cache."""
        self._cache.forget(self._name)

    def may_contain(self, key_hash: int) -> bool:
        """False when no row has a key with this hash (`lakebed.lsm.filter.hash_keys`). Opens the file."""
        return self.tail().filter.may_contain(probe_hash(key_hash))

    def get(self, key: bytes, *, sequence: int | None = None, probe: Probe | None = None) -> list[Row]:
        """The rows that decide the value of a key: newest first, down to the first that is not a MERGE.

        Args:
            sequence: only rows up to it; None: all.
            probe: `probe_key` of the key, for a caller that asks several files.

        Returns:
            Nothing when the key is not here.
        Raises: as `tail`.
        Cost: nothing when the filter says no, or from the cache; 1 GET otherwise.
        """
        if self._ceiling is not None:
            sequence = self._ceiling if sequence is None else min(sequence, self._ceiling)
        tail: Tail = self._cache.get(self._name, _TAIL) or self.tail()
        if not tail.filter.may_contain(probe or probe_key(key)):
            return []
        number = bisect_right(tail.first_keys, key) - 1
        if number < 0:
            return []
        if tail.flags[number] & CONTINUES:
            number = _first_block(tail, key)
        block: Block = self._cache.get(self._name, number) or self._load(tail, number)
        rows, unfinished = block.rows_of(key, sequence=sequence)
        if unfinished:
            self._go_on(tail, number + 1, key, sequence=sequence, rows=rows)
        return rows

    def get_many(
        self, keys: Sequence[bytes], *, hashes: npt.NDArray[np.uint64], sequence: int | None = None
    ) -> dict[bytes, list[Row]]:
        """`get` of many keys.

        Args:
            keys: ascending.
            hashes: theirs, in order (`hash_keys`).

        Returns:
            The rows of the keys that are here.
        Raises: as `tail`.
        Cost: 1 GET a run of neighbouring blocks; about `AHEAD_BYTES_DEFAULT` are held at once.
        """
        if self._ceiling is not None:
            sequence = self._ceiling if sequence is None else min(sequence, self._ceiling)
        tail = self.tail()
        rows_by_key: dict[bytes, list[Row]] = {}
        missing: dict[int, list[bytes]] = {}
        for number, some in _by_block(tail, keys, hashes):
            block: Block | None = self._cache.get(self._name, number)
            if block is None:
                missing[number] = some
            else:
                self._find_each(tail, number, block, some, sequence=sequence, found=rows_by_key)
        for numbers in _groups(tail, list(missing), ahead_bytes=AHEAD_BYTES_DEFAULT):
            for number, block in zip(numbers, self._blocks(tail, numbers, fill_cache=True), strict=True):
                self._find_each(tail, number, block, missing[number], sequence=sequence, found=rows_by_key)
        return rows_by_key

    def _find_each(
        self,
        tail: Tail,
        number: int,
        block: Block,
        keys: Sequence[bytes],
        *,
        sequence: int | None,
        found: dict[bytes, list[Row]],
    ) -> None:
        """Add the rows of keys whose first rows can only be in this block."""
        for key in keys:
            rows, unfinished = block.rows_of(key, sequence=sequence)
            if unfinished:
                self._go_on(tail, number + 1, key, sequence=sequence, rows=rows)
            if rows:
                found[key] = rows

    def _go_on(self, tail: Tail, number: int, key: bytes, *, sequence: int | None, rows: list[Row]) -> None:
        """Add the rows of a key that are in the blocks from `number` on."""
        unfinished = True
        while unfinished and number < tail.block_count and tail.first_keys[number] == key:
            more, unfinished = self._block(tail, number).rows_of(key, sequence=sequence)
            rows += more
            number += 1

    def batches(
        self,
        start: bytes | None = None,
        end: bytes | None = None,
        *,
        reverse: bool = False,
        ahead_bytes: int = AHEAD_BYTES_DEFAULT,
        fill_cache: bool = False,
    ) -> Iterator[Block]:
        """The rows with keys in [start, end), block by block; blocks at the edges are cut, without a copy.

        Args:
            start, end: None: from the first, to the last.
            reverse: blocks from the last to the first; the rows of each stay ascending.
            ahead_bytes: reads begin with one block and double up to this size, or one block.
            fill_cache: keep what is read. Otherwise a scan leaves the cache as it is, but for the block in which a
                bounded one begins: small ranges are asked for again.

        Raises: as `tail`.
        Cost: 1 GET each time something is read, none for what is in the cache.
        """
        if start is not None and end is not None and start >= end:
            return
        tail = self.tail()
        first = 0 if start is None else max(_first_block(tail, start), 0)
        last = tail.block_count if end is None else bisect_left(tail.first_keys, end)
        numbers = list(range(first, last))
        if reverse:
            numbers.reverse()
        keep = fill_cache or start is not None or end is not None
        for group in _groups(tail, numbers, ahead_bytes=ahead_bytes, growing=True):
            for number, block in zip(group, self._blocks(tail, group, fill_cache=keep), strict=True):
                low = block.find(start) if start is not None and number == first else 0
                high = block.find(end) if end is not None and number == last - 1 else block.row_count
                if low < high:
                    kept = block.slice(low, high)
                    if self._ceiling is not None:
                        kept = kept.through(self._ceiling)
                    if kept.row_count:
                        yield kept
            keep = fill_cache

    def _block(self, tail: Tail, number: int) -> Block:
        """One block, which stays in the cache."""
        return self._cache.get(self._name, number) or self._load(tail, number)

    def _load(self, tail: Tail, number: int) -> Block:
        """Read one block for one key, into the cache if that wants it."""
        entry = tail.block(number)
        body = self._read(entry.offset, entry.offset + entry.length)
        block = decode_block(body, entry=entry, path=self._path)
        if self._cache.wants(self._name, number):
            self._cache.put(self._name, number, block, size_bytes=block.size_bytes)
        return block

    def _blocks(self, tail: Tail, numbers: Sequence[int], *, fill_cache: bool) -> Iterator[Block]:
        """Blocks in the order of `numbers`: what is missing is read at once, and decoded when it is due."""
        cached: dict[int, Block] = {}
        for number in numbers:
            block = self._cache.get(self._name, number)
            if block is not None:
                cached[number] = block
        encoded = self._read_stored(tail, sorted(number for number in numbers if number not in cached))
        for number in numbers:
            block = cached.get(number)
            if block is None:
                entry, body = encoded[number]
                block = decode_block(body, entry=entry, path=self._path)
                if fill_cache:
                    self._cache.put(self._name, number, block, size_bytes=block.size_bytes)
            yield block

    def _read_stored(self, tail: Tail, numbers: Sequence[int]) -> dict[int, tuple[BlockEntry, memoryview]]:
        """The bytes of these blocks, ascending, as they are stored: neighbours are read together."""
        runs: list[tuple[int, int]] = []
        for number in numbers:
            if runs and runs[-1][1] == number:
                runs[-1] = (runs[-1][0], number + 1)
            else:
                runs.append((number, number + 1))
        ranges = [(tail.offsets[first], tail.offsets[last - 1] + tail.lengths[last - 1]) for first, last in runs]
        bodies = [self._read(*ranges[0])] if len(ranges) == 1 else self._read_ranges(ranges)
        encoded: dict[int, tuple[BlockEntry, memoryview]] = {}
        for (first, last), (start, _), body in zip(runs, ranges, bodies, strict=True):
            for number, entry in enumerate(tail.entries(first, last), first):
                place = entry.offset - start
                encoded[number] = (entry, body[place : place + entry.length])
        return encoded

    def _read(self, start: int, end: int) -> memoryview:
        try:
            body = self._store.get(self._path, byte_range=(start, end))
        except InvalidRequest as error:
            raise self._cut_short(start) from error
        return self._whole(body, start, end)

    def _read_ranges(self, ranges: Sequence[tuple[int, int]]) -> list[memoryview]:
        if not ranges:
            return []
        try:
            bodies = self._store.get_ranges(self._path, ranges)
        except InvalidRequest as error:
            raise self._cut_short(ranges[0][0]) from error
        return [self._whole(body, start, end) for body, (start, end) in zip(bodies, ranges, strict=True)]

    def _whole(self, body: Buffer, start: int, end: int) -> memoryview:
        view = memoryview(body).cast("B")
        if len(view) != end - start:
            raise self._cut_short(start + len(view))
        return view

    def _cut_short(self, offset: int) -> Corruption:
        return Corruption(
            f"{self._path} is damaged: it ends at or before byte {offset:,}, and {self.meta.size_bytes:,} bytes were "
            "written to it.",
            path=self._path,
            offset=offset,
        )


def _first_block(tail: Tail, key: bytes) -> int:
    """The first block that may hold a key, or those behind it; -1 when all keys are greater."""
    number = bisect_left(tail.first_keys, key)
    if number < len(tail.first_keys) and tail.first_keys[number] == key and not tail.flags[number] & CONTINUES:
        return number
    return number - 1


def _by_block(tail: Tail, keys: Sequence[bytes], hashes: npt.NDArray[np.uint64]) -> Iterator[tuple[int, list[bytes]]]:
    """The blocks in which some of the keys, ascending, may be, in their order, each with its keys."""
    first_keys, flags = tail.first_keys, tail.flags
    if len(keys) < _FEW_KEYS:
        may_contain = tail.filter.may_contain
        keys = [key for key, key_hash in zip(keys, hashes.tolist(), strict=True) if may_contain(probe_hash(key_hash))]
    else:
        keys = list(compress(keys, tail.filter.may_contain_each(hashes).tolist()))
    number = -1
    some: list[bytes] = []
    for key in keys:
        at = bisect_right(first_keys, key, max(number, 0)) - 1
        if at >= 0 and flags[at] & CONTINUES:
            at = _first_block(tail, key)
        if at != number:
            if some and number >= 0:
                yield number, some
            number, some = at, []
        some.append(key)
    if some and number >= 0:
        yield number, some


def _groups(tail: Tail, numbers: Sequence[int], *, ahead_bytes: int, growing: bool = False) -> Iterator[Sequence[int]]:
    """Numbers in their order, as many at once as have `ahead_bytes`; growing: one block first, then doubling."""
    limit = 0 if growing else ahead_bytes
    position = 0
    while position < len(numbers):
        start = position
        size_bytes = tail.lengths[numbers[start]]
        position += 1
        while position < len(numbers) and size_bytes + tail.lengths[numbers[position]] <= limit:
            size_bytes += tail.lengths[numbers[position]]
            position += 1
        yield numbers[start:position]
        limit = min(max(2 * limit, 2 * size_bytes), ahead_bytes)
