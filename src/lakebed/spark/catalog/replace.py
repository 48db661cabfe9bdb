"""REPLACE TABLE: replace the columns and the rows of a table together. The older versions stay.

Invariants: the files of the new rows are written before the table changes. Then the commit stores the next schema, and
immediately afterwards the snapshot that replaces all rows. If the snapshot is refused, the old columns are stored again
as one more schema. A crash between the schema and the snapshot leaves the old rows under the new columns; new columns
are null in them. Older versions do not change, and the statement can be run again.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import msgspec
from pyspark.sql.types import StructType

from lakebed.errors import Conflict, InvalidRequest
from lakebed.spark.catalog.tables import PRIMARY_KEY, check_place, describe_table, primary_keys_of, table_options
from lakebed.spark.catalog.verb import COLUMNS_CHANGED, Resolved, Session, TableVerb, register_verb
from lakebed.spark.plan.types import arrow_schema_of
from lakebed.table.model.model import TableSchema
from lakebed.table.schema.replace_columns import replace_columns
from lakebed.table.schema.schema import decode_schema, encode_schema, with_nulls_of
from lakebed.table.table import Table


@register_verb("replace_table")
class ReplaceTable(TableVerb, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Prepare the replacement of a table; change nothing. Answer as `Load`, with the columns that it will have.

    The reply's `staged` is the next schema, for `BeginWrite` and `Commit`; None: the columns stay.

    Attributes:
        schema: the columns, as Spark's JSON.
        partition_keys: names of columns.
        properties: as in `CreateTable`.
    """

    schema: str
    partition_keys: tuple[str, ...] = ()
    properties: dict[str, str] = msgspec.field(default_factory=dict)

    def run(self, session: Session, lake_url: str) -> dict[str, Any]:
        check_place(self.properties)
        table = self.open_table(session, lake_url)
        columns = StructType.fromJson(json.loads(self.schema))
        old_schema = table.refresh()
        arrow = arrow_schema_of(columns)
        new_schema = replace_columns(
            old_schema,
            arrow,
            partition_keys=self.partition_keys,
            primary_keys=primary_keys_of(self.properties, arrow) if PRIMARY_KEY in self.properties else None,
            options=table_options(self.properties),
        )
        staged_schema = None if new_schema is old_schema else encode_schema(new_schema).decode()
        return {
            **describe_table(table, new_schema, table.latest()),
            "staged": staged_schema,
            "resolved": Resolved.of(old_schema),
        }


def decode_staged(text: str | None) -> TableSchema | None:
    """Decode the `staged` of `ReplaceTable`."""
    return None if text is None else decode_schema(text.encode(), path="request")


@contextmanager
def next_schema(table: Table, staged: TableSchema) -> Iterator[None]:
    """Store the next schema for a commit. If the commit is refused, store the old columns again.

    Raises `Conflict`: kind `COLUMNS_CHANGED`: another writer changed the columns meanwhile; nothing was changed.
    """
    schemas = table.context.schemas
    old_schema = table.refresh()
    now_ms = table.context.now_ms()
    try:
        if old_schema.id != staged.id - 1:
            raise Conflict("The schema is a later one.", kind=COLUMNS_CHANGED)
        stored_schema = schemas.store_next(replace(staged, time_ms=now_ms))
    except Conflict as conflict:
        raise Conflict(
            f"Another writer changed the columns of {table.name} while it was to be replaced. Nothing was changed: run "
            "the statement again.",
            kind=COLUMNS_CHANGED,
        ) from conflict
    newest = table.latest()
    try:
        yield
    except (InvalidRequest, Conflict):
        if table.refresh() == stored_schema:
            highest = stored_schema.highest_field_id
            back = schemas.store_next(
                replace(old_schema, id=stored_schema.id + 1, highest_field_id=highest, time_ms=now_ms)
            )
            _take_back_not_null(table, stored_schema, back, after_id=0 if newest is None else newest.id)
        raise


def _take_back_not_null(table: Table, stored_schema: TableSchema, back: TableSchema, *, after_id: int) -> None:
    """Make restored columns nullable if rows lack them that other writers committed with the schema in between."""
    relaxed = with_nulls_of(back, stored_schema)
    later_snapshots = (snapshot for snapshot in table.snapshots() if snapshot.id > after_id)
    if relaxed != back and any(snapshot.schema_id == stored_schema.id for snapshot in later_snapshots):
        table.context.schemas.store_next(replace(relaxed, id=back.id + 1))
