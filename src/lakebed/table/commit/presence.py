"""Whether the new files of a change are still there when it is committed.

No version names the files of a change before its commit, so a search of orphans takes those that are older than its
grace, a day. A writer that stood still for so long, or a job that took so long, would have rows called committed that
are lost. So files that are old are looked for before the snapshot is put; to look for young ones would cost every
commit a request a file, and would find nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

import lakebed.compute as pc
from lakebed.errors import NotFound
from lakebed.table.branch.context import TableBranch
from lakebed.table.codec.manifest import ADD
from lakebed.table.files.placement import Placement
from lakebed.table.model.model import TableSchema

WHY_GONE: Final = "files that no version names are deleted after a day: write the rows again"

_YOUNG_MS: Final = 9 * 3_600_000
"""Of this age no file is an orphan yet. Other clients write the time in a zone of their own, which makes a file look up
to 12 hours older, or 14 hours younger, than it is."""
_AHEAD_MS: Final = 15 * 3_600_000
_HEADS_MAX: Final = 3
"""So many files of a bucket are asked for one by one, and more by a list of its folder."""
_BUCKET: Final = ("partition", "bucket")


def has_old(branch: TableBranch, entries: pa.Table) -> bool:
    """Whether some of the files are not young: what no commit of a client that works on without a break has."""
    return bool(_is_old(entries, now_ms=branch.now_ms()).any())


def _is_old(entries: pa.Table, *, now_ms: int) -> npt.NDArray[np.bool_]:
    """Which files are old by the time that their entries say, or say no time."""
    times = pc.fill_null(entries["creation_time_ms"], 0).to_numpy()
    is_old: npt.NDArray[np.bool_] = (times <= now_ms - _YOUNG_MS) | (times >= now_ms + _AHEAD_MS)
    return is_old


def select_added(entries: pa.Table, live: pa.Table) -> pa.Table:
    """The entries of files that no version has yet and whose bytes are in the table's own folders."""
    added = entries.filter(pc.and_(pc.equal(entries["kind"], ADD), pc.is_null(entries["external_path"])))
    return added.filter(pc.invert(pc.is_in(added["file_name"], value_set=live["file_name"])))


def find_gone_file(branch: TableBranch, added: pa.Table, schema: TableSchema) -> str | None:
    """The path of a new file that is old and gone; None: all are there, or young.

    Args:
        added: entries of new files; a file without a time counts as old.

    Cost: nothing for young files; else 1 HEAD a file, or 1 LIST of a bucket with more than 3 of them.
    """
    is_old = _is_old(added, now_ms=branch.now_ms())
    if not is_old.any():
        return None
    old = added.filter(pa.array(is_old))
    folders_of = Placement.of(schema)
    names: dict[tuple[bytes, int], list[str]] = {}
    for partition, bucket, name in zip(*(old[column].to_pylist() for column in (*_BUCKET, "file_name")), strict=True):
        names.setdefault((partition, bucket), []).append(name)
    for (partition, bucket), files in names.items():
        folders = folders_of.folders(partition, bucket)
        for name in files if len(files) <= _HEADS_MAX else sorted(set(files) - _list_names(branch, folders)):
            if not _is_in_any(branch, folders, name):
                return f"{folders[0]}/{name}"
    return None


def _list_names(branch: TableBranch, folders: Sequence[str]) -> set[str]:
    return {meta.path.rpartition("/")[2] for folder in folders for meta in branch.store.list(folder)}


def _is_in_any(branch: TableBranch, folders: Sequence[str], name: str) -> bool:
    for folder in folders:
        with suppress(NotFound):
            branch.store.head(f"{folder}/{name}")
            return True
    return False
