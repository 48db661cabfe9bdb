"""Create, list, delete and undelete branches.

Owns: how a branch's record begins and ends. In between, `lakebed.repo.heads.heads` moves its head, and staging changes
its tokens. Invariants:

- A branch's record, the line of the reference log and the marks of dropped tokens are written in one write, which
  compares the whole record. So a seal or a commit that races with a deletion is either seen by it or fails, and no
  token is forgotten.
- A new branch has a token that was never used before.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Final

import msgspec

from lakebed.errors import Conflict, InvalidRequest, NotFound
from lakebed.key_value.port import KeyValueSnapshot
from lakebed.repo.model.model import Branch
from lakebed.repo.model.names import check_branch_name, parse_reference
from lakebed.repo.model.options import DAY_MS
from lakebed.repo.model.rows import prefix_range
from lakebed.repo.records.context import RepositoryContext
from lakebed.repo.records.protection import check_deletable, check_not_read_only
from lakebed.repo.records.records import decode_record, encode_record, new_token, race_error, read_records, write_unique
from lakebed.repo.records.reflog import reflog, reflog_line
from lakebed.repo.records.superseded import supersede_compaction
from lakebed.repo.references.commits import is_commit_id, load_commit
from lakebed.repo.references.refs import no_such_branch, resolve
from lakebed.repo.references.tags import find_tag, name_taken, refuse_deleted, refuse_expired


def find_branch(
    context: RepositoryContext, name: str, *, snapshot: KeyValueSnapshot | None = None
) -> tuple[Branch, bytes] | None:
    """Load a branch's record and its bytes; None: no such branch. Raises `Corruption`. Cost: 1 linearizable read."""
    key = context.keys.branch(name)
    raw = (context.key_value if snapshot is None else snapshot).get(key)
    return None if raw is None else (decode_record(raw, Branch, key=key), raw)


def load_branch(
    context: RepositoryContext, name: str, *, snapshot: KeyValueSnapshot | None = None
) -> tuple[Branch, bytes]:
    """Load a branch's record, and its bytes, which a conditional write compares.

    Raises:
        NotFound: kind ``branch_not_found``.
        InvalidRequest: kind ``invalid_branch_name``.
        Corruption: the record is damaged.
    Cost: 1 linearizable read of the key-value store, none with a snapshot.
    """
    record = find_branch(context, check_branch_name(name), snapshot=snapshot)
    if record is None:
        if snapshot is not None:
            raise no_such_branch(context, name, snapshot=snapshot)
        with context.key_value.snapshot() as new_snapshot:
            raise no_such_branch(context, name, snapshot=new_snapshot)
    return record


def peek_branch(context: RepositoryContext, name: str) -> tuple[Branch, bytes]:
    """As `load_branch`, but the record may be stale: a conditional write must prove it later.

    An answer that there is no such branch is never stale. Cost: 1 peek; without a peeked record that of `load_branch`.
    """
    key = context.keys.branch(check_branch_name(name))
    raw = context.key_value.peek(key)
    return load_branch(context, name) if raw is None else (decode_record(raw, Branch, key=key), raw)


def is_bare(context: RepositoryContext, *, snapshot: KeyValueSnapshot) -> bool:
    """Whether a repository has neither a branch nor a tag, so that a dump can be restored into it. Cost: 2 seeks."""
    prefixes = (context.keys.branch(), context.keys.tag())
    return all(next(iter(snapshot.scan(*prefix_range(prefix))), None) is None for prefix in prefixes)


def load_default(context: RepositoryContext, *, snapshot: KeyValueSnapshot) -> Branch | None:
    """Load the default branch; None: the repository is bare. Raises as `load_branch`. Cost: 1 read."""
    name = context.record.default_branch
    default = find_branch(context, name, snapshot=snapshot)
    if default is None and not is_bare(context, snapshot=snapshot):
        raise no_such_branch(context, name, snapshot=snapshot)
    return None if default is None else default[0]


def branch_moved(context: RepositoryContext, branch: str, operation: str) -> Conflict:
    """The error for an operation that lost every race for a branch's record."""
    of = f"branch {branch} of repository {context.name}"
    return race_error(operation, of=of, kind="branch_moved", repository=context.name, branch=branch)


def create_branch(
    context: RepositoryContext, name: str, *, source: str, hidden: bool = False, committer: str = ""
) -> Branch:
    """Create a branch whose head is the commit that a reference resolves to.

    Changes that are staged on a source branch are not included: the new branch begins with the commit.

    Args:
        source: a reference; ``branch$`` is refused because staged changes have no commit.
        hidden: not listed by default; for branches of a transaction.
        committer: the name for the reference log.

    Raises:
        AlreadyExists: kind ``branch_exists`` or ``tag_exists``: the name is taken.
        NotFound: kind ``reference_not_found``: of `source`.
        InvalidRequest: kind ``invalid_branch_name``, ``invalid_source``, ``read_only_repository``; ``commit_expired``:
            the objects of the source were collected.
        OutcomeUnknown: look before you retry.
    Cost: about 5 reads and 1 write of the key-value store.
    """
    check_not_read_only(context)
    if is_commit_id(check_branch_name(name)):
        raise InvalidRequest(
            f"The branch {name!r} would look like a commit's id: choose another name.", kind="invalid_branch_name"
        )
    if parse_reference(source).mode == "$":
        raise InvalidRequest(
            f"A branch cannot begin with what is staged, as {source!r} asks: commit it first, or leave out the $.",
            kind="invalid_source",
            reference=source,
        )
    commit_id = resolve(context, source).commit_id
    return _create(context, name, commit_id=commit_id, hidden=hidden, what="create", committer=committer)


def _create(
    context: RepositoryContext, name: str, *, commit_id: str, hidden: bool, what: str, committer: str
) -> Branch:
    """Write record and line in one write, if no branch or tag has the name and the commit has not expired."""
    branch = Branch(commit_id, new_token(context.environment), hidden=hidden, created_at_ms=context.now_ms())
    key = context.keys.branch(name)
    line = reflog_line(context, name, before=None, after=commit_id, what=what, committer=committer)
    tag_key = context.keys.tag(name)
    _refuse_taken(context, name)
    expired_tag = context.key_value.get(tag_key)  # a live tag was refused above
    try:
        write_unique(
            context.key_value,
            [line, (key, encode_record(branch))],
            expected={
                key: None,
                tag_key: expired_tag,
                context.keys.expired(commit_id): None,
                context.keys.deleted: None,
            },
        )
    except Conflict:
        refuse_deleted(context)
        refuse_expired(context, commit_id)
        _refuse_taken(context, name)
        raise branch_moved(context, name, "creation") from None
    return branch


def _refuse_taken(context: RepositoryContext, name: str) -> None:
    is_branch = find_branch(context, name) is not None
    if is_branch or find_tag(context, name) is not None:
        raise name_taken(context, name, "branch" if is_branch else "tag")


def delete_branch(context: RepositoryContext, name: str, *, committer: str = "", head: str | None = None) -> Branch:
    """Delete a branch and its staged changes. `undelete_branch` can bring it back with its head.

    Args:
        head: the commit that must be its head; None: any.

    Raises:
        NotFound: kind ``branch_not_found``.
        InvalidRequest: kind ``default_branch``, ``protected_branch``, ``read_only_repository``.
        Conflict: kind ``branch_moved``: it has another head, or it changed during each of
            `RepositoryOptions.publish_tries_max` tries.
        OutcomeUnknown: look before you retry.
    Cost: 3 reads and 1 write of the key-value store. The background removes the staged rows later.
    """
    load_branch(context, name)
    check_not_default(name, default=context.record.default_branch, repository=context.name)
    check_deletable(context, name)
    tries = 0
    while True:
        tries += 1
        branch, raw = load_branch(context, name)
        _check_head(context, name, branch, head)
        key = context.keys.branch(name)
        try:
            write_unique(context.key_value, _traces(context, name, branch, committer), [key], expected={key: raw})
        except Conflict:
            if tries == context.options.publish_tries_max:
                raise branch_moved(context, name, "deletion") from None
        else:
            return branch


def _check_head(context: RepositoryContext, name: str, branch: Branch, head: str | None) -> None:
    if head is not None and branch.commit_id != head:
        raise branch_moved(context, name, "deletion")


CLOSED_MS: Final = 10_000
"""How long a branch may stay closed, by the clock of a writer: the process that closed it may have died."""


def delete_empty_branch(
    context: RepositoryContext,
    name: str,
    is_empty: Callable[[], bool],
    *,
    committer: str = "",
    head: str | None = None,
) -> bool:
    """Delete a branch if it is empty, without losing a write that is acknowledged meanwhile.

    The branch is closed first: no row is staged on it until this function returns. If the process dies, the branch
    stays closed for `CLOSED_MS`. Then the next writer opens it again, and a deletion that continues later is refused.

    Args:
        is_empty: called once the branch is closed.
        head: as in `delete_branch`.

    Returns whether it was empty, and so was deleted. Raises as `delete_branch`. Cost: as `delete_branch`, and 1 write.
    """
    check_not_default(name, default=context.record.default_branch, repository=context.name)
    check_deletable(context, name)
    branch, raw = load_branch(context, name)
    _check_head(context, name, branch, head)
    key = context.keys.branch(name)
    closed_record = encode_record(msgspec.structs.replace(branch, closed_at_ms=context.now_ms()))
    try:
        write_unique(context.key_value, [(key, closed_record)], expected={key: raw})
    except Conflict:
        raise branch_moved(context, name, "deletion") from None
    empty = False
    try:
        empty = is_empty()
    finally:
        if not empty:
            reopen_branch(context, name, closed_record)
    if empty:
        try:
            write_unique(
                context.key_value, _traces(context, name, branch, committer), [key], expected={key: closed_record}
            )
        except Conflict:
            raise branch_moved(context, name, "deletion") from None
    return empty


def reopen_branch(context: RepositoryContext, name: str, closed: bytes) -> None:
    """Let rows be staged on a closed branch again; a no-op if its record has changed since.

    Args:
        closed: the bytes of the closed record.
    """
    key = context.keys.branch(name)
    record = msgspec.structs.replace(decode_record(closed, Branch, key=key), closed_at_ms=None)
    with suppress(Conflict):
        context.key_value.write([(key, encode_record(record))], expected={key: closed})


def _traces(context: RepositoryContext, name: str, branch: Branch, committer: str) -> list[tuple[bytes, bytes]]:
    """The rows that a deletion leaves: its line, and marks of the dropped tokens and of the compacted state."""
    dropped_at = str(context.now_ms()).encode()
    puts = [reflog_line(context, name, before=branch.commit_id, after=None, what="delete", committer=committer)]
    puts += [(context.keys.cleanup(token.id), dropped_at) for token in (branch.staging, *branch.sealed)]
    puts += supersede_compaction(context, branch.compacted, after=None, branch=name, what="delete")
    return puts


def check_not_default(name: str, *, default: str, repository: str) -> None:
    """Raise `InvalidRequest` (``default_branch``) for the deletion of the default branch."""
    if name == default:
        raise InvalidRequest(
            f"{name} is the default branch of repository {repository} and cannot be deleted.",
            kind="default_branch",
            branch=name,
        )


def undelete_branch(context: RepositoryContext, name: str, *, committer: str = "") -> Branch:
    """Bring a deleted branch back with the head that it had. Its staged changes are lost.

    Raises:
        NotFound: kind ``branch_not_deleted``: no branch of that name was deleted in the last
            `RepositoryOptions.undelete_days`.
        AlreadyExists: kind ``branch_exists`` or ``tag_exists``: the name is taken again.
        InvalidRequest: kind ``invalid_branch_name``, ``read_only_repository``, ``commit_expired``.
        OutcomeUnknown: look before you retry.
    Cost: 1 scan, 3 reads and 1 write of the key-value store.
    """
    check_not_read_only(context)
    _refuse_taken(context, check_branch_name(name))
    days = context.options.undelete_days
    lines = list(reflog(context, branch=name, since_ms=context.now_ms() - days * DAY_MS))
    head = next((line.before for line in reversed(lines) if line.after is None and line.before is not None), None)
    if head is None:
        raise NotFound(
            f"No branch {name!r} of repository {context.name} was deleted in the last {days} days. Its commits may "
            "still be there: make a branch from one of them.",
            kind="branch_not_deleted",
            branch=name,
        )
    load_commit(context, head)
    return _create(context, name, commit_id=head, hidden=False, what="undelete", committer=committer)


def list_branches(
    context: RepositoryContext,
    *,
    prefix: str = "",
    after: str | None = None,
    hidden: bool = False,
    snapshot: KeyValueSnapshot | None = None,
) -> Iterator[tuple[str, Branch]]:
    """Iterate over names and records of branches, in the order of names, lazily.

    Args:
        after: only names greater than this.

    Raises:
        Corruption: a record is damaged.
    Cost: 1 scan.
    """
    if snapshot is None:
        with context.key_value.snapshot() as new_snapshot:
            yield from list_branches(context, prefix=prefix, after=after, hidden=hidden, snapshot=new_snapshot)
        return
    for name, branch in read_records(snapshot, context.keys.branch(), Branch, begins_with=prefix, after=after):
        if hidden or not branch.hidden:
            yield name, branch
