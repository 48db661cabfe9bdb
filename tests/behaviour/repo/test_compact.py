"""Staging compaction: no read changes in any race; the sensor asks for it; nothing starves for good."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

import msgspec
import pytest

from lakebed.errors import LakebedError, NotFound, Rejected, Unavailable
from lakebed.metrics import render
from lakebed.repo.heads import compact
from lakebed.repo.heads.compact import Compaction, compact_once, run_compactor_once
from lakebed.repo.heads.write import delete_prefix
from lakebed.repo.model.model import Branch, DiffKind
from lakebed.repo.records.context import RepositoryContext
from lakebed.repo.records.hooks import HookCall
from lakebed.repo.references.branches import create_branch, delete_branch, load_branch
from lakebed.runtime import Environment
from lakebed.testing import ManualClock
from worlds.memory_key_value import MemoryKeyValue
from worlds.repo.memory_repository import (
    MemoryRepository,
    contents,
    head_of,
    open_context,
    put,
    put_many,
    remove,
    uncommitted_of,
)
from worlds.repo.operations import commit, reset


@pytest.fixture
def place() -> MemoryRepository:
    """A repository whose clock moves only on request."""
    return MemoryRepository(Environment(clock=ManualClock()))


@pytest.fixture
def home(place: MemoryRepository) -> Iterator[RepositoryContext]:
    """A repository with twenty committed paths."""
    with open_context(place) as opened:
        put_many(opened, "main", {f"{n:02}": "old" for n in range(20)})
        commit(opened, "main", message="base")
        yield opened


def record_of(home: RepositoryContext) -> Branch:
    """The record of the branch."""
    return load_branch(home, "main")[0]


def test_no_read_changes(home: RepositoryContext) -> None:
    """Contents and differences are the same before and after, over several layers, and the head stays."""
    head = record_of(home).commit_id
    for number in range(4):
        put_many(home, "main", {f"{number:02}": "new", f"new/{number}": "x", "same": str(number)})
        remove(home, "main", f"{10 + number:02}")
        if number == 2:
            delete_prefix(home, branch="main", prefix="new/")
        before = contents(home, "main"), uncommitted_of(home, "main")
        done = compact_once(home, "main", force=True)
        assert done.outcome == "published"
        assert (contents(home, "main"), uncommitted_of(home, "main")) == before
        record = record_of(home)
        assert record.sealed == ()
        assert record.compacted is not None
        assert record.commit_id == head
    assert head_of(home, "main") == {f"{n:02}": "old" for n in range(20)}


def test_staged_rows_are_counted(home: RepositoryContext) -> None:
    """A compaction says how many entries and tombstones it applied, and the process's metrics say so too."""
    put_many(home, "main", {"a": "1", "b": "2", "c": "3"})
    remove(home, "main", "05")
    before = compact.ROWS.value("entry"), compact.ROWS.value("tombstone")
    done = compact_once(home, "main", force=True)
    assert (done.entry_count, done.tombstone_count) == (3, 1)
    assert (compact.ROWS.value("entry"), compact.ROWS.value("tombstone")) == (before[0] + 3, before[1] + 1)
    assert 'lakebed_repo_compaction_seconds_count{outcome="published"}' in render()


def test_the_same_as_the_head_keeps_nothing(home: RepositoryContext) -> None:
    """What was added and deleted again, or written with the same content, leaves no compacted metarange."""
    put_many(home, "main", {"00": "old", "x": "1"})
    compact_once(home, "main", force=True)
    assert record_of(home).compacted is not None
    remove(home, "main", "x")
    put(home, "main", "00", "old")
    compact_once(home, "main", force=True)
    assert record_of(home).compacted is None
    assert record_of(home).sealed == ()
    assert uncommitted_of(home, "main") == {}


def test_the_three_stale_differences(home: RepositoryContext) -> None:
    """Added then deleted, changed then changed back, removed then restored: after a compaction these do not differ."""
    put(home, "main", "added", "x")
    put(home, "main", "00", "changed")
    remove(home, "main", "01")
    compact_once(home, "main", force=True)
    assert set(uncommitted_of(home, "main").values()) == {DiffKind.ADDED, DiffKind.CHANGED, DiffKind.REMOVED}
    remove(home, "main", "added")
    put(home, "main", "00", "old")
    put(home, "main", "01", "old")
    assert uncommitted_of(home, "main") == {}
    compact_once(home, "main", force=True)
    assert uncommitted_of(home, "main") == {}
    assert record_of(home).compacted is None


def test_two_begin_no_closer_than_the_cooldown(home: RepositoryContext, place: MemoryRepository) -> None:
    """The cooldown holds over processes; a forced one skips it."""
    put(home, "main", "a", "1")
    assert compact_once(home, "main").outcome == "published"
    put(home, "main", "b", "2")
    with open_context(place) as other:
        assert compact_once(other, "main").outcome == "idle"
    place.environment.clock.sleep(home.options.compaction_cooldown_ms / 1000)
    assert compact_once(home, "main").outcome == "published"
    assert compact_once(home, "main", force=True).outcome == "idle"
    put(home, "main", "c", "3")
    assert compact_once(home, "main", force=True).outcome == "published"


class BetweenWrites(MemoryKeyValue):
    """Runs something once, right before the n-th conditional write, as another process would."""

    def __init__(self, place: MemoryRepository, *, before: int, act: Callable[[], object]) -> None:
        super().__init__(place.space)
        self.left = before
        self.act = act

    def write(self, puts=(), deletes=(), **kwargs):  # type: ignore[no-untyped-def]
        """Count the write, and let the other process go first when it is the one."""
        self.left -= 1
        if self.left == 0:
            self.act()
        super().write(puts, deletes, **kwargs)


def test_a_commit_in_between_makes_it_give_up(home: RepositoryContext, place: MemoryRepository) -> None:
    """The commit stands, nothing is compacted, and nothing is lost."""
    put(home, "main", "a", "1")
    between = BetweenWrites(place, before=2, act=lambda: commit(home, "main", message="faster"))
    with open_context(place, key_value=between) as other:
        assert compact_once(other, "main").outcome == "gave_up"
    assert head_of(home, "main")["a"] == "1"
    assert record_of(home).compacted is None
    assert uncommitted_of(home, "main") == {}


def test_a_reset_in_between_makes_it_give_up(home: RepositoryContext, place: MemoryRepository) -> None:
    """What was reset does not come back."""
    put(home, "main", "a", "1")
    between = BetweenWrites(place, before=2, act=lambda: reset(home, "main"))
    with open_context(place, key_value=between) as other:
        assert compact_once(other, "main").outcome == "gave_up"
    assert "a" not in contents(home, "main")


def test_tokens_gained_in_between_stay(home: RepositoryContext, place: MemoryRepository) -> None:
    """A prefix that is deleted while a compaction runs, and what is put below it after, are as they were."""
    put_many(home, "main", {"p/1": "1", "p/2": "2", "q": "3"})

    def clear() -> None:
        delete_prefix(home, branch="main", prefix="p/")
        put(home, "main", "p/9", "9")

    with open_context(place, key_value=BetweenWrites(place, before=2, act=clear)) as other:
        assert compact_once(other, "main").outcome == "published"
    new = {path: text for path, text in contents(home, "main").items() if text != "old"}
    assert new == {"p/9": "9", "q": "3"}
    assert len(record_of(home).sealed) == 1  # the one that the deletion sealed


def test_a_write_in_between_stays_staged(home: RepositoryContext, place: MemoryRepository) -> None:
    """What is acknowledged after the seal lies over what was compacted."""
    put(home, "main", "a", "1")
    between = BetweenWrites(place, before=2, act=lambda: put(home, "main", "a", "2"))
    with open_context(place, key_value=between) as other:
        assert compact_once(other, "main").outcome == "published"
    assert contents(home, "main")["a"] == "2"


def test_a_delete_that_races_brings_nothing_back(home: RepositoryContext, place: MemoryRepository) -> None:
    """An entry that only the token has is taken away without a tombstone, unless it was sealed meanwhile."""
    put(home, "main", "a", "1")
    for before in (1, 2):
        between = BetweenWrites(place, before=before, act=lambda: remove(home, "main", "a"))
        with open_context(place, key_value=between) as other:
            compact_once(other, "main", force=True)
        assert "a" not in contents(home, "main")
        put(home, "main", "a", "1")


def test_a_commit_that_meets_a_compaction_begins_again(home: RepositoryContext, place: MemoryRepository) -> None:
    """It commits the same, on what was compacted."""
    put(home, "main", "a", "1")
    between = BetweenWrites(place, before=2, act=lambda: compact_once(home, "main", force=True))
    with open_context(place, key_value=between) as other:
        commit(other, "main", message="slower")
    assert head_of(home, "main")["a"] == "1"
    assert record_of(home).compacted is None
    assert uncommitted_of(home, "main") == {}


def test_the_sensor_compacts_what_wants_it(place: MemoryRepository) -> None:
    """Branches past a threshold are compacted, others are left alone, gone ones forgotten; the gauges follow."""
    place.options = replace(
        place.options, compaction_staged_min=10, compaction_tombstones_min=5, compaction_sealed_min=3
    )
    with open_context(place) as home:
        put_many(home, "main", {f"{n:02}": "old" for n in range(20)})
        commit(home, "main", message="base")
        for name in ("many", "few", "dead", "gone"):
            create_branch(home, name, source="main")
        put_many(home, "many", {f"n/{n}": "x" for n in range(10)})
        put(home, "few", "n", "x")
        for n in range(5):
            remove(home, "dead", f"{n:02}")
        put_many(home, "gone", {f"n/{n}": "x" for n in range(10)})
        delete_branch(home, "gone")
        done = {item.branch: item.outcome for item in run_compactor_once(home)}
        assert done == {"many": "published", "dead": "published"}
        assert run_compactor_once(home) == []
        assert 'lakebed_repo_staged_entries{repository="analytics",branch="few"} 1' in render()
        assert 'lakebed_repo_staged_entries{repository="analytics",branch="many"} 0' in render()


def test_a_commit_under_way_is_not_compacted_as_well(place: MemoryRepository) -> None:
    """Both would apply the same rows. What a commit that was refused has left is compacted by the next step."""
    place.options = replace(place.options, compaction_staged_min=10)
    steps: list[list[Compaction]] = []

    def refuse(call: HookCall) -> None:
        put_many(home, "main", {f"later/{n}": "y" for n in range(10)})
        steps.append(run_compactor_once(home))
        raise ValueError("not today")

    with open_context(place) as home:
        put_many(home, "main", {f"{n}": "x" for n in range(10)})
        home.hooks.register("pre-commit", refuse)
        before = home.counters.changes
        with pytest.raises(Rejected):
            commit(home, "main", message="refused")
        assert steps == [[]]
        assert home.counters.changes > before  # so the background looks again
        assert [step.outcome for step in run_compactor_once(home)] == ["published"]
        assert len(uncommitted_of(home, "main")) == 20


def test_the_sensor_counts_what_was_there_before(place: MemoryRepository) -> None:
    """A new process finds what an earlier one has staged."""
    place.options = replace(place.options, compaction_staged_min=10)
    with open_context(place) as home:
        put_many(home, "main", {f"{n}": "x" for n in range(12)})
    with open_context(place) as home:
        [done] = run_compactor_once(home)
        assert (done.branch, done.outcome, done.entry_count) == ("main", "published", 12)


def test_one_branch_that_fails_keeps_no_other_waiting(place: MemoryRepository, monkeypatch: pytest.MonkeyPatch) -> None:
    """All others are compacted, then its error is raised, and the next step tries it again."""
    place.options = replace(place.options, compaction_staged_min=5, compaction_cooldown_ms=0)
    with open_context(place) as home:
        commit(home, "main", message="base", allow_empty=True)
        for name in ("a", "b", "c"):
            create_branch(home, name, source="main")
            put_many(home, name, {f"{n}": "x" for n in range(5)})
        real = compact.compact_once

        def failing(home: RepositoryContext, branch: str) -> compact.Compaction:
            if branch == "a":
                raise Unavailable("the store does not answer")
            return real(home, branch)

        monkeypatch.setattr(compact, "compact_once", failing)
        with pytest.raises(Unavailable):
            run_compactor_once(home)
        monkeypatch.undo()
        assert [done.branch for done in run_compactor_once(home)] == ["a"]


def test_nothing_is_compacted_in_a_read_only_repository(place: MemoryRepository) -> None:
    """The sensor asks for nothing that would be refused."""
    place.options = replace(place.options, compaction_staged_min=5)
    with open_context(place) as home:
        put_many(home, "main", {f"{n}": "x" for n in range(5)})
        frozen = replace(home, record=msgspec.structs.replace(home.record, read_only=True))
        assert run_compactor_once(frozen) == []
        assert len(run_compactor_once(home)) == 1


def test_gauges_have_a_bound(home: RepositoryContext) -> None:
    """Of many branches those with the most staged are shown."""
    for number in range(compact.SHOWN_BRANCHES_MAX + 5):
        home.counters.reset(f"b{number}", sealed_count=number)
    compact.show_counts(home)
    shown = [line for line in render().splitlines() if line.startswith("lakebed_repo_sealed_tokens{")]
    assert len([line for line in shown if 'repository="analytics"' in line]) == compact.SHOWN_BRANCHES_MAX
    for number in range(compact.SHOWN_BRANCHES_MAX + 5):
        home.counters.forget(f"b{number}")
    compact.show_counts(home)
    assert 'branch="b7"' not in render()


def test_the_list_of_sealed_tokens_is_bounded(place: MemoryRepository) -> None:
    """However often operations fail with writes in between, the branch stays short, and so does every read."""
    place.options = replace(place.options, sealed_tokens_max=4)

    def refuse(call: HookCall) -> None:
        raise ValueError("no")

    with open_context(place) as home:
        for number in range(12):
            put(home, "main", f"p/{number}", "x")
            delete_prefix(home, branch="main", prefix=f"p/{number}")
            put(home, "main", f"k/{number}", "x")
            assert len(record_of(home).sealed) <= 4
        home.hooks.register("pre-commit", refuse)
        with pytest.raises(LakebedError):
            commit(home, "main", message="no")
        assert len(record_of(home).sealed) == 0
        assert contents(home, "main") == {f"k/{item}": "x" for item in range(12)}


def test_a_branch_that_is_gone_cannot_be_compacted(home: RepositoryContext) -> None:
    """The error names what is missing."""
    with pytest.raises(NotFound):
        compact_once(home, "nowhere")
