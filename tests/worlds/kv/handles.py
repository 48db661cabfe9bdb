"""The handles of simulated processes: `Owner` of a `Database`, `Follower` of a `DatabaseReader`.

Owns: noting what is asked before it is asked, and judging the answer when it comes, or leaving it to be judged at rest.
Invariants: a handle changes nothing of what it wraps; errors pass on, and whatever was asked then stays open. Threads
of one process may share an `Owner`.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Mapping
from datetime import timedelta
from typing import Any, Final

from lakebed.errors import Conflict
from lakebed.kv.batch import WriteBatch
from lakebed.kv.database import Database
from lakebed.kv.model import CheckpointScope
from lakebed.kv.options import CheckpointOptions, DatabaseOptions
from lakebed.kv.reader import DatabaseReader
from lakebed.lsm.model import Kind
from worlds.kv.model import Change, DatabaseHistory, Observation, Write, value_of, visible
from worlds.kv.world import DatabaseWorld, options, reader_options
from worlds.promise import PromiseBroken

TTL_MS: Final = 40
LIFETIME_MS: Final = 600_000
"""Of a reader's own checkpoint."""


class Owner:
    """A database open for writing, and all that was written through it.

    Args:
        name: unique among handles of the world.
        settings: of the database; by default the world's small ones.
    """

    def __init__(
        self,
        world: DatabaseWorld,
        folder: str,
        name: str,
        *,
        settings: DatabaseOptions | None = None,
        take_over: bool = True,
        after_destroy: bool = False,
        create: bool = True,
    ) -> None:
        self.world = world
        self.folder = folder
        self.name = name
        self.history: DatabaseHistory = world.known(folder).history
        self.writes: list[Write] = []
        self._opened_after = len(self.history.events)
        self.database = Database.open(
            world.place(folder),
            options=settings or options(),
            create=create,
            take_over=take_over,
            after_destroy=after_destroy,
        )
        world.counts["opened"] += 1

    # ---- writing

    def _note(self, changes: Callable[[int], tuple[Change, ...]], **facts: Any) -> Write:
        number = len(self.world.writes) + 1
        write = Write(number, changes(number), self.name, self.world.tick(), **facts)
        self.world.writes[number] = write
        self.writes.append(write)
        return write

    def _acknowledge(self, write: Write) -> None:
        write.outcome = "acknowledged"
        write.ended = self.world.tick()
        if write.durable:
            self.history.check_acknowledged(write)
        self.world.counts["durable writes" if write.durable else "other writes"] += 1

    def put(self, key: bytes, *, durable: bool = True, ttl: bool = False) -> None:
        """Put a value of its own."""
        ends = self.world.now_ms() + TTL_MS if ttl else None
        write = self._note(lambda n: (Change(key, Kind.PUT, value_of(n, 0), ends),), durable=durable)
        life = timedelta(milliseconds=TTL_MS) if ttl else None
        self.database.put(key, write.changes[0].value, ttl=life, await_durable=durable)
        self._acknowledge(write)

    def delete(self, key: bytes, *, durable: bool = True) -> None:
        """Delete a key."""
        write = self._note(lambda n: (Change(key, Kind.DELETE),), durable=durable)
        self.database.delete(key, await_durable=durable)
        self._acknowledge(write)

    def merge(self, key: bytes, *, durable: bool = True) -> None:
        """Append an operand of its own."""
        write = self._note(lambda n: (Change(key, Kind.MERGE, value_of(n, 0)),), durable=durable)
        self.database.merge(key, write.changes[0].value, await_durable=durable)
        self._acknowledge(write)

    def batch(self, keys: list[bytes], *, durable: bool = True) -> None:
        """Put some keys, and delete one in the middle, at once."""

        def changes(number: int) -> tuple[Change, ...]:
            puts = [Change(key, Kind.PUT, value_of(number, place)) for place, key in enumerate(keys)]
            if len(puts) > 2:
                puts[1] = Change(keys[1], Kind.DELETE)
            return tuple(puts)

        write = self._note(changes, durable=durable)
        batch = WriteBatch()
        for change in write.changes:
            if change.kind is Kind.DELETE:
                batch.delete(change.key)
            else:
                batch.put(change.key, change.value)
        self.database.write(batch, await_durable=durable)
        self._acknowledge(write)

    def set_if(self, key: bytes) -> None:
        """Read what is there for sure, and replace just that."""
        expected = self.get_surely(key)
        write = self._note(lambda n: (Change(key, Kind.PUT, value_of(n, 0)),), expected={key: expected})
        self._unless_refused(write, lambda: self.database.set_if(key, write.changes[0].value, expected=expected))

    def write_if(self, keys: list[bytes]) -> None:
        """Read some keys at one moment, for sure, and write all but the last if all are still so."""
        expected = self.snapshot_surely(keys)
        write = self._note(
            lambda n: tuple(Change(key, Kind.PUT, value_of(n, place)) for place, key in enumerate(keys[:-1] or keys)),
            expected=expected,
        )
        batch = WriteBatch()
        for change in write.changes:
            batch.put(change.key, change.value)
        self._unless_refused(write, lambda: self.database.write_if(batch, expected=expected))

    def _unless_refused(self, write: Write, call: Callable[[], object]) -> None:
        try:
            call()
        except Conflict:
            write.outcome = "refused"
            write.ended = self.world.tick()
            self.world.counts["refused"] += 1
            return
        self._acknowledge(write)

    def transact(self, read: list[bytes], written: list[bytes], *, serializable: bool) -> None:
        """Read some keys at one moment, then write some as if still at that moment."""
        began = self.world.tick()
        with self.database.transaction(isolation="serializable" if serializable else "snapshot") as transaction:
            seen = {key: transaction.get(key) for key in read}
            write = self._note(
                lambda n: tuple(Change(key, Kind.PUT, value_of(n, place)) for place, key in enumerate(written)),
                began=began,
                read=seen,
                is_serializable=serializable,
            )
            for change in write.changes:
                transaction.put(change.key, change.value)
            self._unless_refused(write, transaction.commit)

    # ---- reading

    def _floor(self) -> int:
        """Count of events that a read must see now: what the log held at opening, and what we were told of."""
        landed = self.history.landed
        messages = (
            landed[write.id] + 1 for write in self.writes if write.outcome == "acknowledged" and write.id in landed
        )
        return max(messages, default=self._opened_after)

    def _check(self, key: bytes, value: bytes | None, floor: int, now_ms: int, before: set[int], what: str) -> None:
        self.history.check_read(
            key,
            value,
            floor=max(floor, self._opened_after),
            now_ms=now_ms,
            until_ms=self.world.now_ms(),
            own=self.writes,
            before=before,
            what=f"{what} by {self.name}",
        )
        self.world.counts[what] += 1

    def _before(self) -> set[int]:
        return {write.id for write in self.writes if write.outcome == "acknowledged"}

    def get(self, key: bytes) -> None:
        """A plain get: never older than what this handle wrote or found."""
        floor, now_ms, before = self._floor(), self.world.now_ms(), self._before()
        self._check(key, self.database.get(key), floor, now_ms, before, "get")

    def get_many(self, keys: list[bytes]) -> None:
        """Several keys at one moment."""
        watch = self._watch("get_many", is_whole=False)
        values = self.database.get_many(keys)
        watch(dict(zip(keys, values, strict=True)))

    def get_surely(self, key: bytes) -> bytes | None:
        """A linearizable get: what is durable now, from any writer."""
        floor, now_ms = len(self.history.events), self.world.now_ms()
        value = self.database.get(key, linearizable=True)
        self.history.check_read(
            key,
            value,
            floor=floor,
            now_ms=now_ms,
            until_ms=self.world.now_ms(),
            what=f"linearizable get by {self.name}",
        )
        self.world.counts["linearizable gets"] += 1
        return value

    def snapshot_surely(self, keys: list[bytes]) -> dict[bytes, bytes | None]:
        """A linearizable snapshot: what is durable now of all keys, from any writer; the values of some."""
        watch = self._watch("linearizable snapshot", is_durable=True)
        with self.database.snapshot(linearizable=True) as snapshot:
            began = self.world.tick()
            values = dict(zip(keys, snapshot.get_many(keys), strict=True))
            content, _ = slowly(self.world, snapshot.scan())
        if any(content.get(key) != value for key, value in values.items()) and not self.world.has_ttl:
            raise PromiseBroken(f"a snapshot of {self.folder} held {values}, and then {content}")
        watch(content, began)
        return values

    def _watch(self, what: str, *, is_whole: bool = True, is_durable: bool = False) -> Callable[..., None]:
        """Begin to look; the returned call notes what was seen."""
        floor = len(self.history.events) if is_durable else max(self._floor(), self._opened_after)
        started, now_ms = self.world.tick(), self.world.now_ms()

        def note(content: Mapping[bytes, Any], ended: int | None = None) -> None:
            self.history.observations.append(
                Observation(
                    what=what,
                    by=self.name,
                    floor=floor,
                    started=started,
                    ended=ended or self.world.tick(),
                    now_ms=now_ms,
                    until_ms=self.world.now_ms(),
                    content=content,
                    is_durable=is_durable,
                    is_whole=is_whole,
                )
            )
            self.world.counts[what] += 1

        return note

    def scan(self, *, reverse: bool = False) -> None:
        """A long scan, with the others going on between its rows."""
        watch = self._watch("scan")
        content, began = slowly(self.world, self.database.scan(reverse=reverse), reverse=reverse)
        watch(content, began)

    def snapshot(self, keys: list[bytes]) -> None:
        """A snapshot, read twice."""
        watch = self._watch("snapshot")
        with self.database.snapshot() as snapshot:
            began = self.world.tick()
            content, _ = slowly(self.world, snapshot.scan())
            again = {key: snapshot.get(key) for key in keys}
            whole = dict(snapshot.scan())
        if whole != content and not self.world.has_ttl:
            raise PromiseBroken(f"a snapshot of {self.folder} held {content}, and then {whole}")
        if any(content.get(key) != value for key, value in again.items()) and not self.world.has_ttl:
            raise PromiseBroken(f"a snapshot of {self.folder} held {content}, and by key {again}")
        watch(content, began)

    # ---- verbs

    def linger(self, steps: int) -> None:
        """Let others run for a while."""
        for _ in range(steps):
            self.world.scheduler.switch("linger")

    def flush(self, *, memtable: bool = False) -> None:
        """Everything that was acknowledged before is durable."""
        before = [item for item in self.writes if item.outcome == "acknowledged"]
        self.database.flush(memtable=memtable)
        for write in before:
            self.history.check_acknowledged(write)
        self.world.counts["flushes"] += 1

    def checkpoint(self, scope: CheckpointScope, *, lifetime: timedelta | None = None) -> str:
        """A checkpoint that includes what its scope says."""
        writes = [item for item in self.writes if item.outcome == "acknowledged"]
        if scope is CheckpointScope.DURABLE:
            writes = [item for item in writes if item.durable]
        result = self.database.create_checkpoint(CheckpointOptions(lifetime=lifetime), scope=scope)
        index = self.world.known(self.folder).contents[result.manifest_id]
        for write in writes:
            self.history.check_acknowledged(write)
            if self.history.landed.get(write.id, -1) >= index:
                raise PromiseBroken(f"checkpoint {result.id} of {self.folder} misses write {write.id}, made before it")
        self.world.promise(self.folder, result.id)
        return result.id

    def close(self) -> None:
        """Close: whatever was acknowledged is durable then."""
        before = [item for item in self.writes if item.outcome == "acknowledged"]
        self.database.close()
        for write in before:
            self.history.check_acknowledged(write)


class Follower:
    """A reader, and what it must have seen by now."""

    def __init__(
        self,
        world: DatabaseWorld,
        folder: str,
        name: str,
        *,
        checkpoint: str | None = None,
        follow_latest: bool = False,
    ) -> None:
        self.world = world
        self.folder = folder
        self.name = name
        self.history = world.known(folder).history
        self.checkpoint = checkpoint
        self.is_mixed = follow_latest
        self._index = None if checkpoint is None else world.monitor.index_of(folder, checkpoint)
        self._floor = len(self.history.events)
        self.reader = DatabaseReader.open(
            world.place(folder), checkpoint=checkpoint, options=reader_options(follow_latest=follow_latest)
        )
        self._seen_ms = world.now_ms()
        world.counts["readers"] += 1

    def poll(self) -> None:
        """Look for news: what was durable before must be seen from now on."""
        floor = len(self.history.events)
        now_ms = self.world.now_ms()
        self.reader.poll_once()
        self._seen_ms = now_ms
        if self.checkpoint is None:
            self._floor = floor

    def get(self, key: bytes) -> None:
        """One key."""
        floor, now_ms = self._floor, self.world.now_ms()
        value = self.reader.get(key)
        if self._index is not None:
            self._check_fixed({key: value}, now_ms, is_whole=False)
            return
        self.history.check_read(
            key, value, floor=floor, now_ms=now_ms, until_ms=self.world.now_ms(), what=f"get by reader {self.name}"
        )
        self.world.counts["reader gets"] += 1

    def scan(self) -> None:
        """A long scan."""
        floor, now_ms, started = self._floor, self.world.now_ms(), self.world.tick()
        try:
            content, began = slowly(self.world, self.reader.scan())
        except Conflict as error:
            is_over = self.world.now_ms() - self._seen_ms >= LIFETIME_MS
            if self.is_mixed or self.checkpoint is not None or is_over:
                raise  # nothing pins it, or another's pin may have expired, or ours, which was not refreshed
            raise PromiseBroken(f"reader {self.name} of {self.folder} lost the version under its checkpoint") from error
        self.world.counts["reader scans"] += 1
        if self._index is not None:
            self._check_fixed(content, now_ms, is_whole=True)
            return
        observation = Observation(
            what="reader scan",
            by=self.name,
            floor=floor,
            started=started,
            ended=began,
            now_ms=now_ms,
            until_ms=self.world.now_ms(),
            content=content,
            is_durable=True,
        )
        self.history.observations.append(observation)

    def _check_fixed(self, content: dict[bytes, Any], now_ms: int, *, is_whole: bool) -> None:
        assert self._index is not None
        state = self.history.states[self._index]
        seen = {key: value for key, value in content.items() if value is not None}
        for when_ms in {now_ms, self.world.now_ms()}:
            expected = visible(state, when_ms)
            if seen == (expected if is_whole else {key: expected[key] for key in content if key in expected}):
                self.world.counts["fixed reads"] += 1
                return
        raise PromiseBroken(f"a reader on checkpoint {self.checkpoint} of {self.folder} saw {content}, not {expected}")

    def close(self) -> None:
        """Let go of its checkpoint."""
        self.reader.close()


def slowly(
    world: DatabaseWorld, rows: Iterator[tuple[bytes, bytes]], *, reverse: bool = False
) -> tuple[dict[bytes, bytes], int]:
    """All rows of a scan, with others at work between them, and the moment at which it had surely begun.

    They must come in order.
    """
    content: dict[bytes, bytes] = {}
    last: bytes | None = None
    began: int | None = None
    for key, value in rows:
        began = began or world.tick()
        if last is not None and (key >= last if reverse else key <= last):
            raise PromiseBroken(f"a scan gave {key!r} after {last!r}")
        last = key
        content[key] = value
        world.scheduler.switch("between rows")
    return content, began or world.tick()


def ask_checkpoint(world: DatabaseWorld, folder: str, rng: random.Random) -> None:
    """Ask from outside for a checkpoint: of the latest, or of another one's version."""
    floor, now_ms = len(world.known(folder).history.events), world.now_ms()
    live = [item for item in world.promises.values() if item.folder == folder]
    lifetime = timedelta(milliseconds=rng.choice((30, 200))) if rng.random() < 0.4 else None
    if live and rng.random() < 0.4:
        source = rng.choice(live)
        result = world.admin(folder).create_checkpoint(CheckpointOptions(lifetime=lifetime, source=source.id))
        promise = world.promise(folder, result.id)
        if promise.index != source.index:
            raise PromiseBroken(f"checkpoint {result.id} of {folder} is not what its source {source.id} is")
    else:
        promise = world.promise(folder, world.admin(folder).create_checkpoint(CheckpointOptions(lifetime=lifetime)).id)
        if promise.index < floor:
            raise PromiseBroken(f"checkpoint {promise.id} of {folder} misses what was durable before")
    if (lifetime is None) != (promise.expires_at_ms is None):
        raise PromiseBroken(f"checkpoint {promise.id} of {folder} was to live for {lifetime}")
    if lifetime is not None and promise.expires_at_ms is not None:
        lifetime_ms = lifetime // timedelta(milliseconds=1)
        if not now_ms + lifetime_ms <= promise.expires_at_ms <= world.now_ms() + lifetime_ms:
            raise PromiseBroken(
                f"checkpoint {promise.id} of {folder} ends at {promise.expires_at_ms}, not after {lifetime}"
            )
