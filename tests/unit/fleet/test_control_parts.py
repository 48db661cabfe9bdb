"""Parts of a control plane by themselves, over a real ledger and a clock that stands still."""

from __future__ import annotations

import random
import uuid
from typing import Any

import msgspec
import pytest

from lakebed.errors import Closed, Fenced, LakebedError, NotFound, OutcomeUnknown, Unavailable
from lakebed.fleet import layout, machine
from lakebed.fleet.control.collector import Collector
from lakebed.fleet.control.context import ControlContext, Events, tell_of_lost_state
from lakebed.fleet.control.members import Members
from lakebed.fleet.control.options import ControlOptions
from lakebed.fleet.control.seals import Pruner, Seals
from lakebed.fleet.ledger import Ledger
from lakebed.fleet.log.port import LogBounds
from lakebed.fleet.model import (
    CollectTask,
    Hold,
    NodeRecord,
    Policy,
    Progress,
    TenantRecord,
    Transaction,
    TransactionState,
)
from lakebed.fleet.ports import Event, Heartbeat, TenantLoad
from lakebed.fleet.records import Step
from lakebed.objects import open_store
from lakebed.runtime import Environment
from lakebed.testing import ManualClock
from worlds.errors import raises
from worlds.fleet_control import CountedKeyValue, NotedLog
from worlds.memory_key_value import MemoryKeyValue

MIB = 1 << 20


class TroubledLog(NotedLog):
    """A log that fails as it is told, and notes its calls.

    Attributes:
        error: what each call raises; None: none.
        calls: verb and timeline of each.
    """

    def __init__(self) -> None:
        super().__init__()
        self.error: LakebedError | None = None
        self.calls: list[tuple[str, str]] = []

    def _call(self, verb: str, timeline: str) -> None:
        self.calls.append((verb, timeline))
        if self.error is not None:
            raise self.error

    def create(self, timeline: str, *, after: int = 0) -> None:
        self._call("create", timeline)

    def prune(self, timeline: str, through: int) -> None:
        self._call(f"prune {through}", timeline)

    def seal(self, timeline: str) -> int:
        self._call("seal", timeline)
        return 0

    def drop(self, timeline: str) -> None:
        self.calls.append(("drop", timeline))

    def taken(self) -> list[tuple[str, str]]:
        """The calls since the last look."""
        calls, self.calls = self.calls, []
        return calls


class Plane:
    """What parts share."""

    def __init__(self, *, log: bool = True, **options: int) -> None:
        self.clock = ManualClock()
        self.key_value = CountedKeyValue(MemoryKeyValue())
        self.log = TroubledLog()
        self.options = ControlOptions(**options)  # type: ignore[arg-type]
        environment = Environment(clock=self.clock, rng=random.Random(1))
        ledger = Ledger(self.key_value)
        self.context = ControlContext(
            ledger=ledger,
            members=Members(clock=self.clock, options=self.options),
            nodes=lambda record: None,  # type: ignore[arg-type,return-value]
            options=self.options,
            environment=environment,
            events=Events(ledger, environment=environment, kept_max=self.options.events_max),
            log=self.log if log else None,
        )

    def put(self, tenant: str, **fields: Any) -> TenantRecord:
        """Have a tenant with these fields."""
        ledger = self.context.ledger
        try:
            ledger.change(tenant, lambda now: Step(None, msgspec.structs.replace(now, **fields)))
        except NotFound:
            new = machine.new_tenant(tenant, policy=Policy(), floor=None, now_ms=0)
            ledger.create(Step(None, msgspec.structs.replace(new, **fields)))
        return ledger.tenant(tenant, fresh=True)


def node(name: str, incarnation: str = "1", **fields: Any) -> NodeRecord:
    """A node as it registers."""
    return NodeRecord(name, f"http://{name}", incarnation, f"{name}-disk", 0, **fields)


# ---- nodes


def usable_of(model: dict[str, dict[str, Any]]) -> dict[str, dict[str, Any]]:
    """Those of a model's nodes that tenants may stay on."""
    return {
        key: item for key, item in model.items() if not (item["record"].is_silent or item["record"].is_decommissioned)
    }


def check_looks(members: Members, model: dict[str, dict[str, Any]], rng: random.Random, *, now_s: float) -> None:
    """Who is usable, can be called and is chosen, is as the model says."""
    usable = usable_of(model)
    for key in "abcdef":
        assert members.is_usable(key) is (key in usable)
        can_answer = key in usable and usable[key]["ready"] and usable[key]["retry"] <= now_s
        assert (members.answers(key) is not None) is can_answer
    without = rng.sample("abcde", rng.randint(0, 2))
    candidates = [
        (item["count"] + item["bytes"] / (64 * MIB), key)
        for key, item in usable.items()
        if item["ready"] and not item["record"].is_draining and key not in without
    ]
    chosen = members.choose(not_on=without)
    assert (None if chosen is None else chosen.record.node) == (min(candidates)[1] if candidates else None)


def check_statuses(members: Members, model: dict[str, dict[str, Any]], *, now_s: float) -> None:
    """What is shown of each node is as the model says."""
    shown = {status.node: status for status in members.statuses()}
    assert list(shown) == sorted(model)
    for key, item in model.items():
        record, status = item["record"], shown[key]
        state = "silent" if record.is_silent else "draining" if record.is_draining else "alive"
        assert status.state == ("decommissioned" if record.is_decommissioned else state)
        assert (status.tenant_count, status.unflushed_bytes) == (item["count"], item["bytes"])
        assert status.silent_ms == round((now_s - item["heard"]) * 1000)


@pytest.mark.parametrize("seed", range(6))
def test_members_are_as_a_model_says(seed: int) -> None:
    """Who is alive, late, usable, chosen and shown: random heartbeats, silences and records, against dictionaries."""
    rng = random.Random(seed)
    clock = ManualClock()
    options = ControlOptions()
    silent_s, doubt_s = options.silent_ms / 1000, options.doubt_ms / 1000
    members = Members(clock=clock, options=options)
    model: dict[str, dict[str, Any]] = {}
    looked_s, doubts_s = clock.monotonic_s(), None
    for _ in range(400):
        clock.advance(
            rng.choice([0.1, 0.5, 0.5, silent_s / 2, silent_s, silent_s + 0.5 if rng.random() < 0.2 else 0.1])
        )
        now_s, name = clock.monotonic_s(), rng.choice("abcde")
        known = model.get(name)
        if rng.random() < 0.3:
            record = node(
                name, rng.choice("112"), is_draining=rng.random() < 0.2, is_silent=rng.random() < 0.2,
                is_decommissioned=rng.random() < 0.05,
            )  # fmt: skip
            members.learn(record)
            if known is None or known["record"].incarnation != record.incarnation:
                known = {"heard": now_s, "ready": False, "retry": 0.0, "count": 0, "bytes": 0}
            elif known["record"].is_silent and not record.is_silent:
                known |= {"heard": now_s, "retry": 0.0}
            model[name] = known | {"record": record}
        elif rng.random() < 0.7:
            beat = Heartbeat(
                name, rng.choice("112"), tenant_count=rng.randint(0, 3), unflushed_bytes=rng.choice([0, 64 * MIB, MIB]),
                loads=(TenantLoad("t", 1, 0),),
            )  # fmt: skip
            record_of = None if known is None else known["record"]
            is_known = record_of is not None and record_of.incarnation == beat.incarnation and not record_of.is_silent
            assert members.hear(beat) is is_known
            if is_known:
                assert known is not None
                known |= {"heard": now_s, "ready": True, "count": beat.tenant_count, "bytes": beat.unflushed_bytes}
        elif known is not None and rng.random() < 0.5:
            members.note_failure(name)
            known["retry"] = now_s + options.retry_s
        usable = usable_of(model)
        check_looks(members, model, rng, now_s=now_s)
        if rng.random() < 0.5:
            slept, looked_s = now_s - looked_s > silent_s, now_s
            if slept:
                for item in usable.values():
                    item["heard"] = now_s
                expected, doubts_s = [], None
            else:
                late = sorted(key for key, item in usable.items() if now_s - item["heard"] > silent_s)
                is_doubtful = len(late) > len(usable) / 2
                doubts_s = (now_s if doubts_s is None else doubts_s) if is_doubtful else None
                expected = late if doubts_s is None or now_s - doubts_s >= doubt_s else []
            assert [member.record.node for member in members.overdue()] == expected
        check_statuses(members, model, now_s=now_s)


def test_promises_count_until_the_next_heartbeat() -> None:
    """As tenants do; what a node has in memory counts with them."""
    members = Members(clock=ManualClock(), options=ControlOptions())
    for name in "ab":
        members.learn(node(name))
        members.hear(Heartbeat(name, "1", tenant_count=1, unflushed_bytes=0))
    first, second = members.all()
    first.promised = 1
    second.unflushed_bytes = 64 * MIB - 1
    assert members.choose() is second
    second.unflushed_bytes += 2
    assert members.choose() is first
    assert [status.tenant_count for status in members.statuses()] == [2, 1]
    members.hear(Heartbeat("a", "1", tenant_count=1, unflushed_bytes=0))
    assert (first.promised, first.weight) == (0, 1)


# ---- events


@pytest.mark.parametrize("alone", [True, False])
@pytest.mark.parametrize("kept_max", [1, 3, 5])
def test_the_newest_events_are_kept(kept_max: int, alone: bool) -> None:
    """In the order in which they were noted, also when others write events; those of one write are kept at least."""
    plane = Plane(events_max=kept_max)
    other = Plane(events_max=kept_max)
    events = plane.context.events
    theirs = Events(Ledger(plane.key_value), environment=other.context.environment, kept_max=kept_max)
    noted: list[str] = []
    for number in range(12):
        writer = theirs if number % 4 == 3 and not alone else events
        for part in range(number % 3 + 1):
            writer.add("kind", f"{number}.{part}", tenant="t", node="n", took_ms=number)
            noted.append(f"{number}.{part}")
        writer.flush()
        stored = [event for _, event in plane.context.ledger.events(limit=1_000)]
        assert [event.message for event in stored][-1:] == noted[-1:]
        assert {(event.kind, event.tenant, event.node) for event in stored} == {("kind", "t", "n")}
        expected = noted[-max(kept_max, number % 3 + 1) :]
        assert [event.message for event in stored] == (expected if alone else noted[-len(stored) :])
        assert len(stored) >= min(len(noted), kept_max)
        plane.clock.advance(0.001 * (number % 2))
    calls = len(plane.key_value.calls)
    events.flush()
    assert len(plane.key_value.calls) == calls, "nothing is noted"


def test_as_many_events_are_kept_when_another_control_plane_deletes_some() -> None:
    """What the other one has deleted is not deleted once more from the rest."""
    plane = Plane(events_max=6)
    ours = plane.context.events
    theirs = Events(plane.context.ledger, environment=plane.context.environment, kept_max=6)
    noted: list[str] = []
    for number in range(24):
        writer = theirs if number % 5 in (1, 2, 3) else ours
        writer.add("kind", str(number))
        noted.append(str(number))
        writer.flush()
        stored = [event.message for _, event in plane.context.ledger.events(limit=1_000)]
        assert stored == noted[-6:], number


def test_no_more_than_a_thousand_events_wait() -> None:
    """Those that come while the ledger is away are lost; what waits is lost with a write that fails."""
    plane = Plane()
    for number in range(1_002):
        plane.context.events.add("kind", f"{number}")
    plane.context.events.flush()
    stored = [event.message for _, event in plane.context.ledger.events(limit=2_000)]
    assert (len(stored), stored[0], stored[-1]) == (1_000, "0", "999")
    plane.context.events.add("kind", "lost")
    plane.key_value.lost_at, plane.key_value.happens = len(plane.key_value.calls), False
    plane.context.events.flush()
    plane.context.events.add("kind", "next")
    plane.context.events.flush()
    assert [event.message for _, event in plane.context.ledger.events(limit=2_000)][-2:] == ["999", "next"]


def transaction(id: int, name: str = "a", *, state: str = "reject_pending", disk: str = "old") -> Transaction:
    """One that is not finished."""
    return Transaction(id, 0, name, 1, TransactionState(state), 0, local_id=disk)


@pytest.mark.parametrize(
    ("transactions", "shown"),
    [
        ((), None),
        ((transaction(3),), "transaction 3 of t"),
        ((transaction(3), transaction(5)), "transactions 3, 5 of t"),
        ((transaction(3), transaction(5, disk="a-disk"), transaction(6, "A"), transaction(7, "b")), "transaction 3 of"),
        ((transaction(3, state="open"),), None),
        ((transaction(3, disk="a-disk"),), None),
    ],
)
def test_a_node_without_its_local_state_is_told_of(transactions: tuple[Transaction, ...], shown: str | None) -> None:
    """Its rejected transactions that nobody can acknowledge, with the command that does."""
    plane = Plane()
    record = plane.put("t", transactions=transactions)
    tell_of_lost_state(plane.context.events, record, node("a"))
    plane.context.events.flush()
    events = [event for _, event in plane.context.ledger.events(limit=9)]
    assert len(events) == (shown is not None)
    for event in events:
        assert shown is not None
        assert shown in event.message
        assert event.message.endswith("lakebed fleet ack LAKE t 3")
        assert (event.kind, event.tenant, event.node) == ("local_state_lost", "t", "a")


# ---- logs of timelines


def test_what_has_lost_its_name_is_sealed_once() -> None:
    """In the next round, or when a change is concluded; a timeline that was never begun is dropped."""
    plane = Plane()
    seals = Seals(plane.context)
    seals.look_at(plane.put("t"))
    seals.seal_once()
    assert plane.log.taken() == []
    seals.look_at(plane.put("t", sealing=("x", "y")))
    seals.seal_once()
    keys = [layout.log_key("t", id) for id in ("x", "y")]
    assert plane.log.taken() == [("seal", key) for key in keys]
    assert plane.context.ledger.tenant("t", fresh=True).sealing == ()
    seals.seal_once()
    assert plane.log.taken() == []
    plane.put("t", sealing=("x",))
    plane.log.error = NotFound("never begun")
    seals.conclude("t", "The change")
    assert plane.log.taken() == [("seal", keys[0]), ("drop", keys[0])]
    seals.conclude("none", "The change")
    assert plane.log.taken() == []


def test_a_log_that_does_not_answer_is_asked_again_after_a_pause() -> None:
    """Each time; a change that waits for it is not known to be over."""
    plane = Plane()
    seals = Seals(plane.context)
    plane.log.error = Unavailable("away", kind="away")
    record = plane.put("t", sealing=("x",))
    with raises(OutcomeUnknown, "away", match=r"The change is decided.*away", tenant="t"):
        seals.conclude("t", "The change")
    assert len(plane.log.taken()) == 1
    seals.look_at(record)
    retry_s = plane.options.retry_s
    for _ in range(3):
        seals.seal_once()
        assert len(plane.log.taken()) == 1
        seals.seal_once()
        plane.clock.advance(retry_s * 0.9)
        seals.seal_once()
        assert plane.log.taken() == []
        plane.clock.advance(retry_s * 0.1 + 1e-6)
    plane.log.error = OutcomeUnknown("unclear", kind="unclear")
    with raises(Unavailable, "unclear", tenant="t"):
        seals.seal(record)
    plane.log.taken()
    for error in (Closed("closed"), Fenced("fenced")):
        plane.log.error = error
        plane.clock.advance(1_000)
        seals.look_at(record)
        with pytest.raises(type(error)):
            seals.seal_once()
    plane.log.error = None
    assert plane.context.ledger.tenant("t", fresh=True).sealing == ("x",)


def test_logs_are_pruned_once_an_interval_as_far_as_they_have_got_on() -> None:
    """The first time at once; timelines that are pins, or have not got on, are left alone, and those that are gone."""
    plane = Plane()
    pruner = Pruner(plane.context)
    interval_s = plane.options.prune_interval_ms / 1000
    timelines = {"x": Progress(5, 0), "y": Progress(0, 0), "pin": Progress(3, 3, is_read_only=True)}
    plane.put("t", timelines=timelines)
    key = layout.log_key("t", "x")
    pruner.prune_once()
    assert plane.log.taken() == []
    pruner.look_at("t")
    pruner.look_at("t")
    pruner.prune_once()
    assert plane.log.taken() == [("prune 5", key)]
    for lsn, expected in ((5, []), (6, [("prune 6", key)]), (4, [])):
        plane.put("t", timelines=timelines | {"x": Progress(lsn, 0)})
        pruner.look_at("t")
        pruner.prune_once()
        plane.clock.advance(interval_s * 0.99)
        pruner.look_at("t")
        pruner.prune_once()
        assert plane.log.taken() == []
        plane.clock.advance(interval_s * 0.01 + 1e-6)
        pruner.prune_once()
        assert plane.log.taken() == expected
    plane.put("t", timelines={"z": Progress(1, 0)})
    for timelines_now, expected in (
        ({"z": Progress(1, 0)}, [("prune 1", layout.log_key("t", "z"))]),
        (timelines, [("prune 5", key)]),
    ):
        plane.put("t", timelines=timelines_now)
        pruner.look_at("t")
        plane.clock.advance(interval_s)
        pruner.prune_once()
        assert plane.log.taken() == expected


def test_a_log_that_is_not_pruned_is_asked_again_after_a_pause() -> None:
    """One that is gone is not; of a tenant that is gone or being deleted nothing is asked."""
    plane = Plane()
    pruner = Pruner(plane.context)
    for tenant in ("t", "u", "dead"):
        plane.put(tenant, timelines={"x": Progress(5, 0)}, is_deleted=tenant == "dead")
    plane.log.error = Unavailable("away")
    for tenant in ("t", "u", "dead", "none"):
        pruner.look_at(tenant)
    pruner.prune_once()
    assert len(plane.log.taken()) == 2
    pruner.prune_once()
    assert plane.log.taken() == []
    plane.log.error = NotFound("dropped")
    plane.clock.advance(plane.options.retry_s)
    pruner.prune_once()
    assert sorted(key for _, key in plane.log.taken()) == [layout.log_key(tenant, "x") for tenant in ("t", "u")]
    plane.clock.advance(1_000)
    for tenant in ("t", "u"):
        pruner.look_at(tenant)
    plane.clock.advance(1_000)
    plane.key_value.lost_at = len(plane.key_value.calls)
    with pytest.raises(Unavailable):
        pruner.prune_once()
    plane.put("t", timelines={"x": Progress(7, 0)})
    plane.log.error = None
    plane.clock.advance(plane.options.retry_s)
    pruner.prune_once()
    assert plane.log.taken() == [("prune 7", layout.log_key("t", "x"))]
    bare = Plane(log=False)
    without = Pruner(bare.context)
    without.look_at("t")
    without.prune_once()
    assert bare.key_value.calls == []


def test_a_log_is_begun_and_asked_for_rows() -> None:
    """One that does not answer has not begun, and is taken to have none; without a log there is nothing to begin."""
    plane = Plane()
    assert plane.context.begin_log("t", "main")
    assert plane.log.taken() == [("create", layout.log_key("t", "main"))]
    assert not plane.context.has_log("t", "main")
    plane.log.error = Unavailable("away")
    assert not plane.context.begin_log("t", "main")
    bare = Plane(log=False)
    assert bare.context.begin_log("t", "main")
    assert not bare.context.has_log("t", "main")
    for last in (0, 1, 5):
        plane.log.bounds = lambda timeline, last=last: LogBounds(1, last)  # type: ignore[method-assign,misc]
        assert plane.context.has_log("t", "main") is (last > 0)


# ---- the collector


def committed(tenant: str, txn: int, since_ms: int, **fields: Any) -> CollectTask:
    """A task of a commit."""
    return CollectTask(tenant, txn, TransactionState.COMMITTED, since_ms=since_ms, **fields)


class Collections(Plane):
    """A collector, its store, and tasks in the ledger."""

    def __init__(self) -> None:
        super().__init__(grace_ms=1_000)
        self.store = open_store(f"memory://collections-{uuid.uuid4().hex}")
        self.collector = Collector(self.context, storage=self.store)

    def add(self, *tasks: CollectTask) -> None:
        """Write tasks, and tell the collector."""
        record = self.context.ledger.tenant(tasks[0].tenant, fresh=True)
        self.context.ledger.change(
            tasks[0].tenant,
            lambda now: Step(
                None, msgspec.structs.replace(record, next_generation=record.next_generation + 1), (), tasks
            ),
        )
        self.collector.add(tasks)

    def object(self, txn: int, name: str, tenant: str = "t") -> str:
        """Put an object of a transaction; its path."""
        path = f"{layout.txn_folder(tenant, txn)}/{name}"
        self.store.put(path, b"x")
        return path

    def paths(self) -> list[str]:
        """What is there."""
        return [meta.path for meta in self.store.list()]

    def left(self) -> list[int]:
        """Transactions of the tasks that are left."""
        return [task.txn for task in self.context.ledger.tasks()]


def test_what_a_commit_replaced_goes_after_the_grace_in_the_order_of_commits() -> None:
    """Not before; a hold of an older state delays it, and all that follow, until it ends."""
    plane = Collections()
    now_ms = plane.context.now_ms()
    plane.put("t", holds=(Hold("r", 2, now_ms + 5_000), Hold("s", 3, now_ms + 9_000), Hold("old", 0, now_ms)))
    paths = {txn: plane.object(txn, "manifest.1") for txn in (1, 2, 3, 4)}
    for txn in (2, 3, 4):
        plane.add(committed("t", txn, now_ms, unneeded=(paths[txn - 1],), timelines=(f"x{txn}",)))
    plane.clock.advance(0.999)
    plane.collector.collect_once()
    assert plane.left() == [2, 3, 4]
    plane.clock.advance(0.001)
    plane.collector.collect_once()
    assert (plane.left(), plane.paths()) == ([3, 4], [paths[txn] for txn in (2, 3, 4)])
    assert plane.log.taken() == [("drop", layout.log_key("t", "x2"))]
    for seconds, left in ((3.9, [3, 4]), (0.2, [4]), (3.8, [4]), (0.2, [])):
        plane.clock.advance(seconds)
        plane.collector.collect_once()
        assert plane.left() == left, seconds
    assert plane.paths() == [paths[4]]


def test_a_rejected_transaction_is_swept_twice() -> None:
    """At once, and after the grace for what landed late; then its task goes, and it is collected."""
    plane = Collections()
    plane.put("t", committed=2)
    now_ms = plane.context.now_ms()
    txn = msgspec.structs.replace(transaction(1), state=TransactionState.REJECT_ACKNOWLEDGED, ended_ms=5)
    plane.context.ledger.change("t", lambda now: Step(None, msgspec.structs.replace(now, home="h"), (txn,)))
    plane.object(1, "a")
    kept = plane.object(2, "a")
    task = CollectTask("t", 1, TransactionState.REJECT_ACKNOWLEDGED, since_ms=now_ms)
    plane.add(task)
    plane.collector.collect_once()
    assert plane.paths() == [kept]
    (listed,) = plane.context.ledger.tasks()
    assert (listed.listed_ms, listed.since_ms) == (now_ms, now_ms)
    plane.object(1, "late")
    plane.clock.advance(0.999)
    plane.collector.collect_once()
    assert plane.left() == [1]
    plane.clock.advance(0.001)
    plane.collector.collect_once()
    assert (plane.left(), plane.paths()) == ([], [kept])
    finished = plane.context.ledger.finished("t", 1)
    assert finished is not None
    assert (finished.state, finished.ended_ms) == (TransactionState.GARBAGE_COLLECTED, 5)


def test_nothing_outside_of_its_tenant_is_deleted() -> None:
    """Whatever a task names."""
    plane = Collections()
    plane.put("t")
    plane.put("tt")
    now_ms = plane.context.now_ms()
    other, own = plane.object(1, "a", "tt"), plane.object(1, "a")
    plane.store.put("elsewhere", b"x")
    plane.add(committed("t", 2, now_ms - 1_000, unneeded=(other, "elsewhere", own, own)))
    plane.collector.collect_once()
    assert (plane.left(), plane.paths()) == ([], ["elsewhere", other])


def test_a_deleted_tenant_is_removed_when_no_transaction_of_it_is_left() -> None:
    """Until then it is looked at again after a pause; its logs are dropped, but for those of pins."""
    plane = Collections()
    plane.put(
        "t",
        is_deleted=True,
        transactions=(transaction(1),),
        timelines={"x": Progress(1, 0), "pin": Progress(1, 1, is_read_only=True)},
    )
    plane.object(1, "a")
    plane.collector.remove_tenant("t")
    plane.collector.collect_once()
    assert len(plane.paths()) == 1
    plane.put("t", transactions=())
    plane.collector.collect_once()
    assert len(plane.paths()) == 1, "not before the pause is over"
    plane.add(committed("t", 2, plane.context.now_ms(), timelines=("gone",)))
    plane.clock.advance(plane.options.retry_s)
    plane.collector.collect_once()
    assert (plane.left(), plane.paths()) == ([], [])
    assert plane.log.taken() == [("drop", layout.log_key("t", id)) for id in ("gone", "x")]
    with pytest.raises(NotFound):
        plane.context.ledger.tenant("t", fresh=True)
    floor = plane.context.ledger.floor("t")
    assert floor is not None
    plane.context.events.flush()
    assert [event.kind for _, event in plane.context.ledger.events(limit=9)] == ["tenant_removed"]
    plane.put("alive")
    plane.collector.remove_tenant("alive")
    plane.collector.collect_once()
    assert plane.context.ledger.tenant("alive", fresh=True).tenant == "alive"


def test_an_event_is_a_message_with_its_time() -> None:
    """Of the clock, in milliseconds."""
    plane = Plane()
    plane.clock.advance(5)
    plane.context.events.add("kind", "message", took_ms=7)
    plane.context.events.flush()
    ((position, event),) = plane.context.ledger.events(limit=9)
    now_ms = plane.context.now_ms()
    assert event == Event(now_ms, "kind", "message", took_ms=7)
    assert position.partition("-")[0] == f"{now_ms:013}"
