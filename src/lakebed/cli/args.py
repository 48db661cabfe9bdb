"""Arguments that many commands share, each written once, and opening what they name."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Annotated, Any, Final

import lakebed
from lakebed.cli.grammar import argument, option
from lakebed.errors import InvalidRequest
from lakebed.texts import shown

if TYPE_CHECKING:
    from lakebed.lake.lake import Lake
    from lakebed.table.predicate import Predicate
    from lakebed.table.table import Table

__all__ = [
    "LAKE_HELP",
    "Branch",
    "DryRun",
    "Json",
    "LakeUrl",
    "Lifetime",
    "RepairStatistics",
    "TableName",
    "TagName",
    "Timestamp",
    "Version",
    "Yes",
    "choose_storage",
    "duration_ms",
    "open_lake",
    "open_table",
    "pairs",
    "predicate",
    "repairs_statistics",
    "storage_options",
    "time_ms",
    "version_of",
]

LAKE_HELP: Final = "Where the lake is: a folder or a URL such as s3://bucket/lake."
LakeUrl = Annotated[str, argument("LAKE", help=LAKE_HELP, is_lake=True)]
TableName = Annotated[str, argument("TABLE", help="A table of the lake: flights, or database.flights.")]
Json = Annotated[bool, option("--json", help="Print JSON with stable keys; errors too, on standard error.")]
DryRun = Annotated[bool, option("--dry-run", help="Only say what would be deleted, and why.")]
Yes = Annotated[bool, option("--yes", "-y", help="Do not ask, even at a terminal.")]
RepairStatistics = Annotated[
    bool,
    option(
        "--repair-statistics",
        help="Recompute the column bounds that older versions and other clients wrote, and commit them.",
    ),
]
TagName = Annotated[str, argument("TAG", help="The tag's name.", formerly=["--name"])]
Branch = Annotated[str | None, option("--branch", help="A branch of the table, instead of main.")]
Lifetime = Annotated[
    str | None, option("--lifetime", help="Delete the tag after this time: '7 d', '12h', 'P7D'. Default: never.")
]
Version = Annotated[
    str | None, option("--version", help="A snapshot id, a tag or a branch (or snapshot.7, tag.x, branch.x).")
]
Timestamp = Annotated[
    str | None, option("--timestamp", help="The newest version at or before a time: 2026-01-31T12:00:00Z.")
]


_STORAGE_OPTIONS: dict[str, str] = {}
"""Of the command that runs; a process runs one at a time."""


def choose_storage(texts: list[str] | None) -> None:
    """Remember what ``lakebed --storage-option KEY=VALUE ...`` says. Raises `InvalidRequest`."""
    _STORAGE_OPTIONS.clear()
    _STORAGE_OPTIONS.update(pairs(texts, like="aws_region=eu-central-1"))


def storage_options() -> dict[str, str] | None:
    """What the command says of the store; None: nothing."""
    return dict(_STORAGE_OPTIONS) or None


def webhook_hosts() -> tuple[str, ...]:
    """Hosts that webhooks may reach though they are not public, of ``LAKEBED_ALLOW_WEBHOOK``, with commas between."""
    return tuple(host.strip() for host in os.environ.get("LAKEBED_ALLOW_WEBHOOK", "").split(",") if host.strip())


def open_lake(url: str, *, create: bool = False) -> Lake:
    """The lake at a URL; only `create` makes one where there is none."""
    if url.startswith(("http://", "https://")):
        raise InvalidRequest(
            f"{url} is a server of repositories, and this command is for a lake's folder or bucket: name that. Of a "
            f"server: lakebed repo list {url}, lakebed repo collect {url} REPOSITORY.",
            kind="server_url",
        )
    return lakebed.open(url, create=create, storage_options=storage_options())


def open_table(url: str, name: str, *, branch: str | None = None) -> Table:
    """A table of the lake at a URL."""
    return open_lake(url).table(name, branch=branch)


def duration_ms(text: str | None) -> int | None:
    """Milliseconds of ``7 d`` or ``P7D``; None for None. Raises `InvalidRequest`, also for a number without a unit."""
    from lakebed.duration import parse_duration_ms  # `lakebed --help` needs no table

    if text is None:
        return None
    bare = text.strip()
    if bare.isdecimal() and bare.strip("0"):  # milliseconds in stored options; a user who types 7 means days
        raise InvalidRequest(
            f"{shown(text)} has no unit: write '{bare[:20]} d', '{bare[:20]}h' or '{bare[:20]}min'.",
            kind="invalid_duration",
            text=text,
        )
    return parse_duration_ms(text)


def time_ms(text: str | None) -> int | None:
    """Unix ms of an ISO 8601 time or of digits; None for None. Raises `InvalidRequest`."""
    from lakebed.table.travel import parse_time_ms

    return None if text is None else parse_time_ms(text)


def version_of(version: str | None, tag: str | None) -> str | None:
    """What ``--version`` and ``--tag`` mean together. Raises `InvalidRequest` when both are given."""
    if version is not None and tag is not None:
        raise InvalidRequest("Give --version or --tag, not both: a tag's name is a version too.", kind="two_versions")
    return f"tag.{tag}" if tag is not None else version


def pairs(texts: list[str] | None, *, like: str = "bucket=4") -> dict[str, str]:
    """``["a=1", "b=2"]`` as a dictionary. Raises `InvalidRequest` for one without ``=``, and shows one `like` it."""
    found: dict[str, Any] = {}
    for text in texts or []:
        key, equals, value = text.partition("=")
        if not equals or not key.strip():
            raise InvalidRequest(f"{text!r} gives no value: write it with =, such as {like}.", kind="invalid_option")
        found[key.strip()] = value.strip()
    return found


def predicate(text: str | None) -> Predicate | None:
    """A filter such as ``delay > 10 AND carrier = 'UA'``; None for None. Raises `InvalidRequest`."""
    from lakebed.table.predicate import parse_predicate

    return None if text is None else parse_predicate(text)


def repairs_statistics(asked: bool, *, deep: bool, dry_run: bool) -> bool:
    """Whether a check was asked to repair.

    Raises:
        InvalidRequest: options that do not go together.
    """
    if asked and deep:
        raise InvalidRequest("--repair-statistics reads the data files itself: give it without --deep.")
    if dry_run and not asked:
        raise InvalidRequest("A check changes nothing: --dry-run is for --repair-statistics.")
    return asked
