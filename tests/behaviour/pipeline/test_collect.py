"""The step ``collect``: which files of a table go, and when; without Spark."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pyarrow as pa
import pytest

import lakebed
from lakebed.pipeline import Pipeline
from lakebed.table.table import branch_of

ROWS = pa.table({"id": [1, 2], "note": ["a", "b"]})
DAY_S = 24 * 60 * 60


@pytest.fixture
def lake(tmp_path: Path) -> Path:
    """A lake with the table ``trips``, which has a branch, and two files that no version names: one new, one old."""
    table = lakebed.open(tmp_path / "lake").create_table("trips", ROWS.schema)
    table.append(ROWS)
    table.create_branch("etl")
    branch_of(table, "etl").append(ROWS)
    for orphan, age_s in (("data-new.parquet", 0), ("data-old.parquet", 2 * DAY_S)):
        path = left(tmp_path / "lake", orphan)
        path.write_bytes(b"1234")
        written_s = time.time() - age_s
        os.utime(path, (written_s, written_s))
    return tmp_path / "lake"


def left(lake: Path, name: str) -> Path:
    """A file in the folder of the table's data."""
    return lake / "default.db" / "trips" / "bucket-0" / name


def collect(lake: Path, settings: str = "") -> tuple[int, int]:
    """Run a pipeline of this step; the files and bytes of its record."""
    text = f"name: nightly\nlake: {lake}\nsteps:\n  - {{step: collect, table: trips{settings}}}\n"
    metrics = Pipeline.parse(text).run().records[-1].metrics
    return metrics["files_deleted"], metrics["bytes_freed"]


def test_what_is_old_and_named_by_no_version_goes(lake: Path) -> None:
    """A file that a writer may still commit stays for a day, files of versions stay, those of other branches too."""
    assert collect(lake) == (1, 4)
    assert left(lake, "data-new.parquet").exists()
    assert not left(lake, "data-old.parquet").exists()
    table = lakebed.open(lake).table("trips")
    assert table.read().num_rows == 2
    assert branch_of(table, "etl").read().num_rows == 4
    assert collect(lake, ", grace: 0 s") == (1, 4)
    assert not left(lake, "data-new.parquet").exists()


def test_a_dry_run_deletes_nothing(lake: Path) -> None:
    """Its record says what would go."""
    assert collect(lake, ", dry_run: yes") == (1, 4)
    assert left(lake, "data-old.parquet").exists()
    assert collect(lake, ", grace: 0 s, dry_run: yes") == (2, 8)
    assert left(lake, "data-new.parquet").exists()
