"""The contract of the object port, unchanged on every kind of store."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from threading import Barrier
from typing import Any

import pyarrow as pa
import pytest

from lakebed.errors import AlreadyExists, InvalidRequest, NotFound
from lakebed.objects import ObjectStore
from lakebed.objects.probe import probe_create_only
from worlds.errors import raises

WRITER_COUNT = 32
STRANGE_NAMES = [
    "ü/ñ",
    "a b",
    "a+b",
    "a%20b",
    "100%",
    "a=b&c",
    "dt=2013-01-01/x",
    "-",
    "~",
    "日本/語",
    "a#b",
    "'q'",
    "x,y;z",
]
ESCAPES = ["..", "../x", "a/../b", "a/..", "/a", "a//b", "a/", "", ".", "./a", "a/./b", "a\x00b", "\ud800"]


def paths(metas: Any) -> list[str]:
    """Paths of a listing."""
    return [meta.path for meta in metas]


def put_many(store: ObjectStore, names: list[str]) -> None:
    """Put small objects in parallel."""
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda name: store.put(name, b"", durable=False), names))


def test_is_the_port(store: Any) -> None:
    """What `open_store` returns is an `ObjectStore`."""
    assert isinstance(store, ObjectStore)
    assert isinstance(store.sub("a"), ObjectStore)


@pytest.mark.parametrize("round_number", range(3))
def test_create_only_has_one_winner(opened: Callable[..., Any], round_number: int) -> None:
    """Of 32 threads that create one object at the same moment, exactly one succeeds, and its body stays."""
    stores = [opened() for _ in range(2)]
    start = Barrier(WRITER_COUNT)

    def create(writer: int) -> int | None:
        body = str(writer).encode() * 1000
        start.wait()
        try:
            stores[writer % 2].put("race/prize", body, create_only=True)
        except AlreadyExists:
            return None
        return writer

    with ThreadPoolExecutor(WRITER_COUNT) as pool:
        winners = [winner for winner in pool.map(create, range(WRITER_COUNT)) if winner is not None]
    assert len(winners) == 1
    assert bytes(stores[0].get("race/prize")) == str(winners[0]).encode() * 1000


def test_create_only_after_put_and_after_delete(store: Any) -> None:
    """A taken name refuses creation and keeps its body; a deleted one may be created again."""
    store.put("a", b"first")
    with pytest.raises(AlreadyExists) as caught:
        store.put("a", b"second", create_only=True)
    assert caught.value.facts["path"] == "a"
    assert bytes(store.get("a")) == b"first"
    store.put("a", b"third")
    assert bytes(store.get("a")) == b"third"
    store.delete(["a"])
    store.put("a", b"fourth", create_only=True)
    assert bytes(store.get("a")) == b"fourth"


def test_probe_accepts_and_leaves_nothing(store: Any) -> None:
    """Every supported store honours create-only puts, and the probe tidies up."""
    probe_create_only(store)
    assert paths(store.list()) == []


def test_a_missing_object_is_not_found(store: Any) -> None:
    """Reading what is not there names it."""
    for ask in (
        store.get,
        store.head,
        lambda path: store.get_ranges(path, [(0, 1)]),
        lambda path: store.copy(path, "b"),
    ):
        with pytest.raises(NotFound) as caught:
            ask("no/such")
        assert caught.value.facts["path"] == "no/such"
        assert "no/such" in str(caught.value)


@pytest.mark.parametrize("make", [bytes, bytearray, memoryview, pa.py_buffer, lambda body: memoryview(body).cast("b")])
def test_any_buffer_is_a_body(store: Any, make: Callable[[bytes], Any]) -> None:
    """Bytes, memoryviews of any format and Arrow buffers are stored as their bytes."""
    body = bytes(range(256)) * 8
    store.put("body", make(body))
    assert bytes(store.get("body")) == body
    assert pa.py_buffer(store.get("body")).to_pybytes() == body
    with pytest.raises(InvalidRequest, match="bytes"):
        store.put("text", "text")


def test_a_body_is_copied_before_put_returns(store: Any) -> None:
    """A caller may reuse its buffer once the put returned."""
    body = bytearray(b"before")
    store.put("a", body)
    body[:] = b"after!"
    assert bytes(store.get("a")) == b"before"


@pytest.mark.parametrize("size_bytes", [0, 1, 65535, 65536, 65537, 12_000_000])
def test_sizes(store: Any, size_bytes: int) -> None:
    """Empty, small and large bodies come back whole, with their size in head and list."""
    body = bytes(size_bytes)
    store.put("a", body, create_only=True)
    assert memoryview(store.get("a")) == body
    assert store.head("a").size_bytes == size_bytes
    assert [meta.size_bytes for meta in store.list()] == [size_bytes]


def test_range_edges(store: Any) -> None:
    """Ranges are half-open, end at the object's end, and never start past it."""
    store.put("a", b"0123456789")
    assert bytes(store.get("a", byte_range=(0, 1))) == b"0"
    assert bytes(store.get("a", byte_range=(9, 10))) == b"9"
    assert bytes(store.get("a", byte_range=(8, 100))) == b"89"
    assert bytes(store.get("a", byte_range=(0, 10))) == b"0123456789"
    for wrong in [(10, 11), (5, 5), (6, 5), (-1, 3)]:
        with raises(InvalidRequest, "invalid_range"):
            store.get("a", byte_range=wrong)


def test_what_is_resident_is_what_get_gives(store: Any) -> None:
    """Bytes that are had without waiting are those of `get`, counted as one; None costs nothing."""
    store.put("a", bytes(range(256)) * 100)
    for byte_range in [None, (0, 1), (255, 25_600)]:
        with store.count() as requests:
            resident = store.get_resident("a", byte_range=byte_range)
        assert requests.get == int(resident is not None)
        assert resident is None or bytes(resident) == bytes(store.get("a", byte_range=byte_range))


def test_several_ranges_come_in_the_order_asked(store: Any) -> None:
    """Overlapping, repeated, far and reversed ranges each get their own bytes; near ones share a request."""
    body = bytes(range(256)) * 16384  # 4 MiB
    store.put("a", body)
    ranges = [(3_000_000, 3_000_010), (0, 4), (2, 8), (0, 4), (100, 101)]
    with store.count() as requests:
        assert [bytes(part) for part in store.get_ranges("a", ranges)] == [body[start:end] for start, end in ranges]
    assert requests.get == 2
    assert store.get_ranges("a", []) == []


def test_ranges_are_joined_up_to_a_gap(store: Any) -> None:
    """Reading 4 KiB of a file, or 1 MiB of a remote object, takes no longer than another request."""
    gap_bytes = 4096 if store.root_url.startswith("file://") else 1 << 20
    body = bytes(range(256)) * (gap_bytes // 128)
    store.put("a", body)
    for distance, request_count in ((gap_bytes, 1), (gap_bytes + 1, 2)):
        ranges = [(0, 10), (10 + distance, 20 + distance)]
        with store.count() as requests:
            assert [bytes(part) for part in store.get_ranges("a", ranges)] == [body[start:end] for start, end in ranges]
        assert requests.get == request_count


def test_a_listing_is_in_order_and_lazy_beyond_a_page(store: Any) -> None:
    """1001 names come in two pages, in the order of their bytes, and only as far as they are read.

    Paths alone are those of the listing, of every store and folder of it, in as many requests, from any place on.
    """
    names = [f"many/{number:05d}" for number in range(1001)]
    others = ["many-more/x", "other"]
    put_many(store, [*names, *others])
    with store.count() as requests:
        assert paths(store.list("many")) == names
    assert requests.list == 2
    with store.count() as requests:
        assert next(store.list()).path == others[0]
    assert requests.list == 1
    with store.count() as requests:
        assert paths(store.list("many", start_after=names[500])) == names[501:]
    assert requests.list <= 2  # Azure cannot start in the middle
    for listed, whole in ((store, ""), (store, "many"), (store, "missing"), (store.sub("many"), "")):
        with store.count() as requests:
            metas = list(listed.list(whole))
        with store.count() as path_requests:
            assert list(listed.list_paths(whole)) == paths(metas)
        assert path_requests.list == requests.list
    assert list(store.list_paths("many", start_after=names[997])) == names[998:]
    with pytest.raises(InvalidRequest):
        store.list_paths("a//b")
    with store.count() as requests:
        store.delete([*names, *others])
    assert paths(store.list()) == []
    assert requests.delete == -(-1003 // {"az": 256}.get(store.root_url.partition(":")[0], 1000))


def test_order_is_that_of_whole_paths(store: Any) -> None:
    """A folder sorts among files by its whole path, not by its name."""
    names = ["a-b", "a.b/c", "a/b", "a/b-", "a/c/d", "a0", "B", "aé", "z", "a/b0/x"]
    put_many(store, names)
    in_order = sorted(names, key=str.encode)
    assert paths(store.list()) == in_order
    for index, name in enumerate(in_order):
        assert paths(store.list(start_after=name)) == in_order[index + 1 :]
    assert paths(store.list(start_after="a/a")) == [name for name in in_order if name > "a/a"]
    with pytest.raises(InvalidRequest):
        store.list(start_after="a/")
    assert paths(store.list("a")) == ["a/b", "a/b-", "a/b0/x", "a/c/d"]
    assert paths(store.list("a", start_after="a/b-")) == ["a/b0/x", "a/c/d"]
    assert paths(store.list("a/")) == paths(store.list("a"))


def test_a_prefix_is_a_folder(store: Any) -> None:
    """Listing ``a`` shows nothing of ``ab``, and a missing folder shows nothing."""
    put_many(store, ["a/1", "ab/2", "ab3"])
    assert paths(store.list("a")) == ["a/1"]
    assert paths(store.list("missing")) == []
    assert paths(store.list("ab3")) == []


def test_one_level(store: Any) -> None:
    """One level shows the objects directly below, and each folder once, without slash."""
    put_many(store, ["x/a", "x/b/c", "x/b/d", "x/e-f/g/h", "y"])
    level = store.list_with_delimiter("x")
    assert (paths(level.objects), level.folders) == (["x/a"], ("x/b", "x/e-f"))
    root = store.list_with_delimiter()
    assert (paths(root.objects), root.folders) == (["y"], ("x",))
    nothing = store.list_with_delimiter("missing")
    assert (nothing.objects, nothing.folders) == ((), ())


def test_a_folder_without_objects_is_not_there(store: Any) -> None:
    """When its last object is deleted, a folder is not listed any more."""
    store.put("x/y/a", b"")
    store.delete(["x/y/a"])
    assert store.list_with_delimiter().folders == ()
    assert store.list_with_delimiter("x").folders == ()


def test_deleting_what_is_missing_is_fine(store: Any) -> None:
    """A delete removes the objects that are there, even when it names missing ones too."""
    put_many(store, ["a", "b/c"])
    store.delete(["missing", "a", "b/missing", "no/folder", "b/c"])
    store.delete(["a"])
    store.delete([])
    assert paths(store.list()) == []


@pytest.mark.parametrize("name", STRANGE_NAMES)
def test_strange_names_are_taken_literally(store: Any, name: str) -> None:
    """Unicode, percent, plus, space and the like mean themselves in every operation."""
    store.put(name, name.encode(), create_only=True)
    assert bytes(store.get(name)) == name.encode()
    assert store.head(name).path == name
    assert paths(store.list()) == [name]
    with pytest.raises(AlreadyExists):
        store.put(name, b"", create_only=True)
    store.copy(name, "copied")
    assert bytes(store.get("copied")) == name.encode()
    folder, _, rest = name.rpartition("/")
    assert bytes(store.sub(folder).get(rest)) == name.encode()
    store.delete([name])
    assert paths(store.list()) == ["copied"]


@pytest.mark.parametrize("sign", ["NoSuchBucket", "AccessDenied", "InvalidRange"])
def test_a_line_break_in_a_name(store: Any, sign: str) -> None:
    """A name of two lines means itself, or is refused as a name: what it says is no sign of another failure."""
    name = f"p=two\n{sign}: x/file"
    if not store.root_url.startswith(("s3:", "az:")):
        store.put(name, b"1")
        assert bytes(store.get(name)) == b"1"
        store.delete([name])
        with pytest.raises(NotFound, match="no object"):
            store.get(name)
        return
    for ask in (lambda name: store.put(name, b"1"), store.get, store.head):
        with raises(InvalidRequest, "invalid_path", match="does not take the path"):
            ask(name)
    store.put("other", b"2")
    store.delete([name, "other"])
    assert paths(store.list()) == []


@pytest.mark.parametrize("name", STRANGE_NAMES)
def test_a_url_is_the_root_and_the_name(store: Any, name: str) -> None:
    """An object's URL is its name behind the store's, taken literally."""
    assert store.url(name) == f"{store.root_url}/{name}"


@pytest.mark.parametrize("path", ESCAPES)
def test_paths_that_would_leave_the_store_are_refused(store: Any, path: str) -> None:
    """Empty, absolute and dotted paths are an `InvalidRequest` in every operation, in views too."""
    for view in (store, store.sub("inside")):
        for ask in (
            view.get,
            view.head,
            lambda path, view=view: view.put(path, b""),
            lambda path, view=view: view.delete([path]),
            lambda path, view=view: view.copy(path, "x"),
            lambda path, view=view: view.copy("x", path),
            lambda path, view=view: view.sync([path]),
            lambda path, view=view: view.put_each([("x", b""), (path, b"")]),
            view.url,
        ):
            with raises(InvalidRequest, "invalid_path"):
                ask(path)
    if path not in ("", "a/"):  # a folder may end in a slash, and "" is the root
        for ask in (lambda path: list(store.list(path)), store.list_with_delimiter, store.sub):
            with pytest.raises(InvalidRequest):
                ask(path)


def test_copy(store: Any) -> None:
    """A copy is an object of its own; create-only copies respect what is there."""
    store.put("a", b"1")
    store.copy("a", "b/c")
    store.put("a", b"2")
    assert bytes(store.get("b/c")) == b"1"
    store.copy("a", "b/c")
    assert bytes(store.get("b/c")) == b"2"
    with pytest.raises(AlreadyExists):
        store.copy("a", "b/c", create_only=True)
    store.copy("a", "d", create_only=True)
    assert bytes(store.get("d")) == b"2"


def test_views_see_their_folder_only(store: Any) -> None:
    """A view names objects from its own root, and counts into the store it came from."""
    view = store.sub("x").sub("y/")
    with store.count() as all_requests, store.sub("other").count() as other, store.sub("x").count() as mine:
        view.put("a", b"123")
        store.put("z", b"")
    assert (all_requests.put, mine.put, other.put) == (2, 1, 0)
    assert (mine.bytes_written, mine.total) == (3, 1)
    assert paths(view.list()) == ["a"]
    assert paths(store.list()) == ["x/y/a", "z"]
    assert view.head("a").path == "a"
    assert paths(view.list_with_delimiter().objects) == ["a"]
    assert store.sub("x").list_with_delimiter().folders == ("y",)
    assert view.root_url == f"{store.root_url}/x/y"
    assert paths(view.list(start_after="A")) == ["a"]
    view.delete(["a"])
    assert paths(store.list()) == ["z"]


def test_counts(store: Any) -> None:
    """Each operation counts the requests and bytes it says it costs, and nothing outside of the block."""
    store.put("before", b"x")
    with store.count() as requests:
        store.put("a", b"12345", create_only=True)
        store.get("a")
        store.get("a", byte_range=(0, 2))
        store.head("a")
        list(store.list())
        store.list_with_delimiter()
        store.copy("a", "b")
        store.delete(["a", "b"])
        with pytest.raises(NotFound):
            store.get("a")
    store.get("before")
    shown = (requests.put, requests.get, requests.head, requests.list, requests.copy, requests.delete)
    assert shown == (1, 3, 1, 2, 1, 1)
    assert (requests.bytes_written, requests.bytes_read) == (5, 7)
    assert (requests.errors, requests.retries, requests.total) == (0, 0, 9)
    assert set(requests.seconds) == {"put", "get", "head", "list", "copy", "delete"}


def test_sync_of_what_others_wrote(store: Any) -> None:
    """Objects written in place can be made durable in bulk."""
    put_many(store, ["a/1", "a/2", "b/3"])
    store.sync(["a/1", "a/2", "b/3"])
    store.sync([])


def test_several_objects_at_once(store: Any) -> None:
    """All are there; a name that is taken is refused, and its object stays."""
    with store.count() as requests:
        store.sub("a").put_each([("1", b"one"), ("2", memoryview(b"two")), ("3", b"")])
    assert (requests.put, requests.bytes_written) == (3, 6)
    assert [bytes(store.get(f"a/{name}")) for name in "123"] == [b"one", b"two", b""]
    with pytest.raises(AlreadyExists):
        store.put_each([("a/4", b"four"), ("a/2", b"other")])
    assert bytes(store.get("a/2")) == b"two"
    store.put_each([])


def test_another_opening_sees_the_same_objects(opened: Callable[..., Any]) -> None:
    """A store is its URL: nothing of it is in the object that opened it."""
    opened().put("a", b"1")
    assert bytes(opened().get("a")) == b"1"
    assert opened().root_url == opened().root_url
