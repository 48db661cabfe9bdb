"""``fsck --repair-statistics``: run the repair and print its report."""

from __future__ import annotations

from typing import TYPE_CHECKING

from lakebed.cli import args, exits, say
from lakebed.cli.grammar import Exit

if TYPE_CHECKING:
    from lakebed.fsck.repair import RepairReport

__all__ = ["run_repair"]


def run_repair(url: str, *, store: str | None, dry_run: bool, json: bool) -> None:
    """Repair the statistics of a lake, or of one table, and print what was done; exit `FAULTY` for skipped files."""
    from lakebed.fsck.repair import repair_url  # Arrow is loaded only by commands that read data

    with say.progress("reading data files") as progress:
        report = repair_url(
            url, store=store, dry_run=dry_run, storage_options=args.storage_options(), progress=progress
        )
    _print(report, json=json)
    if report.skipped_count:
        raise Exit(exits.FAULTY)


def _print(report: RepairReport, *, json: bool) -> None:
    if json:
        say.document(report.facts())
        return
    for branch in report.branches:
        name = branch.table if branch.branch == "main" else f"{branch.table}, branch {branch.branch}"
        for skipped in branch.skipped:
            say.sentence(f"error: {name}: {skipped.sentence}")
        done = f"recomputed for {branch.described_count:,} of {say.count(branch.file_count, 'data file')}"
        wrong = f"{branch.wrong_count:,} had a bound that left rows out"
        if report.dry_run:
            say.sentence(f"{name}: statistics would be {done} ({say.size(branch.read_bytes)} read); {wrong}.")
        elif branch.snapshot_id is None:
            say.sentence(f"{name}: the statistics need no repair.")
        else:
            say.sentence(
                f"{name}: statistics {done} ({say.size(branch.read_bytes)} read); {wrong}; "
                f"snapshot {branch.snapshot_id}."
            )
    if not report.branches:
        say.sentence(f"{report.url}: there are no tables.")
