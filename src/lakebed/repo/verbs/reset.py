"""`Reset` and `HardReset`: discard uncommitted changes, or move a branch to another commit.

Invariants:

- All uncommitted changes are discarded at one moment. Changes that are acknowledged later, or outside of the paths that
  are reset, stay.
- A reset of paths gives them the entries of the head's commit, whichever token or compacted metarange had changed them.
- A reset of paths takes time, in which writers still see the changes that it discards. Rows that they stage below the
  same paths meanwhile may depend on these changes, as a table's commit depends on its files. So these rows are
  discarded, too: by the same write if they were decided by what the branch showed, else at a second look.

Does not know: how a head moves (`lakebed.repo.heads.heads`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from lakebed.errors import Conflict, InvalidRequest, NotFound, OutcomeUnknown, Unavailable
from lakebed.repo.heads.commit import intervals_of, with_paths_of
from lakebed.repo.heads.heads import (
    CommitWithId,
    Move,
    SealedBranch,
    apply_sealed,
    check_clean,
    move_branch,
    same_state,
)
from lakebed.repo.model.model import Commit
from lakebed.repo.model.rows import Interval, prefix_range
from lakebed.repo.records.context import RepositoryContext
from lakebed.repo.records.protection import check_committable, check_writable
from lakebed.repo.references.branches import branch_moved, load_branch
from lakebed.repo.references.refs import resolve_commit
from lakebed.repo.verbs.message import Verb, verb


@verb("reset", role="write", effort="compute", gives=CommitWithId, changes=("branch",), frees_space=True)
class Reset(Verb[CommitWithId], frozen=True, kw_only=True):
    """Discard uncommitted changes: all, those of a path, or those below a prefix.

    Returns:
        The head, which does not move.

    Raises:
        NotFound: ``branch_not_found``.
        InvalidRequest: ``two_targets``, ``protected_branch``, ``read_only_repository``, ``invalid_path``.
        Conflict: ``branch_moved``.
        OutcomeUnknown: of a path or prefix: it is reset, but others staged more there all the time.
    Cost: of everything 1 durable write of the key-value store, and no range is read: the tokens are removed in the
    background. Of a path or prefix that of a compaction: all that is sealed is applied, and the branch's compacted
    metarange is written anew; again where others staged below it meanwhile.
    """

    branch: str
    path: str | None = None
    prefix: str | None = None

    def run(self, context: RepositoryContext) -> CommitWithId:
        if self.path is not None and self.prefix is not None:
            raise InvalidRequest("A reset is of one path or of one prefix, and both were given.", kind="two_targets")
        paths = () if self.path is None else (self.path,)
        prefixes = () if self.prefix is None else (self.prefix,)
        is_partial = bool(paths or prefixes)
        intervals = intervals_of(paths, prefixes)
        check_writable(context, self.branch)
        heads: dict[str, Commit] = {}

        def plan(sealed: SealedBranch) -> Move:
            heads[sealed.record.commit_id] = sealed.head  # no read that may fail is allowed after the publish
            if not is_partial or not sealed.has_changes:
                return Move(sealed.record.commit_id)
            state = apply_sealed(context, sealed)
            head = sealed.head.metarange
            new_state = with_paths_of(context, state, source=head, intervals=intervals)
            return Move(sealed.record.commit_id, compacted=None if same_state(context, head, new_state) else new_state)

        if is_partial:
            move = _reset_partly(context, self.branch, plan)
        else:
            move = move_branch(context, self.branch, operation="reset", plan=plan, gives_up=True)
        reset = CommitWithId(move.commit_id, heads[move.commit_id])
        if is_partial:
            try:
                _reset_again(context, self.branch, plan, intervals)
            except NotFound:
                return reset  # the branch has been deleted since
            except (Unavailable, Conflict) as error:
                raise OutcomeUnknown(
                    f"What was staged on branch {self.branch} of repository {context.name} was reset, but what others "
                    "staged there meanwhile, which may rest on it, perhaps was not: stop them, and reset again.",
                    kind="outcome_unknown",
                    repository=context.name,
                    branch=self.branch,
                ) from error
        return reset


def _reset_again(
    context: RepositoryContext, branch: str, plan: Callable[[SealedBranch], Move], intervals: Sequence[Interval]
) -> None:
    """Reset paths until nothing is staged there. Raises `Conflict` if other writers stage more after each try."""
    for _ in range(context.options.publish_tries_max):
        if not _has_staged(context, branch, intervals):
            return
        _reset_partly(context, branch, plan)
    raise branch_moved(context, branch, "reset")


def _reset_partly(context: RepositoryContext, branch: str, plan: Callable[[SealedBranch], Move]) -> Move:
    """Reset paths, together with what was staged meanwhile and decided by what the branch showed.

    A snapshot of a table is decided by its files. If it stayed for a moment without them, a commit by others could take
    it. Where others write such things at every try, what they stage below the paths is reset at the next look.
    """
    try:
        return move_branch(context, branch, operation="reset", plan=plan, shows_other=True)
    except Conflict as error:
        if error.kind != "branch_moved":
            raise
        return move_branch(context, branch, operation="reset", plan=plan)


def _has_staged(context: RepositoryContext, branch: str, intervals: Sequence[Interval]) -> bool:
    """Whether a token has a row in one of the intervals. Compacted rows do not count.

    Cost: 1 snapshot, and 1 scan for each token and interval.
    """
    with context.key_value.snapshot() as snapshot:
        record, _ = load_branch(context, branch, snapshot=snapshot)
        for token in (record.staging, *record.sealed):
            first, last = prefix_range(context.keys.token(token.id))
            for start, end in intervals:
                rows = snapshot.scan_arrow(first + start, last if end is None else first + end)
                if any(batch.num_rows for batch in rows):
                    return True
    return False


@verb("hard_reset", role="write", effort="compute", gives=CommitWithId, changes=("branch",))
class HardReset(Verb[CommitWithId], frozen=True, kw_only=True):
    """Move a branch to another commit.

    Args:
        ref: of the commit; of a branch what is committed there.
        force: discard what is uncommitted; else a branch with such changes is refused.

    Raises:
        NotFound: ``branch_not_found``, ``reference_not_found``.
        InvalidRequest: ``dirty_branch``, ``commit_expired``, ``protected_branch``, ``read_only_repository``.
        Conflict: ``branch_moved``.
    Cost: 2 durable writes of the key-value store; with `force` 1.
    """

    branch: str
    ref: str
    force: bool = False

    def run(self, context: RepositoryContext) -> CommitWithId:
        check_committable(context, self.branch)
        id, commit = resolve_commit(context, self.ref)

        def plan(sealed: SealedBranch) -> Move:
            if not self.force:
                check_clean(context, sealed, operation="hard reset")
            return Move(id, relies_on=[id])

        # A new token: a head that returns to an earlier commit must not restore an earlier record.
        move_branch(
            context,
            self.branch,
            operation="hard reset",
            plan=plan,
            fresh_token=True,
            gives_up=self.force,
            shows_other=True,
        )
        return CommitWithId(id, commit)
