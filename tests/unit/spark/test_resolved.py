"""A statement that other writers overtake: names of columns, and the table's own name, mean what they meant."""

from __future__ import annotations

import base64
import json
import pickle
from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pytest

from lakebed.fsck.check import check_lake
from lakebed.lake.lake import Lake
from lakebed.runtime import Environment
from lakebed.spark.dataframe.writing import _until_unchanged
from lakebed.spark.plan.shipping import open_in_task
from lakebed.table.commit.commit import Basis
from lakebed.table.table import Table
from worlds.replies import Ask

SCHEMA = pa.schema([pa.field("k", pa.int32(), nullable=False), ("a", pa.int32()), ("b", pa.int32())])
ROWS = [{"k": 1, "a": 10, "b": 1000}, {"k": 2, "a": 20, "b": 2000}]
FIELDS = [{"name": name, "type": "integer", "nullable": True, "metadata": {}} for name in "kab"]
COLUMNS = json.dumps({"type": "struct", "fields": FIELDS})
KEYED: dict[str, Any] = {"primary_keys": ["k"], "options": {"bucket": "2"}}
KINDS = pytest.mark.parametrize("keys", [{}, KEYED], ids=["append", "keyed"])


def make_table(lake: Lake, keys: dict[str, Any]) -> Table:
    """A table of two rows."""
    table = lake.create_table("db.t", SCHEMA, **keys)
    table.write(pa.Table.from_pylist(ROWS, SCHEMA))
    return table


def drop_and_add(table: Table) -> None:
    table.drop_column("b")
    table.add_column("b", "INT")


def swap(table: Table) -> None:
    for old, new in (("a", "x"), ("b", "a"), ("x", "b")):
        table.rename_column(old, new)


def write_rows(begun: dict[str, Any], *rows: dict[str, int]) -> str:
    """What a task returns."""
    shipped, task, _ = pickle.loads(base64.b64decode(begun["writer"]))
    writer = task.writer(open_in_task(shipped), Environment())
    task.add(writer, pa.Table.from_pylist(list(rows), SCHEMA))
    return base64.b64encode(pickle.dumps(writer.finish())).decode()


@KINDS
@pytest.mark.parametrize("change", [drop_and_add, swap])
def test_rows_never_land_in_columns_of_the_same_name(
    ask: Ask, lake: Lake, keys: dict[str, Any], change: Callable[[Table], None]
) -> None:
    """A statement whose columns were renamed, or dropped and added, before its tasks began is refused."""
    table = make_table(lake, keys)
    loaded = ask("load", table="db.t")["ok"]
    change(table)
    expected = table.read().to_pylist()
    begun = ask("begin_write", table="db.t", schema=COLUMNS, changes=bool(keys), resolved=loaded["resolved"])
    assert begun["error"]["kind"] == "columns_changed"
    assert "run the statement again" in begun["error"]["message"]
    again = ask("load", table="db.t")["ok"]
    assert "ok" in ask("begin_write", table="db.t", schema=COLUMNS, changes=bool(keys), resolved=again["resolved"])
    assert lake.table("db.t").read().to_pylist() == expected


def test_fields_inside_structs_are_those_that_were_analysed(ask: Ask, lake: Lake) -> None:
    """A field that is dropped and added again is another one; a column that is widened is the same."""
    table = lake.create_table("db.t", pa.schema([("k", pa.int32()), ("s", pa.struct([("a", pa.int32())]))]))
    struct = {"type": "struct", "fields": [{"name": "a", "type": "integer", "nullable": True, "metadata": {}}]}
    columns = json.dumps({"type": "struct", "fields": [FIELDS[0], {**FIELDS[1], "name": "s", "type": struct}]})
    resolved = ask("load", table="db.t")["ok"]["resolved"]
    table.widen_column("k", "BIGINT")
    assert "ok" in ask("begin_write", table="db.t", schema=columns, resolved=resolved)
    table.add_column(("s", "b"), "INT")
    table.drop_column(("s", "a"))
    table.rename_column(("s", "b"), "a")
    reply = ask("begin_write", table="db.t", schema=columns, resolved=resolved)
    assert reply["error"]["kind"] == "columns_changed"


@KINDS
def test_columns_that_change_while_tasks_write_keep_their_values(ask: Ask, lake: Lake, keys: dict[str, Any]) -> None:
    """Files hold the columns of the schema that their tasks began with."""
    table = make_table(lake, keys)
    resolved = ask("load", table="db.t")["ok"]["resolved"]
    begun = ask("begin_write", table="db.t", schema=COLUMNS, resolved=resolved)["ok"]
    swap(table)
    results = [write_rows(begun, {"k": 3, "a": 30, "b": 3000})]
    assert "ok" in ask("commit", table="db.t", results=results, resolved=resolved)
    rows = {row["k"]: row for row in lake.table("db.t").read().to_pylist()}
    assert rows == {n: {"k": n, "b": n * 10, "a": n * 1000} for n in (1, 2, 3)}


def test_conditions_are_of_the_columns_that_were_analysed(ask: Ask, lake: Lake) -> None:
    """A DELETE, and an overwrite by a condition, that columns of other names overtook delete nothing."""
    table = make_table(lake, {})
    resolved = ask("load", table="db.t")["ok"]["resolved"]
    predicates = [{"name": "<", "children": [{"column": ["a"]}, {"literal": 100, "type": "int"}]}]
    swap(table)
    expected = table.read().to_pylist()
    for verb, body in (
        ("delete", {"predicates": predicates}),
        ("commit", {"replaced": {"where": predicates}}),
    ):
        reply = ask(verb, table="db.t", resolved=resolved, **body)
        assert reply["error"]["kind"] == "columns_changed", reply
    assert lake.table("db.t").read().to_pylist() == expected


@KINDS
def test_a_table_of_the_same_name_gets_no_rows_of_another(ask: Ask, lake: Lake, keys: dict[str, Any]) -> None:
    """Dropped and created again: the files of tasks went with the old one, and plans are of it."""
    make_table(lake, keys)
    loaded = ask("load", table="db.t")["ok"]
    resolved = loaded["resolved"]
    begun = ask("begin_write", table="db.t", schema=COLUMNS, resolved=resolved)["ok"]
    results = [write_rows(begun, {"k": 3, "a": 30, "b": 3000})]
    lake.drop_table("db.t")
    make_table(lake, keys)
    version = {"snapshot": loaded["snapshot"], "schema_id": loaded["schema_id"]}
    count = {"functions": [{"function": "count_star"}]}
    for verb, body in (
        ("plan", {**version, "columns": ["k"]}),
        ("aggregate", {**version, **count}),
        ("begin_write", {"schema": COLUMNS}),
        ("commit", {"results": results}),
    ):
        reply = ask(verb, table="db.t", resolved=resolved, **body)
        assert reply["error"]["kind"] == "table_replaced", reply
    assert sorted(lake.table("db.t").read().to_pylist(), key=repr) == ROWS
    assert [finding for finding in check_lake(lake).findings if finding.kind != "orphan"] == []


class ReadAgain(Exception):
    """The rows are computed once more."""


def test_rows_that_were_read_under_other_columns_are_read_again(lake: Lake) -> None:
    """A merge of a DataFrame whose table gets other columns after it was read begins anew, before any job runs."""
    table = make_table(lake, KEYED)
    versions: list[Basis] = []

    def read_rows(basis: Basis) -> Any:
        if versions:
            raise ReadAgain
        versions.append(basis)
        swap(lake.table("db.t"))
        return None

    with pytest.raises(ReadAgain):
        _until_unchanged(table, read_rows, options={})
