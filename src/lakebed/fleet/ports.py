"""What the parts of a fleet ask each other: the messages, and one protocol for each part.

HTTP and the simulation implement the protocols. Every call is synchronous. It may raise `Unavailable` (it had no
effect), `OutcomeUnknown` (its reply was lost: repeat the call with the same arguments to get the same answer), and the
errors that its docstring names.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Protocol

import msgspec
import pyarrow as pa

from lakebed.fleet.model import (
    MAIN,
    AttachmentMode,
    Manifest,
    ManifestRef,
    Natural,
    NodeRecord,
    Policy,
    Progress,
    TenantRecord,
    Transaction,
)


class Message(msgspec.Struct, frozen=True, omit_defaults=True):
    """A struct that is sent. Unknown fields are ignored, so parts of two versions understand each other."""


# ---- control plane to node


class Location(Message, frozen=True):
    """What a node must do with a tenant. The newest generation wins; an older one is refused (`stale_generation`)."""

    tenant: str
    generation: Natural
    mode: AttachmentMode | None
    """None: detach it. The node stops uploads, acknowledges its open transaction, and forgets the tenant."""
    txn: Natural | None = None
    """Its open transaction, which began in the step that attached it; None for `STALE`, `READER` and detach."""
    base: Natural = 0
    manifest: ManifestRef | None = None
    """The manifest of `base`; None: the tenant has never committed."""
    policy: Policy = Policy()
    created_ms: Natural = 0
    """When the tenant was created, Unix ms, UTC: the time of its first timeline."""
    main: str = MAIN
    """Id of the first timeline, for a tenant without a manifest."""


class Held(Message, frozen=True):
    """A tenant that a node has, as the node knows it."""

    tenant: str
    generation: Natural
    mode: AttachmentMode
    base: Natural = 0
    """The transaction whose manifest it reads from."""
    txn: Natural | None = None
    """Its open transaction; None: it has none, or it is broken."""
    is_broken: bool = False
    """A commit was rejected: it waits for a new attachment."""
    is_retired: bool = False
    """It has acknowledged everything that it began before this generation. A node of an older lakebed omits this."""
    policy: Policy | None = None
    """The settings that it received. A node of an older lakebed omits them."""


# ---- node to control plane


class TenantLoad(Message, frozen=True):
    """One tenant on a node, in a heartbeat. Only the tenants of `Heartbeat.loads` are sent."""

    tenant: str
    generation: Natural
    lag_rows: Natural
    """Rows in the log that are not ingested, over all timelines."""
    txn: Natural | None = None
    is_broken: bool = False


class Heartbeat(Message, frozen=True):
    """Sent every half second. Cost: one request, no access to the ledger."""

    node: str
    incarnation: str
    tenant_count: Natural
    unflushed_bytes: Natural
    loads: tuple[TenantLoad, ...] = ()
    """Tenants in relocation, lagging, or broken; at most some hundreds."""


class HeartbeatReply(Message, frozen=True):
    """What the control plane tells a node with the answer to a heartbeat."""

    is_known: bool
    """False: register again. The control plane was restarted, or it considered the node gone."""
    report: tuple[str, ...] = ()
    """Tenants in relocation: the next heartbeats must include their loads."""
    pause: tuple[str, ...] = ()
    """Tenants whose ingestion pauses: sources of relocations."""
    now_ms: int = 0
    """The control plane's Unix time in milliseconds; of several control planes, the earliest."""


class CommitRequest(Message, frozen=True):
    """Ask that a transaction becomes the tenant's state. Its objects are durable before it is sent."""

    tenant: str
    txn: Natural
    node: str
    generation: Natural
    manifest: ManifestRef
    timelines: dict[str, Progress]
    names: dict[str, str]
    """Ids of the timelines in the manifest, by name."""
    has_deadlist: bool = False
    begin: bool = True
    """Begin the next transaction in the same write."""


class CommitReply(Message, frozen=True):
    """The answer to one `CommitRequest`."""

    verdict: str
    """``granted``, ``rejected``, or ``wait`` (source of a relocation: ask again later, keep serving)."""
    txn: int | None = None
    """Granted, with `begin`: the transaction that began."""
    generation: int | None = None
    """Granted: the attachment's generation."""
    reason: str = ""
    """Rejected: one phrase."""


class Resumed(Message, frozen=True):
    """An open transaction that a node found in its local state and continues."""

    tenant: str
    generation: Natural
    txn: Natural


class NodeReport(Message, frozen=True):
    """A node after the start of its process."""

    node: str
    incarnation: str
    local_id: str
    """Id of the local state, which the process has locked. A new state, after a loss, has a new id."""
    resumed: tuple[Resumed, ...] = ()


class AckRequest(Message, frozen=True):
    """States that a node has stopped all writes of a rejected transaction, and that its last put has settled."""

    tenant: str
    txn: Natural
    node: str
    generation: Natural


class AckReply(Message, frozen=True):
    """The answer to one `AckRequest`."""

    state: str
    """The transaction's state now."""
    is_accepted: bool = True
    reason: str = ""


class ControlPort(Protocol):
    """The control plane, as nodes call it (``/upcall/v1``)."""

    def register(self, node: NodeRecord) -> None:
        """Register a node with a new incarnation. Raises `Conflict` (``node_decommissioned``)."""

    def heartbeat(self, heartbeat: Heartbeat) -> HeartbeatReply:
        """Report that a node is alive."""

    def attached(self, report: NodeReport) -> list[Location]:
        """Return what a node has. A node asks after each start of its process.

        A transaction that the node resumes and that may still be granted continues: its location names it. An
        attachment that may commit and whose transaction does not continue gets a new one. An open transaction that is
        not resumed is rejected. It is acknowledged in the same write if it began with the local state
        `NodeReport.local_id`: the exclusive lock on that state shows that no older process of the node writes any more.
        """

    def commit(self, requests: Sequence[CommitRequest]) -> list[CommitReply]:
        """Decide a batch of requests. Tenants are independent; answers are in the order of the requests."""

    def ack(self, requests: Sequence[AckRequest]) -> list[AckReply]:
        """Acknowledge rejections; a batch as in `commit`."""


# ---- clients and operators to node


class TimelineChange(Message, frozen=True):
    """A change of the set of timelines. The commit of its transaction acknowledges it. Idempotent by `id`."""

    kind: str
    """``create``, ``branch``, ``pin``, ``delete``, ``detach``, ``restore``."""
    name: str
    """Name of the timeline to create, delete, detach or restore."""
    id: str = ""
    """Id of the timeline: the caller mints that of a new one, and gives the existing one of a timeline to delete or
    detach. So the request can be repeated.
    """
    parent: str = ""
    """``branch``, ``pin``, ``restore``: the timeline to branch, as a name, an id or ``@<id>``.

    A restore branches `parent` at `lsn` and gives the branch the name `name`. The timeline that had this name is
    renamed to `kept_as`.
    """
    lsn: Natural | None = None
    """``branch``, ``pin``, ``restore``: the LSN at which to branch; None: the parent's newest committed LSN."""
    kept_as: str = ""
    """``restore``: the new name of the timeline that had the name `name`."""
    lifetime_ms: Natural | None = None
    """``pin``: the pin expires after this time, which the node measures; None: never."""


class TimelineInfo(Message, frozen=True):
    """A timeline on a node."""

    id: str
    name: str
    lsn: int
    """The newest ingested LSN."""
    committed_lsn: int
    cutoff: int
    parent: str | None = None
    branch_lsn: int = 0
    is_read_only: bool = False
    expires_ms: int | None = None
    created_ms: int = 0
    size_bytes: int = 0


class Found(Message, frozen=True):
    """The answer to `NodePort.get`."""

    value: bytes | None
    lsn: int
    """The LSN at which the value was read."""


class FoundMany(Message, frozen=True):
    """The answer to `NodePort.get_many`."""

    values: tuple[bytes | None, ...]
    """Values in the order of the requested keys."""
    lsn: int
    """The LSN at which the values were read."""


class NodePort(Protocol):
    """A node, as the control plane, clients and operators call it.

    `timeline` is a name, an id, or ``@<id>``, which is never a name. Reads raise `Unavailable`
    (``lsn_not_reached``: not ingested in time; ``not_attached``: ask the control plane where the tenant is),
    `InvalidRequest` (``below_cutoff``, with ``cutoff=``), `NotFound` (``timeline_not_found``).
    """

    def put_location(self, location: Location) -> None:
        """Attach, change the mode of, or detach a tenant. Return when the node has the location in memory.

        A location that the node already has is a no-op. With `READER`, a newer `Location.base` is the next manifest to
        follow. Raises `Conflict` (``stale_generation``).
        """

    def locations(self) -> list[Held]:
        """Return every tenant that the node has.

        The control plane compares them with the ledger, and sends what differs. It asks when it first hears a node, and
        every half minute. Cost: 1 request, from memory.
        """

    def timelines(self, tenant: str) -> list[TimelineInfo]:
        """Return the timelines of a tenant on this node, including what is not committed yet."""

    def change(self, tenant: str, change: TimelineChange) -> TimelineInfo:
        """Make a change and commit it. Return when the commit is granted.

        Raises `AlreadyExists` (``timeline_exists``), `NotFound`, `InvalidRequest` (``below_cutoff``,
        ``lsn_not_committed``, ``timeline_in_use``, ``read_only``), `Unavailable`.
        """

    def get(self, tenant: str, timeline: str, key: bytes, *, lsn: int | None = None, at_least: int = 0) -> Found:
        """Return the value of a key at an LSN; None: at the newest ingested LSN, once that has reached `at_least`."""

    def get_many(
        self, tenant: str, timeline: str, keys: Sequence[bytes], *, lsn: int | None = None, at_least: int = 0
    ) -> FoundMany:
        """Return the values of many keys at one LSN, in the order of the keys. Otherwise as `get`."""

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
        """Return keys and values of ``[start, end)`` at one LSN, keys ascending (`lakebed.key_value.port.PAIR_SCHEMA`).

        There is at least one batch, which may be empty. The metadata of its schema has ``lsn``, as digits: a client
        continues at this LSN on another node if this node is lost during the scan.
        """

    def checkpoint(self, tenant: str) -> int:
        """Flush and commit what is ingested. Return the id of the committed transaction."""

    def compact(self, tenant: str, timeline: str) -> None:
        """Merge all files of a timeline into one run, which the next commit commits."""

    def lag(self, tenant: str) -> dict[str, int]:
        """Return the number of rows in the log that are not ingested, by timeline id."""


# ---- clients and operators to control plane


class Route(Message, frozen=True):
    """Where clients find a tenant."""

    tenant: str
    node: str | None
    """The preferred node; None: the tenant is attached nowhere now."""
    url: str | None
    generation: int
    names: dict[str, str]
    """Ids of the committed timelines, by name."""
    sealed: tuple[str, ...] = ()
    """Ids of the timelines that take no rows, because a restore has replaced them."""
    lag_rows: int = 0
    """Lag of a relocation's target, or of a node that cannot keep up. Clients slow down their appends."""
    committed: dict[str, int] = {}
    """A committed LSN of each timeline, by id. It may be older than the last one; new rows always get larger LSNs."""


class NodeStatus(Message, frozen=True):
    """A node, as `lakebed fleet status` shows it."""

    node: str
    url: str
    state: str
    """``alive``, ``silent``, ``draining``, ``decommissioned``."""
    tenant_count: int
    silent_ms: int
    unflushed_bytes: int = 0


class Event(Message, frozen=True):
    """Something that happened and that operators may ask for: a failover, relocation, rejection or decommission."""

    at_ms: int
    kind: str
    message: str
    tenant: str = ""
    node: str = ""
    took_ms: int = 0


class PlacedEvent(Message, frozen=True):
    """An event as it is sent."""

    position: str
    event: Event


class TenantRequest(Message, frozen=True):
    """A tenant to be created, as it is sent."""

    tenant: str
    policy: Policy | None = None


class TransactionList(Message, frozen=True):
    """The transactions of a tenant."""

    unfinished: tuple[Transaction, ...]
    finished: tuple[Transaction, ...]
    """Finished transactions, newest first, at most a thousand."""
    to_collect: tuple[int, ...]


class FleetAddress(Message, frozen=True):
    """Where the parts of a fleet are, for nodes and clients that know only its control plane. No secrets."""

    storage: str
    """URL of the fleet's storage."""
    log: str
    """URL of the log, as `lakebed.fleet.log.open.open_log` takes it, without credentials."""
    ledger: str
    """``kv``: the database in the storage; ``postgresql``."""
    folder: int = 0
    """The file system's number of the folder, for a storage in a folder; 0: unknown."""


class OperatorPort(Protocol):
    """The control plane, as clients and operators call it (``/v1`` and ``/control/v1``)."""

    def address(self) -> FleetAddress:
        """Return the URLs of storage and log (``GET /v1/fleet``)."""

    def create_tenant(self, tenant: str, policy: Policy | None = None) -> TenantRecord:
        """Create a tenant and attach it; `policy` None: the defaults.

        Raises `AlreadyExists` (``tenant_exists``), `InvalidRequest`.
        """

    def delete_tenant(self, tenant: str) -> None:
        """Detach a tenant and delete all its objects and logs. After the return, no client can write to it.

        Raises `NotFound` (``tenant_not_found``).
        """

    def tenants(self) -> list[TenantRecord]:
        """Return all tenants, by name."""

    def tenant(self, tenant: str) -> TenantRecord:
        """Return one tenant. Raises `NotFound` (``tenant_not_found``)."""

    def set_policy(self, tenant: str, policy: Policy) -> TenantRecord:
        """Replace a tenant's settings."""

    def route(self, tenant: str) -> Route:
        """Return where a tenant is. Once a route shows that a name has moved, no client can write to its old timeline.

        Raises `NotFound` (``tenant_not_found``), also for a tenant that is being deleted.
        """

    def change_timeline(self, tenant: str, change: TimelineChange) -> TimelineInfo:
        """Hand a change to the tenant's preferred node. Raises as `NodePort.change`."""

    def manifest(self, tenant: str) -> Manifest:
        """Return the last committed manifest, read from the store."""

    def transactions(self, tenant: str) -> TransactionList:
        """Return the transactions of a tenant."""

    def nodes(self) -> list[NodeStatus]:
        """Return all nodes."""

    def migrate(self, tenant: str, node: str) -> None:
        """Begin to move a tenant to a node, without downtime. Return at once; `tenant` shows the relocation."""

    def attach_reader(self, tenant: str, node: str) -> None:
        """Attach a tenant to a further node, read-only."""

    def drain(self, node: str, *, undo: bool = False) -> None:
        """Move all tenants off a node, one by one. With `undo`, allow tenants on it again, and move them back."""

    def decommission(self, node: str) -> None:
        """Acknowledge the transactions of a node that will never write again, because its credentials are revoked."""

    def force_ack(self, tenant: str, txn: int) -> AckReply:
        """Acknowledge one rejected transaction for its node. The node must not be able to write any more."""

    def events(self, *, after: str = "", limit: int = 1_000) -> list[tuple[str, Event]]:
        """Return the events after a position, with their positions, oldest first."""
