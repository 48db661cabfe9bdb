"""The completion of command lines: what may come next, and the scripts with which shells ask for it.

Invariants: completion changes nothing and never fails. A name that cannot be looked up is not offered, and the shell
offers files instead. Cost: the start of the process, and one listing for names in a lake.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final

import click
from click.shell_completion import (
    BashComplete,
    CompletionItem,
    FishComplete,
    ShellComplete,
    ZshComplete,
    split_arg_string,
)

from lakebed.cli.context import LakeCommand, TableCommand
from lakebed.cli.loading import load
from lakebed.cli.parser import CommandSpec, Group
from lakebed.errors import LakebedError

VARIABLE: Final = "_LAKEBED_COMPLETE"
"""The environment variable with which a shell asks for completions."""

_Given = Mapping[str, Any]
"""The values of the arguments on the line, by attribute."""


class _Bash(BashComplete):
    """Bash. It splits words at colons, so ``s3://bucket`` is three words. So it passes the whole line, parsed here."""

    source_template = """\
%(complete_func)s() {
    local IFS=$'\\n' line="${COMP_LINE:0:COMP_POINT}" word
    COMPREPLY=($(COMP_WORDS="$line" %(complete_var)s=bash_complete %(prog_name)s 2>/dev/null))
    # The text before the last colon is not inserted again.
    word="${line##* }"
    COMPREPLY=("${COMPREPLY[@]#"${word%%"${COMP_WORDS[COMP_CWORD]}"}"}")
}
complete -o default -F %(complete_func)s %(prog_name)s
"""

    def source(self) -> str:
        return ShellComplete.source(self)  # without running an installed bash for its version

    def get_completion_args(self) -> tuple[list[str], str]:
        """Return the words before the cursor, and the word that ends there."""
        line = os.environ["COMP_WORDS"]
        words = split_arg_string(line)[1:]
        return (words, "") if line[-1:].isspace() or not words else (words[:-1], words[-1])

    def format_completion(self, item: CompletionItem) -> str:
        """Return a line of the answer. An empty line lets bash offer files."""
        return item.value if item.type == "plain" else ""


_SHELLS: Final[dict[str, type[ShellComplete]]] = {"bash": _Bash, "zsh": ZshComplete, "fish": FishComplete}


def script(root: Group, shell: str) -> str:
    """Return the script that a shell evaluates to complete lakebed's commands."""
    return _SHELLS[shell](root, {}, "lakebed", VARIABLE).source()


def answer(root: Group, request: str) -> str:
    """Return the lines for a shell's script. `request` is ``bash_complete``; the rest is in the environment."""
    shell = request.partition("_")[0]
    return f"{_SHELLS[shell](root, {}, 'lakebed', VARIABLE).complete()}\n" if shell in _SHELLS else ""


def items_of(entries: Iterable[tuple[str, str]], incomplete: str) -> list[CompletionItem]:
    """Return the entries with a prefix, each with its meaning."""
    return [CompletionItem(name, help=meaning) for name, meaning in entries if name.startswith(incomplete)]


def items(parameter: click.Parameter, context: click.Context, incomplete: str) -> list[CompletionItem]:
    """Return the possible values of a parameter, as far as the line before it determines them; otherwise files."""
    if isinstance(parameter.type, click.Choice):
        return parameter.type.shell_complete(context, parameter, incomplete)
    assert isinstance(context.command, CommandSpec)
    is_argument = isinstance(parameter, click.Argument)
    parameter_name = parameter.human_readable_name if is_argument else parameter.opts[0]
    source = (is_argument and _SOURCES.get((context.command.path[0], parameter_name))) or _SOURCES.get(
        ("", parameter_name)
    )
    present = {name: value for name, value in context.params.items() if value is not None}
    try:
        names = source(present) if source else []
    except (LakebedError, OSError, KeyError):  # nothing can be offered
        names = []
    return items_of(((name, "") for name in names), incomplete) or [CompletionItem(incomplete, type="file")]


def _lake(given: _Given) -> LakeCommand:
    return LakeCommand({"lake": given["lake"]})


def _table(given: _Given) -> TableCommand:
    return TableCommand({"lake": given["lake"], "table": given["table"]})


def _stores(given: _Given) -> list[str]:
    return [str(store).partition(":")[2] for store in _lake(given).open_lake().stores()]


def _tables(given: _Given) -> list[str]:
    return _lake(given).open_lake().tables()


def _tags(given: _Given) -> list[str]:
    return [tag.name for tag in _table(given).open_table().tags()]


def _branches(given: _Given) -> list[str]:
    return [branch.name for branch in _table(given).open_table().branches()]


def _versions(given: _Given) -> list[str]:
    return _tags(given) + _branches(given)


def _databases(given: _Given) -> list[str]:
    names: list[str] = load("lakebed.cli.kv_context").names_of(given["lake"], None)
    return names


def _checkpoints(given: _Given) -> list[str]:
    database = load("lakebed.cli.kv_context").DatabaseCommand({"lake": given["lake"], "name": given["name"]}).database()
    return [checkpoint.name or checkpoint.id for checkpoint in database.list_checkpoints()]


def _repositories(given: _Given) -> list[str]:
    with load("lakebed.cli.repo_context").RepositoriesCommand({"lake": given["lake"]}).reading_all() as repositories:
        return [repository.name for repository in repositories.list()]


def _repository_branches(given: _Given) -> list[str]:
    with load("lakebed.cli.repo_context").RepositoryCommand(_repository(given)).reading() as repository:
        return [branch.name for branch in repository.branches()]


def _repository_tags(given: _Given) -> list[str]:
    with load("lakebed.cli.repo_context").RepositoryCommand(_repository(given)).reading() as repository:
        return [tag.name for tag in repository.tags()]


def _repository(given: _Given) -> dict[str, str]:
    return {"lake": given["lake"], "repository": given["repository"]}


def _references(given: _Given) -> list[str]:
    return _repository_branches(given) + _repository_tags(given)


_SOURCES: Final[dict[tuple[str, str], Callable[[_Given], list[str]]]] = {
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
