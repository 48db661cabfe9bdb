"""What listing and deleting tags costs, and that nothing remembered or left out makes it wrong."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Event
from typing import Any

import pyarrow as pa
import pytest

from lakebed.bounded_cache import BoundedCache
from lakebed.objects.open import open_store
from lakebed.objects.port import RequestCounts
from lakebed.table.branch.tag_files import SETTLED_MS, TAG_CACHE
from lakebed.table.rows.rows import commit_changes
from lakebed.table.table import Table
from lakebed.testing.between import Between

SETTLED_S = SETTLED_MS / 1000 + 1


def targets(table: Table) -> dict[str, int]:
    """Snapshot of every tag, as the table lists them."""
    return {tag.name: tag.snapshot.id for tag in table.tags()}


def test_each_tag_is_read_once(bench: Any) -> None:
    """A second listing, also by another handle, is one LIST; a tag that changed is read again, and that one only."""
    for name in "ab":
        bench.commit(name)
    for number in range(40):
        bench.table.create_tag(f"t{number:02d}", snapshot_id=1)
    bench.clock.advance(SETTLED_S)
    with bench.store.count() as first:
        assert targets(bench.table) == {f"t{number:02d}": 1 for number in range(40)}
    with bench.store.count() as second:
        assert targets(bench.reopen()) == targets(bench.table)
    assert (first.list, first.get) == (1, 40)
    assert (second.get, second.list) == (1, 3), "the handle reads the schema; tags are listed twice"
    bench.table.context.tags.replace("t07", source=bench.table.context.tags.source(snapshot_id=2))
    bench.table.context.tags.remove_files(["t08"])
    with bench.store.count() as third:
        result = targets(bench.table)
    assert (result["t07"], "t08" in result, len(result)) == (2, False, 39)
    assert (third.list, third.get) == (1, 1)


@pytest.mark.parametrize("age_s", [0, SETTLED_S], ids=["within one tick of the clock", "settled"])
def test_a_tag_that_is_replaced_and_put_back_is_told_as_it_is(bench: Any, age_s: float) -> None:
    """Replaced between listing and reading, then put back, a tag is not taken for what was read; however old it is."""
    for name in "ab":
        bench.commit(name)
    bench.table.create_tag("x", snapshot_id=1)
    before = bytes(bench.store.get("tag/tag-x"))
    second = bytes(bench.store.get("snapshot/snapshot-2"))
    bench.clock.advance(age_s)
    between = Between(bench.store, kind="list", prefix="tag", happens=lambda: bench.store.put("tag/tag-x", second))
    assert targets(Table.open(between, name="t", environment=bench.environment)) == {"x": 2}
    assert between.happened
    bench.clock.advance(1 if age_s else 0)
    bench.store.put("tag/tag-x", before)
    assert targets(bench.table) == {"x": 1}


def test_replaced_tags_are_seen_in_a_local_folder(tmp_path: Path, bench: Any) -> None:
    """A real folder's listing shows a replacement, by this process or another, at any speed."""
    table = Table.create(open_store(str(tmp_path)), name="t", schema=pa.schema([("id", pa.int64())]))
    for name in "ab":
        commit_changes(table.context, [bench.change(name)])
    source = [table.context.tags.source(snapshot_id=number) for number in (1, 2)]
    table.create_tag("x")
    for number in range(20):
        table.context.tags.replace("x", source=source[number % 2])
        assert targets(table) == {"x": number % 2 + 1}


def test_remembered_tags_are_bounded(bench: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Tags above the bound are read each time; the answer is the same."""
    cache = BoundedCache(20_000)
    monkeypatch.setattr("lakebed.table.branch.tag_files.TAG_CACHE", cache)
    bench.commit("a")
    for number in range(50):
        bench.table.create_tag(f"t{number:02d}")
    bench.clock.advance(SETTLED_S)
    assert targets(bench.table) == targets(bench.table) == {f"t{number:02d}": 1 for number in range(50)}
    assert 0 < cache.size_bytes <= 20_000
    assert TAG_CACHE is not cache


# ---- deleting


def deletion_among(bench: Any, count: int, *, expired: bool) -> RequestCounts:
    """Requests of deleting one tag of `count`, whose version's snapshot is there or has expired."""
    for number in range(20):
        bench.write(f"f{number}", *([f"f{number - 1}"] if number else []))
    for number in range(count):
        bench.table.create_tag(f"t{number:04d}", snapshot_id=1 + number * 20 // count)
    if expired:
        bench.table.expire(retain_max=1, retain_min=1, older_than_ms=0)
    bench.table.context.tags.index()
    bench.reopen().delete_tag("t0001")
    with bench.store.count() as counts:
        bench.reopen().delete_tag(f"t{count // 2:04d}")
    assert f"t{count // 2:04d}" not in bench.table.context.tags.all_names()
    return counts


@pytest.mark.parametrize("expired", [False, True])
def test_deleting_one_of_many_tags_costs_as_one_of_few(new_bench: Callable[..., Any], expired: bool) -> None:
    """The same requests among 10 and among 900 tags; tags are not listed when the version's snapshot is there."""
    few, many = (deletion_among(new_bench({}), count, expired=expired) for count in (10, 900))
    for kind in ("head", "put", "delete", "list"):
        assert getattr(many, kind) <= getattr(few, kind), kind
    assert many.get <= few.get
    if not expired:
        assert many.total == few.total <= 16
        assert many.bytes_read <= few.bytes_read + 200


@pytest.mark.parametrize("kind", ["head", "delete"])
def test_files_go_though_the_snapshot_expires_while_its_tag_is_deleted(bench: Any, kind: str) -> None:
    """An expiry right after the look at the snapshot, or before it, leaves nothing of what only the tag kept."""
    bench.write("a")
    bench.table.create_tag("x")
    bench.write("b", "a")

    def expire() -> None:
        bench.reopen().expire(retain_max=1, retain_min=1, older_than_ms=0)

    prefix = {"head": "snapshot/snapshot-1", "delete": "tag/tag-x"}[kind]
    between = Between(bench.store, kind=kind, prefix=prefix, happens=expire)
    Table.open(between, name="t", environment=bench.environment).delete_tag("x")
    assert between.happened
    assert "bucket-0/a" not in {meta.path for meta in bench.store.list("")}
    assert bench.live() == ["b"]


def test_files_go_though_an_expiry_is_already_under_way(bench: Any) -> None:
    """An expiry that began before the deletion was written down, and hides the snapshot after it was looked at."""
    bench.write("a")
    bench.table.create_tag("x")
    bench.write("b", "a")
    begun, looked = Event(), Event()

    def wait() -> None:
        begun.set()
        assert looked.wait(60)

    def finish() -> None:
        looked.set()
        expiry.result(60)

    waiting = Between(bench.store, kind="list", prefix="consumer", happens=wait)
    between = Between(bench.store, kind="head", prefix="snapshot/snapshot-1", happens=finish)
    other, mine = (Table.open(store, name="t", environment=bench.environment) for store in (waiting, between))
    with ThreadPoolExecutor(1) as pool:
        expiry = pool.submit(other.expire, retain_max=1, retain_min=1, older_than_ms=0)
        assert begun.wait(60)
        mine.delete_tag("x")
    assert between.happened
    assert bench.table.tags() == []
    assert "bucket-0/a" not in {meta.path for meta in bench.store.list("")}


def test_a_tag_of_a_version_that_is_there_goes_alone(bench: Any) -> None:
    """Deleting it deletes no file; when its snapshot expires later, the files go then."""
    bench.write("a")
    bench.table.create_tag("x")
    bench.write("b", "a")
    report = bench.table.delete_tag("x")
    assert (report.hidden_count, report.deleted_count, report.warnings) == (1, 0, ())
    assert "bucket-0/a" in {meta.path for meta in bench.store.list("")}
    assert [meta.path for meta in bench.store.list("lakebed/reclaim")] == []
    bench.table.expire(retain_max=1, retain_min=1, older_than_ms=0)
    assert "bucket-0/a" not in {meta.path for meta in bench.store.list("")}
