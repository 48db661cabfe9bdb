"""A repository as a store with versions: the verbs of the `Versioned` contract, and those of collections.

A version is a commit of the default branch (along first parents). A pin is a tag, or a branch other than the default
one: it pins the version at which it left the default branch. Branching off a version is creating a branch. A restore is
a new commit with the contents of an old one.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from datetime import timedelta
from typing import Annotated, Any, Final

from msgspec import Meta

from lakebed.errors import InvalidRequest
from lakebed.reclaim.model import CollectionPlan, CollectionReport, Explanation, Pin, Version
from lakebed.repo.collect.collect import collect_garbage, plan_collection
from lakebed.repo.collect.why import why, why_version
from lakebed.repo.heads.actions import create_tag, delete_tag
from lakebed.repo.heads.commit import move_by_commits, new_commit
from lakebed.repo.heads.heads import Move, SealedBranch, check_clean
from lakebed.repo.model.model import Commit, Tag
from lakebed.repo.model.names import check_tag_name
from lakebed.repo.model.options import CollectionOptions
from lakebed.repo.model.rows import prefix_range
from lakebed.repo.records.context import RepositoryContext
from lakebed.repo.records.protection import check_committable
from lakebed.repo.references.branches import list_branches, load_default
from lakebed.repo.references.commits import Walk
from lakebed.repo.references.history import merge_base
from lakebed.repo.references.refs import resolve_commit
from lakebed.repo.references.tags import find_tag, list_tags
from lakebed.repo.verbs.message import Milliseconds, Verb, look_first, verb

_DIGITS: Final = re.compile(r"[0-9]+")

Seconds = Annotated[float, Meta(ge=-(1 << 40), le=1 << 40)]


@verb("versions", role="read", effort="compute", gives=list[Version])
class Versions(Verb[list[Version]], frozen=True):
    """Commits of the default branch along first parents, oldest first; without those whose objects were collected.

    A bare repository has none.

    Raises `Corruption`. Cost: 1 snapshot and 1 read of the key-value store a commit; all are held.
    """

    def run(self, context: RepositoryContext) -> list[Version]:
        with context.key_value.snapshot() as snapshot:
            prefix = context.keys.expired()
            expired = {key[len(prefix) :].decode() for key, _ in snapshot.scan(*prefix_range(prefix))}
            main = load_default(context, snapshot=snapshot)
            commits = (
                [] if main is None else list(Walk(context, [main.commit_id], first_parent=True, snapshot=snapshot))
            )
        return [_version_of(context, id, commit) for id, commit in reversed(commits) if id not in expired]


@verb("pin", role="write", effort="compute", gives=Pin, changes=("name", "version"))
class PinVersion(Verb[Pin], frozen=True, kw_only=True):
    """Keep a version alive by a tag.

    Args:
        version: a commit, or anything that leads to one; None: the head of the default branch.
        lifetime_ms: after that the pin is gone by itself; None: never.

    Raises:
        InvalidRequest: the name is all digits, which other stores of a lake take for a version, or it is invalid.
        NotFound: there is no such version.
        AlreadyExists: the name is taken.
    Cost: about 5 reads and 1 write of the key-value store.
    """

    name: str
    version: str | None = None
    lifetime_ms: Milliseconds | None = None

    def run(self, context: RepositoryContext) -> Pin:
        if _DIGITS.fullmatch(self.name):
            raise InvalidRequest(
                f"The pin name {self.name!r} would be taken for a version's number: use a name with letters.",
                kind="invalid_tag_name",
            )
        commit_id, _ = resolve_commit(context, self.version or context.record.default_branch)
        return _tag_pin(
            context, self.name, create_tag(context, self.name, commit_id=commit_id, lifetime_ms=self.lifetime_ms)
        )


@verb("pins", role="read", effort="compute", gives=list[Pin])
class Pins(Verb[list[Pin]], frozen=True):
    """What keeps versions alive: tags, then branches other than the default one, each sorted by name.

    Raises `Corruption`. Cost: 2 scans, and of each branch the commits back to where it left the default branch.
    """

    def run(self, context: RepositoryContext) -> list[Pin]:
        with context.key_value.snapshot() as snapshot:
            pins = [_tag_pin(context, name, tag) for name, tag in list_tags(context, snapshot=snapshot)]
            main = load_default(context, snapshot=snapshot)
            if main is None:
                return []
            for name, branch in list_branches(context, hidden=True, snapshot=snapshot):
                if name != context.record.default_branch:
                    head = branch.commit_id
                    left_at = merge_base(context, main.commit_id, head, snapshot=snapshot) or head
                    pins.append(Pin(context.name, "branch", name, left_at, "", branch.created_at_ms, None))
        return pins


@look_first
@verb("unpin", role="write", effort="compute", gives=None, changes=("name",), frees_space=True)
class Unpin(Verb[None], frozen=True, kw_only=True):
    """Remove a pin that is a tag.

    Raises:
        NotFound: kind ``tag_not_found``.
        InvalidRequest: kind ``pin_is_a_branch``: deleting a branch loses commits that only it has, so it must be
            explicit.
    Cost: 2 reads and 1 write of the key-value store.
    """

    name: str

    def run(self, context: RepositoryContext) -> None:
        name = check_tag_name(self.name)  # branches have the same rules for names
        if find_tag(context, name) is None and context.key_value.get(context.keys.branch(name)) is not None:
            raise InvalidRequest(
                f"{name!r} is a branch and no tag: delete the branch (delete_branch) if nothing on it is needed.",
                kind="pin_is_a_branch",
                branch=name,
            )
        delete_tag(context, name)


@verb("restore", role="write", effort="compute", gives=Version, changes=("version",), author="committer")
class Restore(Verb[Version], frozen=True, kw_only=True):
    """Make an older version the newest, in a new commit of the default branch; history is kept.

    Args:
        version: a commit, or anything that leads to one.

    Raises:
        NotFound: kind ``reference_not_found``.
        InvalidRequest: kind ``dirty_branch``, ``protected_branch``, ``commit_expired``.
        Rejected: kind ``hook_rejected``.
        Conflict: kind ``branch_moved``.
    Cost: 2 durable writes of the key-value store; no range is read or written.
    """

    version: str
    committer: str | None = None

    def run(self, context: RepositoryContext) -> Version:
        name = context.record.default_branch
        check_committable(context, name)
        id, old_commit = resolve_commit(context, self.version)

        def plan(sealed: SealedBranch) -> Move:
            check_clean(context, sealed, operation="restore")
            new = new_commit(
                context,
                parents=[(sealed.record.commit_id, sealed.head)],
                metarange=old_commit.metarange,
                message=f"Restore {id}",
                metadata={"restored": id},
                committer=self.committer,
            )
            return Move(new.id, commits=[new], relies_on=[id])

        [new] = move_by_commits(context, name, operation="restore", plan=plan)
        return _version_of(context, new.id, new.commit)


@look_first
@verb("why", role="read", effort="long", gives=Explanation)
class Why(Verb[Explanation], frozen=True, kw_only=True):
    """Who needs an object of the storage, or when it may go."""

    path: str

    def run(self, context: RepositoryContext) -> Explanation:
        return why(context, self.path)


@look_first
@verb("why_version", role="read", effort="long", gives=Explanation)
class WhyVersion(Verb[Explanation], frozen=True, kw_only=True):
    """Who keeps the objects of a version, and until when."""

    version: str

    def run(self, context: RepositoryContext) -> Explanation:
        return why_version(context, self.version)


@look_first
@verb("plan_collection", role="admin", effort="long", gives=CollectionPlan, changes_nothing=True)
class PlanCollection(Verb[CollectionPlan], frozen=True, kw_only=True):
    """What a collection would delete now."""

    grace_s: Seconds | None = None
    """None: the default, a day."""

    def run(self, context: RepositoryContext) -> CollectionPlan:
        return plan_collection(context, options=_options(self.grace_s))


@look_first
@verb("collect", role="admin", effort="long", gives=CollectionReport, frees_space=True)
class Collect(Verb[CollectionReport], frozen=True, kw_only=True):
    """Delete what nothing needs."""

    grace_s: Seconds | None = None
    """None: the default, a day."""
    dry_run: bool = False

    def run(self, context: RepositoryContext, *, progress: Callable[[Any], None] | None = None) -> CollectionReport:
        return collect_garbage(context, options=_options(self.grace_s), dry_run=self.dry_run, progress=progress)


def _options(grace_s: float | None) -> CollectionOptions | None:
    return None if grace_s is None else CollectionOptions(grace=timedelta(seconds=grace_s))


def _version_of(context: RepositoryContext, id: str, commit: Commit) -> Version:
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


def _tag_pin(context: RepositoryContext, name: str, tag: Tag) -> Pin:
    return Pin(context.name, "tag", name, tag.commit_id, tag.owner, tag.created_at_ms, tag.expires_at_ms)
