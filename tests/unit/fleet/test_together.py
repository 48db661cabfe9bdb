"""A folder has one fleet, which knows when the parts of the one before are gone; a part ends with its parent."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

from lakebed.errors import Conflict, Unavailable
from lakebed.fleet.together import PARTS_S, FolderLocks
from lakebed.runtime import Environment
from lakebed.testing.clock import ManualClock
from worlds.errors import raises


def locked(folder: Path, told: list[str]) -> FolderLocks:
    """The locks of a folder, with a clock of its own."""
    return FolderLocks(folder, environment=Environment(clock=ManualClock()), say=told.append)


def test_a_folder_has_one_fleet(tmp_path: Path) -> None:
    """The second one is refused with the process of the first; after the first has ended it is not."""
    messages: list[str] = []
    first = locked(tmp_path, messages)
    with raises(Conflict, "fleet_runs", match=rf"process {os.getpid()}\)"):
        locked(tmp_path, messages)
    first.close()
    locked(tmp_path, messages).close()
    assert messages == []


def test_parts_of_a_killed_fleet_are_waited_for(tmp_path: Path) -> None:
    """A part has the lock as long as it runs: the next fleet says that it waits, and gives up after a time."""
    messages: list[str] = []
    first = locked(tmp_path, messages)
    part = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE, pass_fds=(first.parts,))
    first.close()
    with part:
        with raises(Unavailable, "parts_run", match=r"do not end: their ids are in"):
            locked(tmp_path, messages)
        part.kill()
    assert len(messages) == 1
    assert PARTS_S < 60
    locked(tmp_path, messages).close()
    assert len(messages) == 1


def test_a_process_ends_with_its_input() -> None:
    """As on SIGTERM."""
    script = (
        "import threading\n"
        "from lakebed.fleet.together import end_with_input\n"
        "from lakebed.runtime import Environment\n"
        "end_with_input(Environment())\n"
        "threading.Event().wait(5)\n"
    )
    with subprocess.Popen([sys.executable, "-c", script], stdin=subprocess.PIPE) as process:
        assert process.stdin is not None
        process.stdin.close()
        assert process.wait(60) == -signal.SIGTERM
