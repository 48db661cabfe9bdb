"""A branch as an object-storage port: whatever is written against the port can live inside a branch.

Owns: what each operation of `ObjectStore` is on a branch. Invariants:
- A put uploads first and stages then, so what is listed can be read; ``create_only`` has exactly one winner, for the
  staging area says whose entry is visible (`lakebed.repo.staging.write.stage_if_absent`).
- Every operation sees one moment of the branch, a listing the moment at which it began.
- A delete is a tombstone: the bytes stay for as long as a commit has them, then until a collection (`is_versioned`).
- Over a tag, a commit or any reference but a branch's own it shows the commit that was meant when it was opened, and
  refuses to write.
- Whatever a store cannot do for the moment it calls `Unavailable`, as any store: a branch that others seal all the
  time is tried again for a while first.

Paths are those of the port, and must be ones that a branch takes; paths that only a branch takes (with empty segments,
with a slash at an end) are not seen. Requests are counted as a store's: one an operation. What they cost below is
counted by the repository's own store. Does not know: how entries are staged, merged or collected.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from functools import partial
from itertools import islice
from typing import Final, TypeVar

from typing_extensions import Buffer

from lakebed.errors import AlreadyExists, Conflict, InvalidRequest, LakebedError, NotFound, Unavailable
from lakebed.objects.accounting import coalesce
from lakebed.objects.counting import Kind, RequestCounter
from lakebed.objects.limits import StoreLimits
from lakebed.objects.memory import absent, occupied
from lakebed.objects.path import check_folder, check_path, is_path, join_path
from lakebed.objects.port import STREAM_CHUNK_BYTES, ByteRange, Listing, ObjectMeta, RequestCounts
from lakebed.objects.streaming import byte_view
from lakebed.repo import data
from lakebed.repo.branches import load_branch
from lakebed.repo.context import RepositoryContext
from lakebed.repo.model import Entry, MetarangeRef
from lakebed.repo.names import check_path as check_branch_path
from lakebed.repo.protection import check_writable
from lakebed.repo.refs import resolve
from lakebed.repo.staging.listing import Listed
from lakebed.repo.staging.view import View, branch_view
from lakebed.repo.staging.write import delete_many, stage, stage_if_absent, stage_many
from lakebed.repo.task_store import StorageBytes, TaskStore

__all__ = ["BranchStore"]

R = TypeVar("R")

PAGE_COUNT: Final = 1000
"""Names of a listing, or of a deletion, that count as one request."""

_ANSWERS: Final = (NotFound, AlreadyExists)
_TRIES_MAX: Final = 8
_WAIT_FIRST_MS: Final = 20
_GAP_BYTES_MAX: Final = StoreLimits().coalesce_gap_bytes_max
_PASSING: Final = ("branch_moved", "upload_expired")
"""Kinds of conflicts that say nothing of the object: the branch moved at every try, or the upload took too long."""


@dataclass(frozen=True, slots=True)
class _Shared:
    """What a store and all views of its folders have in common."""

    context: RepositoryContext
    reference: str
    branch: str | None
    """None: only to be read."""
    metarange: MetarangeRef | None
    """Of the commit, where there is no branch."""
    counter: RequestCounter


class BranchStore:
    """`ObjectStore` over a branch, or over what any other reference means.

    Args:
        context: the repository.
        reference: a branch's name, to read and write it; a tag, a commit, ``main@``, ``main~2``, to read the commit
            that it means now.
        prefix: a folder of the branch: what is outside is not seen.

    Raises:
        NotFound: kind ``reference_not_found``.
        InvalidRequest: the reference or the folder cannot be.
    """

    def __init__(self, context: RepositoryContext, reference: str, prefix: str = "") -> None:
        resolved = resolve(context, reference)
        branch = resolved.name if resolved.branch is not None else None
        metarange = None if branch is not None else resolved.commit.metarange
        self._shared = _Shared(context, reference, branch, metarange, RequestCounter("branch"))
        self._folder = check_folder(prefix)

    def __repr__(self) -> str:
        return f"BranchStore({self.root_url!r})"

    def __reduce__(self) -> tuple[object, ...]:
        raise InvalidRequest(
            f"{self.root_url} belongs to the process that has its repository open. Ship `for_tasks()` to other "
            "processes, or give them a repository behind a server, whose stores can be pickled.",
            kind="not_picklable",
        )

    @property
    def root_url(self) -> str:
        """``lakefs://repository/reference/folder``: how the repository's clients name it."""
        root = f"lakefs://{self._shared.context.name}/{self._shared.reference}"
        return f"{root}/{self._folder}" if self._folder else root

    @property
    def is_versioned(self) -> bool:
        """True: see `ObjectStore.is_versioned`."""
        return True

    # ---- reading

    def get(self, path: str, *, byte_range: ByteRange | None = None) -> Buffer:
        """See `ObjectStore.get`."""
        full, context = self._full(path), self._shared.context

        def read() -> Buffer:
            entry = self._entry(full, path)
            _check_range(byte_range, entry, path)
            return data.read(context, entry, byte_range=byte_range)

        return self._counted("get", read, read_bytes=_size_of)

    def get_ranges(self, path: str, ranges: Sequence[ByteRange]) -> list[Buffer]:
        """See `ObjectStore.get_ranges`."""
        full, context = self._full(path), self._shared.context
        if not ranges:
            return []

        def read() -> list[Buffer]:
            entry = self._entry(full, path)
            for byte_range in ranges:
                _check_range(byte_range, entry, path)
            return data.read_ranges(context, entry, ranges=ranges)

        requests = len(coalesce(ranges, gap_bytes_max=_GAP_BYTES_MAX))
        return self._counted("get", read, requests=requests, read_bytes=lambda bodies: sum(map(_size_of, bodies)))

    def get_stream(
        self, path: str, *, byte_range: ByteRange | None = None, chunk_bytes: int = STREAM_CHUNK_BYTES
    ) -> Iterator[Buffer]:
        """See `ObjectStore.get_stream`. All chunks are of the object that is there at the call."""
        full, context = self._full(path), self._shared.context

        def begin() -> Iterator[Buffer]:
            entry = self._entry(full, path)
            _check_range(byte_range, entry, path)
            return data.stream(context, entry, byte_range=byte_range, chunk_bytes=chunk_bytes)

        chunks = self._counted("get", begin)
        if byte_range is None:
            self._shared.counter.add("head", self._folder, seconds=0.0)
        return self._read_on(chunks)

    def _read_on(self, chunks: Iterator[Buffer]) -> Iterator[Buffer]:
        requests = 0  # the first chunk came with the call
        for chunk in chunks:
            self._shared.counter.add("get", self._folder, seconds=0.0, requests=requests, moved=(_size_of(chunk), 0))
            requests = 1
            yield chunk

    def head(self, path: str) -> ObjectMeta:
        """See `ObjectStore.head`. The etag is the checksum of the bytes."""
        full = self._full(path)
        return self._counted("head", lambda: _meta(path, self._entry(full, path)))

    def list(self, prefix: str = "", *, start_after: str | None = None) -> Iterator[ObjectMeta]:
        """See `ObjectStore.list`. It shows the moment at which its first name is asked for."""
        folder = join_path(self._folder, check_folder(prefix))
        after = "" if start_after is None else self._full(start_after)
        return self._listed(folder, after)

    def _listed(self, folder: str, after: str) -> Iterator[ObjectMeta]:
        with self._view() as view:
            lines = view.list(_below(folder), after=after)
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
            with self._view() as view:
                return list(view.list(_below(folder), delimiter="/"))

        lines = self._counted("list", level)
        if len(lines) > PAGE_COUNT:
            self._shared.counter.add("list", self._folder, seconds=0.0, requests=(len(lines) - 1) // PAGE_COUNT)
        objects = [
            _meta(self._shown(line.path), line.entry) for line in lines if line.entry is not None and is_path(line.path)
        ]
        folders = [line.path.removesuffix("/") for line in lines if line.entry is None]
        return Listing(tuple(objects), tuple(self._shown(one) for one in folders if is_path(one)))

    # ---- writing

    def put(self, path: str, body: Buffer, *, create_only: bool = False, durable: bool = True) -> None:
        """See `ObjectStore.put`. Always durable. A create-only put that loses uploads nothing where it can see that."""
        full, view = self._full(path), byte_view(body)
        branch, context = self._writable(full), self._shared.context

        def write() -> None:
            if create_only:
                self._check_free(full, path)
            self._stage(branch, full, path, data.upload(context, view), create_only=create_only)

        self._counted("put", write, written_bytes=lambda _: len(view))

    def put_stream(
        self, path: str, chunks: Iterable[Buffer], *, create_only: bool = False, durable: bool = True
    ) -> int:
        """See `ObjectStore.put_stream`. Always durable."""
        full, context = self._full(path), self._shared.context
        branch = self._writable(full)
        if isinstance(chunks, bytes | bytearray | memoryview):
            raise InvalidRequest(
                f"a stream is an iterable of chunks, not {type(chunks).__name__}: put whole bodies with put",
                kind="invalid_body",
            )

        def write() -> int:
            entry = data.upload(context, chunks)
            self._stage(branch, full, path, entry, create_only=create_only)
            return entry.size_bytes

        return self._counted("put", write, written_bytes=lambda size_bytes: size_bytes)

    def delete(self, paths: Iterable[str]) -> None:
        """See `ObjectStore.delete`. Nothing is freed: see `is_versioned`."""
        branch, context = self._writable(), self._shared.context
        remaining = iter(paths)
        while batch := [self._full(path) for path in islice(remaining, PAGE_COUNT)]:
            self._counted("delete", partial(self._patient, partial(delete_many, context, branch=branch, paths=batch)))

    def copy(self, source: str, target: str, *, create_only: bool = False) -> None:
        """See `ObjectStore.copy`. Content type and metadata are copied too."""
        full_source, full_target = self._full(source), self._full(target)
        branch, context = self._writable(full_target), self._shared.context

        def write() -> None:
            entry = self._entry(full_source, source)
            if create_only:
                self._check_free(full_target, target)
            self._stage(branch, full_target, target, data.copy(context, entry), create_only=create_only)

        self._counted("copy", write)

    def sync(self, paths: Iterable[str]) -> None:
        """See `ObjectStore.sync`. Everything here is durable: it only looks whether they are there."""
        kept = list(paths)
        full = [self._full(path) for path in kept]
        if not full:
            return
        with self._view() as view:
            for path, entry in zip(kept, view.get_many(full), strict=True):
                if entry is None:
                    raise absent(path, self.root_url)

    # ---- addresses

    def url(self, path: str) -> str:
        """The URL of the object's bytes, which another engine can read. Raises `NotFound`. Cost: as `head`."""
        return data.physical_url(self._shared.context, self._entry(self._full(path), path))

    def signed_url(self, path: str, *, expires_in_s: int, method: str = "GET") -> str:
        """See `ObjectStore.signed_url`, to read only. Raises `NotFound`."""
        full = self._full(path)
        if method != "GET":
            raise InvalidRequest(
                f"A signed URL to {method} {path} would pass by {self.root_url}: ask the repository for a place to "
                "upload to, and link what is there.",
                kind="unsupported",
                path=path,
            )
        if expires_in_s < 1:
            raise InvalidRequest(f"expires_in_s is {expires_in_s}: a signed URL must live for at least a second")
        return data.signed_get(self._shared.context, self._entry(full, path), expires_in_s=expires_in_s)

    # ---- for jobs (`lakebed.repo.task_store.EntryStore`)

    def entries(self, paths: Sequence[str]) -> dict[str, Entry]:
        """See `EntryStore.entries`."""
        full = [self._full(path) for path in paths]
        if not full:
            return {}

        def look() -> list[Entry | None]:
            with self._view() as view:
                return view.get_many(full)

        requests = -(-len(full) // PAGE_COUNT)
        found = zip(paths, self._counted("head", look, requests=requests), strict=True)
        return {path: entry for path, entry in found if entry is not None}

    def stage_entries(self, entries: Sequence[tuple[str, Entry]]) -> None:
        """See `EntryStore.stage_entries`."""
        branch, context = self._writable(), self._shared.context
        pairs = [(self._full(path), entry) for path, entry in entries]
        if pairs:
            self._counted("put", lambda: self._patient(lambda: stage_many(context, branch=branch, entries=pairs)))

    def for_tasks(self, *, writes: bool = False) -> TaskStore:
        """See `EntryStore.for_tasks`."""
        if writes:
            self._writable()
        context = self._shared.context
        return TaskStore(StorageBytes(context.store, context.foreign), root_url=self.root_url)

    def inside_url(self) -> str:
        """See `EntryStore.inside_url`."""
        return self._shared.context.store.root_url

    def sub(self, prefix: str) -> BranchStore:
        """See `ObjectStore.sub`."""
        view = BranchStore.__new__(BranchStore)
        view._shared = self._shared
        view._folder = join_path(self._folder, check_folder(prefix))
        return view

    def count(self) -> AbstractContextManager[RequestCounts]:
        """See `ObjectStore.count`."""
        return self._shared.counter.count(self._folder)

    # ---- below

    def _full(self, path: str) -> str:
        check_path(path)
        return f"{self._folder}/{path}" if self._folder else path

    def _shown(self, path: str) -> str:
        return path[len(self._folder) + 1 :] if self._folder else path

    def _writable(self, full: str | None = None) -> str:
        """The branch, when it may be written: asked before bytes are uploaded, and again when they are staged."""
        branch = self._shared.branch
        if branch is None:
            raise InvalidRequest(
                f"{self.root_url} shows a commit, which never changes: write to a branch.",
                kind="read_only",
                reference=self._shared.reference,
            )
        check_writable(self._shared.context, branch)
        if full is not None:
            check_branch_path(full, writing=True)
        return branch

    @contextmanager
    def _view(self) -> Iterator[View]:
        context, branch, metarange = self._shared.context, self._shared.branch, self._shared.metarange
        with context.key_value.snapshot() as snapshot:
            if branch is None:
                assert metarange is not None
                yield View(context, snapshot=snapshot, base=metarange)
                return
            record, _ = load_branch(context, branch, snapshot=snapshot)
            yield branch_view(context, record, snapshot=snapshot)

    def _entry(self, full: str, path: str) -> Entry:
        with self._view() as view:
            entry = view.get(full)
        if entry is None:
            raise absent(path, self.root_url)
        return entry

    def _check_free(self, full: str, path: str) -> None:
        with self._view() as view:
            if view.get(full) is not None:
                raise occupied(path, self.root_url)

    def _stage(self, branch: str, full: str, path: str, entry: Entry, *, create_only: bool) -> None:
        context = self._shared.context
        if not create_only:
            self._patient(lambda: stage(context, branch=branch, path=full, entry=entry))
            return
        try:
            self._patient(lambda: stage_if_absent(context, branch=branch, path=full, entry=entry))
        except AlreadyExists as error:
            raise occupied(path, self.root_url) from error

    def _patient(self, request: Callable[[], R]) -> R:
        """Make a change of the branch that had no effect whenever it was in conflict."""
        environment = self._shared.context.environment
        for tries in range(_TRIES_MAX):
            if tries:
                environment.clock.sleep(environment.rng.random() * (_WAIT_FIRST_MS << tries) / 1000)
            try:
                return request()
            except Conflict as error:
                if error.kind not in _PASSING:
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
        requests: int = 1,
        read_bytes: Callable[[R], int] | None = None,
        written_bytes: Callable[[R], int] | None = None,
    ) -> R:
        clock, counter = self._shared.context.environment.clock, self._shared.counter
        started_s = clock.monotonic_s()
        try:
            result = request()
        except LakebedError as error:
            seconds = clock.monotonic_s() - started_s
            failed = not isinstance(error, _ANSWERS)
            counter.add(kind, self._folder, seconds=seconds, requests=requests, failed=failed)
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


def _below(folder: str) -> str:
    return f"{folder}/" if folder else ""


def _meta(path: str, entry: Entry) -> ObjectMeta:
    return ObjectMeta(path, entry.size_bytes, entry.modified_ms, entry.checksum or None)


def _size_of(body: Buffer) -> int:
    return memoryview(body).nbytes


def _check_range(byte_range: ByteRange | None, entry: Entry, path: str) -> None:
    if byte_range is not None and not 0 <= byte_range[0] < min(byte_range[1], entry.size_bytes):
        raise InvalidRequest(
            f"bytes {byte_range[0]} to {byte_range[1]} of {path} were asked for, and it has {entry.size_bytes}: a "
            "range starts before its end and holds at least a byte",
            kind="invalid_range",
            path=path,
            size_bytes=entry.size_bytes,
        )
