"""`Tenure`: nothing but its end ends it, whatever its parts raise."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable, Iterator
from functools import partial
from itertools import chain, cycle, repeat

import pytest

from lakebed.clock import SystemClock
from lakebed.errors import Closed, Conflict, Corruption, Fenced, LakebedError
from lakebed.fleet import tenure
from lakebed.fleet.tenure import Tenure
from lakebed.http.asking import ask_health
from lakebed.kv.lease import this_process
from lakebed.runtime import Environment, ThreadRuntime
from worlds.waiting import wait_until

CLOCK = SystemClock()


class NotingRuntime(ThreadRuntime):
    """Notes when a thread ends."""

    def __init__(self) -> None:
        self.is_over = False

    def spawn(
        self, function: Callable[[], None], *, name: str, stop: Callable[[], None] | None = None
    ) -> Callable[[], None]:
        def noted() -> None:
            try:
                function()
            finally:
                self.is_over = True

        return super().spawn(noted, name=name, stop=stop)


class Parts:
    """What a tenure opens and works with. Each step raises the next of its errors, while there is one."""

    def __init__(self, **errors: list[Exception]) -> None:
        self.errors = errors
        self.steps: list[str] = []
        self.said: list[str] = []
        self.runtime = NotingRuntime()

    def step(self, name: str) -> None:
        """Note a step."""
        self.steps.append(name)
        if self.errors.get(name):
            raise self.errors[name].pop(0)

    def opened(self, take_over: bool) -> Parts:
        """Open it."""
        self.step("take over" if take_over else "open")
        return self

    def work(self, _: Parts, tenure: Tenure[Parts]) -> None:
        """Work with it."""
        self.step("work")
        tenure.repeat(partial(self.step, "round"), every_s=0.001, problem="a round failed")

    def close(self) -> None:
        """Close it."""
        self.step("close")

    def tenure(
        self, *, take_over: bool = False, health: Callable[[str, float], str | None] = ask_health
    ) -> Tenure[Parts]:
        """Start."""
        return Tenure(
            "thing",
            self.opened,
            self.work,
            report=self.said.append,
            environment=Environment(runtime=self.runtime),
            take_over=take_over,
            health=health,
        )


ERRORS: list[Callable[[], Exception]] = [
    lambda: ValueError("unforeseen"),
    lambda: Closed("closed"),
    lambda: Fenced("fenced"),
    lambda: Corruption("damaged"),
    lambda: LakebedError("another"),
]


@pytest.mark.parametrize("step", ["work", "round", "close"])
@pytest.mark.parametrize("error", ERRORS, ids=["defect", "closed", "fenced", "corruption", "another"])
def test_no_error_ends_it(step: str, error: Callable[[], Exception]) -> None:
    """After an error of any kind in any step it works again; what was opened was closed."""
    parts = Parts(**{step: [error()]})
    tenure = parts.tenure()
    if step == "close":
        wait_until(lambda: "round" in parts.steps)
        tenure.lose()
    wait_until(
        lambda: (
            parts.runtime.is_over or (not parts.errors[step] and "round" in parts.steps[parts.steps.index(step) + 1 :])
        )
    )
    assert not parts.runtime.is_over
    tenure.close()
    assert parts.steps[-1] == "close"
    assert parts.steps.count("open") == parts.steps.count("close")


def test_it_is_opened_until_it_can_be() -> None:
    """While another process owns it nothing is said; other errors are said, a defect with its traceback."""
    owned = [Conflict("owned by another", kind="owned") for _ in range(2)]
    parts = Parts(open=[*owned, ValueError("unforeseen"), Corruption("damaged")])
    tenure = parts.tenure()
    wait_until(lambda: "round" in parts.steps)
    tenure.close()
    assert parts.steps.count("open") == 5
    assert len(parts.said) == 2
    assert "Traceback" in parts.said[0]
    assert "unforeseen" in parts.said[0]
    assert parts.said[1] == "the thing cannot be opened: damaged"


def test_what_cannot_be_opened_at_first_is_raised() -> None:
    """Unless another process owns it."""
    with pytest.raises(Corruption):
        Parts(open=[Corruption("damaged")]).tenure()
    parts = Parts()
    parts.tenure(take_over=True).close()
    assert parts.steps[0] == "take over"


def test_a_problem_is_reported_once() -> None:
    """Also where two alternate."""
    parts = Parts(round=[error for _ in range(50) for error in (Corruption("one"), ValueError("two"))])
    tenure = parts.tenure()
    wait_until(lambda: not parts.errors["round"])
    tenure.close()
    assert len(parts.said) == 2
    assert parts.said[0] == "a round failed: one"


def test_what_is_lost_is_opened_again() -> None:
    """It says that it is a standby."""
    parts = Parts()
    tenure = parts.tenure()
    wait_until(lambda: "round" in parts.steps)
    tenure.lose()
    wait_until(lambda: parts.steps.count("open") == 2)
    tenure.close()
    assert parts.said == ["another process has taken over the thing; this one is a standby now."]


def owned(**facts: object) -> Conflict:
    """What opening raises while a process owns it; without facts: this one, for long."""
    mine = {"host": this_process().host, "pid": os.getpid(), "expires_at_ms": 1 << 60}
    return Conflict("owned", kind="owned", **(mine | facts))


def ended_process() -> int:
    """The id of a process that has ended."""
    with subprocess.Popen(["true"]) as process:
        process.wait()
        return process.pid


@pytest.mark.parametrize(
    ("own", "is_seldom"),
    [
        (owned, True),
        (lambda: owned(host="elsewhere", pid=1), True),
        (lambda: owned(pid=ended_process()), False),  # not earlier: the number may be another process's some time later
        (lambda: owned(expires_at_ms=0), False),
    ],
    ids=["runs here", "elsewhere", "ended here", "its lease ended"],
)
def test_what_another_process_owns_is_tried_seldom(
    own: Callable[[], Conflict], is_seldom: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each try costs requests: there are many only when the owner's process or lease has ended."""
    monkeypatch.setattr(tenure, "_LOOK_S", 0.01)
    monkeypatch.setattr(tenure, "_ASK_S", 0.3 if is_seldom else 300.0)
    parts = Parts(open=[own()] * 4)
    started_s = CLOCK.monotonic_s()
    waiting = parts.tenure()
    wait_until(lambda: "work" in parts.steps)
    waiting.close()
    assert parts.steps.count("open") == 5
    assert not is_seldom or CLOCK.monotonic_s() - started_s >= 4 * 0.3


def waiting_for(
    parts: Parts, answers: Iterator[str | None], monkeypatch: pytest.MonkeyPatch, *, asked_s: float = 300.0
) -> Tenure[Parts]:
    """A standby of an owner at a URL, which answers questions for its health so."""
    monkeypatch.setattr(tenure, "_LOOK_S", 0.001)
    monkeypatch.setattr(tenure, "_HANGS_LOOK_S", 0.001)
    monkeypatch.setattr(tenure, "_ASK_S", asked_s)
    return parts.tenure(health=lambda url, limit_s: next(answers))


HUNG = owned(host="elsewhere", pid=1, epoch=3, endpoint="http://owner:1")


def test_an_owner_that_hangs_is_replaced(monkeypatch: pytest.MonkeyPatch) -> None:
    """It answered, and does not any more: its lease is not waited for. One lost answer is none."""
    answers = chain(["ok", None, None, "ok"], repeat(None))
    parts = Parts(open=[HUNG, HUNG])
    standby = waiting_for(parts, answers, monkeypatch)
    wait_until(lambda: "work" in parts.steps)
    standby.close()
    assert parts.steps[:4] == ["open", "open", "take over", "work"]
    assert parts.said == [
        "the owner of the thing, process 1 on elsewhere at http://owner:1, does not answer: this process takes it over."
    ]


@pytest.mark.parametrize(
    ("owners", "answers"),
    [
        ([HUNG] * 4, repeat(None)),
        ([HUNG] * 4, cycle(["ok", None, None])),
        ([HUNG] * 4, chain(["standby"], repeat(None))),
        ([owned(host="elsewhere", pid=1, epoch=3)] * 4, repeat(None)),
    ],
    ids=["it never answered", "it answers sometimes", "another one answers there", "it has no URL"],
)
def test_an_owner_that_may_be_well_is_left_to_its_lease(
    owners: list[Exception], answers: Iterator[str | None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where a standby cannot reach it, or it is late, only the lease says that it is over."""
    parts = Parts(open=owners)
    standby = waiting_for(parts, answers, monkeypatch, asked_s=0.1)
    wait_until(lambda: "work" in parts.steps)
    standby.close()
    assert parts.steps[:6] == ["open"] * 5 + ["work"]


def test_a_standby_does_not_end_another_owner_than_the_one_that_hangs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of two standbys the faster one took over meanwhile."""
    next_owner = owned(host="elsewhere", pid=2, epoch=4, endpoint="http://next:1")
    parts = Parts(open=[HUNG, next_owner])
    standby = waiting_for(parts, chain(["ok", None, None, None], repeat("ok")), monkeypatch)
    wait_until(lambda: parts.steps.count("open") == 2)
    standby.close()
    assert parts.steps == ["open", "open"]


def test_who_lost_it_leaves_the_next_owner_to_its_lease(monkeypatch: pytest.MonkeyPatch) -> None:
    """For a while: two processes that do not reach each other do not take turns."""
    parts = Parts()
    health = chain(["ok"] * 3, repeat(None))
    standby = waiting_for(parts, health, monkeypatch, asked_s=0.1)
    wait_until(lambda: "round" in parts.steps)
    parts.errors["open"] = [HUNG] * 4
    standby.lose()
    wait_until(lambda: parts.steps.count("work") == 2)
    standby.close()
    assert "take over" not in parts.steps


def test_a_start_at_the_same_time_as_another_makes_a_standby() -> None:
    """The other one fenced this one while it opened."""
    parts = Parts(open=[Fenced("taken over"), owned(expires_at_ms=0)])
    starting = parts.tenure()
    wait_until(lambda: "work" in parts.steps)
    starting.close()
    assert parts.steps[:4] == ["open", "open", "open", "work"]
