"""Syncs of a whole file system: when they are used, what they cover, and who learns of a failure."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from lakebed.errors import LakebedError, NotFound
from lakebed.objects import file_system_sync, open_store
from lakebed.objects.file_system_sync import FileSystemSyncs
from lakebed.runtime import Environment
from lakebed.testing import ManualClock

PATHS = [f"data/{number}" for number in range(5)]


@pytest.fixture
def syncs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What is synced: names of files and folders, or ``*`` for a file system, which the test's is taken to allow."""
    made: list[str] = []

    def note(name: Callable[[int], str], flush: Callable[[int], None]) -> Callable[[int], None]:
        def sync(descriptor: int) -> None:
            made.append(name(descriptor))
            flush(descriptor)

        return sync

    monkeypatch.setattr(os, "fsync", note(lambda fd: os.path.basename(os.readlink(f"/proc/self/fd/{fd}")), os.fsync))
    monkeypatch.setattr(file_system_sync, "_sync_file_system", note(lambda fd: "*", lambda fd: None))
    monkeypatch.setattr(file_system_sync, "_read_mounts", lambda: {tmp_path.stat().st_dev: "ext4"})
    monkeypatch.setattr(file_system_sync, "_unwritten_bytes", lambda: 1 << 20)
    return made


def put_unsynced(store: Any, paths: list[str] = PATHS) -> None:
    """Objects that have their names, and are not durable."""
    for path in paths:
        store.put(path, path.encode(), create_only=True, durable=False)


@pytest.fixture
def store(tmp_path: Path, syncs: list[str]) -> Any:
    """A store of a folder whose parents are durable."""
    opened = open_store(tmp_path)
    opened.put("data/first", b"", create_only=True)
    syncs.clear()
    return opened


@pytest.mark.skipif(file_system_sync._LIBRARY is None, reason="this system cannot sync a file system and be sure of it")
class TestWholeFileSystems:
    """Where the system can do it."""

    def test_many_files_cost_one_sync(self, store: Any, syncs: list[str]) -> None:
        """However many there are; one file, and files of several folders, are synced by themselves."""
        put_unsynced(store)
        store.sync(PATHS)
        assert syncs == ["*"]
        store.sync(PATHS[:1])
        assert syncs[1:] == ["0", "data"]
        put_unsynced(store, ["other/0"])
        store.sync(["data/0", "other/0"])
        assert {"0", "data", "other"} <= set(syncs[3:])
        assert "*" not in syncs[1:]

    def test_not_while_much_is_waiting_for_the_disk(
        self, store: Any, syncs: list[str], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """It would wait for the files of every other program; that is asked again a moment later."""
        clock = ManualClock()
        store._driver._file_systems = FileSystemSyncs(environment=Environment(clock=clock))
        put_unsynced(store)
        monkeypatch.setattr(file_system_sync, "_unwritten_bytes", lambda: 1 << 30)
        store.sync(PATHS)
        assert sorted(syncs) == ["0", "1", "2", "3", "4", "data"]
        syncs.clear()
        monkeypatch.setattr(file_system_sync, "_unwritten_bytes", lambda: 0)
        clock.advance(1_000)
        store.sync(PATHS)
        assert syncs == ["*"]

    def test_not_where_it_may_promise_less(
        self, tmp_path: Path, store: Any, syncs: list[str], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """A file system of another process may leave the bytes with it."""
        monkeypatch.setattr(file_system_sync, "_read_mounts", lambda: {tmp_path.stat().st_dev: "fuse.sshfs"})
        store._driver._file_systems = FileSystemSyncs(environment=Environment())
        put_unsynced(store)
        store.sync(PATHS)
        assert "*" not in syncs
        assert len(syncs) == len(PATHS) + 1

    def test_not_on_what_was_mounted_in_its_place(
        self, tmp_path: Path, store: Any, syncs: list[str], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """A store that is open for long asks again what it is on."""
        clock = ManualClock()
        store._driver._file_systems = FileSystemSyncs(environment=Environment(clock=clock))
        put_unsynced(store)
        store.sync(PATHS)
        assert syncs == ["*"]
        monkeypatch.setattr(file_system_sync, "_read_mounts", lambda: {tmp_path.stat().st_dev: "fuseblk"})
        clock.advance(1_000)
        store.sync(PATHS)
        assert len(syncs) == 1 + len(PATHS) + 1

    def test_a_failure_is_an_error(self, store: Any, monkeypatch: pytest.MonkeyPatch) -> None:
        """Of the file system, and of one of the files: nothing of it is called durable."""
        put_unsynced(store)

        def fail(descriptor: int) -> None:
            raise OSError(errno.EIO, "Input/output error")

        for what in ("_check_written", "_sync_file_system"):
            with monkeypatch.context() as patch:
                patch.setattr(file_system_sync, what, fail)
                store._driver._file_systems = FileSystemSyncs(environment=Environment())
                with pytest.raises(LakebedError, match="sync") as caught:
                    store.sync(PATHS)
                assert caught.value.kind == "io_error"

    def test_each_file_is_asked(self, store: Any, syncs: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
        """Who was told of a failure before is not asked: the caller's own files are, without a flush."""
        asked: list[str] = []
        check = file_system_sync._check_written

        def note(descriptor: int) -> None:
            asked.append(os.path.basename(os.readlink(f"/proc/self/fd/{descriptor}")))
            check(descriptor)

        monkeypatch.setattr(file_system_sync, "_check_written", note)
        put_unsynced(store)
        store.sync(PATHS)
        assert asked == ["0", "1", "2", "3", "4"]
        with pytest.raises(NotFound):
            store.sync([*PATHS, "data/missing"])

    def test_the_system_does_it(self, tmp_path: Path) -> None:
        """Without a substitute: the calls of the C library succeed, and fail for what is no open file."""
        descriptor = os.open(tmp_path, os.O_RDONLY)
        file = os.open(tmp_path / "file", os.O_CREAT | os.O_RDWR)
        file_system_sync._sync_file_system(descriptor)
        file_system_sync._check_written(file)
        os.close(file)
        os.close(descriptor)
        with pytest.raises(OSError, match="Bad file descriptor"):
            file_system_sync._sync_file_system(descriptor)
        with pytest.raises(OSError, match="Bad file descriptor"):
            file_system_sync._check_written(file)


MOUNTS = """22 1 8:17 / / rw,relatime - ext4 /dev/sdb1 rw
35 22 0:31 / /mnt/a\\040b rw shared:7 master:1 - fuse.sshfs host:/data rw,user_id=0
36 22 259:300 /sub /mnt/c rw propagate_from:2 - xfs /dev/nvme0n1p300 rw
"""


def test_what_is_mounted_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By the numbers of devices, with any number of optional fields; nothing where the system does not say it."""
    mounts = tmp_path / "mountinfo"
    monkeypatch.setattr(file_system_sync, "_MOUNTS", mounts)
    assert file_system_sync._read_mounts() == {}
    mounts.write_text(MOUNTS)
    expected = {os.makedev(8, 17): "ext4", os.makedev(0, 31): "fuse.sshfs", os.makedev(259, 300): "xfs"}
    assert file_system_sync._read_mounts() == expected


def test_what_waits_for_the_disks_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is dirty and what is being written, in bytes; what cannot be read counts as too much."""
    memory = tmp_path / "meminfo"
    monkeypatch.setattr(file_system_sync, "_MEMORY", memory)
    assert file_system_sync._unwritten_bytes() > file_system_sync._UNWRITTEN_BYTES_MAX
    memory.write_text("MemTotal: 100 kB\nDirty:   7 kB\nWriteback:   2 kB\nWritebackTmp:   50 kB\n")
    assert file_system_sync._unwritten_bytes() == 9 << 10
