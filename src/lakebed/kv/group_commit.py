"""Group commit: the first waiting writer makes everything pending durable, for all writers. The others wait for it.

Owns: which writer leads, the result of each waiting writer, and which rows go into which log object.

Invariants:
- There is one leader at a time, so one create in the log is in flight. No gap can follow a crash.
- There is no timer. A waiting writer leads at once, or waits for exactly the work that is under way.
- A group never spans two memtables, and its log id is fixed when it is sealed. So a rotated memtable knows its last id
  before that object exists.
- A group whose outcome is unclear stays first. The next leader tries the same id and the same bytes. The id is never
  used for anything else.
- Every waiting writer gets a result: success, the failure of the attempt that had its rows, or `Fenced`. If a leader's
  thread is interrupted or exits, there is no result, and the next waiting writer leads.
- A group that cannot be encoded is given up: an empty record takes its id, its rows are taken back, and its writers get
  the reason. Later groups continue, unless one has a conditional write, whose condition may depend on those rows.
- A thread may be interrupted after any call (Ctrl-C). Therefore state that belongs together is assigned without a call
  in between, and this module asks which memtable is active, rather than being notified.

Locks: the tree's lock guards all state. The store is never called under it.
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
    """The oldest group cannot be encoded. The caller of `LogGroups.append_oldest` takes its rows back."""

    def __init__(self, error: LakebedError) -> None:
        super().__init__(error.message)
        self.error = error
        """The error for the group's writers."""


@dataclass(slots=True)
class _Loss:
    """Rows that were taken back."""

    first: int
    last: int
    error: LakebedError
    unreported_count: int
    """Rows whose writers did not wait, or did not get the error yet."""


def copy_error(error: BaseException) -> LakebedError:
    """Copy an error for another thread: the tracebacks of an exception that is raised twice would be mixed."""
    if isinstance(error, LakebedError):
        return type(error)(error.message, kind=error.kind, **error.facts)
    return InternalError(f"Making writes durable failed: {type(error).__name__}: {error}")


class GroupCommit:
    """Leader and followers of one open database.

    Args:
        persist: makes the oldest pending rows durable and returns the sequence up to which all rows are durable. It is
            called by one thread at a time, without the lock.
        newest: returns the sequence of the newest row; called under the lock.
        on_fence: called once, under the lock, when a newer owner is known.
        durable_sequence: the sequence up to which all rows are durable already.
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
        """The error since a newer owner is known. From then on nothing becomes durable here."""

    def wait(self, sequence: int, *, row_count: int = 1) -> None:
        """Wait until a write is durable. Lead if no other thread does.

        Args:
            sequence: sequence of the write's last row.

        Raises:
            Fenced: there is a newer owner. The rows are lost unless they were durable.
            OutcomeUnknown, LakebedError: the attempt that had these rows failed. They stay first in line, and a later
                attempt may still make them durable.
            Unavailable, InternalError, Conflict: the rows were taken back, and nothing was written. `Unavailable` is
                raised for no other reason, because it says that nothing happened.
        """
        self._wait(sequence, row_count)

    def wait_durable(self, sequence: int) -> None:
        """Wait until every row up to `sequence` is durable or was taken back. Otherwise raise as `wait`."""
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
                            raise copy_error(loss.error)  # the code below counts that this writer got the error
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
                    with self._lock:  # if the rows were taken back, that is certain, whatever this error says
                        self._check_lost(sequence, row_count)
                raise
            finally:
                if self._leader is me:
                    with self._lock:
                        self._leader = None
                        self._changed.notify_all()

    def lose(self, first: int, last: int, error: LakebedError) -> None:
        """Record that the rows ``[first, last]`` are taken back, with the error for their writers.

        Under the lock. The call may be repeated.
        """
        if all(loss.first != first for loss in self._losses):
            self._losses.append(_Loss(first, last, error, last - first + 1))

    def _find_loss(self, sequence: int) -> _Loss | None:
        return next((loss for loss in self._losses if loss.first <= sequence <= loss.last), None)

    def _check_lost(self, sequence: int, row_count: int) -> None:
        """Raise the reason if rows were taken back, and count that their writer got it: once for each write."""
        loss = self._find_loss(sequence)
        if loss is not None:
            loss.unreported_count -= row_count
            raise copy_error(loss.error) from loss.error

    def check_unreported(self) -> None:
        """Raise once the reason why rows were lost or taken back, if their writers did not wait for them."""
        with self._lock:
            if self.fenced is not None and self._newest() - self.durable_sequence > self._fenced_count:
                raise copy_error(self.fenced)
            for loss in self._losses:
                if loss.unreported_count > 0:
                    loss.unreported_count = 0
                    raise copy_error(loss.error) from loss.error

    @property
    def unclear_sequence(self) -> int | None:
        """The last sequence in, or behind, an attempt whose outcome is not known yet; None: no attempt is unclear."""
        return self._failed_through if self._failed_through > self.durable_sequence else None

    def wait_for_others(self, sequence: int, *, timeout_s: float) -> None:
        """Wait until every row up to `sequence` is durable or cannot become so, or the time is over. Never lead."""
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
        """Record that a newer owner is known. Every writer that waits now or later gets the first such error."""
        with self._lock:
            if self.fenced is None:
                self.fenced = error
                self._on_fence()
            self._changed.notify_all()


@dataclass(slots=True, eq=False)
class _Group:
    """Rows ``[start, end)`` of one memtable, and their log id."""

    wal_id: int
    memtable: Memtable
    start: int
    end: int
    body: bytes | None = None
    """The encoded record, from the first attempt until it is in the log."""

    @property
    def first_sequence(self) -> int:
        return self.memtable.first_sequence + self.start

    @property
    def last_sequence(self) -> int:
        return self.memtable.first_sequence + self.end - 1


class LogGroups:
    """The rows that are not in the log yet: sealed groups, oldest first, and the open group of the active memtable.

    Args:
        epoch: the writer's epoch, which is part of every record.
        last_wal_id: the newest id of the log, which is the fence of this opening. The next group gets the next id.
        active: returns the active memtable; called under the lock. It changes only when all its rows are sealed. At the
            beginning all its rows are in the log.
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
        """The last id given to a group. Its object may not exist yet."""
        self.appended_count = 0
        """Log objects written since the database was opened."""

    # Under the lock

    def seal(self) -> int:
        """Seal the open group if it has rows. Return the log id up to which the memtable's rows will be."""
        self._follow()
        end, bytes_ = self._memtable.row_count, self._memtable.payload_bytes
        if end > self._start:
            group = _Group(self.last_wal_id + 1, self._memtable, self._start, end)
            self._sealed, self._start, self._sealed_bytes = (*self._sealed, group), end, bytes_
            self.last_wal_id += 1
        return self.last_wal_id

    def pending_bytes(self) -> int:
        """Bytes of keys and values of the active memtable that are neither in a log object nor in a sealed group."""
        self._follow()
        return self._memtable.payload_bytes - self._sealed_bytes

    def _follow(self) -> None:
        active = self._active()
        if active is not self._memtable:
            assert self._start == self._memtable.row_count, "a memtable was left with rows outside of every group"
            self._memtable, self._start, self._sealed_bytes = active, 0, 0

    @property
    def durable_wal_id(self) -> int:
        """The last id that is certainly in the log."""
        return self._sealed[0].wal_id - 1 if self._sealed else self.last_wal_id

    # Without the lock

    def newest_owner(self) -> tuple[int, int]:
        """Determine the owner of the log at some moment during this call, and which of our rows were in it then.

        Returns:
            The owner's epoch: ours, or that of a newer writer. And the sequence up to which rows were in the log,
            including rows whose writers still wait; valid only if the epoch is ours.

        Cost: 1 HEAD; while an append is under way 2 HEAD, and 1 GET if the append has succeeded.
        """
        while True:
            with self._lock:
                group = self._sealed[0] if self._sealed else None
                first = self.last_wal_id + 1 if group is None else group.wal_id
                last_sequence = self._last_sequence_in_log() if group is None else group.first_sequence - 1
            is_tried = group is not None and group.body is not None
            # A fence takes the next free id, and is never deleted. An append that is under way may have succeeded, and
            # a newer owner may even have collected its object since. Then that owner's fence has the id after it.
            try:
                for wal_id in (first, first + 1) if is_tried else (first,):
                    if self._wal.exists(wal_id):
                        epoch = self._wal.read(wal_id).epoch
                        if epoch != self._epoch:
                            return epoch, last_sequence
                        if group is None or wal_id > first:
                            break  # an append has begun and succeeded during this call: the end of the log is not known
                        last_sequence = group.last_sequence
                else:
                    return self._epoch, last_sequence  # there is no fence
            except NotFound:
                continue  # the object was created, flushed and collected during this call

    def _last_sequence_in_log(self) -> int:
        """Return the sequence of the last row that is certainly in the log if no group is sealed. Under the lock."""
        self._follow()
        return self._memtable.first_sequence + self._start - 1

    def append_oldest(self) -> int:
        """Append the oldest group to the log. Only one thread at a time may call this.

        Returns:
            The sequence up to which all rows are in the log.

        Raises:
            Unencodable: the group cannot be encoded. Call `take_back`, then call this again.
            Fenced: another owner's record or fence has its id.
            OutcomeUnknown: the store gave no clear answer. The group stays first, with its id and its bytes.
        Cost: 1 PUT.
        """
        self._wait_for_spacing()
        with self._lock:
            if not self._sealed:
                self.seal()
            if not self._sealed:  # another thread has appended all, and was interrupted before it could report this
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
        """Return the groups to take back: the oldest, which cannot be encoded, and those that depend on it.

        Under the lock.

        Args:
            checked_sequence: sequence of the last conditional write. If it is behind the oldest group, all groups
                behind that group are taken back too, because the condition may have seen one of its rows.
        """
        return self._sealed if checked_sequence > self._sealed[0].last_sequence else self._sealed[:1]

    def take_back(self, lost: Sequence[_Group]) -> None:
        """Hide the rows of groups, and give their ids to empty records. Under the lock; all groups are sealed.

        The record of the oldest group is replaced last. Until then the next append fails again, and all of this is
        repeated, including work that an interrupt (Ctrl-C) has cut short.
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
    """Return the error for the writers of a group that cannot be encoded."""
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
