"""Imports that run behind their requests.

Owns: the order and the number of imports that run at once in this process. Their state is in the repository's records
(`lakebed.repo.importing`), so nothing is lost with the process: what was running is taken up by the next.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Mapping
from typing import Final

from lakebed.errors import Closed, LakebedError
from lakebed.repo.context import RepositoryContext
from lakebed.repo.importing import run_import, unfinished_imports
from lakebed.runtime import Environment

__all__ = ["ImportRunner"]

_RUNNING_MAX: Final = 2


class ImportRunner:
    """Runs imports, a few at a time, in threads that do not keep the process from ending. Thread-safe."""

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
        self._waiting: deque[tuple[RepositoryContext, str]] = deque()
        self._running = 0

    def start(self, home: RepositoryContext, import_id: str) -> None:
        """Run an import as soon as there is room."""
        with self._lock:
            self._waiting.append((home, import_id))
            if self._running == _RUNNING_MAX:
                return
            self._running += 1
        self._environment.runtime.spawn(self._run, name="lakebed-import")

    def resume(self, homes: Iterable[RepositoryContext]) -> None:
        """Take up what was running when its process ended."""
        for home in homes:
            for record in unfinished_imports(home):
                self.start(home, record.id)

    def _run(self) -> None:
        while True:
            with self._lock:
                if not self._waiting:
                    self._running -= 1
                    return
                home, import_id = self._waiting.popleft()
            try:
                run_import(home, import_id, storage_options=self.storage_options)
            except Closed:
                continue  # the server ends; the import is taken up by the next
            except LakebedError:
                continue  # its record says why, and whoever asks for its status is told
            except Exception as bug:
                self._log_problem(f"the import {import_id} of {home.name} met a bug: {bug!r}")
