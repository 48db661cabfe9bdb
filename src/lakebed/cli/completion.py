"""What may come at the end of a command line, for the completion of shells.

Invariants: completing changes nothing and never fails: a name that cannot be looked up is not offered, and the shell
offers files instead. Cost: the start, and one listing for names in a lake.
"""

from __future__ import annotations

import os
import shlex
from collections.abc import Callable, Iterable, Sequence
from typing import Final

from lakebed.cli import parser
from lakebed.cli.command import COMMON, CommandSpec
from lakebed.cli.context import LakeCommand, TableCommand
from lakebed.cli.grammar import LAKE_VARIABLE, Parameter
from lakebed.cli.groups import Group
from lakebed.cli.loading import load
from lakebed.errors import LakebedError

_MEANING_CHARACTERS_MAX: Final = 80


def candidates(root: Group, line: str) -> list[str]:
    """What may come at the end of a command line: each a value, a tab and its meaning. Empty: a file.

    Args:
        line: from the program's name up to the cursor.
    """
    try:
        words = shlex.split(line)
    except ValueError:  # a quote that is not closed yet
        words = line.split()
    current = "" if line[-1:].isspace() or len(words) < 2 else words.pop()
    choices = _candidates(root, parser.in_order(root, words[1:]), current)
    return [f"{name}\t{meaning[:_MEANING_CHARACTERS_MAX]}" for name, meaning in choices if name.startswith(current)]


def _candidates(root: Group, words: Sequence[str], current: str) -> Iterable[tuple[str, str]]:
    names = [word for word in words if not word.startswith("-")]
    try:
        group, command, used, _ = parser.find(root, names)
    except LakebedError:
        return []
    if command is not None:
        return _of_command(command, list(words[used:]), current)
    if current.startswith("-"):
        return _options(COMMON)
    return [*group.list_commands(), *((name, inner.help) for name, inner in group.groups.items())]


def _of_command(command: CommandSpec, words: list[str], current: str) -> Iterable[tuple[str, str]]:
    by_name = {name: option for option in command.options for name in option.names}
    texts: list[str] = []
    waiting: Parameter | None = None
    for word in words:
        if waiting is not None:
            waiting = None
        elif word in by_name:
            waiting = None if by_name[word].is_flag else by_name[word]
        elif not word.startswith("-"):
            texts.append(word)
    lake_left_out = bool(os.environ.get(LAKE_VARIABLE)) and not ("/" in texts[0] if texts else "/" in current)
    slots = command.arguments
    if lake_left_out and slots and slots[0].metavar == "LAKE":
        texts.insert(0, os.environ[LAKE_VARIABLE])
    if waiting is not None:
        return _values(waiting, texts)
    if current.startswith("-"):
        return _options(command.options)
    at = min(len(texts), len(slots) - 1)
    if not slots or (at < len(texts) and not slots[at].is_list):
        return []
    return _values(slots[at], texts, kind=command.path[0])


def _options(parameters: Iterable[Parameter]) -> list[tuple[str, str]]:
    return [
        (name, parameter.spec.help) for parameter in parameters for name in parameter.names if name.startswith("--")
    ]


def _values(parameter: Parameter, texts: Sequence[str], kind: str = "") -> Iterable[tuple[str, str]]:
    """The values that a parameter may have, as far as the arguments before it determine them."""
    if parameter.choices:
        return [(choice, "") for choice in parameter.choices]
    wanted = parameter.metavar if parameter.is_argument else f"--{parameter.name.replace('_', '-')}"
    source = _SOURCES.get((kind, wanted)) or _SOURCES.get(("", wanted))
    if source is None or not texts:
        return []
    try:
        return [(name, "") for name in source(texts)]
    except (LakebedError, OSError, IndexError):  # there is nothing to offer
        return []


def _lake(texts: Sequence[str]) -> LakeCommand:
    return LakeCommand({"lake": texts[0]})


def _table(texts: Sequence[str]) -> TableCommand:
    return TableCommand({"lake": texts[0], "table": texts[1]})


def _stores(texts: Sequence[str]) -> list[str]:
    return [str(store).partition(":")[2] for store in _lake(texts).open_lake().stores()]


def _tables(texts: Sequence[str]) -> list[str]:
    return _lake(texts).open_lake().tables()


def _tags(texts: Sequence[str]) -> list[str]:
    return [tag.name for tag in _table(texts).open_table().tags()]


def _branches(texts: Sequence[str]) -> list[str]:
    return [branch.name for branch in _table(texts).open_table().branches()]


def _versions(texts: Sequence[str]) -> list[str]:
    return _tags(texts) + _branches(texts)


def _databases(texts: Sequence[str]) -> list[str]:
    names: list[str] = load("lakebed.cli.kv_context").names_of(texts[0], None)
    return names


def _checkpoints(texts: Sequence[str]) -> list[str]:
    database = load("lakebed.cli.kv_context").DatabaseCommand({"lake": texts[0], "name": texts[1]}).database()
    return [checkpoint.name or checkpoint.id for checkpoint in database.list_checkpoints()]


def _repositories(texts: Sequence[str]) -> list[str]:
    with load("lakebed.cli.repo_context").RepositoriesCommand({"lake": texts[0]}).reading_all() as repositories:
        return [repository.name for repository in repositories.list()]


def _repository_branches(texts: Sequence[str]) -> list[str]:
    with load("lakebed.cli.repo_context").RepositoryCommand(_repository(texts)).reading() as repository:
        return [branch.name for branch in repository.branches()]


def _repository_tags(texts: Sequence[str]) -> list[str]:
    with load("lakebed.cli.repo_context").RepositoryCommand(_repository(texts)).reading() as repository:
        return [tag.name for tag in repository.tags()]


def _repository(texts: Sequence[str]) -> dict[str, str]:
    return {"lake": texts[0], "repository": texts[1]}


def _references(texts: Sequence[str]) -> list[str]:
    return _repository_branches(texts) + _repository_tags(texts)


_SOURCES: Final[dict[tuple[str, str], Callable[[Sequence[str]], list[str]]]] = {
    ("", "STORE"): _stores,
    ("", "TABLE"): _tables,
    ("", "REPOSITORY"): _repositories,
    ("", "--tag"): _tags,
    ("", "--branch"): _branches,
    ("", "--version"): _versions,
    ("", "--checkpoint"): _checkpoints,
    ("table", "TAG"): _tags,
    ("table", "BRANCH"): _branches,
    ("table", "FROM"): _versions,
    ("table", "TO"): _versions,
    ("kv", "NAME"): _databases,
    ("kv", "CHECKPOINT"): _checkpoints,
    ("repo", "BRANCH"): _repository_branches,
    ("repo", "TAG"): _repository_tags,
    ("repo", "REF"): _references,
    ("repo", "LEFT"): _references,
    ("repo", "RIGHT"): _references,
    ("repo", "SOURCE"): _references,
    ("repo", "ONTO"): _references,
}
