"""LakeFS's own command-line client and system tests, against lakeFS and against `lakebed serve`."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parent
READY = HERE.parents[2] / "build" / "lakefs" / ".ready"


def run(script: str) -> None:
    """Run one of the scripts here, which compares with what is known."""
    if not READY.exists():
        pytest.skip("lakeFS is not built: run make lakefs")
    done = subprocess.run([sys.executable, str(HERE / script)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.long
def test_lakectls_commands_end_as_they_do_on_lakefs() -> None:
    """More than two hundred commands: exit code, output and status; what differs is listed with its reason."""
    run("lakectl.py")


@pytest.mark.long
def test_random_programs_end_as_they_do_on_lakefs() -> None:
    """Objects, branches, commits, merges, differences, listings: equal statuses and bodies, but for what is listed."""
    run("differential.py")


@pytest.mark.long
def test_lakefss_system_tests_find_what_is_known() -> None:
    """What lakeFS passes itself passes here, but for what is listed with its reason."""
    run("esti.py")
