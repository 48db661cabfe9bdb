"""``tag``: pin the last snapshot that this run wrote to a table (the newest one, when it wrote none).

Metrics: ``table``, ``tag``, ``snapshot``; with ``fingerprint: true`` also ``rows`` and ``checksum``, which the report
computes again to show that the tag still reads the same. Idempotent: a tag that is already on the right snapshot is not
changed.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from lakebed.errors import AlreadyExists, InvalidRequest
from lakebed.pipeline.context import RunContext, newest_commit
from lakebed.pipeline.keys import Key, StepKind
from lakebed.pipeline.model import PlannedStep
from lakebed.table.branch.tags import check_tag_name
from lakebed.texts import format_count


def run(step: PlannedStep, context: RunContext) -> dict[str, Any]:
    """Create (or, when asked to, move) the tag."""
    settings = step.settings
    table = context.table(settings["table"], step=step)
    name = settings["tag"]
    target = newest_commit(context.records, settings["table"])
    if target is None:
        latest = table.latest()
        if latest is None:
            raise context.location(step).error(f"the table '{settings['table']}' has no snapshot to tag yet.")
        target = latest.id
    if table.tag_exists(name):
        snapshot_id = table.tag(name).snapshot.id
        if snapshot_id != target and not settings["replace"]:
            raise AlreadyExists(
                f"{context.location(step)}: the tag '{name}' is already on snapshot {snapshot_id}, not on "
                f"{target}; delete it, choose another name, or say `replace: true`.",
                tag=name,
            )
        if snapshot_id != target:
            table.replace_tag(name, snapshot_id=target, lifetime_ms=settings["keep"])
    else:
        table.create_tag(name, snapshot_id=target, lifetime_ms=settings["keep"])
    metrics: dict[str, Any] = {"table": settings["table"], "tag": name, "snapshot": target}
    if settings["fingerprint"]:
        fingerprint = context.engine().fingerprint(table, version=f"tag.{name}")
        metrics.update(rows=fingerprint.rows, checksum=fingerprint.checksum)
    return metrics


def check(settings: Mapping[str, Any]) -> str | None:
    """Check the tag's name, before anything is committed."""
    try:
        check_tag_name(settings["tag"])
    except InvalidRequest as error:
        return error.message
    return None


def describe(metrics: Mapping[str, Any]) -> list[str]:
    """Return the tag with its snapshot, and its fingerprint if one was taken."""
    words = [f"{metrics.get('tag')} pins snapshot {metrics.get('snapshot')}"]
    if "checksum" in metrics:
        words.append(f"{format_count(metrics['rows'], 'row')}, checksum {metrics['checksum']}")
    return words


KIND = StepKind(
    name="tag",
    summary="pin the table's state under a name",
    keys=(
        Key("table", "table", "the table to tag", required=True),
        Key("tag", "text", "the tag's name", required=True),
        Key("keep", "duration", "the tag's lifetime, such as '90 days'; by default, until it is deleted"),
        Key("replace", "flag", "move the tag when it exists", default=False),
        Key(
            "fingerprint",
            "flag",
            "count and checksum its rows, to check later that it still reads the same",
            default=False,
        ),
    ),
    run=run,
    check=check,
    describe=describe,
    creates_names=True,
    main_only=True,
    is_milestone=True,
)
