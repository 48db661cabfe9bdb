"""The limits of a store: which values are taken, and what the defaults do."""

from __future__ import annotations

import random
import uuid
from typing import Any, Final

import pytest

from lakebed.errors import InvalidRequest, Unavailable
from lakebed.objects import StoreLimits, open_store
from lakebed.objects.accounting import AccountedStore
from lakebed.objects.memory import MemoryDriver
from lakebed.runtime import Environment
from lakebed.testing import ManualClock
from worlds.errors import raises

MIB: Final = 1 << 20
LEAST: Final = {
    "request_concurrency_max": 1,
    "inflight_bytes_max": 1,
    "get_bytes_assumed": 1,
    "upload_part_bytes": 5 * MIB,
    "request_timeout_ms": 1,
    "connect_timeout_ms": 1,
    "retry_count_max": 0,
    "retry_wait_first_ms": 0,
    "retry_wait_max_ms": 0,
    "coalesce_gap_bytes_max": 0,
    "list_page_count": 1,
    "folder_memory_count_max": 1,
}


class Silent(MemoryDriver):
    """A store that answers no request."""

    def get(self, path: str, byte_range: Any) -> Any:
        """No answer."""
        raise Unavailable("no answer")


@pytest.mark.parametrize("limit", LEAST)
def test_each_limit_has_a_least_value(limit: str) -> None:
    """That is taken; one less, a fraction and a text are refused by the limit's name."""
    assert getattr(StoreLimits(**{limit: LEAST[limit]}), limit) == LEAST[limit]
    for wrong in (LEAST[limit] - 1, -1, 2.5, "9"):
        settings: dict[str, Any] = {limit: wrong}
        with raises(InvalidRequest, "invalid_limit", limit=limit):
            StoreLimits(**settings)


def test_a_store_that_does_not_answer_is_asked_nine_times() -> None:
    """In eleven seconds, of the longest waits that chance allows; none of them is longer than five seconds."""
    clock, rng = ManualClock(), random.Random(1)
    rng.random = lambda: 1.0  # type: ignore[method-assign]
    driver = Silent(uuid.uuid4().hex, prefix="", clock=clock)
    store = AccountedStore(driver, environment=Environment(clock=clock, rng=rng), limits=StoreLimits())
    with store.count() as counts, pytest.raises(Unavailable):
        store.get("a")
    assert counts.get == 9
    assert clock.monotonic_s() == pytest.approx(0.05 + 0.1 + 0.2 + 0.4 + 0.8 + 1.6 + 3.2 + 5)


@pytest.mark.parametrize("count", [0, 1, 999, 1000, 1001, 2000])
def test_a_page_has_a_thousand_names(count: int) -> None:
    """A listing costs a request for each thousand, and one where there is nothing."""
    store = open_store(f"memory://{uuid.uuid4()}")
    for number in range(count):
        store.put(f"{number:04d}", b"")
    for names in (lambda: [meta.path for meta in store.list()], lambda: list(store.list_paths())):
        with store.count() as counts:
            assert names() == [f"{number:04d}" for number in range(count)]
        assert counts.list in {max(1, -(-count // 1000)), 1 + count // 1000}


def test_a_stream_comes_in_chunks_of_eight_mebibytes() -> None:
    """So a large object takes little memory, and few requests."""
    store = open_store(f"memory://{uuid.uuid4()}")
    store.put("a", bytes(20 * MIB))
    assert [memoryview(chunk).nbytes // MIB for chunk in store.get_stream("a")] == [8, 8, 4]
