"""Pypaimon's side of the catalog benchmark, run by the interpreter of the peers' environment.

``paimon_worker.py FOLDER SCALE URI WAREHOUSE TOKEN``. Reads ``{"peer", "workload"}`` lines, answers ``{"figure"}``
lines. Peers are ways to commit: ``server``, through the server's catalog, and ``files``, pypaimon's own catalog of a
folder on the same disk.
"""

from __future__ import annotations

import contextlib
import json
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from importlib import metadata
from typing import Any

import pyarrow as pa
from pypaimon import CatalogFactory, Schema

FOLDER, SCALE, URI, WAREHOUSE, TOKEN = sys.argv[1], float(sys.argv[2]), *sys.argv[3:]
ROWS = pa.table({"id": pa.array(range(100), pa.int64()), "v": pa.array([1.5] * 100)})
CLIENTS = 16
LARGE_COUNT = max(20, int(500 * SCALE))
"""Commits of the large table; the client never merges their manifests."""
RETRIES = {"commit.max-retries": "100", "commit.min-retry-wait": "10 ms", "commit.max-retry-wait": "1 s"}
OPTIONS = {
    "server": {
        "metastore": "rest",
        "uri": URI,
        "warehouse": WAREHOUSE,
        "token.provider": "bear",
        "token": TOKEN,
    },
    "files": {"warehouse": f"{FOLDER}/files"},
}


def open_table(peer: str, name: str, options: dict[str, str] | None = None) -> Any:
    """A table of two columns, made when it is missing."""
    catalog = CatalogFactory.create(OPTIONS[peer])
    catalog.create_database("bench", True)
    catalog.create_table(f"bench.{name}", Schema.from_pyarrow_schema(ROWS.schema), True)
    table = catalog.get_table(f"bench.{name}")
    return table.copy(options) if options else table


class Committer:
    """One client of one table."""

    def __init__(self, peer: str, name: str, options: dict[str, str] | None = None) -> None:
        self.builder = open_table(peer, name, options).new_batch_write_builder()

    def prepare(self) -> Any:
        """Write the rows; what makes them visible."""
        writer = self.builder.new_write()
        writer.write_arrow(ROWS)
        messages = writer.prepare_commit()
        writer.close()
        commit = self.builder.new_commit()
        return lambda: commit.commit(messages)


committers: dict[str, Committer] = {}


def commit(
    peer: str, *, table: str = "commits", earlier_count: int = 0, clock: Callable[[], float] = time.perf_counter
) -> float:
    """Milliseconds of a commit, without the writing of its rows; the table has so many commits at first."""
    key = f"{peer} {table}"
    if key not in committers:
        committers[key] = Committer(peer, table)
        for _ in range(earlier_count):
            committers[key].prepare()()
    make_visible = committers[key].prepare()
    start = clock()
    make_visible()
    return (clock() - start) * 1000


def commit_cpu(peer: str) -> float:
    """As `commit`, but the processor time of this process."""
    return commit(peer, clock=time.process_time)


def commit_large(peer: str) -> float:
    """As `commit`, on a table with many manifests."""
    return commit(peer, table="large", earlier_count=LARGE_COUNT)


def request(peer: str) -> float:
    """Milliseconds of one small request of the client to the server, on a connection that is open."""
    catalog = CatalogFactory.create(OPTIONS["server"])
    catalog.create_database("bench", True)
    start = time.perf_counter()
    for _ in range(10):
        catalog.get_database("bench")
    return (time.perf_counter() - start) * 100


def request_anew(peer: str) -> float:
    """Milliseconds of the same request as a commit makes each of its two: by a catalog, a session and a connection."""
    catalog = CatalogFactory.create(OPTIONS["server"])
    catalog.create_database("bench", True)
    loader = catalog.catalog_loader()
    start = time.perf_counter()
    for _ in range(10):
        loader.load().get_database("bench")
    return (time.perf_counter() - start) * 100


races = 0


def race(peer: str) -> float:
    """How many of the clients that commit to one new table at once did."""
    global races
    races += 1
    start = threading.Barrier(CLIENTS)
    name = f"race{races}"
    open_table(peer, name)

    def run(_: int) -> bool:
        make_visible = Committer(peer, name, RETRIES).prepare()
        start.wait()
        try:
            make_visible()
        except Exception as error:
            if "conflict" not in str(error).lower():
                raise
            return False
        return True

    with ThreadPoolExecutor(CLIENTS) as pool:
        return float(sum(pool.map(run, range(CLIENTS))))


WORKLOADS = {
    "commit": commit,
    "commit_cpu": commit_cpu,
    "commit_large": commit_large,
    "request": request,
    "request_anew": request_anew,
    "race": race,
}


def main() -> None:
    """Answer requests until the end of the input."""
    answers = sys.stdout
    print(json.dumps({"versions": {"pypaimon": metadata.version("pypaimon")}}), file=answers, flush=True)
    for line in sys.stdin:
        asked = json.loads(line)
        try:
            with contextlib.redirect_stdout(sys.stderr):
                answer: dict[str, Any] = {"figure": WORKLOADS[asked["workload"]](asked["peer"])}
        except Exception as error:
            answer = {"error": f"{type(error).__name__}: {error}"}
        print(json.dumps(answer), file=answers, flush=True)


if __name__ == "__main__":
    main()
