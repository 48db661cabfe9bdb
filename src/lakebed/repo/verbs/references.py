"""Verbs on branches and tags."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from typing import NamedTuple

from lakebed.repo.heads.actions import create_branch, create_tag, delete_branch, delete_tag, undelete_branch
from lakebed.repo.model.model import Tag
from lakebed.repo.model.names import check_amount
from lakebed.repo.records.context import RepositoryContext
from lakebed.repo.references.branches import list_branches
from lakebed.repo.references.refs import resolve_commit
from lakebed.repo.references.tags import list_tags
from lakebed.repo.verbs.message import ListVerb, Milliseconds, Verb, look_first, verb


class NamedCommit(NamedTuple):
    """A branch or a tag, with its commit."""

    name: str
    commit_id: str


def _first(rows: Iterator[NamedCommit], amount: int | None) -> Iterator[NamedCommit]:
    return rows if amount is None else islice(rows, check_amount(max(0, amount)))


@look_first
@verb("branches", role="read", effort="compute", gives=list[NamedCommit])
class Branches(ListVerb[NamedCommit], frozen=True, kw_only=True):
    """Branches, in the order of their names."""

    prefix: str = ""
    after: str | None = None
    hidden: bool = False

    def rows(self, context: RepositoryContext, *, amount: int | None) -> Iterator[NamedCommit]:
        branches = list_branches(context, prefix=self.prefix, after=self.after, hidden=self.hidden)
        return _first((NamedCommit(name, record.commit_id) for name, record in branches), amount)


@verb("create_branch", role="write", effort="compute", gives=None, changes=("name",), author="committer")
class CreateBranch(Verb[None], frozen=True, kw_only=True):
    """Make a branch at the commit of a reference, by default of the default branch."""

    name: str
    source: str | None = None
    hidden: bool = False
    committer: str = ""

    def run(self, context: RepositoryContext) -> None:
        source = context.record.default_branch if self.source is None else self.source
        create_branch(context, self.name, source=source, hidden=self.hidden, committer=self.committer)


@verb(
    "delete_branch", role="write", effort="compute", gives=None, changes=("name",), author="committer", frees_space=True
)
class DeleteBranch(Verb[None], frozen=True, kw_only=True):
    """Delete a branch, with what is staged on it."""

    name: str
    committer: str = ""

    def run(self, context: RepositoryContext) -> None:
        delete_branch(context, self.name, committer=self.committer)


@look_first
@verb("undelete_branch", role="write", effort="compute", gives=None, changes=("name",), author="committer")
class UndeleteBranch(Verb[None], frozen=True, kw_only=True):
    """Bring a deleted branch back at the commit it had."""

    name: str
    committer: str = ""

    def run(self, context: RepositoryContext) -> None:
        undelete_branch(context, self.name, committer=self.committer)


@look_first
@verb("tags", role="read", effort="compute", gives=list[NamedCommit])
class Tags(ListVerb[NamedCommit], frozen=True, kw_only=True):
    """Tags, in the order of their names."""

    prefix: str = ""
    after: str | None = None

    def rows(self, context: RepositoryContext, *, amount: int | None) -> Iterator[NamedCommit]:
        tags = list_tags(context, prefix=self.prefix, after=self.after)
        return _first((NamedCommit(name, tag.commit_id) for name, tag in tags), amount)


@verb("create_tag", role="write", effort="compute", gives=Tag, changes=("name",), author="owner")
class CreateTag(Verb[Tag], frozen=True, kw_only=True):
    """Name the commit of a reference, by default of the default branch."""

    name: str
    ref: str | None = None
    owner: str = ""
    lifetime_ms: Milliseconds | None = None

    def run(self, context: RepositoryContext) -> Tag:
        commit_id, _ = resolve_commit(context, context.record.default_branch if self.ref is None else self.ref)
        return create_tag(context, self.name, commit_id=commit_id, owner=self.owner, lifetime_ms=self.lifetime_ms)


@look_first
@verb("delete_tag", role="write", effort="compute", gives=None, changes=("name",), frees_space=True)
class DeleteTag(Verb[None], frozen=True, kw_only=True):
    """Remove a tag."""

    name: str

    def run(self, context: RepositoryContext) -> None:
        delete_tag(context, self.name)
