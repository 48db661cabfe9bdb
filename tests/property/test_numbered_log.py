"""The boundary's laws, with a writer stalled at every call of an append, and a fault at every call."""

from __future__ import annotations

import json
import random
import uuid
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lakebed.errors import Conflict, Corruption, InvalidRequest, OutcomeUnknown, UnsupportedFormat
from lakebed.objects import open_store
from lakebed.objects.boundary import MARKER_COUNT_KEPT, Marker, decode_marker, encode_marker
from lakebed.objects.numbered_log import NumberedLog
from lakebed.runtime import Environment
from lakebed.testing import Crashed, Fault, FaultyStore, ManualClock, RecordingStore
from worlds.errors import raises
from worlds.meanwhile import Meanwhile


def body_of(write_id: str) -> bytes:
    """A payload with its write id."""
    return json.dumps({"id": write_id}).encode()


def log_on(store: Any, *, padded: bool = False, boundary_folder: str | None = "boundary") -> NumberedLog:
    """A log whose waits take no time."""
    return NumberedLog(
        store,
        "log",
        name_of=(lambda number: f"{number:020d}") if padded else (lambda number: f"entry-{number}"),
        id_of=lambda name: None if name == "LATEST" else int(name.removeprefix("entry-")),
        write_id_of=lambda body: str(json.loads(bytes(body))["id"]),
        boundary_folder=boundary_folder,
        latest_hint_path=None if padded else "log/LATEST",
        environment=Environment(clock=ManualClock(), rng=random.Random(1)),
    )


def fresh() -> Any:
    """An empty store."""
    return open_store(f"memory://{uuid.uuid4().hex}")


def append(log: NumberedLog, *numbers: int) -> None:
    """Append numbers whose write id is ``w<number>``."""
    for number in numbers:
        log.append(number, body_of(f"w{number}"), write_id=f"w{number}")


def trace_of_an_append() -> list[str]:
    """Every call of an undisturbed append."""
    store = fresh()
    append(log_on(store), 1)
    recorder = RecordingStore(store)
    append(log_on(recorder), 2)
    return [str(call.call) for call in recorder.trace]


TRACE = trace_of_an_append()


def test_an_append_is_one_put_and_one_list() -> None:
    """The cost as documented: the put that decides, the look at the boundary, the hint."""
    assert TRACE == ["put! log/entry-2", "list boundary", "put log/LATEST"]
    store = fresh()
    log = log_on(store, padded=True, boundary_folder=None)
    with store.count() as counts:
        append(log, 1)
    assert (counts.put, counts.total) == (1, 1)


@pytest.mark.parametrize("after", [False, True])
@pytest.mark.parametrize("at", range(len(TRACE)))
@pytest.mark.parametrize("winner_first", [False, True])
def test_a_writer_stalled_at_every_call_learns_the_truth(at: int, after: bool, winner_first: bool) -> None:
    """While it stalls, others go past its number and a collector deletes: won means won, lost means lost."""
    store = fresh()
    append(log_on(store), 1)

    def world_goes_on() -> None:
        others = log_on(store)
        if winner_first and not others.exists(2):
            append(others, 2)
        append(others, *range((others.latest() or 0) + 1, 6))
        others.raise_boundary(5)
        others.delete(range(1, 5))

    stalled = log_on(Meanwhile(store, world_goes_on, at=at, after=after))
    landed = after or at > 0
    try:
        stalled.append(2, body_of("ours"), write_id="ours")
        won = True
    except Conflict:
        won = False
    assert won == landed, "it won exactly when its put came before the others'"
    assert log_on(store).ids() == [5], "nothing below the boundary came back"
    assert stalled.latest() == 5


@pytest.mark.parametrize("fault", [Fault.ERROR_BEFORE, Fault.LOST_REQUEST, Fault.LOST_REPLY, Fault.CRASH_BEFORE,
                                   Fault.CRASH_AFTER, Fault.CRASH_LATE])  # fmt: skip
@pytest.mark.parametrize("at", range(len(TRACE)))
def test_a_fault_at_every_call_leaves_one_truth(fault: Fault, at: int) -> None:
    """The append either stands and is there, or its caller is gone; a repetition by the same writer is recognised."""
    store = fresh()
    append(log_on(store), 1)
    faulty = FaultyStore(store, faults={at: fault})
    try:
        log_on(faulty).append(2, body_of("ours"), write_id="ours")
        done = True
    except Crashed:
        done = False
    assert done == (fault not in (Fault.CRASH_BEFORE, Fault.CRASH_AFTER, Fault.CRASH_LATE)), "one fault is survived"
    assert faulty.met, "the fault did not happen"
    if done:
        assert bytes(store.get("log/entry-2")) == body_of("ours")
    faulty.land()
    log_on(store).append(2, body_of("ours"), write_id="ours")
    with pytest.raises(Conflict):
        log_on(store).append(2, body_of("theirs"), write_id="theirs")
    assert log_on(store).ids() == [1, 2]


def test_a_writer_that_slept_through_the_chain_does_not_know() -> None:
    """When the marker that passed its number is gone, the outcome is unknown, and nothing is touched."""
    store = fresh()
    log = log_on(store)
    append(log, 1, 2)
    for number in range(3, MARKER_COUNT_KEPT + 6):
        append(log, number)
        log.raise_boundary(number)
        log.delete(range(1, number))
    with raises(OutcomeUnknown, "boundary_forgotten"):
        log_on(store).append(1, body_of("w1"), write_id="w1")
    assert len(list(store.list("boundary"))) == MARKER_COUNT_KEPT


@pytest.mark.parametrize("padded", [False, True])
def test_a_gap_does_not_hide_the_newest(padded: bool) -> None:
    """After a rollback deleted the middle, a reader that last saw a number below the gap finds the one above."""
    store = fresh()
    log, reader = log_on(store, padded=padded), log_on(store, padded=padded)
    append(log, 1, 2, 3)
    assert reader.latest() == 3
    append(log, *range(4, 12))
    log.raise_boundary(11)
    log.delete(range(4, 11))
    store.put("log/LATEST" if not padded else "elsewhere", b"3")  # a hint that landed late
    for item in (reader, log_on(store, padded=padded)):
        newest = item.newest()
        assert newest is not None
        assert (newest[0], item.latest(), item.earliest()) == (11, 11, 1)


@pytest.mark.parametrize("hint", [b"", b"x", b"999", b"-1", b"2", b"\xff" * 100])
def test_a_wrong_hint_is_harmless(hint: bytes) -> None:
    """With any hint, the newest number is found."""
    store = fresh()
    append(log_on(store), 1, 2, 3)
    store.put("log/LATEST", hint)
    assert log_on(store).latest() == 3


def test_a_rolled_back_number_is_not_remembered() -> None:
    """A foreign rollback deletes the newest: a log that saw it looks again."""
    store = fresh()
    log = log_on(store)
    append(log, 1, 2, 3)
    store.delete(["log/entry-3"])
    assert log.latest() == 2
    newest = log.newest()
    assert newest is not None
    assert newest[0] == 2


def test_fences() -> None:
    """The newest number is never passed, nothing above the boundary is deleted, and raising again changes nothing."""
    store = fresh()
    log = log_on(store)
    append(log, 1, 2, 3)
    with pytest.raises(InvalidRequest, match="newest number is 3"):
        log.raise_boundary(4)
    with pytest.raises(InvalidRequest, match="raise the boundary"):
        log.delete([1])
    log.raise_boundary(3)
    log.raise_boundary(2)
    log.raise_boundary(3)
    assert log.boundary() == 3
    assert len(list(store.list("boundary"))) == 1
    with pytest.raises(InvalidRequest):
        log.delete([1, 3])
    log.delete([1, 2])
    assert log.ids() == [3]
    log.delete([3], fenced=False)
    assert (log.ids(), log.latest(), log.earliest(), log.newest()) == ([], None, None, None)


def test_write_ids_that_are_known_are_not_read() -> None:
    """Raising the boundary costs no GET for numbers whose write id the caller has."""
    store = fresh()
    log = log_on(store)
    append(log, *range(1, 11))
    with store.count() as counts:
        log.raise_boundary(10, write_ids={number: f"w{number}" for number in range(1, 10)})
    assert (counts.get, counts.put, counts.list) == (0, 1, 3)
    append(log_on(store), 11)
    with store.count() as counts:
        log.raise_boundary(11)
    assert counts.get == 2  # the marker of before, and number 10
    log.append(5, body_of("w5"), write_id="w5")  # its own winner, long ago


@given(
    below=st.integers(0, 2**62),
    passed_from=st.integers(0, 2**62),
    winners=st.dictionaries(st.integers(0, 2**62), st.none() | st.text(st.characters(codec="utf-8"))),
)
def test_markers_come_back(below: int, passed_from: int, winners: dict[int, str | None]) -> None:
    """A marker is what its bytes say."""
    marker = Marker(below, passed_from, winners)
    assert decode_marker(encode_marker(marker), path="x") == marker


@given(
    st.binary(max_size=200) | st.sampled_from([b"{}", b"[]", b'{"format": 1}', b'{"format":1,"below":"x","from":0}'])
)
def test_damaged_markers_are_named(body: bytes) -> None:
    """Bytes that are not a marker are `Corruption` with the path, never another error."""
    with pytest.raises(Corruption) as caught:
        decode_marker(body, path="boundary/7")
    assert caught.value.facts["path"] == "boundary/7"


def test_newer_markers_are_refused() -> None:
    """A marker of a later format asks for an upgrade."""
    with pytest.raises(UnsupportedFormat, match="upgrade"):
        decode_marker(b'{"format": 2}', path="x")


def test_a_withdrawal_leaves_the_file_of_another_writer() -> None:
    """In a log that was deleted and made anew, a late writer that withdraws leaves the number of the new one alone."""
    store = fresh()
    late, new = log_on(store, boundary_folder=None), log_on(store, boundary_folder=None)
    append(late, 1)
    store.delete([meta.path for meta in store.list()])
    new.append(1, body_of("new"), write_id="new")
    late.withdraw(1, "w1")
    assert new.read(1) == body_of("new")
    new.withdraw(1, "new")
    assert new.ids() == []
    new.withdraw(1, "new")


def kinds_of(ask: Callable[[NumberedLog], Any], *, padded: bool) -> tuple[Any, list[str]]:
    """What a new object answers about a log with the numbers 1 to 4, and the kinds of its calls to the folder."""
    store = fresh()
    append(log_on(store, padded=padded), 1, 2, 3, 4)
    recorded = RecordingStore(store)
    answer = ask(log_on(recorded, padded=padded))
    return answer, [entry.call.kind for entry in recorded.trace if entry.call.path.startswith("log")]


def test_the_newest_costs_what_its_names_allow() -> None:
    """Padded names are one listing and one read; others begin at the hint and never list the folder."""
    answer, kinds = kinds_of(NumberedLog.newest, padded=True)
    assert answer is not None
    assert (answer[0], bytes(answer[1]), kinds) == (4, body_of("w4"), ["list", "get"])
    answer, kinds = kinds_of(NumberedLog.newest, padded=False)
    assert answer is not None
    assert (answer[0], kinds) == (4, ["get", "head", "get"])
    assert kinds_of(NumberedLog.latest, padded=False)[1] == ["get", "head", "head"]


def test_what_was_seen_saves_a_listing() -> None:
    """The second look at padded names lists from the number that was seen on, once."""
    assert kinds_of(lambda log: (log.latest(), log.latest()), padded=True) == ((4, 4), ["list", "list"])


def test_a_gap_is_crossed_at_the_boundary() -> None:
    """Where a collector has deleted the next numbers, the newest is found: at its marker, else by a listing."""
    store = fresh()
    log = log_on(store)
    append(log, 1, 2, 3, 4, 5, 6)
    log.raise_boundary(5)
    store.delete([log.path(3), log.path(4)])
    store.put("log/LATEST", b"2")
    recorded = RecordingStore(store)
    assert log_on(recorded).latest() == 6
    assert {entry.call.path for entry in recorded.trace if entry.call.kind == "list"} == {"boundary"}
    store.delete([log.path(5)])
    assert log_on(store).latest() == 6


def test_a_number_that_was_deleted_is_no_longer_the_newest_seen() -> None:
    """Also when later ones, which others added, went with it."""
    store = fresh()
    log, other = log_on(store), log_on(store)
    append(log, 1, 2)
    append(other, 3, 4)
    other.raise_boundary(4)
    log.delete([1, 2, 3])
    assert (log.seen, log.latest()) == (None, 4)
    log, other = log_on(store), log_on(store)
    append(log, 5)
    append(other, 6)
    other.raise_boundary(6)
    other.delete([5])
    assert other.seen == 6
    log.delete([4, 5])
    assert log.seen is None


@pytest.mark.parametrize("write_id", ["a", "z"])
def test_a_payload_without_its_write_id_is_a_defect(write_id: str) -> None:
    """A lost reply could not be settled."""
    with pytest.raises(AssertionError):
        log_on(fresh()).append(1, body_of("m"), write_id=write_id)


def test_the_boundary_of_an_empty_log_stays() -> None:
    """The newest number is never passed, and there is none."""
    for below in (0, 1, 2):
        with pytest.raises(InvalidRequest) if below else nullcontext():
            log_on(fresh()).raise_boundary(below)


@pytest.mark.parametrize("padded", [True, False])
def test_only_what_landed_late_is_withdrawn(padded: bool) -> None:
    """A create of a writer that died, below the boundary and not its winner; the rest of the log stays."""
    store = fresh()
    log = log_on(store, padded=padded)
    append(log, 1, 2, 3, 4)
    log.raise_boundary(3)
    store.delete([log.path(1)])
    assert log.withdraw_late() == []
    store.put(log.path(1), body_of("late"))
    assert log.withdraw_late() == [1]
    assert (log.ids(), log.withdraw_late()) == ([2, 3, 4], [])


def test_a_log_without_a_boundary_passes_no_number() -> None:
    """Every number is free, and no write is known to have lost."""
    log = log_on(fresh(), boundary_folder=None)
    append(log, 1)
    assert (log.boundary(), log.free_from(), log.withdraw_late()) == (0, 0, [])
    assert not log.has_other_winner(1, "another")


def test_the_boundary_names_another_winner() -> None:
    """Of a number that it has passed, to each write but the one that won."""
    log = log_on(fresh())
    append(log, 1, 2)
    log.raise_boundary(2)
    assert [log.has_other_winner(number, "another") for number in (1, 2)] == [True, False]


def test_markers_are_numbered_from_one_on() -> None:
    """As the format says, so that every client sees the first one that any other has raised."""
    store = fresh()
    log = log_on(store)
    append(log, 1, 2, 3)
    for place, below in enumerate((2, 3), start=1):
        log.raise_boundary(below)
        assert [int(meta.path.rpartition("/")[2]) for meta in store.list("boundary")] == list(range(1, place + 1))
        assert log_on(store).boundary() == below


@pytest.mark.parametrize("is_raised_again", [False, True])
def test_a_boundary_goes_with_its_log(is_raised_again: bool) -> None:
    """Of one that is made anew an old handle sees what is there, also when it has a marker in the same place."""
    store = fresh()
    old, other = log_on(store), log_on(store)
    append(old, *range(1, 10))
    for below in (4, 8):
        old.raise_boundary(below)
    assert old.boundary() == 8
    store.delete([meta.path for meta in store.list()])
    append(other, 1, 2)
    if is_raised_again:
        other.raise_boundary(2)
    below = 2 if is_raised_again else 0
    assert (old.boundary(), old.free_from(), old.latest()) == (below, below, 2)
    append(old, 3)
    assert other.latest() == 3
    assert [log.create_outcome(1, "w1") for log in (old, other)] == ["won" if is_raised_again else "open"] * 2
