"""The embedded log as an HTTP service: what `lakebed.http` needs of it, and its routes.

Owns: the site, the one token, and how an append waits without a thread. While this process does not own the log
(`lakebed.fleet.log.serve`), every call is answered 503 (`log_standby`), and clients try another endpoint.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

from starlette.responses import Response
from starlette.types import Receive, Scope

import lakebed
from lakebed.errors import Fenced, InvalidRequest, LakebedError, Unavailable
from lakebed.fleet.log.bodies import (
    API,
    BODY_BYTES_MAX,
    WAIT_S_MAX,
    WAIT_TIMELINES_MAX,
    AppendItem,
    AppendResult,
    BoundsBody,
    SealedBody,
    WaitBody,
    decode_appends,
    decode_item,
    encode_bodies,
)
from lakebed.fleet.log.changes import Append
from lakebed.fleet.log.key_value_log import KeyValueLog
from lakebed.fleet.log.port import READ_BYTES_DEFAULT, READ_BYTES_MAX, check_lsn, check_timeline
from lakebed.fleet.log.watchers import Watcher
from lakebed.http import errors
from lakebed.http.application import build
from lakebed.http.authentication import TokenCaller, check_token
from lakebed.http.call import Call
from lakebed.http.declaration import Endpoint, Parameter, Routes
from lakebed.http.gate import Gate
from lakebed.http.openapi import PathParameter, Service, describe
from lakebed.http.pools import LoopSignal
from lakebed.http.replies import empty, json
from lakebed.http.serving import Serving
from lakebed.http.site import Change
from lakebed.metrics import render

_LSN_MAX: Final = (1 << 53) - 1
_STATUSES: Final = {"log_forked": 409}
"""The caller knows an LSN that the log does not have: the two contradict each other, and the service works."""
_TIMELINE: Final = "/timelines/{tenant}/{timeline}"


_CALLER: Final = TokenCaller("fleet")


class LogSite:
    """The log, as `lakebed.http` serves it.

    Args:
        serving: limits, threads and logs.
        token: what callers send as ``Authorization: Bearer <token>``; None: they need none.

    Attributes:
        log: what is served; None: another process owns it.
        on_fenced: called when the log turns out to be another process's.
        on_close: called when no request runs any more.
    """

    def __init__(self, serving: Serving, *, token: str | None) -> None:
        self.serving = serving
        self._token = token
        self.log: KeyValueLog | None = None
        self.on_fenced: Callable[[], None] = _nothing
        self.on_close: Callable[[], None] = _nothing

    def require_log(self) -> KeyValueLog:
        """The log. Raises `Unavailable` (``log_standby``)."""
        if self.log is None:
            raise Unavailable(
                "This process waits to take over the log from its owner: ask the owner, or try again.",
                kind="log_standby",
            )
        return self.log

    async def authenticate(self, header: bytes | None) -> TokenCaller:
        """The caller who sends the token. Raises `InvalidRequest` (``unauthorized``)."""
        check_token(header, self._token, service="The log")
        return _CALLER

    def authorize(self, principal: TokenCaller, endpoint: Endpoint, scope: Scope) -> None:
        """Who knows the token may do everything."""

    def new_call(self, scope: Scope, receive: Receive, *, principal: TokenCaller | None, request_id: str) -> LogCall:
        """What handlers take."""
        return LogCall(self, scope, receive, request_id=request_id)

    async def audit(self, change: Change) -> None:
        """Nothing is audited."""

    def error_reply(self, error: BaseException, *, request_id: str, statuses: Mapping[str, int]) -> Response:
        """The generic table of statuses. A fence ends the ownership."""
        self.note(error)
        return errors.error_reply(error, request_id=request_id, statuses={**_STATUSES, **statuses})

    def note(self, error: BaseException | None) -> None:
        """Look at an error of the log."""
        if isinstance(error, Fenced):
            self.on_fenced()

    def close(self) -> None:
        """Wait for running calls, then close the log."""
        self.serving.pools.close()
        try:
            self.on_close()
        finally:
            self.serving.close_log()


def _nothing() -> None:
    """Do nothing."""


class LogCall(Call):
    """A request of the service."""

    __slots__ = ("site",)

    def __init__(self, site: LogSite, scope: Scope, receive: Receive, *, request_id: str) -> None:
        super().__init__(site.serving, scope, receive, request_id=request_id)
        self.site = site

    @property
    def timeline(self) -> str:
        """The log key in the path."""
        return check_timeline(f"{self.path['tenant']}/{self.path['timeline']}")

    def lsn(self, name: str) -> int:
        """An LSN in the query."""
        self.required(name)
        return self.integer(name, default=0, low=0, high=_LSN_MAX)


LOG: Final = Routes[LogCall]("log")
SERVICE: Final = Routes[LogCall]("service")


def _lsn(name: str, description: str) -> Parameter:
    return Parameter(name, description, "integer", required=True, bounds=(0, _LSN_MAX))


@LOG.add("POST", "/append", "append", needs="write", takes=bytes, gives={200: list[AppendResult]})
async def append(call: LogCall) -> Response:
    """Append to timelines: a MessagePack list of [timeline, record, expected]; each has a result of its own."""
    log = call.site.require_log()
    items = decode_appends(await call.body(bytes_max=BODY_BYTES_MAX))
    signal = LoopSignal()
    waiting: list[Append | LakebedError] = []
    for item in items:
        try:
            waiting.append(_submit(log, item, signal))
        except LakebedError as error:
            waiting.append(error)
    appends = [item for item in waiting if isinstance(item, Append)]
    try:
        while any(not item.is_done for item in appends):
            await signal.wait()
            for pending in appends:
                if log.must_lead(pending):
                    await call.quick(log.lead, pending)
    finally:
        for pending in appends:
            log.abandon(pending)
    for pending in appends:
        call.site.note(pending.error)
    return json([_result(item) for item in waiting])


def _submit(log: KeyValueLog, item: AppendItem, signal: LoopSignal) -> Append:
    rows, write_id = decode_item(item)
    change = Append(item.timeline, signal, rows=rows, write_id=write_id, expected=item.expected)
    log.submit(change)
    return change


def _result(item: Append | LakebedError) -> AppendResult:
    error = item.error if isinstance(item, Append) else item
    if error is None:
        assert isinstance(item, Append)
        return AppendResult(lsn=item.lsn)
    body = errors.public_body(error)
    return AppendResult(error=type(error).__name__, kind=error.kind, message=body.message, facts=body.facts)


@LOG.add("POST", "/wait", "wait", needs="read", takes=WaitBody, gives={200: dict[str, int]})
async def wait(call: LogCall) -> Response:
    """Wait until one of some timelines ends at another LSN; those that do."""
    log = call.site.require_log()
    body = await call.read(WaitBody)
    if len(body.after) > WAIT_TIMELINES_MAX:
        raise InvalidRequest(
            f"{len(body.after):,} timelines are too many: {WAIT_TIMELINES_MAX:,} are possible.", kind="invalid_body"
        )
    for timeline, lsn in body.after.items():
        check_timeline(timeline)
        check_lsn(lsn, name="after")
    clock = call.serving.environment.clock
    ends_s = clock.monotonic_s() + min(max(0.0, body.timeout_s), WAIT_S_MAX)
    signal = LoopSignal()
    watcher = Watcher(body.after, signal)
    log.watchers.add(watcher)
    try:
        while True:
            lasts = await call.quick(log.look, body.after)
            left_s = ends_s - clock.monotonic_s()
            if lasts or left_s <= 0 or (not await signal.wait(min(left_s, log.poll_s)) and not log.is_shared):
                return json(lasts)
    finally:
        log.watchers.remove(watcher)


@LOG.add(
    "GET", _TIMELINE + "/records", "read", needs="read", gives={200: bytes},
    parameters=(
        _lsn("after", "Records behind this LSN."),
        Parameter("bytes_max", "Of all records; the first is returned however large it is.", "integer",
                  bounds=(1, READ_BYTES_MAX)),
    ),
)  # fmt: skip
async def read(call: LogCall) -> Response:
    """Read records behind an LSN: a MessagePack list of bytes, each as docs/format/fleet-log.md describes."""
    log, timeline, after = call.site.require_log(), call.timeline, call.lsn("after")
    bytes_max = call.integer("bytes_max", default=READ_BYTES_DEFAULT, low=1, high=READ_BYTES_MAX)
    bodies = await call.quick(log.read_bodies, timeline, after, bytes_max=bytes_max)
    return Response(encode_bodies(bodies), media_type="application/octet-stream")


@LOG.add("GET", _TIMELINE + "/bounds", "bounds", needs="read", gives={200: BoundsBody})
async def bounds(call: LogCall) -> Response:
    """Get the first and last LSN of a timeline."""
    limits = await call.quick(call.site.require_log().bounds, call.timeline)
    return json(BoundsBody(limits.first, limits.last))


@LOG.add(
    "PUT", _TIMELINE, "create", needs="write", gives={204: None},
    parameters=(_lsn("after", "The LSN after which the timeline begins."),),
)  # fmt: skip
async def create(call: LogCall) -> Response:
    """Begin a timeline."""
    await call.quick(call.site.require_log().create, call.timeline, after=call.lsn("after"))
    return empty()


@LOG.add(
    "POST", _TIMELINE + "/prune", "prune", needs="write", gives={204: None},
    parameters=(_lsn("through", "The last LSN to forget."),),
)  # fmt: skip
async def prune(call: LogCall) -> Response:
    """Forget the records up to an LSN."""
    await call.quick(call.site.require_log().prune, call.timeline, call.lsn("through"))
    return empty()


@LOG.add("POST", _TIMELINE + "/seal", "seal", needs="write", gives={200: SealedBody})
async def seal(call: LogCall) -> Response:
    """End a timeline: it takes no rows any more."""
    return json(SealedBody(await call.quick(call.site.require_log().seal, call.timeline)))


@LOG.add("DELETE", _TIMELINE, "drop", needs="write", gives={204: None})
async def drop(call: LogCall) -> Response:
    """Delete a timeline with all its records."""
    await call.quick(call.site.require_log().drop, call.timeline)
    return empty()


@SERVICE.add("GET", "/healthcheck", "health", needs=None, gives={200: dict[str, str]})
async def health(call: LogCall) -> Response:
    """Check that the service answers, and whether it owns the log."""
    return json({"status": "standby" if call.site.log is None else "ok", "version": lakebed.__version__})


@SERVICE.add("GET", "/metrics", "metrics", needs=None, gives={200: str})
async def metrics(call: LogCall) -> Response:
    """Get counters and latencies in Prometheus format."""
    return Response(render(with_names=False), media_type="text/plain; version=0.0.4; charset=utf-8")


@SERVICE.add("GET", "/openapi.json", "openapi", needs=None, gives={200: dict[str, Any]})
async def openapi(call: LogCall) -> Response:
    """Get the OpenAPI description."""
    return json(description())


ROUTES: Final = {API: LOG, "": SERVICE}


def description() -> dict[str, Any]:
    """The OpenAPI description."""
    name = "[A-Za-z0-9][A-Za-z0-9_.-]{0,127}"
    parts = {"tenant": PathParameter("A tenant.", name), "timeline": PathParameter("A timeline's id.", name)}
    return describe(Service("lakebed fleet log", lakebed.__version__, "The embedded log of a fleet.", parts), ROUTES)


def application(site: LogSite) -> Gate[TokenCaller, LogCall]:
    """The ASGI application of a site."""
    return build(site, ROUTES)
