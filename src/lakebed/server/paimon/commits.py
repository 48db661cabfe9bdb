"""Snapshots of tables: the newest with totals, one by version, all; commits and rollbacks."""

from __future__ import annotations

import asyncio
from concurrent.futures import Executor
from contextlib import suppress
from functools import partial
from typing import Any, Final

import msgspec
from starlette.responses import Response

import lakebed.compute as pc
from lakebed.errors import InvalidRequest, LakebedError, NotFound
from lakebed.http.declaration import Routes
from lakebed.http.replies import empty, json
from lakebed.server.paimon.calls import PAGE, TABLE, name_of, table_of
from lakebed.server.paimon.catalog import PAIMON_TAG, PaimonCatalog, is_in_reference
from lakebed.server.paimon.errors import ERRORS
from lakebed.server.paimon.pages import PageOf
from lakebed.server.reference_tables import check_kept
from lakebed.server.site import RepositoryCall
from lakebed.table.codec.snapshot_json import decode_proposed, encode_snapshot
from lakebed.table.commit.prepared import commit_prepared
from lakebed.table.model.model import Snapshot
from lakebed.table.table import Table

ROUTES: Final = Routes[RepositoryCall](PAIMON_TAG, errors=ERRORS)


class PartitionStatistics(msgspec.Struct, frozen=True, rename="camel"):
    """What a commit changed in a partition, as its client counted."""

    spec: dict[str, str | None]
    record_count: int
    file_size_in_bytes: int
    file_count: int
    last_file_creation_time: int
    total_buckets: int = 0


class TableCommit(msgspec.Struct, frozen=True, rename="camel"):
    """``POST .../commit``."""

    snapshot: msgspec.Raw
    table_id: str | None = None
    base_snapshot_uuid: str | None = None
    statistics: list[PartitionStatistics] | None = None
    """Checked for their form and not kept: what lakebed states of partitions it reads from the manifests."""


class Instant(msgspec.Struct, frozen=True, rename="camel"):
    """What to go back to: ``snapshot`` with an id, or ``tag`` with a name."""

    type: str
    snapshot_id: int | None = None
    tag_name: str | None = None


class Rollback(msgspec.Struct, frozen=True, rename="camel"):
    """``POST .../rollback``."""

    instant: Instant
    from_snapshot: int | None = None


@ROUTES.add("GET", f"{TABLE}/snapshot", "paimonGetSnapshot", needs="read", gives={200: dict})
async def get_snapshot(call: RepositoryCall) -> Response:
    """Get the newest snapshot, with the rows, files and bytes of the table."""
    catalog, database, name = table_of(call)

    def describe(table: Table) -> Response:
        if not is_in_reference(database):  # tables in branches of repositories are opened for each request anyway
            table.context.schemas.confirm(table.schema, table.context.schemas.listed)
        snapshot = _newest(table)
        live_entries = table.context.manifests.live_entries(snapshot)
        return json(
            {
                "snapshot": {
                    "snapshot": _raw(snapshot),
                    "recordCount": snapshot.total_record_count,
                    "fileSizeInBytes": pc.sum(live_entries["file_size"]).as_py() or 0,
                    "fileCount": live_entries.num_rows,
                    "lastFileCreationTime": pc.max(live_entries["creation_time_ms"]).as_py() or 0,
                }
            }
        )

    return await call.quick(catalog.with_table, database, name, describe)


@ROUTES.add("GET", f"{TABLE}/snapshots/{{version}}", "paimonGetVersion", needs="read", gives={200: dict})
def get_version(call: RepositoryCall) -> Response:
    """Get the snapshot of a version: ``EARLIEST``, ``LATEST``, an id or a tag."""
    (catalog, database, name), version = table_of(call), name_of(call, "version")
    table, _ = catalog.look(database, name)
    if version == "LATEST":
        snapshot = _newest(table)
    elif version == "EARLIEST":
        snapshot = table.context.snapshots.earliest() or _newest(table)
    elif version.isdecimal():
        snapshot = table.resolve(version=version)
    else:
        snapshot = _snapshot_of_tag(table, version)
    return json({"snapshot": _raw(snapshot)})


@ROUTES.add("GET", f"{TABLE}/snapshots", "paimonListSnapshots", needs="read", gives={200: dict}, parameters=PAGE)
def list_snapshots(call: RepositoryCall) -> Response:
    """List the snapshots of a table, oldest first."""
    (catalog, database, name), page = table_of(call), PageOf.asked(call)
    table, _ = catalog.look(database, name)

    def row_of(padded: str) -> msgspec.Raw | None:
        snapshot = table.context.snapshots.find(int(padded))
        return None if snapshot is None else _raw(snapshot)

    rows, next_token = page.cut((f"{id:020d}" for id in table.context.snapshots.ids()), row_of)
    return json({"snapshots": rows, "nextPageToken": next_token})


@ROUTES.add(
    "POST",
    f"{TABLE}/commit",
    "paimonCommit",
    needs="write",
    gives={200: dict},
    audited=True,
    audited_after=True,
)
async def commit(call: RepositoryCall, body: TableCommit) -> Response:
    """Commit a snapshot that the client prepared; false: another commit came first."""
    catalog, database, name = table_of(call)
    snapshot = decode_proposed(body.snapshot)
    committer = call.committer

    def run() -> tuple[Table, Snapshot] | None:
        return _commit(catalog, database, name, body, snapshot, committer=committer)

    committed = await call.transfer(run)
    if committed is not None:
        # A later step of the loop, after the reply.
        asyncio.get_running_loop().call_soon(_follow_up, call.serving.pools.quick, *committed)
    return json({"success": committed is not None})


def _follow_up(pool: Executor, table: Table, snapshot: Snapshot) -> None:
    """Store the hint for clients of the files, which check it. Decode what the next request probably needs."""
    context = table.context
    confirm = partial(context.schemas.confirm, context.schema, context.schemas.listed)

    def run() -> None:
        context.snapshots.store_latest_hint(confirm=confirm)
        if snapshot.id == context.snapshots.seen_id:  # otherwise it was an old commit, which was sent again
            with suppress(LakebedError):  # the next request that needs the files raises the error
                context.manifests.live_entries(snapshot)

    with suppress(RuntimeError):  # the pool is closed: the hint stays old
        pool.submit(run)


def _commit(
    catalog: PaimonCatalog, database: str, name: str, body: TableCommit, snapshot: Snapshot, *, committer: str
) -> tuple[Table, Snapshot] | None:
    """Commit. Return the table with its new snapshot; None: another commit came first."""

    def run(table: Table) -> tuple[Table, Snapshot] | None:
        committed_snapshot = commit_prepared(
            table.context,
            snapshot,
            base_uuid=body.base_snapshot_uuid,
            committer=committer,
            check_table=partial(_check_id, catalog, table, body.table_id),
        )
        if committed_snapshot is not None and is_in_reference(database):
            check_kept(table, committed_snapshot)
        return None if committed_snapshot is None else (table, committed_snapshot)

    return catalog.with_table(database, name, run)


def _check_id(catalog: PaimonCatalog, table: Table, table_id: str | None) -> None:
    """Raise unless the table is the one that the client means. The caller has loaded the table's newest schema."""
    if table_id is not None and table_id != catalog.id_of(table):
        raise InvalidRequest(
            f"The commit is for the table with the id {table_id}, and {table.name} has the id "
            f"{catalog.id_of(table)}: it was dropped and created again, or is another one. Open the table again.",
            kind="table_replaced",
        )


@ROUTES.add("POST", f"{TABLE}/rollback", "paimonRollback", needs="write", gives={200: None}, audited=True)
async def roll_back(call: RepositoryCall, body: Rollback) -> Response:
    """Make an older version the newest; later snapshots and tags are deleted."""
    catalog, database, name = table_of(call)
    version = _version_of(body.instant)

    def run() -> None:
        table, _ = catalog.look(database, name)
        table.rollback_to(version, only_from=body.from_snapshot)

    await call.transfer(run)
    return empty(200)


def _version_of(instant: Instant) -> int | str:
    if instant.type == "snapshot" and instant.snapshot_id is not None:
        return instant.snapshot_id
    if instant.type == "tag" and instant.tag_name is not None:
        return f"tag.{instant.tag_name}"
    raise InvalidRequest(
        "The instant names neither a snapshot with its snapshotId nor a tag with its tagName.", kind="invalid_body"
    )


def _newest(table: Table) -> Snapshot:
    snapshot = table.latest()
    if snapshot is None:
        raise NotFound(
            "The table has no snapshot yet: nothing was ever written.", kind="table_empty", snapshot="LATEST"
        )
    return snapshot


def _snapshot_of_tag(table: Table, name: str) -> Snapshot:
    """Return the snapshot of a tag.

    Raises `NotFound` of a snapshot, because clients read a tag's as a missing table.
    """
    try:
        return table.tag(name).snapshot
    except NotFound as error:
        if error.kind != "tag_not_found":
            raise
        raise NotFound(error.message, kind="snapshot_not_found", snapshot=name) from error


def _raw(snapshot: Snapshot) -> Any:
    return msgspec.Raw(encode_snapshot(snapshot))
