"""Differences of two references, judged by dictionaries."""

from __future__ import annotations

import random

import pytest

from lakebed.errors import Conflict
from lakebed.repo.records.context import RepositoryContext
from lakebed.repo.references.branches import create_branch
from worlds.repo.memory_repository import MemoryRepository, contents, open_context, put, put_many, remove
from worlds.repo.operations import commit, diff_refs, merge


def change(home: RepositoryContext, branch: str, rng: random.Random, *, count: int) -> dict[str, str]:
    """Change, add and delete random files, and commit; what the branch holds then."""
    shown = contents(home, branch)
    for path in rng.sample([f"{folder}/{number:02}" for folder in "abcd" for number in range(20)], count):
        if path in shown and rng.random() < 0.4:
            remove(home, branch, path)
        else:
            put(home, branch, path, rng.choice(["x", "y"]))
    commit(home, branch, message="change", allow_empty=True)
    return contents(home, branch)


def kinds(before: dict[str, str], after: dict[str, str]) -> dict[str, str]:
    """Path -> what happened to it."""
    result = {}
    for path in before.keys() | after.keys():
        if path not in after:
            result[path] = "REMOVED"
        elif path not in before:
            result[path] = "ADDED"
        elif before[path] != after[path]:
            result[path] = "CHANGED"
    return result


@pytest.mark.parametrize("seed", range(3))
def test_three_dots_leave_out_what_both_sides_have(seed: int) -> None:
    """A path that both sides changed in the same way is not a difference, otherwise it is a conflict, as in a merge."""
    rng = random.Random(seed)
    with open_context(MemoryRepository()) as home:
        put_many(home, "main", {f"{folder}/{number:02}": "old" for folder in "abc" for number in range(20)})
        commit(home, "main", message="base")
        base = contents(home, "main")
        create_branch(home, "dev", source="main")
        left = change(home, "main", rng, count=30)
        right = change(home, "dev", rng, count=30)
        equal = {path for path in base.keys() | right.keys() if left.get(path) == right.get(path)}
        changed = kinds(base, right)
        assert equal & changed.keys(), "no path was changed in the same way"
        both = changed.keys() & kinds(base, left).keys()
        wanted = {
            path: "CONFLICT" if path in both else kind for path, kind in sorted(changed.items()) if path not in equal
        }
        with pytest.raises(Conflict) as refused:
            merge(home, "dev", into="main")
        assert refused.value.facts["paths"] == [path for path, kind in wanted.items() if kind == "CONFLICT"]
        assert {difference.path: difference.kind.name for difference in diff_refs(home, "main", "dev")} == wanted
        assert {
            difference.path: difference.kind.name for difference in diff_refs(home, "main", "dev", kind="two_dot")
        } == kinds(left, right)
        pages: list[str] = []
        while page := [
            difference.path for difference in diff_refs(home, "main", "dev", amount=3, after=pages[-1] if pages else "")
        ]:
            pages += page
        assert pages == list(wanted)
        folders = sorted({path[:2] for path in wanted})
        assert [difference.path for difference in diff_refs(home, "main", "dev", delimiter="/")] == folders
        assert [difference.path for difference in diff_refs(home, "main", "dev", prefix="b/")] == [
            path for path in wanted if path.startswith("b/")
        ]
