"""Calls that are begun in a pool are made once, and always end."""

from __future__ import annotations

import gc
import itertools
import threading
import weakref
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial

import pytest

from lakebed.errors import Unavailable
from lakebed.runtime import Pool, ThreadRuntime, begin_call, map_in_pool


@pytest.fixture
def pool() -> Iterator[Pool]:
    """Two workers, of which none has begun."""
    pool = ThreadRuntime().pool(2)
    yield pool
    pool.close()


def refuse(*_: object) -> None:
    """As the system does where a process may have no more threads."""
    raise RuntimeError("can't start new thread")


def refuse_first(start: Callable[[threading.Thread], None], count: int) -> Callable[[threading.Thread], None]:
    """Start no thread the first times."""
    refusals = iter(range(count))

    def start_later(thread: threading.Thread) -> None:
        if next(refusals, None) is not None:
            refuse()
        start(thread)

    return start_later


def test_a_call_is_made_once_where_no_thread_is_started(pool: Pool, monkeypatch: pytest.MonkeyPatch) -> None:
    """The caller makes it, and a worker that is free later does not make it again."""
    gate, made = threading.Event(), list[str]()
    waiting = begin_call(gate.wait, pool)
    monkeypatch.setattr(threading.Thread, "start", refuse)
    call = begin_call(lambda: made.append("made"), pool)
    try:
        next(call)
    finally:
        gate.set()
    next(waiting)
    pool.close()
    assert made == ["made"]


@pytest.mark.parametrize("refused_count", [0, 1, 3])
def test_one_worker_makes_calls_in_their_order(monkeypatch: pytest.MonkeyPatch, refused_count: int) -> None:
    """One after another, also where it is asked for them at once, and where no thread was started for the first."""
    monkeypatch.setattr(threading.Thread, "start", refuse_first(threading.Thread.start, refused_count))
    pool = ThreadRuntime().pool(1)
    made, busy = list[int](), threading.Lock()

    def make(number: int) -> int:
        assert busy.acquire(blocking=False)
        made.append(sum(range(10_000)) * 0 + number)
        busy.release()
        return number

    calls = deque[Iterator[int]]()
    for number in range(500):
        calls.append(begin_call(partial(make, number), pool))
        if len(calls) > 2:
            next(calls.popleft())
    for call in calls:
        next(call)
    pool.close()
    assert "".join(map(chr, made)) == "".join(map(chr, range(500)))


@pytest.mark.parametrize("refused", [range(100), range(1, 100), range(1), range(2, 3)], ids=str)
def test_items_are_mapped_with_as_many_threads_as_there_may_be(monkeypatch: pytest.MonkeyPatch, refused: range) -> None:
    """Each call is made once, and its result stands where its item did; the first error is raised."""
    start, asked, made = threading.Thread.start, itertools.count(), list[int]()

    def start_some(thread: threading.Thread) -> None:
        if next(asked) in refused:
            refuse()
        start(thread)

    def square(number: int) -> int:
        made.append(number)
        if number < 0:
            raise ValueError(number)
        return number * number

    monkeypatch.setattr(threading.Thread, "start", start_some)
    assert map_in_pool(ThreadRuntime(), square, range(20), worker_count_max=4) == [n * n for n in range(20)]
    assert sorted(made) == [*range(20)]
    with pytest.raises(ValueError, match="-1"):
        map_in_pool(ThreadRuntime(), square, [1, -1, -2], worker_count_max=4)


class Body:
    """What a call is about."""


def refuse_body(_: Body) -> None:
    """A call that fails."""
    raise ValueError("failed")


def begin_calls(bodies: list[Body]) -> None:
    """Begin a call for each in a pool, and ask for their results."""
    pool = ThreadRuntime().pool(2)
    calls = [begin_call(partial(refuse_body, body), pool) for body in bodies]
    for call in calls:
        with suppress(ValueError):
            next(call)
    pool.close()


def map_bodies(bodies: list[Body]) -> None:
    """Call for each with a pool."""
    with suppress(ValueError):
        map_in_pool(ThreadRuntime(), refuse_body, bodies, worker_count_max=2)


@pytest.mark.parametrize("call", [map_bodies, begin_calls])
def test_a_failed_call_keeps_nothing_of_its_item(call: Callable[[list[Body]], None]) -> None:
    """What it was about, such as a large body, is free at once, and not with the next collection of garbage."""

    def call_for_bodies() -> list[weakref.ref[Body]]:
        bodies = [Body() for _ in range(3)]
        call(bodies)
        return [weakref.ref(body) for body in bodies]

    gc.disable()
    try:
        assert [body() for body in call_for_bodies()] == [None] * 3
    finally:
        gc.enable()


def test_a_thread_that_cannot_be_started_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """What needs one says which, and what limits it."""
    monkeypatch.setattr(threading.Thread, "start", refuse)
    with pytest.raises(Unavailable, match=r"reader of x.*ulimit -u"):
        ThreadRuntime().spawn(lambda: None, name="reader of x")


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
