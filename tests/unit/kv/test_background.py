"""Background threads, by themselves: when each step runs, by the clock of a seeded scheduler."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest

from lakebed.errors import Corruption, Fenced, InternalError, LakebedError, OutcomeUnknown, Unavailable
from lakebed.kv.background import Background, Stopped
from lakebed.testing import Scheduler


class Works:
    """Threads over steps that fail as a script says, and the time of each step since the beginning."""

    def __init__(self, seed: int = 1) -> None:
        self.scheduler = Scheduler(seed)
        environment = self.scheduler.environment()
        self.clock = environment.clock
        self.lock = environment.runtime.lock()
        self.wanted = environment.runtime.condition(self.lock)
        self.reported: list[LakebedError] = []
        self.times_s: dict[str, list[float]] = {}
        self.background = Background(
            lock=self.lock, wanted=self.wanted, report=self.reported.append, environment=environment
        )
        self.began_s = 0.0

    def now_s(self) -> float:
        return self.clock.monotonic_s() - self.began_s

    def step(
        self, name: str, *outcomes: Exception | None, every_s: float | None = 0.0, from_s: float = 0.0
    ) -> tuple[Callable[[float], float | None], Callable[[], object]]:
        """A step that is due at a time, and so long after each run as `every_s` says, with one outcome a run."""
        left, times_s = list(outcomes), self.times_s.setdefault(name, [])

        def due(now_s: float) -> float | None:
            if not left:
                return None
            last_s = times_s[-1] + (every_s or 0.0) if times_s else from_s
            return self.began_s + last_s

        def run() -> None:
            times_s.append(self.now_s())
            outcome = left.pop(0)
            if outcome is not None:
                raise outcome

        return due, run

    def run(self, begin: Callable[[], None], *, for_s: float = 1_000.0) -> None:
        """Begin threads, and end them after a time."""

        def work() -> None:
            self.clock.sleep(50)
            self.began_s = self.clock.monotonic_s()
            begin()
            self.clock.sleep(for_s)
            self.background.stop()

        self.scheduler.spawn("owner", work)
        self.scheduler.run()

    def check_times(self, name: str, expected_s: Sequence[float]) -> None:
        assert self.times_s[name] == pytest.approx(list(expected_s), abs=1e-3)


@pytest.mark.parametrize("error", [Unavailable, OutcomeUnknown])
def test_what_the_store_does_not_answer_is_tried_again_after_longer_pauses(error: type[LakebedError]) -> None:
    """The pauses double up to ten seconds, a success ends them, and nothing is reported."""
    works = Works()
    outcomes = [error("no reply") for _ in range(9)]
    step = works.step("step", *outcomes, None, error("no reply"), None)
    works.run(lambda: works.background.start("thread", step))
    pauses_s = [0.1, 0.2, 0.4, 0.8, 1.6, 3.2, 6.4, 10, 10, 0, 0.1]
    works.check_times("step", [sum(pauses_s[:count]) for count in range(len(pauses_s) + 1)])
    assert not works.reported


@pytest.mark.parametrize("error", [Corruption("damage"), ZeroDivisionError("no number")])
def test_another_error_is_reported_and_the_step_goes_on_after_a_pause(error: Exception) -> None:
    """One of ours as it is, any other as an internal one that names the thread."""
    works = Works()
    works.run(lambda: works.background.start("thread", works.step("step", error, None)))
    works.check_times("step", [0, 10])
    (reported,) = works.reported
    if isinstance(error, LakebedError):
        assert reported is error
    else:
        assert isinstance(reported, InternalError)
        assert "thread failed: ZeroDivisionError: no number" in str(reported)
        assert reported.__cause__ is error


@pytest.mark.parametrize("error", [Fenced("taken over"), Stopped()])
def test_a_fence_ends_a_thread(error: Exception) -> None:
    """Its other steps never run again; those of another thread do, and nothing is reported twice."""
    works = Works()

    def begin() -> None:
        works.background.start("ends", works.step("first", error), works.step("second", None, from_s=5))
        works.background.start("lives", works.step("third", None, None, every_s=7))

    works.run(begin)
    assert works.times_s == {"first": [0], "second": [], "third": [0, pytest.approx(7)]}
    assert not works.reported


def test_steps_run_when_they_are_due() -> None:
    """The first of those that are due comes first, the earliest of those that are not next."""
    works = Works()
    steps = (
        works.step("a", None, None, None, every_s=4, from_s=2),
        works.step("b", None, None, every_s=5, from_s=1),
        works.step("never"),
    )
    works.run(lambda: works.background.start("thread", *steps))
    works.check_times("a", [2, 6, 10])
    works.check_times("b", [1, 6])
    assert works.times_s["never"] == []


def test_a_thread_that_begins_later_begins_when_its_first_step_is_due() -> None:
    """An error of the first thread does not put it off, and it begins once."""
    works = Works()

    def begin() -> None:
        late = [works.step("late", None, None, every_s=1, from_s=3), works.step("later", None, from_s=8)]
        at_once = [works.step("at once", None)]
        failing = works.step("failing", Corruption("damage"), None)
        works.background.start("thread", failing, later={"late": late, "at once": at_once, "none": [works.step("no")]})

    works.run(begin)
    works.check_times("at once", [0])
    works.check_times("late", [3, 4])
    works.check_times("later", [8])
    assert len(works.times_s["failing"]) == 2
    assert len(works.reported) == 1


def test_a_step_is_looked_at_again_when_something_may_be_due() -> None:
    """And what is wanted at the end is left undone."""
    works = Works()
    wanted: list[bool] = []
    ran_s: list[float] = []

    def begin() -> None:
        works.background.start(
            "thread", (lambda now_s: now_s if wanted else None, lambda: (ran_s.append(works.now_s()), wanted.clear()))
        )
        for _ in range(2):
            works.clock.sleep(3)
            with works.lock:
                wanted.append(True)
                works.wanted.notify_all()
        works.clock.sleep(1)
        works.background.end()
        with works.lock:
            wanted.append(True)
            works.wanted.notify_all()

    works.run(begin)
    assert ran_s == pytest.approx([3, 6], abs=1e-3)
