"""Which live files an overwrite replaces. Only the manifests of the newest snapshot are read.

Owns: `Overwrite`, and deriving it from a snapshot. Every try of a commit derives it again, because it depends on the
state.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa

import lakebed.compute as pc
from lakebed.table.branch.context import TableBranch
from lakebed.table.codec.binary_row import decode_rows
from lakebed.table.codec.manifest import as_deletes, entries_of_changes
from lakebed.table.commit.commit import Derive, StagedChange
from lakebed.table.model.model import BucketChange, Snapshot, TableSchema
from lakebed.table.model.predicate import bind, mask_of
from lakebed.table.model.predicate_tree import Predicate
from lakebed.table.model.types import arrow_schema
from lakebed.table.read.partitions import are_among, equal_value, partition_scalars


@dataclass(frozen=True, slots=True)
class Overwrite:
    """Which live files a commit replaces. They are chosen in the newest snapshot at each try."""

    partition: Mapping[str, object] = field(default_factory=dict)
    """Static: files whose partition columns equal these values; empty is the whole table."""
    dynamic: bool = False
    """Instead: every partition that the change adds files to, and only those."""
    where: Predicate | None = None
    """Instead: the partitions for which this predicate over partition columns is true."""
    partitions: Sequence[Mapping[str, object]] | None = None
    """Instead: these partitions, each given by the values of all partition columns."""
    rows: Predicate | None = None
    """Instead: the rows for which this predicate over any columns is true; only in tables without a primary key."""


def find_partitions_to_replace(
    schema: TableSchema, overwrite: Overwrite, *, added: pa.Array | pa.ChunkedArray
) -> Callable[[pa.Array], pa.Array]:
    """Which partitions an overwrite replaces: a function from stored partitions to whether each is replaced.

    Args:
        overwrite: not an overwrite of rows, whose files are read and rewritten.
        added: the stored partitions of the new rows, each any number of times.

    Raises:
        InvalidRequest: `overwrite.partition` or `overwrite.where` names a column that is not a partition column, or a
            value of another type.
    """
    fields = schema.partition_fields
    partition_values = partition_scalars(overwrite.partition, schema=schema)
    where = None if overwrite.where is None else bind(overwrite.where, arrow_schema(fields))

    def hits(partitions: pa.Array) -> pa.Array:
        if overwrite.partitions is not None:
            return are_among(partitions, overwrite.partitions, schema=schema)
        hit = pa.array(np.ones(len(partitions), dtype=bool))
        if overwrite.dynamic and fields:
            return pc.is_in(partitions, pc.unique(added).cast(partitions.type))
        if partition_values or where is not None:
            arrays = decode_rows(partitions, [field.type for field in fields])
            columns = dict(zip((column.name for column in fields), arrays, strict=True))
            if where is not None:
                # Add a column: without partition columns, the table would have no rows to evaluate.
                rows = pa.table([*arrays, partitions], names=[*columns, ""])
                return pc.fill_null(mask_of(where, rows), False)
            for name, value in partition_values.items():
                hit = pc.and_(hit, equal_value(columns[name], value))
        return hit

    return hits


def files_in(live: pa.Table, hits: Callable[[pa.Array], pa.Array]) -> pa.Table:
    """The entries of live files in the partitions that `find_partitions_to_replace` selects."""
    partitions = pc.unique(live["partition"])
    return live.filter(pc.is_in(live["partition"], partitions.filter(hits(partitions))))


def derive_overwrite(branch: TableBranch, changes: Sequence[BucketChange], *, overwrite: Overwrite) -> Derive:
    """The change as a function of the newest snapshot: DELETEs of what it replaces, then `changes`.

    Raises `InvalidRequest` as `find_partitions_to_replace`.
    """
    added_entries = entries_of_changes(changes)
    hits = find_partitions_to_replace(branch.schema, overwrite, added=added_entries["partition"])

    def derive(head: Snapshot | None) -> StagedChange:
        if head is None:
            return StagedChange(entries=added_entries, base=None, changes=changes)
        replaced_entries = files_in(branch.manifests.live_entries(head), hits)
        return StagedChange(
            entries=pa.concat_tables([as_deletes(replaced_entries), added_entries]),
            base=head,
            changes=changes,
            drops=lambda partitions: hits(pa.array(partitions, pa.binary())).to_pylist(),
        )

    return derive
