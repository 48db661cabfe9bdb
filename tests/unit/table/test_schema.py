"""Schemas: what may change, what may not, and the log of their objects."""

from __future__ import annotations

import json
from dataclasses import replace

import pyarrow as pa
import pytest

from lakebed.errors import Conflict, Corruption, InvalidRequest, NotFound, UnsupportedFormat
from lakebed.objects.open import open_store
from lakebed.table.model.layout import Layout
from lakebed.table.model.model import DataField, TableSchema
from lakebed.table.schema.schema import (
    add_column,
    bucket_keys,
    decode_schema,
    drop_column,
    encode_schema,
    move_column,
    new_schema,
    remove_options,
    rename_column,
    set_options,
    widen_column,
)
from lakebed.table.schema.schema_log import SchemaLog

COLUMNS = pa.schema([("dt", pa.string()), ("k", pa.int64()), ("v", pa.int32()), ("w", pa.float32())])


@pytest.fixture
def schema() -> TableSchema:
    """A primary-key table with one partition column."""
    return new_schema(COLUMNS, primary_keys=["dt", "k"], partition_keys=["dt"], time_ms=1)


def names(schema: TableSchema) -> list[str]:
    """Column names in order."""
    return [field.name for field in schema.fields]


def test_new(schema: TableSchema) -> None:
    """Keys become NOT NULL, ids count from 0, and a primary key fixes a number of buckets."""
    assert [(field.id, field.nullable) for field in schema.fields] == [(0, False), (1, False), (2, True), (3, True)]
    assert (schema.highest_field_id, schema.options, bucket_keys(schema)) == (3, {"bucket": "1"}, ("k",))


def test_evolution_keeps_ids(schema: TableSchema) -> None:
    """Rename, widen and move keep a column's id; a dropped id is never used again."""
    changed = add_column(schema, "x", "STRING", comment="new")
    assert (changed.id, changed.fields[-1]) == (1, DataField(4, "x", "STRING", description="new"))
    changed = add_column(drop_column(changed, "x"), "x", "STRING")
    assert changed.fields[-1].id == 5
    changed = widen_column(rename_column(changed, "v", "value"), "value", "BIGINT")
    assert changed.field_by_name("value") == DataField(2, "value", "BIGINT")
    assert names(move_column(changed, "x")) == ["x", "dt", "k", "value", "w"]
    assert names(move_column(changed, "x", after="k")) == ["dt", "k", "x", "value", "w"]
    assert names(add_column(schema, "first", "INT", first=True))[0] == "first"
    assert add_column(schema, "first", "INT", first=True).id == 1


def test_nested_columns_get_ids(schema: TableSchema) -> None:
    """Fields inside a new nested column have ids of their own, and the next column's comes after them."""
    changed = add_column(schema, "n", "ROW<a: INT, b: ARRAY<ROW<c: INT>>>")
    assert changed.fields[-1].type == "ROW<a@5: INT, b@7: ARRAY<ROW<c@6: INT>>>"
    assert add_column(changed, "after", "INT").fields[-1].id == 8


def test_ids_inside_an_added_type_are_not_taken_over(schema: TableSchema) -> None:
    """They are of another schema: fields get ids that no other field of the table has, or had."""
    changed = add_column(schema, "n", "ROW<a@0: INT, b@9: ARRAY<ROW<c@4: INT>>>")
    assert changed.fields[-1].type == "ROW<a@5: INT, b@7: ARRAY<ROW<c@6: INT>>>"
    inside = add_column(changed, ("n", "d"), "ROW<e@5: INT>")
    assert inside.fields[-1].type == "ROW<a@5: INT, b@7: ARRAY<ROW<c@6: INT>>, d@8: ROW<e@9: INT>>"
    assert inside.highest_field_id == 9


@pytest.mark.parametrize(
    "verb", [drop_column, lambda s, n: rename_column(s, n, "z"), lambda s, n: widen_column(s, n, "INT")]
)
@pytest.mark.parametrize("column", ["dt", "k"])
def test_keys_stay(schema: TableSchema, verb: object, column: str) -> None:
    """Key and partition columns cannot be dropped, renamed or retyped; the sentence says why."""
    with pytest.raises(InvalidRequest, match="existing files are laid out by it"):
        verb(schema, column)  # type: ignore[operator]


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        (lambda s: drop_column(s, "vv"), "did you mean 'v'"),
        (lambda s: add_column(s, "v", "INT"), "exists already"),
        (lambda s: add_column(s, "x", "INT NOT NULL"), "no value for it"),
        (lambda s: add_column(s, "_KEY_x", "INT"), "reserved"),
        (lambda s: add_column(s, " ", "INT"), "blank"),
        (lambda s: add_column(s, "a\udcff", "INT"), "not valid Unicode"),
        (lambda s: add_column(s, "x", "INTEGERS"), "not a valid type"),
        (lambda s: rename_column(s, "v", "w"), "exists already"),
        (lambda s: widen_column(s, "v", "SMALLINT"), "holds every old value"),
        (lambda s: widen_column(s, "v", "STRING"), "holds every old value"),
        (lambda s: move_column(s, "v", after="v"), "behind itself"),
        (lambda s: set_options(s, {"bucket": "4"}), "fixed at '1'"),
        (lambda s: remove_options(s, ["bucket"]), "fixed at '1'"),
        (lambda s: set_options(s, {"snapshot.num-retained.mim": "4"}), "did you mean 'snapshot.num-retained.min'"),
    ],
)
def test_refusals(schema: TableSchema, change: object, sentence: str) -> None:
    """Each change that cannot be is refused in one sentence."""
    with pytest.raises(InvalidRequest, match=sentence):
        change(schema)  # type: ignore[operator]


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ({"primary_keys": ["kk"]}, "did you mean 'k'"),
        ({"partition_keys": ["nope"]}, "does not exist"),
        ({"primary_keys": ["k"], "partition_keys": ["dt"]}, "not part of the primary key"),
        ({"primary_keys": ["k"], "partition_keys": ["k"]}, "partition columns only"),
        ({"primary_keys": ["k", "k"]}, "twice"),
        ({"options": {"bucket": "3"}}, "needs option 'bucket-key'"),
        ({"options": {"bucket": "3", "bucket-key": "q"}}, "does not exist"),
        ({"primary_keys": ["k"], "options": {"bucket": "1", "bucket-key": "v"}}, "not part of the primary key"),
        ({"primary_keys": None}, "Columns are given by their names, as one text or several, and NoneType was given"),
        ({"partition_keys": None}, "NoneType was given: leave the argument out if there are none"),
        ({"primary_keys": b"k"}, "Columns are given by their names, as one text or several, and int was given"),
        ({"primary_keys": 5}, "and int was given"),
        ({"primary_keys": ["k", None]}, "and NoneType was given"),
        ({"comment": 5}, "The comment of a table is a text, and int was given"),
    ],
)
def test_refused_tables(arguments: dict[str, object], sentence: str) -> None:
    """Keys and buckets that contradict the columns are refused at creation."""
    with pytest.raises(InvalidRequest, match=sentence):
        new_schema(COLUMNS, time_ms=0, **arguments)  # type: ignore[arg-type]


def test_doubled_and_missing_columns() -> None:
    """A table has columns, and each has its own name."""
    with pytest.raises(InvalidRequest, match="at least one column"):
        new_schema(pa.schema([]), time_ms=0)
    for wrong in ([("a", "INT")], {"a": "INT"}, pa.table({"a": [1]}), None):
        with pytest.raises(InvalidRequest, match="columns are a pyarrow\\.Schema or DataFields"):
            new_schema(wrong, time_ms=0)  # type: ignore[arg-type]
    with pytest.raises(InvalidRequest, match="'a' is named twice"):
        new_schema(pa.schema([("a", pa.int32()), ("a", pa.int32())]), time_ms=0)


def test_a_row_has_each_field_once(schema: TableSchema) -> None:
    """Also inside of other types, in a new table and in a new column: no reader can tell two fields of a name apart."""
    twice = pa.struct([("a", pa.int32()), ("a", pa.int32())])
    with pytest.raises(InvalidRequest, match="has the field 'a' twice"):
        new_schema(pa.schema([("c", pa.list_(twice))]), time_ms=0)
    with pytest.raises(InvalidRequest, match="has the field 'x' twice"):
        add_column(schema, "c", "MAP<STRING, ROW<x: INT, x: STRING>>")


def test_options_change(schema: TableSchema) -> None:
    """Other options are set and removed."""
    changed = set_options(schema, {"snapshot.time-retained": "1 d", "bucket": "1"})
    assert changed.options["snapshot.time-retained"] == "1 d"
    assert remove_options(changed, ["snapshot.time-retained", "write-only"]).options == {"bucket": "1"}


def test_defaults_of_other_clients_survive() -> None:
    """A default value that another client declared is still there after a change."""
    body = json.loads(encode_schema(new_schema(COLUMNS, time_ms=0)))
    body["fields"][2]["defaultValue"] = "7"
    schema = rename_column(decode_schema(json.dumps(body).encode(), path="p"), "v", "value")
    assert json.loads(encode_schema(schema))["fields"][2]["defaultValue"] == "7"


def test_old_versions_and_damage() -> None:
    """Old schema files mean what they meant; damage and newer versions are named."""
    body = json.loads(encode_schema(new_schema(COLUMNS, time_ms=0)))
    old = decode_schema(json.dumps(body | {"version": 1}).encode(), path="p")
    assert (old.options["bucket"], old.options["file.format"]) == ("1", "orc")
    with pytest.raises(UnsupportedFormat, match="version 9"):
        decode_schema(json.dumps(body | {"version": 9}).encode(), path="p")
    body["fields"][0]["type"] = "HYPERCUBE"
    with pytest.raises(UnsupportedFormat, match="schema-0: 'HYPERCUBE'"):
        decode_schema(json.dumps(body).encode(), path="schema-0")
    for damaged in (b"", b"[]", b"{}", json.dumps(body | {"fields": [{}]}).encode(), json.dumps(body)[:50].encode()):
        with pytest.raises(Corruption, match="schema-0"):
            decode_schema(damaged, path="schema-0")


def test_log(schema: TableSchema) -> None:
    """The log stores create-only: a concurrent change is redone on top of the other's, and both stay."""
    store = open_store("memory://test-schema-log")
    log, other = SchemaLog(store, Layout()), SchemaLog(store, Layout())
    assert log.latest() is None
    log.store_next(schema)
    log.store_next(schema)
    with pytest.raises(Conflict):
        other.store_next(replace(schema, comment="mine"))
    raced = []

    def change(latest: TableSchema) -> TableSchema:
        if not raced:
            raced.append(other.store_next(add_column(latest, "theirs", "INT")))
        return add_column(latest, "ours", "INT")

    result = log.change(change, time_ms=5)
    assert (result.id, names(result)[-2:], result.time_ms) == (2, ["theirs", "ours"], 5)
    assert SchemaLog(store, Layout()).ids() == [0, 1, 2]
    for unchanged in (lambda latest: latest, lambda latest: set_options(latest, {})):
        assert log.change(unchanged, time_ms=9) == result
    with pytest.raises(NotFound, match="Schema 7 does not exist"):
        log.load(7)
