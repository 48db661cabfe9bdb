"""Real processes that start at once, two of a kind on a fresh lake, or alone: a node without its control plane."""

from __future__ import annotations

import signal
from contextlib import closing
from pathlib import Path

import pytest

from lakebed.fleet.address import LOG_VARIABLE
from lakebed.fleet.connect import connect
from lakebed.fleet.http_ports import HttpNode
from lakebed.fleet.local import FleetSettings, LocalFleet, Part
from lakebed.fleet.model import Policy
from lakebed.objects.open import open_store
from worlds.fleet_twins import TwinFleet, health
from worlds.waiting import wait_until


class FleetAtOnce(TwinFleet):
    """A log and a control plane with their standbys, of which neither waits for the other one."""

    def start(self) -> None:
        """Start the two of a kind at once."""
        self.settings.folder.mkdir(parents=True)
        for kind in ("log", "control"):
            parts = [self._begin(name, (kind, self.settings.storage)) for name in (kind, f"{kind}-2")]
            for part in parts:
                self._await(part)
            if kind == "log":
                self._variables = {LOG_VARIABLE: ",".join(part.url for part in parts)}


@pytest.mark.long
def test_two_of_a_kind_start_at_once_on_a_fresh_lake(tmp_path: Path) -> None:
    """One of each owns what it serves, the other is its standby; none ends, and a tenant is served by them."""
    settings = FleetSettings(str(tmp_path / "lake"), tmp_path / "local", node_count=0)
    with FleetAtOnce(settings) as fleet:
        for kind in ("log", "control"):
            wait_until(
                lambda kind=kind: (
                    sorted(health(part.url) for part in fleet.parts if part.name.startswith(kind)) == ["ok", "standby"]
                )
            )
        fleet.add_node("node-1")
        with fleet.connect() as client:
            main = client.create_tenant("orders").main
            main.put(b"k", b"1")
            assert main.get(b"k") == b"1"
        assert [part.process and part.process.poll() for part in fleet.parts] == [None] * 5


@pytest.mark.long
def test_a_node_resumes_without_its_control_plane(tmp_path: Path) -> None:
    """Killed and started while no control plane runs, it goes on with its transaction, which is committed later."""
    settings = FleetSettings(str(tmp_path / "lake"), tmp_path / "local", node_count=0)
    with LocalFleet(settings) as local:
        words = ("node", "--control", local.control_url, "--local", str(tmp_path / "node-1"), "--memtable-mib", "1")
        node, control = local._add("node-1", words), local.part("control")
        with connect(open_store(settings.storage), control=local.control_url) as fleet:
            main = fleet.create_tenant("orders", policy=Policy(commit_age_ms=1 << 40)).main
            for number in range(3):
                main.put(b"%d" % number, bytes(1 << 20))
            wait_until(lambda: list(Path(settings.storage).rglob("*.sst")))  # the transaction has a file
            before = fleet.operator.tenant("orders")
        for part in (control, node):
            local.kill(part.name, signal.SIGKILL)
            assert part.process is not None
            part.process.wait()
        restart(local, node)
        with closing(HttpNode(node.url)) as direct:
            assert direct.get_many("orders", "main", [b"0", b"2"], at_least=3).values == (bytes(1 << 20),) * 2
        restart(local, control)
        with connect(open_store(settings.storage), control=local.control_url) as fleet:
            assert fleet.tenant("orders").main.checkpoint() == before.transactions[0].id
            assert fleet.operator.tenant("orders").attachments == before.attachments


def restart(local: LocalFleet, part: Part) -> None:
    """Start a part again on its port, and wait until it answers."""
    local._launch(part, port=int(part.url.rpartition(":")[2]))
    local._await(part)
