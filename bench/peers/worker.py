"""The peers' side of the table benchmark, run by the interpreter of the peers' environment.

Reads ``{"peer", "workload"}`` lines, answers ``{"figure"}`` lines. Each workload prepares what it needs outside the
measured part and keeps it for the next sample.
"""

from __future__ import annotations

import contextlib
import gc
import json
import shutil
import sys
import time
from importlib import metadata
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

import deltalake
from pypaimon import CatalogFactory, Schema

from inputs import SCHEMA, rows_of

FOLDER = Path(sys.argv[1])
SCALE = float(sys.argv[2])
ROWS = max(1000, int(1_000_000 * SCALE))
NATIVE = {f"{verb}.enabled": "true" for verb in ("write.native", "commit.native", "read.native", "scan.native-plan")}
PK = {"bucket": "2"}
SMALL_COUNT = 30


class Paimon:
    """pypaimon, by its default path or by its native one."""

    def __init__(self, name: str, options: dict[str, str]) -> None:
        self.name, self.options, self.made = name, options, 0
        self.catalog = CatalogFactory.create({"warehouse": str(FOLDER / name)})
        self.catalog.create_database("d", True)
        self.ready: dict[str, Any] = {}

    def table(self, *, keys: list[str] | None = None) -> Any:
        """A new, empty table."""
        self.made += 1
        name = f"d.t{self.made}"
        options = self.options | (PK if keys else {})
        self.catalog.create_table(name, Schema.from_pyarrow_schema(SCHEMA, primary_keys=keys, options=options), False)
        return self.catalog.get_table(name)

    def write(self, table: Any, rows: Any) -> float:
        """Write and commit; seconds."""
        start = time.perf_counter()
        builder = table.new_batch_write_builder()
        writer, commit = builder.new_write(), builder.new_commit()
        writer.write_arrow(rows)
        commit.commit(writer.prepare_commit())
        writer.close()
        commit.close()
        return time.perf_counter() - start

    def read(self, table: Any, expected: int) -> float:
        """Read everything into Arrow; seconds."""
        start = time.perf_counter()
        builder = table.new_read_builder()
        got = builder.new_read().to_arrow(builder.new_scan().plan().splits())
        seconds = time.perf_counter() - start
        assert got.num_rows == expected, (got.num_rows, expected)
        return seconds

    def run(self, workload: str) -> float:
        """One sample."""
        rows = base_rows()
        if workload == "append_write":
            return self.write(self.table(), rows)
        if workload == "pk_write":
            return self.write(self.table(keys=["id"]), rows)
        if workload == "upsert":
            if workload not in self.ready:
                self.ready[workload] = self.table(keys=["id"])
                self.write(self.ready[workload], rows)
            return self.write(self.ready[workload], update_rows())
        if workload in ("append_read", "merge_read"):
            if workload not in self.ready:
                table = self.ready[workload] = self.table(keys=["id"] if workload == "merge_read" else None)
                self.write(table, rows)
                if workload == "merge_read":
                    self.write(table, update_rows())
            return self.read(self.ready[workload], ROWS)
        small = rows_of(10)
        if workload == "commit":
            table = self.table()
            return sum(self.write(table, small) for _ in range(SMALL_COUNT)) / SMALL_COUNT * 1000
        table = self.table()
        self.write(table, small)
        start = time.perf_counter()
        for number in range(SMALL_COUNT):
            table.create_tag(f"t{number}")
        created = time.perf_counter()
        for number in range(SMALL_COUNT):
            table.delete_tag(f"t{number}")
        deleted = time.perf_counter()
        return (created - start if workload == "tag_create" else deleted - created) / SMALL_COUNT * 1000


class Delta:
    """delta-rs."""

    def __init__(self) -> None:
        self.made, self.ready = 0, ""

    def write(self, rows: Any) -> tuple[float, str]:
        """Write a new table; seconds and its folder."""
        self.made += 1
        folder = str(FOLDER / f"delta{self.made}")
        start = time.perf_counter()
        deltalake.write_deltalake(folder, rows)
        return time.perf_counter() - start, folder

    def run(self, workload: str) -> float:
        """One sample."""
        if workload == "append_write":
            seconds, folder = self.write(base_rows())
            shutil.rmtree(folder)
            return seconds
        if workload == "append_read":
            if not self.ready:
                _, self.ready = self.write(base_rows())
            start = time.perf_counter()
            got = deltalake.DeltaTable(self.ready).to_pyarrow_table()
            seconds = time.perf_counter() - start
            assert got.num_rows == ROWS
            return seconds
        small = rows_of(10)
        self.made += 1
        folder = str(FOLDER / f"delta{self.made}")
        deltalake.write_deltalake(folder, small)
        start = time.perf_counter()
        for _ in range(SMALL_COUNT):
            deltalake.write_deltalake(folder, small, mode="append")
        return (time.perf_counter() - start) / SMALL_COUNT * 1000


_made: dict[str, Any] = {}


def base_rows() -> Any:
    """The base rows, made once."""
    if "base" not in _made:
        _made["base"] = rows_of(ROWS)
    return _made["base"]


def update_rows() -> Any:
    """A tenth as many rows, overlapping the second half of the base."""
    if "update" not in _made:
        _made["update"] = rows_of(ROWS // 10, first=ROWS // 2, seed=2)
    return _made["update"]


def main() -> None:
    """Answer until standard input ends; the peers' own prints go to standard error."""
    answers = sys.stdout
    packages = ("pypaimon", "pypaimon-rust", "deltalake", "pyarrow")
    print(
        json.dumps(
            {"versions": {name if name != "pyarrow" else "peers' pyarrow": metadata.version(name) for name in packages}}
        ),
        file=answers,
        flush=True,
    )
    peers = {"pypaimon": Paimon("default", {}), "pypaimon-native": Paimon("native", NATIVE), "deltalake": Delta()}
    for line in sys.stdin:
        request = json.loads(line)
        gc.collect()
        with contextlib.redirect_stdout(sys.stderr):
            figure = peers[request["peer"]].run(request["workload"])
        print(json.dumps({"figure": figure}), file=answers, flush=True)


if __name__ == "__main__":
    main()
