"""Streams through the object port: any size, whole or nothing, in bounded memory, on every kind of store."""

from __future__ import annotations

import sys
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from lakebed.errors import AlreadyExists, InvalidRequest, NotFound, OutcomeUnknown, Unavailable
from lakebed.objects import StoreLimits, open_store
from lakebed.objects.create_once import put_new
from lakebed.objects.limits import UPLOAD_PART_BYTES_MIN
from lakebed.testing import Crashed, Fault, FaultyStore, ManualClock, PowerLossStore, RecordingStore
from worlds.errors import raises
from worlds.request_prices import ProfiledStore
from worlds.scripts import run_script

PART = UPLOAD_PART_BYTES_MIN
SMALL_PARTS = StoreLimits(upload_part_bytes=PART)
FRAMES = {"s3": 2, "az": 1}
"""Requests of a multipart upload in addition to its parts."""


class Broken(Exception):
    """What a maker of chunks may raise."""


def blocks(size_bytes: int, chunk_bytes: int) -> Iterator[bytes]:
    """A body of numbered blocks, so that an exchange or a loss of chunks shows."""
    for start in range(0, size_bytes, chunk_bytes):
        yield (start // chunk_bytes).to_bytes(4, "big") * (min(chunk_bytes, size_bytes - start) // 4)


@pytest.mark.parametrize("size_bytes", [0, 4, PART - 4, PART, PART + 4, 3 * PART, 3 * PART + 400])
@pytest.mark.parametrize("chunk_bytes", [400_000, 2 * PART])
def test_a_stream_comes_back_whole(opened: Callable[..., Any], size_bytes: int, chunk_bytes: int) -> None:
    """Any size in any chunks is the same object as one put of it; a small one costs one PUT, a large one its parts."""
    store = opened(limits=SMALL_PARTS)
    body = b"".join(blocks(size_bytes, chunk_bytes))
    with store.count() as requests:
        assert store.put_stream("folder/a", blocks(size_bytes, chunk_bytes)) == size_bytes
    frames = FRAMES.get(store.root_url.partition(":")[0])
    expected = 1 if size_bytes <= PART or frames is None else -(-size_bytes // PART) + frames
    assert (requests.put, requests.bytes_written, requests.total) == (expected, size_bytes, expected)
    assert memoryview(store.get("folder/a")) == body
    assert store.head("folder/a").size_bytes == size_bytes
    assert b"".join(bytes(chunk) for chunk in store.get_stream("folder/a", chunk_bytes=700_000)) == body


def test_a_stream_replaces_what_is_there(opened: Callable[..., Any]) -> None:
    """Unless it is create-only: the name shows the old body until the new one is whole, then the new one."""
    store = opened(limits=SMALL_PARTS)
    store.put("a", b"old")

    def looking() -> Iterator[bytes]:
        for block in blocks(2 * PART, PART // 2):
            assert bytes(store.get("a")) == b"old"
            assert [meta.path for meta in store.list()] == ["a"]
            yield block

    store.put_stream("a", looking())
    assert store.head("a").size_bytes == 2 * PART


@pytest.mark.parametrize("error", [Broken("the maker broke"), FileNotFoundError("of the maker"), KeyboardInterrupt()])
@pytest.mark.parametrize("good_bytes", [0, 1000, 2 * PART])
def test_a_broken_iterator_leaves_nothing(
    opened: Callable[..., Any], error: BaseException, good_bytes: int, tmp_path: Path
) -> None:
    """An error of the iterator comes out as it is, and leaves no object, no unfinished file, no counted error."""
    store = opened(limits=SMALL_PARTS)
    store.put("kept", b"before")

    def breaking() -> Iterator[bytes]:
        yield from blocks(good_bytes, 1000_000)
        raise error

    with store.count() as requests:
        for path in ("new/a", "kept"):
            with pytest.raises(type(error)) as caught:
                store.put_stream(path, breaking())
            assert caught.value is error
    assert [meta.path for meta in store.list()] == ["kept"]
    assert bytes(store.get("kept")) == b"before"
    assert (requests.errors, requests.bytes_written) == (0, 0)
    assert [path.name for path in tmp_path.rglob("*") if path.is_file()] in ([], ["kept"])


def test_an_abandoned_upload_is_aborted(s3_server: Any) -> None:
    """The parts of a broken upload are deleted: invisible parts do not stay to be paid for."""
    store = open_store(s3_server.url(), storage_options=s3_server.options, limits=SMALL_PARTS)

    def breaking() -> Iterator[bytes]:
        yield from blocks(3 * PART, PART)
        raise Broken

    name = f"broken-{uuid.uuid4().hex}"
    with pytest.raises(Broken):
        store.put_stream(name, breaking())
    lines = [line for line in s3_server.request_lines() if name in line]
    assert any("DELETE" in line and "uploadId" in line for line in lines)
    assert not any("POST" in line and "uploadId" in line for line in lines)


def test_chunks_may_be_any_buffers_that_are_reused(opened: Callable[..., Any]) -> None:
    """A chunk is the maker's again when the next one is asked for; what is not bytes is refused and leaves nothing."""
    store = opened(limits=SMALL_PARTS)
    buffer = bytearray(1_000_000)

    def reusing() -> Iterator[memoryview]:
        for number in range(12):
            buffer[:] = bytes([number]) * len(buffer)
            yield memoryview(buffer).cast("i")

    store.put_stream("a", reusing())
    assert memoryview(store.get("a")) == b"".join(bytes([number]) * 1_000_000 for number in range(12))
    for wrong in (["text"], [b"x" * (PART + 1), "text"], b"whole", bytearray(3), "text", 5):
        with raises(InvalidRequest, "invalid_body"):
            store.put_stream("b", wrong)
    with pytest.raises(NotFound):
        store.head("b")


def test_a_stream_is_read_chunk_by_chunk(store: Any) -> None:
    """Each chunk is one GET, made when it is asked for; the size of a whole object is asked once."""
    body = bytes(range(256)) * 40
    store.put("a", body)
    with store.count() as requests:
        stream = store.get_stream("a", chunk_bytes=4096)
        assert (requests.head, requests.get) == (1, 1)
        assert [memoryview(chunk).nbytes for chunk in stream] == [4096, 4096, 2048]
    assert (requests.head, requests.get, requests.bytes_read, requests.errors) == (1, 3, len(body), 0)
    with store.count() as requests:
        assert b"".join(store.get_stream("a", byte_range=(10, 5000), chunk_bytes=4096)) == body[10:5000]
    assert (requests.head, requests.get) == (0, 2)
    assert b"".join(store.get_stream("a", byte_range=(10, 1 << 40), chunk_bytes=5115)) == body[10:]
    assert b"".join(store.get_stream("a")) == body


def test_mistakes_are_told_before_the_first_chunk(store: Any) -> None:
    """A missing object, a range past the end and an empty chunk size are errors of the call itself."""
    store.put("a", b"0123456789")
    with pytest.raises(NotFound):
        store.get_stream("missing")
    with pytest.raises(NotFound):
        store.get_stream("missing", byte_range=(0, 5))
    for wrong in [(10, 11), (5, 5), (6, 5), (-1, 3)]:
        with raises(InvalidRequest, "invalid_range"):
            store.get_stream("a", byte_range=wrong)
    with pytest.raises(InvalidRequest, match="chunk_bytes"):
        store.get_stream("a", chunk_bytes=0)
    for body in (b"body", bytearray(b"body"), memoryview(b"body"), "body", 5):
        with raises(InvalidRequest, "invalid_body", match="an iterable of chunks"):
            store.put_stream("b", body)
    for ask in (store.get_stream, lambda path: store.put_stream(path, [b""])):
        with raises(InvalidRequest, "invalid_path"):
            ask("../a")


def test_a_stream_can_feed_a_stream(opened: Callable[..., Any]) -> None:
    """An object is copied through a store whose requests are bounded to one at a time."""
    store = opened(limits=StoreLimits(upload_part_bytes=PART, request_concurrency_max=1))
    body = b"".join(blocks(2 * PART + 4, PART // 3 * 4))
    store.put("a", body)
    store.put_stream("b", store.get_stream("a", chunk_bytes=1_000_000))
    assert memoryview(store.get("b")) == body


def test_a_view_streams_into_its_folder(store: Any) -> None:
    """A view of a folder streams below it, and counts there."""
    view = store.sub("x")
    with store.sub("x").count() as mine, store.sub("y").count() as other:
        view.put_stream("a", [b"12", b"34"])
        assert b"".join(view.get_stream("a")) == b"1234"
    assert bytes(store.get("x/a")) == b"1234"
    assert (mine.put, mine.bytes_written, other.total) == (1, 4, 0)


@pytest.mark.parametrize("size_bytes", [0, 8, 2 * PART])
def test_a_create_only_stream_replaces_nothing(opened: Callable[..., Any], size_bytes: int) -> None:
    """What is there, or comes while the stream goes on, stays as it is; nothing is left of the stream."""
    store = opened(limits=SMALL_PARTS)
    assert store.put_stream("a", blocks(size_bytes, PART), create_only=True) == size_bytes
    store.put("b", b"old")

    def overtaken() -> Iterator[bytes]:
        yield from blocks(size_bytes, PART)
        store.put("c", b"faster")
        yield b"late"

    given = iter([bytes(8), *blocks(size_bytes, PART)])
    for path, chunks, present in (("b", given, b"old"), ("c", overtaken(), b"faster")):
        with pytest.raises(AlreadyExists):
            store.put_stream(path, chunks, create_only=True)
        assert bytes(store.get(path)) == present
    assert [meta.path for meta in store.list()] == ["a", "b", "c"]
    assert store.head("a").size_bytes == size_bytes


def test_where_bytes_cannot_be_written_as_they_come_nothing_is_begun(opened: Callable[..., Any]) -> None:
    """A put to a remote store is one request; in this process and its folders an object grows until it is whole."""
    store = opened()
    upload = store.sub("x").begin_put("a")
    assert (upload is None) == (not store.root_url.startswith(("memory:", "file:")))
    if upload is not None:
        upload.write(memoryview(b"12"))
        upload.write(memoryview(b"3"))
        assert list(store.list()) == []
        upload.finish()
        assert bytes(store.get("x/a")) == b"123"


def test_a_lost_reply_of_a_create_only_stream_is_ours() -> None:
    """A small stream whose reply was lost is put again, and what is there then is recognised."""
    inner = open_store(f"memory://{uuid.uuid4().hex}")
    store = FaultyStore(inner, faults={0: Fault.LOST_REPLY})
    put_new(store, "a", b"12")
    assert bytes(inner.get("a")) == b"12"
    with pytest.raises(AlreadyExists):
        put_new(store, "a", b"other")
    assert bytes(inner.get("a")) == b"12"


def test_an_object_of_too_many_parts_is_refused(s3_server: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """What the vendor cannot take in parts of this size is one clear sentence, and leaves nothing."""
    monkeypatch.setattr("lakebed.objects.vendor._PART_COUNT_MAX", {"s3": 2})
    store = open_store(s3_server.url(), storage_options=s3_server.options, limits=SMALL_PARTS)
    for sizes in ((PART, PART, PART), (PART, PART - 1, 2)):
        with raises(InvalidRequest, "stream_too_large", match="upload_part_bytes"):
            store.put_stream("a", map(bytes, sizes))
        assert list(store.list()) == []
    assert store.put_stream("a", map(bytes, (PART, PART - 1, 1))) == 2 * PART
    with pytest.raises(InvalidRequest, match="upload_part_bytes"):
        StoreLimits(upload_part_bytes=PART - 1)


def test_faults_of_a_stream() -> None:
    """Through wrappers a stream is one put, that fails, is lost, lands late or crashes as a whole."""
    inner = open_store(f"memory://{uuid.uuid4().hex}")
    faults = {0: Fault.ERROR_BEFORE, 1: Fault.LOST_REPLY, 2: Fault.LATE, 3: Fault.CRASH_BEFORE}
    store = FaultyStore(inner, faults=faults)
    with pytest.raises(Unavailable):
        store.put_stream("a", [b"1"])
    assert list(inner.list()) == []
    with pytest.raises((Unavailable, OutcomeUnknown)):
        store.put_stream("a", [b"1", b"2"])
    assert bytes(inner.get("a")) == b"12"
    with pytest.raises((Unavailable, OutcomeUnknown)):
        store.put_stream("late", iter([b"3", b"4"]))
    assert store.land() == 1
    assert bytes(inner.get("late")) == b"34"
    with pytest.raises(Crashed):
        store.put_stream("never", [b"5"])
    assert [meta.path for meta in inner.list()] == ["a", "late"]


def test_wrappers_count_record_and_forget_streams() -> None:
    """A recorded stream is one put and a get a chunk; a profiled one takes its time; one not durable may be lost."""
    inner = open_store(f"memory://{uuid.uuid4().hex}")
    recording = RecordingStore(inner)
    recording.sub("x").put_stream("a", [b"12", b"34"])
    assert b"".join(recording.get_stream("x/a", byte_range=(0, 4), chunk_bytes=3)) == b"1234"
    assert [str(call.call) for call in recording.trace] == ["put x/a", "get x/a", "get x/a"]
    clock = ManualClock()
    started_s = clock.monotonic_s()
    ProfiledStore(inner, clock=clock).put_stream("b", [b"1"])
    assert clock.monotonic_s() - started_s == pytest.approx(0.02, abs=1e-3)
    power = PowerLossStore(inner)
    power.put_stream("volatile", [b"1"], durable=False)
    power.put_stream("durable", [b"1"])
    assert power.power_loss() == ["volatile"]


LARGE = """
import resource, sys
from lakebed.objects import open_store
options = dict(pair.split("=", 1) for pair in sys.argv[2:])
store = open_store(sys.argv[1], storage_options=options or None)
store.put_stream("warm", (bytes(1 << 20) for _ in range(20)))
sum(len(memoryview(chunk)) for chunk in store.get_stream("warm"))
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
size = store.put_stream("large", (bytes(1 << 20) for _ in range(100)))
read = sum(len(memoryview(chunk)) for chunk in store.get_stream("large"))
print(size, read, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)
"""


@pytest.mark.parametrize("kind", ["local", "s3", pytest.param("azure", marks=pytest.mark.long)])
def test_a_large_stream_takes_little_memory(kind: str, request: pytest.FixtureRequest, tmp_path: Path) -> None:
    """100 MB go up and come down while the process grows by less than 64 MB."""
    if kind == "local":
        arguments = [str(tmp_path)]
    else:
        server = request.getfixturevalue(f"{kind}_server")
        arguments = [server.url(), *(f"{name}={value}" for name, value in server.options.items())]
    size_bytes, read_bytes, grown = map(int, run_script(LARGE, *arguments).split())
    grown_bytes = grown * (1 if sys.platform == "darwin" else 1024)
    assert (size_bytes, read_bytes) == (100 << 20, 100 << 20)
    assert grown_bytes < 64_000_000
