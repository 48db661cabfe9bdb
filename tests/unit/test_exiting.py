"""The end of the interpreter waits for what other threads still hold, and for nothing for long."""

from __future__ import annotations

import subprocess
import sys
from typing import Final

PROGRAM: Final = """
import atexit, sys, threading, time
ended_s = []
atexit.register(lambda: print(f"{time.monotonic() - start_s:.3f}"))  # runs after the wait
from lakebed import exiting
exiting.WAIT_MAX_S = 0.5

class Held:
    pass

def hold(one, seconds):
    time.sleep(seconds)

one = Held()
exiting.freed_before_exit(one)
start_s = time.monotonic()
threading.Thread(target=hold, args=(one, float(sys.argv[1])), daemon=True).start()
del one
"""


def seconds_of_exit(held_s: float) -> float:
    """How long a process waits at its end for a daemon thread that holds an object for some seconds."""
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(held_s)], capture_output=True, text=True, check=False, timeout=60
    )
    assert done.returncode == 0, done.stderr
    return float(done.stdout)


def test_the_end_waits_until_an_object_is_freed() -> None:
    """The interpreter does not finalize before the object is freed."""
    assert seconds_of_exit(0.2) >= 0.2


def test_the_end_waits_no_longer_than_its_limit() -> None:
    """A thread that never releases does not keep the process from ending."""
    assert 0.5 <= seconds_of_exit(30) < 20
