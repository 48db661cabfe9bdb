"""`RestoreRefs` and `DumpRefs`: restore a history from lakeFS, and dump it for lakeFS."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

from lakebed.repo.heads.importing import open_folder
from lakebed.repo.lakefs.dump import DumpReport, dump_refs
from lakebed.repo.lakefs.metaranges import LakefsNamespace, RefsDump
from lakebed.repo.lakefs.restore import RestoreReport, restore_refs
from lakebed.repo.outside.import_policy import real_url
from lakebed.repo.records.context import RepositoryContext
from lakebed.repo.verbs.message import Verb, look_first, verb


@look_first
@verb("restore_refs", role="write", effort="long", gives=RestoreReport, changes=("url",), author="committer")
class RestoreRefs(Verb[RestoreReport], frozen=True, kw_only=True):
    """Make the commits, branches and tags of a dump of lakeFS those of a bare repository.

    Args:
        url: the storage namespace that the dump is of; None: the repository's own.
        dump: its ids; None: those that lakeFS has left in the namespace.

    Raises and costs as `lakebed.repo.lakefs.restore.restore_refs`.
    """

    reads_other_stores: ClassVar[bool] = True

    url: str | None = None
    dump: RefsDump | None = None
    committer: str | None = None

    def run(self, context: RepositoryContext, *, storage_options: Mapping[str, str] | None = None) -> RestoreReport:
        store = context.store
        if self.url is not None:
            store = open_folder(context, real_url(context.foreign.folder(self.url)), storage_options)
        source = LakefsNamespace(store)
        return restore_refs(context, source, self.dump or source.load_dump(), committer=self.committer or "")


@look_first
@verb("dump_refs", role="write", effort="long", gives=DumpReport, changes_nothing=True)
class DumpRefs(Verb[DumpReport], frozen=True):
    """Write commits, branches and tags into the repository's own namespace, as lakeFS restores them.

    Raises and costs as `lakebed.repo.lakefs.dump.dump_refs`.
    """

    def run(self, context: RepositoryContext) -> DumpReport:
        return dump_refs(context)
