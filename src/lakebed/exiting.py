"""The end of the interpreter: it waits for threads that would ask for the interpreter's lock while it finalizes.

Python before 3.14 ends a thread that asks for the lock then, and libraries in C++ answer by ending the process:
``terminate called without an active exception``, and a signal as the exit status of a program that did everything it
had to. Two kinds of threads do so:
- A read that decodes columns in parallel returns when the last one is there. The thread of Arrow's that decoded it
  releases the bytes of the file a moment later, and takes the lock for that.
- The background threads of a database that is not closed run in Arrow or in the client of a store when the main thread
  ends.

Invariants: the end waits `WAIT_MAX_S` at most, also when a stop waits for a lock that is never released: a thread that
was started before calls the stops, for none can be started when the interpreter ends. Nothing is kept alive. A forked
child has none of the threads, and waits for none.
"""

from __future__ import annotations

import atexit
import os
import sys
import threading
import time
import weakref
from collections.abc import Callable
from typing import Final

WAIT_MAX_S: Final = 2.0
_PAUSE_S: Final = 0.001

_stops: Final[dict[threading.Thread, Callable[[], None]]] = {}
"""Threads that run, or have ended since the last one was added."""

_held: Final[dict[int, weakref.ref[object]]] = {}
"""By identity: what may still be held. An entry goes when its object is freed, in the thread that frees it."""


class _Stopper:
    """A thread that calls the stops when it is asked to."""

    def __init__(self) -> None:
        self.asked = threading.Event()
        self.done = threading.Event()
        threading.Thread(target=self._run, name="stopper", daemon=True).start()

    def _run(self) -> None:
        self.asked.wait()
        for thread, stop in list(_stops.items()):
            if thread.is_alive():
                try:
                    stop()
                except Exception:  # the other threads are to end all the same
                    threading.excepthook(threading.ExceptHookArgs((*sys.exc_info(), thread)))
        self.done.set()


_stoppers: Final[list[_Stopper]] = []
"""One, once there is a thread to be stopped."""


def join_before_exit(thread: threading.Thread, stop: Callable[[], None]) -> None:
    """Let the end of the interpreter stop a daemon thread and wait for it.

    Args:
        stop: makes it end soon, without waiting for it; may be called after its end.
    """
    for ended in [candidate for candidate in list(_stops) if not candidate.is_alive()]:
        _stops.pop(ended, None)
    if not _stoppers:
        _stoppers.append(_Stopper())
    _stops[thread] = stop


def free_before_exit(resource: object) -> None:
    """Let the end of the interpreter wait until an object is freed.

    Args:
        resource: given to threads of Arrow's, and to nothing that outlives the caller.

    Cost: 1 us.
    """
    key = id(resource)
    _held[key] = weakref.ref(resource, lambda _: _held.pop(key, None))


def _wait() -> None:
    end_s = time.monotonic() + WAIT_MAX_S
    running = [thread for thread in list(_stops) if thread.is_alive()]
    if running:
        stopper = _stoppers[0]
        stopper.asked.set()
        stopper.done.wait(WAIT_MAX_S)
    for thread in running:
        thread.join(max(0.0, end_s - time.monotonic()))
    while _held and time.monotonic() < end_s:
        time.sleep(_PAUSE_S)  # the threads take the interpreter's lock meanwhile


atexit.register(_wait)
if hasattr(os, "register_at_fork"):  # a child has none of the threads
    os.register_at_fork(after_in_child=_stops.clear)
    os.register_at_fork(after_in_child=_stoppers.clear)
    os.register_at_fork(after_in_child=_held.clear)
