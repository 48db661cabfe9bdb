"""What every command has: its declaration as a class, the common options, results and questions.

A command is a subclass of `Command` with a ``name``; its attributes declare what it takes (`grammar`), its docstring
is its help page, `run` does the work::

    class Tag(TableCommand, name="tag", formerly=["create-tag"]):
        name: TagName
        lifetime: Lifetime = None

        def run(self) -> None: ...

A subclass without a name declares what several commands share. Does not know: which commands there are (`commands`).
"""

from __future__ import annotations

import os
import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Annotated, Any, ClassVar, Final

from lakebed.cli import output
from lakebed.cli.grammar import OPTIONS_VARIABLE, Parameter, option, options_of, pairs, parameters_of
from lakebed.errors import LakebedError

_SECRET: Final = re.compile(r"secret|token|sas|password|(account|access|master|shared|customer)_key\Z", re.IGNORECASE)
"""Names of settings whose values are secrets."""


class Command:
    """One command, with the values of its parameters as attributes.

    Attributes:
        storage_options: settings of the object store, of the environment and of the options, which win; None without
            any.
    """

    word: ClassVar[str] = ""
    formerly: ClassVar[tuple[str, ...]] = ()
    successor: ClassVar[str] = ""

    json: Annotated[bool, option("--json", help="Print JSON with stable keys; errors too, on standard error.")] = False
    storage_option: Annotated[
        list[str] | None,
        option(
            "--storage-option",
            metavar="KEY=VALUE",
            help="A setting of the object store, such as aws_endpoint=...; secrets belong into environment variables, "
            "such as the store's own or LAKEBED_STORAGE_OPTIONS, a JSON object.",
        ),
    ] = None
    verbose: Annotated[
        list[bool] | None,
        option("--verbose", "-v", help="Log what is done to standard error; twice: every request to the store too."),
    ] = None

    def __init_subclass__(cls, *, name: str = "", formerly: Sequence[str] = (), successor: str = "") -> None:
        """Declare a command.

        Args:
            name: its word, ``drop-tag``; without one the class only declares parameters for others.
            formerly: spellings of older releases, ``branch list``.
            successor: what to write instead of a retired command, which help pages do not list.
        """
        cls.word, cls.formerly, cls.successor = name, tuple(formerly), successor

    def __init__(self, values: Mapping[str, Any]) -> None:
        """Take parsed values; a parameter without one keeps its default. Raises `InvalidRequest`."""
        vars(self).update(values)
        given = pairs(self.storage_option, like="aws_region=eu-central-1")
        self.storage_options = options_of(os.environ.get(OPTIONS_VARIABLE)) | given or None

    def warnings(self) -> Iterator[str]:
        """Sentences about what was given: a secret on a command line can be read by others."""
        for text in self.storage_option or ():
            key = text.partition("=")[0].strip()
            if _SECRET.search(key):
                yield (
                    f"Every user of this machine can list --storage-option {key} with its value: set it in the "
                    f"store's own environment variable, or in {OPTIONS_VARIABLE}."
                )

    def run(self) -> None:
        """Do what the command is for."""
        raise NotImplementedError

    def hints(self, problem: LakebedError) -> Iterator[str]:
        """Sentences that help with an error, such as similar names that exist."""
        yield from ()

    def result(self, facts: Any, text: str) -> None:
        """Print the facts as JSON if JSON was asked for, otherwise the sentence."""
        output.result(self.json, facts, text)

    def grid(
        self,
        facts: Iterable[Any],
        columns: Sequence[str],
        rows: Iterable[Sequence[str]],
        *,
        right: Collection[str] = (),
        less: Sequence[str] = (),
        sentences: Collection[str] = (),
        empty: str,
    ) -> None:
        """Print the facts as JSON if JSON was asked for, otherwise a table; the other arguments as `output.grid`."""
        if self.json:
            output.document(list(facts))
        else:
            output.grid(columns, rows, right=right, less=less, sentences=sentences, empty=empty)


class Confirmed(Command):
    """A command that asks before it changes something."""

    yes: Annotated[bool, option("--yes", "-y", help="Do not ask, even at a terminal.")] = False

    def ask(self, question: str) -> None:
        """Go on only if the user agrees. Raises `Exit`."""
        output.ask(question, yes=self.yes, json=self.json)


class Deletion(Confirmed):
    """A command that deletes something: it can be tried dry, and asks."""

    dry_run: Annotated[bool, option("--dry-run", help="Only say what would be deleted, and why.")] = False

    def ask(self, question: str) -> None:
        """Go on only if the user agrees; a dry run does not ask. Raises `Exit`."""
        if not self.dry_run:
            super().ask(question)


COMMON: Final = tuple(parameter for parameter in parameters_of(Command) if parameter.name != "json")
"""Options that may stand before a command too."""


@dataclass(frozen=True)
class CommandSpec:
    """A command at its place.

    Attributes:
        path: its words, ``("table", "tag")``.
    """

    path: tuple[str, ...]
    command: type[Command]

    @property
    def name(self) -> str:
        """``lakebed table tag``."""
        return " ".join(("lakebed", *self.path))

    @property
    def help(self) -> str:
        """What it does: its paragraphs, each in one line."""
        paragraphs = (self.command.__doc__ or "").split("\n\n")
        return "\n\n".join(" ".join(paragraph.split()) for paragraph in paragraphs)

    @property
    def summary(self) -> str:
        """What it does, in a sentence."""
        return self.help.partition("\n\n")[0]

    @cached_property
    def parameters(self) -> tuple[Parameter, ...]:
        """Its arguments and options, the common ones included."""
        return parameters_of(self.command)

    @property
    def arguments(self) -> list[Parameter]:
        """Its positional arguments, in order."""
        return [parameter for parameter in self.parameters if parameter.is_argument]

    @property
    def options(self) -> list[Parameter]:
        """Its options, in order."""
        return [parameter for parameter in self.parameters if not parameter.is_argument]

    @property
    def usage(self) -> str:
        """``LAKE TABLE [TAG] --where WHERE``: required and optional arguments, and required options."""
        pieces = [parameter.usage for parameter in self.arguments]
        pieces += [f"{parameter.names[0]} {parameter.metavar}" for parameter in self.options if parameter.is_required]
        return " ".join(pieces)
