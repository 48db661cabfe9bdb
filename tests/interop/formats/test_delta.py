"""Delta tables, written by deltalake: what the library reads of them is what an import gives."""

from __future__ import annotations

import base64
import datetime
import json
import struct
import uuid
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from lakebed.errors import InvalidRequest, NotFound
from lakebed.fsck.check import check_lake
from lakebed.lake.imports import import_table
from lakebed.lake.lake import Lake
from lakebed.table.exports import export_table
from lakebed.table.imports import ImportOptions, SourceOptions

Rows = Callable[[int, int], pa.Table]
Plain = Callable[[pa.Table], list[str]]

MODE = "delta.columnMapping.mode"

deltalake = pytest.importorskip("deltalake")


def by_library(folder: Path, version: int | None = None) -> pa.Table:
    """What deltalake reads."""
    return pa.RecordBatchReader.from_stream(deltalake.DeltaTable(folder, version=version).scan()).read_all()


@pytest.mark.parametrize("in_place", [False, True], ids=["copied", "in-place"])
def test_versions_and_partitions(lake: Lake, rows: Rows, plain: Plain, tmp_path: Path, in_place: bool) -> None:
    """Every type, in partitions with nulls and texts to escape, old and new versions: no file is rewritten."""
    source = tmp_path / "delta"
    deltalake.write_deltalake(source, rows(0, 60), partition_by=["p"])
    deltalake.write_deltalake(source, rows(60, 90), mode="append")
    deltalake.DeltaTable(source).delete("id < 10")
    wider = rows(90, 95).append_column("more", pa.array([1] * 5, pa.int64()))
    deltalake.write_deltalake(source, wider, mode="append", schema_mode="merge")
    for version, name in ((0, "first"), (2, "deleted"), (None, "newest")):
        report = import_table(
            lake,
            name,
            str(source),
            format="delta",
            options=ImportOptions(in_place=in_place),
            source_options=SourceOptions(version=version),
        )
        assert (report.rewritten_count, report.version) == (0, str(3 if version is None else version))
        table, expected = lake.table(name), by_library(source, version)
        assert table.schema.partition_keys == ("p",)
        assert plain(table.read()) == plain(expected.select(table.arrow_schema.names))
        assert table.scan(where="p = 'b/c=ü %' AND id >= 30").count() == sum(
            row["p"] == "b/c=ü %" and row["id"] >= 30 for row in expected.to_pylist()
        )
    assert check_lake(lake, deep=True).error_count == 0


def edited(source: Path, change: Callable[[dict[str, Any]], Iterable[dict[str, Any]]]) -> None:
    """Rewrite the first entry of a table's log, action by action."""
    log = source / "_delta_log" / f"{0:020}.json"
    actions = [json.loads(line) for line in log.read_text().splitlines()]
    log.write_text("".join(f"{json.dumps(item)}\n" for action in actions for item in change(action)))


def with_feature(action: dict[str, Any], *names: str) -> dict[str, Any]:
    """The protocol with more features."""
    if "protocol" not in action:
        return action
    result = action["protocol"]
    more = [*(result.get("readerFeatures") or []), *names]
    return {"protocol": {"minReaderVersion": 3, "minWriterVersion": 7, "readerFeatures": more, "writerFeatures": more}}


def deletion_vector(positions: Iterable[int]) -> dict[str, Any]:
    """An inline deletion vector: a roaring bitmap of positions, by the format's own description."""
    values = sorted(positions)
    container = struct.pack("<HH", 0, len(values) - 1)
    bitmap = struct.pack("<II", 12346, 1) + container + struct.pack("<I", 16) + struct.pack(f"<{len(values)}H", *values)
    body = struct.pack("<IQI", 1681511377, 1, 0) + bitmap
    body += bytes(-len(body) % 4)
    digits = "0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ.-:+=^!/*?&<>()[]{}@%$#"
    standard = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz!#$%&()*+-;<=>?@^_`{|}~"
    text = base64.b85encode(body).decode().translate(str.maketrans(standard, digits))
    return {"storageType": "i", "pathOrInlineDv": text, "sizeInBytes": len(body), "cardinality": len(values)}


def test_deletion_vectors(lake: Lake, rows: Rows, plain: Plain, tmp_path: Path) -> None:
    """A file with deleted rows is rewritten without them, the others are copied; in a dry run that is said before."""
    source = tmp_path / "delta"
    deltalake.write_deltalake(source, rows(0, 60), partition_by=["p"])

    def delete(action: dict[str, Any]) -> list[dict[str, Any]]:
        if "add" in action and action["add"]["partitionValues"]["p"] == "a":
            action["add"]["deletionVector"] = deletion_vector([0, 3, 17])
        return [with_feature(action, "deletionVectors")]

    edited(source, delete)
    expected = by_library(source)
    assert expected.num_rows == 57
    for dry_run in (True, False):
        report = import_table(lake, "t", str(source), format="delta", options=ImportOptions(dry_run=dry_run))
        assert (report.taken_count, report.rewritten_count) == (2, 1)
        assert report.reasons == {"has deleted rows (a deletion vector)": 1}
    assert plain(lake.table("t").read()) == plain(expected.select(lake.table("t").arrow_schema.names))


@pytest.mark.parametrize("kind", ["deleted rows", "mapped columns"])
@pytest.mark.parametrize("year", [9999, 1500, 2024])
def test_instants_of_files_that_are_rewritten_are_not_others(lake: Lake, tmp_path: Path, year: int, kind: str) -> None:
    """Also dates that nanoseconds do not hold, as Spark writes timestamps by default: INT96, without a zone."""
    source = tmp_path / "delta"
    moment = datetime.datetime(year, 12, 31, tzinfo=datetime.UTC)
    stored = pa.table({"at": pa.array([moment] * 3, pa.timestamp("us", "UTC"))})
    deltalake.write_deltalake(source, stored)
    [file] = source.glob("*.parquet")
    pq.write_table(stored, file, use_deprecated_int96_timestamps=True)

    def change(action: dict[str, Any]) -> list[dict[str, Any]]:
        if "add" in action:
            action["add"]["size"] = file.stat().st_size
            action["add"]["stats"] = json.dumps({"numRecords": 3})
            if kind == "deleted rows":
                action["add"]["deletionVector"] = deletion_vector([1])
        if "metaData" in action and kind == "mapped columns":
            document = json.loads(action["metaData"]["schemaString"])
            mapping = {"delta.columnMapping.id": 1, "delta.columnMapping.physicalName": "at"}
            document["fields"] = [{**document["fields"][0], "name": "moment", "metadata": mapping}]
            action["metaData"]["schemaString"] = json.dumps(document)
            action["metaData"]["configuration"] = {MODE: "name", "delta.columnMapping.maxColumnId": "1"}
        return [with_feature(action, "deletionVectors" if kind == "deleted rows" else "columnMapping")]

    edited(source, change)
    report = import_table(lake, "t", str(source), format="delta")
    assert report.rewritten_count == 1
    [moments] = lake.table("t").read().columns
    assert moments.to_pylist() == [moment] * (2 if kind == "deleted rows" else 3)


def test_column_mapping(lake: Lake, plain: Plain, tmp_path: Path) -> None:
    """Columns whose names in the files are others, also inside of nested ones, keep their values."""
    source = tmp_path / "delta"
    kind = pa.struct([("i1", pa.int64()), ("i2", pa.string())])
    stored = pa.table({"c1": [1, 2, 3], "c2": pa.array([{"i1": i, "i2": str(i)} for i in range(3)], kind)})
    deltalake.write_deltalake(source, stored)
    names = {"c1": "key", "c2": "pair", "i1": "left", "i2": "right"}
    ids = iter(range(1, 10))

    def renamed(fields: list[dict[str, Any]]) -> None:
        for field in fields:
            mapping = {"delta.columnMapping.id": next(ids), "delta.columnMapping.physicalName": field["name"]}
            field["metadata"] = mapping
            field["name"] = names[field["name"]]
            if isinstance(field["type"], dict):
                renamed(field["type"]["fields"])

    def map_columns(action: dict[str, Any]) -> list[dict[str, Any]]:
        if "metaData" in action:
            document = json.loads(action["metaData"]["schemaString"])
            renamed(document["fields"])
            action["metaData"]["schemaString"] = json.dumps(document)
            action["metaData"]["configuration"] = {
                "delta.columnMapping.mode": "name",
                "delta.columnMapping.maxColumnId": "4",
            }
        return [with_feature(action, "columnMapping")]

    edited(source, map_columns)
    expected = by_library(source)
    assert expected.column_names == ["key", "pair"]
    report = import_table(lake, "t", str(source), format="delta")
    assert report.reasons == {"has columns under other names (column mapping)": 1}
    assert plain(lake.table("t").read()) == plain(expected)


def test_what_is_refused(lake: Lake, rows: Rows, tmp_path: Path) -> None:
    """An unknown feature, a type that the format lacks, a version or a table that is not there: a sentence each."""
    source = tmp_path / "delta"
    deltalake.write_deltalake(source, rows(0, 3))
    for version, says in ((7, "at version 7"), ("monday", "not a version of a Delta table")):
        with pytest.raises(InvalidRequest, match=says):
            import_table(lake, "t", str(source), format="delta", source_options=SourceOptions(version=version))
    edited(source, lambda action: [with_feature(action, f"future-{uuid.UUID(int=1)}")])
    with pytest.raises(InvalidRequest, match="future-"):
        import_table(lake, "t", str(source), format="delta")
    with pytest.raises(NotFound, match="no Delta table"):
        import_table(lake, "t", str(tmp_path / "nothing"), format="delta")
    assert not (tmp_path / "nothing").exists()
    assert lake.ls() == []


def test_an_empty_text_as_a_partition_value(lake: Lake, tmp_path: Path) -> None:
    """It comes as null, as Delta's protocol says; an export keeps the text in the log, where deltalake reads it."""
    rows = {"id": [1, 2, 3], "p": ["", None, " "]}
    deltalake.write_deltalake(tmp_path / "delta", pa.table(rows), partition_by=["p"])
    import_table(lake, "t", str(tmp_path / "delta"), format="delta")
    assert lake.table("t").read().sort_by("id")["p"].to_pylist() == [None, None, " "]
    table = lake.create_table("u", pa.table(rows).schema, partition_keys=["p"])
    table.append(pa.table(rows))
    export_table(table, str(tmp_path / "out"), format="delta")
    assert {row["id"]: row["p"] for row in by_library(tmp_path / "out").to_pylist()} == {1: "", 2: None, 3: " "}
    log = (tmp_path / "out" / "_delta_log" / f"{0:020d}.json").read_text().splitlines()
    values = [json.loads(line)["add"]["partitionValues"]["p"] for line in log if "add" in json.loads(line)]
    assert sorted(values, key=str) == ["", " ", None]


def test_a_file_that_is_gone(lake: Lake, rows: Rows, tmp_path: Path) -> None:
    """A source whose file was vacuumed is refused with the file's URL, and nothing is left."""
    source = tmp_path / "delta"
    deltalake.write_deltalake(source, rows(0, 3))
    (gone,) = source.glob("*.parquet")
    gone.unlink()
    with pytest.raises(NotFound, match=rf"source's file .*{gone.name} is gone"):
        import_table(lake, "t", str(source), format="delta")
    assert lake.ls() == []
    assert not list(Path(lake.url.removeprefix("file://")).rglob("schema-*"))
