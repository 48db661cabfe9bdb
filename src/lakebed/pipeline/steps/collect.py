"""``collect``: delete the orphans of a table: files that no version names, as crashed writers and failed jobs leave.

Metrics: ``table``, ``dry_run``, ``files_deleted`` and ``bytes_freed`` (with ``dry_run``: what would be deleted and
freed), ``warnings``. Idempotent: deleted files stay deleted. Starts no Spark session. For tables of many millions of
files there is the job `lakebed.spark.jobs.collect_table`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from lakebed.pipeline.context import RunContext
from lakebed.pipeline.keys import Key, StepKind
from lakebed.pipeline.model import PlannedStep
from lakebed.texts import format_count, format_size

_DAY_MS: Final = 24 * 60 * 60 * 1000


def run(step: PlannedStep, context: RunContext) -> dict[str, Any]:
    """Delete orphan files, of all branches of the table."""
    settings = step.settings
    table = context.table(settings["table"], step=step)
    report = table.collect(grace_ms=settings["grace"], dry_run=settings["dry_run"])
    deletions = report.plan.doomed if settings["dry_run"] and report.plan is not None else ()
    return {
        "table": settings["table"],
        "dry_run": settings["dry_run"],
        "files_deleted": report.deleted_count or len(deletions),
        "bytes_freed": report.deleted_bytes or sum(file.size_bytes for file in deletions),
        "warnings": list(report.warnings),
    }


def describe(metrics: Mapping[str, Any]) -> list[str]:
    """Return the number of deleted files, and the freed space."""
    amount = f"{format_count(metrics['files_deleted'], 'file')}, {format_size(metrics['bytes_freed'])}"
    return [f"would delete {amount}" if metrics["dry_run"] else f"{amount} freed"]


KIND = StepKind(
    name="collect",
    summary="delete files that no version names",
    keys=(
        Key("table", "table", "the table to collect", required=True),
        Key("grace", "duration", "files that are younger stay", default=_DAY_MS),
        Key("dry_run", "flag", "delete nothing; the record of the step says what would go", default=False),
    ),
    run=run,
    describe=describe,
    is_milestone=True,
    main_only=True,
)
