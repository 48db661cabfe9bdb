"""Limits of writes, to the byte and the row: when a memtable is full, the log is written, a writer has to work."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from lakebed.errors import Conflict, InvalidRequest, Unavailable
from lakebed.kv import claim
from lakebed.kv.batch import WriteBatch
from lakebed.kv.claim import claim_all
from lakebed.kv.wal import WalLog
from lakebed.kv.wal_record import WalRecord
from lakebed.lsm.memtable import Memtable
from lakebed.lsm.model import KEY_BYTES_MAX
from worlds.errors import raises
from worlds.kv.manual_database import ManualDatabase, key_of, value_of

ROW = len(key_of(1)) + len(value_of(1))
"""Bytes of a key and its value."""


def put(database: Any, *numbers: int, await_durable: bool = False) -> None:
    """Put numbers; their rows are in memory alone, unless they are awaited."""
    for number in numbers:
        database.put(key_of(number), value_of(number), await_durable=await_durable)


def memtable_bytes_of(count: int) -> int:
    """The size of a memtable with so many rows."""
    table = Memtable(1)
    for number in range(count):
        table.put(key_of(number), value_of(number))
    return table.size_bytes


@pytest.mark.parametrize("more", [-1, 0, 1])
@pytest.mark.parametrize("count", [1, 2, 7])
def test_a_memtable_is_full_at_its_limit(manual: ManualDatabase, count: int, more: int) -> None:
    """With as many bytes as `l0_sst_bytes` it takes no further row; with one byte less it does."""
    limit = memtable_bytes_of(count) + more
    with manual.open(l0_sst_bytes=limit, wal_bytes_max=1 << 30) as database:
        put(database, *range(count))
        assert database.stats().memtables_waiting == 0
        put(database, count)
        assert database.stats().memtables_waiting == (0 if more > 0 else 1)
        put(database, count + 1)
        assert database.stats().memtables_waiting == (2 if count == 1 and more <= 0 else 1)
        assert manual.numbers(database) == list(range(count + 2))


@pytest.mark.parametrize("more", [-1, 0, 1])
@pytest.mark.parametrize("count", [1, 2, 5])
def test_a_writer_flushes_what_is_beyond_its_limit(manual: ManualDatabase, count: int, more: int) -> None:
    """More than `unflushed_bytes_max` in memory has to go into a file before the next row; as much does not."""
    limit = memtable_bytes_of(count) + more
    with manual.open(unflushed_bytes_max=limit, l0_sst_bytes=limit, wal_bytes_max=1 << 30) as database:
        put(database, *range(count + 1))
        assert database.stats().l0_count == (1 if more < 0 else 0)
        put(database, *range(count + 1, count + 4))
        assert database.stats().l0_count >= 1
        assert manual.numbers(database) == list(range(count + 4))


@pytest.mark.parametrize("more", [-1, 0, 1])
@pytest.mark.parametrize("count", [1, 3, 8])
def test_a_writer_without_a_thread_writes_the_log_at_its_limit(manual: ManualDatabase, count: int, more: int) -> None:
    """With `wal_bytes_max` pending the next row waits for them to be durable; with one byte less it does not."""
    with manual.open(wal_bytes_max=count * ROW + more) as database:
        put(database, *range(1, count + 1))
        assert database.stats().log_objects_written == 0
        put(database, count + 1)
        assert database.stats().log_objects_written == (0 if more > 0 else 1)
        assert database.stats().durable_sequence == (0 if more > 0 else count)
        put(database, count + 2)
        assert database.stats().log_objects_written == (2 if count == 1 and more <= 0 else 1)


def test_a_database_without_a_log_has_written_none(manual: ManualDatabase) -> None:
    """Its rows are durable in files; its figures say what there is."""
    with manual.open(wal_enabled=False) as database:
        put(database, 1, 2)
        stats = database.stats()
        assert (stats.log_objects_written, stats.l0_count, stats.run_count, stats.file_bytes) == (0, 0, 0, 0)
        assert (stats.last_sequence, stats.durable_sequence, stats.memtable_bytes) == (2, 0, memtable_bytes_of(2))
        database.flush()
        stats = database.stats()
        assert (stats.log_objects_written, stats.l0_count, stats.file_count, stats.durable_sequence) == (0, 1, 1, 2)
        assert (stats.memtable_bytes, stats.memtables_waiting, stats.fenced) == (0, 0, False)
        assert stats.file_bytes == sum(meta.size_bytes for meta in manual.store.list("sst"))
        assert (stats.cache_bytes_max, stats.epoch) == (1 << 20, 1)


@pytest.mark.parametrize("limit", [1, 2, 3])
def test_a_database_has_so_many_files(manual: ManualDatabase, limit: int) -> None:
    """Those of runs count as those of level 0 do; with one more nothing is published, and no row is lost."""
    with manual.open() as database:
        for number in range(2):
            put(database, number)
            database.flush(memtable=True)
    manual.admin.compact(full=True)
    with manual.open(file_count_max=limit) as database:
        for number in range(2, limit + 1):
            put(database, number)
            database.flush(memtable=True)
        assert database.stats().file_count == limit
        put(database, 10)
        with raises(InvalidRequest, "too_many_files", file_count=limit):
            database.flush(memtable=True)
        assert manual.numbers(database) == [*range(limit + 1), 10] if limit > 1 else [0, 1, 10]


@pytest.mark.parametrize("size", [KEY_BYTES_MAX - 1, KEY_BYTES_MAX, KEY_BYTES_MAX + 1])
@pytest.mark.parametrize("others", [0, 1, 3])
def test_keys_are_as_long_as_they_may_be(manual: ManualDatabase, size: int, others: int) -> None:
    """Whichever verb names them, alone or with others."""
    key = b"k" * size
    keys = [key, *(key_of(number) for number in range(others))]
    fits = size <= KEY_BYTES_MAX
    with manual.open() as database:
        for ask in (
            lambda: database.put(key, b"v"),
            lambda: WriteBatch().put_many(keys, [b"v"] * len(keys)),
            lambda: database.get(key),
            lambda: database.get_many(keys),
            lambda: list(database.scan_prefix(key)),
            lambda: database.delete(key),
        ):
            if fits:
                ask()
            else:
                with pytest.raises(InvalidRequest):
                    ask()
        assert list(database.scan(key, key + b"\0" if fits else None)) == [] if fits else True
        for wrong in ([b"a", b""], [b"", b"a"], ["a", b"a"], [b"a", None]):
            with pytest.raises(InvalidRequest):
                database.get_many(wrong)
        for count in (1, 3):
            with raises(InvalidRequest, "unequal_lengths"):
                WriteBatch().put_many([b"a", b"b"], [b"v"] * count)


@pytest.mark.parametrize(("after_ms", "is_over"), [(9, False), (10, True), (11, True)])
@pytest.mark.parametrize("read", ["get", "get_many", "scan"])
def test_a_transaction_ends_with_the_values_that_it_read(
    manual: ManualDatabase, read: str, after_ms: int, is_over: bool
) -> None:
    """A value is gone from its end on; a serializable transaction that has read it by then may not commit."""
    with manual.open() as database:
        database.put(b"a", b"1", ttl=timedelta(milliseconds=10))
        transaction = database.transaction("serializable")
        if read == "get":
            assert transaction.get(b"a") == b"1"
        elif read == "get_many":
            assert transaction.get_many([b"b", b"a"]) == [None, b"1"]
        else:
            assert list(transaction.scan()) == [(b"a", b"1")]
        transaction.put(b"c", b"2")
        manual.clock.advance(after_ms / 1000)
        if is_over:
            with raises(Conflict, "transaction_conflict"):
                transaction.commit()
        else:
            transaction.commit()
        assert database.get(b"c") == (None if is_over else b"2")


@pytest.mark.parametrize("isolation", ["snapshot", "serializable"])
@pytest.mark.parametrize("own", [None, "put", "delete"])
@pytest.mark.parametrize("written", [b"a", b"b", b"z"])
def test_what_get_many_has_read_is_what_a_commit_depends_on(
    manual: ManualDatabase, written: bytes, own: str | None, isolation: Any
) -> None:
    """Of a serializable transaction every key; of another only what it writes itself."""
    with manual.open() as database:
        transaction = database.transaction(isolation)
        if own is not None:
            transaction.put(b"a", b"own") if own == "put" else transaction.delete(b"a")
        assert transaction.get_many([b"a", b"b"]) == [b"own" if own == "put" else None, None]
        transaction.put(b"c", b"3")
        database.put(written, b"other")
        depends = (written == b"a" and own is not None) or (isolation == "serializable" and written != b"z")
        if depends:
            with raises(Conflict, "transaction_conflict"):
                transaction.commit()
        else:
            transaction.commit()


class _Rival(WalLog):
    """A log to which an older writer appends right before each fence, so often."""

    times = 0
    clock: Any = None
    step_s = 0.0
    tries = 0

    def fence(self, id: int, epoch: int) -> WalRecord | None:
        """Try to, after the other."""
        type(self).tries += 1
        self.clock.advance(self.step_s)
        if self.tries <= self.times:
            rows = Memtable(id)
            rows.put(b"a", b"1")
            self.append(id, self.encode(rows.log(0, 1), id=id, epoch=epoch - 1))
        return super().fence(id, epoch)


@pytest.mark.parametrize(
    ("times", "step_s", "wins"),
    [(0, 0, True), (4, 0, True), (5, 0, True), (40, 0, True), (4, 100, True), (5, 100, False), (40, 100, False),
     (6, 12, False), (4, 12, True), (5, 10, True), (6, 10, False)],
)  # fmt: skip
def test_an_older_writer_is_fenced_with_patience(
    manual: ManualDatabase, monkeypatch: pytest.MonkeyPatch, times: int, step_s: float, wins: bool
) -> None:
    """Five tries or 60 s, whichever is more; then it is said to be starved."""
    manual.write(1)
    monkeypatch.setattr(claim, "FENCE_TRIES_MAX", 5)
    monkeypatch.setattr(claim, "WalLog", _Rival)
    monkeypatch.setattr(_Rival, "times", times)
    monkeypatch.setattr(_Rival, "tries", 0)
    monkeypatch.setattr(_Rival, "clock", manual.clock)
    monkeypatch.setattr(_Rival, "step_s", step_s)
    last_id = WalLog(manual.place()).last_id()
    if wins:
        fence_id = claim_all(manual.place(), take_over=True).fence_id
        assert fence_id == last_id + times + 1
        assert WalLog(manual.place()).read(fence_id).is_fence
    else:
        with raises(Unavailable, "fence_starved"):
            claim_all(manual.place(), take_over=True)
    assert _Rival.tries == (times + 1 if wins else max(5, _tries_within(60, step_s)))


def _tries_within(patience_s: float, step_s: float) -> int:
    """How many tries begin while less time than this has passed."""
    return next(number for number in range(1_000) if number * step_s >= patience_s)
