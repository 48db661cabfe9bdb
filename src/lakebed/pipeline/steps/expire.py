"""``expire``: expire old snapshots and delete the files that neither a kept snapshot nor a tag needs.

Metrics: ``table``, ``snapshots_expired``, ``files_deleted``, ``bytes_freed`` (all objects the sweep deleted),
``disk_bytes_before`` and ``disk_bytes_after`` (every object below the table's folder), ``data_bytes_before`` and
``data_bytes_after`` (its data files), ``newest_bytes`` (data files of the newest version), ``warnings``. Idempotent:
deleted files stay deleted; a crash leaves a plan in the table that the next expiry finishes.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from lakebed.pipeline.context import RunContext
from lakebed.pipeline.keys import Key, StepKind
from lakebed.pipeline.measure import disk_use, totals
from lakebed.pipeline.model import PlannedStep
from lakebed.texts import format_count, format_size


def run(step: PlannedStep, context: RunContext) -> dict[str, Any]:
    """Expire repeatedly: one sweep takes at most ``snapshot.expire.limit`` snapshots."""
    settings = step.settings
    table = context.table(settings["table"], step=step)
    older_than_ms = None
    if settings["older_than"] is not None:
        older_than_ms = context.environment.clock.now_ms() - settings["older_than"]
    before = disk_use(table)
    snapshots = files = freed = 0
    warnings: list[str] = []
    while True:
        report = table.expire(retain_max=settings["keep"], retain_min=settings["keep_min"], older_than_ms=older_than_ms)
        snapshots += report.hidden_count
        files += report.deleted_count
        freed += report.deleted_bytes
        warnings.extend(report.warnings)
        if report.hidden_count == 0:
            break
    after, newest = disk_use(table), table.latest()
    return {
        "table": settings["table"],
        "snapshots_expired": snapshots,
        "files_deleted": files,
        "bytes_freed": freed,
        "disk_bytes_before": before.total_bytes,
        "disk_bytes_after": after.total_bytes,
        "data_bytes_before": before.data_bytes,
        "data_bytes_after": after.data_bytes,
        "newest_bytes": 0 if newest is None else totals(table, newest)[1],
        "warnings": warnings,
    }


def check(settings: Mapping[str, Any]) -> str | None:
    """Require what is kept."""
    if settings["keep"] is None and settings["older_than"] is None:
        return "say what to keep: 'keep' (a number of snapshots) or 'older_than' (an age), or both."
    if settings["keep"] == 0:
        return "'keep' must be at least 1: the newest snapshot is the table."
    if settings["keep"] is not None and settings["keep_min"] is not None and settings["keep_min"] > settings["keep"]:
        return f"'keep_min' ({settings['keep_min']}) is more than 'keep' ({settings['keep']})."
    return None


def describe(metrics: Mapping[str, Any]) -> list[str]:
    """Return the number of expired snapshots, and the freed space."""
    freed = max(0, metrics["disk_bytes_before"] - metrics["disk_bytes_after"])
    return [f"{format_count(metrics['snapshots_expired'], 'snapshot')}, {format_size(freed)} freed"]


KIND = StepKind(
    name="expire",
    summary="expire old snapshots and free their space",
    keys=(
        Key("table", "table", "the table whose snapshots expire", required=True),
        Key("keep", "count", "how many newest snapshots to keep at most"),
        Key("keep_min", "count", "how many newest snapshots to keep at any age"),
        Key("older_than", "duration", "only snapshots older than this expire, such as '7 days'"),
    ),
    run=run,
    check=check,
    describe=describe,
    is_milestone=True,
    main_only=True,
)
