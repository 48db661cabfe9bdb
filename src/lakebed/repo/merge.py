"""Merges: what one reference changed since the merge base, brought onto a branch.

Owns: `merge`, and `merged`, the three-way merge that reverts, cherry-picks and rebases use too. Invariants: a merge
is decided path by path (a table inside a branch is one unit) from base, source and destination, by
`lakebed.repo.committed.merge`; it needs a branch without uncommitted changes; with a conflict nothing has moved. A
merge of everything has two parents, so that the next one has a newer base; one that is squashed or partial has one,
for it does not hold all of its source, and says in its metadata where it came from.

Does not know: how a head moves (`lakebed.repo.heads`).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, get_args

from lakebed.errors import Conflict, InvalidRequest, NotFound
from lakebed.repo.commit import check_says, move_by_commits, new_commit, no_changes
from lakebed.repo.commits import load_commit, merge_base
from lakebed.repo.committed.merge import Strategy, merge_metaranges
from lakebed.repo.context import RepositoryContext
from lakebed.repo.differences import diff_uncommitted
from lakebed.repo.heads import CommitWithId, Move, SealedBranch, check_clean, same_state
from lakebed.repo.hooks import HookEvent
from lakebed.repo.model import MetarangeRef
from lakebed.repo.names import check_prefix
from lakebed.repo.protection import check_not_read_only
from lakebed.repo.refs import resolve_commit

__all__ = ["CONFLICT_COUNT_SHOWN", "merge", "merged"]

CONFLICT_COUNT_SHOWN: Final = 5
"""Paths that the sentence of a conflict lists; its fact ``paths`` has more."""

STRATEGY_KEY: Final = ".lakefs.merge.strategy"
"""Clients look for it. Stored: DO NOT CHANGE these keys."""
SOURCE_KEY: Final = ".lakebed.merge.source"
PREFIX_KEY: Final = ".lakebed.merge.prefix"


def merge(
    context: RepositoryContext,
    source: str,
    *,
    into: str,
    message: str | None = None,
    metadata: Mapping[str, str] | None = None,
    committer: str | None = None,
    strategy: Strategy | None = None,
    squash: bool = False,
    prefix: str = "",
    allow_empty: bool = False,
) -> CommitWithId:
    """Merge a reference into a branch.

    Args:
        source: any reference; of a branch what is committed there.
        into: the branch that changes.
        message: by default ``Merge 'source' into 'branch'``.
        strategy: what to take where both changed; None: that is a conflict.
        squash: one parent only, the branch's head.
        prefix: only paths that begin so; one parent only, as the rest is not merged.
        allow_empty: make a commit even when there is nothing to merge.

    Returns:
        The new commit.

    Raises:
        Conflict: ``merge_conflict``, facts ``paths`` and ``count``; or ``branch_moved``. Nothing has moved.
        InvalidRequest: ``dirty_branch``, ``no_changes``, ``unknown_strategy``, ``commit_expired``,
            ``prefix_cuts_unit``.
        NotFound: ``branch_not_found``, ``reference_not_found``.
        Rejected: ``hook_rejected``.
    Cost: 1 to 2 durable writes of the key-value store; ranges that are equal on two sides are not read.
    """
    check_not_read_only(context)
    message = message or f"Merge '{source}' into '{into}'"
    check_says(message, metadata)
    check_strategy(strategy)
    check_prefix(prefix)
    source_id, source_commit = resolve_commit(context, source)
    is_whole = not squash and not prefix
    said = {**(metadata or {}), STRATEGY_KEY: strategy or "default"}
    if not is_whole:
        said[SOURCE_KEY] = source_id
    if prefix:
        said[PREFIX_KEY] = prefix

    def plan(sealed: SealedBranch) -> Move:
        check_clean(context, sealed, operation="merge")
        head_id, head = sealed.record.commit_id, sealed.head
        base_id = merge_base(context, source_id, head_id)
        if base_id == source_id and not allow_empty:
            raise _nothing_to_merge(context, source, into)
        state = merged(
            context,
            base=context.committed.empty if base_id is None else load_commit(context, base_id).metarange,
            source=source_commit.metarange,
            destination=head.metarange,
            strategy=strategy,
            prefix=prefix,
            what=f"merge of {source} into {into}",
        )
        if not is_whole and not allow_empty and same_state(context, state, head.metarange):
            raise _nothing_to_merge(context, source, into)
        parents = [(head_id, head), (source_id, source_commit)] if is_whole else [(head_id, head)]
        new = new_commit(context, parents=parents, metarange=state, message=message, metadata=said, committer=committer)
        return Move(new.id, commits=[new], relies_on=[source_id])

    events: tuple[HookEvent, HookEvent] = ("pre-merge", "post-merge")
    [new] = move_by_commits(context, into, operation="merge", plan=plan, events=events, source=source)
    return new


def _nothing_to_merge(context: RepositoryContext, source: str, into: str) -> InvalidRequest:
    """The error of a merge without changes; it says when the source has some that are not committed."""
    error = no_changes(context, into, f"The merge of {source}")
    try:
        has_uncommitted = any(True for _ in diff_uncommitted(context, source, amount=1))
    except (InvalidRequest, NotFound):  # the source is no branch
        return error
    if not has_uncommitted:
        return error
    return InvalidRequest(
        f"{error.message} A merge takes what is committed, and branch {source} has uncommitted changes: commit them "
        "first.",
        kind=error.kind,
        **error.facts,
    )


def check_strategy(strategy: str | None) -> None:
    """Refuse what is no strategy. Raises `InvalidRequest` (``unknown_strategy``)."""
    if strategy is not None and strategy not in get_args(Strategy):
        raise InvalidRequest(
            f"There is no merge strategy {strategy!r}: give one of {', '.join(get_args(Strategy))}, or none.",
            kind="unknown_strategy",
        )


def merged(
    context: RepositoryContext,
    *,
    base: MetarangeRef,
    source: MetarangeRef,
    destination: MetarangeRef,
    strategy: Strategy | None,
    what: str,
    prefix: str = "",
) -> MetarangeRef:
    """What the destination becomes with the changes from base to source.

    Args:
        prefix: only changes of paths that begin so.
        what: the operation, for the error.

    Raises:
        Conflict: ``merge_conflict``.
    Cost: nothing when the source changed nothing or, without a prefix, the destination did not; else it reads where at
    least two of the three differ, and writes what changes.
    """
    outcome = merge_metaranges(
        context.committed,
        base=base,
        source=source,
        destination=destination,
        strategy=strategy,
        prefix=prefix.encode(),
    )
    if outcome.ref is None:
        raise _conflict(context, what, outcome.conflicts, outcome.conflict_count)
    return outcome.ref


def _conflict(context: RepositoryContext, what: str, paths: list[str], count: int) -> Conflict:
    shown = ", ".join(paths[:CONFLICT_COUNT_SHOWN])
    more = f" and {count - CONFLICT_COUNT_SHOWN:,} more" if count > CONFLICT_COUNT_SHOWN else ""
    return Conflict(
        f"The {what} in repository {context.name} has {count:,} conflict{'s' if count > 1 else ''}, where both sides "
        f"changed the same path differently: {shown}{more}. Nothing was changed; change one side, or "
        "give a strategy: source-wins or dest-wins.",
        kind="merge_conflict",
        repository=context.name,
        paths=paths,
        count=count,
    )
