"""The requirements of fleets, R1 to R30, one by one: a test here, or the name of the test elsewhere that holds it.

The table in docs/design/0044-fleet-requirements.md names the same tests for every sentence of the design.
"""

from __future__ import annotations

import ast
from pathlib import Path
from typing import Final

import pytest

from lakebed.errors import Conflict, InvalidRequest
from lakebed.fleet.layout import layer_path, parse_layer_path, txn_folder
from lakebed.fleet.manifest import decode_deadlist, decode_referenced
from lakebed.fleet.model import MAIN, Policy, TransactionState
from lakebed.fleet.ports import AckRequest, CommitRequest
from worlds.errors import raises
from worlds.fleet_in_process import FleetInProcess

ROOT: Final = Path(__file__).parents[3]
ORDERS: Final = "orders"

NODE: Final = "tests/behaviour/fleet/node"
CONTROL: Final = "tests/behaviour/fleet/control"

HELD_ELSEWHERE: Final = {
    10: (f"{NODE}/test_crashes.py::test_rejection_is_remembered",),
    13: (
        f"{NODE}/test_crashes.py::test_a_restart_without_the_control_plane",
        "tests/behaviour/fleet/client/test_client.py::test_the_control_plane_is_away",
    ),
    14: (f"{NODE}/test_crashes.py::test_idle_policies",),
    15: (
        f"{NODE}/test_crashes.py::test_only_one_process_uses_a_local_state",
        f"{NODE}/test_crashes.py::test_a_restart_without_the_control_plane",
        f"{NODE}/test_crashes.py::test_unknown_objects_are_deleted_after_a_restart",
    ),
    16: (
        f"{CONTROL}/test_collection.py::test_a_committed_transaction_costs_one_get_and_a_delete_a_thousand",
        f"{CONTROL}/test_collection.py::test_nothing_is_deleted_before_the_settle_time",
    ),
    18: (
        f"{CONTROL}/test_collection.py::test_a_rejected_transaction_is_listed_twice_and_not_before_it_is_acknowledged",
    ),
    19: (
        f"{CONTROL}/test_collection.py::test_a_failure_at_any_request_of_a_collection_is_continued",
        f"{CONTROL}/test_collection.py::test_a_new_control_plane_continues_the_collection",
    ),
    20: (
        f"{NODE}/test_attachments.py::test_a_pruned_log_means_a_rejection",
        f"{NODE}/test_attachments.py::test_a_missing_file_means_a_rejection",
    ),
    21: (f"{CONTROL}/test_collection.py::test_a_reader_delays_the_deletion_of_what_it_may_read",),
    25: (f"{CONTROL}/test_collection.py::test_a_decommissioned_node_is_acknowledged_for_after_the_wait",),
    26: (
        f"{CONTROL}/test_relocation.py::test_a_relocation_from_begin_to_end",
        f"{CONTROL}/test_relocation.py::test_a_source_that_must_commit_dooms_the_target_which_is_attached_again",
        f"{CONTROL}/test_relocation.py::test_a_target_that_does_not_come_near_gets_help_and_is_given_up",
        f"{NODE}/test_attachments.py::test_a_relocation_keeps_rows_in_memory",
    ),
    29: (
        f"{CONTROL}/test_relocation.py::test_a_drain_moves_all_tenants_one_by_one_and_back",
        f"{CONTROL}/test_relocation.py::test_a_new_control_plane_continues_a_drain",
    ),
    30: (
        f"{NODE}/test_attachments.py::test_uncommitted_bytes_are_bounded",
        f"{NODE}/test_attachments.py::test_memtables_share_a_budget",
    ),
}
"""Requirements that another test holds."""


@pytest.fixture
def fleet() -> FleetInProcess:
    """Two nodes, and a tenant with ten committed rows."""
    fleet = FleetInProcess()
    tenant = fleet.tenant(ORDERS)
    tenant.create(policy=Policy(retain_rows=100))
    for number in range(10):
        tenant.main.put(b"k%d" % number, b"v")
    tenant.main.checkpoint()
    return fleet


def paths(fleet: FleetInProcess) -> list[str]:
    """Every object of the tenants."""
    return [meta.path for meta in fleet.storage.list() if not meta.path.startswith("_fleet")]


def fail_over(fleet: FleetInProcess) -> str:
    """Stop the tenant's node, as SIGSTOP does, until its tenant is elsewhere; the node's name."""
    old = fleet.node_of(ORDERS)
    fleet.stopped.add(old)
    for _ in range(100):
        fleet.wait(0.2)
        if fleet.node_of(ORDERS) != old:
            return old
    raise AssertionError("no failover")


def test_r1_transactions_have_ascending_ids_that_are_durable(fleet: FleetInProcess) -> None:
    """R1: id, base, node, generation, state; monotone, never used again, in the ledger before the reply."""
    seen: list[int] = []
    main = fleet.tenant(ORDERS).main
    for _ in range(3):
        record = fleet.ledger.tenant(ORDERS, fresh=True)
        opened = record.transactions[-1]
        assert (opened.base, opened.state) == (record.committed, TransactionState.OPEN)
        assert opened.id < record.next_txn
        seen.append(opened.id)
        fleet.restart_control()
        main.put(b"k", b"v")
        main.checkpoint()
    assert seen == sorted(set(seen))


def test_r2_r3_every_object_has_the_transaction_in_its_path(fleet: FleetInProcess) -> None:
    """R2, R3: no object without a transaction; one LIST of its folder has every object that it wrote."""
    record = fleet.ledger.tenant(ORDERS, fresh=True)
    result = paths(fleet)
    assert result
    for path in result:
        txn = int(path.split("/")[1])
        assert 0 < txn < record.next_txn
        assert path.startswith(txn_folder(ORDERS, txn) + "/")
    layers = [name for path in result if (name := parse_layer_path(path)) is not None]
    assert layers
    assert all(layer_path(*name) in result for name in layers)


def test_r4_r8_attaching_dooms_and_only_the_present_attachment_is_granted(fleet: FleetInProcess) -> None:
    """R4, R8: what the stopped node has open is rejected in the write that attaches; its request changes nothing."""
    before = fleet.ledger.tenant(ORDERS, fresh=True)
    opened = before.transactions[-1]
    fail_over(fleet)
    after = fleet.ledger.tenant(ORDERS, fresh=True)
    doomed = next(transaction for transaction in after.transactions if transaction.id == opened.id)
    assert doomed.state is TransactionState.REJECT_PENDING
    assert before.manifest is not None
    manifest = type(before.manifest)(f"{txn_folder(ORDERS, opened.id)}/manifest.1", "0" * 32, 10)
    request = CommitRequest(ORDERS, opened.id, opened.node, opened.generation, manifest, before.timelines, before.names)
    assert fleet.control.commit([request])[0].verdict == "rejected"
    assert fleet.ledger.tenant(ORDERS, fresh=True).committed == before.committed


def test_r5_r23_an_attachment_sees_its_base_and_reads_the_log_from_there(fleet: FleetInProcess) -> None:
    """R5, R23: the new node has every committed row from the manifest, and the others from the log."""
    main = fleet.tenant(ORDERS).main
    last = main.put(b"after the commit", b"1")
    committed = fleet.control.tenant(ORDERS).timelines[MAIN].lsn
    assert committed < last
    fail_over(fleet)
    fresh = fleet.tenant(ORDERS).main
    assert fresh.get(b"after the commit", lsn=last) == b"1"
    assert len(list(fresh.scan(lsn=committed))) == 10


def test_r6_r7_all_is_durable_before_the_commit_and_nothing_is_on_no_list(fleet: FleetInProcess) -> None:
    """R6, R7: the ledger pins the manifest; every object is in it, on its deadlist, or one of the two."""
    main = fleet.tenant(ORDERS).main
    for round in range(4):
        main.put(b"k%d" % round, b"w")
        main.checkpoint()
    fleet.nodes[fleet.node_of(ORDERS)].compact(ORDERS, MAIN)
    main.put(b"k", b"w")
    main.checkpoint()
    fleet.wait(3.0)
    record = fleet.ledger.tenant(ORDERS, fresh=True)
    assert record.manifest is not None
    manifest = decode_referenced(fleet.storage.get(record.manifest.path), record.manifest)
    named = {
        layer_path(ORDERS, int(origin.split("/")[0]), origin.split("/")[1], id)
        for index in manifest.timelines
        for origin, ids in index.origins.items()
        for id in ids
    }
    named.add(record.manifest.path)
    if record.deadlist is not None:
        named.add(record.deadlist)
        dead = decode_deadlist(fleet.storage.get(record.deadlist), path=record.deadlist).paths
        assert not named & set(dead)
    assert set(paths(fleet)) == named


def test_r9_a_lost_reply_is_answered_again(fleet: FleetInProcess) -> None:
    """R9: the same manifest is granted again, with the transaction that began; another one is refused."""
    record = fleet.ledger.tenant(ORDERS, fresh=True)
    done = fleet.ledger.finished(ORDERS, record.committed)
    assert done is not None
    assert done.manifest is not None
    request = CommitRequest(
        ORDERS, done.id, done.node, done.generation, done.manifest, record.timelines, record.names, done.has_deadlist
    )
    again = fleet.control.commit([request])[0]
    assert (again.verdict, again.txn) == ("granted", record.transactions[-1].id)
    other = type(done.manifest)(done.manifest.path, "f" * 32, done.manifest.size_bytes)
    request = CommitRequest(ORDERS, done.id, done.node, done.generation, other, record.timelines, record.names)
    assert fleet.control.commit([request])[0].verdict == "rejected"
    assert fleet.ledger.tenant(ORDERS, fresh=True) == record


def test_r11_r12_attaching_never_waits_and_a_node_that_is_back_is_detached(fleet: FleetInProcess) -> None:
    """R11, R12: the tenant is elsewhere while the old node stands still; when it asks again, it is told to stop."""
    old = fail_over(fleet)
    pending = [
        transaction for transaction in fleet.ledger.tenant(ORDERS, fresh=True).transactions if transaction.node == old
    ]
    assert [item.state for item in pending] == [TransactionState.REJECT_PENDING]
    fleet.stopped.discard(old)
    fleet.wait(10.0)
    assert [location.tenant for location in fleet.nodes[old].locations()] == []
    assert all(transaction.node != old for transaction in fleet.ledger.tenant(ORDERS, fresh=True).transactions)


def test_r17_a_pending_transaction_is_left_alone(fleet: FleetInProcess) -> None:
    """R17: what a stopped node wrote stays until it has acknowledged, however long that takes."""
    node = fleet.nodes[fleet.node_of(ORDERS)]
    fleet.tenant(ORDERS).main.put(b"k", b"v")
    fleet.wait(0.2)
    assert node.flush_once(ORDERS)
    opened = fleet.ledger.tenant(ORDERS, fresh=True).transactions[-1]
    prefix = txn_folder(ORDERS, opened.id) + "/"
    written = [path for path in paths(fleet) if path.startswith(prefix)]
    assert written
    old = fail_over(fleet)
    fleet.wait(60.0)
    assert [path for path in paths(fleet) if path.startswith(prefix)] == written
    fleet.stopped.discard(old)
    fleet.wait(20.0)
    assert not [path for path in paths(fleet) if path.startswith(prefix)]


def test_r22_the_log_is_pruned_to_the_committed_lsn_alone(fleet: FleetInProcess) -> None:
    """R22: rows that a node has ingested and not committed stay in the log, for any other consumer."""
    fleet.wait(5.0)
    committed = fleet.control.tenant(ORDERS).timelines[MAIN].lsn
    main = fleet.tenant(ORDERS).main
    last = main.put(b"new", b"1")
    assert main.get(b"new") == b"1"
    assert fleet.log.bounds(f"{ORDERS}/{MAIN}").first <= committed + 1
    assert [record.last_lsn for record in fleet.log.read(f"{ORDERS}/{MAIN}", committed)] == [last]


def test_r24_a_silent_node_is_replaced_without_a_person(fleet: FleetInProcess) -> None:
    """R24: within seconds, with an event; it gets no tenants before it has answered."""
    started_s = fleet.clock.monotonic_s()
    old = fail_over(fleet)
    assert fleet.clock.monotonic_s() - started_s < 20
    assert "node_silent" in {event.kind for _, event in fleet.control.events()}
    fleet.tenant("new").create()
    assert fleet.node_of("new") != old


def test_r27_attaches_at_once_are_limited() -> None:
    """R27: nodes load few manifests at a time, and the control plane makes few calls at a time."""
    fleet = FleetInProcess()
    node = next(iter(fleet.nodes.values()))
    assert node._context.options.attach_count_max <= 16
    assert node._context.options.catch_up_count_max <= 16
    names = [f"t{number}" for number in range(30)]
    for name in names:
        fleet.tenant(name).create()
        fleet.tenant(name).main.put(b"k", name.encode())
    fleet.kill("n1")
    fleet.wait(30.0)
    assert [fleet.tenant(name).main.get(b"k") for name in names] == [name.encode() for name in names]


def test_r28_changes_of_timelines_are_acknowledged_by_their_commit(fleet: FleetInProcess) -> None:
    """R28: at an LSN in [cutoff, committed LSN], in the committed manifest when the call returns."""
    main = fleet.tenant(ORDERS).main
    main.branch("b", lsn=5)
    main.pin("p", lsn=7)
    committed = {timeline.name: timeline for timeline in fleet.control.manifest(ORDERS).timelines}
    assert (committed["b"].branch_lsn, committed["p"].lsn) == (5, 7)
    with pytest.raises(InvalidRequest):
        main.branch("ahead", lsn=1_000)
    assert {timeline.name for timeline in fleet.control.manifest(ORDERS).timelines} == {MAIN, "b", "p"}
    fail_over(fleet)
    assert len(list(fleet.tenant(ORDERS).timeline("b").scan())) == 5


def test_an_acknowledgement_of_another_attachment_changes_nothing(fleet: FleetInProcess) -> None:
    """R18: only the attachment that has a transaction acknowledges it."""
    record = fleet.ledger.tenant(ORDERS, fresh=True)
    opened = record.transactions[-1]
    asked = AckRequest(ORDERS, opened.id, "another", opened.generation)
    assert not fleet.control.ack([asked])[0].is_accepted
    assert fleet.ledger.tenant(ORDERS, fresh=True) == record


def test_a_second_process_of_a_node_does_not_start(fleet: FleetInProcess) -> None:
    """R15: the local state is locked."""
    with raises(Conflict, "local_state_locked"):
        fleet.start("n1")


# ---- all of them


def names_of(path: str) -> set[str]:
    """The tests of a file."""
    tree = ast.parse((ROOT / path).read_text())
    return {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef) and node.name.startswith("test_")}


@pytest.mark.parametrize("number", range(1, 31))
def test_each_requirement_has_a_test(number: int) -> None:
    """By its number here, or by a name that is there."""
    names = {name for name in names_of("tests/behaviour/fleet/test_requirements.py") if f"_r{number}_" in f"{name}_"}
    pointers = HELD_ELSEWHERE.get(number, ())
    assert names or pointers, f"R{number} has no test"
    for pointer in pointers:
        path, _, name = pointer.partition("::")
        assert name in names_of(path), f"R{number}: there is no {pointer}"
