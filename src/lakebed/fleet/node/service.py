"""A node as an HTTP service: its part of `lakebed.http`, and its routes.

Owns: the site, the only token, and how batches of a scan become a stream. A request for a tenant that is not attached
gets the status 421 (`not_attached`), a request for an LSN that is not ingested in time 425 (`lsn_not_reached`).
"""

from __future__ import annotations

import binascii
from base64 import urlsafe_b64decode
from collections.abc import Iterator
from typing import ClassVar, Final, TypeVar

import msgspec
import pyarrow as pa
from starlette.responses import Response
from starlette.types import Receive, Scope

from lakebed.decoding import decode_msgpack
from lakebed.errors import InvalidRequest
from lakebed.fleet.node.bodies import (
    API,
    ARROW_TYPE,
    BODY_BYTES_MAX,
    END_OF_STREAM,
    LSN_HEADER,
    CheckpointBody,
    KeysBody,
    RangeBody,
    Utilization,
)
from lakebed.fleet.node.node import Node
from lakebed.fleet.ports import Held, Location, TimelineChange, TimelineInfo
from lakebed.fleet.service import NAME_PATTERN, FleetCall, FleetSite, add_process_routes
from lakebed.http.authentication import TokenCaller
from lakebed.http.declaration import Parameter, Routes
from lakebed.http.openapi import PathParameter
from lakebed.http.replies import GatheredResponse, Piece
from lakebed.http.serving import Serving

A = TypeVar("A", KeysBody, RangeBody)

_LSN_MAX: Final = (1 << 53) - 1

_PIECE_BYTES: Final = 2 << 20

_INLINE_KEYS_MAX: Final = 128
"""Most keys that are read in the event loop. For more keys, handing over to a thread takes less than reading."""

_TENANT: Final = "/tenants/{tenant}"
_TIMELINE: Final = _TENANT + "/timelines/{timeline}"

_AT: Final = (
    Parameter("lsn", "As of which LSN to read; the newest ingested by default.", kind="integer", bounds=(0, _LSN_MAX)),
    Parameter("at_least", "An LSN that has to be ingested first.", kind="integer", bounds=(0, _LSN_MAX)),
)


class NodeSite(FleetSite["NodeCall"]):
    """The site of a node. Arguments as `FleetSite`."""

    title = "The node"
    statuses: ClassVar = {
        "not_attached": 421,
        "file_gone": 421,
        "lsn_not_reached": 425,
        "log_forked": 409,
        "log_newer": 409,
        "row_too_large": 413,
    }

    def __init__(self, serving: Serving, node: Node, *, token: str | None) -> None:
        super().__init__(serving, token=token)
        self.node = node

    def new_call(self, scope: Scope, receive: Receive, *, principal: TokenCaller | None, request_id: str) -> NodeCall:
        """Make the object that handlers take."""
        return NodeCall(self, scope, receive, request_id=request_id)

    def health(self) -> dict[str, str]:
        """Return the node's name."""
        return {"status": "ok", "node": self.node.name}


class NodeCall(FleetCall[NodeSite]):
    """A request to the service."""

    __slots__ = ()

    @property
    def node(self) -> Node:
        """The node."""
        return self.site.node

    @property
    def tenant(self) -> str:
        """The tenant in the path."""
        return self.path["tenant"]

    @property
    def timeline(self) -> str:
        """The timeline in the path, a name or an id."""
        return self.path["timeline"]

    def key(self, name: str) -> bytes | None:
        """Return a key in the query, which is URL-safe base64; None: missing."""
        text = self.query.get(name)
        try:
            return None if text is None else urlsafe_b64decode(text.encode("ascii"))
        except (binascii.Error, ValueError) as error:
            raise InvalidRequest(
                f"{name}={text!r} is not URL-safe base64: encode the key.", kind="invalid_query"
            ) from error

    def at(self) -> tuple[int | None, int]:
        """Return the LSN to read at, and the LSN to wait for."""
        lsn = self.integer("lsn", default=-1, low=0, high=_LSN_MAX)
        return None if lsn < 0 else lsn, self.integer("at_least", default=0, low=0, high=_LSN_MAX)

    def is_quick_read(self, lsn: int) -> bool:
        """Whether a read of the path's timeline does not wait: its data is on this machine, and has the LSN."""
        return self.serving.reads_inline and self.node.is_ready(self.tenant, self.timeline, lsn)


NODE: Final = Routes[NodeCall]("node")


@NODE.add(
    "GET", _TIMELINE + "/value", "get", needs="read", gives={200: bytes, 204: None},
    parameters=(Parameter("key", "The key, as URL-safe base64.", required=True), *_AT),
)  # fmt: skip
async def get(call: NodeCall) -> Response:
    """Read the value of a key; 204 if it has none."""
    key, (lsn, at_least) = call.key("key"), call.at()
    if key is None:
        raise InvalidRequest("The query has no key: add it.", kind="missing_parameter")
    node, tenant, timeline = call.node, call.tenant, call.timeline
    if call.is_quick_read(max(lsn or 0, at_least)):
        reply = node.get(tenant, timeline, key, lsn=lsn, at_least=at_least)
    else:
        reply = await call.quick(node.get, tenant, timeline, key, lsn=lsn, at_least=at_least)
    headers = {LSN_HEADER: str(reply.lsn)}
    if reply.value is None:
        return Response(status_code=204, headers=headers)
    return Response(reply.value, headers=headers, media_type="application/octet-stream")


@NODE.add("POST", _TIMELINE + "/values", "getMany", needs="read", takes=bytes, gives={200: bytes})
async def get_many(call: NodeCall) -> Response:
    """Read the values of many keys, as MessagePack, in the order asked; a header has the LSN of their state."""
    body = await _read_body(call, KeysBody)
    node, tenant, timeline = call.node, call.tenant, call.timeline
    keys, lsn, at_least = body.keys, body.lsn, body.at_least
    if len(keys) <= _INLINE_KEYS_MAX and call.is_quick_read(max(lsn or 0, at_least)):
        reply = node.get_many(tenant, timeline, keys, lsn=lsn, at_least=at_least)
    else:
        reply = await call.quick(node.get_many, tenant, timeline, keys, lsn=lsn, at_least=at_least)
    content = msgspec.msgpack.encode(reply.values)
    return Response(content, headers={LSN_HEADER: str(reply.lsn)}, media_type="application/msgpack")


async def _read_body(call: NodeCall, kind: type[A]) -> A:
    """Return the MessagePack body of a read, checked. Raises `InvalidRequest`."""
    try:
        body = decode_msgpack(await call.body(bytes_max=BODY_BYTES_MAX), kind)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise InvalidRequest(f"The body is not what this read takes: {error}.", kind="invalid_body") from error
    _check_lsn(body.lsn or 0)
    _check_lsn(body.at_least)
    return body


def _check_lsn(lsn: int) -> None:
    if not 0 <= lsn <= _LSN_MAX:
        raise InvalidRequest(f"{lsn} is not an LSN: use a whole number from 0.", kind="invalid_lsn")


@NODE.add(
    "GET", _TIMELINE + "/rows", "scan", needs="read", gives={200: bytes},
    parameters=(
        Parameter("start", "The first key, as URL-safe base64."),
        Parameter("end", "The key behind the last."),
        *_AT,
    ),
)  # fmt: skip
async def scan(call: NodeCall) -> Response:
    """Read a range of keys as an Arrow IPC stream; the schema's metadata has the LSN."""
    lsn, at_least = call.at()
    return await _answer_scan(call, RangeBody(call.key("start"), call.key("end"), lsn, at_least))


@NODE.add("POST", _TIMELINE + "/rows", "scanLong", needs="read", takes=bytes, gives={200: bytes})
async def scan_long(call: NodeCall) -> Response:
    """Read a range whose bounds, as MessagePack, may be longer than a URL."""
    return await _answer_scan(call, await _read_body(call, RangeBody))


async def _answer_scan(call: NodeCall, body: RangeBody) -> Response:
    node, tenant, timeline = call.node, call.tenant, call.timeline
    chunks = await call.download(
        lambda: _stream(node.scan(tenant, timeline, body.start, body.end, lsn=body.lsn, at_least=body.at_least))
    )
    return GatheredResponse(chunks, 200, {"content-type": ARROW_TYPE})


def _stream(batches: Iterator[pa.RecordBatch]) -> Iterator[Piece]:
    """Yield the messages of an Arrow IPC stream, in pieces of about `_PIECE_BYTES`.

    Each piece is a step of a thread.
    """
    pieces: list[bytes | memoryview] = []
    size = 0
    for batch in batches:
        if not size:
            size += 1
            pieces.append(memoryview(batch.schema.serialize()))
        message = batch.serialize()
        pieces.append(memoryview(message))
        size += message.size
        if size >= _PIECE_BYTES:
            yield pieces
            pieces, size = [], 1
    yield [*pieces, END_OF_STREAM]


@NODE.add("PUT", _TENANT + "/location", "putLocation", needs="admin")
async def put_location(call: NodeCall, location: Location) -> None:
    """Attach, change or detach a tenant."""
    if location.tenant != call.tenant:
        raise InvalidRequest("The body names another tenant than the path: make them equal.", kind="invalid_body")
    call.node.put_location(location)


@NODE.add("GET", "/locations", "locations", needs="read")
async def locations(call: NodeCall) -> list[Held]:
    """List the tenants that the node has."""
    return call.node.locations()


@NODE.add("GET", "/utilization", "utilization", needs="read")
async def utilization(call: NodeCall) -> Utilization:
    """Get how much of its memory the node uses."""
    return call.node.utilization()


@NODE.add("GET", _TENANT + "/timelines", "timelines", needs="read")
async def timelines(call: NodeCall) -> list[TimelineInfo]:
    """List the timelines of a tenant."""
    return await call.quick(call.node.timelines, call.tenant)


@NODE.add("POST", _TENANT + "/changes", "change", needs="write")
async def change(call: NodeCall, body: TimelineChange) -> TimelineInfo:
    """Create, branch, pin, delete, detach or restore a timeline; answered when it is committed."""
    return await call.transfer(call.node.change, call.tenant, body)


@NODE.add("POST", _TENANT + "/checkpoint", "checkpoint", needs="write")
async def checkpoint(call: NodeCall) -> CheckpointBody:
    """Flush and commit what is ingested."""
    return CheckpointBody(await call.transfer(call.node.checkpoint, call.tenant))


@NODE.add("POST", _TIMELINE + "/compact", "compact", needs="write")
async def compact(call: NodeCall) -> None:
    """Merge all files of a timeline into one run."""
    await call.transfer(call.node.compact, call.tenant, call.timeline)


@NODE.add("GET", _TENANT + "/lag", "lag", needs="read")
async def lag(call: NodeCall) -> dict[str, int]:
    """Get the rows in the log that are not ingested, by timeline id."""
    return await call.quick(call.node.lag, call.tenant)


ROUTES: Final = {API: NODE}

_PARTS: Final = {
    "tenant": PathParameter("A tenant.", NAME_PATTERN),
    "timeline": PathParameter("A timeline's name or id.", NAME_PATTERN),
}
description: Final = add_process_routes(ROUTES, "lakebed fleet node", "A node of a fleet.", _PARTS)
