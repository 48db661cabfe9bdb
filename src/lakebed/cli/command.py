"""The common parts of all commands: the declaration as a class, the common options, results and questions.

A command is a subclass of `Command` with a ``name``. Its attributes declare its arguments and options (`grammar`), its
docstring is its help page, and `run` does the work::

    class Tag(TableCommand, name="tag"):
        name: TagName
        lifetime: Lifetime = None

        def run(self) -> None: ...

A subclass without a name declares what several commands share. Does not know: the list of commands (`commands`).
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Annotated, Any, ClassVar, Final

import lakebed
from lakebed.cli import output
from lakebed.cli.grammar import OPTIONS_VARIABLE, option, options_of, pairs
from lakebed.errors import LakebedError, NotFound

_SECRET: Final = re.compile(r"secret|token|sas|password|(account|access|master|shared|customer)_key\Z", re.IGNORECASE)
"""Names of settings whose values are secrets."""


class Command:
    """One command, with the values of its parameters as attributes.

    Attributes:
        storage_options: settings of the object store, from the environment and from the options, which take precedence;
            None: there are no settings.
    """

    word: ClassVar[str] = ""

    json: Annotated[
        bool, option("--json", help="Print JSON with stable keys. Errors are JSON too, on standard error.")
    ] = False
    storage_option: Annotated[
        list[str] | None,
        option(
            "--storage-option",
            metavar="KEY=VALUE",
            help="A setting of the object store, such as aws_endpoint=... Put secrets into environment variables: the "
            "store's own, or LAKEBED_STORAGE_OPTIONS, a JSON object.",
        ),
    ] = None
    verbose: Annotated[
        int,
        option(
            "--verbose",
            "-v",
            count=True,
            help="Log what is done to standard error. Given twice: also every request to the store.",
        ),
    ] = 0

    def __init_subclass__(cls, *, name: str = "") -> None:
        """Declare a command by its word, such as ``drop-tag``. A class without one only declares shared parameters."""
        cls.word = name

    def __init__(self, values: Mapping[str, Any]) -> None:
        """Take parsed values. A parameter without one keeps its default. Raises `InvalidRequest`."""
        vars(self).update(values)
        storage_options = pairs(self.storage_option, like="aws_region=eu-central-1")
        self.storage_options = options_of(os.environ.get(OPTIONS_VARIABLE)) | storage_options or None

    def warnings(self) -> Iterator[str]:
        """Yield warnings about the arguments: other users can read a secret on a command line."""
        for text in self.storage_option or ():
            key = text.partition("=")[0].strip()
            if _SECRET.search(key):
                yield (
                    f"Every user of this machine can list --storage-option {key} with its value: set it in the "
                    f"store's own environment variable, or in {OPTIONS_VARIABLE}."
                )

    def run(self) -> None:
        """Execute the command."""
        raise NotImplementedError

    def hints(self, problem: LakebedError) -> Iterator[str]:
        """Yield sentences that help with an error, such as similar names that exist."""
        yield from ()

    def refuse_folder_of_others(self, url: str) -> None:
        """Refuse a folder with other contents than a lake, before a store is created in it. Raises `InvalidRequest`."""
        with suppress(NotFound):
            lakebed.open(url, create=False, storage_options=self.storage_options)

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
    """A command that asks for consent before it changes something."""

    yes: Annotated[bool, option("--yes", "-y", help="Do not ask, even at a terminal.")] = False

    def ask(self, question: str | Callable[[], str]) -> None:
        """Ask the user, and continue only with consent. Raises `Exit`."""
        output.ask(question, yes=self.yes, json=self.json)


class Deletion(Confirmed):
    """A command that deletes something. It has a dry run, and asks for consent before it deletes."""

    dry_run: Annotated[bool, option("--dry-run", help="Report what would be deleted, and why; delete nothing.")] = False

    def ask(self, question: str | Callable[[], str]) -> None:
        """Ask the user, and continue only with consent. A dry run does not ask. Raises `Exit`."""
        if not self.dry_run:
            super().ask(question)
