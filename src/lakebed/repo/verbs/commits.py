"""Verbs that move a branch."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Final, cast

from msgspec import Meta

from lakebed.repo.commit import commit
from lakebed.repo.committed.merge import Strategy
from lakebed.repo.context import RepositoryContext
from lakebed.repo.heads import CommitWithId
from lakebed.repo.importing import Import, ImportSource, run_import, start_import
from lakebed.repo.merge import merge
from lakebed.repo.pick import cherry_pick, revert
from lakebed.repo.rebase import rebase
from lakebed.repo.reset import hard_reset
from lakebed.repo.verbs.message import PATHS_MAX, Milliseconds, Paths, Texts, Verb, verb

__all__ = ["VERBS"]


@verb("commit", role="write", effort="compute", gives=CommitWithId)
class Commit(Verb[CommitWithId], frozen=True, kw_only=True):
    """Commit what is staged, or a part of it."""

    branch: str
    message: str
    metadata: Texts | None = None
    committer: str | None = None
    paths: Paths | None = None
    prefixes: Paths | None = None
    allow_empty: bool = False
    created_at_ms: Milliseconds | None = None

    def run(self, context: RepositoryContext) -> CommitWithId:
        return commit(
            context,
            self.branch,
            message=self.message,
            metadata=self.metadata,
            committer=self.committer,
            created_at_ms=self.created_at_ms,
            allow_empty=self.allow_empty,
            paths=self.paths,
            prefixes=self.prefixes,
        )


@verb("merge", role="write", effort="compute", gives=CommitWithId)
class Merge(Verb[CommitWithId], frozen=True, kw_only=True):
    """Merge a reference into a branch."""

    branch: str
    source: str
    message: str | None = None
    metadata: Texts | None = None
    committer: str | None = None
    strategy: str | None = None
    squash: bool = False
    prefix: str = ""
    allow_empty: bool = False

    def run(self, context: RepositoryContext) -> CommitWithId:
        return merge(
            context,
            self.source,
            into=self.branch,
            message=self.message,
            metadata=self.metadata,
            committer=self.committer,
            strategy=as_strategy(self.strategy),
            squash=self.squash,
            prefix=self.prefix,
            allow_empty=self.allow_empty,
        )


def as_strategy(text: str | None) -> Strategy | None:
    """A strategy as it was sent; the functions refuse one that does not exist."""
    return cast(Strategy | None, text)


class _Pick(Verb[CommitWithId], frozen=True, kw_only=True):
    """One commit, to be undone or made again."""

    branch: str
    ref: str
    parent_number: int | None = None
    message: str | None = None
    metadata: Texts | None = None
    committer: str | None = None
    strategy: str | None = None
    allow_empty: bool = False

    def arguments(self) -> dict[str, Any]:
        """Of `revert` and `cherry_pick`."""
        return {name: getattr(self, name) for name in self.__struct_fields__ if name != "branch"}


@verb("revert", role="write", effort="compute", gives=CommitWithId)
class Revert(_Pick, frozen=True, kw_only=True):
    """Undo one commit's changes in a new commit."""

    def run(self, context: RepositoryContext) -> CommitWithId:
        return revert(context, self.branch, **self.arguments())


@verb("cherry_pick", role="write", effort="compute", gives=CommitWithId)
class CherryPick(_Pick, frozen=True, kw_only=True):
    """Make one commit's changes again in a new commit."""

    def run(self, context: RepositoryContext) -> CommitWithId:
        return cherry_pick(context, self.branch, **self.arguments())


@verb("rebase", role="write", effort="long", gives=CommitWithId)
class Rebase(Verb[CommitWithId], frozen=True, kw_only=True):
    """Make a branch's own commits again on top of another reference."""

    branch: str
    onto: str
    committer: str | None = None
    strategy: str | None = None

    def run(self, context: RepositoryContext) -> CommitWithId:
        return rebase(
            context, self.branch, onto=self.onto, committer=self.committer, strategy=as_strategy(self.strategy)
        )


@verb("hard_reset", role="write", effort="compute", gives=CommitWithId)
class HardReset(Verb[CommitWithId], frozen=True, kw_only=True):
    """Move a branch to another commit."""

    branch: str
    ref: str
    force: bool = False

    def run(self, context: RepositoryContext) -> CommitWithId:
        return hard_reset(context, self.branch, ref=self.ref, force=self.force)


@verb("import_objects", role="write", effort="long", gives=Import)
class ImportObjects(Verb[Import], frozen=True, kw_only=True):
    """Commit objects of another place without copying their bytes."""

    reads_other_places: ClassVar[bool] = True

    branch: str
    sources: Annotated[list[ImportSource], Meta(max_length=PATHS_MAX)]
    message: str
    metadata: Texts | None = None
    committer: str | None = None
    replace: bool = False

    def run(self, context: RepositoryContext, *, storage_options: Mapping[str, str] | None = None) -> Import:
        id = start_import(
            context,
            self.branch,
            sources=self.sources,
            message=self.message,
            metadata=self.metadata,
            committer=self.committer,
            replace=self.replace,
        )
        return run_import(context, id, storage_options=storage_options)


VERBS: Final[tuple[type[Verb[Any]], ...]] = (
    Commit,
    Merge,
    Revert,
    CherryPick,
    Rebase,
    HardReset,
    ImportObjects,
)
