"""What tests of committed data share: stores to look into, entries by number, and rows of them."""

from __future__ import annotations

import random
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import pyarrow as pa
import pytest

from lakebed.lsm.cache import BlockCache
from lakebed.objects import open_store
from lakebed.repo.committed.metarange import Metarange
from lakebed.repo.committed.store import Committed
from lakebed.repo.model.entry import encode_entries
from lakebed.repo.model.model import Entry, MetarangeRef
from lakebed.repo.model.options import RangeOptions
from lakebed.repo.model.rows import rows_of
from lakebed.runtime import Environment

SMALL = RangeOptions(entry_count_min=4, raggedness=16, entry_count_max=64, bytes_max=1 << 20, block_bytes=512)
"""Ranges of a dozen entries in some blocks."""


def path_at(number: int) -> bytes:
    """Paths in the order of numbers."""
    return b"data/part-%08d.parquet" % number


class Rows:
    """Encoded entries by number; another `tag` is another object at the same path."""

    def values(self, numbers: Iterable[int], *, tag: int = 0, place: int = 0) -> dict[bytes, bytes]:
        """Path and value; another `place` is the same object at another address."""
        numbers = list(numbers)
        entries = [Entry(f"data/{place:026}", number % 1000, f"{tag:016x}{number:016x}", tag) for number in numbers]
        return dict(zip(map(path_at, numbers), encode_entries(entries), strict=True))

    def batches(self, rows: Mapping[bytes, bytes], *, size: int = 8192) -> Iterator[pa.RecordBatch]:
        """The rows of a dictionary, in batches of a size."""
        paths = sorted(rows)
        for start in range(0, len(paths), size):
            some = paths[start : start + size]
            yield rows_of(some, [rows[path] for path in some])

    def write(
        self, committed: Committed, rows: Mapping[bytes, bytes], *, base: MetarangeRef | None = None, size: int = 8192
    ) -> MetarangeRef:
        """A metarange of these rows."""
        writer = committed.writer(base=base)
        for batch in self.batches(rows, size=size):
            writer.write_rows(batch)
        return writer.finish()

    def read(self, metarange: Metarange, start: bytes | None = None, end: bytes | None = None) -> dict[bytes, bytes]:
        """All rows, checked to be sorted."""
        result: dict[bytes, bytes] = {}
        before = b""
        for batch in metarange.rows(start, end):
            for path, value in zip(batch.column(0).to_pylist(), batch.column(1).to_pylist(), strict=True):
                assert not result or before < path
                result[path] = value
                before = path
        return result


@pytest.fixture
def rows() -> Rows:
    """Entries by number."""
    return Rows()


@pytest.fixture
def small() -> RangeOptions:
    """Ranges of a dozen entries."""
    return SMALL


@pytest.fixture
def repository_store() -> Any:
    """A fresh memory store."""
    return open_store(f"memory://{uuid.uuid4().hex}")


@pytest.fixture
def opened_on() -> Iterator[Callable[..., Committed]]:
    """``(store, options=..., cache_bytes=..., seed=...)``: committed data with a cache and chance of its own."""
    made: list[Committed] = []

    def make(
        store: Any, *, options: RangeOptions = SMALL, cache_bytes: int = 8 << 20, environment: Environment | None = None
    ) -> Committed:
        environment = environment or Environment(rng=random.Random(len(made)))
        made.append(Committed(store, options=options, cache=BlockCache(cache_bytes), environment=environment))
        return made[-1]

    yield make
    for committed in made:
        committed.close()


@pytest.fixture
def committed(repository_store: Any, opened_on: Callable[..., Committed]) -> Committed:
    """Committed data with small ranges in a fresh store."""
    return opened_on(repository_store)
