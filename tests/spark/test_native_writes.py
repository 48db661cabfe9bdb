"""Files that tasks of the JVM write are those that lakebed would have written: rows, places, bounds, buckets."""

from __future__ import annotations

import datetime as dt
import random
from collections.abc import Callable, Iterator
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

import lakebed.spark
from lakebed.errors import InvalidRequest
from lakebed.fsck.model import CheckReport, Findings
from lakebed.fsck.table import check_table
from lakebed.objects import open_store
from lakebed.spark.dataframe.reading import local_frame
from lakebed.table.codec.binary_row import decode_rows
from lakebed.table.files.bucket import bucket_of
from lakebed.table.iceberg.file_ids import FileIds, ids_of_file
from lakebed.table.model.model import DataFile
from lakebed.table.read.scan import scan_snapshot
from lakebed.table.table import Table
from worlds.nasty import NASTY, random_predicate
from worlds.waiting import wait_until

MakeTable = Callable[..., Table]
SortedRows = Callable[[Any], list[tuple[Any, ...]]]

WITHOUT = ("nanos", "millis")
"""Columns that Spark does not write in the table's unit."""


def nasty_rows(count: int = 60) -> pa.Table:
    """Nasty values of every type that Spark writes, each column at a pace of its own."""
    columns = {}
    for name, column in NASTY.items():
        if name not in WITHOUT:
            values = list(column.values)
            columns[name] = column.array([values[(row * 7 + len(name)) % len(values)] for row in range(count)])
    micros = pa.array([None if row % 9 == 0 else row * 1_234_567_891 - 10**10 for row in range(count)], pa.int64())
    columns["at"] = micros.cast(pa.timestamp("us"))
    columns["instant"] = micros.cast(pa.timestamp("us", tz="UTC"))
    columns["day"] = pa.array([None if row % 7 == 0 else row * 1000 - 30_000 for row in range(count)], pa.int32()).cast(
        pa.date32()
    )
    columns["big"] = pa.array([None if row % 5 == 0 else Decimal(row - 30) * 10**20 for row in range(count)],
        pa.decimal128(30, 2))  # fmt: skip
    member = pa.struct([pa.field("x", pa.int32()), pa.field("y", pa.list_(pa.field("element", pa.string())))])
    deep = [None if row % 4 == 0 else {"x": row, "y": [None, "y"]} for row in range(count)]
    columns["deep"] = pa.array(deep, member)
    columns["pairs"] = pa.array([None if row % 3 == 0 else [("k", row), ("l", None)] for row in range(count)],
        pa.map_(pa.string(), pa.int64()))  # fmt: skip
    return pa.table(columns)


def live_files(table: Table) -> list[DataFile]:
    """The files of the newest version."""
    return [file for split in scan_snapshot(table.context, table.latest()).splits() for file in split.files]


def places(table: Table) -> list[Path]:
    """Every data file below the table's folder, whether a version has it or not."""
    return sorted(Path(table.url.removeprefix("file://")).rglob("bucket-*/*.parquet"))


def written_by(table: Table) -> set[str]:
    """The first words of who encoded the files."""
    return {(pq.read_metadata(path).created_by or "").split(" ")[0] for path in places(table)}


@pytest.fixture
def by_lakebed(monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    """From its call on, rows cross into Python."""
    return lambda: monkeypatch.setattr("lakebed.spark.dataframe.writing.write_files", lambda *_, **__: None)


def bounds(table: Table, file: DataFile) -> Iterator[tuple[str, Any, Any, Any]]:
    """Name, least value, greatest value and number of nulls of each column, as a manifest states them."""
    types = [field.type for field in table.schema.fields]
    low, high = (
        decode_rows(pa.array([row]), types) for row in (file.value_stats.min_values, file.value_stats.max_values)
    )
    for i, field in enumerate(table.schema.fields):
        yield field.name, low[i][0].as_py(), high[i][0].as_py(), file.value_stats.null_counts[i]


def found_by_the_deep_check(table: Table) -> list[str]:
    """The sentences of its errors."""
    report = CheckReport(table.url, deep=True)
    check_table(Table.open(table.store, name="t"), Findings(report, store="t"))
    return [finding.sentence for finding in report.findings if finding.severity == "error"]


def damage(path: Path, column: str) -> None:
    """Overwrite bytes of a column's last page."""
    group = pq.read_metadata(path).row_group(0)
    (chunk,) = [item for item in map(group.column, range(group.num_columns)) if item.path_in_schema == column]
    start = chunk.dictionary_page_offset or chunk.data_page_offset
    body = bytearray(path.read_bytes())
    end = start + chunk.total_compressed_size
    body[end - 12 : end] = b"\xff" * 12
    path.write_bytes(body)


def test_the_same_table_either_way(
    spark: SparkSession, make_table: MakeTable, sorted_rows: SortedRows, by_lakebed: Callable[[], None]
) -> None:
    """Rows, columns of files, bounds and pruning; what a footer does not prove is no bound."""
    rows = nasty_rows()
    native, mine = make_table(rows.schema, name="native"), make_table(rows.schema, name="own")
    frame = local_frame(spark, rows).repartition(2).persist()
    lakebed.spark.write(frame, native)
    by_lakebed()
    lakebed.spark.write(frame, mine)
    assert written_by(native) == {"parquet-mr"}
    assert written_by(mine) == {"parquet-cpp-arrow"}
    assert found_by_the_deep_check(native) == []
    assert repr(sorted_rows(native.read())) == repr(sorted_rows(mine.read()))  # NaN is not equal to itself
    frame.unpersist()
    stored = [pq.read_schema(places(table)[0]) for table in (native, mine)]
    for ours, theirs in zip(*stored, strict=True):
        assert (ours.name, ours.nullable, ours.metadata) == (theirs.name, theirs.nullable, theirs.metadata)
        assert ours.type == theirs.type or pa.types.is_nested(ours.type) or pa.types.is_decimal(ours.type), ours.name
    for table in (native, mine):  # every part of nested columns has its id
        columns = pq.read_metadata(places(table)[0]).schema.to_arrow_schema()
        assert ids_of_file(columns, table.schema) == FileIds()
    pairs = {}
    for file in live_files(mine):
        stated = list(bounds(mine, file))
        pairs[next(repr(item) for item in stated if item[0] == "at")] = stated
    for file in live_files(native):
        stated = list(bounds(native, file))
        theirs = pairs[next(repr(item) for item in stated if item[0] == "at")]
        for ours, other in zip(stated, theirs, strict=True):
            assert repr(ours) == repr(other) or ours[0] in ("raw", "big", "deep", "pairs"), ours[0]
            assert ours[1] is None or ours[1] == other[1]
    rng = random.Random(5)
    columns = [name for name in NASTY if name not in (*WITHOUT, "raw")]
    for _ in range(30):
        where = random_predicate(rng, columns=columns)
        scans = [table.scan(where=where) for table in (native, mine)]
        assert len({scan.to_arrow().num_rows for scan in scans}) == 1, where
        assert len({sum(len(split.files) for split in scan.splits()) for scan in scans}) == 1, where
    (path, *_) = places(native)
    damage(path, "deep.y.list.element")
    assert [path.name in sentence for sentence in found_by_the_deep_check(native)] == [True]


def test_partitions_have_the_folders_that_lakebed_names(
    spark: SparkSession, make_table: MakeTable, by_lakebed: Callable[[], None]
) -> None:
    """Characters of paths, blanks, nulls, negative numbers, days and moments; with both ways to print them."""
    texts = [None, "", "  ", "a/b", "..", 'q"=%{}[]^:*?\\#', "\x01\x7f", "grüß \U0001f600", "a'b", " lead"]
    moments = [None, dt.datetime(1969, 12, 31, 23, 59, 59, 999999), dt.datetime(2024, 1, 1), dt.datetime(1, 1, 1, 0, 1)]
    rows = pa.table(
        {
            "v": pa.array(range(40), pa.int64()),
            "s": pa.array([texts[row % 10] for row in range(40)]),
            "at": pa.array([moments[row % 4] for row in range(40)], pa.timestamp("us")),
            "day": pa.array([None if row % 3 == 0 else dt.date(1960 + row, 2, 28) for row in range(40)], pa.date32()),
            "n": pa.array([Decimal(row - 20) / 100 for row in range(40)], pa.decimal128(20, 2)),
            "flag": pa.array([row % 2 == 0 for row in range(40)]),
        }
    )
    frame = local_frame(spark, rows).persist()
    keys = ["s", "at", "day", "n", "flag"]
    tables = {}
    for legacy in ("true", "false"):
        for name in ("native", "own"):
            table = make_table(
                rows.schema, partition_keys=keys, options={"partition.legacy-name": legacy}, name=f"{name}-{legacy}"
            )
            tables[name, legacy] = table
    for (name, _), table in sorted(tables.items()):
        if name == "own":
            by_lakebed()
        lakebed.spark.write(frame, table)
    frame.unpersist()
    for legacy in ("true", "false"):
        ours, theirs = tables["native", legacy], tables["own", legacy]
        assert written_by(ours) == {"parquet-mr"}
        roots = [Path(table.url.removeprefix("file://")) for table in (ours, theirs)]
        folders = [{str(path.parent.relative_to(root)) for path in places(table)}
            for table, root in zip((ours, theirs), roots, strict=True)]  # fmt: skip
        assert folders[0] == folders[1]
        assert len(folders[0]) > 30
        assert ours.read().num_rows == 40


def test_buckets_of_every_type_of_key(spark: SparkSession, make_table: MakeTable) -> None:
    """Every file has rows of its bucket alone, by lakebed's own function; numbers continue after those before."""
    rows = nasty_rows(40).drop_columns(["deep", "pairs"])
    frame = local_frame(spark, rows).persist()
    for keys in (["text", "raw", "big", "at", "flag"], *([name] for name in rows.column_names)):
        options = {"bucket": "5", "bucket-key": ",".join(keys)}
        table = make_table(rows.schema, options=options, name="-".join(keys))
        for _ in range(2 if len(keys) > 1 else 1):
            lakebed.spark.write(frame, table)
        assert written_by(table) == {"parquet-mr"}
        for split in scan_snapshot(table.context, table.latest()).splits():
            ranges = sorted((file.min_sequence_number, file.max_sequence_number) for file in split.files)
            assert [low for low, _ in ranges] == [0, *(high + 1 for _, high in ranges[:-1])]
            for file in split.files:
                stored = pq.ParquetFile(Path(table.url.removeprefix("file://")) / split.folder / file.file_name).read()
                types = [table.schema.select_fields(keys)[i].type for i in range(len(keys))]
                bucket = bucket_of([stored[key] for key in keys], types, bucket_count=5)
                assert set(bucket.tolist()) == {split.bucket}, keys
        assert table.read().num_rows == 40 * (2 if len(keys) > 1 else 1)
    frame.unpersist()


def test_mistakes_are_those_of_lakebed_and_leave_no_file(spark: SparkSession, make_table: MakeTable) -> None:
    """A null, another partition, a partition without a folder, a failing row, another number of buckets."""
    schema = pa.schema([pa.field("id", pa.int64(), nullable=False), ("p", pa.int32()), ("day", pa.date32())])
    table = make_table(schema, partition_keys=["p", "day"])
    rows = spark.range(0, 20, 1, 2).selectExpr("id", "CAST(1 AS INT) AS p", "DATE'2024-01-01' AS day")
    with pytest.raises(InvalidRequest, match="'id' is BIGINT NOT NULL, but null in some of the rows"):
        lakebed.spark.write(rows.selectExpr("nullif(id, 15) AS id", "p", "day"), table)
    with pytest.raises(InvalidRequest, match="but some rows have another 'p'"):
        lakebed.spark.write(rows, table, mode="overwrite", partition={"p": 2})
    with pytest.raises(InvalidRequest, match="outside the years 1 to 9999"):
        lakebed.spark.write(rows.selectExpr("id", "p", "date_add(DATE'9999-12-31', 1) AS day"), table)
    assert places(table) == []
    with pytest.raises(PySparkException, match="no"):
        lakebed.spark.write(rows.selectExpr("if(id = 19, raise_error('no'), id) AS id", "p", "day"), table)
    assert table.latest() is None

    def left() -> list[Path]:
        table.collect(grace_ms=0)
        return places(table)

    # A task that ended after its job had failed leaves files, which no version references.
    wait_until(lambda: left() == [])
    buckets = make_table(schema, options={"bucket": "2", "bucket-key": "id"}, name="b")
    lakebed.spark.write(rows, buckets)
    files = places(buckets)
    stored = Path(buckets.url.removeprefix("file://")) / "schema" / "schema-0"
    stored.write_text(stored.read_text().replace('"bucket": "2"', '"bucket": "3"'))  # as another client might
    again = Table.open(open_store(buckets.url, durable=False), name="b")
    with pytest.raises(InvalidRequest, match="was written with 2 buckets"):
        lakebed.spark.write(rows, again)
    assert places(buckets) == files
    lakebed.spark.write(rows, again, mode="overwrite")
    assert again.read().num_rows == 20


def test_files_have_the_size_and_the_columns_that_are_asked_for(spark: SparkSession, make_table: MakeTable) -> None:
    """A new file at the target size; no setting of Spark reaches it; narrow types are widened."""
    options = {"target-file-size": "200 kb", "file.block-size": "100 kb", "file.compression": "lz4"}
    schema = pa.schema(
        [("id", pa.int64()), ("day", pa.date32()), ("at", pa.timestamp("us", tz="UTC")), ("x", pa.float64())]
    )
    table = make_table(schema, options=options)
    changed = {"spark.sql.parquet.datetimeRebaseModeInWrite": "LEGACY", "spark.sql.parquet.compression.codec": "gzip"}
    for name, value in changed.items():
        spark.conf.set(name, value)
    try:
        columns = "CAST(id AS INT) AS id", "DATE'1500-03-01' AS day", "TIMESTAMP'1500-03-01 00:00:01' AS at"
        lakebed.spark.write(spark.range(0, 200_000, 1, 1).selectExpr(*columns, "rand() AS x"), table)
    finally:
        for name in changed:
            spark.conf.unset(name)
    sizes = [path.stat().st_size for path in places(table)]
    assert len(sizes) > 3
    assert max(sizes) < 600_000
    footer = pq.read_metadata(places(table)[0])
    assert footer.row_group(0).column(0).compression == "LZ4"
    assert footer.row_group(0).column(3).encodings.count("RLE_DICTIONARY") == 0
    row = table.scan(where="id = 7").to_arrow().to_pylist()[0]
    assert row["day"] == dt.date(1500, 3, 1)
    assert row["at"] == dt.datetime(1500, 3, 1, 0, 0, 1, tzinfo=dt.UTC)


@pytest.mark.parametrize(
    ("kind", "options"),
    [
        (pa.timestamp("ms"), {}),
        (pa.int64(), {"bucket": "2", "bucket-key": "x", "bucket-function.type": "mod"}),
        (pa.int64(), {"file.compression": "brotli"}),
    ],
)
def test_other_tables_are_lakebed_s(
    spark: SparkSession, make_table: MakeTable, kind: pa.DataType, options: dict[str, str]
) -> None:
    """Types, functions and codecs that Spark's writer does not have."""
    table = make_table(pa.schema([("x", kind)]), options=options)
    lakebed.spark.write(spark.createDataFrame([], "x bigint" if kind == pa.int64() else "x timestamp_ntz"), table)
    column = "id AS x" if kind == pa.int64() else "TIMESTAMP_NTZ'2024-01-01 00:00:00' AS x"
    lakebed.spark.write(spark.range(3).selectExpr(column), table)
    assert written_by(table) == {"parquet-cpp-arrow"}
    assert table.read().num_rows == 3
