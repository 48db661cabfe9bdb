"""`Timeline` and `TimelineView`: a client's reads and writes of one timeline of a tenant.

Owns: the rows that one call may write, the LSN that a node must have reached for a handle's reads, and what a read does
when its node is lost.

Invariants:
- A handle reads what it wrote, and never an older state than it has read before.
- A write that returns is durable in the log. After a lost reply the same write id is sent again.
- A write goes to the timeline that has the name at that time. The log of a timeline that has lost the name takes no
  rows and says so. Then the control plane is asked which timeline has the name now.
- A failover or relocation delays a read or write and is no error, within `ClientOptions.retry_s`.
- A scan is of one LSN, even if it moves to another node on the way.

Does not know: where a tenant is (`lakebed.fleet.routing`), versions and pins (`lakebed.fleet.client`).
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from functools import partial
from typing import Final, TypeVar

import pyarrow as pa
from msgspec.structs import replace

from lakebed.errors import AlreadyExists, Conflict, Corruption, InvalidRequest, NotFound, OutcomeUnknown, Unavailable
from lakebed.fleet.layout import by_id, check_name, log_key
from lakebed.fleet.log.port import Log, check_lsn, check_rows
from lakebed.fleet.ports import Found, FoundMany, NodePort, TimelineChange, TimelineInfo
from lakebed.fleet.routing import Attempts, Router
from lakebed.fleet.rows import Rows, parse_rows, split_rows
from lakebed.key_value.port import PAIR_SCHEMA
from lakebed.kv.ranges import Bounds, check_prefix, check_range
from lakebed.lsm.model import check_key

T = TypeVar("T")
F = TypeVar("F", Found, FoundMany)

_ANY_KEY: Final = b"\0"
"""A key that is read only to learn how far a node is."""

_LOAD_BYTES: Final = 1 << 20
"""Most bytes of one append of a load."""

LSN_METADATA: Final = b"lsn"
"""Key in the metadata of a scan's schema: the LSN of the scan's state."""


class TimelineView:
    """A timeline as it was at one LSN. Read-only. Thread-safe.

    It stays with the timeline of its first read, even if a restore gives the name to another one.

    Args:
        id: of the timeline to read, while that exists; None: the timeline that has the name at the first read.

    Attributes:
        name: the name or id of the timeline, as it was given.
        lsn: the LSN at which it reads.
    """

    def __init__(self, router: Router, name: str, *, lsn: int, id: str | None = None) -> None:
        self._reads = _Reads(router, name, id=id, stays=True)
        self.name = name
        self.lsn = lsn

    def __repr__(self) -> str:
        return f"TimelineView({self._reads.tenant}/{self.name} at LSN {self.lsn})"

    def get(self, key: bytes) -> bytes | None:
        """Return the value of a key; None if the key has no value. Raises as `Timeline.get`."""
        return self._reads.get(key, lsn=self.lsn)

    def get_many(self, keys: Iterable[bytes]) -> list[bytes | None]:
        """Return the values of many keys, in the order of the keys."""
        return self._reads.get_many(keys, lsn=self.lsn)

    def scan(
        self, start: bytes | None = None, end: bytes | None = None, *, prefix: bytes | None = None
    ) -> Iterator[tuple[bytes, bytes]]:
        """Iterate over the keys and values of ``[start, end)`` or of a prefix, in the order of the keys."""
        return _pairs(self.scan_arrow(start, end, prefix=prefix))

    def scan_arrow(
        self, start: bytes | None = None, end: bytes | None = None, *, prefix: bytes | None = None
    ) -> pa.RecordBatchReader:
        """Return the rows of `scan` as Arrow columns ``key`` and ``value``."""
        return self._reads.scan(start, end, prefix=prefix, lsn=self.lsn)


class Timeline:
    """One timeline of a tenant. `Tenant.timeline` returns one. Thread-safe.

    Attributes:
        tenant: the tenant's name.
        name: the timeline's name.
    """

    def __init__(self, router: Router, log: Log, name: str) -> None:
        self.tenant = router.tenant
        self.name = name
        self._router = router
        self._log = log
        self._reads = _Reads(router, name)

    def __repr__(self) -> str:
        return f"Timeline({self.tenant}/{self.name})"

    @property
    def known_id(self) -> str | None:
        """The id of the timeline that had the name when this handle was last used; None: it was not used yet."""
        return self._reads.known_id

    # ---- writing

    def put(self, key: bytes, value: bytes, *, expected: int | None = None) -> int:
        """Set the value of a key. Return the row's LSN. Errors and cost as `write`."""
        return self.write([(key, value)], expected=expected)

    def delete(self, key: bytes, *, expected: int | None = None) -> int:
        """Delete a key. Return the row's LSN. Deleting a missing key makes a row too. Errors and cost as `write`."""
        return self.write([(key, None)], expected=expected)

    def write(self, rows: Rows, *, expected: int | None = None) -> int:
        """Write rows that become visible together. When it returns, they are durable in the log.

        Args:
            rows: puts and deletes (a value of None), in the order in which they take effect.
            expected: write only if the last LSN of the timeline is this one. This detects other writers. An LSN from
                before a backup was restored may belong to another row by then.

        Returns:
            The LSN of the last row.

        Raises:
            Conflict: kind ``unexpected_lsn``, with ``last=``. Nothing was written. Also when the name belongs to
                another timeline since this handle was last used, for example after a restore: then `expected` is of the
                earlier one.
            InvalidRequest: a key, value or batch is invalid or too large; a row has a lifetime (``row_with_lifetime``);
                or the timeline is a pin, or was replaced by a restore (``read_only``).
            NotFound: kind ``timeline_not_found`` or ``tenant_not_found``. Nothing was written.
            OutcomeUnknown, Unavailable: kind ``tenant_unavailable``: the log did not answer in time.
            Corruption: kind ``log_forked``: the log has lost records that were committed. The rows are never visible.

        Cost: 1 request to the log. It waits while the node cannot keep up.
        """
        batch = parse_rows(rows)
        check_rows(batch, bytes_max=self._log.append_bytes_max)
        write_id = str(uuid.UUID(int=self._router.environment.rng.getrandbits(128), version=4))
        attempts = self._router.attempts(f"write to the timeline {self.name} of the tenant {self.tenant}")
        before = self._reads.known_id
        id = self._reads.id(attempts)
        committed_lsn = self._router.find_committed_lsn(id)
        self._router.slow_down()
        for _ in attempts:
            if expected is not None and before not in (None, id):
                raise self._name_conflict(expected)
            try:
                lsn = self._log.append(log_key(self.tenant, id), batch, write_id=write_id, expected=expected)
            except (NotFound, Conflict) as problem:
                if problem.kind not in ("timeline_not_found", "timeline_sealed"):
                    raise
                attempts.note(problem)
                before, id = id, self._successor(id, problem, attempts)
                if id != before:
                    committed_lsn = self._router.find_committed_lsn(id)
                    attempts.skip_pause()
            except (Unavailable, OutcomeUnknown) as problem:
                attempts.note(problem)
            else:
                if lsn <= committed_lsn:
                    self._check_follows(id, lsn)
                self._reads.saw(id, lsn)
                return lsn
        raise attempts.failure() from attempts.reason

    def _check_follows(self, id: str, lsn: int) -> None:
        """Check a new row's LSN. Raises `Corruption` if it was committed before: the log has lost records.

        Nodes have other rows at that LSN, and never ingest this one. The control plane is asked first, because all
        parts may have been restored since the last route.
        """
        self._router.route(fresh=True)
        committed_lsn = self._router.find_committed_lsn(id)
        if lsn > committed_lsn:
            return
        raise Corruption(
            f"The log of {log_key(self.tenant, id)} gave LSN {lsn} to a new row, and LSN {committed_lsn} was committed "
            "before: the log has lost records, or was restored to another moment than the ledger and the storage. The "
            "row cannot be read, and nothing is to be written: stop the fleet, and restore all of them to one moment.",
            kind="log_forked",
            path=log_key(self.tenant, id),
            last=committed_lsn,
        )

    def load(self, rows: pa.Table | pa.RecordBatchReader | Iterable[pa.RecordBatch]) -> int:
        """Write many rows, as several appends of at most a megabyte each. Return the last LSN. It is not atomic.

        Raises as `write`.
        """
        last: int | None = None
        for batch in rows.to_batches() if isinstance(rows, pa.Table) else rows:
            for part in split_rows(batch, bytes_max=min(self._log.append_bytes_max, _LOAD_BYTES)):
                last = self.write(part)
        return self.lsn() if last is None else last

    def _successor(self, id: str, problem: NotFound | Conflict, attempts: Attempts) -> str:
        """Return the timeline that has the name now, after the log refused rows: `id` was sealed, dropped, or is a pin.

        The result is `id` itself in two cases: the control plane that answers does not know the change yet; or the log
        was not reachable when the tenant was created, and has not begun its timeline.

        Raises `NotFound`: the tenant or the name is gone. `InvalidRequest` (``read_only``).
        """
        route = self._router.ask_route(attempts)
        now = self._reads.id(attempts)
        if now != id:
            return now
        if id in route.sealed:
            raise self._read_only("what a restore has replaced")
        if isinstance(problem, NotFound):
            pin = next((info for info in self._infos(attempts) if info.id == id and info.is_read_only), None)
            if pin is not None:
                raise self._read_only(f"a pin at LSN {pin.lsn}")
        # The log has not begun what the ledger has, or an old owner of the ledger does not know the change in the log.
        return id

    def _read_only(self, what: str) -> InvalidRequest:
        return InvalidRequest(
            f"{self.name} is {what}, and takes no writes: branch it, and write to the branch.",
            kind="read_only",
            tenant=self.tenant,
            timeline=self.name,
        )

    def _name_conflict(self, expected: int) -> Conflict:
        return Conflict(
            f"The name {self.name} of the tenant {self.tenant} is another timeline's now than that of which LSN "
            f"{expected} was expected: read again, and decide again.",
            kind="unexpected_lsn",
            timeline=self.name,
            last=self.lsn(),
        )

    # ---- reading

    def get(self, key: bytes, *, lsn: int | None = None) -> bytes | None:
        """Return the value of a key; None if the key has no value.

        Args:
            key: bytes.
            lsn: as of this LSN; None: the newest state, with everything that this handle wrote.

        Raises:
            InvalidRequest: kind ``below_cutoff``, with ``cutoff=``, the oldest LSN that can be read; or the key is not
                valid.
            NotFound: kind ``timeline_not_found`` or ``tenant_not_found``.
            Unavailable: kind ``tenant_unavailable``: the node did not answer in time, or the LSN was never written.
        """
        return self._reads.get(key, lsn=lsn)

    def get_many(self, keys: Iterable[bytes], *, lsn: int | None = None) -> list[bytes | None]:
        """Return the values of many keys at one LSN, in the order of the keys, which may repeat. Raises as `get`."""
        return self._reads.get_many(keys, lsn=lsn)

    def scan(
        self,
        start: bytes | None = None,
        end: bytes | None = None,
        *,
        prefix: bytes | None = None,
        lsn: int | None = None,
    ) -> Iterator[tuple[bytes, bytes]]:
        """Iterate over the keys and values of ``[start, end)`` or of a prefix at one LSN, in the order of the keys.

        Raises as `get`.
        """
        return _pairs(self.scan_arrow(start, end, prefix=prefix, lsn=lsn))

    def scan_arrow(
        self,
        start: bytes | None = None,
        end: bytes | None = None,
        *,
        prefix: bytes | None = None,
        lsn: int | None = None,
    ) -> pa.RecordBatchReader:
        """Return the rows of `scan` as Arrow columns ``key`` and ``value``. Use it for large results."""
        return self._reads.scan(start, end, prefix=prefix, lsn=lsn)

    def catch_up(self) -> int:
        """Make the next reads include every row that any client has written until now. Return the last LSN.

        While no control plane answers, this means the timeline that had the name at this client's last answer. That
        timeline is the one that is read then, and a timeline that a restore has replaced takes no write.

        Cost: 2 requests.
        """
        attempts = self._log_attempts()
        last = self._last_lsn(attempts)
        id = self._reads.id(attempts)
        self._reads.saw(id, last)
        return last

    def at(self, lsn: int) -> TimelineView:
        """Return the timeline as it was at an LSN. Cost: no request.

        It is the timeline that this handle used last, while that exists.
        """
        return TimelineView(self._router, self.name, lsn=lsn, id=self.known_id)

    def lsn(self) -> int:
        """Return the LSN of the last row that any client has written. Without a control plane as `catch_up`.

        Cost: 1 request to the log, and 1 for a route.
        """
        return self._last_lsn(self._log_attempts())

    def _log_attempts(self) -> Attempts:
        return self._router.attempts(f"read the log of the timeline {self.name} of the tenant {self.tenant}")

    def _last_lsn(self, attempts: Attempts) -> int:
        self._router.timeline_id(self.name, attempts=attempts, fresh=True)  # a restore may have moved the name
        for _ in attempts:
            id = self._reads.id(attempts)
            try:
                return self._log.bounds(log_key(self.tenant, id)).last
            except NotFound as problem:
                info = self.status()
                if info.is_read_only:
                    return info.lsn
                attempts.note(problem)  # the log has not begun the timeline yet
            except (Unavailable, OutcomeUnknown) as problem:
                attempts.note(problem)
        raise attempts.failure() from attempts.reason

    def status(self) -> TimelineInfo:
        """Return how far the timeline is on its node, and what can be read of it. Raises `NotFound`.

        Cost: 1 request.
        """
        attempts = self._reads.attempts()
        for _ in attempts:
            id = self._router.timeline_id(self.name, attempts=attempts, fresh=True)
            for info in self._infos(attempts):
                if info.id == id:
                    return info
            absent = f"The node of the tenant {self.tenant} does not have the timeline {self.name} yet, or any more."
            attempts.note(Unavailable(absent, kind="timeline_changed"))
        raise attempts.failure() from attempts.reason

    def _infos(self, attempts: Attempts) -> list[TimelineInfo]:
        return self._router.ask(attempts, lambda node: node.timelines(self.tenant))

    def checkpoint(self) -> int:
        """Commit everything that this handle wrote. Return the id of the last committed transaction.

        Writes are durable in the log without it. It makes them part of a version, which can be branched and pinned.

        Raises `Unavailable`. Cost: 1 commit, if there is something to commit.
        """
        attempts = self._commit_attempts()
        return self._reads.follow(attempts, lambda id: self._commit(id, self._reads.seen, attempts))

    def _commit_attempts(self) -> Attempts:
        retry_s = self._router.options.change_retry_s  # a lagging node ingests everything first
        return self._router.attempts(f"commit the tenant {self.tenant}", retry_s=retry_s)

    def _commit(self, id: str, lsn: int, attempts: Attempts) -> int:
        """Commit the timeline at least up to an LSN. Return the last committed transaction."""

        def commit(node: NodePort) -> int:
            node.get(self.tenant, by_id(id), _ANY_KEY, at_least=lsn)  # waits until the node has ingested the LSN
            return node.checkpoint(self.tenant)

        return self._reads.ask_of(id, attempts, lambda _: self._router.ask(attempts, commit))

    # ---- branches and pins

    def branch(self, name: str, *, lsn: int | None = None) -> Timeline:
        """Create a timeline that begins with the rows of this one up to an LSN, and shares its files.

        Args:
            name: of the branch.
            lsn: from the cutoff to the last LSN; None: the last one of any client. Rows that are not committed are
                committed first.

        Raises:
            AlreadyExists: kind ``timeline_exists``.
            InvalidRequest: kind ``below_cutoff``, ``lsn_not_committed`` or ``invalid_timeline_name``.

        Cost: 1 commit. No file is written.
        """
        self.change("branch", name=name, lsn=lsn)
        return Timeline(self._router, self._log, name)

    def pin(self, name: str, *, lsn: int | None = None, lifetime_ms: int | None = None) -> TimelineView:
        """Keep an LSN readable under a name: a read-only branch. Arguments and errors as `branch`.

        Args:
            lifetime_ms: milliseconds after which the pin ends; None: never.
        """
        if lifetime_ms is not None and lifetime_ms <= 0:
            raise InvalidRequest(f"A pin's lifetime is {lifetime_ms} ms: give more, or none.", kind="invalid_lifetime")
        info = self.change("pin", name=name, lsn=lsn, lifetime_ms=lifetime_ms)
        return TimelineView(self._router, name, lsn=info.lsn, id=info.id)

    def restore(self, lsn: int, *, kept_as: str) -> TimelineInfo:
        """Go back to an LSN. The timeline gets another name, and a branch of it that ends at the LSN takes its name.

        Args:
            lsn: to go back to.
            kept_as: the new name of the present timeline.

        Raises as `branch`.
        """
        return self.change("restore", name=self.name, lsn=lsn, kept_as=check_timeline(kept_as))

    def detach(self) -> None:
        """Copy what this branch shares with its ancestors into files of its own, so that the ancestors can be deleted.

        Cost: reads and writes all rows of the branch.
        """
        self.change("detach", name=self.name)

    def drop(self) -> None:
        """Delete the timeline. Of a branch, only what it does not share is deleted.

        Raises:
            InvalidRequest: kind ``timeline_in_use``: it is ``main``, to which versions and pins of the tenant belong.
            Conflict: kind ``timeline_renamed``: a restore of another client gave its name to another timeline
                meanwhile.
        """
        self.change("delete", name=self.name)

    def change(
        self,
        kind: str,
        *,
        name: str,
        lsn: int | None = None,
        kept_as: str = "",
        lifetime_ms: int | None = None,
    ) -> TimelineInfo:
        """Make a change of the set of timelines, and repeat it until it is committed.

        Args:
            kind: as `TimelineChange.kind`.
            lsn: at which this timeline is branched; None: at its end, after a commit of every row that was written.
        """
        makes = kind in ("branch", "pin", "restore")
        attempts = self._commit_attempts()
        own_id = self._router.current_id(self.name if makes else name, attempts=attempts)
        if makes and lsn is None:
            last = self.catch_up()
            if last > self.status().committed_lsn:
                self._commit(own_id, last, self._commit_attempts())
        change = TimelineChange(
            kind=kind,
            name=check_timeline(name),
            id=new_id(self._router) if makes else own_id,
            parent=by_id(own_id) if makes else "",
            lsn=None if lsn is None else check_lsn(lsn, name="The LSN"),
            kept_as=kept_as,
            lifetime_ms=lifetime_ms,
        )
        try:
            info = change_timeline(self._router, change)
        except InvalidRequest as problem:
            if problem.kind != "lsn_not_committed" or lsn is None or lsn > self.lsn():
                raise
            self._commit(own_id, lsn, self._commit_attempts())
            info = change_timeline(self._router, change)
        self._router.route(fresh=True)
        return info


def new_id(router: Router) -> str:
    """Mint the id of a new timeline. A repeated request must use the same id."""
    return f"{router.environment.rng.getrandbits(64):016x}"


def change_timeline(router: Router, change: TimelineChange) -> TimelineInfo:
    """Send a change to the control plane until it answers.

    A repetition is the same change, or a new one if it failed.
    """
    attempts = router.attempts(
        f"{change.kind} the timeline {change.name} of the tenant {router.tenant}",
        retry_s=router.options.change_retry_s,
    )
    for _ in attempts:
        try:
            return router.control.change_timeline(router.tenant, change)
        except (Unavailable, OutcomeUnknown) as problem:
            attempts.note(problem)
        except AlreadyExists as problem:
            if "begun_after" not in problem.facts:
                raise
            # A node that was lost before its commit had already begun the log of this id, at what then was the last
            # LSN.
            change = replace(change, id=new_id(router))
            attempts.skip_pause()
    raise attempts.failure() from attempts.reason


def check_timeline(name: object) -> str:
    """Check the name of a timeline, which must not read as a version. Raises `InvalidRequest`."""
    timeline_name = check_name(name, what="timeline")
    if timeline_name.isdigit():
        raise InvalidRequest(
            f"The timeline name {timeline_name!r} reads as the number of a version: begin it with a letter.",
            kind="invalid_timeline_name",
            name=timeline_name,
        )
    return timeline_name


class _Reads:
    """The reads of one timeline. It remembers the newest LSN that its caller has seen. Thread-safe.

    Args:
        id: the timeline that is read first, if it still exists; None: the one that has the name.
        stays: continue to read the timeline of the first read, even if another one gets the name.
    """

    def __init__(self, router: Router, name: str, *, id: str | None = None, stays: bool = False) -> None:
        self.tenant = router.tenant
        self._router = router
        self._name = name
        self._stays = stays
        self._is_fixed = False
        self._lock = router.environment.runtime.lock()
        self._id = id
        self._seen = 0

    @property
    def known_id(self) -> str | None:
        """The timeline's id at the last use; None: not used yet."""
        return self._id

    @property
    def seen(self) -> int:
        """The newest LSN that was written or read through this object."""
        return self._seen

    def id(self, attempts: Attempts) -> str:
        """Return the timeline's id.

        After a restore moved the name to another timeline, forget the LSN that was seen.
        """
        if self._stays and (known := self._id) is not None:
            if self._is_fixed:
                return known
            with suppress(NotFound):
                return self._router.timeline_id(by_id(known), attempts=attempts)
        timeline_id = self._router.timeline_id(self._name, attempts=attempts)
        with self._lock:
            if self._id != timeline_id:
                self._id, self._seen = timeline_id, 0
        return timeline_id

    def saw(self, id: str, lsn: int) -> None:
        """Remember an LSN of the timeline with this id."""
        with self._lock:
            if self._id == id and lsn > self._seen:
                self._seen = lsn

    def get(self, key: bytes, *, lsn: int | None) -> bytes | None:
        check_key(key)

        def ask(node: NodePort, id: str, at_least: int) -> Found:
            return node.get(self.tenant, by_id(id), key, lsn=lsn, at_least=at_least)

        return self._ask(ask, lsn=lsn).value

    def get_many(self, keys: Iterable[bytes], *, lsn: int | None) -> list[bytes | None]:
        if isinstance(keys, bytes | str):
            raise InvalidRequest("keys is one key: give a list of keys.", kind="wrong_type")
        checked_keys: Sequence[bytes] = [check_key(key) for key in keys]

        def ask(node: NodePort, id: str, at_least: int) -> FoundMany:
            return node.get_many(self.tenant, by_id(id), checked_keys, lsn=lsn, at_least=at_least)

        return list(self._ask(ask, lsn=lsn).values)

    def _ask(self, ask: Callable[[NodePort, str, int], F], *, lsn: int | None) -> F:
        """Return a node's answer for the timeline, once the node has ingested what the caller has seen."""
        attempts = self.attempts()

        def read(id: str) -> F:
            at_least = self._at_least(lsn)
            reply = self._router.ask(attempts, lambda node: ask(node, id, at_least))
            if lsn is None:
                self.saw(id, reply.lsn)
            return reply

        return self.follow(attempts, read)

    def scan(
        self, start: bytes | None, end: bytes | None, *, prefix: bytes | None, lsn: int | None
    ) -> pa.RecordBatchReader:
        """Return the rows of a range. The first batch is read before this returns, so errors are raised here."""
        if prefix is not None and (start is not None or end is not None):
            raise InvalidRequest("Give a prefix, or a start and an end, not both.", kind="two_ranges")
        bounds = check_prefix(prefix) if prefix is not None else check_range(start, end)
        attempts = self._scan_attempts()
        if bounds is None:
            self._at_least(lsn)
            self.id(attempts)
            return pa.RecordBatchReader.from_batches(PAIR_SCHEMA, iter(()))
        whole_range = bounds

        def begin(id: str) -> tuple[pa.RecordBatch | None, Iterator[pa.RecordBatch]]:
            batches = self._batches(id, whole_range, attempts, lsn=lsn, at_least=self._at_least(lsn))
            return next(batches, None), batches

        first, batches = self.follow(attempts, begin)

        def every() -> Iterator[pa.RecordBatch]:
            if first is not None:
                yield first
            yield from batches

        return pa.RecordBatchReader.from_batches(PAIR_SCHEMA, every())

    def attempts(self) -> Attempts:
        """Begin a read."""
        return self._router.attempts(f"read the timeline {self._name} of the tenant {self.tenant}")

    def _scan_attempts(self) -> Attempts:
        return self._router.attempts(f"scan the timeline {self._name} of the tenant {self.tenant}")

    def follow(self, attempts: Attempts, read: Callable[[str], T]) -> T:
        """Return the result of a read of the timeline.

        If the timeline is gone because another client has moved or dropped the name, read the timeline that has the
        name now. Raises `NotFound` (``timeline_not_found``): none has it.
        """
        for _ in attempts:
            id = self.id(attempts)
            try:
                result = self.ask_of(id, attempts, read)
            except NotFound as problem:
                if problem.kind != "timeline_not_found" or self._is_fixed:
                    raise
                if self._router.timeline_id(self._name, attempts=attempts, fresh=True) == id:
                    raise
                attempts.note(problem)
            else:
                with self._lock:
                    if self._stays and not self._is_fixed:
                        self._id, self._is_fixed = id, True
                return result
        raise attempts.failure() from attempts.reason

    def ask_of(self, id: str, attempts: Attempts, ask: Callable[[str], T]) -> T:
        """Return the nodes' answer for a timeline, once they know it. Raises `NotFound`: it is gone."""
        for _ in attempts:
            try:
                return ask(id)
            except NotFound as problem:
                attempts.note(self._router.check_behind(id, problem, attempts=attempts))
        raise attempts.failure() from attempts.reason

    def _at_least(self, lsn: int | None) -> int:
        """Return the LSN up to which a node must have ingested before it answers."""
        return self._seen if lsn is None else check_lsn(lsn, name="The LSN")

    def _batches(
        self, id: str, bounds: Bounds, attempts: Attempts, *, lsn: int | None, at_least: int
    ) -> Iterator[pa.RecordBatch]:
        """Yield the rows of a range. After the node is lost, continue with another one at the same LSN."""
        start, end = bounds
        seen_lsn, has_rows, is_interrupted = lsn, False, False
        for _ in attempts:
            has_more = False
            if is_interrupted:
                self._router.route(fresh=True)
            try:
                scan = partial(_scan, self.tenant, id, (start, end), seen_lsn, at_least)
                for batch in self._router.stream(attempts, scan):
                    if seen_lsn is None:
                        seen_lsn = _lsn_of(batch)
                        if lsn is None and seen_lsn is not None:
                            self.saw(id, seen_lsn)  # not at the end, because a caller may stop before
                    if batch.num_rows:
                        has_rows = has_more = True
                        yield pa.RecordBatch.from_arrays(batch.columns, schema=PAIR_SCHEMA)
                        start = batch.column(0)[-1].as_py() + b"\0"
                return
            except (Unavailable, OutcomeUnknown) as problem:
                if problem.kind == "tenant_unavailable":
                    raise
                if has_more:  # a long scan may take longer than its retries
                    attempts.renew()
                attempts.note(problem)
                is_interrupted = True
            except NotFound as problem:
                attempts.note(self._router.check_behind(id, problem, attempts=attempts))
                is_interrupted = True
            except InvalidRequest as problem:
                if problem.kind != "below_cutoff" or lsn is not None:
                    raise
                if has_rows:
                    raise Unavailable(
                        f"The scan of the timeline {self._name} of the tenant {self.tenant} was interrupted, and its "
                        f"state, LSN {seen_lsn}, is not kept any more: scan again, or let the tenant's policy "
                        "retain more.",
                        kind="scan_interrupted",
                        cutoff=problem.facts.get("cutoff"),
                    ) from problem
                seen_lsn, is_interrupted = None, False  # no row was returned: begin again with the newest state
                attempts.skip_pause()
        raise attempts.failure() from attempts.reason


def _scan(
    tenant: str, id: str, bounds: Bounds, lsn: int | None, at_least: int, node: NodePort
) -> Iterator[pa.RecordBatch]:
    return node.scan(tenant, by_id(id), *bounds, lsn=lsn, at_least=at_least)


def _lsn_of(batch: pa.RecordBatch) -> int | None:
    lsn = (batch.schema.metadata or {}).get(LSN_METADATA)
    return None if lsn is None else int(lsn)


def _pairs(reader: pa.RecordBatchReader) -> Iterator[tuple[bytes, bytes]]:
    for batch in reader:
        yield from zip(batch.column(0).to_pylist(), batch.column(1).to_pylist(), strict=True)
