"""From the memtable to the log, to files, to runs: the steps of an open database, and when writers wait for them.

Owns: when a memtable is rotated, what holds writers back, and each step, which any thread may run.

Invariants:
- A writer looks at two numbers only, the *alarm*: rows and bytes of the memtable from which on somebody has to think.
  Every state in which writes are refused, held back, or have to wake somebody lowers the alarm to zero.
- Only memtables whose rows are in the log (where there is one) become files.

Locks: the tree's, short; no request under it. Does not know: who runs the steps in the background, and what a write is.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any, Final

from lakebed.errors import Closed, Conflict, Fenced, LakebedError, Unavailable
from lakebed.kv.claim import Claim
from lakebed.kv.group_commit import GroupCommit, LogGroups, Unencodable, said_again
from lakebed.kv.options import DatabaseOptions
from lakebed.kv.reading import Reading
from lakebed.kv.transaction import Transaction
from lakebed.log import logger
from lakebed.lsm.memtable import ROW_OVERHEAD_BYTES
from lakebed.lsm.tree import Tree
from lakebed.lsm.view import View
from lakebed.runtime import Environment

__all__ = ["LOG_OBJECTS_LEFT_MAX", "LOG_OBJECTS_PER_MEMTABLE_MAX", "ProgressCall", "Steps"]

_LOG: Final = logger("kv")

LOG_OBJECTS_PER_MEMTABLE_MAX: Final = 8192
"""Log objects after which a memtable is flushed though it is small: recovery reads them one by one."""

LOG_OBJECTS_LEFT_MAX: Final = 64
"""Log objects that a close leaves for the next opening, every reader and every clone to read one by one: eight rounds
of eight at once. A longer log goes into a file, which costs three requests. Fences count, for they are listed too."""

ProgressCall = Callable[[int, int], None]
"""Called with the rows read and the bytes written so far."""


class Steps(Reading):
    """The steps that make writes durable and keep reads quick. One room of `Database`."""

    def __init__(
        self,
        *,
        url: str,
        tree: Tree,
        claim: Claim,
        groups: LogGroups | None,
        options: DatabaseOptions,
        environment: Environment,
    ) -> None:
        self._url = url
        self._tree = tree
        self._claim = claim
        self._groups = groups
        self._options = options
        self._environment = environment
        self._lock: AbstractContextManager[Any] = tree.lock
        self._room = environment.runtime.condition(tree.lock)
        """Writers that are held back wait here."""
        self._wanted = environment.runtime.condition(tree.lock)
        """Background threads wait here for something to do."""
        self._alarm_rows = 0
        self._alarm_bytes = 0
        self._log_due_s: float | None = None
        """When what nobody waits for goes into the log (monotonic); None: nothing was pending at the last look."""
        self._rotated_sequence = tree.active.first_sequence - 1
        self._rotated_wal_id = claim.fence_id
        self._checked_sequence = 0
        """Of the last write that was made under a condition."""
        self._has_background = False
        self._compacts = claim.owns_compaction
        self._is_closed = False
        self._why_closed = "was closed: open it again"
        self._trouble: LakebedError | None = None
        self._histories: list[tuple[weakref.ref[Transaction], int]] = []
        self._log_interval_ms = options.flush_interval_max_ms if groups is None else options.wal_flush_interval_ms
        self._commit = GroupCommit(
            persist=self._append_to_log if groups is not None else self._flush_all,
            newest=lambda: tree.active.last_sequence,
            on_fence=self._refuse_writes,
            lock=tree.lock,
            durable_sequence=tree.active.last_sequence,
            environment=environment,
        )

    def now_ms(self) -> int:
        """Unix time in milliseconds, UTC."""
        return self._environment.clock.now_ms()

    # ---- the alarm

    def _refuse_writes(self) -> None:
        """From now on every writer comes by `_make_room` first, and all that wait look again. Under the lock."""
        self._alarm_rows = self._alarm_bytes = 0
        self._room.notify_all()
        self._wanted.notify_all()

    def _make_room(self) -> None:
        """What a writer that met the alarm does, without the lock: be refused, wake others, wait, or work."""
        while True:
            with self._lock:
                self._check_writable()
                work = self._work_first()
                if work is None:
                    self._set_alarm()
                    return
                if self._has_background:
                    self._wanted.notify_all()
                    self._room.wait()
                    continue
            work()

    def _check_writable(self) -> None:
        self._check_owned()
        if self._trouble is not None:
            trouble, self._trouble = self._trouble, None  # told once for each time that the background failed
            raise said_again(trouble) from trouble

    def _closed(self) -> Closed:
        return Closed(f"The database {self._url} {self._why_closed}.")

    def _work_first(self) -> Callable[[], object] | None:
        """What has to happen before the next write; None: nothing. Under the lock."""
        tree, options = self._tree, self._options
        if tree.active.size_bytes >= options.l0_sst_bytes or self._log_objects() >= LOG_OBJECTS_PER_MEMTABLE_MAX:
            self._rotate()
        if tree.unflushed_bytes > options.unflushed_bytes_max:
            if not tree.waiting_count:
                self._rotate()
            return self.flush_once
        if tree.l0_count > options.l0_count_max:
            return self._shrink_l0
        if self._pending_bytes() >= options.wal_bytes_max:
            if not self._has_background:
                return self._make_durable
            self._want_log(within_ms=0)
        elif self._has_background and self._log_due_s is None:
            self._want_log(within_ms=self._log_interval_ms)
        return None

    def _want_log(self, *, within_ms: int) -> None:
        due_s = self._environment.clock.monotonic_s() + within_ms / 1000
        if self._log_due_s is None or due_s < self._log_due_s:
            self._log_due_s = due_s
            self._wanted.notify_all()

    def _pending_bytes(self) -> int:
        """Keys and values of the active memtable that are in no log object and in no group on its way there."""
        return 0 if self._groups is None else self._tree.active.payload_bytes - self._groups.sealed_bytes

    def _log_objects(self) -> int:
        """Log objects that hold rows of the active memtable."""
        return 0 if self._groups is None else self._groups.last_wal_id - self._rotated_wal_id

    def _set_alarm(self) -> None:
        """Half of the way to the next limit, whatever rows will come; the alarm is set anew there. Under the lock."""
        active, options = self._tree.active, self._options
        left = options.l0_sst_bytes - active.size_bytes
        self._alarm_rows = len(active.keys) + max(1, left // (2 * ROW_OVERHEAD_BYTES))
        alarm_bytes = active.payload_bytes + max(1, left // 2)
        if self._groups is not None:
            pending_max = options.wal_bytes_max - self._pending_bytes()
            # When the log lags behind, its thread is awake already: do not come by for every row.
            step = pending_max if pending_max > 0 else max(1, options.wal_bytes_max // 8)
            alarm_bytes = min(alarm_bytes, active.payload_bytes + step)
        self._alarm_bytes = alarm_bytes

    def _rotate(self) -> None:
        """The active memtable waits for its file from now on; its last log id is fixed here. Under the lock."""
        token = self._claim.fence_id
        if self._groups is not None:
            token = self._groups.seal()
        self._tree.rotate(token)
        if self._groups is not None:
            self._groups.follow(self._tree.active)
        self._rotated_sequence = self._tree.active.first_sequence - 1
        self._rotated_wal_id = token
        self._release_histories()
        self._wanted.notify_all()

    def _keep_history(self, transaction: Transaction, since: int) -> None:
        """Give the hold of the history since a sequence to a transaction."""
        with self._lock:
            self._release_histories()
            self._histories.append((weakref.ref(transaction), since))

    def _release_histories(self) -> None:
        """Let go what was kept for transactions that have ended, or were let go by their users. Under the lock."""
        still_open = []
        for reference, since in self._histories:
            transaction = reference()
            if transaction is not None and transaction.is_open:
                still_open.append((reference, since))
            else:
                self._tree.release_history(since)
        self._histories = still_open

    # ---- steps

    def _append_to_log(self) -> int:
        assert self._groups is not None
        try:
            return self._groups.append_oldest()
        except Unencodable as failure:
            with self._lock:
                self._take_back(self._groups, failure.error)
        return self._groups.append_oldest()

    def _take_back(self, groups: LogGroups, error: LakebedError) -> None:
        """Give up the oldest group, which cannot be encoded, so that later ones become durable. Under the lock."""
        self._rotate()
        self._tree.begin_after_loss()
        groups.follow(self._tree.active)
        self._rotated_sequence = self._tree.active.first_sequence - 1
        own, *behind = groups.take_back_oldest(checked_sequence=self._checked_sequence)
        self._commit.lose(*own, error)
        for first, last in behind:
            self._commit.lose(first, last, _written_behind(error))
        self._refuse_writes()  # not for good: whoever comes next sets the alarm for the new memtable

    def _flush_all(self) -> int:
        """Where there is no log: everything written so far into files; the sequence up to which it is."""
        with self._lock:
            self._rotate()
            through = self._rotated_sequence
        while self._tree.flush_once():
            continue
        return through

    def _shorten_log(self) -> None:
        """Put the log's rows into files when it is long. All rows are durable, so nothing is lost when it fails.

        Where a separate compactor is behind, files stay few and the log grows instead: too many files would hold the
        next writer back.
        """
        if self._groups is None:
            return
        level_0_count = self._tree.l0_count + self._tree.waiting_count + (not self._tree.active.is_empty)
        if level_0_count > self._options.l0_count_max and not self._compacts:
            return
        manifest = self._claim.log.seen or self._claim.manifest
        if self._groups.durable_wal_id - manifest.replay_after_wal_id <= LOG_OBJECTS_LEFT_MAX:
            return
        try:
            self._flush_all()
        except Fenced as error:
            self._commit.fence(error)
        except LakebedError as error:
            _LOG.info("the log was left long", database=self._url, error=error.message)

    def _make_durable(self) -> None:
        """Everything written so far."""
        with self._lock:
            sequence = self._tree.active.last_sequence
        self._commit.settle(sequence)

    def _check_open(self) -> None:
        if self._is_closed:
            raise self._closed()

    def _check_owned(self) -> None:
        """Raise `Closed` or, once a newer owner is known, `Fenced`."""
        self._check_open()
        if self._commit.fenced is not None:
            raise said_again(self._commit.fenced)

    def flush(self, *, memtable: bool = False) -> None:
        """Return when every write so far is durable.

        Args:
            memtable: also put them into files, which makes a new version.

        Raises as `put`. Cost: 1 PUT when something is pending; with `memtable` 2 PUT + 1 LIST more.
        """
        self._check_owned()
        self._make_durable()
        self._commit.check_untold()
        if memtable:
            with self._lock:
                self._rotate()
            while self.flush_once():
                continue

    def flush_once(self) -> bool:
        """A step: bring the oldest memtable that waits into a file; False when none waits.

        Raises:
            Fenced: a newer writer owns the database.
            Unavailable, OutcomeUnknown: nothing changed here; call again.
        Cost: 2 PUT + 1 LIST, and 1 PUT when its rows are not in the log yet.
        """
        with self._lock:
            self._check_owned()
            through = self._rotated_sequence
            if not self._tree.waiting_count:
                return False
        self._commit.settle(through)
        try:
            # Where there is no log, waiting has flushed everything already.
            is_flushed = self._tree.flush_once() or self._groups is None
        except Fenced as error:
            self._commit.fence(error)
            raise
        self._changed()
        return is_flushed

    def compact_once(self, progress: ProgressCall | None = None) -> bool:
        """A step: merge what the planner chooses; False when nothing needs to be merged.

        Raises:
            Fenced: a newer writer owns the database; kind ``compactor_fenced``: another process compacts it now.
            Unavailable, OutcomeUnknown: nothing changed; call again.
        """
        return self._compact(lambda: self._tree.compact_once(progress))

    def compact(self, *, full: bool = False, progress: ProgressCall | None = None) -> None:
        """Merge until nothing needs to be merged; with `full`, everything into one run. Raises as `compact_once`."""
        self.flush(memtable=True)
        if full:
            self._compact(lambda: self._tree.compact_full(progress))
            return
        while self.compact_once(progress):
            continue

    def _compact(self, run: Callable[[], bool]) -> bool:
        self._check_owned()
        try:
            return run()
        except Fenced as error:
            if error.kind == "compactor_fenced":
                self._compacts = False  # only that role is over; another process has it now
            else:
                self._commit.fence(error)
            raise
        finally:
            self._changed()

    def _shrink_l0(self) -> None:
        """Back-pressure without a thread of our own: level 0 is too long."""
        before = self._tree.l0_count
        if self._compacts:
            self.compact_once()
        else:
            self.poll_once()
        if self._tree.l0_count >= before:
            raise Unavailable(
                f"Level 0 of {self._url} has {before} files, and l0_count_max is {self._options.l0_count_max}: "
                "compaction is behind. Run `lakebed kv compact`, and write again.",
                kind="compaction_behind",
            )

    def poll_once(self) -> bool:
        """A step: show what a separate compactor has published; False when there is nothing new.

        Raises `Fenced`, `Unavailable`, `OutcomeUnknown`. Cost: 1 LIST, and 1 GET + 1 PUT + 1 LIST for news.
        """
        self._check_owned()
        try:
            return self._tree.poll_once()
        except Fenced as error:
            self._commit.fence(error)
            raise
        finally:
            self._changed()

    def renew_once(self) -> bool:
        """A step: renew the lease, if that is due; whether it was. Raises `Fenced`, `Unavailable`, `OutcomeUnknown`."""
        self._check_owned()
        try:
            return self._claim.lease.renew_once()
        except Fenced as error:
            self._commit.fence(error)
            raise

    # ---- whose the database is

    def _confirm(self, view: View, *keys: bytes) -> None:
        """Return when what a view shows of the keys is durable, and nobody else owned the database when it was taken.

        Raises as `put`. Cost: 1 HEAD (without a log: 1 LIST), and the flush of what is not durable yet.
        """
        assert view.sequence is not None, "a view of files alone"
        newest = max((table.newest_sequence(key) or 0 for key in keys for table in view.memtables), default=0)
        if newest > self._commit.durable_sequence:
            self._commit.settle(min(newest, view.sequence))
        if view.sequence < self._tree.taken_back_through:
            raise Conflict(
                f"A write to {self._url} that this may have read could not be made durable and was taken back: read "
                "again.",
                kind="read_taken_back",
                url=self._url,
            )
        self._check_owner()

    def _check_owner(self) -> int:
        """Raise `Fenced` unless nobody owned the database after us up to some moment during this call.

        Returns:
            The sequence up to which rows were durable at that moment, whether or not their writers know it already.
        """
        with self._lock:
            if self._commit.fenced is not None:
                raise said_again(self._commit.fenced)
        if self._groups is None:
            manifest = self._claim.log.latest()
            epoch, durable_sequence = manifest.writer_epoch, manifest.last_sequence
        else:
            epoch, durable_sequence = self._groups.newest_owner()
        if epoch != self._claim.epoch:
            raise self._taken_over(epoch)
        return durable_sequence

    def _taken_over(self, epoch: int) -> Fenced:
        error = Fenced(
            f"The database {self._url} was taken over by the writer of epoch {epoch} (ours is {self._claim.epoch}): "
            "what is known here may be out of date. Open it again.",
            url=self._url,
            epoch=self._claim.epoch,
            new_epoch=epoch,
        )
        self._commit.fence(error)
        return error

    def _changed(self) -> None:
        """Something was flushed, merged or shown: whoever waits for room or work looks again."""
        with self._lock:
            self._room.notify_all()
            self._wanted.notify_all()

    def _explain(self, error: LakebedError) -> LakebedError:
        """A file of ours is gone: another writer may have let it go. Cost: 1 LIST, and 1 GET of another manifest."""
        if self._commit.fenced is not None:
            return said_again(self._commit.fenced)
        newest = self._claim.log.latest()
        if newest.writer_epoch == self._claim.epoch:
            return error
        fenced = Fenced(
            f"The database {self._url} was taken over (epoch {newest.writer_epoch}, ours was {self._claim.epoch}), and "
            "files that this one reads are gone: open it again.",
            url=self._url,
            epoch=self._claim.epoch,
            new_epoch=newest.writer_epoch,
        )
        self._commit.fence(fenced)
        return fenced


def _written_behind(error: LakebedError) -> Conflict:
    return Conflict(
        "This write came behind one that could not be made durable, and one of the two was made under a condition that "
        f"may have met the other: nothing of it was written. Read and write again. The other failed: {error.message}",
        kind="write_taken_back",
    )
