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
from lakebed.fleet.local import Part
from lakebed.ids import new_uuid
from worlds.fleet_storm import Storm, watched
from worlds.fleet_twins import TwinFleet, twins
from worlds.nats_cluster import DROPPED_SOCKETS, NatsCluster
from worlds.postgresql import PostgreSQL, running_postgresql
from worlds.waiting import pause

pytestmark = DROPPED_SOCKETS

STORM_S = 600.0
TENANT_COUNT = 8
QUIET_S = 120.0
"""In which every tenant must take writes and reads again once the faults are over."""

START_S = 20.0
"""In which log and control plane are not struck again, and nodes not while only one has run so long: a client waits
for 30 s until it calls all processes away."""

Fault = Callable[[], tuple[str, Callable[[], None] | None]]
"""Makes something fail; what it was, and what ends it: None when it needs nobody."""


def family_of(name: str) -> str:
    """Parts of one family take each other's place: ``control`` and ``control-2``."""
    return name.split("-")[0]


def is_settled(part: Part) -> bool:
    """Whether its process has run for a while."""
    return part.process is not None and part.process.poll() is None and time.monotonic() >= part.started_s + START_S


class Faults:
    """Faults of one group, of which at most one lasts at any time.

    Args:
        lasting: those of which only one is made at a time, as they may last until they are ended.
        short: those that are also made while one lasts.
        longest_s: that one lasts.
    """

    def __init__(
        self, lasting: dict[str, Fault], short: dict[str, Fault], *, rng: random.Random, longest_s: float
    ) -> None:
        self._lasting, self._short = lasting, short
        self._rng = rng
        self._longest_s = longest_s
        self._end: Callable[[], None] | None = None
        self._ends_s = 0.0
        self.counts: Counter[str] = Counter()
        self.events: list[str] = []
        self.struck = ""
        """What a lasting fault has struck."""

    def step(self) -> None:
        """End the fault that lasts when its time has come; otherwise make another one, a short one while it lasts."""
        if self._end is not None and time.monotonic() >= self._ends_s:
            self.end()
            return
        faults = self._short if self._end is not None else self._short | self._lasting
        if not faults:
            return
        name = self._rng.choice(list(faults))
        struck, end = faults[name]()
        self.counts[name] += 1
        self._note(f"{name} {struck}")
        if end is not None:
            self._end, self._ends_s, self.struck = end, time.monotonic() + self._rng.uniform(1, self._longest_s), struck

    def end(self) -> None:
        """Let everything go on."""
        if self._end is not None:
            self._end()
            self._note(f"{self.struck} goes on")
            self._end, self.struck = None, ""

    def _note(self, event: str) -> None:
        self.events.append(f"{time.strftime('%X')} {event}")


def make_part_faults(local: TwinFleet, storm: Storm, rng: random.Random) -> Faults:
    """Parts are stopped, killed while the others of their family run, and left by tenants."""

    def stop() -> tuple[str, Callable[[], None]]:
        name = rng.choice(local.names())
        pid = local.part(name).pid
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGSTOP)

        def resume() -> None:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGCONT)

        return name, resume

    killed_s: dict[str, float] = {}

    def kill() -> tuple[str, None]:
        now_s = time.monotonic()
        away = {family_of(faults.struck), *(family for family, then_s in killed_s.items() if now_s < then_s + START_S)}
        nodes = [part.name for part in local.parts if part.name.startswith("node") and is_settled(part)]
        if len(nodes) < 2:
            away.add("node")
        names = [name for name in local.names() if family_of(name) not in away]
        if not names:
            return "nothing", None
        name = rng.choice(names)
        if not name.startswith("node"):
            killed_s[family_of(name)] = now_s
        with suppress(ProcessLookupError):
            local.kill(name)
        return name, None

    def move() -> tuple[str, None]:
        tenant, node = f"t{rng.randrange(TENANT_COUNT)}", rng.choice([n for n in local.names() if n.startswith("node")])
        with suppress(LakebedError):  # it moves already, or the node is away
            storm.fleet.operator.migrate(tenant, node)
        return f"{tenant} to {node}", None

    faults = Faults({"stop": stop}, {"kill": kill, "move": move}, rng=rng, longest_s=40)
    return faults


def make_server_faults(cluster: NatsCluster, database: PostgreSQL, ledger: str, rng: random.Random) -> Faults:
    """One of three NATS servers is killed or stopped, or PostgreSQL as a whole."""

    def kill_nats() -> tuple[str, Callable[[], None]]:
        number = rng.randrange(3)
        cluster.kill(number)
        return f"n{number}", lambda: cluster.start(number)

    def stop_nats() -> tuple[str, Callable[[], None]]:
        number = rng.randrange(3)
        cluster.stop(number)
        return f"n{number}", lambda: cluster.go_on(number)

    def stop_database() -> tuple[str, Callable[[], None]]:
        stop = ExitStack()
        stop.enter_context(database.stopped())
        return "as a whole", stop.close

    def crash_database() -> tuple[str, None]:
        database.crash(ledger)
        return "by a process", None

    faults: dict[str, Fault] = {"kill NATS": kill_nats, "stop NATS": stop_nats, "stop PostgreSQL": stop_database,
              "crash PostgreSQL": crash_database}  # fmt: skip
    return Faults(faults, {}, rng=rng, longest_s=20)


@contextmanager
def servers(kind: str, folder: Path, rng: random.Random) -> Iterator[tuple[dict[str, str | None], list[Faults]]]:
    """The addresses of log and ledger, and what can happen to the servers behind them."""
    if kind == "embedded":
        yield {"log": None, "ledger": None}, []
        return
    with NatsCluster(folder) as cluster, running_postgresql(fsync=True) as database:
        cluster.wait_for_jetstream()
        ledger = database.make_database()
        log = f"{cluster.url}/log-{new_uuid(random.Random())[:12]}"
        yield {"log": log, "ledger": ledger}, [make_server_faults(cluster, database, ledger, rng)]


@pytest.mark.long
@pytest.mark.parametrize("kind", ["embedded", "JetStream"])
def test_ten_minutes(kind: str, tmp_path: Path, tell: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing that was acknowledged is lost, doubled or hidden, and the collector misses no file.

    The log is embedded with the ledger in the storage, or on JetStream with the ledger in PostgreSQL.
    """
    rng = random.Random(len(kind))
    with servers(kind, tmp_path / "nats", rng) as (addresses, groups):
        for variable, name in ((LOG_VARIABLE, "log"), (LEDGER_VARIABLE, "ledger")):
            if (address := addresses[name]) is not None:
                monkeypatch.setenv(variable, address)
        with twins(tmp_path, **addresses) as local, watched(local) as messages, local.connect() as fleet:
            storm = Storm(fleet, count=TENANT_COUNT)
            groups.append(make_part_faults(local, storm, rng))
            storm.start()
            storm.wait_for_progress(timeout_s=QUIET_S)
            ends_s = time.monotonic() + STORM_S
            while time.monotonic() < ends_s:
                pause(rng.uniform(1, 6))
                rng.choice(groups).step()
                events = sorted(event for faults in groups for event in faults.events)
                assert not storm.problems(), "\n".join([*events[-20:], *messages[-10:], *storm.problems()])
            for faults in groups:
                faults.end()
            storm.wait_for_progress(timeout_s=QUIET_S)
            storm.stop()
            storm.check_all()
            counts = {name: count for faults in groups for name, count in faults.counts.items()}
            rows, longest_s = (sum(len(known.rows) for known in storm.known), max(k.longest_s for k in storm.known))
            tell(f"{kind}: {counts}, {len(messages)} messages, {rows} rows; the longest call took {longest_s:.1f} s")
            lake = lakebed.open(str(tmp_path / "lake"))
            report = lake.collect_tenants(ledger=addresses["ledger"], dry_run=True, grace=timedelta(0))
            assert report.missing == ()
            assert report.problems == ()
