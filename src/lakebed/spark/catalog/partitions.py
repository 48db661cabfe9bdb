"""Verbs on partitions: list those of a version, and remove some.

Invariant: partitions are removed in one commit, by their values, from the newest snapshot.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import msgspec
import pyarrow as pa

from lakebed.errors import InvalidRequest
from lakebed.spark.catalog.verb import Session, TableVerb, register_verb, snapshot_of
from lakebed.spark.plan.filters import Literal, from_json
from lakebed.spark.tasks.committing import commit_changes
from lakebed.table.codec.binary_row import decode_rows
from lakebed.table.codec.manifest import NO_ENTRIES
from lakebed.table.model.model import TableSchema
from lakebed.table.read.partitions import have_values, partition_totals
from lakebed.table.rows.overwrite import Overwrite
from lakebed.table.schema.schema import require_column
from lakebed.table.write.write_settings import check_writable

_COUNTS: Final = {
    "record_count": "row_count_sum",
    "file_count": "file_name_count",
    "file_size_in_bytes": "file_size_sum",
}


@register_verb("list_partitions")
class ListPartitions(TableVerb, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """List the partitions of a version that have given values, with all their values, and their rows, files and bytes.

    Attributes:
        snapshot: from the reply of `Load`.
        partition: values of partition columns, as `filters.from_json` reads literals.
    """

    snapshot: str | None = None
    partition: dict[str, Any] = msgspec.field(default_factory=dict)

    def run(self, session: Session, lake_url: str) -> dict[str, Any]:
        table = self.open_table(session, lake_url)
        snapshot, schema = snapshot_of(self.snapshot), table.schema
        values = partition_values(self.partition, schema)
        live_entries = NO_ENTRIES if snapshot is None else table.context.manifests.live_entries(snapshot)
        totals = partition_totals(live_entries)
        matches = totals.filter(have_values(totals["partition"].combine_chunks(), values, schema=schema))
        fields = schema.partition_fields
        columns = decode_rows(matches["partition"].combine_chunks(), [field.type for field in fields])
        rows = {f"value_{position}": column for position, column in enumerate(columns)}
        rows |= {name: matches[total] for name, total in _COUNTS.items()}
        return {"rows": session.store_rows(pa.table(rows))}


@register_verb("drop_partitions")
class DropPartitions(TableVerb, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Remove the rows of some partitions, in one commit.

    Attributes:
        partitions: for each the values of all partition columns, as in `ListPartitions`.
    """

    partitions: list[dict[str, Any]]

    def run(self, session: Session, lake_url: str) -> dict[str, Any]:
        table = self.open_table(session, lake_url)
        check_writable(table.schema)
        overwrite = Overwrite(partitions=[partition_values(partition, table.schema) for partition in self.partitions])
        return {"snapshot_id": commit_changes(table, [], options={}, overwrite=overwrite).id}


def partition_values(given: Mapping[str, Any], schema: TableSchema) -> dict[str, object]:
    """Return values of partition columns.

    Args:
        given: values by column, as `filters.from_json` reads literals.

    Raises `InvalidRequest`: a value of a type that SQL has and tables lack.
    """
    values: dict[str, object] = {}
    for name, tree in given.items():
        term = from_json(tree)
        if not isinstance(term, Literal):
            column = require_column(schema, name)
            raise InvalidRequest(
                f"Partitions by {name} cannot be named in SQL, since its type is {column.type}: DELETE the rows by a "
                "condition.",
                kind="unsupported_partition",
                column=name,
            )
        values[name] = term.value
    return values
