"""PostgreSQL crashes again and again under threads that read and write one key-value store."""

from __future__ import annotations

import os
import signal
import threading
import traceback
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import psycopg
import pytest

from lakebed.errors import Conflict, OutcomeUnknown, Unavailable
from lakebed.key_value.open import open_key_value
from lakebed.key_value.port import KeyValue
from worlds.waiting import pause, wait_until


def crash(cluster: Any, name: str) -> None:
    """Kill one process of a database's, and wait until PostgreSQL has recovered."""
    pids: list[tuple[int]] = []
    with suppress(psycopg.Error):
        pids = cluster.run(
            f"SELECT pid FROM pg_stat_activity WHERE datname = '{name}' AND pid <> pg_backend_pid() LIMIT 1"
        )
    if pids:
        with suppress(ProcessLookupError):
            os.kill(pids[0][0], signal.SIGKILL)
    wait_until(cluster.answers)


def counts_up(key_value: KeyValue, key: bytes, stop: threading.Event, counts: Counter[str]) -> None:
    """Add one to a number, with conditional writes and looks of all kinds; what was acknowledged must be there."""
    low = high = 0
    while not stop.is_set():
        try:
            raw = key_value.get(key)
            with key_value.snapshot() as snapshot:
                seen = snapshot.get(key)
                rows = dict(snapshot.scan(b"n/", b"n0"))
            assert rows.get(key) == seen
            value = int(seen or b"0")
            assert low <= int(raw or b"0") <= value <= high, (low, raw, seen, high)
            low = high = value
            high += 1
            key_value.write([(key, b"%d" % high), (key + b"/beside", b"x")], expected={key: seen})
            low = high
            counts["acknowledged"] += 1
        except Unavailable:
            counts["unavailable"] += 1
        except OutcomeUnknown:
            counts["unknown"] += 1
        except Conflict:  # ours alone: an unclear write of ours came in between
            counts["conflict"] += 1
        pause(0.001)


def storm(cluster: Any, *, crashes: int) -> dict[str, int]:
    """Crashes under eight threads at two handles; what the threads met."""
    url = cluster.make_database()
    name = url.rsplit("/", 1)[1].split("?")[0]
    stop = threading.Event()
    counts: Counter[str] = Counter()
    wrongs: list[str] = []

    def run(key_value: KeyValue, key: bytes) -> None:
        try:
            counts_up(key_value, key, stop, counts)
        except BaseException as error:
            wrongs.append("".join(traceback.format_exception(error)))
            stop.set()

    handles = [open_key_value(url) for _ in range(2)]
    threads = [
        threading.Thread(target=run, args=(handle, b"n/%d%d" % (item, number)))
        for item, handle in enumerate(handles)
        for number in range(4)
    ]
    for thread in threads:
        thread.start()
    for _ in range(crashes):
        if stop.wait(0.3):
            break
        crash(cluster, name)
    stop.wait(0.3)
    stop.set()
    for thread in threads:
        thread.join()
    for handle in handles:
        handle.close()
    assert not wrongs, wrongs[0]
    return dict(counts)


@pytest.mark.parametrize("crashes", [3, pytest.param(50, marks=pytest.mark.long)])
def test_a_crash_is_a_moment_without_answers(postgresql: Any, tell: Callable[[str], None], crashes: int) -> None:
    """PostgreSQL crashes under readers and writers: they get an error, or an unknown outcome, and go on."""
    counts = storm(postgresql, crashes=crashes)
    tell(f"crashes of PostgreSQL: {counts}")
    assert counts["acknowledged"] > 10
