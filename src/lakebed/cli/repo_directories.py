"""Commands of ``lakebed repo`` that copy directories: upload, download."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Annotated

from lakebed.cli import output
from lakebed.cli.command import Deletion
from lakebed.cli.grammar import argument, option
from lakebed.cli.repo_checks import check_change
from lakebed.cli.repo_context import BranchName, Reference, RepositoryCommand
from lakebed.repo.directories import CopyReport
from lakebed.repo.repository import Repository

_SHOWN_MAX = 20


class _Copy(Deletion, RepositoryCommand):
    """A command that copies between a local directory and a repository."""

    reference: Reference
    directory: Annotated[Path, argument("DIRECTORY", help="Where to write; created if it does not exist.")]
    prefix: Annotated[str, argument("PREFIX", help="A folder of the repository. Default: all of it.")] = ""
    delete: Annotated[bool, option("--delete", help="Also delete files of DIRECTORY that are not below PREFIX.")] = (
        False
    )
    dry_run: Annotated[bool, option("--dry-run", help="Report what would be copied and deleted; change nothing.")] = (
        False
    )

    def copy(self, verb: Callable[[Repository], Callable[..., CopyReport]], *, title: str, writes: bool) -> CopyReport:
        """Call a verb of the repository, with a progress bar."""
        # A dry run owns nothing, so it works while a job or a server owns the repositories.
        opening = self.writing if writes and not self.dry_run else self.reading
        with opening() as repository, output.progress(title) as progress:
            report = verb(repository)(
                self.directory, self.prefix, delete=self.delete, dry_run=self.dry_run, progress=progress
            )
            if writes and report.dry_run and (report.copied or report.deleted):
                check_change(repository, self.reference)
            return report


class Upload(_Copy, name="upload"):
    """Copy a local directory to a branch, uncommitted, in one change; equal files are left out."""

    reference: BranchName
    directory: Annotated[Path, argument("DIRECTORY", help="What to upload, with everything below it.")]
    delete: Annotated[
        bool, option("--delete", help="Also delete objects below PREFIX that the directory does not have.")
    ] = False

    def run(self) -> None:
        if self.delete:
            self.ask(f"Delete what {self.directory} does not have below {self.prefix!r} on {self.reference}?")
        report = self.copy(lambda home: home.branch(self.reference).upload_directory, title="uploading", writes=True)
        _print(report, f"{self.directory} to {self.reference}", json=self.json)


class Download(_Copy, name="download"):
    """Copy what is below a prefix into a local directory; equal files are left out."""

    def run(self) -> None:
        if self.delete:
            self.ask(f"Delete files of {self.directory} that {self.reference} does not have? (--dry-run lists them.)")
        report = self.copy(lambda home: home.ref(self.reference).download_directory, title="downloading", writes=False)
        _print(report, f"{self.reference} to {self.directory}", json=self.json)


def _print(report: CopyReport, what: str, *, json: bool) -> None:
    if json:
        output.document(
            {
                "dry_run": report.dry_run,
                "copied": list(report.copied),
                "bytes": report.copied_bytes,
                "unchanged": report.unchanged_count,
                "deleted": list(report.deleted),
                "skipped": list(report.skipped),
            }
        )
        return
    copied_text = f"{output.count(len(report.copied), 'file')} ({output.size(report.copied_bytes)})"
    deleted_text = (
        f", {'would delete' if report.dry_run else 'deleted'} {len(report.deleted):,}" if report.deleted else ""
    )
    verb = "Would copy" if report.dry_run else "Copied"
    equal = f"{report.unchanged_count:,} {'is' if report.unchanged_count == 1 else 'are'}"
    output.sentence(f"{verb} {copied_text} from {what}{deleted_text}; {equal} equal already.")
    if report.dry_run:
        lines = [*(f"  + {path}" for path in report.copied), *(f"  - {path}" for path in report.deleted)]
        for line in lines[:_SHOWN_MAX]:
            output.sentence(line)
        if len(lines) > _SHOWN_MAX:
            output.sentence(f"  ... and {len(lines) - _SHOWN_MAX:,} more (--json lists all)")
    for path in report.skipped:
        output.sentence(f"  not copied, because it is not a regular file: {path}")
