"""Folders of Parquet files become tables: DuckDB writes them and says what their rows are."""

from __future__ import annotations

import datetime
import hashlib
import random
import threading
import uuid
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import lakebed
from lakebed.errors import AlreadyExists, Conflict, InvalidRequest, LakebedError, NotFound, Unavailable
from lakebed.fsck.check import check_lake
from lakebed.lake.imports import import_table
from lakebed.lake.lake import Lake
from lakebed.objects.open import open_store
from lakebed.objects.port import ObjectStore
from lakebed.table.exports import ExportOptions, export_table
from lakebed.table.imports import ImportOptions, ImportReport
from lakebed.table.imports.take_over import carry, copy_object
from lakebed.table.model.model import BucketChange, DataFile, Snapshot
from lakebed.table.table import Table
from lakebed.testing.wrapper import Call, StoreWrapper

R = TypeVar("R")

IN_PLACE = ImportOptions(in_place=True)


@pytest.fixture
def lake(tmp_path: Path) -> Lake:
    """An empty lake."""
    return lakebed.open(tmp_path / "lake")


@pytest.fixture
def hive(tmp_path: Path) -> Path:
    """A thousand rows in folders by a number, a day and a text that is null or has characters to escape."""
    folder = tmp_path / "hive"
    duckdb.sql(
        "COPY (SELECT i AS id, 'n' || i AS name, CASE WHEN i % 7 = 0 THEN NULL WHEN i % 5 = 0 THEN 'nan'::DOUBLE "
        "ELSE i / 4.0 END AS x, {'a': i, 'b': [i]} AS s, i % 3 AS k, DATE '2020-01-01' + (i % 2)::INT AS d, "
        "CASE i % 3 WHEN 0 THEN NULL WHEN 1 THEN 'a/b=ü' ELSE 'c' END AS t "
        f"FROM range(1000) r(i)) TO '{folder}' (FORMAT parquet, PARTITION_BY (k, d, t))"
    )
    return folder


@pytest.fixture
def few(tmp_path: Path) -> Path:
    """A row in each of two folders, for imports that are made hundreds of times."""
    folder = tmp_path / "few"
    duckdb.sql(f"COPY (SELECT i AS id, i AS k FROM range(2) r(i)) TO '{folder}' (FORMAT parquet, PARTITION_BY (k))")
    return folder


def imported(
    lake: Lake, source: Path, name: str = "t", options: ImportOptions | None = None, **more: Any
) -> ImportReport:
    """Import a folder."""
    return import_table(lake, name, str(source), format="parquet", options=options, **more)


def sorted_rows(rows: pa.Table) -> list[str]:
    """Rows that compare equal when their values do; NaN equals itself."""
    return sorted(map(repr, rows.to_pylist()))


def hashes(folder: Path) -> dict[str, str]:
    """Every file below a folder."""
    return {
        str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }


def read_by_duckdb(folder: Path, table: Table, where: str = "true") -> pa.Table:
    """The same rows by DuckDB, with the table's columns."""
    types = "{'k': INT, 'd': DATE, 't': VARCHAR}"
    files = f"'{folder}/**/*.parquet', hive_partitioning = true, hive_types = {types}"
    rows = duckdb.sql(f"SELECT * FROM read_parquet({files}) WHERE {where}")
    return rows.to_arrow_table().select([field.name for field in table.schema.fields])


@pytest.mark.parametrize("options", [ImportOptions(), IN_PLACE], ids=["copied", "in-place"])
def test_partitions_by_folders(lake: Lake, hive: Path, options: ImportOptions) -> None:
    """Partition columns come from the folders; rows and pruning are DuckDB's, and no file is rewritten."""
    report = imported(lake, hive, options=options)
    table = lake.table("t")
    assert (report.row_count, report.rewritten_count) == (1000, 0)
    keys = [(partition_field.name, partition_field.type) for partition_field in table.schema.partition_fields]
    assert keys == [("k", "INT"), ("d", "DATE"), ("t", "STRING")]
    assert sorted_rows(table.read()) == sorted_rows(read_by_duckdb(hive, table))
    for where in ("k = 1 AND id < 500", "d = '2020-01-02'", "t IS NULL", "t = 'a/b=ü' AND k <> 1", "x > 9 AND x < 99"):
        assert sorted_rows(table.read(where=where)) == sorted_rows(read_by_duckdb(hive, table, where)), where
    assert {split.partition_values["k"] for split in table.scan(where="k = 1").splits()} == {1}
    if not options.in_place:
        copies = {
            item for path, item in hashes(Path(table.url.removeprefix("file://"))).items() if path.endswith(".parquet")
        }
        assert copies == set(hashes(hive).values())
    assert check_lake(lake, deep=True).error_count == 0


def test_in_place_files_are_never_deleted(lake: Lake, hive: Path) -> None:
    """Compaction, expiry, orphans, rollback and the drop of the table leave every file of its owner as it was."""
    before = hashes(hive)
    imported(lake, hive, options=IN_PLACE)
    table = lake.table("t")
    assert not list(Path(table.url.removeprefix("file://")).rglob("*.parquet"))
    table.overwrite(table.read(where="k = 1"))
    table.rollback_to(1)
    expected = sorted_rows(table.read())
    table.compact(full=True)
    table.expire(retain_max=1, retain_min=1)
    table.collect(grace_ms=0)
    assert sorted_rows(table.read()) == expected
    assert hashes(hive) == before
    lake.drop_table("t")
    lake.collect(grace_ms=0)
    assert hashes(hive) == before


@pytest.mark.parametrize("options", [ImportOptions(), IN_PLACE], ids=["copied", "in-place"])
def test_a_full_compaction_makes_them_the_tables_own(lake: Lake, hive: Path, options: ImportOptions) -> None:
    """It writes the partition columns and moves files into the table, once: then readers by name find all columns."""
    imported(lake, hive, options=options)
    table = lake.table("t")
    expected = sorted_rows(table.read())
    assert table.compact(full=True).snapshot is not None
    assert sorted_rows(table.read()) == expected
    files = [file for split in table.scan().splits() for file in split.files]
    assert {(file.external_path, file.write_cols) for file in files} == {(None, None)}
    folder = Path(table.url.removeprefix("file://"))
    for path in (next(folder.rglob(file.file_name)) for file in files):
        assert pq.read_schema(path).names == table.arrow_schema.names
    assert table.compact(full=True).snapshot is None


def test_in_place_files_survive_a_refused_commit(lake: Lake, hive: Path) -> None:
    """What an import discards does not include the files of their owner; copies go, and a created table too."""
    before = hashes(hive)

    def stale(table: Table, plan: Any, progress: Any) -> list[BucketChange]:
        """Changes of which one deletes a file that is not there: the commit is refused."""
        changes = carry(table, plan, progress)
        gone: DataFile = changes[0].added[0]
        return [*changes, BucketChange(changes[0].partition, 0, -1, deleted=(replace(gone, file_name="gone.parquet"),))]

    for options in (IN_PLACE, ImportOptions()):
        with pytest.raises(Conflict):
            imported(lake, hive, options=options, carrier=stale)
        assert not lake.has_table("t")
        assert not list(Path(lake.url.removeprefix("file://")).rglob("*.parquet"))
    assert hashes(hive) == before


@pytest.mark.parametrize(
    ("other", "says"),
    [
        (pa.table({"a": ["x"]}), "'a' as string, where the table has int64"),
        (pa.table({"a": [1], "b": [1]}), "has a column 'b', which the table lacks"),
        (pa.table({"a": pa.array([1], pa.int32())}), "'a' as int32, where the table has int64"),
    ],
    ids=["type", "column", "width"],
)
def test_a_file_that_differs(lake: Lake, tmp_path: Path, other: pa.Table, says: str) -> None:
    """One sentence names the file and the column; nothing is left. Rewriting converts what is lossless."""
    folder = tmp_path / "source"
    folder.mkdir()
    pq.write_table(pa.table({"a": [1, 2]}), folder / "1.parquet")
    pq.write_table(other, folder / "2.parquet")
    with pytest.raises(InvalidRequest, match=r"^The file '2\.parquet' has [^.]*") as refused:
        imported(lake, folder)
    assert says in refused.value.message
    assert lake.ls() == []
    if other.schema.field("a").type == pa.int32():
        report = imported(lake, folder, options=ImportOptions(rewrite=True))
        assert (report.taken_count, report.rewritten_count) == (1, 1)
        assert sorted(lake.table("t").read()["a"].to_pylist()) == [1, 1, 2]
    else:
        with pytest.raises(InvalidRequest, match=r"2\.parquet"):
            imported(lake, folder, options=ImportOptions(rewrite=True))
        assert lake.ls() == []


@pytest.mark.parametrize("nested", [False, True])
@pytest.mark.parametrize("rewrite", [False, True])
def test_instants_beyond_nanoseconds_are_not_others(lake: Lake, tmp_path: Path, rewrite: bool, nested: bool) -> None:
    """INT96 timestamps that DuckDB reads as 9999-12-31 are refused, not read as 1816; those of 1678 to 2261 come."""

    def put(name: str, *moments: datetime.datetime | None) -> list[Any]:
        at = pa.array(moments, pa.timestamp("us"))
        at = pa.StructArray.from_arrays([at], ["inner"]) if nested else at
        (tmp_path / name).mkdir()
        file = tmp_path / name / "part.parquet"
        pq.write_table(pa.table({"moment": at}), file, use_deprecated_int96_timestamps=True)
        return [row[0] for row in duckdb.sql(f"SELECT moment FROM '{file}'").fetchall()]

    options = ImportOptions(rewrite=rewrite)
    for far in (datetime.datetime(9999, 12, 31), datetime.datetime(1500, 3, 1)):
        moments = put(f"far{far.year}", datetime.datetime(2024, 1, 1), None, far)
        assert far in [value["inner"] if nested else value for value in moments if value is not None]
        with pytest.raises(InvalidRequest, match="before 1677 or after 2262") as refused:
            import_table(lake, "far", str(tmp_path / f"far{far.year}"), format="parquet", options=options)
        assert refused.value.kind == "value_out_of_range"
        keyed = lake.create_table(
            f"keyed{far.year}", pa.schema([("id", pa.int64()), ("moment", pa.timestamp("us"))]), primary_keys="id"
        )
        with pytest.raises(InvalidRequest, match="before 1677 or after 2262"):
            import_table(lake, keyed.name, str(tmp_path / f"far{far.year}"), format="parquet", options=options)
    assert not lake.has_table("far")
    near = put("near", datetime.datetime(1678, 1, 1), None, datetime.datetime(2261, 12, 31))
    import_table(lake, "near", str(tmp_path / "near"), format="parquet", options=options)
    imported = lake.table("near").to_duckdb("near").sql("SELECT moment FROM near").fetchall()
    assert imported == [(value,) for value in near]


def test_a_dry_run_writes_nothing(lake: Lake, hive: Path) -> None:
    """A dry run reports files and rows as the import does, and creates no table."""
    root = Path(lake.url.removeprefix("file://"))
    before = hashes(root)
    dry = imported(lake, hive, options=ImportOptions(dry_run=True))
    assert hashes(root) == before
    real = imported(lake, hive)
    assert (dry.row_count, dry.taken_count, dry.size_bytes) == (real.row_count, real.taken_count, real.size_bytes)
    assert dry.dry_run
    assert dry.snapshot is None


def test_append_and_keys(lake: Lake, tmp_path: Path) -> None:
    """A table with rows is refused unless asked; with keys or buckets, rows are written by the table's rules."""
    folder = tmp_path / "source"
    folder.mkdir()
    pq.write_table(pa.table({"id": [1, 2], "v": ["a", "b"]}), folder / "1.parquet")
    schema = pa.schema([pa.field("id", pa.int64(), nullable=False), ("v", pa.string())])
    lake.create_table("keyed", schema, primary_keys=["id"]).upsert(pa.table({"id": [2, 3], "v": ["old", "c"]}))
    lake.create_table("buckets", schema.set(0, pa.field("id", pa.int64())), options={"bucket": "2", "bucket-key": "id"})
    with pytest.raises(AlreadyExists, match="append"):
        imported(lake, folder, "keyed")
    report = imported(lake, folder, "keyed", ImportOptions(append=True))
    assert (report.taken_count, report.rewritten_count) == (0, 1)
    assert sorted_rows(lake.table("keyed").read()) == sorted_rows(pa.table({"id": [1, 2, 3], "v": ["a", "b", "c"]}))
    imported(lake, folder, "buckets")
    assert lake.table("buckets").read(where="id = 2")["v"].to_pylist() == ["b"]
    imported(lake, folder)
    imported(lake, folder, options=ImportOptions(append=True))
    assert lake.table("t").read().num_rows == 4
    lake.create_table("by_v", pa.schema([("id", pa.int64()), ("v", pa.string())]), partition_keys=["v"])
    with pytest.raises(InvalidRequest, match=r"1\.parquet' is not in a partition of the column 'v'"):
        imported(lake, folder, "by_v")
    imported(lake, folder, "by_v", ImportOptions(rewrite=True))
    assert lake.table("by_v").scan(where="v = 'a'").count() == 1


def test_what_is_refused_in_place(lake: Lake, tmp_path: Path) -> None:
    """Files that a table could come to own, that others cannot read, or that are there already."""
    rows = pa.table({"a": [1]})
    for path in (
        "owned/bucket-0/x.parquet",
        "hashed/0101/1100/0011/10010110/x.parquet",
        "named/x.parq",
        "once/x.parquet",
    ):
        (tmp_path / path).parent.mkdir(parents=True)
        pq.write_table(rows, tmp_path / path)
    (tmp_path / "twice" / "a").mkdir(parents=True)
    for folder in ("twice", "twice/a"):
        pq.write_table(rows, tmp_path / folder / "x.parquet")
    for folder, says in (
        ("owned", "bucket"),
        ("hashed", "bucket"),
        ("named", "end in .parquet"),
        ("twice", "of that name"),
    ):
        with pytest.raises(InvalidRequest, match=f"cannot be registered in place: .*{says}"):
            imported(lake, tmp_path / folder, folder, IN_PLACE)
        assert not lake.has_table(folder)
        imported(lake, tmp_path / folder, folder)
    imported(lake, tmp_path / "once", options=IN_PLACE)
    with pytest.raises(InvalidRequest, match="of that name"):
        imported(lake, tmp_path / "once", options=ImportOptions(in_place=True, append=True))
    assert lake.table("t").read().num_rows == 1


def test_what_is_no_folder_of_parquet(lake: Lake, tmp_path: Path) -> None:
    """Tables of other formats, other files, mixed partitions and an empty folder are refused, each with a sentence."""
    for folder, path, says in (
        ("delta", "_delta_log/0.json", "format delta"),
        ("iceberg", "metadata/v1.metadata.json", "format iceberg"),
        ("other", "rows.csv", "rows.csv"),
    ):
        (tmp_path / folder / path).parent.mkdir(parents=True)
        (tmp_path / folder / path).touch()
        with pytest.raises(InvalidRequest, match=says):
            imported(lake, tmp_path / folder)
    for path in ("mixed/k=1/x.parquet", "mixed/j=1/y.parquet"):
        (tmp_path / path).parent.mkdir(parents=True)
        pq.write_table(pa.table({"a": [1]}), tmp_path / path)
    with pytest.raises(InvalidRequest, match="partition columns"):
        imported(lake, tmp_path / "mixed")
    with pytest.raises(NotFound, match="no Parquet file"):
        imported(lake, tmp_path / "nothing")
    with pytest.raises(InvalidRequest, match="use parquet, delta, iceberg"):
        import_table(lake, "t", str(tmp_path), format="orc")
    assert lake.ls() == []


def test_a_source_that_is_replaced_meanwhile(lake: Lake, tmp_path: Path) -> None:
    """A copy of another size than was planned is an error, not a table that cannot be read."""
    store = open_store(str(tmp_path / "target"))
    (tmp_path / "x").write_bytes(b"12345")
    with pytest.raises(Unavailable, match="replaced during the import"):
        copy_object(store, f"file://{tmp_path}/x", "x", size_bytes=4)


def test_partition_columns_in_the_files(lake: Lake, tmp_path: Path, make_file: Callable[..., None]) -> None:
    """A partition column that is in the files too must have the folder's value in every row, or the file is refused."""
    make_file(tmp_path / "good" / "k=1" / "x.parquet", k=[1, 1], v=[1, 2])
    make_file(tmp_path / "bad" / "k=1" / "x.parquet", k=[1, 2], v=[1, 2])
    assert imported(lake, tmp_path / "good", "good").rewritten_count == 0
    assert lake.table("good").read(where="k = 1").num_rows == 2
    with pytest.raises(InvalidRequest, match=r"is in the partition k = 1, but its footer"):
        imported(lake, tmp_path / "bad", "bad")


@pytest.fixture
def make_file() -> Callable[..., None]:
    """Write a Parquet file of some columns."""

    def make(path: Path, **columns: list[Any]) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        pq.write_table(pa.table(columns), path)

    return make


def test_texts_of_folders_keep_their_spelling(lake: Lake, tmp_path: Path, make_file: Callable[..., None]) -> None:
    """Only texts that print the same become numbers or days: 01 stays a text."""
    for value in ("01", "2"):
        make_file(tmp_path / "texts" / f"m={value}" / "x.parquet", v=[1])
    for value in ("2020-02-28", "2020-02-30"):
        make_file(tmp_path / "days" / f"m={value}" / "x.parquet", v=[1])
    make_file(tmp_path / "big" / f"m={2**40}" / "x.parquet", v=[1])
    for name, kind, value in (("texts", "STRING", "01"), ("days", "STRING", "2020-02-30"), ("big", "BIGINT", 2**40)):
        imported(lake, tmp_path / name, name)
        table = lake.table(name)
        assert table.schema.partition_fields[0].type == kind
        assert value in table.read()["m"].to_pylist()


def test_buckets(s3_server: Any) -> None:
    """In a bucket files are copied by the vendor, an export appears with its marker last, and nothing else is left."""
    url = s3_server.url()
    bucket = open_store(url, storage_options=s3_server.options)
    lake = lakebed.open(f"{url}/lake", storage_options=s3_server.options)
    table = lake.create_table("t", pa.schema([("v", pa.binary()), ("p", pa.string())]), partition_keys=["p"])
    table.append(pa.table({"v": [random.Random(1).randbytes(200_000), b""], "p": ["a", "b"]}))

    def stop(progress: Any) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        export_table(table, f"{url}/out", format="parquet", progress=stop)
    assert not list(bucket.list("out"))
    for overwrite in (False, True):
        export_table(table, f"{url}/out", format="parquet", options=ExportOptions(overwrite=overwrite))
        names = sorted(meta.path.partition("/")[2] for meta in bucket.list("out"))
        assert [name.partition("/")[0] for name in names] == ["_SUCCESS", "p=a", "p=b"]
    with lake.store.count() as counts:
        report = import_table(lake, "back", f"{url}/out", format="parquet")
    assert (report.taken_count, sorted_rows(lake.table("back").read())) == (2, sorted_rows(table.read()))
    assert counts.bytes_written < 100_000 < report.size_bytes
    import_table(lake, "stays", f"{url}/out", format="parquet", options=IN_PLACE)
    lake.drop_table("back")
    lake.drop_table("stays")
    assert sorted(meta.path.partition("/")[2] for meta in bucket.list("out")) == names


# ---- beside others


class Interrupting:
    """A progress call that lets others act when the first file is done."""

    def __init__(self, act: Callable[[], object]) -> None:
        self._act = act
        self.count = 0

    def __call__(self, done: Any) -> None:
        self.count += 1
        if self.count == 1:
            self._act()


def test_two_imports_into_one_new_table(lake: Lake, hive: Path) -> None:
    """An import stands still and is repeated: one fills the table, once; the other is refused and drops nothing."""
    late = Interrupting(lambda: imported(lakebed.open(lake.url), hive))
    with pytest.raises(AlreadyExists) as refused:
        imported(lake, hive, progress=late)
    assert refused.value.kind == "table_exists"
    table = lakebed.open(lake.url).table("t")
    assert sorted_rows(table.read()) == sorted_rows(read_by_duckdb(hive, table))
    assert check_lake(lake, deep=True).error_count == 0


def test_an_import_that_fails_leaves_the_rows_of_others(lake: Lake, hive: Path) -> None:
    """What another writer was told to be there is not dropped with the table that the import had made for itself."""
    row = pa.table({"id": [7], "k": [1]})

    def write_then_fail() -> None:
        lakebed.open(lake.url).table("t").append(row)
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        imported(lake, hive, progress=Interrupting(write_then_fail))
    assert lakebed.open(lake.url).table("t").read(columns=["id", "k"]).to_pylist() == row.to_pylist()


def test_an_import_that_fails_leaves_a_table_made_anew(lake: Lake, hive: Path) -> None:
    """Its table was dropped meanwhile, and the name is another's now."""
    other = pa.schema([("x", pa.int64())])

    def replace_table() -> None:
        lake.drop_table("t")
        lakebed.open(lake.url).create_table("t", other)

    with pytest.raises(LakebedError):
        imported(lake, hive, progress=Interrupting(replace_table))
    assert lakebed.open(lake.url).table("t").arrow_schema == other


class Died(BaseException):
    """The process of the import is gone."""


class Meeting(StoreWrapper):
    """A store with which others act before one of the calls that follow a failure, and which may end at one.

    Views of a part of the store share all of it.
    """

    def __init__(self, inner: ObjectStore, act: Callable[[], object], *, at: int, end: int | None = None) -> None:
        super().__init__(inner)
        self.act, self.at, self.end = act, at, end
        self.error: list[BaseException] = [Died()]
        self.has_failed: list[bool] = []
        self.calls: list[Call] = []
        self.outcomes: list[object] = []

    def fail(self) -> None:
        """The import fails here."""
        self.has_failed.append(True)
        raise KeyboardInterrupt

    def intercept(self, call: Call, perform: Callable[[], R]) -> R:
        if not self.has_failed or threading.current_thread() is not threading.main_thread():  # files under way
            return perform()
        self.calls.append(call)
        if self.end is not None and len(self.calls) > self.end:
            raise self.error[0]
        if len(self.calls) == self.at + 1:
            try:
                self.outcomes.append(self.act())
            except LakebedError as refused:
                self.outcomes.append(refused)
        return perform()


ROW = pa.table({"id": [7], "k": [1]})


def take_back(few: Path, *, at: int, end: int | None = None, error: BaseException | None = None) -> Meeting:
    """A failing import, beside which another writer appends a row before a call of the take-back."""
    url = f"memory://{uuid.uuid4()}"
    lakebed.open(url).create_table("other", ROW.schema)
    meeting = Meeting(open_store(url), lambda: lakebed.open(url).table("t").append(ROW), at=at, end=end)
    meeting.error[0] = error or meeting.error[0]
    raised = Died if end is not None and error is None else KeyboardInterrupt
    with pytest.raises(raised):
        imported(Lake.open(meeting), few, progress=Interrupting(meeting.fail))
    return meeting


def check_told(meeting: Meeting) -> None:
    """What the other writer was told is so: its row is there, or there is none of its rows."""
    url = meeting.root_url
    lakebed.open(url).collect()  # finishes what a killed import has begun
    if isinstance(meeting.outcomes[0], Snapshot):
        assert lakebed.open(url).table("t").read(columns=["id", "k"]).to_pylist() == ROW.to_pylist()
    elif lakebed.open(url).has_table("t"):
        assert lakebed.open(url).table("t").read().num_rows == 0, meeting.outcomes


def test_rows_that_come_while_an_import_is_taken_back(few: Path) -> None:
    """At every call of it another writer appends, and the import is killed at every later one: no row is lost."""
    count = len(take_back(few, at=10_000).calls)
    kept = 0
    for at in range(count):
        meeting = take_back(few, at=at)
        check_told(meeting)
        kept += isinstance(meeting.outcomes[0], Snapshot)
        for end in range(at + 1, len(meeting.calls)):
            check_told(take_back(few, at=at, end=end))
    assert 0 < kept < count


class UnderWay(StoreWrapper):
    """A store in which a commit waits before its put, until it is let go, and behind it, until it is let go again."""

    def __init__(self, inner: ObjectStore) -> None:
        super().__init__(inner)
        self.steps = [threading.Event() for _ in range(4)]
        """It waits before its put; may put; has put; may go on."""

    def intercept(self, call: Call, perform: Callable[[], R]) -> R:
        if call.kind != "put" or not call.path.endswith("snapshot/snapshot-1"):
            return perform()
        self.steps[0].set()
        assert self.steps[1].wait(60)
        result = perform()
        self.steps[2].set()
        assert self.steps[3].wait(60)
        return result


def collect_beside(few: Path, *, at: int) -> tuple[int, bool]:
    """A collection that finishes a take-back at one of its calls, when another writer's commit is half done.

    Returns how many calls the take-back made, and whether the commit was acknowledged.
    """
    url = f"memory://{uuid.uuid4()}"
    lakebed.open(url).create_table("other", ROW.schema)
    half, futures = UnderWay(open_store(url)), list[Future[Any]]()

    def meet() -> None:
        half.steps[1].set()
        assert half.steps[2].wait(60)
        lakebed.open(url).collect()
        half.steps[3].set()
        futures[0].exception()

    with ThreadPoolExecutor(1) as pool:

        def begin_then_fail() -> None:
            futures.append(pool.submit(lambda: Lake.open(half).table("t").append(ROW)))
            assert half.steps[0].wait(60)
            meeting.fail()

        meeting = Meeting(open_store(url), meet, at=at)
        with pytest.raises(KeyboardInterrupt):
            imported(Lake.open(meeting), few, progress=Interrupting(begin_then_fail))
        for step in half.steps:
            step.set()
        error = futures[0].exception()
    lakebed.open(url).collect()
    if error is None:
        assert lakebed.open(url).table("t").read(columns=["id", "k"]).to_pylist() == ROW.to_pylist()
    else:
        assert isinstance(error, LakebedError)
    assert not [meta.path for meta in open_store(url).list("") if "/lakebed/d" in meta.path]
    return len(meeting.calls), error is None


def test_a_collection_and_the_owner_of_a_take_back_decide_alike(few: Path) -> None:
    """At every call of a take-back another process finishes it, and sees a commit that the owner may not have seen."""
    count, _ = collect_beside(few, at=10_000)
    outcomes = {collect_beside(few, at=at)[1] for at in range(count)}
    assert outcomes == {True, False}


def test_a_take_back_without_a_store_tells_the_error_of_the_import(few: Path) -> None:
    """The store does not answer any more, at any call: the import's own error is raised."""
    for end in range(len(take_back(few, at=10_000).calls)):
        take_back(few, at=10_000, end=end, error=Unavailable("The store does not answer."))
