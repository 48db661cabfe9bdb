"""Workloads over an S3 server whose replies are lost now and then, after the server has done what it was asked."""

from __future__ import annotations

import random
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from lakebed.repo import open_all
from worlds.listener import Request, listen, pass_on
from worlds.repo.client import EAGER, QUIET, LibraryClient, check_sound
from worlds.repo.workload import LIBRARY_WORKLOADS, run_workloads, start_workloads


@contextmanager
def lossy(port: int, *, seed: int, share: float) -> Iterator[tuple[int, Counter[str]]]:
    """The port of a proxy that cuts some connections in place of the reply, and how many by method."""
    rng, lock, lost = random.Random(seed), threading.Lock(), Counter[str]()

    def is_lost(request: Request) -> bool:
        with lock:
            result = rng.random() < share
            lost[request.method] += result
            return result

    with listen(pass_on(port, loses=is_lost)) as near:
        yield near, lost


def storm(folder: Path, server: Any, *, seed: int, seconds: float) -> dict[str, int]:
    """Eight workloads behind the bad line for a while; then everything is looked at over a good one."""
    said, url = folder / "said", server.url()
    said.mkdir()
    with lossy(server.port, seed=seed, share=0.025) as (port, lost):
        far = {**server.options, "aws_endpoint": f"http://127.0.0.1:{port}"}
        with open_all(url, options=EAGER, storage_options=far) as home:
            workloads = start_workloads(LibraryClient(home.create("storm")), said, seed, names=LIBRARY_WORKLOADS)
            stop = threading.Event()
            timer = threading.Timer(seconds, stop.set)
            timer.start()
            violations = run_workloads(workloads, stop=stop)
            timer.cancel()
        assert not violations, f"seed {seed}: {violations}"
        assert sum(lost.values()) > 5
    with open_all(url, options=QUIET, storage_options=server.options) as home:
        repository = home.repository("storm")
        again = start_workloads(LibraryClient(repository), said, seed, names=LIBRARY_WORKLOADS)
        check_sound(repository, tidy=False)
        assert check_sound(repository) > 0
        for workload in again:
            workload.check(bodies=True)
    counts: Counter[str] = Counter(**{f"lost {method}": count for method, count in lost.items()})
    for workload in workloads:
        counts.update(workload.counts)
    return dict(sorted(counts.items()))


@pytest.mark.parametrize("seed", [1, *(pytest.param(seed, marks=pytest.mark.long) for seed in range(2, 6))])
def test_replies_of_a_bucket_are_lost(tmp_path: Path, s3_server: Any, tell: Callable[[str], None], seed: int) -> None:
    """Replies to puts, commits and collections on a bucket are lost: nothing acknowledged is lost, nothing is torn."""
    seconds = 4 if seed == 1 else 40
    tell(f"a bucket's lost replies {seed}: {storm(tmp_path, s3_server, seed=seed, seconds=seconds)}")
