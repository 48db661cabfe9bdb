"""The readable versions of a database and their pins, in the terms of the `Versioned` contract. Reads only.

Owns: the translation of manifests and checkpoints into `Version` and `Pin`.

Invariants:
- A version is the common content of consecutive manifests: the same files and the same end of the log. Its id is that
  of the first of them (`Manifest.content_since`), so it stays the same while checkpoints, epochs and jobs change. Any
  of these manifests can be read for the version, and the first may be collected before the last.
- A manifest is readable if no collection has passed it (`Manifest.readable_since`) or a live checkpoint pins it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from lakebed.errors import NotFound
from lakebed.kv.checkpoint import live_checkpoints, readable_versions
from lakebed.kv.database_location import DatabaseLocation
from lakebed.kv.layout import MANIFEST_FOLDER, parse_manifest
from lakebed.kv.manifests import ManifestLog
from lakebed.kv.model import Checkpoint, Manifest
from lakebed.kv.wal import WalLog
from lakebed.reclaim.model import Pin, Version

_LOADED_AT_ONCE_COUNT: Final = 8
_DIGITS_MAX: Final = 20


@dataclass(frozen=True, slots=True)
class ManifestSummary:
    """One manifest in a listing."""

    id: int
    created_ms: int
    """Unix time in milliseconds, UTC, by the store's clock."""
    size_bytes: int
    """Size of the manifest itself."""
    is_newest: bool
    is_readable: bool
    """Whether the manifest can be read or pinned. Otherwise it waits for the collector."""
    pinned_by: tuple[str, ...]
    """Names or ids of live checkpoints."""


def version_of(manifest: Manifest, *, store: str) -> Version:
    """Return the version to which a manifest belongs."""
    files = manifest.file_set.files()
    unflushed = max(0, manifest.wal_id_last_seen - manifest.replay_after_wal_id)
    count = "1 file" if len(files) == 1 else f"{len(files):,} files"
    log = "1 log object" if unflushed == 1 else f"{unflushed:,} log objects"
    return Version(
        store=store,
        id=str(manifest.content_since),
        created_ms=manifest.created_at_ms,
        summary=f"{count}, {manifest.file_set.size_bytes:,} bytes" + (f", {log}" if unflushed else ""),
        facts={
            "manifest_id": manifest.manifest_id,
            "writer_epoch": manifest.writer_epoch,
            "file_count": len(files),
            "size_bytes": manifest.file_set.size_bytes,
            "last_sequence": manifest.last_sequence,
            "wal_id_last_seen": manifest.wal_id_last_seen,
        },
    )


def load_several(location: DatabaseLocation, log: ManifestLog, ids: Iterable[int]) -> dict[int, Manifest | None]:
    """Load manifests, several concurrently. Return them by id; None for one that is missing. Cost: 1 GET for each."""

    def load(manifest_id: int) -> Manifest | None:
        try:
            return log.load(manifest_id)
        except NotFound:
            return None

    sorted_ids = sorted(set(ids))
    if len(sorted_ids) < 2:
        return {manifest_id: load(manifest_id) for manifest_id in sorted_ids}
    pool = location.environment.runtime.pool(_LOADED_AT_ONCE_COUNT)
    try:
        return dict(zip(sorted_ids, pool.map(load, sorted_ids), strict=True))
    finally:
        pool.close()


def list_versions(location: DatabaseLocation, *, store: str) -> Iterator[Version]:
    """Iterate over the readable versions, oldest first, including pinned ones.

    Raises as `ManifestLog.latest`. Cost: 2 LIST, and 1 GET for each readable manifest.
    """
    log = ManifestLog(location)
    newest = log.latest()
    pinned_ids = {
        checkpoint.manifest_id for checkpoint in live_checkpoints(newest, location.environment.clock.now_ms())
    }
    ids = [
        manifest_id
        for manifest_id in log.ids()
        if manifest_id in pinned_ids or newest.readable_since <= manifest_id <= newest.manifest_id
    ]
    last_shown: int | None = None
    for manifest in load_several(location, log, ids).values():
        if manifest is None or not manifest.initialized or manifest.destroyed_at_ms is not None:
            continue
        if manifest.content_since != last_shown:
            last_shown = manifest.content_since
            yield version_of(manifest, store=store)


def find_version(location: DatabaseLocation, newest: Manifest, version: str) -> Checkpoint | int:
    """Resolve the text of a version to a live checkpoint, by name or id, or to a manifest that can be read for it.

    Raises `NotFound`. Cost: nothing, or 1 GET for a version whose first manifest was collected.
    """
    now_ms = location.environment.clock.now_ms()
    live = live_checkpoints(newest, now_ms)
    for checkpoint in live:
        if version in (checkpoint.name, checkpoint.id):
            return checkpoint
    if version.isascii() and version.isdigit() and len(version) <= _DIGITS_MAX:
        number = int(version)
        readable = {checkpoint.manifest_id for checkpoint in live}
        if number in readable or newest.readable_since <= number <= newest.manifest_id:
            return number
        # Manifests of one version are consecutive: if any of them is left, the next readable one is among them.
        next_id = min(
            (manifest_id for manifest_id in readable | {newest.readable_since} if manifest_id > number), default=None
        )
        stand_in = None if next_id is None else load_several(location, ManifestLog(location), [next_id])[next_id]
        if stand_in is not None and stand_in.content_since <= number:
            return stand_in.manifest_id
    names = ", ".join(repr(checkpoint.name) for checkpoint in live if checkpoint.name is not None)
    checkpoints = f"its checkpoints are {names}" if names else "it has no checkpoint with a name"
    raise NotFound(
        f"The database {location.url} has no version {version!r}: {readable_versions(newest)} can be read without a "
        f"checkpoint, and {checkpoints}.",
        kind="version_not_found",
        url=location.url,
        version=version,
    )


def versions_of(location: DatabaseLocation, checkpoints: Iterable[Checkpoint]) -> dict[str, str]:
    """Return the ids of pinned versions, as in `list_versions` and `list_pins`, by the checkpoint's id.

    If the manifest of a checkpoint is missing, its number is used instead. Cost: 1 GET for each pinned manifest.
    """
    pins = list(checkpoints)
    manifests = load_several(location, ManifestLog(location), [checkpoint.manifest_id for checkpoint in pins])
    return {
        checkpoint.id: pin_of(checkpoint, manifests[checkpoint.manifest_id], store="").version for checkpoint in pins
    }


def pin_of(checkpoint: Checkpoint, manifest: Manifest | None, *, store: str, bytes_alone: int | None = None) -> Pin:
    """Return a checkpoint as a pin. `manifest` is the one that it pins; None: it is missing."""
    return Pin(
        store=store,
        kind="checkpoint" if checkpoint.owner.kind == "user" else checkpoint.owner.kind,
        name=checkpoint.name or checkpoint.id,
        version=str(checkpoint.manifest_id if manifest is None else manifest.content_since),
        owner=str(checkpoint.owner),
        created_ms=checkpoint.created_at_ms,
        expires_ms=checkpoint.expires_at_ms,
        bytes_alone=bytes_alone,
    )


def list_pins(location: DatabaseLocation, *, store: str) -> list[Pin]:
    """Return the live checkpoints of every owner, oldest first, with the bytes that each alone keeps.

    `Pin.bytes_alone` counts sorted files and log objects in this database's folder that neither the newest version nor
    a version pinned by another checkpoint needs. Deleting the checkpoint would free them. The manifest does not count.

    Raises as `ManifestLog.latest`. Cost: 1 LIST + 1 GET, 1 GET for each pinned manifest, and 1 LIST for each thousand
    log objects if a pinned version needs some that the newest does not.
    """
    log = ManifestLog(location)
    newest = log.latest()
    live = live_checkpoints(newest, location.environment.clock.now_ms())
    manifests = load_several(location, log, [checkpoint.manifest_id for checkpoint in live])
    alone = _bytes_alone(live, _sizes_by_version(location, newest, manifests), newest)
    checkpoints = sorted(live, key=lambda checkpoint: (checkpoint.created_at_ms, checkpoint.id))
    return [
        pin_of(checkpoint, manifests[checkpoint.manifest_id], store=store, bytes_alone=alone[checkpoint.id])
        for checkpoint in checkpoints
    ]


def _sizes_by_version(
    location: DatabaseLocation, newest: Manifest, pinned: dict[int, Manifest | None]
) -> dict[int, dict[str | int, int]]:
    """Return what each pinned manifest needs in this database's folder: bytes by file id and log id.

    Fences, and log objects that the newest version needs too, are left out.
    """
    manifests = {number: manifest for number, manifest in pinned.items() if manifest is not None}
    last = None if newest.destroyed_at_ms is not None else newest.replay_after_wal_id
    tails = {
        number: (
            manifest.replay_after_wal_id,
            manifest.wal_id_last_seen if last is None else min(manifest.wal_id_last_seen, last),
        )
        for number, manifest in manifests.items()
    }
    tails = {number: (after, through) for number, (after, through) in tails.items() if after < through}
    log = WalLog(location).entries(min(after for after, _ in tails.values()), through=last) if tails else []
    sizes: dict[int, dict[str | int, int]] = {}
    for number, manifest in manifests.items():
        foreign_ids = {file_id for entry in manifest.external_databases for file_id in entry.file_ids}
        sizes[number] = {file.id: file.size_bytes for file in manifest.file_set.files() if file.id not in foreign_ids}
        if number in tails:
            after, through = tails[number]
            sizes[number].update(
                (entry.id, entry.size_bytes) for entry in log if after < entry.id <= through and not entry.is_fence
            )
    return sizes


def _bytes_alone(
    live_checkpoints: Sequence[Checkpoint], sizes: dict[int, dict[str | int, int]], newest: Manifest
) -> dict[str, int | None]:
    """Return the bytes that each checkpoint alone keeps, by its id; None if its manifest is missing."""
    holders = Counter(checkpoint.manifest_id for checkpoint in live_checkpoints)
    need_counts: Counter[str | int] = Counter()
    if newest.destroyed_at_ms is None:
        need_counts.update(file.id for file in newest.file_set.files())
    for file_sizes in sizes.values():
        need_counts.update(file_sizes.keys())
    bytes_alone: dict[str, int | None] = {}
    for checkpoint in live_checkpoints:
        if checkpoint.manifest_id not in sizes:
            bytes_alone[checkpoint.id] = None
        elif holders[checkpoint.manifest_id] > 1:
            bytes_alone[checkpoint.id] = 0
        else:
            bytes_alone[checkpoint.id] = sum(
                size for id, size in sizes[checkpoint.manifest_id].items() if need_counts[id] == 1
            )
    return bytes_alone


def list_manifests(location: DatabaseLocation) -> list[ManifestSummary]:
    """Return every existing manifest, oldest first, and what pins it.

    Raises as `ManifestLog.latest`. Cost: 2 LIST + 1 GET.
    """
    newest = ManifestLog(location).latest()
    pinned_by: dict[int, list[str]] = {}
    for checkpoint in live_checkpoints(newest, location.environment.clock.now_ms()):
        pinned_by.setdefault(checkpoint.manifest_id, []).append(checkpoint.name or checkpoint.id)
    summaries = []
    for meta in location.store.list(MANIFEST_FOLDER):
        manifest_id = parse_manifest(meta.path)
        if manifest_id is None or manifest_id > newest.manifest_id:
            continue
        by = tuple(pinned_by.get(manifest_id, ()))
        summaries.append(
            ManifestSummary(
                id=manifest_id,
                created_ms=meta.modified_ms,
                size_bytes=meta.size_bytes,
                is_newest=manifest_id == newest.manifest_id,
                is_readable=manifest_id >= newest.readable_since or bool(by),
                pinned_by=by,
            )
        )
    return summaries
