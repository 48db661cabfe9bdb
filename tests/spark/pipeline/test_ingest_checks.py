"""An ingest holds every row against the schema: a bad one stops the run there, with file and line, or is dropped."""

from __future__ import annotations

import csv
import gzip
import zipfile
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from lakebed.errors import InvalidRequest
from lakebed.lake.lake import open_lake
from lakebed.pipeline import Pipeline, RunSummary, status

TEXT = """\
name: checks
lake: ${root}/lake
vars: {root: }
tables:
  delays: {primary_key: [id], options: {bucket: 1}, schema: {id: BIGINT, delay: INT}}
steps:
  - step: ingest
    name: read
    from: ${root}/in.csv
    as: delivery
    options: {nullValue: NA}
    schema: {id: bigint, delay: int, gone: boolean}
  - step: audit
    from: delivery
    overall: {something came: count(*) > 0}
  - {step: merge, into: delays, from: delivery, deletes: gone}
"""
HEADER = "id,delay,gone\n"


def run(spark: SparkSession, root: Path, text: str = TEXT) -> RunSummary:
    """Run a pipeline over the files of a folder."""
    return Pipeline.parse(text, file="checks.yaml").run(spark, variables={"root": str(root)})


def delays(root: Path) -> dict[int, int | None]:
    """The table's rows."""
    rows = open_lake(str(root / "lake")).table("delays").read()
    return dict(zip(*(rows[name].to_pylist() for name in ("id", "delay")), strict=True))


def in_csv(root: Path, text: str) -> str:
    """Plain text."""
    (root / "in.csv").write_text(text)
    return "in.csv"


def in_gz(root: Path, text: str) -> str:
    """Compressed text."""
    (root / "in.csv.gz").write_bytes(gzip.compress(text.encode()))
    return "in.csv.gz"


def in_zip(root: Path, text: str) -> str:
    """A member of an archive."""
    with zipfile.ZipFile(root / "in.csv.zip", "w") as archive:
        archive.writestr("days/first.csv", HEADER)
        archive.writestr("days/second.csv", text)
    return "in.csv.zip"


@pytest.mark.parametrize(
    ("write", "shown"),
    [
        (in_zip, "in.csv.zip: days/second.csv"),
        *(pytest.param(*case, marks=pytest.mark.long) for case in ((in_csv, "in.csv"), (in_gz, "in.csv.gz"))),
    ],
)
def test_a_bad_row_stops_the_run_at_its_ingest(spark: SparkSession, tmp_path: Path, write: object, shown: str) -> None:
    """Too few values, too many, and one of another type are counted and shown; nothing is merged."""
    name = write(tmp_path, HEADER + "1,5,false\n2\n3,late,false\n\n4,7,false,more\n5,x,maybe\n")  # type: ignore[operator]
    with pytest.raises(InvalidRequest) as caught:
        run(spark, tmp_path, TEXT.replace("in.csv\n", f"{name}\n"))
    assert caught.value.kind == "bad_rows"
    path = f"{tmp_path}/{shown}"
    assert caught.value.message == (
        f"checks.yaml, line 7: read stopped the run: 4 of 5 rows do not fit the schema: "
        f"{path}, line 3: 2 (1 value for 3 columns); "
        f"{path}, line 4: 3,late,false (delay = 'late' is not a valid int); "
        f"{path}, line 6: 4,7,false,more (4 values for 3 columns); and 1 more. "
        "Correct them, or say `bad_rows: drop` to leave such rows out and count them."
    )
    assert status(str(tmp_path / "lake"))[0].failed_step == "read"
    assert not open_lake(str(tmp_path / "lake")).has_table("delays")


def test_bad_rows_are_dropped_where_that_is_asked_for(spark: SparkSession, tmp_path: Path) -> None:
    """They are counted and named in the step's record; every later step sees the same rows, whatever it looks at."""
    in_csv(tmp_path, HEADER + "1,5,false\n2\n3,late,false\n4,7,false\n")
    text = TEXT.replace("    as: delivery", "    as: delivery\n    bad_rows: drop").replace(
        "count(*) > 0", "count(*) = 2"
    )
    summary = run(spark, tmp_path, text)
    metrics = summary.records[0].metrics
    assert (metrics["rows"], metrics["rows_dropped"]) == (2, 2)
    assert [(row["line"], row["text"]) for row in metrics["dropped"]] == [(3, "2"), (4, "3,late,false")]
    assert delays(tmp_path) == {1: 5, 4: 7}


@pytest.mark.parametrize("bad_rows", ["stop", "drop"])
def test_a_bad_row_of_an_ingest_into_a_table(spark: SparkSession, tmp_path: Path, bad_rows: str) -> None:
    """JSON as well: nothing is committed, or the rest is."""
    (tmp_path / "in.json").write_text('{"id": 1, "delay": 5}\n\n{"id": 2, "delay": "late"}\n{"id": 3\n{"id": 4}\n')
    text = (
        TEXT[: TEXT.index("steps:")]
        + "steps:\n  - {step: ingest, name: load, from: '${root}/in.json', into: delays, "
        + f"schema: {{id: bigint, delay: int}}, bad_rows: {bad_rows}}}\n"
    )
    if bad_rows == "drop":
        assert run(spark, tmp_path, text).records[0].metrics["rows_dropped"] == 2
        assert delays(tmp_path) == {1: 5, 4: None}
        return
    with pytest.raises(InvalidRequest) as caught:
        run(spark, tmp_path, text)
    assert "line 7: load stopped the run: 2 of 4 rows do not fit the schema: " in caught.value.message
    assert 'in.json, line 3: {"id": 2, "delay": "late"} (delay = \'late\' is not a valid int); ' in caught.value.message
    assert 'in.json, line 4: {"id": 3 (it is not a JSON object).' in caught.value.message
    assert delays(tmp_path) == {}


@pytest.mark.parametrize(
    ("body", "rows"),
    [
        (b"\xef\xbb\xbfid,delay,gone\n1,5,false\n", {1: 5}),
        (b"id,delay,gone\r\n1,5,false\r\n\r\n2,NA,false\r\n", {1: 5, 2: None}),
        (b"ID,Delay,GONE\n1,5,false\n", {1: 5}),
        (b'"id","delay","gone"\n"1","5","false"', {1: 5}),
    ],
)
def test_files_that_only_look_different(
    spark: SparkSession, tmp_path: Path, body: bytes, rows: dict[int, int | None]
) -> None:
    """A byte order mark, line ends, the case of a header, quotes."""
    (tmp_path / "in.csv").write_bytes(body)
    run(spark, tmp_path)
    assert delays(tmp_path) == rows


def test_an_empty_file_has_no_rows(spark: SparkSession, tmp_path: Path) -> None:
    """The audit says whether that is right."""
    in_csv(tmp_path, "")
    with pytest.raises(Exception, match="something came"):
        run(spark, tmp_path)


def test_a_header_of_another_order_is_refused(spark: SparkSession, tmp_path: Path) -> None:
    """Values would go into the wrong columns; the file is named."""
    in_csv(tmp_path, "id,gone,delay\n1,false,5\n")
    with pytest.raises(InvalidRequest) as caught:
        run(spark, tmp_path)
    assert caught.value.message.startswith("checks.yaml, line 7: ")
    assert "in.csv" in caught.value.message
    assert "header" in caught.value.message
    assert "\n" not in caught.value.message


def test_a_value_of_several_lines_is_one_row(spark: SparkSession, tmp_path: Path) -> None:
    """With the reader's option multiLine; a bad row after it has its own line."""
    (tmp_path / "in.csv").write_text('id,note,n\n1,"two\nlines",5\n2,"three\nmore\nlines",late\n')
    text = (
        "name: lines\nlake: ${root}/lake\nvars: {root: }\ntables: {notes: }\nsteps:\n"
        "  - {step: ingest, from: '${root}/in.csv', into: notes, options: {multiLine: 'true'},\n"
        "     schema: {id: bigint, note: string, n: int}}\n"
    )
    with pytest.raises(
        InvalidRequest, match=r"in\.csv, line 4: 2,\"three more lines\",late \(n = 'late' is not a valid int\)"
    ):
        run(spark, tmp_path, text)
    run(spark, tmp_path, text.replace("schema:", "bad_rows: drop, schema:"))
    assert open_lake(str(tmp_path / "lake")).table("notes").read()["note"].to_pylist() == ["two\nlines"]


def test_quotes_inside_quoted_values_are_doubled(spark: SparkSession, tmp_path: Path) -> None:
    """As Python's csv module, spreadsheets and databases write them; a backslash is one where it is asked for."""
    notes = ['a "b"', 'c, "d", e', "plain, ok", "back\\slash", '"', "'", "x"]
    text = (
        "name: quotes\nlake: ${root}/lake\nvars: {root: }\ntables: {notes: }\nsteps:\n"
        "  - {step: ingest, from: '${root}/in.csv', into: notes, schema: {id: bigint, note: string}}\n"
    )
    with (tmp_path / "in.csv").open("w", newline="") as file:
        csv.writer(file).writerows([["id", "note"], *enumerate(notes)])
    run(spark, tmp_path, text)
    rows = open_lake(str(tmp_path / "lake")).table("notes").read().sort_by("id")
    assert rows["note"].to_pylist() == notes
    (tmp_path / "in.csv").write_text('id,note\n9,"a \\"b\\""\n')
    run(spark, tmp_path, text.replace("quotes", "escapes").replace("schema:", "options: {escape: '\\'}, schema:"))
    rows = open_lake(str(tmp_path / "lake")).table("notes").read(where="id = 9")
    assert rows["note"].to_pylist() == ['a "b"']


def test_the_option_mode_is_refused(tmp_path: Path) -> None:
    """What bad rows do is said by one key."""
    with pytest.raises(InvalidRequest, match="line 7: step 'ingest': the option 'Mode' is set by the key 'bad_r"):
        Pipeline.parse(TEXT.replace("nullValue: NA", "Mode: PERMISSIVE"), file="x").plan(variables={"root": "/"})
