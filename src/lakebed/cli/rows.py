"""Commands that read and write rows: read, append, upsert, write, overwrite, delete, diff, changes."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated, Any

from lakebed.cli import args, facts, say
from lakebed.cli.args import Branch, Json, LakeUrl, TableName, Timestamp, Version, Yes
from lakebed.cli.grammar import Group, argument, option
from lakebed.errors import InvalidRequest

if TYPE_CHECKING:
    from lakebed.table.table import Table

__all__ = ["register"]

File = Annotated[
    str,
    argument("FILE", help="CSV, JSON (one object a line, or one array) or Parquet; - is standard input."),
]
InputFormat = Annotated[str | None, option("--format", help="csv, json or parquet. Default: by the file's name.")]
Columns = Annotated[str | None, option("--columns", help="Only these columns, comma-separated.")]
Where = Annotated[str | None, option("--where", help="Only rows that match: \"delay > 10 AND carrier = 'UA'\".")]
Limit = Annotated[int | None, option("--limit", min=0, help="At most so many rows.")]
OutputFormat = Annotated[str | None, option("--format", help="table, json, csv or parquet.")]
Output = Annotated[
    str | None, option("--output", "-o", metavar="FILE", help="Write into a file: .csv, .json or .parquet.")
]
Start = Annotated[str, argument("FROM", help="The older version: an id, a tag or a branch.")]
End = Annotated[str, argument("TO", help="The newer version.")]


def register(app: Group) -> None:
    """Add the commands to the group of table commands."""
    for command in (read, append, upsert, write, overwrite, delete, diff, changes):
        app.command()(command)


def read(
    lake: LakeUrl,
    table: TableName,
    version: Version = None,
    tag: Annotated[str | None, option("--tag", help="Read what this tag pins.")] = None,
    timestamp: Timestamp = None,
    where: Where = None,
    columns: Columns = None,
    limit: Limit = None,
    count: Annotated[bool, option("--count", help="Only count the rows.")] = False,
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
        limit=limit,
    )
    if count:
        number = scan.count()
        say.result(json, {"rows": number}, f"{number:,}")
        return
    _write_rows(scan.to_batches(), schema=scan.schema, format=chosen, output=output, limit=limit, json=json)


def append(
    lake: LakeUrl, table: TableName, file: File, format: InputFormat = None, branch: Branch = None, json: Json = False
) -> None:
    """Append the rows of a file, as one version."""
    opened = args.open_table(lake, table, branch=branch)
    with _rows(opened, file, format) as rows:
        made = opened.append(rows)
    _written(opened, made, json=json)


def upsert(
    lake: LakeUrl, table: TableName, file: File, format: InputFormat = None, branch: Branch = None, json: Json = False
) -> None:
    """Insert the rows of a file, or replace those of the same key, as one version."""
    opened = args.open_table(lake, table, branch=branch)
    with _rows(opened, file, format) as rows:
        made = opened.upsert(rows)
    _written(opened, made, json=json)


def write(
    lake: LakeUrl,
    table: TableName,
    file: File,
    deletes: Annotated[
        str | None, option("--deletes", help="A boolean column of the file: true deletes the row's key.")
    ] = None,
    format: InputFormat = None,
    branch: Branch = None,
    json: Json = False,
) -> None:
    """Append or upsert the rows of a file, by the kind of the table."""
    opened = args.open_table(lake, table, branch=branch)
    with _rows(opened, file, format) as rows:
        made = opened.write(rows, deletes=deletes)
    _written(opened, made, json=json)


def overwrite(
    lake: LakeUrl,
    table: TableName,
    file: File,
    partition: Annotated[
        list[str] | None, option("--partition", metavar="KEY=VALUE", help="Replace only this partition.")
    ] = None,
    dynamic: Annotated[bool, option("--dynamic", help="Replace the partitions that the file has rows of.")] = False,
    format: InputFormat = None,
    branch: Branch = None,
    yes: Yes = False,
    json: Json = False,
) -> None:
    """Replace rows by those of a file: all, one partition's, or those of every partition in the file."""
    opened = args.open_table(lake, table, branch=branch)
    say.ask(f"Replace rows of {table}? The version before stays until it expires.", yes=yes, json=json)
    with _rows(opened, file, format) as rows:
        made = opened.overwrite(rows, partition=args.pairs(partition, like="day=2013-01-31") or None, dynamic=dynamic)
    _written(opened, made, json=json)


def delete(
    lake: LakeUrl,
    table: TableName,
    where: Annotated[str, option("--where", help="Which rows: \"origin = 'JFK'\".")],
    branch: Branch = None,
    dry_run: Annotated[bool, option("--dry-run", help="Only count the rows.")] = False,
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
        option("--keys", help="Columns that tell rows apart, comma-separated. Default: the primary key."),
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
    _write_rows(iter(found.to_batches()), schema=found.schema, format=chosen, output=output, limit=limit, json=json)


@contextmanager
def _rows(opened: Table, file: str, format: str | None) -> Iterator[Any]:
    """The rows of a file, with a progress bar while they are taken out."""
    from lakebed.cli.files import read_file  # brings Arrow's readers

    with say.progress(f"loading {os.path.basename(file)}") as progress:
        yield read_file(file, format=format, schema=opened.arrow_schema, progress=progress)


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


_FILE_FORMATS = {".csv": "csv", ".json": "json", ".parquet": "parquet", ".pq": "parquet"}


def _output_format(format: str | None, output: str | None, *, json: bool) -> Any:
    """What ``--format``, ``--json`` and the name of ``--output`` mean together."""
    known = ("table", "json", "csv", "parquet")
    if format is not None and format not in known:
        raise InvalidRequest(f"There is no format {format!r}: choose one of {', '.join(known)}.", kind="unknown_format")
    if json and format not in (None, "json") and output is None:
        raise InvalidRequest(f"--json and --format {format} contradict each other.", kind="unknown_format")
    if output is None:
        return "json" if json else format or "table"
    if format == "table":
        raise InvalidRequest(
            f"--format table is for a terminal; {output} can be csv, json or parquet.", kind="unknown_format"
        )
    found = format or _FILE_FORMATS.get(os.path.splitext(output)[1].lower())
    if found is None and not os.path.isdir(output):
        raise InvalidRequest(
            f"Files are written as csv, json or parquet, and the name {output} says none of them: name it .csv, .json "
            "or .parquet, or add --format.",
            kind="unknown_format",
            output=output,
        )
    return found


def _write_rows(
    rows: Iterator[Any], *, schema: Any, format: Any, output: str | None, limit: int | None, json: bool
) -> None:
    """Print rows, or write them into a file and say so."""
    from lakebed.cli.files import write_rows

    count = write_rows(rows, schema=schema, format=format, output=output, limit=limit)
    if output is not None:
        written = {"output": output, "format": format, "rows": count, "bytes": os.path.getsize(output)}
        told = f"Wrote {say.count(count, 'row')} to {output} ({format}, {say.size(written['bytes'])})."
        say.result(json, written, told)
