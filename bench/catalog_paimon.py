"""Rows of the catalog benchmark on Paimon's clients, with a server in a process of its own.

paimon_commit: pypaimon commits 100 rows that are written, through the server, against its own commit to a folder on the
same disk; paimon_request is one small request of the same client. paimon_race: sixteen clients at once commit to one
table; requests to commit for each commit that was made, counted in the server's access log. paimon_config: the config
of the catalog, asked for by 16 connections of this process.
"""

from __future__ import annotations

import asyncio
import json
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

    @property
    def commit_count(self) -> int:
        """Requests to commit that it answered."""
        lines = self.log.read_text().splitlines()
        return sum(json.loads(line)["path"].endswith("/commit") for line in lines)


@contextmanager
def served(folder: Path) -> Iterator[Served]:
    """A server of a new lake ``lake``, everything durable, as a process."""
    log = folder / "access.log"
    command = [sys.executable, "-m", "lakebed.cli", "serve", str(folder / "lake"), "--port", "0", "--json"]
    server = subprocess.Popen([*command, "--access-log", str(log)], stdout=subprocess.PIPE, text=True)
    try:
        assert server.stdout is not None
        started = json.loads("".join(iter(server.stdout.readline, "}\n")) + "}")
        yield Served(started["endpoint"], f"{started['access_key_id']}.{started['secret_access_key']}", log)
    finally:
        server.terminate()
        server.wait(60)


def measure_paimon(bench: Bench) -> list[Result]:
    """All rows of this module."""
    folder = bench.folder / "paimon"
    folder.mkdir()
    with served(folder) as server:
        arguments = [f"{server.endpoint}/paimon", "lake", server.token]
        worker = harness.PeerProcess(PYTHON, folder, bench.scale, worker="paimon_worker.py", arguments=arguments)
        try:
            commit, request = commits(worker, bench.sample_count)
            return [commit, request, race(worker, server, bench.sample_count), config(server, bench.sample_count)]
        finally:
            worker.close()


def commits(worker: harness.PeerProcess, sample_count: int) -> tuple[Result, Result]:
    """A commit in either way, and one request."""
    request = harness.alternate(
        "paimon_request",
        {"lakebed": lambda: worker.call("server", "request")},
        unit="ms",
        sample_count=sample_count * 4,
    )
    commit = harness.alternate(
        "paimon_commit",
        {
            "lakebed": lambda: worker.call("server", "commit"),
            "pypaimon, on files": lambda: worker.call("files", "commit"),
        },
        unit="ms",
        sample_count=sample_count * 4,
        warmup_count=3,
        rows=100,
        durable=True,
    )
    limit = 1.3 * commit.peers["pypaimon, on files"] + request.lakebed
    commit.target = f"<= 1.3 x pypaimon, on files, + paimon_request: {limit:.3g} ms"
    return commit, request


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


def config(server: Served, sample_count: int) -> Result:
    """Requests a second."""

    async def run() -> list[float]:
        port = int(server.endpoint.rpartition(":")[2])
        clients = [await Client(port, f"Bearer {server.token}").open() for _ in range(CONNECTIONS)]

        async def ask(client: Client, _: int) -> None:
            status, body = await client.call("GET", "/paimon/v1/config?warehouse=lake")
            assert status == 200, body

        rates = [(await sample(clients, ask))[0] for _ in range(sample_count + 1)]
        for client in clients:
            client.close()
        return rates[1:]

    return harness.result_of("paimon_config", {"lakebed": asyncio.run(run())}, unit="requests/s", target=">= 2,000")
