"""Commands of ``lakebed kv`` that a job runs: collect, compact."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

from lakebed.cli import exits, json_output, output
from lakebed.cli.arguments import duration
from lakebed.cli.command import Deletion
from lakebed.cli.grammar import argument, option
from lakebed.cli.kv_context import SHORT_LIVED, DatabaseCommand, DatabaseLake, database_at, names_of, url_of
from lakebed.errors import InvalidRequest, LakebedError
from lakebed.kv.admin import DatabaseAdmin
from lakebed.kv.collect import Collection, Collector
from lakebed.kv.compactor import Compactor
from lakebed.kv.options import CollectorOptions
from lakebed.kv.wal import WalLog
from lakebed.lake.names import DATABASE_SUFFIX
from lakebed.reclaim.sweep import Progress

Watch = Annotated[bool, option("--watch", help="Run until interrupted.")]
Every = Annotated[str, option("--interval", help="With --watch: the time between two rounds.")]


class Collect(Deletion, name="collect"):
    """Delete what no version needs: expired checkpoints, old versions, files, log objects.

    A database that cannot be collected is reported, and the others are collected all the same. With --watch, a database
    that was destroyed and is gone is no longer watched; the command ends when none is left. With --json the report of
    one database that is named is an object, else there is a list; with --watch each report is a line.
    """

    lake: DatabaseLake
    names: Annotated[list[str] | None, argument("NAME", help="Databases of it. Default: all.")] = None
    grace: Annotated[str, option("--grace", help="Keep what is younger than this. Zero is safe too.")] = "1 d"
    destroyed_grace: Annotated[str, option("--destroyed-grace", help="How long a softly destroyed database stays.")] = (
        "1 d"
    )
    watch: Watch = False
    interval: Every = "10 min"
    path: Annotated[
        list[str] | None,
        option(
            "--path",
            metavar="URL",
            help="A database outside of a lake, instead of LAKE and NAME; repeat it for more.",
            replaces=("lake", "names"),
        ),
    ] = None

    def run(self) -> None:
        locations = [database_at(url, self.storage_options).location for url in self._urls()]
        if not locations:
            self.result([], f"The lake {self.lake} has no database.")
            return
        options = CollectorOptions(grace=duration(self.grace), destroyed_grace=duration(self.destroyed_grace))
        subject = output.count(len(locations), "database") if len(locations) > 1 else locations[0].url
        self.ask(f"Collect the garbage of {subject}? (--dry-run shows what would be deleted.)")
        collector = Collector(locations, options=options, dry_run=self.dry_run)
        pause_s = duration(self.interval).total_seconds()
        failures: list[LakebedError] = []
        while True:
            with output.progress("collecting") as progress:
                collections = collector.collect_once(progress)
            self._print_round(collections)
            errors = [collection.error for collection in collections.values() if collection.error is not None]
            # A watch continues after faults, which may be temporary. A path that never was a database is a mistake.
            failures += [error for error in errors if not self.watch or error.kind == "database_not_found"]
            if not self.watch or not collector.urls:
                break
            output.flush()
            locations[0].environment.clock.sleep(pause_s)
        if failures:
            raise exits.Exit(exits.exit_code(failures[0]))

    def _urls(self) -> list[str]:
        """Return the databases to collect. Raises `InvalidRequest` for a database in place of a lake."""
        if self.path is not None:
            return self.path
        lake = self.lake or ""
        if lake.rstrip("/").endswith(DATABASE_SUFFIX):
            raise InvalidRequest(
                f"{lake} is a database, not a lake: write `lakebed kv collect LAKE NAME...`, or --path {lake}.",
                kind="usage",
            )
        return [url_of(lake, name) for name in self.names or names_of(lake, self.storage_options)]

    def _print_round(self, collections: Mapping[str, Collection]) -> None:
        """Print what a round did to each database: its report, or on standard error why it was not collected."""
        reports = []
        for url, collection in collections.items():
            if collection.error is not None:
                error = collection.error
                sentence = f"{url} was not collected: {error.message}"
                output.error(type(error)(sentence, kind=error.kind, **error.facts), json=self.json)
            elif not (self.watch and json_output.is_idle(collection.report)):  # the log of a watch shows only changes
                reports.append(collection.report)
        if not self.json:
            json_output.print_reports(reports, json=False)
        elif self.watch:
            for report in reports:
                output.json_line(json_output.of_report(report))
        elif len(self.path or self.names or ()) == 1:  # a single named one is an object, whatever the lake contains
            for report in reports:
                json_output.print_report(report, json=True)
        else:
            json_output.print_reports(reports, json=True)
        for url, collection in collections.items():
            if self.watch and collection.gone and collection.error is None and not self.json:
                output.sentence(f"{url} was destroyed and only its tombstone is left: it is no longer watched.")


class Compact(DatabaseCommand, name="compact"):
    """Merge files, in a process of its own. Without a running writer, first write the log into files."""

    full: Annotated[bool, option("--full", help="Merge everything into one run.")] = False
    watch: Watch = False
    interval: Every = "5 s"

    def run(self) -> None:
        admin = self.database()
        if not self.watch:
            _flush_log(admin)
        compactor = Compactor(admin.location)
        pause_s = duration(self.interval).total_seconds()
        is_full, count = self.full, 0
        while True:
            row_count = sum(file.row_count for file in admin.show_manifest().file_set.files())
            with output.progress("compacting") as bar:

                def tell(rows_read: int, bytes_written: int, bar: Any = bar, row_count: int = row_count) -> None:
                    if bar is not None:
                        bar(Progress(rows_read, max(row_count, rows_read), bytes_written))

                if is_full:
                    count += compactor.compact_full(tell)
                    is_full = False  # only the first round; with --watch, later rounds follow the planner
                while compactor.compact_once(tell):
                    count += 1
            if not self.watch:
                break
            admin.location.environment.clock.sleep(pause_s)
        files = admin.show_manifest().file_set
        summary = {"compactions": count, "l0": len(files.l0), "runs": len(files.runs), "bytes": files.size_bytes}
        count_text = output.count(count, "compaction") if count else "Nothing to compact"
        shape = f"{output.count(len(files.l0), 'file')} of level 0 and {output.count(len(files.runs), 'run')}"
        self.result(summary, f"{count_text}: {shape}, {output.size(files.size_bytes)}.")


def _flush_log(admin: DatabaseAdmin) -> None:
    """Write the rows of the log into files. A writer that owns the database does this itself."""
    entries = WalLog(admin.location).entries(admin.show_manifest().replay_after_wal_id)
    if all(entry.is_fence for entry in entries):
        return
    try:
        with admin.open(options=SHORT_LIVED, create=False) as database:
            database.flush(memtable=True)
    except LakebedError as error:
        if error.kind not in ("owned", "unknown_operator"):
            raise
