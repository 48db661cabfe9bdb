"""The ledger: one compare-and-set a record, one write a batch, and lost replies settled by reading, on every store."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec
import pytest

from lakebed.errors import AlreadyExists, Conflict, Corruption, InvalidRequest, NotFound, OutcomeUnknown, Unavailable
from lakebed.fleet import layout, machine, records
from lakebed.fleet.ledger import DONE_MAX, Ledger
from lakebed.fleet.model import Floor, ManifestRef, NodeRecord, Policy, Progress, TenantRecord
from lakebed.fleet.ports import CommitReply, CommitRequest, Event
from lakebed.fleet.records import Step
from lakebed.key_value.open import open_key_value
from lakebed.key_value.port import KeyValue
from lakebed.testing import FaultRates, Scheduler
from worlds.errors import raises
from worlds.fleet_control import CountedKeyValue
from worlds.memory_key_value import MemoryKeyValue, MemorySpace
from worlds.scheduled_key_value import ScheduledKeyValue

NODE = NodeRecord("a", "http://a:1", "a-1", "a-disk", 0)


@pytest.fixture(params=["memory", "database", "postgresql"])
def key_value(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[KeyValue]:
    if request.param == "memory":
        yield MemoryKeyValue()
        return
    url = (
        str(tmp_path / "ledger")
        if request.param == "database"
        else request.getfixturevalue("postgresql").make_database()
    )
    opened = open_key_value(url, durable=False)
    yield opened
    opened.close()


def attached(tenant: str) -> Step[TenantRecord]:
    new = machine.new_tenant(tenant, policy=Policy(), floor=None, now_ms=0)
    record = machine.attach(new, NODE, now_ms=0).record
    return Step(record, record)


def request_of(record: TenantRecord, *, lsn: int = 1) -> CommitRequest:
    txn = record.transactions[-1]
    return CommitRequest(
        record.tenant,
        txn.id,
        txn.node,
        txn.generation,
        ManifestRef(layout.manifest_path(record.tenant, txn.id, 1), "0" * 32, 1),
        timelines={"main": Progress(lsn, 0)},
        names={"main": "main"},
    )


def committing(ledger: Ledger, request: CommitRequest) -> Callable[[TenantRecord], Step[CommitReply]]:
    def decide(record: TenantRecord) -> Step[CommitReply]:
        is_over = records.may_be_finished(record, request.txn)
        finished = ledger.finished(request.tenant, request.txn) if is_over else None
        return machine.commit(record, request, finished=finished, now_ms=1)

    return decide


# ---- what is stored


def test_the_first_id_that_is_proposed_is_the_ledgers(key_value: KeyValue) -> None:
    """Whoever proposes another one later gets the first."""
    assert [Ledger(key_value).identity(proposed) for proposed in ("one", "two")] == ["one", "one"]


def test_a_step_is_one_write_with_what_it_finished(key_value: KeyValue) -> None:
    """Record, finished transaction and task are there together; another process reads the same."""
    counted = CountedKeyValue(key_value)
    ledger = Ledger(counted)
    record = ledger.create(attached("t"))
    request = request_of(record)
    counted.calls.clear()
    reply = ledger.change("t", committing(ledger, request))
    assert (reply.verdict, reply.txn) == ("granted", 2)
    assert len(counted.calls) == 1, "a known record is changed without a read"
    other = Ledger(key_value)
    now = other.tenant("t")
    assert (now.committed, [transaction.id for transaction in now.transactions]) == (1, [2])
    finished = other.finished("t", 1)
    assert finished is not None
    assert finished.manifest == request.manifest
    second = request_of(now)
    ledger.change("t", committing(ledger, second))
    assert [(task.tenant, task.txn, task.unneeded) for task in other.tasks()] == [("t", 2, (request.manifest.path,))]


def test_finished_transactions_are_kept_up_to_a_number() -> None:
    """A tenant that commits for years does not fill the ledger; a lost reply to the newest is given again."""
    ledger = Ledger(MemoryKeyValue())
    record = ledger.create(attached("t"))
    for _ in range(DONE_MAX + 10):
        request = request_of(record)
        ledger.change("t", committing(ledger, request))
        record = ledger.tenant("t")
    kept = [transaction.id for transaction in ledger.list_finished("t")]
    assert kept == list(range(request.txn - DONE_MAX + 1, request.txn + 1))
    assert ledger.change("t", committing(ledger, request)).verdict == "granted"


def test_a_batch_of_independent_tenants_is_one_write(key_value: KeyValue) -> None:
    """However many; each has its answer, in order."""
    counted = CountedKeyValue(key_value)
    ledger = Ledger(counted)
    made = [ledger.create(attached(f"t{number}")) for number in range(20)]
    counted.calls.clear()
    replies = ledger.change_many([(item.tenant, committing(ledger, request_of(item))) for item in made])
    assert [reply.verdict for reply in replies if isinstance(reply, CommitReply)] == ["granted"] * 20
    assert len(counted.calls) == 1


def test_changes_of_one_tenant_follow_each_other() -> None:
    """In one batch, in as many writes."""
    ledger = Ledger(MemoryKeyValue())
    record = ledger.create(attached("t"))
    request = request_of(record)
    replies = ledger.change_many([("t", committing(ledger, request)), ("t", committing(ledger, request))])
    assert replies[0] == replies[1]
    assert ledger.tenant("t").committed == 1


def test_one_refusal_leaves_the_others(key_value: KeyValue) -> None:
    """An unknown tenant, and a decision that raises, are outcomes of their own."""
    ledger = Ledger(key_value)
    record = ledger.create(attached("t"))

    def refuse(_: TenantRecord) -> Step[CommitReply]:
        raise InvalidRequest("no", kind="refused")

    ledger.create(attached("u"))
    outcomes = ledger.change_many([("x", refuse), ("t", committing(ledger, request_of(record))), ("u", refuse)])
    assert isinstance(outcomes[0], NotFound)
    assert isinstance(outcomes[1], CommitReply)
    assert isinstance(outcomes[2], InvalidRequest)


def test_two_processes_decide_from_what_is_there(key_value: KeyValue) -> None:
    """One that knows an older record does not answer from it, whether it would change something or not."""
    ledger, two = Ledger(key_value), Ledger(key_value)
    record = ledger.create(attached("t"))
    two.tenant("t")
    request = request_of(record)
    assert ledger.change("t", committing(ledger, request)).verdict == "granted"
    following = request_of(ledger.tenant("t"))
    assert ledger.change("t", committing(ledger, following)).verdict == "granted"
    assert two.change("t", committing(two, request)).verdict == "granted", "asked again"
    other = ManifestRef(layout.manifest_path("t", 9, 1), "", 1)
    late = msgspec.structs.replace(request_of(record), txn=9, manifest=other)
    assert two.change("t", committing(two, late)).verdict == "rejected"
    assert two.tenant("t").committed == 2


@pytest.mark.parametrize("knows", [True, False], ids=["an older record", "nothing"])
def test_a_refusal_is_decided_from_what_is_there(knows: bool) -> None:
    """A process that knows an older record looks before it refuses; it refuses once what it has just read."""
    space = MemorySpace()
    ledger, other = Ledger(MemoryKeyValue(space)), Ledger(MemoryKeyValue(space))
    ledger.create(attached("t"))
    if knows:
        other.tenant("t")
    ledger.change("t", lambda now: Step(None, msgspec.structs.replace(now, home="x")))
    asked: list[str | None] = []

    def refuse_unless(home: str) -> Callable[[TenantRecord], Step[None]]:
        def decide(record: TenantRecord) -> Step[None]:
            asked.append(record.home)
            if record.home != home:
                raise Conflict("It is elsewhere.", kind="elsewhere")
            return Step(None, record)

        return decide

    other.change("t", refuse_unless("x"))
    assert asked == ([None, "x"] if knows else ["x"])
    with raises(Conflict, "elsewhere"):
        Ledger(MemoryKeyValue(space)).change("t", refuse_unless("y"))


# ---- lost replies


@pytest.mark.parametrize("happens", [True, False])
def test_a_lost_reply_at_any_call_gives_the_same_answer(key_value: KeyValue, happens: bool) -> None:
    """The write happened or did not: the batch is granted once, and the caller who asks again hears the same."""
    for lost_at in itertools.count():
        tenants = [f"t{lost_at}-{number}" for number in range(3)]
        plain = Ledger(key_value)
        made = [plain.create(attached(tenant)) for tenant in tenants]
        counted = CountedKeyValue(key_value)
        counted.lost_at, counted.happens = lost_at, happens
        ledger = Ledger(counted)
        requests = [(item.tenant, committing(ledger, request_of(item))) for item in made]
        try:
            replies = ledger.change_many(requests)
        except (Unavailable, OutcomeUnknown):
            replies = ledger.change_many(requests)
        assert [reply for reply in replies if reply != CommitReply("granted", txn=2, generation=1)] == []
        assert [plain.tenant(tenant, fresh=True).committed for tenant in tenants] == [1, 1, 1]
        if len(counted.calls) <= lost_at:
            break
    assert lost_at >= 2


@pytest.mark.parametrize("happens", [True, False])
def test_a_lost_reply_to_a_creation(happens: bool) -> None:
    """A creation whose reply was lost, and that happened, has succeeded; else it is unclear, and nothing is there."""
    space = MemoryKeyValue()
    counted = CountedKeyValue(space)
    counted.lost_at, counted.happens = 0, happens
    ledger = Ledger(counted)
    if happens:
        assert ledger.create(attached("t")).tenant == "t"
        with pytest.raises(AlreadyExists):
            ledger.create(attached("t"))
    else:
        with pytest.raises(OutcomeUnknown):
            ledger.create(attached("t"))
        assert ledger.create(attached("t")).tenant == "t"


def test_a_record_that_never_rests_is_given_up() -> None:
    """Bounded tries, then one clear error for that tenant; the others of the batch are done."""
    space = MemorySpace()
    ledger = Ledger(MemoryKeyValue(space))
    for tenant in ("t", "u"):
        ledger.create(attached(tenant))
    other = Ledger(MemoryKeyValue(space))
    turns = itertools.count(1)

    def disturbed(record: TenantRecord) -> Step[None]:
        other.change("t", lambda now: Step(None, msgspec.structs.replace(now, created_ms=next(turns))))
        return Step(None, msgspec.structs.replace(record, home="x"))

    def calm(record: TenantRecord) -> Step[None]:
        return Step(None, msgspec.structs.replace(record, home="y"))

    outcomes = ledger.change_many([("t", disturbed), ("u", calm)])
    assert isinstance(outcomes[0], Unavailable)
    assert outcomes[0].kind == "contention"


# ---- nodes, tenants, events


def test_tasks_are_listed_for_one_tenant() -> None:
    """In the order of their transactions, without those of a tenant whose name begins alike."""
    ledger = Ledger(MemoryKeyValue())
    for tenant in ("t", "t-2", "u"):
        record = ledger.create(attached(tenant))
        for _ in range(3):  # the first has nothing to collect
            ledger.change(tenant, committing(ledger, request_of(record)))
            record = ledger.tenant(tenant)
    assert [(task.tenant, task.txn) for task in ledger.tasks_of("t")] == [("t", 2), ("t", 3)]
    assert len(list(ledger.tasks())) == 6


def test_nodes_are_changed_by_compare_and_set(key_value: KeyValue) -> None:
    """Of two changes at once none is lost."""
    ledger = Ledger(key_value)
    ledger.change_node("a", lambda now: NODE)

    def drain(now: NodeRecord | None) -> NodeRecord:
        assert now is not None
        if not now.is_silent:
            Ledger(key_value).change_node("a", lambda one: msgspec.structs.replace(one or NODE, is_silent=True))
        return msgspec.structs.replace(now, is_draining=True)

    changed = ledger.change_node("a", drain)
    assert (changed.is_draining, changed.is_silent) == (True, True)
    assert ledger.nodes() == [changed]


def test_a_removed_tenant_leaves_its_floor(key_value: KeyValue) -> None:
    """Record and finished transactions go in one write; a record that changed meanwhile is not removed."""
    ledger = Ledger(key_value)
    record = ledger.create(attached("t"))
    ledger.change("t", committing(ledger, request_of(record)))
    with pytest.raises(Conflict):
        ledger.remove(record, Floor(9, 9))
    ledger.remove(ledger.tenant("t"), Floor(9, 9))
    with pytest.raises(NotFound):
        ledger.tenant("t")
    assert (ledger.list_finished("t"), ledger.floor("t")) == ([], Floor(9, 9))


def test_events_are_read_behind_a_position(key_value: KeyValue) -> None:
    """In order, in pages; old ones are forgotten."""
    ledger = Ledger(key_value)
    events = [(f"{number:013}-00000000", Event(number, "k", "m")) for number in range(5)]
    ledger.add_events(events[:3])
    ledger.add_events(events[3:], forget=[events[0][0]])
    assert ledger.events(limit=2) == events[1:3]
    assert ledger.events(after=events[2][0], limit=9) == events[3:]


def test_tenants_are_listed_behind_a_name() -> None:
    """By name."""
    ledger = Ledger(MemoryKeyValue())
    for tenant in ("b", "a", "ab", "c"):
        ledger.create(attached(tenant))
    assert [item.tenant for item in ledger.tenants()] == ["a", "ab", "b", "c"]
    assert [item.tenant for item in ledger.tenants(after="ab")] == ["b", "c"]


def test_a_damaged_record_is_not_guessed() -> None:
    """It is `Corruption`, and stays as it is."""
    key_value = MemoryKeyValue()
    key_value.set(layout.tenant_key("t"), b'{"tenant":"t"}')
    with pytest.raises(Corruption):
        Ledger(key_value).tenant("t")


# ---- many at once


def test_many_processes_over_a_store_that_fails() -> None:
    """Each tenant's history is one: every granted commit has the one before it as its base, none is granted twice."""
    for seed in range(30):
        faults = FaultRates(error_before=0.05, lost_request=0.05, lost_reply=0.05, late=0.05)
        scheduler, space = Scheduler(seed, faults=faults), MemoryKeyValue()
        Ledger(space).create(attached("t"))
        Ledger(space).create(attached("u"))

        def work(name: str, scheduler: Scheduler = scheduler, space: KeyValue = space) -> None:
            ledger = Ledger(ScheduledKeyValue(space, scheduler=scheduler))
            for _ in range(4):
                try:
                    made = [ledger.tenant(tenant, fresh=True) for tenant in ("t", "u")]
                    ledger.change_many(
                        [(item.tenant, committing(ledger, request_of(item, lsn=item.committed + 1))) for item in made]
                    )
                except (Unavailable, OutcomeUnknown):
                    continue

        for name in ("one", "two", "three"):
            scheduler.spawn(name, lambda name=name: work(name))
        scheduler.run()
        check = Ledger(space)
        for tenant in ("t", "u"):
            record, done = check.tenant(tenant), check.list_finished(tenant)
            assert [item.id for item in done] == list(range(1, record.committed + 1))
            assert [item.base for item in done] == list(range(record.committed))


def test_a_tenant_begins_above_one_that_came_and_went_meanwhile(key_value: KeyValue) -> None:
    """Between the look at the floor and the write: the ids of the other one are not used again."""
    ledger, other = Ledger(key_value), Ledger(key_value)
    late = attached("t")
    record = other.create(attached("t"))
    other.remove(record, Floor(record.next_txn, record.next_generation))
    with raises(Unavailable, "contention"):
        ledger.create(late, floor=None)
    floor = ledger.floor("t")
    assert floor is not None
    new = machine.new_tenant("t", policy=Policy(), floor=floor, now_ms=0)
    created = ledger.create(Step(new, new), floor=floor)
    assert (created.names["main"], created.next_txn) == (
        "main-2",
        3,
    )  # the number that names its first timeline is used
    with pytest.raises(AlreadyExists):
        ledger.create(late, floor=floor)
