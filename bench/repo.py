"""The repository benchmark: ``python bench/repo.py [--scale 1] [--only stage,read] [--samples 5]``.

At scale 1 the base commit has a million objects (the entries are staged without bytes, but for the server's). By group:
stage: stage (one entry, durable), stage_many; read: get_0_sealed, get_10_sealed, get_100_sealed, get_compacted (peer
none-sealed), list (entries a second of a whole listing), list_tombstones_N and list_after_compaction (peers one-object,
uncompacted); commit: commit_10k, commit_1m (peer sst-write: the same sorted rows through the engine's file writer),
commit_100 and the ranges that it reads and writes; diff: diff_0.1pct, merge_0.1pct (peer: the same with everything
changed); memory: commit_1m_memory, upload_2gb_memory, download_2gb_memory, each in a process of its own; server:
server_1, server_16 (stat and 4 KiB upload by 1 and 16 clients), and both while a listing of the base goes on.
"""

from __future__ import annotations

import argparse
import json
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from lakebed.repo.transport.transport import context_of

sys.path.insert(0, str(Path(__file__).parent))

import numpy as np
import pyarrow as pa

import harness
from harness import Result, alternate
from lakebed import repo
from lakebed.lsm.cache import BlockCache
from lakebed.lsm.file_id import mint_file_id
from lakebed.lsm.file_writer import FileOptions
from lakebed.lsm.files import FileStore
from lakebed.lsm.model import ROW_SCHEMA
from lakebed.objects import open_store
from lakebed.repo import Branch, Entry, Repositories, Repository, RepositoryOptions
from lakebed.repo.model.entry import encode_entries
from lakebed.repo.records.context import RepositoryContext
from lakebed.runtime import Environment

WORKLOADS = ("stage", "read", "commit", "diff", "memory", "server")
COOLED = RepositoryOptions(background=False, sealed_tokens_max=1000)
"""No compaction but the one that is measured."""


class Bench:
    """One base repository, from which every workload takes a branch of its own."""

    def __init__(self, folder: Path, *, scale: float, sample_count: int) -> None:
        self.folder, self.scale, self.sample_count = folder, scale, sample_count
        self.count = max(10_000, int(1_000_000 * scale))
        self.made = 0
        self.paths = paths_of(self.count)
        self._base: tuple[Repositories, Repository] | None = None

    # ---- what workloads begin with

    @property
    def base(self) -> Repository:
        """A repository whose branch main has `count` objects in one commit."""
        if self._base is None:
            home = self.new_home()
            made = home.create("base")
            made.branch("main").stage_many(zip(self.paths, entries_of(self.count), strict=True))
            made.branch("main").commit("base")
            self._base = home, made
        return self._base[1]

    def new_home(self) -> Repositories:
        """An empty set of repositories in a folder."""
        self.made += 1
        return repo.open_all(str(self.folder / f"lake{self.made}"), options=COOLED)

    def branch(self, source: str = "main") -> Branch:
        """A fresh branch of the base."""
        self.made += 1
        return self.base.create_branch(f"b{self.made}", version=source)

    def close(self) -> None:
        """Close what is open."""
        if self._base is not None:
            self._base[0].close()

    # ---- workloads

    def stage(self) -> list[Result]:
        """Microseconds an entry: one durable write at a time, and all in one call."""
        few = 200
        many = min(self.count, 200_000)
        entries = entries_of(many)
        names = [f"new/{number:08d}" for number in range(many)]

        def one_by_one() -> float:
            target = self.branch()
            return (
                timed(lambda: [target.stage_many([pair]) for pair in zip(names[:few], entries[:few], strict=True)])
                / few
                * 1e6
            )

        def at_once() -> float:
            target = self.branch()
            return timed(lambda: target.stage_many(zip(names, entries, strict=True))) / many * 1e6

        taken = {"sample_count": self.sample_count, "unit": "us an entry", "durable": True}
        return [
            alternate("stage", {"lakebed": one_by_one}, rows=few, **taken),
            alternate("stage_many", {"lakebed": at_once}, rows=many, target="<= 5 us", **taken),
        ]

    def read(self) -> list[Result]:
        """Microseconds a point read; seconds a listing."""
        return [*self._gets(), self._listing(), *self._tombstones()]

    def _gets(self) -> list[Result]:
        calls = 2_000
        wanted = [self.paths[number] for number in np.random.default_rng(1).integers(0, self.count, calls)]
        targets = {count: self._sealed(count) for count in (0, 10, 100)}
        compacted = self._sealed(100)
        compacted.compact(force=True)

        def gets(target: Branch) -> Callable[[], float]:
            return lambda: timed(lambda: [target.stat(path) for path in wanted]) / calls * 1e6

        none = gets(targets[0])
        taken = {"sample_count": self.sample_count, "unit": "us", "rows": calls}
        results = [
            alternate(f"get_{count}_sealed", {"lakebed": gets(target), "none-sealed": none}, **taken)
            for count, target in targets.items()
        ]
        results.append(
            alternate(
                "get_100_compacted",
                {"lakebed": gets(compacted), "none-sealed": none},
                target="none-sealed >= 0.91x",
                **taken,
            )
        )
        return results

    def _sealed(self, count: int) -> Branch:
        """A branch with so many sealed tokens of a hundred entries each."""
        target = self.branch()
        for number in range(count):
            names = [f"sealed/{number:03d}/{row:03d}" for row in range(100)]
            target.stage_many(zip(names, entries_of(100), strict=True))
            target.delete_prefix(f"nothing/{number}")  # seals what was staged
        return target

    def _listing(self) -> Result:
        target = self.branch()

        def whole() -> float:
            seen = 0

            def run() -> None:
                nonlocal seen
                seen = sum(1 for _ in target.list())

            seconds = timed(run)
            assert seen == self.count, seen
            return seconds / self.count * 1e6

        taken = {"sample_count": self.sample_count, "unit": "us an entry", "rows": self.count}
        return alternate("list", {"lakebed": whole}, target="<= 3.3 us", **taken)

    def _tombstones(self) -> list[Result]:
        single = self.base.create_branch("single", version="main")
        single.delete_prefix("")
        single.stage_many([(self.paths[-1], entries_of(1)[0])])
        single.commit("one object")
        results = []

        def list_all(target: Branch, rounds: int = 1) -> float:
            seconds = timed(lambda: [list(target.list()) for _ in range(rounds)])
            assert [one.path for one in target.list()] == self.paths[-1:]
            return seconds / rounds * 1e3

        for count in sorted({min(count, self.count - 1) for count in (1_000, 10_000, 100_000, self.count)}):
            target = self.branch()
            self._delete(target, count)

            def first(target: Branch = target, count: int = count) -> float:
                found: list[Any] = []
                seconds = timed(lambda: found.extend(target.list(amount=1)))
                assert [one.path for one in found] == [self.paths[count]]
                return seconds * 1e3

            results.append(
                alternate(
                    f"list_tombstones_{count}",
                    {"lakebed": first, "one-object": lambda: list_all(single, 20)},
                    unit="ms",
                    sample_count=self.sample_count,
                    rows=count,
                )
            )
        full = self.branch()
        self._delete(full, self.count - 1)
        uncompacted = [list_all(full) for _ in range(self.sample_count)]
        full.compact(force=True)
        results.append(
            alternate(
                "list_after_compaction",
                {
                    "lakebed": lambda: list_all(full, 20),
                    "one-object": lambda: list_all(single, 20),
                    "uncompacted": lambda: uncompacted[0],
                },
                unit="ms",
                sample_count=self.sample_count,
                rows=self.count,
                target="one-object >= 0.83x, uncompacted >= 100x",
            )
        )
        return results

    def _delete(self, target: Branch, count: int) -> None:
        """One tombstone for each of the first paths."""
        for first in range(0, count, 100_000):
            target.delete_many(self.paths[first : min(first + 100_000, count)])

    def commit(self) -> list[Result]:
        """Seconds of a commit of n staged entries, against writing n sorted rows with the engine alone."""
        results = [self._commit(name, count) for name, count in (("commit_10k", 10_000), ("commit_1m", self.count))]
        results.append(self._commit_scattered())
        return results

    def _commit(self, workload: str, count: int) -> Result:
        names, entries = self.paths[:count], entries_of(count)
        rows = rows_of(names, entries)

        def ours() -> float:
            with self.new_home() as home:
                target = home.create("commit").branch("main")
                pairs = list(zip(names, entries, strict=True))
                target.stage_many(pairs[:-1])
                target.stage_many(pairs[-1:])  # returns when what was staged before it has found its place in files
                return timed(lambda: target.commit("all"))

        def engine() -> float:
            self.made += 1
            store = open_store(str(self.folder / f"sst{self.made}"), create=True)
            environment = Environment()
            files = FileStore(
                store,
                path_of=lambda file_id: f"sst/{file_id}",
                cache=BlockCache(1 << 20, runtime=environment.runtime),
                options=FileOptions(),
                environment=environment,
            )

            def write() -> None:
                writer = files.writer(mint_file_id(environment=environment))
                for first in range(0, count, 65_536):
                    writer.write(rows.slice(first, 65_536))
                    if writer.size_bytes >= 32 << 20:
                        writer.finish()
                        writer = files.writer(mint_file_id(environment=environment))
                if writer.row_count:
                    writer.finish()

            return timed(write)

        return alternate(
            workload,
            {"lakebed": ours, "sst-write": engine},
            sample_count=self.sample_count,
            rows=count,
            durable=True,
            target="sst-write >= 0.33x",
        )

    def _commit_scattered(self) -> Result:
        """A hundred entries all over the base; what it reads and writes is part of the result."""
        chosen = self.paths[:: self.count // 100][:100]
        counted: dict[str, int] = {}

        def once() -> float:
            target = self.branch()
            target.stage_many(zip(chosen, entries_of(100, seed=7), strict=True))
            with home_of(self.base).committed.count() as counts:
                seconds = timed(lambda: target.commit("scattered"))
            counted.update(ranges_read=counts.ranges_read, ranges_written=counts.ranges_written)
            assert max(counted.values()) <= 101, counted
            return seconds

        result = alternate(
            "commit_100_scattered",
            {"lakebed": once},
            sample_count=self.sample_count,
            rows=self.count,
            durable=True,
            target="<= 101 ranges read, <= 101 written",
        )
        result.requests = counted
        return result

    def diff(self) -> list[Result]:
        """Seconds of a difference and a merge of 0.1 % of the base, changed in ten places; all changed is the peer."""
        few = self._changed(
            [self.count * part // 10 + row for part in range(10) for row in range(self.count // 10_000)]
        )
        all_of_it = self._changed(list(range(self.count)))
        counted: dict[str, dict[str, int]] = {}

        def differ(other: Branch, expected: int, name: str) -> float:
            def run() -> None:
                assert sum(1 for _ in self.base.diff("main", other.name, kind="two_dot")) == expected

            with home_of(self.base).committed.count() as counts:
                seconds = timed(run)
            counted[name] = {"ranges_read": counts.ranges_read, "ranges_written": counts.ranges_written}
            return seconds

        def merge(other: Branch, name: str) -> float:
            target = self.branch()
            target.stage_many([("zz/own", entries_of(1)[0])])
            target.commit("own change")
            with home_of(self.base).committed.count() as counts:
                seconds = timed(lambda: target.merge(other.name))
            counted[name] = {"ranges_read": counts.ranges_read, "ranges_written": counts.ranges_written}
            return seconds

        taken: dict[str, Any] = {"sample_count": self.sample_count, "rows": self.count}
        few_count = 10 * (self.count // 10_000)
        results = [
            alternate(
                "diff_0.1pct",
                {
                    "lakebed": lambda: differ(few, few_count, "diff"),
                    "everything-changed": lambda: differ(all_of_it, self.count, "diff all"),
                },
                **taken,
            ),
            alternate(
                "merge_0.1pct",
                {"lakebed": lambda: merge(few, "merge"), "everything-changed": lambda: merge(all_of_it, "merge all")},
                durable=True,
                **taken,
            ),
        ]
        results[0].requests, results[1].requests = counted["diff"], counted["merge"]
        return results

    def _changed(self, rows: list[int]) -> Branch:
        target = self.branch()
        target.stage_many(zip([self.paths[row] for row in rows], entries_of(len(rows), seed=3), strict=True))
        target.commit("changed")
        return target

    def memory(self) -> list[Result]:
        """Peak megabytes, each in a process of its own."""
        script = Path(__file__).parent / "repo_memory.py"
        results = []
        for workload, target in (("commit_1m", 500), ("upload_2gb", 500), ("download_2gb", 500)):
            done = subprocess.run(
                [sys.executable, str(script), workload, str(self.folder / "memory"), str(self.scale)],
                capture_output=True,
                text=True,
                check=True,
            )
            figure, rows = (float(part) for part in done.stdout.split())
            results.append(
                Result(
                    f"{workload}_memory",
                    "MB",
                    figure,
                    {},
                    {},
                    {"lakebed": [figure]},
                    rows=int(rows),
                    rss_mb=figure,
                    target=f"<= {target}",
                )
            )
            print(harness.row_of(results[-1]), flush=True)
        return results

    def server(self) -> list[Result]:
        """Requests a second, and the slowest hundredth, of a server in a process of its own."""
        script = Path(__file__).parent / "repo_server.py"
        done = subprocess.run(
            [sys.executable, str(script), str(self.folder / "served"), str(self.scale), str(self.sample_count)],
            stdout=subprocess.PIPE,
            text=True,
            check=True,
        )
        results = []
        for line in done.stdout.splitlines():
            found = json.loads(line)
            samples = found["samples"]
            middle = sorted(samples)[len(samples) // 2]
            results.append(
                Result(
                    found["workload"],
                    found["unit"],
                    middle,
                    {},
                    {},
                    {"lakebed": samples},
                    rows=found["requests"],
                    durable=found["durable"],
                    target=found["target"],
                )
            )
            print(harness.row_of(results[-1]), flush=True)
        return results


# ---- inputs


def paths_of(count: int) -> list[str]:
    """Sorted paths as of a lake: a hundred objects a folder."""
    return [
        f"lake/table-{row // 100_000:02d}/part={row // 100 % 1000:03d}/{row % 100:02d}.parquet" for row in range(count)
    ]


def entries_of(count: int, *, seed: int = 0) -> list[Entry]:
    """Entries of objects that lie elsewhere: no bytes are needed."""
    return [
        Entry(f"https://example.org/{seed}/{row:08d}", 1000 + row % 997, f"{seed:08x}{row:024x}", 1_700_000_000_000)
        for row in range(count)
    ]


def rows_of(paths: list[str], entries: list[Entry]) -> pa.RecordBatch:
    """The same as rows of the engine."""
    count = len(paths)
    columns = [
        pa.array([path.encode() for path in paths], pa.binary()),
        pa.array(np.zeros(count, np.uint64)),
        pa.array(np.zeros(count, np.uint8)),
        pa.array(encode_entries(entries), pa.binary()),
        pa.nulls(count, pa.int64()),
    ]
    return pa.RecordBatch.from_arrays(columns, schema=ROW_SCHEMA)


def home_of(repository: Repository) -> RepositoryContext:
    """The repository's context, for its counts of ranges."""
    return context_of(repository)


def timed(run: Callable[[], object]) -> float:
    """Seconds of one call."""
    start = time.perf_counter()
    run()
    return time.perf_counter() - start


def main() -> None:
    """Run the chosen workloads and write the results."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--scale", type=float, default=1.0, help="1 is a million objects; 0.1 a quick look")
    parser.add_argument("--samples", type=int, default=harness.SAMPLE_COUNT_MIN)
    parser.add_argument("--only", default=",".join(WORKLOADS), help="comma-separated groups of workloads")
    parser.add_argument("--dry", action="store_true", help="print, but leave the committed results alone")
    chosen = parser.parse_args()
    unknown = [name for name in chosen.only.split(",") if name not in WORKLOADS]
    if unknown:
        parser.error(f"no workload {unknown[0]!r}; there are {', '.join(WORKLOADS)}")
    folder = Path(tempfile.mkdtemp(prefix="lakebed-bench-"))
    bench = Bench(folder, scale=chosen.scale, sample_count=chosen.samples)
    results: list[Result] = []
    try:
        for name in chosen.only.split(","):
            results += getattr(bench, name)()
    finally:
        bench.close()
        shutil.rmtree(folder, ignore_errors=True)
    versions = harness.versions_of("lakebed", "pyarrow", "starlette", "uvicorn")
    if not chosen.dry:
        print(f"written: {harness.write_results('repo', results, scale=chosen.scale, versions=versions)}")


if __name__ == "__main__":
    main()
