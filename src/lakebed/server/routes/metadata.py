"""The files of committed states: where they are in our format, and their content in the format of lakeFS.

Clients of lakeFS read from such files what a commit contains. docs/format/repository.md describes ours.
"""

from __future__ import annotations

from typing import Final

from starlette.responses import Response

from lakebed.errors import InvalidRequest
from lakebed.http.declaration import Routes
from lakebed.http.replies import json
from lakebed.repo.lakefs.committed_files import FOLDERS, FileKind, encode_committed_file, find_file
from lakebed.server.bodies import StorageLocation
from lakebed.server.routes.parameters import PRESIGN
from lakebed.server.site import RepositoryCall

METADATA: Final = Routes[RepositoryCall]("metadata")
_METADATA: Final = "/repositories/{repository}/metadata"


@METADATA.add("GET", _METADATA + "/meta_range/{meta_range}", "getMetaRange", needs="read", gives={200: StorageLocation})
async def get_metarange(call: RepositoryCall) -> Response:
    """Get where the file of a metarange is."""
    return await _locate(call, "meta_range", call.path["meta_range"])


@METADATA.add("GET", _METADATA + "/range/{range}", "getRange", needs="read", gives={200: StorageLocation})
async def get_range(call: RepositoryCall) -> Response:
    """Get where the file of a range is."""
    return await _locate(call, "range", call.path["range"])


async def _locate(call: RepositoryCall, kind: FileKind, id: str) -> Response:
    context = await call.context()
    return json(StorageLocation(context.store.url(await call.heavy(find_file, context, kind, id))))


@METADATA.add(
    "GET",
    _METADATA + "/object/{type}/{object_id}",
    "getMetadataObject",
    needs="read",
    gives={200: bytes},
    parameters=(PRESIGN,),
)
async def get_metadata_object(call: RepositoryCall) -> Response:
    """Read a range or metarange in lakeFS's format. It is made here, so it has no signed address."""
    kind = call.path["type"]
    if kind not in FOLDERS:
        raise InvalidRequest(f"{kind!r} is no kind of file: use {' or '.join(FOLDERS)}.", kind="invalid_query")
    context = await call.context()
    body = await call.heavy(encode_committed_file, context, kind, call.path["object_id"])
    return Response(body, 200, {"content-type": "application/octet-stream"})
