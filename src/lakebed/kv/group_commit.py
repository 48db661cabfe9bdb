"""Group commit: the first writer that waits makes everything pending durable, for all; the others wait for it.

Owns: which writer leads, what each waiting writer gets as its result, and which rows go into which log object.

Invariants:
- One leader at a time, so one create of the log is in flight: no gap can follow a crash.
- No timer: a waiting writer leads at once, or waits for exactly the work that is under way.
- A group never spans two memtables, and its log id is fixed when it is sealed: a rotated memtable knows its last id
  before that object exists.
- A group whose outcome is unclear stays first: the next leader tries the same id and the same bytes. Nothing else ever
  takes its place.
- Every waiting writer gets a result: success, the failure of the attempt that held its rows, or `Fenced`. If a
  leader's thread is interrupted or exits, there is no result and the next waiter leads.
- A group that cannot be encoded is given up: an empty record takes its id, its rows are taken back, and its writers get
  the reason. Groups behind it continue, unless one has a conditional write, whose condition may depend on those rows.

- A thread may be interrupted behind any call (Ctrl-C): state that belongs together is assigned without a call between,
  and which memtable is written is asked, not told.

Locks: all state is guarded by the tree's lock, which no store call happens under.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, Final

from lakebed.errors import Fenced, InternalError, LakebedError, NotFound, OutcomeUnknown, Unavailable
from lakebed.kv.wal import WalLog
from lakebed.lsm.memtable import Memtable
from lakebed.runtime import Environment


class Unencodable(Exception):
    """The oldest group cannot be encoded; the caller of `LogGroups.append_oldest` takes its rows back."""

    def __init__(self, error: LakebedError) -> None:
        super().__init__(error.message)
        self.error = error
        """For the group's writers."""


@dataclass(slots=True)
class _Loss:
    """Rows that were taken back."""

    first: int
    last: int
    error: LakebedError
    untold_count: int
    """Rows whose writers did not wait, or have not got the error yet."""


def copy_error(error: BaseException) -> LakebedError:
    """The same error for another thread: an exception that is raised twice would mix up its traces."""
    if isinstance(error, LakebedError):
        return type(error)(error.message, kind=error.kind, **error.facts)
    return InternalError(f"Making writes durable failed: {type(error).__name__}: {error}")


class GroupCommit:
    """Leader and followers of one open database.

    Args:
        persist: makes the oldest pending rows durable and returns the sequence up to which all are; called by one
            thread at a time, without the lock.
        newest: sequence of the newest row; called under the lock.
        on_fence: called under the lock, once, when a newer owner is known.
        durable_sequence: up to here all rows are durable already.
    """

    def __init__(
        self,
        *,
        persist: Callable[[], int],
        newest: Callable[[], int],
        on_fence: Callable[[], None],
        lock: AbstractContextManager[Any],
        durable_sequence: int,
        environment: Environment,
    ) -> None:
        self._persist = persist
        self._newest = newest
        self._on_fence = on_fence
        self._lock = lock
        self._environment = environment
        self._changed = environment.runtime.condition(lock)
        self._leader: object | None = None
        self._failure: BaseException | None = None
        self._failure_count = 0
        self._failed_through = 0
        self._losses: list[_Loss] = []
        self._fenced_count = 0  # rows whose writers know that a newer owner took the database
        self.durable_sequence: int = durable_sequence
        """Every row up to here is durable. Read it under the lock, or as a lower bound."""
        self.fenced: Fenced | None = None
        """Set once a newer owner is known; from then on nothing becomes durable here."""

    def wait(self, sequence: int, *, row_count: int = 1) -> None:
        """Return when a write is durable, leading if no other thread does.

        Args:
            sequence: of its last row.

        Raises:
            Fenced: a newer owner; the rows are lost unless they were durable.
            OutcomeUnknown, LakebedError: the attempt that held these rows failed; they stay first in line and a later
                attempt may still make them durable.
            Unavailable, InternalError, Conflict: the rows were taken back: nothing was written. For no other reason
                `Unavailable`, which says that nothing happened.
        """
        self._wait(sequence, row_count)

    def wait_durable(self, sequence: int) -> None:
        """Return when every row up to `sequence` is durable or was taken back. Otherwise raises as `wait`."""
        self._wait(sequence, 0)

    def _wait(self, sequence: int, row_count: int) -> None:
        failures_before = self._failure_count
        me = object()
        while True:
            try:
                with self._lock:
                    while True:
                        loss = self._find_loss(sequence) if row_count else None
                        if loss is not None:
                            raise copy_error(loss.error)  # below, this writer is counted as told
                        if self.durable_sequence >= sequence:
                            return
                        if self.fenced is not None:
                            raise copy_error(self.fenced)
                        if self._failure_count > failures_before and sequence <= self._failed_through:
                            assert self._failure is not None
                            raise copy_error(self._failure) from self._failure
                        if self._leader is None:
                            break
                        self._changed.wait()
                    self._leader = me
                    newest = self._newest()
                self._lead(newest)
            except LakebedError as error:
                if isinstance(error, Fenced):
                    with self._lock:
                        self._fenced_count += row_count
                if row_count and self._losses:
                    with self._lock:  # that these rows were taken back is known, whatever else is not
                        self._check_lost(sequence, row_count)
                raise
            finally:
                if self._leader is me:
                    with self._lock:
                        self._leader = None
                        self._changed.notify_all()

    def lose(self, first: int, last: int, error: LakebedError) -> None:
        """The rows ``[first, last]`` are taken back; their writers get the error. Under the lock; may be repeated."""
        if all(loss.first != first for loss in self._losses):
            self._losses.append(_Loss(first, last, error, last - first + 1))

    def _find_loss(self, sequence: int) -> _Loss | None:
        return next((loss for loss in self._losses if loss.first <= sequence <= loss.last), None)

    def _check_lost(self, sequence: int, row_count: int) -> None:
        """Raise why rows were taken back, and count that their writer was told: once a write."""
        loss = self._find_loss(sequence)
        if loss is not None:
            loss.untold_count -= row_count
            raise copy_error(loss.error) from loss.error

    def check_untold(self) -> None:
        """Raise, once, why rows were lost or taken back whose writers did not wait for them."""
        with self._lock:
            if self.fenced is not None and self._newest() - self.durable_sequence > self._fenced_count:
                raise copy_error(self.fenced)
            for loss in self._losses:
                if loss.untold_count > 0:
                    loss.untold_count = 0
                    raise copy_error(loss.error) from loss.error

    @property
    def unclear_sequence(self) -> int | None:
        """Up to here rows were in an attempt, or behind one, whose outcome is not known yet; None: in none."""
        return self._failed_through if self._failed_through > self.durable_sequence else None

    def wait_for_others(self, sequence: int, *, timeout_s: float) -> None:
        """Return when every row up to `sequence` is durable, or cannot become so, or time is over; never leads."""
        clock = self._environment.clock
        ends_s = clock.monotonic_s() + timeout_s
        with self._lock:
            while self.durable_sequence < sequence and self.fenced is None:
                left_s = ends_s - clock.monotonic_s()
                if left_s <= 0 or not self._changed.wait(left_s):
                    return

    def _lead(self, newest: int) -> None:
        try:
            durable = self._persist()
        except Fenced as error:
            self.fence(error)
            raise
        except Unavailable as error:
            # The store did nothing, but the writer's rows stay first in line and may become durable later.
            unknown = OutcomeUnknown(
                f"What was written is not durable yet, and may become so with a later write: {error}",
                kind=error.kind,
                **error.facts,
            )
            self._note_failure(unknown, newest)
            raise unknown from error
        except Exception as error:
            self._note_failure(error, newest)
            raise
        with self._lock:
            self.durable_sequence = max(self.durable_sequence, durable)

    def _note_failure(self, error: Exception, newest: int) -> None:
        """Keep the error for writers whose rows, up to `newest`, were in the attempt or behind it."""
        with self._lock:
            self._failure = error
            self._failure_count += 1
            self._failed_through = newest

    def fence(self, error: Fenced) -> None:
        """A newer owner is known: every writer that waits, now or later, gets the error. The first error stays."""
        with self._lock:
            if self.fenced is None:
                self.fenced = error
                self._on_fence()
            self._changed.notify_all()


@dataclass(slots=True, eq=False)
class _Group:
    """Rows ``[start, end)`` of one memtable, and the log id that is theirs."""

    wal_id: int
    memtable: Memtable
    start: int
    end: int
    body: bytes | None = None
    """Encoded at the first attempt, and kept until it is in the log."""

    @property
    def first_sequence(self) -> int:
        return self.memtable.first_sequence + self.start

    @property
    def last_sequence(self) -> int:
        return self.memtable.first_sequence + self.end - 1


class LogGroups:
    """Rows on their way to the log: sealed groups, oldest first, and the open one at the end of the active memtable.

    Args:
        epoch: ours; part of every record.
        last_wal_id: the newest id of the log, the fence of this opening: the next group gets the id behind it.
        active: the memtable that is written, which changes when all rows of it are sealed; all rows so far are in the
            log. Called under the lock.
        spacing_ms: shortest time between the beginnings of two appends.
    """

    def __init__(
        self,
        wal: WalLog,
        *,
        epoch: int,
        last_wal_id: int,
        active: Callable[[], Memtable],
        lock: AbstractContextManager[Any],
        spacing_ms: int,
        environment: Environment,
    ) -> None:
        self._wal = wal
        self._epoch = epoch
        self._lock = lock
        self._spacing_s: Final = spacing_ms / 1000
        self._environment = environment
        self._sealed: tuple[_Group, ...] = ()
        self._active = active
        self._memtable = active()
        self._start = self._memtable.row_count
        self._sealed_bytes = self._memtable.payload_bytes
        self._last_append_s: float | None = None
        self.last_wal_id = last_wal_id
        """Last id given to a group; its object may not be there yet."""
        self.appended_count = 0
        """Log objects written since the database was opened."""

    # Under the lock

    def seal(self) -> int:
        """Close the open group, if it has rows; returns the log id up to which the memtable's rows will be."""
        self._follow()
        end, bytes_ = self._memtable.row_count, self._memtable.payload_bytes
        if end > self._start:
            group = _Group(self.last_wal_id + 1, self._memtable, self._start, end)
            self._sealed, self._start, self._sealed_bytes = (*self._sealed, group), end, bytes_
            self.last_wal_id += 1
        return self.last_wal_id

    def pending_bytes(self) -> int:
        """Keys and values of the active memtable that are in no log object and in no group on its way there."""
        self._follow()
        return self._memtable.payload_bytes - self._sealed_bytes

    def _follow(self) -> None:
        active = self._active()
        if active is not self._memtable:
            assert self._start == self._memtable.row_count, "a memtable was left with rows outside of every group"
            self._memtable, self._start, self._sealed_bytes = active, 0, 0

    @property
    def durable_wal_id(self) -> int:
        """The last id that is surely in the log."""
        return self._sealed[0].wal_id - 1 if self._sealed else self.last_wal_id

    # Without the lock

    def newest_owner(self) -> tuple[int, int]:
        """Who owned the log at some moment during this call, and which rows of ours were in it at that moment.

        Returns:
            The owner's epoch: ours, or that of a newer writer. And the sequence up to which rows were in the log, also
            those whose writers still wait; valid only where the epoch is ours.

        Cost: 1 HEAD; while an append is under way 2 HEAD, and 1 GET when it has landed.
        """
        while True:
            with self._lock:
                group = self._sealed[0] if self._sealed else None
                first = self.last_wal_id + 1 if group is None else group.wal_id
                landed = self._last_sequence_in_log() if group is None else group.first_sequence - 1
            is_tried = group is not None and group.body is not None
            # A fence takes the next free id, and is never deleted. What is under way may have landed, and may even
            # have been collected by a newer owner since, whose fence is right behind it then.
            try:
                for wal_id in (first, first + 1) if is_tried else (first,):
                    if self._wal.exists(wal_id):
                        epoch = self._wal.read(wal_id).epoch
                        if epoch != self._epoch:
                            return epoch, landed
                        if group is None or wal_id > first:
                            break  # an append that began and succeeded meanwhile: how far the log goes is not known
                        landed = group.last_sequence
                else:
                    return self._epoch, landed  # there is no fence
            except NotFound:
                continue  # landed, flushed and collected while we looked

    def _last_sequence_in_log(self) -> int:
        """Of the last row that is surely in the log when no group is sealed. Under the lock."""
        self._follow()
        return self._memtable.first_sequence + self._start - 1

    def append_oldest(self) -> int:
        """Put the oldest group into the log; by one thread at a time.

        Returns:
            The sequence up to which all is in the log.

        Raises:
            Unencodable: it cannot be; `take_back` it, then call again.
            Fenced: another owner's record or fence is in its place.
            OutcomeUnknown: the store gave no clear answer; the group stays first, with its id and its bytes.
        Cost: 1 PUT.
        """
        self._wait_for_spacing()
        with self._lock:
            if not self._sealed:
                self.seal()
            if not self._sealed:  # another thread appended all, and was interrupted before it could tell
                return self._last_sequence_in_log()
            group = self._sealed[0]
        if group.body is None:
            try:
                rows = group.memtable.log(group.start, group.end)
                group.body = self._wal.encode(rows, id=group.wal_id, epoch=self._epoch)
            except Exception as error:
                raise Unencodable(_not_written(error)) from error
        self._wal.append(group.wal_id, group.body)
        with self._lock:
            self._sealed = self._sealed[1:]
            self.appended_count += 1
            return group.last_sequence if self._sealed else self._last_sequence_in_log()

    def choose_lost(self, *, checked_sequence: int) -> tuple[_Group, ...]:
        """The groups that go with the oldest one, which cannot be encoded, that one first. Under the lock.

        Args:
            checked_sequence: of the last write that was made under a condition: where it stands behind the group, all
                behind it goes as well, because the condition may have seen a row of it.
        """
        return self._sealed if checked_sequence > self._sealed[0].last_sequence else self._sealed[:1]

    def take_back(self, lost: Sequence[_Group]) -> None:
        """Hide the rows of groups, and give their ids to empty records. Under the lock; all groups are sealed.

        The oldest one's record comes last: until it is there, the next append fails again, and all of this is repeated,
        also what an interrupt (Ctrl-C) has cut short.
        """
        for group in reversed(lost):
            if group.body is None:
                group.memtable.take_back(group.start, group.end)
                group.body = self._wal.encode_empty(id=group.wal_id, epoch=self._epoch)

    def _wait_for_spacing(self) -> None:
        clock = self._environment.clock
        if self._spacing_s and self._last_append_s is not None:
            wait_s = self._last_append_s + self._spacing_s - clock.monotonic_s()
            if wait_s > 0:
                clock.sleep(wait_s)
        self._last_append_s = clock.monotonic_s()


def _not_written(error: Exception) -> LakebedError:
    """The error for the writers of a group that cannot be encoded."""
    if isinstance(error, MemoryError):
        return Unavailable(
            f"There is not enough memory to write these rows to the log ({error}), and nothing of them was written: "
            "write less at once, or write again when memory is free.",
            kind="out_of_memory",
        )
    return InternalError(
        f"These rows cannot be encoded for the log ({type(error).__name__}: {error}), and nothing of them was written.",
        kind="unencodable_rows",
    )
