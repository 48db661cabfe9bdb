"""Small uploads that came together, stored together.

Owns: which uploads are one step of the pool. An upload waits for a disk twice, for its bytes and for its row; those
that wait anyway share both, and are handed to a thread and back once for all. Invariants: an upload never waits for one
that has not come; while as many steps run as may, those that come gather for the next; a step has bounded bytes; each
upload has its own outcome. Used by the thread of the event loop alone.

Only where objects and records are on this machine: a bucket answers many requests at once, so there each upload is a
step of its own.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from concurrent.futures import Executor
from dataclasses import dataclass
from functools import partial
from typing import Final

from lakebed.errors import LakebedError
from lakebed.repo.heads.uploads import SmallUpload, upload_many
from lakebed.repo.model.model import Entry
from lakebed.repo.records.context import RepositoryContext

_SYNCED_MAX: Final = 3
"""Most steps at a time that wait for a disk: one is synced, another is written, and a third gathers uploads."""
_UNSYNCED_MAX: Final = 2
"""Most steps at a time that do not wait: more steps would be smaller, and not faster."""
_STEP_COUNT_MAX: Final = 64
_STEP_BYTES_MAX: Final = 8 << 20


@dataclass(frozen=True, slots=True, eq=False)
class _Waiting:
    """An upload, and the future of its outcome."""

    context: RepositoryContext
    branch: str
    upload: SmallUpload
    size_bytes: int
    outcome: asyncio.Future[Entry]


class SmallUploads:
    """The small uploads of one event loop.

    Args:
        pool: has more threads than steps run at a time.
        waits_for_disk: whether the store and the records are synced.
    """

    def __init__(self, pool: Executor, *, waits_for_disk: bool) -> None:
        self._pool = pool
        self._running_max = _SYNCED_MAX if waits_for_disk else _UNSYNCED_MAX
        self._waiting: list[_Waiting] = []
        self._running = 0
        self._begins = False

    async def store(self, context: RepositoryContext, branch: str, upload: SmallUpload, *, size_bytes: int) -> Entry:
        """Store and stage an object. Raises as `lakebed.repo.objects.data.upload` and `lakebed.repo.heads.write.stage`.

        Args:
            size_bytes: approximate size of the object.
        """
        loop = asyncio.get_running_loop()
        waiting_upload = _Waiting(context, branch, upload, size_bytes, loop.create_future())
        self._waiting.append(waiting_upload)
        if not self._begins and self._running < self._running_max:
            self._begins = True
            loop.call_soon(self._begin)  # after the requests that came together with this one
        return await waiting_upload.outcome

    def _begin(self) -> None:
        self._begins = False
        loop = asyncio.get_running_loop()
        while self._waiting and self._running < self._running_max:
            step = self._next_step()
            self._running += 1
            running_step = loop.run_in_executor(self._pool, _store_all, step)
            running_step.add_done_callback(partial(self._end, step))

    def _next_step(self) -> list[_Waiting]:
        """Take the uploads that have waited longest, at least one, from the waiting ones."""
        count = size_bytes = 0
        for waiting_upload in self._waiting[:_STEP_COUNT_MAX]:
            size_bytes += waiting_upload.size_bytes
            if count and size_bytes > _STEP_BYTES_MAX:
                break
            count += 1
        step, self._waiting = self._waiting[:count], self._waiting[count:]
        return step

    def _end(self, step: list[_Waiting], future: asyncio.Future[list[Entry | BaseException]]) -> None:
        self._running -= 1
        if future.cancelled():  # the server is ending, and this step never began
            for waiting_upload in step:
                waiting_upload.outcome.cancel()
            return
        for waiting_upload, outcome in zip(step, future.result(), strict=True):
            if waiting_upload.outcome.done():
                continue  # its client has disconnected
            if isinstance(outcome, Entry):
                waiting_upload.outcome.set_result(outcome)
            else:
                waiting_upload.outcome.set_exception(outcome)
        self._begin()


def _store_all(step: Sequence[_Waiting]) -> list[Entry | BaseException]:
    """Store uploads, those of one branch together, and return the outcome of each."""
    outcomes: dict[_Waiting, Entry | BaseException] = {}
    by_branch: dict[tuple[int, str], list[_Waiting]] = {}
    for waiting_upload in step:
        by_branch.setdefault((id(waiting_upload.context), waiting_upload.branch), []).append(waiting_upload)
    for alike in by_branch.values():
        context, branch = alike[0].context, alike[0].branch
        try:
            outcomes.update(
                zip(
                    alike,
                    upload_many(context, branch, [waiting_upload.upload for waiting_upload in alike]),
                    strict=True,
                )
            )
        except Exception as error:
            outcomes.update((waiting_upload, _copy(error)) for waiting_upload in alike)
    return [outcomes[waiting_upload] for waiting_upload in step]


def _copy(error: Exception) -> Exception:
    """Return a copy of an error for another request: an error that is raised twice would mix up its tracebacks."""
    return type(error)(error.message, kind=error.kind, **error.facts) if isinstance(error, LakebedError) else error
