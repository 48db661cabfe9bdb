"""The processes of a local fleet, from their start to their end."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

import lakebed
from lakebed.fleet.local import FleetSettings, LocalFleet, Part
from lakebed.runtime import Environment
from lakebed.testing import ManualClock
from worlds.waiting import wait_until


def test_every_process_ends_when_it_is_asked_to(tmp_path: Path) -> None:
    """A clean end commits what was written, leaves no process, and the next start reads everything.

    A node that was decommissioned is not started again: another one takes its place, also at each later start.
    """
    settings = FleetSettings(str(tmp_path / "lake"), tmp_path / "local", node_count=2)
    lake = lakebed.open(str(tmp_path / "lake"))
    with LocalFleet(settings) as local:
        with lake.fleet() as fleet:
            tenant = fleet.create_tenant("orders")
            tenant.main.write([(b"%d" % number, b"v") for number in range(100)])
            tenant.main.get(b"1")
            idle = next(node.node for node in fleet.operator.nodes() if not node.tenant_count)
            fleet.operator.decommission(idle)
            killed = local.kill(idle)
            messages: list[str] = []
            local.part(idle).restart_s = 0
            wait_until(lambda: messages.extend(local.watch_once()) or "was decommissioned" in "".join(messages))
            assert messages[-1] == f"{idle} was decommissioned, and is not started again."
            assert list(local.watch_once()) == []
            assert local.part(idle).pid != killed
        pids = [part.pid for part in local.parts]
        codes = [part.process for part in local.parts]
    expected = {part.name: 4 if part.name == idle else 0 for part in local.parts}
    assert [process.returncode for process in codes if process is not None] == list(expected.values())
    assert not [pid for pid in pids if Path(f"/proc/{pid}").exists()]
    (version,) = lake.history("orders")[-1:]
    assert version.facts["lsn"] == 100
    with LocalFleet(settings, say=messages.append) as local, lake.fleet() as fleet:
        assert len(list(fleet.tenant("orders").main.scan())) == 100
        assert messages[-1] == f"{idle} was decommissioned: node-3 is started in its place."
        assert sorted(item.name for item in local.parts) == sorted({"log", "control", *expected, "node-3"} - {idle})


@pytest.mark.parametrize(("lived_s", "waits_s"), [(1, 4), (59, 4), (60, 0.5), (100_000, 0.5)])
def test_only_deaths_soon_after_the_start_make_the_next_start_wait_longer(
    tmp_path: Path, lived_s: int, waits_s: float
) -> None:
    """A part that died eight times in weeks is started again as soon as one that died for the first time."""
    clock = ManualClock()
    local = LocalFleet(FleetSettings(str(tmp_path / "lake"), tmp_path), environment=Environment(clock=clock))
    with subprocess.Popen([sys.executable, "-c", "raise SystemExit(3)"]) as process:
        process.wait()
    part = Part("control", (), tmp_path / "control.log", {}, process=process, start_count=8)
    part.started_s = clock.monotonic_s()
    part.log_file.touch()
    local.parts.append(part)
    clock.advance(lived_s)
    (message,) = local.watch_once()
    assert message.endswith(f"it is started again in {waits_s:g} s.")
    assert list(local.watch_once()) == []
