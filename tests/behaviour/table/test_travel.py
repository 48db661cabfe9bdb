"""Time travel: every way to name a version, tags that outlive snapshots, and bounded searches."""

from __future__ import annotations

import uuid
from typing import Any

import pyarrow as pa
import pytest

from lakebed.errors import InvalidRequest, NotFound
from lakebed.objects.open import open_store
from lakebed.table.branch.travel import resolve, source_of
from lakebed.table.rows.rows import new_writer
from lakebed.table.table import Table
from lakebed.table.versions.system import read_system_table
from worlds.table.foreign import foreign_commit


@pytest.fixture
def history(bench: Any) -> Any:
    """Snapshots 1 to 10, a second apart, with tags on 2 and 6 and a branch."""
    for number in range(1, 11):
        bench.commit(f"f{number}")
    bench.table.create_tag("two", snapshot_id=2)
    bench.table.create_tag("six", snapshot_id=6)
    bench.table.create_branch("dev", tag="six")
    return bench


@pytest.mark.parametrize(
    ("version", "snapshot_id"),
    [
        (3, 3),
        ("3", 3),
        ("snapshot.3", 3),
        ("two", 2),
        ("tag.two", 2),
        ("dev", 6),
        ("branch.dev", 6),
        (None, 10),
    ],
)
def test_every_way_to_name_a_version(history: Any, version: int | str | None, snapshot_id: int) -> None:
    """Ids, digits, tags and branches, plain or with their kind."""
    assert history.table.resolve(version=version).id == snapshot_id


@pytest.mark.parametrize(
    ("version", "snapshot_id"), [(3, 3), ("snapshot.3", 3), ("two", 2), ("tag.two", 2), (2, 2), (None, 10)]
)
@pytest.mark.parametrize("is_expired", [False, True])
def test_every_version_of_a_branch_can_be_tagged(
    history: Any, version: int | str | None, snapshot_id: int, is_expired: bool
) -> None:
    """The tag holds the version that was named, also one that only a tag holds."""
    if is_expired:
        history.hide(1, 2)
    assert (
        history.table.context.tags.create("new", source=source_of(history.table.context, version)).snapshot.id
        == snapshot_id
    )
    with pytest.raises(InvalidRequest, match=r"'branch\.dev' is a branch: open it with branch='dev'"):
        source_of(history.table.context, "branch.dev")


def test_a_tag_goes_before_a_branch_of_the_same_name(history: Any) -> None:
    """A plain name is a tag first; the explicit form reaches the branch."""
    history.table.create_tag("dev", snapshot_id=2)
    assert history.table.resolve(version="dev").id == 2
    assert history.table.resolve(version="branch.dev").id == 6


@pytest.mark.parametrize(
    ("version", "sentence"),
    [
        (11, "no snapshot 11: it has snapshots 1 to 10"),
        ("0", "no snapshot 0"),
        ("nope", r"no tag or branch 'nope'; tags: six, two"),
        ("tag.nope", "no tag 'nope': it has six, two"),
        ("branch.nope", "no branch 'nope'"),
        ("../escape", "no tag or branch"),
    ],
)
def test_what_is_not_there_is_said_with_what_is(history: Any, version: int | str, sentence: str) -> None:
    """A missing version names its neighbours."""
    with pytest.raises(NotFound, match=sentence):
        history.table.resolve(version=version)


@pytest.mark.parametrize("version", [True, 1.5, "snapshot.x"])
def test_what_is_no_version_is_refused(history: Any, version: Any) -> None:
    """A wrong kind of value is the caller's mistake."""
    with pytest.raises(InvalidRequest, match=r"is not a valid version|takes a whole number or a text"):
        history.table.resolve(version=version)


def test_version_and_time_together_are_refused(history: Any) -> None:
    """Which one is meant cannot be guessed."""
    with pytest.raises(InvalidRequest, match="not both"):
        history.table.resolve(version=1, timestamp_ms=1)


def test_an_empty_table_has_no_version(bench: Any) -> None:
    """Before the first write there is nothing to read, by any name or time."""
    with pytest.raises(NotFound, match="nothing was ever written"):
        bench.table.resolve()
    with pytest.raises(NotFound, match="nothing was ever written"):
        bench.table.resolve(timestamp_ms=10**15)
    with pytest.raises(NotFound, match="it has no snapshot yet"):
        bench.table.resolve(version=1)


def test_a_time_is_the_newest_snapshot_at_or_before_it(history: Any) -> None:
    """Exactly at a commit it is that commit; a millisecond earlier its predecessor; far in the future the newest."""
    times = {snapshot.id: snapshot.time_ms for snapshot in history.table.snapshots()}
    for snapshot_id in range(2, 11):
        assert history.table.resolve(timestamp_ms=times[snapshot_id]).id == snapshot_id
        assert history.table.resolve(timestamp_ms=times[snapshot_id] - 1).id == snapshot_id - 1
    assert history.table.resolve(timestamp_ms="2999-01-01").id == 10


def test_expired_times_fall_back_to_the_nearest_earlier_tag(history: Any) -> None:
    """When all snapshots of a time have expired, the nearest tag before it is read; a later tag never is."""
    times = {snapshot.id: snapshot.time_ms for snapshot in history.table.snapshots()}
    history.hide(*range(1, 9))
    assert history.table.resolve(timestamp_ms=times[9]).id == 9
    assert history.table.resolve(timestamp_ms=times[8]).id == 6
    assert history.table.resolve(timestamp_ms=times[6]).id == 6
    assert history.table.resolve(timestamp_ms=times[5]).id == 2
    with pytest.raises(NotFound, match="earliest time that can be read") as raised:
        history.table.resolve(timestamp_ms=times[1])
    assert raised.value.facts["earliest_ms"] == times[2]


@pytest.mark.parametrize("expired", [(), (1,), (1, 2, 3, 4), (1, 2, 3, 4, 5, 6, 7)])
def test_every_time_is_what_was_the_newest_then(history: Any, expired: tuple[int, ...]) -> None:
    """A moment before, at and behind each commit, of snapshots and of tags whose snapshot expired."""
    times_ms = {number: history.table.resolve(version=number).time_ms for number in range(1, 11)}
    if expired:
        history.hide(*expired)
    kept = [number for number in times_ms if number not in expired]
    held = sorted({2, 6}.intersection(expired))
    for time_ms in sorted({time + part for time in times_ms.values() for part in (-1, 0, 1)}):
        at = [number for number in kept if times_ms[number] <= time_ms]
        earlier = at or [number for number in held if times_ms[number] <= time_ms]
        if earlier:
            found = resolve(history.table.context, timestamp=time_ms)
            assert found.snapshot.id == max(earlier)
            assert (found.tag is None) == bool(at)
        else:
            with pytest.raises(NotFound) as caught:
                resolve(history.table.context, timestamp=time_ms)
            earliest_ms = min(times_ms[number] for number in (*kept, 2, 6))
            assert caught.value.facts["earliest_ms"] == earliest_ms


def test_a_tag_is_read_without_its_snapshot(history: Any) -> None:
    """By name, and by the id of its expired snapshot; an expired id that no tag holds is not found."""
    history.hide(*range(1, 9))
    assert history.table.resolve(version="two").id == 2
    assert history.table.resolve(version=2).id == 2
    assert resolve(history.table.context, version=2, timestamp=None).tag == "two"
    with pytest.raises(NotFound, match="a tag may still pin it"):
        history.table.resolve(version=3)


def test_gaps_between_ids_are_legal(history: Any) -> None:
    """After ids in the middle vanished, the newest is found, times are searched, and commits go on above."""
    times = {snapshot.id: snapshot.time_ms for snapshot in history.table.snapshots()}
    history.table.context.snapshots.log.delete([4, 5, 7, 8, 9], fenced=False)
    fresh = history.reopen()
    assert [snapshot.id for snapshot in fresh.snapshots()] == [1, 2, 3, 6, 10]
    assert fresh.latest().id == 10
    assert fresh.resolve(timestamp_ms=times[5]).id == 3
    assert fresh.resolve(timestamp_ms=times[9]).id == 6
    assert history.commit("next").id == 11


def test_searching_by_time_is_a_bisection(bench: Any) -> None:
    """Among 200 snapshots any time costs 1 LIST and at most 8 GETs."""
    times_ms = [bench.commit(f"f{number}").time_ms for number in range(200)]
    for snapshot_id in range(1, 201, 9):
        with bench.store.count() as requests:
            assert bench.table.resolve(timestamp_ms=times_ms[snapshot_id - 1]).id == snapshot_id
        assert requests.list == 1
        assert requests.get <= 8


def test_a_view_names_its_version_by_kind(history: Any) -> None:
    """`at` gives a view that goes on naming the tag, so it survives the expiry of the snapshot."""
    assert history.table.at("two").version == "tag.two"
    assert history.table.at(3).version == "snapshot.3"
    assert history.table.at("dev").version == "branch.dev"
    history.hide(1, 2)
    assert history.table.at(2).version == "tag.two"


@pytest.mark.parametrize("expired_count", [1, 2, 3])
def test_changes_need_every_snapshot_in_between(expired_count: int, bench: Any) -> None:
    """Changes after a version are told whole or refused, also where only the first snapshot after it has expired."""
    table = bench.table
    for number in range(5):
        table.append(pa.table({"id": [number]}))
        if number < 4:
            table.create_tag(f"t{number + 1}")
    table.expire(retain_max=5 - expired_count, retain_min=5 - expired_count, older_than_ms=2**60)
    ids = table.context.snapshots.ids()
    assert ids[0] == expired_count + 1
    for start in range(1, 5):
        expected = list(range(start, 5))  # the rows of the snapshots start + 1 to 5
        if start + 1 < ids[0]:
            with pytest.raises(NotFound, match=f"need every snapshot since, but the oldest left is {ids[0]}"):
                table.changes(f"t{start}")
        else:
            assert sorted(table.changes(f"t{start}")["id"].to_pylist()) == expected


@pytest.mark.parametrize("merges", [False, True])
def test_a_version_of_a_client_with_an_old_view_has_the_columns_of_its_rows(merges: bool) -> None:
    """Its snapshot names the schema of before a column was widened, whose type does not hold what is stored since."""
    rows = pa.table({"pt": ["a"], "v": pa.array([1], pa.int32())})
    store = open_store(f"memory://travel-{uuid.uuid4()}")
    table = Table.create(store, name="t", schema=rows.schema, partition_keys=["pt"])
    stale = new_writer(table.context)
    stale.write(rows)
    changes = stale.finish()
    table.widen_column("v", "BIGINT")
    table.add_column("w", "STRING")
    table.append(pa.table({"pt": ["a"], "v": [2**40], "w": ["x"]}))
    old = foreign_commit(table, changes, merges=merges, name="old")
    assert (old.id, old.schema_id) == (2, 0)
    table.create_tag("old", snapshot_id=2)
    expected = [{"pt": "a", "v": 1, "w": None}, {"pt": "a", "v": 2**40, "w": "x"}]
    for options in ({"version": 2}, {"tag": "old"}, {"timestamp_ms": old.time_ms}, {}):
        assert sorted(Table.open(store, name="t").read(**options).to_pylist(), key=lambda row: row["v"]) == expected
    schemas = read_system_table(table.context, "schemas", version=resolve(table.context, version=2))
    assert schemas["schema_id"].to_pylist() == [0, 1, 2]
