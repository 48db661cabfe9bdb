"""Retries: which attempts begin, after which pauses, and what is known of the failures, by a manual clock."""

from __future__ import annotations

import random
from collections.abc import Iterable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lakebed.backoff import Backoff, Pauses
from lakebed.errors import OutcomeUnknown, Unavailable
from lakebed.runtime import Environment
from lakebed.testing import ManualClock


def environment(seed: int = 1) -> Environment:
    """One with a clock that moves by its sleeps."""
    return Environment(clock=ManualClock(), rng=random.Random(seed))


def times(backoff: Iterable[int], at: Environment, *, take_s: float = 0.0) -> list[float]:
    """When each attempt of a loop begins, if each takes `take_s`."""
    begun = []
    for _ in backoff:
        begun.append(at.clock.monotonic_s())
        at.clock.sleep(take_s)
    return begun


def test_pauses_double_up_to_their_bound() -> None:
    """Attempts begin at once, and then after 1, 2, 4, 5 and 5 seconds; after any number of pauses the bound holds."""
    at = environment()
    assert times(Backoff(at, Pauses(1.0, 5.0), attempts_max=6), at) == [0.0, 1.0, 3.0, 7.0, 12.0, 17.0]
    assert Pauses(1.0, 5.0).bound_s(10**9) == 5.0


@given(st.integers(0, 2**32), st.sampled_from([0.0, 0.5, 1.0]), st.integers(0, 12))
def test_jitter_takes_a_share_of_a_pause_away(seed: int, jitter: float, count: int) -> None:
    """A pause is at least its bound without the random share, and at most its bound; it takes one random number."""
    rng, other = random.Random(seed), random.Random(seed)
    pauses = Pauses(0.02, 4.0, jitter=jitter)
    bound_s = min(4.0, 0.02 * 2**count)
    assert bound_s * (1 - jitter) <= pauses.draw_s(count, rng) <= bound_s
    if jitter:
        other.random()
    assert rng.getstate() == other.getstate()


def test_no_attempt_begins_after_the_deadline() -> None:
    """The last pause ends at the deadline, where one attempt more begins; none does when the last one took longer."""
    at = environment()
    assert times(Backoff(at, Pauses(1.0, 8.0), retry_s=4.5), at) == [0.0, 1.0, 3.0, 4.5]
    at = environment()
    assert times(Backoff(at, Pauses(1.0, 8.0), retry_s=4.5), at, take_s=3.0) == [0.0, 4.0]
    at = environment()
    assert times(Backoff(at, Pauses(1.0, 8.0), retry_s=0.0), at) == [0.0]


class StoppedClock(ManualClock):
    """A clock of a process that stands still in one of its sleeps."""

    def __init__(self, *, stands_still_s: float, at_sleep: int) -> None:
        super().__init__()
        self._stands_still_s, self._at_sleep, self._sleeps = stands_still_s, at_sleep, 0

    def sleep(self, seconds: float) -> None:
        """Return later than asked, once."""
        super().sleep(seconds)
        self._sleeps += seconds > 0
        if seconds and self._sleeps == self._at_sleep:
            super().sleep(self._stands_still_s)


@pytest.mark.parametrize(
    ("stands_still_s", "begun"), [(0.5, [0, 1, 3.5, 4.5]), (1.5, [0, 1, 4.5]), (2.4, [0, 1, 5.4]), (3.0, [0, 1])]
)
def test_a_process_that_stood_still_begins_no_attempt_after_the_deadline(
    stands_still_s: float, begun: list[float]
) -> None:
    """It was stopped in a pause: an attempt begins in time or at most a second late, as on a busy machine."""
    at = Environment(clock=StoppedClock(stands_still_s=stands_still_s, at_sleep=2), rng=random.Random(1))
    assert times(Backoff(at, Pauses(1.0, 8.0), retry_s=4.5), at) == begun


def test_a_loop_inside_another_shares_its_limits() -> None:
    """Each begins with an attempt at once; pauses grow through both, and the deadline ends both."""
    at = environment()
    backoff = Backoff(at, Pauses(1.0, 8.0), retry_s=10.0)
    begun = []
    for outer in backoff:
        for inner in backoff:
            begun.append((outer, inner, at.clock.monotonic_s()))
            if inner == 2 and not outer:
                break
    assert begun == [(0, 0, 0.0), (0, 1, 1.0), (0, 2, 3.0), (3, 3, 7.0), (3, 4, 10.0)]


def test_an_attempt_for_something_else_begins_at_once() -> None:
    """`skip_pause` leaves out one pause, and no more."""
    at = environment()
    backoff = Backoff(at, Pauses(1.0, 8.0), attempts_max=3)
    begun = []
    for retry in backoff:
        if not begun:
            backoff.skip_pause()
        begun.append((retry, at.clock.monotonic_s()))
    assert begun == [(0, 0.0), (0, 0.0), (1, 1.0), (2, 3.0)]


def test_progress_renews_all_limits() -> None:
    """After `renew` the deadline is as far away as at the beginning, and the pauses are short again."""
    at = environment()
    backoff = Backoff(at, Pauses(1.0, 8.0), retry_s=4.0)
    begun = []
    for _ in backoff:
        begun.append(at.clock.monotonic_s())
        if at.clock.monotonic_s() == 3.0:
            backoff.note(OutcomeUnknown("lost"))
            backoff.renew()
            assert backoff.unclear is None
    assert begun == [0.0, 1.0, 3.0, 4.0, 6.0, 7.0]


def test_what_failed_is_known_after_the_loop() -> None:
    """The reason is the last failure; a failure that may have had an effect is remembered whatever follows."""
    at = environment()
    backoff = Backoff(at, Pauses(1.0, 1.0), attempts_max=3)
    failures = [Unavailable("first"), OutcomeUnknown("second"), Unavailable("third")]
    for retry in backoff:
        backoff.note(failures[retry])
    assert (backoff.reason, backoff.unclear, backoff.pause_count) == (failures[2], failures[1], 2)


def test_a_reason_that_was_not_noted_is_a_defect() -> None:
    """A caller that forgets to note a failure fails in its tests, and raises no empty error."""
    with pytest.raises(AssertionError, match="not noted"):
        _ = Backoff(environment(), Pauses(1.0, 1.0)).reason
