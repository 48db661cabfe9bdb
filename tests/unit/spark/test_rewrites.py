"""The files of UPDATE, DELETE and MERGE without a primary key, asked without a JVM."""

from __future__ import annotations

import base64
import io
import json
import pickle
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from lakebed.lake.lake import Lake, open_lake
from lakebed.runtime import Environment
from lakebed.spark import worker
from lakebed.spark.catalog import Session, handle
from lakebed.spark.shipping import opened_in_task
from lakebed.table.table import Table
from worlds.replies import rows_of

Ask = Callable[..., dict[str, Any]]

ABOVE_14 = {"name": ">", "children": [{"column": ["id"]}, {"literal": 14, "type": "bigint"}]}


@pytest.fixture
def lake(tmp_path: Path) -> Lake:
    return open_lake(str(tmp_path / "lake"))


@pytest.fixture
def ask(lake: Lake, tmp_path: Path) -> Ask:
    """Send a request and return the whole reply."""
    folder = tmp_path / "replies"
    folder.mkdir()
    session = Session(folder)

    def asked(verb: str, **body: Any) -> dict[str, Any]:
        request = {"id": 7, "verb": verb, "lake": lake.url, "body": body}
        reply: dict[str, Any] = json.loads(handle(json.dumps(request).encode(), session))
        return reply

    return asked


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
    writer = task.writer(opened_in_task(shipped), Environment())
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
        found = [row for pack in frames[1:] for row in read(frames[0], pack).to_pylist()]
        expected = {id: second if id < 20 else third for id in range(10 if files is None else 20, 30)}
        assert {row["id"]: row["_file"] for row in found} == expected
        assert len(found) == len(expected)


def read(reader: bytes, pack: bytes) -> pa.Table:
    """The rows that a worker answers."""
    frames = b"".join(struct.pack(">I", len(frame)) + frame for frame in (reader, pack))
    sink = io.BytesIO()
    worker.serve(io.BytesIO(worker.READ + frames), sink)
    answer = sink.getvalue()
    assert answer[:1] == answer[-1:] == b"\x00"
    return pa.ipc.open_stream(answer[1:-1]).read_all()


def test_a_large_delete_is_a_job_of_spark(ask: Ask, table: Table, monkeypatch: pytest.MonkeyPatch) -> None:
    """The bridge rewrites a few small files, and no others."""
    assert ask("can_delete", table="db.t", predicates=[ABOVE_14])["ok"] == {"alone": True}
    assert ask("can_delete", table="db.t", predicates=[{"name": "RAND"}])["ok"] == {"alone": False}
    monkeypatch.setattr("lakebed.spark.catalog.writes.DELETE_BYTES_MAX", 1000)
    assert ask("can_delete", table="db.t", predicates=[ABOVE_14])["ok"] == {"alone": False}
    assert ask("can_delete", table="db.t", predicates=[{"name": "ALWAYS_TRUE"}])["ok"] == {"alone": False}
    table.set_options({"deletion-vectors.enabled": "true"})
    assert ask("can_delete", table="db.t", predicates=[ABOVE_14])["ok"] == {"alone": True}, "it rewrites nothing"
