"""In which data files Iceberg's clients find which columns: by ids, or by names where a file has no ids at all.

Owns: `FileIds`, what the footers of some files say. It is written into the manifests and lists of those files, so that
a footer is read once. Only tables with nested columns, or with a name that meant two columns, need it.

In a file that has any id, a client finds a column by the ids of the column and all its parts. Files of lakebed and of
the format's Java client have them. In a file without ids, such as those of pypaimon, a client finds a column by names
(`columns.NameMapping`).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import msgspec
import pyarrow as pa

from lakebed.decoding import decode_json
from lakebed.errors import Corruption
from lakebed.table.iceberg.columns import NameMapping, is_nested
from lakebed.table.model.model import TableSchema
from lakebed.table.model.types import FIELD_ID_KEY, file_field

HEADER_KEY: Final = "lakebed.file-ids"
"""Key of `FileIds` in the header of a manifest or list. DO NOT CHANGE: on disk."""


@dataclass(frozen=True, slots=True)
class FileIds:
    """What is known of the ids in some data files. It does not depend on the present schema."""

    lost: frozenset[int] = frozenset()
    """Columns for which some file with ids lacks their own id or that of a part."""
    unmarked: frozenset[int] = frozenset()
    """Schemas with which files without any id were written."""

    def __or__(self, other: FileIds) -> FileIds:
        return FileIds(self.lost | other.lost, self.unmarked | other.unmarked)

    def header(self) -> dict[str, str]:
        """As metadata of an Avro file."""
        members = {"lost": sorted(self.lost), "unmarked": sorted(self.unmarked)}
        return {HEADER_KEY: msgspec.json.encode(members).decode()}

    def find_hidden(
        self, schema: TableSchema, written: Mapping[int, TableSchema], names: NameMapping
    ) -> frozenset[int]:
        """The columns of a schema that clients do not find in one of the files.

        Args:
            written: the schemas with which files were written.
            names: the table's name mapping.
        """
        older = [written[number] for number in sorted(self.unmarked) if number in written]
        return frozenset(
            column.id
            for column in schema.fields
            if column.id in self.lost
            or any(
                not names.finds(old_column)
                for old_schema in older
                for old_column in old_schema.fields
                if old_column.id == column.id
            )
        )


def union(parts: Iterable[FileIds]) -> FileIds:
    """What is known of all files together."""
    total = FileIds()
    for part in parts:
        total |= part
    return total


def parse_header(metadata: Mapping[str, Any], *, path: str) -> FileIds:
    """`FileIds` of the metadata of an Avro file. Raises `Corruption`."""
    try:
        members = decode_json(metadata[HEADER_KEY], dict[str, list[int]])
        return FileIds(frozenset(members["lost"]), frozenset(members["unmarked"]))
    except (KeyError, msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise Corruption(
            f"{path} does not say which columns its files have: delete the folder of the table's Iceberg objects; "
            "it is made again.",
            path=path,
        ) from error


def has_to_look(schemas: Sequence[TableSchema]) -> bool:
    """Whether the footers of a table with these schemas must be read."""
    return NameMapping(schemas).is_ambiguous or any(map(is_nested, (c for s in schemas for c in s.fields)))


def ids_of_file(columns: pa.Schema, written: TableSchema) -> FileIds:
    """What a file's footer says.

    Args:
        columns: the file's columns, with ids in the metadata (`FIELD_ID_KEY`).
        written: the schema with which it was written.
    """
    if not any(_id_of(field) is not None for column in columns for field in _walk(column)):
        return FileIds(unmarked=frozenset([written.id]))
    in_file = {column.name: column for column in columns}
    return FileIds(
        lost=frozenset(
            column.id
            for column in written.fields
            if column.name in in_file and not _has_ids(in_file[column.name], file_field(column))
        )
    )


def _id_of(field: pa.Field) -> int | None:
    id_text = (field.metadata or {}).get(FIELD_ID_KEY)
    return None if id_text is None else int(id_text)


def _inside(kind: pa.DataType) -> list[tuple[str, pa.Field]]:
    """What is directly inside a type, by name; parts of lists and maps by their meaning."""
    types = pa.types
    if types.is_struct(kind):
        return [(member.name, member) for member in kind]
    if types.is_list(kind) or types.is_large_list(kind):
        return [("element", kind.value_field)]
    if types.is_map(kind):
        return [("key", kind.key_field), ("value", kind.item_field)]
    return []


def _walk(field: pa.Field) -> Iterator[pa.Field]:
    yield field
    for _, inner in _inside(field.type):
        yield from _walk(inner)


def _has_ids(actual: pa.Field, wanted_field: pa.Field) -> bool:
    if _id_of(actual) != _id_of(wanted_field):
        return False
    wanted_inside, actual_inside = dict(_inside(wanted_field.type)), _inside(actual.type)
    return all(name in wanted_inside and _has_ids(inner, wanted_inside[name]) for name, inner in actual_inside)
