"""Claims of the roles: creating a database, claiming the writer's role or all roles, and fencing the previous writer.

Owns: `claim_writer` and `claim_all`, and the order of their steps. docs/design/0010-durability-and-fencing.md has the
reasons.

Invariants:
- Once a claim has returned, no write and no manifest of an older writer succeeds, however long that writer slept: the
  fence refuses its next record, and the epoch its next manifest. There is one case without a fence: the writer of the
  previous epoch has stated in the lease that it has ended, so it has no record to refuse; see `_end_of_log`.
- Every write that an older writer acknowledged is in the log below the fence, or in the files of the manifest.
- A claim that another claim has overtaken fails before it replays (`Fenced`), because the epoch is read once more after
  the fence. Without this check, a claimant that slept between epoch and fence could put its fence at a number that was
  collected since.
- A live lease of another owner stops the claim before anything is changed, unless `take_over`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

import msgspec

from lakebed.errors import AlreadyExists, Fenced, InvalidRequest, NotFound, Unavailable
from lakebed.ids import new_uuid
from lakebed.kv.checkpoint import check_open
from lakebed.kv.database_location import DatabaseLocation
from lakebed.kv.lease import (
    LEASE_LIFETIME_MS_DEFAULT,
    Lease,
    Process,
    check_lifetime,
    check_not_owned,
    take_lease,
    this_process,
)
from lakebed.kv.manifests import ManifestLog, describe_folder
from lakebed.kv.model import Checkpoint, Manifest, Owner
from lakebed.kv.options import DatabaseOptions
from lakebed.kv.wal import WalLog
from lakebed.log import logger
from lakebed.lsm.file_id import mint_file_id
from lakebed.lsm.operators import find_operator

_LOG: Final = logger("kv")

FENCE_TRIES_MAX: Final = 1_000
"""Most races for the next number that a claim may lose to an older writer, however long they take."""

FENCE_PATIENCE_S: Final = 60
"""How long a claim may lose races, however many.

An older writer that appends without a pause ends by itself when it reads the manifest, which has our epoch: by default
every ten seconds (`DatabaseOptions.manifest_poll_interval_ms`).
"""

_TRIES_PER_LISTING: Final = 16
"""Lost races after which the log is listed, because an older writer that is faster may have appended many objects."""

_OPENED_TRIES_MAX: Final = 16


@dataclass(frozen=True, slots=True)
class Claim:
    """A role that this process has claimed.

    Attributes:
        compactor_epoch: the compactor's epoch, as in `manifest`; it is ours if `owns_compaction`.
        owns_compaction: whether older compactors are fenced too.
        manifest: the newest when the fence was made. Replay the log between its `replay_after_wal_id` and the fence.
        fence_id: our fence in the log, or the last object of a log that its writer left. The first record follows it.
        checkpoint_id: the writer's own checkpoint, on `manifest`; None for `claim_all`.
        log: the manifests; it has seen `manifest`.
        lease: the lease, which this process has taken. Renew it, and give it up at the end.
        warning: what was wrong with the earlier lease, or that ours could not be written yet; None: no problem.
        created: whether this call created the database.
    """

    epoch: int
    compactor_epoch: int
    owns_compaction: bool
    manifest: Manifest
    fence_id: int
    checkpoint_id: str | None
    log: ManifestLog
    lease: Lease
    warning: str | None
    created: bool


def claim_writer(
    location: DatabaseLocation,
    *,
    options: DatabaseOptions | None = None,
    create: bool = True,
    take_over: bool = False,
    after_destroy: bool = False,
    process: Process | None = None,
) -> Claim:
    """Become the writer. Every older writer is fenced.

    With `DatabaseOptions.compaction` this also claims the compactor's role, so that no older process compacts at the
    same time.

    Args:
        options: the first writer that names a `merge_operator` stores it, each writer stores `wal_enabled`. The lease
            lives for `lease_lifetime_ms`.
        create: create the database if nothing is there.
        take_over: claim the role even if another owner's lease is live.
        after_destroy: create a new database where one was destroyed. Its numbers continue from there.
        process: the process that becomes the owner; None: the process that calls.

    Raises:
        Conflict: kind ``owned``; another owner's lease is live.
        InvalidRequest: kind ``invalid_db_state``: the database was destroyed, or is an unfinished clone.
            ``not_a_database``: something else is there. ``merge_operator_mismatch``: the database has another operator.
            ``unknown_operator``: the database's operator is not registered here. ``create_only_ignored``.
        NotFound: kind ``database_not_found``: nothing is there, and `create` is False.
        Fenced: another claim was faster.
        Unavailable, OutcomeUnknown: the store gave no clear answer. Claim again. An older writer may be fenced already.

    Cost: 4 LIST + 2 GET + 3 PUT, and 1 LIST of the boundary; 1 LIST + 1 PUT less after a writer that closed the
    database; for a new database 2 LIST + 1 PUT and the probe more.
    """
    options = options or DatabaseOptions()
    check_lifetime(options.lease_lifetime_ms)
    log = ManifestLog(location)
    manifest, is_new = _open_or_create(location, log, options=options, create=create, after_destroy=after_destroy)
    check_open(manifest, location.url)
    _check_operator(manifest, options, location.url)
    checkpoint_id = new_uuid(location.environment.rng)

    def bump(manifest: Manifest, last_wal_id: int) -> Manifest:
        check_open(manifest, location.url)
        _check_operator(manifest, options, location.url)
        claimed_manifest = _with_new_epoch(manifest, location, compaction=options.compaction, last_wal_id=last_wal_id)
        checkpoint = Checkpoint(
            id=checkpoint_id,
            manifest_id=manifest.manifest_id + 1,
            created_at_ms=location.environment.clock.now_ms(),
            owner=Owner("writer", epoch=claimed_manifest.writer_epoch),
        )
        return msgspec.structs.replace(
            claimed_manifest,
            checkpoints=(*claimed_manifest.checkpoints, checkpoint),
            merge_operator=manifest.merge_operator or options.merge_operator,
            wal_enabled=options.wal_enabled,
        )

    _LOG.info("opening for writing", database=location.url, created=is_new, take_over=take_over)
    return _claim(
        location,
        log,
        manifest,
        role=_Role(
            bump=bump,
            owns_compaction=options.compaction,
            checkpoint_id=checkpoint_id,
            created=is_new,
            needs_fence=False,
        ),
        take_over=take_over,
        lifetime_ms=options.lease_lifetime_ms,
        process=process or this_process(),
    )


def claim_all(
    location: DatabaseLocation,
    *,
    take_over: bool = False,
    must_be_open: bool = True,
    process: Process | None = None,
) -> Claim:
    """Become writer and compactor, to restore or destroy. No other process can change files or rows any more.

    The caller releases `Claim.lease` at the end.

    Args:
        must_be_open: False also claims an unfinished clone, and a database that was destroyed.

    Raises as `claim_writer`. Cost: 4 LIST + 2 GET + 3 PUT, and 1 LIST of the boundary.
    """
    log = ManifestLog(location)
    manifest = log.latest()
    if must_be_open:
        check_open(manifest, location.url)

    def bump(manifest: Manifest, last_wal_id: int) -> Manifest:
        if must_be_open:
            check_open(manifest, location.url)
        return _with_new_epoch(manifest, location, compaction=True, last_wal_id=last_wal_id)

    return _claim(
        location,
        log,
        manifest,
        role=_Role(bump=bump, owns_compaction=True, checkpoint_id=None, created=False, needs_fence=True),
        take_over=take_over,
        lifetime_ms=LEASE_LIFETIME_MS_DEFAULT,
        process=process or this_process(),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Role:
    """The role to claim. The other fields are as in `Claim`."""

    bump: Callable[[Manifest, int], Manifest]
    """Returns a manifest with the next epoch, from a manifest and the last log id. It may raise to stop the claim."""
    owns_compaction: bool
    checkpoint_id: str | None
    created: bool
    needs_fence: bool
    """Whether to make a fence even after a writer that has ended: a restore or destruction needs its own log id."""


def _claim(
    location: DatabaseLocation,
    log: ManifestLog,
    manifest: Manifest,
    *,
    role: _Role,
    take_over: bool,
    lifetime_ms: int,
    process: Process,
) -> Claim:
    """Read the lease, find the next id, and set the epoch; make the fence, read the epoch again, and take the lease.

    The design note proves why this order is safe. The lease is read before the log is listed, so if the lease states
    that its writer has ended, the listing has all records of that writer.
    """
    lease_state = check_not_owned(location, take_over=take_over, process=process)
    wal = WalLog(location)
    # After a collection or in a clone, the log may be empty above the last id seen. The numbers continue from that id.
    last_wal_id = wal.last_id(max(manifest.replay_after_wal_id, manifest.wal_id_last_seen))
    claimed = newest = log.update(lambda newest: role.bump(newest, last_wal_id))
    if lease_state.ended_epoch == claimed.writer_epoch - 1 and not role.needs_fence:
        fence_id = _end_of_log(claimed, last_wal_id)
    else:
        fence_id = _fence(location, wal, claimed, next_id=last_wal_id + 1)
        newest = log.latest()
        if newest.writer_epoch != claimed.writer_epoch:
            raise _overtaken(location, claimed, newest)
    lease, unwritten = take_lease(location, process=process, epoch=claimed.writer_epoch, lifetime_ms=lifetime_ms)
    return Claim(
        epoch=claimed.writer_epoch,
        compactor_epoch=claimed.compactor_epoch,
        owns_compaction=role.owns_compaction,
        manifest=newest,
        fence_id=fence_id,
        checkpoint_id=role.checkpoint_id,
        log=log,
        lease=lease,
        warning=unwritten or lease_state.warning,
        created=role.created,
    )


def _end_of_log(claimed_manifest: Manifest, last_wal_id: int) -> int:
    """Return the last id of a log whose writer, of the epoch just before ours, had ended before the log was listed.

    No fence is needed after this id:
    - That writer appends nothing any more.
    - The writers before it were fenced, or had ended, before its first record.
    - A later claim sees that our epoch has not ended, so it makes a fence at the next id, with which our first append
      would collide.

    The newest epoch need not be checked either. Nothing was appended between the listing and our epoch, so the listing
    cannot be out of date, and only objects up to the ids in the manifest were collected.
    """
    return max(last_wal_id, claimed_manifest.wal_id_last_seen, claimed_manifest.replay_after_wal_id)


def _fence(location: DatabaseLocation, wal: WalLog, claimed_manifest: Manifest, *, next_id: int) -> int:
    """Make our fence at the first id that no older writer took, and return the id."""
    # Between our listing of the log and our epoch another writer may have written, flushed and collected. A number that
    # its files cover already may then be free again, and a fence there would stop no writer.
    if next_id <= claimed_manifest.replay_after_wal_id:
        next_id = _next_id(
            location,
            wal,
            claimed_manifest,
            after=max(claimed_manifest.replay_after_wal_id, claimed_manifest.wal_id_last_seen),
        )
    clock = location.environment.clock
    ends_s = clock.monotonic_s() + FENCE_PATIENCE_S
    tries = 0
    while tries < FENCE_TRIES_MAX or clock.monotonic_s() < ends_s:
        record = wal.fence(next_id, claimed_manifest.writer_epoch)
        if record is None:
            return next_id
        if record.epoch >= claimed_manifest.writer_epoch:
            raise _overtaken_by(location, claimed_manifest, record.epoch)
        tries += 1
        next_id += 1
        if tries % _TRIES_PER_LISTING == 0:
            next_id = _next_id(location, wal, claimed_manifest, after=next_id - 1)
    raise Unavailable(
        f"The writer of {location.url} could not be fenced: it appended faster than this process could follow, "
        f"{tries:,} times in {FENCE_PATIENCE_S} s. Stop that process, or try again.",
        kind="fence_starved",
        url=location.url,
    )


def _next_id(location: DatabaseLocation, wal: WalLog, claimed_manifest: Manifest, *, after: int) -> int:
    """Return the number after the last one of the log.

    Cost: 1 LIST for each thousand numbers above `after`, and 1 LIST + 1 GET.
    """
    next_id = wal.last_id(after) + 1
    # The last record may be that of a newer owner, which has published its epoch before. A fence after it would end
    # that owner.
    newest = ManifestLog(location).latest()
    if newest.writer_epoch != claimed_manifest.writer_epoch:
        raise _overtaken(location, claimed_manifest, newest)
    return next_id


def _with_new_epoch(manifest: Manifest, location: DatabaseLocation, *, compaction: bool, last_wal_id: int) -> Manifest:
    """Return the manifest with the next epoch, without the previous writer's checkpoint and jobs.

    The previous writer also loses the right to publish files with smaller ids.
    """
    return msgspec.structs.replace(
        manifest,
        writer_epoch=manifest.writer_epoch + 1,
        compactor_epoch=manifest.compactor_epoch + (1 if compaction else 0),
        wal_id_last_seen=max(manifest.wal_id_last_seen, last_wal_id),
        newest_l0_id=mint_file_id(manifest.newest_l0_id, environment=location.environment),
        # The writer runs loads, the compactor compactions. The previous role publishes no files of its jobs any more.
        jobs=tuple(job for job in manifest.jobs if job.kind == "compaction" and not compaction),
        checkpoints=tuple(checkpoint for checkpoint in manifest.checkpoints if checkpoint.owner.kind != "writer"),
    )


def _overtaken(location: DatabaseLocation, claimed_manifest: Manifest, newest: Manifest) -> Fenced:
    return _overtaken_by(location, claimed_manifest, newest.writer_epoch)


def _overtaken_by(location: DatabaseLocation, claimed_manifest: Manifest, epoch: int) -> Fenced:
    return Fenced(
        f"While {location.url} was being opened for writing, another process took it (epoch {epoch}, ours was "
        f"{claimed_manifest.writer_epoch}): open it again only if that one should end.",
        url=location.url,
        epoch=claimed_manifest.writer_epoch,
        new_epoch=epoch,
    )


def _check_operator(manifest: Manifest, options: DatabaseOptions, url: str) -> None:
    stored, operator = manifest.merge_operator, options.merge_operator
    if stored is not None:
        find_operator(stored)  # a process that cannot read the database must not fence its writer
    if stored is not None and operator is not None and stored != operator:
        raise InvalidRequest(
            f"The database {url} merges with {stored!r}, and {operator!r} was asked for: its operands are meant for "
            "the first.",
            kind="merge_operator_mismatch",
            url=url,
            merge_operator=stored,
        )


def first_manifest(location: DatabaseLocation, *, options: DatabaseOptions) -> Manifest:
    """Return the manifest of an empty database, before the first claim."""
    return Manifest(
        manifest_id=0,
        write_id="",
        created_at_ms=0,
        initialized=True,
        writer_epoch=0,
        compactor_epoch=0,
        replay_after_wal_id=0,
        wal_id_last_seen=0,
        last_sequence=0,
        newest_l0_id=mint_file_id(environment=location.environment),
        merge_operator=options.merge_operator,
        wal_enabled=options.wal_enabled,
    )


def _open_or_create(
    location: DatabaseLocation, log: ManifestLog, *, options: DatabaseOptions, create: bool, after_destroy: bool
) -> tuple[Manifest, bool]:
    """Return the newest manifest, and whether this call created the database."""
    for _ in range(_OPENED_TRIES_MAX):
        manifest = log.find_latest() if create else log.latest()
        if manifest is not None:
            if manifest.destroyed_at_ms is None or not after_destroy:
                return manifest, False
            return _create_after_destroy(location, log, options=options)
        kind, words = describe_folder(location)
        if kind == "database":
            continue  # another process has just created it
        if kind != "nothing":
            raise InvalidRequest(
                f"There is no database at {location.url}, and none can be made there: {words}. Name an empty folder.",
                kind="not_a_database",
                url=location.url,
                there=kind,
            )
        location.probe()
        try:
            first = log.create(first_manifest(location, options=options))
        except AlreadyExists:
            continue  # another process was faster: use its database
        location.keep_reserve()
        return first, True
    raise NotFound(
        f"The folder of manifests at {location.url} holds no manifest.", kind="database_not_found", url=location.url
    )


def _create_after_destroy(
    location: DatabaseLocation, log: ManifestLog, *, options: DatabaseOptions
) -> tuple[Manifest, bool]:
    """Create an empty database after the tombstone of a destroyed one.

    Live checkpoints stay, and with them the ancestors' files, because the versions that they pin are not collected yet.
    Epochs, sequences and numbers continue, so that no writer from before the destruction is taken for a current one.
    """
    made = False

    def change(manifest: Manifest) -> Manifest | None:
        nonlocal made
        made = manifest.destroyed_at_ms is not None
        if not made:
            return None  # another process was faster
        last_wal_id = WalLog(location).last_id(max(manifest.replay_after_wal_id, manifest.wal_id_last_seen))
        return msgspec.structs.replace(
            first_manifest(location, options=options),
            writer_epoch=manifest.writer_epoch,
            compactor_epoch=manifest.compactor_epoch,
            replay_after_wal_id=last_wal_id,
            wal_id_last_seen=last_wal_id,
            last_sequence=manifest.last_sequence,
            newest_l0_id=mint_file_id(manifest.newest_l0_id, environment=location.environment),
            readable_since=manifest.manifest_id + 1,
            checkpoints=tuple(checkpoint for checkpoint in manifest.checkpoints if checkpoint.owner.kind != "writer"),
            external_databases=manifest.external_databases,
        )

    return log.update(change), made
