"""Ledger and log of two fleets, or of two moments: no write is acknowledged that is never read, and no row invented."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from lakebed.errors import AlreadyExists, Conflict, Corruption
from lakebed.fleet.layout import log_key, manifest_path
from lakebed.fleet.log.key_value_log import KeyValueLog
from lakebed.fleet.model import MAIN
from lakebed.fleet.records import Step
from worlds.errors import raises
from worlds.fleet_in_process import FleetInProcess
from worlds.memory_key_value import MemoryKeyValue

ORDERS = "orders"


@pytest.fixture
def fleet() -> FleetInProcess:
    """A tenant with three committed rows."""
    fleet = FleetInProcess(nodes=1)
    tenant = fleet.tenant(ORDERS)
    tenant.create()
    for number in range(3):
        tenant.main.put(b"k%d" % number, b"v")
    tenant.main.checkpoint()
    return fleet


def empty_log(fleet: FleetInProcess) -> KeyValueLog:
    """A log that has begun the tenant's timeline, as it was before its first row."""
    log = KeyValueLog([MemoryKeyValue(environment=fleet.environment)], environment=fleet.environment)
    log.create(log_key(ORDERS, MAIN))
    return log


def test_a_write_to_a_log_of_an_earlier_moment_is_not_acknowledged(fleet: FleetInProcess) -> None:
    """The nodes have other rows at its LSN: it returned as durable, and was never read."""
    fleet.reachable_log.inner = empty_log(fleet)
    for client in (fleet.tenant(ORDERS), fleet.tenant(ORDERS)):
        with raises(Corruption, "log_forked", last=3, match="restored to another moment"):
            client.main.put(b"new", b"lost")
        assert client.main.get(b"new") is None
        assert client.main.get(b"k2") == b"v"


def test_a_log_that_is_newer_than_the_ledger_is_said_to_be(fleet: FleetInProcess) -> None:
    """It has given up rows that the ledger does not know: the node asked for them, and committed nothing, for ever."""
    record = fleet.ledger.tenant(ORDERS, fresh=True)
    objects = {meta.path: bytes(fleet.storage.get(meta.path)) for meta in fleet.storage.list()}
    main = fleet.tenant(ORDERS).main
    for number in range(3, 8):
        main.put(b"k%d" % number, b"v")
    main.checkpoint()
    fleet.wait(120)  # until the log is pruned
    assert fleet.log.bounds(log_key(ORDERS, MAIN)).first == 9
    fleet.kill("n1")
    fleet.locals.clear()
    fleet.storage.delete([meta.path for meta in fleet.storage.list()])
    for path, body in objects.items():
        fleet.storage.put(path, body)
    fleet.ledger.change(ORDERS, lambda now: Step(None, record))
    fleet.restart_control()
    fleet.start("n1")
    client = fleet.tenant(ORDERS)
    assert client.main.catch_up() == 8
    began_s = fleet.clock.monotonic_s()
    for _ in range(2):
        with raises(Corruption, "log_newer", lsn=3, first=9, match="restore ledger, log and storage to one moment"):
            client.main.get(b"k7")
    assert fleet.clock.monotonic_s() - began_s < 5
    assert fleet.tenant(ORDERS).main.get(b"k2") == b"v"
    fleet.wait(60)
    assert (
        fleet.nodes["n1"].utilization().problems[ORDERS].startswith("log_newer: The log of orders/main is of a later")
    )
    assert fleet.ledger.tenant(ORDERS, fresh=True).next_txn < record.next_txn + 5, "commits of nothing went on"


def test_a_timeline_that_only_the_ledger_has_is_said_to_be_dropped(fleet: FleetInProcess) -> None:
    """As of a ledger that was restored to a time before it was dropped."""
    main = fleet.tenant(ORDERS).main
    fleet.log.drop(log_key(ORDERS, MAIN))
    with raises(Corruption, "log_newer", lsn=3, first=None, match="dropped the timeline"):
        main.get(b"k0", lsn=4)


def test_a_client_goes_on_when_all_parts_went_back(fleet: FleetInProcess) -> None:
    """It knows a route of before; log and ledger agree."""
    client = fleet.tenant(ORDERS)
    client.main.put(b"k3", b"v")
    client.main.checkpoint()
    client.main.put(b"k4", b"v")  # with a route that has the commit
    fleet.reachable_log.inner = empty_log(fleet)
    record = fleet.ledger.tenant(ORDERS, fresh=True)
    progress = {MAIN: replace(record.timelines[MAIN], lsn=0)}
    fleet.ledger.change(ORDERS, lambda now: Step(None, replace(now, timelines=progress)))
    assert client.main.put(b"new", b"v") == 1


def test_a_new_tenant_does_not_begin_with_the_rows_of_another_fleets(fleet: FleetInProcess) -> None:
    """Two fleets over one log: the second one had the rows of the first, and each pruned what the other needed."""
    second = FleetInProcess(nodes=1)
    second.log = fleet.log
    second.reachable_log.inner = fleet.log
    second.control = second.reachable.inner = second.make_control()
    with raises(Conflict, "log_of_another_tenant", match="a log of its own"):
        second.tenant(ORDERS).create()
    assert list(second.ledger.tenants()) == []
    main = fleet.tenant(ORDERS).main
    main.put(b"k3", b"v")
    assert len(list(main.scan())) == 4


def test_a_commit_under_the_number_of_a_lost_one_says_that_the_ledger_is_older(fleet: FleetInProcess) -> None:
    """What the lost one wrote is not overwritten."""
    (transaction,) = fleet.ledger.tenant(ORDERS, fresh=True).transactions
    path = manifest_path(ORDERS, transaction.id, 1)
    fleet.storage.put(path, b"committed, and lost by a restore of the ledger")
    main = fleet.tenant(ORDERS).main
    main.put(b"k3", b"v")
    with raises(AlreadyExists, "transaction_used", match="restored to a time before it"):
        main.checkpoint()
    assert bytes(fleet.storage.get(path)) == b"committed, and lost by a restore of the ledger"
