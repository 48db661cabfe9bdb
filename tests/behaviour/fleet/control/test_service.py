"""The control plane over HTTP: the same answers and errors as in one process, a token, standbys, bad input."""

from __future__ import annotations

import random
import socket
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

import msgspec
import pytest
import urllib3

from lakebed.errors import AlreadyExists, Conflict, Corruption, InvalidRequest, LakebedError, NotFound, Unavailable
from lakebed.fleet.client import Tenant
from lakebed.fleet.control.options import ControlOptions
from lakebed.fleet.control.serve import ControlSettings, start_control
from lakebed.fleet.control.service import CLIENTS, CONTROLS, UPCALLS, ControlCall
from lakebed.fleet.http_ports import HttpControl
from lakebed.fleet.log.port import Log
from lakebed.fleet.model import Policy
from lakebed.fleet.node.options import NodeOptions
from lakebed.fleet.ports import Heartbeat, NodePort, NodeReport, TimelineChange
from lakebed.fleet.routing import ClientOptions
from lakebed.http.asking import CLASS_HEADER, KIND_HEADER
from lakebed.http.authentication import TokenCaller
from lakebed.http.process import RunningServer
from lakebed.objects import open_store
from lakebed.runtime import Environment
from lakebed.testing import ManualClock
from worlds.errors import raises
from worlds.fleet_control import ToldNode, World
from worlds.listener import Reply, Request, listen
from worlds.odd_numbers import numbers_in, numbers_of, odd_bodies
from worlds.waiting import wait_until

TOKEN = "a-token-of-the-fleet"


@dataclass
class Fleet:
    """A served control plane, with nodes that only remember what they are told."""

    folder: Path
    options: ControlOptions
    nodes: dict[str, ToldNode] = field(default_factory=dict)
    server: RunningServer[TokenCaller, ControlCall] | None = None

    def start(self) -> RunningServer[TokenCaller, ControlCall]:
        settings = ControlSettings(
            storage_url=str(self.folder),
            nodes=lambda record: cast(NodePort, self.nodes[record.node]),
            token=TOKEN,
            options=self.options,
            durable=False,
        )
        return start_control(settings)

    def add(self, control: HttpControl, name: str) -> ToldNode:
        """A node that has started, which calls over HTTP."""
        world = cast(World, _Calls(control, self))
        node = self.nodes[name] = ToldNode(world, name)
        node.url = f"http://{name}.test:1"
        node.start()
        return node


class _Calls:
    """What a `ToldNode` uses of its world."""

    def __init__(self, control: HttpControl, fleet: Fleet) -> None:
        self.control = control
        self.store = open_store(str(fleet.folder))


def url_of(server: RunningServer[TokenCaller, ControlCall]) -> str:
    return f"http://{server.site.serving.authority}"


@pytest.fixture
def fleet(tmp_path: Path) -> Fleet:
    return Fleet(tmp_path / "lake", ControlOptions(silent_ms=60_000, relocation_drain_ms=100))


@pytest.fixture
def server(fleet: Fleet) -> Iterator[RunningServer[TokenCaller, ControlCall]]:
    with fleet.start() as running:
        wait_for(lambda: running.site.control is not None)
        yield running


@pytest.fixture
def control(server: RunningServer[TokenCaller, ControlCall]) -> HttpControl:
    return HttpControl(url_of(server), token=TOKEN, retry_s=3.0)


def wait_for(condition: Callable[[], bool]) -> None:
    """Wait for what threads do."""
    clock = Environment().clock
    ends_s = clock.monotonic_s() + 30
    while not condition():
        assert clock.monotonic_s() < ends_s
        clock.sleep(0.02)


def test_what_a_reply_does_not_say_is_on_standard_error(
    fleet: Fleet, control: HttpControl, capfd: pytest.CaptureFixture[str]
) -> None:
    """A process without an access log says there why it failed, under the request that the reply names."""
    node = fleet.add(control, "a")
    control.create_tenant("t")
    assert node.commit("t").verdict == "granted"
    manifest = control.tenant("t").manifest
    assert manifest is not None
    open_store(str(fleet.folder)).put(manifest.path, b"damaged")
    capfd.readouterr()
    with pytest.raises(Corruption, match="log says where") as refused:
        control.manifest("t")
    request_id = refused.value.message.rpartition(" ")[2].rstrip(".")
    said: list[str] = []  # the line may be written behind the reply

    def is_said() -> bool:
        said.append(capfd.readouterr().err)
        return f"(request {request_id})" in "".join(said) and manifest.path in "".join(said)

    wait_until(is_said)


def test_every_call_answers_as_in_one_process(fleet: Fleet, control: HttpControl) -> None:
    """Each verb of both ports goes through, and comes back as the same record."""
    node, other = fleet.add(control, "a"), fleet.add(control, "b")
    record = control.create_tenant("t", Policy(retain_rows=7))
    assert record.policy == Policy(retain_rows=7)
    assert control.tenant("t") == record
    assert control.manifest("t").txn == 0
    home = node if "t" in node.held else other
    assert home.commit("t", lsn=3).txn == 2
    assert control.manifest("t").timelines[0].lsn == 3
    assert control.route("t").node == home.name
    assert [transaction.id for transaction in control.transactions("t").finished] == [1]
    assert control.set_policy("t", Policy(retain_rows=8)).policy == Policy(retain_rows=8)
    assert control.change_timeline("t", TimelineChange("branch", "x", id="i")).name == "x"
    away = other if home is node else node
    control.attach_reader("t", away.name)
    assert away.held["t"].mode == "reader"
    control.migrate("t", away.name)
    wait_for(lambda: control.route("t").node == away.name)
    wait_for(lambda: "t" not in home.held)
    assert home.ack("t", 2, 1) == "reject_acknowledged"
    control.drain(away.name)
    wait_for(lambda: control.route("t").node == home.name)
    control.drain(away.name, undo=True)
    wait_for(lambda: control.route("t").node == away.name)
    control.decommission(home.name)
    assert {attachment.node: attachment.state for attachment in control.nodes()} == {
        home.name: "decommissioned",
        away.name: "alive",
    }
    assert not control.force_ack("t", 1).is_accepted
    wanted = {"relocated", "node_decommissioned"}
    wait_for(lambda: wanted <= {event.kind for _, event in control.events()})
    assert control.address().ledger == "kv"
    for number in range(3):
        control.create_tenant(f"more-{number}")
    assert [tenant.tenant for tenant in control.tenants()] == ["more-0", "more-1", "more-2", "t"]
    control.delete_tenant("t")
    assert control.tenant("t").is_deleted


def test_errors_come_back_as_they_were_raised(fleet: Fleet, control: HttpControl) -> None:
    """Class and kind are the same on both sides."""
    fleet.add(control, "a")
    control.create_tenant("t")
    cases: list[tuple[type[LakebedError], str, Callable[[], object]]] = [
        (AlreadyExists, "tenant_exists", lambda: control.create_tenant("t")),
        (NotFound, "tenant_not_found", lambda: control.tenant("u")),
        (NotFound, "tenant_not_found", lambda: control.route("u")),
        (NotFound, "node_not_found", lambda: control.migrate("t", "z")),
        (NotFound, "node_not_found", lambda: control.drain("z")),
        (InvalidRequest, "invalid_tenant_name", lambda: control.create_tenant("a/b")),
        (InvalidRequest, "invalid_policy", lambda: control.set_policy("t", Policy(commit_bytes=-1))),
        (Conflict, "not_registered", lambda: control.attached(NodeReport("a", "another", "x"))),
    ]
    for made, kind, ask in cases:
        with raises(made, kind):
            ask()


def test_who_does_not_know_the_token_is_refused(server: RunningServer[TokenCaller, ControlCall]) -> None:
    """Every route but health, metrics and the description needs the token."""
    for token in (None, "wrong"):
        with raises(InvalidRequest, "unauthorized"):
            HttpControl(url_of(server), token=token).tenants()
    for path in ("/healthcheck", "/metrics", "/openapi.json"):
        assert urllib3.request("GET", url_of(server) + path).status == 200


BAD = [
    ("POST", "/upcall/v1/commit", b"{"),
    ("POST", "/upcall/v1/commit", b"[{}]"),
    ("POST", "/upcall/v1/commit", b'"x"'),
    ("POST", "/upcall/v1/register", b'{"node":"a","url":"no url","incarnation":"","local_id":"","registered_ms":0}'),
    (
        "POST",
        "/upcall/v1/register",
        b'{"node":"a/b","url":"http://a:1","incarnation":"","local_id":"","registered_ms":0}',
    ),
    ("POST", "/upcall/v1/heartbeat", b"[]"),
    ("POST", "/v1/tenant", b'{"tenant":""}'),
    ("POST", "/v1/tenant", b'{"tenant":"a","policy":{"commit_bytes":100000000000000000000000000000}}'),
    ("GET", "/v1/tenant?limit=0", None),
    ("GET", "/v1/tenant/..%2f/route", None),
    ("POST", "/control/v1/txn/t/x/force_ack", None),
    ("POST", "/control/v1/tenant/t/migrate", None),
    ("GET", "/control/v1/event?limit=x", None),
]


@pytest.mark.parametrize(("method", "path", "body"), BAD)
def test_bad_input_is_a_clean_refusal(
    fleet: Fleet, server: RunningServer[TokenCaller, ControlCall], method: str, path: str, body: bytes | None
) -> None:
    """A 4xx with a sentence and a kind; nothing changed."""
    control = server.site.control
    assert control is not None
    before = [control.tenants(), control.nodes()]
    reply = urllib3.request(
        method, url_of(server) + path, body=body, headers={"authorization": f"Bearer {TOKEN}"}, retries=False
    )
    assert 400 <= reply.status < 500, reply.data
    assert reply.headers["x-lakebed-error"]
    assert reply.json()["message"]
    assert [control.tenants(), control.nodes()] == before


def test_a_page_has_at_most_a_thousand(server: RunningServer[TokenCaller, ControlCall], control: HttpControl) -> None:
    """Of tenants and of events; a client asks for the pages one by one and misses none."""
    plane = server.site.control
    assert plane is not None
    names = [f"t{number:04}" for number in range(1_001)]
    with ThreadPoolExecutor(32) as pool:
        list(pool.map(plane.create_tenant, names))

    def ask(path: str) -> urllib3.BaseHTTPResponse:
        return urllib3.request("GET", url_of(server) + path, headers={"authorization": f"Bearer {TOKEN}"})

    for path in ("/v1/tenant", "/control/v1/event"):
        for limit, status in ((0, 400), (1, 200), (1_000, 200), (1_001, 400)):
            assert ask(f"{path}?limit={limit}").status == status, (path, limit)
    for query, pages in (("", names[:1_000]), ("?limit=3", names[:3]), ("?after=t0999", names[1_000:])):
        assert [record["tenant"] for record in ask(f"/v1/tenant{query}").json()] == pages
    assert [record.tenant for record in control.tenants()] == names


def test_a_number_of_a_transaction_has_at_most_sixteen_digits(
    server: RunningServer[TokenCaller, ControlCall], control: HttpControl
) -> None:
    """One of sixteen that is not there is answered; what is longer, or no number, is refused."""
    control.create_tenant("t")

    def ask(txn: str) -> tuple[int, Any]:
        url = f"{url_of(server)}/control/v1/txn/t/{txn}/force_ack"
        reply = urllib3.request("POST", url, headers={"authorization": f"Bearer {TOKEN}"}, retries=False)
        return reply.status, reply.headers.get("x-lakebed-error") or reply.json()["reason"]

    assert ask("9" * 16) == (200, "there is no such transaction")
    for txn in ("9" * 17, "-1", "1.0", "%C2%B2"):
        assert ask(txn) == (400, "invalid_transaction")


def test_a_manifest_of_another_transaction_is_refused(fleet: Fleet, control: HttpControl) -> None:
    """A batch with one invalid request is refused as a whole, and changes nothing."""
    node = fleet.add(control, "a")
    control.create_tenant("t")
    control.create_tenant("u")
    good, bad = node.request("t"), node.request("u")
    bad = msgspec.structs.replace(bad, manifest=good.manifest)
    with raises(InvalidRequest, "invalid_manifest"):
        control.commit([good, bad])
    assert control.tenant("t").committed == 0


def test_a_standby_takes_over(fleet: Fleet) -> None:
    """A second process waits for the ledger, says so, and continues where the first ended."""
    first = fleet.start()
    wait_for(lambda: first.site.control is not None)
    second = fleet.start()
    control = HttpControl([url_of(second), url_of(first)], token=TOKEN, retry_s=20)
    node = fleet.add(control, "a")
    control.create_tenant("t")
    with raises(Unavailable, "control_standby"):
        HttpControl(url_of(second), token=TOKEN, retry_s=0).tenants()
    assert urllib3.request("GET", url_of(second) + "/healthcheck").json()["status"] == "standby"
    first.stop()
    assert node.commit("t").verdict == "granted"
    assert second.site.control is not None
    second.stop()


def test_a_call_is_repeated_while_no_process_answers() -> None:
    """Bounded by the deadline; then one clear error."""
    clock = ManualClock()
    environment = Environment(clock=clock, rng=random.Random(1))
    control = HttpControl("http://127.0.0.1:9", environment=environment, retry_s=2.0)
    before_s = clock.monotonic_s()
    with raises(Unavailable, "no_answer"):
        control.tenants()
    assert 1.0 < clock.monotonic_s() - before_s <= 2.0


def test_its_description_has_every_route(server: RunningServer[TokenCaller, ControlCall]) -> None:
    """Paths of the three interfaces, each with its errors."""
    document: dict[str, Any] = urllib3.request("GET", url_of(server) + "/openapi.json").json()
    for path in ("/upcall/v1/commit", "/upcall/v1/heartbeat", "/control/v1/node", "/v1/tenant/{tenant}/route"):
        assert path in document["paths"]


def test_a_control_plane_that_hangs_delays_no_heartbeat(
    fleet: Fleet, server: RunningServer[TokenCaller, ControlCall]
) -> None:
    """Of several processes one accepts connections and never answers: the others hear the node in time."""
    with socket.create_server(("127.0.0.1", 0), backlog=64) as hung:
        fleet.add(HttpControl(url_of(server), token=TOKEN), "a")
        both = HttpControl([f"http://127.0.0.1:{hung.getsockname()[1]}", url_of(server)], token=TOKEN)
        clock, took_s = Environment().clock, []
        for _ in range(5):
            begun_s = clock.monotonic_s()
            assert both.heartbeat(Heartbeat("a", "a-1", tenant_count=0, unflushed_bytes=0)).is_known
            took_s.append(clock.monotonic_s() - begun_s)
        options = ControlOptions()
        assert min(took_s) < (options.silent_ms - NodeOptions().heartbeat_ms) / 1000
        both.close()


def test_a_deletion_whose_reply_was_lost_is_a_deletion(tmp_path: Path) -> None:
    """Asked again the tenant is gone; the caller is not told that it never was there."""
    asked: list[str] = []
    headers = {KIND_HEADER: "tenant_not_found", CLASS_HEADER: "NotFound"}

    def answer(request: Request) -> Reply | None:
        """The first reply is lost, and then the tenant is gone."""
        asked.append(request.method)
        return Reply(404, b'{"message": "There is no such tenant."}', headers) if len(asked) > 1 else None

    with listen(answer) as port:
        control = HttpControl(f"http://127.0.0.1:{port}")
        environment = Environment()
        tenant = Tenant(
            "t", control=control, nodes=lambda _: cast(NodePort, None), log=cast(Log, None),
            environment=environment, storage=open_store(str(tmp_path)), options=ClientOptions(),
        )  # fmt: skip
        tenant.drop()
        with pytest.raises(NotFound):
            tenant.drop()
        control.close()
    assert asked == ["DELETE"] * 3


_MANIFEST = {"path": "t.tenant/1/manifest.1", "checksum": "0" * 32, "size_bytes": 1}
_POLICY = {"commit_bytes": 1, "commit_age_ms": 1, "uncommitted_bytes_max": 1, "retain_rows": 1, "retain_ms": 1,
           "relocation_wait_max_ms": 1}  # fmt: skip
BODIES: list[tuple[str, str, Any]] = [
    ("POST", "/upcall/v1/commit",
     [{"tenant": "t", "txn": 1, "node": "a", "generation": 1, "manifest": _MANIFEST,
       "timelines": {"main": {"lsn": 1, "cutoff": 1}}, "names": {"main": "main"}}]),
    ("POST", "/upcall/v1/ack", [{"tenant": "t", "txn": 1, "node": "a", "generation": 1}]),
    ("POST", "/upcall/v1/heartbeat",
     {"node": "a", "incarnation": "a-1", "tenant_count": 1, "unflushed_bytes": 1,
      "loads": [{"tenant": "t", "generation": 1, "lag_rows": 1, "txn": 1}]}),
    ("POST", "/upcall/v1/attached",
     {"node": "a", "incarnation": "a-1", "local_id": "d", "resumed": [{"tenant": "t", "generation": 1, "txn": 1}]}),
    ("POST", "/upcall/v1/register",
     {"node": "a", "url": "http://127.0.0.1:9", "incarnation": "a-2", "local_id": "d", "registered_ms": 1,
      "decommissioned_ms": 1}),
    ("PUT", "/control/v1/tenant/t/policy", _POLICY),
    ("POST", "/v1/tenant", {"tenant": "odd", "policy": _POLICY}),
    ("POST", "/v1/tenant/t/timeline",
     {"kind": "pin", "name": "p", "id": "x", "parent": "main", "lsn": 1, "lifetime_ms": 1}),
]  # fmt: skip


def test_every_number_of_a_declared_body_is_tried() -> None:
    """A number that a later version declares is in one of the bodies of the next test, or this one fails."""
    declared = {
        (route.endpoint.method, route.endpoint.path): numbers_of(route.endpoint.takes)
        for routes in (UPCALLS, CONTROLS, CLIENTS)
        for route in routes
        if route.endpoint.takes is not None
    }
    tried = {(method, path.replace("/t/", "/{tenant}/")): numbers_in(body) for method, path, body in BODIES}
    for (method, path), numbers in declared.items():
        (name,) = (known for known in tried if known[0] == method and known[1].endswith(path))
        assert {number.replace("timelines.main", "timelines.*") for number in tried[name]} == numbers, name


@pytest.mark.parametrize(("method", "path", "body"), BODIES, ids=[path for _, path, _ in BODIES])
def test_numbers_that_cannot_be_are_refused(
    fleet: Fleet, server: RunningServer[TokenCaller, ControlCall], method: str, path: str, body: Any
) -> None:
    """In every body, one at a time: a 4xx, and nothing changed."""
    control = server.site.control
    assert control is not None
    before = control.tenants()
    for name, odd in odd_bodies(body):
        reply = urllib3.request(
            method, url_of(server) + path, body=msgspec.json.encode(odd), retries=False,
            headers={"authorization": f"Bearer {TOKEN}"},
        )  # fmt: skip
        assert reply.status == 400, (name, reply.data)
        assert reply.headers["x-lakebed-error"] in ("invalid_body", "invalid_policy"), (name, reply.data)
    assert control.tenants() == before
