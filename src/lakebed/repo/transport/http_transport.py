"""`HttpTransport`: a repository behind a lakebed server.

Invariants:

- A call that is one request shows one moment. A list of more than `PAGE_COUNT_MAX` rows takes several requests: the
  call reads the first page, and each other page is read when it is needed. For a branch, each page shows its own
  moment. No row is repeated, and a row that exists all the time is never missed. The content of a commit or tag does
  not change.
- An open file reads the object that its path named when it was opened, even if the path changes.
- The server records the access key as the committer of a new commit, tag or branch, unless an administrator names
  another author.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final, NoReturn, TypeVar, cast

import msgspec
import pyarrow as pa
import urllib3
from typing_extensions import Buffer

from lakebed.errors import InternalError, InvalidRequest, NotFound
from lakebed.http.asking import quote_segment, read_reply
from lakebed.objects.port import STREAM_CHUNK_BYTES, ByteRange, ObjectStore
from lakebed.objects.streaming import take_first
from lakebed.repo.model.columns import ARROW_STREAM, columns_of, stream_of
from lakebed.repo.model.model import Entry
from lakebed.repo.model.names import check_path
from lakebed.repo.objects import data
from lakebed.repo.transport.branch_store import BranchStore
from lakebed.repo.transport.http_client import READ_S, Client
from lakebed.repo.transport.http_objects import HttpObjects
from lakebed.repo.transport.transport import Body, Put, Transport
from lakebed.repo.verbs.differences import Status
from lakebed.repo.verbs.message import (
    PAGE_COUNT_MAX,
    REPOSITORY_ID_HEADER,
    Described,
    ListVerb,
    RepositoryFacts,
    Verb,
)
from lakebed.repo.verbs.reading import Head

R = TypeVar("R")
Row = TypeVar("Row")

_JSON: Final = {"Content-Type": "application/json"}
_SMALL_BYTES: Final = 256 << 10
"""A body up to this size is sent at once, without a request before it that checks if the server accepts it."""
_PIECE_BYTES: Final = 1 << 20


def only_local(what: str) -> NoReturn:
    """Raise `InvalidRequest` for an operation that needs the storage and its records in this process."""
    raise InvalidRequest(
        f"{what} works on the storage itself, and not through a server: open the folder or bucket, or do it there.",
        kind="not_over_http",
    )


def ask(client: Client, verb: Described, path: str, *, headers: Mapping[str, str] = {}) -> Any:
    """Send a verb, and return its decoded reply.

    Raises the errors of the verb, `Unavailable`, and `OutcomeUnknown` if the reply to a change was lost. Cost: 1
    request.
    """
    try:
        body = msgspec.json.encode(verb)
    except (TypeError, ValueError) as error:  # such as text that is not valid Unicode
        raise InvalidRequest(f"{verb.verb_name} does not take this: {error}.", kind="invalid_argument") from error
    may_repeat, read_s = verb.changes_nothing, None if verb.effort == "long" else READ_S
    reply = client.request(
        "POST", path + verb.verb_name, body, headers={**_JSON, **headers}, again=may_repeat, read_s=read_s
    )
    return None if verb.gives is None else read_reply(reply.data, verb.gives)


def pages(
    client: Client, verb: Any, path: str, *, amount: int | None, headers: Mapping[str, str] = {}
) -> Iterator[Any]:
    """Iterate over the rows of a list verb, page by page. The call itself reads the first page.

    Cost: 1 request for every `PAGE_COUNT_MAX` rows.
    """

    def page(asked: Any, wanted: int | None) -> list[Any]:
        count = PAGE_COUNT_MAX if wanted is None else min(wanted, PAGE_COUNT_MAX)
        rows: list[Any] = ask(client, msgspec.structs.replace(asked, amount=count), path, headers=headers)
        return rows

    def following(rows: list[Any]) -> Iterator[Any]:
        rows_left = amount
        while True:
            yield from rows
            rows_left = None if rows_left is None else rows_left - len(rows)
            if len(rows) < PAGE_COUNT_MAX or rows_left == 0:
                return
            rows = page(msgspec.structs.replace(verb, after=_row_name(rows[-1])), rows_left)

    return following(page(verb, amount))


def _row_name(row: Any) -> str:
    """The text to continue a list behind a row: the argument `after` of its next page."""
    for name in ("path", "id", "name"):
        value = getattr(row, name, None)
        if value is not None:
            return str(value)
    raise InternalError(f"A row of {type(row).__name__} has no name.")


class HttpTransport(Transport):
    """`Transport` to a repository behind a server. Thread-safe. It can be pickled, with its credentials."""

    def __init__(self, client: Client, facts: RepositoryFacts) -> None:
        self._client = client
        self._facts = facts
        self._path = f"/repositories/{quote_segment(facts.name)}/verbs/"
        self._headers = {REPOSITORY_ID_HEADER: facts.id}  # another repository may have the name by now

    def __repr__(self) -> str:
        return f"HttpTransport({self.url!r})"

    def __reduce__(self) -> tuple[Any, ...]:
        return HttpTransport, (self._client, self._facts)

    @property
    def client(self) -> Client:
        """The client of the server."""
        return self._client

    @property
    def facts(self) -> RepositoryFacts:
        return self._facts

    @property
    def url(self) -> str:
        """``http://host:port/repository``."""
        return f"{self._client.endpoint}/{self._facts.name}"

    @property
    def context(self) -> NoReturn:
        """Raise `InvalidRequest` (``not_over_http``): only the server has the context."""
        only_local("A repository's context")

    def call(self, verb: Verb[R], **local: Any) -> R:
        if local.get("storage_options"):
            only_local("An import with credentials of its own")
        return cast(R, ask(self._client, verb, self._path, headers=self._headers))

    def rows(self, verb: ListVerb[Row], *, amount: int | None) -> Iterator[Row]:
        return pages(self._client, verb.fix_moment(self.call), self._path, amount=amount, headers=self._headers)

    def commit_id(self, branch: str) -> str:
        return self.call(Head(ref=branch)).id

    def view(self, ref: str) -> NoReturn:
        """Raise `InvalidRequest` (``not_over_http``): a server keeps no snapshot open for a client."""
        only_local("A view of one moment")

    def get(self, ref: str, path: str, *, byte_range: ByteRange | None = None) -> bytes:
        reply = self._read(ref, path, byte_range=byte_range)
        with self._client.reading(reply):
            return reply.read()

    def stream(self, ref: str, path: str, *, byte_range: ByteRange | None = None) -> Iterator[bytes]:
        reply = self._read(ref, path, byte_range=byte_range)

        def chunks() -> Iterator[bytes]:
            with self._client.reading(reply):
                while chunk := reply.read(STREAM_CHUNK_BYTES):
                    yield chunk

        return chunks()

    def read_entry(self, ref: str, path: str, entry: Entry, *, byte_range: ByteRange | None = None) -> bytes:
        reply = self._read(ref, path, byte_range=byte_range, entry=entry)
        with self._client.reading(reply):
            return reply.read()

    def _read(
        self, ref: str, path: str, *, byte_range: ByteRange | None, entry: Entry | None = None
    ) -> urllib3.BaseHTTPResponse:
        query: dict[str, Any] = {"ref": ref, "path": path}
        if byte_range is not None:
            query |= {"start": byte_range[0], "end": byte_range[1]}
        if entry is not None:
            query |= {"address": entry.address, "size": entry.size_bytes}
        return self._client.request(
            "GET", self._path + "read", headers=self._headers, query=query, again=True, preload=False
        )

    def check_put(self, branch: str, what: Put) -> None:
        self._put(branch, _line_of(what), only_ask=True)

    def put(self, branch: str, what: Put, content: Body) -> Entry:
        line = _line_of(what)
        whole = data.whole_body(content)
        body = take_first(cast(Iterable[Buffer], content), bytes_max=_SMALL_BYTES) if whole is None else whole
        if isinstance(body, bytearray | memoryview) and len(body) <= _SMALL_BYTES:
            return self._put(branch, line + body)
        self._put(branch, line, only_ask=True)
        return self._put(branch, _prepend_line(line, body))

    def _put(self, branch: str, body: bytes | Iterator[Buffer], *, only_ask: bool = False) -> Entry:
        reply = self._client.request(
            "POST",
            self._path + "put",
            body,
            headers={"Content-Type": data.CONTENT_TYPE, **self._headers},
            query={"branch": branch, **({"only_ask": True} if only_ask else {})},
            read_s=None,
        )
        entry: Entry = read_reply(reply.data, Entry | None)
        return entry

    def stage_many(self, branch: str, entries: Iterable[tuple[str, Entry]] | pa.RecordBatch | pa.Table) -> int:
        reply = self._client.request(
            "POST",
            self._path + "stage_many",
            stream_of(columns_of(entries)),
            headers={"Content-Type": ARROW_STREAM, **self._headers},
            query={"branch": branch},
            read_s=None,
        )
        count: int = read_reply(reply.data, int)
        return count

    def store(self, ref: str, prefix: str, *, writes: bool) -> ObjectStore:
        if writes:
            self.call(Head(ref=ref))
            return BranchStore(HttpObjects(self, ref, writes=True), prefix)
        try:
            self.call(Status(branch=ref, amount=1))
        except (NotFound, InvalidRequest):  # not a branch's name: pin the commit that it resolves to
            ref = self.call(Head(ref=ref)).id
        return BranchStore(HttpObjects(self, ref, writes=False), prefix)


def _line_of(what: Put) -> bytes:
    if what.path is not None:
        check_path(what.path, writing=True)
    data.check_metadata(what.metadata, content_type=what.content_type)
    return msgspec.json.encode(what) + b"\n"


def _prepend_line(line: bytes, body: bytearray | memoryview | Iterator[memoryview]) -> Iterator[Buffer]:
    """The message, then the bytes, in pieces that are large enough for one write each."""
    yield line
    if isinstance(body, bytearray | memoryview):
        yield from (body[start : start + _PIECE_BYTES] for start in range(0, len(body), _PIECE_BYTES))
        return
    pieces: list[bytes] = []
    size_bytes = 0
    for view in body:
        for start in range(0, len(view), _PIECE_BYTES):
            pieces.append(bytes(view[start : start + _PIECE_BYTES]))
            size_bytes += len(pieces[-1])
            if size_bytes >= _PIECE_BYTES:
                yield b"".join(pieces)
                pieces, size_bytes = [], 0
    if size_bytes:
        yield b"".join(pieces)
