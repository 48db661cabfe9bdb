"""Versions of tables leave as folders of Parquet files; DuckDB says what they hold."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import duckdb
import pyarrow as pa
import pytest

import lakebed
from lakebed.errors import AlreadyExists, InvalidRequest
from lakebed.lake.lake import Lake
from lakebed.table.exports import ExportOptions, export_table


@pytest.fixture
def lake(tmp_path: Path) -> Lake:
    """A lake with a keyed table ``t`` of two versions, the first of them tagged, partitioned by a text."""
    result = lakebed.open(tmp_path / "lake")
    keys = [pa.field("id", pa.int64(), nullable=False), pa.field("p", pa.string(), nullable=False)]
    schema = pa.schema([*keys, ("v", pa.int64())])
    table = result.create_table("t", schema, primary_keys=["id", "p"], partition_keys=["p"])
    table.upsert(pa.table({"id": range(60), "p": ["a", "b/c"] * 30, "v": range(60)}))
    table.create_tag("first")
    table.upsert(pa.table({"id": range(40, 80), "p": ["a", "b/c"] * 20, "v": [-1] * 40}))
    return result


def read(folder: Path) -> list[tuple[int, str, int]]:
    """The rows of an export, by DuckDB."""
    files = f"'{folder}/**/*.parquet', hive_partitioning = true"
    return sorted(duckdb.sql(f"SELECT id, p, v FROM read_parquet({files})").fetchall())


def test_versions_are_merged_and_replaced(lake: Lake, tmp_path: Path) -> None:
    """A tag, then the newest version over it: rows are merged, and the files of the first are gone."""
    table, target = lake.table("t"), tmp_path / "out"
    for version in ("first", None):
        report = export_table(
            table, str(target), format="parquet", options=ExportOptions(version=version, overwrite=version is None)
        )
        expected = [(row["id"], row["p"], row["v"]) for row in table.read(version=version).to_pylist()]
        assert report.row_count == len(expected) == (60 if version else 80)
        assert read(target) == sorted(expected)
    assert {path.name for path in target.iterdir()} == {"_SUCCESS", "p=a", "p=b%2Fc"}
    assert [path.name for path in tmp_path.iterdir() if path.name.startswith(".")] == []


def test_a_killed_export_leaves_no_target(lake: Lake, tmp_path: Path) -> None:
    """A target that is there stays as it was, one that is not there does not appear."""
    target = tmp_path / "out"
    program = (
        "import os, sys, lakebed\n"
        "from lakebed.table.exports import ExportOptions, export_table\n"
        f"table = lakebed.open({lake.url!r}).table('t')\n"
        "def killed(progress):\n"
        "    if progress.done_count > 50:\n"
        "        os._exit(9)\n"
        "options = ExportOptions(overwrite=True)\n"
        f"export_table(table, {str(target)!r}, format='parquet', options=options, progress=killed)\n"
    )
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 9
    assert not target.exists()
    export_table(lake.table("t"), str(target), format="parquet", options=ExportOptions(version="first"))
    before = read(target)
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 9
    assert read(target) == before


def test_a_failed_export_leaves_nothing(lake: Lake, tmp_path: Path) -> None:
    """An error of the caller in the middle: no target, and no hidden folder."""

    def stop(progress: object) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        export_table(lake.table("t"), str(tmp_path / "out"), format="parquet", progress=stop)
    assert [path.name for path in tmp_path.iterdir()] == ["lake"]


def test_what_is_refused(lake: Lake, tmp_path: Path) -> None:
    """The table's own folder, a target that is there, and one with files of somebody: nothing is changed."""
    table = lake.table("t")
    for target in (table.url, f"{table.url}/below", lake.url):
        with pytest.raises(InvalidRequest, match="table's own folder"):
            export_table(table, target, format="parquet")
    with pytest.raises(InvalidRequest, match="use parquet, delta, iceberg"):
        export_table(table, str(tmp_path / "out"), format="orc")
    export_table(table, str(tmp_path / "out"), format="parquet")
    with pytest.raises(AlreadyExists, match="overwrite it"):
        export_table(table, str(tmp_path / "out"), format="parquet")
    other = tmp_path / "home"
    other.mkdir()
    (other / "thesis.txt").write_text("precious")
    with pytest.raises(AlreadyExists, match=r"thesis\.txt"):
        export_table(table, str(other), format="parquet", options=ExportOptions(overwrite=True))
    assert (other / "thesis.txt").read_text() == "precious"
