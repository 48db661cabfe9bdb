"""Real processes that are killed, stopped and resumed under clients that know every acknowledged write."""

from __future__ import annotations

import random
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import timedelta
from pathlib import Path

import pytest

import lakebed
from lakebed.errors import LakebedError
from lakebed.fleet.local import FleetSettings, LocalFleet
from worlds.fleet_storm import Storm, watched
from worlds.waiting import pause, wait_until

NODES = ("node-1", "node-2", "node-3")


@contextmanager
def storming(tmp_path: Path, *, tenants: int = 4, seed: int = 0) -> Iterator[tuple[LocalFleet, Storm]]:
    """A fleet of processes with clients; at the end everything is compared, and the collector misses nothing."""
    lake = lakebed.open(str(tmp_path / "lake"))
    settings = FleetSettings(str(tmp_path / "lake"), tmp_path / "local", options=("--verbose",))
    with LocalFleet(settings) as local, watched(local), lake.fleet() as fleet:
        storm = Storm(fleet, count=tenants, seed=seed)
        storm.start()
        pause(1)
        yield local, storm
        storm.stop()
        storm.check_all(seed=seed)
        report = lake.collect_tenants(dry_run=True, grace=timedelta(0))
        assert report.missing == ()
        assert report.problems == ()


def node_of(storm: Storm, number: int = 0) -> str:
    """The node of a tenant, as the control plane says."""
    result = storm.fleet.operator.tenant(storm.known[number].tenant).preferred
    assert result is not None
    return result


def send(local: LocalFleet, part: str, number: int) -> None:
    """Send a signal to a part, unless it has ended and is not started again yet."""
    with suppress(ProcessLookupError):
        local.kill(part, number)


def progress(storm: Storm) -> list[int]:
    """Acknowledged rows of each tenant."""
    return [len(known.rows) for known in storm.known]


def wait_for_progress(storm: Storm) -> None:
    """Return when every tenant has taken writes and reads since the call."""
    rows, reads = progress(storm), [known.reads for known in storm.known]

    def is_there() -> bool:
        assert not storm.problems(), "\n".join(storm.problems())
        return all(now > then for now, then in zip(progress(storm), rows, strict=True)) and all(
            known.reads > then for known, then in zip(storm.known, reads, strict=True)
        )

    wait_until(is_there, timeout_s=90)


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


@pytest.mark.long
@pytest.mark.parametrize("seed", range(3))
def test_a_long_storm(tmp_path: Path, seed: int) -> None:
    """Two minutes of random kills, stops and moves of every part."""
    rng = random.Random(seed)
    with storming(tmp_path, tenants=8, seed=seed) as (local, storm):
        ends_s = time.monotonic() + 120
        stopped: list[str] = []
        while time.monotonic() < ends_s:
            pause(rng.uniform(1, 6))
            part = rng.choice([*NODES, *NODES, "control", "log"])
            match rng.randrange(4):
                case 0:
                    send(local, part, signal.SIGKILL)
                case 1 if part in NODES and not stopped:
                    send(local, part, signal.SIGSTOP)
                    stopped.append(part)
                case 2 if stopped:
                    send(local, stopped.pop(), signal.SIGCONT)
                case _:
                    try:
                        storm.fleet.operator.migrate(f"t{rng.randrange(8)}", rng.choice(NODES))
                    except LakebedError:
                        continue  # it moves already, or the node is away
            assert not storm.problems(), "\n".join(storm.problems())
        for part in stopped:
            send(local, part, signal.SIGCONT)
        wait_for_progress(storm)
