"""Statistics never hide a row: NaN, zeros of both signs, unbounded bytes, and files that older versions wrote."""

from __future__ import annotations

import math
import shutil
import uuid
from datetime import datetime
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from lakebed.fsck.check import check_url
from lakebed.fsck.repair import repair_statistics, repair_url
from lakebed.objects.open import open_store
from lakebed.table.model.model import STATS_VERSION, DataField
from lakebed.table.table import Table

NAN = float("nan")
OLD_TABLE = Path(__file__).parents[2] / "golden" / "float_bounds"
FLOATS = [pa.float32(), pa.float64()]


def new_table(kind: pa.DataType, **shape: object) -> Table:
    """An empty table of one column `x` and a number."""
    schema = pa.schema([("n", pa.int64()), ("x", kind)])
    return Table.create(open_store(f"memory://stats-{uuid.uuid4()}"), name="t", schema=schema, **shape)  # type: ignore[arg-type]


def add(table: Table, *values: object) -> None:
    """Append one file."""
    columns = [pa.array(range(len(values)), pa.int64()), pa.array(values, table.arrow_schema.field("x").type)]
    table.write(pa.table(columns, schema=table.arrow_schema))


def answers(table: Table, where: str) -> list[str]:
    """The values of `x` that a filter finds, as text."""
    return sorted(map(str, table.read(where=where).column("x").to_pylist()))


@pytest.fixture
def old_table(tmp_path: Path) -> Table:
    """A table that lakebed wrote before `STATS_VERSION`; its one file has rows outside its bounds."""
    shutil.copytree(OLD_TABLE, tmp_path / "t")
    return Table.open(open_store(f"file://{tmp_path}/t"), name="t")


@pytest.mark.parametrize("kind", FLOATS, ids=str)
def test_a_file_with_nan_in_one_part_keeps_its_other_rows(kind: pa.DataType) -> None:
    """What is unknown for one row group is unknown for the file: reads and deletes find every row."""
    table = new_table(kind)
    add(table, NAN, -5.0)
    add(table, 1.0, 2.0)
    table.compact(full=True)
    assert answers(table, "x < 0") == ["-5.0"]
    table.delete("x < 0")
    assert answers(table, "n >= 0") == ["1.0", "2.0", "nan"]


def test_bytes_without_an_upper_bound_in_one_part() -> None:
    """A value that no shortened bound can bound leaves the whole file without an upper bound."""
    table = new_table(pa.binary())
    add(table, b"\xff" * 17)
    add(table, b"a")
    table.compact(full=True)
    assert table.read(where="x > 'm'").num_rows == 1


def test_a_part_without_values_does_not_hide_the_bounds() -> None:
    """Rows that are all null leave the bounds of the others: the file is still skipped."""
    table = new_table(pa.float64())
    add(table, None, None)
    add(table, 1.0, 2.0)
    table.compact(full=True)
    (file,) = table.system("files").to_pylist()
    assert '"x":1.0' in file["min_value_stats"]
    assert table.scan(where="x > 5").splits() == []


@pytest.mark.parametrize("kind", FLOATS, ids=str)
@pytest.mark.parametrize("values", [(0.0, -0.0), (-0.0, 0.0), (0.0,), (-0.0,)], ids=str)
def test_zero_bounds_include_both_zeros(kind: pa.DataType, values: tuple[float, ...]) -> None:
    """A minimum of zero is stated as -0.0 and a maximum as 0.0, for readers that order the two."""
    table = new_table(kind)
    add(table, *values)
    (file,) = table.system("files").to_pylist()
    assert ('"x":-0.0' in file["min_value_stats"], '"x":0.0' in file["max_value_stats"]) == (True, True)
    assert len(answers(table, "x = 0")) == len(values)


@pytest.mark.parametrize("digits", [0, 3, 6, 7, 9])
@pytest.mark.parametrize("zone", ["", " WITH LOCAL TIME ZONE"])
def test_times_of_every_precision_are_found_in_every_part(digits: int, zone: str) -> None:
    """Nanoseconds have neither bounds nor a zone in Parquet; other conditions still leave out parts."""
    table = Table.create(
        open_store(f"memory://stats-{uuid.uuid4()}"),
        name="t",
        schema=[DataField(0, "n", "BIGINT"), DataField(1, "x", f"TIMESTAMP({digits}){zone}")],
        options={"file.block-size": "16 b"},
    )
    kind = table.arrow_schema.field("x").type
    seconds = pa.array(range(8), pa.int64()).cast(pa.timestamp("s", kind.tz))
    table.append(pa.table({"n": pa.array(range(8), pa.int64()), "x": seconds.cast(kind)}))
    for where, numbers in {
        "x >= '1970-01-01 00:00:06'": {6, 7},
        "x in ('1970-01-01 00:00:01', '1970-01-01 00:00:05.5')": {1},
        "n > 4 and not x = '1970-01-01 00:00:05'": {6, 7},
    }.items():
        assert set(table.read(where=where)["n"].to_pylist()) == numbers, where


def test_a_struct_whose_member_has_another_type_now_is_found_by_its_nulls() -> None:
    """A member that was dropped and added again is no reason to refuse a filter on the column around it."""
    table = new_table(pa.struct([("a", pa.map_(pa.string(), pa.int32())), ("b", pa.int32())]))
    add(table, {"a": [("k", 1)], "b": 1}, None)
    table.drop_column(("x", "a"))
    table.add_column(("x", "a"), "DATE")
    add(table, None, {"b": 2, "a": None})
    assert table.read(where="x is null")["n"].to_pylist() == [1, 0]
    assert table.read(where="x is not null").num_rows == 2


def test_footers_have_no_bounds_of_floats(tmp_path: Path) -> None:
    """Parquet's own bounds leave NaN out, so that Spark would skip rows: float columns have none."""
    schema = pa.schema([("n", pa.int64()), ("x", pa.float64())])
    table = Table.create(open_store(f"file://{tmp_path}/t"), name="t", schema=schema)
    table.write(pa.table({"n": [1, 2], "x": [1.0, NAN]}, schema=schema))
    (path,) = (tmp_path / "t" / "bucket-0").glob("*.parquet")
    group = pq.ParquetFile(path).metadata.row_group(0)
    assert group.column(0).is_stats_set
    assert not group.column(1).is_stats_set


def test_files_of_older_versions_are_read_without_trusting_their_bounds(old_table: Table) -> None:
    """Rows outside the wrong bounds of an old file are found, and deleted."""
    for column in ("f", "d"):
        assert old_table.read(where=f"{column} < 0").column("id").to_pylist() == [2]
    assert old_table.read(where="b > 'x'").column("id").to_pylist() == [1]
    assert old_table.scan(where="id > 100").splits() == []
    old_table.delete("d < 0")
    assert old_table.read().column("id").to_pylist() == [1, 3, 4]


def test_the_repair_describes_old_files_anew(old_table: Table) -> None:
    """Afterwards the bounds are right, every row is found, pruning works again, and nothing needs another repair."""
    before = old_table.read()
    (result,) = repair_statistics(old_table, dry_run=True)
    assert (result.file_count, result.described_count, result.wrong_count, result.snapshot_id) == (1, 1, 1, None)
    newest = old_table.latest()
    assert newest is not None
    assert newest.id == 3
    (done,) = repair_statistics(old_table)
    assert (done.described_count, done.wrong_count, done.snapshot_id, done.skipped) == (1, 1, 4, ())
    again = Table.open(old_table.store, name="t")
    assert again.read().column("id").to_pylist() == before.column("id").to_pylist()
    assert again.read(where="d < 0").column("id").to_pylist() == [2]
    (file,) = again.system("files").to_pylist()
    assert file["min_value_stats"] == '{"id":1,"f":null,"d":null,"b":null}'
    (idle,) = repair_statistics(again)
    assert (idle.described_count, idle.snapshot_id) == (0, None)
    assert check_url(old_table.url, deep=True).error_count == 0


def test_old_versions_expire_after_a_repair(old_table: Table) -> None:
    """The files that the new manifests name survive the expiry of the versions before them."""
    repair_statistics(old_table)
    old_table.expire(retain_max=1, retain_min=1, older_than_ms=2**62)
    assert [snapshot.id for snapshot in old_table.context.snapshots.walk(old_table.context.snapshots.ids())] == [4]
    assert old_table.read().num_rows == 4
    assert check_url(old_table.url, deep=True).error_count == 0


def test_a_repair_that_loses_a_race_keeps_the_winners_rows(old_table: Table) -> None:
    """Rows committed while the files were read stay, and so does the repair of the files that are still there."""
    other = Table.open(old_table.store, name="t")
    rows = pa.table({"id": [9], "f": [9.0], "d": [9.0], "b": [b"z"]}, schema=other.arrow_schema)
    (done,) = repair_statistics(old_table, progress=lambda _: other.write(rows) and None)
    assert done.snapshot_id == 5
    assert sorted(Table.open(old_table.store, name="t").read().column("id").to_pylist()) == [1, 2, 3, 4, 9]
    assert repair_statistics(Table.open(old_table.store, name="t"))[0].described_count == 0


def test_a_file_that_cannot_be_read_is_reported_and_kept(old_table: Table) -> None:
    """The repair says which file it skipped, and changes nothing of it."""
    (file,) = old_table.system("files").to_pylist()
    body = bytes(old_table.store.get(file["file_path"]))
    old_table.store.delete([file["file_path"]])
    old_table.store.put(file["file_path"], body[:-9] + b"\0" * 9)
    report = repair_url(old_table.url)
    assert report.skipped_count == 1
    assert report.facts()["branches"][0]["skipped"][0]["path"] == file["file_path"]
    assert report.branches[0].snapshot_id is None


def test_the_repair_finds_files_in_the_folders_of_older_versions(monkeypatch: pytest.MonkeyPatch) -> None:
    """A file that an older version put into the folder of another spelling is described anew where it is."""
    store = open_store(f"memory://stats-{uuid.uuid4()}")
    schema = pa.schema([("p", pa.timestamp("ms")), ("x", pa.float64())])
    table = Table.create(store, name="t", schema=schema, partition_keys=["p"])
    table.write(pa.table({"p": pa.array([datetime(2020, 1, 1)], pa.timestamp("ms")), "x": [1.0]}, schema=schema))
    (path,) = [meta.path for meta in store.list("") if meta.path.endswith(".parquet")]
    older = path.replace(path.partition("/")[0], "p=2020-01-01 00:00:00")
    assert older != path
    store.put(older, bytes(store.get(path)))
    store.delete([path])
    monkeypatch.setattr("lakebed.fsck.repair.STATS_VERSION", STATS_VERSION + 1)
    (done,) = repair_statistics(table)
    assert done.described_count == 1
    assert not done.skipped
    assert table.read().num_rows == 1


def test_a_deep_check_names_old_files_with_wrong_bounds(old_table: Table) -> None:
    """Bounds that lakebed no longer trusts are a warning that names the repair, not a fault of the table."""
    report = check_url(old_table.url, deep=True)
    assert report.error_count == 0
    (result,) = [finding for finding in report.findings if finding.severity == "warning"]
    assert result.kind == "untrusted_statistics"
    assert "--repair-statistics" in result.sentence


@pytest.mark.parametrize("column", ["f", "d"])
def test_old_and_new_files_answer_alike(old_table: Table, column: str) -> None:
    """A filter means the same before and after the repair, and as plain Python's comparisons."""
    rows = old_table.read().column(column).to_pylist()
    for limit in (-5.0, 0.0, 1.5, math.inf):
        before = old_table.read(where=f"{column} <= {limit if limit != math.inf else '1e308'}").num_rows
        assert before == sum(value <= limit for value in rows)
