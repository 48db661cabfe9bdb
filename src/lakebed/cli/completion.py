"""Completion in bash, zsh and fish: one function answers what may stand at the end of a line, the shells ask it.

Owns: `candidates` and the scripts. Invariants: a line that is asked about changes nothing and never fails: what cannot
be looked up is not offered, and the shell offers files then. Cost: starting, and for names in a lake the listing of
them.
"""

from __future__ import annotations

import os
import shlex
from collections.abc import Callable, Iterable, Sequence
from enum import StrEnum
from typing import Final

from lakebed.cli import args, grammar, homes, keys
from lakebed.cli.grammar import COMMON, LAKE_VARIABLE, Command, Group, Parameter
from lakebed.errors import LakebedError

__all__ = ["WORDS", "Shell", "candidates", "script_of"]

WORDS: Final = "--complete"
"""The hidden option by which a shell asks: ``lakebed --complete LINE``."""

_MEANING_CHARACTERS_MAX: Final = 80


class Shell(StrEnum):
    """Shells that can complete commands."""

    bash = "bash"
    zsh = "zsh"
    fish = "fish"


_SCRIPTS: Final = {
    Shell.bash: f"""\
_lakebed() {{
    local IFS=$'\\n' line="${{COMP_LINE:0:COMP_POINT}}" word
    COMPREPLY=($(lakebed {WORDS} "$line" 2>/dev/null | cut -f1))
    # Words end at colons here: what stands before the last one is not typed again.
    word="${{line##* }}"
    COMPREPLY=("${{COMPREPLY[@]#"${{word%"${{COMP_WORDS[COMP_CWORD]}}"}}"}}")
}}
complete -o default -F _lakebed lakebed
""",
    Shell.zsh: f"""\
#compdef lakebed
_lakebed() {{
    local one
    local -a found shown
    found=("${{(@f)$(lakebed {WORDS} "${{(j: :)${{(@q)words[1,CURRENT-1]}}}} $PREFIX" 2>/dev/null)}}")
    if [[ -z "$found" ]]; then
        _files
        return
    fi
    for one in $found; do
        shown+=("${{${{one%%$'\\t'*}}//:/\\\\:}}:${{one#*$'\\t'}}")
    done
    _describe lakebed shown
}}
compdef _lakebed lakebed
""",
    Shell.fish: f"""\
function __lakebed_complete
    set -l found (lakebed {WORDS} (commandline -cp) 2>/dev/null)
    if test (count $found) -eq 0
        __fish_complete_path (commandline -ct)
    else
        printf '%s\\n' $found
    end
end
complete -c lakebed -f -a '(__lakebed_complete)'
""",
}


def script_of(shell: Shell) -> str:
    """What a shell evaluates to complete lakebed's commands."""
    return _SCRIPTS[shell]


def candidates(root: Group, line: str) -> list[str]:
    """What may stand at the end of a command line: each a value, a tab and its meaning. None: a file may.

    Args:
        line: from the program's name up to the cursor.
    """
    try:
        words = shlex.split(line)
    except ValueError:  # a quote that is not closed yet
        words = line.split()
    current = "" if line[-1:].isspace() or len(words) < 2 else words.pop()
    found = _candidates(root, grammar.in_order(root, words[1:]), current)
    return [f"{name}\t{meaning[:_MEANING_CHARACTERS_MAX]}" for name, meaning in found if name.startswith(current)]


def _candidates(root: Group, words: Sequence[str], current: str) -> Iterable[tuple[str, str]]:
    names = [word for word in words if not word.startswith("-")]
    try:
        group, command, used, _ = grammar.find(root, names)
    except LakebedError:
        return []
    if command is not None:
        return _of_command(command, list(words[used:]), current)
    if current.startswith("-"):
        return _options(COMMON)
    named = [(name, one.summary) for name, one in group.commands.items()]
    return named + [(name, one.help) for name, one in group.groups.items()]


def _of_command(command: Command, words: list[str], current: str) -> Iterable[tuple[str, str]]:
    by_name = {name: one for one in (*command.options, *COMMON) for name in one.names}
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
        return _options((*command.options, *COMMON))
    at = min(len(texts), len(slots) - 1)
    if not slots or (at < len(texts) and not slots[at].is_list):
        return []
    return _values(slots[at], texts, kind=command.path[0])


def _options(parameters: Iterable[Parameter]) -> list[tuple[str, str]]:
    return [(name, one.spec.help) for one in parameters for name in one.names if name.startswith("--")]


def _values(one: Parameter, texts: Sequence[str], kind: str = "") -> Iterable[tuple[str, str]]:
    """The values that a parameter may have, as far as they can be known from what stands before it."""
    if one.choices:
        return [(choice, "") for choice in one.choices]
    wanted = one.metavar if one.is_argument else f"--{one.name.replace('_', '-')}"
    source = _SOURCES.get((kind, wanted)) or _SOURCES.get(("", wanted))
    if source is None or not texts:
        return []
    try:
        return [(name, "") for name in source(texts)]
    except (LakebedError, OSError, IndexError):  # there is nothing to offer
        return []


# ---- names in a lake, by what stands before them


def _stores(texts: Sequence[str]) -> list[str]:
    return [str(store).partition(":")[2] for store in args.open_lake(texts[0]).stores()]


def _tables(texts: Sequence[str]) -> list[str]:
    return args.open_lake(texts[0]).tables()


def _tags(texts: Sequence[str]) -> list[str]:
    return [tag.name for tag in args.open_table(texts[0], texts[1]).tags()]


def _branches(texts: Sequence[str]) -> list[str]:
    return [branch.name for branch in args.open_table(texts[0], texts[1]).branches()]


def _versions(texts: Sequence[str]) -> list[str]:
    return _tags(texts) + _branches(texts)


def _databases(texts: Sequence[str]) -> list[str]:
    return keys.names_of(texts[0])


def _checkpoints(texts: Sequence[str]) -> list[str]:
    return [one.name or one.id for one in keys.database(texts[0], texts[1], None).list_checkpoints()]


def _repositories(texts: Sequence[str]) -> list[str]:
    with homes.reading(texts[0], metadata=None) as home:
        return [one.name for one in home.list()]


def _repository_branches(texts: Sequence[str]) -> list[str]:
    with homes.reading(texts[0], metadata=None) as home:
        return [one.name for one in home.repository(texts[1]).branches()]


def _repository_tags(texts: Sequence[str]) -> list[str]:
    with homes.reading(texts[0], metadata=None) as home:
        return [one.name for one in home.repository(texts[1]).tags()]


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
