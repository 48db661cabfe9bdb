"""Parsing a command line with click: commands and groups, their help pages, and the values on a line.

Invariants: options may be anywhere, even before the command, and ``--`` ends them. A module of commands is imported
when one of its commands is called, or when the help of its group is requested; the help of the root imports none. A
line of a help page breaks only at spaces. Does not know: the list of groups (`commands`).
"""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, Final

import click
from click.core import ParameterSource

from lakebed.cli import exits, layout
from lakebed.cli.command import Command
from lakebed.cli.grammar import LAKE_VARIABLE, Argument, Option, parameters_of
from lakebed.cli.loading import load
from lakebed.errors import InvalidRequest

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem

_COLUMNS_MIN: Final = 20
_COLUMNS_MAX: Final = 110
_USAGE_INDENT: Final = len("Usage: ")
_VALUED_BEFORE: Final = ("--storage-option", "--path")
"""Options with a value that may stand before a command."""


class _Formatter(click.HelpFormatter):
    """Writes a page for a terminal of any width.

    Breaks lines only at spaces, because options and variables are names.
    """

    def write_usage(self, prog: str, args: str = "", prefix: str | None = None) -> None:
        first, *more_lines = layout.wrap(f"Usage: {prog} {args}", self.width - _USAGE_INDENT)
        self.write("\n".join([first, *(" " * _USAGE_INDENT + line for line in more_lines)]) + "\n")

    def write_text(self, text: str) -> None:
        indent = " " * self.current_indent
        lines = layout.wrap(text, self.width - len(indent))
        self.write("".join(f"{indent}{line}".rstrip() + "\n" for line in lines))

    def write_dl(self, rows: Iterable[tuple[str, str]], col_max: int = 30, col_spacing: int = 2) -> None:
        """Write terms and their meanings in two columns. A long term is on its own line."""
        rows = list(rows)
        indent = " " * self.current_indent
        limit = min(col_max, self.width // 3)
        column = max((len(term) for term, _ in rows if len(term) <= limit), default=limit) + col_spacing
        for term, meaning in rows:
            lines = layout.wrap(meaning, self.width - len(indent) - column)
            first = lines.pop(0) if len(term) + col_spacing <= column else ""
            self.write(f"{indent}{term:<{column}}{first}".rstrip() + "\n")
            self.write("".join(f"{indent}{'':<{column}}{line}\n" for line in lines))


_SEVERAL: Final = re.compile(r"(.*) \(Did you mean one of: (.*)\?\)")
"""A sentence of click."""


class _Context(click.Context):
    """A command line while it is parsed.

    Attributes:
        replaced: names of the arguments that an option replaces.
        lake_from: the lake from `LAKE_VARIABLE`; None: the line has a lake.
    """

    replaced: frozenset[str] = frozenset()
    lake_from: str | None = None

    def make_formatter(self) -> click.HelpFormatter:
        """Return a formatter as wide as the terminal."""
        columns = shutil.get_terminal_size().columns
        return _Formatter(width=max(_COLUMNS_MIN, min(_COLUMNS_MAX, columns)))

    def is_given(self, parameter: click.Parameter) -> bool:
        """Whether the line has the parameter."""
        return self.get_parameter_source(parameter.name) is ParameterSource.COMMANDLINE


@dataclass(frozen=True)
class Parsed:
    """A command with its values, ready to run.

    Attributes:
        values: values by the parameter's name; only those on the line.
        lake_from: the lake from `LAKE_VARIABLE`; None: the line has a lake.
    """

    spec: CommandSpec
    values: dict[str, Any]
    lake_from: str | None

    def command(self) -> Command:
        """Return the command, ready to run. Raises `InvalidRequest`."""
        return self.spec.command(self.values)


class CommandSpec(click.Command):
    """A command at its place in the tree of groups.

    Attributes:
        path: its words, such as ``("table", "tag")``.
        command: the class that declares it.
    """

    context_class = _Context

    def __init__(self, path: tuple[str, ...], command: type[Command]) -> None:
        paragraphs = (command.__doc__ or "").split("\n\n")
        super().__init__(
            path[-1],
            params=parameters_of(command),
            help="\n\n".join(" ".join(paragraph.split()) for paragraph in paragraphs),
        )
        self.path = path
        self.command = command
        self.arguments = [entry for entry in self.params if isinstance(entry, Argument)]
        self.options = [entry for entry in self.params if isinstance(entry, Option)]

    @property
    def summary(self) -> str:
        """What it does, as a sentence."""
        return (self.help or "").partition("\n\n")[0]

    @property
    def usage(self) -> str:
        """``lakebed table read LAKE TABLE``, with required and optional arguments, and required options."""
        context = _Context(self)
        pieces = [piece for parameter in self.params for piece in parameter.get_usage_pieces(context)]
        return " ".join(("lakebed", *self.path, *pieces))

    def get_params(self, ctx: click.Context) -> list[click.Parameter]:
        """Return the parameters except those that an option on the line replaces."""
        assert isinstance(ctx, _Context)
        return [entry for entry in super().get_params(ctx) if entry.name not in ctx.replaced]

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Parse what follows the command's words. Raises `UsageError`."""
        assert isinstance(ctx, _Context)
        lake = os.environ.get(LAKE_VARIABLE)
        if ctx.resilient_parsing and any(args[-1:] == [name] for option in self.options for name in option.opts):
            args = args[:-1]  # completion of this option's value, without which click would parse no arguments
        if lake or any(option.replaces for option in self.options):
            trial = _Context(self, parent=ctx.parent, info_name=ctx.info_name, resilient_parsing=True)
            with trial.scope(cleanup=False):
                super().parse_args(trial, list(args))
            given_options = [option for option in self.options if trial.is_given(option)]
            ctx.replaced = frozenset(name for option in given_options for name in option.replaces)
            if lake and self._leaves_lake_out(trial, ctx):
                ctx.lake_from = lake
                args = [lake, *args]
        return super().parse_args(ctx, args)

    def _leaves_lake_out(self, trial: _Context, context: _Context) -> bool:
        """Whether the arguments omit the lake.

        If the arguments can be read both ways, because the last argument is optional too, the first one is the lake if
        it has a slash.
        """
        slots = [slot for slot in self.arguments if slot.name not in context.replaced]
        if not slots or not slots[0].is_lake:
            return False
        values = [trial.params[slot.name] for slot in self.arguments if trial.is_given(slot)]
        texts = [text for value in values for text in (value if isinstance(value, tuple) else (value,))] + trial.args
        is_place = bool(texts) and ("/" in texts[0] or "\\" in texts[0] or texts[0] in (".", ".."))
        if len(texts) < sum(slot.required for slot in slots):
            return not (is_place and context.resilient_parsing)  # in a completion the rest may still follow
        if len(texts) >= len(slots) and not any(slot.nargs == -1 for slot in slots):
            return False
        return not is_place

    def invoke(self, ctx: click.Context) -> Parsed:
        """Return the command with its values. The caller runs it."""
        assert isinstance(ctx, _Context)
        values: dict[str, Any] = dict.fromkeys(ctx.replaced)
        for parameter in self.params:
            if ctx.is_given(parameter) and parameter.name in ctx.params:
                value = ctx.params[parameter.name]
                values[parameter.name] = list(value) if isinstance(value, tuple) else value
        return Parsed(self, values, ctx.lake_from)


class Group(click.Group):
    """Commands below one word, or at the root.

    Attributes:
        modules: the modules that declare the commands, with the words of each in the order of the help page.
        summaries: what commands do, by word, for help that loads no module.
        groups: groups by name; only the root has any.
    """

    context_class = _Context

    def __init__(
        self,
        name: str,
        help: str,
        modules: Mapping[str, tuple[str, ...]],
        *,
        summaries: Mapping[str, str] | None = None,
        groups: Iterable[Group] = (),
    ) -> None:
        common = parameters_of(Command)  # these may also come before a command
        for option in common:
            assert isinstance(option, Option)
            option.hidden = bool(name)
        version = click.Option(["-V", "--version"], is_flag=True, hidden=bool(name), help="Show lakebed's version.")
        super().__init__(
            name or "lakebed",
            params=[*common, version],
            help=help,
            context_settings={"help_option_names": ["-h", "--help"]},
            no_args_is_help=True,
            options_metavar="",
            subcommand_metavar="COMMAND ...",
        )
        self.path = tuple(filter(None, (name,)))
        self.modules = modules
        self.summaries = summaries or {}
        self.groups = {group.path[0]: group for group in groups}

    @cached_property
    def words(self) -> dict[str, str]:
        """The words of the commands, each with its module."""
        return {word: module for module, words in self.modules.items() for word in words}

    def command_at(self, word: str) -> CommandSpec:
        """Return the command with this word."""
        module = f"lakebed.cli.{self.words[word]}"
        return next(
            CommandSpec((*self.path, word), member)
            for member in vars(load(module)).values()
            if isinstance(member, type) and issubclass(member, Command) and member.word == word
            if member.__module__ == module
        )

    def every(self) -> Iterator[CommandSpec]:
        """Yield all commands, including those of its groups."""
        yield from map(self.command_at, self.words)
        for group in self.groups.values():
            yield from group.every()

    def summarize(self) -> list[tuple[str, str]]:
        """Return the words of commands and groups with their summaries, in the order of the help page."""
        commands = [(word, self.summaries.get(word) or self._summary_at(word)) for word in self.words]
        return [*commands, *((name, group.help or "") for name, group in self.groups.items())]

    def _summary_at(self, word: str) -> str:
        """Return the summary of a command, or which extra it needs: the page shows the other commands anyway."""
        try:
            return self.command_at(word).summary
        except InvalidRequest as missing:
            return missing.message

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Return the command or group of a word."""
        return self.groups.get(cmd_name) or (self.command_at(cmd_name) if cmd_name in self.words else None)

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return the words of commands and groups."""
        return [*self.words, *self.groups]

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Find the command, and move options before it behind it: ``kv --path URL get KEY``."""
        moved_options: list[str] = []
        rest = list(args)
        while rest and rest[0].startswith("-") and rest[0] not in ("--", "--version", "-V"):
            count = 2 if rest[0] in _VALUED_BEFORE else 1
            moved_options += rest[:count]
            rest = rest[count:]
        if rest and not self.path and rest[0] in ("--version", "-V"):
            rest[0] = "version"
        return super().parse_args(ctx, [rest[0], *moved_options, *rest[1:]] if rest else moved_options)

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Find the command of the first word. Raises `NoSuchCommand` with the nearest ones."""
        if self.get_command(ctx, args[0]) is None and not ctx.resilient_parsing:
            raise click.NoSuchCommand(args[0], possibilities=self.list_commands(ctx), ctx=ctx)
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the list of commands, with whole sentences."""
        with formatter.section("Commands"):
            formatter.write_dl(self.summarize())

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the exit codes, on the page of the root."""
        if not self.path:
            with formatter.section("Exit codes"):
                formatter.write_dl([(str(code), meaning) for code, meaning in exits.MEANINGS.items()])

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        """Return the commands and options with this prefix."""
        items: list[CompletionItem] = load("lakebed.cli.completion").items_of(self.summarize(), incomplete)
        return items + click.Command.shell_complete(self, ctx, incomplete)


def read(root: Group, words: Sequence[str]) -> Parsed:
    """Return the command of a line with its values. Raises click's `UsageError`, and its `Exit` after a help page."""
    with root.make_context("lakebed", list(words)) as context:
        parsed: Parsed = root.invoke(context)
        return parsed


def find(root: Group, words: Sequence[str]) -> CommandSpec | None:
    """Return the command of a line, whatever its arguments are; None: no command."""
    command: click.Command | None = root
    rest = list(words)
    while isinstance(command, Group):
        command = command.get_command(click.Context(command), rest.pop(0)) if rest else None
    assert command is None or isinstance(command, CommandSpec)
    return command


def usage_error(problem: click.UsageError, words: Sequence[str]) -> InvalidRequest:
    """Return the error of an invalid command line: what is wrong, the current spelling, the way to its help page."""
    command = None if problem.ctx is None else problem.ctx.command
    name = "lakebed" if problem.ctx is None else problem.ctx.command_path
    unknown_option = problem if isinstance(problem, click.NoSuchOption) else None
    new_spelling = load("lakebed.cli.renamed").hint(words, unknown_option and unknown_option.option_name)
    message = " ".join((problem.message if new_spelling else problem.format_message()).split())
    if several := _SEVERAL.fullmatch(message):  # use the wording for a single suggestion
        message = f"{several[1]} Did you mean {' or '.join(several[2].split(', '))}?"
    pieces = [message if message.endswith((".", "?", "?)")) else f"{message}."]
    if new_spelling:
        pieces.append(new_spelling)
    elif unknown_option is not None and not unknown_option.possibilities:
        pieces.append(f"A value that begins with - stands behind --: {name} ... -- {unknown_option.option_name}.")
    elif isinstance(command, CommandSpec) and type(problem) in (click.UsageError, click.MissingParameter):
        pieces.append(f"The command is {command.usage}.")
        names = [option.opts[0] for option in command.options if not (option.is_flag or option.count)]
        if type(problem) is click.UsageError and names:  # an extra argument may be the value of an option
            pieces.append(f"Options that take a value: {', '.join(names)}.")
    return InvalidRequest(" ".join((*pieces, f"Try: {name} --help")), kind="usage")
