"""A small database that is driven step by step: `ManualDatabase`, for tests of what happens next to a writer.

Owns: short words for what such tests do. Rows are numbers: the value says which, so a wrong row is noticed. Invariants:
no thread, no time but the manual clock's; two databases never have a file id in common, because what was read of a file
stays in the process's cache.
"""

from __future__ import annotations

import random
import uuid
from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import timedelta
from itertools import count
from typing import Any, Final

from lakebed.kv.admin import DatabaseAdmin
from lakebed.kv.database import Database
from lakebed.kv.database_location import DatabaseLocation
from lakebed.kv.model import Checkpoint
from lakebed.kv.options import CollectorOptions, DatabaseOptions, ReaderOptions
from lakebed.kv.reader import DatabaseReader
from lakebed.objects.open import open_store
from lakebed.objects.port import ObjectStore
from lakebed.reclaim.model import CollectionReport
from lakebed.runtime import Environment
from lakebed.testing.clock import ManualClock

_BY_HAND: Final = DatabaseOptions(background=False, compaction=False, cache_bytes=1 << 20)
_READ_BY_HAND: Final = ReaderOptions(background=False, cache_bytes=0)
"""Nothing is cached: a file that is gone is missed at once."""

_SEEDS: Final = count(1)


def key_of(number: int) -> bytes:
    """The key of a number."""
    return b"key %06d" % number


def value_of(number: int) -> bytes:
    """Its value."""
    return b"value %d" % number


def number_of(key: bytes) -> int:
    """The number of a key."""
    return int(key.removeprefix(b"key "))


@dataclass
class ManualDatabase:
    """A database in memory, with a clock that stands still.

    Example:
        >>> manual = ManualDatabase.new()
        >>> manual.write(1, 2)
        >>> with manual.reader() as reader:
        ...     manual.numbers(reader)
        [1, 2]
    """

    store: ObjectStore
    clock: ManualClock
    environment: Environment

    @classmethod
    def new(cls) -> ManualDatabase:
        """An empty place."""
        clock = ManualClock()
        environment = Environment(clock=clock, rng=random.Random(next(_SEEDS)))
        return cls(open_store(f"memory://{uuid.uuid4()}/manual", environment=environment), clock, environment)

    def copy(self) -> ManualDatabase:
        """The same objects at another place, at the same time."""
        other = ManualDatabase.new()
        other.clock.advance(self.clock.monotonic_s())
        for meta in self.store.list():
            other.store.put(meta.path, self.store.get(meta.path))
        return other

    def place(self, wrap: Callable[[ObjectStore], ObjectStore] = lambda store: store) -> DatabaseLocation:
        """The database's place, perhaps behind a store that fails or counts."""
        return DatabaseLocation(
            wrap(self.store), self.environment, lambda url: wrap(open_store(url, environment=self.environment))
        )

    @property
    def admin(self) -> DatabaseAdmin:
        """The verbs that need no open database."""
        return DatabaseAdmin(self.place())

    def open(self, **settings: Any) -> Database:
        """A writer without a thread; `settings` of `DatabaseOptions`."""
        return Database.open(self.place(), options=replace(_BY_HAND, **settings), take_over=True)

    def write(self, *numbers: int, files: bool = True) -> None:
        """Open, write these numbers, close; without `files` they stay in the log."""
        with self.open() as database:
            for number in numbers:
                database.put(key_of(number), value_of(number))
            database.flush(memtable=files)

    def fill(self) -> None:
        """Numbers 1 to 3 in two files, 4 in the log."""
        self.write(1, 2)
        self.write(3)
        self.write(4, files=False)

    def reader_pins(self) -> list[Checkpoint]:
        """Live checkpoints of readers, oldest first."""
        return [checkpoint for checkpoint in self.admin.list_checkpoints() if checkpoint.owner.kind == "reader"]

    def reader(self, checkpoint: str | None = None, **settings: Any) -> DatabaseReader:
        """A reader without a thread and without a cache; `settings` of `ReaderOptions`."""
        return DatabaseReader.open(self.place(), checkpoint, options=replace(_READ_BY_HAND, **settings))

    def collect(self) -> CollectionReport:
        """Delete all that may go, however young."""
        return self.admin.collect(CollectorOptions(grace=timedelta(0), destroyed_grace=timedelta(0)))

    def numbers(self, readable: Any) -> list[int]:
        """Numbers that can be read from a reader, snapshot or database, sorted; looks at their values too."""
        scan = list(readable.scan())
        assert all(value_of(number_of(key)) == value for key, value in scan)
        return [number_of(key) for key, _ in scan]
