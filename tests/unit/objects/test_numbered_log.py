"""What a numbered log asks of its store, remembers and records; its promises: tests/property/test_numbered_log.py."""

from __future__ import annotations

import random
import uuid
from collections.abc import Callable
from typing import Any, TypeVar

import pytest

from lakebed.errors import Conflict, OutcomeUnknown, Unavailable
from lakebed.objects import ObjectStore, open_store
from lakebed.objects.boundary import MARKER_COUNT_KEPT, decode_marker
from lakebed.objects.numbered_log import NumberedLog
from lakebed.runtime import Environment
from lakebed.testing import Call, Fault, FaultyStore, ManualClock, RecordingStore
from worlds.errors import raises

R = TypeVar("R")

DIGITS = 4


class Disk(RecordingStore):
    """A store that notes where each listing starts, and refuses calls.

    Attributes:
        starts: where the listings started.
        refuses: which calls are refused.
    """

    def __init__(self, inner: ObjectStore) -> None:
        super().__init__(inner)
        self.starts: list[str | None] = []
        self.refuses: Callable[[Call], bool] = lambda call: False

    def list(self, prefix: str = "", *, start_after: str | None = None) -> Any:
        """List, and note the start."""
        self.starts.append(start_after)
        return super().list(prefix, start_after=start_after)

    def intercept(self, call: Call, perform: Callable[[], R]) -> R:
        """Make the call, unless it is refused."""
        if self.refuses(call):
            raise Unavailable("refused")
        return super().intercept(call, perform)

    def asked(self, ask: Callable[[], R]) -> tuple[R, list[str]]:
        """An answer, and the calls that it took."""
        first = len(self.trace)
        answer = ask()
        return answer, [str(record.call) for record in self.trace[first:]]


def disk() -> Disk:
    """An empty store."""
    return Disk(open_store(f"memory://{uuid.uuid4().hex}"))


def name_of(number: int, *, padded: bool) -> str:
    """The file name of a number that there may be."""
    assert number >= 0
    return f"{number:0{DIGITS}d}" if padded else f"{number}"


def log_on(
    store: ObjectStore,
    *,
    padded: bool = False,
    boundary: bool = True,
    hint: bool = True,
    clock: ManualClock | None = None,
) -> NumberedLog:
    """A log whose payloads are write ids, and whose waits take no time."""
    return NumberedLog(
        store,
        "log",
        name_of=lambda number: name_of(number, padded=padded),
        id_of=lambda name: int(name) if name.isdecimal() else None,
        write_id_of=lambda body: bytes(body).decode(),
        boundary_folder="boundary" if boundary else None,
        latest_hint_path="hint" if hint else None,
        environment=Environment(clock=clock or ManualClock(), rng=random.Random(1)),
    )


def append(log: NumberedLog, *numbers: int) -> None:
    """Append numbers whose write id is ``w<number>``."""
    for number in numbers:
        log.append(number, f"w{number}".encode(), write_id=f"w{number}")


def newest_of(log: NumberedLog) -> int | None:
    """The newest number, by `newest`, whose payload is that of the number."""
    newest = log.newest()
    assert newest is None or bytes(newest[1]) == f"w{newest[0]}".encode()
    return None if newest is None else newest[0]


@pytest.mark.parametrize("boundary", [True, False])
@pytest.mark.parametrize(("ask", "last"), [(NumberedLog.latest, "head"), (newest_of, "get")])
def test_a_look_begins_at_what_the_last_one_saw(
    ask: Callable[[NumberedLog], int | None], last: str, *, boundary: bool
) -> None:
    """Also without a hint: the next number is asked for, and the one that was seen; no folder is listed again."""
    store = disk()
    append(log_on(store), 1, 2, 3, 4)
    log = log_on(store, hint=False, boundary=boundary)
    passed = ["list boundary"] if boundary else []
    listed = ["list log", *(["get log/4"] if last == "get" else [])]
    assert store.asked(lambda: ask(log)) == (4, listed)
    assert log.seen == 4
    assert store.asked(lambda: ask(log)) == (4, ["head log/5", *passed, f"{last} log/4"])
    append(log_on(store), 5, 6)
    read = ["get log/6"] if last == "get" else []
    assert store.asked(lambda: ask(log)) == (6, ["head log/5", "head log/6", "head log/7", *passed, *read])
    assert log.seen == 6


def test_a_writers_look_does_not_read_the_boundary() -> None:
    """Its append on a wrong number is a conflict."""
    store = disk()
    append(log_on(store), 1, 2)
    log = log_on(store)
    assert store.asked(lambda: log.latest(exact=False)) == (2, ["get hint", "head log/3", "head log/2"])
    newest, calls = store.asked(lambda: log.newest(exact=False))
    assert newest is not None
    assert (newest[0], calls) == (2, ["head log/3", "get log/2"])


@pytest.mark.parametrize("zeros", [0, 31, 32])
def test_a_hint_that_is_too_long_is_not_read(zeros: int) -> None:
    """Of 32 bytes it counts, of more it is another client's, and the folder is listed."""
    store = disk()
    append(log_on(store), 1, 2)
    store.put("hint", b"0" * zeros + b"2")
    answer, calls = store.asked(log_on(store).latest)
    assert (answer, "list log" in calls) == (2, zeros == 32)


@pytest.mark.parametrize("ask", [NumberedLog.latest, newest_of])
@pytest.mark.parametrize("first", [0, 1, 2])
def test_padded_names_are_listed_from_the_one_before_the_last_seen(
    first: int, ask: Callable[[NumberedLog], int | None]
) -> None:
    """There is none before 0; where what was seen is gone, with all after it, the folder is listed from its start."""
    store = disk()
    append(log_on(store, padded=True), first)
    log = log_on(store, padded=True)
    assert (ask(log), store.starts[-1:]) == (first, [None])
    before = f"log/{first - 1:0{DIGITS}d}" if first else None
    assert (ask(log), store.starts[-1:]) == (first, [before])
    log.append(first + 5, f"w{first + 5}".encode(), write_id=f"w{first + 5}")
    store.delete([log.path(first + 5)])
    assert (ask(log), store.starts[-2:]) == (first, [f"log/{first + 4:0{DIGITS}d}", None])
    store.delete([log.path(first)])
    assert (ask(log), log.seen) == (None, None)


@pytest.mark.parametrize("padded", [True, False])
def test_the_earliest_is_the_least_number(padded: bool) -> None:
    """Not the first name."""
    store = disk()
    log = log_on(store, padded=padded)
    append(log, *range(8, 13))
    assert store.asked(log.earliest) == (8, ["list log"])
    assert log.ids() == [8, 9, 10, 11, 12]


def test_a_repeated_append_of_an_older_number_leaves_the_newest_that_was_seen() -> None:
    """The hint names the newest."""
    store = disk()
    log = log_on(store)
    append(log, 1, 2, 3)
    append(log, 2)
    assert (log.seen, bytes(store.get("hint"))) == (3, b"3")
    append(log_on(store), 1)
    assert [(record.call.path, record.call.durable) for record in store.trace if record.call.path == "hint"][-1] == (
        "hint",
        False,
    )


def test_an_append_that_the_boundary_had_passed_says_how_far_the_log_is() -> None:
    """The next look begins there; an append of a number that another took teaches nothing."""
    store = disk()
    late, other = log_on(store, hint=False), log_on(store, hint=False)
    append(other, 1, 2, 3)
    with pytest.raises(Conflict):
        late.append(3, b"late", write_id="late")
    assert late.seen is None
    other.raise_boundary(3)
    other.delete([1, 2])
    with pytest.raises(Conflict):
        late.append(2, b"late", write_id="late")
    assert (late.seen, late.ids()) == (3, [3])
    append(late, 4)
    other.raise_boundary(3)
    with pytest.raises(Conflict):
        late.append(1, b"late", write_id="late")
    assert late.seen == 4


@pytest.mark.parametrize("kind", ["get", "delete"])
def test_an_append_that_lost_is_a_conflict_also_when_it_cannot_be_withdrawn(kind: str) -> None:
    """The file is below the boundary, where a collection finds it."""
    store = disk()
    log = log_on(store)
    append(log, 1, 2, 3)
    log.raise_boundary(3)
    log.delete([1, 2])
    store.refuses = lambda call: call.kind == kind and call.path == "log/2"
    with pytest.raises(Conflict):
        log.append(2, b"late", write_id="late")
    assert log.ids() == [2, 3]
    store.refuses = lambda call: False
    assert (log.withdraw_late(), log.ids()) == ([2], [3])


@pytest.mark.parametrize("write_id", ["v2", "w2", "x2"])
def test_only_the_file_of_a_write_is_withdrawn(write_id: str) -> None:
    """Whatever the order of the write ids."""
    log = log_on(disk())
    append(log, 1, 2)
    log.withdraw(2, write_id)
    assert log.ids() == ([1] if write_id == "w2" else [1, 2])


def test_an_append_whose_hint_cannot_be_written_stands() -> None:
    """Readers of a stale hint check it."""
    store = disk()
    log = log_on(store)
    append(log, 1)
    store.refuses = lambda call: call.path == "hint" and call.kind == "put"
    append(log, 2)
    store.refuses = lambda call: False
    assert (bytes(store.get("hint")), log_on(store).latest()) == (b"1", 2)


def test_what_is_free_is_asked_once() -> None:
    """Then the boundary is as it was last seen, until something reads it."""
    store = disk()
    log, other = log_on(store), log_on(store)
    append(other, 1, 2, 3)
    other.raise_boundary(2)
    assert store.asked(log.free_from) == (2, ["list boundary", f"get boundary/{1:020d}"])
    other.raise_boundary(3)
    assert store.asked(log.free_from) == (2, [])
    assert (log.boundary(), log.free_from()) == (3, 3)


def test_only_what_is_below_the_boundary_is_read_for_late_creates() -> None:
    """The numbers from the boundary on are in use; of one whose winner is forgotten, nothing is known."""
    store = disk()
    log = log_on(store)
    append(log, *range(1, 8))
    log.raise_boundary(4)
    late, calls = store.asked(log.withdraw_late)
    assert (late, [call for call in calls if call.startswith("get log")]) == (
        [],
        ["get log/1", "get log/2", "get log/3"],
    )
    for below in range(8, MARKER_COUNT_KEPT + 9):
        append(log, below)
        log.raise_boundary(below)
    store.put(log.path(2), b"late")
    newest = MARKER_COUNT_KEPT + 7
    store.put(log.path(newest), b"late")
    assert log.create_outcome(2, "late") == "forgotten"
    assert (log.withdraw_late(), 2 in log.ids(), newest in log.ids()) == ([newest], True, False)


def test_a_marker_names_the_winners_that_it_passes() -> None:
    """Those that are there from the boundary before it on, and below its own."""
    store = disk()
    log = log_on(store)
    append(log, 1, 2, 3, 5, 6, 7)
    log.raise_boundary(3)
    log.raise_boundary(6, write_ids={3: "w3", 5: None, 6: "w6"})
    markers = [decode_marker(store.get(meta.path), path=meta.path) for meta in store.list("boundary")]
    assert [(marker.passed_from, marker.below, dict(marker.winners)) for marker in markers] == [
        (0, 3, {1: "w1", 2: "w2"}),
        (3, 6, {3: "w3", 5: None}),
    ]
    append(log, 8)
    log.raise_boundary(8)  # the newest stays


@pytest.mark.parametrize("fenced", [True, False])
def test_nothing_is_asked_to_delete_no_number(fenced: bool) -> None:
    """Not even the boundary."""
    store = disk()
    log = log_on(store)
    append(log, 1)
    assert store.asked(lambda: log.delete([], fenced=fenced)) == (None, [])
    assert log.seen == 1


@pytest.mark.parametrize(
    ("numbers", "seen"), [([1], 3), ([2, 1], 3), ([3], None), ([1, 3], None), ([4], 3), ([3, 4], None)]
)
def test_what_was_deleted_is_not_remembered(numbers: list[int], seen: int | None) -> None:
    """The newest that was seen is, unless it may be among what was deleted."""
    store = disk()
    log = log_on(store)
    append(log, 1, 2, 3)
    append(log_on(store), 4)
    log.delete(numbers, fenced=False)
    assert (log.seen, log.ids()) == (seen, [number for number in (1, 2, 3, 4) if number not in numbers])


def test_waits_are_those_of_the_environment() -> None:
    """After an unclear answer its clock goes on; without an environment a log has one of its own."""
    clock = ManualClock()
    before = clock.monotonic_s()
    store = FaultyStore(disk(), faults={0: Fault.LOST_REQUEST})
    append(log_on(store, clock=clock), 1)
    assert store.met
    assert clock.monotonic_s() > before
    store = FaultyStore(disk(), faults={0: Fault.LOST_REPLY})
    log = NumberedLog(store, "log", name_of=str, id_of=int, write_id_of=lambda body: bytes(body).decode())
    append(log, 1)
    assert log.ids() == [1]
    assert store.met


def test_a_boundary_that_does_not_answer_leaves_the_outcome_unknown() -> None:
    """After an append has created its number; the number stays."""
    store = disk()
    log = log_on(store)
    append(log, 1)
    store.refuses = lambda call: call.path == "boundary"
    with raises(OutcomeUnknown, "outcome_unknown", match="log/2 was created"):
        append(log, 2)
    assert log.ids() == [1, 2]
