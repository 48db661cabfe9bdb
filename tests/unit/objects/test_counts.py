"""What a count says of every call: requests, bytes, seconds and errors, of a store and of a view of it."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from typing import Any, Final

import pytest

from lakebed.errors import AlreadyExists, InvalidRequest, LakebedError, NotFound, Unavailable
from lakebed.objects import StoreLimits
from lakebed.objects.accounting import AccountedStore
from lakebed.objects.memory import MemoryDriver
from lakebed.objects.port import ByteRange
from lakebed.runtime import Environment
from lakebed.testing import ManualClock

PART: Final = 5 << 20
LIMITS: Final = StoreLimits(retry_count_max=0, upload_part_bytes=PART, list_page_count=2)


class SlowUpload:
    """An upload of which each step takes a second, or fails."""

    request_count = 3

    def __init__(self, driver: SlowDriver, store: Callable[[bytes], None]) -> None:
        self.driver = driver
        self.store = store
        self.parts: list[bytes] = []

    def write(self, part: memoryview) -> None:
        """A second."""
        self.driver.take("write")
        self.parts.append(bytes(part))

    def finish(self) -> None:
        """A second."""
        self.driver.take("finish")
        self.store(b"".join(self.parts))

    def abandon(self) -> None:
        """A second."""
        self.driver.take("abandon")


class SlowDriver(MemoryDriver):
    """Memory of which each call takes a second, and those of some names fail."""

    delete_batch_count_max = 2

    def __init__(self, clock: ManualClock) -> None:
        super().__init__(uuid.uuid4().hex, prefix="", clock=clock)
        self.clock = clock
        self.failing: set[str] = set()

    def take(self, name: str) -> None:
        """A second, and an error if this call is to fail."""
        self.clock.advance(1)
        if name in self.failing:
            raise Unavailable("no answer")

    def get(self, path: str, byte_range: ByteRange | None) -> Any:
        """A second."""
        self.take("get")
        return super().get(path, byte_range)

    def head(self, path: str) -> Any:
        """A second."""
        self.take("head")
        return super().head(path)

    def put(self, path: str, body: memoryview, **settings: Any) -> None:
        """A second."""
        self.take("put")
        super().put(path, body, **settings)

    def open_upload(self, path: str, *, create_only: bool, durable: bool) -> Any:
        """A second, and one more for each of its steps."""
        self.take("open")
        put = super().put

        def store(body: bytes) -> None:
            put(path, memoryview(body), create_only=create_only, durable=durable)

        return SlowUpload(self, store)

    def list_pages(self, prefix: str, start_after: str | None, page_count: int) -> Iterator[Sequence[Any]]:
        """A second a page."""
        for page in super().list_pages(prefix, start_after, page_count):
            self.take("list")
            yield page

    def list_level(self, prefix: str) -> Any:
        """A second."""
        self.take("list")
        return super().list_level(prefix)

    def delete(self, paths: Sequence[str], *, durable: bool) -> None:
        """A second."""
        self.take("delete")
        super().delete(paths, durable=durable)

    def copy(self, source: str, target: str, **settings: Any) -> None:
        """A second."""
        self.take("copy")
        super().copy(source, target, **settings)


@pytest.fixture
def driver() -> SlowDriver:
    """An empty memory, slowly."""
    return SlowDriver(ManualClock())


@pytest.fixture
def store(driver: SlowDriver) -> AccountedStore:
    """A store of it."""
    return AccountedStore(driver, environment=Environment(clock=driver.clock), limits=LIMITS)


Act = Callable[[AccountedStore], object]
CALLS: dict[str, tuple[Act, dict[str, Any]]] = {
    "get": (lambda store: store.get("a"), {"get": 1, "bytes_read": 6, "seconds": {"get": 1}}),
    "a range": (lambda store: store.get("a", byte_range=(1, 3)), {"get": 1, "bytes_read": 2, "seconds": {"get": 1}}),
    "a range past the end": (
        lambda store: store.get("a", byte_range=(4, 99)),
        {"get": 1, "bytes_read": 2, "seconds": {"get": 1}},
    ),
    "two ranges": (
        lambda store: store.get_ranges("a", [(4, 6), (0, 1)]),
        {"get": 1, "bytes_read": 6, "seconds": {"get": 1}},
    ),
    "no range": (lambda store: store.get_ranges("a", []), {}),
    "what is not there": (lambda store: store.get("none"), {"get": 1, "seconds": {"get": 1}}),
    "head": (lambda store: store.head("a"), {"head": 1, "seconds": {"head": 1}}),
    "put": (lambda store: store.put("n", b"1234"), {"put": 1, "bytes_written": 4, "seconds": {"put": 1}}),
    "a put of what is there": (
        lambda store: store.put("a", b"1234", create_only=True),
        {"put": 1, "seconds": {"put": 1}},
    ),
    "a short stream": (
        lambda store: store.put_stream("n", [b"12", b"3"]),
        {"put": 1, "bytes_written": 3, "seconds": {"put": 1}},
    ),
    "a stream of one part": (
        lambda store: store.put_stream("n", [bytes(PART)]),
        {"put": 1, "bytes_written": PART, "seconds": {"put": 1}},
    ),
    "a stream of two parts": (
        lambda store: store.put_stream("n", [bytes(PART + 1)]),
        {"put": 3, "bytes_written": PART + 1, "seconds": {"put": 4}},
    ),
    "list": (lambda store: list(store.list()), {"list": 2, "seconds": {"list": 2}}),
    "paths": (lambda store: list(store.list_paths()), {"list": 2, "seconds": {"list": 2}}),
    "a level": (lambda store: store.list_with_delimiter(), {"list": 2, "seconds": {"list": 1}}),
    "nothing": (lambda store: list(store.list("none")), {"list": 1, "seconds": {"list": 1}}),
    "delete": (lambda store: store.delete(["a", "b", "none"]), {"delete": 2, "seconds": {"delete": 2}}),
    "delete nothing": (lambda store: store.delete([]), {}),
    "copy": (lambda store: store.copy("a", "n"), {"copy": 1, "seconds": {"copy": 1}}),
    "sync": (lambda store: store.sync(["a"]), {}),
    "a wrong path": (lambda store: store.get("../a"), {}),
}
NUMBERS: Final = ("get", "head", "put", "list", "delete", "copy", "errors", "retries", "bytes_read", "bytes_written")


@pytest.mark.parametrize("within", ["", "x/y"])
@pytest.mark.parametrize("name", CALLS)
def test_a_call_is_counted(store: AccountedStore, name: str, within: str) -> None:
    """Once, by what it cost; where its view lies inside of what is counted, and nowhere else."""
    act, expected = CALLS[name]
    view = store.sub(within)
    for path in ("a", "b", "c"):
        view.put(path, path.encode() * 6)
    with (
        store.count() as whole,
        view.count() as own,
        store.sub("x").count() as above,
        store.sub("x/yy").count() as neighbour,
        suppress(NotFound, AlreadyExists, InvalidRequest),
    ):
        act(view)
    counts = {field: getattr(own, field) for field in NUMBERS if getattr(own, field)}
    assert {**counts, **({"seconds": own.seconds} if own.seconds else {})} == expected
    assert whole == own
    assert (above == own) == bool(within or not expected)
    assert own.total == own.get + own.head + own.put + own.list + own.delete + own.copy
    assert (neighbour.total, neighbour.seconds) == (0, {})
    total = whole.total
    view.put("later", b"")
    assert whole.total == total, "a count ends with its block"


@pytest.mark.parametrize(
    ("failing", "act", "kind"),
    [
        ("get", lambda store: store.get("a"), "get"),
        ("head", lambda store: store.head("a"), "head"),
        ("put", lambda store: store.put("n", b"1234"), "put"),
        ("list", lambda store: list(store.list()), "list"),
        ("list", lambda store: store.list_with_delimiter(), "list"),
        ("delete", lambda store: store.delete(["a"]), "delete"),
        ("copy", lambda store: store.copy("a", "n"), "copy"),
        ("open", lambda store: store.put_stream("n", [bytes(PART + 1)]), "put"),
        ("write", lambda store: store.put_stream("n", [bytes(PART + 1)]), "put"),
        ("finish", lambda store: store.put_stream("n", [bytes(PART + 1)]), "put"),
    ],
)
def test_a_call_without_an_answer_is_an_error(
    store: AccountedStore, driver: SlowDriver, failing: str, act: Act, kind: str
) -> None:
    """It is counted as a request, its time too, and no byte of it; and what was there is there."""
    store.put("a", b"aaaaaa")
    driver.failing = {failing}
    with store.count() as counts, pytest.raises(Unavailable):
        act(store)
    assert (counts.errors, counts.bytes_read, counts.bytes_written, counts.retries) == (1, 0, 0, 0)
    assert getattr(counts, kind) == counts.total >= 1
    assert counts.seconds[kind] >= 1
    driver.failing = set()
    assert list(store.list_paths()) == ["a"]


def test_a_stream_that_its_maker_breaks_is_no_error_of_the_store(store: AccountedStore, driver: SlowDriver) -> None:
    """Nor one that cannot be abandoned; its maker's error is raised, and nothing is left."""

    def broken() -> Iterator[bytes]:
        yield bytes(PART + 1)
        raise RuntimeError("of its maker")

    for failing in (set[str](), {"abandon"}):
        driver.failing = failing
        with store.count() as counts, pytest.raises(RuntimeError, match="of its maker"):
            store.put_stream("n", broken())
        assert (counts.errors, counts.bytes_written, counts.put) == (0, 0, 3)
        assert list(store.list_paths()) == []


def test_a_wait_for_a_retry_is_part_of_the_call(driver: SlowDriver) -> None:
    """Its seconds are those from the first request to the answer; each try is a request."""
    limits = StoreLimits(retry_count_max=2)
    store = AccountedStore(driver, environment=Environment(clock=driver.clock), limits=limits)
    driver.failing = {"get"}
    before_s = driver.clock.monotonic_s()
    with store.count() as counts, pytest.raises(LakebedError):
        store.get("a")
    assert (counts.get, counts.retries, counts.errors) == (3, 2, 1)
    assert counts.seconds == {"get": pytest.approx(driver.clock.monotonic_s() - before_s)}
