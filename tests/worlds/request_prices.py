"""The cost of requests on a remote store: time by the injected clock, and money by a price list.

Invariants: time passes on the injected clock, so a benchmark with a manual clock takes no time and still shows it;
requests of parallel calls are added up as if made one after another, unless the clock itself runs in parallel.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, TypeVar

from lakebed.clock import Clock
from lakebed.objects.port import ObjectStore, RequestCounts
from lakebed.testing.wrapper import Call, StoreWrapper

R = TypeVar("R")


@dataclass(frozen=True, slots=True)
class StoreProfile:
    """How long a request takes and what a thousand of each kind cost."""

    request_ms: float = 20.0
    """Time to the first byte of every request, in milliseconds."""
    bytes_per_second: float = 80e6
    """Transfer of one connection."""
    price_per_thousand: tuple[tuple[str, float], ...] = (
        ("get", 0.0004),
        ("head", 0.0004),
        ("put", 0.005),
        ("list", 0.005),
        ("copy", 0.005),
        ("delete", 0.0),
    )
    """Price of a thousand requests by kind, in US dollars."""


S3_STANDARD: Final = StoreProfile()
"""20 ms a request, and the public list price of a large vendor's standard class; transfer inside a region is free."""


@dataclass(frozen=True, slots=True)
class Bill:
    """Time and price of some requests."""

    requests: int
    seconds: float
    """One after another, on one connection."""
    dollars: float

    def __str__(self) -> str:
        """Such as ``8 requests, 0.16 s, $0.000021``."""
        return f"{self.requests} requests, {self.seconds:.2f} s, ${self.dollars:.6f}"


def bill(counts: RequestCounts, *, profile: StoreProfile = S3_STANDARD) -> Bill:
    """Compute time and price of counted requests."""
    transferred_s = (counts.bytes_read + counts.bytes_written) / profile.bytes_per_second
    dollars = sum(getattr(counts, kind) * price / 1000 for kind, price in profile.price_per_thousand)
    return Bill(counts.total, counts.total * profile.request_ms / 1000 + transferred_s, dollars)


class ProfiledStore(StoreWrapper):
    """A store which sleeps on the injected clock for as long as each request would take.

    Args:
        inner: the store, usually memory or a local folder without durability.
        clock: sleeps: a manual clock only counts the time, the machine's clock really waits.
        profile: time and prices.
    """

    def __init__(self, inner: ObjectStore, *, clock: Clock, profile: StoreProfile = S3_STANDARD) -> None:
        super().__init__(inner)
        self._clock = clock
        self._profile = profile

    def intercept(self, call: Call, perform: Callable[[], R]) -> R:
        """Make the call, and sleep."""
        with self._inner.count() as counts:
            try:
                return perform()
            finally:
                self._clock.sleep(bill(counts, profile=self._profile).seconds)
