"""Automatic tags: one for each finished period. The plan is pure: options and versions in, names out.

Owns: the options below, the names of automatic tags, and which to create or delete now.

    tag.automatic-creation     none | process-time | watermark | batch
    tag.creation-period        daily (2013-02-01) | hourly, two-hours (2013-02-01 06) | any duration (t20130201060000)
    tag.creation-period-duration  the same as a duration; it overrides tag.creation-period
    tag.creation-delay         how long after the end of its period a tag is created, so that it contains late commits
    tag.automatic-completion   true: also create tags for the periods missed since the last automatic tag
    tag.num-retained-max       how many automatic tags are kept, the newest; other tags are not counted
    tag.create-time            'hh:mm': the table tags proposal's name; daily, created at that time of day
    tag.create-interval        whole days, at least one: the period for tag.create-time

Invariants:
- Periods are counted from the epoch in UTC. A tag is named after the period that it closes, as other clients do it.
- process-time: once the clock has passed end + delay, the newest snapshot committed before that moment. Several tags
  may point at one snapshot. watermark: the first snapshot whose watermark passed it. batch: the newest snapshot, under
  today's name.

Source: Paimon's proposal for tags (docs/design/README.md), "Periodically Creation & Expiration".
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from lakebed.errors import InvalidRequest
from lakebed.table.branch.context import TableBranch
from lakebed.table.branch.tags import TAG_AUTOMATIC, is_automatic
from lakebed.table.collect.expire import delete_tags
from lakebed.table.model.model import Snapshot, Tag
from lakebed.table.model.options import (
    TAG_AUTOMATIC_COMPLETION,
    TAG_AUTOMATIC_CREATION,
    TAG_CREATE_INTERVAL,
    TAG_CREATE_TIME,
    TAG_CREATION_DELAY,
    TAG_CREATION_PERIOD,
    TAG_CREATION_PERIOD_DURATION,
    TAG_RETAINED_MAX,
    TableOptions,
)
from lakebed.table.model.times import commit_time_ms, first_written_ms, is_future

PERIODS_MAX = 1000
"""Missed periods that are completed in one run, the newest."""

_DAY_MS = 86_400_000
_HOUR_MS = 3_600_000
_BATCH_PREFIX = "batch-write-"


@dataclass(frozen=True, slots=True)
class AutomaticTagging:
    """The settings, parsed."""

    mode: str = "none"
    period_ms: int = _DAY_MS
    delay_ms: int = 0
    complete: bool = False
    retained_max: int | None = None

    @classmethod
    def of(cls, values: Mapping[str, str]) -> AutomaticTagging:
        """Parse a table's options. Raises `InvalidRequest` that names the option and the values it accepts."""
        options = TableOptions(values)
        interval_ms, delay_ms = options.get(TAG_CREATE_INTERVAL), options.get(TAG_CREATE_TIME)
        period_ms = interval_ms or options.get(TAG_CREATION_PERIOD_DURATION) or options.get(TAG_CREATION_PERIOD)
        mode = options.get(TAG_AUTOMATIC_CREATION)
        if not options.is_set(TAG_AUTOMATIC_CREATION) and (interval_ms is not None or delay_ms is not None):
            mode = "process-time"
        if delay_ms is None:
            delay_ms = options.get(TAG_CREATION_DELAY)
            if delay_ms >= period_ms:
                raise InvalidRequest(
                    f"Option {TAG_CREATION_DELAY.name!r} = {values[TAG_CREATION_DELAY.name]!r} is invalid: use less "
                    "than the period of the tags.",
                    kind="invalid_option",
                    option=TAG_CREATION_DELAY.name,
                )
        return cls(
            mode, period_ms, delay_ms, options.get(TAG_AUTOMATIC_COMPLETION), retained_max=options.get(TAG_RETAINED_MAX)
        )

    def name_of(self, period_start_ms: int) -> str:
        """The name of the tag for the period that starts at this time."""
        start = dt.datetime.fromtimestamp(period_start_ms / 1000, tz=dt.UTC)
        if self.period_ms % _DAY_MS == 0:
            return start.strftime("%Y-%m-%d")
        if self.period_ms % _HOUR_MS == 0:
            return start.strftime("%Y-%m-%d %H")
        return "t" + start.strftime("%Y%m%d%H%M%S")  # digits alone would read as a snapshot id

    def start_of(self, name: str) -> int | None:
        """The start, in Unix ms, of the period of an automatic tag's name; None for any other name."""
        for pattern in ("%Y-%m-%d", "%Y-%m-%d %H", "t%Y%m%d%H%M%S"):
            try:
                start = dt.datetime.strptime(name, pattern).replace(tzinfo=dt.UTC)
            except ValueError:
                continue
            return int(start.timestamp()) * 1000
        return None


@dataclass(frozen=True, slots=True)
class TagPlan:
    """What to do now."""

    create: tuple[tuple[str, int], ...] = ()
    """(name, snapshot id), oldest period first."""
    replace: tuple[tuple[str, int], ...] = ()
    """The same, for existing tags that move."""
    drop: tuple[str, ...] = ()
    """Names of automatic tags beyond ``tag.num-retained-max``, oldest first."""


def plan_automatic_tags(
    settings: AutomaticTagging, *, snapshots: Sequence[Snapshot], tags: Sequence[Tag], now_ms: int
) -> TagPlan:
    """Which automatic tags to create, move and delete.

    Args:
        snapshots: all that have not expired, oldest first.
    """
    if settings.mode == "none" or not snapshots:
        return TagPlan()
    tags_by_name = {tag.name: tag for tag in tags}
    create: list[tuple[str, int]] = []
    replace: list[tuple[str, int]] = []
    if settings.mode == "batch":
        newest = snapshots[-1]
        name = _BATCH_PREFIX + dt.datetime.fromtimestamp(newest.time_ms / 1000, tz=dt.UTC).strftime("%Y-%m-%d")
        if name not in tags_by_name:
            create.append((name, newest.id))
        elif is_automatic(tags_by_name[name]) and tags_by_name[name].snapshot.id != newest.id:
            replace.append((name, newest.id))
    else:
        for start_ms in _periods_to_tag(settings, snapshots=snapshots, tags=tags, now_ms=now_ms):
            name = settings.name_of(start_ms)
            snapshot = _snapshot_for(settings, snapshots, moment_ms=start_ms + settings.period_ms + settings.delay_ms)
            if name not in tags_by_name and snapshot is not None:
                create.append((name, snapshot.id))
    return TagPlan(tuple(create), tuple(replace), _surplus(settings, tags, create))


def trigger_automatic_tags(branch: TableBranch) -> list[Tag]:
    """Create and move the automatic tags that are due, and delete those beyond ``tag.num-retained-max``.

    Returns the tags created or moved, oldest period first. Cost: 1 LIST and 1 GET each of snapshots and tags, what
    `Tags.create` costs, and what deleting the rest costs.
    """
    settings = AutomaticTagging.of(branch.refresh().options)
    if settings.mode == "none":
        return []
    now_ms, tags = branch.now_ms(), branch.tags
    snapshots = list(branch.snapshots.walk())
    if any(is_future(snapshot.time_ms, now_ms=now_ms) for snapshot in snapshots):
        write_time_ms = first_written_ms(branch.snapshots.write_time_ms())
        snapshots = [
            replace(
                snapshot,
                time_ms=commit_time_ms(snapshot.id, snapshot.time_ms, write_time_ms=write_time_ms, now_ms=now_ms),
            )
            for snapshot in snapshots
        ]
    plan = plan_automatic_tags(settings, snapshots=snapshots, tags=tags.list(), now_ms=now_ms)
    marks = {TAG_AUTOMATIC: "true"}
    created_tags = [
        tags.create(name, source=tags.source(snapshot_id=snapshot_id), if_not_exists=True, marks=marks)
        for name, snapshot_id in plan.create
    ]
    moved_tags = [
        tags.replace(name, source=tags.source(snapshot_id=snapshot_id), marks=marks)
        for name, snapshot_id in plan.replace
    ]
    if plan.drop:
        delete_tags(branch, plan.drop, if_exists=True)
    return created_tags + moved_tags


def _periods_to_tag(
    settings: AutomaticTagging, *, snapshots: Sequence[Snapshot], tags: Sequence[Tag], now_ms: int
) -> Sequence[int]:
    """Starts of the periods to tag, oldest first: the last finished one, and with completion those missed before it."""
    if settings.mode == "watermark":
        now_ms = max((mark for snapshot in snapshots if (mark := snapshot.watermark) is not None), default=-1)
        if now_ms < 0:
            return ()
    last = (now_ms - settings.delay_ms) // settings.period_ms * settings.period_ms - settings.period_ms
    first = last
    if settings.complete:
        starts = [start for tag in tags if is_automatic(tag) and (start := settings.start_of(tag.name)) is not None]
        starts = [start for start in starts if start <= last]  # a clock that was ahead created the others
        if starts:
            first = max(starts) + settings.period_ms
    first = max(first, last - (PERIODS_MAX - 1) * settings.period_ms)
    return range(first, last + 1, settings.period_ms)


def _snapshot_for(settings: AutomaticTagging, snapshots: Sequence[Snapshot], *, moment_ms: int) -> Snapshot | None:
    if settings.mode == "watermark":
        return next((snapshot for snapshot in snapshots if (snapshot.watermark or 0) >= moment_ms), None)
    return next((snapshot for snapshot in reversed(snapshots) if snapshot.time_ms < moment_ms), None)


def _surplus(settings: AutomaticTagging, tags: Sequence[Tag], create: Sequence[tuple[str, int]]) -> tuple[str, ...]:
    if settings.retained_max is None:
        return ()
    automatic = [tag.name for tag in tags if is_automatic(tag)] + [name for name, _ in create]
    ordered_names = sorted(automatic, key=lambda name: name.removeprefix(_BATCH_PREFIX))
    return tuple(ordered_names[: max(0, len(ordered_names) - settings.retained_max)])
