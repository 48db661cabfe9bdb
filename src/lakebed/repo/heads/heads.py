"""Moving a branch, the one way: seal, work on what is sealed, publish.

Owns: the order of steps, every retry, the resolution of an unclear outcome, and what is written with the record:
commits, the line of the reference log, the marks of dropped tokens. An operation is a `plan`: from a `SealedBranch`
it makes a `Move`, writing nothing but collectable ranges; `move_branch` does the rest.

Invariants:
- A plan reads only what was sealed before it looked: the sealed tokens, the compacted metarange, the head. What is
  staged later stays staged.
- A publish drops exactly the tokens that the plan has seen. It goes through only while head, compacted metarange and
  those tokens are as the plan has seen them, no collection has begun since (boundary), and no commit that becomes
  referenced has expired: all of that is expected in one atomic write.
- A move that changes what the branch shows beneath what is staged later goes through only while no write was decided by
  what the branch showed before: a conditional put that found nothing would hide what a merge brings.
- What a move gives up unread is sealed by the publish itself. While it were sealed and not yet dropped, a writer could
  look for its files, find all of them, and acknowledge what rests on them.
- A failed or empty operation leaves no growing list: a token without rows is not sealed, what amounts to nothing is
  dropped, and what was applied before an operation was refused is kept as the branch's compacted metarange.
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
        made = utc(self.commit.created_at_ms)
        return f"Commit({self.id[:12]!r}, {format_value(self.commit.message)}, by {self.commit.committer!r}, {made!r})"

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
    """A branch as an operation sees it, once what was staged is sealed."""

    name: str
    record: Branch
    raw: bytes
    """The record as it is stored."""
    boundary: bytes | None
    """The collection's boundary at the same moment."""
    head: Commit
    is_stored: bool = True
    """False: `raw` is older than `record`, and the publish seals in the same write."""

    @property
    def base(self) -> MetarangeRef:
        """The layer below the sealed tokens."""
        return self.record.compacted if self.record.compacted is not None else self.head.metarange

    @property
    def has_changes(self) -> bool:
        """Whether anything may differ from the head: some token is sealed, or something is compacted."""
        return bool(self.record.sealed) or self.record.compacted is not None


@dataclass(frozen=True, slots=True)
class Move:
    """What a plan wants a branch to become. The sealed tokens it has seen are dropped."""

    commit_id: str
    """The head; the same as before when only staged data changes."""
    compacted: MetarangeRef | None = None
    """What stays uncommitted; None: nothing."""
    commits: Sequence[CommitWithId] = ()
    """New ones, written with the record."""
    relies_on: Sequence[str] = ()
    """Commits that become referenced, or whose entries do, besides the branch's own: their objects must exist."""
    puts: Sequence[tuple[bytes, bytes]] = ()
    """What else is written in the same moment."""
    expected: Mapping[bytes, bytes | None] = field(default_factory=dict)
    """What else must be as it was."""

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
        plan: called for each try; what it raises ends the operation, and nothing has moved; but after `Overtaken` it is
            called anew.
        fresh_token: take a new staging token even when nothing is staged.
        gives_up: what is staged is not wanted: it is never read, however much it is, and goes at the moment of the
            move.
        shows_other: the branch shows another state after the move. Begin again if something was staged since the seal
            that was decided by the state before.

    Returns:
        The move that was published.

    Raises:
        NotFound: there is no such branch.
        Conflict: ``branch_moved``: others were faster each of ``publish_tries_max`` times.
        InvalidRequest: ``commit_expired``: a commit it relies on has lost its objects.
    Cost: 1 snapshot and 2 durable writes of the key-value store besides what the plan costs; with `gives_up` 1 write.
    """
    with context.counters.note_move(branch):
        for _ in range(context.options.publish_tries_max):
            if gives_up:
                sealed = _see_given_up(context, branch, fresh_token=fresh_token)
            else:
                sealed = seal(context, branch, fresh_token=fresh_token)
            with suppress(Overtaken), beginning_again(context, sealed):
                move = plan(sealed)
                if publish(context, sealed, move=move, operation=operation, shows_other=shows_other):
                    return move
            RETRIES.add(1, operation)
    raise branch_moved(context, branch, operation)


def seal(context: RepositoryContext, branch: str, *, fresh_token: bool = False) -> SealedBranch:
    """Seal what is staged: from now on it can only be read, and new writes go to a fresh token.

    A token without rows is left in place: the snapshot that shows it empty is as good a moment as its sealing would
    be, and an operation that fails again and again seals nothing. A branch with too many sealed tokens is compacted
    first. Arguments and errors as `move_branch`.
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
    """A branch as it is once a publish has sealed all that is staged."""
    boundary, record, raw, is_empty = _look(context, branch)
    head = load_commit(context, record.commit_id)
    has_layers = bool(record.sealed) or record.compacted is not None
    if is_empty and not has_layers and not fresh_token:
        return SealedBranch(branch, record, raw, boundary, head)
    return SealedBranch(branch, _with_fresh_token(context, record), raw, boundary, head, is_stored=False)


def seal_for_compaction(context: RepositoryContext, branch: str, *, cooldown_ms: int) -> SealedBranch | None:
    """As `seal`, in one step with the stamp of a compaction's start; tried once.

    Args:
        cooldown_ms: shortest time since the last start.

    Returns:
        None: nothing is to be compacted, a compaction began less than `cooldown_ms` ago, or the record changed.
    """
    boundary, record, raw, is_empty = _look(context, branch)
    started = record.compaction_started_at_ms
    now_ms = context.now_ms()
    if is_empty and not record.sealed:
        return None
    if started is not None and 0 <= now_ms - started < cooldown_ms:
        return None
    after = record if is_empty else _with_fresh_token(context, record)
    after = msgspec.structs.replace(after, compaction_started_at_ms=now_ms)
    if not _set(context, branch, raw, after):
        return None
    if not is_empty:
        context.counters.count_seal(branch)
    return SealedBranch(branch, after, encode_record(after), boundary, load_commit(context, after.commit_id))


def _look(context: RepositoryContext, branch: str) -> tuple[bytes | None, Branch, bytes, bool]:
    """Boundary, record, its bytes, and whether its staging token is empty, all of one moment."""
    with context.key_value.snapshot() as snapshot:
        record, raw = load_branch(context, branch, snapshot=snapshot)
        is_empty = record.staging.clears is None
        if is_empty:
            # As columns, which a plan that reads the token then reuses: `scan` would sort all that is new once more.
            rows = snapshot.scan_arrow(*prefix_range(context.keys.token(record.staging.id)))
            is_empty = not any(batch.num_rows for batch in rows)
        return snapshot.get(context.keys.boundary), record, raw, is_empty


def _with_fresh_token(context: RepositoryContext, record: Branch) -> Branch:
    token = new_token(context.environment)
    return msgspec.structs.replace(record, staging=token, sealed=(record.staging, *record.sealed))


def _set(context: RepositoryContext, branch: str, raw: bytes, after: Branch) -> bool:
    """Set the record if it is still `raw`; its fresh token, or its stamp, is unique."""
    return replace_record(context.key_value, context.keys.branch(branch), encode_record(after), expected=raw)


def publish(
    context: RepositoryContext, sealed: SealedBranch, *, move: Move, operation: str, shows_other: bool = False
) -> bool:
    """Make a move, in one atomic write. Arguments as `move_branch`.

    When the record has only gained tokens meanwhile, the move is made on top of it: those tokens are above all that the
    plan has seen. An unclear outcome is resolved by a read: a move of the head has its own line in the reference log.

    Returns:
        False: the branch changed in another way, a collection began, or a write was decided by what the branch shows no
            more: nothing was moved; begin again.

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
    context: RepositoryContext, sealed: SealedBranch, move: Move, operation: str
) -> tuple[list[tuple[bytes, bytes]], bytes | None]:
    """What is written with the record, and the key that only this move writes."""
    now = str(context.now_ms()).encode()
    puts = [(context.keys.commit(commit.id), encode_record(commit.commit)) for commit in move.commits]
    puts += [(context.keys.cleanup(token.id), now) for token in sealed.record.sealed]
    before, after = sealed.record.compacted, move.compacted
    puts += supersede_compaction(context, before, after=after, branch=sealed.name, what=operation)
    puts += move.puts
    if move.commit_id == sealed.record.commit_id:
        return puts, None
    committer = move.commits[-1].commit.committer if move.commits else ""
    line = reflog_line(
        context,
        sealed.name,
        before=sealed.record.commit_id,
        after=move.commit_id,
        what=operation,
        committer=committer,
    )
    return [*puts, line], line[0]


def _guards(context: RepositoryContext, sealed: SealedBranch, move: Move) -> dict[bytes, bytes | None]:
    """What must be unchanged, besides the record."""
    guards: dict[bytes, bytes | None] = dict(move.expected)
    guards[context.keys.boundary] = sealed.boundary
    guards.update((context.keys.expired(id), None) for id in move.required_commits)
    return guards


def _move_record(record: Branch, sealed: SealedBranch, move: Move) -> Branch:
    """The record after a move; it keeps the tokens that it has gained."""
    gained = record.sealed[: len(record.sealed) - len(sealed.record.sealed)]
    return msgspec.structs.replace(record, commit_id=move.commit_id, compacted=move.compacted, sealed=gained)


def _only_gained(record: Branch, before: Branch) -> bool:
    """Whether a record is an earlier one with more tokens on top (and perhaps another stamp)."""
    tail = record.sealed[len(record.sealed) - len(before.sealed) :] if before.sealed else ()
    return record.commit_id == before.commit_id and record.compacted == before.compacted and tail == before.sealed


class Overtaken(Exception):
    """The branch has moved since it was sealed, so that its tokens and files may be swept: begin again."""


@contextmanager
def beginning_again(context: RepositoryContext, sealed: SealedBranch) -> Iterator[None]:
    """Raise `Overtaken` when a plan misses a file because the branch has moved on, or a collection has begun since.

    A file that is missing although neither has happened is `Corruption`: the record names it, or nothing younger than
    the boundary is deleted. Cost: none without an error; else 1 snapshot.
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

    A cleanup takes the rows of tokens that a publish has dropped. Who reads them only then sees a branch that never
    was; a publish on top of it would fail, but a refusal, such as "nothing has changed", would be reported.

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
    """The metarange of everything a branch shows: its sealed tokens applied to the layer below.

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
    """Whether two metaranges hold the same entries at the same paths; where their bytes are does not matter.

    Equal ids are equal states, but not the other way round: what was changed and changed back has another address.
    """
    return left.id == right.id or not has_difference(context.committed, left, right)


def equals_head(context: RepositoryContext, sealed: SealedBranch, state: MetarangeRef) -> bool:
    """Whether `apply_sealed` equals the head.

    Cost: nothing when it is the head itself, which is then returned as it is; else as `same_state`.
    """
    if sealed.record.compacted is None:
        return state.id == sealed.head.metarange.id
    return same_state(context, sealed.head.metarange, state)


def compaction_move(context: RepositoryContext, sealed: SealedBranch, state: MetarangeRef) -> Move:
    """The move by which what is sealed, `apply_sealed`, becomes the compacted metarange, and nothing else changes."""
    return Move(sealed.record.commit_id, compacted=None if equals_head(context, sealed, state) else state)


def check_clean(context: RepositoryContext, sealed: SealedBranch, *, operation: str) -> None:
    """Whether everything sealed amounts to nothing.

    Raises:
        InvalidRequest: ``dirty_branch``.
        Overtaken: its tokens have been dropped.
    Cost: until the first difference; reads no range when the branch has no uncommitted layer.
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
    """Apply what is sealed, and keep it as the branch's compacted metarange, so that the list of tokens is short.

    Returns:
        Whether it was published; no matter when not, for nothing is lost.
    """
    boundary, record, raw, _ = _look(context, branch)
    sealed = SealedBranch(branch, record, raw, boundary, load_commit(context, record.commit_id))
    with suppress(Overtaken), beginning_again(context, sealed):
        state = apply_sealed(context, sealed)
        return publish(context, sealed, move=compaction_move(context, sealed, state), operation=operation)
    return False


def keep_applied(context: RepositoryContext, sealed: SealedBranch, *, state: MetarangeRef) -> None:
    """Of a commit that ends in an error, keep what was applied for it: its tokens are dropped, no read changes.

    The error is what the caller has to hear, so a failure here is left to the next operation.
    """
    if not sealed.record.sealed:
        return
    try:
        publish(context, sealed, move=compaction_move(context, sealed, state), operation="commit")
    except (NotFound, Unavailable, OutcomeUnknown):
        RETRIES.add(1, "commit")
