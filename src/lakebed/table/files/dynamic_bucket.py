"""Dynamic buckets: which bucket holds a key of a primary-key table with ``bucket`` = -1.

Owns: the index files of such a table (type ``HASH``), the choice of a bucket for a new key, and the changes of a commit
to the index. Each bucket has one index file: the hashes of its keys, 4 bytes each, big-endian, in any order. The index
manifest of a snapshot names them. DO NOT CHANGE: on disk, shared with other clients.

Invariants:
- The hash of a key is in the index of exactly one bucket of its partition, and all rows of the key are in that bucket.
  Keys of equal hash share a bucket.
- A commit looks up its new hashes in the index of its base snapshot. A hash that another bucket has is a `Conflict`: a
  concurrent writer placed the key. So the first invariant also holds for concurrent writers.
- Deletes and compactions do not change the index; an overwrite drops the index of the partitions that it replaces.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Final

import numpy as np
import numpy.typing as npt

from lakebed.errors import Conflict, Corruption, InvalidRequest, UnsupportedFormat
from lakebed.objects.port import ObjectStore
from lakebed.table.codec.index_manifest import DELETION_VECTORS, HASH, IndexEntry, decode_index_manifest
from lakebed.table.model.layout import Layout
from lakebed.table.model.model import BucketChange, TableSchema
from lakebed.table.model.options import (
    BUCKET,
    DYNAMIC_BUCKET_ASSIGNER_PARALLELISM,
    DYNAMIC_BUCKET_INITIAL_BUCKETS,
    DYNAMIC_BUCKET_MAX_BUCKETS,
    DYNAMIC_BUCKET_TARGET_ROW_NUM,
    TableOptions,
)

Int32s = npt.NDArray[np.int32]

BUCKET_ID_MAX: Final = 32_767
"""Other clients store a bucket's number in 16 bits."""
CACHE_BYTES_MAX: Final = 64 * 1024 * 1024


def is_dynamic(schema: TableSchema) -> bool:
    """Whether a table's rows go into dynamic buckets."""
    return bool(schema.primary_keys) and TableOptions(schema.options).get(BUCKET) == -1


@dataclass(frozen=True, slots=True)
class DynamicBuckets:
    """How buckets are filled. Picklable."""

    target_rows: int
    """Approximate number of keys in a bucket; new keys go into buckets with fewer."""
    bucket_count_max: int | None
    """Largest number of buckets in a partition. At the limit, buckets grow beyond the target. None: no limit."""
    class_count: int = 1
    """Number of classes of new keys, by hash; class c fills the buckets c, c + count, ..."""

    def with_tasks(self, options: TableOptions) -> DynamicBuckets:
        """The settings for the number of parallel tasks in the options; each task places the keys of some classes."""
        tasks = options.get(DYNAMIC_BUCKET_ASSIGNER_PARALLELISM) or 1
        most = self.bucket_count_max or tasks
        return replace(self, class_count=max(self.class_count, min(tasks, most)))

    @classmethod
    def of(cls, schema: TableSchema) -> DynamicBuckets:
        """The settings by a table's options."""
        options = TableOptions(schema.options)
        most = options.get(DYNAMIC_BUCKET_MAX_BUCKETS)
        classes = options.get(DYNAMIC_BUCKET_INITIAL_BUCKETS) or 1
        bound = None if most is None or most < 1 else most
        return cls(
            target_rows=options.get(DYNAMIC_BUCKET_TARGET_ROW_NUM),
            bucket_count_max=bound,
            class_count=classes if bound is None else min(classes, bound),
        )


class HashIndex:
    """Reads index manifests and index files, and caches the files. Thread-safe: entries are immutable."""

    def __init__(self, store: ObjectStore, layout: Layout) -> None:
        self._store = store
        self._layout = layout
        self._held: dict[str, Int32s] = {}

    def entries(self, index_manifest: str | None, *, has_vectors: bool = False) -> list[IndexEntry]:
        """The index files of a snapshot that hold hashes.

        Args:
            has_vectors: the table may have deletion vectors too.

        Raises `UnsupportedFormat` for another kind of index. Cost: 1 GET.
        """
        if index_manifest is None:
            return []
        path = self._layout.manifest(index_manifest)
        entries = decode_index_manifest(self._store.get(path), path=path)
        kinds = {entry.index_type for entry in entries} - ({DELETION_VECTORS} if has_vectors else set())
        if not kinds <= {HASH}:
            raise UnsupportedFormat(
                f"{path} names index files of the kinds {', '.join(sorted(kinds))}; tables with dynamic buckets are "
                "written only where all are HASH.",
                path=path,
            )
        return [entry for entry in entries if entry.index_type == HASH]

    def hashes(self, entry: IndexEntry) -> Int32s:
        """The hashes in an index file. Raises `Corruption`. Cost: 1 GET, none if cached."""
        hit = self._held.get(entry.file_name)
        if hit is not None:
            return hit
        path = self._layout.index(entry.file_name)
        body = bytes(self._store.get(path))
        size_bytes = len(body)
        if size_bytes != 4 * entry.row_count:
            raise Corruption(
                f"The index file {path} has {size_bytes} bytes, but {entry.row_count} hashes take "
                f"{4 * entry.row_count}: it was cut short or overwritten.",
                path=path,
            )
        file_hashes: Int32s = np.frombuffer(body, ">i4").astype(np.int32)
        if sum(hashes.nbytes for hashes in list(self._held.values())) + file_hashes.nbytes > CACHE_BYTES_MAX:
            self._held = {}
        self._held[entry.file_name] = file_hashes
        return file_hashes

    def load_partition(self, entries: Iterable[IndexEntry]) -> tuple[Int32s, Int32s]:
        """The hashes of one partition, ascending, and the bucket of each."""
        hashes, buckets = [np.empty(0, np.int32)], [np.empty(0, np.int32)]
        for entry in entries:
            part = self.hashes(entry)
            hashes.append(part)
            buckets.append(np.full(len(part), entry.bucket, np.int32))
        all_hashes = np.concatenate(hashes)
        order = np.argsort(all_hashes, kind="stable")
        return all_hashes[order], np.concatenate(buckets)[order]


class BucketAssigner:
    """Places keys: known keys in their buckets, new keys in buckets with room. Not thread-safe.

    Args:
        settings: how buckets are filled.
        known: hashes of a partition, ascending, with their buckets; called once for each partition.
    """

    def __init__(self, settings: DynamicBuckets, known: Callable[[bytes], tuple[Int32s, Int32s]]) -> None:
        self._settings = settings
        self._load = known
        self._known: dict[bytes, tuple[Int32s, Int32s]] = {}
        self._counts: dict[bytes, dict[int, int]] = {}

    def assign(self, partition: bytes, hashes: Int32s) -> Int32s:
        """The bucket of each hash.

        Raises `InvalidRequest`: a partition would need more buckets than the format can number. Cost: a sort of the
        distinct hashes.
        """
        if partition not in self._known:
            partition_index = self._load(partition)
            self._known[partition] = partition_index
            self._counts[partition] = (
                dict(enumerate(np.bincount(partition_index[1]).tolist())) if len(partition_index[1]) else {}
            )
        index_hashes, buckets_there = self._known[partition]
        distinct, inverse = np.unique(hashes, return_inverse=True)
        buckets, is_known = find_buckets(distinct, index_hashes, buckets_there)
        if not is_known.all():
            buckets[~is_known] = self._place(distinct[~is_known], self._counts[partition])
            all_hashes = np.concatenate([index_hashes, distinct[~is_known]])
            order = np.argsort(all_hashes, kind="stable")
            self._known[partition] = all_hashes[order], np.concatenate([buckets_there, buckets[~is_known]])[order]
        return buckets[inverse.reshape(-1)]

    def _place(self, new: Int32s, counts: dict[int, int]) -> Int32s:
        classes = self._settings.class_count
        if classes == 1:
            return self._fill(len(new), counts, 0)
        buckets = np.empty(len(new), np.int32)
        class_of = np.abs(np.fmod(new, np.int32(classes)))
        for number in range(classes):
            members = np.flatnonzero(class_of == number)
            buckets[members] = self._fill(len(members), counts, number)
        return buckets

    def _fill(self, count: int, counts: dict[int, int], number: int) -> Int32s:
        """Buckets for `count` new keys of a class: first those with room, by number, then new buckets."""
        classes, most = self._settings.class_count, self._settings.bucket_count_max
        parts: list[Int32s] = []
        bucket, count_left = number, count
        while count_left > 0 and bucket < (BUCKET_ID_MAX + 1 if most is None else most):
            share = min(count_left, max(0, self._settings.target_rows - counts.get(bucket, 0)))
            if share:
                parts.append(np.full(share, bucket, np.int32))
                counts[bucket] = counts.get(bucket, 0) + share
                count_left -= share
            bucket += classes
        if count_left and most is None:
            raise InvalidRequest(
                f"A partition needs more than {BUCKET_ID_MAX + 1:,} buckets of {self._settings.target_rows:,} keys: "
                "raise the option dynamic-bucket.target-row-num.",
                kind="too_many_buckets",
            )
        if count_left and most is not None:
            full_buckets = np.arange(number, most, classes, dtype=np.int32)
            overflow = np.resize(full_buckets, count_left)
            parts.append(overflow)
            for full_bucket, extra_count in zip(*np.unique(overflow, return_counts=True), strict=True):
                counts[int(full_bucket)] = counts.get(int(full_bucket), 0) + int(extra_count)
        return np.concatenate([np.empty(0, np.int32), *parts])


def find_buckets(hashes: Int32s, index_hashes: Int32s, buckets: Int32s) -> tuple[Int32s, npt.NDArray[np.bool_]]:
    """The bucket of each hash, and whether `index_hashes` (ascending, with their `buckets`) contains it."""
    if len(index_hashes) == 0:
        return np.zeros(len(hashes), np.int32), np.zeros(len(hashes), bool)
    positions = np.minimum(np.searchsorted(index_hashes, hashes), len(index_hashes) - 1)
    return buckets[positions].copy(), index_hashes[positions] == hashes


@dataclass(frozen=True, slots=True)
class IndexUpdate:
    """The change of a commit to an index."""

    kept: tuple[IndexEntry, ...]
    """Files that stay."""
    written: tuple[tuple[bytes, int, Int32s], ...]
    """Partition, bucket and all hashes of each index file to write."""


def index_update(
    changes: Sequence[BucketChange],
    entries: Sequence[IndexEntry],
    *,
    index: HashIndex,
    drops: Callable[[Sequence[bytes]], Sequence[bool]] | None = None,
) -> IndexUpdate | None:
    """The index after a commit; None when it stays as it is.

    Args:
        changes: what the commit adds; their `hashes` are the keys.
        entries: the index of the snapshot that the commit is based on.
        index: reads its files.
        drops: for an overwrite, says for each of some partitions whether it is replaced.

    Raises `Conflict`: another writer placed one of the keys in another bucket.
    """
    partitions = list(dict.fromkeys(entry.partition for entry in entries))
    dropped_partitions = set()
    if drops is not None:
        dropped_partitions = {
            partition for partition, is_dropped in zip(partitions, drops(partitions), strict=True) if is_dropped
        }
    stays = [entry for entry in entries if entry.partition not in dropped_partitions]
    brought: dict[bytes, dict[int, list[Int32s]]] = {}
    for change in changes:
        if change.hashes:
            of_partition = brought.setdefault(change.partition, {})
            of_partition.setdefault(change.bucket, []).append(np.frombuffer(change.hashes, "<i4").astype(np.int32))
    new_hashes: list[tuple[bytes, int, Int32s]] = []
    for partition, by_bucket in brought.items():
        index_hashes, buckets = index.load_partition(entry for entry in stays if entry.partition == partition)
        files = {entry.bucket: entry for entry in stays if entry.partition == partition}
        for bucket, parts in sorted(by_bucket.items()):
            hashes = np.unique(np.concatenate(parts))
            found_in, is_known = find_buckets(hashes, index_hashes, buckets)
            if (found_in[is_known] != bucket).any():
                raise Conflict(
                    "Another writer added some of the same new keys at the same time, in other buckets. "
                    "Nothing was changed: write the rows again.",
                    kind="index_changed",
                )
            if not is_known.all():
                before = [index.hashes(files[bucket])] if bucket in files else []
                new_hashes.append((partition, bucket, np.concatenate([*before, hashes[~is_known]])))
    if not new_hashes and not dropped_partitions:
        return None
    changed_buckets = {(partition, bucket) for partition, bucket, _ in new_hashes}
    return IndexUpdate(tuple(e for e in stays if (e.partition, e.bucket) not in changed_buckets), tuple(new_hashes))


def encode_hashes(hashes: Int32s) -> bytes:
    """The bytes of an index file."""
    return hashes.astype(">i4").tobytes()
