"""Two verbs on one branch, one of them asleep before each of its calls: the outcome is that of one after the other.

For every pair both serial orders are run first; then the first verb is paused before every call of the key-value store
that it makes, while the second runs whole in another process. What is shown, what the head holds and which errors were
raised must be as in one of the two orders.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any, NamedTuple

import pytest

from lakebed.errors import LakebedError, OutcomeUnknown
from lakebed.repo.heads.compact import compact_once
from lakebed.repo.heads.write import delete_prefix
from lakebed.repo.model.options import RepositoryOptions
from lakebed.repo.records.context import RepositoryContext
from lakebed.repo.records.reflog import reflog
from lakebed.repo.references.branches import load_branch
from lakebed.repo.references.commits import Walk
from lakebed.testing import seed_count
from worlds.memory_key_value import MemoryKeyValue
from worlds.repo.memory_repository import (
    MemoryRepository,
    Pause,
    Trap,
    TrappedKeyValue,
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
from worlds.repo.operations import commit, commit_text, hard_reset, merge, reset, reset_prefix, revert

Verb = Callable[[RepositoryContext], object]

MOVES: dict[str, Verb] = {
    "commit": lambda home: commit(home, "main", message="m"),
    "commit of a prefix": lambda home: commit(home, "main", message="m", prefixes=["a/"]),
    "compaction": lambda home: compact_once(home, "main", force=True),
    "reset": lambda home: reset(home, "main"),
    "reset of a prefix": lambda home: reset_prefix(home, "main", prefix="a/"),
    "hard reset": lambda home: hard_reset(home, "main", ref="dev~1", force=True),
    "merge": lambda home: merge(home, "dev", into="main"),
    "revert": lambda home: revert(home, "main", ref="dev~1"),
}
NEED_CLEAN = ("merge", "revert")
"""Of a dirty branch they are refused at once."""

WRITES: dict[str, Verb] = {
    "put": lambda home: put(home, "main", "a/1", "raced"),
    "delete of a staged path": lambda home: remove(home, "main", "a/new"),
    "delete of a committed path": lambda home: remove(home, "main", "a/2"),
    "delete of a prefix": lambda home: delete_prefix(home, branch="main", prefix="a/"),
    "a token that is gained with rows": lambda home: (
        put(home, "main", "a/3", "raced"),
        delete_prefix(home, branch="main", prefix="b/"),
    ),
}


class Outcome(NamedTuple):
    """What can be seen of two verbs."""

    shown: dict[str, str]
    head: dict[str, str]
    first_error: str | None
    second_error: str | None


def fresh(is_dirty: bool) -> MemoryRepository:
    """A repository as `prepared`, of its own."""
    return copy_of(prepared(is_dirty))


@cache
def prepared(is_dirty: bool) -> MemoryRepository:
    """Committed paths, a branch that is ahead, and perhaps compacted and staged changes."""
    place = MemoryRepository(options=RepositoryOptions(committer="ada"))
    with open_context(place) as home:
        put_many(home, "main", {f"{folder}/{n}": "old" for folder in "ab" for n in range(4)})
        base = commit(home, "main", message="base")
        make_branch(home, "dev", base.id)
        commit_text(home, "dev", "b/dev", "1", message="dev")
        if is_dirty:
            put_many(home, "main", {"a/0": "compacted", "b/0": "compacted"})
            compact_once(home, "main", force=True)
            put_many(home, "main", {"a/new": "staged", "b/1": "staged"})
    return place


def error_of(verb: Verb, home: RepositoryContext) -> str | None:
    """The kind of the error that it raises."""
    try:
        verb(home)
    except LakebedError as error:
        return error.kind
    return None


def seen(place: MemoryRepository, first_error: str | None, second_error: str | None) -> Outcome:
    """The outcome, and whether the uncommitted difference agrees."""
    with open_context(place) as home:
        shown, head = contents(home, "main"), head_of(home, "main")
        different = {path for path in shown.keys() | head.keys() if shown.get(path) != head.get(path)}
        assert set(uncommitted_of(home, "main")) == different
        assert len(load_branch(home, "main")[0].sealed) <= 2
    return Outcome(shown, head, first_error, second_error)


def serial(first: Verb, second: Verb, *, is_dirty: bool) -> list[Outcome]:
    """The outcomes of both orders."""
    place = fresh(is_dirty)
    with open_context(place) as home:
        forwards = seen(place, error_of(first, home), error_of(second, home))
    place = fresh(is_dirty)
    with open_context(place) as home:
        second_error = error_of(second, home)
        backwards = seen(place, error_of(first, home), second_error)
    return [forwards, backwards]


def paused(first: Verb, second: Verb, at: int, *, is_dirty: bool) -> tuple[Outcome, bool]:
    """The outcome with the second verb before a call of the first, and whether there was such a call."""
    place = fresh(is_dirty)
    errors: list[str | None] = []
    with open_context(place) as other:
        trap: Trap = Pause(at, lambda: errors.append(error_of(second, other)))
        key_value = TrappedKeyValue(MemoryKeyValue(place.space), trap)
        with open_context(place, key_value=key_value) as home:
            first_error = error_of(first, home)
    return seen(place, first_error, errors[0] if errors else None), trap.has_sprung


LONG = ("commit of a prefix", "reset", "revert")
"""They move the branch as a commit, a reset of a prefix and a merge do."""
OTHERS = tuple(name for name in (*MOVES, *WRITES) if name not in LONG)


@pytest.mark.parametrize(
    ("name", "is_dirty", "others"),
    [
        *((name, name not in NEED_CLEAN, OTHERS) for name in MOVES if name not in LONG),
        *(pytest.param(name, name not in NEED_CLEAN, LONG, marks=pytest.mark.long) for name in MOVES),
        *(pytest.param(name, name not in NEED_CLEAN, OTHERS, marks=pytest.mark.long) for name in LONG),
        pytest.param("commit", False, (*OTHERS, *LONG), marks=pytest.mark.long),
    ],
    ids=lambda value: value[0] if isinstance(value, tuple) else None,
)
def test_two_at_once_are_as_one_after_the_other(name: str, is_dirty: bool, others: tuple[str, ...]) -> None:
    """For every verb of the other process, at every call.

    Half of the verbs take the even calls, the others the odd ones; in a long run each takes all.
    """
    calls_at_least = 1000
    step = 1 if seed_count(1) > 1 else 2
    for position, other in enumerate(others):
        second = {**MOVES, **WRITES}[other]
        expected = serial(MOVES[name], second, is_dirty=is_dirty)
        at = position % step
        while True:
            outcome, has_sprung = paused(MOVES[name], second, at, is_dirty=is_dirty)
            if not has_sprung:
                break
            assert outcome in expected, (name, other, at)
            at += step
        calls_at_least = min(calls_at_least, at)
    assert calls_at_least >= 3


class ReplyLost(MemoryKeyValue):
    """Loses the reply of one write, after which another process acts before the next look."""

    def __init__(self, place: MemoryRepository, *, at: int, act: Callable[[], object]) -> None:
        super().__init__(place.space)
        self.left = at
        self.act = act

    def write(self, *arguments: Any, **named: Any) -> None:
        """Count the write, and do not say that it happened when it is the one."""
        super().write(*arguments, **named)
        self.left -= 1
        if self.left == 0:
            self.act()
            raise OutcomeUnknown("no reply")


@pytest.mark.parametrize("second", ["put", "delete of a prefix", "commit", "hard reset", "merge"])
def test_a_lost_reply_is_settled_although_others_went_on(second: str) -> None:
    """A commit that landed is not made again: its line in the reference log decides, not the record's present state."""
    place = fresh(is_dirty=True)
    with open_context(place) as other:
        lost = ReplyLost(place, at=2, act=lambda: error_of({**MOVES, **WRITES}[second], other))
        with open_context(place, key_value=lost) as home:
            new = commit(home, "main", message="once")
        lines = [line for line in reflog(other, branch="main") if line.after == new.id]
        assert [line.what for line in lines].count("commit") == 1
        assert [commit.message for _, commit in Walk(other, [load_branch(other, "main")[0].commit_id])].count(
            "once"
        ) == (0 if second == "hard reset" else 1)
        assert lost.left == 0
