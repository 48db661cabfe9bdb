"""A verb that sleeps while what it sealed is compacted and swept away begins again, and says nothing that is not so.

Found by the simulation: a commit of some paths said that nothing had changed, because rows were gone when it woke.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

import pytest

from lakebed.errors import LakebedError
from lakebed.repo.heads.compact import compact_once
from lakebed.repo.records.context import RepositoryContext
from lakebed.repo.references.branches import create_branch
from lakebed.repo.staging.cleanup import clean_once
from worlds.repo.memory_repository import MemoryRepository, Pause, contents, copy_of, open_context, put
from worlds.repo.operations import commit, commit_text, hard_reset, merge, reset_prefix, revert

CASES: dict[str, tuple[Callable[[RepositoryContext], object], str | None]] = {
    "commit": (lambda home: commit(home, "main", message="m"), None),
    "commit of a prefix": (lambda home: commit(home, "main", message="m", prefixes=["a"]), None),
    "reset of a prefix": (lambda home: reset_prefix(home, "main", prefix="b"), None),
    "merge": (lambda home: merge(home, "dev", into="main"), "dirty_branch"),
    "revert": (lambda home: revert(home, "main", ref="main"), "dirty_branch"),
    "hard reset": (lambda home: hard_reset(home, "main", ref="main~1"), "dirty_branch"),
}
"""What a caller does on a dirty branch, and the kind of error it must end with."""


@cache
def dirty() -> MemoryRepository:
    """A branch with something committed and something staged, and another that is ahead of it."""
    place = MemoryRepository()
    with open_context(place) as home:
        commit_text(home, "main", "a", "old", message="1")
        create_branch(home, "dev", source="main")
        commit_text(home, "dev", "d", "new", message="2")
        put(home, "main", "a", "new")
    return place


@pytest.mark.parametrize("name", sorted(CASES))
def test_no_verdict_rests_on_rows_that_were_swept(name: str) -> None:
    """Compaction and cleanup, by another process, before each single call: the answer is as without."""
    verb, refusal = CASES[name]
    at = 0
    while True:
        place = copy_of(dirty())

        def sweep(place: MemoryRepository = place) -> None:
            with open_context(place) as other:
                compact_once(other, "main", force=True)
                clean_once(other)

        pause = Pause(at, sweep)
        with open_context(place, trap=pause) as home:
            try:
                verb(home)
                messages = None
            except LakebedError as error:
                messages = error.kind
            assert messages == refusal, f"asleep before call {at}"
            assert contents(home, "main") == {"a": "new"}
        if not pause.has_sprung:
            break
        at += 1
    assert at > 5
