"""What a reference shows: staged rows over sealed rows over the compacted metarange, or else over the head.

Owns: `View`, the state of one reference at one moment. Invariants: record, tokens and staged rows are of one key-value
snapshot, and committed data never changes, so a view never changes. For each path, the newest layer that has a row for
it, or a ``clears`` that covers it, decides.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import islice
from typing import Final, TypeVar

import pyarrow as pa

from lakebed.errors import Conflict
from lakebed.key_value.port import KeyValueSnapshot
from lakebed.metrics import default_registry
from lakebed.repo.model.entry import decode_entry
from lakebed.repo.model.model import TOMBSTONE, Branch, Entry, MetarangeRef, StagingToken
from lakebed.repo.model.names import check_path, check_prefix
from lakebed.repo.model.rows import overlay, without_tombstones
from lakebed.repo.records.context import RepositoryContext
from lakebed.repo.references.commits import load_commit
from lakebed.repo.references.mark import explaining_missing
from lakebed.repo.references.refs import resolve
from lakebed.repo.staging.changes import clears_of, is_cleared, scan_token, token_sources
from lakebed.repo.staging.listing import Listed, list_entries

READ_LAYERS: Final = default_registry.histogram(
    "lakebed_repo_read_layers",
    help_text="Staging tokens that a read of a branch has looked into.",
    label_names=("operation",),
    bounds=(0, 1, 2, 4, 8, 16, 32, 64, 128),
)

LOOKS_MAX: Final = 8
"""Most moments at which one read begins: a collection without grace may delete the state that it is reading."""

R = TypeVar("R")

_ONE_BY_ONE_MAX: Final = 2
"""Up to so many tokens are read one after another for a path: mostly the newest has it. More are read at once."""


_SCANNED_MAX: Final = 3
"""Up to so many tokens are checked for rows in a stretch. With more tokens, it is read as if they had some."""


class View:
    """The state of a reference at the moment of a snapshot, which stays open meanwhile. Thread-safe.

    Args:
        base: the layer below the tokens.
        tokens: newest first; none: only committed data is shown.
    """

    __slots__ = ("_context", "_metarange", "_snapshot", "base", "tokens")

    def __init__(
        self,
        context: RepositoryContext,
        *,
        snapshot: KeyValueSnapshot,
        base: MetarangeRef,
        tokens: Sequence[StagingToken] = (),
    ) -> None:
        self._context = context
        self._snapshot = snapshot
        self._metarange = context.committed.open(base)
        self.base = base
        self.tokens = tuple(tokens)

    def get(self, path: str) -> Entry | None:
        """The entry of a path; None when there is none.

        Raises:
            InvalidRequest: kind ``invalid_path``.
            Corruption: the stored entry or its range is damaged.
            Conflict: ``version_went``: the state was replaced, and a collection has deleted it since.
        Cost: 1 read of the key-value store for each token, down to the newest that has the path. If none has it, at
            most 1 block of 1 range, which is mostly cached.
        """
        key = check_path(path)
        value = self.value(key)
        return None if value is None else decode_entry(value, where=path)

    def value(self, path: bytes) -> bytes | None:
        """The encoded entry of a path, as `get`."""
        value, touched_count = self._read_staged(path, self.tokens)
        READ_LAYERS.observe(touched_count, "get")
        if value is None:
            with explaining_missing(self._context, self.base):
                return self._metarange.get(path)
        return value or None

    def layers_of(self, paths: Sequence[bytes]) -> list[tuple[bytes | None, bytes | None]]:
        """For each path the newest token's row, and the entry that the path would have without that row.

        Returns:
            Encoded entries. The first: None if there is no row, `TOMBSTONE` for a tombstone. The second: None if there
            is no entry.

        Cost: as `values`.
        """
        newest, older = self.tokens[0], self.tokens[1:]
        prefix = self._context.keys.token(newest.id)
        rows = self._snapshot.get_many([prefix + path for path in paths])
        clears = clears_of([newest])
        open_paths = [path for path in paths if not is_cleared(path, clears)] if clears else paths
        lower = View(self._context, snapshot=self._snapshot, base=self.base, tokens=older)
        lower_values = dict(zip(open_paths, lower.values(open_paths), strict=True))
        return [(row, lower_values.get(path)) for path, row in zip(paths, rows, strict=True)]

    def _read_staged(self, path: bytes, tokens: Sequence[StagingToken]) -> tuple[bytes | None, int]:
        """The value in the newest token that has one, None if none has; and how many tokens were read."""
        keys: list[bytes] = []
        is_hidden = False
        for token in tokens:
            keys.append(self._context.keys.token(token.id) + path)
            is_hidden = token.clears is not None and path.startswith(token.clears.encode())
            if is_hidden:
                break
        if len(keys) <= _ONE_BY_ONE_MAX:
            for number, key in enumerate(keys, 1):
                value = self._snapshot.get(key)
                if value is not None:
                    return value, number
        else:
            for number, value in enumerate(self._snapshot.get_many(keys), 1):
                if value is not None:
                    return value, number
        return (TOMBSTONE if is_hidden else None), len(keys)

    def get_many(self, paths: Sequence[str]) -> list[Entry | None]:
        """The entries of many paths, in the order of `paths`; None where there is none. Raises as `get`."""
        values = self.values([check_path(path) for path in paths])
        return [
            None if value is None else decode_entry(value, where=path)
            for path, value in zip(paths, values, strict=True)
        ]

    def values(self, paths: Sequence[bytes]) -> list[bytes | None]:
        """The encoded entries of many paths, in the order of `paths`, as `get_many`.

        Cost: 1 read for each token for all paths together, then the blocks of the ranges that hold the rest.
        """
        values: dict[bytes, bytes] = {}
        sorted_paths = sorted(set(paths))
        touched_count = 0
        for token in self.tokens:
            if not sorted_paths:
                break
            touched_count += 1
            prefix = self._context.keys.token(token.id)
            rows = self._snapshot.get_many([prefix + path for path in sorted_paths])
            values.update((path, row) for path, row in zip(sorted_paths, rows, strict=True) if row is not None)
            if token.clears is not None:
                clears = clears_of([token])
                values.update(
                    (path, TOMBSTONE) for path in sorted_paths if path not in values and is_cleared(path, clears)
                )
            sorted_paths = [path for path in sorted_paths if path not in values]
        READ_LAYERS.observe(touched_count, "get_many")
        with explaining_missing(self._context, self.base):
            rows = self._metarange.get_many(sorted_paths) if sorted_paths else []
        values.update((path, row) for path, row in zip(sorted_paths, rows, strict=True) if row is not None)
        return [values.get(path) or None for path in paths]

    def rows(self, start: bytes | None = None, end: bytes | None = None) -> Iterator[pa.RecordBatch]:
        """The rows of ``[start, end)``, None: open.

        Returns:
            Batches of `ROWS_SCHEMA`, none empty, sorted, each path once, without tombstones. The first come after a few
            rows of every layer.

        Raises as `get`, also in the middle.
        Cost: 1 scan a token, and the blocks of ranges that overlap; what is cleared is not read. Where layers overlap
            0.3 us a row.
        """
        READ_LAYERS.observe(len(self.tokens), "rows")
        committed_rows = self._metarange.rows
        with explaining_missing(self._context, self.base):
            if not self.tokens:
                yield from (batch for batch in committed_rows(start, end) if batch.num_rows)
                return
            sources = token_sources(
                self._context, self._snapshot, self.tokens, below=committed_rows, start=start, end=end
            )
            for batch in overlay(sources):
                batch = without_tombstones(batch)
                if batch.num_rows:
                    yield batch

    def committed_rows(self, start: bytes, end: bytes | None, *, count: int) -> list[pa.RecordBatch] | None:
        """The first rows of ``[start, end)``, if no token has or hides a row there; None: use `rows`.

        Args:
            end: None: up to the last path.
            count: of rows, 1 or more.

        Returns:
            Batches as those of `rows`. Each is a view of a block, so it is the same memory while the block is cached.

        Raises as `rows`.
        Cost: the blocks, and 1 scan a token.
        """
        if len(self.tokens) > _SCANNED_MAX:
            return None
        READ_LAYERS.observe(len(self.tokens), "committed_rows")
        batches: list[pa.RecordBatch] = []
        with explaining_missing(self._context, self.base):
            for batch in self._metarange.rows(start, end):
                batches.append(batch.slice(0, count))
                count -= batches[-1].num_rows
                if not count:
                    end = batches[-1].column(0)[-1].as_py() + b"\0"
                    break
        for low, high in clears_of(self.tokens):
            if (high is None or start < high) and (end is None or low < end):
                return None
        for token in self.tokens:
            if any(batch.num_rows for batch in scan_token(self._context, self._snapshot, token, start=start, end=end)):
                return None
        return batches

    def list(
        self, prefix: str = "", *, after: str = "", delimiter: str = "", amount: int | None = None
    ) -> Iterator[Listed]:
        """Entries and common prefixes below a prefix, in the order of the paths' bytes. Arguments as `Reference.list`.

        Raises `InvalidRequest`: kind ``invalid_path``: the prefix cannot begin a path; ``invalid_amount``.
        Cost: as `rows`, and about 1 us an entry; 1 seek in every layer behind a large common prefix.
        """
        return list_entries(self.rows, prefix=check_prefix(prefix), after=after, delimiter=delimiter, amount=amount)


def branch_view(context: RepositoryContext, record: Branch, *, snapshot: KeyValueSnapshot) -> View:
    """What a branch shows, with staged rows. Record and snapshot are of one moment. The caller closes the snapshot."""
    base = record.compacted
    if base is None:
        base = load_commit(context, record.commit_id, snapshot=snapshot).metarange
    return View(context, snapshot=snapshot, base=base, tokens=(record.staging, *record.sealed))


@contextmanager
def at_reference(context: RepositoryContext, ref: str) -> Iterator[View]:
    """What a reference shows at the moment of the call.

    Raises:
        NotFound: kind ``reference_not_found``.
        InvalidRequest: kind ``invalid_reference``.
        Conflict: kind ``version_went``, raised by a read in the view, if the reference has changed, and a collection's
            grace has passed since; see `read_reference`.
    Cost: 1 snapshot and about 3 reads of the key-value store.
    """
    with context.key_value.snapshot() as snapshot:
        yield reference_view(context, ref, snapshot=snapshot)


def reference_view(context: RepositoryContext, ref: str, *, snapshot: KeyValueSnapshot) -> View:
    """What a reference shows at the moment of a snapshot, which the caller closes. Raises as `at_reference`."""
    resolved = resolve(context, ref, snapshot=snapshot)
    if resolved.branch is not None:
        return branch_view(context, resolved.branch, snapshot=snapshot)
    return View(context, snapshot=snapshot, base=resolved.commit.metarange)


def read_reference(context: RepositoryContext, ref: str, read: Callable[[View], R]) -> R:
    """Read a reference at one moment; at a later moment, if a collection deleted the state of the first.

    Raises as `at_reference`. Cost: as `at_reference`, for each moment.
    """

    def look() -> R:
        with at_reference(context, ref) as view:
            return read(view)

    return look_again(look)


def look_again(look: Callable[[], R]) -> R:
    """The result of a read, which begins again each time that a collection deletes the state that it reads.

    Raises:
        Conflict: kind ``version_went``: `LOOKS_MAX` reads failed.
    """
    for _ in range(LOOKS_MAX - 1):
        with went_suppressed():
            return look()
    return look()


def rows_of_moment(rows: Callable[[], Iterator[R]]) -> Iterator[R]:
    """The rows at one moment, as `look_again` up to the first row. After that, the moment can no longer change."""
    reading: Iterator[R] = iter(())

    def begin() -> list[R]:
        nonlocal reading
        reading = rows()
        return list(islice(reading, 1))

    yield from look_again(begin)
    yield from reading


@contextmanager
def went_suppressed() -> Iterator[None]:
    """Suppress the error of a state that was collected, so that the caller looks again."""
    try:
        yield
    except Conflict as error:
        if error.kind != "version_went":
            raise
