"""Files written for a change that was not committed are deleted again, and no others."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pytest

from lakebed.errors import Closed, Conflict, InvalidRequest
from lakebed.objects.open import open_store
from lakebed.table.compaction.compact import compact, run_task
from lakebed.table.rows.rows import commit_changes, new_writer
from lakebed.table.table import Table
from worlds.meanwhile import Meanwhile, is_put_below

SCHEMA = pa.schema([("id", pa.int64()), ("v", pa.int32())])


def make(*, keyed: bool = True, **options: str) -> tuple[Table, Table, Meanwhile]:
    """A table, another client's handle of it, and the store of the first one."""
    inner = open_store(f"memory://discarded-{uuid.uuid4()}")
    keys = {"primary_keys": ["id"]} if keyed else {}
    values = {"bucket": "1"} | options if keyed else options
    Table.create(inner, name="t", schema=SCHEMA, options=values, **keys)  # type: ignore[arg-type]
    store = Meanwhile(inner)
    return Table.open(store, name="t"), Table.open(inner, name="t"), store


def rows(ids: Any, *, v: int = 0) -> pa.Table:
    ids = list(ids)
    return pa.table({"id": pa.array(ids, pa.int64()), "v": pa.array([v] * len(ids), pa.int32())})


def unreferenced(table: Table) -> set[str]:
    """Data files that no snapshot names."""
    paths = {meta.path for meta in table.store.list("") if meta.path.startswith("bucket-")}
    named: set[str] = set()
    for snapshot in table.system("snapshots")["snapshot_id"].to_pylist():
        named |= set(table.system("files", version=snapshot)["file_path"].to_pylist())
    assert named <= paths, "a file that a snapshot needs is gone"
    return paths - named


def test_a_compaction_that_lost_discards_what_it_wrote() -> None:
    """Overtaken by another compaction, its own files go; those of the winner stay."""
    table, other, _ = make()
    for v in range(6):
        table.upsert(rows(range(10), v=v))

    def overtaken(tasks: Any, plan: Any) -> Any:
        changes = [run_task(table.store, task, plan=plan, environment=table.context.environment) for task in tasks]
        assert len(unreferenced(other)) == 1
        other.compact(full=True)
        return changes

    compact(table.context, full=True, run_tasks=overtaken)
    assert unreferenced(table) == set()
    assert set(table.read()["v"].to_pylist()) == {5}


def test_files_that_only_moved_are_never_discarded() -> None:
    """A lost compaction that would only change a file's level leaves that file alone."""
    table, other, _ = make(**{"target-file-size": "1 b"})
    table.upsert(rows([1]))
    table.upsert(rows([2]))

    def overtaken(tasks: Any, plan: Any) -> Any:
        assert [len(task.moved) for task in tasks] == [2]
        other.compact(full=True)
        return [run_task(table.store, task, plan=plan, environment=table.context.environment) for task in tasks]

    compact(table.context, full=True, run_tasks=overtaken)
    assert unreferenced(table) == set()
    assert sorted(table.read()["id"].to_pylist()) == [1, 2]


def test_a_delete_that_lost_discards_what_it_wrote() -> None:
    """A delete by predicate that another one overtook starts over, and its first files go."""
    table, other, store = make(keyed=False)
    table.append(rows(range(10)))
    store.expect(lambda: other.delete("id < 3"), counts=is_put_below("manifest/"))
    table.delete("id > 7")
    assert sorted(table.read()["id"].to_pylist()) == [3, 4, 5, 6, 7]
    assert unreferenced(table) == set()


@pytest.mark.parametrize("verb", ["append", "overwrite"])
def test_a_commit_that_gave_up_discards_its_rows(verb: str) -> None:
    """Where no retry is allowed, a lost race raises Conflict and leaves no file of the rows behind."""
    table, other, store = make(keyed=False, **{"commit.max-retries": "0"})
    other.append(rows([1]))
    store.expect(lambda: other.append(rows([2])), counts=is_put_below("snapshot/"))
    with pytest.raises(Conflict):
        getattr(table, verb)(rows([3]))
    assert unreferenced(table) == set()
    assert sorted(table.read()["id"].to_pylist()) == [1, 2]


def test_a_predicate_that_matches_nothing_leaves_no_file() -> None:
    """Files that statistics could not rule out are read, and what was written of them meanwhile goes."""
    table, _, _ = make(keyed=False)
    table.append(rows([1, 3]))
    table.set_options({"target-file-size": "1 b"})
    assert table.delete("id = 2") is None
    assert unreferenced(table) == set()


@pytest.mark.parametrize("keyed", [True, False])
def test_a_writer_that_fails_half_way_discards_what_it_wrote(keyed: bool) -> None:
    """Rows of earlier batches were written already when a later one does not fit: their files go, the writer closes."""
    table, _, _ = make(keyed=keyed, **{"write-buffer-size": "1 b"})

    def batches() -> Iterator[pa.RecordBatch]:
        yield rows([1]).to_batches()[0]
        assert len(unreferenced(table)) == 1
        raise OSError("the source broke")

    writer = new_writer(table.context.look())
    with pytest.raises(OSError, match="the source broke"):
        writer.write(pa.RecordBatchReader.from_batches(SCHEMA, batches()))
    assert unreferenced(table) == set()
    with pytest.raises(Closed):
        writer.write(rows([2]))
    with pytest.raises(Closed):
        writer.finish()

    writer = new_writer(table.context.look())
    writer.write(rows([1]))
    assert len(unreferenced(table)) == 1
    with pytest.raises(InvalidRequest):
        writer.write(pa.table({"id": ["one"], "v": [1]}))
    assert unreferenced(table) == set()


def test_an_abandoned_writer_leaves_nothing() -> None:
    """`abandon` deletes what was written; after `finish` the files belong to the changes, and stay."""
    table, _, _ = make(**{"write-buffer-size": "1 b"})
    writer = new_writer(table.context.look())
    writer.write(rows([1]))
    writer.abandon()
    assert unreferenced(table) == set()
    writer = new_writer(table.context.look())
    writer.write(rows([1]))
    changes = writer.finish()
    writer.abandon()
    commit_changes(table.context, changes)
    assert table.read()["id"].to_pylist() == [1]
