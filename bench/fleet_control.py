"""Grants of a control plane: 64 tenants in a closed loop over HTTP, in batches, durable; and its memory.

The control plane is a process of its own. Nodes are played by clients that send requests to commit and go on with the
transaction that each answer begins; they store no objects. Used by `bench/fleet.py`.
"""

from __future__ import annotations

import multiprocessing
import os
import statistics
import sys
import threading
import time
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from lakebed.fleet import layout
from lakebed.fleet.control.serve import ControlSettings, run_control
from lakebed.fleet.http_ports import HttpControl
from lakebed.fleet.model import ManifestRef, NodeRecord, Progress
from lakebed.fleet.ports import CommitRequest, Heartbeat, Held, Location, NodePort, NodeReport

if TYPE_CHECKING:
    from collections.abc import Iterator
    from multiprocessing.process import BaseProcess

CONTEXT = multiprocessing.get_context("spawn")


class _Silent:
    """A node that takes every location."""

    def put_location(self, location: Location) -> None:
        """Take it."""

    def locations(self) -> list[Held]:
        """Nothing that differs is looked for."""
        return []


def _serve(storage: str, ledger: str | None, durable: bool, sender: Any) -> None:
    nodes = cast(NodePort, _Silent())
    settings = ControlSettings(storage_url=storage, ledger=ledger, durable=durable, nodes=lambda _: nodes)
    sys.exit(run_control(settings, started=sender.send))


@contextmanager
def control_process(storage: str, *, ledger: str | None = None, durable: bool = True) -> Iterator[tuple[str, int]]:
    """A control plane as a process: its URL and process id."""
    receiver, sender = CONTEXT.Pipe(duplex=False)
    process: BaseProcess = CONTEXT.Process(target=_serve, args=(storage, ledger, durable, sender))
    process.start()
    try:
        yield receiver.recv(), cast(int, process.pid)
    finally:
        process.terminate()
        process.join(30)


@dataclass
class _Loop:
    """Some tenants of one node, which commit over and over."""

    url: str
    node: str
    tenants: list[Location]
    granted: int = 0
    seconds: list[float] = field(default_factory=list)

    def run(self, *, ends_s: float) -> None:
        control = HttpControl(self.url)
        txns = {one.tenant: (one.txn or 0, one.generation) for one in self.tenants}
        while time.perf_counter() < ends_s:
            requests = [_request(tenant, txn, self.node, generation) for tenant, (txn, generation) in txns.items()]
            started_s = time.perf_counter()
            replies = control.commit(requests)
            self.seconds.append(time.perf_counter() - started_s)
            for request, reply in zip(requests, replies, strict=True):
                assert reply.verdict == "granted", reply
                assert reply.txn is not None
                txns[request.tenant] = (reply.txn, request.generation)
            self.granted += len(requests)


def _request(tenant: str, txn: int, node: str, generation: int) -> CommitRequest:
    return CommitRequest(
        tenant,
        txn,
        node,
        generation,
        ManifestRef(layout.manifest_path(tenant, txn, 1), "0123456789abcdef0123456789abcdef", 2_000),
        timelines={"main": Progress(txn, 0)},
        names={"main": "main"},
    )


def grants(
    storage: str,
    *,
    tenants: int = 64,
    batch: int = 32,
    seconds: float = 10.0,
    ledger: str | None = None,
    durable: bool = True,
) -> dict[str, float]:
    """Grants a second, and the latency of a batch.

    Args:
        storage: the fleet's storage: a folder, or a bucket's URL.
        ledger: ``postgresql://...``; None: the database in the storage.
        batch: requests of one call; so many tenants share a client.
    """
    with control_process(storage, ledger=ledger, durable=durable) as (url, pid):
        control = HttpControl(url, patience_s=30)
        beating = _register(control, "bench")
        records = [control.create_tenant(f"t{number:05}") for number in range(tenants)]
        located = [
            Location(one.tenant, one.attachments[0].generation, one.attachments[0].mode, txn=one.transactions[0].id)
            for one in records
        ]
        parts = [located[at : at + batch] for at in range(0, tenants, batch)]
        for length_s in (1.0, seconds):  # the first is not measured
            loops = [_Loop(url, "bench", part) for part in parts]
            before_s = _processor_s(pid)
            started_s = time.perf_counter()
            threads = [threading.Thread(target=one.run, kwargs={"ends_s": started_s + length_s}) for one in loops]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
            took_s = time.perf_counter() - started_s
            granted = sum(one.granted for one in loops)
            processor_s = _processor_s(pid) - before_s
            located = [_now(control, one) for one in located]
            parts = [located[at : at + batch] for at in range(0, tenants, batch)]
        beating.set()
        latencies = sorted(second for one in loops for second in one.seconds)
        return {
            "grants_batched_per_s": granted / took_s,
            "batch_ms_p50": 1000 * statistics.median(latencies),
            "batch_ms_p99": 1000 * latencies[int(len(latencies) * 0.99)],
            "processor_us_a_grant": 1e6 * processor_s / granted,
        }


def _now(control: HttpControl, location: Location) -> Location:
    record = control.tenant(location.tenant)
    return Location(location.tenant, location.generation, location.mode, txn=record.transactions[-1].id)


def _register(control: HttpControl, node: str) -> threading.Event:
    """A node that is alive until the event is set."""
    record = NodeRecord(node, "http://127.0.0.1:9", f"{node}-1", f"{node}-disk", 0)
    control.register(record)
    control.attached(NodeReport(node, record.incarnation, record.local_id))
    ended = threading.Event()

    def beat() -> None:
        while not ended.wait(0.3):
            control.heartbeat(Heartbeat(node, record.incarnation, tenant_count=0, unflushed_bytes=0))

    threading.Thread(target=beat, daemon=True).start()
    return ended


def memory_mib(storage: str, *, tenants: int = 10_000) -> float:
    """Resident memory of a control plane with so many tenants, after a scan of them all."""
    with control_process(storage, durable=False) as (url, pid):
        control = HttpControl(url, patience_s=30)
        beating = _register(control, "bench")
        creators = 8

        def create(first: int) -> None:
            for number in range(first, tenants, creators):
                control.create_tenant(f"t{number:05}")

        threads = [threading.Thread(target=create, args=(first,)) for first in range(creators)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert len(control.tenants()) == tenants
        beating.set()
        pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
        return pages * os.sysconf("SC_PAGE_SIZE") / 2**20


def _processor_s(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


if __name__ == "__main__":
    import tempfile

    with tempfile.TemporaryDirectory() as folder:
        for name, value in grants(folder).items():
            print(f"{name}: {value:.1f}")
        if "--memory" in sys.argv:
            print(f"memory: {memory_mib(f'{folder}/memory'):.0f} MiB")
