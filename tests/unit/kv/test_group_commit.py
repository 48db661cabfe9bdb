"""Leaders and followers, by themselves: every interleaving that a seeded scheduler finds."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable

import pytest

from lakebed.errors import Fenced, LakebedError, OutcomeUnknown
from lakebed.kv.group_commit import GroupCommit
from lakebed.testing import Scheduler

SEEDS = 150


class Torn(BaseException):
    """What tears a leader's thread out, such as an interrupt."""


class Room:
    """Writers over one group commit whose appends do what a script says."""

    def __init__(self, seed: int, outcomes: list[BaseException | None]) -> None:
        self.scheduler = Scheduler(seed)
        self.environment = self.scheduler.environment()
        self.lock = self.environment.runtime.lock()
        self.newest = 0
        self.outcomes = outcomes
        self.appends: list[int] = []
        self.inside = 0
        self.answers: dict[int, str] = {}
        self.fenced_calls = 0
        self.commit = GroupCommit(
            persist=self.append,
            newest=lambda: self.newest,
            on_fence=self.note_fence,
            lock=self.lock,
            durable_sequence=0,
            environment=self.environment,
        )

    def note_fence(self) -> None:
        """Called once."""
        self.fenced_calls += 1

    def append(self) -> int:
        """Make everything so far durable, slowly, or fail as the test says."""
        assert self.inside == 0, "two leaders at once"
        self.inside += 1
        try:
            with self.lock:
                through = self.newest
            self.environment.clock.sleep(0.01)
            outcome = self.outcomes.pop(0) if self.outcomes else None
            if outcome is not None:
                raise outcome
            self.appends.append(through)
            return through
        finally:
            self.inside -= 1

    def write(self) -> None:
        """One durable write."""
        with self.lock:
            self.newest += 1
            sequence = self.newest
        try:
            self.commit.wait(sequence)
            assert self.appends
            assert self.appends[-1] >= sequence
            self.answers[sequence] = "ok"
        except LakebedError as error:
            self.answers[sequence] = error.kind
        except Torn:
            self.answers[sequence] = "torn"

    def run(self, *, writers: int, writes: int = 2) -> Counter[str]:
        """Let them write; every write gets an answer."""

        def work() -> None:
            for _ in range(writes):
                self.write()

        for i in range(writers):
            self.scheduler.spawn(f"writer {i}", work)
        self.scheduler.run()
        assert len(self.answers) == writers * writes, "somebody was never answered"
        return Counter(self.answers.values())


def test_writers_share_appends() -> None:
    """All callers learn of durability, by fewer appends than writes, one at a time."""
    shared = 0
    for seed in range(SEEDS):
        room = Room(seed, [])
        assert room.run(writers=6) == {"ok": 12}
        assert room.commit.durable_sequence == 12
        shared += len(room.appends) < 12
    assert shared > SEEDS * 0.9


@pytest.mark.parametrize("failures", [1, 2, 3])
def test_every_follower_of_a_failing_leader_is_answered(failures: int) -> None:
    """An error reaches those whose rows were there when the attempt began, at most; no caller waits for ever."""
    told_followers = 0
    for seed in range(SEEDS):
        outcomes: list[BaseException | None] = [OutcomeUnknown("no reply") for _ in range(failures)]
        random.Random(seed).shuffle(outcomes := [*outcomes, None])
        room = Room(seed, outcomes)
        answers = room.run(writers=5)
        assert set(answers) <= {"ok", "outcome_unknown"}
        assert answers["outcome_unknown"] >= 1
        told_followers += answers["outcome_unknown"] > failures
        # What failed stayed first: once anything later is durable, so is it.
        assert room.commit.durable_sequence == max(room.appends, default=0)
    assert told_followers > 10, "followers were told in some runs"


def test_a_leader_that_is_torn_out_is_succeeded() -> None:
    """An interrupt reaches its own thread only; the next waiter leads, and all other writes are durable."""
    for seed in range(SEEDS):
        answers = Room(seed, [Torn(), None, Torn()]).run(writers=5)
        assert answers == {"torn": 2, "ok": 8}


def test_a_fence_is_told_to_all_and_for_good() -> None:
    """Waiting callers and later ones raise Fenced, each a new exception with the same facts."""
    for seed in range(SEEDS):
        room = Room(seed, [None, Fenced("taken over", new_epoch=7)])
        answers = room.run(writers=5, writes=3)
        assert set(answers) <= {"ok", "fenced"}
        assert answers["fenced"] >= 5
        assert room.fenced_calls == 1
        with pytest.raises(Fenced) as first:
            room.commit.wait(99)
        with pytest.raises(Fenced) as second:
            room.commit.wait(99)
        assert first.value is not second.value
        assert second.value.facts == {"new_epoch": 7}


def test_a_stale_failure_is_not_an_answer() -> None:
    """A caller that asks after a failed attempt leads another one, instead of raising the old failure."""
    room = Room(0, [OutcomeUnknown("no reply")])
    room.newest = 1
    with pytest.raises(OutcomeUnknown):
        room.commit.wait(1)
    room.commit.wait(1)
    assert room.appends == [1]


@pytest.mark.parametrize("helper", [True, False])
def test_waiting_for_others_never_leads(helper: bool) -> None:
    """It returns when others have made it durable, or when its time is over."""
    room = Room(3, [])
    room.newest = 1
    works: list[Callable[[], None]] = [lambda: room.commit.wait_for_others(1, timeout_s=5)]
    if helper:
        works.append(lambda: room.commit.wait(1))
    for i, work in enumerate(works):
        room.scheduler.spawn(f"actor {i}", work)
    room.scheduler.run()
    assert bool(room.appends) == helper
    assert (room.environment.clock.monotonic_s() >= 5) != helper


@pytest.mark.parametrize("begin_s", [0, 1, 1_000])
def test_a_wait_for_others_ends_after_its_time(begin_s: float) -> None:
    """Whatever the clock shows when it begins."""
    room = Room(3, [])
    room.newest = 1
    clock = room.environment.clock
    waited_s: list[float] = []

    def wait() -> None:
        clock.sleep(begin_s)
        started_s = clock.monotonic_s()
        room.commit.wait_for_others(1, timeout_s=5)
        waited_s.append(clock.monotonic_s() - started_s)

    room.scheduler.spawn("waiter", wait)
    room.scheduler.run()
    assert waited_s == [pytest.approx(5)]
    assert room.appends == []
