"""The grammar of the command line: commands as functions whose annotations say what they take.

A parameter of a command is ``Annotated[type, argument(...)]`` or ``Annotated[type, option(...)]``; without a default it
must be given. Types: ``str``, ``int``, ``bool`` (a flag), ``Path``, an enumeration of texts, a list of these, any of
them or None.

Owns: groups and commands, their old spellings, and parsing. Invariants: reading the annotations of a command costs
nothing until it is chosen, so starting does not depend on the number of commands; options may stand anywhere, ``--``
ends them; an old spelling does what the new one does, and `Parsed.notes` names the new one. Does not know: what
commands do, help pages.
"""

from __future__ import annotations

import difflib
import os
import typing
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from enum import Enum
from functools import cached_property
from types import NoneType
from typing import Any, Final

from lakebed.errors import InvalidRequest
from lakebed.texts import LONG_MAX, shown, whole_number

__all__ = [
    "COMMON",
    "LAKE_VARIABLE",
    "Argument",
    "Command",
    "Exit",
    "Group",
    "Option",
    "Parameter",
    "Parsed",
    "argument",
    "find",
    "in_order",
    "option",
    "parse",
    "usage_error",
]

LAKE_VARIABLE: Final = "LAKEBED_LAKE"
"""Names the lake of commands that leave it out."""

_VALUED_BEFORE: Final = ("--storage-option", "--path")
"""Options with a value that may stand before a command."""

Function = Callable[..., None]


class Exit(Exception):
    """End the command with an exit code; everything has been said."""

    def __init__(self, code: int) -> None:
        super().__init__(code)
        self.code = code


# ---- what a command takes


@dataclass(frozen=True, slots=True)
class Argument:
    """A positional argument."""

    metavar: str
    help: str
    formerly: tuple[str, ...]
    """Options that gave it in older releases, and still do."""
    is_lake: bool
    """`LAKE_VARIABLE` may stand for it."""


@dataclass(frozen=True, slots=True)
class Option:
    """An option."""

    names: tuple[str, ...]
    """The first is the one that pages show; ``--hard/--soft`` sets a flag or clears it."""
    help: str
    metavar: str | None
    minimum: int | None
    maximum: int | None
    replaces: tuple[str, ...]
    """Arguments, by their parameters' names, that are not given when it is."""
    is_hidden: bool
    note: Callable[[str], str | None] | None
    """What to write in its place, by its value."""


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
    hidden: bool = False,
    note: Callable[[str], str | None] | None = None,
) -> Option:
    """Declare an option; `min` and `max` are inclusive."""
    return Option(names, help, metavar, min, max, tuple(replaces), hidden, note)


@dataclass(frozen=True, slots=True)
class Parameter:
    """One parameter of a command's function."""

    name: str
    spec: Argument | Option
    kind: type
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
        """What pages call its value."""
        return self.spec.metavar or self.name.upper().replace("_", "-")

    @property
    def choices(self) -> tuple[str, ...]:
        """The values that it may have; none: any."""
        return tuple(one.value for one in self.kind) if issubclass(self.kind, Enum) else ()

    def convert(self, text: str) -> Any:
        """A value given as text. Raises `ValueError` with the rest of a sentence about it."""
        if self.choices:
            if text not in self.choices:
                raise ValueError(f"choose {_or(self.choices)}")
            return self.kind(text)
        if self.kind is not int:
            return self.kind(text)
        number = whole_number(text, minimum=-LONG_MAX)
        low, high = getattr(self.spec, "minimum", None), getattr(self.spec, "maximum", None)
        if number is None:
            raise ValueError("it is a whole number")
        if (low is not None and number < low) or (high is not None and number > high):
            raise ValueError(f"it is at least {low}" if high is None else f"it is between {low} and {high}")
        return number


COMMON: Final = (
    Parameter(
        "storage_option",
        option(
            "--storage-option",
            metavar="KEY=VALUE",
            help="A setting of the store, such as aws_endpoint=...; secrets belong into environment variables.",
        ),
        str,
        is_list=True,
        is_required=False,
        default=None,
    ),
    Parameter(
        "verbose",
        option("--verbose", "-v", help="Log what is done to standard error; twice: every request to the store too."),
        bool,
        is_list=True,
        is_required=False,
        default=None,
    ),
)
"""Options of every command."""


@dataclass(frozen=True)
class Command:
    """One command.

    Attributes:
        path: its words, ``("table", "tag")``.
        function: what runs it.
        is_hidden: pages do not list it: a spelling of older releases with parameters of its own.
    """

    path: tuple[str, ...]
    function: Function
    is_hidden: bool = False
    successor: str = ""
    """What to write in place of a hidden command."""

    @property
    def name(self) -> str:
        """``lakebed table tag``."""
        return " ".join(("lakebed", *self.path))

    @property
    def help(self) -> str:
        """What it does: its paragraphs, each in one line."""
        paragraphs = (self.function.__doc__ or "").split("\n\n")
        return "\n\n".join(" ".join(one.split()) for one in paragraphs)

    @property
    def summary(self) -> str:
        """What it does, in a sentence."""
        return self.help.partition("\n\n")[0]

    @cached_property
    def parameters(self) -> tuple[Parameter, ...]:
        """What it takes, in the order of the function's parameters."""
        code = self.function.__code__
        names = code.co_varnames[: code.co_argcount]
        defaults = dict(zip(reversed(names), reversed(self.function.__defaults__ or ()), strict=False))
        hints = typing.get_type_hints(self.function, include_extras=True)
        return tuple(_parameter(name, hints[name], defaults) for name in names)

    @property
    def arguments(self) -> list[Parameter]:
        """Its positional arguments, in order."""
        return [one for one in self.parameters if one.is_argument]

    @property
    def options(self) -> list[Parameter]:
        """Its options, in order, hidden ones left out."""
        return [one for one in self.parameters if isinstance(one.spec, Option) and not one.spec.is_hidden]

    @property
    def usage(self) -> str:
        """``LAKE TABLE [TAG] --where WHERE``: what must be given, and which arguments may."""
        pieces = [_shown_argument(one) for one in self.arguments]
        pieces += [f"{one.names[0]} {one.metavar}" for one in self.options if one.is_required]
        return " ".join(pieces)


@dataclass
class Group:
    """Commands below one word, or below none.

    Attributes:
        name: the word; empty for the root.
        help: what the commands are about.
        commands: by name.
        groups: by name; only the root has some.
        formerly: commands by the words that named them in older releases, ``"branch list"``.
    """

    name: str
    help: str
    commands: dict[str, Command] = field(default_factory=dict)
    groups: dict[str, Group] = field(default_factory=dict)
    formerly: dict[str, Command] = field(default_factory=dict)

    def command(self, name: str | None = None, *, formerly: Sequence[str] = ()) -> Callable[[Function], Function]:
        """Register a function as a command, under its own name unless another is given."""

        def register(function: Function) -> Function:
            word = name or function.__name__.replace("_", "-")
            made = self.commands[word] = Command((*filter(None, (self.name,)), word), function)
            self.formerly.update(dict.fromkeys(formerly, made))
            return function

        return register

    def retired(self, name: str, *, successor: str) -> Callable[[Function], Function]:
        """Register a function as a command of older releases, which the `successor` has replaced."""

        def register(function: Function) -> Function:
            path = (*filter(None, (self.name,)), name)
            self.formerly[name] = Command(path, function, is_hidden=True, successor=successor)
            return function

        return register

    def every(self) -> Iterator[Command]:
        """All commands, those of its groups included."""
        yield from self.commands.values()
        for group in self.groups.values():
            yield from group.every()


def _parameter(name: str, hint: Any, defaults: dict[str, Any]) -> Parameter:
    kind, spec = typing.get_args(hint)
    is_list = False
    kinds = [one for one in typing.get_args(kind) if one is not NoneType] if NoneType in typing.get_args(kind) else []
    if kinds:
        (kind,) = kinds
    if typing.get_origin(kind) is list:
        is_list, (kind,) = True, typing.get_args(kind)
    return Parameter(name, spec, kind, is_list, name not in defaults, defaults.get(name))


def _shown_argument(one: Parameter) -> str:
    name = f"{one.metavar}{'...' if one.is_list else ''}"
    return name if one.is_required else f"[{name}]"


# ---- parsing


@dataclass(frozen=True)
class Parsed:
    """A command with its values, ready to run.

    Attributes:
        values: by parameter's name.
        common: values of the options in `COMMON`, by name.
        notes: what to write in place of old spellings.
        lake_from: the lake that `LAKE_VARIABLE` stood for; None when it was given.
    """

    command: Command
    values: dict[str, Any]
    common: dict[str, list[Any]]
    notes: tuple[str, ...]
    lake_from: str | None

    def run(self) -> None:
        """Run the command."""
        self.command.function(**self.values)


@dataclass
class _Taken:
    """What stood on the line, not yet converted."""

    values: dict[str, list[Any]] = field(default_factory=dict)
    texts: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    wants_help: bool = False


def find(root: Group, words: Sequence[str]) -> tuple[Group, Command | None, int, str | None]:
    """Which command the first words name.

    Returns:
        The group that was reached, the command, how many words named both, and the old spelling that was used. The
        command is None when no word is left.

    Raises:
        InvalidRequest: there is no such command; with the nearest ones.
    """
    group, used = root, 0
    if words and words[0] in root.groups:
        group, used = root.groups[words[0]], 1
    rest = list(words[used:])
    if not rest:
        return group, None, used, None
    pair = " ".join(rest[:2])
    if len(rest) > 1 and pair in group.formerly:
        return group, group.formerly[pair], used + 2, pair
    if rest[0] in group.commands:
        return group, group.commands[rest[0]], used + 1, None
    if rest[0] in group.formerly:
        return group, group.formerly[rest[0]], used + 1, rest[0]
    name = " ".join(filter(None, ("lakebed", group.name)))
    near = difflib.get_close_matches(rest[0], [*group.commands, *group.groups, *group.formerly], n=2)
    hint = f" Did you mean {_or([repr(one) for one in near])}?" if near else ""
    raise usage_error(f"{name} has no command {rest[0]!r}.{hint}", name)


def parse(command: Command, words: Sequence[str], *, old: str | None = None) -> Parsed | None:
    """Read what follows a command's words; None: only its page is wanted.

    Args:
        old: the spelling of the command that was used, when it is one of older releases.

    Raises:
        InvalidRequest: kind ``usage``: what follows cannot be understood.
    """
    taken = _take(command, words)
    if taken.wants_help:
        return None
    if old is not None:
        spelled = " ".join(("lakebed", *command.path[:-1], old))
        taken.notes.insert(0, f"`{spelled}` is now `{command.successor or command.name}`.")
    replaced = {
        name
        for one in command.options
        if isinstance(one.spec, Option) and one.name in taken.values
        for name in one.spec.replaces
    }
    open_ = [one for one in command.arguments if one.name not in taken.values and one.name not in replaced]
    lake_from = _place(command, open_, taken)
    values: dict[str, Any] = {}
    for one in command.parameters:
        if one.name in taken.values:
            found = [_converted(command, one, text) for text in taken.values[one.name]]
            values[one.name] = found if one.is_list else found[-1]
        elif one.name in replaced:
            values[one.name] = None
        elif one.is_required:
            what = _shown_argument(one) if one.is_argument else one.names[0]
            raise usage_error(f"{command.name} needs {what}.", command.name)
        else:
            values[one.name] = one.default
    common = {one.name: taken.values.get(one.name, []) for one in COMMON}
    return Parsed(command, values, common, tuple(dict.fromkeys(taken.notes)), lake_from)


def in_order(root: Group, words: Sequence[str]) -> list[str]:
    """The same words, with options that stand before the command behind it: ``kv --path URL get KEY``."""
    moved: list[str] = []
    path: list[str] = []
    rest = list(words)
    while rest and len(path) < 2 and rest[0] != "--":
        if rest[0].startswith("-"):
            takes_value = rest[0] in _VALUED_BEFORE and len(rest) > 1
            moved += rest[: 1 + takes_value]
            rest = rest[1 + takes_value :]
        else:
            path.append(rest.pop(0))
            if path[0] not in root.groups:
                break
    return [*path, *moved, *rest] if path else [*moved, *rest]


def usage_error(message: str, name: str) -> InvalidRequest:
    """The error of a command that cannot be understood, with where its page is."""
    return InvalidRequest(f"{message} Try: {name} --help", kind="usage")


def _take(command: Command, words: Sequence[str]) -> _Taken:
    """Tell options from arguments."""
    by_name = {name: one for one in (*command.parameters, *COMMON) if not one.is_argument for name in one.names}
    former = {name: one for one in command.parameters if isinstance(one.spec, Argument) for name in one.spec.formerly}
    flags = {name for name, one in by_name.items() if one.is_flag}
    taken = _Taken()
    rest = iter(words)
    for word in rest:
        if word == "--":
            taken.texts.extend(rest)
        elif word in ("--help", "-h") and word not in by_name:
            taken.wants_help = True
            return taken
        elif not word.startswith("-") or word == "-":
            taken.texts.append(word)
        elif len(word) > 2 and all(f"-{letter}" in flags for letter in word[1:]):
            for letter in word[1:]:  # -vv
                taken.values.setdefault(by_name[f"-{letter}"].name, []).append(True)
        else:
            name, inline = _split(word, by_name.keys() | former.keys())
            one = by_name.get(name) or former.get(name)
            if one is None:
                raise _unknown(command, name, by_name)
            if name in former:
                taken.notes.append(f"`{name}` is now the argument {one.metavar}: {command.name} {command.usage}")
            if one.is_flag:
                if inline is not None:
                    raise usage_error(f"{name} takes no value.", command.name)
                clears = any(text.endswith(f"/{name}") for text in getattr(one.spec, "names", ()))
                taken.values.setdefault(one.name, []).append(not clears)
            else:
                value = inline if inline is not None else next(rest, None)
                if value is None:
                    raise usage_error(f"{name} needs a value.", command.name)
                taken.values.setdefault(one.name, []).append(value)
                note = one.spec.note(value) if isinstance(one.spec, Option) and one.spec.note else None
                taken.notes += [note] if note else []
    return taken


def _split(word: str, known: Iterable[str]) -> tuple[str, str | None]:
    """An option and the value that is written with it: ``--limit=5``, ``-n5``."""
    if word.startswith("--"):
        name, equals, value = word.partition("=")
        return name, value if equals else None
    return (word[:2], word[2:]) if len(word) > 2 and word[:2] in known else (word, None)


def _unknown(command: Command, name: str, by_name: dict[str, Parameter]) -> InvalidRequest:
    if name[1:2].isdecimal():
        return InvalidRequest(
            f"{command.name} has no option {name}. A value that begins with - stands behind --: "
            f"{command.name} ... -- {name}",
            kind="usage",
        )
    near = difflib.get_close_matches(name, by_name, n=2)
    hint = f" Did you mean {_or(near)}?" if near else ""
    return usage_error(f"{command.name} has no option {name}.{hint}", command.name)


def _place(command: Command, slots: list[Parameter], taken: _Taken) -> str | None:
    """Hand the texts out to the arguments that are open. Returns the lake that the environment named, if it did."""
    texts = list(taken.texts)
    lake_from = _lake_left_out(slots, texts)
    if lake_from is not None:
        texts.insert(0, lake_from)
    for position, one in enumerate(slots):
        if one.is_list:
            after = len(slots) - position - 1
            share = texts[: len(texts) - after] if after else texts
            texts = texts[len(share) :]
            if share:
                taken.values[one.name] = list(share)
        elif texts:
            taken.values[one.name] = [texts.pop(0)]
    if texts:
        raise usage_error(
            f"There is an argument too many: {shown(texts[0])}. It is {command.name} {command.usage}.", command.name
        )
    return lake_from


def _lake_left_out(slots: list[Parameter], texts: list[str]) -> str | None:
    """The lake of the environment, when the arguments leave it out.

    Where they could be read both ways, because a last argument may be left out too, the first one is the lake if it is
    written as a place, with a slash.
    """
    lake = os.environ.get(LAKE_VARIABLE)
    if not lake or not slots or not isinstance(slots[0].spec, Argument) or not slots[0].spec.is_lake:
        return None
    least = sum(one.is_required for one in slots)
    most = len(slots) if not any(one.is_list for one in slots) else None
    if len(texts) < least:
        return lake
    if most is not None and len(texts) >= most:
        return None
    first = texts[0]
    return None if "/" in first or "\\" in first or first in (".", "..") else lake


def _converted(command: Command, one: Parameter, text: Any) -> Any:
    if isinstance(text, bool):
        return text
    try:
        return one.convert(text)
    except ValueError as wrong:
        what = one.metavar if one.is_argument else one.names[0]
        raise usage_error(f"{what} cannot be {shown(text)}: {wrong}.", command.name) from wrong


def _or(texts: Sequence[str]) -> str:
    return texts[0] if len(texts) == 1 else f"{', '.join(texts[:-1])} or {texts[-1]}"
