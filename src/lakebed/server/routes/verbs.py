"""The operations of lakebed's own clients: those that lakeFS's interface lacks, or for which it returns less.

Owns: one endpoint for each verb of `lakebed.repo.verbs`, and three for what is not a message: `put` and `read` of
objects' bytes, and `stage_many` of columns. Invariant: an endpoint decodes a verb and runs it. It decides nothing
except the author.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from functools import partial
from typing import Any, Final, TypeVar

import msgspec
from starlette.responses import Response

from lakebed.decoding import decode_json
from lakebed.errors import Conflict, InvalidRequest
from lakebed.http.declaration import Parameter, Routes
from lakebed.http.errors import forbidden
from lakebed.http.replies import StreamedResponse, empty, json
from lakebed.http.streaming import prepend, whole_or_stream
from lakebed.repo.branch import Branch
from lakebed.repo.model.columns import StageRow, table_of
from lakebed.repo.model.entry import address_ulid
from lakebed.repo.model.model import Entry
from lakebed.repo.model.names import check_branch_name, deletion_error
from lakebed.repo.objects import data
from lakebed.repo.records.context import RepositoryContext
from lakebed.repo.repositories import local_catalog
from lakebed.repo.transport.transport import LocalTransport, Put
from lakebed.repo.verbs import CATALOG_VERBS, VERBS
from lakebed.repo.verbs.message import REPOSITORY_ID_HEADER, Described, Verb
from lakebed.repo.verbs.reading import Stat
from lakebed.repo.verbs.repositories import CatalogVerb, CreateRepository
from lakebed.server.auth import check_bare, check_role
from lakebed.server.routes.entries import reply_with_found
from lakebed.server.routes.parameters import OBJECT_PATH
from lakebed.server.site import RepositoryCall

VERB_ROUTES: Final = Routes[RepositoryCall]("lakebed")

M = TypeVar("M", bound=Described)

_ONE: Final = "/repositories/{repository}/verbs/"
_ALL: Final = "/verbs/"
_LINE_BYTES_MAX: Final = 1 << 20
"""Longest first line of `put`, with a path and metadata."""
_BRANCH: Final = Parameter("branch", "The branch.", required=True)
_OPENED: Final = Parameter(
    REPOSITORY_ID_HEADER, "The id of the repository that is meant: 404 if another one has its name.", place="header"
)


def _reply(kind: type[Described], result: object) -> Response:
    """Encode the reply of a verb in the thread that ran it: a plan of a million objects must not block the loop."""
    return empty() if kind.gives is None else json(result)


def _author(call: RepositoryCall, named: str | None) -> str:
    """Return the author of a change: the access key, unless an administrator names another author."""
    if not named or named == call.committer:
        return call.committer
    if not call.caller.may("admin"):
        raise forbidden(
            f"The access key {call.committer} may not name {named!r} as the author: leave it out, or use a key with "
            "the role admin."
        )
    return named


async def _open(call: RepositoryCall) -> RepositoryContext:
    """Return the repository that the path names, if it is the one that the client has opened.

    Raises `NotFound`, also if another repository has its name now.
    """
    context = await call.context()
    repository_id = call.header(REPOSITORY_ID_HEADER.encode())
    if repository_id is not None and repository_id != context.record.uid:
        raise deletion_error(context.name)
    return context


async def _read(call: RepositoryCall, kind: type[M]) -> M:
    """Decode the message of a request, and set its author."""
    bytes_max = call.site.options.stage_bytes_max if kind.is_large else None
    verb = (await call.read(kind, bytes_max=bytes_max)).with_author(partial(_author, call))
    call.subject = verb.subject()
    return verb


def _declare(kind: type[Verb[Any]]) -> None:
    """Declare the endpoint of a verb of one repository."""

    async def perform(call: RepositoryCall) -> Response:
        verb = await _read(call, kind)
        local = {"storage_options": call.site.imports.storage_options} if kind.reads_other_stores else {}
        with verb.room():  # also around the lookup of the repository
            context = await _open(call)
            return await call.run(kind.effort, lambda: _reply(kind, LocalTransport(context).call(verb, **local)))

    _register(kind, _ONE, perform)


def _declare_of_all(kind: type[CatalogVerb[Any]]) -> None:
    """Declare the endpoint of a verb of all repositories. A verb that changes a repository needs its role there."""

    async def perform(call: RepositoryCall) -> Response:
        verb = await _read(call, kind)
        principal, catalog = call.caller, local_catalog(call.site.repositories)
        if kind.changes:
            check_role(principal, needed=kind.role, repository=call.subject)
        if isinstance(verb, CreateRepository) and verb.bare:
            check_bare(principal)
        return await call.run(kind.effort, lambda: _reply(kind, verb.run(catalog, principal.sees)))

    _register(kind, _ALL, perform)


def _register(kind: type[Described], place: str, perform: Callable[[RepositoryCall], Awaitable[Response]]) -> None:
    perform.__doc__ = kind.summary
    words = kind.verb_name.split("_")
    VERB_ROUTES.add(
        "POST",
        place + kind.verb_name,
        "verb" + "".join(word.capitalize() for word in words) + ("Repositories" if place == _ALL else ""),
        needs=kind.role,
        takes=kind,
        # A reply that is only a text is JSON too.
        gives={204: None} if kind.gives is None else {200: msgspec.Raw if kind.gives is str else kind.gives},
        parameters=(_OPENED,) if place == _ONE else (),
        audited=not kind.changes_nothing,
        frees_space=kind.frees_space,
    )(perform)


for _kind in VERBS.values():
    _declare(_kind)
for _of_all in CATALOG_VERBS.values():
    _declare_of_all(_of_all)


@VERB_ROUTES.add(
    "POST",
    _ONE + "put",
    "verbPut",
    needs="write",
    takes=bytes,
    parameters=(
        _OPENED,
        _BRANCH,
        Parameter("only_ask", "Only check whether the object would be accepted.", kind="boolean"),
    ),
)
async def put(call: RepositoryCall) -> Entry | None:
    """Write an object: a line of JSON with path, content_type, metadata and only_if_absent, then the bytes."""
    name, only_ask = call.required("branch"), call.flag("only_ask")
    chunks = call.chunks(bytes_max=call.site.options.object_bytes_max)
    line, rest = await _first_line(chunks)
    try:
        verb = decode_json(line, Put)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise InvalidRequest(f"The body has no line of JSON before the bytes: {error}.", kind="invalid_body") from error
    transport, branch = LocalTransport(await _open(call)), check_branch_name(name)
    if only_ask:
        if verb.path is not None:
            await call.quick(transport.check_put, branch, verb)
        return None
    store = partial(transport.put, branch, verb)
    body, rest_of_body = await whole_or_stream(rest, bytes_max=call.site.options.small_object_bytes)
    if rest_of_body is None:
        return await call.quick(store, body)
    return await call.upload(rest_of_body, into=store)


async def _first_line(chunks: AsyncIterator[bytes]) -> tuple[bytes, AsyncIterator[bytes]]:
    """Return the bytes before the first line feed, and an iterator of all bytes after it."""
    buffer = bytearray()
    async for chunk in chunks:
        buffer += chunk
        position = buffer.find(b"\n", max(0, len(buffer) - len(chunk)))
        if position >= 0:
            return bytes(buffer[:position]), prepend([bytes(buffer[position + 1 :])], chunks)
        if len(buffer) > _LINE_BYTES_MAX:
            break
    raise InvalidRequest("The body has no line of JSON before the bytes.", kind="invalid_body")


@VERB_ROUTES.add(
    "GET",
    _ONE + "read",
    "verbRead",
    needs="read",
    gives={200: bytes},
    parameters=(
        _OPENED,
        Parameter("ref", "The reference.", required=True),
        OBJECT_PATH,
        Parameter("start", "The first byte; absent: the whole object.", kind="integer"),
        Parameter("end", "The byte after the last.", kind="integer"),
        Parameter("address", "The address of the object to read, whatever the path holds now."),
        Parameter("size", "Its size.", kind="integer"),
    ),
)
async def read(call: RepositoryCall) -> Response:
    """Read an object or a half-open range of it, at a path or at an address that the path had."""
    ref, path = call.required("ref"), call.required("path")
    address = call.query.get("address")
    size_bytes = call.integer("size", default=0, low=0, high=_SIZE_MAX)
    byte_range = None
    if "start" in call.query or "end" in call.query:
        byte_range = (
            call.integer("start", default=0, low=-_SIZE_MAX, high=_SIZE_MAX),
            call.integer("end", default=_SIZE_MAX, low=-_SIZE_MAX, high=_SIZE_MAX),
        )
    context = await _open(call)

    async def reply(entry: Entry) -> Response:
        start, end = (0, entry.size_bytes) if byte_range is None else byte_range
        count = max(0, min(end, entry.size_bytes) - start)
        headers = {"content-type": data.CONTENT_TYPE, "x-content-type-options": "nosniff"}
        if count <= call.site.options.small_object_bytes:
            return Response(await call.read_small(context, entry, byte_range=byte_range), headers=headers)
        chunk_bytes = call.site.options.chunk_bytes
        chunks = await call.download(
            lambda: data.stream(context, entry, byte_range=byte_range, chunk_bytes=chunk_bytes)
        )
        return StreamedResponse(chunks, 200, {**headers, "content-length": str(count)})

    return await reply_with_found(call, lambda: _find_entry(context, ref, path, address, size_bytes), reply)


_SIZE_MAX: Final = (1 << 53) - 1


def _find_entry(context: RepositoryContext, ref: str, path: str, address: str | None, size_bytes: int) -> Entry:
    """Return the entry at a path; with an address of ours, its object, so that a reader continues with it."""
    if address is not None and address_ulid(address) is not None:
        return Entry(address, size_bytes, "", 0)
    entry = Stat(ref=ref, path=path).run(context)
    if address is not None and entry.address != address:
        raise Conflict(
            f"{path!r} at {ref} is not the object that was opened: open it again.",
            kind="object_changed",
            path=path,
        )
    return entry


@VERB_ROUTES.add(
    "POST",
    _ONE + "stage_many",
    "verbStageMany",
    needs="write",
    takes=list[StageRow],
    parameters=(_OPENED, _BRANCH),
    audited=True,
)
async def stage_many(call: RepositoryCall) -> int:
    """Stage many objects whose bytes exist, in one atomic change: JSON rows, or an Arrow stream of columns."""
    name = call.required("branch")
    call.subject = name
    body = await call.body(bytes_max=call.site.options.stage_bytes_max)
    branch = Branch(LocalTransport(await _open(call)), name)
    content_type = call.header(b"content-type") or ""
    return await call.heavy(_stage, branch, body, content_type)


def _stage(branch: Branch, body: bytes, content_type: str) -> int:
    return branch.stage_many(table_of(body, content_type=content_type))
