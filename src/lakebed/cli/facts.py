"""Snapshots, tags, pins and reports as JSON facts with stable keys, and as cells of a table."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

from lakebed.cli import say

if TYPE_CHECKING:
    from lakebed.fsck.model import CheckReport
    from lakebed.reclaim.model import Pin, ReclaimReport, Version
    from lakebed.table.compact import CompactReport
    from lakebed.table.model import Snapshot, TableSchema, Tag

__all__ = [
    "is_idle",
    "of_compaction",
    "of_pin",
    "of_report",
    "of_schema",
    "of_snapshot",
    "of_tag",
    "of_version",
    "print_check",
    "print_reports",
    "sentence_of_compaction",
    "sentence_of_report",
]

_DOOMED_SHOWN_MAX = 20


def rolled_back_to(snapshot: Snapshot) -> int | None:
    """The id of the version that a rollback brought back; None for other snapshots."""
    from lakebed.table.versions import rollback_target

    return rollback_target(snapshot)


def of_snapshot(snapshot: Snapshot) -> dict[str, Any]:
    """A snapshot's facts."""
    return {
        "snapshot": snapshot.id,
        "time_ms": snapshot.time_ms,
        "kind": snapshot.commit_kind,
        "user": snapshot.commit_user,
        "schema": snapshot.schema_id,
        "rows": snapshot.total_record_count,
        "rows_delta": snapshot.delta_record_count,
        "rolled_back_to": rolled_back_to(snapshot),
        "properties": dict(snapshot.properties),
    }


def of_tag(tag: Tag, *, written_ms: int | None = None) -> dict[str, Any]:
    """A tag's facts; `written_ms` says when its file was written, for tags that do not say when they were made."""
    created, retained = tag.create_time_ms, tag.time_retained_ms
    return {
        "tag": tag.name,
        "snapshot": tag.snapshot.id,
        "time_ms": tag.snapshot.time_ms,
        "rows": tag.snapshot.total_record_count,
        "created_ms": written_ms if created is None else created,
        "lifetime_ms": retained,
        "expires_ms": created + retained if created is not None and retained is not None else None,
    }


def of_schema(schema: TableSchema) -> dict[str, Any]:
    """A schema's facts."""
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


def of_version(version: Version) -> dict[str, Any]:
    """A version's facts."""
    return {
        "store": version.store,
        "version": version.id,
        "created_ms": version.created_ms,
        "summary": version.summary,
        "facts": dict(version.facts),
    }


def of_pin(pin: Pin) -> dict[str, Any]:
    """A pin's facts."""
    return {
        "store": pin.store,
        "kind": pin.kind,
        "name": pin.name,
        "version": pin.version,
        "owner": pin.owner,
        "created_ms": pin.created_ms,
        "expires_ms": pin.expires_ms,
        "bytes_alone": pin.bytes_alone,
    }


def of_report(report: ReclaimReport) -> dict[str, Any]:
    """A deletion's facts, with every object that went (or would go) and why."""
    plan = report.plan
    return {
        "store": report.store,
        "dry_run": report.dry_run,
        "hidden": report.hidden_count,
        "deleted": report.deleted_count,
        "bytes": report.deleted_bytes,
        "kept": dict(report.kept),
        "warnings": list(report.warnings),
        "notes": list(report.notes),
        "problem": report.problem,
        "problem_kind": report.problem_kind,
        "objects": [
            {"path": doomed.path, "bytes": doomed.size_bytes, "why": doomed.why}
            for doomed in (plan.doomed if plan else ())
        ],
        "versions": list(plan.hide) if plan else [],
    }


def is_idle(report: ReclaimReport) -> bool:
    """Whether a deletion was done, and found nothing to delete and nothing to warn of."""
    facts = of_report(report)
    return not (facts["hidden"] or facts["deleted"] or report.warnings or report.problem)


def sentence_of_report(report: ReclaimReport) -> str:
    """One line, such as ``flights: would delete 3 versions and 12 files (3.4 MB)``."""
    if report.problem:
        return f"{report.store}: not collected. {report.problem}"
    facts = of_report(report)
    verb = "would delete" if report.dry_run else "deleted"
    parts = []
    if facts["hidden"]:
        parts.append(say.count(facts["hidden"], "version or tag", "versions and tags"))
    if facts["deleted"]:
        parts.append(f"{say.count(facts['deleted'], 'file')} ({say.size(facts['bytes'])})")
    return f"{report.store}: {verb} {' and '.join(parts)}." if parts else f"{report.store}: nothing to delete."


def print_reports(reports: Sequence[ReclaimReport], *, json: bool, single: bool = False) -> None:
    """Print what deletions did or would do.

    Args:
        single: print one document rather than a list of one.
    """
    if json:
        every = [of_report(report) for report in reports]
        say.document(every[0] if single else every)
        return
    for report in reports:
        say.sentence(sentence_of_report(report))
        if report.dry_run and report.plan is not None:
            for line in _doomed_lines(report.plan.hide, report.plan.doomed):
                say.sentence("  " + line)
        for reason, number in sorted(report.kept.items()):
            say.sentence(f"  {say.count(number, 'file')} kept: {reason}")
        for warning in report.warnings:
            say.sentence(f"  warning: {warning}")
        for note in report.notes:
            say.sentence(f"  {note}")


def _doomed_lines(hide: Iterable[str], doomed: Iterable[Any]) -> list[str]:
    lines = [f"{path}  (a version or tag)" for path in hide]
    lines += [f"{one.path}  {say.size(one.size_bytes)}  {one.why}" for one in doomed]
    rest = len(lines) - _DOOMED_SHOWN_MAX
    return lines if rest <= 1 else [*lines[:_DOOMED_SHOWN_MAX], f"... and {rest} more (--json lists all)"]


def of_compaction(report: CompactReport) -> dict[str, Any]:
    """A compaction's facts."""
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
    """What a compaction did or would do, in one line."""
    before = f"{say.count(report.files_before, 'file')} ({say.size(report.bytes_before)})"
    if not report.tasks:
        return f"{table}: nothing to compact."
    if report.dry_run:
        return f"{table}: would rewrite {before} in {say.count(len(report.tasks), 'bucket')}."
    if report.snapshot is None:
        return f"{table}: nothing was compacted."
    after = f"{say.count(report.files_after, 'file')} ({say.size(report.bytes_after)})"
    return f"{table}: snapshot {report.snapshot.id}, {before} became {after} in {report.seconds:.1f} s."


def print_check(report: CheckReport, *, json: bool) -> None:
    """Print what a check found: faults one by one, orphans as a sum, and a closing sentence."""
    if json:
        say.document(report.facts())
        return
    for finding in report.findings:
        if finding.severity != "info":
            said = finding.path in finding.sentence
            where = finding.store if said else f"{finding.store}: {finding.path}"
            say.sentence(f"{finding.severity}: {where}{':' if said else ''} {finding.sentence}")
        elif finding.kind == "imports_not_checked":
            say.sentence(f"{finding.store}: {finding.sentence}")
    orphans = [finding for finding in report.findings if finding.kind == "orphan"]
    if orphans:
        oldest = say.ago(min(finding.facts["modified_ms"] for finding in orphans))
        say.sentence(
            f"{say.count(len(orphans), 'file')} that no version names ({say.size(report.orphan_bytes)}), the oldest "
            f"written {oldest}; --json lists them, `lakebed collect` deletes those older than a day."
        )
    kinds = (
        (report.table_count, "table", None),
        (report.database_count, "database", None),
        (report.repository_count, "repository", "repositories"),
    )
    stores = ", ".join(say.count(number, noun, plural) for number, noun, plural in kinds if number)
    checked = (
        f"{stores or 'no store'}, {say.count(report.version_count, 'version')}, "
        f"{say.count(report.file_count, 'data file')} ({say.size(report.size_bytes)})"
    )
    depth = "every file was read" if report.deep else "names and sizes of data files only; --deep reads them"
    if not stores and not report.findings:
        say.sentence(f"{report.url}: there is no table, database or repository to check.")
        return
    faults = say.count(report.error_count, "fault") if report.error_count else "no fault"
    say.sentence(f"{report.url}: {faults} in {checked}; {depth}.")
