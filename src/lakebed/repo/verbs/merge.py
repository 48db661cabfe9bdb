"""`Merge`: bring the changes of a reference since the merge base onto a branch.

Invariants: a merge needs a branch without uncommitted changes. With a conflict, nothing moves. A merge of everything
has two parents, so that the next merge has a newer base. A squashed or partial merge has one parent, the branch's head,
and its metadata names the source: squashed on request, partial because it has only a part of the source.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Final

from lakebed.errors import InvalidRequest, NotFound
from lakebed.repo.committed.merge import as_strategy
from lakebed.repo.heads.commit import check_commit_text, move_by_commits, new_commit, no_changes
from lakebed.repo.heads.heads import CommitWithId, Move, SealedBranch, check_clean, same_state
from lakebed.repo.heads.merge import merge_states
from lakebed.repo.model.names import check_prefix
from lakebed.repo.records.context import RepositoryContext
from lakebed.repo.records.protection import check_not_read_only
from lakebed.repo.records.pulls import encode_merged
from lakebed.repo.references.commits import load_commit
from lakebed.repo.references.history import merge_base
from lakebed.repo.references.refs import resolve_commit
from lakebed.repo.references.tags import reading_commits
from lakebed.repo.verbs.differences import Status
from lakebed.repo.verbs.message import Texts, Verb, verb

STRATEGY_KEY: Final = ".lakefs.merge.strategy"
"""These keys of a commit's metadata are read by clients. Stored: DO NOT CHANGE them."""
SOURCE_KEY: Final = ".lakebed.merge.source"
PREFIX_KEY: Final = ".lakebed.merge.prefix"


@verb("merge", role="write", effort="compute", gives=CommitWithId, changes=("branch",), author="committer")
class Merge(Verb[CommitWithId], frozen=True, kw_only=True):
    """Merge a reference into a branch.

    Args:
        source: any reference; of a branch what is committed there.
        message: by default ``Merge 'source' into 'branch'``.
        strategy: what to take where both changed, ``source-wins`` or ``dest-wins``; None: that is a conflict.
        squash: one parent only, the branch's head.
        prefix: only paths with this prefix; one parent only, as the rest is not merged.
        allow_empty: make a commit even when there is nothing to merge.

    Raises:
        Conflict: ``merge_conflict``, facts ``paths`` and ``count``; or ``branch_moved``. Nothing has moved.
        InvalidRequest: ``dirty_branch``, ``no_changes``, ``unknown_strategy``, ``commit_expired``,
            ``prefix_cuts_unit``.
        NotFound: ``branch_not_found``, ``reference_not_found``.
        Rejected: ``hook_rejected``.
    Cost: 1 to 2 durable writes of the key-value store; ranges that are equal on two sides are not read.
    """

    branch: str
    source: str
    message: str | None = None
    metadata: Texts | None = None
    committer: str | None = None
    strategy: str | None = None
    squash: bool = False
    prefix: str = ""
    allow_empty: bool = False

    def run(self, context: RepositoryContext) -> CommitWithId:
        return self.run_with(context)

    def run_with(self, context: RepositoryContext, add: Callable[[Move], Move] = lambda move: move) -> CommitWithId:
        """As `run`, with further rows in the write that publishes the merge.

        Args:
            add: returns the move with further rows to put and to expect; called for each try.
        """
        check_not_read_only(context)
        message = self.message or f"Merge '{self.source}' into '{self.branch}'"
        check_commit_text(message, self.metadata)
        strategy, allow_empty = as_strategy(self.strategy), self.allow_empty
        check_prefix(self.prefix)
        source_id, source_commit = resolve_commit(context, self.source)
        is_whole = not self.squash and not self.prefix
        metadata = {**(self.metadata or {}), STRATEGY_KEY: strategy or "default"}
        if not is_whole:
            metadata[SOURCE_KEY] = source_id
        if self.prefix:
            metadata[PREFIX_KEY] = self.prefix

        def plan(sealed: SealedBranch) -> Move:
            check_clean(context, sealed, operation="merge")
            head_id, head = sealed.record.commit_id, sealed.head
            base_id = merge_base(context, source_id, head_id)
            if base_id == source_id and not allow_empty:
                raise self._nothing_to_merge(context)
            with reading_commits(context, source_id):
                state = merge_states(
                    context,
                    base=context.committed.empty if base_id is None else load_commit(context, base_id).metarange,
                    source=source_commit.metarange,
                    destination=head.metarange,
                    strategy=strategy,
                    prefix=self.prefix,
                    what=f"merge of {self.source} into {self.branch}",
                )
            if not is_whole and not allow_empty and same_state(context, state, head.metarange):
                raise self._nothing_to_merge(context)
            parents = [(head_id, head), (source_id, source_commit)] if is_whole else [(head_id, head)]
            new = new_commit(
                context, parents=parents, metarange=state, message=message, metadata=metadata, committer=self.committer
            )
            return add(Move(new.id, commits=[new], relies_on=[source_id]))

        [new] = move_by_commits(
            context, self.branch, operation="merge", plan=plan, events=("pre-merge", "post-merge"), source=self.source
        )
        return new

    def _nothing_to_merge(self, context: RepositoryContext) -> InvalidRequest:
        """The error for a merge without changes. It mentions uncommitted changes of the source."""
        error = no_changes(context, self.branch, f"The merge of {self.source}")
        try:
            has_uncommitted = any(True for _ in Status(branch=self.source).rows(context, amount=1))
        except (InvalidRequest, NotFound):  # the source is not a branch
            return error
        if not has_uncommitted:
            return error
        return InvalidRequest(
            f"{error.message} A merge takes what is committed, and branch {self.source} has uncommitted changes: "
            "commit them first.",
            kind=error.kind,
            **error.facts,
        )


def merge_pull(context: RepositoryContext, id: str, merge: Merge) -> CommitWithId:
    """Merge an open pull request. The write that moves the branch also marks the pull request as merged.

    Raises:
        InvalidRequest: kind ``pull_closed``; otherwise as `Merge`.
        NotFound: also ``pull_not_found``.
    Cost: as `Merge`, and 1 read.
    """

    def add_record(move: Move) -> Move:
        before, after = encode_merged(context, id, move.commit_id)
        key = context.keys.pull(id)
        return replace(move, puts=[*move.puts, (key, after)], expected={**move.expected, key: before})

    return merge.run_with(context, add_record)
