"""Many writers on one table: in any interleaving no acknowledged commit is lost and contention fails no commit."""

from __future__ import annotations

import json
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pyarrow as pa

from lakebed.objects.open import open_store
from lakebed.table.table import Table

PROCESS_COUNT = 4
WRITERS_A_PROCESS = 5
COMMITS_A_WRITER = 2

# What one process runs: its writers are threads that share nothing, each with a table object of its own.
WRITERS = """
import json, sys
from concurrent.futures import ThreadPoolExecutor
import pyarrow as pa
from lakebed.objects.open import open_store
from lakebed.table.table import Table

url, process, writers, commits = sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4])

def write(writer):
    table = Table.open(open_store(url), name="t")
    acknowledged = []
    for number in range(commits):
        row = (process * writers + writer) * commits + number
        acknowledged.append((row, table.append(pa.table({"id": pa.array([row], pa.int64())})).id))
    return acknowledged

with ThreadPoolExecutor(writers) as pool:
    print(json.dumps([pair for pairs in pool.map(write, range(writers)) for pair in pairs]))
"""


def check_nothing_lost(table: Table, acknowledged: list[tuple[int, int]]) -> None:
    """Every acknowledged row is there once, under the snapshot its writer got, and no snapshot was skipped."""
    rows = sorted(row for row, _ in acknowledged)
    snapshot_ids = sorted(snapshot_id for _, snapshot_id in acknowledged)
    assert snapshot_ids == list(range(1, len(acknowledged) + 1))
    assert sorted(table.read()["id"].to_pylist()) == rows
    snapshots = list(table.snapshots())
    assert [snapshot.id for snapshot in snapshots] == snapshot_ids
    assert [snapshot.total_record_count for snapshot in snapshots] == snapshot_ids
    later = [(row, snapshot_id) for row, snapshot_id in acknowledged if snapshot_id > 1]
    for row, snapshot_id in later[:: max(1, len(later) // 10)]:
        assert row in table.changes(snapshot_id - 1, snapshot_id)["id"].to_pylist()


def test_twenty_writers_in_four_processes(tmp_path: Path) -> None:
    """Twenty writers that commit at the same time on a local folder all finish, and each commit is kept."""
    url = str(tmp_path / "t")
    table = Table.create(open_store(url), name="t", schema=pa.schema([("id", pa.int64())]))
    running = [
        subprocess.Popen(
            [sys.executable, "-c", WRITERS, url, str(process), str(WRITERS_A_PROCESS), str(COMMITS_A_WRITER)],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for process in range(PROCESS_COUNT)
    ]
    results = [process.communicate(timeout=240) for process in running]
    assert [process.returncode for process in running] == [0] * PROCESS_COUNT, "\n".join(error for _, error in results)
    acknowledged = [tuple(pair) for output, _ in results for pair in json.loads(output)]
    assert len(acknowledged) == PROCESS_COUNT * WRITERS_A_PROCESS * COMMITS_A_WRITER
    check_nothing_lost(table, acknowledged)


def test_threads_on_an_object_store(s3_server: Any) -> None:
    """Threads with table objects of their own race on an S3 server without losing anything."""
    writer_count = 6
    store = open_store(s3_server.url(), storage_options=s3_server.options)
    table = Table.create(store, name="t", schema=pa.schema([("id", pa.int64())]))

    def write(writer: int) -> list[tuple[int, int]]:
        mine = Table.open(store, name="t")
        rows = (writer * 2 + number for number in range(2))
        return [(row, mine.append(pa.table({"id": pa.array([row], pa.int64())})).id) for row in rows]

    with ThreadPoolExecutor(writer_count) as pool:
        acknowledged = [pair for pairs in pool.map(write, range(writer_count)) for pair in pairs]
    check_nothing_lost(table, acknowledged)


def test_threads_that_share_one_table_object(tmp_path: Path) -> None:
    """A table object is thread-safe: its writers take turns and none loses a race to another of them."""
    store = open_store(str(tmp_path / "t"))
    table = Table.create(store, name="t", schema=pa.schema([("id", pa.int64())]))

    def write(row: int) -> tuple[int, int]:
        return row, table.append(pa.table({"id": pa.array([row], pa.int64())})).id

    with ThreadPoolExecutor(8) as pool:
        acknowledged = list(pool.map(write, range(24)))
    check_nothing_lost(table, acknowledged)
