"""Checks, and repairs of statistics: the common part of ``lakebed fsck`` and ``lakebed table fsck``."""

from __future__ import annotations

from typing import Annotated

from lakebed.cli import exits, json_output, output
from lakebed.cli.command import Command
from lakebed.cli.grammar import option
from lakebed.errors import InvalidRequest
from lakebed.fsck.check import check_url
from lakebed.fsck.repair import RepairReport, repair_url


class Check(Command):
    """A command that checks a lake or a store of it."""

    deep: Annotated[bool, option("--deep", help="Read every data file too: row counts, minima, maxima, checksums.")] = (
        False
    )
    repair_statistics: Annotated[
        bool,
        option(
            "--repair-statistics",
            help="Recompute the column bounds that older versions and other clients wrote, and commit them.",
        ),
    ] = False
    dry_run: Annotated[
        bool, option("--dry-run", help="With --repair-statistics: read and compare, change nothing.")
    ] = False

    def check(self, url: str, store: str | None) -> None:
        """Check a lake, or one store in it, and print the report. Raises `Exit` if there are faults."""
        if self.repair_statistics and self.deep:
            raise InvalidRequest("--repair-statistics reads the data files itself: give it without --deep.")
        if self.dry_run and not self.repair_statistics:
            raise InvalidRequest("A check changes nothing: --dry-run is for --repair-statistics.")
        if self.repair_statistics:
            self._repair(url, store)
            return
        with output.progress("checking") as progress:
            report = check_url(
                url, store=store, deep=self.deep, storage_options=self.storage_options, progress=progress
            )
        json_output.print_check(report, json=self.json)
        if report.error_count:
            raise exits.Exit(exits.FAULTY)

    def _repair(self, url: str, store: str | None) -> None:
        with output.progress("reading data files") as progress:
            report = repair_url(
                url, store=store, dry_run=self.dry_run, storage_options=self.storage_options, progress=progress
            )
        _print(report, json=self.json)
        if report.skipped_count:
            raise exits.Exit(exits.FAULTY)


def _print(report: RepairReport, *, json: bool) -> None:
    if json:
        output.document(report.facts())
        return
    for branch in report.branches:
        name = branch.table if branch.branch == "main" else f"{branch.table}, branch {branch.branch}"
        for skipped in branch.skipped:
            output.sentence(f"error: {name}: {skipped.sentence}")
        count_text = f"recomputed for {branch.described_count:,} of {output.count(branch.file_count, 'data file')}"
        wrong = f"{branch.wrong_count:,} had a bound that left rows out"
        if report.dry_run:
            output.sentence(
                f"{name}: statistics would be {count_text} ({output.size(branch.read_bytes)} read); {wrong}."
            )
        elif branch.snapshot_id is None:
            output.sentence(f"{name}: the statistics need no repair.")
        else:
            output.sentence(
                f"{name}: statistics {count_text} ({output.size(branch.read_bytes)} read); {wrong}; "
                f"snapshot {branch.snapshot_id}."
            )
    if not report.branches:
        output.sentence(f"{report.url}: there are no tables.")
