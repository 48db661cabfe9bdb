"""The versions and pins of a table by the `Versioned` contract, and a view of one version.

Owns: the translation of snapshots, tags, branches and consumers into `Version` and `Pin`, and `TableView`. Invariants:
a version's id is its snapshot id as text. Expired snapshots that a tag holds are versions too.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

import pyarrow as pa
from typing_extensions import Unpack

from lakebed.reclaim.model import Pin, Version
from lakebed.table.branch.consumers import load_consumers
from lakebed.table.branch.context import TableBranch
from lakebed.table.branch.inherited import rollback_target
from lakebed.table.branch.tags import HIDDEN_PREFIX, is_hidden
from lakebed.table.branch.travel import Resolved, source_of
from lakebed.table.model.model import Snapshot, Tag

if TYPE_CHECKING:
    from lakebed.table.read.scan import ReadOptions, RowOptions, Scan


class _Readable(Protocol):
    def scan(self, **options: Unpack[ReadOptions]) -> Scan: ...


@dataclass(frozen=True, slots=True)
class TableView:
    """A table at one version, read-only. The version stays readable while something pins it."""

    table: _Readable
    resolved: Resolved

    def __repr__(self) -> str:
        return f"TableView({self.table!r}, version={self.version!r})"

    @property
    def snapshot(self) -> Snapshot:
        """The snapshot that is read."""
        return self.resolved.snapshot

    @property
    def version(self) -> str:
        """The version as unambiguous text: ``tag.<name>``, ``branch.<name>`` or ``snapshot.<id>``."""
        if self.resolved.tag is not None:
            return f"tag.{self.resolved.tag}"
        if self.resolved.branch is not None:
            return f"branch.{self.resolved.branch}"
        return f"snapshot.{self.snapshot.id}"

    def scan(self, **rows: Unpack[RowOptions]) -> Scan:
        """Plan a read of this version: `columns`, `where` and `limit` as of a table.

        The scan has `to_pandas`, `to_polars` and `to_duckdb`.
        """
        return self.table.scan(version=self.version, **rows)

    def __arrow_c_stream__(self, requested_schema: object | None = None) -> object:
        """Export the rows of this version as an Arrow C stream."""
        return self.scan().__arrow_c_stream__(requested_schema)

    def read(self, **rows: Unpack[RowOptions]) -> pa.Table:
        """The rows of this version in memory; arguments as `scan`."""
        return self.scan(**rows).to_arrow()


def version_of(snapshot: Snapshot, *, store: str) -> Version:
    """A snapshot as a version. Its row count is that of the stored rows: a replaced row counts until it is merged."""
    target = rollback_target(snapshot)
    change_text = "no row changed" if snapshot.commit_kind == "COMPACT" else f"{snapshot.delta_record_count:+,} rows"
    action = f"{snapshot.commit_kind.lower()}, {change_text}" if target is None else f"rollback to {target}"
    return Version(
        store=store,
        id=str(snapshot.id),
        created_ms=snapshot.time_ms,
        summary=f"{action}, {snapshot.total_record_count:,} stored",
        facts={
            "kind": snapshot.commit_kind,
            "rolled_back_to": target,
            "user": snapshot.commit_user,
            "delta_record_count": snapshot.delta_record_count,
            "total_record_count": snapshot.total_record_count,
            "schema_id": snapshot.schema_id,
        },
    )


def pin_of(tag: Tag, *, store: str, write_time_ms: int | None = None) -> Pin:
    """A tag, or one of lakebed's hidden pins, as a pin. It has no owner, because the format does not record one.

    Args:
        write_time_ms: the time at which its file was written, for tags without a creation time.
    """
    kind, name = "tag", tag.name
    if is_hidden(tag.name):
        kind, _, name = tag.name.removeprefix(HIDDEN_PREFIX).partition(".")
    return Pin(
        store=store,
        kind=kind,
        name=name,
        version=str(tag.snapshot.id),
        owner="",
        created_ms=write_time_ms if tag.create_time_ms is None else tag.create_time_ms,
        expires_ms=tag.expires_ms,
    )


def list_versions(branch: TableBranch) -> Iterator[Version]:
    """Readable versions, oldest first: expired ones that a tag holds, then the live snapshots. Lazy."""
    ids = branch.snapshots.ids()
    earliest = ids[0] if ids else None
    for snapshot in branch.tags.tagged_snapshots():
        if earliest is None or snapshot.id < earliest:
            yield version_of(snapshot, store=branch.name)
    for snapshot in branch.snapshots.walk(ids):
        yield version_of(snapshot, store=branch.name)


def list_pins(branch: TableBranch) -> list[Pin]:
    """Tags, forks and lakebed's own temporary pins, oldest version first, then consumers.

    Cost: 2 LISTs + 1 GET a tag, and 1 LIST + 1 GET a consumer.
    """
    write_times = branch.tags.write_time_ms()
    pins = [pin_of(tag, store=branch.name, write_time_ms=write_times.get(tag.name)) for tag in branch.tags.list_all()]
    for consumer in load_consumers(branch.store, branch.layout):
        pins.append(
            Pin(
                store=branch.name,
                kind="consumer",
                name=consumer.name,
                version=str(consumer.next_snapshot_id),
                owner=consumer.name,
                created_ms=consumer.write_time_ms,
                expires_ms=None,
            )
        )
    return pins


def pin_version(
    branch: TableBranch, name: str, *, version: int | str | None = None, lifetime_ms: int | None = None
) -> Pin:
    """Tag a version; see `Table.pin`."""
    tag = branch.tags.create(name, source=source_of(branch, version), lifetime_ms=lifetime_ms)
    return pin_of(tag, store=branch.name, write_time_ms=branch.tags.write_time_ms().get(name))
