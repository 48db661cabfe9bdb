"""Delete rows of an append table that an engine has found: by file and position, with new rows in the same commit.

Owns: `delete_positions`, and `position_changes` for callers that commit by themselves. An engine reads a version,
computes which rows to delete and which to add (UPDATE and MERGE are both), and commits both at once. The deleted rows
are marked in deletion vectors, so their files are not rewritten.

Invariant: a commit is refused as `Conflict` when another writer deleted rows of the same files, or replaced one of
them, after the version was read.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TypeAlias

import numpy as np
import pyarrow as pa

from lakebed.errors import Conflict, InvalidRequest, NotFound
from lakebed.table.branch.context import TableBranch
from lakebed.table.branch.discard import discard_changes
from lakebed.table.codec.roaring import Positions
from lakebed.table.commit.commit import Basis, CommitOptions, CommitRequest, commit
from lakebed.table.model.model import BucketChange, Snapshot
from lakebed.table.read.scan import scan_snapshot
from lakebed.table.read.vectors import NO_POSITIONS, has_option, load_positions
from lakebed.table.rows.rows import Rewrite, mark_deleted
from lakebed.table.write.write_settings import check_writable

PositionsLike: TypeAlias = "Positions | Sequence[int] | pa.Array | pa.ChunkedArray"


def delete_positions(
    branch: TableBranch,
    positions: Mapping[str, PositionsLike],
    *,
    basis: Basis,
    added: Sequence[BucketChange] = (),
    options: CommitOptions,
) -> Snapshot | None:
    """Delete rows by position, and add rows, in one commit.

    Args:
        positions: by name of the data file (without folder): numbers of rows, counted from 0, in any order. Rows that
            are deleted already are ignored.
        basis: the version that the positions, and the added rows, were computed from.
        added: what writers of the new rows returned (`TableWriter.finish`).
        options: options of the commit.

    Returns the snapshot; None when nothing is deleted or added.

    Raises:
        InvalidRequest: the table has no deletion vectors, a file is not in the version, or a position is not in its
            file.
        Conflict: kind ``rows_changed`` or ``file_gone``: another writer changed rows of these files since `basis`, or
            (with `added`) rows of the buckets of the new rows. Nothing was changed, and the files of `added` are
            deleted: compute again from the newest version.
    Cost: the manifests of `basis` that are not cached, 1 GET for each file that has a vector, and 1 commit.
    """
    try:
        changes = [*position_changes(branch, positions, basis=basis), *added]
        if not changes:
            return None
        return commit(branch, CommitRequest(kind="OVERWRITE", changes=changes, basis=basis, options=options))
    except (Conflict, InvalidRequest, NotFound):
        discard_changes(branch, added)
        raise


def position_changes(
    branch: TableBranch, positions: Mapping[str, PositionsLike], *, basis: Basis
) -> list[BucketChange]:
    """The changes that delete rows by position; arguments and errors as `delete_positions`. Writes nothing."""
    branch = branch.look()
    check_writable(branch.schema)
    if branch.schema.primary_keys or not has_option(branch.schema):
        raise InvalidRequest(
            "Rows are deleted by position in append tables with the option deletion-vectors.enabled = 'true', and this "
            "table is not one: set the option, or delete by predicate or key.",
            kind="no_deletion_vectors",
        )
    scan = scan_snapshot(branch, basis.snapshot)
    totals = dict(zip(*(scan.entries()[name].to_pylist() for name in ("file_name", "total_buckets")), strict=True))
    if unknown_names := positions.keys() - totals.keys():
        raise InvalidRequest(
            f"{min(unknown_names)!r} is not a data file of "
            f"{'the empty table' if basis.snapshot is None else f'snapshot {basis.snapshot.id}'}, so no row of it can "
            "be deleted: give names of files as the version has them.",
            kind="unknown_file",
            file=min(unknown_names),
        )
    changes = []
    for split in scan.splits():
        for file in split.files:
            if file.file_name not in positions:
                continue
            file_positions = _check(positions[file.file_name], name=file.file_name, row_count=file.row_count)
            vectors = {name: place for name, place in split.vectors.items() if name == file.file_name}
            before = load_positions(branch.store, vectors[file.file_name]) if vectors else NO_POSITIONS
            alone = replace(split, files=(file,), row_count=file.row_count, vectors=vectors)
            new_positions = np.setdiff1d(file_positions, before, assume_unique=True)
            change = mark_deleted(Rewrite(alone, totals[file.file_name]), new_positions, already=len(before))
            changes.extend([change] if change is not None else [])
    return changes


def _check(positions: PositionsLike, *, name: str, row_count: int) -> Positions:
    """The positions ascending and without repetitions. Raises for positions that are not in the file."""
    result: Positions = np.unique(np.asarray(positions, dtype=np.int64))
    if len(result) and not 0 <= int(result[0]) <= int(result[-1]) < row_count:
        outside = int(result[0]) if result[0] < 0 else int(result[-1])
        raise InvalidRequest(
            f"The file {name} has {row_count:,} rows and none at position {outside}: positions count from 0.",
            kind="invalid_position",
            file=name,
        )
    return result
