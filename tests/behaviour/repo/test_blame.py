"""Blame: who made a path what it is, against following every path by hand."""

from __future__ import annotations

import random

from lakebed.errors import InvalidRequest, NotFound
from lakebed.repo.heads.blame import blame
from lakebed.repo.records.context import RepositoryContext
from lakebed.repo.references.branches import create_branch
from lakebed.repo.references.commits import load_commit
from lakebed.repo.references.refs import resolve_commit
from worlds.errors import raises
from worlds.repo.memory_repository import committed_contents, put, remove
from worlds.repo.operations import commit, commit_text, merge


def blamed(home: RepositoryContext, ref: str, *paths: str) -> dict[str, str]:
    """The messages of the commits that made paths what they are."""
    return {path: result.message for path, (_, result) in blame(home, ref, paths=paths).items()}


def test_the_last_commit_that_changed_a_path_is_named(home: RepositoryContext) -> None:
    """Through changes elsewhere, a delete and a return, and a merge, which is not blamed for what it brought."""
    for message, path, text in (("one", "a", "1"), ("two", "b", "1"), ("three", "a", "2"), ("four", "c", "1")):
        commit_text(home, "main", path, text, message=message)
    remove(home, "main", "b")
    commit(home, "main", message="gone")
    commit_text(home, "main", "b", "1", message="back")
    create_branch(home, "dev", source="main~3")
    commit_text(home, "dev", "d", "1", message="elsewhere")
    merge(home, "dev", into="main", message="merged")
    assert blamed(home, "main", "d", "a", "b", "c") == {"d": "elsewhere", "a": "three", "b": "back", "c": "four"}
    assert list(blamed(home, "main", "d", "a")) == ["d", "a"]
    assert blamed(home, "main~4", "a", "b") == {"a": "three", "b": "two"}
    put(home, "main", "a", "staged")
    assert blamed(home, "main", "a") == {"a": "three"}
    assert blamed(home, "main") == {}


def test_a_path_that_is_not_there_is_not_found(home: RepositoryContext) -> None:
    """Neither a missing path, nor one that is only staged, nor a wrong one gets an answer."""
    put(home, "main", "a", "1")
    for error, kind, ref, path in (
        (NotFound, "path_not_found", "main", "a"),
        (NotFound, "reference_not_found", "nobody", "a"),
        (InvalidRequest, "invalid_path", "main", ""),
    ):
        with raises(error, kind):
            blame(home, ref, paths=[path])


def test_blame_agrees_with_a_model(home: RepositoryContext) -> None:
    """Random histories with merges: every path is blamed as by comparing whole states, along equal entries."""
    rng = random.Random(3)
    paths = [f"{number:02}" for number in range(12)]
    branches = ["main"]
    for number in range(25):
        branch = rng.choice(branches)
        for path in rng.sample(paths, 2):
            put(home, branch, path, f"{rng.randrange(4)}")
        commit(home, branch, message=f"{number}", allow_empty=True)
        if number % 6 == 2:
            create_branch(home, f"b{number}", source=branch)
            branches.append(f"b{number}")
        if number % 6 == 5:
            source, into = rng.sample(branches, 2)
            merge(home, source, into=into, strategy=rng.choice(("source-wins", "dest-wins")), allow_empty=True)

    def followed(id: str, path: str) -> str:
        outcome = load_commit(home, id)
        here = committed_contents(home, outcome.metarange)[path]
        for parent in outcome.parents:
            if committed_contents(home, load_commit(home, parent).metarange).get(path) == here:
                return followed(parent, path)
        return id

    for branch in branches:
        id, head = resolve_commit(home, branch)
        present = sorted(committed_contents(home, head.metarange))
        result = blame(home, branch, paths=present)
        assert {path: blamed_id for path, (blamed_id, _) in result.items()} == {
            path: followed(id, path) for path in present
        }
