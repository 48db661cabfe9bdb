"""Which files a table may delete: candidates and the interval test. Pure: columns in, columns out; no store, no clock.

Owns: folding consecutive deltas into *candidates*, and the interval test that judges them. A file *born* at snapshot c
and *dead* from snapshot d on is needed by version t (a live snapshot, a tag or a hidden pin) iff ``c <= t < d``. The
test is two bisections over the sorted ids of all versions, whatever their number and size.

Invariants:
- A walk covers consecutive deltas of one branch. A file is judged at its **last** death in the walk: a DELETE makes a
  candidate, and a later ADD of the same path withdraws it. In one delta an ADD outlives a DELETE: an upgrade to another
  level writes both.
- ``born`` is the snapshot that first committed the file, through upgrades and restores. It is `UNKNOWN` when another
  client wrote the entry: then only the files that versions reference decide.
- A file's identity is its path, which contains partition, bucket and name.

Source: Paimon's proposal for tags (docs/design/README.md), "Expiring Snapshot"; repairs: docs/design/0006-expiry.md.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

import lakebed.compute as pc
from lakebed.table.codec.row_codes import distinct_rows
from lakebed.table.model.model import COMMIT_SNAPSHOT_UNKNOWN

UNKNOWN = COMMIT_SNAPSHOT_UNKNOWN

IntArray = npt.NDArray[np.int64]
BoolArray = npt.NDArray[np.bool_]


class Role:
    """What a file of a table is. Stored in unfinished plans: DO NOT CHANGE."""

    DATA = "data"
    INDEX = "index"
    STATISTICS = "statistics"
    CHANGELOG = "changelog"
    MANIFEST = "manifest"
    INDEX_MANIFEST = "index-manifest"
    CHANGELOG_MANIFEST = "changelog-manifest"
    LIST = "manifest-list"
    CHANGELOG_LIST = "changelog-list"


STAGES: tuple[tuple[str, ...], ...] = (
    (Role.DATA, Role.INDEX, Role.STATISTICS, Role.CHANGELOG),
    (Role.MANIFEST, Role.INDEX_MANIFEST, Role.CHANGELOG_MANIFEST),
    (Role.LIST, Role.CHANGELOG_LIST),
)
"""The order of deletion: a file is deleted before the files that reference it."""

ROLES: tuple[str, ...] = tuple(role for stage in STAGES for role in stage)

CANDIDATES = pa.schema(
    [
        ("role", pa.string()),
        ("path", pa.string()),
        ("size_bytes", pa.int64()),
        ("born", pa.int64()),
        ("dead", pa.int64()),
    ]
)
"""One row for each file that may be deleted. It lived in the versions [born, dead). Unique by path."""
_NO_CANDIDATES: Final = pa.Table.from_arrays([pa.nulls(0, field.type) for field in CANDIDATES], schema=CANDIDATES)


def candidates_of(
    role: str, paths: Sequence[str] | pa.Array | pa.ChunkedArray, *, size_bytes: Any = 0, born: Any, dead: Any
) -> pa.Table:
    """Candidates of one role. `size_bytes`, `born` and `dead` are each one number for all, or a column."""
    count = len(paths)
    columns = [
        pa.repeat(pa.scalar(role, pa.string()), count),
        paths if isinstance(paths, pa.Array | pa.ChunkedArray) else pa.array(paths, pa.string()),
    ]
    for value in (size_bytes, born, dead):
        column = np.full(count, value, np.int64) if isinstance(value, int) else value
        columns.append(column if isinstance(column, pa.Array | pa.ChunkedArray) else pa.array(column, pa.int64()))
    return pa.table(columns, schema=CANDIDATES)


def concat(tables: Iterable[pa.Table]) -> pa.Table:
    """Candidates of several sources as one table. Without sources: an empty table with the same columns."""
    return pa.concat_tables([_NO_CANDIDATES, *tables]).combine_chunks()


def paths_of(
    entries: pa.Table,
    folders_of: Callable[[bytes, int], tuple[str, ...]],
    *,
    own_outside: Callable[[pa.Table], BoolArray] | None = None,
) -> pa.Table:
    """The path of every file of manifest entries; sidecar files (`extra_files`) get separate rows.

    Args:
        entries: columns of `manifest.ENTRY_SCHEMA`.
        folders_of: ``(partition, bucket)`` -> the bucket's folders; called once for each distinct pair. A file of a
            bucket with several folders gets a row for each of them; only the first states the size.
        own_outside: says which entries with an external path are the table's own files (`external.OwnFiles`); called
            only when there is such an entry. None: no such file is the table's own.

    Returns columns ``kind``, ``path``, ``size_bytes``, ``born``, ``row`` (position in `entries`). The path of an
    external file is its URL. External files that do not belong to the table are left out: lakebed must not delete them.
    """
    rows = pa.array(np.arange(entries.num_rows, dtype=np.int64))
    narrow = entries.select(["kind", "partition", "bucket", "file_name", "file_size", "commit_snapshot", "extra_files"])
    narrow = narrow.append_column("row", rows)
    external = entries["external_path"]
    if external.null_count == entries.num_rows:
        return _inside(narrow, folders_of)
    outside = narrow.append_column("external_path", external).filter(pc.is_valid(external))
    is_owned = np.zeros(outside.num_rows, np.bool_) if own_outside is None else own_outside(outside)
    outside = outside.filter(pa.array(is_owned))
    inside = _inside(narrow.filter(pc.is_null(external)), folders_of)
    if outside.num_rows == 0:
        return inside
    folder = pc.replace_substring_regex(outside["external_path"].combine_chunks(), r"/[^/]*$", "")
    return _in_order(inside, _in_folders(outside, folder))


def _inside(narrow: pa.Table, folders_of: Callable[[bytes, int], tuple[str, ...]]) -> pa.Table:
    """`paths_of` for files in the table's folder."""
    buckets, numbers = distinct_rows(("partition", "bucket"), narrow)
    folders = [folders_of(partition, bucket) for partition, bucket in buckets]
    choices = max(map(len, folders), default=1)
    if choices == 1:
        return _in_folders(narrow, _each([alternatives[0] for alternatives in folders], numbers))
    tables = []
    for choice in range(choices):
        has_it = np.array([len(alternatives) > choice for alternatives in folders])[numbers]
        part = _in_folders(
            narrow.filter(pa.array(has_it)),
            _each([alternatives[min(choice, len(alternatives) - 1)] for alternatives in folders], numbers[has_it]),
        )
        if choice:
            sizes = pa.array(np.zeros(part.num_rows, np.int64))
            part = part.set_column(part.schema.get_field_index("size_bytes"), "size_bytes", sizes)
        tables.append(part)
    return _in_order(*tables)


def _each(folders: Sequence[str], numbers: IntArray) -> pa.Array:
    """The folder of each entry; `numbers` are the positions of their buckets."""
    if len(folders) == 1:
        return pa.repeat(pa.scalar(folders[0], pa.string()), len(numbers))
    return pa.array(folders, pa.string()).take(pa.array(numbers))


def _in_folders(narrow: pa.Table, folder: pa.Array) -> pa.Table:
    """`paths_of` with one folder for each entry."""
    paths = pa.table(
        {
            "kind": narrow["kind"],
            "path": pc.binary_join_element_wise(folder, narrow["file_name"], "/"),
            "size_bytes": narrow["file_size"],
            "born": narrow["commit_snapshot"],
            "row": narrow["row"],
        }
    )
    extra_count = pc.sum(pc.list_value_length(narrow["extra_files"])).as_py()
    if not extra_count:
        return paths
    return _in_order(paths, _sidecars(narrow, paths, folder))


def _in_order(*tables: pa.Table) -> pa.Table:
    """The rows of several results, ordered by their column ``row``."""
    rows = pa.concat_tables(tables)
    return rows.take(pc.sort_indices(rows["row"]))


def _sidecars(narrow: pa.Table, named: pa.Table, folder: pa.Array) -> pa.Table:
    lists = narrow["extra_files"].combine_chunks()
    parents = pc.list_parent_indices(lists)
    names = pc.list_flatten(lists)
    of_parent = named.take(parents)
    paths = pc.binary_join_element_wise(folder.take(parents), names, "/")
    return of_parent.set_column(1, "path", paths).set_column(2, "size_bytes", pa.array(np.zeros(len(names), np.int64)))


def fold_deltas(deltas: Sequence[tuple[int, pa.Table]]) -> pa.Table:
    """Fold a walk of deltas into candidates: files whose last event in the walk is a death.

    Args:
        deltas: ``(snapshot id, entries as `paths_of` returns them)``, ascending by id.

    Returns:
        `CANDIDATES` of role data; ``dead`` is the snapshot of the last death, ``born`` the value of its DELETE entry.
    """
    tables = [
        entries.append_column("dead", pa.array(np.full(entries.num_rows, snapshot_id, np.int64)))
        for snapshot_id, entries in deltas
        if entries.num_rows
    ]
    if not tables:
        return _NO_CANDIDATES
    events = pa.concat_tables(tables).combine_chunks()
    # The last event of each path. In one delta an ADD (kind 0) comes after a DELETE (kind 1).
    order = pc.sort_indices(events, sort_keys=[("path", "ascending"), ("dead", "ascending"), ("kind", "descending")])
    events = events.take(order)
    paths = events["path"].combine_chunks()
    last = np.ones(len(paths), np.bool_)
    if len(paths) > 1:
        last[:-1] = pc.not_equal(paths[1:], paths[:-1]).to_numpy(zero_copy_only=False)
    deaths = last & (events["kind"].to_numpy() == 1)
    dead = events.filter(pa.array(deaths))
    return candidates_of(Role.DATA, dead["path"], size_bytes=dead["size_bytes"], born=dead["born"], dead=dead["dead"])


def find_needed_files(born: IntArray, dead: IntArray, versions: IntArray) -> BoolArray:
    """Which files some version needs: those with a t in `versions` such that ``born <= t < dead``.

    Args:
        born: first snapshot of each file; `UNKNOWN` counts as needed by any version before its death.
        dead: first snapshot without it.
        versions: ids of all live snapshots, tags and pins, ascending.

    Cost: two bisections a file.
    """
    return np.searchsorted(versions, born, side="left") < np.searchsorted(versions, dead, side="left")


def nearest_earlier(dead: IntArray, versions: IntArray) -> IntArray:
    """The newest version before each death; `UNKNOWN` where there is none.

    If a file's life has no holes and reaches any version before its death, it reaches the nearest of them. So the files
    that this one version references decide for all.
    """
    positions = np.searchsorted(versions, dead, side="left") - 1
    padded = np.append(versions, UNKNOWN)
    return padded[positions]


def nearest_later(dead: IntArray, versions: IntArray) -> IntArray:
    """The oldest version at or after each death, or the earliest possible death; `UNKNOWN` where there is none."""
    positions = np.searchsorted(versions, dead, side="left")
    return np.append(versions, UNKNOWN)[positions]


def is_named(candidates: pa.Table, names: pa.Array | pa.ChunkedArray) -> BoolArray:
    """Which candidates are among the paths `names`."""
    if len(names) == 0 or candidates.num_rows == 0:
        return np.zeros(candidates.num_rows, np.bool_)
    mask: BoolArray = pc.is_in(candidates["path"], value_set=names).to_numpy(zero_copy_only=False)
    return mask


@dataclass(frozen=True, slots=True)
class Retention:
    """How many snapshots to keep, and for how long."""

    retain_max: int
    """Newest snapshots that may stay whatever their age, >= `retain_min`."""
    retain_min: int
    """Newest snapshots that always stay, >= 1."""
    older_than_ms: int
    """Snapshots committed before this time expire (Unix ms, UTC; exclusive); those beyond `retain_max` always do."""
    max_deletes: int
    """Most snapshots that one run expires, >= 1."""


def plan_expiry(
    ids: Sequence[int], retention: Retention, *, time_ms_of: Callable[[int], int], expiry_limit: int | None
) -> int:
    """How many of the oldest snapshots expire.

    Args:
        ids: live snapshot ids, ascending, gaps allowed.
        time_ms_of: commit time of a snapshot; called only for snapshots about to expire and for the first that stays.
        expiry_limit: the first snapshot that may not expire, because a consumer reads it next; None: no limit.
    """
    count_max = min(len(ids) - retention.retain_min, retention.max_deletes)
    if expiry_limit is not None:
        count_max = min(count_max, int(np.searchsorted(np.asarray(ids, np.int64), expiry_limit, side="left")))
    count = min(max(len(ids) - retention.retain_max, 0), max(count_max, 0))
    while count < count_max and time_ms_of(ids[count]) < retention.older_than_ms:
        count += 1
    return count
