"""`Unavailable` means that nothing has happened, also when it was the look at an unclear write that failed.

A caller that sees it tries again, and would overwrite what others wrote meanwhile. Found by the simulation.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import TypeVar

import pytest

from lakebed.errors import LakebedError, OutcomeUnknown, Unavailable
from lakebed.repo.heads.write import delete_prefix, stage_if_absent
from lakebed.repo.records.context import RepositoryContext
from lakebed.repo.references.branches import create_branch, delete_branch, load_branch
from worlds.repo.memory_repository import (
    MemoryRepository,
    Trap,
    contents,
    copy_of,
    entry_of,
    head_of,
    open_context,
    put,
    put_many,
    remove,
)
from worlds.repo.operations import commit, commit_text, hard_reset, merge, reset, reset_prefix

R = TypeVar("R")
Verb = Callable[[RepositoryContext], object]

VERBS: dict[str, Verb] = {
    "put": lambda home: put(home, "main", "a", "new"),
    "put of many": lambda home: put_many(home, "main", {"a": "new", "z": "new"}),
    "put if absent": lambda home: stage_if_absent(home, branch="main", path="z", entry=entry_of(home, "new")),
    "delete of a staged path": lambda home: remove(home, "main", "staged"),
    "delete of a committed path": lambda home: remove(home, "main", "a"),
    "delete of a prefix": lambda home: delete_prefix(home, branch="main", prefix=""),
    "commit": lambda home: commit(home, "main", message="m"),
    "commit of a prefix": lambda home: commit(home, "main", message="m", prefixes=["st"]),
    "reset": lambda home: reset(home, "main"),
    "reset of a prefix": lambda home: reset_prefix(home, "main", prefix="st"),
    "hard reset": lambda home: hard_reset(home, "main", ref="main~1", force=True),
    "merge": lambda home: merge(home, "main", into="dev"),
    "new branch": lambda home: create_branch(home, "fix", source="main"),
    "deleted branch": lambda home: delete_branch(home, "dev"),
}


class Silence(Trap):
    """From one call on the store is down; with `after_effect` that call, if it is a write, takes effect unanswered."""

    def __init__(self, at: int, *, after_effect: bool) -> None:
        super().__init__(at)
        self._begins_at = at
        self._after_effect = after_effect
        self.was_write = False

    def pass_by(self, perform: Callable[[], R], *, changes: bool) -> R:
        """Make a call while the store is up."""
        number, self.call_count = self.call_count, self.call_count + 1
        if number < self._begins_at:
            return perform()
        self.has_sprung = True
        if number == self._begins_at and self._after_effect and changes:
            self.was_write = True
            perform()
            raise OutcomeUnknown("the reply was lost")
        raise Unavailable("nobody answers")


@cache
def begun() -> MemoryRepository:
    """Something committed twice, another branch behind, something staged."""
    place = MemoryRepository()
    with open_context(place) as home:
        commit_text(home, "main", "a", "old", message="1")
        create_branch(home, "dev", source="main")
        commit_text(home, "main", "b", "old", message="2")
        put(home, "main", "staged", "old")
    return place


def everything(place: MemoryRepository) -> list[object]:
    """What both branches show and hold."""
    with open_context(place) as home:
        items: list[object] = []
        for branch in ("main", "dev", "fix"):
            try:
                items.append((contents(home, branch), head_of(home, branch), load_branch(home, branch)[0].commit_id))
            except LakebedError as error:
                items.append(error.kind)
        return items


@pytest.mark.parametrize("after_effect", [False, True], ids=["not made", "made unheard"])
@pytest.mark.parametrize("name", sorted(VERBS))
def test_whoever_is_told_that_nothing_happened_can_rely_on_it(name: str, after_effect: bool) -> None:
    """The store is down from each single call on: a verb that raises `Unavailable` has changed nothing."""
    at = unclear = 0
    while True:
        place = copy_of(begun())
        before = everything(place)
        silence = Silence(at, after_effect=after_effect)
        messages: LakebedError | None = None
        with open_context(place, trap=silence) as home:
            try:
                VERBS[name](home)
            except LakebedError as error:
                messages = error
        if isinstance(messages, Unavailable):
            assert everything(place) == before
        unclear += isinstance(messages, OutcomeUnknown)
        if not silence.has_sprung:
            assert messages is None
            break
        at += 1
    assert at > 2
    assert not after_effect or unclear
