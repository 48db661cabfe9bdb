"""Tags: fixed names of commits.

Owns: their records. Invariants: a tag never moves. A tag and a branch do not share a name. A commit whose objects were
collected gets no tag. A tag whose lifetime is over counts as deleted, though its record may still exist. Does not know:
what a commit holds.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from itertools import islice
from typing import Final

from lakebed.errors import AlreadyExists, Conflict, Corruption, InvalidRequest, NotFound
from lakebed.key_value.port import KeyValueSnapshot
from lakebed.repo.model.model import Tag
from lakebed.repo.model.names import check_tag_name, deletion_error
from lakebed.repo.records.context import RepositoryContext
from lakebed.repo.records.protection import check_not_read_only
from lakebed.repo.records.records import decode_record, encode_record, race_error, read_records
from lakebed.repo.records.superseded import supersede_tag
from lakebed.repo.references.commits import is_commit_id, load_commit
from lakebed.texts import did_you_mean

_COMPARED_MAX: Final = 1000
"""Most tags whose names are compared with an unknown name."""


def is_live(tag: Tag, now_ms: int) -> bool:
    """Whether the tag has not expired; a tag without a lifetime never expires."""
    return tag.expires_at_ms is None or now_ms < tag.expires_at_ms


def find_tag(context: RepositoryContext, name: str) -> Tag | None:
    """Load a tag; None: there is none, or its lifetime is over. Raises `Corruption`. Cost: 1 read."""
    key = context.keys.tag(name)
    raw = context.key_value.get(key)
    tag = None if raw is None else decode_record(raw, Tag, key=key)
    return tag if tag is not None and is_live(tag, context.now_ms()) else None


def load_tag(context: RepositoryContext, name: str) -> Tag:
    """Load a tag.

    Raises:
        NotFound: kind ``tag_not_found``.
        InvalidRequest: no tag can have that name.
    Cost: 1 read of the key-value store.
    """
    tag = find_tag(context, check_tag_name(name))
    if tag is None:
        raise _missing(context, name)
    return tag


def create_tag(
    context: RepositoryContext, name: str, *, commit_id: str, owner: str = "", lifetime_ms: int | None = None
) -> Tag:
    """Give a commit a name.

    Args:
        owner: the one for whom it is made; shown with pins.
        lifetime_ms: the tag expires after this time; None: never.

    Raises:
        AlreadyExists: kind ``tag_exists`` or ``branch_exists``: the name is taken.
        NotFound: kind ``commit_not_found``.
        InvalidRequest: kind ``invalid_tag_name``, ``invalid_lifetime``; ``commit_expired``: the commit's objects were
            collected.
        Conflict: kind ``tag_moved``: another process changed it at the same moment.
        OutcomeUnknown: look before you retry.
    Cost: 3 reads and 1 write of the key-value store; if it replaces an expired tag, also that of `earlier_ms`.
    """
    check_not_read_only(context)
    if is_commit_id(check_tag_name(name)):
        raise InvalidRequest(
            f"The tag {name!r} would look like a commit's id: choose another name.", kind="invalid_tag_name"
        )
    if lifetime_ms is not None and lifetime_ms <= 0:
        raise InvalidRequest(
            f"The lifetime of a tag is more than 0 ms, and {lifetime_ms} was asked for.", kind="invalid_lifetime"
        )
    load_commit(context, commit_id)
    now_ms = context.now_ms()
    tag = Tag(commit_id, now_ms, owner, None if lifetime_ms is None else now_ms + lifetime_ms)
    key = context.keys.tag(name)
    before = context.key_value.get(key)
    if before is not None:
        existing = decode_record(before, Tag, key=key)
        if is_live(existing, now_ms) or is_live(
            existing, context.earlier_ms()
        ):  # it must be over by the store's clock, too
            raise name_taken(context, name, "tag")
    if context.key_value.get(context.keys.branch(name)) is not None:
        raise name_taken(context, name, "branch")
    expected = {key: before, context.keys.branch(name): None, context.keys.expired(commit_id): None}
    try:
        context.key_value.write([(key, encode_record(tag))], expected={**expected, context.keys.deleted: None})
    except Conflict:
        refuse_deleted(context)
        refuse_expired(context, commit_id)
        if find_tag(context, name) is not None:
            raise name_taken(context, name, "tag") from None
        if context.key_value.get(context.keys.branch(name)) is not None:
            raise name_taken(context, name, "branch") from None
        raise _moved(context, name, "creation") from None
    return tag


def _moved(context: RepositoryContext, name: str, operation: str) -> Conflict:
    of = f"the tag {name!r} of repository {context.name}"
    return race_error(operation, of=of, kind="tag_moved", repository=context.name, tag=name)


def delete_tag(context: RepositoryContext, name: str, *, commit_id: str | None = None) -> Tag:
    """Delete a tag, and return it. What only this tag kept may be collected later.

    Args:
        commit_id: the commit that it must name; None: any.

    Raises:
        NotFound: kind ``tag_not_found``.
        Conflict: kind ``tag_moved``: it names another commit.
        InvalidRequest: no tag can have that name, or the repository is read-only.
        OutcomeUnknown: look before you retry.
    Cost: 1 read and 1 write of the key-value store.
    """
    check_not_read_only(context)
    key = context.keys.tag(check_tag_name(name))
    raw = context.key_value.get(key)
    tag = None if raw is None else decode_record(raw, Tag, key=key)
    if tag is None or not is_live(tag, context.now_ms()):
        raise _missing(context, name)
    if commit_id is not None and tag.commit_id != commit_id:
        raise _moved(context, name, "deletion")
    try:
        context.key_value.write([supersede_tag(context, name, tag)], [key], expected={key: raw})
    except Conflict:
        raise _missing(context, name) from None  # another process deleted it first
    return tag


def list_tags(
    context: RepositoryContext,
    *,
    prefix: str = "",
    after: str | None = None,
    snapshot: KeyValueSnapshot | None = None,
) -> Iterator[tuple[str, Tag]]:
    """Iterate over names and live tags, in the order of names, lazily.

    Args:
        after: only names greater than this.

    Raises:
        Corruption: a record is damaged.
    Cost: 1 scan.
    """
    if snapshot is None:
        with context.key_value.snapshot() as new_snapshot:
            yield from list_tags(context, prefix=prefix, after=after, snapshot=new_snapshot)
        return
    now_ms = context.now_ms()
    for name, tag in read_records(snapshot, context.keys.tag(), Tag, begins_with=prefix, after=after):
        if is_live(tag, now_ms):
            yield name, tag


def refuse_deleted(context: RepositoryContext) -> None:
    """Raise `NotFound` (``repository_not_found``) if the repository was deleted. Cost: 1 read."""
    if context.key_value.get(context.keys.deleted) is not None:
        raise deletion_error(context.name)


def refuse_expired(context: RepositoryContext, commit_id: str) -> None:
    """Raise `InvalidRequest` (``commit_expired``) if a commit's objects may be gone. Cost: 1 read."""
    if context.key_value.get(context.keys.expired(commit_id)) is not None:
        raise InvalidRequest(
            f"Commit {commit_id} of repository {context.name} was expired by the rules of retention, and its objects "
            "may be gone: nothing new can refer to it. Choose a younger commit.",
            kind="commit_expired",
            commit=commit_id,
        )


@contextmanager
def reading_commits(context: RepositoryContext, *commit_ids: str) -> Iterator[None]:
    """Raise the error of `refuse_expired` if a file of these commits is missing because one of them has expired.

    A collection deletes the ranges of an unreachable commit before its record. So while it runs, or if it ended early,
    a commit can be found but not read. Cost: none without an error.
    """
    try:
        yield
    except Corruption:
        for commit_id in commit_ids:
            refuse_expired(context, commit_id)
        raise


def name_taken(context: RepositoryContext, name: str, what: str) -> AlreadyExists:
    """The error for a name that is taken; `what` is ``branch`` or ``tag``."""
    return AlreadyExists(
        f"Repository {context.name} has a {what} {name!r} already: choose another name, or delete that one first.",
        kind=f"{what}_exists",
        repository=context.name,
        name=name,
    )


def _missing(context: RepositoryContext, name: str) -> NotFound:
    return missing_tag(context.name, name, names=(tag for tag, _ in list_tags(context)))


def missing_tag(repository: str, name: str, *, names: Iterable[str]) -> NotFound:
    """The error for a tag that a repository does not have, with the nearest of its `names`."""
    hint = did_you_mean(name, islice(names, _COMPARED_MAX))
    return NotFound(f"Repository {repository} has no tag {name!r}.{hint}", kind="tag_not_found", tag=name)
