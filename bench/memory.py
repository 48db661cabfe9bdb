"""One memory workload in a process of its own: ``memory.py merge_memory|compact_memory FOLDER SCALE``.

Prints peak resident megabytes, rows and the bucket's bytes on disk. The bucket is made by a child process, so that
making it does not count.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

import numpy as np
import pyarrow as pa

import harness
from lakebed.objects import open_store
from lakebed.table.table import Table

SCHEMA = pa.schema([pa.field("id", pa.int64(), nullable=False), ("payload", pa.binary())])
PAYLOAD_BYTES = 200
ROWS_PER_RUN = 2_500_000
RUN_COUNT = 10


def make(folder: Path, scale: float) -> None:
    """Ten overlapping runs of incompressible rows in one bucket: 5 GB at scale 1."""
    table = Table.create(
        open_store(str(folder), durable=False),
        name="memory",
        schema=SCHEMA,
        primary_keys=("id",),
        options={"bucket": "1"},
    )
    count = max(1000, int(ROWS_PER_RUN * scale))
    for run in range(RUN_COUNT):
        rng = np.random.default_rng(run)
        ids = np.sort(rng.choice(count * 5, size=count, replace=False))
        body = pa.py_buffer(rng.bytes(count * PAYLOAD_BYTES))
        offsets = pa.py_buffer((np.arange(count + 1) * PAYLOAD_BYTES).astype(np.int32))
        payload = pa.Array.from_buffers(pa.binary(), count, [None, offsets, body])
        table.upsert(pa.table([pa.array(ids), payload], schema=SCHEMA))


def main() -> None:
    """Run one workload."""
    workload, folder, scale = sys.argv[1], Path(sys.argv[2]), float(sys.argv[3])
    if workload == "make":
        make(folder, scale)
        return
    if not folder.exists():
        subprocess.run([sys.executable, __file__, "make", str(folder), str(scale)], check=True)
    disk_bytes = sum(path.stat().st_size for path in folder.rglob("*.parquet"))
    table = Table.open(open_store(str(folder), durable=False), name="memory")
    rows = 0
    if workload == "merge_memory":
        for batch in table.scan().to_batches():
            rows += batch.num_rows
    else:
        table.compact(full=True)
        rows = table.scan().count()
    print(harness.rss_peak_mb(), rows, disk_bytes)


if __name__ == "__main__":
    main()
