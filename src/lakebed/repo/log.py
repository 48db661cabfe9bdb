"""The log: commits behind a reference, all of them or those that changed certain paths.

Owns: the walk and its filters. Invariants: a commit stands before its parents (`lakebed.repo.commits.ancestors`); a
commit changed a path when the path differs, by identity, from the first parent's (of the first commit: from nothing).
Does not know: how metaranges are compared; equal ranges are not read.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from lakebed.errors import InvalidRequest
from lakebed.repo.commit import chosen_intervals
from lakebed.repo.commits import ancestors, load_commit
from lakebed.repo.committed.diff import has_difference
from lakebed.repo.home import Home
from lakebed.repo.key_value.port import KeyValueSnapshot
from lakebed.repo.model import Commit
from lakebed.repo.refs import resolve
from lakebed.repo.rows import Interval

__all__ = ["log"]


def log(
    home: Home,
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
        after: go on behind this commit, the last of an earlier page.
        amount: at most so many; None: all.
        since_ms: only commits not older than this. Unix milliseconds, UTC.
        stop_at: a reference; nothing comes behind its commit, which is the last.
        first_parent: follow only the first parent of each.
        paths: only commits that changed one of these, or something below one of `prefixes`.

    Raises:
        NotFound: kind ``reference_not_found``: of `ref` or `stop_at`.
        InvalidRequest: a reference, a path or the amount cannot be.
        Corruption: a record or range is damaged.
    Cost: 1 snapshot and 1 read of the key-value store a commit; with paths also the metaranges of each and its parent,
    and of their ranges those that differ around the paths.
    """
    if amount is not None and amount < 1:
        raise InvalidRequest(f"A log has at least 1 commit, and {amount} were asked for.", kind="invalid_amount")
    stretches = chosen_intervals(paths, prefixes)
    with home.key_value.snapshot() as snapshot:
        start = resolve(home, ref, snapshot=snapshot).commit_id
        last = None if stop_at is None else resolve(home, stop_at, snapshot=snapshot).commit_id
        is_behind = after is None
        count = 0
        for id, commit in ancestors(home, start, first_parent=first_parent, snapshot=snapshot):
            if (
                is_behind
                and (since_ms is None or commit.created_at_ms >= since_ms)
                and (not stretches or _changed(home, commit, stretches, snapshot=snapshot))
            ):
                yield id, commit
                count += 1
            if id == last or count == amount:
                return
            is_behind = is_behind or id == after


def _changed(home: Home, commit: Commit, stretches: Sequence[Interval], *, snapshot: KeyValueSnapshot) -> bool:
    """Whether a commit changed something in one of the stretches, against its first parent."""
    before = home.committed.empty
    if commit.parents:
        before = load_commit(home, commit.parents[0], snapshot=snapshot).metarange
    if before.id == commit.metarange.id:
        return False
    return any(
        has_difference(home.committed, before, commit.metarange, start=start, end=end) for start, end in stretches
    )
