"""Ten minutes of random faults in every part of a fleet of real processes, each of which has one to take its place.

Parts are killed, or stand still for up to forty seconds, which is longer than any lease: what wakes is a zombie.
Tenants move meanwhile. Clients know every write that was acknowledged to them.
"""

from __future__ import annotations

import os
import random
import signal
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

import lakebed
from lakebed.errors import LakebedError
from lakebed.fleet.address import LEDGER_VARIABLE, LOG_VARIABLE
from lakebed.ids import new_uuid
from worlds.fleet_storm import Storm, watched
from worlds.fleet_twins import TwinFleet, twins
from worlds.nats_cluster import NatsCluster
from worlds.postgresql import running_postgresql
from worlds.waiting import pause, wait_until

STORM_S = 600.0
TENANT_COUNT = 8
QUIET_S = 120.0
"""In which every tenant must take writes and reads again once the faults are over."""

Fault = Callable[[], object]
"""Makes something fail; returns what makes it work again, or None when that needs nobody."""


def kill_part(local: TwinFleet, name: str) -> None:
    """End a process at once; it is started again."""
    with suppress(ProcessLookupError):
        local.kill(name)


def stop_part(local: TwinFleet, name: str) -> Callable[[], None]:
    """Let a process stand still."""
    pid = local.part(name).pid
    with suppress(ProcessLookupError):
        os.kill(pid, signal.SIGSTOP)

    def resume() -> None:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGCONT)

    return resume


def kill_server(cluster: NatsCluster, number: int) -> Callable[[], None]:
    """End a server at once, and start it again later."""
    cluster.kill(number)
    return lambda: cluster.start(number)


def stop_server(cluster: NatsCluster, number: int) -> Callable[[], None]:
    """Let a server stand still."""
    cluster.stop(number)
    return lambda: cluster.go_on(number)


def move_tenant(storm: Storm, rng: random.Random) -> None:
    """Move a tenant to any node, unless it moves already or the node is away."""
    with suppress(LakebedError):
        node = rng.choice(storm.fleet.operator.nodes()).node
        storm.fleet.operator.migrate(f"t{rng.randrange(TENANT_COUNT)}", node)


class Faults:
    """Faults of one group, of which at most one lasts at any time.

    Args:
        faults: by what they are called in the report.
        longest_s: that one lasts.
    """

    def __init__(self, faults: dict[str, Fault], *, rng: random.Random, longest_s: float) -> None:
        self._faults = faults
        self._rng = rng
        self._longest_s = longest_s
        self._undo: Callable[[], None] | None = None
        self._ends_s = 0.0
        self.counts: Counter[str] = Counter()

    def step(self) -> None:
        """End the fault that lasts when its time has come; otherwise make another, unless it would be the second."""
        if self._undo is not None and time.monotonic() >= self._ends_s:
            self.end()
            return
        name = self._rng.choice(list(self._faults))
        if self._undo is not None and name.startswith("stop"):
            return
        undo = self._faults[name]()
        self.counts[name] += 1
        if undo is not None:
            assert callable(undo)
            self._undo, self._ends_s = undo, time.monotonic() + self._rng.uniform(1, self._longest_s)

    def end(self) -> None:
        """Let everything go on."""
        if self._undo is not None:
            self._undo()
            self._undo = None


@contextmanager
def servers(kind: str, folder: Path, rng: random.Random) -> Iterator[tuple[dict[str, str | None], Faults | None]]:
    """The addresses of log and ledger, and what can happen to the servers behind them."""
    if kind == "embedded":
        yield {"log": None, "ledger": None}, None
        return
    with ExitStack() as running:
        cluster = running.enter_context(NatsCluster(folder))
        cluster.wait_for_jetstream()
        database = running.enter_context(running_postgresql(fsync=True))
        ledger = database.make_database()

        def stop_database() -> Callable[[], None]:
            stop = ExitStack()
            stop.enter_context(database.stopped())
            return stop.close

        faults: dict[str, Fault] = {
            "kill NATS": lambda: kill_server(cluster, rng.randrange(3)),
            "stop NATS": lambda: stop_server(cluster, rng.randrange(3)),
            "crash PostgreSQL": lambda: database.crash(ledger),
            "stop PostgreSQL": stop_database,
        }
        log = f"{cluster.url}/log-{new_uuid(random.Random())[:12]}"
        yield {"log": log, "ledger": ledger}, Faults(faults, rng=rng, longest_s=20)


def wait_for_progress(storm: Storm) -> None:
    """Return when every tenant has taken writes and reads since the call."""
    before = [(len(known.rows), known.reads) for known in storm.known]

    def has_progress() -> bool:
        assert not storm.problems(), "\n".join(storm.problems())
        return all(
            len(known.rows) > rows and known.reads > reads
            for known, (rows, reads) in zip(storm.known, before, strict=True)
        )

    wait_until(has_progress, timeout_s=QUIET_S)


@pytest.mark.long
@pytest.mark.parametrize("kind", ["embedded", "JetStream"])
def test_ten_minutes(kind: str, tmp_path: Path, tell: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing that was acknowledged is lost, doubled or hidden, and the collector misses no file.

    The log is embedded with the ledger in the storage, or on JetStream with the ledger in PostgreSQL.
    """
    rng = random.Random(len(kind))
    with servers(kind, tmp_path / "nats", rng) as (addresses, server_faults):
        for variable, name in ((LOG_VARIABLE, "log"), (LEDGER_VARIABLE, "ledger")):
            if (address := addresses[name]) is not None:
                monkeypatch.setenv(variable, address)
        with twins(tmp_path, **addresses) as local, watched(local) as messages, local.connect() as fleet:
            names = local.names()
            storm = Storm(fleet, count=TENANT_COUNT)
            part_faults: dict[str, Fault] = {
                "kill": lambda: kill_part(local, rng.choice(names)),
                "stop": lambda: stop_part(local, rng.choice(names)),
                "move": lambda: move_tenant(storm, rng),
            }
            groups = [Faults(part_faults, rng=rng, longest_s=40), *([server_faults] if server_faults else [])]
            storm.start()
            wait_for_progress(storm)
            ends_s = time.monotonic() + STORM_S
            while time.monotonic() < ends_s:
                pause(rng.uniform(1, 6))
                rng.choice(groups).step()
                assert not storm.problems(), "\n".join(storm.problems())
            for faults in groups:
                faults.end()
            wait_for_progress(storm)
            storm.stop()
            storm.check_all()
            rows = sum(len(known.rows) for known in storm.known)
            counts = {name: count for faults in groups for name, count in faults.counts.items()}
            tell(f"{kind}: {counts}, {len(messages)} restarts, {rows} rows acknowledged; "
                 f"the longest call took {max(known.longest_s for known in storm.known):.1f} s")  # fmt: skip
            lake = lakebed.open(str(tmp_path / "lake"))
            report = lake.collect_tenants(ledger=addresses["ledger"], dry_run=True, grace=timedelta(0))
            assert report.missing == ()
            assert report.problems == ()
