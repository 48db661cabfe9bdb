"""One request, as a handler sees it: its parameters, its body, its caller, and the pools in which blocking calls run.

Owns: reading a request within its limits. Invariant: every fault of a request is an `InvalidRequest`, never a
traceback.
"""

from __future__ import annotations

import asyncio
import binascii
import hashlib
from base64 import b64decode
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterable, Iterator
from itertools import islice
from typing import ClassVar, Final, Literal, ParamSpec, TypeVar
from urllib.parse import parse_qsl

import msgspec
from starlette.responses import Response
from starlette.types import Message, Receive, Scope
from typing_extensions import Buffer

from lakebed.decoding import decode_json
from lakebed.errors import InvalidRequest
from lakebed.http.pages import AMOUNT_DEFAULT, AMOUNT_MAX, PageRequest, page_of
from lakebed.http.pools import run_in
from lakebed.http.replies import HAS_PIECE, json
from lakebed.http.serving import Serving
from lakebed.http.streaming import download, upload
from lakebed.texts import format_value

_LATE_S: Final = 1.0
"""A body that took longer, perhaps because it was stored slowly, is treated like one that was waited for."""

B = TypeVar("B")
P = ParamSpec("P")
R = TypeVar("R")

Effort = Literal["look", "write", "compute", "long"]
"""A short read; a write that waits for the store; a computation; a call that may take minutes."""

QUERY_FIELDS_MAX: Final = 1_000
"""Most parameters of a query."""

_MD5_BYTES: Final = 16
_TRUE: Final = {"true", "1"}
_FALSE: Final = {"false", "0", ""}


class ClientGone(Exception):
    """The client closed the connection while its request was read. There is no reply."""


def header_text(raw: bytes) -> str:
    """A header as text: Go's clients write UTF-8, Python's Latin-1."""
    try:
        return raw.decode()
    except UnicodeDecodeError:
        return raw.decode("latin-1")


class Call:
    """A request.

    Attributes:
        path: the path's parameters, decoded.
        subject: what the audit log records as changed, if the path does not say it.
    """

    __slots__ = ("_query", "path", "receive", "request_id", "scope", "serving", "subject")

    encodings: ClassVar[frozenset[str]] = frozenset({"", "identity"})
    """Values that the Content-Encoding of a body that is read as a whole may have, in lower case."""

    def __init__(self, serving: Serving, scope: Scope, receive: Receive, *, request_id: str) -> None:
        self.serving = serving
        self.scope = scope
        self.receive = receive
        self.request_id = request_id
        self.path: dict[str, str] = scope["path_params"]
        self.subject = ""
        self._query: dict[str, str] | None = None

    def header(self, name: bytes) -> str | None:
        """A header by its lower-case name; None: it is missing."""
        for key, value in self.scope["headers"]:
            if key == name:
                text: str = value.decode("latin-1")
                return text
        return None

    def etags(self, name: bytes) -> frozenset[str] | None:
        """The strong ETags of a header; None: the header is missing, or is ``*``."""
        text = self.header(name)
        if text is None or text.strip() == "*":
            return None
        tags = (tag.strip() for tag in text.split(","))
        return frozenset(tag.strip('"') for tag in tags if not tag.startswith("W/"))

    @property
    def query(self) -> dict[str, str]:
        """The query's parameters; of a repeated parameter, the last value."""
        if self._query is None:
            self._query = dict(parse_query(self.scope))
        return self._query

    def all_values(self, name: str) -> list[str]:
        """All values of a repeatable parameter of the query."""
        return [value for key, value in parse_query(self.scope) if key == name]

    def required(self, name: str) -> str:
        """A required parameter of the query."""
        value = self.query.get(name)
        if value is None:
            raise InvalidRequest(f"The query has no parameter {name!r}: add it.", kind="missing_parameter")
        return value

    def flag(self, name: str, *, default: bool = False) -> bool:
        """A boolean parameter of the query."""
        value = self.query.get(name)
        if value is None:
            return default
        word = value.lower()
        if word not in _TRUE and word not in _FALSE:
            raise InvalidRequest(f"{name}={value!r} is invalid: use true or false.", kind="invalid_query")
        return word in _TRUE

    def integer(self, name: str, *, default: int, low: int, high: int) -> int:
        """An integer parameter of the query in ``[low, high]``."""
        value = self.query.get(name)
        if value is None:
            return default
        digits = value.removeprefix("-")
        if not (digits.isascii() and digits.isdigit() and len(digits) <= 18 and low <= int(value) <= high):
            raise InvalidRequest(
                f"{name}={value!r} is invalid: use an integer from {low} to {high}.", kind="invalid_query"
            )
        return int(value)

    @property
    def origin(self) -> str:
        """The server's URL as the client wrote it."""
        proto = self.header(b"x-forwarded-proto") or self.scope["scheme"]
        return f"{'https' if proto == 'https' else 'http'}://{self.header(b'host') or self.serving.authority}"

    def page(self) -> PageRequest:
        """The page of a list that the query asks for. An amount below 1 means the largest page."""
        amount = self.integer("amount", default=AMOUNT_DEFAULT, low=-1, high=AMOUNT_MAX)
        return PageRequest(
            self.query.get("prefix", ""), self.query.get("after", ""), amount if amount > 0 else AMOUNT_MAX
        )

    async def list_page(
        self, rows: Callable[[PageRequest], Iterable[R]], *, key: Callable[[R], str], row: Callable[[R], object]
    ) -> Response:
        """Read one page of a list, and encode it, in the pool for calls that compute.

        Args:
            rows: returns the rows from a page's start; only the first `PageRequest.probe` are read.
            key, row: as `page_of` takes them.
        """
        page = self.page()

        def read() -> Response:
            page_rows = list(islice(rows(page), page.probe))
            return json(page_of(page_rows, amount=page.amount, key=key, row=row))

        return await self.heavy(read)

    def content_length(self, *, bytes_max: int) -> int | None:
        """The announced length of the body; None: the body comes in chunks. Raises when the length is too large."""
        text = self.header(b"content-length")
        if text is None:
            return None
        if not (text.isascii() and text.isdigit()):
            raise InvalidRequest("The Content-Length is not a number.", kind="invalid_header")
        if int(text) > bytes_max:
            raise body_size_error(bytes_max)
        return int(text)

    async def chunks(self, *, bytes_max: int) -> AsyncIterator[bytes]:
        """The body as it arrives.

        Raises:
            ClientGone: the client disconnected.
            InvalidRequest: kind ``too_large``: the body exceeds `bytes_max`; ``stalled``: it comes too slowly
                (`HttpOptions.stalled_s`); ``body_differs``, at its end: it does not have the checksum that the header
                ``Content-MD5`` states; as `check_late`.
        """
        began_s = asyncio.get_running_loop().time()
        self.content_length(bytes_max=bytes_max)
        announced = self._content_digests()
        digest = hashlib.md5(usedforsecurity=False) if announced else None
        total = 0
        waited_s = 0.0
        more = True
        while more:
            message, waited_s = await self._next_message(received_bytes=total, waited_s=waited_s)
            if message["type"] != "http.request":
                raise ClientGone
            body: bytes = message.get("body", b"")
            more = message.get("more_body", False)
            if body:
                total += len(body)
                if total > bytes_max:
                    raise body_size_error(bytes_max)
                if digest is not None:
                    digest.update(body)
                yield body
        if digest is not None:  # the end may come alone, after the last bytes
            _check_digest(digest.digest(), announced)
        elapsed_s = asyncio.get_running_loop().time() - began_s
        if waited_s or elapsed_s > _LATE_S:
            await self.check_late(elapsed_s)

    async def check_late(self, elapsed_s: float) -> None:
        """Refuse a caller who may no longer do what a request asks for. Called at the end of a late body.

        Args:
            elapsed_s: time since the server began to wait for the body.
        """

    def _content_digests(self) -> list[bytes]:
        """The checksums that ``Content-MD5`` states. Raises `InvalidRequest` for a value that is not an MD5."""
        digests = []
        for key, value in self.scope["headers"]:
            if key == b"content-md5":
                try:
                    digests.append(b64decode(value.strip(), validate=True))
                except binascii.Error:
                    digests.append(b"")
                if len(digests[-1]) != _MD5_BYTES:
                    raise InvalidRequest(
                        "The Content-MD5 is not an MD5: send its 16 bytes as base64, or leave the header out.",
                        kind="invalid_header",
                    )
        return digests

    async def _next_message(self, *, received_bytes: int, waited_s: float) -> tuple[Message, float]:
        """The next piece of a body, within a time limit: its sender holds a connection, and perhaps a thread.

        Args:
            waited_s: the wait for the earlier pieces. Only time spent waiting for the sender counts: a slow store, or
                an upload that waits for others, is not the sender's fault.

        Returns:
            The piece, and `waited_s` plus the wait for the piece.
        """
        has_piece = self.scope.get(HAS_PIECE)
        if has_piece is not None and has_piece():  # a small body comes with its head: no timer is needed
            return await self.receive(), waited_s
        options, clock = self.serving.options, asyncio.get_running_loop()
        began_s = clock.time()
        left_s = options.stalled_s + received_bytes / options.body_bytes_per_s_min - waited_s
        try:
            async with asyncio.timeout(min(left_s, options.stalled_s)):
                message = await self.receive()
        except TimeoutError as error:
            raise InvalidRequest(
                f"The body was too slow: no piece of it came for {options.stalled_s:g} s, or less than "
                f"{options.body_bytes_per_s_min:,} bytes a second of all of it. Send it again.",
                kind="stalled",
            ) from error
        return message, waited_s + clock.time() - began_s

    def _check_encoding(self) -> None:
        """Refuse a compressed body: its content could be any number of times larger."""
        for key, value in self.scope["headers"]:
            if key == b"content-encoding":
                text = header_text(value)
                if not {word.strip().lower() for word in text.split(",")} <= self.encodings:
                    raise InvalidRequest(
                        f"The body has the Content-Encoding {format_value(text)}, which is not decoded: send it as it "
                        "is, without this header.",
                        kind="encoded_body",
                    )

    async def body(self, *, bytes_max: int) -> bytes:
        """The whole body. Raises `InvalidRequest` (``encoded_body``) for one that is compressed; as `chunks`."""
        self._check_encoding()
        pieces = [piece async for piece in self.chunks(bytes_max=bytes_max)]
        return pieces[0] if len(pieces) == 1 else b"".join(pieces)

    async def read(self, kind: type[B], *, default: B | None = None, bytes_max: int | None = None) -> B:
        """The JSON body as a struct.

        Args:
            default: the value of an empty body; None: it may not be empty.
            bytes_max: most bytes of the body; None: `HttpOptions.json_bytes_max`.

        Raises:
            InvalidRequest: the body is not JSON, lacks a field, or a field has another type.
        """
        raw = await self.body(bytes_max=bytes_max or self.serving.options.json_bytes_max)
        if default is not None and not raw.strip():
            return default
        try:
            return decode_json(raw, kind)
        except msgspec.ValidationError as error:
            raise InvalidRequest(f"The body does not have the expected form: {error}.", kind="invalid_body") from error
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            raise InvalidRequest(f"The body is not valid JSON: {error}.", kind="invalid_body") from error

    async def run(self, effort: Effort, function: Callable[[], R]) -> R:
        """Run a call in the pool for its effort, or inline."""
        pools = self.serving.pools
        if effort == "look":
            return await self.look(function)
        return await run_in({"write": pools.quick, "compute": pools.heavy, "long": pools.transfer}[effort], function)

    async def look(self, function: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
        """Run a short read: inline where its data is on this machine, else in the pool for calls that wait."""
        if self.serving.reads_inline:
            return function(*args, **kwargs)
        return await run_in(self.serving.pools.quick, function, *args, **kwargs)

    async def quick(self, function: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
        """Run a call that waits for a store or a disk, in the pool for such calls."""
        return await run_in(self.serving.pools.quick, function, *args, **kwargs)

    async def heavy(self, function: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
        """Run a call that computes, in the pool for such calls."""
        return await run_in(self.serving.pools.heavy, function, *args, **kwargs)

    async def transfer(self, function: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
        """Run a call that moves a large body, in the pool for such calls."""
        return await run_in(self.serving.pools.transfer, function, *args, **kwargs)

    async def upload(self, chunks: AsyncIterator[bytes], *, into: Callable[[Iterator[Buffer]], R]) -> R:
        """Hand a large body to a call that takes an iterator: `lakebed.http.streaming.upload`."""
        options, pools = self.serving.options, self.serving.pools
        return await upload(chunks, into=into, slots=pools.uploads, piece_bytes=options.chunk_bytes)

    async def download(self, open_chunks: Callable[[], Iterator[R]]) -> AsyncGenerator[R, None]:
        """Pieces of an iterator that blocks: `lakebed.http.streaming.download`."""
        return await download(open_chunks, pool=self.serving.pools.transfer)


def parse_query(scope: Scope) -> list[tuple[str, str]]:
    """Names and values of a query, decoded. Raises `InvalidRequest` (``invalid_query``)."""
    try:
        raw = scope["query_string"].decode("ascii")
        return parse_qsl(raw, keep_blank_values=True, errors="strict", max_num_fields=QUERY_FIELDS_MAX)
    except ValueError as error:  # not UTF-8 after unquoting, not ASCII, or too many fields
        raise InvalidRequest(
            "The query cannot be decoded: encode its values as UTF-8 with percent signs.", kind="invalid_query"
        ) from error


def _check_digest(digest: bytes, announced: Iterable[bytes]) -> None:
    for header_digest in announced:
        if header_digest != digest:
            raise InvalidRequest(
                f"The body has the MD5 {digest.hex()}, but its Content-MD5 states {header_digest.hex()}: it was "
                "changed on its way, or the header is of another body. Send both again.",
                kind="body_differs",
            )


def body_size_error(bytes_max: int) -> InvalidRequest:
    """The error of a body that is too large."""
    return InvalidRequest(f"The body is larger than {bytes_max:,} bytes, the limit of this call.", kind="too_large")
