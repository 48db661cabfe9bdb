"""Several serving processes behind one socket, for records that they can share.

Owns: starting them, starting anew what dies, and passing the end on. A worker that dies at once again and again is
started ever more slowly. The parent serves nothing itself and owns no records.
"""

from __future__ import annotations

import multiprocessing
import signal
import socket
import sys
from collections.abc import Callable
from dataclasses import replace
from multiprocessing.connection import wait
from typing import Any, Final

from lakebed.server.lifecycle import serve_one
from lakebed.server.settings import ServerSettings, Started

__all__ = ["run_workers"]

_RESTART_S: Final = 1.0
_RESTART_S_MAX: Final = 30.0
_END_S: Final = 10.0
"""How much longer than its own bound a worker may take to end."""


def _work(settings: ServerSettings, listener: socket.socket, answers: Any) -> None:
    sys.exit(serve_one(settings, listener, started=lambda _: answers.set(), first_setup=False))


def run_workers(
    settings: ServerSettings, listener: socket.socket, *, count: int, told: Started, started: Callable[[Started], None]
) -> int:
    """Serve in `count` processes until a signal; the exit code.

    Args:
        told: what to say once the first of them answers.
    """
    context = multiprocessing.get_context("spawn")
    answers = context.Event()
    stopping = False

    def start(number: int) -> Any:
        own = replace(settings, resume_imports=number == 0)
        process = context.Process(target=_work, args=(own, listener, answers), name=f"lakebed-worker-{number}")
        process.start()
        return process

    def stop(number: int, frame: object) -> None:
        nonlocal stopping
        stopping = True
        for process in processes:
            if process.is_alive():
                process.terminate()

    processes = [start(number) for number in range(count)]
    before = {number: signal.signal(number, stop) for number in (signal.SIGTERM, signal.SIGINT)}
    pause_s, said = _RESTART_S, False
    try:
        while not stopping:
            wait([process.sentinel for process in processes], timeout=pause_s)
            if answers.is_set() and not said:
                started(told)
                said = True
            dead = [number for number, process in enumerate(processes) if not process.is_alive()]
            for number in () if stopping else dead:
                sys.stderr.write(f"lakebed serve: worker {number} ended with {processes[number].exitcode}; anew.\n")
                processes[number] = start(number)
            pause_s = min(pause_s * 2, _RESTART_S_MAX) if dead else _RESTART_S
    finally:
        for process in processes:
            process.join(settings.options.shutdown_s + _END_S)
            if process.is_alive():
                process.kill()
                process.join()
        for number, handler in before.items():
            signal.signal(number, handler)
    return 0
