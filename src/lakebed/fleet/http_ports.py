"""The ports of a fleet over HTTP, for the parts of the fleet and for clients.

Owns: `Asker`, which sends requests to one part of the fleet at one or several URLs; `HttpControl`; `HttpNode`. A call
is retried, within limits, if no process answered it and its repetition gives the same answer. Errors are raised as the
process raised them. Invariant: the token is in no error, log or `repr`.
"""

from __future__ import annotations

import io
from base64 import urlsafe_b64encode
from collections.abc import Callable, Iterator, Mapping, Sequence
from copy import copy
from typing import Any, Final, TypedDict, TypeVar, Unpack

import msgspec
import pyarrow as pa
import urllib3
from typing_extensions import override
from urllib3.exceptions import HTTPError

from lakebed.decoding import msgpack_decoder
from lakebed.errors import InvalidRequest, LakebedError, OutcomeUnknown, Unavailable, UnsupportedFormat
from lakebed.fleet import ports
from lakebed.fleet.model import Manifest, NodeRecord, Policy, TenantRecord
from lakebed.fleet.node.bodies import API as NODE_API
from lakebed.fleet.node.bodies import (
    END_OF_STREAM,
    LSN_HEADER,
    URL_KEY_BYTES_MAX,
    CheckpointBody,
    KeysBody,
    RangeBody,
    Utilization,
)
from lakebed.http.asking import (
    REPLY_S,
    REPLY_S_MAX,
    Servers,
    check_endpoint,
    error_of,
    quote_segment,
    read_reply,
    with_query,
)
from lakebed.runtime import Environment

T = TypeVar("T")

RETRY_S: Final = 8.0
"""How long a call is retried. Longer than the lease of a killed control plane."""
_HEARTBEAT_S: Final = 1.0
"""How long a heartbeat to all processes may take. With the pause before the next heartbeat it is less than the time
after which the control plane considers the node silent (`ControlOptions.silent_ms`)."""
CHANGE_S: Final = 60.0
"""How long a change or a checkpoint of a node may take, which waits for a commit."""
_CHANGE_S: Final = 2.0
"""The same for the first request, when it is not known whether the process hangs."""
_ROUTE_S_MAX: Final = 2.0
"""Longest time of a request for a route. The caller has an older one, or tries again."""
_COMMIT_S_MAX: Final = 4.0
"""Longest time of a request to commit. A worker of the node waits for it, and it can be repeated."""
_CONNECTIONS_MAX: Final = 64
_PAGE: Final = 1_000
_RETRIED: Final = {
    "unavailable",
    "control_standby",
    "outcome_unknown",
    "commit_unanswered",
    "contention",
    "no_answer",
    "no_reply",
}
"""Kinds of errors after which another process may answer, or the same one later."""


class How(TypedDict, total=False):
    """Options of a call."""

    query: Mapping[str, Any]
    again: bool
    """Whether the call may be repeated because its repetition gives the same answer. Default: True."""
    reply_s: float
    """How long a process may be silent before another one is tried. A call that took longer gets more time when it is
    repeated ..."""
    reply_s_max: float
    """... but not more than this."""


class Asker:
    """Sends requests to a part of a fleet. Thread-safe.

    Args:
        urls: URLs of its processes, several with commas between them. The one that answered last is tried first.
        token: the fleet's token; None: it needs none.
        environment: clock and randomness.
        retry_s: how long a call is retried.
        find: returns other URLs. Called if no process answers.

    Raises `InvalidRequest` (``invalid_url``). Cost: no request.
    """

    def __init__(
        self,
        urls: str | Sequence[str],
        *,
        token: str | None = None,
        environment: Environment | None = None,
        retry_s: float = RETRY_S,
        find: Callable[[], str] | None = None,
    ) -> None:
        endpoints = _endpoints(urls)
        if not endpoints:
            raise InvalidRequest("There is no URL: write http://host:port.", kind="invalid_url")
        self.retry_s = retry_s
        self.servers = Servers(
            endpoints,
            headers={
                "user-agent": "lakebed",
                "content-type": "application/json",
                **({"authorization": f"Bearer {token}"} if token else {}),
            },
            connection_count_max=_CONNECTIONS_MAX,
            environment=environment or Environment(),
            find=None if find is None else lambda: _endpoints(find()),
        )

    def __repr__(self) -> str:
        return f"Asker({', '.join(self.servers.endpoints)})"

    def close(self) -> None:
        """Close all connections. Closing twice is a no-op."""
        self.servers.close()

    def ask(self, method: str, path: str, kind: type[T], body: Any = None, **how: Unpack[How]) -> T:
        """Make a call. Return its reply, decoded as `kind`. Raises as `request`, and `UnsupportedFormat`."""
        reply: T = read_reply(self.request(method, path, body, **how).data, kind)
        return reply

    def request(
        self,
        method: str,
        path: str,
        body: Any = None,
        *,
        query: Mapping[str, Any] | None = None,
        again: bool = True,
        reply_s: float = REPLY_S,
        reply_s_max: float = REPLY_S_MAX,
    ) -> urllib3.BaseHTTPResponse:
        """Make a call with the options of `How`, to one process after another. `body` is sent as JSON.

        Raises:
            The error of the process that answered; `Unavailable`, or `OutcomeUnknown` if the call may have taken
            effect.
        """
        target = with_query(path, query or {})
        content = None if body is None else msgspec.json.encode(body)

        def request(endpoint: str) -> urllib3.BaseHTTPResponse:
            return self.send(endpoint, method, target, content, again=again, reply_s=reply_s, reply_s_max=reply_s_max)

        return self.servers.ask(
            request,
            retry_s=self.retry_s,
            is_retried=_may_be_retried if again else _had_no_effect,
        )

    def send(
        self,
        endpoint: str,
        method: str,
        path: str,
        content: bytes | None,
        *,
        again: bool,
        reply_s: float = REPLY_S,
        reply_s_max: float = REPLY_S_MAX,
        preload: bool = True,
    ) -> urllib3.BaseHTTPResponse:
        """Send one request to one process. Raises as `ask`.

        Args:
            preload: read the reply's body. Otherwise the caller reads and closes it.
        """
        reply = self.servers.send(
            endpoint,
            method,
            path,
            content,
            reply_s=reply_s,
            reply_s_max=reply_s_max,
            changes=method != "GET",
            preload=preload,
        )
        if reply.status < 300:
            return reply
        if not preload:
            reply.read(cache_content=True)
            reply.release_conn()
        raise error_of(reply, endpoint=endpoint, again=again)


def _endpoints(urls: str | Sequence[str]) -> list[str]:
    """Check URLs, and return them as a list. Raises `InvalidRequest` (``invalid_url``)."""
    url_list = urls.split(",") if isinstance(urls, str) else urls
    return [check_endpoint(url.strip()) for url in url_list if url.strip()]


def _may_be_retried(error: LakebedError) -> bool:
    return isinstance(error, Unavailable | OutcomeUnknown) and error.kind in _RETRIED


def _had_no_effect(error: LakebedError) -> bool:
    return isinstance(error, Unavailable) and error.kind in _RETRIED


class HttpControl(ports.ControlPort, ports.OperatorPort):
    """The control plane behind HTTP. Thread-safe.

    Args:
        urls: URLs of its processes, several with commas between them. Heartbeats go to all of them.
        token: the fleet's token; None: it needs none.
        environment: clock and randomness.
        retry_s: how long a call is retried while no process answers.
        find: returns other URLs. Called if no process answers.

    Raises `InvalidRequest` (``invalid_url``). Cost: no request.
    """

    def __init__(
        self,
        urls: str | Sequence[str],
        *,
        token: str | None = None,
        environment: Environment | None = None,
        retry_s: float = RETRY_S,
        find: Callable[[], str] | None = None,
    ) -> None:
        self._asker = Asker(urls, token=token, environment=environment, retry_s=retry_s, find=find)

    def __repr__(self) -> str:
        return f"HttpControl({', '.join(self._asker.servers.endpoints)})"

    def retry_for(self, retry_s: float) -> HttpControl:
        """Return the same control plane, over the same connections, with another `retry_s`."""
        other = copy(self)
        other._asker = copy(self._asker)
        other._asker.retry_s = retry_s
        return other

    def close(self) -> None:
        """Close all connections. Closing twice is a no-op."""
        self._asker.close()

    # ---- ControlPort

    def register(self, node: NodeRecord) -> None:
        self._asker.request("POST", "/upcall/v1/register", node)

    def heartbeat(self, heartbeat: ports.Heartbeat) -> ports.HeartbeatReply:
        """Send to every process, so that each knows which nodes are alive. One answer is enough."""
        content = msgspec.json.encode(heartbeat)
        endpoints = self._asker.servers.endpoints
        reply_s = _HEARTBEAT_S / len(endpoints)
        replies: list[ports.HeartbeatReply] = []
        failure: LakebedError | None = None
        for endpoint in endpoints:
            try:
                reply = self._asker.send(
                    endpoint, "POST", "/upcall/v1/heartbeat", content, again=True, reply_s=reply_s, reply_s_max=reply_s
                )
            except (Unavailable, OutcomeUnknown) as error:
                failure = error
            else:
                replies.append(read_reply(reply.data, ports.HeartbeatReply))
        if not replies:
            raise Unavailable("No control plane answers a heartbeat.", kind="no_answer") from failure
        return ports.HeartbeatReply(
            is_known=all(answer.is_known for answer in replies),
            report=tuple(dict.fromkeys(tenant for answer in replies for tenant in answer.report)),
            pause=tuple(dict.fromkeys(tenant for answer in replies for tenant in answer.pause)),
            now_ms=min(answer.now_ms for answer in replies),
        )

    def attached(self, report: ports.NodeReport) -> list[ports.Location]:
        return self._asker.ask("POST", "/upcall/v1/attached", list[ports.Location], report)

    def commit(self, requests: Sequence[ports.CommitRequest]) -> list[ports.CommitReply]:
        path = "/upcall/v1/commit"
        return self._asker.ask("POST", path, list[ports.CommitReply], requests, reply_s_max=_COMMIT_S_MAX)

    def ack(self, requests: Sequence[ports.AckRequest]) -> list[ports.AckReply]:
        return self._asker.ask("POST", "/upcall/v1/ack", list[ports.AckReply], requests)

    # ---- OperatorPort

    def create_tenant(self, tenant: str, policy: Policy | None = None) -> TenantRecord:
        asked = ports.TenantRequest(tenant, policy)
        return self._asker.ask("POST", "/v1/tenant", TenantRecord, asked, again=False, reply_s=_CHANGE_S)

    def delete_tenant(self, tenant: str) -> None:
        self._asker.request("DELETE", f"/v1/tenant/{quote_segment(tenant)}", again=False, reply_s=_CHANGE_S)

    def tenants(self) -> list[TenantRecord]:
        """Cost: 1 request for 1000 tenants."""
        records: list[TenantRecord] = []
        while True:
            query = {"limit": _PAGE, "after": records[-1].tenant if records else ""}
            page = self._asker.ask("GET", "/v1/tenant", list[TenantRecord], query=query)
            records += page
            if len(page) < _PAGE:
                return records

    def tenant(self, tenant: str) -> TenantRecord:
        return self._asker.ask("GET", f"/v1/tenant/{quote_segment(tenant)}", TenantRecord)

    def set_policy(self, tenant: str, policy: Policy) -> TenantRecord:
        return self._asker.ask("PUT", f"/control/v1/tenant/{quote_segment(tenant)}/policy", TenantRecord, policy)

    def route(self, tenant: str) -> ports.Route:
        path = f"/v1/tenant/{quote_segment(tenant)}/route"
        return self._asker.ask("GET", path, ports.Route, reply_s_max=_ROUTE_S_MAX)

    def change_timeline(self, tenant: str, change: ports.TimelineChange) -> ports.TimelineInfo:
        path = f"/v1/tenant/{quote_segment(tenant)}/timeline"
        return self._asker.ask("POST", path, ports.TimelineInfo, change, reply_s=_CHANGE_S, reply_s_max=CHANGE_S)

    def manifest(self, tenant: str) -> Manifest:
        return self._asker.ask("GET", f"/v1/tenant/{quote_segment(tenant)}/manifest", Manifest)

    def transactions(self, tenant: str) -> ports.TransactionList:
        return self._asker.ask("GET", f"/control/v1/tenant/{quote_segment(tenant)}/txns", ports.TransactionList)

    def nodes(self) -> list[ports.NodeStatus]:
        return self._asker.ask("GET", "/control/v1/node", list[ports.NodeStatus])

    def migrate(self, tenant: str, node: str) -> None:
        self._asker.request("POST", f"/control/v1/tenant/{quote_segment(tenant)}/migrate", query={"node": node})

    def attach_reader(self, tenant: str, node: str) -> None:
        self._asker.request("POST", f"/control/v1/tenant/{quote_segment(tenant)}/reader", query={"node": node})

    def drain(self, node: str, *, undo: bool = False) -> None:
        self._asker.request("POST", f"/control/v1/node/{quote_segment(node)}/drain", query={"undo": undo})

    def decommission(self, node: str) -> None:
        self._asker.request("POST", f"/control/v1/node/{quote_segment(node)}/decommission")

    def force_ack(self, tenant: str, txn: int) -> ports.AckReply:
        return self._asker.ask("POST", f"/control/v1/txn/{quote_segment(tenant)}/{txn}/force_ack", ports.AckReply)

    def events(self, *, after: str = "", limit: int = 1_000) -> list[tuple[str, ports.Event]]:
        query = {"after": after, "limit": limit}
        events = self._asker.ask("GET", "/control/v1/event", list[ports.PlacedEvent], query=query)
        return [(entry.position, entry.event) for entry in events]

    def address(self) -> ports.FleetAddress:
        return self._asker.ask("GET", "/v1/fleet", ports.FleetAddress)


COMPACT_S: Final = 600.0
"""How long a compaction of a node may take."""

_SLOW_S_MAX: Final = 30.0
"""Longest time of a read after an earlier one timed out."""

_PIECE_BYTES: Final = 16 << 10
"""Smallest piece of a scan's reply that is read at once."""

_VALUES: Final = msgpack_decoder(list[bytes | None])


class HttpNode(ports.NodePort):
    """A node behind a URL. Thread-safe.

    Args:
        token: the fleet's token; None: it has none.
        read_s: how long the first byte of a read, or a location, may take. The node's own wait for an LSN is shorter.
    """

    def __init__(
        self, url: str, *, token: str | None = None, read_s: float = 30.0, environment: Environment | None = None
    ) -> None:
        self._asker = Asker(url, token=token, environment=environment, retry_s=0)
        self._url = self._asker.servers.endpoints[0]
        self._read_s = read_s

    def __repr__(self) -> str:
        return f"HttpNode({self._url!r})"

    def close(self) -> None:
        """Close all connections. Closing twice is a no-op."""
        self._asker.close()

    def _ask(self, method: str, path: str, kind: type[T], body: Any = None, **how: Unpack[How]) -> T:
        how = {"again": False, "reply_s": self._read_s, **how}
        return self._asker.ask(method, path, kind, body, **how)

    def _read(
        self, method: str, path: str, content: bytes | None = None, *, preload: bool = True, **query: Any
    ) -> urllib3.BaseHTTPResponse:
        """Send a request that changes nothing, so a missing answer is `Unavailable`."""
        target = with_query(path, query)

        def request(endpoint: str) -> urllib3.BaseHTTPResponse:
            return self._asker.send(
                endpoint,
                method,
                target,
                content,
                again=True,
                reply_s=self._read_s,
                reply_s_max=max(_SLOW_S_MAX, self._read_s),
                preload=preload,
            )

        try:
            return self._asker.servers.ask(request, retry_s=0, is_retried=_may_be_retried)
        except OutcomeUnknown as error:
            raise Unavailable(f"{self._url} does not answer: try again.", kind="no_answer") from error

    def put_location(self, location: ports.Location) -> None:
        path = f"{_tenant(location.tenant)}/location"
        self._asker.request("PUT", path, location, again=False, reply_s=self._read_s)

    def locations(self) -> list[ports.Held]:
        return self._ask("GET", f"{NODE_API}/locations", list[ports.Held])

    def utilization(self) -> Utilization:
        """Return how much of its memory the node uses."""
        return self._ask("GET", f"{NODE_API}/utilization", Utilization)

    def timelines(self, tenant: str) -> list[ports.TimelineInfo]:
        return self._ask("GET", f"{_tenant(tenant)}/timelines", list[ports.TimelineInfo])

    def change(self, tenant: str, change: ports.TimelineChange) -> ports.TimelineInfo:
        path = f"{_tenant(tenant)}/changes"
        return self._ask("POST", path, ports.TimelineInfo, change, reply_s=_CHANGE_S, reply_s_max=CHANGE_S)

    def get(self, tenant: str, timeline: str, key: bytes, *, lsn: int | None = None, at_least: int = 0) -> ports.Found:
        if len(key) > URL_KEY_BYTES_MAX:
            body = msgspec.msgpack.encode(KeysBody([key], lsn, at_least))
            reply = self._read("POST", f"{_timeline(tenant, timeline)}/values", body)
            return ports.Found(self._values(reply)[0], int(reply.headers[LSN_HEADER]))
        text = urlsafe_b64encode(key).decode()
        path = f"{_timeline(tenant, timeline)}/value"
        reply = self._read("GET", path, key=text, lsn=lsn, at_least=at_least or None)
        return ports.Found(reply.data if reply.status == 200 else None, int(reply.headers[LSN_HEADER]))

    def get_many(
        self, tenant: str, timeline: str, keys: Sequence[bytes], *, lsn: int | None = None, at_least: int = 0
    ) -> ports.FoundMany:
        body = msgspec.msgpack.encode(KeysBody(list(keys), lsn, at_least))
        reply = self._read("POST", f"{_timeline(tenant, timeline)}/values", body)
        # An older node sends the header only for a single key. The LSN that was waited for is certainly reached.
        return ports.FoundMany(tuple(self._values(reply)), int(reply.headers.get(LSN_HEADER, at_least)))

    def _values(self, reply: urllib3.BaseHTTPResponse) -> list[bytes | None]:
        try:
            return _VALUES.decode(reply.data)
        except msgspec.MsgspecError as error:
            raise UnsupportedFormat(f"The reply of {self._url} is not a list of values: {error}.") from error

    def scan(
        self,
        tenant: str,
        timeline: str,
        start: bytes | None = None,
        end: bytes | None = None,
        *,
        lsn: int | None = None,
        at_least: int = 0,
    ) -> Iterator[pa.RecordBatch]:
        path = f"{_timeline(tenant, timeline)}/rows"
        if len(start or b"") + len(end or b"") > URL_KEY_BYTES_MAX:
            body = msgspec.msgpack.encode(RangeBody(start, end, lsn, at_least))
            return _batches(self._read("POST", path, body, preload=False), self._url)
        reply = self._read(
            "GET",
            path,
            preload=False,
            start=None if start is None else urlsafe_b64encode(start).decode(),
            end=None if end is None else urlsafe_b64encode(end).decode(),
            lsn=lsn,
            at_least=at_least or None,
        )
        return _batches(reply, self._url)

    def checkpoint(self, tenant: str) -> int:
        path = f"{_tenant(tenant)}/checkpoint"
        return self._ask("POST", path, CheckpointBody, reply_s=_CHANGE_S, reply_s_max=CHANGE_S).txn

    def compact(self, tenant: str, timeline: str) -> None:
        self._asker.request("POST", f"{_timeline(tenant, timeline)}/compact", again=False, reply_s=COMPACT_S)

    def lag(self, tenant: str) -> dict[str, int]:
        return self._ask("GET", f"{_tenant(tenant)}/lag", dict[str, int])


class _Body(io.RawIOBase):
    """A reply's body as a file that knows its last bytes. Arrow reads a few bytes, then all columns of a batch.

    The few bytes are taken from a piece that was read ahead. The columns are read when Arrow reads them, so they are
    copied only once: after the rest of the piece.
    """

    def __init__(self, reply: urllib3.BaseHTTPResponse) -> None:
        self._reply = reply
        self._rest = memoryview(b"")
        self.last = b""

    @override
    def readable(self) -> bool:
        return True

    @override
    def read(self, size: int = -1) -> memoryview:
        rest = self._rest
        if size < 0 or size > len(rest):
            missing = None if size < 0 else max(size - len(rest), _PIECE_BYTES)
            piece = self._reply.read(missing)
            self.last = (self.last + piece[-8:])[-8:]
            rest = memoryview(b"".join((rest, piece)) if len(rest) else piece)
        size = len(rest) if size < 0 else min(size, len(rest))
        self._rest = rest[size:]
        return rest[:size]


def _batches(reply: urllib3.BaseHTTPResponse, url: str) -> Iterator[pa.RecordBatch]:
    """Yield the batches of a scan as they arrive. Raises `Unavailable` if the reply is cut off."""
    body = _Body(reply)
    try:
        with pa.ipc.open_stream(pa.PythonFile(body, mode="r")) as stream:
            yield from stream
        if body.last != END_OF_STREAM or body.read():  # the last read removes the reply's end from the connection
            raise HTTPError("the stream has no end")
    except (HTTPError, pa.ArrowException, OSError, ValueError) as error:
        reply.close()
        raise Unavailable(
            f"{url} interrupted a scan: read on behind the last key, at the same LSN.", kind="scan_interrupted"
        ) from error
    finally:
        reply.release_conn()


def _tenant(tenant: str) -> str:
    return f"{NODE_API}/tenants/{quote_segment(tenant)}"


def _timeline(tenant: str, timeline: str) -> str:
    return f"{_tenant(tenant)}/timelines/{quote_segment(timeline)}"
