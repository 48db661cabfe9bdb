"""`Database`: the verbs of an open database.

Owns: the documented interface, and the hot paths of `get` and `put`. `WriterCore` has the state, `ReadVerbs` the scans.

Invariants: thread-safe. A crash at any moment loses no acknowledged write. A closed or fenced database writes nothing
any more.

A plain `get` or scan answers from the state that this process knows. After another process has taken the database over,
the answer may be out of date until a write, the lease or a poll finds the new owner. ``get(key, linearizable=True)``
asks the store first.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from contextlib import suppress
from datetime import timedelta
from typing import NoReturn, TypeVar

from lakebed.arguments import check_argument
from lakebed.closing import Closing
from lakebed.errors import Conflict, Fenced, InvalidRequest, LakebedError
from lakebed.kv.batch import WriteBatch, lifetime_ms
from lakebed.kv.checkpoint import create_checkpoint, lifetime_in_ms
from lakebed.kv.claim import Claim, claim_writer
from lakebed.kv.clone import create_clone
from lakebed.kv.conditional import append_batch, write_if
from lakebed.kv.database_location import DatabaseLocation
from lakebed.kv.engine import start_engine
from lakebed.kv.lease import this_process
from lakebed.kv.limits import check_database_options, check_type
from lakebed.kv.model import CheckpointCreateResult, CheckpointScope
from lakebed.kv.options import CheckpointOptions, DatabaseOptions
from lakebed.kv.read_core import ReadVerbs, raise_explained
from lakebed.kv.restore import RESTORABLE_FOR
from lakebed.kv.snapshot import Snapshot
from lakebed.kv.stats import DatabaseStats, stats_of
from lakebed.kv.transaction import Isolation, Transaction, begin_transaction
from lakebed.kv.verbs import DatabaseVerbs
from lakebed.kv.versions import find_version
from lakebed.kv.writer import ProgressCall, WriterCore
from lakebed.kv.writer_threads import WriterThreads
from lakebed.lsm.model import KEY_BYTES_MAX, VALUE_BYTES_MAX, Kind, check_key, check_value
from lakebed.lsm.operators import find_operator
from lakebed.runtime import follow_forks

T = TypeVar("T")


class Database(ReadVerbs, Closing):
    """A database that is open for writing. `lakebed.kv.open` opens it. Close it, or use it in a ``with`` statement.

    Attributes:
        admin: verbs of this database that need no open database: checkpoints, clones, restore, collection, versions.
    """

    @classmethod
    def open(
        cls,
        location: DatabaseLocation,
        *,
        options: DatabaseOptions | None = None,
        create: bool = True,
        take_over: bool = False,
        after_destroy: bool = False,
    ) -> Database:
        """Open the database at a location for writing. Arguments and errors as `lakebed.kv.open`."""
        options = DatabaseOptions() if options is None else options
        check_database_options(options)
        if options.merge_operator is not None:
            find_operator(options.merge_operator)
        location = location.require_folder(with_descriptor=True)
        claim = claim_writer(
            location,
            options=options,
            create=create,
            take_over=take_over,
            after_destroy=after_destroy,
            process=this_process(endpoint=options.endpoint),
        )
        try:
            return cls(location, claim, options=options)
        except Exception:
            with suppress(LakebedError):
                claim.lease.give_up()  # otherwise our own lease would refuse the next attempt
            raise

    def __init__(self, location: DatabaseLocation, claim: Claim, *, options: DatabaseOptions) -> None:
        environment = location.environment
        engine = start_engine(location, claim, options=options)
        self.admin = DatabaseVerbs(location)
        self._writer = WriterCore(location.url, claim, engine, options=options, environment=environment)
        super().__init__(self._writer)
        self._latest = engine.tree.latest
        self._closing = environment.runtime.lock()
        self._is_finished = False
        self._threads = WriterThreads(self._writer)
        follow_forks(self, Database.abandon)
        if options.background:
            self._threads.start()

    # ---- reading

    def get(self, key: bytes, *, linearizable: bool = False) -> bytes | None:
        """Return the value of a key; None if the key has no value.

        Args:
            linearizable: return only what is durable, and only if no other process owned the database at that moment.
                If False, the answer may be out of date after another process has taken over the database.

        Raises:
            InvalidRequest: the key is not valid.
            Closed: after `close`.
            Fenced: another process owns the database: with `linearizable`, or if a file is gone.

        Cost: from memory no request, about 0.5 us. From files 1 GET for a block that is not cached; none if the filters
            exclude the key. `linearizable` costs 1 HEAD more (without a log: 1 LIST), and the flush of what it read.
        """
        if type(key) is not bytes or not key or len(key) > KEY_BYTES_MAX:
            check_key(key)
        if linearizable:
            return self._get_linearizable(key)
        try:
            return self._latest(key)
        except LakebedError as error:
            raise_explained(self._writer, error)

    def _raise_closed(self, key: bytes) -> bytes | None:
        raise self._writer.error_when_closed()

    def _get_linearizable(self, key: bytes) -> bytes | None:
        writer = self._writer
        writer.check_open()
        with writer.lock:
            view = writer.tree.view_locked()
        try:
            value: bytes | None = view.get(key)
        except LakebedError as error:
            raise_explained(writer, error)
        writer.confirm_view(view, key)
        return value

    def snapshot(self, *, linearizable: bool = False) -> Snapshot:
        """Return the state of the database now, to read it any number of times.

        Close it, or use it in a ``with`` statement.

        Args:
            linearizable: only what is durable, and only if no other process owned the database at that moment. Writes
                that were not awaited may be missing. All acknowledged writes are in it.

        Raises:
            Closed: after `close`.
            Fenced: another process owns the database; with `linearizable`.
            OutcomeUnknown, Unavailable: the store did not answer; with `linearizable`.

        Cost: no request. `linearizable`: 1 HEAD (without a log: 1 LIST), and a flush only of writes whose outcome was
            unclear.
        """
        writer = self._writer
        view, pin = writer.pin_durable_view() if linearizable else writer.pin_view()
        return Snapshot(view, pin, writer=writer)

    # ---- writing

    def put(self, key: bytes, value: bytes, *, ttl: timedelta | None = None, await_durable: bool = True) -> None:
        """Set the value of a key.

        Args:
            key: bytes.
            value: bytes.
            ttl: lifetime of the value, from now; None: no end.
            await_durable: return when the write is in the log (without a log: in a file). If False, return at once;
                `flush` makes the write durable, or the background does so soon.

        Raises:
            InvalidRequest: the key, the value or the ttl is not valid.
            Fenced: a newer writer owns the database.
            OutcomeUnknown: the store gave no clear answer. The write may be durable now or later.
            Unavailable, InternalError, Conflict: kind ``out_of_memory``, ``unencodable_rows`` or ``write_taken_back``:
                nothing was written, as its log record, or one that it may depend on, could not be encoded.
            Closed: after `close`.

        Cost: 1 PUT, shared by all writers that wait at the same time. Without waiting about 0.6 us.
        """
        if type(key) is not bytes or not 0 < len(key) <= KEY_BYTES_MAX:
            check_key(key)
        if type(value) is not bytes or len(value) > VALUE_BYTES_MAX:
            check_value(value)
        writer = self._writer
        if ttl is not None:
            ends_ms = writer.now_ms() + lifetime_ms(ttl)
            writer.append_rows([key], [value], [Kind.PUT], [ends_ms], check=None, await_durable=await_durable)
            return
        while True:
            with writer.lock:
                memtable = writer.tree.active
                row = len(memtable.keys)
                if row < writer.alarm_rows and memtable.payload_bytes < writer.alarm_bytes:
                    memtable.put(key, value)
                    break
            writer.make_room()
        if await_durable:
            writer.commit.wait(memtable.first_sequence + row)

    def delete(self, key: bytes, *, await_durable: bool = True) -> None:
        """Delete a key. Deleting a missing key has no effect. Otherwise as `put`."""
        check_key(key)
        self._writer.append_rows([key], [None], None, None, check=None, await_durable=await_durable)

    def merge(self, key: bytes, operand: bytes, *, await_durable: bool = True) -> None:
        """Combine the value of a key with an operand, by the merge operator of the database.

        The value is not read first.

        Raises `InvalidRequest` if the database has no operator, or the operator cannot use the operand. Otherwise as
        `put`.
        """
        check_key(key)
        self._writer.require_operator().check(check_value(operand))
        self._writer.append_rows([key], [operand], [Kind.MERGE], [None], check=None, await_durable=await_durable)

    def write(self, batch: WriteBatch, *, await_durable: bool = True) -> None:
        """Write a batch. All of it becomes visible at one moment and durable at one moment, or none of it.

        Raises as `put`, and `InvalidRequest` for a batch of more than 512 MiB.

        Cost: as one `put`, and about 0.1 us for each row.
        """
        self._check_batch(batch)
        if batch.keys:
            append_batch(self._writer, batch, await_durable=await_durable)

    def _check_batch(self, batch: WriteBatch) -> None:
        if not isinstance(batch, WriteBatch):
            raise InvalidRequest(
                f"A WriteBatch is written, and {type(batch).__name__} was given: gather the rows in one.",
                kind="wrong_type",
            )
        batch.check_size()
        for operand in batch.operands():
            self._writer.require_operator().check(operand)

    def set_if(
        self,
        key: bytes,
        value: bytes | None,
        *,
        expected: bytes | None,
        ttl: timedelta | None = None,
        await_durable: bool = True,
    ) -> None:
        """Set the value of a key (None: delete it) if its value is `expected` (None: if it has none).

        Both answers are linearizable. After success the write is durable. After `Conflict` the value that was found is
        durable, and no other process owned the database then. With ``await_durable=False`` neither holds: a writer that
        was taken over answers from what it knew, until it finds the new owner.

        Raises:
            Conflict: kind ``unexpected_value``: the key has another value. Read it and decide again. Otherwise as
                `put`.

        Cost: one `get` and one `put`, again for each other write of this key that came between. After `Conflict`, 1
            HEAD (without a log: 1 LIST) instead of the `put`.
        """
        batch = WriteBatch()
        if value is None:
            batch.delete(key)
        else:
            batch.put(key, value, ttl=ttl)
        if expected is not None:
            check_value(expected)
        write_if(self._writer, batch, {key: expected}, await_durable=await_durable)

    def write_if(
        self, batch: WriteBatch, *, expected: Mapping[bytes, bytes | None], await_durable: bool = True
    ) -> None:
        """Write a batch if every key of `expected` has the given value (None: no value) when the batch becomes visible.

        Both answers are linearizable, as for `set_if`. The expected keys need not be in the batch. An empty batch
        checks, at one moment and durably, whether the keys have these values.

        Raises:
            Conflict: kind ``unexpected_value``: the key in the fact ``key`` has another value. Nothing was written.
                Otherwise as `write`.

        Cost: one `get` for each expected key, and one `write`, again for each other write of an expected key that came
            between. After `Conflict`, or with an empty batch, 1 HEAD (without a log: 1 LIST) instead of the `write`.
        """
        self._check_batch(batch)
        for key, value in expected.items():
            check_key(key)
            if value is not None:
                check_value(value)
        write_if(self._writer, batch, expected, await_durable=await_durable)

    # ---- transactions

    def transaction(self, isolation: Isolation = "snapshot", *, await_durable: bool = True) -> Transaction:
        """Begin a transaction: it reads one version, and its writes become visible together at the end.

        Args:
            isolation: ``snapshot`` refuses to overwrite what others wrote since the beginning. ``serializable`` also
                refuses if something that the transaction has read was written since, or has expired.
            await_durable: for the commit, as `put`.

        Raises `InvalidRequest` and `Closed`.

        Cost: no request. While the transaction is open, flushed memtables stay in memory, up to
            `DatabaseOptions.transaction_history_bytes_max`.
        """
        return begin_transaction(self._writer, isolation, await_durable=await_durable)

    def transact(
        self,
        work: Callable[[Transaction], T],
        *,
        isolation: Isolation = "serializable",
        await_durable: bool = True,
        tries_max: int = 100,
    ) -> T:
        """Run a function in a transaction, and commit it. On a conflict, run the function again in a new transaction.

        Args:
            work: a function that takes the transaction, and reads and writes through it. It may run several times, so
                it must have no other effects. If it raises or rolls back, nothing is written.
            isolation: as `transaction`. The default is the stronger one, as conflicts are retried.
            await_durable: as `put`.
            tries_max: most runs, at least 1. There is no pause between them, as each conflict means that another commit
                succeeded.

        Returns:
            What `work` returned in the run that was committed.

        Raises:
            Conflict: every run ended in a conflict. Nothing was written. A `Conflict` that `work` itself raises is not
                retried.
            InvalidRequest, Closed, Fenced, OutcomeUnknown: as `Transaction.commit`; not retried.

        Cost: as one transaction for each run.
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

    def restore(self, version: str, *, lifetime: timedelta | None = RESTORABLE_FOR) -> Database:
        """Make an older version the newest one, and open it. This object is closed.

        Every write so far is made durable first, and stays readable through a checkpoint for `lifetime`.

        Args:
            version: name or id of a checkpoint, or number of a version.
            lifetime: of the checkpoint of the present state; None: no end. The default is 7 days.

        Returns:
            The database, open at the restored version, with the same options. Other threads that use this object, and
            what was begun on it, get `Closed`.

        Raises:
            NotFound, InvalidRequest: there is no such version. Nothing changed, and this object stays open.
            Conflict: kind ``owned``: another process opened the database in between. This object is closed.
            Fenced, Unavailable, OutcomeUnknown, Corruption: as `close`, `DatabaseAdmin.restore` and `lakebed.kv.open`.
                Restore again by `lakebed.kv.admin.restore`, or open the database again.

        Cost: as `close`, `DatabaseAdmin.restore` and opening.
        """
        check_argument("version", version, "str")  # before anything is closed
        writer = self._writer
        writer.check_not_fenced()
        find_version(self.admin.location, writer.claim.log.latest(), version)
        lifetime_in_ms(lifetime)
        self.close()
        writer.why_closed = "was closed by restore: use the database that restore returned"
        self.admin.restore(version, lifetime=lifetime)
        return type(self).open(self.admin.location, options=writer.options, create=False)

    def create_checkpoint(
        self, options: CheckpointOptions | None = None, *, scope: CheckpointScope = CheckpointScope.ALL
    ) -> CheckpointCreateResult:
        """Pin the version of now, or the version that another checkpoint pins.

        Args:
            options: lifetime, name, and the checkpoint to start from, which makes `scope` irrelevant.
            scope: which writes must be in it. ``ALL``: all writes that were issued before the call, which makes them
                durable.
                ``ALL_UNFORCED``: the same, but wait until that happens by itself, at most
                    `DatabaseOptions.flush_interval_max_ms`. ``DURABLE``: what is durable now.

        Raises:
            InvalidRequest, AlreadyExists, OutcomeUnknown: as `DatabaseAdmin.create_checkpoint`.
            Fenced: another process owns the database.

        Cost: 1 GET + 1 PUT + at most 3 LIST, and the flush. Source: "Creating a Checkpoint", `CheckpointScope`.
        """
        self._writer.check_not_fenced()
        options = CheckpointOptions() if options is None else check_type(options, CheckpointOptions)
        if options.source is None:
            self._wait_for_scope(scope)
        return create_checkpoint(self.admin.location, options)

    def _wait_for_scope(self, scope: CheckpointScope) -> None:
        """Wait until everything that a checkpoint of this scope includes is durable, and this process still owns it."""
        if not isinstance(scope, CheckpointScope):
            raise InvalidRequest(
                f"The scope of a checkpoint is a CheckpointScope, and {scope!r} was given.", kind="wrong_type"
            )
        writer = self._writer
        with writer.lock:
            sequence = writer.tree.last_sequence
        if scope is CheckpointScope.ALL_UNFORCED and writer.has_background:
            writer.commit.wait_for_others(sequence, timeout_s=writer.options.flush_interval_max_ms / 1000)
        if scope is not CheckpointScope.DURABLE:
            writer.commit.wait_durable(sequence)
            writer.commit.check_unreported()

    def create_clone(self, url: str | os.PathLike[str], checkpoint: str | None = None) -> None:
        """Create a database at `url` that begins with a checkpoint of this one.

        None: with everything written so far.

        Errors and cost as `DatabaseAdmin.create_clone`, and the flush. Source: "Clones".
        """
        self._writer.check_not_fenced()
        if checkpoint is None:
            self._wait_for_scope(CheckpointScope.ALL)
        create_clone(self.admin.location.other(os.fspath(url)), self.url, checkpoint)

    # ---- steps, which run in the background unless `DatabaseOptions.background` is False

    def flush(self, *, memtable: bool = False) -> None:
        """Return when every write so far is durable.

        Args:
            memtable: also write them into files, which makes a new version.

        Raises as `put`. Cost: 1 PUT if something is pending; with `memtable` 2 PUT + 1 LIST more.
        """
        self._writer.flush(memtable=memtable)

    def flush_once(self) -> bool:
        """Write the oldest waiting memtable into a file. Return False if there is none.

        Raises:
            Fenced: a newer writer owns the database.
            Unavailable, OutcomeUnknown: nothing changed here. Call again.

        Cost: 2 PUT + 1 LIST, and 1 PUT if its rows are not in the log yet.
        """
        return self._writer.flush_once()

    def compact_once(self, progress: ProgressCall | None = None) -> bool:
        """Merge the files that the planner chooses. Return False if nothing needs to be merged.

        Raises:
            Fenced: a newer writer owns the database; kind ``compactor_fenced``: another process compacts it now.
            Unavailable, OutcomeUnknown: nothing changed. Call again.
        """
        return self._writer.compact_once(progress)

    def compact(self, *, full: bool = False, progress: ProgressCall | None = None) -> None:
        """Merge files until nothing needs to be merged; with `full`, all files into one run.

        Raises as `compact_once`.
        """
        self._writer.compact(full=full, progress=progress)

    def poll_once(self) -> bool:
        """Show what a separate compactor has published. Return False if there is nothing new.

        Raises `Fenced`, `Unavailable`, `OutcomeUnknown`. Cost: 1 LIST, and 1 GET + 1 PUT + 1 LIST for news.
        """
        return self._writer.poll_once()

    def renew_once(self) -> bool:
        """Renew the lease if that is due. Return whether it was. Raises `Fenced`, `Unavailable`, `OutcomeUnknown`."""
        return self._writer.renew_once()

    # ---- the end

    def close(self) -> None:
        """Make everything durable, release the lease, remove the writer's checkpoint, and end.

        A second call does nothing.

        Raises:
            Fenced: writes that were not awaited are lost, as a newer writer owns the database. It is closed.
            Unavailable, OutcomeUnknown: the store failed. Nothing is lost yet. Call it again; no other verb works.

        Cost: 3 PUT + 1 LIST + 1 GET, and the flush of the log (without a log: of the memtable). If the log has more
            than 64
            objects that are not in files, their rows become a file, if the store takes it: 2 PUT + 1 LIST more.
        """
        writer = self._writer
        with self._closing:
            if self._is_finished:
                return
            self._latest = self._raise_closed
            writer.refuse_all()
            self._threads.stop()
            if writer.commit.fenced is None:
                writer.make_durable()
                writer.shorten_log()
                writer.leave()
            self._is_finished = True
            self.admin.location.store.release_folder()
            writer.commit.check_unreported()

    def abandon(self) -> None:
        """Close this object in a forked process, without a lock or a request.

        Lease, log ids and threads belong to the parent, which continues to write. A child that wrote under the parent's
        name would end the parent's ownership.
        """
        self._writer.abandon()
        self._closing = self._writer.environment.runtime.lock()
        self._is_finished = True
        self.admin.location.store.release_folder()
        self._latest = self._raise_closed

    # ---- properties

    def __repr__(self) -> str:
        return f"Database({self.url!r}, epoch={self.epoch}{', closed' if self.is_closed else ''})"

    def __reduce__(self) -> NoReturn:
        raise TypeError(
            f"An open database cannot be copied or sent to another process: open a reader there, "
            f"lakebed.kv.open_reader({self.url!r})."
        )

    @property
    def url(self) -> str:
        """The database's URL."""
        return self._writer.url

    @property
    def is_closed(self) -> bool:
        """Whether `close` was called."""
        return self._writer.is_closed

    @property
    def fenced(self) -> Fenced | None:
        """The error that every verb raises, once this process knows that another one owns the database; else None."""
        return self._writer.commit.fenced

    @property
    def epoch(self) -> int:
        """The number of this writer. It is greater than that of every earlier writer."""
        return self._writer.claim.epoch

    def stats(self) -> DatabaseStats:
        """Return sizes and counts of now. Raises `Closed`. Cost: no request."""
        self._writer.check_open()
        return stats_of(self._writer)


def explain_closed(database: Database, words: str, *, in_fork: str) -> None:
    """Set the reason that the verbs of a database state, after its URL, when it is closed, and in a forked process."""
    database._writer.why_closed = words
    database._writer.why_closed_in_fork = in_fork
