"""The files of UPDATE, DELETE and MERGE without a primary key, asked without a JVM."""

from __future__ import annotations

import base64
import io
import json
import pickle
import struct
from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pytest

import lakebed.compute as pc
from lakebed.lake.lake import Lake
from lakebed.runtime import Environment
from lakebed.spark import worker
from lakebed.spark.plan.shipping import open_in_task
from lakebed.table.table import Table
from worlds.replies import Ask, rows_of

ABOVE_14 = {"name": ">", "children": [{"column": ["id"]}, {"literal": 14, "type": "bigint"}]}


@pytest.fixture
def table(lake: Lake) -> Table:
    """Three files with the ids 0 to 9, 10 to 19, 20 to 29."""
    made = lake.create_table("db.t", pa.schema([("id", pa.int64())]))
    for start in (0, 10, 20):
        made.append(ids(start))
    return made


def ids(start: int) -> pa.Table:
    return pa.table({"id": list(range(start, start + 10))})


def files_of(table: Table) -> list[str]:
    """The names of the newest version's files, oldest first."""
    newest = table.latest()
    assert newest is not None
    entries = table.context.manifests.live_entries(newest).sort_by("commit_snapshot")
    names: list[str] = entries.column("file_name").to_pylist()
    return names


def version_of(ask: Ask) -> dict[str, Any]:
    loaded = ask("load", table="db.t")["ok"]
    return {"snapshot": loaded["snapshot"], "schema_id": loaded["schema_id"]}


def written(ask: Ask, table: Table, rows: pa.Table) -> str:
    """What a task returns that wrote some rows."""
    schema = {"type": "struct", "fields": [{"name": "id", "type": "long", "nullable": True, "metadata": {}}]}
    begun = ask("begin_write", table="db.t", schema=json.dumps(schema))["ok"]
    shipped, task, _ = pickle.loads(base64.b64decode(begun["writer"]))
    writer = task.writer(open_in_task(shipped), Environment())
    task.add(writer, rows)
    return base64.b64encode(pickle.dumps(writer.finish())).decode()


def test_a_commit_replaces_the_files_that_were_read(ask: Ask, table: Table) -> None:
    """Those of the predicate, or of these only some."""
    first, second, third = files_of(table)
    rewritten = {**version_of(ask), "predicates": [ABOVE_14]}
    result = written(ask, table, ids(100))
    assert ask("commit", table="db.t", results=[result], rewritten=rewritten)["ok"] == {"snapshot_id": 4}
    assert files_of(table)[0] == first
    assert set(files_of(table)).isdisjoint({second, third})
    assert table.read().num_rows == 20

    remaining = files_of(table)[1]
    rewritten = {**version_of(ask), "predicates": [], "files": [remaining]}
    ask("commit", table="db.t", results=[], rewritten=rewritten)
    assert files_of(table) == [first]


def test_files_that_another_writer_replaced_refuse_the_commit(ask: Ask, table: Table) -> None:
    """And what the tasks wrote is deleted; rows that were appended meanwhile refuse nothing."""
    rewritten = {**version_of(ask), "predicates": [ABOVE_14]}
    result = written(ask, table, ids(100))
    table.delete("id = 15")
    live = files_of(table)
    error = ask("commit", table="db.t", results=[result], rewritten=rewritten)["error"]
    assert error["kind"] == "file_gone"
    assert files_of(table) == live
    (change,) = pickle.loads(base64.b64decode(result))
    assert not any(change.added[0].file_name in meta.path for meta in table.store.list("bucket-0"))

    rewritten = {**version_of(ask), "predicates": [ABOVE_14]}
    table.append(ids(200))
    assert ask("commit", table="db.t", results=[], rewritten=rewritten)["ok"]
    assert sorted(row["id"] for row in table.read().to_pylist()) == [*range(10), *range(200, 210)]


def test_a_plan_of_a_rewrite_has_every_row_of_its_files(ask: Ask, table: Table) -> None:
    """For lakebed's own reader, here: with the name of the file after the columns."""
    _, second, third = files_of(table)
    body = {**version_of(ask), "columns": ["id"], "predicates": [ABOVE_14], "rewrites": True, "names_files": True}
    for files in (None, [third]):
        plan = ask("plan", table="db.t", **body, files=files)["ok"]
        units = rows_of(plan["units"]).to_pylist()
        frames = [base64.b64decode(plan["reader"]), *(unit["pack"] for unit in units)]
        rows = [row for pack in frames[1:] for row in read(frames[0], pack).to_pylist()]
        expected = {id: second if id < 20 else third for id in range(10 if files is None else 20, 30)}
        assert {row["id"]: row["_file"] for row in rows} == expected
        assert len(rows) == len(expected)


def read(reader: bytes, pack: bytes) -> pa.Table:
    """The rows that a worker answers."""
    frames = b"".join(struct.pack(">I", len(frame)) + frame for frame in (reader, pack))
    sink = io.BytesIO()
    worker.serve(io.BytesIO(worker.READ + frames), sink)
    answer = sink.getvalue()
    assert answer[:1] == answer[-1:] == b"\x00"
    return pa.ipc.open_stream(answer[1:-1]).read_all()


@pytest.fixture
def marking(table: Table) -> Table:
    """The same with deletion vectors; the rows 3 and 12 are deleted already."""
    table.set_options({"deletion-vectors.enabled": "true"})
    table.delete("id = 3 or id = 12")
    return table


def test_a_copy_of_files_with_marked_rows_rests_on_their_vectors(ask: Ask, marking: Table) -> None:
    """A file is replaced as long as it has the vector that its rows were read with, and not after another's delete."""
    lost = {**version_of(ask), "predicates": [ABOVE_14]}
    marking.delete("id = 20")
    error = ask("commit", table="db.t", results=[written(ask, marking, ids(100))], rewritten=lost)["error"]
    assert error["kind"] == "rows_changed"
    done = {**version_of(ask), "predicates": [ABOVE_14]}
    assert ask("commit", table="db.t", results=[written(ask, marking, ids(100))], rewritten=done)["ok"]
    assert sorted(marking.read()["id"].to_pylist()) == [*(id for id in range(10) if id != 3), *range(100, 110)]


def places_of(ask: Ask, version: dict[str, Any], predicates: list[Any]) -> pa.Table:
    """The rows of a version with the place of each, as tasks of the JVM get them from workers."""
    body = {"columns": ["id"], "predicates": predicates, "names_files": True, "numbers_rows": True, "schemes": ["file"]}
    plan = ask("plan", table="db.t", **version, **body)["ok"]
    units = rows_of(plan["units"]).to_pylist()
    return pa.concat_tables([read(base64.b64decode(plan["reader"]), unit["pack"]) for unit in units])


def change(ask: Ask, gone: pa.Table, new: list[int]) -> str:
    """What a task returns that replaces some rows by new ones."""
    schema = {"type": "struct", "fields": [{"name": "id", "type": "long", "nullable": True, "metadata": {}}]}
    begun = ask("begin_write", table="db.t", schema=json.dumps(schema), changes=True)["ok"]
    old = gone.append_column("__lakebed_operation", pa.array([True] * gone.num_rows, pa.bool_()))
    rows = pa.table(
        {
            "id": pa.array(new, pa.int64()),
            "_file": pa.nulls(len(new), pa.string()),
            "_pos": pa.nulls(len(new), pa.int64()),
            "__lakebed_operation": pa.array([False] * len(new), pa.bool_()),
        }
    )
    rows = pa.concat_tables([old.cast(rows.schema), rows]).combine_chunks()
    source = io.BytesIO()
    writer = base64.b64decode(begun["writer"])
    source.write(worker.WRITE + struct.pack(">I", len(writer)) + writer)
    with pa.ipc.new_stream(source, rows.schema) as stream:
        stream.write_table(rows, max_chunksize=4)
    source.seek(0)
    sink = io.BytesIO()
    worker.serve(source, sink)
    answer = sink.getvalue()
    assert answer[:1] == b"\x00"
    return base64.b64encode(answer[5:]).decode()


def of_ids(places: pa.Table, *ids: int) -> pa.Table:
    return places.filter(pc.is_in(places["id"], value_set=pa.array(ids)))


def test_places_are_those_of_live_rows(ask: Ask, marking: Table) -> None:
    """Deleted rows are left out and still counted; predicates leave rows out; workers read every file."""
    first, second, third = files_of(marking)
    places = places_of(ask, version_of(ask), [])
    expected = {id: ((first, second, third)[id // 10], id % 10) for id in range(30) if id not in (3, 12)}
    assert {row["id"]: (row["_file"], row["_pos"]) for row in places.to_pylist()} == expected
    assert places.num_rows == len(expected)
    places = places_of(ask, version_of(ask), [ABOVE_14])
    assert sorted(places["id"].to_pylist()) == list(range(15, 30))
    assert {row["id"]: row["_pos"] for row in places.to_pylist()} == {id: id % 10 for id in range(15, 30)}


def test_found_rows_are_marked_with_new_ones_in_one_commit(ask: Ask, marking: Table) -> None:
    """Rows that several tasks found in one file; a file without a row that is left goes; nothing is nothing."""
    first, second, third = files_of(marking)
    version = version_of(ask)
    places = places_of(ask, version, [])
    tasks = [change(ask, of_ids(places, 1, 15, 20), [101]), change(ask, of_ids(places, 0, *range(21, 30)), [])]
    before = marking.latest()
    assert before is not None
    commit = {"results": tasks, "marks": True, "basis": version["snapshot"]}
    assert ask("commit", table="db.t", **commit)["ok"] == {"snapshot_id": before.id + 1}
    assert sorted(marking.read()["id"].to_pylist()) == [2, *range(4, 10), 10, 11, 13, 14, *range(16, 20), 101]
    assert {first, second} < set(files_of(marking))
    assert third not in files_of(marking)
    none = change(ask, places.slice(0, 0), [])
    assert ask("commit", table="db.t", results=[none], marks=True, basis=None)["ok"] == {"snapshot_id": before.id + 1}


def test_a_row_that_is_found_twice(ask: Ask, marking: Table) -> None:
    """By one task or by two: nothing is changed, and the new files go."""
    version = version_of(ask)
    places = places_of(ask, version, [])
    five = of_ids(places, 5)
    item = change(ask, pa.concat_tables([five, five]), [1])
    error = ask("commit", table="db.t", results=[item], marks=True, basis=version["snapshot"])["error"]
    assert error["kind"] == "row_changed_twice"
    two = [change(ask, of_ids(places, 5, 6), [100]), change(ask, five, [101])]
    error = ask("commit", table="db.t", results=two, marks=True, basis=version["snapshot"])["error"]
    assert error["kind"] == "row_changed_twice"
    assert marking.read().num_rows == 28
    assert marking.collect(grace_ms=0).deleted_count == 0


@pytest.mark.parametrize(
    ("race", "kind"), [("compact", "file_gone"), ("delete", "rows_changed"), ("append", None), ("others", None)]
)
def test_rows_that_were_found_before_another_commit(ask: Ask, marking: Table, race: str, kind: str | None) -> None:
    """A commit refuses when their files are replaced or other rows of them deleted; elsewhere nothing disturbs it."""
    version = version_of(ask)
    result = change(ask, of_ids(places_of(ask, version, []), 5, 6), [105, 106])
    races: dict[str, Callable[[], object]] = {
        "compact": lambda: marking.compact(full=True),
        "delete": lambda: marking.delete("id = 7"),
        "append": lambda: marking.append(ids(40)),
        "others": lambda: marking.delete("id > 25"),
    }
    races[race]()
    before = set(marking.read()["id"].to_pylist())
    reply = ask("commit", table="db.t", results=[result], marks=True, basis=version["snapshot"])
    after = set(marking.read()["id"].to_pylist())
    if kind is None:
        assert after == before - {5, 6} | {105, 106}
    else:
        assert reply["error"]["kind"] == kind
        assert after == before
    assert marking.collect(grace_ms=0).deleted_count == 0


def test_a_large_delete_is_a_job_of_spark(ask: Ask, table: Table, monkeypatch: pytest.MonkeyPatch) -> None:
    """The bridge rewrites a few small files, and no others."""
    assert ask("can_delete", table="db.t", predicates=[ABOVE_14])["ok"] == {"alone": True}
    assert ask("can_delete", table="db.t", predicates=[{"name": "RAND"}])["ok"] == {"alone": False}
    monkeypatch.setattr("lakebed.spark.catalog.writes.DELETE_BYTES_MAX", 1000)
    assert ask("can_delete", table="db.t", predicates=[ABOVE_14])["ok"] == {"alone": False}
    assert ask("can_delete", table="db.t", predicates=[{"name": "ALWAYS_TRUE"}])["ok"] == {"alone": False}
    table.set_options({"deletion-vectors.enabled": "true"})
    assert ask("can_delete", table="db.t", predicates=[ABOVE_14])["ok"] == {"alone": True}, "it rewrites nothing"
