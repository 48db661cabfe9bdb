"""From what a person says (``version=``, ``timestamp=``, ``scan.*`` options) to the snapshot that is meant.

Owns: the rules of naming a version and of times.

- ``version``: an int or digits is a snapshot id; ``snapshot.<id>``, ``tag.<name>``, ``branch.<name>`` say which kind;
  any other text is a tag, then a branch. An id whose snapshot expired is read from a tag that still holds it.
- ``timestamp``: the newest snapshot committed at or before it; when all such have expired, the nearest earlier tag.
- Times are int (Unix ms, UTC), `datetime` or ISO 8601 text; without a zone they are UTC; a date alone is its midnight.

Invariants: reading a tag never needs its snapshot file; ids may have gaps, and the search by time costs at most
log2(count) + 1 GETs. Does not know: files or rows.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from lakebed.errors import InvalidRequest, NotFound
from lakebed.table.model import Snapshot, Tag
from lakebed.table.snapshots import SnapshotLog
from lakebed.table.tags import Source, Tags, is_hidden
from lakebed.texts import LONG_MAX, did_you_mean, shown, utc, whole_number

__all__ = ["Resolved", "Travel", "parse_time_ms", "version_of_options"]

_EPOCH = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)
_MS = dt.timedelta(milliseconds=1)
_NAME_BYTES_MAX = 255

Time = int | dt.datetime | str


@dataclass(frozen=True, slots=True)
class Resolved:
    """The snapshot that was meant, and by what."""

    snapshot: Snapshot
    tag: str | None = None
    """The tag it was read from; None when from its own snapshot file."""
    branch: str | None = None
    """The branch whose newest snapshot it is; its schemas are that branch's. None: the line that was asked."""


@dataclass(frozen=True, slots=True)
class Travel:
    """Finds versions of one branch.

    `newest_of_branch` gives the newest snapshot of another branch, or None when there is no such branch.
    """

    snapshots: SnapshotLog
    tags: Tags
    newest_of_branch: Callable[[str], Snapshot | None]

    def resolve(self, *, version: int | str | None = None, timestamp: Time | None = None) -> Resolved:
        """The version that is meant; neither given: the newest snapshot.

        Raises:
            InvalidRequest: both given, or text that names nothing possible.
            NotFound: no such snapshot, tag or branch; or the time is before everything (names the earliest time).
        Cost: newest or tag 1-2 GETs; id 1 GET; time 1 LIST + log2(snapshots) + 1 GETs.
        """
        if version is not None and timestamp is not None:
            raise InvalidRequest("Give a version or a timestamp, not both.", kind="ambiguous_version")
        if timestamp is not None:
            return self.at_time(parse_time_ms(timestamp))
        if version is not None:
            return self.at_version(version)
        newest = self.snapshots.latest()
        if newest is None:
            raise NotFound("The table has no snapshot yet: nothing was ever written.", kind="table_empty")
        return Resolved(newest)

    def at_version(self, version: int | str) -> Resolved:
        """The snapshot that a version text or id names. See the module."""
        if isinstance(version, bool) or not isinstance(version, int | str):
            raise InvalidRequest(
                f"{shown(version)} is no version: give a snapshot id, a tag, a branch, or snapshot.<id>, tag.<name>, "
                "branch.<name>.",
                kind="invalid_version",
            )
        if isinstance(version, int):
            return self._at_id(_snapshot_id(version))
        kind, dot, name = version.partition(".")
        if version.isdecimal():
            return self._at_id(_snapshot_id(version))
        if dot and kind == "snapshot":
            return self._at_id(_snapshot_id(name))
        if len(version.encode("utf-8", "surrogatepass")) > _NAME_BYTES_MAX or not _is_utf8(version):
            raise InvalidRequest(
                f"{shown(version)} is no version: a name is Unicode text of at most {_NAME_BYTES_MAX} bytes.",
                kind="invalid_version",
            )
        if dot and kind == "tag":
            return _of_tag(self.tags.tag(name))
        if dot and kind == "branch":
            return self._at_branch(name)
        return self._at_name(version)

    def at_time(self, time_ms: int) -> Resolved:
        """The newest snapshot at or before a time (Unix ms, UTC), else the nearest earlier tag."""
        ids = self.snapshots.ids()
        found = self.snapshots.bisect(ids, time_ms)
        if found is not None:
            return Resolved(found)
        tags = self.tags.list()
        earlier = [tag for tag in tags if tag.snapshot.time_ms <= time_ms]
        if earlier:
            return _of_tag(max(earlier, key=lambda tag: (tag.snapshot.time_ms, tag.snapshot.id)))
        times = [tag.snapshot.time_ms for tag in tags]
        if ids and (first := self.snapshots.find(ids[0])) is not None:
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

    def source(
        self, *, snapshot_id: int | None = None, tag: str | None = None, timestamp: Time | None = None
    ) -> Source:
        """What to make a tag or a branch from; nothing given: the newest snapshot.

        Raises:
            InvalidRequest: more than one given.
            NotFound: it is not there.
        """
        if sum(given is not None for given in (snapshot_id, tag, timestamp)) > 1:
            raise InvalidRequest("Give one of snapshot, tag and timestamp, not several.", kind="ambiguous_version")
        if timestamp is not None:
            found = self.at_time(parse_time_ms(timestamp))
            return self.tags.source(tag=found.tag) if found.tag else self.tags.source(snapshot_id=found.snapshot.id)
        return self.tags.source(snapshot_id=snapshot_id, tag=tag)

    def source_of(self, version: int | str | None) -> Source:
        """As `source`, of a version as people name it. A branch's snapshot is no source: it is not of this line."""
        if version is None:
            return self.tags.source()
        found = self.at_version(version)
        if found.branch is not None:
            raise InvalidRequest(
                f"{version!r} is a branch: open it with branch={found.branch!r} to pin its versions.",
                kind="branch_as_source",
                branch=found.branch,
            )
        return self.tags.source(tag=found.tag) if found.tag else self.tags.source(snapshot_id=found.snapshot.id)

    def _at_id(self, snapshot_id: int) -> Resolved:
        found = self.snapshots.find(snapshot_id)
        if found is not None:
            return Resolved(found)
        tag = self.tags.of_snapshot(snapshot_id)
        if tag is None:
            raise self.snapshots.absent(snapshot_id)
        return _of_tag(tag)

    def _at_branch(self, name: str) -> Resolved:
        newest = self.newest_of_branch(name)
        if newest is None:
            raise NotFound(f"The table has no branch {name!r}.", kind="branch_not_found", branch=name)
        return Resolved(newest, branch=name)

    def _at_name(self, name: str) -> Resolved:
        tag = None if is_hidden(name) else self.tags.find(name)
        if tag is not None:
            return _of_tag(tag)
        newest = self.newest_of_branch(name)
        if newest is not None:
            return Resolved(newest, branch=name)
        names = self.tags.names()
        there = f"tags: {', '.join(names[:8])}{', ...' if len(names) > 8 else ''}" if names else "it has no tags"
        hint = did_you_mean(name, names)
        raise NotFound(
            f"The table has no tag or branch {name!r}; {there}.{hint}", kind="version_not_found", version=name
        )


def parse_time_ms(time: Time) -> int:
    """Unix milliseconds, UTC, of a time as people give it; without a zone it is UTC. Raises `InvalidRequest`."""
    if isinstance(time, bool):
        raise InvalidRequest(f"{shown(time)} is no time.", kind="invalid_time")
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
                f"{shown(time)} is no time: write it like 2013-02-01, 2013-02-01T06:30:00+01:00 (UTC without a zone), "
                "or as Unix milliseconds.",
                kind="invalid_time",
            ) from wrong
    if isinstance(time, dt.datetime):
        aware = time if time.tzinfo is not None else time.replace(tzinfo=dt.UTC)
        return (aware - _EPOCH) // _MS
    raise InvalidRequest(
        f"{shown(time)} is no time: give Unix milliseconds, a datetime or ISO 8601 text.", kind="invalid_time"
    )


def version_of_options(options: Mapping[str, str]) -> dict[str, int | str]:
    """Keyword arguments of `Travel.resolve` from the ``scan.*`` options; empty when none is set.

    Known: ``scan.tag-name``, ``scan.snapshot-id``, ``scan.version``, ``scan.timestamp``, ``scan.timestamp-millis``.
    Raises `InvalidRequest` for several.
    """
    given = {key: options[key] for key in _SCAN if key in options}
    if len(given) > 1:
        raise InvalidRequest(f"Give only one of {', '.join(given)}.", kind="ambiguous_version", options=list(given))
    for key, value in given.items():
        if key == "scan.tag-name":
            return {"version": f"tag.{value}"}
        if key == "scan.snapshot-id":
            return {"version": f"snapshot.{value}"}
        if key == "scan.version":
            return {"version": value}
        return {"timestamp": value}
    return {}


_SCAN = ("scan.tag-name", "scan.snapshot-id", "scan.version", "scan.timestamp", "scan.timestamp-millis")


def _of_tag(tag: Tag) -> Resolved:
    return Resolved(tag.snapshot, tag=tag.name)


def _out_of_range(time: int | str) -> InvalidRequest:
    return InvalidRequest(
        f"{shown(time)} is no time: Unix milliseconds are between -{LONG_MAX} and {LONG_MAX}.", kind="invalid_time"
    )


def _snapshot_id(version: int | str) -> int:
    number = whole_number(version) if isinstance(version, str) else version
    if number is None or abs(number) > LONG_MAX:
        raise InvalidRequest(
            f"{shown(version)} is no version: a snapshot id is a number between 1 and {LONG_MAX}.",
            kind="invalid_version",
        )
    return number


def _is_utf8(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True
