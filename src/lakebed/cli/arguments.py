"""Arguments and options that several commands share, each declared once, and how their texts are parsed."""

from __future__ import annotations

import os
from datetime import timedelta
from typing import Annotated, Final

from lakebed.cli.grammar import argument, option
from lakebed.duration import parse_duration_ms
from lakebed.errors import InvalidRequest
from lakebed.texts import format_value

LAKE_HELP: Final = "Where the lake is: a folder or a URL such as s3://bucket/lake."
Lake = Annotated[str, argument("LAKE", help=LAKE_HELP, is_lake=True)]
TableName = Annotated[str, argument("TABLE", help="A table of the lake: flights, or database.flights.")]
Branch = Annotated[str | None, option("--branch", help="A branch of the table, instead of main.")]
Version = Annotated[
    str | None, option("--version", help="A snapshot id, a tag or a branch (or snapshot.7, tag.x, branch.x).")
]
Timestamp = Annotated[
    str | None, option("--timestamp", help="The newest version at or before a time: 2026-01-31T12:00:00Z.")
]
Limit = Annotated[int | None, option("--limit", min=1, help="At most this many.")]
PartitionPairs = Annotated[list[str] | None, option("--partition", metavar="KEY=VALUE", help="Only this partition.")]
TakeOver = Annotated[
    bool, option("--take-over", help="Take over from an owner whose lease is live. That process can no longer write.")
]
AfterDestroy = Annotated[bool, option("--after-destroy", help="Create a new database where one was destroyed.")]


def webhook_hosts() -> tuple[str, ...]:
    """Return the hosts that webhooks may reach although they are not public, from ``LAKEBED_ALLOW_WEBHOOK``."""
    return tuple(host.strip() for host in os.environ.get("LAKEBED_ALLOW_WEBHOOK", "").split(",") if host.strip())


def duration_ms(text: str | None) -> int | None:
    """Parse ``7 d`` or ``P7D`` as milliseconds; None for None.

    Raises `InvalidRequest`, also for a number without unit.
    """
    if text is None:
        return None
    bare = text.strip()
    if bare.isdecimal() and bare.strip("0"):  # milliseconds in stored options, but a user who types 7 means days
        raise InvalidRequest(
            f"{format_value(text)} has no unit: write '{bare[:20]} d', '{bare[:20]}h' or '{bare[:20]}min'.",
            kind="invalid_duration",
            text=text,
        )
    return parse_duration_ms(text)


def duration(text: str) -> timedelta:
    """Parse a duration. Raises `InvalidRequest`, also beyond Python's 2.7 million years."""
    try:
        return timedelta(milliseconds=duration_ms(text) or 0)
    except OverflowError:
        raise InvalidRequest(
            f"{format_value(text)} is longer than a duration can be: use at most {timedelta.max.days} d, or leave it "
            "out where that means no limit.",
            kind="invalid_duration",
            text=text,
        ) from None


def version_of(version: str | None, tag: str | None) -> str | None:
    """Combine ``--version`` and ``--tag``. Raises `InvalidRequest` if both are given."""
    if version is not None and tag is not None:
        raise InvalidRequest("Give --version or --tag, not both: a tag's name is a version too.", kind="two_versions")
    return f"tag.{tag}" if tag is not None else version


def names(text: str | None) -> list[str]:
    """Split a comma-separated list of names; None is an empty list."""
    return [name.strip() for name in (text or "").split(",") if name.strip()]
