"""`Rebase`: make a branch's own commits again, one by one, on top of another reference.

Invariants: all new commits and the head are written at once, so any conflict leaves the branch as it was. As in ``git
rebase``, a branch's own commits are its head and the ancestors of its head, without the new base and its ancestors.
Merge commits are left out, because their changes are either in the new base or in the branch's own commits. A commit
whose changes are in the new base already is also left out. Does not know: how a head moves
(`lakebed.repo.heads.heads`).
"""

from __future__ import annotations

from typing import Final

from lakebed.errors import InvalidRequest
from lakebed.repo.committed.merge import as_strategy
from lakebed.repo.heads.commit import move_by_commits, new_commit, no_changes
from lakebed.repo.heads.heads import CommitWithId, Move, SealedBranch, check_clean, same_state
from lakebed.repo.heads.merge import merge_states
from lakebed.repo.records.context import RepositoryContext
from lakebed.repo.records.protection import check_committable
from lakebed.repo.references.commits import difference, load_commit
from lakebed.repo.references.history import merge_base
from lakebed.repo.references.refs import resolve_commit
from lakebed.repo.references.tags import reading_commits
from lakebed.repo.verbs.message import Verb, verb

REBASE_COMMIT_COUNT_MAX: Final = 1_000
"""Most commits of one rebase. A limit is needed because all are written in one change."""


@verb("rebase", role="write", effort="long", gives=CommitWithId, changes=("branch",), author="committer")
class Rebase(Verb[CommitWithId], frozen=True, kw_only=True):
    """Make a branch's own commits again on top of another reference.

    Args:
        onto: any reference; of a branch what is committed there.
        committer: the new commits' author; by default each commit's own.
        strategy: ``source-wins`` takes the branch's own commits where both changed; None: that is a conflict.

    Raises:
        Conflict: ``merge_conflict`` (it names the commit), ``branch_moved``; nothing has moved.
        InvalidRequest: ``no_changes``: the branch descends from `onto` already; ``dirty_branch``, ``too_many_commits``,
            ``commit_expired``, ``protected_branch``, ``unrelated_histories``.
        NotFound: ``branch_not_found``, ``reference_not_found``.
    Cost: a merge for each commit, and 1 durable write for all.
    """

    branch: str
    onto: str
    committer: str | None = None
    strategy: str | None = None

    def run(self, context: RepositoryContext) -> CommitWithId:
        branch = self.branch
        check_committable(context, branch)
        strategy = as_strategy(self.strategy)
        onto_id, onto_commit = resolve_commit(context, self.onto)

        def plan(sealed: SealedBranch) -> Move:
            check_clean(context, sealed, operation="rebase")
            commits = _own_commits(context, sealed, onto_id)
            new_commits: list[CommitWithId] = []
            last = CommitWithId(onto_id, onto_commit)
            for id, commit in commits:
                parent = load_commit(context, commit.parents[0]) if commit.parents else None
                with reading_commits(context, onto_id):
                    state = merge_states(
                        context,
                        base=context.committed.empty if parent is None else parent.metarange,
                        source=commit.metarange,
                        destination=last.commit.metarange,
                        strategy=strategy,
                        what=f"rebase of {branch} onto {self.onto}, at commit {id},",
                    )
                if same_state(context, state, last.commit.metarange):
                    continue
                last = new_commit(
                    context,
                    parents=[last],
                    metarange=state,
                    message=commit.message,
                    metadata=commit.metadata,
                    committer=self.committer or commit.committer,
                )
                new_commits.append(last)
            return Move(last.id, commits=new_commits, relies_on=[onto_id, *(id for id, _ in commits)])

        moved = move_by_commits(context, branch, operation="rebase", plan=plan)
        return moved[-1] if moved else CommitWithId(onto_id, onto_commit)


def _own_commits(context: RepositoryContext, sealed_branch: SealedBranch, onto_id: str) -> list[CommitWithId]:
    """The commits of a branch that are not `onto` or its ancestors, without merges, oldest first."""
    head_id = sealed_branch.record.commit_id
    base_id = merge_base(context, head_id, onto_id)
    if base_id is None:
        raise InvalidRequest(
            f"Branch {sealed_branch.name} of repository {context.name} and commit {onto_id} have no commit in common: "
            "nothing can be rebased; merge instead.",
            kind="unrelated_histories",
        )
    if base_id == onto_id:
        raise no_changes(context, sealed_branch.name, "The rebase")
    commits: list[CommitWithId] = []
    for id, commit in difference(context, head_id, onto_id):
        if len(commit.parents) > 1:
            continue
        if len(commits) == REBASE_COMMIT_COUNT_MAX:
            raise InvalidRequest(
                f"Branch {sealed_branch.name} of repository {context.name} has more than "
                f"{REBASE_COMMIT_COUNT_MAX:,} commits of its own: merge instead.",
                kind="too_many_commits",
            )
        commits.append(CommitWithId(id, commit))
    return commits[::-1]
