"""Rows through the whole table: write, commit, read back, on both kinds of table and several stores."""

from __future__ import annotations

import datetime
import math
import pickle
import uuid
from collections import Counter
from collections.abc import Callable
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest

from lakebed.errors import Corruption, InvalidRequest, NotFound
from lakebed.objects.open import open_store
from lakebed.table.model.predicate_tree import column
from lakebed.table.read.read import read_split, read_split_table
from lakebed.table.rows.rows import commit_changes, new_writer
from lakebed.table.table import Table

SCHEMA = pa.schema([("dt", pa.string()), ("id", pa.int64()), ("v", pa.int32()), ("s", pa.string())])


@pytest.fixture(params=["memory", "local"])
def make(request: pytest.FixtureRequest, tmp_path: Path) -> Callable[..., Table]:
    count = iter(range(100))

    def create(schema: pa.Schema = SCHEMA, **arguments: Any) -> Table:
        name = f"t{next(count)}"
        url = f"memory://{request.node.name}-{name}" if request.param == "memory" else str(tmp_path / name)
        return Table.create(open_store(url, durable=False), name=name, schema=schema, **arguments)

    return create


def rows(ids: Any, *, v: int = 0, dt: str = "a") -> pa.Table:
    ids = np.asarray(list(ids), np.int64)
    return pa.table(
        {"dt": [dt] * len(ids), "id": ids, "v": np.full(len(ids), v, np.int32), "s": [f"s{i % 7}" for i in ids]}
    )


def keyed(make: Callable[..., Table], **options: str) -> Table:
    return make(primary_keys=["dt", "id"], partition_keys=["dt"], options={"bucket": "2", **options})


def by_id(table: pa.Table) -> dict[tuple[str, int], int]:
    return dict(
        zip(zip(table["dt"].to_pylist(), table["id"].to_pylist(), strict=True), table["v"].to_pylist(), strict=True)
    )


def test_upserts_replace_and_deletes_remove(make: Callable[..., Table]) -> None:
    """After any upserts and deletes a read holds exactly the last row of every key that was not deleted."""
    table = keyed(make)
    table.upsert(rows(range(100), v=1))
    table.upsert(rows(range(50, 150), v=2))
    table.upsert(rows(range(10), v=3, dt="b"))
    table.delete(keys=pa.table({"dt": ["a", "a", "b"], "id": [0, 149, 3]}))
    table.upsert(rows([149], v=4))
    expected = {("a", i): 1 for i in range(1, 50)} | {("a", i): 2 for i in range(50, 149)} | {("a", 149): 4}
    expected |= {("b", i): 3 for i in range(10) if i != 3}
    assert by_id(table.read()) == expected
    assert by_id(pa.Table.from_batches(table.scan().to_batches())) == expected
    assert table.scan().count() == len(expected)


def test_concurrent_upserts_of_one_key_have_one_winner(make: Callable[..., Table]) -> None:
    """Two writers that start from one snapshot both commit; every reader sees the same single row of the key."""
    table = keyed(make)
    first, second = new_writer(table.context.look()), new_writer(table.context.look())
    first.write(rows([1], v=1))
    second.write(rows([1], v=2))
    changes = [second.finish(), first.finish()]
    for change in changes:
        commit_changes(table.context, change)
    assert by_id(table.read()) == {("a", 1): 1}
    assert by_id(pa.Table.from_batches(table.scan().to_batches())) == {("a", 1): 1}
    table.compact(full=True)
    assert by_id(table.read()) == {("a", 1): 1}


def test_a_predicate_never_brings_an_old_row_back(make: Callable[..., Table]) -> None:
    """A filter on a value column sees merged rows only: the older row that matches stays replaced."""
    table = keyed(make)
    table.upsert(rows(range(20), v=1))
    table.upsert(rows(range(10), v=2))
    assert by_id(table.read(where="v = 1")) == {("a", i): 1 for i in range(10, 20)}
    assert by_id(table.read(where=(column("v") == 1) & (column("id") < 12))) == {("a", 10): 1, ("a", 11): 1}
    table.delete(keys=pa.table({"dt": ["a"], "id": [15]}))
    assert ("a", 15) not in by_id(table.read(where="v = 1"))
    assert table.scan(where="v = 1").count() == 9


def test_files_are_pruned_by_partition_key_and_statistics(make: Callable[..., Table]) -> None:
    """A filter opens only the files that can match."""
    table = keyed(make)
    for dt in "abc":
        table.upsert(rows(range(100), dt=dt))
    assert {split.partition_values["dt"] for split in table.scan(where="dt = 'b'").splits()} == {"b"}
    assert len(table.scan(where="dt = 'b' AND id = 7").splits()) == 1
    assert table.scan(where="id > 1000").splits() == []
    appended = make()
    appended.append(rows(range(10), v=1))
    appended.append(rows(range(10), v=2))
    (split,) = appended.scan(where="v = 2").splits()
    assert len(split.files) == 1
    assert appended.read(where="v = 2 AND s = 's3'")["id"].to_pylist() == [3]
    with appended.store.count() as requests:
        assert appended.scan(where="v = 3").to_arrow().num_rows == 0
    assert requests.bytes_read < 5000


def test_projection_reads_and_orders_the_columns_asked_for(make: Callable[..., Table]) -> None:
    """Columns come in the order asked, even when the merge and the filter need others."""
    table = keyed(make)
    table.upsert(rows(range(5), v=1))
    table.upsert(rows(range(5), v=2))
    got = table.read(columns=["s", "v"], where="id = 3")
    assert got.column_names == ["s", "v"]
    assert got.to_pylist() == [{"s": "s3", "v": 2}]
    with pytest.raises(InvalidRequest, match="'w'"):
        table.read(columns=["w"])


def test_old_versions_read_as_they_were(make: Callable[..., Table]) -> None:
    """A version shows its rows and its columns, however the table went on."""
    table = make()
    table.append(rows([1]))
    table.create_tag("one")
    table.add_column("extra", "INT")
    table.append(rows([2]).append_column("extra", pa.array([5], pa.int32())))
    assert table.read(version="one").column_names == SCHEMA.names
    assert table.read(version=1).num_rows == 1
    assert table.read().sort_by("id")["extra"].to_pylist() == [None, 5]


def test_files_of_old_schemas_are_read_through_the_newest(make: Callable[..., Table]) -> None:
    """Added columns are null, dropped ones gone, renamed ones followed, narrow ones widened; a re-added name is new."""
    table = keyed(make)
    table.upsert(rows(range(4), v=1))
    table.rename_column("v", "value")
    table.widen_column("value", "BIGINT")
    table.drop_column("s")
    table.add_column("s", "STRING")
    table.upsert(pa.table({"dt": ["a"], "id": [1], "value": [2**40], "s": ["new"]}))
    got = table.read().sort_by("id")
    assert got["value"].to_pylist() == [1, 2**40, 1, 1]
    assert got["s"].to_pylist() == [None, "new", None, None]
    assert table.read(where="value > 5")["id"].to_pylist() == [1]
    table.compact(full=True)
    assert table.read().sort_by("id").equals(got)


@pytest.mark.parametrize("keys", [(), ("id",)])
def test_parts_of_columns_are_widened(make: Callable[..., Table], keys: tuple[str, ...]) -> None:
    """Fields, elements and values of maps, in each other: old values stay, and those beyond the old type are stored."""
    pair = pa.struct([pa.field("n", pa.int32(), nullable=False), ("f", pa.float32())])
    columns = [("s", pair), ("l", pa.list_(pa.int16())), ("m", pa.map_(pa.string(), pa.list_(pair)))]
    schema = pa.schema([pa.field("id", pa.int64(), nullable=False), *columns])
    table = make(schema, primary_keys=keys, options={"bucket": "1"} if keys else {})
    old = {"id": 1, "s": {"n": 1, "f": 0.5}, "l": [1, None], "m": [("k", [{"n": 2, "f": None}])]}
    empty = {"id": 2, "s": None, "l": None, "m": None}
    table.write(pa.Table.from_pylist([old, empty], schema))
    for path, kind in (
        (("s", "n"), "BIGINT"),
        (("l", "element"), "INT"),
        (("m", "value", "element", "n"), "BIGINT"),
        (("m", "value", "element", "f"), "DOUBLE"),
    ):
        table.widen_column(path, kind)
    assert table.arrow_schema.field("s").type.field("n") == pa.field("n", pa.int64(), nullable=False)
    new = {"id": 3, "s": {"n": 2**40, "f": 0.5}, "l": [2**20], "m": [("k", [{"n": 2**40, "f": 1e300}])]}
    table.write(pa.Table.from_pylist([new], table.arrow_schema))
    for _ in range(2):
        assert table.read().sort_by("id").to_pylist() == [old, empty, new]
        table.compact(full=True)
    for path, kind, sentence in (
        (("s", "n"), "INT", "holds every old value"),
        (("s", "x"), "BIGINT", "no field 'x'"),
        (("m", "key"), "STRING", "no field 'key'"),
        (("s",), "BIGINT", "holds every old value"),
        (("id", "x"), "BIGINT", "another type" if keys else "no field 'x'"),
    ):
        with pytest.raises(InvalidRequest, match=sentence):
            table.widen_column(path, kind)


def test_overwrites_replace_what_they_name(make: Callable[..., Table]) -> None:
    """Whole table, one partition, or the partitions that the rows lie in: nothing else goes."""
    table = keyed(make)
    for dt in "abc":
        table.upsert(rows(range(3), dt=dt, v=1))
    table.overwrite(rows([9], dt="b", v=2), partition={"dt": "b"})
    assert by_id(table.read(where="dt = 'b'")) == {("b", 9): 2}
    table.overwrite(rows([8], dt="c", v=3), dynamic=True)
    assert set(by_id(table.read())) == {("a", 0), ("a", 1), ("a", 2), ("b", 9), ("c", 8)}
    with pytest.raises(InvalidRequest, match="another 'dt'"):
        table.overwrite(rows([1], dt="a"), partition={"dt": "b"})
    table.overwrite(rows([1], v=4).drop_columns(["dt"]), partition={"dt": "a"})
    assert by_id(table.read(where="dt = 'a'")) == {("a", 1): 4}
    table.overwrite(rows([5]))
    assert set(by_id(table.read())) == {("a", 5)}


def test_append_tables_keep_every_row(make: Callable[..., Table]) -> None:
    """Appended rows all stay, duplicates too; they can be counted without being read."""
    table = make(options={"bucket": "3", "bucket-key": "id"})
    table.append(rows(range(100)))
    table.append(rows(range(50)))
    with table.store.count() as requests:
        assert table.scan().count() == 150
    assert requests.bytes_read < 20_000
    assert sorted(table.read()["id"].to_pylist()) == sorted([*range(100), *range(50)])


def test_deleting_by_predicate(make: Callable[..., Table]) -> None:
    """Rows that match go, rows for which the filter is unknown stay, and nothing matching makes no snapshot."""
    table = make()
    table.append(rows(range(10)))
    table.append(pa.table({"dt": ["x"], "id": [99], "v": pa.array([None], pa.int32()), "s": ["n"]}))
    assert table.delete("v > 5") is None
    table.delete("id < 3 OR v > 5")
    assert sorted(table.read()["id"].to_pylist()) == [3, 4, 5, 6, 7, 8, 9, 99]
    merged = keyed(make)
    merged.upsert(rows(range(10), v=1))
    merged.delete("id >= 5")
    assert sorted(merged.read()["id"].to_pylist()) == [0, 1, 2, 3, 4]
    with pytest.raises(InvalidRequest, match="either"):
        merged.delete()


def test_wrong_verbs_say_which_is_right(make: Callable[..., Table]) -> None:
    """Append and upsert each refuse the other kind of table by name."""
    with pytest.raises(InvalidRequest, match="use upsert"):
        keyed(make).append(rows([1]))
    with pytest.raises(InvalidRequest, match="use append"):
        make().upsert(rows([1]))


def test_an_empty_table_reads_empty(make: Callable[..., Table]) -> None:
    """Before the first commit a table has no rows, but its columns."""
    table = keyed(make)
    assert table.read().schema.names == SCHEMA.names
    assert table.scan().count() == 0
    assert list(table.scan().to_batches()) == []
    assert table.scan().to_reader().read_all().num_rows == 0


def test_splits_travel_to_other_processes(make: Callable[..., Table]) -> None:
    """A pickled split and plan read the same rows, split by split, for any window."""
    table = keyed(make)
    table.upsert(rows(range(1000), v=1))
    table.upsert(rows(range(0, 1000, 3), v=2))
    table.delete(keys=rows(range(0, 1000, 5)).select(["dt", "id"]))
    scan = table.scan(columns=["id", "v"], where="v = 2")
    plan, splits = pickle.loads(pickle.dumps((scan.plan, scan.splits())))
    assert all(split.needs_merge for split in splits)
    streamed = pa.Table.from_batches([b for s in splits for b in read_split(table.store, s, plan=plan, batch_rows=7)])
    at_once = pa.concat_tables([read_split_table(table.store, split, plan=plan) for split in splits])
    expected = [i for i in range(0, 1000, 3) if i % 5]
    assert sorted(streamed["id"].to_pylist()) == sorted(at_once["id"].to_pylist()) == expected


def test_a_damaged_file_is_named(make: Callable[..., Table]) -> None:
    """A truncated or garbled data file is `Corruption` with its path, in every way of reading."""
    table = make()
    table.append(rows(range(100)))
    (split,) = table.scan().splits()
    path = f"{split.folder}/{split.files[0].file_name}"
    body = bytes(table.store.get(path))
    for damaged in (body[:-10], b"x" * len(body), body[: len(body) // 2] + b"\0" * (len(body) - len(body) // 2)):
        table.store.put(path, damaged)
        with pytest.raises(Corruption, match="bucket-0/data-") as error:
            table.read()
        assert error.value.facts["path"] == path
        with pytest.raises(Corruption):
            list(table.scan().to_batches())


def test_a_file_that_expired_while_reading_says_so(make: Callable[..., Table]) -> None:
    """A reader whose version was cleaned away hears that, not a vendor's error."""
    table = make()
    table.append(rows(range(10)))
    scan = table.scan()
    (split,) = scan.splits()
    table.store.delete([f"{split.folder}/{split.files[0].file_name}"])
    with pytest.raises(NotFound, match="expired"):
        scan.to_arrow()


def test_every_kind_of_key_merges(make: Callable[..., Table]) -> None:
    """Keys of several columns and types merge as single numbers do."""
    schema = pa.schema(
        [("c", pa.string()), ("d", pa.date32()), ("n", pa.int16()), ("x", pa.decimal128(20, 2)), ("v", pa.int32())]
    )
    table = make(schema, primary_keys=["c", "d", "n", "x"], options={"bucket": "2"})

    def some(start: int, stop: int, v: int) -> pa.Table:
        i = np.arange(start, stop)
        return pa.table(
            [
                pa.array([f"k{j % 5}" * (j % 3) for j in i]),
                pa.array((i % 11).astype(np.int32)).cast(pa.date32()),
                pa.array((i % 300).astype(np.int16)),
                pc.cast(pa.array(i % 17 - 8), pa.decimal128(38, 2)).cast(pa.decimal128(20, 2)),
                pa.array(np.full(len(i), v, np.int32)),
            ],
            schema=schema,
        )

    table.upsert(some(0, 3000, 1))
    table.upsert(some(1500, 4500, 2))
    expected: dict[tuple[Any, ...], int] = {}
    for part in (some(0, 3000, 1), some(1500, 4500, 2)):
        for row in part.to_pylist():
            expected[tuple(row.values())[:4]] = row["v"]
    for got in (table.read(), pa.Table.from_batches(table.scan().to_batches())):
        assert {tuple(row.values())[:4]: row["v"] for row in got.to_pylist()} == expected
        assert got.num_rows == len(expected)


@pytest.mark.parametrize("named", [math.nan, "NaN"])
def test_the_partition_nan_is_overwritten_and_compacted(named: Any) -> None:
    """NaN names the partition NaN, as null names the partition null, and no other."""
    store = open_store(f"memory://{uuid.uuid4()}")
    columns = pa.schema([("k", pa.int64()), ("p", pa.float64())])
    table = Table.create(store, name="t", schema=columns, partition_keys=["p"])
    for number in range(2):
        table.write(pa.table({"k": [number, number, number], "p": [math.nan, None, 1.0]}))
    assert table.compact(where={"p": named}, full=True).files_before == 2
    table.overwrite(pa.table({"k": [7], "p": [math.nan]}), partition={"p": named})
    table.overwrite(pa.table({"k": [8]}), partition={"p": named})
    table.overwrite(pa.table({"k": [9]}), partition={"p": None})
    counts = Counter((k, str(p)) for k, p in zip(*(table.read()[name].to_pylist() for name in "kp"), strict=True))
    assert counts == {(8, "nan"): 1, (9, "None"): 1, (0, "1.0"): 1, (1, "1.0"): 1}
    with pytest.raises(InvalidRequest, match="another 'p'"):
        table.overwrite(pa.table({"k": [7], "p": [1.0]}), partition={"p": named})


@pytest.mark.parametrize(
    ("kind", "named", "value"),
    [
        (pa.time32("ms"), "12:00:00.001", datetime.time(12, 0, 0, 1000)),
        (pa.decimal128(5, 2), 7, Decimal("7.00")),
        (pa.decimal128(5, 2), "7.0", Decimal("7.00")),
    ],
)
def test_a_partition_is_named_by_a_text_or_a_whole_number(kind: pa.DataType, named: Any, value: Any) -> None:
    """Also where Arrow has no such cast, or asks for more digits than the value has."""
    columns = pa.schema([("k", pa.int64()), ("p", kind)])
    table = Table.create(open_store(f"memory://{uuid.uuid4()}"), name="t", schema=columns, partition_keys=["p"])
    table.write(pa.table({"k": [1, 2], "p": pa.array([value, None], kind)}))
    table.overwrite(pa.table({"k": [3]}), partition={"p": named})
    assert sorted(table.read().to_pylist(), key=lambda row: row["k"]) == [{"k": 2, "p": None}, {"k": 3, "p": value}]
    with pytest.raises(InvalidRequest, match="not a value of partition column"):
        table.overwrite(pa.table({"k": [3]}), partition={"p": "noon"})


def test_compacting_a_partition_of_another_type_is_refused(make: Callable[..., Table]) -> None:
    """What is no partition column, or no value of it, is refused with a sentence."""
    table = keyed(make)
    table.write(rows([1]))
    for where, said in (({"v": 1}, "not a partition column"), ({"dt": object()}, "not a value")):
        with pytest.raises(InvalidRequest, match=said):
            table.compact(where=where)
