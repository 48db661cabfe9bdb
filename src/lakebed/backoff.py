"""Retries: the attempts of one call, with pauses between them, until a deadline or a number of attempts is reached.

Owns: `Pauses`, how long each pause is, and `Backoff`, whether another attempt begins, and why the last one failed. Time
is the injected clock's and randomness the injected generator's, so a simulation repeats a run.

Invariants: the first attempt begins at once. No attempt begins after the deadline: a pause that would pass it ends at
it, and after one in which the process stood still none begins. No pause is made that no attempt follows. A pause takes
one number of the generator, and none without jitter.

Does not know: what is attempted, and which errors are worth a retry. The caller catches those and no others, and raises
what follows from the last one.
"""

from __future__ import annotations

import math
import random
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from lakebed.errors import LakebedError, OutcomeUnknown
from lakebed.runtime import Environment

_DOUBLINGS_MAX: Final = 64
"""More exceed every bound."""
_NEVER_S: Final = math.inf
_LATE_S: Final = 1.0
"""How long after the deadline a pause may end, on a busy machine, before a last attempt. What makes an attempt harmless
to repeat, such as an id that the other side remembers, holds for the time of the retries, and not for ever."""


@dataclass(frozen=True, slots=True)
class Pauses:
    """The pauses between the attempts of a call: each twice as long as the one before, up to a bound.

    Attributes:
        first_s: the first one, in seconds.
        max_s: the longest one, in seconds.
        jitter: the share of a pause that is random, so that clients that lost one server do not return in step: with 0
            each pause has its bound, with 0.5 from half of it to the whole, with 1 from nothing to the whole.
    """

    first_s: float
    max_s: float
    jitter: float = 0.0

    def bound_s(self, count: int) -> float:
        """The longest time of the pause after `count` others, in seconds."""
        return min(self.max_s, self.first_s * 2.0 ** min(count, _DOUBLINGS_MAX))

    def draw_s(self, count: int, rng: random.Random) -> float:
        """The time of the pause after `count` others, in seconds, with its jitter."""
        bound_s = self.bound_s(count)
        return bound_s * (1.0 - self.jitter + self.jitter * rng.random()) if self.jitter else bound_s


class Backoff:
    """The attempts of one call, as a loop. Not thread-safe.

    A loop inside another one over the same `Backoff` begins with an attempt at once, and shares the deadline, the
    number of attempts and the growth of the pauses.

    Args:
        retry_s: how long attempts may begin, in seconds from now; None: without a deadline.
        attempts_max: how many there are at most; None: without a limit.

    Attributes:
        pauses: of the pauses to come; the caller may set others.
        deadline_s: no attempt begins later, in seconds of the clock's `monotonic_s`; infinite without one.
        attempts_max: how many attempts may begin; the caller may set another number.
        pause_count: pauses made, which is the number of retries.
        unclear: the last failure that may have had an effect.

    Example::

        backoff = Backoff(environment, Pauses(0.02, 0.5, jitter=0.5), retry_s=30)
        for _ in backoff:
            try:
                return ask(server)
            except Unavailable as error:
                backoff.note(error)
        raise Unavailable(f"{server} did not answer for 30 s: start it, then try again.") from backoff.reason
    """

    __slots__ = (
        "_environment",
        "_reason",
        "_retry_s",
        "_skips_pause",
        "attempts_max",
        "deadline_s",
        "pause_count",
        "pauses",
        "unclear",
    )

    def __init__(
        self,
        environment: Environment,
        pauses: Pauses,
        *,
        retry_s: float | None = None,
        attempts_max: int | None = None,
    ) -> None:
        self._environment = environment
        self.pauses = pauses
        self.deadline_s = _NEVER_S if retry_s is None else environment.clock.monotonic_s() + retry_s
        self.attempts_max = attempts_max
        self.pause_count = 0
        self.unclear: OutcomeUnknown | None = None
        self._retry_s = retry_s
        self._skips_pause = False
        self._reason: LakebedError | None = None

    def __iter__(self) -> Iterator[int]:
        """The attempts: how many retries there were before each. It ends when no further attempt may begin."""
        yield self.pause_count
        while self.pause():
            yield self.pause_count

    @property
    def reason(self) -> LakebedError:
        """Why the last attempt failed. There is one after the loop, where the caller notes each failure."""
        assert self._reason is not None, "an attempt failed, and its error was not noted"
        return self._reason

    def note(self, reason: LakebedError) -> None:
        """Remember why an attempt failed."""
        self._reason = reason
        if isinstance(reason, OutcomeUnknown):
            self.unclear = reason

    def skip_pause(self) -> None:
        """Let the next attempt begin at once: it asks for something else than the last one did."""
        self._skips_pause = True

    def renew(self) -> None:
        """Begin anew, after the call has made progress: all time and attempts are left, and pauses are short again."""
        if self._retry_s is not None:
            self.deadline_s = self._environment.clock.monotonic_s() + self._retry_s
        self.pause_count = 0
        self.unclear = None

    def pause(self) -> bool:
        """Wait before another attempt. Return False, at once, when no time or no attempt is left.

        Return False also when the process stood still while it waited, until long after the deadline.
        """
        if self._skips_pause:
            self._skips_pause = False
            return True
        if self.attempts_max is not None and self.pause_count + 1 >= self.attempts_max:
            return False
        clock = self._environment.clock
        left_s = self.deadline_s - clock.monotonic_s()
        if left_s <= 0:
            return False
        clock.sleep(min(self.pauses.draw_s(self.pause_count, self._environment.rng), left_s))
        self.pause_count += 1
        return clock.monotonic_s() - self.deadline_s <= _LATE_S
