"""What databases cost in requests, counted by the S3 server's own log and by our port."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from itertools import pairwise
from typing import Any

import pytest

from lakebed.kv import Database, DatabaseAdmin, DatabaseOptions, DatabaseReader, ReaderOptions
from lakebed.kv.database_location import DatabaseLocation
from lakebed.kv.options import CollectorOptions
from lakebed.runtime import Environment
from lakebed.testing import ManualClock

BY_HAND = DatabaseOptions(background=False, cache_bytes=8 << 20, row_cache_bytes=0, block_bytes=1_000)
READ_BY_HAND = ReaderOptions(background=False, cache_bytes=8 << 20)
EVERYTHING = CollectorOptions(grace=timedelta(0), destroyed_grace=timedelta(0))
LINE = re.compile(r'"(?:\x1b\[[\d;]*m)*([A-Z]+) /([^/ ?]+)/?([^ ?]*)\??([^ ]*) HTTP/')

Counts = dict[str, int]


def get_put_list(get: int = 0, put: int = 0, listed: int = 0, **others: int) -> Counts:
    """Counts as `Bucket.counted` gives them."""
    return {name: count for name, count in {"GET": get, "PUT": put, "LIST": listed, **others}.items() if count}


@dataclass
class Bucket:
    """A bucket of the server, and what was asked of it."""

    server: Any
    url: str
    clock: ManualClock = field(default_factory=ManualClock)

    def place(self, name: str = "orders") -> DatabaseLocation:
        """A database's place."""
        return DatabaseLocation.at(
            f"{self.url}/{name}", storage_options=self.server.options, environment=Environment(clock=self.clock)
        )

    def admin(self, name: str = "orders") -> DatabaseAdmin:
        """Its verbs."""
        return DatabaseAdmin(self.place(name))

    def open(self, name: str = "orders") -> Database:
        """Open it to write."""
        return self.admin(name).open(options=BY_HAND, take_over=True)

    def filled(self, row_count: int, name: str = "orders") -> None:
        """Rows in one file."""
        with self.open(name) as db:
            for number in range(row_count):
                db.put(b"%08d" % number, b"x" * 100, await_durable=False)
            db.flush(memtable=True)

    @contextmanager
    def counted(self) -> Iterator[Counts]:
        """The requests made inside the block, by kind, as the server saw them."""
        bucket = self.url.split("/")[2]
        before = len(self.server.request_lines())
        counts: Counts = {}
        yield counts
        seen: Counter[str] = Counter()
        for line in self.server.request_lines()[before:]:
            match = LINE.search(line)
            if match is None or match[2] != bucket:
                continue
            kind = "LIST" if "list-type" in match[4] else "DELETE" if "delete" in match[4] else match[1]
            seen[kind] += 1
        counts.update(seen)


@pytest.fixture
def bucket(s3_server: Any) -> Bucket:
    """An empty bucket."""
    return Bucket(s3_server, s3_server.url())


def test_a_durable_put(bucket: Bucket) -> None:
    """Exactly 1 PUT, by the server's count and by ours; nothing for a put without a wait."""
    with bucket.open() as db:
        store = db.admin.location.store
        db.put(b"first", b"")
        for number in range(5):
            with bucket.counted() as at_server, store.count() as at_port:
                db.put(b"%d" % number, b"")
            assert at_server == get_put_list(put=1)
            assert (at_port.put, at_port.total) == (1, 1)
        with bucket.counted() as at_server:
            db.put(b"k", b"", await_durable=False)
            assert db.get(b"k") == b""
        assert at_server == {}
        with bucket.counted() as at_server:
            db.get(b"k", linearizable=True)
        assert at_server == get_put_list(put=1, HEAD=1), "what was seen is made durable, and the fence looked for"
        with bucket.counted() as at_server:
            db.flush(memtable=True)
        assert at_server == get_put_list(put=2, listed=1)


@pytest.mark.parametrize("row_count", [10, 3_000])
def test_a_checkpoint(bucket: Bucket, row_count: int) -> None:
    """1 GET + 1 PUT + at most 3 LIST, with or without an open writer, for any contents of the database and its log."""
    bucket.filled(row_count)
    with bucket.counted() as without_writer:
        bucket.admin().create_checkpoint()
    with bucket.open() as db:
        for number in range(5):
            db.put(b"%d" % number, b"")
        with bucket.counted() as beside:
            bucket.admin().create_checkpoint()
        with bucket.counted() as by_writer:
            db.create_checkpoint()
    for seen in (without_writer, beside, by_writer):
        assert (seen.pop("GET"), seen.pop("PUT")) == (1, 1)
        assert seen.pop("LIST") <= 3
        assert not seen


def test_a_cold_get(bucket: Bucket) -> None:
    """1 GET of a block once the file's index is cached, none when the filter says no, none when the block is cached."""
    bucket.filled(2_000)
    with DatabaseReader.open(bucket.place(), options=READ_BY_HAND) as reader:
        with bucket.counted() as first:
            assert reader.get(b"%08d" % 0) is not None
        assert first == get_put_list(get=2), "the file's tail and a block"
        for number in (500, 1_000, 1_999):
            with bucket.counted() as cold:
                assert reader.get(b"%08d" % number) is not None
            assert cold == get_put_list(get=1)
        with bucket.counted() as again:
            assert reader.get(b"%08d" % 1_000) is not None
        assert again == {}
        with bucket.counted() as absent:
            for number in range(1, 200):
                assert reader.get(b"%08d?" % number) is None
        assert absent.get("GET", 0) <= 8, "about one in a hundred passes the filter by chance"
    with bucket.open() as db:
        assert db.get(b"%08d" % 0) is not None
        with bucket.counted() as cold:
            assert db.get(b"%08d" % 700) is not None
        assert cold == get_put_list(get=1)


def clone_cost(bucket: Bucket, clone: str, parent: str) -> Counts:
    """What a clone of the latest costs."""
    with bucket.counted() as seen:
        bucket.admin(clone).create_clone(bucket.place(parent).url)
    return seen


def test_a_clone(bucket: Bucket, tell: Callable[[str], None]) -> None:
    """The same for 100 rows and for 10,000; 1 GET + 1 PUT more an object of the log; as many more an ancestor."""
    bucket.filled(100, "small")
    bucket.filled(10_000, "large")
    small, large = clone_cost(bucket, "a", "small"), clone_cost(bucket, "b", "large")
    assert small == large
    assert sum(small.values()) <= 20
    with bucket.open("small") as db:
        for number in range(6):
            db.put(b"%d" % number, b"")
        with_log = clone_cost(bucket, "c", "small")
    more = {kind: with_log[kind] - small[kind] for kind in with_log if with_log[kind] != small.get(kind)}
    assert more == get_put_list(get=6, put=6, listed=1), "the log's objects are copied, six records"
    bucket.filled(100, "root")  # an older clone's pin would be looked at, 1 GET more
    names, costs = ["root", "d1", "d2", "d3"], []
    for parent, child in pairwise(names):
        costs.append(sum(clone_cost(bucket, child, parent).values()))
        bucket.filled(10, child)  # from now on it owns a file, too
    steps = [after - before for before, after in pairwise(costs)]
    tell(f"requests of a clone: {small}; of clones of clones {costs}")
    assert len(set(steps)) == 1, costs
    assert steps[0] <= 9


def test_a_collection(bucket: Bucket, tell: Callable[[str], None]) -> None:
    """LISTs, 1 DELETE a thousand objects, 1 GET a pinned manifest, 1 GET a 64 manifests passed, and the update."""
    bucket.filled(10)
    admin = bucket.admin()

    def collect() -> Counts:
        with bucket.counted() as seen:
            admin.collect(EVERYTHING)
        return seen

    collect(), collect()
    nothing = collect()
    assert set(nothing) <= {"GET", "LIST"}
    assert nothing["GET"] == 1
    assert nothing["LIST"] <= 5, "one of them for probes of processes that died: no lake looks for them here"
    costs = []
    for pins in (0, 5):
        with bucket.open() as db:
            for number in range(5):
                db.put(b"%d" % number, b"")
                db.flush(memtable=True)
                if pins:
                    admin.create_checkpoint()
        costs.append(collect())
    without, pinned = costs
    assert pinned["GET"] - without["GET"] == 5
    assert {**pinned, "GET": 0} == {**without, "GET": 0}
    assert without["DELETE"] <= 3, "one for each kind of object"
    with bucket.open() as db:
        for number in range(150):
            db.put(b"%d" % number, b"")
            if number % 2:
                db.flush(memtable=True)
    many = collect()
    tell(f"requests of a collection: of nothing {nothing}, of some {without}, with 5 pins {pinned}, of many {many}")
    assert many["DELETE"] == without["DELETE"], "hundreds of objects, and as many requests"
    assert many["GET"] - pinned["GET"] <= 2
    assert many["PUT"] == without["PUT"]


def test_opening_and_closing(bucket: Bucket, tell: Callable[[str], None]) -> None:
    """After a close: opening 3 LIST, 2 GET, 2 PUT, where the log has no tail; closing 2 PUT, 1 LIST, 1 GET."""
    bucket.filled(1_000)
    with bucket.counted() as opening:
        db = bucket.open()
    with bucket.counted() as closing:
        db.close()
    with bucket.counted() as reading:
        reader = DatabaseReader.open(bucket.place(), options=READ_BY_HAND)
    with bucket.counted() as leaving:
        reader.close()
    with bucket.counted() as following:
        DatabaseReader.open(bucket.place(), options=ReaderOptions(background=False, follow_latest=True)).close()
    tell(f"requests of opening {opening}, closing {closing}; reader {reading}, {leaving}; follower {following}")
    assert opening == get_put_list(get=2, put=2, listed=3)
    assert closing == get_put_list(get=1, put=2, listed=1)
    assert (reading["GET"], reading["PUT"], set(reading)) == (1, 1, {"GET", "PUT", "LIST"})
    assert reading["LIST"] <= 4
    assert following["GET"] == 1
    assert set(following) == {"GET", "LIST"}


def test_an_idle_minute(bucket: Bucket, tell: Callable[[str], None]) -> None:
    """An idle open database: 1 LIST a poll, 1 GET + 1 PUT a renewal; a reader 2 LIST a poll."""
    bucket.filled(10)
    with bucket.open() as db:
        with bucket.counted() as writer:
            for second in range(1, 61):
                bucket.clock.advance(1)
                db.renew_once()
                if second % 10 == 0:
                    db.poll_once()
        with DatabaseReader.open(bucket.place(), options=READ_BY_HAND) as reader, bucket.counted() as polls:
            for _ in range(6):
                bucket.clock.advance(10)
                reader.poll_once()
    tell(f"an idle minute: writer {writer}, reader {polls}")
    assert writer == get_put_list(get=6, put=6, listed=6)
    assert polls == get_put_list(listed=12)
