"""Objects in this process's memory: `memory://name`, for tests, simulations and scratch work.

Owns: the dictionary of each name. Invariants: in one process, the same name denotes the same objects. A body is copied
when it is put, so a caller may reuse its buffer. Nothing survives the process. Times come from the injected clock, so
that a simulation is reproducible. Every operation is one or two atomic dictionary operations and needs no lock.
"""

from __future__ import annotations

import zlib
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterator, Sequence
from typing import Final

from typing_extensions import Buffer

from lakebed.clock import Clock
from lakebed.errors import AlreadyExists, InvalidRequest, NotFound
from lakebed.objects.driver import Driver
from lakebed.objects.port import ByteRange, Listing, ObjectMeta

_Entry = tuple[bytes, int, str]
"""Body, time in Unix ms, and an etag of the content, as in the large stores."""

_FOLDERS: Final[dict[str, dict[str, _Entry]]] = {}


def absent(path: str, root_url: str) -> NotFound:
    """Return the error for a missing object."""
    return NotFound(f"There is no object {path} in {root_url}.", kind="object_not_found", path=path)


def exists_error(path: str, root_url: str) -> AlreadyExists:
    """Return the error for a create-only put of an existing object."""
    return AlreadyExists(f"{path} already exists in {root_url}", kind="object_exists", path=path)


def check_range(byte_range: ByteRange, *, size_bytes: int, path: str) -> tuple[int, int]:
    """Clip a range to the object.

    Raises:
        InvalidRequest: the range starts at or past the end.
    """
    start, end = byte_range
    if start >= size_bytes:
        raise InvalidRequest(
            f"bytes {start} to {end} of {path} were requested, but it has {size_bytes} bytes",
            kind="invalid_range",
            path=path,
            size_bytes=size_bytes,
        )
    return start, min(end, size_bytes)


def level_of(metas: Sequence[ObjectMeta], prefix: str) -> Listing:
    """Return objects and folders directly below a folder, from all objects below it."""
    skip = len(prefix) + 1 if prefix else 0
    objects: list[ObjectMeta] = []
    folders: dict[str, None] = {}
    for meta in metas:
        name, slash, _ = meta.path[skip:].partition("/")
        if slash:
            folders[meta.path[:skip] + name] = None
        else:
            objects.append(meta)
    return Listing(tuple(objects), tuple(folders))


class _MemoryUpload:
    """An upload that collects its parts."""

    request_count = 1

    def __init__(self, store: Callable[[bytes], None]) -> None:
        self._store = store
        self._parts: list[bytes] = []

    def write(self, part: memoryview) -> None:
        self._parts.append(bytes(part))

    def finish(self) -> None:
        self._store(b"".join(self._parts))

    def abandon(self) -> None:
        self._parts.clear()


class MemoryDriver(Driver):
    """`Driver` of one memory name."""

    is_remote = False
    range_gap_bytes_max = 1 << 30
    delete_batch_count_max = 1000

    def __init__(self, name: str, *, prefix: str, clock: Clock) -> None:
        self._name = name
        self._prefix = prefix + "/" if prefix else ""
        self._objects = _FOLDERS.setdefault(name, {})
        self._clock = clock

    @property
    def root_url(self) -> str:
        """``memory://name/prefix``."""
        return f"memory://{self._name}/{self._prefix}".rstrip("/")

    @property
    def metrics_label(self) -> str:
        return "memory"

    def _entry(self, path: str) -> _Entry:
        entry = self._objects.get(self._prefix + path)
        if entry is None:
            raise absent(path, self.root_url)
        return entry

    def get(self, path: str, byte_range: ByteRange | None) -> Buffer:
        """Return the stored bytes, or a view of a part of them, without a copy."""
        body = self._entry(path)[0]
        if byte_range is None:
            return body
        start, end = check_range(byte_range, size_bytes=len(body), path=path)
        return memoryview(body)[start:end]

    def get_ranges(self, path: str, ranges: Sequence[ByteRange]) -> list[Buffer]:
        return [self.get(path, byte_range) for byte_range in ranges]

    def head(self, path: str) -> ObjectMeta:
        body, modified_ms, etag = self._entry(path)
        return ObjectMeta(path, len(body), modified_ms, etag)

    def put(self, path: str, body: memoryview, *, create_only: bool, durable: bool) -> None:
        self._set(path, bytes(body), f"{zlib.crc32(body):08x}", create_only=create_only)

    def _set(self, path: str, body: bytes, etag: str, *, create_only: bool) -> None:
        entry = (body, self._clock.now_ms(), etag)
        if not create_only:
            self._objects[self._prefix + path] = entry
        elif self._objects.setdefault(self._prefix + path, entry) is not entry:
            raise exists_error(path, self.root_url)

    def open_upload(self, path: str, *, create_only: bool, durable: bool) -> _MemoryUpload:
        """Collect the parts; memory is where the object will be anyway."""
        return _MemoryUpload(lambda body: self.put(path, memoryview(body), create_only=create_only, durable=durable))

    def _metas(self, prefix: str, start_after: str | None) -> Iterator[ObjectMeta]:
        keys = sorted(self._objects.copy())
        folder = self._prefix + (prefix + "/" if prefix else "")
        first = bisect_left(keys, folder)
        if start_after is not None:
            first = max(first, bisect_right(keys, self._prefix + start_after))
        skip = len(self._prefix)
        for index in range(first, len(keys)):
            if not keys[index].startswith(folder):
                return
            entry = self._objects.get(keys[index])
            if entry is not None:
                yield ObjectMeta(keys[index][skip:], len(entry[0]), *entry[1:])

    def list_pages(self, prefix: str, start_after: str | None, page_count: int) -> Iterator[Sequence[ObjectMeta]]:
        """Yield pages, each of the objects at that moment."""
        while True:
            page: list[ObjectMeta] = []
            for meta in self._metas(prefix, start_after):
                if len(page) == page_count:
                    break
                page.append(meta)
            else:
                yield page
                return
            yield page
            start_after = page[-1].path

    def list_level(self, prefix: str) -> Listing:
        return level_of(list(self._metas(prefix, None)), prefix)

    def delete(self, paths: Sequence[str], *, durable: bool) -> None:
        for path in paths:
            self._objects.pop(self._prefix + path, None)

    def copy(self, source: str, target: str, *, create_only: bool, durable: bool) -> None:
        """Let two paths share one body."""
        body, _, etag = self._entry(source)
        self._set(target, body, etag, create_only=create_only)

    def sync(self, paths: Sequence[str]) -> None:
        for path in paths:
            self._entry(path)

    def url(self, path: str) -> str:
        return f"{self.root_url}/{path}"

    def signed_url(self, path: str, *, expires_in_s: int, method: str) -> str:
        raise InvalidRequest("memory:// has no signed URLs: other processes cannot reach it", kind="unsupported")
