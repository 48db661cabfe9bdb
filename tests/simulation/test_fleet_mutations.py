"""Each repair of fleets undone, by patching it out here: some run must break a promise within two hundred seeds.

A mutation names the scenario that is dense in what it is about; everything else is as in `test_fleet_races`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from msgspec.structs import replace

from lakebed.errors import Conflict
from lakebed.fleet import ledger, machine, records
from lakebed.fleet.control.collector import Collector
from lakebed.fleet.control.members import Members
from lakebed.fleet.control.reconciler import Reconciler
from lakebed.fleet.control.seals import Pruner, Seals
from lakebed.fleet.layout import log_key
from lakebed.fleet.log import changes as log_changes
from lakebed.fleet.model import MAIN, LogMark
from lakebed.fleet.node import attached, changes, local
from lakebed.fleet.node import timeline as node_timeline
from lakebed.fleet.node import transaction as transaction_module
from lakebed.fleet.node.attached import AttachedTenant
from lakebed.fleet.node.local import LocalState
from lakebed.fleet.node.node import Node
from lakebed.fleet.node.retirement import Retirement
from lakebed.fleet.node.timeline import Timeline
from lakebed.fleet.node.transaction import OpenTransaction
from lakebed.lsm.model import FileSet
from worlds.fleet.scenarios import SIMULATION
from worlds.undone import Mutation, Patch, Undone

UNDONE = Undone(SIMULATION, "fleets")
undone_in = UNDONE.in_scenario


# ---- grants


@undone_in("zombies")
def grant_always(patch: Patch) -> None:
    """Repair 4: every request of a transaction that is not over is granted."""

    def commit(record: Any, request: Any, *, finished: Any, now_ms: int) -> Any:
        result = machine.find_unfinished(record, request.txn)
        if result is None:
            return decide(record, request, finished=finished, now_ms=now_ms)
        opened = replace(result, state=machine.OPEN)
        return machine._grant(record, opened, request, now_ms=now_ms)

    decide = machine.commit
    patch.setattr(machine, "commit", commit)


@undone_in("zombies")
def no_base_is_compared(patch: Patch) -> None:
    """Repair 4: neither attaching nor a grant rejects others, and whatever is open is granted."""
    decide = machine.commit

    def commit(record: Any, request: Any, *, finished: Any, now_ms: int) -> Any:
        result = machine.find_unfinished(record, request.txn)
        if result is None or result.state is not machine.OPEN:
            return decide(record, request, finished=finished, now_ms=now_ms)
        return machine._grant(record, result, request, now_ms=now_ms)

    patch.setattr(machine, "commit", commit)
    patch.setattr(machine, "doom", lambda transactions, **more: transactions)


@undone_in("relocation")
def relocation_dooms(patch: Patch) -> None:
    """R26: attaching the target of a relocation rejects what the source has open."""
    relocate = machine.relocate

    def doom(record: Any, target: Any, *, now_ms: int) -> Any:
        doomed = tuple(
            machine.apply_move(transaction, machine.Move.DOOM, now_ms=now_ms)
            if transaction.state is machine.OPEN
            else transaction
            for transaction in record.transactions
        )
        step = relocate(record, target, now_ms=now_ms)
        if step.record == record:
            return step
        new = tuple(transaction for transaction in step.record.transactions if transaction.id >= record.next_txn)
        return machine.Step(step.reply, replace(step.record, transactions=(*doomed, *new)))

    patch.setattr(machine, "relocate", doom)


@undone_in("restarts", seed=2)
def other_local_states_are_acknowledged_for(patch: Patch) -> None:
    """Repair 9: a process acknowledges what another local state of its node has open."""
    restart = machine.restart

    def trusting(record: Any, node: Any, resumed: Any, *, now_ms: int) -> Any:
        mine = tuple(
            replace(transaction, local_id=node.local_id) if transaction.node == node.node else transaction
            for transaction in record.transactions
        )
        return restart(replace(record, transactions=mine), node, resumed, now_ms=now_ms)

    patch.setattr(machine, "restart", trusting)


# ---- log


@undone_in("failover")
def prune_by_any_progress(patch: Patch) -> None:
    """Repair 3: the log is pruned to what nodes may have ingested."""

    def prune(self: Any, log: Any, record: Any) -> None:
        for timeline, progress in record.timelines.items():
            if not progress.is_read_only:
                key = log_key(record.tenant, timeline)
                log.prune(key, log.bounds(key).last)

    patch.setattr(Pruner, "_prune", prune)


@undone_in("failover")
def rows_are_skipped(patch: Patch) -> None:
    """R23: an attachment reads the log from its end, not from its base's LSN."""
    ingest = Timeline.ingest_once

    def skip(self: Any) -> int:
        if self._mark.lsn == self._index.lsn:
            last = self._log.bounds(self.log_key).last
            records = self._log.read(self.log_key, max(self._mark.lsn, last - 1))
            if records and records[-1].last_lsn > self._mark.lsn:
                self._mark = records[-1].mark
                return 0
        return int(ingest(self))

    patch.setattr(Timeline, "ingest_once", skip)


@undone_in("log_loss", seed=14)
def any_record_follows(patch: Patch) -> None:
    """Repair 12: a node takes the record with the next LSN, without comparing its chain."""
    check = node_timeline.check_follows

    def by_number(timeline: str, mark: Any, record: Any) -> Any:
        return check(timeline, replace(mark, checksum=record.previous), record)

    patch.setattr(node_timeline, "check_follows", by_number)


# ---- timelines


@undone_in("branches_and_collection")
def changes_are_acknowledged_at_once(patch: Patch) -> None:
    """Repair 1: a branch is acknowledged before its commit."""

    def at_once(self: Any, attached: Any, is_done: Any, *, flush: bool = False) -> None:
        is_done()

    patch.setattr(Node, "_until_committed", at_once)


@undone_in("branches_and_collection")
def layers_of_branches_die(patch: Patch) -> None:
    """Repair 1: what the first timeline does not name any more is dead, whatever branches name."""
    all_paths = transaction_module.all_paths

    def first_only(tenant: str, indices: Any) -> Any:
        return all_paths(tenant, [index for index in indices if index.parent is None])

    patch.setattr(transaction_module, "all_paths", first_only)


@undone_in("branches_and_collection", seed=5)
def no_ceilings(patch: Patch) -> None:
    """Repair 11: a branch reads all rows of its parent's files."""
    patch.setattr(FileSet, "through", lambda self, sequence: self)


# ---- nodes


@undone_in("relocation", seed=187)
def manifests_are_overwritten(patch: Patch) -> None:
    """Repair 2: a transaction asks with whatever it has now, under one name."""
    freeze = OpenTransaction.freeze

    def again(self: Any, *, begin: bool = True) -> Any:
        self._record = replace(self._record, request=None)
        return freeze(self, begin=begin)

    patch.setattr(OpenTransaction, "freeze", again)
    patch.setattr(OpenTransaction, "_check_open", lambda self: None)
    patch.setattr(AttachedTenant, "_may_write", lambda self: (self._settle(), self.transaction)[1])
    patch.setattr(transaction_module, "put_new", lambda storage, path, body: storage.put(path, body))


@undone_in("restarts", seed=8)
def resume_without_the_lock(patch: Patch) -> None:
    """Repair 9: a process takes the local state though another one has it."""
    acquire_locked = LocalState.acquire

    def acquire(self: Any, *given: Any, **named: Any) -> None:
        self.release()
        acquire_locked(self, *given, **named)

    patch.setattr(LocalState, "acquire", acquire)


@undone_in("branches_and_collection")
def paths_are_not_noted(patch: Patch) -> None:
    """Repair 10: what a transaction wrote and dropped is on no list."""
    patch.setattr(OpenTransaction, "mint", lambda self, path: path)


@undone_in("zombies", seed=1)
def nothing_is_acknowledged(patch: Patch) -> None:
    """R10, L2: a node stops, and neither says so, nor does the control plane find it out."""
    patch.setattr(Retirement, "_acknowledge", lambda self, txn, generation: None)
    patch.setattr(Reconciler, "_acknowledge_unknown", lambda self, transaction, tenant, location: None)


@undone_in("relocation", seed=1)
def old_locations_count(patch: Patch) -> None:
    """A node takes over whatever it is told last, however old it is."""

    def last(self: Any, location: Any) -> None:
        self._wanted = location
        self._settled = None if self._settled is None else replace(self._settled, generation=-1)

    patch.setattr(AttachedTenant, "put_location", last)


# ---- control planes


@undone_in("control_twice", seed=1)
def commits_are_collected_in_any_order(patch: Patch) -> None:
    """R16: the newest commit is collected first, and with it the deadlist of the one before it."""

    def newest_first(self: Any, tenant: str) -> float | None:
        tasks = [task for task in self._context.ledger.tasks_of(tenant) if task.kind.value == "committed"]
        waits = [left_s for item in reversed(tasks) if (left_s := self._collect_commit(item)) is not None]
        return min(waits, default=None)

    patch.setattr(Collector, "_collect_in_order", newest_first)


@undone_in("zombies", seed=1)
def prefixes_of_pending_transactions_are_deleted(patch: Patch) -> None:
    """R17: a rejected transaction is collected before its node has acknowledged."""
    give = machine.attach

    def attach(record: Any, node: Any, *, now_ms: int) -> Any:
        step = give(record, node, now_ms=now_ms)
        pending = tuple(transaction for transaction in step.record.transactions if transaction.state is machine.PENDING)
        over = machine.acknowledge(step.record, pending, machine.Move.FORCE, now_ms=now_ms)
        return machine.Step(step.reply, over.record, over.finished, over.tasks)

    patch.setattr(machine, "attach", attach)


@undone_in("failover")
def no_failover(patch: Patch) -> None:
    """R24, L1: silent nodes keep their tenants."""
    patch.setattr(Members, "overdue", lambda self: [])


@undone_in("readers", seed=1)
def no_holds(patch: Patch) -> None:
    """Repair 7: what died is deleted under those who read an older state."""
    patch.setattr(records, "is_held", lambda record, task, *, now_ms: False)


@undone_in("control_sleeps")
def a_control_plane_trusts_its_clock(patch: Patch) -> None:
    """Repair 13: a control plane that stood still takes every node for dead."""

    def overdue(self: Any) -> Any:
        now_s = self._clock.monotonic_s()
        return [item for item in self.all() if item.is_usable and now_s - item.heard_s > self._options.silent_ms / 1000]

    patch.setattr(Members, "overdue", overdue)


# ---- tenants and timelines that come and go


@undone_in("restores")
def a_restore_drops_what_was(patch: Patch) -> None:
    """R28: what a restored timeline was is not kept."""
    changed = attached.change_timelines

    def dropping(timelines: Any, committed: Any, change: Any, **times: Any) -> Any:
        after = changed(timelines, committed, change, **times)
        return {id: item for id, item in after.items() if not change.kept_as or item.name != change.kept_as}

    patch.setattr(attached, "change_timelines", dropping)


@undone_in("deeper_branches", seed=1)
def layers_of_deleted_parents_die(patch: Patch) -> None:
    """Repair 1: a layer goes with the timeline that wrote it, whatever its branches name."""
    all_paths = transaction_module.all_paths

    def own_only(tenant: str, indices: Any) -> Any:
        present = list(indices)
        ids = {item.id for item in present}
        return {id: path for id, path in all_paths(tenant, present).items() if path.split("/")[3] in ids}

    patch.setattr(transaction_module, "all_paths", own_only)


@undone_in("pins_and_cutoff", seed=6)
def pins_below_the_cutoff(patch: Patch) -> None:
    """R28: a timeline is pinned and branched at any LSN, also at one whose state is not kept."""
    branch = changes._branch

    def anywhere(committed: Any, change: Any, *, now_ms: int) -> Any:
        return branch({id: replace(item, cutoff=0) for id, item in committed.items()}, change, now_ms=now_ms)

    patch.setattr(changes, "_branch", anywhere)


@undone_in("pins_and_cutoff", seed=4)
def pins_expire_early(patch: Patch) -> None:
    """A pin goes some seconds before its time."""
    without_expired = attached.without_expired
    patch.setattr(attached, "without_expired", lambda now, *, now_ms: without_expired(now, now_ms=now_ms + 3_000))


@undone_in("tenants_created_again")
def a_tenant_created_again_has_the_same_timeline(patch: Patch) -> None:
    """R1: the first timeline of a tenant has the id that the deleted one's had."""
    new_tenant = machine.new_tenant

    def same(*given: Any, **more: Any) -> Any:
        made = new_tenant(*given, **more)
        return replace(made, names={MAIN: MAIN}, timelines=dict.fromkeys([MAIN], next(iter(made.timelines.values()))))

    patch.setattr(machine, "new_tenant", same)


@undone_in("tenants_created_again")
def a_tenant_created_again_counts_anew(patch: Patch) -> None:
    """R1: transactions and generations begin at 1 again."""
    new_tenant = machine.new_tenant
    patch.setattr(machine, "new_tenant", lambda name, **more: new_tenant(name, **{**more, "floor": None}))


@undone_in("tenants_created_again")
def tenants_are_removed_early(patch: Patch) -> None:
    """R18: a deleted tenant is removed although its nodes may write."""
    patch.setattr(Collector, "_remove", lambda self, tenant: self._remove_all(self._context.ledger.tenant(tenant)))


@undone_in("names_that_move")
def logs_are_not_sealed(patch: Patch) -> None:
    """A timeline that has lost its name takes the rows of clients with an old route."""

    def plan(self: Any, group: Any, known: Any, keys: Any, reading: Any) -> Any:
        group.after.append(self.finish)
        return known

    patch.setattr(log_changes.Seal, "plan", plan)


@undone_in("names_that_move")
def names_are_shown_before_the_seal(patch: Patch) -> None:
    """A change is answered, and routes show it, before its log is sealed; that comes with the next round."""
    seal, seal_once = Seals.seal, Seals.seal_once
    in_rounds: set[int] = set()

    def seal_in_a_round(self: Any) -> None:
        in_rounds.add(id(self))
        try:
            seal_once(self)
        finally:
            in_rounds.discard(id(self))

    patch.setattr(Seals, "seal_once", seal_in_a_round)
    patch.setattr(Seals, "seal", lambda self, record: seal(self, record) if id(self) in in_rounds else None)


@undone_in("power", seed=1)
def manifests_are_not_durable(patch: Patch) -> None:
    """R6: a commit is asked for before its manifest is durable."""

    def put_new(storage: Any, path: str, body: Any) -> None:
        storage.put(path, body, create_only=True, durable=False)

    patch.setattr(transaction_module, "put_new", put_new)


@undone_in("power", seed=8)
def the_local_state_is_not_durable(patch: Patch) -> None:
    """R15: the local state is what it was some seconds ago after a power loss."""
    patch.setattr(local._Folder, "write", lambda self, name, body: self._store.put(name, body, durable=False))


@undone_in("controls_in_turn")
def records_are_written_blindly(patch: Patch) -> None:
    """A control plane writes a record without comparing what is there."""
    add = ledger._Write.add

    def blindly(self: Any, before: Any, step: Any) -> Any:
        body = add(self, before, step)
        self.expected.clear()
        return body

    patch.setattr(ledger._Write, "add", blindly)


@undone_in("reader_far_behind", seed=52)
def a_hole_in_the_log_is_skipped(patch: Patch) -> None:
    """R20: a node that needs records which were pruned reads on behind them."""
    ingest = Timeline.ingest_once

    def skip(self: Any) -> int:
        try:
            return int(ingest(self))
        except Conflict as error:
            first = error.facts.get("first")
            if error.kind != "log_pruned" or first is None:
                raise
            records = self._log.read(self.log_key, first - 1)
            if records:
                self._mark = LogMark(records[0].first_lsn - 1, records[0].previous)
            return 0

    patch.setattr(Timeline, "ingest_once", skip)


@pytest.mark.parametrize(("mutation", "scenario", "seed"), UNDONE.cases)
def test_a_repair_undone_breaks_a_promise(
    mutation: Mutation, scenario: str, seed: int | None, monkeypatch: Patch, found_at_seed: Callable[..., None]
) -> None:
    """Without it some run of this scenario breaks a promise."""
    UNDONE.find(mutation, scenario, seed, monkeypatch, found_at_seed)
