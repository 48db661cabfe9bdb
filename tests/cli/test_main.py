"""The command line as a whole: help, exit codes, errors, start-up."""

from __future__ import annotations

import importlib
import json
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import lakebed
from lakebed import errors, kv
from lakebed.cli import exits, output
from lakebed.cli.command import Command
from lakebed.cli.commands import ROOT
from worlds.scripts import run_script

DELETING = {"collect", "drop", "drop-tag", "drop-branch", "expire-tags", "rollback", "expire", "delete"}


EVERY = {command.path: command for command in ROOT.every()}
GROUPS = [(), *((name,) for name in ROOT.groups)]


def options_of(words: tuple[str, ...]) -> set[str]:
    """The options of a command."""
    return {name for option in EVERY[words].options for name in option.opts}


def test_help_reads_as_a_manual_page(cli: Callable[..., Any]) -> None:
    """Every command and group explains itself: what to write and not Python's types, in whole sentences and words."""
    for words in [*GROUPS, *EVERY]:
        answer = cli(*words, "--help")
        assert (answer.code, answer.err) == (exits.OK, ""), words
        assert answer.out.startswith(" ".join(("Usage: lakebed", *words))), words
        assert len(answer.out.splitlines()) > 4
        assert not any(sign in answer.out for sign in ("<str>", "<int", "INTEGER", "{LAKE}", "[[", "x<="))
        assert "..." not in answer.out.partition("\nCommands:")[2], words


WITHOUT_EXTRAS = """
import sys
sys.modules |= dict.fromkeys(sys.argv[1].split())
from lakebed.cli import exits
from lakebed.cli.commands import ROOT
from lakebed.cli.main import run
for group in (ROOT, *ROOT.groups.values()):
    assert run([*group.path, "--help"]) == exits.OK, group.path
    for word in group.words:
        assert run([*group.path, word, "--help"]) in (exits.OK, exits.USAGE), word
assert run(["key", "list", "."]) == exits.USAGE
"""
EXTRAS = "starlette uvicorn httptools uvloop multipart psycopg nats fsspec greenlet pandas polars duckdb pyspark"


def test_without_an_extra_a_command_names_what_to_install() -> None:
    """With lakebed alone every page of help is shown, and a command that needs more says which extra, as no bug."""
    program = [sys.executable, "-c", WITHOUT_EXTRAS, EXTRAS]
    answer = subprocess.run(program, capture_output=True, text=True, check=False)
    assert answer.returncode == 0, answer.stderr[-3000:]
    wanted = "lakebed: A command on access keys needs starlette, which is not installed: pip install 'lakebed[server]'."
    assert wanted in answer.stderr.splitlines()
    assert "Traceback" not in answer.stderr


@pytest.mark.parametrize("columns", [40, 200])
def test_a_page_fits_its_terminal(cli: Callable[..., Any], monkeypatch: pytest.MonkeyPatch, columns: int) -> None:
    """No line of a help page is wider than a narrow terminal, or breaks in a word; none is as wide as a wide one."""
    for words in [*GROUPS, *EVERY]:
        monkeypatch.setenv("COLUMNS", "100")
        whole = set(cli(*words, "--help").out.split())
        monkeypatch.setenv("COLUMNS", str(columns))
        for line in cli(*words, "--help").out.splitlines():
            assert len(line) <= min(columns, 110) or len(line.split()) <= 2, (words, line)
            assert set(line.split()) <= whole, (words, line)


def test_every_command_speaks_json_and_what_deletes_can_be_tried_dry() -> None:
    """`--json` is everywhere, --dry-run, and --yes for the question at a terminal, where something is deleted."""
    for words in EVERY:
        needed = {"--json"} | ({"--dry-run", "--yes"} if words[-1] in DELETING else set())
        assert needed <= options_of(words), words


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


def test_the_reference_page_is_what_the_parser_takes() -> None:
    """The guide has a line for every command, with its arguments as they are, and none for another."""
    guide = (Path(__file__).parents[2] / "docs" / "guide" / "cli.md").read_text()
    written = set(re.findall(r"^\| `(lakebed [^`]*)` \|", guide, re.MULTILINE))
    present = {command.usage for command in EVERY.values()}
    assert written - {"lakebed fsck LAKE [STORE] --repair-statistics"} == present


def test_a_wrong_command_is_one_sentence(cli: Callable[..., Any]) -> None:
    """A command that cannot be understood says so, points to its help, and exits with 2; in JSON when asked."""
    for line in (
        "nope",
        "table nope",
        "table tags",
        "ls",
        "ls a b",
        "table tags a b --nope",
        "completion",
        "kv --json",
    ):
        answer = cli(*line.split())
        assert (answer.code, answer.out) == (exits.USAGE, ""), line
        assert len(answer.err.splitlines()) == 1, line
        assert "--help" in answer.err
    assert cli("table", "nope", "--json").error["kind"] == "usage"


def test_version(cli: Callable[..., Any]) -> None:
    """The version printed is the package's."""
    assert lakebed.__version__ in cli("version").out
    assert cli("version", "--json").json == {"version": lakebed.__version__}


SPARK = {"pyspark", "py4j", "pandas"}
LOADED: list[tuple[str, set[str]]] = [
    ("--help", {"pyarrow", "numpy", "obstore", "fastavro", "yaml", "rich", "pydantic", "urllib3"}),
    ("kv get LAKE serving k", {"pyarrow.compute", "pyarrow.parquet", "obstore", "urllib3", "fastavro", "rich", "ssl"}),
    ("kv get LAKE serving k", {"lakebed.table.table", "lakebed.repo.repositories", "lakebed.lake.lake"}),
    ("repo list LAKE", {"pyarrow.parquet", "obstore", "urllib3", "ssl", "lakebed.table.table"}),
    ("repo ls LAKE analytics main", {"starlette", "uvicorn", "psycopg"}),
    ("repo commit LAKE analytics main -m one --allow-empty", {"starlette", "uvicorn", "psycopg"}),
    ("table tags LAKE db.events", {"pyarrow.parquet", "obstore", "urllib3", "lakebed.table.commit.commit"}),
    (
        "ls LAKE",
        {
            "rich.console",
            "pyarrow.dataset",
            "pyarrow.csv",
            "pyarrow.acero",
            "obstore",
            "urllib3",
            "lakebed.table.compaction.compact",
        },
    ),
]
"""Commands, and what none of them may load; in this order in one process, so that each adds to the one before."""


def test_commands_load_only_what_they_need(lake: str) -> None:
    """Heavy libraries, and whole packages of our own, are loaded by the commands that use them."""
    with kv.open(f"{lake}/serving.kv", durable=False) as database:
        database.put(b"k", b"v")
    lakebed.open(lake).repository("analytics", create=True).close()
    script = (
        "import sys\n"
        "from lakebed.cli import main\n"
        "def test(words, forbidden):\n"
        "    assert main.run(words, frames=False) == 0, words\n"
        "    loaded = forbidden & sys.modules.keys()\n"
        "    assert not loaded, f'{words} loads {loaded}'\n"
        f"for words, forbidden in {LOADED!r}:\n"
        f"    test(words.replace('LAKE', {lake!r}).split(), forbidden | {SPARK!r})\n"
    )
    run_script(script)


LISTING_MODULES_MAX = 150
"""Modules of lakebed that a listing of tables loads at most: each costs a third of a millisecond."""
NOT_LISTED = {
    *("pyarrow.compute", "pyarrow.parquet", "pyarrow.dataset", "numpy.ma", "fastavro", "pyspark", "pandas", "obstore"),
    *("lakebed.table.collect.deletion", "lakebed.table.collect.orphans", "lakebed.table.commit.commit"),
    *("lakebed.table.engines.deduplicate", "lakebed.table.engines.functions"),
    *("lakebed.kv.database", "lakebed.repo.repositories"),
}
"""What a listing of tables does not load."""


def test_a_listing_loads_only_what_it_shows(tmp_path: Path) -> None:
    """A listing of tables whose rows need no merge reads manifests: no Parquet, no merge engine, no deletion."""
    opened = lakebed.open(str(tmp_path))
    schema = pa.schema([pa.field("id", pa.int64(), nullable=False), ("delay", pa.float64())])
    rows = pa.table({"id": [1, 2], "delay": [0.5, 1.5]}, schema=schema)
    plain, keyed = opened.create_table("plain", schema), opened.create_table("keyed", schema, primary_keys=["id"])
    plain.append(rows)
    plain.append(rows)
    plain.create_tag("monday")
    keyed.upsert(rows)
    options = {"merge-engine": "aggregation", "fields.delay.aggregate-function": "sum"}
    opened.create_table("sums", schema, primary_keys=["id"], options=options).upsert(rows)
    script = (
        "import sys\n"
        "from lakebed.cli import main\n"
        f"assert main.run(['ls', {str(tmp_path)!r}, '--json'], frames=False) == 0\n"
        f"loaded = {NOT_LISTED!r} & sys.modules.keys()\n"
        "assert not loaded, loaded\n"
        "ours = sorted(name for name in sys.modules if name.startswith('lakebed.'))\n"
        f"assert len(ours) <= {LISTING_MODULES_MAX}, (len(ours), ours)\n"
    )
    assert [(store["name"], store["rows"]) for store in json.loads(run_script(script))] == [
        ("keyed", 2),
        ("plain", 4),
        ("sums", 2),
    ]


def test_a_command_loads_no_pandas_and_can_still_import_it() -> None:
    """Arrow loads no pandas for the arrays of a command, and makes frames when asked to."""
    script = (
        "import sys\n"
        "from lakebed.cli import loading\n"
        "loading.load_arrow()\n"
        "import pyarrow as pa\n"
        "rows = pa.table({'id': pa.array([1, 2])})\n"
        "assert 'pandas' not in sys.modules\n"
        "import pandas\n"
        "assert rows.to_pandas().equals(pandas.DataFrame({'id': [1, 2]}))\n"
        "assert pa.array(pandas.Series([1.0, None])).null_count == 1\n"
    )
    run_script(script)


def test_a_group_is_loaded_when_it_is_asked_for() -> None:
    """The root's help imports no module of commands; a command imports its own only."""
    script = (
        "import sys\n"
        "from lakebed.cli import commands, main\n"
        "modules = {f'lakebed.cli.{one}' for group in (commands.ROOT, *commands.ROOT.groups.values())"
        " for one in group.modules}\n"
        "assert main.run(['--help']) == 0\n"
        "assert not modules & sys.modules.keys(), modules & sys.modules.keys()\n"
        "assert main.run(['kv', 'get', '--help']) == 0\n"
        "assert modules & sys.modules.keys() == {'lakebed.cli.kv_keys'}, modules & sys.modules.keys()\n"
    )
    run_script(script)


def test_the_table_of_commands_is_complete() -> None:
    """The table names each declared command once; the summaries of the root are those of the commands."""
    for group in (ROOT, *ROOT.groups.values()):
        for module, words in group.modules.items():
            result = vars(importlib.import_module(f"lakebed.cli.{module}")).values()
            declared = {
                item.word
                for item in result
                if isinstance(item, type) and issubclass(item, Command) and item.word
                if item.__module__.endswith(f".{module}")
            }
            assert sorted(declared) == sorted(words), module
    assert ROOT.summaries == {word: ROOT.command_at(word).summary for word in ROOT.words}


def test_a_library_loads_no_data_frames() -> None:
    """Importing makes no Arrow array, for which Arrow looks for pandas: half a second where it is there."""
    script = (
        "import sys\n"
        "import lakebed.fsck.check, lakebed.kv.database, lakebed.lake.lake, lakebed.repo.repositories\n"
        "import lakebed.table.compaction.compact, lakebed.table.changes.incremental, lakebed.table.collect.orphans, "
        "lakebed.table.versions.system\n"
        "sys.exit(sorted({'pandas', 'pyspark'} & sys.modules.keys()) or None)\n"
    )
    run_script(script)


def test_a_reader_that_goes_away_ends_it_silently(lake: str) -> None:
    """A closed pipe (`| head`) is not an error and prints nothing."""
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


def test_a_closed_stream_is_no_file_of_a_lake(tmp_path: Path) -> None:
    """Files are opened under other numbers than those of closed standard streams, into which libraries print."""
    script = (
        "import os\n"
        "from lakebed.cli import standard\n"
        "standard.guard()\n"
        "number = os.open('file', os.O_CREAT | os.O_WRONLY)\n"
        "assert number > 2\n"
        "os.write(number, b'of the lake')\n"
        "print('lost')\n"
        "standard.finish()\n"
        "try:\n"
        "    os.write(2, b'of a library')\n"
        "except OSError:\n"
        "    os._exit(0)\n"
    )
    shell = shlex.join([sys.executable, "-c", script])
    done = subprocess.run(["sh", "-c", f"{shell} <&- >&- 2>&-"], cwd=tmp_path, check=False)
    assert done.returncode == 0
    assert (tmp_path / "file").read_text() == "of the lake"


def test_a_bug_is_told_as_one(cli: Callable[..., Any], lake: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """An unforeseen error exits with 1, as JSON when asked, and with its trace when not."""

    def broken(*_: object, **__: object) -> None:
        raise ZeroDivisionError("unforeseen")

    monkeypatch.setattr("lakebed.lake.lake.Lake.tables", broken)
    answer = cli("ls", lake, "--json")
    assert answer.code == exits.BUG
    assert answer.error["kind"] == "internal_error"
    answer = cli("ls", lake)
    assert answer.code == exits.BUG
    assert "bug in lakebed" in answer.err


def test_an_interrupt_that_python_wraps_is_one(
    cli: Callable[..., Any], lake: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ctrl-C while a class is being made, as in the imports of a start, comes as an error of another type."""

    def interrupted(*_: object, **__: object) -> None:
        raise RuntimeError("Error calling __set_name__") from KeyboardInterrupt()

    monkeypatch.setattr("lakebed.lake.lake.Lake.tables", interrupted)
    answer = cli("ls", lake)
    assert (answer.code, answer.err.strip()) == (exits.INTERRUPTED, "lakebed: interrupted.")


def test_help_names_what_must_be_given(cli: Callable[..., Any]) -> None:
    """The usage line holds every argument and every option without which the command cannot run."""
    usage = "Usage: lakebed table delete [OPTIONS] LAKE TABLE --where WHERE"
    assert cli("table", "delete", "-h").out.startswith(usage)
    assert "[OPTIONS] LAKE [STORE]" in cli("pins", "-h").out


def test_a_group_alone_shows_its_commands(cli: Callable[..., Any]) -> None:
    """`lakebed table` answers with its help, not with an error around it."""
    answer = cli("table")
    assert answer.code == exits.USAGE
    assert (answer.out + answer.err).startswith("Usage: lakebed table")


def test_a_misspelt_command_is_asked_about(cli: Callable[..., Any]) -> None:
    """The nearest command is named, in a sentence with one end."""
    assert "Did you mean 'table'? Try:" in cli("tabel").err
    assert "No such command 'raed'. Did you mean 'append' or 'read'? Try:" in cli("table", "raed").err


def test_a_value_without_its_option_is_told_the_options(cli: Callable[..., Any], lake: str) -> None:
    """An argument too many may be what an option takes: the sentence names the options."""
    assert "Options that take a value: --version, --tag, --timestamp" in cli("table", "rollback", lake, "t", "9").err
    assert "--verbose" not in cli("table", "rollback", lake, "t", "9").err


def test_a_lake_that_is_not_there(cli: Callable[..., Any], tmp_path: Path) -> None:
    """The folder next to it with nearly its name is proposed; without one the error says what is there."""
    (tmp_path / "lake").mkdir()
    answer = cli("ls", tmp_path / "lak")
    assert (answer.code, answer.err.strip()) == (
        exits.NOT_FOUND,
        f"lakebed: There is no folder {tmp_path / 'lak'}. Did you mean {tmp_path / 'lake'}?",
    )
    assert cli("ls", tmp_path / "no" / "lake").err.strip().endswith(f"lake. Nor is there {tmp_path / 'no'}.")
    for name in ("ab", "cd", "ef", "gh", "ij"):
        (tmp_path / name).mkdir()
    assert cli("ls", tmp_path / "other").err.strip().endswith(f"other. {tmp_path} has ab, cd, ef, gh, ij and others.")
    assert cli("ls", tmp_path / "ab" / "other").err.strip().endswith(f"other. {tmp_path / 'ab'} has no folders.")


@pytest.mark.parametrize("place", [("collect",), ("table", "collect")], ids=" ".join)
def test_a_wrong_age_is_refused_before_the_question(
    cli: Callable[..., Any], lake: str, monkeypatch: pytest.MonkeyPatch, place: tuple[str, ...]
) -> None:
    """A person at a terminal is not asked about a command that cannot run."""
    monkeypatch.setattr(output, "ask", lambda question, **_: pytest.fail(question))
    names = [lake, *(["flights"] if place[0] == "table" else [])]
    assert cli(*place, *names, "--grace", "soon").code == exits.USAGE


INTERRUPTED_WHILE_LOADING = """
import os, signal, sys

class Interrupter:
    def find_spec(self, name, path, target=None):
        if name == "lakebed.cli.parser":
            try:
                os.kill(os.getpid(), signal.SIGINT)
            except KeyboardInterrupt as interruption:
                if sys.argv[1:] == ["wrapped"]:
                    raise RuntimeError("Error calling __set_name__") from interruption
                raise

signal.signal(signal.SIGINT, signal.default_int_handler)
sys.meta_path.insert(0, Interrupter())
import runpy
runpy.run_module("lakebed.cli", run_name="__main__")
"""


@pytest.mark.parametrize("how", ["plain", "wrapped"])
def test_an_interruption_while_the_command_line_is_loaded_is_a_line(how: str) -> None:
    """A command that is interrupted before it has begun ends as any other: a line, its own code, no traceback."""
    done = subprocess.run(
        [sys.executable, "-c", INTERRUPTED_WHILE_LOADING, how], capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stdout, done.stderr) == (exits.INTERRUPTED, "", "\nlakebed: interrupted.\n")
