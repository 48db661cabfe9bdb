"""A node that does not answer: its tenants are attached elsewhere, one write each, and it is told when it is back."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from lakebed.errors import Unavailable
from lakebed.fleet import layout, machine, records
from lakebed.fleet.control.options import ControlOptions
from lakebed.fleet.control.reconciler import UNFINISHED_COUNT_MAX
from lakebed.fleet.ledger import Ledger
from lakebed.fleet.model import AttachmentMode, Policy
from lakebed.fleet.ports import Location, TimelineChange
from worlds.fleet_control import CountedKeyValue, World
from worlds.fleet_in_process import FleetInProcess
from worlds.key_value_wrapper import KeyValueCall
from worlds.memory_key_value import MemoryKeyValue


def test_a_silent_node_is_replaced_and_told_when_it_answers() -> None:
    """The new node has the last committed state; the old one is rejected, and detached when it is back."""
    world = World()
    world.add("a", "b", "c")
    world.control.create_tenant("t")
    old = world.node_of("t")
    assert old.held["t"].txn == 1
    assert old.commit("t").verdict == "granted"
    old.is_down = True
    world.wait(2.5)
    new = world.node_of("t")
    assert new is not old
    assert (new.held["t"].base, new.held["t"].manifest) == (1, old.held["t"].manifest)
    late = old.request("t", lsn=9)
    assert new.commit("t", lsn=2).verdict == "granted"
    assert world.control.commit([late])[0].verdict == "rejected"
    old.is_down = False
    world.wait(3.0)
    assert "t" not in old.held
    assert [event.kind for _, event in world.control.events()] == ["node_silent"]
    assert world.log.pruned == {"t/main": 2}


@pytest.mark.parametrize("what", ["generation", "mode"])
def test_a_node_is_told_what_the_control_plane_before_had_decided(what: str) -> None:
    """A process that dies between the ledger's write and the word to the node: the next one finds what differs."""
    world = World()
    world.add("a", "b")
    world.control.create_tenant("t")
    node = world.node_of("t")
    target = next(item for item in world.nodes.values() if item is not node)
    if what == "generation":
        world.ledger.change("t", lambda record: machine.attach(record, node.record(), now_ms=0))
    else:
        world.ledger.change("t", lambda record: machine.relocate(record, target.record(), now_ms=0))
    decided = records.attachment_of(world.control.tenant("t"), node.name)
    assert decided is not None
    node.calls.clear()
    world.start()
    world.wait(1)
    assert (decided.generation, decided.mode) in [(location.generation, location.mode) for location in node.calls]


def test_a_reader_is_told_the_manifest_that_the_control_plane_before_did_not_send() -> None:
    """A commit was granted, and the process died before the reader was told: its generation and mode are as before."""
    world = World()
    world.add("a", "b")
    world.control.create_tenant("t")
    writer = world.node_of("t")
    reader = next(node for node in world.nodes.values() if node is not writer)
    world.control.attach_reader("t", reader.name)
    world.wait(1)
    known = reader.held["t"]
    assert writer.commit("t").verdict == "granted"
    assert reader.held["t"] is known
    world.start()
    world.wait(1)
    assert reader.held["t"].base == known.base + 1


@pytest.mark.parametrize("goes_there", [False, True], ids=["and never gets the tenant", "and gets the tenant later"])
def test_a_transaction_that_its_node_never_heard_of_is_acknowledged(goes_there: bool) -> None:
    """It was begun and rejected before the node was told: it is not pending for ever, and the tenant can be dropped."""
    fleet = FleetInProcess()
    fleet.tenant().create()
    fleet.tenant().main.put(b"k", b"1")
    target = next(name for name in fleet.nodes if name != fleet.node_of("orders"))
    node = fleet.ledger.node(target)
    assert node is not None
    fleet.ledger.change("orders", lambda record: machine.relocate(record, node, now_ms=0))
    fleet.ledger.change("orders", lambda record: machine.cancel_relocation(record, now_ms=0))
    assert [item.state for item in fleet.control.tenant("orders").transactions if item.node == target] == [
        records.PENDING
    ]
    if goes_there:
        fleet.control.migrate("orders", target)
    fleet.wait(60)
    assert (fleet.node_of("orders") == target) is goes_there
    assert [item.state for item in fleet.control.tenant("orders").transactions] == [records.OPEN]
    assert fleet.tenant().main.get(b"k") == b"1"
    fleet.tenant().drop()
    fleet.wait(90)
    fleet.tenant().create()


@pytest.mark.parametrize("why", ["", "it retires", "another local state", "it is not told yet"])
def test_what_a_node_may_still_write_is_not_acknowledged_for_it(why: str) -> None:
    """A node that has not finished with older transactions, or whose state is not the one of before, is waited for."""
    world = World()
    world.add("a", "b")
    world.control.create_tenant("t")
    node = world.node_of("t")
    world.ledger.change("t", lambda record: machine.attach(record, node.record(), now_ms=0))
    if why != "it is not told yet":
        world.start()
        world.wait(1)
        assert node.held["t"].generation == 2
    node.is_retired = why != "it retires"
    if why == "another local state":
        node.local_id = "another"
        world.control.register(node.record())
    world.start()
    world.wait(0.1)
    pending = [item.id for item in world.control.tenant("t").transactions if item.state is records.PENDING]
    assert pending == ([1] if why else [])


@pytest.mark.parametrize("comes_back", [False, True], ids=["and stays without", "and has it again"])
def test_a_node_is_asked_whether_it_is_without_a_tenant_before_it_is_acknowledged_for(comes_back: bool) -> None:
    """It has other tenants, with names before and behind; one that has the tenant after all may still write in it."""
    world = World()
    world.add("a")
    for tenant in ("before", "t", "zebra"):
        world.control.create_tenant(tenant)
    node, location = world.nodes["a"], world.nodes["a"].held.pop("t")
    forget = node.put_location

    def put_location(told: Location) -> None:
        forget(told)
        if comes_back and told.mode is None:
            node.held["t"] = location

    node.put_location = put_location  # type: ignore[method-assign]
    world.ledger.change("t", lambda record: machine.detach(record, "a", now_ms=0))
    world.start()
    world.control.scan_once()
    node.beat()
    world.control.attend_once()
    pending = [item.id for item in world.control.tenant("t").transactions if item.state is records.PENDING]
    assert pending == ([1] if comes_back else [])
    assert {"before", "zebra"} <= node.held.keys()


def test_a_node_that_was_told_to_forget_a_tenant_takes_it_again() -> None:
    """It refuses what is older than the detach, not the attachment that comes next."""
    fleet = FleetInProcess()
    tenant = fleet.tenant()
    tenant.create()
    tenant.main.put(b"k", b"1")
    first = fleet.node_of("orders")
    fleet.stopped.add(first)
    fleet.wait(4)
    second = fleet.node_of("orders")
    fleet.stopped.discard(first)
    fleet.wait(5)
    assert second != first
    assert fleet.nodes[first].locations() == []
    fleet.kill(second)
    assert tenant.main.put(b"k", b"2") == 2
    assert tenant.main.get(b"k") == b"2"
    assert fleet.node_of("orders") == first


def test_a_node_that_missed_the_end_of_a_tenant_takes_the_next_of_its_name() -> None:
    """The record was gone when it was told to forget the tenant: that is no newer than what a new one begins with."""
    fleet = FleetInProcess()
    tenant = fleet.tenant()
    tenant.create()
    tenant.main.put(b"k", b"1")
    first = fleet.node_of("orders")
    fleet.stopped.add(first)
    fleet.wait(4)
    second = fleet.node_of("orders")
    tenant.drop()
    for transaction in fleet.control.transactions("orders").unfinished:
        fleet.control.force_ack("orders", transaction.id)
    fleet.wait(5)
    assert fleet.ledger.floor("orders") is not None
    fleet.stopped.discard(first)
    fleet.wait(5)
    assert fleet.nodes[first].locations() == []
    fleet.kill(second)
    fleet.wait(4)
    again = fleet.tenant()
    again.create()
    again.main.put(b"k", b"2")
    assert again.main.get(b"k") == b"2"
    assert fleet.node_of("orders") == first


def test_a_log_that_is_away_delays_new_tenants_alone() -> None:
    """A tenant that was created is reported as created, and comes when the log does; the node serves its others."""
    world = World()
    world.add("a")
    world.control.create_tenant("old")
    create, node = world.log.create, world.nodes["a"]

    def away(timeline: str, *, after: int = 0) -> None:
        raise Unavailable("the log does not answer")

    world.log.create = away  # type: ignore[method-assign]
    record = world.control.create_tenant("new")
    assert record.preferred == "a"
    change = TimelineChange("branch", "x", id="i")
    for _ in range(30):
        world.wait(0.1)
        assert world.control.change_timeline("old", change).name == "x"
    assert "new" not in node.held
    world.log.create = create  # type: ignore[method-assign]
    world.wait(1)
    assert "new" in node.held
    assert "new/main" in world.log.created


def test_a_record_is_bounded_where_a_node_never_acknowledges() -> None:
    """A node that says again and again that it is broken is attached anew until too much is not acknowledged."""
    world = World()
    world.add("a", "b")
    world.control.create_tenant("t")
    node = world.node_of("t")
    node.broken.add("t")
    world.wait(UNFINISHED_COUNT_MAX)
    assert len(world.control.tenant("t").transactions) == UNFINISHED_COUNT_MAX
    world.ledger.change("t", lambda record: machine.attach(record, node.record(), now_ms=0))  # as an operator may
    world.control.route("t")
    world.wait(5)
    assert node.held["t"].generation == UNFINISHED_COUNT_MAX + 1
    assert len(world.control.tenant("t").transactions) == UNFINISHED_COUNT_MAX + 1
    for transaction in world.control.tenant("t").transactions[:-1]:
        node.ack("t", transaction.id, transaction.generation)
    last = world.control.tenant("t").next_txn
    world.wait(world.options.scan_interval_ms / 1000 + 1)
    assert world.control.tenant("t").next_txn > last


def test_events_are_followed_although_the_clock_was_set_back() -> None:
    """Each is behind those that were there, also of a control plane that began later: who follows sees all of them."""
    world = World(options=ControlOptions(events_max=6))
    seen: list[str] = []
    after, wanted = "", []
    for number, jump_s in enumerate((0, -86_400 * 30, 60, -1)):
        world.clock.set_s += jump_s
        for name in (f"first-{number}", f"second-{number}"):
            world.add(name)
            world.control.decommission(name)
            wanted.append(name)
        world.tick()
        new = world.control.events(after=after)
        after = new[-1][0]
        seen += [event.node for _, event in new]
        world.start()
    assert seen == wanted
    assert [event.node for _, event in world.control.events()] == wanted[-6:]


@pytest.mark.parametrize("verb", ["create", "set policy", "migrate", "replace the broken", "take an acknowledgement"])
def test_what_a_control_plane_that_hangs_did_not_say_is_said_by_another(verb: str) -> None:
    """It wrote to the ledger, and nothing after that: another one tells the nodes, at once when a client asks."""
    world = World()
    world.add("a", "b")
    world.wait(0.5)
    world.control.create_tenant("t")
    world.wait(1)
    source = world.node_of("t")
    target = next(node for node in world.nodes.values() if node is not source)
    source.commit("t", lsn=1)
    other = world.control
    world.start()
    for node in (source, target):
        node.start()
    tenant = "t"
    source.is_down = target.is_down = True  # it writes, and its words are lost
    match verb:
        case "create":
            tenant = "u"
            world.control.create_tenant(tenant)
        case "set policy":
            world.control.set_policy(tenant, Policy(retain_rows=77))
        case "migrate":
            world.control.migrate(tenant, target.name)
        case "replace the broken":
            source.broken.add(tenant)
            source.beat()
            world.control.reconcile_once()
        case _:
            location = source.held.pop(tenant)
            source.ack(tenant, location.txn or 0, location.generation)
    source.is_down = target.is_down = False
    world.control = other  # the other one does not go on

    def untold() -> list[str]:
        record = Ledger(world.key_value).tenant(tenant, fresh=True)
        told = [(attachment, world.nodes[attachment.node].held.get(tenant)) for attachment in record.attachments]
        return [
            attachment.node
            for attachment, held in told
            if held is None or (held.generation, held.policy) != (attachment.generation, record.policy)
        ] or ([] if told else ["nowhere"])

    assert untold()
    world.control.route(tenant)
    world.wait(35 if verb == "set policy" else 0.5)
    assert not untold()


def test_a_node_that_starts_again_disturbs_no_other() -> None:
    """It is told what it has; the others have been told, and hear nothing, also when clients ask for their tenants."""
    world = World()
    world.add("a", "b", "c")
    for number in range(6):
        world.control.create_tenant(f"t{number}")
    world.wait(1)
    for node in world.nodes.values():
        node.calls.clear()
    world.nodes["b"].restart()
    for number in range(6):
        world.control.route(f"t{number}")
    world.wait(1)
    assert {name for name, node in world.nodes.items() if node.calls} <= {"b"}
    assert sorted(len(node.held) for node in world.nodes.values()) == [2, 2, 2]


def test_tenants_that_could_not_be_attached_count_for_no_node() -> None:
    """The ledger did not answer: what was promised to a node is taken back, and the next tenants are spread evenly."""
    key_value = CountedKeyValue(MemoryKeyValue())
    world = World(key_value=key_value)
    world.add("a", "b")
    world.wait(0.5)
    for node in world.nodes.values():
        node.is_down = True
    for number in range(5):
        world.control.create_tenant(f"t{number}")
    for tenant in world.control.tenants():
        world.ledger.change(tenant.tenant, lambda record: machine.detach(record, record.preferred or "", now_ms=0))
    world.start()
    for node in world.nodes.values():
        node.is_down = False
        node.restart()
    for number in range(8):
        world.control.create_tenant(f"u{number}")
    before = {status.node: status.tenant_count for status in world.control.nodes()}
    world.control.scan_once()

    def lose(call: KeyValueCall, perform: Callable[[], object]) -> object:
        if call.changes:
            raise Unavailable("no answer")
        return perform()

    answer, key_value.intercept = key_value.intercept, lose  # type: ignore[method-assign, assignment]
    world.control.attend_once()
    assert world.control.route("t0").node is None
    assert {status.node: status.tenant_count for status in world.control.nodes()} == before
    key_value.intercept = answer  # type: ignore[method-assign]
    world.wait(1)
    assert sorted(len(node.held) for node in world.nodes.values()) == [6, 7]


def test_a_tenant_that_is_nowhere_is_attached_when_a_client_asks() -> None:
    """Another control plane detached it, and ended: the client does not wait for the next scan of the ledger."""
    world = World()
    world.add("a")
    world.control.create_tenant("t")
    world.wait(1)
    world.ledger.change("t", lambda record: machine.detach(record, "a", now_ms=0))
    world.control.attend_once()
    assert world.control.route("t").node is None
    world.control.attend_once()
    assert world.control.route("t").node == "a"


def test_a_node_that_starts_again_is_told_at_once_what_it_has() -> None:
    """In the answer to its question: what it writes, what it only reads, and nothing of the others' tenants."""
    world = World()
    world.add("a", "b")
    world.wait(1)
    for tenant in ("first", "second", "third"):
        world.control.create_tenant(tenant)
    homes = {tenant: world.node_of(tenant) for tenant in ("first", "second", "third")}
    reads = next(tenant for tenant, home in homes.items() if home.name == "a")
    world.control.attach_reader(reads, "b")
    world.nodes["b"].restart()
    assert {tenant: location.mode for tenant, location in world.nodes["b"].held.items()} == {
        tenant: AttachmentMode.SINGLE for tenant, home in homes.items() if home.name == "b"
    } | {reads: AttachmentMode.READER}


def test_an_acknowledgement_by_hand_follows_the_record_that_it_was_decided_by() -> None:
    """A control plane that remembers the transaction as open looks again; what it then acknowledges is collected."""
    world = World(options=ControlOptions(grace_ms=500, scan_interval_ms=3_600_000))
    world.add("a", "b")
    world.wait(1)
    world.control.create_tenant("t")
    old = world.node_of("t")
    world.store.put(layout.layer_path("t", 1, "main", "left"), b"...")
    remembers = world.control
    world.start()  # another one, over the same ledger
    world.wait(1)
    old.is_down = True
    world.wait(2.5)
    assert world.node_of("t") is not old
    for control in (remembers, world.control):
        assert control.force_ack("t", 1).is_accepted
    world.control = remembers
    world.wait(2, silent=list(world.nodes))
    assert list(world.store.list(layout.txn_folder("t", 1))) == []
    assert [event.kind for _, event in world.control.events() if event.tenant == "t"] == ["forced"]


@pytest.mark.parametrize(("commits", "named"), [(1, "transaction 2"), (2, "transactions 2, 3")])
def test_a_node_that_lost_its_folder_is_named_with_what_it_cannot_acknowledge(commits: int, named: str) -> None:
    """One event for each tenant, with every rejected transaction and what to do about the first."""
    world = World()
    world.add("a")
    world.control.create_tenant("t")
    world.nodes["a"].commit("t")
    for _ in range(commits - 1):
        world.ledger.change("t", lambda record: machine.attach(record, world.nodes["a"].record(), now_ms=0))
    world.nodes["a"].restart(local_id="another")
    world.tick()
    (event,) = [event for _, event in world.control.events()]
    assert (event.kind, event.tenant, event.node) == ("local_state_lost", "t", "a")
    assert f"cannot acknowledge the rejected {named} of t: " in event.message
    assert event.message.endswith(" lakebed fleet ack LAKE t 2")
