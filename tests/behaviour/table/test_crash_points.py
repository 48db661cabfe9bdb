"""Crash, lost reply, late landing and power loss at every store call of every verb that moves versions.

The calls are enumerated from a recorded trace of the verb, and each test asserts that it struck at all of them. What a
verb shares with another whose calls are struck in every run is marked long: `LIKE_ANOTHER`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

import msgspec
import pytest

from lakebed.bounded_cache import BoundedCache
from lakebed.errors import LakebedError, NotFound
from lakebed.objects.open import open_store
from lakebed.objects.port import ObjectStore
from lakebed.runtime import Environment
from lakebed.table.branch.branches import every_branch
from lakebed.table.branch.context import TableBranch
from lakebed.table.branch.manifest_reader import PROCESS_CACHE, ManifestReader
from lakebed.table.codec.manifest import files_of
from lakebed.table.collect.live_versions import read_live_versions
from lakebed.table.collect.referenced_files import ReferencedFiles
from lakebed.table.model.model import BucketChange, DataFile, Snapshot
from lakebed.table.rows.rows import commit_changes
from lakebed.table.table import Table, branch_of
from lakebed.testing import (
    Call,
    Crashed,
    Fault,
    FaultyStore,
    PowerLossStore,
    RecordingStore,
    seed_count,
)
from worlds.binary_rows import encode_row
from worlds.table.world import TableWorld, inline_environment

_CHECKED = BoundedCache(1 << 28)
"""What checks have decoded: from the store alone, never what the product remembers of its own writing."""


def environment(who: str) -> Environment:
    """Deterministic time and names, and pools that run in their caller.

    Names are as unique as real ones, over all tests: every case takes place in the same memory, so that what the checks
    have decoded of the base stays decoded.
    """
    return inline_environment(who, start_s=100_000.0)


@dataclass(frozen=True)
class Named:
    """Paths that a version names."""

    data: frozenset[str]
    every: frozenset[str]
    """Lists, manifests and all other files included."""


@dataclass(frozen=True)
class Base:
    """A table with some history, as objects, and what its versions hold."""

    objects: dict[str, bytes]
    snapshots: dict[int, frozenset[str]]
    tags: dict[str, tuple[int, frozenset[str]]]

    @property
    def immutable(self) -> frozenset[str]:
        """Paths of manifests and lists, which are never written again."""
        return frozenset(path for path in self.objects if path.startswith("manifest/"))


NAMED: dict[tuple[str | None, bytes], Named] = {}
"""By branch and version, as the check decoded it first: versions and their manifests are never written again."""


@cache
def base() -> Base:
    """Nine snapshots of commits, upgrades and another client's; two of them expired; tags on both sides."""
    world = TableWorld(3)
    for step in (world.commit, world.commit, world.tag, world.upgrade, world.foreign, world.tag, world.compact):
        world.clock.advance(60.0)
        step()
    world.hold("early", 2)
    world.table.expire(retain_max=3, retain_min=1, older_than_ms=0)
    for snapshot_id in sorted(world.main.snapshots)[:-3]:
        del world.main.snapshots[snapshot_id]
    for step in (world.commit, world.foreign, world.upgrade, world.commit):
        step()
    world.hold("late", world.main.last_id - 1)
    world.check(collected=True)
    objects = {meta.path: bytes(world.store.get(meta.path)) for meta in world.store.list("")}
    tags = {name: (tag[0], tag[1]) for name, tag in world.main.tags.items()}
    return Base(objects, dict(world.main.snapshots), tags)


def fresh_store() -> ObjectStore:
    """The base table alone."""
    store = open_store("memory://crash-points", environment=environment("the store"))
    fill(store, base().objects)
    return store


def fill(store: ObjectStore, objects: Mapping[str, bytes]) -> None:
    """Give a store these objects alone, and a process that remembers nothing of them: verbs read all they need."""
    PROCESS_CACHE.clear()
    store.delete([meta.path for meta in store.list("")])
    for path, body in objects.items():
        store.put(path, body)


@cache
def forked() -> dict[str, bytes]:
    """What a branch with a commit of its own adds to the base."""
    store = fresh_store()
    commit(open_table(store, "the fork").create_branch("fork"))
    return {meta.path: bytes(store.get(meta.path)) for meta in store.list("") if meta.path not in base().objects}


def store_for(verb: str) -> ObjectStore:
    """The base table, and for a publication or a rename a branch of it."""
    added = forked() if verb in OF_A_BRANCH else {}
    store = fresh_store()
    for path, body in added.items():
        store.put(path, body)
    return store


def open_table(store: ObjectStore, who: str) -> Table:
    """The table through a store, as a new process sees it; `who` makes its names unique."""
    return Table.open(store, name="t", environment=environment(who))


# ---- the verbs


def commit(table: Table) -> None:
    """One file more, one less."""
    live = table.context.manifests.live_entries(table.latest() or pytest.fail("no snapshot"))
    world_file = BucketChange(
        live["partition"][0].as_py(), 0, 1, deleted=(table_files(table)[0],), added=(new_file(table, "crash"),)
    )
    commit_changes(table.context, [world_file], kind="OVERWRITE")


def table_files(table: Table) -> list[DataFile]:
    """Data files of the newest snapshot, first partition first."""
    return files_of(table.context.manifests.live_entries(table.latest() or pytest.fail("no snapshot")))


def new_file(table: Table, name: str) -> DataFile:
    """A data file like the first one, with its object."""
    newest = table.latest() or pytest.fail("no snapshot")
    partition = table.context.manifests.live_entries(newest)["partition"][0].as_py()
    value = "a" if partition == encode_row(["a"], ["STRING"]) else "b"
    table.store.put(f"pt={value}/bucket-0/data-{name}.parquet", b"x")
    return replace(
        table_files(table)[0], file_name=f"data-{name}.parquet", level=0, commit_snapshot=None, extra_files=()
    )


def fork_and_delete(table: Table) -> None:
    """A branch that lives for one commit of its own."""
    commit(table.create_branch("fork", tag="late"))
    table.delete_branch("fork")


VERBS: dict[str, Callable[[Table], object]] = {
    "commit": commit,
    "tag": lambda table: table.create_tag("new", snapshot_id=min(base().snapshots)),
    "replace_tag": lambda table: table.replace_tag("early", snapshot_id=max(base().snapshots)),
    "rename_tag": lambda table: table.rename_tag("early", "renamed"),
    "expire": lambda table: table.expire(retain_max=2, retain_min=1, older_than_ms=0),
    "delete_tag": lambda table: table.delete_tag("early", "late"),
    "rollback_to": lambda table: table.rollback_to(sorted(base().snapshots)[1]),
    "rollback_to_tag": lambda table: table.rollback_to("tag.early"),
    "rollback_to_as_latest": lambda table: table.rollback_to_as_latest("tag.early"),
    "create_branch": lambda table: table.create_branch("fork", tag="early"),
    "delete_branch": fork_and_delete,
    "fast_forward": lambda table: table.fast_forward("fork"),
    "rename_branch": lambda table: table.rename_branch("fork", "renamed"),
}
OF_A_BRANCH = ("fast_forward", "rename_branch")
"""Verbs that find a branch."""


def may_lose(verb: str) -> tuple[set[int], set[str]]:
    """Snapshots and tags that a verb may take away."""
    ids = sorted(base().snapshots)
    if verb == "expire":
        return set(ids[:-2]), set()
    if verb in ("delete_tag", "replace_tag", "rename_tag"):
        return set(), {"early", "late"} if verb == "delete_tag" else {"early"}
    if verb.startswith("rollback_to") and verb != "rollback_to_as_latest":
        target = ids[1] if verb == "rollback_to" else 2
        return {item for item in ids if item > target}, {name for name, tag in base().tags.items() if tag[0] > target}
    return set(), set()


# ---- the checks


def named_by(line: TableBranch, snapshot: Snapshot) -> Named:
    """What a version names, decoded from the store."""
    key = (line.branch, msgspec.json.encode(snapshot))
    if key not in NAMED:
        reader = ManifestReader(line.store, line.layout, environment=line.environment, cache=_CHECKED)
        names = ReferencedFiles(replace(line, manifests=reader))
        NAMED[key] = Named(
            frozenset(names.of(snapshot, ["data"]).to_pylist()), frozenset(names.of(snapshot).to_pylist())
        )
    return NAMED[key]


def files_at(table: Table, snapshot: Snapshot) -> frozenset[str]:
    """Data files of a version."""
    return named_by(table.context, snapshot).data


def paths_at(table: Table, snapshot: Snapshot) -> frozenset[str]:
    """Every path that a version needs."""
    return named_by(table.context, snapshot).every


def check_versions(table: Table, verb: str) -> None:
    """Every version that was there is exact, or one that the verb takes away; every file that it names is there."""
    snapshots, tags = may_lose(verb)
    stored = {meta.path for meta in table.store.list("")}
    for path in stored & base().immutable:
        assert table.store.get(path) == base().objects[path], f"{path} was written again"
    for snapshot in table.snapshots():
        paths = paths_at(table, snapshot)
        assert paths <= stored, f"snapshot {snapshot.id} misses {sorted(paths - stored)}"
        if snapshot.id in base().snapshots:
            assert files_at(table, snapshot) == base().snapshots[snapshot.id]
    for tag in table.tags():
        paths = paths_at(table, tag.snapshot)
        assert paths <= stored, f"tag {tag.name} misses {sorted(paths - stored)}"
        if tag.name in base().tags and tag.name not in tags:
            assert (tag.snapshot.id, files_at(table, tag.snapshot)) == base().tags[tag.name]
    assert set(base().snapshots) - {item.id for item in table.snapshots()} <= snapshots
    assert set(base().tags) - {item.name for item in table.tags()} <= tags


def unneeded(table: Table) -> set[str]:
    """Data files and manifests that no version of any branch names."""
    used: set[str] = set()
    for line in every_branch(table.context):
        holders = read_live_versions(line)
        for snapshot_id in holders.ids.tolist():
            used |= named_by(line, holders.load(line, snapshot_id)).every
    stored = (meta.path for meta in table.store.list(""))
    return {path for path in stored if path.startswith("manifest/") or "/bucket-" in path} - used


def check_recovery(store: ObjectStore, verb: str, put: set[str], *, where: str) -> None:
    """The next commit and expiry complete, and leave nothing but what the interrupted verb itself had just written."""
    table = open_table(store, f"recovery of {where}")
    check_versions(table, verb)
    commit_after(table)
    report = table.expire(retain_max=1, retain_min=1, older_than_ms=0)
    assert not report.warnings, report.warnings
    table.delete_tag(*(tag.name for tag in table.tags()))
    check_versions_exist(table)
    left = unneeded(table)
    if verb not in ("delete_branch", *OF_A_BRANCH):  # whose own files are orphan cleaning's
        assert left <= put, f"left behind: {sorted(left - put)}"
    table.collect(grace_ms=0)
    check_versions_exist(table)
    assert not unneeded(table)
    assert not [meta.path for meta in store.list("lakebed/reclaim")], "unfinished work is left"
    if "branch" in verb or verb in ("commit", "fast_forward"):
        if verb == "rename_branch":
            (renamed,) = table.branches()
            live = branch_of(table, renamed.name)
            assert "data-crash.parquet" in {file.file_name for file in table_files(live)}, (
                f"{renamed.name} is not whole"
            )
        check_branch(table)
    assert not [name for name in table.context.tags.all_names() if name.startswith("lakebed.")], "a hidden pin is left"


def check_branch(table: Table) -> None:
    """A branch is there in full or not at all, and can be deleted and made again; nothing of it stays behind."""
    for branch in table.branches():
        stored = {meta.path for meta in table.store.list("")}
        fork = branch_of(table, branch.name)
        for snapshot in fork.snapshots():
            assert paths_at(fork, snapshot) <= stored, f"{branch.name} misses files of snapshot {snapshot.id}"
        assert fork.latest() is not None
    for name in ("fork", "renamed"):
        with suppress(NotFound):
            table.delete_branch(name)
    commit(table.create_branch("fork"))
    table.delete_branch("fork")
    assert not list(table.store.list("branch"))
    table.collect(grace_ms=0)
    check_versions_exist(table)
    assert not unneeded(table)


def commit_after(table: Table) -> None:
    """A commit by another process after the fault."""
    newest = table.latest() or pytest.fail("no snapshot")
    partition = table.context.manifests.live_entries(newest)["partition"][0].as_py()
    commit_changes(table.context, [BucketChange(partition, 0, 1, added=(new_file(table, "after"),))])


def check_versions_exist(table: Table) -> None:
    """Every version that is listed has all its files."""
    stored = {meta.path for meta in table.store.list("")}
    for snapshot in [*table.snapshots(), *(tag.snapshot for tag in table.tags())]:
        assert paths_at(table, snapshot) <= stored


@cache
def calls_of(verb: str) -> list[Call]:
    """The trace of an undisturbed run."""
    recorded = RecordingStore(store_for(verb))
    table = open_table(recorded, f"trace of {verb}")
    start = len(recorded.trace)
    VERBS[verb](table)
    check_recovery(recorded.inner, verb, set(), where=f"trace of {verb}")
    return [call.call for call in recorded.trace[start:]]


def struck(verb: str, faults: tuple[Fault, ...]) -> Iterator[tuple[FaultyStore, str, bool]]:
    """Run the verb once for each of its calls and each fault; yields the store after each, and whether it went on.

    A verb goes on if it changes anything after the fault. Otherwise the store is as a crash after one of its changes
    leaves it, or as it was.

    A read is struck by `Fault.ERROR_BEFORE` only, the first of an object. A crash after it leaves the store as a crash
    after the change before it does, and its caller cannot distinguish a lost reply from a refusal. Of the reads of one
    folder between two changes, and of puts of manifests in a row, which nothing names yet, one is struck; in a long run
    all.
    """
    calls = calls_of(verb)
    assert len(calls) > 2
    is_thorough = seed_count(1) > 1
    struck_at, reads = set(), set()
    for index, call in enumerate(calls):
        if not call.changes:
            after_changes = sum(earlier.changes for earlier in calls[:index])
            read = (call.kind, call.path) if is_thorough else (call.kind, call.path.split("/")[0], after_changes)
            if is_long(verb) or read in reads:
                continue
            reads.add(read)
        elif not is_thorough and names_nothing(call) and names_nothing(calls[index + 1]):
            struck_at.add(index)
            continue
        for fault in faults:
            if not call.changes and fault is not Fault.ERROR_BEFORE:
                continue
            armed: dict[int, Fault] = {}
            changes: list[int] = []

            def decide(
                at: int, call: Call, armed: dict[int, Fault] = armed, changes: list[int] = changes
            ) -> Fault | None:
                if call.changes:
                    changes.append(at)
                return armed.get(at)

            where = f"{verb}, call {index} ({call}), {fault.name}"
            store = FaultyStore(PowerLossStore(store_for(verb)), faults=decide)
            table = open_table(store, where)
            armed[store.call_count + index] = fault
            with suppress(Crashed, LakebedError):
                VERBS[verb](table)
            assert store.met, f"call {index} of {verb} ({call}) was not met"
            struck_at.add(index)
            yield store, where, bool(changes) and changes[-1] > store.met[0][0]
    assert struck_at >= {index for index, call in enumerate(calls) if call.changes}, "not every change was struck"


def names_nothing(call: Call) -> bool:
    """Whether a call puts a file that is there or not for nobody, until a snapshot names it."""
    return call.kind == "put" and call.path.startswith("manifest/")


def is_long(verb: str) -> bool:
    """Whether only changes are struck."""
    return verb in OF_A_BRANCH


def written(store: ObjectStore) -> set[str]:
    """What lies there and was not in the base: leftovers of the interrupted verb at most."""
    return {meta.path for meta in store.list("")} - set(base().objects)


LIKE_ANOTHER = {
    "crash": {"rollback_to_tag"},
    "lost reply": {"rollback_to_tag", "rollback_to_as_latest"},
    "late": {"rollback_to_tag", "rollback_to_as_latest"},
}
"""Verbs that only the long tests strike so: `rollback_to_tag` is `rollback_to` but for its first look at the tag, and
`rollback_to_as_latest` is a commit, which loses replies in `test_lost_replies` too."""


def verbs(strike: str) -> list[Any]:
    """The verbs as parameters of the test of one kind of strike."""
    return [pytest.param(verb, marks=pytest.mark.long) if verb in LIKE_ANOTHER[strike] else verb for verb in VERBS]


@pytest.mark.parametrize("verb", verbs("crash"))
def test_crash_and_power_loss_at_every_change(verb: str) -> None:
    """A crash after any change leaves every version readable, and the next verbs finish what it left.

    So does a power loss after any change, when nothing that is volatile survives.
    """
    for store, where, _ in struck(verb, (Fault.CRASH_AFTER,)):
        power = store.inner
        inner = power.inner  # type: ignore[attr-defined]
        crashed = {meta.path: bytes(inner.get(meta.path)) for meta in inner.list("")}
        try:
            check_recovery(inner, verb, written(inner), where=where)
            fill(inner, crashed)
            if power.power_loss():  # type: ignore[attr-defined]
                check_recovery(inner, verb, written(inner), where=f"{where}, power loss")
        except (AssertionError, LakebedError) as error:
            raise AssertionError(f"{where}: {error}") from error


@pytest.mark.parametrize("verb", verbs("lost reply"))
def test_lost_reply_at_every_call(verb: str) -> None:
    """A lost or refused answer to any call ends in success or in one error, and in either case nothing is lost."""
    for store, where, goes_on in struck(verb, (Fault.LOST_REPLY, Fault.ERROR_BEFORE)):
        inner = store.inner.inner  # type: ignore[attr-defined]
        try:
            if not goes_on:  # what is recovered from there is the matter of the crashes
                check_versions(open_table(inner, f"look at {where}"), verb)
                continue
            check_recovery(inner, verb, written(inner), where=where)
        except (AssertionError, LakebedError) as error:
            raise AssertionError(f"{where}: {error}") from error


@pytest.mark.parametrize("verb", verbs("late"))
def test_change_that_lands_after_the_crash(verb: str) -> None:
    """A change that was under way when its process died may land after others recovered: nothing needed is lost."""
    for store, where, _ in struck(verb, (Fault.CRASH_LATE,)):
        inner = store.inner.inner  # type: ignore[attr-defined]
        try:
            table = open_table(inner, f"recovery of {where}")
            check_versions(table, verb)
            commit_after(table)
            table.expire(retain_max=2, retain_min=1, older_than_ms=0)
            store.land()
            # A tag that its maker never saw made may point at what has gone: reports name it, a user drops it.
            table.delete_tag("new", "renamed", if_exists=True)
            if verb == "replace_tag":
                table.delete_tag("early", if_exists=True)
            table.expire(retain_max=1, retain_min=1, older_than_ms=0)
            check_versions_exist(open_table(inner, f"look at {where}"))
            table.collect(grace_ms=0)
            table.collect(grace_ms=0)
            check_versions_exist(table)
            assert not unneeded(table)
        except (AssertionError, LakebedError) as error:
            raise AssertionError(f"{where}: {error}") from error
