"""The records of the ledger and of manifests: tenants, transactions, attachments, timelines. Pure data.

Owns: what the control plane knows of a tenant (`TenantRecord`), and what a committed transaction consists of
(`Manifest`). The structs are stored, so their field names are on disk: DO NOT CHANGE them. A field that has its default
is not encoded.

Words: an *LSN* is the number of a row in its timeline: 1, 2, ... without gaps; 0 is before the first row. A *manifest*
describes all timelines of a tenant. The *committed LSN* of a timeline is the LSN of the last row in the layers of the
last committed manifest. The *cutoff* is the oldest LSN at which the timeline can be read.

Does not know: how an event changes a record (`lakebed.fleet.machine`), keys and paths (`lakebed.fleet.layout`).
"""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, Final, TypeAlias

import msgspec

from lakebed.lsm.model import FileSet

FIRST_BASE: Final = 0
"""The transaction with which every tenant begins. It is committed and has no manifest; its one timeline `MAIN` is
empty.
"""

MAIN: Final = "main"
"""Name of a new tenant's timeline, and its id, unless a tenant of the same name was deleted before."""

GONE_MAX: Final = 256
"""Most ids of deleted timelines that a manifest remembers: at most 10 kB."""


NUMBER_MAX: Final = (1 << 53) - 1
"""Largest number that is sent: every JSON reader represents it exactly."""

Natural: TypeAlias = Annotated[int, msgspec.Meta(ge=0, le=NUMBER_MAX)]
"""A number that is sent. The receiver refuses a number outside this range."""


class Stored(msgspec.Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True):
    """A struct that is stored or sent."""


class TransactionState(StrEnum):
    """See `lakebed.fleet.machine` for the table of moves."""

    OPEN = "open"
    COMMITTED = "committed"
    REJECT_PENDING = "reject_pending"
    """It will never be visible; its node may still be writing."""
    REJECT_ACKNOWLEDGED = "reject_acknowledged"
    """Its node has stopped writing: everything under its prefix may be deleted."""
    GARBAGE_COLLECTED = "garbage_collected"


class Progress(Stored, frozen=True):
    """How far a timeline is in a committed manifest. The ledger has a copy, for routing and pruning."""

    lsn: Natural
    """The committed LSN."""
    cutoff: Natural
    is_read_only: bool = False
    """A pin: it has no log."""


class ManifestRef(Stored, frozen=True):
    """A manifest by its path and contents. A commit pins it: other bytes at the path are not this manifest."""

    path: str
    """Relative to the root of the fleet's storage."""
    checksum: str
    """xxh3-128 of the object's bytes, in hexadecimal digits."""
    size_bytes: Natural


class Transaction(Stored, frozen=True):
    """The right to write objects under one prefix, and to ask once that they become the tenant's state."""

    id: int
    """Ascending in its tenant; never reused."""
    base: int
    """The transaction whose state this one sees: the last committed one when it began."""
    node: str
    generation: int
    state: TransactionState
    begun_ms: int
    """Unix time in milliseconds, UTC, by the control plane's clock."""
    local_id: str = ""
    """Id of its node's local state when it began. The process that holds that state's lock is the only writer."""
    manifest: ManifestRef | None = None
    """Reference to the committed manifest."""
    has_deadlist: bool = False
    """Committed, and its deadlist names objects to delete."""
    ended_ms: int | None = None
    main: str = ""
    """Committed: the id of the timeline that was named `MAIN`. Clients list it, with `main_lsn`, as a version."""
    main_lsn: int = 0
    """Committed: the LSN of that timeline."""


class AttachmentMode(StrEnum):
    """What a node may do with a tenant."""

    SINGLE = "single"
    """It reads, ingests and commits; no other node does."""
    MULTI = "multi"
    """As `SINGLE`, but another node has the tenant too: the source or the target of a relocation."""
    STALE = "stale"
    """It serves reads and will not commit any more."""
    READER = "reader"
    """It follows committed manifests and the log, and never commits."""


class Attachment(Stored, frozen=True):
    """A node that has a tenant. `SINGLE` and `MULTI` may commit."""

    node: str
    generation: int
    """Each attach of the tenant gets a larger generation than all earlier ones."""
    mode: AttachmentMode

    @property
    def may_commit(self) -> bool:
        """Whether the grant policy allows a commit of this attachment."""
        return self.mode in (AttachmentMode.SINGLE, AttachmentMode.MULTI)


class Hold(Stored, frozen=True):
    """Delays the deletion of what died after transaction `txn`, for someone who still reads that state."""

    id: str
    """Identifies the holder, such as ``reader:<node>:<generation>`` or ``relocation:<node>``."""
    txn: int
    """The holder reads the state of this transaction, or of a later one."""
    expires_ms: int


class Relocation(Stored, frozen=True):
    """The move of a tenant from one node to another. Both are attached."""

    source: str
    target: str
    begun_ms: int
    source_waits_until_ms: int
    """Until this time, a commit of the source is answered ``wait`` (`Policy.relocation_wait_max_ms`). Unix ms, UTC."""


class Policy(Stored, frozen=True):
    """Settings of a tenant. Each states its effect."""

    commit_bytes: int = 32 << 20
    """Uncommitted bytes of layers at which a node commits (or four times the manifest's size, if that is more).
    Smaller: less work is repeated after a failover, more requests to the control plane."""
    commit_age_ms: int = 60_000
    """Age of the oldest uncommitted row at which a node commits. A tenant without new rows is never committed."""
    uncommitted_bytes_max: int = 256 << 20
    """Ingestion pauses while the layers of an open transaction are larger.

    They grow so large while the control plane or the store does not answer.
    """
    retain_rows: int = 0
    """How many rows the cutoff stays below the newest LSN: so many older states can be read."""
    retain_ms: int = 0
    """Age up to which states can be read. The cutoff is the older one of this and `retain_rows`."""
    relocation_wait_max_ms: int = 5_000
    """How long, during a relocation, a commit of the source waits for the target."""


class TenantRecord(Stored, frozen=True):
    """Everything that decides about a tenant, in one value of the ledger. Each step is one compare-and-set of it."""

    tenant: str
    next_txn: int
    next_generation: int
    committed: int = FIRST_BASE
    """Id of the last committed transaction, called H below."""
    manifest: ManifestRef | None = None
    """The manifest of H; None while H is `FIRST_BASE`."""
    deadlist: str | None = None
    """Path of H's deadlist; None: nothing died.

    The collection of the next commit deletes it, so that no deadlist is deleted before the objects that it names.
    """
    timelines: dict[str, Progress] = {}
    """The timelines of H, by id."""
    names: dict[str, str] = {}
    """Ids of the timelines of H, by name."""
    sealed: tuple[str, ...] = ()
    """Ids of the timelines of H that a restore has replaced. They are kept and take no rows."""
    sealing: tuple[str, ...] = ()
    """Ids of timelines that have lost their names. Their logs must be sealed before the change is answered."""
    transactions: tuple[Transaction, ...] = ()
    """Unfinished transactions: open, or rejected and not acknowledged. Ascending by id."""
    attachments: tuple[Attachment, ...] = ()
    preferred: str | None = None
    """The node that clients are sent to."""
    relocation: Relocation | None = None
    holds: tuple[Hold, ...] = ()
    policy: Policy = Policy()
    created_ms: int = 0
    home: str | None = None
    """The node from which a drain moved the tenant. The end of the drain moves the tenant back."""
    is_deleted: bool = False
    """The tenant is being removed: no node has it any more, and none gets it."""


class CollectTask(Stored, frozen=True):
    """What to delete for a finished transaction. It is written together with the step that makes this deletable."""

    tenant: str
    txn: int
    kind: TransactionState
    """`COMMITTED`: delete what its deadlist names. `REJECT_ACKNOWLEDGED`: delete everything under its prefix."""
    since_ms: int
    listed_ms: int | None = None
    """When the prefix was listed and deleted the first time. This is repeated after the settle time."""
    deadlist: str | None = None
    """`COMMITTED`: the path of its deadlist; None: nothing died."""
    unneeded: tuple[str, ...] = ()
    """`COMMITTED`: paths that the commit made unneeded: the manifest and the deadlist of its base."""
    timelines: tuple[str, ...] = ()
    """`COMMITTED`: ids of timelines that this transaction deleted: their logs are dropped."""


class Floor(Stored, frozen=True):
    """The numbers after those of a deleted tenant.

    A new tenant of its name begins above them, so that a late request for the deleted one does not fit the new one.
    """

    next_txn: int
    next_generation: int


class LedgerId(Stored, frozen=True):
    """The identity of a ledger. The storage to which the ledger commits names it."""

    id: str


class NodeRecord(Stored, frozen=True):
    """A node, as it registered."""

    node: str
    url: str
    incarnation: str
    """Identifies the running process. Each start gets a new one."""
    local_id: str
    """Identifies its local state, whose exclusive lock its process holds. A new state, after a loss, has a new id."""
    registered_ms: Natural
    is_draining: bool = False
    """It gets no new attachments, and its tenants are moved away one by one."""
    is_decommissioned: bool = False
    decommissioned_ms: Natural | None = None
    """When it was decommissioned, Unix ms, UTC.

    Its transactions are acknowledged after the revocation of its credentials has had time to take effect.
    """
    is_silent: bool = False
    """It was silent and its tenants failed over. It gets no new attachments until it answers again."""


class LogMark(Stored, frozen=True):
    """A position in a timeline's log, with the checksum that the next record must continue."""

    lsn: int = 0
    checksum: str = ""


class TimelineIndex(Stored, frozen=True):
    """One timeline in a manifest: its files and how far it is.

    A branch names files of its ancestors, each with a ceiling.
    """

    id: str
    """Never changes; the log and the paths contain it. A name may move to another timeline (by a restore)."""
    name: str
    created_ms: int
    lsn: int
    """Every row up to it is in `files`."""
    cutoff: int
    mark: LogMark = LogMark()
    """The log record that ends at `lsn`, or before `lsn` if a flush cut a record. Ingestion resumes after it."""
    parent: str | None = None
    """Id of the timeline that this one was branched from; None for one that began empty or was detached."""
    branch_lsn: int = 0
    """The LSN at which it was branched. Its own rows begin after this LSN."""
    is_read_only: bool = False
    """A pin: it takes no rows and its cutoff is its LSN."""
    expires_ms: int | None = None
    """When a pin expires, Unix ms, UTC. None: never."""
    files: FileSet = FileSet()
    origins: dict[str, tuple[str, ...]] = {}
    """Where the files are: the ids of the files at each origin, ``<txn>/<timeline>``."""


class Manifest(Stored, frozen=True):
    """The state of a tenant as of one transaction: every timeline with its files."""

    tenant: str
    txn: int
    base: int
    timelines: tuple[TimelineIndex, ...]
    gone: tuple[str, ...] = ()
    """Ids of the timelines that were deleted last, oldest first, at most `GONE_MAX`.

    A delayed request to create one of them does not create it again.
    """


def first_manifest(tenant: str, *, main: str = MAIN, created_ms: int) -> Manifest:
    """Return the state of a tenant that has never committed: one empty timeline, with `main` as its id."""
    index = TimelineIndex(id=main, name=MAIN, created_ms=created_ms, lsn=0, cutoff=0)
    return Manifest(tenant=tenant, txn=FIRST_BASE, base=FIRST_BASE, timelines=(index,))
