"""The state of an open database. It takes writes, makes them durable, flushes, compacts, and holds writers back.

Owns: `WriterCore`, with the tree, the claim, what is durable, and whether writes are accepted. `Database` has one, and
snapshots, transactions and the background threads share it.

Invariants:
- A write checks only two numbers, the *alarm*: the counts of rows and bytes in the memtable from which on work is due.
  Every state in which writes are refused, are held back, or have to wake a thread lowers the alarm to zero.
- A write is refused, or it is in the memtable as a whole. Rows are there in the order of their sequences. A write that
  raised `Fenced` or `OutcomeUnknown` after it entered the memtable may be seen by reads of this process.
- If there is a log, only memtables whose rows are in the log become files.

Locks: the tree's lock, held for short times only. No request is sent under it.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Any, Final, Protocol, TypeVar

import msgspec

from lakebed.errors import Closed, Conflict, Fenced, InvalidRequest, LakebedError, Unavailable
from lakebed.kv.checkpoint_refs import CheckpointRef
from lakebed.kv.claim import Claim
from lakebed.kv.engine import Engine
from lakebed.kv.group_commit import GroupCommit, LogGroups, Unencodable, copy_error
from lakebed.kv.model import Manifest
from lakebed.kv.options import DatabaseOptions
from lakebed.kv.read_core import ViewSource
from lakebed.log import logger
from lakebed.lsm.memtable import ROW_OVERHEAD_BYTES
from lakebed.lsm.operators import MergeOperator
from lakebed.lsm.view import View
from lakebed.runtime import Environment

_LOG: Final = logger("kv")

T = TypeVar("T")

LOG_OBJECTS_PER_MEMTABLE_MAX: Final = 8192
"""A memtable whose rows are in so many log objects is flushed even if it is small.

Recovery reads each object with one request, eight at once.
"""

LOG_OBJECTS_LEFT_MAX: Final = 64
"""Most log objects that a close leaves. The next opening, every reader and every clone have to read them.

Each object takes one request, eight at once, so 64 objects take eight rounds. The rows of a longer log go into a file,
which costs three requests. Fences count, because they are listed too.
"""

ProgressCall = Callable[[int, int], None]
"""Called with the rows read and the bytes written so far."""


class HistoryUser(Protocol):
    """A transaction that still needs to know what was written since it began."""

    @property
    def is_open(self) -> bool:
        """Whether the transaction has not ended."""
        ...


class WriterCore(ViewSource):
    """An open database without its verbs. Thread-safe.

    Args:
        claim: the claim of the writer's role.
        engine: tree, log and publisher, as `start_engine` returns them.

    Attributes:
        wanted: the condition on which background threads wait for work.
        commit: group commit, which knows what is durable.
        alarm_rows, alarm_bytes: sizes of the active memtable from which on a write calls `make_room` first.
        log_due_s: when the background writes rows to the log that no writer waits for (monotonic time); None: no such
            rows were pending at the last check.
        log_interval_ms: how long such rows may stay out of the log.
        has_background: whether threads run the steps. If not, a writer runs the step that it would wait for.
        compacts: whether this process compacts.
    """

    def __init__(
        self, url: str, claim: Claim, engine: Engine, *, options: DatabaseOptions, environment: Environment
    ) -> None:
        tree = engine.tree
        self.url = url
        self.claim = claim
        self.engine = engine
        self.tree = tree
        self.groups = engine.groups
        self.options = options
        self.environment = environment
        self.lock: AbstractContextManager[Any] = tree.lock
        self.wanted = environment.runtime.condition(tree.lock)
        self.alarm_rows = 0
        self.alarm_bytes = 0
        self.log_due_s: float | None = None
        self.log_interval_ms = options.flush_interval_max_ms if self.groups is None else options.wal_flush_interval_ms
        self.has_background = False
        self.compacts = claim.owns_compaction
        self.is_closed = False
        self.why_closed = "was closed: open it again"
        self.why_closed_in_fork = "belongs to the process that this one was forked from: open a reader here"
        self._room = environment.runtime.condition(tree.lock)
        """The condition on which writers wait that are held back."""
        self._rotated_wal_id = claim.fence_id
        self._checked_sequence = 0
        """Sequence of the last conditional write."""
        self._trouble: LakebedError | None = None
        self._histories: list[tuple[weakref.ref[HistoryUser], int]] = []
        self.commit = GroupCommit(
            persist=self._append_to_log if self.groups is not None else self._flush_all,
            newest=lambda: tree.active.last_sequence,
            on_fence=self.trip_alarm,
            lock=tree.lock,
            durable_sequence=tree.active.last_sequence,
            environment=environment,
        )

    def now_ms(self) -> int:
        """Unix time in milliseconds, UTC."""
        return self.environment.clock.now_ms()

    # ---- reading

    def pin_view(self) -> tuple[View, CheckpointRef]:
        """Return everything written so far, with the reference to the checkpoint of its files. Raises `Closed`."""
        self.check_open()
        while True:
            view = self.tree.view()
            ref = self.engine.refs.of(view.file_set)
            if ref is not None:  # otherwise the tree showed another set between the two calls: use that one
                return view, ref

    def pin_durable_view(self) -> tuple[View, CheckpointRef]:
        """Return what is durable, as of a moment at which this process owned the database, with its reference.

        First wait until the outcome of every unclear write is known.
        """
        self.check_not_fenced()
        while (unclear := self.commit.unclear_sequence) is not None:
            self.commit.wait_durable(unclear)
        durable_sequence = self.confirm_owner()
        while True:
            # A flush in between may add rows. The view is then of a later moment, at which we still owned the database.
            with self.lock:
                view = self.tree.view_locked(through=durable_sequence)
            ref = self.engine.refs.of(view.file_set)
            if ref is not None:
                return view, ref

    # ---- writing

    def append_rows(
        self,
        keys: Sequence[bytes],
        values: Sequence[bytes | None],
        kinds: Sequence[int] | None,
        expires: Sequence[int | None] | None,
        *,
        check: Callable[[], None] | None,
        await_durable: bool,
    ) -> None:
        """Write checked rows in one step. `check` runs under the lock just before; its error prevents the write."""
        while True:
            with self.lock:
                memtable = self.tree.active
                if len(memtable.keys) < self.alarm_rows and memtable.payload_bytes < self.alarm_bytes:
                    if check is not None:
                        check()
                    memtable.extend(keys, values, kinds, expires)
                    sequence = memtable.last_sequence
                    if check is not None:
                        self._checked_sequence = sequence
                    break
            self.make_room()
        if await_durable:
            self.commit.wait(sequence, row_count=len(keys))

    def require_operator(self) -> MergeOperator:
        """Return the merge operator. Raises `InvalidRequest` if the database has none."""
        if self.engine.operator is None:
            raise InvalidRequest(
                f"The database {self.url} has no merge operator: open it once with "
                "DatabaseOptions(merge_operator=...), which stores the name.",
                kind="no_merge_operator",
            )
        return self.engine.operator

    # ---- the alarm

    def trip_alarm(self) -> None:
        """Make every write from now on call `make_room` first, and wake all waiting threads. Under the lock."""
        self.alarm_rows = self.alarm_bytes = 0
        self._room.notify_all()
        self.wanted.notify_all()

    def make_room(self) -> None:
        """Refuse the write, or wake threads, wait, or work until there is room. A write at the alarm calls it."""
        while True:
            with self.lock:
                self._check_writable()
                work = self._work_first()
                if work is None:
                    self._set_alarm()
                    return
                if self.has_background:
                    self.wanted.notify_all()
                    self._room.wait()
                    continue
            work()

    def _check_writable(self) -> None:
        self.check_not_fenced()
        if self._trouble is not None:
            trouble, self._trouble = self._trouble, None  # raised once for each failure
            raise copy_error(trouble) from trouble

    def error_when_closed(self) -> Closed:
        """Return the error that every verb raises after `Database.close`."""
        return Closed(f"The database {self.url} {self.why_closed}.")

    def report_trouble(self, error: LakebedError) -> None:
        """Make the next write raise an error of the background. Under the lock."""
        self._trouble = error
        self.trip_alarm()

    def _work_first(self) -> Callable[[], object] | None:
        """Return the step that has to run before the next write; None: no step. Under the lock."""
        tree, options = self.tree, self.options
        if tree.active.size_bytes >= options.l0_sst_bytes or self._log_objects() >= LOG_OBJECTS_PER_MEMTABLE_MAX:
            self._rotate()
        if tree.unflushed_bytes > options.unflushed_bytes_max:
            if not tree.waiting_count:
                self._rotate()
            return self.flush_once
        if tree.l0_count > options.l0_count_max:
            return self._shrink_l0
        if self._pending_bytes() >= options.wal_bytes_max:
            if not self.has_background:
                return self.make_durable
            self.want_log(within_ms=0)
        elif self.has_background and self.log_due_s is None:
            self.want_log(within_ms=self.log_interval_ms)
        return None

    def want_log(self, *, within_ms: int) -> None:
        """Make the background write the pending rows to the log, within `within_ms` at the latest. Under the lock."""
        due_s = self.environment.clock.monotonic_s() + within_ms / 1000
        if self.log_due_s is None or due_s < self.log_due_s:
            self.log_due_s = due_s
            self.wanted.notify_all()

    def _pending_bytes(self) -> int:
        """Bytes of keys and values of the active memtable that are neither in a log object nor in a sealed group."""
        return 0 if self.groups is None else self.groups.pending_bytes()

    def _log_objects(self) -> int:
        """Number of log objects that have rows of the active memtable."""
        return 0 if self.groups is None else self.groups.last_wal_id - self._rotated_wal_id

    def _set_alarm(self) -> None:
        """Set the alarm half way to the next limit, for rows of any size. It is set again there. Under the lock."""
        active, options = self.tree.active, self.options
        bytes_left = options.l0_sst_bytes - active.size_bytes
        self.alarm_rows = len(active.keys) + max(1, bytes_left // (2 * ROW_OVERHEAD_BYTES))
        alarm_bytes = active.payload_bytes + max(1, bytes_left // 2)
        if self.groups is not None:
            pending_max = options.wal_bytes_max - self._pending_bytes()
            # If the log lags behind, its thread is awake already: do not stop every row.
            step = pending_max if pending_max > 0 else max(1, options.wal_bytes_max // 8)
            alarm_bytes = min(alarm_bytes, active.payload_bytes + step)
        self.alarm_bytes = alarm_bytes

    def _rotate(self) -> None:
        """Queue the active memtable for its flush, and begin a new one. This fixes its last log id. Under the lock."""
        token = self.claim.fence_id
        if self.groups is not None:
            token = self.groups.seal()
        self.tree.rotate(token)
        self._rotated_wal_id = token
        self._release_histories()
        self.wanted.notify_all()

    def keep_history(self, user: HistoryUser, since: int) -> None:
        """Keep the history since a sequence until its user has ended or is no longer referenced.

        The caller has called `Tree.hold_history` for it.
        """
        with self.lock:
            self._release_histories()
            self._histories.append((weakref.ref(user), since))

    def _release_histories(self) -> None:
        """Release the history of transactions that have ended or are no longer referenced. Under the lock."""
        still_open = []
        for reference, since in self._histories:
            user = reference()
            if user is not None and user.is_open:
                still_open.append((reference, since))
            else:
                self.tree.release_history(since)
        self._histories = still_open

    # ---- steps

    def _append_to_log(self) -> int:
        assert self.groups is not None
        try:
            return self.groups.append_oldest()
        except Unencodable as failure:
            with self.lock:
                self._take_back(self.groups, failure.error)
        return self.groups.append_oldest()

    def _take_back(self, groups: LogGroups, error: LakebedError) -> None:
        """Give up the oldest group, which cannot be encoded, so that later ones become durable. Under the lock."""
        self._rotate()
        self.tree.begin_after_loss()
        lost_groups = groups.choose_lost(checked_sequence=self._checked_sequence)
        for group in lost_groups:
            reason = error if group is lost_groups[0] else _error_behind(error)
            self.commit.lose(group.first_sequence, group.last_sequence, reason)
        groups.take_back(lost_groups)
        self.trip_alarm()  # only until the next writer sets the alarm for the new memtable

    def _flush_all(self) -> int:
        """Put everything written so far into files. Return the sequence up to which rows are in files."""
        with self.lock:
            self._rotate()
            last_sequence = self.tree.active.first_sequence - 1
        while self.tree.flush_once():
            continue
        return last_sequence

    def shorten_log(self) -> None:
        """Put the log's rows into files if the log is long. All rows are durable, so a failure loses nothing.

        If a separate compactor lags behind, add no files and leave the log long: too many files would hold the next
        writer back.
        """
        if self.groups is None:
            return
        level_0_count = self.tree.l0_count + self.tree.waiting_count + (not self.tree.active.is_empty)
        if level_0_count > self.options.l0_count_max and not self.compacts:
            return
        manifest = self.claim.log.seen or self.claim.manifest
        if self.groups.durable_wal_id - manifest.replay_after_wal_id <= LOG_OBJECTS_LEFT_MAX:
            return
        try:
            self._flush_all()
        except Fenced as error:
            self.commit.fence(error)
        except LakebedError as error:
            _LOG.info("the log was left long", database=self.url, error=error.message)

    def make_durable(self) -> None:
        """Wait until everything written so far is durable or was taken back."""
        with self.lock:
            sequence = self.tree.active.last_sequence
        self.commit.wait_durable(sequence)

    @property
    def has_pending(self) -> bool:
        """Whether a row is not durable yet."""
        return self.tree.last_sequence > self.commit.durable_sequence

    def check_open(self) -> None:
        """Raise `Closed` after `Database.close`."""
        if self.is_closed:
            raise self.error_when_closed()

    def check_not_fenced(self) -> None:
        """Raise `Closed` or, once a newer owner is known, `Fenced`. Cost: no request."""
        self.check_open()
        if self.commit.fenced is not None:
            raise copy_error(self.commit.fenced)

    def flush(self, *, memtable: bool = False) -> None:
        """As `Database.flush`."""
        self.check_not_fenced()
        self.make_durable()
        self.commit.check_unreported()
        if memtable:
            with self.lock:
                self._rotate()
            while self.flush_once():
                continue

    def flush_once(self) -> bool:
        """As `Database.flush_once`."""
        with self.lock:
            self.check_not_fenced()
            last_sequence = self.tree.active.first_sequence - 1
            if not self.tree.waiting_count:
                return False
        self.commit.wait_durable(last_sequence)
        try:
            # Without a log, waiting for durability has flushed everything already.
            is_flushed = self.tree.flush_once() or self.groups is None
        except Fenced as error:
            self.commit.fence(error)
            raise
        self._wake_waiters()
        return is_flushed

    def compact_once(self, progress: ProgressCall | None = None) -> bool:
        """As `Database.compact_once`."""
        return self._compact(lambda: self.tree.compact_once(progress))

    def compact(self, *, full: bool = False, progress: ProgressCall | None = None) -> None:
        """As `Database.compact`."""
        self.flush(memtable=True)
        if full:
            self._compact(lambda: self.tree.compact_full(progress))
            return
        while self.compact_once(progress):
            continue

    def _compact(self, run: Callable[[], bool]) -> bool:
        self.check_not_fenced()
        try:
            return run()
        except Fenced as error:
            if error.kind == "compactor_fenced":
                self.compacts = False  # only the compactor's role is lost; another process has it now
            else:
                self.commit.fence(error)
            raise
        finally:
            self._wake_waiters()

    def _shrink_l0(self) -> None:
        """Reduce level 0 if it has too many files and no thread compacts. The write waits for this."""
        before = self.tree.l0_count
        if self.compacts:
            self.compact_once()
        else:
            self.poll_once()
        if self.tree.l0_count >= before:
            raise Unavailable(
                f"Level 0 of {self.url} has {before} files, and l0_count_max is {self.options.l0_count_max}: "
                "compaction is behind. Run `lakebed kv compact`, and write again.",
                kind="compaction_behind",
            )

    def poll_once(self) -> bool:
        """As `Database.poll_once`."""
        self.check_not_fenced()
        try:
            return self.tree.poll_once()
        except Fenced as error:
            self.commit.fence(error)
            raise
        finally:
            self._wake_waiters()

    def renew_once(self) -> bool:
        """As `Database.renew_once`."""
        self.check_not_fenced()
        try:
            return self.claim.lease.renew_once()
        except Fenced as error:
            self.commit.fence(error)
            raise

    # ---- the end

    def refuse_all(self) -> None:
        """Refuse every verb from now on. Steps that are under way finish."""
        with self.lock:
            self.is_closed = True
            self.trip_alarm()

    def leave(self) -> None:
        """Remove our checkpoint from the manifest, unless a newer writer has removed it already; release the lease."""
        durable_wal_id = self.claim.fence_id if self.groups is None else self.groups.durable_wal_id
        # If every row is in files, the next opening need not read the fences of earlier ones.
        replay_after = 0 if self.tree.waiting_count or not self.tree.active.is_empty else durable_wal_id

        def change(manifest: Manifest) -> Manifest | None:
            if manifest.writer_epoch != self.claim.epoch:
                return None
            return msgspec.structs.replace(
                manifest,
                replay_after_wal_id=max(manifest.replay_after_wal_id, replay_after),
                # The version that a closed database leaves must have every acknowledged row.
                wal_id_last_seen=max(manifest.wal_id_last_seen, durable_wal_id),
                # We publish nothing any more, so files that were uploaded and not published are garbage now.
                newest_l0_id=self.engine.publisher.next_file_id(),
                checkpoints=tuple(
                    checkpoint for checkpoint in manifest.checkpoints if checkpoint.owner.kind != "writer"
                ),
            )

        self.claim.log.update(change)
        self.claim.lease.give_up()

    def abandon(self) -> None:
        """Refuse everything, without a lock or a request. Only for the child of a fork."""
        self.lock = self.environment.runtime.lock()  # a thread that the child does not have may hold the tree's
        self.why_closed = self.why_closed_in_fork
        self.is_closed = True
        self.alarm_rows = self.alarm_bytes = 0

    # ---- ownership

    def confirm_view(self, view: View, *keys: bytes) -> None:
        """Wait until the rows that a view shows of the keys are durable.

        Then check that no other process owned the database when the view was taken. Raises as `put`.

        Cost: 1 HEAD (without a log: 1 LIST), and the flush of rows that are not durable yet.
        """
        assert view.sequence is not None, "a view of files alone"
        newest = max((table.newest_sequence(key) or 0 for key in keys for table in view.memtables), default=0)
        if newest > self.commit.durable_sequence:
            self.commit.wait_durable(min(newest, view.sequence))
        if view.sequence < self.tree.taken_back_through:
            raise Conflict(
                f"A write to {self.url} that this may have read could not be made durable and was taken back: read "
                "again.",
                kind="read_taken_back",
                url=self.url,
            )
        self.confirm_owner()

    def confirm_owner(self) -> int:
        """Check that no newer writer owned the database at some moment during this call. Raises `Fenced`.

        Returns:
            The sequence up to which rows were durable at that moment, whether or not their writers know it already.

        Cost: 1 HEAD (without a log: 1 LIST).
        """
        with self.lock:
            if self.commit.fenced is not None:
                raise copy_error(self.commit.fenced)
        if self.groups is None:
            manifest = self.claim.log.latest()
            epoch, durable_sequence = manifest.writer_epoch, manifest.last_sequence
        else:
            epoch, durable_sequence = self.groups.newest_owner()
        if epoch != self.claim.epoch:
            raise self._fence(epoch)
        return durable_sequence

    def _fence(self, epoch: int) -> Fenced:
        error = Fenced(
            f"The database {self.url} was taken over by the writer of epoch {epoch} (ours is {self.claim.epoch}): "
            "what is known here may be out of date. Open it again.",
            url=self.url,
            epoch=self.claim.epoch,
            new_epoch=epoch,
        )
        self.commit.fence(error)
        return error

    def _wake_waiters(self) -> None:
        """Wake all threads that wait for room or work, because something was flushed, merged or shown."""
        with self.lock:
            self._room.notify_all()
            self.wanted.notify_all()

    def explain(self, error: LakebedError) -> LakebedError:
        """Return `Fenced` if a newer writer removed the file, otherwise the same error.

        Cost: 1 LIST, and 1 GET of another manifest.
        """
        if self.commit.fenced is not None:
            return copy_error(self.commit.fenced)
        newest = self.claim.log.latest()
        if newest.writer_epoch == self.claim.epoch:
            return error
        fenced = Fenced(
            f"The database {self.url} was taken over (epoch {newest.writer_epoch}, ours was {self.claim.epoch}), and "
            "files that this one reads are gone: open it again.",
            url=self.url,
            epoch=self.claim.epoch,
            new_epoch=newest.writer_epoch,
        )
        self.commit.fence(fenced)
        return fenced


def _error_behind(error: LakebedError) -> Conflict:
    return Conflict(
        "Nothing of this write was stored. An earlier write failed, and a conditional write may have depended on it: "
        f"read and write again. The earlier failure: {error.message}",
        kind="write_taken_back",
    )
