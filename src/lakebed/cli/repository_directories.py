"""Commands of ``lakebed repo`` that copy directories: upload, download."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from lakebed.cli import homes, say
from lakebed.cli.args import Json, Yes
from lakebed.cli.grammar import Group, argument, option
from lakebed.cli.homes import BranchName, HomeUrl, Metadata, Reference, RepositoryName

if TYPE_CHECKING:
    from lakebed.repo.directories import CopyReport

__all__ = ["register"]

_SHOWN_MAX = 20

Prefix = Annotated[str, argument("PREFIX", help="A folder of the repository. Default: all of it.")]
DryRun = Annotated[bool, option("--dry-run", help="Only say what would be copied and deleted.")]


def register(app: Group) -> None:
    """Add the commands to the group."""
    for command in (upload, download):
        app.command()(command)


def upload(
    lake: HomeUrl,
    repository: RepositoryName,
    branch: BranchName,
    directory: Annotated[Path, argument("DIRECTORY", help="What to upload, with all below it.")],
    prefix: Prefix = "",
    delete: Annotated[
        bool, option("--delete", help="Also delete objects below PREFIX that the directory does not have.")
    ] = False,
    dry_run: DryRun = False,
    yes: Yes = False,
    metadata: Metadata = None,
    json: Json = False,
) -> None:
    """Copy a local directory to a branch, uncommitted, in one change; files that are there already are left out."""
    if delete and not dry_run:
        say.ask(f"Delete what {directory} does not have below {prefix!r} on {branch}?", yes=yes, json=json)
    # A dry run owns nothing, so that it works while a job or a server does.
    with (homes.reading if dry_run else homes.writing)(lake, metadata=metadata) as home:
        target = home.repository(repository).branch(branch)
        with say.progress("uploading") as progress:
            report = target.upload_directory(directory, prefix, delete=delete, dry_run=dry_run, progress=progress)
    _say(report, f"{directory} to {branch}", json=json)


def download(
    lake: HomeUrl,
    repository: RepositoryName,
    reference: Reference,
    directory: Annotated[Path, argument("DIRECTORY", help="Where to write; made if it is not there.")],
    prefix: Prefix = "",
    delete: Annotated[
        bool, option("--delete", help="Also delete files of DIRECTORY that are not below PREFIX.")
    ] = False,
    dry_run: DryRun = False,
    yes: Yes = False,
    metadata: Metadata = None,
    json: Json = False,
) -> None:
    """Copy what is below a prefix into a local directory; files that are equal already are left out."""
    if delete and not dry_run:
        say.ask(
            f"Delete files of {directory} that {reference} does not have? (--dry-run lists them.)", yes=yes, json=json
        )
    with homes.reading(lake, metadata=metadata) as home:
        source = home.repository(repository).ref(reference)
        with say.progress("downloading") as progress:
            report = source.download_directory(directory, prefix, delete=delete, dry_run=dry_run, progress=progress)
    _say(report, f"{reference} to {directory}", json=json)


def _say(report: CopyReport, what: str, *, json: bool) -> None:
    if json:
        say.document(
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
    copied = f"{say.count(len(report.copied), 'file')} ({say.size(report.copied_bytes)})"
    deleted = f", {'would delete' if report.dry_run else 'deleted'} {len(report.deleted):,}" if report.deleted else ""
    verb = "Would copy" if report.dry_run else "Copied"
    equal = f"{report.unchanged_count:,} {'is' if report.unchanged_count == 1 else 'are'}"
    say.sentence(f"{verb} {copied} from {what}{deleted}; {equal} equal already.")
    if report.dry_run:
        lines = [*(f"  + {path}" for path in report.copied), *(f"  - {path}" for path in report.deleted)]
        for line in lines[:_SHOWN_MAX]:
            say.sentence(line)
        if len(lines) > _SHOWN_MAX:
            say.sentence(f"  ... and {len(lines) - _SHOWN_MAX:,} more (--json lists all)")
    for path in report.skipped:
        say.sentence(f"  not copied, because it is no file: {path}")
