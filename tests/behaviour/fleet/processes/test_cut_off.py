"""Nodes cut off by the network, from the control plane, the log, the store or all: nothing acknowledged is lost.

Each part serves HTTP on loopback; the objects are in an S3 server. One node reaches everything, and is reached, through
proxies that a test breaks.
"""

from __future__ import annotations

import random
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

import lakebed
from lakebed.errors import LakebedError, Unavailable
from lakebed.fleet.connect import Fleet, connect
from lakebed.fleet.control.options import ControlOptions
from lakebed.fleet.control.serve import ControlSettings, start_control
from lakebed.fleet.http_ports import HttpNode
from lakebed.fleet.layout import txn_folder
from lakebed.fleet.log.open import open_log
from lakebed.fleet.log.serve import LogSettings, start_log
from lakebed.fleet.model import MAIN, Policy
from lakebed.fleet.node.node import Node
from lakebed.fleet.node.serve import NodeSettings, start_node
from lakebed.fleet.ports import FleetAddress
from lakebed.objects.open import open_store
from lakebed.objects.port import ObjectStore
from worlds.broken_network import Fault, Link
from worlds.fleet_storm import Storm
from worlds.ports import free_port
from worlds.waiting import pause, wait_until

CUT, OTHER = "node-1", "node-2"
QUIET = "quiet"
"""A tenant whose rows stay in memory, with one writer: what the node that is cut off reads."""


@dataclass
class Network:
    """A fleet of two nodes, one of them behind links."""

    storage: ObjectStore
    lake: lakebed.Lake
    fleet: Fleet
    node: Node
    """The one behind the links."""
    inside: HttpNode
    """The same, reached without a link."""
    links: dict[str, Link]
    storm: Storm
    quiet: dict[bytes, bytes] = field(default_factory=dict)

    def preferred(self, tenant: str) -> str | None:
        """Where the control plane has a tenant."""
        return self.fleet.operator.tenant(tenant).preferred

    def place(self, tenant: str) -> None:
        """Let the node behind the links have a tenant, alone."""

        def is_there() -> bool:
            record = self.fleet.operator.tenant(tenant)
            if record.preferred == CUT:
                return record.relocation is None and len(record.attachments) == 1
            if record.relocation is None:
                try:
                    self.fleet.operator.migrate(tenant, CUT)
                except LakebedError:
                    return False
            return False

        wait_until(is_there, interval_s=0.1)

    def check_quiet(self) -> None:
        """The node reads every row that it has ingested, whatever it is cut off from."""
        batches = list(self.inside.scan(QUIET, MAIN))
        result = {k: v for b in batches for k, v in zip(b.column(0).to_pylist(), b.column(1).to_pylist(), strict=True)}
        assert result == self.quiet

    def repair(self) -> None:
        """Mend all links."""
        for link in self.links.values():
            link.break_with(None)


@contextmanager
def network(server: Any, folder: Path, *, seed: int = 0) -> Iterator[Network]:
    """A running fleet with clients; at the end everything is compared, and the collector finds what it should."""
    url, options = server.url(), dict(server.options)
    with ExitStack() as running:
        authority = running.enter_context(start_log(LogSettings(storage_url=url, storage_options=options)))
        log = f"http://{authority.site.serving.authority}"
        address = FleetAddress(storage=url, log=log, ledger="kv")
        settings = ControlSettings(
            storage_url=url,
            storage_options=options,
            nodes=lambda record: HttpNode(record.url, read_s=2),
            open_log=lambda: open_log(log),
            address=address,
            options=ControlOptions(grace_ms=200, silent_ms=3_000, scan_interval_ms=1_000, doubt_ms=100),
        )
        control = f"http://{running.enter_context(start_control(settings)).site.serving.authority}"
        port = free_port()
        ends = {"control": control, "log": log, "store": options["aws_endpoint"], "node": f"http://127.0.0.1:{port}"}
        links = {name: Link(target) for name, target in ends.items()}
        for link in links.values():
            running.callback(link.close)
        behind = NodeSettings(
            control=links["control"].url,
            local=str(folder / CUT),
            log=links["log"].url,
            storage_options={**options, "aws_endpoint": links["store"].url},
            advertised=links["node"].url,
        )
        node = running.enter_context(start_node(behind, port=port)).site.node
        other = NodeSettings(control=control, local=str(folder / OTHER), storage_options=options)
        running.enter_context(start_node(other))
        lake = lakebed.open(url, storage_options=options)
        storage = open_store(url, storage_options=options)
        fleet = running.enter_context(connect(storage, control=control))
        inside = HttpNode(ends["node"], read_s=10)
        running.callback(inside.close)
        running.callback(lambda: [link.break_with(None) for link in links.values()])
        result = Network(storage, lake, fleet, node, inside, links, Storm(fleet, count=2, seed=seed))
        fill(result)
        yield result
        result.repair()
        result.storm.wait_for_progress()
        result.storm.stop()
        result.storm.check_all(seed=seed)
        assert dict(fleet.tenant(QUIET).main.scan()) == result.quiet

        def is_whole() -> bool:
            report = lake.collect_tenants(dry_run=True, grace=timedelta(0))
            assert report.missing == ()
            return report.problems == ()  # a commit during the collection can supersede a manifest before it is read

        wait_until(is_whole)


def fill(found: Network) -> None:
    """Start the clients, and give the node behind the links a tenant with rows in memory, and one that is written."""
    tenant = found.fleet.create_tenant(QUIET, policy=Policy(commit_age_ms=1 << 40, retain_rows=1_000))
    found.place(QUIET)
    found.quiet = {b"key-%d" % number: b"v" * 100 for number in range(50)}
    lsn = tenant.main.write(list(found.quiet.items()))
    found.inside.get(QUIET, MAIN, b"key-0", at_least=lsn)
    found.storm.start()
    found.place(found.storm.known[0].tenant)
    found.check_quiet()


@pytest.mark.parametrize("fault", [pytest.param(Fault.REFUSED, marks=pytest.mark.long), Fault.SILENT])
def test_a_node_without_its_control_plane(s3_server: Any, tmp_path: Path, fault: Fault) -> None:
    """Its tenants are attached elsewhere; it reads on; what it uploads is never visible, and goes on its return."""
    with network(s3_server, tmp_path) as fleet:
        match = next(
            transaction for transaction in fleet.fleet.operator.tenant(QUIET).transactions if transaction.node == CUT
        )
        fleet.links["control"].break_with(fault)
        fleet.links["node"].break_with(fault)
        wait_until(lambda: all(fleet.preferred(name) == OTHER for name in (QUIET, fleet.storm.known[0].tenant)))
        fleet.check_quiet()
        fleet.storm.wait_for_progress()
        folder = txn_folder(QUIET, match.id)
        assert list(fleet.storage.list(folder)) == []
        assert fleet.node.flush_once(QUIET)  # it does not know that its transaction was doomed
        fleet.check_quiet()
        uploaded = [meta.path for meta in fleet.storage.list(folder)]
        assert uploaded
        fleet.fleet.tenant(QUIET).main.checkpoint()
        assert not any(
            match.id in (transaction.id, transaction.base)
            for transaction in fleet.fleet.operator.transactions(QUIET).finished
        )
        assert [meta.path for meta in fleet.storage.list(folder)] == uploaded  # it may write there still
        fleet.repair()
        wait_until(lambda: not list(fleet.storage.list(folder)))
        assert all(transaction.node != CUT for transaction in fleet.fleet.operator.tenant(QUIET).transactions)


@pytest.mark.parametrize("fault", [pytest.param(Fault.SILENT, marks=pytest.mark.long), Fault.REPLIES_LOST])
def test_a_node_without_its_store(s3_server: Any, tmp_path: Path, fault: Fault) -> None:
    """Rows wait in memory and are read; what was put without a reply is put again, or deleted."""
    with network(s3_server, tmp_path) as fleet:
        fleet.links["store"].break_with(fault)
        wait_until(lambda: fleet.links["store"].met > 3)
        fleet.check_quiet()


@pytest.mark.long
def test_a_node_without_its_log(s3_server: Any, tmp_path: Path) -> None:
    """What was ingested is read; what was not is read as soon as the log is there again."""
    with network(s3_server, tmp_path) as fleet:
        fleet.links["log"].break_with(Fault.SILENT)
        wait_until(lambda: fleet.links["log"].met > 1)
        fleet.check_quiet()
        last = fleet.inside.get(QUIET, MAIN, b"key-0").lsn
        assert fleet.inside.get(QUIET, MAIN, b"key-0", lsn=last).value == b"v" * 100


@pytest.mark.long
@pytest.mark.parametrize("seed", range(2))
def test_a_long_time_of_broken_links(s3_server: Any, tmp_path: Path, seed: int) -> None:
    """A minute of random faults on random links: clients see delays, and never another state."""
    rng = random.Random(seed)
    with network(s3_server, tmp_path, seed=seed) as fleet:
        ends_s = time.monotonic() + 60
        while time.monotonic() < ends_s:
            for name in rng.sample(sorted(fleet.links), rng.randrange(1, 4)):
                fleet.links[name].break_with(rng.choice([*Fault, None]))
            pause(rng.uniform(0.5, 6))
            with suppress(Unavailable):  # it may have learned that the tenant is elsewhere
                fleet.check_quiet()
            if rng.random() < 0.5:
                fleet.repair()
                pause(rng.uniform(0, 3))
            assert not fleet.storm.problems(), "\n".join(fleet.storm.problems())


def test_a_node_starts_without_its_control_plane(tmp_path: Path) -> None:
    """It knows from before where storage and log are, continues its transaction, and commits when it is asked again."""
    root, port = f"file://{tmp_path / 'lake'}", free_port()
    with start_log(LogSettings(storage_url=root)) as log:
        address = FleetAddress(storage=root, log=f"http://{log.site.serving.authority}", ledger="kv")
        settings = ControlSettings(
            storage_url=root,
            nodes=lambda record: HttpNode(record.url),
            open_log=lambda: open_log(address.log),
            address=address,
        )
        control = f"http://127.0.0.1:{port}"
        behind = NodeSettings(control=control, local=str(tmp_path / CUT))
        with start_control(settings, port=port), start_node(behind, port=(at := free_port())) as running:
            with connect(open_store(root), control=control) as fleet:
                main = fleet.create_tenant(QUIET, policy=Policy(commit_age_ms=1 << 40)).main
                main.put(b"k", b"1")
                assert main.get(b"k") == b"1"
                before = fleet.operator.tenant(QUIET)
            assert running.site.node.flush_once(QUIET)
            running.site.node.commit_once = lambda tenant: False  # type: ignore[method-assign]  # as if it was killed
        with start_node(behind, port=at) as running:
            assert running.site.node.get_many(QUIET, MAIN, [b"k"], at_least=1).values == (b"1",)
            with start_control(settings, port=port), connect(open_store(root), control=control) as fleet:
                assert fleet.tenant(QUIET).main.checkpoint() == before.transactions[0].id
                assert fleet.operator.tenant(QUIET).attachments == before.attachments
