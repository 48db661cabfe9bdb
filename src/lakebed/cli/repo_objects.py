"""Commands of ``lakebed repo`` on objects: put, get, ls, stat, rm, import."""

from __future__ import annotations

import shutil
from itertools import islice
from pathlib import Path
from typing import Annotated

from lakebed.cli import output, standard
from lakebed.cli.command import Deletion
from lakebed.cli.grammar import argument, option, pairs
from lakebed.cli.repo_checks import check_change
from lakebed.cli.repo_context import (
    BranchName,
    ObjectPath,
    Reference,
    RepositoryCommand,
    of_commit,
    of_entry,
    of_listed,
)
from lakebed.errors import AlreadyExists, InvalidRequest, NotFound
from lakebed.repo.heads.importing import ImportSource
from lakebed.texts import format_count
from lakebed.whole_file import write_whole

_CHUNK_BYTES = 1 << 20


class Put(RepositoryCommand, name="put"):
    """Write an object to a branch; it is uncommitted until `commit`."""

    branch: BranchName
    path: ObjectPath
    file: Annotated[Path, argument("FILE", help="The file to write; - is standard input.")]
    content_type: Annotated[str, option("--content-type", help="The media type, such as text/csv.")] = (
        "application/octet-stream"
    )
    meta: Annotated[list[str] | None, option("--meta", metavar="KEY=VALUE", help="Metadata of the object.")] = None
    if_absent: Annotated[bool, option("--if-absent", help="Fail if the path exists.")] = False

    def run(self) -> None:
        metadata = pairs(self.meta, like="owner=ada")
        if self.file.is_dir():
            raise InvalidRequest(f"{self.file} is a folder: name one file, or import the folder.", kind="not_a_file")
        if str(self.file) != "-" and not self.file.exists():
            raise NotFound(
                f"There is no file {self.file}: name one, or - for standard input.",
                kind="file_not_found",
                path=str(self.file),
            )
        with self.writing() as repository:
            target = repository.branch(self.branch)
            source = standard.binary_input() if str(self.file) == "-" else self.file.open("rb")
            with source:
                entry = target.put(
                    self.path, source, content_type=self.content_type, metadata=metadata, only_if_absent=self.if_absent
                )
        facts = {"path": self.path, "bytes": entry.size_bytes, "checksum": entry.checksum}
        self.result(facts, f"Wrote {self.path} ({output.size(entry.size_bytes)}) to {self.branch}, uncommitted.")


class Get(RepositoryCommand, name="get"):
    """Read an object."""

    reference: Reference
    path: ObjectPath
    file: Annotated[Path, argument("FILE", help="Where to write it. Default: standard output.")] = Path("-")
    force: Annotated[bool, option("--force", help="Overwrite an existing file.")] = False

    def run(self) -> None:
        to_stdout = str(self.file) == "-"
        if to_stdout and self.json:
            raise InvalidRequest(
                "With --json, name a FILE for the bytes: the facts go to standard output.", kind="usage"
            )
        if not to_stdout and self.file.is_dir():
            raise InvalidRequest(
                f"{self.file} is a folder: name the file to write, {self.file / Path(self.path).name}.",
                kind="not_a_file",
            )
        if not to_stdout and not self.file.parent.is_dir():
            raise NotFound(f"There is no folder {self.file.parent}: create it first.", kind="folder_not_found")
        if not to_stdout and self.file.is_file() and not self.force:
            raise AlreadyExists(f"{self.file} already exists: name another file, or give --force.", kind="file_exists")
        with self.reading() as repository, repository.ref(self.reference).open(self.path) as body:
            if to_stdout:
                shutil.copyfileobj(body, standard.binary_output(), _CHUNK_BYTES)
                return
            with write_whole(self.file) as target:
                shutil.copyfileobj(body, target, _CHUNK_BYTES)
            size_bytes = body.tell()
        self.result(
            {"path": self.path, "file": str(self.file), "bytes": size_bytes},
            f"Read {self.path} ({output.size(size_bytes)}).",
        )


class Ls(RepositoryCommand, name="ls"):
    """List objects, one level of folders at a time."""

    reference: Reference
    prefix: Annotated[str, argument("PREFIX", help="Only paths with this prefix.")] = ""
    recursive: Annotated[bool, option("--recursive", "-r", help="Every object, not one level.")] = False
    limit: Annotated[int | None, option("--limit", min=1, help="At most this many.")] = None

    def run(self) -> None:
        with self.reading() as repository:
            entries = repository.ref(self.reference).list(self.prefix, delimiter="" if self.recursive else "/")
            records = (of_listed(entry) for entry in islice(entries, self.limit))
            rows = (
                (record["path"], "", "")
                if record["kind"] == "prefix"
                else (record["path"], output.size(record["bytes"]), output.ago(record["changed_ms"]))
                for record in records
            )
            self.grid(
                records,
                ("path", "size", "changed"),
                rows,
                right=("size",),
                less=("changed", "size"),
                empty="No objects.",
            )


class Stat(RepositoryCommand, name="stat"):
    """Show size, checksum, metadata and location of an object."""

    reference: Reference
    path: ObjectPath

    def run(self) -> None:
        with self.reading() as repository:
            entry = repository.ref(self.reference).stat(self.path)
        if self.json:
            output.document(of_entry(self.path, entry))
            return
        rows = [
            ("path", self.path),
            ("size", format_count(entry.size_bytes, "byte")),
            ("changed", output.ago(entry.modified_ms)),
            ("checksum", entry.checksum or "-"),
            ("content type", entry.content_type),
            ("address", entry.address),
            ("metadata", output.options_text(entry.metadata)),
        ]
        output.facts(rows)


class Rm(Deletion, RepositoryCommand, name="rm"):
    """Delete an object, or everything below a prefix, on a branch. Committed versions keep it."""

    branch: BranchName
    path: Annotated[str, argument("PATH", help="The object; with --recursive a prefix of paths.")]
    recursive: Annotated[bool, option("--recursive", "-r", help="Everything below the prefix, at once.")] = False

    def run(self) -> None:
        with self.reading() as repository:
            reference = repository.ref(self.branch)
            object_count = sum(1 for _ in islice(reference.list(self.path), None if self.dry_run else 1))
            count = object_count if self.recursive else int(reference.exists(self.path))
            if self.dry_run and count:
                check_change(repository, self.branch)
        if not count:
            hint = " Paths begin so: --recursive deletes them all." if object_count else ""
            absence = "no path begins with" if self.recursive else "there is no object"
            raise NotFound(
                f"On the branch {self.branch} {absence} {self.path}.{hint}", kind="object_not_found", path=self.path
            )
        if self.dry_run:
            text = f"Would delete {output.count(count, 'object')}."
            self.result({"path": self.path, "dry_run": True, "objects": count}, text)
            return
        self.ask(f"Delete {'everything below ' if self.recursive else ''}{self.path!r} on {self.branch}?")
        with self.writing() as repository:
            target = repository.branch(self.branch)
            if self.recursive:
                target.delete_prefix(self.path)
            else:
                target.delete(self.path)
        target_text = f"everything below {self.path}" if self.recursive else self.path
        self.result({"path": self.path, "dry_run": False}, f"Deleted {target_text} on {self.branch}, uncommitted.")


class ImportObjects(RepositoryCommand, name="import"):
    """Commit objects of another store without copying them. Collections never delete them."""

    branch: BranchName
    source: Annotated[str, argument("URL", help="What to import: a folder, prefix or object.")]
    destination: Annotated[str, argument("PREFIX", help="Where it appears on the branch.")]
    message: Annotated[str, option("--message", "-m", help="Of the commit.")] = ""
    single: Annotated[bool, option("--single", help="One object: PREFIX is its path.")] = False

    def run(self) -> None:

        origin = ImportSource(self.source, self.destination, "object" if self.single else "prefix")
        with self.writing() as repository, output.progress("importing"):
            target = repository.branch(self.branch)
            before = target.commit_id
            commit = target.import_objects([origin], message=self.message or f"Import {self.source}")
            facts = of_commit(repository.ref(str(commit.commit_id)).head())
        where = f"as {self.destination}" if self.single else f"below {self.destination or 'the root'}"
        objects = output.count(commit.ingested_count, "object")
        if commit.commit_id == before:
            text = f"Nothing changed, no commit: {self.branch} already has the {objects} of {self.source} {where}."
        else:
            text = f"Imported {objects} of {self.source} {where} on {self.branch}: commit {facts['id'][:12]}."
        self.result({**facts, "imported": commit.ingested_count, "changed": commit.commit_id != before}, text)
