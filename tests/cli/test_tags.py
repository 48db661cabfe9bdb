"""lakebed table tags, tag, replace-tag, rename-tag, drop-tag, expire-tags."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from lakebed.cli import exits

Cli = Callable[..., Any]


def tags_of(cli: Cli, lake: str) -> dict[str, int]:
    """Tag names with their snapshots."""
    return {tag["tag"]: tag["snapshot"] for tag in cli("table", "tags", lake, "flights", "--json").json}


def test_tags_are_listed(cli: Cli, lake: str) -> None:
    """A table of tags for people, facts for programs; a hint where there is none."""
    assert tags_of(cli, lake) == {"jan": 1}
    assert "jan" in cli("table", "tags", lake, "flights").out
    (jan,) = cli("table", "tags", lake, "flights", "--json").json
    assert jan["time_ms"] <= jan["created_ms"] <= time.time() * 1000 + 1000
    assert "tag" in cli("table", "tags", lake, "db.events").out


def test_create_tag(cli: Cli, lake: str) -> None:
    """The newest snapshot by default, an older one by id, another tag's, or that of a time."""
    made = cli("table", "tag", lake, "flights", "new", "--lifetime", "7 d", "--json").json
    assert made["snapshot"] == 2
    assert made["lifetime_ms"] == 7 * 86_400_000
    assert made["expires_ms"] == made["created_ms"] + made["lifetime_ms"]
    assert cli("table", "tag", lake, "flights", "old", "--snapshot", "1").code == exits.OK
    assert cli("table", "tag", lake, "flights", "copy", "--tag", "jan").code == exits.OK
    assert cli("table", "tag", lake, "flights", "now", "--timestamp", "2999-01-01").code == exits.OK
    assert tags_of(cli, lake) == {"jan": 1, "new": 2, "old": 1, "copy": 1, "now": 2}


def test_create_tag_if_not_exists(cli: Cli, lake: str) -> None:
    """--if-not-exists is content with the tag that is there, and leaves it."""
    answer = cli("table", "tag", lake, "flights", "jan", "--if-not-exists", "--json")
    assert answer.json["snapshot"] == 1


def test_replace_and_rename(cli: Cli, lake: str) -> None:
    """A tag moves to another snapshot, and gets another name."""
    assert cli("table", "replace-tag", lake, "flights", "jan").code == exits.OK
    assert tags_of(cli, lake) == {"jan": 2}
    assert cli("table", "rename-tag", lake, "flights", "jan", "feb").code == exits.OK
    assert tags_of(cli, lake) == {"feb": 2}
    assert cli("table", "rename-tag", lake, "flights", "jan", "x").code == exits.NOT_FOUND
    assert cli("table", "replace-tag", lake, "flights", "jan").code == exits.NOT_FOUND


def test_delete_tag(cli: Cli, lake: str, unchanged: Callable[[], bool]) -> None:
    """A dry run only reports; deleting deletes; a missing tag is refused unless --if-exists."""
    document = cli("table", "drop-tag", lake, "flights", "jan", "--dry-run", "--json").json
    assert document["dry_run"]
    assert document["hidden"] == 1
    assert cli("table", "drop-tag", lake, "flights", "nope").code == exits.NOT_FOUND
    assert cli("table", "drop-tag", lake, "flights", "jan", "nope").code == exits.NOT_FOUND
    assert unchanged()
    assert cli("table", "drop-tag", lake, "flights", "nope", "--if-exists").code == exits.OK
    assert cli("table", "drop-tag", lake, "flights", "jan").code == exits.OK
    assert tags_of(cli, lake) == {}


def test_expire_tags(cli: Cli, lake: str) -> None:
    """Tags whose lifetime is over go, others stay; a dry run lists them."""
    cli("table", "tag", lake, "flights", "brief", "--lifetime", "0 ms")
    document = cli("table", "expire-tags", lake, "flights", "--dry-run", "--json").json
    assert document["versions"] == ["tag/tag-brief"]
    assert tags_of(cli, lake) == {"jan": 1, "brief": 2}
    assert cli("table", "expire-tags", lake, "flights").code == exits.OK
    assert tags_of(cli, lake) == {"jan": 1}
