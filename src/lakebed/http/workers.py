"""Several serving processes behind one socket.

Owns: starting them, restarting what dies, and passing signals on. A worker that dies repeatedly is restarted more and
more slowly. The parent serves no request.
"""

from __future__ import annotations

import multiprocessing
import signal
from collections.abc import Callable
from multiprocessing.connection import wait
from multiprocessing.process import BaseProcess
from multiprocessing.synchronize import Event
from typing import Final

from lakebed.log import warn

CONTEXT: Final = multiprocessing.get_context("spawn")
"""Workers share nothing with their parent but the socket: forking a process with threads is not safe."""

_RESTART_S: Final = 1.0
_RESTART_S_MAX: Final = 30.0
_END_S: Final = 10.0
"""How much longer than its own limit a worker may take to end."""


def run_workers(
    start: Callable[[int, Event], BaseProcess],
    *,
    count: int,
    shutdown_s: float,
    started: Callable[[], None],
    name: str,
) -> int:
    """Serve in `count` processes until a signal; the exit code.

    Args:
        start: starts the process of a number, which sets the event once it answers; made with `CONTEXT`.
        shutdown_s: how long a worker may take for running requests.
        started: called once the first worker answers.
        name: stands in front of messages on standard error.
    """
    answers = CONTEXT.Event()
    stopping = False

    def stop(number: int, frame: object) -> None:
        nonlocal stopping
        stopping = True
        for process in processes:
            if process.is_alive():
                process.terminate()

    processes = [start(number, answers) for number in range(count)]
    before = {number: signal.signal(number, stop) for number in (signal.SIGTERM, signal.SIGINT)}
    pause_s, reported = _RESTART_S, False
    try:
        while not stopping:
            wait([process.sentinel for process in processes], timeout=pause_s)
            if answers.is_set() and not reported:
                started()
                reported = True
            dead = [number for number, process in enumerate(processes) if not process.is_alive()]
            for number in () if stopping else dead:
                code = processes[number].exitcode
                warn(f"{name}: worker {number} ended with {code}; starting a new one.")
                processes[number] = start(number, answers)
            pause_s = min(pause_s * 2, _RESTART_S_MAX) if dead else _RESTART_S
    finally:
        for process in processes:
            process.join(shutdown_s + _END_S)
            if process.is_alive():
                process.kill()
                process.join()
        for number, handler in before.items():
            signal.signal(number, handler)
    return 0
