"""The merge engine ``first-row``: of the rows of one key the oldest survives, unchanged.

Invariants:
- A merged row keeps its own sequence number, which is the least of its key.
- A compaction takes all runs of a bucket. Other clients read the levels above 0 without a merge (and level 0 not at
  all), so a later row of a key must never be in another level than the first.
- There are no deletes. With ``ignore-delete``, deletes in the files of other clients have no effect.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from lakebed.errors import InvalidRequest
from lakebed.table.engines.deduplicate import Deduplicate
from lakebed.table.engines.engine import Deletes, Increments, MergeEngine
from lakebed.table.engines.field_options import ignores_deletes
from lakebed.table.engines.key_rows import MergedKeys, merge_rows, several
from lakebed.table.engines.merge import Codes, KeyGroups, Mask
from lakebed.table.engines.option_names import option_error
from lakebed.table.model.model import TableSchema
from lakebed.table.model.options import SEQUENCE_FIELD

Numbers = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class FirstRow(MergeEngine):
    """Of the rows of one key the oldest survives, unchanged."""

    ignores: bool = False

    order: ClassVar = None
    replaces_rows: ClassVar = False
    keeps_levels_apart: ClassVar = True
    follows_commits: ClassVar = True
    drops_deletes: ClassVar = True
    ignores_repeats: ClassVar = True
    increments: ClassVar = Increments.COMPARED

    @classmethod
    def of(cls, schema: TableSchema) -> FirstRow:
        if schema.options.get(SEQUENCE_FIELD.name):
            raise option_error(
                "Option 'sequence.field' has no meaning with first-row, which keeps the row that came first.",
                SEQUENCE_FIELD.name,
            )
        return cls(ignores_deletes(schema.options))

    @property
    def deletes(self) -> Deletes:
        return Deletes.IGNORE if self.ignores else Deletes.REFUSED

    def merges_apart(self, *, with_deletes: bool) -> bool:
        return True

    def merge(self, rows: pa.Table, groups: KeyGroups) -> pa.Table:
        is_several, key_rows = several(rows, groups)
        if key_rows.retracts.any() and not self.ignores:
            raise InvalidRequest(
                "The table keeps the first row of each key (merge-engine first-row), and its files hold deletes of "
                "another writer; set its option 'ignore-delete' = 'true' to leave them out.",
                kind="unsupported_delete",
            )
        oldest = key_rows.first(~key_rows.retracts)
        kept_rows = np.where(oldest >= 0, oldest, key_rows.starts)
        keys = MergedKeys(kept_rows, np.zeros(key_rows.key_count, np.bool_))
        return merge_rows(rows, groups, is_several, key_rows, keys, lambda _: None)

    def survivors(
        self, codes: Sequence[Codes], *, sequences: Sequence[Numbers] | None = None
    ) -> list[Mask | None] | None:
        """As for deduplicate, backwards in time.

        None if deletes are ignored: codes do not distinguish them from rows.
        """
        if self.ignores:
            return None
        reversed_sequences = None if sequences is None else [-numbers for numbers in sequences[::-1]]
        masks = Deduplicate().survivors(codes[::-1], sequences=reversed_sequences)
        return None if masks is None else masks[::-1]

    def wins(self, theirs: Numbers, ours: Numbers) -> Mask:
        return theirs < ours
