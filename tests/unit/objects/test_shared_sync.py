"""Syncs that threads share: which ones cover what, and who learns of a failure."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from itertools import count
from pathlib import Path

import pytest

from lakebed.objects.shared_sync import SharedSyncs
from lakebed.runtime import ThreadRuntime
from worlds.interrupts import interrupt_at
from worlds.waiting import HANG_S, wait_until


class Disk:
    """A disk whose syncs end when they may; the sync that begins with `fail_next` ends with that error."""

    def __init__(self) -> None:
        self.begun = 0
        self.may_end = threading.Semaphore(0)
        self.fail_next: BaseException | None = None

    def flush(self, descriptor: int) -> None:
        """Begin a sync, wait until it may end, and end it."""
        self.begun += 1
        error, self.fail_next = self.fail_next, None
        assert self.may_end.acquire(timeout=HANG_S)
        if error is not None:
            raise error


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[int]:
    """A folder, open."""
    descriptor = os.open(tmp_path, os.O_RDONLY)
    yield descriptor
    os.close(descriptor)


def start_waiting(
    syncs: SharedSyncs, pool: ThreadPoolExecutor, folder: int, *, disk: Disk, count: int
) -> tuple[Future[None], list[Future[None]]]:
    """One sync that is under way, and `count` callers that have come meanwhile."""
    first = pool.submit(syncs.sync, folder)
    wait_until(lambda: disk.begun == 1)
    others = [pool.submit(syncs.sync, folder) for _ in range(count)]
    wait_until(lambda: len(syncs._process.ended._waiters) == count)
    return first, others


def test_a_sync_under_way_covers_no_later_caller(folder: int) -> None:
    """Who comes while a folder is synced waits for the next sync, which all of them share."""
    disk = Disk()
    syncs = SharedSyncs(disk.flush, runtime=ThreadRuntime())
    with ThreadPoolExecutor(8) as pool:
        first, others = start_waiting(syncs, pool, folder, disk=disk, count=6)
        disk.may_end.release()
        first.result(HANG_S)
        wait_until(lambda: disk.begun == 2 or any(other.done() for other in others))
        assert not any(other.done() for other in others)
        disk.may_end.release()
        for other in others:
            other.result(HANG_S)
    assert disk.begun == 2


def test_nothing_is_remembered_of_a_folder_that_is_synced(tmp_path: Path) -> None:
    """A process may sync any number of folders: what their callers shared ends with them."""
    syncs = SharedSyncs(os.fsync, runtime=ThreadRuntime())
    for number in range(3):
        (tmp_path / str(number)).mkdir()
        descriptor = os.open(tmp_path / str(number), os.O_RDONLY)
        syncs.sync(descriptor)
        os.close(descriptor)
    assert syncs._process.folders == {}


def test_a_failed_sync_fails_for_all_that_shared_it(folder: int) -> None:
    """No caller takes a folder for synced whose sync failed for another; the next sync is a new one."""
    disk = Disk()
    syncs = SharedSyncs(disk.flush, runtime=ThreadRuntime())
    with ThreadPoolExecutor(8) as pool:
        first, others = start_waiting(syncs, pool, folder, disk=disk, count=3)
        disk.fail_next = OSError(5, "Input/output error")
        disk.may_end.release()
        first.result(HANG_S)
        disk.may_end.release()
        for other in others:
            with pytest.raises(OSError, match="Input/output error"):
                other.result(HANG_S)
        disk.may_end.release()
        syncs.sync(folder)
    assert disk.begun == 3


def test_an_interrupted_sync_covers_nobody(folder: int) -> None:
    """A signal that ends the one thread's sync leaves the folder unsynced: the others that shared it are told."""
    disk = Disk()
    syncs = SharedSyncs(disk.flush, runtime=ThreadRuntime())
    with ThreadPoolExecutor(8) as pool:
        first, others = start_waiting(syncs, pool, folder, disk=disk, count=3)
        disk.fail_next = KeyboardInterrupt()
        disk.may_end.release()
        first.result(HANG_S)
        disk.may_end.release()
        errors = [other.exception(HANG_S) for other in others]
    assert sorted(type(error).__name__ for error in errors) == [
        "InterruptedError",
        "InterruptedError",
        "KeyboardInterrupt",
    ]


def test_an_interrupt_at_any_moment_stops_no_later_sync(folder: int) -> None:
    """What was interrupted seems to run no more: another thread syncs the folder."""
    disk = Disk()
    syncs = SharedSyncs(disk.flush, runtime=ThreadRuntime())
    with ThreadPoolExecutor(1) as pool:
        for moment in count(1):
            disk.may_end.release()
            where = interrupt_at(moment, lambda: syncs.sync(folder), within=["objects/shared_sync.py"])
            begun = disk.begun
            disk.may_end.release()
            assert pool.submit(syncs.sync, folder).result(HANG_S) is None, where
            assert disk.begun == begun + 1, where
            if where is None:
                break
    assert moment > 5


def test_a_fork_waits_for_no_thread_of_its_parent(folder: int) -> None:
    """A process that forks while a folder is synced can sync it in the child."""
    disk = Disk()
    syncs = SharedSyncs(disk.flush, runtime=ThreadRuntime())
    with ThreadPoolExecutor(1) as pool:
        first = pool.submit(syncs.sync, folder)
        wait_until(lambda: disk.begun == 1)
        child = os.fork()
        if child == 0:
            disk.may_end = threading.Semaphore(1)
            syncs.sync(folder)
            os._exit(7)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
        disk.may_end.release()
        first.result(HANG_S)
