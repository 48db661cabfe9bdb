"""Every command with a location that is none, as an unset variable makes it."""

from __future__ import annotations

import runpy
from pathlib import Path
from typing import Any

import pytest

from lakebed.cli import exits

COMMANDS: list[tuple[str, int]] = runpy.run_path(str(Path(__file__).parent / "every_command.py"))["COMMANDS"]
LINES = sorted({line for line, _ in COMMANDS if " LAKE" in line})


@pytest.mark.parametrize("location", ["", "s3://"])
def test_no_command_takes_a_folder_for_a_url(
    cli: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, location: str
) -> None:
    """A lake without a bucket is a wrong command, in one sentence, and no command writes a folder named ``s3:``."""
    (tmp_path / "rows.csv").write_text("id,n,v\n1,1,a\n")
    monkeypatch.chdir(tmp_path)
    for line in LINES:
        words = [location if word == "LAKE" else word.replace("FOLDER", ".") for word in line.split(" ")]
        answer = cli(*words)
        assert answer.code == exits.USAGE, (line, answer)
        assert answer.err.startswith('{"error":' if "--json" in words else "lakebed: "), (line, answer)
        assert len(answer.err.splitlines()) == 1, (line, answer)
    assert [path.name for path in tmp_path.iterdir()] == ["rows.csv"]


@pytest.mark.parametrize(
    "words",
    [
        *("repo get LAKE rep main a.csv s3:out", "repo download LAKE rep main s3://bucket/out"),
        *("repo upload LAKE rep main s3://bucket/in", "repo put LAKE rep main a.csv s3:in"),
        *("table read LAKE flights -o s3:rows.csv", "table write LAKE flights s3:rows.csv"),
        *("table create LAKE new --like gs:rows.csv", "table export LAKE flights s3:out --format parquet"),
        *("table import LAKE new s3:in --format parquet", "pipeline report LAKE -o s3:report.html"),
        *("pipeline run s3://bucket/p.yaml --check", "kv branch LAKE x s3:/copy", "serve LAKE --access-log s3:log"),
        *(
            "repo list LAKE --metadata s3:records",
            "kv get --path s3:x k",
            "fleet collect LAKE --dry-run --storage s3:x",
        ),
        *("fleet node --control http://127.0.0.1:9 --local s3:node", "fleet up LAKE --local s3:fleet"),
        *("fleet up LAKE --log s3:log", "fleet control LAKE --log s3:log", "fleet control LAKE --log x --ledger s3:x"),
    ],
)
def test_no_other_location_is_a_folder_for_a_url(
    cli: Any, lake: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, words: str
) -> None:
    """Sources, targets and files of this machine are read by the same rule as lakes are."""
    monkeypatch.chdir(tmp_path)
    cli("repo", "create", lake, "rep")
    before = sorted(path.name for path in tmp_path.iterdir())
    answer = cli(*(lake if word == "LAKE" else word for word in words.split(" ")))
    assert answer.code == exits.USAGE, answer
    assert len(answer.err.splitlines()) == 1, answer
    assert sorted(path.name for path in tmp_path.iterdir()) == before
