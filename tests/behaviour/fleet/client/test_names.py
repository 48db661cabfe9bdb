"""What a name of a tenant or timeline means changes: a client with an old route is told so by the log, and looks again.

Each test has two clients: one changes what a name means, the other has a route from before, which it uses for as long
as it may, also because it does not reach the control plane.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from lakebed.errors import Conflict, InvalidRequest, NotFound, OutcomeUnknown, Unavailable
from lakebed.fleet.client import Tenant
from lakebed.fleet.layout import log_key
from lakebed.fleet.log.port import Log
from lakebed.fleet.model import MAIN, Policy
from lakebed.fleet.routing import ClientOptions
from lakebed.fleet.timeline import Timeline
from worlds.errors import raises
from worlds.fleet_in_process import FleetInProcess, Lossy
from worlds.fleet_log import append


@pytest.fixture
def fleet() -> FleetInProcess:
    """Two nodes and a control plane."""
    return FleetInProcess()


@pytest.fixture
def orders(fleet: FleetInProcess) -> Tenant:
    """A tenant with three rows, of which all are committed."""
    tenant = fleet.tenant()
    tenant.create(policy=Policy(retain_rows=1000))
    for number in range(3):
        tenant.main.put(b"%d" % number, b"before")
    tenant.main.checkpoint()
    return tenant


@pytest.fixture
def other(fleet: FleetInProcess, orders: Tenant) -> Tenant:
    """Another client of it, whose route was just asked for."""
    tenant = fleet.tenant()
    tenant.main.put(b"other", b"1")
    return tenant


def kept_of(tenant: Tenant) -> str:
    """The name of what a restore has replaced."""
    return next(timeline.name for timeline in tenant.timelines() if timeline.name.startswith(f"{MAIN}-until-"))


def contents(tenant: Tenant, name: str = MAIN) -> dict[bytes, bytes]:
    """All rows of a timeline, of every client."""
    timeline = tenant.timeline(name)
    timeline.catch_up()
    return dict(timeline.scan())


def change_name(tenant: Tenant, change: str) -> None:
    """Let the name ``experiment`` mean something else."""
    if change == "restore":
        tenant.timeline("experiment").restore(3, kept_as="kept")
    elif change == "drop timeline":
        tenant.timeline("experiment").drop()
    else:
        tenant.drop()


def test_a_restore_takes_the_writes_of_clients_with_an_old_route(orders: Tenant, other: Tenant) -> None:
    """What another client writes after a restore returned is in the restored timeline, for every client."""
    orders.restore(f"{MAIN}@2")
    lsn = other.main.put(b"late", b"1")
    assert lsn == 3
    assert other.main.get(b"late") == b"1"
    for tenant in (orders, other):
        assert contents(tenant) == {b"0": b"before", b"1": b"before", b"late": b"1"}
    assert contents(orders, kept_of(orders)).keys() == {b"0", b"1", b"2", b"other"}


def test_what_a_restore_has_replaced_is_kept_and_branched(orders: Tenant, other: Tenant) -> None:
    """It takes no writes, which the error says with what to do; a branch of it does, and it can be restored again."""
    orders.restore(f"{MAIN}@2")
    name = kept_of(orders)
    with raises(InvalidRequest, "read_only"):
        other.timeline(name).put(b"late", b"1")
    branch = other.timeline(name).branch("more")
    assert branch.put(b"late", b"1") == 5
    assert dict(branch.scan()).keys() == {b"0", b"1", b"2", b"other", b"late"}
    orders.restore(name)
    assert other.main.put(b"again", b"1") == 5
    assert dict(other.main.scan()).keys() == {b"0", b"1", b"2", b"other", b"again"}


def test_a_restore_keeps_main_under_the_number_of_its_version(orders: Tenant, other: Tenant) -> None:
    """The name says until which version the timeline was `main`; where it is in use, the next free one is taken."""
    version = orders.restore(f"{MAIN}@2").id
    assert {timeline.name for timeline in orders.timelines()} == {MAIN, f"{MAIN}-until-{version}"}
    other.main.put(b"again", b"1")
    other.main.checkpoint()
    later = orders.restore(f"{MAIN}@1").id
    orders.main.branch(f"{MAIN}-until-{int(later) + 2}", lsn=1)
    last = orders.restore(f"{MAIN}@1").id
    assert last == f"{int(later) + 2}"
    assert {timeline.name for timeline in orders.timelines()} == {
        MAIN,
        *(f"{MAIN}-until-{number}" for number in (version, later, last, int(last) + 1)),
    }


def test_an_expected_lsn_of_before_a_restore_is_refused(orders: Tenant, other: Tenant) -> None:
    """A write that expects an LSN of the timeline before it is not made in the restored one, which may have it too."""
    expected = other.main.lsn()
    orders.restore(f"{MAIN}@2")
    orders.main.write([(b"a", b"1"), (b"b", b"1")])
    assert orders.main.lsn() == expected
    with raises(Conflict, "unexpected_lsn", last=expected):
        other.main.put(b"late", b"1", expected=expected)
    assert other.main.put(b"late", b"1", expected=other.main.lsn()) == expected + 1


def test_branches_pins_and_ends_are_of_the_restored_timeline(orders: Tenant, other: Tenant) -> None:
    """What `lsn`, `catch_up`, branches and pins of another client after a restore are about: what it has made."""
    orders.restore(f"{MAIN}@2")
    assert other.main.lsn() == 2
    assert other.main.catch_up() == 2
    orders.restore(f"{MAIN}@1")
    assert dict(other.main.branch("branch").scan()).keys() == {b"0"}
    orders.main.put(b"new", b"1")
    other.pin("pin")
    assert dict(other.at("pin").scan()).keys() == {b"0", b"new"}


def test_an_end_without_a_control_plane_is_of_the_timeline_that_had_the_name(
    fleet: FleetInProcess, orders: Tenant, other: Tenant
) -> None:
    """An old view is whole: the end, and what is read then, are of one timeline, and no write goes there."""
    end, before = other.main.lsn(), dict(other.main.scan())
    orders.restore(f"{MAIN}@2")
    fleet.lose["route"] = [Unavailable("no answer")] * 1_000
    assert other.main.lsn() == end
    assert other.main.catch_up() == end
    assert dict(other.main.scan()) == before
    with raises(Unavailable, "tenant_unavailable"):
        other.main.put(b"late", b"1")
    fleet.lose.clear()
    assert other.main.catch_up() == 2
    assert dict(other.main.scan()) == contents(orders)
    assert contents(orders, kept_of(orders)) == before


def test_a_dropped_tenant_takes_no_write(fleet: FleetInProcess, orders: Tenant, other: Tenant) -> None:
    """A client with an old route is told that the tenant is gone, also while a dead node's transaction is pending."""
    fleet.kill(fleet.node_of("orders"))
    orders.drop()
    for tenant in (other, orders, fleet.tenant()):
        with raises(NotFound, "tenant_not_found"):
            tenant.main.put(b"late", b"1")
    with pytest.raises(Conflict) as exists:
        fleet.tenant().create(if_not_exists=True)
    assert (exists.value.kind, exists.value.message.count("n1")) == ("tenant_deleted", 1)


READS: dict[str, Callable[[Timeline], object]] = {
    "get": lambda timeline: timeline.get(b"0"),
    "get_many": lambda timeline: timeline.get_many([b"0", b"2"]),
    "scan": lambda timeline: dict(timeline.scan()),
    "at": lambda timeline: dict(timeline.at(1).scan()),
    "checkpoint": lambda timeline: timeline.checkpoint() > 0,
}


@pytest.mark.parametrize(
    ("call", "result"),
    [
        ("get", b"before"),
        ("get_many", [b"before", None]),
        ("scan", {b"0": b"before"}),
        ("at", {b"0": b"before"}),
        ("checkpoint", True),
    ],
)
def test_a_read_follows_a_name_whose_timeline_is_gone(orders: Tenant, other: Tenant, call: str, result: object) -> None:
    """A restore whose replaced timeline was dropped: a client with an old route reads what the name means now."""
    other.main.get(b"0")
    orders.restore(f"{MAIN}@1")
    orders.timeline(kept_of(orders)).drop()
    assert READS[call](other.main) == result


def test_a_view_stays_with_its_timeline(orders: Tenant, other: Tenant) -> None:
    """A restore gives the name to another timeline, which has the same LSN too: a view from before reads what it read.

    One that is made then is of the restored timeline; a pin that is dropped is gone, also when another has its name.
    """
    main = other.main
    views = [main.at(3), main.at(3)]
    assert views[0].get(b"2") == b"before"
    pin = other.main.pin("pin", lsn=3)
    assert pin.get(b"2") == b"before"
    orders.restore(f"{MAIN}@1")
    orders.main.write([(b"x", b"1"), (b"y", b"1"), (b"z", b"1")])
    orders.unpin("pin")
    orders.pin("pin")
    for view in views:
        assert view.get(b"2") == b"before"
        assert view.get_many([b"2", b"x"]) == [b"before", None]
        assert dict(view.scan()).keys() == {b"0", b"1", b"2"}
    main.catch_up()
    assert dict(main.at(3).scan()).keys() == {b"0", b"x", b"y"}
    with raises(NotFound, "timeline_not_found"):
        pin.get(b"2")


def test_a_read_of_a_name_that_is_gone_names_what_there_is(orders: Tenant, other: Tenant) -> None:
    """A branch is dropped: a client with an old route is told its name, and the names that the tenant has."""
    orders.main.branch("experiment")
    branch = other.timeline("experiment")
    branch.get(b"0")
    orders.timeline("experiment").drop()
    for call in READS.values():
        with raises(NotFound, "timeline_not_found") as refused:
            call(branch)
        assert refused.value.message == "The tenant orders has no timeline experiment. It has main."


def test_what_a_restore_has_kept_is_not_dropped_by_its_name_of_before(
    fleet: FleetInProcess, orders: Tenant, other: Tenant
) -> None:
    """A client with an old route, whose question for a new one gets no answer, drops what has the name now."""
    orders.create_timeline("etl").put(b"key", b"1")
    old = other.timeline("etl")
    orders.timeline("etl").checkpoint()
    orders.timeline("etl").restore(1, kept_as="etl-before")
    fleet.lose["route"] = [Unavailable("no answer")]
    old.drop()
    assert [timeline.name for timeline in orders.timelines()] == ["etl-before", MAIN]
    assert contents(orders, "etl-before") == {b"key": b"1"}


def test_a_drop_that_meets_a_restore_is_refused(
    fleet: FleetInProcess, orders: Tenant, other: Tenant, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The name moves between the question which timeline it is and the drop: what the restore keeps is kept."""
    orders.create_timeline("etl").put(b"key", b"1")
    orders.timeline("etl").checkpoint()
    etl = other.timeline("etl")
    route = fleet.control.route

    def answer_then_restore(tenant: str) -> object:
        answer = route(tenant)
        monkeypatch.setattr(fleet.control, "route", route)
        orders.timeline("etl").restore(1, kept_as="etl-before")
        return answer

    monkeypatch.setattr(fleet.control, "route", answer_then_restore)
    with raises(Conflict, "timeline_renamed", match="'etl-before' now"):
        etl.drop()
    assert contents(orders, "etl-before") == contents(orders, "etl") == {b"key": b"1"}
    etl.drop()
    assert [timeline.name for timeline in orders.timelines()] == ["etl-before", MAIN]


@pytest.mark.parametrize("problem", [Unavailable("no answer"), OutcomeUnknown("no reply")], ids=["away", "lost"])
def test_only_the_control_plane_says_that_there_is_no_timeline(
    fleet: FleetInProcess, orders: Tenant, other: Tenant, problem: Exception
) -> None:
    """A client with an old route asks until it is answered; what was made since is there, and is not said not to be."""
    orders.create_timeline("etl").put(b"key", b"1")
    fleet.lose["route"] = [problem, problem]
    assert contents(other, "etl") == {b"key": b"1"}
    orders.create_timeline("late")
    fleet.reachable.is_down = True
    with pytest.raises(Unavailable, match="find the timeline late"):
        other.timeline("late")
    fleet.reachable.is_down = False
    with raises(NotFound, "timeline_not_found"):
        other.timeline("none")


def test_a_branch_that_is_made_again_is_read_by_its_name(orders: Tenant, other: Tenant) -> None:
    """A branch is dropped, and another one gets its name: handles from before read and write the new one."""
    orders.main.branch("experiment").put(b"first", b"1")
    branch = other.timeline("experiment")
    branch.get(b"first")
    orders.timeline("experiment").drop()
    orders.main.branch("experiment", lsn=1)
    assert dict(branch.scan()) == {b"0": b"before"}
    assert branch.put(b"second", b"1") == 2
    assert contents(orders, "experiment") == {b"0": b"before", b"second": b"1"}


def test_a_tenant_created_again_takes_the_writes_of_its_name(fleet: FleetInProcess, orders: Tenant) -> None:
    """A handle of the dropped tenant writes to the new one, whose log is another; nothing of the old one is back."""
    old = log_key("orders", MAIN)
    handle = fleet.tenant()
    handle.main.get(b"0")
    orders.drop()
    fleet.wait(60)
    fleet.tenant().create()
    assert handle.main.put(b"new", b"1") == 1
    assert dict(handle.main.scan()) == {b"new": b"1"}
    for call in (lambda: append(fleet.log, b"late", timeline=old), lambda: fleet.log.create(old)):
        with pytest.raises(NotFound):
            call()


def test_a_dropped_timeline_takes_no_write(orders: Tenant, other: Tenant) -> None:
    """A client with an old route is told that the branch is gone; one that is made anew takes its writes."""
    orders.main.branch("experiment")
    experiment = other.timeline("experiment")
    experiment.put(b"k", b"1")
    orders.timeline("experiment").drop()
    with raises(NotFound, "timeline_not_found"):
        experiment.put(b"k", b"2")
    orders.main.branch("experiment")
    experiment.put(b"k", b"3")
    assert contents(orders, "experiment")[b"k"] == b"3"


@pytest.mark.parametrize("change", ["restore", "drop timeline", "drop tenant"])
def test_a_client_that_does_not_reach_the_control_plane_writes_nowhere(
    change: str, fleet: FleetInProcess, orders: Tenant
) -> None:
    """It is refused by the log, and waits for the control plane: a write is in the right timeline, or is an error."""
    orders.main.branch("experiment")
    cut = Lossy(fleet.control, lost=lambda _: None)
    stale = Tenant(
        "orders",
        control=cut,
        nodes=fleet.port,
        log=fleet.log,
        environment=fleet.client_environment,
        options=fleet.options,
    )
    timeline = stale.timeline("experiment")
    assert timeline.put(b"k", b"1") == 4
    cut.is_down = True
    change_name(orders, change)
    with raises(Unavailable, "tenant_unavailable"):
        timeline.put(b"k", b"2")
    cut.is_down = False
    if change == "restore":
        assert timeline.put(b"k", b"3") == 4
        assert contents(orders, "experiment")[b"k"] == b"3"
        assert contents(orders, "kept")[b"k"] == b"1"
    else:
        with pytest.raises(NotFound):
            timeline.put(b"k", b"3")


class SealsFail:
    """The log as a control plane uses it: seals have no answer, before or after they had their effect."""

    def __init__(self, inner: Log, *, problem: Exception, has_effect: bool) -> None:
        self._inner = inner
        self._problem = problem
        self._has_effect = has_effect

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def seal(self, timeline: str) -> int:
        """Fail."""
        if self._has_effect:
            self._inner.seal(timeline)
        raise self._problem


@pytest.mark.parametrize("has_effect", [False, True])
@pytest.mark.parametrize("change", ["restore", "drop timeline", "drop tenant"])
def test_a_seal_without_an_answer_is_made_before_anyone_is_told(
    change: str, has_effect: bool, fleet: FleetInProcess, orders: Tenant
) -> None:
    """The change is not answered, and no route shows it, until the log is sealed; the next control plane goes on."""
    orders.main.branch("experiment")
    stale = fleet.tenant().timeline("experiment")
    stale.put(b"k", b"1")
    problem = OutcomeUnknown("the reply was lost") if has_effect else Unavailable("the log is away")
    fleet.control = fleet.make_control(log=SealsFail(fleet.log, problem=problem, has_effect=has_effect))
    fleet.reachable.inner = fleet.control
    fleet.options = ClientOptions(retry_s=0.5, change_retry_s=0.5)
    changing = fleet.tenant()
    with pytest.raises(OutcomeUnknown):
        change_name(changing, change)
    with pytest.raises(Unavailable):
        fleet.control.route("orders")
    fleet.restart_control()  # the process died between the ledger's write and the seal
    fleet.wait(2)
    assert not any(record.sealing for record in fleet.ledger.tenants())
    if change == "restore":
        assert stale.put(b"k", b"2") == 4
        assert contents(orders, "experiment")[b"k"] == b"2"
    else:
        with pytest.raises(NotFound):
            stale.put(b"k", b"2")


@pytest.mark.parametrize(
    "call", [lambda timeline: timeline.put(b"k", b"v"), Timeline.lsn, Timeline.catch_up], ids=["put", "lsn", "catch_up"]
)
def test_a_new_tenant_whose_log_was_away_is_waited_for(
    fleet: FleetInProcess, call: Callable[[Timeline], int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A creation is answered although the log could not begin the timeline: what asks the log then waits for it."""
    begin, refusals = fleet.log.create, [Unavailable("the log is away")] * 3

    def begin_late(timeline: str, **arguments: Any) -> None:
        if refusals:
            raise refusals.pop()
        begin(timeline, **arguments)

    monkeypatch.setattr(fleet.log, "create", begin_late)
    tenant = fleet.tenant()
    tenant.create()
    assert refusals
    lsn = call(tenant.main)
    assert not refusals
    assert contents(tenant) == ({b"k": b"v"} if lsn else {})


def test_a_timeline_whose_log_is_lost_is_not_waited_for_for_ever(fleet: FleetInProcess, orders: Tenant) -> None:
    """A log that denies the timeline for as long as a call is repeated fails the call, with its words."""
    fleet.log.drop(log_key(orders.name, MAIN))
    for call in (lambda: orders.main.put(b"k", b"v"), orders.main.lsn):
        with raises(Unavailable, "tenant_unavailable", match="The log has no timeline"):
            call()
