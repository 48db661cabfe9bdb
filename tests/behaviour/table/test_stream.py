"""A table that is followed: every row once, in batches of any size, whatever happens to the table."""

from __future__ import annotations

import random
from collections import Counter
from typing import Any

import pyarrow as pa
import pytest

from lakebed.errors import Conflict, InvalidRequest, LakebedError, NotFound
from lakebed.objects.open import open_store
from lakebed.repo.transport.local_objects import local_store
from lakebed.table.changes.stream import Bound, StreamBatch, StreamOffset, StreamSettings, TableStream
from lakebed.table.changes.stream_limits import Limits
from lakebed.table.read.read import read_split_table
from lakebed.table.schema.schema import drop_not_null
from lakebed.table.table import Table
from worlds.repo.memory_repository import MemoryRepository, open_context
from worlds.repo.operations import commit, reset

SCHEMA = pa.schema([("id", pa.int64()), ("v", pa.int64())])


def make(name: str, *, keyed: bool = False, **options: str) -> Table:
    keys = ["id"] if keyed else []
    options = {"bucket": "3", **options} if keyed else options
    return Table.create(
        open_store(f"memory://stream-{name}"), name="t", schema=SCHEMA, primary_keys=keys, options=options
    )


def rows(ids: list[int], v: int) -> pa.Table:
    return pa.table({"id": pa.array(ids, pa.int64()), "v": pa.array([v] * len(ids), pa.int64())})


def stream(table: Table, **settings: Any) -> TableStream:
    return TableStream(table.context, StreamSettings(**settings), schema=table.refresh())


def read(table: Table, batch: StreamBatch) -> list[dict[str, Any]]:
    """The rows of a batch, in any order."""
    rows = [row for split in batch.splits for row in read_split_table(table.store, split, plan=batch.plan).to_pylist()]
    for unit in batch.units:
        rows += [row for part in unit.rows(table.store, batch.plan) for row in part.to_pylist()]
    return rows


def drain(table: Table, following: TableStream, start: StreamOffset, limits: Limits) -> tuple[StreamOffset, list[Any]]:
    """Read all that is there, batch by batch; every offset goes through plain data, as in a checkpoint."""
    batches = []
    while True:
        end = following.advance(start, limits)
        if end == start:
            return end, batches
        end = StreamOffset.of(dict(end.members()))
        batches.append(read(table, following.plan(start, end)))
        start = end


def random_limits(rng: random.Random) -> Limits:
    if rng.random() < 0.2:
        return Limits()
    return Limits(**{rng.choice(["files", "rows", "bytes", "snapshots"]): rng.randint(1, 4)})


@pytest.mark.parametrize("changes", [False, True])
@pytest.mark.parametrize("kind", ["append", "keyed", "logged", "told"])
def test_a_stream_that_begins_with_an_empty_version_misses_nothing(kind: str, changes: bool) -> None:
    """Rows that are written between its begin and its first batch are read, in one batch or in several."""
    producer = {"logged": "input", "told": "full-compaction"}.get(kind, "none")
    table = make(f"empty-{kind}-{changes}", keyed=kind != "append", **{"changelog-producer": producer})
    table.write(rows([1], 0))
    for limits in (Limits(), Limits(snapshots=1), Limits(rows=1)):
        table.overwrite(rows([], 0))
        following = stream(table, changes=changes, removals="skip")
        start = following.first()
        table.write(rows([1, 2], 1))
        table.write(rows([3], 2))
        table.compact(full=True)
        end, batches = drain(table, following, start, limits)
        assert sorted((row["id"], row["v"]) for batch in batches for row in batch) == [(1, 1), (2, 1), (3, 2)]
        assert drain(table, following, end, limits) == (end, [])


@pytest.mark.parametrize("producer", ["none", "input", "full-compaction"])
def test_a_first_snapshot_that_overwrites_is_all_new(producer: str) -> None:
    """A stream that began before the table had a snapshot reads it, whether changes are logged or not."""
    table = make(f"first-{producer}", keyed=True, **{"changelog-producer": producer})
    following = stream(table, changes=True)
    start = following.first()
    table.overwrite(rows([1, 2], 1))
    table.compact(full=True)
    _, batches = drain(table, following, start, Limits())
    told = sorted((row["id"], row["v"], row["_row_kind"]) for batch in batches for row in batch)
    assert told == [(1, 1, "+I"), (2, 1, "+I")]


@pytest.mark.parametrize("engine", ["first-row", "deduplicate"])
def test_numbers_that_begin_again_after_a_compaction_hide_no_row(engine: str) -> None:
    """Of a key that is written again with a number that was used before, the row that the table has is read."""
    options = {"merge-engine": engine, "bucket": "1"} | ({} if engine == "first-row" else {"sequence.field": "v"})
    table = make(f"again-{engine}", keyed=True, **options)
    table.upsert(rows([1], 1))
    following = stream(table, changes=True)
    offset, _ = drain(table, following, following.first(), Limits())
    table.upsert(rows([2], 7))
    for _ in range(3):
        table.upsert(rows([2], 3))  # loses, and has the greatest number until it is compacted away
    table.compact(full=True)
    table.upsert(rows([2], 2))
    assert sorted(map(tuple, (row.values() for row in table.read().to_pylist()))) == [(1, 1), (2, 7)]
    _, batches = drain(table, following, offset, Limits())
    assert [(row["id"], row["v"]) for batch in batches for row in batch] == [(2, 7)]


SEEDS = [0, *(pytest.param(seed, marks=pytest.mark.long) for seed in range(1, 30))]


@pytest.mark.parametrize("seed", SEEDS)
def test_a_follower_has_what_the_table_has(seed: int) -> None:
    """Changes applied in order give the table's rows at every stop, from any start, with any limits."""
    rng = random.Random(seed)
    table = make(f"keyed-{seed}", keyed=True)
    following, offset = stream(table, changes=True), stream(table, changes=True).first()
    present: dict[int, int] = {}
    for step in range(20):
        action = rng.choice(["upsert", "upsert", "delete", "compact", "overwrite", "read"])
        ids = rng.sample(range(12), rng.randint(1, 6))
        if action == "upsert":
            table.upsert(rows(ids, step))
        elif action == "delete":
            table.delete(keys=pa.table({"id": pa.array(ids, pa.int64())}))
        elif action == "compact":
            table.compact(full=rng.random() < 0.5)
        elif action == "overwrite" and rng.random() < 0.5:
            table.overwrite(rows(ids, step))
        if step == 19 or action == "read":
            offset, batches = drain(table, following, offset, random_limits(rng))
            for batch in batches:
                last = {row["id"]: row for row in batch if row["_row_kind"] != "-U"}
                assert len(last) == sum(row["_row_kind"] != "-U" for row in batch), "a key is twice in a batch"
                for key, row in last.items():
                    present.pop(key, None)
                    if row["_row_kind"] != "-D":
                        present[key] = row["v"]
            assert present == {row["id"]: row["v"] for row in table.read().to_pylist()}
            _, batches = drain(table, stream(table), stream(table).first(), random_limits(rng))
            assert {row["id"]: row["v"] for batch in batches for row in batch} == present


@pytest.mark.parametrize("seed", SEEDS)
def test_every_appended_row_comes_once(seed: int) -> None:
    """Also those of a table that is compacted, and with rows deleted they come as such."""
    rng = random.Random(seed)
    table = make(f"append-{seed}")
    following = stream(table, changes=True)
    offset, counter, number = following.first(), Counter[tuple[int, int]](), 0
    for step in range(24):
        action = rng.choice(["append", "append", "compact", "delete", "read"])
        if action == "append":
            ids = [number + i for i in range(rng.randint(1, 3))]
            number += len(ids) - 1  # the last one will come again
            table.write(rows(ids, step % 3))
        elif action == "compact":
            table.compact(full=True)
        elif action == "delete" and table.latest() is not None:
            table.delete(f"id = {rng.randint(0, max(1, number))}")
        if step == 23 or action == "read":
            offset, batches = drain(table, following, offset, random_limits(rng))
            for row in (row for batch in batches for row in batch):
                counter[(row["id"], row["v"])] += -1 if row["_row_kind"] == "-D" else 1
            assert +counter == Counter((row["id"], row["v"]) for row in table.read().to_pylist())
            assert min(counter.values(), default=0) >= 0


@pytest.mark.parametrize("then", ["another column", "no column"])
def test_a_stream_whose_columns_a_reset_took_back_says_so(then: str) -> None:
    """Another column has the schema's id since: its values are not read as nulls of the first one."""
    with open_context(MemoryRepository()) as home:
        store = local_store(home, "main", "t")
        table = Table.create(store, name="t", schema=SCHEMA)
        table.append(rows([1], 1))
        commit(home, "main", message="a row")
        table.add_column("first", "BIGINT")
        following = stream(table)
        start = following.advance(following.first(), Limits())
        reset(home, "main")
        other, more = Table.open(store, name="t"), rows([2], 2)
        if then == "another column":
            other.add_column("second", "BIGINT")
            more = more.append_column("second", pa.array([7], pa.int64()))
        other.append(more)
        refused("columns_changed", InvalidRequest, lambda: following.advance(start, Limits()))
        refused("columns_changed", InvalidRequest, lambda: following.plan(start, StreamOffset(start.table, 2)))
        again = stream(table)
        assert read(table, again.plan(start, again.advance(start, Limits()))) == more.to_pylist()


def test_limits_bound_batches_and_a_large_unit_is_read_alone() -> None:
    """Files, rows and snapshots; a batch ends in the middle of a snapshot."""
    table = make("limits", keyed=True)
    table.upsert(rows(list(range(30)), 1))
    files = len(table.system("files"))
    assert files == 3
    for limits, counts in (
        (Limits(files=2), 2),
        (Limits(rows=1), 3),
        (Limits(rows=25), 2),
        (Limits(bytes=1), 3),
        (Limits(snapshots=1), 1),
        (Limits(), 1),
    ):
        for start in ("latest-full", "from-snapshot"):
            following = stream(table, start=start, version=1)
            _, batches = drain(table, following, following.first(), limits)
            assert len(batches) == counts, (limits, start)
            assert sorted(row["id"] for batch in batches for row in batch) == list(range(30))


def test_where_streams_begin() -> None:
    """At the newest version, after it, at a snapshot, at a time; compactions say nothing."""
    table = make("starts")
    table.write(rows([1], 1))
    table.write(rows([2], 2))
    table.create_tag("second")
    table.write(rows([3], 3))
    times = {snapshot.id: snapshot.time_ms for snapshot in table.snapshots()}
    for settings, expected in (
        ({}, [1, 2, 3, 4]),
        ({"start": "latest"}, [4]),
        ({"start": "from-snapshot", "version": 2}, [2, 3, 4]),
        ({"start": "from-snapshot", "version": "second"}, [2, 3, 4]),
        ({"start": "from-timestamp", "timestamp": times[3] + 1}, [4]),
        ({"start": "from-timestamp", "timestamp": "2000-01-01"}, [1, 2, 3, 4]),
    ):
        following = stream(table, **settings)
        first = following.first()
        if table.latest().id == 3:  # type: ignore[union-attr]
            firsts = [stream(table, **item).first() for item in ({}, {"start": "latest"})]
            table.compact(full=True)
            table.write(rows([4], 4))
        if settings in ({}, {"start": "latest"}):
            first = firsts[len(settings)]
        _, batches = drain(table, following, first, Limits(snapshots=1))
        assert sorted(row["id"] for batch in batches for row in batch) == expected, settings
    assert stream(make("none")).first().snapshot == 0


def refused(kind: str, group: type[LakebedError], run: Any) -> None:
    with pytest.raises(group) as raised:
        run()
    assert raised.value.kind == kind, raised.value
    assert len(raised.value.message) < 400


def test_a_stream_that_reads_a_column_as_not_null_says_that_it_may_be_null() -> None:
    """It would give null to readers that rely on the column."""
    schema = pa.schema([pa.field("id", pa.int64()), pa.field("v", pa.string(), nullable=False)])
    table = Table.create(open_store("memory://stream-nulls"), name="t", schema=schema)
    table.append(pa.table({"id": [1], "v": ["a"]}).cast(schema))
    following, start = stream(table), stream(table, start="latest").first()
    table.context.schemas.store_next(drop_not_null(table.schema, "v"))
    table.append(pa.table({"id": [2], "v": pa.array([None], pa.string())}))
    with pytest.raises(InvalidRequest, match="Column 'v' of t lost its NOT NULL before snapshot 2"):
        following.advance(start, Limits())
    again = stream(table)
    assert read(table, again.plan(start, again.advance(start, Limits()))) == [{"id": 2, "v": None}]


def test_a_stream_that_would_leave_out_rows_ends_with_a_sentence() -> None:
    """Expired, rolled back, dropped, replaced, rows taken away, columns changed."""
    table = make("ends")
    table.write(rows([1], 1))
    following = stream(table)
    start = following.advance(following.first(), Limits())
    for v in (2, 3, 4):
        table.write(rows([v], v))
    table.expire(retain_max=1, retain_min=1)
    refused("snapshot_expired", NotFound, lambda: following.advance(start, Limits()))
    refused("snapshot_expired", NotFound, lambda: following.plan(start, StreamOffset(start.table, 3)))
    refused(
        "snapshot_expired",
        NotFound,
        lambda: stream(table, start="from-snapshot", version=4).plan(
            StreamOffset(start.table, 2, units=0), StreamOffset(start.table, 4)
        ),
    )
    refused("snapshot_not_found", NotFound, lambda: stream(table, start="from-snapshot", version=2).first())
    refused("snapshot_expired", NotFound, lambda: stream(table, start="from-timestamp", timestamp=5).first())
    refused("missing_option", InvalidRequest, lambda: stream(table, start="from-snapshot").first())
    refused("invalid_offset", InvalidRequest, lambda: StreamOffset.of({"partition": 3}))

    after = stream(table, start="latest").first()
    table.write(rows([5], 5))
    later = following.advance(after, Limits())
    table.rollback_to(4)
    refused("rows_removed", InvalidRequest, lambda: following.advance(later, Limits()))
    changes = stream(table, changes=True)
    refused("rolled_back", Conflict, lambda: changes.plan(later, changes.advance(later, Limits())))
    refused("rolled_back", Conflict, lambda: following.advance(StreamOffset(later.table, 4, "other"), Limits()))
    other = StreamOffset(later.table, 4, "other")
    refused("rolled_back", Conflict, lambda: following.plan(StreamOffset(later.table, 3), other))
    assert read(table, following.plan(after, following.advance(after, Limits()))) == []

    newest = stream(table, start="latest").first()
    table.delete("id = 4")
    refused("rows_removed", InvalidRequest, lambda: following.advance(newest, Limits()))
    skipping = stream(table, removals="skip")
    assert read(table, skipping.plan(newest, skipping.advance(newest, Limits()))) == []

    newest = stream(table, start="latest").first()
    table.add_column("w", "INT")
    table.write(rows([6], 6).append_column("w", pa.array([1], pa.int32())))
    assert read(table, following.plan(newest, following.advance(newest, Limits()))) == [{"id": 6, "v": 6}]
    table.widen_column("w", "BIGINT")
    table.rename_column("v", "value")
    table.write(pa.table({"id": [7], "value": [7], "w": [1]}))
    assert read(table, following.plan(newest, following.advance(newest, Limits())))[1:] == [{"id": 7, "v": 7}]
    table.drop_column("value")
    table.write(pa.table({"id": [8], "w": [1]}))
    refused("columns_changed", InvalidRequest, lambda: following.advance(newest, Limits()))
    again = stream(table)
    end = again.advance(newest, Limits())
    assert sorted(row["id"] for row in read(table, again.plan(newest, end))) == [6, 7, 8]

    for meta in list(table.store.list("")):
        table.store.delete([meta.path])
    refused("table_gone", NotFound, lambda: following.advance(end, Limits()))
    other = Table.create(table.store, name="t", schema=SCHEMA)
    for v in range(20):
        other.write(rows([v], v))
    refused("table_replaced", Conflict, lambda: following.advance(end, Limits()))
    refused("table_replaced", Conflict, lambda: following.plan(end, StreamOffset(end.table, 20)))


@pytest.mark.parametrize("changes", [False, True])
def test_a_stream_that_began_before_the_first_snapshot_misses_none_that_expired(changes: bool) -> None:
    """It has read nothing yet, so what has expired since is rows that it lacks: that is said, and not left out."""
    table = make(f"began-{changes}", keyed=changes)
    following = stream(table, changes=changes)
    start = following.first()
    table.write(rows([1], 1))
    table.write(rows([2], 2))
    table.expire(retain_max=1, retain_min=1)
    refused("snapshot_expired", NotFound, lambda: following.advance(start, Limits()))
    refused("snapshot_expired", NotFound, lambda: following.advance(start, Limits(snapshots=1)))
    refused("snapshot_expired", NotFound, lambda: following.plan(start, StreamOffset(start.table, 2)))
    since_1970 = following.span(Bound(time_ms=0), None)
    refused("snapshot_expired", NotFound, lambda: list(following.commits(*since_1970)))


def test_a_key_that_moved_to_another_dynamic_bucket_is_one_row() -> None:
    """An overwrite forgets where its keys were: what comes back in another bucket changed, and did not come and go."""
    table = make("moved", keyed=True, **{"bucket": "-1", "dynamic-bucket.target-row-num": "3"})
    ids = list(range(9))
    table.upsert(rows(ids, 0))
    table.overwrite(rows([100], 0))
    table.upsert(rows(ids[::-1], 0))
    assert table.diff(1, 3).counts == {"added": 1, "removed": 0, "changed": 0}
    table.upsert(rows(ids[:5], 1))
    before, after = (table.read(version=version).sort_by("id").to_pylist() for version in (1, 4))
    found = table.diff(1, 4)
    assert found.counts == {"added": 1, "removed": 0, "changed": 5}
    assert found.before.sort_by("id").to_pylist() == before[:5]
    assert found.after.sort_by("id").to_pylist() == after[:5]
    following = stream(table, changes=True, start="latest")
    start = following.first()
    table.rollback_to_as_latest(1)
    batch = following.plan(start, following.advance(start, Limits()))
    told = sorted((row["id"], row["v"], row["_row_kind"]) for row in read(table, batch))
    assert told == sorted([(100, 0, "-D"), *((id, v, kind) for id in ids[:5] for v, kind in ((1, "-U"), (0, "+U")))])


def test_deletions_by_key_are_refused_skipped_or_read() -> None:
    """In a stream of rows, and in one of changes."""
    table = make("deletes", keyed=True)
    table.upsert(rows([1, 2], 1))
    following = stream(table)
    start = following.advance(following.first(), Limits())
    table.delete(keys=pa.table({"id": [1]}))
    end = following.advance(start, Limits())
    refused("rows_removed", InvalidRequest, lambda: following.plan(start, end))
    for settings in ({"changes": True}, {"removals": "skip"}):
        result = read(table, stream(table, **settings).plan(start, end))
        assert [(row["id"], row["_row_kind"]) for row in result] == [(1, "-D")]


def test_rows_that_are_appended_after_a_delete_are_read() -> None:
    """Only the snapshot that marks rows takes rows away; a stream that leaves it out loses no later append."""
    table = make("marked", **{"deletion-vectors.enabled": "true"})
    table.append(rows([0, 1, 2, 3], 1))
    table.delete("id = 1")
    following = stream(table, removals="skip")
    offset, batches = drain(table, following, following.first(), Limits())
    assert sorted(row["id"] for batch in batches for row in batch) == [0, 2, 3]
    table.append(rows([20], 2))
    table.delete("id = 2")
    table.append(rows([21], 3))
    _, batches = drain(table, following, offset, Limits())
    assert sorted(row["id"] for batch in batches for row in batch) == [20, 21]


def test_a_consumer_holds_what_is_not_read_yet() -> None:
    """Snapshots before the next one expire, and no others."""
    table = make("consumer")
    for v in range(4):
        table.write(rows([v], v))
    following = stream(table, start="from-snapshot", version=2)
    first = following.first()
    following.hold("daily", first)
    table.expire(retain_max=1, retain_min=1)
    assert [snapshot.id for snapshot in table.snapshots()] == [2, 3, 4]
    end = following.advance(first, Limits(snapshots=1))
    following.hold("daily", end)
    assert table.system("consumers").to_pylist() == [{"consumer_id": "daily", "next_snapshot_id": 3}]
    table.expire(retain_max=1, retain_min=1)
    assert [snapshot.id for snapshot in table.snapshots()] == [3, 4]
    following.hold("daily", StreamOffset(end.table, 3, units=1))
    assert table.system("consumers")["next_snapshot_id"].to_pylist() == [3]
    refused("invalid_consumer", InvalidRequest, lambda: following.hold("../x", end))


def test_what_each_snapshot_changed() -> None:
    """Exactly, whatever the snapshot did; bounds are versions or times, with their own snapshots or without."""
    table = make("commits", keyed=True, bucket="1")
    table.upsert(rows([1, 2], 1))
    table.upsert(rows([2, 3], 2))
    table.compact(full=True)
    table.create_tag("two", snapshot_id=2)
    table.delete(keys=pa.table({"id": [1]}))
    table.overwrite(rows([3], 9))
    following = stream(table, changes=True)
    expected = {
        1: [(1, 1, "+I"), (2, 1, "+I")],
        2: [(2, 1, "-U"), (2, 2, "+U"), (3, 2, "+I")],
        4: [(1, 1, "-D")],
        5: [(2, 2, "-D"), (3, 2, "-U"), (3, 9, "+U")],
    }
    times = {snapshot.id: snapshot.time_ms for snapshot in table.snapshots()}

    def found(first: Bound | None, last: Bound | None) -> dict[int, list[Any]]:
        return {
            snapshot.id: sorted((row["id"], row["v"], row["_row_kind"]) for row in read(table, batch))
            for snapshot, batch in following.commits(*following.span(first, last))
        }

    for first, last, ids in (
        (None, None, [1, 2, 4, 5]),
        (Bound("1"), Bound("2"), [1, 2]),
        (Bound("1", is_in=False), Bound("two"), [2]),
        (Bound("2"), Bound("5", is_in=False), [2, 4]),
        (Bound("3"), None, [4, 5]),
        (Bound(time_ms=0), Bound(time_ms=times[5] + 1), [1, 2, 4, 5]),
        (Bound(time_ms=times[5] + 1), None, []),
    ):
        assert found(first, last) == {key: expected[key] for key in ids}, (first, last)
    for bounds in ((Bound("3"), Bound("2")), (Bound(time_ms=2), Bound(time_ms=1))):
        refused("invalid_version", InvalidRequest, lambda bounds=bounds: following.span(*bounds))
    refused("snapshot_not_found", NotFound, lambda: following.span(Bound("9"), None))
    table.expire(retain_max=1, retain_min=1)
    refused("snapshot_expired", NotFound, lambda: list(following.commits(1, 5)))


def test_rows_that_depend_on_older_ones_are_followed_as_exact_changes() -> None:
    """What is written to a table that sums is not its rows; the difference of versions is."""
    table = make(
        "sums", keyed=True, bucket="1", **{"merge-engine": "aggregation", "fields.v.aggregate-function": "sum"}
    )
    table.upsert(rows([1], 1))
    table.upsert(rows([1], 2))
    refused("unsupported_changes", InvalidRequest, stream(table).first)
    following = stream(table, changes=True)
    result = [read(table, batch) for _, batch in following.commits(*following.span(Bound("2"), None))]
    assert [[(row["v"], row["_row_kind"]) for row in batch] for batch in result] == [[(1, "-U"), (3, "+U")]]


def test_rows_that_depend_on_older_ones_with_deletion_vectors() -> None:
    """A stream of rows, and the rows written, are refused with the way out: changes, which compactions make visible."""
    options = {"merge-engine": "aggregation", "fields.v.aggregate-function": "sum", "deletion-vectors.enabled": "true"}
    table = make("marked-sums", keyed=True, bucket="1", **options)
    table.upsert(rows([1], 1))
    table.compact()
    for ask in (stream(table).first, lambda: table.changes(None)):
        with pytest.raises(InvalidRequest, match=r"a stream of changes \(option changes=true\)") as caught:
            ask()
        assert caught.value.kind == "unsupported_changes"
    following = stream(table, changes=True, start="latest")
    start = following.first()
    table.upsert(rows([1], 2))
    assert following.advance(start, Limits()).snapshot == start.snapshot + 1
    assert read(table, following.plan(start, following.advance(start, Limits()))) == []
    table.compact()
    result = read(table, following.plan(start, following.advance(start, Limits())))
    assert [(row["v"], row["_row_kind"]) for row in result] == [(1, "-U"), (3, "+U")]


@pytest.mark.parametrize("keyed", [False, True])
def test_changes_of_nested_columns_go_on_after_an_overwrite(keyed: bool) -> None:
    """A stream of changes compares the rows of the versions before and after, their arrays among them."""
    schema = pa.schema([pa.field("id", pa.int64(), nullable=False), ("l", pa.list_(pa.int64()))])
    table = Table.create(
        open_store(f"memory://stream-nested-{keyed}"), name="t", schema=schema, primary_keys=["id"] if keyed else []
    )
    table.write(pa.table({"id": [1, 2], "l": [[1], None]}, schema))
    following = stream(table, changes=True)
    offset, _ = drain(table, following, following.first(), Limits())
    table.overwrite(pa.table({"id": [1, 2], "l": [[1], []]}, schema))
    _, ((*changes,),) = drain(table, following, offset, Limits())
    kinds = {(row["_row_kind"], row["id"], None if row["l"] is None else tuple(row["l"])) for row in changes}
    assert kinds == ({("-U", 2, None), ("+U", 2, ())} if keyed else {("-D", 2, None), ("+I", 2, ())})
