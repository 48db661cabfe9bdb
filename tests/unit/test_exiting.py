"""The end of the interpreter waits for what other threads still hold, and for nothing for long."""

from __future__ import annotations

import subprocess
import sys
from typing import Final

from worlds.waiting import HANG_S

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
exiting.free_before_exit(one)
start_s = time.monotonic()
threading.Thread(target=hold, args=(one, float(sys.argv[1])), daemon=True).start()
del one
"""


def seconds_of_exit(held_s: float) -> float:
    """How long a process waits at its end for a daemon thread that holds an object for some seconds."""
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(held_s)], capture_output=True, text=True, check=False, timeout=HANG_S
    )
    assert done.returncode == 0, done.stderr
    return float(done.stdout)


def test_the_end_waits_until_an_object_is_freed() -> None:
    """The interpreter does not finalize before the object is freed."""
    assert seconds_of_exit(0.2) >= 0.2


def test_the_end_waits_no_longer_than_its_limit() -> None:
    """A thread that never releases does not keep the process from ending."""
    assert 0.5 <= seconds_of_exit(HANG_S / 2) < HANG_S / 3


STOPS: Final = """
import atexit, os, sys, threading, time
atexit.register(lambda: print(f"{time.monotonic() - start_s:.3f} {sorted(ended)}", flush=True))  # runs after the wait
from lakebed import exiting
exiting.WAIT_MAX_S = float(sys.argv[2])
ended, lock, stopping = [], threading.Lock(), threading.Event()

def work(name):
    stopping.wait()
    ended.append(name)

def start(name, stop):
    thread = threading.Thread(target=work, args=(name,), daemon=True)
    thread.start()
    exiting.join_before_exit(thread, stop)

def stop_with_lock():
    with lock:
        stopping.set()

def fail():
    raise ValueError("this stop fails")

def hold():
    lock.acquire()
    time.sleep(float(sys.argv[3]))

if sys.argv[1] == "held":
    threading.Thread(target=hold, daemon=True).start()
    while not lock.locked():
        time.sleep(0.001)
if sys.argv[1] == "fails":
    start("first", fail)
start("second", stop_with_lock)
if sys.argv[1] == "fork":
    lock.acquire()
    child = os.fork()
    start_s = time.monotonic()
    if child == 0:
        sys.exit(7)  # with a lock that no thread of the child releases, and no thread to wait for
    lock.release()
    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
start_s = time.monotonic()
"""


def end_of(how: str, *, wait_max_s: float) -> tuple[str, str]:
    """What a process with threads to stop prints at its end, and what it complains of."""
    done = subprocess.run(
        [sys.executable, "-c", STOPS, how, str(wait_max_s), str(HANG_S / 2)],
        capture_output=True,
        text=True,
        check=False,
        timeout=HANG_S,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout, done.stderr


def test_a_lock_that_is_never_released_does_not_keep_the_process_from_ending() -> None:
    """A stop that waits for it is abandoned after the limit."""
    seconds, ended = end_of("held", wait_max_s=0.5)[0].split(maxsplit=1)
    assert 0.5 <= float(seconds) < HANG_S / 3
    assert ended.strip() == "[]"


def test_a_stop_that_fails_does_not_keep_others_from_being_called() -> None:
    """The error is shown, and the other threads end."""
    messages, problem = end_of("fails", wait_max_s=HANG_S / 2)
    assert "second" in messages
    assert "this stop fails" in problem


def test_a_forked_child_waits_for_no_thread() -> None:
    """It has none of its parent's threads; the parent stops and joins its own."""
    child, code, parent = end_of("fork", wait_max_s=HANG_S / 2)[0].splitlines()
    assert float(child.split()[0]) < HANG_S / 3
    assert code == "7"
    assert "second" in parent
