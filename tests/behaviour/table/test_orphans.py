"""Orphan files: found, distinguished from files in use, deleted by age."""

from __future__ import annotations

import uuid
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest

from lakebed.bounded_cache import BoundedCache
from lakebed.errors import Closed, Conflict
from lakebed.objects import open_store
from lakebed.runtime import Environment
from lakebed.table.branch.manifest_reader import ManifestReader
from lakebed.table.branch.unfinished import load_deletions
from lakebed.table.collect import deletion
from lakebed.table.collect.orphans import remove_orphan_files
from lakebed.table.model.model import BucketChange
from lakebed.table.rows.rows import commit_changes, new_writer
from lakebed.table.table import Table
from lakebed.testing import Crashed, Fault, FaultyStore, ManualClock
from worlds.table.world import TableWorld

if TYPE_CHECKING:
    from conftest import Bench

DAY_S = 86_400.0


@pytest.fixture
def made() -> TableWorld:
    """A table with tags, a branch with a commit of its own, and some strays of a crashed writer."""
    world = TableWorld(9)
    for _ in range(4):
        world.commit()
    world.tag()
    world.branch_step()
    assert world.branch is not None
    world._commit_to(*world.branch)
    for path in STRAYS:
        world.store.put(path, b"x")
    return world


STRAYS = (
    "pt=a/bucket-0/data-stray.parquet",
    "pt=never committed/bucket-3/data-stray.parquet",
    "bucket-0/data-stray.parquet",
    "manifest/manifest-stray",
    "manifest/manifest-list-stray",
    "index/index-stray",
    "statistics/stat-stray",
)


def strays(world: TableWorld) -> list[str]:
    """Strays that are there."""
    paths = {meta.path for meta in world.store.list("")}
    return [path for path in STRAYS if path in paths]


def test_a_rollback_that_died_before_its_commit_is_forgotten_after_a_day(made: TableWorld) -> None:
    """Its plan and its pin stay for a day, for it may still commit; then both go, and nothing is rolled back."""
    store = FaultyStore(
        made.store,
        faults=lambda _, call: Fault.CRASH_AFTER if call.path.startswith("tag/tag-lakebed.pin.rollback") else None,
    )
    with pytest.raises(Crashed):
        Table.open(store, name="world", environment=made.environment).rollback_to_as_latest(1)

    def left_behind() -> tuple[int, int]:
        names = made.table.context.tags.all_names()
        return len(list(load_deletions(made.store, made.table.context.layout))), sum(
            "rollback" in name for name in names
        )

    made.clock.advance(DAY_S)
    made.table.collect()
    assert left_behind() == (1, 1)
    made.clock.advance(1.0)
    made.table.collect()
    assert left_behind() == (0, 0)
    made.check(collected=True)
    made.check_versions()


def test_a_day_must_pass(made: TableWorld) -> None:
    """A file younger than a day may belong to a writer that has not committed; older ones go, and only they."""
    made.clock.advance(DAY_S)
    assert made.table.collect().deleted_count == 0
    made.clock.advance(1.0)
    made.store.put("pt=a/bucket-0/data-young.parquet", b"x")
    report = made.table.collect()
    assert report.deleted_count == len(STRAYS)
    assert strays(made) == []
    assert bytes(made.store.get("pt=a/bucket-0/data-young.parquet")) == b"x"
    made.check()
    made.check_versions()


def test_a_dry_run_names_them(made: TableWorld) -> None:
    """A dry run names the orphans with their sizes and deletes nothing."""
    plan = made.table.collect(grace_ms=0, dry_run=True).plan
    assert plan is not None
    assert sorted(doomed.path for doomed in plan.doomed) == sorted(STRAYS)
    assert strays(made) == list(STRAYS)


@pytest.mark.parametrize("options", [{"bucket": "1"}, {"bucket": "-1"}, {"deletion-vectors.enabled": "true"}])
def test_changelogs_and_indexes_of_versions_are_in_use(options: dict[str, str]) -> None:
    """A search finds no orphan in a table of which every file belongs to a version, and takes none."""
    table = Table.create(
        open_store(f"memory://{uuid.uuid4()}"),
        name="t",
        schema=pa.schema([pa.field("k", pa.int64(), nullable=False), ("v", pa.int64())]),
        primary_keys="k",
        options={"changelog-producer": "input", **options},
    )
    for number in range(4):
        table.upsert(pa.table({"k": [number, 9], "v": [number, number]}))
    before = {meta.path for meta in table.store.list("")}
    changes = table.changes(1)
    assert table.collect(grace_ms=0).deleted_count == 0
    assert {meta.path for meta in table.store.list("")} >= before
    assert table.changes(1).equals(changes)
    assert changes.num_rows > 0


def test_other_things_in_the_folder_are_left_alone(made: TableWorld) -> None:
    """What lies outside the format's folders is not ours to judge."""
    for path in ("README.txt", "notes/plan.md", "lakebed/boundary/other", "schema/schema-draft", "branch/readme"):
        made.store.put(path, b"mine")
    made.table.collect(grace_ms=0)
    for path in ("README.txt", "notes/plan.md", "lakebed/boundary/other", "schema/schema-draft", "branch/readme"):
        assert bytes(made.store.get(path)) == b"mine"


def test_an_unreadable_manifest_stops_it(made: TableWorld) -> None:
    """When what is used is unknown, nothing is deleted, and the report says why."""
    snapshot = made.table.context.snapshots.snapshot(3)
    name = made.table.context.manifests.all_metas(snapshot)[0].file_name
    made.store.put(f"manifest/{name}", b"broken")
    main = made.table.context
    reader = ManifestReader(main.store, main.layout, environment=main.environment, cache=BoundedCache(1 << 28))
    said = remove_orphan_files(replace(main, manifests=reader), older_than_ms=2**60)
    assert (said.hidden_count, said.deleted_count, said.deleted_bytes) == (0, 0, 0)
    assert any(name in warning for warning in said.warnings)
    assert strays(made) == list(STRAYS)


@pytest.mark.parametrize("is_pinned", [True, False], ids=["pinned", "another client's"])
def test_an_expiry_of_a_branch_that_was_cut_short_takes_nothing_of_main(
    monkeypatch: pytest.MonkeyPatch, is_pinned: bool
) -> None:
    """Cleaning finishes a deletion of a branch as the branch would: the files that it shares with main stay."""
    store = open_store(f"memory://{uuid.uuid4()}")
    table = Table.create(store, name="t", schema=pa.schema([("id", pa.int64())]))
    for number in range(3):
        table.append(pa.table({"id": [number]}))
    branch = table.create_branch("b")
    branch.overwrite(pa.table({"id": [9]}))
    branch.append(pa.table({"id": [10]}))

    def cut_short(_: object) -> object:
        raise Closed("cut short")

    with monkeypatch.context() as patch:
        patch.setattr(deletion, "read_live_versions", cut_short)
        with pytest.raises(Closed):
            branch.expire(retain_max=1, retain_min=1, older_than_ms=0)
    if not is_pinned:
        table.context.tags.unpin_hidden("branch.b")
    report = table.collect(grace_ms=0)
    assert sorted(table.read()["id"].to_pylist()) == [0, 1, 2]
    assert sorted(branch.read()["id"].to_pylist()) == [9, 10]
    unfinished = list(load_deletions(store, branch.context.layout))
    assert (len(unfinished), len(report.warnings)) == ((0, 0) if is_pinned else (1, 1))


def test_files_of_a_deleted_branch_are_orphans(made: TableWorld) -> None:
    """What only a deleted branch used goes, and nothing of main."""
    assert made.branch is not None
    only = made.branch[1].needed() - made.main.needed()
    assert only
    made.table.delete_branch(made.branch[0].branch or "")
    made.branch = None
    made.table.collect(grace_ms=0)
    assert not only & made.stored()
    made.check(collected=True)
    made.check_versions()


@pytest.mark.parametrize("file_count", [1, 5])
@pytest.mark.parametrize("is_logged", [False, True])
def test_a_writer_that_took_longer_than_a_day_is_told_that_its_files_went(
    new_bench: Callable[..., Bench], file_count: int, is_logged: bool
) -> None:
    """Rows whose files a search of orphans took are not called committed; files that are old and there are taken."""
    bench = new_bench({"bucket": str(file_count), "bucket-key": "id"} if not is_logged else {})
    context = bench.table.context

    def write() -> list[BucketChange]:
        writer = new_writer(context)
        writer.write(pa.table({"id": range(100)}))
        changes = writer.finish()
        return [replace(change, added=(), changelog=change.added) for change in changes] if is_logged else changes

    late, gone = write(), write()
    bench.clock.advance(DAY_S + 1)
    with bench.store.count() as requests:
        commit_changes(context, late)
    assert requests.head + requests.list >= file_count
    assert bench.table.collect().deleted_count == sum(len(change.added + change.changelog) for change in gone)
    is_in_branch = bench.store.is_versioned  # there a reset may have taken them, too
    with pytest.raises(Conflict, match="reset or merged" if is_in_branch else "deleted after a day") as refused:
        commit_changes(context, gone)
    assert refused.value.kind == ("branch_moved" if is_in_branch else "file_gone")
    assert bench.table.latest().id == 1
    assert bench.table.read().num_rows == (0 if is_logged else 100)


def test_a_writer_of_an_hour_pays_nothing_for_it(bench: Bench) -> None:
    """Young files are not looked for."""
    writer = new_writer(bench.table.context)
    writer.write(pa.table({"id": [1]}))
    changes = writer.finish()
    bench.clock.advance(3_600)
    with bench.store.count() as requests:
        commit_changes(bench.table.context, changes)
    # In a branch, which a reset may take back at any time, it looks for them before and after the put.
    assert requests.head <= 2 + 3 * bench.store.is_versioned


def test_a_collection_whose_clock_is_ahead_takes_no_file_of_a_writer(bench: Bench) -> None:
    """A day by a wrong clock is not a day: what a writer is about to commit stays, and what is old by both goes."""
    writer = new_writer(bench.table.context)
    writer.write(pa.table({"id": [1]}))
    changes = writer.finish()
    ahead = Environment(clock=ManualClock(start_ms=bench.clock.now_ms() + 400 * 86_400_000))
    collector = Table.open(bench.store, name="t", environment=ahead)
    assert collector.collect().deleted_count == collector.collect(grace_ms=3_600_000).deleted_count == 0
    commit_changes(bench.table.context, changes)
    assert bench.table.read().num_rows == 1
    bench.store.put(STRAYS[2], b"x")
    bench.clock.advance(DAY_S + 1)
    assert collector.collect().deleted_count == 1
    assert not any("probe" in meta.path for meta in bench.store.list(""))
