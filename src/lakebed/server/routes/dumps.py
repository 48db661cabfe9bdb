"""Files that other programs exchange with a namespace: dumps, restores, lists of addresses.

Dumps and restores run in the background. Their states are records of the repository, so any process can show them, and
the next server that starts resumes an interrupted one. Two older operations answer only when the work is done.
"""

from __future__ import annotations

from typing import Final

import msgspec
from msgspec import UNSET, UnsetType
from starlette.responses import Response

from lakebed.decoding import convert
from lakebed.http.declaration import Parameter, Routes
from lakebed.repo.lakefs.metaranges import RefsDump, check_dump
from lakebed.repo.lakefs.restore import check_bare
from lakebed.repo.lakefs.symlinks import write_symlinks
from lakebed.repo.lakefs.tasks import run_task
from lakebed.repo.records.context import RepositoryContext
from lakebed.repo.records.protection import check_not_read_only
from lakebed.repo.records.tasks import Task, load_task, record_task
from lakebed.server.bodies import DumpStatus, RefsDumpBody, RefsRestoreBody, RestoreStatus, StorageLocation, TaskInfo
from lakebed.server.errors import conceal
from lakebed.server.routes.shapes import rfc_3339
from lakebed.server.site import RepositoryCall

DUMPS: Final = Routes[RepositoryCall]("repositories")
_DUMP: Final = "/repositories/{repository}/dump"
_RESTORE: Final = "/repositories/{repository}/restore"
_REFS: Final = "/repositories/{repository}/refs/"
_SYMLINK: Final = "/repositories/{repository}/refs/{ref}/symlink"
_TASK_ID: Final = Parameter("task_id", "The task's id.", required=True)


@DUMPS.add("POST", _DUMP, "dumpSubmit", needs="write", gives={202: TaskInfo}, audited=True)
async def submit_dump(call: RepositoryCall) -> TaskInfo:
    """Start a dump of commits, branches and tags, which runs in the background."""
    context = await call.context()
    task = await call.quick(record_task, context, "dump")
    call.site.imports.start_task(context, task.id)
    return TaskInfo(task.id)


@DUMPS.add("GET", _DUMP, "dumpStatus", needs="read", parameters=(_TASK_ID,))
async def get_dump_status(call: RepositoryCall) -> DumpStatus:
    """Get the status of a dump, and, when it is done, its ids."""
    id = call.required("task_id")
    task = await call.quick(load_task, await call.context(), id, "dump")
    refs = convert(task.facts, RefsDumpBody) if task.state == "completed" else UNSET
    return DumpStatus(task.id, _is_done(task), rfc_3339(task.updated_at_ms), _error(call, task), refs)


@DUMPS.add("POST", _RESTORE, "restoreSubmit", needs="write", gives={202: TaskInfo}, audited=True)
async def submit_restore(call: RepositoryCall, body: RefsRestoreBody) -> TaskInfo:
    """Start to restore a dump from the namespace of a bare repository, in the background."""
    context = await call.context()
    task = await call.quick(_record_restore, context, body, committer=call.committer)
    call.site.imports.start_task(context, task.id)
    return TaskInfo(task.id)


@DUMPS.add("GET", _RESTORE, "restoreStatus", needs="read", parameters=(_TASK_ID,))
async def get_restore_status(call: RepositoryCall) -> RestoreStatus:
    """Get the status of a restore."""
    id = call.required("task_id")
    task = await call.quick(load_task, await call.context(), id, "restore")
    return RestoreStatus(task.id, _is_done(task), rfc_3339(task.updated_at_ms), _error(call, task))


@DUMPS.add("PUT", _REFS + "dump", "dumpRefs", tag="internal", needs="write", gives={201: RefsDumpBody}, audited=True)
async def dump(call: RepositoryCall) -> RefsDumpBody:
    """Dump commits, branches and tags into the repository's namespace, and answer when that is done."""
    context = await call.context()
    task = await call.quick(record_task, context, "dump")
    ended_task = await call.run("long", lambda: run_task(context, task.id))
    return convert(ended_task.facts, RefsDumpBody)


@DUMPS.add("PUT", _REFS + "restore", "restoreRefs", tag="internal", needs="write", gives={200: None}, audited=True)
async def restore(call: RepositoryCall, body: RefsRestoreBody) -> Response:
    """Restore a dump from the namespace of a bare repository, and answer when that is done."""
    context = await call.context()
    task = await call.quick(_record_restore, context, body, committer=call.committer)
    await call.run("long", lambda: run_task(context, task.id))
    return Response(status_code=200)


@DUMPS.add(
    "POST",
    _SYMLINK,
    "createSymlinkFile",
    tag="internal",
    needs="write",
    gives={201: StorageLocation},
    parameters=(Parameter("location", "Only objects whose paths begin so."),),
)
async def create_symlinks(call: RepositoryCall) -> StorageLocation:
    """Write a list of the physical addresses of each folder's objects into the namespace."""
    context, prefix = await call.context(), call.query.get("location", "")
    url = await call.run("long", lambda: write_symlinks(context, call.path["ref"], prefix=prefix))
    return StorageLocation(url)


def _record_restore(context: RepositoryContext, body: RefsRestoreBody, *, committer: str) -> Task:
    """Record a restore that can begin.

    Raises the errors of `lakebed.repo.lakefs.restore.restore_refs` before any read.
    """
    force = bool(body.force)
    dump = RefsDump(body.commits_meta_range_id, body.tags_meta_range_id, body.branches_meta_range_id)
    check_not_read_only(context.as_writable() if force else context)
    check_dump(dump)
    check_bare(context)
    return record_task(context, "restore", facts=msgspec.to_builtins(dump), committer=committer, force=force)


def _is_done(task: Task) -> bool:
    return task.state != "running"


def _error(call: RepositoryCall, task: Task) -> str | UnsetType:
    if task.state != "failed":
        return UNSET
    return conceal(task.error or "The task failed.", root_url=call.site.repositories.url)
