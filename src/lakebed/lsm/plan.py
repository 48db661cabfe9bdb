"""The choice of the files to merge next. It is size-tiered. Pure.

Owns: `plan_compaction` and `plan_full`. A version's files are in the order of their age: first the files of level 0,
then runs. A plan takes only neighbours, and its output takes their place, so newer data always comes before older data.

Bounds, with k = `run_compaction_count` (a property test checks them):
- Read amplification: if no plan is left there are fewer than `l0_compaction_count` files of level 0, and at most
  (k - 1) x (1 + log2(largest / smallest run)) runs: of any k neighbours one is more than twice the largest before it.
- Write amplification: a row is rewritten about once in each tier, and tiers grow by k: 1 + log_k(database / memtable).
- Garbage: if the tombstones above the oldest run are half as many as its rows, everything is merged.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from lakebed.lsm.model import FileMeta, FileSet, Run

L0_INPUT_COUNT_MAX: Final = 64
"""Most files of level 0 that one compaction reads together. Each needs memory for reading ahead."""

_ALIKE_RATIO: Final = 2
"""A run is in the tier of its newer neighbours if it is at most this many times as large as the largest of them."""


@dataclass(frozen=True, slots=True)
class CompactionTask:
    """Neighbouring files and runs to merge into one run."""

    l0_ids: tuple[str, ...]
    """Files of level 0, newest first. They are the oldest files of level 0."""
    run_ids: tuple[str, ...]
    """Runs, newest first. They are the newest runs if `l0_ids` is not empty."""
    bottom: bool
    """Whether nothing older remains below the output. Only then may tombstones be dropped."""
    rewrite: bool = False
    """Whether files must be rewritten even if they could be taken over unchanged."""

    def inputs(self, file_set: FileSet) -> tuple[tuple[FileMeta, ...], tuple[Run, ...]]:
        """Return the level-0 files and runs of the task, newest first.

        Raises:
            KeyError: one of them is not in the set, or runs between them are not part of the task.
        """
        files = {file.id: file for file in file_set.l0}
        runs = {run.id: run for run in file_set.runs}
        return tuple(files[id] for id in self.l0_ids), tuple(runs[id] for id in self.run_ids)

    def apply_to(self, file_set: FileSet, run: Run | None) -> FileSet | None:
        """Return the set with the output in place of the inputs; None if an input is gone or they are not neighbours.

        Args:
            run: the output; None if no row was left.
        """
        l0_place = len(file_set.l0) - len(self.l0_ids)
        if self.l0_ids and tuple(file.id for file in file_set.l0[max(l0_place, 0) :]) != self.l0_ids:
            return None
        ids = [member.id for member in file_set.runs]
        place = ids.index(self.run_ids[0]) if self.run_ids and self.run_ids[0] in ids else 0
        end = place + len(self.run_ids)
        if tuple(ids[place:end]) != self.run_ids or (self.l0_ids and place):
            return None
        if self.bottom and end < len(ids):
            return None
        output = () if run is None else (run,)
        return FileSet(file_set.l0[:l0_place], (*file_set.runs[:place], *output, *file_set.runs[end:]))


def plan_compaction(file_set: FileSet, *, l0_compaction_count: int, run_compaction_count: int) -> CompactionTask | None:
    """Choose what to merge next; None if nothing needs to be merged.

    Args:
        l0_compaction_count: files of level 0 at which they are merged into a run, >= 1.
        run_compaction_count: neighbouring runs of about one size at which they are merged into one, >= 2.
    """
    l0, runs = file_set.l0, file_set.runs
    if _is_mostly_deleted(file_set):
        return _task(file_set, l0_count=min(len(l0), L0_INPUT_COUNT_MAX), first_run=0, run_count=len(runs))
    if len(l0) >= l0_compaction_count:
        inputs = l0[-L0_INPUT_COUNT_MAX:]
        # The output of level 0 is one more run. If it fills its tier, merge the tier too, so that rows are read once.
        group = _alike([sum(file.size_bytes for file in inputs), *(run.size_bytes for run in runs)])
        with_runs = group - 1 if group >= run_compaction_count else 0
        return _task(file_set, l0_count=len(inputs), first_run=0, run_count=with_runs)
    sizes = [run.size_bytes for run in runs]
    for first in range(len(sizes)):
        group = _alike(sizes[first:])
        if group >= run_compaction_count:
            return _task(file_set, l0_count=0, first_run=first, run_count=group)
    return None


def plan_full(file_set: FileSet) -> CompactionTask | None:
    """Plan to rewrite everything into one run; None for an empty set.

    With more than `L0_INPUT_COUNT_MAX` files of level 0 the task is only a first step, with the oldest files as
    `CompactionTask.l0_ids`. Call again after it.
    """
    count = len(file_set.l0)
    if not count and not file_set.runs:
        return None
    if count > L0_INPUT_COUNT_MAX:
        return _task(file_set, l0_count=L0_INPUT_COUNT_MAX, first_run=0, run_count=0)
    return _task(file_set, l0_count=count, first_run=0, run_count=len(file_set.runs), rewrite=True)


def _task(file_set: FileSet, *, l0_count: int, first_run: int, run_count: int, rewrite: bool = False) -> CompactionTask:
    l0 = file_set.l0[len(file_set.l0) - l0_count :]
    runs = file_set.runs[first_run : first_run + run_count]
    bottom = first_run + run_count == len(file_set.runs)
    return CompactionTask(tuple(file.id for file in l0), tuple(run.id for run in runs), bottom, rewrite)


def _alike(sizes: Sequence[int]) -> int:
    """Return how many of the first sizes belong to one tier."""
    largest = sizes[0]
    count = 1
    while count < len(sizes) and sizes[count] <= _ALIKE_RATIO * largest:
        largest = max(largest, sizes[count])
        count += 1
    return count


def _is_mostly_deleted(file_set: FileSet) -> bool:
    """Whether the tombstones above the oldest run are at least half as many as its rows.

    For files with a ceiling the counts are upper bounds. Then a merge may come early or late, which changes no read.
    """
    if not file_set.runs:
        return False
    newer = [*file_set.l0, *(file for run in file_set.runs[:-1] for file in run.files)]
    tombstones = sum(file.tombstone_count for file in newer)
    return tombstones > 0 and 2 * tombstones >= sum(file.row_count for file in file_set.runs[-1].files)
