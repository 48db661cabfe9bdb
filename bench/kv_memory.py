"""One memory workload in a process of its own: ``kv_memory.py compact_memory|scan_memory|cache_bytes FOLDER SCALE``.

Prints the figure (peak resident megabytes, or the most bytes in the cache as a share of its setting), rows, and the
database's bytes on disk. The database, 2 GB at scale 1 in eight overlapping files of level 0 and more, is made by a
child process, so that making it does not count.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

import numpy as np

import harness
from inputs import split
from lakebed.kv import Database, DatabaseOptions, WriteBatch
from lakebed.kv.database_location import DatabaseLocation

VALUE_BYTES = 500
ROWS_PER_BATCH = 20_000
ROWS = 4_000_000
CACHE_BYTES = 32 << 20
GET_EVERY = 1_000
"""Rows of a scan for each get: at scale 1 the cache is too small for what 40 open files take, so a get opens some."""


def options(**others: object) -> DatabaseOptions:
    """No thread of its own, so that nothing but the workload counts."""
    return DatabaseOptions(background=False, compaction=False, cache_bytes=CACHE_BYTES, l0_count_max=1000, **others)  # type: ignore[arg-type]


def make(folder: Path, scale: float) -> None:
    """Incompressible rows under random keys."""
    with Database.open(DatabaseLocation.at(str(folder), durable=False), options=options()) as database:
        for first in range(0, int(ROWS * scale), ROWS_PER_BATCH):
            rng = np.random.default_rng(first)
            batch = WriteBatch()
            batch.put_many(
                split(rng.bytes(16 * ROWS_PER_BATCH), 16), split(rng.bytes(VALUE_BYTES * ROWS_PER_BATCH), VALUE_BYTES)
            )
            database.write(batch, await_durable=False)
        database.flush(memtable=True)


def main() -> None:
    """Run one workload."""
    workload, folder, scale = sys.argv[1], Path(sys.argv[2]), float(sys.argv[3])
    if workload == "make":
        make(folder, scale)
        return
    if not folder.exists():
        subprocess.run([sys.executable, __file__, "make", str(folder), str(scale)], check=True)
    mine = folder
    if workload == "compact_memory":  # the others find the files as they were made
        mine = folder.with_name("compacted")
        shutil.copytree(folder, mine)
    disk_bytes = sum(path.stat().st_size for path in folder.rglob("*.sst"))
    rows = 0
    figure = 0.0
    with Database.open(DatabaseLocation.at(str(mine), durable=False), options=options()) as database:
        if workload == "compact_memory":
            database.compact(full=True)
            rows = int(ROWS * scale)
        elif workload == "scan_memory":
            for batch in database.scan_arrow():
                rows += batch.num_rows
        else:
            most = 0
            for count, (key, _) in enumerate(database.scan()):
                if count % GET_EVERY == 0:
                    database.get(key)
                    rows += 1
                    most = max(most, database.stats().cache_bytes)
            figure = most / CACHE_BYTES
    print(figure or harness.rss_peak_mb(), rows, disk_bytes)


if __name__ == "__main__":
    main()
