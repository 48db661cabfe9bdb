"""A node over HTTP: the same answers and the same errors as by direct calls."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import msgspec
import pytest
import urllib3

from lakebed.errors import AlreadyExists, Conflict, InvalidRequest, LakebedError, NotFound, Unavailable
from lakebed.fleet.http_ports import HttpNode
from lakebed.fleet.layout import log_key
from lakebed.fleet.log.port import rows_of
from lakebed.fleet.model import MAIN, NodeRecord, Policy
from lakebed.fleet.node import serve
from lakebed.fleet.node.bodies import LSN_HEADER, KeysBody, RangeBody
from lakebed.fleet.node.node import Node
from lakebed.fleet.node.service import ROUTES, NodeCall, NodeSite
from lakebed.fleet.ports import Found, FoundMany, Location, TimelineChange
from lakebed.http.application import build
from lakebed.http.authentication import TokenCaller
from lakebed.http.listening import bind, url_of
from lakebed.http.options import HttpOptions
from lakebed.http.process import RunningServer
from lakebed.http.serving import Serving
from lakebed.ids import new_uuid
from lakebed.objects.open import open_store
from worlds.errors import raises
from worlds.fleet_node import TENANT, Fleet
from worlds.fleet_served import served_fleet
from worlds.listener import Reply, Request, listen
from worlds.odd_numbers import numbers_in, numbers_of, odd_bodies
from worlds.waiting import pause

TOKEN = "a-token-of-the-fleet"


@dataclass
class Running:
    """A node that is served."""

    fleet: Fleet
    node: Node
    url: str
    server: RunningServer[TokenCaller, NodeCall]

    def client(self, token: str | None = TOKEN) -> HttpNode:
        """A client of it."""
        return HttpNode(self.url, token=token)


@pytest.fixture
def running() -> Iterator[Running]:
    """A node with some rows on a free loopback port."""
    fleet = Fleet(policy=Policy(retain_rows=20))
    node = fleet.node("a")
    options = HttpOptions()
    listener = bind("127.0.0.1", 0, backlog=options.backlog)
    url = url_of("127.0.0.1", listener)
    serving = Serving.open(
        "node", options=options, environment=fleet.environment, authority=url.partition("://")[2], reads_inline=True
    )
    site = NodeSite(serving, node, token=TOKEN)
    with RunningServer(build(site, ROUTES), site, listener) as server:
        yield Running(fleet, node, url, server)


def test_reads_are_those_of_the_node(running: Running) -> None:
    """get, get_many and scan at every LSN, and what is refused."""
    fleet, client = running.fleet, running.client()
    last = fleet.append(rows=50)
    state = fleet.oracle.state(MAIN, last)
    keys = [b"key-%04d" % number for number in range(45)]
    assert client.get(TENANT, MAIN, keys[0], at_least=last).lsn == last
    assert client.get_many(TENANT, MAIN, keys, lsn=last) == FoundMany(tuple(map(state.get, keys)), last)
    for key in keys:
        assert client.get(TENANT, MAIN, key).value == state.get(key)
    batches = list(client.scan(TENANT, MAIN, b"key-0010", b"key-0030", lsn=last))
    result = {k: v for b in batches for k, v in zip(b.column(0).to_pylist(), b.column(1).to_pylist(), strict=True)}
    assert result == {key: value for key, value in state.items() if b"key-0010" <= key < b"key-0030"}
    assert batches[0].schema.metadata == {b"lsn": b"%d" % last}
    nothing = list(client.scan(TENANT, MAIN, b"x", b"y"))
    assert [batch.num_rows for batch in nothing] == [0]
    assert nothing[0].schema.metadata == {b"lsn": b"%d" % last}
    assert client.lag(TENANT) == {MAIN: 0}
    assert client.utilization().tenant_count == 1


@pytest.mark.parametrize("size", [8 << 10, (8 << 10) + 1, 65_535])
def test_keys_that_are_longer_than_a_url(running: Running, size: int) -> None:
    """Every key that can be written is read: by itself, among others, and as a bound of a range."""
    fleet, client = running.fleet, running.client()
    key = b"k" * size
    rows = rows_of([key, key[:-1] + b"j"], [b"long", b"before"])
    last = fleet.log.append(log_key(TENANT, MAIN), rows, write_id=new_uuid(fleet.rng))
    value = client.get(TENANT, MAIN, key, at_least=last)
    assert (value.value, value.lsn) == (b"long", last)
    assert client.get(TENANT, MAIN, key, lsn=last - 2).value is None
    assert client.get_many(TENANT, MAIN, [key, key[:-1]]).values == (b"long", None)
    for start, end in ((key, None), (key, key[:-1] + b"l"), (key[:-2], key), (None, key[:-1] + b"k")):
        batches = list(client.scan(TENANT, MAIN, start, end))
        assert batches[0].schema.metadata == {b"lsn": b"%d" % last}
        expected = [item for item in (key[:-1] + b"j", key) if (start or b"") <= item and (end is None or item < end)]
        assert [row for batch in batches for row in batch.column(0).to_pylist()][-2:] == expected


def test_changes_over_http(running: Running) -> None:
    """Changes, checkpoints, compactions and locations work as by direct calls, and can be repeated."""
    fleet, client = running.fleet, running.client()
    last = fleet.append(rows=50)
    client.get(TENANT, MAIN, b"x", at_least=last)
    txn = client.checkpoint(TENANT)
    assert fleet.record.committed == txn == client.checkpoint(TENANT)
    branch = TimelineChange(kind="branch", name="b", id="id-b", parent=MAIN)
    info = client.change(TENANT, branch)
    assert (info.id, info.branch_lsn, info.parent) == ("id-b", last, MAIN)
    assert client.change(TENANT, branch) == info
    assert [timeline.name for timeline in client.timelines(TENANT)] == [MAIN, "b"]
    client.compact(TENANT, MAIN)
    locations = client.locations()
    assert [(item.tenant, item.generation) for item in locations] == [(TENANT, 1)]
    client.put_location(Location(TENANT, 1, None))
    running.fleet.work("a")
    assert client.locations() == []


@pytest.mark.parametrize(
    ("error", "kind", "status", "path"),
    [
        (Unavailable, "not_attached", 421, "tenants/other/timelines/main/value?key=YQ=="),
        (NotFound, "timeline_not_found", 404, f"tenants/{TENANT}/timelines/other/value?key=YQ=="),
        (Unavailable, "lsn_not_reached", 425, f"tenants/{TENANT}/timelines/main/value?key=YQ==&at_least=9"),
        (InvalidRequest, "empty_key", 400, f"tenants/{TENANT}/timelines/main/value?key="),
        (InvalidRequest, "missing_parameter", 400, f"tenants/{TENANT}/timelines/main/value"),
        (InvalidRequest, "invalid_query", 400, f"tenants/{TENANT}/timelines/main/value?key=a"),
        (InvalidRequest, "invalid_query", 400, f"tenants/{TENANT}/timelines/main/value?key=YQ==&lsn=-1"),
    ],
)
def test_refusals(running: Running, error: type[LakebedError], kind: str, status: int, path: str) -> None:
    """Each wrong request gets a clear status and kind."""
    headers = {"authorization": f"Bearer {TOKEN}"}
    reply = urllib3.request("GET", f"{running.url}/node/v1/{path}", headers=headers, retries=False)
    assert (reply.status, reply.headers["x-lakebed-error"]) == (status, kind)
    assert reply.headers["x-lakebed-error-class"] == error.__name__


def test_errors_come_back_as_they_were(running: Running) -> None:
    """The client raises what the node raised."""
    client = running.client()
    with raises(InvalidRequest, "unauthorized"):
        running.client("wrong").locations()
    with pytest.raises(AlreadyExists):
        client.change(TENANT, TimelineChange(kind="create", name=MAIN, id="x"))
    with raises(InvalidRequest, "lsn_not_committed"):
        client.change(TENANT, TimelineChange(kind="branch", name="b", id="b", parent=MAIN, lsn=9))
    with raises(Conflict, "stale_generation"):
        client.put_location(Location(TENANT, 0, None))
    for body in (b"", b"x", b"[]", b"{}", b'{"kind":"branch"}', b'{"kind":1,"name":2}'):
        reply = urllib3.request(
            "POST",
            f"{running.url}/node/v1/tenants/{TENANT}/changes",
            body=body,
            headers={"authorization": f"Bearer {TOKEN}"},
            retries=False,
        )
        assert reply.status == 400, body


def test_a_scan_that_is_cut_off_is_an_error(running: Running) -> None:
    """A node that loses its files in the middle of a scan is not taken for the end of the rows."""
    fleet, client = running.fleet, running.client()
    for part in range(30):
        keys = [b"%04d-%04d" % (part, number) for number in range(100)]
        rows = rows_of(keys, [fleet.rng.randbytes(10_000) for _ in keys])
        fleet.log.append(log_key(TENANT, MAIN), rows, write_id=new_uuid(fleet.rng))
        running.node.ingest_once(TENANT)
        running.node.flush_once(TENANT)
    scanned = client.scan(TENANT, MAIN)
    assert next(scanned).num_rows
    fleet.storage.delete([meta.path for meta in fleet.storage.list()])
    with raises(Unavailable, "scan_interrupted"):
        list(scanned)
    with raises(Unavailable, "file_gone"):
        list(client.scan(TENANT, MAIN))


def test_a_slow_read_ends_while_others_are_answered() -> None:
    """A read that took too long may take longer each time it is asked again, also when others are quick meanwhile."""

    def answer(request: Request) -> Reply:
        pause(0.7 if "key=c2xvdw" in request.path else 0.0)
        return Reply(200, b"value", {LSN_HEADER: "7"})

    with listen(answer) as port:
        node = HttpNode(f"http://127.0.0.1:{port}", read_s=0.2)
        problems: list[LakebedError] = []
        value: Found | None = None
        while value is None and len(problems) < 9:
            try:
                value = node.get("t", "main", b"slow")
            except Unavailable as problem:
                problems.append(problem)
                with suppress(Unavailable):
                    node.get("t", "main", b"quick")
        assert value == Found(b"value", 7)
        assert problems
        node.close()


_PLACE = {
    "tenant": TENANT,
    "generation": 5,
    "mode": "single",
    "txn": 7,
    "base": 1,
    "manifest": {"path": f"{TENANT}.tenant/1/manifest.1", "checksum": "0" * 32, "size_bytes": 3},
    "policy": {
        "commit_bytes": 1,
        "commit_age_ms": 1,
        "uncommitted_bytes_max": 1,
        "retain_rows": 1,
        "retain_ms": 1,
        "relocation_wait_max_ms": 1,
    },
    "created_ms": 1,
}
_CHANGE = {"kind": "pin", "name": "p", "id": "x", "parent": MAIN, "lsn": 1, "lifetime_ms": 1}


def test_numbers_that_cannot_be_are_refused(running: Running) -> None:
    """In every body, with a sentence; the node takes what comes after it, and nothing of it stays."""
    bodies: list[tuple[str, str, bytes]] = []
    for name, body in (*odd_bodies(_PLACE), *odd_bodies({**_PLACE, "mode": None, "txn": 7})):
        bodies.append((f"location {name}", "location", msgspec.json.encode(body)))
    bodies += [(f"change {name}", "changes", msgspec.json.encode(body)) for name, body in odd_bodies(_CHANGE)]
    assert (numbers_in(_PLACE), numbers_in(_CHANGE)) == (numbers_of(Location), numbers_of(TimelineChange))
    for verb, takes, asked in (
        ("values", KeysBody, {"keys": [b"k"], "lsn": 1, "at_least": 1}),
        ("rows", RangeBody, {"start": b"a", "end": b"b", "lsn": 1, "at_least": 1}),
    ):
        assert numbers_in(asked) == numbers_of(takes)
        path = f"timelines/{MAIN}/{verb}"
        bodies += [(f"{verb} {name}", path, msgspec.msgpack.encode(body)) for name, body in odd_bodies(asked)]
    for mode, txn in (("reader", 7), ("stale", 7), (None, 7)):
        bodies.append((f"location {mode} {txn}", "location", msgspec.json.encode({**_PLACE, "mode": mode, "txn": txn})))
    for name, path, body in bodies:
        method = "PUT" if path == "location" else "POST"
        headers = {"authorization": f"Bearer {TOKEN}"}
        reply = urllib3.request(
            method, f"{running.url}/node/v1/tenants/{TENANT}/{path}", body=body, headers=headers, retries=False
        )
        assert 400 <= reply.status < 500, (name, reply.status, reply.data)
        assert reply.headers["x-lakebed-error"] in (
            "invalid_body",
            "invalid_lsn",
            "invalid_location",
            "invalid_policy",
        ), (
            name,
            reply.data,
        )
    locations = running.client().locations()
    assert [item.generation for item in locations] == [1]
    running.client().put_location(Location(TENANT, 2, None))
    assert [location.generation for location in running.client().locations()] == [2]


def test_a_node_joins_no_fleet_of_another_storage(tmp_path: Path) -> None:
    """The URL of its control plane has become another fleet's: what it would write there, nobody could read."""
    record = NodeRecord(node="late", url="http://127.0.0.1:9", incarnation="1", local_id="1", registered_ms=0)
    with served_fleet(tmp_path / "lake", tmp_path / "local", nodes=0) as url:
        theirs, ours = (open_store(tmp_path / name) for name in ("other", "lake"))
        joining = [serve.ControlOfStorage(url, storage=storage) for storage in (theirs, ours)]
        with raises(Conflict, "another_fleet", match="start the node again to join that fleet"):
            joining[0].register(record)
        assert not joining[0].nodes()
        joining[1].register(record)
        assert [status.node for status in joining[1].nodes()] == ["late"]
        for control in joining:
            control.close()
