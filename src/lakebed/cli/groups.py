"""Groups of commands, loaded when they are needed.

Invariants: a module of commands is imported when one of its commands is called, or when the help of its group is asked
for; the help of the root imports none. Does not know: which groups there are (`commands`).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property

from lakebed.cli.command import Command, CommandSpec
from lakebed.cli.loading import load


@dataclass
class Group:
    """Commands below one word, or below none.

    Attributes:
        name: the word; empty for the root.
        help: what the commands are about, in a line.
        modules: the modules that declare the commands, with the words of each in the order of the help page.
        summaries: what commands do, by word, for help that loads no module.
        groups: by name; only the root has some.
    """

    name: str
    help: str
    modules: Mapping[str, tuple[str, ...]]
    summaries: Mapping[str, str] = field(default_factory=dict)
    groups: dict[str, Group] = field(default_factory=dict)

    @cached_property
    def words(self) -> dict[str, str]:
        """The words of the commands, each with its module."""
        return {word: module for module, words in self.modules.items() for word in words}

    def command(self, word: str) -> CommandSpec:
        """The command of this word."""
        return next(spec for spec in self._commands_of(self.words[word]) if spec.path[-1] == word)

    def former(self, words: str) -> CommandSpec | None:
        """The command that older releases called so; None: no command."""
        first = words.split(" ")[0]
        if first in self.words and first == words:
            return None
        modules = [self.words[first]] if first in self.words else self.modules
        specs = (spec for module in modules for spec in self._commands_of(module, retired=True))
        return next((spec for spec in specs if words in spec.command.formerly), None)

    def old_words(self) -> list[str]:
        """Every spelling of older releases."""
        every = (spec for module in self.modules for spec in self._commands_of(module, retired=True))
        return [old for spec in every for old in spec.command.formerly]

    def list_commands(self) -> list[tuple[str, str]]:
        """The commands' words and summaries, in the order of the help page."""
        return [(word, self.summaries.get(word) or self.command(word).summary) for word in self.words]

    def every(self) -> Iterator[CommandSpec]:
        """All commands, those of its groups included."""
        yield from map(self.command, self.words)
        for group in self.groups.values():
            yield from group.every()

    def _commands_of(self, module: str, *, retired: bool = False) -> Iterator[CommandSpec]:
        """The commands that a module declares; `retired`: also those with a successor."""
        for member in vars(load(f"lakebed.cli.{module}")).values():
            if not isinstance(member, type) or not issubclass(member, Command) or not member.word:
                continue
            if member.__module__.endswith(f".{module}") and (retired or not member.successor):
                yield CommandSpec((*filter(None, (self.name,)), member.word), member)
