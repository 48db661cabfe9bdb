"""The files of committed states: where they are, and their bytes, which are those of docs/format/repository.md.

A range or metarange is named by its contents; its object has a name of its own behind that. The object that is listed
first is as good as every other one of the same contents.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from starlette.responses import Response
from typing_extensions import Buffer

from lakebed.errors import InvalidRequest, NotFound
from lakebed.http.declaration import Routes
from lakebed.http.replies import StreamedResponse, json
from lakebed.objects.port import ObjectMeta, ObjectStore
from lakebed.repo.model.layout import METARANGE_FOLDER, RANGE_FOLDER
from lakebed.repo.records.context import RepositoryContext
from lakebed.repo.references.commits import is_commit_id
from lakebed.server.bodies import StorageLocation
from lakebed.server.routes.parameters import PRESIGN
from lakebed.server.site import RepositoryCall

METADATA: Final = Routes[RepositoryCall]("metadata")
_METADATA: Final = "/repositories/{repository}/metadata"
_FOLDERS: Final = {"range": RANGE_FOLDER, "meta_range": METARANGE_FOLDER}


@METADATA.add("GET", _METADATA + "/meta_range/{meta_range}", "getMetaRange", needs="read", gives={200: StorageLocation})
async def get_metarange(call: RepositoryCall) -> Response:
    """Get where the file of a metarange is."""
    return await _locate(call, METARANGE_FOLDER, call.path["meta_range"])


@METADATA.add("GET", _METADATA + "/range/{range}", "getRange", needs="read", gives={200: StorageLocation})
async def get_range(call: RepositoryCall) -> Response:
    """Get where the file of a range is."""
    return await _locate(call, RANGE_FOLDER, call.path["range"])


async def _locate(call: RepositoryCall, folder: str, id: str) -> Response:
    context = await call.context()
    file = await call.heavy(_find, context, folder, id)
    return json(StorageLocation(context.store.url(file.path)))


@METADATA.add(
    "GET",
    _METADATA + "/object/{type}/{object_id}",
    "getMetadataObject",
    needs="read",
    gives={200: bytes, 302: None},
    parameters=(PRESIGN,),
)
async def get_metadata_object(call: RepositoryCall) -> Response:
    """Read the file of a range or metarange."""
    presign, kind = call.flag("presign"), call.path["type"]
    if kind not in _FOLDERS:
        raise InvalidRequest(f"{kind!r} is no kind of file: use {' or '.join(_FOLDERS)}.", kind="invalid_query")
    context = await call.context()
    file = await call.heavy(_find, context, _FOLDERS[kind], call.path["object_id"])
    if presign and call.site.signs:
        url = await call.quick(context.store.signed_url, file.path, expires_in_s=call.site.options.presigned_lifetime_s)
        return Response(status_code=302, headers={"location": url})
    chunk_bytes = call.site.options.chunk_bytes
    chunks = await call.download(lambda: _chunks(context.store, file, chunk_bytes=chunk_bytes))
    return StreamedResponse(
        chunks, 200, {"content-type": "application/octet-stream", "content-length": str(file.size_bytes)}
    )


def _find(context: RepositoryContext, folder: str, id: str) -> ObjectMeta:
    if is_commit_id(id):  # both are SHA-256, in hexadecimal
        for file in context.store.list(folder, start_after=f"{folder}/{id}-"):
            if file.path.startswith(f"{folder}/{id}-"):
                return file
            break
    raise NotFound(f"Repository {context.name} has no file of {id!r} in {folder}.", kind="metadata_not_found", id=id)


def _chunks(store: ObjectStore, file: ObjectMeta, *, chunk_bytes: int) -> Iterator[Buffer]:
    for start in range(0, file.size_bytes, chunk_bytes):
        yield store.get(file.path, byte_range=(start, min(start + chunk_bytes, file.size_bytes)))
