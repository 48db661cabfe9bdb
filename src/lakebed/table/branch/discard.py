"""Deletion of files that were written and will never be referenced.

Best effort: a file that cannot be deleted stays as an orphan for `remove_orphan_files`. Callers must be certain that no
snapshot references the files: the write failed before the commit, or the commit is known to have failed. After an
unclear outcome (`Unavailable`, `OutcomeUnknown`, an interrupt) nothing may be discarded if a snapshot that names the
files was put. `lakebed.table.commit.commit.OwnFiles` says whether that is so.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from lakebed.objects.port import ObjectStore
from lakebed.reclaim.model import CollectionPlan, Deletable
from lakebed.reclaim.sweep import Sweeper
from lakebed.table.branch.context import TableBranch
from lakebed.table.files.placement import Placement
from lakebed.table.model.model import BucketChange, TableSchema


def discard(store: ObjectStore, paths: Iterable[str]) -> None:
    """Delete files that nothing references. Never raises when the store fails. Cost: 1 DELETE a thousand files."""
    deletables = tuple(Deletable(path, 0, "written for a change that was not committed") for path in paths)
    if deletables:
        Sweeper(store, reaches_outside=True).sweep(CollectionPlan(store="", hide=(), doomed=deletables))


def discard_changes(branch: TableBranch, changes: Sequence[BucketChange]) -> None:
    """Delete the files that changes wrote, which are known not to be committed. Errors and cost as `discard`."""
    discard(branch.store, paths_written(changes, schema=branch.schema))


def paths_written(changes: Sequence[BucketChange], *, schema: TableSchema) -> list[str]:
    """Paths of the files that changes wrote. A file that only changes its level was not written and is left out.

    The path of a file outside the table is its URL.
    """
    placement = Placement.of(schema)
    paths = []
    for change in changes:
        folder = placement.folders(change.partition, change.bucket)[0]
        moved_names = {file.file_name for file in change.deleted}
        new_files = (file for file in (*change.added, *change.changelog) if file.file_name not in moved_names)
        paths += [file.external_path or f"{folder}/{file.file_name}" for file in new_files]
    return paths
