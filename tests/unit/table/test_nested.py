"""Fields inside nested columns: added, dropped and renamed; rows of older files are read as they are meant."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from lakebed.errors import InvalidRequest
from lakebed.objects import open_store
from lakebed.table.model.nested import carry_nested
from lakebed.table.model.types import field_ids_inside, parse_type
from lakebed.table.schema.schema import decode_schema, encode_schema
from lakebed.table.table import Table

INNER = pa.struct([("c", pa.int32())])
COLUMNS = pa.schema(
    [
        pa.field("id", pa.int64(), nullable=False),
        ("s", pa.struct([("a", pa.int32()), ("b", INNER)])),
        ("l", pa.list_(pa.struct([("x", pa.int32())]))),
        ("m", pa.map_(pa.string(), pa.struct([("y", pa.int32())]))),
    ]
)
OLD = [
    {"id": 1, "s": {"a": 1, "b": {"c": 2}}, "l": [{"x": 3}, None], "m": [("k", {"y": 4}), ("n", None)]},
    {"id": 2, "s": None, "l": None, "m": None},
    {"id": 3, "s": {"a": 5, "b": None}, "l": [], "m": []},
]


def made(folder: Path, *, keyed: bool) -> Table:
    """A table with the rows `OLD` in one file."""
    more: dict[str, Any] = {"primary_keys": ["id"], "options": {"bucket": "1"}} if keyed else {}
    table = Table.create(open_store(folder / "t", durable=False), name="t", schema=COLUMNS, **more)
    table.write(pa.Table.from_pylist(OLD, schema=COLUMNS))
    return table


@pytest.mark.parametrize("keyed", [False, True])
def test_rows_of_older_files_have_the_fields_of_today(tmp_path: Path, keyed: bool) -> None:
    """A renamed field keeps its values, a new one is null, one that was dropped and added again has no old values."""
    table = made(tmp_path, keyed=keyed)
    table.add_column(("s", "d"), "STRING", comment="new")
    table.rename_column(("s", "a"), "aa")
    table.add_column(("s", "b", "e"), "ROW<f: INT>", first=True)
    table.rename_column(("l", "element", "x"), "xx")
    table.add_column(("l", "element", "z"), "INT", after="xx")
    table.add_column(("m", "value", "w"), "INT")
    table.drop_column(("m", "value", "y"))
    table.add_column(("m", "value", "y"), "BIGINT")
    expected = [
        {
            "id": 1,
            "s": {"aa": 1, "b": {"e": None, "c": 2}, "d": None},
            "l": [{"xx": 3, "z": None}, None],
            "m": [("k", {"w": None, "y": None}), ("n", None)],
        },
        {"id": 2, "s": None, "l": None, "m": None},
        {"id": 3, "s": {"aa": 5, "b": None, "d": None}, "l": [], "m": []},
    ]
    assert table.read().to_pylist() == expected
    assert table.read(where="id >= 2").to_pylist() == expected[1:]
    assert table.read(version=1).to_pylist() == OLD
    added = {
        **expected[0],
        "id": 4,
        "s": {"aa": 7, "b": {"e": {"f": 8}, "c": 9}, "d": "x"},
        "m": [("k", {"w": 1, "y": 2})],
    }
    table.write(pa.Table.from_pylist([added], schema=table.arrow_schema))
    for _ in range(2):
        assert sorted(table.read().to_pylist(), key=lambda row: row["id"]) == [*expected, added]
        table.compact(full=True)
    schema = table.schema
    assert decode_schema(encode_schema(schema), path="x") == schema
    ids = [number for field in schema.fields for number in (field.id, *field_ids_inside(parse_type(field.type)))]
    assert len(set(ids)) == len(ids)
    assert max(ids) == schema.highest_field_id


def test_slices_keep_their_rows() -> None:
    """Arrays that begin inside others, with nulls before and between, give the rows that they had."""
    stored, wanted = parse_type("ARRAY<ROW<x@1: INT>>"), parse_type("ARRAY<ROW<y@2: INT, z@1: BIGINT>>")
    rows = [[{"x": 1}], None, [{"x": 2}, None, {"x": 3}], [], [{"x": None}]]
    column = pa.chunked_array([pa.array(rows, pa.list_(pa.struct([("x", pa.int32())])))])
    expected = [
        None if row is None else [None if member is None else {"y": None, "z": member["x"]} for member in row]
        for row in rows
    ]
    for start in range(len(rows)):
        assert carry_nested(column.slice(start, 3), stored, wanted).to_pylist() == expected[start : start + 3]
    assert carry_nested(column.slice(9), stored, wanted).to_pylist() == []


@pytest.mark.parametrize(
    ("path", "sentence"),
    [
        (("s", "a"), "'a' exists already"),
        (("s", "a", "x"), "INT has no fields"),
        (("s", "no", "x"), "There is no field 'no': there are a, b"),
        (("l", "x"), "has no fields: only those of a ROW"),
        (("m", "key", "x"), "has no field 'key' that can be changed"),
        (("no", "x"), "'no' does not exist"),
        (("s", " "), "must not be blank"),
    ],
)
def test_paths_that_lead_nowhere_are_refused(tmp_path: Path, path: tuple[str, ...], sentence: str) -> None:
    """A sentence says what there is, and the schema stays."""
    table = made(tmp_path, keyed=False)
    with pytest.raises(InvalidRequest, match=sentence):
        table.add_column(path, "INT")
    with pytest.raises(InvalidRequest, match="is the only one and cannot be dropped"):
        table.drop_column(("l", "element", "x"))
    with pytest.raises(InvalidRequest, match="cannot be added as NOT NULL"):
        table.add_column(("s", "n"), "INT NOT NULL")
    assert table.schema.id == 0
