"""Versions and pins of a tenant, and the reasons to keep an object, from record, manifest and transactions. Pure.

A *version* of a tenant is a committed transaction that changed its timeline `MAIN`; its id is the transaction's. A
transaction that only branched, pinned or merged files does not make a version. A version can be read while its LSN can
be read: on the timeline itself, if it is not below the cutoff, or through a pin or branch at that LSN. Other states are
named ``<timeline>@<LSN>``.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import count
from typing import NamedTuple

from lakebed.errors import InvalidRequest, NotFound
from lakebed.fleet.layout import parse_layer_path, tenant_folder, txn_folder
from lakebed.fleet.model import MAIN, Manifest, TenantRecord, TimelineIndex, Transaction, TransactionState
from lakebed.fleet.ports import TransactionList
from lakebed.fleet.records import attachment_of, open_of
from lakebed.reclaim.model import Explanation, Pin, Version
from lakebed.texts import whole_number


class Position(NamedTuple):
    """A state of one timeline."""

    timeline: str
    """Its id."""
    lsn: int


@dataclass(frozen=True, slots=True)
class TenantState:
    """What is known of a tenant at one moment."""

    record: TenantRecord
    manifest: Manifest
    """The manifest of the last committed transaction."""
    transactions: TransactionList

    @property
    def name(self) -> str:
        """The tenant's name."""
        return self.record.tenant

    def timeline(self, name: str) -> TimelineIndex | None:
        """Return a timeline by name or id."""
        namesakes = (timeline for timeline in self.manifest.timelines if timeline.name == name)
        return next(namesakes, None) or self._by_id(name)

    def _by_id(self, id: str) -> TimelineIndex | None:
        """Return a timeline by its id.

        The id may be the name of another timeline: a restore gives that the name `MAIN`.
        """
        return next((timeline for timeline in self.manifest.timelines if timeline.id == id), None)

    def choose_name_of_former_main(self) -> str:
        """Choose a free name for the timeline that a restore replaces.

        The name contains the version that the restore makes if it is the next commit.
        """
        attachment = attachment_of(self.record, self.record.preferred)
        transaction = None if attachment is None else open_of(self.record, attachment)
        number = self.record.next_txn if transaction is None else transaction.id
        names = {timeline.name for timeline in self.manifest.timelines}
        return next(name for next_id in count(number) if (name := f"{MAIN}-until-{next_id}") not in names)

    # ---- versions

    def versions(self) -> list[Version]:
        """Versions that can be read, oldest first."""
        return [
            Version(
                self.name,
                str(txn.id),
                txn.ended_ms if txn.ended_ms is not None else txn.begun_ms,
                f"{MAIN} at LSN {txn.main_lsn}, committed by {txn.node}",
                {"timeline": txn.main, "lsn": txn.main_lsn, "node": txn.node},
            )
            for txn in self._changes()
            if self.place(Position(txn.main, txn.main_lsn)) is not None
        ]

    def _changes(self) -> list[Transaction]:
        """Return the first transaction of each position of `MAIN`, oldest first."""
        commits = [
            transaction
            for transaction in self.transactions.finished
            if transaction.state is TransactionState.COMMITTED and transaction.main
        ]
        first: dict[Position, Transaction] = {}
        for txn in sorted(commits, key=lambda transaction: transaction.id):
            first.setdefault(Position(txn.main, txn.main_lsn), txn)
        return list(first.values())

    def place(self, position: Position) -> Position | None:
        """Return the position at which a state can be read; None: it cannot be read any more."""
        for timeline in self.manifest.timelines:
            if timeline.id == position.timeline and timeline.cutoff <= position.lsn <= timeline.lsn:
                return position
        pins = self._pins_at(position)
        return Position(pins[0].id, position.lsn) if pins else None

    def _pins_at(self, position: Position) -> list[TimelineIndex]:
        """Pins and branches that were made of a state. The state can be read through them."""
        return [
            timeline
            for timeline in self.manifest.timelines
            if timeline.parent == position.timeline
            and timeline.branch_lsn == position.lsn
            and timeline.cutoff <= position.lsn
        ]

    def find(self, version: str) -> Position:
        """Find where to read a version: a number, ``<timeline>@<LSN>``, or the name of a pin or branch.

        Raises:
            NotFound: ``version_not_found``.
            InvalidRequest: ``below_cutoff``, for a version given as ``<timeline>@<LSN>``.
        """
        position = self._position(version)
        place = self.place(position)
        if place is not None:
            return place
        timeline = self._by_id(position.timeline)
        if timeline is None or whole_number(version) is not None:
            raise self._absent(version)
        if position.lsn < timeline.cutoff:
            raise InvalidRequest(
                f"The timeline {timeline.name} of the tenant {self.name} can be read from LSN {timeline.cutoff} on, "
                f"and {position.lsn} was asked for: pin an LSN, or set the policy's retain_rows, to keep older states.",
                kind="below_cutoff",
                cutoff=timeline.cutoff,
            )
        return position

    def _position(self, version: str) -> Position:
        """Return the state that a version names, even if it cannot be read. Raises `NotFound`."""
        number = whole_number(version)
        if number is not None:
            for txn in self._changes():
                if txn.id == number:
                    return Position(txn.main, txn.main_lsn)
            raise self._absent(version)
        name, _, digits = version.rpartition("@")
        lsn = whole_number(digits)
        timeline = self.timeline(name if name and lsn is not None else version)
        if timeline is None:
            raise self._absent(version)
        return Position(timeline.id, timeline.lsn if not name or lsn is None else lsn)

    def _absent(self, version: str) -> NotFound:
        versions = self.versions()
        range_text = f"It has {versions[0].id} to {versions[-1].id}" if versions else "It has none yet"
        return NotFound(
            f"The tenant {self.name} has no version {version}. {range_text}; lakebed history lists them.",
            kind="version_not_found",
            tenant=self.name,
            version=version,
        )

    def version_of(self, position: Position) -> str:
        """Return the version of a state: a number, or ``<timeline>@<LSN>``."""
        change = next(
            (transaction for transaction in self._changes() if (transaction.main, transaction.main_lsn) == position),
            None,
        )
        if change is not None:
            return str(change.id)
        timeline = self._by_id(position.timeline)
        return f"{position.timeline if timeline is None else timeline.name}@{position.lsn}"

    # ---- pins

    def pins(self) -> list[Pin]:
        """Pins and branches, by name, each with the bytes of layers that only it names; then the holds of readers."""
        alone = self._bytes_alone()
        pins = [self._pin_of(timeline, alone) for timeline in self.manifest.timelines if timeline.name != MAIN]
        pins.sort(key=lambda pin: pin.name)
        holds = (
            Pin(self.name, "hold", hold.id, str(hold.txn), "", None, hold.expires_ms) for hold in self.record.holds
        )
        return [*pins, *holds]

    def pin(self, name: str) -> Pin | None:
        """Return a pin or branch by name."""
        return next((pin for pin in self.pins() if pin.name == name and pin.kind != "hold"), None)

    def _pin_of(self, timeline: TimelineIndex, alone: dict[str, int]) -> Pin:
        position = Position(timeline.id, timeline.lsn)
        if timeline.parent is not None:
            position = Position(timeline.parent, timeline.branch_lsn)
        return Pin(
            self.name,
            "pin" if timeline.is_read_only else "branch" if timeline.parent is not None else "timeline",
            timeline.name,
            self.version_of(position),
            "",
            timeline.created_ms,
            timeline.expires_ms,
            alone.get(timeline.id, 0),
        )

    def _bytes_alone(self) -> dict[str, int]:
        """Bytes of the layers that only one timeline names, by its id."""
        holders: dict[str, list[str]] = {}
        sizes: dict[str, int] = {}
        for timeline in self.manifest.timelines:
            for file in timeline.files.files():
                holders.setdefault(file.id, []).append(timeline.id)
                sizes[file.id] = file.size_bytes
        bytes_alone: dict[str, int] = {}
        for file_id, named_by in holders.items():
            if len(named_by) == 1:
                bytes_alone[named_by[0]] = bytes_alone.get(named_by[0], 0) + sizes[file_id]
        return bytes_alone

    # ---- objects

    def explain(self, path: str) -> Explanation:
        """Explain why an object exists. `path` is relative to the tenant's folder."""
        full_path = f"{tenant_folder(self.name)}/{path}"
        layer = parse_layer_path(full_path)
        if layer is not None:
            holders = [
                timeline
                for timeline in self.manifest.timelines
                if any(f.id == layer.file_id for f in timeline.files.files())
            ]
            if holders:
                names = ", ".join(sorted(timeline.name for timeline in holders))
                alone = self._bytes_alone()
                pins = tuple(
                    self._pin_of(timeline, alone) if timeline.name != MAIN else self._main(timeline)
                    for timeline in holders
                )
                word, need = ("timeline", "needs") if len(holders) == 1 else ("timelines", "need")
                sentence = (
                    f"The {word} {names} of the tenant {self.name} {need} it: it is a layer of transaction {layer.txn}."
                )
                return Explanation(path, pins, sentence)
        if self.record.manifest is not None and self.record.manifest.path == full_path:
            sentence = f"It is the manifest of the tenant {self.name}: its newest committed state."
            return Explanation(path, (), sentence)
        return Explanation(path, (), self._why_unneeded(full_path))

    def explain_version(self, version: str) -> Explanation:
        """Explain what keeps a version readable, and what ends that. Arguments and errors as `find`."""
        self.find(version)
        position = self._position(version)
        timeline = self._by_id(position.timeline)
        if timeline is not None and timeline.is_read_only and timeline.parent is not None:
            position = Position(timeline.parent, timeline.branch_lsn)  # the state that the pin keeps
            timeline = self._by_id(position.timeline)
        number = self.version_of(position)
        sentences = []
        if timeline is not None and position.lsn > timeline.lsn:
            sentences.append(
                f"The timeline {timeline.name} is committed up to LSN {timeline.lsn}, not to {position.lsn}."
            )
        elif timeline is not None and position.lsn == timeline.lsn:
            sentences.append(f"Version {number} is the newest of the timeline {timeline.name} until the next commit.")
        elif timeline is not None and timeline.cutoff <= position.lsn:
            policy = self.record.policy
            sentences.append(
                f"Version {number} can be read on the timeline {timeline.name} while its cutoff, LSN "
                f"{timeline.cutoff} now, is not above LSN {position.lsn}: retain_rows={policy.retain_rows} and "
                f"retain_ms={policy.retain_ms} of the policy move it."
            )
        alone = self._bytes_alone()
        pins = tuple(self._pin_of(pin, alone) for pin in self._pins_at(position))
        if pins:
            names = ", ".join(sorted(f"{pin.kind} {pin.name}" for pin in pins))
            sentences.append(f"Version {number} is kept by {names}.")
        else:
            sentences.append("No pin or branch keeps it.")
        return Explanation(number, pins, " ".join(sentences))

    def _main(self, timeline: TimelineIndex) -> Pin:
        version = self.version_of(Position(timeline.id, timeline.lsn))
        return Pin(self.name, "timeline", timeline.name, version, "", timeline.created_ms, None)

    def _why_unneeded(self, whole: str) -> str:
        """Explain what deletes an object that the newest committed state does not name, if anything does."""
        txn = whole_number(whole.partition("/")[2].partition("/")[0])
        if txn is not None and f"{txn_folder(self.name, txn)}/" not in whole:
            txn = None
        unfinished = next((transaction for transaction in self.transactions.unfinished if transaction.id == txn), None)
        if unfinished is not None and unfinished.state is TransactionState.OPEN:
            return f"Transaction {txn} of the node {unfinished.node} is open, and wrote it: its commit decides."
        if unfinished is not None:
            return (
                f"Transaction {txn} of the node {unfinished.node} was rejected. It is deleted when the node has "
                "acknowledged that it writes no more, or was decommissioned."
            )
        if txn in self.transactions.to_collect:
            return f"Transaction {txn} is finished, and its collection is due: the control plane deletes what it left."
        txns = ", ".join(map(str, self.transactions.to_collect))
        if txns:
            return f"No timeline needs it: the collection of transaction {txns} deletes it if a deadlist names it."
        return "No timeline needs it, and no deadlist waits: lakebed fleet collect deletes it if nothing refers to it."
