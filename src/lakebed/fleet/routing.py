"""Where a tenant is, as a client knows it: the route, calls to its node, and retries.

Owns: `Router`, which calls the node that the control plane names, retries a call that fails, and follows relocations
and failovers. Invariants: a call ends with its result, with an error that a retry cannot resolve, or, after
`ClientOptions.retry_s`, with one `Unavailable` (``tenant_unavailable``) that has the problem of the last attempt. While
the control plane does not answer, the last route is used.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Final, TypeVar

from lakebed.backoff import Backoff, Pauses
from lakebed.errors import Closed, LakebedError, NotFound, OutcomeUnknown, Unavailable
from lakebed.fleet.layout import ID_MARK
from lakebed.fleet.model import MAIN
from lakebed.fleet.ports import NodePort, OperatorPort, Route, TimelineInfo
from lakebed.runtime import Environment
from lakebed.texts import list_some

T = TypeVar("T")


_ROUTE_S_MAX: Final = 30.0
"""How long the last route is used without a new request, while no control plane answers. A request delays a call."""


@dataclass(frozen=True, slots=True)
class ClientOptions:
    """Settings of a client. All times are in seconds."""

    retry_s: float = 30.0
    """How long a call is retried before it fails. A failover takes seconds: with less than 10, callers see some. The
    last attempt begins before this time is over, so a call ends at most one attempt later (for a log that is away, the
    time for which `lakebed.fleet.connect` retries the log, and one request)."""
    change_retry_s: float = 120.0
    """How long a change of the set of timelines is retried: each waits for a commit, a detach for a compaction."""
    pause_s: float = 0.02
    """Before the first retry; doubled before each further one."""
    pause_s_max: float = 0.5
    route_s: float = 1.0
    """How long a route is used before it is asked for again. Smaller: more requests to the control plane."""
    lag_rows_free: int = 100_000
    """Appends slow down when the node lags by more rows than this."""
    lag_rows_per_s: int = 50_000
    """Each append waits as long as the rows above `lag_rows_free` take at this speed, at most `slow_s_max`."""
    slow_s_max: float = 1.0


DEFAULTS: Final = ClientOptions()


class Attempts(Backoff):
    """The attempts of one call of a client.

    Args:
        what: the call, as the error names it: ``read the tenant orders``.
        retry_s: how long it is retried.
    """

    __slots__ = ("_tenant", "_wait", "_what")

    def __init__(
        self, what: str, *, tenant: str, options: ClientOptions, environment: Environment, retry_s: float
    ) -> None:
        super().__init__(environment, Pauses(options.pause_s, options.pause_s_max, jitter=0.5), retry_s=retry_s)
        self._what = what
        self._wait = f"{retry_s:g} s"
        self._tenant = tenant

    def failure(self) -> LakebedError:
        """Return the error of the call, after its last attempt."""
        waited, last = self._wait, self.reason.message.rstrip(".")
        facts = {"tenant": self._tenant, "last_kind": self.reason.kind}
        if self.unclear is not None:
            return OutcomeUnknown(
                f"Cannot {self._what}: no reply within {waited}, so it may have happened or not. The last attempt: "
                f"{last}. Read before you repeat it.",
                kind="tenant_unavailable",
                **facts,
            )
        return Unavailable(
            f"Cannot {self._what}: no answer within {waited}. The last attempt: {last}. Look at lakebed fleet status.",
            kind="tenant_unavailable",
            **facts,
        )


class Router:
    """Calls the node of one tenant. Thread-safe.

    Args:
        nodes: the port of the node at a URL.
    """

    def __init__(
        self,
        tenant: str,
        *,
        control: OperatorPort,
        nodes: Callable[[str], NodePort],
        options: ClientOptions,
        environment: Environment,
    ) -> None:
        self.tenant = tenant
        self.control = control
        self.options = options
        self.environment = environment
        self._nodes = nodes
        self._lock = environment.runtime.lock()
        self._route: Route | None = None
        self._asked_s = 0.0
        self._wait_s = options.route_s

    def attempts(self, what: str, *, retry_s: float | None = None) -> Attempts:
        """Begin a call that may be retried, for `ClientOptions.retry_s` unless another time is given."""
        return Attempts(
            what,
            tenant=self.tenant,
            options=self.options,
            environment=self.environment,
            retry_s=self.options.retry_s if retry_s is None else retry_s,
        )

    def route(self, *, fresh: bool = False) -> Route:
        """Return where the tenant is. Cost: 1 request to the control plane, at most once in `ClientOptions.route_s`.

        Args:
            fresh: ask the control plane in any case.

        Raises:
            NotFound: ``tenant_not_found``.
            Unavailable: the control plane does not answer, and never did.
        """
        now_s = self.environment.clock.monotonic_s()
        with self._lock:
            last_route = self._route
            if last_route is not None and not fresh and now_s - self._asked_s < self._wait_s:
                return last_route
            self._asked_s = now_s  # only one caller asks, even if the control plane takes long to fail
        try:
            return self._load_route()
        except (Unavailable, OutcomeUnknown):
            if last_route is None:
                raise
            with self._lock:  # count from now: the request has taken its time already
                self._asked_s = self.environment.clock.monotonic_s()
                self._wait_s = min(2 * self._wait_s, _ROUTE_S_MAX)
            return last_route

    def ask_route(self, attempts: Attempts) -> Route:
        """Ask the control plane for the route, because the known one is too old. Retry within `attempts`."""
        for _ in attempts:
            try:
                return self._load_route()
            except (Unavailable, OutcomeUnknown) as problem:
                attempts.note(problem)
        raise attempts.failure() from attempts.reason

    def _load_route(self) -> Route:
        try:
            route = self.control.route(self.tenant)
        except NotFound:
            with self._lock:
                self._route = None
            raise
        with self._lock:
            self._route = route
            self._wait_s = self.options.route_s
        return route

    def timeline_id(self, name: str, *, attempts: Attempts, fresh: bool = False) -> str:
        """Return the id of a committed timeline, by its name, its id, or ``@<id>``.

        Args:
            attempts: of the call that needs it. A client that has no route yet repeats the question within them.

        Raises:
            NotFound: ``timeline_not_found``, with the existing names. The control plane has just answered so.
            Unavailable: ``tenant_unavailable``: the control plane does not answer, and either never did or did not have
                the name in its last answer.
        """
        id = _find_id(self._route_within(attempts, fresh=fresh), name)
        return self.current_id(name, attempts=attempts) if id is None else id

    def current_id(self, name: str, *, attempts: Attempts) -> str:
        """As `timeline_id`, but always ask the control plane: for a change, or before a timeline is reported missing.

        Raises as `timeline_id`, and ``tenant_unavailable`` whenever the control plane does not answer.
        """
        route = self.ask_route(attempts)
        timeline_id = _find_id(route, name)
        if timeline_id is not None:
            return timeline_id
        names = list_some(sorted(_names_of(route)))
        raise NotFound(
            f"The tenant {self.tenant} has no timeline {name}. It has {names}.",
            kind="timeline_not_found",
            tenant=self.tenant,
            timeline=name,
        )

    def find_committed_lsn(self, id: str) -> int:
        """Return a committed LSN of a timeline, from the last route; a larger one may be committed.

        Cost: no request.
        """
        with self._lock:
            return 0 if self._route is None else self._route.committed.get(id, 0)

    def check_behind(self, id: str, problem: NotFound, *, attempts: Attempts) -> Unavailable:
        """Return the reason to ask again for a timeline that the control plane has and a node does not have yet.

        The target of a relocation whose source is lost has the tenant as of its attachment, until the control plane
        sends it a new location.

        Raises `problem` if it is about something else, or if the control plane does not have the timeline either.
        """
        if problem.kind != "timeline_not_found" or id not in _names_of(self.ask_route(attempts)).values():
            raise problem
        return Unavailable(f"The node of the tenant {self.tenant} does not know yet what is committed.", kind="behind")

    def has_all(self, timelines: Iterable[TimelineInfo], *, attempts: Attempts) -> bool:
        """Whether a node lists everything that is committed. If not, note the reason in `attempts`. Cost: 1 request."""
        ids = {timeline.id for timeline in timelines}
        if ids.issuperset(_names_of(self._route_within(attempts, fresh=True)).values()):
            return True
        attempts.note(Unavailable(f"The node of the tenant {self.tenant} lacks what is committed.", kind="behind"))
        return False

    def _route_within(self, attempts: Attempts, *, fresh: bool) -> Route:
        for _ in attempts:
            try:
                return self.route(fresh=fresh)
            except (Unavailable, OutcomeUnknown) as problem:
                attempts.note(problem)
        raise attempts.failure() from attempts.reason

    def ask(self, attempts: Attempts, call: Callable[[NodePort], T]) -> T:
        """Call the tenant's node until it answers.

        Args:
            attempts: how long, and the name of the call in the error.
            call: a read, or a change that may be repeated.

        Raises:
            Unavailable: ``tenant_unavailable``.
            LakebedError: the error that the node answers, unless a retry may resolve it.
        """
        is_fresh = False
        for _ in attempts:
            try:
                return self.once(call, fresh=is_fresh)
            except (Unavailable, OutcomeUnknown) as problem:
                attempts.note(problem)
                is_fresh = True
        raise attempts.failure() from attempts.reason

    def once(self, call: Callable[[NodePort], T], *, fresh: bool = False) -> T:
        """Call the tenant's node once. Raises what it raises; `Unavailable` if the tenant is attached nowhere."""
        route = self.route(fresh=fresh)
        if route.url is None:
            raise Unavailable(
                f"The tenant {self.tenant} is attached to no node now: it waits for one.", kind="not_attached"
            )
        try:
            return call(self._nodes(route.url))
        except Closed as problem:
            raise Unavailable(f"The node {route.node} ended: {problem.message}", kind="not_attached") from problem

    def stream(self, attempts: Attempts, start: Callable[[NodePort], Iterator[T]]) -> Iterator[T]:
        """Iterate over the items that the tenant's node returns; up to the first item, as `ask`."""
        is_fresh, has_begun = False, False
        for _ in attempts:
            try:
                for item in self.once(start, fresh=is_fresh):
                    has_begun = True
                    yield item
                return
            except (Unavailable, OutcomeUnknown) as problem:
                if has_begun:
                    raise
                attempts.note(problem)
                is_fresh = True
        raise attempts.failure() from attempts.reason

    def slow_down(self) -> None:
        """Wait before an append when the tenant's node cannot keep up: back-pressure. Needs a route."""
        excess_rows = self.route().lag_rows - self.options.lag_rows_free
        if excess_rows > 0:
            self.environment.clock.sleep(min(excess_rows / self.options.lag_rows_per_s, self.options.slow_s_max))


def _names_of(route: Route) -> Mapping[str, str]:
    """Ids of timelines, by name."""
    return route.names or {MAIN: MAIN}


def _find_id(route: Route, name: str) -> str | None:
    """Return the id of a timeline by its name, its id, or ``@<id>``; None: the route has no such timeline."""
    names = _names_of(route)
    if name in names:
        return names[name]
    id = name.removeprefix(ID_MARK)
    return id if id in names.values() else None
