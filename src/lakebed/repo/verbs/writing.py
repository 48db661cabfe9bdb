"""Verbs that change the staging area of a branch."""

from __future__ import annotations

from typing import ClassVar

from lakebed.repo.heads import write
from lakebed.repo.heads.compact import Compaction, compact_once
from lakebed.repo.model.model import Entry
from lakebed.repo.model.names import check_path
from lakebed.repo.objects import data
from lakebed.repo.records.context import RepositoryContext
from lakebed.repo.records.protection import check_writable
from lakebed.repo.references.branches import peek_branch
from lakebed.repo.verbs.message import Paths, Texts, Verb, verb
from lakebed.repo.verbs.reading import Stat


@verb("link", role="write", effort="write", gives=Entry, changes=("branch",))
class Link(Verb[Entry], frozen=True, kw_only=True):
    """Stage an object whose bytes are somewhere already."""

    branch: str
    path: str
    url: str
    checksum: str | None = None
    content_type: str
    metadata: Texts | None = None
    only_if_absent: bool = False

    def run(self, context: RepositoryContext) -> Entry:
        check_path(self.path, writing=True)
        entry = data.link_object(
            context, self.url, checksum=self.checksum, content_type=self.content_type, metadata=self.metadata
        )
        stage = write.stage_if_absent if self.only_if_absent else write.stage
        stage(context, branch=self.branch, path=self.path, entry=entry)
        return entry


@verb("delete", role="write", effort="write", gives=bool, changes=("branch",))
class Delete(Verb[bool], frozen=True, kw_only=True):
    """Delete an object; whether there was one."""

    branch: str
    path: str

    def run(self, context: RepositoryContext) -> bool:
        return write.delete(context, branch=self.branch, path=self.path)


@verb("delete_many", role="write", effort="write", gives=int, changes=("branch",))
class DeleteMany(Verb[int], frozen=True, kw_only=True):
    """Delete objects in one atomic change; how many there were."""

    is_large: ClassVar[bool] = True

    branch: str
    paths: Paths
    addresses: Paths | None = None

    def run(self, context: RepositoryContext) -> int:
        return write.delete_many(context, branch=self.branch, paths=self.paths, addresses=self.addresses)


@verb("delete_prefix", role="write", effort="write", gives=bool, changes=("branch",))
class DeletePrefix(Verb[bool], frozen=True, kw_only=True):
    """Delete what is below a prefix; whether anything was."""

    branch: str
    prefix: str

    def run(self, context: RepositoryContext) -> bool:
        return write.delete_prefix(context, branch=self.branch, prefix=self.prefix)


@verb("copy", role="write", effort="long", gives=Entry, changes=("branch",))
class Copy(Verb[Entry], frozen=True, kw_only=True):
    """Copy an object, its bytes included."""

    branch: str
    source: str
    path: str
    ref: str | None = None

    def run(self, context: RepositoryContext) -> Entry:
        check_path(self.path, writing=True)
        check_writable(context, self.branch)
        peek_branch(context, self.branch)
        source = Stat(ref=self.branch if self.ref is None else self.ref, path=self.source)
        entry = data.read_found(lambda: source.run(context), lambda entry: data.copy(context, entry))
        write.stage(context, branch=self.branch, path=self.path, entry=entry)
        return entry


@verb("compact", role="write", effort="long", gives=Compaction, changes=("branch",))
class Compact(Verb[Compaction], frozen=True, kw_only=True):
    """Turn what is staged into sorted files."""

    branch: str
    force: bool = True

    def run(self, context: RepositoryContext) -> Compaction:
        return compact_once(context, self.branch, force=self.force)
