"""Collections: unreachable objects go, reachable ones stay, and what goes cannot become reachable meanwhile."""

from __future__ import annotations

import copy
import random
import re
import struct
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import replace
from datetime import timedelta
from functools import cache
from typing import Any

import msgspec
import pyarrow as pa
import pytest
from xxhash import xxh3_64_intdigest

from lakebed.errors import Conflict, InvalidRequest, LakebedError
from lakebed.key_value.port import KeyValue
from lakebed.lsm.file_id import file_id_at
from lakebed.repo.collect.collect import collect_garbage, plan_collection, subtract_here
from lakebed.repo.collect.why import why, why_version
from lakebed.repo.heads.compact import compact_once
from lakebed.repo.heads.write import delete, stage
from lakebed.repo.model.entry import new_upload
from lakebed.repo.model.layout import DATA_FOLDER, METARANGE_FOLDER, RANGE_FOLDER
from lakebed.repo.model.model import Entry
from lakebed.repo.model.options import CollectionOptions
from lakebed.repo.objects import data
from lakebed.repo.records.context import RepositoryContext
from lakebed.repo.records.records import encode_record
from lakebed.repo.records.retention import store_retention
from lakebed.repo.references.branches import create_branch, delete_branch, list_branches, undelete_branch
from lakebed.repo.references.commits import find_commit, load_commit
from lakebed.repo.references.mark import mark
from lakebed.repo.references.tags import create_tag, delete_tag, list_tags
from lakebed.runtime import Environment
from lakebed.testing.clock import ManualClock
from lakebed.testing.faulty import Crashed
from lakebed.testing.scheduler import seed_count
from worlds.errors import raises
from worlds.key_value_wrapper import KeyValueWrapper
from worlds.repo.memory_repository import MemoryRepository, Pause, Trap, bodies, copy_of_all, open_context
from worlds.repo.operations import cherry_pick, commit, hard_reset, merge, rebase, reset, revert

AT_ONCE = CollectionOptions(grace=timedelta(0))


class Lab:
    """A repository whose clock is moved by hand."""

    def __init__(self) -> None:
        self.clock = ManualClock()
        self.place = MemoryRepository(environment=Environment(clock=self.clock, rng=random.Random(1)))

    def copy(self) -> Lab:
        """The same at the same time, with records and objects of its own."""
        made = copy.copy(self)
        made.clock = ManualClock(start_ms=self.clock.now_ms())
        made.place = copy_of_all(self.place, clock=made.clock)
        return made

    def put(self, home: RepositoryContext, path: str, body: bytes, *, branch: str = "main") -> Entry:
        """Upload and stage."""
        self.clock.advance(1)
        entry = data.upload(home, body)
        stage(home, branch=branch, path=path, entry=entry)
        return entry

    def days(self, number: float) -> None:
        """Let time pass."""
        self.clock.advance(number * 86_400)


@pytest.fixture
def lab() -> Lab:
    """A repository at the beginning of a day."""
    return Lab()


@pytest.fixture
def home(lab: Lab) -> Iterator[RepositoryContext]:
    """Its only process."""
    with open_context(lab.place) as opened:
        yield opened


def objects(home: RepositoryContext) -> set[str]:
    """Addresses of all objects."""
    return {meta.path for meta in home.store.list(DATA_FOLDER)}


def files(home: RepositoryContext) -> set[str]:
    """Ranges and metaranges."""
    return {meta.path for folder in (RANGE_FOLDER, METARANGE_FOLDER) for meta in home.store.list(folder)}


def test_what_was_overwritten_before_a_commit_goes(lab: Lab, home: RepositoryContext) -> None:
    """Uncommitted garbage: an overwritten, a deleted and a never staged upload; what is staged and committed stays."""
    first = lab.put(home, "a", b"one")
    kept = lab.put(home, "a", b"two")
    removed = lab.put(home, "b", b"three")
    delete(home, branch="main", path="b")
    commit(home, "main", message="a")
    staged = lab.put(home, "c", b"four")
    never = data.upload(home, b"five")
    lab.days(2)
    plan = plan_collection(home)
    expected = {first.address, removed.address, never.address}
    assert {target.path for target in plan.doomed if target.path.startswith(DATA_FOLDER)} == expected
    assert objects(home) == expected | {kept.address, staged.address}
    report = collect_garbage(home)
    assert objects(home) == {kept.address, staged.address}
    assert report.deleted_bytes >= len(b"onethreefive")
    assert bodies(home, "main") == {"a": b"two", "c": b"four"}
    assert collect_garbage(home).deleted_count == 0


def test_what_has_no_name_that_a_repository_gives_stays(lab: Lab, home: RepositoryContext) -> None:
    """Files that a user has put into the folders of a repository are not its own, whatever ids are in their names."""
    ulid = file_id_at(lab.clock.now_ms())
    ours = {new_upload(home.environment), f"derived/{'0a' * 12}-{ulid}.metadata.json", f"ranges/{'0a' * 32}-{ulid}"}
    names = (
        "uploads/{0}",
        "uploads/{0}.csv",
        "uploads/a-{0}",
        f"uploads/{{0}}-{'0a' * 8}",
        "derived/{0}",
        "derived/a-{0}",
        "derived/day-{0}.csv",
        "ranges/x/{0}",
    )
    theirs = {name.format(ulid) for name in names}
    for path in ours | theirs:
        home.store.put(path, b"1")
    lab.days(2)
    assert {why(home, path).sentence.startswith("The repository") for path in theirs} == {True}
    collect_garbage(home)
    left = {meta.path for folder in ("uploads", "derived", "ranges") for meta in home.store.list(folder)}
    assert theirs <= left
    assert not ours & left


def test_a_dry_run_changes_nothing(lab: Lab, home: RepositoryContext) -> None:
    """Neither an object nor a record is touched, and the plan is the real one."""
    lab.put(home, "a", b"one")
    lab.put(home, "a", b"two")
    lab.days(2)
    with home.key_value.snapshot() as snapshot:
        before = list(snapshot.scan())
    paths = {meta.path for meta in home.store.list()}
    shown = collect_garbage(home, dry_run=True)
    with home.key_value.snapshot() as snapshot:
        assert list(snapshot.scan()) == before
    assert {meta.path for meta in home.store.list()} == paths
    assert shown.dry_run
    assert shown.plan is not None
    real = collect_garbage(home)
    assert real.plan is not None
    assert [target.path for target in shown.plan.doomed] == [target.path for target in real.plan.doomed] != []


def test_young_uploads_stay_and_late_ones_are_refused(lab: Lab, home: RepositoryContext) -> None:
    """An upload within the minimum age survives; one staged after the boundary passed it is a Conflict, not a hole."""
    slow = data.upload(home, b"slow")
    lab.days(0.9)
    collect_garbage(home)
    assert slow.address in objects(home)
    lab.days(0.2)
    collect_garbage(home)
    assert slow.address not in objects(home)
    with raises(Conflict, "upload_expired"):
        stage(home, branch="main", path="slow", entry=slow)
    assert bodies(home, "main") == {}


def test_retention_takes_objects_and_leaves_the_log(lab: Lab, home: RepositoryContext) -> None:
    """Behind the rule a commit loses its objects; head, tag and what was visible within the rule keep theirs."""
    old = lab.put(home, "a", b"old")
    first = commit(home, "main", message="1")
    lab.days(1)
    middle = lab.put(home, "a", b"middle")
    tagged = commit(home, "main", message="2")
    create_tag(home, "keep", commit_id=tagged.id)
    lab.days(1)
    later = lab.put(home, "a", b"later")
    third = commit(home, "main", message="3")
    lab.days(10)
    newest = lab.put(home, "a", b"newest")
    commit(home, "main", message="4")
    lab.days(2)
    collect_garbage(home)
    assert objects(home) == {old.address, middle.address, later.address, newest.address}  # no rule: for ever
    store_retention(home, default_days=5)
    collect_garbage(home)
    # Commit 3 was the head until two days ago; commit 2 is tagged; commit 1 is neither.
    assert objects(home) == {middle.address, later.address, newest.address}
    assert bodies(home, third.id) == {"a": b"later"}
    assert bodies(home, "keep") == {"a": b"middle"}
    with raises(LakebedError, "object_gone"):
        bodies(home, first.id)


def test_nothing_new_refers_to_an_expired_commit(lab: Lab, home: RepositoryContext) -> None:
    """Tag, branch, reset and pick of a commit without objects are refused with a sentence."""
    lab.put(home, "a", b"old")
    first = commit(home, "main", message="1")
    delete(home, branch="main", path="a")
    lab.put(home, "b", b"new")
    commit(home, "main", message="2")
    lab.days(30)
    store_retention(home, default_days=5)
    collect_garbage(home)
    attempts: list[Callable[[], object]] = [
        lambda: create_tag(home, "late", commit_id=first.id),
        lambda: create_branch(home, "late", source=first.id),
        lambda: hard_reset(home, "main", ref=first.id),
        lambda: cherry_pick(home, "main", ref=first.id),
    ]
    for attempt in attempts:
        with raises(InvalidRequest, "commit_expired"):
            attempt()


def test_a_commit_whose_collection_ended_early_has_expired(lab: Lab, home: RepositoryContext) -> None:
    """Its record goes after its ranges: verbs that find the one without the others name the reason, not a damage."""
    create_branch(home, "dev", source="main")
    lab.put(home, "d", b"dev", branch="dev")
    gone = commit(home, "dev", message="dev")
    delete_branch(home, "dev")
    lab.put(home, "a", b"main")
    commit(home, "main", message="main")
    lab.days(30)

    def end(_: object) -> None:
        raise Crashed

    with pytest.raises(Crashed):
        collect_garbage(home, progress=end)
    with open_context(lab.place) as other:
        attempts: list[Callable[[], object]] = [
            lambda: merge(other, gone.id, into="main"),
            lambda: rebase(other, "main", onto=gone.id),
            lambda: cherry_pick(other, "main", ref=gone.id),
            lambda: revert(other, "main", ref=gone.id),
        ]
        for attempt in attempts:
            with raises(InvalidRequest, "commit_expired"):
                attempt()


def test_a_deleted_branch_can_come_back_for_days(lab: Lab, home: RepositoryContext) -> None:
    """The reference log keeps a deleted branch's commits; then they go, records and ranges too."""
    create_branch(home, "dev", source="main")
    only_there = lab.put(home, "d", b"dev", branch="dev")
    at = commit(home, "dev", message="dev")
    before = files(home)
    delete_branch(home, "dev")
    lab.days(3)
    collect_garbage(home)
    assert only_there.address in objects(home)
    assert files(home) == before
    lab.days(10)
    collect_garbage(home)
    assert only_there.address not in objects(home)
    assert files(home) == set()
    assert home.key_value.get(home.keys.commit(at.id)) is None
    with pytest.raises(LakebedError):
        create_tag(home, "late", commit_id=at.id)


def test_a_deleted_branch_whose_head_is_old_can_come_back_too(lab: Lab, home: RepositoryContext) -> None:
    """The days count from the deletion, which the reference log has, and not from the commit."""
    create_branch(home, "dev", source="main")
    lab.put(home, "d", b"dev", branch="dev")
    commit(home, "dev", message="dev")
    lab.days(30)
    delete_branch(home, "dev")
    lab.days(6)
    collect_garbage(home)
    undelete_branch(home, "dev")
    assert bodies(home, "dev") == {"d": b"dev"}


def test_compacted_and_superseded_metaranges(lab: Lab, home: RepositoryContext) -> None:
    """What a compaction made stays while a branch has it; what a later one or a reset replaced goes a day later."""
    lab.put(home, "a", b"1")
    compact_once(home, "main", force=True)
    first = files(home)
    lab.put(home, "b", b"2")
    compact_once(home, "main", force=True)
    lab.days(2)
    collect_garbage(home)
    second = files(home)
    assert second
    assert not (second & first)
    assert bodies(home, "main") == {"a": b"1", "b": b"2"}
    reset(home, "main")
    collect_garbage(home)
    assert files(home) == second
    assert len(objects(home)) == 2
    lab.days(1.1)
    collect_garbage(home)
    assert files(home) == set()
    assert objects(home) == set()


def test_imported_objects_are_never_deleted(lab: Lab, home: RepositoryContext) -> None:
    """A collection ignores an entry whose bytes lie elsewhere."""
    stage(home, branch="main", path="far", entry=Entry("https://example.org/far", 4, "etag", 0))
    near = lab.put(home, "near", b"near")
    commit(home, "main", message="both")
    lab.days(2)
    report = collect_garbage(home)
    assert report.deleted_count == 0
    assert objects(home) == {near.address}


def test_what_cannot_be_read_protects_everything(lab: Lab, home: RepositoryContext) -> None:
    """A range that is gone: nothing is deleted, and the report says why."""
    lab.put(home, "a", b"1")
    commit(home, "main", message="1")
    garbage = data.upload(home, b"garbage")
    lab.days(2)
    lost = next(meta.path for meta in home.store.list(RANGE_FOLDER))
    home.store.delete([lost])
    with open_context(lab.place) as fresh:
        report = collect_garbage(fresh)
    assert report.deleted_count == 0
    assert "Nothing is deleted" in report.warnings[0]
    assert garbage.address in objects(home)


def test_why_says_who_needs_an_object(lab: Lab, home: RepositoryContext) -> None:
    """Head, tag and staging area are named; garbage is reported as such."""
    kept = lab.put(home, "a", b"1")
    made = commit(home, "main", message="1")
    create_tag(home, "v1", commit_id=made.id)
    staged = lab.put(home, "b", b"2")
    garbage = data.upload(home, b"3")
    assert {(pin.kind, pin.name) for pin in why(home, kept.address).pins} == {("branch", "main"), ("tag", "v1")}
    assert [(pin.kind, pin.name) for pin in why(home, staged.address).pins] == [("branch", "main")]
    verdict = why(home, garbage.address)
    assert verdict.pins == ()
    assert "collection deletes it" in verdict.sentence
    a_range = next(meta.path for meta in home.store.list(RANGE_FOLDER))
    assert {pin.name for pin in why(home, a_range).pins} == {"main", "v1"}
    assert "made no such object" in why(home, "data/readme").sentence


def test_why_a_version_keeps_its_objects(lab: Lab, home: RepositoryContext) -> None:
    """A branch keeps what was its head until its rule ends that, a tag its commit alone; without rules all behind."""
    commits = []
    for number in range(3):
        lab.put(home, "a", str(number).encode())
        commits.append(commit(home, "main", message=str(number)))
        lab.days(10)
    create_tag(home, "v1", commit_id=commits[1].id, lifetime_ms=1_000)
    first, second, head = (item.id for item in commits)
    assert names_of(home, first) == [("branch", "main"), ("tag", "v1")]
    store_retention(home, default_days=15)
    assert names_of(home, first) == []
    assert "a collection deletes" in why_version(home, first).sentence
    explanation = why_version(home, second)
    assert [(pin.name, pin.version, pin.owner) for pin in explanation.pins] == [("v1", second, ""), ("main", head, "")]
    assert explanation.sentence == "Its objects are kept by tag v1, branch main."
    assert [pin.expires_ms for pin in why_version(home, "main").pins] == [None]
    ends = explanation.pins[1].expires_ms
    assert ends is not None
    lab.clock.advance((ends - lab.clock.now_ms() - 1) / 1000)
    assert names_of(home, second) == [("branch", "main")]
    lab.clock.advance(0.001)
    assert names_of(home, second) == []
    collect_garbage(home)
    assert "a collection has deleted" in why_version(home, second).sentence
    create_branch(home, "dev", source="main")
    delete_branch(home, "dev")
    lab.put(home, "a", b"lost", branch="main")
    lost = commit(home, "main", message="lost")
    hard_reset(home, "main", ref=head)
    assert names_of(home, lost.id) == []
    assert "within 7 days" in why_version(home, lost.id).sentence


@pytest.mark.parametrize("seed", range(4))
def test_what_keeps_a_version_is_what_a_collection_keeps(lab: Lab, home: RepositoryContext, seed: int) -> None:
    """Of every commit of a random history: objects that a branch or tag is said to keep stay, the others go."""
    rng = random.Random(seed)
    branches = ["main", "dev", "work"]
    for name in branches[1:]:
        create_branch(home, name, source="main")
    for number in range(30):
        name = rng.choice(branches)
        if rng.random() < 0.3:
            with suppress(LakebedError):
                merge(home, rng.choice(branches), into=name)
        else:
            lab.put(home, f"{name}{number}", b"", branch=name)
            commit(home, name, message=str(number))
        if rng.random() < 0.2:
            forget_time(home, dict(list_branches(home))[name].commit_id)
        if rng.random() < 0.1:
            create_tag(home, f"v{number}", commit_id=dict(list_branches(home))[name].commit_id)
        lab.days(rng.choice((0, 1, 5)))
    lab.days(8)
    store_retention(home, default_days=20, branch_days={"dev": 60})
    with home.key_value.snapshot() as snapshot:
        marked = mark(home, snapshot, now_ms=home.now_ms())
    kept = {commit_id for commit_id in marked.commits if names_of(home, commit_id)}
    collect_garbage(home)
    expired = {id for id in marked.commits if home.key_value.get(home.keys.expired(id)) is not None}
    assert expired == set(marked.commits) - kept != set()


def forget_time(home: RepositoryContext, commit_id: str) -> None:
    """Make the record of a commit what an older version wrote."""
    old = msgspec.structs.replace(load_commit(home, commit_id), stored_at_ms=None)
    home.key_value.set(home.keys.commit(commit_id), encode_record(old))


def names_of(home: RepositoryContext, version: str) -> list[tuple[str, str]]:
    """Kind and name of what keeps the objects of a version."""
    return [(pin.kind, pin.name) for pin in why_version(home, version).pins]


def test_marks_and_records_are_changed_in_batches(
    lab: Lab, home: RepositoryContext, monkeypatch: pytest.MonkeyPatch
) -> None:
    """More commits than one write takes: what expires is marked for good, what nothing reaches loses its record."""
    monkeypatch.setattr("lakebed.repo.collect.collect._WRITE_COUNT_MAX", 2)
    create_branch(home, "dev", source="main")
    made: dict[str, list[str]] = {"main": [], "dev": []}
    for number in range(6):
        for branch, ids in made.items():
            lab.put(home, "a", f"{branch}{number}".encode(), branch=branch)
            ids.append(commit(home, branch, message=str(number)).id)
    delete_branch(home, "dev")
    lab.days(30)
    store_retention(home, default_days=5)
    collect_garbage(home)
    *old, head = made["main"]
    first = load_commit(home, old[0]).parents[0]
    assert [home.key_value.get(home.keys.expired(id)) for id in [first, *old, *made["dev"]]] == [b""] * 12
    assert home.key_value.get(home.keys.expired(head)) is None
    assert [find_commit(home, id) for id in made["dev"]] == [None] * 6
    assert [load_commit(home, id).message for id in made["main"]] == list("012345")


def test_what_is_as_old_as_the_boundary_stays(lab: Lab, home: RepositoryContext) -> None:
    """It may be staged still: only what is older is listed, of uploads, ranges and what is made for others alike."""
    lab.days(30)
    boundary_ms = lab.clock.now_ms() - 86_400_000
    names = [f"{DATA_FOLDER}/{{}}", f"{RANGE_FOLDER}/{'0a' * 32}-{{}}", f"derived/{'0a' * 12}-{{}}.metadata.json"]
    older, equal = ({name.format(file_id_at(at_ms)) for name in names} for at_ms in (boundary_ms - 1, boundary_ms))
    for path in older | equal:
        home.store.put(path, b"1")
    collect_garbage(home)
    assert {meta.path for meta in home.store.list()} >= equal
    assert not {meta.path for meta in home.store.list()} & older
    entry = Entry(f"{DATA_FOLDER}/{file_id_at(boundary_ms)}", 1, "", 0)
    stage(home, branch="main", path="a", entry=entry)
    assert bodies(home, "main") == {"a": b"1"}


def test_objects_are_compared_in_batches(lab: Lab, home: RepositoryContext, monkeypatch: pytest.MonkeyPatch) -> None:
    """A listing is columns, some objects a batch; all of it is compared."""
    monkeypatch.setattr("lakebed.repo.collect.collect._LISTED_COUNT", 2)
    kept = lab.put(home, "a", b"kept")
    commit(home, "main", message="1")
    garbage = [data.upload(home, b"x" * number) for number in range(4)]
    lab.days(2)
    sizes: list[int] = []

    def subtract(context: RepositoryContext, listed: pa.Table, **others: Any) -> pa.Table:
        sizes.extend(batch.num_rows for batch in listed.to_batches())
        return subtract_here(context, listed, **others)

    report = collect_garbage(home, subtract=subtract)
    assert sizes == [2, 2, 1]
    assert (report.deleted_count, report.deleted_bytes) == (len(garbage), 0 + 1 + 2 + 3)
    assert objects(home) == {kept.address}


def test_a_report_says_what_is_kept_and_why_the_rest_goes(lab: Lab, home: RepositoryContext) -> None:
    """Named objects are counted; every path that goes has its reason; commits without objects are a warning."""
    for number in range(3):
        lab.put(home, "a", str(number).encode())
        commit(home, "main", message=str(number))
    lab.put(home, "b", b"compacted")
    compact_once(home, "main", force=True)
    garbage = data.upload(home, b"garbage")
    derived = f"derived/{'0a' * 12}-{file_id_at(lab.clock.now_ms())}.metadata.json"
    home.store.put(derived, b"12345")
    lab.days(30)
    plan = plan_collection(home)
    assert (plan.kept, plan.warnings) == ({"named": 4}, ())
    assert {(target.path, target.size_bytes, target.why) for target in plan.doomed} == {
        (garbage.address, 7, "no kept commit and nothing staged names it"),
        (derived, 5, "it was made for Iceberg's clients, and is made again when they ask"),
    }
    compacted = files(home)
    reset(home, "main")
    lab.days(2)
    store_retention(home, default_days=5)
    plan = plan_collection(home)
    assert plan.kept == {"named": 1}
    assert plan.warnings == (
        "3 commits are older than the rules of retention: they stay in the log without their objects.",
    )
    assert {target.path for target in plan.doomed if "no compacted staging area" in target.why} < compacted
    assert plan.bytes_freed == collect_garbage(home).deleted_bytes
    assert plan_collection(home).doomed == ()


class Rising(KeyValueWrapper):
    """A key-value store in which other collections raise the boundary before each of some attempts to do so."""

    def __init__(self, inner: KeyValue, *, boundary: bytes, times: int) -> None:
        super().__init__(inner)
        self._boundary, self._times = boundary, times
        self.attempts = 0

    def set_if(self, key: bytes, value: bytes | None, *, expected: bytes | None) -> None:
        """Let another one be first."""
        if key == self._boundary:
            self.attempts += 1
            if self.attempts <= self._times:
                self.inner.set(key, file_id_at(self.attempts).encode())
        super().set_if(key, value, expected=expected)


def test_collections_raise_the_boundary_together(
    lab: Lab, home: RepositoryContext, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One that loses tries again, so often; then nothing is deleted, and the error says so."""
    monkeypatch.setattr("lakebed.repo.collect.collect._TRIES_MAX", 3)
    garbage = data.upload(home, b"garbage")
    lab.days(2)
    for times in (4, 3):
        rising = Rising(home.key_value, boundary=home.keys.boundary, times=times)
        with raises(Conflict, "boundary_contention", match="raised its boundary 3 times"):
            collect_garbage(replace(home, key_value=rising))
        assert rising.attempts == 3
        assert objects(home) == {garbage.address}
    rising = Rising(home.key_value, boundary=home.keys.boundary, times=2)
    collect_garbage(replace(home, key_value=rising))
    assert home.key_value.get(home.keys.boundary) == file_id_at(lab.clock.now_ms() - 86_400_000).encode()
    assert objects(home) == set()
    raised = home.key_value.get(home.keys.boundary)
    collect_garbage(home, options=CollectionOptions(grace=timedelta(days=1, seconds=1)))
    assert home.key_value.get(home.keys.boundary) == raised


def test_negative_ages_are_refused(home: RepositoryContext) -> None:
    """A minimum age in the future is a mistake."""
    with pytest.raises(InvalidRequest):
        collect_garbage(home, options=CollectionOptions(grace=timedelta(seconds=-1)))


@cache
def old_lab() -> tuple[Lab, Entry]:
    """Old commits, staged rows and garbage; and an entry that only an expired commit names."""
    lab = Lab()
    with open_context(lab.place) as home:
        old = lab.put(home, "a", b"old")
        commit(home, "main", message="1")
        lab.put(home, "a", b"new")
        commit(home, "main", message="2")
        lab.put(home, "b", b"staged")
        data.upload(home, b"garbage")
        create_branch(home, "dev", source="main")
        lab.put(home, "d", b"dev", branch="dev")
        commit(home, "dev", message="dev")
        lab.days(30)
        store_retention(home, default_days=5)
    return lab, old


# A crash before a call leaves what the crash after the call before it leaves.
@pytest.mark.parametrize("mode", [pytest.param("crash before", marks=pytest.mark.long), "crash after"])
def test_a_collector_may_die_at_every_call(mode: str) -> None:
    """After a death at any call, everything that is referred to reads as before, and the next one finishes the work."""
    at = 0
    while True:
        prepared, old = old_lab()
        lab = prepared.copy()
        with open_context(lab.place) as home:
            trap = Trap(at, mode)  # type: ignore[arg-type]
            with suppress(Crashed), open_context(lab.place, trap=trap) as dying:
                collect_garbage(dying)
            assert bodies(home, "main") == {"a": b"new", "b": b"staged"}
            assert bodies(home, "dev") == {"a": b"new", "d": b"dev"}
            collect_garbage(home)
            assert old.address not in objects(home)
            assert len(objects(home)) == 3
            assert bodies(home, "main") == {"a": b"new", "b": b"staged"}
            assert bodies(home, "dev") == {"a": b"new", "d": b"dev"}
        if not trap.has_sprung:
            break
        at += 1
    assert at > 15


class Interlude(Trap):
    """Lets another process act just before one call of the collector."""

    def __init__(self, at: int, act: Callable[[], object]) -> None:
        super().__init__(None)
        self._act_at = at
        self._act = act
        self.has_acted = False

    def pass_by(self, perform: Callable[[], Any], *, changes: bool) -> Any:
        """The call, and before one of them the other's act."""
        if self.call_count == self._act_at and not self.has_acted:
            self.has_acted = True
            with suppress(LakebedError):
                self._act()
        return super().pass_by(perform, changes=changes)


def acts(lab: Lab, home: RepositoryContext, *, first_id: str, slow: Entry) -> dict[str, Callable[[], object]]:
    """What others may do at any moment of a collection."""
    return {
        "tag an old commit": lambda: create_tag(home, "late", commit_id=first_id),
        "branch from an old commit": lambda: create_branch(home, "late", source=first_id),
        "reset to an old commit": lambda: hard_reset(home, "main", ref=first_id, force=True),
        "pick an old commit": lambda: cherry_pick(home, "main", ref=first_id),
        "stage an old upload": lambda: stage(home, branch="main", path="slow", entry=slow),
        "commit": lambda: commit(home, "main", message="now"),
        "compact": lambda: compact_once(home, "main", force=True),
        "drop and make again": lambda: (delete_branch(home, "dev"), create_branch(home, "dev2", source="dev~0")),
        "undelete": lambda: undelete_branch(home, "gone"),
        "upload and stage": lambda: lab.put(home, "young", b"young"),
        "collect": lambda: collect_garbage(home, options=AT_ONCE),
        "reset": lambda: reset(home, "main"),
        "untag": lambda: delete_tag(home, "keep"),
    }


@cache
def lab_of_branches() -> tuple[Lab, str, Entry]:
    """Expired and kept commits, a branch that is gone; with the id of the oldest commit and an upload that is old."""
    lab = Lab()
    with open_context(lab.place) as home:
        lab.put(home, "a", b"old")
        first = commit(home, "main", message="1")
        delete(home, branch="main", path="a")
        lab.put(home, "b", b"new")
        second = commit(home, "main", message="2")
        create_tag(home, "keep", commit_id=second.id)
        for branch in ("dev", "gone"):
            create_branch(home, branch, source="main")
            lab.put(home, branch, branch.encode(), branch=branch)
            commit(home, branch, message=branch)
        lab.days(30)
        delete_branch(home, "gone")
        slow = data.upload(home, b"slow")
        lab.days(2)
        lab.put(home, "c", b"staged")
        store_retention(home, default_days=5)
    return lab, first.id, slow


LONG = ("pick an old commit", "reset to an old commit", "reset", "untag")
"""What they do to a collection a tag or branch of an old commit, or a branch that is dropped, does too."""


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=[pytest.mark.long] if name in LONG else [])
        for name in sorted(acts(None, None, first_id="", slow=None))  # type: ignore[arg-type]
    ],
)
def test_whatever_happens_during_a_collection_what_is_named_can_be_read(name: str) -> None:
    """Another's act before each single call of a collection: afterwards every reference reads, object by object.

    Each act takes every third call, its neighbours the others; in a long run every act takes every call.
    """
    step = 1 if seed_count(1) > 1 else 3
    at = sorted(acts(None, None, first_id="", slow=None)).index(name) % step  # type: ignore[arg-type]
    while True:
        prepared, first_id, slow = lab_of_branches()
        lab = prepared.copy()
        with open_context(lab.place) as home:
            interlude = Interlude(at, acts(lab, home, first_id=first_id, slow=slow)[name])
            with open_context(lab.place, trap=interlude) as collecting:
                collect_garbage(collecting)
            for branch, _ in list_branches(home):
                bodies(home, branch)
            for tag, _ in list_tags(home):
                bodies(home, tag)
        if not interlude.has_acted:
            break
        at += step
    assert at > 15


def test_a_clock_that_is_ahead_takes_no_tag(lab: Lab, home: RepositoryContext) -> None:
    """A tag with a lifetime holds its commit by the earlier of the collector's clock and the store's."""
    kept = lab.put(home, "a", b"kept")
    made = commit(home, "main", message="1")
    create_tag(home, "for-a-week", commit_id=made.id, lifetime_ms=7 * 86_400_000)
    delete(home, branch="main", path="a")
    commit(home, "main", message="2")
    lab.days(2)
    store_retention(home, default_days=1)
    ahead = ManualClock(start_ms=lab.clock.now_ms() + 30 * 86_400_000)
    hurried = replace(home, environment=Environment(clock=ahead, rng=random.Random(1)))
    collect_garbage(hurried)
    assert kept.address in objects(home)
    assert bodies(home, "for-a-week") == {"a": b"kept"}


def test_a_range_of_a_newer_format_protects_everything(lab: Lab, home: RepositoryContext) -> None:
    """A range that only a newer lakebed can read: nothing is deleted, and the report says so."""
    lab.put(home, "a", b"1")
    commit(home, "main", message="1")
    data.upload(home, b"garbage")
    lab.days(2)
    path = next(meta.path for meta in home.store.list(RANGE_FOLDER))
    body = bytearray(home.store.get(path))
    trailer = struct.Struct("<IQ8s")
    length, _, magic = trailer.unpack(body[-trailer.size :])
    start = len(body) - trailer.size - length
    footer = re.sub(rb'"min_reader":\d', b'"min_reader":9', bytes(body[start : start + length]))
    body[start:] = footer + trailer.pack(length, xxh3_64_intdigest(footer, seed=start), magic)
    home.store.put(path, bytes(body))
    with open_context(lab.place) as fresh:
        report = collect_garbage(fresh)
    assert report.deleted_count == 0
    assert "upgrade lakebed" in report.warnings[0]


def test_rules_that_change_during_a_collection_take_nothing_without_a_mark(lab: Lab) -> None:
    """What the first look needs stays, or is marked as expired: no tag can be made of a commit without its objects."""
    at = 0
    while True:
        other = Lab()
        with open_context(other.place) as home:
            other.put(home, "a", b"old")
            old = commit(home, "main", message="1")
            delete(home, branch="main", path="a")
            commit(home, "main", message="2")
        other.days(20)

        def forget(place: MemoryRepository = other.place) -> None:
            with open_context(place) as admin:
                store_retention(admin, default_days=1)

        pause = Pause(at, forget)
        with open_context(other.place, trap=pause) as home:
            collect_garbage(home)
        with open_context(other.place) as home, suppress(InvalidRequest):
            create_tag(home, "old", commit_id=old.id)
            assert bodies(home, "old") == {"a": b"old"}, f"rules changed before call {at}"
        if not pause.has_sprung:
            break
        at += 1
    assert at > 10
