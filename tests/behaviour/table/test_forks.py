"""A process that is forked while other threads of it use tables: the child has none of them, and waits for none.

Tables of one process share nothing that waits either: a store that does not answer stops those who use it.
"""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TypeVar

import pyarrow as pa
import pytest

from lakebed.metrics import default_registry
from lakebed.objects.open import open_store
from lakebed.table.branch.manifest_reader import PROCESS_CACHE
from lakebed.table.table import Table
from lakebed.testing.wrapper import Call, StoreWrapper

R = TypeVar("R")
ROWS = pa.table({"id": [1, 2, 3]})


class Hanging(StoreWrapper):
    """One thread hangs in front of the first call of a kind on a path that begins so, until it is let go.

    Args:
        at: such as ``get manifest/``.
    """

    def __init__(self, url: str, at: str) -> None:
        super().__init__(open_store(url))
        self._where = at
        self._entered = threading.Lock()
        self.hangs, self.let_go = threading.Event(), threading.Event()

    def intercept(self, call: Call, perform: Callable[[], R]) -> R:
        """Hang, or not."""
        if f"{call.kind} {call.path}".startswith(self._where) and self._entered.acquire(blocking=False):
            self.hangs.set()
            assert self.let_go.wait(60)
        return perform()


@contextmanager
def hanging(table: Table, store: Hanging, act: Callable[[Table], object]) -> Iterator[None]:
    """A block while which another thread hangs in a call of a table."""
    thread = threading.Thread(target=act, args=(table,))
    thread.start()
    try:
        assert store.hangs.wait(60)
        yield
    finally:
        store.let_go.set()
        thread.join(60)


def new_table(folder: Path) -> str:
    """The address of a table with three rows."""
    store = open_store(str(folder))
    Table.create(store, name="t", schema=ROWS.schema).append(ROWS)
    return store.root_url


def in_child(act: Callable[[], bool]) -> str:
    """What becomes of a call in a forked child: ``done``, ``wrong``, or ``hangs`` (for longer than a minute)."""
    child = os.fork()
    if child == 0:
        code = 1
        try:
            signal.alarm(60)
            code = 0 if act() else 2
        finally:
            os._exit(code)
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    return {0: "done", -signal.SIGALRM: "hangs"}.get(code, "wrong")


def test_a_store_that_hangs_stops_no_reader_of_another_table(tmp_path: Path) -> None:
    """What one thread plans and waits for is no other thread's business."""
    store = Hanging(new_table(tmp_path / "a"), "get manifest/")
    PROCESS_CACHE.clear()
    other = Table.open(open_store(new_table(tmp_path / "b")), name="t")
    counts: list[int] = []
    reader = threading.Thread(target=lambda: counts.append(other.read().num_rows), daemon=True)
    with hanging(Table.open(store, name="t"), store, Table.read):
        reader.start()
        reader.join(30)
        assert counts == [3]


@pytest.mark.parametrize(("at", "act"), [("get manifest/", Table.read), ("put snapshot/", lambda it: it.append(ROWS))])
def test_a_forked_child_waits_for_no_thread_of_its_parent(
    tmp_path: Path, at: str, act: Callable[[Table], object]
) -> None:
    """It reads, and writes, a table that another thread of the parent is reading or committing to."""
    store = Hanging(new_table(tmp_path / "a"), at)
    PROCESS_CACHE.clear()
    table = Table.open(store, name="t")
    with hanging(table, store, act):
        assert in_child(lambda: table.read().num_rows == 3 and table.append(ROWS).total_record_count == 6) == "done"
    assert table.read().num_rows == (6 if act is Table.read else 9)


def test_a_forked_child_waits_for_no_cache_or_count(tmp_path: Path) -> None:
    """Whichever lock of them another thread of the parent holds at that moment."""
    table = Table.open(open_store(new_table(tmp_path)), name="t")
    with PROCESS_CACHE._lock:
        assert in_child(lambda: table.read().num_rows == 3) == "done"
    for family in default_registry._metrics.values():
        with family._lock:
            assert in_child(lambda: table.read().num_rows == 3) == "done"
