"""Print the reference of the command line, a page in Markdown: what `docs/reference/command-line.md` has.

    python tools/command_line.py > docs/reference/command-line.md

A test compares the two, so that a change of a command is seen in review.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final

import click

from lakebed.cli.command import Command
from lakebed.cli.commands import ROOT
from lakebed.cli.grammar import parameters_of

HEAD: Final = """\
# The command line

What `--help` prints, of every command. Examples, exit codes and how tables are printed are in
[the guide](../guide/cli.md). Options may stand anywhere; `--` ends them.

Every command has these options:

"""


def make_page() -> str:
    """The page."""
    return HEAD + "\n".join([*_rows(parameters_of(Command)), *_sections()]) + "\n"


def _sections() -> Iterator[str]:
    common = {parameter.name for parameter in parameters_of(Command)}
    for group in (ROOT, *ROOT.groups.values()):
        yield from ("", f"## {group.path[0] if group.path else 'The whole lake'}", "")
        yield from ([_text(group.help or ""), ""] if group.path else [])
        for command in map(group.command_at, group.words):
            yield from (f"### {' '.join(command.path)}", "", f"`{command.usage}`", "", _text(command.help or ""), "")
            yield from _rows([*command.arguments, *(option for option in command.options if option.name not in common)])
            yield ""


def _rows(parameters: Iterable[click.Parameter]) -> Iterator[str]:
    """A line for each parameter: how it is written, and what it means."""
    context = click.Context(click.Command("lakebed"))
    for parameter in parameters:
        record = parameter.get_help_record(context)
        assert record is not None
        term, meaning = record
        yield f"- `{term}`: {_text(meaning.replace('  [', ' ['))}"


def _text(text: str) -> str:
    """A text in which Markdown reads no markup."""
    return text.replace("\n\n", "\n").replace("*", "\\*").replace("<", "&lt;").replace("[", "\\[").replace("_", "\\_")


if __name__ == "__main__":
    print(make_page(), end="")
