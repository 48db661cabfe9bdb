"""Processes that are killed and stopped under clients that know every acknowledged write.

One fleet serves all tests. In the middle of an ingestion, a commit, a relocation and a collection: each moment is
observed before the kill, in what the control plane, the node or its local state says; none is left to luck.
"""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator, Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any

import msgspec
import pytest

import lakebed
from lakebed.errors import LakebedError
from lakebed.fleet.http_ports import HttpNode
from lakebed.fleet.layout import txn_folder
from lakebed.fleet.local import FleetSettings, LocalFleet, Part
from lakebed.fleet.model import Transaction, TransactionState
from lakebed.objects.open import open_store
from worlds.fleet_storm import Storm, watched
from worlds.waiting import wait_until

pytestmark = pytest.mark.xdist_group("kills")

TENANT = "t0"
NODES = ("node-1", "node-2", "node-3")
REJECTED = (TransactionState.REJECT_PENDING, TransactionState.REJECT_ACKNOWLEDGED)


class QuickFleet(LocalFleet):
    """A local fleet that deletes two seconds after it may, and starts a node again soon, but after its failover."""

    def _begin(self, name: str, words: Sequence[str], **facts: Any) -> Part:
        more = ("--grace-ms", "2000") if name == "control" else ()
        if name.startswith("node"):
            facts["restart_s"] = 3.0
        return super()._begin(name, (*words, *more), **facts)

    def kill(self, name: str, number: int = signal.SIGKILL) -> int:
        """As of every local fleet; a part that is killed again does not wait longer for its start."""
        self.part(name).start_count = 1
        return super().kill(name, number)


class Scene:
    """A running fleet, its clients, and what can be observed of it."""

    def __init__(self, local: LocalFleet, storm: Storm, folder: Path) -> None:
        self.local = local
        self.storm = storm
        self.folder = folder
        self.operator = storm.fleet.operator

    def begin(self) -> None:
        """Return when two nodes run: what a test before has killed is started again."""
        wait_until(lambda: sum(map(self.is_up, NODES)) >= 2, timeout_s=90)

    def node(self) -> str:
        """Where the tenant is."""
        lines: list[str] = []

        def is_somewhere() -> bool:
            name = self.asked(lambda: self.operator.tenant(TENANT).preferred)
            lines[:] = [name] if name is not None else []
            return bool(lines)

        wait_until(is_somewhere)
        return lines[0]

    def asked(self, call: Callable[[], Any]) -> Any:
        """The answer of a process; None while it does not answer."""
        try:
            return call()
        except LakebedError:
            return None

    def transactions(self) -> list[Transaction]:
        """All of the tenant that are known; none while the control plane is away."""
        result = self.asked(lambda: self.operator.transactions(TENANT))
        return [] if result is None else [*result.unfinished, *result.finished]

    def has_rows_in_memory(self, node: str) -> bool:
        """Whether a node has ingested what is in no layer."""
        port = HttpNode(self.local.part(node).url, read_s=5)
        try:
            result = self.asked(port.utilization)
            return result is not None and result.unflushed_bytes > 0
        finally:
            port.close()

    def asks_to_commit(self, node: str) -> bool:
        """Whether a request of the tenant is noted in a node's local state, and not answered."""
        try:
            record = msgspec.json.decode((self.folder / node / "tenants" / f"{TENANT}.json").read_bytes())
        except FileNotFoundError:
            return False
        return record.get("request") is not None

    def is_up(self, node: str) -> bool:
        """Whether a node answers the control plane."""
        result = self.asked(self.operator.nodes) or []
        return any((attachment.node, attachment.state) == (node, "alive") for attachment in result) and self.is_running(
            node
        )

    def is_running(self, part: str) -> bool:
        """Whether the process of a part has not ended."""
        process = self.local.part(part).process
        return process is not None and process.poll() is None

    def relocate(self, source: str) -> str:
        """Begin a relocation to a node that is stopped, so that it does not end; the node."""
        nodes = [part.name for part in self.local.parts if part.name.startswith("node") and part.name != source]
        while True:
            wait_until(lambda: any(self.is_up(name) for name in nodes))
            target = next(name for name in nodes if self.is_up(name))
            self.local.kill(target, signal.SIGSTOP)
            self.asked(lambda: self.operator.migrate(TENANT, target))  # noqa: B023
            record = self.asked(lambda: self.operator.tenant(TENANT))
            if record is not None and record.relocation is not None and record.relocation.target == target:
                return target
            self.local.kill(target, signal.SIGCONT)
            self.storm.wait_for_progress()


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Scene]:
    """Three nodes under clients; at the end everything is compared, and all that was rejected is deleted."""
    folder = tmp_path_factory.mktemp("fleet")
    lake = lakebed.open(str(folder / "lake"))
    settings = FleetSettings(str(folder / "lake"), folder / "local", options=("--verbose",))
    with QuickFleet(settings) as local, watched(local), lake.fleet() as fleet:
        storm = Storm(fleet, count=4, pause_s=0.02)
        storm.start()
        scene = Scene(local, storm, folder / "local")
        scene.storm.wait_for_progress()
        yield scene
        wait_until(scene.transactions)  # the control plane is there again
        scene.storm.wait_for_progress()
        storm.stop()
        storm.check_all()
        store = open_store(str(folder / "lake"))
        seen = [transaction for transaction in scene.transactions() if transaction.state is not TransactionState.OPEN]
        rejected = [item.id for item in seen if item.state is not TransactionState.COMMITTED]
        assert rejected

        def is_clean() -> bool:
            now = scene.transactions()
            return bool(now) and not any(item.state in REJECTED for item in now)

        wait_until(is_clean, timeout_s=90)
        for txn in rejected:
            assert list(store.list(txn_folder(TENANT, txn))) == []
        report = lake.collect_tenants(dry_run=True, grace=timedelta(0))
        assert (report.missing, report.problems) == ((), ())


@pytest.fixture
def scene(running: Scene) -> Scene:
    """The fleet, with two nodes at least."""
    running.begin()
    return running


def test_a_relocation_whose_source_or_target_is_killed(scene: Scene) -> None:
    """Under load: the first moves without an error; in the others a node dies on the way."""
    wait_until(lambda: all(map(scene.is_up, NODES)))
    source = scene.node()
    target = next(name for name in NODES if name != source)
    scene.operator.migrate(TENANT, target)
    wait_until(lambda: scene.node() == target, timeout_s=60)
    scene.storm.wait_for_progress()
    wait_until(lambda: scene.operator.tenant(TENANT).relocation is None, timeout_s=60)
    third = next(name for name in NODES if name not in (source, target))
    scene.operator.migrate(TENANT, third)
    scene.local.kill(target)
    scene.storm.wait_for_progress()
    wait_until(lambda: scene.node() != target, timeout_s=60)


def test_the_control_plane_and_the_log_are_killed(scene: Scene) -> None:
    """They are restarted: clients see a delay, no row is lost, and commits continue."""
    scene.local.kill("control")
    scene.storm.wait_for_progress()
    scene.local.kill("log")
    scene.storm.wait_for_progress()
    before = scene.operator.tenant(TENANT).committed
    wait_until(lambda: scene.operator.tenant(TENANT).committed > before, timeout_s=60)


def test_a_node_is_killed_and_another_becomes_a_zombie(scene: Scene) -> None:
    """Neither loses an acknowledged row; what the zombie does after its return changes nothing."""
    killed = scene.node()
    scene.local.kill(killed)
    wait_until(lambda: scene.node() != killed, timeout_s=60)
    scene.storm.wait_for_progress()
    zombie = scene.node()
    scene.local.kill(zombie, signal.SIGSTOP)
    wait_until(lambda: scene.node() != zombie, timeout_s=60)
    scene.storm.wait_for_progress()
    scene.local.kill(zombie, signal.SIGCONT)
    scene.storm.wait_for_progress()
    kinds = {event.kind for _, event in scene.operator.events()}
    assert "node_silent" in kinds


def test_kills_in_the_middle(scene: Scene) -> None:
    """A node with rows in memory; one that waits for a grant; a relocation's target, its source; the collector."""
    local = scene.local
    node = scene.node()
    wait_until(lambda: scene.has_rows_in_memory(node))
    local.kill(node)
    scene.storm.wait_for_progress()

    for _ in range(20):  # a node that has noticed that the control plane is away does not ask
        node = scene.node()
        local.kill("control", signal.SIGSTOP)
        try:
            wait_until(lambda name=node: scene.asks_to_commit(name), timeout_s=2)  # type: ignore[misc]
            break
        except AssertionError:
            local.kill("control", signal.SIGCONT)
            scene.storm.wait_for_progress()
    assert scene.asks_to_commit(node)
    local.kill(node)
    local.kill("control", signal.SIGCONT)
    scene.storm.wait_for_progress()

    local.kill(scene.relocate(scene.node()))
    scene.storm.wait_for_progress()
    source = scene.node()
    target = scene.relocate(source)
    local.kill(source)
    local.kill(target, signal.SIGCONT)
    scene.storm.wait_for_progress()

    def is_collected() -> bool:
        return any(transaction.state is TransactionState.REJECT_ACKNOWLEDGED for transaction in scene.transactions())

    if not is_collected():
        local.kill(scene.node())
        wait_until(is_collected)
    local.kill("control")
