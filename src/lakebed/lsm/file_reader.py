"""Reading a sorted file: single keys, many keys, and runs of blocks.

Invariants:
- A row above the file's ceiling (`FileMeta.through_sequence`) is never returned.
- Opening costs one ranged GET of the tail, at the first call that needs it. A key costs at most one GET of one block (a
  second one for a key whose versions continue in the next block), none if the filter excludes the key.
- Tail and blocks are kept only in the cache, so its bound holds.
- Files are immutable, so any number of threads may read.
"""

from __future__ import annotations

import ctypes
import mmap
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from itertools import compress
from math import ceil
from typing import Any, Final

import numpy as np
import numpy.typing as npt
from typing_extensions import Buffer

from lakebed.errors import Corruption, InvalidRequest
from lakebed.lsm.block import CONTINUES, PLAIN, Block, damage_error
from lakebed.lsm.cache import OPEN, BlockCache
from lakebed.lsm.filter import hash_key
from lakebed.lsm.format import (
    PAGE_ENTRY_BYTES,
    PageEntry,
    Pages,
    Tail,
    decode_blocks,
    decode_pages,
    decode_tail,
    read_mapped_pages,
    read_page_entry,
    unpack_page,
)
from lakebed.lsm.key_batch import KeyBatch
from lakebed.lsm.model import ROWS_DECIDE, FileMeta, Row, RowsDecide
from lakebed.lsm.page import BadPageError, add_pairs, find_among_all, find_rows, find_value, find_values, rows_of_page
from lakebed.lsm.short_scan import NO_ROWS, Newest, put_rows
from lakebed.objects.port import ObjectStore

AHEAD_BYTES_DEFAULT: Final = 4 << 20
"""Most bytes that a scan reads at once."""

FEW_KEYS: Final = 16
"""Up to this count, keys are checked in a filter, or searched in pages, one by one: arrays take longer to set up."""

_FEW_IN_BLOCK: Final = 4
"""Fewer keys than these are not searched in a block of a mapped file if other keys are searched in pages."""

_MANY_OF_PAGE: Final = 6
"""From this average number of keys for each page, decode and compare all keys of a page: one call for each page."""

FULL_CALL_COUNT: Final = 8
"""After this many calls in which nearly all keys were in a file, calls with many keys no longer use its filter."""

FEW_ABSENT: Final = 16
"""Nearly all keys are in a file if at most one key in this many is not."""

_PAGES: Final = -2
"""The number of the first page in the cache. The numbers of further pages count down."""

_SEARCHES_OF_PAGE: Final = 8
"""A file's directory of pages is loaded after as many searches as it has pages, divided by this number.

Loading takes 0.4 us for each page and saves 3 us in each search.
"""

_LOCAL_AHEAD_BYTES: Final = 1 << 20
"""Most bytes of a mapped file that a scan takes at once."""

_LOADED_AROUND_BYTES: Final = 2 << 20
"""This many bytes before and after a position may be loaded with it.

Linux also maps the surroundings of a page that is touched, and a whole large page if it keeps the file in large pages.
"""

_RUN_BYTES_MIN: Final = 512 << 10
"""For each of many sources, the most bytes of neighbouring blocks, before compression, that are decoded together."""

_RUN_BYTES_MAX: Final = 2 << 20
"""The same for a single source. Larger runs take no less time."""

_RUNS_BYTES: Final = 6 << 20
"""Most bytes of the runs of all sources together, if there are few sources."""

_MADVISE: Final = getattr(ctypes.CDLL(None), "madvise", None) if hasattr(mmap, "MADV_DONTNEED") else None

_PYTHON_BYTES_OF_PAGE: Final = 64
"""Memory of a cached page in addition to its bytes."""

_Place = tuple[Tail, Pages, list[bytes] | Pages, int, int]
"""An open file, its pages, the keys with which they begin, and the range [first, behind) of pages."""

Rest = tuple[int, list[bytes], list[Any], bool]
"""Number of a page, keys of the pages before it, the value of `Newest` for each key, and whether rows decide."""


class FileReader:
    """A handle to read one file. It contains no part of the file, so it is cheap to keep.

    Args:
        store, path: location of the file.
        meta: the entry of the file in the version that names it.
    """

    __slots__ = (
        "_cache",
        "_ceiling",
        "_entries",
        "_full_call_count",
        "_name",
        "_path",
        "_store",
        "first_key",
        "last_key",
        "meta",
        "tail_key",
    )

    def __init__(self, store: ObjectStore, path: str, *, meta: FileMeta, cache: BlockCache) -> None:
        self.meta = meta
        self.first_key = meta.first_key
        self.last_key = meta.last_key
        self._ceiling = meta.ceiling
        self._store = store
        self._path = path
        self._cache = cache
        # Ids are unique, except in copies of a database and in simulations, where one seed makes the same id twice.
        self._name = f"{store.root_url}/{path}"
        self._entries = cache.entries
        self.tail_key = (self._name, OPEN)
        """Key of the open file in `BlockCache.entries`."""
        self._full_call_count = 0
        """Consecutive calls with many keys in which nearly all keys were in this file. A lost update does no harm."""

    @property
    def path(self) -> str:
        """The path in the store."""
        return self._path

    @property
    def block_count(self) -> int:
        """Number of blocks. Opens the file."""
        return self.tail().block_count

    def tail(self) -> Tail:
        """Return the open file: filter and index, checked. Cost: 1 GET if it is not in the cache.

        Raises:
            NotFound: the file is gone.
            Corruption: the tail is damaged, or is not what `meta` says.
            UnsupportedFormat: a newer lakebed wrote it.
        """
        entry = self._entries.get(self.tail_key)
        if entry is not None:
            entry.used = True
            tail: Tail = entry.value
        else:
            meta = self.meta
            mapped = self._store.map(self._path)
            if mapped is None:
                tail = decode_tail(self._read(meta.tail_offset, meta.size_bytes), meta=meta, path=self._path)
            else:
                # Never touch a byte of a map that the file does not have: this would end the process.
                content = self._whole(mapped, 0, meta.size_bytes)
                tail = decode_tail(content[meta.tail_offset :], meta=meta, path=self._path, mapped=content)
                if meta.size_bytes - meta.tail_offset > _LOCAL_AHEAD_BYTES:
                    _unload(content, meta.tail_offset, meta.size_bytes)  # of which filter and separators are read there
            self._cache.put(self._name, OPEN, tail, size_bytes=tail.size_bytes)
        return tail

    @property
    def is_mapped(self) -> bool:
        """Whether the file is open and mapped."""
        entry = self._entries.get(self.tail_key)
        return entry is not None and entry.value.mapped is not None

    def forget(self) -> None:
        """Drop the file from the cache."""
        self._cache.forget(self._name)

    def may_contain(self, key_hash: int) -> bool:
        """Return False if no row has a key with this hash (`lakebed.lsm.filter.hash_keys`). Opens the file."""
        return self.tail().filter.may_contain(key_hash)

    def get(self, key: bytes, *, sequence: int | None = None, key_hash: int | None = None) -> list[Row]:
        """Return the rows that decide the value of a key: newest first, down to the first that is not a MERGE.

        Args:
            sequence: return only rows up to this sequence; None: all.
            key_hash: hash of the key (`hash_key`), for a caller that reads several files.

        Returns:
            The rows; empty if the key is not here.

        Raises: as `tail`.

        Cost: nothing if the filter excludes the key, or from the cache. Otherwise 1 GET: of the block while the cache
            has space, else of the page; of a mapped file that does not fit in half of the cache always of the page.
        """
        if self._ceiling is not None:
            sequence = self._ceiling if sequence is None else min(sequence, self._ceiling)
        tail = self.tail()
        if not tail.filter.may_contain(hash_key(key) if key_hash is None else key_hash):
            return []
        return self._rows_in_file(tail, key, sequence=sequence)

    def _rows_in_file(self, tail: Tail, key: bytes, *, sequence: int | None) -> list[Row]:
        """As `get`, of a key that the filter lets pass."""
        pages = tail.pages
        if pages is None or self._wants_block(tail):
            return self._get_by_block(tail, key, sequence=sequence)
        if pages.keys is None:
            self._count_searches(tail, pages, 1)
        page = pages.find(key)
        if page < 0:
            return []
        entry = pages.entry(page)
        number, flags = entry[4], entry[6]
        if flags & CONTINUES or (self._name, number) in self._entries:
            return self._get_by_block(tail, key, sequence=sequence)
        try:
            rows, unfinished = find_rows(self._page(tail, page, entry), key, sequence=sequence)
        except BadPageError as error:
            raise self._bad_page_error(tail, number) from error
        if unfinished:
            self._go_on(tail, number + 1, key, sequence=sequence, rows=rows)
        return rows

    def find_value(self, tail: Tail, key: bytes, *, sequence: int | None = None) -> bytes | RowsDecide | None:
        """Return the value of a key whose newest row here is a PUT that does not expire, in the fewest steps.

        Args:
            tail: the tail of this file. The key has passed its filter.
            sequence: as for `get`.

        Returns:
            None if the key is not here; `ROWS_DECIDE` if the caller has to use `get`.

        Errors and cost: as `get`.
        """
        pages, mapped = tail.pages, tail.mapped
        if pages is None or self._ceiling is not None:
            return ROWS_DECIDE
        separators = pages.keys
        if separators is None:
            self._count_searches(tail, pages, 1)
            page = pages.find(key)
        else:
            page = bisect_right(separators, key) - 1
        if page < 0:
            return None
        entry = pages.entry(page) if separators is None else read_page_entry(pages.octets, PAGE_ENTRY_BYTES * page)
        start, _, length, raw_length, number, _, flags = entry
        if flags & CONTINUES:
            return ROWS_DECIDE
        entries, name, cache = self._entries, self._name, self._cache
        cached_block = entries.get((name, number))
        if cached_block is not None:
            cached_block.used = True
            value: bytes | RowsDecide | None = cached_block.value.find_value(key, sequence=sequence)
            return value
        if mapped is None:
            return ROWS_DECIDE  # a value read here would be requested again by `get` if the cache does not keep it
        # Checking and copying a mapped page that is not compressed takes less time than keeping it.
        is_compressed = length != raw_length
        cached_block = entries.get((name, _PAGES - page)) if is_compressed else None
        if cached_block is not None:
            cached_block.used = True
            body: bytes = cached_block.value
        else:
            body = unpack_page(entry, mapped[start : start + length], path=self._path)
        try:
            value = find_value(body, key, sequence=sequence)
        except BadPageError as error:
            raise self._bad_page_error(tail, number) from error
        # Do not cache a page for an absent key that passed the filter: it would evict useful entries, and decoding a
        # block for it takes long.
        if value is None:
            return None
        if self._wants_block(tail):
            return self._load(tail, number).find_value(key, sequence=sequence)
        if is_compressed and cached_block is None and cache.wants(name, _PAGES - page):
            cache.put(name, _PAGES - page, body, size_bytes=len(body) + _PYTHON_BYTES_OF_PAGE)
        return value

    def _count_searches(self, tail: Tail, pages: Pages, count: int) -> None:
        """Count searches in a directory of pages that is not loaded. Load it once that pays, if the cache allows it.

        By then the searches have lost as much time as loading takes, so a file with few searches never pays for it.
        """
        pages.search_count += count
        if _SEARCHES_OF_PAGE * pages.search_count >= len(pages):
            pages.search_count = 0
            if self._cache.grow(self._name, tail, size_bytes=pages.loaded_bytes, take_back=tail.unload_pages):
                pages.load()

    def _get_by_block(self, tail: Tail, key: bytes, *, sequence: int | None) -> list[Row]:
        """As `get`, of a key that the filter lets pass."""
        number = _first_block(tail, key)
        if number < 0:
            return []
        rows, unfinished = self._rows_of(tail, number, key, sequence=sequence)
        if unfinished:
            self._go_on(tail, number + 1, key, sequence=sequence, rows=rows)
        return rows

    def _wants_block(self, tail: Tail) -> bool:
        """Whether to read and keep a whole block for a key: if that saves requests, or if a whole mapped file fits.

        To decode a block takes as long as 20 pages. A few blocks of a large file in a small cache never save this time.
        """
        cache = self._cache
        return cache.has_space and (tail.mapped is None or 2 * self.meta.size_bytes <= cache.bytes_max)

    def _rows_of(self, tail: Tail, number: int, key: bytes, *, sequence: int | None) -> tuple[list[Row], bool]:
        """Return the rows of a key in one block, and whether more may be in the next one."""
        entry = self._entries.get((self._name, number))
        if entry is not None:
            entry.used = True
            block: Block = entry.value
            return block.rows_of(key, sequence=sequence)
        pages = tail.pages
        if pages is None or self._wants_block(tail):
            return self._load(tail, number).rows_of(key, sequence=sequence)
        try:
            page = pages.find_within(number, key)
            return find_rows(self._page(tail, page, pages.entry(page)), key, sequence=sequence)
        except BadPageError as error:
            raise self._bad_page_error(tail, number) from error

    def get_many(
        self, keys: Sequence[bytes], *, hashes: npt.NDArray[np.uint64], sequence: int | None = None
    ) -> dict[bytes, list[Row]]:
        """As `get`, for many keys.

        Args:
            keys: in any order.
            hashes: the hashes of the keys, in order (`hash_keys`).

        Returns:
            The rows of the keys that are here.

        Raises: as `tail`.

        Cost: 1 GET for each run of neighbouring blocks, or of neighbouring pages if the cache has no space for blocks;
            memory of about `AHEAD_BYTES_DEFAULT`.
        """
        rows_by_key: dict[bytes, list[Row]] = {}
        likely = self.select(KeyBatch(keys, hashes))
        self.find_many(likely, sequence=sequence, rows_by_key=rows_by_key, values=None)
        return rows_by_key

    def select(self, batch: KeyBatch, *, are_likely: bool = False) -> KeyBatch:
        """Return those of the keys that pass the filter. No other key is here. Opens the file. Raises as `tail`.

        If nearly all keys of the last calls were in a mapped file, return all keys: to search a few in vain takes less
        time than to check each in the filter.

        Args:
            are_likely: whether nearly all keys of the whole call are expected in the files that may have them.
        """
        tail = self.tail()
        is_full = are_likely or (self._full_call_count >= FULL_CALL_COUNT and len(batch) >= FEW_KEYS)
        if is_full and tail.mapped and tail.pages:
            return batch
        if len(batch) < FEW_KEYS:
            likely_keys = list(compress(batch.keys, map(tail.filter.may_contain, map(hash_key, batch.keys))))
        else:
            likely_keys = list(map(batch.keys.__getitem__, tail.filter.select(batch.hashes).tolist()))
        self._full_call_count += 1
        self._note_absent(len(batch) - len(likely_keys), len(batch))
        return batch if len(likely_keys) == len(batch) else KeyBatch(likely_keys)

    def _note_absent(self, absent_count: int, count: int) -> None:
        """Record how many of the keys of a call were not here."""
        if FEW_ABSENT * absent_count > count:
            self._full_call_count = 0

    def lie_apart(self, keys: Sequence[bytes]) -> bool:
        """Whether `find_neighbours` would at once return that it adds nothing. False if the file is not open."""
        entry = self._entries.get(self.tail_key)
        if entry is None or (pages := entry.value.pages) is None:
            return False
        return _lie_apart(pages, keys, page_count_max=len(keys) // _MANY_OF_PAGE)

    def find_neighbours(self, keys: Sequence[bytes], *, sequence: int | None, values: dict[bytes, bytes]) -> bool:
        """Add the values of keys that are in a few pages of a mapped file, by reading all rows of these pages.

        Args:
            keys: at least one, in any order.
            sequence: as for `get`.

        Returns:
            False if nothing was added, because the keys lie apart or because rows decide. Then use `find_many`.

        Raises: as `tail`. Cost: 1 us if the keys lie apart; otherwise 2 us for each page and 0.1 us for each row,
        without using a filter.
        """
        if len(keys) < FEW_KEYS or self._ceiling is not None:
            return False
        if sequence is not None and self.meta.max_sequence > sequence:
            return False
        tail = self.tail()
        pages = tail.pages
        if pages is None or tail.mapped is None:
            return False
        page_count_max = len(keys) // _MANY_OF_PAGE
        if _lie_apart(pages, keys, page_count_max=page_count_max):
            return False
        first, stop = pages.find(min(keys)), pages.find(max(keys)) + 1
        if not 0 <= first < stop <= first + page_count_max:
            return False
        if pages.keys is None:
            self._count_searches(tail, pages, stop - first)
        flags = tail.flags[pages.entry(first)[4] : pages.entry(stop - 1)[4] + 1]
        if not all(map(PLAIN.__and__, flags)) or sum(pages.raw_lengths[first:stop]) > AHEAD_BYTES_DEFAULT:
            return False
        pairs: tuple[list[bytes], list[bytes]] = ([], [])
        self.add_rows(tail, pages, first, stop, *pairs, sequence=None)
        rows = dict(zip(*pairs, strict=True))
        values.update([(key, rows[key]) for key in keys if key in rows])
        return True

    def find_many(
        self,
        likely: KeyBatch,
        *,
        sequence: int | None,
        rows_by_key: dict[bytes, list[Row]],
        values: dict[bytes, bytes] | None,
    ) -> None:
        """Add the result of `get_many` to `rows_by_key`, without rows of keys for which a value suffices.

        Args:
            likely: keys that `select` returned.
            values: receives the values of keys whose newest row here is a PUT that does not expire; None: add rows for
                these keys too.
        """
        if self._ceiling is not None:
            sequence = self._ceiling if sequence is None else min(sequence, self._ceiling)
        if not len(likely):
            return
        tail = self.tail()
        pages = tail.pages
        if pages is None:
            keys = sorted(likely.keys)
            low, high = bisect_left(keys, tail.first_keys[0]), bisect_right(keys, self.meta.last_key)
            by_block = {number: KeyBatch(block_keys) for number, block_keys in _by_block(tail, keys[low:high])}
            self._find_in_blocks(tail, by_block, sequence=sequence, rows_by_key=rows_by_key, values=values)
        elif len(likely) < FEW_KEYS and tail.mapped is not None:
            if values is None:
                keys_left: Sequence[bytes] = likely.keys
            else:
                keys_left = self._find_few(tail, pages, tail.mapped, likely.keys, sequence=sequence, values=values)
            for key in keys_left:
                if rows := self._rows_in_file(tail, key, sequence=sequence):
                    rows_by_key[key] = rows
        else:
            former_count = len(rows_by_key) + len(values or ())
            self._find_in_pages(tail, pages, likely, sequence=sequence, rows_by_key=rows_by_key, values=values)
            found_count = len(rows_by_key) + len(values or ()) - former_count
            self._note_absent(len(likely) - found_count, len(likely))

    def _find_few(
        self,
        tail: Tail,
        pages: Pages,
        mapped: memoryview,
        keys: Sequence[bytes],
        *,
        sequence: int | None,
        values: dict[bytes, bytes],
    ) -> list[bytes]:
        """Add the values of keys, each from its page. Return the keys whose rows decide.

        As `find_value` for each key, but pages are neither taken from the cache nor put there: this is as fast.
        """
        if pages.keys is None:
            self._count_searches(tail, pages, len(keys))
        separators, entries, name = pages.keys, self._entries, self._name
        wants_block, keys_left = self._wants_block(tail), []
        for key in keys:
            page = pages.find(key) if separators is None else bisect_right(separators, key) - 1
            if page < 0:
                continue
            entry = pages.entry(page) if separators is None else read_page_entry(pages.octets, PAGE_ENTRY_BYTES * page)
            start, _, length, _, number, _, flags = entry
            value: bytes | RowsDecide | None
            if flags & CONTINUES:
                value = ROWS_DECIDE
            elif (cached_block := entries.get((name, number))) is not None:
                cached_block.used = True
                value = cached_block.value.find_value(key, sequence=sequence)
            elif wants_block:
                value = self.find_value(tail, key, sequence=sequence)
            else:
                body = unpack_page(entry, mapped[start : start + length], path=self._path)
                try:
                    value = find_value(body, key, sequence=sequence)
                except BadPageError as error:
                    raise self._bad_page_error(tail, number) from error
            if value is ROWS_DECIDE:
                keys_left.append(key)
            elif value is not None:
                values[key] = value
        return keys_left

    def _find_in_blocks(
        self,
        tail: Tail,
        by_block: Mapping[int, KeyBatch],
        *,
        sequence: int | None,
        rows_by_key: dict[bytes, list[Row]],
        values: dict[bytes, bytes] | None,
    ) -> None:
        """Add the rows and values of keys from whole blocks, by number of the block. Keep the blocks if they fit."""
        missing: list[int] = []
        for number, block_keys in by_block.items():
            block: Block | None = self._cache.get(self._name, number)
            if block is not None:
                self._find_each(
                    tail, number, block, block_keys, sequence=sequence, rows_by_key=rows_by_key, values=values
                )
            else:
                missing.append(number)
        for numbers in _groups(tail, sorted(missing), ahead_bytes=AHEAD_BYTES_DEFAULT):
            for number, _, block in self._blocks(tail, numbers, fill_cache=True):
                block_keys = by_block[number]
                self._find_each(
                    tail, number, block, block_keys, sequence=sequence, rows_by_key=rows_by_key, values=values
                )

    def _find_each(
        self,
        tail: Tail,
        number: int,
        block: Block,
        batch: KeyBatch,
        *,
        sequence: int | None,
        rows_by_key: dict[bytes, list[Row]],
        values: dict[bytes, bytes] | None,
    ) -> None:
        """Add the rows and values of keys from one block. Their first rows can only be in this block."""
        keys = batch.keys if values is None else block.find_values(batch, values, sequence=sequence)
        for key in keys:
            rows, unfinished = block.rows_of(key, sequence=sequence)
            if unfinished:
                self._go_on(tail, number + 1, key, sequence=sequence, rows=rows)
            if rows:
                rows_by_key[key] = rows

    def _find_in_pages(
        self,
        tail: Tail,
        pages: Pages,
        batch: KeyBatch,
        *,
        sequence: int | None,
        rows_by_key: dict[bytes, list[Row]],
        values: dict[bytes, bytes] | None,
    ) -> None:
        """Add the rows and values of keys from single pages, or from blocks that are in the cache or fit in it."""
        if pages.common_bytes:
            first_key, last_key = self.first_key, self.last_key
            batch = batch.select(np.flatnonzero([first_key <= key <= last_key for key in batch.keys]))
            if not len(batch):
                return
        if pages.keys is None:
            self._count_searches(tail, pages, len(batch))
        numbers = pages.find_each(batch)
        group, places = _distinct(numbers)
        entries = pages.take(group)
        cached_numbers = self._cache.numbers_of(self._name)
        if (
            group[0] < 0
            or self._wants_block(tail)
            or np.count_nonzero(entries["flags"] & CONTINUES)
            or not cached_numbers.isdisjoint(entries["block"].tolist())
        ):
            batch, numbers = self._find_otherwise(
                tail,
                pages,
                batch,
                numbers,
                cached_numbers=cached_numbers,
                sequence=sequence,
                rows_by_key=rows_by_key,
                values=values,
            )
            if not len(batch):
                return
            group, places = _distinct(numbers)
        for page_keys, part, ranks in _page_groups(pages, batch, group, places, ahead_bytes=AHEAD_BYTES_DEFAULT):
            self._find_in_group(
                tail, pages, part, page_keys, places=ranks, sequence=sequence, rows_by_key=rows_by_key, values=values
            )

    def _find_otherwise(
        self,
        tail: Tail,
        pages: Pages,
        batch: KeyBatch,
        numbers: npt.NDArray[np.int64],
        *,
        cached_numbers: Set[int],
        sequence: int | None,
        rows_by_key: dict[bytes, list[Row]],
        values: dict[bytes, bytes] | None,
    ) -> tuple[KeyBatch, npt.NDArray[np.int64]]:
        """Add the rows and values of keys for which single pages are not enough or not best.

        These are the keys whose rows begin in the block before, and the keys of blocks that are in the cache or fit in
        it.

        Args:
            numbers: for each key the number of the page that may contain it; -1: none.

        Returns:
            The remaining keys, for single pages, and their page numbers.
        """
        if np.count_nonzero(numbers < 0):
            batch, numbers = batch.select((numbers >= 0).nonzero()[0]), numbers[numbers >= 0]
        entries = pages.take(numbers)
        blocks, continues = entries["block"], entries["flags"] & CONTINUES
        if np.count_nonzero(continues):
            for key in batch.select(continues.nonzero()[0]).keys:
                if rows := self._get_by_block(tail, key, sequence=sequence):
                    rows_by_key[key] = rows
            batch = batch.select((continues == 0).nonzero()[0])
            numbers, blocks = numbers[continues == 0], blocks[continues == 0]
        if len(batch) and (self._wants_block(tail) or not cached_numbers.isdisjoint(blocks.tolist())):
            by_block, places_left = self._choose_blocks(tail, blocks, cached_numbers=cached_numbers)
            batches = {number: batch.select(places) for number, places in by_block.items()}
            self._find_in_blocks(tail, batches, sequence=sequence, rows_by_key=rows_by_key, values=values)
            batch, numbers = batch.select(places_left), numbers.take(places_left)
        return batch, numbers

    def _choose_blocks(
        self, tail: Tail, blocks: npt.NDArray[np.uint32], *, cached_numbers: Set[int]
    ) -> tuple[dict[int, npt.NDArray[np.int64]], npt.NDArray[np.int64]]:
        """Choose the blocks to search as a whole, because they are in the cache or fit in it.

        Args:
            blocks: for each key the number of its block.

        Returns:
            The places of their keys by number of the block, and the places of the other keys; all ascending.
        """
        order = blocks.argsort(kind="stable")
        sorted_blocks = blocks.take(order)
        is_first = np.ones(len(blocks), bool)
        np.not_equal(sorted_blocks[1:], sorted_blocks[:-1], out=is_first[1:])
        starts = is_first.nonzero()[0]
        sizes = np.empty_like(starts)
        np.subtract(starts[1:], starts[:-1], out=sizes[:-1])
        sizes[-1] = len(blocks) - starts[-1]
        is_many = sizes >= _FEW_IN_BLOCK
        if tail.mapped is not None and not np.count_nonzero(is_many):
            return {}, np.arange(len(blocks))
        numbers = sorted_blocks.take(starts).tolist()
        is_whole = np.zeros(len(numbers), bool)
        space_bytes = self._cache.space_bytes if self._wants_block(tail) else 0
        # In a mapped file, a few keys of a block are found sooner in their pages, which need no request.
        for place in range(len(numbers)) if tail.mapped is None else is_many.nonzero()[0].tolist():
            if numbers[place] not in cached_numbers:
                if space_bytes <= 0:
                    continue
                space_bytes -= tail.raw_lengths[numbers[place]]
            is_whole[place] = True
        places_left = starts[:0] if is_whole.all() else np.sort(order[~np.repeat(is_whole, sizes)])
        by_block = {
            numbers[place]: order[starts[place] : starts[place] + sizes[place]]
            for place in is_whole.nonzero()[0].tolist()
        }
        return by_block, places_left

    def _find_in_group(
        self,
        tail: Tail,
        pages: Pages,
        group: npt.NDArray[np.int64],
        batch: KeyBatch,
        *,
        places: npt.NDArray[np.int64],
        sequence: int | None,
        rows_by_key: dict[bytes, list[Row]],
        values: dict[bytes, bytes] | None,
    ) -> None:
        """Add the rows and values of keys from pages that are read together.

        Args:
            group: numbers of the pages.
            places: for each key the index of its page in `group`.
        """
        # Decoding a mapped page takes no longer than looking it up in the cache and copying it.
        bodies = (
            self._read_pages(tail, pages, group.tolist())
            if tail.mapped is None
            else decode_pages(tail, group, None, path=self._path)
        )
        if sequence is not None and self.meta.max_sequence <= sequence:
            sequence = None
        place = 0
        try:
            if (
                values is not None
                and len(batch) >= _MANY_OF_PAGE * len(group)
                and sequence is None
                and np.count_nonzero(pages.take(group)["flags"] & PLAIN) == len(group)
            ):
                find_among_all(bodies, batch.keys, values)
                return
            pairs: Iterable[tuple[bytes, int]] = zip(batch.keys, places.tolist(), strict=True)
            if values is not None and sequence is None:
                pairs = find_values(bodies, batch.keys, places.tolist(), values)
            for key, place in pairs:
                value = find_value(bodies[place], key, sequence=sequence) if values is not None else ROWS_DECIDE
                if value is ROWS_DECIDE:
                    rows, unfinished = find_rows(bodies[place], key, sequence=sequence)
                    if unfinished:
                        self._go_on(tail, pages.entry(int(group[place]))[4] + 1, key, sequence=sequence, rows=rows)
                    if rows:
                        rows_by_key[key] = rows
                elif value is not None and values is not None:
                    values[key] = value
        except BadPageError as error:
            raise self._bad_page_error(tail, pages.entry(int(group[place + error.place]))[4]) from error

    def _go_on(self, tail: Tail, number: int, key: bytes, *, sequence: int | None, rows: list[Row]) -> None:
        """Add the rows of a key in the blocks from `number` on."""
        unfinished = True
        while unfinished and number < tail.block_count and tail.first_keys[number] == key:
            later_rows, unfinished = self._rows_of(tail, number, key, sequence=sequence)
            rows += later_rows
            number += 1

    def batches(
        self,
        start: bytes | None = None,
        end: bytes | None = None,
        *,
        reverse: bool = False,
        ahead_bytes: int = AHEAD_BYTES_DEFAULT,
        growing: bool = True,
        fill_cache: bool = False,
        run_bytes: int = _RUN_BYTES_MIN,
    ) -> Iterator[Block]:
        """Yield the rows with keys in [start, end), one or several blocks at a time.

        The first and the last block are cut without a copy.

        Args:
            start, end: None: from the first key, to the last.
            reverse: yield blocks from the last to the first. The rows of each block stay ascending.
            ahead_bytes: most bytes that are read at once, or one block.
            growing: begin with reads of one block and double them up to `ahead_bytes`, for a caller that may stop soon.
            fill_cache: keep what is read. Otherwise a scan leaves the cache unchanged, except for the block in which a
                bounded scan begins: small ranges are read repeatedly.
            run_bytes: most bytes of neighbouring blocks, before compression, that are decoded together; or one block.
                See `choose_run_bytes`.

        Raises: as `tail`.
        Cost: 1 GET for each read, none for cached blocks. A mapped file adds about `_LOCAL_AHEAD_BYTES` to the memory
            of the process, whatever its length. If `ahead_bytes` is smaller, it adds only the batch in use.
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
        is_merged = ahead_bytes < _LOCAL_AHEAD_BYTES  # read together with many files, so loaded parts of each count
        mapped = tail.mapped
        if mapped is not None:
            if is_merged:
                _unload(mapped, self.meta.tail_offset, self.meta.size_bytes)
            ahead_bytes = min(ahead_bytes, _LOCAL_AHEAD_BYTES)
        for group in _groups(tail, numbers, ahead_bytes=ahead_bytes, growing=growing):
            for lowest, highest, block in self._blocks(tail, group, fill_cache=keep, run_bytes=run_bytes):
                if mapped is not None and is_merged:  # before its rows, which are copies, wait for those of other files
                    end_offset = tail.offsets[highest] + tail.lengths[highest]
                    _unload(mapped, tail.offsets[lowest], end_offset + _LOADED_AROUND_BYTES)
                    _unload(mapped, self.meta.tail_offset, self.meta.size_bytes)  # the directory of pages is read there
                low = block.find(start) if start is not None and lowest == first else 0
                high = block.find(end) if end is not None and highest == last - 1 else block.row_count
                if low < high:
                    block_rows = block.slice(low, high)
                    if self._ceiling is not None:
                        block_rows = block_rows.through(self._ceiling)
                    if block_rows.row_count:
                        yield block_rows
            if mapped is not None and not is_merged and group[0] != numbers[0]:  # the first group may be read again
                lowest, highest = min(group[0], group[-1]), max(group[0], group[-1])
                _unload(mapped, tail.offsets[lowest], tail.offsets[highest] + tail.lengths[highest])
                if group[-1] == numbers[-1]:
                    _unload(mapped, self.meta.tail_offset, self.meta.size_bytes)
            keep = fill_cache

    def find_pages(self, low: bytes, row_count: int) -> tuple[bytes | None, _Place | None]:
        """As `Source.find`: find a key with which a page begins, about `row_count` rows after `low`.

        Returns:
            The key, and the place for `take_pages`. `NO_ROWS` if single pages cannot be read without a request.

        Raises: as `tail`.
        """
        entry = self._entries.get(self.tail_key)
        if entry is None:
            tail = self.tail()
        else:
            entry.used = True
            tail = entry.value
        pages = tail.pages
        if tail.mapped is None or pages is None:
            return NO_ROWS, None
        if pages.keys is None:
            self._count_searches(tail, pages, 1)
        separators = pages.keys or pages
        first = max(pages.find(low), 0)
        pages_wanted = row_count * len(separators) / self.meta.row_count
        if separators[first] < low:
            pages_wanted += 1  # at most one page of rows is below
        elif separators[first] == low:  # the key's rows may begin in the block before
            first = pages.find_within(max(_first_block(tail, low), 0), low)
        stop = first + ceil(pages_wanted)
        if stop < len(separators) and separators[stop] <= low:  # the rows of one key continue in several blocks
            stop = bisect_right(separators, low, stop)
        if stop < len(separators):
            return separators[stop], (tail, pages, separators, first, stop)
        return None, (tail, pages, separators, first, len(separators))

    def take_pages(
        self,
        place: _Place,
        low: bytes,
        bound: bytes | None,
        newest: Newest,
        *,
        rest: Rest | None = None,
        sequence: int | None = None,
    ) -> tuple[bool, Rest | None]:
        """As `Source.take`; also return the rest of the last page. Cost: about 2 us a page, and 0.1 us a row.

        Args:
            rest: what the call whose bound was `low` returned as its rest; None: nothing.
            sequence: take only rows up to this sequence; None: all.
        """
        tail, pages, separators, first, stop = place
        if bound is not None:
            stop = bisect_left(separators, bound, first, stop)
        if self._ceiling is not None:
            sequence = self._ceiling if sequence is None else min(sequence, self._ceiling)
        if sequence is not None and self.meta.max_sequence <= sequence:
            sequence = None
        first, keys, values, rows_decide = rest or (first, [], [], False)
        if first < stop and self.add_rows(tail, pages, first, stop, keys, values, sequence=sequence):
            rows_decide = True
        if not keys:
            return False, None
        start = bisect_left(keys, low) if keys[0] < low else 0
        end, rest = len(keys), None
        if bound is not None and keys[-1] >= bound:
            end = bisect_left(keys, bound, start)
            rest = max(first, stop), keys[end:], values[end:], rows_decide
        if start or rest is not None:
            keys, values = keys[start:end], values[start:end]
        if rows_decide:
            put_rows(newest, keys, values)
        else:
            newest.update(zip(keys, values, strict=True))
        return rows_decide, rest

    def add_rows(
        self,
        tail: Tail,
        pages: Pages,
        first: int,
        behind: int,
        keys: list[bytes],
        values: list[Any],
        *,
        sequence: int | None,
    ) -> bool:
        """Add the keys of neighbouring pages [first, behind) of a mapped file, and for each key its value in `Newest`.

        Args:
            keys, values: those of the pages before, if any. Receive the new ones.
            sequence: add only rows up to this sequence; None: all.

        Returns:
            False if only values were added, and no rows that decide.
        """
        bodies, flags = read_mapped_pages(tail, first, behind, path=self._path)
        place = 0
        try:
            if sequence is None and flags & PLAIN:
                add_pairs(bodies, keys, values)
                return False
            for place, body in enumerate(bodies):  # noqa: B007
                for row in rows_of_page(bytes(body)):
                    if sequence is not None and row.sequence > sequence:
                        continue
                    if keys and keys[-1] == row.key:
                        values[-1].append(row)
                    else:
                        keys.append(row.key)
                        values.append([row])
        except BadPageError as error:
            raise self._bad_page_error(tail, pages.entry(first + place + error.place)[4]) from error
        return True

    def _load(self, tail: Tail, number: int) -> Block:
        """Read one block for one key. Put it into the cache if the cache wants it."""
        start = tail.offsets[number]
        body = self._read(start, start + tail.lengths[number], mapped=tail.mapped)
        block = decode_blocks(tail, number, number + 1, body, path=self._path)
        if self._cache.wants(self._name, number):
            self._cache.put(self._name, number, block, size_bytes=block.size_bytes)
        return block

    def _page(self, tail: Tail, page: int, page_entry: PageEntry) -> bytes:
        """Return one page, through the cache. A mapped page that is not compressed bypasses the cache."""
        start, end = page_entry[0], page_entry[0] + page_entry[2]
        if tail.mapped is not None and page_entry[2] == page_entry[3]:
            return unpack_page(page_entry, tail.mapped[start:end], path=self._path)
        name, cached_as = self._name, _PAGES - page
        entry = self._entries.get((name, cached_as))
        if entry is not None:
            entry.used = True
            cached_page: bytes = entry.value
            return cached_page
        stored_page = self._read(start, end) if tail.mapped is None else tail.mapped[start:end]
        body = unpack_page(page_entry, stored_page, path=self._path)
        if self._cache.wants(name, cached_as):
            self._cache.put(name, cached_as, body, size_bytes=len(body) + _PYTHON_BYTES_OF_PAGE)
        return body

    def _read_pages(self, tail: Tail, pages: Pages, numbers: Sequence[int]) -> list[bytes]:
        """Return pages by their ascending numbers. Read uncached pages at once; cache them if the cache wants them."""
        cache, name = self._cache, self._name
        cached_numbers = cache.numbers_of(name)
        bodies: dict[int, bytes] = {}
        for page in numbers:
            if _PAGES - page in cached_numbers and (body := cache.get(name, _PAGES - page)) is not None:
                bodies[page] = body
        missing = [page for page in numbers if page not in bodies]
        if missing:
            ranges = [(entry[0], entry[0] + entry[2]) for entry in map(pages.entry, missing)]
            pieces = self._read_pieces(ranges, mapped=tail.mapped)
            bodies.update(zip(missing, decode_pages(tail, missing, pieces, path=self._path), strict=True))
            for number in cache.wants_each(name, [_PAGES - page for page in missing]):
                body = bodies[_PAGES - number]
                cache.put(name, number, body, size_bytes=len(body) + _PYTHON_BYTES_OF_PAGE)
        return [bodies[page] for page in numbers]

    def _bad_page_error(self, tail: Tail, number: int) -> Corruption:
        return damage_error(self._path, tail.offsets[number], "a page of it contradicts itself")

    def _blocks(
        self, tail: Tail, numbers: Sequence[int], *, fill_cache: bool, run_bytes: int = _RUN_BYTES_MIN
    ) -> Iterator[tuple[int, int, Block]]:
        """Yield blocks in the order of `numbers`. Read all missing blocks at once; decode each run when it is due.

        Yields:
            The lowest and the highest number of the blocks that are decoded together, and these blocks as one. Cached
            blocks, and all blocks of version 1, come one by one.
        """
        cached_blocks: dict[int, Block] = {}
        for number in numbers:
            block = self._cache.get(self._name, number)
            if block is not None:
                cached_blocks[number] = block
        if not fill_cache and tail.mapped is not None and 2 * len(cached_blocks) <= len(numbers):
            # For a local file, a few cached blocks save no request, and each would split a run.
            cached_blocks.clear()
        is_joined = not fill_cache and tail.pages is not None
        runs = [
            (min(run[0], run[-1]), max(run[0], run[-1]))
            for run in _runs(tail, numbers, cached_blocks, run_bytes=run_bytes if is_joined else 0)
        ]
        missing = sorted(run for run in runs if run[0] not in cached_blocks)
        ranges = [(tail.offsets[low], tail.offsets[high] + tail.lengths[high]) for low, high in missing]
        stored_blocks = dict(zip(missing, self._read_pieces(ranges, mapped=tail.mapped), strict=True))
        for low, high in runs:
            block = cached_blocks.get(low)
            if block is None:
                block = decode_blocks(tail, low, high + 1, stored_blocks.pop((low, high)), path=self._path)
                if fill_cache:
                    self._cache.put(self._name, low, block, size_bytes=block.size_bytes)
            yield low, high, block

    def _read_pieces(self, ranges: Sequence[tuple[int, int]], *, mapped: memoryview | None) -> list[memoryview]:
        """Return pieces of the file, ascending, as they are stored. Read neighbours together."""
        if mapped is not None:
            return [mapped[start:end] for start, end in ranges]
        runs: list[tuple[int, int]] = []
        for start, end in ranges:
            if runs and runs[-1][1] == start:
                runs[-1] = (runs[-1][0], end)
            else:
                runs.append((start, end))
        bodies = [self._read(*runs[0])] if len(runs) == 1 else self._read_ranges(runs)
        pieces: list[memoryview] = []
        run = 0
        for start, end in ranges:
            while end > runs[run][1]:
                run += 1
            pieces.append(bodies[run][start - runs[run][0] : end - runs[run][0]])
        return pieces

    def _read(self, start: int, end: int, *, mapped: memoryview | None = None) -> memoryview:
        if mapped is not None:
            return mapped[start:end]
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


def unload_mapped(cache: BlockCache) -> None:
    """Remove the mapped files of a cache from the memory of the process. They stay open.

    A map keeps every page that was touched since the file was opened, however long ago. The cache counts only its own
    entries. A later read loads the page again, mostly from the system's memory: about 0.1 us a KiB.
    Cost: about 5 us a file.
    """
    for entry in list(cache.entries.values()):
        tail = entry.value
        if isinstance(tail, Tail) and tail.mapped is not None:
            _unload(tail.mapped, 0, len(tail.mapped))


def _unload(mapped: memoryview, start: int, end: int) -> None:
    """Remove the range [start, end) of a map, and what was loaded in front of it, from the memory of the process.

    A touched page of a map stays in the memory of the process until the map is closed, and a scan touches every page
    once. There is no other effect: a concurrent or later reader loads the page again. Does nothing if the system has no
    such call.
    Cost: about 10 us a megabyte.
    """
    if _MADVISE is None:
        return
    address = np.frombuffer(mapped, np.uint8).ctypes.data
    low = address + max(start - _LOADED_AROUND_BYTES, 0)
    low -= low % mmap.PAGESIZE
    high = address + (end if end < len(mapped) else len(mapped) + mmap.PAGESIZE - 1)  # with the page in which it ends
    high -= high % mmap.PAGESIZE
    if low < high:
        _MADVISE(ctypes.c_void_p(low), ctypes.c_size_t(high - low), mmap.MADV_DONTNEED)


def choose_run_bytes(source_count: int) -> int:
    """Return how many bytes to decode together for each of several sources. Each decoding has a constant cost."""
    return max(_RUN_BYTES_MIN, min(_RUN_BYTES_MAX, _RUNS_BYTES // source_count))


def _lie_apart(pages: Pages, keys: Sequence[bytes], *, page_count_max: int) -> bool:
    """Whether the first and the last of some keys are more than `page_count_max` pages apart.

    Compares these two keys only with the separators `page_count_max` pages before and after the page of the first.
    """
    separators = pages.keys or pages
    place = pages.find(keys[0]) + 1
    stop = place + page_count_max
    if separators[max(place - page_count_max, 0)] > keys[-1]:
        return True
    return stop < len(separators) and separators[stop] <= keys[-1]


def _first_block(tail: Tail, key: bytes) -> int:
    """Return the first block that may contain a key.

    Its rows may continue in later blocks. -1: all keys are greater.
    """
    number = bisect_left(tail.first_keys, key)
    if number < len(tail.first_keys) and tail.first_keys[number] == key and not tail.flags[number] & CONTINUES:
        return number
    return number - 1


def _by_block(tail: Tail, keys: Sequence[bytes]) -> Iterator[tuple[int, Sequence[bytes]]]:
    """Yield each block that may contain some of the keys, with these keys. They ascend and are in the file's range."""
    first_keys, flags = tail.first_keys, tail.flags
    start, count = 0, len(keys)
    while start < count:
        number = _first_block(tail, keys[start])
        stop = number + 1
        if stop == len(first_keys):
            end = count
        else:
            # A key whose rows continue in the next block begins in this one.
            bisect = bisect_right if flags[stop] & CONTINUES else bisect_left
            end = bisect(keys, first_keys[stop], start)
        yield number, keys[start:end]
        start = end


def _distinct(numbers: npt.NDArray[np.int64]) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """Return the distinct values of some numbers, at least one, ascending; and the place of each number among them."""
    order = numbers.argsort()
    sorted_numbers = numbers.take(order)
    is_first = np.empty(len(numbers), bool)
    is_first[0] = True
    np.not_equal(sorted_numbers[1:], sorted_numbers[:-1], out=is_first[1:])
    places = np.empty(len(numbers), np.int64)
    places[order] = is_first.cumsum() - 1
    return sorted_numbers[is_first], places


def _page_groups(
    pages: Pages,
    batch: KeyBatch,
    group: npt.NDArray[np.int64],
    places: npt.NDArray[np.int64],
    *,
    ahead_bytes: int,
) -> Iterator[tuple[KeyBatch, npt.NDArray[np.int64], npt.NDArray[np.int64]]]:
    """Yield ascending pages with their keys, as many pages at once as fit into `ahead_bytes`.

    Args:
        places: for each key the index of its page in `group`.

    Yields:
        Keys, their pages, and for each key the index of its page among these.
    """
    if len(group) * pages.raw_length_max <= ahead_bytes:
        yield batch, group, places
        return
    ends = pages.take(group)["raw_length"].cumsum(dtype=np.int64)
    low = 0
    while low < len(group):
        stop = max(low + 1, int(ends.searchsorted(ahead_bytes + (int(ends[low - 1]) if low else 0), side="right")))
        group_places = ((places >= low) & (places < stop)).nonzero()[0]
        yield batch.select(group_places), group[low:stop], places.take(group_places) - low
        low = stop


def _runs(
    tail: Tail, numbers: Sequence[int], cached_blocks: dict[int, Block], *, run_bytes: int
) -> Iterator[Sequence[int]]:
    """Yield runs of `numbers`, in their order: uncached neighbours together, up to `run_bytes` before compression."""
    position = 0
    while position < len(numbers):
        start, size_bytes = position, tail.raw_lengths[numbers[position]]
        position += 1
        if numbers[start] not in cached_blocks:
            while position < len(numbers) and numbers[position] not in cached_blocks:
                size_bytes += tail.raw_lengths[numbers[position]]
                if size_bytes > run_bytes:
                    break
                position += 1
        yield numbers[start:position]


def _groups(tail: Tail, numbers: Sequence[int], *, ahead_bytes: int, growing: bool = False) -> Iterator[Sequence[int]]:
    """Yield `numbers` in their order, in groups of up to `ahead_bytes`; growing: first one block, then doubling."""
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
