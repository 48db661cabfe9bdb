"""A write that others overtook: its rows are newer than all that was committed before it, also after a compaction."""

from __future__ import annotations

import uuid
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import lakebed
from lakebed.objects.open import open_store
from lakebed.table.rows.rows import commit_changes, new_writer
from lakebed.table.table import Table
from lakebed.testing.between import Between

SCHEMA = pa.schema(
    [pa.field("id", pa.int64(), nullable=False), *((name, pa.int64()) for name in ("mine", "theirs", "at"))]
)
FUNCTION = "fields.mine.aggregate-function"
VECTORS = {"deletion-vectors.enabled": "true", "deletion-vectors.merge-on-read": "true"}
CASES: dict[str, tuple[dict[str, str], int]] = {
    "partial-update": ({"merge-engine": "partial-update"}, 9),
    "a group": ({"merge-engine": "partial-update", "fields.at.sequence-group": "mine"}, 9),
    "vectors": ({"merge-engine": "partial-update", **VECTORS}, 9),
    "dynamic buckets": ({"merge-engine": "partial-update", "bucket": "-1"}, 9),
    "a log": ({"merge-engine": "partial-update", "changelog-producer": "input"}, 9),
    "last_non_null_value": ({"merge-engine": "aggregation"}, 9),
    "first_non_null_value": ({"merge-engine": "aggregation", FUNCTION: "first_non_null_value"}, 2),
    "sum": ({"merge-engine": "aggregation", FUNCTION: "sum"}, 11),
    "first-row": ({"merge-engine": "first-row"}, 2),
}


def rows(*given: dict[str, int], filler: int = 0) -> pa.Table:
    """Rows of the key 1, behind `filler` rows of other keys."""
    others: list[dict[str, Any]] = [{"id": 10 + number, "theirs": 0} for number in range(filler)]
    return pa.Table.from_pylist([*others, *({"id": 1, **row} for row in given)], SCHEMA)


def row_of(table: Table) -> dict[str, Any]:
    """What the key 1 has."""
    (row,) = table.read(where="id = 1").to_pylist()
    return dict(row)


def create(options: dict[str, str], store: Any = None) -> Table:
    """An empty table."""
    store = store or open_store(f"memory://late-{uuid.uuid4()}")
    return Table.create(store, name="t", schema=SCHEMA, primary_keys=["id"], options=options)


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("compacts", [False, True])
def test_an_overtaken_write_is_newer_than_what_was_there_before_it(name: str, compacts: bool) -> None:
    """Whether a compaction came between or not, its value is the later one of its column."""
    options, value = CASES[name]
    table = create(options)
    table.upsert(rows({"mine": 2, "at": 1}))
    writer = new_writer(table.context.look())
    writer.write(rows({"mine": 9, "at": 1}))
    changes = writer.finish()
    table.upsert(rows({"theirs": 5}, filler=20))
    if compacts:
        table.compact(full=True)
    snapshot = commit_changes(table.context, changes)
    expected = {"id": 1, "mine": value, "theirs": 5, "at": 1}
    if name == "first-row":
        expected["theirs"] = None  # type: ignore[assignment]
    assert row_of(table) == expected
    table.compact(full=True)
    assert row_of(table) == expected
    assert table.read(version=snapshot.id).num_rows == 21
    assert table.collect(dry_run=True, grace_ms=0).deleted_count == 0, "files that were written anew are deleted"


@pytest.mark.parametrize("options", [{}, {"changelog-producer": "input"}, VECTORS, {"bucket": "-1"}])
def test_the_row_that_is_committed_last_is_the_newest(options: dict[str, str]) -> None:
    """All rows of an overtaken batch are, and what `changes` tells of it is in the table."""
    table = create(options)
    writer = new_writer(table.context.look())
    writer.write(pa.table({"id": [1, 2], "mine": [9, 9], "theirs": [9, 9], "at": [9, 9]}))
    changes = writer.finish()
    table.upsert(pa.table({"id": [2, 1], "mine": [2, 2], "theirs": [2, 2], "at": [2, 2]}))
    newest = commit_changes(table.context, changes).id
    expected = [{"id": key, "mine": 9, "theirs": 9, "at": 9} for key in (1, 2)]
    assert table.read().sort_by("id").to_pylist() == expected
    told = table.changes(newest - 1, newest).drop_columns(["_row_kind"])
    assert told.sort_by("id").to_pylist() == expected
    table.compact(full=True)
    assert table.read().sort_by("id").to_pylist() == expected


def test_the_row_that_was_first_to_be_seen_stays() -> None:
    """With `first-row` a writer that began earlier and commits later does not replace what readers have seen."""
    table = create({"merge-engine": "first-row"})
    writer = new_writer(table.context.look())
    writer.write(rows({"mine": 9}))
    changes = writer.finish()
    table.upsert(rows({"mine": 2}, filler=20))
    commit_changes(table.context, changes)
    assert row_of(table)["mine"] == 2
    table.compact(full=True)
    assert row_of(table)["mine"] == 2


def test_a_write_that_a_compaction_under_way_does_not_see() -> None:
    """A compaction that began after a write, and ends after it, leaves the write's rows newer than what it merged."""
    inner = open_store(f"memory://late-{uuid.uuid4()}")
    table = create({"merge-engine": "partial-update"}, inner)
    table.upsert(rows({"mine": 2}))
    writer = new_writer(table.context.look())
    writer.write(rows({"mine": 9}))
    changes = writer.finish()
    table.upsert(rows({"theirs": 5}, filler=20))
    store = Between(inner, kind="put", prefix="bucket-0/data-", happens=lambda: commit_changes(table.context, changes))
    Table.open(store, name="t").compact(full=True)
    assert store.happened
    assert row_of(table)["mine"] == 9
    table.compact(full=True)
    assert row_of(table)["mine"] == 9


def test_buckets_that_are_overtaken_one_after_the_other() -> None:
    """A commit that loses a second race, in another bucket, keeps what it wrote anew after the first one."""
    inner = open_store(f"memory://late-{uuid.uuid4()}")
    columns = pa.schema([(name, pa.int64()) for name in ("id", "part", "mine", "theirs")])
    table = Table.create(
        inner,
        name="t",
        schema=columns,
        primary_keys=["id", "part"],
        partition_keys=["part"],
        options={"merge-engine": "partial-update"},
    )

    def write(column: str, value: int, *parts: int) -> pa.Table:
        return pa.table({"id": [1] * len(parts), "part": parts, column: [value] * len(parts)})

    table.upsert(write("mine", 2, 0, 1))
    writer = new_writer(table.context.look())
    writer.write(write("mine", 9, 0, 1))
    changes = writer.finish()
    table.upsert(write("theirs", 5, 0))
    store = Between(inner, kind="put", prefix="manifest/", happens=lambda: table.upsert(write("theirs", 6, 1)))
    commit_changes(Table.open(store, name="t").context, changes)
    assert store.happened
    table.compact(full=True)
    rows_of_parts = sorted(table.read().to_pylist(), key=lambda row: row["part"])
    assert [(row["mine"], row["theirs"]) for row in rows_of_parts] == [(9, 5), (9, 6)]
    assert table.collect(dry_run=True, grace_ms=0).deleted_count == 0


def test_rows_keep_the_schema_that_they_were_written_by() -> None:
    """Rows that lack a new column are numbered anew as they are: the values of others in it stay."""
    table = create({"merge-engine": "partial-update"})
    table.upsert(rows({"mine": 2}))
    writer = new_writer(table.context.look())
    writer.write(rows({"mine": 9}))
    changes = writer.finish()
    table.add_column("more", "STRING")
    table.rename_column("mine", "ours")
    table.upsert(pa.table({"id": [1], "more": ["x"]}))
    commit_changes(table.context, changes)
    assert row_of(table) == {"id": 1, "ours": 9, "theirs": None, "at": None, "more": "x"}
    files = table.system("files")
    assert sorted(files["schema_id"].to_pylist()) == [0, 0, 2]


def test_sources_that_each_write_a_column_find_what_they_wrote(tmp_path: Path) -> None:
    """Threads that write columns of the same keys, while another compacts, each read their own last value."""
    lake = lakebed.open(tmp_path)
    lake.create_table("t", SCHEMA, primary_keys="id", options={"merge-engine": "partial-update"})
    done: list[str] = []
    columns = ("mine", "theirs", "at")

    def compact() -> None:
        table = lakebed.open(tmp_path).table("t")
        while len(done) < len(columns):
            table.compact(full=True)

    def write(column: str) -> int:
        table = lakebed.open(tmp_path).table("t")
        lost = 0
        try:
            for number in range(30):
                count = (1, 5, 40)[number % 3]
                table.upsert(pa.table({"id": range(count), column: [number] * count}))
                found = table.read(columns=["id", column], where=f"id < {count}")
                lost += found[column].to_pylist().count(number) != count
        finally:
            done.append(column)
        return lost

    with ThreadPoolExecutor(len(columns) + 1) as pool:
        compactor = pool.submit(compact)
        assert list(pool.map(write, columns)) == [0, 0, 0]
        compactor.result()
