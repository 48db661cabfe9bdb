"""Commits as another client of the format makes them.

Owns: `foreign_commit`: no commit snapshot ids in its manifests, lists without ``_ADDED_SNAPSHOT``, snapshots without
lakebed's properties; and, when asked, what lakebed itself never writes: index files, statistics, changelogs.
"""

from __future__ import annotations

import io
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import fastavro
import numpy as np
import pyarrow as pa

from lakebed.table.codec.avro import RecordSchema, decode_columns, encode_columns
from lakebed.table.codec.binary_row import EMPTY_ROW
from lakebed.table.codec.manifest import ADD, DELETE, encode_manifest, encode_manifest_list, entries_of_changes
from lakebed.table.codec.snapshot_json import encode_snapshot
from lakebed.table.model.model import BucketChange, ManifestMeta, Snapshot, Stats
from lakebed.table.table import Table
from worlds.binary_rows import decode_row, encode_row
from worlds.table.made_up import data_file

_NO_PARTITION_STATS = Stats(encode_row(["a"], ["STRING"]), encode_row(["b"], ["STRING"]), (0,))
_INDEX_SCHEMA = RecordSchema.of(
    "IndexManifestEntry",
    {
        "_VERSION": "int",
        "_KIND": "int",
        "_PARTITION": "bytes",
        "_BUCKET": "int",
        "_INDEX_TYPE": "string",
        "_FILE_NAME": "string",
        "_FILE_SIZE": "long",
        "_ROW_COUNT": "long",
    },
)


@dataclass(frozen=True, slots=True)
class Extras:
    """What a commit names besides data files."""

    index_files: tuple[str, ...] = ()
    """New index files, instead of those of the snapshot before; empty: its index manifest is carried on."""
    statistics: str | None = None
    """A new statistics file; None: that of the snapshot before is carried on."""
    changelog: tuple[bytes, str] | None = None
    """Partition and name of a changelog file, in its first bucket."""

    def named_by(self, table: Table, snapshot: Snapshot) -> dict[str, frozenset[str]]:
        """The paths that the snapshot's new index manifest and changelog list name, by the names of those."""
        result = {}
        if self.index_files:
            paths = frozenset(table.context.layout.index(name) for name in self.index_files)
            result[str(snapshot.index_manifest)] = paths
        if self.changelog:
            manifest = str(snapshot.changelog_manifest_list).replace("-list", "")
            result[str(snapshot.changelog_manifest_list)] = frozenset(
                (table.context.layout.manifest(manifest), _changelog_path(table, *self.changelog))
            )
        return result


def without_fields(body: bytes, names: Iterable[str]) -> bytes:
    """An Avro file as a writer would have made it that never heard of some fields."""
    schema = fastavro.reader(io.BytesIO(body)).writer_schema
    count, columns = decode_columns(body, path="ours")
    return encode_columns(RecordSchema(_stripped(schema, frozenset(names))), columns, count)


def _stripped(schema: Any, names: frozenset[str]) -> Any:
    if isinstance(schema, list):
        return [_stripped(item, names) for item in schema]
    if not isinstance(schema, dict):
        return schema
    kept = {key: value for key, value in schema.items() if not key.startswith("__fastavro")}
    if kept.get("type") == "record":
        kept["fields"] = [
            {**field, "type": _stripped(field["type"], names)} for field in kept["fields"] if field["name"] not in names
        ]
    return kept


@dataclass(frozen=True, slots=True)
class _Writer:
    """Writes the objects of one commit; `name` makes theirs unique."""

    table: Table
    name: str

    def put_manifest(self, entries: pa.Table, kind: str) -> ManifestMeta:
        file_name = f"manifest-{self.name}-{kind}"
        body = without_fields(encode_manifest(entries), ["_COMMIT_SNAPSHOT"])
        self.table.store.put(self.table.context.layout.manifest(file_name), body)
        deleted = sum(kind == DELETE for kind in entries["kind"].to_pylist())
        return ManifestMeta(file_name, len(body), entries.num_rows - deleted, deleted, _NO_PARTITION_STATS, 0)

    def put_list(self, metas: Sequence[ManifestMeta], kind: str) -> tuple[str, int]:
        file_name = f"manifest-list-{self.name}-{kind}"
        body = without_fields(encode_manifest_list(metas), ["_ADDED_SNAPSHOT"])
        self.table.store.put(self.table.context.layout.manifest(file_name), body)
        return file_name, len(body)

    def put_index(self, names: Sequence[str]) -> str:
        file_name, count = f"index-manifest-{self.name}", len(names)
        numbers = pa.array(np.zeros(count, np.int64))
        columns = {path: numbers for path, _ in _INDEX_SCHEMA.leaves}
        columns |= {
            "_PARTITION": pa.array([EMPTY_ROW] * count, pa.binary()),
            "_INDEX_TYPE": pa.array(["HASH"] * count),
            "_FILE_NAME": pa.array(names, pa.string()),
        }
        store, layout = self.table.store, self.table.context.layout
        for name in names:
            store.put(layout.index(name), b"x")
        store.put(layout.manifest(file_name), encode_columns(_INDEX_SCHEMA, columns, count))
        return file_name

    def put_changelog(self, partition: bytes, name: str) -> tuple[str, int]:
        self.table.store.put(_changelog_path(self.table, partition, name), b"x")
        entries = entries_of_changes([BucketChange(partition, 0, 1, added=(data_file(name),))])
        return self.put_list([self.put_manifest(entries, "c")], "c")


def _changelog_path(table: Table, partition: bytes, name: str) -> str:
    return f"pt={decode_row(partition, ['STRING'])[0]}/bucket-0/{name}"


def foreign_commit(
    table: Table, changes: Sequence[BucketChange], *, merges: bool, name: str, extras: Extras | None = None
) -> Snapshot:
    """Commit as another client does, on top of the newest snapshot of a table with the partition column ``pt``.

    Args:
        changes: as for `Table.commit`; commit snapshot ids in them are lost.
        merges: rewrite all manifests into one, as other clients do now and then.
        name: makes the names of its objects unique.
        extras: what else the snapshot names.
    """
    head = table.context.snapshots.latest()
    extras = extras or Extras()
    writer = _Writer(table, name)
    base = [] if head is None else table.context.manifests.all_metas(head)
    if merges and head is not None:
        live = table.context.manifests.live_entries(head)
        base = [writer.put_manifest(live, "m")] if live.num_rows else []
    entries = entries_of_changes(changes)
    base_list, base_size = writer.put_list(base, "0")
    delta_list, delta_size = writer.put_list([writer.put_manifest(entries, "d")], "1")
    rows = sum(1 if kind == ADD else -1 for kind in entries["kind"].to_pylist())
    index_manifest = head.index_manifest if head else None
    if extras.index_files:
        index_manifest = writer.put_index(extras.index_files)
    if extras.statistics:
        table.store.put(table.context.layout.statistics(extras.statistics), b"{}")
    changelog_list, changelog_size = writer.put_changelog(*extras.changelog) if extras.changelog else (None, None)
    snapshot = Snapshot(
        id=1 if head is None else head.id + 1,
        schema_id=0,
        base_manifest_list=base_list,
        base_manifest_list_size=base_size,
        delta_manifest_list=delta_list,
        delta_manifest_list_size=delta_size,
        changelog_manifest_list=changelog_list,
        changelog_manifest_list_size=changelog_size,
        commit_user=f"other-{name}",
        commit_identifier=1,
        commit_kind="APPEND",
        time_ms=table.context.environment.clock.now_ms(),
        total_record_count=(head.total_record_count if head else 0) + rows,
        delta_record_count=rows,
        uuid=f"uuid-{name}",
        index_manifest=index_manifest,
        statistics=extras.statistics or (head.statistics if head else None),
    )
    table.store.put(table.context.layout.snapshot(snapshot.id), encode_snapshot(snapshot), create_only=True)
    table.store.put(table.context.layout.latest_hint, str(snapshot.id).encode())
    return snapshot
