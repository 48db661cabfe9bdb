"""The workloads A to F of YCSB by their published definitions, as lists of operations that every side runs alike.

Owns: the mix of each workload, its distribution of keys, and the records. A record is ten fields of 100 bytes, here
one value; an update writes the whole of it. Keys of A, B, C, E and F are drawn by a scrambled zipfian distribution
(constant 0.99), those of D by the latest one; lengths of scans are uniform from 1 to 100; a workload that inserts
appends records behind those that were there. Source: Cooper et al., "Benchmarking Cloud Serving Systems with YCSB",
SoCC 2010, and the core workload of its program.

Invariants: made by numpy from fixed seeds, so both environments get the same.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Final

import numpy as np

from inputs import BATCH_COUNT, split

ZIPFIAN: Final = 0.99
FIELD_COUNT: Final = 10
FIELD_BYTES: Final = 100
RECORD_BYTES: Final = FIELD_COUNT * FIELD_BYTES
SCAN_COUNT_MAX: Final = 100
LOADED_PER_CACHE: Final = 4
"""Bytes loaded for each byte of the cache."""

READ, UPDATE, INSERT, SCAN, MODIFY = "read", "update", "insert", "scan", "modify"

MIXES: Final[dict[str, dict[str, float]]] = {
    "a": {READ: 0.5, UPDATE: 0.5},
    "b": {READ: 0.95, UPDATE: 0.05},
    "c": {READ: 1.0},
    "f": {READ: 0.5, MODIFY: 0.5},
    "d": {READ: 0.95, INSERT: 0.05},
    "e": {SCAN: 0.95, INSERT: 0.05},
}
"""Shares of each operation, in the order in which the program's authors run them: those that insert come last."""

Operation = tuple[str, bytes, bytes]
"""Verb, key, value; of a scan the value is as long as the scan."""


def records_of(scale: float) -> int:
    """Count of records that are loaded: a quarter of a million at scale 1."""
    return max(1000, int(250_000 * scale))


def calls_of(scale: float) -> int:
    """Operations behind one sample."""
    return max(200, int(50_000 * scale))


def cache_bytes_of(scale: float) -> int:
    """The cache of every side."""
    return max(1 << 18, records_of(scale) * RECORD_BYTES // LOADED_PER_CACHE)


def memtable_bytes_of(scale: float) -> int:
    """The memtable of every side, which is a cache too: never more than the cache."""
    return min(64 << 20, cache_bytes_of(scale))


def hash_of(numbers: np.ndarray) -> np.ndarray:
    """The 64-bit FNV-1a hash of each number's eight bytes, lowest first."""
    hashes = np.full(len(numbers), 0xCBF29CE484222325, dtype=np.uint64)
    rest = numbers.astype(np.uint64)
    with np.errstate(over="ignore"):
        for _ in range(8):
            hashes = (hashes ^ (rest & np.uint64(0xFF))) * np.uint64(0x100000001B3)
            rest = rest >> np.uint64(8)
    return hashes


def keys_of_records(numbers: np.ndarray) -> list[bytes]:
    """The keys of records by their number: `user` and a hash in 20 digits, so that neighbours lie apart."""
    return [b"user%020d" % number for number in hash_of(numbers).tolist()]


def values_of_records(count: int, *, seed: int) -> list[bytes]:
    """Records of random bytes that do not compress, as the program's are random text."""
    return split(np.random.default_rng(seed).bytes(count * RECORD_BYTES), RECORD_BYTES)


def draw_zipfian(rng: np.random.Generator, record_count: int, count: int) -> np.ndarray:
    """Ranks from 0: rank r is drawn with a probability proportional to ``1 / (r + 1) ** 0.99``."""
    weights = np.cumsum(np.arange(1, record_count + 1, dtype=np.float64) ** -ZIPFIAN)
    return np.searchsorted(weights, rng.random(count) * weights[-1], side="right")


def draw_records(workload: str, rng: np.random.Generator, record_count: int, count: int) -> np.ndarray:
    """Numbers of the records that some operations are about."""
    ranks = draw_zipfian(rng, record_count, count)
    if workload == "d":
        return record_count - 1 - ranks
    # The popular records are spread over all; the hash of a rank is not that of a key, or they were in the keys' order.
    return (hash_of(ranks + record_count) % np.uint64(record_count)).astype(np.int64)


def load(scale: float) -> Iterator[tuple[list[bytes], list[bytes]]]:
    """What is there before the first workload, in batches of keys and values."""
    count = records_of(scale)
    for number, first in enumerate(range(0, count, BATCH_COUNT)):
        size = min(BATCH_COUNT, count - first)
        yield keys_of_records(np.arange(first, first + size)), values_of_records(size, seed=number)


def operations_of(workload: str, *, record_count: int, count: int, seed: int) -> tuple[list[Operation], int]:
    """Operations of one workload, and how many records there are after them.

    Args:
        record_count: records that are there before.
        seed: another one for each sample.
    """
    rng = np.random.default_rng((seed, ord(workload)))
    verbs = rng.choice(list(MIXES[workload]), size=count, p=list(MIXES[workload].values())).tolist()
    keys = keys_of_records(draw_records(workload, rng, record_count, count))
    values = values_of_records(count, seed=seed + 1000)
    lengths = rng.integers(1, SCAN_COUNT_MAX + 1, count).tolist()
    inserted = iter(keys_of_records(np.arange(record_count, record_count + count)))
    operations: list[Operation] = []
    for place, verb in enumerate(verbs):
        key = next(inserted) if verb == INSERT else keys[place]
        operations.append((verb, key, values[place][: lengths[place]] if verb == SCAN else values[place]))
    return operations, record_count + verbs.count(INSERT)


class Samples:
    """The operations of one side, sample by sample: each side that asks alike gets the same.

    Args:
        share: of the operations of a sample, for a side that is slow.
    """

    def __init__(self, scale: float, *, share: float = 1) -> None:
        self._record_count = records_of(scale)
        self._count = max(200, int(calls_of(scale) * share))
        self._seed = 0

    def next_of(self, workload: str) -> list[Operation]:
        """The next sample of a workload."""
        self._seed += 1
        operations, self._record_count = operations_of(
            workload, record_count=self._record_count, count=self._count, seed=self._seed
        )
        return operations


def run_operations(
    operations: list[Operation],
    *,
    get: Callable[[bytes], bytes | None],
    put: Callable[[bytes, bytes], object],
    scan: Callable[[bytes, int], int],
) -> None:
    """Run a sample through the calls of one side. Each read must find a record, and each scan at least one."""
    for verb, key, value in operations:
        if verb == READ:
            assert get(key) is not None
        elif verb == SCAN:
            assert scan(key, len(value)) >= 1
        else:
            if verb == MODIFY:
                assert get(key) is not None
            put(key, value)
