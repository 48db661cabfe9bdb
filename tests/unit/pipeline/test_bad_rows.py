"""Bad rows are explained: the line of the file, and what is wrong with the value."""

from __future__ import annotations

import gzip
from pathlib import Path

import pytest

from lakebed.pipeline.bad_rows import BadRow, BadRows, find_lines, local_path, reason_of

SCHEMA = {"id": "bigint", "delay": "int", "gone": "boolean"}


def test_the_line_of_a_record_counts_every_line(tmp_path: Path) -> None:
    """Blank lines and the header too; of two equal records each has its own line; ends and a mark are not text."""
    (tmp_path / "in.csv").write_bytes(b"\xef\xbb\xbfid\r\n\r\nx\r\n1\r\nx\r\n")
    assert find_lines(str(tmp_path / "in.csv"), ["x", "x", "id", "none"]) == [3, 5, 1, None]


def test_a_record_of_several_lines_begins_at_its_first(tmp_path: Path) -> None:
    """Compressed files are read through."""
    with gzip.open(tmp_path / "in.csv.gz", "wb") as file:
        file.write(b'id,name\n1,"a\nb"\n2,"a\nc"\n')
    assert find_lines(str(tmp_path / "in.csv.gz"), ['2,"a\nc"']) == [4]


@pytest.mark.parametrize(
    ("text", "values", "reason"),
    [
        ("1", {"id": 1}, "1 value for 3 columns"),
        ("1,2,true,4", {"id": 1}, "4 values for 3 columns"),
        ("x,NA,maybe", {}, "id = 'x' is not a valid bigint, gone = 'maybe' is not a valid boolean"),
        ('1,"2,3",true', {"id": 1, "gone": True}, "delay = '2,3' is not a valid int"),
        ('1,"2 ""or"" 3",true', {"id": 1, "gone": True}, "delay = '2 \"or\" 3' is not a valid int"),
    ],
)
def test_a_reason_names_the_values_that_do_not_fit(text: str, values: dict[str, object], reason: str) -> None:
    """Or how many there are."""
    given = reason_of(text, file_format="csv", schema=SCHEMA, values=values, options={"nullValue": "NA"})
    assert given == reason


def test_a_reason_for_json() -> None:
    """A value of another type, or no JSON at all."""
    schema = {"id": "bigint", "delay": "int"}
    late = reason_of('{"id": 1, "delay": "late"}', file_format="json", schema=schema, values={"id": 1}, options={})
    assert late == "delay = 'late' is not a valid int"
    assert reason_of('{"id": 1', file_format="json", schema=schema, values={}, options={}) == "it is not a JSON object"


def test_a_sentence_is_short_and_counts_what_it_does_not_show() -> None:
    """A long row is cut, and stays in one line."""
    rows = BadRows(1000, 5, (BadRow("in.csv", 3, "1,a\nb" + "x" * 500, "why"), BadRow("s3a://b/in.csv", None, "2", "")))
    assert rows.sentence().startswith("5 of 1,000 rows do not fit the schema: in.csv, line 3: 1,a bxxx")
    assert rows.sentence().endswith("… (why); s3a://b/in.csv: 2; and 3 more")
    assert len(rows.sentence()) < 300


def test_a_path_is_told_from_a_url() -> None:
    """Spark names local files by URLs with escapes."""
    assert local_path("file:///in%20put/a%25.csv") == "/in put/a%.csv"
    assert local_path("s3a://bucket/a.csv") is None
