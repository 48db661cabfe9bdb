"""A node of a fleet: reads over HTTP against the same rows elsewhere, and its memory with many tenants.

`get` is measured in turn with the repository server's `stat`, over as many connections; a scan in turn with a scan of
the same rows in an open database of this process. Log, control plane and node are processes of their own.
"""

from __future__ import annotations

import asyncio
import random
import sys
import time
from base64 import urlsafe_b64encode
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast
from urllib.parse import quote

from fleet_parts import Size, process, resident_mib, say
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
from repo_server import API as REPOSITORY
from repo_server import Client, sample, served
from worlds.waiting import wait_until

VALUE_BYTES = 100
TENANT = "bench"
CONNECTIONS = 8
BATCH = 100
_APPEND_ROWS = 10_000
_RNG = random.Random(1)

Sampled = tuple[list[float], list[float]]


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
        log_url, _ = parts.enter_context(process(_log, storage))
        control_url, _ = parts.enter_context(process(_control, storage, log_url))
        node = parts.enter_context(process(_node, control_url, str(folder / "node"), options or NodeOptions()))
        log = open_log(log_url)
        parts.callback(log.close)
        yield Running(HttpControl(control_url), HttpNode(node[0]), node[0], node[1], log)


def _rows(count: int) -> Iterator[tuple[list[bytes], list[bytes]]]:
    for first in range(0, count, _APPEND_ROWS):
        keys = [b"key-%09d" % number for number in range(first, min(count, first + _APPEND_ROWS))]
        yield keys, [_RNG.randbytes(VALUE_BYTES) for _ in keys]


def reads(size: Size) -> None:
    """`get` of warm keys, `get_many` of a hundred keys, and a scan to Arrow."""
    rows = size.count(200_000, least=2_000)
    location = DatabaseLocation.at(str(size.folder / "local"), durable=False)
    with (
        fleet_of_one(size.folder) as fleet,
        Database.open(location, options=DatabaseOptions(background=False)) as local,
    ):
        fleet.control.create_tenant(TENANT)
        lsn = 0
        for keys, values in _rows(rows):
            lsn = fleet.log.append(f"{TENANT}/main", rows_of(keys, values), write_id=new_uuid(_RNG))
            batch = WriteBatch()
            batch.put_many(keys, values)
            local.write(batch, await_durable=False)
        wait_until(lambda: fleet.node.lag(TENANT).get("main", 0) == 0)
        fleet.node.get(TENANT, "main", b"key-000000000", at_least=lsn)
        fleet.node.checkpoint(TENANT)
        fleet.node.compact(TENANT, "main")
        local.flush(memtable=True)
        with served(size.folder / "repository", count=rows) as (port, authorization, paths):
            asyncio.run(_gets(fleet, size, port=port, authorization=authorization, paths=paths, rows=rows))
        _get_many(fleet, local, size, rows=rows)
        _scan(fleet, local, size, rows=rows)


async def _gets(fleet: Running, size: Size, *, port: int, authorization: str, paths: list[str], rows: int) -> None:
    rng = random.Random(2)
    warm = [urlsafe_b64encode(b"key-%09d" % rng.randrange(rows)).decode() for _ in range(1_000)]
    known = [quote(rng.choice(paths)) for _ in range(1_000)]

    async def get(client: Client, number: int) -> None:
        target = f"{API}/tenants/{TENANT}/timelines/main/value?key={warm[number % len(warm)]}"
        status, _ = await client.call("GET", target)
        assert status == 200, status

    async def stat(client: Client, number: int) -> None:
        target = f"{REPOSITORY}/refs/main/objects/stat?path={known[number % len(known)]}"
        status, _ = await client.call("GET", target)
        assert status == 200, status

    node_port = int(fleet.node_url.rpartition(":")[2])
    for count in (1, CONNECTIONS):
        ours = [await Client(node_port, "Bearer none").open() for _ in range(count)]
        theirs = [await Client(port, authorization).open() for _ in range(count)]
        taken: dict[str, Sampled] = {"lakebed": ([], []), "repository-stat": ([], [])}
        for turn in range(1 + size.samples):
            for name, clients, act in (("lakebed", ours, get), ("repository-stat", theirs, stat)):
                per_s, p99_ms, _ = await sample(clients, act, seconds=size.seconds)
                if turn:
                    taken[name][0].append(per_s)
                    taken[name][1].append(p99_ms)
        for client in (*ours, *theirs):
            client.close()
        for place, unit, target in ((0, "keys/s", "repository-stat >= 0.5x"), (1, "ms", "")):
            say(
                f"node_get_{count}{'_p99' if place else ''}",
                unit,
                taken["lakebed"][place],
                peers={"repository-stat": taken["repository-stat"][place]},
                is_rate=not place,
                target=target,
                rows=rows,
            )


def _alternate(size: Size, sides: dict[str, Callable[[], float]]) -> dict[str, list[float]]:
    taken: dict[str, list[float]] = {name: [] for name in sides}
    for turn in range(1 + size.samples):
        for name, measure in sides.items():
            figure = measure()
            if turn:
                taken[name].append(figure)
    return taken


def _get_many(fleet: Running, local: Database, size: Size, *, rows: int) -> None:
    rng = random.Random(3)
    asked = [[b"key-%09d" % rng.randrange(rows) for _ in range(BATCH)] for _ in range(50)]

    def rate(read: Callable[[list[bytes]], list[bytes | None]]) -> float:
        count, start = 0, time.perf_counter()
        while time.perf_counter() - start < size.seconds / 2:
            assert None not in read(asked[count % len(asked)])
            count += BATCH
        return count / (time.perf_counter() - start)

    taken = _alternate(
        size,
        {
            "lakebed": lambda: rate(lambda keys: list(fleet.node.get_many(TENANT, "main", keys).values)),
            "open-database": lambda: rate(lambda keys: list(local.get_many(keys))),
        },
    )
    peers = {"open-database": taken["open-database"]}
    say(f"node_get_many_{BATCH}", "keys/s", taken["lakebed"], peers=peers, is_rate=True, rows=rows)


def _scan(fleet: Running, local: Database, size: Size, *, rows: int) -> None:
    def rate(scan: Callable[[], Any]) -> float:
        start = time.perf_counter()
        assert sum(batch.num_rows for batch in scan()) == rows
        return rows / (time.perf_counter() - start)

    taken = _alternate(
        size,
        {
            "lakebed": lambda: rate(lambda: fleet.node.scan(TENANT, "main")),
            "open-database": lambda: rate(local.scan_arrow),
        },
    )
    peers = {"open-database": taken["open-database"]}
    target = "open-database >= 0.5x"
    say("node_scan_arrow", "rows/s", taken["lakebed"], peers=peers, is_rate=True, target=target, rows=rows)


def memory(size: Size) -> None:
    """Peak memory of a node with 1000 tenants attached, of which 100 have rows in memory and are read."""
    tenants, loaded = size.count(1_000), size.count(100)
    options = NodeOptions(memtable_bytes_max=64 << 20, cache_bytes=32 << 20)
    with fleet_of_one(size.folder, options=options) as fleet:
        names = [f"tenant-{number:04d}" for number in range(tenants)]
        with ThreadPoolExecutor(8) as pool:
            list(pool.map(fleet.control.create_tenant, names))
        for name in names[:loaded]:
            keys, values = next(_rows(_APPEND_ROWS))
            lsn = fleet.log.append(f"{name}/main", rows_of(keys, values), write_id=new_uuid(_RNG))
            fleet.node.get(name, "main", keys[0], at_least=lsn)
        wait_until(lambda: sum(one.txn is not None for one in fleet.node.locations()) >= tenants, timeout_s=120)
        for name in names[loaded:]:
            fleet.node.get(name, "main", b"key")
        resident = resident_mib(fleet.node_pid, peak=True)
    limit = (options.memtable_bytes_max + options.cache_bytes) / (1 << 20) + 256
    facts = {"rows": loaded * _APPEND_ROWS, "cache_bytes": options.cache_bytes, "rss_mb": resident}
    say(f"node_memory_{tenants}", "MiB", [resident], target=f"<= {limit:.0f}", **facts)
