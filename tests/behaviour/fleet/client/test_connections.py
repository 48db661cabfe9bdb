"""The client's connections: slow nodes, forked processes, and what is closed at the end."""

from __future__ import annotations

import shutil
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec
import pytest

import lakebed
from lakebed.errors import Unavailable
from lakebed.fleet.connect import connect
from lakebed.fleet.http_ports import HttpNode
from lakebed.objects.open import open_store
from worlds.errors import raises
from worlds.fleet_served import served_fleet
from worlds.listener import Reply, Request, listen
from worlds.ports import free_port
from worlds.scripts import run_script


@contextmanager
def slow_server(*, wait_s: float) -> Iterator[tuple[str, list[int]]]:
    """A server that answers a read of many keys after a time; its URL, and the client's port of each request."""
    over = threading.Event()
    ports: list[int] = []

    def answer(request: Request) -> Reply:
        ports.append(request.port)
        over.wait(wait_s)
        return Reply(body=msgspec.msgpack.encode([b"1"]))

    with listen(answer) as port:
        yield f"http://127.0.0.1:{port}", ports
        over.set()


def test_a_read_that_takes_long_on_a_slow_node_ends() -> None:
    """The first attempts are given up soon, so that a node that hangs is left; later ones may take longer."""
    with slow_server(wait_s=0.6) as (url, _):
        node = HttpNode(url, read_s=0.2)
        outcomes: list[object] = []
        while (b"1",) not in outcomes and len(outcomes) < 20:
            try:
                outcomes.append(node.get_many("orders", "main", [b"k"]).values)
            except Unavailable as error:
                outcomes.append(error.kind)
        node.close()
    assert outcomes[0] == "no_answer"
    assert outcomes[-1] == (b"1",)


def test_a_forked_process_has_connections_of_its_own() -> None:
    """The child does not send on its parent's connection, on which each would read replies to the other."""
    script = (
        "import os, sys\n"
        "from lakebed.fleet.http_ports import HttpNode\n"
        "node = HttpNode(sys.argv[1])\n"
        "assert node.get_many('orders', 'main', [b'k']).values == (b'1',)\n"
        "child = os.fork() == 0\n"
        "assert child or os.wait()[1] == 0\n"
        "assert node.get_many('orders', 'main', [b'k']).values == (b'1',)\n"
        "os._exit(0)\n"
    )
    with slow_server(wait_s=0) as (url, ports):
        run_script(script, url)
    before, of_child, after = ports
    assert before == after != of_child


def test_a_closed_fleet_leaves_no_connection(tmp_path: Path) -> None:
    """Connections to nodes are closed with it."""
    with served_fleet(tmp_path / "lake", tmp_path / "local", nodes=1):
        fleet = lakebed.open(str(tmp_path / "lake")).fleet()
        tenant = fleet.create_tenant("orders")
        tenant.main.put(b"k", b"1")
        assert tenant.main.get(b"k") == b"1"
        node = tenant._router._nodes(tenant._router.route().url or "")
        assert isinstance(node, HttpNode)
        assert len(node._asker.servers._pool._pool.pool.pools) == 1
        fleet.close()
        assert len(node._asker.servers._pool._pool.pool.pools) == 0


def test_a_copy_of_a_lake_does_not_reach_the_fleet_of_the_original(tmp_path: Path) -> None:
    """What is written down in a copy names a control plane that would change the original; another path is no copy."""
    with served_fleet(tmp_path / "lake", tmp_path / "local", nodes=1) as control:
        with lakebed.open(str(tmp_path / "lake")).fleet() as fleet:
            lsn = fleet.create_tenant("orders").main.put(b"k", b"original")
        shutil.copytree(tmp_path / "lake", tmp_path / "copy")
        with raises(Unavailable, "fleet_not_running", match=r"written down there, serves file://.*/lake\. Of a copy"):
            lakebed.open(str(tmp_path / "copy")).fleet()
        (tmp_path / "link").symlink_to("lake")
        with lakebed.open(str(tmp_path / "link")).fleet() as fleet:
            assert fleet.tenant("orders").main.get(b"k", lsn=lsn) == b"original"
        with connect(lakebed.open(str(tmp_path / "copy")).store, control=control) as fleet:  # named, so it is meant
            assert fleet.tenant("orders").main.get(b"k", lsn=lsn) == b"original"


@pytest.mark.parametrize("hangs_at", [0, 1])
def test_a_control_plane_that_hangs_runs(tmp_path: Path, hangs_at: int) -> None:
    """Of two of which one hangs and one has ended, the fleet is not said not to run: starting it is no remedy."""
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        silent.listen()
        urls = [f"http://127.0.0.1:{free_port()}"]
        urls.insert(hangs_at, f"http://127.0.0.1:{silent.getsockname()[1]}")
        lakebed.open(str(tmp_path))
        with raises(Unavailable, "fleet_hangs", match="its process hangs or is cut off"):
            connect(open_store(str(tmp_path)), control=",".join(urls))
