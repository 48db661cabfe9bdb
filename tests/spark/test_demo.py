"""The demo, as `make demo` runs it, on two months of the year."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.mark.xdist_group("spark of the demo")
def test_two_months_of_real_flights_end_with_every_check_holding(tmp_path: Path) -> None:
    """Merged, compared, stopped, rolled back, expired, told in SQL, and every tag equal to the published CSV."""
    command = [sys.executable, "-W", "error", "-m", "demo", "--months", "2", "--out", str(tmp_path)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    # Without a JDK there is no jar: the demo says so, leaves SQL out and goes on to its end.
    has_jar = any((ROOT / "src" / "lakebed" / "spark" / "jars").glob("*.jar"))
    assert ("11 of 11 checks hold" if has_jar else "8 of 8 checks hold") in done.stdout
    assert ("Left out: The jar of the SQL catalog is not built" in done.stdout) != has_jar
    assert done.stderr == ""
    facts = json.loads((tmp_path / "report.json").read_text())
    table = facts["tables"][0]
    assert [(tag["tag"], tag["rows"], tag["reads_same"], tag["check"]["held"]) for tag in table["tags"]] == [
        ("2013-01", 26803, True, True),
        ("2013-02", 50297, True, True),
    ]
    assert sum(version["rolled_back"] for version in table["versions"]) == 1
    assert table["expiries"][0]["bytes_freed"] > 0
