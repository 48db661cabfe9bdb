"""The lease of a database's writer, ``lease.json``: an advisory object, so that no process takes over by accident.

Owns: the lease's JSON, when it counts, and how it is taken, renewed and given up. Format: docs/format/manifest-kv.md.

Invariants:
- The fence provides safety. If a lease is lost, stale, doubled or damaged, no write is. The lease decides whether the
  opening of a database is refused, and whether a fence is needed at all.
- Giving up the lease is the owner's last act: the writer of its epoch appends nothing any more, and has no append under
  way. This stays true forever, however late the lease is read. Any other lease says nothing about it.
- No lease blocks a database without end. It ends by its clock. A lease that cannot be read, or whose end is later than
  any lease may have, counts as ended, with a warning.
- A lease of a process that no longer runs here counts as ended. Host, boot and process namespace together decide
  whether it is *here*. If these are not known, only the clock decides.
"""

from __future__ import annotations

import math
import os
import socket
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, NamedTuple

import msgspec
from typing_extensions import Buffer

from lakebed.decoding import decode_json
from lakebed.duration import format_duration
from lakebed.errors import Conflict, Fenced, InvalidRequest, NotFound, OutcomeUnknown, Unavailable
from lakebed.kv.database_location import DatabaseLocation
from lakebed.kv.layout import LEASE_PATH

LEASE_LIFETIME_MS_MAX: Final = 3_600_000
"""Longest lease, and so the longest time that a crashed owner on another machine can block the database."""

LEASE_LIFETIME_MS_DEFAULT: Final = 30_000
"""Lifetime of the lease of a claim without the options of a writer."""

_FORMAT: Final = 1

_GIVEN_UP_MS: Final = 0
"""The end that marks a lease as given up by its owner. No clock yields this time."""


@dataclass(frozen=True, slots=True)
class Process:
    """A process that may own a database.

    Attributes:
        boot: identifies one boot of one machine and one process namespace; None if they are not known.
        endpoint: where the process can be reached, if it serves others.
        runs: returns whether a process of this `host` and `boot` runs.
    """

    host: str
    pid: int
    boot: str | None
    endpoint: str | None
    runs: Callable[[int], bool]


def this_process(*, endpoint: str | None = None) -> Process:
    """Return the process that calls. Cost: reads two small files of the kernel."""
    return Process(socket.gethostname(), os.getpid(), _boot(), endpoint, _runs)


def _boot() -> str | None:
    try:
        with open("/proc/sys/kernel/random/boot_id", encoding="ascii") as file:
            return f"{file.read().strip()}/{os.readlink('/proc/self/ns/pid')}"
    except OSError:
        return None  # not Linux: the clock decides


def _runs(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except OSError:
        return True  # it runs, and belongs to another user
    return True


class _LeaseJson(msgspec.Struct, frozen=True):
    """Fields on disk: DO NOT CHANGE. Later formats keep these and add others, so that an older lakebed reads them."""

    format: int
    endpoint: str | None
    host: str
    pid: int
    boot: str | None
    epoch: int
    taken_at_ms: int
    expires_at_ms: int


class FoundLease(NamedTuple):
    """The result of reading the lease: the owner that has the database, if there is one, and a warning."""

    owner: _LeaseJson | None
    """The lease, if it counts; None: no lease counts."""
    warning: str | None
    """Why an existing lease does not count, unless it has simply ended."""
    ended_epoch: int | None = None
    """The epoch whose owner gave the lease up; None: the lease was not given up."""


def read_lease(location: DatabaseLocation, *, process: Process) -> FoundLease:
    """Read the lease of the database, and decide whether it counts.

    Raises `Unavailable`. Cost: 1 GET.
    """
    try:
        body = location.store.get(LEASE_PATH)
    except NotFound:
        return FoundLease(None, None)
    return _judge(body, process=process, now_ms=location.environment.clock.now_ms(), url=location.url)


def _judge(body: Buffer, *, process: Process, now_ms: int, url: str) -> FoundLease:
    lease = _decode(body)
    if lease is None:
        return FoundLease(None, f"The lease of {url} cannot be read, and was not heeded.")
    if lease.expires_at_ms == _GIVEN_UP_MS:
        return FoundLease(None, None, lease.epoch)
    if lease.expires_at_ms <= now_ms:
        return FoundLease(None, None)
    if lease.expires_at_ms - now_ms > LEASE_LIFETIME_MS_MAX:
        return FoundLease(
            None,
            f"The lease of {url} by {lease.host}, process {lease.pid}, ends later than any lease may (a clock is "
            "wrong), and was not heeded.",
        )
    here = process.boot is not None and (lease.host, lease.boot) == (process.host, process.boot)
    if here and not process.runs(lease.pid):
        return FoundLease(None, f"The owner of {url}, process {lease.pid} on this machine, ended without closing it.")
    return FoundLease(lease, None)


def _decode(body: Buffer) -> _LeaseJson | None:
    try:
        return decode_json(body, _LeaseJson)
    except (msgspec.DecodeError, UnicodeDecodeError, ValueError, OverflowError):
        return None


def check_not_owned(location: DatabaseLocation, *, take_over: bool, process: Process | None = None) -> FoundLease:
    """Read the lease for a process that wants to claim the database.

    Args:
        take_over: allow a live lease of another owner.
        process: the process that wants to claim; None: the process that calls.

    Raises:
        Conflict: kind ``owned``; another owner's lease is live, and `take_over` is False.
    Cost: 1 GET.
    """
    process = process or this_process()
    lease_state = read_lease(location, process=process)
    if lease_state.owner is not None and not take_over:
        raise _ownership_error(
            lease_state.owner, process=process, url=location.url, now_ms=location.environment.clock.now_ms()
        )
    return lease_state


def _ownership_error(lease: _LeaseJson, *, process: Process, url: str, now_ms: int) -> Conflict:
    """Return the error for an opening that finds a live lease.

    Args:
        process: the process that opens. It may be the owner itself, with the database open elsewhere in its code.
    """
    where = f" at {lease.endpoint}" if lease.endpoint else ""
    since, time_left = (
        format_duration(max(0, now_ms - lease.taken_at_ms)),
        format_duration(lease.expires_at_ms - now_ms),
    )
    if process.boot is not None and (lease.host, lease.boot, lease.pid) == (process.host, process.boot, process.pid):
        advice = (
            "which is this process: close the open database first (for an older version, call its restore), or pass "
            "take_over=True to end it."
        )
    else:
        advice = (
            f"for {since}, and its lease lasts {time_left} more unless renewed: close it there, wait, or end "
            "that writer with --take-over of `lakebed kv` or `lakebed serve` (in Python take_over=True)."
        )
    return Conflict(
        f"The database {url} is owned by process {lease.pid} on {lease.host}{where}, {advice}",
        kind="owned",
        url=url,
        host=lease.host,
        pid=lease.pid,
        endpoint=lease.endpoint,
        epoch=lease.epoch,
        taken_at_ms=lease.taken_at_ms,
        expires_at_ms=lease.expires_at_ms,
    )


def take_lease(
    location: DatabaseLocation, *, process: Process, epoch: int, lifetime_ms: int
) -> tuple[Lease, str | None]:
    """Write our lease, and replace any that is there. For a writer that has made its fence.

    Returns:
        The lease, and a warning if the store did not accept it. The writer is the owner nevertheless, and the next
        `Lease.renew_once` tries again.

    Raises:
        InvalidRequest: kind ``invalid_lifetime``; or the folder is not writable.
    Cost: 1 PUT.
    """
    check_lifetime(lifetime_ms)
    lease = Lease(location, process=process, epoch=epoch, lifetime_ms=lifetime_ms)
    try:
        lease._write(expires_at_ms=lease.taken_at_ms + lifetime_ms)
    except (Unavailable, OutcomeUnknown) as unanswered:
        return lease, f"The lease of {location.url} could not be written yet: {unanswered}"
    return lease, None


def check_lifetime(lifetime_ms: int) -> None:
    """Raise `InvalidRequest` for a lifetime that no lease can have."""
    if not 1 <= lifetime_ms <= LEASE_LIFETIME_MS_MAX:
        raise InvalidRequest(
            f"A lease cannot live for {lifetime_ms:,} ms: lease_lifetime_ms is from 1 to {LEASE_LIFETIME_MS_MAX:,}.",
            kind="invalid_lifetime",
        )


class Lease:
    """The lease of one writer, from `take_lease`."""

    def __init__(self, location: DatabaseLocation, *, process: Process, epoch: int, lifetime_ms: int) -> None:
        self._location = location
        self._process = process
        self._lifetime_ms = lifetime_ms
        self.epoch = epoch
        self.taken_at_ms = location.environment.clock.now_ms()
        self.expires_at_ms = self.taken_at_ms
        self._written_s = -math.inf

    @property
    def renew_in_s(self) -> float:
        """Return the seconds until the renewal, which is due after a third of the lifetime; 0 or less: now.

        Measured by the monotonic clock, so that a wall clock that is set back does not delay the renewal.
        """
        return self._written_s + self._lifetime_ms / 3000 - self._location.environment.clock.monotonic_s()

    def renew_once(self) -> bool:
        """Write the lease again with a new end, if that is due. A step function.

        Returns:
            Whether it was due.

        Raises:
            Fenced: a newer writer's lease is there, so this writer is fenced.
            Unavailable, OutcomeUnknown: the store failed. Nothing is lost; try again later.

        Cost: nothing if not due, otherwise 1 GET + 1 PUT.
        """
        if self.renew_in_s > 0:
            return False
        lease = self._there()
        if lease is not None and lease.epoch > self.epoch:
            raise Fenced(
                f"The database {self._location.url} was taken over by process {lease.pid} on {lease.host} (epoch "
                f"{lease.epoch}), and this one (epoch {self.epoch}) may not write any more: open it again to write.",
                url=self._location.url,
                epoch=self.epoch,
                new_epoch=lease.epoch,
                host=lease.host,
                pid=lease.pid,
            )
        self._write(expires_at_ms=self._location.environment.clock.now_ms() + self._lifetime_ms)
        return True

    def give_up(self) -> None:
        """End the lease now, so that the next writer need not wait. A newer writer's lease is left alone.

        This is the last act of a writer. Everything that it appended must be durable, and no append may be under way,
        because the next writer makes no fence against it. If an older writer that slept has overwritten our lease, its
        lease is replaced too.

        Cost: 1 GET + 1 PUT.
        """
        lease = self._there()
        if lease is not None and lease.epoch <= self.epoch:
            self._write(expires_at_ms=_GIVEN_UP_MS)

    def _there(self) -> _LeaseJson | None:
        try:
            return _decode(self._location.store.get(LEASE_PATH))
        except NotFound:
            return None

    def _write(self, *, expires_at_ms: int) -> None:
        process = self._process
        body = _LeaseJson(
            _FORMAT,
            process.endpoint,
            process.host,
            process.pid,
            process.boot,
            self.epoch,
            self.taken_at_ms,
            expires_at_ms,
        )
        written_s = self._location.environment.clock.monotonic_s()
        self._location.store.put(LEASE_PATH, msgspec.json.encode(body) + b"\n", durable=False)
        self._written_s = written_s
        self.expires_at_ms = expires_at_ms
