"""The embedded log as an HTTP service: its part of `lakebed.http`, and its routes.

Owns: the site, the only token, and how an append waits without a thread. While this process does not own the log
(`lakebed.fleet.log.serve`), every call gets the status 503 (`log_standby`), and clients try another endpoint.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar, Final

from starlette.responses import Response
from starlette.types import Receive, Scope

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
from lakebed.fleet.log.port import READ_BYTES_DEFAULT, READ_BYTES_MAX, check_timeline, check_wait
from lakebed.fleet.log.watchers import Watcher
from lakebed.fleet.service import NAME_PATTERN, FleetCall, FleetSite, add_process_routes
from lakebed.http import errors
from lakebed.http.authentication import TokenCaller
from lakebed.http.declaration import Parameter, Routes
from lakebed.http.openapi import PathParameter
from lakebed.http.pools import LoopSignal
from lakebed.http.serving import Serving

_LSN_MAX: Final = (1 << 53) - 1
_TIMELINE: Final = "/timelines/{tenant}/{timeline}"


class LogSite(FleetSite["LogCall"]):
    """The site of the log. Arguments as `FleetSite`.

    Attributes:
        log: the log that is served; None: another process owns it.
    """

    title = "The log"
    statuses: ClassVar = {"log_forked": 409}
    """The caller knows an LSN that the log does not have: the two contradict each other, but the service works."""

    def __init__(self, serving: Serving, *, token: str | None) -> None:
        super().__init__(serving, token=token)
        self.log: KeyValueLog | None = None

    def require_log(self) -> KeyValueLog:
        """Return the log. Raises `Unavailable` (``log_standby``)."""
        if self.log is None:
            raise Unavailable(
                "This process waits to take over the log from its owner: ask the owner, or try again.",
                kind="log_standby",
            )
        return self.log

    def new_call(self, scope: Scope, receive: Receive, *, principal: TokenCaller | None, request_id: str) -> LogCall:
        """Make the object that handlers take."""
        return LogCall(self, scope, receive, request_id=request_id)

    def error_reply(self, error: BaseException, *, request_id: str, statuses: Mapping[str, int]) -> Response:
        """As `FleetSite`. A fence also ends the ownership."""
        self.note(error)
        return super().error_reply(error, request_id=request_id, statuses=statuses)

    def note(self, error: BaseException | None) -> None:
        """Note an error of the log, which may end the ownership."""
        if isinstance(error, Fenced):
            self.on_fenced()

    def health(self) -> dict[str, str]:
        """Report whether this process owns the log."""
        return {"status": "standby" if self.log is None else "ok"}


class LogCall(FleetCall[LogSite]):
    """A request to the service."""

    __slots__ = ()

    @property
    def timeline(self) -> str:
        """The log key in the path."""
        return check_timeline(f"{self.path['tenant']}/{self.path['timeline']}")

    def lsn(self, name: str) -> int:
        """Return an LSN in the query."""
        self.required(name)
        return self.integer(name, default=0, low=0, high=_LSN_MAX)


LOG: Final = Routes[LogCall]("log")


def _lsn(name: str, description: str) -> Parameter:
    return Parameter(name, description, "integer", required=True, bounds=(0, _LSN_MAX))


@LOG.add("POST", "/append", "append", needs="write", takes=bytes)
async def append(call: LogCall) -> list[AppendResult]:
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
    return [_result(item) for item in waiting]


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


@LOG.add("POST", "/wait", "wait", needs="read")
async def wait(call: LogCall, body: WaitBody) -> dict[str, int]:
    """Wait until one of some timelines ends at another LSN; those that do."""
    log = call.site.require_log()
    if len(body.after) > WAIT_TIMELINES_MAX:
        raise InvalidRequest(
            f"{len(body.after):,} timelines are too many: {WAIT_TIMELINES_MAX:,} are possible.", kind="invalid_body"
        )
    check_wait(body.after)
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
                return lasts
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


@LOG.add("GET", _TIMELINE + "/bounds", "bounds", needs="read")
async def bounds(call: LogCall) -> BoundsBody:
    """Get the first and last LSN of a timeline."""
    limits = await call.quick(call.site.require_log().bounds, call.timeline)
    return BoundsBody(limits.first, limits.last)


@LOG.add(
    "PUT", _TIMELINE, "create", needs="write", parameters=(_lsn("after", "The LSN after which the timeline begins."),)
)
async def create(call: LogCall) -> None:
    """Begin a timeline."""
    await call.quick(call.site.require_log().create, call.timeline, after=call.lsn("after"))


@LOG.add("POST", _TIMELINE + "/prune", "prune", needs="write", parameters=(_lsn("through", "The last LSN to forget."),))
async def prune(call: LogCall) -> None:
    """Forget the records up to an LSN."""
    await call.quick(call.site.require_log().prune, call.timeline, call.lsn("through"))


@LOG.add("POST", _TIMELINE + "/seal", "seal", needs="write")
async def seal(call: LogCall) -> SealedBody:
    """End a timeline: it takes no rows any more."""
    return SealedBody(await call.quick(call.site.require_log().seal, call.timeline))


@LOG.add("DELETE", _TIMELINE, "drop", needs="write")
async def drop(call: LogCall) -> None:
    """Delete a timeline with all its records."""
    await call.quick(call.site.require_log().drop, call.timeline)


ROUTES: Final = {API: LOG}

_PARTS: Final = {
    "tenant": PathParameter("A tenant.", NAME_PATTERN),
    "timeline": PathParameter("A timeline's id.", NAME_PATTERN),
}
description: Final = add_process_routes(ROUTES, "lakebed fleet log", "The embedded log of a fleet.", _PARTS)
