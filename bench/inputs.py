"""The rows that every side writes and reads: made by numpy from fixed seeds, the same in both environments."""

from __future__ import annotations

import numpy as np
import pyarrow as pa

SCHEMA = pa.schema(
    [pa.field("id", pa.int64(), nullable=False), ("a", pa.int32()), ("v", pa.float64()), ("s", pa.string())]
)


def rows_of(count: int, *, first: int = 0, seed: int = 0) -> pa.Table:
    """`count` rows (id int64 ascending from `first`, a int32, v float64, s string of 5 to 9 characters)."""
    rng = np.random.default_rng(seed)
    numbers = rng.integers(0, 100_000, count).astype(str)
    columns = {
        "id": pa.array(np.arange(first, first + count), pa.int64()),
        "a": pa.array(rng.integers(0, 1000, count), pa.int32()),
        "v": pa.array(rng.random(count)),
        "s": pa.array(np.char.add("str_", numbers)),
    }
    return pa.table(columns, schema=SCHEMA)


def shuffled(table: pa.Table, *, seed: int = 1) -> pa.Table:
    """The same rows in random order."""
    return table.take(pa.array(np.random.default_rng(seed).permutation(table.num_rows)))


# ---- key-value workloads

KEY_BYTES = 16
VALUE_BYTES = 100
HOT_SHARE = 0.01
"""Of the keys, those that `readhot` reads."""

SLATE_SHARE = 0.05
"""slatedb fills and reads this share of the rows: its calls cross an event loop and take fifty times as long."""

MULTIGET_COUNT = 100
BATCH_COUNT = 1000
THREAD_COUNT = 4
LARGE_FACTOR = 10
"""Times the rows of the scale that the group `large` has."""

HANDED_SHARE = 0.02
"""Of the rows, those that are put one by one with each log record handed over: lakebed makes a file for each."""


def split(body: bytes, width: int) -> list[bytes]:
    """A buffer of equally long records as separate objects."""
    return [body[start : start + width] for start in range(0, len(body), width)]


def keys_of(count: int, *, sequential: bool = False, seed: int = 1) -> list[bytes]:
    """`count` distinct 16-byte keys: random, or ascending numbers in text."""
    if sequential:
        return [b"%016d" % number for number in range(count)]
    rng = np.random.default_rng(seed)
    whole = np.empty((count, 2), dtype=">u8")
    whole[:, 0] = rng.integers(0, 1 << 63, count, dtype=np.uint64) << np.uint64(1)  # even: `missing_of` takes the odd
    whole[:, 1] = np.arange(count, dtype=np.uint64)
    return split(whole.tobytes(), KEY_BYTES)


def missing_of(keys: list[bytes]) -> list[bytes]:
    """As many keys between those that are there."""
    return [key[:7] + bytes([key[7] | 1]) + key[8:] for key in keys]


def values_of(count: int, *, seed: int = 2) -> list[bytes]:
    """`count` values of 100 bytes of which half compress away, as in LevelDB's benchmark."""
    rng = np.random.default_rng(seed)
    half = VALUE_BYTES // 2
    whole = np.zeros((count, VALUE_BYTES), dtype=np.uint8)
    whole[:, :half] = np.frombuffer(rng.bytes(count * half), dtype=np.uint8).reshape(count, half)
    return split(whole.tobytes(), VALUE_BYTES)


def order_of(keys: list[bytes], count: int, *, hot: bool = False, seed: int = 3) -> list[bytes]:
    """`count` keys to read: drawn from all, or from the hot ones."""
    among = max(1, int(len(keys) * HOT_SHARE)) if hot else len(keys)
    return [keys[place] for place in np.random.default_rng(seed).integers(0, among, count).tolist()]


def runs_of(keys: list[bytes], count: int, *, seed: int = 4) -> list[bytes]:
    """`count` keys to read in runs of `MULTIGET_COUNT` that follow each other in the order of keys."""
    ordered = sorted(keys)
    starts = np.random.default_rng(seed).integers(0, max(1, len(keys) - MULTIGET_COUNT), count // MULTIGET_COUNT)
    return [key for start in starts.tolist() for key in ordered[start : start + MULTIGET_COUNT]]
