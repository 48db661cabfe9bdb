"""What a filter may leave out of files before their rows are merged. Pure. Whole files: `splits.unneeded`.

Invariants:
- A filter on key columns alone decides about all rows of a key alike, so it applies to every run.
- Any other filter may leave out a row only where no older row of its key remains: that one would reappear. Where the
  newest row of a key survives as it is (`Increments.CURRENT`), the whole filter applies to the oldest run.
- Runs are compared by their sequence numbers. Where these overlap, neither run is the older one.
"""

from __future__ import annotations

from collections.abc import Sequence

from lakebed.table.engines.engine import Increments, MergeEngine
from lakebed.table.files.splits import states_deletes
from lakebed.table.model.model import DataFile
from lakebed.table.model.predicate_tree import Predicate


def newest_survives(engine: MergeEngine) -> bool:
    """Whether the row of a key is its newest one, unchanged."""
    return engine.increments is Increments.CURRENT


def early_filters(
    runs: Sequence[Sequence[DataFile]], *, where: Predicate | None, key_part: Predicate | None, engine: MergeEngine
) -> list[Predicate | None]:
    """For each run of a merge, oldest first, the predicate that its rows may be filtered by before the merge.

    Args:
        where: of the merged rows.
        key_part: the part of it on key columns alone.
    """
    filters = [key_part] * len(runs)
    if where is None or not newest_survives(engine):
        return filters
    oldest = runs[0]
    newer = [file.min_sequence_number for run in runs[1:] for file in run]
    is_older = not newer or max(file.max_sequence_number for file in oldest) < min(newer)
    # Level-0 files of other clients may have a key twice, and so an older row of it.
    if is_older and all(map(states_deletes, oldest)):
        filters[0] = where
    return filters
