"""Bytes of entries: uploads, downloads, files, copies, signed URLs, and objects that live elsewhere."""

from __future__ import annotations

import hashlib
import io
import sys
import urllib.request
import uuid
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from lakebed.errors import InvalidRequest, NotFound, OutcomeUnknown
from lakebed.objects import open_store
from lakebed.repo.collect.collect import collect_garbage
from lakebed.repo.collect.why import why
from lakebed.repo.heads.write import stage
from lakebed.repo.model.entry import address_ulid, new_upload
from lakebed.repo.model.model import Entry
from lakebed.repo.model.options import CollectionOptions
from lakebed.repo.objects import data
from lakebed.repo.outside.foreign import STORE_COUNT_MAX, ForeignStores
from lakebed.repo.records.context import RepositoryContext
from lakebed.runtime import Environment
from lakebed.testing.clock import ManualClock
from lakebed.testing.faulty import Fault, FaultyStore
from lakebed.testing.power_loss import PowerLossStore
from worlds.errors import raises
from worlds.repo.memory_repository import MemoryRepository, open_context
from worlds.scripts import run_script

BODY = bytes(range(256)) * 5_000


def open_file(context: RepositoryContext, entry: Entry, **options: int) -> io.BufferedReader:
    """An entry as a file."""
    return data.ranges_file(
        lambda byte_range: data.read(context, entry, byte_range=byte_range), size_bytes=entry.size_bytes, **options
    )


def with_store(home: RepositoryContext, store: Any, **settings: Any) -> RepositoryContext:
    """The home over another object store."""
    fields = {name: getattr(home, name) for name in RepositoryContext.__slots__}
    return RepositoryContext(**{**fields, "store": store, **settings})


@pytest.fixture(params=["local", "s3", "azure"])
def stored(request: pytest.FixtureRequest, home: RepositoryContext, tmp_path: Path) -> RepositoryContext:
    """A repository on a folder, on S3, on Azure."""
    if request.param == "local":
        return with_store(home, open_store(tmp_path / "objects"))
    server = request.getfixturevalue(f"{request.param}_server")
    url = server.url()
    foreign = ForeignStores(like=url, storage_options=server.options)
    return with_store(home, open_store(url, storage_options=server.options), foreign=foreign)


def foreign_entry(url: str, body: bytes) -> Entry:
    """An imported object."""
    return Entry(url, len(body), "", 1, "text/plain", {"from": "elsewhere"})


@pytest.mark.parametrize("make", [bytes, bytearray, memoryview, pa.py_buffer, lambda body: iter([body[:7], body[7:]])])
def test_an_upload_is_what_was_given(home: RepositoryContext, make: Any) -> None:
    """Whole or in chunks: one PUT, a new address of ours, size, MD5, time, type and metadata."""
    with home.store.count() as requests:
        entry = data.upload(home, make(BODY), content_type="text/csv", metadata={"a": "b"})
    assert (requests.put, requests.total) == (1, 1)
    assert address_ulid(entry.address) is not None
    assert entry.checksum == hashlib.md5(BODY, usedforsecurity=False).hexdigest()
    assert (entry.size_bytes, entry.content_type, entry.metadata) == (len(BODY), "text/csv", {"a": "b"})
    assert memoryview(data.read(home, entry)) == BODY
    assert data.upload(home, b"").address != data.upload(home, b"").address


def test_reading(stored: RepositoryContext) -> None:
    """Ranges, streams and files give the bytes they name; what cannot be is one sentence, without a request."""
    entry = data.upload(stored, BODY)
    assert bytes(data.read(stored, entry, byte_range=(10, 20))) == BODY[10:20]
    assert bytes(data.read(stored, entry, byte_range=(len(BODY) - 5, len(BODY) + 500))) == BODY[-5:]
    assert [bytes(part) for part in data.read_ranges(stored, entry, ranges=[(5, 9), (0, 3)])] == [BODY[5:9], BODY[:3]]
    with stored.store.count() as requests:
        assert b"".join(map(bytes, data.stream(stored, entry, chunk_bytes=300_000))) == BODY
    assert (requests.get, requests.total) == (5, 5)
    assert b"".join(map(bytes, data.stream(stored, entry, byte_range=(7, 1 << 40), chunk_bytes=300_000))) == BODY[7:]
    with stored.store.count() as requests:
        for wrong in ((len(BODY), len(BODY) + 1), (5, 5), (6, 5), (-1, 3)):
            for ask in (data.read, data.stream):
                with pytest.raises(InvalidRequest) as caught:
                    ask(stored, entry, byte_range=wrong)
                assert (caught.value.kind, caught.value.facts["size_bytes"]) == ("invalid_range", len(BODY))
    assert requests.total == 0
    empty = data.upload(stored, b"")
    assert bytes(data.read(stored, empty)) == b""
    assert list(data.stream(stored, empty)) == []
    assert open_file(stored, empty).read() == b""


def test_a_file_is_read_and_sought(stored: RepositoryContext) -> None:
    """A file reads ahead: small reads in order share requests; pyarrow reads a Parquet file through it."""
    entry = data.upload(stored, BODY)
    with stored.store.count() as requests, open_file(stored, entry, read_ahead_bytes=1 << 20) as file:
        assert b"".join(iter(lambda: file.read(1000), b"")) == BODY
    assert requests.get == 2
    with open_file(stored, entry) as file:
        assert file.seekable()
        assert file.readable()
        assert not file.writable()
        assert file.seek(-10, io.SEEK_END) == len(BODY) - 10
        assert file.read() == BODY[-10:]
        assert file.read(5) == b""
        assert file.seek(100) == 100
        assert file.read(3) == BODY[100:103]
        assert file.seek(7, io.SEEK_CUR) == 110
        assert file.tell() == 110
        assert file.read(2) == BODY[110:112]
        with pytest.raises(InvalidRequest):
            file.seek(-len(BODY) - 1, io.SEEK_END)
    with stored.store.count() as requests, open_file(stored, entry) as file:
        assert file.read() == BODY
    assert requests.get == 1
    sink = io.BytesIO()
    table = pa.table({"x": list(range(10_000))})
    pq.write_table(table, sink)
    assert pq.read_table(open_file(stored, data.upload(stored, sink.getvalue()))).equals(table)


def test_copies_are_copies_of_the_bytes(stored: RepositoryContext) -> None:
    """A copy has an address of its own and all else of the original; it outlives it."""
    entry = data.upload(stored, BODY, content_type="text/csv", metadata={"a": "b"})
    with stored.store.count() as requests:
        copied = data.copy(stored, entry)
    looks = 0 if stored.store.root_url.startswith(("file:", "memory:")) else 1  # whether the new address is free
    assert (requests.copy, requests.head, requests.total) == (1, looks, 1 + looks)
    assert copied.address != entry.address
    same = msgspec.structs.replace(copied, address=entry.address, modified_ms=entry.modified_ms)
    assert same == entry
    stored.store.delete([entry.address])
    assert memoryview(data.read(stored, copied)) == BODY
    with raises(NotFound, "object_gone"):
        data.copy(stored, entry)


def test_imported_objects_are_read_where_they_are(stored: RepositoryContext) -> None:
    """An entry with a URL is read from there, never written; a copy of it is ours; a missing one says what it was."""
    elsewhere = stored.store.sub("raw data/ü")
    elsewhere.put("b.csv", BODY)
    entry = foreign_entry(elsewhere.url("b.csv"), BODY)
    assert memoryview(data.read(stored, entry)) == BODY
    assert bytes(data.read(stored, entry, byte_range=(3, 9))) == BODY[3:9]
    assert b"".join(map(bytes, data.stream(stored, entry, chunk_bytes=500_000))) == BODY
    assert open_file(stored, entry).read() == BODY
    assert data.physical_url(stored, entry) == entry.address
    copied = data.copy(stored, entry)
    assert address_ulid(copied.address) is not None
    assert copied.checksum == hashlib.md5(BODY, usedforsecurity=False).hexdigest()
    assert (copied.content_type, copied.metadata) == (entry.content_type, entry.metadata)
    elsewhere.delete(["b.csv"])
    for ask in (data.read, data.stream, data.copy, lambda home, entry: open_file(home, entry).read()):
        with raises(NotFound, "import_gone", match="imported"):
            ask(stored, entry)
    assert memoryview(data.read(stored, copied)) == BODY


def test_only_allowed_places_are_read(home: RepositoryContext, tmp_path: Path) -> None:
    """A server names what may be imported from; nothing else is read, however it is written."""
    (tmp_path / "allowed").mkdir()
    (tmp_path / "allowed-not").mkdir()
    for folder in ("allowed", "allowed-not"):
        (tmp_path / folder / "x").write_bytes(b"1")
    foreign = ForeignStores(allowed=[f"file://{tmp_path}/allowed", "s3://bucket/raw"])
    limited = with_store(home, home.store, foreign=foreign)
    assert bytes(data.read(limited, foreign_entry(f"file://{tmp_path}/allowed/x", b"1"))) == b"1"
    for url in (
        f"file://{tmp_path}/allowed-not/x",
        f"file://{tmp_path}/allowed/../allowed-not/x",
        "file:///etc/passwd",
        "s3://bucket/rawer/x",
        "s3://other/raw/x",
        "memory://x/y",
    ):
        with raises(InvalidRequest, "import_not_allowed"):
            data.read(limited, foreign_entry(url, b"1"))
        with pytest.raises(InvalidRequest):
            foreign.open(url)
    for wrong in ("s3://bucket", "s3://", "ftp://x/y", "file:///", "file://host/x"):
        with pytest.raises(InvalidRequest):
            ForeignStores().locate(wrong)


def test_few_foreign_stores_are_open(tmp_path: Path) -> None:
    """Stores are opened once a root and forgotten in turn: a million addresses do not open a million stores."""
    foreign = ForeignStores()
    assert foreign.locate("memory://a/b/c")[0] is foreign.locate("memory://a/d")[0]
    assert foreign.locate("memory://a/b/c")[1] == "b/c"
    for number in range(3 * STORE_COUNT_MAX):
        foreign.locate(f"file://{tmp_path}/{number}/x")
    assert repr(foreign) == f"ForeignStores({STORE_COUNT_MAX} open)"


def test_uploads_by_others_are_linked(stored: RepositoryContext) -> None:
    """An upload to an address of ours becomes an entry, with the size that is there; nothing else does."""
    address = data.upload(stored, BODY).address
    for url in (address, stored.store.url(address)):
        entry = data.link_object(stored, url, checksum="abc", content_type="text/csv")
        assert (entry.address, entry.size_bytes, entry.checksum) == (address, len(BODY), "abc")
    assert data.link_object(stored, address).checksum
    missing = data.new_address(stored.environment)
    with pytest.raises(NotFound):
        data.link_object(stored, missing)
    for wrong in ("data/x", "ranges/abc", stored.store.url("ranges/abc"), "", "../x"):
        with raises(InvalidRequest, "invalid_address"):
            data.link_object(stored, wrong)


def test_linked_bytes_survive_a_power_loss(home: RepositoryContext) -> None:
    """An upload of another process need not be on the disk yet: it is before an entry names it."""
    power = PowerLossStore(open_store(f"memory://{uuid.uuid4()}/objects"))
    address = data.new_address(home.environment)
    power.write_in_place(address, BODY)
    entry = data.link_object(with_store(home, power), address)
    assert power.power_loss() == []
    assert bytes(power.get(entry.address)) == BODY


def test_signed_urls(home: RepositoryContext, s3_server: Any, tmp_path: Path) -> None:
    """The holder of a signed URL reads, or puts to a new address that is linked then; a folder has none."""
    s3 = with_store(home, open_store(s3_server.url(), storage_options=s3_server.options))
    address, url = data.sign_put(s3, expires_in_s=60)
    headers = {"Content-Type": "application/octet-stream"}
    with urllib.request.urlopen(urllib.request.Request(url, data=b"12345", headers=headers, method="PUT")) as answer:
        assert answer.status == 200
        assert answer.headers["ETag"]
    entry = data.link_object(s3, address)
    assert entry.checksum == "827ccb0eea8a706c4c34a16891f84e7b"
    with urllib.request.urlopen(data.sign_get(s3, entry, expires_in_s=60)) as answer:
        assert answer.read() == b"12345"
    local = with_store(home, open_store(tmp_path))
    for ask in (
        lambda: data.sign_put(local, expires_in_s=60),
        lambda: data.sign_get(local, data.upload(local, b""), expires_in_s=60),
    ):
        with raises(InvalidRequest, "unsupported"):
            ask()


def test_what_was_put_to_a_signed_url_is_copied_when_it_is_linked() -> None:
    """Who still has the URL may put other bytes: what was linked stays, and a collection takes the first."""
    clock = ManualClock()
    with open_context(MemoryRepository(environment=Environment(clock=clock))) as home:
        address = new_upload(home.environment)
        home.store.put(address, b"first")
        entry = data.link_object(home, address, checksum="x")
        home.store.put(address, b"other, and longer")
        assert bytes(data.read(home, entry)) == b"first"
        assert entry.size_bytes == 5
        stage(home, branch="main", path="a", entry=entry)
        again = data.link_object(home, home.store.url(address))  # as after a lost reply: another entry
        assert again.address != entry.address
        with pytest.raises(InvalidRequest):
            stage(home, branch="main", path="b", entry=Entry(address, 5, "", 0))
        with raises(NotFound, "object_gone"):
            data.link_object(home, new_upload(home.environment))
        assert "collection deletes it" in why(home, address).sentence
        clock.advance(1)
        collect_garbage(home, options=CollectionOptions(grace=timedelta(0)))
        assert list(home.store.list("uploads")) == []
        assert bytes(data.read(home, entry)) == b"first"


@pytest.mark.parametrize("wrong", [{"a": 1}, {1: "a"}, {"a": "x" * 70_000}, {"\ud800": "a"}])
def test_metadata_that_cannot_be(home: RepositoryContext, wrong: Any) -> None:
    """Metadata is text and not too much of it; a mistake is reported before anything is uploaded."""
    with home.store.count() as requests, pytest.raises(InvalidRequest) as caught:
        data.upload(home, b"1", metadata=wrong)
    assert (caught.value.kind, requests.total) == ("invalid_metadata", 0)


@pytest.mark.parametrize("wrong", ["text", 5, [1, 2], ["text"]])
def test_bodies_that_cannot_be(home: RepositoryContext, wrong: Any) -> None:
    """What is neither bytes nor chunks of bytes is refused, and leaves nothing."""
    with raises(InvalidRequest, "invalid_body"):
        data.upload(home, wrong)
    assert list(home.store.list()) == []


def test_an_upload_that_fails_leaves_no_entry(home: RepositoryContext) -> None:
    """A broken iterator, a store that fails: no entry is returned. A lost reply: the same bytes are put again."""

    def breaking() -> Iterator[bytes]:
        yield b"1"
        raise KeyError("broken")

    with pytest.raises(KeyError):
        data.upload(home, breaking())
    assert list(home.store.list()) == []
    faulty = with_store(home, FaultyStore(home.store, faults={0: Fault.LOST_REPLY}))
    entry = data.upload(faulty, b"1")
    assert [meta.path for meta in home.store.list()] == [entry.address]
    lost = with_store(home, FaultyStore(home.store, faults=lambda index, call: Fault.LOST_REQUEST))
    with pytest.raises(OutcomeUnknown, match="was lost"):
        data.upload(lost, b"2")
    assert [meta.path for meta in home.store.list()] == [entry.address]


LARGE = """
import resource, sys
from lakebed.objects import open_store
from lakebed.repo.objects import data
from lakebed.repo.records.context import RepositoryContext
from worlds.repo.memory_repository import MemoryRepository, open_context
with open_context(MemoryRepository()) as opened:
    fields = {name: getattr(opened, name) for name in RepositoryContext.__slots__}
    home = RepositoryContext(**{**fields, "store": open_store(sys.argv[1])})
    data.upload(home, (bytes(1 << 20) for _ in range(20)))
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    entry = data.upload(home, (bytes(1 << 20) for _ in range(300)))
    read = sum(len(memoryview(chunk)) for chunk in data.stream(home, entry))
    print(entry.size_bytes, read, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)
"""


def test_large_objects_take_little_memory(tmp_path: Path) -> None:
    """300 MB go up and down while the process grows by less than 64 MB."""
    size_bytes, read_bytes, grown = map(int, run_script(LARGE, str(tmp_path)).split())
    assert size_bytes == read_bytes == 300 << 20
    assert grown * (1 if sys.platform == "darwin" else 1024) < 64_000_000
