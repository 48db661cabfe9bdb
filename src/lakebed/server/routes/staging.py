"""Uploads that bypass the server: where a client may put bytes itself, and linking them afterwards.

On stores whose vendor signs URLs, the client puts the bytes to the store. On a local folder the server signs a URL of
its own, `UPLOAD_PATH`, and takes the bytes, so that such clients work on every store. The server's URL permits no more
than the access key that got it, only in the repository for which it was made, and becomes invalid with that key's
secret.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from contextlib import suppress
from typing import Final
from urllib.parse import urlencode

from starlette.responses import Response
from typing_extensions import Buffer

from lakebed.errors import AlreadyExists, InvalidRequest, NotFound
from lakebed.http.declaration import Parameter, Routes
from lakebed.repo.model.entry import new_address
from lakebed.repo.model.model import Entry
from lakebed.repo.model.names import check_path
from lakebed.repo.objects import data
from lakebed.repo.records.context import RepositoryContext
from lakebed.repo.references.branches import load_branch
from lakebed.server.auth import check_permission, check_role
from lakebed.server.bodies import ObjectStats, StagingLocation, StagingMetadata
from lakebed.server.needs import object_resource
from lakebed.server.permissions import Permission
from lakebed.server.routes.entries import condition_of, stage_entry, with_mtime
from lakebed.server.routes.parameters import IF_MATCH, IF_NONE_MATCH, OBJECT_PATH, PRESIGN
from lakebed.server.routes.shapes import object_stats
from lakebed.server.site import RepositoryCall

STAGING: Final = Routes[RepositoryCall]("staging")
ROOT_STAGING: Final = Routes[RepositoryCall]("staging")
UPLOAD_PATH: Final = "/upload"
_BACKING = "/repositories/{repository}/branches/{branch}/staging/backing"


@STAGING.add("GET", _BACKING, "getPhysicalAddress", needs="write", parameters=(OBJECT_PATH, PRESIGN))
async def get_physical_address(call: RepositoryCall) -> StagingLocation:
    """Get a new address for an object's bytes and, with `presign`, a URL to put them to."""
    path = call.required("path")
    check_path(path, writing=True)
    presign = call.flag("presign")
    context = await call.context()
    await call.look(load_branch, context, call.path["branch"])
    if not presign:
        return StagingLocation(context.store.url(new_address(context.environment)))
    expires_in_s = call.site.options.presigned_lifetime_s
    expires_at_s = context.now_ms() // 1000 + expires_in_s
    if call.site.signs:
        address, url = await call.quick(data.sign_put, context, expires_in_s=expires_in_s)
    else:
        holder, salt = await call.quick(call.site.keys.holder, call.caller.id)
        address = new_address(context.environment)
        uid = context.record.uid  # a later repository of the same name has another uid
        signature = call.site.signer.sign(uid, path, address, holder.id, salt, expires_at_s=expires_at_s)
        query = {"repository": context.name, "path": path, "address": address, "key": holder.id}
        query |= {"expires": str(expires_at_s), "signature": signature}
        url = f"{call.origin}{UPLOAD_PATH}?{urlencode(query)}"
    return StagingLocation(context.store.url(address), url, expires_at_s)


@STAGING.add("PUT", _BACKING, "linkPhysicalAddress", needs="write", parameters=(OBJECT_PATH, IF_MATCH, IF_NONE_MATCH))
async def link_physical_address(call: RepositoryCall, body: StagingMetadata) -> ObjectStats:
    """Stage an object whose bytes were put to an address from getPhysicalAddress."""
    path = call.required("path")
    check_path(path, writing=True)
    condition = condition_of(call)
    context, branch = await call.context(force=bool(body.force)), call.path["branch"]
    call.check_link(context, body.staging.physical_address or "")

    def store() -> Entry:
        entry = data.link_object(
            context,
            body.staging.physical_address or "",
            checksum=body.checksum.strip('" ') or None,
            content_type=body.content_type or data.CONTENT_TYPE,
            metadata=body.user_metadata,
        )
        if entry.size_bytes != body.size_bytes:
            raise InvalidRequest(
                f"The upload has {entry.size_bytes:,} bytes, not {body.size_bytes:,}: link it with its real size.",
                kind="upload_differs",
            )
        entry = with_mtime(entry, body.mtime)
        stage_entry(context, branch, path, entry, condition=condition)
        return entry

    # An upload to a vendor's URL is copied inside the store, which takes time proportional to its size.
    entry = await (call.transfer(store) if call.site.signs else call.quick(store))
    return object_stats(path, entry, address=data.physical_url(context, entry))


@ROOT_STAGING.add(
    "PUT",
    UPLOAD_PATH,
    "uploadPresigned",
    needs=None,
    takes=bytes,
    body_required=False,
    gives={200: None},
    parameters=(
        Parameter("repository", "As in the signed URL.", required=True),
        Parameter("path", "As in the signed URL: the path that the address was asked for.", required=True),
        Parameter("address", "As in the signed URL.", required=True),
        Parameter("key", "As in the signed URL: the access key that got it.", required=True),
        Parameter("expires", "As in the signed URL.", kind="integer", required=True),
        Parameter("signature", "The signature of the five above.", required=True),
    ),
)
async def upload_presigned(call: RepositoryCall) -> Response:
    """Put bytes to a URL signed by the server; the reply's ETag is their MD5."""
    repository, path, address = (call.required(name) for name in ("repository", "path", "address"))
    expires_at_s = call.integer("expires", default=0, low=0, high=1 << 40)
    # Check the key's current permissions: since it got the URL, it may have been revoked, or given another secret.
    holder, salt = await call.quick(call.site.keys.holder, call.required("key"))
    try:
        context = await call.site.context(repository)
        uid = context.record.uid
    except NotFound:
        uid = ""  # fails like a wrong signature, so that a caller without one does not learn what exists
    call.site.signer.check(call.required("signature"), uid, path, address, holder.id, salt, expires_at_s=expires_at_s)
    if holder.grants is None:
        check_role(holder, needed="write", repository=repository)
    check_permission(holder, Permission("fs:WriteObject", object_resource(repository, path)))
    bytes_max = call.site.options.object_bytes_max
    await call.quick(_refuse_second, context, address, announced_bytes=call.content_length(bytes_max=bytes_max))
    etag = await call.upload(call.chunks(bytes_max=bytes_max), into=lambda pieces: _put(context, address, pieces))
    return Response(headers={"etag": f'"{etag}"'})


def _refuse_second(context: RepositoryContext, address: str, *, announced_bytes: int | None) -> None:
    """Refuse a second upload with other bytes before they arrive, if their number shows the difference.

    An upload of the same number of bytes may repeat the first one after a lost reply: `_put` compares the bytes.
    """
    with suppress(NotFound):
        if announced_bytes not in (None, context.store.head(address).size_bytes):
            raise _second(address)


def _second(address: str) -> AlreadyExists:
    return AlreadyExists(f"The address {address} has an upload already: ask for a new URL.", kind="upload_exists")


def _put(context: RepositoryContext, address: str, pieces: Iterator[Buffer]) -> str:
    """Put the bytes, and return their MD5. The same bytes again are accepted, because the reply may have been lost."""
    digest = hashlib.md5(usedforsecurity=False)

    def digest_pieces() -> Iterator[Buffer]:
        for piece in pieces:
            digest.update(piece)
            yield piece

    digested = digest_pieces()
    try:
        context.store.put_stream(address, digested, create_only=True)
    except AlreadyExists as error:  # an upload finished first, and its bytes may be committed
        for _ in digested:
            pass
        stored = hashlib.md5(usedforsecurity=False)
        for piece in context.store.get_stream(address):
            stored.update(piece)
        if stored.digest() != digest.digest():
            raise _second(address) from error
    return digest.hexdigest()
