"""A table as the `Versioned` contract sees it: its readable versions, what pins them, and a view of one.

Owns: the translation of snapshots, tags, branches and consumers into `Version` and `Pin`, and `TableView`.
Invariants: a version's id is its snapshot id as text; expired snapshots that a tag holds are versions too.
Does not know: files.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import pyarrow as pa

from lakebed.objects.port import ObjectStore
from lakebed.reclaim.model import Pin, Version
from lakebed.table.layout import Layout, parse_consumer
from lakebed.table.model import Snapshot, Tag
from lakebed.table.snapshots import SnapshotLog
from lakebed.table.system import next_snapshot_of
from lakebed.table.tags import HIDDEN_PREFIX, Tags, is_hidden
from lakebed.table.travel import Resolved

__all__ = ["TableView", "list_pins", "list_versions", "pin_of", "version_of"]


class _Readable(Protocol):
    def scan(self, *, version: int | str | None, columns: Sequence[str] | None, where: Any) -> Any: ...

    def read(self, *, version: int | str | None, columns: Sequence[str] | None, where: Any) -> pa.Table: ...


@dataclass(frozen=True, slots=True)
class TableView:
    """A table at one version, read-only. The version stays readable while something pins it."""

    table: _Readable
    resolved: Resolved

    @property
    def snapshot(self) -> Snapshot:
        """The snapshot that is read."""
        return self.resolved.snapshot

    @property
    def version(self) -> str:
        """The version as text that says which kind it is: ``tag.<name>``, ``branch.<name>`` or ``snapshot.<id>``."""
        if self.resolved.tag is not None:
            return f"tag.{self.resolved.tag}"
        if self.resolved.branch is not None:
            return f"branch.{self.resolved.branch}"
        return f"snapshot.{self.snapshot.id}"

    def scan(self, *, columns: Sequence[str] | None = None, where: Any = None) -> Any:
        """As `Table.scan` at this version."""
        return self.table.scan(version=self.version, columns=columns, where=where)

    def read(self, *, columns: Sequence[str] | None = None, where: Any = None) -> pa.Table:
        """As `Table.read` at this version."""
        return self.table.read(version=self.version, columns=columns, where=where)


def version_of(snapshot: Snapshot, *, store: str) -> Version:
    """A snapshot as a version."""
    return Version(
        store=store,
        id=str(snapshot.id),
        created_ms=snapshot.time_ms,
        summary=f"{snapshot.commit_kind.lower()}, {snapshot.delta_record_count:+,} rows, "
        f"{snapshot.total_record_count:,} in all",
        facts={
            "kind": snapshot.commit_kind,
            "user": snapshot.commit_user,
            "delta_record_count": snapshot.delta_record_count,
            "total_record_count": snapshot.total_record_count,
            "schema_id": snapshot.schema_id,
        },
    )


def pin_of(tag: Tag, *, store: str) -> Pin:
    """A tag, or one of lakebed's hidden pins, as a pin."""
    kind, name = "tag", tag.name
    if is_hidden(tag.name):
        kind, _, name = tag.name.removeprefix(HIDDEN_PREFIX).partition(".")
    expires_ms = None
    if tag.time_retained_ms is not None and tag.create_time_ms is not None:
        expires_ms = tag.create_time_ms + tag.time_retained_ms
    return Pin(
        store=store,
        kind=kind,
        name=name,
        version=str(tag.snapshot.id),
        owner=tag.snapshot.commit_user,
        created_ms=tag.create_time_ms,
        expires_ms=expires_ms,
    )


def list_versions(log: SnapshotLog, tags: Tags, *, store: str) -> Iterator[Version]:
    """Readable versions, oldest first: expired ones that a tag holds, then what is left of the log. Lazy."""
    ids = log.ids()
    earliest = ids[0] if ids else None
    for snapshot in tags.tagged_snapshots():
        if earliest is None or snapshot.id < earliest:
            yield version_of(snapshot, store=store)
    for snapshot in log.walk(ids):
        yield version_of(snapshot, store=store)


def list_pins(store: ObjectStore, tags: Tags, *, layout: Layout, name: str) -> list[Pin]:
    """Tags, forks and lakebed's own passing pins, oldest version first, then consumers.

    Cost: 1 LIST + 1 GET a tag, and the same for consumers.
    """
    pins = [pin_of(tag, store=name) for tag in tags.list_all()]
    for meta in store.list(layout.consumer_folder):
        consumer = parse_consumer(meta.path)
        if consumer is not None:
            pins.append(
                Pin(
                    store=name,
                    kind="consumer",
                    name=consumer,
                    version=str(next_snapshot_of(store, meta.path)),
                    owner=consumer,
                    created_ms=meta.modified_ms,
                    expires_ms=None,
                )
            )
    return pins
