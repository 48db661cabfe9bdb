"""Three serving processes over one PostgreSQL, which dies under them, as they do."""

from __future__ import annotations

import json
import os
import random
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest

from lakebed.repo import open_all
from worlds.repo.client import QUIET, LibraryClient, Refused, Unclear, check_sound
from worlds.repo.server_process import HttpClient, ServerProcess
from worlds.repo.workload import (
    MainBranchWorkload,
    NamesWorkload,
    OwnBranchWorkload,
    Workload,
    run_workloads,
    start_workloads,
)
from worlds.waiting import wait_until

CREATION = json.dumps({"name": "storm", "storage_namespace": "local://storm"})
WORKLOADS: dict[str, type[Workload]] = {
    "m0": MainBranchWorkload,
    "m1": MainBranchWorkload,
    "p0": OwnBranchWorkload,
    "p1": OwnBranchWorkload,
    "names": NamesWorkload,
}
RACES = pytest.mark.xdist_group("races at three servers")
"""In one worker: each one with a race would start three servers of its own."""
LANDS_LATE_S = 0.5
"""What a killed server had sent may be done by PostgreSQL a moment later."""


class Trio:
    """Three servers, their records, and the folder of their objects."""

    def __init__(self, servers: list[ServerProcess], cluster: Any, metadata: str, storage: str) -> None:
        self.servers = servers
        self.metadata = metadata
        self.storage = storage
        self._cluster = cluster

    def web(self, seed: int = 0, *, only: int | None = None) -> HttpClient:
        """A client of any of them, or of one."""
        ends = [server.endpoint for server in self.servers]
        choice = ends if only is None else [ends[only]]
        return HttpClient(choice, self.servers[0].headers, seed=seed, settle_s=LANDS_LATE_S)

    def crash_records(self) -> None:
        """Kill one of PostgreSQL's processes: it ends all others, and starts again from its log."""
        name = self.metadata.rsplit("/", 1)[1].split("?")[0]
        pids = self._cluster.run(f"SELECT pid FROM pg_stat_activity WHERE datname = '{name}' LIMIT 1")
        if pids:
            os.kill(pids[0][0], signal.SIGKILL)
        wait_until(self._cluster.answers)


@contextmanager
def three(folder: Path, cluster: Any) -> Iterator[Trio]:
    """Three servers that run, with a repository ``storm``."""
    metadata, storage = cluster.make_database(), str(folder / "lake")
    with ExitStack() as stack:
        keys, servers = None, []
        for number in range(3):
            server = ServerProcess(storage, folder / f"logs{number}", arguments=["--metadata", metadata], keys=keys)
            servers.append(stack.enter_context(server))
            keys = server.keys
        trio = Trio(servers, cluster, metadata, storage)
        trio.web().ask("POST", "/api/v1/repositories", CREATION)
        yield trio


@pytest.fixture
def trio(tmp_path: Path, postgresql: Any) -> Iterator[Trio]:
    """Three servers to be killed."""
    with three(tmp_path, postgresql) as item:
        yield item


@pytest.fixture(scope="module")
def calm(tmp_path_factory: pytest.TempPathFactory, postgresql: Any) -> Iterator[Trio]:
    """Three servers for all races."""
    with three(tmp_path_factory.mktemp("calm"), postgresql) as item:
        yield item


def storm(trio: Trio, tmp_path: Path, *, seed: int, rounds: int, round_s: float) -> dict[str, int]:
    """Servers are killed and started anew, and so is PostgreSQL; what the workloads have done."""
    said = tmp_path / "said"
    said.mkdir()
    rng = random.Random(seed)
    workloads = start_workloads(trio.web(seed), said, seed, names=WORKLOADS)
    failures: list[BaseException] = []
    stop = threading.Event()

    def strike() -> None:
        try:
            for number in range(rounds):
                stop.wait(rng.uniform(0.2, round_s))
                if number % 2:
                    trio.crash_records()
                else:
                    choice = rng.choice(trio.servers)
                    choice.stop(signal.SIGKILL)
                    choice.start()
            stop.wait(0.5)
        except BaseException as error:
            failures.append(error)
            for workload in workloads:
                workload.patience_s = 0.0
        finally:
            stop.set()

    thread = threading.Thread(target=strike)
    thread.start()
    violations = run_workloads(workloads, stop=stop)
    thread.join()
    if failures:
        raise failures[0]
    assert not violations, violations
    for number in range(3):  # each of them has recovered by itself, and sees the same
        for workload in workloads:
            workload.client = trio.web(only=number)
            workload.check(bodies=number == 0)
    assert [server.stop() for server in trio.servers] == [0, 0, 0]
    assert [line for server in trio.servers for line in server.tracebacks()] == []
    with open_all(trio.storage, metadata=trio.metadata, options=QUIET) as home:
        repository = home.repository("storm")
        again = start_workloads(LibraryClient(repository), said, seed, names=WORKLOADS)
        assert check_sound(repository) > 0
        for workload in again:
            workload.check(bodies=True)
    return {
        name: sum(workload.counts.get(name, 0) for workload in workloads)
        for name in {n for item in workloads for n in item.counts}
    }


@pytest.mark.parametrize("seed", [1, *(pytest.param(seed, marks=pytest.mark.long) for seed in range(2, 8))])
def test_servers_and_their_records_die(trio: Trio, tmp_path: Path, tell: Callable[[str], None], seed: int) -> None:
    """Servers are killed and PostgreSQL crashes: nothing acknowledged is lost, and all recover by themselves."""
    rounds, round_s = (2, 1.5) if seed == 1 else (10, 3.0)
    counts = storm(trio, tmp_path, seed=seed, rounds=rounds, round_s=round_s)
    tell(f"storm of three servers {seed}: {dict(sorted(counts.items()))}")


def race(calls: list[Callable[[], Any]]) -> list[str]:
    """Make calls at one moment; each one's outcome."""
    barrier = threading.Barrier(len(calls))
    outcomes = [""] * len(calls)

    def run(number: int, call: Callable[[], Any]) -> None:
        barrier.wait()
        try:
            call()
            outcomes[number] = "won"
        except Refused as error:
            outcomes[number] = str(error.args[0])
        except Unclear:
            outcomes[number] = "unclear"

    threads = [threading.Thread(target=run, args=pair) for pair in enumerate(calls)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return outcomes


@RACES
def test_one_of_many_creates_the_object(calm: Trio) -> None:
    """Of conditional creates of one path at three servers at once exactly one wins, and its bytes are there."""
    clients = [calm.web(only=number % 3) for number in range(9)]
    for path in (f"one/{number}" for number in range(12)):

        def create(number: int, path: str = path) -> Callable[[], Any]:
            return lambda: clients[number].put("main", path, b"%d" % number, only_if_absent=True)

        outcomes = race([create(number) for number in range(9)])
        assert sorted(set(outcomes)) == ["precondition_failed", "won"], outcomes
        assert outcomes.count("won") == 1
        data = clients[0].ask("GET", "/refs/main/objects", path=path).data
        assert data == b"%d" % outcomes.index("won")


@RACES
def test_names_and_repositories_have_one_maker(calm: Trio) -> None:
    """Of many clients that create one branch, tag or repository at three servers at once, exactly one succeeds."""
    clients = [calm.web(only=number % 3) for number in range(6)]
    for number in range(6):
        body = {"name": f"lake-{number}", "storage_namespace": f"local://lake-{number}"}
        for make in (
            lambda client, number=number: client.create_branch(f"b{number}", "main"),
            lambda client, number=number: client.create_tag(f"t{number}", "main"),
            lambda client, body=body: client.ask("POST", "/api/v1/repositories", body),
        ):
            outcomes = race([lambda client=client, make=make: make(client) for client in clients])  # type: ignore[misc]
            assert outcomes.count("won") == 1, outcomes
            assert len(set(outcomes)) == 2, outcomes


@RACES
def test_commits_and_merges_race(calm: Trio) -> None:
    """Of commits of one branch at three servers every staged path is in exactly one; racing merges lose nothing."""
    clients = [calm.web(only=number % 3) for number in range(6)]
    for number in range(6):
        clients[number].create_branch(f"dev{number}", "main")
    outcomes = race(
        [
            lambda number=number: [  # type: ignore[misc]
                (
                    clients[number].put("main", f"m/{number}/{item}", b"x"),
                    clients[number].commit("main", f"{number} {item}"),
                )
                for item in range(3)
            ]
            for number in range(6)
        ]
    )
    assert set(outcomes) <= {"won", "no_changes", "branch_moved"}, outcomes
    for number in range(6):
        clients[number].put(f"dev{number}", f"d/{number}", b"x")
        clients[number].commit(f"dev{number}", "mine")
    clients[0].put("main", "last", b"x")
    clients[0].commit("main", "last")
    outcomes = race([lambda number=number: clients[number].merge(f"dev{number}", "main") for number in range(6)])  # type: ignore[misc]
    assert set(outcomes) <= {"won", "branch_moved"}, outcomes
    assert "won" in outcomes
    merged = {f"d/{number}" for number, outcome in enumerate(outcomes) if outcome == "won"}
    assert set(clients[1].show("main", "d/")) == merged
    assert clients[2].show("main", "") == clients[0].show("main@", "")
