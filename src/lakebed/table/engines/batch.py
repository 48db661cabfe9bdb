"""Merge the rows of a written batch, as far as the merge engine allows. Pure."""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from lakebed.table.engines.engine import MergeEngine
from lakebed.table.engines.key_rows import is_retract, kinds_of
from lakebed.table.engines.merge import KeyGroups


def merge_batch(rows: pa.Table, groups: KeyGroups, engine: MergeEngine) -> list[pa.Table]:
    """The rows of a batch in key order, one a key; as several tables, oldest first, where rows must stay apart.

    Rows must stay apart that `MergeEngine.merges_apart` does not let merge before the older rows of their key. Each
    becomes a row of another file.

    Args:
        rows, groups: as `MergeEngine.merge`.
    """
    if engine.merges_apart(with_deletes=True):
        return [engine.merge(rows, groups)]
    deletes = is_retract(kinds_of(rows))[groups.order]
    if not deletes.any() and engine.merges_apart(with_deletes=False):
        return [engine.merge(rows, groups)]
    ends_part = groups.is_last.copy()
    if engine.merges_apart(with_deletes=False):
        ends_part |= deletes
        ends_part[:-1] |= deletes[1:]
    else:
        ends_part[:] = True
    parts = engine.merge(rows, KeyGroups(groups.order, ends_part))
    number = np.arange(parts.num_rows)
    is_first = np.append(True, groups.is_last[ends_part][:-1])
    rank = number - np.maximum.accumulate(np.where(is_first, number, 0))
    return [parts.filter(pa.array(rank == step)) for step in range(int(rank.max()) + 1)]
