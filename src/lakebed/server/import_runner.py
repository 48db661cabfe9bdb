"""Imports, dumps and restores that run in the background.

Owns: their order in this process, and how many run at a time. Their state is in the repository's records
(`lakebed.repo.heads.importing`, `lakebed.repo.records.tasks`), so a crash loses nothing: the next process resumes those
that were running.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Mapping
from typing import Final, NamedTuple

from lakebed.errors import Closed, LakebedError
from lakebed.repo.heads.importing import list_unfinished_imports, run_import
from lakebed.repo.lakefs.tasks import run_task
from lakebed.repo.records.context import RepositoryContext
from lakebed.repo.records.tasks import list_unfinished_tasks
from lakebed.runtime import Environment

_RUNNING_MAX: Final = 2


class _Job(NamedTuple):
    context: RepositoryContext
    id: str
    run: Callable[..., object]


class ImportRunner:
    """Runs imports and tasks, a few at a time, in daemon threads. Thread-safe."""

    def __init__(
        self,
        *,
        environment: Environment,
        storage_options: Mapping[str, str] | None,
        log_problem: Callable[[str], None],
    ) -> None:
        self._environment = environment
        self.storage_options = storage_options
        self._log_problem = log_problem
        self._lock = environment.runtime.lock()
        self._waiting: deque[_Job] = deque()
        self._running = 0

    def start(self, context: RepositoryContext, import_id: str) -> None:
        """Run an import as soon as a thread is free."""
        self._add(_Job(context, import_id, run_import))

    def start_task(self, context: RepositoryContext, task_id: str) -> None:
        """Run a task as soon as a thread is free."""
        self._add(_Job(context, task_id, run_task))

    def _add(self, job: _Job) -> None:
        with self._lock:
            self._waiting.append(job)
            if self._running == _RUNNING_MAX:
                return
            self._running += 1
        self._environment.runtime.spawn(self._run, name="lakebed-import", stop=self._forget_waiting)

    def resume(self, contexts: Iterable[RepositoryContext]) -> None:
        """Run the imports and tasks that were interrupted by the end of their process."""
        for context in contexts:
            for record in list_unfinished_imports(context):
                self.start(context, record.id)
            for task in list_unfinished_tasks(context):
                self.start_task(context, task.id)

    def _forget_waiting(self) -> None:
        """Discard the waiting imports, so that each thread ends after its import. The next process resumes them."""
        with self._lock:
            self._waiting.clear()

    def _run(self) -> None:
        while True:
            with self._lock:
                if not self._waiting:
                    self._running -= 1
                    return
                job = self._waiting.popleft()
            try:
                job.run(job.context, job.id, storage_options=self.storage_options)
            except Closed:
                continue  # the server is stopping; the next process resumes the import
            except LakebedError:
                continue  # its record holds the error, which its status shows
            except Exception as bug:
                self._log_problem(f"the import or task {job.id} of {job.context.name} failed with a bug: {bug!r}")
