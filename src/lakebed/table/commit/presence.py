"""Whether the new files of a change still exist when it is committed.

No version names the files of a change before its commit, so a collection of orphans deletes those that are older than
its grace, a day. If a writer stalled for so long, or a job took so long, its rows would be reported as committed and be
lost. So old files are checked before the snapshot is put. Checking young ones would cost every commit a request a file,
without need.

In a branch of a repository, a reset or a merge by others takes back files of any age. So all files are checked before
the put, and the put itself expects them (`required_paths`): a commit of the branch by others never takes a snapshot
without its files. A server of an older version ignores that, and a put requires only as many files as a message has
room for. So the files are checked again after the put. Then either a reset took the snapshot too, or the snapshot is
withdrawn. The second check does not replace the first: a client that is refused after its commit was made finds its
snapshot, and reports success.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from itertools import chain
from typing import Final, Protocol, runtime_checkable

import pyarrow as pa

import lakebed.compute as pc
from lakebed.errors import Conflict
from lakebed.objects.port import has_object
from lakebed.table.branch.context import TableBranch
from lakebed.table.codec.manifest import ADD
from lakebed.table.files.placement import Placement
from lakebed.table.model.model import Snapshot, TableSchema

_WHY_GONE: Final = "files that no version names are deleted after a day: write the rows again"
_WHY_TAKEN_BACK: Final = "the branch was reset or merged since it was written: write the rows again"

_YOUNG_MS: Final = 9 * 3_600_000
"""A file of at most this age is not an orphan yet.

Other clients write the time in their own time zone, which makes a file look up to 12 hours older, or 14 hours younger,
than it is.
"""
_AHEAD_MS: Final = 15 * 3_600_000
_HEADS_MAX: Final = 3
"""Up to this many files of a bucket are checked one by one; more of them by a listing of the bucket's folder."""
_BUCKET: Final = ("partition", "bucket")


@runtime_checkable
class _FindsMany(Protocol):
    """A store that checks many paths in one request, as a branch of a repository does."""

    def entries(self, paths: Sequence[str]) -> Mapping[str, object]:
        """What exists at the paths; paths without anything are left out."""


def is_taken_back(branch: TableBranch) -> bool:
    """Whether others may take back files of any age, as in a branch of a repository. Pure."""
    return branch.store.is_versioned


def explain_gone(branch: TableBranch) -> str:
    """Why a file of a change can be gone, and what to do. Pure."""
    return _WHY_TAKEN_BACK if is_taken_back(branch) else _WHY_GONE


def find_gone_file(
    branch: TableBranch, entries: pa.Table, schema: TableSchema, *, select_new: Callable[[pa.Table], pa.Table]
) -> str | None:
    """The path of a new file that is gone; None if there is none.

    Young files are checked only in a branch of a repository.

    Args:
        entries: of a change; a file without a time counts as old.
        select_new: selects the entries that add, in the table's own folders, files that no version has.

    Cost: nothing for young files; else 1 HEAD a file, or 1 LIST of a bucket with more than 3 of them; in a branch of a
    repository 1 request for up to 100,000 files.
    """
    now_ms, times = branch.now_ms(), entries["creation_time_ms"]
    # Every commit calls this, and `fill_null` on a column without nulls would take longer than all the rest.
    times = (pc.fill_null(times, 0) if times.null_count else times).to_numpy()
    is_old = (times <= now_ms - _YOUNG_MS) | (times >= now_ms + _AHEAD_MS) | is_taken_back(branch)
    if not is_old.any():
        return None
    names = _names_by_bucket(entries.filter(pa.array(is_old)), select_new)
    folders_of = Placement.of(schema)
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


def required_paths(
    branch: TableBranch, entries: pa.Table, schema: TableSchema, *, select_new: Callable[[pa.Table], pa.Table]
) -> list[str]:
    """The paths of new files which the put of a snapshot should expect, as `find_gone_file` has them.

    Only those in a branch of a repository, and of a bucket with several folders none: a file may be in any of them.
    """
    if not is_taken_back(branch):
        return []
    folders_of = Placement.of(schema)
    return [
        f"{folders[0]}/{name}"
        for bucket, names in _names_by_bucket(entries, select_new).items()
        for folders in (folders_of.folders(*bucket),)
        if len(folders) == 1
        for name in names
    ]


def _names_by_bucket(
    entries: pa.Table, select_new: Callable[[pa.Table], pa.Table]
) -> dict[tuple[bytes, int], list[str]]:
    """The names of new files in the table's own folders, by partition and bucket."""
    is_added = pc.and_(pc.equal(entries["kind"], ADD), pc.is_null(entries["external_path"]))
    new = select_new(entries.filter(is_added))
    names: dict[tuple[bytes, int], list[str]] = {}
    for partition, bucket, name in zip(*(new[column].to_pylist() for column in (*_BUCKET, "file_name")), strict=True):
        names.setdefault((partition, bucket), []).append(name)
    return names


def confirm_kept(
    branch: TableBranch, snapshot: Snapshot, parts: Collection[str], *, find_gone: Callable[[], str | None]
) -> None:
    """Raise if a snapshot that was just put in a branch of a repository names a file that a reset took before the put.

    A snapshot that is itself gone is not an error: it was reset after its commit, or has expired, as any snapshot may
    be.

    Args:
        parts: paths of its lists and manifests.
        find_gone: returns the path of a data file that the snapshot adds and that is gone, or None.

    Raises `Conflict`: kind ``branch_moved``. Cost: nothing elsewhere; 1 request for the parts and that of `find_gone`.
    """
    if not is_taken_back(branch):
        return
    missing_file = _find_missing(branch, parts) or find_gone()
    if missing_file is None:
        return
    now = branch.snapshots.find(snapshot.id)
    if now is not None and now.uuid == snapshot.uuid:
        raise Conflict(
            f"The file {missing_file} of the commit is not there any more; {_WHY_TAKEN_BACK}. The commit was "
            "withdrawn.",
            kind="branch_moved",
            path=missing_file,
        )


def _find_missing(branch: TableBranch, paths: Collection[str]) -> str | None:
    if isinstance(branch.store, _FindsMany):
        present = branch.store.entries(sorted(paths))
        return next((path for path in paths if path not in present), None)
    return next((path for path in paths if not has_object(branch.store, path)), None)


def _list_names(branch: TableBranch, folders: Sequence[str]) -> set[str]:
    return {meta.path.rpartition("/")[2] for folder in folders for meta in branch.store.list(folder)}
