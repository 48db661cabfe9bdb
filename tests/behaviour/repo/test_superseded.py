"""States that a branch or tag has given up: readers in the middle of them go on, and a late one hears what happened."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from datetime import timedelta
from functools import cache

import pytest

from lakebed.errors import Conflict, Corruption, LakebedError, NotFound
from lakebed.repo.collect.collect import collect_garbage
from lakebed.repo.heads.compact import compact_once
from lakebed.repo.heads.write import delete, delete_prefix, stage, stage_if_absent
from lakebed.repo.model.layout import DATA_FOLDER, METARANGE_FOLDER, RANGE_FOLDER
from lakebed.repo.model.model import Entry
from lakebed.repo.model.options import CollectionOptions
from lakebed.repo.objects import data
from lakebed.repo.records.context import RepositoryContext
from lakebed.repo.records.superseded import KEPT_DAYS, trim_superseded
from lakebed.repo.references.branches import create_branch, delete_branch
from lakebed.repo.references.tags import create_tag, delete_tag
from lakebed.repo.staging.listing import Listed
from lakebed.repo.staging.view import at_reference
from lakebed.repo.transport.local_objects import local_store
from lakebed.repo.verbs.reading import Exists, ListObjects, Stat, StatMany
from lakebed.runtime import Environment
from lakebed.testing.clock import ManualClock
from worlds.errors import raises
from worlds.repo.memory_repository import (
    MemoryRepository,
    Pause,
    contents,
    copy_of_all,
    entry_of,
    open_context,
    put,
    put_many,
)
from worlds.repo.operations import (
    commit,
    commit_text,
    diff_uncommitted,
    hard_reset,
    merge,
    reset,
    reset_path,
    reset_prefix,
    revert,
)

AT_ONCE = CollectionOptions(grace=timedelta(0))
Verb = Callable[[RepositoryContext], object]


def listed(rows: Iterator[Listed]) -> list[str]:
    """The paths of a listing."""
    return [row.path for row in rows]


CASES: dict[str, tuple[Verb, object]] = {
    "commit": (lambda home: commit(home, "main", message="m") and None, None),
    "commit of a prefix": (lambda home: commit(home, "main", message="m", prefixes=["a"]) and None, None),
    "reset of a prefix": (lambda home: reset_prefix(home, "main", prefix="x") and None, None),
    "reset of a path": (lambda home: reset_path(home, "main", path="x") and None, None),
    "merge": (lambda home: merge(home, "dev", into="main"), "dirty_branch"),
    "revert": (lambda home: revert(home, "main", ref="main"), "dirty_branch"),
    "hard reset": (lambda home: hard_reset(home, "main", ref="main~1"), "dirty_branch"),
    "compaction": (lambda home: compact_once(home, "main", force=True) and None, None),
    "deletion of a path": (lambda home: delete(home, branch="main", path="x"), False),
    "deletion of a prefix": (lambda home: delete_prefix(home, branch="main", prefix="x"), False),
    "put if absent": (
        lambda home: stage_if_absent(home, branch="main", path="a", entry=entry_of(home, "other")),
        "path_exists",
    ),
    "stat": (lambda home: Stat(ref="main", path="b").run(home).metadata["text"], "compacted"),
    "stat of many": (lambda home: sorted(StatMany(ref="main", paths=["a", "b", "x"]).run(home)), ["a", "b"]),
    "exists": (lambda home: Exists(ref="main", path="x").run(home), False),
    "list": (lambda home: listed(ListObjects(ref="main").rows(home, amount=None)), ["a", "b"]),
    "list of a store": (lambda home: [meta.path for meta in local_store(home, "main").list()], ["a", "b"]),
    "head of a store": (lambda home: local_store(home, "main").head("b").path, "b"),
    "status": (lambda home: [difference.path for difference in diff_uncommitted(home, "main")], ["a", "b"]),
}
"""What a caller does on a branch with something compacted and something staged, and what it must be told."""


@cache
def staged_and_compacted() -> MemoryRepository:
    """A branch with something committed, something compacted and something staged."""
    place = MemoryRepository(environment=Environment(clock=ManualClock(), rng=random.Random(0)))
    with open_context(place) as home:
        commit_text(home, "main", "a", "old", message="1")
        create_branch(home, "dev", source="main")
        commit_text(home, "dev", "d", "new", message="2")
        put(home, "main", "b", "compacted")
        compact_once(home, "main", force=True)
        put(home, "main", "a", "new")
    return place


@pytest.mark.parametrize("name", sorted(CASES))
def test_no_verb_fails_because_what_it_opened_was_replaced_and_collected(name: str) -> None:
    """Compaction and collection, by another process, before each single call: the answer is as without."""
    verb, expected = CASES[name]
    at = 0
    while True:
        begun = staged_and_compacted()
        clock = ManualClock(start_ms=begun.environment.clock.now_ms() + 1000)
        place = copy_of_all(begun, clock=clock)

        def supersede(place: MemoryRepository = place, clock: ManualClock = clock) -> None:
            with open_context(place) as other:
                compact_once(other, "main", force=True)
                clock.advance(1)
                collect_garbage(other, options=AT_ONCE)

        pause = Pause(at, supersede)
        with open_context(place, trap=pause) as home:
            try:
                messages = verb(home)
            except LakebedError as error:
                messages = error.kind
        assert messages == expected, f"asleep before call {at}"
        with open_context(place) as home:
            assert contents(home, "main") == {"a": "new", "b": "compacted"}
        if not pause.has_sprung:
            break
        at += 1
    assert at > 2


class Lab:
    """A repository whose clock is moved by hand, with a branch ``main`` on which many paths are compacted."""

    def __init__(self) -> None:
        self.clock = ManualClock()
        self.place = MemoryRepository(environment=Environment(clock=self.clock, rng=random.Random(1)))
        self.texts = {f"{number:03}": "text" for number in range(200)}
        with open_context(self.place) as home:
            put_many(home, "main", {"zzz": "head"})
            commit(home, "main", message="1")
            put_many(home, "main", self.texts)
            compact_once(home, "main", force=True)
        self.days(2)

    def days(self, number: float) -> None:
        """Let time pass."""
        self.clock.advance(number * 86_400)

    def expected(self) -> list[str]:
        """What a reader that began now lists."""
        return [*self.texts, "zzz"]


@pytest.fixture
def lab() -> Lab:
    """A repository two days after its compaction."""
    return Lab()


GIVES_UP: dict[str, Verb] = {
    "compaction": lambda home: (put(home, "main", "198", "new"), compact_once(home, "main", force=True)),
    "commit": lambda home: (put(home, "main", "198", "new"), commit(home, "main", message="2")),
    "reset": lambda home: reset(home, "main"),
    "reset of a prefix": lambda home: reset_prefix(home, "main", prefix="0"),
    "hard reset": lambda home: hard_reset(home, "main", ref="main~1", force=True),
    "deletion of the branch": lambda home: delete_branch(home, "work"),
}


@pytest.mark.parametrize("name", sorted(GIVES_UP))
def test_a_reader_goes_on_for_the_minimum_age_after_its_state_was_replaced(lab: Lab, name: str) -> None:
    """By default an open listing survives a collection that begins after its old state was replaced; a day later not.

    What the late one is told is no corruption, and a new listing is complete.
    """
    with open_context(lab.place) as home:
        branch = "main"
        if name == "deletion of the branch":
            branch = "work"
            create_branch(home, "work", source="main")
            put_many(home, "work", lab.texts)
            compact_once(home, "work", force=True)
            lab.days(2)
        files = {meta.path for meta in home.store.list(RANGE_FOLDER)}
        with at_reference(home, branch) as view:
            rows, late = view.list(), view.list()
            first, _ = next(rows), next(late)
        GIVES_UP[name](home)
        lab.days(0.9)
        assert collect_garbage(home).deleted_count == 0
        assert listed(iter([first, *rows])) == lab.expected()
        lab.days(0.2)
        collect_garbage(home)
        assert not files <= {meta.path for meta in home.store.list(RANGE_FOLDER)}
        with raises(Conflict, "version_went") as caught:
            listed(late)
        assert "read it again" in str(caught.value)
        assert "zzz" in listed(ListObjects(ref="main").rows(home, amount=None)) or name == "hard reset"


def uploaded(home: RepositoryContext, path: str, body: bytes) -> Entry:
    """Upload and stage."""
    entry = data.upload(home, body)
    stage(home, branch="main", path=path, entry=entry)
    return entry


def test_the_objects_of_a_replaced_state_stay_too(lab: Lab) -> None:
    """An entry of a replaced state can be read for the minimum age after that; then the error says what happened."""
    with open_context(lab.place) as home:
        reset(home, "main")
        entry = uploaded(home, "a", b"old")
        compact_once(home, "main", force=True)
        lab.days(2)
        uploaded(home, "a", b"new")
        compact_once(home, "main", force=True)
        collect_garbage(home)
        assert bytes(data.read(home, entry)) == b"old"
        lab.days(1.1)
        collect_garbage(home)
        with raises(NotFound, "object_gone") as caught:
            data.read(home, entry)
        assert "overwritten" in str(caught.value)
        assert bytes(local_store(home, "main").get("a")) == b"new"


@pytest.mark.parametrize("ends", ["deleted", "expired"])
def test_what_a_tag_named_stays_for_the_minimum_age(lab: Lab, ends: str) -> None:
    """A reader of a tag goes on for the minimum age after the tag was deleted, or its lifetime ended."""
    with open_context(lab.place) as home:
        reset(home, "main")
        entry = uploaded(home, "a", b"tagged")
        made = commit(home, "main", message="2")
        day_ms = 86_400_000
        create_tag(home, "v1", commit_id=made.id, lifetime_ms=20 * day_ms if ends == "expired" else None)
        hard_reset(home, "main", ref="main~1")
        lab.days(19.9)
        if ends == "deleted":
            delete_tag(home, "v1")
        lab.days(0.5)
        collect_garbage(home)
        assert bytes(data.read(home, entry)) == b"tagged"
        assert bytes(local_store(home, made.id).get("a")) == b"tagged"
        lab.days(0.8)
        collect_garbage(home)
        with pytest.raises(NotFound):
            data.read(home, entry)


def test_collections_with_other_minimum_ages_do_not_stop_one_another(lab: Lab) -> None:
    """What a collection without a minimum age has taken of a replaced state does not stop a later one with an hour."""
    with open_context(lab.place) as home:
        create_branch(home, "work", source="main")
        stage(home, branch="work", path="a", entry=data.upload(home, b"old"))
        compact_once(home, "work", force=True)
        made = commit(home, "work", message="2")
        create_tag(home, "v1", commit_id=made.id)
        hard_reset(home, "work", ref="main")
        put_many(home, "work", lab.texts)
        compact_once(home, "work", force=True)
        lab.days(20)
        garbage = uploaded(home, "b", b"garbage")
        lab.days(0.1)
        delete_branch(home, "work")
        delete_tag(home, "v1")
        lab.days(0.01)
        assert collect_garbage(home, options=AT_ONCE).deleted_count > 0
        uploaded(home, "b", b"kept")
        lab.days(0.01)
        report = collect_garbage(home, options=CollectionOptions(grace=timedelta(hours=1)))
        assert report.warnings == ()
        assert garbage.address not in {meta.path for meta in home.store.list(DATA_FOLDER)}
        assert bytes(local_store(home, "main").get("b")) == b"kept"


def test_a_file_that_the_branch_needs_and_misses_is_still_corruption(lab: Lab) -> None:
    """Looking again does not hide a file that something other than a collection has deleted."""
    with open_context(lab.place) as home:
        home.store.delete([meta.path for meta in home.store.list(RANGE_FOLDER)])
        put(home, "main", "001", "new")
        for verb in (
            lambda: listed(ListObjects(ref="main").rows(home, amount=None)),
            lambda: Stat(ref="main", path="100").run(home),
            lambda: list(diff_uncommitted(home, "main")),
            lambda: commit(home, "main", message="2"),
            lambda: compact_once(home, "main", force=True),
        ):
            with raises(Corruption, "missing_range"):
                verb()


@pytest.mark.parametrize("folder", [RANGE_FOLDER, METARANGE_FOLDER])
def test_a_young_file_of_a_replaced_state_that_is_missing_protects_everything(lab: Lab, folder: str) -> None:
    """No collection has deleted it, so that it is damage: what it names is not known, and may be read still."""
    hour = CollectionOptions(grace=timedelta(hours=1))
    with open_context(lab.place) as home:
        reset(home, "main")
        uploaded(home, "a", b"garbage")
        uploaded(home, "a", b"old")
        lab.days(0.1)
        before = {meta.path for meta in home.store.list(folder)}
        compact_once(home, "main", force=True)
        new = {meta.path for meta in home.store.list(folder)} - before
        reset(home, "main")
        lab.days(0.01)
        home.store.delete(sorted(new))
    with open_context(lab.place) as home:
        report = collect_garbage(home, options=hour)
        assert report.deleted_count == 0
        assert "Nothing is deleted" in report.warnings[0]
        lab.days(1)
        assert collect_garbage(home, options=hour).warnings == ()
        assert list(home.store.list(DATA_FOLDER)) == []


def test_an_object_that_is_replaced_and_collected_while_it_is_opened_is_looked_up_again(lab: Lab) -> None:
    """A get between whose two steps a staged object was overwritten and collected reads the object that is there."""
    with open_context(lab.place) as home:
        uploaded(home, "a", b"old")
        lab.days(0.1)
        store = local_store(home, "main")
        replaced = iter([True])

        def look(entry: Entry) -> bytes:
            if next(replaced, False):
                uploaded(home, "a", b"new")
                lab.days(0.1)
                collect_garbage(home, options=CollectionOptions(grace=timedelta(hours=1)))
            return bytes(data.read(home, entry))

        assert data.read_found(lambda: Stat(ref="main", path="a").run(home), look) == b"new"
        assert bytes(store.get("a")) == b"new"


def test_lines_of_replaced_states_do_not_pile_up(lab: Lab) -> None:
    """The cleanup removes lines that no collection heeds any more, and no younger one."""
    with open_context(lab.place) as home:
        reset(home, "main")
        lab.days(KEPT_DAYS - 0.1)
        assert trim_superseded(home) == 0
        lab.days(0.2)
        assert trim_superseded(home) == 1
        assert trim_superseded(home) == 0
