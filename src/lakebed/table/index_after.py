"""The index manifest of a commit: the keys of dynamic buckets, and deletion vectors.

Owns: `index_after`, which writes the index files and the manifest that a change needs. Invariant: a change that touches
no index keeps the manifest of the version below it, without reading it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

import pyarrow as pa

import lakebed.compute as pc
from lakebed.table.context import TableBranch
from lakebed.table.dynamic_bucket import encode_hashes, index_update, is_dynamic
from lakebed.table.index_manifest import DELETION_VECTORS, IndexEntry, encode_index_manifest
from lakebed.table.manifest import ADD
from lakebed.table.model import BucketChange
from lakebed.table.vector_update import vector_update
from lakebed.table.vectors import encode_vectors, load_positions

PutIndex = Callable[[bytes], str]


def index_after(
    branch: TableBranch,
    before: str | None,
    *,
    entries: pa.Table,
    changes: Sequence[BucketChange],
    drops: Callable[[Sequence[bytes]], Sequence[bool]] | None,
    put: PutIndex,
    put_manifest: PutIndex,
) -> str | None:
    """The index manifest after a commit, written if it changes.

    Args:
        before: that of the version below.
        entries: what the commit adds and deletes (`manifest.ENTRY_SCHEMA`).
        changes: what `entries` add, with key hashes and deleted rows.
        drops: for an overwrite, whether each of some partitions is replaced.
        put, put_manifest: write an index file, or the manifest, and return its name.

    Raises as `index_update` and `vector_update`.
    """
    schema = branch.schema
    if not schema.primary_keys:
        return _with_vectors(branch, before, entries=entries, changes=changes, put=put, put_manifest=put_manifest)
    if not is_dynamic(schema) or not (changes or drops):
        return before
    index = branch.hash_index
    update = index_update(changes, index.entries(before), index=index, drops=drops)
    if update is None:
        return before
    written = []
    for partition, bucket, hashes in update.written:
        body = encode_hashes(hashes)
        written.append(IndexEntry(partition, bucket, put(body), len(body), len(hashes)))
    return put_manifest(encode_index_manifest([*update.kept, *written]))


def _with_vectors(
    branch: TableBranch,
    before: str | None,
    *,
    entries: pa.Table,
    changes: Sequence[BucketChange],
    put: PutIndex,
    put_manifest: PutIndex,
) -> str | None:
    if before is None and not any(change.vectors for change in changes):
        return None
    is_added = pc.equal(entries["kind"], ADD)
    added, deleted = (entries.filter(one)["file_name"].to_pylist() for one in (is_added, pc.invert(is_added)))
    gone = set(deleted) - set(added)
    if not gone and not any(change.vectors for change in changes):
        return before
    update = vector_update(
        changes,
        entries=() if before is None else branch.manifests.index_entries(before),
        gone=gone,
        schema=branch.schema,
        layout=branch.layout,
        load=partial(load_positions, branch.store),
    )
    if update is None:
        return before
    written = []
    for partition, bucket, vectors in update.written:
        body, ranges = encode_vectors(vectors)
        written.append(IndexEntry(partition, bucket, put(body), len(body), len(ranges), DELETION_VECTORS, ranges))
    return put_manifest(encode_index_manifest([*update.kept, *written])) if update.kept or written else None
