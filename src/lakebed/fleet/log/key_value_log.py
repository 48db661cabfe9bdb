"""The log over the key-value port: in a database of this process, or in PostgreSQL that several processes share.

Owns: which thread writes next, what is kept in memory, and how a write without a clear answer is resolved. Changes wait
in queues: one for each store that this process owns, one for each timeline of a shared store. The first caller that
waits in a queue takes everything that waits there, and writes it in one write (`lakebed.fleet.log.changes`).

Invariants:
- What memory has of a timeline is durable; for an owned store it is also complete. It is forgotten and read again after
  a write that has no clear answer or that conflicts with another writer. So after a lost reply, the write id in the
  store shows whether the write happened.
- Reads from memory return only what is durable. A process that lost its store may serve an older end; it never reports
  records as lost without asking the store, which then refuses it.
- No store call happens under the lock.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import Final

import pyarrow as pa
import xxhash

from lakebed.backoff import Backoff, Pauses
from lakebed.errors import Closed, Conflict, InternalError, LakebedError, NotFound, OutcomeUnknown, Unavailable
from lakebed.fleet.log.changes import (
    GROUP_BYTES_MAX,
    GROUP_CHANGE_COUNT_MAX,
    Append,
    Change,
    Create,
    Drop,
    Group,
    Load,
    Prune,
    Seal,
)
from lakebed.fleet.log.port import (
    READ_BYTES_DEFAULT,
    READ_BYTES_MAX,
    WAIT_S_MAX,
    Log,
    LogBounds,
    check_append,
    check_lsn,
    check_timeline,
    check_wait,
    log_ends_before,
    log_pruned,
)
from lakebed.fleet.log.record import End, LogRecord, decode_log_record
from lakebed.fleet.log.timeline import Keys, Timeline, decode_horizon, decode_tail, load_timeline, scan_records
from lakebed.fleet.log.watchers import ThreadSignal, Watcher, Watchers
from lakebed.fleet.log.write_ids import WriteIdLimits
from lakebed.key_value.port import KeyValue, KeyValueSnapshot
from lakebed.kv.group_commit import copy_error
from lakebed.metrics import default_registry
from lakebed.runtime import Environment

_APPENDS: Final = default_registry.counter(
    "lakebed_fleet_log_appends_total", help_text="Appends that were acknowledged."
)
_GROUPS: Final = default_registry.counter(
    "lakebed_fleet_log_groups_total", help_text="Writes of a store by the log, each with all changes that waited."
)

RECENT_BYTES_MAX: Final = 64 << 20
"""Bytes of the newest records that are kept in memory, over all timelines of an owned store."""
TIMELINE_COUNT_MAX: Final = 16_384
"""Timelines that are kept in memory."""
RETRY_S: Final = 15.0
"""How long calls to a shared store are retried, and a write without a clear answer is looked for."""
_PAUSES: Final = Pauses(0.02, 0.5, jitter=0.5)
_SNAPSHOT_PAUSES: Final = Pauses(0.25, 0.25)
_POLL_S: Final = 0.02
_POLL_S_MAX: Final = 0.25
_CLOSE_S: Final = 30.0
_WRITE_ID_LIMITS: Final = WriteIdLimits()
_SWEEP_S: Final = 60.0
"""Between two looks for old write ids of timelines to which nothing is appended ..."""
_NEXT_SWEEP_S: Final = 1.0
"""... and after one that left some for later: the lock is free for others meanwhile."""


class _Queue:
    """A queue of changes. One group of them is written at a time."""

    __slots__ = ("is_led", "store", "waiting")

    def __init__(self, store: KeyValue) -> None:
        self.store = store
        self.waiting: deque[Change] = deque()
        self.is_led = False


class KeyValueLog(Log):
    """The log over key-value stores. Thread-safe.

    Args:
        stores: timelines are spread over them by a hash of their names; closed by `close`.
        environment: clock and locks.
        prefix: of all keys, in a store that has other things too.
        is_shared: whether other processes append to the same stores.
        write_id_limits: which write ids of a timeline are remembered.
        recent_bytes_max: of the newest records that are kept in memory.
        retry_s: how long a call to a shared store is retried, and a write without a clear answer is looked for.
    """

    def __init__(
        self,
        stores: Sequence[KeyValue],
        *,
        environment: Environment,
        prefix: bytes = b"",
        is_shared: bool = False,
        write_id_limits: WriteIdLimits = _WRITE_ID_LIMITS,
        recent_bytes_max: int = RECENT_BYTES_MAX,
        retry_s: float = RETRY_S,
    ) -> None:
        self._stores = tuple(stores)
        self._environment = environment
        self._prefix = prefix
        self.is_shared = is_shared
        self.write_id_limits = write_id_limits
        self._sweep_s = 0.0
        self._recent_bytes_max = recent_bytes_max
        self._retry_s = retry_s
        self._lock = environment.runtime.lock()
        self._idle = environment.runtime.condition(self._lock)
        self._queues: dict[str | int, _Queue] = {}
        self._timelines: OrderedDict[str, Timeline] = OrderedDict()
        self._recent: deque[tuple[str, int, int]] = deque()
        """Timeline, last LSN and size of each record in memory, in the order of appending."""
        self._recent_bytes = 0
        self.watchers = Watchers(self._lock)
        self._is_closed = False

    # ---- the port

    def create(self, timeline: str, *, after: int = 0) -> None:
        """Cost: as `append`."""
        self._perform(Create, check_timeline(timeline), after=check_lsn(after, name="after"))

    def append(self, timeline: str, rows: pa.RecordBatch, *, write_id: str, expected: int | None = None) -> int:
        """Cost: one write of the store, shared with all that wait in the queue; on an owned database 1 PUT."""
        check_append(timeline, rows, write_id=write_id, expected=expected)
        return self._perform(Append, timeline, rows=rows, write_id=write_id, expected=expected)

    def read(self, timeline: str, after: int, *, bytes_max: int = READ_BYTES_DEFAULT) -> list[LogRecord]:
        bodies = self.read_bodies(timeline, after, bytes_max=bytes_max)
        return [decode_log_record(body, timeline=timeline) for body in bodies]

    def read_bodies(self, timeline: str, after: int, *, bytes_max: int) -> list[bytes]:
        """As `read`: the bytes of each record. Cost: from memory 2 us; else a snapshot and a scan."""
        check_timeline(timeline)
        check_lsn(after, name="after")
        bytes_max = min(bytes_max, READ_BYTES_MAX)
        with self._lock:
            self._check_open()
            state = self._timeline_in_memory(timeline)
            if state is not None and state.recent_after <= after <= state.mark.lsn:
                return state.recent_behind(after, bytes_max=bytes_max)
        keys = Keys.of(timeline, prefix=self._prefix)
        with self._snapshot(self._store(timeline)) as now:
            bounds = self._bounds_in(now, keys, timeline)
            if after < bounds.first - 1:
                raise log_pruned(timeline, after=after, first=bounds.first)
            if after > bounds.last:
                raise log_ends_before(timeline, lsn=after, last=bounds.last)
            return scan_records(now, keys, after, bytes_max=bytes_max)

    def wait_many(self, after: Mapping[str, int], *, timeout_s: float) -> dict[str, int]:
        """Cost: for timelines of an owned store that are in memory nothing; of a shared store a get at each look."""
        check_wait(after)
        clock = self._environment.clock
        ends_s = clock.monotonic_s() + min(max(0.0, timeout_s), WAIT_S_MAX)
        watcher = Watcher(after, signal := ThreadSignal(self._environment.runtime.condition(self._lock)))
        poll_s = _POLL_S
        self.watchers.add(watcher)
        try:
            while True:
                lasts = self.look(after)
                left_s = ends_s - clock.monotonic_s()
                if lasts or left_s <= 0:
                    return lasts
                with self._lock:
                    self._check_open()
                    if self.is_shared:
                        signal.changed.wait(min(left_s, poll_s))
                    elif not self._differing(after):
                        signal.changed.wait(left_s)
                poll_s = min(2 * poll_s, _POLL_S_MAX)
        finally:
            self.watchers.remove(watcher)

    def prune(self, timeline: str, through: int) -> None:
        """Cost: a scan of write ids, and one write a `PRUNE_COUNT_MAX` records, shared as that of `append`."""
        self._perform(Prune, check_timeline(timeline), through=check_lsn(through, name="through"))

    def seal(self, timeline: str) -> int:
        """Cost: as `append`."""
        return self._perform(Seal, check_timeline(timeline))

    def drop(self, timeline: str) -> None:
        """Cost: as `prune`."""
        self._perform(Drop, check_timeline(timeline))

    def bounds(self, timeline: str) -> LogBounds:
        """Cost: a get. What is in memory may be older: another process may have taken over the store unnoticed."""
        check_timeline(timeline)
        with self._lock:
            self._check_open()
        with self._snapshot(self._store(timeline)) as now:
            return self._bounds_in(now, Keys.of(timeline, prefix=self._prefix), timeline)

    def maintain(self) -> None:
        """Reclaim unused space of the stores; now and then, in the background. Costs as `KeyValue.maintain`."""
        for store in self._stores:
            store.maintain()

    def close(self) -> None:
        """End waiting calls with `Closed`. Wait for running writes before the stores are closed."""
        clock = self._environment.clock
        ends_s = clock.monotonic_s() + _CLOSE_S
        with self._lock:
            if self._is_closed:
                return
            self._is_closed = True
            for queue in self._queues.values():
                for change in queue.waiting:
                    change.finish(self._close_error())
                    change.signal.wake()
                queue.waiting.clear()
            self.watchers.wake_all()
            while any(queue.is_led for queue in self._queues.values()) and clock.monotonic_s() < ends_s:
                self._idle.wait(1.0)
        for store in self._stores:
            store.close()

    @property
    def poll_s(self) -> float:
        """Longest time until another process's append is seen; without other processes, unlimited."""
        return _POLL_S_MAX if self.is_shared else WAIT_S_MAX

    @property
    def waiting_count(self) -> int:
        """Changes that wait for a group."""
        with self._lock:
            return sum(len(queue.waiting) for queue in self._queues.values())

    # ---- whose turn it is

    def submit(self, change: Change) -> None:
        """Add a change to its queue. Its signal wakes when it is done, or when its caller has to `lead`."""
        with self._lock:
            self._check_open()
            queue = self._queue(change.timeline)
            queue.waiting.append(change)
            if not queue.is_led and len(queue.waiting) == 1:
                change.signal.wake()

    def abandon(self, change: Change) -> None:
        """Remove a change whose caller does not wait any more, so that no other change waits for it to lead."""
        with self._lock:
            if change.is_done:
                return
            queue = self._queue(change.timeline)
            if change in queue.waiting:
                queue.waiting.remove(change)
                if queue.waiting and not queue.is_led:
                    queue.waiting[0].signal.wake()

    def must_lead(self, change: Change) -> bool:
        """Whether the caller of a change must `lead` now."""
        with self._lock:
            return not change.is_done and not self._must_wait(change)

    def lead(self, change: Change) -> None:
        """Write the next group of a change's queue, unless another thread does that now."""
        with self._lock:
            queue = self._queue(change.timeline)
            if change.is_done or queue.is_led or not queue.waiting:
                return
            queue.is_led = True
            group = _take_group(queue.waiting)
        try:
            self._write(queue, group)
        except LakebedError as error:
            self._fail(group, error)
        except BaseException as error:
            self._fail(group, InternalError(f"Writing to the log failed: {type(error).__name__}: {error}"))
            raise
        finally:
            with self._lock:
                for waiter in reversed(group):
                    if not waiter.is_done and not self._is_closed:
                        queue.waiting.appendleft(waiter)
                    else:
                        if not waiter.is_done:
                            waiter.finish(self._close_error())
                        waiter.signal.wake()
                queue.is_led = False
                if queue.waiting:
                    queue.waiting[0].signal.wake()
                elif self.is_shared:
                    del self._queues[change.timeline]
                if self._is_closed:
                    self._idle.notify_all()

    def _perform(self, kind: Callable[..., Change], timeline: str, **arguments: object) -> int:
        """Make a change in this thread. Return its result."""
        signal = ThreadSignal(self._environment.runtime.condition(self._lock))
        change = kind(timeline, signal, **arguments)
        self.submit(change)
        try:
            while True:
                with self._lock:
                    while not change.is_done and self._must_wait(change):
                        signal.changed.wait()
                    if change.is_done:
                        return change.result()
                self.lead(change)
        finally:
            self.abandon(change)

    def _must_wait(self, change: Change) -> bool:
        """Whether another thread writes now, or must write first. Under the lock."""
        queue = self._queue(change.timeline)
        return queue.is_led or not queue.waiting or queue.waiting[0] is not change

    def _queue(self, timeline: str) -> _Queue:
        """Under the lock."""
        name = timeline if self.is_shared else self._shard(timeline)
        queue = self._queues.get(name)
        if queue is None:
            queue = self._queues[name] = _Queue(self._store(timeline))
        return queue

    def _shard(self, timeline: str) -> int:
        return xxhash.xxh3_64_intdigest(timeline.encode()) % len(self._stores)

    def _store(self, timeline: str) -> KeyValue:
        return self._stores[self._shard(timeline)]

    # ---- writing a group

    def _write(self, queue: _Queue, group: Sequence[Change]) -> None:
        """Make the changes, or set their errors; those that have more to do stay undone."""
        backoff = Backoff(self._environment, _PAUSES, retry_s=self._retry_s)
        for _ in backoff:
            try:
                self._write_once(queue, [change for change in group if not change.is_done])
                return
            except Conflict as error:
                if error.kind != "unexpected_value":
                    raise
                contended = "Other writers of the timeline were faster each time: append again."
                backoff.note(backoff.unclear or Unavailable(contended, kind="log_contended"))
            except OutcomeUnknown as error:
                backoff.note(error)
            except Unavailable as error:
                if backoff.unclear is not None:
                    backoff.note(OutcomeUnknown(error.message, kind=error.kind))
                elif self.is_shared:
                    backoff.note(error)
                else:
                    raise
            self._forget(change.timeline for change in group)
        raise backoff.reason

    def _write_once(self, queue: _Queue, changes: Sequence[Change]) -> None:
        group = Group()
        reading = _Reading(queue.store, self.write_id_limits, self._environment.clock.monotonic_s())
        before: dict[str, Timeline | None] = {}
        states: dict[str, Timeline | None] = {}
        for change in changes:
            name = change.timeline
            if name not in before:
                before[name] = states[name] = self._find_timeline(name, reading)
            try:
                states[name] = change.plan(group, states[name], Keys.of(name, prefix=self._prefix), reading)
            except (Unavailable, OutcomeUnknown):
                raise
            except LakebedError as error:
                group.after.append(partial(change.finish, error))
                state = states[name]
                if state is not None:  # in memory it may be an older one: the error counts if it is not
                    group.expect_tail(state)
        if group.puts or group.deletes or group.expected:
            queue.store.write(group.puts, group.deletes, expected=group.expected)
            _GROUPS.add(1)
        _APPENDS.add(len(group.appended))
        with self._lock:
            for step in group.after:
                step()
            self._remember(states, group, queue)

    def _find_timeline(self, timeline: str, reading: _Reading) -> Timeline | None:
        """Return a timeline from memory, or else from the store. Cost: nothing, or a snapshot."""
        with self._lock:
            state = self._timelines.get(timeline)
        if state is not None and not state.is_stale:
            return state
        with reading.snapshot() as now:
            keys = Keys.of(timeline, prefix=self._prefix)
            return load_timeline(
                now, keys, timeline, known=state, now_s=self._environment.clock.monotonic_s(), limits=reading.limits
            )

    def _forget(self, timelines: Iterable[str]) -> None:
        """Forget timelines, so that they are read again before their next use: another writer may have changed them."""
        with self._lock:
            for timeline in timelines:
                state = self._timelines.get(timeline)
                if state is not None:
                    state.is_stale = True

    def _remember(self, states: Mapping[str, Timeline | None], group: Group, queue: _Queue) -> None:
        """Keep what is known after a write, and wake what waits for it. Under the lock."""
        now_s = self._environment.clock.monotonic_s()  # not before the write: it may have taken long
        for timeline, state in states.items():
            if state is None:
                self._timelines.pop(timeline, None)
            else:
                self._timelines[timeline] = state
                self._timelines.move_to_end(timeline)
                state.write_ids.settle(now_s, self.write_id_limits)
        if now_s >= self._sweep_s:
            is_done = self._forget_write_ids(now_s, own_queue=queue)
            self._sweep_s = now_s + (_SWEEP_S if is_done else _NEXT_SWEEP_S)
        self.watchers.wake(states)
        while len(self._timelines) > TIMELINE_COUNT_MAX:
            self._timelines.popitem(last=False)
        if self.is_shared:
            for timeline in group.tails:
                state = self._timelines.get(timeline)
                if state is not None:
                    state.forget_recent(state.mark.lsn)
            return
        for timeline, lsn, size in group.sizes:
            self._recent.append((timeline, lsn, size))
            self._recent_bytes += size
        while self._recent_bytes > self._recent_bytes_max:
            timeline, lsn, size = self._recent.popleft()
            self._recent_bytes -= size
            state = self._timelines.get(timeline)
            if state is not None:
                state.forget_recent(lsn)

    def _forget_write_ids(self, now_s: float, *, own_queue: _Queue) -> bool:
        """Forget old write ids of timelines to which no other thread appends. Return whether all old ones are gone.

        Under the lock.
        """
        is_done = True
        for timeline, state in self._timelines.items():
            queue = self._queues.get(timeline if self.is_shared else self._shard(timeline))
            if queue is None or queue is own_queue or not queue.is_led:
                is_done &= not state.write_ids.trim(now_s, self.write_id_limits)
        return is_done

    def _fail(self, changes: Sequence[Change], error: LakebedError) -> None:
        with self._lock:
            for change in changes:
                if not change.is_done:
                    change.finish(copy_error(error))

    # ---- waiting for more

    def look(self, after: Mapping[str, int]) -> dict[str, int]:
        """`wait_many` without waiting. Cost: for timelines that are not in memory a snapshot and a scan each."""
        if self.is_shared:
            return self._differing_in_stores(after)
        with self._lock:
            self._check_open()
            unknown_timelines = [timeline for timeline in after if self._timeline_in_memory(timeline) is None]
        for timeline in unknown_timelines:
            self._perform(Load, timeline)
        with self._lock:
            lasts = self._differing(after)
        return self._sure(lasts, after)

    def _timeline_in_memory(self, timeline: str) -> Timeline | None:
        """Return a timeline of an owned store that is in memory, as it is. Under the lock."""
        state = None if self.is_shared else self._timelines.get(timeline)
        return None if state is None or state.is_stale or state.end is End.DROPPED else state

    def _differing(self, after: Mapping[str, int]) -> dict[str, int]:
        """Under the lock."""
        states = ((timeline, self._timeline_in_memory(timeline), lsn) for timeline, lsn in after.items())
        return {
            timeline: state.mark.lsn for timeline, state, lsn in states if state is not None and state.mark.lsn != lsn
        }

    def _sure(self, lasts: dict[str, int], after: Mapping[str, int]) -> dict[str, int]:
        """Return the LSNs. If a timeline seems shorter, read it from the store, which this process may have lost."""
        shorter = {timeline: after[timeline] for timeline, last in lasts.items() if last < after[timeline]}
        return {**lasts, **self._differing_in_stores(shorter)} if shorter else lasts

    def _differing_in_stores(self, after: Mapping[str, int]) -> dict[str, int]:
        lasts: dict[str, int] = {}
        for store in self._stores:
            names = [timeline for timeline in after if self._store(timeline) is store]
            if not names:
                continue
            with self._snapshot(store) as now:
                tails = now.get_many([Keys.of(timeline, prefix=self._prefix).tail for timeline in names])
            for timeline, value in zip(names, tails, strict=True):
                with suppress(NotFound):
                    last = decode_tail(value, timeline=timeline).mark.lsn
                    if last != after[timeline]:
                        lasts[timeline] = last
        return lasts

    def _bounds_in(self, now: KeyValueSnapshot, keys: Keys, timeline: str) -> LogBounds:
        tail, horizon = now.get_many([keys.tail, keys.horizon])
        last = decode_tail(tail, timeline=timeline).mark.lsn
        return LogBounds(decode_horizon(horizon, timeline=timeline) + 1, last)

    def _snapshot(self, store: KeyValue) -> KeyValueSnapshot:
        """As `KeyValue.snapshot`; of a shared store as soon as it is there."""
        backoff = Backoff(self._environment, _SNAPSHOT_PAUSES, retry_s=self._retry_s)
        for _ in backoff:
            try:
                return store.snapshot()
            except Unavailable as error:
                if not self.is_shared or self._is_closed:
                    raise
                backoff.note(error)
        raise backoff.reason

    def _check_open(self) -> None:
        if self._is_closed:
            raise self._close_error()

    def _close_error(self) -> Closed:
        return Closed("The log was closed: open it again.")


def _take_group(waiting: deque[Change]) -> list[Change]:
    """Return the next group: changes from the front that can be one write."""
    group: list[Change] = []
    kinds: dict[str, str] = {}
    size = 0
    while waiting and len(group) < GROUP_CHANGE_COUNT_MAX:
        change = waiting[0]
        kind = kinds.get(change.timeline)
        if kind is not None and not kind == change.kind == Append.kind:
            break
        if group and size + change.size_bytes > GROUP_BYTES_MAX:
            break
        kinds[change.timeline] = change.kind
        size += change.size_bytes
        group.append(waiting.popleft())
    return group


class _Reading:
    """What changes may ask of a store."""

    def __init__(self, store: KeyValue, limits: WriteIdLimits, now_s: float) -> None:
        self._store = store
        self.limits = limits
        self.now_s = now_s

    def snapshot(self) -> KeyValueSnapshot:
        return self._store.snapshot()
