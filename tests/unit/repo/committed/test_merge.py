"""Three-way merges: what is taken, what conflicts, what is read."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from lakebed.errors import Corruption, InvalidRequest, OutcomeUnknown, Unavailable
from lakebed.lsm.cache import BlockCache
from lakebed.repo.committed import merge as merging
from lakebed.repo.committed import windows
from lakebed.repo.committed.merge import merge_metaranges
from lakebed.repo.committed.store import Committed
from lakebed.repo.model.layout import range_path
from lakebed.repo.model.options import RangeOptions
from lakebed.runtime import Environment
from lakebed.testing.faulty import Fault, FaultyStore
from worlds.errors import raises
from worlds.repo.states import (
    SMALL_RANGES,
    State,
    entry_value,
    many,
    merge,
    merged,
    open_committed,
    read_state,
    write_state,
)

X, Y, Z = (entry_value(content) for content in "xyz")


@pytest.fixture
def committed() -> Iterator[Committed]:
    """A repository in memory, with small ranges."""
    with open_committed() as opened:
        yield opened


def without(state: State, *numbers: int) -> dict[bytes, bytes]:
    """A state of `many` without some of its paths."""
    gone = {f"f/{number:06}".encode() for number in numbers}
    return {path: value for path, value in state.items() if path not in gone}


def test_identical_markers_of_many_jobs_survive_a_merge(committed: Committed) -> None:
    """A base entry counts only at its own path: a new ``_SUCCESS`` is kept, though the base has the same one elsewhere.

    Comparing identities alone, the base's marker at another path would make the new one look unchanged, and it would be
    silently dropped.
    """
    marker = entry_value("nothing: zero bytes")
    base = {b"day=1/_SUCCESS": marker, b"day=1/part": X}
    source = {**base, b"day=2/_SUCCESS": marker, b"day=2/part": Y}
    destination = {**base, b"day=3/_SUCCESS": marker, b"day=3/part": Z}
    assert merged(committed, merge(committed, base, source, destination)) == {**source, **destination}
    moved = {b"day=9/_SUCCESS": marker, b"day=1/part": X}
    assert merged(committed, merge(committed, base, moved, destination)) == {
        **moved,
        b"day=3/_SUCCESS": marker,
        b"day=3/part": Z,
    }


@pytest.mark.parametrize(
    ("base", "source", "destination", "taken", "conflict"),
    [
        ("x", "x", "y", "y", False),
        ("x", "y", "x", "y", False),
        ("x", "y", "y", "y", False),
        ("x", "y", "z", None, True),
        ("x", None, "x", None, False),
        ("x", "x", None, None, False),
        ("x", None, None, None, False),
        ("x", None, "y", None, True),
        ("x", "y", None, None, True),
        (None, "x", None, "x", False),
        (None, None, "x", "x", False),
        (None, "x", "x", "x", False),
        (None, "x", "y", None, True),
    ],
)
def test_one_path(
    committed: Committed,
    base: str | None,
    source: str | None,
    destination: str | None,
    taken: str | None,
    conflict: bool,
) -> None:
    """What only one side changed is that side's, what both made the same stays, the rest conflicts or is the winner's.

    A winner's absence wins like an entry.
    """

    def state(content: str | None) -> dict[bytes, bytes]:
        around = {b"a": X, b"z": X}
        return around if content is None else {**around, b"p": entry_value(content)}

    def result(**options: Any) -> dict[bytes, bytes]:
        outcome = merge(committed, state(base), state(source), state(destination), **options)
        return merged(committed, outcome)

    if conflict:
        outcome = merge(committed, state(base), state(source), state(destination))
        assert outcome.ref is None
        assert (outcome.conflicts, outcome.conflict_count) == (["p"], 1)
        assert result(strategy="source-wins") == state(source)
        assert result(strategy="dest-wins") == state(destination)
    else:
        assert result() == result(strategy="source-wins") == result(strategy="dest-wins") == state(taken)


def test_the_same_bytes_uploaded_twice_are_no_conflict(committed: Committed) -> None:
    """Both sides added the same file, each at an address of its own: the destination's stays."""
    mine, theirs = entry_value("x", place="mine"), entry_value("x", place="theirs")
    outcome = merge(committed, {b"a": Y}, {b"a": Y, b"p": mine}, {b"a": Y, b"p": theirs, b"q": Z})
    assert merged(committed, outcome)[b"p"] == theirs


def test_conflicts_are_sorted_counted_and_limited(committed: Committed) -> None:
    """The first conflicts are listed, in the order of paths, whichever kind they are of; all are counted."""
    base = many(120)
    source = without({**base, **dict.fromkeys(list(base)[:80], Y)}, 3, 5)
    destination = without(dict.fromkeys(base, Z), 4, 6)
    outcome = merge(committed, base, source, destination, conflicts_max=7)
    assert outcome.ref is None
    assert outcome.conflicts == [f"f/{number:06}" for number in range(7)]
    assert outcome.conflict_count == 80
    assert merge(committed, base, source, destination, conflicts_max=0).conflicts == []
    assert merge(committed, base, source, destination, conflicts_max=0).conflict_count == 80


def test_what_is_counted(committed: Committed) -> None:
    """Paths that were compared are added, changed or removed; ranges taken over unread are counted as ranges."""
    base = many(10)
    source = {**without({**base, b"f/000001": Y}, 2), b"f/new": X}
    destination = {**base, b"f/000009": Z}
    with open_committed(RangeOptions()) as one_range:
        outcome = merge(one_range, base, source, destination)
        assert (outcome.added, outcome.changed, outcome.removed) == (1, 1, 1)
        assert outcome.ranges_taken == 0
    outcome = merge(committed, many(500), {**many(500), b"f/000100": Y}, {**many(500), b"f/000400": Y})
    assert (outcome.added, outcome.changed, outcome.removed) == (0, 0, 0)
    assert outcome.ranges_taken == 1


def test_an_unknown_strategy_is_refused(committed: Committed) -> None:
    """The message names the strategies there are."""
    with raises(InvalidRequest, "unknown_strategy", match=r"'theirs'.*source-wins or dest-wins"):
        merge(committed, {}, {}, {}, strategy="theirs")


def test_a_side_that_changed_nothing_costs_nothing(committed: Committed) -> None:
    """The other side's own metarange is the result, without a file being read or written."""
    base, other = write_state(committed, many(500)), write_state(committed, many(500, Y))
    for source, destination, result in [
        (other, base, other),
        (base, other, other),
        (other, other, other),
        (base, base, base),
    ]:
        with committed.count() as counts:
            outcome = merge_metaranges(committed, base=base, source=source, destination=destination)
        assert outcome.ref is result
        assert (counts.ranges_read, counts.ranges_written) == (0, 0)


def test_changes_in_different_ranges_are_merged_unread(committed: Committed) -> None:
    """Where two of the three have the same ranges, the third's are taken over: nothing is read or written."""
    base = many(1_000)
    source, destination = {**base, b"f/000100": Y}, {**base, b"f/000900": Z}
    refs = [write_state(committed, state) for state in (base, source, destination)]
    with committed.count() as counts:
        outcome = merge_metaranges(committed, base=refs[0], source=refs[1], destination=refs[2])
    assert (counts.ranges_read, counts.ranges_written) == (0, 0)
    both = write_state(committed, {**source, b"f/000900": Z})
    assert outcome.ref is not None
    assert outcome.ref.id == both.id


def test_only_the_segment_in_which_all_differ_is_read(committed: Committed) -> None:
    """Changes of both sides in one range cost that range of each of the three."""
    base = many(1_000)
    source, destination = {**base, b"f/000500": Y}, {**base, b"f/000501": Z}
    refs = [write_state(committed, state) for state in (base, source, destination)]
    shared = set.intersection(*({part.id for part in committed.open(ref).ranges()} for ref in refs))
    assert len(shared) == refs[0].range_count - 1
    with committed.count() as counts:
        outcome = merge_metaranges(committed, base=refs[0], source=refs[1], destination=refs[2])
    assert counts.ranges_read == 3
    assert counts.ranges_written == 1
    assert merged(committed, outcome) == {**source, b"f/000501": Z}


def test_a_merge_with_conflicts_stops_writing(committed: Committed) -> None:
    """From the first conflict on nothing is written: only what came before it is left to the collector."""
    base = many(600)
    source, destination = many(600, Y), many(600, Z)
    refs = [write_state(committed, state) for state in (base, source, destination)]
    with committed.count() as counts:
        outcome = merge_metaranges(committed, base=refs[0], source=refs[1], destination=refs[2])
    assert outcome.conflict_count == 600
    assert counts.ranges_written == 0


def test_the_result_is_the_same_whatever_the_windows(committed: Committed, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows that come in many small windows are merged as they are in one."""
    base = many(200)
    source = {**without({**base, **dict.fromkeys(list(base)[::7], Y)}, *range(50, 90)), **many(210, Y)}
    destination = {**without({**base, **dict.fromkeys(list(base)[::5], Y)}, *range(80, 120)), b"f/000500": Z}
    whole = merge(committed, base, source, destination, strategy="source-wins")
    monkeypatch.setattr(merging, "WINDOW_ROW_COUNT", 3)
    monkeypatch.setattr(windows, "WINDOW_ROW_COUNT", 3)
    small = merge(committed, base, source, destination, strategy="source-wins")
    assert whole.ref is not None
    assert small.ref is not None
    assert whole.ref.id == small.ref.id
    assert (whole.added, whole.changed, whole.removed) == (small.added, small.changed, small.removed)


@pytest.mark.parametrize("count", [1, 63, 64, 500])
def test_few_and_many_new_paths_come_into_their_places(count: int) -> None:
    """Paths that the source added come between the destination's, sorted, for any number of them."""
    base = many(100)
    source = {**base, **{f"f/{number * 7 % 1000:06}x".encode(): Y for number in range(count)}}
    destination = dict.fromkeys(base, Z)
    behind = {**base, **{f"g/{number}".encode(): Y for number in range(count)}}
    with open_committed(RangeOptions()) as one_range:
        for news in (source, behind):
            outcome = merge(one_range, base, news, destination)
            assert outcome.added == count
            assert merged(one_range, outcome) == dict(sorted({**news, **destination}.items()))


def test_a_partial_merge_leaves_all_else_as_it_is(committed: Committed) -> None:
    """Below the prefix the source's changes are taken; conflicts elsewhere are none, and elsewhere nothing is read."""
    base = {b"%s/%03d" % (folder, number): X for folder in (b"a", b"b", b"c") for number in range(200)}
    source = dict.fromkeys(base, Y)
    destination = {**base, b"a/000": Z, b"c/000": Z}
    refs = [write_state(committed, state) for state in (base, source, destination)]
    with committed.count() as counts:
        outcome = merge_metaranges(committed, base=refs[0], source=refs[1], destination=refs[2], prefix=b"b/")
    assert merged(committed, outcome) == {
        path: Y if path.startswith(b"b/") else value for path, value in destination.items()
    }
    assert counts.ranges_read <= 8
    assert refs[0].range_count > 60
    nothing = merge_metaranges(committed, base=refs[0], source=refs[1], destination=refs[0], prefix=b"nothing/")
    assert nothing.ref is refs[0]


def test_a_prefix_is_merged_into_a_destination_that_changed_nothing(committed: Committed) -> None:
    """With a prefix the source as a whole is not the result, though the destination is still the base."""
    base = {b"a/1": X, b"b/1": X}
    outcome = merge(committed, base, {b"a/1": Y, b"b/1": Y, b"b/2": Y}, base, prefix=b"b/")
    assert merged(committed, outcome) == {b"a/1": X, b"b/1": Y, b"b/2": Y}


def test_all_is_removed(committed: Committed) -> None:
    """A merge that leaves no path comes to the empty metarange, which has no file."""
    outcome = merge(committed, {b"a": X, b"b": X}, {b"b": X}, {b"a": X})
    assert outcome.ref is not None
    assert outcome.ref == committed.empty


def test_a_missing_range_is_corruption(committed: Committed) -> None:
    """A deleted range stops the merge: its paths are not taken for removed ones."""
    refs = [write_state(committed, state) for state in (many(100), many(100, Y), {**many(100), b"f/000000": Z})]
    lost = range_path(committed.open(refs[1]).ranges()[0].file.id)
    committed.files.store.delete([lost])
    with pytest.raises(Corruption) as caught:
        merge_metaranges(committed, base=refs[0], source=refs[1], destination=refs[2], strategy="dest-wins")
    assert caught.value.facts["path"] == lost


# A lost request leaves the store as an error before it does.
@pytest.mark.parametrize(
    "fault", [Fault.ERROR_BEFORE, pytest.param(Fault.LOST_REQUEST, marks=pytest.mark.long), Fault.LOST_REPLY]
)
def test_a_merge_that_fails_can_be_tried_again(committed: Committed, fault: Fault) -> None:
    """With any request failing, nothing that was there is harmed, and the next try has the same result."""
    base = many(60)
    source, destination = {**many(60), b"f/000007": Y, b"f/000050": Y}, {**without(base, 8), b"f/000051": Z}
    refs = [write_state(committed, state) for state in (base, source, destination)]
    store = committed.files.store
    expected = write_state(committed, without({**source, b"f/000051": Z}, 8)).id
    failed = 0
    for number in range(0, 100, 5):
        faulty = FaultyStore(store, faults={number: fault})
        trying = Committed(faulty, options=SMALL_RANGES, cache=BlockCache(0), environment=Environment())
        try:
            outcome = merge_metaranges(trying, base=refs[0], source=refs[1], destination=refs[2])
        except (Unavailable, OutcomeUnknown):
            failed += 1
            outcome = merge_metaranges(trying, base=refs[0], source=refs[1], destination=refs[2])
        finally:
            trying.close()
        assert outcome.ref is not None
        assert outcome.ref.id == expected
        assert len(read_state(committed, outcome.ref)) == 59
        if not faulty.met:
            break
    assert failed > 2
