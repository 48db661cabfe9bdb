"""How the processes of a local fleet begin and end together.

Owns: the locks of a local fleet's folder, and how a part notices the end of its parent. The folder has two lock files.
The process that runs the fleet locks ``fleet.lock``. That process and all its parts, which inherit the open file, hold
the lock of ``parts.lock``. The system releases a lock when the last process that has the file open has ended, for
whatever reason. So a second fleet on the folder is refused, and the next fleet after a killed one knows when the parts
of that have ended. Invariant: this module identifies no process by its id, because the system reuses ids.
"""

from __future__ import annotations

import fcntl
import os
import signal
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Final

from lakebed.backoff import Backoff, Pauses
from lakebed.errors import Conflict, Unavailable
from lakebed.runtime import Environment

FLEET_LOCK: Final = "fleet.lock"
PARTS_LOCK: Final = "parts.lock"

ORPHAN_S: Final = 2.0
"""How long a part whose parent has ended may take to end. It is killed then and loses nothing: the log has all rows.
"""

PARTS_S: Final = 20.0
"""How long a new fleet waits for the parts of the one before it."""

_PAUSES: Final = Pauses(0.05, 0.05)
_STANDARD_INPUT: Final = 0


class FolderLocks:
    """The locks of a fleet's folder. Close them, or let the end of the process release them.

    Args:
        folder: exists.
        say: receives a sentence when it has to wait.

    Raises:
        Conflict: ``fleet_runs``: another process runs a fleet with this folder.
        Unavailable: ``parts_run``: parts of a fleet that was killed do not end.

    Attributes:
        parts: the open file that every part inherits.
    """

    def __init__(self, folder: Path, *, environment: Environment, say: Callable[[str], None]) -> None:
        self._fleet = _open_lock(folder / FLEET_LOCK)
        if not _try_lock(self._fleet):
            owner = (folder / FLEET_LOCK).read_text().strip() or "unknown"
            os.close(self._fleet)
            raise Conflict(
                f"A fleet runs with the folder {folder} already (process {owner}): end it first, or give another "
                "folder.",
                kind="fleet_runs",
                folder=str(folder),
            )
        os.ftruncate(self._fleet, 0)
        os.write(self._fleet, f"{os.getpid()}\n".encode())
        self.parts = _open_lock(folder / PARTS_LOCK)
        try:
            self._wait(folder, environment, say)
        except BaseException:
            self.close()
            raise

    def _wait(self, folder: Path, environment: Environment, say: Callable[[str], None]) -> None:
        for retry in Backoff(environment, _PAUSES, retry_s=PARTS_S):
            if _try_lock(self.parts):
                return
            if not retry:
                say("The fleet that ran with this folder before was killed: waiting until its processes have ended.")
        raise Unavailable(
            f"Processes of the fleet that ran with the folder {folder} before do not end: their ids are in "
            f"{folder}/*.pid. Kill them, then start again.",
            kind="parts_run",
            folder=str(folder),
        )

    def close(self) -> None:
        """Release the locks; parts that still run keep theirs."""
        os.close(self._fleet)
        os.close(self.parts)


def _open_lock(path: Path) -> int:
    return os.open(path, os.O_RDWR | os.O_CREAT, 0o644)


def _try_lock(descriptor: int) -> bool:
    """Try to lock a file. Return whether it is locked now; False: another process has the lock."""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def end_with_input(environment: Environment) -> None:
    """End this process when its standard input ends: as on SIGTERM, and after `ORPHAN_S` in any case.

    The parent holds the other end of that pipe. So its children end when it is killed, on every system.
    """

    def watch() -> None:
        with suppress(OSError):  # standard input was closed from the start, so it has ended
            while os.read(_STANDARD_INPUT, 4096):
                pass
        os.kill(os.getpid(), signal.SIGTERM)
        environment.clock.sleep(ORPHAN_S)
        os.kill(os.getpid(), signal.SIGKILL)

    environment.runtime.spawn(watch, name="lakebed-parent")
