"""What the parts of a fleet ask each other: messages, and one protocol a part. HTTP and the simulation implement both.

Owns: the messages. Every call is synchronous, and raises `Unavailable` (it had no effect), `OutcomeUnknown` (its reply
was lost: ask again, with the same arguments; the answer is the same) or the errors that it names.
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
    """What a node is to do with a tenant. The newest generation wins; an older one is refused (`stale_generation`)."""

    tenant: str
    generation: Natural
    mode: AttachmentMode | None
    """None: detach it. The node stops uploads, acknowledges its open transaction, and forgets the tenant."""
    txn: Natural | None = None
    """Its open transaction, begun by the same step that attached it; None for `STALE`, `READER` and detach."""
    base: Natural = 0
    manifest: ManifestRef | None = None
    """Of `base`; None: the tenant has never committed."""
    policy: Policy = Policy()
    created_ms: Natural = 0
    """Of the tenant: the time of its first timeline."""
    main: str = MAIN
    """Without a manifest: the id of that timeline."""


class Held(Message, frozen=True):
    """A tenant that a node has, as the node knows it."""

    tenant: str
    generation: Natural
    mode: AttachmentMode
    base: Natural = 0
    """The transaction whose manifest it reads from."""
    txn: Natural | None = None
    """Its open transaction; None also when it is broken."""
    is_broken: bool = False
    """A commit was rejected: it waits for a new attachment."""
    is_retired: bool = False
    """It has acknowledged all that it had begun before this generation. A node of an older lakebed does not say so."""
    policy: Policy | None = None
    """The settings that it was told. A node of an older lakebed does not say so."""


# ---- node to control plane


class TenantLoad(Message, frozen=True):
    """One tenant on a node, in a heartbeat. Only tenants whose numbers matter to someone are sent (see `Heartbeat`)."""

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
    """What the control plane has to say without being asked."""

    is_known: bool
    """False: register again (the control plane was restarted, or it took the node for gone)."""
    report: tuple[str, ...] = ()
    """Tenants whose loads the next heartbeats are to have: they are in relocation."""
    pause: tuple[str, ...] = ()
    """Tenants whose ingestion pauses: sources of relocations."""
    now_ms: int = 0
    """Its Unix time; of several control planes the earliest."""


class CommitRequest(Message, frozen=True):
    """Ask that a transaction becomes the tenant's state. Its objects are durable before it is sent."""

    tenant: str
    txn: Natural
    node: str
    generation: Natural
    manifest: ManifestRef
    timelines: dict[str, Progress]
    names: dict[str, str]
    """Names of the timelines in the manifest, to their ids."""
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
    """Granted: the attachment's."""
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
    """Of the local state, which the process has locked; another one after the state was lost."""
    resumed: tuple[Resumed, ...] = ()


class AckRequest(Message, frozen=True):
    """A node has stopped all writes of a rejected transaction, and its last put has settled."""

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
        """Make a node known, with a new incarnation. Raises `Conflict` (``node_decommissioned``)."""

    def heartbeat(self, heartbeat: Heartbeat) -> HeartbeatReply:
        """Say that a node is alive."""

    def attached(self, report: NodeReport) -> list[Location]:
        """What a node has, asked after each start of its process.

        A transaction that the node resumes and may still be granted continues: its location names it. Of the node's
        other open transactions, those of attachments that may commit are replaced by new ones. What was open before and
        is not resumed is rejected; it is acknowledged in the same write when `NodeReport.local_id` is the one that the
        node registered with before, because the exclusive lock on that local state shows that no older process of the
        node writes any more.
        """

    def commit(self, requests: Sequence[CommitRequest]) -> list[CommitReply]:
        """Decide a batch; tenants are independent, answers are in the order of the requests."""

    def ack(self, requests: Sequence[AckRequest]) -> list[AckReply]:
        """Acknowledge rejections; a batch as in `commit`."""


# ---- clients and operators to node


class TimelineChange(Message, frozen=True):
    """A change of the set of timelines: part of a transaction, acknowledged by its commit. Idempotent by `id`."""

    kind: str
    """``create``, ``branch``, ``pin``, ``delete``, ``detach``, ``restore``."""
    name: str
    """Of the timeline that is made, deleted, detached or restored."""
    id: str = ""
    """Of the timeline that is made, minted by the caller; of one that is deleted or detached, its own. So the request
    can be repeated."""
    parent: str = ""
    """``branch``, ``pin``, ``restore``: the timeline to branch: a name, an id or ``@<id>``. A restore branches
    `parent` at `lsn` and gives the branch the name `name`; the timeline that had it is renamed to `kept_as`."""
    lsn: Natural | None = None
    """``branch``, ``pin``, ``restore``: None: the parent's newest committed LSN."""
    kept_as: str = ""
    """``restore``: the new name of the timeline that had the name `name`."""
    lifetime_ms: Natural | None = None
    """``pin``: it goes by itself after this time, which the node counts; None: never."""


class TimelineInfo(Message, frozen=True):
    """A timeline on a node."""

    id: str
    name: str
    lsn: int
    """Newest ingested."""
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
    """As of which LSN it was read."""


class FoundMany(Message, frozen=True):
    """The answer to `NodePort.get_many`."""

    values: tuple[bytes | None, ...]
    """In the order asked."""
    lsn: int
    """As of which LSN they were read."""


class NodePort(Protocol):
    """A node, as the control plane, clients and operators call it.

    `timeline` is a name, an id, or ``@<id>``, which is never taken for a name. Reads raise `Unavailable`
    (``lsn_not_reached``: not ingested in time; ``not_attached``: ask the control plane where the tenant is),
    `InvalidRequest` (``below_cutoff``, with ``cutoff=``), `NotFound` (``timeline_not_found``).
    """

    def put_location(self, location: Location) -> None:
        """Attach, change the mode of, or detach a tenant. Returns when the node has taken it over in memory.

        A location that the node has already is a no-op. With `READER`, a newer `Location.base` is the next manifest to
        follow. Raises `Conflict` (``stale_generation``).
        """

    def locations(self) -> list[Held]:
        """Every tenant that the node has. The control plane compares it with the ledger, and sends what differs.

        Asked when a node is first heard, and every half minute. Cost: 1 request, from memory.
        """

    def timelines(self, tenant: str) -> list[TimelineInfo]:
        """The timelines of a tenant here, with what is not committed yet."""

    def change(self, tenant: str, change: TimelineChange) -> TimelineInfo:
        """Make a change and commit it; returns when the commit was granted.

        Raises `AlreadyExists` (``timeline_exists``), `NotFound`, `InvalidRequest` (``below_cutoff``,
        ``lsn_not_committed``, ``timeline_in_use``, ``read_only``), `Unavailable`.
        """

    def get(self, tenant: str, timeline: str, key: bytes, *, lsn: int | None = None, at_least: int = 0) -> Found:
        """The value of a key at an LSN (None: the newest ingested, but at least `at_least`, which is waited for)."""

    def get_many(
        self, tenant: str, timeline: str, keys: Sequence[bytes], *, lsn: int | None = None, at_least: int = 0
    ) -> FoundMany:
        """As `get`, of many keys at one LSN, in the order asked."""

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
        """Keys and values of ``[start, end)`` at one LSN, keys ascending (`lakebed.key_value.port.PAIR_SCHEMA`).

        At least one batch, which may be empty. The metadata of its schema has ``lsn``, as digits: a client continues
        there when the node is lost while it reads.
        """

    def checkpoint(self, tenant: str) -> int:
        """Flush and commit what is ingested; the committed transaction's id."""

    def compact(self, tenant: str, timeline: str) -> None:
        """Merge all files of a timeline into one run; committed with the next commit."""

    def lag(self, tenant: str) -> dict[str, int]:
        """Rows in the log that are not ingested, by timeline id."""


# ---- clients and operators to control plane


class Route(Message, frozen=True):
    """Where clients find a tenant."""

    tenant: str
    node: str | None
    """None: it is attached nowhere now."""
    url: str | None
    generation: int
    names: dict[str, str]
    """Names of the committed timelines, to their ids."""
    sealed: tuple[str, ...] = ()
    """Ids of those that take no rows: a restore has replaced them."""
    lag_rows: int = 0
    """Reported by the target of a relocation, or by a node that cannot keep up: clients slow their appends down."""
    committed: dict[str, int] = {}
    """The last committed LSN of each timeline by its id, at the least: the log gives each later row a larger one."""


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
    """Something that operators want to know later: a failover, a relocation, a rejection, a decommission."""

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
    """Newest first, at most a thousand."""
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
    """Of a storage in a folder, the number that its file system gives the folder; 0: not known."""


class OperatorPort(Protocol):
    """The control plane, as clients and operators call it (``/v1`` and ``/control/v1``)."""

    def address(self) -> FleetAddress:
        """Where storage and log are (``GET /v1/fleet``)."""

    def create_tenant(self, tenant: str, policy: Policy | None = None) -> TenantRecord:
        """Make a tenant and attach it; `policy` None: the defaults.

        Raises `AlreadyExists` (``tenant_exists``), `InvalidRequest`.
        """

    def delete_tenant(self, tenant: str) -> None:
        """Detach a tenant and delete all its objects and its logs; when it returns, no client can write to it.

        Raises `NotFound` (``tenant_not_found``).
        """

    def tenants(self) -> list[TenantRecord]:
        """All tenants, by name."""

    def tenant(self, tenant: str) -> TenantRecord:
        """One tenant. Raises `NotFound` (``tenant_not_found``)."""

    def set_policy(self, tenant: str, policy: Policy) -> TenantRecord:
        """Replace a tenant's settings."""

    def route(self, tenant: str) -> Route:
        """Where a tenant is. When it shows that a name has moved, no client writes to what had the name before.

        Raises `NotFound` (``tenant_not_found``), also of a tenant that is being deleted.
        """

    def change_timeline(self, tenant: str, change: TimelineChange) -> TimelineInfo:
        """Hand a change to the tenant's preferred node. Raises as `NodePort.change`."""

    def manifest(self, tenant: str) -> Manifest:
        """The last committed manifest, read from the store."""

    def transactions(self, tenant: str) -> TransactionList:
        """The transactions of a tenant."""

    def nodes(self) -> list[NodeStatus]:
        """All nodes."""

    def migrate(self, tenant: str, node: str) -> None:
        """Begin to move a tenant to a node, without downtime. Returns at once; `tenant` shows the relocation."""

    def attach_reader(self, tenant: str, node: str) -> None:
        """Attach a tenant to a further node, read-only."""

    def drain(self, node: str, *, undo: bool = False) -> None:
        """Move all tenants off a node, one by one; or let it have tenants again, and move them back."""

    def decommission(self, node: str) -> None:
        """The node will never write again (its credentials are revoked): acknowledge its transactions for it."""

    def force_ack(self, tenant: str, txn: int) -> AckReply:
        """Acknowledge one rejected transaction for its node. The node must not be able to write any more."""

    def events(self, *, after: str = "", limit: int = 1_000) -> list[tuple[str, Event]]:
        """Events with their positions, oldest first, behind a position."""
