"""Whether files that another client wrote have the columns of the schema that they name.

In a branch of a repository a reset takes schemas back, and the next change of the columns gives another schema the same
id. A client that opened the table before the reset writes with the old schema, and its commit names nothing but that
id. Its values would be shown in other columns, or in none. So one of its files is read for each schema: a client has
one view of the columns.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import pyarrow as pa

import lakebed.compute as pc
from lakebed.errors import Conflict, Corruption, NotFound
from lakebed.table.branch.context import TableBranch
from lakebed.table.codec.manifest import ADD
from lakebed.table.commit.presence import is_taken_back
from lakebed.table.files.adopt import read_footer
from lakebed.table.files.data_file import KEY_PREFIX
from lakebed.table.files.placement import Placement
from lakebed.table.model.model import TableSchema
from lakebed.table.model.row_kinds import SYSTEM_COLUMNS
from lakebed.table.model.types import arrow_type

_FORMAT: Final = ".parquet"
_KINDS: Final = (
    pa.types.is_boolean,
    pa.types.is_integer,
    pa.types.is_floating,
    pa.types.is_decimal,
    pa.types.is_date,
    pa.types.is_timestamp,
    lambda kind: pa.types.is_string(kind) or pa.types.is_large_string(kind),
    pa.types.is_struct,
    lambda kind: pa.types.is_list(kind) or pa.types.is_large_list(kind),
)


def check_columns(
    branch: TableBranch, entries: pa.Table, schema: TableSchema, *, select_new: Callable[[pa.Table], pa.Table]
) -> None:
    """Raise if new files have other columns than their schemas; only in a branch of a repository.

    Args:
        entries: the entries of a change.
        schema: the newest schema.
        select_new: selects the entries that add, in the table's own folders, files that no version has.

    Raises `Conflict`, kind ``schema_changed``. Cost: nothing elsewhere; 1 HEAD and 1 GET for each schema of the new
    files.
    """
    if not is_taken_back(branch):
        return
    added_entries = select_new(
        entries.filter(pc.and_(pc.equal(entries["kind"], ADD), pc.is_null(entries["external_path"])))
    )
    seen_ids: set[int] = set()
    columns = ("schema_id", "partition", "bucket", "file_name", "file_size")
    for schema_id, partition, bucket, name, size_bytes in zip(
        *(added_entries[column].to_pylist() for column in columns), strict=True
    ):
        if schema_id in seen_ids or not name.endswith(_FORMAT):
            continue
        seen_ids.add(schema_id)
        for folder in Placement.of(schema).folders(partition, bucket):
            try:
                footer = read_footer(branch.store, f"{folder}/{name}", size_bytes=size_bytes)
            except (NotFound, Corruption):
                continue  # in another folder; or damaged, which readers report
            other_column = _find_other(footer.schema.to_arrow_schema(), branch.schemas.load(schema_id))
            if other_column is not None:
                raise Conflict(
                    f"The file {folder}/{name} has a column {other_column.name!r} of {other_column.type}, and schema "
                    f"{schema_id}, under which it was written, has none such: a reset of the branch took the columns "
                    "back since its writer opened the table. Nothing was changed: open the table again and redo the "
                    "change.",
                    kind="schema_changed",
                    column=other_column.name,
                )


def _find_other(file_schema: pa.Schema, schema: TableSchema) -> pa.Field | None:
    """A column of a file that a schema lacks, or has as another kind of type."""
    for field in file_schema:
        if field.name in SYSTEM_COLUMNS or field.name.startswith(KEY_PREFIX):
            continue
        column = schema.field_by_name(field.name)
        if column is None or not _is_alike(field.type, arrow_type(column.type)):
            return field
    return None


def _is_alike(file_type: pa.DataType, wanted_type: pa.DataType) -> bool:
    """Whether two types may belong to one column: clients write some types differently."""
    written_kinds, wanted_kinds = ([is_kind(kind) for is_kind in _KINDS] for kind in (file_type, wanted_type))
    return written_kinds == wanted_kinds or not any(written_kinds) or not any(wanted_kinds)
