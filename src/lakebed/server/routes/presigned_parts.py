"""Uploads in parts to signed URLs: begin, put each part to its own URL or copy it, then complete or abort.

On every store, the server signs the URLs and takes the bytes, because the parts of a repository are objects
with records (`lakebed.repo.heads.multipart`), which a vendor's store does not write. Such a URL permits one part of one
upload. It permits no more than the access key that got it, and becomes invalid with that key's secret.
"""

from __future__ import annotations

import re
from typing import Final
from urllib.parse import urlencode

from starlette.responses import Response

from lakebed.errors import InvalidRequest
from lakebed.http.declaration import Parameter, Routes
from lakebed.repo.heads import multipart
from lakebed.repo.heads.multipart import PART_NUMBER_MAX, WantedPart
from lakebed.repo.model.layout import UPLOAD_FOLDER
from lakebed.repo.model.model import Entry
from lakebed.repo.objects import data
from lakebed.repo.records.context import RepositoryContext
from lakebed.server.auth import check_permission, check_role
from lakebed.server.bodies import (
    CompletePresignMultipartUpload,
    ObjectStats,
    PhysicalAddress,
    PresignMultipartUpload,
    UploadPartCopyFrom,
    UploadTo,
)
from lakebed.server.keys import Principal
from lakebed.server.needs import object_resource
from lakebed.server.permissions import Permission
from lakebed.server.routes.entries import find_entry
from lakebed.server.routes.parameters import OBJECT_PATH
from lakebed.server.routes.shapes import object_stats
from lakebed.server.site import RepositoryCall

PARTS: Final = Routes[RepositoryCall]("experimental")
ROOT_PARTS: Final = Routes[RepositoryCall]("staging")
PART_PATH: Final = "/upload/part"
_ALL: Final = "/repositories/{repository}/branches/{branch}/staging/pmpu"
_ONE: Final = _ALL + "/{upload_id}"
_PART: Final = _ONE + "/parts/{part_number}"
_SPAN: Final = re.compile(r"bytes=(\d{1,18})-(\d{1,18})", re.ASCII)


@PARTS.add(
    "POST",
    _ALL,
    "createPresignMultipartUpload",
    needs="write",
    gives={201: PresignMultipartUpload},
    parameters=(
        OBJECT_PATH,
        Parameter("parts", "For how many parts to sign URLs.", kind="integer", bounds=(0, PART_NUMBER_MAX)),
    ),
)
async def create_upload(call: RepositoryCall) -> PresignMultipartUpload:
    """Begin an upload in parts, with a signed URL for each of the first parts."""
    path, branch = call.required("path"), call.path["branch"]
    count = call.integer("parts", default=0, low=0, high=PART_NUMBER_MAX)
    context = await call.context()
    upload_id = await call.quick(
        multipart.begin_upload,
        context,
        branch=branch,
        path=path,
        content_type=data.CONTENT_TYPE,
        metadata={},
        owner=call.committer,
    )
    urls = await _sign(call, context, upload_id, range(1, count + 1))
    return PresignMultipartUpload(upload_id, _address(context, upload_id), urls or None)


@PARTS.add("PUT", _PART, "uploadPart", needs="write", parameters=(OBJECT_PATH,))
async def sign_part(call: RepositoryCall, body: PhysicalAddress) -> UploadTo:
    """Get a signed URL for one part of an upload."""
    number = _number(call)
    context, upload_id, _ = await _open(call, body.physical_address)
    [url] = await _sign(call, context, upload_id, [number])
    return UploadTo(url)


@PARTS.add("PUT", _PART + "/copy", "uploadPartCopy", needs="write", gives={204: None}, parameters=(OBJECT_PATH,))
async def copy_part(call: RepositoryCall, body: UploadPartCopyFrom) -> Response:
    """Make a part of another object, or of a range of it; its ETag is a header of the reply."""
    number = _number(call)
    context, upload_id, raw = await _open(call, body.physical_address)
    source = body.copy_source
    if call.caller.grants is None:  # for a user, check the permissions that the body needs
        check_role(call.caller, needed="read", repository=source.repository)
    origin = await call.context(name=source.repository)

    def store() -> Entry:
        def copy(entry: Entry) -> Entry:
            span = _span(source.range, entry.size_bytes)
            if span[0] == span[1]:
                return data.upload(context, b"")
            return data.upload(context, data.stream(origin, entry, byte_range=span))

        return data.read_found(lambda: find_entry(origin, source.ref, source.path), copy)

    stored = await call.transfer(store)
    await call.quick(multipart.put_part, context, upload_id, number=number, stored=stored, expected=raw)
    return Response(status_code=204, headers={"etag": f'"{stored.checksum}"'})


@PARTS.add("PUT", _ONE, "completePresignMultipartUpload", needs="write", parameters=(OBJECT_PATH,))
async def complete_upload(call: RepositoryCall, body: CompletePresignMultipartUpload) -> ObjectStats:
    """Make an object of the parts, and stage it."""
    path, branch, upload_id = call.required("path"), call.path["branch"], call.path["upload_id"]
    context = await call.context()
    _check_address(context, upload_id, body.physical_address)
    content_type = body.content_type or data.CONTENT_TYPE
    metadata = data.check_metadata(body.user_metadata or {}, content_type=content_type)
    wanted_parts = [WantedPart(part.part_number, part.etag.strip().strip('"')) for part in body.parts]
    stated_facts = multipart.Stated(description=(content_type, metadata))

    def complete() -> Entry:
        return multipart.complete_upload(
            context, upload_id, branch=branch, path=path, wanted=wanted_parts, stated=stated_facts
        )

    entry = await call.transfer(complete)
    return object_stats(path, entry, address=data.physical_url(context, entry))


@PARTS.add(
    "DELETE",
    _ONE,
    "abortPresignMultipartUpload",
    needs="write",
    takes=PhysicalAddress,
    body_required=False,
    parameters=(OBJECT_PATH,),
)
async def abort_upload(call: RepositoryCall) -> None:
    """Abort an upload; its parts are collected later."""
    path, branch, upload_id = call.required("path"), call.path["branch"], call.path["upload_id"]
    context = await call.context()
    await call.quick(multipart.abort_upload, context, upload_id, branch=branch, path=path)


_QUERY: Final = ("repository", "branch", "path", "upload", "part", "key", "expires")


@ROOT_PARTS.add(
    "PUT",
    PART_PATH,
    "uploadPresignedPart",
    needs=None,
    takes=bytes,
    body_required=False,
    gives={200: None},
    parameters=(
        *(Parameter(name, "As in the signed URL.", required=True) for name in _QUERY),
        Parameter("signature", "The signature of the others.", required=True),
    ),
)
async def upload_part(call: RepositoryCall) -> Response:
    """Put a part to a URL signed by the server; the reply's ETag is the MD5 of its bytes."""
    repository, branch, path, upload_id, part, key, _ = map(call.required, _QUERY)
    expires_at_s = call.integer("expires", default=0, low=0, high=1 << 40)
    # Check the key's current permissions: since it got the URL, it may have been revoked, or given another secret.
    holder, salt = await call.quick(call.site.keys.holder, key)
    permitted = (repository, branch, path, upload_id, part, holder.id, salt)
    call.site.signer.check(call.required("signature"), *permitted, expires_at_s=expires_at_s)
    if holder.grants is None:
        check_role(holder, needed="write", repository=repository)
    check_permission(holder, Permission("fs:WriteObject", object_resource(repository, path)))
    context = await call.site.context(repository)
    _, raw = await call.quick(multipart.open_upload, context, upload_id, branch=branch, path=path)
    entry = await call.upload(
        call.chunks(bytes_max=call.site.options.object_bytes_max), into=lambda pieces: data.upload(context, pieces)
    )
    await call.quick(multipart.put_part, context, upload_id, number=int(part), stored=entry, expected=raw)
    return Response(headers={"etag": f'"{entry.checksum}"'})


async def _sign(
    call: RepositoryCall, context: RepositoryContext, upload_id: str, numbers: range | list[int]
) -> list[str]:
    """Return URLs for parts of an upload."""
    if not numbers:
        return []
    expires_at_s = context.now_ms() // 1000 + call.site.options.presigned_lifetime_s
    holder: Principal
    holder, salt = await call.quick(call.site.keys.holder, call.caller.id)
    urls = []
    for number in numbers:
        permitted = (context.name, call.path["branch"], call.required("path"), upload_id, str(number), holder.id)
        signature = call.site.signer.sign(*permitted, salt, expires_at_s=expires_at_s)
        query = dict(zip(_QUERY, (*permitted, str(expires_at_s)), strict=True))
        urls.append(f"{call.origin}{PART_PATH}?{urlencode({**query, 'signature': signature})}")
    return urls


async def _open(call: RepositoryCall, address: str) -> tuple[RepositoryContext, str, bytes]:
    """Return the repository, the upload that the path names, and its record."""
    context, upload_id = await call.context(), call.path["upload_id"]
    _check_address(context, upload_id, address)
    branch, path = call.path["branch"], call.required("path")
    _, raw = await call.look(multipart.open_upload, context, upload_id, branch=branch, path=path)
    return context, upload_id, raw


def _address(context: RepositoryContext, upload_id: str) -> str:
    """Return the address that clients pass in each call. The object gets its real address at completion."""
    return context.store.url(f"{UPLOAD_FOLDER}/{upload_id}")


def _check_address(context: RepositoryContext, upload_id: str, address: str) -> None:
    if address != _address(context, upload_id):
        raise InvalidRequest(
            f"{address!r} is not the physical address of upload {upload_id!r}: give the one that its creation replied.",
            kind="invalid_address",
        )


def _number(call: RepositoryCall) -> int:
    text = call.path["part_number"]
    if not (text.isascii() and text.isdigit() and len(text) <= 6 and 1 <= int(text) <= PART_NUMBER_MAX):
        raise InvalidRequest(
            f"The number of a part is from 1 to {PART_NUMBER_MAX:,}, not {text!r}.", kind="invalid_part"
        )
    return int(text)


def _span(text: str | None, size_bytes: int) -> tuple[int, int]:
    """Return the half-open range that is copied."""
    if text is None:
        return 0, size_bytes
    match = _SPAN.fullmatch(text)
    if match is None or not int(match[1]) <= int(match[2]) < size_bytes:
        raise InvalidRequest(
            f"The range {text!r} cannot be copied of {size_bytes:,} bytes: write bytes=first-last.",
            kind="invalid_range",
        )
    return int(match[1]), int(match[2]) + 1
