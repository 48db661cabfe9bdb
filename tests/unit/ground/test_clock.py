"""The machine's clock."""

from __future__ import annotations

import shutil
import subprocess
import sys

import pytest

ASLEEP_S = 1_000_000
"""How long the machine of the test has slept."""

SHOW = "import time; from lakebed.clock import SystemClock; print(time.monotonic(), SystemClock().monotonic_s())"


def test_time_goes_on_while_the_machine_sleeps() -> None:
    """A lease or a limit that a sleeping machine has passed is over when it wakes: Linux pretends such a sleep here."""
    if shutil.which("unshare") is None:
        pytest.skip("unshare is missing: install util-linux")
    with_sleep = ["unshare", "--user", "--map-root-user", "--time", "--boottime", str(ASLEEP_S)]
    result = subprocess.run([*with_sleep, sys.executable, "-c", SHOW], capture_output=True, text=True, check=False)
    if result.returncode and "unshare" in result.stderr:
        pytest.skip(f"this machine allows no namespace of time: {result.stderr.strip()}")
    awake_s, elapsed_s = map(float, result.stdout.split())
    assert ASLEEP_S <= elapsed_s - awake_s < ASLEEP_S + 1_000
