"""Concurrent syncs of many open files by one request to the kernel: Linux's asynchronous I/O.

The sync of a file ends with a flush of the disk, which takes a millisecond however small the file is. Concurrent syncs
share flushes, so sixteen take hardly longer than one. The kernel runs them without a thread of ours for each; such
threads took more processor time than the syncs.

Owns: the system calls, and the queues that they need. Invariants:
- Each file gets an `fsync`: the guarantee is that of one call for each file, and each has its own outcome.
- A queue with an outstanding answer is not used again: the answer would be taken for that to another request.
- A queue belongs to one process. A fork has its own.
"""

from __future__ import annotations

import ctypes
import errno
import os
import platform
import struct
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

DESCRIPTORS_MAX: Final = 64
"""Most files of one request."""

_QUEUES_KEPT_MAX: Final = 16
"""Most idle queues that are kept: to end one takes a while, and a system has 65,536 entries in all."""

_REQUEST: Final = struct.Struct("<QIiHhIQQqQII")  # struct iocb
_EVENT: Final = struct.Struct("<QQqq")  # struct io_event
_FSYNC: Final = 2  # IOCB_CMD_FSYNC
_WORD: Final = ctypes.c_long


class _Numbers(NamedTuple):
    """The numbers of the system calls."""

    setup: int
    submit: int
    get_events: int
    destroy: int


_NUMBERS: Final = {"x86_64": _Numbers(206, 209, 208, 207), "aarch64": _Numbers(0, 2, 4, 1)}


@dataclass(frozen=True, slots=True)
class _Queue:
    """The kernel's queue for requests and answers of one process. One thread uses it at a time."""

    process: int
    handle: int


def sync_each(descriptors: Sequence[int]) -> list[int] | None:
    """Sync open files and folders, at most `DESCRIPTORS_MAX`.

    Returns:
        For each file 0, or the number of its error; None: the system does not support this, and no outcome is known.

    Cost: 2 system calls, and about the time of one `fsync`.
    """
    queue = _take_queue()
    if queue is None:
        return None
    count = len(descriptors)
    rows = [_REQUEST.pack(row, 0, 0, _FSYNC, 0, file, 0, 0, 0, 0, 0, 0) for row, file in enumerate(descriptors)]
    requests = ctypes.create_string_buffer(b"".join(rows))
    first = ctypes.addressof(requests)
    pointers = (ctypes.c_void_p * count)(*range(first, first + _REQUEST.size * count, _REQUEST.size))
    # An interrupt from here on abandons the queue, because its answers are still to come.
    begun_count = _call("submit", queue.handle, count, ctypes.addressof(pointers))
    outcomes = _wait(queue, begun_count, count) if begun_count > 0 else None
    _keep(queue)
    if outcomes is None or begun_count == count:
        return outcomes
    later_errors = sync_each(
        descriptors[begun_count:]
    )  # the first of these was refused; only the reason for that one is known
    if later_errors is None and any(outcomes):
        later_errors = [errno.EIO] * (
            count - begun_count
        )  # a failure is reported once, so a second sync of all could miss one
    return None if later_errors is None else outcomes[:begun_count] + later_errors


def _wait(queue: _Queue, begun: int, count: int) -> list[int]:
    """Wait until all requests that were begun have ended. Return their outcomes."""
    outcomes = [0] * count
    events = ctypes.create_string_buffer(_EVENT.size * begun)
    while begun:
        ended_count = _call("get_events", queue.handle, begun, begun, ctypes.addressof(events), 0)
        if ended_count < 0 and ended_count != -errno.EINTR:
            raise OSError(-ended_count, os.strerror(-ended_count))
        for place in range(max(ended_count, 0)):
            row, _, result, _ = _EVENT.unpack_from(events, place * _EVENT.size)
            outcomes[row] = -min(result, 0)
            begun -= 1
    return outcomes


_QUEUES: Final[list[_Queue]] = []
"""The idle queues."""


def _take_queue() -> _Queue | None:
    """Return an idle queue; None: the system provides none."""
    process = os.getpid()
    while _QUEUES:
        try:
            queue = _QUEUES.pop()
        except IndexError:
            break  # another thread was faster
        if queue.process == process:
            return queue
    if _LIBRARY is None:
        return None
    handle = ctypes.c_ulong(0)
    if _call("setup", DESCRIPTORS_MAX, ctypes.addressof(handle)) < 0:
        return None
    return _Queue(process, handle.value)


def _keep(queue: _Queue) -> None:
    if len(_QUEUES) < _QUEUES_KEPT_MAX:
        _QUEUES.append(queue)
    else:
        _call("destroy", queue.handle)


def _load_library() -> Any:
    """Load the C library if the system and the machine are known; otherwise return None."""
    if sys.platform != "linux" or sys.byteorder != "little" or sys.maxsize < 2**32:
        return None
    if platform.machine() not in _NUMBERS:
        return None
    library = ctypes.CDLL(None, use_errno=True)
    library.syscall.restype = _WORD
    return library


_LIBRARY: Final = _load_library()


def _call(name: str, *arguments: int) -> int:
    """Make a system call and return its result. An error is a negative number."""
    number = getattr(_NUMBERS[platform.machine()], name)
    result: int = _LIBRARY.syscall(_WORD(number), *(ctypes.c_ulong(argument) for argument in arguments))
    return result if result >= 0 else -ctypes.get_errno()
