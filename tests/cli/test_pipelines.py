"""lakebed pipeline run, status, report: without Spark, as far as that goes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import lakebed
from lakebed.cli import exits
from lakebed.pipeline import Pipeline
from lakebed.pipeline.ledger import Ledger
from lakebed.pipeline.model import StepRecord
from lakebed.pipeline.progress import describe
from lakebed.runtime import Environment
from lakebed.spark.sql_parser import first_line

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
    pipeline.write_text(PIPELINE + "  - {step: audit, from: flights, overall: {something is there: count(*) > 0}}\n")
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


def test_a_wrong_name_is_answered_with_what_is_there(cli: Cli, tmp_path: Path) -> None:
    """An unknown run with the runs there are, a branch of a lake without repositories, a folder as pipeline file."""
    lake = tmp_path / "lake"
    opened = lakebed.open(str(lake))
    for command in (("status", lake, "nosuch"), ("report", lake, "nosuch", "-o", tmp_path / "r.html")):
        none = cli("pipeline", *command)
        assert (none.code, none.err.count("\n")) == (exits.NOT_FOUND, 1)
        assert "There is no run 'nosuch'" in none.err
        assert "No pipeline has run in it." in none.err
    for name in ("daily-1", "daily-2"):
        opened.store.put(f"_lakebed/runs/{name}/x", b"")
    assert "It has daily-1, daily-2." in cli("pipeline", "status", lake, "nosuch").err
    branch = cli("pipeline", "status", lake, "--branch", "x/y")
    assert branch.code == exits.NOT_FOUND
    assert "has no repository x. It has no repository yet." in branch.err
    folder = cli("pipeline", "run", tmp_path)
    assert (folder.code, folder.err) == (
        exits.USAGE,
        f"lakebed: '{tmp_path}' is a folder: name the pipeline file in it.\n",
    )


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("[NO_SUCH] It is gone. SQLSTATE: 42P01\nplan", "[NO_SUCH] It is gone."),
        ("\n[X] Of `a`. SQLSTATE: 42703; line 1 pos 7", "[X] Of `a`; line 1 pos 7"),
        ("(SQLSTATE: 22012)\nnext", "next"),
        ("", ""),
    ],
)
def test_messages_of_spark_have_no_codes_for_programs(text: str, shown: str) -> None:
    """The first line that says something, without its SQLSTATE."""
    assert first_line(text) == shown


def test_status_of_one_run_says_which_rows_it_dropped(cli: Cli, lake: str) -> None:
    """The steps with the number of bad rows, most first."""
    plan = Pipeline.parse("name: daily\nlake: x\nsteps:\n  - {step: compact, table: t}\n").plan()
    ledger = Ledger(lakebed.open(lake).store, run_id="daily-1", environment=Environment())
    ledger.begin(plan)
    for number, count in ((1, 1), (2, 1200), (3, 0)):
        ledger.record(StepRecord(number, f"ingest {number}", "ingest", "", "f", 0, 0.1, {"rows_dropped": count}))
    output = cli("pipeline", "status", lake, "daily-1")
    assert "daily-1: 1,201 bad rows dropped, by ingest 2 (1,200), ingest 1 (1)." in output.out
    assert cli("pipeline", "status", lake, "daily-1", "--json").json[0]["rows_dropped"] == {
        "ingest 1": 1,
        "ingest 2": 1200,
    }
    assert "dropped" not in cli("pipeline", "status", lake).out


def test_one_snapshot_is_one_snapshot() -> None:
    """The console says `1 snapshot`."""
    metrics = {"disk_bytes_before": 3_000_000, "disk_bytes_after": 1_000_000, "snapshots_expired": 1}
    messages = [describe(SimpleNamespace(verb="expire", metrics={**metrics, "snapshots_expired": n})) for n in (1, 2)]
    assert [text.partition(",")[0] for text in messages] == ["1 snapshot", "2 snapshots"]
