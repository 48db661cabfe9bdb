"""Grants of a control plane: 64 tenants in a closed loop over HTTP, in batches, durable; and its memory.

The control plane is a process of its own. Nodes are played by clients that send requests to commit and continue with
the transaction that each answer begins; they store no objects.
"""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, cast

import lakebed.objects.open
from fleet_parts import Size, process, processor_s, quantile, resident_mib, say
from lakebed.fleet import layout
from lakebed.fleet.control.serve import ControlSettings, run_control
from lakebed.fleet.http_ports import HttpControl
from lakebed.fleet.model import ManifestRef, NodeRecord, Progress
from lakebed.fleet.ports import CommitRequest, Heartbeat, Held, Location, NodePort, NodeReport
from lakebed.objects.local import LocalDriver
from worlds.postgresql import running_postgresql

TENANTS = 64
BATCH = 32
SLOW_S = 0.02
_STORE_CALLS = ("get", "get_ranges", "head", "put", "open_upload", "list_pages", "list_level", "delete", "copy")


def _slow(name: str) -> Callable[..., Any]:
    inner = getattr(LocalDriver, name)

    def call(self: LocalDriver, *arguments: Any, **named: Any) -> Any:
        time.sleep(SLOW_S)
        return inner(self, *arguments, **named)

    return call


_SlowDriver = type("_SlowDriver", (LocalDriver,), {name: _slow(name) for name in _STORE_CALLS})
"""A folder of which every request takes 20 ms more, as of an object store."""


class _Silent:
    """A node that takes every location."""

    def put_location(self, location: Location) -> None:
        """Take it."""

    def locations(self) -> list[Held]:
        """Nothing that differs is looked for."""
        return []


def _serve(storage: str, ledger: str | None, durable: bool, is_slow: bool, sender: Any) -> None:
    if is_slow:
        lakebed.objects.open.LocalDriver = _SlowDriver  # type: ignore[attr-defined]
    nodes = cast(NodePort, _Silent())
    settings = ControlSettings(storage_url=storage, ledger=ledger, durable=durable, nodes=lambda _: nodes)
    sys.exit(run_control(settings, started=sender.send))


@dataclass
class _Loop:
    """Some tenants of one node, which commit over and over."""

    url: str
    txns: dict[str, tuple[int, int]]
    granted: int = 0
    seconds: list[float] = field(default_factory=list)

    def run(self, ends_s: float) -> None:
        control = HttpControl(self.url, retry_s=30)
        self.granted, self.seconds = 0, []
        while time.perf_counter() < ends_s:
            requests = [_request(tenant, *txn) for tenant, txn in self.txns.items()]
            started_s = time.perf_counter()
            replies = control.commit(requests)
            self.seconds.append(time.perf_counter() - started_s)
            for request, reply in zip(requests, replies, strict=True):
                assert reply.verdict == "granted", reply
                assert reply.txn is not None
                self.txns[request.tenant] = (reply.txn, request.generation)
            self.granted += len(requests)
        control.close()


def _request(tenant: str, txn: int, generation: int) -> CommitRequest:
    return CommitRequest(
        tenant,
        txn,
        "bench",
        generation,
        ManifestRef(layout.manifest_path(tenant, txn, 1), "0123456789abcdef0123456789abcdef", 2_000),
        timelines={"main": Progress(txn, 0)},
        names={"main": "main"},
    )


def grants(size: Size) -> None:
    """On a folder, with everything durable."""
    _grants(size, "grants_batched", str(size.folder / "storage"), target=">= 3000")


def grants_20ms(size: Size) -> None:
    """On a store of which every request takes 20 ms."""
    _grants(size, "grants_20ms", str(size.folder / "storage"), is_slow=True)


def grants_postgresql(size: Size) -> None:
    """On PostgreSQL, whose commits wait for the disk."""
    with running_postgresql(fsync=True) as server:
        _grants(size, "grants_postgresql", str(size.folder / "storage"), ledger=server.make_database())


def _grants(
    size: Size, name: str, storage: str, *, ledger: str | None = None, is_slow: bool = False, target: str = ""
) -> None:
    """Grants a second, the latency of a batch, and the control plane's processor time a grant."""
    rates: list[float] = []
    latencies: list[float] = []
    processor_us: list[float] = []
    with process(_serve, storage, ledger, True, is_slow) as (url, pid), _node(url) as control:
        records = [control.create_tenant(f"t{number:05}") for number in range(TENANTS)]
        txns = {one.tenant: (one.transactions[0].id, one.attachments[0].generation) for one in records}
        parts = [dict(list(txns.items())[at : at + BATCH]) for at in range(0, TENANTS, BATCH)]
        loops = [_Loop(url, part) for part in parts]
        for turn in range(1 + size.samples):  # the first is not measured
            before_s, started_s = processor_s(pid), time.perf_counter()
            ends_s = started_s + size.seconds
            threads = [threading.Thread(target=one.run, args=(ends_s,)) for one in loops]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
            took_s = time.perf_counter() - started_s
            granted = sum(one.granted for one in loops)
            if turn:
                rates.append(granted / took_s)
                latencies.append(1e3 * quantile([taken for one in loops for taken in one.seconds], 0.99))
                processor_us.append(1e6 * (processor_s(pid) - before_s) / granted)
    say(f"{name}_per_s", "grants/s", rates, target=target, is_rate=True, durable=True, rows=TENANTS)
    say(f"{name}_p99", "ms a batch", latencies, durable=True, rows=BATCH)
    say(f"{name}_processor", "us a grant", processor_us, durable=True)


@contextmanager
def _node(url: str) -> Iterator[HttpControl]:
    """A node that is alive until the end of the ``with``; the control plane."""
    control = HttpControl(url, retry_s=30)
    record = NodeRecord("bench", "http://127.0.0.1:9", "bench-1", "bench-disk", 0)
    control.register(record)
    control.attached(NodeReport("bench", record.incarnation, record.local_id))
    ended = threading.Event()

    def beat() -> None:
        while not ended.wait(0.3):
            control.heartbeat(Heartbeat("bench", record.incarnation, tenant_count=0, unflushed_bytes=0))

    beating = threading.Thread(target=beat, daemon=True)
    beating.start()
    try:
        yield control
    finally:
        ended.set()
        beating.join()
        control.close()


def memory(size: Size) -> None:
    """Resident memory of a control plane with 10,000 tenants, after a scan of them all."""
    tenants = size.count(10_000)
    storage = str(size.folder / "storage")
    with (
        process(_serve, storage, None, False, False) as (url, pid),
        _node(url) as control,
        ThreadPoolExecutor(8) as pool,
    ):
        list(pool.map(lambda number: control.create_tenant(f"t{number:05}"), range(tenants)))
        assert len(control.tenants()) == tenants
        resident = resident_mib(pid, peak=True)
    say(f"control_memory_{tenants}", "MiB", [resident], target="<= 256", rows=tenants, rss_mb=resident)
