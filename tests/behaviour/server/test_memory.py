"""The memory of a server under many clients: it grows until the caches are full, and no further."""

from __future__ import annotations

import asyncio
import json
import random
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

import pyarrow as pa
import pytest
import urllib3

from lakebed.errors import LakebedError
from lakebed.http import memory
from lakebed.server.lifecycle import serve_one
from lakebed.server.options import ServerOptions
from lakebed.server.settings import ServerSettings
from worlds.scripts import run_script

CLIENT_COUNT = 64
WARM_REQUEST_COUNT = 40_000
"""Until the small memtables, caches of rows and histories of `SERVER` are full. With those that a server has by itself
it takes three times as many: from 40,000 on 223 MiB became 280 in ten minutes."""
PATH_COUNT = 100
"""Of each client: all are there soon, so the repository is as large at the end as when the caches are full. A merge
takes more memory the larger the branches are, up to that of some ranges of 16,000 objects."""
PLATEAU_S = 600
GROWTH_MAX = 1.1

SERVER = """
import json, sys
from dataclasses import replace
from lakebed.key_value import open as records
from lakebed.lsm.cache import set_shared_cache_bytes
from lakebed.server.serve import run_server
set_shared_cache_bytes(8 << 20)  # so that everything is full soon
records.DATABASE_OPTIONS = replace(
    records.DATABASE_OPTIONS,
    l0_sst_bytes=4 << 20,
    unflushed_bytes_max=16 << 20,
    transaction_history_bytes_max=8 << 20,
    row_cache_bytes=4 << 20,
)
def told(started):
    print(json.dumps([started.endpoint, started.access_key, started.secret]), flush=True)
run_server(sys.argv[1], port=0, access_log=None, started=told)
"""


def test_a_serving_process_gives_memory_back(tmp_path: Path) -> None:
    """It allocates columns where freed memory returns to the system, not where each thread keeps it."""
    before = pa.default_memory_pool()
    settings = ServerSettings(
        storage_url="s3://",  # fails to open, after the process has chosen
        endpoint="http://127.0.0.1:1",
        access_log=None,
        signing_key=b"",
        options=ServerOptions(),
    )
    try:
        with pytest.raises(LakebedError), socket.socket() as listener:
            serve_one(settings, listener, started=lambda told: None)
        assert pa.default_memory_pool().backend_name in ("jemalloc", "system")
    finally:
        pa.set_memory_pool(before)


def test_freed_memory_between_blocks_in_use_returns_to_the_system() -> None:
    """The C library keeps it by itself: a block that is still in use lies behind it."""
    code = """
import gc
from pathlib import Path
from lakebed.http.memory import release_unused

def resident_mib():
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4 / 1024

blocks = [bytes(10_000) for _ in range(10_000)]
del blocks[:-1]
gc.collect()
before = resident_mib()
release_unused()
print(before - resident_mib())
"""
    assert float(run_script(code)) > 80


def test_large_blocks_between_small_ones_return_when_they_are_freed() -> None:
    """The C library lets them lie between small blocks by itself, as soon as a larger one was freed."""
    code = """
from pathlib import Path
from lakebed.http.memory import save_memory

def resident_mib():
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4 / 1024

save_memory()
larger = b"x" * (20 << 20)
del larger
large, small = [], []
for _ in range(200):
    large.append(b"x" * 600_000)
    small.append(b"x" * 2_000)
before = resident_mib()
del large
print(before - resident_mib())
"""
    assert float(run_script(code)) > 110


def test_threads_of_a_serving_process_share_what_the_c_library_frees(tmp_path: Path) -> None:
    """What one thread has freed, another takes: none gets an area of its own, which serves it alone.

    In a process of its own: the C library takes a limit only until threads have allocated.
    """
    code = """
import ctypes, os, sys
from threading import Barrier, Thread
from lakebed.http import memory

def allocate():
    threads_meet.wait()
    blocks = [bytes(2_000) for _ in range(100)]
    threads_meet.wait()
    assert blocks

memory._ARENAS_MAX = int(sys.argv[2])
memory.save_memory()
threads_meet = Barrier(24)
threads = [Thread(target=allocate) for _ in range(24)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
library = ctypes.CDLL(None)
library.fopen.restype = ctypes.c_void_p
file = ctypes.c_void_p(library.fopen(os.fsencode(sys.argv[1]), b"w"))
library.malloc_info(0, file)
library.fclose(file)
"""
    report = tmp_path / "report.xml"
    subprocess.run([sys.executable, "-c", code, str(report), str(memory._ARENAS_MAX)], check=True)
    assert 0 < report.read_text().count("<heap nr=") <= 2


@dataclass(frozen=True)
class Serving:
    """A server in a process of its own."""

    pid: int
    port: int
    headers: dict[str, str] = field(repr=False)


@contextmanager
def small_server(lake: Path) -> Iterator[Serving]:
    """A server with small caches and a repository ``storm``; it ends with 0."""
    process = subprocess.Popen([sys.executable, "-c", SERVER, str(lake)], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    try:
        endpoint, access_key, secret = json.loads(process.stdout.readline())
        headers = urllib3.make_headers(basic_auth=f"{access_key}:{secret}")
        made: Any = urllib3.request(
            "POST",
            f"{endpoint}/api/v1/repositories",
            json={"name": "storm", "storage_namespace": "local://storm"},
            headers=headers,
        )
        assert made.status == 201
        yield Serving(process.pid, int(endpoint.rpartition(":")[2]), headers)
        process.terminate()
        assert process.wait(90) == 0
    finally:
        process.kill()
        process.wait()
        process.stdout.close()


class Client:
    """One connection of a client that writes, reads, lists, compares, commits and merges on a branch of its own."""

    def __init__(self, served: Serving, number: int, counts: list[int]) -> None:
        self._port = served.port
        self._number = number
        self._counts = counts
        self._rng = random.Random(number)
        self._head = "".join(f"{name}: {value}\r\n" for name, value in served.headers.items())

    async def ask(self, method: str, place: str, body: bytes = b"") -> None:
        """One request, which must not fail."""
        head = f"{method} /api/v1/repositories/storm{place} HTTP/1.1\r\nHost: here\r\n{self._head}"
        self._writer.write(f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body)
        lines = (await self._reader.readuntil(b"\r\n\r\n")).split(b"\r\n")
        status = int(lines[0].split()[1])
        length = next((int(line[15:]) for line in lines if line.lower().startswith(b"content-length:")), 0)
        reply = await self._reader.readexactly(length)
        assert status < 300 or status in (400, 409), (status, method, place, reply)  # nothing to commit, or a conflict
        self._counts[0] += 1

    async def run(self, stop: asyncio.Event) -> None:
        """Send requests until `stop` is set."""
        self._reader, self._writer = await asyncio.open_connection("127.0.0.1", self._port)
        rng, branch = self._rng, f"b{self._number}"
        await self.ask("POST", "/branches", json.dumps({"name": branch, "source": "main"}).encode())
        while not stop.is_set():
            for _ in range(10):
                number = rng.randrange(PATH_COUNT)
                path = f"d{number % 50}/f{self._number}-{number}"
                await self.ask(
                    "POST", f"/branches/{branch}/objects?path={path}", rng.randbytes(rng.randrange(10, 5000))
                )
                await self.ask("GET", f"/refs/{branch}/objects?path={path}")
                await self.ask("GET", f"/refs/{branch}/objects/stat?path={path}")
            await self.ask("GET", f"/refs/{branch}/objects/ls?amount=100&delimiter=/")
            await self.ask("GET", f"/branches/{branch}/diff?amount=100")
            await self.ask("POST", f"/branches/{branch}/commits", b'{"message": "a commit"}')
            await self.ask("GET", f"/refs/{branch}/commits?amount=10")
            if rng.random() < 0.3:
                await self.ask("POST", f"/refs/{branch}/merge/main", b"{}")
                await self.ask("GET", f"/refs/main/diff/{branch}?amount=100")
        self._writer.close()


async def sizes_under_load(served: Serving, *, warm_request_count: int, plateau_s: float) -> list[float]:
    """Resident MiB of the server every five seconds, from when so many requests were answered on."""
    counts, stop = [0], asyncio.Event()
    clients = [asyncio.create_task(Client(served, number, counts).run(stop)) for number in range(CLIENT_COUNT)]
    loop = asyncio.get_running_loop()
    while counts[0] < warm_request_count:
        await asyncio.wait(clients, timeout=1, return_when=asyncio.FIRST_EXCEPTION)
        assert not any(client.done() for client in clients), await asyncio.gather(*clients)
    sizes = []
    end_s = loop.time() + plateau_s
    while loop.time() < end_s:
        sizes.append(resident_mib(served.pid))
        await asyncio.wait(clients, timeout=5, return_when=asyncio.FIRST_EXCEPTION)
        assert not any(client.done() for client in clients), await asyncio.gather(*clients)
    stop.set()
    await asyncio.gather(*clients)
    return sizes


def resident_mib(pid: int) -> float:
    """What a process occupies."""
    lines = dict(line.split(":", 1) for line in Path(f"/proc/{pid}/status").read_text().splitlines())
    return int(lines["VmRSS"].split()[0]) / 1024


@pytest.mark.long
def test_memory_stays_where_the_caches_end(tmp_path: Path, tell: Callable[[str], None]) -> None:
    """64 clients for ten minutes after the caches are full: the last two minutes hold no more than the first two."""
    with small_server(tmp_path / "lake") as served:
        sizes = asyncio.run(sizes_under_load(served, warm_request_count=WARM_REQUEST_COUNT, plateau_s=PLATEAU_S))
        share = len(sizes) // 5
        first, last = median(sizes[:share]), median(sizes[-share:])
        tell(f"server memory: {first:.0f} MiB with full caches, {last:.0f} ten minutes later, at most {max(sizes):.0f}")
        tell(f"every half minute: {' '.join(f'{size:.0f}' for size in sizes[::6])}")
        assert last <= first * GROWTH_MAX, [round(size) for size in sizes]
