"""How `--help` looks: the usage line, arguments and options as a manual page names them.

Invariants: the same text whatever release of the command line's library is installed, for each draws types and
brackets its own way (``{LAKE}``, ``<str>``, ``[x>=0]``); a list of commands shows whole sentences. What an option
takes is named after its metavar, or after the option itself: ``--branch BRANCH``.
"""

from __future__ import annotations

from typing import Any

import typer.core

__all__ = ["Command", "Group"]

_SENTENCE_CHARS_MAX = 500


class _Page:
    """The page's parts that a command and a group share."""

    def collect_usage_pieces(self, context: Any) -> list[str]:
        """``[OPTIONS] LAKE TABLE --name NAME``: what must be given, and what may."""
        command: Any = self
        pieces = ["[OPTIONS]"]
        pieces += [_argument(one) for one in _shown(command) if _is_argument(one)]
        pieces += [_option(one) for one in _shown(command) if not _is_argument(one) and one.required]
        return pieces + ([command.subcommand_metavar] if hasattr(command, "commands") else [])

    def format_options(self, context: Any, formatter: Any) -> None:
        """Arguments, then options, then commands, each in its own list."""
        command: Any = self
        arguments = [(_argument(one), one.help or "") for one in _shown(command) if _is_argument(one)]
        options = [(_option(one), _meaning(one)) for one in _shown(command) if not _is_argument(one)]
        helping = command.get_help_option(context)
        options += [(_option(helping), "Show this page.")] if helping is not None else []
        groups = [
            (name, one.get_short_help_str(_SENTENCE_CHARS_MAX))
            for name, one in getattr(command, "commands", {}).items()
        ]
        for title, rows in (("Arguments", arguments), ("Options", options), ("Commands", groups)):
            if rows:
                with formatter.section(title):
                    formatter.write_dl(rows)


class Command(_Page, typer.core.TyperCommand):
    """One command, with a page of this house's style."""


class Group(_Page, typer.core.TyperGroup):
    """A group of commands, with a page of this house's style."""


def _shown(command: Any) -> list[Any]:
    return [one for one in command.params if not getattr(one, "hidden", False) and one.name != "help"]


def _is_argument(parameter: Any) -> bool:
    return bool(parameter.param_type_name == "argument")


def _argument(parameter: Any) -> str:
    name = (parameter.metavar or parameter.name.upper()).strip("[]")
    return name if parameter.required else f"[{name}]"


def _option(parameter: Any) -> str:
    names = ", ".join(sorted(parameter.opts, key=len))
    if parameter.is_flag:
        return names
    return f"{names} {parameter.metavar or parameter.name.upper().replace('_', '-')}"


def _meaning(parameter: Any) -> str:
    text = parameter.help or ""
    default = parameter.default
    if parameter.required:
        return f"{text} (required)"
    return text if parameter.is_flag or default in (None, "") or callable(default) else f"{text} (default: {default})"
