"""Commands that make, describe and change tables: create, describe, drop, columns, options."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

from lakebed.cli import args, facts, say
from lakebed.cli.args import DryRun, Json, LakeUrl, TableName, Yes
from lakebed.cli.grammar import Group, argument, option
from lakebed.errors import InvalidRequest

if TYPE_CHECKING:
    from lakebed.table.model import TableSchema

__all__ = ["register"]

Column = Annotated[str, argument("COLUMN", help="The column's name.")]
Type = Annotated[str, argument("TYPE", help="Such as BIGINT, STRING, 'DECIMAL(10, 2)', 'TIMESTAMP(6)'.")]
OptionPairs = Annotated[list[str], argument("KEY=VALUE", help="Such as bucket=4.")]


def register(app: Group) -> None:
    """Add the commands to the group of table commands."""
    for command in (
        create,
        describe,
        drop,
        add_column,
        drop_column,
        rename_column,
        widen_column,
        set_option,
        unset_option,
    ):
        app.command()(command)


def create(
    lake: LakeUrl,
    table: TableName,
    column: Annotated[
        list[str] | None,
        option("--column", "-c", help="A column: 'id BIGINT NOT NULL'. Once for each, in order.", metavar="TEXT"),
    ] = None,
    like: Annotated[
        str | None, option("--like", metavar="FILE", help="Take the columns of a CSV, JSON or Parquet file.")
    ] = None,
    primary_key: Annotated[
        str | None, option("--primary-key", help="Columns of the key, comma-separated: rows are then upserted.")
    ] = None,
    partition_by: Annotated[str | None, option("--partition-by", help="Partition columns, comma-separated.")] = None,
    option: Annotated[
        list[str] | None, option("--option", "-o", help="A table option: bucket=4.", metavar="KEY=VALUE")
    ] = None,
    comment: Annotated[str, option("--comment", help="A description for people.")] = "",
    if_not_exists: Annotated[bool, option("--if-not-exists", help="Be content with a table that is there.")] = False,
    json: Json = False,
) -> None:
    """Make a table; makes the lake too when there is nothing yet."""
    columns, options = _columns(column, like), args.pairs(option)  # before the lake is made: a mistake makes none
    made = args.open_lake(lake, create=True).create_table(
        table,
        columns,
        primary_keys=_names(primary_key),
        partition_keys=_names(partition_by),
        options=options,
        comment=comment,
        if_not_exists=if_not_exists,
    )
    say.result(
        json,
        {"table": made.name, "url": made.url, **facts.of_schema(made.schema)},
        f"Made the table {made.name} with {say.count(len(made.schema.fields), 'column')} at {made.url}.",
    )


def describe(lake: LakeUrl, table: TableName, branch: args.Branch = None, json: Json = False) -> None:
    """Show a table's columns, keys, options and newest version."""
    opened = args.open_table(lake, table, branch=branch)
    newest = opened.latest()
    schema = opened.schema
    if json:
        say.document(
            {
                "table": opened.name,
                "url": opened.url,
                **facts.of_schema(schema),
                "newest": None if newest is None else facts.of_snapshot(newest),
                "tags": len(opened.tags()),
            }
        )
        return
    say.sentence(f"{opened.name} at {opened.url}" + (f": {schema.comment}" if schema.comment else ""))
    if newest is None:
        say.sentence("Nothing was ever written into it.")
    else:
        rows = say.count(newest.total_record_count, "row")
        say.sentence(f"Version {newest.id}, {say.ago(newest.time_ms)}, {rows} stored; schema {schema.id}.")
    say.sentence("")
    say.grid(
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
    say.sentence("")
    say.sentence(f"options: {say.options_text(schema.options)}")


def drop(
    lake: LakeUrl,
    table: TableName,
    force: Annotated[bool, option("--force", help="Also when tags or branches pin versions of it.")] = False,
    dry_run: DryRun = False,
    yes: Yes = False,
    json: Json = False,
) -> None:
    """Delete a table with all its versions and files. Refused while tags or branches pin it."""
    opened = args.open_lake(lake)
    plan = opened.drop_table(table, force=force, dry_run=True)
    if not dry_run:
        doomed = facts.of_report(plan)
        what = f"{say.count(doomed['deleted'], 'file')}, {say.size(doomed['bytes'])}"
        say.ask(f"Delete the table {table} for good ({what})?", yes=yes, json=json)
        with say.progress("deleting") as progress:
            plan = opened.drop_table(table, force=force, progress=progress)
    facts.print_reports([plan], json=json, single=True)


def add_column(
    lake: LakeUrl,
    table: TableName,
    column: Column,
    type: Type,
    comment: Annotated[str | None, option("--comment", help="A description for people.")] = None,
    json: Json = False,
) -> None:
    """Add a column at the end; rows already there have null in it."""
    opened = args.open_table(lake, table)
    opened.add_column(column, type, comment=comment)
    _changed(opened, f"Added the column {column}.", json=json)


def drop_column(lake: LakeUrl, table: TableName, column: Column, yes: Yes = False, json: Json = False) -> None:
    """Remove a column. Older versions keep it; adding it again does not bring its values back."""
    opened = args.open_table(lake, table)
    say.ask(f"Remove the column {column} from {table}?", yes=yes, json=json)
    opened.drop_column(column)
    _changed(opened, f"Removed the column {column}.", json=json)


def rename_column(
    lake: LakeUrl,
    table: TableName,
    column: Column,
    new: Annotated[str, argument("NEW", help="Its new name.")],
    json: Json = False,
) -> None:
    """Give a column another name; its values stay."""
    opened = args.open_table(lake, table)
    opened.rename_column(column, new)
    _changed(opened, f"Renamed the column {column} to {new}.", json=json)


def widen_column(lake: LakeUrl, table: TableName, column: Column, type: Type, json: Json = False) -> None:
    """Give a column a wider type, such as INT to BIGINT; no file is rewritten."""
    opened = args.open_table(lake, table)
    opened.widen_column(column, type)
    _changed(opened, f"The column {column} is {type} now.", json=json)


def set_option(lake: LakeUrl, table: TableName, options: OptionPairs, json: Json = False) -> None:
    """Set table options."""
    opened = args.open_table(lake, table)
    opened.set_options(args.pairs(options))
    _changed(opened, f"Set {', '.join(options)}.", json=json)


def unset_option(
    lake: LakeUrl,
    table: TableName,
    names: Annotated[list[str], argument("KEY", help="Names of options.")],
    json: Json = False,
) -> None:
    """Give table options their defaults again."""
    opened = args.open_table(lake, table)
    opened.remove_options(names)
    _changed(opened, f"Removed {', '.join(names)}.", json=json)


def _changed(opened: Any, text: str, *, json: bool) -> None:
    schema = opened.refresh()
    say.result(
        json, {"table": opened.name, **facts.of_schema(schema)}, f"{text} {opened.name} has schema {schema.id} now."
    )


def _roles(schema: TableSchema, name: str) -> list[str]:
    roles = ["primary key"] if name in schema.primary_keys else []
    return [*roles, "partition"] if name in schema.partition_keys else roles


def _names(text: str | None) -> list[str]:
    return [name.strip() for name in text.split(",") if name.strip()] if text else []


def _columns(columns: list[str] | None, like: str | None) -> Any:
    """The columns of ``--column`` or ``--like``, as `Lake.create_table` takes them."""
    if bool(columns) == bool(like):
        raise InvalidRequest(
            "Name the columns: --column 'id BIGINT NOT NULL' once for each, or --like FILE.", kind="no_columns"
        )
    if like:
        from lakebed.cli.files import schema_of_file

        return schema_of_file(like)
    from lakebed.table.model import DataField
    from lakebed.table.types import parse_type

    fields = []
    for position, text in enumerate(columns or ()):
        name, _, type_text = text.strip().partition(" ")
        if not type_text.strip():
            raise InvalidRequest(
                f"The column {text!r} has no type: write its name and type, such as 'id BIGINT NOT NULL'.",
                kind="invalid_column",
            )
        parsed = parse_type(type_text.strip())
        fields.append(DataField(position, name, parsed.text, nullable=parsed.nullable))
    return fields
