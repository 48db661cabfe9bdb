"""Databases in memory for the tests of this folder, with a clock that tests move."""

from __future__ import annotations

import random
import uuid
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from lakebed.errors import LakebedError
from lakebed.kv import Database, DatabaseOptions
from lakebed.kv.database_location import DatabaseLocation
from lakebed.runtime import Environment
from lakebed.testing import ManualClock

SMALL: dict[str, Any] = {
    "background": False,
    "l0_sst_bytes": 4_000,
    "wal_bytes_max": 2_000,
    "unflushed_bytes_max": 12_000,
    "l0_count_max": 4,
    "l0_compaction_count": 2,
    "run_compaction_count": 2,
    "run_file_bytes": 4_000,
    "block_bytes": 256,
    "cache_bytes": 1 << 20,
}
"""Everything so small that a few hundred rows pass through all levels; the caller runs the steps."""


@pytest.fixture
def place(clock: ManualClock) -> DatabaseLocation:
    """An empty place in memory; other stores are the matter of `tests/behaviour/objects` and `test_stores.py`."""
    environment = Environment(clock=clock, rng=random.Random(7))
    return DatabaseLocation.at(f"memory://{uuid.uuid4().hex}/db", environment=environment, durable=False)


@pytest.fixture
def open_at() -> Iterator[Callable[..., Database]]:
    """Open a database with small limits and no threads; what is still open at the end is closed."""
    opened: list[Database] = []

    def open_small(
        place: DatabaseLocation, *, take_over: bool = False, after_destroy: bool = False, **options: Any
    ) -> Database:
        settings = DatabaseOptions(**{**SMALL, **options})
        database = Database.open(place, options=settings, take_over=take_over, after_destroy=after_destroy)
        opened.append(database)
        return database

    yield open_small
    for database in opened:
        try:
            database.close()
        except LakebedError as error:
            print(f"closing {database.url}: {error}")


@pytest.fixture
def db(place: DatabaseLocation, open_at: Callable[..., Database]) -> Database:
    """A new database."""
    return open_at(place)
