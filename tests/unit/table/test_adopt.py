"""Files of other writers become data files: what is stated of them is true, and what does not fit is refused."""

from __future__ import annotations

import datetime
import decimal
import math
import struct
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from lakebed.errors import InvalidRequest
from lakebed.objects import open_store
from lakebed.table.codec.binary_row import EMPTY_ROW, decode_rows, encode_rows
from lakebed.table.files.adopt import AdoptedFile, check_columns, describe_file, read_footer
from lakebed.table.model.model import BucketChange, DataFile, TableSchema
from lakebed.table.model.types import fields_of_arrow
from lakebed.table.rows.rows import commit_changes
from lakebed.table.table import Table
from worlds.nasty import NASTY

D = decimal.Decimal


def schema_of(columns: pa.Schema, *, partition_keys: tuple[str, ...] = ()) -> TableSchema:
    """A table's schema of some columns."""
    fields = fields_of_arrow(columns)
    return TableSchema(0, fields, len(fields), partition_keys=partition_keys)


def written(rows: pa.Table, path: Path, **options: Any) -> pq.FileMetaData:
    """Rows as Arrow writes them; the footer."""
    pq.write_table(rows, path, **options)
    return pq.read_metadata(path)


def described(footer: pq.FileMetaData, schema: TableSchema, *, stats_mode: str = "full", **more: Any) -> DataFile:
    """The description of a file."""
    return describe_file(footer, AdoptedFile("f.parquet", 100, **more), schema=schema, stats_mode=stats_mode)


def bounds(file: DataFile, schema: TableSchema) -> dict[str, tuple[Any, Any, int | None]]:
    """Least value, greatest value and number of nulls by column."""
    types = [field.type for field in schema.fields]
    ends = [decode_rows(pa.array([row]), types) for row in (file.value_stats.min_values, file.value_stats.max_values)]
    assert file.value_stats.null_counts is not None
    return {
        field.name: (ends[0][i][0].as_py(), ends[1][i][0].as_py(), file.value_stats.null_counts[i])
        for i, field in enumerate(schema.fields)
    }


def test_bounds_of_plain_columns(tmp_path: Path) -> None:
    """Whole numbers, decimals, dates, times, texts and booleans have their exact bounds, over all row groups."""
    rows = pa.table(
        {
            "long": pa.array([3, -7, None, 2**63 - 1]),
            "tiny": pa.array([1, -128, 5, None], pa.int8()),
            "money": pa.array([D("-1.50"), D("2.25"), None, D("0.01")], pa.decimal128(10, 2)),
            "big": pa.array([D("-1.50"), D("2.25"), None, D(10**25)], pa.decimal128(30, 2)),
            "day": pa.array([-1, 0, None, 20000], pa.int32()).cast(pa.date32()),
            "clock": pa.array([1, 2, None, 3], pa.time32("ms")),
            "at": pa.array([-1, 5, None, 10**15], pa.timestamp("us")),
            "instant": pa.array([-1, 5, None, 10**15], pa.timestamp("us", tz="UTC")),
            "millis": pa.array([-1, 5, None, 10**12], pa.timestamp("ms")),
            "seconds": pa.array([-1, 5, None, 10**9], pa.timestamp("s")),
            "text": ["b", "ä", None, "a"],
            "flag": [False, True, None, True],
            "none": pa.array([None] * 4, pa.int64()),
        }
    )
    for integers in (True, False):
        footer = written(rows, tmp_path / "f", row_group_size=1, store_decimal_as_integer=integers)
        schema = schema_of(rows.schema)
        result = bounds(described(footer, schema), schema)
        for name in rows.column_names:
            values = [value for value in rows[name].to_pylist() if value is not None]
            expected = (min(values, default=None), max(values, default=None), 4 - len(values))
            assert result[name] == expected, name


@pytest.mark.parametrize("writer", ["arrow", "duckdb"])
def test_no_bound_is_wrong(tmp_path: Path, writer: str) -> None:
    """Every bound of nasty values holds for each of them, however they fall into row groups."""
    names = list(NASTY)
    length = max(len(column.values) for column in NASTY.values())
    rows = pa.table({name: NASTY[name].array((list(NASTY[name].values) * length)[:length]) for name in names})
    for start in range(0, length, 3):
        part = pa.concat_tables([rows.slice(start), rows.slice(0, start)])
        path = tmp_path / f"{start}.parquet"
        if writer == "arrow":
            pq.write_table(part, path, row_group_size=2, use_deprecated_int96_timestamps=start % 2 == 0)
        else:
            duckdb.sql(f"COPY part TO '{path}' (FORMAT parquet, ROW_GROUP_SIZE 2)")
        footer, stored = pq.read_metadata(path), pq.read_table(path)
        schema = schema_of(footer.schema.to_arrow_schema())
        for mode in ("full", "truncate(16)", "truncate(1)"):
            for name, (low, high, nulls) in bounds(described(footer, schema, stats_mode=mode), schema).items():
                values = stored[name].to_pylist()
                parts = [value for value in values if value is not None]
                assert nulls in (None, len(values) - len(parts))
                assert low is None or all(low <= value for value in parts), (name, mode)
                assert high is None or all(value <= high for value in parts), (name, mode)


def test_columns_without_bounds(tmp_path: Path) -> None:
    """Bytes, INT96, nested columns and floats of writers that leave NaN out have none."""
    rows = pa.table(
        {
            "double": [1.0, 2.0],
            "bytes": [b"a", None],
            "list": [[1], None],
            "nanos": pa.array([1, None], pa.timestamp("ns")),
        }
    )
    schema = schema_of(rows.schema)
    footer = written(rows, tmp_path / "f", use_deprecated_int96_timestamps=True)
    assert bounds(described(footer, schema), schema) == {
        "double": (None, None, 0),
        "bytes": (None, None, 1),
        "list": (None, None, None),
        "nanos": (None, None, None),
    }
    footer = written(rows.select(["double"]), tmp_path / "f", write_statistics=False)
    schema = schema_of(rows.select(["double"]).schema)
    assert bounds(described(footer, schema), schema) == {"double": (None, None, None)}


def test_an_unknown_writer_may_cut_texts(tmp_path: Path) -> None:
    """The greatest text of a writer that is not known to raise what it cuts is no bound; the least one is."""
    path = tmp_path / "f"
    written(pa.table({"text": ["b", "a"], "d": pa.array([D(1), D(2)], pa.decimal128(30, 0))}), path)
    body = path.read_bytes()
    arrow = b"parquet-cpp-arrow version"
    assert body.count(arrow) == 1
    path.write_bytes(body.replace(arrow, b"somebody elses writer ver"))
    footer = pq.read_metadata(path)
    schema = schema_of(footer.schema.to_arrow_schema())
    assert bounds(described(footer, schema), schema) == {"text": ("a", None, 0), "d": (None, None, 0)}


def of_java(path: Path, values: list[float], *, stated: float) -> pq.FileMetaData:
    """A file whose footer names the Java writer, with another value for each bound of 123456.789."""
    pq.write_table(pa.table({"x": values}), path, use_dictionary=False)
    body = path.read_bytes()
    start = len(body) - 8 - int.from_bytes(body[-8:-4], "little")
    footer, writer = body[start:], b"parquet-cpp-arrow version 26.0.1"
    if writer not in footer:  # another version of Arrow
        writer = footer[footer.index(b"parquet-cpp-arrow version ") :][: len(writer)]
    footer = footer.replace(writer, b"parquet-mr version 1.17.0 (build")
    path.write_bytes(body[:start] + footer.replace(struct.pack("<d", 123456.789), struct.pack("<d", stated)))
    return pq.read_metadata(path)


def test_floats_of_java(tmp_path: Path) -> None:
    """The Java writer states NaN as the greatest value: no bounds. A bound of zero includes both zeros."""
    schema = schema_of(pa.schema([("x", pa.float64())]))
    assert bounds(described(of_java(tmp_path / "f", [1.0, 2.0], stated=0), schema), schema)["x"] == (1.0, 2.0, 0)
    with_nan = of_java(tmp_path / "f", [-1.0, 123456.789], stated=math.nan)
    assert bounds(described(with_nan, schema), schema)["x"] == (None, None, 0)
    for zero in (0.0, -0.0):
        file = described(of_java(tmp_path / "f", [123456.789], stated=zero), schema)
        low, high, _ = bounds(file, schema)["x"]
        assert (math.copysign(1, low), math.copysign(1, high)) == (-1, 1)


def test_a_row_group_without_bounds(tmp_path: Path) -> None:
    """A row group whose bounds are unknown leaves the file without; one of nulls only does not."""
    long = "x" * 5000  # longer than Arrow's bounds
    schema = schema_of(pa.schema([("text", pa.string())]))
    for values, expected in (
        (["a", long, "b"], (None, None, 0)),
        (["a", None, "b"], ("a", "b", 1)),
        ([None, None, None], (None, None, 3)),
    ):
        footer = written(pa.table({"text": pa.array(values, pa.string())}), tmp_path / "f", row_group_size=1)
        assert bounds(described(footer, schema), schema)["text"] == expected


def test_modes_of_statistics(tmp_path: Path) -> None:
    """The option's modes mean what they mean for lakebed's own files."""
    rows = pa.table({"text": ["a" * 20, "b" * 20]})
    footer, schema = written(rows, tmp_path / "f"), schema_of(rows.schema)
    assert bounds(described(footer, schema, stats_mode="counts"), schema)["text"] == (None, None, 0)
    cut = bounds(described(footer, schema, stats_mode="truncate(3)"), schema)["text"]
    assert cut == ("aaa", "bbc", 0)
    assert described(footer, schema, stats_mode="none").value_stats_cols == ()


MISFITS: list[tuple[pa.Table, pa.Schema, str]] = [
    (pa.table({"a": pa.array([1], pa.int32())}), pa.schema([("a", pa.int64())]), "as int32, where the table has int64"),
    (pa.table({"a": pa.array([1], pa.uint8())}), pa.schema([("a", pa.int16())]), "as uint8"),
    (pa.table({"a": ["x"]}), pa.schema([("a", pa.binary())]), "as string"),
    (
        pa.table({"a": pa.array([1], pa.timestamp("us", tz="UTC"))}),
        pa.schema([("a", pa.timestamp("us"))]),
        "as timestamp[us, tz=UTC]",
    ),
    (
        pa.table({"a": pa.array([D(1)], pa.decimal128(9, 2))}),
        pa.schema([("a", pa.decimal128(9, 3))]),
        "as decimal128(9, 2)",
    ),
    (pa.table({"a": [1], "b": [1]}), pa.schema([("a", pa.int64())]), "has a column 'b', which the table lacks"),
    (
        pa.table({"b": [1]}),
        pa.schema([pa.field("a", pa.int64(), nullable=False), ("b", pa.int64())]),
        "lacks the column",
    ),
    (pa.table({"a": [None, 1]}), pa.schema([pa.field("a", pa.int64(), nullable=False)]), "may hold nulls in 'a'"),
    (
        pa.table({"a": [[None]]}, schema=pa.schema([("a", pa.list_(pa.int64()))])),
        pa.schema([("a", pa.list_(pa.field("element", pa.int64(), nullable=False)))]),
        "where the table has list",
    ),
    (
        pa.table({"a": [{"x": 1}]}),
        pa.schema([("a", pa.struct([("y", pa.int64())]))]),
        "where the table has struct",
    ),
]


@pytest.mark.parametrize(
    ("rows", "columns", "message"), MISFITS, ids=lambda value: value if isinstance(value, str) else ""
)
def test_what_does_not_fit_is_refused(tmp_path: Path, rows: pa.Table, columns: pa.Schema, message: str) -> None:
    """Another type, an unknown or missing column, nulls where there may be none: one sentence."""
    footer = written(rows, tmp_path / "f")
    with pytest.raises(InvalidRequest) as refused:
        check_columns(footer, schema_of(columns), file_name="f.parquet")
    assert message in str(refused.value)
    assert refused.value.kind == "file_misfit"


def test_missing_columns_are_null(tmp_path: Path) -> None:
    """A nullable column that the file lacks is null in all rows, which a filter may use."""
    rows = pa.table({"a": [1, 2]})
    schema = schema_of(pa.schema([("a", pa.int64()), ("b", pa.string())]))
    assert bounds(described(written(rows, tmp_path / "f"), schema), schema)["b"] == (None, None, 2)


def test_field_ids(tmp_path: Path) -> None:
    """Ids that a file states are compared when they should be the table's."""
    column = pa.field("a", pa.int64(), metadata={"PARQUET:field_id": "7"})
    footer = written(pa.table([[1]], schema=pa.schema([column])), tmp_path / "f")
    schema = schema_of(pa.schema([("a", pa.int64())]))
    check_columns(footer, schema, file_name="f")
    with pytest.raises(InvalidRequest, match="field id 7"):
        check_columns(footer, schema, file_name="f", same_ids=True)


def test_a_partition_is_proven(tmp_path: Path) -> None:
    """A file whose footer does not show the values of its partition is refused: pruning would lose its rows."""
    schema = schema_of(pa.schema([("p", pa.string()), ("v", pa.int64())]), partition_keys=("p",))
    (here,) = encode_rows([pa.array(["x"])], ["STRING"]).to_pylist()
    (null,) = encode_rows([pa.array([None], pa.string())], ["STRING"]).to_pylist()
    for values, partition, is_right in (
        (["x", "x"], here, True),
        (["x", "y"], here, False),
        (["x", None], here, False),
        (["x", "x"], null, False),
        ([None, None], null, True),
    ):
        rows = pa.table({"p": pa.array(values, pa.string()), "v": [1, 2]})
        footer = written(rows, tmp_path / "f")
        if is_right:
            assert described(footer, schema, partition=partition).row_count == 2
            continue
        with pytest.raises(InvalidRequest, match="is in the partition p = "):
            described(footer, schema, partition=partition)
    lacking = described(written(pa.table({"v": [1]}), tmp_path / "f"), schema, partition=here)
    assert (lacking.row_count, lacking.write_cols, lacking.value_stats_cols) == (1, ("v",), ("v",))
    whole = described(written(pa.table({"p": ["x"], "v": [1]}), tmp_path / "g"), schema, partition=here)
    assert (whole.write_cols, whole.value_stats_cols) == (None, None)


def test_tables_and_files_that_cannot(tmp_path: Path) -> None:
    """A table with a primary key takes no file over, and a file without rows is left out."""
    rows = pa.table({"a": [1]})
    footer, schema = written(rows, tmp_path / "f"), schema_of(rows.schema)
    keyed = TableSchema(0, schema.fields, 1, primary_keys=("a",))
    with pytest.raises(InvalidRequest, match="primary key"):
        described(footer, keyed)
    with pytest.raises(InvalidRequest, match="no rows"):
        described(written(rows.slice(0, 0), tmp_path / "f"), schema)


def test_an_adopted_file_is_read_and_pruned(tmp_path: Path) -> None:
    """A file put into a bucket's folder and committed: its rows are read, and its bounds leave it out."""
    rows = pa.table({"k": [1, 2, 3], "x": [1.0, math.nan, -0.0], "day": [datetime.date(2013, 1, 2)] * 3})
    store = open_store(tmp_path / "t", durable=False)
    table = Table.create(store, name="t", schema=rows.schema)
    for number in range(2):
        path = tmp_path / "t" / "bucket-0" / f"data-{number}.parquet"
        path.parent.mkdir(exist_ok=True)
        moved = rows.set_column(0, "k", pa.array([number * 10 + key for key in (1, 2, 3)]))
        pq.write_table(moved, path)
        size = path.stat().st_size
        footer = read_footer(store, f"bucket-0/{path.name}", size_bytes=size)
        place = AdoptedFile(path.name, size, first_sequence=number * 3)
        file = describe_file(footer, place, schema=table.schema, stats_mode="truncate(16)")
        commit_changes(table.context, [BucketChange(EMPTY_ROW, 0, -1, added=(file,))], kind="APPEND")
    assert sorted(table.scan().to_arrow()["k"].to_pylist()) == [1, 2, 3, 11, 12, 13]
    assert [len(table.scan(where=where).splits()[0].files) for where in ("k > 5", "day = '2013-01-02'")] == [1, 2]
    assert table.scan(where="k > 5").to_arrow().num_rows == 3
    assert table.scan(where="x = 0").to_arrow().num_rows == 2
    assert table.scan(where="k > 50").splits() == []
