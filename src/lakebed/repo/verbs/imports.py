"""`ImportObjects`: commit objects of another store without copying their bytes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, ClassVar

from msgspec import Meta

from lakebed.ids import new_uuid
from lakebed.repo.heads.commit import check_commit_text
from lakebed.repo.heads.importing import Import, ImportSource, check_sources, run_import
from lakebed.repo.records.context import RepositoryContext
from lakebed.repo.records.protection import check_committable
from lakebed.repo.records.records import encode_record, write_unique
from lakebed.repo.references.branches import load_branch
from lakebed.repo.verbs.message import PATHS_MAX, Texts, Verb, verb


@verb("import_objects", role="write", effort="long", gives=Import, changes=("branch",), author="committer")
class ImportObjects(Verb[Import], frozen=True, kw_only=True):
    """Commit objects of another place without copying their bytes.

    Args:
        sources: of one destination an object wins over a folder, and a later folder over an earlier one.
        replace: remove what the branch has below the destinations of folders, so that they become as the folders are.

    Returns:
        The record of the import, completed. Raises and costs as `lakebed.repo.heads.importing.run_import`.
    """

    reads_other_stores: ClassVar[bool] = True

    branch: str
    sources: Annotated[list[ImportSource], Meta(max_length=PATHS_MAX)]
    message: str
    metadata: Texts | None = None
    committer: str | None = None
    replace: bool = False

    def start(self, context: RepositoryContext, *, force: bool = False) -> str:
        """Record an import, and return its id. `lakebed.repo.heads.importing.run_import` then runs it.

        Args:
            force: import even if the repository is read-only.

        Raises:
            NotFound: ``branch_not_found``.
            InvalidRequest: as `lakebed.repo.heads.importing.check_sources` and `lakebed.repo.verbs.commit.Commit`.
            OutcomeUnknown: it may have been recorded. If so, `lakebed.repo.heads.importing.list_unfinished_imports`
                lists it.
        Cost: 1 durable write of the key-value store.
        """
        check_committable(context.as_writable() if force else context, self.branch)
        check_commit_text(self.message, self.metadata)
        load_branch(context, self.branch)
        check_sources(context, self.sources)
        id = new_uuid(context.environment.rng)
        record = Import(
            id,
            self.branch,
            tuple(self.sources),
            self.message,
            self.committer,
            self.metadata or {},
            self.replace,
            updated_at_ms=context.now_ms(),
            force=force,
        )
        key = context.keys.import_record(id)
        write_unique(context.key_value, [(key, encode_record(record))], expected={key: None})
        return id

    def run(self, context: RepositoryContext, *, storage_options: Mapping[str, str] | None = None) -> Import:
        return run_import(context, self.start(context), storage_options=storage_options)
