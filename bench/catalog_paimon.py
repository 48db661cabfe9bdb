"""Rows of the catalog benchmark on Paimon's clients, with servers in processes of their own.

paimon_commit: pypaimon commits 100 rows that are written, through the server, against its own commit to a folder on the
same disk, which syncs nothing; the server syncs what it writes. paimon_commit_large: the same on a table of 500 commits
that were never merged. paimon_commit_unsynced, paimon_commit_large_unsynced: by a server that does not sync either.
paimon_commit_cpu: processor time of the server for such a commit, its two requests together. paimon_commit_client_cpu:
that of the client, in either way; what a server that answers at once would leave. paimon_request is one
small request of the same client, paimon_request_anew the same as a commit makes each of its two requests: by a new
catalog, session and connection. paimon_race: sixteen clients at once commit to one table; requests to commit for each
commit that was made, counted in the server's access log. paimon_config: the config of the catalog, asked for by 16
connections of this process; paimon_config_cpu: the processor time of the server for one of these requests.
"""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import harness
from harness import Result
from repo_server import Client, sample

ROOT = Path(__file__).parents[1]
PYTHON = ROOT / ".venv-peers" / "bin" / "python"
CONNECTIONS = 16
UNSYNCED = """
import json, sys
from lakebed.server.options import ServerOptions
from lakebed.server.serve import start_server

with start_server(sys.argv[1], access_log=sys.argv[2], options=ServerOptions(durable=False)) as running:
    made = running.started
    names = {"access_key_id": made.access_key, "secret_access_key": made.secret}
    print(json.dumps({"endpoint": made.endpoint, **names}, indent=1), flush=True)
    sys.stdin.read()
"""
"""A server that syncs nothing, until its input ends."""


class Bench(Protocol):
    """What of the benchmark is used here."""

    folder: Path
    scale: float
    sample_count: int


@dataclass
class Served:
    """A server that runs."""

    endpoint: str
    token: str
    log: Path
    process_id: int

    @property
    def commit_count(self) -> int:
        """Requests to commit that it answered."""
        lines = self.log.read_text().splitlines()
        return sum(json.loads(line)["path"].endswith("/commit") for line in lines)

    @property
    def cpu_ms(self) -> float:
        """Processor time that it has used."""
        fields = Path(f"/proc/{self.process_id}/stat").read_text().rpartition(")")[2].split()
        return 1000 * (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


@contextmanager
def served(folder: Path, *, synced: bool = True) -> Iterator[Served]:
    """A server of a new lake ``lake`` as a process, everything durable, or nothing synced."""
    log = folder / "access.log"
    command = [sys.executable, "-m", "lakebed.cli", "serve", str(folder / "lake"), "--port", "0", "--json"]
    command += ["--access-log", str(log)]
    if not synced:
        command = [sys.executable, "-c", UNSYNCED, str(folder / "lake"), str(log)]
    server = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    try:
        assert server.stdout is not None
        lines: list[str] = []
        while not lines or lines[-1] != "}\n":
            lines.append(server.stdout.readline())
            assert lines[-1], f"the server ended: {server.wait(60)}"
        started = json.loads("".join(lines))
        token = f"{started['access_key_id']}.{started['secret_access_key']}"
        yield Served(started["endpoint"], token, log, server.pid)
    finally:
        server.terminate()
        server.wait(60)


@contextmanager
def client_of(server: Served, folder: Path, scale: float) -> Iterator[harness.PeerProcess]:
    """Pypaimon in a process of its own."""
    arguments = [f"{server.endpoint}/paimon", "lake", server.token]
    worker = harness.PeerProcess(PYTHON, folder, scale, worker="paimon_worker.py", arguments=arguments)
    try:
        yield worker
    finally:
        worker.close()


def measure_paimon(bench: Bench) -> list[Result]:
    """All rows of this module."""
    results: list[Result] = []
    for kind in ("synced", "unsynced"):
        folder = bench.folder / f"paimon-{kind}"
        folder.mkdir()
        with served(folder, synced=kind == "synced") as server, client_of(server, folder, bench.scale) as worker:
            results += commits(worker, server, bench.sample_count, synced=kind == "synced")
            if kind == "synced":
                results += [race(worker, server, bench.sample_count), *config(server, bench.sample_count)]
    return results


def commits(worker: harness.PeerProcess, server: Served, sample_count: int, *, synced: bool) -> list[Result]:
    """A commit in either way, on a small table and on a large one, and one request."""
    ending = "" if synced else "_unsynced"
    results = [
        harness.alternate(
            f"paimon_{workload}{ending}",
            {"lakebed": lambda workload=workload: worker.call("server", workload)},
            unit="ms",
            sample_count=sample_count * 4,
        )
        for workload in ("request", "request_anew")
    ]
    requests_ms = 2 * results[-1].lakebed
    spent_ms: list[float] = []

    def commit(workload: str) -> float:
        before_ms = server.cpu_ms
        wall_ms = worker.call("server", workload)
        spent_ms.append(server.cpu_ms - before_ms)
        return wall_ms

    for workload in ("commit", "commit_large"):
        result = harness.alternate(
            f"paimon_{workload}{ending}",
            {
                "lakebed": lambda workload=workload: commit(workload),
                "pypaimon, on files": lambda workload=workload: worker.call("files", workload),
            },
            unit="ms",
            sample_count=sample_count * 4,
            warmup_count=3,
            rows=100,
            durable=synced,
        )
        limit = 1.3 * result.peers["pypaimon, on files"] + requests_ms
        result.target = f"<= 1.3 x pypaimon, on files, + its two requests: {limit:.3g} ms"
        results.append(result)
        if workload == "commit" and synced:
            # The clock of processor time ticks in 10 ms: the mean of many commits, not their median.
            mean_ms = sum(spent_ms) / len(spent_ms)
            results.append(harness.result_of("paimon_commit_cpu", {"lakebed": [mean_ms]}, unit="ms", rows=100))
    if synced:
        client_cpu = harness.alternate(
            "paimon_commit_client_cpu",
            {
                "lakebed": lambda: worker.call("server", "commit_cpu"),
                "pypaimon, on files": lambda: worker.call("files", "commit_cpu"),
            },
            unit="ms",
            sample_count=sample_count * 4,
            rows=100,
        )
        results.append(client_cpu)
    return results


def race(worker: harness.PeerProcess, server: Served, sample_count: int) -> Result:
    """Requests to commit for each commit that was made."""

    def run() -> float:
        before = server.commit_count
        made = worker.call("server", "race")
        return (server.commit_count - before) / made

    return harness.alternate(
        "paimon_race",
        {"lakebed": run},
        unit="requests a commit",
        sample_count=sample_count,
        rows=CONNECTIONS,
        durable=True,
        target=f"<= {CONNECTIONS}",
    )


def config(server: Served, sample_count: int) -> list[Result]:
    """Requests a second, and the processor time of one."""
    spent_ms: list[float] = []

    async def run() -> list[float]:
        port = int(server.endpoint.rpartition(":")[2])
        clients = [await Client(port, f"Bearer {server.token}").open() for _ in range(CONNECTIONS)]

        async def ask(client: Client, _: int) -> None:
            status, body = await client.call("GET", "/paimon/v1/config?warehouse=lake")
            assert status == 200, body

        rates: list[float] = []
        for _ in range(sample_count + 1):
            before_ms, before_count = server.cpu_ms, _line_count(server.log)
            rates.append((await sample(clients, ask))[0])
            spent_ms.append((server.cpu_ms - before_ms) / (_line_count(server.log) - before_count))
        for client in clients:
            client.close()
        return rates[1:]

    rates = {"lakebed": asyncio.run(run())}
    return [
        harness.result_of("paimon_config", rates, unit="requests/s", target=">= 2,000"),
        harness.result_of("paimon_config_cpu", {"lakebed": spent_ms[1:]}, unit="ms", target="<= 0.5"),
    ]


def _line_count(log: Path) -> int:
    return log.read_bytes().count(b"\n")
