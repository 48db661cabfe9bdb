"""The facade: one object an open database, whose verbs delegate to the rooms beside it.

Owns: opening, closing, and the wiring of the rooms. Invariants: thread-safe; a crash at any moment loses nothing that
was acknowledged; once closed or fenced nothing is written any more.

What a plain `get` or scan answers is what this process knows. When another process has taken the database over, that
may be out of date until a write, the lease or a poll meets the new owner; ``get(key, linearizable=True)`` asks first.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import suppress
from datetime import timedelta
from types import TracebackType
from typing import NoReturn, TypeVar, get_args

import msgspec

from lakebed.errors import Conflict, InvalidRequest, LakebedError
from lakebed.kv.background import Background, Stopped
from lakebed.kv.checkpoint import create_checkpoint, lifetime_in_ms
from lakebed.kv.claim import Claim, claim_writer
from lakebed.kv.clone import create_clone
from lakebed.kv.database_location import DatabaseLocation
from lakebed.kv.engine import start_engine
from lakebed.kv.forked import close_in_forks
from lakebed.kv.group_commit import said_again
from lakebed.kv.holds import Hold
from lakebed.kv.lease import this_process
from lakebed.kv.limits import check_database_options, check_type
from lakebed.kv.model import CheckpointCreateResult, CheckpointScope, Manifest
from lakebed.kv.options import CheckpointOptions, DatabaseOptions
from lakebed.kv.restore import KEEP_FOR
from lakebed.kv.snapshot import Snapshot
from lakebed.kv.stats import DatabaseStats
from lakebed.kv.transaction import Isolation, Transaction
from lakebed.kv.verbs import DatabaseVerbs
from lakebed.kv.versions import find_version
from lakebed.kv.writing import Writing
from lakebed.lsm.model import KEY_BYTES_MAX, check_key
from lakebed.lsm.operators import find_operator
from lakebed.lsm.view import View

__all__ = ["Database"]

T = TypeVar("T")


class Database(Writing):
    """An open database, made by `lakebed.kv.open`. Use it in a ``with``, or close it.

    Writing is in `lakebed.kv.writing`, scans and bulk reads are in `lakebed.kv.reading`.
    """

    # ---- opening

    @classmethod
    def open(
        cls,
        location: DatabaseLocation,
        *,
        options: DatabaseOptions | None = None,
        create: bool = True,
        take_over: bool = False,
        after_destroy: bool = False,
        endpoint: str | None = None,
    ) -> Database:
        """Become the writer of the database at a place; arguments and errors as `lakebed.kv.open`."""
        options = DatabaseOptions() if options is None else options
        check_database_options(options)
        if options.merge_operator is not None:
            find_operator(options.merge_operator)
        claim = claim_writer(
            location,
            options=options,
            create=create,
            take_over=take_over,
            after_destroy=after_destroy,
            process=this_process(endpoint=endpoint),
        )
        try:
            return cls(location, claim, options=options)
        except Exception:
            with suppress(LakebedError):
                claim.lease.give_up()  # or the next try would find ourselves in the way
            raise

    def __init__(self, location: DatabaseLocation, claim: Claim, *, options: DatabaseOptions) -> None:
        environment = location.environment
        engine = start_engine(location, claim, options=options)
        self._operator = engine.operator
        self._cache = engine.cache
        self._publisher = engine.publisher
        self._holds = engine.holds
        self._location = location
        super().__init__(
            url=location.url,
            tree=engine.tree,
            claim=claim,
            groups=engine.groups,
            options=options,
            environment=environment,
        )
        self._latest = engine.tree.latest
        self._polled_s = environment.clock.monotonic_s()
        self._compacted_generation = -1
        self._closing = environment.runtime.lock()
        self._is_finished = False
        self._background = Background(
            lock=engine.tree.lock, wanted=self._wanted, report=self._report, environment=environment
        )
        close_in_forks(self)
        if options.background:
            self._start_background()

    # ---- reading

    def get(self, key: bytes, *, linearizable: bool = False) -> bytes | None:
        """The value of a key; None when there is none.

        Args:
            linearizable: answer only what is durable, and only when no other process owned the database at that moment.
                Without it the answer may be out of date once another process has taken the database over.

        Raises:
            InvalidRequest: the key cannot be.
            Closed: after `close`.
            Fenced: `linearizable`, or a file is gone, and another process owns the database.
        Cost: from memory no request, 0.5 us; from files 1 GET of a block that is not cached, none when the filters say
        no. `linearizable`: 1 HEAD more (without a log: 1 LIST), and the flush of what it saw.
        """
        if type(key) is not bytes or not key or len(key) > KEY_BYTES_MAX:
            check_key(key)
        if linearizable:
            return self._get_linearizable(key)
        try:
            return self._latest(key)
        except LakebedError as error:
            self._raise_better(error)

    def _refused(self, key: bytes) -> bytes | None:
        raise self._closed()

    def _get_linearizable(self, key: bytes) -> bytes | None:
        self._check_open()
        with self._lock:
            view = self._tree.view_locked()
        try:
            value: bytes | None = view.get(key)
        except LakebedError as error:
            self._raise_better(error)
        self._confirm(view, key)
        return value

    def _has_pending(self) -> bool:
        return self._tree.last_sequence > self._commit.durable_sequence

    def _stand(self) -> tuple[View, Hold]:
        self._check_open()
        while True:
            view = self._tree.view()
            hold = self._holds.of(view.file_set)
            if hold is not None:  # else another set was shown between the two: take that one
                return view, hold

    def _stand_durable(self) -> tuple[View, Hold]:
        """What is durable and ours now, once it is known what became of writes without a clear answer."""
        self._check_owned()
        while (unclear := self._commit.unclear_sequence) is not None:
            self._commit.settle(unclear)
        durable_sequence = self._check_owner()
        while True:
            # What became durable since, by files, is shown too: then it is a later moment, still before any new owner.
            with self._lock:
                view = self._tree.view_locked(through=durable_sequence)
            hold = self._holds.of(view.file_set)
            if hold is not None:
                return view, hold

    def snapshot(self, *, linearizable: bool = False) -> Snapshot:
        """What is there now, to be read as often as one likes. Close it, or use it in a ``with``.

        Args:
            linearizable: only what is durable, and only when no other process owned the database at that moment. What
                nobody has waited for may be missing; what was acknowledged is there.

        Raises:
            Closed: after `close`.
            Fenced: `linearizable`, and another process owns the database.
            OutcomeUnknown, Unavailable: `linearizable`, and the store did not answer.
        Cost: no request; `linearizable`: 1 HEAD (without a log: 1 LIST), and no flush, but of writes whose outcome was
        unclear.
        """
        view, hold = self._stand_durable() if linearizable else self._stand()
        return Snapshot(view, hold, explain=self._explain)

    def transaction(self, isolation: Isolation = "snapshot", *, await_durable: bool = True) -> Transaction:
        """Begin a transaction: reads of one version, writes at once at the end; see `Transaction`.

        Args:
            isolation: ``snapshot``: refuse to overwrite what others wrote since; ``serializable``: also refuse when
                what it has read was written since.
            await_durable: of its commit, as for `put`.

        Raises `InvalidRequest`, `Closed`. Cost: no request. While it is open, flushed memtables stay in memory, up to
        `DatabaseOptions.transaction_history_bytes_max`.
        """
        if isolation not in get_args(Isolation):
            raise InvalidRequest(
                f"The isolation of a transaction is snapshot or serializable, and {isolation!r} was asked for.",
                kind="unknown_isolation",
            )
        self._check_open()
        with self._lock:
            since = self._tree.last_sequence
            self._tree.hold_history(since)
        view, hold = self._stand()
        transaction = Transaction(
            self, self._tree, view, hold, isolation=isolation, await_durable=await_durable, explain=self._explain
        )
        self._keep_history(transaction, since)
        return transaction

    def transact(
        self,
        work: Callable[[Transaction], T],
        *,
        isolation: Isolation = "serializable",
        await_durable: bool = True,
        tries_max: int = 100,
    ) -> T:
        """Run a function in a transaction and commit it; on a conflict run it again in a new one.

        Args:
            work: reads and writes through the transaction that it is given. It may run several times, so it has no
                other effects. When it raises, or rolls the transaction back, nothing is written.
            isolation: as for `transaction`; the default is the stronger one, since conflicts are retried.
            await_durable: as for `put`.
            tries_max: how often it runs at most, >= 1. No pause lies between two tries: each conflict means that
                another commit went through.

        Returns:
            What `work` returned in the try that was committed.

        Raises:
            Conflict: every try met a conflict; nothing was written. One that `work` itself raises is not retried.
            InvalidRequest, Closed, Fenced, OutcomeUnknown: as `Transaction.commit`; not retried.
        Cost: as one transaction for each try.
        """
        if not isinstance(tries_max, int) or tries_max < 1:
            raise InvalidRequest(f"tries_max is at least 1, and {tries_max!r} was given.", kind="invalid_option")
        tries_left = tries_max
        while True:
            tries_left -= 1
            transaction = self.transaction(isolation, await_durable=await_durable)
            try:
                result = work(transaction)
                if transaction.is_open:
                    try:
                        transaction.commit()
                    except Conflict:
                        if tries_left == 0:
                            raise
                        continue
            finally:
                transaction.rollback()
            return result

    # ---- pinning, restoring and forking

    def restore(self, version: str, *, keep_for: timedelta | None = KEEP_FOR) -> Database:
        """Make an older version the newest one and go on from there: closes this object and opens the database again.

        Every write so far is made durable first, and stays readable through a checkpoint for `keep_for`.

        Args:
            version: a checkpoint's name or id, or a version's number.
            keep_for: None: for ever.

        Returns:
            The database, open at the restored version, with the same options. This object is closed, with what was
            begun on it: another thread that uses it meets `Closed`.

        Raises:
            NotFound: there is no such version. Nothing changed, and this object stays open.
            Conflict: kind ``owned``: another process opened the database in between. This object is closed.
            Fenced, Unavailable, OutcomeUnknown, Corruption: as `close`, `lakebed.kv.restore.restore` and
                `lakebed.kv.open`; restore again by `lakebed.kv.admin.restore`, or open the database again.
        Cost: as `close`, `lakebed.kv.restore.restore` and opening.
        """
        self._check_owned()
        find_version(self._location, self._claim.log.latest(), version)
        lifetime_in_ms(keep_for)
        self.close()
        self._why_closed = "was closed by restore: use the database that restore returned"
        self.admin.restore(version, keep_for=keep_for)
        endpoint = self._claim.lease.endpoint
        return type(self).open(self._location, options=self._options, create=False, endpoint=endpoint)

    def create_checkpoint(
        self, options: CheckpointOptions | None = None, *, scope: CheckpointScope = CheckpointScope.ALL
    ) -> CheckpointCreateResult:
        """Pin what is there now, or what another checkpoint pins.

        Args:
            options: lifetime, name, and the checkpoint to start from (then `scope` does not matter).
            scope: what must be in it: every write issued before the call (``ALL`` makes them durable; ``ALL_UNFORCED``
                waits until that happens by itself, at most `DatabaseOptions.flush_interval_max_ms`), or what is durable
                now (``DURABLE``).

        Raises:
            InvalidRequest, AlreadyExists, OutcomeUnknown: as `lakebed.kv.checkpoint.create_checkpoint`.
            Fenced: another process owns the database.
        Cost: 1 GET + 1 PUT + at most 3 LIST, and the flush. Source: "Creating a Checkpoint", `CheckpointScope`.
        """
        self._check_owned()
        options = CheckpointOptions() if options is None else check_type(options, CheckpointOptions)
        if options.source is None:
            self._settle(scope)
        return create_checkpoint(self._location, options)

    def _settle(self, scope: CheckpointScope) -> None:
        """Wait until what a checkpoint of this scope includes is durable, and still ours."""
        if not isinstance(scope, CheckpointScope):
            raise InvalidRequest(
                f"The scope of a checkpoint is a CheckpointScope, and {scope!r} was given.", kind="wrong_type"
            )
        with self._lock:
            sequence = self._tree.last_sequence
        if scope is CheckpointScope.ALL_UNFORCED and self._has_background:
            self._commit.wait_for_others(sequence, timeout_s=self._options.flush_interval_max_ms / 1000)
        if scope is not CheckpointScope.DURABLE:
            self._commit.settle(sequence)
            self._commit.check_untold()

    def create_clone(self, url: str | os.PathLike[str], checkpoint: str | None = None) -> None:
        """Make a database at `url` that starts from a checkpoint of this one, or (None) from everything written so far.

        Raises as `lakebed.kv.clone.create_clone`. Cost: as that, and the flush. Source: "Clones".
        """
        self._check_owned()
        if checkpoint is None:
            self._settle(CheckpointScope.ALL)
        create_clone(self._location.other(os.fspath(url)), self._location.url, checkpoint)

    # ---- in the background

    def _start_background(self) -> None:
        self._has_background = True
        background = self._background
        background.start(
            f"lakebed log of {self._url}",
            (lambda now_s: self._log_due_s, self._log_in_background),
            (self._renewal_due, self.renew_once),
        )
        background.start(
            f"lakebed files of {self._url}",
            (lambda now_s: now_s if self._tree.waiting_count else None, self.flush_once),
            (self._poll_due, self._poll_in_background),
        )
        if self._compacts:
            background.start(f"lakebed compaction of {self._url}", (self._compaction_due, self._compact_in_background))

    def _report(self, error: LakebedError) -> None:
        self._trouble = error
        self._refuse_writes()

    def _renewal_due(self, now_s: float) -> float:
        return now_s + self._claim.lease.renew_in_s

    def _log_in_background(self) -> None:
        """Make durable what nobody waits for. When nothing is pending, the next writer says so by the alarm."""
        self._make_durable()
        with self._lock:
            self._log_due_s = None
            if self._has_pending():
                self._want_log(within_ms=self._log_interval_ms)
            else:
                self._alarm_rows = 0

    def _poll_due(self, now_s: float) -> float:
        return self._polled_s + self._options.manifest_poll_interval_ms / 1000

    def _poll_in_background(self) -> None:
        self._polled_s = self._environment.clock.monotonic_s()
        self.poll_once()

    def _compaction_due(self, now_s: float) -> float | None:
        return None if self._tree.generation == self._compacted_generation else now_s

    def _compact_in_background(self) -> None:
        generation = self._tree.generation
        if not self.compact_once(self._stop_if_closing):
            self._compacted_generation = generation

    def _stop_if_closing(self, rows_read: int, bytes_written: int) -> None:
        if self._background.is_stopping:
            raise Stopped

    # ---- the end

    def close(self) -> None:
        """Make everything durable, let the lease and the writer's checkpoint go, and end. Again is fine.

        Raises:
            Fenced: writes that nobody waited for are lost, for a newer writer owns the database; it is closed.
            Unavailable, OutcomeUnknown: the store failed; nothing is lost yet, call it again. Nothing else works.
        Cost: 3 PUT + 1 LIST + 1 GET, and the flush of the log (without a log: of the memtable). Where the log has more
        than 64 objects that are not in files, 2 PUT + 1 LIST more: its rows become a file, if the store takes it.
        """
        with self._closing:
            if self._is_finished:
                return
            with self._lock:
                self._is_closed = True
                self._latest = self._refused
                self._refuse_writes()
            self._background.stop()
            if self._commit.fenced is None:
                self._make_durable()
                self._shorten_log()
                self._leave()
            self._is_finished = True
            if self._has_pending():
                assert self._commit.fenced is not None
                raise said_again(self._commit.fenced)
            self._commit.check_untold()

    def _leave(self) -> None:
        """Out of the manifest and the lease. A newer owner has taken care of that already."""
        durable_wal_id = self._durable_wal_id()
        # Where files have every row, the next open need not read the fences of earlier opens.
        replay_after = 0 if self._tree.waiting_count or not self._tree.active.is_empty else durable_wal_id

        def change(manifest: Manifest) -> Manifest | None:
            if manifest.writer_epoch != self._claim.epoch:
                return None
            return msgspec.structs.replace(
                manifest,
                replay_after_wal_id=max(manifest.replay_after_wal_id, replay_after),
                # The version that a closed database leaves has every row that was acknowledged.
                wal_id_last_seen=max(manifest.wal_id_last_seen, durable_wal_id),
                # Nothing of ours will be published any more: what was uploaded and not published is garbage now.
                newest_l0_id=self._publisher.next_file_id(),
                checkpoints=tuple(one for one in manifest.checkpoints if one.owner.kind != "writer"),
            )

        self._claim.log.update(change)
        self._claim.lease.give_up()

    def _durable_wal_id(self) -> int:
        """The last id that is surely in our log."""
        return self._claim.fence_id if self._groups is None else self._groups.durable_wal_id

    def __enter__(self) -> Database:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is None:
            self.close()
            return
        try:
            self.close()
        except LakebedError as failure:
            error.add_note(f"and closing {self._url} failed: {failure}")

    def leave_to_parent(self) -> None:
        """Be closed, without a lock or a request: in the child of a fork (`lakebed.kv.forked`), and nowhere else."""
        self._lock = self._environment.runtime.lock()  # the one before may be held by a thread that is not here
        self._closing = self._environment.runtime.lock()
        self._why_closed = "belongs to the process that this one was forked from: open a reader here"
        self._is_closed = self._is_finished = True
        self._latest = self._refused
        self._alarm_rows = self._alarm_bytes = 0

    # ---- what it is

    def __repr__(self) -> str:
        return f"Database({self._url!r}, epoch={self.epoch}{', closed' if self._is_closed else ''})"

    def __reduce__(self) -> NoReturn:
        raise TypeError(
            f"An open database cannot be copied or sent to another process: open a reader there, "
            f"lakebed.kv.open_reader({self._url!r})."
        )

    @property
    def admin(self) -> DatabaseVerbs:
        """Every verb that needs no open database, for this one: checkpoints, clones, restore, collection, versions."""
        return DatabaseVerbs(self._location)

    @property
    def url(self) -> str:
        """Where it is."""
        return self._url

    @property
    def is_closed(self) -> bool:
        """Whether `close` was called."""
        return self._is_closed

    @property
    def epoch(self) -> int:
        """The writer's: greater than that of every writer before."""
        return self._claim.epoch

    def stats(self) -> DatabaseStats:
        """What it is made of now. Cost: no request. Raises `Closed`."""
        self._check_open()
        manifest = self._claim.log.seen or self._claim.manifest
        with self._lock:
            tree = self._tree
            file_set = tree.file_set
            return DatabaseStats(
                url=self._url,
                epoch=self._claim.epoch,
                manifest_id=manifest.manifest_id,
                last_sequence=tree.last_sequence,
                durable_sequence=self._commit.durable_sequence,
                memtable_bytes=tree.unflushed_bytes,
                memtables_waiting=tree.waiting_count,
                l0_count=tree.l0_count,
                run_count=len(file_set.runs),
                file_count=len(file_set.files()),
                file_bytes=file_set.size_bytes,
                log_objects_written=0 if self._groups is None else self._groups.appended_count,
                checkpoint_count=len(manifest.checkpoints),
                cache_bytes=self._cache.size_bytes,
                cache_bytes_max=self._cache.bytes_max,
                fenced=self._commit.fenced is not None,
            )
