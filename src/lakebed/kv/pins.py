"""A clone's checkpoints in its ancestors. They are taken, extended, made permanent and removed.

Owns: the changes that a clone makes in other databases' manifests, and what "live" means there. Each step is one update
of an ancestor.

Invariants:
- Each step is idempotent, and decides by the manifest to which it is appended. A dead pin is removed in the same
  update, so no process whose clock is behind can make it permanent afterwards.
- A copied folder names the pins of the clone of which it is a copy. It may read through them, and never removes one
  that the original still names.
- A pin in a further ancestor is made from the parent's own pin there, which lives while the parent's version is pinned.
  So it may be taken even if that ancestor is destroyed and waits for its checkpoints to end.

Source: "Clones"; docs/design/0012-clones-and-destroy.md.
"""

from __future__ import annotations

from datetime import timedelta

from lakebed.errors import InvalidRequest, NotFound
from lakebed.ids import new_uuid
from lakebed.kv.checkpoint import (
    check_open,
    create_checkpoint,
    lifetime_in_ms,
    new_checkpoint,
    with_checkpoint,
    with_refreshed,
    without_checkpoint,
)
from lakebed.kv.database_location import DatabaseLocation
from lakebed.kv.manifests import ManifestLog
from lakebed.kv.model import Checkpoint, CheckpointCreateResult, Manifest, Owner
from lakebed.kv.options import CheckpointOptions


def find_pin(manifest: Manifest, pin: str) -> Checkpoint | None:
    """Return a checkpoint by its id, live or dead; None if there is none."""
    return next((checkpoint for checkpoint in manifest.checkpoints if checkpoint.id == pin), None)


def pin_parent(
    parent: DatabaseLocation, *, checkpoint: str | None, clone_url: str, lifetime: timedelta
) -> CheckpointCreateResult:
    """Pin a version of the parent for its clone: that of a checkpoint, or the latest with everything durable.

    Errors and cost as `create_checkpoint`.
    """
    options = CheckpointOptions(lifetime=lifetime, source=checkpoint)
    return create_checkpoint(parent, options, owner=Owner("clone", url=clone_url))


def pin_ancestor(ancestor: DatabaseLocation, *, source: str, clone_url: str, lifetime: timedelta) -> str:
    """Pin in an ancestor the version that the parent's own pin there keeps. Return the new pin's id.

    Args:
        source: the parent's pin, by id.

    Raises:
        InvalidRequest: kind ``invalid_db_state``; the parent's pin was removed by force.
        NotFound: there is no such database any more.
    Cost: 1 GET + 1 PUT + 2 LIST.
    """
    lifetime_ms = lifetime_in_ms(lifetime)
    own_id = new_uuid(ancestor.environment.rng)

    def change(manifest: Manifest) -> Manifest | None:
        now_ms = ancestor.environment.clock.now_ms()
        checkpoint = find_pin(manifest, source)
        if checkpoint is None or not checkpoint.is_live(now_ms):
            raise InvalidRequest(
                f"Files of {ancestor.url} that the clone needs are no longer kept: checkpoint {source} was removed "
                "there. Clone from another version, or with copy=True (--copy) from one that is whole.",
                kind="invalid_db_state",
                url=ancestor.url,
                checkpoint=source,
            )
        own_pin = new_checkpoint(
            checkpoint.manifest_id,
            id=own_id,
            now_ms=now_ms,
            owner=Owner("clone", url=clone_url),
            lifetime_ms=lifetime_ms,
        )
        return with_checkpoint(manifest, own_pin)

    ManifestLog(ancestor).update(change, fresh=True)
    return own_id


def keep_pin(
    location: DatabaseLocation, pin: str, *, lifetime: timedelta | None, must_be_open: bool
) -> Checkpoint | None:
    """Extend a pin of ours by `lifetime` from now, or (None) make it permanent. A permanent pin stays permanent.

    Args:
        must_be_open: True for the parent: once it is destroyed nothing may be refreshed, so the pin is removed instead.

    Returns:
        The pin; None: it is dead, and has been removed.

    Raises:
        InvalidRequest: kind ``invalid_db_state``; the database was destroyed in between, and `must_be_open`.
        NotFound: there is no such database any more.

    Cost: 1 LIST + 1 GET, and 1 PUT + 1 LIST if the pin changes.
    """
    lifetime_ms = lifetime_in_ms(lifetime)
    refused = False

    def change(manifest: Manifest) -> Manifest | None:
        nonlocal refused
        now_ms = location.environment.clock.now_ms()
        checkpoint = find_pin(manifest, pin)
        refused = False
        if checkpoint is None or checkpoint.expires_at_ms is None:
            return None
        if not checkpoint.is_live(now_ms):
            return without_checkpoint(manifest, pin)
        if must_be_open and manifest.destroyed_at_ms is not None:
            refused = True
            return without_checkpoint(manifest, pin)
        return with_refreshed(manifest, pin, expires_at_ms=None if lifetime_ms is None else now_ms + lifetime_ms)

    manifest = ManifestLog(location).update(change, fresh=True)
    if refused:
        check_open(manifest, location.url)
    return find_pin(manifest, pin)


def release_pin(ancestor: DatabaseLocation, pin: str, *, clone: DatabaseLocation, decided: Manifest | None) -> bool:
    """Remove a clone's pin, live or dead, from an ancestor. A missing pin or ancestor is not an error.

    A pin that was taken for a database at another URL stays as long as that database names it: then `clone` is a copy
    of its folder.

    Args:
        decided: the version of the clone that does not need the pin any more; None: the clone has no version yet.

    Returns:
        Whether the pin was there and was removed.

    Cost: 1 LIST + 1 GET, and 1 PUT + 1 LIST if the pin was there; if it was taken for another URL 1 LIST + 1 GET more.
    """
    was_present = False

    def change(manifest: Manifest) -> Manifest | None:
        nonlocal was_present
        checkpoint = find_pin(manifest, pin)
        was_present = checkpoint is not None and not _is_of_another(checkpoint, clone, decided)
        return without_checkpoint(manifest, pin) if was_present else None

    try:
        ManifestLog(ancestor).update(change, fresh=True)
    except NotFound:
        return False
    return was_present


def _is_of_another(pin: Checkpoint, clone: DatabaseLocation, decided_manifest: Manifest | None) -> bool:
    """Whether the database for which a pin was taken still names it, and is not this clone at another path.

    A database that was moved is not at its first URL any more. A database that is reached by two paths has the version
    `decided_manifest` at both. A copy that was made before that version does not have it, and a copy that was made
    after it does not need the pin either.
    """
    url = pin.owner.url
    if url is None or url == clone.url:
        return False
    newest = ManifestLog(clone.other(url)).find_latest()
    if newest is None or all(entry.pin != pin.id for entry in newest.external_databases):
        return False
    return decided_manifest is None or decided_manifest.write_id not in (newest.write_id, *newest.previous_write_ids)
