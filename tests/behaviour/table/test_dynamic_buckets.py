"""Primary-key tables with dynamic buckets (bucket = -1). A dictionary by key is the judge of the rows."""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import lakebed
from lakebed import Table
from lakebed.errors import Conflict, InvalidRequest
from lakebed.table.branch.context import TableBranch
from lakebed.table.files.dynamic_bucket import HashIndex
from lakebed.table.rows import rows as rows_module
from lakebed.table.rows.rows import commit_changes, new_writer
from lakebed.table.write.write_settings import check_writable

SCHEMA = pa.schema(
    [pa.field("k", pa.int64(), nullable=False), pa.field("p", pa.string(), nullable=False), ("v", pa.int64())]
)


def rows(keys: Any, *, v: int = 0, p: str | None = None) -> pa.Table:
    """Rows of these keys, in a given partition or in "a" and "b" by turns."""
    numbers = list(keys)
    parts = [p or "ab"[k % 2] for k in numbers]
    return pa.table({"k": numbers, "p": parts, "v": [v] * len(numbers)}, SCHEMA)


@pytest.fixture
def make(tmp_path: Path) -> Callable[..., Table]:
    """A table of dynamic buckets that hold ten keys each."""

    def made(name: str = "t", *, partitioned: bool = True, **options: str) -> Table:
        lake = lakebed.open(tmp_path / "lake")
        choice = {"bucket": "-1", "dynamic-bucket.target-row-num": "10"} | {
            key.replace("__", ".").replace("_", "-"): value for key, value in options.items()
        }
        keys = ["k", "p"] if partitioned else ["k"]
        return lake.create_table(
            name, SCHEMA, primary_keys=keys, partition_keys=["p"] if partitioned else [], options=choice
        )

    return made


def contents(table: Table) -> dict[tuple[int, str], int]:
    """The table as a dictionary; a key that occurs twice is an error."""
    result: dict[tuple[int, str], int] = {}
    for row in table.read().to_pylist():
        assert (row["k"], row["p"]) not in result, f"{row} twice"
        result[row["k"], row["p"]] = row["v"]
    return result


def buckets_of(table: Table) -> dict[tuple[str, int], set[int]]:
    """Keys in each bucket's files, by partition and bucket, from the Parquet files themselves."""
    result: dict[tuple[str, int], set[int]] = defaultdict(set)
    for file in table.system("files").to_pylist():
        body = pq.ParquetFile(pa.BufferReader(bytes(table.store.get(file["file_path"])))).read(["k", "p"])
        for row in body.to_pylist():
            result[row["p"] if table.schema.partition_keys else "", file["bucket"]].add(row["k"])
    return result


def check_placement(table: Table) -> None:
    """Every key is in one bucket of its partition, and the index has exactly the hashes of each bucket's keys."""
    homes: dict[tuple[str, int], int] = {}
    placed = buckets_of(table)
    for (part, bucket), keys in placed.items():
        for key in keys:
            assert homes.setdefault((part, key), bucket) == bucket, f"key {key} of {part} in two buckets"
    newest = table.latest()
    assert newest is not None
    index = HashIndex(table.store, table.context.layout)
    entries = index.entries(newest.index_manifest)
    seen: dict[bytes, list[int]] = defaultdict(list)
    for entry in entries:
        seen[entry.partition].extend(index.hashes(entry).tolist())
    for hashes in seen.values():
        assert len(hashes) == len(set(hashes))
    assert sum(map(len, seen.values())) >= len(homes)


@pytest.mark.parametrize("partitioned", [True, False])
def test_writes_upserts_and_deletes(make: Callable[..., Table], partitioned: bool) -> None:
    """Keys keep their buckets over upserts, deletes, compactions and random programs; new ones fill up buckets."""
    table = make(partitioned=partitioned)
    part = None if partitioned else "a"
    model: dict[tuple[int, str], int] = {}
    chance = random.Random(7)
    for step in range(12):
        keys = sorted(chance.sample(range(120), 40))
        batch = rows(keys, v=step, p=part)
        if step % 4 == 3:
            table.delete(keys=batch.select(["k", "p"]))
            for row in batch.to_pylist():
                model.pop((row["k"], row["p"]), None)
        else:
            table.upsert(batch)
            model |= {(row["k"], row["p"]): step for row in batch.to_pylist()}
        if step % 5 == 4:
            table.compact(full=True)
        assert contents(table) == model
        check_placement(table)
    sizes = [len(keys) for keys in buckets_of(table).values()]
    assert len(sizes) >= len(model) // 10
    assert max(sizes) <= 10
    table.delete("v >= 0")
    assert contents(table) == {}
    table.upsert(rows(range(120), v=99, p=part))
    assert len(contents(table)) == 120
    check_placement(table)


def test_one_write_of_many_parts(make: Callable[..., Table]) -> None:
    """A reader's batches share one assignment, also when the buffer is flushed between them; the last row wins."""
    table = make(write_buffer_size="1 kb")

    def parts() -> Iterator[pa.RecordBatch]:
        for step in range(6):
            yield from rows(range(step * 20, step * 20 + 60), v=step).to_batches()

    table.upsert(pa.RecordBatchReader.from_batches(SCHEMA, parts()))
    assert contents(table) == {(k, "ab"[k % 2]): min(5, k // 20) for k in range(160)}
    check_placement(table)


def test_max_and_initial_buckets(make: Callable[..., Table]) -> None:
    """Above the greatest number of buckets they grow beyond their target; initial buckets fill side by side."""
    limited = make("limited", partitioned=False, dynamic_bucket__max_buckets="3")
    limited.upsert(rows(range(100), p="a"))
    limited.upsert(rows(range(100, 130), p="a"))
    sizes = {bucket: len(keys) for (_, bucket), keys in buckets_of(limited).items()}
    assert set(sizes) == {0, 1, 2}
    assert sum(sizes.values()) == 130
    wide = make("wide", partitioned=False, dynamic_bucket__initial_buckets="4")
    wide.upsert(rows(range(16), p="a"))
    assert {bucket for _, bucket in buckets_of(wide)} == {0, 1, 2, 3}
    for table in (limited, wide):
        check_placement(table)


def test_overwrites_begin_anew(make: Callable[..., Table]) -> None:
    """An overwrite drops the index of what it replaces, and only that."""
    table = make()
    table.upsert(rows(range(100)))
    table.overwrite(rows(range(1000, 1006), v=5, p="a"), partition={"p": "a"})
    expected = {(k, "b"): 0 for k in range(1, 100, 2)} | {(k, "a"): 5 for k in range(1000, 1006)}
    assert contents(table) == expected
    assert {bucket for part, bucket in buckets_of(table) if part == "a"} == {0}
    table.overwrite(rows(range(3), v=6, p="b"), dynamic=True)
    expected = {(k, "b"): 6 for k in range(3)} | {(k, "a"): 5 for k in range(1000, 1006)}
    assert contents(table) == expected
    check_placement(table)
    table.upsert(rows([1, 1001], v=7, p="b"))
    assert contents(table) == expected | {(1, "b"): 7, (1001, "b"): 7}
    table.overwrite(rows([]))
    assert contents(table) == {}
    newest = table.latest()
    assert newest is not None
    assert HashIndex(table.store, table.context.layout).entries(newest.index_manifest) == []
    table.upsert(rows(range(30), v=8))
    assert len(contents(table)) == 30
    check_placement(table)


def test_concurrent_writers_place_a_new_key_once(make: Callable[..., Table]) -> None:
    """Writers that began on one state commit one after the other: new keys are placed once, or the loser conflicts."""
    table = make(partitioned=False)
    table.upsert(rows(range(8), p="a"))
    first, second, third = (new_writer(table.context.look()) for _ in range(3))
    first.write(rows(range(100, 120), v=1, p="a"))
    second.write(rows(range(300, 302), v=2, p="a"))
    third.write(rows([119, 118, 200], v=3, p="a"))
    changes = [writer.finish() for writer in (first, second, third)]
    commit_changes(table.context, changes[0])
    commit_changes(table.context, changes[1])
    with pytest.raises(Conflict) as lost:
        commit_changes(table.context, changes[2])
    assert lost.value.kind == "index_changed"
    check_placement(table)
    model = {(k, "a"): 0 for k in range(8)} | {(k, "a"): 1 for k in range(100, 120)}
    assert contents(table) == model | {(k, "a"): 2 for k in (300, 301)}


def test_a_verb_that_lost_places_its_keys_again(
    make: Callable[..., Table], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An upsert whose new keys another writer placed elsewhere meanwhile is done again, and no key occurs twice."""
    table = make(partitioned=False)
    rival = lakebed.open(tmp_path / "lake").table("t")
    table.upsert(rows(range(8), p="a"))
    original = rows_module.new_writer
    begun: list[int] = []

    def new_writer(branch: TableBranch, **arguments: Any) -> Any:
        writer = original(branch, **arguments)
        if table.context not in (branch, branch.origin):
            return writer
        writer._bucket_index()
        if not begun:
            rival.upsert(rows(range(100, 125), v=1, p="a"))
        begun.append(1)
        return writer

    monkeypatch.setattr(rows_module, "new_writer", new_writer)
    table.upsert(rows([124, 123, 122, 200], v=2, p="a"))
    assert len(begun) == 2
    model = {(k, "a"): 0 for k in range(8)} | {(k, "a"): 1 for k in range(100, 125)}
    assert contents(table) == model | {(k, "a"): 2 for k in (124, 123, 122, 200)}
    check_placement(table)


def test_versions_keep_their_index(make: Callable[..., Table]) -> None:
    """Tags, rollback, expiry, orphan cleaning and fsck treat index files as part of their versions."""
    table = make()
    table.upsert(rows(range(40)))
    table.create_tag("one")
    table.upsert(rows(range(40, 80), v=1))
    table.upsert(rows(range(80, 120), v=2))
    tagged = {(k, "ab"[k % 2]): 0 for k in range(40)}
    table.expire(retain_max=1, retain_min=1, older_than_ms=2**50)
    table.collect(grace_ms=0)
    table.rollback_to("one")
    assert contents(table) == tagged
    table.upsert(rows(range(20, 60), v=3))
    expected = tagged | {(k, "ab"[k % 2]): 3 for k in range(20, 60)}
    assert contents(table) == expected
    check_placement(table)
    table.expire(retain_max=1, retain_min=1, older_than_ms=2**50)
    table.delete_tag("one")
    table.collect(grace_ms=0)
    table.upsert(rows(range(50, 70), v=4))
    assert contents(table) == expected | {(k, "ab"[k % 2]): 4 for k in range(50, 70)}
    check_placement(table)
    newest = table.latest()
    assert newest is not None
    table.expire(retain_max=1, retain_min=1, older_than_ms=2**50)
    named = {entry.file_name for entry in HashIndex(table.store, table.context.layout).entries(newest.index_manifest)}
    present = {meta.path.rpartition("/")[2] for meta in table.store.list("index/")}
    assert present == named


def test_a_write_reads_only_index_files_that_are_new(make: Callable[..., Table]) -> None:
    """One process reads each index file once: a small write into many buckets costs few requests."""
    table = make(partitioned=False)
    table.upsert(rows(range(400)))
    table.upsert(rows([0, 1000]))
    with table.store.count() as counts:
        table.upsert(rows([1, 1001]))
    assert counts.get < 20, "40 buckets have an index file each"


def test_branches_go_on_from_their_index(make: Callable[..., Table]) -> None:
    """A branch of such a table is written on its own."""
    table = make()
    table.upsert(rows(range(30)))
    branch = table.create_branch("b")
    branch.upsert(rows(range(20, 50), v=1))
    table.upsert(rows(range(25, 40), v=2))
    assert contents(branch) == {(k, "ab"[k % 2]): 1 if k >= 20 else 0 for k in range(50)}
    assert contents(table) == {(k, "ab"[k % 2]): 2 if k >= 25 else 0 for k in range(40)}
    check_placement(branch)
    check_placement(table)


def test_a_key_across_partitions_is_refused(make: Callable[..., Table]) -> None:
    """Where another client's primary key lacks partition columns, a write would need an index over all partitions."""
    with pytest.raises(InvalidRequest, match="an index over all of them") as refused:
        check_writable(replace(make().schema, primary_keys=("k",)))
    assert refused.value.kind == "unsupported_bucket"


def test_a_damaged_index_is_named(make: Callable[..., Table], tmp_path: Path) -> None:
    """An index file that was cut short stops the write, which changes nothing."""
    table = make(partitioned=False)
    table.upsert(rows(range(5), p="a"))
    (meta,) = table.store.list("index/")
    table.store.put(meta.path, np.arange(3, dtype=">i4").tobytes())
    with pytest.raises(lakebed.errors.Corruption, match=meta.path):
        lakebed.open(tmp_path / "lake").table("t").upsert(rows([6], p="a"))
