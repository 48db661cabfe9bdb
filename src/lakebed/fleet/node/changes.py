"""Changes of the set of timelines. Pure.

Owns: the effect of each `TimelineChange`, and the reasons to refuse it.

Invariants:
- A timeline is branched from committed files, at a committed LSN that is not below the cutoff.
- Names are unique.
- A change that was already made is recognized by the id of the timeline that it makes, even if that timeline was
  deleted since.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Final

from msgspec.structs import replace

from lakebed.errors import AlreadyExists, Conflict, InvalidRequest, NotFound
from lakebed.fleet import records
from lakebed.fleet.layout import ID_MARK, by_id, check_name
from lakebed.fleet.model import TimelineIndex
from lakebed.fleet.node.indices import branch_index, find
from lakebed.fleet.ports import TimelineChange

MAKING: Final = ("create", "branch", "pin", "restore")
"""Kinds of changes that make a timeline. The caller mints its id."""

_KINDS: Final = (*MAKING, "delete", "detach")

Timelines = Mapping[str, TimelineIndex]


def check_change(change: TimelineChange) -> None:
    """Refuse a change that is wrong whatever timelines there are. Raises `InvalidRequest`."""
    if change.kind not in _KINDS:
        raise InvalidRequest(
            f"{change.kind!r} is not a change of timelines: use {', '.join(_KINDS)}.", kind="invalid_change"
        )
    check_name(change.name, what="timeline")
    if change.kind in MAKING or change.id:
        check_name(change.id, what="timeline")
    if change.kind == "restore":
        check_name(change.kept_as, what="timeline")
    if change.kind in ("branch", "pin", "restore"):
        check_name(change.parent.removeprefix(ID_MARK), what="timeline")
    if change.lsn is not None and (change.lsn < 0 or change.kind not in ("branch", "pin", "restore")):
        raise InvalidRequest(f"LSN {change.lsn} is not valid for {change.kind}.", kind="invalid_change")
    if change.lifetime_ms is not None and change.kind != "pin":
        raise InvalidRequest(f"A {change.kind} has no lifetime: only a pin has.", kind="invalid_change")


def is_done(timelines: Timelines, change: TimelineChange) -> bool:
    """Whether a change was already made. A delete or detach is recognized only with the timeline's id.

    Raises `AlreadyExists` if another change used the id.
    """
    if change.kind in MAKING:
        index = timelines.get(change.id)
        if index is not None and (index.name, index.is_read_only) != (change.name, change.kind == "pin"):
            raise AlreadyExists(
                f"The id {change.id!r} is that of the timeline {index.name!r}: mint a new one.", kind="timeline_exists"
            )
        return index is not None
    index = timelines.get(change.id)
    if change.kind == "delete":
        return bool(change.id) and index is None
    return index is not None and index.parent is None


def check_not_gone(gone: Collection[str], change: TimelineChange) -> None:
    """Refuse to make a timeline again that the same request made before and that was deleted since.

    Raises `NotFound` (``timeline_not_found``).
    """
    if change.kind in MAKING and change.id in gone:
        raise NotFound(
            f"The timeline {change.name!r} with the id {change.id!r} was made before and deleted since: mint a new "
            "id to make it anew.",
            kind="timeline_not_found",
            timeline=change.name,
        )


def change_timelines(
    timelines: Timelines, committed: Timelines, change: TimelineChange, *, now_ms: int, expires_ms: int | None = None
) -> Timelines:
    """Return the timelines after a change.

    Args:
        timelines: the timelines of the working set.
        committed: the timelines of the base, from which a branch is made.
        change: checked by `check_change`. For a detach, the files are already rewritten.
        expires_ms: when a pin expires.

    Raises:
        AlreadyExists: ``timeline_exists``.
        NotFound: ``timeline_not_found``.
        Conflict: ``timeline_renamed``.
        InvalidRequest: ``below_cutoff``, ``lsn_not_committed``, ``timeline_in_use``, ``read_only``.
    """
    match change.kind:
        case "create":
            check_free(timelines, change.name)
            new = TimelineIndex(id=change.id, name=change.name, created_ms=now_ms, lsn=0, cutoff=0)
            return {**timelines, new.id: new}
        case "branch" | "pin":
            check_free(timelines, change.name)
            new = replace(_branch(committed, change, now_ms=now_ms), expires_ms=expires_ms)
            return {**timelines, new.id: new}
        case "restore":
            old = find_timeline(timelines, change.name)
            check_free(timelines, change.kept_as)
            new = _branch(committed, change, now_ms=now_ms)
            return {**timelines, old.id: replace(old, name=change.kept_as), new.id: new}
        case "delete":
            target = find_target(timelines, change)
            records.check_drop(target.name)
            return {id: index for id, index in timelines.items() if id != target.id}
        case _:
            index = find_target(timelines, change)
            return {**timelines, index.id: replace(index, parent=None, branch_lsn=0)}


def find_target(timelines: Timelines, change: TimelineChange) -> TimelineIndex:
    """Return the timeline that a delete or detach is for: the one with the id, if it still has the requested name.

    A restore gives the name to another timeline, and keeps the former one under another name.

    Raises `NotFound` (``timeline_not_found``); `Conflict` (``timeline_renamed``).
    """
    timeline = find_timeline(timelines, by_id(change.id) if change.id else change.name)
    if change.name not in (timeline.name, timeline.id):
        raise Conflict(
            f"The timeline that was called {change.name!r} is {timeline.name!r} now, since a restore: nothing was "
            "changed. Look at both, then ask again.",
            kind="timeline_renamed",
            timeline=timeline.name,
        )
    return timeline


def without_expired(timelines: Timelines, *, now_ms: int) -> Timelines:
    """Return the timelines without expired pins; the same object if there are none."""
    expired_ids = {id for id, index in timelines.items() if index.expires_ms is not None and index.expires_ms <= now_ms}
    return {id: index for id, index in timelines.items() if id not in expired_ids} if expired_ids else timelines


def check_free(timelines: Timelines, name: str) -> None:
    """Check that a name is free. Raises `AlreadyExists` if a timeline has it."""
    if any(index.name == name for index in timelines.values()):
        raise AlreadyExists(
            f"The tenant has a timeline {name!r} already: choose another name.", kind="timeline_exists", timeline=name
        )


def find_timeline(timelines: Timelines, name: str) -> TimelineIndex:
    """Return a timeline by name or id. Raises `NotFound` (``timeline_not_found``)."""
    timeline = find(timelines, name)
    if timeline is None:
        names = ", ".join(sorted(index.name for index in timelines.values())[:20])
        raise NotFound(
            f"The tenant has no timeline {name!r}: it has {names}.", kind="timeline_not_found", timeline=name
        )
    return timeline


def _branch(committed_timelines: Timelines, change: TimelineChange, *, now_ms: int) -> TimelineIndex:
    parent = find_timeline(committed_timelines, change.parent)
    lsn = parent.lsn if change.lsn is None else change.lsn
    if lsn > parent.lsn:
        raise InvalidRequest(
            f"{parent.name!r} was to be branched at LSN {lsn}, and rows to LSN {parent.lsn} are committed: commit what "
            "was written after it first, or branch at an older LSN.",
            kind="lsn_not_committed",
            lsn=parent.lsn,
        )
    if lsn < parent.cutoff:
        raise InvalidRequest(
            f"{parent.name!r} was to be branched at LSN {lsn}, and states from LSN {parent.cutoff} on are kept: branch "
            "at a newer one.",
            kind="below_cutoff",
            cutoff=parent.cutoff,
        )
    return branch_index(
        parent,
        id=change.id,
        name=change.name,
        lsn=lsn,
        created_ms=now_ms,
        is_read_only=change.kind == "pin",
    )
