"""What watches a fleet below all its parts: the shared store and the ledger, judged after every change.

Owns: `FleetMonitor`, the store that all processes share, and `ObservedLedger`, the key-value store of the ledger. They
know each last committed manifest and read its files as rows, so a commit is judged by what is in the bucket.

Invariants judged here (docs/design/0042-fleet.md): I1 base of a commit, I2 references exist, I3 the base of an open
transaction that may commit, I4 deadlists, I5 committed LSNs are readable and the log begins before them, I6 pins and
branches that were acknowledged, I7 objects never change, I8 nothing is written in a transaction that is acknowledged
or collected, I9 nothing goes back. It never raises into the code under test, but keeps what it found in `violations`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any, Final, TypeVar

import msgspec

from lakebed.errors import LakebedError
from lakebed.fleet import layout
from lakebed.fleet.manifest import decode_deadlist, decode_referenced
from lakebed.fleet.model import Manifest, TenantRecord, TimelineIndex, Transaction, TransactionState
from lakebed.key_value.port import KeyValue
from lakebed.lsm.model import Kind
from lakebed.objects.port import ObjectStore
from lakebed.testing.wrapper import Call, StoreWrapper
from worlds.fleet.oracle import Content, Oracle
from worlds.key_value_wrapper import KeyValueCall, KeyValueWrapper
from worlds.kv.files import LoggedRow, read_file
from worlds.promise import PromiseBroken

R = TypeVar("R")

FINISHED: Final = (
    TransactionState.COMMITTED,
    TransactionState.REJECT_ACKNOWLEDGED,
    TransactionState.GARBAGE_COLLECTED,
)
MOVES: Final = {
    (None, "open"), ("open", "committed"), ("open", "reject_pending"), ("open", "reject_acknowledged"),
    ("reject_pending", "reject_acknowledged"), ("reject_acknowledged", "garbage_collected"),
}  # fmt: skip
"""The design's table, written down a second time."""


class FleetMonitor(StoreWrapper):
    """Stands between the shared store and all processes.

    Args:
        inner: the real store.
        oracle: what timelines have to answer.
        now_ms: the simulation's time.
    """

    def __init__(self, inner: ObjectStore, *, oracle: Oracle, now_ms: Callable[[], int]) -> None:
        super().__init__(inner)
        self._now_ms = now_ms
        self.root = inner
        self.oracle = oracle
        self.violations: list[PromiseBroken] = []
        self.records: dict[str, TenantRecord] = {}
        self.manifests: dict[tuple[str, int], Manifest] = {}
        """Committed, by tenant and transaction."""
        self.states: dict[tuple[str, int], str] = {}
        """Of every transaction that was seen."""
        self.references: dict[str, set[str]] = {}
        """Paths that each tenant's last committed state names."""
        self.lives: Counter[str] = Counter()
        """How often a tenant of each name was created."""
        self.floors: dict[str, tuple[int, int]] = {}
        """The next transaction and generation of a tenant when it was removed."""
        self.promised: dict[str, dict[str, tuple[str, int | None]]] = {}
        """Of each tenant, timelines that a caller was told of: id to name and expiry."""
        self.gone_timelines: set[str] = set()
        """Log keys of timelines of tenants that were removed."""
        self.bodies: dict[str, int] = {}
        """Hashes of objects."""
        self.in_flight: dict[int, tuple[str, Callable[[], bool]]] = {}
        """Puts under way: path, and whether their process still runs."""
        self.named: dict[str, int] = {}
        """Log keys of timelines that had a name, with their number in the order in which they got it."""
        self.lost_names: dict[str, tuple[str, str]] = {}
        """Log keys of timelines that have lost their name, with tenant and name."""
        self.lost_before: dict[str, frozenset[str]] = {}
        """By log key of each timeline: those that had lost their names when it got its own."""
        self.log_first: Callable[[str], int] = lambda timeline: 1
        self.collected_paths: set[str] = set()
        self._rows: dict[str, list[LoggedRow]] = {}
        self.commits = 0

    # ---- the store

    def intercept(self, call: Call, perform: Callable[[], R]) -> R:
        """Make the call, then look at what it did."""
        result = perform()
        if call.changes:
            self.judged(lambda: self._changed(call), by=str(call))
        return result

    def judged(self, judge: Callable[[], None], *, by: str) -> None:
        """Keep what a judgement finds."""
        try:
            judge()
        except PromiseBroken as violation:
            self.violations.append(violation)
        except LakebedError as error:
            promise_broken = PromiseBroken(f"{by} left what cannot be read: {type(error).__name__} {error}")
            self.violations.append(promise_broken)

    def lost(self, paths: Sequence[str]) -> None:
        """Objects were lost with the power: durable ones never are, and only those are committed."""
        self.judged(lambda: self._deleted(paths, by="the power loss"), by="the power loss")

    def _changed(self, call: Call) -> None:
        if call.kind == "put" and not call.path.startswith(layout.FLEET_FOLDER):
            self._put(call)
        elif call.kind == "delete":
            self._deleted(call.paths or (call.path,), by=str(call))

    def _put(self, call: Call) -> None:
        body = hash(bytes(self.root.get(call.path)))
        before = self.bodies.get(call.path)
        if before is not None and before != body:
            raise PromiseBroken(f"I7: {call.path} was overwritten")
        self.bodies[call.path] = body
        tenant, txn = self._owner(call.path)
        state = self.states.get((tenant, txn))
        if state is None and tenant not in self.references:
            return  # the ledger is not in this simulation
        if state is None:
            raise PromiseBroken(f"R2: {call.path} was written without a transaction")
        if state == TransactionState.GARBAGE_COLLECTED:
            raise PromiseBroken(f"I8: {call.path} was written when its transaction was collected")

    def _deleted(self, paths: Sequence[str], *, by: str) -> None:
        for path in paths:
            self.bodies.pop(path, None)
        gone = set(paths)
        for tenant, named in self.references.items():
            if lost := named & gone:
                raise PromiseBroken(f"I2: {by} deletes {sorted(lost)[:3]}, which the state of {tenant} names")
            self._check_held(tenant, gone, by=by)

    def _check_held(self, tenant: str, gone: set[str], *, by: str) -> None:
        """R21: while a hold runs, the state that its holder reads stays whole."""
        record = self.records[tenant]
        for hold in () if record.is_deleted else record.holds:
            manifest = self.manifests.get((tenant, hold.txn))
            if manifest is None or hold.expires_ms <= self._now_ms():
                continue
            if lost := layers(tenant, manifest) & gone:
                raise PromiseBroken(f"R21: {by} deletes {sorted(lost)[:3]} under {hold}")

    @staticmethod
    def _owner(path: str) -> tuple[str, int]:
        folder, _, rest = path.partition("/")
        return folder.removesuffix(layout.TENANT_SUFFIX), int(rest.partition("/")[0])

    # ---- the ledger

    def recorded(self, before: TenantRecord | None, after: TenantRecord | None, ledger: KeyValue) -> None:
        """A tenant's record changed."""
        self._note_names(before, after)
        if after is None:
            assert before is not None
            self._removed(before)
            self.references.pop(before.tenant, None)
            self.records.pop(before.tenant, None)
            self.promised.pop(before.tenant, None)
            return
        tenant = after.tenant
        self.records[tenant] = after
        self.references.setdefault(tenant, set())
        if after.is_deleted:  # its state is not needed any more
            self.references[tenant] = set()
            self.promised.pop(tenant, None)
        self._moves(before, after)
        if before is None:
            self._created(after)
            return
        if after.next_txn < before.next_txn or after.next_generation < before.next_generation:
            raise PromiseBroken(f"I9: {tenant} would use a number again")
        if after.committed != before.committed:
            self._committed(before, after, ledger)
        elif (after.manifest, after.deadlist) != (before.manifest, before.deadlist):
            raise PromiseBroken(f"I7: the committed manifest of {tenant} changed without a commit")

    def _note_names(self, before: TenantRecord | None, after: TenantRecord | None) -> None:
        old = {} if before is None or before.is_deleted else before.names
        new = {} if after is None or after.is_deleted else after.names
        record = after or before
        assert record is not None
        lost = {layout.log_key(record.tenant, id): name for name, id in old.items() if new.get(name) != id}
        self.lost_names |= {key: (record.tenant, name) for key, name in lost.items()}
        made = {layout.log_key(record.tenant, id) for id in new.values()} - self.named.keys()
        for key in sorted(made):
            self.named[key] = len(self.named)
            self.lost_before[key] = frozenset(self.lost_names)

    def _created(self, record: TenantRecord) -> None:
        """I9: a tenant of a name that was there before uses nothing of that one again."""
        tenant = record.tenant
        self.lives[tenant] += 1
        next_txn, next_generation = self.floors.get(tenant, (1, 1))
        begun = [(transaction.id, transaction.generation) for transaction in record.transactions]
        numbers = [*begun, (record.next_txn, record.next_generation)]
        if any(txn < next_txn or generation < next_generation for txn, generation in numbers):
            raise PromiseBroken(f"I9: {tenant} is created anew and uses numbers again: {numbers}")
        if reused := [id for id in record.timelines if layout.log_key(tenant, id) in self.gone_timelines]:
            raise PromiseBroken(f"I9: {tenant} is created anew and uses the timelines {reused} again")

    def _removed(self, record: TenantRecord) -> None:
        """I8, I11: a tenant goes when nothing can be written any more, and nothing is left."""
        tenant = record.tenant
        self.floors[tenant] = (record.next_txn, record.next_generation)
        self.gone_timelines |= {layout.log_key(tenant, id) for id in record.timelines}
        writing = [
            txn for (of, txn), state in self.states.items() if of == tenant and state in ("open", "reject_pending")
        ]
        if writing:
            raise PromiseBroken(f"I8: {tenant} is removed, and {writing[:3]} may still be written in")
        if left := [meta.path for meta in self.root.list(layout.tenant_folder(tenant))]:
            raise PromiseBroken(f"I11: {left[:3]} are left when {tenant} is removed")

    def finished(self, tenant: str, transaction: Transaction) -> None:
        """An entry of ``done/`` was written."""
        self._move(tenant, transaction)
        if transaction.state is TransactionState.REJECT_ACKNOWLEDGED:
            self._check_settled(tenant, transaction)
        elif transaction.state is TransactionState.GARBAGE_COLLECTED:
            folder = layout.txn_folder(tenant, transaction.id)
            left = [meta.path for meta in self.root.list(folder)]
            if left:
                raise PromiseBroken(f"I8: {left[:3]} are left when transaction {transaction.id} is collected")

    def _check_settled(self, tenant: str, transaction: Transaction) -> None:
        prefix = layout.txn_folder(tenant, transaction.id) + "/"
        for path, is_running in self.in_flight.values():
            if path.startswith(prefix) and is_running():
                raise PromiseBroken(f"I8: {path} is being written when its transaction is acknowledged")

    def _moves(self, before: TenantRecord | None, after: TenantRecord) -> None:
        for transaction in after.transactions:
            self._move(after.tenant, transaction)
            if transaction.state in FINISHED:
                raise PromiseBroken(f"{transaction} is finished and still in the record")
        if before is None:
            return
        old_open = [item for item in before.transactions if item.state is TransactionState.OPEN]
        for transaction in old_open:
            now = next((new for new in after.transactions if new.id == transaction.id), None)
            attached = [
                (attachment.node, attachment.generation) for attachment in before.attachments if attachment.may_commit
            ]
            still = [
                (attachment.node, attachment.generation) for attachment in after.attachments if attachment.may_commit
            ]
            owner = (transaction.node, transaction.generation)
            if (
                now is not None
                and now.state is TransactionState.REJECT_PENDING
                and owner in attached
                and owner in still
                and after.committed == before.committed
                and transaction.base == after.committed
            ):
                raise PromiseBroken(
                    f"L1: {transaction} was rejected, though its attachment may commit and nothing was granted"
                )

    def _move(self, tenant: str, transaction: Transaction) -> None:
        key = (tenant, transaction.id)
        before, state = self.states.get(key), transaction.state.value
        if before != state and (before, state) not in MOVES:
            raise PromiseBroken(f"transaction {transaction.id} of {tenant} goes from {before} to {state}")
        self.states[key] = state

    # ---- commits

    def _committed(self, before: TenantRecord, after: TenantRecord, ledger: KeyValue) -> None:
        tenant, txn = after.tenant, after.committed
        raw = ledger.get(layout.transaction_key(tenant, txn))
        if raw is None:
            raise PromiseBroken(f"{tenant} committed {txn}, and done/ does not have it")
        granted = msgspec.json.decode(raw, type=Transaction)
        if granted.base != before.committed:
            raise PromiseBroken(f"I1: {txn} of {tenant} has base {granted.base}, and {before.committed} was committed")
        if txn <= before.committed:
            raise PromiseBroken(f"I9: {tenant} went from transaction {before.committed} to {txn}")
        for name, progress in before.timelines.items():
            now = after.timelines.get(name)
            if now is not None and (now.lsn < progress.lsn or now.cutoff < progress.cutoff):
                raise PromiseBroken(f"I9: timeline {name} of {tenant} went from {progress} to {now}")
        if after.manifest is None:
            raise PromiseBroken(f"{tenant} committed {txn} without a manifest")
        body = self.root.get(after.manifest.path)
        manifest = decode_referenced(body, after.manifest)
        self.manifests[tenant, txn] = manifest
        self.commits += 1
        named = self._names(after, manifest)
        self.references[tenant] = named
        missing = sorted(path for path in named if path not in self.bodies)
        if missing:
            raise PromiseBroken(f"I2: the state {txn} of {tenant} names {missing[:3]}, which are not there")
        if after.deadlist is not None:
            dead = set(decode_deadlist(self.root.get(after.deadlist), path=after.deadlist).paths)
            if wrong := dead & named:
                raise PromiseBroken(f"I4: {sorted(wrong)[:3]} are on the deadlist of {txn} and in its manifest")
        self._check_mirror(after, manifest)
        self._check_promised(tenant, manifest)
        for index in manifest.timelines:
            self._learn_parent(tenant, index)
            self._check_rows(tenant, index)

    def _learn_parent(self, tenant: str, index: TimelineIndex) -> None:
        """A branch stays where it was made; a detached one has its history still."""
        if index.parent is None:
            return
        made = (layout.log_key(tenant, index.parent), index.branch_lsn)
        if self.oracle.parents.setdefault(layout.log_key(tenant, index.id), made) != made:
            raise PromiseBroken(f"{index.id} of {tenant} moves from its parent to {made}")

    @staticmethod
    def _names(record: TenantRecord, manifest: Manifest) -> set[str]:
        named = layers(record.tenant, manifest)
        assert record.manifest is not None
        named.add(record.manifest.path)
        if record.deadlist is not None:
            named.add(record.deadlist)
        return named

    @staticmethod
    def _check_mirror(record: TenantRecord, manifest: Manifest) -> None:
        """The ledger says of timelines what the manifest says."""
        said = {name: (timeline.lsn, timeline.cutoff) for name, timeline in record.timelines.items()}
        written = {timeline.id: (timeline.lsn, timeline.cutoff) for timeline in manifest.timelines}
        names = {timeline.name: timeline.id for timeline in manifest.timelines}
        if said != written or dict(record.names) != names:
            raise PromiseBroken(f"{record.tenant}: the ledger has {said} {record.names}, manifest {written} {names}")

    def _check_promised(self, tenant: str, manifest: Manifest) -> None:
        """I6: what a caller was told of is there."""
        ids = {timeline.id for timeline in manifest.timelines}
        for id, (name, expires_ms) in self.promised.get(tenant, {}).items():
            if id not in ids and (expires_ms is None or expires_ms > self._now_ms()):
                raise PromiseBroken(f"I6: {name} ({id}) of {tenant} was acknowledged and is not in {manifest.txn}")

    def rows(self, path: str, meta: Any) -> list[LoggedRow]:
        """The rows of a file, which does not change."""
        if path not in self._rows:
            self._rows[path] = read_file(self.root, path, meta=msgspec.structs.replace(meta, through_sequence=None))
        return self._rows[path]

    def content(self, tenant: str, index: TimelineIndex, lsn: int) -> Content:
        """What the files of a timeline say at an LSN, read row by row."""
        paths = {
            id: layout.layer_path(tenant, int(origin.split("/")[0]), origin.split("/")[1], id)
            for origin, ids in index.origins.items()
            for id in ids
        }
        newest: dict[bytes, LoggedRow] = {}
        for meta in index.files.files():
            through = lsn if meta.through_sequence is None else min(lsn, meta.through_sequence)
            for row in self.rows(paths[meta.id], meta):
                known = newest.get(row.key)
                if row.sequence <= through and (known is None or known.sequence < row.sequence):
                    newest[row.key] = row
        return {key: row.value for key, row in newest.items() if row.kind == Kind.PUT}

    def _check_rows(self, tenant: str, index: TimelineIndex) -> None:
        """I5: every LSN of [cutoff, committed LSN] is readable from the committed files."""
        timeline = layout.log_key(tenant, index.id)
        first = self.log_first(timeline) if not index.is_read_only else 0
        if first > index.lsn + 1:
            raise PromiseBroken(f"I5: the log of {timeline} begins at {first}, and {index.lsn} is committed")
        for lsn in range(max(index.cutoff, index.lsn - 20), index.lsn + 1):
            self.oracle.check(timeline, lsn, self.content(tenant, index, lsn), what=f"I5: files of {tenant}")


def layers(tenant: str, manifest: Manifest) -> set[str]:
    """The files of all timelines."""
    return {
        layout.layer_path(tenant, int(origin.split("/")[0]), origin.split("/")[1], id)
        for index in manifest.timelines
        for origin, ids in index.origins.items()
        for id in ids
    }


class ObservedLedger(KeyValueWrapper):
    """The ledger's store below all control planes: each change of a record is judged at once.

    Args:
        inner: the real store.
        monitor: judges.
    """

    def __init__(self, inner: KeyValue, *, monitor: FleetMonitor) -> None:
        super().__init__(inner)
        self._monitor = monitor
        self._seen: dict[bytes, bytes] = {}

    def intercept(self, call: KeyValueCall, perform: Callable[[], R]) -> R:
        """Make the call, then judge what changed."""
        result = perform()
        if call.changes:
            self._monitor.judged(self._look, by=str(call))
        return result

    def _look(self) -> None:
        with self.inner.snapshot() as now:
            rows = {
                key: value
                for prefix in (layout.DONE, layout.TENANTS)
                for key, value in now.scan(prefix, layout.prefix_end(prefix))
            }
        before, self._seen = self._seen, rows
        changed = [key for key in {**before, **rows} if before.get(key) != rows.get(key)]
        done = [key for key in changed if key.startswith(layout.DONE) and key in rows]
        records = [key for key in changed if key.startswith(layout.TENANTS)]
        for key in done:
            tenant = key.removeprefix(layout.DONE).rpartition(b"/")[0].decode()
            self._monitor.finished(tenant, msgspec.json.decode(rows[key], type=Transaction))
        for key in records:
            self._monitor.recorded(_record(before.get(key)), _record(rows.get(key)), self.inner)


def _record(raw: bytes | None) -> TenantRecord | None:
    return None if raw is None else msgspec.json.decode(raw, type=TenantRecord)
