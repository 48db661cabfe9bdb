"""Restore: the version of a checkpoint becomes the newest one, in place.

History is kept, and the present version stays for a stated time. Owns: `restore` and the order of its steps.

Invariants:
- Nothing is lost. Before anything changes, one update makes a checkpoint of the present version, with everything that
  was acknowledged up to our fence.
- The wanted version cannot be collected during the restore, because the same update pins it once more, as the writer
  of the new epoch. So a crash leaves nothing that the next writer does not remove.
- A crash leaves the old state or the new one, because only the last update names files of level 0. Sequences, log ids
  and file ids continue from the larger of both states.

Source: the design page, "Clones".
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import timedelta
from typing import Final

import msgspec

from lakebed.errors import Corruption, Fenced, LakebedError, NotFound
from lakebed.ids import new_uuid
from lakebed.kv.checkpoint import (
    check_open,
    find_checkpoint,
    lifetime_in_ms,
    new_checkpoint,
    with_checkpoint,
    without_checkpoint,
)
from lakebed.kv.claim import Claim, claim_all
from lakebed.kv.database_location import DatabaseLocation
from lakebed.kv.layout import sst_path
from lakebed.kv.manifests import ManifestLog
from lakebed.kv.model import CheckpointCreateResult, Manifest, Owner
from lakebed.kv.options import DatabaseOptions
from lakebed.kv.recovery import replay
from lakebed.kv.wal import WalLog
from lakebed.lsm.cache import BlockCache
from lakebed.lsm.file_id import mint_file_id
from lakebed.lsm.file_writer import FileOptions
from lakebed.lsm.files import FileStore
from lakebed.lsm.flush import encode_memtable
from lakebed.lsm.model import FileMeta

RESTORABLE_FOR: Final = timedelta(days=7)
"""How long the state before a restore is kept by default."""


@dataclass(frozen=True, slots=True)
class Restored:
    """The result of a restore."""

    manifest: Manifest
    """The newest version, which has the restored state."""
    present: CheckpointCreateResult
    """The checkpoint of the state before the restore. It lives for `lifetime`."""


def restore(
    location: DatabaseLocation,
    checkpoint: str,
    *,
    lifetime: timedelta | None = RESTORABLE_FOR,
    take_over: bool = False,
) -> Restored:
    """Make a checkpoint's version the newest. Writers and compactors are fenced. Open the database again to write.

    Args:
        checkpoint: a live checkpoint, by id or name. It stays.
        lifetime: lifetime of the checkpoint of the present version; None: without an end.
        take_over: restore even if another owner's lease is live.

    Raises:
        InvalidRequest: kind ``invalid_db_state``; the checkpoint is unknown or has expired, or the database is
            destroyed or unfinished. Nothing was changed.
        Conflict: kind ``owned``; a writer lives, and `take_over` is False.
        NotFound: there is no database.
        Fenced: another writer was faster. If the state is not restored, restore again.
        Corruption: an object that the checkpoint pins is missing or damaged.

    Cost: a claim, 2 updates, 1 LIST and at most 2 GET. If the log has a tail, also 1 GET for each object and 1 PUT for
    each file of it.
    """
    keep_ms = lifetime_in_ms(lifetime)
    newest = check_open(ManifestLog(location).latest(), location.url)
    wanted_id = find_checkpoint(newest, checkpoint, now_ms=location.environment.clock.now_ms(), url=location.url).id
    claim = claim_all(location, take_over=take_over)
    with giving_up(claim):
        present_id, hold_id = (new_uuid(location.environment.rng) for _ in range(2))
        pinned_manifest = _pin_both(location, claim, wanted_id, present_id=present_id, hold_id=hold_id, keep_ms=keep_ms)
        wanted_manifest = _load_wanted(claim.log, pinned_manifest, hold_id)
        sequence = _last_sequence(location, claim.manifest, claim.fence_id)
        files, last_sequence = _flush_tail(location, claim, wanted_manifest, after_id=pinned_manifest.newest_l0_id)
        sequence = max(sequence, wanted_manifest.last_sequence, last_sequence)
        restored_manifest = _publish(location, claim, wanted_manifest, files, sequence=sequence, hold_id=hold_id)
    present = next(checkpoint for checkpoint in pinned_manifest.checkpoints if checkpoint.id == present_id)
    return Restored(restored_manifest, CheckpointCreateResult(present.id, present.manifest_id))


@contextmanager
def giving_up(claim: Claim) -> Iterator[None]:
    """Give up the claim's lease at the end, also after an error. A lease that cannot be given up expires."""
    try:
        yield
    finally:
        with suppress(LakebedError):
            claim.lease.give_up()


def _check_ours(manifest: Manifest, claim: Claim, url: str) -> None:
    if (manifest.writer_epoch, manifest.compactor_epoch) != (claim.epoch, claim.compactor_epoch):
        raise Fenced(
            f"While {url} was being restored, another process took it (epoch {manifest.writer_epoch}, ours was "
            f"{claim.epoch}): if the wanted state is not there, restore again.",
            url=url,
            epoch=claim.epoch,
            new_epoch=manifest.writer_epoch,
        )


def _pin_both(
    location: DatabaseLocation, claim: Claim, wanted_id: str, *, present_id: str, hold_id: str, keep_ms: int | None
) -> Manifest:
    """Make a checkpoint of the present version, and pin the wanted one."""

    def change(manifest: Manifest) -> Manifest:
        _check_ours(manifest, claim, location.url)
        now_ms = location.environment.clock.now_ms()
        wanted_checkpoint = find_checkpoint(manifest, wanted_id, now_ms=now_ms, url=location.url)
        present = new_checkpoint(manifest.manifest_id + 1, id=present_id, now_ms=now_ms, lifetime_ms=keep_ms)
        hold = new_checkpoint(
            wanted_checkpoint.manifest_id, id=hold_id, now_ms=now_ms, owner=Owner("writer", epoch=claim.epoch)
        )
        last_seen = max(manifest.wal_id_last_seen, claim.fence_id)
        return msgspec.structs.replace(
            with_checkpoint(with_checkpoint(manifest, present), hold), wal_id_last_seen=last_seen
        )

    return claim.log.update(change)


def _load_wanted(log: ManifestLog, pinned_manifest: Manifest, hold_id: str) -> Manifest:
    checkpoint = next(entry for entry in pinned_manifest.checkpoints if entry.id == hold_id)
    try:
        return log.load(checkpoint.manifest_id)
    except NotFound as missing:
        raise Corruption(
            f"Version {checkpoint.manifest_id} cannot be restored: a checkpoint pins it, and it is missing.",
            path=missing.facts.get("path"),
            manifest_id=checkpoint.manifest_id,
        ) from missing


def _last_sequence(location: DatabaseLocation, manifest: Manifest, fence_id: int) -> int:
    """Return the largest sequence of the present version and its log. Cost: 1 LIST, and 1 GET if the log has a tail."""
    if fence_id <= manifest.replay_after_wal_id:
        return manifest.last_sequence
    wal = WalLog(location)
    for entry in reversed(wal.entries(manifest.replay_after_wal_id)):
        if not entry.is_fence and entry.id <= fence_id:
            return max(manifest.last_sequence, wal.read(entry.id).last_sequence)
    return manifest.last_sequence


def _flush_tail(
    location: DatabaseLocation, claim: Claim, wanted_manifest: Manifest, *, after_id: str
) -> tuple[list[FileMeta], int]:
    """Write the rows of the wanted version's log as files. Return these, newest first, and their last sequence."""
    if wanted_manifest.wal_id_last_seen <= wanted_manifest.replay_after_wal_id:
        return [], 0
    options = DatabaseOptions()
    tables = replay(
        location, wanted_manifest, through=wanted_manifest.wal_id_last_seen, table_bytes_max=options.l0_sst_bytes
    )
    files = FileStore(
        location.store,
        path_of=sst_path,
        cache=BlockCache(0),
        options=FileOptions(block_bytes=options.block_bytes, bits_per_key=options.filter_bits_per_key),
        environment=location.environment,
    )
    new_files: list[FileMeta] = []
    for table in tables:
        claim.lease.renew_once()
        after_id = mint_file_id(after_id, environment=location.environment)
        # Operands stay as they are, because their operator may not be registered here.
        writer = encode_memtable(
            table,
            files=files,
            file_id=after_id,
            operator=None,
            retain_since_sequence=None,
        )
        if writer is not None:
            new_files.insert(0, writer.finish())
    return new_files, tables[-1].last_sequence if tables else 0


def _publish(
    location: DatabaseLocation,
    claim: Claim,
    wanted_manifest: Manifest,
    files: list[FileMeta],
    *,
    sequence: int,
    hold_id: str,
) -> Manifest:
    """Make the update that restores. The wanted version's ancestors still exist: its pin has kept their entries."""

    def change(manifest: Manifest) -> Manifest:
        _check_ours(manifest, claim, location.url)
        find_checkpoint(manifest, hold_id, now_ms=location.environment.clock.now_ms(), url=location.url)
        return msgspec.structs.replace(
            without_checkpoint(manifest, hold_id),
            replay_after_wal_id=claim.fence_id,
            wal_id_last_seen=max(manifest.wal_id_last_seen, claim.fence_id),
            last_sequence=sequence,
            newest_l0_id=max([manifest.newest_l0_id, *(file.id for file in files)]),
            l0=(*files, *wanted_manifest.l0),
            runs=wanted_manifest.runs,
            jobs=(),
            merge_operator=manifest.merge_operator or wanted_manifest.merge_operator,
        )

    return claim.log.update(change)
