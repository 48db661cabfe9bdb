"""A reader's checkpoint: how long it holds what, with writers, restores, collections, and under every fault."""

from __future__ import annotations

import gc
import os
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from lakebed.errors import Closed, Corruption, InvalidRequest, LakebedError, NotFound, OutcomeUnknown
from lakebed.kv.checkpoint import live_checkpoints
from lakebed.kv.database import Database
from lakebed.kv.database_location import DatabaseLocation
from lakebed.kv.manifests import ManifestLog
from lakebed.kv.options import CheckpointOptions, DatabaseOptions, ReaderOptions
from lakebed.kv.reader import DatabaseReader
from lakebed.objects.create_once import TRIES_MAX
from lakebed.testing import Call, Crashed, Fault, FaultyStore, RecordingStore
from worlds.errors import raises
from worlds.kv.manual_database import ManualDatabase, key_of, value_of
from worlds.meanwhile import Meanwhile

MINUTES = timedelta(minutes=1)
LIFETIME_S = 600.0


# ---- the reader's own checkpoint


def test_its_checkpoint_follows_the_files_and_goes_with_it(manual: ManualDatabase) -> None:
    """It says whose it is, moves when files change, and is gone after close; closing again is fine."""
    manual.fill()
    reader = manual.reader()
    first = manual.reader_pins()[0]
    assert (first.owner.kind, first.owner.pid) == ("reader", os.getpid())
    assert first.owner.host
    assert first.expires_at_ms == manual.clock.now_ms() + 600_000
    manual.write(5)
    reader.poll_once()
    reader.poll_once()
    second = manual.reader_pins()
    assert [item.id for item in second] != [first.id]
    assert len(second) == 1
    manual.collect()
    assert manual.numbers(reader) == [1, 2, 3, 4, 5]
    reader.close()
    reader.close()
    assert manual.reader_pins() == []
    for call in (lambda: reader.get(b"k"), lambda: list(reader.scan()), reader.poll_once, lambda: reader.manifest):
        with pytest.raises(Closed):
            call()


def test_a_fork_leaves_the_checkpoints_of_its_parent(tmp_path: Path) -> None:
    """A child that polls and closes its copy of a reader uses checkpoints of its own; the parent's scan ends well."""
    location = DatabaseLocation.at(tmp_path / "d", durable=False)
    with Database.open(location, options=DatabaseOptions(background=False)) as db:
        db.put(b"1", b"1")
        db.flush(memtable=True)
        with DatabaseReader.open(location, options=ReaderOptions(background=False)) as reader:
            db.put(b"2", b"2")
            db.flush(memtable=True)
            pins = {pin.id for pin in ManifestLog(location).latest().checkpoints}
            child = os.fork()
            if child == 0:
                with suppress(BaseException):
                    reader.poll_once()
                    reader.poll_once()
                    reader.close()
                    os._exit(0)
                os._exit(1)
            assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
            assert {pin.id for pin in ManifestLog(location).latest().checkpoints} == pins


def test_a_scan_holds_the_checkpoint_it_began_on(manual: ManualDatabase) -> None:
    """While a scan is open its files survive compactions, polls and collections; once it ends they go."""
    manual.fill()
    with manual.reader() as reader:
        began_on = manual.reader_pins()[0].id
        scan = reader.scan()
        assert next(scan)[0] == key_of(1)
        arrow = reader.scan_arrow()
        for number in (5, 6):
            manual.write(number)
            manual.admin.compact(full=True)
            reader.poll_once()
            manual.collect()
        assert began_on in [checkpoint.id for checkpoint in manual.reader_pins()]
        assert [key for key, _ in scan] == [key_of(2), key_of(3), key_of(4)]
        reader.poll_once()
        assert began_on in [checkpoint.id for checkpoint in manual.reader_pins()]
        assert arrow.read_all().num_rows == 4
        del arrow
        gc.collect()
        reader.poll_once()
        assert [checkpoint.id for checkpoint in manual.reader_pins()] != [began_on]
        assert len(manual.reader_pins()) == 1
        assert manual.numbers(reader) == [1, 2, 3, 4, 5, 6]


@pytest.mark.parametrize("end", ["exhausted", "closed", "abandoned", "not begun"])
def test_however_a_scan_ends(manual: ManualDatabase, end: str) -> None:
    """Read to its end, closed, or just let go: its checkpoint goes with the next poll."""
    manual.fill()
    with manual.reader() as reader:
        began_on = manual.reader_pins()[0].id
        scan: Any = reader.scan()
        if end != "not begun":
            next(scan)
        manual.write(5)
        reader.poll_once()
        reader.poll_once()
        assert began_on in [checkpoint.id for checkpoint in manual.reader_pins()]
        if end == "exhausted":
            list(scan)
        elif end == "closed":
            scan.close()
        else:
            del scan
            gc.collect()
        reader.poll_once()
        assert began_on not in [checkpoint.id for checkpoint in manual.reader_pins()]


def test_its_lifetime_is_refreshed_at_half(manual: ManualDatabase) -> None:
    """Before half of it nothing is written; after it, one update gives it a whole lifetime, also under a scan."""
    manual.fill()
    with manual.reader() as reader:
        scan = reader.scan()
        manual.write(5)
        reader.poll_once()
        assert len(manual.reader_pins()) == 2
        before = manual.admin.show_manifest().manifest_id
        manual.clock.advance(LIFETIME_S / 2 - 1)
        reader.poll_once()
        assert manual.admin.show_manifest().manifest_id == before
        manual.clock.advance(2)
        reader.poll_once()
        assert {checkpoint.expires_at_ms for checkpoint in manual.reader_pins()} == {manual.clock.now_ms() + 600_000}
        for _ in range(5):
            manual.clock.advance(LIFETIME_S / 2 + 1)
            reader.poll_once()
            manual.collect()
        assert len(list(scan)) == 4
        assert manual.numbers(reader) == [1, 2, 3, 4, 5]


def test_without_a_lifetime_it_never_expires(manual: ManualDatabase) -> None:
    """It stays until it is removed by hand, if its reader dies."""
    manual.fill()
    reader = manual.reader(checkpoint_lifetime=None)
    manual.clock.advance(10 * 365 * 86400)
    manual.collect()
    assert manual.numbers(reader) == [1, 2, 3, 4]
    (left,) = manual.reader_pins()
    manual.admin.delete_checkpoint(left.id, force=True)
    assert manual.reader_pins() == []


def test_a_reader_that_slept_too_long_answers_from_a_new_checkpoint(manual: ManualDatabase) -> None:
    """Its checkpoint expired and its files were collected: it moves to the newest version before it answers."""
    manual.fill()
    with manual.reader() as reader:
        assert reader.get(key_of(1)) == value_of(1)
        with manual.open() as database:
            database.put(key_of(1), b"changed")
            database.flush(memtable=True)
        manual.admin.compact(full=True)
        manual.clock.advance(LIFETIME_S)
        manual.collect()
        assert manual.reader_pins() == []
        assert reader.get(key_of(1)) == b"changed"
        assert len(manual.reader_pins()) == 1
        manual.clock.advance(LIFETIME_S)
        manual.collect()
        assert len(list(reader.scan())) == 4
        assert reader.get_many([key_of(1)]) == [b"changed"]


def test_a_scan_that_slept_before_its_first_row_reads_the_newest_version(manual: ManualDatabase) -> None:
    """Its checkpoint expired and its files went while nothing was read: it gets a new checkpoint."""
    manual.fill()
    with manual.reader() as reader:
        scan = reader.scan()
        manual.write(5)
        manual.admin.compact(full=True)
        manual.clock.advance(LIFETIME_S)
        manual.collect()
        assert [key for key, _ in scan] == [key_of(number) for number in (1, 2, 3, 4, 5)]
        assert len(manual.reader_pins()) == 1


def test_a_fixed_reader_ends_with_its_checkpoint(manual: ManualDatabase) -> None:
    """Expired or deleted: one clear error, never an answer from what may be gone; refreshed elsewhere: it goes on."""
    manual.fill()
    made = manual.admin.create_checkpoint(CheckpointOptions(lifetime=timedelta(hours=1)))
    other = manual.admin.create_checkpoint(CheckpointOptions(lifetime=timedelta(hours=1)))
    with manual.reader(made.id) as reader, manual.reader(other.id) as second:
        manual.clock.advance(1800)
        manual.admin.refresh_checkpoint(made.id, timedelta(hours=1))
        manual.clock.advance(1800)
        assert reader.get(key_of(1)) == value_of(1)
        for call in (lambda: second.get(key_of(1)), lambda: second.scan(), lambda: second.get_many([key_of(1)])):
            with raises(InvalidRequest, "invalid_db_state"):
                call()
        manual.admin.delete_checkpoint(made.id)
        manual.write(5)
        manual.admin.compact(full=True)
        manual.collect()
        with raises(InvalidRequest, "invalid_db_state"):
            reader.get(key_of(1))


def test_a_pinned_file_that_is_missing_is_corruption(manual: ManualDatabase) -> None:
    """A file that a live checkpoint needs was deleted: the error names its path; it is not taken for an absent key."""
    manual.fill()
    manual.admin.create_checkpoint(CheckpointOptions(name="fixed"))
    with manual.reader("fixed") as fixed, manual.reader() as reader:
        manual.store.delete([meta.path for meta in manual.store.list("sst")])
        for item in (fixed, reader):
            with pytest.raises(Corruption) as error:
                item.get(key_of(1))
            assert error.value.facts["path"].startswith("sst/")


def test_a_version_that_nothing_pins_is_read_until_it_is_collected(manual: ManualDatabase) -> None:
    """A view of an old version writes nothing; after a collection it says that the version is gone."""
    manual.write(1)
    old = manual.admin.show_manifest().manifest_id
    manual.write(2)
    manual.admin.compact(full=True)
    view = DatabaseReader.open(manual.place(), version=old, options=ReaderOptions(cache_bytes=0))
    assert manual.numbers(view) == [1]
    manual.collect()
    with raises(NotFound, "version_not_found"):
        view.get(key_of(1))
    with pytest.raises(NotFound):
        DatabaseReader.open(manual.place(), version=old)


# ---- with other processes


def test_a_restore_under_a_reader_brings_back_no_row(manual: ManualDatabase) -> None:
    """Rows that a restore undid do not come back from a reader's tables, nor below what was written after it."""
    manual.write(1)
    kept = manual.admin.create_checkpoint()
    database = manual.open()
    database.put(key_of(2), value_of(2))
    with manual.reader() as reader, manual.reader(follow_latest=True) as latest:
        assert manual.numbers(reader) == [1, 2]
        manual.admin.restore(kept.id, take_over=True)
        manual.write(3, files=False)
        for item in (reader, latest):
            item.poll_once()
            assert manual.numbers(item) == [1, 3]


def test_a_poll_between_the_steps_of_a_restore(manual: ManualDatabase) -> None:
    """A reader that looks at any store call of restore and reopening shows one state or the next, no mixture."""
    manual.write(1)
    kept = manual.admin.create_checkpoint()
    manual.write(2, files=False)
    seen: list[list[int]] = []
    for follow_latest in (False, True):
        case = manual.copy()
        with case.reader(follow_latest=follow_latest) as reader:

            def look(case: ManualDatabase = case, reader: DatabaseReader = reader) -> None:
                reader.poll_once()
                seen.append(case.numbers(reader))

            watched = replace(
                case, store=Meanwhile(case.store, look, at=None, after=True, counts=lambda call: call.changes)
            )
            watched.admin.restore(kept.id, take_over=True)
            watched.write(3, files=False)
            watched.write(4)
    assert len(seen) > 30
    assert {tuple(item) for item in seen} == {(1, 2), (1,), (1, 3), (1, 3, 4)}


def test_a_restore_between_the_steps_of_a_poll(manual: ManualDatabase) -> None:
    """A restore and new writes happen at any store call of a poll: undone rows are never seen below new ones."""
    manual.write(1)
    kept = manual.admin.create_checkpoint()
    manual.write(2, files=False)
    for follow_latest in (False, True):
        index, struck = 0, True
        while struck:
            case = manual.copy()

            def change(case: ManualDatabase = case) -> None:
                case.admin.restore(kept.id, take_over=True)
                case.write(3, files=False)

            store = Meanwhile(case.store, change, at=index)
            options = ReaderOptions(background=False, cache_bytes=0, follow_latest=follow_latest)
            with DatabaseReader.open(case.place(lambda inner, store=store: store), options=options) as reader:
                assert case.numbers(reader) in ([1, 2], [1, 3])
                reader.poll_once()
                assert case.numbers(reader) in ([1, 2], [1, 3])
                before = store.happened is not None
                reader.poll_once()
                assert not before or case.numbers(reader) == [1, 3]
                struck = before
            index += 1
        assert index > 5


def test_a_poll_between_the_steps_of_a_collection(manual: ManualDatabase) -> None:
    """Writers flush, compact and collect between any two store calls of a reader's poll: it sees whole versions."""
    manual.fill()
    index = 0
    struck = True
    while struck:
        case = manual.copy()

        def change(case: ManualDatabase = case) -> None:
            case.write(5)
            case.admin.compact(full=True)
            case.write(6, files=False)
            case.collect()

        store = Meanwhile(case.store, change, at=index)
        place = case.place(lambda inner, store=store: store)
        with DatabaseReader.open(place, options=ReaderOptions(background=False, cache_bytes=0)) as reader:
            case.write(7)
            reader.poll_once()
            assert case.numbers(reader) in ([1, 2, 3, 4, 7], [1, 2, 3, 4, 5, 6, 7])
            before = store.happened is not None
            reader.poll_once()
            assert not before or case.numbers(reader) == [1, 2, 3, 4, 5, 6, 7]
            struck = before
        index += 1
    assert index > 15


def test_a_destruction_between_the_steps_of_a_poll(manual: ManualDatabase) -> None:
    """The database is destroyed at any store call of a poll: that is what is said, not that it is damaged."""
    manual.fill()
    index, struck = 0, True
    while struck:
        case = manual.copy()

        def change(case: ManualDatabase = case) -> None:
            case.admin.destroy(soft=False)

        store = Meanwhile(case.store, change, at=index)
        options = ReaderOptions(background=False, cache_bytes=0, follow_latest=True)
        place = case.place(lambda inner, store=store: store)
        with suppress(InvalidRequest), DatabaseReader.open(place, options=options) as reader:
            reader.poll_once()
            if store.happened:
                with pytest.raises(InvalidRequest, match="destroyed"):
                    reader.poll_once()
        struck = store.happened is not None
        index += 1
    assert index > 3


def test_a_destroyed_database_is_read_while_the_checkpoint_lives(manual: ManualDatabase) -> None:
    """The poll says that it is destroyed; what is shown stays right until its end, and then reading says so too."""
    manual.fill()
    with manual.reader() as reader:
        manual.admin.destroy(soft=True)
        with pytest.raises(InvalidRequest, match="destroyed"):
            reader.poll_once()
        assert manual.numbers(reader) == [1, 2, 3, 4]
        manual.clock.advance(LIFETIME_S)
        with pytest.raises(InvalidRequest, match="destroyed"):
            reader.get(key_of(1))
    assert manual.reader_pins() == []


# ---- faults


def test_establishing_survives_every_fault(manual: ManualDatabase) -> None:
    """At every store call of opening, polling and closing: right answers, and what is left behind expires."""
    manual.fill()

    def live(place: Any, middle: Callable[[], None]) -> list[list[int]]:
        seen = []
        options = ReaderOptions(background=False, cache_bytes=0)
        with DatabaseReader.open(place, options=options) as reader:
            seen.append(manual.numbers(reader))
            middle()
            with suppress(LakebedError):
                reader.poll_once()
            reader.poll_once()
            seen.append(manual.numbers(reader))
        return seen

    def change(case: ManualDatabase) -> None:
        case.write(5)
        case.admin.compact(full=True)

    recorded_on = manual.copy()
    recorded = RecordingStore(recorded_on.store)
    assert live(recorded_on.place(lambda store: recorded), lambda: change(recorded_on)) == [
        [1, 2, 3, 4],
        [1, 2, 3, 4, 5],
    ]
    ended = 0
    for index in range(len(recorded.trace)):
        for fault in (Fault.ERROR_BEFORE, Fault.LOST_REPLY, Fault.LATE, Fault.CRASH_AFTER, Fault.CRASH_LATE):
            case = manual.copy()
            faulty = FaultyStore(case.store, faults={index: fault})
            place = case.place(lambda store, faulty=faulty: faulty)
            with suppress(LakebedError, Crashed):
                seen = live(place, lambda case=case: change(case))
                assert seen == [[1, 2, 3, 4], [1, 2, 3, 4, 5]], (index, fault)
                ended += 1
            assert len(faulty.met) == 1
            faulty.land()
            manifest = case.admin.show_manifest()
            left = [
                checkpoint
                for checkpoint in live_checkpoints(manifest, case.clock.now_ms())
                if checkpoint.owner.kind == "reader"
            ]
            assert all(element.expires_at_ms is not None for element in left)
            case.collect()
            for item in left:
                with case.reader(item.id) as reader:
                    assert case.numbers(reader) in ([1, 2, 3, 4], [1, 2, 3, 4, 5])
            case.clock.advance(LIFETIME_S)
            case.collect()
            assert case.admin.list_checkpoints(expired=True) == []
    assert ended > len(recorded.trace)


def test_a_checkpoint_whose_making_was_not_answered_is_found_again(manual: ManualDatabase) -> None:
    """The store fell silent after the append: the next poll goes on with that checkpoint, and none is left over."""
    manual.fill()
    silent = 0

    def decide(index: int, call: Call) -> Fault | None:
        nonlocal silent
        if not silent or call.kind != "put":
            return None
        silent -= 1
        return Fault.LOST_REPLY if silent == TRIES_MAX - 1 else Fault.ERROR_BEFORE

    place = manual.place(lambda store: FaultyStore(store, faults=decide))
    options = ReaderOptions(background=False, cache_bytes=0, checkpoint_lifetime=None)
    with DatabaseReader.open(place, options=options) as reader:
        manual.write(5)
        silent = TRIES_MAX
        with pytest.raises(OutcomeUnknown):
            reader.poll_once()
        assert manual.numbers(reader) == [1, 2, 3, 4]
        assert len(manual.reader_pins()) == 2
        reader.poll_once()
        assert manual.numbers(reader) == [1, 2, 3, 4, 5]
        reader.poll_once()
        assert len(manual.reader_pins()) == 1
    assert manual.reader_pins() == []
