"""Local folders, with whole-file puts that are never seen half-written and that survive power loss.

Owns: the system calls. Invariants:
- A create-only put writes a file without a name (``O_TMPFILE``; elsewhere a hidden file), then gives it its name with
  ``link``, which fails if the name is taken. It never uses ``rename``, which would replace a file that another writer
  has acknowledged.
- With ``durable=True`` the file is synced before it gets its name, then its folder. The folders above are synced once
  in the life of the store, because their creator may not have synced them.
- Hidden names of unfinished files are neither listed nor accepted as paths. Files that a crash left are removed a day
  after they were made, when a store first writes such a file into their folder.
- Symbolic links below the root are not objects. They are neither listed nor followed. The check of a folder is
  remembered, so a link by which another program replaces a checked folder is not detected: permissions must prevent it.
- A root that existed is not created again. It was renamed or removed, and new files under its old name would be
  separated from the others. The same holds for the folder of a view that requires it.
- Listings are in the order of whole paths, although one folder is read at a time: a folder sorts as its name with a
  slash.

Does not know: network file systems, whose ``link`` and ``fsync`` promise less. They are not supported.
"""

from __future__ import annotations

import copy
import errno
import fcntl
import os
import re
import stat
import sys
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Final, TypeVar, cast

from typing_extensions import Buffer

from lakebed.errors import InvalidRequest, LakebedError, NotFound, OutcomeUnknown, Unavailable
from lakebed.objects.driver import Driver
from lakebed.objects.kernel_syncs import DESCRIPTORS_MAX, sync_each
from lakebed.objects.memory import absent, check_range, exists_error
from lakebed.objects.path import join_path
from lakebed.objects.port import ByteRange, Listing, ObjectMeta
from lakebed.objects.shared_sync import SharedSyncs
from lakebed.runtime import Environment, map_in_pool, new_lock

R = TypeVar("R")

_READ_FIRST_BYTES: Final = 64 << 10
"""One read of this size returns a small object as a whole, without a request for its size."""
_LARGE_BYTES: Final = 128 << 10
"""From this size on the C library may map new pages for a block, which takes longer than reading into them."""
_IO_BYTES_MAX: Final = 1 << 30
"""Most bytes of one call. The limit of Linux is 2 GiB - 4 KiB."""

_TEMPORARY: Final = re.compile(r"\.lakebed-[0-9a-f]{16}\.tmp")
_OPEN_FOLDER: Final = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
_OPEN_PLACE: Final = getattr(os, "O_PATH", os.O_RDONLY) | os.O_DIRECTORY | os.O_CLOEXEC
_OPEN_READ: Final = os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC
_OPEN_NEW: Final = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
_O_TMPFILE: Final[int] = getattr(os, "O_TMPFILE", 0)
_RWF_NOWAIT: Final[int | None] = getattr(os, "RWF_NOWAIT", None)  # of Linux
_PROC: Final = "/proc/self/fd"
_NO_NAMELESS: Final = {errno.EOPNOTSUPP, errno.EISDIR, errno.EINVAL, errno.ENOENT}
_DENIED: Final = {errno.EACCES, errno.EPERM, errno.EROFS}
_READING: Final = {"read", "look at", "sync", "list"}
_ABSENT: Final = {errno.ENOENT, errno.EISDIR, errno.ENOTDIR}
_NOT_A_FOLDER: Final = {errno.ENOTDIR, errno.EISDIR, errno.EEXIST, errno.ENOTEMPTY}
_FULL: Final = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}
_PUT_TRIES_MAX: Final = 16
_ABANDONED_S: Final = 86_400
"""Age from which an unfinished file counts as abandoned: no put takes a day."""

_SYNCED_TOGETHER_MAX: Final = 4
"""Files that threads sync concurrently if the kernel cannot: twice as fast as one at a time; more are not faster."""

# On macOS fsync writes only to the drive's cache; this also flushes that cache.
_F_FULLFSYNC: Final[int | None] = getattr(fcntl, "F_FULLFSYNC", None)


class _LocalUpload:
    """A file in the object's folder that gets its name when it is complete. Until then it has none, or a hidden one."""

    request_count = 1

    def __init__(
        self, driver: LocalDriver, path: str, hidden: str | None, descriptor: int, *, create_only: bool, durable: bool
    ) -> None:
        self._driver = driver
        self._path = path
        self._hidden = hidden
        self._descriptor = descriptor
        self._create_only = create_only
        self._durable = durable
        # After an interrupt (Ctrl-C) one thread may abandon a file that another one writes: the lock ensures that the
        # descriptor's number does not belong to another file by then.
        self._lock = new_lock()

    def write(self, part: memoryview) -> None:
        with self._driver.writing(self._path), self._lock:
            _write_all(self._descriptor, part)

    def finish(self) -> None:
        folder = self._path.rpartition("/")[0]
        with self._driver.writing(self._path):
            if self._hidden is None:
                self._driver.name_nameless(self._descriptor, self._path, durable=self._durable)
                self._close()
            else:
                self._finish_hidden(self._hidden)
        if self._durable:
            self._driver.make_parents_durable(folder)

    def _finish_hidden(self, hidden: str) -> None:
        place, name = os.path.dirname(hidden), self._path.rpartition("/")[2]
        if self._durable:
            _flush(self._descriptor)
        self._close()
        _give_name(hidden, f"{place}/{name}", create_only=self._create_only)
        if self._durable:
            _sync_folder(place, _flush_named)

    def abandon(self) -> None:
        self._close()
        if self._hidden is not None:
            _unlink_if_there(self._hidden)

    def _close(self) -> None:
        with self._lock:
            descriptor, self._descriptor = self._descriptor, -1
            if descriptor >= 0:
                os.close(descriptor)


class LocalDriver(Driver):
    """`Driver` of one folder. The first put creates the folder."""

    is_remote = False
    range_gap_bytes_max = 4096
    delete_batch_count_max = 1000

    def __init__(self, root: str, *, environment: Environment, folder_memory_count_max: int) -> None:
        # The root itself may be reached through links; objects below it may not.
        self._root = os.path.realpath(root)
        self._shown_root = root.rstrip("/") or "/"
        self._rng = environment.rng
        self._runtime = environment.runtime
        self._syncs = SharedSyncs(_flush, runtime=environment.runtime)
        self._nameless = bool(_O_TMPFILE) and os.path.isdir(_PROC)
        self._checked: dict[str, None] = {}
        self._durable: dict[str, None] = {}
        self._tidied: set[str] = set()
        self._memory_count_max = folder_memory_count_max
        self._had_root = os.path.isdir(self._root)
        self._required: _RequiredFolder | None = None

    def require_folder(self, folder: str, *, with_descriptor: bool) -> LocalDriver:
        """See `Driver.require_folder`. Cost: a stat a write; if asked for, a descriptor for the life of the view."""
        view = copy.copy(self)
        view._required = _RequiredFolder(self._place(folder), with_descriptor=with_descriptor)
        return view

    def release_folder(self) -> None:
        if self._required is not None:
            self._required.release()

    @property
    def root_url(self) -> str:
        """``file:///absolute/path``."""
        return "file://" + self._shown_root

    @property
    def metrics_label(self) -> str:
        return "file"

    def get(self, path: str, byte_range: ByteRange | None) -> Buffer:
        """Open, read, close: three system calls for an object up to 64 KiB."""
        descriptor = self._open(path)
        try:
            if byte_range is not None:
                return self._read_range(descriptor, path, byte_range)
            body = os.read(descriptor, _READ_FIRST_BYTES)
            if len(body) < _READ_FIRST_BYTES:
                return body
            size_bytes = os.fstat(descriptor).st_size
            return body if size_bytes == len(body) else _read_exactly(descriptor, 0, size_bytes, path)
        except OSError as error:
            raise self._translate(error, "read", path) from error
        finally:
            os.close(descriptor)

    def get_ranges(self, path: str, ranges: Sequence[ByteRange]) -> list[Buffer]:
        """Open the file once, and read each range."""
        descriptor = self._open(path)
        try:
            return [self._read_range(descriptor, path, byte_range) for byte_range in ranges]
        except OSError as error:
            raise self._translate(error, "read", path) from error
        finally:
            os.close(descriptor)

    def get_resident(self, path: str, byte_range: ByteRange | None) -> Buffer | None:
        """Open, read what the system has in its cache, close. The look-up of the name may wait, as that of `head`.

        If a file system cannot tell, nothing counts as resident.
        """
        if _RWF_NOWAIT is None:
            return None
        descriptor = self._open(path)
        try:
            start, end = byte_range or (0, os.fstat(descriptor).st_size)
            if end - start > _READ_FIRST_BYTES:
                return None
            body = bytearray(end - start)
            is_whole = os.preadv(descriptor, [body], start, _RWF_NOWAIT) == end - start
            return memoryview(body).toreadonly() if is_whole else None
        except OSError:
            return None  # it is not there yet, or cannot be read: `get` waits, and raises the error
        finally:
            os.close(descriptor)

    def map(self, path: str) -> Buffer | None:
        """Map a whole file. The descriptor is closed again, so that many files may be mapped."""
        if not self._nameless and not os.path.isdir(_PROC):
            return None
        descriptor = self._open(path)
        try:
            import pyarrow as pa  # here, because programs that only list and copy objects need no Arrow

            # By the number of the descriptor, not by the path, so that the checked file is mapped.
            with pa.memory_map(f"{_PROC}/{descriptor}", "r") as file:
                return cast(Buffer, file.read_buffer())
        except OSError:
            return None  # no address space, or a file system without maps: it is read by ranges
        finally:
            os.close(descriptor)

    def head(self, path: str) -> ObjectMeta:
        self._check(path)
        try:
            status = os.lstat(f"{self._root}/{path}")
        except OSError as error:
            raise self._translate(error, "look at", path) from error
        if not stat.S_ISREG(status.st_mode):
            raise absent(path, self.root_url)
        return _meta(path, status)

    def _open(self, path: str) -> int:
        self._check(path)
        try:
            return os.open(f"{self._root}/{path}", _OPEN_READ)
        except OSError as error:
            raise self._translate(error, "read", path) from error

    def _read_range(self, descriptor: int, path: str, byte_range: ByteRange) -> Buffer:
        start, end = byte_range
        if end - start <= _IO_BYTES_MAX:
            body = _read_once(descriptor, start, end - start)
            if len(body) == end - start:  # the common case: the size need not be read
                return body
        start, end = check_range(byte_range, size_bytes=os.fstat(descriptor).st_size, path=path)
        return _read_exactly(descriptor, start, end - start, path)

    def put(self, path: str, body: memoryview, *, create_only: bool, durable: bool) -> None:
        """Write a hidden file in the same folder, then link it (create-only) or rename it (replacing) to its name."""
        self._check(path)
        self._check_required("write", path)
        folder, _, name = path.rpartition("/")
        place = f"{self._root}/{folder}" if folder else self._root
        for _ in range(_PUT_TRIES_MAX):
            try:
                if create_only and self._nameless:
                    self._put_nameless(place, name, body, durable)
                else:
                    self._write_hidden(place, name, body, create_only, durable)
            except FileNotFoundError:
                self._make_folder(folder)  # it is missing, or another program has removed it: create it
                continue
            except FileExistsError as error:
                if durable:
                    self._sync_place(folder)  # a caller that gets AlreadyExists may rely on the existing object
                raise exists_error(path, self.root_url) from error
            except _NamedError as named:
                raise self._sync_error(named, path) from named.__cause__
            except OSError as error:
                if create_only and self._lacks_nameless(error, place):
                    continue
                raise self._translate(error, "write", path) from error
            if durable:
                self.make_parents_durable(folder)
            return
        raise self._vanishing(path)

    def put_each(self, objects: Sequence[tuple[str, memoryview]], *, durable: bool) -> None:
        """Write files and name them, then sync all of them and their folder at the same time."""
        try:
            if not self._put_nameless_each(objects, durable=durable):
                for path, body in objects:
                    self.put(path, body, create_only=True, durable=False)
                if durable:
                    self._sync_each([path for path, _ in objects])
        except _UnsyncedError as error:
            # The system reports a failure once. A second sync would succeed although bytes are lost.
            raise OutcomeUnknown(
                f"{self.root_url}/{error.path} and {len(objects) - 1} more objects were written, but could not be "
                f"synced ({error.reason}): they are there now, and may be cut short after a power loss",
                kind="unsynced",
                path=error.path,
            ) from error.reason

    def _put_nameless_each(self, objects: Sequence[tuple[str, memoryview]], *, durable: bool) -> bool:
        """Put objects as files that get their names when they are complete.

        Returns:
            Whether that is possible. If not, none of them has a name.
        """
        folders = list(dict.fromkeys(path.rpartition("/")[0] for path, _ in objects))
        if not self._nameless or len(folders) + len(objects) > DESCRIPTORS_MAX:
            return False
        paths = [path for path, _ in objects]
        for path in paths:
            self._check(path)
        self._check_required("write", paths[0])
        parents: dict[str, int] = {}
        descriptors: list[int] = []
        try:
            try:
                for folder in folders:
                    parents[folder] = os.open(self._place(folder), _OPEN_FOLDER)
                for path, body in objects:
                    descriptors.append(_open_nameless(self._place(path.rpartition("/")[0])))
                    _write_all(descriptors[-1], body)
            except OSError as error:
                if error.errno in _NO_NAMELESS:  # the folder is missing, or files without names are not supported
                    return False
                raise self._translate(error, "write", paths[0]) from error
            for descriptor, path in zip(descriptors, paths, strict=True):
                self._name(descriptor, path, parent=parents[path.rpartition("/")[0]])
            if durable:
                self._flush_each([*descriptors, *parents.values()], [*paths, *folders])
        finally:
            for descriptor in [*descriptors, *parents.values()]:
                os.close(descriptor)
        if durable:
            for folder in folders:
                self.make_parents_durable(folder)
        return True

    def _name(self, descriptor: int, path: str, *, parent: int) -> None:
        try:
            _link_nameless(descriptor, path.rpartition("/")[2], parent)
        except FileExistsError as error:
            raise exists_error(path, self.root_url) from error
        except OSError as error:
            raise self._translate(error, "write", path) from error

    def open_upload(self, path: str, *, create_only: bool, durable: bool) -> _LocalUpload:
        """Open a file in the object's folder, without a name or hidden."""
        self._check(path)
        self._check_required("write", path)
        folder = path.rpartition("/")[0]
        place = self._place(folder)
        for _ in range(_PUT_TRIES_MAX):
            hidden_place: str | None = None
            try:
                if create_only and self._nameless:
                    descriptor = _open_nameless(place)
                else:
                    hidden_place, descriptor = self._open_hidden(place)
            except FileNotFoundError:
                self._make_folder(folder)
                continue
            except OSError as error:
                if create_only and self._lacks_nameless(error, place):
                    continue
                raise self._translate(error, "write", path) from error
            return _LocalUpload(self, path, hidden_place, descriptor, create_only=create_only, durable=durable)
        raise self._vanishing(path)

    def _lacks_nameless(self, error: OSError, place: str) -> bool:
        """Whether a put failed because this file system lacks files without names. Later puts then do not try them."""
        is_said = error.errno == errno.EOPNOTSUPP or (error.errno in _NO_NAMELESS and os.path.isdir(place))
        if not self._nameless or not is_said:
            return False
        self._nameless = False
        return True

    @contextmanager
    def writing(self, path: str) -> Iterator[None]:
        """Translate the failures of system calls of an upload."""
        self._check_required("write", path)
        try:
            yield
        except _NamedError as named:
            raise self._sync_error(named, path) from named.__cause__
        except FileNotFoundError as error:
            raise self._vanishing(path) from error
        except FileExistsError as error:
            raise exists_error(path, self.root_url) from error
        except OSError as error:
            raise self._translate(error, "write", path) from error

    def make_parents_durable(self, folder: str) -> None:
        """Make the folders above an object durable, once in the life of the driver."""
        if folder not in self._durable:
            self._sync_parents(folder)

    def _put_nameless(self, place: str, name: str, body: memoryview, durable: bool) -> None:
        parent = os.open(place, _OPEN_FOLDER)
        try:
            descriptor = _open_nameless(place)
            try:
                _write_all(descriptor, body)
                self._flush_and_link(descriptor, name, parent, durable)
            finally:
                os.close(descriptor)
            if durable:
                self._sync_parent(parent)
        finally:
            os.close(parent)

    def name_nameless(self, descriptor: int, path: str, *, durable: bool) -> None:
        """Give a complete file its name. The caller closes it."""
        folder, _, name = path.rpartition("/")
        parent = os.open(self._place(folder), _OPEN_FOLDER)
        try:
            self._flush_and_link(descriptor, name, parent, durable)
            if durable:
                self._sync_parent(parent)
        finally:
            os.close(parent)

    def _flush_and_link(self, descriptor: int, name: str, parent: int, durable: bool) -> None:
        if durable:
            _flush(descriptor)
        _link_nameless(descriptor, name, parent)

    def _sync_parent(self, parent: int) -> None:
        """Sync an open folder after a file got its name in it."""
        try:
            self._syncs.sync(parent)
        except OSError as error:
            raise _NamedError from error

    def _write_hidden(self, place: str, name: str, body: memoryview, create_only: bool, durable: bool) -> None:
        hidden_place, descriptor = self._open_hidden(place)
        try:
            try:
                _write_all(descriptor, body)
                if durable:
                    _flush(descriptor)
            finally:
                os.close(descriptor)
            _give_name(hidden_place, f"{place}/{name}", create_only=create_only)
        except BaseException:
            _unlink_if_there(hidden_place)
            raise
        if durable:
            _sync_folder(place, _flush_named)

    def _open_hidden(self, place: str) -> tuple[str, int]:
        if place not in self._tidied:
            self._tidied.add(place)
            _remove_abandoned(place)
        hidden_place = f"{place}/.lakebed-{self._rng.getrandbits(64):016x}.tmp"
        return hidden_place, os.open(hidden_place, _OPEN_NEW, 0o666)

    def _make_folder(self, folder: str) -> None:
        """Create a folder and those above it; `_sync_parents` makes them durable."""
        required_folder = self._required
        if self._had_root and not os.path.isdir(self._root):
            raise self._folder_moved_error("write", folder, self._root)
        if required_folder is not None and required_folder.is_gone():
            raise self._folder_moved_error("write", folder, required_folder.place)
        self._checked.clear()
        self._durable.clear()
        try:
            os.makedirs(self._place(folder), exist_ok=True)
        except OSError as error:
            raise self._translate(error, "make the folder", folder) from error
        self._had_root = True
        if required_folder is not None:
            required_folder.look()
        self._check_real(folder)

    def _sync_parents(self, folder: str) -> None:
        """Sync every folder from the root's parent down to the parent of `folder`, then remember."""
        place = self._place(folder)
        while len(place) >= len(self._root) and (parent := os.path.dirname(place)) != place:
            place = parent
            try:
                _sync_folder(place)
            except PermissionError:
                break  # not ours: it was there before us
            except OSError as error:
                raise self._translate(error, "sync the parents of", folder) from error
        _remember(self._durable, folder, self._memory_count_max)

    def sync(self, paths: Sequence[str]) -> None:
        """Sync files and their folders, many concurrently."""
        try:
            self._sync_each(paths)
        except _UnsyncedError as error:
            raise self._translate(error.reason, "sync", error.path) from error.reason

    def _sync_each(self, paths: Sequence[str]) -> None:
        """As `sync`; a failed sync is an `_UnsyncedError`."""
        folders = dict.fromkeys(path.rpartition("/")[0] for path in paths)
        names = [(path, True) for path in paths] + [(folder, False) for folder in folders]
        for start in range(0, len(names), DESCRIPTORS_MAX):
            self._sync_named(names[start : start + DESCRIPTORS_MAX])
        for folder in folders:
            self.make_parents_durable(folder)

    def _sync_named(self, names: Sequence[tuple[str, bool]]) -> None:
        """Sync the files and folders of these paths. The flag says which are files."""
        descriptors: list[int] = []
        try:
            for path, is_file in names:
                descriptors.append(self._open(path) if is_file else self._open_folder(path))
            self._flush_each(descriptors, [path for path, _ in names])
        finally:
            for descriptor in descriptors:
                os.close(descriptor)

    def _flush_each(self, descriptors: Sequence[int], paths: Sequence[str]) -> None:
        """Sync open files and folders, in one request if the system can, otherwise a few concurrently."""
        codes = sync_each(descriptors) if _F_FULLFSYNC is None else None
        if codes is None:
            codes = map_in_pool(self._runtime, _flush_code, descriptors, worker_count_max=_SYNCED_TOGETHER_MAX)
        for path, code in zip(paths, codes, strict=True):
            if code:
                raise _UnsyncedError(path, OSError(code, os.strerror(code)))

    def _open_folder(self, folder: str) -> int:
        try:
            return os.open(self._place(folder), _OPEN_FOLDER)
        except OSError as error:
            raise self._translate(error, "sync", folder) from error

    def copy(self, source: str, target: str, *, create_only: bool, durable: bool) -> None:
        """Read, then put. Not a hard link: other engines write some files in place."""
        self.put(target, memoryview(self.get(source, None)), create_only=create_only, durable=durable)

    def delete(self, paths: Sequence[str], *, durable: bool) -> None:
        """Unlink files, then sync each of their folders once, so that deletions become durable in order.

        Folders stay, because another engine may be about to write into them.
        """
        folders: dict[str, None] = {}
        for path in paths:
            self._check(path)
            self._check_required("delete", path)
            try:
                os.unlink(f"{self._root}/{path}")
            except (FileNotFoundError, NotADirectoryError, IsADirectoryError):
                continue
            except OSError as error:
                if error.errno == errno.EPERM and os.path.isdir(f"{self._root}/{path}"):
                    continue  # macOS's error for unlinking a folder
                raise self._translate(error, "delete", path) from error
            folders[path.rpartition("/")[0]] = None
        for folder in folders if durable else ():
            self._sync_place(folder)

    def _sync_place(self, folder: str) -> None:
        try:
            _sync_folder(self._place(folder))
        except OSError as error:
            raise self._translate(error, "sync", folder) from error

    def list_pages(self, prefix: str, start_after: str | None, page_count: int) -> Iterator[Sequence[ObjectMeta]]:
        """Return the pages of a lazy walk. A folder is read when the listing reaches it."""
        return _pages_of(self._metas(prefix, start_after), page_count)

    def path_pages(self, prefix: str, start_after: str | None, page_count: int) -> Iterator[Sequence[str]]:
        """As `list_pages`, without a system call for each file."""
        return _pages_of(self._walk(prefix, start_after), page_count)

    def _metas(self, prefix: str, start_after: str | None) -> Iterator[ObjectMeta]:
        for path in self._walk(prefix, start_after):
            status = _status(f"{self._root}/{path}")
            if status is not None:
                yield _meta(path, status)

    def list_level(self, prefix: str) -> Listing:
        """List one level. A folder is listed only if an object is below it."""
        objects: list[ObjectMeta] = []
        folders: list[str] = []
        for name in self._names(prefix):
            path = join_path(prefix, name.removesuffix("/"))
            if not name.endswith("/"):
                status = _status(f"{self._root}/{path}")
                if status is not None:
                    objects.append(_meta(path, status))
            elif next(self._walk(path, None), None) is not None:
                folders.append(path)
        return Listing(tuple(objects), tuple(folders))

    def _walk(self, prefix: str, start_after: str | None) -> Iterator[str]:
        lead = join_path(prefix, "x")[:-1]
        for name in self._names(prefix):
            path = lead + name
            if start_after is not None and path <= start_after and not start_after.startswith(path):
                continue
            if name.endswith("/"):
                yield from self._walk(path[:-1], start_after)
            elif start_after is None or path > start_after:
                yield path

    def _names(self, folder: str) -> list[str]:
        """Return the names of files, and of folders with a slash, in order; empty for a missing folder.

        Only names are kept in memory: a folder may have a million files, and a directory entry takes four times as much
        memory as its name.
        """
        if folder:
            self._check(folder + "/x")
        names: list[str] = []
        try:
            with os.scandir(self._place(folder)) as scan:
                for entry in scan:
                    name = entry.name
                    if entry.is_file(follow_symlinks=False):
                        if name[0] != "." or _TEMPORARY.fullmatch(name) is None:
                            names.append(name)
                    elif entry.is_dir(follow_symlinks=False):
                        names.append(name + "/")
        except (FileNotFoundError, NotADirectoryError):
            return []
        except OSError as error:
            raise self._translate(error, "list", folder) from error
        names.sort()
        return names

    def url(self, path: str) -> str:
        """``file:///absolute/path``, taken literally: nothing in it is percent-encoded."""
        return f"file://{self._shown_root.rstrip('/')}/{path}"

    def signed_url(self, path: str, *, expires_in_s: int, method: str) -> str:
        raise InvalidRequest(f"{self.root_url} is a local folder: it has no signed URLs", kind="unsupported", path=path)

    def _place(self, folder: str) -> str:
        return f"{self._root}/{folder}" if folder else self._root

    def _check(self, path: str) -> None:
        """Refuse names of unfinished files, and folders that are reached through a link. Remember checked folders."""
        folder, _, name = path.rpartition("/")
        if name.startswith(".lakebed-") and _TEMPORARY.fullmatch(name):
            raise InvalidRequest(f"{path} is a name of lakebed's unfinished files: choose another", kind="invalid_path")
        if folder and folder not in self._checked:
            self._check_real(folder)

    def _check_real(self, folder: str) -> None:
        """Refuse a folder that is reached through a link. A missing folder is accepted.

        Cost: 1 system call for each folder above it, up to the root.
        """
        place = ""
        for name in folder.split("/"):
            place = f"{place}/{name}" if place else name
            try:
                mode = os.lstat(self._place(place)).st_mode
            except (FileNotFoundError, NotADirectoryError):
                return
            except OSError as error:
                raise self._translate(error, "look for", place) from error
            if stat.S_ISLNK(mode):
                raise InvalidRequest(
                    f"{folder} in {self.root_url} is reached through a symbolic link: a store does not leave its "
                    "folder",
                    kind="path_escape",
                    path=folder,
                )
        if stat.S_ISDIR(mode):
            self._had_root = True
            _remember(self._checked, folder, self._memory_count_max)

    def _check_required(self, verb: str, path: str) -> None:
        """Refuse a change in a view whose folder was renamed, removed or replaced."""
        if self._required is not None and self._required.is_other():
            raise self._folder_moved_error(verb, path, self._required.place)

    def _folder_moved_error(self, verb: str, path: str, place: str) -> Unavailable:
        state = "is another folder than the one that was opened" if os.path.isdir(place) else "is not there any more"
        return Unavailable(
            f"lakebed does not {verb} {self.root_url}/{path}: {place} {state}. It was renamed or removed while it was "
            "in use: move it back, or close what is open there and open the folder by its new name.",
            kind="folder_moved",
            path=path,
        )

    def _vanishing(self, path: str) -> Unavailable:
        return Unavailable(
            f"the folder of {self.root_url}/{path} disappears when it is created: stop the program that removes it",
            path=path,
        )

    def _sync_error(self, named: _NamedError, path: str) -> OutcomeUnknown:
        return OutcomeUnknown(
            f"{self.root_url}/{path} was written, but its folder could not be synced ({named.__cause__}): it is there "
            "now, and may be gone after a power loss",
            kind="unsynced",
            path=path,
        )

    def _translate(self, error: OSError, verb: str, path: str) -> LakebedError:
        """Translate a failed system call to an error."""
        url = f"{self.root_url}/{path}" if path else self.root_url
        code, reason = error.errno, os.strerror(error.errno or 0)
        if code == errno.ELOOP:
            return InvalidRequest(
                f"{path} in {self.root_url} is a symbolic link: a store does not leave its folder",
                kind="path_escape",
                path=path,
            )
        if verb in _READING and code in _ABSENT:
            # Not of a look, which may be after what was deleted with its folder.
            if verb == "read" and self._required is not None and self._required.is_gone():
                return self._folder_moved_error(verb, path, self._required.place)
            return absent(path, self.root_url)
        if code in _NOT_A_FOLDER:
            return InvalidRequest(
                f"lakebed cannot {verb} {url}: on a local folder a name is either a file or a folder, and a part of "
                "this path is the other",
                kind="not_a_folder",
                path=path,
            )
        if code in _DENIED:
            return InvalidRequest(
                f"lakebed may not {verb} {url} ({reason}): check the folder's owner, mode and mount",
                kind="permission_denied",
                path=path,
            )
        if code == errno.ENAMETOOLONG:
            return InvalidRequest(f"the name of {url} is too long for its file system", kind="invalid_path", path=path)
        if code in _FULL:
            return Unavailable(f"the disk is full: lakebed could not {verb} {url}", kind="disk_full", path=path)
        return Unavailable(f"lakebed could not {verb} {url}: {reason}", kind="io_error", path=path)


class _RequiredFolder:
    """The folder of a view. Checks whether it still exists and is the same. One that never existed may be created."""

    def __init__(self, place: str, *, with_descriptor: bool) -> None:
        self.place = place
        self._with_descriptor = with_descriptor
        self._was_there = False
        self._identity: tuple[int, int] | None = None
        self._close: Callable[[], object] | None = None
        self.look()

    def look(self) -> None:
        """Record that the folder exists. With a descriptor: open it, so that no other folder gets its inode number."""
        self._was_there = self._was_there or os.path.isdir(self.place)
        if self._with_descriptor and self._identity is None and self._was_there:
            with suppress(OSError):
                descriptor = os.open(self.place, _OPEN_PLACE)
                self._close = weakref.finalize(self, os.close, descriptor)
                self._identity = _identity(os.fstat(descriptor))

    def release(self) -> None:
        """Close the folder. A second call is a no-op."""
        self._with_descriptor = False
        if self._close is not None:
            self._close()

    def is_gone(self) -> bool:
        """Whether a folder that existed is missing now. Cost: 1 system call."""
        return self._was_there and not os.path.isdir(self.place)

    def is_other(self) -> bool:
        """Whether an open folder has lost its name. Cost: 1 system call; none without a descriptor."""
        if not self._with_descriptor:
            return False
        if self._identity is None:
            self.look()
            return False
        try:
            return _identity(os.stat(self.place)) != self._identity
        except OSError:
            return True


def _identity(status: os.stat_result) -> tuple[int, int]:
    return status.st_dev, status.st_ino


def _pages_of(names: Iterator[R], page_count: int) -> Iterator[Sequence[R]]:
    """Yield pages of `page_count` items, and at the end one with fewer or none."""
    page: list[R] = []
    for name in names:
        if len(page) == page_count:
            yield page
            page = []
        page.append(name)
    yield page


def _remember(folders: dict[str, None], folder: str, count_max: int) -> None:
    if len(folders) >= count_max:
        folders.clear()
    folders[folder] = None


def _meta(path: str, status: os.stat_result) -> ObjectMeta:
    etag = f"{status.st_ino:x}-{status.st_mtime_ns:x}-{status.st_size:x}"
    return ObjectMeta(path, status.st_size, status.st_mtime_ns // 1_000_000, etag)


def _status(place: str) -> os.stat_result | None:
    """Return the status of a file; None if it was removed since its folder was read."""
    try:
        return os.lstat(place)
    except FileNotFoundError:
        return None


def _give_name(hidden: str, target: str, *, create_only: bool) -> None:
    if create_only:
        try:
            os.link(hidden, target)
        except FileExistsError:
            # A network file system repeats a request after a lost reply, and then finds the name that it just gave.
            if not os.path.samefile(hidden, target):
                raise
        os.unlink(hidden)
    else:
        os.rename(hidden, target)


def _open_nameless(place: str) -> int:
    return os.open(place, _O_TMPFILE | os.O_WRONLY | os.O_CLOEXEC, 0o666)


def _link_nameless(descriptor: int, name: str, parent: int) -> None:
    """Give a file without a name a name in an open folder. Fails if the name is taken."""
    # Naming a folder's descriptor makes Python call linkat, which can follow the link in /proc.
    os.link(f"{_PROC}/{descriptor}", name, dst_dir_fd=parent, follow_symlinks=True)


def _write_all(descriptor: int, body: memoryview) -> None:
    byte_count = os.write(descriptor, body[:_IO_BYTES_MAX]) if len(body) else 0
    while byte_count < len(body):
        byte_count += os.write(descriptor, body[byte_count : byte_count + _IO_BYTES_MAX])


def _read_once(descriptor: int, start: int, size_bytes: int) -> bytes | memoryview:
    """Read at most `size_bytes` by one call. A large piece is read into memory of Arrow's, which is reused."""
    allocate = None if size_bytes < _LARGE_BYTES else getattr(sys.modules.get("pyarrow"), "allocate_buffer", None)
    if allocate is None:  # programs that only list and copy objects need no Arrow
        return os.pread(descriptor, size_bytes, start)
    body = memoryview(allocate(size_bytes)).cast("B")
    return body[: os.preadv(descriptor, [body], start)].toreadonly()


def _read_exactly(descriptor: int, start: int, size_bytes: int, path: str) -> Buffer:
    body = _read_once(descriptor, start, min(size_bytes, _IO_BYTES_MAX))
    if len(body) == size_bytes:
        return body
    content = bytearray(size_bytes)
    content[: len(body)] = body
    filled, view = len(body), memoryview(content)
    while filled < size_bytes:
        count = os.preadv(descriptor, [view[filled : filled + _IO_BYTES_MAX]], start + filled)
        if count == 0:
            raise NotFound(f"{path} was cut short while it was read", kind="object_changed", path=path)
        filled += count
    return view.toreadonly()


def _flush(descriptor: int) -> None:
    if _F_FULLFSYNC is None:
        os.fsync(descriptor)
    else:
        fcntl.fcntl(descriptor, _F_FULLFSYNC)


def _flush_code(descriptor: int) -> int:
    """Sync a file. Return 0, or the number of the error."""
    try:
        _flush(descriptor)
    except OSError as error:
        return error.errno or errno.EIO
    return 0


class _UnsyncedError(Exception):
    """One of several files, or their folder, could not be synced."""

    def __init__(self, path: str, reason: OSError) -> None:
        super().__init__(path)
        self.path = path
        self.reason = reason


class _NamedError(Exception):
    """The folder could not be synced after the file got its name: the outcome is unknown."""


def _flush_named(descriptor: int) -> None:
    """Sync a folder after a file got its name in it."""
    try:
        _flush(descriptor)
    except OSError as error:
        raise _NamedError from error


def _sync_folder(place: str, flush: Callable[[int], None] = _flush) -> None:
    descriptor = os.open(place, _OPEN_FOLDER)
    try:
        flush(descriptor)
    finally:
        os.close(descriptor)


def _remove_abandoned(place: str) -> None:
    """Remove unfinished files that were unchanged for a day, by the clock of the folder's file system."""
    with os.scandir(place) as scan:
        hidden_entries = [
            entry for entry in scan if entry.name.startswith(".lakebed-") and _TEMPORARY.fullmatch(entry.name)
        ]
    if not hidden_entries:
        return
    times = {entry.path: status.st_mtime for entry in hidden_entries if (status := _status(entry.path)) is not None}
    newest = max([*times.values(), os.stat(place).st_mtime])
    for path, modified in times.items():
        if modified < newest - _ABANDONED_S:
            _unlink_if_there(path)


def _unlink_if_there(place: str) -> None:
    try:
        os.unlink(place)
    except FileNotFoundError:
        return
