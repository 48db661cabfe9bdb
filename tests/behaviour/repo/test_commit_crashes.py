"""A crash, a lost reply or a lost request at every call of every operation that moves a branch: nothing is lost.

Each operation runs once with a trap that only counts; then once for every call that it made, with the trap at that
call, on a repository set up anew. What the next process finds is compared with a dictionary.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cache, partial
from typing import get_args

import pytest

from lakebed.errors import InvalidRequest, OutcomeUnknown
from lakebed.repo.heads.compact import compact_once
from lakebed.repo.heads.importing import ImportSource, import_status, list_unfinished_imports, run_import
from lakebed.repo.heads.write import delete_prefix
from lakebed.repo.records.context import RepositoryContext
from lakebed.repo.records.pulls import create_pull, load_pull, update_pull
from lakebed.repo.references.branches import load_branch
from lakebed.repo.references.commits import Walk
from lakebed.repo.staging.cleanup import clean_once
from lakebed.repo.verbs.merge import Merge, merge_pull
from lakebed.testing.faulty import Crashed
from worlds.repo.memory_repository import (
    MemoryRepository,
    Pause,
    Trap,
    TrapMode,
    contents,
    copy_of,
    head_of,
    make_branch,
    open_context,
    put,
    put_many,
    remove,
    uncommitted_of,
)
from worlds.repo.operations import (
    commit,
    commit_text,
    hard_reset,
    merge,
    rebase,
    reset,
    reset_prefix,
    revert,
    start_import,
)

Contents = dict[str, str]


@dataclass(frozen=True)
class Case:
    """An operation, and what is there before and after it."""

    set_up: Callable[[RepositoryContext], None]
    run: Callable[[RepositoryContext], object]
    shown: Contents
    """By the branch, when it was done."""
    head: Contents
    """In its head, when it was done."""
    moves: bool = True
    """Whether the head moves: then done twice means two commits at most for two calls, and one for one."""


BASE = {f"{n:02}": "old" for n in range(12)}
STAGED = {**{path: text for path, text in BASE.items() if path not in {"02", "03"}}, "00": "new", "c": "1", "s": "2"}


def staged(home: RepositoryContext) -> None:
    """A committed base, a compacted layer, a sealed token that clears, a sealed one below it, and staged rows."""
    put_many(home, "main", BASE)
    commit(home, "main", message="base")
    put_many(home, "main", {"c": "1", "gone/1": "x"})
    remove(home, "main", "02")
    compact_once(home, "main", force=True)
    put_many(home, "main", {"gone/2": "x", "00": "newer"})
    delete_prefix(home, branch="main", prefix="gone/")
    put_many(home, "main", {"s": "2", "00": "new"})
    remove(home, "main", "03")


def forked(home: RepositoryContext) -> None:
    """Two branches that changed different paths, nothing staged."""
    put_many(home, "main", BASE)
    base = commit(home, "main", message="base")
    make_branch(home, "dev", base.id)
    put(home, "dev", "d", "1")
    remove(home, "dev", "05")
    commit(home, "dev", message="dev")
    commit_text(home, "main", "m", "1", message="main")


def places(home: RepositoryContext) -> None:
    """A clean branch, and objects elsewhere."""
    put_many(home, "main", BASE)
    commit(home, "main", message="base")


def imported(home: RepositoryContext) -> None:
    """Start an import of the home's own ranges, or go on with one that is unfinished."""
    left = list_unfinished_imports(home)
    if left:
        run_import(home, left[0].id)
        return
    source = ImportSource(f"{home.store.root_url}/elsewhere", "in", "prefix")
    run_import(home, start_import(home, "main", sources=[source]))


MERGED = {**{path: text for path, text in BASE.items() if path != "05"}, "d": "1", "m": "1"}

CASES = {
    "commit": Case(staged, lambda home: commit(home, "main", message="m"), STAGED, STAGED),
    "commit of paths": Case(
        staged,
        lambda home: commit(home, "main", message="m", prefixes=["0"]),
        STAGED,
        {**{path: text for path, text in BASE.items() if path not in {"02", "03"}}, "00": "new"},
    ),
    "compaction": Case(staged, lambda home: compact_once(home, "main", force=True), STAGED, BASE, moves=False),
    "reset": Case(staged, lambda home: reset(home, "main"), BASE, BASE, moves=False),
    "reset of a prefix": Case(
        staged, lambda home: reset_prefix(home, "main", prefix="0"), {**BASE, "c": "1", "s": "2"}, BASE, moves=False
    ),
    "hard reset": Case(staged, lambda home: hard_reset(home, "main", ref="main~1", force=True), {}, {}),
    "merge": Case(forked, lambda home: merge(home, "dev", into="main"), MERGED, MERGED),
    "revert": Case(forked, lambda home: revert(home, "main", ref="main"), BASE, BASE),
    "rebase": Case(forked, lambda home: rebase(home, "main", onto="dev"), MERGED, MERGED),
}


def commit_count(home: RepositoryContext) -> int:
    """How long the history of the branch is."""
    return sum(1 for _ in Walk(home, [load_branch(home, "main")[0].commit_id]))


def set_up(case: Case) -> tuple[MemoryRepository, Contents, Contents, int]:
    """A place with the case's beginning: what is shown, what is in the head, how long the history is."""
    place, *known = prepared(case.set_up)
    return copy_of(place), *known


@cache
def prepared(begin: Callable[[RepositoryContext], None]) -> tuple[MemoryRepository, Contents, Contents, int]:
    """The same repository, to be copied by each test."""
    place = MemoryRepository()
    with open_context(place) as home:
        begin(home)
        return place, contents(home, "main"), head_of(home, "main"), commit_count(home)


def calls_of(case: Case, mode: TrapMode) -> Sequence[int]:
    """The calls of the operation that can fail so."""
    place, *_ = set_up(case)
    trap = Trap()
    with open_context(place, trap=trap) as home:
        case.run(home)
    with open_context(place) as home:
        assert contents(home, "main") == case.shown
        assert head_of(home, "main") == case.head
    return trap.calls(mode)


def is_consistent(home: RepositoryContext) -> bool:
    """Whether the uncommitted difference is that of what is shown and the head."""
    shown, head = contents(home, "main"), head_of(home, "main")
    different = {path for path in shown.keys() | head.keys() if shown.get(path) != head.get(path)}
    return set(uncommitted_of(home, "main")) == different


MODES = [pytest.param(mode, marks=pytest.mark.long) if mode == "crash before" else mode for mode in get_args(TrapMode)]
"""A crash before a call leaves what the crash after the write before it leaves."""


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("name", CASES)
def test_every_call_can_fail(name: str, mode: TrapMode) -> None:
    """Before or after the operation, never in between; another try completes it; an unclear reply is settled."""
    case = CASES[name]
    calls = calls_of(case, mode)
    sprung = 0
    for at in calls:
        place, shown, head, length = set_up(case)
        trap = Trap(at, mode)
        is_finished = True
        with open_context(place, trap=trap) as home:
            try:
                case.run(home)
            except Crashed:
                is_finished = False
        sprung += trap.has_sprung
        with open_context(place) as home:
            is_done = head_of(home, "main") == case.head and contents(home, "main") == case.shown
            assert is_done or (contents(home, "main"), head_of(home, "main")) == (shown, head), (at, "in between")
            assert is_done or not is_finished, (at, "it returned without being done")
            assert is_consistent(home), at
            clean_once(home)  # rows of dropped tokens: nothing that is shown is among them
            if not is_done or name == "compaction":
                case.run(home)
            if case.moves and name not in ("hard reset", "rebase", "merge"):
                assert commit_count(home) == length + 1, (at, "not once")
            assert contents(home, "main") == case.shown
            assert head_of(home, "main") == case.head
            assert len(load_branch(home, "main")[0].sealed) <= 1
    assert sprung == len(calls) >= 1  # every call was visited


@pytest.mark.parametrize("mode", get_args(TrapMode))
def test_every_call_of_the_merge_of_a_pull_request_can_fail(mode: TrapMode) -> None:
    """It says that it is merged, by which commit, exactly when the branch has the commit; else it is merged later."""

    def with_pull() -> tuple[MemoryRepository, str]:
        place = copy_of(prepared(forked)[0])
        with open_context(place) as home:
            id = create_pull(home, title="t", description="", source="dev", destination="main", author="ada")
        return place, id

    def merge_it(place: MemoryRepository, id: str, trap: Trap) -> None:
        with open_context(place, trap=trap) as home:
            merge_pull(home, id, Merge(branch="main", source="dev"))

    trap = Trap()
    merge_it(*with_pull(), trap)
    for at in trap.calls(mode):
        place, id = with_pull()
        with suppress(Crashed):
            merge_it(place, id, Trap(at, mode))
        with open_context(place) as home:
            is_done = head_of(home, "main") == MERGED
            assert (load_pull(home, id).status == "merged") == is_done, at
        if not is_done:
            merge_it(place, id, Trap())
        with open_context(place) as home:
            assert load_pull(home, id).merged_commit_id == load_branch(home, "main")[0].commit_id
            assert head_of(home, "main") == MERGED


def test_a_pull_request_that_is_closed_while_it_is_merged_is_not() -> None:
    """Closed or merged by another before any call: nothing is merged, or it is merged, and once."""
    request = Merge(branch="main", source="dev", allow_empty=True)

    def closes(home: RepositoryContext, id: str) -> None:
        update_pull(home, id, status="closed")

    def merges(home: RepositoryContext, id: str) -> None:
        merge_pull(home, id, request)

    for act in (closes, merges):
        for at in itertools.count():
            place = copy_of(prepared(forked)[0])
            with open_context(place) as home, open_context(place) as other:
                id = create_pull(home, title="t", description="", source="dev", destination="main", author="ada")
                before, pause = commit_count(home), Pause(at, partial(act, other, id))
                with open_context(place, trap=pause) as paused, suppress(InvalidRequest):
                    merge_pull(paused, id, request)
                if not pause.has_sprung:
                    break
                status, count = load_pull(home, id).status, commit_count(home)
                assert (status == "merged") == (head_of(home, "main") == MERGED), at
                assert (count - before, status) in ((0, "closed"), (2, "merged")), at
        assert at >= 3, "no call was met"


@pytest.mark.parametrize("mode", get_args(TrapMode))
def test_every_call_of_an_import_can_fail(mode: TrapMode) -> None:
    """It is done once: the record says it is completed exactly when the branch has the commit."""

    def with_objects() -> MemoryRepository:
        place = MemoryRepository()
        with open_context(place) as home:
            places(home)
            for number in range(5):
                home.store.put(f"elsewhere/{number}", b"x" * number)
        return place

    def counted(place: MemoryRepository, trap: Trap) -> None:
        with open_context(place, trap=trap) as home:
            imported(home)

    trap = Trap()
    counted(with_objects(), trap)
    for at in trap.calls(mode):
        place = with_objects()
        failing = Trap(at, mode)
        try:
            counted(place, failing)
        except Crashed:
            pass
        except OutcomeUnknown:
            assert mode == "request lost"
            assert at == trap.writes[0]
        assert failing.has_sprung
        with open_context(place) as home:
            length = commit_count(home)
            assert length in (2, 3)
            if length == 2:
                imported(home)
            assert commit_count(home) == 3
            assert list_unfinished_imports(home) == []
            assert import_status_of_all(home) == ["completed"]
            head = home.committed.open(load_head(home)).ref
            assert head.entry_count == len(BASE) + 5


def import_status_of_all(home: RepositoryContext) -> list[str]:
    """The states of all imports."""
    with home.key_value.snapshot() as snapshot:
        prefix = home.keys.import_record()
        ids = [key[len(prefix) :].decode() for key, _ in snapshot.scan(prefix, prefix + b"\xff")]
    return [import_status(home, id).state for id in ids]


def load_head(home: RepositoryContext):  # type: ignore[no-untyped-def]
    """What the head holds."""
    id = load_branch(home, "main")[0].commit_id
    return next(Walk(home, [id]))[1].metarange
