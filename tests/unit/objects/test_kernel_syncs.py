"""Syncs of many files in one request to the kernel: what they cover, and who learns of a failure."""

from __future__ import annotations

import ctypes
import errno
import os
import platform
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from lakebed.errors import AlreadyExists, NotFound, OutcomeUnknown, Unavailable
from lakebed.objects import kernel_syncs, local, open_store
from lakebed.objects.create_once import put_new_each
from lakebed.objects.kernel_syncs import sync_each
from worlds.errors import raises

OBJECTS = [(f"data/{number}", b"x" * number) for number in range(5)]
PATHS = [path for path, _ in OBJECTS]


SAYS_SO = Path("/proc/sys/fs/aio-max-nr")
"""Where a kernel that has queues says how many; not asked of the code, or tests of broken code would be skipped."""

needs_queue = pytest.mark.skipif(
    platform.machine() not in {"x86_64", "aarch64"} or not SAYS_SO.exists(), reason="this system has no such syncs"
)


@pytest.fixture
def files(tmp_path: Path) -> Iterator[list[int]]:
    """Open files that were written."""
    descriptors = [os.open(tmp_path / str(number), os.O_CREAT | os.O_RDWR) for number in range(3)]
    for descriptor in descriptors:
        os.write(descriptor, b"bytes")
    yield descriptors
    for descriptor in descriptors:
        os.close(descriptor)


@pytest.fixture
def synced(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The numbers of the files and folders that a store syncs, however it does so."""
    made: list[int] = []

    def note(descriptor: int) -> None:
        made.append(os.fstat(descriptor).st_ino)

    def sync_together(descriptors: Sequence[int]) -> list[int] | None:
        for descriptor in descriptors:
            note(descriptor)
        return sync_each(descriptors)

    fsync = os.fsync
    monkeypatch.setattr(local, "sync_each", sync_together)
    monkeypatch.setattr(os, "fsync", lambda descriptor: (note(descriptor), fsync(descriptor))[1])
    return made


def names(numbers: list[int], root: Path) -> set[str]:
    """The names of files and folders at or below a root."""
    places = [root, *root.rglob("*")]
    return {place.name for place in places if place.stat().st_ino in numbers}


def answer_to(call: Callable[..., int], change: Callable[[int], None]) -> Callable[..., int]:
    """A system call whose events are changed before they are read."""

    def change_events(name: str, *arguments: int) -> int:
        result = call(name, *arguments)
        if name == "get_events":
            change(arguments[3])
        return result

    return change_events


@needs_queue
class TestKernel:
    """Where the system does it."""

    def test_files_and_folders_are_synced(self, files: list[int], tmp_path: Path) -> None:
        """In two system calls, and a queue serves the next ones, too."""
        folder = os.open(tmp_path, os.O_RDONLY)
        assert sync_each([*files, folder]) == [0, 0, 0, 0]
        os.close(folder)
        queue = kernel_syncs._QUEUES[-1]
        assert sync_each(files * 21) == [0] * 63
        assert kernel_syncs._QUEUES[-1] == queue

    def test_a_failure_is_told_of_its_file(self, files: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
        """Wherever its answer comes; the others have none."""

        def fail_the_second(events: int) -> None:
            for at in range(len(files)):
                row, place, _, more = kernel_syncs._EVENT.unpack(ctypes.string_at(events + 32 * at, 32))
                code = -errno.EIO if row == 1 else 0
                ctypes.memmove(events + 32 * at, kernel_syncs._EVENT.pack(row, place, code, more), 32)

        monkeypatch.setattr(kernel_syncs, "_call", answer_to(kernel_syncs._call, fail_the_second))
        assert sync_each(files) == [0, errno.EIO, 0]

    def test_what_cannot_be_synced_is_left_to_the_caller(self, files: list[int]) -> None:
        """Nothing is known of any then, so that each is asked for."""
        reading, writing = os.pipe()
        assert sync_each([reading, *files]) is None
        assert sync_each([*files, reading]) is None
        os.close(reading)
        os.close(writing)
        assert sync_each(files) == [0, 0, 0]

    def test_a_failure_beside_what_cannot_be_synced_is_told(
        self, files: list[int], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """The system tells it once: a caller that asked for each again would be told that all is well."""

        def fail_the_first(events: int) -> None:
            row, place, _, more = kernel_syncs._EVENT.unpack(ctypes.string_at(events, 32))
            ctypes.memmove(events, kernel_syncs._EVENT.pack(row, place, -errno.EIO, more), 32)

        reading, writing = os.pipe()
        monkeypatch.setattr(kernel_syncs, "_call", answer_to(kernel_syncs._call, fail_the_first))
        outcomes = sync_each([files[0], reading])
        os.close(reading)
        os.close(writing)
        assert outcomes is not None
        assert outcomes[0] == errno.EIO

    def test_an_interrupted_queue_is_left(self, files: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
        """Its answers are still to come, and would be taken for those to the next request."""
        kernel_syncs._QUEUES.clear()

        def interrupt(name: str, *arguments: int) -> int:
            if name == "get_events":
                raise KeyboardInterrupt
            return call(name, *arguments)

        call = kernel_syncs._call
        with monkeypatch.context() as patch:
            patch.setattr(kernel_syncs, "_call", interrupt)
            with pytest.raises(KeyboardInterrupt):
                sync_each(files)
        assert kernel_syncs._QUEUES == []
        assert sync_each(files) == [0, 0, 0]

    def test_a_queue_that_gives_no_answer_is_an_error(self, files: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
        """It is asked again after an interrupt alone: what cannot be known is not waited for."""
        kernel_syncs._QUEUES.clear()
        replies = [-errno.EINTR, -errno.EINVAL]

        def refuse(name: str, *arguments: int) -> int:
            return replies.pop(0) if name == "get_events" else call(name, *arguments)

        call = kernel_syncs._call
        with monkeypatch.context() as patch:
            patch.setattr(kernel_syncs, "_call", refuse)
            with pytest.raises(OSError, match="Invalid") as caught:
                sync_each(files)
        assert (caught.value.errno, replies) == (errno.EINVAL, [])
        assert kernel_syncs._QUEUES == [], "its answers are still to come"
        assert sync_each(files) == [0, 0, 0]

    def test_a_fork_has_queues_of_its_own(self, files: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
        """A queue is of the memory of one process."""
        sync_each(files)
        monkeypatch.setattr(os, "getpid", lambda: -1)
        assert sync_each(files) == [0, 0, 0]
        assert [queue.process for queue in kernel_syncs._QUEUES] == [-1]
        kernel_syncs._QUEUES.clear()


@pytest.fixture(params=["kernel", "threads", "names"])
def store(request: pytest.FixtureRequest, tmp_path: Path, synced: list[int], monkeypatch: pytest.MonkeyPatch) -> Any:
    """A store of a folder: as the system has it, without its queues, and without files that have no name."""
    opened: Any = open_store(tmp_path)
    opened.put("data/first", b"", create_only=True)
    if request.param == "threads":
        monkeypatch.setattr(local, "sync_each", lambda descriptors: None)
    elif request.param == "names":
        opened._driver._nameless = False
    synced.clear()
    return opened


def test_objects_that_are_put_together_are_durable(store: Any, synced: list[int], tmp_path: Path) -> None:
    """Each file and their folder are synced when the call returns."""
    store.put_each(OBJECTS)
    assert {path: bytes(store.get(path)) for path in PATHS} == dict(OBJECTS)
    assert names(synced, tmp_path) == {"0", "1", "2", "3", "4", "data"}
    with pytest.raises(AlreadyExists):
        store.put_each([("data/9", b""), ("data/1", b"other")])
    assert bytes(store.get("data/1")) == b"x"


def test_a_folder_is_made_for_them(store: Any, synced: list[int], tmp_path: Path) -> None:
    """With those above, which are durable, too."""
    store.put_each([("new/deep/1", b"1"), ("new/deep/2", b"2")])
    assert {"1", "2", "deep", "new", tmp_path.name} <= names(synced, tmp_path)
    store.put_each([("data/a", b"1"), ("other/b", b"2")])
    assert {"a", "b", "data", "other"} <= names(synced, tmp_path)


@needs_queue
def test_objects_of_several_folders_are_synced_together(
    tmp_path: Path, synced: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """One request for the files and their folders: what a commit writes takes as long as one of its files."""
    store = open_store(tmp_path)
    for path in ("ranges/1", "metaranges/1"):
        store.put(path, b"", create_only=True)
    synced.clear()
    requests: list[int] = []
    counted = local.sync_each
    monkeypatch.setattr(
        local, "sync_each", lambda descriptors: (requests.append(len(descriptors)), counted(descriptors))[1]
    )
    store.put_each([("ranges/2", b"2"), ("ranges/3", b"3"), ("metaranges/2", b"22")])
    assert requests == [5]
    assert {"2", "3", "ranges", "metaranges"} <= names(synced, tmp_path)
    assert bytes(store.get("metaranges/2")) == b"22"


def test_what_others_wrote_is_synced(store: Any, synced: list[int], tmp_path: Path) -> None:
    """Each file and each folder."""
    for path in [*PATHS, "other/0"]:
        store.put(path, b"", create_only=True, durable=False)
    synced.clear()
    store.sync([*PATHS, "other/0"])
    assert names(synced, tmp_path) >= {"0", "1", "2", "3", "4", "data", "other"}
    with pytest.raises(NotFound):
        store.sync([*PATHS, "data/missing"])


def test_a_file_that_cannot_be_synced_is_an_error(store: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing of them is called durable, and no second sync is asked for: it would not report the failure again."""
    failures = [errno.EIO]
    monkeypatch.setattr(
        local,
        "sync_each",
        lambda descriptors: [0] * (len(descriptors) - 1) + [failures.pop() if failures else 0],
    )
    with raises(OutcomeUnknown, "unsynced", match=r"and 4 more objects were written, but could not be synced"):
        put_new_each(store, OBJECTS)
    failures.append(errno.EIO)
    with raises(Unavailable, "io_error", match="could not sync"):
        store.sync(["data/first"])


def test_what_is_deleted_before_it_is_synced_is_no_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A collection without a grace deletes what nothing names yet; the other objects are synced."""
    store = open_store(tmp_path)
    flushed: list[str] = []
    sync_named = local.LocalDriver._sync_named

    def collect_before(driver: local.LocalDriver, names: Sequence[tuple[str, bool]]) -> None:
        (tmp_path / "data" / "2").unlink(missing_ok=True)
        sync_named(driver, names)
        flushed.extend(path for path, _ in names)

    monkeypatch.setattr(local.LocalDriver, "_put_nameless_each", lambda *_, **__: False)
    monkeypatch.setattr(local.LocalDriver, "_sync_named", collect_before)
    put_new_each(store, OBJECTS)
    assert {*flushed} == {"data", *PATHS} - {"data/2"}


def test_without_durability_nothing_is_synced(tmp_path: Path, synced: list[int]) -> None:
    """In a store that was opened so."""
    open_store(tmp_path, durable=False).put_each(OBJECTS)
    assert synced == []
