"""The grammar of the command line: arguments and options, declared as annotated attributes of a command's class.

An attribute is ``Annotated[type, argument(...)]`` or ``Annotated[type, option(...)]``. Without a default it is
required. Types: ``str``, ``int``, ``bool`` (a flag), ``Path``, a ``Literal`` of texts, a list of these, any of them
or None. `parameters_of` converts them to click's parameters.
"""

from __future__ import annotations

import inspect
import sys
import typing
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import NoneType
from typing import TYPE_CHECKING, Any, Final

import click
import msgspec
from click.core import ParameterSource

from lakebed.cli.loading import load
from lakebed.decoding import decode_json
from lakebed.errors import InvalidRequest
from lakebed.texts import LONG_MAX, format_value, whole_number

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem

LAKE_VARIABLE: Final = "LAKEBED_LAKE"
"""The environment variable with the lake of commands that omit it."""
OPTIONS_VARIABLE: Final = "LAKEBED_STORAGE_OPTIONS"
"""The environment variable with settings of the object store, a JSON object: every user can list command lines."""


class Argument(click.Argument):
    """A positional argument. `is_lake`: `LAKE_VARIABLE` may provide it."""

    def __init__(self, *declarations: Any, is_lake: bool, **settings: Any) -> None:
        super().__init__(*declarations, **settings)
        self.is_lake = is_lake

    def make_metavar(self, ctx: click.Context) -> str:
        """Return ``TABLE``, ``[TAG]``, ``[KEY...]``."""
        name = f"{self.metavar}{'...' if self.nargs == -1 else ''}"
        return name if self.required else f"[{name}]"

    def get_error_hint(self, ctx: click.Context | None) -> str:
        """Return its name, as in the usage line."""
        return self.human_readable_name

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        """Return its possible values: names in the lake, or files."""
        items: list[CompletionItem] = load("lakebed.cli.completion").items(self, ctx, incomplete)
        return items


class Option(click.Option):
    """An option. `replaces`: names of the arguments that are omitted if it is given."""

    def __init__(self, *declarations: Any, replaces: Sequence[str] = (), **settings: Any) -> None:
        super().__init__(*declarations, **settings)
        self.replaces = tuple(replaces)

    def get_usage_pieces(self, ctx: click.Context) -> list[str]:
        """Return ``--where WHERE`` for a required option, otherwise nothing."""
        return [f"{self.opts[0]} {self.metavar or self.name.upper()}"] if self.required else []

    def get_error_hint(self, ctx: click.Context | None) -> str:
        """Return its first spelling."""
        return self.opts[0]

    def add_to_parser(self, parser: Any, ctx: click.Context) -> None:
        """Let the parser collect all uses of a flag with an opposite, because click keeps only the last spelling."""
        if not self.secondary_opts:
            super().add_to_parser(parser, ctx)
            return
        for names, value in ((self.opts, True), (self.secondary_opts, False)):
            parser.add_option(obj=self, opts=names, dest=self.name, action="append_const", const=value)

    def consume_value(self, ctx: click.Context, opts: Any) -> tuple[Any, ParameterSource]:
        """Return the value and its source. Raises `UsageError` for a flag that is given together with its opposite."""
        value, source = super().consume_value(ctx, opts)
        if not (self.secondary_opts and source is ParameterSource.COMMANDLINE):
            return value, source
        if len(set(value)) > 1 and not ctx.resilient_parsing:
            raise click.BadOptionUsage(self.name, f"Give {self.opts[0]} or {self.secondary_opts[0]}, not both.", ctx)
        return value[-1], source

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        """Return its possible values: names in the lake, or files."""
        items: list[CompletionItem] = load("lakebed.cli.completion").items(self, ctx, incomplete)
        return items


class _Whole(click.ParamType[int]):
    """An integer, written in plain digits. Bounds are inclusive."""

    name = "integer"

    def __init__(self, minimum: int | None = None, maximum: int | None = None) -> None:
        self.minimum = -LONG_MAX if minimum is None else minimum
        self.maximum = LONG_MAX if maximum is None else maximum

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        """Convert a text. Raises `UsageError`."""
        text = str(value)
        number = whole_number(text, minimum=-LONG_MAX)
        if number is None and not (text.isascii() and text.strip().removeprefix("-").isdecimal()):
            self.fail(f"{format_value(value)} is not an integer.", param, ctx)
        if number is None or not self.minimum <= number <= self.maximum:
            most = "" if number is not None and self.maximum == LONG_MAX else f" and at most {self.maximum}"
            value_text = format_value(value) if number is None else number
            self.fail(f"{value_text} is out of range: use at least {self.minimum}{most}.", param, ctx)
        return number


class _LocalPath(click.ParamType[Path]):
    """A path of this machine."""

    name = "path"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Path:
        """Convert a text. Raises `InvalidRequest` for a URL of another machine."""
        return Path(load("lakebed.objects.path").local_path(value))


_Build = Callable[[str, Any, dict[str, Any]], click.Parameter]
"""Makes a parameter from an attribute's name, its default, and the settings of its type."""


def argument(metavar: str, *, help: str, is_lake: bool = False) -> _Build:
    """Declare a positional argument."""

    def build(name: str, default: Any, settings: dict[str, Any]) -> click.Parameter:
        if settings.pop("multiple", False):
            settings["nargs"] = -1
        return Argument([name], metavar=metavar, help=help, is_lake=is_lake, **settings)

    return build


def option(
    *names: str,
    help: str,
    metavar: str | None = None,
    min: int | None = None,
    max: int | None = None,
    replaces: Sequence[str] = (),
    count: bool = False,
) -> _Build:
    """Declare an option.

    Args:
        names: the first one is used in error messages; ``--hard/--soft`` sets a flag or clears it.
        min, max: limits of an integer, inclusive.
        replaces: attributes of the arguments that are omitted if it is given.
        count: it takes no value, and counts how often it is given.
    """

    def build(name: str, default: Any, settings: dict[str, Any]) -> click.Parameter:
        kind = settings.get("type")
        if count:
            settings = {"count": True}
        elif kind is not None:
            if isinstance(kind, _Whole):
                settings["type"] = _Whole(min, max)
            choices = isinstance(kind, click.Choice)
            settings["metavar"] = metavar or (None if choices else name.upper().replace("_", "-"))
            if default not in (None, ""):
                settings |= {"default": default, "show_default": True}
        return Option([*names, name], help=help, replaces=replaces, **settings)

    return build


def parameters_of(command: type) -> list[click.Parameter]:
    """Return the parameters that a class and its bases declare.

    Returns:
        Arguments first, those of the bases before the class's own; then options, the class's own before those of the
        bases. A declaration of a class replaces one of the same name in a base.
    """
    bases = [list(_build_parameters(base, command)) for base in command.__mro__]
    arguments = {entry.name: entry for base in reversed(bases) for entry in base if isinstance(entry, Argument)}
    options: dict[str, click.Parameter] = {}
    for entry in (entry for base in bases for entry in base if not isinstance(entry, Argument)):
        options.setdefault(entry.name, entry)
    return [*arguments.values(), *options.values()]


def _build_parameters(base: type, command: type) -> Iterator[click.Parameter]:
    """Yield the parameters that one class declares itself. Defaults are those of `command`."""
    names = vars(sys.modules[base.__module__])
    # Without the class's own attributes as local names, because an attribute `option` would hide the function.
    hints = inspect.get_annotations(base, globals=dict(names), locals={}, eval_str=True)
    for name, hint in hints.items():
        kind, build = (*typing.get_args(hint), None, None)[:2]
        if not inspect.isfunction(build):
            continue
        settings: dict[str, Any] = {"required": not hasattr(command, name)}
        if NoneType in typing.get_args(kind):
            (kind,) = (member for member in typing.get_args(kind) if member is not NoneType)
        if typing.get_origin(kind) is list:
            (kind,) = typing.get_args(kind)
            settings["multiple"] = True
        yield build(name, getattr(command, name, None), settings | _settings_of(kind))


def _settings_of(kind: Any) -> dict[str, Any]:
    """Return click's settings for a type."""
    if kind is bool:
        return {"is_flag": True}
    if kind is Path:
        return {"type": _LocalPath()}
    if kind is int:
        return {"type": _Whole()}
    choices = typing.get_args(kind)
    return {"type": click.Choice(choices) if choices else click.STRING}


def pairs(texts: Sequence[str] | None, *, like: str = "bucket=4") -> dict[str, str]:
    """Parse ``["a=1", "b=2"]`` as a dictionary.

    Raises `InvalidRequest` for a text without ``=``; `like` is its example.
    """
    values = {}
    for text in texts or []:
        key, equals, value = text.partition("=")
        if not equals or not key.strip():
            raise InvalidRequest(f"{text!r} has no value: write KEY=VALUE, such as {like}.", kind="invalid_option")
        values[key.strip()] = value.strip()
    return values


def options_of(text: str | None) -> dict[str, str]:
    """Parse the settings in `OPTIONS_VARIABLE`.

    Raises `InvalidRequest` without quoting it, since it may have secrets.
    """
    try:
        return decode_json(text, dict[str, str]) if text else {}
    except msgspec.DecodeError:
        raise InvalidRequest(
            f"{OPTIONS_VARIABLE} is not a JSON object of texts: write it as "
            '{"aws_endpoint": "http://...", "aws_secret_access_key": "..."}.',
            kind="invalid_option",
        ) from None
