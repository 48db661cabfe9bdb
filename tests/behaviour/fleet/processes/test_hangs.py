"""Real processes that stand still, with default settings: a healthy one takes over, and one that wakes is fenced."""

from __future__ import annotations

import random
import time
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path
from typing import Any

import pytest

from lakebed.errors import OutcomeUnknown, Unavailable
from lakebed.fleet.address import LOG_VARIABLE
from lakebed.fleet.log.client import HttpLog
from lakebed.fleet.log.port import rows_of
from lakebed.ids import new_uuid
from worlds.fleet_storm import Storm
from worlds.fleet_twins import TwinFleet, health, twins
from worlds.nats_cluster import DROPPED_SOCKETS, NatsCluster
from worlds.postgresql import running_postgresql
from worlds.waiting import HANG_S, pause, wait_until

pytestmark = DROPPED_SOCKETS

LONGEST_S = 10.0
"""Far more than a call takes on a busy machine while a part hangs: 1 to 3 s; it was 20 s and more, or no end."""


@contextmanager
def storming(local: TwinFleet, *, tenants: int = 3, seed: int = 0) -> Iterator[Storm]:
    """Clients under way; at the end everything that was acknowledged is there, once, and nothing else."""
    with local.connect() as fleet:
        storm = Storm(fleet, count=tenants, seed=seed, pause_s=0.02)
        storm.start()
        wait_for_progress(storm)
        yield storm
        storm.stop()
        storm.check_all(seed=seed)


def wait_for_progress(storm: Storm, *, bound_s: float = LONGEST_S) -> None:
    """Return when every tenant has taken writes and reads since the call; none of them may take long."""
    for known in storm.known:
        known.longest_s = 0.0
    storm.wait_for_progress(count=2, timeout_s=HANG_S)
    assert max(known.longest_s for known in storm.known) < bound_s


def owner(local: TwinFleet, what: str) -> str:
    """The log or control plane that works, and not the standby."""
    names = [name for name in local.names() if name.startswith(what)]
    return next(name for name in names if health(local.part(name).url) == "ok")


def check_zombie_of_the_log(url: str) -> None:
    """The process that was replaced acknowledges nothing, from the moment on at which it runs again."""
    with closing(HttpLog([url], retry_s=0)) as zombie:
        with pytest.raises((Unavailable, OutcomeUnknown)):
            zombie.append("t0/main", rows_of([b"zombie"], [b"1"]), write_id=new_uuid(random.Random()))
        with pytest.raises((Unavailable, OutcomeUnknown)):
            zombie.bounds("t0/main")


def test_the_owner_of_log_or_ledger_hangs(tmp_path: Path) -> None:
    """Reads and writes go on, a new client is served, and commits go on; the process that wakes is a standby."""
    with twins(tmp_path, nodes=1) as local, storming(local) as storm:
        log = owner(local, "log")
        with local.stopped(log) as part:
            wait_for_progress(storm)
        check_zombie_of_the_log(part.url)
        wait_until(lambda: health(part.url) == "standby")
        control = owner(local, "control")
        with local.stopped(control) as part:
            wait_for_progress(storm)
            with local.connect() as other:
                other.tenant("t0").main.get(b"k00")
                other.tenant("t0").main.checkpoint()
        wait_until(lambda: health(part.url) == "standby")
        wait_for_progress(storm)


def log_on(cluster: NatsCluster) -> str:
    """The URL of a new log."""
    return f"{cluster.url}/log-{new_uuid(random.Random())[:12]}"


@pytest.mark.long
@pytest.mark.parametrize("ledger", ["kv", "postgresql"])
@pytest.mark.parametrize("log", ["embedded", "postgresql", "jetstream"])
def test_each_part_hangs_in_turn(
    tmp_path: Path,
    ledger: str,
    log: str,
    request: pytest.FixtureRequest,
    tell: Any,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Whatever stands still for longer than a lease, everything goes on, and nothing is lost when it wakes."""

    def url_of(kind: str) -> str | None:
        if kind == "postgresql":
            return str(request.getfixturevalue("postgresql").make_database())
        return log_on(request.getfixturevalue("nats_cluster")) if kind == "jetstream" else None

    log_url = url_of(log)
    if log_url is not None:
        monkeypatch.setenv(LOG_VARIABLE, log_url)
    with twins(tmp_path, ledger=url_of(ledger), log=log_url) as local, storming(local) as storm:
        for name in local.names():
            with local.stopped(name):
                tell(f"{log} log, {ledger} ledger, {name} hangs: longest call {longest_s(storm, seconds=8):.1f} s")
            longest_s(storm, seconds=2)


def longest_s(storm: Storm, *, seconds: float, bound_s: float = LONGEST_S) -> float:
    """Let clients work for a time, in which none may wait for long; the longest call."""
    longest, ends_s = 0.0, time.monotonic() + seconds
    while time.monotonic() < ends_s:
        wait_for_progress(storm, bound_s=bound_s)
        longest = max(longest, *(known.longest_s for known in storm.known))
    return longest


@pytest.mark.long
def test_a_nats_server_hangs(
    tmp_path: Path, nats_cluster: NatsCluster, tell: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each in turn, for longer than the election of another leader takes; that bounds the longest call."""
    url = log_on(nats_cluster)
    monkeypatch.setenv(LOG_VARIABLE, url)
    with twins(tmp_path, log=url) as local, storming(local) as storm:
        for number in range(3):
            nats_cluster.stop(number)
            try:
                tell(f"NATS server {number} hangs: longest call {longest_s(storm, seconds=15, bound_s=30.0):.1f} s")
            finally:
                nats_cluster.go_on(number)
            longest_s(storm, seconds=5, bound_s=30.0)


@pytest.mark.long
def test_postgresql_hangs(tmp_path: Path, tell: Any) -> None:
    """As ledger: reads and writes go on without it, and when it wakes, commits and failovers go on too."""
    with running_postgresql() as server, ExitStack() as running:
        local = running.enter_context(twins(tmp_path, ledger=server.make_database()))
        storm = running.enter_context(storming(local))
        with server.stopped():
            tell(f"PostgreSQL as ledger hangs: longest call {longest_s(storm, seconds=15):.1f} s")
        storm.fleet.tenant("t0").main.checkpoint()
        with local.stopped(storm.fleet.operator.tenant("t0").preferred or ""):
            longest_s(storm, seconds=5)


@pytest.mark.long
def test_postgresql_hangs_as_log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Reads of what was ingested go on; writes wait, and end when it wakes, each made once."""
    with running_postgresql() as server, ExitStack() as running:
        url = server.make_database()
        monkeypatch.setenv(LOG_VARIABLE, url)
        local = running.enter_context(twins(tmp_path, log=url))
        storm = running.enter_context(storming(local))
        quiet = storm.fleet.create_tenant("quiet")
        quiet.main.put(b"k", b"1")
        assert quiet.main.get(b"k") == b"1"
        with server.stopped():
            for _ in range(20):
                assert quiet.main.get(b"k") == b"1"
                pause(0.5)
        wait_for_progress(storm, bound_s=60.0)
