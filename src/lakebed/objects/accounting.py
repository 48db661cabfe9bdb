"""The store that callers use: any driver, with views of folders, counted requests, retries and bounds.

Invariants:
- Every path is checked before a driver sees it, and a view cannot leave its folder.
- Every request is counted, including those that fail. A retry is a request.
- A request is retried only if that is harmless. This holds for all requests except create-only puts; these are retried
  only if the failed one certainly had no effect. An unclear create-only put raises `OutcomeUnknown` at once, because
  only its caller can find out who put the object (`lakebed.objects.numbered_log`, `lakebed.objects.create_once`).
- Waits come from the injected clock, their jitter from the injected generator.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass
from functools import partial
from itertools import chain, islice
from operator import attrgetter
from typing import TypeVar, cast

from typing_extensions import Buffer

from lakebed.backoff import Backoff, Pauses
from lakebed.errors import AlreadyExists, InvalidRequest, LakebedError, NotFound, OutcomeUnknown, Unavailable
from lakebed.objects.counting import Kind, RequestCounter
from lakebed.objects.create_once import put_new
from lakebed.objects.driver import Driver, DriverUpload
from lakebed.objects.limits import StoreLimits
from lakebed.objects.path import check_folder, check_path, join_path
from lakebed.objects.port import (
    LASTING_KINDS,
    STREAM_CHUNK_BYTES,
    ByteRange,
    Listing,
    ObjectMeta,
    ObjectStore,
    RequestCounts,
    Upload,
)
from lakebed.objects.reserve import give_up_reserve
from lakebed.objects.streaming import byte_view, stream_ranges, take_first
from lakebed.runtime import Condition, Environment, follow_forks, map_in_pool

R = TypeVar("R")

_ANSWERS = (NotFound, AlreadyExists)
"""Regular results of a working store, which are not counted as errors."""

_PUT_TOGETHER_MAX = 16
"""Most objects of one `put_each` that are sent to a remote store concurrently."""


def coalesce(ranges: Sequence[ByteRange], *, gap_bytes_max: int) -> list[ByteRange]:
    """Return the fewest ascending ranges that cover `ranges`, joining those at most `gap_bytes_max` apart."""
    merged_ranges: list[ByteRange] = []
    for start, end in sorted(ranges):
        if merged_ranges and start - merged_ranges[-1][1] <= gap_bytes_max:
            merged_ranges[-1] = (merged_ranges[-1][0], max(merged_ranges[-1][1], end))
        else:
            merged_ranges.append((start, end))
    return merged_ranges


class _Gate:
    """Bounds requests and bytes in flight. A body larger than the bound is sent when nothing else is in flight."""

    def __init__(self, condition: Condition, *, request_count_max: int, bytes_max: int) -> None:
        self._condition = condition
        self._request_count_max = request_count_max
        self._bytes_max = bytes_max
        self._begin()
        follow_forks(self, _Gate._begin)

    def _begin(self) -> None:
        """Begin with nothing in flight: in a forked process, earlier requests belong to the parent."""
        self._request_count = 0
        self._bytes = 0

    def run(self, request: Callable[[], R], size_bytes: int) -> R:
        """Wait until the bounds allow a request, then make it."""
        self._enter(size_bytes)
        try:
            return request()
        finally:
            self._leave(size_bytes)

    def _enter(self, size_bytes: int) -> None:
        with self._condition:
            while self._request_count and (
                self._request_count >= self._request_count_max or self._bytes + size_bytes > self._bytes_max
            ):
                self._condition.wait()
            self._request_count += 1
            self._bytes += size_bytes

    def _leave(self, size_bytes: int) -> None:
        with self._condition:
            self._request_count -= 1
            self._bytes -= size_bytes
            self._condition.notify_all()


@dataclass(frozen=True, slots=True)
class _Shared:
    """The state that a store shares with all views of it."""

    driver: Driver
    counter: RequestCounter
    environment: Environment
    limits: StoreLimits
    durable: bool
    gate: _Gate | None
    gap_bytes_max: int
    pauses: Pauses
    reopen: Callable[[], ObjectStore] | None
    elsewhere: Callable[[str], ObjectStore] | None


class _AccountedUpload:
    """An upload that is counted as one call when it ends."""

    def __init__(self, shared: _Shared, folder: str, upload: DriverUpload) -> None:
        self._shared = shared
        self._folder = folder
        self._upload = upload
        self._started_s = shared.environment.clock.monotonic_s()
        self._size_bytes = 0
        self._is_asking = False
        """Whether the store is working on a request, or the last one failed."""

    def write(self, part: memoryview) -> None:
        gate, step = self._shared.gate, self._shared.limits.upload_part_bytes
        self._is_asking = True
        for start in range(0, len(part), step):
            piece = part[start : start + step]
            if gate is None:
                self._upload.write(piece)
            else:
                gate.run(partial(self._upload.write, piece), len(piece))
        self._is_asking = False
        self._size_bytes += len(part)

    def finish(self) -> None:
        self._is_asking = True
        self._upload.finish()
        self._is_asking = False
        self._count(self._size_bytes)

    def abandon(self) -> None:
        try:
            self._upload.abandon()
        finally:
            self._count(0)

    def _count(self, size_bytes: int) -> None:
        self._shared.counter.add(
            "put",
            self._folder,
            seconds=self._shared.environment.clock.monotonic_s() - self._started_s,
            requests=self._upload.request_count,
            moved=(0, size_bytes),
            failed=self._is_asking,
        )


class AccountedStore(ObjectStore):
    """`ObjectStore` over a `Driver`; created by `open_store`, or directly over a driver.

    Args:
        durable: False disables every ``durable=True``, for temporary stores.
        reopen: a picklable call that opens the same store elsewhere; None makes pickling `InvalidRequest`.
        elsewhere: opens another root with the settings of this store; None makes `elsewhere` `InvalidRequest`.
    """

    def __init__(
        self,
        driver: Driver,
        *,
        environment: Environment,
        limits: StoreLimits,
        durable: bool = True,
        reopen: Callable[[], ObjectStore] | None = None,
        elsewhere: Callable[[str], ObjectStore] | None = None,
    ) -> None:
        gate = (
            _Gate(
                environment.runtime.condition(),
                request_count_max=limits.request_concurrency_max,
                bytes_max=limits.inflight_bytes_max,
            )
            if driver.is_remote
            else None
        )
        counter = RequestCounter(driver.metrics_label)
        gap_bytes_max = min(limits.coalesce_gap_bytes_max, driver.range_gap_bytes_max)
        pauses = Pauses(limits.retry_wait_first_ms / 1000, limits.retry_wait_max_ms / 1000, jitter=1.0)
        self._shared = _Shared(
            driver, counter, environment, limits, durable, gate, gap_bytes_max, pauses, reopen, elsewhere
        )
        self._driver = driver
        self._folder = ""

    def __repr__(self) -> str:
        return f"ObjectStore({self.root_url!r})"

    def __reduce__(self) -> tuple[object, ...]:
        if self._shared.reopen is None:
            raise InvalidRequest(
                f"{self.root_url} exists in this process only and cannot be sent to another: use a folder or a bucket",
                kind="not_picklable",
            )
        return (_reopen, (self._shared.reopen, self._folder))

    @property
    def reopen(self) -> Callable[[], ObjectStore] | None:
        """Return the call that opens the whole store in another process; None when there is none."""
        return self._shared.reopen

    def elsewhere(self, url: str) -> ObjectStore:
        """See `OpensElsewhere.elsewhere`."""
        if self._shared.elsewhere is None:
            raise InvalidRequest(f"{self.root_url} cannot open {url}: open it separately.", kind="invalid_url", url=url)
        return self._shared.elsewhere(url)

    @property
    def root_url(self) -> str:
        """The URL of this view's root."""
        return self._driver.url(self._folder) if self._folder else self._driver.root_url

    @property
    def is_versioned(self) -> bool:
        """False: deleted objects are not kept in versions."""
        return False

    def get(self, path: str, *, byte_range: ByteRange | None = None) -> Buffer:
        full_path = self._full(path)
        if byte_range is not None:
            _check_range(byte_range, path)
            size_bytes = byte_range[1] - byte_range[0]
        else:
            size_bytes = self._shared.limits.get_bytes_assumed
        driver = self._driver
        return self._call(
            "get", lambda: driver.get(full_path, byte_range), _length, size_bytes=size_bytes, path=full_path
        )

    def get_resident(self, path: str, *, byte_range: ByteRange | None = None) -> Buffer | None:
        driver = self._driver
        if driver.is_remote:
            return None
        full_path = self._full(path)
        if byte_range is not None:
            _check_range(byte_range, path)
        return self._call(
            "get",
            lambda: driver.get_resident(full_path, byte_range),
            _length_there,
            requests_of=_count_there,
            path=full_path,
        )

    def map(self, path: str) -> Buffer | None:
        driver = self._driver
        if driver.is_remote:
            return None
        full_path = self._full(path)
        return self._call("get", lambda: driver.map(full_path), requests_of=_count_there, path=full_path)

    def get_ranges(self, path: str, ranges: Sequence[ByteRange]) -> list[Buffer]:
        full_path = self._full(path)
        for byte_range in ranges:
            _check_range(byte_range, path)
        merged_ranges = coalesce(ranges, gap_bytes_max=self._shared.gap_bytes_max)
        if not merged_ranges:
            return []
        size_bytes = sum(end - start for start, end in merged_ranges)
        driver = self._driver
        bodies = self._call(
            "get",
            lambda: driver.get_ranges(full_path, merged_ranges),
            _lengths,
            size_bytes=size_bytes,
            requests_of=lambda _: len(merged_ranges),
            path=full_path,
        )
        return [_part(merged_ranges, bodies, byte_range) for byte_range in ranges]

    def head(self, path: str) -> ObjectMeta:
        full_path, driver = self._full(path), self._driver
        return self._relative(self._call("head", lambda: driver.head(full_path), path=full_path))

    def put(self, path: str, body: Buffer, *, create_only: bool = False, durable: bool = True) -> None:
        full_path, view, driver = self._full(path), byte_view(body), self._driver
        size_bytes = view.nbytes
        sync = durable and self._shared.durable

        def put_once() -> None:
            self._call(
                "put",
                lambda: driver.put(full_path, view, create_only=create_only, durable=sync),
                lambda _: (0, size_bytes),
                size_bytes=size_bytes,
                repeatable=not create_only,
                path=full_path,
            )

        self._put_with_reserve(put_once, full_path)

    def put_each(self, objects: Sequence[tuple[str, Buffer]]) -> None:
        if self._shared.gate is not None or not objects:
            self._put_at_once(objects)
            return
        views = [(self._full(path), byte_view(body)) for path, body in objects]
        size_bytes = sum(view.nbytes for _, view in views)
        driver, durable = self._driver, self._shared.durable

        def put_once() -> None:
            self._call(
                "put",
                lambda: driver.put_each(views, durable=durable),
                lambda _: (0, size_bytes),
                size_bytes=size_bytes,
                requests_of=lambda _: len(views),
                repeatable=False,
                path=views[0][0],
            )

        self._put_with_reserve(put_once, views[0][0])

    def _put_at_once(self, objects: Sequence[tuple[str, Buffer]]) -> None:
        """Put objects concurrently to a remote store, where each is a request that waits for its turn."""

        def put(item: tuple[str, Buffer]) -> None:
            self.put(*item, create_only=True)

        map_in_pool(self._shared.environment.runtime, put, objects, worker_count_max=_PUT_TOGETHER_MAX)

    def _put_with_reserve(self, put_once: Callable[[], None], full: str) -> None:
        """Put. If the disk is full, release the reserve and put once more."""
        try:
            put_once()
        except Unavailable as error:
            if error.kind != "disk_full" or not give_up_reserve(self._driver, full):
                raise
            put_once()

    def put_stream(
        self, path: str, chunks: Iterable[Buffer], *, create_only: bool = False, durable: bool = True
    ) -> int:
        full_path = self._full(path)
        first_bytes = take_first(chunks, bytes_max=self._shared.limits.upload_part_bytes)
        if isinstance(first_bytes, bytearray):
            if create_only:
                put_new(self, path, first_bytes, durable=durable)
            else:
                self.put(path, first_bytes, durable=durable)
            return len(first_bytes)
        return self._upload(full_path, first_bytes, create_only=create_only, durable=durable and self._shared.durable)

    def _upload(self, full: str, chunks: Iterator[memoryview], *, create_only: bool, durable: bool) -> int:
        """Make one upload, counted as one call.

        No slot of the gate is held while the next chunk is made, because that may need a slot itself.
        """
        upload, size_bytes = self._begin_upload(full, create_only=create_only, durable=durable), 0
        try:
            for chunk in chunks:
                upload.write(chunk)
                size_bytes += len(chunk)
            upload.finish()
        except BaseException:
            with suppress(LakebedError):  # the caller gets the first error
                upload.abandon()
            raise
        return size_bytes

    def begin_put(self, path: str, *, durable: bool = True) -> Upload | None:
        if self._driver.is_remote:
            return None
        return self._begin_upload(self._full(path), create_only=True, durable=durable and self._shared.durable)

    def _begin_upload(self, full: str, *, create_only: bool, durable: bool) -> _AccountedUpload:
        driver = self._driver
        upload = self._call(
            "put",
            lambda: driver.open_upload(full, create_only=create_only, durable=durable),
            requests_of=lambda _: 0,
        )
        return _AccountedUpload(self._shared, self._folder, upload)

    def get_stream(
        self, path: str, *, byte_range: ByteRange | None = None, chunk_bytes: int = STREAM_CHUNK_BYTES
    ) -> Iterator[Buffer]:
        return stream_ranges(self, path, byte_range=byte_range, chunk_bytes=chunk_bytes)

    def list(self, prefix: str = "", *, start_after: str | None = None) -> Iterator[ObjectMeta]:
        pages = self._pages(self._driver.list_pages, prefix, start_after, path_of=attrgetter("path"))
        return chain.from_iterable(map(self._relative, page) for page in pages)

    def list_paths(self, prefix: str = "", *, start_after: str | None = None) -> Iterator[str]:
        pages = self._pages(self._driver.path_pages, prefix, start_after, path_of=str)
        relative = slice(len(self._folder) + 1 if self._folder else 0, None)
        return (path[relative] for page in pages for path in page)

    def _pages(
        self,
        open_pages: Callable[[str, str | None, int], Iterator[Sequence[R]]],
        prefix: str,
        start_after: str | None,
        *,
        path_of: Callable[[R], str],
    ) -> Iterator[Sequence[R]]:
        """Return the pages of a listing. Each is requested when it is needed; an invalid prefix is refused at once."""
        folder = join_path(self._folder, check_folder(prefix))
        return self._take_pages(open_pages, folder, None if start_after is None else self._full(start_after), path_of)

    def _take_pages(
        self,
        open_pages: Callable[[str, str | None, int], Iterator[Sequence[R]]],
        folder: str,
        after: str | None,
        path_of: Callable[[R], str],
    ) -> Iterator[Sequence[R]]:
        page_count = self._shared.limits.list_page_count
        pages: Iterator[Sequence[R]] | None = None

        def take() -> Sequence[R] | None:
            # A failed iterator is consumed: a retry starts a new one after the last name seen.
            nonlocal pages
            if pages is None:
                pages = open_pages(folder, after, page_count)
            try:
                return next(pages, None)
            except LakebedError:
                pages = None
                raise

        empty_count = 1  # later an empty page needs no request: the previous page was marked as the last
        while True:
            count = partial(_page_requests, empty_count=empty_count)
            page = self._call("list", take, requests_of=count)
            empty_count = 0
            if not page:
                return
            yield page
            after = path_of(page[-1])
            if len(page) < page_count:
                return

    def list_with_delimiter(self, prefix: str = "") -> Listing:
        folder, driver = join_path(self._folder, check_folder(prefix)), self._driver
        page_count = self._shared.limits.list_page_count
        listing = self._call(
            "list",
            lambda: driver.list_level(folder),
            requests_of=lambda level: max(1, -(-(len(level.objects) + len(level.folders)) // page_count)),
        )
        if not self._folder:
            return listing
        skip = len(self._folder) + 1
        return Listing(tuple(map(self._relative, listing.objects)), tuple(name[skip:] for name in listing.folders))

    def delete(self, paths: Iterable[str]) -> None:
        driver, durable, remaining = self._driver, self._shared.durable, map(self._full, paths)
        while batch := list(islice(remaining, driver.delete_batch_count_max)):
            self._call("delete", partial(driver.delete, batch, durable=durable))

    def copy(self, source: str, target: str, *, create_only: bool = False) -> None:
        full_source, full_target, driver = self._full(source), self._full(target), self._driver
        if create_only and driver.is_remote:
            self.put(target, self.get(source), create_only=True)
            return
        durable = self._shared.durable
        self._call(
            "copy",
            lambda: driver.copy(full_source, full_target, create_only=create_only, durable=durable),
            repeatable=not create_only,
        )

    def sync(self, paths: Iterable[str]) -> None:
        full_paths = [self._full(path) for path in paths]
        if self._shared.durable and full_paths:
            self._driver.sync(full_paths)

    def url(self, path: str) -> str:
        return self._driver.url(self._full(path))

    def signed_url(self, path: str, *, expires_in_s: int, method: str = "GET") -> str:
        if expires_in_s < 1:
            raise InvalidRequest(f"expires_in_s is {expires_in_s}: a signed URL must live for at least a second")
        return self._driver.signed_url(self._full(path), expires_in_s=expires_in_s, method=method)

    def sub(self, prefix: str) -> AccountedStore:
        view = AccountedStore.__new__(AccountedStore)
        view._shared = self._shared
        view._driver = self._driver
        view._folder = join_path(self._folder, check_folder(prefix))
        return view

    def require_folder(self, *, with_descriptor: bool = True) -> AccountedStore:
        view = self.sub("")
        view._driver = self._driver.require_folder(self._folder, with_descriptor=with_descriptor)
        return view

    def release_folder(self) -> None:
        self._driver.release_folder()

    def count(self) -> AbstractContextManager[RequestCounts]:
        return self._shared.counter.count(self._folder)

    def _full(self, path: str) -> str:
        check_path(path)
        return f"{self._folder}/{path}" if self._folder else path

    def _relative(self, meta: ObjectMeta) -> ObjectMeta:
        if not self._folder:
            return meta
        return ObjectMeta(meta.path[len(self._folder) + 1 :], meta.size_bytes, meta.modified_ms, meta.etag)

    def _call(
        self,
        kind: Kind,
        request: Callable[[], R],
        bytes_of: Callable[[R], tuple[int, int]] | None = None,
        *,
        repeatable: bool = True,
        size_bytes: int = 0,
        requests_of: Callable[[R], int] | None = None,
        path: str = "",
    ) -> R:
        """Make one request, retry it if that is harmless, and count it.

        Args:
            bytes_of: returns the bytes read and written for a result; None: no bytes.
        """
        shared = self._shared
        clock, gate, counter = shared.environment.clock, shared.gate, shared.counter
        started_s = clock.monotonic_s()
        backoff: Backoff | None = None  # few requests need one
        while True:
            try:
                result = request() if gate is None else gate.run(request, size_bytes)
                break
            except LakebedError as error:
                if _is_retried(error, repeatable=repeatable):
                    attempts_max = 1 + shared.limits.retry_count_max
                    backoff = backoff or Backoff(shared.environment, shared.pauses, attempts_max=attempts_max)
                    if backoff.pause():
                        continue
                retries = 0 if backoff is None else backoff.pause_count
                counter.add(
                    kind,
                    self._folder,
                    seconds=clock.monotonic_s() - started_s,
                    requests=1 + retries,
                    retries=retries,
                    failed=not isinstance(error, _ANSWERS),
                    path=path,
                )
                raise
        retries = 0 if backoff is None else backoff.pause_count
        counter.add(
            kind,
            self._folder,
            seconds=clock.monotonic_s() - started_s,
            requests=(1 if requests_of is None else requests_of(result)) + retries,
            moved=(0, 0) if bytes_of is None else bytes_of(result),
            retries=retries,
            path=path,
        )
        return result


def _is_retried(error: LakebedError, *, repeatable: bool) -> bool:
    """Whether a request may be made again after an error, because that is harmless and may help."""
    if error.kind in LASTING_KINDS:
        return False
    return isinstance(error, Unavailable) or (repeatable and isinstance(error, OutcomeUnknown))


def _reopen(reopen: Callable[[], ObjectStore], folder: str) -> ObjectStore:
    store = reopen()
    return store.sub(folder) if folder else store


def _page_requests(page: Sequence[object] | None, *, empty_count: int) -> int:
    return 1 if page else empty_count


def _count_there(body: Buffer | None) -> int:
    """Count one request if there is a body, otherwise none."""
    return int(body is not None)


def _length_there(body: Buffer | None) -> tuple[int, int]:
    return (0, 0) if body is None else _length(body)


def _length(body: Buffer) -> tuple[int, int]:
    return memoryview(body).nbytes, 0


def _lengths(bodies: Sequence[Buffer]) -> tuple[int, int]:
    return sum(memoryview(body).nbytes for body in bodies), 0


def _check_range(byte_range: ByteRange, path: str) -> None:
    start, end = byte_range
    if not 0 <= start < end:
        raise InvalidRequest(
            f"bytes {start} to {end} of {path} were requested: a range starts at 0 or later and is not empty",
            kind="invalid_range",
            path=path,
        )


def _part(merged: Sequence[ByteRange], bodies: Sequence[Buffer], byte_range: ByteRange) -> Buffer:
    """Return the part of the coalesced bodies for one requested range."""
    start, end = byte_range
    for (first, last), body in zip(merged, bodies, strict=True):
        if first <= start and end <= last:
            return (
                body if (first, last) == (start, end) else cast(Buffer, memoryview(body)[start - first : end - first])
            )
    raise AssertionError(f"{byte_range} was not read")
