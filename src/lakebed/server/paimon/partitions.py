"""Partitions of tables, listed from the manifests. They exist as long as their files, so creating one does nothing."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import msgspec
import pyarrow as pa
from starlette.responses import Response

from lakebed.errors import AlreadyExists, InvalidRequest
from lakebed.http.declaration import Parameter, Routes
from lakebed.http.replies import json
from lakebed.server.paimon.calls import PAGE, TABLE, table_of
from lakebed.server.paimon.catalog import PAIMON_TAG
from lakebed.server.paimon.errors import ERRORS
from lakebed.server.paimon.pages import PageOf, pattern_of
from lakebed.server.site import RepositoryCall
from lakebed.table.files.placement import Placement
from lakebed.table.read.partitions import partition_totals
from lakebed.table.table import Table

ROUTES: Final = Routes[RepositoryCall](PAIMON_TAG, errors=ERRORS)
_PARTITIONS: Final = f"{TABLE}/partitions"
_PATTERN: Final = "partitionNamePattern"
_AGAIN: Final = "\0"


class Specs(msgspec.Struct, frozen=True):
    """``POST .../partitions/list-by-names``."""

    specs: list[dict[str, str | None]]


class PartitionCreation(msgspec.Struct, frozen=True, rename="camel"):
    """``POST .../partitions``."""

    partition_specs: list[dict[str, str | None]]
    ignore_if_exists: bool | None = True


@ROUTES.add(
    "GET",
    _PARTITIONS,
    "paimonListPartitions",
    needs="read",
    gives={200: dict},
    parameters=(*PAGE, Parameter(_PATTERN, "Only partitions whose names match it, as SQL's LIKE.")),
)
def list_partitions(call: RepositoryCall) -> Response:
    """List the partitions of a table."""
    (catalog, database, name), page = table_of(call), PageOf.asked(call, _PATTERN)
    matches = pattern_of(call.query.get(_PATTERN))
    by_name = _load_partitions(catalog.look(database, name)[0])
    names = (name for name in sorted(by_name) if matches(name.rstrip(_AGAIN)))
    rows, next_token = page.cut(names, by_name.get)
    return json({"partitions": rows, "nextPageToken": next_token})


@ROUTES.add("POST", f"{_PARTITIONS}/list-by-names", "paimonListPartitionsByNames", needs="read", gives={200: dict})
def list_partitions_by_names(call: RepositoryCall, body: Specs) -> Response:
    """List those of some partitions that exist."""
    catalog, database, name = table_of(call)
    by_name = _load_partitions(catalog.look(database, name)[0])
    rows = [row for row in by_name.values() if row["spec"] in body.specs]
    return json({"partitions": rows, "nextPageToken": None})


@ROUTES.add("POST", _PARTITIONS, "paimonCreatePartitions", needs="write", gives={200: dict})
def create_partitions(call: RepositoryCall, body: PartitionCreation) -> Response:
    """Accept partitions: they exist once they have rows."""
    catalog, database, name = table_of(call)
    table, schema = catalog.look(database, name)
    for spec in body.partition_specs:
        if set(spec) != set(schema.partition_keys):
            raise InvalidRequest(
                f"A partition is named by values of ({', '.join(schema.partition_keys)}), and not of "
                f"({', '.join(spec)}).",
                kind="invalid_partition",
            )
    specs = [row["spec"] for row in _load_partitions(table).values()]
    existing = [spec for spec in body.partition_specs if spec in specs]
    if existing and body.ignore_if_exists is False:
        raise AlreadyExists(f"The partition {existing[0]} exists already.", kind="partition_exists")
    return json({"created": [spec for spec in body.partition_specs if spec not in specs], "existed": existing})


def _load_partitions(table: Table) -> dict[str, dict[str, Any]]:
    """Load the partitions of the newest version by name, such as ``dt=2013-01-01/hour=3``.

    Names may repeat, because values may contain slashes, and an empty value is written as null is. A repeated name gets
    the suffix `_AGAIN` as often as it was seen before.
    """
    snapshot, schema = table.latest(), table.schema
    if snapshot is None or not schema.partition_keys:
        return {}
    totals = partition_totals(table.context.manifests.live_entries(snapshot))
    partitions = totals["partition"].combine_chunks()
    specs = Placement.of(schema).specs(partitions)
    by_name: dict[str, dict[str, Any]] = {}
    for spec, row in _rows(specs, totals):
        name = "/".join(f"{key}={value}" for key, value in spec.items())
        while name in by_name:
            name += _AGAIN
        by_name[name] = row
    return by_name


def _rows(specs: Sequence[dict[str, str]], totals: pa.Table) -> list[tuple[dict[str, str], dict[str, Any]]]:
    return [
        (
            spec,
            {
                "spec": spec,
                "recordCount": row["row_count_sum"],
                "fileSizeInBytes": row["file_size_sum"],
                "fileCount": row["file_name_count"],
                "lastFileCreationTime": row["creation_time_ms_max"] or 0,
                "totalBuckets": row["total_buckets_max"],
                "done": False,
            },
        )
        for spec, row in zip(specs, totals.drop_columns(["partition"]).to_pylist(), strict=True)
    ]
