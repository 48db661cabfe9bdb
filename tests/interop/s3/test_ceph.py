"""Ceph's public suite for S3 servers, against the gateway."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parent
SUITE = HERE.parents[2] / "build" / "s3-tests"


@pytest.mark.long
def test_cephs_suite_finds_what_is_known() -> None:
    """Every test of an operation that is served passes, but for those that are listed with their reasons."""
    if not (SUITE / ".ready").exists():
        pytest.skip("Ceph's suite is not there: run make s3-tests")
    python = SUITE / "environment" / "bin" / "python"
    command = [sys.executable, str(HERE / "ceph.py"), str(SUITE / "suite"), "--python", str(python)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
