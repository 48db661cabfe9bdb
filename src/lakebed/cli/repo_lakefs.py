"""Commands that move a repository from lakeFS, or to it."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import msgspec

from lakebed.cli import output, standard
from lakebed.cli.grammar import option
from lakebed.cli.repo_context import RepositoryCommand
from lakebed.errors import LakebedError, NotFound
from lakebed.objects.open import open_store
from lakebed.objects.path import local_path, parse_url
from lakebed.repo.lakefs.metaranges import LakefsNamespace, RefsDump, parse_refs_dump
from lakebed.repo.lakefs.restore import load_references
from lakebed.repo.model.names import check_branch_name
from lakebed.repo.opening import is_server
from lakebed.whole_file import write_whole


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
        if not is_server(self.lake):
            parse_url(self.lake)  # report a wrong location before a missing file
        dump = None if self.refs is None else _read_dump(self.refs)
        if not is_server(self.lake):
            self._check_source(dump)
        with self.writing_all(create=True) as repositories, output.progress("importing"):
            is_new = not repositories.exists(self.repository)
            if is_new:
                repository = repositories.create(self.repository, default_branch=self.default_branch, bare=True)
            else:
                repository = repositories.repository(self.repository)  # perhaps a bare one from an earlier attempt
            try:
                report = repository.restore_refs(dump, url=self.source, storage_options=self.storage_options)
            except LakebedError as error:
                if is_new:  # otherwise another import may be filling it, so do not drop it
                    error.add_note(f"The repository {self.repository} was made for it: import again, or drop it.")
                raise
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

    def _check_source(self, dump: RefsDump | None) -> None:
        """Refuse a source without the dump before anything is created, which would leave a repository without branches.

        A server checks the source itself, because it may be one that only the server can access.
        """
        source = LakefsNamespace(open_store(self.source, storage_options=self.storage_options, create=False))
        load_references(
            source, dump or source.load_dump(), repository=self.repository, default_branch=self.default_branch
        )


class ExportLakefs(RepositoryCommand, name="export-lakefs"):
    """Write a repository with its history into a storage namespace of lakeFS, for `lakectl refs-restore`."""

    target: Annotated[
        str,
        option(
            "--to",
            metavar="URL",
            help="lakeFS's storage namespace: s3://bucket/folder, or a folder. Uploaded objects are copied into it.",
        ),
    ]
    refs: Annotated[
        str | None, option("--refs", metavar="FILE", help="Where the ids for refs-restore go; default: printed.")
    ] = None
    commit_ids: Annotated[
        str | None, option("--commit-ids", metavar="FILE", help="Where new ids of commits go: JSON, by ours.")
    ] = None

    def run(self) -> None:
        with self.reading() as repository, output.progress("exporting"):
            report = repository.dump_refs(open_store(self.target, storage_options=self.storage_options))
        refs = msgspec.to_builtins(report.refs)
        for name, document in ((self.refs, refs), (self.commit_ids, report.commit_ids)):
            if name is not None:
                with write_whole(Path(local_path(name))) as file:
                    file.write(_document(document))
        facts = {
            **refs,
            "commits": report.commit_count,
            "branches": report.branch_count,
            "tags": report.tag_count,
            "copied": report.copied_count,
            "changed_commit_ids": len(report.commit_ids),
        }
        text = (
            f"Wrote {output.count(report.commit_count, 'commit')}, "
            f"{output.count(report.branch_count, 'branch', 'branches')} and {output.count(report.tag_count, 'tag')} of "
            f"{self.repository} to {self.target}, with copies of {output.count(report.copied_count, 'object')}; "
            f"{output.count(len(report.commit_ids), 'commit')} got another id."
        )
        self.result(facts, text if self.refs is not None else f"{_document(refs).decode()}\n{text}")


def _document(value: object) -> bytes:
    return msgspec.json.format(msgspec.json.encode(value), indent=2) + b"\n"


def _read_dump(name: str) -> RefsDump:
    """Read the ids of a dump from a file."""
    if name == "-":
        return parse_refs_dump(standard.binary_input().read(), where="standard input")
    try:
        text = Path(local_path(name)).read_bytes()
    except FileNotFoundError as error:
        raise NotFound(
            f"There is no file {name}: give what `lakectl refs-dump` has written.", kind="no_file"
        ) from error
    return parse_refs_dump(text, where=name)
