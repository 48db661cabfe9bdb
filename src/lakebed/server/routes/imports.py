"""Imports: objects of other locations become objects of a branch, without copying their bytes.

An import runs in the background. Its state is a record of the repository, so any process can show it, and the next
server that starts resumes an interrupted import.
"""

from __future__ import annotations

from typing import Final, Literal

from msgspec import UNSET, UnsetType

from lakebed.http.declaration import Routes
from lakebed.repo.heads.importing import Import, ImportSource, cancel_import, import_status
from lakebed.repo.records.context import RepositoryContext
from lakebed.repo.references.commits import load_commit
from lakebed.repo.verbs.imports import ImportObjects
from lakebed.server.bodies import ImportCreation, ImportLocation, ImportStarted, ImportStatus, Message
from lakebed.server.errors import conceal
from lakebed.server.places import engine_url
from lakebed.server.routes.parameters import IMPORT_ID
from lakebed.server.routes.shapes import commit_row, rfc_3339
from lakebed.server.site import RepositoryCall

IMPORTS: Final = Routes[RepositoryCall]("import")
_IMPORT: Final = "/repositories/{repository}/branches/{branch}/import"


@IMPORTS.add("POST", _IMPORT, "importStart", needs="write", gives={202: ImportStarted}, audited=True)
async def start(call: RepositoryCall, body: ImportCreation) -> ImportStarted:
    """Start an import, which runs in the background."""
    context, root_url = await call.context(), call.site.repositories.url
    verb = ImportObjects(
        branch=call.path["branch"],
        sources=[_source(location, root_url=root_url) for location in body.paths],
        message=body.commit.message or "Import objects",
        metadata=body.commit.metadata,
        committer=call.committer,
    )
    import_id = await call.quick(verb.start, context, force=bool(body.force))
    call.site.imports.start(context, import_id)
    return ImportStarted(import_id)


def _source(location: ImportLocation, *, root_url: str) -> ImportSource:
    kind: Literal["object", "prefix"] = "object" if location.type == "object" else "prefix"
    return ImportSource(engine_url(location.path, root_url=root_url), location.destination, kind)


@IMPORTS.add("GET", _IMPORT, "importStatus", needs="read", parameters=(IMPORT_ID,))
async def status(call: RepositoryCall) -> ImportStatus:
    """Get the status of an import."""
    import_id = call.required("id")
    context = await call.context()
    branch = call.path["branch"]  # the caller's permissions were checked for this branch
    return await call.quick(_status, context, import_id, branch=branch, root_url=call.site.repositories.url)


def _status(context: RepositoryContext, import_id: str, *, branch: str, root_url: str) -> ImportStatus:
    record = import_status(context, import_id, branch=branch)
    commit = None if record.commit_id is None else load_commit(context, record.commit_id)
    return ImportStatus(
        completed=record.state == "completed",
        update_time=rfc_3339(record.updated_at_ms),
        ingested_objects=record.ingested_count,
        metarange_id=UNSET if commit is None else commit.metarange.id,
        commit=UNSET if commit is None or record.commit_id is None else commit_row(record.commit_id, commit),
        error=_problem(record, root_url=root_url),
    )


def _problem(record: Import, *, root_url: str) -> Message | UnsetType:
    if record.state == "failed":
        return Message(conceal(record.error or "The import failed.", root_url=root_url))
    return Message("The import was cancelled.") if record.state == "cancelled" else UNSET


@IMPORTS.add("DELETE", _IMPORT, "importCancel", needs="write", parameters=(IMPORT_ID,), audited=True)
async def cancel(call: RepositoryCall) -> None:
    """Cancel an import; the branch does not change."""
    import_id = call.required("id")
    context = await call.context()
    await call.quick(cancel_import, context, import_id, branch=call.path["branch"])
