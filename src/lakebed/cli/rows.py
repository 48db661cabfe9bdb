"""Commands that read and write rows: read, append, upsert, write, overwrite, delete, diff, changes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from lakebed.cli import args, facts, say
from lakebed.cli.args import Branch, Json, LakeUrl, TableName, Timestamp, Version, Yes
from lakebed.errors import InvalidRequest

if TYPE_CHECKING:
    from lakebed.table.table import Table

__all__ = ["register"]

File = Annotated[
    str,
    typer.Argument(metavar="FILE", help="CSV, JSON (one object a line, or one array) or Parquet; - is standard input."),
]
InputFormat = Annotated[str | None, typer.Option("--format", help="csv, json or parquet. Default: by the file's name.")]
Columns = Annotated[str | None, typer.Option("--columns", help="Only these columns, comma-separated.")]
Where = Annotated[str | None, typer.Option("--where", help="Only rows that match: \"delay > 10 AND carrier = 'UA'\".")]
Limit = Annotated[int | None, typer.Option("--limit", min=0, help="At most so many rows.")]
OutputFormat = Annotated[str | None, typer.Option("--format", help="table, json, csv or parquet.")]
Output = Annotated[str | None, typer.Option("--output", "-o", metavar="FILE", help="Write into a file.")]
Start = Annotated[str, typer.Argument(metavar="FROM", help="The older version: an id, a tag or a branch.")]
End = Annotated[str, typer.Argument(metavar="TO", help="The newer version.")]


def register(app: typer.Typer) -> None:
    """Add the commands to the group of table commands."""
    for command in (read, append, upsert, write, overwrite, delete, diff, changes):
        app.command()(command)


def read(
    lake: LakeUrl,
    table: TableName,
    version: Version = None,
    tag: Annotated[str | None, typer.Option("--tag", help="Read what this tag pins.")] = None,
    timestamp: Timestamp = None,
    where: Where = None,
    columns: Columns = None,
    limit: Limit = None,
    count: Annotated[bool, typer.Option("--count", help="Only count the rows.")] = False,
    format: OutputFormat = None,
    output: Output = None,
    branch: Branch = None,
    json: Json = False,
) -> None:
    """Read rows, of the newest version or of an older one."""
    chosen = _output_format(format, output, json=json)
    scan = args.open_table(lake, table, branch=branch).scan(
        version=args.version_of(version, tag),
        timestamp_ms=timestamp,
        columns=_names(columns),
        where=args.predicate(where),
    )
    if count:
        number = scan.count()
        say.result(json, {"rows": number}, f"{number:,}")
        return
    from lakebed.cli.files import write_rows

    write_rows(scan.to_batches(), schema=scan.schema, format=chosen, output=output, limit=limit)


def append(
    lake: LakeUrl, table: TableName, file: File, format: InputFormat = None, branch: Branch = None, json: Json = False
) -> None:
    """Append the rows of a file, as one version."""
    opened = args.open_table(lake, table, branch=branch)
    _written(opened, opened.append(_rows(opened, file, format)), json=json)


def upsert(
    lake: LakeUrl, table: TableName, file: File, format: InputFormat = None, branch: Branch = None, json: Json = False
) -> None:
    """Insert the rows of a file, or replace those of the same key, as one version."""
    opened = args.open_table(lake, table, branch=branch)
    _written(opened, opened.upsert(_rows(opened, file, format)), json=json)


def write(
    lake: LakeUrl,
    table: TableName,
    file: File,
    deletes: Annotated[
        str | None, typer.Option("--deletes", help="A boolean column of the file: true deletes the row's key.")
    ] = None,
    format: InputFormat = None,
    branch: Branch = None,
    json: Json = False,
) -> None:
    """Append or upsert the rows of a file, by the kind of the table."""
    opened = args.open_table(lake, table, branch=branch)
    _written(opened, opened.write(_rows(opened, file, format), deletes=deletes), json=json)


def overwrite(
    lake: LakeUrl,
    table: TableName,
    file: File,
    partition: Annotated[
        list[str] | None, typer.Option("--partition", metavar="KEY=VALUE", help="Replace only this partition.")
    ] = None,
    dynamic: Annotated[
        bool, typer.Option("--dynamic", help="Replace the partitions that the file has rows of.")
    ] = False,
    format: InputFormat = None,
    branch: Branch = None,
    yes: Yes = False,
    json: Json = False,
) -> None:
    """Replace rows by those of a file: all, one partition's, or those of every partition in the file."""
    opened = args.open_table(lake, table, branch=branch)
    rows = _rows(opened, file, format)
    say.ask(f"Replace rows of {table}? The version before stays until it expires.", yes=yes, json=json)
    made = opened.overwrite(rows, partition=args.pairs(partition, like="day=2013-01-31") or None, dynamic=dynamic)
    _written(opened, made, json=json)


def delete(
    lake: LakeUrl,
    table: TableName,
    where: Annotated[str, typer.Option("--where", help="Which rows: \"origin = 'JFK'\".")],
    branch: Branch = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only count the rows.")] = False,
    yes: Yes = False,
    json: Json = False,
) -> None:
    """Delete the rows that match, as one version; older versions keep them."""
    opened = args.open_table(lake, table, branch=branch)
    chosen = args.predicate(where)
    if dry_run:
        number = opened.scan(where=chosen).count()
        say.result(json, {"dry_run": True, "rows": number}, f"Would delete {say.count(number, 'row')} of {table}.")
        return
    say.ask(f"Delete the rows of {table} where {where}?", yes=yes, json=json)
    made = opened.delete(chosen)
    if made is None:
        say.result(json, {"table": table, "snapshot": None}, f"No row of {table} matches; nothing was written.")
    else:
        _written(opened, made, json=json)


def diff(
    lake: LakeUrl,
    table: TableName,
    start: Start,
    end: End,
    keys: Annotated[
        str | None,
        typer.Option("--keys", help="Columns that tell rows apart, comma-separated. Default: the primary key."),
    ] = None,
    limit: Limit = 20,
    branch: Branch = None,
    json: Json = False,
) -> None:
    """Compare two versions: rows added, removed and changed."""
    found = args.open_table(lake, table, branch=branch).diff(start, end, keys=_names(keys))
    _print_diff(found, limit=limit, json=json)


def changes(
    lake: LakeUrl,
    table: TableName,
    start: Start,
    end: End,
    limit: Limit = None,
    format: OutputFormat = None,
    output: Output = None,
    branch: Branch = None,
    json: Json = False,
) -> None:
    """Read what was written after one version, up to another; _row_kind says what each row did."""
    chosen = _output_format(format, output, json=json)
    found = args.open_table(lake, table, branch=branch).changes(start, end)
    from lakebed.cli.files import write_rows

    write_rows(iter(found.to_batches()), schema=found.schema, format=chosen, output=output, limit=limit)


def _rows(opened: Table, file: str, format: str | None) -> Any:
    from lakebed.cli.files import read_file  # brings Arrow's readers

    return read_file(file, format=format, schema=opened.arrow_schema)


def _written(opened: Table, made: Any, *, json: bool) -> None:
    # Rows as they are stored: one that was replaced counts until its bucket is compacted.
    stored = say.count(made.total_record_count, "row")
    say.result(
        json,
        {"table": opened.name, **facts.of_snapshot(made)},
        f"{opened.name}: snapshot {made.id}, {made.delta_record_count:+,} rows; {stored} stored.",
    )


def _print_diff(found: Any, *, limit: int | None, json: bool) -> None:
    from lakebed.cli.files import print_rows

    parts = {"added": found.added, "removed": found.removed, "before": found.before, "after": found.after}
    if json:
        rows = {name: part.slice(0, limit).to_pylist() for name, part in parts.items()}
        say.document({**found.counts, "keys": list(found.keys), "rows": rows})
        return
    say.sentence(", ".join(f"{number:,} {name}" for name, number in found.counts.items()) + ".")
    for name, rows in parts.items():
        if rows.num_rows and limit != 0:
            say.sentence("")
            say.sentence({"before": "changed, before:", "after": "changed, after:"}.get(name, f"{name}:"))
            print_rows(rows.slice(0, limit), json=False)


def _names(text: str | None) -> list[str] | None:
    if text is None:
        return None
    names = [name.strip() for name in text.split(",") if name.strip()]
    if not names:
        raise InvalidRequest("Name at least one column, comma-separated, or leave the option out.", kind="no_columns")
    return names


def _output_format(format: str | None, output: str | None, *, json: bool) -> Any:
    """What ``--format``, ``--json`` and the name of ``--output`` mean together."""
    known = ("table", "json", "csv", "parquet")
    if format is not None and format not in known:
        raise InvalidRequest(f"There is no format {format!r}: choose one of {', '.join(known)}.", kind="unknown_format")
    if json and format not in (None, "json"):
        raise InvalidRequest(f"--json and --format {format} contradict each other.", kind="unknown_format")
    if json:
        return "json"
    if format is not None:
        return format
    suffix = (output or "").rpartition(".")[2].lower()
    return suffix if suffix in known and output else "csv" if output else "table"
