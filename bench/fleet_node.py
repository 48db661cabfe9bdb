"""A node of a fleet: ``fleet_node.py FOLDER [ROWS]``. One JSON line a figure on standard output.

Owns: reads over HTTP against the same rows in an open database of this process, and a node's memory with many tenants.
Log, control plane and node are processes of their own. `bench/fleet.py` calls the same functions.
"""

from __future__ import annotations

import asyncio
import json
import multiprocessing
import random
import sys
import time
from base64 import urlsafe_b64encode
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

sys.path.insert(0, str(Path(__file__).parent))

from lakebed.fleet.control.serve import ControlSettings, run_control
from lakebed.fleet.http_ports import HttpControl, HttpNode
from lakebed.fleet.log.open import open_log
from lakebed.fleet.log.port import Log, rows_of
from lakebed.fleet.log.serve import LogSettings, run_log
from lakebed.fleet.node.bodies import API
from lakebed.fleet.node.options import NodeOptions
from lakebed.fleet.node.serve import NodeSettings, run_node
from lakebed.fleet.ports import FleetAddress, NodePort
from lakebed.ids import new_uuid
from lakebed.kv import Database, DatabaseOptions, WriteBatch
from lakebed.kv.database_location import DatabaseLocation
from repo_server import Client, sample

if TYPE_CHECKING:
    from multiprocessing.process import BaseProcess

CONTEXT = multiprocessing.get_context("spawn")
VALUE_BYTES = 100
TENANT = "bench"
CONNECTIONS = 8
_APPEND_ROWS = 10_000
_RNG = random.Random(1)


@dataclass(frozen=True)
class Figure:
    """One figure of one workload."""

    workload: str
    per_s: float = 0.0
    """Keys, or rows, a second."""
    p99_ms: float = 0.0
    share_of_local: float = 0.0
    """Of the same read of the same rows in an open database of this process."""
    megabytes: float = 0.0
    count: int = 0


def _log(storage: str, sender: Any) -> None:
    sys.exit(run_log(LogSettings(storage_url=storage), started=sender.send))


def _control(storage: str, log: str, sender: Any) -> None:
    settings = ControlSettings(
        storage_url=storage,
        nodes=lambda record: cast(NodePort, HttpNode(record.url)),
        open_log=lambda: cast(Any, open_log(log)),
        address=FleetAddress(storage, log, "kv"),
    )
    sys.exit(run_control(settings, started=sender.send))


def _node(control: str, local: str, options: NodeOptions, sender: Any) -> None:
    sys.exit(run_node(NodeSettings(control=control, local=local, options=options), started=sender.send))


@contextmanager
def _process(function: Callable[..., None], *arguments: Any) -> Iterator[tuple[str, int]]:
    """A part of the fleet as a process: its URL and process id."""
    receiver, sender = CONTEXT.Pipe(duplex=False)
    process: BaseProcess = CONTEXT.Process(target=function, args=(*arguments, sender))
    process.start()
    try:
        yield receiver.recv(), cast(int, process.pid)
    finally:
        process.terminate()
        process.join(30)


@dataclass
class Running:
    """A fleet of one node."""

    control: HttpControl
    node: HttpNode
    node_url: str
    node_pid: int
    log: Log


@contextmanager
def fleet_of_one(folder: Path, *, options: NodeOptions | None = None) -> Iterator[Running]:
    """Log, control plane and one node, on a local folder with everything durable."""
    storage = str(folder / "storage")
    with ExitStack() as parts:
        log_url, _ = parts.enter_context(_process(_log, storage))
        control_url, _ = parts.enter_context(_process(_control, storage, log_url))
        node = parts.enter_context(_process(_node, control_url, str(folder / "node"), options or NodeOptions()))
        log = open_log(log_url)
        parts.callback(log.close)
        yield Running(HttpControl(control_url), HttpNode(node[0]), node[0], node[1], log)


def _rows(count: int) -> Iterator[tuple[list[bytes], list[bytes]]]:
    for first in range(0, count, _APPEND_ROWS):
        keys = [b"key-%09d" % number for number in range(first, min(count, first + _APPEND_ROWS))]
        yield keys, [_RNG.randbytes(VALUE_BYTES) for _ in keys]


def _median(figures: list[float]) -> float:
    return sorted(figures)[len(figures) // 2]


def reads(folder: Path, *, rows: int = 200_000, seconds: float = 2.0) -> list[Figure]:
    """`get` of warm keys over HTTP, `get_many` of a hundred keys, and a scan to Arrow against a local one."""
    location = DatabaseLocation.at(str(folder / "local"), durable=False)
    with fleet_of_one(folder) as fleet, Database.open(location, options=DatabaseOptions(background=False)) as local:
        fleet.control.create_tenant(TENANT)
        lsn = 0
        for keys, values in _rows(rows):
            lsn = fleet.log.append(f"{TENANT}/main", rows_of(keys, values), write_id=new_uuid(_RNG))
            batch = WriteBatch()
            batch.put_many(keys, values)
            local.write(batch, await_durable=False)
        fleet.node.get(TENANT, "main", b"key-000000000", at_least=lsn)
        fleet.node.checkpoint(TENANT)
        fleet.node.compact(TENANT, "main")
        local.flush(memtable=True)
        return [
            asyncio.run(_gets(fleet, rows=rows, seconds=seconds)),
            _get_many(fleet, rows=rows, seconds=seconds),
            _scan(fleet, local, rows=rows),
        ]


async def _gets(fleet: Running, *, rows: int, seconds: float) -> Figure:
    port = int(fleet.node_url.rpartition(":")[2])
    clients = [await Client(port, "Bearer none").open() for _ in range(CONNECTIONS)]
    rng = random.Random(2)
    warm = [urlsafe_b64encode(b"key-%09d" % rng.randrange(rows)).decode() for _ in range(1_000)]
    path = f"{API}/tenants/{TENANT}/timelines/main/value?key="

    async def act(client: Client, number: int) -> None:
        status, _ = await client.call("GET", path + warm[number % len(warm)])
        assert status == 200, status

    await sample(clients, act, seconds=seconds / 4)
    per_s, p99_ms, count = await sample(clients, act, seconds=seconds)
    for client in clients:
        client.close()
    return Figure("node_get", per_s=per_s, p99_ms=p99_ms, count=count)


def _get_many(fleet: Running, *, rows: int, seconds: float) -> Figure:
    rng = random.Random(3)
    asked = [[b"key-%09d" % rng.randrange(rows) for _ in range(100)] for _ in range(50)]
    count, start = 0, time.perf_counter()
    while time.perf_counter() - start < seconds:
        assert None not in fleet.node.get_many(TENANT, "main", asked[count % 50])
        count += 1
    return Figure("node_get_many_100", per_s=count * 100 / (time.perf_counter() - start), count=count)


def _scan(fleet: Running, local: Database, *, rows: int) -> Figure:
    ours, theirs = [], []
    for _ in range(5):
        start = time.perf_counter()
        assert sum(batch.num_rows for batch in fleet.node.scan(TENANT, "main")) == rows
        ours.append(rows / (time.perf_counter() - start))
        start = time.perf_counter()
        assert sum(batch.num_rows for batch in local.scan_arrow()) == rows
        theirs.append(rows / (time.perf_counter() - start))
    return Figure("node_scan_arrow", per_s=_median(ours), share_of_local=_median(ours) / _median(theirs), count=rows)


def memory(folder: Path, *, tenants: int = 1_000, loaded: int = 100) -> Figure:
    """Resident megabytes of a node with many tenants attached, of which some have rows in memory and are read."""
    options = NodeOptions(memtable_bytes_max=64 << 20, cache_bytes=32 << 20)
    with fleet_of_one(folder, options=options) as fleet:
        names = [f"tenant-{number:04d}" for number in range(tenants)]
        with ThreadPoolExecutor(8) as pool:
            list(pool.map(fleet.control.create_tenant, names))
        for name in names[:loaded]:
            keys, values = next(_rows(_APPEND_ROWS))
            lsn = fleet.log.append(f"{name}/main", rows_of(keys, values), write_id=new_uuid(_RNG))
            fleet.node.get(name, "main", keys[0], at_least=lsn)
        while sum(one.txn is not None for one in fleet.node.locations()) < tenants:
            time.sleep(0.1)
        for name in names[loaded:]:
            fleet.node.get(name, "main", b"key")
        limit = (options.memtable_bytes_max + options.cache_bytes) / (1 << 20) + 256
        resident = _resident_megabytes(fleet.node_pid)
        return Figure(f"node_memory_{tenants}", megabytes=resident, share_of_local=resident / limit, count=loaded)


def _resident_megabytes(pid: int) -> float:
    status = Path(f"/proc/{pid}/status").read_text()
    return next(int(line.split()[1]) for line in status.splitlines() if line.startswith("VmHWM")) / 1024


def main() -> None:
    """Measure, and print."""
    folder, rows = Path(sys.argv[1]), int(sys.argv[2]) if len(sys.argv) > 2 else 200_000
    for figure in (*reads(folder / "reads", rows=rows), memory(folder / "memory")):
        print(json.dumps(asdict(figure)), flush=True)


if __name__ == "__main__":
    main()
