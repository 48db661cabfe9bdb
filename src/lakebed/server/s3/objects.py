"""Objects: get, head, put, delete, copy.

A copy inside a repository is a new entry with the address of its source. No bytes are copied, and a collection keeps
the address for either entry. The bytes are copied between repositories, and if a collection may already have examined
the address.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import Final
from urllib.parse import unquote

import msgspec
from starlette.responses import Response
from typing_extensions import Buffer

from lakebed.errors import Conflict, InvalidRequest, NotFound
from lakebed.http.conditions import is_wanted
from lakebed.http.ranges import content_range, parse_range
from lakebed.http.replies import StreamedResponse, format_date
from lakebed.repo.heads.uploads import SmallUpload
from lakebed.repo.heads.write import delete, delete_many
from lakebed.repo.model.model import Entry
from lakebed.repo.model.names import check_path
from lakebed.repo.objects import data
from lakebed.repo.outside.foreign import is_foreign
from lakebed.repo.records.context import RepositoryContext
from lakebed.repo.references.refs import resolve
from lakebed.server.auth import check_role
from lakebed.server.needs import object_resource
from lakebed.server.permissions import Permission
from lakebed.server.routes.entries import (
    Condition,
    condition_of,
    find_entry,
    look_up,
    refuse_early,
    reply_with_found,
    stage_entry,
)
from lakebed.server.s3.body import decode
from lakebed.server.s3.call import KEY_BYTES_MAX, Place, S3Call, explain_missing_branch, place_of
from lakebed.server.s3.checksums import HEADER
from lakebed.server.s3.errors import XML_TYPE, code_of, s3_error
from lakebed.server.s3.metadata import describe, headers_of
from lakebed.server.s3.operations import Operations
from lakebed.server.s3.xml import Element, Value, render
from lakebed.texts import clamp_to_calendar

OBJECTS: Final = Operations()

_DIRECTORY_TYPE: Final = "application/x-directory"
EMPTY_MD5: Final = "d41d8cd98f00b204e9800998ecf8427e"
_DELETED_MAX: Final = 1_000


def is_wanted_entry(headers: Mapping[str, str], entry: Entry, *, begin: str = "") -> bool:
    """Whether the client needs the object, because it does not have it yet. Arguments and errors as `is_wanted`."""
    return is_wanted(headers, etag=entry.checksum, modified_ms=entry.modified_ms, begin=begin)


def check_version(version: str | None) -> None:
    """Refuse an unknown version. Raises `InvalidRequest` (``NoSuchVersion``)."""
    if version not in (None, "", "null"):
        raise s3_error("NoSuchVersion", "The specified version does not exist: objects have the version null only.")


@OBJECTS.add("GET", "object", "GetObject", needs="read")
@OBJECTS.add("HEAD", "object", "HeadObject", needs="read")
async def get_object(call: S3Call) -> Response:
    """Read an object, or a range of it."""
    check_version(call.pairs.get("versionId"))
    is_part = _is_first_part(call)
    place = call.place
    context = await call.context(is_proven_later=place.path != "")
    if not place.path:
        return await _directory(call, context)
    is_head = call.scope["method"] == "HEAD"

    async def reply(entry: Entry) -> Response:
        headers = headers_of(entry, call)
        if not is_wanted_entry(call.headers, entry):
            return Response(status_code=304, headers=headers)
        span = parse_range(
            "bytes=0-" if is_part and entry.size_bytes else call.headers.get("range"),
            size_bytes=entry.size_bytes,
            if_range=call.headers.get("if-range"),
            etag=entry.checksum,
        )
        status, size_bytes = (200, entry.size_bytes) if span is None else (206, span[1] - span[0])
        headers["content-length"] = str(size_bytes)
        if span is not None:
            headers["content-range"] = content_range(span, size_bytes=entry.size_bytes)
        if is_head:
            return Response(status_code=status, headers=headers)
        options = call.site.options
        if size_bytes > options.small_object_bytes:
            byte_range, chunk_bytes = span or (0, entry.size_bytes), options.chunk_bytes
            chunks = await call.download(
                lambda: data.stream(context, entry, byte_range=byte_range, chunk_bytes=chunk_bytes)
            )
            return StreamedResponse(chunks, status, headers)
        body = b"" if entry.size_bytes == 0 else await call.read_small(context, entry, byte_range=span)
        return Response(body, status, headers)

    with explaining_bucket(place):
        entry = await look_up(call, context, place.ref, place.path)
    return await reply_with_found(call, lambda: find(context, place), reply, first=entry)


def _is_first_part(call: S3Call) -> bool:
    """Whether the request asks for part 1. Every object has only this part, the whole, however it was uploaded.

    Raises:
        InvalidRequest: kind ``InvalidPartNumber``: it asks for another part; ``InvalidRequest``: also for a range.
    """
    number = call.pairs.get("partNumber")
    if number is None:
        return False
    if "range" in call.headers:
        raise s3_error("InvalidRequest", "Cannot specify both Range header and partNumber query parameter.")
    if number != "1":
        raise s3_error("InvalidPartNumber", "Parts of a finished object are not kept: read part 1, which is all of it.")
    return True


@OBJECTS.add("GET", "object", "GetObjectTagging", needs="read", query=("tagging",))
async def get_tags(call: S3Call) -> Response:
    """Say that an object has no tags: clients ask before they copy a large one in parts."""
    check_version(call.pairs.get("versionId"))
    context = await call.context()
    await call.look(find, context, call.place)
    return Response(render("Tagging", [("TagSet", [])]), media_type=XML_TYPE)


def find(context: RepositoryContext, place: Place) -> Entry:
    """Return the entry at a place. Raises as `explaining_bucket`."""
    with explaining_bucket(place):
        return find_entry(context, place.ref, place.path)


@contextmanager
def explaining_bucket(place: Place) -> Iterator[None]:
    """Run a lookup of an entry. Raises `NotFound`, whose code distinguishes a missing bucket from a missing key."""
    try:
        yield
    except NotFound as error:
        if error.kind == "reference_not_found" and place.is_branch_bucket:
            raise s3_error("NoSuchBucket", error.message) from error
        raise


async def _directory(call: S3Call, context: RepositoryContext) -> Response:
    """Return an empty object for ``branch/``, as clients expect that make directories."""
    place = call.place
    if not call.target.key.endswith("/"):
        raise s3_error("NoSuchKey", "The specified key does not exist: it names a reference and no path.")
    await call.look(resolve, context, place.ref)
    headers = {"content-type": _DIRECTORY_TYPE, "etag": f'"{EMPTY_MD5}"', "content-length": "0"}
    headers["last-modified"] = format_date(context.record.created_at_ms // 1000)
    return Response(status_code=200, headers=headers)


def check_writable_path(place: Place) -> None:
    """Refuse an invalid path before any byte is read."""
    if len(place.path.encode()) > KEY_BYTES_MAX:
        raise s3_error("KeyTooLongError", f"Your key is too long: its path may have {KEY_BYTES_MAX} bytes.")
    check_path(place.path, writing=True)


def stage_at(context: RepositoryContext, place: Place, entry: Entry, *, condition: Condition | None = None) -> None:
    """Stage an entry at a place. Raises the errors of S3."""
    try:
        stage_entry(context, place.ref, place.path, entry, condition=condition)
    except (NotFound, InvalidRequest) as error:
        raise explain_unstaged(context, place, error, condition=condition) from error


def explain_unstaged(
    context: RepositoryContext, place: Place, error: NotFound | InvalidRequest, *, condition: Condition | None
) -> Exception:
    """Return the error of S3 for an entry that could not be staged."""
    if error.kind in ("branch_not_found", "invalid_branch_name"):
        return explain_missing_branch(context, place, error)
    if error.kind == "precondition_failed" and condition is not None and not condition.absent:
        try:
            find_entry(context, place.ref, place.path)
        except NotFound:
            return s3_error("NoSuchKey", "There is no object at the key whose ETag If-Match names.")
    return error


@OBJECTS.add("PUT", "object", "PutObject", needs="write")
async def put_object(call: S3Call) -> Response:
    """Write an object."""
    if "partNumber" in call.pairs:  # the client means a part, and does not want to replace the object
        raise s3_error("InvalidArgument", "A part is of an upload: give uploadId too.")
    place = call.place
    context = await call.context(is_proven_later=place.path != "")
    if not place.path:
        return await _make_directory(call, context)
    check_writable_path(place)
    condition = condition_of(call)
    content_type, metadata = describe(call)
    if condition is not None:  # check before the bytes are received, and again when they are staged

        def look() -> None:
            try:
                refuse_early(context, place.ref, place.path, condition)
            except (NotFound, InvalidRequest) as error:
                raise explain_unstaged(context, place, error, condition=condition) from error

        await call.quick(look)

    async def store_small(read: Callable[[], Buffer], size_bytes: int) -> Entry:
        upload = SmallUpload(place.path, read, content_type, metadata)
        try:
            return await call.store_small(context, place.ref, upload, size_bytes=size_bytes)
        except (NotFound, InvalidRequest) as error:
            raise explain_unstaged(context, place, error, condition=None) from error

    entry = await call.receive_object(
        lambda pieces: data.upload(context, pieces, content_type=content_type, metadata=metadata),
        lambda entry: stage_at(context, place, entry, condition=condition),
        store_small=store_small if condition is None else None,
    )
    return Response(status_code=200, headers={"etag": f'"{entry.checksum}"', **echo_checksums(call)})


def echo_checksums(call: S3Call) -> dict[str, str]:
    """Return the stated checksums, which have been verified."""
    return {HEADER + name: value for name, value in call.body_plan.checksums.items()}


async def _make_directory(call: S3Call, context: RepositoryContext) -> Response:
    """Accept the directory marker of a reference itself. The reference exists, so nothing is written."""
    pieces = [piece async for piece in call.encoded_chunks(bytes_max=call.site.options.small_object_bytes)]
    if not call.target.key.endswith("/") or b"".join(decode(pieces, call.body_plan)):
        raise s3_error("InvalidArgument", "The key names no path: write branch/path in the bucket of a repository.")
    await call.look(resolve, context, call.place.ref)
    return Response(status_code=200, headers={"etag": f'"{EMPTY_MD5}"'})


@OBJECTS.add("DELETE", "object", "DeleteObject", needs="write")
async def delete_object(call: S3Call) -> Response:
    """Delete an object. Deleting a missing one is a no-op."""
    check_version(call.pairs.get("versionId"))
    if any(name in call.headers for name in ("if-match", "x-amz-if-match-size", "x-amz-if-match-last-modified-time")):
        raise s3_error("NotImplemented", "A deletion has no conditions here: read the object, then delete it.")
    context, place = await call.context(), call.place
    if place.path:
        await call.quick(_delete, context, place)
    return Response(status_code=204)


def _delete(context: RepositoryContext, place: Place) -> None:
    try:
        delete(context, branch=place.ref, path=place.path)
    except (NotFound, InvalidRequest) as error:
        raise explain_unstaged(context, place, error, condition=None) from error


@OBJECTS.add("POST", "bucket", "DeleteObjects", needs="write", query=("delete",))
async def delete_objects(call: S3Call) -> Response:
    """Delete up to a thousand objects, those of a branch in one change."""
    body = await call.read_xml("Delete")
    objects = body.all("Object")
    if not 0 < len(objects) <= _DELETED_MAX:
        raise s3_error("MalformedXML", f"The XML names {len(objects)} objects, and 1 to {_DELETED_MAX} are possible.")
    is_quiet = (body.value("Quiet") or "").lower() == "true"
    context = await call.context()
    results = await call.quick(_delete_all, call, context, objects)
    shown_results = [result for result in results if result[0] == "Error" or not is_quiet]
    return Response(render("DeleteResult", shown_results), media_type=XML_TYPE)


def _delete_all(call: S3Call, context: RepositoryContext, objects: list[Element]) -> list[tuple[str, Value]]:
    """Delete objects, and return the result for each."""
    by_ref: dict[str, list[Place]] = {}
    results: list[tuple[str, Value]] = []
    for element in objects:
        key, version = element.value("Key"), element.value("VersionId")
        if not key:
            raise s3_error("MalformedXML", "The XML has an object without a key.")
        place = place_of(call.target.bucket, key)
        try:
            check_version(version)
            if any(element.value(name) is not None for name in ("ETag", "LastModifiedTime", "Size")):
                raise s3_error("NotImplemented", "A deletion has no conditions here.")
            if place.path:
                call.check(Permission("fs:DeleteObject", object_resource(place.repository, place.path)))
                check_writable_path(place)
                by_ref.setdefault(place.ref, []).append(place)
            else:
                results.append(("Deleted", [("Key", key)]))
        except InvalidRequest as error:
            results.append(_failure(key, error))
    for ref, places in by_ref.items():
        keys = [place.key(place.path) for place in places]
        try:
            delete_many(context, branch=ref, paths=[place.path for place in places])
        except (NotFound, InvalidRequest) as error:
            reason = explain_unstaged(context, places[0], error, condition=None)
            results += [_failure(key, reason) for key in keys]
        else:
            results += [("Deleted", [("Key", key)]) for key in keys]
    return results


def _failure(key: str, error: BaseException) -> tuple[str, Value]:
    message = error.message if isinstance(error, InvalidRequest | NotFound) else str(error)
    return "Error", [("Key", key), ("Code", code_of(error)), ("Message", message)]


def parse_source(call: S3Call) -> tuple[str, Place]:
    """Return bucket and place of the source of a copy. Raises ``InvalidArgument``; ``NoSuchVersion``."""
    raw, mark, version = call.headers["x-amz-copy-source"].partition("?versionId=")
    if mark:
        check_version(version)
    try:
        text = unquote(raw, errors="strict").removeprefix("/")
    except UnicodeDecodeError:
        text = ""
    bucket, _, key = text.partition("/")
    place = place_of(bucket, key)
    if not place.path:
        raise s3_error("InvalidArgument", "Copy Source must mention the source bucket and key: sourcebucket/sourcekey.")
    return bucket, place


async def source_context(call: S3Call, place: Place) -> RepositoryContext:
    """Return the repository of the source, after checking that the caller may read the object."""
    if call.caller.grants is None:
        check_role(call.caller, needed="read", repository=place.repository)
    call.check(Permission("fs:ReadObject", object_resource(place.repository, place.path)))
    return await call.context(name=place.repository)


@OBJECTS.add("PUT", "object", "CopyObject", needs="write", header="x-amz-copy-source")
async def copy_object(call: S3Call) -> Response:
    """Copy an object: a row inside a repository, its bytes between two."""
    target = call.place
    _, source = parse_source(call)
    check_writable_path(target)
    condition = condition_of(call)
    replaces = call.headers.get("x-amz-metadata-directive", "COPY").upper()
    if replaces not in ("COPY", "REPLACE"):
        raise s3_error("InvalidArgument", "x-amz-metadata-directive is COPY or REPLACE.")
    if source == target and replaces == "COPY":
        raise s3_error("InvalidRequest", "This copy request is illegal: it changes nothing of the object.")
    origin, context = await source_context(call, source), await call.context()
    description = describe(call) if replaces == "REPLACE" else None

    def store() -> Entry:
        return data.read_found(lambda: find(origin, source), copy)

    def copy(original: Entry) -> Entry:
        if not is_wanted_entry(call.headers, original, begin="x-amz-copy-source-"):
            raise s3_error("PreconditionFailed", "At least one of the pre-conditions you specified did not hold.")
        return copy_entry(origin, context, original, target, described=description, condition=condition)

    entry = await call.transfer(store)
    fields = [("LastModified", iso_time(entry.modified_ms)), ("ETag", f'"{entry.checksum}"')]
    return Response(render("CopyObjectResult", fields), media_type=XML_TYPE)


def copy_entry(
    origin: RepositoryContext,
    context: RepositoryContext,
    source: Entry,
    target: Place,
    *,
    described: tuple[str, dict[str, str]] | None,
    condition: Condition | None,
) -> Entry:
    """Copy an entry to a place, and return the new one.

    Args:
        described: content type and metadata of the copy; None: those of the source.
    """
    content_type, metadata = described or (source.content_type, source.metadata)
    checked_metadata = data.check_metadata(metadata, content_type=content_type)
    changes = {"content_type": content_type, "metadata": checked_metadata, "modified_ms": context.now_ms()}
    if origin.record.uid != context.record.uid:
        chunks: Iterator[Buffer] = iter(()) if source.size_bytes == 0 else data.stream(origin, source)
        entry = data.upload(context, chunks, content_type=content_type, metadata=checked_metadata)
        stage_at(context, target, entry, condition=condition)
        return entry
    entry = msgspec.structs.replace(source, **changes)
    # Under a condition, an existing entry with the same address counts as an earlier attempt. So use a new address.
    if condition is None and not is_foreign(source.address):
        try:
            stage_at(context, target, entry, condition=condition)
        except Conflict as error:
            if error.kind != "upload_expired":  # a collection may delete what is staged now: copy the bytes
                raise
        else:
            return entry
    entry = msgspec.structs.replace(data.copy(context, source), content_type=content_type, metadata=checked_metadata)
    stage_at(context, target, entry, condition=condition)
    return entry


def iso_time(time_ms: int) -> str:
    """Return a time in the form of S3's XML."""
    moment = datetime.fromtimestamp(clamp_to_calendar(max(0, time_ms)) / 1000, UTC)
    return moment.isoformat(timespec="milliseconds").removesuffix("+00:00") + "Z"
