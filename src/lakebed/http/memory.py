"""The memory of a serving process: which allocators it uses, and how freed memory returns to the system.

Many threads allocate and free. With allocators that keep the memory that each thread freed, a server grows without
bound.
"""

from __future__ import annotations

import ctypes
from typing import Final

import pyarrow as pa

_ARENAS_MAX_OPTION: Final = -8  # M_ARENA_MAX
_ARENAS_MAX: Final = 2
"""Most arenas in which the C library allocates.

By default it makes an arena for each thread, up to eight for each core, and memory freed in one arena does not serve
other threads: under 64 clients they grew from 41 to 73 MiB, with 37 MiB in use all the time. One arena is the main
arena, and Arrow makes another when it is loaded. A thread that waits for an arena has waited for Python's lock before.
"""


_MMAP_OPTION: Final = -3  # M_MMAP_THRESHOLD
_MMAP_BYTES: Final = 512 << 10
"""A block of at least this size has its own pages, which return to the system when it is freed.

By default the C library begins with 128 KiB, and raises the limit to the size of the largest block that was freed, up
to 32 MiB. Then large blocks lie between small ones: merges of a branch of 100,000 objects left 58 MiB that way, with
50 MiB in use. Connections receive blocks of up to 256 KiB: with separate pages for each, an upload took a third more
processor time. Larger blocks that are allocated repeatedly come from Arrow's pool.
"""


def save_memory() -> None:
    """Let this process keep little of the memory that it frees.

    Call it before threads begin: a running thread keeps its memory.
    """
    pa.set_memory_pool(lean_pool())
    set_option = getattr(ctypes.CDLL(None), "mallopt", None)  # only in glibc
    if set_option is not None:
        set_option(_ARENAS_MAX_OPTION, _ARENAS_MAX)
        set_option(_MMAP_OPTION, _MMAP_BYTES)


def lean_pool() -> pa.MemoryPool:
    """Arrow's allocator that returns freed memory soon: jemalloc if available, else the system's.

    The default allocator, mimalloc, keeps the memory that each thread freed.
    """
    has_jemalloc = "jemalloc" in pa.supported_memory_backends()
    return pa.jemalloc_memory_pool() if has_jemalloc else pa.system_memory_pool()


def release_unused() -> None:
    """Return freed memory to the system: Arrow's, and with glibc also the memory between blocks in use.

    By default glibc returns only the memory after the last block in use. Cost: milliseconds.
    """
    pa.default_memory_pool().release_unused()
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)  # only in glibc
    if trim is not None:
        trim(0)
