"""Clones: what they share, what they cost, who may have them, and what is left after a crash at any step."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from lakebed.errors import AlreadyExists, Corruption, InvalidRequest, LakebedError, NotFound
from lakebed.kv.admin import DatabaseAdmin
from lakebed.kv.checkpoint import create_checkpoint, delete_checkpoint
from lakebed.kv.clone import PIN_LIFETIME, create_clone
from lakebed.kv.collect import collect_once
from lakebed.kv.database import Database
from lakebed.kv.database_location import DatabaseLocation
from lakebed.kv.destroy import destroy
from lakebed.kv.locations import Locations, file_ids
from lakebed.kv.manifests import ManifestLog
from lakebed.kv.options import CheckpointOptions, DatabaseOptions, ReaderOptions
from lakebed.kv.reader import DatabaseReader
from lakebed.objects import open_store
from lakebed.runtime import Environment, ThreadRuntime
from lakebed.testing import Call, Crashed, Fault, FaultyStore, RecordingStore, StoreWrapper
from worlds.errors import raises
from worlds.kv.faulty_databases import AT_ONCE, FaultyDatabases, check_every_fault


def fill(
    databases: FaultyDatabases, name: str, *, prefix: str = "k", files: int = 2, tail: int = 2
) -> dict[bytes, bytes]:
    """A database with files and a log behind them; what it holds."""
    with databases.open(name) as db:
        for file in range(files):
            db.put(f"{prefix}{file}".encode(), f"{name} {file}".encode())
            db.put(f"{prefix}{file}-more".encode(), b"x" * 50)
            db.flush(memtable=True)
        rows = dict(db.scan())
        databases.open(name)  # a rival: what `db` writes from here on would be lost
    with databases.open(name) as db:
        for number in range(tail):
            db.put(f"{prefix}-tail{number}".encode(), f"tail {number}".encode())
            rows[f"{prefix}-tail{number}".encode()] = f"tail {number}".encode()
        leave(db)
    return rows


def leave(db: Any) -> None:
    """End as a crash does: nothing more is flushed."""
    db.flush()


def clone(databases: FaultyDatabases, target: str, parent: str, checkpoint: str | None = None, **settings: Any) -> Any:
    """A clone by names."""
    return create_clone(databases.place(target), databases.url(parent), checkpoint, **settings)


def test_a_clone_has_everything_that_is_durable_and_lives_its_own_life(databases: FaultyDatabases) -> None:
    """Files and log of the latest are in a clone; afterwards neither sees what the other writes."""
    rows = fill(databases, "parent")
    clone(databases, "clone", "parent")
    assert databases.rows("clone") == rows == databases.rows("parent")
    with databases.open("clone") as db:
        db.put(b"k0", b"mine")
        db.delete(b"k1")
        db.flush(memtable=True)
    with databases.open("parent") as db:
        db.put(b"theirs", b"1")
    assert databases.rows("clone") == {**{key: value for key, value in rows.items() if key != b"k1"}, b"k0": b"mine"}
    assert databases.rows("parent") == {**rows, b"theirs": b"1"}


def test_a_clone_of_a_checkpoint_has_its_version(databases: FaultyDatabases) -> None:
    """A clone from a checkpoint, by id or by name, has what the checkpoint has, though the parent went on."""
    rows = fill(databases, "parent")
    made = create_checkpoint(databases.place("parent"), CheckpointOptions(name="before"))
    with databases.open("parent") as db:
        db.put(b"later", b"1")
    clone(databases, "by-id", "parent", made.id)
    clone(databases, "by-name", "parent", "before")
    assert databases.rows("by-id") == databases.rows("by-name") == rows


def test_no_file_is_copied_and_the_log_is(databases: FaultyDatabases) -> None:
    """A clone's folder holds the log's tail under the same numbers and no sorted file, until it writes."""
    fill(databases, "parent")
    made = clone(databases, "clone", "parent")
    paths = databases.objects("clone")
    assert not [path for path in paths if path.startswith("sst/")]
    tail = range(made.replay_after_wal_id + 1, made.wal_id_last_seen + 1)
    assert [path for path in paths if path.startswith("wal/")] == [f"wal/{number:020d}.wal" for number in tail]
    assert {path: body for path, body in databases.objects("parent").items() if path in paths and "wal" in path} == {
        path: body for path, body in paths.items() if "wal" in path
    }
    locations = Locations(databases.place("clone"), made)
    assert {locations.owner(id) for id in file_ids(made)} == {databases.url("parent")}


def test_a_clone_costs_its_ancestors_and_its_log_whatever_the_rows(databases: FaultyDatabases) -> None:
    """Requests grow with ancestors and unflushed log objects only: ten times the files change none."""
    costs = {}
    for name, files, tail in (("few", 1, 2), ("many", 10, 2), ("long", 1, 12)):
        fill(databases, name, files=files, tail=tail)
        recording = RecordingStore(databases.root)
        create_clone(databases.place(f"{name}-clone", through=recording), databases.url(name))
        costs[name] = len(recording.trace)
    assert costs["few"] == costs["many"]
    assert costs["long"] == costs["few"] + 2 * 10
    recording = RecordingStore(databases.root)
    create_clone(databases.place("grand-clone", through=recording), databases.url("few-clone"))
    assert costs["few"] < len(recording.trace) <= costs["few"] + 9


def test_clones_of_clones_hold_a_pin_in_every_ancestor(databases: FaultyDatabases) -> None:
    """Entries are flattened, each with a pin sourced from the parent's own; the middle one may go afterwards."""
    first = fill(databases, "a", prefix="a", tail=0)
    clone(databases, "b", "a")
    second = fill(databases, "b", prefix="b", tail=1)
    made = clone(databases, "c", "b")
    entries = {entry.url: entry for entry in made.external_databases}
    assert set(entries) == {databases.url("a"), databases.url("b")}
    mine = databases.newest("b").external_databases[0].pin
    assert entries[databases.url("a")].source_checkpoint == mine
    for name in ("a", "b"):
        assert databases.clone_pins(name)[entries[databases.url(name)].pin] == databases.url("c")
    rows = {**first, **second}
    assert databases.rows("c") == rows
    with databases.open("c") as db:
        db.compact(full=True)
    databases.collect("c")
    assert not databases.newest("c").external_databases
    assert not databases.clone_pins("b")
    assert set(databases.clone_pins("a")) == {mine}
    destroy(databases.place("b"), soft=False, take_over=True)
    destroy(databases.place("a"), soft=False, take_over=True)
    assert databases.rows("c") == rows


def line_of_three(databases: FaultyDatabases) -> dict[bytes, bytes]:
    """The databases a, its clone b, and its clone c, each with files of its own; what c holds."""
    rows = fill(databases, "a", prefix="a", files=1, tail=0)
    for child, parent in (("b", "a"), ("c", "b")):
        clone(databases, child, parent)
        rows |= fill(databases, child, prefix=child, files=1, tail=0)
    return rows


def test_ancestors_are_pinned_at_once(databases: FaultyDatabases) -> None:
    """The requests to ancestors further up are under way together: each waits here for that of the other one."""
    rows = line_of_three(databases)
    databases.environment = replace(databases.environment, runtime=ThreadRuntime())
    meeting = threading.Barrier(2)
    met: list[str] = []

    class Together(StoreWrapper):
        def intercept(self, call: Call, perform: Callable[[], Any]) -> Any:
            if call.kind == "put" and call.path.startswith(("a/manifest/", "b/manifest/")):
                meeting.wait(timeout=60)
                met.append(call.path[0])
            return perform()

    create_clone(databases.place("d", through=Together(databases.root)), databases.url("c"))
    assert sorted(met) == ["a", "a", "b", "b"]
    assert databases.rows("d") == rows


@pytest.mark.parametrize("broken", ["a", "b"])
def test_a_pin_that_fails_takes_the_others_back(databases: FaultyDatabases, broken: str) -> None:
    """When one ancestor cannot be pinned the clone is refused, and no other keeps a pin, whichever came first."""
    rows = line_of_three(databases)
    entries = {entry.url: entry.pin for entry in databases.newest("c").external_databases}
    delete_checkpoint(databases.place(broken), entries[databases.url(broken)], force=True)
    before = {name: databases.clone_pins(name) for name in "abc"}
    with pytest.raises(InvalidRequest, match=f"{broken} that the clone needs are no longer kept"):
        clone(databases, "d", "c")
    assert {name: databases.clone_pins(name) for name in "abc"} == before
    assert databases.objects("d") == {}
    clone(databases, "d", "c", copy=True)
    assert databases.rows("d") == rows


def test_pins_that_died_are_taken_anew_or_not_at_all(databases: FaultyDatabases) -> None:
    """A retry whose further pins are gone takes them from those of the parent; if one fails, none of the new stays."""
    rows = line_of_three(databases)
    base = databases.save()
    recording = RecordingStore(databases.root)
    create_clone(databases.place("d", through=recording), databases.url("c"))
    databases.put_back(base)
    path = f"d/manifest/{1:020d}.manifest"
    index = next(call.index for call in recording.trace if call.call.kind == "put" and call.call.path == path)
    faulty = FaultyStore(databases.root, faults={index: Fault.CRASH_AFTER})
    with pytest.raises(Crashed):
        create_clone(databases.place("d", through=faulty), databases.url("c"))
    for entry in databases.newest("d").external_databases[1:]:
        delete_checkpoint(databases.place(entry.url[-1]), entry.pin, force=True)
    before = {name: databases.clone_pins(name) for name in "ab"}
    source = next(
        database.pin for database in databases.newest("c").external_databases if database.url == databases.url("b")
    )
    pin = databases.save()
    delete_checkpoint(databases.place("b"), source, force=True)
    with pytest.raises(InvalidRequest, match="no longer kept"):
        clone(databases, "d", "c")
    assert databases.clone_pins("a") == before["a"]
    databases.put_back(pin)
    clone(databases, "d", "c")
    assert databases.rows("d") == rows
    assert [len(databases.clone_pins(name)) for name in "ab"] == [len(before["a"]) + 1, len(before["b"]) + 1]


def test_a_grandchild_outlives_the_database_in_between(databases: FaultyDatabases) -> None:
    """Where the middle one owns no file of it, it may be destroyed while the grandchild reads the first one's files."""
    rows = fill(databases, "a", tail=0)
    clone(databases, "b", "a")
    clone(databases, "c", "b")
    databases.collect("c")
    assert [entry.url for entry in databases.newest("c").external_databases] == [databases.url("a")]
    destroy(databases.place("b"), soft=False, take_over=True)
    databases.collect("a")
    assert databases.rows("c") == rows


def test_a_finished_clone_stops_at_once_and_another_is_refused(databases: FaultyDatabases) -> None:
    """The same call again changes nothing; another parent, another checkpoint, or a plain database is AlreadyExists."""
    fill(databases, "parent")
    fill(databases, "other")
    made = create_checkpoint(databases.place("parent"))
    clone(databases, "clone", "parent")
    before = databases.objects()
    clone(databases, "clone", "parent")
    for target, parent, checkpoint in (
        ("clone", "other", None),
        ("clone", "parent", made.id),
        ("other", "parent", None),
    ):
        with pytest.raises(AlreadyExists, match="choose another place"):
            clone(databases, target, parent, checkpoint)
    assert databases.objects() == before


@pytest.mark.parametrize("end", ["expired", "collected", "deleted", "parent destroyed"])
def test_a_finished_clone_by_name_stops_at_once_when_the_name_has_ended(databases: FaultyDatabases, end: str) -> None:
    """The same call again changes nothing, even when the name has ended; another name is still refused."""
    fill(databases, "parent")
    made = create_checkpoint(databases.place("parent"), CheckpointOptions(name="before", lifetime=timedelta(hours=1)))
    clone(databases, "clone", "parent", "before", copy=True)
    if end == "deleted":
        delete_checkpoint(databases.place("parent"), "before")
    databases.clock.advance(3601)
    if end == "collected":
        databases.collect("parent")
    if end == "parent destroyed":
        destroy(databases.place("parent"), soft=False)
    before = databases.objects()
    for asked in ("before", made.id, made.id.upper()):
        assert clone(databases, "clone", "parent", asked, copy=True).initialized
    with pytest.raises(InvalidRequest, match="no checkpoint never"):
        clone(databases, "clone", "parent", "never", copy=True)
    with pytest.raises(AlreadyExists):
        clone(databases, "clone", "parent", copy=True)
    assert databases.objects() == before


def test_a_finished_clone_by_name_stops_at_once_while_the_name_lives(databases: FaultyDatabases) -> None:
    """The same call again changes nothing: the name still means the checkpoint that the clone was begun from."""
    fill(databases, "parent")
    create_checkpoint(databases.place("parent"), CheckpointOptions(name="before"))
    clone(databases, "clone", "parent", "before")
    before = databases.objects()
    assert clone(databases, "clone", "parent", "before").initialized
    assert databases.objects() == before


def test_a_name_that_passed_to_another_checkpoint_is_another_clone(databases: FaultyDatabases) -> None:
    """A name means the checkpoint that bears it now: a clone of the older one is not returned for it."""
    fill(databases, "parent")
    create_checkpoint(databases.place("parent"), CheckpointOptions(name="daily", lifetime=timedelta(hours=1)))
    clone(databases, "clone", "parent", "daily")
    databases.clock.advance(3601)
    create_checkpoint(databases.place("parent"), CheckpointOptions(name="daily"))
    with pytest.raises(AlreadyExists, match="choose another place"):
        clone(databases, "clone", "parent", "daily")


@pytest.mark.parametrize("name", ["!first", "zlast"])
def test_an_unfinished_clone_by_name_is_finished_after_the_name_expired(databases: FaultyDatabases, name: str) -> None:
    """Its pins keep the version, so the same call finishes it; without them the error says what is gone.

    So it is for names that are before and behind every id.
    """
    rows = fill(databases, "parent")
    create_checkpoint(databases.place("parent"), CheckpointOptions(name=name, lifetime=timedelta(minutes=10)))
    stop_at_first_manifest(databases, "clone", "parent", name)
    databases.clock.advance(601)
    databases.collect("parent")
    begun = databases.save()
    clone(databases, "clone", "parent", name)
    assert databases.rows("clone") == rows
    databases.put_back(begun)
    databases.clock.advance(PIN_LIFETIME.total_seconds())
    with pytest.raises(InvalidRequest, match="no checkpoint"):
        clone(databases, "clone", "parent", name)


def test_the_same_clone_by_another_spelling_of_its_url(databases: FaultyDatabases) -> None:
    """URLs are normalised before they are compared: a trailing slash names the same parent."""
    fill(databases, "parent")
    clone(databases, "clone", "parent")
    assert create_clone(databases.place("clone"), databases.url("parent") + "/").initialized
    assert databases.newest("clone").source.url == databases.url("parent")


@pytest.mark.parametrize("target", ["parent", "parent/below"])
def test_not_onto_itself_nor_below_itself(databases: FaultyDatabases, target: str) -> None:
    """A database is not cloned onto or into its own folder."""
    fill(databases, "parent")
    before = databases.objects()
    with raises(InvalidRequest, "clone_onto_itself", match="itself"):
        clone(databases, target, "parent")
    assert databases.objects() == before


@pytest.mark.parametrize("there", ["schema/schema-0", "notes.txt"])
def test_not_onto_anything_else(databases: FaultyDatabases, there: str) -> None:
    """A folder with a table or other files is refused, and nothing is written there or in the parent."""
    fill(databases, "parent")
    databases.root.put(f"taken/{there}", b"x")
    before = databases.objects()
    with pytest.raises(InvalidRequest, match="empty folder"):
        clone(databases, "taken", "parent")
    assert databases.objects() == before


def test_not_from_what_is_missing_unfinished_or_destroyed(databases: FaultyDatabases) -> None:
    """A parent that is not there, a clone being made, a destroyed database, an unknown checkpoint: a sentence each."""
    fill(databases, "parent")
    with pytest.raises(NotFound):
        clone(databases, "clone", "nobody")
    with pytest.raises(InvalidRequest, match="no checkpoint"):
        clone(databases, "clone", "parent", "00000000-0000-4000-8000-000000000000")
    stop_at_first_manifest(databases, "unfinished", "parent")
    with pytest.raises(InvalidRequest, match="not finished"):
        clone(databases, "clone", "unfinished")
    destroy(databases.place("parent"), soft=True, take_over=True)
    with pytest.raises(InvalidRequest, match="destroyed"):
        clone(databases, "clone", "parent")
    assert not databases.objects("clone")


def test_another_store_needs_a_copy_which_depends_on_nothing(databases: FaultyDatabases, tmp_path: Any) -> None:
    """Across stores only copy=True works; the copy has all rows, no ancestors, and the parent no pin of it.

    There are more files and more log objects than are copied at once.
    """
    rows = {**fill(databases, "a", prefix="a", tail=0)}
    clone(databases, "b", "a")
    rows |= fill(databases, "b", prefix="b", files=18, tail=20)
    elsewhere = databases.place("b")
    target = DatabaseLocation(
        open_store(str(tmp_path / "copy"), durable=False), databases.environment, elsewhere.open_url
    )
    with raises(InvalidRequest, "other_store", match="--copy"):
        create_clone(target, databases.url("b"))
    assert not (tmp_path / "copy").exists()
    made = create_clone(target, databases.url("b"), copy=True)
    assert made.external_databases == ()
    assert databases.clone_pins("b") == {}
    destroy(databases.place("b"), soft=False, take_over=True)
    destroy(databases.place("a"), soft=False, take_over=True)
    with DatabaseReader.open(target, options=ReaderOptions(follow_latest=True, background=False)) as reader:
        assert dict(reader.scan()) == rows


def stop_at_first_manifest(databases: FaultyDatabases, target: str, parent: str, checkpoint: str | None = None) -> None:
    """Leave a clone just begun: its maker died with the first manifest."""
    recording = RecordingStore(databases.root)
    base = databases.save()
    create_clone(databases.place(target, through=recording), databases.url(parent), checkpoint)
    databases.put_back(base)
    path = f"{target}/manifest/{1:020d}.manifest"
    index = next(call.index for call in recording.trace if call.call.kind == "put" and call.call.path == path)
    through = FaultyStore(databases.root, faults={index: Fault.CRASH_AFTER})
    with pytest.raises(Crashed):
        create_clone(databases.place(target, through=through), databases.url(parent), checkpoint)
    assert not databases.newest(target).initialized


def test_a_retry_joins_the_same_attempt_only(databases: FaultyDatabases) -> None:
    """An unfinished clone is finished by the same call with the same pins; any other source is AlreadyExists."""
    rows = fill(databases, "parent")
    fill(databases, "other")
    stop_at_first_manifest(databases, "clone", "parent")
    begun = databases.newest("clone")
    with pytest.raises(AlreadyExists):
        clone(databases, "clone", "other")
    with pytest.raises(AlreadyExists):
        clone(databases, "clone", "parent", copy=True)
    with pytest.raises(InvalidRequest, match="not finished"):
        databases.open("clone")
    finished = clone(databases, "clone", "parent")
    assert finished.external_databases == begun.external_databases
    assert databases.rows("clone") == rows


def test_a_retry_after_the_pins_expired_takes_new_ones(databases: FaultyDatabases) -> None:
    """Pins of a dead cloner expire; a retry pins the latest again, rewrites the unfinished clone, and leaks nothing."""
    fill(databases, "parent")
    stop_at_first_manifest(databases, "clone", "parent")
    databases.clock.advance(PIN_LIFETIME.total_seconds() + 1)
    with databases.open("parent") as db:
        db.put(b"k0", b"new")
        db.compact(full=True)
    databases.collect("parent")
    assert databases.clone_pins("parent") == {}
    clone(databases, "clone", "parent")
    assert databases.rows("clone") == databases.rows("parent")
    assert set(databases.clone_pins("parent")) == {entry.pin for entry in databases.newest("clone").external_databases}
    assert databases.newest("parent").checkpoint(next(iter(databases.clone_pins("parent")))).expires_at_ms is None


def test_a_retry_from_a_checkpoint_that_is_gone_says_so(databases: FaultyDatabases) -> None:
    """With its pins expired and its checkpoint deleted, an unfinished clone cannot be finished; destroying it works."""
    fill(databases, "parent")
    made = create_checkpoint(databases.place("parent"))
    recording = RecordingStore(databases.root)
    base = databases.save()
    create_clone(databases.place("clone", through=recording), databases.url("parent"), made.id)
    databases.put_back(base)
    path = f"clone/manifest/{1:020d}.manifest"
    index = next(call.index for call in recording.trace if call.call.kind == "put" and call.call.path == path)
    with pytest.raises(Crashed):
        create_clone(
            databases.place("clone", through=FaultyStore(databases.root, faults={index: Fault.CRASH_AFTER})),
            databases.url("parent"),
            made.id,
        )
    delete_checkpoint(databases.place("parent"), made.id)
    databases.clock.advance(PIN_LIFETIME.total_seconds() + 1)
    with pytest.raises(InvalidRequest, match="no checkpoint"):
        clone(databases, "clone", "parent", made.id)
    destroy(databases.place("clone"), soft=False)
    assert databases.clone_pins("parent") == {}
    assert databases.unreferenced("clone") == []


def test_a_sleeping_rival_cannot_revive_pins_that_were_found_dead(databases: FaultyDatabases) -> None:
    """A cloner that pauses before making its pins permanent resumes after another replaced them: nothing leaks."""
    fill(databases, "parent")
    base = databases.save()
    recording = RecordingStore(databases.root)
    create_clone(databases.place("clone", through=recording), databases.url("parent"))
    for index in range(len(recording.trace)):
        databases.put_back(base)
        woken = []

        def sleep(at: int, call: Any, index: int = index, woken: list[int] = woken) -> None:
            if at == index and not woken:
                woken.append(at)
                databases.clock.advance(PIN_LIFETIME.total_seconds() + 1)
                try:
                    clone(databases, "clone", "parent")
                except AlreadyExists:
                    return  # the rival began it in between

        with contextlib.suppress(AlreadyExists):
            create_clone(
                databases.place("clone", through=FaultyStore(databases.root, faults=sleep)), databases.url("parent")
            )
        assert woken
        assert clone(databases, "clone", "parent").initialized
        assert databases.rows("clone") == databases.rows("parent")
        named = {entry.pin for entry in databases.newest("clone").external_databases}
        permanent = {
            checkpoint.id
            for checkpoint in databases.newest("parent").checkpoints
            if checkpoint.owner.kind == "clone" and checkpoint.expires_at_ms is None
        }
        assert permanent == named
        assert set(databases.clone_pins("parent")) == named


def test_of_rivals_for_one_place_one_wins_and_the_others_leak_nothing(databases: FaultyDatabases) -> None:
    """A rival that slips in at any call wins or loses whole: AlreadyExists for one, and no pin of the loser's."""
    fill(databases, "parent")
    fill(databases, "other")
    base = databases.save()
    recording = RecordingStore(databases.root)
    create_clone(databases.place("clone", through=recording), databases.url("parent"))
    winners = set()
    for index in range(len(recording.trace)):
        databases.put_back(base)
        lost: list[str] = []
        met: list[int] = []

        def slip_in(at: int, call: Any, index: int = index, lost: list[str] = lost, met: list[int] = met) -> None:
            if at == index and not met:
                met.append(at)
                try:
                    clone(databases, "clone", "other")
                except AlreadyExists:
                    lost.append("other")

        try:
            create_clone(
                databases.place("clone", through=FaultyStore(databases.root, faults=slip_in)), databases.url("parent")
            )
        except AlreadyExists:
            lost.append("parent")
        assert len(lost) == 1
        assert met
        winner = "other" if lost == ["parent"] else "parent"
        winners.add(winner)
        assert databases.newest("clone").source.url == databases.url(winner)
        assert databases.clone_pins(lost[0]) == {}
        assert len(databases.clone_pins(winner)) == 1
        assert databases.rows("clone") == databases.rows(winner)
    assert winners == {"parent", "other"}


@pytest.mark.parametrize("copy", [False, True])
def test_every_fault_at_every_call_of_a_clone(databases: FaultyDatabases, copy: bool) -> None:
    """Crash, lost reply, refusal and late landing anywhere: the retry finishes, and only expiring pins leak."""
    rows = fill(databases, "a", prefix="a", files=1, tail=0)
    clone(databases, "b", "a")
    rows |= fill(databases, "b", prefix="b", files=1, tail=1)

    def check() -> None:
        assert databases.rows("c") == rows
        made = databases.newest("c")
        for name in ("a", "b"):
            needed = {entry.pin for entry in made.external_databases if entry.url == databases.url(name)}
            pins = [
                checkpoint
                for checkpoint in databases.newest(name).checkpoints
                if str(checkpoint.owner.url) == databases.url("c")
            ]
            assert {item.id for item in pins if item.expires_at_ms is None} == needed
        databases.clock.advance(PIN_LIFETIME.total_seconds() + 1)
        databases.collect("a", "b", "c")
        assert databases.rows("c") == rows == databases.rows("b")
        for name in ("a", "b"):
            needed = {
                entry.pin for entry in databases.newest("c").external_databases if entry.url == databases.url(name)
            }
            assert {pin for pin, url in databases.clone_pins(name).items() if url == databases.url("c")} == needed
        assert [databases.unreferenced(name) for name in ("a", "b", "c")] == [[], [], []]

    def verb(place: DatabaseLocation) -> object:
        return create_clone(place, databases.url("b"), copy=copy)

    def retry() -> object:
        try:
            return verb(databases.place("c"))
        except AlreadyExists:  # a late first manifest landed just then: it is this very clone's
            return verb(databases.place("c"))

    assert check_every_fault(databases, verb, retry, check, name="c") > 60


def test_an_unfinished_clone_is_left_alone_by_the_collector(databases: FaultyDatabases) -> None:
    """A collection of a clone that is not finished deletes nothing and says why."""
    fill(databases, "parent")
    stop_at_first_manifest(databases, "clone", "parent")
    before = databases.objects("clone")
    done = collect_once(databases.place("clone"), options=AT_ONCE)
    assert "not finished" in done.report.warnings[0]
    folders = ("sst/", "wal/", "manifest/")
    assert sum(done.report.kept.values()) == sum(path.startswith(folders) for path in databases.objects("clone"))
    assert not done.gone
    assert databases.objects("clone") == before


@pytest.mark.parametrize("copy", [False, True])
def test_a_parent_that_lacks_an_object_is_damaged(databases: FaultyDatabases, copy: bool) -> None:
    """An object that a live pin protects and that is not there is named, and no database is made of what is left."""
    fill(databases, "parent", tail=3)
    lost = [path for path in databases.objects("parent") if path.startswith("wal/")][-2]
    databases.place("parent").store.delete([lost])
    with pytest.raises(Corruption, match="cannot be cloned") as caught:
        clone(databases, "clone", "parent", copy=copy)
    assert caught.value.facts["path"].endswith(lost)
    with pytest.raises(LakebedError):
        databases.rows("clone")


def test_a_parent_destroyed_in_between_ends_the_clone(databases: FaultyDatabases) -> None:
    """Softly destroyed before the pins are permanent: the clone is refused and its pins go, so the parent can too."""
    fill(databases, "parent")
    stop_at_first_manifest(databases, "clone", "parent")
    destroy(databases.place("parent"), soft=True, take_over=True)
    with pytest.raises(InvalidRequest, match="destroyed"):
        clone(databases, "clone", "parent")
    assert databases.clone_pins("parent") == {}
    with pytest.raises(LakebedError):
        clone(databases, "clone", "parent")
    assert ManifestLog(databases.place("clone")).latest().initialized is False


@pytest.mark.parametrize("end", ["destroyed", "collected"])
@pytest.mark.parametrize("original", ["there", "moved away"])
def test_a_copied_folder_leaves_the_pins_of_the_clone_that_it_was_copied_from(
    databases: FaultyDatabases, end: str, original: str
) -> None:
    """A copy that ends or detaches removes no pin that a database elsewhere named; without that one, all of them."""
    rows = fill(databases, "parent")
    clone(databases, "clone", "parent")
    for path, body in databases.objects("clone").items():
        databases.root.put(f"copy/{path}", body)
        if original == "moved away":
            databases.root.delete([f"clone/{path}"])
    if end == "destroyed":
        destroy(databases.place("copy"), soft=False, take_over=True)
    else:
        with databases.open("copy") as db:
            db.flush(memtable=True)
        DatabaseAdmin(databases.place("copy")).compact(full=True)
        databases.collect("copy")
        assert databases.newest("copy").external_databases == ()
        assert databases.rows("copy") == rows
    if original == "moved away":
        assert databases.clone_pins("parent") == {}
        return
    with databases.open("parent") as db:
        for key in rows:
            db.delete(key)
        db.flush(memtable=True)
    DatabaseAdmin(databases.place("parent")).compact(full=True)
    databases.collect("parent")
    assert databases.rows("clone") == rows
    destroy(databases.place("clone"), soft=False, take_over=True)
    assert databases.clone_pins("parent") == {}


def test_a_clone_by_another_path_gives_up_its_pins(tmp_path: Path) -> None:
    """Destroyed or collected through a link to the folder around it, a clone is still itself."""
    (tmp_path / "lake").mkdir()
    (tmp_path / "link").symlink_to("lake")
    options = DatabaseOptions(background=False)
    with Database.open(DatabaseLocation.at(tmp_path / "lake" / "parent"), options=options) as db:
        db.put(b"k", b"v")
        db.flush(memtable=True)
    parent = DatabaseLocation.at(tmp_path / "lake" / "parent")
    for name in ("destroyed", "collected"):
        create_clone(DatabaseLocation.at(tmp_path / "lake" / name), parent.url)
    destroy(DatabaseLocation.at(tmp_path / "link" / "destroyed"), soft=False)
    DatabaseAdmin(DatabaseLocation.at(tmp_path / "link" / "collected")).compact(full=True)
    collect_once(DatabaseLocation.at(tmp_path / "link" / "collected"), options=AT_ONCE)
    assert [pin for pin in ManifestLog(parent).latest().checkpoints if pin.owner.kind == "clone"] == []


def test_a_lifetime_must_be_one(databases: FaultyDatabases) -> None:
    """Pins that would be dead at once are refused before anything happens."""
    fill(databases, "parent")
    with pytest.raises(InvalidRequest, match="lifetime"):
        clone(databases, "clone", "parent", pin_lifetime=timedelta(0))


def test_many_at_once_in_threads(tmp_path: Path) -> None:
    """Clones of one parent to many places all succeed; to one place, one is made and no pin leaks."""
    environment = Environment()
    parent = DatabaseLocation.at(tmp_path / "parent", environment=environment, durable=False)
    with Database.open(parent, options=DatabaseOptions(background=False)) as db:
        for number in range(12):
            db.put(b"%d" % number, b"1")
        db.flush()

    def make(target: str) -> str:
        try:
            return str(create_clone(parent.other(str(tmp_path / target)), parent.url).initialized)
        except AlreadyExists:
            return "AlreadyExists"

    with ThreadPoolExecutor(8) as pool:
        assert list(pool.map(make, [f"clone{number}" for number in range(8)])) == ["True"] * 8
        rivals = list(pool.map(make, ["one"] * 8))
    assert "True" in rivals
    assert set(rivals) <= {"True", "AlreadyExists"}
    pins = [checkpoint for checkpoint in ManifestLog(parent).latest().checkpoints if checkpoint.owner.kind == "clone"]
    assert len(pins) == 9
    assert {pin.expires_at_ms for pin in pins} == {None}
    assert len({pin.owner.url for pin in pins}) == 9
