"""The transaction machine: each state and each event, and every record that events reach within bounds."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import msgspec
import pytest

from lakebed.errors import Conflict, InvalidRequest, LakebedError
from lakebed.fleet import layout, machine, records
from lakebed.fleet.model import (
    NUMBER_MAX,
    AttachmentMode,
    Floor,
    Hold,
    ManifestRef,
    NodeRecord,
    Policy,
    Progress,
    TenantRecord,
    Transaction,
    TransactionState,
)
from lakebed.fleet.ports import AckRequest, CommitRequest, Resumed
from worlds.errors import raises

NOW = 1_000
OPEN, COMMITTED, PENDING, ACKNOWLEDGED, COLLECTED = TransactionState
NODES = {name: NodeRecord(name, f"http://{name}:1", f"{name}-1", f"{name}-disk", 0) for name in "abc"}

LEGAL = {
    (OPEN, "grant"): COMMITTED,
    (OPEN, "doom"): PENDING,
    (OPEN, "ack"): ACKNOWLEDGED,
    (OPEN, "decommission"): ACKNOWLEDGED,
    (PENDING, "ack"): ACKNOWLEDGED,
    (PENDING, "force"): ACKNOWLEDGED,
    (PENDING, "decommission"): ACKNOWLEDGED,
    (ACKNOWLEDGED, "collect"): COLLECTED,
}
"""Written from the design, not from the code."""


def tenant(**changes: Any) -> TenantRecord:
    record = machine.new_tenant("t", policy=Policy(relocation_wait_max_ms=100), floor=None, now_ms=0)
    return msgspec.structs.replace(record, **changes)


def request_of(record: TenantRecord, txn: Transaction, *, lsn: int = 0, attempt: int = 1, **more: Any) -> CommitRequest:
    path = layout.manifest_path(record.tenant, txn.id, attempt)
    return CommitRequest(
        record.tenant,
        txn.id,
        txn.node,
        txn.generation,
        ManifestRef(path, f"{attempt:032x}", 100),
        timelines={"main": Progress(lsn, 0)},
        names={"main": "main"},
        **more,
    )


def ack_of(txn: Transaction) -> AckRequest:
    return AckRequest("t", txn.id, txn.node, txn.generation)


# ---- one transaction


@pytest.mark.parametrize("state", list(TransactionState))
@pytest.mark.parametrize("move", list(records.Move))
def test_a_transaction_makes_only_the_moves_of_the_table(state: TransactionState, move: records.Move) -> None:
    """Each state and each move: the state after it, or a refusal."""
    before = Transaction(1, 0, "a", 1, state, 0)
    if (state, move.value) in LEGAL:
        assert records.apply_move(before, move, now_ms=NOW).state is LEGAL[state, move.value]
        return
    with raises(Conflict, "illegal_move"):
        records.apply_move(before, move, now_ms=NOW)


def in_state(state: TransactionState) -> tuple[TenantRecord, Transaction | None, Transaction]:
    """A record whose transaction 1 is in a state; the finished transaction if it is one; the transaction."""
    record = machine.attach(tenant(), NODES["a"], now_ms=0).record
    txn = record.transactions[0]
    if state is OPEN:
        return record, None, txn
    if state is COMMITTED:
        step = machine.commit(record, request_of(record, txn, begin=False), finished=None, now_ms=0)
        return step.record, step.finished[0], step.finished[0]
    record = machine.attach(record, NODES["b"], now_ms=0).record
    txn = record.transactions[0]
    if state is PENDING:
        return record, None, txn
    acked = machine.ack(record, ack_of(txn), finished=None, now_ms=0)
    txn = acked.finished[0]
    if state is COLLECTED:
        txn = machine.collect(txn, now_ms=0)
    return acked.record, txn, txn


COMMIT_ANSWERS = {
    OPEN: "granted",
    COMMITTED: "granted",
    PENDING: "rejected",
    ACKNOWLEDGED: "rejected",
    COLLECTED: "rejected",
}
ACK_ANSWERS = {OPEN: True, COMMITTED: False, PENDING: True, ACKNOWLEDGED: True, COLLECTED: True}
FORCE_ANSWERS = {OPEN: False, COMMITTED: False, PENDING: True, ACKNOWLEDGED: True, COLLECTED: True}


@pytest.mark.parametrize("state", list(TransactionState))
def test_commit_in_every_state(state: TransactionState) -> None:
    """The row of the design's table; nothing changes but by the grant of an open one."""
    record, finished, txn = in_state(state)
    step = machine.commit(record, request_of(record, txn), finished=finished, now_ms=NOW)
    assert step.reply.verdict == COMMIT_ANSWERS[state]
    assert (step.record == record and not step.finished and not step.tasks) is (state is not OPEN)


@pytest.mark.parametrize("state", list(TransactionState))
def test_ack_and_force_in_every_state(state: TransactionState) -> None:
    """The rows of the design's table; what is refused or was done changes nothing."""
    record, finished, txn = in_state(state)
    for answers, step in (
        (ACK_ANSWERS, machine.ack(record, ack_of(txn), finished=finished, now_ms=NOW)),
        (FORCE_ANSWERS, machine.force_ack(record, txn.id, finished=finished, now_ms=NOW)),
    ):
        assert step.reply.is_accepted is answers[state]
        changes = answers[state] and state in (OPEN, PENDING)
        assert (step.record != record) is changes
        assert [transaction.state for transaction in step.finished] == ([ACKNOWLEDGED] if changes else [])
        assert [task.kind for task in step.tasks] == ([ACKNOWLEDGED] if changes else [])


@pytest.mark.parametrize("state", [COMMITTED, ACKNOWLEDGED, COLLECTED])
def test_collected_in_every_finished_state(state: TransactionState) -> None:
    """A committed one stays; a rejected one is collected, and again."""
    _, _, txn = in_state(state)
    assert machine.collect(txn, now_ms=NOW).state is (COMMITTED if state is COMMITTED else COLLECTED)


@pytest.mark.parametrize("state", [OPEN, PENDING])
def test_what_is_not_finished_is_not_collected(state: TransactionState) -> None:
    """Its node may still write."""
    with pytest.raises(Conflict):
        machine.collect(in_state(state)[2], now_ms=NOW)


def test_an_unknown_transaction_is_refused() -> None:
    """By commit, ack and force; nothing changes."""
    record, _, txn = in_state(OPEN)
    unknown = msgspec.structs.replace(txn, id=99)
    assert machine.commit(record, request_of(record, unknown), finished=None, now_ms=NOW).record is record
    assert not machine.ack(record, ack_of(unknown), finished=None, now_ms=NOW).reply.is_accepted
    assert not machine.force_ack(record, 99, finished=None, now_ms=NOW).reply.is_accepted


# ---- grants


def test_a_lost_reply_is_given_again_only_for_the_same_manifest() -> None:
    """Also after other commits have followed; with the transaction that began then."""
    record, _, txn = in_state(OPEN)
    request = request_of(record, txn)
    first = machine.commit(record, request, finished=None, now_ms=NOW)
    again = machine.commit(first.record, request, finished=first.finished[0], now_ms=NOW)
    assert again.reply == first.reply
    other = request_of(record, txn, attempt=2)
    assert machine.commit(first.record, other, finished=first.finished[0], now_ms=NOW).reply.verdict == "rejected"
    following = machine.commit(
        first.record, request_of(record, first.record.transactions[0]), finished=None, now_ms=NOW
    )
    assert machine.commit(following.record, request, finished=first.finished[0], now_ms=NOW).reply.verdict == "granted"


@pytest.mark.parametrize("other", ["A", "c"])
@pytest.mark.parametrize("base", [0, 1, 9])
def test_a_lost_reply_names_no_transaction_of_others(other: str, base: int) -> None:
    """The next transaction of a granted request is its own attachment's, or none."""
    record, _, txn = in_state(OPEN)
    request = request_of(record, txn, begin=False)
    granted = machine.commit(record, request, finished=None, now_ms=NOW)
    foreign = (Transaction(7, base, other, txn.generation, OPEN, 0), Transaction(8, base, "a", 9, OPEN, 0))
    later = msgspec.structs.replace(granted.record, transactions=foreign)
    reply = machine.commit(later, request, finished=granted.finished[0], now_ms=NOW).reply
    assert (reply.verdict, reply.txn) == ("granted", None)


STRANGERS = ({"node": "A"}, {"node": "b"}, {"generation": -1}, {"generation": 1})
"""Names before and behind the node's; generations below and above its own, as differences."""


def stranger(request: Any, change: dict[str, Any]) -> Any:
    """The same request of another attachment."""
    number = request.generation + change.get("generation", 0)
    return msgspec.structs.replace(
        request, **({"node": change["node"]} if "node" in change else {"generation": number})
    )


@pytest.mark.parametrize("state", list(TransactionState))
@pytest.mark.parametrize("change", STRANGERS, ids=str)
def test_another_attachment_gets_nothing(state: TransactionState, change: dict[str, Any]) -> None:
    """Another node or generation that asks to commit or acknowledges is refused in every state; nothing changes."""
    record, finished, txn = in_state(state)
    committed = machine.commit(record, stranger(request_of(record, txn), change), finished=finished, now_ms=NOW)
    assert (committed.reply.verdict, committed.record) == ("rejected", record)
    acked = machine.ack(record, stranger(ack_of(txn), change), finished=finished, now_ms=NOW)
    assert (acked.reply.is_accepted, acked.record, acked.finished) == (False, record, ())


@pytest.mark.parametrize(("state", "word"), [(COMMITTED, "it was committed"), (OPEN, "it is open")])
def test_a_forced_acknowledgement_says_why_it_is_refused(state: TransactionState, word: str) -> None:
    """A person reads it."""
    record, finished, txn = in_state(state)
    assert word in machine.force_ack(record, txn.id, finished=finished, now_ms=NOW).reply.reason


@pytest.mark.parametrize("mode", [AttachmentMode.STALE, AttachmentMode.READER])
def test_who_may_not_commit_is_rejected_for_good(mode: AttachmentMode) -> None:
    """The transaction is doomed by its request."""
    record, _, txn = in_state(OPEN)
    record = msgspec.structs.replace(record, attachments=(msgspec.structs.replace(record.attachments[0], mode=mode),))
    step = machine.commit(record, request_of(record, txn), finished=None, now_ms=NOW)
    assert step.reply.verdict == "rejected"
    assert [transaction.state for transaction in step.record.transactions] == [PENDING]


def test_an_older_base_is_rejected_for_good() -> None:
    """Safety does not rest on dooming: a transaction that began from another state than the last is refused."""
    record, _, txn = in_state(OPEN)
    record = msgspec.structs.replace(record, committed=7)
    step = machine.commit(record, request_of(record, txn), finished=None, now_ms=NOW)
    assert step.reply.verdict == "rejected"
    assert step.record.committed == 7
    assert [transaction.state for transaction in step.record.transactions] == [PENDING]


def test_a_timeline_does_not_go_backwards() -> None:
    """A manifest with fewer rows than the committed one is refused."""
    record, _, txn = in_state(OPEN)
    record = machine.commit(record, request_of(record, txn, lsn=5), finished=None, now_ms=NOW).record
    step = machine.commit(record, request_of(record, record.transactions[0], lsn=4), finished=None, now_ms=NOW)
    assert step.reply.verdict == "rejected"
    assert step.record.timelines["main"].lsn == 5


def test_a_grant_dooms_every_other_open_transaction_and_says_what_died() -> None:
    """In the same step: the record, what finished, the collector's task, the next transaction."""
    record = machine.relocate(in_state(OPEN)[0], NODES["b"], now_ms=0).record
    source, target = record.transactions
    step = machine.commit(record, request_of(record, target, has_deadlist=True), finished=None, now_ms=NOW)
    assert step.reply.txn == 3
    assert [(transaction.id, transaction.state) for transaction in step.record.transactions] == [
        (source.id, PENDING),
        (3, OPEN),
    ]
    assert [(transaction.id, transaction.state) for transaction in step.finished] == [(target.id, COMMITTED)]
    assert [task.deadlist for task in step.tasks] == [layout.deadlist_path("t", target.id, 1)]
    assert step.record.preferred == "b"
    assert {attachment.node: attachment.mode.value for attachment in step.record.attachments} == {
        "a": "stale",
        "b": "multi",
    }
    assert machine_holds(step.record, step.tasks[0].txn)
    following = machine.commit(
        step.record, request_of(record, step.record.transactions[-1], attempt=2), finished=None, now_ms=NOW
    )
    assert following.tasks[0].unneeded == (step.record.manifest.path, step.record.deadlist)  # type: ignore[union-attr]


def machine_holds(record: TenantRecord, txn: int) -> bool:
    task = records.CollectTask("t", txn, COMMITTED, since_ms=0)
    pin = records.is_held(record, task, now_ms=NOW)
    assert not records.is_held(record, task, now_ms=NOW + records.HOLD_MS)
    return pin


def test_a_reader_delays_what_later_commits_replaced() -> None:
    """What died at the state that is read, or before, no reader of it needs: it is collected meanwhile."""
    record = tenant(holds=(Hold("reader:b:1", 3, NOW + 1),))
    tasks = [records.CollectTask("t", txn, COMMITTED, since_ms=0) for txn in (2, 3, 4)]
    assert [records.is_held(record, task, now_ms=NOW) for task in tasks] == [False, False, True]


def test_only_ids_that_were_given_may_be_finished() -> None:
    """The first id is 1; of the next one and later ones nothing is stored yet."""
    record = tenant(next_txn=3)
    assert [records.may_be_finished(record, txn) for txn in (0, 1, 2, 3)] == [False, True, True, False]


def test_the_source_of_a_relocation_waits_and_then_wins() -> None:
    """Within its time it is told to wait; after it, it is granted, and the target is attached again."""
    record = machine.relocate(in_state(OPEN)[0], NODES["b"], now_ms=0).record
    source, target = record.transactions
    waits = machine.commit(record, request_of(record, source), finished=None, now_ms=99)
    assert (waits.reply.verdict, waits.record) == ("wait", record)
    set_back = machine.commit(record, request_of(record, source), finished=None, now_ms=-1)
    assert set_back.reply.verdict == "granted"
    step = machine.commit(record, request_of(record, source), finished=None, now_ms=100)
    assert step.reply.verdict == "granted"
    states = {
        transaction.id: (transaction.node, transaction.state, transaction.base)
        for transaction in step.record.transactions
    }
    assert states == {target.id: ("b", PENDING, 0), 3: ("a", OPEN, source.id), 4: ("b", OPEN, source.id)}
    assert step.record.preferred == "a"
    assert step.record.relocation is not None
    assert step.record.relocation.source_waits_until_ms == 200


def test_a_reader_holds_what_died_since_it_was_told() -> None:
    """Each grant renews its hold."""
    record, _, txn = in_state(OPEN)
    record = machine.attach_reader(record, NODES["b"], now_ms=0).record
    step = machine.commit(record, request_of(record, txn), finished=None, now_ms=NOW)
    assert [(hold.id, hold.txn) for hold in step.record.holds] == [("reader:b:2", 0)]
    assert machine_holds(step.record, txn.id)


def test_a_deleted_timeline_has_its_log_dropped() -> None:
    """The task names it; a pin, which has no log, is not named."""
    record, _, txn = in_state(OPEN)
    request = request_of(record, txn)
    request = msgspec.structs.replace(
        request, timelines={**request.timelines, "x": Progress(3, 0), "pin": Progress(3, 3, is_read_only=True)}
    )
    record = machine.commit(record, request, finished=None, now_ms=NOW).record
    step = machine.commit(record, request_of(record, record.transactions[0]), finished=None, now_ms=NOW)
    assert [task.timelines for task in step.tasks] == [("x",)]


# ---- a node's restart


def test_what_is_resumed_goes_on_and_what_is_not_is_acknowledged() -> None:
    """A process that holds the lock of the same local state shows that no older one writes."""
    record, _, txn = in_state(OPEN)
    resumed = Resumed("t", txn.generation, txn.id)
    step = machine.restart(record, NODES["a"], resumed, now_ms=NOW)
    assert step.record is record
    assert step.reply is not None
    assert step.reply.txn == txn.id
    step = machine.restart(record, NODES["a"], None, now_ms=NOW)
    assert [(transaction.id, transaction.state) for transaction in step.finished] == [(1, ACKNOWLEDGED)]
    assert [
        (transaction.id, transaction.state, transaction.generation) for transaction in step.record.transactions
    ] == [(2, OPEN, 2)]


@pytest.mark.parametrize(("generation", "txn"), [(1, 2), (2, 1), (0, 1), (1, 0)])
def test_what_is_resumed_but_not_open_gets_a_new_transaction(generation: int, txn: int) -> None:
    """A local state of another generation or transaction than the open one, older or newer, does not go on."""
    record, _, _ = in_state(OPEN)
    step = machine.restart(record, NODES["a"], Resumed("t", generation, txn), now_ms=NOW)
    assert [
        (transaction.id, transaction.generation)
        for transaction in step.record.transactions
        if transaction.state is OPEN
    ] == [(2, 2)]


def test_a_deleted_tenant_seals_only_timelines_that_take_rows() -> None:
    """Not a pin, which has no log, and not one that is sealed."""
    timelines = {"main": Progress(0, 0), "over": Progress(0, 0), "pin": Progress(0, 0, is_read_only=True)}
    record = tenant(timelines=timelines, names={name: name for name in timelines}, sealed=("over",))
    assert machine.delete(record, now_ms=NOW).record.sealing == ("main",)


def test_a_lost_local_state_acknowledges_nothing() -> None:
    """Another process may still run with the state of old."""
    record, _, _ = in_state(OPEN)
    lost = msgspec.structs.replace(NODES["a"], local_id="another-disk")
    step = machine.restart(record, lost, None, now_ms=NOW)
    assert not step.finished
    assert [(transaction.id, transaction.state, transaction.local_id) for transaction in step.record.transactions] == [
        (1, PENDING, "a-disk"),
        (2, OPEN, "another-disk"),
    ]


def test_a_resumed_transaction_that_was_doomed_is_left_to_its_node() -> None:
    """It may still write: it asks, is rejected, and acknowledges."""
    record, _, txn = in_state(PENDING)
    step = machine.restart(record, NODES["a"], Resumed("t", txn.generation, txn.id), now_ms=NOW)
    assert (step.reply, step.record) == (None, record)
    step = machine.restart(record, NODES["a"], None, now_ms=NOW)
    assert [transaction.id for transaction in step.finished] == [txn.id]


# ---- every record within reach


Event = tuple[str, Callable[[], records.Step[Any]]]


def events_of(record: TenantRecord, done: dict[int, Transaction], *, nodes: str) -> Iterator[Event]:
    """Every event that a record can meet."""
    for name in nodes:
        node = NODES[name]
        yield f"attach {name}", lambda node=node: machine.attach(record, node, now_ms=NOW)
        yield f"relocate {name}", lambda node=node: machine.relocate(record, node, now_ms=NOW)
        yield f"reader {name}", lambda node=node: machine.attach_reader(record, node, now_ms=NOW)
        yield f"detach {name}", lambda name=name: machine.detach(record, name, now_ms=NOW)
        yield f"decommission {name}", lambda name=name: machine.decommission(record, name, now_ms=NOW)
        yield f"restart {name}", lambda node=node: machine.restart(record, node, None, now_ms=NOW)
        for txn in record.transactions:
            resumed = Resumed("t", txn.generation, txn.id)
            yield (
                f"restart {name} with {txn.id}",
                lambda node=node, resumed=resumed: machine.restart(record, node, resumed, now_ms=NOW),
            )
    yield "finish", lambda: machine.finish_relocation(record)
    yield "cancel", lambda: machine.cancel_relocation(record, now_ms=NOW)
    yield "hand over", lambda: machine.hand_over(record, now_ms=NOW)
    yield "delete", lambda: machine.delete(record, now_ms=NOW)
    for txn in (*record.transactions, *done.values()):
        finished = done.get(txn.id)
        yield (
            f"commit {txn.id}",
            lambda txn=txn, finished=finished: machine.commit(
                record, request_of(record, txn, has_deadlist=True), finished=finished, now_ms=NOW
            ),
        )
        yield (
            f"ack {txn.id}",
            lambda txn=txn, finished=finished: machine.ack(record, ack_of(txn), finished=finished, now_ms=NOW),
        )
        yield (
            f"force {txn.id}",
            lambda txn=txn, finished=finished: machine.force_ack(record, txn.id, finished=finished, now_ms=NOW),
        )


def check_record(record: TenantRecord) -> None:
    """What the machine's description promises of every record."""
    ids = [transaction.id for transaction in record.transactions]
    assert ids == sorted(set(ids))
    assert all(transaction.id < record.next_txn for transaction in record.transactions)
    assert all(transaction.state in (OPEN, PENDING) for transaction in record.transactions)
    assert all(transaction.base == record.committed for transaction in record.transactions if transaction.state is OPEN)
    nodes = [item.node for item in record.attachments]
    assert len(nodes) == len(set(nodes))
    generations = [item.generation for item in record.attachments]
    assert len(generations) == len(set(generations))
    assert all(generation < record.next_generation for generation in generations)
    committers = [item for item in record.attachments if item.may_commit]
    assert len(committers) <= (1 if record.relocation is None else 2)
    if record.relocation is None:
        assert all(item.mode is not AttachmentMode.MULTI for item in record.attachments)
    if record.preferred is not None:
        assert record.preferred in {committer.node for committer in committers}
    for txn in record.transactions:
        if txn.state is OPEN:
            attachment = records.attachment_of(record, txn.node)
            assert attachment is not None
            assert attachment.may_commit
            assert attachment.generation == txn.generation
    if record.is_deleted:
        assert not record.attachments


def check_step(before: TenantRecord, step: records.Step[Any]) -> None:
    """What changed is allowed, and nothing got lost."""
    after = step.record
    check_record(after)
    assert after.next_txn >= before.next_txn
    assert after.next_generation >= before.next_generation
    assert after.committed >= before.committed
    left = {transaction.id: transaction for transaction in step.finished}
    now = {transaction.id: transaction for transaction in after.transactions}
    assert not left.keys() & now.keys()
    for old in before.transactions:
        new = left.get(old.id) or now.get(old.id)
        assert new is not None, f"transaction {old.id} is gone"
        via = {state for (start, _), state in LEGAL.items() if start is old.state}
        beyond = {state for (start, _), state in LEGAL.items() if start in via}
        assert new.state in {old.state} | via | beyond
    for txn in left.values():
        if txn.state is ACKNOWLEDGED:
            assert [task.kind for task in step.tasks if task.txn == txn.id] == [ACKNOWLEDGED]
        else:
            assert (txn.state, txn.id, txn.base) == (COMMITTED, after.committed, before.committed)
    if after.committed != before.committed:
        assert after.committed in left


@pytest.mark.parametrize(
    ("nodes", "next_txn_max", "next_generation_max"),
    [("ab", 4, 4), ("abc", 3, 4), pytest.param("abc", 4, 5, marks=pytest.mark.long)],
)
def test_every_record_within_reach_keeps_its_promises(nodes: str, next_txn_max: int, next_generation_max: int) -> None:
    """Search all sequences of events, of some nodes and a few transactions; a refusal changes nothing."""
    start = tenant()
    seen = {msgspec.json.encode(start)}
    todo: list[tuple[TenantRecord, dict[int, Transaction]]] = [(start, {})]
    kinds: set[str] = set()
    while todo:
        record, done = todo.pop()
        before = msgspec.json.encode(record)
        for label, event in events_of(record, done, nodes=nodes):
            try:
                step = event()
            except LakebedError:
                assert msgspec.json.encode(record) == before
                continue
            if step.record is not record and step.record != record:
                kinds.add(label.split()[0])
            check_step(record, step)
            after = step.record
            if after.next_txn > next_txn_max or after.next_generation > next_generation_max:
                continue
            key = msgspec.json.encode(after)
            if key not in seen:
                seen.add(key)
                todo.append((after, {**done, **{transaction.id: transaction for transaction in step.finished}}))
    expected = "attach relocate reader detach decommission restart finish cancel hand delete commit ack force"
    assert kinds == set(expected.split())


# ---- tenants


def test_a_new_tenant_of_an_old_name_begins_above_it() -> None:
    """No late request of the old one fits."""
    record = machine.new_tenant("t", policy=Policy(), floor=Floor(9, 5), now_ms=0)
    record = machine.attach(record, NODES["a"], now_ms=0).record
    assert (record.transactions[0].id, record.attachments[0].generation) == (10, 5)
    assert record.names == {"main": "main-9"}


def test_a_tenant_is_at_the_nodes_that_have_it_or_write_for_it() -> None:
    """Attached, or with a transaction that is not acknowledged."""
    record, _, txn = in_state(PENDING)
    assert records.nodes_of(record) == {"a", "b"}
    assert records.nodes_of(machine.ack(record, ack_of(txn), finished=None, now_ms=NOW).record) == {"b"}
    record, _, txn = in_state(OPEN)
    assert records.nodes_of(record) == {"a"}
    assert records.nodes_of(machine.ack(record, ack_of(txn), finished=None, now_ms=NOW).record) == set()
    assert records.nodes_of(tenant()) == set()


def test_a_deleted_tenant_takes_no_attachment() -> None:
    """It is refused."""
    record = machine.delete(in_state(OPEN)[0], now_ms=NOW).record
    with raises(Conflict, "tenant_deleted"):
        machine.attach(record, NODES["b"], now_ms=NOW)


@pytest.mark.parametrize("change", [{"commit_bytes": -1}, {"retain_ms": 1 << 60}])
def test_settings_out_of_range_are_refused(change: dict[str, int]) -> None:
    """Before anything changes."""
    with raises(InvalidRequest, "invalid_policy"):
        machine.check_policy(msgspec.structs.replace(Policy(), **change))


@pytest.mark.parametrize("number", [0, NUMBER_MAX])
def test_settings_at_the_bounds_are_taken(number: int) -> None:
    """Both ends are in range."""
    machine.check_policy(msgspec.structs.replace(Policy(), commit_bytes=number, retain_ms=number))


@pytest.mark.parametrize("field", ["lsn", "cutoff", "size_bytes"])
@pytest.mark.parametrize(("number", "fits"), [(-1, False), (0, True), (NUMBER_MAX, True), (NUMBER_MAX + 1, False)])
def test_numbers_of_a_request_are_in_range(field: str, number: int, fits: bool) -> None:
    """Each by itself; a number beyond what a record holds would make the tenant unreadable."""
    record, _, txn = in_state(OPEN)
    request = request_of(record, txn)
    if field == "size_bytes":
        request = msgspec.structs.replace(
            request, manifest=msgspec.structs.replace(request.manifest, size_bytes=number)
        )
    else:
        progress = msgspec.structs.replace(Progress(0, 0), **{field: number})
        request = msgspec.structs.replace(request, timelines={"main": progress})
    if fits:
        machine.check_request(request)
        return
    with raises(InvalidRequest, "invalid_manifest"):
        machine.check_request(request)
