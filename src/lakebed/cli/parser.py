"""Parsing a command line: from words to a command with its values.

Invariants: options may stand anywhere, ``--`` ends them; an old spelling does what the new one does, and
`Parsed.notes` names the new one.
"""

from __future__ import annotations

import difflib
import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from lakebed.cli.command import Command, CommandSpec
from lakebed.cli.grammar import LAKE_VARIABLE, Argument, Option, Parameter, either
from lakebed.cli.groups import Group
from lakebed.errors import InvalidRequest
from lakebed.texts import format_value

_VALUED_BEFORE: Final = ("--storage-option", "--path")
"""Options with a value that may stand before a command."""


@dataclass(frozen=True)
class Parsed:
    """A command with its values, ready to run.

    Attributes:
        values: by parameter's name.
        notes: what to write instead of old spellings.
        lake_from: the lake that `LAKE_VARIABLE` gave; None when the line gave one.
    """

    spec: CommandSpec
    values: dict[str, Any]
    notes: tuple[str, ...]
    lake_from: str | None

    def command(self) -> Command:
        """The command, ready to run. Raises `InvalidRequest`."""
        return self.spec.command(self.values)


@dataclass
class _Taken:
    """What the line gives, not yet converted."""

    values: dict[str, list[Any]] = field(default_factory=dict)
    texts: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    wants_help: bool = False


def find(root: Group, words: Sequence[str]) -> tuple[Group, CommandSpec | None, int, str | None]:
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
    rest = words[used:]
    if not rest:
        return group, None, used, None
    for count in (2, 1):
        old = " ".join(rest[:count])
        if len(rest) >= count and (spec := group.former(old)) is not None:
            return group, spec, used + count, old
    if rest[0] in group.words:
        return group, group.command(rest[0]), used + 1, None
    name = " ".join(filter(None, ("lakebed", group.name)))
    near = difflib.get_close_matches(rest[0], [*group.words, *group.groups, *group.old_words()], n=2)
    hint = f" Did you mean {either([repr(word) for word in near])}?" if near else ""
    raise usage_error(f"{name} has no command {rest[0]!r}.{hint}", name)


def parse(spec: CommandSpec, words: Sequence[str], *, old: str | None = None) -> Parsed | None:
    """Read what follows a command's words; None: only its help page was asked for.

    Args:
        old: the spelling of the command that was used, when it is one of older releases.

    Raises:
        InvalidRequest: kind ``usage``: the line is not valid.
    """
    taken = _take(spec, words)
    if taken.wants_help:
        return None
    if old is not None:
        spelled = " ".join(("lakebed", *spec.path[:-1], old))
        taken.notes.insert(0, f"`{spelled}` is now `{spec.command.successor or spec.name}`.")
    replaced = {
        name
        for parameter in spec.options
        if isinstance(parameter.spec, Option) and parameter.name in taken.values
        for name in parameter.spec.replaces
    }
    unset = [
        parameter
        for parameter in spec.arguments
        if parameter.name not in taken.values and parameter.name not in replaced
    ]
    lake_from = _assign(spec, unset, taken)
    values: dict[str, Any] = dict.fromkeys(replaced)
    for parameter in spec.parameters:
        if parameter.name in taken.values:
            items = [_convert(spec, parameter, text) for text in taken.values[parameter.name]]
            values[parameter.name] = items if parameter.is_list else items[-1]
        elif parameter.is_required and parameter.name not in replaced:
            raise usage_error(
                f"{spec.name} needs {parameter.usage if parameter.is_argument else parameter.names[0]}.", spec.name
            )
    return Parsed(spec, values, tuple(dict.fromkeys(taken.notes)), lake_from)


def in_order(root: Group, words: Sequence[str]) -> list[str]:
    """The same words, with options before the command moved after it: ``kv --path URL get KEY``."""
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
    """The error of a command line that is not valid, with the way to its help page."""
    return InvalidRequest(f"{message} Try: {name} --help", kind="usage")


def _take(spec: CommandSpec, words: Sequence[str]) -> _Taken:
    """Separate options from arguments."""
    by_name = {
        name: parameter for parameter in spec.parameters if not parameter.is_argument for name in parameter.names
    }
    former = {
        name: parameter
        for parameter in spec.parameters
        if isinstance(parameter.spec, Argument)
        for name in parameter.spec.formerly
    }
    flags = {name for name, parameter in by_name.items() if parameter.is_flag}
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
            parameter = by_name.get(name) or former.get(name)
            if parameter is None:
                raise _unknown(spec, name, by_name)
            if name in former:
                taken.notes.append(f"`{name}` is now the argument {parameter.metavar}: {spec.name} {spec.usage}")
            if parameter.is_flag:
                if inline is not None:
                    raise usage_error(f"{name} takes no value.", spec.name)
                clears = any(text.endswith(f"/{name}") for text in getattr(parameter.spec, "names", ()))
                taken.values.setdefault(parameter.name, []).append(not clears)
            else:
                value = inline if inline is not None else next(rest, None)
                if value is None:
                    raise usage_error(f"{name} needs a value.", spec.name)
                taken.values.setdefault(parameter.name, []).append(value)
                note = (
                    parameter.spec.note(value) if isinstance(parameter.spec, Option) and parameter.spec.note else None
                )
                taken.notes += [note] if note else []
    return taken


def _split(word: str, known: Iterable[str]) -> tuple[str, str | None]:
    """An option and the value that is written with it: ``--limit=5``, ``-n5``."""
    if word.startswith("--"):
        name, equals, value = word.partition("=")
        return name, value if equals else None
    return (word[:2], word[2:]) if len(word) > 2 and word[:2] in known else (word, None)


def _unknown(spec: CommandSpec, name: str, by_name: dict[str, Parameter]) -> InvalidRequest:
    if name[1:2].isdecimal():
        return InvalidRequest(
            f"{spec.name} has no option {name}. Put a value that begins with - after --: {spec.name} ... -- {name}",
            kind="usage",
        )
    near = difflib.get_close_matches(name, by_name, n=2)
    hint = f" Did you mean {either(near)}?" if near else ""
    return usage_error(f"{spec.name} has no option {name}.{hint}", spec.name)


def _assign(spec: CommandSpec, slots: list[Parameter], taken: _Taken) -> str | None:
    """Assign the texts to the arguments without a value. Returns the lake of the environment, if it was used."""
    texts = list(taken.texts)
    lake_from = _lake_left_out(slots, texts)
    if lake_from is not None:
        texts.insert(0, lake_from)
    for position, slot in enumerate(slots):
        if slot.is_list:
            after = len(slots) - position - 1
            share = texts[: len(texts) - after] if after else texts
            texts = texts[len(share) :]
            if share:
                taken.values[slot.name] = list(share)
        elif texts:
            taken.values[slot.name] = [texts.pop(0)]
    if texts:
        raise usage_error(
            f"One argument too many: {format_value(texts[0])}. The command is {spec.name} {spec.usage}.", spec.name
        )
    return lake_from


def _lake_left_out(slots: list[Parameter], texts: list[str]) -> str | None:
    """The lake of the environment, when the arguments leave it out.

    Where they could be read both ways, because a last argument may be left out too, the first one is the lake if it
    has a slash.
    """
    lake = os.environ.get(LAKE_VARIABLE)
    if not lake or not slots or not isinstance(slots[0].spec, Argument) or not slots[0].spec.is_lake:
        return None
    least = sum(slot.is_required for slot in slots)
    most = len(slots) if not any(slot.is_list for slot in slots) else None
    if len(texts) < least:
        return lake
    if most is not None and len(texts) >= most:
        return None
    first = texts[0]
    return None if "/" in first or "\\" in first or first in (".", "..") else lake


def _convert(spec: CommandSpec, parameter: Parameter, text: Any) -> Any:
    if isinstance(text, bool):
        return text
    try:
        return parameter.convert(text)
    except ValueError as wrong:
        what = parameter.metavar if parameter.is_argument else parameter.names[0]
        raise usage_error(f"{what} {format_value(text)} is invalid: {wrong}.", spec.name) from wrong
