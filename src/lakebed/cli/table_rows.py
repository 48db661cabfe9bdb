"""Commands that read and write rows: read, append, upsert, write, overwrite, delete, diff, changes."""

from __future__ import annotations

import os
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cached_property
from typing import TYPE_CHECKING, Annotated, Any

import pyarrow as pa

from lakebed.cli import arguments, output, table_output
from lakebed.cli.arguments import Timestamp, Version
from lakebed.cli.command import Deletion
from lakebed.cli.context import BranchTableCommand
from lakebed.cli.files import print_rows, read_file, write_rows
from lakebed.cli.grammar import argument, option, pairs
from lakebed.cli.loading import load
from lakebed.errors import InvalidRequest, LakebedError
from lakebed.table.changes.incremental import TableDiff
from lakebed.table.codec.python_values import python_rows
from lakebed.table.engines.registry import check_deletes
from lakebed.table.model.model import Snapshot
from lakebed.table.model.options import DELETION_VECTORS
from lakebed.table.model.predicate_text import parse_predicate
from lakebed.table.read.scan import scan_snapshot
from lakebed.table.table import Table

if TYPE_CHECKING:
    from lakebed.table.rows.rows import OverwritePlan

Columns = Annotated[str | None, option("--columns", help="Only these columns, comma-separated.")]
Where = Annotated[str | None, option("--where", help="Only rows that match: \"delay > 10 AND carrier = 'UA'\".")]
Limit = Annotated[int | None, option("--limit", min=0, help="At most this many rows.")]
Start = Annotated[str, argument("FROM", help="The older version: an id, a tag or a branch.")]
End = Annotated[str, argument("TO", help="The newer version.")]


_WORDS_FOR_NULL = frozenset({"NA", "N/A", "N", "NULL", "NONE", "NAN"})
"""Words for null, in capital letters, without the signs that precede some of them."""


class _Printing(BranchTableCommand):
    """A command that prints rows, or writes them into a file."""

    format: Annotated[str | None, option("--format", help="table, json, csv or parquet.")] = None
    output: Annotated[
        str | None, option("--output", "-o", metavar="FILE", help="Write into a file: .csv, .json or .parquet.")
    ] = None

    def print_rows(self, rows: Iterator[Any], *, schema: pa.Schema, limit: int | None) -> None:
        """Print rows, or write them into the file and report that."""
        format = _output_format(self.format, self.output, json=self.json)
        count = write_rows(rows, schema=schema, format=format, file=self.output, limit=limit)
        if self.output is not None:
            size_bytes = os.path.getsize(self.output)
            self.result(
                {"output": self.output, "format": format, "rows": count, "bytes": size_bytes},
                f"Wrote {output.count(count, 'row')} to {self.output} ({format}, {output.size(size_bytes)}).",
            )


class Read(_Printing, name="read"):
    """Read rows of the newest version or of an older one."""

    version: Version = None
    tag: Annotated[str | None, option("--tag", help="Read what this tag pins.")] = None
    timestamp: Timestamp = None
    where: Where = None
    columns: Columns = None
    limit: Limit = None
    count: Annotated[bool, option("--count", help="Only count the rows.")] = False

    def run(self) -> None:
        _output_format(self.format, self.output, json=self.json)  # find a mistake in it before anything is read
        scan = self.open_branch().scan(
            version=arguments.version_of(self.version, self.tag),
            timestamp_ms=self.timestamp,
            columns=_names(self.columns),
            where=None if self.where is None else parse_predicate(self.where),
            limit=self.limit,
        )
        if self.count:
            number = scan.count()
            self.result({"rows": number}, f"{number:,}")
        else:
            self.print_rows(scan.to_batches(), schema=scan.schema, limit=self.limit)


class _Writing(BranchTableCommand):
    """A command that writes the rows of a file."""

    file: Annotated[
        str, argument("FILE", help="CSV, JSON (one object a line, or one array) or Parquet; - is standard input.")
    ]
    format: Annotated[str | None, option("--format", help="csv, json or parquet. Default: by the file's name.")] = None
    null: Annotated[
        list[str] | None,
        option(
            "--null",
            metavar="TEXT",
            help="A text that means null in an unquoted field of CSV, such as NA. Empty fields are null.",
        ),
    ] = None

    def hints(self, problem: LakebedError) -> Iterator[str]:
        """Yield what to do if the file has a column that the table lacks, or a word for null."""
        word = str(problem.facts.get("value", ""))
        if problem.kind == "unreadable_file" and word.strip("#\\").upper() in _WORDS_FOR_NULL:
            yield f"If {word} stands for null in this file, say so: --null '{word}'"
        if problem.kind != "unknown_column":
            return
        mark = next((mark for mark in (";", "\t", "|") if mark in str(problem.facts.get("column"))), None)
        if mark is not None and self.file.lower().endswith(".csv"):
            yield f"Columns of a CSV file are separated by commas, and the first line of {self.file} has {mark!r}."
        else:
            yield "Rename it in the file, or give the table such a column: lakebed table add-column."

    @cached_property
    def user(self) -> str:
        """The commit user. A snapshot of this user is the command's; any other one existed before."""
        return str(uuid.uuid4())

    def print_written(self, opened: Table, made: Snapshot) -> None:
        """Print what was written, if anything was: without rows there is no new version."""
        if made.commit_user == self.user:
            _print_written(self, opened, made)
            return
        self.result(
            {"table": opened.name, **table_output.of_snapshot(made), "rows_delta": 0},
            f"{opened.name}: the file has no rows, so nothing was written; snapshot {made.id} is the newest.",
        )

    @contextmanager
    def rows(self, opened: Table) -> Iterator[pa.RecordBatchReader]:
        """Open the rows of the file, with a progress bar while they are read."""
        with output.progress(f"loading {os.path.basename(self.file)}") as progress:
            yield read_file(
                self.file,
                format=self.format,
                schema=opened.arrow_schema,
                nulls=self.null or (),
                progress=progress,
            )


class Append(_Writing, name="append"):
    """Append the rows of a file, as one version."""

    def run(self) -> None:
        table = self.open_branch()
        with self.rows(table) as rows:
            snapshot = table.append(rows, commit_user=self.user)
        self.print_written(table, snapshot)


class Upsert(_Writing, name="upsert"):
    """Insert the rows of a file, or replace those of the same key, as one version."""

    def run(self) -> None:
        table = self.open_branch()
        with self.rows(table) as rows:
            snapshot = table.upsert(rows, commit_user=self.user)
        self.print_written(table, snapshot)


class Write(_Writing, name="write"):
    """Append or upsert the rows of a file, by the kind of the table."""

    deletes: Annotated[
        str | None, option("--deletes", help="A boolean column of the file: true deletes the row's key.")
    ] = None

    def run(self) -> None:
        table = self.open_branch()
        with self.rows(table) as rows:
            snapshot = table.write(rows, deletes=self.deletes, commit_user=self.user)
        self.print_written(table, snapshot)


class Overwrite(Deletion, _Writing, name="overwrite"):
    """Replace rows by those of a file: all rows, or those of one partition or of each partition in the file."""

    partition: Annotated[
        list[str] | None, option("--partition", metavar="KEY=VALUE", help="Replace only this partition.")
    ] = None
    dynamic: Annotated[bool, option("--dynamic", help="Replace the partitions that the file has rows of.")] = False
    dry_run: Annotated[bool, option("--dry-run", help="Only read the file, and count the rows.")] = False

    def run(self) -> None:
        table = self.open_branch()
        self.ask(f"Replace rows of {self.table}? The version before stays until it expires.")
        partition = pairs(self.partition, like="day=2013-01-31") or None
        with self.rows(table) as rows:
            if self.dry_run:
                plan = load("lakebed.table.rows.rows").plan_overwrite  # here, so that a read loads no writer
                self._print_plan(plan(table.context, rows, partition=partition, dynamic=self.dynamic))
                return
            snapshot = table.overwrite(rows, partition=partition, dynamic=self.dynamic, commit_user=self.user)
        self.print_written(table, snapshot)

    def _print_plan(self, plan: OverwritePlan) -> None:
        facts = {
            "dry_run": True,
            "rows": plan.row_count,
            "rows_replaced": plan.replaced_row_count,
            "files_replaced": plan.replaced_file_count,
        }
        row_text, files = output.count(plan.replaced_row_count, "row"), output.count(plan.replaced_file_count, "file")
        new = output.count(plan.row_count, "row")
        self.result(facts, f"Would replace {row_text} stored in {files} of {self.table} by {new}.")


class Delete(Deletion, BranchTableCommand, name="delete"):
    """Delete the rows that match, as one version. Older versions keep them."""

    where: Annotated[str, option("--where", help="Which rows: \"origin = 'JFK'\".")]
    dry_run: Annotated[bool, option("--dry-run", help="Only count the rows.")] = False

    def run(self) -> None:
        table = self.open_branch()
        predicate = parse_predicate(self.where)
        if table.schema.primary_keys:
            check_deletes(table.schema, "delete rows", removes=True)
        if self.dry_run:
            number = scan_snapshot(table.context, table.latest(), merges_new=True, where=predicate).count()
            self.result(
                {"dry_run": True, "rows": number}, f"Would delete {output.count(number, 'row')} of {self.table}."
            )
            return
        self.ask(f"Delete the rows of {self.table} where {self.where}?")
        snapshot = table.delete(predicate)
        if snapshot is None:
            self.result(
                {"table": self.table, "snapshot": None}, f"No row of {self.table} matches; nothing was written."
            )
        elif table.options.get(DELETION_VECTORS) and not table.schema.primary_keys:
            left = table.scan(version=snapshot.id).count()
            self.result(
                {"table": table.name, **table_output.of_snapshot(snapshot), "rows_left": left},
                f"{table.name}: snapshot {snapshot.id}; {output.count(left, 'row')} left. The deleted ones are marked "
                "and stored until a compaction.",
            )
        else:
            # A table with keys stores a mark for each deleted row until a compaction; others delete the rows at once.
            number, rows = abs(snapshot.delta_record_count), output.count(snapshot.total_record_count, "row")
            marks = ", with those that a compaction takes out" if table.schema.primary_keys else ""
            self.result(
                {"table": table.name, **table_output.of_snapshot(snapshot), "rows_deleted": number},
                f"{table.name}: snapshot {snapshot.id}, {output.count(number, 'row')} deleted; {rows} stored{marks}.",
            )


class Diff(BranchTableCommand, name="diff"):
    """Compare two versions: rows added, removed and changed."""

    start: Start
    end: End
    keys: Annotated[
        str | None,
        option("--keys", help="Columns that identify a row, comma-separated. Default: the primary key."),
    ] = None
    limit: Limit = 20

    def run(self) -> None:
        diff = self.open_branch().diff(self.start, self.end, keys=_names(self.keys))
        _print_diff(diff, limit=self.limit, json=self.json)


class Changes(_Printing, name="changes"):
    """Read what was written after one version, up to another; _row_kind says what each row did."""

    start: Start
    end: End
    limit: Limit = None

    def run(self) -> None:
        _output_format(self.format, self.output, json=self.json)  # find a mistake in it before anything is read
        changes = self.open_branch().changes(self.start, self.end)
        self.print_rows(iter(changes.to_batches()), schema=changes.schema, limit=self.limit)


class System(BranchTableCommand, name="system"):
    """Print a system table: metadata of the table."""

    name: Annotated[
        str,
        argument(
            "NAME",
            help="snapshots, tags, schemas, files, manifests, options, partitions, branches, consumers, statistics, "
            "audit_log.",
        ),
    ]

    def run(self) -> None:
        print_rows(self.open_branch().system(self.name.removeprefix("$")), json=self.json)


def _print_written(command: BranchTableCommand, table: Table, snapshot: Snapshot) -> None:
    # Stored rows: a replaced row counts until its bucket is compacted.
    row_text = output.count(snapshot.total_record_count, "row")
    rows = "row" if abs(snapshot.delta_record_count) == 1 else "rows"
    command.result(
        {"table": table.name, **table_output.of_snapshot(snapshot)},
        f"{table.name}: snapshot {snapshot.id}, {snapshot.delta_record_count:+,} {rows}; {row_text} stored.",
    )


def _print_diff(diff: TableDiff, *, limit: int | None, json: bool) -> None:
    parts = {"added": diff.added, "removed": diff.removed, "before": diff.before, "after": diff.after}
    if json:
        rows = {name: python_rows(part.slice(0, limit)) for name, part in parts.items()}
        output.document({**diff.counts, "keys": list(diff.keys), "rows": rows})
        return
    output.sentence(", ".join(f"{number:,} {name}" for name, number in diff.counts.items()) + ".")
    for name, rows in parts.items():
        if rows.num_rows and limit != 0:
            output.sentence("")
            output.sentence({"before": "changed, before:", "after": "changed, after:"}.get(name, f"{name}:"))
            print_rows(rows.slice(0, limit), json=False)


def _names(text: str | None) -> list[str] | None:
    if text is None:
        return None
    names = [name.strip() for name in text.split(",") if name.strip()]
    if not names:
        raise InvalidRequest("Name at least one column, comma-separated, or leave the option out.", kind="no_columns")
    return names


_FILE_FORMATS = {".csv": "csv", ".json": "json", ".parquet": "parquet", ".pq": "parquet"}


def _output_format(format: str | None, file: str | None, *, json: bool) -> Any:
    """Combine ``--format``, ``--json`` and the name of ``--output``."""
    formats = ("table", "json", "csv", "parquet")
    if format is not None and format not in formats:
        raise InvalidRequest(
            f"There is no format {format!r}: choose one of {', '.join(formats)}.", kind="unknown_format"
        )
    if json and format not in (None, "json") and file is None:
        raise InvalidRequest(f"--json and --format {format} contradict each other.", kind="unknown_format")
    if file is None:
        return "json" if json else format or "table"
    if format == "table":
        raise InvalidRequest(
            f"--format table is for a terminal; {file} can be csv, json or parquet.", kind="unknown_format"
        )
    file_format = format or _FILE_FORMATS.get(os.path.splitext(file)[1].lower())
    if file_format is None and not os.path.isdir(file):
        raise InvalidRequest(
            f"Files are written as csv, json or parquet, and the name {file} says none of them: name it .csv, .json "
            "or .parquet, or add --format.",
            kind="unknown_format",
            output=file,
        )
    return file_format
