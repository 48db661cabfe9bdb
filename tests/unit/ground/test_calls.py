"""Calls that are begun in a pool are made once, and always end."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator

import pytest

from lakebed.runtime import Pool, ThreadRuntime, begin_call


@pytest.fixture
def pool() -> Iterator[Pool]:
    """Two workers, of which none has begun."""
    pool = ThreadRuntime().pool(2)
    yield pool
    pool.close()


def refuse(*_: object) -> None:
    """As the system does where a process may have no more threads."""
    raise RuntimeError("can't start new thread")


def refuse_second(start: Callable[[threading.Thread], None]) -> Callable[[threading.Thread], None]:
    """Start one thread, and no other."""
    started: list[threading.Thread] = []

    def start_first(thread: threading.Thread) -> None:
        if started:
            refuse()
        started.append(thread)
        start(thread)

    return start_first


def test_a_call_is_made_once_where_no_thread_is_started(pool: Pool, monkeypatch: pytest.MonkeyPatch) -> None:
    """The caller makes it, and a worker that is free later does not make it again."""
    gate, made = threading.Event(), list[str]()
    waiting = begin_call(gate.wait, pool)
    monkeypatch.setattr(threading.Thread, "start", refuse)
    call = begin_call(lambda: made.append("made"), pool)
    next(call)
    gate.set()
    next(waiting)
    pool.close()
    assert made == ["made"]


def test_a_worker_that_waits_for_a_call_makes_it(pool: Pool, monkeypatch: pytest.MonkeyPatch) -> None:
    """The only worker there is waits for no other, even after calls that the pool refused and kept."""
    monkeypatch.setattr(threading.Thread, "start", refuse_second(threading.Thread.start))
    gate = threading.Event()
    calls = [begin_call(gate.wait, pool), *(begin_call(lambda: None, pool) for _ in range(8))]
    gate.set()
    for call in calls:
        next(call)
    begun = threading.Event()

    def wait_for_another() -> bool:
        begun.set()
        return next(begin_call(lambda: True, pool))

    outer = begin_call(wait_for_another, pool)
    begun.wait(1)  # a pool that begins it only when it is asked for makes it in this thread
    assert next(outer)


def test_an_error_is_raised_where_its_result_would_be(pool: Pool) -> None:
    """Whoever makes the call."""
    begun = threading.Event()

    def fail() -> None:
        begun.set()
        raise ValueError("failed")

    for caller in (pool, None):
        call = begin_call(fail, caller)
        begun.wait(0 if caller is None else 10)
        with pytest.raises(ValueError, match="failed"):
            next(call)
