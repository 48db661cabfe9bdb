"""Replacing columns and rows together, and partitions by conditions, asked without a JVM."""

from __future__ import annotations

import base64
import json
import pickle
from dataclasses import replace
from typing import Any

import pyarrow as pa
import pytest

from lakebed.errors import Conflict
from lakebed.lake.lake import Lake
from lakebed.runtime import Environment
from lakebed.spark.catalog import writes
from lakebed.spark.plan.shipping import open_in_task
from lakebed.table.rows import rows as library_rows
from lakebed.table.table import Table
from worlds.replies import Ask

EVERYTHING: dict[str, Any] = {"partition": {}}
COLUMNS = {"id": "long", "w": "string", "p": "integer"}


@pytest.fixture
def table(lake: Lake) -> Table:
    """One row in each of three partitions."""
    schema = pa.schema([("id", pa.int64()), ("v", pa.string()), ("p", pa.int32())])
    made = lake.create_table("db.t", schema, partition_keys="p")
    made.append(pa.table({"id": [1, 2, 3], "v": ["a", "b", "c"], "p": [1, 2, 3]}))
    return made


def columns(**types: str) -> str:
    fields = [{"name": name, "type": kind, "nullable": True, "metadata": {}} for name, kind in types.items()]
    return json.dumps({"type": "struct", "fields": fields})


def written(ask: Ask, rows: pa.Table, types: dict[str, str], *, table: str = "db.t", **body: Any) -> str:
    """What a task returns that wrote some rows."""
    begun = ask("begin_write", table=table, schema=columns(**types), **body)["ok"]
    shipped, task, _ = pickle.loads(base64.b64decode(begun["writer"]))
    writer = task.writer(open_in_task(shipped), Environment())
    task.add(writer, rows)
    return base64.b64encode(pickle.dumps(writer.finish())).decode()


def staged(ask: Ask, types: dict[str, str] = COLUMNS) -> str:
    reply = ask("replace_table", table="db.t", schema=columns(**types), partition_keys=["p"])["ok"]
    assert [field["name"] for field in json.loads(reply["schema"])["fields"]] == list(types)
    result: str = reply["staged"]
    return result


def replacement(ask: Ask) -> dict[str, Any]:
    """The commit of a replacement by one row."""
    schema = staged(ask)
    rows = pa.table({"id": [9], "w": ["new"], "p": [1]})
    return {"results": [written(ask, rows, COLUMNS, replaced=EVERYTHING, staged=schema)], "staged": schema}


def test_columns_and_rows_are_replaced_in_one_commit(ask: Ask, table: Table) -> None:
    """The older version keeps its columns; a column of the same name and type is the same one."""
    before = table.schema
    body = replacement(ask)
    assert table.refresh() == before
    assert ask("commit", table="db.t", replaced=EVERYTHING, **body)["ok"] == {"snapshot_id": 2}
    assert table.refresh().id == before.id + 1
    assert [(field.id, field.name) for field in table.schema.fields] == [(0, "id"), (3, "w"), (2, "p")]
    assert table.read().to_pylist() == [{"id": 9, "w": "new", "p": 1}]
    assert table.read(version=1).column_names == ["id", "v", "p"]
    assert sorted(table.read(version=1).column("v").to_pylist()) == ["a", "b", "c"]


def replace_rows(ask: Ask, types: dict[str, str], rows: pa.Table) -> None:
    """Replace columns and rows."""
    schema = staged(ask, types)
    body = {"replaced": EVERYTHING} if schema is None else {"replaced": EVERYTHING, "staged": schema}
    assert "ok" in ask("commit", table="db.t", results=[written(ask, rows, types, **body)], **body)


def test_every_version_holds_what_it_held_over_replacements_and_rollbacks(ask: Ask, lake: Lake, table: Table) -> None:
    """A column of the same name and type is the same one, computed anew or not; one of another type is a new one."""
    held = {1: [(1, "a", 1), (2, "b", 2), (3, "c", 3)]}
    stale = lake.table("db.t")
    table.create_tag("first")

    def check(rows: list[tuple[Any, ...]]) -> None:
        held[table.latest().id] = rows
        for version, expected in held.items():
            assert rows_in(stale, version=version) == rows_in(lake.table("db.t"), version=version) == expected
        assert rows_in(stale, version="first") == held[1]
        assert rows_in(stale) == rows

    replace_rows(ask, {"id": "long", "made": "integer", "p": "integer"}, pa.table({"id": [4], "made": [40], "p": [1]}))
    check([(4, 40, 1)])
    types = {"id": "long", "v": "string", "made": "integer", "p": "integer"}
    replace_rows(ask, types, pa.table({"id": [5], "v": ["new"], "made": [50], "p": [2]}))
    check([(5, "new", 50, 2)])
    table.rollback_to_as_latest(2)  # `made` was computed anew, and is the same column
    check([(4, None, 40, 1)])
    table.rollback_to_as_latest("first")  # `v` was gone in between: the one of today is another
    check([(1, None, None, 1), (2, None, None, 2), (3, None, None, 3)])
    types = {"id": "long", "v": "string", "made": "long", "p": "integer"}
    replace_rows(ask, types, pa.table({"id": [6], "v": ["newer"], "made": [60], "p": [2]}))
    check([(6, "newer", 60, 2)])
    table.rollback_to_as_latest(3)  # `v` has stayed, and `made` has another type
    check([(5, "new", None, 2)])
    branch = table.create_branch("trial", snapshot_id=2)
    assert rows_in(table, version="trial") == held[2]
    assert rows_in(branch) == [(4, None, None, 1)]  # its newest version, under the columns of the table
    table.compact(full=True)
    check([(5, "new", None, 2)])
    table.delete_branch("trial")
    table.rollback_to(2)
    held = {version: rows for version, rows in held.items() if version <= 2}
    check([(4, None, None, 1)])


def not_null(schema: str, name: str) -> str:
    """The same columns, of which one is NOT NULL."""
    fields = [{**field, "nullable": field["name"] != name} for field in json.loads(schema)["fields"]]
    return json.dumps({"type": "struct", "fields": fields})


@pytest.mark.parametrize("name", ["v", "w"])
def test_no_column_becomes_not_null(ask: Ask, table: Table, name: str) -> None:
    """A rollback would bring back rows without a value: no reader could read them, and Spark would make values up."""
    body = {"schema": not_null(columns(id="long", v="string", w="string", p="integer"), name), "partition_keys": ["p"]}
    error = ask("replace_table", table="db.t", **body)["error"]
    assert error["message"].startswith(f"Column '{name}' cannot become NOT NULL: older versions have rows without")
    assert (error["kind"], table.refresh().id) == ("invalid_replace", 0)


@pytest.fixture
def strict(lake: Lake) -> Table:
    """A table with a column that is NOT NULL, of which a replacement is begun that has no such column."""
    schema = pa.schema([("id", pa.int64()), pa.field("v", pa.string(), nullable=False), ("p", pa.int32())])
    made = lake.create_table("db.t", schema, partition_keys="p")
    made.append(pa.table({"id": [1], "v": ["a"], "p": [1]}).cast(schema))
    return made


def test_a_column_that_is_not_null_stays_so(ask: Ask, strict: Table) -> None:
    """Where the statement says it, and after a refused replacement."""
    body = {"schema": not_null(columns(id="long", v="string", w="string", p="integer"), "v"), "partition_keys": ["p"]}
    reply = ask("replace_table", table="db.t", **body)["ok"]
    assert [field["nullable"] for field in json.loads(reply["schema"])["fields"]] == [True, False, True, True]


@pytest.mark.parametrize("others", [False, True])
def test_a_refused_replacement_brings_no_rows_below_a_column_that_is_not_null(
    ask: Ask, lake: Lake, strict: Table, monkeypatch: pytest.MonkeyPatch, others: bool
) -> None:
    """Another writer committed rows without the column meanwhile: they are there, and it may be null."""
    body = replacement(ask)

    def refused(*args: Any, **more: Any) -> None:
        if others:
            lake.table("db.t").append(pa.table({"id": [2], "w": ["x"], "p": pa.array([1], pa.int32())}))
        raise Conflict("Lost.", kind="commit_contention")

    monkeypatch.setattr(writes, "commit_changes", refused)
    assert ask("commit", table="db.t", replaced=EVERYTHING, **body)["error"]["kind"] == "commit_contention"
    assert rows_in(strict) == [(1, "a", 1), *[(2, None, 1)] * others]
    assert strict.schema.fields[1].nullable == others


def test_rows_that_may_be_null_are_not_committed_below_a_column_that_is_not(ask: Ask, strict: Table) -> None:
    """They were written while the table had no such column, by a job that commits after it has come back."""
    old = strict.schema
    strict.context.schemas.store_next(replace(old, id=1, fields=(old.fields[0], old.fields[2])))
    late = written(ask, pa.table({"id": [2], "p": [1]}), {"id": "long", "p": "integer"})
    strict.context.schemas.store_next(replace(old, id=2))
    assert ask("commit", table="db.t", results=[late])["error"]["kind"] == "schema_changed"
    assert rows_in(strict) == [(1, "a", 1)]


def test_a_replacement_without_other_columns_stores_no_schema(ask: Ask, table: Table) -> None:
    """It is an overwrite then."""
    assert staged(ask, {"id": "long", "v": "string", "p": "integer"}) is None


def test_a_refused_commit_brings_the_old_columns_back(ask: Ask, table: Table, monkeypatch: pytest.MonkeyPatch) -> None:
    """As one more schema, since ids are used once."""
    body = replacement(ask)

    def refused(*args: Any, **more: Any) -> None:
        raise Conflict("Lost.", kind="commit_contention")

    monkeypatch.setattr(writes, "commit_changes", refused)
    assert ask("commit", table="db.t", replaced=EVERYTHING, **body)["error"]["kind"] == "commit_contention"
    assert [field.name for field in table.refresh().fields] == ["id", "v", "p"]
    assert table.schema.id == 2
    assert sorted(table.read().column("v").to_pylist()) == ["a", "b", "c"]
    (change,) = pickle.loads(base64.b64decode(body["results"][0]))
    assert not any(change.added[0].file_name in meta.path for meta in table.store.list("p=1"))


def test_a_crash_between_columns_and_rows_loses_nothing(
    ask: Ask, table: Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The statement can be run again, and the older version is as it was."""
    body = replacement(ask)

    class CrashedError(BaseException):
        pass

    def crashed(*args: Any, **more: Any) -> None:
        raise CrashedError

    with monkeypatch.context() as patched:
        patched.setattr(writes, "commit_changes", crashed)
        with pytest.raises(CrashedError):
            ask("commit", table="db.t", replaced=EVERYTHING, **body)
    table.refresh()
    assert sorted(map(str, table.read().to_pylist())) == [str({"id": n, "w": None, "p": n}) for n in (1, 2, 3)]
    assert sorted(table.read(version=1).column("v").to_pylist()) == ["a", "b", "c"]
    assert staged(ask) is None
    rows = pa.table({"id": [9], "w": ["new"], "p": [1]})
    result = written(ask, rows, COLUMNS, replaced=EVERYTHING)
    assert ask("commit", table="db.t", replaced=EVERYTHING, results=[result])["ok"]
    assert table.read().to_pylist() == [{"id": 9, "w": "new", "p": 1}]


def test_columns_that_another_writer_changed_refuse_the_replacement(ask: Ask, table: Table) -> None:
    """And what was written for it is deleted."""
    body = replacement(ask)
    table.add_column("x", "INT")
    error = ask("commit", table="db.t", replaced=EVERYTHING, **body)["error"]
    assert error["kind"] == "columns_changed"
    assert [field.name for field in table.refresh().fields] == ["id", "v", "p", "x"]
    (change,) = pickle.loads(base64.b64decode(body["results"][0]))
    assert not any(change.added[0].file_name in meta.path for meta in table.store.list("p=1"))


@pytest.mark.parametrize(
    ("types", "keys", "properties", "message"),
    [
        (COLUMNS, [], {}, "would change its partition columns from (p) to ()"),
        (COLUMNS, ["p"], {"primary-key": "id"}, "would change its primary key from () to (id)"),
        ({"id": "long", "p": "string"}, ["p"], {}, "would change its key column 'p' from INT to STRING"),
        (COLUMNS, ["p"], {"bucket": "4"}, "'bucket' is fixed"),
        (COLUMNS, ["p"], {"nope": "4"}, "'nope' is not known"),
    ],
)
def test_keys_stay(
    ask: Ask, table: Table, types: dict[str, str], keys: list[str], properties: dict[str, str], message: str
) -> None:
    """The files of older versions are laid out by them."""
    body = {"schema": columns(**types), "partition_keys": keys, "properties": properties}
    error = ask("replace_table", table="db.t", **body)["error"]
    assert message in error["message"]


def predicate(name: str, column: str, *values: Any) -> dict[str, Any]:
    literals = [{"literal": value, "type": "int"} for value in values]
    return {"name": name, "children": [{"column": [column]}, *literals]}


def test_partitions_are_overwritten_by_a_condition(ask: Ask, table: Table) -> None:
    """New rows may be in any partition; null is in none of them."""
    types = {"id": "long", "v": "string", "p": "integer"}
    table.append(pa.table({"id": [4], "v": ["d"], "p": pa.array([None], pa.int32())}))
    replaced = {"where": [predicate(">", "p", 1), predicate("<>", "p", 3)]}
    result = written(ask, pa.table({"id": [7, 8], "v": ["x", "x"], "p": [1, 3]}), types, replaced=replaced)
    ask("commit", table="db.t", results=[result], replaced=replaced)
    assert sorted(table.read().column("id").to_pylist()) == [1, 3, 4, 7, 8]
    body = {
        "schema": columns(**types),
        "replaced": {"where": [predicate(">", "p", 1), {"name": "RAND", "children": []}]},
    }
    assert ask("begin_write", table="db.t", **body)["error"]["kind"] == "inexact_overwrite"


@pytest.mark.parametrize(("name", "stays"), [("ALWAYS_FALSE", [(1, "a")]), ("ALWAYS_TRUE", [])])
def test_a_table_without_partitions_is_overwritten_by_a_constant(
    ask: Ask, lake: Lake, name: str, stays: list[tuple[Any, ...]]
) -> None:
    """All of its rows go, or none."""
    table = lake.create_table("db.w", pa.schema([("id", pa.int64()), ("v", pa.string())]))
    table.append(pa.table({"id": [1], "v": ["a"]}))
    replaced = {"where": [{"name": name, "children": []}]}
    types = {"id": "long", "v": "string"}
    result = written(ask, pa.table({"id": [2], "v": ["new"]}), types, table="db.w", replaced=replaced)
    assert ask("commit", table="db.w", results=[result], replaced=replaced)["ok"] == {"snapshot_id": 2}
    assert rows_in(table) == [*stays, (2, "new")]


ROWS = {"id": "long", "v": "string", "p": "integer"}


def some_rows(*rows: tuple[int | None, str, int]) -> pa.Table:
    return pa.table({"id": [row[0] for row in rows], "v": [row[1] for row in rows], "p": [row[2] for row in rows]})


@pytest.mark.parametrize("vectors", [False, True])
def test_rows_are_overwritten_by_a_condition_on_any_columns(ask: Ask, lake: Lake, vectors: bool) -> None:
    """One snapshot: the matching rows of all files go, those that do not match or are null stay, the new ones come."""
    schema = pa.schema([("id", pa.int64()), ("v", pa.string()), ("p", pa.int32())])
    options = {"deletion-vectors.enabled": "true"} if vectors else {}
    table = lake.create_table("db.u", schema, partition_keys="p", options=options)
    parts = [[(1, "a", 1), (6, "b", 1), (None, "n", 1)], [(7, "c", 1), (8, "d", 1)], [(2, "e", 2)], [(9, "f", 3)]]
    for part in parts:
        table.append(some_rows(*part).cast(schema))
    before = table.latest()
    replaced = {"where": [predicate(">", "id", 5), predicate("<", "p", 3)]}
    new = [(50, "new", 2), (3, "new", 4)]
    result = written(ask, some_rows(*new).cast(schema), ROWS, table="db.u", replaced=replaced)
    assert ask("commit", table="db.u", results=[result], replaced=replaced)["ok"] == {"snapshot_id": before.id + 1}
    stays = [row for part in parts for row in part if not (row[0] is not None and row[0] > 5 and row[2] < 3)]
    assert rows_in(table) == sorted([*stays, *new], key=str)
    assert (table.latest().commit_kind, len(rows_in(table, version=before.id))) == ("OVERWRITE", 7)


def rows_in(table: Table, *, version: int | str | None = None) -> list[tuple[Any, ...]]:
    return sorted((tuple(row.values()) for row in table.read(version=version).to_pylist()), key=str)


def test_rows_that_came_before_the_commit_are_overwritten(
    ask: Ask, table: Table, lake: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also after lost races: two such statements leave the rows of one. A file is rewritten once, and none is left."""
    other = lake.table("db.t")
    other.append(some_rows((5, "goes", 1), (2, "stays", 1)))
    replaced = {"where": [predicate("<>", "id", 2)]}
    result = written(ask, some_rows((10, "new", 1)), ROWS, replaced=replaced)
    seen: list[str] = []
    inner = library_rows.without_rows

    def without_rows(store: Any, rewrite: Any, **more: Any) -> Any:
        if not seen:
            other.append(some_rows((4, "late", 1)))
        seen.append(rewrite.split.files[0].file_name)
        return inner(store, rewrite, **more)

    monkeypatch.setattr(library_rows, "without_rows", without_rows)
    assert "ok" in ask("commit", table="db.t", results=[result], replaced=replaced)
    assert rows_in(table) == [(10, "new", 1), (2, "b", 2), (2, "stays", 1)]
    assert len(seen) == len(set(seen)) == 4
    live = set(table.context.manifests.live_entries(table.latest()).column("file_name").to_pylist())
    # Nothing but what versions name: all files but one of older snapshots are replaced.
    assert len(data_files(table)) == len(live) + 4


def data_files(table: Table) -> list[str]:
    return [meta.path for number in (1, 2, 3) for meta in table.store.list(f"p={number}")]


def test_a_refused_overwrite_of_rows_changes_nothing(ask: Ask, table: Table, lake: Lake) -> None:
    """Too large, or of a table whose key would have to be deleted."""
    keyed = pa.schema([pa.field("id", pa.int64(), nullable=False), ("p", pa.int32())])
    lake.create_table("db.k", keyed, primary_keys="id", options={"bucket": "1"})
    replaced = {"where": [predicate(">", "p", 1)]}
    body = {"schema": columns(id="long", p="integer"), "replaced": replaced}
    error = ask("begin_write", table="db.k", **body)["error"]
    assert error["kind"] == "inexact_overwrite"
    assert "partition columns (it has none)" in error["message"]
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(writes, "OVERWRITE_BYTES_MAX", 1)
        many = {"schema": columns(**ROWS), "replaced": {"where": [predicate(">", "id", 1)]}}
        assert ask("begin_write", table="db.t", **many)["error"]["kind"] == "large_overwrite"
        none = {"schema": columns(**ROWS), "replaced": {"where": [predicate(">", "id", 9)]}}
        assert "ok" in ask("begin_write", table="db.t", **none)


def test_a_failed_overwrite_of_rows_leaves_no_file(
    ask: Ask, table: Table, lake: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither the files of the tasks nor the rewritten ones."""
    table.set_options({"commit.max-retries": "0"})
    table.append(some_rows((5, "goes", 1), (2, "stays", 1)))
    replaced = {"where": [predicate("<>", "id", 2)]}
    result = written(ask, some_rows((10, "new", 1)), ROWS, replaced=replaced)
    inner = library_rows.without_rows

    def without_rows(*arguments: Any, **more: Any) -> Any:
        lake.table("db.t").append(some_rows((4, "late", 1)))
        return inner(*arguments, **more)

    monkeypatch.setattr(library_rows, "without_rows", without_rows)
    error = ask("commit", table="db.t", results=[result], replaced=replaced)["error"]
    assert error["group"] == "Conflict"
    live = table.context.manifests.live_entries(table.latest()).column("file_name").to_pylist()
    assert sorted(path.rpartition("/")[2] for path in data_files(table)) == sorted(live)


def test_other_places_and_formats_are_refused(ask: Ask) -> None:
    """They would be ignored otherwise."""
    for properties, kind in (
        ({"provider": "delta"}, "unsupported_provider"),
        ({"location": "/x"}, "unsupported_location"),
    ):
        error = ask("create_table", table="db.u", schema=columns(id="long"), properties=properties)["error"]
        assert error["kind"] == kind
    assert ask("create_table", table="db.u", schema=columns(id="long"), properties={"provider": "Lakebed"})["ok"] == {}


def test_comments_change(ask: Ask, table: Table) -> None:
    """Of the table, and of a column."""
    changes = [
        {"kind": "set", "name": "comment", "value": "facts"},
        {"kind": "comment", "name": "v", "value": "a text"},
    ]
    before = table.schema.id
    assert ask("alter_table", table="db.t", changes=changes) == {"ok": {}}
    assert (table.refresh().comment, table.schema.fields[1].description) == ("facts", "a text")
    assert ask("load", table="db.t")["ok"]["properties"]["comment"] == "facts"
    assert table.schema.id == before + 1


def test_changes_of_a_statement_come_together_or_not_at_all(ask: Ask, table: Table) -> None:
    """Schema evolution asks for several: a part of them would stay."""
    before = table.schema
    changes = [
        {"kind": "add", "name": "x", "type": '"integer"'},
        {"kind": "widen", "name": "id", "type": '"integer"'},
    ]
    error = ask("alter_table", table="db.t", changes=changes)["error"]
    assert "cannot change from BIGINT to INT" in error["message"]
    assert table.refresh() == before


def test_a_missing_branch_is_not_a_missing_table(ask: Ask, table: Table) -> None:
    """Spark has an exception of its own for tables, without our sentence."""
    error = ask("load", table="db.t", branch="nope")["error"]
    assert (error["kind"], error["message"][:24]) == ("branch_not_found", "There is no branch 'nope")
