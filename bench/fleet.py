"""The fleet benchmark: ``python bench/fleet.py [--scale 1] [--only grants,failover_100] [--samples 5] [--dry]``.

Groups, each in a process of its own with a time limit; one that fails is reported, and the others run. grants: 64
tenants in a closed loop over HTTP in batches of 32, on a folder; grants_20ms: on a store that takes 20 ms a request;
grants_postgresql. log_embedded, log_http, log_postgresql, log_jetstream: durable appends, tail reads and reads from the
beginning, of 1 and 64 timelines; log_leader: JetStream's leader is killed. node_reads: get (peer: the repository
server's stat), get_many and scan (peer: the same rows in an open database). failover_1, _10, _100, _1000: a node with
so many tenants is killed (sizes above 1000 x scale are left out). relocation: a tenant moves under load. requests:
requests and bytes of a commit, an attach, a branch, a pin and a collection; manifest_share: bytes of manifests against
bytes of layers; node_memory, control_memory: with 1000 tenants, of which 100 have rows in memory and with 10,000.
idle: requests to the store in ten minutes (x scale) without clients, while the other groups run: of the nodes, which
serve the tenants, and apart from these of the ledger's and the log's own leases and upkeep.
"""

from __future__ import annotations

import argparse
import json
import operator
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

import fleet_control
import fleet_costs
import fleet_failover
import fleet_log
import fleet_node
import harness
from fleet_parts import Size
from harness import Result

BACKGROUND = "idle"
"""Runs while the others do: for ten minutes it only waits."""
_END_S = 60.0
_TARGET = re.compile(r"(?:([\w-]+) )?(<=|>=) ([\d.]+)(x?)$")
_COMPARE = {"<=": operator.le, ">=": operator.ge}


@dataclass(frozen=True)
class Group:
    """Some results that are measured together."""

    run: Callable[[Size], None]
    limit_s: float
    """At scale 1 on two cores it takes at most half of this."""
    scale_min: float = 0.0


GROUPS = {
    "requests": Group(fleet_costs.requests, 60),
    "manifest_share": Group(fleet_costs.manifest_share, 240),
    "grants": Group(fleet_control.grants, 120),
    "grants_20ms": Group(fleet_control.grants_20ms, 120),
    "grants_postgresql": Group(fleet_control.grants_postgresql, 120),
    "log_embedded": Group(fleet_log.embedded, 240),
    "log_http": Group(fleet_log.over_http, 240),
    "log_postgresql": Group(fleet_log.postgresql, 240),
    "log_jetstream": Group(fleet_log.jetstream, 300),
    "log_leader": Group(fleet_log.leader, 240),
    "node_reads": Group(fleet_node.reads, 240),
    "failover_1": Group(partial(fleet_failover.failover, 1), 180),
    "failover_10": Group(partial(fleet_failover.failover, 10), 180, scale_min=0.01),
    "failover_100": Group(partial(fleet_failover.failover, 100), 240, scale_min=0.1),
    "failover_1000": Group(partial(fleet_failover.failover, 1000), 360, scale_min=1.0),
    "relocation": Group(fleet_failover.relocation, 180),
    "node_memory": Group(fleet_node.memory, 300),
    "control_memory": Group(fleet_control.memory, 300),
    BACKGROUND: Group(fleet_failover.idle, 1_000),
}


class Child:
    """A group in a process of its own, whose lines are read as they come."""

    def __init__(self, name: str, folder: Path, *, scale: float, samples: int) -> None:
        self.name = name
        self.results: list[Result] = []
        self.problem = ""
        words = ["--run", name, "--folder", str(folder), "--scale", str(scale), "--samples", str(samples)]
        self._log = folder.with_suffix(".log")
        with self._log.open("wb") as output:
            self._process = subprocess.Popen(
                [sys.executable, __file__, *words], stdout=subprocess.PIPE, stderr=output, text=True
            )
        self._started_s = time.perf_counter()
        self._reader = threading.Thread(target=self._read)
        self._reader.start()

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            if line.startswith("{"):
                self.results.append(Result(**json.loads(line)))
                print(harness.row_of(self.results[-1]), flush=True)
            else:
                print(line, end="", flush=True)

    def end(self) -> None:
        """End it with the processes that it started, if it still runs."""
        if self._process.poll() is None:
            self._process.send_signal(signal.SIGTERM)
            try:
                self._process.wait(_END_S)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()

    def wait(self, limit_s: float) -> None:
        """Return when it has ended; after its limit it is ended."""
        try:
            code = self._process.wait(max(1.0, self._started_s + limit_s - time.perf_counter()))
            self.problem = f"ended with {code}" if code else ""
        except subprocess.TimeoutExpired:
            self.problem = f"took longer than {limit_s:.0f} s"
            self.end()
        self._reader.join(_END_S)
        if self.problem:
            last = self._log.read_text(errors="replace").strip().splitlines()[-12:]
            print("\n".join([f"{self.name} FAILED: it {self.problem}:", *(f"    {line}" for line in last)]), flush=True)
        else:
            print(f"{self.name} took {time.perf_counter() - self._started_s:.0f} s", flush=True)


def missed(result: Result) -> bool:
    """Whether a result misses its target, as far as the target is a number."""
    found = _TARGET.match(result.target)
    if found is None:
        return False
    peer, compare, bound, _ = found.groups()
    figure = result.ratio[peer] if peer else result.lakebed
    return not _COMPARE[compare](figure, float(bound))


def run(names: list[str], folder: Path, *, scale: float, samples: int) -> tuple[list[Result], list[str]]:
    """Run groups; their results, and what failed."""
    children: list[Child] = []

    def start(name: str) -> Child:
        (folder / name).mkdir()
        child = Child(name, folder / name, scale=scale, samples=samples)
        children.append(child)
        return child

    try:
        background = start(BACKGROUND) if BACKGROUND in names else None
        for name in names:
            if name == BACKGROUND:
                continue
            if scale < GROUPS[name].scale_min:
                print(f"{name} is left out at scale {scale:g}", flush=True)
                continue
            start(name).wait(GROUPS[name].limit_s)
            shutil.rmtree(folder / name, ignore_errors=True)
        if background is not None:
            background.wait(GROUPS[BACKGROUND].limit_s)
    finally:
        for child in children:
            child.end()
    results = [result for child in children for result in child.results]
    return results, [f"{child.name} {child.problem}" for child in children if child.problem]


def main() -> None:
    """Run the chosen groups and write the results; exit code 1 when a group failed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--scale", type=float, default=1.0, help="1 is what the design names; 0.05 a quick look")
    parser.add_argument("--samples", type=int, default=harness.SAMPLE_COUNT_MIN)
    parser.add_argument("--only", default=",".join(GROUPS), help="comma-separated groups")
    parser.add_argument("--dry", action="store_true", help="print, but leave the committed results alone")
    parser.add_argument("--run", help=argparse.SUPPRESS)
    parser.add_argument("--folder", type=Path, help=argparse.SUPPRESS)
    chosen = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # ends the processes that it started
    if chosen.run:
        GROUPS[chosen.run].run(Size(chosen.folder, chosen.scale, chosen.samples))
        return
    names = chosen.only.split(",")
    unknown = [name for name in names if name not in GROUPS]
    if unknown:
        parser.error(f"no group {unknown[0]!r}; there are {', '.join(GROUPS)}")
    folder = Path(tempfile.mkdtemp(prefix="lakebed-bench-"))
    started_s = time.perf_counter()
    try:
        results, failed = run(names, folder, scale=chosen.scale, samples=chosen.samples)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    versions = harness.versions_of("lakebed", "pyarrow", "nats-py", "psycopg", "uvicorn")
    if results and not chosen.dry:
        print(f"written: {harness.write_results('fleet', results, scale=chosen.scale, versions=versions)}")
    for result in results:
        if missed(result):
            print(f"misses its target {result.target}: {harness.row_of(result)}")
    print(f"{len(results)} results in {time.perf_counter() - started_s:.0f} s", flush=True)
    if failed:
        raise SystemExit(f"failed: {'; '.join(failed)}")


if __name__ == "__main__":
    main()
