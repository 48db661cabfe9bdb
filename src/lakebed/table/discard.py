"""Data files that were written and that nothing will ever reference: deleted again.

Best effort: what cannot be deleted stays as an orphan, which `remove_orphan_files` finds. Callers are certain that no
snapshot references the files: their write failed before a commit was tried, or the commit is known to be lost. After
an unclear answer (`Unavailable`, `OutcomeUnknown`) nothing may be discarded.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from lakebed.objects.port import ObjectStore
from lakebed.reclaim.model import Doomed, ReclaimPlan
from lakebed.reclaim.sweep import Sweeper
from lakebed.runtime import Environment
from lakebed.table.binary_row import decode_row
from lakebed.table.layout import Layout
from lakebed.table.model import BucketChange, TableSchema
from lakebed.table.schema import require_column

__all__ = ["discard", "paths_written"]


def discard(store: ObjectStore, paths: Iterable[str], *, environment: Environment) -> None:
    """Delete files that nothing references. Never raises for a store that fails. Cost: 1 DELETE a thousand files."""
    doomed = tuple(Doomed(path=path, size_bytes=0, why="written for a change that was not committed") for path in paths)
    if doomed:
        Sweeper(store, environment).sweep(ReclaimPlan(store="", hide=(), doomed=doomed))


def paths_written(changes: Sequence[BucketChange], *, schema: TableSchema, layout: Layout) -> list[str]:
    """Paths of the files that changes brought into being; a file that only changes its level is not one of them."""
    types = [require_column(schema, name).type for name in schema.partition_keys]
    paths = []
    for change in changes:
        values = decode_row(change.partition, types) if types else ()
        folder = layout.bucket_folder(dict(zip(schema.partition_keys, values, strict=True)), change.bucket)
        moved = {file.file_name for file in change.deleted}
        paths += [f"{folder}/{file.file_name}" for file in change.added if file.file_name not in moved]
    return paths
