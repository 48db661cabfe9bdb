"""Whether the new files of a change are still there when it is committed.

No version names the files of a change before its commit, so a search of orphans takes those that are older than its
grace, a day. A writer that stood still for so long, or a job that took so long, would have rows called committed that
are lost. So files that are old are looked for before the snapshot is put; to look for young ones would cost every
commit a request a file, and would find nothing.

In a branch of a repository a reset or a merge by others takes back files of any age, so all are looked for. A client
that is refused after its commit was made is no substitute: it finds its snapshot, and reports success.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import chain
from typing import Final, Protocol, runtime_checkable

import pyarrow as pa

import lakebed.compute as pc
from lakebed.objects.port import has_object
from lakebed.table.branch.context import TableBranch
from lakebed.table.codec.manifest import ADD
from lakebed.table.files.placement import Placement
from lakebed.table.model.model import TableSchema

_WHY_GONE: Final = "files that no version names are deleted after a day: write the rows again"
_WHY_TAKEN_BACK: Final = "the branch was reset or merged since it was written: write the rows again"

_YOUNG_MS: Final = 9 * 3_600_000
"""Of this age no file is an orphan yet. Other clients write the time in a zone of their own, which makes a file look up
to 12 hours older, or 14 hours younger, than it is."""
_AHEAD_MS: Final = 15 * 3_600_000
_HEADS_MAX: Final = 3
"""So many files of a bucket are asked for one by one, and more by a list of its folder."""
_BUCKET: Final = ("partition", "bucket")


@runtime_checkable
class _FindsMany(Protocol):
    """A store that looks for many paths in one request, as a branch of a repository does."""

    def entries(self, paths: Sequence[str]) -> Mapping[str, object]:
        """What is at the paths, without those that have nothing."""


def is_taken_back(branch: TableBranch) -> bool:
    """Whether others may take back files of any age. Pure."""
    return branch.store.is_versioned


def explain_gone(branch: TableBranch) -> str:
    """Why a file of a change can be gone, and what to do. Pure."""
    return _WHY_TAKEN_BACK if is_taken_back(branch) else _WHY_GONE


def find_gone_file(
    branch: TableBranch, entries: pa.Table, schema: TableSchema, *, select_new: Callable[[pa.Table], pa.Table]
) -> str | None:
    """The path of a new file that is gone, and old or in a branch of a repository; None: there is none.

    Args:
        entries: of a change; a file without a time counts as old.
        select_new: of the entries that add such files in the table's own folders, those of files that no version has.

    Cost: nothing for young files; else 1 HEAD a file, or 1 LIST of a bucket with more than 3 of them; in a branch of a
    repository 1 request for up to 100,000 files.
    """
    now_ms, times = branch.now_ms(), entries["creation_time_ms"]
    # Every commit asks, and to fill what has no nulls takes longer than all else here.
    times = (pc.fill_null(times, 0) if times.null_count else times).to_numpy()
    is_old = (times <= now_ms - _YOUNG_MS) | (times >= now_ms + _AHEAD_MS) | is_taken_back(branch)
    if not is_old.any():
        return None
    is_added = pc.and_(pc.equal(entries["kind"], ADD), pc.is_null(entries["external_path"]))
    old = select_new(entries.filter(pc.and_(is_added, pa.array(is_old))))
    folders_of = Placement.of(schema)
    names: dict[tuple[bytes, int], list[str]] = {}
    for partition, bucket, name in zip(*(old[column].to_pylist() for column in (*_BUCKET, "file_name")), strict=True):
        names.setdefault((partition, bucket), []).append(name)
    if isinstance(branch.store, _FindsMany):
        paths = [
            [f"{folder}/{name}" for folder in folders_of.folders(*bucket)] for bucket in names for name in names[bucket]
        ]
        present = branch.store.entries(list(chain.from_iterable(paths)))
        return next((choices[0] for choices in paths if present.keys().isdisjoint(choices)), None)
    for (partition, bucket), files in names.items():
        folders = folders_of.folders(partition, bucket)
        for name in files if len(files) <= _HEADS_MAX else sorted(set(files) - _list_names(branch, folders)):
            if not any(has_object(branch.store, f"{folder}/{name}") for folder in folders):
                return f"{folders[0]}/{name}"
    return None


def _list_names(branch: TableBranch, folders: Sequence[str]) -> set[str]:
    return {meta.path.rpartition("/")[2] for folder in folders for meta in branch.store.list(folder)}
