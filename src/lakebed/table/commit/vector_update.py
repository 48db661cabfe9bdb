"""The deletion vectors of a table after a commit: which are new, which are deleted with their files, which stay.

Owns: the checks that a change still fits the vectors of the newest snapshot (`check_vectors`, `check_live`,
`has_deleted`), and the index files that a commit writes (`vector_update`).

Invariants:
- A change was made from rows that were read with certain vectors. If a file has another vector in the newest snapshot,
  another writer has deleted rows of it, and the change is a `Conflict`. So no deleted row returns, neither by a
  compaction nor by an update.
- An index file is never changed. A commit that touches one vector of it writes its other vectors again.
- A bucket with a number has at most one index file of vectors, as other clients expect. A partition without buckets
  has any number of them; the next commit that deletes rows of the partition joins small ones.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Final

import numpy as np
import pyarrow as pa

from lakebed.errors import Conflict, InvalidRequest, UnsupportedFormat
from lakebed.table.branch.context import TableBranch
from lakebed.table.codec.index_manifest import DELETION_VECTORS, IndexEntry
from lakebed.table.codec.roaring import Positions, decode_positions
from lakebed.table.model.layout import Layout
from lakebed.table.model.model import BucketChange, Snapshot, TableSchema, VectorPlace
from lakebed.table.model.options import BUCKET, TableOptions
from lakebed.table.read.vectors import load_positions, may_have_vectors, places_of, vectors_of

INDEX_FILE_BYTES: Final = 2 * 1024 * 1024
"""From this size on, an index file of a partition without buckets is closed, and is not joined with others."""

Load = Callable[[VectorPlace], Positions]
Bucket = tuple[bytes, int]


@dataclass(frozen=True, slots=True)
class VectorUpdate:
    """The change of a commit to the index files of vectors."""

    kept: tuple[IndexEntry, ...]
    """Files that stay."""
    written: tuple[tuple[bytes, int, dict[str, Positions]], ...]
    """Partition, bucket, and vectors by name of the data file, of each index file to write."""


def read_files(change: BucketChange) -> set[str]:
    """The names of the files whose rows a change was made from: files that it deletes, or deletes rows of."""
    added_names = {file.file_name for file in change.added}
    return {file.file_name for file in change.deleted if file.file_name not in added_names} | set(change.vectors)


def check_vectors(
    changes: Sequence[BucketChange],
    *,
    now: Mapping[str, VectorPlace],
    at_basis: Mapping[str, VectorPlace],
    load: Load,
) -> None:
    """Raise `Conflict` unless every file has the vector that it was read with.

    Args:
        changes: what a commit adds and deletes.
        now: the vectors of the newest snapshot.
        at_basis: the vectors of the version that the changes were made from, for files whose vector the change does not
            state.
        load: reads a vector, to compare one that another commit has written again unchanged.
    """
    for change in changes:
        for name in sorted(read_files(change)):
            old_place = change.applied[name] if name in change.applied else at_basis.get(name)
            if not _is_same(old_place, now.get(name), load):
                raise Conflict(
                    f"Another writer deleted rows of the file {name} after they were read to make this change. "
                    "Nothing was changed: read again and redo the change.",
                    kind="rows_changed",
                    file=name,
                )


def _is_same(place: VectorPlace | None, other: VectorPlace | None, load: Load) -> bool:
    if place is None or other is None or place == other:
        return place == other
    return bool(np.array_equal(load(place), load(other)))


def has_deleted(
    branch: TableBranch, *, before: Snapshot | None, now: Snapshot | None, entries: pa.Table | None = None
) -> bool:
    """Whether deletion vectors removed rows between two versions, in the buckets of some entries; None: in any bucket.

    Cost: nothing when both have the same index manifest; else both manifests, and 1 GET for each vector that was
    written again.
    """
    if now is None or now.index_manifest is None or not may_have_vectors(branch.schema):
        return False
    if before is not None and before.index_manifest == now.index_manifest:
        return False
    buckets: set[Bucket] | None = None
    if entries is not None:
        buckets = set(zip(*(entries[name].to_pylist() for name in ("partition", "bucket")), strict=True))
    old_places = vectors_of(branch, before)
    load = partial(load_positions, branch.store)
    return any(
        not _is_same(old_places.get(name), place, load)
        for entry in branch.manifests.index_entries(now.index_manifest)
        if buckets is None or (entry.partition, entry.bucket) in buckets
        for name, place in places_of([entry], branch.layout).items()
    )


def check_live(changes: Sequence[BucketChange], *, branch: TableBranch, head: Snapshot | None) -> None:
    """Raise `Conflict` when a file that a change deletes rows of is not a live file of the newest snapshot.

    Cost: the manifests of the newest snapshot that are not cached, if the change deletes rows of files.
    """
    names = {name for change in changes for name in change.vectors}
    if not names:
        return
    live_names = set() if head is None else set(branch.manifests.live_entries(head)["file_name"].to_pylist())
    if missing_names := names - live_names:
        name = min(missing_names)
        raise Conflict(
            f"{len(missing_names)} of {len(names)} files that this change deletes rows of are no longer in the newest "
            f"snapshot ({name} is one): another writer replaced them. Read the table again and redo the change.",
            kind="file_gone",
            file=name,
        )


def vector_update(
    changes: Sequence[BucketChange],
    *,
    entries: Sequence[IndexEntry],
    gone: Collection[str],
    schema: TableSchema,
    layout: Layout,
    load: Load,
) -> VectorUpdate | None:
    """The index files after a commit; None when they stay as they are.

    Args:
        changes: what the commit adds and deletes.
        entries: the index files of the snapshot that the commit is based on, without those of dynamic buckets.
        gone: names of the data files that the commit deletes.
        load: reads a vector.

    Raises `UnsupportedFormat`: there are indexes of a kind that lakebed does not know; `InvalidRequest`: the table
    needs 64-bit vectors. Cost: 1 GET for each vector that is written again.
    """
    added_vectors: dict[Bucket, dict[str, Positions]] = {}
    for change in changes:
        for name, content in change.vectors.items():
            of_bucket = added_vectors.setdefault((change.partition, change.bucket), {})
            of_bucket[name] = _join_positions(of_bucket.get(name), decode_positions(content))
    has_buckets = bool(schema.primary_keys) or TableOptions(schema.options).get(BUCKET) > 0
    kept_entries: list[IndexEntry] = []
    vectors_by_bucket = {bucket: dict(vectors) for bucket, vectors in added_vectors.items()}
    is_changed = bool(added_vectors)
    for entry in entries:
        bucket = (entry.partition, entry.bucket)
        joins = bucket in added_vectors and (has_buckets or entry.file_size < INDEX_FILE_BYTES)
        is_touched = any(
            vector.data_file in gone or vector.data_file in added_vectors.get(bucket, {}) for vector in entry.ranges
        )
        if entry.index_type != DELETION_VECTORS or not (joins or is_touched):
            kept_entries.append(entry)
            continue
        is_changed = True
        vectors = vectors_by_bucket.setdefault(bucket, {})
        for name, place in places_of([entry], layout).items():
            if name not in gone:
                vectors[name] = _join_positions(vectors.get(name), load(place))
    if not is_changed:
        return None
    _check_kinds(kept_entries)
    if (
        any(vectors_by_bucket.values())
        and schema.options.get("deletion-vectors.bitmap64", "false").strip().lower() == "true"
    ):
        raise InvalidRequest(
            "The table has deletion-vectors.bitmap64=true: lakebed reads such vectors and does not write them. Delete "
            "rows with the client that set the option, or compact the table first.",
            kind="unsupported_option",
            option="deletion-vectors.bitmap64",
        )
    files = [
        (partition, bucket, part)
        for (partition, bucket), vectors in vectors_by_bucket.items()
        for part in ([vectors] if has_buckets else _cut(vectors))
        if part
    ]
    return VectorUpdate(tuple(kept_entries), tuple(files))


def _join_positions(positions: Positions | None, other: Positions) -> Positions:
    return other if positions is None else np.union1d(positions, other)


def _cut(vectors: Mapping[str, Positions]) -> Iterator[dict[str, Positions]]:
    """Split vectors of one partition into files of about `INDEX_FILE_BYTES`. A position takes at most 2 bytes."""
    part: dict[str, Positions] = {}
    filled = 0
    for name, positions in vectors.items():
        size = 2 * len(positions)
        if part and filled + size > INDEX_FILE_BYTES:
            yield part
            part, filled = {}, 0
        part[name] = positions
        filled += size
    yield part


def _check_kinds(kept_entries: Sequence[IndexEntry]) -> None:
    kinds = {entry.index_type for entry in kept_entries} - {DELETION_VECTORS}
    if kinds:
        raise UnsupportedFormat(
            f"The table has index files of the kinds {', '.join(sorted(kinds))}, which would not fit its rows after "
            "this change: delete rows with the client that made them.",
            kind="unsupported_index",
        )
