"""Plain CSV files read in this process, and what is left to Spark."""

from __future__ import annotations

import datetime
from decimal import Decimal
from pathlib import Path

import pytest

from lakebed.pipeline import plain
from lakebed.pipeline.plain import read_plain_csv

SCHEMA = {"id": "bigint", "name": "string", "at": "timestamp", "price": "decimal(6, 2)", "gone": "boolean"}
HEADER = "id,name,at,price,gone\n"
ROW = "1,a,2013-01-01T10:00:00Z,1.50,true\n"


def read(tmp_path: Path, text: str | bytes, *, name: str = "in.csv", **options: str) -> list[dict[str, object]] | None:
    """The rows of one file, or None."""
    (tmp_path / name).write_bytes(text if isinstance(text, bytes) else text.encode())
    rows = read_plain_csv([str(tmp_path / name)], schema=SCHEMA, options=options)
    return None if rows is None else rows.to_pylist()


def test_a_plain_file_becomes_typed_rows(tmp_path: Path) -> None:
    """Empty values and the null value are null; a quoted value may hold separators."""
    text = HEADER + ROW + '-2,"b, c",2013-01-01 10:00:00.25,,NA\r\n3,NA,NA,-0.5,false'
    utc = datetime.UTC
    ten = datetime.datetime(2013, 1, 1, 10, tzinfo=utc)
    assert read(tmp_path, text, nullValue="NA") == [
        {
            "id": 1,
            "name": "a",
            "at": ten,
            "price": Decimal("1.50"),
            "gone": True,
        },
        {
            "id": -2,
            "name": "b, c",
            "at": datetime.datetime(2013, 1, 1, 10, 0, 0, 250000, tzinfo=utc),
            "price": None,
            "gone": None,
        },
        {"id": 3, "name": None, "at": None, "price": Decimal("-0.50"), "gone": False},
    ]


@pytest.mark.parametrize(
    "text",
    [
        "",
        "\n" + HEADER + ROW,
        b"\xef\xbb\xbf" + (HEADER + ROW).encode(),
        "name,id,at,price,gone\n" + ROW,
        HEADER.upper() + ROW,
        HEADER + "1,a\n",
        HEADER + ROW.replace("\n", ",more\n"),
        HEADER + ROW.replace("1,", " 1,", 1),
        HEADER + ROW.replace("1,", "+1,", 1),
        HEADER + ROW.replace("1,", "9223372036854775808,", 1),
        HEADER + ROW.replace("true", "TRUE"),
        HEADER + ROW.replace("1.50", "1.505"),
        HEADER + ROW.replace("1.50", "12345.5"),
        HEADER + ROW.replace("01-01T", "02-30T"),
        HEADER + ROW.replace("10:00:00Z", "24:00:00Z"),
        HEADER + ROW.replace("00Z", "00+01:00"),
        HEADER + ROW.replace(",a,", ',"",'),
        HEADER + ROW.replace(",a,", ',"a""b",'),
        HEADER + ROW.replace(",a,", ',a"b,'),
        HEADER + ROW.replace(",a,", ',"a\nb",'),
        HEADER + ROW.replace(",a,", ",a\\b,"),
        HEADER + ROW.replace(",a,", ",a\0b,"),
        HEADER + ROW.replace("\n", "\r"),
        (HEADER + ROW).replace(",a,", ",é,").encode("latin-1"),
    ],
)
def test_what_is_not_plain_is_left_to_spark(tmp_path: Path, text: str | bytes) -> None:
    """A row that does not fit is not judged here."""
    assert read(tmp_path, text) is None


def test_options_names_and_sizes_that_are_left_to_spark(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every option but the few that are understood; names that Spark treats in its own way; large files."""
    assert read(tmp_path, HEADER + ROW) is not None
    assert read(tmp_path, HEADER + ROW, dateFormat="dd.MM.yyyy") is None
    assert read(tmp_path, HEADER + ROW, header="false") is None
    assert read(tmp_path, HEADER + ROW, name="_in.csv") is None
    assert read(tmp_path, HEADER + ROW, name="in.csv.gz") is None
    assert read(tmp_path, HEADER.replace(",", ";") + ROW.replace(",", ";"), SEP=";") is not None
    monkeypatch.setattr(plain, "PLAIN_BYTES_MAX", 10)
    assert read(tmp_path, HEADER + ROW) is None
