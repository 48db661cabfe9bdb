"""The sensor: what it counts, and when it asks for a compaction."""

from __future__ import annotations

import pytest

from lakebed.repo.heads.compact import count_branch, find_compactions
from lakebed.repo.model.options import RepositoryOptions
from lakebed.repo.records.counters import BranchCounts, Counters
from worlds.repo.staging import BRANCH, StagedBranch

OPTIONS = RepositoryOptions(
    compaction_staged_min=10, compaction_tombstones_min=4, compaction_sealed_min=3, background=False
)


@pytest.mark.parametrize(
    ("counts", "why"),
    [
        (BranchCounts(), None),
        (BranchCounts(9, 3, 2), None),
        (BranchCounts(10, 0, 0), "staged_entries"),
        (BranchCounts(0, 4, 0), "tombstones"),
        (BranchCounts(0, 0, 3), "sealed_tokens"),
        (BranchCounts(10, 4, 3), "tombstones"),
    ],
)
def test_what_calls_for_a_compaction(counts: BranchCounts, why: str | None) -> None:
    """Each threshold by itself does."""
    assert counts.why(OPTIONS) == why


def test_a_branch_that_was_never_counted_is_not_known() -> None:
    """What was written since the start says nothing of what was there before."""
    counters = Counters()
    counters.count("main", "t1", entries=5)
    assert counters.counts("main") is None
    counters.set_counted("main", {"t1": (7, 1)}, sealed_count=0)
    assert counters.counts("main") == BranchCounts(7, 1, 0)


def test_what_a_publish_drops_is_forgotten_and_the_rest_stays() -> None:
    """Writes that came after the seal still count after the commit that follows it."""
    counters = Counters()
    counters.set_counted("main", {}, sealed_count=0)
    counters.count("main", "t1", entries=5, tombstones=1)
    counters.count_seal("main")
    counters.count("main", "t2", entries=2)
    assert counters.counts("main") == BranchCounts(7, 1, 1)
    counters.reset("main", sealed_count=0, tokens=["t2"])
    assert counters.counts("main") == BranchCounts(2, 0, 0)
    counters.count("main", "t2", entries=-5)
    assert counters.counts("main") == BranchCounts(0, 0, 0)
    counters.forget("main")
    assert counters.counts("main") is None
    assert counters.all_counts() == {}


def test_a_branch_moves_until_its_last_operation_ends() -> None:
    """Two operations may move a branch at once, and one may fail."""
    counters = Counters()
    with counters.note_move("main"):
        with pytest.raises(KeyError), counters.note_move("main"):
            raise KeyError
        assert counters.is_moving("main")
        assert not counters.is_moving("other")
        before = counters.changes
    assert not counters.is_moving("main")
    assert counters.changes > before


def test_verbs_feed_the_counts() -> None:
    """Puts, deletes, batches and prefixes are counted where they happen."""
    branch = StagedBranch({f"a/{number}": "1" for number in range(5)}, options=OPTIONS)
    with branch.home.key_value.snapshot() as snapshot:
        assert count_branch(branch.home, BRANCH, branch.record, snapshot=snapshot) == BranchCounts()
    branch.put("b", "1")
    branch.put("c", "1")
    branch.delete("c", "a/1", "a/2")
    assert branch.home.counters.counts(BRANCH) == BranchCounts(1, 2, 0)
    branch.delete_prefix("a/")
    assert branch.home.counters.counts(BRANCH) == BranchCounts(1, 3, 1)
    assert find_compactions(branch.home) == []
    branch.delete("b")
    assert find_compactions(branch.home) == [(BRANCH, "tombstones")]


def test_a_new_process_counts_what_is_there() -> None:
    """The counts of a process that began later are those of the store, once for each branch, and bounded."""
    branch = StagedBranch({f"a/{number}": "1" for number in range(9)}, options=OPTIONS)
    branch.delete("a/1", "a/2", "a/3")
    branch.put("b", "1")
    branch.seal()
    record = branch.record
    later = StagedBranch(key_value=branch.home.key_value, options=OPTIONS)
    branch.replace(commit_id=record.commit_id, staging=record.staging, sealed=record.sealed)
    with later.home.key_value.snapshot() as snapshot:
        assert count_branch(later.home, BRANCH, record, snapshot=snapshot) == BranchCounts(1, 3, 1)
    branch.delete("a/4")
    with later.home.key_value.snapshot() as snapshot:
        assert count_branch(later.home, BRANCH, record, snapshot=snapshot) == BranchCounts(1, 3, 1)


def test_counting_goes_no_further_than_the_threshold() -> None:
    """A branch with far more than the threshold is not read through to know that it wants a compaction."""
    branch = StagedBranch(options=OPTIONS)
    for number in range(30):
        branch.put(f"{number:02}", "1")
    branch.home.counters.forget(BRANCH)
    with branch.home.key_value.snapshot() as snapshot:
        counts = count_branch(branch.home, BRANCH, branch.record, snapshot=snapshot)
    assert counts.staged_entries in (10, 30)
    assert counts.why(OPTIONS) == "staged_entries"
