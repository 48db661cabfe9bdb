"""Primary-key tables with deletion vectors: compactions mark older rows, and readers need no merge."""

from __future__ import annotations

import uuid
from collections.abc import Callable
from contextlib import suppress
from functools import cache

import pyarrow as pa
import pytest

from lakebed.errors import Conflict, InvalidRequest, LakebedError
from lakebed.objects.open import open_store
from lakebed.table.commit.commit import Basis
from lakebed.table.compaction.compact import compact
from lakebed.table.rows.rows import commit_changes, new_writer
from lakebed.table.table import Table
from lakebed.testing import Crashed, Fault, FaultyStore, RecordingStore
from lakebed.testing.between import Between
from worlds.table.values import SCHEMA, Rows, environment, files_in, opened, rows, sound, values_of

EVER = 2**60
OLD = {n: n * 7919 % 100_003 for n in range(2000)}


def new_table(**options: str) -> Table:
    """A table of one bucket with the rows `OLD` in its highest level."""
    names = {name.replace("_", "-"): value for name, value in options.items()}
    table = Table.create(
        open_store(f"memory://{uuid.uuid4()}"),
        name="t",
        schema=SCHEMA,
        primary_keys=["id"],
        options={"bucket": "1", "deletion-vectors.enabled": "true", **names},
        environment=environment(),
    )
    table.upsert(rows(OLD))
    table.compact()
    return table


def test_rows_are_visible_after_a_compaction_that_rewrites_no_older_file() -> None:
    """New rows are invisible until their compaction, which marks the older rows of their keys; reads never merge."""
    table = new_table()
    (old,) = files_in(table, "bucket-0")
    table.upsert(rows({5: 50, 3000: 1}))
    table.delete(keys=pa.table({"id": [7, 4000]}))
    assert values_of(table) == OLD
    assert len(table.scan().entries()) == 1
    report = table.compact()
    assert report.rows_before == 4
    expected = {n: v for n, v in OLD.items() if n != 7} | {5: 50, 3000: 1}
    assert values_of(table) == expected
    assert [split.needs_merge for split in table.scan().splits()] == [False, False]
    assert {name for split in table.scan().splits() for name in split.vectors} == {old.rpartition("/")[2]}
    assert table.compact().snapshot is None
    assert set(table.read(where="v = 5")["id"].to_pylist()) == set()
    table.upsert(rows({8: 80, 9: 90}))
    table.delete(keys=pa.table({"id": [5]}))
    table.compact()
    expected = {n: v for n, v in expected.items() if n != 5} | {8: 80, 9: 90}
    assert values_of(table) == expected
    assert values_of(opened(table.store)) == expected
    sound(table)
    table.compact(full=True)
    assert values_of(table) == expected
    assert (table.latest() or pytest.fail("empty")).index_manifest is None


def test_a_file_without_a_row_that_is_left_ends() -> None:
    """An older file of which all rows are replaced is removed, not marked."""
    table = new_table(target_file_size="2 kb")
    assert table.scan().entries().num_rows > 3
    table.delete(keys=pa.table({"id": range(1000)}))
    before = table.scan().entries()["file_name"].to_pylist()
    table.compact()
    after = table.scan().entries()["file_name"].to_pylist()
    assert set(after) < set(before)
    assert values_of(table) == {n: v for n, v in OLD.items() if n >= 1000}
    sound(table)


def test_a_file_that_loses_its_last_rows_later_ends() -> None:
    """Rows that earlier compactions marked count: a file ends when the rest of its rows is replaced."""
    table = new_table(target_file_size="2 kb")
    whole = set(table.scan().entries()["file_name"].to_pylist())
    for first in (0, 1):
        table.delete(keys=pa.table({"id": range(first, 1000, 2)}))
        table.compact()
        assert values_of(table) == {n: v for n, v in OLD.items() if n >= 1000 or (not first and n % 2)}
    left = table.scan().entries()
    assert set(left["file_name"].to_pylist()) < whole
    assert sum(left["row_count"].to_pylist()) < 2 * sum(n >= 1000 for n in OLD)
    sound(table)


def test_changes_by_a_predicate_see_rows_that_no_compaction_has_seen() -> None:
    """Deletes and updates judge the newest row of each key, visible or not."""
    table = new_table()
    table.upsert(rows({1: -1, 2: -3, 3: -4, 2500: -1}))
    table.delete(f"v = -1 or v = {OLD[2]}")
    table.update(f"v = -4 or v = {OLD[2]}", {"v": -5})
    table.compact()
    assert values_of(table) == {n: v for n, v in OLD.items() if n != 1} | {2: -3, 3: -5}


def test_a_writer_of_an_older_version_loses_by_sequence_numbers() -> None:
    """A row with a lower sequence number than a compacted one is left out, as a merge would leave it out.

    An append gets later numbers then, and what other clients commit does not.
    """
    table = new_table()
    writer = new_writer(table.context)
    writer.write(rows({1: 11, 5000: 1}))
    late = writer.finish()
    table.upsert(rows({n: -n for n in range(3)} | {6000: 1}))
    table.upsert(rows({n: -n for n in range(4)}))
    table.compact()
    commit_changes(table.context, late, kind="OVERWRITE", options={})
    table.compact()
    assert values_of(table) == OLD | {n: -n for n in range(4)} | {6000: 1, 5000: 1}
    sound(table)


def test_new_keys_of_dynamic_buckets_keep_the_vectors() -> None:
    """One index manifest has the keys of the buckets and the vectors; a commit of one keeps the other."""
    table = new_table(bucket="-1", **{"dynamic-bucket.target-row-num": "5000"})
    table.upsert(rows({3: 30}))
    table.compact()
    table.upsert(rows({3000: 1}))
    assert values_of(opened(table.store)) == OLD | {3: 30}
    table.upsert(rows({3: 31}))
    table.compact()
    assert values_of(opened(table.store)) == OLD | {3: 31, 3000: 1}
    assert len({entry["bucket"] for entry in table.scan().entries().to_pylist()}) == 1


def test_what_does_not_fit() -> None:
    """An engine without older rows to mark, wide vectors, and a change of the option are refused; nothing changes."""
    with pytest.raises(InvalidRequest, match="first-row"):
        new_table(merge_engine="first-row")
    table = new_table()
    for options in ({"deletion-vectors.enabled": "false"}, {"merge-engine": "first-row"}):
        with pytest.raises(InvalidRequest):
            table.set_options(options)
    plain = Table.create(
        open_store(f"memory://{uuid.uuid4()}"),
        name="t",
        schema=SCHEMA,
        primary_keys=["id"],
        options={"bucket": "1"},
        environment=environment(),
    )
    with pytest.raises(InvalidRequest, match="set when it is created"):
        plain.set_options({"deletion-vectors.enabled": "true"})


# ---- races and crashes

Race = Callable[[Table], object]
PENDING = {1: 10, 2500: 1}
MERGED = OLD | PENDING


@cache
def racing_objects() -> dict[str, bytes]:
    """Of a table with rows that a compaction will make visible, and marked rows."""
    table = new_table()
    table.upsert(rows({0: 100}))
    table.delete(keys=pa.table({"id": [1999]}))
    table.compact()
    table.upsert(rows(PENDING))
    return {meta.path: bytes(table.store.get(meta.path)) for meta in table.store.list("")}


def racing_table() -> Table:
    """A table of its own with `racing_objects`."""
    store = open_store(f"memory://{uuid.uuid4()}")
    for path, body in racing_objects().items():
        store.put(path, body)
    return opened(store)


BASE = {n: v for n, v in OLD.items() if n != 1999} | {0: 100}
AFTER = BASE | PENDING

OTHERS: dict[str, tuple[Race, Rows]] = {
    "compact": (lambda t: t.compact(), AFTER),
    "compact in full": (lambda t: t.compact(full=True), AFTER),
    "upsert": (lambda t: t.upsert(rows({1: 77, 3: 33})), AFTER | {1: 77, 3: 33}),
    "upsert and compact": (lambda t: (t.upsert(rows({1: 77})), t.compact()), AFTER | {1: 77}),
    "delete": (lambda t: t.delete("id = 2500 or id = 2"), {n: v for n, v in AFTER.items() if n not in (2, 2500)}),
    "overwrite": (lambda t: t.overwrite(rows({9: 9})), {9: 9}),
    "roll back": (lambda t: t.rollback_to(2), OLD),
    "roll back, keeping history": (lambda t: t.rollback_to_as_latest(2), OLD),
}


@pytest.mark.parametrize("name", OTHERS)
def test_a_compaction_that_loses_a_race(name: str) -> None:
    """With the next compaction the result is that of the other change; no row is lost, or there twice."""
    other, after = OTHERS[name]
    table = racing_table()
    store = Between(table.store, kind="put", prefix="manifest/", happens=lambda: other(opened(table.store)))
    with suppress(Conflict):
        compact(Table.open(store, name="t", environment=environment()).context)
    assert store.happened
    left = opened(table.store)
    values_of(left)
    left.compact()
    assert values_of(left) == after
    sound(left)


def test_a_compaction_is_no_conflict_for_a_change_of_rows() -> None:
    """It marks rows and changes none: what was computed from the version before it still holds."""
    table = racing_table()
    basis = Basis(table.latest())
    writer = new_writer(table.context)
    writer.write(rows({1: 11}))
    written = writer.finish()
    opened(table.store).compact()
    commit_changes(table.context, written, basis=basis, options={})
    table.compact()
    assert values_of(table) == AFTER | {1: 11}


@pytest.mark.parametrize(
    ("verb", "after"),
    [(lambda t: t.compact(), AFTER), (lambda t: t.overwrite(rows({})), {})],
    ids=["compact", "overwrite"],
)
def test_a_crash_at_any_call(verb: Race, after: Rows) -> None:
    """The table has the rows from before or after, the next compaction is right, and cleaning leaves no index file."""
    recorded = RecordingStore(racing_table().store)
    verb(opened(recorded))
    calls = [call.index for call in recorded.trace if call.call.changes]
    results = set()
    for index in calls:  # a crash before a change leaves what the crash after the change before it leaves
        store = racing_table().store
        faulty = FaultyStore(store, faults={index: Fault.CRASH_AFTER})
        with suppress(Crashed, LakebedError):
            verb(opened(faulty))
        values = values_of(opened(store))
        assert values in (BASE, after), index
        results.add(values == after)
        left = opened(store)
        left.compact()
        assert values_of(left) in (AFTER, {})
        left.expire(retain_max=1, retain_min=1, older_than_ms=0)
        left.collect(grace_ms=0)
        named = {snapshot.index_manifest for snapshot in left.snapshots() if snapshot.index_manifest}
        entries = [entry for item in named for entry in left.context.manifests.index_entries(item)]
        assert files_in(left, "index") == {f"index/{entry.file_name}" for entry in entries}
    assert results == {True, False}
