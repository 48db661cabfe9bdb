"""A serving process that is killed, stopped and ended under its clients: see `worlds.repo.server_process`."""

from __future__ import annotations

import json
import random
import signal
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from lakebed.repo import Access, open_all
from worlds.repo.client import QUIET, LibraryClient, check_sound
from worlds.repo.server_process import HttpClient, ImportWorkload, ServerProcess
from worlds.repo.workload import (
    MainBranchWorkload,
    NamesWorkload,
    OwnBranchWorkload,
    Workload,
    run_workloads,
    start_workloads,
)

CREATION = json.dumps({"name": "storm", "storage_namespace": "local://storm"})
WORKLOADS: dict[str, type[Workload]] = {
    "m0": MainBranchWorkload,
    "m1": MainBranchWorkload,
    "p0": OwnBranchWorkload,
    "p1": OwnBranchWorkload,
    "names": NamesWorkload,
}


@pytest.fixture
def source(tmp_path: Path) -> Path:
    """A folder of files to import."""
    folder = tmp_path / "source"
    folder.mkdir()
    for number in range(20):
        (folder / f"{number:02d}").write_bytes(b"%d" % number)
    return folder


@pytest.fixture
def served(tmp_path: Path, source: Path) -> Iterator[ServerProcess]:
    """A server that runs, with a repository ``storm``."""
    with ServerProcess(str(tmp_path / "lake"), tmp_path / "logs", arguments=["--import-from", str(source)]) as server:
        HttpClient([server.endpoint], server.headers).ask("POST", "/api/v1/repositories", CREATION)
        yield server


@pytest.fixture
def said(tmp_path: Path) -> Path:
    """The folder of the workloads' logs."""
    folder = tmp_path / "said"
    folder.mkdir()
    return folder


def web_workloads(served: ServerProcess, said: Path, source: Path, seed: int) -> list[Workload]:
    """Workloads that call a server."""
    workloads = start_workloads(HttpClient([served.endpoint], served.headers, seed=seed), said, seed, names=WORKLOADS)
    imports = ImportWorkload(HttpClient([served.endpoint], served.headers), said, "imports", seed, source=source)
    imports.prepare()
    return [*workloads, imports]


def run_owner(workloads: list[Workload], strike: Callable[[threading.Event], None]) -> list[str]:
    """Run workloads while faults strike; what was wrong."""
    stop = threading.Event()
    failures: list[BaseException] = []

    def run() -> None:
        try:
            strike(stop)
        except BaseException as error:
            failures.append(error)
            for workload in workloads:
                workload.patience_s = 0.0
        finally:
            stop.set()

    thread = threading.Thread(target=run)
    thread.start()
    violations = run_workloads(workloads, stop=stop)
    thread.join()
    if failures:
        raise failures[0]
    return violations


def assert_nothing_lost(
    served: ServerProcess, tmp_path: Path, said: Path, *, seed: int, workloads: list[Workload]
) -> None:
    """Every workload reads what was acknowledged, over HTTP and then in the library; no garbage remains."""
    for workload in workloads:
        workload.check(bodies=not isinstance(workload, ImportWorkload))
    assert served.stop() == 0, served.told()
    assert not served.tracebacks()
    with open_all(tmp_path / "lake", options=QUIET) as home:  # the lease was given up
        repository = home.repository("storm")
        again = start_workloads(LibraryClient(repository), said, seed, names=WORKLOADS)
        for workload in again:
            workload.check(bodies=True)
        assert check_sound(repository) > 0
        for workload in again:
            workload.check(bodies=True)


def counted(workloads: list[Workload]) -> dict[str, int]:
    """What the workloads have done."""
    counts: Counter[str] = Counter()
    for workload in workloads:
        counts.update(workload.counts)
    return dict(sorted(counts.items()))


def kills(served: ServerProcess, *, seed: int, count: int, round_s: float) -> Callable[[threading.Event], None]:
    """Faults: kill the server again and again, and start it anew."""
    rng = random.Random(seed)

    def strike(stop: threading.Event) -> None:
        for _ in range(count):
            if stop.wait(rng.uniform(0.1, round_s)):
                return
            served.stop(signal.SIGKILL)
            served.start("--take-over")
        stop.wait(0.5)

    return strike


@pytest.mark.parametrize("seed", [1, *(pytest.param(seed, marks=pytest.mark.long) for seed in range(2, 10))])
def test_killed_under_its_clients(
    served: ServerProcess, tmp_path: Path, said: Path, source: Path, tell: Callable[[str], None], seed: int
) -> None:
    """Killed and started again during uploads, commits, merges and imports, it has lost nothing it had answered."""
    workloads = web_workloads(served, said, source, seed)
    count, round_s = (2, 1.5) if seed == 1 else (10, 4.0)
    violations = run_owner(workloads, kills(served, seed=seed, count=count, round_s=round_s))
    assert not violations, violations
    assert_nothing_lost(served, tmp_path, said, seed=seed, workloads=workloads)
    tell(f"server storm {seed}: {counted(workloads)}")


def test_told_to_end_under_load(
    served: ServerProcess, tmp_path: Path, said: Path, source: Path, tell: Callable[[str], None]
) -> None:
    """SIGTERM under load: it exits with 0, has lost nothing, and gave its lease up: the next one needs no take-over."""
    workloads = web_workloads(served, said, source, 3)

    def strike(stop: threading.Event) -> None:
        for _ in range(2):
            stop.wait(0.7)
            assert served.stop(signal.SIGTERM) == 0
            served.start()
        stop.wait(0.3)

    violations = run_owner(workloads, strike)
    assert not violations, violations
    assert_nothing_lost(served, tmp_path, said, seed=3, workloads=workloads)
    tell(f"server ended under load: {counted(workloads)}")


def test_a_server_that_slept_acknowledges_nothing(served: ServerProcess, tmp_path: Path) -> None:
    """Stopped while another process takes over, and continued: it answers 503, changes nothing, and ends with 4."""
    web = HttpClient([served.endpoint], served.headers)
    web.put("main", "before", b"1")
    requests: list[Callable[[], Any]] = [
        lambda: web.put("main", "zombie", b"x"),
        lambda: web.put("main", "large", b"x" * 3_000_000),
        lambda: web.put("main", "before", b"x"),
        lambda: web.put("main", "absent", b"x", only_if_absent=True),
        lambda: web.delete("main", ["before"]),
        lambda: web.delete("main", ["missing"]),
        lambda: web.delete("main", ["before", "missing"]),
        lambda: web.commit("main", "zombie"),
        lambda: web.create_branch("zombie", "main"),
        lambda: web.create_tag("zombie", "main"),
        lambda: web.reset("main"),
        lambda: web.ask("POST", "/api/v1/repositories", {"name": "zombie", "storage_namespace": "local://zombie"}),
        lambda: web.ask("DELETE", ""),
        lambda: web.ask("POST", "/api/v1/auth/keys", {"role": "admin"}),
        lambda: web.ask("PUT", "/settings/gc_rules", {"default_retention_days": 1, "branches": []}),
        lambda: web.show("main", ""),
        lambda: web.names("branch", ""),
        lambda: web.head("main"),
        lambda: web.ask("GET", ""),
    ]
    answers: list[str] = []
    lock = threading.Lock()

    def told(request: Callable[[], Any]) -> None:
        try:
            request()
        except Exception as error:
            with lock:
                answers.append(f"{type(error).__name__} {error}")
        else:
            with lock:
                answers.append("success")

    served.send(signal.SIGSTOP)
    asleep = [threading.Thread(target=told, args=(request,)) for request in requests]
    for thread in asleep:  # they wait in its socket
        thread.start()
    with open_all(tmp_path / "lake", access=Access(take_over=True)) as home:
        repository = home.repository("storm")
        repository.branch("main").put("after", b"2")
        commit = repository.branch("main").commit("the next owner")
        served.send(signal.SIGCONT)
        for thread in asleep:
            thread.join()
        assert [answer for answer in answers if not answer.startswith("Unclear ")] == []  # 503, or no reply any more
        assert any(answer.startswith("Unclear 503") for answer in answers)
        assert served.process is not None
        assert served.process.wait(60) == 4, served.told()
        assert f"The repositories at file://{tmp_path}/lake were taken over by another process" in served.told()
        assert repository.branch("main").commit_id == commit.id
        assert [entry.path for entry in repository.branch("main").list()] == ["after", "before"]
        assert not repository.branch("main").is_dirty()
        assert [branch.name for branch in repository.branches()] == ["main"]
        assert [entry.name for entry in home.list()] == ["storm"]
    assert not served.tracebacks()


def test_an_idle_server_that_was_taken_over_ends(served: ServerProcess, tmp_path: Path) -> None:
    """Without a request it learns of its successor when it renews its lease: it ends with 4, and says why."""
    with open_all(tmp_path / "lake", access=Access(take_over=True)) as home:
        home.repository("storm").branch("main").put("after", b"2")
        assert served.process is not None
        assert served.process.wait(90) == 4, served.told()
        assert "were taken over by another process" in served.told()
        assert bytes(home.repository("storm").branch("main").get("after")) == b"2"
    assert not served.tracebacks()
