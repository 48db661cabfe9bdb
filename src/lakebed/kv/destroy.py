"""Destruction of a database: softly, so that the collector deletes it after a grace, or at once.

Owns: `destroy`, and `take_apart`, which the collector calls when a soft destruction's grace is over.

Invariants:
- Nothing is deleted while a live checkpoint pins a version. A hard destruction is then refused, with the checkpoints
  and their owners. A soft one waits for them. In a destroyed database no checkpoint may be created, refreshed or
  opened, so their number only decreases. A checkpoint has ended if it has ended by our clock and by the store's, which
  is asked only if one has ended by ours.
- Writers and compactors are fenced, in the manifest and in the log, before the database is marked as destroyed.
- The objects to delete are listed **before** the newest manifest is seen to be a destroyed one. A database that is
  created again at this path uses other names, and its objects are in no such list.
- Our pins in ancestors are removed first. Then only objects with a name of ours are deleted. Anything else in the
  folder, such as another database, is left alone and named in the report.
- A tombstone stays: the newest manifest, the boundary, the log's fences and the lease. Each refuses a sleeping writer.

Source: "Deleting a Database"; docs/design/0012-clones-and-destroy.md.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace

import msgspec

from lakebed.errors import InvalidRequest
from lakebed.kv.checkpoint import describe_checkpoint, live_checkpoints, without_expired
from lakebed.kv.claim import claim_all
from lakebed.kv.database_location import DatabaseLocation
from lakebed.kv.layout import (
    BOUNDARY_FOLDER,
    LEASE_PATH,
    MANIFEST_FOLDER,
    SST_FOLDER,
    WAL_FOLDER,
    parse_manifest,
)
from lakebed.kv.lease import check_not_owned
from lakebed.kv.manifests import ManifestLog
from lakebed.kv.model import Manifest
from lakebed.kv.pins import release_pin
from lakebed.kv.reclaim import Found, plan_taking_apart
from lakebed.kv.restore import giving_up
from lakebed.kv.wal_record import FENCE_BYTES
from lakebed.objects.path import parse_url
from lakebed.objects.port import ObjectMeta
from lakebed.objects.probe import is_probe, leftover_probes, store_time_ms
from lakebed.objects.reserve import RESERVE_PATH, freeing_space
from lakebed.reclaim.model import CollectionPlan, CollectionReport, Deletable
from lakebed.reclaim.sweep import Progress, Sweep, Sweeper, report_of

ProgressCall = Callable[[Progress], None]

_ROLES = ("writer", "compactor")
"""Roles whose checkpoints a claim ends, so that they do not prevent a destruction."""

_OWN_FOLDERS = {MANIFEST_FOLDER, WAL_FOLDER, SST_FOLDER, BOUNDARY_FOLDER}


def destroy(
    location: DatabaseLocation,
    *,
    soft: bool,
    take_over: bool = False,
    dry_run: bool = False,
    progress: ProgressCall | None = None,
) -> CollectionReport:
    """Destroy a database. Idempotent: after a crash at any step the same call finishes.

    Args:
        soft: only mark it. A collector deletes it when the grace is over and no checkpoint lives. False: delete it at
            once.
        take_over: destroy it even if another owner's lease is live.
        dry_run: report what would be deleted now; change nothing. Errors are those of the real call.
        progress: called after each batch of deletions.

    Returns:
        The report of what was deleted. A soft destruction deletes nothing.

    Raises:
        InvalidRequest: kind ``invalid_deletion``; `soft` is False, and checkpoints live. The message names them and
            their owners. Nothing was changed.
        Conflict: kind ``owned``; a writer lives, and `take_over` is False.
        NotFound: there is no database.

    Cost: a claim and 1 update. If `soft` is False, also 4 LIST, the boundary, 1 update for each ancestor, and 1 DELETE
    for each thousand objects. With ended checkpoints also that of `store_time_ms`.
    """
    log = ManifestLog(location)
    manifest = log.latest()
    if dry_run:
        if not soft:
            _check_unpinned(manifest, location, now_ms=location.environment.clock.now_ms())
        return _preview(location, manifest, soft=soft, take_over=take_over)
    with freeing_space():
        if not soft:
            _check_unpinned(manifest, location, now_ms=_read_agreed_ms(manifest, location))
        while manifest.destroyed_at_ms is None:
            if manifest.initialized:
                claim = claim_all(location, take_over=take_over, must_be_open=False)
                with giving_up(claim):
                    manifest = _stamp(location, claim.log, soft=soft, epoch=claim.epoch)
            else:  # an unfinished clone has no writer; a clone that is finished in between may have one
                manifest = _stamp(location, log, soft=soft, epoch=None)
        if soft:
            return report_of(CollectionPlan(store_name(location), (), ()), Sweep(), hidden_count=0, dry_run=False)
        report = take_apart(location, progress=progress)
    if report.plan is not None and report.deleted_count == len(report.plan.doomed):
        location.drop_reserve()
    return report


def _read_agreed_ms(manifest: Manifest, location: DatabaseLocation) -> int:
    """Return the time by which checkpoints have ended: the earlier of our time and the store's.

    The store is asked only if a checkpoint has ended by our clock. Cost: nothing, or that of `store_time_ms`.
    """
    now_ms = location.environment.clock.now_ms()
    if len(live_checkpoints(manifest, now_ms)) == len(manifest.checkpoints):
        return now_ms
    return min(now_ms, store_time_ms(location.store, environment=location.environment))


def _check_unpinned(manifest: Manifest, location: DatabaseLocation, *, now_ms: int) -> None:
    """Raise for live checkpoints, except those of the roles that the destruction claims."""
    live = live_checkpoints(manifest, now_ms)
    live = tuple(checkpoint for checkpoint in live if checkpoint.owner.kind not in _ROLES)
    if not live:
        return
    descriptions = "; ".join(describe_checkpoint(checkpoint) for checkpoint in live)
    count = "a live checkpoint" if len(live) == 1 else f"{len(live)} live checkpoints"
    raise InvalidRequest(
        f"The database {location.url} cannot be destroyed at once, for it has {count}: {descriptions}. Delete them or "
        "let them expire, or destroy it softly (--soft).",
        kind="invalid_deletion",
        url=location.url,
        checkpoints=[checkpoint.id for checkpoint in live],
        owners=[str(checkpoint.owner) for checkpoint in live],
    )


def _stamp(location: DatabaseLocation, log: ManifestLog, *, soft: bool, epoch: int | None) -> Manifest:
    """Mark the database as destroyed. If the manifest changed in a way that forbids it, return that manifest unmarked.

    Args:
        epoch: our epoch; None: the database is an unfinished clone.
    """

    def change(manifest: Manifest) -> Manifest | None:
        is_ours = not manifest.initialized if epoch is None else manifest.writer_epoch == epoch
        if manifest.destroyed_at_ms is not None or not is_ours:
            return None
        agreed_ms = _read_agreed_ms(manifest, location)
        if not soft:
            _check_unpinned(manifest, location, now_ms=agreed_ms)
        # The same update removes dead pins, so that no process whose clock is behind can still use one.
        without_dead = without_expired(manifest, agreed_ms)
        return msgspec.structs.replace(
            without_dead,
            destroyed_at_ms=location.environment.clock.now_ms(),
            jobs=(),
            checkpoints=tuple(
                checkpoint for checkpoint in without_dead.checkpoints if checkpoint.owner.kind not in _ROLES
            ),
        )

    return log.update(change)


def _preview(location: DatabaseLocation, manifest: Manifest, *, soft: bool, take_over: bool) -> CollectionReport:
    """Return the report of a dry run. A tombstone replaces the newest manifest, so one more object will be deleted."""
    if manifest.initialized and manifest.destroyed_at_ms is None:
        check_not_owned(location, take_over=take_over)
    if soft:
        plan = CollectionPlan(store_name(location), (), ())
    else:
        objects = find_objects(location)
        next_id = manifest.manifest_id + (manifest.destroyed_at_ms is None)
        tombstone = msgspec.structs.replace(manifest, manifest_id=next_id)
        plan = plan_taking_apart(objects, manifest=tombstone, store=store_name(location), foreign=_foreign(location))
        plan = with_old_probes(plan, location, dry_run=True)
    return report_of(plan, Sweep(), hidden_count=0, dry_run=True)


@freeing_space()
def take_apart(
    location: DatabaseLocation, *, dry_run: bool = False, progress: ProgressCall | None = None
) -> CollectionReport:
    """Delete what a destroyed database owns, except its tombstone. Calling it again is a no-op.

    Raises:
        InvalidRequest: kind ``invalid_deletion``; a checkpoint lives.
        UnsupportedFormat: a newer lakebed wrote the tombstone.

    Cost: 4 LIST + 1 GET, 1 update for each ancestor, the boundary, and 1 DELETE for each thousand objects.
    """
    objects = find_objects(location)
    log = ManifestLog(location)
    manifest = log.latest()
    log.check_deletable()
    if manifest.destroyed_at_ms is not None:
        now_ms = location.environment.clock.now_ms() if dry_run else _read_agreed_ms(manifest, location)
        _check_unpinned(manifest, location, now_ms=now_ms)
        if not dry_run:
            manifest = _leave_ancestors(location, log, manifest)
    name = store_name(location)
    if manifest.destroyed_at_ms is None:
        warning = f"{location.url} was created again meanwhile: nothing of it was deleted."
        return report_of(CollectionPlan(name, (), (), {}, (warning,)), Sweep(), hidden_count=0, dry_run=dry_run)
    plan = plan_taking_apart(objects, manifest=manifest, store=name, foreign=_foreign(location))
    plan = with_old_probes(plan, location, dry_run=dry_run)
    if dry_run:
        return report_of(plan, Sweep(), hidden_count=0, dry_run=True)
    if any(parse_manifest(deletable.path) is not None for deletable in plan.doomed):
        log.raise_boundary(manifest.manifest_id, manifest=manifest)
    return Sweeper(location.store, progress).sweep(plan)


def with_old_probes(plan: CollectionPlan, location: DatabaseLocation, *, dry_run: bool) -> CollectionPlan:
    """Return the plan with the probes of dead processes; in a lake unchanged, as the lake's collection finds them.

    Cost: outside of a lake that of `leftover_probes`.
    """
    if location.is_probed:
        return plan
    probes = leftover_probes(location.store, environment=location.environment, dry_run=dry_run)
    died = (Deletable(meta.path, meta.size_bytes, "its process died while probing") for meta in probes)
    return replace(plan, doomed=(*plan.doomed, *died))


def _leave_ancestors(location: DatabaseLocation, log: ManifestLog, manifest: Manifest) -> Manifest:
    """Remove our pins from all ancestors, then their entries. Return the newest manifest, also of another process."""
    if not manifest.external_databases:
        return manifest
    for entry in manifest.external_databases:
        release_pin(location.other(entry.url), entry.pin, clone=location, decided=manifest)

    def change(newest: Manifest) -> Manifest | None:
        if newest.destroyed_at_ms is None or not newest.external_databases:
            return None
        return msgspec.structs.replace(newest, external_databases=())

    return log.update(change)


def find_objects(location: DatabaseLocation, *, log_count_max: int | None = None) -> Found:
    """List the objects in the folders of a database. Cost: 3 LIST, and 1 more for each thousand objects.

    Args:
        log_count_max: as `CollectorOptions.log_count_max`.
    """
    store = location.store
    return Found(
        files=tuple(store.list(SST_FOLDER)),
        logs=tuple(_first_logs(store.list(WAL_FOLDER), log_count_max)),
        manifests=tuple(store.list(MANIFEST_FOLDER)),
    )


def _first_logs(logs: Iterable[ObjectMeta], count_max: int | None) -> Iterator[ObjectMeta]:
    """Return the first objects of a log, at most `count_max` without fences, and the fences before and between them.

    Fences do not count, because they stay and would use up the count of every collection.
    """
    count = 0
    for meta in logs:
        count += meta.size_bytes != FENCE_BYTES
        if count_max is not None and count > count_max:
            return
        yield meta


def _foreign(location: DatabaseLocation) -> list[str]:
    """List what is in the folder and does not belong to the database. Cost: 1 LIST."""
    top = location.store.list_with_delimiter("")
    own_folders = {*_OWN_FOLDERS, RESERVE_PATH.partition("/")[0]} if location.keeps_reserve else _OWN_FOLDERS
    folders = [f"{folder}/" for folder in top.folders if folder not in own_folders]
    return folders + [meta.path for meta in top.objects if meta.path != LEASE_PATH and not is_probe(meta.path)]


def store_name(location: DatabaseLocation) -> str:
    """Return the name of a database in reports: the last part of its URL."""
    url = parse_url(location.url)
    return url.prefix.rpartition("/")[2] or url.place
