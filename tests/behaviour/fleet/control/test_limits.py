"""Limits: a control plane takes as much as it says, and refuses, leaves or puts off the next; and what it counts."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from lakebed.errors import InvalidRequest
from lakebed.fleet import layout, machine
from lakebed.fleet.control.options import ControlOptions
from lakebed.fleet.model import ManifestRef, Policy, Transaction, TransactionState
from lakebed.fleet.ports import AckRequest, CommitRequest, Heartbeat
from lakebed.fleet.records import Step
from lakebed.metrics import default_registry
from worlds.fleet_control import TICK_S, CountedKeyValue, World
from worlds.memory_key_value import MemoryKeyValue

MIB = 1_048_576


def commit_request(number: int) -> CommitRequest:
    """A request of a tenant that is not there."""
    path = layout.manifest_path(f"none-{number}", 1, 1)
    return CommitRequest(f"none-{number}", 1, "a", 1, ManifestRef(path, "0" * 32, 1), timelines={}, names={})


@pytest.mark.parametrize(
    ("ask", "request_of"),
    [
        (lambda world, requests: world.control.commit(requests), commit_request),
        (
            lambda world, requests: world.control.ack(requests),
            lambda number: AckRequest(f"none-{number}", 1, "a", 1),
        ),
    ],
    ids=["commit", "ack"],
)
def test_a_batch_has_at_most_a_thousand_requests(
    ask: Callable[[World, list[Any]], list[Any]], request_of: Callable[[int], Any]
) -> None:
    """A thousand are answered one by one; with one more none is, and the error has both numbers."""
    world = World()
    requests = [request_of(number) for number in range(1_001)]
    assert {reply.reason for reply in ask(world, requests[:1_000])} == {"there is no such tenant"}
    assert len(ask(world, requests[:1_000])) == 1_000
    with pytest.raises(InvalidRequest, match="has 1,001 requests, and 1,000 are possible") as refused:
        ask(world, requests)
    assert refused.value.kind == "oversized_batch"


def test_the_newest_thousand_finished_transactions_are_listed() -> None:
    """Newest first, without a gap."""
    world = World(options=ControlOptions(grace_ms=0))
    world.add("a")
    world.control.create_tenant("t")
    node = world.nodes["a"]
    for number in range(1_010):
        node.commit("t", lsn=number)
    finished = [transaction.id for transaction in world.control.transactions("t").finished]
    last = world.control.tenant("t").committed
    assert finished == list(range(last, last - 1_000, -1))


@pytest.mark.parametrize(("unflushed_bytes", "goes_to"), [(64 * MIB - 1, "b"), (64 * MIB + 1, "a")])
def test_sixty_four_mebibytes_in_memtables_weigh_as_much_as_a_tenant(unflushed_bytes: int, goes_to: str) -> None:
    """A new tenant goes to the node with less to do: tenants and bytes together."""
    world = World()
    world.add("a", "b")
    for name, count, size in (("a", 1, 0), ("b", 0, unflushed_bytes)):
        incarnation = world.nodes[name].incarnation
        world.control.heartbeat(Heartbeat(name, incarnation, tenant_count=count, unflushed_bytes=size))
    world.control.create_tenant("t")
    assert "t" in world.nodes[goes_to].held


def test_tenants_that_were_promised_count_until_the_next_heartbeat() -> None:
    """Then the node's own count does; both are what is shown."""
    world = World()
    world.add("a", "b")
    for number in range(7):
        world.control.create_tenant(f"t{number}")
    assert {status.node: status.tenant_count for status in world.control.nodes()} == {"a": 4, "b": 3}
    for node in world.nodes.values():
        node.beat()
    assert {status.node: status.tenant_count for status in world.control.nodes()} == {"a": 4, "b": 3}


@pytest.mark.parametrize(("lag_rows", "has_moved"), [(1_000, True), (1_001, False)])
def test_a_target_commits_when_it_is_near_enough(lag_rows: int, has_moved: bool) -> None:
    """`ControlOptions.relocation_lag_rows` behind the log, and no row more."""
    world = World()
    world.add("a", "b")
    world.control.create_tenant("t")
    world.wait(1)
    source = world.node_of("t")
    target = next(node for node in world.nodes.values() if node is not source)
    target.lags["t"] = lag_rows
    world.control.migrate("t", target.name)
    world.wait(1)
    assert (world.node_of("t") is target) is has_moved


def test_clients_are_told_how_far_the_node_is_behind_that_has_the_tenant_now() -> None:
    """They slow down by it; what an older attachment said does not count."""
    world = World()
    world.add("a")
    world.control.create_tenant("t")
    node = world.nodes["a"]
    for lag_rows in (0, 7, 1_000_000):
        node.lags["t"] = lag_rows
        node.beat()
        assert world.control.route("t").lag_rows == lag_rows
    for _ in range(300):  # generations beyond the numbers that a process keeps only once
        world.ledger.change("t", lambda record: machine.attach(record, node.record(), now_ms=0))
    assert world.control.route("t").lag_rows == 0
    world.start()
    world.wait(1)
    assert node.held["t"].generation == 301
    node.beat()
    assert world.control.route("t").lag_rows == 1_000_000


def test_events_of_one_round_are_at_most_a_thousand() -> None:
    """What comes after is dropped: events are for people, and memory is bounded. The next round has room again."""
    world = World()
    world.add("a")
    world.tick()
    before = len(world.control.events(limit=10_000))
    for number in range(1_001):
        world.control._events.add("forced", f"{number}")
    world.tick()
    assert len(world.control.events(limit=10_000)) - before == 1_000
    for number in range(1, 6):
        world.control._events.add("forced", f"{number}")
    world.tick()
    assert len(world.control.events(limit=10_000)) - before == 1_005
    assert len(world.control.events()) == 1_000  # unless more are asked for
    world.control._events.add("forced", "one more")
    world.tick()
    assert [event.message for _, event in world.control.events(limit=10_000)][before:] == [
        *map(str, range(1_000)),
        *map(str, range(1, 6)),
        "one more",
    ]


@pytest.mark.parametrize("events_max", [5, 6])
def test_the_newest_events_are_kept(events_max: int) -> None:
    """As many as `ControlOptions.events_max`, over rounds and over control planes."""
    world = World(options=ControlOptions(events_max=events_max))
    wanted = []
    for number in range(4):
        for letter in "abc":
            wanted.append(f"{letter}{number}")
            world.add(wanted[-1])
            world.control.decommission(wanted[-1])
        world.tick()
        assert [event.node for _, event in world.control.events()] == wanted[-events_max:]
        if number == 1:
            world.start()


def test_events_are_sorted_by_their_time() -> None:
    """Positions are texts of one length: milliseconds since 1970, and what tells two of one millisecond apart."""
    world = World()
    world.add("a", "b")
    for name in "ab":
        world.control.decommission(name)
    now_ms = world.clock.now_ms()
    world.tick()
    positions = [position for position, _ in world.control.events()]
    assert [len(position) for position in positions] == [13 + 1 + 8] * 2
    assert [int(position.partition("-")[0]) for position in positions] == [now_ms, now_ms + 1]


def test_the_whole_ledger_is_read_once_in_an_interval() -> None:
    """At the start, and `ControlOptions.scan_interval_ms` after each time, within a tick."""
    key_value = CountedKeyValue(MemoryKeyValue())
    world = World(key_value=key_value, options=ControlOptions(scan_interval_ms=4_000))
    scanned_s = []
    for tick in range(100):
        key_value.calls.clear()
        world.wait(TICK_S)
        if key_value.calls:
            scanned_s.append(tick * TICK_S)
    assert scanned_s == pytest.approx([0, 4, 8], abs=2.5 * TICK_S)


def value_of(name: str, *labels: str) -> float:
    """A counter or gauge that the process exports."""
    return default_registry.counter(name, help_text="").value(*labels)


def test_what_happens_is_counted_once() -> None:
    """Each verdict, attach, silent node, relocation, transaction and object, as often as it was."""
    total = "lakebed_fleet_{}_total".format
    wanted = {
        (total("commits"), "granted"): 3,  # two of the source, one of the target of a relocation
        (total("commits"), "rejected"): 1,
        (total("relocations"), "moved"): 1,
        (total("relocations"), "given_up"): 1,
        (total("silent_nodes"),): 1,
        (total("attaches"),): 1,  # instead of the silent node; those of an operator do not count
        (total("collected"), "committed"): 2,  # all that replaced a manifest
        (total("collected"), "reject_acknowledged"): 2,  # of the source, and of the target that was given up
        (total("collected_objects"),): 2 + 3,
        (total("events"), "relocated"): 1,
        (total("events"), "relocation_given_up"): 1,
        (total("events"), "node_silent"): 1,
    }
    before = {name: value_of(*name) for name in wanted}
    world = World(options=ControlOptions(grace_ms=500, relocation_give_up_ms=5_000))
    world.add("a", "b", "c")
    world.control.create_tenant("t", Policy(relocation_wait_max_ms=0))
    world.wait(1)
    source = world.node_of("t")
    target, other = (node for node in world.nodes.values() if node is not source)
    assert [source.commit("t", lsn=lsn).verdict for lsn in (1, 2)] == ["granted"] * 2
    world.control.migrate("t", target.name)
    world.wait(4)
    assert world.node_of("t") is target
    other.lags["t"] = 1_000_000
    world.control.migrate("t", other.name)
    world.wait(8)
    assert world.node_of("t") is target
    rejected = [item for item in world.control.transactions("t").unfinished if item.node != target.name]
    for count, transaction in enumerate(rejected, 1):
        for number in range(count):
            world.store.put(layout.layer_path("t", transaction.id, "main", f"{number}"), b"...")
        node = world.nodes[transaction.node]
        assert node.ack("t", transaction.id, transaction.generation) == "reject_acknowledged"
    late = target.request("t", lsn=9)
    target.is_down = True
    world.wait(3)
    assert world.node_of("t") is not target
    assert world.control.commit([late])[0].verdict == "rejected"
    world.wait(machine.HOLD_MS / 1000)
    assert {name: value_of(*name) - before[name] for name in wanted} == wanted


def test_nodes_are_counted_by_their_state() -> None:
    """As of the last look."""
    world = World()
    world.add("a", "b", "c", "d", "e", "f")
    world.control.decommission("a")
    world.control.drain("b")
    world.control.drain("c")
    world.wait(2.5, silent=["d"])
    states = ("alive", "silent", "draining", "decommissioned")
    gauge = default_registry.gauge("lakebed_fleet_nodes", help_text="")
    assert {state: gauge.value(state) for state in states} == {
        "alive": 2, "silent": 1, "draining": 2, "decommissioned": 1
    }  # fmt: skip


@pytest.mark.parametrize("unfinished", [198, 199, 200])
def test_a_tenant_with_too_many_unfinished_transactions_is_attached_no_more(unfinished: int) -> None:
    """A node that cannot commit gets another attachment, unless there are two hundred that were not acknowledged."""
    world = World()
    world.add("a")
    world.control.create_tenant("t")
    world.wait(0.5)
    record = world.control.tenant("t")
    (txn,) = record.transactions
    pending = tuple(
        Transaction(1_000 + number, 0, "gone", 1, TransactionState.REJECT_PENDING, 0)
        for number in range(unfinished - 1)
    )
    world.ledger.change(
        "t", lambda now: Step(None, msgspec.structs.replace(now, next_txn=2_000, transactions=(txn, *pending)))
    )
    generation = record.attachments[0].generation
    world.nodes["a"].broken.add("t")
    world.wait(2)
    (attachment,) = world.control.tenant("t").attachments
    assert (attachment.generation > generation) is (unfinished < 200)


@pytest.mark.parametrize("ahead", [-1, 1])
def test_a_reader_at_another_state_than_the_last_is_told_the_last(ahead: int) -> None:
    """By a control plane that starts: whether it is behind, or ahead of a ledger that was restored."""
    world = World()
    world.add("a", "b")
    world.control.create_tenant("t")
    writer = world.node_of("t")
    (reader,) = (node for node in world.nodes.values() if node is not writer)
    world.control.attach_reader("t", reader.name)
    for lsn in (1, 2, 3):
        writer.commit("t", lsn=lsn)
    world.wait(0.5)
    last = world.control.tenant("t").committed
    assert reader.held["t"].base == last
    reader.held["t"] = msgspec.structs.replace(reader.held["t"], base=last + ahead)
    world.start()
    world.wait(1)
    assert reader.held["t"].base == last


def test_a_writer_is_not_told_of_its_own_commits() -> None:
    """Its readers are."""
    world = World()
    world.add("a", "b")
    world.control.create_tenant("t")
    writer = world.node_of("t")
    (reader,) = (node for node in world.nodes.values() if node is not writer)
    world.control.attach_reader("t", reader.name)
    world.wait(0.5)
    told = len(writer.calls)
    for lsn in (1, 2, 3):
        writer.commit("t", lsn=lsn)
        world.wait(0.5)
        assert reader.held["t"].base == world.control.tenant("t").committed
    assert len(writer.calls) == told
