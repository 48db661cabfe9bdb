"""A control plane as a real process, over nodes that take every location, and a committing client that checks it."""

from __future__ import annotations

import multiprocessing
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any, cast

from lakebed.errors import LakebedError, OutcomeUnknown, Unavailable
from lakebed.fleet import layout
from lakebed.fleet.control.options import ControlOptions
from lakebed.fleet.control.serve import ControlSettings, run_control
from lakebed.fleet.http_ports import HttpControl
from lakebed.fleet.model import ManifestRef, NodeRecord, Progress
from lakebed.fleet.ports import (
    CommitRequest,
    Heartbeat,
    Held,
    Location,
    NodePort,
    NodeReport,
    TimelineChange,
    TimelineInfo,
)

CONTEXT = multiprocessing.get_context("forkserver")
CONTEXT.set_forkserver_preload([ControlSettings.__module__])  # each start would import it anew, for seconds


class _Taking:
    def put_location(self, location: Location) -> None:
        """Take it."""

    def locations(self) -> list[Held]:
        """What differs is sent again, and taken."""
        return []

    def lag(self, tenant: str) -> dict[str, int]:
        """It has everything."""
        return {}

    def checkpoint(self, tenant: str) -> int:
        """It has nothing to commit."""
        return 0

    def change(self, tenant: str, change: TimelineChange) -> TimelineInfo:
        """As if it was made."""
        return TimelineInfo(change.id, change.name, lsn=0, committed_lsn=0, cutoff=0)


TAKING = cast(NodePort, _Taking())
"""A node that takes everything and remembers nothing."""


def _serve(storage: str, ledger: str | None, port: int, sender: Any) -> None:
    settings = ControlSettings(
        storage_url=storage,
        ledger=ledger,
        nodes=lambda _: TAKING,
        durable=False,
        options=ControlOptions(silent_ms=30_000, grace_ms=500, scan_interval_ms=2_000),
    )
    sys.exit(run_control(settings, port=port, started=sender.send))


class ControlProcess:
    """Starts, kills and starts again; always at the same port."""

    def __init__(self, storage: str, *, ledger: str | None = None, port: int = 0) -> None:
        self._storage = storage
        self._ledger = ledger
        self._port = port
        self.url = ""
        self.start()

    def start(self) -> None:
        """Start, and wait until it answers (perhaps as a standby)."""
        receiver, sender = CONTEXT.Pipe(duplex=False)
        arguments = (self._storage, self._ledger, self._port, sender)
        self._process = CONTEXT.Process(target=_serve, args=arguments, daemon=True)
        self._process.start()
        sender.close()
        self.url = receiver.recv()
        self._port = int(self.url.rpartition(":")[2])

    def kill(self) -> None:
        """End it at once, wherever it is; a no-op for one that has ended."""
        self._process.kill()
        self._process.join(30)

    def stop(self) -> int | None:
        """Ask it to end; its exit code."""
        self._process.terminate()
        self._process.join(30)
        return self._process.exitcode


@dataclass
class Committer:
    """One node that commits the transactions of some tenants over and over, and notes what was granted."""

    control: HttpControl
    name: str
    txns: dict[str, tuple[int, int]] = field(default_factory=dict)
    granted: dict[str, list[int]] = field(default_factory=dict)
    problems: list[str] = field(default_factory=list)

    def register(self) -> None:
        """Become a node."""
        record = NodeRecord(self.name, "http://127.0.0.1:9", f"{self.name}-1", f"{self.name}-disk", 0)
        self.control.register(record)
        self.control.attached(NodeReport(self.name, record.incarnation, record.local_id))
        self.beat()

    def beat(self) -> None:
        """Be alive."""
        self.control.heartbeat(Heartbeat(self.name, f"{self.name}-1", tenant_count=0, unflushed_bytes=0))

    def create(self, tenant: str) -> None:
        """Make a tenant, which is attached here."""
        record = self.control.create_tenant(tenant)
        assert record.preferred == self.name
        self.txns[tenant] = (record.transactions[0].id, record.attachments[0].generation)
        self.granted[tenant] = []

    def run(self, is_over: Callable[[], bool]) -> None:
        """Commit until it is over. Every request is asked again until it has an answer."""
        while not is_over():
            requests = [self._request(tenant, *txn) for tenant, txn in self.txns.items()]
            try:
                replies = self.control.commit(requests)
            except (Unavailable, OutcomeUnknown):
                continue
            except LakebedError as error:
                self.problems.append(f"{error.kind}: {error}")
                return
            for request, reply in zip(requests, replies, strict=True):
                if reply.verdict != "granted":
                    self.problems.append(f"{request.tenant} {request.txn}: {reply}")
                    return
                self.granted[request.tenant].append(request.txn)
                # None: the one after it is over too, as another committer of the same transactions was faster.
                txn = self._newest(request.tenant) if reply.txn is None else reply.txn
                self.txns[request.tenant] = (txn, request.generation)

    def _newest(self, tenant: str) -> int:
        while True:
            try:
                return self.control.tenant(tenant).transactions[-1].id
            except (Unavailable, OutcomeUnknown):
                continue

    def _request(self, tenant: str, txn: int, generation: int) -> CommitRequest:
        return CommitRequest(
            tenant,
            txn,
            self.name,
            generation,
            ManifestRef(layout.manifest_path(tenant, txn, 1), f"{txn:032x}", 1),
            timelines={"main": Progress(txn, 0)},
            names={"main": "main"},
        )

    def check(self) -> None:
        """Every granted commit is in the ledger; each committed transaction is based on the one before it."""
        assert self.problems == []
        for tenant, granted in self.granted.items():
            committed = [
                transaction
                for transaction in reversed(self.control.transactions(tenant).finished)
                if transaction.state == "committed"
            ]
            assert len(set(granted)) == len(granted)
            oldest = committed[0].id  # the answer has a bounded number of the newest
            assert {txn for txn in granted if txn >= oldest} <= {item.id for item in committed}
            for before, after in pairwise(committed):
                assert after.base == before.id
