"""Tables in terminals of any width: no word is broken, and what is left out is said."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.cli.conftest import SCHEMA, Cli, rows

import lakebed
from lakebed.cli import layout
from worlds.scripts import run_at_terminal

LONG = "experiments_of_the_spring_campaign_2026a"  # 40 characters, as names in use have
RUNS = """
import json, sys
from lakebed.cli.main import run
for words in json.load(open(sys.argv[1])):
    run(words)
    print("\\x1e", end="", flush=True)
"""
STYLE = re.compile(r"\x1b\[[0-9;?]*[a-zA-Z]")
TIME = re.compile(r"(in )?\d+ (second|minute|hour|day)s?( ago)?|just now|\d[\d.]*\s+k?B\b")
"""What differs between two runs of a command."""

Words = st.tuples(st.integers(1, 50), st.sampled_from("ax漢")).map(lambda one: one[0] * one[1])
Cells = st.lists(Words, max_size=4).map(" ".join)
Tables = st.integers(1, 6).flatmap(lambda count: st.lists(st.tuples(*[Cells] * count), min_size=1, max_size=3))


@given(Tables, st.integers(20, 140), st.data())
def test_no_word_is_broken_at_any_width(cells: list[tuple[str, ...]], width: int, data: st.DataObject) -> None:
    """Each cell of a visible column is shown in whole words, and no line is wider unless one word is."""
    headings = [f"heading {position}" for position in range(len(cells[0]))]
    less, sentences = (data.draw(st.permutations(headings))[: data.draw(st.integers(0, 3))] for _ in range(2))
    choice = layout.fit(headings, cells, width=width, right=(), less=less, sentences=sentences)
    if choice is None:
        blocks = list(layout.records(headings, cells, width=width))
        shown = range(len(headings))
    else:
        blocks = [choice.row(row) for row in cells]
        shown = choice.shown
        assert set(choice.left_out) <= set(less)
        assert all(
            layout.width_of(line) <= width for line in (*choice.head(), *(line for item in blocks for line in item))
        )
    for row, block in zip(cells, blocks, strict=True):
        words = sorted(word for position in shown for word in row[position].split())
        printed = sorted(word for line in block for word in line.split())
        labels = (
            []
            if choice
            else [word for heading, cell in zip(headings, row, strict=True) if cell for word in heading.split()]
        )
        assert printed == sorted([*words, *labels])
        for line in block:
            assert layout.width_of(line) <= width or len(line.split()) == 1, line


def test_a_pipe_has_room_for_everything() -> None:
    """Without a width nothing is left out or wrapped, also in rows that were not measured."""
    choice = layout.fit(["a", "b"], [("x" * 200, "y z")], width=None, right=(), less=["a"], sentences=["b"])
    assert choice is not None
    assert choice.row(["p q " * 100, "r s t u"]) == ["p q " * 100 + " " * 3 + "r s t u"]


def test_control_characters_do_not_reach_the_terminal() -> None:
    """What a value holds cannot move the cursor or change colors."""
    choice = layout.fit(["a"], [("\x1b[31mred\ttab\rback",)], width=80, right=(), less=(), sentences=())
    assert choice is not None
    assert choice.row(["\x1b[31mred\ttab\rback"]) == [r"\x1b[31mred\ttab\rback"]


@pytest.fixture
def long_names(cli: Cli, tmp_path: Path) -> str:
    """A lake in which every store, tag and branch has a name of 40 characters."""
    lake = str(tmp_path / "lake")
    table = lakebed.open(lake).create_table(LONG, SCHEMA, primary_keys=["id"], options={"bucket": "1"})
    table.upsert(rows(*range(1000, 1005)))
    table.create_tag(LONG)
    table.create_branch(LONG)
    source = tmp_path / "in.csv"
    source.write_text("a,b\n")
    deep = f"{LONG}/part.csv"
    for line in (
        ["kv", "put", lake, LONG, f"key:{LONG}", f"a value of several words {LONG}"],
        ["kv", "tag", lake, LONG, LONG],
        ["kv", "tag", lake, LONG],
        ["kv", "branch", lake, LONG, f"{LONG[:30]}_copy"],
        ["repo", "create", lake, LONG.replace("_", "-")],
        ["repo", "put", lake, LONG.replace("_", "-"), "main", deep, str(source)],
        ["repo", "commit", lake, LONG.replace("_", "-"), "main", "-m", f"a message about {LONG} and more"],
        ["repo", "branch", lake, LONG.replace("_", "-"), LONG],
        ["repo", "tag", lake, LONG.replace("_", "-"), f"tag_{LONG}"],
        ["repo", "put", lake, LONG.replace("_", "-"), "main", f"{deep}.new", str(source)],
        ["key", "create", lake, "--repository", LONG.replace("_", "-"), "--description", f"what it is for: {LONG}"],
    ):  # fmt: skip
        done = cli(*line)
        assert done.code == 0, (line, done.err)
    return lake


def tables(lake: str) -> list[tuple[list[str], list[str]]]:
    """Commands that print a table, each with words that it must show at any width."""
    name = LONG.replace("_", "-")
    return [
        (["ls", lake], [LONG, name, "table", "database", "repository"]),
        (["history", lake], [LONG, name]),
        (["pins", lake], [LONG, name, "tag", "checkpoint", "branch", f"tag_{LONG}"]),
        (["table", "describe", lake, LONG], ["carrier", "STRING"]),
        (["table", "read", lake, LONG], ["1000", "carrier"]),
        (["table", "tags", lake, LONG], [LONG, "expires"]),
        (["table", "branches", lake, LONG], [LONG]),
        (["table", "history", lake, LONG], [LONG, "append"]),
        (["table", "system", lake, LONG, "files"], []),
        (["kv", "scan", lake, LONG], [f"key:{LONG}", "several"]),
        (["kv", "stats", lake, LONG], ["checkpoints"]),
        (["kv", "tags", lake, LONG], [LONG]),
        (["kv", "manifests", lake, LONG], [LONG]),
        (["repo", "list", lake], [name]),
        (["repo", "log", lake, name, "main"], ["message", LONG]),
        (["repo", "show", lake, name, "main"], [LONG, "message"]),
        (["repo", "ls", lake, name, "main"], [f"{LONG}/"]),
        (["repo", "ls", lake, name, "main", "--recursive"], [f"{LONG}/part.csv"]),
        (["repo", "stat", lake, name, "main", f"{LONG}/part.csv"], [f"{LONG}/part.csv"]),
        (["repo", "branches", lake, name], [LONG, "main"]),
        (["repo", "tags", lake, name], [f"tag_{LONG}"]),
        (["repo", "status", lake, name, "main"], [f"{LONG}/part.csv.new"]),
        (["repo", "diff", lake, name, "main"], [f"{LONG}/part.csv.new"]),
        (["repo", "retention", lake, name], ["(others)"]),
        (["key", "list", lake], [LONG, name, "write"]),
        (["fsck", lake], ["fault"]),
        (["collect", lake, "--dry-run"], ["free"]),
        (["table", "describe", lake, f"{LONG}_"], ["lakebed:", "table"]),
    ]


def at_a_terminal(commands: list[list[str]], width: int, folder: Path) -> list[str]:
    """What each command prints at a pseudo-terminal of some width."""
    listed = folder / "commands.json"
    listed.write_text(json.dumps(commands))
    shown = run_at_terminal([sys.executable, "-c", RUNS, listed], width=width)
    return shown.replace("\r\n", "\n").split("\x1e")


def test_every_table_shows_whole_words_at_a_terminal(cli: Cli, long_names: str, tmp_path: Path) -> None:
    """Each word of a table at a terminal is a word of the same table in a pipe, which shortens nothing."""
    expected = tables(long_names)
    commands = [command for command, _ in expected]
    piped = [cli(*command) for command in commands]
    width = 60
    texts = at_a_terminal(commands, width, tmp_path)[: len(commands)]
    for (command, must), done, text in zip(expected, piped, texts, strict=True):
        shown = re.sub(r".*\x1b\[\?25h.*\x1b\[2K", "", text, flags=re.DOTALL)  # behind a progress bar
        table, _, left_out = STYLE.sub("", shown).partition("\nColumns left out, ")
        assert "\x1b" not in table
        whole = {*TIME.sub("T", done.out + done.err).replace("─", "").split(), "T"}
        words = TIME.sub("T", table).replace("─", "").split()
        assert {word.rstrip(",") for word in must} <= {word.rstrip(",") for word in words}, (command, table)
        assert set(words) <= whole, (command, table)
        assert not left_out or "--json prints all" in " ".join(left_out.split())
        for line in table.split("\n"):
            assert len(line) <= width or len(line.split()) == 1, (command, line)


def test_a_value_is_not_wrapped(cli: Cli, long_names: str, tmp_path: Path) -> None:
    """`kv get` prints a value as it is, at a terminal too."""
    value = f"two  spaces and  {LONG} and {LONG}  "
    cli("kv", "put", long_names, LONG, "key", value)
    assert at_a_terminal([["kv", "get", long_names, LONG, "key"]], 60, tmp_path)[0] == f"{value}\n"


def test_names_have_no_markup(lake: str, tmp_path: Path) -> None:
    """A file, a table's row and an error with brackets are shown as they are, in a progress bar too."""
    source = tmp_path / "a[red]:smile:.csv"
    source.write_text("id,carrier,delay\n9,[bold]UA[/x]:smile:,1\n")
    append, read, failed, *_ = at_a_terminal(
        [
            ["table", "append", lake, "db.events", str(source)],
            ["table", "read", lake, "db.events", "--where", "id = 9"],
            ["table", "import", lake, "new", f"{tmp_path}/none[/y]", "--format", "parquet"],
        ],
        200,
        tmp_path,
    )
    assert "loading a[red]:smile:.csv" in STYLE.sub("", append)
    assert "[bold]UA[/x]:smile:" in read
    assert "none[/y]" in failed
    assert "Traceback" not in append + read + failed


def test_a_pipe_gets_the_whole_committer_and_owner(cli: Cli, long_names: str, tmp_path: Path) -> None:
    """An access key in `repo log` and an owner in `pins` are printed in full."""
    name = LONG.replace("_", "-")
    opened = lakebed.repo.open_all(long_names)
    with opened:
        opened.repository(name).branch("main").commit("by a key", committer="LAKEBEDVLQ5RWXL7ZAAAQQQ")
    log = cli("repo", "log", long_names, name, "main")
    assert "LAKEBEDVLQ5RWXL7ZAAAQQQ" in log.out
    owners = {pin["owner"] for pin in cli("pins", long_names, "--json").json if pin["owner"]}
    assert owners
    assert all(owner in cli("pins", long_names).out for owner in owners)


def test_an_unreadable_store_is_a_line_below_the_table(cli: Cli, lake: str) -> None:
    """The error is not a cell of the table, which it would make wider than any terminal."""
    snapshot = Path(lake) / "db.db" / "events" / "snapshot" / "snapshot-1"
    snapshot.write_text("{")
    done = cli("ls", lake)
    table, _, problems = done.out.partition("\nerror: ")
    assert done.code != 0
    assert problems.startswith("table db.events: ")
    assert max(map(len, table.split("\n"))) < 100
    assert re.search(r"db\.events +unreadable", table)
