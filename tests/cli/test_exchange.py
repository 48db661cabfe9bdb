"""lakebed table import and export."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import lakebed
from lakebed.cli import exits

Cli = Callable[..., Any]


@pytest.fixture
def source(tmp_path: Path) -> Path:
    """A folder of two files in partitions."""
    for part in (1, 2):
        (tmp_path / "source" / f"k={part}").mkdir(parents=True)
        pq.write_table(pa.table({"id": [part, part + 10]}), tmp_path / "source" / f"k={part}" / "x.parquet")
    return tmp_path / "source"


def test_in_and_out(cli: Cli, tmp_path: Path, source: Path) -> None:
    """An import makes lake and table, with a dry run before; a version leaves; facts have stable keys."""
    lake = tmp_path / "new"
    words = ("table", "import", lake, "t", source, "--format", "parquet")
    assert cli(*words, "--dry-run").code == exits.NOT_FOUND
    assert not lake.exists()
    facts = cli(*words, "--json").json
    assert facts == {
        "table": "t",
        "format": "parquet",
        "source": f"file://{source}",
        "version": None,
        "dry_run": False,
        "in_place": False,
        "rows": 4,
        "bytes": sum(path.stat().st_size for path in source.rglob("*.parquet")),
        "files_taken": 2,
        "files_rewritten": 0,
        "reasons": {},
        "notes": [],
        "snapshot": 1,
    }
    assert cli(*words).code == exits.CONFLICT
    assert "would import 4 rows in 2 files" in cli(*words, "--append", "--dry-run").out
    assert "imported 4 rows in 2 files (2 copied unchanged)" in cli(*words, "--append").out
    out = cli("table", "export", lake, "t", tmp_path / "out", "--format", "parquet", "--version", "1", "--json").json
    assert (out["snapshot"], out["rows"], out["target_version"]) == (1, 4, None)
    assert len(list((tmp_path / "out").rglob("*.parquet"))) == 2
    assert cli("table", "export", lake, "t", tmp_path / "out", "--format", "parquet").code == exits.CONFLICT


def test_mistakes(cli: Cli, tmp_path: Path, source: Path) -> None:
    """A mistake is one sentence, and creates neither lake nor table."""
    lake = tmp_path / "new"
    for words, code in (
        (("import", lake, "t", tmp_path / "nothing", "--format", "parquet"), exits.NOT_FOUND),
        (("import", lake, "t", source, "--format", "orc"), exits.USAGE),
        (("import", lake, "t", source, "--format", "parquet", "--version", "3"), exits.USAGE),
        (("import", lake, "t", source, "--format", "parquet", "--catalog", "c"), exits.USAGE),
        (("import", lake, "t", source), exits.USAGE),
    ):
        done = cli("table", *words)
        assert (done.code, done.out) == (code, ""), done.err
        assert done.err.count("\n") <= 3
        assert not lake.exists()
    lakebed.open(lake)
    assert cli("table", "export", lake, "t", tmp_path / "out", "--format", "parquet").code == exits.NOT_FOUND


def test_a_history(cli: Cli, tmp_path: Path) -> None:
    """Versions of a Delta table, each with a tag; a dry run says the same and makes nothing."""
    deltalake = pytest.importorskip("deltalake")
    lake, source = tmp_path / "lake", tmp_path / "delta"
    for number in range(3):
        deltalake.write_deltalake(source, pa.table({"id": [number]}), mode="append")
    lakebed.open(lake)
    words = ("table", "import", lake, "t", source, "--format", "delta")
    dry = cli(*words, "--history", "--dry-run", "--json").json
    assert [version["snapshot"] for version in dry["versions"]] == [None] * 3
    assert cli(*words, "--versions", "9").code == exits.NOT_FOUND
    assert cli(*words, "--tags").code == exits.USAGE
    assert cli(*words, "--history", "--version", "1").code == exits.USAGE
    done = cli(*words, "--versions", "0, 1")
    assert "imported 2 versions in 2 files (2 copied unchanged)" in done.out
    assert "Version 1 (version-1): 1 new file, 0 removed." in done.out
    assert cli(*words, "--history").code == exits.CONFLICT
    facts = cli("table", "import", lake, "u", source, "--format", "delta", "--history", "--json").json
    assert facts["versions"][2] == {
        "version": "2",
        "tags": ["version-2"],
        "snapshot": 3,
        "bytes": dry["versions"][2]["bytes"],
        "files_taken": 1,
        "files_rewritten": 0,
        "files_removed": 0,
    }
    assert cli("table", "read", lake, "t", "--version", "version-1", "--count").out.strip() == "2"
