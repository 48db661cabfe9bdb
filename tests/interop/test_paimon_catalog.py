"""Pypaimon, unmodified, through lakebed's server: it creates, reads and commits, by turns with lakebed's own writers.

A dictionary of the rows is the judge of every read.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
import urllib3

import lakebed
from lakebed import Lake
from lakebed.server.options import ServerOptions
from lakebed.server.serve import start_server

if TYPE_CHECKING:
    from conftest import Peers
    from lakebed.server.lifecycle import Running

TABLE = "db.t"
COLUMNS = [pa.field("id", pa.int64(), nullable=False), pa.field("day", pa.string(), nullable=False), ("v", pa.int64())]
SCHEMA = pa.schema(COLUMNS)
KINDS: list[tuple[str, list[str], list[str], dict[str, str]]] = [
    ("append", [], [], {}),
    ("append in partitions", [], ["day"], {}),
    ("append in buckets", [], [], {"bucket": "2", "bucket-key": "id"}),
    ("append with vectors", [], [], {"deletion-vectors.enabled": "true"}),
    ("key", ["id"], [], {"bucket": "2"}),
    ("key in partitions", ["id", "day"], ["day"], {"bucket": "1"}),
    ("dynamic buckets", ["id"], [], {"bucket": "-1"}),
    ("changelog", ["id"], [], {"bucket": "1", "changelog-producer": "input"}),
]


def rows_of(ids: Sequence[int], v: int) -> pa.Table:
    """Rows of some ids, in two days."""
    columns = {"id": list(ids), "day": ["even" if number % 2 == 0 else "odd" for number in ids], "v": [v] * len(ids)}
    return pa.table(columns, schema=SCHEMA)


def pairs(rows: pa.Table) -> list[tuple[int, int]]:
    """Ids and values, sorted."""
    return sorted(zip(rows["id"].to_pylist(), rows["v"].to_pylist(), strict=True))


@pytest.fixture
def running(peers: Peers, tmp_path: Path) -> Iterator[Running]:
    """A server of the warehouse, through which the peers work."""
    server = start_server(tmp_path / "lake", options=ServerOptions(durable=False), access_log=tmp_path / "log")
    peers.catalog = {
        "metastore": "rest",
        "uri": f"{server.started.endpoint}/paimon",
        "warehouse": "lake",
        "token.provider": "bear",
        "token": f"{server.started.access_key}.{server.started.secret}",
    }
    yield server
    peers.catalog = {}
    server.stop()


@pytest.fixture
def lake(running: Running) -> Lake:
    """The same tables, by lakebed."""
    return lakebed.open(running.started.storage_url)


def create(peers: Peers, kind: tuple[str, list[str], list[str], dict[str, str]]) -> None:
    """Create the table by the client."""
    _, keys, parts, options = kind
    path = peers.send(SCHEMA.empty_table())
    peers.call("create", table=TABLE, path=path, primary_keys=keys, partition_keys=parts, options=options)


def run_program(peers: Peers, lake: Lake, kind: tuple[str, list[str], list[str], dict[str, str]]) -> None:
    """Write, tag, branch, compact and roll back by turns; both clients read what the judge has."""
    create(peers, kind)
    table, keyed = lake.table(TABLE), bool(kind[1])
    judge: list[tuple[int, int]] = []

    def write(ids: Sequence[int], v: int, *, by_peer: bool) -> None:
        nonlocal judge
        peers.write(TABLE, rows_of(ids, v)) if by_peer else table.write(rows_of(ids, v))
        judge = sorted([(id, old) for id, old in judge if not (keyed and id in ids)] + [(id, v) for id in ids])

    def check() -> None:
        assert pairs(table.read()) == judge, kind
        assert pairs(peers.read(TABLE)) == judge, kind

    write(range(6), 1, by_peer=True)
    check()
    write(range(3, 9), 2, by_peer=False)
    write(range(5, 11), 3, by_peer=True)
    check()
    peers.call("create_tag", table=TABLE, name="one")
    tagged = judge
    table.compact(full=True)
    write([20, 21], 4, by_peer=True)
    check()
    assert pairs(table.read(version="one")) == tagged
    assert pairs(peers.read(TABLE, **{"scan.tag-name": "one"})) == tagged
    peers.call("create_branch", table=TABLE, name="dev", tag="one")
    peers.write(f"{TABLE}$branch_dev", rows_of([30], 5))
    assert pairs(table.of_branch("dev").read()) == sorted([*tagged, (30, 5)])
    check()
    peers.call("add_column", table=TABLE, name="n", type="INT")
    check()


@pytest.mark.parametrize("kind", [KINDS[0], KINDS[5]], ids=lambda kind: kind[0])
def test_two_kinds_of_tables_by_turns(peers: Peers, lake: Lake, kind: Any) -> None:
    """Through the server both clients see each other's commits, tags, branches, compactions and columns."""
    run_program(peers, lake, kind)


@pytest.mark.long
@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind[0])
def test_every_kind_of_table_by_turns(peers: Peers, lake: Lake, kind: Any) -> None:
    """The same for every kind of table."""
    run_program(peers, lake, kind)


class LossyProxy:
    """A proxy that hands on every request, and loses the replies of the first commits."""

    def __init__(self, target: str, *, loses: int) -> None:
        proxy, pool = self, urllib3.PoolManager(retries=False)
        self.left = loses

        class Handler(BaseHTTPRequestHandler):
            def handle_request(self) -> None:
                length = int(self.headers.get("content-length") or 0)
                body = self.rfile.read(length) if length else None
                headers = {"authorization": self.headers["authorization"]}
                reply = pool.request(self.command, target + self.path, body=body, headers=headers)
                if self.path.endswith("/commit") and proxy.left:
                    proxy.left -= 1
                    self.close_connection = True  # and nothing is answered
                    return
                self.send_response(reply.status)
                self.send_header("content-length", str(len(reply.data)))
                self.end_headers()
                self.wfile.write(reply.data)

            do_GET = do_POST = do_DELETE = handle_request  # noqa: N815 - the names are the library's

            def log_message(self, format: str, *args: Any) -> None:
                """Write nothing."""

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_port}"
        self.thread = threading.Thread(target=self.server.serve_forever, kwargs={"poll_interval": 0.05})
        self.thread.start()

    def close(self) -> None:
        """Answer no more."""
        self.server.shutdown()
        self.thread.join()
        self.server.server_close()


def test_a_commit_whose_reply_is_lost_is_made_once(peers: Peers, running: Running, lake: Lake) -> None:
    """The client does not learn that it committed, looks or asks again, and its rows are in the table once."""
    create(peers, KINDS[0])
    proxy = LossyProxy(running.started.endpoint, loses=2)
    try:
        peers.catalog["uri"] = f"{proxy.url}/paimon"
        for number in range(3):
            peers.write(TABLE, rows_of([number], number))
    finally:
        proxy.close()
    assert proxy.left == 0
    assert pairs(lake.table(TABLE).read()) == [(0, 0), (1, 1), (2, 2)]


def test_sixteen_clients_race_on_one_table(peers: Peers, lake: Lake, tmp_path: Path) -> None:
    """Every client commits its row or says why not; the table has exactly the rows of those that committed."""
    create(peers, KINDS[0])
    rows = rows_of(range(16), 7)
    options = {"commit.max-retries": "100", "commit.min-retry-wait": "10 ms", "commit.max-retry-wait": "1 s"}
    errors = peers.call("race", table=TABLE, path=peers.send(rows), count=16, options=options)
    assert all(error is None or "conflict" in error for error in errors), errors
    committed = [number for number, error in enumerate(errors) if error is None]
    assert pairs(lake.table(TABLE).read()) == [(number, 7) for number in committed]
    assert len(committed) == len(list(lake.table(TABLE).snapshots()))
    asked = (tmp_path / "log").read_text().count('/commit"')
    print(f"{len(committed)} commits, {asked} requests to commit")
    assert committed
