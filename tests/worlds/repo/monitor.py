"""Monitors a simulated repository below all its processes: judges every change when it happens.

Owns: what is really stored. It mirrors the records and staged rows of one repository from the changes that reach the
key-value store, and the names of all objects from the calls that reach the object store; after each change it says what
every branch shows (newest layer first, with dictionaries), asks the verb that made the change whether that is its
effect, and looks whether everything that is referred to is there. After each deletion of objects it looks whether
something needed is gone.

Invariants: what it sees has happened; it never raises into the code under test, but keeps what it found in
`violations`. Which verb made a change is known also when the change lands late: every verb has a handle of its own
(`MonitoredKeyValue.of`). Does not know: how the engine reads or writes; of the engine it uses the decoders alone.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeVar

from lakebed.errors import LakebedError
from lakebed.key_value.port import KeyValueSnapshot
from lakebed.objects.port import ObjectStore
from lakebed.repo.committed.store import Committed
from lakebed.repo.model.entry import address_ulid, decode_entry
from lakebed.repo.model.layout import DATA_FOLDER, METARANGE_FOLDER, RANGE_FOLDER, Keys, metarange_path, range_path
from lakebed.repo.model.model import TOMBSTONE, Branch, Commit, MetarangeRef, StagingToken, Tag
from lakebed.repo.model.options import DAY_MS
from lakebed.repo.records.records import decode_record
from lakebed.testing.wrapper import Call, StoreWrapper
from worlds.memory_key_value import MemoryKeyValue, MemorySpace
from worlds.promise import PromiseBroken
from worlds.repo.model import History, Ledger, Moment, State, alike, shown
from worlds.repo.model_verbs import Change, DeletePrefix, JudgedVerb, Known, Tagging

R = TypeVar("R")

_TOKEN_CHARACTERS: Final = 26


@dataclass(frozen=True, slots=True)
class _Held:
    """What one metarange holds, and on which objects it rests."""

    state: State
    files: frozenset[str]
    addresses: frozenset[str]


class RepositoryMonitor:
    """What is stored of one repository.

    Args:
        keys: of its records.
        store: the real one, of its namespace.
        committed: reads ranges of `store`, without any switching point.
        now_ms, tick: the simulation's time, and its next moment.
        undelete_days: of the repository's options.
        retention_days: of its rules; None: nothing expires.
    """

    def __init__(
        self,
        keys: Keys,
        *,
        store: ObjectStore,
        committed: Committed,
        now_ms: Callable[[], int],
        tick: Callable[[], int],
        undelete_days: int,
        retention_days: int | None,
    ) -> None:
        self.keys = keys
        self.now_ms = now_ms
        self.tick = tick
        self.undelete_days = undelete_days
        self.retention_days = retention_days
        self.space = MemorySpace()
        self.paths: set[str] = set()
        self.deleted_at: dict[str, int] = {}
        """Tick at which an object went."""
        self.ledger = Ledger()
        self.histories: dict[str, History] = {}
        self.tags: dict[str, list[tuple[int, str | None]]] = {}
        self.ever_expired: set[str] = set()
        self.branches: dict[str, Branch] = {}
        self.rows: defaultdict[str, dict[bytes, bytes]] = defaultdict(dict)
        """token -> path -> staged row."""
        self.marks: set[str] = set()
        """Tokens that wait for their cleanup."""
        self.live_tags: dict[str, Tag] = {}
        self.expired: dict[str, bytes] = {}
        self.boundary = b""
        self.grace_ms = 0
        """What a branch gave up is needed so long after the verb began that did so."""
        self.superseded: list[tuple[int, _Held]] = []
        """What branches and tags gave up: when the verb began that did so, and what."""
        self.violations: list[PromiseBroken] = []
        self.known = Known(self.ledger, self.histories, self.tags, self.ever_expired, set())
        self._store = store
        self._committed = committed
        self._held: dict[str, _Held] = {}

    # ---- what branches show

    def history(self, branch: str) -> History:
        """All moments of a branch name."""
        if branch not in self.histories:
            self.histories[branch] = History(branch)
        return self.histories[branch]

    def held(self, ref: MetarangeRef) -> _Held:
        """What a metarange holds; read once, when it is named first."""
        if ref.file is None:
            return _Held({}, frozenset(), frozenset())
        result = self._held.get(ref.file.id)
        if result is None:
            metarange = self._committed.open(ref)
            files = {metarange_path(ref.file.id), *(range_path(part.file.id) for part in metarange.ranges())}
            state = {
                path: value
                for batch in metarange.rows()
                for path, value in zip(*(column.to_pylist() for column in batch.columns), strict=True)
            }
            result = self._held[ref.file.id] = _Held(state, frozenset(files), _addresses(state.values()))
        return result

    def _base(self, record: Branch) -> _Held:
        return self.held(record.compacted or self.ledger.commits[record.commit_id].metarange)

    def shown(self, record: Branch) -> State:
        """What a branch shows, layer by layer from the oldest."""
        state = dict(self._base(record).state)
        for token in reversed(_tokens(record)):
            if token.clears is not None:
                hidden = token.clears.encode()
                state = {path: value for path, value in state.items() if not path.startswith(hidden)}
            for path, row in self.rows.get(token.id, {}).items():
                if row == TOMBSTONE:
                    state.pop(path, None)
                else:
                    state[path] = row
        return state

    # ---- changes of records

    def changed(self, verb: JudgedVerb | None, puts: Mapping[bytes, bytes], deletes: Iterable[bytes]) -> None:
        """A change has happened. `verb`: whose; None: of the set-up."""
        try:
            self._changed(verb, puts, deletes)
        except PromiseBroken as violation:
            self.violations.append(violation)
        except LakebedError as error:
            result = f"{verb} left what cannot be read: {type(error).__name__} {error}"
            self.violations.append(PromiseBroken(result))

    def _changed(self, verb: JudgedVerb | None, puts: Mapping[bytes, bytes], deletes: Iterable[bytes]) -> None:
        touched: set[str] = set()
        named: set[str] = set()
        changes: list[tuple[bytes, bytes | None]] = [*puts.items(), *((key, None) for key in deletes)]
        # Commits first: branches of the same change name them.
        changes.sort(key=lambda change: not change[0].startswith(self.keys.commit()))
        for key, value in changes:
            self._mirror(key, value, verb, touched=touched, named=named)
        for name, record in self.branches.items():
            if any(token.id in touched for token in _tokens(record)):
                named.add(name)
        for name in sorted(named):
            self._judge(name, verb)
        self._check_there(named, touched, puts)

    def _mirror(
        self, key: bytes, value: bytes | None, verb: JudgedVerb | None, *, touched: set[str], named: set[str]
    ) -> None:
        """Take one row over; note which tokens it touches and which branches it names."""
        keys = self.keys
        if key.startswith(keys.staging()):
            rest = key[len(keys.staging()) :]
            token, path = rest[:_TOKEN_CHARACTERS].decode(), rest[_TOKEN_CHARACTERS + 1 :]
            touched.add(token)
            if value is None:
                self.rows[token].pop(path, None)
            else:
                self.rows[token][path] = value
        elif key.startswith(keys.branch()):
            name = key[len(keys.branch()) :].decode()
            named.add(name)
            before = self.branches.pop(name, None)
            if value is not None:
                self.branches[name] = decode_record(value, Branch, key=key)
            after = self.branches.get(name)
            if before is not None and before.compacted != (None if after is None else after.compacted):
                self._note_superseded(before.compacted, verb)
        elif key.startswith(keys.commit()):
            self._commit(key[len(keys.commit()) :].decode(), value, verb)
        elif key.startswith(keys.tag()):
            self._tag(key[len(keys.tag()) :].decode(), value, verb)
        elif key.startswith(keys.cleanup()):
            token = key[len(keys.cleanup()) :].decode()
            (self.marks.discard if value is None else self.marks.add)(token)
        elif key.startswith(keys.expired()):
            id = key[len(keys.expired()) :].decode()
            if value is None:
                self.expired.pop(id, None)
            else:
                self.expired[id] = value
                self.ever_expired.add(id)
        elif key == keys.boundary and value is not None:
            self.boundary = value

    def _note_superseded(self, state: MetarangeRef | None, verb: JudgedVerb | None) -> None:
        if state is not None and verb is not None:
            self.superseded.append((verb.started_ms, self.held(state)))

    def _commit(self, id: str, value: bytes | None, verb: JudgedVerb | None) -> None:
        if value is None:
            if id in self._reached():
                raise PromiseBroken(f"{verb} deleted the record of {id}, which something descends from")
            return
        commit = decode_record(value, Commit, key=self.keys.commit(id))
        content = self.held(commit.metarange).state
        if not alike(self.ledger.contents.setdefault(id, content), content):
            raise PromiseBroken(f"{verb} changed what the commit {id} holds")
        self.ledger.commits[id] = commit

    def _tag(self, name: str, value: bytes | None, verb: JudgedVerb | None) -> None:
        before = self.live_tags.pop(name, None)
        if value is not None:
            self.live_tags[name] = decode_record(value, Tag, key=self.keys.tag(name))
        after = self.live_tags.get(name)
        if before is not None and after is None:
            self._note_superseded(self.ledger.commits[before.commit_id].metarange, verb)
        if before is not None and after is not None:
            raise PromiseBroken(f"{verb} moved the tag {name} from {before.commit_id} to {after.commit_id}")
        id = None if after is None else after.commit_id
        self.tags.setdefault(name, [(0, None)]).append((self.tick(), id))
        if verb is None:
            return
        if not isinstance(verb, Tagging) or verb.tag != name or verb.commit != id:
            raise PromiseBroken(f"{verb} made the tag {name} name {id}")
        self._count_effect(verb)

    def _judge(self, name: str, verb: JudgedVerb | None) -> None:
        """Ask the verb that made a change whether it explains what became of a branch."""
        history, record = self.history(name), self.branches.get(name)
        before = history.now
        head, state = (None, None) if record is None else (record.commit_id, self.shown(record))
        after = Moment(self.tick(), head, state, self.now_ms(), 0 if verb is None else verb.started_ms)
        if after.state == before.state and after.head == before.head:
            return
        if verb is not None:
            is_alike = after.head == before.head and alike(after.state or {}, before.state or {})
            # Who stages has an effect also when it stages the same once more; a move of such a kind is none.
            asks = verb.branch == name and (verb.may_be_staged or not is_alike)
            if asks and verb.explains(Change(self.known, history, after)):
                self._count_effect(verb)
                if isinstance(verb, DeletePrefix):
                    history.cleared.append((after.tick, verb.prefix))
            elif not is_alike or (before.state is None) != (after.state is None):
                history.moments.append(after)
                raise PromiseBroken(
                    f"{verb} (began at {verb.started}) changed {name}, head {before.head}, from {shown(before.state)} "
                    f"to {shown(after.state)}, head {after.head}"
                )
        history.moments.append(after)

    def _count_effect(self, verb: JudgedVerb) -> None:
        verb.effect_count += 1
        if verb.told is not None:
            raise PromiseBroken(f"{verb} was told: {verb.told}; and has had an effect since")
        if verb.effect_count > 1 and not verb.may_repeat:
            raise PromiseBroken(f"{verb} has had its effect {verb.effect_count} times")

    def _check_there(self, named: set[str], touched: set[str], puts: Mapping[bytes, bytes]) -> None:
        """Everything that begins to be referred to is there."""
        for name in named:
            record = self.branches.get(name)
            if record is not None:
                for pin in (self._base(record), self.held(self.ledger.commits[record.commit_id].metarange)):
                    self._must_be_there(pin.files | pin.addresses, f"the branch {name}")
        for name, tag in self.live_tags.items():
            if self.keys.tag(name) in puts:
                pin = self.held(self.ledger.commits[tag.commit_id].metarange)
                self._must_be_there(pin.files | pin.addresses, f"the tag {name}")
        for token in touched:
            rows = self.rows.get(token, {})
            fresh = [row for path, row in rows.items() if self.keys.token(token) + path in puts]
            self._must_be_there(_addresses(fresh), f"what is staged under {token}")

    def _must_be_there(self, paths: frozenset[str], who: str) -> None:
        gone = sorted(paths - self.paths)
        if gone:
            raise PromiseBroken(f"{who} names {gone[:3]}, which is not there (deleted: {gone[0] in self.deleted_at})")

    # ---- what is needed

    def _reached(self) -> set[str]:
        """Commits that branches and tags descend from."""
        heads = [record.commit_id for record in self.branches.values()]
        return self.ledger.ancestors([*heads, *(tag.commit_id for tag in self.live_tags.values())])

    def undeletable(self) -> set[str]:
        """Heads that deleted branches can be brought back with."""
        since_ms = self.now_ms() - self.undelete_days * DAY_MS
        return {
            last.head
            for history in self.histories.values()
            for last, gone in history.deletions()
            if last.head is not None and gone.begun_ms > since_ms
        }

    def needed(self) -> dict[str, str]:
        """Every object that has to be there now, and what needs it."""
        result: dict[str, str] = {}
        for name, record in self.branches.items():
            if record.compacted is not None:
                pin = self.held(record.compacted)
                result.update(dict.fromkeys(pin.files | pin.addresses, f"what is compacted on {name}"))
            for token in _tokens(record):
                rows = self.rows.get(token.id, {}).values()
                result.update(dict.fromkeys(_addresses(rows), f"what is staged on {name}"))
        for begun_ms, pin in self.superseded:
            if self.now_ms() - begun_ms < self.grace_ms:
                result.update(dict.fromkeys(pin.files | pin.addresses, "a reader of what was replaced lately"))
        heads = [record.commit_id for record in self.branches.values()]
        heads += [tag.commit_id for tag in self.live_tags.values()]
        young_ms = None if self.retention_days is None else self.now_ms() - self.retention_days * DAY_MS
        for id in self._reached():
            pin = self.held(self.ledger.commits[id].metarange)
            result.update(dict.fromkeys(pin.files, f"the commit {id[:8]}, which can be reached"))
            stored_at_ms = self.ledger.commits[id].stored_at_ms
            is_active = young_ms is None or stored_at_ms is None or stored_at_ms > young_ms
            if is_active and id not in self.expired and id not in heads:
                result.update(dict.fromkeys(pin.addresses, f"the commit {id[:8]}, which is kept"))
        for id in [*heads, *sorted(self.undeletable())]:
            pin = self.held(self.ledger.commits[id].metarange)
            result.update(dict.fromkeys(pin.files | pin.addresses, f"the head {id[:8]}"))
        return result

    def strays(self) -> list[str]:
        """Objects that nothing needs, once everything that waits is over."""
        needed = set(self.needed())
        if self.retention_days is None:
            for id in self._reached():
                needed |= self.held(self.ledger.commits[id].metarange).addresses
        folders = tuple(f"{folder}/" for folder in (DATA_FOLDER, RANGE_FOLDER, METARANGE_FOLDER))
        return sorted(path for path in self.paths - needed if path.startswith(folders))

    # ---- objects

    def stored(self, path: str) -> None:
        """An object was put."""
        self.paths.add(path)

    def deleted(self, paths: Sequence[str]) -> None:
        """Objects are gone: look whether anything misses them."""
        gone = self.paths.intersection(paths)
        self.paths -= gone
        self.deleted_at.update(dict.fromkeys(gone, self.tick()))
        if gone and not self.violations:
            needed = self.needed()
            for path in sorted(gone):
                if path in needed:
                    self.violations.append(PromiseBroken(f"{path} was deleted, and {needed[path]} needs it"))
                    return

    def lost(self, paths: Sequence[str]) -> None:
        """Objects are gone or cut short with the power: look whether anything misses them."""
        self.deleted(paths)

    def has_deleted_since(self, tick: int) -> bool:
        """Whether any object went since."""
        return any(at >= tick for at in self.deleted_at.values())


def _tokens(record: Branch) -> tuple[StagingToken, ...]:
    return (record.staging, *record.sealed)


def _addresses(values: Iterable[bytes]) -> frozenset[str]:
    """Addresses of ours."""
    addresses = (decode_entry(value, where="the monitor").address for value in values if value != TOMBSTONE)
    return frozenset(address for address in addresses if address_ulid(address) is not None)


class MonitoredStore(StoreWrapper):
    """Tells the monitor of every object that is created or deleted."""

    def __init__(self, inner: ObjectStore, monitor: RepositoryMonitor) -> None:
        super().__init__(inner)
        self._monitor = monitor

    def intercept(self, call: Call, perform: Callable[[], R]) -> R:
        """Make the call, then tell."""
        result = perform()
        if call.kind in ("put", "copy"):
            self._monitor.stored(call.path)
        elif call.kind == "delete":
            self._monitor.deleted(call.paths or (call.path,))
        return result


class MonitoredKeyValue:
    """The records, which tell the monitor of every change; a handle of one process and one verb."""

    is_local = True
    lost = None

    def __init__(self, monitor: RepositoryMonitor, verb: JudgedVerb | None = None) -> None:
        self.monitor = monitor
        self._verb = verb
        self._memory = MemoryKeyValue(monitor.space)
        self.get, self.peek, self.snapshot = self._memory.get, self._memory.peek, self._memory.snapshot

    def of(self, verb: JudgedVerb) -> MonitoredKeyValue:
        """The handle of one verb."""
        return MonitoredKeyValue(self.monitor, verb)

    get: Callable[[bytes], bytes | None]
    """See `KeyValue.get`."""
    peek: Callable[[bytes], bytes | None]
    """See `KeyValue.peek`."""
    snapshot: Callable[[], KeyValueSnapshot]
    """See `KeyValue.snapshot`."""

    def set(self, key: bytes, value: bytes) -> None:
        """See `KeyValue.set`."""
        self.write([(key, value)])

    def set_if(self, key: bytes, value: bytes | None, *, expected: bytes | None) -> None:
        """See `KeyValue.set_if`."""
        if value is None:
            self.write((), [key], expected={key: expected})
        else:
            self.write([(key, value)], expected={key: expected})

    def delete(self, key: bytes) -> None:
        """See `KeyValue.delete`."""
        self.write((), [key])

    def write(
        self,
        puts: Sequence[tuple[bytes, bytes]] = (),
        deletes: Iterable[bytes] = (),
        *,
        expected: Mapping[bytes, bytes | None] = {},
    ) -> None:
        """See `KeyValue.write`."""
        new = dict(puts)
        gone = [key for key in deletes if key not in new]
        self._memory.write(puts, gone, expected=expected)
        self.monitor.changed(self._verb, new, gone)

    def put_columns(self, keys: Any, values: Any, *, expected: Mapping[bytes, bytes | None] = {}) -> None:
        """See `KeyValue.put_columns`."""
        self._memory.put_columns(keys, values, expected=expected)
        self.monitor.changed(self._verb, dict(zip(list(keys), list(values), strict=True)), ())

    def maintain(self) -> None:
        """See `KeyValue.maintain`."""
        self._memory.maintain()

    def close(self) -> None:
        """See `KeyValue.close`. The rows stay."""
