"""Retries: the attempts of one call, with pauses between them, until a deadline or a number of attempts is reached.

Owns: `Pauses`, which decides how long each pause is, and `Backoff`, which decides whether another attempt begins and
remembers why the last one failed. Time comes from the injected clock and randomness from the injected generator, so a
simulation can repeat a run.

Invariants: the first attempt begins at once. No attempt begins after the deadline: a pause that would go beyond the
deadline is cut at it, and if the process stood still during a pause until after the deadline, no attempt follows. Apart
from that case, an attempt follows each pause. A pause takes one number from the generator, and none without jitter.

Does not know: what is attempted, and which errors are worth a retry. The caller catches only these errors, and decides
what to raise after the last one.
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
"""After so many doublings a pause exceeds every bound."""
_NEVER_S: Final = math.inf
_LATE_S: Final = 1.0
"""How long after the deadline a pause may end so that a last attempt still follows; a busy machine wakes threads late.

There is a limit because the means that make it harmless to repeat an attempt, such as an id that the other side
remembers, hold for the time of the retries and not forever.
"""


@dataclass(frozen=True, slots=True)
class Pauses:
    """The pauses between the attempts of a call. Each is twice as long as the one before, up to a bound.

    Attributes:
        first_s: length of the first pause, in seconds.
        max_s: length of the longest pause, in seconds.
        jitter: the random share of a pause, so that clients that lost the same server do not all return at the same
            moments. With 0 each pause has the length of its bound, with 0.5 a length from half of the bound to the
            bound, with 1 a length from zero to the bound.
    """

    first_s: float
    max_s: float
    jitter: float = 0.0

    def bound_s(self, count: int) -> float:
        """Return the longest length of the pause that follows `count` others, in seconds."""
        return min(self.max_s, self.first_s * 2.0 ** min(count, _DOUBLINGS_MAX))

    def draw_s(self, count: int, rng: random.Random) -> float:
        """Draw the length of the pause that follows `count` others, in seconds, with its jitter."""
        bound_s = self.bound_s(count)
        return bound_s * (1.0 - self.jitter + self.jitter * rng.random()) if self.jitter else bound_s


class Backoff:
    """The attempts of one call, as a loop. Not thread-safe.

    Loops over the same `Backoff` may be nested. The inner loop begins with an attempt at once, and shares the deadline,
    the number of attempts and the growth of the pauses with the outer one.

    Args:
        retry_s: for how long new attempts may begin, in seconds from now; None: without a deadline.
        attempts_max: most attempts; None: without a limit.

    Attributes:
        pauses: lengths of the next pauses; the caller may set others.
        deadline_s: no attempt begins later, in seconds of the clock's `monotonic_s`; infinite without a deadline.
        attempts_max: how many attempts may begin; the caller may set another number.
        pause_count: pauses so far, which is the number of retries.
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
        """Iterate over the attempts; each item is the number of retries before it. End when no attempt may begin."""
        yield self.pause_count
        while self.pause():
            yield self.pause_count

    @property
    def reason(self) -> LakebedError:
        """Why the last attempt failed. It is there after the loop if the caller noted each failure."""
        assert self._reason is not None, "an attempt failed, and its error was not noted"
        return self._reason

    def note(self, reason: LakebedError) -> None:
        """Remember why an attempt failed."""
        self._reason = reason
        if isinstance(reason, OutcomeUnknown):
            self.unclear = reason

    def skip_pause(self) -> None:
        """Let the next attempt begin without a pause, because its request differs from that of the last attempt."""
        self._skips_pause = True

    def renew(self) -> None:
        """Begin anew after the call has made progress: with all time and all attempts, and with short pauses."""
        if self._retry_s is not None:
            self.deadline_s = self._environment.clock.monotonic_s() + self._retry_s
        self.pause_count = 0
        self.unclear = None

    def pause(self) -> bool:
        """Wait before another attempt. Return False at once if no time or no attempt is left.

        Also return False if the process stood still while it waited, until long after the deadline.
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
