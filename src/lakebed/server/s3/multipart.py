"""Uploads in parts, over `lakebed.repo.heads.multipart`.

A completion that takes long is answered early, as in S3: the reply begins, and spaces keep the connection alive until
the result, which may be an error.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from typing import Final

import msgspec
from starlette.responses import Response

from lakebed.errors import InvalidRequest, LakebedError, NotFound
from lakebed.http.pools import run_in
from lakebed.http.replies import StreamedResponse
from lakebed.repo.heads import multipart
from lakebed.repo.heads.multipart import PART_NUMBER_MAX, Part, Stated, WantedPart
from lakebed.repo.model.model import Entry
from lakebed.repo.objects import data
from lakebed.repo.records.context import RepositoryContext
from lakebed.server.routes.entries import Condition, condition_of
from lakebed.server.s3.body import RunningChecksums
from lakebed.server.s3.call import S3Call
from lakebed.server.s3.errors import XML_TYPE, error_fields, s3_error
from lakebed.server.s3.listing import STORAGE_CLASS, KeyEncoding, owner_fields
from lakebed.server.s3.metadata import describe
from lakebed.server.s3.objects import (
    check_writable_path,
    echo_checksums,
    explain_unstaged,
    find,
    is_wanted_entry,
    iso_time,
    parse_source,
    source_context,
)
from lakebed.server.s3.operations import Operations
from lakebed.server.s3.xml import DECLARATION, Element, Value, echo, render, render_root

MULTIPART: Final = Operations()
_ROWS_MAX: Final = 1_000
KEEP_ALIVE_S: Final = 10.0
"""How long a completion may take before its reply begins, and the time between the spaces that follow."""


@MULTIPART.add("POST", "object", "CreateMultipartUpload", needs="write", query=("uploads",))
async def create_upload(call: S3Call) -> Response:
    """Begin an upload."""
    place = call.place
    check_writable_path(place)
    content_type, metadata = describe(call)
    context = await call.context()

    def begin() -> str:
        try:
            return multipart.begin_upload(
                context,
                branch=place.ref,
                path=place.path,
                content_type=content_type,
                metadata=metadata,
                owner=call.caller.id,
            )
        except LakebedError as error:
            raise _explain(context, call, error) from error

    upload_id = await call.quick(begin)
    fields = [("Bucket", call.target.bucket), *echo("Key", call.target.key), ("UploadId", upload_id)]
    return Response(render("InitiateMultipartUploadResult", fields), media_type=XML_TYPE)


def _explain(
    context: RepositoryContext, call: S3Call, error: LakebedError, *, condition: Condition | None = None
) -> Exception:
    code = {
        "upload_not_found": "NoSuchUpload",
        "invalid_part": "InvalidPart",
        "invalid_part_order": "InvalidPartOrder",
        "part_too_small": "EntityTooSmall",
        "object_gone": "InvalidPart",
        "path_exists": "PreconditionFailed",
    }.get(error.kind)
    if code == "PreconditionFailed" and condition is not None and not condition.absent:
        try:
            find(context, call.place)
        except NotFound:
            return s3_error("NoSuchKey", "There is no object at the key whose ETag If-Match names.")
    if code is not None:
        return s3_error(code, error.message)
    if isinstance(error, NotFound | InvalidRequest):
        return explain_unstaged(context, call.place, error, condition=None)
    return error


def _part_number(call: S3Call) -> int:
    text = call.pairs["partNumber"]
    if not (text.isascii() and text.isdigit() and len(text) <= 6 and 1 <= int(text) <= PART_NUMBER_MAX):
        raise s3_error("InvalidArgument", f"Part number must be an integer between 1 and {PART_NUMBER_MAX}.")
    return int(text)


async def _open(call: S3Call) -> tuple[RepositoryContext, bytes]:
    """Return the repository, and the record of the upload that the query names."""
    context, place = await call.context(), call.place

    def look() -> bytes:
        try:
            return multipart.open_upload(context, call.pairs["uploadId"], branch=place.ref, path=place.path)[1]
        except NotFound as error:
            raise _explain(context, call, error) from error

    return context, await call.look(look)


def _put_part(context: RepositoryContext, call: S3Call, number: int, raw: bytes, entry: Entry) -> None:
    try:
        multipart.put_part(context, call.pairs["uploadId"], number=number, stored=entry, expected=raw)
    except NotFound as error:
        raise _explain(context, call, error) from error


@MULTIPART.add(
    "PUT", "object", "UploadPartCopy", needs="write", query=("partNumber", "uploadId"), header="x-amz-copy-source"
)
async def copy_part(call: S3Call) -> Response:
    """Make a part of an object, or of a range of it."""
    number = _part_number(call)
    _, source = parse_source(call)
    context, raw = await _open(call)
    origin = await source_context(call, source)

    def store() -> Entry:
        def copy(original: Entry) -> Entry:
            if not is_wanted_entry(call.headers, original, begin="x-amz-copy-source-"):
                raise s3_error("PreconditionFailed", "At least one of the pre-conditions you specified did not hold.")
            span = _copied_span(call.headers.get("x-amz-copy-source-range"), original.size_bytes)
            if span[0] == span[1]:
                return data.upload(context, b"")
            return data.upload(context, data.stream(origin, original, byte_range=span))

        return data.read_found(lambda: find(origin, source), copy)

    entry = await call.transfer(store)
    await call.quick(_put_part, context, call, number, raw, entry)
    fields = [("LastModified", iso_time(entry.modified_ms)), ("ETag", f'"{entry.checksum}"')]
    return Response(render("CopyPartResult", fields), media_type=XML_TYPE)


def _copied_span(header: str | None, size_bytes: int) -> tuple[int, int]:
    """Return the half-open range that is copied."""
    if header is None:
        return 0, size_bytes
    unit, _, rest = header.partition("=")
    first, _, last = rest.partition("-")
    if unit.strip() != "bytes" or not (first.isascii() and first.isdigit() and last.isascii() and last.isdigit()):
        raise s3_error("InvalidArgument", "The x-amz-copy-source-range value must be of the form bytes=first-last.")
    if len(first) > 18 or len(last) > 18 or not int(first) <= int(last) < size_bytes:
        raise s3_error("InvalidRange", f"The range is outside the source of {size_bytes} bytes.")
    return int(first), int(last) + 1


@MULTIPART.add("PUT", "object", "UploadPart", needs="write", query=("partNumber", "uploadId"))
async def upload_part(call: S3Call) -> Response:
    """Upload a part."""
    number = _part_number(call)
    context, raw = await _open(call)
    entry = await call.receive_object(
        lambda pieces: data.upload(context, pieces), lambda stored: _put_part(context, call, number, raw, stored)
    )
    return Response(status_code=200, headers={"etag": f'"{entry.checksum}"', **echo_checksums(call)})


@MULTIPART.add("POST", "object", "CompleteMultipartUpload", needs="write", query=("uploadId",))
async def complete_upload(call: S3Call) -> Response:
    """Make an object of the parts."""
    object_checksums = call.body_plan.checksums  # those of the object, not of the XML
    call.body_plan = msgspec.structs.replace(call.body_plan, checksums={})
    body = await call.read_xml("CompleteMultipartUpload")
    wanted_parts = [_wanted_part(element) for element in body.all("Part")]
    if not wanted_parts:
        raise s3_error("MalformedXML", "The XML names no part: name those of the object.")
    condition = condition_of(call)
    size_bytes = _object_bytes(call)
    context, place = await call.context(), call.place

    def complete() -> Entry:
        checksums = RunningChecksums(object_checksums)

        def check() -> None:
            call.check_key()
            checksums.check()

        try:
            return multipart.complete_upload(
                context,
                call.pairs["uploadId"],
                branch=place.ref,
                path=place.path,
                wanted=wanted_parts,
                matches=None if condition is None else condition.holds,
                check=check,
                stated=Stated(size_bytes, checksums.update if object_checksums else None),
            )
        except LakebedError as error:
            raise _explain(context, call, error, condition=condition) from error

    completion = asyncio.ensure_future(run_in(call.serving.pools.transfer, complete))
    await asyncio.wait([completion], timeout=KEEP_ALIVE_S)
    if completion.done():
        return Response(DECLARATION.encode() + _result(call, completion.result()), media_type=XML_TYPE)
    return StreamedResponse(_keep_alive(call, completion), 200, {"content-type": XML_TYPE})


def _object_bytes(call: S3Call) -> int | None:
    """Return the size of the whole object that the client states. Raises ``InvalidArgument``."""
    text = call.headers.get("x-amz-mp-object-size")
    if text is None:
        return None
    if not (text.isascii() and text.isdigit() and len(text) <= 18):
        raise s3_error("InvalidArgument", "x-amz-mp-object-size is a number of bytes.")
    return int(text)


def _wanted_part(element: Element) -> WantedPart:
    number, etag = element.value("PartNumber") or "", element.value("ETag") or ""
    is_number = number.isascii() and number.isdigit() and len(number) <= 6 and 1 <= int(number) <= PART_NUMBER_MAX
    if not is_number or not etag:
        raise s3_error("MalformedXML", "The XML has a part without a number from 1 to 10000 or without an ETag.")
    return WantedPart(int(number), etag.strip().strip('"'))


def _result(call: S3Call, entry: Entry) -> bytes:
    fields = [
        *echo("Location", call.origin + call.target.path),
        ("Bucket", call.target.bucket),
        *echo("Key", call.target.key),
        ("ETag", f'"{entry.checksum}"'),
    ]
    return render_root("CompleteMultipartUploadResult", fields)


async def _keep_alive(call: S3Call, future: asyncio.Future[Entry]) -> AsyncGenerator[memoryview, None]:
    yield memoryview(DECLARATION.encode())
    while not future.done():
        yield memoryview(b" ")
        await asyncio.wait([future], timeout=KEEP_ALIVE_S)
    error = future.exception()
    if error is None:
        yield memoryview(_result(call, future.result()))
    else:
        root_url = call.site.repositories.url
        fields = error_fields(error, request_id=call.request_id, root_url=root_url, headers=call.headers)
        yield memoryview(render_root("Error", fields, namespace=None))


@MULTIPART.add("DELETE", "object", "AbortMultipartUpload", needs="write", query=("uploadId",))
async def abort_upload(call: S3Call) -> Response:
    """Abort an upload."""
    context, place = await call.context(), call.place

    def abort() -> None:
        try:
            multipart.abort_upload(context, call.pairs["uploadId"], branch=place.ref, path=place.path)
        except NotFound as error:
            raise _explain(context, call, error) from error

    await call.quick(abort)
    return Response(status_code=204)


@MULTIPART.add("GET", "object", "ListParts", needs="read", query=("uploadId",))
async def list_parts(call: S3Call) -> Response:
    """List the parts of an upload."""
    amount = call.number("max-parts", default=_ROWS_MAX, high=_ROWS_MAX)
    after = call.number("part-number-marker", default=0, high=PART_NUMBER_MAX)
    context, _ = await _open(call)

    def read() -> list[tuple[int, Part]]:
        rows = []
        for row in multipart.list_parts(context, call.pairs["uploadId"], after=after):
            rows.append(row)
            if len(rows) > amount:
                break
        return rows

    rows = await call.quick(read)
    page = rows[:amount]
    fields: list[tuple[str, Value]] = [
        ("Bucket", call.target.bucket),
        *echo("Key", call.target.key),
        ("UploadId", call.pairs["uploadId"]),
        ("Initiator", owner_fields(call.caller.id)),
        ("Owner", owner_fields(call.caller.id)),
        ("StorageClass", STORAGE_CLASS),
        ("PartNumberMarker", after),
        ("MaxParts", amount),
        ("IsTruncated", 0 < amount < len(rows)),
    ]
    if page:
        fields.append(("NextPartNumberMarker", page[-1][0]))
    fields += [("Part", _part_fields(number, part)) for number, part in page]
    return Response(render("ListPartsResult", fields), media_type=XML_TYPE)


def _part_fields(number: int, part: Part) -> list[tuple[str, Value]]:
    return [
        ("PartNumber", number),
        ("LastModified", iso_time(part.modified_ms)),
        ("ETag", f'"{part.checksum}"'),
        ("Size", part.size_bytes),
    ]


@MULTIPART.add("GET", "bucket", "ListMultipartUploads", needs="read", query=("uploads",))
async def list_uploads(call: S3Call) -> Response:
    """List the uploads of a bucket."""
    encode = KeyEncoding(call)
    amount = call.number("max-uploads", default=_ROWS_MAX, high=_ROWS_MAX)
    if call.pairs.get("delimiter"):
        raise s3_error("NotImplemented", "Uploads are listed without a delimiter: leave it out.")
    prefix, context = call.pairs.get("prefix", ""), await call.context()
    marker = call.pairs.get("key-marker", ""), call.pairs.get("upload-id-marker", "")
    branch = call.place.ref if call.place.is_branch_bucket else None

    def read() -> list[tuple[str, str, multipart.Upload]]:
        rows = []
        path_prefix = prefix if branch is not None else ""
        for name, upload in multipart.list_uploads(context, branch=branch, prefix=path_prefix):
            key = upload.path if branch is not None else f"{upload.branch}/{upload.path}"
            is_after = key > marker[0] or (key == marker[0] and bool(marker[1]) and name > marker[1])
            if key.startswith(prefix) and is_after:
                rows.append((key, name, upload))
        return rows[: amount + 1]

    rows = await call.quick(read)
    page = rows[:amount]
    fields: list[tuple[str, Value]] = [
        ("Bucket", call.target.bucket),
        ("KeyMarker", encode(marker[0])),
        ("UploadIdMarker", marker[1]),
        ("Prefix", encode(prefix)),
        ("MaxUploads", amount),
        *encode.fields(),
        ("IsTruncated", 0 < amount < len(rows)),
    ]
    if page:
        fields += [("NextKeyMarker", encode(page[-1][0])), ("NextUploadIdMarker", page[-1][1])]
    for key, name, upload in page:
        owner = owner_fields(upload.owner)
        row: list[tuple[str, Value]] = [
            ("Key", encode(key)),
            ("UploadId", name),
            ("Initiator", owner),
            ("Owner", owner),
        ]
        row += [("StorageClass", STORAGE_CLASS), ("Initiated", iso_time(upload.started_at_ms))]
        fields.append(("Upload", row))
    return Response(render("ListMultipartUploadsResult", fields), media_type=XML_TYPE)
