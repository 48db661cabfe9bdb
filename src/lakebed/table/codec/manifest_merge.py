"""Merging of manifests: which ones a commit merges, and the entries of the result. Pure.

Owns: the rules of ``manifest.merge-min-count``, ``manifest.target-file-size`` and
``manifest.full-compaction-threshold-size``, as in Paimon, and the fold that keeps a DELETE whose ADD is in an older
manifest.

Invariants: merging never changes which files are live, nor any file's commit snapshot. Input entries have it resolved
(-1 for entries of other clients), and it is written out explicitly. Order is kept: a run of neighbours is replaced in
place.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

import lakebed.compute as pc
from lakebed.table.codec.manifest import ADD, DELETE, IDENTITY
from lakebed.table.codec.row_codes import first_and_last, row_codes
from lakebed.table.model.model import ManifestMeta


@dataclass(frozen=True, slots=True)
class MergePlan:
    """Runs of neighbouring manifests, each to become one; half-open index ranges into the list, ascending."""

    runs: tuple[tuple[int, int], ...] = ()
    full: bool = False
    """The whole list is one run, and no DELETE needs to survive it."""


def plan_merge(
    metas: Sequence[ManifestMeta], *, count_min: int, target_bytes: int, full_threshold_bytes: int
) -> MergePlan:
    """Which manifests of a base list to merge now.

    Args:
        metas: the list so far, oldest first.
        count_min: this many small manifests at the end make a merge worth its cost (``manifest.merge-min-count``).
        target_bytes: size that a manifest should reach (``manifest.target-file-size``).
        full_threshold_bytes: when small manifests and those with deletes sum up to this, all are folded into one
            (``manifest.full-compaction-threshold-size``).
    """
    unsettled = sum(meta.file_size for meta in metas if meta.deleted_file_count or meta.file_size < target_bytes)
    if len(metas) > 1 and unsettled >= full_threshold_bytes:
        return MergePlan(runs=((0, len(metas)),), full=True)
    runs: list[tuple[int, int]] = []
    start, size = 0, 0
    for index, meta in enumerate(metas):
        size += meta.file_size
        if size >= target_bytes:
            if index > start:
                runs.append((start, index + 1))
            start, size = index + 1, 0
    if len(metas) - start >= max(count_min, 2):
        runs.append((start, len(metas)))
    return MergePlan(runs=tuple(runs))


def fold_run(entries: pa.Table) -> pa.Table:
    """The entries of a run of manifests without files that are both added and deleted in it.

    A DELETE whose file was added before the run stays, and so does a later ADD of the file (a restore): order is kept.

    Args:
        entries: entries of the run's manifests in order, columns of `manifest.ENTRY_SCHEMA`.
    """
    if entries.num_rows == 0 or pc.sum(pc.equal(entries["kind"], DELETE)).as_py() == 0:
        return entries
    (codes,) = row_codes(IDENTITY, entries)
    first, last = first_and_last(codes)
    kinds = entries["kind"].to_numpy()
    positions = np.union1d(first[kinds[first] == DELETE], last[kinds[last] == ADD])
    return entries.take(pa.array(positions))
