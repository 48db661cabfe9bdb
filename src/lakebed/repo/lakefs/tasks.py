"""Run the tasks of lakeFS's interface that `lakebed.repo.records.tasks` has recorded."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from lakebed.decoding import convert
from lakebed.errors import LakebedError
from lakebed.repo.lakefs.dump import dump_refs
from lakebed.repo.lakefs.metaranges import LakefsNamespace, RefsDump
from lakebed.repo.lakefs.restore import is_restored, restore_refs
from lakebed.repo.records.context import RepositoryContext
from lakebed.repo.records.tasks import Task, end_task, load_task


def run_task(context: RepositoryContext, id: str, *, storage_options: Mapping[str, str] | None = None) -> Task:
    """Run a task, or repeat it after a crash.

    If a restore's process ended after its last write and before it recorded the end, the repeated restore finds that
    the repository is not bare. If it has the branches and tags of the dump, the restore is completed.

    Args:
        storage_options: not used: these tasks stay in the repository's namespace.

    Returns:
        The task's record: completed, or as another process has ended it.

    Raises:
        NotFound: ``task_not_found``.
        The task's error, which is also in the record as a failure.
    """
    task = load_task(context, id)
    if task.state != "running":
        return task
    writable = context.as_writable() if task.force else context
    try:
        if task.kind == "dump":
            return end_task(context, task, facts=msgspec.to_builtins(dump_refs(context).refs))
        source, dump = LakefsNamespace(context.store), convert(task.facts, RefsDump)
        if not is_restored(context, source, dump):
            restore_refs(writable, source, dump, committer=task.committer)
        return end_task(context, task)
    except LakebedError as error:
        end_task(context, task, error=str(error))
        raise
