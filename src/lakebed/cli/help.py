"""How `--help` looks: the usage line, arguments, options and commands as a manual page names them.

Invariants: a list of commands shows whole sentences; the value of an option is named after its metavar, or after the
option itself (``--branch BRANCH``); lines are as wide as the terminal, 110 columns at most.
"""

from __future__ import annotations

import shutil
import textwrap
from collections.abc import Sequence
from typing import Any

from lakebed.cli.command import COMMON, CommandSpec
from lakebed.cli.grammar import Option, Parameter
from lakebed.cli.groups import Group

_COLUMNS_MAX = 110
_TERM_COLUMNS_MAX = 34
"""A longer term has a line of its own."""

Entry = tuple[str, str]


def page_of_command(command: CommandSpec) -> str:
    """The page of a command."""
    arguments = [(_term(parameter), parameter.spec.help) for parameter in command.arguments]
    options = [(_term(parameter), _meaning(parameter)) for parameter in command.options]
    options.append(("-h, --help", "Show this page."))
    return _page(f"{command.name} [OPTIONS] {command.usage}", command.help, Arguments=arguments, Options=options)


def page_of_group(group: Group) -> str:
    """The page of a group of commands."""
    commands = [*group.list_commands(), *((name, inner.help) for name, inner in group.groups.items())]
    options = [] if group.name else [(_term(parameter), _meaning(parameter)) for parameter in COMMON]
    options += [] if group.name else [("--version", "Show lakebed's version.")]
    options.append(("-h, --help", "Show this page."))
    name = " ".join(filter(None, ("lakebed", group.name)))
    return _page(f"{name} COMMAND ...", group.help, Options=options, Commands=commands)


def _page(usage: str, text: str, **lists: Sequence[Entry]) -> str:
    width = min(_COLUMNS_MAX, max(20, shutil.get_terminal_size().columns))
    lines = textwrap.wrap(f"Usage: {usage}", width, subsequent_indent=" " * 7, break_on_hyphens=False)
    for paragraph in text.split("\n\n"):
        is_list = paragraph.startswith("  ")
        lines += ["", *(paragraph.splitlines() if is_list else _fill(paragraph, width - 2, indent="  "))]
    for title, entries in lists.items():
        if entries:
            lines += ["", f"{title}:", *_list(entries, width)]
    return "\n".join(lines) + "\n"


def _list(entries: Sequence[Entry], width: int) -> list[str]:
    """Terms and their meanings, in two columns; the first is as wide as its longest term."""
    limit = min(_TERM_COLUMNS_MAX, width // 3)
    column = max((len(term) for term, _ in entries if len(term) <= limit), default=limit)
    margin = " " * (column + 4)
    lines = []
    for term, meaning in entries:
        wrapped = _fill(meaning, width, indent=margin)
        if len(term) <= column and wrapped:
            wrapped[0] = f"  {term:<{column}}  {wrapped[0].lstrip()}"
            lines += wrapped
        else:
            lines += [f"  {term}", *wrapped]
    return lines


def _fill(text: str, width: int, *, indent: str) -> list[str]:
    return textwrap.wrap(
        text, width, initial_indent=indent, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False
    )


def _term(parameter: Parameter) -> str:
    if parameter.is_argument:
        return parameter.metavar if parameter.is_required else f"[{parameter.metavar}]"
    names = ", ".join(sorted(parameter.names, key=len))
    return names if parameter.is_flag else f"{names} {parameter.metavar}"


def _meaning(parameter: Parameter) -> str:
    assert isinstance(parameter.spec, Option)
    default: Any = getattr(parameter.default, "value", parameter.default)
    if parameter.is_required:
        return f"{parameter.spec.help} (required)"
    return (
        parameter.spec.help
        if parameter.is_flag or default in (None, "")
        else f"{parameter.spec.help} (default: {default})"
    )
