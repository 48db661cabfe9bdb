"""Clones: what they share, what they cost, who may have them, and what is left after a crash at any step."""

from __future__ import annotations

import contextlib
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from lakebed.errors import AlreadyExists, InvalidRequest, LakebedError, NotFound
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
from lakebed.runtime import Environment
from lakebed.testing import Crashed, Fault, FaultyStore, RecordingStore
from worlds.kv.faulty_databases import AT_ONCE, Farm, strike_everywhere


@pytest.fixture
def farm() -> Farm:
    """Databases in one memory."""
    return Farm()


def fill(farm: Farm, name: str, *, prefix: str = "k", files: int = 2, tail: int = 2) -> dict[bytes, bytes]:
    """A database with files and a log behind them; what it holds."""
    with farm.open(name) as db:
        for file in range(files):
            db.put(f"{prefix}{file}".encode(), f"{name} {file}".encode())
            db.put(f"{prefix}{file}-more".encode(), b"x" * 50)
            db.flush(memtable=True)
        rows = dict(db.scan())
        farm.open(name)  # a rival: what `db` writes from here on would be lost
    with farm.open(name) as db:
        for number in range(tail):
            db.put(f"{prefix}-tail{number}".encode(), f"tail {number}".encode())
            rows[f"{prefix}-tail{number}".encode()] = f"tail {number}".encode()
        leave(db)
    return rows


def leave(db: Any) -> None:
    """End as a crash does: nothing more is flushed."""
    db.flush()


def clone(farm: Farm, target: str, parent: str, checkpoint: str | None = None, **settings: Any) -> Any:
    """A clone by names."""
    return create_clone(farm.place(target), farm.url(parent), checkpoint, **settings)


def test_a_clone_has_everything_that_is_durable_and_lives_its_own_life(farm: Farm) -> None:
    """Files and log of the latest are in a clone; afterwards neither sees what the other writes."""
    rows = fill(farm, "parent")
    clone(farm, "clone", "parent")
    assert farm.rows("clone") == rows == farm.rows("parent")
    with farm.open("clone") as db:
        db.put(b"k0", b"mine")
        db.delete(b"k1")
        db.flush(memtable=True)
    with farm.open("parent") as db:
        db.put(b"theirs", b"1")
    assert farm.rows("clone") == {**{key: value for key, value in rows.items() if key != b"k1"}, b"k0": b"mine"}
    assert farm.rows("parent") == {**rows, b"theirs": b"1"}


def test_a_clone_of_a_checkpoint_has_its_version(farm: Farm) -> None:
    """A clone from a checkpoint, by id or by name, has what the checkpoint has, though the parent went on."""
    rows = fill(farm, "parent")
    made = create_checkpoint(farm.place("parent"), CheckpointOptions(name="before"))
    with farm.open("parent") as db:
        db.put(b"later", b"1")
    clone(farm, "by-id", "parent", made.id)
    clone(farm, "by-name", "parent", "before")
    assert farm.rows("by-id") == farm.rows("by-name") == rows


def test_no_file_is_copied_and_the_log_is(farm: Farm) -> None:
    """A clone's folder holds the log's tail under the same numbers and no sorted file, until it writes."""
    fill(farm, "parent")
    made = clone(farm, "clone", "parent")
    paths = farm.objects("clone")
    assert not [path for path in paths if path.startswith("sst/")]
    tail = range(made.replay_after_wal_id + 1, made.wal_id_last_seen + 1)
    assert [path for path in paths if path.startswith("wal/")] == [f"wal/{number:020d}.wal" for number in tail]
    assert {path: body for path, body in farm.objects("parent").items() if path in paths and "wal" in path} == {
        path: body for path, body in paths.items() if "wal" in path
    }
    locations = Locations(farm.place("clone"), made)
    assert {locations.owner(id) for id in file_ids(made)} == {farm.url("parent")}


def test_a_clone_costs_its_ancestors_and_its_log_whatever_the_rows(farm: Farm) -> None:
    """Requests grow with ancestors and unflushed log objects only: ten times the files change none."""
    costs = {}
    for name, files, tail in (("few", 1, 2), ("many", 10, 2), ("long", 1, 12)):
        fill(farm, name, files=files, tail=tail)
        recording = RecordingStore(farm.root)
        create_clone(farm.place(f"{name}-clone", way=recording), farm.url(name))
        costs[name] = len(recording.trace)
    assert costs["few"] == costs["many"]
    assert costs["long"] == costs["few"] + 2 * 10
    recording = RecordingStore(farm.root)
    create_clone(farm.place("grand-clone", way=recording), farm.url("few-clone"))
    assert costs["few"] < len(recording.trace) <= costs["few"] + 9


def test_clones_of_clones_hold_a_pin_in_every_ancestor(farm: Farm) -> None:
    """Entries are flattened, each with a pin sourced from the parent's own; the middle one may go afterwards."""
    first = fill(farm, "a", prefix="a", tail=0)
    clone(farm, "b", "a")
    second = fill(farm, "b", prefix="b", tail=1)
    made = clone(farm, "c", "b")
    entries = {entry.url: entry for entry in made.external_databases}
    assert set(entries) == {farm.url("a"), farm.url("b")}
    own = farm.newest("b").external_databases[0].pin
    assert entries[farm.url("a")].source_checkpoint == own
    for name in ("a", "b"):
        assert farm.clone_pins(name)[entries[farm.url(name)].pin] == farm.url("c")
    rows = {**first, **second}
    assert farm.rows("c") == rows
    with farm.open("c") as db:
        db.compact(full=True)
    farm.collect("c")
    assert not farm.newest("c").external_databases
    assert not farm.clone_pins("b")
    assert set(farm.clone_pins("a")) == {own}
    destroy(farm.place("b"), soft=False, take_over=True)
    destroy(farm.place("a"), soft=False, take_over=True)
    assert farm.rows("c") == rows


def test_a_grandchild_outlives_the_database_in_between(farm: Farm) -> None:
    """Where the middle one owns no file of it, it may be destroyed while the grandchild reads the first one's files."""
    rows = fill(farm, "a", tail=0)
    clone(farm, "b", "a")
    clone(farm, "c", "b")
    farm.collect("c")
    assert [entry.url for entry in farm.newest("c").external_databases] == [farm.url("a")]
    destroy(farm.place("b"), soft=False, take_over=True)
    farm.collect("a")
    assert farm.rows("c") == rows


def test_a_finished_clone_stops_at_once_and_another_is_refused(farm: Farm) -> None:
    """The same call again changes nothing; another parent, another checkpoint, or a plain database is AlreadyExists."""
    fill(farm, "parent")
    fill(farm, "other")
    made = create_checkpoint(farm.place("parent"))
    clone(farm, "clone", "parent")
    before = farm.objects()
    clone(farm, "clone", "parent")
    for target, parent, checkpoint in (
        ("clone", "other", None),
        ("clone", "parent", made.id),
        ("other", "parent", None),
    ):
        with pytest.raises(AlreadyExists, match="choose another place"):
            clone(farm, target, parent, checkpoint)
    assert farm.objects() == before


@pytest.mark.parametrize("end", ["expired", "collected", "deleted", "parent destroyed"])
def test_a_finished_clone_by_name_stops_at_once_when_the_name_has_ended(farm: Farm, end: str) -> None:
    """The same call again changes nothing, whatever became of the name; another name is still refused."""
    fill(farm, "parent")
    made = create_checkpoint(farm.place("parent"), CheckpointOptions(name="before", lifetime=timedelta(hours=1)))
    clone(farm, "clone", "parent", "before", copy=True)
    if end == "deleted":
        delete_checkpoint(farm.place("parent"), "before")
    farm.clock.advance(3601)
    if end == "collected":
        farm.collect("parent")
    if end == "parent destroyed":
        destroy(farm.place("parent"), soft=False)
    before = farm.objects()
    for asked in ("before", made.id, made.id.upper()):
        assert clone(farm, "clone", "parent", asked, copy=True).initialized
    with pytest.raises(InvalidRequest, match="no checkpoint never"):
        clone(farm, "clone", "parent", "never", copy=True)
    with pytest.raises(AlreadyExists):
        clone(farm, "clone", "parent", copy=True)
    assert farm.objects() == before


def test_a_name_that_passed_to_another_checkpoint_is_another_clone(farm: Farm) -> None:
    """Whoever asks by a name means the checkpoint that bears it now: the older clone is not handed out for it."""
    fill(farm, "parent")
    create_checkpoint(farm.place("parent"), CheckpointOptions(name="daily", lifetime=timedelta(hours=1)))
    clone(farm, "clone", "parent", "daily")
    farm.clock.advance(3601)
    create_checkpoint(farm.place("parent"), CheckpointOptions(name="daily"))
    with pytest.raises(AlreadyExists, match="choose another place"):
        clone(farm, "clone", "parent", "daily")


def test_an_unfinished_clone_by_name_is_finished_after_the_name_expired(farm: Farm) -> None:
    """Its pins keep the version, so the same call finishes it; without them the error says what is gone."""
    rows = fill(farm, "parent")
    create_checkpoint(farm.place("parent"), CheckpointOptions(name="before", lifetime=timedelta(minutes=10)))
    stop_at_first_manifest(farm, "clone", "parent", "before")
    farm.clock.advance(601)
    farm.collect("parent")
    begun = farm.save()
    clone(farm, "clone", "parent", "before")
    assert farm.rows("clone") == rows
    farm.put_back(begun)
    farm.clock.advance(PIN_LIFETIME.total_seconds())
    with pytest.raises(InvalidRequest, match="no checkpoint"):
        clone(farm, "clone", "parent", "before")


def test_the_same_clone_by_another_spelling_of_its_url(farm: Farm) -> None:
    """URLs are normalised before they are compared: a trailing slash names the same parent."""
    fill(farm, "parent")
    clone(farm, "clone", "parent")
    assert create_clone(farm.place("clone"), farm.url("parent") + "/").initialized
    assert farm.newest("clone").source.url == farm.url("parent")


@pytest.mark.parametrize("target", ["parent", "parent/below"])
def test_not_onto_itself_nor_below_itself(farm: Farm, target: str) -> None:
    """A database is not cloned onto or into its own folder."""
    fill(farm, "parent")
    before = farm.objects()
    with pytest.raises(InvalidRequest, match="itself") as error:
        clone(farm, target, "parent")
    assert error.value.kind == "clone_onto_itself"
    assert farm.objects() == before


@pytest.mark.parametrize("there", ["schema/schema-0", "notes.txt"])
def test_not_onto_anything_else(farm: Farm, there: str) -> None:
    """A folder with a table or other files is refused, and nothing is written there or in the parent."""
    fill(farm, "parent")
    farm.root.put(f"taken/{there}", b"x")
    before = farm.objects()
    with pytest.raises(InvalidRequest, match="empty folder"):
        clone(farm, "taken", "parent")
    assert farm.objects() == before


def test_not_from_what_is_missing_unfinished_or_destroyed(farm: Farm) -> None:
    """A parent that is not there, a clone being made, a destroyed database, an unknown checkpoint: a sentence each."""
    fill(farm, "parent")
    with pytest.raises(NotFound):
        clone(farm, "clone", "nobody")
    with pytest.raises(InvalidRequest, match="no checkpoint"):
        clone(farm, "clone", "parent", "00000000-0000-4000-8000-000000000000")
    stop_at_first_manifest(farm, "unfinished", "parent")
    with pytest.raises(InvalidRequest, match="not finished"):
        clone(farm, "clone", "unfinished")
    destroy(farm.place("parent"), soft=True, take_over=True)
    with pytest.raises(InvalidRequest, match="destroyed"):
        clone(farm, "clone", "parent")
    assert not farm.objects("clone")


def test_another_store_needs_a_copy_which_depends_on_nothing(farm: Farm, tmp_path: Any) -> None:
    """Across stores only copy=True works; the copy has all rows, no ancestors, and the parent no pin of it."""
    rows = {**fill(farm, "a", prefix="a", tail=0)}
    clone(farm, "b", "a")
    rows |= fill(farm, "b", prefix="b")
    elsewhere = farm.place("b")
    target = DatabaseLocation(open_store(str(tmp_path / "copy"), durable=False), farm.environment, elsewhere.open_url)
    with pytest.raises(InvalidRequest, match="--copy") as error:
        create_clone(target, farm.url("b"))
    assert error.value.kind == "other_store"
    assert not (tmp_path / "copy").exists()
    made = create_clone(target, farm.url("b"), copy=True)
    assert made.external_databases == ()
    assert farm.clone_pins("b") == {}
    destroy(farm.place("b"), soft=False, take_over=True)
    destroy(farm.place("a"), soft=False, take_over=True)
    with DatabaseReader.open(target, options=ReaderOptions(follow_latest=True, background=False)) as reader:
        assert dict(reader.scan()) == rows


def stop_at_first_manifest(farm: Farm, target: str, parent: str, checkpoint: str | None = None) -> None:
    """Leave a clone just begun: its maker died with the first manifest."""
    recording = RecordingStore(farm.root)
    base = farm.save()
    create_clone(farm.place(target, way=recording), farm.url(parent), checkpoint)
    farm.put_back(base)
    path = f"{target}/manifest/{1:020d}.manifest"
    index = next(one.index for one in recording.trace if one.call.kind == "put" and one.call.path == path)
    way = FaultyStore(farm.root, faults={index: Fault.CRASH_AFTER})
    with pytest.raises(Crashed):
        create_clone(farm.place(target, way=way), farm.url(parent), checkpoint)
    assert not farm.newest(target).initialized


def test_a_retry_joins_the_same_attempt_only(farm: Farm) -> None:
    """An unfinished clone is finished by the same call with the same pins; any other source is AlreadyExists."""
    rows = fill(farm, "parent")
    fill(farm, "other")
    stop_at_first_manifest(farm, "clone", "parent")
    begun = farm.newest("clone")
    with pytest.raises(AlreadyExists):
        clone(farm, "clone", "other")
    with pytest.raises(AlreadyExists):
        clone(farm, "clone", "parent", copy=True)
    with pytest.raises(InvalidRequest, match="not finished"):
        farm.open("clone")
    finished = clone(farm, "clone", "parent")
    assert finished.external_databases == begun.external_databases
    assert farm.rows("clone") == rows


def test_a_retry_after_the_pins_expired_takes_new_ones(farm: Farm) -> None:
    """Pins of a dead cloner expire; a retry pins the latest again, rewrites the unfinished clone, and leaks nothing."""
    fill(farm, "parent")
    stop_at_first_manifest(farm, "clone", "parent")
    farm.clock.advance(PIN_LIFETIME.total_seconds() + 1)
    with farm.open("parent") as db:
        db.put(b"k0", b"new")
        db.compact(full=True)
    farm.collect("parent")
    assert farm.clone_pins("parent") == {}
    clone(farm, "clone", "parent")
    assert farm.rows("clone") == farm.rows("parent")
    assert set(farm.clone_pins("parent")) == {entry.pin for entry in farm.newest("clone").external_databases}
    assert farm.newest("parent").checkpoint(next(iter(farm.clone_pins("parent")))).expires_at_ms is None


def test_a_retry_from_a_checkpoint_that_is_gone_says_so(farm: Farm) -> None:
    """With its pins expired and its checkpoint deleted, an unfinished clone cannot be finished; destroying it works."""
    fill(farm, "parent")
    made = create_checkpoint(farm.place("parent"))
    recording = RecordingStore(farm.root)
    base = farm.save()
    create_clone(farm.place("clone", way=recording), farm.url("parent"), made.id)
    farm.put_back(base)
    path = f"clone/manifest/{1:020d}.manifest"
    index = next(one.index for one in recording.trace if one.call.kind == "put" and one.call.path == path)
    with pytest.raises(Crashed):
        create_clone(
            farm.place("clone", way=FaultyStore(farm.root, faults={index: Fault.CRASH_AFTER})),
            farm.url("parent"),
            made.id,
        )
    delete_checkpoint(farm.place("parent"), made.id)
    farm.clock.advance(PIN_LIFETIME.total_seconds() + 1)
    with pytest.raises(InvalidRequest, match="no checkpoint"):
        clone(farm, "clone", "parent", made.id)
    destroy(farm.place("clone"), soft=False)
    assert farm.clone_pins("parent") == {}
    assert farm.unreferenced("clone") == []


def test_a_sleeping_rival_cannot_revive_pins_that_were_found_dead(farm: Farm) -> None:
    """A cloner that sleeps before making its pins permanent wakes after another replaced them: nothing leaks."""
    fill(farm, "parent")
    base = farm.save()
    recording = RecordingStore(farm.root)
    create_clone(farm.place("clone", way=recording), farm.url("parent"))
    for index in range(len(recording.trace)):
        farm.put_back(base)
        woken = []

        def sleep(at: int, call: Any, index: int = index, woken: list[int] = woken) -> None:
            if at == index and not woken:
                woken.append(at)
                farm.clock.advance(PIN_LIFETIME.total_seconds() + 1)
                try:
                    clone(farm, "clone", "parent")
                except AlreadyExists:
                    return  # the rival began it in between

        with contextlib.suppress(AlreadyExists):
            create_clone(farm.place("clone", way=FaultyStore(farm.root, faults=sleep)), farm.url("parent"))
        assert woken
        assert clone(farm, "clone", "parent").initialized
        assert farm.rows("clone") == farm.rows("parent")
        named = {entry.pin for entry in farm.newest("clone").external_databases}
        permanent = {
            one.id
            for one in farm.newest("parent").checkpoints
            if one.owner.kind == "clone" and one.expires_at_ms is None
        }
        assert permanent == named
        assert set(farm.clone_pins("parent")) == named


def test_of_rivals_for_one_place_one_wins_and_the_others_leak_nothing(farm: Farm) -> None:
    """A rival that slips in at any call wins or loses whole: AlreadyExists for one, and no pin of the loser's."""
    fill(farm, "parent")
    fill(farm, "other")
    base = farm.save()
    recording = RecordingStore(farm.root)
    create_clone(farm.place("clone", way=recording), farm.url("parent"))
    winners = set()
    for index in range(len(recording.trace)):
        farm.put_back(base)
        lost: list[str] = []
        met: list[int] = []

        def slip_in(at: int, call: Any, index: int = index, lost: list[str] = lost, met: list[int] = met) -> None:
            if at == index and not met:
                met.append(at)
                try:
                    clone(farm, "clone", "other")
                except AlreadyExists:
                    lost.append("other")

        try:
            create_clone(farm.place("clone", way=FaultyStore(farm.root, faults=slip_in)), farm.url("parent"))
        except AlreadyExists:
            lost.append("parent")
        assert len(lost) == 1
        assert met
        winner = "other" if lost == ["parent"] else "parent"
        winners.add(winner)
        assert farm.newest("clone").source.url == farm.url(winner)
        assert farm.clone_pins(lost[0]) == {}
        assert len(farm.clone_pins(winner)) == 1
        assert farm.rows("clone") == farm.rows(winner)
    assert winners == {"parent", "other"}


@pytest.mark.parametrize("copy", [False, True])
def test_every_fault_at_every_call_of_a_clone(farm: Farm, copy: bool) -> None:
    """Crash, lost reply, refusal and late landing anywhere: the retry finishes, and only expiring pins leak."""
    rows = fill(farm, "a", prefix="a", files=1, tail=0)
    clone(farm, "b", "a")
    rows |= fill(farm, "b", prefix="b", files=1, tail=1)

    def check() -> None:
        assert farm.rows("c") == rows
        made = farm.newest("c")
        for name in ("a", "b"):
            needed = {entry.pin for entry in made.external_databases if entry.url == farm.url(name)}
            pins = [one for one in farm.newest(name).checkpoints if str(one.owner.url) == farm.url("c")]
            assert {one.id for one in pins if one.expires_at_ms is None} == needed
        farm.clock.advance(PIN_LIFETIME.total_seconds() + 1)
        farm.collect("a", "b", "c")
        assert farm.rows("c") == rows == farm.rows("b")
        for name in ("a", "b"):
            needed = {entry.pin for entry in farm.newest("c").external_databases if entry.url == farm.url(name)}
            assert {pin for pin, url in farm.clone_pins(name).items() if url == farm.url("c")} == needed
        assert [farm.unreferenced(name) for name in ("a", "b", "c")] == [[], [], []]

    def verb(place: DatabaseLocation) -> object:
        return create_clone(place, farm.url("b"), copy=copy)

    def retry() -> object:
        try:
            return verb(farm.place("c"))
        except AlreadyExists:  # a late first manifest landed just then: it is this very clone's
            return verb(farm.place("c"))

    assert strike_everywhere(farm, verb, retry, check, name="c") > 60


def test_an_unfinished_clone_is_left_alone_by_the_collector(farm: Farm) -> None:
    """A collection of a clone that is not finished deletes nothing and says why."""
    fill(farm, "parent")
    stop_at_first_manifest(farm, "clone", "parent")
    before = farm.objects("clone")
    done = collect_once(farm.place("clone"), options=AT_ONCE)
    assert "not finished" in done.report.warnings[0]
    assert not done.gone
    assert farm.objects("clone") == before


def test_a_parent_destroyed_in_between_ends_the_clone(farm: Farm) -> None:
    """Softly destroyed before the pins are permanent: the clone is refused and its pins go, so the parent can too."""
    fill(farm, "parent")
    stop_at_first_manifest(farm, "clone", "parent")
    destroy(farm.place("parent"), soft=True, take_over=True)
    with pytest.raises(InvalidRequest, match="destroyed"):
        clone(farm, "clone", "parent")
    assert farm.clone_pins("parent") == {}
    with pytest.raises(LakebedError):
        clone(farm, "clone", "parent")
    assert ManifestLog(farm.place("clone")).latest().initialized is False


def test_a_lifetime_must_be_one(farm: Farm) -> None:
    """Pins that would be dead at once are refused before anything happens."""
    fill(farm, "parent")
    with pytest.raises(InvalidRequest, match="lifetime"):
        clone(farm, "clone", "parent", pin_lifetime=timedelta(0))


def test_many_at_once_in_threads(tmp_path: Path) -> None:
    """Clones of one parent to many places all succeed; to one place, one is made and nobody leaks a pin."""
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
    pins = [one for one in ManifestLog(parent).latest().checkpoints if one.owner.kind == "clone"]
    assert len(pins) == 9
    assert {one.expires_at_ms for one in pins} == {None}
    assert len({one.owner.url for one in pins}) == 9
