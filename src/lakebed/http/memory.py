"""The memory of a serving process: which allocators it uses, and how freed memory returns to the system.

Many threads allocate and free. With allocators that keep what each thread has freed, a server grows without bound.
"""

from __future__ import annotations

import ctypes
from typing import Final

import pyarrow as pa

_ARENAS_MAX_OPTION: Final = -8  # M_ARENA_MAX
_ARENAS_MAX: Final = 2
"""Areas in which the C library allocates. By itself it makes one for each thread, up to eight a core, and what is freed
in one of them serves no other thread: under 64 clients they grew from 41 to 73 MiB with 37 MiB in use all the time.
One is the main one, and Arrow makes another when it is loaded. Threads that wait here have waited for Python's lock."""


_MMAP_OPTION: Final = -3  # M_MMAP_THRESHOLD
_MMAP_BYTES: Final = 512 << 10
"""From here on a block has pages of its own, which return to the system when it is freed. By itself the C library
begins with 128 KiB and raises this to the size of the largest block that was freed, up to 32 MiB, and then has large
blocks lie between small ones: merges of a branch of 100,000 objects left 58 MiB that way, with 50 MiB in use. What
connections receive comes in blocks of up to 256 KiB: with pages of its own for each, an upload took a third more
processor time. Larger blocks that are made again and again come from Arrow's pool."""


def save_memory() -> None:
    """Let this process keep little of what it frees. Call it before threads begin: what they have, they keep."""
    pa.set_memory_pool(lean_pool())
    set_option = getattr(ctypes.CDLL(None), "mallopt", None)  # only in glibc
    if set_option is not None:
        set_option(_ARENAS_MAX_OPTION, _ARENAS_MAX)
        set_option(_MMAP_OPTION, _MMAP_BYTES)


def lean_pool() -> pa.MemoryPool:
    """Arrow's allocator that returns freed memory soon: jemalloc, or else the system's.

    The default one, mimalloc, keeps what each thread has freed.
    """
    has_jemalloc = "jemalloc" in pa.supported_memory_backends()
    return pa.jemalloc_memory_pool() if has_jemalloc else pa.system_memory_pool()


def release_unused() -> None:
    """Return freed memory to the system: Arrow's, and with glibc also what lies between blocks in use.

    By itself glibc returns only what follows the last block in use. Cost: milliseconds.
    """
    pa.default_memory_pool().release_unused()
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)  # only in glibc
    if trim is not None:
        trim(0)
