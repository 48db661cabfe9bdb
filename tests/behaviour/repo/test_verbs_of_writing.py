"""What each write of a branch stages, counts and refuses; how writes race: test_staging_races.py."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from lakebed.errors import Conflict, InvalidRequest, LakebedError
from lakebed.objects import open_store
from lakebed.repo.heads.uploads import SmallUpload, upload_many
from lakebed.repo.heads.write import (
    check_age,
    delete,
    delete_many,
    stage,
    stage_if_absent,
    stage_if_match,
    stage_many,
    update_metadata,
)
from lakebed.repo.model.model import Entry
from lakebed.repo.model.options import RepositoryOptions
from lakebed.repo.outside.foreign import ForeignStores
from lakebed.repo.records.context import RepositoryContext
from lakebed.repo.records.counters import BranchCounts
from worlds.errors import raises
from worlds.repo.staging import BRANCH, StagedBranch

Write = Callable[[RepositoryContext, str, Entry], object]

WRITES: dict[str, Write] = {
    "stage": lambda home, path, entry: stage(home, branch=BRANCH, path=path, entry=entry),
    "stage_if_absent": lambda home, path, entry: stage_if_absent(home, branch=BRANCH, path=path, entry=entry),
    "stage_if_match": lambda home, path, entry: stage_if_match(
        home, branch=BRANCH, path=path, entry=entry, matches=lambda visible: visible is None
    ),
    "stage_many": lambda home, path, entry: stage_many(home, branch=BRANCH, entries=[(path, entry)]),
}


def counted(branch: StagedBranch) -> BranchCounts:
    """What was counted."""
    branch.home.counters.set_counted(BRANCH, {}, sealed_count=0)
    counts = branch.home.counters.counts(BRANCH)
    assert counts is not None
    return counts


@pytest.mark.parametrize("name", list(WRITES))
def test_every_write_counts_what_it_stages(name: str) -> None:
    """One entry a path."""
    branch = StagedBranch()
    entry = branch.entry("1")
    for path in ("a", "b", "c"):
        WRITES[name](branch.home, path, entry)
    assert counted(branch) == BranchCounts(3, 0, 0)
    assert branch.shown() == {"a": "1", "b": "1", "c": "1"}


def test_a_batch_counts_its_paths() -> None:
    """Of a path that repeats the last; none for an empty one."""
    branch = StagedBranch()
    pairs = [("a", branch.entry("1")), ("b", branch.entry("2")), ("a", branch.entry("3"))]
    assert (stage_many(branch.home, branch=BRANCH, entries=pairs), counted(branch)) == (2, BranchCounts(2, 0, 0))
    assert branch.shown() == {"a": "3", "b": "2"}
    assert (stage_many(branch.home, branch=BRANCH, entries=[]), counted(branch)) == (0, BranchCounts(2, 0, 0))


def test_new_metadata_is_one_entry() -> None:
    """In place of what is staged, or over what is committed."""
    branch = StagedBranch({"a": "1"})
    branch.put("b", "2")
    for path in ("a", "b"):
        update_metadata(branch.home, branch=BRANCH, path=path, metadata={"is": "new"})
    assert (counted(branch), branch.shown()) == (BranchCounts(3, 0, 0), {"a": "new", "b": "new"})


def test_deletions_count_tombstones_and_take_entries_back() -> None:
    """A tombstone where an older layer has the path; else the entry goes, and with it what was counted."""
    branch = StagedBranch({"old": "1", "both": "1", "gone": "1"})
    for path in ("new", "newer", "both"):
        branch.put(path, "2")
    assert counted(branch) == BranchCounts(3, 0, 0)
    home = branch.home
    assert delete_many(home, branch=BRANCH, paths=["gone"]) == 1
    assert counted(branch) == BranchCounts(3, 1, 0)
    paths = ["gone", "old", "missing", "new", "both", "new"]
    assert delete_many(home, branch=BRANCH, paths=paths) == 3
    assert counted(branch) == BranchCounts(2, 3, 0)
    assert branch.shown() == {"newer": "2"}
    assert [delete(home, branch=BRANCH, path=path) for path in ("old", "missing", "newer", "newer")] == [
        False, False, True, False,
    ]  # fmt: skip
    assert (counted(branch), branch.shown()) == (BranchCounts(1, 3, 0), {})


@pytest.mark.parametrize("limit", [1, 2, 3])
def test_a_prefix_that_is_deleted_seals_and_counts_a_tombstone(limit: int) -> None:
    """And a branch with as many sealed tokens as there may be is compacted first."""
    branch = StagedBranch(
        {f"{letter}/1": "1" for letter in "abcdef"}, options=RepositoryOptions(sealed_tokens_max=limit)
    )
    assert not branch.delete_prefix("nowhere/")
    assert counted(branch) == BranchCounts()
    for number, letter in enumerate("abcde"):
        assert branch.delete_prefix(f"{letter}/")
        sealed = number % limit + 1  # the token that takes writes has a tombstone too, but in a new branch
        assert len(branch.record.sealed) == sealed
        counts = branch.home.counters.counts(BRANCH)
        assert counts is not None
        assert (counts.tombstones, counts.sealed_tokens) == (sealed + (number >= limit), sealed)
    assert branch.shown() == {"f/1": "1"}
    for letter in "abcde":
        assert not branch.delete_prefix(f"{letter}/")


@pytest.mark.parametrize("act", ["delete", "delete_prefix", "update_metadata", *WRITES])
def test_a_reserved_path_is_not_written(act: str) -> None:
    """Nor deleted; other paths next to one that is refused stay as they are."""
    branch = StagedBranch({"a": "1"})
    path = "_lakefs/x"
    with raises(InvalidRequest, "reserved_path"):
        if act == "delete":
            delete_many(branch.home, branch=BRANCH, paths=["a", path])
        elif act == "delete_prefix":
            branch.delete_prefix(path)
        elif act == "update_metadata":
            update_metadata(branch.home, branch=BRANCH, path=path, metadata={})
        else:
            WRITES[act](branch.home, path, branch.entry("1"))
    assert branch.shown() == {"a": "1"}


@pytest.mark.parametrize("name", list(WRITES))
def test_an_address_of_elsewhere_is_one_that_may_be_imported(name: str, tmp_path: Path) -> None:
    """By whichever verb it comes; the repository's own addresses are not asked about."""
    branch = StagedBranch()
    home = replace(branch.home, foreign=ForeignStores(allowed=[f"file://{tmp_path}/allowed"]))
    open_store(tmp_path).put("allowed/x", b"1")
    own = branch.entry("own")
    for folder, kind in (("secret", "import_not_allowed"), ("allowed", None)):
        entry = Entry(f"file://{tmp_path}/{folder}/x", 1, "", 0, metadata={"is": folder})
        if kind is None:
            WRITES[name](home, folder, entry)
        else:
            with raises(InvalidRequest, kind):
                WRITES[name](home, folder, entry)
    WRITES[name](home, "own", own)
    assert branch.shown() == {"allowed": "allowed", "own": "own"}


def test_an_upload_is_refused_below_the_boundary_only() -> None:
    """At it an upload is safe from the collection; an address of elsewhere has no age."""
    check_age("01B", None)
    check_age(None, b"01B")
    check_age("01B", b"01B")
    check_age("01C", b"01B")
    with raises(Conflict, "upload_expired"):
        check_age("01A", b"01B")


@pytest.mark.parametrize("count", [0, 1, 2, 3])
def test_uploads_together_are_one_write(count: int) -> None:
    """A single one too; when the rows cannot be written together, each is tried alone."""
    branch = StagedBranch()

    def attempts(paths: list[str]) -> tuple[list[bool], int]:
        uploads = [SmallUpload(path, lambda: b"x", "text/plain", {"is": "x"}) for path in paths]
        before = branch.home.counters.changes
        outcomes = upload_many(branch.home, BRANCH, uploads)
        return [not isinstance(outcome, LakebedError) for outcome in outcomes], branch.home.counters.changes - before

    paths = [f"p{number}" for number in range(count)]
    assert attempts(paths) == ([True] * count, min(count, 1))
    assert attempts([*paths, "_lakefs/x"]) == ([True] * count + [False], count)
    assert sorted(branch.shown()) == paths
