"""Resolve a version or a time to a snapshot.

Owns: how versions and times are written.

- ``version``: an int or digits is a snapshot id; ``snapshot.<id>``, ``tag.<name>``, ``branch.<name>`` say which kind;
  any other text is a tag, else a branch. An id whose snapshot expired is read from a tag that still holds it.
- ``timestamp``: the newest snapshot committed at or before it; when all such have expired, the nearest earlier tag.
- Times are int (Unix ms, UTC), `datetime` or ISO 8601 text; without a zone they are UTC; a date alone is its midnight.

Invariants: reading a tag never needs its snapshot file; ids may have gaps, and the search by time costs at most
log2(count) + 1 GETs.
"""

from __future__ import annotations

import datetime as dt
from dataclasses import dataclass
from typing import TypedDict

import lakebed.compute as pc
from lakebed.arguments import check_keywords
from lakebed.errors import InvalidRequest, NotFound
from lakebed.table.branch.branch_folder import branch_exists
from lakebed.table.branch.context import TableBranch
from lakebed.table.branch.tags import Source, is_hidden
from lakebed.table.model.model import Snapshot, Tag
from lakebed.texts import LONG_MAX, did_you_mean, format_value, is_utf8, list_some, utc, whole_number

_EPOCH = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)
_MS = dt.timedelta(milliseconds=1)
_NAME_BYTES_MAX = 255

Time = int | dt.datetime | str


@dataclass(frozen=True, slots=True)
class Resolved:
    """The snapshot that a version or a time names."""

    snapshot: Snapshot
    tag: str | None = None
    """The tag that it was read from; None: its own snapshot file."""
    branch: str | None = None
    """The branch whose newest snapshot it is, with that branch's schemas. None: the branch that was searched."""


def resolve(branch: TableBranch, *, version: int | str | None = None, timestamp: Time | None = None) -> Resolved:
    """Resolve a version or a time; neither given: the newest snapshot.

    Raises:
        InvalidRequest: both given, or text that cannot name a version.
        NotFound: no such snapshot, tag or branch; or the time is before everything (names the earliest time); kind
            ``table_not_found``: the table was dropped.
    Cost: newest or tag 1-2 GETs; id 1 GET; time 1 LIST + log2(snapshots) + 1 GETs.
    """
    try:
        return _resolve(branch, version, timestamp)
    except NotFound:
        branch.look()  # raises when the table was dropped
        raise


def _resolve(branch: TableBranch, version: int | str | None, timestamp: Time | None) -> Resolved:
    if version is not None and timestamp is not None:
        raise InvalidRequest("Give a version or a timestamp, not both.", kind="ambiguous_version")
    if timestamp is not None:
        return at_time(branch, parse_time_ms(timestamp))
    if version is not None:
        return at_version(branch, version)
    newest = branch.snapshots.latest()
    if newest is None:
        raise NotFound("The table has no snapshot yet: nothing was ever written.", kind="table_empty")
    return Resolved(newest)


def find_schema_id(branch: TableBranch, snapshot: Snapshot) -> int:
    """The id of the schema whose columns a version has: its own, or a later one that some files were written with.

    A client that has not seen the newest schema may commit on top of rows written with it. Their values may not fit the
    older schema.

    Args:
        branch: has seen the newest schema.

    Cost: nothing for a version of the newest schema; else as `ManifestReader.all_metas`, and 1 GET for each manifest of
    other clients: they state for a manifest the schema under which they merged it.
    """
    if snapshot.schema_id >= branch.schema.id:
        return snapshot.schema_id
    metas = branch.manifests.all_metas(snapshot)
    entries = branch.manifests.concat_entries([meta for meta in metas if meta.added_snapshot is None])
    return max([snapshot.schema_id, *(meta.schema_id for meta in metas), pc.max(entries["schema_id"]).as_py() or 0])


def at_version(branch: TableBranch, version: int | str) -> Resolved:
    """The snapshot that a version text or id names; see the module for the rules. Raises as `resolve`."""
    if isinstance(version, bool) or not isinstance(version, int | str):
        raise InvalidRequest(
            f"{format_value(version)} is not a valid version: give a snapshot id, a tag, a branch, or snapshot.<id>, "
            "tag.<name>, branch.<name>.",
            kind="invalid_version",
        )
    if isinstance(version, int):
        return _at_id(branch, _snapshot_id(version))
    kind, dot, name = version.partition(".")
    if version.isdecimal():
        return _at_id(branch, _snapshot_id(version))
    if dot and kind == "snapshot":
        return _at_id(branch, _snapshot_id(name))
    if len(version.encode("utf-8", "surrogatepass")) > _NAME_BYTES_MAX or not is_utf8(version):
        raise InvalidRequest(
            f"{format_value(version)} is not a valid version: a name is Unicode text of at most {_NAME_BYTES_MAX} "
            "bytes.",
            kind="invalid_version",
        )
    if dot and kind == "tag":
        return _of_tag(branch.tags.tag(name))
    if dot and kind == "branch":
        return _at_branch(branch, name)
    return _at_name(branch, version)


def at_time(branch: TableBranch, time_ms: int) -> Resolved:
    """The newest snapshot at or before a time (Unix ms, UTC); if it has expired, the nearest earlier tag."""
    ids = branch.snapshots.ids()
    snapshot = branch.snapshots.bisect(ids, time_ms)
    if snapshot is not None:
        return Resolved(snapshot)
    tags = branch.tags.list()
    earlier = [tag for tag in tags if tag.snapshot.time_ms <= time_ms]
    if earlier:
        return _of_tag(max(earlier, key=lambda tag: (tag.snapshot.time_ms, tag.snapshot.id)))
    times = [tag.snapshot.time_ms for tag in tags]
    if ids and (first := branch.snapshots.find(ids[0])) is not None:
        times.append(first.time_ms)
    if not times:
        raise NotFound("The table has no snapshot yet: nothing was ever written.", kind="table_empty")
    raise NotFound(
        f"Nothing is kept from {utc(time_ms)} or before: the earliest time that can be read is {utc(min(times))} "
        f"({min(times)}).",
        kind="time_before_everything",
        timestamp_ms=time_ms,
        earliest_ms=min(times),
    )


class SourceOptions(TypedDict, total=False):
    """What to create a tag from; at most one is given. Without any: the newest snapshot."""

    snapshot_id: int | None
    """Id of a snapshot. An expired snapshot can be named while a tag holds it."""
    tag: str | None
    """The version of another tag."""
    timestamp_ms: Time | None
    """The newest snapshot committed at or before this time."""


def source(branch: TableBranch, options: SourceOptions) -> Source:
    """The file to create a tag or a branch from.

    Raises `InvalidRequest`: more than one given; `NotFound`: it does not exist.
    """
    check_keywords(options, SourceOptions)
    snapshot_id, tag, timestamp = options.get("snapshot_id"), options.get("tag"), options.get("timestamp_ms")
    if sum(given is not None for given in (snapshot_id, tag, timestamp)) > 1:
        raise InvalidRequest("Give one of snapshot, tag and timestamp, not several.", kind="ambiguous_version")
    if timestamp is not None:
        target = at_time(branch, parse_time_ms(timestamp))
        return branch.tags.source(tag=target.tag) if target.tag else branch.tags.source(snapshot_id=target.snapshot.id)
    if snapshot_id is None and tag is None:
        return _newest_source(branch)
    return branch.tags.source(snapshot_id=snapshot_id, tag=tag)


def source_of(branch: TableBranch, version: int | str | None) -> Source:
    """As `source`, for a version in any spelling.

    Raises `InvalidRequest` also for the name of a branch: its snapshots do not belong to this branch.
    """
    if version is None:
        return _newest_source(branch)
    target = at_version(branch, version)
    if target.branch is not None:
        raise InvalidRequest(
            f"{version!r} is a branch: open it with branch={target.branch!r} to pin its versions.",
            kind="branch_as_source",
            branch=target.branch,
        )
    return branch.tags.source(tag=target.tag) if target.tag else branch.tags.source(snapshot_id=target.snapshot.id)


def _newest_source(branch: TableBranch) -> Source:
    try:
        return branch.tags.source()
    except NotFound:
        branch.look()  # raises when the table was dropped
        raise


def _at_id(branch: TableBranch, snapshot_id: int) -> Resolved:
    snapshot = branch.snapshots.find(snapshot_id)
    if snapshot is not None:
        return Resolved(snapshot)
    tag = branch.tags.of_snapshot(snapshot_id)
    if tag is None:
        raise branch.snapshots.absent(snapshot_id)
    return _of_tag(tag)


def _at_branch(branch: TableBranch, name: str) -> Resolved:
    newest = _newest_of(branch, name)
    if newest is None:
        raise NotFound(f"The table has no branch {name!r}.", kind="branch_not_found", branch=name)
    return Resolved(newest, branch=name)


def _at_name(branch: TableBranch, name: str) -> Resolved:
    tag = None if is_hidden(name) else branch.tags.find(name)
    if tag is not None:
        return _of_tag(tag)
    newest = _newest_of(branch, name)
    if newest is not None:
        return Resolved(newest, branch=name)
    names = branch.tags.names()
    choices = f"tags: {list_some(names, count_max=8)}" if names else "it has no tags"
    hint = did_you_mean(name, names)
    raise NotFound(f"The table has no tag or branch {name!r}; {choices}.{hint}", kind="version_not_found", version=name)


def _newest_of(branch: TableBranch, name: str) -> Snapshot | None:
    """The newest snapshot of another branch; None when the branch does not exist or is empty."""
    return branch.of_branch(name).snapshots.latest() if branch_exists(branch.store, name) else None


def parse_time_ms(time: Time) -> int:
    """Unix milliseconds, UTC, of a time; a time without a zone is UTC. Raises `InvalidRequest`."""
    if isinstance(time, bool):
        raise InvalidRequest(f"{format_value(time)} is not a valid time.", kind="invalid_time")
    if isinstance(time, str) and time.strip().removeprefix("-").isdecimal():
        number = whole_number(time, minimum=-LONG_MAX)
        if number is None:
            raise _out_of_range(time)
        time = number
    if isinstance(time, int):
        if abs(time) > LONG_MAX:
            raise _out_of_range(time)
        return time
    if isinstance(time, str):
        try:
            time = dt.datetime.fromisoformat(time.strip())
        except ValueError as wrong:
            raise InvalidRequest(
                f"{format_value(time)} is not a valid time: write it like 2013-02-01, 2013-02-01T06:30:00+01:00 (UTC "
                "without a zone), or as Unix milliseconds.",
                kind="invalid_time",
            ) from wrong
    if isinstance(time, dt.datetime):
        aware = time if time.tzinfo is not None else time.replace(tzinfo=dt.UTC)
        return (aware - _EPOCH) // _MS
    raise InvalidRequest(
        f"{format_value(time)} is not a valid time: give Unix milliseconds, a datetime or ISO 8601 text.",
        kind="invalid_time",
    )


def _of_tag(tag: Tag) -> Resolved:
    return Resolved(tag.snapshot, tag=tag.name)


def _out_of_range(time: int | str) -> InvalidRequest:
    return InvalidRequest(
        f"{format_value(time)} is not a valid time: Unix milliseconds are between -{LONG_MAX} and {LONG_MAX}.",
        kind="invalid_time",
    )


def _snapshot_id(version: int | str) -> int:
    number = whole_number(version) if isinstance(version, str) else version
    if number is None or abs(number) > LONG_MAX:
        raise InvalidRequest(
            f"{format_value(version)} is not a valid version: a snapshot id is a number between 1 and {LONG_MAX}.",
            kind="invalid_version",
        )
    return number
