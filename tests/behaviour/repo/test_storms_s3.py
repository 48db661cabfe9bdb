"""Workloads over an S3 server whose replies are lost now and then, after the server has done what it was asked."""

from __future__ import annotations

import http.client
import random
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from lakebed.repo import open_all
from worlds.repo.client import EAGER, QUIET, LibraryClient, check_sound
from worlds.repo.workload import LIBRARY_WORKLOADS, run_workloads, start_workloads


class Lossy(ThreadingHTTPServer):
    """A proxy that passes requests on, and cuts some connections in place of the reply."""

    daemon_threads = True

    def __init__(self, port: int, *, seed: int, share: float) -> None:
        super().__init__(("127.0.0.1", 0), _Passing)
        self.port = port
        self._rng = random.Random(seed)
        self._share = share
        self._lock = threading.Lock()
        self.lost: Counter[str] = Counter()

    def loses(self, method: str) -> bool:
        """Whether the next reply is lost."""
        with self._lock:
            is_lost = self._rng.random() < self._share
            self.lost[method] += is_lost
            return is_lost


class _Passing(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: Lossy

    def _pass(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        upstream = http.client.HTTPConnection("127.0.0.1", self.server.port, timeout=60)
        try:
            upstream.request(self.command, self.path, body=body or None, headers=dict(self.headers))
            answer = upstream.getresponse()
            rows = answer.read()
        finally:
            upstream.close()
        if self.server.loses(self.command):
            self.close_connection = True
            return
        self.send_response_only(answer.status)
        for name, value in answer.getheaders():
            if name.lower() not in ("transfer-encoding", "connection", "content-length"):
                self.send_header(name, value)
        size = answer.getheader("Content-Length") if self.command == "HEAD" else len(rows)
        self.send_header("Content-Length", str(size or 0))
        self.end_headers()
        self.wfile.write(rows)

    do_GET = do_PUT = do_HEAD = do_POST = do_DELETE = _pass  # noqa: N815

    def log_message(self, format: str, *args: Any) -> None:
        """Say nothing."""


@contextmanager
def lossy(port: int, *, seed: int, share: float) -> Iterator[Lossy]:
    """A proxy that runs."""
    with Lossy(port, seed=seed, share=share) as proxy:
        thread = threading.Thread(target=proxy.serve_forever, args=(0.02,))
        thread.start()
        try:
            yield proxy
        finally:
            proxy.shutdown()
            thread.join()


def storm(folder: Path, server: Any, *, seed: int, seconds: float) -> dict[str, int]:
    """Eight workloads behind the bad line for a while; then everything is looked at over a good one."""
    said, url = folder / "said", server.url()
    said.mkdir()
    with lossy(server.port, seed=seed, share=0.025) as proxy:
        far = {**server.options, "aws_endpoint": f"http://127.0.0.1:{proxy.server_port}"}
        with open_all(url, options=EAGER, storage_options=far) as home:
            workloads = start_workloads(LibraryClient(home.create("storm")), said, seed, names=LIBRARY_WORKLOADS)
            stop = threading.Event()
            timer = threading.Timer(seconds, stop.set)
            timer.start()
            violations = run_workloads(workloads, stop=stop)
            timer.cancel()
        assert not violations, f"seed {seed}: {violations}"
        assert sum(proxy.lost.values()) > 5
    with open_all(url, options=QUIET, storage_options=server.options) as home:
        repository = home.repository("storm")
        again = start_workloads(LibraryClient(repository), said, seed, names=LIBRARY_WORKLOADS)
        check_sound(repository, tidy=False)
        assert check_sound(repository) > 0
        for workload in again:
            workload.check(bodies=True)
    counts: Counter[str] = Counter(**{f"lost {method}": count for method, count in proxy.lost.items()})
    for workload in workloads:
        counts.update(workload.counts)
    return dict(sorted(counts.items()))


def test_replies_of_a_bucket_are_lost(tmp_path: Path, s3_server: Any, tell: Callable[[str], None]) -> None:
    """Replies to puts, commits and collections on a bucket are lost: nothing acknowledged is lost, nothing is torn."""
    tell(f"a bucket's lost replies: {storm(tmp_path, s3_server, seed=1, seconds=4)}")


@pytest.mark.long
@pytest.mark.parametrize("seed", range(2, 6))
def test_replies_of_a_bucket_are_lost_for_longer(
    tmp_path: Path, s3_server: Any, tell: Callable[[str], None], seed: int
) -> None:
    """The same, longer, with another seed."""
    tell(f"a bucket's lost replies {seed}: {storm(tmp_path, s3_server, seed=seed, seconds=40)}")
