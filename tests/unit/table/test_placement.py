"""Folders of data files: those of the format's Java implementation, and those in which other writers put files."""

from __future__ import annotations

import datetime
import json
import struct
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from lakebed.errors import InvalidRequest, UnsupportedFormat
from lakebed.table.codec.binary_row import encode_rows
from lakebed.table.codec.java_text import newer_text, older_text
from lakebed.table.files.placement import Placement
from lakebed.table.model.model import DataField, TableSchema
from lakebed.table.model.options import DATA_FILE_DIRECTORY
from lakebed.table.model.types import arrow_type, parse_type

GOLDEN = Path(__file__).parents[2] / "golden" / "java"
FIRST_DAY, LAST_DAY = (-719_162, 2_932_896)


def column_of(kind: str, text: str | None) -> pa.Array:
    """The value of a golden case as an array of one; raises OverflowError for what Arrow cannot hold."""
    target, root = arrow_type(kind), parse_type(kind).root
    if text is None:
        return pa.nulls(1, target)
    if root in ("FLOAT", "DOUBLE"):
        packed = struct.pack("<i", int(text)) if root == "FLOAT" else struct.pack("<Q", int(text))
        return pa.array(struct.unpack("<f" if root == "FLOAT" else "<d", packed), target)
    if root in ("STRING", "VARCHAR", "CHAR"):
        return pa.array([text], target)
    if root == "BOOLEAN":
        return pa.array([text == "true"])
    if root == "DECIMAL":
        return pa.array([Decimal(text)]).cast(target)
    if root.startswith("TIMESTAMP"):
        milliseconds, nanoseconds = map(int, text.split("+"))
        per_tick = {"s": 10**9, "ms": 10**6, "us": 10**3, "ns": 1}[target.unit]
        return pa.array([(milliseconds * 10**6 + nanoseconds) // per_tick], pa.int64()).cast(target)
    return pa.array([int(text)], pa.int32() if root in ("DATE", "TIME") else target).cast(target)


def day_of(case: dict[str, Any]) -> int:
    """The day of a golden date or timestamp, 0 of anything else."""
    root = parse_type(case["type"]).root
    if case["value"] is None or root not in ("DATE", "TIMESTAMP", "TIMESTAMP_LTZ"):
        return 0
    return int(case["value"]) if root == "DATE" else int(case["value"].split("+")[0]) // 86_400_000


def test_folders_are_those_of_java() -> None:
    """Every type, value and option of the golden file gets the folder that the Java client computes for it."""
    different, refused, checked = [], 0, 0
    for case in json.loads((GOLDEN / "folders.json").read_text()):
        directory = DATA_FILE_DIRECTORY.parse(case["directory"] or "")
        types = (case["type"], "INT")
        placement = Placement((case["column"], "k"), types, case["legacy"], case["default_name"], directory)
        is_outside = not FIRST_DAY <= day_of(case) <= LAST_DAY
        try:
            row = encode_rows(
                [column_of(*(case[name] for name in ("type", "value"))), pa.array([7], pa.int32())], types
            )
            folders = placement.folders(row[0].as_py(), case["bucket"])
        except (UnsupportedFormat, OverflowError):
            assert is_outside or case["type"].endswith("(9)"), case
            refused += 1
            continue
        assert not is_outside, case
        checked += 1
        if folders[0] != case["folder"]:
            different.append((case, folders))
    assert different == []
    assert checked > 600
    assert refused < 130


def test_floating_texts_are_those_of_java_17() -> None:
    """DOUBLE and FLOAT print as in Java 17, digit by digit, and both generations' texts read back as the value."""
    lines = (GOLDEN / "floats.txt").read_text().splitlines()
    assert len(lines) == 1500
    differing = 0
    for line in lines:
        double_bits, double_text, single_bits, single_text = line.split()
        for bits, text, packing, is_single in (
            (double_bits, double_text, "qd", False),
            (single_bits, single_text, "if", True),
        ):
            (value,) = struct.unpack(packing[1], struct.pack(packing[0], int(bits)))
            assert older_text(value, is_single=is_single) == text
            newer = newer_text(value, is_single=is_single)
            differing += newer != text
            assert value != value or struct.pack(packing[1], float(newer)) == struct.pack(packing[0], int(bits))
    assert differing > 100


@pytest.mark.parametrize(
    ("value", "text"),
    [(2e23, "2.0E23"), (5e-324, "4.9E-324"), (2.0**-44, "5.684341886080802E-14"), (1e23, "1.0E23"), (1.0, "1.0")],
)
def test_newer_java_prints_the_shortest_text(value: float, text: str) -> None:
    """Java 19 and later print the shortest text that reads back; of one digit, the nearest two."""
    assert newer_text(value, is_single=False) == text


def folders_of(kind: str, value: Any, options: dict[str, str]) -> tuple[str, ...]:
    """The folders of bucket 0 of a value of the partition column p."""
    schema = TableSchema(0, (DataField(0, "p", kind),), 0, ("p",), (), options, "", 0)
    row = encode_rows([pa.array([value], arrow_type(kind))], [kind])[0].as_py()
    return Placement.of(schema).folders(row, 0)


@pytest.mark.parametrize(
    ("kind", "value", "options", "others"),
    [
        ("DATE", datetime.date(2013, 1, 1), {}, ["p=2013-01-01"]),
        ("DATE", datetime.date(2013, 1, 1), {"partition.legacy-name": "false"}, []),
        ("INT", 7, {}, []),
        ("STRING", "x", {}, []),
        ("STRING", "a:b", {}, ["p=a:b"]),
        ("STRING", "a/../b", {}, []),
        ("STRING", None, {"partition.default-name": "none"}, ["p=__DEFAULT_PARTITION__"]),
        ("BOOLEAN", True, {}, ["p=True"]),
        ("DOUBLE", 1e10, {}, ["p=10000000000.0"]),
        ("DOUBLE", 2e23, {}, ["p=2.0E23", "p=2e+23"]),
        (
            "TIMESTAMP(6)",
            datetime.datetime(2024, 1, 1),
            {"partition.legacy-name": "false"},
            ["p=2024-01-01 00%3A00%3A00", "p=2024-01-01 00:00:00"],
        ),
        ("INT", 7, {"data-file.path-directory": "data"}, ["p=7"]),
    ],
)
def test_files_of_other_writers_have_a_second_place(
    kind: str, value: Any, options: dict[str, str], others: list[str]
) -> None:
    """Where pypaimon, newer versions of Java and earlier ones of lakebed spell a value otherwise, both are known."""
    assert folders_of(kind, value, options)[1:] == tuple(f"{folder}/bucket-0" for folder in others)


@pytest.mark.parametrize("directory", ["/x", "../x", "a/../../b", "s3://elsewhere", "file:/x"])
def test_a_directory_outside_the_table_is_refused(directory: str) -> None:
    """Data files of a table lie below its folder, whatever the option says."""
    with pytest.raises(InvalidRequest, match="below the table's"):
        folders_of("INT", 7, {"data-file.path-directory": directory})


@pytest.mark.parametrize("kind", ["BINARY(4)", "VARBINARY(4)", "BYTES"])
def test_binary_partitions_have_no_folder(kind: str) -> None:
    """A binary value is printed differently by every process of Java: its folder is never guessed."""
    with pytest.raises(UnsupportedFormat, match="no client of the format"):
        folders_of(kind, b"abcd", {})
