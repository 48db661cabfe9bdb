"""Ranges and metaranges of our commits as files of lakeFS, made on request.

Clients of lakeFS read these files themselves to learn the entries of a commit. Owns: the conversion of our files to
lakeFS's format. Invariants: a range keeps the id that our metarange has for it, so that clients can request the ranges
that a metarange names. Nothing is written. For lakeFS's own server, `lakebed.repo.lakefs.dump` makes the files: there
an id is the hash of the file in lakeFS's format.
"""

from __future__ import annotations

from contextlib import suppress
from typing import Final, Literal

from typing_extensions import Buffer

from lakebed.errors import NotFound
from lakebed.lsm.columns import keys_of
from lakebed.repo.committed.metarange import decode_range_meta
from lakebed.repo.committed.range_files import rows_of_file
from lakebed.repo.committed.store import EMPTY_METARANGE
from lakebed.repo.lakefs.dump import encode_range_file, lakefs_entry
from lakebed.repo.lakefs.messages import LakefsRange, encode_lakefs_entry, encode_lakefs_range
from lakebed.repo.model.entry import decode_entry
from lakebed.repo.model.layout import METARANGE_FOLDER, RANGE_FOLDER
from lakebed.repo.model.model import RangeMeta
from lakebed.repo.objects.data import LOOKS_MAX
from lakebed.repo.records.context import RepositoryContext
from lakebed.repo.references.commits import is_commit_id

FileKind = Literal["range", "meta_range"]

FOLDERS: Final[dict[FileKind, str]] = {"range": RANGE_FOLDER, "meta_range": METARANGE_FOLDER}
"""Folders of a repository's namespace, by lakeFS's name for the kind of their files."""


def find_file(context: RepositoryContext, kind: FileKind, id: str) -> str:
    """Find the path of our file of a range or metarange, in the storage namespace.

    A file's name is the hash of its contents and then a ULID. If there are several files with an id, any will do.

    Raises:
        NotFound: kind ``metadata_not_found``.
    Cost: 1 LIST.
    """
    folder = FOLDERS[kind]
    if is_commit_id(id):  # both are SHA-256, in hexadecimal
        for file in context.store.list(folder, start_after=f"{folder}/{id}-"):
            if file.path.startswith(f"{folder}/{id}-"):
                return file.path
            break
    raise NotFound(f"Repository {context.name} has no file of {id!r} in {folder}.", kind="metadata_not_found", id=id)


def encode_committed_file(context: RepositoryContext, kind: FileKind, id: str) -> bytes:
    """A range or metarange in lakeFS's format.

    Raises:
        NotFound: as `find_file`.
        Corruption: it is damaged.
    Cost: 1 LIST, 1 GET; about 30 us an entry of a range, whose rows are all in memory.
    """
    if kind == "meta_range" and id == EMPTY_METARANGE.id:
        return encode_range_file([], {"type": "metaranges"})  # we have no file for it
    path, body = _read_file(context, kind, id)
    pairs = [
        pair
        for batch in rows_of_file(memoryview(body).cast("B"), path=path)
        for pair in zip(keys_of(batch.column(0)), keys_of(batch.column(1)), strict=True)
    ]
    if kind == "meta_range":
        ranges = [decode_range_meta(value) for _, value in pairs]
        rows = [(meta.file.last_key, encode_lakefs_range(_lakefs_range(meta))) for meta in ranges]
        return encode_range_file(rows, {"type": "metaranges"})
    namespace = context.store.root_url
    entries = [(key, lakefs_entry(decode_entry(value, where=path), namespace=namespace)) for key, value in pairs]
    return encode_range_file([(key, encode_lakefs_entry(entry)) for key, entry in entries], {"type": "ranges"})


def _read_file(context: RepositoryContext, kind: FileKind, id: str) -> tuple[str, Buffer]:
    """Path and bytes of a file from `find_file`. If a collection deleted it meanwhile, another file of the id."""
    for _ in range(LOOKS_MAX):
        path = find_file(context, kind, id)
        with suppress(NotFound):
            return path, context.store.get(path)
    raise NotFound(
        f"The files of {id} of repository {context.name} are collected: look up what the commit names now.",
        kind="metadata_not_found",
        id=id,
    )


def _lakefs_range(meta: RangeMeta) -> LakefsRange:
    file = meta.file
    return LakefsRange(meta.id, file.first_key, file.last_key, file.size_bytes, file.row_count)
