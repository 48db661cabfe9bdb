"""Reverts, cherry-picks and rebases: changes undone, made again, moved."""

from __future__ import annotations

import random
from collections.abc import Iterator

import pytest

from lakebed.errors import Conflict, InvalidRequest, LakebedError
from lakebed.repo.records.context import RepositoryContext
from lakebed.repo.references.branches import create_branch, load_branch
from lakebed.repo.references.commits import Walk
from lakebed.runtime import Environment
from lakebed.testing.clock import ManualClock
from worlds.errors import raises
from worlds.repo.memory_repository import (
    MemoryRepository,
    contents,
    copy_of,
    head_of,
    open_context,
    put,
    put_many,
    remove,
)
from worlds.repo.operations import cherry_pick, commit, commit_text, merge, rebase, revert

BASE = {f"{n:02}": "old" for n in range(30)}


@pytest.fixture
def home() -> Iterator[RepositoryContext]:
    """A repository with a committed base and a branch ``dev`` that begins there."""
    with open_context(MemoryRepository()) as opened:
        put_many(opened, "main", BASE)
        commit(opened, "main", message="base")
        create_branch(opened, "dev", source="main")
        yield opened


def changed(home: RepositoryContext, branch: str, texts: dict[str, str | None], message: str = "change") -> str:
    """Commit changes on a branch, None deletes; the commit's id."""
    for path, text in texts.items():
        if text is None:
            remove(home, branch, path)
        else:
            put(home, branch, path, text)
    return commit(home, branch, message=message, metadata={"of": message}, committer="grace").id


def head(home: RepositoryContext, branch: str) -> str:
    """The id of a branch's head."""
    return load_branch(home, branch)[0].commit_id


def test_a_revert_undoes_one_commit(home: RepositoryContext) -> None:
    """Added goes, changed goes back, deleted comes back; what came later stays."""
    wrong = changed(home, "main", {"00": "wrong", "01": None, "new": "wrong"})
    changed(home, "main", {"05": "later"})
    undone = revert(home, "main", ref=wrong)
    assert contents(home, "main") == BASE | {"05": "later"}
    assert undone.commit.message == f"Revert {wrong}"
    assert len(undone.commit.parents) == 1
    with raises(InvalidRequest, "no_changes"):
        revert(home, "main", ref=wrong)


def test_a_revert_of_what_was_changed_again_is_a_conflict(home: RepositoryContext) -> None:
    """Nothing moves; with a strategy one side wins."""
    wrong = changed(home, "main", {"00": "wrong", "01": "wrong"})
    changed(home, "main", {"00": "right"})
    before = head(home, "main")
    with raises(Conflict, "merge_conflict", paths=["00"]):
        revert(home, "main", ref=wrong)
    assert head(home, "main") == before
    revert(home, "main", ref=wrong, strategy="dest-wins")
    assert contents(home, "main") == BASE | {"00": "right"}


def test_a_merge_needs_a_parent_number(home: RepositoryContext) -> None:
    """To revert or pick a merge the caller has to name a parent."""
    changed(home, "dev", {"00": "dev"})
    changed(home, "main", {"10": "main"})
    merged = merge(home, "dev", into="main")
    create_branch(home, "other", source="main~2")
    for number, kind in ((None, "parent_number_needed"), (0, "parent_number_needed"), (3, "invalid_parent_number")):
        for verb in (revert, cherry_pick):
            with raises(InvalidRequest, kind):
                verb(home, "other", ref=merged.id, parent_number=number)
    cherry_pick(home, "other", ref=merged.id, parent_number=1)
    assert contents(home, "other") == BASE | {"00": "dev"}
    revert(home, "main", ref=merged.id, parent_number=1)
    assert contents(home, "main") == BASE | {"10": "main"}


def test_a_cherry_pick_makes_one_commit_again(home: RepositoryContext) -> None:
    """Its message and metadata come with it, and where it came from is said as clients look for it."""
    changed(home, "dev", {"00": "not this"})
    wanted = changed(home, "dev", {"01": "this", "02": None}, message="wanted")
    changed(home, "dev", {"03": "nor this"})
    picked = cherry_pick(home, "main", ref=wanted)
    expected = {path: text for path, text in BASE.items() if path != "02"}
    assert contents(home, "main") == expected | {"01": "this"}
    assert picked.commit.message == "wanted"
    assert picked.commit.metadata == {"of": "wanted", "cherry-pick-origin": wanted, "cherry-pick-committer": "grace"}
    assert picked.commit.committer == "ada"
    with raises(InvalidRequest, "no_changes"):
        cherry_pick(home, "main", ref=wanted)


def test_the_first_commit_can_be_picked_and_reverted(home: RepositoryContext) -> None:
    """It has no parent: its changes are all that it holds."""
    first = [id for id, _ in Walk(home, [head(home, "main")])][-2]
    revert(home, "dev", ref=first)
    assert contents(home, "dev") == {}
    cherry_pick(home, "dev", ref=first)
    assert contents(home, "dev") == BASE


@pytest.mark.parametrize("verb", [revert, cherry_pick])
def test_a_dirty_branch_takes_neither(home: RepositoryContext, verb: object) -> None:
    """What is staged has to be committed or reset first."""
    wanted = changed(home, "dev", {"00": "dev"})
    put(home, "main", "x", "1")
    with raises(InvalidRequest, "dirty_branch"):
        verb(home, "main", ref=wanted)  # type: ignore[operator]
    assert contents(home, "main")["x"] == "1"


def test_a_rebase_makes_own_commits_again(home: RepositoryContext) -> None:
    """In their order, with their messages and committers, on the other branch; what is there already is left out."""
    changed(home, "dev", {"00": "dev"}, message="one")
    changed(home, "dev", {"05": "same"}, message="also there")
    changed(home, "dev", {"01": None}, message="two")
    onto = changed(home, "main", {"05": "same", "10": "main"})
    last = rebase(home, "dev", onto="main")
    assert head(home, "dev") == last.id
    history = [(id, commit) for id, commit in Walk(home, [last.id])]
    assert [commit.message for _, commit in history[:3]] == ["two", "one", "change"]
    assert history[2][0] == onto
    assert {commit.committer for _, commit in history[:2]} == {"grace"}
    expected = {path: text for path, text in BASE.items() if path != "01"}
    assert head_of(home, "dev") == expected | {"00": "dev", "05": "same", "10": "main"}
    with raises(InvalidRequest, "no_changes"):
        rebase(home, "dev", onto="main")


def test_a_rebase_without_own_commits_goes_forward(home: RepositoryContext) -> None:
    """The branch is where the other one is."""
    onto = changed(home, "main", {"05": "new"})
    assert rebase(home, "dev", onto="main").id == onto
    assert head(home, "dev") == onto


def test_a_conflict_in_a_rebase_moves_nothing(home: RepositoryContext) -> None:
    """The error names the commit that does not fit; also when others before it did."""
    changed(home, "dev", {"00": "dev"})
    second = changed(home, "dev", {"01": "dev"})
    changed(home, "main", {"01": "main"})
    before = head(home, "dev")
    with raises(LakebedError, "merge_conflict") as caught:
        rebase(home, "dev", onto="main")
    assert second in str(caught.value)
    assert head(home, "dev") == before
    rebase(home, "dev", onto="main", strategy="source-wins")
    assert head_of(home, "dev") == BASE | {"00": "dev", "01": "dev"}


def test_no_commit_of_a_rebase_has_expired() -> None:
    """A commit that a collection has forgotten does not come back by being made again, not even below the new head."""
    place = MemoryRepository(environment=Environment(clock=ManualClock(), rng=random.Random(4)))
    with open_context(place) as home:
        commit_text(home, "main", "a", "1", message="base")
        create_branch(home, "dev", source="main")
        for path in "bc":
            changed(home, "dev", {path: "1"}, message=path)
        changed(home, "main", {"z": "1"})
        before = head(home, "dev")
    with open_context(copy_of(place)) as other:
        made = [id for id, _ in Walk(other, [rebase(other, "dev", onto="main").id], first_parent=True)][:2]
    for id in made:  # the clock stands, so the same commits would be made
        with open_context(copy_of(place)) as home:
            home.key_value.set(home.keys.expired(id), b"")
            with raises(InvalidRequest, "commit_expired"):
                rebase(home, "dev", onto="main")
            assert head(home, "dev") == before
