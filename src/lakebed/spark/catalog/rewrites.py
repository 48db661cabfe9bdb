"""The files that UPDATE, DELETE or MERGE reads and replaces in a table without a primary key.

Owns: `Rewritten`, which identifies these files. Invariants: the scan and the commit of a statement derive the same
files from the same `Rewritten`, so a file that was not read is not replaced. Pruning drops only whole files, so every
row of a replaced file is read.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import msgspec
import pyarrow as pa

import lakebed.compute as pc
from lakebed.spark.catalog.verb import snapshot_of
from lakebed.spark.plan.filters import from_json, translate
from lakebed.table.codec.manifest import ENTRY_SCHEMA, files_of
from lakebed.table.files.splits import plan_splits
from lakebed.table.model.model import BucketChange, Split, VectorPlace
from lakebed.table.model.types import arrow_schema
from lakebed.table.read.read import ReadPlan
from lakebed.table.read.scan import Scan, scan_snapshot
from lakebed.table.read.vectors import with_vectors
from lakebed.table.table import Table


class Rewritten(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Files of one version.

    Attributes:
        snapshot, schema_id: as `Load` answered them.
        predicates: no other files than those that may have rows for which all are true.
        files: no other files than those of these names; None: no restriction.
    """

    snapshot: str | None
    schema_id: int
    predicates: list[Any]
    files: list[str] | None = None

    def deletes(self, table: Table) -> list[BucketChange]:
        """Return the change that removes the files. Cost: see `ManifestReader.live_entries`."""
        scan = self._scan(table, columns=None)
        return deletes_of(self._entries(scan), applied=scan.vectors())

    def scan(self, table: Table, *, columns: Sequence[str]) -> tuple[list[Split], ReadPlan]:
        """Return the splits of the files, and the plan by which all their rows are read."""
        scan = self._scan(table, columns=columns)
        splits = plan_splits(self._entries(scan), schema=scan.table_schema)
        return with_vectors(splits, scan.vectors()), replace(scan.plan, where=None)

    def _scan(self, table: Table, *, columns: Sequence[str] | None) -> Scan:
        schema = table.context.schemas.load(self.schema_id)
        where = translate([from_json(predicate) for predicate in self.predicates], arrow_schema(schema.fields)).where
        snapshot = snapshot_of(self.snapshot)
        return scan_snapshot(table.context, snapshot, schema_id=self.schema_id, columns=columns, where=where)

    def _entries(self, scan: Scan) -> pa.Table:
        entries = scan.entries()
        return entries if self.files is None else select_files(entries, self.files)


def select_files(entries: pa.Table, names: Sequence[str]) -> pa.Table:
    """Return the entries of the files of some names."""
    return entries.filter(pc.is_in(entries.column("file_name"), value_set=pa.array(names, pa.string())))


def deletes_of(entries: pa.Table, *, applied: Mapping[str, VectorPlace]) -> list[BucketChange]:
    """Return the change that removes some files, whose rows were read with some deletion vectors."""
    if entries.num_rows == 0:
        return []
    places = zip(*(entries.column(name).to_pylist() for name in ("partition", "bucket", "total_buckets")), strict=True)
    files_by_place: dict[tuple[bytes, int, int], list[Any]] = {}
    for place, file in zip(places, files_of(entries.select(ENTRY_SCHEMA.names)), strict=True):
        files_by_place.setdefault(place, []).append(file)
    return [
        BucketChange(
            *place, deleted=tuple(files), applied={file.file_name: applied.get(file.file_name) for file in files}
        )
        for place, files in files_by_place.items()
    ]
