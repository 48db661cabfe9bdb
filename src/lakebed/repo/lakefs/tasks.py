"""What the tasks of lakeFS's interface do, once they are recorded (`lakebed.repo.records.tasks`)."""

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
    """Do a task, or do it again after a crash.

    A restore whose process ended between its last write and the note that it has ended finds the repository no longer
    bare when it is repeated: with the branches of the dump, it is completed.

    Args:
        storage_options: not used: these tasks stay in the repository's namespace.

    Returns:
        Its record: completed, or as another process has ended it.

    Raises:
        NotFound: ``task_not_found``.
        Whatever went wrong, which is also in the record, then failed.
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
