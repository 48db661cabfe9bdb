"""A store that fails on purpose: before the effect, after it, slowly, late, or for good.

Owns: the kinds of faults, and the store that carries them out. A `FaultyStore` is one actor's access to a store that
other actors access in other ways. When it crashes, only that actor is gone.

Invariants: only the call and its index decide which call fails, so a run can be repeated. A crashed store never has an
effect again, whatever the ``finally`` blocks of its user attempt.
"""

from __future__ import annotations

import enum
import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TypeVar

from lakebed.clock import Clock
from lakebed.errors import LakebedError, OutcomeUnknown, Unavailable
from lakebed.objects.port import ObjectStore
from lakebed.testing.wrapper import Call, StoreWrapper

R = TypeVar("R")


class Crashed(BaseException):  # a state of the actor, not an error to handle
    """The process that made the call is gone. This is no `Exception`, so that the code under test does not catch it."""


class Fault(enum.Enum):
    """What goes wrong with one call."""

    ERROR_BEFORE = "the store answers that it cannot now; no effect"
    LOST_REQUEST = "no answer, and no effect; the caller cannot know"
    LOST_REPLY = "no answer, but the effect is there"
    LATE = "no answer; a change takes effect later, when `land` is called"
    SLOW = "the call takes `slow_s` seconds"
    CRASH_BEFORE = "the caller is gone before the call has an effect"
    CRASH_AFTER = "the caller is gone after the call had its effect"
    CRASH_LATE = "the caller is gone, and its change lands when `land` is called"


_CRASHES = {Fault.CRASH_BEFORE, Fault.CRASH_AFTER, Fault.CRASH_LATE}


def lost(call: Call) -> LakebedError:
    """Return the error that the port raises if a reply does not arrive."""
    if call.kind == "put" and call.create_only:
        return OutcomeUnknown(f"the reply to {call} was lost", kind="outcome_unknown", path=call.path)
    return Unavailable(f"no answer to {call}", path=call.path)


def random_faults(rng: random.Random, rates: Mapping[Fault, float]) -> Callable[[int, Call], Fault | None]:
    """Return a function for `FaultyStore` that draws a fault for each call, by the probability of each fault."""
    kinds = sorted(rates, key=lambda fault: fault.name)

    def decide(index: int, call: Call) -> Fault | None:
        draw = rng.random()
        for fault in kinds:
            draw -= rates[fault]
            if draw < 0:
                return fault
        return None

    return decide


@dataclass(slots=True)
class _State:
    """The state that all views of one faulty store share."""

    call_count: int = 0
    is_crashed: bool = False
    late: list[Callable[[], object]] = field(default_factory=list)
    met: list[tuple[int, Call, Fault]] = field(default_factory=list)


class FaultyStore(StoreWrapper):
    """Carries out faults.

    Args:
        faults: fault by call index (counted from 0 over all views), or a function of index and call.
        clock: where slow calls spend their time; needed for `Fault.SLOW` only.
        slow_s: how long a slow call takes.

    Example, a commit whose reply is lost:
        >>> from lakebed.objects import open_store
        >>> store = FaultyStore(open_store("memory://faulty"), faults={0: Fault.LOST_REPLY})
        >>> try:
        ...     store.put("a", b"1", create_only=True)
        ... except OutcomeUnknown:
        ...     print(bytes(store.get("a")))
        b'1'
    """

    def __init__(
        self,
        inner: ObjectStore,
        *,
        faults: Mapping[int, Fault] | Callable[[int, Call], Fault | None],
        clock: Clock | None = None,
        slow_s: float = 10.0,
        page_count: int = 1000,
    ) -> None:
        super().__init__(inner, page_count=page_count)
        self._decide = faults if callable(faults) else (lambda index, call: faults.get(index))
        self._clock = clock
        self._slow_s = slow_s
        self._state = _State()

    @property
    def call_count(self) -> int:
        """The number of calls so far, including those that failed."""
        return self._state.call_count

    @property
    def is_crashed(self) -> bool:
        """Whether `crash` was called, or a fault has crashed the process."""
        return self._state.is_crashed

    @property
    def met(self) -> list[tuple[int, Call, Fault]]:
        """The faults that happened, in order. A test should assert that the fault which it is about did happen."""
        return self._state.met

    def crash(self) -> None:
        """Make every later call raise `Crashed`, without an effect."""
        self._state.is_crashed = True

    def land(self) -> int:
        """Let late changes take effect, in the order of their calls. Return their number. Their errors are dropped."""
        late, self._state.late = self._state.late, []
        for perform in late:
            try:
                perform()
            except LakebedError:
                continue  # such as AlreadyExists: no caller waits for this answer
        return len(late)

    def intercept(self, call: Call, perform: Callable[[], R]) -> R:
        state = self._state
        if state.is_crashed:
            raise Crashed(f"{call} after the crash")
        index = state.call_count
        state.call_count += 1
        fault = self._decide(index, call)
        if fault is None:
            return perform()
        state.met.append((index, call, fault))
        if fault is Fault.SLOW:
            assert self._clock is not None, "Fault.SLOW needs a clock"
            self._clock.sleep(self._slow_s)
            return perform()
        if fault is Fault.ERROR_BEFORE:
            raise Unavailable(f"the store cannot {call} now", path=call.path)
        if fault in (Fault.LATE, Fault.CRASH_LATE) and call.changes:
            state.late.append(perform)
        if fault in (Fault.LOST_REPLY, Fault.CRASH_AFTER):
            perform()
        if fault in _CRASHES:
            state.is_crashed = True
            raise Crashed(f"{fault.name} at call {index}: {call}")
        raise lost(call)
