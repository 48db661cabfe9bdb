"""`Log`: the commits behind a reference, all of them or those that changed certain paths.

Owns: the walk, its filters and its pages. Invariants:

- A commit comes before its parents (`lakebed.repo.references.commits.Walk`).
- A commit changed a path if its entry differs, by identity, from the first parent's, or, for a commit without parents,
  if it has an entry.
- As in git's log of a path, a merge counts as changing no path, because it has each path's state from a parent. If only
  first parents are followed, a merge counts as making all changes that it brought.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

import msgspec

from lakebed.errors import InvalidRequest
from lakebed.key_value.port import KeyValueSnapshot
from lakebed.repo.committed.diff import has_difference
from lakebed.repo.heads.commit import intervals_of
from lakebed.repo.heads.heads import CommitWithId
from lakebed.repo.model.commit_graph import prefix_key
from lakebed.repo.model.model import Commit
from lakebed.repo.model.names import check_path, check_prefix
from lakebed.repo.model.positions import WAITING_BYTES, format_position, parse_position
from lakebed.repo.records.context import RepositoryContext
from lakebed.repo.references.commits import Walk, load_commit
from lakebed.repo.references.history import GraphWalk, open_graph
from lakebed.repo.references.mark import explaining_missing
from lakebed.repo.references.refs import resolve_commit
from lakebed.repo.verbs.message import ListVerb, Milliseconds, Paths, Verb, verb
from lakebed.repo.verbs.reading import Head

_KEYS_MAX: Final = 64
"""Most paths and prefixes of a log that uses the index. Of more, most commits have changed at least one."""


@dataclass(frozen=True, slots=True)
class LogPage:
    """A page of a log.

    Attributes:
        rows: commits and their ids.
        following: the position of the next page, for `after`; empty: this is the last.
    """

    rows: list[CommitWithId]
    following: str


@verb("log", role="read", effort="compute", gives=list[CommitWithId])
class Log(ListVerb[CommitWithId], frozen=True, kw_only=True):
    """Commits from a reference backwards, each before its parents.

    Order: by falling generation, of one generation the later first. All are of one moment.

    Args:
        after: continue behind this commit, the last of an earlier page; or `LogPage.following` of that page.
        since_ms: only commits not older than this. Unix milliseconds, UTC.
        stop_at: a reference; its commit is the last.
        first_parent: follow only the first parent of each.
        paths: only commits that changed one of these, or something below one of `prefixes`; no merges, unless
            `first_parent` is set.

    Raises:
        NotFound: kind ``reference_not_found``: of `ref` or `stop_at`.
        InvalidRequest: a reference, a path, the position or the amount is invalid.
        Corruption: a record or range is damaged.
    Cost: 1 snapshot and 1 read of the key-value store a commit; with paths also the metaranges of each and its parent,
    and of their ranges those that differ around the paths. Of indexed commits that have certainly changed none of the
    paths, or nothing in the folders of the prefixes, 0.3 us instead. A page costs what it shows: only behind a commit
    where this process has ended no page lately the commits before it are walked again.
    """

    ref: str
    after: str | None = None
    since_ms: Milliseconds | None = None
    stop_at: str | None = None
    first_parent: bool = False
    paths: Paths = msgspec.field(default_factory=list)
    prefixes: Paths = msgspec.field(default_factory=list)

    def rows(self, context: RepositoryContext, *, amount: int | None) -> Iterator[CommitWithId]:
        if amount is not None and amount < 1:
            raise InvalidRequest(f"A log has at least 1 commit, and {amount} were asked for.", kind="invalid_amount")
        with context.key_value.snapshot() as snapshot:
            reading = _Reading(context, self, snapshot=snapshot)
            for count, row in enumerate(reading.rows(), 1):
                if count == amount:
                    reading.keep_position(row.id)
                yield row
                if count == amount:
                    return

    def page(self, context: RepositoryContext, *, is_last: bool = False) -> LogPage:
        """Return a page of `amount` commits, and the position of the next page.

        The next page continues the log of this moment, even if the reference has moved by then.

        Args:
            is_last: do not check if there is another page: that would walk up to the next page's first commit.
        """
        rows: list[CommitWithId] = []
        with context.key_value.snapshot() as snapshot:
            reading = _Reading(context, self, snapshot=snapshot)
            next_token = ""
            for row in reading.rows():
                if len(rows) == self.amount:
                    return LogPage(rows, next_token)
                rows.append(row)
                if len(rows) == self.amount:
                    if is_last:
                        break
                    next_token = format_position(row.id, reading.waiting)
                    reading.keep_position(row.id)
        return LogPage(rows, "")

    def fix_moment(self, call: Callable[[Verb[Any]], Any]) -> Log:
        return msgspec.structs.replace(self, ref=call(Head(ref=self.ref)).id)


class _Reading:
    """A walk through a log, from its head or from a position."""

    def __init__(self, context: RepositoryContext, log: Log, *, snapshot: KeyValueSnapshot) -> None:
        self._context = context
        self._log = log
        self._intervals = intervals_of(log.paths, log.prefixes)
        self._snapshot = snapshot
        self._start, _ = resolve_commit(context, log.ref, snapshot=snapshot)
        stop_at = log.stop_at
        self._last = None if stop_at is None else resolve_commit(context, stop_at, snapshot=snapshot)[0]
        starts: Sequence[str] = [self._start]
        self._behind: str | None = None
        if log.after is not None:
            id, waiting_ids = parse_position(log.after)
            waiting_ids = waiting_ids or context.positions.get((self._start, log.first_parent, id))
            if waiting_ids:
                starts = waiting_ids
            else:
                self._behind = id
        self._walk = self._open_graph_walk(starts) or Walk(
            context, starts, first_parent=log.first_parent, snapshot=snapshot
        )

    def _open_graph_walk(self, starts: Sequence[str]) -> GraphWalk | None:
        """Open a walk with the index, for a log of paths or folders; None: the index cannot help."""
        log = self._log
        keys = [check_path(path) for path in log.paths]
        for prefix in log.prefixes:
            key = prefix_key(check_prefix(prefix))
            if key is None:
                return None
            keys.append(key)
        graph = open_graph(self._context, starts, snapshot=self._snapshot) if 0 < len(keys) <= _KEYS_MAX else None
        if graph is None:
            return None
        return GraphWalk(
            self._context,
            graph,
            starts,
            keys=keys,
            first_parent=log.first_parent,
            since_ms=log.since_ms,
            met=(self._last, self._behind),
            snapshot=self._snapshot,
        )

    @property
    def waiting(self) -> list[str]:
        """The commits that the walk has met and not returned."""
        return self._walk.waiting

    def keep_position(self, id: str) -> None:
        """Keep the position of the walk in this process's cache, under the commit that was returned last."""
        waiting_ids = tuple(self._walk.waiting)
        key = (self._start, self._log.first_parent, id)
        self._context.positions.put(key, waiting_ids, size_bytes=WAITING_BYTES * len(waiting_ids))

    def rows(self) -> Iterator[CommitWithId]:
        """Iterate over the commits that pass the filters."""
        for id, commit in self._walk:
            if self._behind is None:
                if self._is_wanted(commit):
                    yield CommitWithId(id, commit)
            elif id == self._behind:
                self._behind = None
            if id == self._last:
                return

    def _is_wanted(self, commit: Commit) -> bool:
        log = self._log
        if log.since_ms is not None and commit.created_at_ms < log.since_ms:
            return False
        return not self._intervals or self._has_changes(commit)

    def _has_changes(self, commit: Commit) -> bool:
        """Whether a commit changed something in one of the intervals, against its first parent."""
        if len(commit.parents) > 1 and not self._log.first_parent:
            return False
        committed = self._context.committed
        before = committed.empty
        if commit.parents:
            before = load_commit(self._context, commit.parents[0], snapshot=self._snapshot).metarange
        if before.id == commit.metarange.id:
            return False
        with explaining_missing(self._context, before, commit.metarange):
            return any(
                has_difference(committed, before, commit.metarange, start=start, end=end)
                for start, end in self._intervals
            )
