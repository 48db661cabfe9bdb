"""The command line as a whole: help, exit codes, errors, start-up."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import typer

import lakebed
from lakebed import errors
from lakebed.cli import exits
from lakebed.cli.main import app

DELETING = {
    "clean",
    "drop",
    "delete-tag",
    "expire-tags",
    "rollback",
    "expire",
    "remove-orphan-files",
    "delete",
    "delete-branch",
}


def commands(command: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Any]]:
    """Every command below a group, with its words."""
    inner = getattr(command, "commands", None)
    if inner is None:
        yield path, command
    else:
        for name, child in inner.items():
            yield from commands(child, (*path, name))


EVERY = dict(commands(typer.main.get_command(app)))


@pytest.mark.parametrize("words", [(), ("table",), ("pipeline",), *EVERY], ids=" ".join)
def test_help_says_what_a_command_does(cli: Callable[..., Any], words: tuple[str, ...]) -> None:
    """Every command and group explains itself and succeeds at it."""
    answer = cli(*words, "--help")
    assert answer.code == exits.OK
    assert answer.out.startswith("Usage: lakebed")
    assert len(answer.out.splitlines()) > 4


@pytest.mark.parametrize("words", EVERY, ids=" ".join)
def test_every_command_speaks_json(words: tuple[str, ...]) -> None:
    """`--json` is everywhere."""
    assert "--json" in {name for parameter in EVERY[words].params for name in parameter.opts}


@pytest.mark.parametrize("words", [words for words in EVERY if words[-1] in DELETING], ids=" ".join)
def test_what_deletes_can_be_tried_dry_and_asks(words: tuple[str, ...]) -> None:
    """Every command that deletes has --dry-run, and --yes for the question it asks at a terminal."""
    options = {name for parameter in EVERY[words].params for name in parameter.opts}
    assert {"--dry-run", "--yes"} <= options


def test_every_error_has_an_exit_code() -> None:
    """Each kind of error ends with the code documented for it, and each code has a meaning."""
    expected = {
        errors.InvalidRequest: 2,
        errors.NotFound: 3,
        errors.AlreadyExists: 4,
        errors.Conflict: 4,
        errors.Fenced: 4,
        errors.Closed: 4,
        errors.Corruption: 5,
        errors.UnsupportedFormat: 5,
        errors.Unavailable: 6,
        errors.OutcomeUnknown: 6,
        errors.Rejected: 7,
        errors.InternalError: 1,
    }
    assert {kind: exits.exit_code(kind("x")) for kind in expected} == expected
    assert set(expected.values()) <= set(exits.MEANINGS)


def test_exit_codes_are_documented() -> None:
    """The guide lists every exit code with its meaning."""
    guide = (Path(__file__).parents[2] / "docs" / "guide" / "cli.md").read_text()
    for code, meaning in exits.MEANINGS.items():
        assert f"| {code} | {meaning} |" in guide


def test_commands_are_documented() -> None:
    """The guide names every command."""
    guide = (Path(__file__).parents[2] / "docs" / "guide" / "cli.md").read_text()
    missing = [" ".join(words) for words in EVERY if f"`lakebed {' '.join(words)}" not in guide]
    assert not missing


@pytest.mark.parametrize(
    "arguments",
    [("nope",), ("table", "nope"), ("table", "tags"), ("ls",), ("ls", "a", "b"), ("table", "tags", "a", "b", "--nope")],
    ids=" ".join,
)
def test_a_wrong_command_is_one_sentence(cli: Callable[..., Any], arguments: tuple[str, ...]) -> None:
    """A command that cannot be understood says so, points to its help, and exits with 2."""
    answer = cli(*arguments)
    assert answer.code == exits.USAGE
    assert answer.out == ""
    assert len(answer.err.splitlines()) == 1
    assert "--help" in answer.err


def test_a_wrong_command_is_json_when_asked(cli: Callable[..., Any]) -> None:
    """Usage errors are JSON on standard error too."""
    answer = cli("table", "nope", "--json")
    assert answer.code == exits.USAGE
    assert answer.error["kind"] == "usage"


def test_version(cli: Callable[..., Any]) -> None:
    """The version printed is the package's."""
    assert lakebed.__version__ in cli("version").out
    assert cli("version", "--json").json == {"version": lakebed.__version__}


def test_help_loads_nothing_heavy() -> None:
    """`lakebed --help` starts without Arrow, numpy, Spark or a store's client."""
    script = (
        "import sys\n"
        "from lakebed.cli.main import run\n"
        "assert run(['--help']) == 0\n"
        "heavy = {'pyarrow', 'numpy', 'pyspark', 'pandas', 'obstore', 'fastavro', 'yaml'} & set(sys.modules)\n"
        "sys.exit(f'loaded {heavy}' if heavy else 0)\n"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_tags_do_not_load_spark(lake: str) -> None:
    """Commands on tables work without Spark and Java."""
    script = (
        "import sys\n"
        "from lakebed.cli.main import run\n"
        f"assert run(['table', 'tags', {lake!r}, 'flights']) == 0\n"
        "sys.exit('loaded pyspark' if 'pyspark' in sys.modules else 0)\n"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_a_reader_that_goes_away_ends_it_silently(lake: str) -> None:
    """A closed pipe (`| head`) is no error and prints nothing."""
    reader, writer = os.pipe()
    os.close(reader)
    try:
        done = subprocess.run(
            [sys.executable, "-m", "lakebed.cli", "table", "read", lake, "flights", "--format", "csv"],
            stdout=writer,
            stderr=subprocess.PIPE,
            text=True,
            check=False,
        )
    finally:
        os.close(writer)
    assert done.stderr == ""
    assert done.returncode == exits.OK


def test_a_bug_is_told_as_one(cli: Callable[..., Any], lake: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """An error that nobody foresaw exits with 1, as JSON when asked, and with its trace when not."""

    def broken(*_: object, **__: object) -> None:
        raise ZeroDivisionError("unforeseen")

    monkeypatch.setattr("lakebed.lake.lake.Lake.tables", broken)
    answer = cli("ls", lake, "--json")
    assert answer.code == exits.BUG
    assert answer.error["kind"] == "internal_error"
    answer = cli("ls", lake)
    assert answer.code == exits.BUG
    assert "bug in lakebed" in answer.err


@pytest.mark.parametrize("words", [(), ("table",), ("pipeline",), *EVERY], ids=" ".join)
def test_help_reads_as_a_manual_page(cli: Callable[..., Any], words: tuple[str, ...]) -> None:
    """Help names what to write, not Python's types, and cuts no sentence off."""
    page = cli(*words, "--help").out
    assert not any(sign in page for sign in ("<str>", "<int", "{LAKE}", "[[", "[required]"))
    assert "..." not in page.partition("\nCommands:")[2]


def test_help_names_what_must_be_given(cli: Callable[..., Any]) -> None:
    """The usage line holds every argument and every option without which the command cannot run."""
    usage = "Usage: lakebed table create-tag [OPTIONS] LAKE TABLE --name NAME"
    assert cli("table", "create-tag", "-h").out.startswith(usage)
    assert "[OPTIONS] LAKE [STORE]" in cli("pins", "-h").out


def test_a_group_alone_shows_its_commands(cli: Callable[..., Any]) -> None:
    """`lakebed table` answers with its help, not with an error around it."""
    answer = cli("table")
    assert answer.code == exits.USAGE
    assert (answer.out + answer.err).startswith("Usage: lakebed table")


def test_a_misspelt_command_is_asked_about(cli: Callable[..., Any]) -> None:
    """The nearest command is named, in a sentence with one end."""
    assert "Did you mean 'table'? Try:" in cli("tabel").err
