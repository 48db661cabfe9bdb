"""Changelog producers: what the changelog says is what happened, and its files live as long as their version."""

from __future__ import annotations

import random
import uuid
from typing import Any

import pyarrow as pa
import pytest

from lakebed.errors import Conflict, InvalidRequest
from lakebed.fsck.model import CheckReport, Findings
from lakebed.fsck.table import check_table
from lakebed.objects.open import open_store
from lakebed.runtime import Environment
from lakebed.table.changes.stream import StreamOffset, StreamSettings, TableStream
from lakebed.table.changes.stream_limits import Limits
from lakebed.table.compaction.compact import compact, run_task
from lakebed.table.model.model import DataField
from lakebed.table.read.read import read_split_table
from lakebed.table.rows.rows import commit_changes, new_writer
from lakebed.table.table import Table
from lakebed.testing.clock import ManualClock

SCHEMA = pa.schema([pa.field("id", pa.int64(), nullable=False), ("v", pa.int64())])
PRODUCERS = ["input", "full-compaction"]
SEEDS = [0, *(pytest.param(seed, marks=pytest.mark.long) for seed in range(1, 40))]
Rows = dict[int, int | None]


def make(producer: str, **options: str) -> Table:
    """A table in memory, whose clock stands still."""
    return Table.create(
        open_store(f"memory://changelog-{uuid.uuid4()}"),
        name="t",
        schema=SCHEMA,
        primary_keys=["id"],
        options={"bucket": "2", "changelog-producer": producer, **options},
        environment=Environment(clock=ManualClock(), rng=random.Random(1)),
    )


def rows(ids: list[int], v: int) -> pa.Table:
    return pa.table({"id": ids, "v": [v] * len(ids)}, schema=SCHEMA)


def state(table: Table, version: int | None = None) -> Rows:
    return {row["id"]: row["v"] for row in table.read(version=version).to_pylist()}


def stream(table: Table, **settings: Any) -> TableStream:
    return TableStream(table.context, StreamSettings(changes=True, **settings), schema=table.refresh())


def drain(table: Table, following: TableStream, start: StreamOffset, limits: Limits) -> tuple[StreamOffset, list[Any]]:
    """The batches that are there; of each batch its rows."""
    batches = []
    while (end := following.advance(start, limits)) != start:
        batch = following.plan(start, StreamOffset.of(dict(end.members())))
        rows = [row for split in batch.splits for row in read_split_table(table.store, split, plan=batch.plan)]
        assert not rows, "changes come as units"
        parts = [part for unit in batch.units for part in unit.rows(table.store, batch.plan)]
        batches.append([row for part in parts for row in part.to_pylist()])
        start = end
    return start, batches


def apply(there: Rows, changes: list[dict[str, Any]], *, exact: bool) -> None:
    """Apply changes in order. Exact ones say the row that is there before they take it, and add none twice."""
    for row in changes:
        key, kind = row["id"], row["_row_kind"]
        if kind in ("-U", "-D"):
            if exact:
                assert there[key] == row["v"], row
            there.pop(key, None)
        else:
            assert not exact or key not in there, row
            there[key] = row["v"]


def changelog_files(table: Table) -> set[str]:
    """The changelog files that exist."""
    return {meta.path for meta in table.store.list("") if "/changelog-" in meta.path}


def paths(table: Table) -> set[str]:
    """Everything that exists."""
    return {meta.path for meta in table.store.list("")}


def check(table: Table) -> CheckReport:
    """The report of a deep check, which finds no damage and no orphan."""
    report = CheckReport("t", deep=True)
    check_table(table, Findings(report, store="t"))
    return report


def assert_sound(table: Table) -> None:
    report = check(table)
    assert [(finding.kind, finding.path) for finding in report.findings] == []


def random_change(table: Table, rng: random.Random, step: int) -> None:
    action = rng.choice(["upsert", "upsert", "twice", "delete", "where", "compact", "full", "overwrite", "rollback"])
    ids = rng.sample(range(10), rng.randint(1, 5))
    if action == "upsert":
        table.upsert(rows(ids, step))
    elif action == "twice":
        table.upsert(pa.concat_tables([rows(ids, step), rows(ids[:2], step + 100)]))
    elif action == "delete":
        table.delete(keys=pa.table({"id": pa.array(ids, pa.int64())}))
    elif action == "where":
        table.delete(f"id < {rng.randint(0, 4)}")
    elif action in ("compact", "full"):
        table.compact(full=action == "full")
    elif table.latest() is not None and rng.random() < 0.4:
        if action == "overwrite":
            table.overwrite(rows(ids, step))
        else:
            table.rollback_to_as_latest(rng.choice([snapshot.id for snapshot in table.snapshots()]))


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("producer", PRODUCERS)
def test_a_follower_of_changelogs_has_what_the_table_has(producer: str, seed: int) -> None:
    """Changes applied to a dictionary give the table's rows, whatever happens to it, with any limits."""
    rng = random.Random(f"{producer} {seed}")
    table = make(producer, **{"num-sorted-run.compaction-trigger": "3"})
    following, offset = stream(table), stream(table).first()
    present: Rows = {}
    for step in range(24):
        random_change(table, rng, step)
        if step % 5 == 4:
            if producer == "full-compaction":
                table.compact(full=True)  # what is not compacted is not told
            limits = Limits() if rng.random() < 0.5 else Limits(snapshots=rng.randint(1, 2))
            offset, batches = drain(table, following, offset, limits)
            for batch in batches:
                assert len({(row["id"], row["_row_kind"][0]) for row in batch}) == len(batch), "a key is twice"
                apply(present, batch, exact=producer == "full-compaction")
            assert present == state(table)
            _, batches = drain(table, stream(table), stream(table).first(), Limits())
            assert {row["id"]: row["v"] for batch in batches for row in batch} == present
    assert_sound(table)


def test_compactions_say_exactly_how_rows_changed() -> None:
    """The changelog of a compaction is the difference to the one before: nothing for a row that is written again."""
    table = make("full-compaction")
    table.upsert(rows([1, 2, 3, 4], 1))
    assert table.changes(None).num_rows == 0
    table.compact(full=True)
    table.upsert(rows([2, 4, 5], 2))
    table.upsert(rows([3, 4], 1))
    table.delete("id = 1")
    table.delete(keys=pa.table({"id": [9]}))
    before = table.latest()
    table.compact(full=True)
    assert before is not None
    newest = table.latest()
    assert newest is not None
    pairs = sorted((row["id"], row["v"], row["_row_kind"]) for row in table.changes(before.id).to_pylist())
    assert pairs == [(1, 1, "-D"), (2, 1, "-U"), (2, 2, "+U"), (5, 2, "+I")]
    assert (newest.commit_kind, newest.changelog_record_count) == ("COMPACT", 4)
    assert len(table.changes(None, 3)) == 4
    table.compact(full=True)
    assert table.changes(newest.id).num_rows == 0


def test_a_compaction_below_the_highest_level_logs_nothing() -> None:
    """Its rows are told by the one that brings them there."""
    table = make("full-compaction", bucket="1", **{"num-sorted-run.compaction-trigger": "3"})
    table.upsert(rows(list(range(5_000)), 1))
    table.compact(full=True)
    for step in (2, 3):
        table.upsert(rows([step], step))
    table.compact()
    newest = table.latest()
    assert newest is not None
    assert sorted(row["level"] for row in table.system("files").to_pylist())[0] not in (0, 3)
    assert newest.changelog_manifest_list is None
    table.compact(full=True)
    assert sorted(row["_row_kind"] for row in table.changes(newest.id).to_pylist()) == ["+U", "+U", "-U", "-U"]


def test_rows_are_logged_as_they_are_written() -> None:
    """Every row of a write, also of one key twice, in its order; a delete by predicate says what it deleted."""
    table = make("input", bucket="1")
    table.upsert(pa.concat_tables([rows([2, 1], 1), rows([1, 2], 2)]))
    table.compact(full=True)
    table.delete("id = 1")
    table.delete(keys=pa.table({"id": [2]}))
    pairs = [(row["id"], row["v"], row["_row_kind"]) for row in table.changes(None).to_pylist()]
    assert pairs == [(1, 1, "+I"), (1, 2, "+I"), (2, 1, "+I"), (2, 2, "+I"), (1, 2, "-D"), (2, None, "-D")]
    assert [snapshot.changelog_record_count for snapshot in table.snapshots()] == [4, None, 1, 1]
    with_gone = pa.table({"id": [7, 8], "v": [70, 80], "gone": [True, False]})
    written = table.write(with_gone, deletes="gone")
    pairs = [(row["id"], row["v"], row["_row_kind"]) for row in table.changes(written.id - 1).to_pylist()]
    assert pairs == [(7, 70, "-D"), (8, 80, "+I")]


@pytest.mark.parametrize("producer", PRODUCERS)
def test_an_overwrite_brings_no_changelog(producer: str) -> None:
    """What it takes away would be missing: a stream compares the versions instead. Its writer leaves no file."""
    table = make(producer)
    table.upsert(rows([1, 2], 1))
    table.compact(full=True)
    newest = table.latest()
    assert newest is not None
    snapshot = table.overwrite(rows([2, 3], 2))
    assert snapshot.changelog_manifest_list is None
    table.compact(full=True)
    present: Rows = {1: 1, 2: 1}
    following = stream(table, start="latest")
    for batch in drain(table, following, following.after(newest.id), Limits())[1]:
        apply(present, batch, exact=producer == "full-compaction")
    assert present == {2: 2, 3: 2}
    assert_sound(table)


def test_options_that_may_not_be() -> None:
    """A producer needs a primary key and rows that can change; another one needs another client."""
    store = open_store(f"memory://changelog-{uuid.uuid4()}")
    with pytest.raises(InvalidRequest, match="'changelog-producer' = 'input' needs a primary key"):
        Table.create(store, name="t", schema=SCHEMA, options={"changelog-producer": "input"})
    with pytest.raises(InvalidRequest, match="not possible with merge-engine = first-row"):
        make("full-compaction", **{"merge-engine": "first-row"})
    with pytest.raises(InvalidRequest, match=r"not possible with deletion-vectors\.enabled = true"):
        make("full-compaction", **{"deletion-vectors.enabled": "true"})
    with pytest.raises(InvalidRequest, match=r"not possible with deletion-vectors\.enabled = true"):
        make("none", **{"deletion-vectors.enabled": "true"}).set_options({"changelog-producer": "full-compaction"})
    with pytest.raises(InvalidRequest, match="'lookup' is not supported"):
        make("lookup")
    table = make("input", **{"merge-engine": "aggregation", "fields.v.aggregate-function": "sum"})
    table.upsert(rows([1], 1))
    assert table.changes(None).num_rows == 1
    with pytest.raises(InvalidRequest, match="changelog-producer = full-compaction"):
        stream(table).first()


def test_a_producer_that_is_set_later() -> None:
    """Snapshots from before are followed too: by what they wrote, or from the rows that compactions had reached."""
    table = make("none")
    table.upsert(rows([1, 2], 1))
    table.compact(full=True)
    table.delete("id = 1")
    for producer in PRODUCERS:
        table.set_options({"changelog-producer": producer})
        table.refresh()
        table.upsert(rows([3], 3))
        table.compact(full=True)
        present: Rows = {}
        following = stream(table, start="from-snapshot", version=1)
        for batch in drain(table, following, following.first(), Limits(snapshots=1))[1]:
            apply(present, batch, exact=producer == "full-compaction")
        assert present == state(table) == {2: 1, 3: 3}


# ---- lives of changelog files


@pytest.mark.parametrize("producer", PRODUCERS)
def test_changelog_files_live_as_long_as_their_version(producer: str) -> None:
    """Snapshot, tag and branch keep them; expiry, the deletion of the tag and of the branch delete them."""
    table = make(producer)
    table.upsert(rows([1, 2], 1))
    table.compact(full=True)
    logged = next(snapshot for snapshot in table.snapshots() if snapshot.changelog_manifest_list)
    first = changelog_files(table)
    path = min(first)
    named = table.context.manifests.metas(str(logged.changelog_manifest_list))
    lists = (logged.changelog_manifest_list, *(meta.file_name for meta in named))
    first |= {table.context.layout.manifest(str(name)) for name in lists}
    assert first <= paths(table)
    assert [pin.name for pin in table.why(path).pins] == [str(logged.id)]
    table.create_tag("held", snapshot_id=logged.id)
    branch = table.create_branch("b", tag="held")
    branch.upsert(rows([7], 7))
    branch.compact(full=True)
    table.upsert(rows([3], 2))
    table.compact(full=True)
    table.expire(retain_max=1, retain_min=1)
    assert first <= paths(table)
    assert {pin.name for pin in table.why(path).pins} >= {"held"}
    assert_sound(table)
    branch.refresh()
    branch.expire(retain_max=1, retain_min=1)
    table.delete_tag("held")
    assert first <= paths(table), "the branch began there"
    assert table.collect(grace_ms=0).deleted_count == 0
    assert_sound(table)
    table.delete_branch("b")
    table.expire(retain_max=1, retain_min=1)
    table.collect(grace_ms=0)
    assert not first & paths(table)
    assert_sound(table)


@pytest.mark.parametrize("producer", PRODUCERS)
def test_expiry_and_rollback_delete_changelog_files(producer: str) -> None:
    """The files of an expired snapshot go with it, in the same run; so do those of one that is rolled back."""
    table = make(producer)
    for step in range(3):
        table.upsert(rows([1, 2, step + 5], step))
        table.compact(full=True)
    assert [snapshot.id for snapshot in table.snapshots()] == [1, 2, 3, 4, 5, 6]
    kept = changelog_files(table)
    table.rollback_to(4)
    after = changelog_files(table)
    assert after < kept
    assert table.changes(None, 4).num_rows
    table.expire(retain_max=1, retain_min=1)
    assert changelog_files(table) == set()
    assert_sound(table)


@pytest.mark.parametrize("producer", PRODUCERS)
def test_what_loses_or_fails_leaves_no_changelog_file(producer: str) -> None:
    """A refused commit deletes its changelog files; a lost race keeps them, and writes their list once."""
    table = make(producer)
    table.upsert(rows([1, 2], 1))
    table.compact(full=True)
    files = changelog_files(table)
    table.set_options({"write-buffer-size": "1 b"})
    table.refresh()
    writer = new_writer(table.context.look())
    writer.write(rows([3], 1))
    assert (changelog_files(table) != files) == (producer == "input")
    with pytest.raises(InvalidRequest):
        writer.write(pa.table({"id": [None], "v": [1]}))
    assert changelog_files(table) == files
    other = Table.open(table.store, name="t", environment=table.context.environment)
    writer = new_writer(table.context.look())
    writer.write(rows([4], 4))
    other.upsert(rows([5], 5))
    commit_changes(table.context, writer.finish())
    assert state(table) == {1: 1, 2: 1, 4: 4, 5: 5}
    table.compact(full=True)
    assert_sound(table)


def test_a_compaction_that_loses_deletes_its_changelog() -> None:
    """Its files were never named."""
    table = make("full-compaction", bucket="1")
    table.upsert(rows([1, 2], 1))
    other = Table.open(table.store, name="t", environment=table.context.environment)

    def slower(tasks: Any, plan: Any) -> Any:
        changes = [run_task(table.store, task, plan=plan, environment=table.context.environment) for task in tasks]
        other.compact(full=True)
        other.upsert(rows([1], 9))
        return changes

    with pytest.raises(Conflict):
        compact(table.context, full=True, run_tasks=slower)
    other.compact(full=True)
    assert state(other) == {1: 9, 2: 1}
    assert_sound(other)


def test_a_missing_changelog_file_is_damage() -> None:
    """A check names it, and the snapshot that needs it."""
    table = make("input", bucket="1")
    table.upsert(rows([1], 1))
    (path,) = changelog_files(table)
    table.store.delete([path])
    findings = check(table).findings
    assert [(entry.path, entry.kind) for entry in findings] == [(path, "missing")]


def test_a_stream_begins_with_what_was_told() -> None:
    """With full-compaction the first batch has the rows of the last one; the next has what came since, once."""
    table = make("full-compaction")
    table.upsert(rows([1, 2], 1))
    table.compact(full=True)
    table.upsert(rows([2, 3], 2))
    following = stream(table)
    offset, (first,) = drain(table, following, following.first(), Limits())
    assert sorted((row["id"], row["v"], row["_row_kind"]) for row in first) == [(1, 1, "+I"), (2, 1, "+I")]
    table.compact(full=True)
    _, (second,) = drain(table, following, offset, Limits())
    pairs = sorted((row["id"], row["v"], row["_row_kind"]) for row in second)
    assert pairs == [(2, 1, "-U"), (2, 2, "+U"), (3, 2, "+I")]


def test_a_row_that_comes_and_goes_within_a_batch() -> None:
    """It is nothing where changes are exact; as input it is a delete, for the row may have been there."""
    for producer, expected in (("full-compaction", []), ("input", [(1, "-D")])):
        table = make(producer)
        table.upsert(rows([1], 1))
        table.compact(full=True)
        table.delete(keys=pa.table({"id": [1]}))
        table.compact(full=True)
        following = stream(table, start="from-snapshot", version=1)
        _, batches = drain(table, following, following.first(), Limits())
        assert [(row["id"], row["_row_kind"]) for batch in batches for row in batch] == expected


@pytest.mark.parametrize(
    ("kind", "old", "new"),
    [
        ("ARRAY<STRING>", ["a"], []),
        ("MAP<STRING, INT>", [("a", 1)], [("a", 2)]),
        ("ROW<a INT>", {"a": 1}, {"a": None}),
        ("VARIANT", {"value": b"\x0c\x01", "metadata": b"\x01\0\0"}, {"value": b"\x0c\x02", "metadata": b"\x01\0\0"}),
        ("BLOB", b"a", b"b"),
    ],
)
def test_rows_of_every_type_are_compared(kind: str, old: object, new: object) -> None:
    """Of rows that are written again those are changes whose values are others."""
    table = Table.create(
        open_store(f"memory://changelog-{uuid.uuid4()}"),
        name="t",
        schema=[DataField(0, "id", "BIGINT", nullable=False), DataField(1, "x", kind)],
        primary_keys=["id"],
        options={"bucket": "1", "changelog-producer": "full-compaction"},
    )
    for ids, values in (([1, 2, 3], [old, None, old]), ([1, 2, 3, 4], [old, old, new, None])):
        table.upsert(pa.table({"id": ids, "x": values}, schema=table.arrow_schema))
        table.compact(full=True)
    changes = [(row["id"], row["x"], row["_row_kind"]) for row in table.changes(2).to_pylist()]
    assert changes == [(2, None, "-U"), (2, old, "+U"), (3, old, "-U"), (3, new, "+U"), (4, None, "+I")]


def test_rows_that_a_rollback_unmarks() -> None:
    """With deletion vectors a rollback brings a row back without a file, and takes rows away that no reader saw."""
    table = make("input", bucket="1", **{"deletion-vectors.enabled": "true"})
    table.upsert(rows([1, 2], 1))
    table.compact(full=True)
    kept = max(snapshot.id for snapshot in table.snapshots())
    following: TableStream = stream(table)
    present: Rows = {}
    offset, batches = drain(table, following, following.first(), Limits())

    def follow() -> Rows:
        nonlocal offset
        offset, result = drain(table, following, offset, Limits())
        for batch in result:
            apply(present, batch, exact=False)
        return present

    for batch in batches:
        apply(present, batch, exact=False)
    table.delete(keys=pa.table({"id": pa.array([1], pa.int64())}))
    table.compact()
    assert follow() == state(table) == {2: 1}
    live = table.context.manifests.live_entries(table.context.snapshots.snapshot(kept))["file_name"].to_pylist()
    assert table.context.manifests.live_entries(table.latest())["file_name"].to_pylist() == live  # type: ignore[arg-type]
    table.rollback_to_as_latest(kept)
    assert follow() == state(table) == {1: 1, 2: 1}
    table.upsert(rows([3], 3))
    assert follow() == {1: 1, 2: 1, 3: 3}
    assert state(table) == {1: 1, 2: 1}, "no compaction has seen the row"
    table.rollback_to_as_latest(kept)
    assert follow() == {1: 1, 2: 1}
