"""Replay: every row of the log, once, in bounded tables; what is missing is named."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from lakebed.errors import Conflict, Corruption, Fenced
from lakebed.kv import recovery
from lakebed.kv.claim import claim_writer
from lakebed.kv.database_location import DatabaseLocation
from lakebed.kv.layout import wal_path
from lakebed.kv.manifests import ManifestLog
from lakebed.kv.model import Checkpoint, Manifest, Owner
from lakebed.kv.recovery import replay
from lakebed.kv.wal import WalLog
from lakebed.lsm.memtable import Memtable
from lakebed.objects import open_store
from lakebed.testing import RecordingStore
from worlds.errors import raises
from worlds.kv.places import fresh

LARGE = 1 << 30


def write(place: DatabaseLocation, id: int, first_sequence: int, *keys: bytes, epoch: int = 1) -> int:
    """Append a record with a put a key; the next sequence."""
    rows = Memtable(first_sequence)
    for key in keys:
        rows.put(key, b"v%d" % id)
    wal = WalLog(place)
    wal.append(id, wal.encode(rows.log(0, len(keys)), id=id, epoch=epoch))
    return first_sequence + len(keys)


def opened() -> tuple[DatabaseLocation, Manifest]:
    """A database whose writer has its fence at 1."""
    place = fresh()
    return place, claim_writer(place).manifest


def keys_in(tables: list[Memtable]) -> list[list[bytes]]:
    """Keys of each table, in the order of writing."""
    return [table.keys for table in tables]


def test_every_row_comes_back_once() -> None:
    """Puts, tombstones, operands and ends, of several records, in their order."""
    place, manifest = opened()
    rows = Memtable(1)
    rows.put(b"a", b"1", 99)
    rows.delete(b"b")
    rows.merge(b"c", b"2")
    wal = WalLog(place)
    wal.append(2, wal.encode(rows.log(0, 3), id=2, epoch=1))
    write(place, 3, 4, b"a", b"d")
    [table] = replay(place, manifest, through=3, table_bytes_max=LARGE)
    assert (table.first_sequence, table.last_sequence, table.last_wal_id) == (1, 5, 3)
    assert table.log(0, 3) == rows.log(0, 3)
    assert [row.value for row in table.rows_of(b"a", 3)] == [b"1"]
    assert [row.value for row in table.rows_of(b"a")] == [b"v3"]


def test_costs() -> None:
    """1 LIST, and 1 GET a record with rows; fences are not read."""
    place, manifest = opened()
    write(place, 2, 1, b"a")
    WalLog(place).fence(3, 2)
    write(place, 4, 2, b"b", epoch=2)
    with place.store.count() as counts:
        replay(place, manifest, through=4, table_bytes_max=LARGE)
    assert (counts.list, counts.get, counts.total) == (1, 2, 3)
    with place.store.count() as counts:
        assert replay(place, manifest, through=manifest.replay_after_wal_id, table_bytes_max=LARGE) == []
    assert counts.total == 0


def test_records_of_every_epoch_count() -> None:
    """What an older writer made durable is as good; fences lie between, and the last table covers the last of them."""
    place, manifest = opened()
    write(place, 2, 1, b"a")
    WalLog(place).fence(3, 2)
    write(place, 4, 2, b"b", epoch=2)
    WalLog(place).fence(5, 3)
    tables = replay(place, manifest, through=5, table_bytes_max=LARGE)
    assert keys_in(tables) == [[b"a", b"b"]]
    assert tables[0].last_wal_id == 5


def test_tables_are_bounded() -> None:
    """A full table is followed by another; each knows the last id that it covers, fences behind its rows included."""
    place, manifest = opened()
    sequence = write(place, 2, 1, b"a")
    sequence = write(place, 3, sequence, b"b")
    WalLog(place).fence(4, 2)
    write(place, 5, sequence, b"c", epoch=2)
    tables = replay(place, manifest, through=5, table_bytes_max=1)
    assert keys_in(tables) == [[b"a"], [b"b"], [b"c"]]
    assert [table.last_wal_id for table in tables] == [2, 4, 5]
    assert [table.first_sequence for table in tables] == [1, 2, 3]


def test_a_gap_of_sequences_begins_a_table() -> None:
    """Sequences of rows that were never durable are missing: no row may get another's."""
    place, manifest = opened()
    write(place, 2, 1, b"a")
    write(place, 3, 7, b"b")
    tables = replay(place, manifest, through=3, table_bytes_max=LARGE)
    assert [(table.first_sequence, table.last_sequence) for table in tables] == [(1, 1), (7, 7)]


@pytest.mark.parametrize("missing", [1, 2, 3, 4])
def test_a_missing_record_is_named(missing: int) -> None:
    """A number that is not there, first, middle or last, fence or not, while the version needs it."""
    place, manifest = opened()
    for id in (2, 3, 4):
        write(place, id, id - 1, b"k")
    place.store.delete([wal_path(missing)])
    with pytest.raises(Corruption, match="missing") as caught:
        replay(place, manifest, through=4, table_bytes_max=LARGE)
    assert (caught.value.facts["wal_id"], caught.value.facts["path"]) == (missing, wal_path(missing))


def test_a_collected_record_sends_to_the_newest_version() -> None:
    """Flushed and collected by a newer version: not damage, but an old manifest in hand; unless it is pinned."""
    place, manifest = opened()
    write(place, 2, 1, b"a")
    write(place, 3, 2, b"b")
    log = ManifestLog(place)
    newest = log.update(
        lambda one: msgspec.structs.replace(one, replay_after_wal_id=3, last_sequence=2, checkpoints=())
    )
    place.store.delete([wal_path(2), wal_path(3)])
    with raises(Conflict, "log_collected", match="read that one") as caught:
        replay(place, manifest, through=3, table_bytes_max=LARGE)
    assert caught.value.facts["manifest_id"] == newest.manifest_id
    with pytest.raises(Fenced, match="another process took it"):
        replay(place, manifest, through=3, table_bytes_max=LARGE, epoch=manifest.writer_epoch - 1)
    pin = Checkpoint("c", manifest.manifest_id, 0, Owner("user"))
    log.update(lambda one: msgspec.structs.replace(one, checkpoints=(pin,)))
    pinned = msgspec.structs.replace(manifest, wal_id_last_seen=3)
    with pytest.raises(Corruption):
        replay(place, pinned, through=3, table_bytes_max=LARGE)


def test_a_record_that_goes_between_listing_and_reading() -> None:
    """The same answer when the collector is faster than the reader."""
    place, manifest = opened()
    write(place, 2, 1, b"a")

    class Collected(RecordingStore):
        def intercept(self, call: Any, perform: Any) -> Any:
            if call.kind == "get" and call.path == wal_path(2):
                ManifestLog(place).update(
                    lambda one: msgspec.structs.replace(one, replay_after_wal_id=2, checkpoints=())
                )
                place.store.delete([wal_path(2)])
            return super().intercept(call, perform)

    reader = DatabaseLocation(Collected(place.store), place.environment, open_store)
    with raises(Conflict, "log_collected"):
        replay(reader, manifest, through=2, table_bytes_max=LARGE)


def test_sequences_that_go_back_are_corruption() -> None:
    """No two rows share a sequence."""
    place, manifest = opened()
    write(place, 2, 1, b"a", b"b")
    write(place, 3, 2, b"c")
    with pytest.raises(Corruption, match="sequence 2") as caught:
        replay(place, manifest, through=3, table_bytes_max=LARGE)
    assert caught.value.facts == {"path": wal_path(3), "offset": 48}, "where the page of the format has it"


def test_reading_ahead_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """Not more bytes than the bound are read before the first rows are taken."""
    place, manifest = opened()
    sequence = 1
    for id in range(2, 22):
        sequence = write(place, id, sequence, b"k" * 100)
    size_bytes = WalLog(place).entries(1)[0].size_bytes
    monkeypatch.setattr(recovery, "READ_AHEAD_BYTES", 3 * size_bytes)
    recorded = RecordingStore(place.store)
    reader = DatabaseLocation(recorded, place.environment, open_store)
    records = recovery.read_records(reader, manifest, after=0, through=21)
    assert next(records).id == 2
    assert sum(call.call.kind == "get" for call in recorded.trace) <= 3
    assert [record.id for record in records] == list(range(3, 22))


def test_damage_in_the_log_is_named() -> None:
    """A damaged record stops the replay with its path."""
    place, manifest = opened()
    write(place, 2, 1, b"a")
    body = bytearray(place.store.get(wal_path(2)))
    body[-1] ^= 1
    place.store.put(wal_path(2), bytes(body))
    with pytest.raises(Corruption) as caught:
        replay(place, manifest, through=2, table_bytes_max=LARGE)
    assert caught.value.facts["path"] == wal_path(2)
