"""Moments of the records that requests share: requests that came together are answered from one snapshot.

Owns: which request may use which moment. A read is linearizable if its result was true at some time between its request
and its reply. So a moment serves every request that came before the moment was taken, and no later one. Under load an
event loop receives many requests before it answers the first of them.

Invariants: a later request gets a new moment, so no reply is older than its request, even if another process has
written meanwhile; a moment is closed when the event loop has answered the requests that it had received, and pins
nothing for longer; only the thread of the event loop uses it.

Does not know: what requests read. It provides views of references (`lakebed.repo.staging.view.View`).
"""

from __future__ import annotations

import asyncio

from lakebed.http.replies import Arrivals
from lakebed.key_value.port import KeyValue, KeyValueSnapshot
from lakebed.repo.records.context import RepositoryContext
from lakebed.repo.staging.view import View, reference_view


class _Moment:
    """One snapshot of the records, and the views of references at it."""

    def __init__(self, snapshot: KeyValueSnapshot, *, arrived_before: int) -> None:
        self.snapshot = snapshot
        self.arrived_before = arrived_before
        self.views: dict[tuple[str, str], View] = {}


class Moments:
    """The newest moment of an event loop.

    Args:
        key_value: a store that answers from this machine.
        arrivals: counts the requests that came.
    """

    def __init__(self, key_value: KeyValue, arrivals: Arrivals) -> None:
        self._key_value = key_value
        self._arrivals = arrivals
        self._newest: _Moment | None = None

    def view(self, context: RepositoryContext, ref: str, *, arrival: int) -> View:
        """Return the view of a reference at a moment after a request came. Read it before anything is awaited.

        Args:
            arrival: the number of the request.

        Raises `NotFound` (``reference_not_found``), `InvalidRequest` (``invalid_reference``).
        Cost: 1 snapshot and about 3 reads. Of the requests that came together for one reference, only the first has
        this cost.
        """
        moment = self._newest
        if moment is None or arrival > moment.arrived_before:
            moment = self._take()
        key = (context.record.uid, ref)
        view = moment.views.get(key)
        if view is None:
            view = moment.views[key] = reference_view(context, ref, snapshot=moment.snapshot)
        return view

    def _take(self) -> _Moment:
        """Return a moment for all requests that came up to now."""
        self._close(self._newest)
        count = self._arrivals.count  # before the snapshot: requests that come meanwhile need a later moment
        moment = self._newest = _Moment(self._key_value.snapshot(), arrived_before=count)
        asyncio.get_running_loop().call_soon(self._close, moment)
        return moment

    def _close(self, moment: _Moment | None) -> None:
        if moment is None:
            return
        moment.snapshot.close()
        if moment is self._newest:
            self._newest = None
