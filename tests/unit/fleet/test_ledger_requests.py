"""What the ledger asks of its store, remembers, and says when others change the same records."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

import msgspec
import pytest

from lakebed.errors import AlreadyExists, Conflict, Fenced, NotFound, OutcomeUnknown, Unavailable, UnsupportedFormat
from lakebed.fleet import layout, machine
from lakebed.fleet import ledger as ledger_module
from lakebed.fleet.ledger import DONE_MAX, TRIES_MAX, Ledger
from lakebed.fleet.model import CollectTask, Floor, NodeRecord, Policy, TenantRecord, Transaction, TransactionState
from lakebed.fleet.ports import Event
from lakebed.fleet.records import Step
from worlds.errors import raises
from worlds.key_value_wrapper import KeyValueCall, KeyValueWrapper
from worlds.memory_key_value import MemoryKeyValue, MemorySpace

R = TypeVar("R")

NODE = NodeRecord("a", "http://a:1", "a-1", "a-disk", 0)


class Watched(KeyValueWrapper):
    """Notes its calls, lets others act before a write, and loses replies.

    Attributes:
        calls: the calls so far.
        before_write: what happens right before each write.
        loses: how the reply to a write is lost: "after" it was made, or "before"; None: it is not.
    """

    def __init__(self, space: MemorySpace | None = None) -> None:
        super().__init__(MemoryKeyValue(space or MemorySpace()))
        self.calls: list[str] = []
        self.before_write: Callable[[], object] = lambda: None
        self.loses: str | None = None

    def intercept(self, call: KeyValueCall, perform: Callable[[], R]) -> R:
        """Make the call."""
        self.calls.append(call.kind)
        if not call.changes:
            return perform()
        self.before_write()
        if self.loses is None:
            return perform()
        if self.loses == "after":
            perform()
        raise OutcomeUnknown("no reply")

    def asked(self, ask: Callable[[], R]) -> tuple[R, list[str]]:
        """An answer, and the calls that it took."""
        self.calls.clear()
        answer = ask()
        return answer, list(self.calls)


@pytest.fixture
def store() -> Watched:
    """An empty store."""
    return Watched()


def new(tenant: str) -> Step[TenantRecord]:
    """A tenant that is attached."""
    record = machine.new_tenant(tenant, policy=Policy(), floor=None, now_ms=0)
    record = machine.attach(record, NODE, now_ms=0).record
    return Step(record, record)


def home(node: str) -> Callable[[TenantRecord], Step[str]]:
    """A step that notes a home; it is the reply."""
    return lambda record: Step(node, msgspec.structs.replace(record, home=node))


def keep(record: TenantRecord) -> Step[str | None]:
    """A step that changes nothing and replies with the home."""
    return Step(record.home, record)


def test_a_record_that_is_known_is_not_read(store: Watched) -> None:
    """But when it is asked for as it is; what this process wrote itself it knows."""
    ledger = Ledger(store)
    ledger.create(new("t"))
    other = Ledger(store)
    assert store.asked(lambda: ledger.tenant("t").tenant) == ("t", [])
    assert store.asked(lambda: other.tenant("t").tenant) == ("t", ["get"])
    assert store.asked(lambda: other.tenant("t").tenant) == ("t", [])
    assert store.asked(lambda: ledger.change("t", home("x"))) == ("x", ["write"])
    assert other.tenant("t").home is None
    assert store.asked(lambda: other.tenant("t", fresh=True).home) == ("x", ["get"])
    assert store.asked(lambda: other.tenant("t").home) == ("x", [])
    for _ in range(2):  # a missing one is asked for each time
        with raises(NotFound, "tenant_not_found"):
            store.asked(lambda: ledger.tenant("none"))
        assert store.calls == ["get"]


def test_several_records_are_read_at_one_moment(store: Watched) -> None:
    """And are known then; so are those of a listing."""
    ledger = Ledger(store)
    for tenant in ("a", "b", "c"):
        ledger.create(new(tenant))
    for look in ("some", "tenants"):
        other = Ledger(store)
        if look == "some":
            records, calls = store.asked(lambda other=other: other.some(["c", "none", "a"]))  # type: ignore[misc]
            assert [record and record.tenant for record in records] == ["c", None, "a"]
            assert calls == ["snapshot", "snapshot get_many"]
        else:
            assert [record.tenant for record in other.tenants(after="a")] == ["b", "c"]
        assert store.asked(lambda other=other: other.tenant("c").tenant) == ("c", [])  # type: ignore[misc]
        known = look == "some"
        assert store.asked(lambda other=other: other.tenant("a").tenant) == ("a", [] if known else ["get"])  # type: ignore[misc]
    ledger.key_value.delete(layout.tenant_key("c"))
    assert ledger.some(["c"]) == [None]
    with raises(NotFound, "tenant_not_found"):
        ledger.tenant("c")


@pytest.mark.parametrize("count", [1, 2, 3])
def test_records_that_are_not_known_are_read_together(store: Watched, count: int) -> None:
    """One by itself, several in a snapshot; then one write for all."""
    tenants = [f"t{number}" for number in range(count)]
    for tenant in tenants:
        Ledger(store).create(new(tenant))
    read = ["get"] if count == 1 else ["snapshot", "snapshot get_many"]
    ledger = Ledger(store)
    replies, calls = store.asked(lambda: ledger.change_many([(tenant, home("x")) for tenant in tenants]))
    assert (replies, calls) == (["x"] * count, [*read, "write"])
    replies, calls = store.asked(lambda: ledger.change_many([(tenant, home("y")) for tenant in tenants]))
    assert (replies, calls) == (["y"] * count, ["write"])
    other = Ledger(store)
    assert store.asked(lambda: other.change_many([(tenant, keep) for tenant in tenants])) == (["y"] * count, read)
    # What is known may be old: it is read before it is the answer.
    assert store.asked(lambda: other.change_many([(tenant, keep) for tenant in tenants])) == (["y"] * count, read)


def test_no_more_than_so_many_records_are_known(store: Watched, monkeypatch: pytest.MonkeyPatch) -> None:
    """Then all are forgotten, and known again as they are met."""
    monkeypatch.setattr(ledger_module, "_KNOWN_COUNT_MAX", 2)
    ledger = Ledger(store)
    for tenant in ("a", "b"):
        ledger.create(new(tenant))
    assert store.asked(lambda: [ledger.tenant(tenant).tenant for tenant in "ab"]) == (["a", "b"], [])
    ledger.create(new("c"))
    assert store.asked(lambda: ledger.tenant("c").tenant) == ("c", [])
    assert store.asked(lambda: ledger.tenant("a").tenant) == ("a", ["get"])


@pytest.mark.parametrize("rounds", [0, 1, TRIES_MAX - 1, TRIES_MAX, TRIES_MAX + 1])
def test_a_change_is_tried_again_so_often(rounds: int) -> None:
    """While another process is faster each time; then it is given up, and the others of the batch are done."""
    space = MemorySpace()
    store, plain = Watched(space), Ledger(MemoryKeyValue(space))
    plain.create(new("busy"))
    plain.create(new("calm"))
    left = [rounds]

    def change_first() -> None:
        if left[0]:
            left[0] -= 1
            Ledger(plain.key_value).change("busy", home(f"{left[0]}"))

    store.before_write = change_first
    busy, calm = Ledger(store).change_many([("busy", home("ours")), ("calm", home("ours"))])
    gives_up = rounds >= TRIES_MAX
    if gives_up:
        assert isinstance(busy, Unavailable)
        assert busy.kind == "contention"
    else:
        assert (busy, calm) == ("ours", "ours")
    assert plain.tenant("busy", fresh=True).home == (f"{rounds - TRIES_MAX}" if gives_up else "ours")


@pytest.mark.parametrize("rounds", [0, 1, TRIES_MAX - 1, TRIES_MAX])
@pytest.mark.parametrize("kind", ["rival", "lost"])
def test_a_node_is_tried_again_so_often(kind: str, rounds: int) -> None:
    """As a tenant; a change that is there already is written no more."""
    space = MemorySpace()
    store, plain = Watched(space), Ledger(MemoryKeyValue(space))
    left = [rounds]

    def disturb() -> None:
        store.loses = "before" if kind == "lost" and left[0] else None
        if left[0]:
            left[0] -= 1
            if kind == "rival":
                Ledger(plain.key_value).change_node("a", lambda _: msgspec.structs.replace(NODE, url=f"{left[0]}"))

    store.before_write = disturb
    ledger = Ledger(store)
    if rounds >= TRIES_MAX:
        with raises(Unavailable, "contention"):
            ledger.change_node("a", lambda _: NODE)
        return
    assert ledger.change_node("a", lambda _: NODE) == NODE == plain.node("a")
    assert store.asked(lambda: ledger.change_node("a", lambda _: NODE)) == (NODE, ["get"])
    assert [node.node for node in ledger.nodes()] == ["a"]
    assert plain.node("b") is None


@pytest.mark.parametrize("first", [True, False])
@pytest.mark.parametrize("loses", [None, "after", "before"])
def test_the_id_of_a_ledger_is_the_one_that_is_written(store: Watched, loses: str | None, first: bool) -> None:
    """Also when its reply is lost, or another process was faster; when nothing is there, it is not known."""
    if not first:
        store.before_write = lambda: store.inner.set(layout.LEDGER, b'{"id":"theirs"}')
    store.loses = loses
    ledger = Ledger(store)
    assert ledger.read_identity() is None
    if loses == "before" and first:
        with raises(Unavailable, "contention"):
            ledger.identity("ours")
        return
    expected = "ours" if first else "theirs"
    assert ledger.identity("ours") == expected
    assert store.asked(lambda: ledger.identity("another")) == (expected, ["get"])
    assert store.asked(ledger.read_identity) == (expected, ["get"])


@pytest.mark.parametrize("loses", [None, "after", "before"])
@pytest.mark.parametrize("there", ["nothing", "another", "deleted", "floor"])
def test_a_creation_meets_what_is_there(store: Watched, there: str, loses: str | None) -> None:
    """A tenant of the name, one that is being deleted, or one that came and went: each has its own error."""
    plain = Ledger(store.inner)
    if there == "floor":
        store.before_write = lambda: store.inner.set(layout.floor_key("t"), msgspec.json.encode(Floor(5, 5)))
    elif there != "nothing":
        plain.create(Step(None, msgspec.structs.replace(new("t").record, is_deleted=there == "deleted", home="x")))
    store.loses = loses
    ledger = Ledger(store)
    is_made = there == "nothing" and loses != "before"
    if is_made:
        assert ledger.create(new("t")).tenant == "t"
        assert store.asked(lambda: ledger.tenant("t").tenant) == ("t", [])
        return
    if there in ("nothing", "floor"):
        error: type[Exception] = OutcomeUnknown if loses == "before" else Unavailable
    else:
        error = Conflict if there == "deleted" else AlreadyExists
    with pytest.raises(error):
        ledger.create(new("t"))
    store.loses = None
    assert (store.inner.get(layout.tenant_key("t")) is None) is (there in ("nothing", "floor"))


def test_a_tenant_that_is_being_deleted_names_the_nodes_that_it_waits_for(store: Watched) -> None:
    """Each once, sorted; none when nothing is open."""
    record = msgspec.structs.replace(new("t").record, is_deleted=True)
    txn = record.transactions[0]
    several = tuple(msgspec.structs.replace(txn, id=id, node=node) for id, node in enumerate("cabc", start=1))
    for transactions, nodes in (((), None), ((txn,), "a"), (several, "a, b, c")):
        Ledger(store).key_value.delete(layout.tenant_key("t"))
        Ledger(store).create(Step(None, msgspec.structs.replace(record, transactions=transactions)))
        with raises(Conflict, "tenant_deleted") as caught:
            Ledger(store).create(new("t"))
        waits = f"waits until {nodes} has acknowledged"
        assert (waits in str(caught.value), "waits until" in str(caught.value)) == (
            nodes is not None,
            nodes is not None,
        )


def test_after_an_error_nothing_is_known(store: Watched) -> None:
    """A fenced store says so, and the next look reads."""
    ledger = Ledger(store)
    ledger.create(new("t"))

    def refuse() -> None:
        raise Fenced("another process has the ledger")

    store.before_write = refuse
    with pytest.raises(Fenced):
        ledger.change("t", home("x"))
    store.before_write = lambda: None
    assert store.asked(lambda: ledger.tenant("t").home) == (None, ["get"])


@pytest.mark.parametrize("id", [DONE_MAX - 1, DONE_MAX, DONE_MAX + 1, DONE_MAX + 5])
def test_a_finished_transaction_removes_one_that_is_much_older(store: Watched, id: int) -> None:
    """In its write; the first ones remove none."""
    ledger = Ledger(store)
    ledger.create(new("t"))
    for old in (1, 2, 5, 6):
        store.inner.set(layout.transaction_key("t", old), msgspec.json.encode(transaction(old)))
    record = msgspec.structs.replace(ledger.tenant("t"), home="x")
    ledger.change("t", lambda _: Step(None, record, (transaction(id),)))
    assert [txn.id for txn in ledger.list_finished("t")] == [
        *(old for old in (1, 2, 5, 6) if old != id - DONE_MAX), id,
    ]  # fmt: skip
    assert (ledger.finished("t", id), ledger.finished("t", 99)) == (transaction(id), None)


def transaction(id: int) -> Transaction:
    """A committed one."""
    return Transaction(id, 0, "a", 1, TransactionState.COMMITTED, 0)


def test_a_task_is_changed_once(store: Watched) -> None:
    """With its transaction; a task that another has changed or done meanwhile stays as it is."""
    ledger = Ledger(store)
    task = CollectTask("t", 3, TransactionState.COMMITTED, since_ms=1)
    later, other = msgspec.structs.replace(task, listed_ms=5), msgspec.structs.replace(task, listed_ms=6)
    ledger.create(Step(None, new("t").record, (), (task,)))
    ledger.replace_task(task, later)
    ledger.replace_task(task, other, finished=transaction(3))
    assert (list(ledger.tasks()), ledger.finished("t", 3)) == ([later], None)
    ledger.replace_task(later, None, finished=transaction(3))
    assert (list(ledger.tasks_of("t")), ledger.finished("t", 3)) == ([], transaction(3))
    ledger.replace_task(later, other)
    assert list(ledger.tasks()) == []


@pytest.mark.parametrize("limit", [1, 2, 5, 6])
def test_events_come_in_pages(store: Watched, limit: int) -> None:
    """At most so many, behind a position, with their positions."""
    ledger = Ledger(store)
    events = [(f"{number:013}-00000000", Event(number, "k", "m")) for number in range(5)]
    ledger.add_events(events)
    assert ledger.events(limit=limit) == events[:limit]
    for at, (position, _) in enumerate(events):
        assert ledger.events(after=position, limit=limit) == events[at + 1 : at + 1 + limit]


def test_a_part_of_a_record_that_is_not_known_asks_for_an_upgrade(store: Watched) -> None:
    """It is named."""
    body = msgspec.to_builtins(new("t").record) | {"colour": "red"}
    store.inner.set(layout.tenant_key("t"), msgspec.json.encode(body))
    with raises(UnsupportedFormat, "ledger_record", match="colour", unknown="colour"):
        Ledger(store).tenant("t")
