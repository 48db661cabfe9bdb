"""Repositories in memory for tests: contexts, what branches hold as dictionaries, and traps for one call.

Owns: `open_context`, short functions that write and read paths, and `Trap`, which counts the calls of a context's
key-value store and object store and makes exactly one of them fail. Invariants: after a crash every later call of that
context fails too and has no effect, so that nothing cleans up for it; what was stored stays for the next context of the
same `MemoryRepository`.
"""

from __future__ import annotations

import copy
import hashlib
import random
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import count
from typing import Any, Literal, TypeVar

import pyarrow as pa

from lakebed.clock import Clock
from lakebed.errors import OutcomeUnknown
from lakebed.key_value.open import open_key_value
from lakebed.key_value.port import KeyValue
from lakebed.lsm.cache import BlockCache
from lakebed.metrics import counting_lock
from lakebed.objects.open import open_store
from lakebed.repo.committed.store import EMPTY_METARANGE
from lakebed.repo.heads.commit import new_commit
from lakebed.repo.heads.write import delete, stage, stage_many
from lakebed.repo.model.entry import decode_entry, new_address
from lakebed.repo.model.model import Branch, DiffKind, Entry, MetarangeRef, RepositoryRecord
from lakebed.repo.model.options import RangeOptions, RepositoryOptions
from lakebed.repo.objects import data
from lakebed.repo.records.context import RepositoryContext, make_context
from lakebed.repo.records.records import encode_record, new_token
from lakebed.repo.references.branches import load_branch
from lakebed.repo.references.commits import load_commit
from lakebed.repo.staging.uncommitted import uncommitted
from lakebed.repo.staging.view import at_reference
from lakebed.runtime import Environment
from lakebed.testing.clock import ManualClock
from lakebed.testing.faulty import Crashed
from lakebed.testing.wrapper import Call, StoreWrapper
from worlds.key_value_wrapper import KeyValueCall, KeyValueWrapper
from worlds.memory_key_value import MemoryKeyValue, MemorySpace

R = TypeVar("R")

TrapMode = Literal["crash before", "crash after", "reply lost", "request lost"]
"""What the call does. The first two end the process; the last two raise `OutcomeUnknown` from a write."""

_numbers = count()

SMALL_RANGES = RangeOptions(entry_count_min=2, raggedness=4, entry_count_max=8)
"""Ranges of a few entries, so that small tests have many."""


class Trap:
    """Counts calls, and springs at one of them.

    Args:
        at: the call, from 0; None: never, only count.
        mode: what happens there.
    """

    def __init__(self, at: int | None = None, mode: TrapMode = "crash before") -> None:
        self._at = at
        self._mode = mode
        self._lock = counting_lock()
        self.call_count = 0
        self.writes: list[int] = []
        """The calls that change records: only their outcome can be unknown."""
        self.is_dead = False
        self.has_sprung = False

    def pass_by(self, perform: Callable[[], R], *, changes: bool) -> R:
        """Make a call, or not, or crash. `changes`: it is a write, whose outcome can be unknown."""
        with self._lock:
            if self.is_dead:
                raise Crashed("the process is dead")
            springs = self.call_count == self._at
            if changes:
                self.writes.append(self.call_count)
            self.call_count += 1
            self.has_sprung |= springs
            self.is_dead = springs and self._mode in ("crash before", "crash after")
        if not springs or (not changes and not self.is_dead):
            return perform()
        if self._mode in ("crash before", "request lost"):
            raise Crashed("crash") if self.is_dead else OutcomeUnknown("no reply", kind="outcome_unknown")
        perform()
        raise Crashed("crash") if self.is_dead else OutcomeUnknown("no reply", kind="outcome_unknown")

    def calls(self, mode: TrapMode) -> Sequence[int]:
        """Of the calls that were counted, those worth a trap: a crash after a read is one before the next call."""
        return range(self.call_count) if mode == "crash before" else self.writes


class Pause(Trap):
    """Lets another process act before one of the calls: the calling process was paused meanwhile.

    Args:
        at: the call, from 0.
        act: what happens before it.
    """

    def __init__(self, at: int, act: Callable[[], object]) -> None:
        super().__init__(at)
        self._act = act

    def pass_by(self, perform: Callable[[], R], *, changes: bool) -> R:
        """Make a call, perhaps later."""
        with self._lock:
            sleeps = self.call_count == self._at
            self.call_count += 1
            self.has_sprung |= sleeps
        if sleeps:
            self._act()
        return perform()


class TrappedStore(StoreWrapper):
    """An object store behind a trap. A put whose reply is lost is what the store's own retries are for: it passes."""

    def __init__(self, inner: Any, trap: Trap) -> None:
        super().__init__(inner)
        self._trap = trap

    def intercept(self, call: Call, perform: Callable[[], R]) -> R:
        """Make the call past the trap."""
        return self._trap.pass_by(perform, changes=False)


class TrappedKeyValue(KeyValueWrapper):
    """A key-value store behind a trap; a scan is one call."""

    def __init__(self, inner: KeyValue, trap: Trap) -> None:
        super().__init__(inner)
        self._trap = trap

    def intercept(self, call: KeyValueCall, perform: Callable[[], R]) -> R:
        """Make the call past the trap."""
        return self._trap.pass_by(perform, changes=call.changes)


@dataclass
class MemoryRepository:
    """Where a repository is: rows, objects, a clock. Every context of it is a process of its own."""

    environment: Environment = field(default_factory=Environment)
    options: RepositoryOptions = field(default_factory=lambda: RepositoryOptions(ranges=SMALL_RANGES, committer="ada"))
    records_url: str | None = None
    """Of the key-value store; None: `space`."""
    record: RepositoryRecord = field(init=False)
    space: MemorySpace = field(init=False)
    url: str = field(init=False)

    def __post_init__(self) -> None:
        self.record = RepositoryRecord("01", "here", "main", self.environment.clock.now_ms())
        self.space = MemorySpace(environment=self.environment)
        self.url = f"memory://repository-home-{next(_numbers)}"  # not by the seed: two tests may have the same
        with open_context(self) as home:
            first = new_commit(
                home, parents=(), metarange=EMPTY_METARANGE, message="begin", metadata=None, committer="ada"
            )
            home.key_value.set(home.keys.commit(first.id), encode_record(first.commit))
            make_branch(home, "main", first.id)


def copy_of(place: MemoryRepository) -> MemoryRepository:
    """The same repository with records of its own, over the same objects, which do not change."""
    made = copy.copy(place)
    made.space = MemorySpace(environment=place.environment)
    with MemoryKeyValue(place.space).snapshot() as snapshot:
        MemoryKeyValue(made.space).write(list(snapshot.scan()))
    return made


def copy_of_all(place: MemoryRepository, *, clock: Clock) -> MemoryRepository:
    """The same repository with records and objects of its own, as old as those, for a collection."""
    made = copy_of(place)
    made.environment = Environment(clock=clock, rng=random.Random(next(_numbers)))
    made.url = f"memory://repository-home-{next(_numbers)}"
    source = open_store(place.url)
    for meta in source.list():
        then = Environment(clock=ManualClock(start_ms=meta.modified_ms))
        open_store(made.url, environment=then).put(meta.path, source.get(meta.path))
    return made


@contextmanager
def open_context(
    place: MemoryRepository, *, trap: Trap | None = None, key_value: KeyValue | None = None
) -> Iterator[RepositoryContext]:
    """A context of a repository, as a process of its own; `key_value` replaces the repository's."""
    store: Any = open_store(place.url, environment=place.environment)
    inner: Any = key_value
    if inner is None and place.records_url is not None:
        inner = open_key_value(place.records_url, environment=place.environment)
    elif inner is None:
        inner = MemoryKeyValue(place.space)
    home = make_context(
        "analytics",
        place.record,
        store=store if trap is None else TrappedStore(store, trap),
        key_value=inner if trap is None else TrappedKeyValue(inner, trap),
        options=place.options,
        environment=place.environment,
        cache=BlockCache(8 << 20),
    )
    try:
        yield home
    finally:
        home.committed.close()
        if key_value is None:
            inner.close()


def make_branch(home: RepositoryContext, name: str, commit_id: str) -> None:
    """A branch at a commit."""
    home.key_value.set(home.keys.branch(name), encode_record(Branch(commit_id, new_token(home.environment))))


def entry_of(home: RepositoryContext, text: str) -> Entry:
    """An entry of a new object that holds a text: entries of equal texts are the same."""
    checksum = hashlib.md5(text.encode(), usedforsecurity=False).hexdigest()
    return Entry(new_address(home.environment), len(text), checksum, home.now_ms(), metadata={"text": text})


def put(home: RepositoryContext, branch: str, path: str, text: str) -> None:
    """Stage a text."""
    stage(home, branch=branch, path=path, entry=entry_of(home, text))


def put_many(home: RepositoryContext, branch: str, texts: Mapping[str, str]) -> None:
    """Stage texts by path, in one write."""
    stage_many(home, branch=branch, entries=[(path, entry_of(home, text)) for path, text in texts.items()])


def remove(home: RepositoryContext, branch: str, path: str) -> None:
    """Delete a path."""
    delete(home, branch=branch, path=path)


def contents(home: RepositoryContext, reference: str) -> dict[str, str]:
    """What a reference shows: texts by path."""
    with at_reference(home, reference) as view:
        return _texts(view.rows(None, None))


def bodies(home: RepositoryContext, reference: str) -> dict[str, bytes]:
    """Every object at a reference, read."""
    with at_reference(home, reference) as view:
        return {entry.path: bytes(data.read(home, entry.entry)) for entry in view.list() if entry.entry is not None}


def committed_contents(home: RepositoryContext, ref: MetarangeRef) -> dict[str, str]:
    """What a metarange holds."""
    return _texts(home.committed.open(ref).rows())


def _texts(batches: Iterable[pa.RecordBatch]) -> dict[str, str]:
    return {
        path.decode(): decode_entry(value, where=path.decode()).metadata["text"]
        for batch in batches
        for path, value in zip(*(column.to_pylist() for column in batch.columns), strict=True)
    }


def uncommitted_of(home: RepositoryContext, branch: str) -> dict[str, DiffKind]:
    """What differs between a branch and its head."""
    with home.key_value.snapshot() as snapshot:
        record, _ = load_branch(home, branch, snapshot=snapshot)
        return {
            path.decode(): DiffKind(kind)
            for batch in uncommitted(home, snapshot, record)
            for path, kind in zip(batch.column("path").to_pylist(), batch.column("kind").to_pylist(), strict=True)
        }


def head_of(home: RepositoryContext, branch: str) -> dict[str, str]:
    """What a branch's head holds."""
    record, _ = load_branch(home, branch)
    return committed_contents(home, load_commit(home, record.commit_id).metarange)
