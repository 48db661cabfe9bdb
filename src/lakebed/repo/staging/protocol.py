"""One try of a write to a branch: its preconditions, its atomic change, and how an unclear outcome is resolved.

Owns: the protocol that ensures that no acknowledged write is lost. A try reads the branch's record and the collection's
boundary. It writes under the record's staging token, in one change that expects both to be as they were read. So a row
is written to a token only while that is its branch's staging token. A process that seals a token and then reads it gets
every row that the token will ever have, and no row is lost because it came too late. If the record has changed, a try
writes nothing, and the next try uses the new record.

A write that was decided by what the branch shows also stages the tombstone `DECIDED_PATH`. A move that changes what the
branch shows, such as a merge, expects that the branch's newest tokens do not have this tombstone. Otherwise the write
would stay on top of a state that it was not decided on, and hide it.

Invariants: a try that reads before it decides uses one snapshot for all its reads. Tries are bounded. An unclear
outcome is resolved by reading the expected rows, never by writing again: another process may have written between two
writes of the same value, and its write would be lost. Why this is sound: docs/design/0016-staging.md.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, TypeVar

from lakebed.errors import Conflict, OutcomeUnknown
from lakebed.metrics import default_registry
from lakebed.repo.model.model import TOMBSTONE, Branch
from lakebed.repo.model.names import check_branch_name
from lakebed.repo.records.context import RepositoryContext
from lakebed.repo.records.protection import check_writable
from lakebed.repo.records.records import resolving_outcome
from lakebed.repo.references.branches import CLOSED_MS, branch_moved, load_branch, peek_branch, reopen_branch
from lakebed.repo.staging.view import View, branch_view, went_suppressed

R = TypeVar("R")

RETRIES: Final = default_registry.counter(
    "lakebed_repo_retries_total",
    help_text="Times an operation on a branch began again because the branch changed meanwhile.",
    label_names=("operation",),
)
"""Labelled by operation: these are few and named by the code. Not by branch: the number of branches is unbounded."""


DECIDED_PATH: Final = b"_lakebed/decided"
"""Path of the tombstone that marks a token with a row that was decided by what the branch showed.

No object has this path, so the tombstone hides nothing from readers and commits of any version. DO NOT CHANGE.
"""


@dataclass(frozen=True, slots=True)
class WritePrecondition:
    """What an attempt expects of the stored records.

    Attributes:
        on_branch: the stored record, which the write expects.
        boundary: a ULID; uploads with smaller ones may be collected. None: there was no collection yet.
        on_both: record and boundary, which a write expects if it names an address.
        token_prefix: prefix of the keys under the staging token.
    """

    record: Branch
    on_branch: Mapping[bytes, bytes | None]
    boundary: bytes | None
    on_both: Mapping[bytes, bytes | None]
    token_prefix: bytes

    @property
    def mark(self) -> tuple[bytes, bytes]:
        """The row that marks a token as having a row that was decided by what the branch shows."""
        return self.token_prefix + DECIDED_PATH, TOMBSTONE


class WriteAttempts:
    """The tries of one write to a branch. The first `look` begins the first try.

    `RepositoryOptions.write_tries_max` bounds tries that met another staging token. A record that changed but kept its
    token, for example because a commit was published meanwhile, counts against the larger
    `RepositoryOptions.publish_tries_max`.

    Args:
        branch: must be writable.
        operation: a word for metrics.

    Raises:
        InvalidRequest: kind ``invalid_branch_name``, ``protected_branch``, ``read_only_repository``.
    """

    def __init__(self, context: RepositoryContext, branch: str, *, operation: str) -> None:
        check_writable(context, check_branch_name(branch))
        self._context = context
        self._branch = branch
        self._key = context.keys.branch(branch)
        self._operation = operation
        self._tokens: set[str] = set()
        self._count = 0

    def look(self) -> WritePrecondition:
        """Begin a try that overwrites. It uses the record that this process knows; the write verifies it.

        Raises:
            NotFound: kind ``branch_not_found``; verified by a read, not only by what this process knows.
            Conflict: kind ``branch_moved``: the limit of tries is reached.
        """
        record, raw = peek_branch(self._context, self._branch)
        return self._precondition(record, raw, self._context.key_value.peek(self._context.keys.boundary))

    def read(self, look: Callable[[View], R]) -> tuple[R, WritePrecondition]:
        """Begin an attempt that depends on what the branch shows. Raises as `look`."""
        while True:
            with self._context.key_value.snapshot() as snapshot:
                record, raw = load_branch(self._context, self._branch, snapshot=snapshot)
                boundary = snapshot.get(self._context.keys.boundary)
                precondition = self._precondition(record, raw, boundary)
                with went_suppressed():
                    return look(branch_view(self._context, record, snapshot=snapshot)), precondition

    def _precondition(self, record: Branch, raw: bytes, boundary: bytes | None) -> WritePrecondition:
        self._begin(record)
        if record.closed_at_ms is not None:
            self._check_closed(record.closed_at_ms, raw)
        on_branch: dict[bytes, bytes | None] = {self._key: raw}
        on_both = {**on_branch, self._context.keys.boundary: boundary}
        return WritePrecondition(record, on_branch, boundary, on_both, self._context.keys.token(record.staging.id))

    def _check_closed(self, closed_at_ms: int, raw: bytes) -> None:
        """Refuse a write while a deletion looks. End a deletion that took too long: no write is made on its record."""
        if 0 <= self._context.now_ms() - closed_at_ms < CLOSED_MS:
            raise Conflict(
                f"Branch {self._branch} of repository {self._context.name} is being deleted if it is empty: try again "
                "in a moment.",
                kind="branch_closed",
                branch=self._branch,
            )
        reopen_branch(self._context, self._branch, raw)

    def _begin(self, record: Branch) -> None:
        options = self._context.options
        self._tokens.add(record.staging.id)
        self._count += 1
        if self._count > 1:
            RETRIES.add(1, self._operation)
        if len(self._tokens) > options.write_tries_max or self._count > options.publish_tries_max:
            raise branch_moved(self._context, self._branch, self._operation)


def write_rows(
    context: RepositoryContext,
    keys: Sequence[bytes],
    values: Sequence[bytes],
    *,
    expected: Mapping[bytes, bytes | None],
) -> bool:
    """Write rows, at least one, in one atomic change.

    Returns:
        Whether all expected values matched. If not, nothing was written.

    Raises:
        OutcomeUnknown: the reply was lost, and the rows are not there.
    """
    try:
        if len(keys) <= 2:  # a path, and perhaps the mark of a decision
            context.key_value.write(list(zip(keys, values, strict=True)), expected=expected)
        else:
            context.key_value.put_columns(keys, values, expected=expected)
    except Conflict as error:
        check_only_unexpected(error)
        return False
    except OutcomeUnknown as unclear:
        with resolving_outcome(unclear), context.key_value.snapshot() as snapshot:
            if snapshot.get_many(keys) != list(values):
                raise
    return True


def replace_rows(
    context: RepositoryContext,
    puts: Sequence[tuple[bytes, bytes]],
    removed: Mapping[bytes, bytes | None],
    *,
    expected: Mapping[bytes, bytes | None],
) -> bool:
    """Write some rows and remove others, in one atomic change. Returns and raises as `write_rows`.

    Args:
        removed: with the values that they have, which are expected too.
    """
    try:
        context.key_value.write(puts, list(removed), expected={**expected, **removed})
    except Conflict as error:
        check_only_unexpected(error)
        return False
    except OutcomeUnknown as unclear:
        # Removed rows may have been cleaned up with their whole token: compare the precondition instead.
        with resolving_outcome(unclear), context.key_value.snapshot() as snapshot:
            if any(snapshot.get(key) != value for key, value in (*expected.items(), *puts)):
                raise
            if any(value is not None for value in snapshot.get_many(removed)):
                raise
    return True


def check_only_unexpected(error: Conflict) -> None:
    """Pass when a conditional write met another value; raise every other conflict."""
    if error.kind != "unexpected_value":
        raise error
