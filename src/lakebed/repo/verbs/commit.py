"""`Commit`: commit staged changes, all of them or those of chosen paths.

Invariants: a commit has exactly the writes that were acknowledged before its seal, applied to the branch's compacted
metarange if there is one. Changes of other paths stay uncommitted, as the difference between the compacted metarange
and the new head. Unchanged ranges are reused unread. Does not know: how a head moves (`lakebed.repo.heads.heads`).
"""

from __future__ import annotations

from lakebed.errors import Rejected
from lakebed.repo.heads.commit import (
    ask_hooks,
    check_commit_text,
    intervals_of,
    new_commit,
    no_changes,
    tell_hooks,
    with_paths_of,
)
from lakebed.repo.heads.heads import (
    CommitWithId,
    Move,
    SealedBranch,
    apply_sealed,
    equals_head,
    keep_applied,
    move_branch,
    same_state,
)
from lakebed.repo.records.context import RepositoryContext
from lakebed.repo.records.protection import check_committable
from lakebed.repo.verbs.message import Milliseconds, Paths, Texts, Verb, verb


@verb("commit", role="write", effort="compute", gives=CommitWithId, changes=("branch",), author="committer")
class Commit(Verb[CommitWithId], frozen=True, kw_only=True):
    """Commit what is staged, or a part of it.

    Args:
        metadata: the user's own, at most `lakebed.repo.heads.commit.METADATA_COUNT_MAX` keys and `METADATA_BYTES_MAX`
        bytes. committer: the author; by default `RepositoryOptions.committer`, or the user that runs the process.
        paths: only these paths; all else stays uncommitted. An empty list selects no path.
        prefixes: and the paths with these prefixes. Where both are None: everything.
        allow_empty: commit even when nothing differs from the head.
        created_at_ms: the date that the commit shows, Unix time in milliseconds, UTC; by default now. It is a label:
            how long the commit's objects are kept counts from when it was made.

    Raises:
        InvalidRequest: ``no_changes``, ``empty_message``, ``oversized_message``, ``oversized_metadata``,
            ``protected_branch``, ``read_only_repository``.
        NotFound: ``branch_not_found``.
        Rejected: ``hook_rejected``: a hook refused; nothing has moved.
        Conflict: ``branch_moved``: it lost too many races.
    Cost: 2 durable writes of the key-value store; reads and writes the ranges that changed, 1 metarange.
    """

    branch: str
    message: str
    metadata: Texts | None = None
    committer: str | None = None
    paths: Paths | None = None
    prefixes: Paths | None = None
    allow_empty: bool = False
    created_at_ms: Milliseconds | None = None

    def run(self, context: RepositoryContext, *, allow_empty_message: bool = False) -> CommitWithId:
        branch = self.branch
        check_committable(context, branch)
        check_commit_text(self.message, self.metadata, allow_empty_message=allow_empty_message)
        is_partial = self.paths is not None or self.prefixes is not None
        intervals = intervals_of(self.paths or (), self.prefixes or ())

        def plan(sealed: SealedBranch) -> Move:
            state = apply_sealed(context, sealed)
            before = sealed.head.metarange
            if is_partial:
                target = with_paths_of(context, before, source=state, intervals=intervals) if intervals else before
            else:
                target = before if equals_head(context, sealed, state) else state
            if target.id == before.id and not self.allow_empty:
                keep_applied(context, sealed, state=state)
                raise no_changes(context, branch, "The commit")
            new = new_commit(
                context,
                parents=[(sealed.record.commit_id, sealed.head)],
                metarange=target,
                message=self.message,
                metadata=self.metadata,
                committer=self.committer,
                created_at_ms=self.created_at_ms,
            )
            try:
                ask_hooks(context, "pre-commit", branch, new)
            except Rejected:
                keep_applied(context, sealed, state=state)
                raise
            compacted = None if not is_partial or same_state(context, target, state) else state
            return Move(new.id, compacted=compacted, commits=[new])

        [new] = move_branch(context, branch, operation="commit", plan=plan).commits
        tell_hooks(context, "post-commit", branch, new)
        return new
