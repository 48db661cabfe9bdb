"""The end of the interpreter, which waits for threads that would ask for the interpreter's lock during finalization.

Python before 3.14 ends a thread that asks for the lock at that time, and libraries in C++ then end the process:
``terminate called without an active exception``. A program that has finished its work ends with a signal as its exit
status. Two kinds of threads ask for the lock:
- A read that decodes columns in parallel returns when the last column is there. The Arrow thread that decoded this
  column releases the bytes of the file a moment later, and takes the lock to do so.
- The background threads of a database that was not closed run in Arrow or in the client of a store when the main thread
  ends.

Invariants: the end waits at most `WAIT_MAX_S`, even if a stop function waits for a lock that is never released. For
this purpose a thread that was started earlier calls the stop functions: no thread can be started when the interpreter
ends. This module keeps no object alive. A forked child has none of the threads, and waits for none.
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
"""Stop functions by thread, of threads that run or have ended since the last one was added."""

_held: Final[dict[int, weakref.ref[object]]] = {}
"""Objects that may not be freed yet, by `id`. The thread that frees an object removes its entry."""


class _Stopper:
    """A thread that calls the stop functions when it is asked to."""

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
                except Exception:  # the other threads must be stopped too
                    threading.excepthook(threading.ExceptHookArgs((*sys.exc_info(), thread)))
        self.done.set()


_stoppers: Final[list[_Stopper]] = []
"""Empty, or one stopper as soon as there is a thread to stop."""


def join_before_exit(thread: threading.Thread, stop: Callable[[], None]) -> None:
    """Make the end of the interpreter stop a daemon thread and wait for it.

    Args:
        stop: makes the thread end soon, and does not wait for it. It may be called after the thread has ended.
    """
    for ended_thread in [candidate for candidate in list(_stops) if not candidate.is_alive()]:
        _stops.pop(ended_thread, None)
    if not _stoppers:
        _stoppers.append(_Stopper())
    _stops[thread] = stop


def free_before_exit(resource: object) -> None:
    """Make the end of the interpreter wait until an object is freed.

    Args:
        resource: was given to Arrow's threads, and to nothing else that outlives the caller.

    Cost: 1 us.
    """
    key = id(resource)
    _held[key] = weakref.ref(resource, lambda _: _held.pop(key, None))


def _wait() -> None:
    end_s = time.monotonic() + WAIT_MAX_S
    running_threads = [thread for thread in list(_stops) if thread.is_alive()]
    if running_threads:
        stopper = _stoppers[0]
        stopper.asked.set()
        stopper.done.wait(WAIT_MAX_S)
    for thread in running_threads:
        thread.join(max(0.0, end_s - time.monotonic()))
    while _held and time.monotonic() < end_s:
        time.sleep(_PAUSE_S)  # the threads can take the interpreter's lock in the meantime


atexit.register(_wait)
if hasattr(os, "register_at_fork"):  # a child has none of the threads
    os.register_at_fork(after_in_child=_stops.clear)
    os.register_at_fork(after_in_child=_stoppers.clear)
    os.register_at_fork(after_in_child=_held.clear)
