"""The server's workloads: ``repo_server.py FOLDER SCALE SAMPLES``. One JSON line a result on standard output.

The server runs in a process of its own, on a local folder with everything durable; the clients are connections of this
process, each with one request under way. Figures: requests a second, and the latency below which 99 % of them stayed.
"""

from __future__ import annotations

import asyncio
import base64
import json
import random
import re
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import quote

sys.path.insert(0, str(Path(__file__).parent))

from lakebed import repo
from lakebed.repo import Entry, RepositoryOptions

BODY = bytes(range(256)) * 16
"""4 KiB."""
AMOUNT = 1_000
"""Rows of a page."""
SECONDS = 2.0
"""Of one sample."""
API = "/api/v1/repositories/base"


class Client:
    """One connection, one request at a time."""

    def __init__(self, port: int, authorization: str) -> None:
        self._port = port
        self._head = f"Host: 127.0.0.1:{port}\r\nAuthorization: {authorization}\r\n"

    async def open(self) -> Client:
        """Connect."""
        self._reader, self._writer = await asyncio.open_connection("127.0.0.1", self._port)
        return self

    async def call(self, method: str, target: str, body: bytes = b"") -> tuple[int, bytes]:
        """Status and body."""
        length = f"Content-Length: {len(body)}\r\n" if body else ""
        self._writer.write(f"{method} {target} HTTP/1.1\r\n{self._head}{length}\r\n".encode() + body)
        head = await self._reader.readuntil(b"\r\n\r\n")
        found = re.search(rb"content-length: (\d+)", head, re.IGNORECASE)
        answer = await self._reader.readexactly(int(found.group(1))) if found else b""
        return int(head[9:12]), answer

    def close(self) -> None:
        """Hang up."""
        self._writer.close()


async def sample(
    clients: list[Client], act: Callable[[Client, int], Awaitable[None]], *, seconds: float = SECONDS
) -> tuple[float, float, int]:
    """Requests a second, the 99th percentile in ms, and how many requests it was."""
    latencies: list[float] = []
    end = time.perf_counter() + seconds

    async def run(client: Client, number: int) -> None:
        count = 0
        while time.perf_counter() < end:
            start = time.perf_counter()
            await act(client, number * 1_000_000 + count)
            latencies.append(time.perf_counter() - start)
            count += 1

    start = time.perf_counter()
    await asyncio.gather(*(run(client, number) for number, client in enumerate(clients)))
    took = time.perf_counter() - start
    return len(latencies) / took, sorted(latencies)[len(latencies) * 99 // 100] * 1000, len(latencies)


async def list_on(client: Client, stop: asyncio.Event) -> int:
    """Page through the whole branch, again and again; the pages seen."""
    after, pages = "", 0
    while not stop.is_set():
        status, body = await client.call("GET", f"{API}/refs/main/objects/ls?amount=1000&after={quote(after)}")
        assert status == 200, body
        pagination = json.loads(body)["pagination"]
        after = pagination["next_offset"] if pagination["has_more"] else ""
        pages += 1
    return pages


async def measure(port: int, authorization: str, *, paths: list[str], sample_count: int) -> None:
    """Every workload."""
    rng = random.Random(5)
    made = time.time_ns()

    async def stat(client: Client, _: int) -> None:
        status, body = await client.call("GET", f"{API}/refs/main/objects/stat?path={quote(rng.choice(paths))}")
        assert status == 200, body

    async def upload(client: Client, number: int) -> None:
        status, body = await client.call("POST", f"{API}/branches/up/objects?path=u/{made}/{number}", BODY)
        assert status == 201, body

    async def list_page(client: Client, _: int) -> None:
        after = quote(rng.choice(paths[: -AMOUNT - 1]))
        status, body = await client.call("GET", f"{API}/refs/main/objects/ls?amount={AMOUNT}&after={after}")
        assert status == 200, body

    plans: list[tuple[str, Callable[[Client, int], Awaitable[None]], int, bool, int]] = [
        ("stat", stat, 1, False, 0),
        ("stat", stat, 16, False, 1500),
        ("upload_4k", upload, 1, False, 0),
        ("upload_4k", upload, 16, False, 800),
        ("list_1000", list_page, 16, False, 0),
        ("stat", stat, 16, True, 0),
        ("upload_4k", upload, 16, True, 0),
    ]
    for name, act, client_count, beside_listing, target in plans:
        rates, slowest, requests = [], [], 0
        clients = [await Client(port, authorization).open() for _ in range(client_count)]
        lister = await Client(port, authorization).open()
        stop = asyncio.Event()
        listing = asyncio.create_task(list_on(lister, stop)) if beside_listing else None
        for _ in range(sample_count):
            rate, p99_ms, count = await sample(clients, act)
            rates.append(rate)
            slowest.append(p99_ms)
            requests += count
        stop.set()
        pages = await listing if listing else 0
        shown = f"server_{client_count}_{name}{'_while_listing' if beside_listing else ''}"
        say(shown, "requests/s", rates, requests, name == "upload_4k", f">= {target:,}" if target else "")
        say(f"{shown}_p99", "ms", slowest, requests, name == "upload_4k", "")
        if beside_listing:
            assert pages > sample_count, "the listing made no progress"
        for client in (*clients, lister):
            client.close()


def say(workload: str, unit: str, samples: list[float], requests: int, durable: bool, target: str) -> None:
    """One result."""
    found: dict[str, Any] = {"workload": workload, "unit": unit, "samples": samples}
    print(json.dumps({**found, "requests": requests, "durable": durable, "target": target}), flush=True)


@contextmanager
def served(folder: Path, *, count: int) -> Iterator[tuple[int, str, list[str]]]:
    """A server over a base of so many objects, as a process: its port, what it is authorized with, the paths."""
    paths = [f"lake/part={row // 1000:04d}/{row % 1000:03d}.parquet" for row in range(count)]
    with repo.open_all(str(folder), options=RepositoryOptions(background=False)) as home:
        target = home.create("base").branch("main")
        target.stage_many(
            (path, Entry(f"https://example.org/{row}", 9, f"{row:032x}", 0)) for row, path in enumerate(paths)
        )
        target.commit("base")
        home.repository("base").create_branch("up")
    command = [sys.executable, "-m", "lakebed.cli", "serve", str(folder), "--port", "0", "--json", "--access-log", ""]
    server = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    try:
        assert server.stdout is not None
        started = json.loads("".join(iter(server.stdout.readline, "}\n")) + "}")
        key = f"{started['access_key_id']}:{started['secret_access_key']}".encode()
        yield int(started["endpoint"].rsplit(":", 1)[1]), f"Basic {base64.b64encode(key).decode()}", paths
    finally:
        server.terminate()
        server.wait(60)


def main() -> None:
    """Make the base, start the server, measure, stop it."""
    folder, scale, sample_count = Path(sys.argv[1]), float(sys.argv[2]), int(sys.argv[3])
    with served(folder, count=max(10_000, int(1_000_000 * scale))) as (port, authorization, paths):
        asyncio.run(measure(port, authorization, paths=paths, sample_count=sample_count))


if __name__ == "__main__":
    main()
