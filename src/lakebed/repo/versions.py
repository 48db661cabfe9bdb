"""A repository as a store with versions: its commits, what pins them, forks, and going back.

Owns: what the `Versioned` contract means here. A version is a commit of the default branch (along first parents); a
pin is a tag, or a branch other than the default one, which holds the version it left the default branch at; a fork is a
branch; a restore is a new commit with an old one's contents. Does not know: what a collection does (`collect`).
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final

from lakebed.errors import InvalidRequest
from lakebed.key_value.port import KeyValueSnapshot
from lakebed.reclaim.model import Pin, Version
from lakebed.repo.branches import list_branches, load_branch
from lakebed.repo.commit import move_by_commits, new_commit
from lakebed.repo.commits import ancestors, merge_base
from lakebed.repo.context import RepositoryContext
from lakebed.repo.heads import Move, SealedBranch, check_clean
from lakebed.repo.model import Commit, Tag
from lakebed.repo.protection import check_committable
from lakebed.repo.refs import resolve_commit
from lakebed.repo.rows import prefix_range
from lakebed.repo.tags import create_tag, delete_tag, find_tag, list_tags

_DIGITS: Final = re.compile(r"[0-9]+")


def version_of(context: RepositoryContext, id: str, commit: Commit) -> Version:
    """A commit as a version."""
    return Version(
        store=context.name,
        id=id,
        created_ms=commit.created_at_ms,
        summary=commit.message,
        facts={
            "committer": commit.committer,
            "parents": list(commit.parents),
            "object_count": commit.metarange.entry_count,
            "object_bytes": commit.metarange.size_bytes,
        },
    )


def list_versions(context: RepositoryContext) -> Iterator[Version]:
    """Commits of the default branch along first parents, oldest first; without those whose objects were collected.

    Raises `Corruption`. Cost: 1 snapshot and 1 read of the key-value store a commit; all are held.
    """
    with context.key_value.snapshot() as snapshot:
        prefix = context.keys.expired()
        expired = {key[len(prefix) :].decode() for key, _ in snapshot.scan(*prefix_range(prefix))}
        head = load_branch(context, context.record.default_branch, snapshot=snapshot)[0].commit_id
        found = [(id, commit) for id, commit in ancestors(context, head, first_parent=True, snapshot=snapshot)]
    return (version_of(context, id, commit) for id, commit in reversed(found) if id not in expired)


def pin_version(
    context: RepositoryContext, name: str, *, version: str | None, lifetime_ms: int | None, owner: str = ""
) -> Pin:
    """Keep a version alive by a tag.

    Args:
        name: of the tag.
        version: a commit, or anything that leads to one; None: the head of the default branch.
        lifetime_ms: after that the pin is gone by itself; None: never.

    Raises:
        InvalidRequest: the name is all digits, which other stores of a lake take for a version, or it is invalid.
        NotFound: there is no such version.
        AlreadyExists: the name is taken.
    Cost: about 5 reads and 1 write of the key-value store.
    """
    if _DIGITS.fullmatch(name):
        raise InvalidRequest(
            f"The pin name {name!r} would be taken for a version's number: use a name with letters.",
            kind="invalid_tag_name",
        )
    commit_id, _ = resolve_commit(context, version or context.record.default_branch)
    return _tag_pin(context, name, create_tag(context, name, commit_id=commit_id, owner=owner, lifetime_ms=lifetime_ms))


def _tag_pin(context: RepositoryContext, name: str, tag: Tag) -> Pin:
    return Pin(context.name, "tag", name, tag.commit_id, tag.owner, tag.created_at_ms, tag.expires_at_ms)


def list_pins(context: RepositoryContext, *, snapshot: KeyValueSnapshot | None = None) -> list[Pin]:
    """Everything that keeps a version alive: tags, then branches other than the default one, each sorted by name.

    Raises `Corruption`. Cost: 2 scans, and of each branch the commits back to where it left the default branch.
    """
    if snapshot is None:
        with context.key_value.snapshot() as own:
            return list_pins(context, snapshot=own)
    pins = [_tag_pin(context, name, tag) for name, tag in list_tags(context, snapshot=snapshot)]
    main = load_branch(context, context.record.default_branch, snapshot=snapshot)[0].commit_id
    for name, branch in list_branches(context, hidden=True, snapshot=snapshot):
        if name != context.record.default_branch:
            left_at = merge_base(context, main, branch.commit_id, snapshot=snapshot) or branch.commit_id
            pins.append(Pin(context.name, "branch", name, left_at, "", branch.created_at_ms, None))
    return pins


def unpin(context: RepositoryContext, name: str) -> None:
    """Remove a tag.

    Raises:
        NotFound: kind ``tag_not_found``. InvalidRequest: kind ``pin_is_a_branch``: deleting a branch loses commits that
        only it has, so it must be explicit.
    Cost: 2 reads and 1 write of the key-value store.
    """
    if find_tag(context, name) is None and context.key_value.get(context.keys.branch(name)) is not None:
        raise InvalidRequest(
            f"What {name!r} pins is held by a branch: delete the branch (delete_branch) if nothing on it is needed.",
            kind="pin_is_a_branch",
            branch=name,
        )
    delete_tag(context, name)


def restore_version(context: RepositoryContext, version: str, *, committer: str | None = None) -> Version:
    """A new commit on the default branch with an older commit's contents; history is kept.

    Args:
        version: a commit, or anything that leads to one.

    Raises:
        NotFound: kind ``reference_not_found``.
        InvalidRequest: kind ``dirty_branch``, ``protected_branch``, ``commit_expired``.
        Rejected: kind ``hook_rejected``.
        Conflict: kind ``branch_moved``.
    Cost: 2 durable writes of the key-value store; no range is read or written.
    """
    name = context.record.default_branch
    check_committable(context, name)
    id, old = resolve_commit(context, version)

    def plan(sealed: SealedBranch) -> Move:
        check_clean(context, sealed, operation="restore")
        new = new_commit(
            context,
            parents=[(sealed.record.commit_id, sealed.head)],
            metarange=old.metarange,
            message=f"Restore {id}",
            metadata={"restored": id},
            committer=committer,
        )
        return Move(new.id, commits=[new], relies_on=[id])

    [new] = move_by_commits(context, name, operation="restore", plan=plan)
    return version_of(context, new.id, new.commit)
