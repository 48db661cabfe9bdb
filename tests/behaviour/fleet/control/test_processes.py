"""Control planes as real processes: killed while they grant, replaced by a standby, and two at once on PostgreSQL."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import urllib3

from lakebed.errors import Unavailable
from lakebed.fleet.http_ports import HttpControl
from lakebed.runtime import Environment
from worlds.fleet_control_process import Committer, ControlProcess

CLOCK = Environment().clock


def running(work: Callable[[Callable[[], bool]], None]) -> Callable[[], None]:
    """Run work in a thread; the returned call ends it and waits."""
    ended = threading.Event()
    thread = threading.Thread(target=work, args=(ended.is_set,))
    thread.start()

    def end() -> None:
        ended.set()
        thread.join(60)
        assert not thread.is_alive()

    return end


def test_killed_while_it_grants_it_continues(tmp_path: Path) -> None:
    """No grant is lost or given twice, whatever moment the process ends at."""
    process = ControlProcess(str(tmp_path))
    committer = Committer(HttpControl(process.url, retry_s=20), "a")
    committer.register()
    for number in range(4):
        committer.create(f"t{number}")
    end = running(committer.run)
    rng = random.Random(7)
    for _ in range(3):
        CLOCK.sleep(rng.uniform(0.1, 0.6))
        process.kill()
        process.start()
    wait_for_grants(committer)
    end()
    committer.check()
    assert process.stop() == 0


def test_a_standby_takes_over_from_a_killed_one(tmp_path: Path) -> None:
    """Nodes that know both go on."""
    first = ControlProcess(str(tmp_path))
    second = ControlProcess(str(tmp_path))
    assert health(second) == "standby"
    committer = Committer(HttpControl(f"{first.url},{second.url}", retry_s=20), "a")
    committer.register()
    committer.create("t")
    end = running(committer.run)
    CLOCK.sleep(0.5)
    first.kill()
    before = len(committer.granted["t"])
    wait_for(lambda: health(second) == "ok")
    wait_for(lambda: len(committer.granted["t"]) > before + 3)
    end()
    committer.check()
    assert second.stop() == 0


def test_two_at_once_on_postgresql(tmp_path: Path, postgresql: Any) -> None:
    """Each decides anything: two clients commit the same tenants' transactions through both, one is killed."""
    url = postgresql.make_database()
    processes = [ControlProcess(str(tmp_path), ledger=url) for _ in range(2)]
    urls = [process.url for process in processes]
    item = Committer(HttpControl(urls, retry_s=20), "a")
    item.register()
    for number in range(4):
        item.create(f"t{number}")
    # The same node asks twice, through another control plane: each request is granted once, and again.
    two = Committer(HttpControl(urls[::-1], retry_s=20), "a", txns=dict(item.txns), granted={t: [] for t in item.txns})
    ends = [running(item.run), running(two.run)]
    wait_for_grants(item, two)
    processes[0].kill()
    wait_for_grants(item, two)
    for end in ends:
        end()
    for committer in (item, two):
        committer.check()
    assert processes[1].stop() == 0


def test_postgresql_crashes_while_it_grants(tmp_path: Path, postgresql: Any) -> None:
    """It ends at any moment and starts again: no grant is lost or given twice, and the control plane continues."""
    url = postgresql.make_database()
    process = ControlProcess(str(tmp_path), ledger=url)
    committer = Committer(HttpControl(process.url, retry_s=20), "a")
    committer.register()
    for number in range(4):
        committer.create(f"t{number}")
    end = running(committer.run)
    for _ in range(3):
        wait_for_grants(committer)
        postgresql.crash(url)
    wait_for_grants(committer)
    end()
    committer.check()
    assert process.stop() == 0


def wait_for_grants(*committers: Committer, count: int = 2) -> None:
    """Return when each tenant of each committer was granted as many commits more."""
    before = [{tenant: len(granted) for tenant, granted in committer.granted.items()} for committer in committers]

    def are_there() -> bool:
        for committer in committers:
            assert committer.problems == []
        return all(
            len(item.granted[tenant]) >= then + count
            for item, counts in zip(committers, before, strict=True)
            for tenant, then in counts.items()
        )

    wait_for(are_there)


def health(process: ControlProcess) -> str:
    return str(urllib3.request("GET", process.url + "/healthcheck", timeout=10).json()["status"])


def wait_for(condition: Callable[[], bool]) -> None:
    """Wait for what processes do."""
    ends_s = CLOCK.monotonic_s() + 60
    while not condition():
        assert CLOCK.monotonic_s() < ends_s
        CLOCK.sleep(0.05)


def test_a_ledger_that_cannot_be_reached_is_one_sentence(tmp_path: Path) -> None:
    """The process does not start."""
    with pytest.raises((EOFError, Unavailable)):
        ControlProcess(str(tmp_path), ledger="postgresql://lakebed:x@127.0.0.1:9/none")
