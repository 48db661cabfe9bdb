"""Field ids of columns, nested ones included, by path. Pure."""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa

from lakebed.table.model.types import FIELD_ID_KEY

Ids = Iterator[tuple[tuple[str, ...], int | None]]


def ids_of(schema: pa.Schema) -> Ids:
    """Each column and each field inside of one, with its id; None where none is stated.

    Elements of lists are at ``[]``, keys and values of maps at ``key`` and ``value``, whatever the file calls them.
    """
    for field in schema:
        yield from _ids((field.name,), field)


def _ids(path: tuple[str, ...], field: pa.Field) -> Ids:
    stated = (field.metadata or {}).get(FIELD_ID_KEY)
    yield path, None if stated is None else int(stated)
    yield from _ids_inside(path, field.type)


def _ids_inside(path: tuple[str, ...], kind: pa.DataType) -> Ids:
    types = pa.types
    if types.is_struct(kind):
        for member in kind:
            yield from _ids((*path, member.name), member)
    elif types.is_list(kind) or types.is_large_list(kind):
        yield from _ids_inside((*path, "[]"), kind.value_type)
    elif types.is_map(kind):
        yield from _ids_inside((*path, "key"), kind.key_type)
        yield from _ids_inside((*path, "value"), kind.item_type)
