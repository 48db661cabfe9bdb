"""Objects: look at, read, write, delete, list, copy.

What is called most is here, and its route is tried first. Bytes up to `ServerOptions.small_object_bytes` go through
whole, in one step of the pool; larger ones as streams (`lakebed.http.streaming`).
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import dataclass
from email.utils import formatdate
from typing import Final

import msgspec
from starlette.responses import Response

from lakebed.errors import AlreadyExists, Conflict, InvalidRequest, LakebedError, NotFound
from lakebed.http.declaration import Parameter, Routes
from lakebed.http.multipart import FORM, form_content
from lakebed.http.pages import Page, PageRequest, page_of
from lakebed.http.ranges import content_range, parse_range
from lakebed.http.replies import StreamedResponse, empty, json, printable
from lakebed.key_value.port import KeyValueSnapshot
from lakebed.repo import data
from lakebed.repo.context import RepositoryContext
from lakebed.repo.model import Entry
from lakebed.repo.names import check_path
from lakebed.repo.refs import resolve
from lakebed.repo.staging.view import View, open_view
from lakebed.repo.staging.write import delete, delete_many, stage, stage_if_absent, stage_if_match
from lakebed.server.bodies import (
    ObjectCopyCreation,
    ObjectError,
    ObjectErrorList,
    ObjectStageCreation,
    ObjectStats,
    PathList,
)
from lakebed.server.errors import status_of
from lakebed.server.routes.parameters import (
    AFTER,
    AMOUNT,
    DELIMITER,
    FORCE,
    IF_MATCH,
    IF_NONE_MATCH,
    OBJECT_PATH,
    PREFIX,
    PRESIGN,
    RANGE,
    USER_METADATA,
)
from lakebed.server.routes.shapes import engine_url, object_stats, prefix_stats
from lakebed.server.site import RepositoryCall

__all__ = ["HOT", "OBJECTS", "Condition", "condition_of", "dated", "find_entry", "stage_entry"]

HOT: Final = Routes[RepositoryCall]("objects")
OBJECTS: Final = Routes[RepositoryCall]("objects")

_REF = "/repositories/{repository}/refs/{ref:path}/objects"
_BRANCH = "/repositories/{repository}/branches/{branch}/objects"
_META: Final = b"x-lakefs-meta-"
"""Begins the headers of the user's own metadata."""
_INTERNAL: Final = b"x-lakefs-internal-"
"""Begins the headers of a client's metadata: modification time, permissions and symbolic links of `lakectl local`."""
_INTERNAL_KEY: Final = "::lakefs::"
"""Begins the metadata key of such a header. Clients look for it. Stored: DO NOT CHANGE."""
_ANY_TYPE: Final = data.CONTENT_TYPE

_INLINE_TYPES: Final = frozenset(
    [
        *(f"image/{kind}" for kind in ("jpeg", "jpg", "png", "gif", "webp", "svg+xml")),
        *(f"text/{kind}" for kind in ("plain", "markdown", "x-markdown", "html", "css", "javascript", "xml")),
        *(f"application/{kind}" for kind in ("pdf", "javascript", "json", "xml")),
        *("video/mp4", "video/webm", "audio/mpeg", "audio/wav", "audio/webm"),
    ]
)
"""Content types that a browser may show; objects of other types are saved. Scripts never run: see `_entity_headers`."""


# ---- looking and reading


def find_entry(home: RepositoryContext, ref: str, path: str) -> Entry:
    """What a reference has at a path. Raises `NotFound` (``path_not_found``)."""
    with home.key_value.snapshot() as snapshot, _view(home, ref, snapshot) as view:
        entry = view.get(path)
    if entry is None:
        raise NotFound(f"{ref} of repository {home.name} has nothing at {path!r}.", kind="path_not_found", path=path)
    return entry


def _view(home: RepositoryContext, ref: str, snapshot: KeyValueSnapshot) -> View:
    return open_view(home, resolve(home, ref, snapshot=snapshot), snapshot=snapshot)


@HOT.add(
    "GET",
    _REF + "/stat",
    "statObject",
    needs="read",
    gives={200: ObjectStats},
    parameters=(OBJECT_PATH, USER_METADATA, PRESIGN),
)
async def stat_object(call: RepositoryCall) -> Response:
    """Look at an object."""
    path = call.required("path")
    with_metadata, presign = call.flag("user_metadata", default=True), call.flag("presign")
    home = await call.home()
    entry = await call.look(find_entry, home, call.path["ref"], path)
    if presign and call.site.signs:
        return json(await call.quick(_stats, call, home, path, entry, with_metadata=with_metadata, presign=True))
    return json(_stats(call, home, path, entry, with_metadata=with_metadata, presign=False))


def _stats(
    call: RepositoryCall, home: RepositoryContext, path: str, entry: Entry, *, with_metadata: bool, presign: bool
) -> ObjectStats:
    if not presign:
        return object_stats(path, entry, address=data.physical_url(home, entry), with_metadata=with_metadata)
    expires_in_s = call.site.options.presigned_lifetime_s
    try:
        address = data.signed_get(home, entry, expires_in_s=expires_in_s)
    except InvalidRequest as error:
        if error.kind != "import_not_allowed":
            raise
        # Its bytes may not be read; a listing says so of this one, and shows the others.
        return object_stats(path, entry, address=data.physical_url(home, entry), with_metadata=with_metadata)
    expires_at_s = home.now_ms() // 1000 + expires_in_s
    return object_stats(path, entry, address=address, with_metadata=with_metadata, expires_at_s=expires_at_s)


@HOT.add(
    "GET",
    _REF,
    "getObject",
    needs="read",
    gives={200: bytes, 206: bytes, 302: None, 304: None},
    parameters=(OBJECT_PATH, PRESIGN, RANGE, IF_NONE_MATCH),
)
async def get_object(call: RepositoryCall) -> Response:
    """Read an object, or a range of it."""
    path = call.required("path")
    presign = call.flag("presign")
    home = await call.home()
    entry = await call.look(find_entry, home, call.path["ref"], path)
    if presign and call.site.signs:
        url = await call.quick(data.signed_get, home, entry, expires_in_s=call.site.options.presigned_lifetime_s)
        return Response(status_code=302, headers={"location": url})
    headers = _entity_headers(entry)
    if _unchanged(call, entry):
        return Response(status_code=304, headers=printable(headers))
    span = _span(call, entry)
    start, end = span or (0, entry.size_bytes)
    headers["content-length"] = str(end - start)
    if span is not None:
        headers["content-range"] = content_range(span, size_bytes=entry.size_bytes)
    status = 200 if span is None else 206
    if end - start > call.site.options.small_object_bytes:
        chunk_bytes = call.site.options.chunk_bytes
        chunks = await call.download(lambda: data.stream(home, entry, byte_range=(start, end), chunk_bytes=chunk_bytes))
        return StreamedResponse(chunks, status, printable(headers))
    body = b"" if entry.size_bytes == 0 else await call.quick(data.read, home, entry, byte_range=span)
    return Response(memoryview(body), status, printable(headers))


@HOT.add(
    "HEAD", _REF, "headObject", needs="read", gives={200: None, 206: None, 304: None}, parameters=(OBJECT_PATH, RANGE)
)
async def head_object(call: RepositoryCall) -> Response:
    """Whether an object is there, and its headers."""
    path = call.required("path")
    home = await call.home()
    entry = await call.look(find_entry, home, call.path["ref"], path)
    headers = _entity_headers(entry)
    if _unchanged(call, entry):
        return Response(status_code=304, headers=printable(headers))
    span = _span(call, entry)
    start, end = span or (0, entry.size_bytes)
    headers["content-length"] = str(end - start)
    if span is not None:
        headers["content-range"] = content_range(span, size_bytes=entry.size_bytes)
    return Response(status_code=200 if span is None else 206, headers=printable(headers))


def _entity_headers(entry: Entry) -> dict[str, str]:
    return {
        "content-type": entry.content_type or _ANY_TYPE,
        "etag": f'"{entry.checksum}"',
        "last-modified": formatdate(entry.modified_ms / 1000, usegmt=True),
        "accept-ranges": "bytes",
        "content-disposition": "inline" if entry.content_type in _INLINE_TYPES else "attachment",
        # Another key, or none, may use the same browser or proxy next.
        "cache-control": "no-store, must-revalidate",
        "expires": "0",
        # What users stored is data, not pages of this server: no browser may guess, or run what is in it.
        "x-content-type-options": "nosniff",
        "x-frame-options": "SAMEORIGIN",
        "content-security-policy": "default-src 'none'; sandbox",
    }


def _unchanged(call: RepositoryCall, entry: Entry) -> bool:
    known = call.header(b"if-none-match")
    if known is None:
        return False
    tags = {tag.strip().removeprefix("W/").strip('"') for tag in known.split(",")}
    return "*" in tags or entry.checksum in tags


def _span(call: RepositoryCall, entry: Entry) -> tuple[int, int] | None:
    header = call.header(b"range")
    if header is None:
        return None
    condition = call.header(b"if-range")
    if condition is not None and condition.strip().strip('"') != entry.checksum:
        return None
    return parse_range(header, size_bytes=entry.size_bytes)


# ---- writing


@HOT.add(
    "POST",
    _BRANCH,
    "uploadObject",
    needs="write",
    takes=bytes,
    body_required=False,
    gives={201: ObjectStats},
    parameters=(OBJECT_PATH, IF_MATCH, IF_NONE_MATCH, FORCE, Parameter("storageClass", "Not looked at.")),
)
async def upload_object(call: RepositoryCall) -> Response:
    """Write an object: a raw body, or a form whose field `content` has it; `x-lakefs-meta-*` headers go with it."""
    path, branch = call.required("path"), call.path["branch"]
    check_path(path, writing=True)  # before a byte is read
    condition = condition_of(call)
    metadata = _metadata_of(call)
    home = await call.home(force=call.flag("force"))
    content_type = call.header(b"content-type") or _ANY_TYPE
    chunks = call.chunks(bytes_max=call.site.options.object_bytes_max)
    if content_type.startswith(FORM):
        chunks, named = await form_content(chunks, content_type=content_type)
        content_type = named or _ANY_TYPE
    body, rest = await _begun(chunks, bytes_max=call.site.options.small_object_bytes)
    if rest is None:

        def store() -> Entry:
            entry = data.upload(home, body, content_type=content_type, metadata=metadata)
            stage_entry(home, branch, path, entry, condition=condition)
            return entry

        entry = await call.quick(store)
    else:
        if condition is not None:  # ask before the bytes come in; asked again when they are staged
            await call.quick(_refuse_early, home, branch, path, condition)
        entry = await call.upload(
            rest,
            into=lambda pieces: data.upload(home, pieces, content_type=content_type, metadata=metadata),
        )
        await call.quick(stage_entry, home, branch, path, entry, condition=condition)
    return json(object_stats(path, entry, address=data.physical_url(home, entry)), 201)


def _metadata_of(call: RepositoryCall) -> dict[str, str]:
    """The metadata in a request's headers; of a header that repeats, the first counts."""
    found: dict[str, str] = {}
    for name, value in call.scope["headers"]:
        if name.startswith(_META):
            found.setdefault(_text(name[len(_META) :]), _text(value))
        elif name.startswith(_INTERNAL):
            found.setdefault(_INTERNAL_KEY + _text(name[len(_INTERNAL) :]), _text(value))
    return found


def _text(raw: bytes) -> str:
    """A header as text: Go's clients write UTF-8, Python's Latin-1."""
    try:
        return raw.decode()
    except UnicodeDecodeError:
        return raw.decode("latin-1")


async def _begun(chunks: AsyncIterator[bytes], *, bytes_max: int) -> tuple[bytes, AsyncIterator[bytes] | None]:
    """A body of at most `bytes_max` whole; of a larger one nothing, and an iterator of all of it."""
    held: list[bytes] = []
    size = 0
    async for chunk in chunks:
        held.append(chunk)
        size += len(chunk)
        if size > bytes_max:
            return b"", _chained(held, chunks)
    return held[0] if len(held) == 1 else b"".join(held), None


async def _chained(held: list[bytes], rest: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    first = b"".join(held)
    held.clear()
    yield first
    del first
    async for chunk in rest:
        yield chunk


@dataclass(frozen=True, slots=True)
class Condition:
    """What must be at a path before it is written.

    Attributes:
        checksums: one of these; None: any object. Only where `absent` is false.
        absent: nothing.
    """

    checksums: frozenset[str] | None = None
    absent: bool = False

    def holds(self, entry: Entry | None) -> bool:
        """Whether this entry, None: none, is what must be there."""
        if entry is None or self.absent:
            return entry is None and self.absent
        return self.checksums is None or entry.checksum in self.checksums


def condition_of(call: RepositoryCall) -> Condition | None:
    """The condition that ``If-Match`` or ``If-None-Match: *`` state; None: there is none."""
    match, none_match = call.header(b"if-match"), call.header(b"if-none-match")
    if match is not None and none_match is not None:
        raise InvalidRequest("The upload has both If-Match and If-None-Match: give one of them.", kind="invalid_header")
    if match is not None:
        return Condition(call.etags(b"if-match"))
    if none_match is None:
        return None
    if none_match.strip() != "*":
        raise InvalidRequest("If-None-Match of an upload can only be *: write if nothing is there.", kind="unsupported")
    return Condition(absent=True)


def _refuse_early(home: RepositoryContext, branch: str, path: str, condition: Condition) -> None:
    entry = None
    try:
        entry = find_entry(home, branch, path)
    except NotFound as error:
        if error.kind != "path_not_found":
            raise
    if not condition.holds(entry):
        raise _unmet(path, condition)


def _unmet(path: str, condition: Condition) -> InvalidRequest:
    sentence = (
        f"There is an object at {path!r} already."
        if condition.absent
        else f"The object at {path!r} is not the one that If-Match names: read its ETag again."
    )
    return InvalidRequest(sentence, kind="precondition_failed", path=path)


def stage_entry(
    home: RepositoryContext, branch: str, path: str, entry: Entry, *, condition: Condition | None = None
) -> None:
    """Give a path of a branch an entry. Raises `InvalidRequest` (``precondition_failed``): the condition is not met."""
    try:
        if condition is None:
            stage(home, branch=branch, path=path, entry=entry)
        elif condition.absent:
            stage_if_absent(home, branch=branch, path=path, entry=entry)
        else:
            stage_if_match(home, branch=branch, path=path, entry=entry, matches=condition.holds)
    except AlreadyExists as error:
        assert condition is not None
        raise _unmet(path, condition) from error
    except Conflict as error:
        if error.kind != "path_changed" or condition is None:
            raise
        raise _unmet(path, condition) from error


def dated(entry: Entry, mtime_s: int | None) -> Entry:
    """The entry with the modification time that a client gives, in Unix seconds; None: as it is."""
    return entry if mtime_s is None else msgspec.structs.replace(entry, modified_ms=mtime_s * 1000)


@HOT.add("DELETE", _BRANCH, "deleteObject", needs="write", gives={204: None}, parameters=(OBJECT_PATH, FORCE))
async def delete_object(call: RepositoryCall) -> Response:
    """Delete an object; one that is not there is fine."""
    path = call.required("path")
    home = await call.home(force=call.flag("force"))
    await call.quick(delete, home, branch=call.path["branch"], path=path)
    return empty()


@OBJECTS.add(
    "POST",
    _BRANCH + "/delete",
    "deleteObjects",
    needs="write",
    takes=PathList,
    gives={200: ObjectErrorList},
    parameters=(FORCE,),
)
async def delete_objects(call: RepositoryCall) -> Response:
    """Delete up to a thousand objects; those that are not there are fine."""
    body = await call.read(PathList)
    home = await call.home(force=call.flag("force"))
    return json(await call.quick(_delete_all, home, call.path["branch"], body.paths))


def _delete_all(home: RepositoryContext, branch: str, paths: list[str]) -> ObjectErrorList:
    errors: list[ObjectError] = []
    good: list[str] = []
    for path in paths:
        try:
            check_path(path, writing=True)
        except LakebedError as error:
            errors.append(ObjectError(status_of(error), error.message, path))
        else:
            good.append(path)
    delete_many(home, branch=branch, paths=good)
    return ObjectErrorList(errors)


@OBJECTS.add(
    "POST",
    _BRANCH + "/copy",
    "copyObject",
    needs="write",
    takes=ObjectCopyCreation,
    gives={201: ObjectStats},
    parameters=(Parameter("dest_path", "Where the copy goes.", required=True),),
)
async def copy_object(call: RepositoryCall) -> Response:
    """Copy an object inside a repository: its bytes, not only its entry."""
    target = call.required("dest_path")
    body = await call.read(ObjectCopyCreation)
    home, branch = await call.home(force=bool(body.force)), call.path["branch"]
    check_path(target, writing=True)

    def store() -> Entry:
        entry = data.copy(home, find_entry(home, body.src_ref or branch, body.src_path))
        stage_entry(home, branch, target, entry)
        return entry

    entry = await call.transfer(store)
    return json(object_stats(target, entry, address=data.physical_url(home, entry)), 201)


@HOT.add(
    "PUT",
    _BRANCH,
    "stageObject",
    needs="write",
    takes=ObjectStageCreation,
    gives={201: ObjectStats},
    parameters=(OBJECT_PATH,),
)
async def stage_object(call: RepositoryCall) -> Response:
    """Stage an object whose bytes are already on a store."""
    path = call.required("path")
    body = await call.read(ObjectStageCreation)
    home, branch = await call.home(force=bool(body.force)), call.path["branch"]

    def store() -> Entry:
        entry = data.linked(
            home,
            engine_url(body.physical_address, root_url=call.site.repositories.url),
            checksum=body.checksum.strip('"'),
            content_type=body.content_type or _ANY_TYPE,
            metadata=body.metadata,
        )
        entry = dated(entry, body.mtime)
        stage_entry(home, branch, path, entry)
        return entry

    entry = await call.quick(store)
    return json(object_stats(path, entry, address=data.physical_url(home, entry)), 201)


# ---- listing


@OBJECTS.add(
    "GET",
    _REF + "/ls",
    "listObjects",
    needs="read",
    gives={200: Page[ObjectStats]},
    parameters=(PREFIX, AFTER, AMOUNT, DELIMITER, USER_METADATA, PRESIGN),
)
async def list_objects(call: RepositoryCall) -> Response:
    """List objects and, with a delimiter, common prefixes."""
    page, delimiter = call.page(), call.query.get("delimiter", "")
    with_metadata, presign = call.flag("user_metadata", default=True), call.flag("presign") and call.site.signs
    home = await call.home()
    ref = call.path["ref"]
    return await call.heavy(
        _list, call, home, ref, page, delimiter=delimiter, with_metadata=with_metadata, presign=presign
    )


def _list(
    call: RepositoryCall,
    home: RepositoryContext,
    ref: str,
    page: PageRequest,
    *,
    delimiter: str,
    with_metadata: bool,
    presign: bool,
) -> Response:
    with home.key_value.snapshot() as snapshot, _view(home, ref, snapshot) as view:
        rows = list(view.list(page.prefix, after=page.after, delimiter=delimiter, amount=page.probe))
    return json(
        page_of(
            rows,
            amount=page.amount,
            key=lambda row: row.path,
            row=lambda row: (
                prefix_stats(row.path)
                if row.entry is None
                else _stats(call, home, row.path, row.entry, with_metadata=with_metadata, presign=presign)
            ),
        )
    )
