"""A branch as an object store, so that code written for object stores can keep its data in a branch.

Owns: the mapping of each operation of `ObjectStore` to a branch. Invariants:
- A put uploads first and then stages, so every listed object can be read. ``create_only`` has exactly one winner,
  because the staging area decides whose entry is visible (`lakebed.repo.heads.write.stage_if_absent`).
- Every operation sees the branch at one moment. A listing sees the moment at which it began; through a server, each
  page of a listing has its own moment.
- A delete is a tombstone. The bytes stay while a commit has them, then until a collection (`is_versioned`).
- A store over a tag, a commit or any other reference shows the commit that the reference meant when the store was
  opened, and refuses writes.
- A temporary failure is `Unavailable`, as in any store. Before that, an operation is retried for a while on a branch
  that others seal all the time.

Paths are those of the port, and must also be valid in a branch. Paths that only a branch allows (with empty segments,
or a slash at an end) are invisible. Requests are counted as those of a store: one for each operation. The repository's
own store counts the requests that they cause.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager
from functools import partial
from itertools import islice
from typing import Final, Protocol, TypeVar

from typing_extensions import Buffer

from lakebed.backoff import Backoff, Pauses
from lakebed.errors import AlreadyExists, Conflict, InvalidRequest, LakebedError, NotFound, Unavailable
from lakebed.objects.accounting import coalesce
from lakebed.objects.counting import Kind, RequestCounter
from lakebed.objects.limits import StoreLimits
from lakebed.objects.memory import absent, exists_error
from lakebed.objects.path import check_folder, check_path, is_path, join_path
from lakebed.objects.port import STREAM_CHUNK_BYTES, ByteRange, Listing, ObjectMeta, ObjectStore, RequestCounts
from lakebed.objects.streaming import byte_view, check_chunks, stream_ranges
from lakebed.repo.model.model import Entry
from lakebed.repo.objects.task_store import EntryStore, ObjectBytes, TaskStore
from lakebed.repo.staging.listing import Listed
from lakebed.runtime import Environment

R = TypeVar("R")

PAGE_COUNT: Final = 1000
"""Names of a listing, or of a deletion, that count as one request."""
GAP_BYTES_MAX: Final = StoreLimits().coalesce_gap_bytes_max

_ANSWERS: Final = (NotFound, AlreadyExists)
_ATTEMPTS_MAX: Final = 8
_PAUSES: Final = Pauses(0.04, 2.56, jitter=1.0)
_TRANSIENT: Final = ("branch_moved", "upload_expired")
"""Kinds of conflicts that do not concern the object.

The branch moved at every attempt, or the upload took too long.
"""


class ReferenceObjects(Protocol):
    """The objects of one reference, for a store: in this process, or through a server.

    Paths are those of the branch. Errors are those of the facade: `NotFound` (``path_not_found``), `AlreadyExists`.
    """

    @property
    def url(self) -> str:
        """The reference's URL."""

    @property
    def environment(self) -> Environment:
        """Clock and randomness."""

    @property
    def is_streaming(self) -> bool:
        """Whether `stream` works; else objects are streamed by ranges."""

    def stat(self, path: str) -> Entry:
        """The entry of a path."""

    def entries(self, paths: Sequence[str]) -> list[Entry | None]:
        """The entries of paths, all at one moment."""

    def rows(self, prefix: str, *, after: str = "", delimiter: str = "") -> Iterator[Listed]:
        """Objects and common prefixes, in the order of paths, lazily."""

    def read(self, path: str, *, byte_range: ByteRange | None) -> Buffer:
        """An object's bytes."""

    def read_ranges(self, path: str, ranges: Sequence[ByteRange]) -> list[Buffer]:
        """Several ranges of an object, all at one moment; at least one range."""

    def stream(self, path: str, *, byte_range: ByteRange | None, chunk_bytes: int) -> Iterator[Buffer]:
        """An object's bytes in chunks, all at one moment."""

    def check_writable(self, path: str | None = None) -> None:
        """Raise the errors that a write raises before bytes are uploaded.

        Raises `InvalidRequest`: ``read_only``, ``protected_branch``, ``reserved_path``, ...
        """

    def put(self, path: str, body: Buffer, *, only_if_absent: bool, requires: Sequence[str] = ()) -> None:
        """Upload and stage an object.

        Args:
            requires: with `only_if_absent`, other paths that must have objects then.

        Raises `Conflict` (``path_gone``): one of `requires` has none; nothing was staged.
        """

    def put_stream(self, path: str, chunks: Iterable[Buffer], *, only_if_absent: bool) -> int:
        """As `put`, for chunks. Returns the size in bytes."""

    def stage_many(self, entries: Sequence[tuple[str, Entry]]) -> None:
        """Stage objects whose bytes are stored, in one atomic change."""

    def delete_many(self, paths: Sequence[str]) -> None:
        """Stage tombstones."""

    def copy(self, source: str, path: str, *, only_if_absent: bool) -> None:
        """Copy an object, its bytes included."""

    def object_url(self, entry: Entry) -> str:
        """The URL of an entry's bytes."""

    def signed_url(self, path: str, *, expires_in_s: int) -> str:
        """A URL with which anyone can read the object for a limited time."""

    def storage_ms(self) -> int:
        """The time of the repository's storage, or through a server the server's time, in Unix milliseconds."""

    def task_bytes(self, folder: str, *, writes: bool) -> ObjectBytes:
        """The access with which the tasks of a job read and upload bytes."""

    @property
    def inside_url(self) -> str | None:
        """See `EntryStore.inside_url`."""


class BranchStore(ObjectStore, EntryStore):
    """`ObjectStore` over a branch, or over the commit of any other reference; made by `Transport.store`. Thread-safe.

    Args:
        folder: in the branch; paths outside it are invisible.
        counter: shared with the stores of other folders; None: a new one.

    Raises:
        InvalidRequest: the folder is invalid.
    """

    _required: tuple[str, ...] = ()
    """Paths of the branch that must have objects when an object is created; see `requiring`."""

    def __init__(self, objects: ReferenceObjects, folder: str = "", *, counter: RequestCounter | None = None) -> None:
        self._objects = objects
        self._folder = check_folder(folder)
        self._counter = counter or RequestCounter("branch")

    def __repr__(self) -> str:
        return f"BranchStore({self.root_url!r})"

    def __reduce__(self) -> tuple[object, ...]:
        return BranchStore, (self._objects, self._folder)

    @property
    def root_url(self) -> str:
        """The reference's URL and the folder."""
        return f"{self._objects.url}/{self._folder}" if self._folder else self._objects.url

    @property
    def is_versioned(self) -> bool:
        return True

    def storage_ms(self) -> int:
        """See `StorageClock`. A file has the time of the process that wrote it. Cost: at most 2 requests."""
        return self._objects.storage_ms()

    def get(self, path: str, *, byte_range: ByteRange | None = None) -> Buffer:
        full_path = self._full(path)
        return self._count_request(
            "get",
            lambda: self._run_request(path, lambda: self._objects.read(full_path, byte_range=byte_range)),
            read_bytes=_size_of,
        )

    def get_ranges(self, path: str, ranges: Sequence[ByteRange]) -> list[Buffer]:
        full_path = self._full(path)
        if not ranges:
            return []
        return self._count_request(
            "get",
            lambda: self._run_request(path, lambda: self._objects.read_ranges(full_path, ranges)),
            requests=len(coalesce(ranges, gap_bytes_max=GAP_BYTES_MAX)),
            read_bytes=lambda bodies: sum(map(_size_of, bodies)),
        )

    def get_stream(
        self, path: str, *, byte_range: ByteRange | None = None, chunk_bytes: int = STREAM_CHUNK_BYTES
    ) -> Iterator[Buffer]:
        full_path = self._full(path)
        if not self._objects.is_streaming:
            return stream_ranges(self, path, byte_range=byte_range, chunk_bytes=chunk_bytes)
        begin = partial(self._objects.stream, full_path, byte_range=byte_range, chunk_bytes=chunk_bytes)
        chunks = self._count_request("get", lambda: self._run_request(path, begin))
        if byte_range is None:
            self._counter.add("head", self._folder, seconds=0.0)
        return self._rest_of_stream(chunks)

    def _rest_of_stream(self, chunks: Iterator[Buffer]) -> Iterator[Buffer]:
        requests = 0  # the first chunk came with the call
        for chunk in chunks:
            self._counter.add("get", self._folder, seconds=0.0, requests=requests, moved=(_size_of(chunk), 0))
            requests = 1
            yield chunk

    def head(self, path: str) -> ObjectMeta:
        """See `ObjectStore.head`. The etag is the checksum of the bytes."""
        return self._count_request("head", lambda: _meta(path, self._entry(path)))

    def list(self, prefix: str = "", *, start_after: str | None = None) -> Iterator[ObjectMeta]:
        """See `ObjectStore.list`. It shows the moment at which its first name is read."""
        folder = join_path(self._folder, check_folder(prefix))
        after = "" if start_after is None else self._full(start_after)
        return self._list_metas(folder, after)

    def _list_metas(self, folder: str, after: str) -> Iterator[ObjectMeta]:
        lines = self._objects.rows(_below(folder), after=after)
        while True:
            page = self._count_request("list", lambda: list(islice(lines, PAGE_COUNT)))
            for line in page:
                if line.entry is not None and is_path(line.path):
                    yield _meta(self._relative_path(line.path), line.entry)
            if len(page) < PAGE_COUNT:
                return

    def list_with_delimiter(self, prefix: str = "") -> Listing:
        folder = join_path(self._folder, check_folder(prefix))
        lines = self._count_request("list", lambda: list(self._objects.rows(_below(folder), delimiter="/")))
        if len(lines) > PAGE_COUNT:
            self._counter.add("list", self._folder, seconds=0.0, requests=(len(lines) - 1) // PAGE_COUNT)
        objects = [
            _meta(self._relative_path(line.path), line.entry)
            for line in lines
            if line.entry is not None and is_path(line.path)
        ]
        folders = [line.path.removesuffix("/") for line in lines if line.entry is None]
        return Listing(tuple(objects), tuple(self._relative_path(path) for path in folders if is_path(path)))

    def put(self, path: str, body: Buffer, *, create_only: bool = False, durable: bool = True) -> None:
        """See `ObjectStore.put`. Always durable. A create-only put uploads nothing if it is known to lose."""
        full_path, view = self._full(path), byte_view(body)
        self._objects.check_writable(full_path)
        put = partial(self._objects.put, full_path, view, only_if_absent=create_only, requires=self._required)
        self._count_request("put", lambda: self._free(path, put), written_bytes=lambda _: len(view))

    def requiring(self, paths: Iterable[str]) -> BranchStore:
        """The same store, whose create-only `put` also expects that some other paths have objects in that moment.

        Else it raises `Conflict` (``path_gone``), and nothing is written. So an object that names others is never on
        the branch without them. A server of an older version does not look.
        """
        store = BranchStore(self._objects, self._folder, counter=self._counter)
        store._required = tuple(map(self._full, paths))
        return store

    def put_stream(
        self, path: str, chunks: Iterable[Buffer], *, create_only: bool = False, durable: bool = True
    ) -> int:
        """See `ObjectStore.put_stream`. Always durable."""
        full_path = self._full(path)
        self._objects.check_writable(full_path)
        check_chunks(chunks)
        put = partial(self._objects.put_stream, full_path, chunks, only_if_absent=create_only)
        return self._count_request("put", lambda: self._free(path, put), written_bytes=lambda size_bytes: size_bytes)

    def delete(self, paths: Iterable[str]) -> None:
        """See `ObjectStore.delete`. Nothing is freed: see `is_versioned`."""
        self._objects.check_writable()
        remaining = iter(paths)
        while batch := [self._full(path) for path in islice(remaining, PAGE_COUNT)]:
            self._count_request("delete", partial(self._objects.delete_many, batch))

    def copy(self, source: str, target: str, *, create_only: bool = False) -> None:
        """See `ObjectStore.copy`. Content type and metadata are copied too."""
        full_source, full_target = self._full(source), self._full(target)
        self._objects.check_writable(full_target)
        copy = partial(self._objects.copy, full_source, full_target, only_if_absent=create_only)
        self._count_request("copy", lambda: self._free(target, lambda: self._run_request(source, copy)))

    def sync(self, paths: Iterable[str]) -> None:
        """See `ObjectStore.sync`. Everything here is durable, so this only checks that the paths exist."""
        path_list = list(paths)
        if not path_list:
            return
        for path, entry in zip(path_list, self._objects.entries(list(map(self._full, path_list))), strict=True):
            if entry is None:
                raise absent(path, self.root_url)

    def url(self, path: str) -> str:
        """The URL of the object's bytes, in the repository's storage. Raises `NotFound`. Cost: as `head`."""
        return self._objects.object_url(self._entry(path))

    def urls(self, paths: Sequence[str]) -> Sequence[str]:
        """`url` of many paths, all at one moment. Raises `NotFound` if a path is missing. Cost: as `entries`."""
        entries = self.entries([*dict.fromkeys(paths)])
        missing = next((path for path in paths if path not in entries), None)
        if missing is not None:
            raise absent(missing, self.root_url)
        return [self._objects.object_url(entries[path]) for path in paths]

    def signed_url(self, path: str, *, expires_in_s: int, method: str = "GET") -> str:
        """See `ObjectStore.signed_url`; for reading only. Raises `NotFound`."""
        full_path = self._full(path)
        if method != "GET":
            raise InvalidRequest(
                f"A signed URL to {method} {path} would bypass {self.root_url}: put the object through the store, or "
                "upload it to an address of the repository, and link it.",
                kind="unsupported",
                path=path,
            )
        if expires_in_s < 1:
            raise InvalidRequest(f"expires_in_s is {expires_in_s}: a signed URL must live for at least a second")
        return self._run_request(path, lambda: self._objects.signed_url(full_path, expires_in_s=expires_in_s))

    def entries(self, paths: Sequence[str]) -> dict[str, Entry]:
        full_paths = [self._full(path) for path in paths]
        if not full_paths:
            return {}
        requests = -(-len(full_paths) // PAGE_COUNT)
        entries = self._count_request("head", lambda: self._objects.entries(full_paths), requests=requests)
        return {path: entry for path, entry in zip(paths, entries, strict=True) if entry is not None}

    def stage_entries(self, entries: Sequence[tuple[str, Entry]]) -> None:
        self._objects.check_writable()
        pairs = [(self._full(path), entry) for path, entry in entries]
        if pairs:
            self._count_request("put", lambda: self._objects.stage_many(pairs))

    def for_tasks(self, *, writes: bool = False) -> TaskStore:
        if writes:
            self._objects.check_writable()
        return TaskStore(self._objects.task_bytes(self._folder, writes=writes), root_url=self.root_url)

    def inside_url(self) -> str | None:
        return self._objects.inside_url

    def sub(self, prefix: str) -> BranchStore:
        return BranchStore(self._objects, join_path(self._folder, check_folder(prefix)), counter=self._counter)

    def count(self) -> AbstractContextManager[RequestCounts]:
        return self._counter.count(self._folder)

    def _full(self, path: str) -> str:
        check_path(path)
        return f"{self._folder}/{path}" if self._folder else path

    def _relative_path(self, path: str) -> str:
        return path[len(self._folder) + 1 :] if self._folder else path

    def _entry(self, path: str) -> Entry:
        full_path = self._full(path)
        return self._run_request(path, lambda: self._objects.stat(full_path))

    def _run_request(self, path: str, request: Callable[[], R]) -> R:
        """Run a request. Translate the error of a missing path to that of a missing object."""
        try:
            return request()
        except NotFound as error:
            if error.kind != "path_not_found":
                raise
            raise absent(path, self.root_url) from error

    def _free(self, path: str, request: Callable[[], R]) -> R:
        """Run a request. Translate the error of an existing path to that of an existing object."""
        try:
            return request()
        except AlreadyExists as error:
            raise exists_error(path, self.root_url) from error

    def _count_request(
        self,
        kind: Kind,
        request: Callable[[], R],
        *,
        requests: int = 1,
        read_bytes: Callable[[R], int] | None = None,
        written_bytes: Callable[[R], int] | None = None,
    ) -> R:
        clock, counter = self._objects.environment.clock, self._counter
        started_s = clock.monotonic_s()
        try:
            result = request()
        except LakebedError as error:
            seconds = clock.monotonic_s() - started_s
            has_failed = not isinstance(error, _ANSWERS)
            counter.add(kind, self._folder, seconds=seconds, requests=requests, failed=has_failed)
            raise
        counter.add(
            kind,
            self._folder,
            seconds=clock.monotonic_s() - started_s,
            requests=requests,
            moved=(
                read_bytes(result) if read_bytes is not None else 0,
                written_bytes(result) if written_bytes is not None else 0,
            ),
        )
        return result


def with_retries(request: Callable[[], R], *, url: str, environment: Environment) -> R:
    """Change a branch. Retry while a conflict that does not concern the object prevents the change.

    Raises `Unavailable` after too many conflicts.
    """
    backoff = Backoff(environment, _PAUSES, attempts_max=_ATTEMPTS_MAX)
    for _ in backoff:
        try:
            return request()
        except Conflict as error:
            if error.kind not in _TRANSIENT:
                raise
            backoff.note(error)
            if error.kind == "upload_expired":
                break
    conflict = backoff.reason
    raise Unavailable(f"{url} could not be written: {conflict}", kind=conflict.kind) from conflict


def _below(folder: str) -> str:
    return f"{folder}/" if folder else ""


def _meta(path: str, entry: Entry) -> ObjectMeta:
    return ObjectMeta(path, entry.size_bytes, entry.modified_ms, entry.checksum or None)


def _size_of(body: Buffer) -> int:
    return memoryview(body).nbytes
