"""Workloads of the table benchmark on planning and on many tags: what grows with files, commits and tags.

Rows, at scale 1: plan_100k_cold and _warm (splits of a table of 100,000 files, in seconds; cold: nothing cached, a new
handle), plan_1200_commits_cold and _warm (after 1,200 commits of one file), tags_list_1000_cold and _warm,
tag_delete_1000 against tag_delete_10, both for a version whose snapshot is there and for one whose snapshot expired;
pins_1000_live, pins_1000_expired and pins_1000_expired_cold: `lake.pins()` of a table with 1,000 tags of versions of
their own on 2,000 snapshots, which are there or have expired.

Data files are described in manifests only: planning never opens them.
"""

from __future__ import annotations

import gc
import os
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Protocol

import pyarrow as pa

import lakebed
from harness import Result, alternate
from inputs import rows_of
from lakebed.objects import open_store
from lakebed.objects.port import RequestCounts
from lakebed.table.branch.manifest_reader import PROCESS_CACHE
from lakebed.table.branch.tag_files import TAG_CACHE
from lakebed.table.codec.manifest import files_of
from lakebed.table.model.model import BucketChange, DataFile
from lakebed.table.rows.rows import commit_changes
from lakebed.table.table import Table

ROWS_PER_FILE_MAX = 1_000
FILES_PER_COMMIT = 1000
SETTLED_S = 60
"""Age that tag files are given, so that a listing may remember them."""


class Maker(Protocol):
    """What of the benchmark is used here."""

    folder: Path
    scale: float
    sample_count: int
    made: int


def timed(run: Callable[[], object]) -> float:
    """Seconds of one call, with the collector run before."""
    gc.collect()
    start = time.perf_counter()
    run()
    return time.perf_counter() - start


def new_table(bench: Maker, **shape: object) -> Table:
    """A new, empty table with partitions by ``p``, or without."""
    bench.made += 1
    store = open_store(str(bench.folder / f"t{bench.made}"), durable=False)
    rows = rows_of(10)
    schema = rows.schema.append(pa.field("p", pa.int32(), nullable=False))
    return Table.create(store, name=f"t{bench.made}", schema=schema, **shape)  # type: ignore[arg-type]


def some_rows(partition_count: int) -> pa.Table:
    """Ten rows a partition."""
    rows = rows_of(10 * partition_count)
    return rows.append_column("p", pa.array([number % partition_count for number in range(rows.num_rows)], pa.int32()))


def reopened(table: Table) -> Table:
    """The same table behind a new handle."""
    return Table.open(table.store, name=table.name)


def many_files(bench: Maker, file_count: int, *, keyed: bool) -> Table:
    """A table of so many files in 10 partitions; see `describe_files`."""
    shape: dict[str, object] = {"partition_keys": ("p",)}
    if keyed:
        shape |= {"primary_keys": ("p", "id"), "options": {"bucket": "10"}}
    table = new_table(bench, **shape)
    describe_files(table, file_count)
    return table


def describe_files(table: Table, file_count: int) -> None:
    """Commit so many files to an empty table, 1,000 files a commit, each described like a file that was written."""
    (table.upsert if table.schema.primary_keys else table.append)(some_rows(10))
    newest = table.latest()
    assert newest is not None
    entries = table.context.manifests.live_entries(newest)
    places = list(zip(*(entries[name].to_pylist() for name in ("partition", "bucket", "total_buckets")), strict=True))
    files = files_of(entries)
    for commit in range(file_count // FILES_PER_COMMIT):
        changes: dict[tuple[bytes, int, int], list[DataFile]] = {}
        for number in range(FILES_PER_COMMIT):
            which = number % len(files)
            name = f"data-{commit:08x}-{number:032x}-0.parquet"
            model, later = files[which], (commit * FILES_PER_COMMIT + number + 1) * ROWS_PER_FILE_MAX
            file = replace(
                model,
                file_name=name,
                commit_snapshot=None,
                # Above those that are there: a commit writes rows anew that others have overtaken, and these are none.
                min_sequence_number=model.min_sequence_number + later,
                max_sequence_number=model.max_sequence_number + later,
            )
            changes.setdefault(places[which], []).append(file)
        commit_changes(table.context, [BucketChange(*place, added=tuple(found)) for place, found in changes.items()])


def cold_and_warm(bench: Maker, name: str, table: Table, *, targets: tuple[str, str], unit: str) -> list[Result]:
    """Planning with nothing cached and with everything cached, through new handles; cold is the peer of warm."""
    factor = {"s": 1.0, "ms": 1000.0}[unit]

    def plan() -> float:
        return timed(lambda: reopened(table).scan().splits()) * factor

    def cold() -> float:
        PROCESS_CACHE.clear()
        return plan()

    def warm() -> float:
        reopened(table).scan().splits()
        return plan()

    with table.store.count() as first:
        cold()
    with table.store.count() as second:
        plan()
    file_count = sum(len(split.files) for split in reopened(table).scan().splits())
    results = []
    for kind, ours, peers, counts, target in (
        ("cold", cold, {}, first, targets[0]),
        ("warm", warm, {f"{name}_cold": cold}, second, targets[1]),
    ):
        results.append(
            alternate(
                f"{name}_{kind}",
                {"lakebed": ours, **peers},
                unit=unit,
                sample_count=bench.sample_count,
                rows=file_count,
                requests=requests_of(counts),
                bytes={"read": counts.bytes_read},
                cache_bytes=PROCESS_CACHE.size_bytes,
                target=target,
            )
        )
    return results


def requests_of(counts: RequestCounts) -> dict[str, int]:
    """Requests by kind."""
    return {kind: getattr(counts, kind) for kind in ("get", "list", "put", "delete", "head")}


def plan_100k(bench: Maker) -> list[Result]:
    """Plans of 100,000 files: an append table, and a primary-key table whose files overlap."""
    file_count = max(FILES_PER_COMMIT, int(100_000 * bench.scale))
    results = []
    for name, keyed in (("plan_100k", False), ("plan_100k_keyed", True)):
        table = many_files(bench, file_count, keyed=keyed)
        results += cold_and_warm(bench, name, table, targets=("<= 2 s", "<= 0.2 s"), unit="s")
    return results


def plan_1200_commits(bench: Maker) -> list[Result]:
    """Plans after 1,200 small commits."""
    table = new_table(bench)
    for _ in range(max(60, int(1200 * bench.scale))):
        table.append(some_rows(1))
    return cold_and_warm(bench, "plan_1200_commits", table, targets=("", "much less than cold"), unit="ms")


def tagged(bench: Maker, tag_count: int, *, expired: bool) -> Table:
    """A table with so many tags: of its newest snapshot, or each of a version of its own that has expired."""
    table = new_table(bench)
    table.append(some_rows(1))
    for number in range(tag_count):
        if expired:
            (table.overwrite if number % 2 else table.append)(some_rows(1))
        table.create_tag(f"t{number:04d}")
    if expired:
        table.expire(retain_max=1, retain_min=1, max_deletes=tag_count)
    folder = Path(table.url.removeprefix("file://")) / "tag"
    settled_s = time.time() - SETTLED_S
    for path in folder.iterdir():
        os.utime(path, (settled_s, settled_s))
    return table


def tags_1000(bench: Maker) -> list[Result]:
    """Listing 1,000 tags; deleting one of 1,000 against one of 10."""
    count = max(20, int(1000 * bench.scale))
    tables = {number: tagged(bench, number, expired=False) for number in (10, count)}
    listed = tables[count]

    def listing(*, cold: bool) -> float:
        table = reopened(listed)
        if cold:
            TAG_CACHE.clear()
        return timed(table.tags) * 1000

    results = []
    for kind in ("cold", "warm"):
        table = reopened(listed)
        if kind == "cold":
            TAG_CACHE.clear()
        with listed.store.count() as counts:
            assert len(table.tags()) == count
        results.append(
            alternate(
                f"tags_list_1000_{kind}",
                {"lakebed": lambda kind=kind: listing(cold=kind == "cold")},  # type: ignore[misc]
                unit="ms",
                sample_count=bench.sample_count,
                rows=count,
                requests=requests_of(counts),
                target="<= 20 ms",
            )
        )
    results += deletions(bench, "tag_delete", tables, made_anew=True)
    expired = {number: tagged(bench, number, expired=True) for number in (10, count)}
    return results + deletions(bench, "tag_delete_expired", expired, made_anew=False)


def pins_1000(bench: Maker) -> list[Result]:
    """The pins of a lake, with the bytes that each alone holds."""
    count = max(20, int(1000 * bench.scale))
    bench.made += 1
    lake = lakebed.open(bench.folder / f"lake{bench.made}")
    table = lake.create_table("t", rows_of(1).schema)
    for number in range(count):
        for _ in range(2):
            (table.overwrite if number % 2 else table.append)(some_rows(1).select(rows_of(1).schema.names))
        table.create_tag(f"t{number:04d}")
    table.append(rows_of(1))

    def pins(*, cold: bool) -> float:
        if cold:
            PROCESS_CACHE.clear()
            TAG_CACHE.clear()
        return timed(lambda: lakebed.open(lake.url).pins())

    results = []
    for kind in ("live", "expired", "expired_cold"):
        if kind == "expired":
            table.expire(retain_max=1, retain_min=1, older_than_ms=2**60, max_deletes=4 * count)
        is_held = [pin.bytes_alone for pin in lake.pins()]
        assert (len(is_held), min(is_held) > 0) == (count, kind != "live")
        results.append(
            alternate(
                f"pins_1000_{kind}",
                {"lakebed": lambda kind=kind: pins(cold=kind == "expired_cold")},  # type: ignore[misc]
                sample_count=bench.sample_count,
                rows=count,
                target="<= 0.5 s",
            )
        )
    return results


def deletions(bench: Maker, name: str, tables: dict[int, Table], *, made_anew: bool) -> list[Result]:
    """Deleting one tag among few and among many, in turn."""
    few, many = sorted(tables)
    victims = {count: iter(range(1, count)) for count in tables}

    def delete(count: int) -> float:
        table = tables[count]
        if made_anew:
            table.create_tag("x")
            victim = "x"
        else:
            victim = f"t{next(victims[count]):04d}"
        other = reopened(table)
        return timed(lambda: other.delete_tag(victim)) * 1000

    counted = {}
    for count, table in tables.items():
        delete(count)
        with table.store.count() as counts:
            delete(count)
        counted[count] = requests_of(counts)
    peer = f"{name}_10"
    sample_count = min(bench.sample_count, 5)
    measures: dict[str, Callable[[], float]] = {"lakebed": lambda: delete(many), peer: lambda: delete(few)}
    both = alternate(
        f"{name}_1000",
        measures,
        unit="ms",
        sample_count=sample_count,
        rows=many,
        requests=counted[many],
        target="<= 1.5x of among 10 (ratio >= 0.67)",
    )
    one = Result(peer, "ms", both.peers[peer], {}, {}, {"lakebed": both.samples[peer]}, rows=few, requests=counted[few])
    return [one, both]
