"""Commands that import tables of other formats, and export tables: import, export."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from lakebed.cli import arguments, output
from lakebed.cli.arguments import Timestamp, Version
from lakebed.cli.context import BranchTableCommand, LakeCommand
from lakebed.cli.grammar import argument, option
from lakebed.errors import NotFound
from lakebed.lake.imports import HistoryOptions, HistoryReport, import_history, import_table
from lakebed.lake.lake import Lake
from lakebed.objects.open import open_store
from lakebed.table.exports.model import ExportOptions, ExportReport
from lakebed.table.exports.run import export_table
from lakebed.table.imports.model import ImportOptions, ImportReport
from lakebed.table.imports.sources import SourceOptions, open_source

Format = Literal["parquet", "delta", "iceberg"]
Catalog = Annotated[str | None, option("--catalog", help="Iceberg: a catalog that pyiceberg is configured for.")]


class Import(LakeCommand, name="import"):
    """Import a folder of Parquet files, a Delta table or an Iceberg table, as one version.

    A table that does not exist is created with the columns of the source. Files are copied as they are where the
    formats allow it, else their rows are read and written; --dry-run says which. Nothing is left after an error.
    """

    table: Annotated[str, argument("TABLE", help="A new or empty table of the lake; with --append any table.")]
    source: Annotated[str, argument("SOURCE", help="A folder or URL; with --catalog the table's name there.")]
    format: Annotated[Format, option("--format", help="The format of the source.")]
    version: Annotated[
        str | None, option("--version", help="Of a Delta table a version, of an Iceberg table a snapshot or reference.")
    ] = None
    catalog: Catalog = None
    in_place: Annotated[
        bool, option("--in-place", help="Leave the files where they are; lakebed never deletes them.")
    ] = False
    rewrite: Annotated[bool, option("--rewrite", help="Convert the rows of files that do not fit as they are.")] = False
    append: Annotated[bool, option("--append", help="Add to a table that has rows.")] = False
    history: Annotated[
        bool, option("--history", help="Import each version that the source has kept, with a tag, into a new table.")
    ] = False
    versions: Annotated[
        str | None, option("--versions", help="As --history, but only these versions or tags, comma-separated.")
    ] = None
    tags: Annotated[
        bool, option("--tags", help="As --history, but only versions that an Iceberg table has tags for.")
    ] = False
    dry_run: Annotated[
        bool, option("--dry-run", help="Report what would be done with how many files; change nothing.")
    ] = False

    def run(self) -> None:
        options = SourceOptions(self.version, self.catalog, self.storage_options)
        lake = self._lake_for(options)
        if self.history or self.versions is not None or self.tags:
            self._import_history(lake, options)
            return
        with output.progress(f"importing {self.source}") as progress:
            report = import_table(
                lake,
                self.table,
                self.source,
                format=self.format,
                options=ImportOptions(self.in_place, self.rewrite, self.append, self.dry_run),
                source_options=options,
                progress=progress,
            )
        self.result(_facts_of_import(report), report.sentence)
        if not self.json:
            for why, number in sorted(report.reasons.items()):
                output.sentence(f"  {output.count(number, 'file')} rewritten: {why}.")
            for note in report.notes:
                output.sentence(f"  {note}")

    def _import_history(self, lake: Lake, options: SourceOptions) -> None:
        versions = [] if self.versions is None else [name.strip() for name in self.versions.split(",")]
        with output.progress(f"importing {self.source}") as progress:
            report = import_history(
                lake,
                self.table,
                self.source,
                format=self.format,
                history=HistoryOptions(tuple(name for name in versions if name), self.tags),
                options=ImportOptions(self.in_place, self.rewrite, self.append, self.dry_run),
                source_options=options,
                progress=progress,
            )
        self.result(_facts_of_history(report), report.sentence)
        if not self.json:
            for version in report.versions:
                tags = f" ({', '.join(version.tags)})" if version.tags else ""
                new = output.count(version.taken_count + version.rewritten_count, "new file")
                output.sentence(f"  Version {version.version}{tags}: {new}, {version.removed_count:,} removed.")
            for note in report.notes:
                output.sentence(f"  {note}")

    def _lake_for(self, options: SourceOptions) -> Lake:
        """Open the lake. A missing lake is created once the source is known to exist."""
        try:
            return self.open_lake()
        except NotFound:
            if self.dry_run:
                raise
            store = open_store(self.lake, storage_options=self.storage_options)
            open_source(self.format, self.source, like=store, options=options)
            return self.open_lake(create=True)


class Export(BranchTableCommand, name="export"):
    """Write a version as Parquet files, as a Delta table or as an Iceberg table.

    The target is a folder or URL outside of the table. It appears as a whole; one that exists is refused unless
    --overwrite is given.
    """

    target: Annotated[str, argument("TARGET", help="A folder or URL; with --catalog the name of a table there.")]
    format: Annotated[Format, option("--format", help="The format of the target.")]
    version: Version = None
    tag: Annotated[str | None, option("--tag", help="Export what this tag pins.")] = None
    timestamp: Timestamp = None
    catalog: Catalog = None
    overwrite: Annotated[bool, option("--overwrite", help="Replace what an export has written there.")] = False

    def run(self) -> None:
        table = self.open_branch()
        with output.progress(f"exporting {self.table}") as progress:
            report = export_table(
                table,
                self.target,
                format=self.format,
                options=ExportOptions(
                    version=arguments.version_of(self.version, self.tag),
                    timestamp_ms=self.timestamp,
                    overwrite=self.overwrite,
                    catalog=self.catalog,
                    storage_options=self.storage_options,
                ),
                progress=progress,
            )
        self.result(_facts_of_export(report), report.sentence)


def _facts_of_import(report: ImportReport) -> dict[str, Any]:
    return {
        "table": report.table,
        "format": report.format,
        "source": report.source,
        "version": report.version,
        "dry_run": report.dry_run,
        "in_place": report.in_place,
        "rows": report.row_count,
        "bytes": report.size_bytes,
        "files_taken": report.taken_count,
        "files_rewritten": report.rewritten_count,
        "reasons": dict(report.reasons),
        "notes": list(report.notes),
        "snapshot": None if report.snapshot is None else report.snapshot.id,
    }


def _facts_of_history(report: HistoryReport) -> dict[str, Any]:
    return {
        "table": report.table,
        "format": report.format,
        "source": report.source,
        "dry_run": report.dry_run,
        "in_place": report.in_place,
        "versions": [
            {
                "version": version.version,
                "tags": list(version.tags),
                "snapshot": version.snapshot_id,
                "bytes": version.size_bytes,
                "files_taken": version.taken_count,
                "files_rewritten": version.rewritten_count,
                "files_removed": version.removed_count,
            }
            for version in report.versions
        ],
        "notes": list(report.notes),
    }


def _facts_of_export(report: ExportReport) -> dict[str, Any]:
    return {
        "table": report.table,
        "format": report.format,
        "target": report.target,
        "snapshot": report.snapshot_id,
        "rows": report.row_count,
        "target_version": report.target_version,
    }
