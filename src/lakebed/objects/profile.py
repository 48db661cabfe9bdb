"""The cost of requests on a remote store: time by the injected clock, and money by a price list.

Owns: the wrapper that gives any store the latency and the prices of an object store. Invariants: time passes on the
injected clock, so a benchmark with a manual clock takes no time and still shows it; requests of parallel calls are
added up as if made one after another, unless the clock itself runs in parallel.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Final, Self, TypeVar

from typing_extensions import Buffer

from lakebed.clock import Clock
from lakebed.objects.open import open_elsewhere
from lakebed.objects.port import STREAM_CHUNK_BYTES, ByteRange, Listing, ObjectMeta, ObjectStore, RequestCounts
from lakebed.objects.streaming import stream_ranges

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


class ProfiledStore(ObjectStore):
    """`ObjectStore` over another one, which sleeps on the injected clock for as long as each request would take.

    Args:
        inner: the store, usually memory or a local folder without durability.
        clock: sleeps: a manual clock only counts the time, the machine's clock really waits.
        profile: time and prices.
    """

    def __init__(self, inner: ObjectStore, *, clock: Clock, profile: StoreProfile = S3_STANDARD) -> None:
        self._inner = inner
        self._clock = clock
        self._profile = profile

    def _ask(self, request: Callable[[], R]) -> R:
        with self._inner.count() as counts:
            try:
                return request()
            finally:
                self._clock.sleep(bill(counts, profile=self._profile).seconds)

    @property
    def root_url(self) -> str:
        return self._inner.root_url

    @property
    def is_versioned(self) -> bool:
        return self._inner.is_versioned

    def get(self, path: str, *, byte_range: ByteRange | None = None) -> Buffer:
        return self._ask(lambda: self._inner.get(path, byte_range=byte_range))

    def get_ranges(self, path: str, ranges: Sequence[ByteRange]) -> list[Buffer]:
        return self._ask(lambda: self._inner.get_ranges(path, ranges))

    def head(self, path: str) -> ObjectMeta:
        return self._ask(lambda: self._inner.head(path))

    def put(self, path: str, body: Buffer, *, create_only: bool = False, durable: bool = True) -> None:
        self._ask(lambda: self._inner.put(path, body, create_only=create_only, durable=durable))

    def put_stream(
        self, path: str, chunks: Iterable[Buffer], *, create_only: bool = False, durable: bool = True
    ) -> int:
        return self._ask(lambda: self._inner.put_stream(path, chunks, create_only=create_only, durable=durable))

    def get_stream(
        self, path: str, *, byte_range: ByteRange | None = None, chunk_bytes: int = STREAM_CHUNK_BYTES
    ) -> Iterator[Buffer]:
        return stream_ranges(self, path, byte_range=byte_range, chunk_bytes=chunk_bytes)

    def list(self, prefix: str = "", *, start_after: str | None = None) -> Iterator[ObjectMeta]:
        names = self._inner.list(prefix, start_after=start_after)
        while (meta := self._ask(lambda: next(names, None))) is not None:
            yield meta

    def list_with_delimiter(self, prefix: str = "") -> Listing:
        return self._ask(lambda: self._inner.list_with_delimiter(prefix))

    def delete(self, paths: Iterable[str]) -> None:
        self._ask(lambda: self._inner.delete(paths))

    def copy(self, source: str, target: str, *, create_only: bool = False) -> None:
        self._ask(lambda: self._inner.copy(source, target, create_only=create_only))

    def sync(self, paths: Iterable[str]) -> None:
        self._ask(lambda: self._inner.sync(paths))

    def url(self, path: str) -> str:
        return self._inner.url(path)

    def signed_url(self, path: str, *, expires_in_s: int, method: str = "GET") -> str:
        return self._inner.signed_url(path, expires_in_s=expires_in_s, method=method)

    def sub(self, prefix: str) -> Self:
        """See `ObjectStore.sub`. The view takes as long as this store does."""
        return type(self)(self._inner.sub(prefix), clock=self._clock, profile=self._profile)

    def elsewhere(self, url: str) -> Self:
        """See `OpensElsewhere.elsewhere`. The other root takes as long as this store does."""
        return type(self)(open_elsewhere(self._inner, url), clock=self._clock, profile=self._profile)

    def count(self) -> AbstractContextManager[RequestCounts]:
        return self._inner.count()
