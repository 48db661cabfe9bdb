"""The metrics of a commit, counted from its manifests, and the space that a table takes on its store.

Owns: the metric names that every committing step records:

    snapshot, committed_ms     the commit's id and time (Unix ms, UTC)
    rows                       rows in the files it added (of a merge: upserts and deletes)
    files_added, bytes_added   data files it added
    files_removed, bytes_removed   data files it removed from the newest version (kept while a version needs them)
    files_total, bytes_total   data files of the new version

Invariants: reads only the commit's delta. Reads the whole file list only for the first commit after another writer's.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Final

import pyarrow as pa

import lakebed.compute as pc
from lakebed.pipeline.model import StepRecord
from lakebed.table.codec.manifest import ADD
from lakebed.table.model.model import Snapshot
from lakebed.table.table import Table

BRANCH_ID: Final = "branch_id"
"""The metric with the id of the branch for a step that worked in a branch of its table. DO NOT CHANGE: on disk."""


@dataclass(frozen=True, slots=True)
class DiskUse:
    """The size of everything below a table's folder."""

    data_bytes: int
    """Bytes of the data files of all versions."""
    metadata_bytes: int
    """Bytes of snapshots, tags, schemas, manifests and the rest."""

    @property
    def total_bytes(self) -> int:
        """Bytes of data and metadata."""
        return self.data_bytes + self.metadata_bytes


def commit_metrics(table: Table, snapshot: Snapshot, *, name: str, before: Iterable[StepRecord] = ()) -> dict[str, Any]:
    """Return the metrics of one commit.

    Args:
        name: the table's name in the pipeline.
        before: the run's earlier records, newest first. If one of them made the commit before this one, its totals
            are continued, and the table's whole file list is not read.

    Cost: 1 GET (the delta's list) + 1 GET for each manifest in it, cached.
    """
    added, removed = _delta(table, snapshot)
    metrics = {
        "snapshot": snapshot.id,
        "committed_ms": snapshot.time_ms,
        "rows": _sum(added, "row_count"),
        "files_added": added.num_rows,
        "bytes_added": _sum(added, "file_size"),
        "files_removed": removed.num_rows,
        "bytes_removed": _sum(removed, "file_size"),
    }
    earlier_metrics = (
        record.metrics for record in before if record.metrics.get("snapshot") and record.metrics.get("table") == name
    )
    previous = next((earlier for earlier in earlier_metrics if "files_total" in earlier), None)
    if previous is not None and previous["snapshot"] == snapshot.id - 1:
        metrics["files_total"] = previous["files_total"] + added.num_rows - removed.num_rows
        metrics["bytes_total"] = previous["bytes_total"] + metrics["bytes_added"] - metrics["bytes_removed"]
    else:
        metrics["files_total"], metrics["bytes_total"] = totals(table, snapshot)
    return metrics


def snapshot_on_main(record: StepRecord) -> int | None:
    """Return the snapshot that a step committed to main of its table; None when it committed nothing there."""
    # The record of a tag has the snapshot that it pins, but no time of a commit.
    is_on_main = "committed_ms" in record.metrics and BRANCH_ID not in record.metrics
    return int(record.metrics["snapshot"]) if is_on_main else None


def commit_bytes(table: Table, snapshot: Snapshot) -> int:
    """Return the bytes of the data files that a commit added.

    Cost: 1 GET (the delta's list) + 1 GET for each manifest in it, cached.
    """
    return _sum(_delta(table, snapshot)[0], "file_size")


def totals(table: Table, snapshot: Snapshot) -> tuple[int, int]:
    """Return count and bytes of the data files of a version. Cost: its manifests, cached."""
    live_entries = table.context.manifests.live_entries(snapshot)
    return live_entries.num_rows, _sum(live_entries, "file_size")


def disk_use(table: Table) -> DiskUse:
    """Return the size of everything below the table's folder. Cost: 1 LIST a 1000 objects."""
    data = metadata = 0
    for meta in table.store.list():
        folder = meta.path.rpartition("/")[0].rpartition("/")[2]
        if folder.startswith("bucket-"):
            data += meta.size_bytes
        else:
            metadata += meta.size_bytes
    return DiskUse(data, metadata)


def _delta(table: Table, snapshot: Snapshot) -> tuple[pa.Table, pa.Table]:
    entries = table.context.manifests.delta_entries(snapshot)
    is_add = pc.equal(entries["kind"], ADD)
    return entries.filter(is_add), entries.filter(pc.invert(is_add))


def _sum(entries: pa.Table, column: str) -> int:
    return int(pc.sum(entries[column]).as_py() or 0)
