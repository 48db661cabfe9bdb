"""Local folders: what the system is asked to do, and what is refused."""

from __future__ import annotations

import contextlib
import ctypes
import errno
import itertools
import mmap
import os
import pickle
import random
import resource
import stat
import threading
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from lakebed.errors import AlreadyExists, InvalidRequest, NotFound, OutcomeUnknown, Unavailable
from lakebed.objects import StoreLimits, local, open_store
from lakebed.objects.create_once import create_once, put_new
from lakebed.objects.limits import UPLOAD_PART_BYTES_MIN
from lakebed.objects.local import LocalDriver
from lakebed.objects.port import ObjectStore
from lakebed.runtime import Environment
from worlds.errors import raises
from worlds.scripts import run_script

CALLS = ("open", "write", "read", "fsync", "link", "rename", "unlink", "close", "fstat", "lstat", "scandir", "pread")


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The system calls made through `os`, in order, each still done."""
    made: list[str] = []

    def noted(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **settings: Any) -> Any:
            made.append(name)
            return function(*args, **settings)

        return call

    for name in CALLS:
        monkeypatch.setattr(os, name, noted(name, getattr(os, name)))
    return made


def open_named(folder: Path, *, with_names: bool, **settings: Any) -> Any:
    """A store that must, or need not, give its unfinished files names."""
    store = open_store(folder, **settings)
    if with_names:
        store._driver._nameless = False
    return store


def evict(path: Path) -> bool:
    """Ask the system to drop a small file from its memory; whether it did, which a file system in memory does not."""
    residence = ctypes.c_ubyte(1)
    with path.open("r+b") as file, mmap.mmap(file.fileno(), 0) as mapped:
        start = ctypes.c_char.from_buffer(mapped)
        for _ in range(1000):  # what another processor has just written may have to wait for it
            os.fsync(file.fileno())
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
            ctypes.CDLL(None).mincore(ctypes.byref(start), ctypes.c_size_t(len(mapped)), ctypes.byref(residence))
            if not residence.value & 1:
                break
        del start
    return not residence.value & 1


@pytest.mark.skipif(not hasattr(os, "RWF_NOWAIT"), reason="only Linux tells whether a read would wait")
def test_what_was_just_written_is_resident(tmp_path: Path) -> None:
    """Whole objects and ranges up to 64 KiB; no more, nor what is not whole, or not there."""
    store = open_store(tmp_path)
    store.put("small", b"0123456789")
    store.put("empty", b"")
    store.put("large", bytes(65_537))
    assert store.get_resident("small") == b"0123456789"
    assert store.get_resident("small", byte_range=(3, 5)) == b"34"
    assert store.get_resident("small", byte_range=(8, 11)) is None  # `get` gives what there is
    assert store.get_resident("empty") == b""
    assert store.get_resident("large") is None
    assert store.get_resident("large", byte_range=(1, 65_537)) == bytes(65_536)
    assert memoryview(store.get_resident("small")).readonly
    with pytest.raises(NotFound):
        store.get_resident("absent")


@pytest.mark.skipif(not hasattr(os, "RWF_NOWAIT"), reason="only Linux tells whether a read would wait")
def test_what_the_disk_has_to_give_is_not_resident_until_it_was_read(tmp_path: Path) -> None:
    """An event loop never waits for a disk.

    A request for a resident object also begins to read ahead. A quick disk, or a process that is not given a processor
    just then, has the object once in a few hundred times before the system answers.
    """
    store = open_store(tmp_path)
    store.put("a", b"0123456789")
    answers: list[bytes | None] = []
    while len(answers) < 20 and None not in answers:
        if not evict(tmp_path / "a"):
            pytest.skip("this file system keeps its files in memory")
        resident = store.get_resident("a")
        answers.append(None if resident is None else bytes(resident))
    assert answers[-1] is None
    assert {*answers} <= {None, b"0123456789"}
    assert store.get("a") == b"0123456789"
    assert store.get_resident("a") == b"0123456789"


def test_a_read_that_would_wait_gives_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As of a file that is in no memory: the descriptor is closed, and no request is counted."""

    def refuse(*_: Any) -> int:
        raise BlockingIOError(errno.EAGAIN, "would wait")

    monkeypatch.setattr(os, "preadv", refuse)
    store = open_store(tmp_path)
    store.put("a", b"0123456789")
    open_count = len(os.listdir("/dev/fd"))
    with store.count() as requests:
        assert store.get_resident("a") is None
    assert (requests.get, len(os.listdir("/dev/fd"))) == (0, open_count)
    assert store.get("a") == b"0123456789"


def test_where_the_system_cannot_tell_nothing_is_resident(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As on macOS."""
    monkeypatch.setattr(local, "_RWF_NOWAIT", None)
    store = open_store(tmp_path)
    store.put("a", b"0123456789")
    assert store.get_resident("a") is None


def test_a_durable_create_costs_nine_calls(tmp_path: Path, calls: list[str]) -> None:
    """Once the folder is known: open it, write a nameless file, sync, link and close, sync and close the folder."""
    store = open_store(tmp_path)
    store.put("a/first", b"x", create_only=True)
    calls.clear()
    store.put("a/second", b"x", create_only=True)
    assert calls == ["open", "open", "write", "fsync", "link", "close", "fstat", "fsync", "close"]


def test_without_durability_nothing_is_synced(tmp_path: Path, calls: list[str]) -> None:
    """``durable=False``, of the call or of the store, never waits for the disk."""
    store = open_store(tmp_path, durable=False)
    store.put("a/first", b"x", create_only=True)
    store.put("a/first", b"y")
    store.delete(["a/first"])
    store.put("a/second", b"x", create_only=True)
    store.sync(["a/second"])
    open_store(tmp_path).put("a/third", b"x", durable=False)
    assert "fsync" not in calls


def test_the_first_durable_put_syncs_the_folders_above(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A new folder is durable only when its parent is synced: all of them are, once."""
    synced: list[str] = []
    real = os.fsync
    monkeypatch.setattr(os, "fsync", lambda fd: (synced.append(os.readlink(f"/proc/self/fd/{fd}")), real(fd))[1])
    store = open_store(tmp_path / "root")
    store.put("a/b/x", b"", create_only=True)
    wanted = [tmp_path / "root/a/b", tmp_path / "root/a", tmp_path / "root", tmp_path]
    assert [path for path in synced if not path.endswith("(deleted)") and "#" not in path][: len(wanted)] == [
        str(path) for path in wanted
    ]
    synced.clear()
    store.put("a/b/y", b"", create_only=True)
    assert [path for path in synced if path == str(tmp_path)] == []


@pytest.mark.parametrize(
    ("size_bytes", "look"), [(0, []), (65_535, []), (65_536, ["fstat"]), (65_537, ["fstat", "pread"])]
)
def test_a_small_read_costs_three_calls(tmp_path: Path, calls: list[str], size_bytes: int, look: list[str]) -> None:
    """Open, read, close; one that may be larger is looked at."""
    store = open_store(tmp_path)
    body = os.urandom(size_bytes)
    store.put("a", body)
    calls.clear()
    assert bytes(store.get("a")) == body
    assert calls == ["open", "read", *look, "close"]


def test_paths_are_listed_without_a_look_at_each_file(tmp_path: Path, calls: list[str]) -> None:
    """A log of a thousand numbers is one call of the system for its folder; sizes are a call a file more."""
    store = open_store(tmp_path, durable=False)
    names = [f"log/{number:04d}" for number in range(30)]
    for name in names:
        store.put(name, b"x")
    calls.clear()
    assert list(store.list_paths("log")) == names
    assert calls == ["scandir"]
    calls.clear()
    assert [meta.path for meta in store.list("log", start_after=names[-3])] == names[-2:]
    assert calls == ["scandir", "lstat", "lstat"]


def test_a_range_costs_three_calls_and_several_one_more_each(tmp_path: Path, calls: list[str]) -> None:
    """Open, read, close; the size is looked at where a range ends behind the file."""
    store = open_store(tmp_path)
    body = os.urandom(50_000)
    store.put("a", body)
    for ranges, reads in (
        ([(0, 100)], ["pread"]),
        ([(99, 50_000)], ["pread"]),
        ([(3, 7), (20_000, 20_001), (40_000, 40_009)], 3 * ["pread"]),
        ([(49_000, 60_000)], ["pread", "fstat", "pread"]),
    ):
        calls.clear()
        assert [bytes(part) for part in store.get_ranges("a", ranges)] == [body[start:end] for start, end in ranges]
        assert calls == ["open", *reads, "close"]


@pytest.mark.parametrize("size_bytes", [0, 1, 999, 1000, 1001, 2000, 66_000])
def test_what_one_call_does_not_move_several_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, size_bytes: int
) -> None:
    """A system moves 2 GiB at most at a time; here it is 1000 bytes, and half of what is asked for."""
    monkeypatch.setattr(local, "_IO_BYTES_MAX", 1000)
    write, pread, preadv = os.write, os.pread, os.preadv

    def half(count: int) -> int:
        return (min(count, 1000) + 1) // 2

    monkeypatch.setattr(os, "write", lambda file, body: write(file, body[: half(len(body))]))
    monkeypatch.setattr(os, "pread", lambda file, count, start: pread(file, half(count), start))
    monkeypatch.setattr(
        os, "preadv", lambda file, views, start: preadv(file, [view[: half(len(view))] for view in views], start)
    )
    store, body = open_store(tmp_path), os.urandom(size_bytes)
    for create_only in (True, False):
        store.put("a", body, create_only=create_only)
        assert bytes(store.get("a")) == body
    if size_bytes:
        ranges = [(0, 1), (0, size_bytes), (size_bytes // 3, size_bytes), (size_bytes - 1, size_bytes)]
        assert [bytes(part) for part in store.get_ranges("a", ranges)] == [body[start:end] for start, end in ranges]


@pytest.mark.parametrize("with_names", [False, True])
def test_a_file_is_whole_when_it_appears(tmp_path: Path, with_names: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """While a body is written, and after a failure, neither listing nor reading shows it; nothing is left behind."""
    store = open_named(tmp_path, with_names=with_names)
    seen: list[list[str]] = []
    real = os.write

    def write(descriptor: int, body: Any) -> int:
        seen.append([meta.path for meta in store.list()])
        return real(descriptor, body[: max(1, len(body) // 2)])

    monkeypatch.setattr(os, "write", write)
    store.put("a", b"x" * 1000, create_only=True)
    store.put("b", b"y" * 1000)
    monkeypatch.undo()
    assert len(seen) > 10
    assert {tuple(paths) for paths in seen} == {(), ("a",)}
    assert bytes(store.get("a")) == b"x" * 1000

    def fail(descriptor: int, body: Any) -> int:
        raise OSError(errno.ENOSPC, "full")

    monkeypatch.setattr(os, "write", fail)
    for create_only in (True, False):
        with raises(Unavailable, "disk_full"):
            store.put("c", b"z", create_only=create_only)
    assert sorted(os.listdir(tmp_path)) == ["a", "b"]


@pytest.mark.parametrize("with_names", [False, True])
def test_a_folder_that_cannot_be_synced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, with_names: bool) -> None:
    """Once a file has its name no error denies it; a name that is reported as taken is durable."""
    store = open_named(tmp_path, with_names=with_names)
    store.put("warm", b"x", create_only=True)
    real, synced = os.fsync, []

    def sync(descriptor: int) -> None:
        is_folder = stat.S_ISDIR(os.fstat(descriptor).st_mode)
        synced.append(is_folder)
        if is_folder and len(synced) == 2:
            raise OSError(errno.ENOSPC, "full")
        real(descriptor)

    monkeypatch.setattr(os, "fsync", sync)
    with raises(OutcomeUnknown, "unsynced"):
        store.put("a", b"1", create_only=True)
    synced += [False, False]
    with pytest.raises(AlreadyExists):
        store.put("a", b"1", create_only=True)
    assert synced[-1], "the folder was synced before the name was called taken"
    assert bytes(store.get("a")) == b"1"


@pytest.mark.parametrize(
    "create", [put_new, partial(create_once, environment=Environment())], ids=["put_new", "create_once"]
)
def test_what_could_not_be_synced_is_not_put_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, create: Callable[[ObjectStore, str, bytes], None]
) -> None:
    """The system reports a failed sync once: a second try would be told that all is well."""
    store = open_named(tmp_path, with_names=False)
    store.put("warm", b"x", create_only=True)
    real, failures = os.fsync, [errno.EIO]

    def sync(descriptor: int) -> None:
        if stat.S_ISDIR(os.fstat(descriptor).st_mode) and failures:
            raise OSError(failures.pop(), "input/output error")
        real(descriptor)

    monkeypatch.setattr(os, "fsync", sync)
    with raises(OutcomeUnknown, "unsynced", match="may be gone after a power loss"):
        create(store, "a", b"1")


@pytest.mark.parametrize("with_names", [False, True])
def test_create_only_never_replaces(tmp_path: Path, with_names: bool) -> None:
    """Both ways of creating refuse a taken name and leave no other file."""
    store = open_named(tmp_path, with_names=with_names)
    store.put("a", b"1", create_only=True)
    with pytest.raises(AlreadyExists):
        store.put("a", b"2", create_only=True)
    assert bytes(store.get("a")) == b"1"
    assert os.listdir(tmp_path) == ["a"]


@pytest.mark.parametrize("with_names", [False, True])
def test_an_object_that_is_written_where_it_will_be(tmp_path: Path, with_names: bool) -> None:
    """It is there when it is whole, and not before; it replaces nothing, and leaves nothing when it is abandoned."""
    store = open_named(tmp_path / "new", with_names=with_names)
    open_count = len(os.listdir("/dev/fd"))
    with store.count() as requests:
        upload = store.begin_put("folder/a")
        upload.write(memoryview(b"one, "))
        upload.write(memoryview(b"two"))
        assert list(store.list()) == []
        upload.finish()
    assert (requests.put, requests.bytes_written, requests.errors) == (1, 8, 0)
    assert bytes(store.get("folder/a")) == b"one, two"
    late, abandoned = store.begin_put("folder/a"), store.begin_put("folder/b")
    for upload in (late, abandoned):
        upload.write(memoryview(b"three"))
    with pytest.raises(AlreadyExists):
        late.finish()
    for upload in (late, abandoned):
        upload.abandon()
    assert os.listdir(tmp_path / "new" / "folder") == ["a"]
    assert bytes(store.get("folder/a")) == b"one, two"
    assert len(os.listdir("/dev/fd")) == open_count


@pytest.mark.parametrize("with_names", [False, True])
def test_a_durable_upload_is_on_the_disk_before_it_is_named(tmp_path: Path, calls: list[str], with_names: bool) -> None:
    """Its bytes are synced, then it gets its name, then its folder is synced; without durability nothing is."""
    store = open_named(tmp_path, with_names=with_names)
    store.put("warm", b"x", create_only=True)
    for durable, synced in ((True, ["fsync", "link", "fsync"]), (False, ["link"])):
        upload = store.begin_put(f"a-{durable}", durable=durable)
        upload.write(memoryview(b"1"))
        calls.clear()
        upload.finish()
        assert [call for call in calls if call in ("fsync", "link")] == synced


def test_an_upload_to_a_full_disk_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The store says what was missing, counts an error, and gives back the place of what was written."""
    store = open_store(tmp_path)
    with store.count() as requests:
        upload = store.begin_put("a")
        upload.write(memoryview(b"1"))
        with monkeypatch.context() as patch:
            patch.setattr(os, "write", raise_full)
            with raises(Unavailable, "disk_full"):
                upload.write(memoryview(b"2"))
        upload.abandon()
    assert (requests.put, requests.errors, requests.bytes_written) == (1, 1, 0)
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize("with_names", [False, True])
def test_an_upload_is_not_closed_under_a_write(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, with_names: bool
) -> None:
    """One that is abandoned while another thread writes ends behind that: the descriptor may be another file's then."""
    store = open_named(tmp_path, with_names=with_names)
    upload, write = store.begin_put("a"), os.write
    abandoning = threading.Thread(target=upload.abandon)

    def write_late(descriptor: int, body: memoryview) -> int:
        abandoning.start()
        abandoning.join(0.1)
        return write(descriptor, body)

    with monkeypatch.context() as patch:
        patch.setattr(os, "write", write_late)
        upload.write(memoryview(b"1"))
    abandoning.join()
    with pytest.raises(Unavailable):
        upload.write(memoryview(b"2"))
    assert os.listdir(tmp_path) == []


def raise_full(*_: Any) -> int:
    """What a write to a full disk does."""
    raise OSError(errno.ENOSPC, "no space left")


def test_a_file_system_without_nameless_files_is_served(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where ``O_TMPFILE`` is not known, hidden names serve, and the store remembers."""
    store = open_store(tmp_path, limits=StoreLimits(upload_part_bytes=UPLOAD_PART_BYTES_MIN))
    real = os.open

    def refuse(path: Any, flags: int, *args: Any, **settings: Any) -> int:
        if flags & os.O_TMPFILE == os.O_TMPFILE:
            raise OSError(errno.EOPNOTSUPP, "not here")
        return real(path, flags, *args, **settings)

    monkeypatch.setattr(os, "open", refuse)
    upload = store.begin_put("a/b")
    upload.write(memoryview(b"1"))
    upload.finish()
    with pytest.raises(AlreadyExists):
        store.put("a/b", b"2", create_only=True)
    assert bytes(store.get("a/b")) == b"1"
    assert not store._driver._nameless
    other = open_store(tmp_path / "other")
    other.put("a/b", b"1", create_only=True)
    assert bytes(other.get("a/b")) == b"1"


def test_a_name_whose_reply_was_lost_is_ours(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file system of a network that names a file twice, as after a lost reply, refuses no put that has succeeded."""
    store = open_store(tmp_path, limits=StoreLimits(upload_part_bytes=UPLOAD_PART_BYTES_MIN))
    store._driver._nameless = False
    real = os.link

    def link_twice(source: Any, target: Any, **settings: Any) -> None:
        real(source, target, **settings)
        real(source, target, **settings)

    monkeypatch.setattr(os, "link", link_twice)
    upload = store.begin_put("a/b")
    upload.write(memoryview(b"1"))
    upload.finish()
    store.put("a/c", b"2", create_only=True)
    with pytest.raises(AlreadyExists):
        store.put("a/c", b"2", create_only=True)
    assert sorted(os.listdir(tmp_path / "a")) == ["b", "c"]
    assert [bytes(store.get(path)) for path in ("a/b", "a/c")] == [b"1", b"2"]


def test_leftovers_of_a_crash_are_hidden(tmp_path: Path) -> None:
    """A hidden file that a crash left is not listed, and its kind of name is refused."""
    (tmp_path / ".lakebed-0123456789abcdef.tmp").write_bytes(b"half")
    store = open_store(tmp_path)
    assert list(store.list()) == []
    assert store.list_with_delimiter().objects == ()
    with pytest.raises(InvalidRequest):
        store.put(".lakebed-0123456789abcdef.tmp", b"")


def test_links_do_not_lead_out(tmp_path: Path) -> None:
    """Linked files and folders below the root are not objects: not listed, not read, not written through."""
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "secret").write_bytes(b"secret")
    root = tmp_path / "root"
    root.mkdir()
    (root / "folder").symlink_to(outside)
    (root / "file").symlink_to(outside / "secret")
    store = open_store(root)
    assert list(store.list()) == []
    for ask in (
        lambda: store.get("folder/secret"),
        lambda: store.get("file"),
        lambda: store.head("folder/secret"),
        lambda: store.put("folder/new", b"", create_only=True),
        lambda: store.put("folder/deep/new", b""),
        lambda: store.delete(["folder/secret"]),
        lambda: list(store.list("folder")),
    ):
        with raises(InvalidRequest, "path_escape"):
            ask()
    assert sorted(os.listdir(outside)) == ["secret"]


def test_a_root_may_be_a_link(tmp_path: Path) -> None:
    """The folder that a person names may be reached through a link, and keeps the name that they gave."""
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "real")
    store = open_store(tmp_path / "link")
    store.put("a/b", b"1", create_only=True)
    assert (tmp_path / "real/a/b").read_bytes() == b"1"
    assert store.root_url == f"file://{tmp_path}/link"


@pytest.mark.parametrize("root", ["/", "//", "file:///", "file:////"])
def test_the_root_of_the_system_is_a_folder_like_others(root: str, tmp_path: Path) -> None:
    """It has no parent, so nothing above it is synced; two slashes before a path are one."""
    store, path = open_store(root), f"{str(tmp_path)[1:]}/below/x"
    store.put(path, b"x", create_only=True)
    assert store.get(path) == b"x" == (tmp_path / "below" / "x").read_bytes()
    assert store.root_url == "file:///"
    assert store.url(path) == f"file://{tmp_path}/below/x"


def test_a_name_is_a_file_or_a_folder(tmp_path: Path) -> None:
    """An object below an object cannot be on a local folder: one clear sentence, and reading finds nothing."""
    store = open_store(tmp_path)
    store.put("a/b", b"1")
    for ask in (lambda: store.put("a/b/c", b""), lambda: store.put("a", b"")):
        with pytest.raises(InvalidRequest, match="either a file or a folder"):
            ask()
    for path in ("a", "a/b/c"):
        with pytest.raises(NotFound):
            store.get(path)
        with pytest.raises(NotFound):
            store.head(path)
    store.delete(["a", "a/b/c"])
    assert bytes(store.get("a/b")) == b"1"


@pytest.mark.parametrize(
    ("code", "kind"),
    [(errno.EACCES, "permission_denied"), (errno.EROFS, "permission_denied"), (errno.ENAMETOOLONG, "invalid_path")],
)
def test_refusals_of_the_system_are_one_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int, kind: str
) -> None:
    """A read-only folder and the like are said once, with the path, and are not tried again."""
    store = open_store(tmp_path, limits=StoreLimits(upload_part_bytes=UPLOAD_PART_BYTES_MIN))
    real = os.open

    def refuse(path: Any, flags: int, *args: Any, **settings: Any) -> int:
        if flags & (os.O_WRONLY | os.O_RDWR):
            raise OSError(code, "no")
        return real(path, flags, *args, **settings)

    monkeypatch.setattr(os, "open", refuse)
    chunks = [bytes(UPLOAD_PART_BYTES_MIN), b"1"]
    for ask, create_only in itertools.product(
        (partial(store.put, "a", b"1"), partial(store.put_stream, "a", chunks)), (True, False)
    ):
        with raises(InvalidRequest, kind) as caught:
            ask(create_only=create_only)
        assert str(tmp_path) in str(caught.value)
        assert "\n" not in str(caught.value)


def test_opening_writes_nothing(tmp_path: Path) -> None:
    """A store on a missing folder lists nothing and makes nothing; without ``create`` it is refused."""
    store = open_store(tmp_path / "missing")
    assert list(store.list()) == []
    with pytest.raises(NotFound):
        store.get("a")
    with raises(NotFound, "store_not_found"):
        open_store(tmp_path / "missing", create=False)
    assert os.listdir(tmp_path) == []
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(InvalidRequest, match="is a file"):
        open_store(tmp_path / "file")


def test_a_removed_folder_is_made_again(tmp_path: Path) -> None:
    """Another process that cleans up empty folders does not break later puts."""
    store = open_store(tmp_path)
    store.put("a/b/c", b"1", create_only=True)
    store.delete(["a/b/c"])
    (tmp_path / "a/b").rmdir()
    (tmp_path / "a").rmdir()
    store.put("a/b/c", b"2", create_only=True)
    assert bytes(store.get("a/b/c")) == b"2"


def test_a_local_store_pickles(tmp_path: Path) -> None:
    """Spark's executors open their own store on the same folder."""
    store = open_store(tmp_path, durable=False, limits=StoreLimits(retry_count_max=1)).sub("x")
    copy = pickle.loads(pickle.dumps(store))
    store.put("a", b"1")
    assert bytes(copy.get("a")) == b"1"
    assert copy.root_url == store.root_url


def test_remembered_folders_are_bounded(tmp_path: Path) -> None:
    """A store that sees many folders does not remember them all."""
    store = open_store(tmp_path, limits=StoreLimits(folder_memory_count_max=3), durable=False)
    for number in range(10):
        store.put(f"{number}/a", b"")
        assert bytes(store.get(f"{number}/a")) == b""
    driver = store._driver
    assert isinstance(driver, LocalDriver)
    assert len(driver._checked) <= 3


def test_a_remembered_folder_costs_no_second_look(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As many as the limit allows are remembered together: the folders above them are synced once."""
    store = open_store(tmp_path, limits=StoreLimits(folder_memory_count_max=3))
    folders = ("a", "b", "c")
    for folder in folders:
        store.put(f"{folder}/first", b"")
    for folder in folders:
        store.put(f"{folder}/second", b"")  # making a folder forgets the others
    synced: list[str] = []
    real = os.fsync
    monkeypatch.setattr(os, "fsync", lambda fd: (synced.append(os.readlink(f"/proc/self/fd/{fd}")), real(fd))[1])
    for folder in folders:
        store.put(f"{folder}/third", b"")
    assert str(tmp_path) not in synced


def test_a_folder_that_cannot_be_opened_to_be_synced(tmp_path: Path) -> None:
    """The error is the store's, and names the folder: too many open files are no reason to call it durable."""
    store = open_store(tmp_path)
    store.put("folder/file", b"")
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    taken: list[int] = []
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (max(map(int, os.listdir("/proc/self/fd"))) + 8, limits[1]))
        with contextlib.suppress(OSError):
            while True:
                taken.append(os.open(tmp_path, os.O_RDONLY))
        os.close(taken.pop())  # for the file
        with raises(Unavailable, "io_error", match="sync"):
            store.sync(["folder/file"])
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)
        for descriptor in taken:
            os.close(descriptor)


def test_unfinished_files_of_a_crash_are_removed_a_day_later(tmp_path: Path) -> None:
    """A put that died leaves a hidden file; the next store that replaces an object there takes it away, if old."""
    store = open_store(tmp_path)
    store.put("a/lease", b"1")
    old, young = tmp_path / "a/.lakebed-00000000000000aa.tmp", tmp_path / "a/.lakebed-00000000000000bb.tmp"
    old.write_bytes(b"half")
    young.write_bytes(b"half")
    os.utime(old, (1_000_000, 1_000_000))
    open_store(tmp_path).put("a/lease", b"2")
    assert not old.exists()
    assert young.exists()
    assert bytes(store.get("a/lease")) == b"2"


def test_large_pieces_are_read_with_and_without_arrow(tmp_path: Path) -> None:
    """Also such as end behind the object; who gets a piece cannot change it, nor does the next one."""
    body = random.Random(1).randbytes(700_000)
    (tmp_path / "large").write_bytes(body)
    code = """
import sys
from lakebed.objects import open_store

store, body = open_store(sys.argv[1]), open(sys.argv[1] + "/large", "rb").read()
ranges = [(0, 131_071), (0, 131_072), (5, 400_005), (0, 700_000), (1, 700_001), (500_000, 2_000_000), (100, 5_000_000)]
assert "pyarrow" not in sys.modules
for _ in range(2):
    pieces = [store.get("large", byte_range=pair) for pair in ranges] + store.get_ranges("large", ranges)
    for piece, (start, end) in zip(pieces, ranges + ranges, strict=True):
        assert memoryview(piece).readonly and piece == body[start:end], (start, end)
    assert store.get("large") == body
    import pyarrow
print("read")
"""
    assert run_script(code, str(tmp_path)) == "read\n"
