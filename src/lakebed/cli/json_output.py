"""Versions, pins and reports as JSON facts with stable keys, and as sentences."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from lakebed.cli import output
from lakebed.texts import utc

if TYPE_CHECKING:
    from lakebed.fsck.model import CheckReport
    from lakebed.reclaim.model import CollectionReport, Explanation, Version

_DELETIONS_SHOWN_MAX = 20


def of_version(version: Version) -> dict[str, Any]:
    """Return a version's facts."""
    return {
        "store": version.store,
        "version": version.id,
        "created_ms": version.created_ms,
        "summary": version.summary,
        "facts": dict(version.facts),
    }


def short_id(version: str) -> str:
    """Shorten the id of a commit to its beginning. Other versions are numbers."""
    return version[:12] if len(version) == 64 else version


def print_explanation(explanation: Explanation, *, json: bool, is_version: bool = False) -> None:
    """Print why an object, or with `is_version` a version, is kept, and until when. A version has no path."""
    if json:
        subject = {"version" if is_version else "path": explanation.path}
        pins = [asdict(pin) for pin in explanation.pins]
        output.document({**subject, "sentence": explanation.sentence, "pins": pins})
        return
    output.sentence(explanation.sentence)
    for pin in explanation.pins:
        until = "" if pin.expires_ms is None else f", until {utc(pin.expires_ms)}"
        output.sentence(f"  {pin.kind} {pin.name} (version {short_id(pin.version)}{until})")


def of_report(report: CollectionReport) -> dict[str, Any]:
    """Return a deletion's facts, with every object that was (or would be) deleted and why."""
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


def is_idle(report: CollectionReport) -> bool:
    """Whether a deletion was done, and found nothing to delete and nothing to warn about."""
    facts = of_report(report)
    return not (facts["hidden"] or facts["deleted"] or report.warnings or report.problem)


def sentence_of_report(report: CollectionReport) -> str:
    """Return one line, such as ``flights: would delete 3 versions and 12 files (3.4 MB)``."""
    if report.problem:
        return f"{report.store}: not collected. {report.problem}"
    facts = of_report(report)
    verb = "would delete" if report.dry_run else "deleted"
    parts = []
    if facts["hidden"]:
        parts.append(output.count(facts["hidden"], "version or tag", "versions and tags"))
    if facts["deleted"]:
        parts.append(f"{output.count(facts['deleted'], 'file')} ({output.size(facts['bytes'])})")
    return f"{report.store}: {verb} {' and '.join(parts)}." if parts else f"{report.store}: nothing to delete."


def print_report(report: CollectionReport, *, json: bool) -> None:
    """Print what one deletion did or would do."""
    if json:
        output.document(of_report(report))
    else:
        print_reports([report], json=False)


def print_reports(reports: Sequence[CollectionReport], *, json: bool) -> None:
    """Print what deletions did or would do."""
    if json:
        output.document([of_report(report) for report in reports])
        return
    for report in reports:
        output.sentence(sentence_of_report(report))
        if report.dry_run and report.plan is not None:
            for line in _deletion_lines(report.plan.hide, report.plan.doomed):
                output.sentence("  " + line)
        for reason, number in sorted(report.kept.items()):
            if number:
                output.sentence(f"  {output.count(number, 'file')} kept: {reason}")
        for warning in report.warnings:
            output.sentence(f"  warning: {warning}")
        for note in report.notes:
            output.sentence(f"  {note}")


def _deletion_lines(hide: Iterable[str], deletions: Iterable[Any]) -> list[str]:
    lines = [f"{path}  (a version, tag or schema)" for path in hide]
    lines += [f"{deletable.path}  {output.size(deletable.size_bytes)}  {deletable.why}" for deletable in deletions]
    hidden_count = len(lines) - _DELETIONS_SHOWN_MAX
    return (
        lines
        if hidden_count <= 1
        else [*lines[:_DELETIONS_SHOWN_MAX], f"... and {hidden_count} more (--json lists all)"]
    )


def print_check(report: CheckReport, *, json: bool) -> None:
    """Print what a check found: each fault, the sum of the orphans, and a closing sentence."""
    if json:
        output.document(report.facts())
        return
    for finding in report.findings:
        if finding.severity != "info":
            is_said = finding.path in finding.sentence
            where = finding.store if is_said else f"{finding.store}: {finding.path}"
            output.sentence(f"{finding.severity}: {where}{':' if is_said else ''} {finding.sentence}")
        elif finding.kind == "imports_not_checked":
            output.sentence(f"{finding.store}: {finding.sentence}")
    orphans = [finding for finding in report.findings if finding.kind == "orphan"]
    if orphans:
        oldest = output.ago(min(finding.facts["modified_ms"] for finding in orphans))
        output.sentence(
            f"{output.count(len(orphans), 'file')} that no version names ({output.size(report.orphan_bytes)}), the "
            f"oldest written {oldest}; --json lists them, `lakebed collect` deletes those older than a day."
        )
    kinds = (
        (report.table_count, "table", None),
        (report.database_count, "database", None),
        (report.repository_count, "repository", "repositories"),
        (report.tenant_count, "tenant", None),
    )
    stores = ", ".join(output.count(number, noun, plural) for number, noun, plural in kinds if number)
    summary = (
        f"{stores or 'no store'}, {output.count(report.version_count, 'version')}, "
        f"{output.count(report.file_count, 'data file')} ({output.size(report.size_bytes)})"
    )
    depth = "every file was read" if report.deep else "names and sizes of data files only; --deep reads them"
    if not stores and not report.findings:
        output.sentence(f"{report.url}: there is no table, database, repository or tenant to check.")
        return
    faults = output.count(report.error_count, "fault") if report.error_count else "no fault"
    output.sentence(f"{report.url}: {faults} in {summary}; {depth}.")
