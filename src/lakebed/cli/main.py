"""The command line's entry point: all commands, and what happens when one fails.

Invariants: a user's mistake is one sentence on standard error and an exit code of `exits`, never a traceback; a reader
that goes away (``| head``) ends the command silently; ``lakebed --help`` loads neither Arrow nor Spark.
"""

from __future__ import annotations

import gc
import os
import sys
import traceback
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from importlib.abc import MetaPathFinder
from typing import Annotated, Any, Final

from typing_extensions import override

import lakebed
from lakebed import log
from lakebed.cli import (
    args,
    completion,
    databases,
    exits,
    grammar,
    help,
    keys,
    lakes,
    pipelines,
    repositories,
    rows,
    say,
    schemas,
    serving,
    tags,
    versions,
)
from lakebed.cli.args import Json
from lakebed.cli.grammar import Exit, Group, Parsed
from lakebed.clock import SystemClock
from lakebed.errors import InternalError, InvalidRequest, LakebedError, NotFound, Unavailable

__all__ = ["app", "main", "run"]

_CODES = "\n".join(f"  {code:>3}  {meaning}" for code, meaning in exits.MEANINGS.items())

app = Group(
    "",
    "Pin, fork, roll back and clean data on object storage.\n\n"
    "A command is lakebed STORE VERB LAKE NAME ...: the kind of store, what to do, the lake, the store's name. "
    f"{grammar.LAKE_VARIABLE} in the environment names the lake of commands that leave it out. "
    f"Exit codes:\n\n{_CODES}",
)
lakes.register(app)
table = Group("table", "Tables: make, read, write, tag, travel, roll back, expire.")
for module in (schemas, rows, tags, versions):
    module.register(table)
for group in (table, databases.app, repositories.app, serving.keys, pipelines.app):
    app.groups[group.name] = group
serving.register(app)


@app.command()
def version(json: Json = False) -> None:
    """Print lakebed's version."""
    say.result(json, {"version": lakebed.__version__}, f"lakebed {lakebed.__version__}")


@app.command("completion")
def print_completion(
    shell: Annotated[completion.Shell, grammar.argument("SHELL", help="bash, zsh or fish.")], json: Json = False
) -> None:
    """Print what a shell needs to complete commands, options, stores and tags: `eval "$(lakebed completion bash)"`."""
    script = completion.script_of(shell)
    if json:
        say.document({"shell": shell.value, "script": script})
    else:
        say.lines([script.rstrip("\n")])


class _WithoutPandas(MetaPathFinder):
    """Pandas is not there.

    Arrow looks for it to make its first array of Python's objects, and where it is installed that is half a second of
    every command, and 40 MB of a server. Only pipelines make data frames.
    """

    @override
    def find_spec(self, fullname: str, path: Any, target: Any = None) -> None:
        if fullname == "pandas":
            raise ModuleNotFoundError("No command of this group makes a data frame.", name=fullname)


_ALLOCATIONS: Final = 20_000
"""New objects between two looks for garbage in cycles. With Python's 700 they are a tenth of the time of starting."""


def main() -> None:
    """Run the command in ``sys.argv`` and exit with its code."""
    arguments = sys.argv[1:]
    gc.set_threshold(_ALLOCATIONS)
    if "pipeline" not in arguments[:1]:
        sys.meta_path.insert(0, _WithoutPandas())
    sys.exit(run(arguments))


def run(arguments: list[str]) -> int:
    """Run one command and return its exit code."""
    json = "--json" in arguments
    try:
        code = _run(arguments, json=json)
        sys.stdout.flush()
    except Exit as done:
        return done.code
    except BrokenPipeError:
        _silence_stdout()
        return exits.OK
    except LakebedError as problem:
        say.error(problem, json=json)
        return exits.exit_code(problem)
    except KeyboardInterrupt:
        sys.stderr.write("\nlakebed: interrupted.\n")
        return exits.INTERRUPTED
    except OSError as problem:  # a file that cannot be opened, a full disk
        where = f" ({problem.filename})" if problem.filename else ""
        say.error(Unavailable(f"{problem.strerror or problem}{where}."), json=json)
        return exits.UNAVAILABLE
    except Exception as bug:  # told as such, with everything that a report of it needs
        if json:
            say.error(InternalError(f"{type(bug).__name__}: {bug}"), json=True)
        else:
            traceback.print_exc()
            sys.stderr.write(f"lakebed: this is a bug in lakebed {lakebed.__version__}; please report it.\n")
        return exits.BUG
    return code


_VERSION: Final = ("--version", "-V")
_CLOCK: Final = SystemClock()
_LOG: Final = log.logger("cli")


def _run(arguments: list[str], *, json: bool) -> int:
    if arguments[:1] == [completion.WORDS]:
        say.lines(completion.candidates(app, " ".join(arguments[1:])))
        return exits.OK
    words = grammar.in_order(app, arguments)
    if words[:1] and words[0].startswith("-"):
        if words[0] in _VERSION:
            version(json)
            return exits.OK
        if not {"--help", "-h"}.isdisjoint(words):
            sys.stdout.write(help.page_of_group(app))
            return exits.OK
        raise grammar.usage_error(f"{words[0]} stands before no command.", "lakebed")
    group, command, used, old = grammar.find(app, _names(words))
    rest = words[used:]
    if command is None:
        asked = not {"--help", "-h"}.isdisjoint(rest)
        (sys.stdout if asked else sys.stderr).write(help.page_of_group(group))
        return exits.OK if asked else exits.USAGE
    parsed = grammar.parse(command, rest, old=old)
    if parsed is None:
        sys.stdout.write(help.page_of_command(command))
        return exits.OK
    _run_parsed(parsed, json=json)
    return exits.OK


def _names(words: list[str]) -> list[str]:
    """The words before the first option."""
    end = next((position for position, word in enumerate(words) if word.startswith("-")), len(words))
    return words[:end]


def _run_parsed(parsed: Parsed, *, json: bool) -> None:
    """Run a command, and say which of its spellings are old."""
    args.choose_storage(parsed.common["storage_option"])
    verbosity = len(parsed.common["verbose"])
    with _logged(detailed=verbosity > 1, json=json) if verbosity else nullcontext():
        if not json:
            say.notes(parsed.notes, json=False)
        started_s = _CLOCK.monotonic_s()
        try:
            parsed.run()
        except LakebedError as problem:
            for hint in _hints(problem, parsed):
                problem.add_note(hint)
            raise
        finally:
            seconds = _CLOCK.monotonic_s() - started_s
            _LOG.info("ran", command=parsed.command.name, ms=round(1000 * seconds))
    if json:
        say.notes(parsed.notes, json=True)


@contextmanager
def _logged(*, detailed: bool, json: bool) -> Iterator[None]:
    """Log to standard error while the block runs."""
    handler = log.write_to(sys.stderr, detailed=detailed, json=json)
    try:
        yield
    finally:
        log.remove(handler)


def _hints(problem: LakebedError, parsed: Parsed) -> Iterator[str]:
    """What else helps with an error: names that are there, and where the lake's name came from."""
    lake, name = parsed.values.get("lake"), parsed.values.get("name")
    if problem.kind == "database_not_found" and lake and name:
        yield keys.hint_of_missing(lake, name)
    if parsed.lake_from is not None and isinstance(problem, NotFound | InvalidRequest):
        yield f"The lake is {grammar.LAKE_VARIABLE}: {parsed.lake_from}."


def _silence_stdout() -> None:
    """Keep the interpreter from writing to the closed pipe once more when it exits."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
