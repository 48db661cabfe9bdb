"""The physical form of columns in data files; pyarrow, which decodes the bytes, is the judge."""

from __future__ import annotations

from decimal import Decimal
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import lakebed
from lakebed.objects import open_store
from lakebed.runtime import Environment
from lakebed.table.codec.file_encoding import ParquetSink
from lakebed.table.files.data_file import FileSettings, RollingWriter


def written(rows: pa.Table) -> pq.ParquetFile:
    """Rows as one file, opened again."""
    sink = ParquetSink(rows, no_dictionary=frozenset(), compression="zstd", compression_level=1)
    sink.write(rows)
    return pq.ParquetFile(pa.BufferReader(sink.finish()))


def physical(file: pq.ParquetFile) -> dict[str, str]:
    """Physical type of each leaf column by path."""
    columns = (file.schema.column(index) for index in range(len(file.schema.names)))
    return {column.path: column.physical_type for column in columns}


def dictionaries(file: pq.ParquetFile) -> dict[str, bool]:
    """Whether each leaf column has a dictionary in the first row group."""
    group = file.metadata.row_group(0)
    columns = (group.column(index) for index in range(group.num_columns))
    return {column.path_in_schema: column.has_dictionary_page for column in columns}


@pytest.mark.parametrize(
    ("digits", "stored"),
    [(1, "INT32"), (9, "INT32"), (10, "INT64"), (18, "INT64"), (19, "FIXED_LEN_BYTE_ARRAY")],
)
def test_decimals_are_stored_by_their_digits(digits: int, stored: str) -> None:
    """DECIMAL is INT32 up to 9 digits, INT64 up to 18, bytes above; only the last has no dictionary."""
    values = pa.array([Decimal(9), None, Decimal(-9)] * 50, pa.decimal128(digits, 0))
    file = written(pa.table({"x": values}))
    assert physical(file) == {"x": stored}
    assert dictionaries(file) == {"x": digits <= 18}
    assert file.read()["x"].combine_chunks().equals(values)


def timestamps(unit: str, values: list[int | None], zone: str | None = None) -> pa.Array:
    """Timestamps of raw ticks."""
    return pa.array(values, pa.int64()).cast(pa.timestamp(unit, zone))


def test_nanoseconds_are_int96_and_coarser_timestamps_stay_int64() -> None:
    """A file of every unit, nested too: nanoseconds INT96, the others INT64 with their logical types."""
    struct = pa.struct([("fine", pa.timestamp("ns")), ("n", pa.int32()), ("coarse", pa.timestamp("us", "UTC"))])
    rows = pa.table(
        {
            "s": timestamps("s", [-1, 253_402_300_799, None]),
            "ms": timestamps("ms", [-1, 253_402_300_799_999, None]),
            "us": timestamps("us", [-62_135_596_800_000_000, 1, None]),
            "msz": timestamps("ms", [-1, 1, None], "UTC"),
            "usz": timestamps("us", [-1, 253_402_300_799_999_999, None], "UTC"),
            "ns": timestamps("ns", [-1, 4_102_444_799_999_999_999, None]),
            "l": pa.array([[1], [None, 2], None], pa.list_(pa.int64())).cast(pa.list_(pa.timestamp("ms"))),
            "m": pa.array([[("k", 5)], [], None], pa.map_(pa.string(), pa.int64())).cast(
                pa.map_(pa.string(), pa.timestamp("us"))
            ),
            "r": pa.array([{"fine": 7, "n": 1, "coarse": 8}, None, {"fine": None, "n": 2, "coarse": None}], struct),
        }
    )
    file = written(rows)
    stored = physical(file)
    assert {path for path, kind in stored.items() if kind == "INT96"} == {"ns", "r.fine"}
    got = file.read()
    # Arrow's reader gives seconds as milliseconds, and INT96 as nanoseconds without a zone.
    assert got.cast(rows.schema).equals(rows)
    assert got.schema.field("us").type == pa.timestamp("us")
    assert got.schema.field("usz").type == pa.timestamp("us", "UTC")
    assert got.schema.field("msz").type == pa.timestamp("ms", "UTC")
    assert got.schema.field("l").type.value_type == pa.timestamp("ms")
    assert file.schema.column(3).converted_type == "TIMESTAMP_MILLIS"


def test_many_columns_beside_nanoseconds() -> None:
    """The footer of a wide file, whose schema has a long list head and long field numbers, is still read."""
    rows = pa.table(
        {f"c{i:03}": timestamps("us", [i, None]) for i in range(300)}
        | {"z": timestamps("ns", [1, 2])}
        | {"t": pa.array(["x", "y"]), "d": pa.array([1.5, None])}
    )
    assert written(rows).read().equals(rows)


def test_files_without_nanoseconds_keep_their_arrow_schema() -> None:
    """Only files that mix timestamps go another way."""
    rows = pa.table({"s": timestamps("s", [1]), "l": pa.array(["x"], pa.large_string())})
    assert written(rows).read().schema.types == [pa.timestamp("ms"), pa.large_string()]


@pytest.mark.parametrize("kind", [pa.float32(), pa.float64()])
@pytest.mark.parametrize("zero", [0.0, -0.0])
def test_no_dictionary_where_a_float_is_zero(kind: pa.DataType, zero: float) -> None:
    """Java looks a zero up by its sign."""
    assert dictionaries(written(pa.table({"x": pa.array([1.5, 2.5] * 50, kind)}))) == {"x": True}
    assert dictionaries(written(pa.table({"x": pa.array([1.5, zero] * 50, kind)}))) == {"x": False}


def test_a_zero_in_a_later_row_group_starts_a_new_file(tmp_path: Path) -> None:
    """The first row group chooses a file's dictionaries; rows that they do not suit go to the next file."""
    schema = pa.schema([("x", pa.float64())])
    table = lakebed.open(tmp_path / "lake").create_table("t", schema)
    writer = RollingWriter(
        open_store(str(tmp_path / "lake" / "default.db" / "t")),
        folder="bucket-0",
        schema=table.schema,
        settings=FileSettings(row_group_rows=100),
        environment=Environment(),
    )
    writer.write(pa.table({"x": [1.5] * 100 + [-0.0] * 100 + [1.5] * 100}, schema))
    files = writer.close()
    assert [file.row_count for file in files] == [100, 200]
    opened = [pq.ParquetFile(tmp_path / "lake" / "default.db" / "t" / "bucket-0" / file.file_name) for file in files]
    assert [dictionaries(file)["x"] for file in opened] == [True, False]
