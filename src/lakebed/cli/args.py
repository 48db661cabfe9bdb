"""Arguments that many commands share, each written once, and opening what they name."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

import lakebed
from lakebed.cli import help as page
from lakebed.errors import InvalidRequest

if TYPE_CHECKING:
    from lakebed.lake.lake import Lake
    from lakebed.table.predicate import Predicate
    from lakebed.table.table import Table

__all__ = [
    "Branch",
    "DryRun",
    "Json",
    "LakeUrl",
    "Lifetime",
    "StorageOptions",
    "TableName",
    "TagName",
    "Timestamp",
    "Version",
    "Yes",
    "choose_storage",
    "duration_ms",
    "new_app",
    "open_lake",
    "open_table",
    "pairs",
    "predicate",
    "storage_options",
    "time_ms",
    "version_of",
]

LakeUrl = Annotated[
    str, typer.Argument(metavar="LAKE", help="Where the lake is: a folder or a URL such as s3://bucket/lake.")
]
TableName = Annotated[str, typer.Argument(metavar="TABLE", help="A table of the lake: flights, or database.flights.")]
Json = Annotated[bool, typer.Option("--json", help="Print JSON with stable keys; errors too, on standard error.")]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Only say what would be deleted, and why.")]
Yes = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask, even at a terminal.")]
TagName = Annotated[str, typer.Option("--name", help="The tag's name.")]
Branch = Annotated[str | None, typer.Option("--branch", help="A branch of the table, instead of main.")]
StorageOptions = Annotated[
    list[str] | None,
    typer.Option(
        "--storage-option",
        metavar="KEY=VALUE",
        help="A setting of the store, such as aws_endpoint=...; secrets belong into environment variables.",
    ),
]
Lifetime = Annotated[
    str | None, typer.Option("--lifetime", help="Delete the tag after this time: '7 d', '12h', 'P7D'. Default: never.")
]
Version = Annotated[
    str | None, typer.Option("--version", help="A snapshot id, a tag or a branch (or snapshot.7, tag.x, branch.x).")
]
Timestamp = Annotated[
    str | None, typer.Option("--timestamp", help="The newest version at or before a time: 2026-01-31T12:00:00Z.")
]


class _App(typer.Typer):
    """A group whose commands have pages of this house's style."""

    def command(self, name: str | None = None, **options: Any) -> Any:
        return super().command(name, cls=page.Command, **options)


def new_app(help: str) -> typer.Typer:
    """A group of commands that looks as all others do."""
    return _App(
        cls=page.Group,
        help=help,
        no_args_is_help=True,
        add_completion=False,
        rich_markup_mode=None,
        pretty_exceptions_enable=False,
        context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110},
    )


_STORAGE_OPTIONS: dict[str, str] = {}
"""Of the command that runs; a process runs one at a time."""


def choose_storage(texts: list[str] | None) -> None:
    """Remember what ``lakebed --storage-option KEY=VALUE ...`` says. Raises `InvalidRequest`."""
    _STORAGE_OPTIONS.clear()
    _STORAGE_OPTIONS.update(pairs(texts, like="aws_region=eu-central-1"))


def storage_options() -> dict[str, str] | None:
    """What the command was told of the store; None: nothing."""
    return dict(_STORAGE_OPTIONS) or None


def open_lake(url: str, *, create: bool = False) -> Lake:
    """The lake at a URL; only `create` makes one where there is none."""
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
    if bare.isdecimal() and int(bare):  # milliseconds in stored options; whoever types 7 means days
        raise InvalidRequest(
            f"{text!r} has no unit: write '{bare} d', '{bare}h' or '{bare}min'.", kind="invalid_duration", text=text
        )
    return parse_duration_ms(text)


def time_ms(text: str | None) -> int | None:
    """Unix ms of an ISO 8601 time or of digits; None for None. Raises `InvalidRequest`."""
    from lakebed.table.travel import parse_time_ms

    return None if text is None else parse_time_ms(int(text) if text.isdecimal() else text)


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
