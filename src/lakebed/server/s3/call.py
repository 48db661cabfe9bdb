"""One request of S3: its bucket and key, the objects that they name, and its body.

Owns: the mapping. Either a bucket is a repository, and a key begins with a reference; or a bucket is
``repository.branch``, and a key is a path. Invariant: a path is decoded once, and never normalised.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from typing import Final, TypeVar
from urllib.parse import unquote_to_bytes

import msgspec
from starlette.types import Receive, Scope
from typing_extensions import Buffer, override

from lakebed.errors import InvalidRequest, NotFound
from lakebed.http.streaming import whole_or_stream
from lakebed.repo.records.context import RepositoryContext
from lakebed.repo.references.refs import resolve
from lakebed.server.auth import check_role
from lakebed.server.keys import Principal
from lakebed.server.needs import S3, WHOLE_ROLE
from lakebed.server.s3.body import BodyPlan, decode
from lakebed.server.s3.errors import s3_error
from lakebed.server.s3.signature import HeaderTexts, Pairs
from lakebed.server.s3.xml import XML_BYTES_MAX, Element, XmlError, parse
from lakebed.server.site import RepositoryCall, RepositorySite

R = TypeVar("R")

KEY_BYTES_MAX: Final = 1_024
"""Longest path, as `lakebed.repo.model.names.PATH_BYTES_MAX`. The reference before it does not count."""


class Place(msgspec.Struct, frozen=True):
    """The object or reference that a bucket and a key name.

    Attributes:
        ref: a branch; in the bucket of a repository, any reference; empty: none is named.
        path: the path of the object; empty: the reference itself.
        is_branch_bucket: whether the bucket's name contains the reference.
    """

    repository: str
    ref: str
    path: str
    is_branch_bucket: bool

    def key(self, path: str) -> str:
        """Return the key of another path of the same reference."""
        return path if self.is_branch_bucket else f"{self.ref}/{path}"


def place_of(bucket: str, key: str) -> Place:
    """Return the place that a bucket and a key name."""
    repository, mark, branch = bucket.partition(".")
    if mark:
        return Place(repository, branch, key, is_branch_bucket=True)
    ref, _, path = key.partition("/")
    return Place(repository, ref, path, is_branch_bucket=False)


class Target(msgspec.Struct, frozen=True):
    """The parts of a request's first line.

    Attributes:
        path, raw_path: the whole path, decoded, and as sent.
        pairs: the query, decoded.
    """

    bucket: str
    key: str
    path: str
    raw_path: bytes
    pairs: Pairs


def host_bucket(host: str, *, domains: tuple[str, ...]) -> str:
    """Return the bucket in a host's name, before one of the domains; empty: there is none."""
    name = host.rpartition(":")[0] if ":" in host and not host.endswith("]") else host
    for domain in domains:
        if name.lower().endswith("." + domain.lower()):
            return name[: -len(domain) - 1]
    return ""


def split_path(path: str, *, host: str, domains: tuple[str, ...]) -> tuple[str, str]:
    """Return bucket and key of a path. The bucket may be in the host's name (`host_bucket`)."""
    if bucket := host_bucket(host, domains=domains):
        return bucket, path[1:]
    bucket, _, key = path[1:].partition("/")
    return bucket, key


def is_domain(host: str, *, domains: tuple[str, ...]) -> bool:
    """Whether a host is one of the domains, or a bucket in one of them."""
    name = host.partition(":")[0].lower()
    return any(name == domain.lower() or name.endswith("." + domain.lower()) for domain in domains)


def decode_path(raw: bytes) -> str:
    """Decode the percent signs of a path. Raises `InvalidRequest` (``InvalidURI``)."""
    try:
        return unquote_to_bytes(raw).decode()
    except UnicodeDecodeError as error:
        raise s3_error("InvalidURI", "The path cannot be decoded: encode it as UTF-8 with percent signs.") from error


class S3Call(RepositoryCall):
    """A request of S3.

    Attributes:
        target: its bucket and key.
        place: the place that they name.
        body_plan: the values that its body must match.
    """

    __slots__ = ("_changes", "_operation", "body_plan", "headers", "pairs", "place", "target")

    encodings = RepositoryCall.encodings | {"aws-chunked"}

    def __init__(
        self,
        site: RepositorySite,
        scope: Scope,
        receive: Receive,
        *,
        principal: Principal,
        request_id: str,
        target: Target,
        headers: HeaderTexts,
        body_plan: BodyPlan,
    ) -> None:
        self.target = target
        self.place = place_of(target.bucket, target.key)
        self.headers = headers
        self.body_plan = body_plan
        scope["path_params"] = {"repository": self.place.repository, "branch": self.place.ref}
        super().__init__(site, scope, receive, principal=principal, request_id=request_id)
        self.pairs = dict(target.pairs)
        self._operation = ""
        self._changes = site.keys.changes

    def check_needs(self, operation: str) -> None:
        """Refuse a user who lacks the permissions for the request. `check_key` checks them again later.

        Raises:
            InvalidRequest: kind ``forbidden``.
        """
        self._operation = operation
        place = self.place
        needs = S3.get(operation, WHOLE_ROLE)
        if needs.whole_role:
            check_role(self.caller, needed="admin", repository=place.repository or None)
        names = {"repository": place.repository, "branch": place.ref, "path": place.path}
        for permission in needs.of_request(names, {}):
            self.check(permission)

    def number(self, name: str, *, default: int, high: int) -> int:
        """Return a number >= 0 of the query, at most `high`. Raises ``InvalidArgument``."""
        text = self.pairs.get(name)
        if text is None or text == "":
            return default
        if not (text.isascii() and text.isdigit() and len(text) <= 18):
            raise s3_error("InvalidArgument", f"{name} is a number of at least 0.")
        return min(int(text), high)

    def encoded_chunks(self, *, bytes_max: int) -> AsyncIterator[bytes]:
        """Yield the body as sent. Raises ``MissingContentLength``, ``EntityTooLarge``."""
        if self.header(b"content-length") is None and self.header(b"transfer-encoding") is None:
            raise s3_error("MissingContentLength", "You must provide the Content-Length HTTP header.")
        return self.chunks(bytes_max=bytes_max)

    async def receive_object(
        self,
        store: Callable[[Buffer | Iterator[Buffer]], R],
        finish: Callable[[R], None],
        *,
        store_small: Callable[[Callable[[], Buffer], int], Awaitable[R]] | None = None,
    ) -> R:
        """Store the body of this request.

        Args:
            store: stores the whole body, or its pieces, durably.
            finish: makes a record that refers to it. For a small body one step of the pool calls both functions.
            store_small: does both for a small body, given a function that decodes it and its approximate size in bytes.
        """
        options = self.site.options
        chunks = self.encoded_chunks(bytes_max=options.object_bytes_max)
        body, rest = await whole_or_stream(chunks, bytes_max=options.small_object_bytes)
        if rest is None:

            def decode_whole() -> Buffer:
                pieces = list(decode([body], self.body_plan))
                return pieces[0] if len(pieces) == 1 else b"".join(pieces)

            def store_whole() -> R:
                entry = store(decode_whole())
                finish(entry)
                return entry

            if store_small is not None:
                return await store_small(decode_whole, len(body))
            return await self.quick(store_whole)
        entry = await self.upload(rest, into=lambda pieces: store(decode(pieces, self.body_plan)))
        await self.quick(self.check_key)  # the upload may have taken hours
        await self.quick(finish, entry)
        return entry

    def check_key(self) -> None:
        """Refuse a caller whose permissions have ended: since the request began a key was revoked, or a policy changed.

        Cost: 1 GET; 2 for a user.
        """
        self.principal = self.site.keys.holder(self.caller.id)[0]
        if self._operation:
            self.check_needs(self._operation)

    @override
    async def check_late(self, elapsed_s: float) -> None:
        if elapsed_s > self.site.options.key_recheck_s or self.site.keys.changes != self._changes:
            await self.quick(self.check_key)

    async def read_xml(self, root: str) -> Element:
        """Parse the body as XML. Raises ``MalformedXML``, ``MaxMessageLengthExceeded``."""
        try:
            raw = await self.body(bytes_max=XML_BYTES_MAX)
        except InvalidRequest as error:
            if error.kind == "encoded_body":
                raise s3_error("MalformedXML", error.message) from error
            if error.kind != "too_large":
                raise
            raise s3_error("MaxMessageLengthExceeded", f"The XML is larger than {XML_BYTES_MAX:,} bytes.") from error
        body = b"".join(decode([raw], self.body_plan))
        try:
            element = parse(body)
        except XmlError as error:
            raise s3_error("MalformedXML", f"The XML is not well-formed: {error}.") from error
        if element.name != root:
            raise s3_error("MalformedXML", f"The XML is a {element.name}, and this operation takes a {root}.")
        return element


def explain_missing_branch(context: RepositoryContext, place: Place, error: NotFound | InvalidRequest) -> Exception:
    """Return the error of a write to a place that is not a branch: either a read-only reference, or none."""
    try:
        resolve(context, place.ref)
    except (NotFound, InvalidRequest):
        if place.is_branch_bucket or error.kind == "branch_not_found":
            return s3_error("NoSuchBucket", f"Repository {place.repository} has no branch {place.ref!r}.")
        return error
    return s3_error(
        "AccessDenied",
        f"{place.ref!r} of repository {place.repository} is no branch: tags and commits are read-only.",
    )
