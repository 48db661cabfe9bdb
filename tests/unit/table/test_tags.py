"""The pure rules of tags: names, and which automatic tags are due."""

from __future__ import annotations

import pytest

from lakebed.errors import InvalidRequest
from lakebed.table.branch.tags import TAG_AUTOMATIC, check_tag_name
from lakebed.table.model.model import BATCH_COMMIT_IDENTIFIER, Snapshot, Tag
from lakebed.table.versions.auto_tags import AutomaticTagging, TagPlan, plan_automatic_tags

DAY_MS = 86_400_000
HOUR_MS = 3_600_000
NOON = 1_359_676_800_000 + 12 * HOUR_MS  # 2013-02-01 12:00 UTC


def snapshot(snapshot_id: int, time_ms: int, *, watermark: int | None = None, automatic: bool = False) -> Snapshot:
    return Snapshot(
        id=snapshot_id,
        schema_id=0,
        base_manifest_list="b",
        delta_manifest_list="d",
        commit_user="u",
        commit_identifier=BATCH_COMMIT_IDENTIFIER,
        commit_kind="APPEND",
        time_ms=time_ms,
        total_record_count=0,
        delta_record_count=0,
        watermark=watermark,
        properties={TAG_AUTOMATIC: "true"} if automatic else {},
    )


def plan(
    options: dict[str, str], snapshots: list[Snapshot], *, tags: tuple[Tag, ...] = (), now_ms: int = NOON
) -> TagPlan:
    return plan_automatic_tags(AutomaticTagging.of(options), snapshots=snapshots, tags=tags, now_ms=now_ms)


def automatic(name: str) -> Tag:
    return Tag(name, snapshot(1, 0, automatic=True))


@pytest.mark.parametrize("name", ["v1", "2013-02-01", "größe", "a b", "1a", "x" * 251, "release.1", "snapshots"])
def test_ordinary_names_are_fine(name: str) -> None:
    """Any text that reads clearly as a name is valid."""
    check_tag_name(name)


@pytest.mark.parametrize(
    ("name", "rule"),
    [
        ("", "is blank"),
        (" \t", "is blank"),
        ("123", "all digits"),
        ("٣٤", "all digits"),
        ("a/b", "path"),
        ("a\\b", "path"),
        ("..", "path"),
        ("a..b", "path"),
        ("a\nb", "control character"),
        ("a\x7f", "control character"),
        ("é" * 126, "longer than 251 bytes"),
        ("snapshot.5", "reserved"),
        ("tag.a", "reserved"),
        ("branch.a", "reserved"),
        ("lakebed.pin.x", "reserved"),
        ("a\ud800", "Unicode"),
    ],
)
def test_ambiguous_names_are_refused_with_the_rule(name: str, rule: str) -> None:
    """The sentence says which rule the name breaks."""
    with pytest.raises(InvalidRequest, match=rule) as raised:
        check_tag_name(name)
    assert raised.value.kind == "invalid_tag_name"


def test_nothing_is_made_unless_asked() -> None:
    """Tables without the option make no tags."""
    assert plan({}, [snapshot(1, NOON - 2 * DAY_MS)]) == TagPlan()


def test_a_finished_day_is_tagged_with_its_last_snapshot() -> None:
    """The tag of a day holds the newest snapshot committed before the day ended."""
    snapshots = [snapshot(1, NOON - DAY_MS), snapshot(2, NOON - 13 * HOUR_MS), snapshot(3, NOON - HOUR_MS)]
    assert plan({"tag.automatic-creation": "process-time"}, snapshots).create == (("2013-01-31", 2),)


def test_a_delay_lets_late_commits_in() -> None:
    """Before period end plus delay nothing is made; afterwards commits of the delay are in the tag."""
    options = {"tag.automatic-creation": "process-time", "tag.creation-delay": "10 h"}
    snapshots = [snapshot(1, NOON - 13 * HOUR_MS), snapshot(2, NOON - 3 * HOUR_MS), snapshot(3, NOON - HOUR_MS)]
    assert plan(options, snapshots).create == (("2013-01-31", 2),)
    assert plan(options, snapshots, now_ms=NOON - 3 * HOUR_MS).create == ()


@pytest.mark.parametrize(
    ("period", "name"),
    [("hourly", "2013-02-01 11"), ("two-hours", "2013-02-01 10"), ("30 min", "t20130201113000"), ("1 d", "2013-01-31")],
)
def test_names_follow_the_period(period: str, name: str) -> None:
    """A period's tag is named after its start, and never by digits alone."""
    result = plan({"tag.automatic-creation": "process-time", "tag.creation-period": period}, [snapshot(1, 0)]).create
    assert result == ((name, 1),)
    check_tag_name(name)


def test_missed_periods_are_completed_when_asked() -> None:
    """After three missed days all of them get their tags; several may point at one snapshot."""
    options = {"tag.automatic-creation": "process-time", "tag.automatic-completion": "true"}
    snapshots = [snapshot(1, NOON - 4 * DAY_MS), snapshot(2, NOON - 2 * DAY_MS)]
    result = plan(options, snapshots, tags=(automatic("2013-01-28"),)).create
    assert result == (("2013-01-29", 1), ("2013-01-30", 2), ("2013-01-31", 2))
    del options["tag.automatic-completion"]
    assert plan(options, snapshots, tags=(automatic("2013-01-28"),)).create == (("2013-01-31", 2),)


def test_a_watermark_closes_periods_instead_of_the_clock() -> None:
    """The first snapshot whose watermark passed the period's end is its tag, whatever the time is."""
    options = {"tag.automatic-creation": "watermark"}
    midnight = NOON - 12 * HOUR_MS
    snapshots = [
        snapshot(1, 5, watermark=midnight - 1),
        snapshot(2, 6, watermark=midnight),
        snapshot(3, 7, watermark=NOON),
    ]
    assert plan(options, snapshots, now_ms=0).create == (("2013-01-31", 2),)
    assert plan(options, [snapshot(1, 5)], now_ms=NOON).create == ()


def test_a_batch_tag_moves_within_its_day() -> None:
    """Batch mode tags the newest snapshot under today's name and moves only a tag of its own."""
    options = {"tag.automatic-creation": "batch"}
    assert plan(options, [snapshot(4, NOON)]).create == (("batch-write-2013-02-01", 4),)
    assert plan(options, [snapshot(4, NOON)], tags=(automatic("batch-write-2013-02-01"),)).replace == (
        ("batch-write-2013-02-01", 4),
    )
    assert plan(options, [snapshot(4, NOON)], tags=(Tag("batch-write-2013-02-01", snapshot(1, 0)),)) == TagPlan()


def test_retention_counts_automatic_tags_only() -> None:
    """A person's tags are neither counted nor dropped, however old."""
    options = {"tag.automatic-creation": "process-time", "tag.num-retained-max": "2"}
    tags = (Tag("2000-01-01", snapshot(1, 0)), automatic("2013-01-29"), automatic("2013-01-30"))
    result = plan(options, [snapshot(9, NOON - DAY_MS)], tags=tags)
    assert result.create == (("2013-01-31", 9),)
    assert result.drop == ("2013-01-29",)


def test_the_proposals_names_are_aliases() -> None:
    """tag.create-time and tag.create-interval alone turn automatic tags on."""
    settings = AutomaticTagging.of({"tag.create-time": "06:30", "tag.create-interval": "2 d"})
    assert settings == AutomaticTagging(mode="process-time", period_ms=2 * DAY_MS, delay_ms=6 * HOUR_MS + 30 * 60_000)


@pytest.mark.parametrize(
    "options",
    [
        {"tag.automatic-creation": "sometimes"},
        {"tag.create-time": "6:30"},
        {"tag.create-time": "24:00"},
        {"tag.create-interval": "36 h"},
        {"tag.create-interval": "0 d"},
        {"tag.creation-period": "weekly"},
        {"tag.creation-delay": "25 h"},
        {"tag.num-retained-max": "0"},
    ],
)
def test_settings_that_mean_nothing_are_refused(options: dict[str, str]) -> None:
    """Each sentence names the option or what was written."""
    with pytest.raises(InvalidRequest):
        AutomaticTagging.of(options)
