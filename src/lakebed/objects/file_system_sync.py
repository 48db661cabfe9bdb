"""One sync of a whole file system in place of one for each of many files.

A sync of a file ends with a flush of the disk, which takes a millisecond however small the file is, so sixteen files
wait sixteen times. Linux can also sync a file system: one write of its journal and one flush, for all files at once.

Owns: where that is right, and what has failed. Invariants:
- It is used on file systems alone of which it is known that their sync is as durable as that of a file (`ext4`):
  others, such as those of other processes (FUSE), may do nothing.
- It is not used while much is waiting to be written on this machine: it would wait for the files of all programs.
- A file whose bytes could not be written is an error of its own caller, also when another program was told before: that
  is asked of each file, without another flush.
- Callers that come while a sync is under way share the next one (`lakebed.objects.shared_sync`).
"""

from __future__ import annotations

import ctypes
import os
import platform
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final

from lakebed.objects.shared_sync import SharedSyncs
from lakebed.runtime import Environment

FILE_COUNT_MIN: Final = 2
"""Files from which on it is faster: one is synced together with its folder as fast by itself."""
_KINDS: Final = {"ext4"}
_KERNEL_MIN: Final = (5, 17)
"""From this one on a sync of a file system reports that its journal could not be written."""
_UNWRITTEN_BYTES_MAX: Final = 64 << 20
"""What may be waiting for the disks of this machine: a fraction of a second of a slow one."""
_LOOK_INTERVAL_S: Final = 0.1
"""How long a look at that, and at what is mounted, is good."""
_MEMORY: Final = Path("/proc/meminfo")
_MOUNTS: Final = Path("/proc/self/mountinfo")
_WAIT_BEFORE: Final = 1
"""``SYNC_FILE_RANGE_WAIT_BEFORE``: wait for what is being written, and report what could not be."""
_UNWRITTEN: Final = re.compile(r"^(?:Dirty|Writeback): +(\d+) kB$", re.MULTILINE)


class FileSystemSyncs:
    """The syncs of the file systems of one driver. Thread-safe."""

    def __init__(self, *, environment: Environment) -> None:
        self._clock = environment.clock
        self._kinds: dict[int, str] = {}
        self._shared = SharedSyncs(_sync_file_system, key_of=_device, runtime=environment.runtime)
        self._look_until_s = float("-inf")
        self._is_calm = False

    def can_sync(self, folder: int) -> bool:
        """Whether the file system of an open folder should be synced as a whole now. Cost: 10 us, at times 200."""
        if _LIBRARY is None:
            return False
        now_s = self._clock.monotonic_s()
        if now_s >= self._look_until_s:
            self._is_calm = _unwritten_bytes() <= _UNWRITTEN_BYTES_MAX
            self._kinds = _read_mounts()  # another file system may have been mounted in place of one
            self._look_until_s = now_s + _LOOK_INTERVAL_S
        return self._is_calm and self._kinds.get(os.fstat(folder).st_dev) in _KINDS

    def sync(self, folder: int, files: Sequence[Callable[[], int]]) -> None:
        """Make everything on the file system of an open folder durable.

        Args:
            files: each opens one of those that the caller needs, for reading.

        Raises `OSError`: it failed, or one of the files could not be written.
        """
        self._shared.sync(folder)
        for open_file in files:
            descriptor = open_file()
            try:
                _check_written(descriptor)
            finally:
                os.close(descriptor)


def _library() -> Any:
    """The C library, where it and the system can do this; else None."""
    version = re.match(r"(\d+)\.(\d+)", platform.release())
    if platform.system() != "Linux" or version is None or (int(version[1]), int(version[2])) < _KERNEL_MIN:
        return None
    library = ctypes.CDLL(None, use_errno=True)
    if not (hasattr(library, "syncfs") and hasattr(library, "sync_file_range")):
        return None
    library.sync_file_range.argtypes = (ctypes.c_int, ctypes.c_int64, ctypes.c_int64, ctypes.c_uint)
    return library


_LIBRARY: Final = _library()


def _sync_file_system(folder: int) -> None:
    _raise_failure(_LIBRARY.syncfs(folder))


def _check_written(descriptor: int) -> None:
    """Raise `OSError` when bytes of a file could not be written. Cost: no flush."""
    _raise_failure(_LIBRARY.sync_file_range(descriptor, 0, 0, _WAIT_BEFORE))


def _raise_failure(result: int) -> None:
    if result != 0:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code))


def _device(status: os.stat_result) -> tuple[int, int]:
    return status.st_dev, 0


def _unwritten_bytes() -> int:
    """What this machine has to write to its disks. Where that cannot be read: too much."""
    try:
        return sum(int(kilobytes) for kilobytes in _UNWRITTEN.findall(_MEMORY.read_text())) << 10
    except OSError:
        return _UNWRITTEN_BYTES_MAX + 1


def _read_mounts() -> dict[int, str]:
    """The kinds of the file systems that are mounted, by the numbers of their devices."""
    kinds: dict[int, str] = {}
    try:
        lines = _MOUNTS.read_text(errors="replace").splitlines()
    except OSError:
        return kinds
    for line in lines:
        mount, _, file_system = line.partition(" - ")
        major, _, minor = mount.split()[2].partition(":")
        kinds[os.makedev(int(major), int(minor))] = file_system.split()[0]
    return kinds
