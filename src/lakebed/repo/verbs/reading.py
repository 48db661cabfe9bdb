"""Verbs that read objects and references."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, ClassVar

from msgspec import Meta

from lakebed.errors import NotFound
from lakebed.repo.heads.blame import blame
from lakebed.repo.heads.heads import CommitWithId
from lakebed.repo.model.model import Entry
from lakebed.repo.model.names import check_branch_name
from lakebed.repo.objects import data
from lakebed.repo.records.context import RepositoryContext
from lakebed.repo.records.reflog import ReflogLine, reflog
from lakebed.repo.references.history import merge_base
from lakebed.repo.references.refs import resolve, resolve_commit
from lakebed.repo.staging.listing import Listed
from lakebed.repo.staging.view import at_reference, read_reference, rows_of_moment
from lakebed.repo.verbs.message import ListVerb, Milliseconds, Paths, RepositoryFacts, Verb, facts_of, look_first, verb


@verb("describe", role="read", effort="look", gives=RepositoryFacts)
class Describe(Verb[RepositoryFacts], frozen=True):
    """What a repository is."""

    def run(self, context: RepositoryContext) -> RepositoryFacts:
        return facts_of(context)


@verb("stat", role="read", effort="look", gives=Entry)
class Stat(Verb[Entry], frozen=True, kw_only=True):
    """What is known of an object."""

    ref: str
    path: str

    def run(self, context: RepositoryContext) -> Entry:
        entry = read_reference(context, self.ref, lambda view: view.get(self.path))
        if entry is None:
            raise NotFound(
                f"There is no {self.path!r} at {self.ref!r} of repository {context.name}.",
                kind="path_not_found",
                repository=context.name,
                reference=self.ref,
                path=self.path,
            )
        return entry


@verb("stat_many", role="read", effort="compute", gives=dict[str, Entry])
class StatMany(Verb[dict[str, Entry]], frozen=True, kw_only=True):
    """What is known of many objects, by path; paths without an object are left out."""

    is_large: ClassVar[bool] = True

    ref: str
    paths: Paths

    def run(self, context: RepositoryContext) -> dict[str, Entry]:
        entries = read_reference(context, self.ref, lambda view: view.get_many(self.paths))
        return {path: entry for path, entry in zip(self.paths, entries, strict=True) if entry is not None}


@verb("exists", role="read", effort="look", gives=bool)
class Exists(Verb[bool], frozen=True, kw_only=True):
    """Whether there is an object at a path."""

    ref: str
    path: str

    def run(self, context: RepositoryContext) -> bool:
        return read_reference(context, self.ref, lambda view: view.get(self.path)) is not None


@verb("list", role="read", effort="compute", gives=list[Listed])
class ListObjects(ListVerb[Listed], frozen=True, kw_only=True):
    """Objects below a prefix, in the order of their paths."""

    ref: str
    prefix: str = ""
    after: str = ""
    delimiter: str = ""

    def rows(self, context: RepositoryContext, *, amount: int | None) -> Iterator[Listed]:
        def rows() -> Iterator[Listed]:
            with at_reference(context, self.ref) as view:
                yield from view.list(self.prefix, after=self.after, delimiter=self.delimiter, amount=amount)

        return rows_of_moment(rows)


@verb("head", role="read", effort="look", gives=CommitWithId)
class Head(Verb[CommitWithId], frozen=True, kw_only=True):
    """The commit that a reference leads to."""

    ref: str

    def run(self, context: RepositoryContext) -> CommitWithId:
        reference = resolve(context, self.ref)
        return CommitWithId(reference.commit_id, reference.commit)


@verb("blame_many", role="read", effort="compute", gives=dict[str, CommitWithId])
class BlameMany(Verb[dict[str, CommitWithId]], frozen=True, kw_only=True):
    """The commits that made paths what they are."""

    is_large: ClassVar[bool] = True

    ref: str
    paths: Paths

    def run(self, context: RepositoryContext) -> dict[str, CommitWithId]:
        return blame(context, self.ref, paths=self.paths)


@verb("signed_url", role="read", effort="write", gives=str)
class SignedUrl(Verb[str], frozen=True, kw_only=True):
    """A URL of the storage for an object."""

    ref: str
    path: str
    expires_in_s: Annotated[int, Meta(ge=1, le=7 * 86_400)] = 3600

    def run(self, context: RepositoryContext) -> str:
        entry = Stat(ref=self.ref, path=self.path).run(context)
        return data.sign_get(context, entry, expires_in_s=self.expires_in_s)


@verb("merge_base", role="read", effort="compute", gives=str | None)
class CommonAncestor(Verb[str | None], frozen=True, kw_only=True):
    """The best common ancestor of two references."""

    left: str
    right: str

    def run(self, context: RepositoryContext) -> str | None:
        with context.key_value.snapshot() as snapshot:
            left, _ = resolve_commit(context, self.left, snapshot=snapshot)
            right, _ = resolve_commit(context, self.right, snapshot=snapshot)
            return merge_base(context, left, right, snapshot=snapshot)


@look_first
@verb("reflog", role="read", effort="compute", gives=list[ReflogLine])
class Reflog(Verb[list[ReflogLine]], frozen=True, kw_only=True):
    """Where a branch, or every branch, has been, oldest first.

    Raises:
        InvalidRequest: kind ``invalid_branch_name``.
    """

    branch: str | None = None
    since_ms: Milliseconds | None = None

    def run(self, context: RepositoryContext) -> list[ReflogLine]:
        if self.branch is not None:
            check_branch_name(self.branch)
        return list(reflog(context, branch=self.branch, since_ms=self.since_ms))
