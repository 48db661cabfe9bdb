"""Commands that move a repository from lakeFS."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

from lakebed.cli import output
from lakebed.cli.grammar import option
from lakebed.cli.repo_context import RepositoryCommand
from lakebed.errors import NotFound
from lakebed.repo.lakefs.metaranges import RefsDump, parse_refs_dump
from lakebed.repo.model.names import check_branch_name


class ImportLakefs(RepositoryCommand, name="import-lakefs"):
    """Make a repository of a dump of a lakeFS repository, with its history; objects stay where they are."""

    source: Annotated[
        str,
        option("--from", metavar="URL", help="lakeFS's storage namespace: s3://bucket/folder, or a folder."),
    ]
    refs: Annotated[
        str | None,
        option("--refs", metavar="FILE", help="What `lakectl refs-dump` has written; - reads standard input."),
    ] = None
    default_branch: Annotated[str, option("--default-branch", help="lakeFS's default branch.")] = "main"

    def run(self) -> None:
        check_branch_name(self.default_branch)
        dump = None if self.refs is None else _read_dump(self.refs)
        with self.writing_all(create=True) as repositories, output.progress("importing"):
            if repositories.exists(self.repository):
                repository = repositories.repository(self.repository)  # perhaps a bare one that an earlier try left
            else:
                repository = repositories.create(self.repository, default_branch=self.default_branch, bare=True)
            report = repository.restore_refs(dump, url=self.source, storage_options=self.storage_options)
        facts = {
            "repository": self.repository,
            "commits": report.commit_count,
            "branches": report.branch_count,
            "tags": report.tag_count,
            "objects": report.object_count,
        }
        text = (
            f"Made the repository {self.repository} of {self.source}: {output.count(report.commit_count, 'commit')}, "
            f"{output.count(report.branch_count, 'branch', 'branches')}, {output.count(report.tag_count, 'tag')}, "
            f"{output.count(report.object_count, 'object')} on {repository.default_branch}. Objects stay in "
            f"{self.source}: keep it."
        )
        self.result(facts, text)


def _read_dump(name: str) -> RefsDump:
    """The ids of a dump in a file."""
    if name == "-":
        return parse_refs_dump(sys.stdin.buffer.read(), where="standard input")
    try:
        text = Path(name).read_bytes()
    except FileNotFoundError as error:
        raise NotFound(
            f"There is no file {name}: give what `lakectl refs-dump` has written.", kind="no_file"
        ) from error
    return parse_refs_dump(text, where=name)
