"""The uncommitted difference: later layers override, and only what is touched is read."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from lakebed.repo.heads.write import stage_many
from lakebed.repo.model.options import RangeOptions, RepositoryOptions
from lakebed.repo.staging.listing import SEEK_ROW_COUNT
from lakebed.repo.staging.uncommitted import is_dirty, uncommitted
from worlds.repo.operations import diff_uncommitted
from worlds.repo.staging import BRANCH, StagedBranch

LAYERS = ["compact", "seal"]


def dirty(branch: StagedBranch) -> bool:
    """Whether anything is uncommitted."""
    with branch.home.key_value.snapshot() as snapshot:
        return is_dirty(branch.home, snapshot, branch.record)


def test_a_fresh_branch_has_no_difference() -> None:
    """A branch that shows what its head has is clean."""
    branch = StagedBranch({"a": "1"})
    assert branch.differences() == []
    assert not dirty(branch)


Change = Callable[[StagedBranch], object]
STALE: dict[str, tuple[Change, str, str, Change]] = {
    "added, deleted again": (lambda branch: branch.put("b", "new"), "b", "added", lambda branch: branch.delete("b")),
    "changed, changed back": (lambda branch: branch.put("a", "2"), "a", "changed", lambda branch: branch.put("a", "1")),
    "removed, restored": (lambda branch: branch.delete("a"), "a", "removed", lambda branch: branch.put("a", "1")),
}
"""What an earlier layer has, and what a later one makes of it, so that nothing differs from the head."""


@pytest.mark.parametrize("earlier", LAYERS)
@pytest.mark.parametrize("case", STALE)
def test_what_two_layers_undo_is_nothing(case: str, earlier: str) -> None:
    """An entry that equals the head's again is not a difference, though it was uploaded anew."""
    change, path, kind, undo = STALE[case]
    branch = StagedBranch({"a": "1", "c": "1"})
    change(branch)
    getattr(branch, earlier)()
    assert branch.differences() == [(path, kind)]
    undo(branch)
    assert branch.differences() == []
    assert not dirty(branch)


@pytest.mark.parametrize("earlier", LAYERS)
@pytest.mark.parametrize("later", LAYERS)
def test_the_stale_cases_stay_nothing_whatever_the_last_layer_is(earlier: str, later: str) -> None:
    """All three at once, with the last layer sealed or compacted too, together with differences that stay."""
    branch = StagedBranch({"back": "1", "changed": "1", "gone": "1", "restored": "1"})
    for path, text in (("added-and-gone", "1"), ("back", "2"), ("changed", "2"), ("new", "1")):
        branch.put(path, text)
    branch.delete("restored", "gone")
    getattr(branch, earlier)()
    branch.delete("added-and-gone")
    branch.put("back", "1")
    branch.put("restored", "1")
    getattr(branch, later)()
    assert branch.differences() == [("changed", "changed"), ("gone", "removed"), ("new", "added")]
    assert dirty(branch)


@pytest.mark.parametrize("earlier", LAYERS)
def test_a_cleared_prefix_removes_what_the_head_has_below_it(earlier: str) -> None:
    """Below a cleared prefix the head's paths are removed, those that came since were never there, puts count again."""
    branch = StagedBranch({"a/1": "x", "a/2": "x", "a/3": "x", "b": "x"})
    branch.put("a/new", "x")
    branch.put("a/2", "y")
    getattr(branch, earlier)()
    branch.delete_prefix("a/")
    branch.put("a/1", "x")
    branch.put("a/3", "z")
    assert branch.differences() == [("a/2", "removed"), ("a/3", "changed")]
    getattr(branch, earlier)()
    assert branch.differences() == [("a/2", "removed"), ("a/3", "changed")]
    branch.delete_prefix("")
    assert branch.differences() == [("a/1", "removed"), ("a/2", "removed"), ("a/3", "removed"), ("b", "removed")]
    assert branch.differences(start=b"a/2", end=b"a/3") == [("a/2", "removed")]
    assert dirty(branch)


def test_an_empty_prefix_was_cleared_for_nothing() -> None:
    """Clearing what only staging had leaves a clean branch."""
    branch = StagedBranch({"b": "x"})
    branch.put("a/1", "x")
    branch.delete_prefix("a/")
    assert branch.differences() == []
    assert not dirty(branch)


def large_branch() -> StagedBranch:
    """A head of 20 ranges of 50 paths each."""
    ranges = RangeOptions(entry_count_min=50, raggedness=1 << 40, entry_count_max=50)
    return StagedBranch(
        {f"p{number:04}": "x" for number in range(1000)}, options=RepositoryOptions(ranges=ranges, background=False)
    )


@pytest.mark.parametrize(
    ("touch", "ranges"),
    [
        (lambda branch: branch.put("p0510", "y"), 1),
        (lambda branch: [branch.put(path, "y") for path in ("p0000", "p0001", "p0510", "p0999")], 3),
        (lambda branch: branch.put("p0510x", "y"), 1),
        (lambda branch: branch.put("q", "y"), 0),
        (lambda branch: branch.delete(*(f"p{number:04}" for number in range(100, 150))), 1),
        (lambda branch: branch.delete_prefix("p03"), 2),
    ],
    ids=["one", "three", "between", "behind", "dense", "cleared"],
)
def test_only_touched_ranges_of_the_head_are_read(touch: Callable[[StagedBranch], object], ranges: int) -> None:
    """The difference opens no range of the head in which nothing is staged or cleared."""
    branch = large_branch()
    touch(branch)
    with branch.home.committed.count() as counts:
        assert branch.differences()
    assert counts.ranges_read == ranges


def test_compacted_differences_read_only_ranges_that_differ() -> None:
    """After a compaction the two ranges that differ are read, for any size of the head."""
    branch = large_branch()
    branch.put("p0510", "y")
    branch.compact()
    with branch.home.committed.count() as counts:
        assert branch.differences() == [("p0510", "changed")]
    assert counts.ranges_read == 2


def test_whether_a_branch_is_dirty_reads_to_the_first_difference() -> None:
    """One range is enough to know, however much is deleted."""
    branch = large_branch()
    branch.delete_prefix("")
    with branch.home.committed.count() as counts:
        assert dirty(branch)
    assert counts.ranges_read <= 2


def test_only_the_given_tokens_count() -> None:
    """An operation that sealed asks for sealed tokens only: what is staged later is not in the difference."""
    branch = StagedBranch({"a": "1"})
    branch.put("b", "1")
    branch.seal()
    branch.put("c", "1")
    record = branch.record
    with branch.home.key_value.snapshot() as snapshot:
        batches = list(uncommitted(branch.home, snapshot, record, tokens=record.sealed))
        assert is_dirty(branch.home, snapshot, record, tokens=record.sealed)
        assert not is_dirty(branch.home, snapshot, record, tokens=())
    assert [path for batch in batches for path in batch.column("path").to_pylist()] == [b"b"]


def test_differences_are_folded_as_listings_are() -> None:
    """A common prefix represents all below it, however much that is: past much of it a new seek begins."""
    branch = StagedBranch({"b/0": "x", "d/0": "x"})
    paths = ["a", *(f"b/{number}" for number in range(2 * SEEK_ROW_COUNT)), "b", "c/1/2", "d/0", "d/1", "é/x/y", "z"]
    stage_many(branch.home, branch=BRANCH, entries=[(path, branch.entry("y")) for path in paths])
    for delimiter, prefix in (("/", ""), ("/", "c/"), ("/", "b"), ("", ""), ("/x", "")):
        result = list(diff_uncommitted(branch.home, BRANCH, prefix=prefix, delimiter=delimiter))
        with branch.view() as view:
            assert [entry.path for entry in result] == [entry.path for entry in view.list(prefix, delimiter=delimiter)]
        assert all(item.is_prefix == (item.left is None and item.right is None) for item in result)
