"""Three-way merge: every small case, against the model, which is a few lines of plain Python."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import product

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lakebed.repo.committed.merge import Strategy, merge_metaranges
from lakebed.repo.committed.store import Committed
from lakebed.repo.model.entry import IDENTITY_BYTES
from lakebed.repo.model.options import RangeOptions
from lakebed.testing import seed_count
from worlds.repo.model import merged
from worlds.repo.states import (
    SMALL_RANGES,
    TINY_RANGES,
    entry_value,
    open_committed,
    read_state,
    write_state,
)

State = dict[bytes, str]
"""What is at each path: the name of a content."""

STRATEGIES: tuple[Strategy | None, ...] = (None, "source-wins", "dest-wins")
KEYS = (b"a", b"b", b"c")
CONTENTS = (None, "x", "y")
"""Of a path: absent, or one of two contents, the same two at every path."""


@dataclass(frozen=True)
class Case:
    """Three states of three keys."""

    base: State
    source: State
    destination: State

    @property
    def both_changed(self) -> bool:
        """Whether neither side is the base: else there is nothing to merge."""
        return self.base not in (self.source, self.destination)


def states() -> list[State]:
    """Every state of three keys."""
    return [
        {key: content for key, content in zip(KEYS, contents, strict=True) if content is not None}
        for contents in product(CONTENTS, repeat=len(KEYS))
    ]


def cases() -> list[Case]:
    """Every base with every source and destination."""
    return [Case(*three) for three in product(states(), repeat=3)]


def laid_out(some: Sequence[Case], side: str) -> dict[bytes, bytes]:
    """One side of many cases, each below a folder of its own. The address of an entry depends on the side."""
    return {
        b"%05d/" % number + key: value(content, side)
        for number, case in enumerate(some)
        for key, content in getattr(case, side).items()
    }


def value(content: str, side: str) -> bytes:
    """An entry whose bytes were uploaded by this side."""
    return entry_value(content, place=side)


def by_identity(state: Mapping[bytes, bytes]) -> dict[bytes, bytes]:
    """Paths and identities: what a merge promises says nothing of addresses."""
    return {path: entry[:IDENTITY_BYTES] for path, entry in state.items()}


def expected(some: Sequence[Case], strategy: Strategy | None) -> tuple[dict[bytes, bytes], list[str]]:
    """What the model makes of many cases: identities by path, and conflicts."""
    after, conflicts = {}, []
    for number, case in enumerate(some):
        folder = b"%05d/" % number
        state, clashes = merged(case.base, case.source, case.destination, strategy=strategy)
        after.update({folder + key: value(content, "any")[:IDENTITY_BYTES] for key, content in state.items()})
        conflicts += [(folder + key).decode() for key in clashes]
    return after, conflicts


def check(committed: Committed, some: Sequence[Case], strategy: Strategy | None) -> None:
    """Merge many cases at once, and compare entries and conflicts with the model's."""
    base, source, destination = (
        write_state(committed, laid_out(some, side)) for side in ("base", "source", "destination")
    )
    outcome = merge_metaranges(
        committed,
        base=base,
        source=source,
        destination=destination,
        strategy=strategy,
        conflicts_max=len(some) * len(KEYS),
    )
    state, conflicts = expected(some, strategy)
    if strategy is None and conflicts:
        assert outcome.ref is None
        assert outcome.conflicts == conflicts
        assert outcome.conflict_count == len(conflicts)
        return
    assert outcome.ref is not None
    assert (outcome.conflicts, outcome.conflict_count) == ([], 0)
    assert by_identity(read_state(committed, outcome.ref)) == state


def test_every_merge_of_three_keys() -> None:
    """All 54,756 small cases come out as the model says: entries, absences, and the list of conflicts.

    A state gives each of three keys one of three contents: absent, x or y, the same x and y at every key, so that what
    is at one path is met at others. That makes 27 states: 27 bases, with 26 sources and 26 destinations that differ
    from the base, under 3 strategies (none, source-wins, dest-wins): 27 * 26 * 26 * 3 = 54,756. Cases in which a side
    did not change anything come along.

    All of one strategy are merged at once, each in a folder of its own, so that their rows go through the columns that
    large merges go through; the cases without conflicts once more by themselves, for what comes of them without a
    strategy.
    """
    every = cases()
    assert len([case for case in every if case.both_changed]) * len(STRATEGIES) == 54_756
    clean = [case for case in every if not merged(case.base, case.source, case.destination)[1]]
    with open_committed(RangeOptions()) as committed:
        for strategy in STRATEGIES:
            check(committed, every, strategy)
        check(committed, clean, None)


@pytest.mark.parametrize("strategy", STRATEGIES)
@pytest.mark.parametrize("ranges", [SMALL_RANGES, TINY_RANGES], ids=["small-ranges", "tiny-ranges"])
def test_merges_in_many_segments(strategy: Strategy | None, ranges: RangeOptions) -> None:
    """The same holds where nearly every path is a range, and ranges equal on two sides are taken over unread.

    Of 27 cases; in the long run of 270.
    """
    every = cases()
    some = every[:: 73 if seed_count(1) > 1 else 727]
    clean = [case for case in some if not merged(case.base, case.source, case.destination, strategy=strategy)[1]]
    with open_committed(ranges) as committed:
        check(committed, some, strategy)
        check(committed, clean, strategy)


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_merges_one_by_one(strategy: Strategy | None) -> None:
    """A case alone comes out as it does among all others."""
    with open_committed(TINY_RANGES) as committed:
        for case in cases()[::607]:
            check(committed, [case], strategy)


@st.composite
def histories(draw: st.DrawFn) -> tuple[State, State, State]:
    """A base of some hundred paths in folders, and two sides that changed some of them."""
    folders = draw(st.integers(1, 6))
    paths = [b"%d/%03d" % (number % folders, number) for number in range(draw(st.integers(0, 150)))]
    rng = draw(st.randoms(use_true_random=False))
    base = {path: rng.choice("xyz") for path in paths if rng.random() < 0.8}

    def side() -> State:
        rate = draw(st.sampled_from([0.0, 0.01, 0.1, 0.6]))
        state = dict(base)
        for path in paths:
            if rng.random() < rate:
                state[path] = rng.choice("xyz")
            elif rng.random() < rate:
                state.pop(path, None)
        return state

    return base, side(), side()


def three_states(committed: Committed, three: tuple[State, State, State]) -> Iterator[dict[str, object]]:
    """The sides as arguments of a merge, this way round and the other."""
    base, source, destination = (
        write_state(committed, {path: entry_value(content) for path, content in state.items()}) for state in three
    )
    yield {"base": base, "source": source, "destination": destination}
    yield {"base": base, "source": destination, "destination": source}


@settings(max_examples=seed_count(6), deadline=None)
@given(histories(), st.sampled_from([SMALL_RANGES, TINY_RANGES, RangeOptions()]))
def test_a_merge_is_the_same_from_both_sides(three: tuple[State, State, State], ranges: RangeOptions) -> None:
    """Source and destination can be exchanged: the same result to the last byte, or the same conflicts.

    With a strategy they can be exchanged together with it.
    """
    with open_committed(ranges) as committed:
        forth, back = three_states(committed, three)
        item = merge_metaranges(committed, **forth)  # type: ignore[arg-type]
        other = merge_metaranges(committed, **back)  # type: ignore[arg-type]
        assert (item.conflicts, item.conflict_count) == (other.conflicts, other.conflict_count)
        assert (item.ref is None) == (other.ref is None)
        if item.ref is not None and other.ref is not None:
            assert item.ref.id == other.ref.id
        won = merge_metaranges(committed, **forth, strategy="source-wins").ref  # type: ignore[arg-type]
        also = merge_metaranges(committed, **back, strategy="dest-wins").ref  # type: ignore[arg-type]
        assert won is not None
        assert also is not None
        assert won.id == also.id


@settings(max_examples=seed_count(6), deadline=None)
@given(histories(), st.sampled_from(STRATEGIES), st.sampled_from([b"", b"1", b"1/", b"1/0", b"3/1", b"x", b"\xff"]))
def test_a_partial_merge_takes_its_prefix_alone(
    three: tuple[State, State, State], strategy: Strategy | None, prefix: bytes
) -> None:
    """Below the prefix a partial merge says what a whole one says; all else is the destination's."""
    base, source, destination = three
    state, conflicts = merged(base, source, destination, strategy=strategy, prefix=prefix)
    with open_committed(SMALL_RANGES) as committed:
        forth, _ = three_states(committed, (base, source, destination))
        outcome = merge_metaranges(committed, **forth, strategy=strategy, prefix=prefix)  # type: ignore[arg-type]
        if strategy is None and conflicts:
            assert outcome.ref is None
            assert outcome.conflicts == [path.decode() for path in conflicts]
        else:
            assert outcome.ref is not None
            want = {path: entry_value(content) for path, content in state.items()}
            assert read_state(committed, outcome.ref) == want
            assert outcome.ref.id == write_state(committed, want).id
