"""Rows of other libraries in and out, names of columns given as one text, tags and limits of reads."""

from __future__ import annotations

import datetime as dt
import math
import sys
import uuid
from typing import Any

import duckdb
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest

import lakebed
from lakebed.errors import InvalidRequest
from lakebed.objects import open_store
from lakebed.table.table import Table
from lakebed.testing.recording import RecordingStore
from worlds.errors import raises
from worlds.scripts import run_script

SCHEMA = pa.schema(
    [
        pa.field("id", pa.int64(), nullable=False),
        pa.field("name", pa.string()),
        pa.field("count", pa.int32()),
        pa.field("price", pa.float64()),
        pa.field("day", pa.date32()),
        pa.field("at", pa.timestamp("us")),
    ]
)
NASTY = [
    {"id": 1, "name": "é\x00", "count": 2**31 - 1, "price": -0.0, "day": dt.date(1, 1, 1), "at": None},
    {"id": 2, "name": None, "count": None, "price": math.inf, "day": None, "at": dt.datetime(9999, 12, 31, 23)},
    {"id": -(2**63), "name": "", "count": -(2**31), "price": None, "day": dt.date(9999, 12, 31), "at": None},
]


@pytest.fixture
def table(request: pytest.FixtureRequest) -> Table:
    """An empty table with a primary key, given as one name."""
    lake = lakebed.open(f"memory://frames-{request.node.name}")
    return lake.create_table("t", SCHEMA, primary_keys="id")


class Stream:
    """An object of another library that exports its rows once."""

    def __init__(self, rows: pa.Table) -> None:
        self._reader = rows.to_reader()

    def __arrow_c_stream__(self, requested_schema: object | None = None) -> object:
        return self._reader.__arrow_c_stream__(requested_schema)


def by_id(rows: pa.Table) -> list[dict[str, Any]]:
    """Rows in a fixed order."""
    return sorted(rows.to_pylist(), key=lambda row: int(row["id"]))


def test_a_data_frame_of_pandas_is_written_as_it_is(table: Table) -> None:
    """Missing values are null, whole numbers that pandas holds as floats stay whole, -0.0 keeps its sign."""
    frame = pd.DataFrame(NASTY)
    assert frame["count"].dtype == "float64"
    table.upsert(frame)
    rows = by_id(table.read())
    assert rows == sorted(NASTY, key=lambda row: int(str(row["id"])))
    assert math.copysign(1, rows[1]["price"]) == -1
    table.overwrite(frame.iloc[:1])
    table.delete(keys=pd.DataFrame({"id": [1]}))
    assert table.read().num_rows == 0


def test_the_index_of_a_data_frame_is_written_when_it_has_a_name(table: Table) -> None:
    """A named level is a column; the positions that a filter leaves behind are none."""
    frame = pd.DataFrame(NASTY)
    table.upsert(frame[frame["id"] > 0].set_index("id"))
    assert [row["id"] for row in by_id(table.read())] == [1, 2]
    table.upsert(frame[frame["id"] < 0])
    assert table.read().num_rows == 3


def test_a_stream_of_any_library_is_written_once(table: Table) -> None:
    """An object with __arrow_c_stream__ is read as it is written."""
    table.upsert(Stream(pa.Table.from_pylist(NASTY, SCHEMA)))
    assert by_id(table.read()) == sorted(NASTY, key=lambda row: int(str(row["id"])))
    table.delete(keys=Stream(pa.table({"id": [1, 2]})))
    assert table.read()["id"].to_pylist() == [-(2**63)]


@pytest.mark.parametrize(
    ("rows", "words"),
    [
        ([{"id": 1}], "not list"),
        ({"id": [1]}, "not dict"),
        (None, "not NoneType"),
        (pd.DataFrame({**pd.DataFrame(NASTY), "count": [1.5, 2.0, 3.0]}), "cannot be converted to columns"),
        (pd.DataFrame({**pd.DataFrame(NASTY), "name": [object(), "a", "b"]}), "cannot be converted to columns"),
        (pa.chunked_array([[1]]), "cannot be converted to columns"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_what_has_no_columns_is_refused(table: Table, rows: Any, words: str) -> None:
    """One sentence says what was brought and what is taken; nothing is committed."""
    with pytest.raises(InvalidRequest, match=words) as refused:
        table.upsert(rows)
    assert "\n" not in refused.value.message
    assert table.latest() is None


def test_rows_come_out_as_pandas(table: Table) -> None:
    """Of a table, a scan and a view of a version; the arguments are those of a read."""
    table.upsert(pa.Table.from_pylist(NASTY, SCHEMA))
    table.create_tag("first")
    table.delete("id = 1")
    assert sorted(table.to_pandas()["id"]) == [-(2**63), 2]
    frame = table.to_pandas(tag="first", columns="name", where="id = 1")
    assert (list(frame.columns), list(frame["name"])) == (["name"], ["é\x00"])
    assert len(table.at("first").scan(columns="id").to_pandas()) == 3


def test_a_table_is_a_stream_for_other_libraries(table: Table) -> None:
    """Arrow, polars, DuckDB and another table take a table, a version and a scan as they are, each with its rows."""
    assert pa.table(table) == SCHEMA.empty_table()
    table.upsert(pa.Table.from_pylist(NASTY, SCHEMA))
    table.create_tag("first")
    table.delete("id = 1")
    first, some = table.at("first"), table.scan(tag="first", columns=["name", "id"], where="id > 0")
    assert by_id(pa.table(first)) == sorted(NASTY, key=lambda row: int(str(row["id"])))
    assert pa.table(table).schema == SCHEMA
    assert sorted(pl.DataFrame(table)["id"]) == [-(2**63), 2]
    assert pl.DataFrame(some).rows() == [("é\x00", 1), (None, 2)]
    connection = duckdb.connect()
    for rows, ids in ((table, [-(2**63), 2]), (first, [-(2**63), 1, 2]), (some, [1, 2])):
        connection.register("rows", rows)
        assert connection.sql("SELECT id FROM rows ORDER BY id").fetchall() == [(id,) for id in ids]
    table.upsert(first)
    assert by_id(table.read()) == by_id(first.read())


@pytest.mark.parametrize("days", [2_932_897, -719_163])
@pytest.mark.parametrize("is_inside", [False, True])
def test_dates_that_pandas_has_not_are_named(days: int, is_inside: bool) -> None:
    """Dates outside of the years 1 to 9999 are an error that says what to do; Arrow has them."""
    kind = pa.list_(pa.date32()) if is_inside else pa.date32()
    plain = pa.list_(pa.int32()) if is_inside else pa.int32()
    table = lakebed.open(f"memory://{uuid.uuid4()}").create_table("t", pa.schema([("day", kind)]))
    rows = pa.table({"day": pa.array([[days] if is_inside else days], plain).cast(kind)})
    table.append(rows)
    with raises(InvalidRequest, "value_out_of_range"):
        table.to_pandas()
    assert table.read().equals(rows)


def test_rows_go_through_polars_and_back(table: Table) -> None:
    """A polars frame is written as it is, and what is read as one holds the same values."""
    table.upsert(pl.DataFrame(NASTY, schema_overrides={"count": pl.Int32, "at": pl.Datetime("us")}))
    expected = sorted(NASTY, key=lambda row: int(str(row["id"])))
    assert by_id(table.read()) == expected
    assert table.to_polars().sort("id").to_dicts() == expected
    assert table.to_polars(columns="id", where="id > 1")["id"].to_list() == [2]


def test_categories_and_deletes_of_polars_are_written() -> None:
    """A polars frame has texts as views, and categories as dictionaries of these: they can be written, and filtered."""
    lake = lakebed.open("memory://frames-categories")
    kinds = pl.Enum(["u", "v"])
    frame = pl.DataFrame(
        {"id": [1, 2], "c": ["u", "v"], "e": ["v", None]}, schema={"id": pl.Int64, "c": pl.Categorical, "e": kinds}
    )
    table = lake.create_table("t", pa.table(frame).schema, primary_keys="id")
    table.upsert(frame)
    table.write(frame.with_columns(gone=pl.col("id") == 1), deletes="gone")
    assert table.read().to_pylist() == [{"id": 2, "c": "v", "e": None}]


def test_rows_go_through_duckdb_and_back(table: Table) -> None:
    """A relation is written as it is; a version is a view, in a new database or in the caller's."""
    with duckdb.connect() as connection:
        connection.register("rows", pa.Table.from_pylist(NASTY, SCHEMA))
        table.upsert(connection.table("rows"))
        assert by_id(table.read()) == sorted(NASTY, key=lambda row: int(str(row["id"])))
        assert table.to_duckdb("t", connection, where="id > 0") is connection
        assert connection.sql("SELECT count(*), sum(id) FROM t").fetchall() == [(2, 3)]
    with table.to_duckdb("other") as made:
        assert made.sql("SELECT min(id), max(day) FROM other").fetchall() == [(-(2**63), dt.date(9999, 12, 31))]


def test_a_library_that_is_missing_is_named(table: Table, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without polars and DuckDB a sentence says what to install."""
    table.upsert(pa.Table.from_pylist(NASTY, SCHEMA))
    for name in ("polars", "duckdb"):
        monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(InvalidRequest, match="pip install polars"):
        table.to_polars()
    with pytest.raises(InvalidRequest, match="pip install duckdb"):
        table.to_duckdb("t")


def test_one_column_is_given_by_its_name(table: Table) -> None:
    """A text is one name in every place that takes names, and not a sequence of letters."""
    table.upsert(pa.Table.from_pylist(NASTY, SCHEMA))
    table.upsert(pa.Table.from_pylist([{**NASTY[0], "name": "new"}], SCHEMA))
    assert table.schema.primary_keys == ("id",)
    assert table.read(columns="price").column_names == ["price"]
    assert table.at(1).read(columns="name", limit=2).shape == (2, 1)
    assert table.system("snapshots", columns="snapshot_id").column_names == ["snapshot_id"]
    assert table.diff(1, 2, keys="id").counts == {"added": 0, "removed": 0, "changed": 1}
    with pytest.raises(InvalidRequest, match="nope"):
        table.read(columns="nope")
    lake = lakebed.open("memory://frames-one-name")
    days = lake.create_table("days", SCHEMA, primary_keys=["id", "day"], partition_keys="day")
    assert days.schema.partition_keys == ("day",)


def test_a_tag_is_read_by_its_name(table: Table) -> None:
    """`tag=` means the tag also where a branch has the name; with a version or a time it is refused."""
    table.upsert(pa.Table.from_pylist(NASTY, SCHEMA))
    table.create_tag("x")
    table.create_branch("x").delete("id = 1")
    assert table.read(tag="x").num_rows == 3
    assert table.scan(tag="x").count() == 3
    for other in ({"version": 1}, {"timestamp_ms": 2**60}):
        with pytest.raises(InvalidRequest, match="not several"):
            table.read(tag="x", **other)  # type: ignore[arg-type]


@pytest.mark.parametrize("keyed", [False, True], ids=["append", "keyed"])
def test_a_limit_reads_few_files(request: pytest.FixtureRequest, keyed: bool) -> None:
    """Files are opened until there are enough rows: one for one row of twenty files; the rows are the table's."""
    store = RecordingStore(open_store(f"memory://frames-limit-{keyed}"))
    options = {"bucket": "20"} if keyed else {}
    table = Table.create(store, name="t", schema=SCHEMA, primary_keys=["id"] if keyed else [], options=options)
    rows = pa.Table.from_pylist([{**NASTY[0], "id": number} for number in range(200)], SCHEMA)
    for start in range(0, 200, 200 if keyed else 10):
        table.write(rows.slice(start, 200 if keyed else 10))
    table.read()  # manifests are cached from here on

    def opened(limit: int | None, **options: Any) -> tuple[pa.Table, set[str]]:
        del store.trace[:]
        outcome = table.read(limit=limit, **options)
        paths = {call.call.path for call in store.trace if "bucket-" in call.call.path}
        return outcome, paths

    every, all_files = opened(None)
    assert (every.num_rows, len(all_files)) == (200, 20)
    for limit, most in ((0, 0), (1, 1), (11, 4), (200, 20), (201, 20)):
        result, paths = opened(limit)
        assert result.num_rows == min(limit, 200)
        assert len(paths) <= most
        assert result.schema == every.schema
        assert set(result["id"].to_pylist()) <= set(range(200))
        assert len(set(result["id"].to_pylist())) == result.num_rows
        assert table.scan(limit=limit).count() == result.num_rows
    result, paths = opened(3, where="id >= 150", columns="id")
    assert (result.num_rows, min(result["id"].to_pylist()) >= 150) == (3, True)
    assert table.scan(limit=3, where="id = 7").count() == 1
    assert table.read(limit=2, columns=[]).num_rows == 2
    for wrong in (-1, 1.5, True, "3"):
        with pytest.raises(InvalidRequest, match=r"is invalid: use a number of rows|takes a whole number"):
            table.read(limit=wrong)  # type: ignore[arg-type]


def test_nothing_is_imported_that_is_not_asked_for() -> None:
    """A program that reads Arrow loads neither polars nor DuckDB nor fsspec."""
    code = (
        "import sys, lakebed; lakebed.open('memory://x').tables(); "
        "print([name for name in ('polars', 'duckdb', 'fsspec') if name in sys.modules])"
    )
    assert run_script(code) == "[]\n"
