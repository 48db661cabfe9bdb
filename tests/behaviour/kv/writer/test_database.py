"""Writing and reading one open database: every verb, every level, and each way to call it wrongly."""

from __future__ import annotations

import gc
import random
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from lakebed.errors import AlreadyExists, Closed, Fenced, InvalidRequest, NotFound
from lakebed.kv import CheckpointOptions, CheckpointScope, CollectorOptions, Database, DatabaseOptions, WriteBatch
from lakebed.kv.batch import BATCH_BYTES_MAX
from lakebed.kv.database_location import DatabaseLocation
from lakebed.kv.manifests import ManifestLog
from lakebed.lsm.model import KEY_BYTES_MAX
from worlds.errors import raises
from worlds.kv.manual_database import ManualDatabase

Rows = dict[bytes, bytes]


def fill(db: Database, *, count: int, seed: int = 0) -> Rows:
    """Random writes that pass through all levels; what should be there then."""
    rng, rows = random.Random(seed), {}
    for i in range(count):
        key, value = b"%03d" % rng.randrange(200), b"v%d" % i
        if rng.random() < 0.2:
            db.delete(key, await_durable=False)
            rows.pop(key, None)
        else:
            db.put(key, value, await_durable=False)
            rows[key] = value
    return rows


def test_what_was_put_is_read_until_it_is_deleted(db: Database) -> None:
    """put, get and delete, the empty value included."""
    db.put(b"a", b"1")
    db.put(b"empty", b"")
    assert (db.get(b"a"), db.get(b"empty"), db.get(b"absent")) == (b"1", b"", None)
    db.put(b"a", b"2")
    db.delete(b"empty")
    db.delete(b"never there")
    assert (db.get(b"a"), db.get(b"empty")) == (b"2", None)


def test_reads_agree_at_every_level(db: Database) -> None:
    """get, get_many, scan and scan_arrow answer the same from memtables, level 0, runs and all of them at once."""
    rows = fill(db, count=1500)
    assert db.stats().run_count > 0, "the rows should have reached the runs"
    assert db.stats().memtable_bytes > 0, "and some should be in memory still"
    keys = [b"%03d" % i for i in range(200)]
    for _ in range(3):
        expected = sorted(rows.items())
        assert list(db.scan()) == expected
        assert list(db.scan(reverse=True)) == expected[::-1]
        assert [db.get(key) for key in keys] == [rows.get(key) for key in keys]
        assert db.get_many(keys) == [rows.get(key) for key in keys]
        table = db.scan_arrow().read_all()
        assert list(zip(table["key"].to_pylist(), table["value"].to_pylist(), strict=True)) == expected
        db.compact(full=db.stats().run_count == 1)


@pytest.mark.parametrize("flushed", [False, True])
def test_ranges_are_half_open_and_prefixes_end_where_they_should(db: Database, flushed: bool) -> None:
    """[start, end) in both directions, open ends, prefixes that end in 0xff, and empty ranges."""
    keys = [b"a", b"ab", b"abc", b"b", b"b\xff", b"b\xff\xff", b"c", b"\xff", b"\xff\xff"]
    batch = WriteBatch()
    batch.put_many(keys, keys)
    db.write(batch)
    if flushed:
        db.flush(memtable=True)

    def scanned(*args: bytes | None, **kwargs: Any) -> list[bytes]:
        forward = [key for key, _ in db.scan(*args, **kwargs)]
        assert [key for key, _ in db.scan(*args, reverse=True, **kwargs)] == forward[::-1]
        assert db.scan_arrow(*args).read_all()["key"].to_pylist() == forward
        for limit in (0, 1, 2, np.int64(5), 2**80):
            assert [key for key, _ in db.scan(*args, limit=limit, **kwargs)] == forward[: min(limit, 9)]
            assert [key for key, _ in db.scan(*args, limit=limit, reverse=True, **kwargs)] == forward[::-1][
                : min(limit, 9)
            ]
        return forward

    assert scanned(b"ab", b"b") == [b"ab", b"abc"]
    assert scanned(b"b\xff") == keys[4:]
    assert scanned(None, b"ab") == [b"a"]
    assert scanned(b"", b"ab") == [b"a"]
    assert scanned(b"b", b"b") == scanned(b"c", b"a") == scanned(None, b"") == []
    for prefix, result in {b"ab": keys[1:3], b"b\xff": keys[4:6], b"\xff": keys[7:], b"": keys, b"x": []}.items():
        assert [key for key, _ in db.scan_prefix(prefix)] == result
        assert [key for key, _ in db.scan_prefix(prefix, reverse=True)] == result[::-1]
        assert [key for key, _ in db.scan_prefix(prefix, limit=2)] == result[:2]
        assert db.scan_arrow(prefix=prefix).read_all()["key"].to_pylist() == result


@pytest.mark.parametrize("limit", [-1, True, 1.5, "2"])
def test_a_limit_is_a_count_of_rows(db: Database, limit: Any) -> None:
    """What is none is refused before anything is read."""
    with db.snapshot() as snapshot, db.transaction() as transaction:
        for source in (db, snapshot, transaction):
            for scan in (source.scan, lambda limit, source=source: source.scan_prefix(b"a", limit=limit)):
                with pytest.raises(InvalidRequest, match="limit"):
                    scan(limit=limit)


@pytest.mark.parametrize("start", [None, b"0"])
@pytest.mark.parametrize("flushed", [False, True])
def test_a_scan_that_was_closed_gives_no_further_row(db: Database, start: bytes | None, flushed: bool) -> None:
    """Also of rows that were read together with those that it gave; closing it twice, or unstarted, is a no-op."""
    fill(db, count=300)
    if flushed:
        db.flush(memtable=True)
    begun: Any = db.scan(start)
    unstarted: Any = db.scan(start)
    assert next(begun)
    for scan in (begun, unstarted, begun):
        scan.close()
        assert list(scan) == []


def test_scan_arrow_has_sequence_and_end_on_request(db: Database) -> None:
    """The further columns of a columnar scan, and its schema for an empty range."""
    db.put(b"a", b"1")
    db.put(b"b", b"2", ttl=timedelta(seconds=1))
    columns = ("key", "sequence", "expires_at_ms")
    table = db.scan_arrow(columns=columns).read_all()
    assert table.column_names == list(columns)
    assert table["sequence"].to_pylist() == [1, 2]
    assert table["expires_at_ms"].to_pylist() == [None, 1_700_000_001_000]
    assert db.scan_arrow(b"x", b"a", columns=columns).read_all().schema == table.schema


def test_a_batch_is_seen_whole(db: Database) -> None:
    """Puts, deletes and bulk columns of one batch arrive together, the last of a key wins; it can be reused."""
    db.put(b"gone", b"x")
    batch = WriteBatch()
    batch.put(b"a", b"0")
    batch.put_many([b"a", b"b"], [b"1", b"2"])
    batch.put_many(pa.array([b"c"]), pa.chunked_array([["drei"]]))
    batch.delete(b"gone")
    assert len(batch) == 5
    db.write(batch)
    assert list(db.scan()) == [(b"a", b"1"), (b"b", b"2"), (b"c", b"drei")]
    db.delete(b"b")
    db.write(batch)
    assert db.get(b"b") == b"2"
    db.write(WriteBatch())
    assert db.stats().last_sequence == 12


def test_set_if_changes_only_what_is_expected(db: Database) -> None:
    """Compare-and-set from absent, to another value, and to absent; else Conflict and no change."""
    db.set_if(b"k", b"1", expected=None)
    with raises(Exception, "unexpected_value", match="another value than the one expected"):
        db.set_if(b"k", b"2", expected=None)
    db.flush(memtable=True)
    db.set_if(b"k", b"2", expected=b"1")
    assert db.get(b"k") == b"2"
    db.set_if(b"k", None, expected=b"2")
    assert db.get(b"k") is None


def test_a_snapshot_repeats_its_reads(db: Database, place: DatabaseLocation) -> None:
    """With writes, flushes, compactions here and elsewhere, and collections that delete everything they may."""
    rows = fill(db, count=600)
    with db.snapshot() as snapshot:
        started = snapshot.scan()
        first = [next(started) for _ in range(5)]
        for seed in (1, 2):
            fill(db, count=600, seed=seed)
            db.compact(full=True)
            db.flush(memtable=True)
            db.admin.collect(CollectorOptions(grace=timedelta(0), destroyed_grace=timedelta(0)))
        assert list(snapshot.scan()) == sorted(rows.items())
        assert [snapshot.get(key) for key in rows] == list(rows.values())
        assert snapshot.get_many(rows) == list(rows.values())
        assert snapshot.scan_arrow().read_all().num_rows == len(rows)
        assert first + list(started) == sorted(rows.items())
    with pytest.raises(Closed, match="snapshot was closed"):
        snapshot.get(b"000")


def test_checkpoints_stay_while_scans_stand_on_them(db: Database, place: DatabaseLocation) -> None:
    """One checkpoint a version that is stood on; it goes with the next update once the last scan is done or let go."""

    def pins() -> int:
        checkpoints = ManifestLog(place).latest().checkpoints
        return sum(checkpoint.owner.kind == "writer" for checkpoint in checkpoints)

    fill(db, count=100)
    db.flush(memtable=True)
    done, abandoned, unstarted = db.scan(), db.scan(), db.scan()
    next(abandoned)
    fill(db, count=100, seed=1)
    db.compact(full=True)
    db.poll_once()
    assert pins() == 2
    list(done)
    abandoned.close()  # type: ignore[attr-defined]
    db.poll_once()
    assert pins() == 2, "the scan that has not begun still stands on it"
    del unstarted
    gc.collect()
    db.poll_once()
    assert pins() == 1


def test_a_separate_compactor_is_followed(place: DatabaseLocation, open_at: Callable[..., Database]) -> None:
    """What another process compacts is shown after a poll, under a checkpoint of the writer's own."""
    db = open_at(place, compaction=False, l0_count_max=100)
    rows = fill(db, count=600)
    db.flush(memtable=True)
    assert db.stats().l0_count > 2
    assert db.admin.compact(full=True)
    assert db.poll_once()
    assert (db.stats().l0_count, db.stats().run_count) == (0, 1)
    assert not db.poll_once()
    assert dict(db.scan()) == rows


def test_back_pressure_without_threads_is_work_for_the_writer(db: Database) -> None:
    """Unflushed bytes and level 0 stay within their limits for any writes."""
    options = DatabaseOptions()
    assert options.background, "the other tests of threads rest on this default"
    for i in range(2000):
        db.put(b"%04d" % i, bytes(40), await_durable=False)
        stats = db.stats()
        assert stats.memtable_bytes <= 12_000 + 4_000
        assert stats.l0_count <= 5
    assert db.stats().log_objects_written > 10


def test_stats_say_what_is_there(db: Database) -> None:
    """The figures of an open database."""
    db.put(b"a", b"1")
    stats = db.stats()
    assert (stats.epoch, stats.last_sequence, stats.durable_sequence, stats.fenced) == (1, 1, 1, False)
    assert stats.log_objects_written == 1
    db.flush(memtable=True)
    stats = db.stats()
    assert (stats.l0_count, stats.file_count, stats.memtables_waiting, stats.memtable_bytes) == (1, 1, 0, 0)
    assert stats.file_bytes > 0


def test_without_a_log_no_log_object_is_counted() -> None:
    """The figure is 0, not an error, whatever is written."""
    with ManualDatabase.new().open(wal_enabled=False) as database:
        database.put(b"a", b"1", await_durable=False)
        assert database.stats().log_objects_written == 0


def test_checkpoint_scopes(db: Database) -> None:
    """ALL includes every write, DURABLE what was durable, ALL_UNFORCED waits no longer than for the flush."""
    db.put(b"a", b"1")
    db.put(b"b", b"2", await_durable=False)
    durable = db.create_checkpoint(scope=CheckpointScope.DURABLE)
    everything = db.create_checkpoint(CheckpointOptions(name="all"))
    db.put(b"c", b"3", await_durable=False)
    unforced = db.create_checkpoint(scope=CheckpointScope.ALL_UNFORCED)
    copied = db.create_checkpoint(CheckpointOptions(source="all", lifetime=timedelta(days=1)))

    def keys(checkpoint: str) -> list[bytes]:
        with db.admin.reader(checkpoint) as reader:
            return [key for key, _ in reader.scan()]

    assert keys(durable.id) == [b"a"]
    assert keys(everything.id) == keys(copied.id) == [b"a", b"b"]
    assert keys(unforced.id) == [b"a", b"b", b"c"]
    assert copied.manifest_id == everything.manifest_id
    with pytest.raises(AlreadyExists, match="'all'"):
        db.create_checkpoint(CheckpointOptions(name="all"))


def test_a_clone_starts_from_everything_written(
    db: Database, place: DatabaseLocation, open_at: Callable[..., Database]
) -> None:
    """create_clone includes writes not waited for; later writes to the clone do not reach the original."""
    rows = fill(db, count=300)
    target = place.other(place.url + "-clone")
    db.create_clone(target.url)
    clone = open_at(target)
    assert dict(clone.scan()) == rows
    clone.put(b"only here", b"1")
    assert db.get(b"only here") is None


@pytest.mark.parametrize(
    ("call", "kind", "sentence"),
    [
        (lambda db: db.put("a", b""), "wrong_type", "key is bytes"),
        (lambda db: db.put(b"", b""), "empty_key", "at least one byte"),
        (lambda db: db.put(bytes(KEY_BYTES_MAX + 1), b""), "oversized_key", "65,536 bytes"),
        (lambda db: db.put(b"a", None), "wrong_type", "value is bytes"),
        (lambda db: db.put(b"a", b"", ttl=5), "wrong_type", "timedelta"),
        (lambda db: db.put(b"a", b"", ttl=timedelta(seconds=-1)), "invalid_ttl", "at least one millisecond"),
        (lambda db: db.put(b"a", b"", ttl=timedelta(0)), "invalid_ttl", "delete the key"),
        (lambda db: db.delete(7), "wrong_type", "key is bytes"),
        (lambda db: db.get(""), "wrong_type", "key is bytes"),
        (lambda db: db.get(b""), "empty_key", "at least one byte"),
        (lambda db: db.get_many(b"abc"), "wrong_type", "use get"),
        (lambda db: db.get_many([b"a", b""]), "empty_key", "at least one byte"),
        (lambda db: db.scan("a"), "wrong_type", "start of a scan"),
        (lambda db: db.scan(b"a", 7), "wrong_type", "end of a scan"),
        (lambda db: db.scan_prefix("a"), "wrong_type", "prefix is bytes"),
        (lambda db: db.scan_arrow(b"a", prefix=b"b"), "two_ranges", "both were given"),
        (lambda db: db.scan_arrow(columns=("kind",)), "unknown_column", "kind"),
        (lambda db: db.merge(b"a", b"1"), "no_merge_operator", "merge_operator="),
        (lambda db: db.write([b"a"]), "wrong_type", "WriteBatch"),
        (lambda db: db.transaction("serial"), "unknown_isolation", "snapshot or serializable"),
        (lambda db: db.set_if(b"a", "x", expected=None), "wrong_type", "value is bytes"),
        (lambda db: db.create_checkpoint(scope="all"), "wrong_type", "CheckpointScope"),
        (lambda db: db.create_checkpoint(CheckpointOptions(source="nope")), "invalid_db_state", "nope"),
    ],
)
def test_a_wrong_call_is_told_in_one_sentence(
    place: DatabaseLocation, open_at: Callable[..., Database], call: Callable[[Any], Any], kind: str, sentence: str
) -> None:
    """InvalidRequest with a kind and a sentence that says what to do; nothing is written."""
    db = open_at(place)
    with raises(InvalidRequest, kind, match=sentence):
        call(db)
    assert db.stats().last_sequence == 0


def test_a_batch_tells_its_rows_that_cannot_be() -> None:
    """A wrong row of a bulk is refused with all of its bulk, lengths are compared, and a batch has a limit."""
    batch = WriteBatch()
    for keys, values, kind in (
        ([b"a", b""], [b"1", b"2"], "empty_key"),
        ([b"a", "b"], [b"1", b"2"], "wrong_type"),
        ([b"a", b"b"], [b"1", None], "wrong_type"),
        ([b"a"], [b"1", b"2"], "unequal_lengths"),
        (b"ab", [b"1", b"2"], "wrong_type"),
        ([b"a", bytes(KEY_BYTES_MAX + 1)], [b"1", b"2"], "oversized_key"),
    ):
        with raises(InvalidRequest, kind):
            batch.put_many(keys, values)
    batch.put_many([], [])
    assert len(batch) == 0
    large = bytes(BATCH_BYTES_MAX // 4)
    batch.put_many([b"a", b"b", b"c", b"d"], [large] * 4)
    with pytest.raises(InvalidRequest, match="write it in several"):
        batch.check_size()


def test_after_close_nothing_works_and_closing_again_is_fine(db: Database, place: DatabaseLocation) -> None:
    """Closed for every verb; the lease, the checkpoint and the right to publish are gone."""
    db.put(b"a", b"1", await_durable=False)
    scan = db.scan()
    before = ManifestLog(place).latest()
    db.close()
    db.close()
    for call in (
        lambda: db.get(b"a"),
        lambda: db.get(b"a", linearizable=True),
        lambda: db.put(b"a", b"2"),
        lambda: db.put(b"a", b"2", await_durable=False),
        lambda: db.delete(b"a"),
        lambda: db.write(_one()),
        lambda: db.get_many([b"a"]),
        lambda: db.scan(),
        lambda: db.snapshot(),
        lambda: db.transaction(),
        lambda: db.flush(),
        lambda: db.flush_once(),
        lambda: db.compact_once(),
        lambda: db.poll_once(),
        lambda: db.renew_once(),
        lambda: db.stats(),
        lambda: db.create_checkpoint(),
        lambda: db.set_if(b"a", b"2", expected=b"1"),
    ):
        with pytest.raises(Closed, match="open it again"):
            call()
    assert list(scan) == [(b"a", b"1")], "a scan that was begun goes on"
    manifest = ManifestLog(place).latest()
    assert manifest.checkpoints == ()
    assert manifest.newest_l0_id > before.newest_l0_id
    with Database.open(place, options=DatabaseOptions(background=False)) as again:
        assert again.get(b"a") == b"1"


def _one() -> WriteBatch:
    batch = WriteBatch()
    batch.put(b"a", b"2")
    return batch


def test_an_error_in_the_block_is_not_hidden_by_closing(
    place: DatabaseLocation, open_at: Callable[..., Database]
) -> None:
    """`with` closes, passes the block's own error on, and adds what closing had to say."""
    db = open_at(place)

    def block() -> None:
        with db:
            db.put(b"a", b"1", await_durable=False)
            open_at(place, take_over=True)
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError) as error:
        block()
    assert db.is_closed
    assert "taken over" in "".join(error.value.__notes__)


def test_places_that_hold_no_database(place: DatabaseLocation, open_at: Callable[..., Database]) -> None:
    """Nothing there and not to be made; something else there; a destroyed one, until a new one is wanted."""
    with pytest.raises(NotFound, match="no database"):
        Database.open(place, create=False)
    place.store.put("notes.txt", b"mine")
    with pytest.raises(InvalidRequest, match=r"notes\.txt"):
        open_at(place)
    place.store.delete(["notes.txt"])
    db = open_at(place)
    db.put(b"a", b"1")
    db.close()
    db.admin.destroy(soft=True)
    with raises(InvalidRequest, "invalid_db_state", match="destroyed"):
        open_at(place)
    assert open_at(place, after_destroy=True).get(b"a") is None


def test_destroying_beneath_an_open_database_ends_it(db: Database) -> None:
    """Its writes are refused by name, also those without a wait."""
    db.put(b"a", b"1")
    db.admin.destroy(soft=True, take_over=True)
    with pytest.raises(Fenced, match="taken over"):
        db.put(b"b", b"2")
    with pytest.raises(Fenced):
        db.put(b"c", b"3", await_durable=False)


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"l0_sst_bytes": 0}, "l0_sst_bytes"),
        ({"l0_sst_bytes": 1 << 31}, "1,073,741,824"),
        ({"wal_flush_spacing_ms": -1}, "wal_flush_spacing_ms"),
        ({"l0_count_max": 1}, "l0_count_max"),
        ({"l0_compaction_count": 1}, "l0_compaction_count"),
        ({"block_bytes": "64k"}, "block_bytes"),
        ({"lease_lifetime_ms": 0}, "lease"),
        ({"merge_operator": "multiply"}, "multiply"),
    ],
)
def test_settings_that_cannot_work_are_refused(place: DatabaseLocation, options: dict[str, Any], sentence: str) -> None:
    """InvalidRequest names the setting, and nothing is made."""
    with pytest.raises(InvalidRequest, match=sentence):
        Database.open(place, options=DatabaseOptions(**options))
    assert list(place.store.list()) == []


def test_by_default_a_megabyte_of_rows_stays_in_memory(place: DatabaseLocation) -> None:
    """The memtable becomes a file at 64 MiB, or when that is asked for."""
    with Database.open(place, options=DatabaseOptions(background=False)) as database:
        for number in range(250):
            database.put(b"%d" % number, bytes(4096), await_durable=False)
        assert list(place.store.list("sst")) == []
        database.flush(memtable=True)
        assert len(list(place.store.list("sst"))) == 1


@pytest.mark.parametrize("verb", ["put", "delete", "write"])
@pytest.mark.parametrize("value_bytes", [0, 700])
def test_a_memtable_is_full_by_rows_or_by_bytes(verb: str, value_bytes: int) -> None:
    """Rows without values count too, by what they take in memory: else memory grows by much more than is set."""
    options = {"l0_sst_bytes": 64 << 10, "unflushed_bytes_max": 64 << 20, "wal_bytes_max": 64 << 20}
    with ManualDatabase.new().open(**options) as database:
        for number in range(2_000):
            key = b"%d" % number
            if verb == "put":
                database.put(key, bytes(value_bytes), await_durable=False)
            elif verb == "delete":
                database.delete(key, await_durable=False)
            else:
                batch = WriteBatch()
                batch.put(key, bytes(value_bytes))
                database.write(batch, await_durable=False)
        stats = database.stats()
        full_count = stats.memtable_bytes // options["l0_sst_bytes"]
        assert full_count > 2
        assert full_count - 1 <= stats.memtables_waiting <= full_count
