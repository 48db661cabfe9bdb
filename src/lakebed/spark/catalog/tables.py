"""Verbs on tables and databases: load, create, alter, drop, list.

Invariants: a version is resolved once, by `Load`. `Load` also reads the rows of a system table.
"""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any, Final

import msgspec
import pyarrow as pa
from pyspark.sql.types import StructType

from lakebed.errors import InvalidRequest, NotFound
from lakebed.lake.lake import Lake
from lakebed.lake.names import DEFAULT_DATABASE, WAREHOUSE_SUFFIX, database_folder, parse_table_name
from lakebed.spark.catalog.plans import Readers, answer_with_changes
from lakebed.spark.catalog.verb import Resolved, Session, TableVerb, Verb, register_verb, snapshot_of, snapshot_text
from lakebed.spark.plan.carried import AUDIT_LOG, show_instants
from lakebed.spark.plan.change_rows import AUDITED, ChangeRows, Committed, change_fields
from lakebed.spark.plan.types import arrow_schema_of, spark_json, spark_schema
from lakebed.spark.tasks.native_writes import native_write
from lakebed.table.branch.travel import find_schema_id, resolve
from lakebed.table.changes.audit_log import plan_audit
from lakebed.table.model.model import Snapshot, TableSchema
from lakebed.table.model.option_values import check_listed, parse_names
from lakebed.table.model.types import type_of_arrow
from lakebed.table.read.scan import check_readable
from lakebed.table.read.vectors import has_option, skips_level_0
from lakebed.table.schema.schema import (
    add_column,
    drop_column,
    drop_not_null,
    move_column,
    remove_options,
    rename_column,
    set_column_comment,
    set_comment,
    set_options,
    widen_column,
)
from lakebed.table.table import Table, branch_of
from lakebed.table.versions.system import SYSTEM_TABLES, read_system_table
from lakebed.table.write.write_settings import WriteSettings

PRIMARY_KEY: Final = "primary-key"
"""The table property with the columns of the primary key, separated by commas; the same as Paimon's."""
PROVIDERS: Final = ("lakebed", "paimon", "parquet")
"""Allowed formats after USING: the tables are Paimon's, with Parquet files."""
_RESERVED: Final = ("provider", "owner", "location", "comment", "external", "is_managed_location", "table_type",
    "collation")  # fmt: skip
"""Properties that Spark adds to every table and manages itself."""


@register_verb("load")
class Load(TableVerb, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Resolve a table, or a version of it, or one of its system tables.

    Attributes:
        version: a snapshot id or the name of a tag or branch.
        timestamp_us: Unix time in microseconds, UTC, instead of a version.
        system: a system table, instead of the rows.
        is_dotted: the name has three parts, of which the last may be a system table.
    """

    version: str | None = None
    timestamp_us: int | None = None
    system: str | None = None
    is_dotted: bool = False

    def run(self, session: Session, lake_url: str) -> dict[str, Any]:
        if self.is_dotted and self.system not in SYSTEM_TABLES:
            raise NotFound(f"There is no table {self.table}.{self.system}.", kind="table_not_found")
        table = self.open_table(session, lake_url)
        travels = self.version is not None or self.timestamp_us is not None
        timestamp_ms = None if self.timestamp_us is None else self.timestamp_us // 1000
        target = resolve(table.context, version=self.version, timestamp=timestamp_ms) if travels else None
        if self.system is not None and self.system != AUDIT_LOG:
            rows = read_system_table(table.context, self.system, version=target)
            return {"rows": session.store_rows(show_instants(self.system, rows))}
        branch, snapshot, schema = self.branch, None, table.schema
        if target is not None:
            snapshot = target.snapshot
            if target.branch is not None:
                branch = target.branch
                table = branch_of(table, branch)
            schema = table.context.schemas.load(find_schema_id(table.context, snapshot))
        else:
            snapshot = table.latest()
            if snapshot is not None and snapshot.schema_id > schema.id:  # both were made after the table was opened
                schema = table.refresh()
        check_readable(schema)
        if self.system is not None:
            return {**describe_audit_log(schema, snapshot), "branch": branch}
        return {**describe_table(table, schema, snapshot), "branch": branch, "travels": travels}


def describe_table(table: Table, schema: TableSchema, snapshot: Snapshot | None) -> dict[str, Any]:
    """Return a version of a table in the form that the jar reads."""
    return {
        "name": table.name,
        "url": table.url,
        "branch": table.branch,
        "schema": spark_json(schema.fields),
        "schema_id": schema.id,
        "resolved": Resolved.of(schema),
        "partition_keys": schema.partition_keys,
        "primary_keys": schema.primary_keys,
        "properties": properties_of(schema),
        "snapshot": snapshot_text(snapshot),
        "snapshot_id": None if snapshot is None else snapshot.id,
        "row_count": 0 if snapshot is None else snapshot.total_record_count,
        "travels": False,
        "gathers": gathers(schema),
        "hides_new": bool(schema.primary_keys) and skips_level_0(schema),
        "marks": has_option(schema) and not schema.primary_keys,
        "native_write": native_write(table.store, schema),
    }


def properties_of(schema: TableSchema) -> dict[str, str]:
    """Return a table's properties in Spark's form: its options, its primary key and its comment."""
    properties = dict(schema.options)
    if schema.primary_keys:
        properties[PRIMARY_KEY] = ",".join(schema.primary_keys)
    if schema.comment:
        properties["comment"] = schema.comment
    return properties


def gathers(schema: TableSchema) -> bool:
    """Whether one task must get all rows of a bucket."""
    settings = WriteSettings.of(schema)
    return settings.bucket_count > 0 or settings.dynamic is not None


@register_verb("create_table")
class CreateTable(TableVerb, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Create a table.

    Attributes:
        schema: the columns, as Spark's JSON.
        partition_keys: names of columns.
        properties: options of the table, `PRIMARY_KEY`, and a comment.
    """

    schema: str
    partition_keys: tuple[str, ...] = ()
    properties: dict[str, str] = msgspec.field(default_factory=dict)

    def run(self, session: Session, lake_url: str) -> dict[str, Any]:
        columns = StructType.fromJson(json.loads(self.schema))
        check_place(self.properties)
        arrow = arrow_schema_of(columns)
        session.lake(lake_url).create_table(
            self.table,
            arrow,
            primary_keys=primary_keys_of(self.properties, arrow),
            partition_keys=self.partition_keys,
            options=table_options(self.properties),
            comment=self.properties.get("comment", ""),
        )
        return {}


def check_place(properties: dict[str, str]) -> None:
    """Refuse another format, another location, and a collation."""
    provider = properties.get("provider", PROVIDERS[0])
    if provider.lower() not in PROVIDERS:
        raise InvalidRequest(
            f"USING {provider} is not possible in a lake, whose tables are lakebed's: leave it out.",
            kind="unsupported_provider",
        )
    if "external" in properties:
        raise InvalidRequest(
            "CREATE EXTERNAL TABLE is not possible: a table of a lake is the lake's, and DROP TABLE deletes its files. "
            "Leave out EXTERNAL; CALL sys.import_table takes files from elsewhere.",
            kind="unsupported_location",
        )
    if any(name.startswith("hive.") for name in properties):
        raise InvalidRequest(
            "STORED AS and ROW FORMAT are not possible in a lake, whose tables have Parquet files: leave them out.",
            kind="unsupported_provider",
        )
    if properties.get("collation", "UTF8_BINARY").upper() != "UTF8_BINARY":
        raise InvalidRequest(
            "DEFAULT COLLATION is not possible: tables of a lake store no collation. Leave it out, and write COLLATE "
            "in queries.",
            kind="unsupported_type",
        )
    if "location" in properties:
        raise InvalidRequest(
            f"LOCATION {properties['location']!r} is not possible: a table of a lake is in the lake's own folder. "
            "Leave it out.",
            kind="unsupported_location",
        )


def primary_keys_of(properties: dict[str, str], columns: pa.Schema) -> list[str]:
    """Return the columns in the property of the primary key.

    Raises `InvalidRequest`: the name of a key column has a comma.
    """
    text = properties.get(PRIMARY_KEY, "")
    check_listed(text, columns.names, what=f"The property {PRIMARY_KEY!r}")
    return list(parse_names(text))


def table_options(properties: dict[str, str]) -> dict[str, str]:
    """Return the table's options among Spark's properties. Spark repeats an OPTIONS clause with a prefix."""
    return {
        name: value
        for name, value in properties.items()
        if name not in _RESERVED and name != PRIMARY_KEY and not name.startswith("option.")
    }


class Change(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One change of ALTER TABLE.

    Attributes:
        kind: ``set``, ``unset``, ``add``, ``drop``, ``rename``, ``widen``, ``nullable``, ``move``, ``comment``.
        name: of the option or the column; a list is the path of a field inside a column.
        value: the option's value, or the column's new name or comment.
        type: the column's type, as Spark's JSON.
        after: the column after which it is placed; empty: it becomes the first.
    """

    kind: str
    name: str | tuple[str, ...]
    value: str | None = None
    type: str | None = None
    after: str | None = None
    comment: str | None = None


@register_verb("alter_table")
class AlterTable(TableVerb, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Change columns, options and comments, in order, as one schema: all changes or none."""

    changes: list[Change]

    def run(self, session: Session, lake_url: str) -> dict[str, Any]:
        table = self.open_table(session, lake_url)

        def apply_changes(schema: TableSchema) -> TableSchema:
            new_schema = schema
            for change in self.changes:
                new_schema = _apply(new_schema, change)
            return replace(new_schema, id=schema.id + 1)

        table.context.schemas.change(apply_changes, time_ms=table.context.now_ms())
        return {}


def _apply(schema: TableSchema, change: Change) -> TableSchema:
    name, after = change.name, change.after or None
    if change.kind == "add":
        first = change.after == ""
        return add_column(schema, name, _type_text(change), comment=change.comment, after=after, first=first)
    if change.kind == "drop":
        return drop_column(schema, name)
    if change.kind == "rename":
        return rename_column(schema, name, change.value or "")
    if change.kind == "widen":
        return widen_column(schema, name, _type_text(change))
    if isinstance(name, tuple):
        raise InvalidRequest(
            f"The field {'.'.join(name)} is inside a column, where fields can only be added, dropped, renamed and "
            "widened.",
            kind="unsupported_change",
        )
    if change.kind in ("set", "unset") and name == PRIMARY_KEY:
        raise InvalidRequest(
            f"The primary key of a table cannot be changed, and it has {_keys_text(schema)}: create another table with "
            "PRIMARY KEY (...), and copy the rows.",
            kind="unsupported_change",
        )
    if change.kind in ("set", "unset") and name == "comment":
        return set_comment(schema, change.value or "")
    if change.kind == "set":
        return set_options(schema, {name: change.value or ""})
    if change.kind == "unset":
        return remove_options(schema, [name]) if name in schema.options else schema
    if change.kind == "nullable":
        return drop_not_null(schema, name)
    if change.kind == "move":
        return move_column(schema, name, after=after)
    if change.kind == "comment":
        return set_column_comment(schema, name, change.value)
    raise InvalidRequest(
        f"ALTER TABLE cannot {change.kind} here: change options and comments, or add, drop, rename, widen or move "
        "columns.",
        kind="unsupported_change",
    )


def _keys_text(schema: TableSchema) -> str:
    return f"({', '.join(schema.primary_keys)})" if schema.primary_keys else "none"


def _type_text(change: Change) -> str:
    """Return the type of a column in the form of the table format."""
    spark_type = json.loads(change.type or "null")
    members = {
        "name": change.name if isinstance(change.name, str) else ".".join(change.name),
        "type": spark_type,
        "nullable": True,
        "metadata": {},
    }
    column = arrow_schema_of(StructType.fromJson({"type": "struct", "fields": [members]})).field(0)
    return type_of_arrow(column.type)


def _drop(lake: Lake, name: str, *, dry_run: bool = False) -> None:
    """Drop a table. Raises `InvalidRequest` if tags or branches pin it, because SQL has no words to ignore pins."""
    try:
        lake.drop_table(name, dry_run=dry_run)
    except InvalidRequest as error:
        if error.kind != "table_pinned":
            raise
        raise InvalidRequest(
            f"The table {name} is pinned by {error.facts['pins']}: delete these first, with ALTER TABLE ... DROP TAG "
            "and DROP BRANCH.",
            kind=error.kind,
        ) from error


@register_verb("drop_table")
class DropTable(TableVerb, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Drop a table. Refuse one with tags or branches."""

    def run(self, session: Session, lake_url: str) -> dict[str, Any]:
        lake = session.lake(lake_url)
        if not lake.has_table(self.table):
            return {"dropped": False}
        _drop(lake, self.table)
        return {"dropped": True}


@register_verb("list_tables")
class ListTables(Verb, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """List the tables of a database."""

    database: str

    def run(self, session: Session, lake_url: str) -> dict[str, Any]:
        names = map(parse_table_name, session.lake(lake_url).tables())
        return {"names": [name.table for name in names if name.database == self.database]}


@register_verb("list_databases")
class ListDatabases(Verb, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """List the databases that have tables, and the default one."""

    def run(self, session: Session, lake_url: str) -> dict[str, Any]:
        return {"names": databases(session.lake(lake_url))}


@register_verb("check_database")
class CheckDatabase(Verb, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Check that a database can be created or dropped; change nothing. Raise if not.

    Attributes:
        to_drop: also check that each of its tables can be dropped, so that a drop of all does not stop halfway.
    """

    database: str
    to_drop: bool = False

    def run(self, session: Session, lake_url: str) -> dict[str, Any]:
        database_folder(self.database)  # raises for an invalid name
        lake = session.lake(lake_url)
        names = [parse_table_name(text) for text in lake.tables()] if self.to_drop else []
        for name in names:
            if name.database == self.database:
                _drop(lake, str(name), dry_run=True)
        return {}


def databases(lake: Lake) -> list[str]:
    """Return the databases that have a folder, and the default one, sorted. Cost: 1 LIST."""
    folders = lake.store.list_with_delimiter("").folders
    names = {folder.removesuffix(WAREHOUSE_SUFFIX) for folder in folders if folder.endswith(WAREHOUSE_SUFFIX)}
    return sorted({*names, DEFAULT_DATABASE} - {""})


def describe_audit_log(schema: TableSchema, snapshot: Snapshot | None) -> dict[str, Any]:
    """Return ``$audit_log`` of a version in the form that the jar reads."""
    names = [AUDITED.name, *(field.name for field in schema.fields)]
    return {
        "audited": spark_schema(change_fields(schema, names)).json(),
        "schema_id": schema.id,
        "snapshot": snapshot_text(snapshot),
    }


@register_verb("plan_audit")
class PlanAudit(TableVerb, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Plan to read ``$audit_log`` of the version that `Load` resolved. Executors read its rows.

    Attributes:
        snapshot, schema_id: from the reply of `Load`; no snapshot: the table has no rows.
        columns, task_count_min: as in `Plan`.
    """

    snapshot: str | None = None
    schema_id: int
    columns: list[str]
    task_count_min: int = 1

    def run(self, session: Session, lake_url: str) -> dict[str, Any]:
        table = self.open_table(session, lake_url)
        units, plan = plan_audit(table.context, snapshot_of(self.snapshot), schema_id=self.schema_id)
        rows = ChangeRows(plan, tuple(self.columns or [AUDITED.name]))
        committed = [Committed(unit, 0, 0) for unit in units]
        return answer_with_changes(session, table.store, committed, rows, readers=Readers((), self.task_count_min))
