"""Commands of ``lakebed repo`` on objects: put, get, ls, stat, rm, import."""

from __future__ import annotations

import os
import shutil
import sys
from itertools import islice
from pathlib import Path
from typing import Annotated

from lakebed.cli import args, homes, say
from lakebed.cli.args import DryRun, Json, Yes
from lakebed.cli.grammar import Group, argument, option
from lakebed.cli.homes import BranchName, HomeUrl, Metadata, ObjectPath, Reference, RepositoryName
from lakebed.errors import AlreadyExists, InvalidRequest, NotFound

__all__ = ["register"]

_CHUNK_BYTES = 1 << 20


def register(app: Group) -> None:
    """Add the commands to the group."""
    for command in (put, get, ls, stat, rm):
        app.command()(command)
    app.command("import")(import_objects)


def put(
    lake: HomeUrl,
    repository: RepositoryName,
    branch: BranchName,
    path: ObjectPath,
    file: Annotated[Path, argument("FILE", help="The file to write; - is standard input.")],
    content_type: Annotated[
        str, option("--content-type", help="What kind of bytes they are.")
    ] = "application/octet-stream",
    meta: Annotated[list[str] | None, option("--meta", metavar="KEY=VALUE", help="Metadata of yours.")] = None,
    if_absent: Annotated[bool, option("--if-absent", help="Fail when the path is there.")] = False,
    metadata: Metadata = None,
    json: Json = False,
) -> None:
    """Write an object to a branch; it is uncommitted until `commit`."""
    named = args.pairs(meta, like="owner=ada")
    if file.is_dir():
        raise InvalidRequest(f"{file} is a folder: name one file, or import the folder.", kind="not_a_file")
    if str(file) != "-" and not file.exists():
        raise InvalidRequest(f"There is no file {file}: name one, or - for standard input.", kind="file_not_found")
    with homes.writing(lake, metadata=metadata) as home:
        target = home.repository(repository).branch(branch)
        source = sys.stdin.buffer if str(file) == "-" else file.open("rb")
        with source:
            entry = target.put(path, source, content_type=content_type, metadata=named, only_if_absent=if_absent)
    found = {"path": path, "bytes": entry.size_bytes, "checksum": entry.checksum}
    say.result(json, found, f"Wrote {path} ({say.size(entry.size_bytes)}) to {branch}, uncommitted.")


def get(
    lake: HomeUrl,
    repository: RepositoryName,
    reference: Reference,
    path: ObjectPath,
    file: Annotated[Path, argument("FILE", help="Where to write it. Default: standard output.")] = Path("-"),
    force: Annotated[bool, option("--force", help="Also over a file that is there.")] = False,
    metadata: Metadata = None,
    json: Json = False,
) -> None:
    """Read an object."""
    to_stdout = str(file) == "-"
    if to_stdout and json:
        raise InvalidRequest("With --json the bytes need a FILE, for the facts go to standard output.", kind="usage")
    if not to_stdout and file.is_dir():
        raise InvalidRequest(
            f"{file} is a folder: name the file to write, {file / Path(path).name}.", kind="not_a_file"
        )
    if not to_stdout and not file.parent.is_dir():
        raise InvalidRequest(f"There is no folder {file.parent}: make it first.", kind="folder_not_found")
    if not to_stdout and file.exists() and not force:
        raise AlreadyExists(f"{file} is there already: name another file, or say --force.", kind="file_exists")
    with homes.reading(lake, metadata=metadata) as home, home.repository(repository).ref(reference).open(path) as body:
        if to_stdout:
            sys.stdout.flush()
            shutil.copyfileobj(body, sys.stdout.buffer, _CHUNK_BYTES)
            return
        # Whole or not at all, under the name that was asked for.
        unfinished = file.with_name(f".{file.name}.{os.getpid()}")
        try:
            with unfinished.open("wb") as target:
                shutil.copyfileobj(body, target, _CHUNK_BYTES)
            unfinished.replace(file)
        finally:
            unfinished.unlink(missing_ok=True)
    size_bytes = file.stat().st_size
    say.result(json, {"path": path, "file": str(file), "bytes": size_bytes}, f"Read {path} ({say.size(size_bytes)}).")


def ls(
    lake: HomeUrl,
    repository: RepositoryName,
    reference: Reference,
    prefix: Annotated[str, argument("PREFIX", help="Only paths that begin so.")] = "",
    recursive: Annotated[bool, option("--recursive", "-r", help="Every object, not one level.")] = False,
    limit: Annotated[int | None, option("--limit", min=1, help="At most so many.")] = None,
    metadata: Metadata = None,
    json: Json = False,
) -> None:
    """List objects, one level of folders at a time."""
    with homes.reading(lake, metadata=metadata) as home:
        listed = home.repository(repository).ref(reference).list(prefix, delimiter="" if recursive else "/")
        found = (homes.of_listed(one) for one in islice(listed, limit))
        if json:
            say.document(list(found))
            return
        rows = (
            (one["path"], "", "")
            if one["kind"] == "prefix"
            else (one["path"], say.size(one["bytes"]), say.ago(one["changed_ms"]))
            for one in found
        )
        say.grid(("path", "size", "changed"), rows, right=("size",), less=("changed", "size"), empty="No objects.")


def stat(
    lake: HomeUrl,
    repository: RepositoryName,
    reference: Reference,
    path: ObjectPath,
    metadata: Metadata = None,
    json: Json = False,
) -> None:
    """Show what is known of an object."""
    with homes.reading(lake, metadata=metadata) as home:
        entry = home.repository(repository).ref(reference).stat(path)
    if json:
        say.document(homes.of_entry(path, entry))
        return
    rows = [
        ("path", path),
        ("size", f"{entry.size_bytes:,} bytes"),
        ("changed", say.ago(entry.modified_ms)),
        ("checksum", entry.checksum or "-"),
        ("content type", entry.content_type),
        ("address", entry.address),
        ("metadata", say.options_text(entry.metadata)),
    ]
    say.facts(rows)


def rm(
    lake: HomeUrl,
    repository: RepositoryName,
    branch: BranchName,
    path: Annotated[str, argument("PATH", help="The object; with --recursive all whose paths begin so.")],
    recursive: Annotated[bool, option("--recursive", "-r", help="Everything below the prefix, at once.")] = False,
    dry_run: DryRun = False,
    yes: Yes = False,
    metadata: Metadata = None,
    json: Json = False,
) -> None:
    """Delete an object, or everything below a prefix, on a branch. Committed versions keep it."""
    with homes.reading(lake, metadata=metadata) as home:
        there = home.repository(repository).ref(branch)
        below = sum(1 for _ in islice(there.list(path), None if dry_run else 1))
        count = below if recursive else int(there.exists(path))
    if dry_run:
        text = f"Would delete {say.count(count, 'object')}."
        say.result(json, {"path": path, "dry_run": True, "objects": count}, text)
        return
    if not count:
        hint = " Paths begin so: --recursive deletes them all." if below else ""
        what = "no path begins with" if recursive else "there is no object"
        raise NotFound(f"On the branch {branch} {what} {path}.{hint}", kind="object_not_found", path=path)
    say.ask(f"Delete {'everything below ' if recursive else ''}{path!r} on {branch}?", yes=yes, json=json)
    with homes.writing(lake, metadata=metadata) as home:
        target = home.repository(repository).branch(branch)
        if recursive:
            target.delete_prefix(path)
        else:
            target.delete(path)
    shown = f"everything below {path}" if recursive else path
    say.result(json, {"path": path, "dry_run": False}, f"Deleted {shown} on {branch}, uncommitted.")


def import_objects(
    lake: HomeUrl,
    repository: RepositoryName,
    branch: BranchName,
    source: Annotated[str, argument("URL", help="What to import: a folder, prefix or object elsewhere.")],
    destination: Annotated[str, argument("PREFIX", help="Where it appears on the branch.")],
    message: Annotated[str, option("--message", "-m", help="Of the commit.")] = "",
    single: Annotated[bool, option("--single", help="One object: PREFIX is its path.")] = False,
    metadata: Metadata = None,
    json: Json = False,
) -> None:
    """Commit objects that lie elsewhere, without copying them. Collections never delete them."""
    from lakebed.repo.importing import ImportSource

    origin = ImportSource(source, destination, "object" if single else "prefix")
    with homes.writing(lake, metadata=metadata) as home, say.progress("importing"):
        target = home.repository(repository).branch(branch)
        before = target.commit_id
        done = target.import_objects([origin], message=message or f"Import {source}")
        found = homes.of_commit(home.repository(repository).ref(str(done.commit_id)).head())
    where = f"as {destination}" if single else f"below {destination or 'the root'}"
    objects = say.count(done.ingested_count, "object")
    if done.commit_id == before:
        text = f"Nothing changed: {branch} has the {objects} of {source} {where} already; no commit was made."
    else:
        text = f"Imported {objects} of {source} {where} on {branch}: commit {found['id'][:12]}."
    say.result(json, {**found, "imported": done.ingested_count, "changed": done.commit_id != before}, text)
