"""The tree: the memtables, the set of files, and the steps that move rows from memory to files.

Owns: the active memtable, the waiting ones, the set of files shown, the cache of single rows, and the history of
flushed memtables, with which open transactions are checked. The store above writes rows: it takes `Tree.lock`, writes
to `Tree.active`, and calls `Tree.rotate`. Everything else is a step that any thread may run.

Locks, in the order in which they are taken: the turn of a flush or compaction (one runs, others wait), the turn of a
publication, and `lock` (short: memory only). The turns are held across requests, `lock` never.

Invariants:
- A memtable leaves `waiting` at the moment at which the set with its file is shown, and the set was published before
  that. Sets are published and shown in one turn, so an older one never follows a newer one.
- A failed step leaves everything unchanged. A memtable's file is written once: if publishing it failed, the next
  attempt publishes the same file, so that no second file of its rows can become visible.
- *Row cache.* A cached value equals the result of reading its key in the files shown. Values with a TTL are never
  cached. Every insert comes from reading the files of one set, and names the generation that the cache had when that
  set was shown. Before a set with a new file is shown, the keys of its memtable are discarded, which begins a new
  generation. From then on inserts by a late reader of older files are refused, and until the memtable leaves `waiting`
  its rows hide the cache. A view reads the rows of one moment, so it takes cached ones only while the generation is
  that of its set. A set of unknown origin empties the cache in the same way. Compaction changes no value.
- A read searches the active memtable, the waiting ones, the cache and the files in this order, and rows only ever move
  in the same direction. So it misses no row that was written before it began.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial
from typing import Final, Protocol

from lakebed.errors import Conflict, Corruption, InternalError, InvalidRequest, NotFound, OutcomeUnknown
from lakebed.lsm.cache import RowCache
from lakebed.lsm.compact import run_compaction
from lakebed.lsm.file_writer import FileWriter
from lakebed.lsm.files import FileStore
from lakebed.lsm.filter import make_finder
from lakebed.lsm.flush import encode_memtable
from lakebed.lsm.memtable import Memtable
from lakebed.lsm.model import ROWS_DECIDE, FileMeta, FileSet, Kind
from lakebed.lsm.operators import MergeOperator
from lakebed.lsm.plan import CompactionTask, plan_compaction, plan_full
from lakebed.lsm.publisher import VersionPublisher
from lakebed.lsm.view import Levels, View

_PUT: Final = int(Kind.PUT)

_COMPACTION_TRIES_MAX: Final = 3
"""How often a compaction is planned again because another process removed its inputs."""


class TreeOptions(Protocol):
    """The settings that a tree reads. `lakebed.kv.options.DatabaseOptions` has them and states the cost of each."""

    @property
    def l0_compaction_count(self) -> int:
        """Files of level 0 at which they are merged into a run."""
        ...

    @property
    def run_compaction_count(self) -> int:
        """Runs of about one size at which they are merged into one."""
        ...

    @property
    def run_file_bytes(self) -> int:
        """Size of the files of a run."""
        ...

    @property
    def row_cache_bytes(self) -> int:
        """Bytes of the cache of single rows; 0: none."""
        ...

    @property
    def transaction_history_bytes_max(self) -> int:
        """Flushed memtables kept for open transactions."""
        ...


class _Waiting:
    """A memtable that waits for its flush. Changed only in the turn of a flush."""

    __slots__ = ("file", "is_written", "memtable", "token", "writer")

    def __init__(self, memtable: Memtable, token: object) -> None:
        self.memtable = memtable
        self.token = token
        self.writer: FileWriter | None = None
        """The encoded file, until it is known to be durable."""
        self.is_written = False
        self.file: FileMeta | None = None
        """The file, once it is written; None: not written yet, or no row had to be kept."""


class _Shown:
    """Everything that readers see below the active memtable, as of one moment. Immutable, except for cached results."""

    __slots__ = (
        "ask_first",
        "file_set",
        "files_view",
        "find_level",
        "has_operands",
        "is_asked",
        "memtables",
        "newest",
        "rows_generation",
        "waiting",
    )

    def __init__(
        self, waiting: tuple[_Waiting, ...], file_set: FileSet, files_view: View, rows_generation: int
    ) -> None:
        self.waiting = waiting
        """The waiting memtables, newest first."""
        self.memtables = tuple(entry.memtable for entry in waiting)
        self.file_set = file_set
        self.files_view = files_view
        """A view of the files only."""
        self.rows_generation = rows_generation
        """The generation of the row cache when the set was shown."""
        self.is_asked = False
        """Whether `View.filters` of the files was called, which happens once all of them were read."""
        self.find_level: Callable[[bytes], tuple[int, int] | None] | None = None
        """The finder over these filters, if there are some (`make_finder`)."""
        self.ask_first: Callable[[bytes], tuple[int, int] | None] | None = None
        """`find_level`, while no memtable waits and the filters excluded the last key; the next key is then likely to
        be absent too. It is called before the row cache, which has no key that the filters exclude."""
        self.newest: View | None = None
        """The last view of everything. It is returned again as long as nothing is written."""
        self.has_operands = any(file.merge_count for file in file_set.files())
        """Whether the files have operands. Then a value may be combined from rows of which one has a TTL that is not
        known here, so no value is cached."""


class Tree:
    """Memtables over a set of files.

    Args:
        files: the store of the files. The tree uses its environment.
        file_set: the files of the newest version, published.
        first_sequence: sequence of the next row that is written.
        options: limits and sizes.
        operator: combines operands; None: the store has none.
        retain_since_sequence: in flushes and compactions, keep every version with a larger sequence, and of the other
            versions the newest; None: keep no history. It may be moved forward at any time.
        recovered: memtables that wait to be flushed, with their tokens, oldest first.
    """

    def __init__(
        self,
        files: FileStore,
        *,
        file_set: FileSet,
        first_sequence: int,
        options: TreeOptions,
        publisher: VersionPublisher,
        operator: MergeOperator | None,
        retain_since_sequence: int | None = None,
        recovered: Sequence[tuple[Memtable, object]] = (),
    ) -> None:
        self._files = files
        self._options = options
        self._plan = partial(
            plan_compaction,
            l0_compaction_count=self._options.l0_compaction_count,
            run_compaction_count=self._options.run_compaction_count,
        )
        self._publisher = publisher
        self._operator = operator
        self._environment = environment = files.environment
        self.retain_since_sequence = retain_since_sequence
        runtime = environment.runtime
        self._flush_turn = runtime.lock()
        self._compaction_turn = runtime.lock()
        self._publication_turn = runtime.lock()
        self.lock = runtime.lock()
        """Taken to write rows, to rotate, or to read several facts of one moment. It is held for a short time, and
        never during a request."""
        self._rows = RowCache(options.row_cache_bytes, runtime=runtime)
        self.active = Memtable(first_sequence)
        """The memtable into which rows are written, under `lock`."""
        waiting_memtables = tuple(_Waiting(memtable, token) for memtable, token in reversed(recovered))
        if waiting_memtables and waiting_memtables[0].memtable.last_sequence >= first_sequence:
            raise InternalError(f"rows were recovered beyond sequence {first_sequence - 1}")
        self._shown = _Shown(waiting_memtables, file_set, self._view_of((), file_set), self._rows.generation)
        self.generation = 0
        """How often the set of files shown has changed."""
        self._waiting_bytes = sum(entry.memtable.size_bytes for entry in waiting_memtables)
        self._history: tuple[Memtable, ...] = ()
        self._history_holds: Counter[int] = Counter()
        self._history_from = (
            waiting_memtables[-1].memtable.first_sequence - 1 if waiting_memtables else first_sequence - 1
        )
        self.taken_back_through = 0
        """A read at a smaller sequence may have shown rows that were taken back since."""

    # ---- state

    @property
    def file_set(self) -> FileSet:
        """The set of files that reads see. It is the object that the publisher returned."""
        return self._shown.file_set

    @property
    def last_sequence(self) -> int:
        """Sequence of the newest row that was ever written."""
        return self.active.last_sequence

    @property
    def waiting_count(self) -> int:
        """Number of memtables that wait to be flushed."""
        return len(self._shown.waiting)

    @property
    def unflushed_bytes(self) -> int:
        """Memory of all rows that are in no file."""
        return self.active.size_bytes + self._waiting_bytes

    @property
    def l0_count(self) -> int:
        """Files of level 0."""
        return len(self._shown.file_set.l0)

    # ---- reading

    def latest(self, key: bytes) -> bytes | None:
        """Return the newest value of a key; None if it has none. Takes no lock of the tree.

        Raises:
            Corruption: a file is damaged or gone.
        Cost: from memory no request and about 0.3 us; from files as `View.get`.
        """
        memtable = self.active
        row = memtable.index.get(key)
        if row is None:
            shown_state = self._shown
            ask_first = shown_state.ask_first
            if ask_first is not None:
                likely = ask_first(key)
                if likely is None:
                    return None
                shown_state.ask_first = None
                value = self._rows.get(key)
                return self._latest_in_files(key, shown_state, *likely) if value is None else value
            for memtable in shown_state.memtables:
                row = memtable.index.get(key)
                if row is not None:
                    break
            else:
                rows = self._rows
                value = rows.young.get(key)
                if value is not None:
                    return value
                find_level = shown_state.find_level
                if find_level is None or key in rows.old:
                    return self._latest_in_files(key, shown_state)
                likely = find_level(key)
                if likely is None:
                    shown_state.ask_first = None if shown_state.memtables else find_level
                    return None
                return self._latest_in_files(key, shown_state, *likely)
        if row in memtable.special:
            return self._latest_special(key, memtable, row)
        return memtable.values[row]

    def _latest_special(self, key: bytes, memtable: Memtable, row: int) -> bytes | None:
        """As `latest`, from a row that has a TTL or is an operand."""
        kind, expires_at_ms = memtable.special[row]
        if kind == _PUT:
            is_there = expires_at_ms is None or self._environment.clock.now_ms() < expires_at_ms
            return memtable.values[row] if is_there else None
        shown_state, active = self._shown, self.active
        while self._shown is not shown_state:  # all of one moment: an operand that is also in a file would count twice
            shown_state, active = self._shown, self.active
        memtables = shown_state.memtables if active in shown_state.memtables else (active, *shown_state.memtables)
        try:
            return self._view_of(memtables, shown_state.file_set, levels=shown_state.files_view.levels).get(key)
        except NotFound as error:
            self._check_outdated(shown_state, error)
            return self.latest(key)

    def _latest_in_files(
        self, key: bytes, shown: _Shown, key_hash: int | None = None, first_level: int = 0
    ) -> bytes | None:
        """As `latest`, from the older part of the row cache, or from files; results of filters as for `find_value`."""
        rows, view = self._rows, shown.files_view
        if key in rows.old and (value := rows.get(key)) is not None:
            return value
        try:
            answer = view.find_value(key, key_hash=key_hash, first_level=first_level)
            if not shown.is_asked and (filters := view.filters()) is not None:
                shown.is_asked = True
                shown.find_level = make_finder(filters) if filters else None
            if answer is None:
                return None
            if answer is ROWS_DECIDE:
                row = view.get_row(key)
                if row is None:
                    return None
                if row.expires_at_ms is not None:
                    return row.value
                answer = row.value
        except NotFound as error:
            self._check_outdated(shown, error)
            return self.latest(key)
        if not shown.has_operands:
            rows.put(key, answer, generation=shown.rows_generation)
        return answer

    def _check_outdated(self, shown: _Shown, error: NotFound) -> None:
        """Return if another set has been shown since, of which the missing file may not be part; otherwise raise."""
        if self._shown.file_set == shown.file_set:
            raise Corruption(
                f"A file of the newest version is gone: {error}", kind="file_missing", **error.facts
            ) from error

    def view(self, *, sequence: int | None = None) -> View:
        """Return the state of now, or as of a sequence, to read it any number of times. Takes `lock`.

        Args:
            sequence: the newest visible sequence; at least `retain_since_sequence`, at most `last_sequence`. None: the
                last.

        Raises:
            InvalidRequest: kind ``sequence_out_of_range``; the tree does not have this state yet, or does not keep it.
        """
        with self.lock:
            if sequence is None:
                return self.view_locked()
            oldest = self.last_sequence if self.retain_since_sequence is None else self.retain_since_sequence
            if not oldest <= sequence <= self.last_sequence:
                raise InvalidRequest(
                    f"A view as of sequence {sequence} was asked for, and states from {oldest} to {self.last_sequence} "
                    "can be read: ask for one of these.",
                    kind="sequence_out_of_range",
                    sequence=sequence,
                    oldest=oldest,
                    newest=self.last_sequence,
                )
            shown_state = self._shown
            memtables = (self.active, *shown_state.memtables)
            return self._view_of(
                memtables, shown_state.file_set, sequence=sequence, levels=shown_state.files_view.levels
            )

    def view_locked(self, *, through: int | None = None) -> View:
        """As `view` without a sequence, for a caller that holds `lock`.

        Args:
            through: the newest visible sequence of the rows that are in no file yet; None: all.
        """
        shown_state, active = self._shown, self.active
        sequence, newest = active.last_sequence, shown_state.newest
        if through is None and newest is not None and newest.sequence == sequence and newest.memtables[0] is active:
            return newest
        memtables = (active, *shown_state.memtables)
        view = self._view_of(
            memtables,
            shown_state.file_set,
            sequence=sequence if through is None else max(through, memtables[-1].first_sequence - 1),
            levels=shown_state.files_view.levels,
            cached_rows=(self._rows, shown_state.rows_generation),
        )
        if through is None:
            shown_state.newest = view
        return view

    def _view_of(
        self,
        memtables: Sequence[Memtable],
        file_set: FileSet,
        *,
        sequence: int | None = None,
        levels: Levels | None = None,
        cached_rows: tuple[RowCache, int] | None = None,
    ) -> View:
        return View(
            memtables=memtables,
            file_set=file_set,
            sequence=sequence,
            operator=self._operator,
            environment=self._environment,
            files=self._files,
            levels=levels,
            cached_rows=cached_rows,
        )

    # ---- from memory to files

    def rotate(self, token: object) -> None:
        """Put the active memtable among the waiting ones, and begin a new one. Do nothing if it is empty.

        The caller holds `lock`. `token` is passed to `VersionPublisher.publish_flush` with the memtable.
        """
        full_memtable = self.active
        if full_memtable.is_empty:
            return
        shown_state = self._shown
        # Readers look at the active memtable first, so the rows are added to the waiting ones first: they are never
        # missing from both.
        now_shown = _Shown(
            (_Waiting(full_memtable, token), *shown_state.waiting),
            shown_state.file_set,
            shown_state.files_view,
            shown_state.rows_generation,
        )
        waiting_bytes, active = (
            self._waiting_bytes + full_memtable.size_bytes,
            Memtable(full_memtable.last_sequence + 1),
        )
        # No call in between: a thread that is interrupted (Ctrl-C) has done all of it, or nothing.
        self._shown, self._waiting_bytes, self.active = now_shown, waiting_bytes, active

    def begin_after_loss(self) -> None:
        """Skip a sequence, so that reads before and after rows were taken back can be distinguished.

        The caller holds `lock`, and has rotated.
        """
        assert self.active.is_empty, "rows would get other sequences"
        self.active = Memtable(self.active.first_sequence + 1)
        self.taken_back_through = self.last_sequence

    def flush_once(self) -> bool:
        """Write the oldest waiting memtable into a file and publish it. Return False if none waits.

        Raises:
            Unavailable, OutcomeUnknown: nothing changed here. Call again.
            Fenced, InvalidRequest: as `VersionPublisher.publish_flush`.

        Cost: 1 PUT for the file, and the cost of publishing.
        """
        with self._flush_turn:
            waiting = self._shown.waiting
            if not waiting:
                return False
            oldest = waiting[-1]
            self._write(oldest)
            with self._publication_turn:
                file_set = self._publisher.publish_flush(
                    oldest.file, last_sequence=oldest.memtable.last_sequence, token=oldest.token
                )
                self._rows.discard(oldest.memtable.index.keys())
                before = self._shown.file_set
                with self.lock:
                    self._show(file_set, waiting=self._shown.waiting[:-1])
                    self._waiting_bytes -= oldest.memtable.size_bytes
                    self._history = (oldest.memtable, *self._history)
                    self._trim_history()
                self._files.forget_replaced(before, self._shown.file_set)
        return True

    def _write(self, waiting: _Waiting) -> None:
        """Make a memtable's file durable once. After an error the next attempt puts the same file.

        A file that could not be synced is written again, because a second sync would succeed although bytes are lost.
        """
        if waiting.is_written:
            return
        if waiting.writer is None:
            waiting.writer = encode_memtable(
                waiting.memtable,
                files=self._files,
                file_id=self._publisher.next_file_id(),
                operator=self._operator,
                retain_since_sequence=self.retain_since_sequence,
            )
        if waiting.writer is not None:
            try:
                waiting.file = waiting.writer.finish()
            except OutcomeUnknown as error:
                if error.kind == "unsynced":
                    waiting.writer = None
                raise
        waiting.writer = None
        waiting.is_written = True

    def _show(self, file_set: FileSet, *, waiting: tuple[_Waiting, ...]) -> None:
        """Show a set. The caller holds `lock` and the turn of publication, and has cleared the cache as needed."""
        self.generation += file_set != self._shown.file_set
        self._shown = _Shown(waiting, file_set, self._view_of((), file_set), self._rows.generation)

    def poll_once(self) -> bool:
        """Show a set that another process published. Return False if it is shown already.

        Raises `Fenced`, and as `VersionPublisher.publish_refresh`, which determines the cost.
        """
        with self._publication_turn:
            file_set = self._publisher.publish_refresh()
            before = self._shown.file_set
            is_other = file_set != before
            if is_other:
                self._rows.clear()
            with self.lock:
                # Even if the files are the same: the publisher identifies its sets, and their pins, by object identity.
                self._show(file_set, waiting=self._shown.waiting)
            self._files.forget_replaced(before, self._shown.file_set)
        return is_other

    # ---- compaction

    def compact_once(self, progress: Callable[[int, int], None] | None = None) -> bool:
        """Plan one compaction, run it and publish it. Return False if nothing needs to be merged.

        Args:
            progress: called now and then with the rows read and the bytes written so far.

        Raises:
            Fenced: another compactor has taken over.
            Conflict: another process removed inputs three times.
            Unavailable, OutcomeUnknown: nothing changed here; call again.
        """
        with self._compaction_turn:
            return self._compact(self._plan, progress) is not None

    def compact_full(self, progress: Callable[[int, int], None] | None = None) -> bool:
        """Rewrite all files into one run; False if there are none. Arguments and errors as `compact_once`."""
        with self._compaction_turn:
            task = self._compact(plan_full, progress)
            if task is None:
                return False
            while not task.rewrite:
                task = self._compact(plan_full, progress)
                if task is None:
                    break
            return True

    def _compact(
        self,
        plan: Callable[[FileSet], CompactionTask | None],
        progress: Callable[[int, int], None] | None,
    ) -> CompactionTask | None:
        """Run the plan for the set shown. Return the task that was published; None if there is nothing to do."""
        for _ in range(_COMPACTION_TRIES_MAX - 1):
            try:
                return self._plan_and_run(plan, progress)
            except Conflict:
                self.poll_once()  # another process removed the inputs: get the newest set
        return self._plan_and_run(plan, progress)

    def _plan_and_run(
        self,
        plan: Callable[[FileSet], CompactionTask | None],
        progress: Callable[[int, int], None] | None,
    ) -> CompactionTask | None:
        shown_state = self._shown
        task = plan(shown_state.file_set)
        if task is None:
            return None
        job = self._publisher.begin_compaction(task)
        is_published = False
        try:
            run = run_compaction(
                task,
                files=self._files,
                file_set=shown_state.file_set,
                next_file_id=job.next_file_id,
                run_file_bytes=self._options.run_file_bytes,
                operator=self._operator,
                retain_since_sequence=self.retain_since_sequence,
                progress=progress,
            )
            with self._publication_turn:
                file_set = self._publisher.publish_compaction(job, task, run)
                is_published = True
                before = self._shown.file_set
                with self.lock:
                    self._show(file_set, waiting=self._shown.waiting)
                self._files.forget_replaced(before, self._shown.file_set)
        except NotFound as error:
            self.poll_once()  # raises `Fenced` if another compactor has taken over
            self._check_outdated(shown_state, error)
            raise Conflict(f"An input was taken away: {error}", kind="inputs_gone") from error
        finally:
            if not is_published:
                self._publisher.abandon(job)
        return task

    # ---- for transactions; the caller holds `lock`

    def surely_is(self, key: bytes, value: bytes | None) -> bool:
        """Whether memory alone shows that a key has this value (None: no value), without a TTL.

        False means that a read is needed to know. Cost: as `latest` from memory.
        """
        shown_state = self._shown
        for memtable in (self.active, *shown_state.memtables):
            row = memtable.index.get(key)
            if row is not None:
                return row not in memtable.special and memtable.values[row] == value
        if value is None:
            return not shown_state.file_set.l0 and not shown_state.file_set.runs
        return self._rows.get(key) == value

    def hold_history(self, since: int) -> None:
        """Keep rows written after sequence `since` in memory, within the limit, until `release_history`."""
        self._history_holds[since] += 1

    def release_history(self, since: int) -> None:
        """Undo one `hold_history`."""
        self._history_holds[since] -= 1
        if self._history_holds[since] <= 0:
            del self._history_holds[since]
        self._trim_history()

    def _trim_history(self) -> None:
        """Drop flushed memtables that no open transaction needs, and the oldest beyond the limit."""
        needed_after = min(self._history_holds, default=None)
        kept_count, size_bytes = 0, 0
        for memtable in self._history:
            size_bytes += memtable.size_bytes
            is_needed = needed_after is not None and memtable.last_sequence > needed_after
            if not is_needed or size_bytes > self._options.transaction_history_bytes_max:
                break
            kept_count += 1
        if kept_count < len(self._history):
            self._history_from = self._history[kept_count].last_sequence
            self._history = self._history[:kept_count]

    def memtables_since(self, sequence: int) -> list[Memtable]:
        """Return all memtables with rows of larger sequences, newest first, including flushed ones.

        Raises:
            Conflict: kind ``history_gone``; some of them are not in memory any more.
        """
        if sequence < self.taken_back_through:
            raise Conflict(
                "A write that may have been read since then could not be made durable and was taken back: begin the "
                "transaction again.",
                kind="history_gone",
            )
        if sequence < self._history_from:
            raise Conflict(
                f"What was written since sequence {sequence} is in memory from {self._history_from + 1} on only, so it "
                "cannot be told whether anything read has changed: begin the transaction again, or raise "
                "transaction_history_bytes_max.",
                kind="history_gone",
            )
        memtables = (self.active, *self._shown.memtables, *self._history)
        return [memtable for memtable in memtables if memtable.last_sequence > sequence]

    def written_since(self, key: bytes, sequence: int) -> bool:
        """Whether a key was written with a larger sequence. Raises `Conflict` as `memtables_since`."""
        for memtable in self.memtables_since(sequence):
            newest = memtable.newest_sequence(key)
            if newest is not None:
                return newest > sequence
        return False
