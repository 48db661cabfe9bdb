"""Merges of branches with tables and databases in them, against a dictionary that merges each of them whole."""

from __future__ import annotations

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lakebed.repo.committed import merge as merging
from lakebed.repo.committed import windows
from lakebed.repo.committed.merge import Strategy, merge_metaranges
from lakebed.repo.committed.units import outermost, parse_root
from lakebed.repo.model.options import RangeOptions
from lakebed.testing import seed_count
from worlds.repo.model import below, merged
from worlds.repo.states import (
    SMALL_RANGES,
    TINY_RANGES,
    entry_value,
    open_committed,
    read_state,
    write_state,
)

State = dict[bytes, str]

ROOTS = (b"", b"lake/t/", b"lake/t/branch/branch-b/", b"lake/u/", b"db/", b"plain/", b"plain/deep/")
FILES = (
    *(b"schema/schema-%d" % number for number in range(2)),
    *(b"snapshot/snapshot-%d" % number for number in range(3)),
    b"manifest/00000000000000000007.manifest",
    b"tag/tag-a",
    *(b"data/%02d" % number for number in range(12)),
    *(b"%02d" % number for number in range(8)),
)


def oracle(base: State, source: State, destination: State, strategy: Strategy | None) -> tuple[State, list[bytes]]:
    """The merged state and the conflicts: the outermost roots first, then every path outside of conflicting ones."""
    paths = sorted({*base, *source, *destination})
    taken, conflicts = {}, []
    closed: list[bytes] = []
    for root in outermost(root for path in paths if (root := parse_root(path)) is not None):
        was, mine, other = (below(state, root) for state in (base, source, destination))
        if mine not in (was, other) and other != was:
            conflicts.append(root or b"/")
            closed.append(root)
            taken.update(mine if strategy == "source-wins" else other)
    left = [
        {path: content for path, content in state.items() if not any(path.startswith(root) for root in closed)}
        for state in (base, source, destination)
    ]
    state, clashes = merged(*left, strategy=strategy)
    return taken | state, sorted(conflicts + clashes)


@st.composite
def histories(draw: st.DrawFn) -> tuple[State, State, State]:
    """A base with tables, databases and folders, and two sides that changed few paths of it."""
    rng = random.Random(draw(st.integers(0, 1 << 32)))
    at_top = rng.random() < 0.1
    paths = [
        root + file
        for root in ROOTS
        for file in FILES
        if not (root in (b"", b"plain/") and (b"schema-" in file or b"snapshot-" in file or b"manifest" in file))
        or (at_top and root == b"")
    ]
    density = rng.choice([0.2, 0.9])
    base = {path: rng.choice("xy") for path in paths if rng.random() < density}

    def side() -> State:
        rate = rng.choice([0.005, 0.02, 0.1])
        state = dict(base)
        for path in paths:
            if rng.random() < rate:
                if rng.random() < 0.4:
                    state.pop(path, None)
                else:
                    state[path] = rng.choice("xyz")
        return state

    return base, side(), side()


@pytest.mark.parametrize("window_row_count", [2, pytest.param(65_536, marks=pytest.mark.long)])
@settings(max_examples=seed_count(4), deadline=None)
@given(
    three=histories(),
    strategy=st.sampled_from([None, "source-wins", "dest-wins"]),
    ranges=st.sampled_from([SMALL_RANGES, TINY_RANGES, RangeOptions()]),
)
def test_units_are_merged_whole(
    window_row_count: int, three: tuple[State, State, State], strategy: Strategy | None, ranges: RangeOptions
) -> None:
    """However ranges and windows cut a table, it is one side's as a whole, or one conflict."""
    base, source, destination = three
    state, conflicts = oracle(base, source, destination, strategy)
    with pytest.MonkeyPatch.context() as patch, open_committed(ranges) as committed:
        patch.setattr(merging, "WINDOW_ROW_COUNT", window_row_count)
        patch.setattr(windows, "WINDOW_ROW_COUNT", window_row_count)
        refs = [
            write_state(committed, {path: entry_value(content) for path, content in state.items()}) for state in three
        ]
        outcome = merge_metaranges(
            committed, base=refs[0], source=refs[1], destination=refs[2], strategy=strategy, conflicts_max=10_000
        )
        if strategy is None and conflicts:
            assert outcome.ref is None
            assert outcome.conflicts == [path.decode() for path in conflicts]
            assert outcome.conflict_count == len(conflicts)
        else:
            assert outcome.ref is not None
            want = {path: entry_value(content) for path, content in state.items()}
            assert read_state(committed, outcome.ref) == want
            assert outcome.ref.id == write_state(committed, want).id
