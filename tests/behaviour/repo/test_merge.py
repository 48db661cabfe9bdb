"""Merges between branches: what they hold, which commit they make, what they refuse."""

from __future__ import annotations

import random
from collections.abc import Iterator

import pytest

from lakebed.errors import Conflict, InvalidRequest, LakebedError, NotFound, Rejected
from lakebed.repo.heads.compact import compact_once
from lakebed.repo.records.context import RepositoryContext
from lakebed.repo.records.hooks import HookCall
from lakebed.repo.records.protection import protect
from lakebed.repo.references.branches import create_branch, load_branch
from worlds.errors import raises
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
from worlds.repo.operations import commit, merge

BASE = {f"{n:02}": "old" for n in range(30)}


@pytest.fixture
def home() -> Iterator[RepositoryContext]:
    """A repository with a committed base and a branch ``dev`` that begins there."""
    with open_context(MemoryRepository()) as opened:
        put_many(opened, "main", BASE)
        commit(opened, "main", message="base")
        create_branch(opened, "dev", source="main")
        yield opened


def changed(home: RepositoryContext, branch: str, **texts: str | None) -> str:
    """Commit changes on a branch, None deletes; the commit's id."""
    for path, text in texts.items():
        name = path.removeprefix("p")
        if text is None:
            remove(home, branch, name)
        else:
            put(home, branch, name, text)
    return commit(home, branch, message=f"on {branch}").id


def refused(
    home: RepositoryContext, error: type[LakebedError], kind: str, *, source: str = "dev", **arguments: object
) -> LakebedError:
    """The error of a merge into main that must be refused; the head stays."""
    before = load_branch(home, "main")[0].commit_id
    with raises(error, kind) as caught:
        merge(home, source, into="main", **arguments)  # type: ignore[arg-type]
    assert load_branch(home, "main")[0].commit_id == before
    return caught.value


def test_both_sides_are_in_a_merge(home: RepositoryContext) -> None:
    """Changes of different paths come together in a commit with two parents, and merging again has nothing to do."""
    on_dev = changed(home, "dev", p00="dev", p01=None, new="dev")
    on_main = changed(home, "main", p10="main", p11=None)
    merged = merge(home, "dev", into="main", metadata={"k": "v"}, committer="grace")
    expected = {path: text for path, text in BASE.items() if path not in {"01", "11"}}
    assert contents(home, "main") == expected | {"00": "dev", "new": "dev", "10": "main"}
    assert merged.commit.parents == (on_main, on_dev)
    assert merged.commit.message == "Merge 'dev' into 'main'"
    assert merged.commit.metadata == {"k": "v", ".lakefs.merge.strategy": "default"}
    assert merged.commit.committer == "grace"
    assert "dev" in str(refused(home, InvalidRequest, "no_changes"))
    changed(home, "dev", p05="again")
    merge(home, "dev", into="main")
    assert contents(home, "main")["05"] == "again"


def test_a_destination_that_did_not_move_takes_the_source_as_it_is(home: RepositoryContext) -> None:
    """No range is read or written, and the merge is a commit all the same."""
    on_dev = changed(home, "dev", p00="dev")
    with home.committed.count() as counts:
        merged = merge(home, "dev", into="main")
    assert (counts.ranges_read, counts.ranges_written) == (0, 0)
    assert merged.commit.parents[1] == on_dev
    assert head_of(home, "main") == head_of(home, "dev")


def test_conflicts_are_listed_and_nothing_moves(home: RepositoryContext) -> None:
    """Changed and changed, changed and deleted: each path is named, the first of them in the sentence."""
    texts = {f"p{n:02}": "dev" for n in range(7)}
    changed(home, "dev", **texts)
    changed(home, "main", **{**dict.fromkeys(texts, "main"), "p03": None, "p06": "dev"})
    error = refused(home, Conflict, "merge_conflict")
    assert error.facts["paths"] == [f"{n:02}" for n in range(6)]
    assert error.facts["count"] == 6
    assert "00, 01, 02, 03, 04 and 1 more" in str(error)


@pytest.mark.parametrize(("strategy", "winner"), [("source-wins", "dev"), ("dest-wins", "main")])
def test_a_strategy_decides_conflicts(home: RepositoryContext, strategy: str, winner: str) -> None:
    """The side that wins is taken where both changed, and the commit says which strategy it was."""
    changed(home, "dev", p00="dev", p01="dev")
    changed(home, "main", p00="main", p02="main")
    merged = merge(home, "dev", into="main", strategy=strategy)  # type: ignore[arg-type]
    assert contents(home, "main") == BASE | {"00": winner, "01": "dev", "02": "main"}
    assert merged.commit.metadata[".lakefs.merge.strategy"] == strategy


def test_a_strategy_that_is_unknown_is_refused(home: RepositoryContext) -> None:
    """The error lists those there are."""
    changed(home, "dev", p00="dev")
    assert "source-wins" in str(refused(home, InvalidRequest, "unknown_strategy", strategy="ours"))


def test_equal_entries_at_other_paths_are_no_base(home: RepositoryContext) -> None:
    """Many identical markers: one that is added and one that is deleted are not taken for one another."""
    changed(home, "main", **{"a/_SUCCESS": "", "b/_SUCCESS": ""})
    create_branch(home, "jobs", source="main")
    changed(home, "jobs", **{"c/_SUCCESS": "", "a/_SUCCESS": None})
    changed(home, "main", **{"d/_SUCCESS": ""})
    merge(home, "jobs", into="main")
    assert {path for path in contents(home, "main") if "_SUCCESS" in path} == {f"{item}/_SUCCESS" for item in "bcd"}


def test_a_squashed_merge_has_one_parent(home: RepositoryContext) -> None:
    """It holds the same as a merge, and says where it came from."""
    changed(home, "dev", p00="one")
    on_dev = changed(home, "dev", p01="two")
    merged = merge(home, "dev", into="main", squash=True, message="both")
    assert len(merged.commit.parents) == 1
    assert merged.commit.metadata[".lakebed.merge.source"] == on_dev
    assert head_of(home, "main") == head_of(home, "dev")
    refused(home, InvalidRequest, "no_changes", squash=True)


def test_a_partial_merge_takes_a_prefix(home: RepositoryContext) -> None:
    """Only paths below it come over; the rest can be merged later, for the merge base stays."""
    changed(home, "dev", **{"a/1": "dev", "b/1": "dev", "p00": "dev"})
    changed(home, "main", p00="main")
    merged = merge(home, "dev", into="main", prefix="a/")
    assert contents(home, "main") == BASE | {"00": "main", "a/1": "dev"}
    assert len(merged.commit.parents) == 1
    assert merged.commit.metadata[".lakebed.merge.prefix"] == "a/"
    assert refused(home, Conflict, "merge_conflict").facts["paths"] == ["00"]
    refused(home, InvalidRequest, "no_changes", prefix="a/")
    merge(home, "dev", into="main", strategy="dest-wins")
    assert contents(home, "main") == BASE | {"00": "main", "a/1": "dev", "b/1": "dev"}


def test_a_dirty_destination_is_refused(home: RepositoryContext) -> None:
    """Staged, sealed or compacted: a merge needs a branch without; what amounts to nothing is none."""
    changed(home, "dev", p00="dev")
    put(home, "main", "x", "1")
    refused(home, InvalidRequest, "dirty_branch")
    compact_once(home, "main", force=True)
    refused(home, InvalidRequest, "dirty_branch")
    remove(home, "main", "x")
    merge(home, "dev", into="main")
    assert uncommitted_of(home, "main") == {}
    record, _ = load_branch(home, "main")
    assert record.compacted is None
    assert record.sealed == ()


def test_what_is_staged_on_the_source_is_not_merged(home: RepositoryContext) -> None:
    """Of a source branch its head counts, and it stays dirty."""
    changed(home, "dev", p00="dev")
    put(home, "dev", "staged", "1")
    merge(home, "dev", into="main")
    assert "staged" not in contents(home, "main")
    assert list(uncommitted_of(home, "dev")) == ["staged"]


def test_failed_merges_leave_nothing_behind(home: RepositoryContext) -> None:
    """Again and again, with writes in between that are taken back: the list of sealed tokens does not grow."""
    changed(home, "dev", p00="dev")
    changed(home, "main", p00="main")
    for _ in range(5):
        put(home, "main", "x", "1")
        refused(home, InvalidRequest, "dirty_branch")
        remove(home, "main", "x")
        refused(home, Conflict, "merge_conflict")
        refused(home, Conflict, "merge_conflict")
    merge(home, "dev", into="main", strategy="source-wins")
    assert load_branch(home, "main")[0].sealed == ()


def test_any_commit_can_be_merged(home: RepositoryContext) -> None:
    """A tag's, an ancestor's, one by its id; and what is an ancestor already has nothing to merge."""
    first = changed(home, "dev", p00="one")
    changed(home, "dev", p01="two")
    merge(home, "dev~1", into="main")
    assert contents(home, "main") == BASE | {"00": "one"}
    refused(home, InvalidRequest, "no_changes", source=first)
    empty = merge(home, first, into="main", allow_empty=True)
    assert empty.commit.parents[1] == first
    refused(home, NotFound, "reference_not_found", source="nowhere")


def test_hooks_see_a_merge(home: RepositoryContext) -> None:
    """A pre-merge hook may refuse it; a post-merge hook receives it."""
    seen: list[HookCall] = []

    def refuse(call: HookCall) -> None:
        raise PermissionError("frozen until Monday")

    home.hooks.register("pre-merge", refuse)
    home.hooks.register("post-merge", seen.append)
    changed(home, "dev", p00="dev")
    assert "frozen until Monday" in str(refused(home, Rejected, "hook_rejected"))
    home.hooks.remove(refuse)
    merged = merge(home, "dev", into="main")
    [call] = seen
    assert (call.commit_id, call.source, call.branch) == (merged.id, "dev", "main")


def test_a_protected_branch_can_be_merged_into(home: RepositoryContext) -> None:
    """Protection refuses direct commits: merges are the way around them."""
    changed(home, "dev", p00="dev")
    protect(home, "main")
    merge(home, "dev", into="main")
    assert contents(home, "main")["00"] == "dev"


def test_merges_crosswise_are_as_a_dictionary_says(home: RepositoryContext) -> None:
    """Random rounds of commits and merges both ways: every merge is the three-way merge of its base, path by path."""
    rng = random.Random(7)
    for number in range(12):
        for branch in ("dev", "main"):
            for _ in range(rng.randrange(1, 5)):
                path, text = f"{rng.randrange(40):02}", rng.choice([None, "x", "y", f"{branch}{number}"])
                if text is None:
                    remove(home, branch, path)
                else:
                    put(home, branch, path, text)
            commit(home, branch, message="m", allow_empty=True)
        source, into = rng.sample(["dev", "main"], 2)
        before, theirs = head_of(home, into), head_of(home, source)
        merge(home, source, into=into, strategy="source-wins")
        after = head_of(home, into)
        for path in before.keys() | theirs.keys() | after.keys():
            assert after.get(path) in (before.get(path), theirs.get(path)), path
            if before.get(path) == theirs.get(path):
                assert after.get(path) == before.get(path), path
        merge(home, into, into=source, strategy="dest-wins")
        assert head_of(home, source) == after
