"""The merge engine ``deduplicate``: of the rows of one key the newest survives, unchanged.

Invariants:
- Of the rows of one key the one with the highest sequence number survives; on a tie the row of the later run. A delete
  is treated like any other row, so everything older than the newest delete is gone.
- With the option ``sequence.field`` an older row may still be written later and must meet the delete. So compactions
  keep deletes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from lakebed.table.engines.engine import Deletes, Increments, MergeEngine
from lakebed.table.engines.merge import Codes, KeyGroups, Mask
from lakebed.table.engines.sequence import SequenceOrder, sequence_order
from lakebed.table.model.model import TableSchema

Numbers = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Deduplicate(MergeEngine):
    """Of the rows of one key the newest survives, unchanged."""

    order: SequenceOrder | None = None

    deletes: ClassVar = Deletes.REMOVE
    replaces_rows: ClassVar = True
    keeps_levels_apart: ClassVar = False

    @classmethod
    def of(cls, schema: TableSchema) -> Deduplicate:
        return cls(sequence_order(schema))

    def merges_apart(self, *, with_deletes: bool) -> bool:
        return True

    @property
    def follows_commits(self) -> bool:
        return self.order is None

    @property
    def drops_deletes(self) -> bool:
        return self.order is None

    @property
    def ignores_repeats(self) -> bool:
        return self.order is not None

    @property
    def increments(self) -> Increments:
        return Increments.CURRENT if self.order is None else Increments.COMPARED

    def merge(self, rows: pa.Table, groups: KeyGroups) -> pa.Table:
        return rows.take(pa.array(groups.last))

    def survivors(
        self, codes: Sequence[Codes], *, sequences: Sequence[Numbers] | None = None
    ) -> list[Mask | None] | None:
        """As the protocol says; a small run is looked up in a big one by binary search."""
        masks: list[Mask | None] = [None] * len(codes)
        for newer in range(1, len(codes)):
            for older in range(newer):
                _mark_losers(codes, sequences, masks, older=older, newer=newer)
        return masks

    def wins(self, theirs: Numbers, ours: Numbers) -> Mask:
        return theirs > ours


def _mark_losers(
    codes: Sequence[Codes],
    sequences: Sequence[Numbers] | None,
    masks: list[Mask | None],
    *,
    older: int,
    newer: int,
) -> None:
    """Mask out the losing row of every key that two runs share."""
    old, new = codes[older], codes[newer]
    if len(old) == 0 or len(new) == 0 or old[-1] < new[0] or new[-1] < old[0]:
        return
    big, small = (older, newer) if len(old) >= len(new) else (newer, older)
    at_big = np.searchsorted(codes[big], codes[small])
    at_big[at_big == len(codes[big])] = 0
    at_small = np.flatnonzero(codes[big][at_big] == codes[small])
    if len(at_small) == 0:
        return
    common_rows = {small: at_small, big: at_big[at_small]}
    if sequences is None:
        _drop(masks, codes, older, common_rows[older])
        return
    newer_wins = sequences[newer][common_rows[newer]] >= sequences[older][common_rows[older]]
    _drop(masks, codes, older, common_rows[older][newer_wins])
    _drop(masks, codes, newer, common_rows[newer][~newer_wins])


def _drop(masks: list[Mask | None], codes: Sequence[Codes], run: int, positions: Numbers) -> None:
    if len(positions) == 0:
        return
    mask = masks[run]
    if mask is None:
        mask = masks[run] = np.ones(len(codes[run]), np.bool_)
    mask[positions] = False
