"""The rows that every side writes and reads: made by numpy from a fixed seed, the same in both environments."""

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
