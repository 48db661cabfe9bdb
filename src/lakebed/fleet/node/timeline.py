"""One timeline of an attached tenant: it puts rows from the log into memtables, and reads at an LSN.

Owns: the tree, which is made at the first read or ingestion; the position in the log; how far back states are kept.

Invariants:
- Rows are ingested in the order of the log without a gap, and each record continues the one before it. A log with
  another history stops the timeline (`problem`), and none of its rows is ingested.
- A memtable ends where a record ends, so the mark that a flush publishes is the position behind its rows.
- The cutoff moves before a flush or compaction drops versions. It never passes a running scan, and never moves back.
- The result of a read at an LSN does not depend on where the rows are.

Does not know: transactions, commits, other timelines. Steps that write files hold the tenant's turn.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from typing import Final, TypeVar

import numpy as np
import pyarrow as pa

from lakebed.errors import Conflict, Corruption, InvalidRequest, LakebedError, NotFound, Unavailable
from lakebed.fleet.layout import log_key
from lakebed.fleet.log.port import Log, log_newer
from lakebed.fleet.log.record import LogRecord, check_follows
from lakebed.fleet.model import LogMark, Policy, TimelineIndex
from lakebed.fleet.node.options import NodeOptions
from lakebed.fleet.node.publisher import GrantedPublisher
from lakebed.key_value.port import PAIR_SCHEMA
from lakebed.lsm.columns import keys_of
from lakebed.lsm.files import FileStore
from lakebed.lsm.memtable import Memtable
from lakebed.lsm.model import Kind
from lakebed.lsm.tree import Tree
from lakebed.lsm.view import View

R = TypeVar("R")

_READ_TRIES_MAX: Final = 8
"""How often a read starts again because its files were replaced meanwhile."""

_AGE_SAMPLES: Final = 64
"""Positions remembered for the cutoff by age. The cutoff moves in steps of `Policy.retain_ms` divided by this."""

_MARKS_KEPT: Final = 4_096
"""Ends of records that are remembered, to recognize them in a newer manifest. 100 bytes each."""


class Timeline:
    """A timeline on this node. Any thread may read; one step runs at a time.

    Args:
        index: the timeline in the base, or in the working set.
        files: where its files are.
        publisher: the publisher of the tenant's open transaction.
        log: the log of its rows.
    """

    def __init__(
        self,
        index: TimelineIndex,
        *,
        tenant: str,
        files: FileStore,
        publisher: GrantedPublisher,
        log: Log,
        options: NodeOptions,
    ) -> None:
        self.id = index.id
        self.is_read_only = index.is_read_only
        self.log_key = log_key(tenant, index.id)
        self.problem: LakebedError | None = None
        """Why ingestion has stopped: the log has another history, or belongs to a later moment than the ledger."""
        self.refusal: LakebedError | None = None
        """Why the log gave no rows: others seem to have committed more, or dropped the timeline. A commit decides."""
        self.log_last = index.lsn
        """The last LSN in the log when it was last read."""
        self._index = index
        self._tenant = tenant
        self._files = files
        self._publisher = publisher
        self._log = log
        self._options = options
        self._clock = files.environment.clock
        runtime = files.environment.runtime
        self._ingest_turn = runtime.lock()
        self._making = runtime.lock()
        self._tree: Tree | None = None
        self._mark: LogMark = index.mark
        self._cutoff = index.cutoff
        self._ages: deque[tuple[int, int]] = deque()
        """(time by `_now_ms`, LSN): the LSN was the newest at that time. Oldest first."""
        self._scans: dict[object, int] = {}
        """LSNs of the running scans.

        Each step is one operation of the mapping, because a scan may end at any moment.
        """
        self._marks: dict[int, str] = {index.mark.lsn: index.mark.checksum}
        """Checksums at the ends of the most recently ingested records, by LSN."""

    # ---- what is there

    @property
    def last_lsn(self) -> int:
        """The newest ingested LSN."""
        return self._mark.lsn

    @property
    def cutoff(self) -> int:
        """The oldest LSN that can be read at."""
        return self._cutoff

    @property
    def unflushed_bytes(self) -> int:
        """Memory of rows that are not in a file."""
        return 0 if self._tree is None else self._tree.unflushed_bytes

    @property
    def is_loaded(self) -> bool:
        """Whether rows were read or ingested, so that the tree exists."""
        return self._tree is not None

    @property
    def is_flushed(self) -> bool:
        """Whether all rows are in files."""
        return self._tree is None or (self._tree.active.is_empty and not self._tree.waiting_count)

    @property
    def lag_rows(self) -> int:
        """Number of rows in the log that are not ingested, as far as is known."""
        return max(0, self.log_last - self.last_lsn)

    def tree(self) -> Tree:
        """Return the tree. Make it at the first call. Cost: no request."""
        if self._tree is None:
            with self._making:
                if self._tree is None:
                    self._tree = self._new_tree(())
        return self._tree

    def _new_tree(self, rows: Sequence[Memtable]) -> Tree:
        tree = Tree(
            self._files,
            file_set=self._index.files,
            first_sequence=self._index.lsn + 1,
            options=self._options,
            publisher=self._publisher,
            operator=None,
            retain_since_sequence=self._cutoff,
        )
        first_lsn = self._index.lsn
        for memtable in rows:
            start = max(0, first_lsn + 1 - memtable.first_sequence)
            tree.active.extend(memtable.keys[start:], memtable.values[start:])
        return tree

    def adopt(self, old: Timeline) -> None:
        """Take over the rows in memory that continue our files, from the same timeline of an earlier attachment.

        Take over nothing if some of them are only in files, or if it is not certain that they continue our files. Then
        they are read from the log again.
        """
        with old._ingest_turn:
            tree, mark = old._tree, self._index.mark
            if tree is None or old.last_lsn <= self.last_lsn or old.problem is not None:
                return
            if old._marks.get(mark.lsn) != mark.checksum:
                return
            view = tree.view()
            rows = [memtable for memtable in reversed(view.memtables) if not memtable.is_empty]
            if not rows or rows[0].first_sequence > self._index.lsn + 1:
                return
            self._tree = self._new_tree(rows)
            self._mark, self._marks = old._mark, old._marks
            self.log_last, self._ages = old.log_last, old._ages

    # ---- from the log into memory

    def ingest_once(self) -> int:
        """Read records from the log into the memtable. Return the number of rows.

        Raises:
            Corruption: ``log_forked``, ``log_newer``: the timeline stops.
            Conflict: ``log_pruned``: another attachment has committed more than this one.
            NotFound: the log does not have the timeline.
            Unavailable: the log does not answer.
        """
        if self.is_read_only or self.problem is not None:
            return 0
        with self._ingest_turn:
            try:
                records = self._log.read(self.log_key, self._mark.lsn, bytes_max=self._options.ingest_bytes)
                count = sum(self._take(record) for record in records)
            except Corruption as error:
                self.problem = error
                raise
            self.log_last, self.refusal = max(self.log_last, self._mark.lsn), None
            return count

    def stop_behind(self, refusal: LakebedError) -> None:
        """Stop ingestion, because a commit was granted that began after the log had refused rows.

        So no other attachment has committed the rows that the log has pruned, and further commits would not help.
        """
        self.refusal, first = None, refusal.facts.get("first")
        if self.problem is None and (first is None or self._mark.lsn < first - 1):
            self.problem = log_newer(self.log_key, lsn=self._mark.lsn, first=first)

    def _take(self, record: LogRecord) -> int:
        mark = check_follows(self.log_key, self._mark, record)
        keys, values = _columns(record.rows)
        tree = self.tree()
        with tree.lock:
            tree.active.extend(keys, values)
            self._mark = mark
            self._marks[mark.lsn] = mark.checksum
            if len(self._marks) > _MARKS_KEPT:
                del self._marks[next(iter(self._marks))]
            if tree.active.size_bytes >= self._options.memtable_bytes:
                tree.rotate(mark)
        return len(keys)

    def note_age(self, retain_ms: int) -> None:
        """Record the time at which the newest LSN was the newest, for the cutoff by age."""
        if retain_ms:
            now_ms, ages = self._now_ms(), self._ages
            if not ages or now_ms - ages[-1][0] >= retain_ms // _AGE_SAMPLES:
                ages.append((now_ms, self._mark.lsn))

    # ---- from memory to files; the caller holds the tenant's turn

    def advance_cutoff(self, policy: Policy) -> None:
        """Move the cutoff as far as the policy allows. From then on no older state can be read."""
        if self.is_read_only:
            return
        newest = self._mark.lsn
        cutoff = newest - policy.retain_rows
        if policy.retain_ms:
            cutoff = min(cutoff, self._lsn_before(self._now_ms() - policy.retain_ms))
        tree = self.tree()
        with tree.lock:
            cutoff = min((cutoff, *list(self._scans.values())))
            if cutoff > self._cutoff:
                self._cutoff = cutoff
                tree.retain_since_sequence = cutoff
            self._publisher.cutoff = self._cutoff

    def _now_ms(self) -> int:
        """Time that only moves forward, from an arbitrary start. Setting a wall clock does not age rows."""
        return int(self._clock.monotonic_s() * 1000)

    def _lsn_before(self, time_ms: int) -> int:
        """Return the LSN that was the newest at a time; the cutoff if it is not remembered."""
        ages = self._ages
        while len(ages) > 1 and ages[1][0] <= time_ms:
            ages.popleft()
        return ages[0][1] if ages and ages[0][0] <= time_ms else self._cutoff

    def rotate(self) -> None:
        """Close the active memtable, so that it is flushed next."""
        tree = self.tree()
        with tree.lock:
            tree.rotate(self._mark)

    def flush_waiting(self) -> bool:
        """Flush what was rotated. Return whether there was any. Raises as `Tree.flush_once`. Cost: 1 PUT a memtable."""
        tree, flushed = self._tree, False
        while tree is not None and tree.waiting_count:
            flushed |= tree.flush_once()
        return flushed

    @property
    def needs_flush(self) -> bool:
        """Whether a rotated memtable waits."""
        return self._tree is not None and self._tree.waiting_count > 0

    @property
    def needs_compaction(self) -> bool:
        """Whether level 0 is full."""
        return self._tree is not None and self._tree.l0_count >= self._options.l0_compaction_count

    def compact_once(self) -> bool:
        """Run one planned compaction. Raises as `Tree.compact_once`."""
        return self.tree().compact_once()

    def compact_full(self) -> bool:
        """Merge all files into one run, which is written in this timeline. Raises as `Tree.compact_full`."""
        return self.tree().compact_full()

    def forget(self, file_ids: set[str]) -> None:
        """Drop handles and cached blocks of files that no version names any longer."""
        for file_id in file_ids:
            self._files.forget(file_id)

    # ---- reads

    def read(self, lsn: int | None, function: Callable[[View], R]) -> R:
        """Call a function with the state as of an LSN. Call it again if files were replaced meanwhile.

        Args:
            lsn: None: the newest ingested.

        Raises:
            InvalidRequest: ``below_cutoff``, with ``cutoff=``.
            NotFound: a file of the newest state is gone.
        """
        for tries_left in reversed(range(_READ_TRIES_MAX)):
            view = self.view(lsn)
            tree = self.tree()
            generation = tree.generation
            try:
                return function(view)
            except NotFound:
                if not tries_left or (tree.generation == generation and view.file_set == tree.file_set):
                    raise
        raise AssertionError

    def view(self, lsn: int | None) -> View:
        """Return the state as of an ingested LSN. Raises as `read`."""
        tree = self.tree()
        if lsn is None:
            return tree.view()
        try:
            return tree.view(sequence=lsn)
        except InvalidRequest as error:
            if error.kind != "sequence_out_of_range":
                raise
            if lsn > tree.last_sequence:
                raise Unavailable(
                    f"{self.log_key} has no LSN {lsn} here yet: it is at {tree.last_sequence}.",
                    kind="lsn_not_reached",
                    lsn=tree.last_sequence,
                ) from error
            raise _below_cutoff(self.log_key, lsn, int(error.facts["oldest"])) from error

    def scan(self, view: View, start: bytes | None, end: bytes | None) -> Iterator[pa.RecordBatch]:
        """Yield the rows of ``[start, end)`` as of a view. Continue in the same state if files are replaced meanwhile.

        Yields at least one batch. The metadata of its schema has the LSN.
        """
        lsn = view.sequence if view.sequence is not None else self.last_lsn
        schema = PAIR_SCHEMA.with_metadata({"lsn": str(lsn)})
        token = object()
        self._scans[token] = lsn
        try:
            is_empty, tries_left = True, _READ_TRIES_MAX
            while True:
                try:
                    for batch in view.scan_arrow(start, end):
                        if batch.num_rows:
                            is_empty, tries_left = False, _READ_TRIES_MAX
                            yield pa.RecordBatch.from_arrays(batch.columns, schema=schema)
                            start = batch.column(0)[-1].as_py() + b"\0"
                    break
                except NotFound:
                    tries_left -= 1
                    if not tries_left or self.tree().file_set == view.file_set:
                        raise
                    view = self.view(lsn)
            if is_empty:
                yield pa.RecordBatch.from_arrays([pa.array([], pa.binary())] * 2, schema=schema)
        finally:
            del self._scans[token]


def _columns(rows: pa.RecordBatch) -> tuple[list[bytes], list[bytes | None]]:
    """Return keys and values of log rows; the value of a deletion is None."""
    keys = keys_of(rows.column(0))
    values: list[bytes | None] = list(keys_of(rows.column(3)))
    kinds = np.frombuffer(rows.column(2).buffers()[1], np.uint8, rows.num_rows, rows.column(2).offset)
    for position in np.flatnonzero(kinds == Kind.DELETE).tolist():
        values[position] = None
    return list(keys), values


def _below_cutoff(name: str, lsn: int, cutoff: int) -> InvalidRequest:
    return InvalidRequest(
        f"{name} was to be read at LSN {lsn}, and states from LSN {cutoff} on are kept: read at a newer one, or raise "
        "retain_rows or retain_ms.",
        kind="below_cutoff",
        cutoff=cutoff,
    )


def is_pruned(error: LakebedError) -> bool:
    """Whether the log reports that another attachment has committed more than this one has ingested."""
    return isinstance(error, Conflict) and error.kind == "log_pruned"
