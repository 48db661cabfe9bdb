"""What must hold when every process of a simulated fleet has ended.

Owns: `Rest`, and `JudgedFleet`, the world that ends with it. A control plane and every node are started once more,
without faults; the fleet must come to rest by itself. L1: each tenant commits what is appended now. L2: every finished
transaction is collected. I11: the collector finds nothing that nothing names. I10: every timeline is read at every LSN
from its cutoff on.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable
from contextlib import suppress
from datetime import timedelta
from typing import Final

from lakebed.errors import NotFound
from lakebed.fleet.collect import OrphanCollector, Reason
from lakebed.fleet.layout import by_id, log_key
from lakebed.fleet.ledger import Ledger
from lakebed.fleet.log.port import rows_of
from lakebed.fleet.model import MAIN, TenantRecord, TransactionState
from lakebed.fleet.node.node import Node
from worlds.fleet.oracle import Appended
from worlds.fleet.world import FleetWorld
from worlds.promise import PromiseBroken

ROUNDS_MAX: Final = 400
ROUND_S: Final = 0.25


class Rest:
    """The judgement at rest of one world."""

    def __init__(self, world: FleetWorld) -> None:
        self.world = world
        world.frozen.clear()
        world.resting.add("control.rest")
        self.parts: dict[str, Node] = {}
        self.control = world.make_control()
        world.controls["control.rest"] = self.control

    def check(self) -> None:
        """Judge. Raises `PromiseBroken`."""
        world = self.world
        for _, event in Ledger(world.ledger.inner).events(limit=1_000):
            if event.kind in world.forbidden_events:
                raise PromiseBroken(f"repair 13: {event}")
        over = {node.node for node in Ledger(world.ledger.inner).nodes() if node.is_decommissioned}
        for name in world.node_names:
            if name not in over | world.gone:
                self._start(name)
        if not self.parts:
            self._start("spare")
        records = world.monitor.records
        tenants = [item for item in world.tenants if item in records and not records[item].is_deleted]
        sound = [item for item in tenants if not self._is_forked(item)]
        for tenant in sound:
            self._append(tenant)
        self._until(lambda: self._all_committed(sound), "L1")
        for tenant in sound:
            self._read(world.monitor.records[tenant])
        self._force()
        self._until(self._all_collected, "L2")
        self._collect_orphans()

    def _start(self, name: str) -> None:
        world = self.world
        process = f"{name}.rest"
        made = world.make_node(name, process)
        world.resting.add(process)
        world.node_processes[name], world.nodes[process] = process, made
        made.start()
        self.parts[name] = made

    def _round(self) -> None:
        for part in self.parts.values():
            part.heartbeat_once()
            for _ in range(200):
                if not part.work_once():
                    break
        self.control.tick_once()
        self.world.environment.clock.sleep(ROUND_S)

    def _until(self, is_reached: Callable[[], str], what: str) -> None:
        waits = ""
        for _ in range(ROUNDS_MAX):
            self._round()
            if self.world.monitor.violations:
                raise self.world.monitor.violations[0]
            waits = is_reached()
            if not waits:
                return
        raise PromiseBroken(f"{what}: the fleet does not come to rest: {waits}")

    def _append(self, tenant: str) -> None:
        record = self.world.monitor.records[tenant]
        sealed = {*record.sealed, *record.sealing}
        names = {name: id for name, id in record.names.items() if id not in sealed}
        id = names.get(MAIN) or next(iter(id for id in names.values() if not record.timelines[id].is_read_only), None)
        if id is None:
            return  # nothing is left that takes rows
        timeline = log_key(tenant, id)
        write_id = str(uuid.UUID(int=self.world.rng.getrandbits(128), version=4))
        last = self.world.log().append(timeline, rows_of([b"rest"], [b"1"]), write_id=write_id)
        self.world.oracle.acknowledged(timeline, last, [Appended(b"rest", b"1")])

    def _is_forked(self, tenant: str) -> bool:
        """Whether its log has lost records: then its timeline may have stopped, for a person to decide."""
        return log_key(tenant, MAIN) in self.world.oracle.lost

    def _all_committed(self, tenants: list[str]) -> str:
        """Every row of every writable timeline is in a committed manifest."""
        for tenant in tenants:
            record = self.world.monitor.records.get(tenant)
            for id, progress in {} if record is None else record.timelines.items():
                last = self.world.oracle.last(log_key(tenant, id))
                if not progress.is_read_only and progress.lsn < last:
                    return f"{tenant}/{id} has {last} rows and committed {progress.lsn}"
            if record is not None and not record.timelines:
                return f"{tenant} has never committed"
        return ""

    def _force(self) -> None:
        """A person acknowledges for processes whose local state is lost: no process can ever do so."""
        for name in sorted(self.world.gone):
            with suppress(NotFound):  # it never came so far as to register
                self.control.decommission(name)
        local_ids = {self.world.locals[name].id for name in self.parts}
        for record in list(self.world.monitor.records.values()):
            for transaction in record.transactions:
                if transaction.state is TransactionState.REJECT_PENDING and transaction.local_id not in local_ids:
                    self.control.force_ack(record.tenant, transaction.id)
                    self.world.counts["forced"] += 1

    def _all_collected(self) -> str:
        for record in self.world.monitor.records.values():
            if record.is_deleted:
                return f"{record.tenant} is not removed"
            pending = [
                transaction for transaction in record.transactions if transaction.state is not TransactionState.OPEN
            ]
            if pending or record.relocation is not None or len(record.transactions) > len(record.attachments):
                return f"{record.tenant} has {record.transactions}, {record.attachments}, {record.relocation}"
        tasks = list(Ledger(self.world.ledger.inner).tasks())
        return f"{tasks[:3]} are to be collected" if tasks else ""

    def _read(self, record: TenantRecord) -> None:
        """Every LSN that can be read is the oracle's."""
        route = self.control.route(record.tenant)
        if route.node is None:
            raise PromiseBroken(f"L1: {record.tenant} is nowhere")
        part = self.parts[route.node]
        for info in part.timelines(record.tenant):
            timeline = log_key(record.tenant, info.id)
            for lsn in range(info.cutoff, info.lsn + 1):
                rows = {
                    key: value
                    for batch in part.scan(record.tenant, by_id(info.id), lsn=lsn)
                    for key, value in zip(batch.column(0).to_pylist(), batch.column(1).to_pylist(), strict=True)
                }
                self.world.oracle.check(timeline, lsn, rows, what="at rest")
                for key in self.world.keys:
                    value = part.get(record.tenant, by_id(info.id), key, lsn=lsn).value
                    self.world.oracle.check_value(timeline, key, lsn, value, what="at rest")
            self.world.counts["timelines read at rest"] += 1

    def _collect_orphans(self) -> None:
        """I11: every object is referenced, or in the prefix of an open transaction; `fleet collect` agrees."""
        monitor = self.world.monitor
        named = {path for paths in monitor.references.values() for path in paths}
        present = {meta.path for meta in self.world.power.list()}
        if missing := named - present:
            raise PromiseBroken(f"I2: at rest {sorted(missing)[:3]} are missing")
        prefixes = tuple(
            f"{record.tenant}.tenant/{transaction.id:016}/"
            for record in monitor.records.values()
            for transaction in record.transactions
        )
        if left := [path for path in sorted(present - named) if not path.startswith(prefixes)]:
            raise PromiseBroken(f"I11: at rest nothing names {left[:3]}")
        collector = OrphanCollector(
            Ledger(self.world.ledger.inner),
            self.world.power,
            grace=timedelta(0),
            environment=self.world.quiet,
        )
        report = collector.collect(dry_run=True)
        if not report.is_clean:
            raise PromiseBroken(f"I11: lakebed fleet collect finds {report}")
        strange = set(report.found) - {Reason.REFERENCED, Reason.UNFINISHED}
        if strange:
            raise PromiseBroken(f"I11: after all collections there is {strange}: {report}")
        self.world.counts["objects at rest"] += sum(item.object_count for item in report.found.values())


class JudgedFleet(FleetWorld):
    """A fleet that is judged at rest."""

    def check_at_rest(self) -> None:
        """Everything acknowledged can be read, every transaction is finished and collected, nothing is left."""
        Rest(self).check()
