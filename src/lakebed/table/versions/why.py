"""Why a file or a version of a table still exists: what needs it, or when it may be deleted. Reads only.

Owns: `why` and `why_version`, which read the same live versions and the same references as the deleting verbs.
"""

from __future__ import annotations

import pyarrow as pa

from lakebed.errors import Corruption, NotFound
from lakebed.objects.path import check_path, is_url
from lakebed.reclaim.model import Explanation, Pin
from lakebed.table.branch.branches import every_branch
from lakebed.table.branch.candidates import ROLES, Role, is_named
from lakebed.table.branch.context import TableBranch
from lakebed.table.branch.travel import resolve
from lakebed.table.branch.unfinished import Deletion, load_deletions
from lakebed.table.collect.live_versions import LiveVersions, consumer_limit, read_live_versions
from lakebed.table.collect.referenced_files import ReferencedFiles
from lakebed.table.model.layout import (
    is_left_by_client,
    parse_bucket_folder,
    parse_derived,
    parse_schema,
    parse_snapshot,
    parse_tag,
)
from lakebed.table.model.model import Snapshot
from lakebed.table.versions.versions import list_pins, pin_of
from lakebed.texts import format_count, is_utf8

_SHOWN_MAX = 4


def why(branch: TableBranch, path: str) -> Explanation:
    """Which versions of any branch need an object of the table, or when it may be deleted.

    Args:
        path: relative to the table's folder, or the URL of a data file outside of it.

    Raises `NotFound`: the object does not exist, and nothing references it; `InvalidRequest`: no object can have that
    path; `Corruption`: something that might need it is unreadable. Cost: a few listings; for a data file the manifests
    of every version, else their lists.
    """
    if not is_url(path) or not is_utf8(path):
        check_path(path)
    branch.refresh()
    branches = every_branch(branch)
    branch = branches[0]
    explanation = _explain_fixed(branch, path)
    if explanation is not None:
        return explanation
    pins: list[Pin] = []
    for table_branch in branches:
        pins += _needing(table_branch, path)
    if pins:
        pins_text = ", ".join(f"{pin.kind} {pin.name}" for pin in pins[:_SHOWN_MAX])
        suffix = f" and {len(pins) - _SHOWN_MAX} more" if len(pins) > _SHOWN_MAX else ""
        return Explanation(path, tuple(pins), f"{path} is needed by {pins_text}{suffix}.")
    branch.store.head(path)
    waiting_deletions = [
        deletion
        for deletion in load_deletions(branch.store, branch.layout)
        if isinstance(deletion, Deletion) and path in deletion.candidates["path"].to_pylist()
    ]
    if waiting_deletions:
        return Explanation(
            path, (), f"{path} is needed by nothing: the next deleting verb finishes its {waiting_deletions[0].kind}."
        )
    orphan = "it is an orphan, and remove_orphan_files deletes it once it is old enough"
    return Explanation(path, (), f"{path} is needed by no version: {orphan}.")


def why_version(branch: TableBranch, version: int | str) -> Explanation:
    """What keeps a version of a table, and what would free it.

    Args:
        version: a snapshot, a tag or a branch, in any spelling.

    Returns the snapshot's id as the path. `Pin.expires_ms` is when a tag's lifetime ends; None: it does not end by
    itself.

    Raises:
        NotFound: kind ``version_not_found``, ``snapshot_not_found``.
        InvalidRequest: no version can have that name.
    Cost: a few listings; 1 GET for each tag that is not known yet, and 1 GET a consumer.
    """
    branch.refresh()
    target = resolve(branch, version=version)
    if target.branch is not None:
        branch = branch.of_branch(target.branch)
        branch.refresh()
    snapshot, versions = target.snapshot, read_live_versions(branch)
    holders = _holding(branch, versions, snapshot)
    pins, sentences = tuple(holders), []
    subject = f"Version {snapshot.id}"
    if versions.is_live(snapshot.id):
        sentences.append(_explain_live(branch, snapshot.id, subject))
        reading = [consumer for consumer in list_pins(branch) if consumer.kind == "consumer"]
        pins += tuple(consumer for consumer in reading if int(consumer.version) <= snapshot.id)
    else:
        sentences.append(f"{subject} has expired.")
    names = [f"{pin.kind} {pin.name}" for pin in holders if pin.kind != "snapshot"]
    if names:
        suffix = f" and {len(names) - _SHOWN_MAX} more" if len(names) > _SHOWN_MAX else ""
        sentences.append(f"Its files stay as long as it is pinned by {', '.join(names[:_SHOWN_MAX])}{suffix}.")
    return Explanation(str(snapshot.id), pins, " ".join(sentences))


def _explain_fixed(branch: TableBranch, path: str) -> Explanation | None:
    """Explain objects that versions do not list: snapshots, tags, schemas, bookkeeping. None for others."""
    snapshot_id = parse_snapshot(path)
    if snapshot_id is not None and path.startswith(branch.layout.snapshot_folder + "/"):
        branch.store.head(path)
        return _explain_snapshot(branch, path, snapshot_id)
    tag = parse_tag(path)
    if tag is not None:
        write_time_ms = branch.store.head(path).modified_ms
        entry = branch.tags.find(tag)
        pins = () if entry is None else (pin_of(entry, store=branch.name, write_time_ms=write_time_ms),)
        return Explanation(path, pins, f"{path} is the tag {tag!r} itself: it goes when the tag is deleted or expires.")
    if parse_schema(path) is not None:
        return Explanation(path, (), f"{path} is a version of the schema: schemas are kept while the table exists.")
    if is_left_by_client(path):
        branch.store.head(path)
        sentence = f"{path} was written by an Iceberg client, which cannot commit here: a collection deletes it."
        return Explanation(path, (), sentence)
    derived_of = parse_derived(path)
    if derived_of is not None:
        branch.store.head(path)
        return Explanation(path, (), f"{path} is read by Iceberg's clients: it goes with {derived_of}.")
    if path.startswith((branch.layout.root + "lakebed/", branch.layout.consumer_folder + "/")):
        return Explanation(path, (), f"{path} is bookkeeping, not data: it is kept.")
    return None


def _explain_snapshot(branch: TableBranch, path: str, snapshot_id: int) -> Explanation:
    snapshot = branch.snapshots.find(snapshot_id)
    made_ms = None if snapshot is None else snapshot.time_ms
    pin = Pin(branch.name, "snapshot", str(snapshot_id), str(snapshot_id), "retention", made_ms, None)
    return Explanation(path, (pin,), _explain_live(branch, snapshot_id, path))


def _explain_live(branch: TableBranch, snapshot_id: int, what: str) -> str:
    """Until when a live snapshot stays, as a sentence about `what`."""
    ids = branch.snapshots.ids()
    if snapshot_id == ids[-1]:
        return f"{what} is the newest snapshot: it stays until a newer one expires it."
    limit_id = consumer_limit(branch)
    if limit_id is not None and limit_id <= snapshot_id:
        return f"{what} waits for a consumer that reads snapshot {limit_id} next."
    newer = format_count(len(ids) - 1 - ids.index(snapshot_id), "newer snapshot")
    return f"{what} has {newer}: it goes when the table's retention says so."


def _needing(branch: TableBranch, path: str) -> list[Pin]:
    """Pins and live snapshots of one branch whose version references the path."""
    referenced, versions = ReferencedFiles(branch), read_live_versions(branch)
    roles = _roles_of(path)
    probe = pa.table({"path": pa.array([path], pa.string())})
    pins = []
    for snapshot_id in versions.ids.tolist():
        try:
            snapshot = versions.load(branch, snapshot_id)
            if is_named(probe, referenced.of(snapshot, roles))[0]:
                pins += _holding(branch, versions, snapshot)
        except NotFound as error:
            if error.kind != "version_went":
                raise Corruption(f"version {snapshot_id} cannot be read: {error}", path=path) from error
    return pins


def _holding(branch: TableBranch, versions: LiveVersions, snapshot: Snapshot) -> list[Pin]:
    pins = []
    if versions.is_live(snapshot.id):
        version = str(snapshot.id)
        owner = branch.layout.branch or "table"
        pins.append(Pin(branch.name, "snapshot", version, version, owner, snapshot.time_ms, None))
    write_times = branch.tags.write_time_ms()
    for entry in versions.tags:
        tag = branch.tags.find(entry.name) if entry.snapshot_id == snapshot.id else None
        if tag is not None:
            pins.append(pin_of(tag, store=branch.name, write_time_ms=write_times.get(tag.name)))
    return pins


def _roles_of(path: str) -> tuple[str, ...]:
    folder = path.rpartition("/")[0]
    if is_url(path) or parse_bucket_folder(folder) is not None:
        return (Role.DATA, Role.CHANGELOG)
    return tuple(role for role in ROLES if role not in (Role.DATA, Role.CHANGELOG))
