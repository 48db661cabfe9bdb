"""A branch as an object-storage port: the port's own contract, unchanged, and what a branch adds to it."""

from __future__ import annotations

import pickle
import random
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from threading import Barrier
from typing import Any

import pytest

from lakebed.errors import AlreadyExists, InvalidRequest, LakebedError, NotFound, OutcomeUnknown, Unavailable
from lakebed.objects import ObjectStore
from lakebed.objects.create_once import create_once
from lakebed.repo.heads.compact import compact_once
from lakebed.repo.heads.heads import seal
from lakebed.repo.heads.write import stage, stage_many
from lakebed.repo.objects import data
from lakebed.repo.records.context import RepositoryContext
from lakebed.repo.records.protection import protect
from lakebed.repo.references.branches import create_branch
from lakebed.repo.references.tags import create_tag
from lakebed.repo.staging.view import at_reference
from lakebed.repo.transport.local_objects import local_store
from lakebed.runtime import Environment
from lakebed.testing.clock import ManualClock
from lakebed.testing.faulty import Crashed
from worlds.errors import raises
from worlds.memory_key_value import MemoryKeyValue
from worlds.modules import object_store_tests
from worlds.repo.memory_repository import MemoryRepository, Trap, entry_of, open_context
from worlds.repo.operations import commit, merge

globals().update(object_store_tests())


@pytest.fixture(params=["staged", "committed", "compacted"])
def opened(request: pytest.FixtureRequest, home: RepositoryContext) -> Callable[..., Any]:
    """Opens one folder of a branch again and again; what was there before is gone, staged or in a range below."""
    outside = local_store(home, "main", "some")
    outside.put("prefix-beside", b"not seen")
    outside.put("prefix/was", b"there once")
    if request.param == "committed":
        commit(home, "main", message="beside")
    elif request.param == "compacted":
        compact_once(home, "main")
    outside.delete(["prefix/was"])
    return lambda **_: local_store(home, "main", "some/prefix")


def test_is_a_store(home: RepositoryContext) -> None:
    """A branch is an `ObjectStore` that says that it is versioned, and names itself as clients do."""
    store = local_store(home, "main", "a/")
    assert isinstance(store, ObjectStore)
    assert store.is_versioned
    assert store.root_url == "lakefs://analytics/main/a"
    assert not home.store.is_versioned


def test_one_winner_among_processes() -> None:
    """Of 32 threads in two processes that create one path while a third compacts, exactly one wins, with its bytes."""
    place = MemoryRepository()
    with open_context(place) as first, open_context(place) as second, open_context(place) as third:
        stores = [local_store(home, "main", "t") for home in (first, second)]
        start = Barrier(33)

        def create(writer: int) -> int | None:
            start.wait()
            try:
                stores[writer % 2].put("prize", str(writer).encode(), create_only=True)
            except AlreadyExists:
                return None
            return writer

        def seal(_: int) -> None:
            start.wait()
            for _ in range(5):
                compact_once(third, "main", force=True)

        with ThreadPoolExecutor(33) as pool:
            sealing = pool.submit(seal, 0)
            winners = [item for item in pool.map(create, range(32)) if item is not None]
            sealing.result()
        assert len(winners) == 1
        assert bytes(stores[0].get("prize")) == str(winners[0]).encode()


@pytest.mark.parametrize("mode", ["crash before", "crash after", "reply lost", "request lost"])
def test_a_create_is_true_at_every_call(mode: Any) -> None:
    """A create-only put that fails at any call reports the truth, and its repetition ends with one object of ours."""
    for at in range(100):
        place = MemoryRepository()
        trap = Trap(at=at, mode=mode)
        with open_context(place) as home:
            local_store(home, "main").put("before", b"b")
        said = "nothing"
        with open_context(place, trap=trap) as home:
            try:
                create_once(local_store(home, "main"), "a", b"ours", environment=place.environment)
                said = "created"
            except (Crashed, OutcomeUnknown):
                said = "unclear"
        if not trap.has_sprung:
            assert at > 5
            return
        with open_context(place) as home:
            store = local_store(home, "main")
            paths = [meta.path for meta in store.list()]
            assert paths in (["a", "before"], ["before"])
            if said == "created":
                assert bytes(store.get("a")) == b"ours"
            try:
                create_once(store, "a", b"ours", environment=place.environment)
            finally:
                assert bytes(store.get("a")) == b"ours"
    raise AssertionError("the trap never stopped springing")


def test_a_listing_shows_one_moment(home: RepositoryContext) -> None:
    """What is written, deleted, committed or compacted while a listing is read changes nothing in it."""
    store = local_store(home, "main")
    names = [f"a/{number:04d}" for number in range(1500)]
    stage_many(home, branch="main", entries=[(name, entry_of(home, name)) for name in names])
    listing = store.list("a")
    seen = [next(listing).path]
    store.put("a/0000-new", b"")
    store.delete(names[700:])
    commit(home, "main", message="meanwhile")
    compact_once(home, "main", force=True)
    seen += [meta.path for meta in listing]
    assert seen == names
    assert [meta.path for meta in store.list("a")] == ["a/0000", "a/0000-new", *names[1:700]]


def test_what_is_known_of_an_object(home: RepositoryContext) -> None:
    """Head and list return size, time and checksum; a copy keeps content type and metadata."""
    store = local_store(home, "main", "f")
    entry = data.upload(home, b"12345", content_type="text/csv", metadata={"who": "me"})
    stage(home, branch="main", path="f/a", entry=entry)
    meta = store.head("a")
    assert (meta.path, meta.size_bytes, meta.modified_ms) == ("a", 5, entry.modified_ms)
    assert meta.etag == "827ccb0eea8a706c4c34a16891f84e7b"
    assert list(store.list()) == [meta]
    assert list(store.list_with_delimiter().objects) == [meta]
    store.copy("a", "b")
    with at_reference(home, "main") as view:
        copied = view.get("f/b")
    assert copied is not None
    assert copied.address != entry.address
    assert (copied.content_type, copied.metadata, copied.checksum) == ("text/csv", {"who": "me"}, entry.checksum)


def test_the_url_is_where_the_bytes_are(home: RepositoryContext) -> None:
    """Another engine reads an object by its URL; signed ones are the vendor's, and only to read."""
    store = local_store(home, "main")
    store.put("a", b"12345")
    url = store.url("a")
    root, _, path = url.rpartition("/data/")
    assert root == home.store.root_url
    assert bytes(home.store.get(f"data/{path}")) == b"12345"
    for ask in (store.url, lambda path: store.signed_url(path, expires_in_s=5)):
        with pytest.raises(NotFound):
            ask("missing")
    with raises(InvalidRequest, "unsupported"):  # memory has none
        store.signed_url("a", expires_in_s=60)
    with pytest.raises(InvalidRequest, match="link"):
        store.signed_url("a", expires_in_s=60, method="PUT")


def test_a_commit_is_read_and_not_written(home: RepositoryContext) -> None:
    """Over a tag, a commit, ``main@`` or ``main~1`` a store shows that commit for ever, and refuses every write."""
    branch = local_store(home, "main")
    branch.put("a/b", b"1")
    first = commit(home, "main", message="first")
    branch.put("a/b", b"2")
    second = commit(home, "main", message="second")
    branch.put("a/b", b"3")
    create_tag(home, "v1", commit_id=first.id)
    stores = [local_store(home, reference) for reference in ("v1", first.id, first.id[:10], "main~1", "v1@")]
    stores.append(local_store(home, "main@"))
    commit(home, "main", message="third")
    for store, body in zip(stores, [b"1"] * 5 + [b"2"], strict=True):
        assert bytes(store.get("a/b")) == body
        assert [meta.path for meta in store.sub("a").list()] == ["b"]
        for write in (
            lambda store=store: store.put("x", b""),
            lambda store=store: store.put("x", b"", create_only=True),
            lambda store=store: store.put_stream("x", [b""]),
            lambda store=store: store.delete(["a/b"]),
            lambda store=store: store.copy("a/b", "x"),
        ):
            with raises(InvalidRequest, "read_only"):
                write()
    assert second.id != first.id
    with raises(NotFound, "reference_not_found"):
        local_store(home, "no-such")


def test_paths_that_a_branch_does_not_take(home: RepositoryContext) -> None:
    """A reserved or too long path, which other stores take, is one clear sentence, and uploads nothing."""
    store = local_store(home, "main")
    for path, kind in (("_lakebed/x", "reserved_path"), ("_lakefs/x", "reserved_path"), ("ü" * 600, "invalid_path")):
        for write in (store.put, lambda path, body: store.put_stream(path, [body])):
            with home.store.count() as requests, pytest.raises(InvalidRequest) as caught:
                write(path, b"1")
            assert (caught.value.kind, requests.put) == (kind, 0)


def test_paths_that_only_a_branch_takes_are_not_seen(home: RepositoryContext) -> None:
    """What other clients have put under paths that no store could have is passed over, in every listing."""
    for path in ("/a", "a//b", "folder/", "./x", "ok/y", "ok//z"):
        stage(home, branch="main", path=path, entry=entry_of(home, path))
    store = local_store(home, "main")
    assert [meta.path for meta in store.list()] == ["ok/y"]
    level = store.list_with_delimiter()
    assert (level.objects, level.folders) == ((), ("a", "folder", "ok"))
    assert [meta.path for meta in store.list_with_delimiter("ok").objects] == ["ok/y"]
    assert store.list_with_delimiter("ok").folders == ()


def test_a_protected_branch_is_not_written(home: RepositoryContext) -> None:
    """What a branch refuses, its store refuses: with the branch's own sentence, and nothing is stored."""
    protect(home, "main")
    store = local_store(home, "main")
    with home.store.count() as requests:
        for write in (lambda: store.put("a", b""), lambda: store.put_stream("a", [b""]), lambda: store.delete(["a"])):
            with raises(LakebedError, "protected_branch"):
                write()
    assert requests.put == 0


def test_bytes_that_are_gone_are_not_a_missing_path(home: RepositoryContext) -> None:
    """An object whose bytes a collection took is distinguished from a path that is not there."""
    store = local_store(home, "main")
    store.put("a", b"1")
    home.store.delete([store.url("a").removeprefix(home.store.root_url + "/")])
    with raises(NotFound, "object_gone"):
        store.get("a")
    assert store.head("a").size_bytes == 1


class Sealing:
    """A key-value store that seals the branch before every conditional write, so many times."""

    def __init__(self, inner: Any, count: int) -> None:
        self._inner = inner
        self.count = count
        self.home: RepositoryContext | None = None

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def write(self, *arguments: Any, **keys: Any) -> None:
        """Seal first."""
        if self.count and self.home is not None:
            self.count -= 1
            seal(self.home, "main", fresh_token=True)
        self._inner.write(*arguments, **keys)


@pytest.mark.parametrize(("count", "kind"), [(10, None), (10_000, "branch_moved")])
def test_a_branch_that_moves_all_the_time(count: int, kind: str | None) -> None:
    """A branch that others seal before every write is tried again for a while; then it is `Unavailable`, not lost."""
    place = MemoryRepository(environment=Environment(clock=ManualClock(), rng=random.Random(5)))
    sealing = Sealing(MemoryKeyValue(place.space), count)
    with open_context(place) as other, open_context(place, key_value=sealing) as home:  # type: ignore[arg-type]
        sealing.home = other
        store = local_store(home, "main")
        if kind is None:
            store.put("a", b"1", create_only=True)
            assert sealing.count == 0
            assert bytes(store.get("a")) == b"1"
            return
        with raises(Unavailable, kind):
            store.put("a", b"1", create_only=True)
        sealing.count = 0
        assert list(store.list()) == []


def test_two_branches_are_two_stores(home: RepositoryContext) -> None:
    """What one branch's store does, another's does not see, until they are merged."""
    commit(home, "main", message="base", allow_empty=True)
    create_branch(home, "dev", source="main")
    main, dev = local_store(home, "main"), local_store(home, "dev")
    main.put("a", b"main")
    dev.put("b", b"dev")
    dev.put("a/b", b"folder and object may share a name")
    assert [meta.path for meta in main.list()] == ["a"]
    assert [meta.path for meta in dev.list()] == ["a/b", "b"]
    commit(home, "main", message="m")
    commit(home, "dev", message="d")
    merge(home, "dev", into="main")
    assert [meta.path for meta in main.list()] == ["a", "a/b", "b"]


def test_it_stays_in_its_process(home: RepositoryContext) -> None:
    """A branch's store is not pickled: the sentence says what to do instead."""
    with pytest.raises(InvalidRequest, match="server"):
        pickle.dumps(local_store(home, "main"))


def test_requests_below(home: RepositoryContext) -> None:
    """A put is one PUT of the repository's store and a get one GET; a create that loses uploads nothing."""
    store = local_store(home, "main")
    with home.store.count() as requests:
        store.put("a", b"1")
        store.put("b", b"1", create_only=True)
    assert (requests.put, requests.total) == (2, 2)
    with home.store.count() as requests:
        store.get("a")
        assert b"".join(store.get_stream("b")) == b"1"  # type: ignore[arg-type]
    assert (requests.get, requests.total) == (2, 2)
    with home.store.count() as requests, pytest.raises(AlreadyExists):
        store.put("b", b"2", create_only=True)
    assert requests.total == 0
