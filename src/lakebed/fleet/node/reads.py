"""Reads of attached tenants at an LSN.

Owns: waiting for an LSN, and the interpretation of a missing file.

Invariants:
- A result is the state as of one LSN, which is at least as new as requested.
- A missing file is never taken for an absent key.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Final, TypeVar

import pyarrow as pa

from lakebed.errors import Conflict, Corruption, InvalidRequest, LakebedError, NotFound, Unavailable
from lakebed.fleet.node.attached import AttachedTenant
from lakebed.fleet.node.context import NodeContext
from lakebed.fleet.node.timeline import Timeline
from lakebed.fleet.ports import Found, FoundMany
from lakebed.kv.ranges import check_range
from lakebed.lsm.model import check_key
from lakebed.lsm.view import View

R = TypeVar("R")

KEY_COUNT_MAX: Final = 100_000
"""Most keys of one `get_many`."""

_LOOK_S: Final = 0.02
"""Pause between two checks of a tenant whose ingestion is paused."""

_LOG_WAIT_S: Final = 1.0
"""Longest single wait for the log: the tenant may be attached again meanwhile."""


class Reads:
    """Reads of a node's tenants.

    Args:
        wake: called with each tenant for which a step may have become due.
    """

    def __init__(self, context: NodeContext, *, wake: Callable[[AttachedTenant], None]) -> None:
        self._context = context
        self._wake = wake

    def get(self, attached: AttachedTenant, name: str, key: bytes, *, lsn: int | None, at_least: int) -> Found:
        """See `lakebed.fleet.ports.NodePort.get`."""
        check_key(key)
        return self._read(attached, name, lsn, at_least, lambda view: Found(view.get(key), view.sequence or 0))

    def get_many(
        self, attached: AttachedTenant, name: str, keys: Sequence[bytes], *, lsn: int | None, at_least: int
    ) -> FoundMany:
        """See `lakebed.fleet.ports.NodePort.get_many`."""
        if len(keys) > KEY_COUNT_MAX:
            raise InvalidRequest(
                f"{len(keys):,} keys were asked for, and {KEY_COUNT_MAX:,} are possible: ask in several calls.",
                kind="too_many_keys",
            )
        for key in keys:
            check_key(key)
        return self._read(
            attached, name, lsn, at_least, lambda view: FoundMany(tuple(view.get_many(keys)), view.sequence or 0)
        )

    def scan(
        self,
        attached: AttachedTenant,
        name: str,
        start: bytes | None,
        end: bytes | None,
        *,
        lsn: int | None,
        at_least: int,
    ) -> Iterator[pa.RecordBatch]:
        """See `lakebed.fleet.ports.NodePort.scan`."""
        check_range(start, end)
        timeline = self._await_timeline(attached, name, lsn, at_least)
        return self._batches(attached, timeline, timeline.view(lsn), start, end)

    def _batches(
        self, attached: AttachedTenant, timeline: Timeline, view: View, start: bytes | None, end: bytes | None
    ) -> Iterator[pa.RecordBatch]:
        try:
            yield from timeline.scan(view, start, end)
        except (NotFound, Corruption) as error:
            raise self.file_gone(attached, error) from error

    def _read(
        self, attached: AttachedTenant, name: str, lsn: int | None, at_least: int, function: Callable[[View], R]
    ) -> R:
        timeline = self._await_timeline(attached, name, lsn, at_least)
        try:
            return timeline.read(lsn, function)
        except (NotFound, Corruption) as error:
            raise self.file_gone(attached, error) from error

    def file_gone(self, attached: AttachedTenant, error: LakebedError) -> LakebedError:
        """Return the error for a missing file, and ask for a commit.

        A missing file is normal in a transaction that will be rejected. Only a commit tells whether this is one.
        """
        if isinstance(error, Corruption) and error.kind != "file_missing":
            return error
        if attached.transaction is not None:
            attached.ask()
            self._wake(attached)
        return Unavailable(
            f"A file of {attached.tenant} is gone: another node has committed a newer state. Ask the control plane "
            "where the tenant is.",
            kind="file_gone",
        )

    def _await_timeline(self, attached: AttachedTenant, name: str, lsn: int | None, at_least: int) -> Timeline:
        """Return the timeline once it has ingested the requested LSN. Raises `Unavailable` (``lsn_not_reached``)."""
        if (lsn is not None and lsn < 0) or at_least < 0:
            raise InvalidRequest("The LSN is negative: an LSN is a whole number from 0.", kind="invalid_lsn")
        needed_lsn = max(at_least, lsn or 0)
        timeline = attached.find(name)
        if timeline.last_lsn < needed_lsn:
            self._wait_for(attached, name, needed_lsn)
            timeline = attached.find(name)
        return timeline

    def _wait_for(self, attached: AttachedTenant, name: str, needed_lsn: int) -> None:
        clock, log = self._context.environment.clock, self._context.log
        ends_s = clock.monotonic_s() + self._context.options.read_wait_ms / 1000
        self._wake(attached)
        while (timeline := attached.find(name)).last_lsn < needed_lsn:
            if timeline.problem is not None:
                raise timeline.problem
            left_s = ends_s - clock.monotonic_s()
            try:
                if not timeline.is_read_only and attached.ingest_timeline(timeline):
                    continue
                if timeline.is_read_only or left_s <= 0:
                    raise _not_reached(attached.tenant, timeline, needed_lsn)
                if attached.is_paused:
                    clock.sleep(min(left_s, _LOOK_S))
                else:
                    log.wait(timeline.log_key, timeline.last_lsn, timeout_s=min(left_s, _LOG_WAIT_S))
            except (Conflict, NotFound) as error:  # pruned or dropped: another node has committed more
                raise _not_reached(attached.tenant, timeline, needed_lsn) from error


def _not_reached(tenant: str, timeline: Timeline, needed_lsn: int) -> Unavailable:
    return Unavailable(
        f"LSN {needed_lsn} of {timeline.log_key} is not ingested here: the newest is {timeline.last_lsn}. Try again, "
        "or ask the control plane where the tenant is.",
        kind="lsn_not_reached",
        tenant=tenant,
        lsn=timeline.last_lsn,
    )
