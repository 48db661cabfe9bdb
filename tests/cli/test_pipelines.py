"""lakebed pipeline run, status, report: without Spark, as far as that goes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from lakebed.cli import exits

Cli = Callable[..., Any]

PIPELINE = """
name: daily
lake: ${lake}
vars:
  lake:
tables:
  flights:
    primary_key: [id]
    options: {bucket: 1}
    schema: {id: BIGINT, delay: INT}
steps:
  - step: ingest
    from: ${lake}/../day.csv
    as: delivery
    schema: {id: bigint, delay: int}
  - step: merge
    into: flights
    from: delivery
"""


@pytest.fixture
def pipeline(tmp_path: Path) -> Path:
    """A pipeline file and its delivery."""
    (tmp_path / "day.csv").write_text("id,delay\n1,5\n")
    (tmp_path / "daily.yaml").write_text(PIPELINE)
    return tmp_path / "daily.yaml"


def test_check_finds_no_mistake(cli: Cli, pipeline: Path, tmp_path: Path) -> None:
    """--check reads the file, starts nothing and makes nothing."""
    answer = cli("pipeline", "run", pipeline, "--var", f"lake={tmp_path}/lake", "--check", "--json")
    assert answer.code == exits.OK
    assert answer.json["steps"] == 2
    assert not (tmp_path / "lake").exists()


@pytest.mark.parametrize("wrong", ["  - step: ingst\n", "  - step: merge\n    nto: flights\n"])
def test_a_mistake_has_its_line(cli: Cli, pipeline: Path, tmp_path: Path, wrong: str) -> None:
    """An unknown step or key is one sentence with the file's line, and nothing runs."""
    pipeline.write_text(PIPELINE + wrong)
    answer = cli("pipeline", "run", pipeline, "--var", f"lake={tmp_path}/lake")
    assert answer.code == exits.USAGE
    assert len(answer.err.splitlines()) == 1
    assert "daily.yaml, line " in answer.err
    assert not (tmp_path / "lake").exists()


def test_refusals(cli: Cli, pipeline: Path, tmp_path: Path) -> None:
    """A missing file, a variable without value, a missing lake."""
    assert cli("pipeline", "run", tmp_path / "none.yaml").code == exits.NOT_FOUND
    assert cli("pipeline", "run", pipeline).code == exits.USAGE
    assert cli("pipeline", "run", pipeline, "--var", "lake").code == exits.USAGE
    assert cli("pipeline", "status", tmp_path / "none", "--json").code == exits.NOT_FOUND


def test_no_java_is_one_sentence(pipeline: Path, tmp_path: Path) -> None:
    """Without Java a pipeline that needs Spark stops with a sentence that says what to install."""
    lake = tmp_path / "lake"
    done = subprocess.run(
        [sys.executable, "-m", "lakebed.cli", "pipeline", "run", str(pipeline), "--var", f"lake={lake}", "--json"],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "JAVA_HOME": str(tmp_path)},
    )
    assert done.returncode == exits.USAGE
    error = json.loads(done.stderr.splitlines()[-1])["error"]
    assert error["kind"] == "java_missing"
    assert "Traceback" not in done.stderr


def test_status_and_report_of_a_lake_without_runs(cli: Cli, lake: str, tmp_path: Path) -> None:
    """No run is an empty list; a report is refused or says so, and never a traceback."""
    assert cli("pipeline", "status", lake, "--json").json == []
    assert "No pipeline ever ran" in cli("pipeline", "status", lake).out
    answer = cli("pipeline", "report", lake, "--output", tmp_path / "page.html")
    assert answer.code in (exits.OK, exits.NOT_FOUND)
    assert "Traceback" not in answer.err
