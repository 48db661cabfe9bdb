"""Several databases in one memory, each process with its own wrapper of the store, so that faults strike one of them.

Owns: `FaultyDatabases`, what readers and checks see of its databases, and `check_every_fault`, which runs a verb once
for every fault at every call of it. Nothing runs in the background; time stands still until a test moves it.
"""

from __future__ import annotations

import random
import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Any, Final

from lakebed.errors import LakebedError, NotFound
from lakebed.kv.checkpoint import live_checkpoints
from lakebed.kv.collect import collect_once
from lakebed.kv.database import Database
from lakebed.kv.database_location import DatabaseLocation
from lakebed.kv.layout import parse_boundary, parse_manifest, parse_sst, parse_wal
from lakebed.kv.locations import file_ids
from lakebed.kv.manifests import ManifestLog
from lakebed.kv.model import Manifest
from lakebed.kv.options import CollectorOptions, DatabaseOptions, ReaderOptions
from lakebed.kv.reader import DatabaseReader
from lakebed.kv.wal_record import FENCE_BYTES
from lakebed.objects import open_store
from lakebed.objects.port import ObjectStore
from lakebed.runtime import Environment
from lakebed.testing.clock import ManualClock
from lakebed.testing.faulty import Crashed, Fault, FaultyStore
from lakebed.testing.recording import RecordingStore
from lakebed.testing.wrapper import Call
from worlds.table.world import InlineRuntime

AT_ONCE: Final = CollectorOptions(grace=timedelta(0), destroyed_grace=timedelta(0))


class SkewedClock(ManualClock):
    """A clock that shows another time than the databases's, by a constant."""

    def __init__(self, true: ManualClock, offset_ms: int) -> None:
        super().__init__()
        self._true = true
        self.offset_ms = offset_ms

    def now_ms(self) -> int:
        """The databases's time, wrongly."""
        return self._true.now_ms() + self.offset_ms


class _StoreClock(ManualClock):
    """The store's clock: the databases's, but while objects are put back with the times that they had."""

    def __init__(self, true: ManualClock) -> None:
        super().__init__()
        self._true = true
        self.held_ms: int | None = None

    def now_ms(self) -> int:
        """When what is put now was put."""
        return self._true.now_ms() if self.held_ms is None else self.held_ms


@dataclass(frozen=True)
class Saved:
    """What the databases held: body and time (Unix ms) of every object."""

    objects: Mapping[str, tuple[bytes, int]]


class FaultyDatabases:
    """Databases by name, in one memory."""

    def __init__(self, seed: int = 7) -> None:
        self.clock = ManualClock()
        self.clock.advance(100_000.0)
        self._store_clock = _StoreClock(self.clock)
        self.environment = Environment(clock=self.clock, rng=random.Random(seed), runtime=InlineRuntime())
        self.root: ObjectStore = open_store(
            f"memory://{uuid.uuid4().hex}/databases", environment=replace(self.environment, clock=self._store_clock)
        )

    def url(self, name: str) -> str:
        """A database's URL."""
        return f"{self.root.root_url}/{name}"

    def place(self, name: str, *, through: Any = None, clock: Any = None) -> DatabaseLocation:
        """A database's place, reached `through` a wrapper of the root, with its own clock if asked."""
        through = through or self.root
        environment = self.environment
        if clock is not None:
            environment = Environment(clock=clock, rng=environment.rng, runtime=environment.runtime)

        def open_url(url: str) -> ObjectStore:
            inside = url.removeprefix(self.root.root_url + "/")
            return through.sub(inside) if inside != url else open_store(url, environment=environment)

        return DatabaseLocation(through.sub(name), environment, open_url)

    def open(self, name: str, **settings: Any) -> Database:
        """Open for writing, over whatever lease there is, without background work."""
        options = DatabaseOptions(background=False, compaction=False, **settings)
        return Database.open(self.place(name), options=options, take_over=True)

    def open_after_destroy(self, name: str) -> Database:
        """Make a database anew where one was destroyed."""
        options = DatabaseOptions(background=False, compaction=False)
        return Database.open(self.place(name), options=options, take_over=True, after_destroy=True)

    def rows(self, name: str, checkpoint: str | None = None) -> dict[bytes, bytes]:
        """What a reader sees; nothing is written."""
        options = ReaderOptions(follow_latest=checkpoint is None, background=False)
        with DatabaseReader.open(self.place(name), checkpoint, options=options) as reader:
            return dict(reader.scan())

    def newest(self, name: str) -> Manifest:
        """The newest manifest."""
        return ManifestLog(self.place(name)).latest()

    def clone_pins(self, name: str) -> dict[str, str]:
        """Live checkpoints of clones: id by the clone's URL."""
        live = live_checkpoints(self.newest(name), self.clock.now_ms())
        return {checkpoint.id: str(checkpoint.owner.url) for checkpoint in live if checkpoint.owner.kind == "clone"}

    def objects(self, name: str = "") -> dict[str, bytes]:
        """Everything in a folder."""
        store = self.root.sub(name) if name else self.root
        return {meta.path: bytes(store.get(meta.path)) for meta in store.list("")}

    def save(self) -> Saved:
        """Everything that is there, for `put_back`."""
        return Saved({meta.path: (bytes(self.root.get(meta.path)), meta.modified_ms) for meta in self.root.list("")})

    def put_back(self, saved: Saved) -> None:
        """Make the memory hold just these objects, with their times; the clock stays where it is."""
        paths = [meta.path for meta in self.root.list("")]
        self.root.delete([path for path in paths if path not in saved.objects])
        for path, (body, modified_ms) in saved.objects.items():
            self._store_clock.held_ms = modified_ms
            self.root.put(path, body, durable=False)
        self._store_clock.held_ms = None

    def collect(self, *names: str) -> None:
        """Open and close each database (which ends what was under way), then collect it fully."""
        for name in names:
            manifest = self.newest(name)
            if manifest.destroyed_at_ms is None and manifest.initialized:
                self.open(name).close()
            collect_once(self.place(name), options=AT_ONCE)

    def unreferenced(self, name: str) -> list[str]:
        """Objects of a database that nothing needs: files, logs, manifests of no live version, and strangers."""
        log = ManifestLog(self.place(name))
        newest = log.latest()
        pins = {checkpoint.manifest_id for checkpoint in live_checkpoints(newest, self.clock.now_ms())}
        versions = [newest, *(log.load(pin) for pin in sorted(pins) if pin != newest.manifest_id)]
        named = set().union(*(file_ids(version) for version in versions))
        result = []
        for path, body in self.objects(name).items():
            manifest_id, wal_id, file_id = parse_manifest(path), parse_wal(path), parse_sst(path)
            if manifest_id is not None:
                needed = manifest_id == newest.manifest_id or manifest_id in pins
            elif wal_id is not None:
                tails = ((item.replay_after_wal_id, item.wal_id_last_seen) for item in versions)
                needed = len(body) == FENCE_BYTES or wal_id > newest.replay_after_wal_id
                needed = needed or any(after < wal_id <= last for after, last in tails)
            elif file_id is not None:
                needed = file_id in named
            else:
                needed = path == "lease.json" or parse_boundary(path) is not None
            if not needed:
                result.append(path)
        return result


@dataclass(frozen=True)
class FaultPoint:
    """One fault at one call of a verb."""

    index: int
    call: Call
    fault: Fault
    land_first: bool
    """A late change lands before the retry, not after it."""


def fault_points(trace: list[Call]) -> list[FaultPoint]:
    """Every fault that means something at every call of a verb."""
    result = []
    for index, call in enumerate(trace):
        faults = [Fault.ERROR_BEFORE, Fault.CRASH_BEFORE]
        if call.changes:
            faults += [Fault.LOST_REPLY, Fault.CRASH_AFTER, Fault.LATE, Fault.CRASH_LATE]
        for fault in faults:
            for land_first in (True, False) if fault in (Fault.LATE, Fault.CRASH_LATE) else (True,):
                result.append(FaultPoint(index, call, fault, land_first))
    return result


def check_every_fault(
    databases: FaultyDatabases,
    verb: Callable[[DatabaseLocation], object],
    retry: Callable[[], object],
    check: Callable[[], None],
    *,
    name: str,
) -> int:
    """Run a verb from the present state once for each fault point, retry it, and check; returns how many there were.

    Args:
        verb: takes a location whose store has the faults.
        retry: what a user does afterwards, over a sound store.
    """
    base = databases.save()
    recording = RecordingStore(databases.root)
    verb(databases.place(name, through=recording))
    check()
    calls = [call.call for call in recording.trace]
    assert calls
    todo = fault_points(calls)
    visited = set()
    for point in todo:
        databases.put_back(base)
        through = FaultyStore(databases.root, faults={point.index: point.fault})
        try:
            verb(databases.place(name, through=through))
            failed = False
        except (Crashed, LakebedError):
            failed = True
        assert [(index, met) for index, _, met in through.met] == [(point.index, point.fault)]
        visited.add(point)
        if point.land_first:
            through.land()
        try:
            retry()
        except NotFound:
            assert failed, f"{point}: the verb succeeded, and its retry finds nothing"
            raise
        through.land()
        try:
            check()
        except (AssertionError, LakebedError) as error:
            raise AssertionError(f"after {point}: {error}") from error
    assert visited == set(todo)
    databases.put_back(base)
    return len(visited)
