"""`HttpObjects`: the objects of a reference behind a server, for a `BranchStore`.

Invariants: a create-only put is one request, and the server decides it. If its reply is lost, the outcome is unknown,
as with any store. It can be pickled, with the credentials of its transport, for the tasks of a job, which read and
upload through the server.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import accumulate, islice
from typing import Final, TypeVar

from typing_extensions import Buffer

from lakebed.errors import InternalError, InvalidRequest, OutcomeUnknown
from lakebed.objects.accounting import coalesce
from lakebed.objects.path import join_path
from lakebed.objects.port import ByteRange
from lakebed.objects.streaming import byte_view
from lakebed.repo.model.entry import address_ulid
from lakebed.repo.model.model import Entry
from lakebed.repo.objects.data import CONTENT_TYPE, read_found, whole_body
from lakebed.repo.objects.task_store import ObjectBytes
from lakebed.repo.staging.listing import Listed
from lakebed.repo.transport.branch_store import GAP_BYTES_MAX, ReferenceObjects, with_retries
from lakebed.repo.transport.transport import Put, Transport
from lakebed.repo.verbs.message import PATHS_MAX
from lakebed.repo.verbs.reading import ListObjects, SignedUrl, Stat, StatMany
from lakebed.repo.verbs.writing import Copy, DeleteMany, Link
from lakebed.runtime import Environment

R = TypeVar("R")

_UPLOAD_ATTEMPTS_MAX: Final = 3
_REQUIRED_LENGTH_MAX: Final = 100_000
"""Characters of the paths that one put requires; the head of its message has a limit."""


@dataclass(frozen=True, slots=True)
class ServerBytes(ObjectBytes):
    """The bytes of a branch, for tasks that read and upload through the server.

    Attributes:
        transport: the transport to the repository, with its credentials.
        ref: the branch or commit.
        folder: the folder of the branch that contains the tasks' paths.
    """

    transport: Transport
    ref: str
    folder: str

    @property
    def url(self) -> str:
        return self.transport.url

    def read(self, path: str, entry: Entry, *, byte_range: ByteRange | None = None) -> Buffer:
        return self.transport.read_entry(self.ref, join_path(self.folder, path), entry, byte_range=byte_range)

    def read_ranges(self, path: str, entry: Entry, *, ranges: Sequence[ByteRange]) -> list[Buffer]:
        """See `ObjectBytes.read_ranges`. Cost: 1 request a joined range."""
        return _in_ranges(ranges, lambda byte_range: self.read(path, entry, byte_range=byte_range))

    def upload(self, body: Buffer | Iterable[Buffer]) -> Entry:
        """See `ObjectBytes.upload`. A whole body is sent again after a lost reply: each upload gets a new address."""
        if isinstance(body, Iterator):
            return self._upload(body)
        for attempts_left in reversed(range(_UPLOAD_ATTEMPTS_MAX)):
            try:
                return self._upload(body)
            except OutcomeUnknown:
                if attempts_left == 0:
                    raise
        raise AssertionError("the last attempt returns or raises")

    def _upload(self, body: Buffer | Iterable[Buffer]) -> Entry:
        return self.transport.put(self.ref, Put(), body)


@dataclass(frozen=True, slots=True)
class HttpObjects(ReferenceObjects):
    """The objects of a reference. Making one sends no request.

    Attributes:
        ref: a branch, or any other reference.
        writes: `ref` is a branch, and may be written to.
    """

    transport: Transport
    ref: str
    writes: bool
    environment: Environment = field(default_factory=Environment)

    def __reduce__(self) -> tuple[object, ...]:
        return HttpObjects, (self.transport, self.ref, self.writes)

    @property
    def url(self) -> str:
        """``http://host:port/repository/reference``."""
        return f"{self.transport.url}/{self.ref}"

    @property
    def is_streaming(self) -> bool:
        return False

    def stat(self, path: str) -> Entry:
        return self.transport.call(Stat(ref=self.ref, path=path))

    def entries(self, paths: Sequence[str]) -> list[Entry | None]:
        """See `ReferenceObjects.entries`. Cost: 1 request for up to 100,000 paths."""
        entries: list[Entry | None] = []
        remaining = iter(paths)
        while batch := list(islice(remaining, PATHS_MAX)):
            by_path = self.transport.call(StatMany(ref=self.ref, paths=batch))
            entries += [by_path.get(path) for path in batch]
        return entries

    def rows(self, prefix: str, *, after: str = "", delimiter: str = "") -> Iterator[Listed]:
        verb = ListObjects(ref=self.ref, prefix=prefix, after=after, delimiter=delimiter)
        yield from self.transport.rows(verb, amount=None)

    def read(self, path: str, *, byte_range: ByteRange | None) -> Buffer:
        return self.transport.get(self.ref, path, byte_range=byte_range)

    def read_ranges(self, path: str, ranges: Sequence[ByteRange]) -> list[Buffer]:
        """See `ReferenceObjects.read_ranges`. Cost: 1 GET; for distant ranges 1 HEAD, and 1 GET each."""
        if len(coalesce(ranges, gap_bytes_max=GAP_BYTES_MAX)) == 1:
            return _in_ranges(ranges, lambda byte_range: self.read(path, byte_range=byte_range))

        def read(entry: Entry) -> list[Buffer]:
            return _in_ranges(ranges, lambda part: self.transport.read_entry(self.ref, path, entry, byte_range=part))

        return read_found(lambda: self.stat(path), read)

    def stream(self, path: str, *, byte_range: ByteRange | None, chunk_bytes: int) -> Iterator[Buffer]:
        raise InternalError("Objects behind a server are streamed by ranges.")

    def check_writable(self, path: str | None = None) -> None:
        """See `ReferenceObjects.check_writable`. Cost: no request: the server checks each write."""
        if not self.writes:
            raise InvalidRequest(
                f"{self.url} was opened as a reference, to read it: write through the store of a branch.",
                kind="read_only",
                reference=self.ref,
            )

    def put(self, path: str, body: Buffer, *, only_if_absent: bool, requires: Sequence[str] = ()) -> None:
        """See `ReferenceObjects.put`. Of very many paths the first are required, which a message has room for."""
        lengths = accumulate(len(other) for other in requires)
        verb = Put(
            path,
            only_if_absent=only_if_absent,
            requires=[other for other, length in zip(requires, lengths, strict=True) if length <= _REQUIRED_LENGTH_MAX],
        )
        self._with_retries(lambda: self.transport.put(self.ref, verb, body))

    def put_stream(self, path: str, chunks: Iterable[Buffer], *, only_if_absent: bool) -> int:
        """See `ReferenceObjects.put_stream`. Cost: an upload, and 1 request to stage it."""
        whole_body(chunks)  # raises for anything that has no chunks
        entry = self.transport.put(self.ref, Put(), map(byte_view, chunks))
        if not only_if_absent:
            self.stage_many([(path, entry)])
            return entry.size_bytes
        link = Link(
            branch=self.ref,
            path=path,
            url=entry.address,
            checksum=entry.checksum,
            content_type=CONTENT_TYPE,
            only_if_absent=True,
        )
        self._with_retries(lambda: self.transport.call(link))
        return entry.size_bytes

    def stage_many(self, entries: Sequence[tuple[str, Entry]]) -> None:
        self._with_retries(lambda: self.transport.stage_many(self.ref, entries))

    def delete_many(self, paths: Sequence[str]) -> None:
        self._with_retries(lambda: self.transport.call(DeleteMany(branch=self.ref, paths=list(paths))))

    def copy(self, source: str, path: str, *, only_if_absent: bool) -> None:
        """See `ReferenceObjects.copy`. The bytes of a create-only copy go through this process."""
        if only_if_absent:
            self.put(path, self.read(source, byte_range=None), only_if_absent=True)
            return
        self._with_retries(lambda: self.transport.call(Copy(branch=self.ref, source=source, path=path)))

    def _with_retries(self, request: Callable[[], R]) -> R:
        return with_retries(request, url=self.url, environment=self.environment)

    def object_url(self, entry: Entry) -> str:
        """See `ReferenceObjects.object_url`. For an upload, it is below the server's URL of the repository."""
        is_upload = address_ulid(entry.address) is not None
        return f"{self.transport.url}/{entry.address}" if is_upload else entry.address

    def signed_url(self, path: str, *, expires_in_s: int) -> str:
        return self.transport.call(SignedUrl(ref=self.ref, path=path, expires_in_s=expires_in_s))

    def storage_ms(self) -> int:
        """See `ReferenceObjects.storage_ms`. Cost: 1 empty upload, which a collection deletes."""
        return self.transport.put(self.ref, Put(), b"").modified_ms

    def task_bytes(self, folder: str, *, writes: bool) -> ObjectBytes:
        """See `ReferenceObjects.task_bytes`. Cost: with `writes` 1 request."""
        if writes:
            self.transport.check_put(self.ref, Put(join_path(folder, "data")))
        return ServerBytes(self.transport, self.ref, folder)

    @property
    def inside_url(self) -> None:
        return None


def _in_ranges(ranges: Sequence[ByteRange], read: Callable[[ByteRange], Buffer]) -> list[Buffer]:
    """Read ranges, with one read for each group of near ranges. The results are in the order of `ranges`."""
    spans = coalesce(ranges, gap_bytes_max=GAP_BYTES_MAX)
    bodies = {span: memoryview(read(span)) for span in spans}

    def part(start: int, end: int) -> Buffer:
        span_of_range = next(span for span in spans if span[0] <= start and end <= span[1])
        return bodies[span_of_range][start - span_of_range[0] : end - span_of_range[0]]

    return [part(start, end) for start, end in ranges]
