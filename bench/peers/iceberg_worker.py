"""pyiceberg's side of the table benchmark, in a process of its own with the benchmark's interpreter and Arrow.

Reads ``{"peer", "workload"}`` lines, answers ``{"figure"}`` lines, as `worker`. The catalog is a local SQLite file.
"""

from __future__ import annotations

import contextlib
import gc
import itertools
import json
import sys
import time
from importlib import metadata
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.table import Table

from inputs import SCHEMA, rows_of

FOLDER = Path(sys.argv[1]) / "iceberg"
ROWS = max(1000, int(1_000_000 * float(sys.argv[2])))
SMALL_COUNT = 30


class Iceberg:
    """A catalog and its tables."""

    def __init__(self) -> None:
        FOLDER.mkdir()
        self.catalog = SqlCatalog("bench", uri=f"sqlite:///{FOLDER}/catalog.db", warehouse=f"file://{FOLDER}")
        self.catalog.create_namespace("d")
        self.numbers = itertools.count()
        self.rows = rows_of(ROWS)
        self.written: Table | None = None

    def table(self) -> Table:
        """A new, empty table."""
        return self.catalog.create_table(f"d.t{next(self.numbers)}", SCHEMA)

    def run(self, workload: str) -> float:
        """One sample."""
        if workload == "append_write":
            table = self.table()
            start = time.perf_counter()
            table.append(self.rows)
            return time.perf_counter() - start
        if workload == "append_read":
            if self.written is None:
                self.written = self.table()
                self.written.append(self.rows)
            start = time.perf_counter()
            got = self.catalog.load_table(self.written.name()).scan().to_arrow()
            seconds = time.perf_counter() - start
            assert got.num_rows == ROWS, (got.num_rows, ROWS)
            return seconds
        table, small = self.table(), rows_of(10)
        start = time.perf_counter()
        for _ in range(SMALL_COUNT):
            table.append(small)
        return (time.perf_counter() - start) / SMALL_COUNT * 1000


def main() -> None:
    """Answer until standard input ends; the peer's own prints go to standard error."""
    answers = sys.stdout
    print(json.dumps({"versions": {"pyiceberg": metadata.version("pyiceberg")}}), file=answers, flush=True)
    peer = Iceberg()
    for line in sys.stdin:
        request = json.loads(line)
        gc.collect()
        with contextlib.redirect_stdout(sys.stderr):
            figure = peer.run(request["workload"])
        print(json.dumps({"figure": figure}), file=answers, flush=True)


if __name__ == "__main__":
    main()
