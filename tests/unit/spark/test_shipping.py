"""How stores travel to tasks and uploads come back: what needs PySpark's package and no session."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import lakebed.repo
from lakebed.errors import Conflict, InvalidRequest, NotFound
from lakebed.lake.lake import Lake
from lakebed.objects import open_store
from lakebed.pipeline.engine import Engine
from lakebed.repo import RepositoryOptions
from lakebed.repo.objects.task_store import TaskStore
from lakebed.repo.transport.local_objects import local_store
from lakebed.repo.transport.transport import context_of
from lakebed.runtime import Environment
from lakebed.spark.dataframe.writing import write_arrow
from lakebed.spark.plan import shipping
from lakebed.spark.tasks import tasks
from lakebed.table.branch.context import TableBranch
from lakebed.table.commit import commit
from lakebed.table.commit.commit import CommitRequest
from lakebed.table.compaction import compact
from lakebed.table.model.model import Snapshot
from lakebed.table.read.read import read_split_table
from lakebed.table.rows import rows as rows_module
from lakebed.table.table import Table
from worlds.repo.memory_repository import MemoryRepository, Trap, open_context

OPTIONS = RepositoryOptions(background=False)


def at(name: str) -> list[tuple[str, ...]]:
    """The files that a unit of work reads: one, at its name."""
    return [(name,)]


def test_a_branch_is_shipped_as_its_bytes(tmp_path: Path) -> None:
    """A pack of work carries the entries of its own files; a path that is gone is an error of the driver."""
    with lakebed.repo.open(tmp_path / "lake" / "analytics.repo", options=OPTIONS, durable=False) as repo:
        store: Any = repo.branch().store("t")
        for name in "abc":
            store.put(name, name.encode())
        packs = shipping.locate(store, [["a", "b"], ["b"], []], files=at)
        assert [sorted(pack) for pack in packs] == [["a", "b"], ["b"], []]
        opened = shipping.open_in_task(shipping.ship(store), packs[1])
        assert isinstance(opened, TaskStore)
        assert bytes(opened.get("b")) == b"b"
        with pytest.raises(NotFound):
            opened.get("a")
        with pytest.raises(NotFound):
            shipping.locate(store, [["a", "missing"]], files=at)
        assert sorted(shipping.locate(store, [["a"]], files=lambda name: [("elsewhere", name)])[0]) == ["a"]
        with context_of(repo).store.count() as asked:
            shipping.locate(store, [["a"], ["b"], ["c"]], files=at)
        assert asked.get == asked.list == asked.head == 0
        with pytest.raises(InvalidRequest) as refused:
            shipping.ship(repo.ref("main@").store("t"), writes=True)
        assert refused.value.kind == "read_only"


def test_a_task_has_the_deletion_vectors_of_its_files(tmp_path: Path) -> None:
    """A table in a branch: the files that a task may read include the index files of its splits."""
    schema = pa.schema([("id", pa.int64())])
    with lakebed.repo.open(tmp_path / "lake" / "analytics.repo", options=OPTIONS, durable=False) as repo:
        options = {"deletion-vectors.enabled": "true"}
        table = Table.create(repo.branch().store("t"), name="t", schema=schema, options=options)
        table.append(pa.table({"id": range(10)}, schema))
        table.delete("id < 4")
        scan = table.scan()
        (present,) = shipping.locate(table.store, [scan.splits()], files=shipping.split_files)
        opened = shipping.open_in_task(shipping.ship(table.store), present)
        (rows,) = (read_split_table(opened, split, plan=scan.plan) for split in scan.splits())
        assert rows["id"].to_pylist() == [4, 5, 6, 7, 8, 9]


def test_other_stores_are_shipped_as_they_are(tmp_path: Path) -> None:
    """A folder travels as itself and nothing is looked up; memory, also below a branch, is refused."""
    store = open_store(tmp_path / "plain", durable=False)
    store.put("a", b"a")
    with store.count() as asked:
        assert shipping.locate(store, [["a"], ["missing"]], files=at) == [{}, {}]
    assert asked.total == 0
    assert bytes(shipping.open_in_task(shipping.ship(store), {}).get("a")) == b"a"
    with lakebed.repo.open("memory://no-task-sees-it/analytics.repo", options=OPTIONS) as hidden:
        with pytest.raises(InvalidRequest) as refused:
            shipping.ship(hidden.branch().store("t"))
        assert refused.value.kind == "memory_store"


@pytest.mark.parametrize("mode", ["reply lost", "request lost"])
def test_staging_is_tried_again_when_its_answer_is_lost(mode: Any) -> None:
    """Whichever answer of the records is lost, the uploads of a job are staged, each once."""
    for at in range(100):
        place, trap = MemoryRepository(), Trap(at=at, mode=mode)
        with open_context(place) as home:
            task = local_store(home, "main", "t").for_tasks(writes=True)
            for number in range(3):
                task.put(f"{number}", b"x")
            uploads = task.uploads()
        with open_context(place, trap=trap) as home:
            tasks._stage(local_store(home, "main", "t"), uploads)
        with open_context(place) as home:
            store = local_store(home, "main", "t")
            assert sorted(store.entries(["0", "1", "2"]).items()) == sorted(uploads)
        if not trap.has_sprung:
            return
    raise AssertionError("more calls than expected")


def test_only_uploads_come_back_with_a_result(tmp_path: Path) -> None:
    """A task returns its changes with what it has uploaded; a lasting error comes instead of both."""
    with lakebed.repo.open(tmp_path / "lake" / "analytics.repo", options=OPTIONS, durable=False) as repo:
        store: Any = repo.branch().store("t")
        opened = shipping.open_in_task(shipping.ship(store, writes=True))
        opened.put("a", b"a")
        (batch,) = tasks.returning_changes(lambda: [], store=opened)
        result = pickle.loads(batch.column(0)[0].as_py())
        assert ([path for path, _ in result.uploads], result.changes) == (["a"], [])

        def refuse() -> list[Any]:
            raise InvalidRequest("no", kind="wrong")

        (batch,) = tasks.returning_changes(refuse, store=opened)
        assert pickle.loads(batch.column(0)[0].as_py()).kind == "wrong"


@pytest.mark.parametrize("verb", ["write", "compact"])
def test_a_reset_in_the_middle_of_a_drivers_commit_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, verb: str
) -> None:
    """What this process commits without a job is looked at as well: its files are gone, so it was no success."""
    rows = pa.table({"id": [1, 2], "note": ["a", "b"]})
    with lakebed.repo.open(tmp_path / "lake" / "analytics.repo", options=OPTIONS, durable=False) as repo:
        branch = repo.create_branch("etl")
        inside = Lake(branch.store("lake"), environment=Environment())
        table = inside.create_table("trips", rows.schema, primary_keys=["id"])
        for number in range(2):
            write_arrow(rows, table, commit_user="before", commit_identifier=number)
        branch.commit("two versions")
        real = commit.commit

        def interrupted(table_branch: TableBranch, request: CommitRequest) -> Snapshot:
            branch.reset()
            return real(table_branch, request)

        for module in (rows_module, compact):
            monkeypatch.setattr(module, "commit", interrupted)
        verbs: dict[str, Callable[[], object]] = {
            "write": lambda: write_arrow(rows, table, commit_user="late", commit_identifier=1),
            "compact": lambda: Engine(start_spark=pytest.fail).compact(table, full=True),
        }
        with pytest.raises(Conflict) as moved:
            verbs[verb]()
        assert moved.value.kind == "branch_moved"
        branch.reset()
        assert inside.table("trips").read().num_rows == 2
