"""A tenant's client over a whole fleet: it reads what it wrote, and meets lost nodes and replies as delays."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta

import pyarrow as pa
import pytest

from lakebed.errors import AlreadyExists, Conflict, InvalidRequest, NotFound, OutcomeUnknown, Unavailable
from lakebed.fleet.client import Tenant
from lakebed.fleet.layout import log_key
from lakebed.fleet.log.write_ids import WriteIdLimits
from lakebed.fleet.model import Manifest, Policy
from lakebed.fleet.ports import TimelineChange, TimelineInfo
from lakebed.kv import WriteBatch
from worlds.errors import raises
from worlds.fleet_in_process import FleetInProcess, Lossy


@pytest.fixture
def fleet() -> FleetInProcess:
    """Two nodes and a control plane."""
    return FleetInProcess()


@pytest.fixture
def orders(fleet: FleetInProcess) -> Tenant:
    """A tenant that keeps its last thousand states."""
    tenant = fleet.tenant()
    tenant.create(policy=Policy(retain_rows=1000))
    return tenant


def test_it_reads_what_it_wrote(orders: Tenant) -> None:
    """Puts, deletes and batches have ascending LSNs, and each is readable at once, at its LSN and later."""
    main = orders.main
    assert main.put(b"a", b"1") == 1
    assert main.write([(b"b", b"2"), (b"c", b"3"), (b"a", None)]) == 4
    assert main.delete(b"c") == 5
    assert main.get(b"a") is None
    assert main.get_many([b"b", b"c", b"b"]) == [b"2", None, b"2"]
    assert list(main.scan()) == [(b"b", b"2")]
    assert list(main.scan(lsn=3)) == [(b"a", b"1"), (b"b", b"2"), (b"c", b"3")]
    assert main.get(b"a", lsn=1) == b"1"
    assert main.at(1).scan_arrow().read_all().to_pydict() == {"key": [b"a"], "value": [b"1"]}


def test_it_writes_arrow_and_batches(orders: Tenant) -> None:
    """Tables, batches of columns and the batches of databases are one append each."""
    main = orders.main
    assert main.write(pa.table({"key": ["a", "b"], "value": ["1", None]})) == 2
    batch = WriteBatch()
    batch.put(b"c", b"3")
    batch.delete(b"a")
    assert main.write(batch) == 4
    assert main.load(pa.table({"key": [b"k%03d" % n for n in range(100)], "value": [b"v"] * 100})) == 104
    assert main.write({b"z": b"26"}) == 105
    assert len(list(main.scan(prefix=b"k"))) == 100
    assert [key for key, _ in main.scan(b"c", b"k001")] == [b"c", b"k000"]


def test_two_clients_append_and_one_can_expect_to_be_alone(fleet: FleetInProcess, orders: Tenant) -> None:
    """Rows of several clients are all there, in one order; who expects another LSN is refused and told the last one."""
    other = fleet.tenant()
    first = orders.main.put(b"k", b"1")
    assert other.main.put(b"k", b"2") == first + 1
    with raises(Conflict, "unexpected_lsn", last=first + 1):
        orders.main.put(b"k", b"3", expected=first)
    assert orders.main.put(b"k", b"3", expected=first + 1) == first + 2
    other.main.catch_up()
    assert other.main.get(b"k") == b"3"


def test_a_killed_node_is_a_delay(fleet: FleetInProcess, orders: Tenant) -> None:
    """Reads and writes go on on another node, with every acknowledged row."""
    main = orders.main
    for number in range(20):
        main.put(b"%02d" % number, b"before")
    dead = fleet.node_of("orders")
    fleet.kill(dead)
    assert main.put(b"20", b"after") == 21
    assert main.get(b"00") == b"before"
    assert [key for key, _ in main.scan()] == [b"%02d" % number for number in range(21)]
    assert fleet.node_of("orders") != dead


def test_a_zombie_does_not_lead_a_client_back(fleet: FleetInProcess, orders: Tenant) -> None:
    """A node that was stopped and resumed answers what the log says, or not at all: no read goes back."""
    main = orders.main
    main.put(b"k", b"1")
    stale = fleet.tenant()
    stale.main.catch_up()
    assert stale.main.get(b"k") == b"1"
    zombie = fleet.node_of("orders")
    fleet.stopped.add(zombie)
    fleet.wait(4)
    main.put(b"k", b"2")
    main.checkpoint()
    fleet.stopped.discard(zombie)
    stale.main.catch_up()
    assert stale.main.get(b"k") == b"2"
    fleet.wait(5)
    assert stale.main.put(b"k", b"3") == 3
    assert main.get(b"k") in (b"2", b"3")
    main.catch_up()
    assert main.get(b"k") == b"3"


def test_a_client_of_the_source_of_a_relocation_lists_what_was_made_since(fleet: FleetInProcess) -> None:
    """The source answers until the relocation ends, and has not heard of what its target commits."""
    orders = fleet.tenant()
    orders.create(policy=Policy(retain_rows=1000))
    fleet.options = type(fleet.options)(route_s=60)
    other = fleet.tenant()
    source = fleet.node_of(orders.name)
    assert [timeline.name for timeline in other.timelines()] == ["main"]
    fleet.control.migrate(orders.name, next(name for name in fleet.nodes if name != source))
    while fleet.node_of(orders.name) == source:
        fleet.wait(0.1)
    orders.create_timeline("etl")
    assert [timeline.name for timeline in other.timelines()] == ["etl", "main"]


SHOWN: dict[str, Callable[[Tenant], object]] = {
    "get": lambda tenant: tenant.main.get(b"k"),
    "get_many": lambda tenant: tenant.main.get_many([b"k", b"absent"])[0],
    "a part of a scan": lambda tenant: next(tenant.main.scan())[1],
    "a batch of a scan": lambda tenant: tenant.main.scan_arrow().read_next_batch()["value"][0].as_py(),
}


OF_A_BRANCH: dict[str, Callable[[Tenant], object]] = {
    "get": lambda tenant: tenant.timeline("etl").get(b"k"),
    "get_many": lambda tenant: tenant.timeline("etl").get_many([b"k"])[0],
    "scan": lambda tenant: dict(tenant.timeline("etl").scan())[b"k"],
    "view": lambda tenant: tenant.timeline("etl").at(1).get(b"k"),
    "timelines": lambda tenant: b"%d" % len([row for row in tenant.timelines() if row.name == "etl"]),
    "status": lambda tenant: b"%d" % tenant.timeline("etl").status().lsn,
    "branch": lambda tenant: tenant.timeline("etl").branch("copy").get(b"k"),
}


@pytest.mark.parametrize("call", OF_A_BRANCH)
def test_the_source_of_a_relocation_that_takes_over_again_hides_nothing(fleet: FleetInProcess, call: str) -> None:
    """Its target is lost after a commit of which the source has not heard: the client waits until it has."""
    orders = fleet.tenant()
    orders.create(policy=Policy(retain_rows=1000))
    orders.main.put(b"k", b"1")
    orders.main.checkpoint()
    source = fleet.node_of(orders.name)
    target = next(name for name in fleet.nodes if name != source)
    fleet.control.migrate(orders.name, target)
    while fleet.node_of(orders.name) == source:
        fleet.wait(0.1)
    orders.main.branch("etl")
    fleet.stopped.add(target)
    while fleet.node_of(orders.name) == target:
        fleet.wait(0.1)  # up to the round in which the source is told, before its own
    client = fleet.tenant()
    assert OF_A_BRANCH[call](client) == b"1"
    client.timeline("etl").drop()
    with raises(NotFound, "timeline_not_found"):
        client.timeline("etl")


@pytest.mark.parametrize("read", SHOWN)
def test_no_read_goes_back_behind_what_a_read_has_shown(fleet: FleetInProcess, orders: Tenant, read: str) -> None:
    """The node is lost, and the next one has ingested less, as the log is away: a read waits, and is not older."""
    orders.main.put(b"k", b"1")
    orders.main.checkpoint()
    fleet.tenant().main.put(b"k", b"2")
    fleet.wait(1)
    assert SHOWN[read](orders) == b"2"

    def fail(*arguments: object, **named: object) -> None:
        raise Unavailable("the log is away")

    with pytest.MonkeyPatch.context() as patch:
        for call in ("read", "wait_many", "bounds"):
            patch.setattr(fleet.log, call, fail)
        fleet.kill(fleet.node_of("orders"))
        assert fleet.tenant().main.get(b"k") == b"1", "the next node has ingested it all"
        with pytest.raises(Unavailable):
            orders.main.get(b"k")
    assert orders.main.get(b"k") == b"2"


@pytest.mark.parametrize("count", [1, 3])
def test_a_lost_reply_of_an_append_writes_once(fleet: FleetInProcess, orders: Tenant, count: int) -> None:
    """An append whose replies are lost is asked again with its write id: one record, one LSN."""
    fleet.lose["append"] = [OutcomeUnknown("lost") for _ in range(count)]
    assert orders.main.put(b"k", b"1") == 1
    assert orders.main.put(b"k", b"2") == 2


def test_a_client_that_stood_still_does_not_write_once_more(fleet: FleetInProcess, orders: Tenant) -> None:
    """It was stopped before it asked again: the log knows its write id no more, and others have written since."""
    fleet.log.write_id_limits = WriteIdLimits(kept=3)
    other = fleet.tenant().main
    clock = fleet.client_environment.clock
    stopped = fleet.tenant().main
    stopped.get(b"k")
    waits = clock.sleep

    def stand_still(seconds: float) -> None:
        clock.sleep = waits  # type: ignore[method-assign]
        for number in range(5):
            other.put(b"k", b"newer %d" % number)
        fleet.clock.advance(3_600)
        other.put(b"k", b"newest")

    fleet.lose["append"] = [OutcomeUnknown("lost")]
    clock.sleep = stand_still  # type: ignore[method-assign]
    with raises(OutcomeUnknown, "tenant_unavailable"):
        stopped.put(b"k", b"old")
    assert other.lsn() == 7
    assert other.get(b"k") == b"newest"


def test_a_lost_reply_of_an_append_that_expects_an_lsn(fleet: FleetInProcess, orders: Tenant) -> None:
    """The row that the lost reply was about is the write's own, and no conflict; also while the tenant moves."""
    first = orders.main.put(b"k", b"1")
    orders.main.get(b"k")
    source = fleet.node_of("orders")
    fleet.control.migrate("orders", next(name for name in fleet.nodes if name != source))
    fleet.lose["append"] = [OutcomeUnknown("lost"), OutcomeUnknown("lost")]
    assert orders.main.put(b"k", b"2", expected=first) == first + 1
    fleet.wait(5)
    assert fleet.node_of("orders") != source
    assert orders.main.get(b"k") == b"2"
    assert orders.main.lsn() == first + 1


def test_lost_replies_of_changes_and_creation(fleet: FleetInProcess) -> None:
    """A tenant or branch that was made by a request without a reply is not an error when it is asked for again."""
    fleet.lose["create_tenant"] = [OutcomeUnknown("lost")]
    tenant = fleet.tenant("lossy")
    tenant.create(policy=Policy(retain_rows=10))
    tenant.main.put(b"k", b"1")
    fleet.lose["change_timeline"] = [OutcomeUnknown("lost")]
    branch = tenant.main.branch("b")
    assert branch.get(b"k") == b"1"
    fleet.lose["change_timeline"] = [OutcomeUnknown("lost")]
    branch.drop()
    assert [timeline.name for timeline in tenant.timelines()] == ["main"]
    with pytest.raises(AlreadyExists):
        fleet.tenant("lossy").create()


def test_a_branch_whose_node_was_lost_before_its_commit_is_made(fleet: FleetInProcess, orders: Tenant) -> None:
    """The node has begun the branch's log; the next node branches at a newer LSN."""
    orders.main.put(b"k", b"1")
    orders.main.checkpoint()
    change_timeline, lost = fleet.control.change_timeline, list[TimelineChange]()

    def change(tenant: str, change: TimelineChange) -> TimelineInfo:
        if not lost:
            lost.append(change)
            fleet.log.create(log_key("orders", change.id), after=1)
            fleet.kill(fleet.node_of("orders"))
            assert orders.main.put(b"k", b"2") == 2
            orders.main.checkpoint()
            raise Unavailable("the node was lost")
        return change_timeline(tenant, change)

    fleet.control.change_timeline = change  # type: ignore[method-assign]
    branch = orders.main.branch("b")
    assert lost
    assert branch.get(b"k") == b"2"
    assert branch.put(b"k", b"3") == 3


def test_the_control_plane_is_away(fleet: FleetInProcess, orders: Tenant) -> None:
    """A client that knows its node reads and writes on; what needs a decision ends with one error."""
    fleet.options = type(fleet.options)(retry_s=2.0, change_retry_s=2.0)
    client = fleet.tenant()
    client.main.put(b"k", b"1")
    fleet.reachable.is_down = True
    assert client.main.put(b"k", b"2") == 2
    fleet.wait(3)
    asked_s = fleet.clock.monotonic_s()
    assert client.main.get(b"k") == b"2"
    assert fleet.clock.monotonic_s() == asked_s, "the last route was not used at once"
    with raises(Unavailable, "tenant_unavailable"):
        client.pin("p")
    fleet.reachable.is_down = False
    assert client.pin("p").name == "p"


FIRST_CALLS: dict[str, Callable[[Tenant], object]] = {
    "catch_up": lambda tenant: tenant.main.catch_up(),
    "lsn": lambda tenant: tenant.main.lsn(),
    "get": lambda tenant: tenant.main.get(b"k"),
    "get_many": lambda tenant: tenant.main.get_many([b"k"]),
    "scan": lambda tenant: list(tenant.main.scan()),
    "put": lambda tenant: tenant.main.put(b"k", b"2"),
    "checkpoint": lambda tenant: tenant.main.checkpoint(),
    "status": lambda tenant: tenant.main.status().lsn,
    "timeline": lambda tenant: tenant.timeline("main").name,
    "timelines": lambda tenant: len(tenant.timelines()),
    "drop": lambda tenant: tenant.timeline("side").drop(),
}


@pytest.mark.parametrize("first", FIRST_CALLS)
def test_the_control_plane_is_away_when_a_client_begins(fleet: FleetInProcess, orders: Tenant, first: str) -> None:
    """A client without a route waits for one until its deadline: a delay, or one clear error after that time."""
    orders.main.put(b"k", b"1")
    orders.create_timeline("side")
    fleet.options = type(fleet.options)(retry_s=6.0, change_retry_s=6.0)
    fleet.reachable.is_down = True
    before_s = fleet.clock.monotonic_s()
    with raises(Unavailable, "tenant_unavailable", match="no answer within 6 s"):
        FIRST_CALLS[first](fleet.tenant())
    assert 6 <= fleet.clock.monotonic_s() - before_s < 7
    back_s = back_in(fleet, 3)
    FIRST_CALLS[first](fleet.tenant())
    assert back_s <= fleet.clock.monotonic_s() < back_s + 3


def back_in(fleet: FleetInProcess, seconds: float) -> float:
    """Let the control plane answer again after a while; when that is."""
    tick, back_s = fleet.control.tick_once, fleet.clock.monotonic_s() + seconds
    fleet.reachable.is_down = True

    def tick_once() -> object:
        fleet.reachable.is_down = fleet.clock.monotonic_s() < back_s
        return tick()

    fleet.control.tick_once = tick_once  # type: ignore[method-assign, assignment]
    return back_s


@pytest.mark.parametrize("first", ["catch_up", "lsn", "put"])
def test_the_wait_for_a_route_counts_against_the_deadline(fleet: FleetInProcess, orders: Tenant, first: str) -> None:
    """The control plane is away for a while and the log longer: the call ends at its deadline, not after two."""
    fleet.options = type(fleet.options)(retry_s=6.0)
    fleet.reachable_log.is_down = True
    ends_s = fleet.clock.monotonic_s() + 6
    back_in(fleet, 4)
    with pytest.raises(Unavailable, match="no answer within 6 s"):
        FIRST_CALLS[first](fleet.tenant())
    assert ends_s <= fleet.clock.monotonic_s() < ends_s + 1


def test_the_deadline_ends_a_call_with_one_clear_error(fleet: FleetInProcess, orders: Tenant) -> None:
    """With no node left, and with no log, a call ends after its time, and says what it met."""
    fleet.options = type(fleet.options)(retry_s=3.0)
    client = fleet.tenant()
    client.main.put(b"k", b"1")
    for name in list(fleet.nodes):
        fleet.kill(name)
    before_s = fleet.clock.monotonic_s()
    with raises(Unavailable, "tenant_unavailable", match="no answer within 3 s"):
        client.main.get(b"k")
    assert 3 <= fleet.clock.monotonic_s() - before_s < 5
    fleet.reachable_log.is_down = True
    with pytest.raises(Unavailable, match="Cannot write to the timeline main"):
        client.main.put(b"k", b"2")
    fleet.reachable_log.is_down = False
    fleet.lose["append"] = [OutcomeUnknown("lost")] * 100
    with pytest.raises(OutcomeUnknown, match="it may have happened or not"):
        client.main.put(b"k", b"3")


def test_back_pressure_slows_appends(fleet: FleetInProcess, orders: Tenant) -> None:
    """An append waits in proportion to the rows that the node has not ingested, at most a second."""
    main = orders.main
    main.put(b"k", b"1")
    router = main._router
    for lag_rows, waits_s in ((0, 0.0), (100_000, 0.0), (110_000, 0.2), (10_000_000, 1.0)):
        route = router.route(fresh=True)
        router._route = type(route)(
            route.tenant, route.node, route.url, route.generation, route.names, lag_rows=lag_rows
        )
        before_s = fleet.clock.monotonic_s()
        main.put(b"k", b"2")
        assert fleet.clock.monotonic_s() - before_s == pytest.approx(waits_s)


@pytest.mark.parametrize(
    ("write", "kind"),
    [
        (lambda main: main.put(b"", b"v"), "empty_key"),
        (lambda main: main.put(b"k" * 70_000, b"v"), "oversized_key"),
        (lambda main: main.put(b"k", b"v" * (9 << 20)), "oversized_value"),
        (lambda main: main.write([(b"%d" % n, b"v" * (1 << 20)) for n in range(9)]), "oversized_append"),
        (lambda main: main.write([]), "empty_append"),
        (lambda main: main.put("k", b"v"), "wrong_type"),
        (lambda main: main.write(7), "wrong_type"),
        (lambda main: main.write([b"k"]), "wrong_type"),
        (lambda main: main.write(pa.table({"k": ["a"]})), "missing_column"),
        (lambda main: main.get(b"k", lsn=-1), "invalid_lsn"),
        (lambda main: main.get_many(b"k"), "wrong_type"),
        (lambda main: main.scan_arrow(b"a", prefix=b"a"), "two_ranges"),
        (lambda main: main.branch("7"), "invalid_timeline_name"),
        (lambda main: main.branch("a/b"), "invalid_timeline_name"),
        (lambda main: main.pin("p", lifetime_ms=0), "invalid_lifetime"),
    ],
)
def test_bad_input_is_refused_and_changes_nothing(orders: Tenant, write: object, kind: str) -> None:
    """Each mistake has its kind; afterwards the timeline has no row and the tenant no timeline more."""
    with raises(InvalidRequest, kind):
        write(orders.main)  # type: ignore[operator]
    assert orders.main.lsn() == 0
    assert [timeline.name for timeline in orders.timelines()] == ["main"]


def test_rows_with_lifetimes_and_merges_are_refused(orders: Tenant) -> None:
    """A read at an LSN is a function of the LSN."""
    batch = WriteBatch()
    batch.put(b"k", b"v", ttl=timedelta(days=1))
    with raises(InvalidRequest, "row_with_lifetime"):
        orders.main.write(batch)
    batch = WriteBatch()
    batch.merge(b"k", b"v")
    with raises(InvalidRequest, "row_is_merge"):
        orders.main.write(batch)
    assert orders.main.lsn() == 0


def test_a_pin_takes_no_writes(orders: Tenant) -> None:
    """A write to a pin is refused with what to do; the pin reads on."""
    orders.main.put(b"k", b"1")
    view = orders.main.pin("before")
    orders.main.put(b"k", b"2")
    with raises(InvalidRequest, "read_only", match="is a pin at LSN 1"):
        orders.timeline("before").put(b"k", b"3")
    assert view.get(b"k") == b"1"
    assert orders.timeline("before").get(b"k") == b"1"


def test_what_a_pin_holds_is_in_no_plan(fleet: FleetInProcess) -> None:
    """Layers that were merged away are planned; those that a pin holds are not, and `why` names it."""
    orders = fleet.tenant()
    orders.create()
    orders.main.put(b"k", b"1")
    orders.pin("before")
    paths = {meta.path for meta in fleet.storage.list("orders.tenant") if meta.path.endswith(".sst")}
    for value in (b"2", b"3"):
        orders.main.put(b"k", value)
        orders.main.checkpoint()
    fleet.nodes[fleet.node_of("orders")].compact("orders", "main")
    orders.main.checkpoint()
    planned = {target.path for target in orders.plan_collection().doomed}
    assert [path for path in planned if path.endswith(".sst")]
    assert paths
    assert not planned & paths
    for path in paths:
        assert "before" in {pin.name for pin in orders.why(path.partition("/")[2]).pins}
    assert orders.at("before").get(b"k") == b"1"


def test_what_is_missing_is_named(fleet: FleetInProcess, orders: Tenant) -> None:
    """An unknown tenant, timeline or version is NotFound, with what there is."""
    with raises(NotFound, "tenant_not_found"):
        fleet.tenant("nope").main.get(b"k")
    with raises(NotFound, "timeline_not_found", match=r"has no timeline nope\. It has main"):
        orders.timeline("nope")
    with pytest.raises(NotFound):
        orders.unpin("nope")


def test_lsns_out_of_range(fleet: FleetInProcess) -> None:
    """Below the cutoff is refused with the cutoff; ahead of what was written ends as not reached."""
    fleet.options = type(fleet.options)(retry_s=1.0)
    tenant = fleet.tenant()
    tenant.create()
    for number in range(5):
        tenant.main.put(b"k", b"%d" % number)
    tenant.main.checkpoint()
    with raises(InvalidRequest, "below_cutoff", cutoff=5):
        tenant.main.get(b"k", lsn=2)
    with pytest.raises(Unavailable) as given_up:
        tenant.main.get(b"k", lsn=99)
    assert given_up.value.facts["last_kind"] == "lsn_not_reached"


def test_branches_restore_and_detach(orders: Tenant) -> None:
    """A branch has the rows up to its LSN and goes on by itself; a restore keeps what was there under another name."""
    main = orders.main
    for number in range(1, 6):
        main.put(b"k", b"%d" % number)
    branch = main.branch("experiment", lsn=3)
    branch.put(b"b", b"1")
    assert (branch.get(b"k"), branch.get(b"b"), main.get(b"b")) == (b"3", b"1", None)
    branch.detach()
    branch.checkpoint()
    assert (branch.get(b"k"), branch.status().parent) == (b"3", None)
    main.restore(2, kept_as="broken")
    assert main.get(b"k") == b"2"
    assert main.put(b"k", b"again") == 3
    assert orders.timeline("broken").get(b"k") == b"5"
    orders.create_timeline("empty").put(b"x", b"y")
    assert sorted(timeline.name for timeline in orders.timelines()) == ["broken", "empty", "experiment", "main"]
    orders.timeline("empty").drop()
    with pytest.raises(NotFound):
        orders.timeline("empty")


def test_a_dropped_tenant_is_gone(fleet: FleetInProcess, orders: Tenant) -> None:
    """Its objects go, and its name can be used again."""
    orders.main.put(b"k", b"1")
    orders.main.checkpoint()
    orders.drop()
    fleet.wait(200)
    assert [meta.path for meta in fleet.storage.list("orders.tenant")] == []
    again = fleet.tenant()
    again.create()
    assert again.main.get(b"k") is None


def test_a_state_is_of_one_transaction(fleet: FleetInProcess, orders: Tenant) -> None:
    """Where a commit comes between the reads of record and manifest, both are read again."""
    orders.main.put(b"k", b"1")

    class Between(Lossy):
        is_quiet = False

        def manifest(self, tenant: str) -> Manifest:
            if not self.is_quiet:
                self.is_quiet = True
                orders.main.checkpoint()
            return fleet.control.manifest(tenant)

    client = Tenant(
        "orders",
        control=Between(fleet.control, lost=lambda _: None),
        nodes=fleet.port,
        log=fleet.log,
        environment=fleet.client_environment,
    )
    state = client.state()
    assert state.record.committed == state.manifest.txn
    assert state.record.timelines["main"].lsn == state.manifest.timelines[0].lsn == 1
