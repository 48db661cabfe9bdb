"""Renaming a branch while others write, delete, collect and die: it has one name, and loses nothing that was confirmed.

A table has a branch ``old`` with snapshots, tags, a consumer and an expired version. Each race runs once for every call
to the store: something else happens right after that call.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any

import pyarrow as pa
import pytest

from lakebed.errors import AlreadyExists, Conflict, InvalidRequest, LakebedError, NotFound, UnsupportedFormat
from lakebed.objects.port import ObjectStore
from lakebed.runtime import Environment
from lakebed.table.branch import renames
from lakebed.table.branch.branch_folder import branch_id, fork_pin
from lakebed.table.branch.consumers import load_consumers, store_consumer
from lakebed.table.branch.renames import RENAMED_FOLDER
from lakebed.table.changes.stream import StreamOffset, StreamSettings, TableStream
from lakebed.table.changes.stream_limits import Limits
from lakebed.table.codec.manifest import files_of
from lakebed.table.collect.live_versions import read_live_versions
from lakebed.table.collect.referenced_files import ReferencedFiles
from lakebed.table.model.layout import parse_schema
from lakebed.table.read.read import read_split_table
from lakebed.table.rows.rows import commit_changes
from lakebed.table.schema.schema import encode_schema
from lakebed.table.table import Table, _unpickle
from lakebed.testing import Between, Call, Crashed, Fault, FaultyStore, RecordingStore, seed_count
from worlds.meanwhile import Meanwhile


def commit(bench: Any, name: str, table: Table | None = None, *, deleted: tuple[str, ...] = ()) -> Any:
    """Commit one file, which is there; what it deletes has the birth that it has in the table."""
    bench.store.put(f"bucket-0/{name}", b"x")
    context = (table or bench.table).context
    newest = context.snapshots.latest()
    live = [] if newest is None else files_of(context.manifests.live_entries(newest))
    gone = tuple(file for file in live if file.file_name in deleted)
    assert len(gone) == len(deleted)
    bench.clock.advance(1)
    return commit_changes(context, [replace(bench.change(name), deleted=gone)], kind="APPEND")


def fill(bench: Any) -> Table:
    """Main, and the branch ``old`` with versions that only a tag or the fork has."""
    commit(bench, "m1")
    commit(bench, "m2", deleted=("m1",))
    fork = bench.table.create_branch("old")
    commit(bench, "b1", fork)
    fork.create_tag("first")
    commit(bench, "b2", fork, deleted=("b1",))
    commit(bench, "b3", fork)
    fork.create_tag("third")
    fork.expire(retain_max=2, retain_min=2, older_than_ms=bench.clock.now_ms() + 1)
    store_consumer(bench.store, fork.context.layout, "reader", next_snapshot_id=5)
    commit(bench, "m3", deleted=("m2",))
    return fork


def new_environment(bench: Any, who: str) -> Environment:
    return Environment(clock=bench.clock, rng=random.Random(who), runtime=bench.environment.runtime)


def through(bench: Any, store: ObjectStore, *, branch: str | None = None) -> Table:
    return Table.open(store, name="t", branch=branch, environment=new_environment(bench, "racer"))


def check_whole(bench: Any) -> dict[str, list[str]]:
    """Every version of every branch has all its files, and nothing is left of a rename. The live files of branches."""
    table = bench.reopen()
    names = [branch.name for branch in table.branches()]
    for branch in (None, *names):
        line = bench.reopen(branch=branch).context
        versions = read_live_versions(line)
        stored = {meta.path for meta in bench.store.list("")}
        for snapshot_id in versions.ids.tolist():
            needed = set(ReferencedFiles(line).of(versions.load(line, snapshot_id)).to_pylist())
            assert needed <= stored, f"version {snapshot_id} of {branch} misses {sorted(needed - stored)}"
    assert not [meta.path for meta in bench.store.list(RENAMED_FOLDER) if not meta.path.endswith("/mark")]
    return {name: bench.live(bench.reopen(branch=name)) for name in names}


def check_moved(bench: Any) -> None:
    """The branch is called ``new``, with all that it had; a collection finds its files in use."""
    assert check_whole(bench) == {"new": ["b2", "b3", "m2"]}
    fork = bench.reopen(branch="new")
    assert {tag.name for tag in fork.tags()} >= {"first", "third"}
    assert fork.tag("first").snapshot.id == 3
    assert bench.table.branches()[0].fork_snapshot_id == 2
    assert [consumer.next_snapshot_id for consumer in load_consumers(bench.store, fork.context.layout)] == [5]
    assert not list(bench.store.list("branch/branch-old"))
    assert bench.table.context.tags.find(fork_pin("old")) is None
    with pytest.raises(NotFound, match="'old'"):
        bench.reopen(branch="old")
    bench.table.expire(retain_max=1, retain_min=1, older_than_ms=bench.clock.now_ms() + 1)
    assert not bench.reopen().collect(grace_ms=0).warnings
    assert list(check_whole(bench)) == ["new"]


@pytest.mark.parametrize("file", ["mark", "state"])
def test_a_rename_of_a_newer_lakebed_is_not_finished(bench: Any, file: str) -> None:
    """What it says besides is not known, so no file is moved or deleted."""
    fill(bench)
    pin = bench.table.context.tags.find(fork_pin("old"))
    folder = f"{RENAMED_FOLDER}/old/{branch_id(pin)}"
    bench.store.put(f"{folder}/mark", b'{"to":"new"}')
    bench.store.put(f"{folder}/state", b'{"files":{}}')
    body = bytes(bench.store.get(f"{folder}/{file}"))
    bench.store.put(f"{folder}/{file}", body[:-1] + b',"keeps":["third"]}')
    before = {meta.path for meta in bench.store.list("")}
    with pytest.raises(UnsupportedFormat, match=r"'keeps'.*upgrade lakebed"):
        bench.table.rename_branch("old", "new")
    with suppress(UnsupportedFormat):
        bench.reopen().collect(grace_ms=0)
    assert {meta.path for meta in bench.store.list("branch/branch-old")} <= before
    assert {meta.path for meta in bench.store.list("")} >= {path for path in before if "/schema/" not in path}


def test_a_renamed_branch_has_all_that_it_had(bench: Any) -> None:
    """Snapshots, tags, consumers, schemas and the pin of the fork go along; then it works as before."""
    fill(bench)
    before = {meta.path: bytes(bench.store.get(meta.path)) for meta in bench.store.list("branch/branch-old")}
    fork = bench.table.rename_branch("old", "new")
    after = {meta.path: bytes(bench.store.get(meta.path)) for meta in bench.store.list("branch/branch-new")}
    moved = {path.replace("branch-old", "branch-new"): body for path, body in before.items()}
    assert {path: body for path, body in after.items() if "tag-index" not in path} == {
        path: body for path, body in moved.items() if "tag-index" not in path
    }
    assert not list(bench.store.list(RENAMED_FOLDER))
    check_moved(bench)
    commit(bench, "b4", fork)
    fork.expire(retain_max=1, retain_min=1, older_than_ms=bench.clock.now_ms() + 1)
    fork.delete_tag("first")
    assert check_whole(bench) == {"new": ["b2", "b3", "b4", "m2"]}
    bench.table.rename_branch("new", "old")
    assert check_whole(bench) == {"old": ["b2", "b3", "b4", "m2"]}
    bench.table.delete_branch("old")
    assert not list(bench.store.list("branch"))
    assert not list(bench.store.list(RENAMED_FOLDER))


def test_files_that_a_late_writer_left_under_the_new_name_are_replaced(bench: Any) -> None:
    """Of an earlier branch of that name: the renamed branch has its own snapshots, tags and consumers all the same."""
    fill(bench)
    for meta in list(bench.store.list("branch/branch-old")):
        if "/schema/" not in meta.path and "tag-index" not in meta.path:
            bench.store.put(meta.path.replace("branch-old", "branch-new"), b"of an earlier branch")
    bench.table.rename_branch("old", "new")
    check_moved(bench)
    for meta in bench.store.list("branch/branch-new"):
        assert bytes(bench.store.get(meta.path)) != b"of an earlier branch", meta.path
    assert check_whole(bench) == {"new": ["b2", "b3", "m2"]}


def test_a_renamed_branch_was_created_when_it_was_made(bench: Any) -> None:
    """Not when it got its name, however often it is renamed."""
    fill(bench)
    (made,) = bench.table.branches()
    for old, new in (("old", "new"), ("new", "third")):
        bench.clock.advance(86_400.0)
        bench.table.rename_branch(old, new)
        (renamed,) = bench.table.branches()
        assert renamed == replace(made, name=new)


@pytest.mark.parametrize(
    ("old", "new", "error", "kind"),
    [
        ("main", "new", InvalidRequest, "invalid_branch_name"),
        ("old", "main", InvalidRequest, "invalid_branch_name"),
        ("old", "7", InvalidRequest, "invalid_branch_name"),
        ("old", "", InvalidRequest, "invalid_branch_name"),
        ("old", "a/b", InvalidRequest, "invalid_branch_name"),
        ("../old", "new", InvalidRequest, "invalid_branch_name"),
        ("absent", "new", NotFound, "branch_not_found"),
        ("old", "other", AlreadyExists, "branch_exists"),
        ("old", "old", AlreadyExists, "branch_exists"),
        ("foreign", "new", InvalidRequest, "foreign_branch"),
    ],
)
def test_what_cannot_be_renamed_is_refused(bench: Any, old: str, new: str, error: type, kind: str) -> None:
    """Each refusal is one sentence with its kind, and changes nothing."""
    fill(bench)
    bench.table.create_branch("other")
    for path in ("schema/schema-0", "snapshot/snapshot-1"):
        bench.store.put(f"branch/branch-foreign/{path}", bench.store.get(path))
    before = {meta.path: bytes(bench.store.get(meta.path)) for meta in bench.store.list("")}
    with pytest.raises(error) as refusal:
        bench.table.rename_branch(old, new)
    assert refusal.value.kind == kind
    assert {meta.path: bytes(bench.store.get(meta.path)) for meta in bench.store.list("")} == before


def test_what_was_opened_by_the_old_name_says_that_it_is_gone(bench: Any) -> None:
    """Handles and pickled handles read, write, tag and stream nothing silently, also when the name is used again."""
    fork = fill(bench)
    stale = _unpickle(bench.store, "t", fork.context.schema, "old")  # as in another process
    bench.table.rename_branch("old", "new")
    for handle in (fork, stale):
        for verb in (
            lambda handle=handle: commit(bench, "late", handle),
            lambda handle=handle: handle.read(),
            lambda handle=handle: handle.latest(),
            lambda handle=handle: list(handle.snapshots()),
            lambda handle=handle: handle.tags(),
            lambda handle=handle: handle.create_tag("late", snapshot_id=4),
            lambda handle=handle: handle.expire(retain_max=1),
            lambda handle=handle: handle.rollback_to(4),
            lambda handle=handle: handle.add_column("late", pa.int32()),
        ):
            with pytest.raises(NotFound):
                verb()
    check_moved(bench)


def test_a_publication_goes_on_under_the_new_name(bench: Any) -> None:
    """Main keeps the files that it has of a branch, and takes the next version of it, whatever it is called."""
    commit(bench, "m1")
    fork = bench.table.create_branch("old")
    commit(bench, "b1", fork)
    bench.table.fast_forward("old")
    fork = bench.table.rename_branch("old", "new")
    assert bench.table.fast_forward("new", dry_run=True).id == bench.table.latest().id
    commit(bench, "b2", fork, deleted=("b1",))
    bench.table.fast_forward("new")
    assert bench.live() == ["b2", "m1"]
    bench.table.expire(retain_max=1, retain_min=1, older_than_ms=bench.clock.now_ms() + 1)
    bench.table.collect(grace_ms=0)
    assert check_whole(bench) == {"new": ["b2", "m1"]}


# ---- a rename that is cut short


def record(bench: Any) -> list[Call]:
    """The calls of an undisturbed rename, which is then undone by another."""
    recorded = RecordingStore(bench.store)
    table = through(bench, recorded)
    start = len(recorded.trace)
    table.rename_branch("old", "new")
    bench.table.rename_branch("new", "old")
    return [call.call for call in recorded.trace[start:]]


LOOKS: dict[str, Callable[[Any], object]] = {
    "rename": lambda bench: bench.reopen().rename_branch("old", "new"),
    "list": lambda bench: bench.reopen().branches(),
    "open": lambda bench: bench.reopen(branch="new"),
    "collect": lambda bench: bench.reopen().collect(grace_ms=0),
    "delete": lambda bench: bench.reopen().delete_branch("new"),
    "create": lambda bench: bench.reopen().create_branch("new"),
}


@pytest.mark.parametrize("fault", [Fault.CRASH_AFTER, Fault.LOST_REPLY])
@pytest.mark.parametrize("look", LOOKS)
def test_the_next_process_finishes_a_rename_that_was_cut_short(new_bench: Any, look: str, fault: Fault) -> None:
    """After a crash or a lost reply at any change the branch is whole under one name, for the first that looks."""
    bench = new_bench({})
    fill(bench)
    calls = record(bench)
    objects = {meta.path: bytes(bench.store.get(meta.path)) for meta in bench.store.list("")}
    names = set()
    changes = [index for index, call in enumerate(calls) if call.changes]
    assert len(changes) > 15
    for index in changes:
        reset(bench, objects)
        armed: dict[int, Fault] = {}
        store = FaultyStore(bench.store, faults=lambda at, call, armed=armed: armed.get(at))
        table = through(bench, store)
        armed[store.call_count + index] = fault
        with suppress(Crashed, LakebedError):
            table.rename_branch("old", "new")
        is_done = not list(bench.store.list("branch/branch-old/")) and not list(bench.store.list(RENAMED_FOLDER))
        with suppress(NotFound, AlreadyExists, Conflict):
            LOOKS[look](bench)
        if look == "delete" and is_done:
            assert check_whole(bench) == {}  # as was asked
            continue
        name, live = next(iter(check_whole(bench).items()), ("", []))
        assert live == ["b2", "b3", "m2"], f"call {index}: {name or 'no branch'} has {live}"
        names.add(name)
        bench.reopen().rename_branch("old", "new")
        check_moved(bench)
    assert "new" in names


# ---- others meanwhile


def reset(bench: Any, objects: dict[str, bytes]) -> None:
    bench.store.delete([meta.path for meta in bench.store.list("")])
    for path, body in objects.items():
        bench.store.put(path, body)


def some_of(total: int, first: int) -> range:
    """Indices of calls: all of them in a long run, else every third, other ones for each verb."""
    return range(total) if seed_count(1) > 1 else range(first % 3, total, 3)


WRITES: dict[str, Callable[[Any, Table], object]] = {
    "commit": lambda bench, fork: commit(bench, "w", fork),
    "tag": lambda bench, fork: fork.create_tag("w", snapshot_id=4),
    "rename tag": lambda bench, fork: fork.rename_tag("third", "w"),
    "replace tag": lambda bench, fork: fork.replace_tag("third", snapshot_id=4),
    "delete tag": lambda bench, fork: fork.delete_tag("third"),
    "expire": lambda bench, fork: fork.expire(retain_max=1, retain_min=1, older_than_ms=bench.clock.now_ms() + 1),
    "rollback": lambda bench, fork: fork.rollback_to(4),
    "alter": lambda bench, fork: fork.add_column("w", pa.int32()),
}


def check_after(bench: Any, verb: str, outcome: object) -> None:
    """What was confirmed is there; a commit that was refused is not."""
    branches = check_whole(bench)
    assert len(branches) == 1, branches
    [(name, live)] = branches.items()
    fork = bench.reopen(branch=name)
    tags = {tag.name: tag.snapshot.id for tag in fork.tags()}
    is_done = not isinstance(outcome, LakebedError)
    if verb == "commit":
        assert ("w" in live) == is_done, (live, outcome)
        assert {"b2", "b3", "m2"} <= set(live)
    if is_done:
        assert verb not in ("tag", "rename tag") or "w" in tags
        assert verb != "alter" or "w" in fork.arrow_schema.names
        assert verb != "rollback" or live == ["b2", "m2"]
        assert verb != "replace tag" or tags["third"] == 4
    assert "first" in tags
    assert "third" in tags or "w" in tags or verb in ("delete tag", "rollback")
    warnings = bench.reopen().collect(grace_ms=0).warnings
    assert not warnings or verb == "rollback"  # the hint of the newest snapshot may be older than the rollback
    check_whole(bench)


@pytest.mark.parametrize("verb", WRITES)
def test_a_branch_is_renamed_at_any_call_of_a_writer(new_bench: Any, verb: str) -> None:
    """A writer of the old name is told the truth wherever it stands when the branch is renamed."""
    bench = new_bench({})
    fill(bench)
    objects = {meta.path: bytes(bench.store.get(meta.path)) for meta in bench.store.list("")}
    outcomes = []
    for index in range(500):
        reset(bench, objects)
        store = Meanwhile(bench.store, after=True)
        fork = through(bench, store, branch="old")
        store.expect(lambda: bench.reopen().rename_branch("old", "new"), at=index)
        try:
            outcome: object = WRITES[verb](bench, fork)
        except (NotFound, Conflict) as error:
            outcome = error
        if store.happened is None:
            break
        outcomes.append(isinstance(outcome, LakebedError))
        check_after(bench, verb, outcome)
        assert [branch.name for branch in bench.table.branches()] == ["new"]
    assert any(outcomes)
    assert verb != "commit" or outcomes.count(False) > 2


def test_a_commit_that_expired_under_the_new_name_is_still_told_apart(new_bench: Any) -> None:
    """The branch is renamed at any call of a commit and goes on: the boundary says whose snapshot it was."""
    bench = new_bench({})
    fill(bench)
    objects = {meta.path: bytes(bench.store.get(meta.path)) for meta in bench.store.list("")}

    def go_on() -> None:
        bench.reopen().rename_branch("old", "new")
        renamed = bench.reopen(branch="new")
        for name in ("x", "y", "z"):
            commit(bench, name, renamed)
        renamed.expire(retain_max=1, retain_min=1, older_than_ms=bench.clock.now_ms() + 1)

    outcomes = []
    for index in range(500):
        reset(bench, objects)
        store = Meanwhile(bench.store, after=True)
        fork = through(bench, store, branch="old")
        store.expect(go_on, at=index)
        try:
            commit(bench, "w", fork)
            is_done = True
        except (NotFound, Conflict):
            is_done = False
        if store.happened is None:
            break
        live = check_whole(bench)["new"]
        assert {"x", "y", "z"} <= set(live)
        assert ("w" in live) == is_done, f"call {index}: {live}"
        outcomes.append(is_done)
    assert outcomes.count(True) > 1
    assert outcomes.count(False) > 1


def test_a_commit_is_found_where_its_branch_is_renamed_again(new_bench: Any) -> None:
    """At any call of the search for it: it is there, under the third name."""
    bench = new_bench({})
    fill(bench)
    snapshot = commit(bench, "w", bench.reopen(branch="old"))
    bench.table.rename_branch("old", "new")
    objects = {meta.path: bytes(bench.store.get(meta.path)) for meta in bench.store.list("")}
    for index in range(100):
        reset(bench, objects)
        store = Meanwhile(bench.store, after=True)
        main = through(bench, store).context
        store.expect(lambda: bench.reopen().rename_branch("new", "third"), at=index)
        assert renames._has_moved(main, "old", snapshot), f"call {index}"
        if store.happened is None:
            break
    assert index > 1


def test_a_renamed_branch_begins_with_its_newest_schema(new_bench: Any) -> None:
    """Whoever opens it while its schemas are put has all columns."""
    bench = new_bench({})
    fork = fill(bench)
    for name in ("x", "y", "z"):
        fork.add_column(name, pa.int32())
    seen = set[int]()

    def look() -> None:
        ids = {
            number
            for meta in bench.store.list("branch/branch-new/schema")
            if (number := parse_schema(meta.path)) is not None
        }
        assert not ids or max(ids) == 3
        seen.add(len(ids))

    total = len(record(bench))
    objects = {meta.path: bytes(bench.store.get(meta.path)) for meta in bench.store.list("")}
    for index in range(total):
        reset(bench, objects)
        store = Meanwhile(bench.store, after=True)
        table = through(bench, store)
        store.expect(look, at=index)
        table.rename_branch("old", "new")
    assert seen == {0, 1, 2, 3, 4}


def test_a_tag_that_is_put_while_a_rename_is_under_way_is_confirmed_only_if_it_goes_along(new_bench: Any) -> None:
    """A tagger looked for its schema, the rename came as far as each change, and the tag is put then."""
    bench = new_bench({})
    fill(bench)
    changes = [index for index, call in enumerate(record(bench)) if call.changes]
    objects = {meta.path: bytes(bench.store.get(meta.path)) for meta in bench.store.list("")}
    outcomes = set()
    for index in changes:
        reset(bench, objects)
        armed: dict[int, Fault] = {}

        def begin(armed: dict[int, Fault] = armed, index: int = index) -> None:
            store = FaultyStore(bench.store, faults=lambda at, call: armed.get(at))
            table = through(bench, store)
            armed[store.call_count + index] = Fault.CRASH_AFTER
            with suppress(Crashed, LakebedError):
                table.rename_branch("old", "new")

        between = Between(bench.store, kind="get", prefix="branch/branch-old/snapshot/snapshot-5", happens=begin)
        fork = through(bench, between, branch="old")
        source = fork.context.tags.source(snapshot_id=5)
        assert between.happened
        try:
            fork.context.tags.pin_hidden("w", source=source)
            is_done = True
        except (NotFound, Conflict):
            is_done = False
        outcomes.add(is_done)
        bench.reopen().branches()
        [name] = check_whole(bench)
        assert not is_done or bench.reopen(branch=name).context.tags.find("lakebed.pin.w") is not None, f"call {index}"
    assert outcomes == {True, False}


def test_a_schema_that_is_put_late_lets_nobody_write_to_the_old_name(new_bench: Any) -> None:
    """A change of columns slept until the rename came as far as each change: it lands, and a writer opens the branch.

    The writer finds no schema of the newest snapshot any more.
    """
    bench = new_bench({})
    fork = fill(bench)
    changes = [index for index, call in enumerate(record(bench)) if call.changes]
    newest = fork.context.schemas.latest()
    assert newest is not None
    late = replace(newest, id=newest.id + 1)
    objects = {meta.path: bytes(bench.store.get(meta.path)) for meta in bench.store.list("")}
    outcomes = set()
    for index in changes:
        reset(bench, objects)
        armed: dict[int, Fault] = {}
        store = FaultyStore(bench.store, faults=lambda at, call, armed=armed: armed.get(at))
        table = through(bench, store)
        armed[store.call_count + index] = Fault.CRASH_AFTER
        with suppress(Crashed):
            table.rename_branch("old", "new")
        bench.store.put(fork.context.layout.schema(late.id), encode_schema(late))
        try:
            commit(bench, "w", through(bench, bench.store, branch="old"))
            is_done = True
        except (NotFound, Conflict):
            is_done = False
        outcomes.add(is_done)
        if is_done:
            bench.reopen().branches()
            assert any("w" in files for files in check_whole(bench).values()), f"call {index}"
    assert outcomes == {True, False}


@pytest.mark.parametrize("is_renamed", [True, False])
def test_another_branch_of_the_old_name_gets_no_commit_of_the_first(new_bench: Any, is_renamed: bool) -> None:
    """A writer whose branch was renamed, or deleted, and whose name is used again, is told the truth about its own."""
    bench = new_bench({})
    fill(bench)
    objects = {meta.path: bytes(bench.store.get(meta.path)) for meta in bench.store.list("")}

    def replace_branch() -> None:
        bench.reopen().rename_branch("old", "new") if is_renamed else bench.reopen().delete_branch("old")
        bench.reopen().create_branch("old")

    expected = {"old": ["m3"], "new": ["b2", "b3", "m2"]} if is_renamed else {"old": ["m3"]}
    refused = 0
    for index in range(500):
        reset(bench, objects)
        store = Meanwhile(bench.store, after=True)
        fork = through(bench, store, branch="old")
        store.expect(replace_branch, at=index)
        error = None
        try:
            commit(bench, "w", fork)
        except (NotFound, Conflict) as refusal:
            error, refused = refusal, refused + 1
        if store.happened is None:
            break
        live = check_whole(bench)
        with_it = [name for name, files in live.items() if "w" in files]
        where = f"call {index}, {store.happened}: {live}, {error!r}"
        assert {name: [file for file in files if file != "w"] for name, files in live.items()} == expected, where
        if is_renamed or error is not None:
            assert len(with_it) == (error is None), where
    assert refused > 1


@pytest.mark.parametrize("verb", WRITES)
def test_a_writer_writes_at_any_call_of_a_rename(new_bench: Any, verb: str) -> None:
    """Of a rename and a whole verb of a writer that comes between, each is told the truth."""
    bench = new_bench({})
    fill(bench)
    total = len(record(bench))
    objects = {meta.path: bytes(bench.store.get(meta.path)) for meta in bench.store.list("")}
    outcomes = []
    for index in some_of(total, list(WRITES).index(verb)):
        reset(bench, objects)
        fork, outcome = bench.reopen(branch="old"), []

        def write() -> None:
            try:
                outcome.append(WRITES[verb](bench, fork))  # noqa: B023 (of this round)
            except LakebedError as error:
                outcome.append(error)  # noqa: B023

        store = Meanwhile(bench.store, after=True)
        table = through(bench, store)
        store.expect(write, at=index)
        table.rename_branch("old", "new")
        if outcome:
            check_after(bench, verb, outcome[0])
            outcomes.append(isinstance(outcome[0], LakebedError))
        assert [branch.name for branch in bench.table.branches()] == ["new"]
    assert {True, False} == set(outcomes)


COLLECTORS: dict[str, Callable[[Table, int], object]] = {
    "orphans": lambda table, now_ms: table.collect(grace_ms=60_000),
    "expiry of main": lambda table, now_ms: table.expire(retain_max=1, retain_min=1, older_than_ms=now_ms),
}


@pytest.mark.parametrize("is_published", [False, True])
@pytest.mark.parametrize("verb", COLLECTORS)
def test_a_branch_is_renamed_at_any_call_of_a_collector_of_the_table(
    new_bench: Any, verb: str, is_published: bool
) -> None:
    """A collector that has read half of the old name and half of the new one takes nothing that either has."""
    bench = new_bench({})
    commit(bench, "m0")
    commit(bench, "m1", deleted=("m0",))
    fork = bench.table.create_branch("old")
    commit(bench, "b1", fork)
    fork.create_tag("first")
    commit(bench, "b2", fork, deleted=("b1",))
    if is_published:
        bench.table.fast_forward("old")
        commit(bench, "m2", deleted=("b2", "m1"))
        commit(bench, "b3", fork)
    else:
        commit(bench, "m2", deleted=("m1",))
    objects = {meta.path: bytes(bench.store.get(meta.path)) for meta in bench.store.list("")}
    expected = ["b2", "b3", "m1"] if is_published else ["b2", "m1"]
    for index in range(500):
        reset(bench, objects)
        bench.clock.advance(100_000.0)  # so all files are old, and what the rename puts is not
        store = Meanwhile(bench.store, after=True)
        table = through(bench, store)
        store.expect(lambda: bench.reopen().rename_branch("old", "new"), at=index)
        with suppress(NotFound, Conflict):
            COLLECTORS[verb](table, bench.clock.now_ms() + 1)
        if store.happened is None:
            break
        try:
            assert check_whole(bench) == {"new": expected}
        except AssertionError as error:
            raise AssertionError(f"renamed after call {index}, {store.happened}") from error
    assert index > 20


MEANWHILE: dict[str, Callable[[Any], object]] = {
    "rename": lambda bench: bench.reopen().rename_branch("old", "new"),
    "rename elsewhere": lambda bench: bench.reopen().rename_branch("old", "third"),
    "delete old": lambda bench: bench.reopen().delete_branch("old"),
    "delete new": lambda bench: bench.reopen().delete_branch("new"),
    "create new": lambda bench: bench.reopen().create_branch("new"),
    "create old": lambda bench: bench.reopen().create_branch("old"),
    "collect": lambda bench: bench.reopen().collect(grace_ms=86_400_000),
    "expire main": lambda bench: bench.reopen().expire(retain_max=1, retain_min=1, older_than_ms=2**60),
}


def is_decision(call: Call) -> bool:
    return call.kind == "put" and call.path.startswith(RENAMED_FOLDER)


@pytest.mark.parametrize("winner", ["alpha", "zeta"])
def test_the_name_that_a_lost_rename_had_taken_is_free_again(new_bench: Any, winner: str) -> None:
    """Of two renames of a branch one is decided: the loser finishes it, and the name that it had taken can be used."""
    bench = new_bench({})
    fill(bench)

    def win() -> None:
        store = FaultyStore(bench.store, faults=lambda _, call: Fault.CRASH_AFTER if is_decision(call) else None)
        with suppress(Crashed):
            through(bench, store).rename_branch("old", winner)

    store = Meanwhile(bench.store, win, counts=is_decision)
    with pytest.raises(NotFound, match="'old'"):
        through(bench, store).rename_branch("old", "new")
    assert store.happened is not None
    assert check_whole(bench) == {winner: ["b2", "b3", "m2"]}
    assert bench.table.context.tags.all_names() == [fork_pin(winner)]
    bench.table.create_branch("new")


@pytest.mark.parametrize("deleted", ["aaa", "zzz"])
def test_a_rename_that_was_cut_short_hinders_no_deletion_of_another_branch(new_bench: Any, deleted: str) -> None:
    """Who deletes a branch finishes the renames that it sees, and is refused only where one gives that name."""
    bench = new_bench({})
    fill(bench)
    bench.table.create_branch(deleted)
    for name in (deleted, "new"):
        store = FaultyStore(bench.store, faults=lambda _, call: Fault.CRASH_AFTER if is_decision(call) else None)
        with suppress(Crashed):
            through(bench, store).rename_branch("old", "new")
        if name == "new":
            with pytest.raises(Conflict, match="'new' was not deleted: an unfinished rename has just given it"):
                bench.reopen().delete_branch(name)
        else:
            bench.reopen().delete_branch(name)
        assert check_whole(bench) == {"new": ["b2", "b3", "m2"]}
        bench.table.rename_branch("new", "old")


@pytest.mark.parametrize("verb", MEANWHILE)
def test_another_verb_of_branches_comes_between(new_bench: Any, verb: str) -> None:
    """At any call of a rename another rename, a deletion, a creation or a collection: the rows have one name, whole.

    Only who deletes the branch by the name that it has at that time ends it.
    """
    bench = new_bench({})
    fill(bench)
    total = len(record(bench))
    objects = {meta.path: bytes(bench.store.get(meta.path)) for meta in bench.store.list("")}
    for index in some_of(total, list(MEANWHILE).index(verb)):
        reset(bench, objects)
        errors: list[LakebedError] = []

        def act() -> None:
            bench.clock.advance(200_000.0)
            try:
                MEANWHILE[verb](bench)
            except LakebedError as error:
                errors.append(error)  # noqa: B023 (of this round)

        store = Meanwhile(bench.store, after=True)
        table = through(bench, store)
        store.expect(act, at=index)
        refused = None
        try:
            table.rename_branch("old", "new")
        except LakebedError as error:
            refused = error
        if store.happened is None:
            continue
        where = f"call {index}, {refused!r}, {errors}"
        live = check_whole(bench)
        whole = [name for name, files in live.items() if files == ["b2", "b3", "m2"]]
        if verb.startswith("delete") and not errors:
            assert len(whole) <= 1, where
        else:
            assert len(whole) == 1, f"{where}: {live}"
        assert (
            refused is not None
            or errors
            or verb.startswith(("delete", "create", "expire", "collect"))
            or (whole == ["new"] if verb == "rename" else whole == ["third"])
        ), where
        assert not bench.reopen().collect(grace_ms=0).warnings
        assert check_whole(bench) == live
        if whole:
            fork = bench.reopen(branch=whole[0])
            assert [tag.name for tag in fork.tags()] == ["first", "third"]


# ---- those who read


@dataclass
class Follower:
    """A stream reader: the ids of the batches that it has read whole, and its offset, as in a checkpoint."""

    ids: list[int] = field(default_factory=list)
    offset: StreamOffset | None = None

    def follow(self, table: Table) -> None:
        """Read all that is there, a snapshot a batch."""
        following = TableStream(table.context, StreamSettings(start="full"), schema=table.refresh())
        offset = following.first() if self.offset is None else self.offset
        while (end := following.advance(offset, Limits(snapshots=1))) != offset:
            batch = following.plan(offset, end)
            for split in batch.splits:
                self.ids += read_split_table(table.store, split, plan=batch.plan)["id"].to_pylist()
            self.offset = offset = end
            following.hold("reader", end)


def test_a_stream_of_a_branch_that_is_renamed_at_any_call_reads_each_row_once(new_bench: Any) -> None:
    """It ends with an error, and goes on from its last offset by the new name."""
    bench = new_bench({})
    bench.table.append(pa.table({"id": [0]}))
    fork = bench.table.create_branch("old")
    for number in (1, 2):
        fork.append(pa.table({"id": [number]}))
    objects = {meta.path: bytes(bench.store.get(meta.path)) for meta in bench.store.list("")}
    ended = 0
    for index in range(300):
        reset(bench, objects)
        store = Meanwhile(bench.store, after=True)
        reader, table = Follower(), through(bench, store, branch="old")
        store.expect(lambda: bench.reopen().rename_branch("old", "new"), at=index)
        try:
            reader.follow(table)
        except (NotFound, Conflict):
            ended += 1
        if store.happened is None:
            break
        reader.follow(bench.reopen(branch="new"))
        assert sorted(reader.ids) == [0, 1, 2], f"call {index}, {store.happened}"
        assert check_whole(bench).keys() == {"new"}
    assert ended > 5
