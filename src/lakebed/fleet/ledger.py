"""`Ledger`: the records of tenants, nodes, finished transactions, tasks and events, over the key-value port.

Owns: how a step of `lakebed.fleet.machine` becomes one compare-and-set of a tenant's record, with what finished in the
same write; batches over independent tenants, which share one write; bounded retries. A step is decided from the last
value that this process knows, and the write checks that the value is still current: a change costs no read. A step that
changes nothing is decided again from the store before it is answered. `OutcomeUnknown` is resolved by a read. The port
resolves the write before it answers the read: if the record is the one that was written, the write happened; otherwise
the step is decided again.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Final, Generic, TypeVar, cast

import msgspec

from lakebed.decoding import find_unknown_part, json_decoder
from lakebed.errors import (
    AlreadyExists,
    Conflict,
    Corruption,
    LakebedError,
    NotFound,
    OutcomeUnknown,
    Unavailable,
    UnsupportedFormat,
)
from lakebed.fleet import layout
from lakebed.fleet.model import CollectTask, Floor, LedgerId, NodeRecord, TenantRecord, Transaction
from lakebed.fleet.ports import Event
from lakebed.fleet.records import Step
from lakebed.key_value.port import KeyValue

R = TypeVar("R")
S = TypeVar("S", bound=msgspec.Struct)

TRIES_MAX: Final = 12
"""Most rounds of a change that conflicts with others."""
DONE_MAX: Final = 1_000
"""Approximate number of finished transactions kept for a tenant. The write of a newer one removes older ones."""
_KNOWN_COUNT_MAX: Final = 20_000
"""Records whose last value is kept, as bytes: about 1 KiB each."""

_ENCODE: Final = msgspec.json.Encoder().encode
_TENANT: Final = json_decoder(TenantRecord)
_NODE: Final = json_decoder(NodeRecord)
_DONE: Final = json_decoder(Transaction)
_TASK: Final = json_decoder(CollectTask)
_FLOOR: Final = json_decoder(Floor)
_ID: Final = json_decoder(LedgerId)
_EVENT: Final = json_decoder(Event)

Decide = Callable[[TenantRecord], Step[R]]
"""Decides a step from a record, or raises the reason for none. It may be called several times."""


@dataclass(slots=True)
class _Change(Generic[R]):
    """One tenant's part of a batch."""

    tenant: str
    decide: Decide[R]
    raw: bytes | None = None
    before: TenantRecord | None = None
    body: bytes = b""
    """The record to write."""
    is_fresh: bool = False
    step: Step[R] | None = None
    outcome: R | LakebedError | None = None
    is_over: bool = False

    def end(self, outcome: R | LakebedError) -> None:
        self.outcome, self.is_over = outcome, True


@dataclass(slots=True)
class _Write:
    """The single write of several steps."""

    puts: list[tuple[bytes, bytes]] = field(default_factory=list)
    deletes: list[bytes] = field(default_factory=list)
    expected: dict[bytes, bytes | None] = field(default_factory=dict)

    def add(self, before: bytes | None, step: Step[Any]) -> bytes:
        """Add a step. Return the bytes of its record."""
        key, tenant, body = layout.tenant_key(step.record.tenant), step.record.tenant, _ENCODE(step.record)
        self.expected[key] = before
        self.puts.append((key, body))
        self.puts += (
            (layout.transaction_key(tenant, transaction.id), _ENCODE(transaction)) for transaction in step.finished
        )
        self.deletes += (
            layout.transaction_key(tenant, transaction.id - DONE_MAX)
            for transaction in step.finished
            if transaction.id > DONE_MAX
        )
        self.puts += ((layout.collect_key(tenant, task.txn), _ENCODE(task)) for task in step.tasks)
        return body


class Ledger:
    """The records of a fleet. Thread-safe; any number of processes may use the same key-value store.

    Args:
        key_value: open; closed by `close`.
    """

    def __init__(self, key_value: KeyValue) -> None:
        self.key_value = key_value
        self._known: dict[str, bytes] = {}

    def close(self) -> None:
        """Close the key-value store."""
        self.key_value.close()

    def read_identity(self) -> str | None:
        """Return the id of this ledger; None: no control plane has used it yet. Cost: 1 read."""
        raw = self.key_value.get(layout.LEDGER)
        return None if raw is None else _read(_ID, raw, "ledger").id

    def identity(self, proposed: str) -> str:
        """Return the id of this ledger. A ledger without an id takes `proposed`.

        Cost: 1 read; the first time also a write.
        """
        raw = self.key_value.get(layout.LEDGER)
        if raw is None:
            with suppress(Conflict, OutcomeUnknown):  # another process may be first; what is written decides
                self.key_value.set_if(layout.LEDGER, _ENCODE(LedgerId(proposed)), expected=None)
            raw = self.key_value.get(layout.LEDGER)
        if raw is None:
            raise Unavailable("It is not known whether the ledger's id was written: try again.", kind="contention")
        return _read(_ID, raw, "ledger").id

    # ---- tenants

    def tenant(self, tenant: str, *, fresh: bool = False) -> TenantRecord:
        """Return a tenant's record as this process knows it; with `fresh`, as it is in the store.

        Raises `NotFound` (``tenant_not_found``). Cost: nothing once it is known; fresh: as `KeyValue.get`.
        """
        raw = None if fresh else self._known.get(tenant)
        if raw is None:
            raw = self.key_value.get(layout.tenant_key(tenant))
            self._learn(tenant, raw)
        if raw is None:
            raise no_tenant(tenant)
        return _read(_TENANT, raw, tenant)

    def some(self, tenants: Sequence[str]) -> list[TenantRecord | None]:
        """Records of tenants in the store, as of one moment; None for a missing one. Cost: one snapshot."""
        with self.key_value.snapshot() as now:
            values = now.get_many([layout.tenant_key(tenant) for tenant in tenants])
        for tenant, raw in zip(tenants, values, strict=True):
            self._learn(tenant, raw)
        return [
            None if raw is None else _read(_TENANT, raw, tenant) for tenant, raw in zip(tenants, values, strict=True)
        ]

    def tenants(self, *, after: str = "") -> Iterator[TenantRecord]:
        """Yield all tenants after a name, by name, as of one moment. Cost: a scan; about 15 us a tenant."""
        start = layout.tenant_key(after) + b"\0" if after else None
        for key, raw in self._scan(layout.TENANTS, start=start):
            record = _read(_TENANT, raw, key.decode())
            self._learn(record.tenant, raw)
            yield record

    def create(self, step: Step[R], *, floor: Floor | None = None) -> R:
        """Write the record of a new tenant.

        Args:
            floor: the record begins above it. The write checks that it is current: if a tenant of the name was created
                and deleted meanwhile, that one has used ids above this floor.

        Raises `AlreadyExists` (``tenant_exists``), `Conflict` (``tenant_deleted``): the one of the name is being
        deleted, `Unavailable` (``contention``).
        """
        tenant = step.record.tenant
        write = _Write()
        write.add(None, step)
        write.expected[layout.floor_key(tenant)] = None if floor is None else _ENCODE(floor)
        try:
            self.key_value.write(write.puts, write.deletes, expected=write.expected)
        except (Conflict, OutcomeUnknown) as error:
            raw, is_unclear = self.key_value.get(layout.tenant_key(tenant)), isinstance(error, OutcomeUnknown)
            if raw is None:
                changes = f"A tenant {tenant!r} was created and deleted meanwhile: try again."
                raise error if is_unclear else Unavailable(changes, kind="contention") from error
            if not is_unclear or raw != write.puts[0][1]:
                raise _exists(_read(_TENANT, raw, tenant)) from error
        self._learn(tenant, write.puts[0][1])
        return step.reply

    def change(self, tenant: str, decide: Decide[R]) -> R:
        """Change one tenant's record by a step. Raises as `decide`, and the errors that `change_many` returns."""
        outcome = self.change_many([(tenant, decide)])[0]
        if isinstance(outcome, LakebedError):
            raise outcome
        return outcome

    def change_many(self, changes: Sequence[tuple[str, Decide[R]]]) -> list[R | LakebedError]:
        """Change the records of independent tenants, in one write if no other writer interferes.

        Args:
            changes: a tenant may occur several times. Its changes are made in order, in as many writes.

        Returns:
            The replies, in order. For a refused change, its error: `NotFound` (``tenant_not_found``), what its `decide`
            raised, or `Unavailable` (``contention``).

        Raises:
            Unavailable, OutcomeUnknown, Fenced: errors of the store. The changes may have happened: ask again.
        Cost: 1 write for all; no read of known records that this process changed last.
        """
        parts = [_Change(tenant, decide) for tenant, decide in changes]
        pending = parts
        for _ in range(TRIES_MAX):
            pending = [change for change in pending if not change.is_over]
            if not pending:
                break
            self._try(_first_of_each(pending))
        for change in pending:
            if not change.is_over:
                change.end(Unavailable(f"Tenant {change.tenant!r} changes all the time: try again.", kind="contention"))
        return [cast(R | LakebedError, change.outcome) for change in parts]

    def _try(self, parts: Sequence[_Change[R]]) -> None:
        """Run one round: decide all, write what changes. What is unfinished after it is tried again."""
        self._load(parts)
        write = _Write()
        written_changes: list[_Change[R]] = []
        unsure: list[_Change[R]] = []
        for change in parts:
            self._decide(change)
            if change.is_over:
                continue
            assert change.step is not None
            if change.step.record is not change.before and change.step.record != change.before:
                change.body = write.add(change.raw, change.step)
                written_changes.append(change)
            elif change.is_fresh:
                change.end(change.step.reply)
            else:
                unsure.append(change)
        if written_changes:
            self._apply(write, written_changes)
        for change in unsure:  # decided from a value that may be old: read it before the answer
            self._known.pop(change.tenant, None)

    def _load(self, parts: Sequence[_Change[R]]) -> None:
        unknown = []
        for change in parts:
            change.raw, change.is_fresh = self._known.get(change.tenant), False
            if change.raw is None:
                unknown.append(change)
        if len(unknown) == 1:
            values = [self.key_value.get(layout.tenant_key(unknown[0].tenant))]
        elif unknown:
            with self.key_value.snapshot() as now:
                values = now.get_many([layout.tenant_key(change.tenant) for change in unknown])
        else:
            return
        for change, raw in zip(unknown, values, strict=True):
            change.raw, change.is_fresh = raw, True
            self._learn(change.tenant, raw)

    def _decide(self, change: _Change[R]) -> None:
        if change.raw is None:
            change.end(no_tenant(change.tenant))
            return
        try:
            change.before = _read(_TENANT, change.raw, change.tenant)
            change.step = change.decide(change.before)
        except (Unavailable, OutcomeUnknown):
            raise
        except LakebedError as error:
            if change.is_fresh:
                change.end(error)
                return
            self._known.pop(change.tenant, None)
            self._load([change])
            self._decide(change)

    def _apply(self, write: _Write, changes: Sequence[_Change[R]]) -> None:
        try:
            self.key_value.write(write.puts, write.deletes, expected=write.expected)
        except Conflict:
            for change in changes:
                self._known.pop(change.tenant, None)
            return
        except OutcomeUnknown:
            self._settle(changes)
            return
        except LakebedError:
            for change in changes:
                self._known.pop(change.tenant, None)
            raise
        for change in changes:
            assert change.step is not None
            self._learn(change.tenant, change.body)
            change.end(change.step.reply)

    def _settle(self, changes: Sequence[_Change[R]]) -> None:
        """After a lost reply, read the records: finish the changes that were written, decide the others again."""
        for change in changes:
            self._known.pop(change.tenant, None)
        with self.key_value.snapshot() as now:
            values = now.get_many([layout.tenant_key(change.tenant) for change in changes])
        for change, raw in zip(changes, values, strict=True):
            assert change.step is not None
            self._learn(change.tenant, raw)
            if raw == change.body:
                change.end(change.step.reply)

    def remove(self, record: TenantRecord, floor: Floor) -> None:
        """Remove the record of a deleted tenant, with its finished transactions. Raises `Conflict`."""
        prefix = layout.DONE + f"{record.tenant}/".encode()
        with self.key_value.snapshot() as now:
            finished_keys = [key for key, _ in now.scan(prefix, layout.prefix_end(prefix))]
        key = layout.tenant_key(record.tenant)
        self._known.pop(record.tenant, None)
        self.key_value.write(
            [(layout.floor_key(record.tenant), _ENCODE(floor))], [key, *finished_keys], expected={key: _ENCODE(record)}
        )

    def floor(self, tenant: str) -> Floor | None:
        """Return the floor above which a new tenant of the name begins; None: no tenant of the name was deleted."""
        raw = self.key_value.get(layout.floor_key(tenant))
        return None if raw is None else _read(_FLOOR, raw, tenant)

    # ---- finished transactions, tasks

    def finished(self, tenant: str, txn: int) -> Transaction | None:
        """Return a finished transaction. Cost: as `KeyValue.get`."""
        raw = self.key_value.get(layout.transaction_key(tenant, txn))
        return None if raw is None else _read(_DONE, raw, tenant)

    def list_finished(self, tenant: str) -> list[Transaction]:
        """Return the finished transactions of a tenant, oldest first."""
        prefix = layout.DONE + f"{tenant}/".encode()
        return [_read(_DONE, raw, tenant) for _, raw in self._scan(prefix)]

    def tasks(self) -> Iterator[CollectTask]:
        """Return the collector's tasks, by tenant and transaction."""
        return (_read(_TASK, raw, key.decode()) for key, raw in self._scan(layout.COLLECT))

    def tasks_of(self, tenant: str) -> Generator[CollectTask, None, None]:
        """Return the collector's tasks of a tenant, by transaction. They are read lazily."""
        prefix = layout.COLLECT + f"{tenant}/".encode()
        return (_read(_TASK, raw, tenant) for _, raw in self._scan(prefix))

    def replace_task(self, task: CollectTask, new: CollectTask | None, *, finished: Transaction | None = None) -> None:
        """Change or remove a task, and its transaction. Do nothing if another process has done so meanwhile."""
        key = layout.collect_key(task.tenant, task.txn)
        puts = [] if new is None else [(key, _ENCODE(new))]
        if finished is not None:
            puts.append((layout.transaction_key(task.tenant, finished.id), _ENCODE(finished)))
        with suppress(Conflict):
            self.key_value.write(puts, [key] if new is None else [], expected={key: _ENCODE(task)})

    # ---- nodes

    def node(self, node: str) -> NodeRecord | None:
        """Return a node's record. Cost: as `KeyValue.get`."""
        raw = self.key_value.get(layout.node_key(node))
        return None if raw is None else _read(_NODE, raw, node)

    def nodes(self) -> list[NodeRecord]:
        """Return all nodes, by name."""
        return [_read(_NODE, raw, key.decode()) for key, raw in self._scan(layout.NODES)]

    def change_node(self, node: str, decide: Callable[[NodeRecord | None], NodeRecord]) -> NodeRecord:
        """Change a node's record, which may not exist yet. Raises as `decide`, and `Unavailable` (``contention``)."""
        key = layout.node_key(node)
        for _ in range(TRIES_MAX):
            raw = self.key_value.get(key)
            new = decide(None if raw is None else _read(_NODE, raw, node))
            body = _ENCODE(new)
            if body == raw:
                return new
            try:
                self.key_value.set_if(key, body, expected=raw)
            except (Conflict, OutcomeUnknown):
                continue
            return new
        raise Unavailable(f"The record of node {node!r} changes all the time: try again.", kind="contention")

    # ---- events

    def add_events(self, events: Iterable[tuple[str, Event]], *, forget: Iterable[str] = ()) -> None:
        """Store events by their positions, and delete those at the positions `forget`."""
        puts = [(layout.event_key(position), _ENCODE(event)) for position, event in events]
        self.key_value.write(puts, [layout.event_key(position) for position in forget])

    def events(self, *, after: str = "", limit: int) -> list[tuple[str, Event]]:
        """Events after a position, oldest first."""
        start = layout.event_key(after) + b"\0" if after else layout.EVENTS
        events: list[tuple[str, Event]] = []
        for key, raw in self._scan(layout.EVENTS, start=start):
            if len(events) == limit:
                break
            events.append((key.removeprefix(layout.EVENTS).decode(), _read(_EVENT, raw, key.decode())))
        return events

    # ---- inside

    def _scan(self, prefix: bytes, *, start: bytes | None = None) -> Iterator[tuple[bytes, bytes]]:
        with self.key_value.snapshot() as now:
            yield from now.scan(start or prefix, layout.prefix_end(prefix))

    def _learn(self, tenant: str, raw: bytes | None) -> None:
        if raw is None:
            self._known.pop(tenant, None)
            return
        if len(self._known) >= _KNOWN_COUNT_MAX:
            self._known.clear()
        self._known[tenant] = raw


def no_tenant(tenant: str) -> NotFound:
    """Return the error of an unknown tenant."""
    return NotFound(
        f"There is no tenant {tenant!r}: create it, or list the tenants.", kind="tenant_not_found", tenant=tenant
    )


def _exists(record: TenantRecord) -> LakebedError:
    tenant = record.tenant
    if not record.is_deleted:
        return AlreadyExists(
            f"There is a tenant {tenant!r} already: choose another name, or use it.",
            kind="tenant_exists",
            tenant=tenant,
        )
    nodes = ", ".join(sorted({transaction.node for transaction in record.transactions}))
    waits = f" It waits until {nodes} has acknowledged that it writes no more." if nodes else ""
    return Conflict(
        f"The tenant {tenant!r} that was dropped is still being deleted: choose another name, or wait until lakebed "
        f"fleet tenants does not list it.{waits}",
        kind="tenant_deleted",
        tenant=tenant,
    )


def _first_of_each(parts: Sequence[_Change[R]]) -> list[_Change[R]]:
    """Return the first change of each tenant: one write has at most one step for a tenant."""
    return list({change.tenant: change for change in reversed(parts)}.values())[::-1]


def _read(decoder: msgspec.json.Decoder[S], raw: bytes, what: str) -> S:
    try:
        return decoder.decode(raw)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        if (unknown := find_unknown_part(error)) is not None:
            part, name = unknown
            raise UnsupportedFormat(
                f"The ledger's record of {what} has a {part} {name!r} that this lakebed does not know: upgrade "
                "lakebed.",
                kind="ledger_record",
                unknown=name,
            ) from error
        raise Corruption(f"The ledger's record of {what} cannot be read: {error}.", kind="ledger_record") from error
