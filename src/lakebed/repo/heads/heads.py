"""The protocol by which every operation moves a branch: seal, plan on the sealed state, publish.

Owns: the order of steps, every retry, the resolution of an unclear outcome, and everything that is written with the
record: commits, the line of the reference log, the marks of dropped tokens. An operation is a `plan`, which makes a
`Move` from a `SealedBranch` and writes nothing but collectable ranges. `move_branch` does the rest.

Invariants:
- A plan reads only what was sealed before it looked: the sealed tokens, the compacted metarange and the head. Rows that
  are staged later stay staged.
- A publish drops exactly the tokens that the plan has seen. It succeeds only if head, compacted metarange and those
  tokens are as the plan has seen them, no collection has begun since (boundary), and no commit that becomes referenced
  has expired. One atomic write expects all of that.
- If a move changes what the branch shows beneath rows that are staged later, it succeeds only if no write was decided
  by the state before. Otherwise a conditional put that found no object could hide what a merge brings.
- If a move gives up staged rows unread, the publish itself seals them. If they were sealed first and dropped later, a
  writer could look for their files in between, find all of them, and acknowledge a write that depends on them.
- A failed or empty operation leaves no growing list. A token without rows is not sealed. Tokens whose changes amount to
  nothing are dropped. Changes that were applied before an operation was refused are kept as the branch's compacted
  metarange.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import NamedTuple

import msgspec

from lakebed.errors import Conflict, Corruption, InvalidRequest, NotFound, OutcomeUnknown, Unavailable
from lakebed.key_value.port import KeyValueSnapshot
from lakebed.repo.committed.apply import apply_changes
from lakebed.repo.committed.diff import has_difference
from lakebed.repo.model.model import Branch, Commit, MetarangeRef
from lakebed.repo.model.rows import prefix_range
from lakebed.repo.records.context import RepositoryContext
from lakebed.repo.records.records import encode_record, new_token, replace_record, resolving_outcome
from lakebed.repo.records.reflog import reflog_line
from lakebed.repo.records.superseded import supersede_compaction
from lakebed.repo.references.branches import branch_moved, load_branch
from lakebed.repo.references.commits import load_commit
from lakebed.repo.references.tags import refuse_expired
from lakebed.repo.staging.changes import changes_of
from lakebed.repo.staging.protocol import DECIDED_PATH, RETRIES
from lakebed.repo.staging.uncommitted import is_dirty
from lakebed.texts import format_value, utc


class CommitWithId(NamedTuple):
    """A commit with its id."""

    id: str
    commit: Commit

    def __repr__(self) -> str:
        commit = self.commit
        created = utc(commit.created_at_ms)
        return f"Commit({self.id[:12]!r}, {format_value(commit.message)}, by {commit.committer!r}, {created!r})"

    @property
    def message(self) -> str:
        """The message of the commit."""
        return self.commit.message

    @property
    def committer(self) -> str:
        """The author of the commit."""
        return self.commit.committer

    @property
    def parents(self) -> tuple[str, ...]:
        """Ids of the parents. Of a merge, the head of the branch is first."""
        return self.commit.parents

    @property
    def created_at_ms(self) -> int:
        """Unix time in milliseconds, UTC."""
        return self.commit.created_at_ms

    @property
    def metadata(self) -> dict[str, str]:
        """Texts of the user."""
        return self.commit.metadata

    @property
    def metarange(self) -> MetarangeRef:
        """The objects that the commit holds: how many there are, and their total size."""
        return self.commit.metarange


@dataclass(frozen=True, slots=True)
class SealedBranch:
    """A branch as an operation sees it, after its staged rows are sealed."""

    name: str
    record: Branch
    raw: bytes
    """The record's bytes as they are stored."""
    boundary: bytes | None
    """The collection's boundary at the same moment."""
    head: Commit
    is_stored: bool = True
    """False: `raw` is older than `record`, and the publish seals the branch in the same write."""

    @property
    def base(self) -> MetarangeRef:
        """The layer below the sealed tokens."""
        return self.record.compacted if self.record.compacted is not None else self.head.metarange

    @property
    def has_changes(self) -> bool:
        """Whether anything may differ from the head: there is a sealed token or a compacted metarange."""
        return bool(self.record.sealed) or self.record.compacted is not None


@dataclass(frozen=True, slots=True)
class Move:
    """The state that a plan gives to a branch. The sealed tokens that the plan has seen are dropped."""

    commit_id: str
    """The head; the same as before when only staged data changes."""
    compacted: MetarangeRef | None = None
    """The compacted metarange, which stays uncommitted; None: nothing does."""
    commits: Sequence[CommitWithId] = ()
    """New ones, written with the record."""
    relies_on: Sequence[str] = ()
    """Commits, other than the branch's own, that become referenced, or whose entries do. Their objects must exist."""
    puts: Sequence[tuple[bytes, bytes]] = ()
    """Further rows that the same write puts."""
    expected: Mapping[bytes, bytes | None] = field(default_factory=dict)
    """Further rows that the write expects unchanged."""

    @property
    def required_commits(self) -> Sequence[str]:
        """The id of every commit whose objects must exist."""
        return (self.commit_id, *(commit.id for commit in self.commits), *self.relies_on)


Plan = Callable[[SealedBranch], Move]


def move_branch(
    context: RepositoryContext,
    branch: str,
    *,
    operation: str,
    plan: Plan,
    fresh_token: bool = False,
    gives_up: bool = False,
    shows_other: bool = False,
) -> Move:
    """Seal a branch, make a plan and publish it, as often as it takes.

    Args:
        operation: a word for metrics, the reference log and errors.
        plan: called for each try. If it raises `Overtaken`, it is called again. Any other error ends the operation, and
            the branch has not moved.
        fresh_token: take a new staging token even if nothing is staged.
        gives_up: discard what is staged. It is never read, however much it is, and is dropped by the move itself.
        shows_other: the branch shows another state after the move. Begin again if a write that was decided by the state
            before has been staged since the seal.

    Returns:
        The move that was published.

    Raises:
        NotFound: there is no such branch.
        Conflict: ``branch_moved``: others were faster at each of ``publish_tries_max`` tries.
        InvalidRequest: ``commit_expired``: a commit that the move relies on has lost its objects.
    Cost: 1 snapshot and 2 durable writes of the key-value store (with `gives_up` 1 write), and the cost of the plan.
    """
    with context.counters.note_move(branch):
        for _ in range(context.options.publish_tries_max):
            if gives_up:
                sealed_branch = _see_given_up(context, branch, fresh_token=fresh_token)
            else:
                sealed_branch = seal(context, branch, fresh_token=fresh_token)
            with suppress(Overtaken), beginning_again(context, sealed_branch):
                move = plan(sealed_branch)
                if publish(context, sealed_branch, move=move, operation=operation, shows_other=shows_other):
                    return move
            RETRIES.add(1, operation)
    raise branch_moved(context, branch, operation)


def seal(context: RepositoryContext, branch: str, *, fresh_token: bool = False) -> SealedBranch:
    """Seal what is staged: from now on it can only be read, and new writes go to a fresh token.

    A token without rows is not sealed. The snapshot that shows it empty serves as well as a seal, and an operation that
    fails repeatedly adds no sealed tokens. A branch with too many sealed tokens is compacted first. Arguments and
    errors as `move_branch`.
    """
    for _ in range(context.options.publish_tries_max):
        boundary, record, raw, is_empty = _look(context, branch)
        is_long = len(record.sealed) >= context.options.sealed_tokens_max
        if is_long and fold(context, branch, operation="seal"):
            continue
        if is_empty and not fresh_token:
            head = load_commit(context, record.commit_id)
            return SealedBranch(branch, record, raw, boundary, head)
        after = _with_fresh_token(context, record)
        if _set(context, branch, raw, after):
            context.counters.count_seal(branch)
            head = load_commit(context, record.commit_id)
            return SealedBranch(branch, after, encode_record(after), boundary, head)
        RETRIES.add(1, "seal")
    raise branch_moved(context, branch, "seal")


def _see_given_up(context: RepositoryContext, branch: str, *, fresh_token: bool) -> SealedBranch:
    """A branch as it will be once a publish has sealed all that is staged."""
    boundary, record, raw, is_empty = _look(context, branch)
    head = load_commit(context, record.commit_id)
    has_layers = bool(record.sealed) or record.compacted is not None
    if is_empty and not has_layers and not fresh_token:
        return SealedBranch(branch, record, raw, boundary, head)
    return SealedBranch(branch, _with_fresh_token(context, record), raw, boundary, head, is_stored=False)


def seal_for_compaction(context: RepositoryContext, branch: str, *, cooldown_ms: int) -> SealedBranch | None:
    """As `seal`, but tried once, and the same write stamps the start of a compaction.

    Args:
        cooldown_ms: shortest time since the last start.

    Returns:
        None if there is nothing to compact, a compaction began less than `cooldown_ms` ago, or the record changed.
    """
    boundary, record, raw, is_empty = _look(context, branch)
    started_at_ms = record.compaction_started_at_ms
    now_ms = context.now_ms()
    if is_empty and not record.sealed:
        return None
    if started_at_ms is not None and 0 <= now_ms - started_at_ms < cooldown_ms:
        return None
    after = record if is_empty else _with_fresh_token(context, record)
    after = msgspec.structs.replace(after, compaction_started_at_ms=now_ms)
    if not _set(context, branch, raw, after):
        return None
    if not is_empty:
        context.counters.count_seal(branch)
    return SealedBranch(branch, after, encode_record(after), boundary, load_commit(context, after.commit_id))


def _look(context: RepositoryContext, branch: str) -> tuple[bytes | None, Branch, bytes, bool]:
    """Boundary, record, the record's bytes, and whether its staging token is empty, all at one moment."""
    with context.key_value.snapshot() as snapshot:
        record, raw = load_branch(context, branch, snapshot=snapshot)
        is_empty = record.staging.clears is None
        if is_empty:
            # Read as columns, which a plan that reads the token reuses: `scan` would sort all new rows once more.
            rows = snapshot.scan_arrow(*prefix_range(context.keys.token(record.staging.id)))
            is_empty = not any(batch.num_rows for batch in rows)
        return snapshot.get(context.keys.boundary), record, raw, is_empty


def _with_fresh_token(context: RepositoryContext, record: Branch) -> Branch:
    token = new_token(context.environment)
    return msgspec.structs.replace(record, staging=token, sealed=(record.staging, *record.sealed))


def _set(context: RepositoryContext, branch: str, raw: bytes, after: Branch) -> bool:
    """Set the record if it is still `raw`. The new record has a fresh token or a stamp, so it is unique."""
    return replace_record(context.key_value, context.keys.branch(branch), encode_record(after), expected=raw)


def publish(
    context: RepositoryContext, sealed: SealedBranch, *, move: Move, operation: str, shows_other: bool = False
) -> bool:
    """Make a move, in one atomic write. Arguments as `move_branch`.

    If the record has only gained tokens meanwhile, the move is applied to the new record: those tokens are above all
    that the plan has seen. An unclear outcome is resolved by a read: each move of the head has its own line in the
    reference log.

    Returns:
        False if nothing was moved, so that the caller begins again: the branch changed in another way, a collection
            began, or a write was decided by a state that the branch would no longer show.

    Raises:
        NotFound: the branch was deleted.
        InvalidRequest: ``commit_expired``.
    """
    key = context.keys.branch(sealed.name)
    record, raw = sealed.record, sealed.raw
    also, proof = _also_written(context, sealed, move, operation)
    guards = _guards(context, sealed, move)
    for _ in range(context.options.publish_tries_max):
        after = _move_record(record, sealed, move)
        encoded = encode_record(after)
        if shows_other:
            guards.update(
                (context.keys.token(token.id) + DECIDED_PATH, None) for token in (after.staging, *after.sealed)
            )
        try:
            context.key_value.write([(key, encoded), *also], expected={**guards, key: raw})
            is_made = True
        except Conflict:
            is_made = False
            record, seen = load_branch(context, sealed.name)
            if seen == raw:  # not the record, but another key: a collection's, or the plan's own
                for id in move.required_commits:
                    refuse_expired(context, id)
                return False
        except OutcomeUnknown as unclear:
            with resolving_outcome(unclear):
                is_made = proof is not None and context.key_value.get(proof) is not None
                if not is_made:
                    record, seen = load_branch(context, sealed.name)
                    # Only this write brought its fresh token, if it brought one; others may have sealed it since.
                    is_made = seen == encoded
                    is_made |= not sealed.is_stored and after.staging in (record.staging, *record.sealed)
        if is_made:
            tokens = [token.id for token in (after.staging, *after.sealed)]
            context.counters.reset(sealed.name, sealed_count=len(after.sealed), tokens=tokens)
            return True
        if not sealed.is_stored or not _only_gained(record, sealed.record):
            return False
        raw = seen
    return False


def _also_written(
    context: RepositoryContext, sealed_branch: SealedBranch, move: Move, operation: str
) -> tuple[list[tuple[bytes, bytes]], bytes | None]:
    """The rows that are written with the record, and the key that only this move writes."""
    now = str(context.now_ms()).encode()
    puts = [(context.keys.commit(commit.id), encode_record(commit.commit)) for commit in move.commits]
    puts += [(context.keys.cleanup(token.id), now) for token in sealed_branch.record.sealed]
    before, after = sealed_branch.record.compacted, move.compacted
    puts += supersede_compaction(context, before, after=after, branch=sealed_branch.name, what=operation)
    puts += move.puts
    if move.commit_id == sealed_branch.record.commit_id:
        return puts, None
    committer = move.commits[-1].commit.committer if move.commits else ""
    line = reflog_line(
        context,
        sealed_branch.name,
        before=sealed_branch.record.commit_id,
        after=move.commit_id,
        what=operation,
        committer=committer,
    )
    return [*puts, line], line[0]


def _guards(context: RepositoryContext, sealed_branch: SealedBranch, move: Move) -> dict[bytes, bytes | None]:
    """The rows that must be unchanged, in addition to the record."""
    guards: dict[bytes, bytes | None] = dict(move.expected)
    guards[context.keys.boundary] = sealed_branch.boundary
    guards.update((context.keys.expired(id), None) for id in move.required_commits)
    return guards


def _move_record(record: Branch, sealed_branch: SealedBranch, move: Move) -> Branch:
    """The record after a move. It keeps the tokens that it has gained."""
    gained = record.sealed[: len(record.sealed) - len(sealed_branch.record.sealed)]
    return msgspec.structs.replace(record, commit_id=move.commit_id, compacted=move.compacted, sealed=gained)


def _only_gained(record: Branch, before: Branch) -> bool:
    """Whether a record is an earlier one with more tokens on top (and perhaps another stamp)."""
    tail = record.sealed[len(record.sealed) - len(before.sealed) :] if before.sealed else ()
    return record.commit_id == before.commit_id and record.compacted == before.compacted and tail == before.sealed


class Overtaken(Exception):
    """The branch has moved since it was sealed, so its tokens and files may be deleted: begin again."""


@contextmanager
def beginning_again(context: RepositoryContext, sealed: SealedBranch) -> Iterator[None]:
    """Raise `Overtaken` if a plan misses a file because the branch has moved, or a collection has begun since.

    If neither has happened, a missing file is `Corruption`: the record names it, or it is younger than the boundary,
    and so never deleted. Cost: none without an error; else 1 snapshot.
    """
    try:
        yield
    except (Corruption, Conflict) as error:
        if error.kind not in ("missing_range", "version_went"):
            raise
        with context.key_value.snapshot() as snapshot:
            record, _ = load_branch(context, sealed.name, snapshot=snapshot)
            boundary = snapshot.get(context.keys.boundary)
        if _only_gained(record, sealed.record) and boundary == sealed.boundary:
            raise
        raise Overtaken from error


@contextmanager
def open_sealed_rows(context: RepositoryContext, sealed: SealedBranch) -> Iterator[KeyValueSnapshot]:
    """A snapshot in which the sealed tokens have all their rows.

    A cleanup deletes the rows of tokens that a publish has dropped. A plan that reads the tokens after that would see a
    state that the branch never had. A publish based on it would fail, but a refusal, such as "nothing has changed",
    would be reported to the caller.

    Raises:
        Overtaken: the tokens have been dropped.
        NotFound: the branch was deleted.
    Cost: 1 snapshot, 1 read.
    """
    with context.key_value.snapshot() as snapshot:
        record, _ = load_branch(context, sealed.name, snapshot=snapshot)
        if not _only_gained(record, sealed.record):
            raise Overtaken
        yield snapshot


def apply_sealed(context: RepositoryContext, sealed: SealedBranch) -> MetarangeRef:
    """Make the metarange of everything that a branch shows: apply its sealed tokens to the layer below.

    Raises:
        Overtaken: its tokens have been dropped.
    Cost: reads and writes the ranges that changed, and nothing when no token is sealed.
    """
    if not sealed.record.sealed:
        return sealed.base
    with open_sealed_rows(context, sealed) as snapshot:
        changes = changes_of(context, snapshot, sealed.record.sealed)
        return apply_changes(context.committed, sealed.base, changes).ref


def same_state(context: RepositoryContext, left: MetarangeRef, right: MetarangeRef) -> bool:
    """Whether two metaranges hold the same entries at the same paths, whatever the addresses of their bytes.

    Equal ids mean equal states. Different ids may mean equal states too: an object that was changed and changed back
    has another address.
    """
    return left.id == right.id or not has_difference(context.committed, left, right)


def equals_head(context: RepositoryContext, sealed: SealedBranch, state: MetarangeRef) -> bool:
    """Whether `apply_sealed` equals the head.

    Cost: none if it is the head itself, which is then returned as it is; else as `same_state`.
    """
    if sealed.record.compacted is None:
        return state.id == sealed.head.metarange.id
    return same_state(context, sealed.head.metarange, state)


def compaction_move(context: RepositoryContext, sealed: SealedBranch, state: MetarangeRef) -> Move:
    """The move that makes `apply_sealed` the compacted metarange and changes nothing else."""
    return Move(sealed.record.commit_id, compacted=None if equals_head(context, sealed, state) else state)


def check_clean(context: RepositoryContext, sealed: SealedBranch, *, operation: str) -> None:
    """Check that the sealed tokens and the compacted metarange change nothing.

    Raises:
        InvalidRequest: ``dirty_branch``.
        Overtaken: its tokens have been dropped.
    Cost: reads up to the first difference; no range if the branch has no uncommitted layer.
    """
    if not sealed.has_changes:
        return
    with open_sealed_rows(context, sealed) as snapshot:
        if not is_dirty(context, snapshot, sealed.record, tokens=sealed.record.sealed):
            return
    raise dirty(sealed.name, repository=context.name, operation=operation)


def dirty(branch: str, *, repository: str, operation: str) -> InvalidRequest:
    """The error for an operation that needs a branch without uncommitted changes."""
    return InvalidRequest(
        f"Branch {branch} of repository {repository} has uncommitted changes: commit or reset them before "
        f"this {operation}.",
        kind="dirty_branch",
        repository=repository,
        branch=branch,
    )


def fold(context: RepositoryContext, branch: str, *, operation: str) -> bool:
    """Apply what is sealed, and keep it as the branch's compacted metarange, so that the list of tokens stays short.

    Returns:
        Whether it was published. If not, nothing is lost.
    """
    boundary, record, raw, _ = _look(context, branch)
    sealed_branch = SealedBranch(branch, record, raw, boundary, load_commit(context, record.commit_id))
    with suppress(Overtaken), beginning_again(context, sealed_branch):
        state = apply_sealed(context, sealed_branch)
        return publish(context, sealed_branch, move=compaction_move(context, sealed_branch, state), operation=operation)
    return False


def keep_applied(context: RepositoryContext, sealed: SealedBranch, *, state: MetarangeRef) -> None:
    """Keep what was applied for a commit that ends in an error: its tokens are dropped, and no read changes.

    The caller must get the commit's error, so a failure here is left to the next operation.
    """
    if not sealed.record.sealed:
        return
    try:
        publish(context, sealed, move=compaction_move(context, sealed, state), operation="commit")
    except (NotFound, Unavailable, OutcomeUnknown):
        RETRIES.add(1, "commit")
