"""The grammar of the command line: what a command takes, declared as annotated attributes of its class.

An attribute is ``Annotated[type, argument(...)]`` or ``Annotated[type, option(...)]``; without a default it is
required. Types: ``str``, ``int``, ``bool`` (a flag), ``Path``, an enumeration of texts, a list of these, any of them
or None.

Owns: `Argument`, `Option`, `Parameter` and how they are read from a class.
"""

from __future__ import annotations

import inspect
import sys
import typing
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import NoneType
from typing import Any, Final

import msgspec

from lakebed.cli.loading import load
from lakebed.errors import InvalidRequest
from lakebed.texts import LONG_MAX, whole_number

LAKE_VARIABLE: Final = "LAKEBED_LAKE"
"""The environment variable with the lake of commands that leave it out."""
OPTIONS_VARIABLE: Final = "LAKEBED_STORAGE_OPTIONS"
"""The environment variable with settings of the object store, a JSON object: every user can list commands."""


@dataclass(frozen=True, slots=True)
class Argument:
    """A positional argument."""

    metavar: str
    help: str
    formerly: tuple[str, ...]
    """Options that gave it in older releases, and still do."""
    is_lake: bool
    """`LAKE_VARIABLE` may give it."""


@dataclass(frozen=True, slots=True)
class Option:
    """An option."""

    names: tuple[str, ...]
    """Help pages show the first; ``--hard/--soft`` sets a flag or clears it."""
    help: str
    metavar: str | None
    minimum: int | None
    maximum: int | None
    replaces: tuple[str, ...]
    """Names of the arguments that are left out when this option is given."""
    note: Callable[[str], str | None] | None
    """What to write instead of this option, by its value."""


def argument(metavar: str, *, help: str, formerly: Sequence[str] = (), is_lake: bool = False) -> Argument:
    """Declare a positional argument."""
    return Argument(metavar, help, tuple(formerly), is_lake)


def option(
    *names: str,
    help: str,
    metavar: str | None = None,
    min: int | None = None,
    max: int | None = None,
    replaces: Sequence[str] = (),
    note: Callable[[str], str | None] | None = None,
) -> Option:
    """Declare an option; `min` and `max` are inclusive."""
    return Option(names, help, metavar, min, max, tuple(replaces), note)


@dataclass(frozen=True, slots=True)
class Parameter:
    """One argument or option of a command."""

    name: str
    spec: Argument | Option
    kind: Any
    """A type, or a `Literal` of the allowed values."""
    is_list: bool
    is_required: bool
    default: Any

    @property
    def is_flag(self) -> bool:
        """Whether it takes no value."""
        return self.kind is bool

    @property
    def is_argument(self) -> bool:
        """Whether it is positional."""
        return isinstance(self.spec, Argument)

    @property
    def names(self) -> tuple[str, ...]:
        """The spellings of an option, those that clear a flag included."""
        return tuple(name for text in getattr(self.spec, "names", ()) for name in text.split("/"))

    @property
    def metavar(self) -> str:
        """The name of its value on help pages."""
        return self.spec.metavar or self.name.upper().replace("_", "-")

    @property
    def usage(self) -> str:
        """``TABLE``, ``[TAG]``, ``[KEY...]``: an argument in a usage line."""
        name = f"{self.metavar}{'...' if self.is_list else ''}"
        return name if self.is_required else f"[{name}]"

    @property
    def choices(self) -> tuple[str, ...]:
        """The allowed values; empty: any value."""
        return typing.get_args(self.kind)

    def convert(self, text: str) -> Any:
        """Convert a text to the parameter's type.

        Raises:
            ValueError: with the rest of a sentence about the text.
            InvalidRequest: a URL where only a path of this machine can be.
        """
        if self.choices:
            if text not in self.choices:
                raise ValueError(f"choose {either(self.choices)}")
            return text
        if self.kind is Path:
            return Path(load("lakebed.objects.path").local_path(text))
        if self.kind is not int:
            return self.kind(text)
        number = whole_number(text, minimum=-LONG_MAX)
        low, high = getattr(self.spec, "minimum", None), getattr(self.spec, "maximum", None)
        if number is None:
            raise ValueError("use an integer")
        if (low is not None and number < low) or (high is not None and number > high):
            raise ValueError(f"use at least {low}" if high is None else f"use an integer from {low} to {high}")
        return number


def parameters_of(command: type) -> tuple[Parameter, ...]:
    """The parameters that a class and its bases declare.

    Returns:
        Arguments first, those of the bases before the class's own; then options, the class's own before those of the
        bases. A declaration of a class replaces one of the same name in a base.
    """
    bases = [list(_read_parameters(base, command)) for base in command.__mro__]
    arguments = {parameter.name: parameter for base in reversed(bases) for parameter in base if parameter.is_argument}
    options: dict[str, Parameter] = {}
    for parameter in (entry for base in bases for entry in base if not entry.is_argument):
        options.setdefault(parameter.name, parameter)
    return (*arguments.values(), *options.values())


def _read_parameters(base: type, command: type) -> Iterator[Parameter]:
    """The parameters that one class declares itself; defaults are those of `command`."""
    names = vars(sys.modules[base.__module__])
    # Without the class's own attributes as local names: an attribute `option` would hide the function.
    hints = inspect.get_annotations(base, globals=dict(names), locals={}, eval_str=True)
    for name, hint in hints.items():
        kind, spec = (*typing.get_args(hint), None, None)[:2]
        if not isinstance(spec, Argument | Option):
            continue
        kinds = [member for member in typing.get_args(kind) if member is not NoneType]
        if NoneType in typing.get_args(kind):
            (kind,) = kinds
        is_list = typing.get_origin(kind) is list
        if is_list:
            (kind,) = typing.get_args(kind)
        default = getattr(command, name, None)
        yield Parameter(name, spec, kind, is_list, not hasattr(command, name), default)


def pairs(texts: Sequence[str] | None, *, like: str = "bucket=4") -> dict[str, str]:
    """``["a=1", "b=2"]`` as a dictionary. Raises `InvalidRequest` for a text without ``=``; `like` is the example."""
    values = {}
    for text in texts or []:
        key, equals, value = text.partition("=")
        if not equals or not key.strip():
            raise InvalidRequest(f"{text!r} has no value: write KEY=VALUE, such as {like}.", kind="invalid_option")
        values[key.strip()] = value.strip()
    return values


def options_of(text: str | None) -> dict[str, str]:
    """The settings in `OPTIONS_VARIABLE`. Raises `InvalidRequest`, without quoting it: it may have secrets."""
    try:
        return msgspec.json.decode(text, type=dict[str, str]) if text else {}
    except msgspec.DecodeError:
        raise InvalidRequest(
            f"{OPTIONS_VARIABLE} is not a JSON object of texts: write it as "
            '{"aws_endpoint": "http://...", "aws_secret_access_key": "..."}.',
            kind="invalid_option",
        ) from None


def either(texts: Sequence[str]) -> str:
    """``a``, ``a, b or c``."""
    return texts[0] if len(texts) == 1 else f"{', '.join(texts[:-1])} or {texts[-1]}"
