"""The common parts of all verbs that make commits: text, record, hooks, and chosen paths.

Owns: `new_commit` (message, metadata, committer, generation), the checks of its text, and the hooks that run before and
after (`move_by_commits`, for all verbs but `Commit`, which seals staged changes too).
"""

from __future__ import annotations

import getpass
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Final

import pyarrow as pa

import lakebed.compute as pc
from lakebed.errors import InvalidRequest, NotFound
from lakebed.log import logger
from lakebed.repo.committed.apply import Changes, apply_changes
from lakebed.repo.committed.diff import diff_metaranges
from lakebed.repo.heads import actions
from lakebed.repo.heads.heads import CommitWithId, Move, Plan, SealedBranch, move_branch
from lakebed.repo.model.model import ROWS_SCHEMA, TOMBSTONE, Commit, MetarangeRef
from lakebed.repo.model.names import check_path, check_prefix
from lakebed.repo.model.rows import Interval, join_intervals, prefix_range
from lakebed.repo.records.context import RepositoryContext
from lakebed.repo.records.hooks import HookCall, HookEvent
from lakebed.repo.records.records import not_unicode
from lakebed.repo.references.commits import commit_id
from lakebed.repo.references.tags import refuse_expired

_LOG: Final = logger("repo")

MESSAGE_BYTES_MAX: Final = 64 << 10
"""Longest message, in bytes of UTF-8."""
METADATA_BYTES_MAX: Final = 64 << 10
"""Most metadata of a commit: keys and values together, in bytes of UTF-8."""
METADATA_COUNT_MAX: Final = 1_000
"""Most keys of a commit's metadata."""


def new_commit(
    context: RepositoryContext,
    *,
    parents: Sequence[tuple[str, Commit]],
    metarange: MetarangeRef,
    message: str,
    metadata: Mapping[str, str] | None,
    committer: str | None,
    created_at_ms: int | None = None,
) -> CommitWithId:
    """Make a commit without storing it. `parents` are in order, with their ids. Other arguments as `Commit`."""
    now_ms = context.now_ms()
    commit = Commit(
        parents=tuple(id for id, _ in parents),
        metarange=metarange,
        message=message,
        committer=committer or context.options.committer or _user(),
        created_at_ms=now_ms if created_at_ms is None else created_at_ms,
        generation=1 + max((parent.generation for _, parent in parents), default=0),
        metadata=dict(metadata or {}),
        # A clock that was set back must not make a commit look older than its parents.
        stored_at_ms=max([now_ms, *(parent.stored_at_ms or 0 for _, parent in parents)]),
    )
    return CommitWithId(commit_id(commit), commit)


def _user() -> str:
    try:
        return getpass.getuser()
    except (OSError, KeyError, ImportError):
        return "unknown"  # a container may run as a number that no file of users names


def check_commit_text(message: str, metadata: Mapping[str, str] | None, *, allow_empty_message: bool = False) -> None:
    """Refuse an invalid message or metadata, before anything is sealed. Raises `InvalidRequest`."""
    if not isinstance(message, str):
        raise InvalidRequest(f"A message is text, and {type(message).__name__} was given.", kind="wrong_type")
    if not message.strip() and not allow_empty_message:
        raise InvalidRequest("The commit has no message: say what changed.", kind="empty_message")
    size = _bytes_of(message)
    if size > MESSAGE_BYTES_MAX:
        raise InvalidRequest(
            f"The message has {size:,} bytes, and {MESSAGE_BYTES_MAX:,} are possible: shorten it.",
            kind="oversized_message",
        )
    check_commit_metadata(metadata or {})


def check_commit_metadata(metadata: Mapping[str, str]) -> None:
    """Refuse metadata that is invalid for a commit or a repository. Raises `InvalidRequest`."""
    for key, value in metadata.items():
        if not isinstance(key, str) or not isinstance(value, str):
            raise InvalidRequest(
                f"Metadata is text to text, and {key!r} has {type(value).__name__}: write it as text.",
                kind="wrong_type",
            )
    total = sum(_bytes_of(key) + _bytes_of(value) for key, value in metadata.items())
    if len(metadata) > METADATA_COUNT_MAX or total > METADATA_BYTES_MAX:
        raise InvalidRequest(
            f"The metadata has {len(metadata):,} keys and {total:,} bytes, and {METADATA_COUNT_MAX:,} keys and "
            f"{METADATA_BYTES_MAX:,} bytes are possible: put what is long into an object.",
            kind="oversized_metadata",
        )


def _bytes_of(text: str) -> int:
    try:
        return len(text.encode())
    except UnicodeEncodeError as error:
        raise not_unicode("The message or metadata", error) from error


def move_by_commits(
    context: RepositoryContext,
    branch: str,
    *,
    operation: str,
    plan: Plan,
    events: tuple[HookEvent, HookEvent] = ("pre-commit", "post-commit"),
    source: str = "",
) -> Sequence[CommitWithId]:
    """Move a branch without uncommitted changes by planned commits. Hooks before the move may refuse them.

    Args:
        operation, plan: as `lakebed.repo.heads.heads.move_branch`.
        events: of the hooks before and after.
        source: of a merge, what is merged.

    Raises:
        Rejected: ``hook_rejected``. Otherwise as `lakebed.repo.heads.heads.move_branch`.
    """

    def plan_with_hooks(sealed: SealedBranch) -> Move:
        move = plan(sealed)
        try:
            for new in move.commits:
                ask_hooks(context, events[0], branch, new, source=source)
        except NotFound:  # a file of actions: of an expired commit its bytes may be gone
            for id in move.relies_on:
                refuse_expired(context, id)
            raise
        return move

    moved = move_branch(context, branch, operation=operation, plan=plan_with_hooks, shows_other=True).commits
    for new in moved:
        _LOG.info(operation, branch=branch, commit=new.id, objects=new.commit.metarange.entry_count)
        tell_hooks(context, events[1], branch, new, source=source)
    return moved


def ask_hooks(
    context: RepositoryContext, event: HookEvent, branch: str, new: CommitWithId, *, source: str = ""
) -> None:
    """Run the hooks of an event before a move, then its actions. Raises `Rejected` (``hook_rejected``)."""
    context.hooks.run_before(hook_call(context, event, branch, new, source=source))
    actions.run_before(context, _occasion(event, branch, new, source))


def tell_hooks(
    context: RepositoryContext, event: HookEvent, branch: str, new: CommitWithId, *, source: str = ""
) -> None:
    """Run the hooks of an event after a move, then its actions. Never raises."""
    context.hooks.run_after(hook_call(context, event, branch, new, source=source))
    actions.run_after(context, _occasion(event, branch, new, source))


def _occasion(event: HookEvent, branch: str, new: CommitWithId, source: str) -> actions.Occasion:
    commit = new.commit
    return actions.Occasion(
        event,
        commit.metarange,
        branch,
        commit_id=new.id,
        source=source,
        message=commit.message,
        committer=commit.committer,
        metadata=commit.metadata,
    )


def no_changes(context: RepositoryContext, branch: str, what: str) -> InvalidRequest:
    """The error of an operation that would make an empty commit."""
    return InvalidRequest(
        f"{what} has no changes: branch {branch} of repository {context.name} would stay as it is.",
        kind="no_changes",
        repository=context.name,
        branch=branch,
    )


def hook_call(
    context: RepositoryContext, event: HookEvent, branch: str, new: CommitWithId, *, source: str = ""
) -> HookCall:
    """The call of a hook about a commit."""
    return HookCall(
        event=event,
        repository=context.name,
        branch=branch,
        commit_id=new.id,
        parents=new.commit.parents,
        metarange_id=new.commit.metarange.id,
        message=new.commit.message,
        committer=new.commit.committer,
        metadata=new.commit.metadata,
        source=source,
    )


def intervals_of(paths: Iterable[str], prefixes: Iterable[str]) -> tuple[Interval, ...]:
    """Paths and prefixes as half-open ranges, sorted and disjoint.

    Raises:
        InvalidRequest: a path is invalid, or one text was given in place of several.
    """
    for name, values in (("paths", paths), ("prefixes", prefixes)):
        if isinstance(values, str):
            raise InvalidRequest(f"{name} are a list of texts, and one text was given.", kind="wrong_type")
    keys = map(check_path, paths)
    return join_intervals(
        [*((key, key + b"\0") for key in keys), *(prefix_range(check_prefix(prefix)) for prefix in prefixes)]
    )


def with_paths_of(
    context: RepositoryContext, onto: MetarangeRef, *, source: MetarangeRef, intervals: Sequence[Interval]
) -> MetarangeRef:
    """A metarange that has the chosen paths as in `source`, and all other paths as in `onto`.

    Args:
        source: a chosen path that is missing here is missing in the result.
        intervals: the chosen paths as half-open ranges, sorted and disjoint.

    Cost: reads the ranges in which the two differ, and writes what changes.
    """
    if onto.id == source.id:
        return onto

    def rows() -> Iterator[pa.RecordBatch]:
        for start, end in intervals:
            for batch in diff_metaranges(context.committed, onto, source, start=start, end=end):
                values = pc.fill_null(batch.column("right"), TOMBSTONE)
                yield pa.RecordBatch.from_arrays([batch.column("path"), values], schema=ROWS_SCHEMA)

    return apply_changes(context.committed, onto, Changes(clears=(), rows=rows)).ref
