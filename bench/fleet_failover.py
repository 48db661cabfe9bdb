"""Real processes: a node is killed, a tenant is moved under load, nothing is asked for ten minutes.

Owns: how long tenants are away and why, as their clients see it. Times of the control plane's decisions are those it
wrote down: one machine has one clock.
"""

from __future__ import annotations

import random
import statistics
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

import lakebed
from fleet_parts import Size, processor_s, quantile, say, store_requests
from lakebed.errors import LakebedError
from lakebed.fleet.client import Tenant
from lakebed.fleet.connect import Fleet
from lakebed.fleet.local import FleetSettings, LocalFleet
from worlds.fleet_storm import Storm
from worlds.waiting import wait_until

KEYS = 20
CLIENTS_MAX = 64
"""Clients that wait for a node at once; each has some of the tenants, and reads one after another."""
IDLE_S = 600.0
_QUIET_S = 5.0


# ---- failover


@dataclass(frozen=True)
class Failover:
    """What one failure took, in seconds."""

    detect: float
    """From the kill to the verdict that the node is silent."""
    attach: float
    """From there to the ledger's write for the last tenant."""
    reads: list[float]
    """By tenant, from its attach to its client's first correct read."""
    totals: list[float]
    """By tenant, from the kill to its client's first correct read."""


def failover(tenants: int, size: Size) -> None:
    """Kill a node that has all tenants; two others take them."""
    rounds = size.samples if tenants <= 10 else 3 if tenants <= 100 else 1
    found = [_failover(size.folder / f"{tenants}-{turn}", tenants) for turn in range(min(rounds, size.samples))]
    rows = tenants * KEYS * 2
    say(f"failover_detect_s_{tenants}", "s", [one.detect for one in found], target="<= 2", rows=rows)
    say(f"failover_attach_s_{tenants}", "s", [one.attach for one in found], rows=rows)
    say(f"failover_read_s_p99_{tenants}", "s", [quantile(one.reads, 0.99) for one in found], rows=rows)
    say(f"failover_total_s_p50_{tenants}", "s", [quantile(one.totals, 0.5) for one in found], rows=rows)
    target = f"<= {15 if tenants > 100 else 5}"
    say(f"failover_total_s_p99_{tenants}", "s", [quantile(one.totals, 0.99) for one in found], target=target, rows=rows)


def _failover(folder: Path, tenants: int) -> Failover:
    storage = folder / "lake"
    storage.mkdir(parents=True)
    settings = FleetSettings(str(storage), folder / "local", node_count=1)
    with LocalFleet(settings) as local, lakebed.open(str(storage)).fleet() as fleet:
        with ThreadPoolExecutor(8) as pool:
            handles = list(pool.map(lambda number: _filled(fleet, f"t{number:04}"), range(tenants)))
        for name in ("node-2", "node-3"):
            local.add_node(name)
        wait_until(lambda: sum(one.state == "alive" for one in fleet.operator.nodes()) == 3)
        clients = min(CLIENTS_MAX, tenants)
        ready = threading.Barrier(clients + 1)
        first: dict[str, float] = {}

        def read(number: int) -> None:
            ready.wait()
            for tenant in handles[number::clients]:
                for _, value in _rows(tenant.name, 1)[-1:]:
                    found = tenant.main.get(b"key-%04d" % (2 * KEYS - 1))
                    assert found == value, f"{tenant.name}: {found!r}"
                first[tenant.name] = time.time()

        with ThreadPoolExecutor(clients) as pool:
            reading = [pool.submit(read, number) for number in range(clients)]
            local.kill("node-1")
            killed_s = time.time()
            ready.wait()
            for one in reading:
                one.result()
        silent_s = next(
            event.at_ms / 1000
            for _, event in fleet.operator.events()
            if event.kind == "node_silent" and event.node == "node-1"
        )
        begun_s = {one.tenant: one.transactions[-1].begun_ms / 1000 for one in fleet.tenants()}
        return Failover(
            detect=silent_s - killed_s,
            attach=max(begun_s.values()) - silent_s,
            reads=[first[name] - begun_s[name] for name in first],
            totals=[at_s - killed_s for at_s in first.values()],
        )


def _rows(tenant: str, part: int) -> list[tuple[bytes, bytes]]:
    return [(b"key-%04d" % (part * KEYS + number), f"{tenant} {number}".encode() * 8) for number in range(KEYS)]


def _filled(fleet: Fleet, name: str) -> Tenant:
    """A tenant with committed rows, and as many that are only in the log."""
    tenant = fleet.create_tenant(name)
    tenant.main.write(_rows(name, 0))
    tenant.main.checkpoint()
    tenant.main.write(_rows(name, 1))
    return tenant


# ---- relocation


@dataclass
class _Readers:
    """Clients that read one key of the tenant that moves, and note how long it took and what failed."""

    fleet: Fleet
    tenant: str
    count: int = 4
    samples: list[tuple[float, float]] = field(default_factory=list)
    """When a read ended, and how long it took."""
    failed: list[str] = field(default_factory=list)
    is_over: threading.Event = field(default_factory=threading.Event)

    def run(self, number: int) -> None:
        timeline = self.fleet.tenant(self.tenant).main
        rng = random.Random(number)
        while not self.is_over.wait(0.005):
            started_s = time.perf_counter()
            try:
                timeline.get(b"k%02d" % rng.randrange(40))
            except LakebedError as error:
                self.failed.append(repr(error))
            ended_s = time.perf_counter()
            self.samples.append((ended_s, ended_s - started_s))

    def between(self, start_s: float, end_s: float) -> list[float]:
        """Milliseconds of the reads in a time."""
        return [1e3 * took_s for at_s, took_s in list(self.samples) if start_s <= at_s - took_s and at_s <= end_s]


def relocation(size: Size) -> None:
    """Move a tenant to and fro under load, in turn with as long a time without a move."""
    storage = size.folder / "lake"
    storage.mkdir(parents=True)
    settings = FleetSettings(str(storage), size.folder / "local", node_count=2)
    with LocalFleet(settings), lakebed.open(str(storage)).fleet() as fleet:
        storm = Storm(fleet, count=4, seed=1)
        storm.start()
        readers = _Readers(fleet, "t0")
        with ThreadPoolExecutor(readers.count) as pool:
            running = [pool.submit(readers.run, number) for number in range(readers.count)]
            try:
                moves = _moves(fleet, readers, count=max(3, size.count(10)))
            finally:
                readers.is_over.set()
            for one in running:
                one.result()
        storm.stop()
        problems = storm.problems()
        storm.check_all()  # raises for a row that is lost or in another place
        written = sum(len(known.rows) for known in storm.known)
    reads = sum(len(moved) for _, _, moved in moves)
    moved, quiet = ([quantile(one[place], 0.99) for one in moves] for place in (2, 1))
    say("relocation_failed_reads", "reads", [float(len(readers.failed) + len(problems))], target="<= 0", rows=reads)
    say("relocation_lost_writes", "rows lost or reordered", [0.0], target="<= 0", rows=written, durable=True)
    say("relocation_s", "s", [took_s for took_s, _, _ in moves])
    say("relocation_p99", "ms", moved, peers={"without-a-move": quiet}, rows=reads)
    added = statistics.median(moved) - statistics.median(quiet)
    say("relocation_added_ms_p99", "ms", [added], target="<= 50", rows=reads)
    say("relocation_longest_read", "ms", [max(max(one) for _, _, one in moves)], rows=reads)


def _moves(fleet: Fleet, readers: _Readers, *, count: int) -> list[tuple[float, list[float], list[float]]]:
    """Of each move: its seconds, the reads in as long a time before it, the reads while it lasts."""
    found = []
    time.sleep(1.0)
    for _ in range(count):
        quiet_from_s = time.perf_counter()
        time.sleep(1.5)
        source = fleet.operator.tenant(readers.tenant).preferred
        target = next(one.node for one in fleet.operator.nodes() if one.node != source)
        started_s = time.perf_counter()
        fleet.operator.migrate(readers.tenant, target)
        wait_until(lambda: _is_moved(fleet, readers.tenant, target))  # noqa: B023 - called in this round
        ended_s = time.perf_counter()
        quiet = readers.between(quiet_from_s, started_s)
        found.append((ended_s - started_s, quiet, readers.between(started_s, ended_s)))
    return found


def _is_moved(fleet: Fleet, tenant: str, target: str) -> bool:
    record = fleet.operator.tenant(tenant)
    return record.preferred == target and record.relocation is None


# ---- idle


def idle(size: Size) -> None:
    """What a fleet asks of its store while nothing is written or read: ten minutes at scale 1.

    Idle tenants are on the nodes, which ask nothing. Control plane and log renew the leases of their databases, and
    look after them, as often with tenants as without. Peer: the same processes before there were tenants, for a tenth
    of the time, as many requests as in the whole time.
    """
    tenants, seconds = size.count(100), max(3.0, IDLE_S * min(1.0, size.scale))
    storage = size.folder / "lake"
    storage.mkdir(parents=True)
    settings = FleetSettings(str(storage), size.folder / "local", node_count=2)
    with LocalFleet(settings) as local, lakebed.open(str(storage)).fleet() as fleet:
        without, _ = _asked(local, seconds / 10)
        for number in range(tenants):
            tenant = fleet.create_tenant(f"t{number:04}")
            tenant.main.write(_rows(tenant.name, 0))
            tenant.main.checkpoint()
        wait_until(lambda: not _to_collect(fleet), timeout_s=180, interval_s=1.0)
        counts, processor_share = _asked(local, seconds)
    nodes = [name for name in counts if name.startswith("node")]
    for workload, of, parts, target in (
        ("idle_requests", "of the nodes", nodes, "<= 0"),
        ("idle_control_requests", "of the ledger's lease and upkeep", ["control"], ""),
        ("idle_log_requests", "of the log's lease and upkeep", ["log"], ""),
    ):
        unit = f"requests {of} in {seconds:.0f} s"
        asked = {f"{part} {kind}": count for part in parts for kind, count in counts[part].items() if count}
        before = 10.0 * sum(sum(without[part].values()) for part in parts)
        peers = {"without-tenants": [before]}
        say(workload, unit, [float(sum(asked.values()))], target=target, peers=peers, rows=tenants, requests=asked)
    say("idle_processor", "ms a second, 4 processes", [1e3 * processor_share], rows=tenants)


def _to_collect(fleet: Fleet) -> bool:
    return any(fleet.operator.transactions(one.tenant).to_collect for one in fleet.tenants())


def _asked(local: LocalFleet, seconds: float) -> tuple[dict[str, dict[str, int]], float]:
    """The requests of each process to its store in a time, and the share of one processor that all took."""
    time.sleep(_QUIET_S)
    before = {part.name: store_requests(part.url) for part in local.parts}
    before_s = sum(processor_s(part.pid) for part in local.parts)
    time.sleep(seconds)
    taken_s = sum(processor_s(part.pid) for part in local.parts) - before_s
    after = {part.name: store_requests(part.url) for part in local.parts}
    counts = {name: _since(before[name], found) for name, found in after.items()}
    return counts, taken_s / seconds


def _since(before: dict[str, int], now: dict[str, int]) -> dict[str, int]:
    return {kind: count - before.get(kind, 0) for kind, count in now.items()}
