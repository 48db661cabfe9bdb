"""Rebases: a branch's own commits, made again one by one upon another reference.

Owns: `rebase`. Invariants: all new commits and the head are written at once, so a conflict anywhere leaves the branch
where it was. As by ``git rebase``, a branch's own commits are all that its head descends from and the new base does
not; merge commits are left out, for what they brought is either in the new base or among the own commits, and so is a
commit whose changes are there already. Does not know: how a head moves (`lakebed.repo.heads`).
"""

from __future__ import annotations

from lakebed.errors import InvalidRequest
from lakebed.repo.commit import move_by_commits, new_commit, no_changes
from lakebed.repo.commits import difference, load_commit, merge_base
from lakebed.repo.committed.merge import Strategy
from lakebed.repo.context import RepositoryContext
from lakebed.repo.heads import CommitWithId, Move, SealedBranch, check_clean, same_state
from lakebed.repo.merge import check_strategy, merged
from lakebed.repo.protection import check_committable
from lakebed.repo.refs import resolve_commit

__all__ = ["REBASE_COMMIT_COUNT_MAX", "rebase"]

REBASE_COMMIT_COUNT_MAX = 1_000
"""Most commits of one rebase: they are written in one change."""


def rebase(
    context: RepositoryContext,
    branch: str,
    *,
    onto: str,
    committer: str | None = None,
    strategy: Strategy | None = None,
) -> CommitWithId:
    """Make a branch's own commits, those that `onto` does not descend from, again upon `onto`.

    Args:
        onto: any reference; of a branch what is committed there.
        committer: who; by default each commit's own.
        strategy: "source-wins" takes the branch's own commits where both changed; None: that is a conflict.

    Returns:
        The new head.

    Raises:
        Conflict: ``merge_conflict`` (it names the commit), ``branch_moved``; nothing has moved.
        InvalidRequest: ``no_changes``: the branch stands on `onto` already; ``dirty_branch``, ``too_many_commits``,
            ``commit_expired``, ``protected_branch``, ``unrelated_histories``.
        NotFound: ``branch_not_found``, ``reference_not_found``.
    Cost: a merge for each commit, and 1 durable write for all.
    """
    check_committable(context, branch)
    check_strategy(strategy)
    onto_id, onto_commit = resolve_commit(context, onto)

    def plan(sealed: SealedBranch) -> Move:
        check_clean(context, sealed, operation="rebase")
        own = _own_commits(context, sealed, onto_id)
        made: list[CommitWithId] = []
        last = CommitWithId(onto_id, onto_commit)
        for id, commit in own:
            before = load_commit(context, commit.parents[0]).metarange if commit.parents else context.committed.empty
            state = merged(
                context,
                base=before,
                source=commit.metarange,
                destination=last.commit.metarange,
                strategy=strategy,
                what=f"rebase of {branch} onto {onto}, at commit {id},",
            )
            if same_state(context, state, last.commit.metarange):
                continue
            last = new_commit(
                context,
                parents=[last],
                metarange=state,
                message=commit.message,
                metadata=commit.metadata,
                committer=committer or commit.committer,
            )
            made.append(last)
        return Move(last.id, commits=made, relies_on=[onto_id, *(id for id, _ in own)])

    made = move_by_commits(context, branch, operation="rebase", plan=plan)
    return made[-1] if made else CommitWithId(onto_id, onto_commit)


def _own_commits(context: RepositoryContext, sealed: SealedBranch, onto_id: str) -> list[CommitWithId]:
    """The commits of a branch that `onto` does not descend from, without merges, oldest first."""
    head_id = sealed.record.commit_id
    base_id = merge_base(context, head_id, onto_id)
    if base_id is None:
        raise InvalidRequest(
            f"Branch {sealed.name} of repository {context.name} and commit {onto_id} have no commit in common: nothing "
            "can be rebased; merge instead.",
            kind="unrelated_histories",
        )
    if base_id == onto_id:
        raise no_changes(context, sealed.name, "The rebase")
    own: list[CommitWithId] = []
    for id, commit in difference(context, head_id, onto_id):
        if len(commit.parents) > 1:
            continue
        if len(own) == REBASE_COMMIT_COUNT_MAX:
            raise InvalidRequest(
                f"Branch {sealed.name} of repository {context.name} has more than {REBASE_COMMIT_COUNT_MAX:,} commits "
                "of its own: merge instead.",
                kind="too_many_commits",
            )
        own.append(CommitWithId(id, commit))
    return own[::-1]
