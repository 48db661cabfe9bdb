"""Checkpoints, which pin versions of a database: their changes of a manifest, as pure functions, and their verbs.

Owns: `check_open`, the rules for names and lifetimes, and the verbs create, refresh, delete and list, which work with
or without a running writer.

Invariants:
- A checkpoint of the latest version pins a manifest whose `wal_id_last_seen` is the last log object in a listing that
  was made after the newest manifest was read. So no durable write is missing. The listing cannot contain a record of a
  later writer: its epoch would have made another manifest first, and our update would have lost the race. If the log
  has grown since the newest manifest, the manifest that first names the checkpoint is pinned. Otherwise an existing
  manifest with the same content is pinned, so that all checkpoints of an unchanged database keep the same manifest.
- A checkpoint made from another checkpoint, of an old version, or of a latest version that has not changed, pins a
  manifest that is pinned, readable or the newest *in the manifest to which the checkpoint is appended*. This is safe
  because a collector first marks versions as unreadable in a manifest (`Manifest.readable_since`).
- An expired checkpoint is dead at once. It cannot be a source, refreshed or opened, and its name is free. It can be
  deleted. It stays in the manifest until the collector drops it.
- One call makes one checkpoint, even if replies are lost: its id is generated once, and a manifest that contains the id
  is the result of this call.
"""

from __future__ import annotations

import uuid
from datetime import timedelta
from typing import Final

import msgspec

from lakebed.duration import format_duration
from lakebed.errors import AlreadyExists, Corruption, InvalidRequest, NotFound
from lakebed.ids import new_uuid
from lakebed.kv.database_location import DatabaseLocation
from lakebed.kv.limits import check_type
from lakebed.kv.manifests import ManifestLog
from lakebed.kv.model import Checkpoint, CheckpointCreateResult, Manifest, Owner
from lakebed.kv.options import CheckpointOptions
from lakebed.kv.wal import WalLog
from lakebed.texts import did_you_mean, utc

CHECKPOINT_COUNT_MAX: Final = 10_000
"""Most live checkpoints of one database. Every manifest names them all, about 200 bytes for each."""

NAME_BYTES_MAX: Final = 255

_USER: Final = Owner("user")

_LASTING_KINDS: Final = ("user", "clone")
"""Kinds of owners whose checkpoints pin the same version until they are deleted or expire."""


def check_open(manifest: Manifest, url: str) -> Manifest:
    """Return the manifest if the database may be used.

    Raises:
        InvalidRequest: kind ``invalid_db_state``; the database is an unfinished clone, or was destroyed.
    """
    if manifest.destroyed_at_ms is not None:
        raise InvalidRequest(
            f"The database {url} was destroyed on {utc(manifest.destroyed_at_ms)}: create a new one there with "
            "`lakebed kv put --after-destroy` (in Python after_destroy=True), or elsewhere.",
            kind="invalid_db_state",
            url=url,
            destroyed_at_ms=manifest.destroyed_at_ms,
        )
    if not manifest.initialized:
        source = "another" if manifest.source is None else manifest.source.url
        raise InvalidRequest(
            f"The database {url} is a clone of {source} that is not finished: make the same clone again to finish it.",
            kind="invalid_db_state",
            url=url,
        )
    return manifest


def check_checkpoint_name(name: object) -> str:
    """Return the name if a checkpoint may have it. Raises `InvalidRequest`; the message says which rule is broken."""
    problem = None
    if not isinstance(name, str):
        problem = f"is {type(name).__name__}, and a name is text"
    elif not name.strip():
        problem = "is blank"
    elif name.isdecimal():
        problem = "is all digits, which would read as a version"
    elif _is_uuid(name):
        problem = "is a UUID, which would read as a checkpoint's id"
    elif not name.isprintable():
        problem = "holds a character that cannot be printed"
    elif len(name.encode("utf-8", "surrogatepass")) > NAME_BYTES_MAX:
        problem = f"is longer than {NAME_BYTES_MAX} bytes"
    if problem is not None:
        raise InvalidRequest(
            f"The checkpoint name {name!r} {problem}: choose another name.",
            kind="invalid_checkpoint_name",
            name=name,
        )
    assert isinstance(name, str)
    return name


def _is_uuid(text: str) -> bool:
    try:
        uuid.UUID(text)
    except ValueError:
        return False
    return True


def lifetime_in_ms(lifetime: timedelta | None) -> int | None:
    """Return a lifetime in milliseconds; None means no limit. Raises `InvalidRequest` for less than a millisecond."""
    if lifetime is None:
        return None
    if not isinstance(lifetime, timedelta):
        raise InvalidRequest(
            f"A lifetime is a timedelta, and {type(lifetime).__name__} was given: write timedelta(days=7).",
            kind="wrong_type",
        )
    lifetime_ms = lifetime // timedelta(milliseconds=1)
    if lifetime_ms < 1:
        raise InvalidRequest(
            f"A checkpoint cannot live for {lifetime}: give a lifetime above zero, or none to keep it.",
            kind="invalid_lifetime",
        )
    return lifetime_ms


def live_checkpoints(manifest: Manifest, now_ms: int) -> tuple[Checkpoint, ...]:
    """Return the checkpoints that have not expired, in the order of their creation."""
    return tuple(checkpoint for checkpoint in manifest.checkpoints if checkpoint.is_live(now_ms))


def find_checkpoint(manifest: Manifest, id_or_name: str, *, now_ms: int, url: str) -> Checkpoint:
    """Return a live checkpoint by id or name.

    Raises:
        InvalidRequest: kind ``invalid_db_state``; there is no such checkpoint, or it has expired.
    """
    checkpoint = _lookup(manifest, id_or_name, now_ms)
    if checkpoint is None:
        raise _unknown(id_or_name, url, manifest)
    if not checkpoint.is_live(now_ms):
        assert checkpoint.expires_at_ms is not None
        ago = format_duration(now_ms - checkpoint.expires_at_ms)
        raise InvalidRequest(
            f"The checkpoint {id_or_name} of {url} expired {ago} ago, and what it held may be gone: use another.",
            kind="invalid_db_state",
            url=url,
            checkpoint=checkpoint.id,
            expires_at_ms=checkpoint.expires_at_ms,
        )
    return checkpoint


def _lookup(manifest: Manifest, id_or_name: str, now_ms: int) -> Checkpoint | None:
    """Look up a checkpoint by id, then by name. Of several with the same name, the live one is preferred."""
    if not isinstance(id_or_name, str):
        raise InvalidRequest(
            f"A checkpoint is named by its id or name as text, and {type(id_or_name).__name__} was given.",
            kind="wrong_type",
        )
    wanted_id = id_or_name.lower()
    for checkpoint in manifest.checkpoints:
        if checkpoint.id == wanted_id:
            return checkpoint
    namesakes = [checkpoint for checkpoint in manifest.checkpoints if checkpoint.name == id_or_name]
    return next(
        (checkpoint for checkpoint in namesakes if checkpoint.is_live(now_ms)), namesakes[-1] if namesakes else None
    )


def _unknown(id_or_name: str, url: str, manifest: Manifest) -> InvalidRequest:
    hint = did_you_mean(id_or_name, (checkpoint.name for checkpoint in manifest.checkpoints if checkpoint.name))
    return InvalidRequest(
        f"The database {url} has no checkpoint {id_or_name}: list the checkpoints to see which there are.{hint}",
        kind="invalid_db_state",
        url=url,
        checkpoint=id_or_name,
    )


def readable_versions(newest: Manifest) -> str:
    """Describe for a message which versions are readable without a checkpoint, by the numbers of `list_versions`."""
    if newest.readable_since >= newest.content_since:
        return f"version {newest.content_since}, the newest,"
    return f"versions {newest.readable_since} to {newest.content_since}"


def check_readable(manifest: Manifest, version: int, *, now_ms: int, url: str) -> None:
    """Raise `NotFound` unless the newest manifest allows reading this one: not passed by a collection, or pinned."""
    if manifest.readable_since <= version <= manifest.manifest_id:
        return
    if not any(checkpoint.manifest_id == version for checkpoint in live_checkpoints(manifest, now_ms)):
        raise NotFound(
            f"The database {url} has no version {version}: {readable_versions(manifest)} can be read without a "
            "checkpoint.",
            kind="version_not_found",
            url=url,
            version=version,
        )


def new_checkpoint(
    manifest_id: int,
    *,
    id: str,
    now_ms: int,
    owner: Owner = _USER,
    lifetime_ms: int | None = None,
    name: str | None = None,
) -> Checkpoint:
    """Return a checkpoint on a manifest, which begins now. Pure."""
    return Checkpoint(
        id=id,
        manifest_id=manifest_id,
        created_at_ms=now_ms,
        owner=owner,
        expires_at_ms=None if lifetime_ms is None else now_ms + lifetime_ms,
        name=name,
    )


def with_checkpoint(manifest: Manifest, checkpoint: Checkpoint) -> Manifest:
    """Return the manifest with one more checkpoint. The caller ensures that the manifest that it pins exists.

    Raises:
        AlreadyExists: a live checkpoint has the name.
        InvalidRequest: there are `CHECKPOINT_COUNT_MAX` live checkpoints.
    """
    live = live_checkpoints(manifest, checkpoint.created_at_ms)
    if checkpoint.name is not None:
        for other in live:
            if other.name == checkpoint.name:
                raise AlreadyExists(
                    f"There is a checkpoint {checkpoint.name!r} already ({other.id}): choose another name, "
                    "or delete it first.",
                    kind="checkpoint_exists",
                    name=checkpoint.name,
                    checkpoint=other.id,
                )
    if len(live) >= CHECKPOINT_COUNT_MAX:
        raise InvalidRequest(
            f"The database has {len(live):,} live checkpoints, and {CHECKPOINT_COUNT_MAX:,} are possible: "
            "delete some, or give them lifetimes.",
            kind="too_many_checkpoints",
        )
    return msgspec.structs.replace(manifest, checkpoints=(*manifest.checkpoints, checkpoint))


def with_latest(manifest: Manifest, checkpoint: Checkpoint, *, last_wal_id: int) -> Manifest:
    """Return the manifest with a checkpoint on itself, that is on the number with which it will be appended.

    Args:
        last_wal_id: the last log object listed since `manifest` was read (`last_durable_wal_id`).
    """
    assert checkpoint.manifest_id == manifest.manifest_id + 1, "the checkpoint is on another manifest"
    last_seen = max(manifest.wal_id_last_seen, last_wal_id)
    return msgspec.structs.replace(with_checkpoint(manifest, checkpoint), wal_id_last_seen=last_seen)


def with_refreshed(manifest: Manifest, id: str, *, expires_at_ms: int | None) -> Manifest:
    """Return the manifest with another expiry of one checkpoint, by id; unchanged if it has no such checkpoint."""
    return msgspec.structs.replace(
        manifest,
        checkpoints=tuple(
            msgspec.structs.replace(checkpoint, expires_at_ms=expires_at_ms) if checkpoint.id == id else checkpoint
            for checkpoint in manifest.checkpoints
        ),
    )


def without_checkpoint(manifest: Manifest, id: str) -> Manifest:
    """Return the manifest without one checkpoint, by id; unchanged if it has no such checkpoint."""
    remaining = tuple(checkpoint for checkpoint in manifest.checkpoints if checkpoint.id != id)
    return (
        manifest
        if len(remaining) == len(manifest.checkpoints)
        else msgspec.structs.replace(manifest, checkpoints=remaining)
    )


def without_expired(manifest: Manifest, now_ms: int) -> Manifest:
    """Return the manifest without dead checkpoints; unchanged if all live.

    For the collector, which must also set `Manifest.readable_since`.
    """
    live = live_checkpoints(manifest, now_ms)
    return manifest if len(live) == len(manifest.checkpoints) else msgspec.structs.replace(manifest, checkpoints=live)


def describe_checkpoint(checkpoint: Checkpoint) -> str:
    """Describe a checkpoint for a message: ``'nightly' (<id>, user)`` or ``<id> (clone s3://bucket/copy)``."""
    if checkpoint.name is None:
        return f"{checkpoint.id} ({checkpoint.owner})"
    return f"{checkpoint.name!r} ({checkpoint.id}, {checkpoint.owner})"


def last_durable_wal_id(location: DatabaseLocation, manifest: Manifest) -> int:
    """Return the last id in the log now, or `wal_id_last_seen` if the log has not grown since.

    Cost: 1 LIST for each thousand unflushed log objects; nothing for a database without a log.
    """
    wal_id = max(manifest.wal_id_last_seen, manifest.replay_after_wal_id)
    if not manifest.wal_enabled:
        return wal_id
    return max(wal_id, WalLog(location).last_id(wal_id))


def create_checkpoint(
    location: DatabaseLocation,
    options: CheckpointOptions | None = None,
    *,
    owner: Owner = _USER,
    version: int | None = None,
) -> CheckpointCreateResult:
    """Pin the latest version with everything durable, another checkpoint's version, or an old version.

    Args:
        options: lifetime, source and name; by default the latest version, without an end or a name.
        owner: the owner of the checkpoint.
        version: a manifest's id, instead of `CheckpointOptions.source`.

    Raises:
        InvalidRequest: kind ``invalid_db_state``; the database is destroyed or not initialised, or the source is
            unknown or expired. Other kinds: an invalid name or lifetime.
        AlreadyExists: a live checkpoint has the name.
        NotFound: there is no database, or no such version any more.
        OutcomeUnknown: the store does not answer. The checkpoint (named in `facts`) may exist.

    Cost: 1 GET + 1 PUT + at most 3 LIST (manifests, log, boundary), again for each lost race. For an old version 1 GET
    more and 1 LIST less; for a latest version that an earlier checkpoint pins already 1 GET more. About 200 bytes in
    each later manifest; if the log has grown since the newest manifest, also a manifest of its own, which names every
    checkpoint of its time. Source: "Creating a Checkpoint".
    """
    checkpoint_options = CheckpointOptions() if options is None else check_type(options, CheckpointOptions)
    checkpoint = make_checkpoint(location, checkpoint_options, owner=owner, version=version)
    return CheckpointCreateResult(checkpoint.id, checkpoint.manifest_id)


def make_checkpoint(
    location: DatabaseLocation, options: CheckpointOptions, *, owner: Owner = _USER, version: int | None = None
) -> Checkpoint:
    """As `create_checkpoint`, but return the whole new checkpoint."""
    if options.source is not None and version is not None:
        raise InvalidRequest(
            "A checkpoint is made from another one or from a version, not from both: name one of them."
        )
    if options.name is not None:
        check_checkpoint_name(options.name)
    lifetime_ms = lifetime_in_ms(options.lifetime)
    own_id = new_uuid(location.environment.rng)
    log = ManifestLog(location)

    def change(manifest: Manifest) -> Manifest | None:
        if any(checkpoint.id == own_id for checkpoint in manifest.checkpoints):
            return None
        check_open(manifest, location.url)
        now_ms = location.environment.clock.now_ms()
        last_wal_id = 0
        if options.source is None and version is None:
            last_wal_id = last_durable_wal_id(location, manifest)
            pinned_version = find_same_version(manifest, log, now_ms=now_ms, last_wal_id=last_wal_id)
        else:
            pinned_version = _manifest_to_pin(manifest, log, options.source, version, now_ms=now_ms, url=location.url)
        own_checkpoint = new_checkpoint(
            manifest.manifest_id + 1 if pinned_version is None else pinned_version,
            id=own_id,
            now_ms=now_ms,
            owner=owner,
            lifetime_ms=lifetime_ms,
            name=options.name,
        )
        if pinned_version is None:
            return with_latest(manifest, own_checkpoint, last_wal_id=last_wal_id)
        return with_checkpoint(manifest, own_checkpoint)

    manifest = log.update(change, fresh=True)
    return next(checkpoint for checkpoint in manifest.checkpoints if checkpoint.id == own_id)


def find_same_version(manifest: Manifest, log: ManifestLog, *, now_ms: int, last_wal_id: int) -> int | None:
    """Find a manifest that a checkpoint of the latest version can pin, because its content is that of `manifest`.

    Args:
        manifest: the newest; the checkpoint will be appended to it.
        last_wal_id: the last log object listed since `manifest` was read.

    Returns:
        The id of the manifest that a live checkpoint of a user or clone pins already, if there is one, otherwise that
        of `manifest`. None: the log has grown since, so the manifest that first names the checkpoint must record how
        far.

    Cost: 1 GET if such a checkpoint pins an older manifest with the content of this one.
    """
    if last_wal_id > manifest.wal_id_last_seen:
        return None
    candidates = [
        checkpoint.manifest_id
        for checkpoint in live_checkpoints(manifest, now_ms)
        # Writers and readers pin another manifest of a version each time, so theirs cannot be shared.
        if checkpoint.manifest_id >= manifest.content_since and checkpoint.owner.kind in _LASTING_KINDS
    ]
    newest_pinned = max(candidates, default=manifest.manifest_id)
    if newest_pinned != manifest.manifest_id:
        try:
            if _is_same_version(log.load(newest_pinned), manifest):
                return newest_pinned
        except (NotFound, Corruption):
            pass  # a checkpoint whose manifest is lost must not make the new checkpoint fail
    return manifest.manifest_id


def _is_same_version(manifest: Manifest, other: Manifest) -> bool:
    """Whether two manifests differ only in checkpoints, jobs, roles and their own numbers.

    Equal files and logs are not enough: an opening that wrote nothing leaves both unchanged but may have named a merge
    operator, which a clone that starts from the version has to know.
    """
    return manifest == msgspec.structs.replace(
        other,
        manifest_id=manifest.manifest_id,
        write_id=manifest.write_id,
        created_at_ms=manifest.created_at_ms,
        content_since=manifest.content_since,
        readable_since=manifest.readable_since,
        writer_epoch=manifest.writer_epoch,
        compactor_epoch=manifest.compactor_epoch,
        newest_l0_id=manifest.newest_l0_id,
        jobs=manifest.jobs,
        checkpoints=manifest.checkpoints,
        previous_write_ids=manifest.previous_write_ids,
    )


def _manifest_to_pin(
    manifest: Manifest, log: ManifestLog, source: str | None, version: int | None, *, now_ms: int, url: str
) -> int:
    """Return the id of the manifest that a checkpoint pins that is made from another one, or of an old version."""
    if source is not None:
        return find_checkpoint(manifest, source, now_ms=now_ms, url=url).manifest_id
    assert version is not None, "a checkpoint has a source, a version, or is of the latest"
    check_readable(manifest, version, now_ms=now_ms, url=url)
    if not log.load(version).initialized:
        raise NotFound(
            f"Version {version} of {url} is older than the clone itself: take a later one.",
            kind="version_not_found",
            version=version,
        )
    return version


def refresh_checkpoint(
    location: DatabaseLocation, id_or_name: str, lifetime: timedelta | None = None, *, force: bool = False
) -> Checkpoint:
    """Give a checkpoint a new end: now plus `lifetime`, or (None) no end.

    Args:
        force: also give an end to the checkpoint of a clone or writer, on which its files depend.

    Raises:
        InvalidRequest: kind ``invalid_db_state``; the checkpoint is unknown or has expired, or the database is
            destroyed or not initialised. ``checkpoint_owned``: `force` is needed.
        NotFound: there is no database.
    Cost: 1 GET + 1 PUT + 2 LIST.
    """
    lifetime_ms = lifetime_in_ms(lifetime)
    found_id: str | None = None

    def change(manifest: Manifest) -> Manifest:
        nonlocal found_id
        check_open(manifest, location.url)
        now_ms = location.environment.clock.now_ms()
        checkpoint = find_checkpoint(manifest, found_id or id_or_name, now_ms=now_ms, url=location.url)
        if lifetime_ms is not None and not force and checkpoint.owner.kind in ("clone", "writer"):
            raise _ownership_error(checkpoint, location.url, "give it an end")
        found_id = checkpoint.id
        return with_refreshed(
            manifest, checkpoint.id, expires_at_ms=None if lifetime_ms is None else now_ms + lifetime_ms
        )

    manifest = ManifestLog(location).update(change, fresh=True)
    return next(checkpoint for checkpoint in manifest.checkpoints if checkpoint.id == found_id)


def delete_checkpoint(location: DatabaseLocation, id_or_name: str, *, force: bool = False) -> Checkpoint:
    """Delete a checkpoint, expired or not, and return it. The next collection may delete what only it kept.

    It works on destroyed databases too, which wait for the end of their checkpoints.

    Args:
        force: also delete a checkpoint that a clone, writer, reader or compactor made for itself. That one then misses
            its files.

    Raises:
        InvalidRequest: kind ``invalid_db_state``: the checkpoint is unknown. ``checkpoint_owned``: `force` is needed;
            the message names the owner.
        NotFound: there is no database.
    Cost: 1 GET + 1 PUT + 2 LIST.
    """
    deleted: Checkpoint | None = None

    def change(manifest: Manifest) -> Manifest | None:
        nonlocal deleted
        if deleted is None:  # otherwise a race was lost: delete the checkpoint found first, even if its name has moved
            deleted = checkpoint_to_delete(location, manifest, id_or_name, force=force)
        manifest_without = without_checkpoint(manifest, deleted.id)
        return None if manifest_without is manifest else manifest_without

    ManifestLog(location).update(change, fresh=True)
    assert deleted is not None
    return deleted


def checkpoint_to_delete(location: DatabaseLocation, manifest: Manifest, id_or_name: str, *, force: bool) -> Checkpoint:
    """Return the checkpoint that `delete_checkpoint` would delete. Raises as `delete_checkpoint`. Cost: no request."""
    checkpoint = _lookup(manifest, id_or_name, location.environment.clock.now_ms())
    if checkpoint is None:
        raise _unknown(id_or_name, location.url, manifest)
    if checkpoint.owner.kind != "user" and not force:
        raise _ownership_error(checkpoint, location.url, "delete it")
    return checkpoint


def _ownership_error(checkpoint: Checkpoint, url: str, verb: str) -> InvalidRequest:
    owner = checkpoint.owner
    if owner.kind == "clone":
        holder = f"the clone {owner.url}"
    elif owner.kind == "reader":
        holder = f"a reader on {owner.host}, process {owner.pid},"
    else:
        holder = f"the {owner.kind} of epoch {owner.epoch}"
    return InvalidRequest(
        f"The checkpoint {checkpoint.id} of {url} is not a user's: {holder} reads its files through it; "
        f"{verb} with force (--force) only if that is gone for good.",
        kind="checkpoint_owned",
        url=url,
        checkpoint=checkpoint.id,
        owner=str(owner),
    )


def list_checkpoints(location: DatabaseLocation, name: str | None = None, *, expired: bool = False) -> list[Checkpoint]:
    """Return the checkpoints of every owner, oldest first.

    Args:
        expired: also return expired ones that no collection has dropped yet; see `Checkpoint.is_live`.

    Raises `NotFound` if there is no database. A destroyed one still lists its checkpoints. Cost: 1 LIST + 1 GET.
    """
    manifest = ManifestLog(location).latest()
    now_ms = location.environment.clock.now_ms()
    checkpoints = manifest.checkpoints if expired else live_checkpoints(manifest, now_ms)
    return sorted(
        (checkpoint for checkpoint in checkpoints if name is None or checkpoint.name == name),
        key=lambda checkpoint: (checkpoint.created_at_ms, checkpoint.id),
    )
