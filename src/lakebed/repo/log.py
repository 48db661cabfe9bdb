"""The log: commits behind a reference, all of them or those that changed certain paths.

Owns: the walk, its filters and its pages. Invariants: a commit stands before its parents (`lakebed.repo.commits.Walk`);
a commit changed a path when the path differs, by identity, from the parent's (of the first commit: from nothing). A
merge changes no path itself, as in git's log of a path: what it has of a path is what one of its parents has. Where
only first parents are followed, a merge stands for all that it brought.

Does not know: how metaranges are compared; equal ranges are not read.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from lakebed.errors import InvalidRequest
from lakebed.key_value.port import KeyValueSnapshot
from lakebed.repo.commit import chosen_intervals
from lakebed.repo.commits import Walk, load_commit
from lakebed.repo.committed.diff import has_difference
from lakebed.repo.context import RepositoryContext
from lakebed.repo.model import Commit
from lakebed.repo.positions import format_position, parse_position
from lakebed.repo.refs import resolve_commit
from lakebed.repo.rows import Interval

__all__ = ["LogPage", "log", "log_page"]


def log(
    context: RepositoryContext,
    ref: str,
    *,
    after: str | None = None,
    amount: int | None = None,
    since_ms: int | None = None,
    stop_at: str | None = None,
    first_parent: bool = False,
    paths: Sequence[str] = (),
    prefixes: Sequence[str] = (),
) -> Iterator[tuple[str, Commit]]:
    """Commit ids and commits behind a reference, itself included, lazily; those of one moment.

    Order: by falling generation, of one generation the later first: every commit before its parents.

    Args:
        after: go on behind this commit, the last of an earlier page; or `LogPage.following` of that page.
        amount: at most so many; None: all.
        since_ms: only commits not older than this. Unix milliseconds, UTC.
        stop_at: a reference; nothing comes behind its commit, which is the last.
        first_parent: follow only the first parent of each.
        paths: only commits that changed one of these, or something below one of `prefixes`; no merges, unless
            `first_parent` is set.

    Raises:
        NotFound: kind ``reference_not_found``: of `ref` or `stop_at`.
        InvalidRequest: a reference, a path, the position or the amount cannot be.
        Corruption: a record or range is damaged.
    Cost: 1 snapshot and 1 read of the key-value store a commit; with paths also the metaranges of each and its parent,
    and of their ranges those that differ around the paths. A page costs what it shows: only behind a commit where this
    process has ended no page lately the commits before it are walked again.
    """
    filters = _Filters(since_ms, stop_at, first_parent, chosen_intervals(paths, prefixes))
    if amount is not None and amount < 1:
        raise InvalidRequest(f"A log has at least 1 commit, and {amount} were asked for.", kind="invalid_amount")
    with context.key_value.snapshot() as snapshot:
        reading = _Reading(context, ref, filters, after=after, snapshot=snapshot)
        for count, row in enumerate(reading.rows(), 1):
            if count == amount:
                reading.keep_position(row[0])
            yield row
            if count == amount:
                return


@dataclass(frozen=True, slots=True)
class LogPage:
    """A page of a log.

    Attributes:
        rows: ids and commits.
        following: the position of the next page, for `after`; empty: this is the last.
    """

    rows: list[tuple[str, Commit]]
    following: str


def log_page(
    context: RepositoryContext,
    ref: str,
    *,
    amount: int,
    after: str | None = None,
    is_last: bool = False,
    since_ms: int | None = None,
    stop_at: str | None = None,
    first_parent: bool = False,
    paths: Sequence[str] = (),
    prefixes: Sequence[str] = (),
) -> LogPage:
    """A page of the log, and where the next one begins. Other arguments, errors and cost as `log`.

    The next page goes on in the log of this moment, whatever the reference leads to by then.

    Args:
        is_last: do not look whether there is another page, which would walk up to its first commit.
    """
    filters = _Filters(since_ms, stop_at, first_parent, chosen_intervals(paths, prefixes))
    rows: list[tuple[str, Commit]] = []
    with context.key_value.snapshot() as snapshot:
        reading = _Reading(context, ref, filters, after=after, snapshot=snapshot)
        following = ""
        for row in reading.rows():
            if len(rows) == amount:
                return LogPage(rows, following)
            rows.append(row)
            if len(rows) == amount:
                if is_last:
                    break
                following = format_position(row[0], reading.waiting)
                reading.keep_position(row[0])
    return LogPage(rows, "")


@dataclass(frozen=True, slots=True)
class _Filters:
    since_ms: int | None
    stop_at: str | None
    first_parent: bool
    stretches: Sequence[Interval]


class _Reading:
    """A walk through a log, from its head or from a position on."""

    def __init__(
        self, context: RepositoryContext, ref: str, filters: _Filters, *, after: str | None, snapshot: KeyValueSnapshot
    ) -> None:
        self._context = context
        self._filters = filters
        self._snapshot = snapshot
        self._start, _ = resolve_commit(context, ref, snapshot=snapshot)
        stop_at = filters.stop_at
        self._last = None if stop_at is None else resolve_commit(context, stop_at, snapshot=snapshot)[0]
        starts: Sequence[str] = [self._start]
        self._behind: str | None = None
        if after is not None:
            id, waiting = parse_position(after)
            waiting = waiting or context.positions.get(self._start, first_parent=filters.first_parent, after=id)
            if waiting:
                starts = waiting
            else:
                self._behind = id
        self._walk = Walk(context, starts, first_parent=filters.first_parent, snapshot=snapshot)

    @property
    def waiting(self) -> list[str]:
        """What the walk has met and not given."""
        return self._walk.waiting

    def keep_position(self, id: str) -> None:
        """Remember where the walk stands, behind this commit."""
        self._context.positions.put(
            self._start, first_parent=self._filters.first_parent, after=id, waiting=self._walk.waiting
        )

    def rows(self) -> Iterator[tuple[str, Commit]]:
        """What the filters let through."""
        for id, commit in self._walk:
            if self._behind is None:
                if self._is_wanted(commit):
                    yield id, commit
            elif id == self._behind:
                self._behind = None
            if id == self._last:
                return

    def _is_wanted(self, commit: Commit) -> bool:
        filters = self._filters
        if filters.since_ms is not None and commit.created_at_ms < filters.since_ms:
            return False
        return not filters.stretches or self._changed(commit)

    def _changed(self, commit: Commit) -> bool:
        """Whether a commit changed something in one of the stretches, against its first parent."""
        if len(commit.parents) > 1 and not self._filters.first_parent:
            return False
        committed = self._context.committed
        before = committed.empty
        if commit.parents:
            before = load_commit(self._context, commit.parents[0], snapshot=self._snapshot).metarange
        if before.id == commit.metarange.id:
            return False
        return any(
            has_difference(committed, before, commit.metarange, start=start, end=end)
            for start, end in self._filters.stretches
        )
