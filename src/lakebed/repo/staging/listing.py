"""Listings: convert rows to entries and common prefixes, many at a time.

Owns: pages (`page_of`), folding by a delimiter, and decoding a column of entries at once.

Invariants:
- Consecutive pages of any size make one listing.
- A common prefix is listed once, and only if there is an entry below it. The scan then seeks behind it, so that the
  rows below it are not read through.

Rows stay columns until they are listed: numpy folds a window, and only listed lines become Python objects.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterator, Sequence
from itertools import islice
from typing import Final, NamedTuple

import msgspec
import numpy as np
import pyarrow as pa

import lakebed.compute as pc
from lakebed.decoding import msgpack_decoder
from lakebed.errors import Corruption, InvalidRequest
from lakebed.key_value.port import KEY_BYTES_MAX, VALUE_BYTES_MAX
from lakebed.lsm.block import offsets_of
from lakebed.lsm.columns import keys_of
from lakebed.lsm.sort import KeyColumn
from lakebed.repo.model.entry import IDENTITY_BYTES, decode_entry
from lakebed.repo.model.model import Entry
from lakebed.repo.model.names import check_amount
from lakebed.repo.model.rows import prefix_range

CHUNK_ROW_COUNT: Final = 4_096
"""Rows that are converted to Python objects at once."""

SEEK_ROW_COUNT: Final = 512
"""Rows of one common prefix that are read before its end is sought in every layer.

A seek costs about as much as reading so many rows.
"""

_ARRAY_32: Final = b"\xdd"
"""First byte of a MessagePack array whose length has 32 bits."""

_decode_list: Final = msgpack_decoder(list[Entry]).decode

RowsFrom = Callable[[bytes | None, bytes | None], Iterator[pa.RecordBatch]]
"""Rows of ``[start, end)`` without tombstones, batches of `ROWS_SCHEMA`."""


class Listed(msgspec.Struct, frozen=True, gc=False):
    """One line of a listing."""

    path: str
    entry: Entry | None = None
    """None: a common prefix, which ends with the delimiter."""

    @property
    def is_prefix(self) -> bool:
        """Whether the line is a common prefix."""
        return self.entry is None


def list_entries(
    rows: RowsFrom, *, prefix: bytes, after: str = "", delimiter: str = "", amount: int | None = None
) -> Iterator[Listed]:
    """Entries and common prefixes, in the order of the paths' bytes; see `lakebed.repo.staging.view.View.list`.

    Args:
        rows: called for each stretch that is read, and again behind each common prefix that is skipped.

    Raises:
        InvalidRequest: kind ``invalid_amount``, ``invalid_path``.
    """
    amount = check_amount(amount)
    page = page_of(prefix, after=after, delimiter=delimiter, amount=amount)
    if page is None:
        return iter(())
    start, end, mark = page
    entries = _fold_rows(rows, start, end, prefix, mark) if mark else _plain(rows, start, end, amount)
    return entries if amount is None else islice(entries, amount)


class Page(NamedTuple):
    """The bounds of one page of any listing."""

    start: bytes
    end: bytes | None
    """Paths in ``[start, end)``; None: up to the last."""
    mark: bytes
    """The delimiter; empty: nothing is folded."""


def page_of(prefix: bytes, *, after: str = "", delimiter: str = "", amount: int | None = None) -> Page | None:
    """Where a page begins and ends; None: the page is empty, whatever the rows are.

    Raises:
        InvalidRequest: kind ``invalid_amount``, ``invalid_path``.
    """
    amount = check_amount(amount)
    try:
        after_key, mark = after.encode(), delimiter.encode()
    except UnicodeEncodeError as error:
        raise InvalidRequest("A listing's after or delimiter holds half a character.", kind="invalid_path") from error
    first, end = prefix_range(prefix)
    start = _start_behind(after_key, prefix, mark) if after_key and after_key >= first else first
    if amount == 0 or start is None or (end is not None and start >= end):
        return None
    return Page(start, end, mark)


def _start_behind(after: bytes, prefix: bytes, mark: bytes) -> bytes | None:
    """Where a listing continues; None: nowhere.

    A common prefix equal to `after` was listed before. A common prefix that contains `after` is listed if there are
    more paths behind `after`.
    """
    if mark and after.startswith(prefix) and after.find(mark, len(prefix)) == len(after) - len(mark) >= len(prefix):
        return prefix_range(after)[1]
    return after + b"\0"


def _plain(rows: RowsFrom, start: bytes, end: bytes | None, amount: int | None) -> Iterator[Listed]:
    """Every row. A page's rows are converted together, because a batch costs as much as some hundred of its rows."""
    batches = rows(start or None, end)
    for batch in batches if amount is None else _cut_chunks(batches, amount):
        for row in range(0, batch.num_rows, CHUNK_ROW_COUNT):
            yield from lines_of(batch.slice(row, CHUNK_ROW_COUNT))


def _cut_chunks(batches: Iterator[pa.RecordBatch], amount: int) -> Iterator[pa.RecordBatch]:
    """The first rows, in batches of at least `CHUNK_ROW_COUNT`; the last may have fewer."""
    pending: list[pa.RecordBatch] = []
    count = 0
    for batch in batches:
        pending.append(batch.slice(0, amount))
        count += pending[-1].num_rows
        amount -= pending[-1].num_rows
        if not amount:
            break
        if count >= CHUNK_ROW_COUNT:
            yield pa.concat_batches(pending)
            pending, count = [], 0
    if pending:
        yield pa.concat_batches(pending)


def _fold_rows(rows: RowsFrom, start: bytes, end: bytes | None, prefix: bytes, mark: bytes) -> Iterator[Listed]:
    """The lines of rows, where a common prefix replaces the rows below it."""
    position: bytes | None = start
    behind: bytes | None = None
    while position is not None:
        reading = rows(position or None, end)
        position, inside = None, 0
        for batch in reading:
            for row in range(0, batch.num_rows, CHUNK_ROW_COUNT):
                chunk = batch.slice(row, CHUNK_ROW_COUNT)
                if behind is not None:  # the chunk before has ended inside of a common prefix
                    skipped_count = KeyColumn(chunk.column(0)).lower_bound(behind)
                    inside += skipped_count
                    chunk = chunk.slice(skipped_count)
                if chunk.num_rows:
                    lines, behind, inside = _fold(chunk, prefix, mark)
                    yield from lines
            if behind is not None and inside >= max(SEEK_ROW_COUNT, batch.num_rows // 2):
                position = behind
                break


def _fold(chunk: pa.RecordBatch, prefix: bytes, mark: bytes) -> tuple[list[Listed], bytes | None, int]:
    """The lines of some rows; and for the last row's common prefix its end, and the count of its rows here."""
    offsets = pc.find_substring(pc.binary_slice(chunk.column(0), len(prefix), KEY_BYTES_MAX), mark).to_numpy()
    hits = np.flatnonzero(offsets >= 0).tolist()
    if not hits:
        return lines_of(chunk), None, 0
    paths = keys_of(chunk.column(0))
    is_kept = np.ones(len(paths), np.bool_)
    commons: list[tuple[int, bytes]] = []
    hit, row, behind, inside = 0, 0, None, 0
    while hit < len(hits):
        row = hits[hit]
        common = paths[row][: len(prefix) + int(offsets[row]) + len(mark)]
        behind = prefix_range(common)[1]
        assert behind is not None  # text in UTF-8 never consists of 0xff
        next_row = bisect_left(paths, behind, row + 1)
        is_kept[row:next_row] = False
        commons.append((row, common))
        inside = next_row - row
        hit = bisect_left(hits, next_row)
        row = next_row
    entries = iter(lines_of(chunk.filter(pa.array(is_kept))) if is_kept.any() else ())
    lines: list[Listed] = []
    begin = 0
    for place, common in commons:
        lines += islice(entries, int(np.count_nonzero(is_kept[begin:place])))
        lines.append(Listed(text_of(common)))
        begin = place
    lines += entries
    return (lines, behind, inside) if row == len(paths) else (lines, None, 0)


def lines_of(rows: pa.RecordBatch) -> list[Listed]:
    """The lines of rows that are not folded. Raises `Corruption`."""
    paths = texts_of(rows.column(0))
    return list(map(Listed, paths, decode_entries(rows.column(1), paths=paths)))


def texts_of(paths: pa.BinaryArray) -> list[str]:
    """A column of paths as text. Raises `Corruption`. Cost: about 0.1 us each."""
    path_list = keys_of(paths)
    try:
        return list(map(bytes.decode, path_list))
    except UnicodeDecodeError:
        return [text_of(path) for path in path_list]


def text_of(path: bytes) -> str:
    """A stored path as text. Raises `Corruption`."""
    try:
        return path.decode()
    except UnicodeDecodeError as error:
        raise Corruption(f"A stored path is not valid text: {path!r}.", path=repr(path)) from error


def decode_entries(values: pa.BinaryArray, *, paths: Sequence[str]) -> list[Entry]:
    """The entries of a column of values, none of them a tombstone or null.

    Raises:
        Corruption: a value is not an entry.
    Cost: about 0.5 us each. The values without their identities are joined into one MessagePack array, which is decoded
    at once.
    """
    count = len(values)
    if not count:
        return []
    entries = pc.binary_slice(values, IDENTITY_BYTES, VALUE_BYTES_MAX)
    offsets = offsets_of(entries)
    content = memoryview(entries.buffers()[2])[offsets[0] : offsets[-1]]
    try:
        return _decode_list(b"".join((_ARRAY_32, count.to_bytes(4, "big"), content)))
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return [decode_entry(value, where=path) for path, value in zip(paths, keys_of(values), strict=True)]
