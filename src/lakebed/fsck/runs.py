"""Sorted runs: in each bucket of a primary-key table, the files of one level above 0 share no key.

Pure but for the findings. Costs a few vector operations a version, whatever the number of files.
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from lakebed.fsck.model import Findings
from lakebed.table.codec.binary_row import decode_rows
from lakebed.table.engines.merge import encode_keys
from lakebed.table.model.model import TableSchema


def check_runs(live: pa.Table, *, schema: TableSchema, called: str, findings: Findings) -> None:
    """Report files whose key range is reversed, and files of one level above 0 that overlap.

    Args:
        live: the live files of one version (`ENTRY_SCHEMA`).
        schema: names and types of the keys.
        called: the version, for messages.
    """
    if live.num_rows == 0 or not schema.primary_keys:
        return
    types = [field.type for field in schema.key_fields]
    bounds = [decode_rows(live.column(name).combine_chunks(), types) for name in ("min_key", "max_key")]
    low, high = encode_keys(bounds)
    names = live.column("file_name")
    for row in np.flatnonzero(low > high).tolist():
        findings.error("wrong_key_range", names[row].as_py(), f"has its least key above its greatest ({called}).")
    levels = live.column("level").to_numpy()
    partitions = live.column("partition").combine_chunks().dictionary_encode().indices.to_numpy()
    buckets = live.column("bucket").to_numpy()
    order = np.lexsort((low, levels, buckets, partitions))
    group = np.stack([partitions[order], buckets[order], levels[order]])
    same = (group[:, 1:] == group[:, :-1]).all(axis=0) & (levels[order][1:] > 0)
    overlaps = np.flatnonzero(same & (low[order][1:] <= high[order][:-1]))
    for position in overlaps.tolist():
        before, after = names[int(order[position])].as_py(), names[int(order[position + 1])].as_py()
        findings.error(
            "overlap",
            after,
            f"overlaps {before}: both are on level {int(levels[order[position]])} of one bucket ({called}).",
        )
