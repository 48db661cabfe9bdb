"""Retries, bounds, paths, URLs and metrics of the port, without any server."""

from __future__ import annotations

import pickle
import random
import threading
from collections.abc import Callable
from typing import Any

import pytest

from lakebed import metrics
from lakebed.errors import AlreadyExists, InvalidRequest, LakebedError, OutcomeUnknown, Unavailable
from lakebed.objects import StoreLimits, open_store
from lakebed.objects.accounting import AccountedStore, coalesce
from lakebed.objects.create_once import TRIES_MAX, create_once
from lakebed.objects.memory import MemoryDriver
from lakebed.objects.path import parse_url
from lakebed.objects.probe import probe_create_only
from lakebed.runtime import Environment
from lakebed.testing import Fault, FaultyStore, ManualClock, SimulatedRuntime
from lakebed.testing.actor_loop import ActorLoop
from worlds.request_prices import ProfiledStore, StoreProfile, bill


class Flaky(MemoryDriver):
    """A driver whose requests fail as the test says, before they have an effect."""

    errors: list[LakebedError]

    def _fail(self) -> None:
        if self.errors:
            raise self.errors.pop(0)

    def get(self, path: str, byte_range: Any) -> Any:
        """GET, or fail."""
        self._fail()
        return super().get(path, byte_range)

    def put(self, path: str, body: memoryview, **settings: Any) -> None:
        """PUT, or fail."""
        self._fail()
        super().put(path, body, **settings)

    def list_pages(self, *args: Any) -> Any:
        """LIST, failing before each page while errors are left."""
        for page in super().list_pages(*args):
            self._fail()
            yield page


def flaky(errors: list[LakebedError], clock: ManualClock, **limits: int) -> AccountedStore:
    """A store over a driver that fails."""
    driver = Flaky(f"flaky-{random.random()}", prefix="", clock=clock)
    driver.errors = errors
    return AccountedStore(
        driver, environment=Environment(clock=clock, rng=random.Random(1)), limits=StoreLimits(**limits)
    )


def test_what_may_be_repeated_is_repeated_after_a_wait() -> None:
    """Two failures of a read are two retries, counted, after waits that the injected clock makes."""
    clock = ManualClock()
    store = flaky([], clock)
    store.put("a", b"1")
    store._driver.errors = [Unavailable("no"), Unavailable("no")]  # type: ignore[attr-defined]
    with store.count() as counts:
        assert bytes(store.get("a")) == b"1"
    assert (counts.get, counts.retries, counts.errors) == (3, 2, 0)
    assert 0 < clock.monotonic_s() <= 0.15


def test_waits_double_up_to_their_bound() -> None:
    """The longest that chance allows."""
    clock = ManualClock()
    rng = random.Random(1)
    rng.random = lambda: 1.0  # type: ignore[method-assign]
    driver = Flaky(f"flaky-{random.random()}", prefix="", clock=clock)
    driver.errors = [Unavailable("no")] * 6
    limits = StoreLimits(retry_wait_first_ms=50, retry_wait_max_ms=350, retry_count_max=5)
    store = AccountedStore(driver, environment=Environment(clock=clock, rng=rng), limits=limits)
    with pytest.raises(Unavailable):
        store.get("a")
    assert clock.monotonic_s() == pytest.approx(0.05 + 0.1 + 0.2 + 0.35 + 0.35, rel=1e-6)


def test_retries_end() -> None:
    """After the limit the error is the caller's, and counted."""
    store = flaky([Unavailable("no")] * 9, ManualClock(), retry_count_max=3)
    with store.count() as counts, pytest.raises(Unavailable):
        store.get("a")
    assert (counts.get, counts.retries, counts.errors) == (4, 3, 1)


def test_a_listing_goes_on_where_it_failed() -> None:
    """A page that fails is asked again, and no name is lost or shown twice."""
    store = flaky([], ManualClock(), list_page_count=10)
    for number in range(35):
        store.put(f"{number:02d}", b"")
    driver: Any = store._driver
    driver.errors = [Unavailable("no")]
    names = store.list()
    seen = [next(names).path for _ in range(10)]
    driver.errors = [Unavailable("no"), Unavailable("no")]
    seen += [meta.path for meta in names]
    assert seen == [f"{number:02d}" for number in range(35)]
    others = store.list_paths()
    seen = [next(others) for _ in range(10)]
    driver.errors = [Unavailable("no")]
    assert seen + list(others) == [f"{number:02d}" for number in range(35)]


def test_an_unclear_creation_is_not_repeated() -> None:
    """A retry could meet our own object and call it another's: the caller has to decide."""
    store = flaky([OutcomeUnknown("?")], ManualClock())
    with store.count() as counts, pytest.raises(OutcomeUnknown):
        store.put("a", b"1", create_only=True)
    assert counts.put == 1
    store = flaky([OutcomeUnknown("?")], ManualClock())
    store.put("a", b"1")  # replacing may be repeated


@pytest.mark.parametrize("fault", [Fault.ERROR_BEFORE, Fault.LOST_REQUEST, Fault.LOST_REPLY])
def test_create_once_resolves_every_reply(fault: Fault) -> None:
    """Whatever happened to the first tries, the object is there once, and is ours."""
    clock = ManualClock()
    store = FaultyStore(open_store(f"memory://once-{fault.name}"), faults={0: fault, 1: fault})
    environment = Environment(clock=clock, rng=random.Random(1))
    create_once(store, "a", b"ours", environment=environment)
    assert bytes(store.get("a")) == b"ours"
    with pytest.raises(AlreadyExists):
        create_once(store, "a", b"theirs", environment=environment)
    create_once(store, "a", b"ours", environment=environment)


def test_create_once_gives_up_as_unknown() -> None:
    """A store that never answers ends as `OutcomeUnknown`, after bounded waiting."""
    clock = ManualClock()
    store = FaultyStore(open_store("memory://silent"), faults=lambda index, call: Fault.LOST_REQUEST)
    with pytest.raises(OutcomeUnknown):
        create_once(store, "a", b"1", environment=Environment(clock=clock, rng=random.Random(1)))
    assert store.call_count == TRIES_MAX
    assert clock.monotonic_s() < 60


def test_a_store_that_ignores_create_only_is_refused() -> None:
    """The probe finds it, says what is wrong, and leaves nothing."""
    inner = open_store("memory://ignorant")

    class Ignorant:
        root_url = "memory://ignorant"
        delete = inner.delete

        def put(self, path: str, body: Any, **settings: Any) -> None:
            inner.put(path, body)

    with pytest.raises(InvalidRequest, match="create-only"):
        probe_create_only(Ignorant())  # type: ignore[arg-type]
    assert list(inner.list()) == []


def test_requests_and_bytes_under_way_are_bounded() -> None:
    """Of many callers of a remote store, only so many are inside at once; a body larger than the bound goes alone."""
    loop = ActorLoop(3)
    inside: list[int] = [0, 0]

    class Remote(MemoryDriver):
        is_remote = True
        range_gap_bytes_max = 1 << 30

        def put(self, path: str, body: memoryview, **settings: Any) -> None:
            inside[0] += 1
            inside[1] = max(inside)
            for _ in range(20):  # long enough for others to come
                loop.switch("inside")
            super().put(path, body, **settings)
            inside[0] -= 1

    def busiest(**limits: int) -> int:
        inside[:] = [0, 0]
        clock = ManualClock()
        store = AccountedStore(
            Remote("bounded", prefix="", clock=clock),
            environment=Environment(clock=clock, rng=random.Random(1), runtime=SimulatedRuntime(loop)),
            limits=StoreLimits(**limits),
        )
        for number in range(8):
            loop.spawn(f"{limits} {number}", lambda number=number: store.put(str(number), bytes(100)))
        loop.run()
        return inside[1]

    assert busiest(request_concurrency_max=3) == 3
    assert busiest(inflight_bytes_max=250) == 2
    assert busiest(inflight_bytes_max=10) == 1


def test_objects_that_are_put_together_are_under_way_together() -> None:
    """Each of three requests to a remote store waits for the other two."""
    others = threading.Barrier(3)

    class Remote(MemoryDriver):
        is_remote = True
        range_gap_bytes_max = 1 << 30

        def put(self, path: str, body: memoryview, **settings: Any) -> None:
            others.wait(60)
            super().put(path, body, **settings)

    driver = Remote("together", prefix="", clock=ManualClock())
    store = AccountedStore(driver, environment=Environment(), limits=StoreLimits())
    with store.count() as requests:
        store.sub("a").put_each([(name, name.encode()) for name in "123"])
    assert {meta.path: bytes(store.get(meta.path)) for meta in store.list()} == {f"a/{n}": n.encode() for n in "123"}
    assert requests.put == 3
    others.abort()
    with pytest.raises(threading.BrokenBarrierError):
        store.put_each([("b", b""), ("c", b"")])


@pytest.mark.parametrize("limit", ["request_concurrency_max", "list_page_count", "retry_count_max"])
def test_impossible_limits_are_refused(limit: str) -> None:
    """A limit that would let nothing through is named."""
    with pytest.raises(InvalidRequest, match=limit):
        StoreLimits(**{limit: -1})


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("/a/b/", "file:///a/b"),
        ("file:///a//b", "file:///a/b"),
        ("file:///with space/100%", "file:///with space/100%"),
        ("memory://m", "memory://m"),
        ("s3://bucket/", "s3://bucket"),
        ("s3a://bucket/x/y/", "s3://bucket/x/y"),
        ("gs://bucket/x", "gs://bucket/x"),
        ("az://container/x", "az://container/x"),
    ],
)
def test_urls_come_back(url: str, shown: str) -> None:
    """A store's URL opens the same store."""
    assert str(parse_url(url)) == shown
    assert str(parse_url(shown)) == shown


@pytest.mark.parametrize(
    "url",
    ["", "ftp://x", "s3://", "memory://", "s3://key:secret@bucket/x", "s3://bucket/../x", "file://host/x", "a\x00"],
)
def test_wrong_urls_are_one_sentence(url: str) -> None:
    """What is wrong, and never a secret."""
    with pytest.raises(InvalidRequest) as caught:
        open_store(url)
    assert "secret" not in str(caught.value)
    assert caught.value.kind in ("invalid_url", "invalid_path")


def test_memory_is_not_sent_to_other_processes() -> None:
    """Pickling a memory store says why not."""
    with pytest.raises(InvalidRequest, match="process"):
        pickle.dumps(open_store("memory://here").sub("x"))


def test_local_stores_take_no_options(tmp_path: Any) -> None:
    """An unused option is a mistake."""
    with pytest.raises(InvalidRequest, match="aws_region"):
        open_store(tmp_path, storage_options={"aws_region": "x"})


def test_near_ranges_are_joined() -> None:
    """The fewest ranges that cover all, in order."""
    assert coalesce([(50, 60), (0, 10), (12, 20), (5, 11)], gap_bytes_max=2) == [(0, 20), (50, 60)]
    assert coalesce([(0, 1), (2, 3)], gap_bytes_max=0) == [(0, 1), (2, 3)]
    assert coalesce([(0, 100), (10, 20)], gap_bytes_max=0) == [(0, 100)]


def test_a_profile_shows_requests_as_time_and_money() -> None:
    """20 ms a request on the clock, and the price of each kind."""
    clock = ManualClock()
    profile = StoreProfile(request_ms=20, bytes_per_second=1e6, price_per_thousand=(("put", 5.0), ("get", 0.4)))
    store = ProfiledStore(open_store("memory://profiled"), clock=clock, profile=profile).sub("x")
    with store.count() as counts:
        store.put("a", bytes(500_000))
        store.get("a", byte_range=(0, 1000))
        assert [meta.path for meta in store.list()] == ["a"]
    assert clock.monotonic_s() == pytest.approx(3 * 0.02 + 0.501)
    due = bill(counts, profile=profile)
    assert (due.requests, due.seconds) == (3, pytest.approx(0.561))
    assert due.dollars == pytest.approx(0.0054)


def test_metrics_are_prometheus_text(make_registry: Callable[[], metrics.Registry]) -> None:
    """Counters and cumulative histograms, escaped and in order."""
    registry = make_registry()
    counter = registry.counter("b_total", help_text="Bs.", label_names=("x",))
    counter.add(2, 'quo"te')
    counter.add(0.5, "a")
    histogram = registry.histogram("a_seconds", help_text="As.")
    histogram.observe(0.0002)
    histogram.observe(100)
    text = registry.render().splitlines()
    assert text[:2] == ["# HELP a_seconds As.", "# TYPE a_seconds histogram"]
    assert 'a_seconds_bucket{le="0.0001"} 0' in text
    assert 'a_seconds_bucket{le="0.0005"} 1' in text
    assert 'a_seconds_bucket{le="+Inf"} 2' in text
    assert "a_seconds_count 2" in text
    assert text[-2:] == ['b_total{x="a"} 0.5', 'b_total{x="quo\\"te"} 2']
    assert registry.counter("b_total", help_text="") is counter
    with pytest.raises(TypeError):
        registry.histogram("b_total", help_text="")


@pytest.fixture
def make_registry() -> Callable[[], metrics.Registry]:
    """A registry of the test's own."""
    return metrics.Registry


def test_errors_are_exported() -> None:
    """A call that the store did not answer counts once, by store and kind, after its retries."""
    store = flaky([Unavailable("no")] * 20, ManualClock())
    counter = metrics.default_registry.counter("lakebed_store_errors_total", help_text="")
    before = counter.value("memory", "get")
    with pytest.raises(Unavailable):
        store.get("a")
    assert counter.value("memory", "get") >= before + 1


def test_every_store_counts_into_the_process() -> None:
    """Requests of all stores are exported together, by kind."""
    counter = metrics.default_registry.counter("lakebed_store_requests_total", help_text="")
    before = counter.value("memory", "put")
    store = open_store("memory://counted")
    for _ in range(100):
        store.put("a", b"1")
    assert counter.value("memory", "put") >= before + 100  # threads of other tests may put a few at the same time
    assert 'lakebed_store_requests_total{store="memory",kind="put"}' in metrics.render()
