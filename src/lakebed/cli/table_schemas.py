"""Commands that create, describe and change tables: create, describe, drop, columns, options."""

from __future__ import annotations

import re
from typing import Annotated, Any, Final

from lakebed.cli import json_output, output, table_output
from lakebed.cli.arguments import names
from lakebed.cli.command import Confirmed, Deletion
from lakebed.cli.context import BranchTableCommand, TableCommand
from lakebed.cli.grammar import argument, option, pairs
from lakebed.cli.loading import load
from lakebed.errors import AlreadyExists, InvalidRequest, NotFound
from lakebed.table.model.model import DataField, TableSchema
from lakebed.table.model.option_values import check_listed
from lakebed.table.model.types import parse_type

Column = Annotated[str, argument("COLUMN", help="The column's name.")]
Type = Annotated[str, argument("TYPE", help="Such as BIGINT, STRING, 'DECIMAL(10, 2)', 'TIMESTAMP(6)'.")]


OptionPairs = Annotated[list[str], argument("KEY=VALUE", help="Such as bucket=4.")]


class Create(TableCommand, name="create"):
    """Create a table, and the lake if there is none yet."""

    column: Annotated[
        list[str] | None,
        option("--column", "-c", help="A column: 'id BIGINT NOT NULL'. Once for each, in order.", metavar="TEXT"),
    ] = None
    like: Annotated[
        str | None, option("--like", metavar="FILE", help="Take the columns of a CSV, JSON or Parquet file.")
    ] = None
    primary_key: Annotated[
        str | None, option("--primary-key", help="Columns of the key, comma-separated: rows are then upserted.")
    ] = None
    partition_by: Annotated[str | None, option("--partition-by", help="Partition columns, comma-separated.")] = None
    option: Annotated[
        list[str] | None, option("--option", "-o", help="A table option: bucket=4.", metavar="KEY=VALUE")
    ] = None
    comment: Annotated[str, option("--comment", help="A description.")] = ""
    if_not_exists: Annotated[bool, option("--if-not-exists", help="Succeed if the table already exists.")] = False

    def run(self) -> None:
        if not (self.column or self.like or self.if_not_exists):
            self._check_is_new()
        # Before the lake is created, so that a mistake creates none.
        columns, options = _columns(self.column, self.like), pairs(self.option)
        for text, option_name in ((self.primary_key, "--primary-key"), (self.partition_by, "--partition-by")):
            check_listed(text or "", [column.name for column in columns], what=option_name)
        table = self.open_lake(create=True).create_table(
            self.table,
            columns,
            primary_keys=names(self.primary_key),
            partition_keys=names(self.partition_by),
            options=options,
            comment=self.comment,
            if_not_exists=self.if_not_exists,
        )
        self.result(
            {"table": table.name, "url": table.url, **table_output.of_schema(table.schema)},
            f"Created the table {table.name} with {output.count(len(table.schema.fields), 'column')} at {table.url}.",
        )

    def _check_is_new(self) -> None:
        """Raise `AlreadyExists` if the table exists, before missing columns are reported."""
        try:
            self.open_table()
        except NotFound:
            return
        raise AlreadyExists(
            f"The lake {self.lake} has a table {self.table} already: drop it first, or choose another name. "
            f"lakebed table describe {self.lake} {self.table} shows its columns.",
            kind="table_exists",
            table=self.table,
        )


class Describe(BranchTableCommand, name="describe"):
    """Show a table's columns, keys, options and newest version."""

    def run(self) -> None:
        table = self.open_branch()
        newest = table.latest()
        schema = table.schema
        if self.json:
            output.document(
                {
                    "table": table.name,
                    "url": table.url,
                    **table_output.of_schema(schema),
                    "newest": None if newest is None else table_output.of_snapshot(newest),
                    "tags": len(table.tags()),
                }
            )
            return
        output.sentence(f"{table.name} at {table.url}" + (f": {schema.comment}" if schema.comment else ""))
        if newest is None:
            output.sentence("Nothing was written into it yet.")
        else:
            rows = output.count(newest.total_record_count, "row")
            output.sentence(f"Version {newest.id}, {output.ago(newest.time_ms)}, {rows} stored; schema {schema.id}.")
        output.sentence("")
        output.grid(
            ("column", "type", "null", "key", "comment"),
            [
                (
                    field.name,
                    field.type,
                    "yes" if field.nullable else "no",
                    ", ".join(_roles(schema, field.name)),
                    field.description or "",
                )
                for field in schema.fields
            ],
            sentences=("type", "key", "comment"),
            empty="It has no columns.",
        )
        output.sentence("")
        output.sentence(f"options: {output.options_text(schema.options)}")


class Drop(Deletion, TableCommand, name="drop"):
    """Delete a table with all its versions and files. This is refused while tags or branches pin it."""

    force: Annotated[bool, option("--force", help="Drop it even if tags or branches pin its versions.")] = False

    def run(self) -> None:
        lake = self.open_lake()
        plan = lake.drop_table(self.table, force=self.force, dry_run=True)
        if not self.dry_run:
            deletions = json_output.of_report(plan)
            amount = f"{output.count(deletions['deleted'], 'file')}, {output.size(deletions['bytes'])}"
            self.ask(f"Delete the table {self.table} for good ({amount})?")
            with output.progress("deleting") as progress:
                plan = lake.drop_table(self.table, force=self.force, progress=progress)
        json_output.print_report(plan, json=self.json)


class AddColumn(TableCommand, name="add-column"):
    """Add a column at the end. Existing rows have null in it."""

    column: Column
    type: Type
    comment: Annotated[str | None, option("--comment", help="A description.")] = None

    def run(self) -> None:
        table = self.open_table()
        table.add_column(self.column, self.type, comment=self.comment)
        _report_change(table, f"Added the column {self.column}.", json=self.json)


class DropColumn(Confirmed, TableCommand, name="drop-column"):
    """Remove a column. Older versions keep it. Adding it again does not restore its values."""

    column: Column

    def run(self) -> None:
        table = self.open_table()
        self.ask(f"Remove the column {self.column} from {self.table}?")
        table.drop_column(self.column)
        _report_change(table, f"Removed the column {self.column}.", json=self.json)


class RenameColumn(TableCommand, name="rename-column"):
    """Rename a column. Its values stay."""

    column: Column
    new: Annotated[str, argument("NEW", help="Its new name.")]

    def run(self) -> None:
        table = self.open_table()
        table.rename_column(self.column, self.new)
        _report_change(table, f"Renamed the column {self.column} to {self.new}.", json=self.json)


class WidenColumn(TableCommand, name="widen-column"):
    """Give a column a wider type, such as INT to BIGINT; no file is rewritten."""

    column: Column
    type: Type

    def run(self) -> None:
        table = self.open_table()
        table.widen_column(self.column, self.type)
        _report_change(table, f"The column {self.column} is {self.type} now.", json=self.json)


class SetOption(TableCommand, name="set-option"):
    """Set table options."""

    options: OptionPairs

    def run(self) -> None:
        table = self.open_table()
        table.set_options(pairs(self.options))
        _report_change(table, f"Set {', '.join(self.options)}.", json=self.json)


class UnsetOption(TableCommand, name="unset-option"):
    """Reset table options to their defaults."""

    names: Annotated[list[str], argument("KEY", help="Names of options.")]

    def run(self) -> None:
        table = self.open_table()
        table.remove_options(self.names)
        _report_change(table, f"Removed {', '.join(self.names)}.", json=self.json)


def _report_change(opened: Any, text: str, *, json: bool) -> None:
    schema = opened.refresh()
    output.result(
        json,
        {"table": opened.name, **table_output.of_schema(schema)},
        f"{text} {opened.name} has schema {schema.id} now.",
    )


def _roles(schema: TableSchema, name: str) -> list[str]:
    roles = ["primary key"] if name in schema.primary_keys else []
    return [*roles, "partition"] if name in schema.partition_keys else roles


_QUOTED_NAME: Final = re.compile(r"([`\"])((?:(?!\1).|\1\1)+)\1\s+(.+)", re.DOTALL)
"""A column whose name is in backquotes or double quotes, as in filters. A mark inside the name is doubled."""


def _columns(columns: list[str] | None, like: str | None) -> Any:
    """Return the columns of ``--column`` or ``--like``, as `Lake.create_table` takes them."""
    if bool(columns) == bool(like):
        raise InvalidRequest(
            "Name the columns: --column 'id BIGINT NOT NULL' once for each, or --like FILE.", kind="no_columns"
        )
    if like:
        return load("lakebed.cli.files").schema_of_file(like)  # readers of files take longer to load than the rest
    fields = []
    for position, text in enumerate(columns or ()):
        quoted_name = _QUOTED_NAME.fullmatch(text.strip())
        name, _, type_text = text.strip().partition(" ")
        if quoted_name is not None:
            mark, inner, type_text = quoted_name.groups()
            name = inner.replace(2 * mark, mark)
        if not type_text.strip():
            raise InvalidRequest(
                f"The column {text!r} has no type: write its name and type, such as 'id BIGINT NOT NULL', and a name "
                "with a space in backquotes.",
                kind="invalid_column",
            )
        column_type = parse_type(type_text.strip())
        fields.append(DataField(position, name, column_type.text, nullable=column_type.nullable))
    return fields
