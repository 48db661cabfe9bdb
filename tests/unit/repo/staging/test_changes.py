"""Ranges that are cut by cleared prefixes."""

from __future__ import annotations

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from lakebed.repo.model.model import StagingToken
from lakebed.repo.staging.changes import changes_of, clears_of, cut_intervals, is_cleared
from worlds.repo.staging import StagedBranch

short = st.text("ab/\u00e9", max_size=3)
tokens = st.lists(st.builds(StagingToken, st.just("t"), st.none() | short), max_size=5)
bounds = st.none() | st.binary(max_size=3)


@given(tokens, st.lists(st.text("ab/\u00e9", max_size=5).map(str.encode)))
def test_a_path_is_cleared_when_it_has_a_cleared_prefix(chosen: list[StagingToken], paths: list[bytes]) -> None:
    """Intervals say the same as prefixes; they are sorted and do not touch."""
    cleared = clears_of(chosen)
    for path in paths:
        expected = any(token.clears is not None and path.startswith(token.clears.encode()) for token in chosen)
        assert is_cleared(path, cleared) == expected
    for before, behind in pairwise(cleared):
        assert before[1] is not None
        assert before[1] < behind[0]


@given(tokens, bounds, bounds, st.lists(st.binary(max_size=4)))
def test_what_is_left_of_a_range_is_what_is_not_cleared(
    chosen: list[StagingToken], start: bytes | None, end: bytes | None, paths: list[bytes]
) -> None:
    """A path is in exactly one of the ranges that are left when it is in the range and not cleared; none is empty."""
    cleared = clears_of(chosen)
    left = cut_intervals(start, end, cleared)
    for path in paths:
        inside = (start or b"") <= path and (end is None or path < end)
        count = sum((low or b"") <= path and (high is None or path < high) for low, high in left)
        assert count == (inside and not is_cleared(path, cleared))
    assert all(high is None or (low or b"") < high for low, high in left)


def test_changes_say_what_tokens_do_together() -> None:
    """Newer rows win, tombstones stay, and rows below a clear of a newer token are not read."""
    branch = StagedBranch({"a/1": "x", "b": "x"})
    branch.put("a/2", "old")
    branch.put("c", "old")
    branch.delete_prefix("a/")
    branch.put("a/3", "new")
    branch.put("c", "new")
    branch.delete("b")
    branch.seal()
    with branch.home.key_value.snapshot() as snapshot:
        changes = changes_of(branch.home, snapshot, branch.record.sealed)
        for _ in range(2):  # they can be read again
            rows = [row for batch in changes.rows() for row in batch.to_pylist()]
            assert [(row["path"], row["value"] == b"") for row in rows] == [
                (b"a/3", False),
                (b"b", True),
                (b"c", False),
            ]
    assert changes.clears == ((b"a/", b"a0"),)
