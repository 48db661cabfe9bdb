"""A database in memory with a clock that stands still, and short words for what tests do with it."""

from __future__ import annotations

import random
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Any

import pytest

from lakebed.kv.admin import DatabaseAdmin
from lakebed.kv.database import Database
from lakebed.kv.database_location import DatabaseLocation
from lakebed.kv.options import CollectorOptions, DatabaseOptions, ReaderOptions
from lakebed.kv.reader import DatabaseReader
from lakebed.objects.open import open_store
from lakebed.objects.port import ObjectStore
from lakebed.runtime import Environment
from lakebed.testing.clock import ManualClock

BY_HAND = DatabaseOptions(background=False)
READ_BY_HAND = ReaderOptions(background=False)


@dataclass
class ManualDatabase:
    """A database that is driven step by step: nothing happens in the background."""

    store: ObjectStore
    clock: ManualClock
    environment: Environment

    @classmethod
    def new(cls, *, seed: int = 1) -> ManualDatabase:
        """An empty place."""
        clock = ManualClock()
        environment = Environment(clock=clock, rng=random.Random(seed))
        return cls(open_store(f"memory://{uuid.uuid4()}/manual", environment=environment), clock, environment)

    def place(self, wrap: Callable[[ObjectStore], ObjectStore] = lambda store: store) -> DatabaseLocation:
        """The database's place, perhaps behind a store that fails or counts."""
        return DatabaseLocation(
            wrap(self.store), self.environment, lambda url: wrap(open_store(url, environment=self.environment))
        )

    @property
    def admin(self) -> DatabaseAdmin:
        """Verbs by place."""
        return DatabaseAdmin(self.place())

    def copy(self, *, seed: int = 2) -> ManualDatabase:
        """The same objects at another place, at the same time, with another environment."""
        other = ManualDatabase.new(seed=seed)
        other.clock.advance(self.clock.monotonic_s())
        for meta in self.store.list():
            other.store.put(meta.path, self.store.get(meta.path))
        return other

    def open(self, **settings: Any) -> Database:
        """A writer, without a thread."""
        options = replace(BY_HAND, **settings)
        return Database.open(self.place(), options=options)

    @contextmanager
    def writer(self, **settings: Any) -> Iterator[Database]:
        """A writer for a block."""
        with self.open(**settings) as database:
            yield database

    def write(self, *numbers: int, files: bool = True) -> None:
        """Open, write keys of these numbers, close; without `files` they stay in the log."""
        database = self.open()
        for number in numbers:
            database.put(key(number), value(number))
        database.flush(memtable=files)
        database.close()

    def reader(self, checkpoint: str | None = None, **settings: Any) -> DatabaseReader:
        """A reader, without a thread."""
        return DatabaseReader.open(self.place(), checkpoint, options=replace(READ_BY_HAND, **settings))

    def collect(self) -> Any:
        """Delete all that may go, however young."""
        return self.admin.collect(CollectorOptions(grace=timedelta(0), destroyed_grace=timedelta(0)))

    def numbers(self, reader: Any) -> list[int]:
        """Numbers of the keys that can be read, after a look at their values."""
        scan = list(reader.scan())
        assert all(value(number_of(item)) == pin for item, pin in scan)
        return [number_of(item) for item, _ in scan]


def key(number: int) -> bytes:
    """The key of a number."""
    return b"key %06d" % number


def value(number: int) -> bytes:
    """Its value."""
    return b"value %d" % number


def number_of(one: bytes) -> int:
    """The number of a key."""
    return int(one.removeprefix(b"key "))


@pytest.fixture
def manual() -> ManualDatabase:
    """An empty place for a database."""
    return ManualDatabase.new()
