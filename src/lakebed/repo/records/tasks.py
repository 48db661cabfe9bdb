"""Tasks of lakeFS's interface that run in the background: dumps, restores, and preparations of its collection.

Owns: their records (``tasks/<id>``). Invariants: every task can be repeated, so if its process ends, the next one runs
it again. A task has ended when its record says so. The record is then kept for `KEPT_DAYS`. Does not know: what tasks
do (`lakebed.repo.lakefs.tasks`).
"""

from __future__ import annotations

from typing import Final, Literal

import msgspec

from lakebed.errors import NotFound
from lakebed.ids import new_uuid
from lakebed.repo.model.options import DAY_MS
from lakebed.repo.records.context import RepositoryContext
from lakebed.repo.records.records import decode_record, encode_record, read_records, replace_record, write_unique

TaskKind = Literal["dump", "restore"]

KEPT_DAYS: Final = 7
"""How long the record of a task is kept after its last change."""
_PREFIXES: Final[dict[TaskKind, str]] = {"dump": "DR", "restore": "RR"}
"""Prefixes of ids, which clients show."""


class Task(msgspec.Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True):
    """The record of a task. Stored: DO NOT CHANGE its fields; add at the end, with a default."""

    id: str
    kind: TaskKind
    updated_at_ms: int
    state: Literal["running", "completed", "failed"] = "running"
    facts: dict[str, str] = {}
    """The input of a running task, or the results of a completed one."""
    error: str | None = None
    """Why it failed."""
    committer: str = ""
    force: bool = False
    """Run even though the repository is read-only."""


def record_task(
    context: RepositoryContext,
    kind: TaskKind,
    *,
    facts: dict[str, str] | None = None,
    committer: str = "",
    force: bool = False,
) -> Task:
    """Record a task before it runs. Raises `OutcomeUnknown`. Cost: 1 durable write of the key-value store."""
    id = _PREFIXES[kind] + new_uuid(context.environment.rng).replace("-", "")
    task = Task(id, kind, context.now_ms(), facts=facts or {}, committer=committer, force=force)
    key = context.keys.task(id)
    write_unique(context.key_value, [(key, encode_record(task))], expected={key: None})
    return task


def load_task(context: RepositoryContext, id: str, kind: TaskKind | None = None) -> Task:
    """Load a task by its id.

    Args:
        kind: only a task of this kind; None: any.

    Raises:
        NotFound: kind ``task_not_found``.
    Cost: 1 read of the key-value store.
    """
    key = context.keys.task(id)
    raw = context.key_value.get(key) if id.isalnum() else None
    task = None if raw is None else decode_record(raw, Task, key=key)
    if task is None or kind not in (None, task.kind):
        raise NotFound(
            f"Repository {context.name} has no task {id!r}: it was never started, or ended more than {KEPT_DAYS} days "
            "ago.",
            kind="task_not_found",
            id=id,
        )
    return task


def end_task(
    context: RepositoryContext, task: Task, *, facts: dict[str, str] | None = None, error: str | None = None
) -> Task:
    """Record that a running task has ended, with its results or the error.

    Returns the record as it is now. If another process has ended the task first, that is its record. Cost: 1 write.
    """
    ended_task = msgspec.structs.replace(
        task,
        state="completed" if error is None else "failed",
        facts=facts or {},
        error=error,
        updated_at_ms=context.now_ms(),
    )
    if replace_record(
        context.key_value, context.keys.task(task.id), encode_record(ended_task), expected=encode_record(task)
    ):
        return ended_task
    return load_task(context, task.id)


def list_unfinished_tasks(context: RepositoryContext) -> list[Task]:
    """List tasks that are running, or were running when their process ended. Cost: 1 scan."""
    with context.key_value.snapshot() as snapshot:
        tasks = read_records(snapshot, context.keys.task(), Task)
        return [task for _, task in tasks if task.state == "running"]


def trim_tasks(context: RepositoryContext) -> int:
    """Delete the records of tasks that have not changed for `KEPT_DAYS`. Returns their number, at most 10,000 a call.

    Cost: that of `RepositoryContext.trim_old`.
    """
    return context.trim_old(
        context.keys.task(),
        lambda key, raw: decode_record(raw, Task, key=key).updated_at_ms,
        kept_ms=KEPT_DAYS * DAY_MS,
    )
