"""The command line's entry point: all commands, and what happens when one fails.

Invariants: a user's mistake is one sentence on standard error and an exit code of `exits`, never a traceback; a reader
that goes away (``| head``) ends the command silently; ``lakebed --help`` loads neither Arrow nor Spark.
"""

from __future__ import annotations

import os
import sys
import traceback
from importlib.abc import MetaPathFinder
from typing import Any, Final

import typer
from typing_extensions import override

import lakebed
from lakebed.cli import (
    args,
    databases,
    exits,
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
from lakebed.errors import InternalError, LakebedError, Unavailable

__all__ = ["app", "main"]

_CODES = "\n".join(f"  {code:>3}  {meaning}" for code, meaning in exits.MEANINGS.items())

app = args.new_app(
    "Pin, fork, roll back and clean data on object storage.\n\nEvery command takes the lake first, then the table. "
    f"Exit codes:\n\n\b\n{_CODES}"
)
lakes.register(app)


@app.callback()
def choose(storage_option: args.StorageOptions = None) -> None:
    """Remember how stores are reached."""
    args.choose_storage(storage_option)


table = args.new_app("Tables: make, read, write, tag, travel, roll back, expire.")
for room in (schemas, rows, tags, versions):
    room.register(table)
app.add_typer(table, name="table")
app.add_typer(databases.app, name="kv")
app.add_typer(repositories.app, name="repo")
serving.register(app)
app.add_typer(pipelines.app, name="pipeline")


@app.command("version")
def version(json: args.Json = False) -> None:
    """Print lakebed's version."""
    say.result(json, {"version": lakebed.__version__}, f"lakebed {lakebed.__version__}")


# The command line's own errors; typer exports only the last of this family.
_UsageError: Any = typer.BadParameter.__mro__[1]
_ClickError: Any = typer.BadParameter.__mro__[2]


_WITHOUT_PANDAS: Final = {"repo", "key", "kv", "serve"}
"""Groups of commands in whose process nobody makes a data frame."""


class _WithoutPandas(MetaPathFinder):
    """Pandas is not there.

    Arrow looks for it to make its first array of Python's objects, and where it is installed that is half a second of
    every command, and 40 MB of a server.
    """

    @override
    def find_spec(self, fullname: str, path: Any, target: Any = None) -> None:
        if fullname == "pandas":
            raise ModuleNotFoundError("No command of this group makes a data frame.", name=fullname)


def main() -> None:
    """Run the command in ``sys.argv`` and exit with its code."""
    arguments = sys.argv[1:]
    if not _WITHOUT_PANDAS.isdisjoint(arguments[:1]):
        sys.meta_path.insert(0, _WithoutPandas())
    sys.exit(run(arguments))


def run(arguments: list[str]) -> int:
    """Run one command and return its exit code."""
    json = "--json" in arguments
    try:
        code = typer.main.get_command(app).main(args=arguments, prog_name="lakebed", standalone_mode=False)
        sys.stdout.flush()
        return code if isinstance(code, int) else exits.OK
    except (BrokenPipeError, SystemExit):  # typer exits by itself for a closed pipe, and for nothing else
        _silence_stdout()
        return exits.OK
    except LakebedError as problem:
        say.error(problem, json=json)
        return exits.exit_code(problem)
    except _UsageError as wrong:
        return _usage(wrong, json=json)
    except _ClickError as wrong:
        return _usage(wrong, json=json)
    except (KeyboardInterrupt, typer.Abort):
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


_SENTENCES: Final = {
    "Value error, ": "",
    "Input should be a valid integer, unable to parse string as an integer": "it is a whole number",
    "Input should be a valid number, unable to parse string as a number": "it is a number",
    "Input should be ": "it has to be ",
}
"""What the library says of a value, and the same for people."""


def _usage(wrong: Any, *, json: bool) -> int:
    """One sentence about a command that cannot be understood, and where its help is."""
    context = getattr(wrong, "ctx", None)
    message = wrong.format_message().strip()
    for theirs, ours in _SENTENCES.items():
        message = message.replace(theirs, ours)
    if not message:  # a group without a command has printed its help
        return exits.USAGE
    if message.startswith("Usage:"):  # newer releases of the library hand the help over instead
        sys.stderr.write(f"{message}\n")
        return exits.USAGE
    hint = "" if context is None else _hint(context, option=str(getattr(wrong, "option_name", "")))
    problem = LakebedError(f"{message if message.endswith(('.', '?')) else message + '.'}{hint}", kind="usage")
    say.error(problem, json=json)
    return exits.USAGE


def _hint(context: Any, *, option: str) -> str:
    """What to try; `option` is the one that the command does not know, or empty."""
    command: str = context.command_path
    if option == "--path" and command.startswith("lakebed kv "):
        return f" It stands before the command: lakebed kv --path ... {context.info_name} ..."
    if option == "--storage-option":
        return f" It stands before all others: lakebed --storage-option ... {command.removeprefix('lakebed ')} ..."
    if option == "--json" and command == "lakebed":
        return " It stands behind the command: lakebed ... --json"
    if option[1:2].isdecimal():
        return f" A value that begins with - stands behind --: {command} ... -- {option}"
    return f" Try: {command} --help"


def _silence_stdout() -> None:
    """Keep the interpreter from writing to the closed pipe once more when it exits."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
