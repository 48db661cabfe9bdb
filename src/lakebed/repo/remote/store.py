"""A branch behind a server as an object-storage port: the same port as `lakebed.repo.branch_store`, over HTTP.

Owns: what each operation of `ObjectStore` is in verbs of the server. Invariants: those of `BranchStore`, but for a
listing of more than a page, each page of which shows its own moment. A create-only put is one request that the server
decides; when its answer is lost the outcome is unknown, as with any store. A store can be pickled, with the access key
of whoever opened it, for the tasks of a job; tasks get `for_tasks`, and read and upload through the server.

Requests are counted one an operation. Does not know: how a request travels.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import partial
from itertools import islice
from typing import Final, TypeVar

from typing_extensions import Buffer

from lakebed.errors import AlreadyExists, Conflict, InvalidRequest, LakebedError, NotFound, OutcomeUnknown, Unavailable
from lakebed.objects.accounting import coalesce
from lakebed.objects.counting import Kind, RequestCounter
from lakebed.objects.limits import StoreLimits
from lakebed.objects.memory import absent, occupied
from lakebed.objects.path import check_folder, check_path, is_path, join_path
from lakebed.objects.port import STREAM_CHUNK_BYTES, ByteRange, Listing, ObjectMeta, RequestCounts
from lakebed.objects.streaming import byte_view, stream_ranges
from lakebed.repo.data import CONTENT_TYPE, whole_body
from lakebed.repo.entry import address_ulid
from lakebed.repo.model import Entry
from lakebed.repo.staging.listing import Listed
from lakebed.repo.task_store import TaskStore
from lakebed.repo.transport import Transport
from lakebed.repo.verbs.message import PATHS_MAX
from lakebed.repo.verbs.reading import ListObjects, SignedUrl, Stat, StatMany
from lakebed.repo.verbs.writing import Copy, DeleteMany, Link
from lakebed.runtime import Environment

__all__ = ["RemoteStore", "ServerBytes"]

R = TypeVar("R")

PAGE_COUNT: Final = 1000
"""Names of a listing, or of a deletion, that count as one request."""

_ANSWERS: Final = (NotFound, AlreadyExists)
_TRIES_MAX: Final = 8
_UPLOAD_TRIES_MAX: Final = 3
_WAIT_FIRST_MS: Final = 20
_GAP_BYTES_MAX: Final = StoreLimits().coalesce_gap_bytes_max


@dataclass(frozen=True, slots=True)
class ServerBytes:
    """The bytes of a branch, for tasks that read and upload through the server: `lakebed.repo.task_store.ObjectBytes`.

    Attributes:
        transport: to the repository, with its credentials.
        ref: the branch or commit.
        folder: that the paths of tasks are below.
    """

    transport: Transport
    ref: str
    folder: str

    @property
    def url(self) -> str:
        """See `ObjectBytes.url`."""
        return self.transport.url

    def read(self, path: str, entry: Entry, *, byte_range: ByteRange | None = None) -> Buffer:
        """See `ObjectBytes.read`. Cost: 1 request."""
        return self.transport.read_entry(self.ref, join_path(self.folder, path), entry, byte_range=byte_range)

    def read_ranges(self, path: str, entry: Entry, *, ranges: Sequence[ByteRange]) -> list[Buffer]:
        """See `ObjectBytes.read_ranges`. Cost: 1 request a joined range."""
        return _in_ranges(ranges, lambda one: self.read(path, entry, byte_range=one))

    def upload(self, body: Buffer | Iterable[Buffer]) -> Entry:
        """See `ObjectBytes.upload`. A whole body is sent again when the answer is lost: each has its own address."""
        if isinstance(body, Iterator):
            return self._upload(body)
        for tries_left in reversed(range(_UPLOAD_TRIES_MAX)):
            try:
                return self._upload(body)
            except OutcomeUnknown:
                if tries_left == 0:
                    raise
        raise AssertionError("the last try returns or raises")

    def _upload(self, body: Buffer | Iterable[Buffer]) -> Entry:
        return self.transport.upload(self.ref, body, content_type=CONTENT_TYPE, metadata=None)


@dataclass(frozen=True, slots=True)
class _Shared:
    """What a store and all views of its folders have in common."""

    transport: Transport
    ref: str
    writes: bool
    counter: RequestCounter
    environment: Environment


class RemoteStore:
    """`ObjectStore` over a branch behind a server, or over a commit. Thread-safe. Cost of making one: no request.

    Args:
        transport: to the repository.
        ref: a branch, or any other reference.
        prefix: a folder: what is outside is not seen.
        writes: `ref` is a branch, and may be written to.

    Raises:
        InvalidRequest: the folder cannot be.
    """

    def __init__(self, transport: Transport, ref: str, prefix: str = "", *, writes: bool = False) -> None:
        self._shared = _Shared(transport, ref, writes, RequestCounter("branch"), Environment())
        self._folder = check_folder(prefix)

    def __repr__(self) -> str:
        return f"RemoteStore({self.root_url!r})"

    def __reduce__(self) -> tuple[object, ...]:
        return _reopened, (self._shared.transport, self._shared.ref, self._folder, self._shared.writes)

    @property
    def root_url(self) -> str:
        """``http://host:port/repository/reference/folder``."""
        root = f"{self._shared.transport.url}/{self._shared.ref}"
        return f"{root}/{self._folder}" if self._folder else root

    @property
    def is_versioned(self) -> bool:
        """True: see `ObjectStore.is_versioned`."""
        return True

    # ---- reading

    def get(self, path: str, *, byte_range: ByteRange | None = None) -> Buffer:
        """See `ObjectStore.get`."""
        full, shared = self._full(path), self._shared
        return self._counted(
            "get",
            lambda: self._found(path, lambda: shared.transport.get(shared.ref, full, byte_range=byte_range)),
            read_bytes=len,
        )

    def get_ranges(self, path: str, ranges: Sequence[ByteRange]) -> list[Buffer]:
        """See `ObjectStore.get_ranges`. Cost: 1 GET; of ranges far from each other 1 HEAD and 1 GET a joined range."""
        full, shared = self._full(path), self._shared
        joined = coalesce(ranges, gap_bytes_max=_GAP_BYTES_MAX)
        if not joined:
            return []
        if len(joined) == 1:
            return _in_ranges(ranges, lambda one: self.get(path, byte_range=one))
        entry = self._stat(path)

        def read(one: ByteRange) -> Buffer:
            return self._counted(
                "get",
                lambda: shared.transport.read_entry(shared.ref, full, entry, byte_range=one),
                read_bytes=len,
            )

        return _in_ranges(ranges, read)

    def get_stream(
        self, path: str, *, byte_range: ByteRange | None = None, chunk_bytes: int = STREAM_CHUNK_BYTES
    ) -> Iterator[Buffer]:
        """See `ObjectStore.get_stream`."""
        return stream_ranges(self, path, byte_range=byte_range, chunk_bytes=chunk_bytes)

    def head(self, path: str) -> ObjectMeta:
        """See `ObjectStore.head`. The etag is the checksum of the bytes."""
        return _meta(path, self._stat(path))

    def list(self, prefix: str = "", *, start_after: str | None = None) -> Iterator[ObjectMeta]:
        """See `ObjectStore.list`."""
        folder = join_path(self._folder, check_folder(prefix))
        after = "" if start_after is None else self._full(start_after)
        return self._listed(folder, after)

    def _listed(self, folder: str, after: str) -> Iterator[ObjectMeta]:
        shown = ListObjects(ref=self._shared.ref, prefix=_below(folder), after=after)
        lines = self._shared.transport.rows(shown, amount=None)
        while True:
            page = self._counted("list", lambda: list(islice(lines, PAGE_COUNT)))
            for line in page:
                if line.entry is not None and is_path(line.path):
                    yield _meta(self._shown(line.path), line.entry)
            if len(page) < PAGE_COUNT:
                return

    def list_with_delimiter(self, prefix: str = "") -> Listing:
        """See `ObjectStore.list_with_delimiter`."""
        folder = join_path(self._folder, check_folder(prefix))

        def level() -> list[Listed]:
            shown = ListObjects(ref=self._shared.ref, prefix=_below(folder), delimiter="/")
            return list(self._shared.transport.rows(shown, amount=None))

        lines = self._counted("list", level)
        objects = [
            _meta(self._shown(line.path), line.entry) for line in lines if line.entry is not None and is_path(line.path)
        ]
        folders = [line.path.removesuffix("/") for line in lines if line.entry is None]
        return Listing(tuple(objects), tuple(self._shown(one) for one in folders if is_path(one)))

    # ---- writing

    def put(self, path: str, body: Buffer, *, create_only: bool = False, durable: bool = True) -> None:
        """See `ObjectStore.put`. Always durable."""
        full, view = self._full(path), byte_view(body)
        transport, branch = self._writable()

        def put() -> Entry:
            return transport.put(
                branch, full, view, content_type=CONTENT_TYPE, metadata=None, only_if_absent=create_only
            )

        def write() -> None:
            try:
                self._patient(put)
            except AlreadyExists as error:
                raise occupied(path, self.root_url) from error

        self._counted("put", write, written_bytes=lambda _: len(view))

    def put_stream(
        self, path: str, chunks: Iterable[Buffer], *, create_only: bool = False, durable: bool = True
    ) -> int:
        """See `ObjectStore.put_stream`. Always durable. Cost: an upload, and 1 request to stage it."""
        full, (transport, branch) = self._full(path), self._writable()
        if isinstance(chunks, bytes | bytearray | memoryview):
            raise InvalidRequest(
                f"a stream is an iterable of chunks, not {type(chunks).__name__}: put whole bodies with put",
                kind="invalid_body",
            )

        def write() -> int:
            whole_body(chunks)  # refuses what has no chunks
            entry = transport.upload(branch, map(byte_view, chunks), content_type=CONTENT_TYPE, metadata=None)
            if not create_only:
                self._patient(lambda: transport.stage_many(branch, [(full, entry)]))
                return entry.size_bytes
            link = Link(
                branch=branch,
                path=full,
                url=entry.address,
                checksum=entry.checksum,
                content_type=CONTENT_TYPE,
                only_if_absent=True,
            )
            try:
                self._patient(lambda: transport.call(link))
            except AlreadyExists as error:
                raise occupied(path, self.root_url) from error
            return entry.size_bytes

        return self._counted("put", write, written_bytes=lambda size_bytes: size_bytes)

    def delete(self, paths: Iterable[str]) -> None:
        """See `ObjectStore.delete`. Nothing is freed: see `is_versioned`."""
        (transport, branch), remaining = self._writable(), iter(paths)
        while batch := [self._full(path) for path in islice(remaining, PAGE_COUNT)]:
            delete = DeleteMany(branch=branch, paths=batch)
            self._counted("delete", partial(self._patient, partial(transport.call, delete)))

    def copy(self, source: str, target: str, *, create_only: bool = False) -> None:
        """See `ObjectStore.copy`. A create-only copy passes through this process."""
        full_source, full_target = self._full(source), self._full(target)
        transport, branch = self._writable()
        if create_only:
            self.put(target, self.get(source), create_only=True)
            return
        copy = Copy(branch=branch, source=full_source, path=full_target)
        self._counted("copy", lambda: self._found(source, lambda: self._patient(lambda: transport.call(copy))))

    def sync(self, paths: Iterable[str]) -> None:
        """See `ObjectStore.sync`. Everything here is durable: it only looks whether they are there."""
        wanted = list(paths)
        there = self.entries(wanted)
        for path in wanted:
            if path not in there:
                raise absent(path, self.root_url)

    # ---- addresses

    def url(self, path: str) -> str:
        """The URL of the object's bytes in the server's storage. Raises `NotFound`. Cost: as `head`."""
        address = self._stat(path).address
        return f"{self._shared.transport.url}/{address}" if address_ulid(address) is not None else address

    def signed_url(self, path: str, *, expires_in_s: int, method: str = "GET") -> str:
        """See `ObjectStore.signed_url`, to read only. Raises `NotFound`."""
        full = self._full(path)
        if method != "GET":
            raise InvalidRequest(
                f"A signed URL to {method} {path} would pass by {self.root_url}: put it through the server.",
                kind="unsupported",
                path=path,
            )
        if expires_in_s < 1:
            raise InvalidRequest(f"expires_in_s is {expires_in_s}: a signed URL must live for at least a second")
        signed = SignedUrl(ref=self._shared.ref, path=full, expires_in_s=expires_in_s)
        return self._found(path, lambda: self._shared.transport.call(signed))

    def sub(self, prefix: str) -> RemoteStore:
        """See `ObjectStore.sub`."""
        view = RemoteStore.__new__(RemoteStore)
        view._shared = self._shared
        view._folder = join_path(self._folder, check_folder(prefix))
        return view

    def count(self) -> AbstractContextManager[RequestCounts]:
        """See `ObjectStore.count`."""
        return self._shared.counter.count(self._folder)

    # ---- for jobs (`lakebed.repo.task_store.EntryStore`)

    def entries(self, paths: Sequence[str]) -> dict[str, Entry]:
        """See `EntryStore.entries`."""
        shared, found = self._shared, dict[str, Entry]()
        remaining = iter(paths)
        while batch := list(islice(remaining, PATHS_MAX)):
            asked = StatMany(ref=shared.ref, paths=[self._full(path) for path in batch])
            there = self._counted("head", partial(shared.transport.call, asked))
            found |= {path: there[full] for path in batch if (full := self._full(path)) in there}
        return found

    def stage_entries(self, entries: Sequence[tuple[str, Entry]]) -> None:
        """See `EntryStore.stage_entries`."""
        transport, branch = self._writable()
        pairs = [(self._full(path), entry) for path, entry in entries]
        if pairs:
            self._counted("put", lambda: self._patient(lambda: transport.stage_many(branch, pairs)))

    def for_tasks(self, *, writes: bool = False) -> TaskStore:
        """See `EntryStore.for_tasks`. Cost: with `writes` 1 request."""
        if writes:
            transport, branch = self._writable()
            transport.check_put(branch, join_path(self._folder, "data"), only_if_absent=False)
        return TaskStore(ServerBytes(self._shared.transport, self._shared.ref, self._folder), root_url=self.root_url)

    def inside_url(self) -> None:
        """None: the storage is the server's."""
        return None

    # ---- below

    def _full(self, path: str) -> str:
        check_path(path)
        return f"{self._folder}/{path}" if self._folder else path

    def _shown(self, path: str) -> str:
        return path[len(self._folder) + 1 :] if self._folder else path

    def _writable(self) -> tuple[Transport, str]:
        """The transport and the branch."""
        if not self._shared.writes:
            raise InvalidRequest(
                f"{self.root_url} was opened as a reference, to read it: write through the store of a branch.",
                kind="read_only",
                reference=self._shared.ref,
            )
        return self._shared.transport, self._shared.ref

    def _stat(self, path: str) -> Entry:
        asked = Stat(ref=self._shared.ref, path=self._full(path))
        return self._counted("head", lambda: self._found(path, lambda: self._shared.transport.call(asked)))

    def _found(self, path: str, request: Callable[[], R]) -> R:
        try:
            return request()
        except NotFound as error:
            if error.kind != "path_not_found":
                raise
            raise absent(path, self.root_url) from error

    def _patient(self, request: Callable[[], R]) -> R:
        """Make a change of the branch that had no effect whenever it was in conflict."""
        environment = self._shared.environment
        for tries in range(_TRIES_MAX):
            if tries:
                environment.clock.sleep(environment.rng.random() * (_WAIT_FIRST_MS << tries) / 1000)
            try:
                return request()
            except Conflict as error:
                if error.kind not in ("branch_moved", "upload_expired"):
                    raise
                conflict = error
                if error.kind == "upload_expired":
                    break
        raise Unavailable(f"{self.root_url} could not be written: {conflict}", kind=conflict.kind) from conflict

    def _counted(
        self,
        kind: Kind,
        request: Callable[[], R],
        *,
        read_bytes: Callable[[R], int] | None = None,
        written_bytes: Callable[[R], int] | None = None,
    ) -> R:
        clock, counter = self._shared.environment.clock, self._shared.counter
        started_s = clock.monotonic_s()
        try:
            result = request()
        except LakebedError as error:
            seconds = clock.monotonic_s() - started_s
            counter.add(kind, self._folder, seconds=seconds, failed=not isinstance(error, _ANSWERS))
            raise
        counter.add(
            kind,
            self._folder,
            seconds=clock.monotonic_s() - started_s,
            moved=(
                read_bytes(result) if read_bytes is not None else 0,
                written_bytes(result) if written_bytes is not None else 0,
            ),
        )
        return result


def _in_ranges(ranges: Sequence[ByteRange], read: Callable[[ByteRange], Buffer]) -> list[Buffer]:
    """Ranges in the order asked, of few reads."""
    joined = coalesce(ranges, gap_bytes_max=_GAP_BYTES_MAX)
    bodies = {one: memoryview(read(one)) for one in joined}

    def part(start: int, end: int) -> Buffer:
        whole = next(one for one in joined if one[0] <= start and end <= one[1])
        return bodies[whole][start - whole[0] : end - whole[0]]

    return [part(start, end) for start, end in ranges]


def _below(folder: str) -> str:
    return f"{folder}/" if folder else ""


def _meta(path: str, entry: Entry) -> ObjectMeta:
    return ObjectMeta(path, entry.size_bytes, entry.modified_ms, entry.checksum or None)


def _reopened(transport: Transport, ref: str, folder: str, writes: bool) -> RemoteStore:
    return RemoteStore(transport, ref, folder, writes=writes)
