"""`Revert` and `CherryPick`: undo one commit's changes on a branch, or make them again there.

Invariants: both are three-way merges. A revert merges the commit's parent with the commit as base. A cherry-pick merges
the commit with its parent as base. So changes of the branch to other paths stay, and changes to the same paths are a
conflict. For a merge commit, the caller must name the parent. Does not know: how a head moves
(`lakebed.repo.heads.heads`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final, TypedDict

from lakebed.errors import InvalidRequest
from lakebed.repo.committed.merge import Strategy, as_strategy
from lakebed.repo.heads.commit import check_commit_text, move_by_commits, new_commit, no_changes
from lakebed.repo.heads.heads import CommitWithId, Move, SealedBranch, check_clean, same_state
from lakebed.repo.heads.merge import merge_states
from lakebed.repo.model.model import Commit as CommitRecord
from lakebed.repo.model.model import MetarangeRef
from lakebed.repo.records.context import RepositoryContext
from lakebed.repo.records.protection import check_committable
from lakebed.repo.references.commits import load_commit
from lakebed.repo.references.refs import resolve_commit
from lakebed.repo.references.tags import reading_commits
from lakebed.repo.verbs.message import Texts, Verb, verb

ORIGIN_KEY: Final = "cherry-pick-origin"
"""These two keys of a commit's metadata are read by clients. Stored: DO NOT CHANGE them."""
COMMITTER_KEY: Final = "cherry-pick-committer"


class PickOptions(TypedDict, total=False):
    """The arguments of both verbs, except the branch and the commit."""

    parent_number: int | None
    message: str | None
    metadata: Mapping[str, str] | None
    committer: str | None
    strategy: Strategy | None
    allow_empty: bool


class _Pick(Verb[CommitWithId], frozen=True, kw_only=True):
    branch: str
    ref: str
    parent_number: int | None = None
    message: str | None = None
    metadata: Texts | None = None
    committer: str | None = None
    strategy: str | None = None
    allow_empty: bool = False

    def _parent(self, context: RepositoryContext, id: str, commit: CommitRecord) -> tuple[str | None, MetarangeRef]:
        """The id of the parent to compare with, and its state; for a first commit, None and the empty state."""
        count, number = len(commit.parents), self.parent_number
        if not number and count > 1:
            raise InvalidRequest(
                f"Commit {id} of repository {context.name} is a merge of {count} parents: give the number of the "
                "parent that its changes are taken against; 1 is the branch that was merged into.",
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

    def _apply(
        self,
        context: RepositoryContext,
        *,
        base: MetarangeRef,
        source: MetarangeRef,
        message: str,
        metadata: Texts,
        commit_ids: Sequence[str],
        relies_on: str | None,
    ) -> CommitWithId:
        """Merge the changes from base to source onto the branch, with one parent.

        Args:
            commit_ids: the commits of base and source.
            relies_on: a commit whose objects the change needs; None: no commit.
        """
        branch, operation = self.branch, self.verb_name.replace("_", "-")
        check_committable(context, branch)
        strategy = as_strategy(self.strategy)
        check_commit_text(message, metadata, allow_empty_message=True)

        def plan(sealed: SealedBranch) -> Move:
            check_clean(context, sealed, operation=operation)
            head = sealed.head
            with reading_commits(context, *commit_ids):
                state = merge_states(
                    context,
                    base=base,
                    source=source,
                    destination=head.metarange,
                    strategy=strategy,
                    what=f"{operation} on {branch}",
                )
            if not self.allow_empty and same_state(context, state, head.metarange):
                raise no_changes(context, branch, f"The {operation}")
            new = new_commit(
                context,
                parents=[(sealed.record.commit_id, head)],
                metarange=state,
                message=message,
                metadata=metadata,
                committer=self.committer,
            )
            return Move(new.id, commits=[new], relies_on=() if relies_on is None else [relies_on])

        [new] = move_by_commits(context, branch, operation=operation, plan=plan)
        return new


@verb("revert", role="write", effort="compute", gives=CommitWithId, changes=("branch",), author="committer")
class Revert(_Pick, frozen=True, kw_only=True):
    """Undo one commit's changes in a new commit.

    Args:
        ref: the commit; it need not be the head.
        parent_number: of a merge commit, the parent to go back to: 1 is the first.
        message: by default ``Revert <id>``.
        strategy: what to take where the branch has changed the same paths since: ``source-wins`` undoes anyway.

    Raises:
        Conflict: ``merge_conflict``; nothing has moved.
        InvalidRequest: ``parent_number_needed``, ``invalid_parent_number``, ``dirty_branch``, ``no_changes``,
            ``commit_expired``, ``protected_branch``.
        NotFound: ``branch_not_found``, ``reference_not_found``.
    Cost: as a merge.
    """

    def run(self, context: RepositoryContext) -> CommitWithId:
        id, commit = resolve_commit(context, self.ref)
        parent_id, parent = self._parent(context, id, commit)
        return self._apply(
            context,
            base=commit.metarange,
            source=parent,
            message=self.message or f"Revert {id}",
            metadata=self.metadata or {},
            commit_ids=[id] if parent_id is None else [id, parent_id],
            relies_on=parent_id,  # its entries come back
        )


@verb("cherry_pick", role="write", effort="compute", gives=CommitWithId, changes=("branch",), author="committer")
class CherryPick(_Pick, frozen=True, kw_only=True):
    """Make one commit's changes again in a new commit.

    Args:
        parent_number: of a merge commit, the parent that its changes are taken against: 1 is the first.
        message: by default the commit's own.
        metadata: added to the commit's own, and replaces equal keys; the commit's id and committer are added.

    Returns, raises and costs as `Revert`.
    """

    def run(self, context: RepositoryContext) -> CommitWithId:
        id, commit = resolve_commit(context, self.ref)
        parent_id, parent = self._parent(context, id, commit)
        origin = {ORIGIN_KEY: id, COMMITTER_KEY: commit.committer}
        return self._apply(
            context,
            base=parent,
            source=commit.metarange,
            message=self.message or commit.message,
            metadata={**commit.metadata, **(self.metadata or {}), **origin},
            commit_ids=[id] if parent_id is None else [id, parent_id],
            relies_on=id,
        )
