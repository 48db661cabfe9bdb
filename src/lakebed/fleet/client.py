"""`Tenant`: a small database on a fleet, for those who use it: timelines, versions, pins, restore.

Owns: the handle that `lake.tenant(name)` returns. It is a `lakebed.reclaim.versioned.Versioned` store: a version is a
committed transaction that changed the timeline ``main`` (`lakebed.fleet.state`). Reading and writing rows is in
`lakebed.fleet.timeline`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Final, TypeVar

from lakebed.errors import AlreadyExists, InvalidRequest, NotFound, OutcomeUnknown, Unavailable
from lakebed.fleet.layout import by_id, check_name
from lakebed.fleet.log.port import Log
from lakebed.fleet.model import MAIN, Policy, TenantRecord
from lakebed.fleet.ports import NodePort, OperatorPort, TimelineChange, TimelineInfo
from lakebed.fleet.reclaim import plan_collection
from lakebed.fleet.routing import DEFAULTS, ClientOptions, Router
from lakebed.fleet.state import Position, TenantState
from lakebed.fleet.timeline import Timeline, TimelineView, change_timeline, check_timeline, new_id
from lakebed.objects.port import ObjectStore
from lakebed.reclaim.model import CollectionPlan, Explanation, Listing, Pin, Version
from lakebed.runtime import Environment

T = TypeVar("T")

_READS_MAX: Final = 20
"""Of record and manifest, until both are of one transaction."""


class Tenant:
    """A tenant of a fleet. Thread-safe.

    Args:
        name: the tenant's.
        control: the fleet's control plane.
        nodes: the port of the node at a URL.
        log: where writes go.
        storage: the fleet's, for `plan_collection`.

    Attributes:
        name: the tenant's name.
        main: its timeline ``main``.
    """

    def __init__(
        self,
        name: str,
        *,
        control: OperatorPort,
        nodes: Callable[[str], NodePort],
        log: Log,
        environment: Environment,
        storage: ObjectStore | None = None,
        options: ClientOptions = DEFAULTS,
    ) -> None:
        self.name = check_name(name, what="tenant")
        self._log = log
        self._storage = storage
        self._environment = environment
        self._router = Router(name, control=control, nodes=nodes, options=options, environment=environment)
        self.main = Timeline(self._router, log, MAIN)

    def __repr__(self) -> str:
        return f"Tenant({self.name!r})"

    # ---- the tenant itself

    def create(self, *, policy: Policy | None = None, if_not_exists: bool = False) -> TenantRecord:
        """Create the tenant and attach it to a node.

        Args:
            policy: its settings; None: the defaults.
            if_not_exists: return the record of an existing one.

        Raises:
            AlreadyExists: ``tenant_exists``.
            Unavailable: ``tenant_unavailable``.
        """
        attempts = self._router.attempts(f"create the tenant {self.name}")
        for _ in attempts:
            try:
                return self._router.control.create_tenant(self.name, policy)
            except AlreadyExists:
                if attempts.unclear is not None or if_not_exists:
                    return self.record()
                raise
            except (Unavailable, OutcomeUnknown) as problem:
                attempts.note(problem)
        raise attempts.failure() from attempts.reason

    def drop(self) -> None:
        """Delete the tenant with everything it has. Raises `NotFound` (``tenant_not_found``)."""
        attempts = self._router.attempts(f"drop the tenant {self.name}")
        for _ in attempts:
            try:
                return self._router.control.delete_tenant(self.name)
            except NotFound:
                if attempts.unclear is not None:
                    return None
                raise
            except (Unavailable, OutcomeUnknown) as problem:
                attempts.note(problem)
        raise attempts.failure() from attempts.reason

    def record(self) -> TenantRecord:
        """What the control plane knows of the tenant. Raises `NotFound`."""
        return self._from_control(lambda control: control.tenant(self.name))

    def set_policy(self, policy: Policy) -> TenantRecord:
        """Replace the tenant's settings. Raises `NotFound`."""
        return self._from_control(lambda control: control.set_policy(self.name, policy))

    # ---- timelines

    def timeline(self, name: str = MAIN) -> Timeline:
        """A timeline by its name. Raises `NotFound` (``timeline_not_found``). Cost: at most 1 request."""
        attempts = self._router.attempts(f"find the timeline {name} of the tenant {self.name}")
        self._router.timeline_id(name, attempts=attempts)
        return Timeline(self._router, self._log, name)

    def timelines(self) -> list[TimelineInfo]:
        """All timelines, by name. Cost: 2 requests."""
        attempts = self._router.attempts(f"read the tenant {self.name}")
        for _ in attempts:
            timelines = self._router.ask(attempts, lambda node: node.timelines(self.name))
            if self._router.has_all(timelines, attempts=attempts):
                return Listing(sorted(timelines, key=lambda timeline: timeline.name))
        raise attempts.failure() from attempts.reason

    def create_timeline(self, name: str) -> Timeline:
        """Create an empty timeline. Raises `AlreadyExists` (``timeline_exists``). Cost: 1 commit."""
        change = TimelineChange(kind="create", name=check_timeline(name), id=new_id(self._router))
        change_timeline(self._router, change)
        return self.timeline(name)

    # ---- versions

    def versions(self) -> Iterator[Version]:
        """Versions of ``main`` that can be read, oldest first. Cost: 3 requests."""
        return iter(self.state().versions())

    def at(self, version: str) -> TimelineView:
        """A version to read.

        Args:
            version: its number, ``<timeline>@<LSN>``, or the name of a pin or branch.

        Raises:
            NotFound: ``version_not_found``.
            InvalidRequest: ``below_cutoff``.
        """
        position = self.state().find(str(version))
        return TimelineView(self._router, by_id(position.timeline), lsn=position.lsn)

    def pin(self, name: str, *, version: str | None = None, lifetime_ms: int | None = None) -> Pin:
        """Keep a version of ``main`` readable under a name; None: everything that was written.

        Raises:
            AlreadyExists: ``timeline_exists``: pins, branches and timelines share their names.
            NotFound: ``version_not_found``.
            InvalidRequest: a name that reads as a version; ``below_cutoff``.

        Cost: 1 commit, no layer.
        """
        check_timeline(name)
        timeline, lsn = self._source(version)
        timeline.pin(name, lsn=lsn, lifetime_ms=lifetime_ms)
        return self._require_pin(name)

    def pins(self) -> list[Pin]:
        """Pins, branches and further timelines, by name; then the holds of read-only attachments. Cost: 3 requests."""
        return Listing(self.state().pins())

    def unpin(self, name: str) -> None:
        """Remove a pin. Raises `NotFound` (``pin_not_found``), also for a branch, which `Timeline.drop` deletes."""
        pin = self.state().pin(name)
        if pin is None or pin.kind != "pin":
            reason = f"{name} is a {pin.kind}" if pin is not None else f"There is no {name}"
            raise NotFound(f"The tenant {self.name} has no pin {name}. {reason}.", kind="pin_not_found", pin=name)
        Timeline(self._router, self._log, name).drop()

    def create_branch(self, name: str, *, version: str | None = None) -> Timeline:
        """Branch ``main`` at a version. As `pin`, but the branch is written to. Cost: 1 commit, no layer."""
        check_timeline(name)
        timeline, lsn = self._source(version)
        return timeline.branch(name, lsn=lsn)

    def restore(self, version: str) -> Version:
        """Make an older version the newest one.

        ``main`` becomes a branch at that version. What ``main`` was before stays readable as a timeline
        ``main-until-<version>``, by the number of the version that the restore makes; by a later number if that name is
        in use, or another commit is in between.

        Raises:
            NotFound: ``version_not_found``.

        Cost: 1 commit, no layer.
        """
        state = self.state()
        position = state.find(str(version))
        source = Timeline(self._router, self._log, by_id(position.timeline))
        source.change("restore", name=MAIN, lsn=position.lsn, kept_as=state.choose_name_of_former_main())
        return self.state().versions()[-1]

    def plan_collection(self) -> CollectionPlan:
        """Plan what the control plane's collector deletes next. Delete nothing.

        Cost: 1 request, 1 GET a committed transaction that waits for it, 1 LIST a rejected one.
        """
        if self._storage is None:
            raise InvalidRequest(
                f"The plan for the tenant {self.name} is read from its storage: open it with lake.tenant(...).",
                kind="no_storage",
            )
        return plan_collection(self._storage, self.state())

    def why(self, path: str) -> Explanation:
        """Why an object of the tenant is there. `path` is relative to its folder. Cost: 3 requests."""
        return self.state().explain(path)

    def why_version(self, version: str) -> Explanation:
        """What keeps a version readable, and what ends that.

        Args:
            version: as in `at`.

        Returns the version's number as the path, or ``<timeline>@<LSN>``; pins and branches as pins.

        Raises:
            NotFound: ``version_not_found``.
            InvalidRequest: ``below_cutoff``.

        Cost: 3 requests.
        """
        return self.state().explain_version(str(version))

    # ---- inside

    def state(self) -> TenantState:
        """Record, manifest and transactions, as the control plane has them. Raises `NotFound`. Cost: 3 requests."""
        return self._from_control(self._read_state)

    def _read_state(self, control: OperatorPort) -> TenantState:
        for _ in range(_READS_MAX):
            record = control.tenant(self.name)
            manifest = control.manifest(self.name)
            if manifest.txn == record.committed:  # else a commit came between
                return TenantState(record, manifest, control.transactions(self.name))
        raise Unavailable(
            f"The tenant {self.name} commits faster than its state can be read: try again.", kind="tenant_is_busy"
        )

    def _source(self, version: str | None) -> tuple[Timeline, int | None]:
        """The timeline to branch, and the LSN."""
        if version is None:
            return self.main, None
        position: Position = self.state().find(str(version))
        return Timeline(self._router, self._log, by_id(position.timeline)), position.lsn

    def _require_pin(self, name: str) -> Pin:
        pin = self.state().pin(name)
        if pin is None:
            raise NotFound(f"The pin {name} was removed by another client meanwhile.", kind="pin_not_found", pin=name)
        return pin

    def _from_control(self, call: Callable[[OperatorPort], T]) -> T:
        attempts = self._router.attempts(f"ask for the tenant {self.name}")
        for _ in attempts:
            try:
                return call(self._router.control)
            except (Unavailable, OutcomeUnknown) as problem:
                attempts.note(problem)
        raise attempts.failure() from attempts.reason
