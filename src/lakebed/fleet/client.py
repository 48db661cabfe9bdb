"""`Tenant`: the client's handle of a small database on a fleet: timelines, versions, pins, restore.

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
"""Most reads of record and manifest until both belong to the same transaction."""


class Tenant:
    """A tenant of a fleet. `Lake.tenant` returns one. Thread-safe.

    Args:
        name: of the tenant.
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
        """Create the tenant, and attach it to a node.

        Args:
            policy: its settings; None: the defaults.
            if_not_exists: return the record of an existing tenant instead of raising `AlreadyExists`.

        Raises:
            AlreadyExists: kind ``tenant_exists``.
            Unavailable: kind ``tenant_unavailable``.
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
        """Return the record of the tenant in the control plane. Raises `NotFound`."""
        return self._from_control(lambda control: control.tenant(self.name))

    def set_policy(self, policy: Policy) -> TenantRecord:
        """Replace the tenant's settings. Return its record. Raises `NotFound`."""
        return self._from_control(lambda control: control.set_policy(self.name, policy))

    # ---- timelines

    def timeline(self, name: str = MAIN) -> Timeline:
        """Return a timeline by its name. Raises `NotFound` (``timeline_not_found``). Cost: at most 1 request."""
        attempts = self._router.attempts(f"find the timeline {name} of the tenant {self.name}")
        self._router.timeline_id(name, attempts=attempts)
        return Timeline(self._router, self._log, name)

    def timelines(self) -> list[TimelineInfo]:
        """Return all timelines, by name. Cost: 2 requests."""
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
        """Iterate over the readable versions of ``main``, oldest first. Cost: 3 requests."""
        return iter(self.state().versions())

    def at(self, version: str) -> TimelineView:
        """Return a version to read.

        Args:
            version: a number, ``<timeline>@<LSN>``, or the name of a pin or branch.

        Raises:
            NotFound: kind ``version_not_found``.
            InvalidRequest: kind ``below_cutoff``: the version is no longer readable.
        """
        position = self.state().find(str(version))
        return TimelineView(self._router, by_id(position.timeline), lsn=position.lsn)

    def pin(self, name: str, *, version: str | None = None, lifetime_ms: int | None = None) -> Pin:
        """Keep a version of ``main`` readable under a name.

        Args:
            name: of the pin. Pins, branches and timelines share their names.
            version: as `at`; None: everything that was written.
            lifetime_ms: milliseconds after which the pin ends; None: never.

        Raises:
            AlreadyExists: kind ``timeline_exists``: the name is taken.
            NotFound: kind ``version_not_found``.
            InvalidRequest: the name reads as a version; kind ``below_cutoff``: the version is no longer readable.

        Cost: 1 commit. No file is written.
        """
        check_timeline(name)
        timeline, lsn = self._source(version)
        timeline.pin(name, lsn=lsn, lifetime_ms=lifetime_ms)
        return self._require_pin(name)

    def pins(self) -> list[Pin]:
        """Return pins, branches and further timelines, by name, and then the holds of read-only attachments.

        Cost: 3 requests.
        """
        return Listing(self.state().pins())

    def unpin(self, name: str) -> None:
        """Delete a pin. Raises `NotFound` (``pin_not_found``), also for a branch, which `Timeline.drop` deletes."""
        pin = self.state().pin(name)
        if pin is None or pin.kind != "pin":
            reason = f"{name} is a {pin.kind}" if pin is not None else f"There is no {name}"
            raise NotFound(f"The tenant {self.name} has no pin {name}. {reason}.", kind="pin_not_found", pin=name)
        Timeline(self._router, self._log, name).drop()

    def create_branch(self, name: str, *, version: str | None = None) -> Timeline:
        """Create a branch of ``main`` at a version. Arguments and errors as `pin`, but the branch can be written to.

        Cost: 1 commit. No file is written.
        """
        check_timeline(name)
        timeline, lsn = self._source(version)
        return timeline.branch(name, lsn=lsn)

    def restore(self, version: str) -> Version:
        """Make an older version the newest one.

        ``main`` becomes a branch that begins at that version. What ``main`` was before stays readable as the timeline
        ``main-until-<version>``, where <version> is the number of the version that the restore makes. A later number is
        taken if that name is in use or another commit is in between.

        Raises:
            NotFound: kind ``version_not_found``.

        Cost: 1 commit. No file is written.
        """
        state = self.state()
        position = state.find(str(version))
        source = Timeline(self._router, self._log, by_id(position.timeline))
        source.change("restore", name=MAIN, lsn=position.lsn, kept_as=state.choose_name_of_former_main())
        return self.state().versions()[-1]

    def plan_collection(self) -> CollectionPlan:
        """Return what the control plane's collector deletes next. Delete nothing.

        Cost: 1 request, 1 GET for each committed transaction that waits for the collector, 1 LIST for each rejected
            one.
        """
        if self._storage is None:
            raise InvalidRequest(
                f"The plan for the tenant {self.name} is read from its storage: open it with lake.tenant(...).",
                kind="no_storage",
            )
        return plan_collection(self._storage, self.state())

    def why(self, path: str) -> Explanation:
        """Explain why an object of the tenant is there. `path` is relative to the tenant's folder. Cost: 3 requests."""
        return self.state().explain(path)

    def why_version(self, version: str) -> Explanation:
        """Explain what keeps a version readable, and what ends that.

        Args:
            version: as `at`.

        Returns:
            An explanation with the version's number, or ``<timeline>@<LSN>``, as its path, and with pins and branches
            as its pins.

        Raises:
            NotFound: kind ``version_not_found``.
            InvalidRequest: kind ``below_cutoff``.

        Cost: 3 requests.
        """
        return self.state().explain_version(str(version))

    # ---- inside

    def state(self) -> TenantState:
        """Return the record, the manifest and the transactions that the control plane has. Raises `NotFound`.

        Cost: 3 requests.
        """
        return self._from_control(self._read_state)

    def _read_state(self, control: OperatorPort) -> TenantState:
        for _ in range(_READS_MAX):
            record = control.tenant(self.name)
            manifest = control.manifest(self.name)
            if manifest.txn == record.committed:  # else a commit came between the two reads
                return TenantState(record, manifest, control.transactions(self.name))
        raise Unavailable(
            f"The tenant {self.name} commits faster than its state can be read: try again.", kind="tenant_is_busy"
        )

    def _source(self, version: str | None) -> tuple[Timeline, int | None]:
        """Return the timeline to branch, and the LSN at which to branch it."""
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
