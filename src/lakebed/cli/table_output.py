"""Snapshots, tags, schemas and compactions as JSON facts with stable keys, and as sentences."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from lakebed.cli import output
from lakebed.table.branch.inherited import rollback_target
from lakebed.table.model.model import Snapshot, TableSchema, Tag

if TYPE_CHECKING:
    from lakebed.table.compaction.compact import CompactReport


def of_snapshot(snapshot: Snapshot) -> dict[str, Any]:
    """Return a snapshot's facts."""
    return {
        "snapshot": snapshot.id,
        "time_ms": snapshot.time_ms,
        "kind": snapshot.commit_kind,
        "user": snapshot.commit_user,
        "schema": snapshot.schema_id,
        "rows": snapshot.total_record_count,
        "rows_delta": snapshot.delta_record_count,
        "rolled_back_to": rollback_target(snapshot),
        "properties": dict(snapshot.properties),
    }


def of_tag(tag: Tag, *, write_time_ms: int | None = None) -> dict[str, Any]:
    """Return a tag's facts. `write_time_ms`: when its file was written, for tags without a time of creation."""
    created_ms, lifetime_ms = tag.create_time_ms, tag.lifetime_ms
    return {
        "tag": tag.name,
        "snapshot": tag.snapshot.id,
        "time_ms": tag.snapshot.time_ms,
        "rows": tag.snapshot.total_record_count,
        "created_ms": write_time_ms if created_ms is None else created_ms,
        "lifetime_ms": lifetime_ms,
        "expires_ms": created_ms + lifetime_ms if created_ms is not None and lifetime_ms is not None else None,
    }


def of_schema(schema: TableSchema) -> dict[str, Any]:
    """Return a schema's facts."""
    return {
        "schema": schema.id,
        "columns": [
            {
                "id": field.id,
                "name": field.name,
                "type": field.type,
                "nullable": field.nullable,
                "comment": field.description,
            }
            for field in schema.fields
        ],
        "primary_keys": list(schema.primary_keys),
        "partition_keys": list(schema.partition_keys),
        "options": dict(schema.options),
        "comment": schema.comment,
    }


def of_compaction(report: CompactReport) -> dict[str, Any]:
    """Return a compaction's facts."""
    return {
        "dry_run": report.dry_run,
        "snapshot": None if report.snapshot is None else of_snapshot(report.snapshot),
        "tasks": len(report.tasks),
        "files_before": report.files_before,
        "files_after": report.files_after,
        "files_moved": report.moved_count,
        "bytes_before": report.bytes_before,
        "bytes_after": report.bytes_after,
        "rows_before": report.rows_before,
        "rows_after": report.rows_after,
        "seconds": report.seconds,
    }


def sentence_of_compaction(table: str, report: CompactReport) -> str:
    """Return what a compaction did or would do, as one line."""
    before = f"{output.count(report.files_before, 'file')} ({output.size(report.bytes_before)})"
    if not report.tasks:
        return f"{table}: nothing to compact."
    if report.dry_run:
        return f"{table}: would rewrite {before} in {output.count(len(report.tasks), 'bucket')}."
    if report.snapshot is None:
        return f"{table}: nothing was compacted."
    after = f"{output.count(report.files_after, 'file')} ({output.size(report.bytes_after)})"
    return f"{table}: snapshot {report.snapshot.id}, {before} became {after} in {report.seconds:.1f} s."
