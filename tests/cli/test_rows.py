"""lakebed table read, append, upsert, write, overwrite, delete, diff, changes."""

from __future__ import annotations

import csv
import datetime
import gzip
import io
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet as pq
import pytest

import lakebed
from lakebed.cli import exits
from lakebed.cli.files import Loaded, read_file
from lakebed.errors import InvalidRequest

Cli = Callable[..., Any]

HEADER = "id,carrier,delay\n"


def read(cli: Cli, lake: str, *options: object) -> list[dict[str, Any]]:
    """Rows of flights, sorted by key."""
    return sorted(cli("table", "read", lake, "flights", *options, "--json").json, key=lambda row: row["id"])


def keys(rows: list[dict[str, Any]]) -> list[int]:
    """Their keys."""
    return [row["id"] for row in rows]


def test_read_versions(cli: Cli, lake: str) -> None:
    """The newest version, an id, a tag and a time each give their own rows."""
    assert keys(read(cli, lake)) == [1, 2, 3, 4]
    for options in (("--version", "1"), ("--tag", "jan"), ("--version", "tag.jan"), ("--version", "jan")):
        assert keys(read(cli, lake, *options)) == [1, 2, 3]
    assert keys(read(cli, lake, "--timestamp", "2999-01-01T00:00:00Z")) == [1, 2, 3, 4]


def test_read_narrows(cli: Cli, lake: str) -> None:
    """Filters, columns, limits and counts."""
    assert keys(read(cli, lake, "--where", "delay > 100 AND carrier = 'UA'")) == [3]
    assert set(read(cli, lake, "--columns", "id,delay")[0]) == {"id", "delay"}
    assert len(read(cli, lake, "--limit", "2")) == 2
    assert read(cli, lake, "--limit", "0") == []
    assert cli("table", "read", lake, "flights", "--count", "--json").json == {"rows": 4}
    assert cli("table", "read", lake, "flights", "--where", "id < 3", "--count").out == "2\n"


def test_dates_beyond_python_are_printed(cli: Cli, lake: str, tmp_path: Path) -> None:
    """As texts, for people and as JSON, in rows, in differences and in the bounds of files."""
    file = tmp_path / "far.parquet"
    days = pa.array([3_000_000, 0], pa.int32()).view(pa.date32())
    pq.write_table(pa.table({"day": days, "at": pa.array([2**55, 1], pa.int64()).view(pa.timestamp("us"))}), file)
    cli("table", "create", lake, "far", "--column", "day DATE", "--column", "at TIMESTAMP(6)")
    assert cli("table", "append", lake, "far", file).code == exits.OK
    assert "10183-09-21" in cli("table", "read", lake, "far").out
    assert [row["day"] for row in cli("table", "read", lake, "far", "--json").json] == ["10183-09-21", "1970-01-01"]
    (described,) = cli("table", "system", lake, "far", "files", "--json").json
    assert json.loads(described["max_value_stats"]) == {"day": "10183-09-21", "at": "3111-09-16T23:10:18.963968"}
    assert "10183-09-21" in cli("table", "read", lake, "far", "--format", "csv").out
    beyond = pa.array([2**60], pa.int64()).view(pa.timestamp("us", "UTC"))
    pq.write_table(pa.table({"z": beyond}), tmp_path / "beyond.parquet")
    cli("table", "create", lake, "beyond", "--column", "z TIMESTAMP_LTZ(6)")
    cli("table", "append", lake, "beyond", tmp_path / "beyond.parquet")
    assert cli("table", "read", lake, "beyond", "--json").json == [{"z": "38504-08-17T21:30:06.846976+00:00"}]
    pq.write_table(pa.table({"at": beyond}), tmp_path / "int96.parquet", use_deprecated_int96_timestamps=True)
    answer = cli("table", "append", lake, "far", tmp_path / "int96.parquet")
    assert (answer.code, "before 1677 or after 2262" in answer.err) == (exits.USAGE, True)
    refused = cli("table", "read", lake, "beyond", "--format", "csv")
    assert (refused.code, "'z' has a date beyond" in refused.err) == (exits.USAGE, True)
    cli("table", "append", lake, "far", file)
    assert cli("table", "diff", lake, "far", 1, 2, "--json").json["rows"]["added"][0]["day"] == "10183-09-21"


def test_a_file_without_rows_is_said_to_write_nothing(cli: Cli, lake: str, tmp_path: Path) -> None:
    """Not as the version that another command wrote, whose rows these are not."""
    file = tmp_path / "empty.csv"
    file.write_text(HEADER)
    before = cli("table", "read", lake, "flights", "--count").out
    assert (
        "no rows, so nothing was written; snapshot 2 is the newest" in cli("table", "upsert", lake, "flights", file).out
    )
    written = cli("table", "write", lake, "flights", file, "--json").json
    assert (written["snapshot"], written["rows_delta"]) == (2, 0)
    assert cli("table", "read", lake, "flights", "--count").out == before


def test_read_formats(cli: Cli, lake: str, tmp_path: Path) -> None:
    """A table for people; CSV, JSON and Parquet with the same rows; files by their names."""
    assert "carrier" in cli("table", "read", lake, "flights").out
    lines = list(csv.DictReader(io.StringIO(cli("table", "read", lake, "flights", "--format", "csv").out)))
    assert sorted(int(line["id"]) for line in lines) == [1, 2, 3, 4]
    assert cli("table", "read", lake, "flights", "-o", tmp_path / "out.parquet").code == exits.OK
    assert sorted(pq.read_table(tmp_path / "out.parquet")["id"].to_pylist()) == [1, 2, 3, 4]
    assert cli("table", "read", lake, "flights", "-o", tmp_path / "out.csv").code == exits.OK
    assert (tmp_path / "out.csv").read_text().startswith('"id","carrier","delay"')
    assert sorted(path.name for path in tmp_path.iterdir()) == ["lake", "out.csv", "out.parquet"]


def test_upsert(cli: Cli, lake: str, tmp_path: Path) -> None:
    """Rows of a CSV replace those of the same key; empty fields are null, quoted ones are empty text."""
    (tmp_path / "new.csv").write_text(HEADER + '1,"",\n9,ZZ,5\n')
    made = cli("table", "upsert", lake, "flights", tmp_path / "new.csv", "--json").json
    assert made["snapshot"] == 3
    rows = read(cli, lake)
    assert keys(rows) == [1, 2, 3, 4, 9]
    assert rows[0] == {"id": 1, "carrier": "", "delay": None}


def test_append_and_write(cli: Cli, lake: str, tmp_path: Path) -> None:
    """JSON lines and Parquet are appended; write chooses by the kind of table and deletes keys."""
    (tmp_path / "new.jsonl").write_text('{"id": 9, "carrier": "B6", "delay": 1.5}\n')
    assert cli("table", "append", lake, "db.events", tmp_path / "new.jsonl").code == exits.OK
    cli("table", "read", lake, "db.events", "-o", tmp_path / "all.parquet")
    assert cli("table", "append", lake, "db.events", tmp_path / "all.parquet", "--json").json["rows"] == 6
    (tmp_path / "change.csv").write_text("id,carrier,delay,gone\n1,UA,0,true\n5,UA,0,false\n")
    assert cli("table", "write", lake, "flights", tmp_path / "change.csv", "--deletes", "gone").code == exits.OK
    assert keys(read(cli, lake)) == [2, 3, 4, 5]


def test_overwrite(cli: Cli, lake: str, tmp_path: Path) -> None:
    """All rows are replaced; the version before keeps them."""
    (tmp_path / "new.csv").write_text(HEADER + "9,ZZ,5\n")
    assert cli("table", "overwrite", lake, "flights", tmp_path / "new.csv").code == exits.OK
    assert keys(read(cli, lake)) == [9]
    assert keys(read(cli, lake, "--version", "2")) == [1, 2, 3, 4]


UNFIT: list[tuple[str, str, str | None, int]] = [
    ("upsert", "none.csv", None, exits.NOT_FOUND),
    ("upsert", "none", None, exits.NOT_FOUND),
    ("upsert", "a.txt", "x", exits.USAGE),
    ("upsert", "a.csv", HEADER + "x,UA,1\n", exits.USAGE),
    ("upsert", "a.csv", HEADER + ",UA,1\n", exits.USAGE),
    ("upsert", "a.csv", "id,carrier,delay,more\n1,UA,1,2\n", exits.USAGE),
    ("upsert", "a.json", "{broken", exits.USAGE),
    ("upsert", "a.parquet", "no parquet", exits.USAGE),
    ("append", "a.csv", HEADER + "1,UA,1\n", exits.USAGE),
]


def test_writing_refuses(cli: Cli, lake: str, tmp_path: Path) -> None:
    """A file that does not fit is one sentence; the table stays as it was."""
    for verb, name, content, code in UNFIT:
        if content is not None:
            (tmp_path / name).write_text(content)
        answer = cli("table", verb, lake, "flights", tmp_path / name)
        assert (answer.code, len(answer.err.splitlines())) == (code, 1), (verb, name, answer)
        assert cli("table", "history", lake, "flights", "--json").json[-1]["snapshot"] == 2


def test_delete(cli: Cli, lake: str, unchanged: Callable[[], bool]) -> None:
    """A dry run counts; deleting writes one version; deleting nothing writes none."""
    assert cli("table", "delete", lake, "flights", "--where", "id >= 3", "--dry-run", "--json").json["rows"] == 2
    assert cli("table", "delete", lake, "flights", "--where", "nope = 1").code == exits.USAGE
    assert unchanged()
    assert cli("table", "delete", lake, "flights", "--where", "id >= 3").code == exits.OK
    assert keys(read(cli, lake)) == [1, 2]
    assert cli("table", "delete", lake, "flights", "--where", "id >= 3", "--json").json["snapshot"] is None


def test_delete_says_how_many_rows_it_deleted(cli: Cli, lake: str) -> None:
    """Of a table with a key too, where each delete is stored as a further row until a compaction."""
    lakebed.open(lake).create_table("plain", pa.schema([("id", pa.int64())])).append(pa.table({"id": range(9)}))
    assert (
        "snapshot 2, 2 rows deleted; 7 rows stored." in cli("table", "delete", lake, "plain", "--where", "id > 6").out
    )
    by_key = cli("table", "delete", lake, "flights", "--where", "id = 3").out
    assert "snapshot 3, 1 row deleted; " in by_key
    assert "compaction" in by_key
    assert cli("table", "delete", lake, "flights", "--where", "id < 3", "--json").json["rows_deleted"] == 2


@pytest.mark.parametrize("at_terminal", [False, True])
@pytest.mark.parametrize("suffix", [".csv", ".csv.gz"])
def test_a_value_that_does_not_fit_is_found_in_its_file(
    lake: str, tmp_path: Path, suffix: str, at_terminal: bool
) -> None:
    """By line and column, through blank lines and lines within quotes; a compressed file is opened by its name.

    The type has the name that it has in the table.
    """
    file = tmp_path / f"new{suffix}"
    text = HEADER + '1,"two\nlines",1\n\n2,x,\n3,abc,much\n4,y,much\n'
    file.write_bytes(gzip.compress(text.encode()) if suffix == ".csv.gz" else text.encode())
    schema = lakebed.open(lake).table("flights").arrow_schema
    progress = (lambda state: None) if at_terminal else None
    with pytest.raises(InvalidRequest, match="line 6 has 'much' in the column 'delay', which is no DOUBLE"):
        read_file(str(file), format=None, schema=schema, progress=progress).read_all()


def test_a_file_with_another_column_says_what_to_do(cli: Cli, lake: str, tmp_path: Path) -> None:
    """A column that the table lacks is to be added; one that the file lacks would empty what the table has."""
    file = tmp_path / "new.csv"
    file.write_text("id,gate\n1,B\n")
    assert "table add-column" in cli("table", "upsert", lake, "flights", file).err
    file.write_text("id;delay\n1;2\n")
    separated = cli("table", "upsert", lake, "flights", file).err
    assert "separated by commas" in separated
    assert "';'" in separated
    file.write_text("id,delay\n1,2\n")
    assert "would empty it in rows that they replace" in cli("table", "upsert", lake, "flights", file).err
    file.write_text("carrier,delay\nUA,2\n")
    assert "would empty" not in cli("table", "upsert", lake, "flights", file).err


def test_delete_by_marks(cli: Cli, lake: str) -> None:
    """In a table with deletion vectors the command says how many rows are left, not how many are stored."""
    opened = lakebed.open(lake)
    options = {"deletion-vectors.enabled": "true"}
    opened.create_table("marked", pa.schema([("id", pa.int64())]), options=options).append(pa.table({"id": range(9)}))
    done = cli("table", "delete", lake, "marked", "--where", "id >= 7", "--yes")
    assert done.code == exits.OK
    assert "snapshot 2; 7 rows left" in done.out
    assert cli("table", "delete", lake, "marked", "--where", "id = 0", "--yes", "--json").json["rows_left"] == 6
    assert cli("table", "read", lake, "marked", "--count").out.strip() == "6"


def test_diff(cli: Cli, lake: str) -> None:
    """Rows added, removed and changed between two versions, by key."""
    document = cli("table", "diff", lake, "flights", "jan", "2", "--json").json
    assert (document["added"], document["removed"], document["changed"]) == (1, 0, 1)
    assert document["rows"]["added"][0]["id"] == 4
    assert document["rows"]["after"][0]["delay"] == 103.0
    assert "1 added, 0 removed, 1 changed." in cli("table", "diff", lake, "flights", "jan", "2").out
    assert cli("table", "diff", lake, "flights", "jan", "nope").code == exits.NOT_FOUND


def test_changes(cli: Cli, lake: str) -> None:
    """What was written after one version, up to another."""
    document = cli("table", "changes", lake, "flights", "1", "2", "--json").json
    assert sorted(row["id"] for row in document) == [3, 4]
    assert {"_row_kind"} <= set(document[0])


def dated(cli: Cli, lake: str, tmp_path: Path) -> Path:
    """A table ``days`` partitioned by a date, and a file with a row of one day."""
    cli(
        *("table", "create", lake, "days", "-c", "day DATE NOT NULL", "-c", "id INT NOT NULL"),
        *("--primary-key", "day,id", "--partition-by", "day", "-o", "bucket=1"),
    )
    file = tmp_path / "day.csv"
    file.write_text("day,id\n2013-01-05,9\n")
    cli("table", "upsert", lake, "days", file)
    return file


def test_json_that_was_printed_is_read_again(cli: Cli, lake: str, tmp_path: Path) -> None:
    """What --json prints, dates included, can be loaded as it is; an empty array gives no row."""
    dated(cli, lake, tmp_path)
    before = cli("table", "read", lake, "days", "--json")
    printed = tmp_path / "rows.json"
    for text in (before.out, "[]"):
        printed.write_text(text)
        answer = cli("table", "upsert", lake, "days", printed)
        assert answer.code == exits.OK, answer.err
        assert cli("table", "read", lake, "days", "--json").json == before.json
    printed.write_text("[{]")
    assert cli("table", "upsert", lake, "days", printed).code == exits.USAGE


def test_overwrite_one_partition_of_a_date(cli: Cli, lake: str, tmp_path: Path) -> None:
    """A partition is named as text, for any type; an invalid value is refused in one sentence."""
    file = dated(cli, lake, tmp_path)
    file.write_text("day,id\n2013-01-05,10\n")
    assert cli("table", "overwrite", lake, "days", file, "--partition", "day=2013-01-05").code == exits.OK
    assert [row["id"] for row in cli("table", "read", lake, "days", "--json").json] == [10]
    cases = (("day=xx", "DATE"), ("id=1", "partition column"), ("day", "day=2013"), ("day=2013-01-06", "some"))
    for wrong, word in cases:
        answer = cli("table", "overwrite", lake, "days", file, "--partition", wrong)
        assert answer.code == exits.USAGE
        assert word in answer.err
        assert len(answer.err.splitlines()) == 1


def test_a_dry_overwrite_says_what_an_overwrite_does(cli: Cli, lake: str, tmp_path: Path) -> None:
    """It changes nothing, refuses what the overwrite refuses, and names the rows that then go and come."""
    file = dated(cli, lake, tmp_path)
    file.write_text("day,id\n2013-01-05,1\n2013-01-06,2\n2013-01-06,3\n2013-01-07,4\n")
    assert cli("table", "upsert", lake, "days", file).code == exits.OK
    file.write_text("day,id\n2013-01-06,10\n2013-01-08,11\n")
    one_day = tmp_path / "one.csv"
    one_day.write_text("day,id\n2013-01-05,12\n")

    def stored() -> set[str]:
        return {str(path) for path in Path(lake).rglob("*")}

    cases = [
        ((file, "--dynamic"), 2, 2),
        ((one_day, "--partition", "day=2013-01-05"), 1, 2),
        ((one_day, "--partition", "day=2013-01-05"), 1, 1),
        ((file,), 2, 4),
    ]
    for words, row_count, replaced_count in cases:
        before = stored()
        plan = cli("table", "overwrite", lake, "days", *words, "--dry-run", "--json").json
        assert (plan["dry_run"], plan["rows"], plan["rows_replaced"]) == (True, row_count, replaced_count)
        assert stored() == before
        made = cli("table", "overwrite", lake, "days", *words, "--json").json
        assert made["rows_delta"] == row_count - replaced_count
    said = cli("table", "overwrite", lake, "days", one_day, "--dry-run").out
    assert said == "Would replace 2 rows stored in 2 files of days by 1 row.\n"
    one_day.write_text("day,id\n2013-01-05,\n")
    refused = [
        ((one_day,), "null"),
        ((file, "--partition", "day=2013-01-09"), "some rows"),
        ((file, "--partition", "day=2013-01-09", "--dynamic"), "not both"),
        ((file, "--partition", "id=1"), "partition column"),
    ]
    for words, why in refused:
        for dry in ((), ("--dry-run",)):
            answer = cli("table", "overwrite", lake, "days", *words, *dry)
            assert (answer.code, why in answer.err) == (exits.USAGE, True), answer.err


def test_a_file_is_written_in_a_format_that_its_name_says(cli: Cli, lake: str, tmp_path: Path) -> None:
    """A name of no known format is refused with those there are, and leaves no file; a written file is reported."""
    for name in ("x.xlsx", "x", "x.table", "x.jsonl"):
        answer = cli("table", "read", lake, "flights", "--output", tmp_path / name)
        assert (answer.code, answer.out) == (exits.USAGE, "")
        assert "csv, json or parquet" in answer.err
    table = cli("table", "read", lake, "flights", "--format", "table", "--output", tmp_path / "x.csv")
    assert (table.code, "csv, json or parquet" in table.err) == (exits.USAGE, True)
    assert [path.name for path in tmp_path.iterdir()] == ["lake"]

    target = tmp_path / "x.pq"
    assert cli("table", "read", lake, "flights", "-o", target).out.startswith(f"Wrote 4 rows to {target} (parquet, ")
    written = cli("table", "changes", lake, "flights", "1", "2", "-o", tmp_path / "x.json", "--json").json
    path = tmp_path / "x.json"
    assert written == {"output": str(path), "format": "json", "rows": 2, "bytes": path.stat().st_size}
    assert len(json.loads(path.read_text())) == 2
    output = cli(
        "table", "read", lake, "flights", "-o", tmp_path / "x.txt", "--format", "csv", "--limit", "1", "--json"
    )
    assert (output.json["rows"], output.json["format"]) == (1, "csv")
    assert len((tmp_path / "x.txt").read_text().splitlines()) == 2


def test_a_place_that_cannot_be_written_to(cli: Cli, lake: str, tmp_path: Path) -> None:
    """An absent folder, a folder in place of a file and an empty list of columns are reported as such."""
    absent = cli("table", "read", lake, "flights", "--output", tmp_path / "no" / "x.csv")
    assert (absent.code, "There is no folder" in absent.err) == (exits.NOT_FOUND, True)
    folder = cli("table", "read", lake, "flights", "--output", tmp_path)
    assert (folder.code, "is a folder" in folder.err) == (exits.USAGE, True)
    assert cli("table", "read", lake, "flights", "--columns", "").code == exits.USAGE


@pytest.mark.parametrize("suffix", ["csv", "parquet"])
def test_loading_a_file_tells_how_far_it_is(tmp_path: Path, suffix: str) -> None:
    """The progress grows with the rows that are taken out, and ends at the file's end."""
    rows = pa.table({"id": range(200_000), "name": ["a name of some length"] * 200_000})
    path = str(tmp_path / f"rows.{suffix}")
    if suffix == "csv":
        pa.csv.write_csv(rows, path)
    else:
        pq.write_table(rows, path, row_group_size=50_000)
    seen: list[Loaded] = []
    reader = read_file(path, format=None, schema=rows.schema, progress=seen.append)
    assert sum(batch.num_rows for batch in reader) == rows.num_rows
    assert len({item.done_count for item in seen}) > 2
    assert [item.done_count for item in seen] == sorted(item.done_count for item in seen)
    assert {item.total_count for item in seen} == {os.path.getsize(path) if suffix == "csv" else rows.num_rows}
    assert seen[-1].done_count == seen[-1].total_count


EXCHANGED = pa.table(
    {
        "id": range(4),
        "text": ["NA", "null", "", None],
        "raw": [b"abc", b"\xff\x00", b"", None],
        "nested": pa.array(
            [[{"b": b"abc", "d": datetime.date(1, 1, 1)}], [None, {"b": None, "d": None}], [], None],
            pa.list_(pa.struct([("b", pa.binary()), ("d", pa.date32())])),
        ),
        "x": [float("nan"), -0.0, 0.5, None],
        "millis": pa.array([253_402_300_799_999, -1, 0, None], pa.timestamp("ms")),
        "zoned": pa.array([253_402_300_799_999, -1, 0, None], pa.timestamp("ms", "UTC")),
        "time": pa.array([86_399_999, 1, 0, None], pa.time32("ms")),
        "day": pa.array([-719_162, 2_932_896, 0, None], pa.int32()).cast(pa.date32()),
    }
)
EXCHANGED_TYPES = (
    *("BIGINT", "STRING", "BYTES", "ARRAY<ROW<b: BYTES, d: DATE>>", "DOUBLE"),
    *("TIMESTAMP(3)", "TIMESTAMP_LTZ(3)", "TIME(3)", "DATE"),
)


@pytest.mark.parametrize(
    ("format", "lacks"), [("parquet", ()), ("csv", ("raw", "nested")), ("json", ("x",))]
)  # CSV has plain types and UTF-8 alone, and JSON has no NaN
def test_what_read_writes_append_reads(cli: Cli, tmp_path: Path, format: str, lacks: tuple[str, ...]) -> None:
    """Texts that other programs write for null, bytes, NaN, milliseconds and times of day come back as they were."""
    columns = [column for column in zip(EXCHANGED.column_names, EXCHANGED_TYPES, strict=True) if column[0] not in lacks]
    rows = EXCHANGED.drop_columns(list(lacks))
    pq.write_table(rows, tmp_path / "rows.parquet")
    options = [word for name, kind in columns for word in ("-c", f"{name} {kind}")]
    for table in ("first", "second"):
        cli("table", "create", tmp_path / "lake", table, *options)
    assert cli("table", "append", tmp_path / "lake", "first", tmp_path / "rows.parquet").code == exits.OK
    assert cli("table", "read", tmp_path / "lake", "first", "-o", tmp_path / f"out.{format}").code == exits.OK
    written = cli("table", "append", tmp_path / "lake", "second", tmp_path / f"out.{format}")
    assert written.code == exits.OK, written.err
    back = lakebed.open(tmp_path / "lake").table("second").read().sort_by("id")
    assert str(back.to_pylist()) == str(rows.cast(back.schema).to_pylist())


@pytest.mark.parametrize("from_input", [False, True])
def test_empty_lines_of_one_column_are_nulls(
    cli: Cli, lake: str, tmp_path: Path, from_input: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As read writes them, and as DuckDB reads them; in a file of several columns they are no rows."""
    cli("table", "create", lake, "words", "--column", "word STRING", "--column", "n INT")

    def append(body: str) -> list[tuple[str | None, int | None]]:
        file = tmp_path / "words.csv"
        file.write_text(body)
        monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BufferedReader(io.BytesIO(body.encode()))))
        given = ("-", "--format", "csv") if from_input else (file,)
        assert cli("table", "append", lake, "words", *given).code == exits.OK
        rows = lakebed.open(lake).table("words").read()
        cli("table", "delete", lake, "words", "--where", "word is null or word is not null")
        return list(zip(rows["word"].to_pylist(), rows["n"].to_pylist(), strict=True))

    one = 'word\n"a"\n\n""\n\n'
    (tmp_path / "oracle.csv").write_text(one)
    oracle = duckdb.sql(f"SELECT count(*) FROM read_csv('{tmp_path}/oracle.csv')").fetchall()[0][0]
    assert append(one) == [("a", None), (None, None), ("", None), (None, None)]
    assert oracle == 4
    assert append("word,n\na,1\n\nb,2\n\n") == [("a", 1), ("b", 2)]


@pytest.mark.parametrize("format", ["csv", "json"])
def test_an_upsert_of_a_file_without_a_column_is_refused(cli: Cli, lake: str, tmp_path: Path, format: str) -> None:
    """It would empty that column in rows that are there; one that is there and null empties it."""
    body = {"csv": "id,carrier\n1,ZZ\n", "json": '{"id": 1, "carrier": "ZZ"}'}[format]
    (tmp_path / f"new.{format}").write_text(body)
    before = read(cli, lake)
    refused = cli("table", "upsert", lake, "flights", tmp_path / f"new.{format}")
    assert (refused.code, "have no column 'delay'" in refused.err) == (exits.USAGE, True)
    assert read(cli, lake) == before
    body = {"csv": "id,carrier,delay\n1,ZZ,\n", "json": '{"id": 1, "carrier": "ZZ", "delay": null}'}[format]
    (tmp_path / f"new.{format}").write_text(body)
    assert cli("table", "upsert", lake, "flights", tmp_path / f"new.{format}").code == exits.OK
    assert {"id": 1, "carrier": "ZZ", "delay": None} in read(cli, lake)


@pytest.mark.parametrize("format", ["csv", "json"])
def test_a_row_of_some_megabytes_is_read(cli: Cli, lake: str, tmp_path: Path, format: str) -> None:
    """What read writes is not too long for append."""
    text = "word " * 600_000
    cli("table", "create", lake, "long", "--column", "text STRING")
    body = {"csv": f"text\nshort\n{text}\nshort\n", "json": f'{{"text": "{text}"}}\n{{"text": "short"}}'}[format]
    (tmp_path / f"long.{format}").write_text(body)
    assert cli("table", "append", lake, "long", tmp_path / f"long.{format}").code == exits.OK
    assert set(lakebed.open(lake).table("long").read()["text"].to_pylist()) == {"short", text}


def test_json_has_nulls_where_a_member_is_required(cli: Cli, lake: str, tmp_path: Path) -> None:
    """A null struct is read though its member is NOT NULL; a null in the member, or in a key, is named."""
    kind = "ROW<a INT NOT NULL, b BYTES>"
    cli("table", "create", lake, "r", "--column", "id INT", "--column", f"x {kind}", "--primary-key", "id")
    file = tmp_path / "r.json"
    file.write_text('{"id": 1, "x": {"a": 1, "b": "YQ=="}}\n{"id": 2, "x": null}')
    assert cli("table", "upsert", lake, "r", file).code == exits.OK
    rows = lakebed.open(lake).table("r").read()
    assert dict(zip(rows["id"].to_pylist(), rows["x"].to_pylist(), strict=True)) == {1: {"a": 1, "b": b"a"}, 2: None}
    file.write_text('{"id": 3, "x": {"a": null}}')
    assert "Column 'x' is" in cli("table", "upsert", lake, "r", file).err
    file.write_text('{"id": null, "x": null}')
    assert "Key column 'id' is null" in cli("table", "upsert", lake, "r", file).err


def test_words_for_null(cli: Cli, lake: str, tmp_path: Path) -> None:
    """NA is a text, and no number, unless --null says that it is null; an error says so."""
    (tmp_path / "new.csv").write_text(HEADER + "5,NA,1\n6,NaN,NaN\n")
    assert cli("table", "upsert", lake, "flights", tmp_path / "new.csv").code == exits.OK
    assert [row["carrier"] for row in read(cli, lake)[-2:]] == ["NA", "NaN"]
    (tmp_path / "new.csv").write_text(HEADER + '5,"NA",NA\n6,NA,\\N\n')
    refused = cli("table", "upsert", lake, "flights", tmp_path / "new.csv")
    assert (refused.code, "--null 'NA'" in refused.err) == (exits.USAGE, True)
    words = ("--null", "NA", "--null", "\\N")
    assert cli("table", "upsert", lake, "flights", tmp_path / "new.csv", *words).code == exits.OK
    assert read(cli, lake)[-2:] == [
        {"id": 5, "carrier": "NA", "delay": None},
        {"id": 6, "carrier": None, "delay": None},
    ]


def test_json_of_bytes_that_are_no_base64_is_refused(cli: Cli, lake: str, tmp_path: Path) -> None:
    """The error names the column."""
    cli("table", "create", lake, "raw", "--column", "b BYTES")
    (tmp_path / "raw.json").write_text('{"b": "no base64"}')
    refused = cli("table", "append", lake, "raw", tmp_path / "raw.json")
    assert (refused.code, "'b' has bytes, which JSON has as base64" in refused.err) == (exits.USAGE, True)
