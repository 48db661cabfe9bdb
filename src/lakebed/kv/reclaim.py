"""The decision which objects of a database may be deleted. Pure: from listings and manifests it makes a plan.

Owns: `plan_collection` for a database in use, `plan_taking_apart` for one that was destroyed, and what a collection
changes in the manifest (`with_versions_sealed`) before anything is deleted.

Invariants:
- Candidates were listed **before** the newest manifest was read, so objects uploaded later are not among them.
- A file is deleted if neither *the* manifest nor a pinned one names it, and no process can publish it any more: its id
  is not above `newest_l0_id` (writers publish in the order of ids), and is below the start of every job under way.
- A log object is deleted if its rows are in files of *the* manifest, and it is in no pinned version's tail. Fences are
  never deleted: only the fence refuses a create that a sleeping writer still has in flight.
- A manifest is deleted if it is not the newest, no checkpoint pins it, and `readable_since` has passed it, so that it
  cannot be pinned any more.
- A pinned manifest that is missing protects all objects that existed when its checkpoint was made.
- Age is an additional condition: even with ``grace_ms = 0`` nothing live is deleted.

Source: "Garbage Collector"; docs/design/0011-collection.md.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final

import msgspec

from lakebed.kv.checkpoint import live_checkpoints, without_expired
from lakebed.kv.layout import parse_manifest, parse_sst, parse_wal
from lakebed.kv.locations import entries_of_files, file_ids
from lakebed.kv.model import ExternalDatabase, Manifest
from lakebed.kv.wal_record import FENCE_BYTES
from lakebed.lsm.file_id import file_id_time_ms
from lakebed.objects.port import ObjectMeta
from lakebed.reclaim.model import CollectionPlan, Deletable

PINNED: Final = "in a pinned version"
"""The reason in `CollectionReport.kept` why an object of a pinned version stays."""

Pinned = Mapping[int, Manifest | None]
"""The manifest of every live checkpoint, by id; None: it is missing."""


@dataclass(frozen=True, slots=True)
class Found:
    """The objects in a database's folders, listed before its newest manifest was read."""

    files: tuple[ObjectMeta, ...]
    logs: tuple[ObjectMeta, ...]
    manifests: tuple[ObjectMeta, ...]


def with_versions_sealed(manifest: Manifest, *, now_ms: int) -> Manifest:
    """Return the next manifest, without dead checkpoints. Older versions are readable through a checkpoint only."""
    return msgspec.structs.replace(without_expired(manifest, now_ms), readable_since=manifest.manifest_id + 1)


def needs_sealing(manifest: Manifest, *, now_ms: int, takes: bool) -> bool:
    """Whether `with_versions_sealed` must be published before anything is deleted or detached.

    Args:
        takes: whether anything can be deleted under `manifest`, without its dead checkpoints.

    It is not needed if nothing is deleted and no checkpoint has expired, or if no version below the newest can be
    pinned anyway, as after the previous collection. So a collector of an idle database writes nothing.
    """
    if without_expired(manifest, now_ms) is not manifest:
        return True
    return takes and manifest.readable_since < manifest.manifest_id


def ids_of_pins(manifest: Manifest, *, now_ms: int) -> frozenset[int]:
    """Return the ids of the manifests that live checkpoints pin."""
    return frozenset(checkpoint.manifest_id for checkpoint in live_checkpoints(manifest, now_ms))


def is_over(manifest: Manifest, *, now_ms: int, grace_ms: int) -> bool:
    """Whether a destroyed database may be deleted: its grace is over and nothing pins a version of it."""
    destroyed_at_ms = manifest.destroyed_at_ms
    if destroyed_at_ms is None or now_ms < destroyed_at_ms + grace_ms:
        return False
    return not live_checkpoints(manifest, now_ms)


def is_taken_apart(objects: Found, manifest: Manifest, *, now_ms: int) -> bool:
    """Whether only the tombstone of a destroyed database is left."""
    if manifest.destroyed_at_ms is None or manifest.external_databases or live_checkpoints(manifest, now_ms):
        return False
    return not plan_taking_apart(objects, manifest=manifest, store="").doomed


def detachable(manifest: Manifest, pinned: Pinned) -> tuple[ExternalDatabase, ...]:
    """Return the ancestors that a clone no longer needs: neither *the* manifest nor a pinned one names a file of them.

    They stay unneeded, because versions that named one cannot be pinned or restored any more. The result is empty while
    a pinned manifest is missing or the clone is unfinished.
    """
    if not manifest.initialized or any(version is None for version in pinned.values()):
        return ()
    named_ids = file_ids(manifest).union(*(file_ids(version) for version in pinned.values() if version is not None))
    needed_pins = {entry.pin for entry, _ in entries_of_files(manifest, named_ids)}
    return tuple(entry for entry in manifest.external_databases if entry.pin not in needed_pins)


def plan_collection(
    objects: Found, *, manifest: Manifest, pinned: Pinned, now_ms: int, grace_ms: int, store: str
) -> CollectionPlan:
    """Plan which objects of a database in use may be deleted now.

    Args:
        manifest: *the* manifest, with `readable_since` at itself, or what it would be in a dry run.
        pinned: the manifest for every id of `ids_of_pins`.
        grace_ms: younger objects stay; 0: age does not matter.
        store: the database's name, for the report.

    Returns:
        A plan in the order files, logs, manifests, with nothing to hide. `kept` counts the objects that stay by reason.
    """
    return _Judgement(manifest, pinned, now_ms=now_ms, grace_ms=grace_ms).plan(objects, store)


class _Judgement:
    """The rules of one collection, which count the reasons why objects stay."""

    def __init__(self, manifest: Manifest, pinned: Pinned, *, now_ms: int, grace_ms: int) -> None:
        self._manifest = manifest
        self._pinned = pinned
        self._named = file_ids(manifest)
        self._pinned_names = frozenset[str]().union(
            *(file_ids(version) for version in pinned.values() if version is not None)
        )
        self._tails = [
            (version.replay_after_wal_id, version.wal_id_last_seen)
            for version in pinned.values()
            if version is not None and version.wal_id_last_seen > version.replay_after_wal_id
        ]
        self._first_unpublished = min((job.start_id for job in manifest.jobs), default=None)
        self._before_ms = now_ms - grace_ms if grace_ms > 0 else None
        missing = [
            checkpoint
            for checkpoint in manifest.checkpoints
            if checkpoint.manifest_id in pinned and pinned[checkpoint.manifest_id] is None
        ]
        self._protected_ms = max((checkpoint.created_at_ms for checkpoint in missing), default=None)
        self._warnings = tuple(
            f"The version {checkpoint.manifest_id} of checkpoint {checkpoint.id} is missing: what was there when the "
            "checkpoint was made is kept; delete the checkpoint to let it go."
            for checkpoint in missing
        )

    def plan(self, objects: Found, store: str) -> CollectionPlan:
        deletable: list[Deletable] = []
        kept_counts: Counter[str] = Counter()
        count = len(self._pinned)
        pin_text = "no pinned version" if count == 0 else f"no pinned version (pinned: {count})"
        number = self._manifest.manifest_id
        groups = (
            (objects.files, self._file, f"version {number} does not need it, and {pin_text}, and none will"),
            (objects.logs, self._log, f"its rows are in files of version {number}, and {pin_text} replays it"),
            (objects.manifests, self._version, f"version {number} is newer, and no checkpoint pins it"),
        )
        for metas, judge, why in groups:
            for meta in metas:
                reason = judge(meta)
                if reason is None:
                    deletable.append(Deletable(meta.path, meta.size_bytes, why))
                else:
                    kept_counts[reason] += 1
        return CollectionPlan(store, (), tuple(deletable), dict(kept_counts), self._warnings)

    def _file(self, meta: ObjectMeta) -> str | None:
        """Return why a sorted file stays; None: it may be deleted."""
        file_id = parse_sst(meta.path)
        if file_id is None:
            return "not ours"
        if file_id in self._named:
            return "in the newest version"
        if file_id in self._pinned_names:
            return PINNED
        unpublished = self._first_unpublished
        if file_id > self._manifest.newest_l0_id or (unpublished is not None and file_id >= unpublished):
            return "may be published yet"
        return self._too_young(file_id_time_ms(file_id))

    def _log(self, meta: ObjectMeta) -> str | None:
        """Return why a log object stays; None: it may be deleted."""
        wal_id = parse_wal(meta.path)
        if wal_id is None:
            return "not ours"
        if wal_id > self._manifest.replay_after_wal_id:
            return "not in files yet"
        if meta.size_bytes == FENCE_BYTES:
            return "fence"
        if any(after < wal_id <= last for after, last in self._tails):
            return PINNED
        return self._too_young(meta.modified_ms)

    def _version(self, meta: ObjectMeta) -> str | None:
        """Return why a manifest stays; None: it may be deleted."""
        manifest_id = parse_manifest(meta.path)
        if manifest_id is None:
            return "not ours"
        if manifest_id >= self._manifest.manifest_id:
            return "in the newest version"
        if manifest_id in self._pinned:
            return PINNED
        return self._too_young(meta.modified_ms)

    def _too_young(self, time_ms: int) -> str | None:
        if self._protected_ms is not None and time_ms <= self._protected_ms:
            return "older than a checkpoint whose version is missing"
        if self._before_ms is not None and time_ms >= self._before_ms:
            return "younger than the smallest age"
        return None


def plan_taking_apart(objects: Found, *, manifest: Manifest, store: str, foreign: Iterable[str] = ()) -> CollectionPlan:
    """Plan the deletion of a destroyed database: of everything except its tombstone.

    Args:
        objects: listed before `manifest` was found to be the newest.
        manifest: the newest manifest of the destroyed database.
        foreign: folders and objects in the database's folder that do not belong to it. The plan only names them.

    Returns:
        A plan in the order files, logs, manifests. The newest manifest and the fences stay, so that no sleeping writer
        can continue here. The markers of the boundary stay too; `objects` does not contain them.
    """
    deletable: list[Deletable] = []
    kept_counts: Counter[str] = Counter()
    why = "its database was destroyed"
    foreign_paths = list(foreign)
    for meta in (*objects.files, *objects.logs, *objects.manifests):
        manifest_id = parse_manifest(meta.path)
        is_log = parse_wal(meta.path) is not None
        if manifest_id is None and not is_log and parse_sst(meta.path) is None:
            foreign_paths.append(meta.path)
        elif (manifest_id is not None and manifest_id >= manifest.manifest_id) or (
            is_log and meta.size_bytes == FENCE_BYTES
        ):
            kept_counts["tombstone"] += 1
        else:
            deletable.append(Deletable(meta.path, meta.size_bytes, why))
    if foreign_paths:
        kept_counts["not ours"] = len(foreign_paths)
    warnings = tuple(
        f"{path} is not part of the database {store} and was left alone." for path in sorted(foreign_paths)
    )
    return CollectionPlan(store, (), tuple(deletable), dict(kept_counts), warnings)
