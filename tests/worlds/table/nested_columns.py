"""A table whose structs, lists and maps hold nulls at each level, and whose members are renamed, dropped and added."""

from __future__ import annotations

from typing import Any

import pyarrow as pa

from lakebed import Lake, Table

_INNER = pa.struct([("x", pa.string()), ("y", pa.int32())])
SCHEMA = pa.schema(
    [
        pa.field("id", pa.int64(), nullable=False),
        ("s", pa.struct([("a", pa.int32()), ("b", pa.string()), ("in", _INNER)])),
        ("l", pa.list_(pa.struct([("x", pa.string()), ("n", pa.list_(pa.int64()))]))),
        ("m", pa.map_(pa.string(), pa.struct([("q", pa.float64()), ("r", pa.int32())]))),
        ("deep", pa.map_(pa.int32(), pa.list_(pa.struct([("z", pa.map_(pa.string(), pa.decimal128(9, 2)))])))),
        ("words", pa.list_(pa.string())),
        ("t", pa.struct([("at", pa.timestamp("us")), ("day", pa.date32())])),
    ]
)
OLD: list[dict[str, Any]] = [
    {
        "id": 1,
        "s": {"a": 1, "b": "x", "in": {"x": "ü", "y": 5}},
        "l": [{"x": "u", "n": [1, None]}, None],
        "m": [("k", {"q": 1.5, "r": 1}), ("n", None)],
        "deep": [(1, [{"z": [("k", None)]}, None]), (2, None)],
        "words": ["a", None, ""],
        "t": {"at": 1, "day": 2},
    },
    {"id": 2, "s": None, "l": None, "m": None, "deep": None, "words": None, "t": None},
    {"id": 3, "s": {"a": None, "b": None, "in": None}, "l": [], "m": [], "deep": [], "words": [], "t": {}},
    {
        "id": 4,
        "s": {"a": 4, "b": "old", "in": {"x": None, "y": None}},
        "l": [{"x": None, "n": None}, {"x": "v", "n": []}],
        "m": [("z", {"q": None, "r": None})],
        "deep": [(7, [])],
    },
]
NEW: list[dict[str, Any]] = [
    {
        "id": 10,
        "s": {"a2": 9, "b": 2**40, "in": {"x": "n", "y": 3, "w": [{"k": "kk"}, None]}},
        "l": [{"n": [5], "added": 3, "x": 7}],
        "m": [("k", {"r2": 2.5, "q": "text"})],
        "deep": [(3, [{"z": [("k", None)]}])],
    },
    {"id": 11, "s": {"a2": None, "b": None, "in": None}, "l": [None], "m": [("k", None)], "deep": None},
]


def create(lake: Lake, name: str, **settings: Any) -> Table:
    """The table with its first rows, tagged ``first``."""
    table = lake.create_table(name, SCHEMA, **settings)
    put(table, OLD)
    table.create_tag("first")
    return table


def put(table: Table, rows: list[dict[str, Any]]) -> None:
    """Append rows, or upsert them and merge what has to be merged."""
    values = pa.Table.from_pylist(rows, table.arrow_schema)
    if table.schema.primary_keys:
        table.upsert(values)
        table.compact(full=True)
    else:
        table.append(values)


def change(table: Table) -> None:
    """Rename, drop and add members, also under the names of others before them; add rows."""
    table.drop_column(("s", "b"))
    table.add_column(("s", "b"), "BIGINT")
    table.rename_column(("s", "a"), "a2")
    table.add_column(("s", "in", "w"), "ARRAY<ROW<k STRING>>")
    table.add_column(("l", "element", "added"), "INT")
    table.drop_column(("l", "element", "x"))
    table.add_column(("l", "element", "x"), "INT")
    table.rename_column(("m", "value", "q"), "r2")
    table.drop_column(("m", "value", "r"))
    table.add_column(("m", "value", "q"), "STRING")
    put(table, NEW)


def canonical(value: Any) -> Any:
    """A value in the same form for every client: structs and maps as sorted pairs, lists as tuples."""
    if isinstance(value, list) and value and all(isinstance(item, tuple) and len(item) == 2 for item in value):
        value = dict(value)
    if isinstance(value, dict):
        return tuple(sorted(((key, canonical(item)) for key, item in value.items()), key=repr))
    return tuple(map(canonical, value)) if isinstance(value, list | tuple) else value
