"""Rows of the catalog benchmark on Iceberg's clients.

At scale 1, of a table of 10,000 files and 1,000 snapshots: iceberg_first (nothing was ever loaded: every version is
written), iceberg_commit (first load after one more commit, in milliseconds, with its requests), iceberg_again (load
where nothing changed), iceberg_restart (load in a new process, where everything is written), iceberg_load_http (load of
an unchanged table through the server). iceberg_read: 10 million rows by pyiceberg through the catalog, against the same
rows in a native Iceberg table.

Data files of the first table are described in manifests only: loading never opens them.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import pyarrow as pa
import urllib3

import harness
import lakebed
from harness import Result
from lakebed.objects.port import RequestCounts
from lakebed.server.options import ServerOptions
from lakebed.server.serve import start_server
from lakebed.table.branch.manifest_reader import PROCESS_CACHE
from lakebed.table.codec.manifest import files_of
from lakebed.table.iceberg.published import PublishedTable
from lakebed.table.model.model import BucketChange
from lakebed.table.rows.rows import commit_changes
from lakebed.table.table import Table

FILES_PER_COMMIT = 10
"""One for each of ten partitions."""


class Maker(Protocol):
    """What of the benchmark is used here."""

    folder: Path
    scale: float
    sample_count: int


def timed(run: Callable[[], object]) -> float:
    """Milliseconds of one call."""
    start = time.perf_counter()
    run()
    return (time.perf_counter() - start) * 1000


def measure_iceberg(bench: Maker) -> list[Result]:
    """All rows of this module."""
    return [*loads(bench), *reads(bench)]


def made_table(url: str, commits: int) -> tuple[Table, Callable[[], object]]:
    """A table with so many commits of ten files, and what commits ten more."""
    lake = lakebed.open(url)
    columns = [("id", pa.int64()), ("delay", pa.float64()), ("carrier", pa.string()), ("day", pa.int32())]
    table = lake.create_table(
        "db.t", pa.schema(columns), partition_keys=["day"], options={"snapshot.num-retained.max": "100000"}
    )
    rows = {"id": range(10), "delay": [1.5] * 10, "carrier": ["UA"] * 10, "day": range(10)}
    table.append(pa.table(rows, table.arrow_schema))
    newest = table.latest()
    assert newest is not None
    entries = table.context.manifests.live_entries(newest)
    files = files_of(entries)
    places = list(zip(*(entries.column(n).to_pylist() for n in ("partition", "bucket", "total_buckets")), strict=True))
    made = 0

    def commit() -> None:
        nonlocal made
        made += 1
        changes = [
            BucketChange(*place, added=(replace(file, file_name=f"data-{made:08x}-{i}.parquet", commit_snapshot=None),))
            for i, (place, file) in enumerate(zip(places, files, strict=True))
        ]
        commit_changes(table.context, changes)

    for _ in range(commits - 1):
        commit()
    return table, commit


def requests_of(counts: RequestCounts) -> dict[str, int]:
    """The requests by kind."""
    return {kind: getattr(counts, kind) for kind in ("get", "head", "put", "list") if getattr(counts, kind)}


def loads(bench: Maker) -> list[Result]:
    """Loading a table with many files and versions."""
    commits = max(50, int(1000 * bench.scale))
    url = str(bench.folder / "loads")
    with start_server(url, options=ServerOptions(durable=False)) as running:
        table, commit = made_table(url, commits)
        published = PublishedTable(table.context)
        first = timed(published.load)
        requests: dict[str, int] = {}
        samples: dict[str, list[float]] = {"commit": [], "again": [], "restart": [], "http": []}
        for _ in range(2 * bench.sample_count):
            commit()
            with table.store.count() as counted:
                samples["commit"].append(timed(published.load))
            requests = requests_of(counted)
            samples["again"].append(timed(published.load))
        for _ in range(bench.sample_count):
            PROCESS_CACHE.clear()
            fresh = PublishedTable(Table.open(table.store, name="db.t").context)
            samples["restart"].append(timed(fresh.load))
        pool = urllib3.PoolManager(headers={"authorization": f"Bearer {_token(running.started)}"})
        place = f"{running.started.endpoint}/iceberg/v1/loads/namespaces/db/tables/t"
        for number in range(bench.sample_count + 1):
            taken = timed(lambda: _ask(pool, place))
            if number:
                samples["http"].append(taken)
    return [
        _row("iceberg_first", [first], commits, "of every version"),
        _row("iceberg_commit", samples["commit"], commits, "<= 50 ms", requests),
        _row("iceberg_again", samples["again"], commits, "<= 5 ms"),
        _row("iceberg_restart", samples["restart"], commits, ""),
        _row("iceberg_load_http", samples["http"], commits, ""),
    ]


def _row(name: str, samples: list[float], rows: int, target: str, requests: dict[str, int] | None = None) -> Result:
    return harness.result_of(name, {"lakebed": samples}, unit="ms", rows=rows, target=target, requests=requests or {})


def _token(started: Any) -> str:
    return f"{started.access_key}.{started.secret}"


def _ask(pool: urllib3.PoolManager, url: str) -> None:
    reply = pool.request("GET", url)
    assert reply.status == 200, reply.data[:200]


def reads(bench: Maker) -> list[Result]:
    """Ten million rows, by the same client through both catalogs."""
    from pyiceberg.catalog import load_catalog
    from pyiceberg.catalog.memory import InMemoryCatalog

    count = max(100_000, int(10_000_000 * bench.scale))
    generator = np.random.default_rng(1)
    rows = pa.table(
        {"id": np.arange(count), "delay": generator.normal(size=count), "carrier": generator.integers(0, 99, count)}
    )
    url = str(bench.folder / "reads")
    lakebed.open(url).create_table("db.t", rows.schema).append(rows)
    native = InMemoryCatalog("native", warehouse=f"file://{bench.folder}/native")
    native.create_namespace("db")
    native.create_table("db.t", rows.schema).append(rows)
    with start_server(url, options=ServerOptions(durable=False)) as running:
        uri = f"{running.started.endpoint}/iceberg"
        ours = load_catalog("ours", type="rest", uri=uri, warehouse="reads", token=_token(running.started))

        def read(catalog: Any) -> float:
            taken = timed(lambda: catalog.load_table("db.t").scan().to_arrow()) / 1000
            return taken

        assert ours.load_table("db.t").scan().to_arrow().num_rows == count
        measures = {"lakebed": lambda: read(ours), "native Iceberg": lambda: read(native)}
        result = harness.alternate(
            "iceberg_read", measures, sample_count=bench.sample_count, rows=count, target="native Iceberg >= 1x"
        )
    native.close()
    return [result]
