"""Resets: staged changes are given up, all of them or those of some paths, or a branch goes to another commit.

Owns: `reset`, `reset_path`, `reset_prefix`, `hard_reset`. Invariants: what is reset is what was acknowledged before
the seal; a write that is acknowledged later, or elsewhere than in what is reset, stays. A reset of paths is computed
against the commit: those paths come back as the head has them, whatever token or compacted metarange had changed
them. Does not know: how a head moves (`lakebed.repo.heads`).
"""

from __future__ import annotations

from collections.abc import Sequence

from lakebed.repo.commit import chosen_intervals, with_paths_of
from lakebed.repo.context import RepositoryContext
from lakebed.repo.heads import (
    CommitWithId,
    Move,
    Plan,
    SealedBranch,
    applied_state,
    check_clean,
    move_branch,
    same_state,
)
from lakebed.repo.model import Commit
from lakebed.repo.protection import check_committable, check_writable
from lakebed.repo.refs import resolve_commit
from lakebed.repo.rows import Interval

__all__ = ["hard_reset", "reset", "reset_path", "reset_prefix"]


def reset(context: RepositoryContext, branch: str) -> CommitWithId:
    """Give up everything that is uncommitted on a branch: staged, sealed and compacted.

    Returns:
        The head, which stays where it is.

    Raises:
        NotFound: ``branch_not_found``.
        InvalidRequest: ``protected_branch``, ``read_only_repository``.
        Conflict: ``branch_moved``.
    Cost: 2 durable writes of the key-value store; no range is read. Its tokens are removed in the background.
    """
    check_writable(context, branch)
    return _moved(context, branch, lambda sealed: Move(sealed.record.commit_id), gives_up=True)


def reset_path(context: RepositoryContext, branch: str, *, path: str) -> CommitWithId:
    """Give up what is uncommitted at one path: it is as the head has it. As `reset_prefix`."""
    return _reset_chosen(context, branch, chosen_intervals([path], ()))


def reset_prefix(context: RepositoryContext, branch: str, *, prefix: str) -> CommitWithId:
    """Give up what is uncommitted below a prefix: those paths are as the head has them.

    Returns and raises as `reset`; `InvalidRequest` also for what cannot be a path.
    Cost: that of a compaction: all that is sealed is applied, and the branch's compacted metarange is written anew.
    """
    return _reset_chosen(context, branch, chosen_intervals((), [prefix]))


def _reset_chosen(context: RepositoryContext, branch: str, chosen: Sequence[Interval]) -> CommitWithId:
    check_writable(context, branch)

    def plan(sealed: SealedBranch) -> Move:
        if not sealed.has_changes:
            return Move(sealed.record.commit_id)
        state = applied_state(context, sealed)
        head = sealed.head.metarange
        kept = with_paths_of(context, state, source=head, chosen=chosen)
        return Move(sealed.record.commit_id, compacted=None if same_state(context, head, kept) else kept)

    return _moved(context, branch, plan)


def hard_reset(context: RepositoryContext, branch: str, *, ref: str, force: bool = False) -> CommitWithId:
    """Let a branch go to another commit.

    Args:
        ref: of the commit; staged data of a branch that it names is not looked at.
        force: give up what is uncommitted; else a branch with such changes is refused.

    Returns:
        The new head.

    Raises:
        NotFound: ``branch_not_found``, ``reference_not_found``.
        InvalidRequest: ``dirty_branch``, ``commit_expired``, ``protected_branch``, ``read_only_repository``.
        Conflict: ``branch_moved``.
    Cost: 2 durable writes of the key-value store.
    """
    check_committable(context, branch)
    id, commit = resolve_commit(context, ref)

    def plan(sealed: SealedBranch) -> Move:
        if not force:
            check_clean(context, sealed, operation="hard reset")
        return Move(id, relies_on=[id])

    # A token of its own: a head that comes back to where it was must not make a record that was there before.
    move_branch(context, branch, operation="hard reset", plan=plan, fresh_token=True, gives_up=force)
    return CommitWithId(id, commit)


def _moved(context: RepositoryContext, branch: str, plan: Plan, *, gives_up: bool = False) -> CommitWithId:
    heads: dict[str, Commit] = {}

    def noting(sealed: SealedBranch) -> Move:
        heads[sealed.record.commit_id] = sealed.head  # once it is published nothing may fail any more
        return plan(sealed)

    move = move_branch(context, branch, operation="reset", plan=noting, gives_up=gives_up)
    return CommitWithId(move.commit_id, heads[move.commit_id])
