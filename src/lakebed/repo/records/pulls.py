"""Pull requests: requests to merge a branch into another, and their results.

Owns: `PullRequest`, its key, and its states: open, closed, merged. Invariants: a pull request becomes merged in the
write that moves the branch, and stays merged. A change expects the record as it was read. Does not know: how branches
are merged.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Final, Literal

import msgspec

from lakebed.errors import InvalidRequest, NotFound
from lakebed.lsm.file_id import is_file_id
from lakebed.repo.records.context import RepositoryContext
from lakebed.repo.records.protection import check_not_read_only
from lakebed.repo.records.records import (
    decode_record,
    encode_record,
    race_error,
    read_records,
    replace_record,
    write_unique,
)

PullStatus = Literal["open", "closed", "merged"]

_TEXT_BYTES_MAX: Final = 64 << 10
"""Largest size of title and description together, in UTF-8."""
_TRIES_MAX: Final = 32


class PullRequest(msgspec.Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True):
    """A pull request. Stored: DO NOT CHANGE its fields; add at the end, with a default."""

    title: str
    source: str
    """The branch that is to be merged."""
    destination: str
    """The branch that it is to be merged into."""
    author: str
    created_at_ms: int
    """Unix time in milliseconds, UTC."""
    description: str = ""
    status: PullStatus = "open"
    merged_commit_id: str | None = None
    closed_at_ms: int | None = None
    """When it was closed or merged."""
    change_count: int = 0
    """Number of changes of this record, so that no two of its states have the same bytes."""


def create_pull(
    context: RepositoryContext, *, title: str, description: str, source: str, destination: str, author: str
) -> str:
    """Create an open pull request.

    Returns:
        Its id, a ULID.

    Raises:
        InvalidRequest: kind ``same_branch``, ``oversized_text``, ``invalid_text``, ``read_only_repository``.
        NotFound: kind ``branch_not_found``.
    Cost: 1 write of the key-value store.
    """
    check_not_read_only(context)
    if source == destination:
        raise InvalidRequest(
            f"A pull request merges a branch into another one, and {source!r} was given as both.", kind="same_branch"
        )
    pull = PullRequest(title, source, destination, author, context.now_ms(), description)
    id = context.moves.mint()
    key = context.keys.pull(id)
    # If a branch is deleted meanwhile, the merge detects it. A deleted repository must get no new record.
    write_unique(context.key_value, [(key, _encode(pull))], expected={key: None, context.keys.deleted: None})
    return id


def load_pull(context: RepositoryContext, id: str) -> PullRequest:
    """Load a pull request. Raises `NotFound` (``pull_not_found``), `Corruption`. Cost: 1 read."""
    return _load(context, id)[1]


def _load(context: RepositoryContext, id: str) -> tuple[bytes, PullRequest]:
    raw = context.key_value.get(context.keys.pull(id)) if is_file_id(id) else None
    if raw is None:
        raise NotFound(
            f"Repository {context.name} has no pull request {id!r}: list its pull requests.",
            kind="pull_not_found",
            repository=context.name,
        )
    return raw, decode_record(raw, PullRequest, key=context.keys.pull(id))


def list_pulls(
    context: RepositoryContext, *, prefix: str = "", after: str = "", statuses: tuple[PullStatus, ...]
) -> Iterator[tuple[str, PullRequest]]:
    """Iterate over pull requests with one of `statuses`, by id, which is oldest first. Cost: 1 snapshot, 1 scan."""
    with context.key_value.snapshot() as snapshot:
        for id, pull in read_records(
            snapshot, context.keys.pull(), PullRequest, begins_with=prefix, after=after or None
        ):
            if pull.status in statuses:
                yield id, pull


def update_pull(
    context: RepositoryContext,
    id: str,
    *,
    title: str | None = None,
    description: str | None = None,
    status: PullStatus | None = None,
) -> PullRequest:
    """Change the given fields of a pull request; None: keep the field.

    Raises:
        InvalidRequest: kind ``pull_merged``: a merged pull request cannot be opened or closed, and only a merge can set
            this status.
        NotFound: kind ``pull_not_found``.
        Conflict: other processes changed it at the same time, again and again.
    Cost: 1 read and 1 write.
    """
    check_not_read_only(context)

    def change(pull: PullRequest) -> PullRequest:
        new_pull = msgspec.structs.replace(
            pull,
            title=pull.title if title is None else title,
            description=pull.description if description is None else description,
        )
        if status is None or status == pull.status:
            return new_pull
        if "merged" in (status, pull.status):
            raise InvalidRequest(
                f"Pull request {id} is {pull.status}, and cannot be made {status}: merge an open one, and make another "
                "one of what was merged.",
                kind="pull_merged",
            )
        closed_at_ms = context.now_ms() if status == "closed" else None
        return msgspec.structs.replace(new_pull, status=status, closed_at_ms=closed_at_ms)

    return _change(context, id, change)


def check_open(id: str, pull: PullRequest) -> None:
    """Raise `InvalidRequest` (``pull_closed``) unless the pull request is open."""
    if pull.status != "open":
        raise InvalidRequest(f"Pull request {id} is {pull.status}: only an open one can be merged.", kind="pull_closed")


def encode_merged(context: RepositoryContext, id: str, commit_id: str) -> tuple[bytes, bytes]:
    """The present record of an open pull request, and the record to publish with its merge.

    Raises:
        InvalidRequest: kind ``pull_closed``: it is no longer open.
        NotFound: kind ``pull_not_found``.
    Cost: 1 read.
    """
    raw, pull = _load(context, id)
    check_open(id, pull)
    merged_pull = msgspec.structs.replace(
        pull,
        status="merged",
        merged_commit_id=commit_id,
        closed_at_ms=context.now_ms(),
        change_count=pull.change_count + 1,
    )
    return raw, encode_record(merged_pull)


def _change(context: RepositoryContext, id: str, change: Callable[[PullRequest], PullRequest]) -> PullRequest:
    for _ in range(_TRIES_MAX):
        raw, pull = _load(context, id)
        new_pull = msgspec.structs.replace(change(pull), change_count=pull.change_count + 1)
        if replace_record(context.key_value, context.keys.pull(id), _encode(new_pull), expected=raw):
            return new_pull
    raise race_error("change", of=f"pull request {id}", kind="pull_moved", repository=context.name)


def _encode(pull: PullRequest) -> bytes:
    raw = encode_record(pull)
    if len(raw) > _TEXT_BYTES_MAX:
        raise InvalidRequest(
            f"The pull request has {len(raw):,} bytes, and {_TEXT_BYTES_MAX:,} are possible: shorten its description.",
            kind="oversized_text",
        )
    return raw
