"""The rows of a log as its readers have them, replayed or followed: against a list of what was written."""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from functools import partial
from itertools import pairwise

import msgspec
import pytest

from lakebed.errors import Conflict, Corruption, UnsupportedFormat
from lakebed.kv import recovery, wal_record
from lakebed.kv.claim import claim_writer
from lakebed.kv.layout import wal_path
from lakebed.kv.manifests import ManifestLog
from lakebed.kv.model import Checkpoint, Manifest, Owner
from lakebed.kv.recovery import read_records, replay
from lakebed.kv.tail import LogTail
from lakebed.kv.wal import WalEntry, WalLog
from lakebed.kv.wal_record import FENCE_BYTES, decode_record, encode_fence, encode_record
from lakebed.lsm.memtable import Memtable
from worlds.errors import raises
from worlds.kv.places import fresh

LARGE = 1 << 30
Row = tuple[int, bytes, bytes | None]
"""Sequence, key and value."""


@dataclass
class Log:
    """A log, and what was written to it by id; ids without rows are fences. The first one is the writer's own."""

    rng: random.Random
    written: dict[int, list[Row]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.place = fresh()
        self.manifest: Manifest = claim_writer(self.place).manifest
        self.wal = WalLog(self.place)
        self.written[1] = []
        self.last_sequence = 0

    def grow(self, count: int, *, gaps: bool = False) -> None:
        """Append records and fences; with gaps, sequences that were given up may lie between."""
        for id in range(len(self.written) + 1, len(self.written) + 1 + count):
            if self.rng.random() < 0.2:
                assert self.wal.fence(id, 1) is None
                self.written[id] = []
                continue
            if gaps and self.rng.random() < 0.3:
                self.last_sequence += self.rng.randint(1, 3)
            rows = Memtable(self.last_sequence + 1)
            added: list[Row] = []
            for _ in range(self.rng.randint(1, 4)):
                self.last_sequence += 1
                key = b"%d" % self.rng.randint(0, 9)
                value = None if self.rng.random() < 0.2 else b"v%d" % self.last_sequence
                rows.delete(key) if value is None else rows.put(key, value)
                added.append((self.last_sequence, key, value))
            self.wal.append(id, self.wal.encode(rows.log(0, len(added)), id=id, epoch=1))
            self.written[id] = added

    def rows(self, after: int, through: int) -> list[Row]:
        """What was written in ``(after, through]``."""
        return [row for id, rows in self.written.items() if after < id <= through for row in rows]


def rows_of(table: Memtable) -> list[Row]:
    """The rows of a table, in the order of writing."""
    batch = table.log(0, table.row_count)
    deleted = [kind == 1 for kind in batch.column("kind").to_pylist()]
    values = batch.column("value").to_pylist()
    plain = [None if is_deleted else value for is_deleted, value in zip(deleted, values, strict=True)]
    return list(zip(batch.column("sequence").to_pylist(), batch.column("key").to_pylist(), plain, strict=True))


@pytest.mark.parametrize("table_bytes", [1, 150, LARGE])
@pytest.mark.parametrize("seed", range(6))
def test_a_tail_has_the_rows_behind_what_files_have(seed: int, table_bytes: int) -> None:
    """Wherever files end, also in the middle of a table: all rows behind, once, in tables that run on."""
    rng = random.Random(seed)
    log = Log(rng)
    tail = LogTail(log.place, table_bytes_max=table_bytes)
    after = seen = 1
    for _ in range(12):
        log.grow(rng.randint(0, 3), gaps=seed % 2 == 0)
        through = len(log.written)
        after = rng.choice([after, rng.randint(after, through)])
        came = tail.follow(log.manifest, replay_after=after)
        assert came is any(log.written[id] for id in range(max(after, seen) + 1, through + 1))
        seen = through
        tables = [rows_of(table) for table in reversed(tail.memtables)]
        assert [row for rows in tables for row in rows] == log.rows(after, through)
        assert tail.last_sequence == max((row[0] for row in log.rows(after, through)), default=0)
        for rows in tables:
            assert [row[0] for row in rows] == list(range(rows[0][0], rows[0][0] + len(rows)))
        assert not tail.follow(log.manifest, replay_after=after)


@pytest.mark.parametrize("seed", range(4))
def test_a_tail_of_a_version_ends_with_it(seed: int) -> None:
    """What the log has beyond is not read, and a tail that was read further on does not read a record twice."""
    log = Log(random.Random(seed))
    log.grow(9)
    tail = LogTail(log.place, table_bytes_max=LARGE)
    for through in range(1, 11):
        expected = log.rows(1, through)
        came = tail.follow(log.manifest, replay_after=1, through=through)
        assert came is bool(log.written[through])
        assert [row for table in reversed(tail.memtables) for row in rows_of(table)] == expected


def test_a_record_of_a_newer_writer_asks_for_the_newest_version() -> None:
    """A tail's manifest has to know every writer whose rows it shows."""
    log = Log(random.Random(0))
    rows = Memtable(1)
    rows.put(b"a", b"1")
    log.wal.append(2, log.wal.encode(rows.log(0, 1), id=2, epoch=log.manifest.writer_epoch + 1))
    tail = LogTail(log.place, table_bytes_max=LARGE)
    with raises(Conflict, "log_moved"):
        tail.follow(log.manifest, replay_after=1)
    newer = msgspec.structs.replace(log.manifest, writer_epoch=log.manifest.writer_epoch + 1)
    assert tail.follow(newer, replay_after=1)


@pytest.mark.parametrize("table_bytes", [1, 150, LARGE])
@pytest.mark.parametrize("seed", range(3))
def test_a_replay_has_every_row_once_in_tables_that_cover_the_log(seed: int, table_bytes: int) -> None:
    """From wherever the version's files end to any id; each table says how far it covers the log."""
    log = Log(random.Random(seed))
    log.grow(9, gaps=seed % 2 == 0)
    for after in range(1, 11):
        manifest = msgspec.structs.replace(log.manifest, replay_after_wal_id=after)
        for through in range(after, 11):
            tables = replay(log.place, manifest, through=through, table_bytes_max=table_bytes)
            assert [row for table in tables for row in rows_of(table)] == log.rows(after, through)
            if tables:
                assert tables[-1].last_wal_id == through
            for table, following in pairwise(tables):
                first = next(id for id, rows in log.written.items() if rows and rows[0][0] == following.first_sequence)
                assert table.last_wal_id == first - 1
                is_full = table.size_bytes >= table_bytes
                assert is_full or table.last_sequence + 1 != following.first_sequence
            if table_bytes == 1:
                assert len(tables) == sum(bool(log.written[id]) for id in range(after + 1, through + 1))


@pytest.mark.parametrize("limit", [1, 250, 600, 10_000])
def test_records_are_read_ahead_in_windows(monkeypatch: pytest.MonkeyPatch, limit: int) -> None:
    """As many at once as fit in its bytes, one at least; each once, in order."""
    monkeypatch.setattr(recovery, "READ_AHEAD_BYTES", limit)
    sizes = [100, 200, 300, 50, 250, 601, 1, 10_000, 9_999]
    windows = list(recovery._windows([WalEntry(id, size, 0) for id, size in enumerate(sizes)]))
    assert [entry.size_bytes for window in windows for entry in window] == sizes
    for window, following in pairwise([[entry.size_bytes for entry in window] for window in windows]):
        assert sum(window) <= limit or len(window) == 1
        assert sum(window) + following[0] > limit
    assert list(recovery._windows([])) == []
    log = Log(random.Random(1))
    log.grow(9)
    with log.place.store.count() as counts:
        records = list(read_records(log.place, log.manifest, after=1, through=None))
    with_rows = [id for id, rows in log.written.items() if rows]
    assert [record.id for record in records] == with_rows
    assert (counts.list, counts.get, counts.total) == (1, len(with_rows), len(with_rows) + 1)


def collect_through(wal_id: int, pin: Checkpoint, manifest: Manifest) -> Manifest:
    """The rows of the log up to an id are in files, and one checkpoint is there."""
    return msgspec.structs.replace(manifest, replay_after_wal_id=wal_id, wal_id_last_seen=8, checkpoints=(pin,))


@pytest.mark.parametrize("gone", range(2, 8))
@pytest.mark.parametrize("collected", [1, 3, 7])
def test_a_missing_record_is_lost_or_collected(gone: int, collected: int) -> None:
    """Collected where the newest version has its rows in files, and no checkpoint pins this one; else it is lost."""
    log = Log(random.Random(2))
    log.grow(6)
    log.place.store.delete([wal_path(gone)])
    for last_seen, pinned_id, lifetime_ms in ((7, 0, 1), (7, 1, 1), (7, 0, 0), (gone, 0, 1), (gone - 1, 0, 1)):
        old = msgspec.structs.replace(log.manifest, wal_id_last_seen=last_seen)
        now_ms = log.place.environment.clock.now_ms()
        pin = Checkpoint("x", old.manifest_id + pinned_id, now_ms, Owner("user"), now_ms + lifetime_ms * 60_000)
        newest = ManifestLog(log.place).update(partial(collect_through, collected, pin), fresh=True)
        is_pinned = pinned_id == 0 and lifetime_ms > 0 and gone <= last_seen
        is_collected = gone <= newest.replay_after_wal_id and not is_pinned
        error, kind = (Conflict, "log_collected") if is_collected else (Corruption, "corruption")
        with raises(error, kind, wal_id=gone, path=wal_path(gone)):
            list(read_records(log.place, old, after=1, through=7))
    assert [record.id for record in read_records(log.place, old, after=gone, through=7)] == [
        id for id, rows in log.written.items() if rows and gone < id <= 7
    ]


def table_of(count: int, first: int) -> Memtable:
    """Some rows."""
    rows = Memtable(first)
    for number in range(count):
        rows.put(b"k%d" % number, b"v")
    return rows


@pytest.mark.parametrize("count", [1, 2, 7])
@pytest.mark.parametrize("first", [1, 2, 100])
def test_a_record_counts_its_rows(first: int, count: int) -> None:
    """Sequences from the first to the last; of a fence there are none."""
    write_id = "01234567-89ab-4def-8123-456789abcdef"
    body = encode_record(table_of(count, first).log(0, count), id=3, epoch=2, write_id=write_id)
    record = decode_record(body, path="x", id=3)
    assert (record.first_sequence, record.last_sequence, record.row_count) == (first, first + count - 1, count)
    fence = decode_record(encode_fence(id=3, epoch=2, write_id=write_id), path="x")
    assert (fence.first_sequence, fence.last_sequence, fence.row_count, fence.is_fence) == (0, 0, 0, True)
    for id in (2, 4):
        with raises(Corruption, "corruption", path="x", offset=32):
            decode_record(body, path="x", id=id)
    for length in (0, 1, FENCE_BYTES - 1, FENCE_BYTES, len(body) - 1):
        with raises(Corruption, "corruption", path="x", offset=length):
            decode_record(body[:length], path="x", id=3)
    with raises(Corruption, "corruption", path="x", offset=len(body)):
        decode_record(body + b"x", path="x", id=3)
    assert wal_record.find_write_id(body[: FENCE_BYTES - 1]) is None
    assert wal_record.find_write_id(body[:FENCE_BYTES]) == write_id
    featured = encode_fence(id=3, epoch=2, write_id=write_id, features=1)
    assert decode_record(featured, path="x", features=1).is_fence
    for features in (0, 2):
        with pytest.raises(UnsupportedFormat):
            decode_record(featured, path="x", features=features)


def test_records_that_overlap_are_damage() -> None:
    """A record begins behind the one before it; where the two meet is named."""
    for first, is_damaged in ((1, True), (2, True), (3, True), (4, False), (5, False)):
        log = Log(random.Random(0))
        for id, rows in ((2, table_of(3, 1)), (3, table_of(1, first))):
            log.wal.append(id, log.wal.encode(rows.log(0, rows.row_count), id=id, epoch=1))
        if is_damaged:
            with raises(Corruption, "corruption", path=wal_path(3), offset=48):
                replay(log.place, log.manifest, through=3, table_bytes_max=LARGE)
        else:
            tables = replay(log.place, log.manifest, through=3, table_bytes_max=LARGE)
            assert len(tables) == first - 3
