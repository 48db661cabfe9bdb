"""Unfinished deletions: what a deleting verb stores before it hides anything, so that a crash leaves no files behind.

Owns: the object ``lakebed/reclaim/<kind>-<uuid>.json``, written and read here.

Invariants:
- It holds *candidates*, never decisions: every process that finishes a deletion judges them again.
- It is durable before the first object is hidden, and removed after the last one is deleted.
- A body that fails its checksum is `Corruption`: a listing skips it with a warning, and no file that it names is
  deleted.

Format (version 1, DO NOT CHANGE)::

    {"format": 1, "min_reader": 1, "features": ["outside"] | [], "crc32": <of the bytes of "body">, "body": {
        "kind": "expire" | "delete-tag" | "rollback", "id": <uuid>, "walk_end": <snapshot id>, "snapshots": [<id>, ...],
        "tags": [{name, snapshot_id, digest}, ...], "released": [<snapshot JSON>, ...],
        "rollback": {target_id, commit_user, after_id, pin, keeps_history} | null, "candidates": {<column>: [...]},
        "survivor": <base manifest list of the snapshot walk_end> | null }}

The feature ``outside`` says that paths of candidates may be URLs. A version of lakebed without it would read them as
paths inside the table, and forget the deletion without having deleted the files.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from typing import Any, Final, Literal

import msgspec
import pyarrow as pa

import lakebed.compute as pc
from lakebed.decoding import decode_json
from lakebed.errors import Corruption, NotFound, UnsupportedFormat
from lakebed.objects.path import URL_PATTERN
from lakebed.objects.port import ObjectStore
from lakebed.table.branch.candidates import CANDIDATES
from lakebed.table.model.layout import Layout

FORMAT: Final = 1
_OUTSIDE: Final = "outside"

DeletionKind = Literal["expire", "delete-tag", "rollback"]


class HiddenTag(msgspec.Struct, frozen=True):
    """A tag to delete, as it was read. A tag that is created later under the same name is another tag and stays."""

    name: str
    snapshot_id: int
    digest: str
    """SHA-256 of the tag's bytes, which include a random id; hex."""


class RollbackIntent(msgspec.Struct, frozen=True):
    """What a rollback is about to do, stored before its commit."""

    target_id: int
    commit_user: str
    """User of the one commit that makes the target the newest snapshot. A later verb recognises the commit by it."""
    after_id: int
    """Newest snapshot when the rollback began; its commit has a greater id."""
    pin: str
    """Hidden tag that holds the target until the commit, without its prefix."""
    keeps_history: bool
    """Whether later snapshots and tags stay."""


class Deletion(msgspec.Struct, frozen=True, rename={"snapshot_ids": "snapshots"}):
    """One unfinished deletion, and the body of its object."""

    kind: DeletionKind
    id: str
    walk_end: int
    """Last snapshot whose delta the candidates were folded from. It stays, and rollbacks up to it are accounted for."""
    snapshot_ids: tuple[int, ...] = ()
    """Snapshots that are hidden first, as long as `survivor` is unchanged: other clients may use ids again."""
    tags: tuple[HiddenTag, ...] = ()
    """Tags that are hidden first."""
    released: tuple[str, ...] = ()
    """Snapshot JSON of the versions that those tags held.

    Once the tags are hidden, candidates are gathered from a version if nothing else holds it by then.
    """
    candidates: pa.Table = msgspec.field(default_factory=CANDIDATES.empty_table)
    rollback: RollbackIntent | None = None
    """A rollback whose commit is not known yet: nothing is hidden. After the commit `tags` are deleted too."""
    survivor: str | None = None
    """Base manifest list of the snapshot `walk_end`.

    It distinguishes this snapshot from one that another client committed under the same id after a rollback. None:
    unknown, because an older version wrote this.
    """

    def hides(self, snapshot_id: int) -> bool:
        """Whether this deletion hides a snapshot or tag of this id."""
        return snapshot_id in self.snapshot_ids or any(tag.snapshot_id == snapshot_id for tag in self.tags)


class _Envelope(msgspec.Struct):
    format: int
    min_reader: int
    features: list[str]
    crc32: int
    body: msgspec.Raw


def encode_deletion(deletion: Deletion) -> bytes:
    """The bytes of an unfinished deletion."""
    body = msgspec.json.encode(deletion, enc_hook=pa.Table.to_pydict)
    is_outside = pc.any(pc.match_substring_regex(deletion.candidates["path"], URL_PATTERN)).as_py()
    envelope = _Envelope(
        format=FORMAT,
        min_reader=FORMAT,
        features=[_OUTSIDE] if is_outside else [],
        crc32=zlib.crc32(body),
        body=msgspec.Raw(body),
    )
    return msgspec.json.encode(envelope)


def decode_deletion(body: Any, *, path: str) -> Deletion:
    """The deletion a file holds.

    Raises `Corruption`: not what was written; `UnsupportedFormat`: written by a newer lakebed.
    """
    try:
        envelope = decode_json(body, _Envelope)
        if envelope.min_reader > FORMAT or not {_OUTSIDE}.issuperset(envelope.features):
            raise UnsupportedFormat(f"{path} was written by a newer lakebed: upgrade to finish it.", path=path)
        actual = zlib.crc32(bytes(envelope.body))
        if actual != envelope.crc32:
            raise Corruption(f"{path} fails its checksum.", path=path, expected=envelope.crc32, actual=actual)
        return decode_json(envelope.body, Deletion, make_other=_candidates)
    except (msgspec.MsgspecError, UnicodeDecodeError, KeyError, pa.ArrowException) as error:
        raise Corruption(f"{path} is not an unfinished deletion: {error}.", path=path) from error


def _candidates(_: type, columns: Any) -> pa.Table:
    return pa.table({name: columns[name] for name in CANDIDATES.names}, schema=CANDIDATES)


def path_of(layout: Layout, deletion: Deletion) -> str:
    """The path of a deletion. A rollback's intent and its candidates are two objects."""
    kind = "rollback-intent" if deletion.rollback is not None else deletion.kind
    return f"{layout.reclaim_folder}/{kind}-{deletion.id}.json"


def store_deletion(store: ObjectStore, layout: Layout, deletion: Deletion) -> None:
    """Store a deletion, durably. Cost: 1 PUT."""
    store.put(path_of(layout, deletion), encode_deletion(deletion))


def load_deletions(store: ObjectStore, layout: Layout) -> Iterator[Deletion | Corruption | UnsupportedFormat]:
    """Every unfinished deletion of a branch, and the error of each unreadable one, so that the others can be finished.

    Cost: 1 LIST + 1 GET each.
    """
    for meta in list(store.list(layout.reclaim_folder)):
        try:
            yield decode_deletion(store.get(meta.path), path=meta.path)
        except NotFound:
            continue  # another process finished it
        except (Corruption, UnsupportedFormat) as error:
            yield error
