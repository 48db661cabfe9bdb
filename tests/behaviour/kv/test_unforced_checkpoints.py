"""A checkpoint that forces no write waits for the log thread, and no longer than the log may take."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import TypeVar

import pytest

from lakebed.errors import LakebedError, Unavailable
from lakebed.kv import CheckpointScope, Database, DatabaseOptions
from lakebed.kv.database_location import DatabaseLocation
from lakebed.objects import open_store
from lakebed.testing import Call, Scheduler
from lakebed.testing.wrapper import StoreWrapper

R = TypeVar("R")
INTERVAL_MS = 2_000


class NoLog(StoreWrapper):
    """Takes no log object while it is down."""

    is_down = False

    def intercept(self, call: Call, perform: Callable[[], R]) -> R:
        """Refuse it, or perform."""
        if self.is_down and call.kind == "put" and call.path.startswith("wal/"):
            raise Unavailable("the store is down", path=call.path)
        return perform()


@pytest.mark.parametrize("is_down", [False, True])
def test_an_unforced_checkpoint_waits_for_one_interval(is_down: bool) -> None:
    """The thread writes the log when it is due; if it cannot, the caller tries it after the interval, and is told."""
    scheduler = Scheduler(3)
    environment = scheduler.environment()
    store = NoLog(open_store(f"memory://unforced-{random.random()}", environment=environment))
    place = DatabaseLocation(store, environment, open_store)
    took_s: list[float] = []

    def own() -> None:
        database = Database.open(place, options=DatabaseOptions(flush_interval_max_ms=INTERVAL_MS))
        database.put(b"a", b"1", await_durable=False)
        store.is_down = is_down
        began_s = environment.clock.monotonic_s()
        if is_down:
            with pytest.raises(LakebedError, match="the store is down"):
                database.create_checkpoint(scope=CheckpointScope.ALL_UNFORCED)
        else:
            database.create_checkpoint(scope=CheckpointScope.ALL_UNFORCED)
        took_s.append(environment.clock.monotonic_s() - began_s)
        store.is_down = False
        database.close()

    scheduler.spawn("owner", own)
    scheduler.run()
    (waited_s,) = took_s
    if is_down:
        assert INTERVAL_MS / 1000 <= waited_s < 10
    else:
        assert 0 < waited_s < INTERVAL_MS / 1000
