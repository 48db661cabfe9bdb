"""One memory workload in a process of its own: ``repo_memory.py commit_1m|upload_2gb|download_2gb FOLDER SCALE``.

Prints the peak resident megabytes and what was handled: entries or bytes.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

import harness
from lakebed import repo
from lakebed.repo import Entry, RepositoryOptions

CHUNK_BYTES = 1 << 20
STAGED_AT_ONCE = 50_000
QUIET = RepositoryOptions(background=False)


def chunks(size_bytes: int) -> Iterator[bytes]:
    """Bytes, a megabyte at a time."""
    for number in range(size_bytes // CHUNK_BYTES):
        yield bytes([number % 251]) * CHUNK_BYTES


def stage(folder: Path, count: int) -> None:
    """Entries on branch main, a part at a time, so that making them does not count."""
    with repo.open_all(str(folder), options=QUIET) as home:
        target = home.create("memory").branch("main")
        for first in range(0, count, STAGED_AT_ONCE):
            rows = range(first, min(first + STAGED_AT_ONCE, count))
            target.stage_many(
                (
                    f"lake/part={row // 1000:04d}/{row % 1000:03d}.parquet",
                    Entry(f"https://example.org/{row:08d}", 1000, f"{row:032x}", 1_700_000_000_000),
                )
                for row in rows
            )


def main() -> None:
    """Run one workload."""
    workload, folder, scale = sys.argv[1], Path(sys.argv[2]), float(sys.argv[3])
    count, size_bytes = int(1_000_000 * scale), int(scale * (2 << 30))
    if workload == "stage":
        stage(folder, count)
        return
    if workload == "commit_1m":
        subprocess.run([sys.executable, __file__, "stage", str(folder / "commit"), sys.argv[3]], check=True)
        with repo.open_all(str(folder / "commit"), options=QUIET) as home:
            made = home.repository("memory").branch("main").commit("all")
            assert made.commit.metarange.entry_count == count
        print(harness.rss_peak_mb(), count)
        return
    with repo.open_all(str(folder / "objects"), options=QUIET) as home:
        if workload == "upload_2gb":
            home.create("objects").branch("main").put("large", chunks(size_bytes))
        else:
            seen = 0
            with home.repository("objects").branch("main").open("large") as body:
                while piece := body.read(CHUNK_BYTES):
                    seen += len(piece)
            assert seen == size_bytes // CHUNK_BYTES * CHUNK_BYTES
    print(harness.rss_peak_mb(), size_bytes)


if __name__ == "__main__":
    main()
