"""Commands of ``lakebed fleet`` for operators: status, transactions, relocation, drain, events, collect."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Iterable, Iterator
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated, Any

from msgspec.structs import asdict

from lakebed.cli import exits, output
from lakebed.cli.arguments import duration
from lakebed.cli.command import Confirmed, Deletion
from lakebed.cli.context import LakeCommand
from lakebed.cli.fleet_context import FleetCommand, Node, TenantCommand, TenantName
from lakebed.cli.grammar import argument, option
from lakebed.errors import Conflict, Unavailable
from lakebed.fleet.address import LEDGER_VARIABLE, check_ledger_url
from lakebed.fleet.collect import OrphanReport
from lakebed.fleet.model import Transaction
from lakebed.fleet.ports import Event, OperatorPort
from lakebed.fleet.records import pending_of

if TYPE_CHECKING:
    from lakebed.fleet.connect import Fleet

_FOLLOW_S = 0.5
_PAGE = 1_000


class Status(FleetCommand, name="status"):
    """Show the fleet: where its parts are, its nodes and how long each has been silent."""

    def run(self) -> None:
        with self.fleet() as fleet:
            address, nodes, tenants = fleet.operator.address(), fleet.operator.nodes(), fleet.tenants()
            control = fleet.url
        waiting_count = sum(record.preferred is None and not record.is_deleted for record in tenants)
        moving = sum(record.relocation is not None for record in tenants)
        pending = [(record.tenant, transaction) for record in tenants for transaction in pending_of(record)]
        if self.json:
            output.document(
                {
                    "control": control,
                    "storage": address.storage,
                    "log": address.log,
                    "ledger": address.ledger,
                    "tenants": len(tenants),
                    "waiting": waiting_count,
                    "moving": moving,
                    "nodes": [asdict(node) for node in nodes],
                    "not_acknowledged": [
                        {"tenant": tenant, "transaction": transaction.id, "node": transaction.node}
                        for tenant, transaction in pending
                    ],
                }
            )
            return
        output.facts(
            [
                ("control plane", control),
                ("storage", address.storage),
                ("log", address.log),
                ("ledger", address.ledger),
                ("tenants", f"{len(tenants):,}, {waiting_count:,} waiting for a node, {moving:,} moving"),
            ]
        )
        output.lines([""])
        output.grid(
            ("node", "state", "tenants", "silent for", "not flushed", "url"),
            [
                (
                    node.node,
                    node.state,
                    f"{node.tenant_count:,}",
                    output.span(node.silent_ms),
                    output.size(node.unflushed_bytes),
                    node.url,
                )
                for node in nodes
            ],
            right=("tenants", "silent for", "not flushed"),
            less=("not flushed", "url", "silent for"),
            empty="No node. Start one: lakebed fleet node --control URL --local FOLDER",
        )
        if pending:
            self._explain(pending)

    def _explain(self, pending: list[tuple[str, Transaction]]) -> None:
        """Print which rejected transactions wait for their nodes, and what to do if a node does not come back."""
        names = ", ".join(sorted({transaction.node for _, transaction in pending}))
        tenant, first = pending[0]
        output.sentence(
            f"\n{output.count(len(pending), 'rejected transaction')} of {names} not acknowledged, and what was written "
            "in them is kept: a node acknowledges when it is back. If it has lost its folder (events say so), and no "
            f"older process of it can write: lakebed fleet ack {self.lake} {tenant} {first.id}. If it will never come "
            f"back: lakebed fleet decommission {self.lake} {first.node}."
        )


class Txns(TenantCommand, name="txns"):
    """List the transactions of a tenant: those that are not finished, then the finished ones, newest first."""

    def run(self) -> None:
        with self.fleet() as fleet:
            transactions = fleet.operator.transactions(self.tenant)
        unfinished = sorted(transactions.unfinished, key=lambda transaction: transaction.id, reverse=True)
        due_ids = set(transactions.to_collect)
        if self.json:
            output.document(
                {
                    "unfinished": [_of_transaction(transaction, due_ids) for transaction in unfinished],
                    "finished": [_of_transaction(transaction, due_ids) for transaction in transactions.finished],
                }
            )
            return
        output.grid(
            ("transaction", "base", "state", "node", "generation", "begun", "ended", "collection"),
            [
                (
                    str(transaction.id),
                    str(transaction.base),
                    str(transaction.state).replace("_", " "),
                    transaction.node,
                    str(transaction.generation),
                    output.ago(transaction.begun_ms),
                    output.ago(transaction.ended_ms),
                    "due" if transaction.id in due_ids else "-",
                )
                for transaction in (*unfinished, *transactions.finished)
            ],
            right=("transaction", "base", "generation"),
            less=("generation", "collection", "ended", "begun"),
            empty="No transaction.",
        )


class Migrate(TenantCommand, name="migrate"):
    """Move a tenant to another node without downtime; `tenants` and `events` show how far it is."""

    node: Node

    def run(self) -> None:
        with self.fleet() as fleet:
            before = fleet.operator.tenant(self.tenant)
            fleet.operator.migrate(self.tenant, self.node)
        moving = before.relocation
        if before.preferred == self.node and (moving is None or moving.target == self.node):
            text = f"The tenant {self.tenant} is on {self.node} already."
        else:
            text = f"The tenant {self.tenant} moves to {self.node}: both serve it until {self.node} has committed."
        self.result({"tenant": self.tenant, "target": self.node}, text)


class AttachReader(TenantCommand, name="attach-reader"):
    """Attach a tenant to a further node, read-only."""

    node: Node

    def run(self) -> None:
        with self.fleet() as fleet:
            fleet.operator.attach_reader(self.tenant, self.node)
        self.result(
            {"tenant": self.tenant, "node": self.node}, f"{self.node} follows the tenant {self.tenant}, read-only."
        )


class Drain(FleetCommand, name="drain"):
    """Move all tenants off a node, one by one; it gets no new ones. --undo moves them back."""

    node: Node
    undo: Annotated[bool, option("--undo", help="Let the node have tenants again, and move them back.")] = False

    def run(self) -> None:
        with self.fleet() as fleet:
            fleet.operator.drain(self.node, undo=self.undo)
        text = f"{self.node} has tenants again." if self.undo else f"The tenants of {self.node} move to other nodes."
        self.result({"node": self.node, "draining": not self.undo}, text)


class Decommission(Confirmed, FleetCommand, name="decommission"):
    """Give up a node for good: its transactions are acknowledged for it, so that what it wrote is collected.

    Revoke its credentials for the storage first, and wait until that has taken effect. A node that can still write
    would leave objects behind that nothing collects.
    """

    node: Node

    def run(self) -> None:
        self.ask(f"Is {self.node} unable to write to the storage, for good?")
        with self.fleet() as fleet:
            fleet.operator.decommission(self.node)
        self.result(
            {"node": self.node},
            f"{self.node} is decommissioned: its tenants are attached elsewhere, and its transactions are acknowledged "
            "for it once the revocation has had its time.",
        )


class Ack(Confirmed, FleetCommand, name="ack"):
    """Acknowledge one rejected transaction for its node, which must not be able to write any more."""

    tenant: TenantName
    txn: Annotated[int, argument("TRANSACTION", help="Its number, as `txns` lists it.")]

    def run(self) -> None:
        self.ask(f"Is the node of transaction {self.txn} unable to write to the storage, for good?")
        with self.fleet() as fleet:
            reply = fleet.operator.force_ack(self.tenant, self.txn)
        if not reply.is_accepted:
            raise Conflict(
                f"Cannot acknowledge transaction {self.txn} of the tenant {self.tenant}: {reply.reason}. lakebed fleet "
                f"txns {self.lake} {self.tenant} lists the transactions.",
                kind="ack_refused",
                tenant=self.tenant,
                transaction=self.txn,
                state=reply.state,
            )
        self.result(
            {"tenant": self.tenant, "transaction": self.txn, "state": reply.state},
            f"Transaction {self.txn} of the tenant {self.tenant} is {reply.state.replace('_', ' ')} now.",
        )


class Events(FleetCommand, name="events"):
    """List what happened: failovers, relocations, rejections, decommissions; oldest first."""

    follow: Annotated[bool, option("--follow", help="Continue as they happen, until interrupted.")] = False
    only: Annotated[str | None, option("--tenant", help="Only of this tenant.")] = None
    limit: Annotated[int, option("--limit", min=1, max=10_000, help="The newest ones, at most this many.")] = 1_000

    def run(self) -> None:
        with self.fleet() as fleet:
            newest: deque[Event] = deque(maxlen=self.limit)
            last = ""
            for last, event in _every_event(fleet.operator, after=""):  # noqa: B007
                if self._is_shown(event):
                    newest.append(event)
            if self.follow:
                self._follow(fleet, newest, last)
            else:
                self._print(list(newest))

    def _follow(self, fleet: Fleet, shown: Iterable[Event], last: str) -> None:
        """Print each event on a line, and those that follow. While no control plane answers, wait for one."""
        is_away = False
        while True:
            for event in shown:
                if self.json:
                    output.json_line(asdict(event))
                else:
                    output.lines([_line(event)])
            output.flush()
            fleet.environment.clock.sleep(_FOLLOW_S)
            try:
                events = list(_every_event(fleet.operator, after=last))
            except Unavailable as problem:
                if not is_away:
                    output.notes([f"{problem.message} Events are shown when it does."], json=self.json)
                events, is_away = [], True
            else:
                is_away = False
            last = events[-1][0] if events else last
            shown = [event for _, event in events if self._is_shown(event)]

    def _is_shown(self, event: Event) -> bool:
        return self.only is None or event.tenant == self.only

    def _print(self, events: list[Event]) -> None:
        self.grid(
            [asdict(event) for event in events],
            ("when", "what", "tenant", "node", "took", "message"),
            [
                (
                    output.ago(event.at_ms),
                    event.kind,
                    event.tenant or "-",
                    event.node or "-",
                    f"{event.took_ms:,} ms" if event.took_ms else "-",
                    event.message,
                )
                for event in events
            ],
            right=("took",),
            less=("took", "node", "tenant"),
            sentences=("message",),
            empty="Nothing happened yet.",
        )


class Collect(Deletion, LakeCommand, name="collect"):
    """Delete the objects of tenants that nothing refers to.

    After the collector has worked it finds nothing. What it finds is left by a defect, or by a node that wrote after
    it was decommissioned. It needs no running fleet.
    """

    ledger: Annotated[
        str | None,
        option(
            "--ledger",
            metavar="URL",
            help="postgresql://... Default: LAKEBED_FLEET_LEDGER, or the database in the lake.",
        ),
    ] = None
    grace: Annotated[str, option("--grace", metavar="AGE", help="Keep and report what is younger than this.")] = "1h"

    def run(self) -> None:
        grace = duration(self.grace)
        if not self.dry_run:
            self.ask("Delete every object of the tenants that nothing refers to? (--dry-run shows them.)")
        ledger = check_ledger_url(self.ledger or os.environ.get(LEDGER_VARIABLE) or None)
        report = self.open_lake().collect_tenants(ledger=ledger, dry_run=self.dry_run, grace=grace)
        if self.json:
            output.document(_of_orphans(report))
        else:
            _print_orphans(report)
        if report.missing or report.problems:
            raise exits.Exit(exits.FAULTY)


def _of_orphans(report: OrphanReport) -> dict[str, Any]:
    return {
        "dry_run": report.dry_run,
        "found": {
            str(reason): {
                "objects": finding.object_count,
                "bytes": finding.size_bytes,
                "examples": list(finding.examples),
            }
            for reason, finding in report.found.items()
        },
        "needless": report.needless_count,
        "missing": list(report.missing),
        "problems": list(report.problems),
        "deleted": report.deleted_count,
        "deleted_bytes": report.deleted_bytes,
    }


def _print_orphans(report: OrphanReport) -> None:
    output.grid(
        ("objects are", "count", "size"),
        [
            (str(reason).replace("_", " "), f"{finding.object_count:,}", output.size(finding.size_bytes))
            for reason, finding in report.found.items()
        ],
        right=("count", "size"),
        empty="The tenants have no object.",
    )
    for path in report.missing:
        output.sentence(f"error: {path} is missing, and a committed manifest names it.")
    for problem in report.problems:
        output.sentence(f"error: {problem}")
    if not report.needless_count:
        output.sentence("\nThere is nothing to delete.")
    elif report.dry_run:
        output.sentence(f"\nNothing refers to {output.count(report.needless_count, 'object')}.")
    else:
        output.sentence(
            f"\nDeleted {report.deleted_count:,} of {output.count(report.needless_count, 'object')} that nothing "
            f"refers to ({output.size(report.deleted_bytes)})."
        )


def _of_transaction(transaction: Transaction, due_ids: set[int]) -> dict[str, Any]:
    return {
        "id": transaction.id,
        "base": transaction.base,
        "state": str(transaction.state),
        "node": transaction.node,
        "generation": transaction.generation,
        "begun_ms": transaction.begun_ms,
        "ended_ms": transaction.ended_ms,
        "manifest": None if transaction.manifest is None else transaction.manifest.path,
        "has_deadlist": transaction.has_deadlist,
        "lsn": transaction.main_lsn,
        "collection_is_due": transaction.id in due_ids,
    }


def _every_event(operator: OperatorPort, *, after: str) -> Iterator[tuple[str, Event]]:
    """Yield all events after a position, oldest first. Cost: 1 request for 1000."""
    while True:
        page = operator.events(after=after, limit=_PAGE)
        yield from page
        if len(page) < _PAGE:
            return
        after = page[-1][0]


def _line(event: Event) -> str:
    """Return an event as a line: time of day, kind, message, how long it took."""
    time = datetime.fromtimestamp(event.at_ms / 1000, UTC).astimezone().strftime("%H:%M:%S.%f")[:-3]
    took = f" ({event.took_ms:,} ms)" if event.took_ms else ""
    return output.printable(f"{time}  {event.kind:<19}  {event.message}{took}")
