"""What tasks of a job read and upload of a branch, and what the process that has the repository stages of it."""

from __future__ import annotations

import pickle
import random
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import lakebed.repo
from lakebed import Table
from lakebed.errors import NotFound, OutcomeUnknown, Unavailable
from lakebed.objects import ObjectStore, open_store
from lakebed.reclaim.model import CollectionReport
from lakebed.repo import CollectionOptions, ImportSource, Repository, RepositoryOptions
from lakebed.repo.objects.task_store import EntryStore, TaskStore
from lakebed.repo.transport.local_objects import local_store
from lakebed.runtime import Environment
from lakebed.table.read.read import read_split
from lakebed.table.read.source_file import data_path
from lakebed.table.rows.rows import commit_changes
from lakebed.table.write.write import BucketIndex, TableWriter
from lakebed.table.write.write_settings import WriteSettings
from lakebed.testing.faulty import Crashed
from worlds.errors import kind_of, raises
from worlds.repo.memory_repository import MemoryRepository, Trap, open_context

SCHEMA = pa.schema([pa.field("id", pa.int64(), nullable=False), ("note", pa.string())])


@pytest.fixture
def repo(tmp_path: Path) -> Iterator[Repository]:
    """A repository in a folder, so that its bytes can be read by another process."""
    options = RepositoryOptions(background=False)
    with lakebed.repo.open(tmp_path / "lake" / "analytics.repo", options=options, durable=False) as opened:
        yield opened


def in_a_task(store: Any, paths: list[str], *, writes: bool = False) -> TaskStore:
    """What a task of a job opens: shipped as bytes, with the files that the driver has looked up."""
    assert isinstance(store, EntryStore)
    shipped: TaskStore = pickle.loads(pickle.dumps(store.for_tasks(writes=writes)))
    return shipped.with_entries(store.entries(paths))


def test_a_task_reads_what_it_was_given(repo: Repository, tmp_path: Path) -> None:
    """Its files stay as they were when they were looked up, even when the branch moves; others are not there."""
    outside = open_store(tmp_path / "outside", durable=False)
    outside.put("old", b"imported")
    branch = repo.branch()
    branch.import_objects([ImportSource(outside.url("old"), "t/old", kind="object")])
    branch.put("t/a", b"0123456789")
    task = in_a_task(branch.store("t"), ["a", "old"])
    branch.put("t/a", b"another")
    branch.put("t/b", b"not given")
    branch.delete("t/old")
    assert isinstance(task, ObjectStore)
    assert bytes(task.get("a")) == b"0123456789"
    assert [bytes(part) for part in task.get_ranges("a", [(7, 9), (0, 2)])] == [b"78", b"01"]
    assert [bytes(item) for item in task.get_stream("a", chunk_bytes=4)] == [b"0123", b"4567", b"89"]
    assert (task.head("a").size_bytes, bytes(task.get("old"))) == (10, b"imported")
    task.sync(["a"])
    assert kind_of(lambda: task.get("b")) == "object_not_found"
    assert kind_of(lambda: in_a_task(branch.store("t"), ["a", "missing"]).get("missing")) == "object_not_found"
    assert in_a_task(branch.store("t"), []).uploads() == []


def test_uploads_are_seen_when_they_are_staged(repo: Repository) -> None:
    """Nothing that a task puts is visible before the driver stages it, all at one moment; what it gave up never is."""
    branch = repo.branch()
    task = in_a_task(branch.store("t"), [], writes=True)
    task.put("a", b"a" * 10)
    assert task.put_stream("b", [b"b", b"bb"]) == 3
    task.put("gone", b"x")
    task.delete(["gone"])
    assert bytes(task.get("a")) == b"a" * 10
    assert list(branch.list()) == []
    branch.store("t").stage_entries(task.uploads())
    assert {entry.path: branch.get(entry.path) for entry in branch.list()} == {"t/a": b"a" * 10, "t/b": b"bbb"}
    same = branch.put("as-put", b"bbb")
    assert branch.stat("t/b").checksum == same.checksum
    branch.store("t").stage_entries([])


def test_a_task_has_no_branch(repo: Repository) -> None:
    """What would need the records is refused with one sentence, and so is a write to what cannot be written."""
    branch = repo.branch()
    branch.put("t/a", b"a")
    branch.commit("one")
    task = in_a_task(branch.store("t"), ["a"])
    acts: list[Callable[[], Any]] = [
        lambda: task.list(),
        lambda: task.list_with_delimiter(),
        lambda: task.copy("a", "b"),
        lambda: task.url("a"),
        lambda: task.signed_url("a", expires_in_s=1),
        lambda: task.sub("b"),
        lambda: task.count(),
        lambda: task.put("c", b"", create_only=True),
        lambda: task.delete(["a"]),
    ]
    assert {kind_of(act) for act in acts} == {"task_store"}
    assert kind_of(lambda: pickle.dumps(branch.store("t"))) == "not_picklable"
    at_commit: Any = repo.ref("main@").store("t")
    assert kind_of(lambda: at_commit.for_tasks(writes=True)) == "read_only"
    assert bytes(in_a_task(at_commit, ["a"]).get("a")) == b"a"
    store: Any = branch.store("t")
    repo.protect("main")
    assert kind_of(lambda: store.for_tasks(writes=True)) == "protected_branch"


def collect_everything(repo: Repository) -> CollectionReport:
    """Collect without a minimum age, until an orphan is older than the clock's resolution."""
    while not (report := repo.collect(CollectionOptions(grace=timedelta(0)))).deleted_count:
        pass
    return report


def test_a_collection_between_upload_and_staging(repo: Repository) -> None:
    """Young uploads stay; uploads that a collection may have taken are refused, and nothing of them is staged."""
    branch = repo.branch()
    store: Any = branch.store("t")
    task = in_a_task(store, [], writes=True)
    task.put("a", b"kept")
    assert repo.collect(CollectionOptions()).deleted_count == 0
    store.stage_entries(task.uploads())
    late = in_a_task(store, [], writes=True)
    late.put("b", b"late")
    lost = late.uploads()
    collect_everything(repo)
    fresh = in_a_task(store, [], writes=True)
    fresh.put("c", b"fresh")
    with raises(Unavailable, "upload_expired"):
        store.stage_entries([*fresh.uploads(), *lost])
    assert {entry.path for entry in branch.list()} == {"t/a"}
    assert branch.get("t/a") == b"kept"


def test_a_branch_that_is_gone_takes_nothing(repo: Repository) -> None:
    """Uploads for a branch that was deleted meanwhile are orphans: the error says so, and a collection takes them."""
    store: Any = repo.create_branch("dev").store("t")
    task = in_a_task(store, [], writes=True)
    task.put("a", b"orphan")
    repo.delete_branch("dev")
    with raises(NotFound, "branch_not_found"):
        store.stage_entries(task.uploads())
    assert collect_everything(repo).deleted_bytes == len(b"orphan")


@pytest.mark.parametrize("mode", ["crash before", "crash after", "reply lost", "request lost"])
def test_staging_is_all_or_nothing_at_every_call(mode: Any) -> None:
    """When staging fails at any call, all of it is there or nothing; staged again it is all there, each path once."""
    for at in range(100):
        place, trap = MemoryRepository(), Trap(at=at, mode=mode)
        with open_context(place) as home:
            task = local_store(home, "main", "t").for_tasks(writes=True)
            for number in range(5):
                task.put(f"{number}", b"x%d" % number)
            entries = task.uploads()
        with open_context(place, trap=trap) as home:
            try:
                local_store(home, "main", "t").stage_entries(entries)
                said = 5
            except (Crashed, OutcomeUnknown):
                said = -1
        with open_context(place) as home:
            store = local_store(home, "main", "t")
            assert len(list(store.list())) in ({5} if said == 5 else {0, 5})
            store.stage_entries(entries)
            assert [(entry.path, bytes(store.get(entry.path))) for entry in store.list()] == [
                (f"{number}", b"x%d" % number) for number in range(5)
            ]
        if not trap.has_sprung:
            assert at > 0
            return
    raise AssertionError("more calls than expected")


# ---- tables


def written_by_a_task(table: Table, rows: dict[int, str | None]) -> Any:
    """A job that upserts: one task writes, the driver stages and commits."""
    store: Any = table.store
    task = in_a_task(store, [], writes=True)
    newest = table.latest()
    schema = table.refresh()
    writer = TableWriter(
        task,
        schema=schema,
        settings=WriteSettings.of(schema),
        environment=Environment(),
        index=lambda: BucketIndex(None if newest is None else table.context.manifests.live_entries(newest)),
    )
    writer.write(pa.table({"id": list(rows), "note": list(rows.values())}, schema=SCHEMA))
    changes = writer.finish()
    store.stage_entries(task.uploads())
    return commit_changes(table.context, changes)


def read_by_tasks(table: Table) -> dict[int, str | None]:
    """What tasks read, one a split, of the newest version."""
    scan, store = table.scan(), table.store
    result: dict[int, str | None] = {}
    for split in scan.splits():
        task = in_a_task(store, [data_path(split, file) for file in split.files])
        for batch in read_split(task, split, plan=scan.plan):
            result |= dict(zip(*(column.to_pylist() for column in batch.columns), strict=True))
    return result


@pytest.mark.parametrize("seed", range(4))
def test_tables_of_branches_are_dictionaries(repo: Repository, seed: int) -> None:
    """Jobs on two tables of several branches, with commits, merges and resets: each branch shows what its model says.

    The model of a branch is a dictionary a table, staged and committed; a merge takes a table whole from the side that
    changed it, and jobs of one step change only one side.
    """
    rng = random.Random(seed)
    names = ("trips", "fares")
    for name in names:
        Table.create(repo.branch().store(f"t/{name}"), name=name, schema=SCHEMA, primary_keys=["id"])
    repo.branch().commit("made")
    committed: dict[str, dict[str, dict[int, str | None]]] = {"main": {name: {} for name in names}}
    for step in range(6):
        dev = repo.create_branch(f"dev-{step}")
        shown = {name: dict(rows) for name, rows in committed["main"].items()}
        for _ in range(rng.randrange(1, 4)):
            name = rng.choice(names)
            rows: dict[int, str | None] = {rng.randrange(8): rng.choice(["a", None, "ü"]) for _ in range(3)}
            written_by_a_task(Table.open(dev.store(f"t/{name}"), name=name), rows)
            shown[name] |= rows
        for name in names:
            assert read_by_tasks(Table.open(dev.store(f"t/{name}"), name=name)) == shown[name]
            assert read_by_tasks(Table.open(repo.branch().store(f"t/{name}"), name=name)) == committed["main"][name]
        if rng.random() < 0.3:
            dev.reset()
        else:
            dev.commit(f"step {step}")
            repo.branch().merge(dev)
            committed["main"] = shown
        committed[dev.commit_id] = {name: dict(rows) for name, rows in committed["main"].items()}
    for commit, tables in committed.items():
        for name in names:
            assert read_by_tasks(Table.open(repo.ref(commit).store(f"t/{name}"), name=name)) == tables[name]
