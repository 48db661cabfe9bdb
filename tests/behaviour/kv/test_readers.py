"""Readers: what they see, what keeps it there, and what they say when it is gone."""

from __future__ import annotations

import random
import uuid
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from lakebed.errors import Closed, Conflict, Corruption, InvalidRequest, NotFound
from lakebed.kv.admin import DatabaseAdmin
from lakebed.kv.batch import WriteBatch
from lakebed.kv.database import Database
from lakebed.kv.database_location import DatabaseLocation
from lakebed.kv.layout import sst_path, wal_path
from lakebed.kv.options import CheckpointOptions, CollectorOptions, DatabaseOptions, ReaderOptions
from lakebed.kv.reader import DatabaseReader
from lakebed.kv.recovery import read_records
from lakebed.kv.tail import LogTail
from lakebed.objects.open import open_store
from lakebed.objects.port import ObjectStore
from lakebed.testing import Call, Scheduler, StoreWrapper
from worlds.errors import raises
from worlds.kv.manual_database import ManualDatabase, key_of, value_of
from worlds.scripts import run_script

MINUTES = timedelta(minutes=1)
LIFETIME_S = 600.0


# ---- reading


def test_every_way_to_read(manual: ManualDatabase) -> None:
    """A reader answers as the writer would: single keys, many, ranges both ways, prefixes, Arrow."""
    manual.fill()
    with manual.reader() as reader:
        assert [reader.get(key_of(number)) for number in (1, 4, 5)] == [value_of(1), value_of(4), None]
        assert reader.get_many([key_of(4), key_of(9), key_of(2)]) == [value_of(4), None, value_of(2)]
        assert manual.numbers(reader) == [1, 2, 3, 4]
        assert [key for key, _ in reader.scan(key_of(2), key_of(4), reverse=True)] == [key_of(3), key_of(2)]
        assert len(list(reader.scan_prefix(b"key"))) == 4
        assert reader.scan_arrow(key_of(3)).read_all()["value"].to_pylist() == [value_of(3), value_of(4)]
        with pytest.raises(InvalidRequest):
            reader.get(b"")
        with pytest.raises(InvalidRequest):
            reader.get_many(b"key")


def test_a_reader_gives_up_on_a_database_that_changes_all_the_time(
    manual: ManualDatabase, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After so many versions that went while they were read, the error says to try again."""
    manual.fill()
    with manual.reader() as reader:
        monkeypatch.setattr("lakebed.kv.reader_core._TRIES_MAX", 0)
        with raises(Conflict, "moves_too_fast"):
            reader.get(key_of(1))


def test_the_log_is_read_into_bounded_tables(manual: ManualDatabase) -> None:
    """Rows that are in no file yet are all seen, with tombstones, in tables of at most the given size and a record."""
    with manual.open() as database:
        for number in range(40):
            database.put(key_of(number), value_of(number))
        database.delete(key_of(7))
        with manual.reader(max_memtable_bytes=2_000) as reader:
            assert manual.numbers(reader) == [number for number in range(40) if number != 7]
            sizes = [table.size_bytes for table in reader._core._tail.memtables]
            assert len(sizes) > 3
            assert max(sizes) <= 2_500


def test_a_poll_brings_log_and_files(manual: ManualDatabase) -> None:
    """New log objects are read at each poll; when files take them over, their tables go."""
    with manual.open() as database, manual.reader() as reader:
        assert reader.poll_once() is False
        database.put(key_of(1), value_of(1))
        assert manual.numbers(reader) == []
        assert reader.poll_once() is True
        assert manual.numbers(reader) == [1]
        database.flush(memtable=True)
        database.put(key_of(2), value_of(2))
        assert reader.poll_once() is True
        assert manual.numbers(reader) == [1, 2]
        assert [table.keys for table in reader._core._tail.memtables] == [[key_of(2)]]
        assert len(reader.manifest.l0) == 1


def test_a_table_that_files_take_over_in_part_is_cut(manual: ManualDatabase) -> None:
    """Operands that are in a file by now are not counted a second time from memory.

    The reader has one table of two records when the manifest comes whose file has the first of them: it looks while
    that file is being written, after a merge that the flush does not have.
    """
    item = (1).to_bytes(8, "little")

    def merge_and_look() -> None:
        database.merge(b"n", item)
        database.put(b"m", b"1")
        reader.poll_once()
        assert [table.row_count for table in reader._core._tail.memtables] == [3]
        assert reader.get(b"n") == (2).to_bytes(8, "little")

    flushed = manual.place(lambda store: DuringFirstFile(store, merge_and_look))
    options = DatabaseOptions(background=False, compaction=False, merge_operator="add_int64")
    with Database.open(flushed, options=options) as database, manual.reader() as reader:
        database.merge(b"n", item)
        database.flush(memtable=True)
        reader.poll_once()
        assert [table.row_count for table in reader._core._tail.memtables] == [2]
        assert len(reader.manifest.l0) == 1
        assert reader.get_many([b"n", b"m"]) == [(2).to_bytes(8, "little"), b"1"]
        database.flush(memtable=True)
        reader.poll_once()
        assert reader.get_many([b"n", b"m"]) == [(2).to_bytes(8, "little"), b"1"]


def test_a_table_is_cut_twice(manual: ManualDatabase) -> None:
    """Files may take over a table of the log in several steps: of each, what they have is dropped from memory."""
    with manual.open() as database:
        for number in (1, 2, 3):
            database.put(key_of(number), value_of(number))
        newest = manual.admin.show_manifest()
        tail = LogTail(manual.place(), table_bytes_max=1 << 20)
        tail.follow(newest, replay_after=newest.replay_after_wal_id)
        assert [table.keys for table in tail.memtables] == [[key_of(1), key_of(2), key_of(3)]]
        records = list(read_records(manual.place(), newest, after=newest.replay_after_wal_id, through=None))
        for record, left in zip(records, ([2, 3], [3]), strict=False):
            assert not tail.follow(newest, replay_after=record.id)
            assert [table.keys for table in tail.memtables] == [[key_of(number) for number in left]]


def test_a_call_reads_one_version(manual: ManualDatabase) -> None:
    """A scan goes on with the version it began on, while the reader moves on."""
    manual.fill()
    with manual.reader() as reader:
        scan = reader.scan()
        arrow = reader.scan_arrow()
        next(scan)
        manual.write(5)
        reader.poll_once()
        assert [key for key, _ in scan] == [key_of(2), key_of(3), key_of(4)]
        assert arrow.read_all().num_rows == 4
        assert manual.numbers(reader) == [1, 2, 3, 4, 5]


def test_a_fixed_checkpoint_writes_nothing_and_does_not_move(manual: ManualDatabase) -> None:
    """Opened on a checkpoint, a reader reads just that, log and all, and leaves no trace."""
    manual.fill()
    made = manual.admin.create_checkpoint(CheckpointOptions(name="fixed"))
    manual.write(5)
    manual.collect()
    before = manual.admin.show_manifest()
    with manual.reader("fixed") as reader:
        assert reader.poll_once() is False
        assert manual.numbers(reader) == [1, 2, 3, 4]
        assert reader.checkpoint is not None
        assert reader.checkpoint.id == made.id
    assert manual.admin.show_manifest() == before


def test_following_the_latest_writes_nothing(manual: ManualDatabase) -> None:
    """Without any pin: what is gone is found anew, in the newest version."""
    manual.fill()
    with manual.reader(follow_latest=True) as reader:
        assert manual.reader_pins() == []
        assert manual.numbers(reader) == [1, 2, 3, 4]
        manual.write(5)
        manual.admin.compact(full=True)
        manual.collect()
        assert reader.get(key_of(1)) == value_of(1)
        assert reader.get(key_of(5)) == value_of(5)
        manual.write(6)
        manual.admin.compact(full=True)
        manual.collect()
        assert reader.get_many([key_of(6), key_of(2)]) == [value_of(6), value_of(2)]
        before = manual.admin.show_manifest()
        manual.write(7)
        manual.admin.compact(full=True)
        manual.collect()
        assert manual.numbers(reader) == [1, 2, 3, 4, 5, 6, 7], "without a poll"
    assert before.checkpoints == ()


SCANS: dict[str, Callable[[DatabaseReader], Iterator[Any]]] = {
    "scan": lambda reader: reader.scan(),
    "reverse": lambda reader: reader.scan(reverse=True),
    "prefix": lambda reader: reader.scan_prefix(key_of(1)[:3]),
    "arrow": lambda reader: iter(reader.scan_arrow()),
}


@pytest.mark.parametrize("way", SCANS)
def test_a_scan_whose_version_goes_before_its_first_row_goes_on(manual: ManualDatabase, way: str) -> None:
    """Following the latest: all rows of the newest version; once rows came, no row of another one follows them."""
    manual.fill()
    for number in range(5, 9):
        manual.write(number)  # each opening leaves a file of its own
    with manual.reader(follow_latest=True, cache_bytes=0) as reader:
        scan = SCANS[way](reader)
        manual.write(1, 9)
        manual.admin.compact(full=True)
        manual.collect()
        rows = list(scan)
        if way == "arrow":
            rows = [(key, None) for batch in rows for key in batch.column(0).to_pylist()]
        wanted = [key_of(number) for number in range(1, 10)]
        assert [key for key, _ in rows] == (wanted[::-1] if way == "reverse" else wanted)


def test_a_scan_that_has_rows_does_not_mix_versions(manual: ManualDatabase) -> None:
    """Its version went under it: a clear error, and the next scan reads the newest version without a poll."""
    rng = random.Random(1)
    with manual.open(run_file_bytes=500_000) as database:
        for number in range(300):
            database.put(key_of(number), rng.randbytes(20_000), await_durable=False)
        database.compact(full=True)
    assert len(manual.admin.show_manifest().runs[0].files) > 5
    with manual.reader(follow_latest=True, cache_bytes=0) as reader:
        scan = reader.scan()
        assert next(scan)[0] == key_of(0)
        manual.write(299)
        manual.admin.compact(full=True)
        manual.collect()
        with raises(Conflict, "version_went", match="Read again, or read on a checkpoint"):
            list(scan)
        assert sum(1 for _ in reader.scan()) == 300
        assert next(reader.scan(reverse=True)) == (key_of(299), value_of(299))


def test_a_scan_of_a_version_that_stays_the_newest_reports_the_damage(manual: ManualDatabase) -> None:
    """A file that is gone and that the newest version needs is Corruption, not a reason to look for ever."""
    manual.fill()
    with manual.reader(follow_latest=True, cache_bytes=0) as reader:
        for file in manual.admin.show_manifest().file_set.files():
            manual.place().store.delete([sst_path(file.id)])
        with pytest.raises(Corruption, match="needs a file that is gone"):
            list(reader.scan())


# ---- settings


@pytest.mark.parametrize(
    ("settings", "kind"),
    [
        ({"manifest_poll_interval": MINUTES, "checkpoint_lifetime": 2 * MINUTES}, "invalid_lifetime"),
        ({"manifest_poll_interval": timedelta(0)}, "invalid_poll_interval"),
        ({"max_memtable_bytes": 0}, "invalid_size"),
        ({"manifest_poll_interval": 10}, "wrong_type"),
        ({"checkpoint_lifetime": 600}, "wrong_type"),
    ],
)
def test_settings_that_cannot_work(manual: ManualDatabase, settings: dict[str, Any], kind: str) -> None:
    """A lifetime of at most two polls, no interval, no table: refused, and nothing is written."""
    manual.fill()
    before = manual.admin.show_manifest()
    with raises(InvalidRequest, kind):
        manual.reader(**settings)
    assert manual.admin.show_manifest() == before


def test_no_database(manual: ManualDatabase) -> None:
    """Where nothing is there is nothing to read, and a reader makes nothing."""
    for follow_latest in (False, True):
        with pytest.raises(NotFound):
            manual.reader(follow_latest=follow_latest)
    assert list(manual.store.list()) == []


def test_one_version_at_a_time(manual: ManualDatabase) -> None:
    """Following the latest and reading a given version exclude each other."""
    manual.fill()
    made = manual.admin.create_checkpoint()
    with pytest.raises(InvalidRequest):
        manual.reader(made.id, follow_latest=True)
    with pytest.raises(InvalidRequest):
        DatabaseReader.open(manual.place(), made.id, version=1)


# ---- requests


def test_what_it_costs(manual: ManualDatabase) -> None:
    """A poll of an idle database is 2 LIST; opening a checkpoint is 4 requests and 1 a log object.

    Both manifests are read: the newest, which says that the checkpoint lives, and the one that it pins.
    """
    manual.fill()
    made = manual.admin.create_checkpoint()
    place = manual.place()
    with place.store.count() as requests:
        fixed = DatabaseReader.open(place, made.id)
    assert (requests.list, requests.get, requests.put) == (2, 3, 0)
    fixed.close()
    with manual.reader() as reader:
        with manual.store.count() as requests:
            reader.poll_once()
        assert (requests.list, requests.total) == (2, 2)
        with manual.store.count() as requests:
            reader.get(key_of(3))
        assert requests.get <= 2


# ---- threads


def test_it_polls_by_itself_and_ends_when_closed() -> None:
    """In the background it finds what was written within a poll, keeps its checkpoint alive, and leaves nothing."""
    scheduler = Scheduler(5)
    environment = scheduler.environment()
    url = f"memory://{uuid.uuid4()}/manual"
    store = scheduler.store(open_store(url))
    place = DatabaseLocation(store, environment, lambda other: scheduler.store(open_store(other)))
    seen: list[list[bytes]] = []

    def act() -> None:
        options = DatabaseOptions(background=False, compaction=False, cache_bytes=0)
        with Database.open(place, options=options) as database:
            reader = DatabaseReader.open(place, options=ReaderOptions(cache_bytes=0))
            for number in range(4):
                database.put(key_of(number), value_of(number))
                database.flush(memtable=number % 2 == 1)
                environment.clock.sleep(11)
                seen.append([key for key, _ in reader.scan()])
                environment.clock.sleep(LIFETIME_S)
            assert reader.poll_error is None
            reader.close()

    scheduler.spawn("writer and reader", act)
    scheduler.run(steps_max=200_000)
    assert seen == [[key_of(item) for item in range(number + 1)] for number in range(4)]
    assert [
        checkpoint for checkpoint in DatabaseAdmin(place).list_checkpoints() if checkpoint.owner.kind == "reader"
    ] == []
    assert all(actor.is_done for actor in scheduler.actors)


@pytest.mark.parametrize("seed", range(6))
def test_threads_share_a_reader(seed: int) -> None:
    """Gets, scans, polls and a close of several threads, with writer and collector: each answer is one version."""
    scheduler = Scheduler(seed)
    environment = scheduler.environment()
    url = f"memory://{uuid.uuid4()}/manual"
    store = scheduler.store(open_store(url))
    place = DatabaseLocation(store, environment, lambda other: scheduler.store(open_store(other)))
    options = DatabaseOptions(background=False, compaction=False, cache_bytes=0)
    Database.open(place, options=options).close()
    reader = DatabaseReader.open(place, options=ReaderOptions(background=False, cache_bytes=0))
    counts = {"scans": 0, "gets": 0, "closed": 0}

    def write() -> None:
        with Database.open(place, options=options) as database:
            for number in range(12):
                batch = WriteBatch()
                batch.put(b"a", b"%d" % number)
                batch.put(b"b", b"%d" % number)
                database.write(batch)
                if number % 3 == 0:
                    database.flush(memtable=True)

    def compact() -> None:
        for _ in range(3):
            DatabaseAdmin(place).compact(full=True)
            DatabaseAdmin(place).collect(CollectorOptions(grace=timedelta(0)))

    def read() -> None:
        newest = -1
        while True:
            scheduler.switch("read")  # what is in memory alone is read without any other switching point
            try:
                scan = dict(reader.scan())
                counts["scans"] += 1
                assert scan.get(b"a") == scan.get(b"b")
                number = int(scan.get(b"a", b"-1"))
                assert number >= newest
                newest = number
                item, other = reader.get_many([b"a", b"b"])
                assert item == other
                reader.get(b"a")
                counts["gets"] += 1
            except Closed:
                counts["closed"] += 1
                return

    def poll() -> None:
        for _ in range(12):
            reader.poll_once()
        reader.close()

    for name, function in (("write", write), ("compact", compact), ("read", read), ("read too", read), ("poll", poll)):
        scheduler.spawn(name, function)
    scheduler.run(steps_max=200_000)
    assert counts["closed"] == 2
    assert counts["scans"] > 4


@pytest.mark.parametrize("follows", [False, True])
def test_a_missing_last_log_object_is_corruption(manual: ManualDatabase, follows: bool) -> None:
    """Rows that were acknowledged are not left out in silence: the version says how far the log goes."""
    with manual.open() as database:
        for number in (1, 2):
            database.put(key_of(number), value_of(number))
        database.create_checkpoint()
    newest = manual.admin.show_manifest()
    assert newest.wal_id_last_seen > newest.replay_after_wal_id
    manual.place().store.delete([wal_path(newest.wal_id_last_seen)])
    with pytest.raises(Corruption, match="is missing"), manual.reader(follow_latest=follows) as reader:
        reader.get(key_of(2))


class DuringFirstFile(StoreWrapper):
    """A store in which `arrive` is called once, when the first sorted file was put and no manifest names it yet."""

    def __init__(self, inner: ObjectStore, arrive: Callable[[], None]) -> None:
        super().__init__(inner)
        self._arrive: Callable[[], None] | None = arrive

    def intercept(self, call: Call, perform: Callable[[], Any]) -> Any:
        """The call, and what follows the first sorted file."""
        result = perform()
        if call.kind.startswith("put") and call.path.endswith(".sst") and self._arrive is not None:
            arrive, self._arrive = self._arrive, None
            arrive()
        return result


class LateLog(StoreWrapper):
    """A store whose first listing of the log comes too early; then `arrive` is called, once."""

    def __init__(self, inner: ObjectStore, arrive: Callable[[], None]) -> None:
        super().__init__(inner)
        self._arrive: Callable[[], None] | None = arrive

    def intercept(self, call: Call, perform: Callable[[], Any]) -> Any:
        """The call, and what follows the first listing of the log."""
        result = perform()
        if call.kind == "list" and call.path.startswith("wal") and self._arrive is not None:
            arrive, self._arrive = self._arrive, None
            arrive()
        return result


def test_a_log_object_is_missing_only_if_a_newer_version_misses_it_too(manual: ManualDatabase) -> None:
    """When the database moved on while its log was read, a reader looks once more before it calls rows lost."""
    with manual.open() as database:
        for number in (1, 2):
            database.put(key_of(number), value_of(number))
        database.create_checkpoint()
        path = wal_path(manual.admin.show_manifest().wal_id_last_seen)
        body = bytes(manual.store.get(path))
        manual.store.delete([path])

        def arrive() -> None:
            manual.store.put(path, body)
            manual.admin.create_checkpoint()

        place = manual.place(lambda store: LateLog(store, arrive))
        with DatabaseReader.open(place, options=ReaderOptions(follow_latest=True, background=False)) as reader:
            assert manual.numbers(reader) == [1, 2]


def test_reading_files_loads_no_pandas(tmp_path: Path) -> None:
    """Keys and whole scans of files that overlap cost no half a second and 50 MB for a library that is not needed."""
    place = DatabaseLocation.at(str(tmp_path), durable=False)
    with Database.open(place, options=DatabaseOptions(background=False)) as database:
        for first in (0, 100):
            batch = WriteBatch()
            batch.put_many([key_of(number) for number in range(first, first + 200)], [value_of(first)] * 200)
            batch.delete(key_of(first + 7))
            database.write(batch)
            database.flush(memtable=True)
    script = (
        "import sys\n"
        "from lakebed.kv import open_reader\n"
        f"with open_reader({str(tmp_path)!r}) as reader:\n"
        f"    assert reader.get({key_of(150)!r}) == {value_of(100)!r}\n"
        f"    assert reader.get_many([{key_of(7)!r}, {key_of(8)!r}]) == [None, {value_of(0)!r}]\n"
        "    assert reader.scan_arrow().read_all().num_rows == 298\n"
        "    assert 'pandas' not in sys.modules\n"
    )
    run_script(script)


def test_writing_files_loads_no_pandas(tmp_path: Path) -> None:
    """Nor do writes, values that end, deletions, transactions, flushes, compactions, and opening with a log to read."""
    script = (
        "import sys\n"
        "from datetime import timedelta\n"
        "from lakebed import kv\n"
        "options = kv.DatabaseOptions(background=False, l0_compaction_count=2)\n"
        f"with kv.open({str(tmp_path)!r}, options=options) as db:\n"
        "    for number in range(4):\n"
        "        batch = kv.WriteBatch()\n"
        "        batch.put_many([b'%d' % key for key in range(2000)], [b'%d' % number] * 2000)\n"
        "        batch.put(b'longer than others are, by far and away', b'', ttl=timedelta(days=1))\n"
        "        batch.put(b'%08d' % number, b'x', ttl=timedelta(milliseconds=1))\n"
        "        batch.delete(b'%d' % number)\n"
        "        db.write(batch)\n"
        "        db.flush(memtable=True)\n"
        "    db.compact()\n"
        "    db.put(b'a', b'1', ttl=timedelta(days=1))\n"
        "    with db.snapshot() as before, db.transaction() as transaction:\n"
        "        transaction.put(b'b', b'2')\n"
        "        transaction.delete(b'5')\n"
        "        assert transaction.scan_arrow(b'1').read_all().num_rows == 1997 + 3\n"
        "        transaction.commit()\n"
        "        assert len(list(before.scan(b'1'))) == 1998 + 2\n"
        f"with kv.open({str(tmp_path)!r}, options=options) as db:\n"
        "    assert len(list(db.scan(b'1'))) == 1997 + 3\n"
        "    assert len(list(db.scan(b'7', limit=3))) == 3\n"
        "    assert 'pandas' not in sys.modules\n"
    )
    run_script(script)
