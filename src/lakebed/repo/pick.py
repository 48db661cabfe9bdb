"""Reverts and cherry-picks: one commit's changes, undone on a branch or made again on it.

Owns: `revert`, `cherry_pick`. Invariants: both are three-way merges. A revert merges the commit's parent, a
cherry-pick the commit, with the other of the two as base, so what the branch changed elsewhere stays and what it
changed in the same paths is a conflict. Of a merge commit somebody has to say against which parent.

Does not know: how a head moves (`lakebed.repo.heads`).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from lakebed.errors import InvalidRequest
from lakebed.repo.commit import check_says, move_by_commits, new_commit, no_changes
from lakebed.repo.commits import load_commit
from lakebed.repo.committed.merge import Strategy
from lakebed.repo.context import RepositoryContext
from lakebed.repo.heads import CommitWithId, Move, SealedBranch, check_clean, same_state
from lakebed.repo.merge import check_strategy, merged
from lakebed.repo.model import Commit, MetarangeRef
from lakebed.repo.protection import check_committable
from lakebed.repo.refs import resolve_commit

__all__ = ["cherry_pick", "revert"]

ORIGIN_KEY: Final = "cherry-pick-origin"
"""Clients look for these two. Stored: DO NOT CHANGE them."""
COMMITTER_KEY: Final = "cherry-pick-committer"


def revert(
    context: RepositoryContext,
    branch: str,
    *,
    ref: str,
    parent_number: int | None = None,
    message: str | None = None,
    metadata: Mapping[str, str] | None = None,
    committer: str | None = None,
    strategy: Strategy | None = None,
    allow_empty: bool = False,
) -> CommitWithId:
    """Undo one commit's changes in a new commit.

    Args:
        ref: the commit; it need not be the head.
        parent_number: of a merge commit, the parent to go back to: 1 is the first.
        message: by default ``Revert <id>``.
        strategy: what to take where the branch has changed the same paths since: "source-wins" undoes anyway.

    Returns:
        The new commit.

    Raises:
        Conflict: ``merge_conflict``; nothing has moved.
        InvalidRequest: ``parent_number_needed``, ``invalid_parent_number``, ``dirty_branch``, ``no_changes``,
            ``commit_expired``, ``protected_branch``.
        NotFound: ``branch_not_found``, ``reference_not_found``.
    Cost: as a merge.
    """
    id, commit = resolve_commit(context, ref)
    parent_id, parent = _parent(context, id, commit, parent_number)
    return _pick(
        context,
        branch,
        base=commit.metarange,
        source=parent,
        message=message or f"Revert {id}",
        metadata=metadata or {},
        committer=committer,
        strategy=strategy,
        allow_empty=allow_empty,
        relies_on=parent_id,  # its entries come back
        what="revert",
    )


def cherry_pick(
    context: RepositoryContext,
    branch: str,
    *,
    ref: str,
    parent_number: int | None = None,
    message: str | None = None,
    metadata: Mapping[str, str] | None = None,
    committer: str | None = None,
    strategy: Strategy | None = None,
    allow_empty: bool = False,
) -> CommitWithId:
    """Make one commit's changes again, in a new commit on a branch.

    Args:
        ref: the commit.
        parent_number: of a merge commit, the parent whose difference to it is meant: 1 is the first.
        message: by default the commit's own.
        metadata: laid over the commit's own; where it came from is added.

    Returns, raises and costs as `revert`.
    """
    id, commit = resolve_commit(context, ref)
    _, parent = _parent(context, id, commit, parent_number)
    origin = {ORIGIN_KEY: id, COMMITTER_KEY: commit.committer}
    return _pick(
        context,
        branch,
        base=parent,
        source=commit.metarange,
        message=message or commit.message,
        metadata={**commit.metadata, **(metadata or {}), **origin},
        committer=committer,
        strategy=strategy,
        allow_empty=allow_empty,
        relies_on=id,
        what="cherry-pick",
    )


def _parent(context: RepositoryContext, id: str, commit: Commit, number: int | None) -> tuple[str | None, MetarangeRef]:
    """The parent that is meant, and what it holds; of a first commit nothing at all."""
    count = len(commit.parents)
    if not number and count > 1:
        raise InvalidRequest(
            f"Commit {id} of repository {context.name} is a merge of {count} parents: say which of them its changes "
            "are meant against, by its number; 1 is the branch that was merged into.",
            kind="parent_number_needed",
            commit=id,
        )
    if number and not 1 <= number <= count:
        raise InvalidRequest(
            f"Commit {id} of repository {context.name} has {count} parent{'' if count == 1 else 's'}, and parent "
            f"{number} was asked for.",
            kind="invalid_parent_number",
            commit=id,
        )
    if not count:
        return None, context.committed.empty
    parent_id = commit.parents[(number or 1) - 1]
    return parent_id, load_commit(context, parent_id).metarange


def _pick(
    context: RepositoryContext,
    branch: str,
    *,
    base: MetarangeRef,
    source: MetarangeRef,
    message: str,
    metadata: Mapping[str, str],
    committer: str | None,
    strategy: Strategy | None,
    allow_empty: bool,
    relies_on: str | None,
    what: str,
) -> CommitWithId:
    """Merge from base to source onto the branch, with one parent."""
    check_committable(context, branch)
    check_strategy(strategy)
    check_says(message, metadata, allow_empty_message=True)

    def plan(sealed: SealedBranch) -> Move:
        check_clean(context, sealed, operation=what)
        head = sealed.head
        state = merged(
            context,
            base=base,
            source=source,
            destination=head.metarange,
            strategy=strategy,
            what=f"{what} on {branch}",
        )
        if not allow_empty and same_state(context, state, head.metarange):
            raise no_changes(context, branch, f"The {what}")
        new = new_commit(
            context,
            parents=[(sealed.record.commit_id, head)],
            metarange=state,
            message=message,
            metadata=metadata,
            committer=committer,
        )
        return Move(new.id, commits=[new], relies_on=() if relies_on is None else [relies_on])

    [new] = move_by_commits(context, branch, operation=what, plan=plan)
    return new
