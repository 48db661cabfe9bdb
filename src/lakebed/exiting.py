"""The end of the interpreter: it waits until Arrow's threads have released what Python owns.

A read that decodes columns in parallel returns when the last one is there. The thread of Arrow's that decoded it
releases the bytes of the file a moment later, and takes the interpreter's lock to do so. Python before 3.14 ends a
thread that asks for the lock while the interpreter finalizes, and C++ answers by ending the process: ``terminate called
without an active exception``, and a signal as the exit status of a program that did everything it had to.

Invariants: the wait ends when everything was released, after `WAIT_MAX_S` at the latest. Nothing is kept alive.
"""

from __future__ import annotations

import atexit
import os
import time
import weakref
from typing import Final

WAIT_MAX_S: Final = 2.0
_PAUSE_S: Final = 0.001

_held: Final[dict[int, weakref.ref[object]]] = {}
"""By identity: what may still be held. An entry goes when its object is freed, in the thread that frees it."""


def freed_before_exit(held: object) -> None:
    """Let the end of the interpreter wait until an object is freed.

    Args:
        held: given to threads of Arrow's, and to nothing that outlives the caller.

    Cost: 1 us.
    """
    key = id(held)
    _held[key] = weakref.ref(held, lambda _: _held.pop(key, None))


def _wait() -> None:
    end_s = time.monotonic() + WAIT_MAX_S
    while _held and time.monotonic() < end_s:
        time.sleep(_PAUSE_S)  # the threads take the interpreter's lock meanwhile


atexit.register(_wait)
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_held.clear)  # a child has none of the threads
