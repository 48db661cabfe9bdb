"""Updates by predicate: the same rows as in a dictionary, whatever the table is and whoever writes meanwhile."""

from __future__ import annotations

import datetime as dt
import decimal
import math
import random
import uuid
from typing import Any

import pyarrow as pa
import pytest

import lakebed.compute as pc
from lakebed.errors import InvalidRequest
from lakebed.objects.open import open_store
from lakebed.table.table import Table
from worlds.errors import raises

SCHEMA = pa.schema([pa.field("id", pa.int64(), nullable=False), ("v", pa.int64()), ("s", pa.string())])
KINDS: dict[str, tuple[list[str], dict[str, str]]] = {
    "append": ([], {}),
    "buckets": ([], {"bucket": "2", "bucket-key": "id"}),
    "vectors": ([], {"deletion-vectors.enabled": "true"}),
    "keyed": (["id"], {"bucket": "2"}),
    "logged": (["id"], {"bucket": "2", "changelog-producer": "input"}),
}


def make(kind: str, **options: str) -> Table:
    keys, mine = KINDS[kind]
    return Table.create(
        open_store(f"memory://update-{uuid.uuid4()}"),
        name="t",
        schema=SCHEMA,
        primary_keys=keys,
        options={**mine, **options},
    )


def rows(ids: list[int], v: int) -> pa.Table:
    return pa.table({"id": ids, "v": [v] * len(ids), "s": [str(item) for item in ids]}, schema=SCHEMA)


def state(table: Table) -> dict[int, tuple[Any, ...]]:
    rows = {row["id"]: (row["v"], row["s"]) for row in table.read().to_pylist()}
    assert len(rows) == table.read().num_rows
    return rows


@pytest.mark.parametrize("kind", KINDS)
def test_updates_give_what_a_dictionary_has(kind: str) -> None:
    """Constants and functions of the rows found; rows that do not match stay; None when none matches."""
    rng, table = random.Random(kind), make(kind)
    table.write(rows(list(range(8)), 1))
    table.write(rows(list(range(8, 12)), 2))
    present = state(table)
    for step in range(5):
        low = rng.randint(0, 11)
        if step % 2:
            table.update(f"id >= {low}", {"v": step, "s": None})
            present |= {key: (step, None) for key in present if key >= low}
        else:
            table.update(f"id < {low}", {"v": lambda found: pc.add(found["v"], found["id"])})
            present |= {key: (v + key, s) for key, (v, s) in present.items() if key < low}
        assert state(table) == present
    newest = table.latest()
    assert table.update("id > 100", {"v": 0}) is None
    assert table.latest() == newest
    table.compact(full=True)
    assert state(table) == present


@pytest.mark.parametrize("kind", KINDS)
def test_an_update_that_loses_a_race_is_repeated(kind: str) -> None:
    """Rows that another writer changed or deleted after they were found are found again."""
    table = make(kind)
    table.write(rows([1, 2, 3], 1))
    other = Table.open(table.store, name="t", environment=table.context.environment)
    calls = []

    def doubled(found: pa.Table) -> pa.ChunkedArray:
        calls.append(found.num_rows)
        if len(calls) == 1:
            other.update("id = 1", {"v": 10})
            other.delete("id = 2")
        return pc.multiply(found["v"], 2)

    table.update("id <= 3", {"v": doubled})
    assert calls == [3, 2]
    assert state(table) == {1: (20, "1"), 3: (2, "3")}


def test_updates_that_may_not_be() -> None:
    """A key, an unknown column, a value that does not fit, an engine that merges: refused, and nothing is written."""
    table = make("keyed")
    table.upsert(rows([1], 1))
    for columns, words in (
        ({"id": 2}, "primary key column 'id'"),
        ({"w": 2}, "'w'"),
        ({"v": "x"}, "'x' is not a value of column 'v', which is BIGINT"),
        ({"v": lambda found: pa.array([1, 2, 3])}, "for column 'v' returned 3 values for 1 row"),
        ({"v": lambda found: 7}, "for column 'v' returned int for 1 row"),
    ):
        with pytest.raises(InvalidRequest, match=words):
            table.update("id = 1", columns)
    merging = make("keyed", **{"merge-engine": "partial-update"})
    with pytest.raises(InvalidRequest, match="does not replace a row by the next one of its key"):
        merging.update("id = 1", {"v": 1})
    assert [snapshot.id for snapshot in table.snapshots()] == [1]
    assert {meta.path for meta in table.store.list("bucket-0")} | {
        meta.path for meta in table.store.list("bucket-1")
    } == {row["file_path"] for row in table.system("files").to_pylist()}


@pytest.mark.parametrize(
    ("column", "kind", "lossy", "kept"),
    [
        ("v", pa.int64(), 1.5, 2.0),
        ("v", pa.int64(), decimal.Decimal("1.5"), decimal.Decimal(2)),
        ("v", pa.int64(), math.nan, None),
        ("day", pa.date32(), dt.datetime(2024, 2, 29, 1), dt.datetime(2024, 2, 29)),
        ("day", pa.date32(), 1.5, 1),
        ("at", pa.timestamp("ms"), dt.datetime(2024, 2, 29, 0, 0, 0, 1), dt.datetime(2024, 2, 29, 0, 0, 0, 1000)),
        ("at", pa.timestamp("us"), math.inf, 7),
        ("at", pa.timestamp("us"), dt.datetime(2024, 2, 29, tzinfo=dt.UTC), dt.datetime(2024, 2, 29)),
        ("at", pa.timestamp("us", "UTC"), dt.datetime(2024, 2, 29), dt.datetime(2024, 2, 29, tzinfo=dt.UTC)),
        ("list", pa.list_(pa.timestamp("us")), [dt.datetime(2024, 2, 29, tzinfo=dt.UTC)], [dt.datetime(2024, 2, 29)]),
        ("time", pa.time32("ms"), dt.time(0, 0, 0, 1), dt.time(0, 0, 0, 1000)),
        ("row", pa.struct([("a", pa.int32())]), {"b": 1}, {"a": 1}),
        ("row", pa.struct([("a", pa.int32())]), [("b", 1)], {}),
        ("row", pa.struct([("a", pa.int32())]), {"a": 1.5}, None),
        ("list", pa.list_(pa.int32()), [1, 1.5], [1, 2.0]),
        ("map", pa.map_(pa.string(), pa.int32()), {"k": 1.5}, {"k": 1}),
        ("map", pa.map_(pa.string(), pa.int32()), [("k", 1.5)], pa.scalar(None, pa.list_(pa.int8()))),
        ("list", pa.list_(pa.struct([("a", pa.int32())])), [{"b": 1}], pa.scalar(None, pa.list_(pa.int8()))),
    ],
)
def test_a_value_of_which_a_part_would_be_lost_is_refused(
    column: str, kind: pa.DataType, lossy: object, kept: object
) -> None:
    """A fraction, a time of day, a time zone, digits of a second and unknown fields are not cut off or guessed."""
    store = open_store(f"memory://update-{uuid.uuid4()}")
    table = Table.create(store, name="t", schema=pa.schema([("id", pa.int64()), (column, kind)]))
    table.append(pa.table({"id": [1]}))
    with raises(InvalidRequest, "invalid_value"):
        table.update("id = 1", {column: lossy})
    assert table.read()[column].to_pylist() == [None]
    table.update("id = 1", {column: kept})
    expected = None if isinstance(kept, pa.Scalar) else pa.scalar(kept, kind).as_py()
    assert table.read()[column].to_pylist() == [expected]
