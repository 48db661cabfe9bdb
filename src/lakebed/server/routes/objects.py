"""Objects: stat, read, write, delete, list, copy.

These are the most frequent calls, and their routes are tried first. Objects of up to
`ServerOptions.small_object_bytes` are handled as a whole, in one step of the pool, or at once if their bytes are in
memory. Larger objects are streamed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import pyarrow as pa
from starlette.responses import Response

from lakebed.errors import InvalidRequest, LakebedError
from lakebed.http.call import header_text
from lakebed.http.conditions import is_wanted
from lakebed.http.declaration import Parameter, Routes
from lakebed.http.multipart import FORM, form_content
from lakebed.http.pages import Page, PageRequest, join_page, page_of_many
from lakebed.http.ranges import content_range, parse_range
from lakebed.http.replies import StreamedResponse, encode, encode_each, format_date, json, printable
from lakebed.http.streaming import whole_or_stream
from lakebed.repo.heads.uploads import SmallUpload
from lakebed.repo.heads.write import delete, delete_many, update_metadata
from lakebed.repo.model.model import Entry
from lakebed.repo.model.names import check_path, check_prefix
from lakebed.repo.objects import data
from lakebed.repo.objects.data import CONTENT_TYPE
from lakebed.repo.records.context import RepositoryContext
from lakebed.repo.records.protection import check_writable
from lakebed.repo.references.branches import load_branch
from lakebed.repo.staging.listing import Listed, lines_of, page_of, text_of
from lakebed.repo.staging.view import View, read_reference
from lakebed.server.bodies import (
    ObjectCopyCreation,
    ObjectError,
    ObjectErrorList,
    ObjectStageCreation,
    ObjectStats,
    PathList,
    UnderlyingProperties,
    UserMetadataUpdate,
)
from lakebed.server.errors import status_of
from lakebed.server.places import engine_url
from lakebed.server.routes.entries import (
    condition_of,
    find_entry,
    look_up,
    refuse_early,
    reply_with_found,
    stage_entry,
    with_mtime,
)
from lakebed.server.routes.parameters import (
    AFTER,
    AMOUNT,
    CONDITIONS,
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
from lakebed.server.routes.shapes import listed_stats, object_stats, prefix_stats
from lakebed.server.site import RepositoryCall
from lakebed.texts import clamp_to_calendar

HOT: Final = Routes[RepositoryCall]("objects")
OBJECTS: Final = Routes[RepositoryCall]("objects")

_REF = "/repositories/{repository}/refs/{ref:path}/objects"
_BRANCH = "/repositories/{repository}/branches/{branch}/objects"
_META: Final = b"x-lakefs-meta-"
"""Prefix of the headers of the user's own metadata."""
_INTERNAL: Final = b"x-lakefs-internal-"
"""Prefix of the headers of a client's metadata: modification time, permissions and symlinks of `lakectl local`."""
_INTERNAL_KEY: Final = "::lakefs::"
"""Prefix of the metadata key of such a header. Clients look for it. Stored: DO NOT CHANGE."""
_ANY_TYPE: Final = data.CONTENT_TYPE


@HOT.add("GET", _REF + "/stat", "statObject", needs="read", parameters=(OBJECT_PATH, USER_METADATA, PRESIGN))
async def stat_object(call: RepositoryCall) -> ObjectStats:
    """Get the metadata of an object."""
    path = call.required("path")
    with_metadata, presign = call.flag("user_metadata", default=True), call.flag("presign")
    context = await call.context(is_proven_later=True)
    entry = await look_up(call, context, call.path["ref"], path)
    if presign and call.site.signs:
        return await call.quick(_stats, call, context, path, entry, with_metadata=with_metadata, presign=True)
    return _stats(call, context, path, entry, with_metadata=with_metadata, presign=False)


def _stats(
    call: RepositoryCall, context: RepositoryContext, path: str, entry: Entry, *, with_metadata: bool, presign: bool
) -> ObjectStats:
    if not presign:
        return object_stats(path, entry, address=data.physical_url(context, entry), with_metadata=with_metadata)
    expires_in_s = call.site.options.presigned_lifetime_s
    try:
        address = data.sign_get(context, entry, expires_in_s=expires_in_s)
    except InvalidRequest as error:
        if error.kind != "import_not_allowed":
            raise
        # The caller may not read its bytes. Show its address unsigned, so that a listing does not fail.
        return object_stats(path, entry, address=data.physical_url(context, entry), with_metadata=with_metadata)
    expires_at_s = context.now_ms() // 1000 + expires_in_s
    return object_stats(path, entry, address=address, with_metadata=with_metadata, expires_at_s=expires_at_s)


@HOT.add(
    "GET",
    _REF,
    "getObject",
    needs="read",
    gives={200: bytes, 206: bytes, 302: None, 304: None},
    parameters=(OBJECT_PATH, PRESIGN, RANGE, *CONDITIONS),
)
async def get_object(call: RepositoryCall) -> Response:
    """Read an object, or a range of it."""
    path = call.required("path")
    presign = call.flag("presign")
    context = await call.context(is_proven_later=True)

    async def reply(entry: Entry) -> Response:
        if presign and call.site.signs:
            url = await call.quick(data.sign_get, context, entry, expires_in_s=call.site.options.presigned_lifetime_s)
            return Response(status_code=302, headers={"location": url})
        part = part_of(call, entry)
        if part.status == 304:
            return Response(status_code=304, headers=part.headers)
        if part.size_bytes > call.site.options.small_object_bytes:
            chunk_bytes = call.site.options.chunk_bytes
            byte_range = part.span or (0, entry.size_bytes)
            chunks = await call.download(
                lambda: data.stream(context, entry, byte_range=byte_range, chunk_bytes=chunk_bytes)
            )
            return StreamedResponse(chunks, part.status, part.headers)
        body = b"" if entry.size_bytes == 0 else await call.read_small(context, entry, byte_range=part.span)
        return Response(body, part.status, part.headers)

    entry = await look_up(call, context, call.path["ref"], path)
    return await reply_with_found(call, lambda: find_entry(context, call.path["ref"], path), reply, first=entry)


@HOT.add(
    "HEAD",
    _REF,
    "headObject",
    needs="read",
    gives={200: None, 206: None, 304: None},
    parameters=(OBJECT_PATH, RANGE, *CONDITIONS),
)
async def head_object(call: RepositoryCall) -> Response:
    """Check whether an object exists, and get its headers."""
    path = call.required("path")
    context = await call.context(is_proven_later=True)
    entry = await look_up(call, context, call.path["ref"], path)
    part = part_of(call, entry)
    return Response(status_code=part.status, headers=part.headers)


@HOT.add(
    "POST",
    _BRANCH,
    "uploadObject",
    needs="write",
    takes=bytes,
    body_required=False,
    gives={201: ObjectStats},
    parameters=(OBJECT_PATH, IF_MATCH, IF_NONE_MATCH, FORCE, Parameter("storageClass", "Ignored.")),
)
async def upload_object(call: RepositoryCall) -> Response:
    """Write an object: a raw body, or the field `content` of a form; `x-lakefs-meta-*` headers are its metadata."""
    path, branch = call.required("path"), call.path["branch"]
    check_path(path, writing=True)  # before any byte is read
    condition = condition_of(call)
    metadata = _metadata_of(call)
    context = await call.context(force=call.flag("force"), is_proven_later=True)
    content_type = call.header(b"content-type") or _ANY_TYPE
    chunks = call.chunks(bytes_max=call.site.options.object_bytes_max)
    if content_type.startswith(FORM):
        chunks, named_type = await form_content(chunks, content_type=content_type)
        content_type = named_type or _ANY_TYPE
    body, rest = await whole_or_stream(chunks, bytes_max=call.site.options.small_object_bytes)
    if rest is None and condition is None:
        upload = SmallUpload(path, lambda: body, content_type, metadata)
        entry = await call.store_small(context, branch, upload, size_bytes=len(body))
    elif rest is None:

        def store() -> Entry:
            entry = data.upload(context, body, content_type=content_type, metadata=metadata)
            stage_entry(context, branch, path, entry, condition=condition)
            return entry

        entry = await call.quick(store)
    else:
        if condition is not None:  # check before the bytes are received, and again when they are staged
            await call.quick(refuse_early, context, branch, path, condition)
        entry = await call.upload(
            rest,
            into=lambda pieces: data.upload(context, pieces, content_type=content_type, metadata=metadata),
        )
        await call.quick(stage_entry, context, branch, path, entry, condition=condition)
    return _stats_reply(context, path, entry)


def _stats_reply(context: RepositoryContext, path: str, entry: Entry) -> Response:
    return json(object_stats(path, entry, address=data.physical_url(context, entry)), 201)


def _metadata_of(call: RepositoryCall) -> dict[str, str]:
    """Return the metadata in a request's headers. Of a repeated header, the first value counts."""
    metadata: dict[str, str] = {}
    for name, value in call.scope["headers"]:
        if name.startswith(_META):
            metadata.setdefault(header_text(name[len(_META) :]), header_text(value))
        elif name.startswith(_INTERNAL):
            metadata.setdefault(_INTERNAL_KEY + header_text(name[len(_INTERNAL) :]), header_text(value))
    return metadata


@HOT.add("DELETE", _BRANCH, "deleteObject", needs="write", parameters=(OBJECT_PATH, FORCE))
async def delete_object(call: RepositoryCall) -> None:
    """Delete an object. Deleting a missing object is a no-op."""
    path = call.required("path")
    context = await call.context(force=call.flag("force"), is_proven_later=True)
    await call.quick(delete, context, branch=call.path["branch"], path=path)


@OBJECTS.add("POST", _BRANCH + "/delete", "deleteObjects", needs="write", parameters=(FORCE,))
async def delete_objects(call: RepositoryCall, body: PathList) -> ObjectErrorList:
    """Delete up to a thousand objects. Missing ones are ignored."""
    context = await call.context(force=call.flag("force"))
    return await call.quick(_delete_all, context, call.path["branch"], body.paths)


def _delete_all(context: RepositoryContext, branch: str, paths: list[str]) -> ObjectErrorList:
    errors: list[ObjectError] = []
    good: list[str] = []
    for path in paths:
        try:
            check_path(path, writing=True)
        except LakebedError as error:
            errors.append(ObjectError(status_of(error), error.message, path))
        else:
            good.append(path)
    delete_many(context, branch=branch, paths=good)
    return ObjectErrorList(errors)


@OBJECTS.add(
    "POST",
    _BRANCH + "/copy",
    "copyObject",
    needs="write",
    gives={201: ObjectStats},
    parameters=(Parameter("dest_path", "The path of the copy.", required=True),),
)
async def copy_object(call: RepositoryCall, body: ObjectCopyCreation) -> Response:
    """Copy an object within a repository: its bytes, not only its entry."""
    target = call.required("dest_path")
    if body.shallow:
        raise InvalidRequest("A copy has bytes of its own here: leave shallow out.", kind="shallow_copy")
    context, branch = await call.context(force=bool(body.force)), call.path["branch"]
    check_path(target, writing=True)

    def store() -> Entry:
        entry = data.read_found(
            lambda: find_entry(context, body.src_ref or branch, body.src_path),
            lambda source: data.copy(context, source),
        )
        stage_entry(context, branch, target, entry)
        return entry

    entry = await call.transfer(store)
    return _stats_reply(context, target, entry)


@HOT.add("PUT", _BRANCH, "stageObject", needs="write", gives={201: ObjectStats}, parameters=(OBJECT_PATH,))
async def stage_object(call: RepositoryCall, body: ObjectStageCreation) -> Response:
    """Stage an object whose bytes are on a store already."""
    path = call.required("path")
    context, branch = await call.context(force=bool(body.force)), call.path["branch"]

    def store() -> Entry:
        entry = data.link_object(
            context,
            engine_url(body.physical_address, root_url=call.site.repositories.url),
            checksum=body.checksum.strip('"'),
            content_type=body.content_type or _ANY_TYPE,
            metadata=body.metadata,
        )
        entry = with_mtime(entry, body.mtime)
        stage_entry(context, branch, path, entry)
        return entry

    entry = await call.quick(store)
    return _stats_reply(context, path, entry)


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
    delimiter, ref = call.query.get("delimiter", ""), call.path["ref"]
    with_metadata, presign = call.flag("user_metadata", default=True), call.flag("presign") and call.site.signs
    context = await call.context(is_proven_later=True)

    page = call.page()

    def results(lines: Sequence[Listed]) -> list[ObjectStats]:
        if not call.reads_all:
            # A caller with an address can make another object of the bytes, so list an unreadable object without it.
            return [
                prefix_stats(line.path)
                if line.entry is None
                else _stats(call, context, line.path, line.entry, with_metadata=with_metadata, presign=presign)
                if call.may_read(line.path)
                else object_stats(line.path, line.entry, address="", with_metadata=False)
                for line in lines
            ]
        if presign:
            return [
                prefix_stats(line.path)
                if line.entry is None
                else _stats(call, context, line.path, line.entry, with_metadata=with_metadata, presign=True)
                for line in lines
            ]
        urls = data.physical_urls(context, (line.entry for line in lines if line.entry is not None))
        return listed_stats(lines, addresses=urls, with_metadata=with_metadata)

    def read() -> Response:
        def body_of(view: View) -> bytes:
            if not delimiter and not presign and call.reads_all:  # kept rows have addresses
                body = _committed_page(call, context, view, page, with_metadata=with_metadata)
                if body is not None:
                    return body
            lines = list(view.list(page.prefix, after=page.after, delimiter=delimiter, amount=page.probe))
            return encode(page_of_many(lines, amount=page.amount, key=lambda line: line.path, results=results))

        return Response(read_reference(context, ref, body_of), media_type="application/json")

    return await call.heavy(read)


def _committed_page(
    call: RepositoryCall, context: RepositoryContext, view: View, page: PageRequest, *, with_metadata: bool
) -> bytes | None:
    """Return a page whose rows are all committed; None: some are not. The JSON of rows is kept with their blocks.

    Cost: a page that was listed before takes a third of the time: its rows are neither decoded nor encoded.
    """
    place = page_of(check_prefix(page.prefix), after=page.after, amount=page.probe)
    if place is None:
        return join_page([], following="")
    batches = view.committed_rows(place.start, place.end, count=page.probe)
    if batches is None:
        return None

    def encode_rows(batch: pa.RecordBatch) -> list[bytes]:
        lines = lines_of(batch)
        urls = data.physical_urls(context, (line.entry for line in lines if line.entry is not None))
        return encode_each(listed_stats(lines, addresses=urls, with_metadata=with_metadata))

    shape = "full" if with_metadata else "plain"
    rows: list[bytes] = []
    for batch in batches:
        rows += call.site.encoded_rows.rows(batch, shape=shape, encode=encode_rows)
    if len(rows) <= page.amount:
        return join_page(rows, following="")
    last = page.amount - (len(rows) - batches[-1].num_rows) - 1
    batch = batches[-1] if last >= 0 else batches[-2]  # the row after the page may be alone in its batch
    return join_page(rows[: page.amount], following=text_of(batch.column(0)[last].as_py()))


@OBJECTS.add(
    "PUT", _BRANCH + "/stat/user_metadata", "updateObjectUserMetadata", needs="write", parameters=(OBJECT_PATH,)
)
async def update_user_metadata(call: RepositoryCall, body: UserMetadataUpdate) -> None:
    """Replace the user's own metadata of an object; its bytes stay. 204, as `lakectl` expects and lakeFS answers."""
    path, branch = call.required("path"), call.path["branch"]
    context = await call.context()
    metadata = data.check_metadata(body.set)
    await call.quick(update_metadata, context, branch=branch, path=path, metadata=metadata)


@OBJECTS.add("GET", _BRANCH + "/stage_allowed", "uploadObjectPreflight", needs="write", parameters=(OBJECT_PATH,))
async def may_upload(call: RepositoryCall) -> None:
    """Check whether the caller may upload an object."""
    path = call.required("path")
    context = await call.context()
    await call.quick(_check_upload, context, call.path["branch"], path)


def _check_upload(context: RepositoryContext, branch: str, path: str) -> None:
    check_path(path, writing=True)
    check_writable(context, branch)
    load_branch(context, branch)


@OBJECTS.add("GET", _REF + "/underlyingProperties", "getUnderlyingProperties", needs="read", parameters=(OBJECT_PATH,))
async def get_underlying_properties(call: RepositoryCall) -> UnderlyingProperties:
    """Check that an object is there. Stores are not asked for its storage class."""
    path = call.required("path")
    context = await call.context(is_proven_later=True)
    await look_up(call, context, call.path["ref"], path)
    return UnderlyingProperties()


_INLINE_TYPES: Final = frozenset(
    [
        *(f"image/{kind}" for kind in ("jpeg", "jpg", "png", "gif", "webp", "svg+xml")),
        *(f"text/{kind}" for kind in ("plain", "markdown", "x-markdown", "html", "css", "javascript", "xml")),
        *(f"application/{kind}" for kind in ("pdf", "javascript", "json", "xml")),
        *("video/mp4", "video/webm", "audio/mpeg", "audio/wav", "audio/webm"),
    ]
)
"""Content types that a browser may display; objects of other types are saved. Scripts never run: see `_headers_of`."""


@dataclass(frozen=True, slots=True)
class Part:
    """The part of an object that is sent.

    Attributes:
        status: 200; 206 for a range; 304 if the client already has the object.
        span: the half-open range; None: the whole object.
    """

    status: int
    headers: dict[str, str]
    span: tuple[int, int] | None = None
    size_bytes: int = 0


def part_of(call: RepositoryCall, entry: Entry) -> Part:
    """Return the part of an object that a request asks for.

    Raises `InvalidRequest` (``range_not_satisfiable``, ``precondition_failed``).
    """
    headers, conditions = _headers_of(entry), _conditions(call)
    if conditions and not is_wanted(conditions, etag=entry.checksum, modified_ms=entry.modified_ms):
        return Part(304, printable(headers))
    span = parse_range(
        call.header(b"range"),
        size_bytes=entry.size_bytes,
        if_range=conditions.get("if-range"),
        etag=entry.checksum,
    )
    size_bytes = entry.size_bytes if span is None else span[1] - span[0]
    headers["content-length"] = str(size_bytes)
    if span is None:
        return Part(200, printable(headers), None, size_bytes)
    headers["content-range"] = content_range(span, size_bytes=entry.size_bytes)
    return Part(206, printable(headers), span, size_bytes)


def _headers_of(entry: Entry) -> dict[str, str]:
    return {
        "content-type": entry.content_type or CONTENT_TYPE,
        "etag": f'"{entry.checksum}"',
        "last-modified": format_date(clamp_to_calendar(entry.modified_ms) // 1000),
        "accept-ranges": "bytes",
        "content-disposition": "inline" if entry.content_type in _INLINE_TYPES else "attachment",
        # The next user of the same browser or proxy may have another access key.
        "cache-control": "no-store, must-revalidate",
        "expires": "0",
        # Stored bytes are data, not pages of this server: no browser may guess their type or execute them.
        "x-content-type-options": "nosniff",
        "x-frame-options": "SAMEORIGIN",
        "content-security-policy": "default-src 'none'; sandbox",
    }


def _conditions(call: RepositoryCall) -> dict[str, str]:
    """Return the headers with conditions, found in one pass, because few requests have any."""
    return {name.decode(): header_text(value) for name, value in call.scope["headers"] if name.startswith(b"if-")}
