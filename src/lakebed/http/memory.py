"""The memory of a serving process: which allocator it uses, and how freed memory returns to the system.

Many threads allocate and free. With allocators that keep what each thread has freed, a server grows without bound.
"""

from __future__ import annotations

import ctypes

import pyarrow as pa


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
