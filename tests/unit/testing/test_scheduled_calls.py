"""Calls between the parts of a simulation are lost, repeated and delayed; a seed repeats."""

from __future__ import annotations

import doctest
from collections import Counter
from collections.abc import Callable

import pytest

from lakebed.errors import Conflict, OutcomeUnknown, Unavailable
from lakebed.testing import FaultRates, ScheduledCalls, Scheduler, scheduled_calls


class Server:
    """Adds numbers of clients, and remembers which it was given."""

    def __init__(self, scheduler: Scheduler) -> None:
        self.scheduler = scheduler
        self.given: list[str] = []

    def add(self, name: str) -> int:
        """Note the name, after others were let in between."""
        self.scheduler.switch("adding")
        self.given.append(name)
        return len(self.given)


def run(seed: int, faults: FaultRates, *, server: str | None = "server") -> tuple[Server, Counter[str], str]:
    """Three clients that call eight times each; the server, what they were answered, and the trace's digest."""
    scheduler = Scheduler(seed, faults=faults)
    calls, part, answers = scheduler.calls(), Server(scheduler), Counter[str]()

    def ask(client: str) -> None:
        for number in range(8):
            try:
                calls.call(f"add {number}", lambda number=number: part.add(f"{client}{number}"), server=server)
                answers["done"] += 1
            except Unavailable:
                answers["refused"] += 1
            except OutcomeUnknown:
                answers["lost"] += 1

    for client in ("a", "b", "c"):
        scheduler.spawn(client, lambda client=client: ask(client))
    scheduler.run()
    return part, answers, scheduler.trace_hash()


@pytest.mark.parametrize("server", [None, "server"])
@pytest.mark.parametrize(
    ("faults", "answer", "effects"),
    [
        (FaultRates(), "done", 24),
        (FaultRates(error_before=1.0), "refused", 0),
        (FaultRates(lost_request=1.0), "lost", 0),
        (FaultRates(lost_reply=1.0), "lost", 24),
        (FaultRates(late=1.0), "lost", 24),
        (FaultRates(repeated=1.0), "done", 48),
    ],
    ids=["none", "refused", "lost request", "lost reply", "late", "repeated"],
)
def test_each_fault_is_what_it_says(faults: FaultRates, answer: str, effects: int, server: str | None) -> None:
    """A fault alone decides what the caller is answered, and how often the call has its effect."""
    part, answers, _ = run(1, faults, server=server)
    assert (answers, len(part.given)) == (Counter({answer: 24}), effects)


def test_a_late_call_lands_after_calls_that_began_later() -> None:
    """Delays reorder the calls of one client."""
    orders = [run(seed, FaultRates(late=0.5))[0].given for seed in range(20)]
    assert any(
        [name for name in order if name[0] == "a"] != sorted(n for n in order if n[0] == "a") for order in orders
    )


def test_the_same_seed_is_the_same_run() -> None:
    """What is lost, repeated and delayed follows from the seed."""
    faults = FaultRates(lost_request=0.1, lost_reply=0.1, late=0.1, repeated=0.1, pause=0.2)
    first, again, other = run(5, faults), run(5, faults), run(6, faults)
    assert (first[0].given, first[1], first[2]) == (again[0].given, again[1], again[2])
    assert first[2] != other[2]


def test_mixed_faults_keep_their_promises() -> None:
    """What was answered has happened, what was refused has not, and only what is repeated happens twice."""
    met: Counter[str] = Counter()
    for seed in range(20):
        part, answers, _ = run(
            seed, FaultRates(error_before=0.1, lost_request=0.1, lost_reply=0.1, late=0.1, pause=0.1)
        )
        assert answers["done"] <= len(part.given) <= answers["done"] + answers["lost"]
        assert len(set(part.given)) == len(part.given)
        met += answers
    assert min(met[answer] for answer in ("done", "refused", "lost")) > 20


def test_a_crashed_server_answers_nothing() -> None:
    """The reply of a server that crashes in the middle of a call is lost; the caller lives."""
    scheduler = Scheduler(1)
    calls, part = scheduler.calls(), Server(scheduler)
    messages: list[str] = []

    def add() -> None:
        scheduler.crash("server")
        part.add("never")

    def ask() -> None:
        with pytest.raises(OutcomeUnknown, match="the reply to add was lost"):
            calls.call("add", add, server="server")
        messages.append("lost")

    scheduler.spawn("client", ask)
    scheduler.run()
    assert (part.given, messages) == ([], ["lost"])


def test_an_error_of_the_server_reaches_the_caller() -> None:
    """What the server raises, the caller gets."""

    def refuse() -> None:
        raise Conflict("no")

    assert _raised(refuse) == ["Conflict"]


def _raised(perform: Callable[[], None]) -> list[str]:
    scheduler, raised = Scheduler(1), list[str]()

    def ask() -> None:
        try:
            ScheduledCalls(scheduler, faults=FaultRates()).call("refuse", perform, server="server")
        except Conflict as error:
            raised.append(type(error).__name__)

    scheduler.spawn("client", ask)
    scheduler.run()
    return raised


def test_the_example_is_right() -> None:
    """The docstring's example runs as written."""
    result = doctest.testmod(scheduled_calls)
    assert result.attempted > 0
    assert result.failed == 0
