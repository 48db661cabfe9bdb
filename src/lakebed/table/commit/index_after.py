"""The index manifest of a commit: the keys of dynamic buckets, and deletion vectors.

Owns: `index_after`, which writes the index files and the manifest that a change needs. Invariant: a change that touches
no index keeps the manifest of its base version, without reading it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

import pyarrow as pa

import lakebed.compute as pc
from lakebed.table.branch.context import TableBranch
from lakebed.table.codec.index_manifest import DELETION_VECTORS, HASH, IndexEntry, encode_index_manifest
from lakebed.table.codec.manifest import ADD
from lakebed.table.commit.vector_update import VectorUpdate, vector_update
from lakebed.table.files.dynamic_bucket import IndexUpdate, encode_hashes, index_update, is_dynamic
from lakebed.table.model.model import BucketChange
from lakebed.table.read.vectors import encode_vectors, has_option, load_positions, may_have_vectors

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
    """The index manifest after a commit; written if the commit changes it.

    Args:
        before: the index manifest of the base version.
        entries: what the commit adds and deletes (`manifest.ENTRY_SCHEMA`).
        changes: the changes that `entries` come from, with key hashes and deleted rows.
        drops: for an overwrite, says for each of some partitions whether it is replaced.
        put, put_manifest: write an index file, or the manifest, and return its name.

    Raises as `index_update` and `vector_update`.
    """
    of_hashes = _hashes_after(branch, before, changes=changes, drops=drops)
    of_vectors = _vectors_after(branch, before, entries=entries, changes=changes)
    if of_hashes is None and of_vectors is None:
        return before
    index_entries = [] if before is None else branch.manifests.index_entries(before)
    new_entries = []
    if of_hashes is None:
        kept_entries = [entry for entry in index_entries if entry.index_type == HASH]
    else:
        kept_entries = list(of_hashes.kept)
        for partition, bucket, hashes in of_hashes.written:
            body = encode_hashes(hashes)
            new_entries.append(IndexEntry(partition, bucket, put(body), len(body), len(hashes)))
    if of_vectors is None:
        kept_entries += [entry for entry in index_entries if entry.index_type != HASH]
    else:
        kept_entries += of_vectors.kept
        for partition, bucket, vectors in of_vectors.written:
            body, ranges = encode_vectors(vectors)
            new_entries.append(
                IndexEntry(partition, bucket, put(body), len(body), len(ranges), DELETION_VECTORS, ranges)
            )
    return (
        put_manifest(encode_index_manifest([*kept_entries, *new_entries]))
        if kept_entries or new_entries or of_hashes
        else None
    )


def _hashes_after(
    branch: TableBranch,
    before: str | None,
    *,
    changes: Sequence[BucketChange],
    drops: Callable[[Sequence[bytes]], Sequence[bool]] | None,
) -> IndexUpdate | None:
    """What a commit changes in the keys of dynamic buckets; None if it changes nothing."""
    schema = branch.schema
    if not is_dynamic(schema) or not (changes or drops):
        return None
    index = branch.hash_index
    return index_update(changes, index.entries(before, has_vectors=has_option(schema)), index=index, drops=drops)


def _vectors_after(
    branch: TableBranch, before: str | None, *, entries: pa.Table, changes: Sequence[BucketChange]
) -> VectorUpdate | None:
    """What a commit changes in the deletion vectors; None if it changes nothing."""
    if not may_have_vectors(branch.schema):
        return None
    marks = any(change.vectors for change in changes)
    if before is None and not marks:
        return None
    is_added = pc.equal(entries["kind"], ADD)
    added_names, deleted_names = (
        entries.filter(mask)["file_name"].to_pylist() for mask in (is_added, pc.invert(is_added))
    )
    gone_names = set(deleted_names) - set(added_names)
    if not gone_names and not marks:
        return None
    index_entries = () if before is None else branch.manifests.index_entries(before)
    return vector_update(
        changes,
        entries=[entry for entry in index_entries if entry.index_type != HASH],
        gone=gone_names,
        schema=branch.schema,
        layout=branch.layout,
        load=partial(load_positions, branch.store),
    )
