"""Tenants, transactions, attachments, timelines: the records of the ledger and of manifests. Pure data.

Owns: what the control plane knows of a tenant (`TenantRecord`), and what a committed transaction consists of
(`Manifest`). The structs are stored, so their field names are on disk: DO NOT CHANGE them. A field that has its default
is not encoded.

Words: an *LSN* is the sequence of a row in its timeline, dense from 1; 0 is before the first row. A *manifest* has all
timelines of a tenant. The *committed LSN* of a timeline is the largest that is in the layers of the last committed
manifest. The *cutoff* is the oldest LSN that can be read at.

Does not know: which step follows which (`lakebed.fleet.machine`), keys and paths (`lakebed.fleet.layout`).
"""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, Final, TypeAlias

import msgspec

from lakebed.lsm.model import FileSet

FIRST_BASE: Final = 0
"""The transaction that every tenant begins with: committed, without a manifest; its one timeline is `MAIN`, empty."""

MAIN: Final = "main"
"""Name of the timeline that a new tenant has. It is the id too, unless a tenant of the same name was deleted before."""

GONE_MAX: Final = 256
"""Ids of timelines that are gone and remembered: 10 kB of a manifest at most."""


NUMBER_MAX: Final = (1 << 53) - 1
"""Largest number that is sent: every reader of JSON has it exactly."""

Natural: TypeAlias = Annotated[int, msgspec.Meta(ge=0, le=NUMBER_MAX)]
"""A number that is sent. Another one is refused where it is read."""


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
    """How far a timeline is in a committed manifest; the ledger mirrors it for routing and pruning."""

    lsn: Natural
    """The committed LSN."""
    cutoff: Natural
    is_read_only: bool = False
    """A pin: it has no log."""


class ManifestRef(Stored, frozen=True):
    """A manifest by its place and contents. A commit pins it: what else is written under the name later is not it."""

    path: str
    """Relative to the root of the fleet's storage."""
    checksum: str
    """xxh3-128 of the object's bytes, in hexadecimal digits."""
    size_bytes: Natural


class Transaction(Stored, frozen=True):
    """The right to write objects under one prefix, and to ask once that they become the tenant's state."""

    id: int
    """Ascending in its tenant, never used again."""
    base: int
    """The transaction whose state this one sees: the last committed one when it began."""
    node: str
    generation: int
    state: TransactionState
    begun_ms: int
    """Unix time in milliseconds, UTC, by the control plane's clock."""
    local_id: str = ""
    """Of the local state of its node when it began: a process that holds that state's lock is the only writer."""
    manifest: ManifestRef | None = None
    """What was committed."""
    has_deadlist: bool = False
    """Committed, and its deadlist names objects to delete."""
    ended_ms: int | None = None
    main: str = ""
    """Committed: the id of the timeline that was named `MAIN`. With `main_lsn` it is what clients list as a version."""
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
    """Every attach has a larger one than all before it in the tenant."""
    mode: AttachmentMode

    @property
    def may_commit(self) -> bool:
        """Whether the grant policy allows a commit of this attachment."""
        return self.mode in (AttachmentMode.SINGLE, AttachmentMode.MULTI)


class Hold(Stored, frozen=True):
    """Delays the deletion of what died after transaction `txn`, for someone who still reads that state."""

    id: str
    """Of who holds, such as ``reader:<node>:<generation>`` or ``relocation``."""
    txn: int
    """The holder reads the state of this transaction, or of a later one."""
    expires_ms: int


class Relocation(Stored, frozen=True):
    """A tenant on its way from one node to another, both attached."""

    source: str
    target: str
    begun_ms: int
    source_waits_until_ms: int
    """Up to this time a commit of the source is answered ``wait`` (`Policy.relocation_wait_max_ms`). Unix ms, UTC."""


class Policy(Stored, frozen=True):
    """Settings of a tenant. Each one says what a change of it costs."""

    commit_bytes: int = 32 << 20
    """Uncommitted bytes of layers at which a node commits (or four times the manifest's size, if that is more).
    Smaller: less is done again after a failover, more requests to the control plane."""
    commit_age_ms: int = 60_000
    """Oldest uncommitted row at which a node commits; a tenant without new rows never does."""
    uncommitted_bytes_max: int = 256 << 20
    """Ingestion pauses while the layers of an open transaction are larger: the control plane or the store is away."""
    retain_rows: int = 0
    """States that can be read behind the newest: the cutoff follows the newest LSN at this distance."""
    retain_ms: int = 0
    """Age of states that can be read; the cutoff is the older one of both."""
    relocation_wait_max_ms: int = 5_000
    """How long a commit of the source of a relocation waits for its target."""


class TenantRecord(Stored, frozen=True):
    """All that the control plane decides from, in one value of the ledger; each step is one compare-and-set of it."""

    tenant: str
    next_txn: int
    next_generation: int
    committed: int = FIRST_BASE
    """The last committed transaction: H."""
    manifest: ManifestRef | None = None
    """Of H; None while it is the first base."""
    deadlist: str | None = None
    """Path of H's deadlist. It is deleted with the next commit's, so that no deadlist goes before what it names."""
    timelines: dict[str, Progress] = {}
    """Of H, by timeline id."""
    names: dict[str, str] = {}
    """Names of the timelines of H, to their ids."""
    sealed: tuple[str, ...] = ()
    """Ids of the timelines of H that a restore has replaced: they are kept, and take no rows."""
    sealing: tuple[str, ...] = ()
    """Ids of timelines that have lost their names, and whose logs are to be sealed before the change is answered."""
    transactions: tuple[Transaction, ...] = ()
    """Those that are not finished: open, or rejected and not acknowledged. Ascending by id."""
    attachments: tuple[Attachment, ...] = ()
    preferred: str | None = None
    """The node that clients are sent to."""
    relocation: Relocation | None = None
    holds: tuple[Hold, ...] = ()
    policy: Policy = Policy()
    created_ms: int = 0
    home: str | None = None
    """The node that a drain moved the tenant away from; the end of the drain moves it back."""
    is_deleted: bool = False
    """Being removed: nothing is attached any more."""


class CollectTask(Stored, frozen=True):
    """What is to be deleted for a finished transaction. Written with the step that made it deletable."""

    tenant: str
    txn: int
    kind: TransactionState
    """`COMMITTED`: delete what its deadlist names. `REJECT_ACKNOWLEDGED`: delete everything under its prefix."""
    since_ms: int
    listed_ms: int | None = None
    """When the prefix was listed and deleted for the first time; a second time follows after the settle time."""
    deadlist: str | None = None
    """`COMMITTED`: the path of its deadlist; None: nothing died."""
    unneeded: tuple[str, ...] = ()
    """`COMMITTED`: paths that the commit made unneeded: the manifest and the deadlist of its base."""
    timelines: tuple[str, ...] = ()
    """`COMMITTED`: ids of timelines that this transaction deleted: their logs are dropped."""


class Floor(Stored, frozen=True):
    """Of a tenant that was deleted: a new one of its name begins above it, so that no late request fits both."""

    next_txn: int
    next_generation: int


class LedgerId(Stored, frozen=True):
    """Which ledger this is: the storage that it commits to names it."""

    id: str


class NodeRecord(Stored, frozen=True):
    """A node, as it registered."""

    node: str
    url: str
    incarnation: str
    """Of the running process: another after each start."""
    local_id: str
    """Of its local state, which its process holds an exclusive lock on: another one after the state was lost."""
    registered_ms: Natural
    is_draining: bool = False
    """It gets no new attachments and its tenants are moved away, one by one."""
    is_decommissioned: bool = False
    decommissioned_ms: Natural | None = None
    """Its transactions are acknowledged when the revocation of its credentials has had time to take effect."""
    is_silent: bool = False
    """It was found silent and its tenants failed over: no new attachments before it has answered again."""


class LogMark(Stored, frozen=True):
    """A position in a timeline's log, with the checksum that the record after it has to continue."""

    lsn: int = 0
    checksum: str = ""


class TimelineIndex(Stored, frozen=True):
    """One timeline in a manifest: its files and how far it is. A branch names files of its ancestors with ceilings."""

    id: str
    """Never changes; the log and the paths have it. Names may move (a restore)."""
    name: str
    created_ms: int
    lsn: int
    """Every row up to it is in `files`."""
    cutoff: int
    mark: LogMark = LogMark()
    """The log record that ends at `lsn`, or before it when a flush cut a record: ingestion resumes behind it."""
    parent: str | None = None
    """Id of the timeline that this one was branched from; None for one that began empty or was detached."""
    branch_lsn: int = 0
    """The LSN at which it was branched: its own rows begin after it."""
    is_read_only: bool = False
    """A pin: it takes no rows and its cutoff is its LSN."""
    expires_ms: int | None = None
    """Of a pin: when it goes by itself. None: never."""
    files: FileSet = FileSet()
    origins: dict[str, tuple[str, ...]] = {}
    """Where files are: ``<txn>/<timeline>``, to the ids of the files there."""


class Manifest(Stored, frozen=True):
    """The state of a tenant as of one transaction: every timeline with its files."""

    tenant: str
    txn: int
    base: int
    timelines: tuple[TimelineIndex, ...]
    gone: tuple[str, ...] = ()
    """Ids of the timelines that went last, oldest first, at most `GONE_MAX`: a request to make one of them that was
    delayed in the network does not make it again."""


def first_manifest(tenant: str, *, main: str = MAIN, created_ms: int) -> Manifest:
    """The state of a tenant that has never committed: one empty timeline, with `main` as its id."""
    index = TimelineIndex(id=main, name=MAIN, created_ms=created_ms, lsn=0, cutoff=0)
    return Manifest(tenant=tenant, txn=FIRST_BASE, base=FIRST_BASE, timelines=(index,))
