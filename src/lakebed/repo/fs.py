"""Repositories as a file system of fsspec, in this process: ``lakebed://REPOSITORY/REF/PATH`` in pandas and DuckDB.

Owns: `RepositoryFileSystem`. For writes, REF is a branch; for reads, it may also be a tag or a commit. A slash in the
name of a tag is written as ``%2F``. When a file is closed, it is staged on the branch; commit it as any other change.
Directories are prefixes: they exist while there is an object below them.

Invariants: an object appears whole or not at all. If a ``with`` fails, the file written in it is dropped. Errors are
those of Python's own file functions. Does not know: servers; `lakebed.repo.open_all` opens an address that begins with
``http``.

Needs fsspec: ``pip install 'lakebed[fsspec]'``.
"""

from __future__ import annotations

import datetime as dt
import io
import os
import shutil
import tempfile
import weakref
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import fields
from itertools import takewhile
from typing import Any, Final
from urllib.parse import unquote

from lakebed.errors import AlreadyExists, Conflict, InvalidRequest, LakebedError, NotFound
from lakebed.repo.model.model import Entry
from lakebed.repo.model.options import Access
from lakebed.repo.opening import open_repositories
from lakebed.texts import clamp_to_calendar

try:
    from fsspec.spec import AbstractFileSystem
except ModuleNotFoundError as missing:
    raise ModuleNotFoundError("fsspec is not installed: pip install 'lakebed[fsspec]'.", name="fsspec") from missing

_SPOOLED_BYTES: Final = 8 << 20
"""Size up to which a file that is being written is in memory; a larger one is in a temporary file."""

_PROTOCOL: Final = "lakebed"


class RepositoryFileSystem(AbstractFileSystem):  # type: ignore[misc]  # fsspec has no types
    """The repositories of a lake, or one repository, as files.

    Args:
        lake: a folder, the URL of a bucket or a server, as `lakebed.repo.open_all`; by default the environment variable
            ``LAKEBED_LAKE``. It is opened when it is first needed, and this process owns it until it ends or `close`.
        source: open repositories, or one open repository, in place of `lake`.
        options: of `lakebed.repo.open_all` and `lakebed.repo.Access`, such as ``read_only=True``, ``metadata``.

    Examples:
        >>> import lakebed.repo
        >>> with lakebed.repo.open("memory://doc-fs/analytics.repo") as analytics:
        ...     fs = analytics.filesystem()
        ...     fs.pipe("analytics/main/raw/a.csv", b"1")
        ...     fs.find("analytics/main"), fs.cat("analytics/main/raw/a.csv")
        (['analytics/main/raw/a.csv'], b'1')
    """

    protocol = _PROTOCOL
    root_marker = ""

    def __init__(self, lake: str | None = None, *, source: Any = None, **options: Any) -> None:
        fsspec_options = {name: options.pop(name) for name in tuple(options) if name in _FSSPEC_OPTIONS}
        super().__init__(**fsspec_options)
        self._lake = lake or os.environ.get("LAKEBED_LAKE")
        self._options = options
        self._source = source
        self._closing: Any = None

    def close(self) -> None:
        """Close the repositories that this file system has opened itself."""
        if self._closing is not None:
            self._closing()
            self._closing = self._source = None

    def _repository(self, name: str) -> Any:
        source = self._open_source()
        if not hasattr(source, "repository"):  # one repository
            if name != source.name:
                raise FileNotFoundError(f"This file system is of the repository {source.name}, not of {name}.")
            return source
        return source.repository(name)

    def _open_source(self) -> Any:
        if self._source is None:
            if not self._lake:
                raise ValueError(
                    "Of which lake? Give storage_options={'lake': './lake'}, or set the environment variable "
                    "LAKEBED_LAKE."
                )
            with _as_os_errors(self._lake):
                self._source = _open(self._lake, self._options)
            self._closing = weakref.finalize(self, self._source.close)
        return self._source

    def _place(self, path: str, *, is_file: bool = True) -> tuple[Any, str, str]:
        """Split a path into repository, reference and path inside; the latter two are empty if the path is short."""
        name, _, rest = self._strip_protocol(path).strip("/").partition("/")
        ref, _, path_inside = rest.partition("/")
        if is_file and not path_inside:
            raise IsADirectoryError(f"{path} is not a file: write {_PROTOCOL}://REPOSITORY/REFERENCE/PATH.")
        with _as_os_errors(path):
            return (self._repository(name) if name else None), unquote(ref), path_inside

    def ls(self, path: str, detail: bool = True, **kwargs: Any) -> list[Any]:
        """List files and directories of one level: repositories, their branches and tags, or objects."""
        repository, ref, path_inside = self._place(path, is_file=False)
        with _as_os_errors(path):
            if repository is None:
                source = self._open_source()
                names = [item.name for item in source.list()] if hasattr(source, "repository") else [source.name]
                infos = [_directory(name) for name in names]
            elif not ref:
                refs = [*repository.branches(), *repository.tags()]
                infos = [_directory(f"{repository.name}/{reference.name.replace('/', '%2F')}") for reference in refs]
            else:
                infos = self._level(repository, ref, path_inside)
        return infos if detail else [info["name"] for info in infos]

    def _level(self, repository: Any, ref: str, inside: str) -> list[dict[str, Any]]:
        top = _top(repository, ref)
        reference = repository.ref(ref)
        prefix = f"{inside}/" if inside else ""
        infos = []
        for line in reference.list(prefix, delimiter="/"):
            if line.path == prefix:
                continue  # an object whose path ends with a slash: some clients mark a directory with it
            name = f"{top}/{line.path}"
            infos.append(_directory(name.rstrip("/")) if line.entry is None else _file(name, line.entry))
        if not infos and inside:
            return [_file(f"{top}/{inside}", reference.stat(inside))]
        if not infos:
            reference.head()  # raises if the reference does not exist
        return infos

    def info(self, path: str, **kwargs: Any) -> dict[str, Any]:
        """Describe a file, with size, time and checksum, or a directory. Raises `FileNotFoundError`."""
        repository, ref, path_inside = self._place(path, is_file=False)
        if repository is None:
            return _directory("")
        with _as_os_errors(path):
            if not ref:
                return _directory(repository.name)
            reference = repository.ref(ref)
            name = f"{_top(repository, ref)}/{path_inside}".rstrip("/")
            if not path_inside:
                reference.head()
                return _directory(name)
            try:
                return _file(name, reference.stat(path_inside))
            except NotFound:
                if any(True for _ in reference.list(f"{path_inside}/", amount=1)):
                    return _directory(name)
                raise

    def find(
        self, path: str, maxdepth: int | None = None, withdirs: bool = False, detail: bool = False, **kwargs: Any
    ) -> Any:
        """List every file below a path; in one listing, unless a depth is given."""
        repository, ref, path_inside = self._place(path, is_file=False)
        if maxdepth is not None or repository is None or not ref:
            return super().find(path, maxdepth=maxdepth, withdirs=withdirs, detail=detail, **kwargs)
        with _as_os_errors(path):
            top = _top(repository, ref)
            entries = repository.ref(ref).list(f"{path_inside}/" if path_inside else "")
            infos = {f"{top}/{line.path}": _file(f"{top}/{line.path}", line.entry) for line in entries}
            if not infos and path_inside and self.isfile(path):
                infos = {f"{top}/{path_inside}": self.info(path)}
            elif withdirs:
                directories = _directories_above(infos, below=f"{top}/{path_inside}".rstrip("/"))
                infos = dict(sorted({**{name: _directory(name) for name in directories}, **infos}.items()))
        return infos if detail else list(infos)

    def checksum(self, path: str) -> str:
        """The MD5 of a file's bytes, or the etag of an imported object."""
        return str(self.info(path)["checksum"])

    def modified(self, path: str) -> dt.datetime:
        """The time when a file was written, UTC."""
        mtime: dt.datetime = self.info(path)["mtime"]
        return mtime

    def cat_file(self, path: str, start: int | None = None, end: int | None = None, **kwargs: Any) -> bytes:
        """Read the bytes of a file, or a range of them."""
        repository, ref, path_inside = self._place(path)
        with _as_os_errors(path):
            reference = repository.ref(ref)
            if start is None and end is None:
                return bytes(reference.get(path_inside))
            size = reference.stat(path_inside).size_bytes
            first, last, _ = slice(start, end).indices(size)
            return bytes(reference.get(path_inside, byte_range=(first, last))) if first < last else b""

    def _open(self, path: str, mode: str = "rb", autocommit: bool = True, **kwargs: Any) -> Any:
        repository, ref, path_inside = self._place(path)
        with _as_os_errors(path):
            if mode == "rb":
                return repository.ref(ref).open(path_inside)
            if mode not in ("wb", "xb", "ab"):
                raise ValueError(
                    f"The mode {mode!r} is not known: an object is read (rb) or written whole (wb, xb, ab)."
                )
            branch = repository.branch(ref)
            branch.check_put(path_inside, only_if_absent=mode == "xb")
            file = _StagedFile(branch, path_inside, is_new=mode == "xb", autocommit=autocommit)
            if mode == "ab" and branch.exists(path_inside):
                with branch.open(path_inside) as before:
                    shutil.copyfileobj(before, file, _SPOOLED_BYTES)
            return file

    def rm_file(self, path: str) -> None:
        """Delete a file on its branch. Raises `FileNotFoundError`."""
        repository, ref, path_inside = self._place(path)
        with _as_os_errors(path):
            branch = repository.branch(ref)
            branch.stat(path_inside)
            branch.delete(path_inside)

    _rm = rm_file

    def rm(self, path: str | list[str], recursive: bool = False, maxdepth: int | None = None) -> None:
        """Delete files; with `recursive` everything below a directory, in one small write."""
        for target in [path] if isinstance(path, str) else path:
            if recursive and maxdepth is None and "*" not in target and self.isdir(target):
                repository, ref, path_inside = self._place(target, is_file=False)
                if not ref:
                    raise IsADirectoryError(f"{target} is a whole repository: name a branch, or delete the repository.")
                with _as_os_errors(target):
                    repository.branch(ref).delete_prefix(f"{path_inside}/" if path_inside else "")
            elif "*" in target or maxdepth is not None:
                super().rm(target, recursive=recursive, maxdepth=maxdepth)
            else:
                self.rm_file(target)

    def _whole_place(self, path: str) -> tuple[Any, str, str]:
        """As `_place`, but keeps slashes at the end, which are a part of an object's path."""
        repository, ref, path_inside = self._place(path)
        return repository, ref, path_inside + path[len(path.rstrip("/")) :]

    def cp_file(self, path1: str, path2: str, **kwargs: Any) -> None:
        """Copy a file to a branch. Inside a repository, its bytes do not go through this process."""
        if not path1.endswith("/") and self.isdir(path1):
            return
        repository, ref, path_inside = self._whole_place(path1)
        target, branch, new = self._whole_place(path2)
        with _as_os_errors(path1):
            if path1.endswith("/") and not repository.ref(ref).exists(path_inside):
                return  # a directory without an object that marks it
            if repository.name == target.name:
                target.branch(branch).copy(path_inside, new, ref=ref)
                return
            with repository.ref(ref).open(path_inside) as source:
                target.branch(branch).put(new, source)

    def mv(
        self,
        path1: str | list[str],
        path2: str | list[str],
        recursive: bool = False,
        maxdepth: int | None = None,
        **kwargs: Any,
    ) -> None:
        """Move files. What others have put in their place since they were copied is not deleted: `OSError`."""
        if path1 == path2:
            return
        moved = self.expand_path(path1, recursive=recursive, maxdepth=maxdepth)
        by_branch: dict[tuple[str, str], list[str]] = {}
        for path in moved:
            repository, ref, path_inside = self._place(path, is_file=False)
            if path_inside:
                by_branch.setdefault((repository.name, ref), []).append(path_inside + path[len(path.rstrip("/")) :])
        # Seen before they are copied: what is written afterwards is in no copy, or in no older one.
        seen: dict[tuple[str, str], dict[str, Entry]] = {}
        for (name, ref), paths in by_branch.items():
            with _as_os_errors(f"{name}/{ref}"):  # directories are no objects: they are left out
                seen[name, ref] = self._repository(name).ref(ref).stat_many(paths)
        self.copy(path1, path2, recursive=recursive, maxdepth=maxdepth, on_error="raise", **kwargs)
        for (name, ref), entries in seen.items():
            with _as_os_errors(f"{name}/{ref}"):
                self._repository(name).branch(ref).delete_many(entries)

    def get_file(self, rpath: str, lpath: Any = None, **kwargs: Any) -> None:
        """Copy a file to a local one. Raises `ValueError` for a path that no local file can have."""
        path_inside = self._place(rpath, is_file=False)[2]
        if "" in path_inside.split("/") and path_inside:
            raise ValueError(
                f"{rpath} has an empty name between two slashes, which no local file has: read it with cat_file, or "
                "copy it to another path first."
            )
        if not rpath.endswith("/"):
            super().get_file(rpath, lpath, **kwargs)
        elif isinstance(lpath, str):
            os.makedirs(lpath, exist_ok=True)  # the object marks a directory

    def mkdir(self, path: str, create_parents: bool = True, **kwargs: Any) -> None:
        """Do nothing: a directory exists while there is an object below it."""

    def makedirs(self, path: str, exist_ok: bool = False) -> None:
        """Do nothing, as `mkdir`."""

    def rmdir(self, path: str) -> None:
        """Do nothing, as `mkdir`. Raises `OSError` if there is an object below it."""
        if self.exists(path) and self.ls(path):
            raise OSError(f"{path} is not empty: delete the objects below it with rm(recursive=True).")


_FSSPEC_OPTIONS: Final = frozenset(
    ("asynchronous", "loop", "skip_instance_cache", "use_listings_cache", "listings_expiry_time", "max_paths")
)


class _StagedFile(io.BufferedIOBase):
    """A file that is being written: its bytes become an object when it is closed."""

    def __init__(self, branch: Any, path: str, *, is_new: bool, autocommit: bool) -> None:
        self._branch = branch
        self._path = path
        self._is_new = is_new
        self._autocommit = autocommit
        self._is_dropped = False
        self._body = tempfile.SpooledTemporaryFile(max_size=_SPOOLED_BYTES)  # noqa: SIM115

    def writable(self) -> bool:
        """True."""
        return True

    def write(self, data: Any) -> int:
        return self._body.write(data)

    def tell(self) -> int:
        return self._body.tell()

    def __exit__(self, kind: Any, error: Any, trace: Any) -> None:
        if kind is not None:
            self.discard()
        self.close()

    def __del__(self) -> None:
        if not self.closed:  # the writer did not close it, so its contents may be incomplete
            self.discard()

    def close(self) -> None:
        """Put the object, unless a transaction will do that, or the file was discarded."""
        if self.closed:
            return
        try:
            if self._autocommit and not self._is_dropped:
                self.commit()
        finally:
            super().close()

    def commit(self) -> None:
        """Put the object into the branch's staging area."""
        self._body.seek(0)
        with _as_os_errors(self._path), self._body as body:
            self._branch.put(self._path, body, only_if_absent=self._is_new)

    def discard(self) -> None:
        """Drop the contents; no object is put."""
        self._is_dropped = True
        self._body.close()


def _open(lake: str, options: dict[str, Any]) -> Any:
    """Open the repositories of a lake; if a server owns them, through that server."""
    options = dict(options)
    try:
        access = Access(**{field.name: options.pop(field.name) for field in fields(Access) if field.name in options})
        return open_repositories(lake, access=access, **options)
    except Conflict as error:
        endpoint = error.facts.get("endpoint")
        if error.kind != "owned" or not endpoint:
            raise
        return open_repositories(str(endpoint))


def _directories_above(names: Iterable[str], *, below: str) -> set[str]:
    """The directory `below`, and the directories in it that contain some of the files.

    A path with an empty segment is in the last directory before that segment.
    """
    directories: set[str] = set()
    for name in names:
        directories.add(below)
        parts = name[len(below) + 1 :].split("/")[:-1]
        path = below
        for part in takewhile(bool, parts):
            path = f"{path}/{part}"
            directories.add(path)
    return directories


def _top(repository: Any, ref: str) -> str:
    return f"{repository.name}/{ref.replace('/', '%2F')}"


def _directory(name: str) -> dict[str, Any]:
    return {"name": name, "size": 0, "type": "directory"}


def _file(name: str, entry: Entry) -> dict[str, Any]:
    return {
        "name": name,
        "size": entry.size_bytes,
        "type": "file",
        "mtime": dt.datetime.fromtimestamp(clamp_to_calendar(entry.modified_ms) / 1000, dt.UTC),
        "checksum": entry.checksum,
        "content_type": entry.content_type,
        "metadata": dict(entry.metadata),
    }


@contextmanager
def _as_os_errors(path: str) -> Iterator[None]:
    """Turn errors into those of Python's own file functions."""
    try:
        yield
    except NotFound as error:
        raise FileNotFoundError(f"{path}: {error.message}") from error
    except AlreadyExists as error:
        raise FileExistsError(f"{path}: {error.message}") from error
    except InvalidRequest as error:
        kind = PermissionError if error.kind in ("protected_branch", "read_only") else ValueError
        raise kind(f"{path}: {error.message}") from error
    except LakebedError as error:
        raise OSError(f"{path}: {error.message}") from error
