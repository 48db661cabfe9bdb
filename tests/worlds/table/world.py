"""A real table with a brute-force model of it: what may be gone, what must be there, after any history.

Owns: `TableWorld`, which does random steps on a table of tiny files and, independently, on plain sets.

Invariants: the model knows nothing of manifests, intervals or c: a version is an id and a set of paths. `check`
compares it with what lies on the store: nothing needed is missing, and (when asked) nothing unneeded is there, but
for what is *excused*: files that were restored once and files of deleted branches, which orphan cleaning removes.

Example:
    >>> world = TableWorld(seed=1)
    >>> world.run(step_count=12)
    >>> world.counts["commit"] > 0
    True
"""

from __future__ import annotations

import itertools
import random
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import pyarrow as pa

from lakebed.errors import InvalidRequest
from lakebed.objects.open import open_store
from lakebed.objects.port import ObjectStore
from lakebed.runtime import Environment, Pool, ThreadRuntime
from lakebed.table.codec.manifest import decode_manifest_list, files_of
from lakebed.table.codec.snapshot_json import decode_snapshot
from lakebed.table.model.model import BucketChange, DataFile, Snapshot
from lakebed.table.rows.rows import commit_changes
from lakebed.table.table import Table
from lakebed.testing.clock import ManualClock
from worlds.binary_rows import encode_row
from worlds.table.foreign import Extras, foreign_commit
from worlds.table.made_up import TableModel, data_file

_worlds = itertools.count()
_PARTITIONS = ("a", "b")
_PARTITION_OF = {encode_row([value], ["STRING"]): value for value in _PARTITIONS}
_ROW_OF = {value: row for row, value in _PARTITION_OF.items()}
EVER_MS = 2**60
"""After everything that any store, with a clock of its own, may have been told."""
_OPTIONS = {
    "manifest.merge-min-count": "4",
    "manifest.full-compaction-threshold-size": "6 kb",
    "write-only": "true",
}


# ---- the model


@dataclass
class LineModel(TableModel[frozenset[str]]):
    """What one line of versions should hold: ids and sets of paths, nothing else."""

    empty: frozenset[str] = frozenset()
    fork: tuple[int, frozenset[str]] | None = None

    def needed(self) -> set[str]:
        """Files that some version of the line needs."""
        files = [*self.snapshots.values(), *(tag[1] for tag in self.tags.values())]
        files += [self.fork[1]] if self.fork else []
        return set().union(*files)

    def needed_without(self, tag: str) -> set[str]:
        """Files that some version other than one tag needs."""
        return replace(self, tags={name: item for name, item in self.tags.items() if name != tag}).needed()


class _Inline:
    """A pool that runs everything in its caller: threads cost more than these tiny objects."""

    def map(self, function: Callable[[Any], Any], items: Iterable[Any]) -> Iterator[Any]:
        return map(function, items)

    def close(self) -> None:
        return None


class InlineRuntime(ThreadRuntime):
    """`ThreadRuntime` whose pools run in their caller."""

    def pool(self, worker_count_max: int) -> Pool:
        """A pool without threads."""
        return _Inline()


def inline_environment(seed: int | str, *, start_s: float = 1_000.0) -> Environment:
    """Names by a seed, a clock that moves on request, and pools that run in their caller."""
    clock = ManualClock()
    clock.advance(start_s)
    return Environment(clock=clock, rng=random.Random(seed), runtime=InlineRuntime())


class TableWorld:
    """A table on a store, its model, and random steps on both.

    Args:
        seed: decides everything; the same seed, the same history.
        store: a table's folder; None: a fresh one in memory.
        foreign, rollbacks, branches: whether the history has them; None: as the seed says.
        extras: whether other clients' commits name index files, statistics and changelogs; None: as the seed says.
    """

    def __init__(
        self,
        seed: int,
        *,
        store: ObjectStore | None = None,
        foreign: bool | None = None,
        rollbacks: bool | None = None,
        as_latest: bool | None = None,
        branches: bool | None = None,
        extras: bool | None = None,
    ) -> None:
        self.rng = random.Random(seed)
        self.clock = ManualClock()
        self.environment = Environment(clock=self.clock, rng=random.Random(seed + 1), runtime=InlineRuntime())
        self.store = store or open_store(f"memory://table-world-{next(_worlds)}", environment=self.environment)
        self.table = Table.create(
            self.store,
            name="world",
            schema=pa.schema([("id", pa.int64()), ("pt", pa.string())]),
            partition_keys=["pt"],
            options=_OPTIONS,
            environment=self.environment,
        )
        self.main = LineModel()
        self.branch: tuple[Table, LineModel] | None = None
        self.counts: Counter[str] = Counter()
        self.log: list[str] = []
        self.excused: set[str] = set()
        self.excused_count = 0
        """Files that only orphan cleaning removed, at the end of `run`."""
        self._lives: Counter[str] = Counter()
        self._names = 0
        self._has_extras = seed % 4 == 1 if extras is None else extras
        self._named_by: dict[str, frozenset[str]] = {}
        """What index manifests and changelog lists name, as they were written."""
        self._listed: dict[str, tuple[str, ...]] = {}
        self._named: dict[bytes, frozenset[str]] = {}
        self._steps = self._menu(
            foreign=seed % 2 == 1 if foreign is None else foreign,
            rollbacks=seed % 3 == 0 if rollbacks is None else rollbacks,
            as_latest=seed % 5 == 0 if as_latest is None else as_latest,
            branches=seed % 7 == 0 if branches is None else branches,
        )

    def _menu(self, *, foreign: bool, rollbacks: bool, as_latest: bool, branches: bool) -> list[Callable[[], None]]:
        steps: list[Callable[[], None]] = [self.commit] * 6 + [self.upgrade] * 2 + [self.compact] * 2 + [self.tag] * 3
        steps += [self.expire] * 3 + [self.delete_tag] * 2 + [self.replace_tag, self.rename_tag, self.expire_tags]
        steps += [self.foreign] * 3 if foreign else []
        steps += [self.rollback] if rollbacks else []
        steps += [self.rollback_as_latest] if as_latest else []
        steps += [self.branch_step] * 4 if branches else []
        return steps

    # ---- running and checking

    def run(self, *, step_count: int) -> None:
        """Do random steps, checking after each; at the end clean orphans and check that nothing unneeded is left."""
        self.commit()
        for _ in range(step_count):
            self.step()
            self.check()
        self.check_versions()
        self.excused_count = len(self.unneeded())
        self.table.collect(grace_ms=0)
        self.check()
        left = self.unneeded()
        assert not left, f"orphan cleaning left {sorted(left)[:4]}"

    def step(self) -> None:
        """Do one random step, a minute after the one before."""
        self.clock.advance(60.0)
        self.rng.choice(self._steps)()

    def stored(self) -> set[str]:
        """Paths of data files and manifests that lie on the store."""
        paths = (meta.path for meta in self.store.list(""))
        return {path for path in paths if path.startswith(("manifest/", "index/", "statistics/")) or "/bucket-" in path}

    def needed(self) -> set[str]:
        """Paths that the versions need, by the model and by the names in their own JSON and lists."""
        needed = self.main.needed()
        tables = [(self.table, self.main)]
        if self.branch is not None:
            needed |= self.branch[1].needed()
            tables.append(self.branch)
        for table, model in tables:
            paths = [table.context.layout.snapshot(snapshot_id) for snapshot_id in model.snapshots]
            paths += [table.context.layout.tag(name) for name in model.tags]
            for path in paths:
                needed |= self._names_of(path)
        for pin in self.store.list(self.table.context.layout.tag_folder):
            if "lakebed.pin.branch." in pin.path and self.branch is not None:
                needed |= self._names_of(pin.path)
        return needed

    def _names_of(self, path: str) -> frozenset[str]:
        """What a snapshot or tag names; the same bytes name the same objects, and objects never change."""
        body = bytes(self.store.get(path))
        if body in self._named:
            return self._named[body]
        snapshot = decode_snapshot(body, path=path)
        names: set[str] = set()
        for listed in (snapshot.base_manifest_list, snapshot.delta_manifest_list):
            list_path = f"manifest/{listed}"
            if list_path not in self._listed:
                metas = decode_manifest_list(self.store.get(list_path), path=list_path)
                self._listed[list_path] = tuple(f"manifest/{meta.file_name}" for meta in metas)
            names |= {list_path, *self._listed[list_path]}
        for naming in (snapshot.index_manifest, snapshot.changelog_manifest_list):
            if naming:
                names |= {f"manifest/{naming}", *self._named_by[naming]}
        if snapshot.statistics:
            names.add(f"statistics/{snapshot.statistics}")
        self._named[body] = frozenset(names)
        return self._named[body]

    def bytes_alone(self) -> dict[str, int]:
        """Bytes of the objects that one tag of main names and nothing else does, by the name of the tag.

        Sizes are those on the store; of index files, index manifests, statistics, manifests of changelogs and sidecars,
        whose sizes tables do not state, they are 0.
        """
        holders: list[tuple[str | None, frozenset[str]]] = []
        for table, model in [(self.table, self.main), *([self.branch] if self.branch else [])]:
            for snapshot_id, files in model.snapshots.items():
                holders.append((None, files | self._names_of(table.context.layout.snapshot(snapshot_id))))
            for name, (_, files, _) in model.tags.items():
                shown = name if table is self.table else None
                holders.append((shown, files | self._names_of(table.context.layout.tag(name))))
            if model.fork is not None:
                holders.append((None, model.fork[1]))
        for meta in self.store.list(self.table.context.layout.tag_folder):
            if "lakebed.pin." in meta.path:
                holders.append((None, self._names_of(meta.path)))
        naming = Counter(path for _, paths in holders for path in paths)
        stated = {meta.path: meta.size_bytes for meta in self.store.list("") if not meta.path.endswith(".index")}
        for name, paths in self._named_by.items():
            of_index = any(path.startswith("index/") for path in paths)
            for path in (f"manifest/{name}",) if of_index else (item for item in paths if item.startswith("manifest/")):
                stated[path] = 0
        stated |= {path: 0 for path in stated if path.startswith(("index/", "statistics/"))}
        return {
            name: sum(stated.get(path, 0) for path in paths if naming[path] == 1)
            for name, paths in holders
            if name is not None
        }

    def unneeded(self) -> set[str]:
        """What lies there and nothing needs."""
        return self.stored() - self.needed()

    def check(self, *, collected: bool = False) -> None:
        """Assert that nothing needed is missing and, after a collection, that nothing unneeded is there.

        What is excused must be one of: restored once (a tag in the hole kept it), left by a deleted branch.
        """
        ids = self.table.context.snapshots.ids()
        assert ids == sorted(self.main.snapshots), f"snapshots are {ids}, should be {sorted(self.main.snapshots)}"
        tags = set(self.table.context.tags.names())
        assert tags == set(self.main.tags), f"tags are {tags}, should be {set(self.main.tags)}"
        stored, needed = self.stored(), self.needed()
        lost = needed - stored
        assert not lost, f"LOST {sorted(lost)[:4]} after {self.log[-6:]}"
        if collected:
            leaked = stored - needed - self.excused - {path for path, lives in self._lives.items() if lives > 1}
            assert not leaked, f"LEAKED {sorted(leaked)[:4]} after {self.log[-6:]}"

    def check_versions(self) -> None:
        """Assert that every version of the real table has exactly the model's files."""
        lines = [(self.table, self.main)] + ([self.branch] if self.branch else [])
        for table, model in lines:
            for snapshot_id, files in model.snapshots.items():
                assert self._paths(table, table.context.snapshots.snapshot(snapshot_id)) == files
            for name, (_, files, _) in model.tags.items():
                assert self._paths(table, table.context.tags.tag(name).snapshot) == files

    def _paths(self, table: Table, snapshot: Snapshot) -> set[str]:
        files = self._files(table, snapshot)
        return {path for item, (_, file) in files.items() for path in _with_extras(item, file)}

    def _files(self, table: Table, snapshot: Snapshot | None) -> dict[str, tuple[bytes, DataFile]]:
        if snapshot is None:
            return {}
        entries = table.context.manifests.live_entries(snapshot)
        partitions = entries["partition"].to_pylist()
        return {
            _path_of(partition, file): (partition, file)
            for partition, file in zip(partitions, files_of(entries), strict=True)
        }

    # ---- steps

    def _new_file(self) -> tuple[bytes, DataFile, str]:
        self._names += 1
        partition = _ROW_OF[self.rng.choice(_PARTITIONS)]
        extras = (f"data-{self._names}.index",) if self._names % 7 == 0 else ()
        file = data_file(f"data-{self._names}.parquet", extra_files=extras, file_source=0)
        path = _path_of(partition, file)
        self.store.put(path, b"x")
        for extra in file.extra_files:
            self.store.put(f"{path.rpartition('/')[0]}/{extra}", b"i")
        return partition, file, path

    def _change(
        self, table: Table, *, add_count: int, delete_count: int
    ) -> tuple[list[BucketChange], set[str], set[str]]:
        live = self._files(table, table.context.snapshots.latest())
        gone = self.rng.sample(sorted(live), k=min(delete_count, len(live)))
        changes = [BucketChange(live[path][0], 0, 1, deleted=(live[path][1],)) for path in gone]
        added = set()
        for _ in range(add_count):
            partition, file, path = self._new_file()
            changes.append(BucketChange(partition, 0, 1, added=(file,)))
            added |= _with_extras(path, file)
        return changes, added, {item for path in gone for item in _with_extras(path, live[path][1])}

    def commit(self) -> None:
        """Add one or two files, delete up to two."""
        self._commit_to(self.table, self.main)

    def _commit_to(self, table: Table, model: LineModel) -> None:
        changes, added, gone = self._change(
            table, add_count=self.rng.randint(1, 2), delete_count=self.rng.randint(0, 2)
        )
        snapshot = commit_changes(table.context, changes, kind="OVERWRITE" if gone else "APPEND")
        self._published(model, snapshot.id, (model.head - gone) | added)
        self._note("commit", snapshot.id)

    def compact(self) -> None:
        """Replace up to three files by one."""
        changes, added, gone = self._change(self.table, add_count=1, delete_count=3)
        snapshot = commit_changes(self.table.context, changes, kind="COMPACT")
        self._published(self.main, snapshot.id, (self.main.head - gone) | added)
        self._note("compact", snapshot.id)

    def upgrade(self) -> None:
        """Move one file to a higher level: DELETE and ADD of the same file in one snapshot."""
        live = self._files(self.table, self.table.context.snapshots.latest())
        if not live:
            return
        partition, file = live[self.rng.choice(sorted(live))]
        change = BucketChange(partition, 0, 1, deleted=(file,), added=(replace(file, level=file.level + 1),))
        if self.rng.random() < 0.2:
            snapshot = foreign_commit(self.table, [change], merges=False, name=self._name())
        else:
            snapshot = commit_changes(self.table.context, [change], kind="COMPACT")
        self._published(self.main, snapshot.id, self.main.head)
        self._note("upgrade", snapshot.id)

    def foreign(self) -> None:
        """A commit of another client."""
        changes, added, gone = self._change(self.table, add_count=1, delete_count=self.rng.randint(0, 2))
        merges = self.rng.random() < 0.3
        extras = self._extras() if self._has_extras else Extras()
        snapshot = foreign_commit(self.table, changes, merges=merges, name=self._name(), extras=extras)
        self._named_by |= extras.named_by(self.table, snapshot)
        self._published(self.main, snapshot.id, (self.main.head - gone) | added)
        self._note("foreign", snapshot.id)

    def _extras(self) -> Extras:
        number = self._name()
        result = Extras(
            index_files=(f"index-{number}-0", f"index-{number}-1") if self.rng.random() < 0.5 else (),
            statistics=f"stats-{number}" if self.rng.random() < 0.4 else None,
            changelog=(_ROW_OF["a"], f"changelog-{number}.parquet") if self.rng.random() < 0.5 else None,
        )
        self.counts["index files"] += bool(result.index_files)
        self.counts["statistics"] += bool(result.statistics)
        self.counts["changelogs"] += bool(result.changelog)
        return result

    def hold(self, name: str, snapshot_id: int) -> None:
        """Tag a snapshot, for ever."""
        self.table.create_tag(name, snapshot_id=snapshot_id)
        self.main.tags[name] = (snapshot_id, self.main.snapshots[snapshot_id], None)

    def tag(self) -> None:
        """Tag a random snapshot, or what another tag holds; now and then with a lifetime."""
        self._tag_in(self.table, self.main)

    def _tag_in(self, table: Table, model: LineModel) -> None:
        name = f"t{self._name()}"
        lifetime_ms = self.rng.choice((None, None, 600_000))
        if model.tags and self.rng.random() < 0.2:
            other = self.rng.choice(sorted(model.tags))
            table.create_tag(name, tag=other, lifetime_ms=lifetime_ms)
            snapshot_id, files, _ = model.tags[other]
        else:
            snapshot_id = self.rng.choice(sorted(model.snapshots))
            table.create_tag(name, snapshot_id=snapshot_id, lifetime_ms=lifetime_ms)
            files = model.snapshots[snapshot_id]
        expires_ms = None if lifetime_ms is None else self.clock.now_ms() + lifetime_ms
        model.tags[name] = (snapshot_id, files, expires_ms)
        self._note("tag", f"{name} on {snapshot_id}")

    def delete_tag(self) -> None:
        """Delete one to three tags in one call."""
        names = self.rng.sample(sorted(self.main.tags), k=min(self.rng.randint(1, 3), len(self.main.tags)))
        if not names:
            return
        report = self.table.delete_tag(*names)
        for name in names:
            del self.main.tags[name]
        self._collected("deleted with a tag", report.deleted_count)
        self._note("delete tag", names)

    def replace_tag(self) -> None:
        """Point a tag at another snapshot."""
        if not self.main.tags:
            return
        name, snapshot_id = self.rng.choice(sorted(self.main.tags)), self.rng.choice(sorted(self.main.snapshots))
        self.table.replace_tag(name, snapshot_id=snapshot_id)
        self.main.tags[name] = (snapshot_id, self.main.snapshots[snapshot_id], None)
        self._collected("replaced", 1)
        self._note("replace tag", f"{name} on {snapshot_id}")

    def rename_tag(self) -> None:
        """Give a tag another name."""
        if not self.main.tags:
            return
        name, new = self.rng.choice(sorted(self.main.tags)), f"r{self._name()}"
        self.table.rename_tag(name, new)
        self.main.tags[new] = self.main.tags.pop(name)
        self._note("rename tag", f"{name} to {new}")

    def expire_tags(self) -> None:
        """Delete the tags whose lifetime is over."""
        now_ms = self.clock.now_ms()
        self.table.expire_tags()
        self.main.tags = {name: tag for name, tag in self.main.tags.items() if tag[2] is None or tag[2] > now_ms}
        self._collected("tags expired", 1)
        self._note("expire tags", "")

    def expire(self) -> None:
        """Keep a random number of the newest snapshots."""
        self._expire_in(self.table, self.main)

    def _expire_in(self, table: Table, model: LineModel) -> None:
        kept = self.rng.randint(1, len(model.snapshots))
        report = table.expire(retain_max=kept, retain_min=1, older_than_ms=0, max_deletes=1000)
        for snapshot_id in sorted(model.snapshots)[: len(model.snapshots) - kept]:
            del model.snapshots[snapshot_id]
        assert not report.warnings, report.warnings
        self._collected("files expired", report.deleted_count)
        self._note("expire", f"keep {kept}")

    def rollback(self) -> None:
        """Go back to a snapshot or tag; what came later goes."""
        target, files, version = self._target()
        if self.branch is not None and self.branch[1].fork is not None and self.branch[1].fork[0] > target:
            try:
                self.table.rollback_to(version)
            except InvalidRequest:
                self.counts["refused below a fork"] += 1
                return
            raise AssertionError("a rollback below a branch's fork was not refused")
        snapshot = self.table.rollback_to(version)
        if target == self.main.last_id:
            return
        count = len(self.main.snapshots)
        self.main.forget_after(target)
        later = count - len(self.main.snapshots)
        self._published(self.main, snapshot.id, files)
        self._collected("rolled back", later)
        self._note("rollback", f"to {target}")

    def rollback_as_latest(self) -> None:
        """Make an older version the newest, keeping history."""
        target, files, version = self._target()
        if target == self.main.last_id:
            return
        snapshot = self.table.rollback_to_as_latest(version)
        self._published(self.main, snapshot.id, files)
        self._collected("rolled back as latest", 1)
        self._note("rollback as latest", f"to {target}")

    def _target(self) -> tuple[int, frozenset[str], int | str]:
        targets: list[tuple[int, frozenset[str], int | str]] = [
            (snapshot_id, files, snapshot_id) for snapshot_id, files in self.main.snapshots.items()
        ]
        targets += [(tag[0], tag[1], f"tag.{name}") for name, tag in self.main.tags.items()]
        return self.rng.choice(sorted(targets, key=lambda target: str(target[2])))

    def branch_step(self) -> None:
        """Make, use, rename or delete a branch."""
        if self.branch is None:
            name = f"b{self._name()}"
            table = self.table.create_branch(name)
            model = LineModel(snapshots={self.main.last_id: self.main.head}, last_id=self.main.last_id)
            model.fork = (self.main.last_id, self.main.head)
            self.branch = (table, model)
            self._note("branch", name)
            return
        table, model = self.branch
        step = self.rng.choice(("commit", "commit", "commit", "tag", "expire", "expire", "delete"))
        if step == "commit":
            self._commit_to(table, model)
        elif step == "tag":
            self._tag_in(table, model)
        elif step == "expire":
            self._expire_in(table, model)
        else:
            before = self.needed()
            self.table.delete_branch(table.branch or "")
            self.branch = None
            self.excused |= before - self.needed()
        self.counts[f"branch {step}"] += 1
        if self.branch is not None and self.counts["branch commit"] % 3 == 2:
            name = f"b{self._name()}"
            self.branch = (self.table.rename_branch(table.branch or "", name), model)
            self._note("branch rename", name)

    # ---- notes

    def _published(self, model: LineModel, snapshot_id: int, files: Iterable[str]) -> None:
        before = model.head
        assert model.publish(frozenset(files)) == snapshot_id, f"snapshot {snapshot_id}, should be {model.last_id}"
        self._lives.update(model.head - before)

    def _collected(self, what: str, count: int) -> None:
        self.counts[what] += count
        self.check(collected=True)

    def _note(self, what: str, more: object) -> None:
        self.counts[what] += 1
        self.log.append(f"{what} {more}")

    def _name(self) -> str:
        self._names += 1
        return str(self._names)


def _path_of(partition: bytes, file: DataFile) -> str:
    return f"pt={_PARTITION_OF[partition]}/bucket-0/{file.file_name}"


def _with_extras(path: str, file: DataFile) -> set[str]:
    folder = path.rpartition("/")[0]
    return {path, *(f"{folder}/{extra}" for extra in file.extra_files)}


def committed_world(count: int, *, seed: int = 2, store: ObjectStore | None = None) -> TableWorld:
    """A world of some commits, each a minute after the one before."""
    world = TableWorld(seed, store=store)
    for _ in range(count):
        world.clock.advance(60.0)
        world.commit()
    return world
