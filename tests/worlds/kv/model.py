"""What a database must hold, as a dictionary: the model that simulations and property tests compare databases with.

Owns: `DatabaseHistory` (every write of one database in the order in which it became durable, and the dictionary after
each), `Write`, what a caller asked for and was told, and the judgement of everything that is read.

Invariants: the model knows no file, no manifest and no lock. Every value it is told is unique and begins with the
number of its write, so what is read tells which writes it rests on. A write is one event: the dictionary between two
events is all that may ever be seen of several keys at once.

Does not know: where events come from. `worlds.kv.monitor` learns them from the store itself.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence, Set
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

from lakebed.lsm.model import Kind
from worlds.promise import PromiseBroken


@dataclass(frozen=True, slots=True)
class Row:
    """What a key has: the value last put with its end, and the operands above it."""

    base: bytes | None = None
    expires_at_ms: int | None = None
    """Of the base, in Unix ms; None: never."""
    operands: tuple[bytes, ...] = ()

    @property
    def written(self) -> bytes | None:
        """The value as long as the base lives."""
        return None if self.base is None and not self.operands else (self.base or b"") + b"".join(self.operands)

    def value_at(self, now_ms: int) -> bytes | None:
        """What a read finds at a time."""
        if self.expires_at_ms is None or now_ms < self.expires_at_ms:
            return self.written
        return b"".join(self.operands) if self.operands else None


ABSENT = Row()

Rows = dict[bytes, Row]
"""By key, expired ones included."""


class Change(NamedTuple):
    """What a write does to one key."""

    key: bytes
    kind: Kind
    value: bytes = b""
    expires_at_ms: int | None = None


@dataclass(eq=False, slots=True)
class Write:
    """One atomic write: what was asked, when, and what its writer was told. Times are ticks of one counter."""

    id: int
    changes: tuple[Change, ...]
    by: str
    """The handle through which it went."""
    started: int
    durable: bool = True
    ended: int | None = None
    outcome: Literal["open", "acknowledged", "refused"] = "open"
    """An open one may have happened, happen later, or never."""
    expected: Mapping[bytes, bytes | None] = field(default_factory=dict)
    """Conditional writes: keys, and what each had to hold."""
    began: int | None = None
    """Transaction: the tick at which it began."""
    read: Mapping[bytes, bytes | None] = field(default_factory=dict)
    """Transaction: what it read of which key."""
    is_serializable: bool = False


@dataclass(eq=False, slots=True)
class Event:
    """One step of a history: a write that became durable, a fence, or other contents put in place by a restore."""

    tick: int
    write: Write | None
    changes: tuple[Change, ...]
    log_id: int


@dataclass(frozen=True, slots=True)
class Observation:
    """Several keys read at one moment, to be judged when all is known."""

    what: str
    by: str
    """The handle that read."""
    floor: int
    """Count of events that had to be visible."""
    started: int
    ended: int
    now_ms: int
    until_ms: int
    content: Mapping[bytes, bytes | None]
    """Every key that was asked for; for a scan, every key there is."""
    is_durable: bool
    """Whether only what is durable may be seen: all but the writer's own reads."""
    is_whole: bool = True
    """False: keys that are missing from `content` were not asked for."""


def value_of(write_id: int, position: int) -> bytes:
    """A value that no other write has, and that tells whose it is."""
    return b"%d.%d;" % (write_id, position)


def writes_in(value: bytes) -> list[int]:
    """Numbers of the writes that made a value: one, or all those whose operands were appended to each other."""
    return [int(token.partition(b".")[0]) for token in value.split(b";") if token]


def apply_change(state: Rows, change: Change, now_ms: int) -> None:
    """Change the dictionary in place; operands append."""
    if change.kind is Kind.PUT:
        state[change.key] = Row(change.value, change.expires_at_ms)
    elif change.kind is Kind.DELETE:
        state.pop(change.key, None)
    else:
        row = state.get(change.key, ABSENT)
        is_dead = row.expires_at_ms is not None and row.expires_at_ms <= now_ms
        base, ends = (None, None) if is_dead else (row.base, row.expires_at_ms)
        state[change.key] = Row(base, ends, (*row.operands, change.value))


def visible(state: Rows, now_ms: int) -> dict[bytes, bytes]:
    """What can be read at a time, in the order of the keys."""
    result = {key: state[key].value_at(now_ms) for key in sorted(state)}
    return {key: value for key, value in result.items() if value is not None}


class DatabaseHistory:
    """One database's history.

    Attributes:
        events: what became durable, in order.
        states: ``states[i]`` is the dictionary after the first `i` events.
        ends: for each log object, in order, (its id, count of events up to and with it).
        landed: number of a write -> index of its event.
        keeps_all: False where only the newest change of each key becomes known: where there is no log.
    """

    def __init__(self, url: str) -> None:
        self.url = url
        self.events: list[Event] = []
        self.states: list[Rows] = [{}]
        self.ends: list[tuple[int, int]] = [(0, 0)]
        self.landed: dict[int, int] = {}
        self.keeps_all = True
        self.last_sequence = 0
        self.observations: list[Observation] = []

    # ---- learning

    @property
    def state(self) -> Rows:
        """The dictionary now."""
        return self.states[-1]

    def add(self, event: Event, *, now_ms: int, content: Rows | None = None) -> None:
        """Append an event; `content` replaces everything."""
        state = dict(self.state) if content is None else dict(content)
        for change in event.changes:
            apply_change(state, change, now_ms)
        if event.write is not None:
            if event.write.id in self.landed:
                raise PromiseBroken(f"{self.url}: write {event.write.id} became durable twice")
            self.landed[event.write.id] = len(self.events)
        self.events.append(event)
        self.states.append(state)
        if self.ends[-1][0] == event.log_id:
            self.ends[-1] = (event.log_id, len(self.events))
        else:
            self.ends.append((event.log_id, len(self.events)))

    def index_at(self, log_id: int) -> int:
        """Count of events up to and with a log object."""
        for last, index in reversed(self.ends):
            if last <= log_id:
                return index
        return 0

    # ---- judging

    def check_acknowledged(self, write: Write) -> None:
        """A write that was called durable is in the log, whole."""
        if write.id in self.landed:
            event = self.events[self.landed[write.id]]
            if self.keeps_all and len(event.changes) != len(write.changes):
                raise PromiseBroken(f"{self.url}: of write {write.id} only {len(event.changes)} changes are durable")
            return
        if all(change.kind is Kind.DELETE for change in write.changes) and any(
            change == write.changes[0]
            for event in self.events
            if event.tick > write.started
            for change in event.changes
        ):
            return  # tombstones bear no number: one of its time will do
        if not self.keeps_all and self.events and self.events[-1].tick > write.started:
            return
        raise PromiseBroken(f"{self.url}: write {write.id} by {write.by} was acknowledged and is not durable")

    def admissible(self, key: bytes, *, floor: int, now_ms: int, until_ms: int) -> set[bytes | None]:
        """Every value that a key has had since the first `floor` events, at any time between two."""
        items: set[bytes | None] = set()
        for state in self.states[floor:]:
            row = state.get(key, ABSENT)
            items |= {row.value_at(now_ms), row.value_at(until_ms)}
        return items

    def check_read(
        self,
        key: bytes,
        value: bytes | None,
        *,
        floor: int,
        now_ms: int,
        until_ms: int,
        own: Iterable[Write] = (),
        before: Set[int] = frozenset(),
        what: str = "get",
    ) -> None:
        """One key, read between two moments.

        Args:
            floor: count of events that had to be visible.
            own: writes through the same handle; those that are not durable yet may be visible.
            before: numbers of those that had been acknowledged before the read: they must be visible.
        """
        pending = [
            item for item in own if item.id not in self.landed and any(change.key == key for change in item.changes)
        ]
        numbers = {item.id for item in pending}
        if value is not None and not numbers.isdisjoint(writes_in(value)):
            return
        if value is None and any(is_deleted_by(item, key) for item in pending):
            return
        may_be = self.admissible(key, floor=floor, now_ms=now_ms, until_ms=until_ms)
        if value not in may_be:
            raise PromiseBroken(
                f"{self.url}: {what} of {key!r} gave {value!r}, and only {sorted(map(str, may_be))} could be"
            )
        # Tombstones bear no number, so it is not known when they became durable; what came later may hide the others.
        newest = max(writes_in(value), default=0) if value is not None else 0
        missed = [
            item.id for item in pending if item.id in before and item.id > newest and not is_deleted_by(item, key)
        ]
        if missed:
            raise PromiseBroken(
                f"{self.url}: {what} of {key!r} gave {value!r}, although {missed} had been written before"
            )

    def check_all(self, writes: Sequence[Write]) -> None:
        """Judge what had to wait until all is known: refusals, compare-and-sets, transactions and observations."""
        for write in writes:
            if write.outcome == "refused" and write.id in self.landed:
                raise PromiseBroken(f"{self.url}: write {write.id} was refused, and became durable")
        for index, event in enumerate(self.events):
            if event.write is not None:
                self._check_expected(event.write, index)
            if event.write is not None and event.write.began is not None:
                self._check_transaction(event.write, index)
        for observation in self.observations:
            self._check_observation(observation, writes)

    def _check_expected(self, write: Write, index: int) -> None:
        for key, value in write.expected.items():
            before = self.states[index].get(key, ABSENT).written
            if before != value:
                raise PromiseBroken(f"{self.url}: {write.id} expected {value!r}, and happened on {before!r} of {key!r}")

    def _check_transaction(self, write: Write, index: int) -> None:
        """What it read was true at one moment since it began; no other write changed what it wrote (or read) since."""
        guarded = {change.key for change in write.changes}
        if write.is_serializable:
            guarded |= set(write.read)
        for start in range(index, -1, -1):
            state = self.states[start]
            if all(state.get(key, ABSENT).written == value for key, value in write.read.items()):
                return
            if start and any(change.key in guarded for change in self.events[start - 1].changes):
                break
        raise PromiseBroken(
            f"{self.url}: transaction {write.id} read {dict(write.read)}, and no moment before it has that without a "
            f"write to {sorted(guarded)} in between"
        )

    def _check_observation(self, seen: Observation, writes: Sequence[Write]) -> None:
        values = (value for value in seen.content.values() if value is not None)
        numbers = {number for value in values for number in writes_in(value)}
        if not seen.is_durable and not self.keeps_all:
            return  # between two files, only the writer knows what there was
        if not seen.is_durable:
            # The writer's own reads include what is not durable yet; what never became so leaves nothing to compare.
            required = {
                write.id
                for write in writes
                if write.by == seen.by and write.outcome == "acknowledged" and (write.ended or 0) < seen.started
                if any(change.kind is not Kind.DELETE for change in write.changes)
            }
            if not (required | numbers) <= self.landed.keys():
                return
            floor = max([seen.floor, *(self.landed[number] + 1 for number in required)])
        else:
            floor = seen.floor
        doubtful = set() if seen.is_durable else lone_tombstones(writes, seen.by)
        for state in self._states_seen(seen, floor):
            if matches(state, seen, doubtful):
                return
        raise PromiseBroken(
            f"{self.url}: {seen.what} by {seen.by} saw {dict(seen.content)}, which was never so since event {floor}: "
            f"{[visible(state, seen.now_ms) for state in self._states_seen(seen, floor)]}"
        )

    def _states_seen(self, seen: Observation, floor: int) -> list[Rows]:
        """The dictionaries of the moments that may have been seen."""
        last = floor
        for index in range(floor, len(self.events)):
            event = self.events[index]
            if event.tick > seen.ended and (seen.is_durable or is_later(event, seen.ended)):
                break
            last = index + 1
        return self.states[floor : last + 1]


def is_later(event: Event, tick: int) -> bool:
    """Whether an event cannot have been in its writer's memory at a time; of lone tombstones it is not known."""
    if event.write is not None:
        return event.write.started > tick
    return not event.changes


def is_deleted_by(write: Write, key: bytes) -> bool:
    """Whether a write leaves a tombstone on a key, or lets it expire."""
    return any(
        change.key == key and (change.kind is Kind.DELETE or change.expires_at_ms is not None)
        for change in write.changes
    )


def lone_tombstones(writes: Sequence[Write], by: str) -> set[bytes]:
    """Keys that a handle deleted without being told that it is durable: whether it was, no number tells."""
    return {
        write.changes[0].key
        for write in writes
        if write.by == by and len(write.changes) == 1 and write.changes[0].kind is Kind.DELETE
        if write.outcome != "acknowledged" or not write.durable
    }


def matches(state: Rows, seen: Observation, doubtful: Set[bytes] = frozenset()) -> bool:
    """Whether an observation may have been made of a dictionary; what expired meanwhile may be there or not.

    Args:
        doubtful: keys that may have been deleted in the reader's own memory.
    """
    for key in set(state) | set(seen.content) if seen.is_whole else seen.content:
        row, value = state.get(key, ABSENT), seen.content.get(key)
        is_deleted = value is None and key in doubtful
        if not is_deleted and value not in (row.value_at(seen.now_ms), row.value_at(seen.until_ms)):
            return False
    return True
