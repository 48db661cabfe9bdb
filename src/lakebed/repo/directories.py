"""Copy a local directory to a prefix of a repository, or a prefix to a directory.

Owns: `upload_directory` and `download_directory`, for repositories of this process and of a server.

Invariants:
- An upload appears on the branch in one change, after all bytes are stored. Deletions follow in a second change.
- A downloaded file appears whole or not at all. Nothing is written or deleted outside of the directory, whatever the
  paths of the objects are and wherever links in the directory lead.
- A file that is equal on both sides, by size and MD5, is not copied.
- A download of a prefix without objects fails, so that a mistyped prefix does not empty the directory.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from lakebed.errors import Conflict, InvalidRequest, NotFound
from lakebed.objects.path import local_path
from lakebed.repo.model.model import Entry
from lakebed.runtime import Environment
from lakebed.texts import format_value
from lakebed.whole_file import name_unfinished

_COPIES_AT_ONCE: Final = 8
_CHUNK_BYTES: Final = 1 << 20

ProgressCall = Callable[["CopyProgress"], None]


@dataclass(frozen=True, slots=True)
class CopyProgress:
    """The progress of a copy, in bytes compared or copied."""

    done_count: int
    total_count: int


@dataclass(frozen=True, slots=True)
class CopyReport:
    """The files that were copied, or in a dry run would be."""

    copied: tuple[str, ...]
    """Paths relative to the directory and the prefix, sorted."""
    copied_bytes: int
    unchanged_count: int
    deleted: tuple[str, ...]
    """Deleted paths of the side that was written to; only if deletions were requested."""
    dry_run: bool
    skipped: tuple[str, ...] = ()
    """Paths that are neither files nor directories, and links to directories."""

    def __repr__(self) -> str:
        return (
            f"CopyReport(copied={len(self.copied)}, bytes={self.copied_bytes}, unchanged={self.unchanged_count}, "
            f"deleted={len(self.deleted)}, dry_run={self.dry_run})"
        )


@dataclass(slots=True)
class _Local:
    """The files of a directory: sizes by relative path, with slashes."""

    sizes: dict[str, int] = field(default_factory=dict)
    skipped: list[str] = field(default_factory=list)


def upload_directory(
    branch: Any,
    directory: str | os.PathLike[str],
    prefix: str = "",
    *,
    delete: bool = False,
    dry_run: bool = False,
    progress: ProgressCall | None = None,
) -> CopyReport:
    """Copy every file below a directory to a branch, uncommitted, in one change.

    Args:
        branch: a branch of a repository, opened here or through a server.
        directory: links to files are followed, links to directories are not.
        prefix: the folder in which the files appear: ``raw`` and ``raw/`` mean the same.
        delete: also delete objects below the prefix that the directory does not have, in a second change.
        dry_run: only report what would be copied and deleted.

    Raises:
        NotFound: there is no such directory.
        InvalidRequest: a file's name is not a valid path.
        Conflict: kind ``path_changed``: others have written to a path that would be deleted; every file was copied.
        Others as `Branch.put` and `Branch.delete_many`.
    Cost: one listing of the prefix; each file is read once to compare it, and once more to be sent.
    """
    root, folder = Path(local_path(directory)), _folder(prefix)
    if not root.is_dir():
        raise NotFound(f"There is no directory {root}.", kind="directory_not_found", path=str(root))
    local = _files_of(root)
    remote = {line.path.removeprefix(folder): line.entry for line in branch.list(folder)}

    def copy(path: str) -> Entry | None:
        """Store the bytes of a file that differs, unless this is a dry run. Returns its entry; None: it is equal."""
        file = root / path
        before = remote.get(path)
        if before is not None and before.size_bytes == local.sizes[path] and _digest(file) == before.checksum:
            return None
        if dry_run:
            return Entry("", local.sizes[path], "", 0)
        with file.open("rb") as body:
            entry: Entry = branch.upload(body)
        return entry

    entries: dict[str, Entry] = {}
    for path, entry in _each(copy, local.sizes, progress):
        if entry is not None:
            entries[path] = entry
    deleted_paths = tuple(sorted(set(remote) - set(local.sizes))) if delete else ()
    if not dry_run:
        if entries:
            branch.stage_many([(folder + path, entry) for path, entry in entries.items()])
        if deleted_paths:
            branch.delete_many({folder + path: remote[path] for path in deleted_paths})
    copied_bytes = sum(entry.size_bytes for entry in entries.values())
    unchanged_count = len(local.sizes) - len(entries)
    return CopyReport(
        tuple(sorted(entries)), copied_bytes, unchanged_count, deleted_paths, dry_run, tuple(local.skipped)
    )


def download_directory(
    reference: Any,
    directory: str | os.PathLike[str],
    prefix: str = "",
    *,
    delete: bool = False,
    dry_run: bool = False,
    progress: ProgressCall | None = None,
) -> CopyReport:
    """Copy every object below a prefix into a directory, which is created if it is missing.

    Args:
        reference: a branch (with its uncommitted changes), tag or commit, opened here or through a server.
        directory: existing files, and links to files, are replaced if they differ. The target of a link is read, to
            compare it, and never written.
        prefix: a folder: ``raw`` and ``raw/`` mean the same.
        delete: also delete files of the directory that are not below the prefix.
        dry_run: only report what would be copied and deleted.

    Raises:
        NotFound: kind ``prefix_not_found``: a prefix is given, and there is no object below it.
        InvalidRequest: kind ``not_a_file_name``: a path that no file below the directory can have.
        Conflict: kind ``changed_meanwhile``: an object of a branch was replaced during the copy; run it again.
    Cost: one listing; each object that differs is read once, and each file of the same size.
    """
    root, folder = Path(local_path(directory)), _folder(prefix)
    remote = {line.path.removeprefix(folder): line.entry for line in reference.list(folder)}
    if folder and not remote:
        raise NotFound(
            f"At {reference} no path begins with {folder}: list the paths there, and give a folder of them. "
            "Nothing was copied or deleted.",
            kind="prefix_not_found",
            prefix=folder,
        )
    _check_names(root, remote)
    local = _files_of(root) if root.is_dir() else _Local()

    def copy(path: str) -> int | None:
        entry = remote[path]
        file = root / path
        if local.sizes.get(path) == entry.size_bytes and _digest(file) == entry.checksum:
            return None
        if not dry_run:
            _write(reference.stream(folder + path), file, size_bytes=entry.size_bytes)
        return int(entry.size_bytes)

    sizes = {path: entry.size_bytes for path, entry in remote.items()}
    copied_sizes = {path: size for path, size in _each(copy, sizes, progress) if size is not None}
    deleted_paths = tuple(sorted(set(local.sizes) - set(remote))) if delete else ()
    for path in () if dry_run else deleted_paths:
        (root / path).unlink(missing_ok=True)
    unchanged_count = len(remote) - len(copied_sizes)
    skipped_paths = tuple(path for path in local.skipped if path not in copied_sizes)
    return CopyReport(
        tuple(sorted(copied_sizes)), sum(copied_sizes.values()), unchanged_count, deleted_paths, dry_run, skipped_paths
    )


def _folder(prefix: str) -> str:
    return f"{prefix}/" if prefix and not prefix.endswith("/") else prefix


def _each(
    function: Callable[[str], Any], sizes: dict[str, int], progress: ProgressCall | None
) -> Iterator[tuple[str, Any]]:
    """Call a function for each path, several at once. Results come in order. After an error no further call begins."""
    pool = Environment().runtime.pool(_COPIES_AT_ONCE)
    total, done_bytes = sum(sizes.values()), 0
    is_over = False

    def unless_over(path: str) -> Any:
        return None if is_over else function(path)

    try:
        for path, result in zip(sizes, pool.map(unless_over, sizes), strict=True):
            done_bytes += sizes[path]
            if progress is not None:
                progress(CopyProgress(done_bytes, total))
            yield path, result
    finally:
        is_over = True
        pool.close()


def _files_of(root: Path) -> _Local:
    local = _Local()
    for folder, folders, names in os.walk(root, onerror=_raise):
        folders.sort()
        for name in sorted([*names, *folders]):
            file = Path(folder) / name
            path = file.relative_to(root).as_posix()
            if file.is_file():
                local.sizes[path] = file.stat().st_size
            elif file.is_symlink() or not file.is_dir():
                local.skipped.append(path)
    return local


def _raise(error: OSError) -> None:
    raise error


def _digest(file: Path) -> str:
    with file.open("rb") as body:
        return hashlib.file_digest(body, lambda: hashlib.md5(usedforsecurity=False)).hexdigest()


def _check_names(root: Path, entries: dict[str, Entry]) -> None:
    """Check that every path can be a file's below the directory, and that no path is also another path's folder."""
    real = root.resolve()
    folders: dict[Path, bool] = {}
    for path in entries:
        parts = path.split("/")
        if any(part in ("", ".", "..") or "\0" in part or os.sep in part for part in parts) or os.path.isabs(path):
            raise InvalidRequest(
                f"The object {format_value(path)} cannot be a file below {root}: rename it, or read it by itself.",
                kind="not_a_file_name",
                path=path,
            )
        parents = ["/".join(parts[:end]) for end in range(1, len(parts))]
        if any(folder in entries for folder in parents):
            raise InvalidRequest(
                f"The object {format_value(path)} lies below another object, which a file cannot: rename one of them.",
                kind="not_a_file_name",
                path=path,
            )
        parent = (root / path).parent
        if parent not in folders:
            folders[parent] = parent.resolve().is_relative_to(real)
        if not folders[parent]:
            raise InvalidRequest(
                f"The object {format_value(path)} would be written outside of {root}, because a link leads there: "
                "remove the link, or name another directory.",
                kind="not_a_file_name",
                path=path,
            )
        if (root / path).is_dir():
            raise InvalidRequest(
                f"{root / path} is a directory, and the repository has an object of this name: remove it, or name "
                "another directory.",
                kind="not_a_file_name",
                path=path,
            )


def _write(chunks: Iterator[bytes], file: Path, *, size_bytes: int) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    unfinished = name_unfinished(file)
    written_bytes = 0
    try:
        with unfinished.open("wb") as target:
            for chunk in chunks:
                written_bytes += target.write(chunk)
        if written_bytes != size_bytes:
            raise Conflict(
                f"The object for {file} was replaced while it was copied: run the download again.",
                kind="changed_meanwhile",
                path=str(file),
            )
        unfinished.replace(file)
    finally:
        unfinished.unlink(missing_ok=True)
