"""Read a metarange: a sorted list of ranges, and through it single paths, many paths, and stretches of rows.

Owns: which ranges a read touches. Invariants: ranges do not overlap, and are sorted by path. A metarange is immutable,
so its decoded list of ranges is cached. A read of a path needs at most the tail and one block of one range.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple

import msgspec
import pyarrow as pa

from lakebed.decoding import msgpack_decoder
from lakebed.errors import Corruption, NotFound
from lakebed.lsm.columns import keys_of
from lakebed.lsm.filter import hash_keys
from lakebed.repo.committed.range_files import RangeFiles, missing
from lakebed.repo.model.layout import metarange_path, range_path
from lakebed.repo.model.model import MetarangeRef, RangeMeta

_LISTED: Final = -2
"""The number of a metarange's decoded list of ranges in the cache; its tail is -1, and blocks count from 0."""
_PYTHON_BYTES_OF_RANGE: Final = 1_000
"""Bytes of one range in a decoded list in addition to its paths."""
_LAZY_COUNT: Final = 2
"""Ranges of a scan that are read block by block. After that, whole ranges are read ahead."""
_DENSE: Final = 8
"""To look up more than one path for this many entries of a range, all its rows are read instead."""

encode_range_meta: Final = msgspec.msgpack.Encoder(order="deterministic").encode
decode_range_meta: Final = msgpack_decoder(RangeMeta).decode


class _Listed(NamedTuple):
    """A decoded list of ranges."""

    last_paths: list[bytes]
    ranges: tuple[RangeMeta, ...]


class Metarange:
    """One state of all paths. Thread-safe; its only state is its reference.

    Args:
        ref: the reference from a commit or a branch.
        files: the repository's files of ranges and metaranges.
    """

    __slots__ = ("_files", "_name", "ref")

    def __init__(self, ref: MetarangeRef, *, files: RangeFiles) -> None:
        self.ref = ref
        self._files = files
        self._name = "" if ref.file is None else f"{files.store.root_url}/{metarange_path(ref.file.id)}"

    def ranges(self) -> tuple[RangeMeta, ...]:
        """All ranges, by path. Raises `Corruption`. Cost: 1 GET if they are not in the cache, 2 us a range."""
        return self._load_list().ranges

    def get(self, path: bytes) -> bytes | None:
        """The encoded entry of a path; None: there is none.

        Raises:
            Corruption: a file is damaged or missing.
        Cost: about 10 us from the cache; else at most 1 GET for each: the list of ranges, a range's tail, a block.
        """
        last_paths, ranges = self._load_list()
        number = bisect_left(last_paths, path)
        if number == len(ranges) or path < ranges[number].file.first_key:
            return None
        meta = ranges[number]
        try:
            rows = self._files.reader(meta).get(path)
        except NotFound as error:
            raise missing(meta.file, range_path(meta.file.id)) from error
        return rows[0].value if rows else None

    def get_many(self, paths: Sequence[bytes]) -> list[bytes | None]:
        """The encoded entries of many paths, in order; as `get`.

        Args:
            paths: ascending.

        Cost: 1 GET for each run of neighbouring blocks, each range's tail once; 3 us a path, 1 us if paths are close to
        one another.
        """
        last_paths, ranges = self._load_list()
        values: dict[bytes, bytes] = {}
        start = 0
        while start < len(paths):
            number = bisect_left(last_paths, paths[start])
            if number == len(ranges):
                break
            end = bisect_right(paths, last_paths[number], start)
            first = bisect_left(paths, ranges[number].file.first_key, start, end)
            if first < end:
                values.update(self._get_from(ranges[number], paths[first:end]))
            start = end
        return list(map(values.get, paths))

    def rows(self, start: bytes | None = None, end: bytes | None = None) -> Iterator[pa.RecordBatch]:
        """Iterate over the rows with paths in [start, end); None: open.

        Returns:
            Batches of `ROWS_SCHEMA`, none empty, views of blocks.

        Raises:
            Corruption: a file is damaged or missing.
        Cost: lazily. The first two ranges are read block by block, with growing reads, which a bounded scan leaves in
        the cache. From the third on, 1 GET a range, read ahead. Ranges outside of the bounds are not opened.
        """
        if start is not None and end is not None and start >= end:
            return
        last_paths, ranges = self._load_list()
        first = 0 if start is None else bisect_left(last_paths, start)
        last = len(ranges)
        if end is not None:
            last = bisect_left(ranges, end, first, key=lambda entry: entry.file.first_key)
        if first >= last:
            return
        lazy_end = min(first + _LAZY_COUNT, last)
        keep = start is not None or end is not None
        for number in range(first, lazy_end):
            is_first, is_last = number == first, number == last - 1
            yield from self._files.rows_of(
                ranges[number], start if is_first else None, end if is_last else None, keep=keep
            )
        is_cut = end is not None and last_paths[last - 1] >= end
        whole_end = max(lazy_end, last - 1 if is_cut else last)
        for batches in self._files.each_whole(ranges[lazy_end:whole_end]):
            yield from batches
        if whole_end < last:
            yield from self._files.rows_of(ranges[whole_end], end=end, keep=True)

    def rows_of(
        self, range_meta: RangeMeta, start: bytes | None = None, end: bytes | None = None
    ) -> Iterator[pa.RecordBatch]:
        """The rows of one range with paths in [start, end); as `rows`. All of it costs 1 GET."""
        file = range_meta.file
        if (start is None or start <= file.first_key) and (end is None or end > file.last_key):
            yield from self._files.whole(range_meta)
        else:
            yield from self._files.rows_of(range_meta, start=start, end=end)

    def _get_from(self, meta: RangeMeta, paths: Sequence[bytes]) -> dict[bytes, bytes]:
        """The values of the given paths that a range has."""
        if len(paths) * _DENSE > meta.entry_count:
            return {
                path: value
                for batch in self._files.rows_of(meta, start=paths[0], end=paths[-1] + b"\0")
                for path, value in zip(keys_of(batch.column(0)), keys_of(batch.column(1)), strict=True)
            }
        try:
            rows = self._files.reader(meta).get_many(paths, hashes=hash_keys(paths))
        except NotFound as error:
            raise missing(meta.file, range_path(meta.file.id)) from error
        return {path: versions[0].value for path, versions in rows.items()}

    def _load_list(self) -> _Listed:
        file = self.ref.file
        if file is None:
            return _EMPTY
        range_list: _Listed | None = self._files.cache.get(self._name, _LISTED)
        if range_list is None:
            range_list = self._decode()
            size_bytes = (
                sum(2 * len(path) for path in range_list.last_paths) + len(range_list.ranges) * _PYTHON_BYTES_OF_RANGE
            )
            self._files.cache.put(self._name, _LISTED, range_list, size_bytes=size_bytes)
        return range_list

    def _decode(self) -> _Listed:
        """Read and check the list of ranges."""
        file = self.ref.file
        assert file is not None
        path = metarange_path(file.id)
        last_paths: list[bytes] = []
        values: list[bytes] = []
        for batch in self._files.metarange_rows(file):
            last_paths += keys_of(batch.column(0))
            values += keys_of(batch.column(1))
        try:
            ranges = tuple(map(decode_range_meta, values))
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            raise Corruption(f"{path} is damaged: one of its ranges cannot be read ({error}).", path=path) from error
        before: bytes | None = None
        for last_path, meta in zip(last_paths, ranges, strict=True):
            is_behind = before is None or before < meta.file.first_key
            if meta.file.last_key != last_path or meta.file.first_key > last_path or not is_behind:
                raise Corruption(
                    f"{path} is damaged: its range {meta.file.id} is recorded as from {meta.file.first_key!r} to "
                    f"{meta.file.last_key!r}, and is behind {before!r} and up to {last_path!r}.",
                    path=path,
                )
            before = last_path
        if len(ranges) != self.ref.range_count:
            raise Corruption(
                f"{path} is damaged: it has {len(ranges):,} ranges, and {self.ref.range_count:,} were written to it.",
                path=path,
            )
        return _Listed(last_paths, ranges)


_EMPTY: Final = _Listed([], ())
