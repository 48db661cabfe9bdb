"""The grammar of the command line: old spellings, the lake of the environment, completion."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import lakebed
from lakebed import kv
from lakebed.cli import exits, renamed
from lakebed.cli.commands import ROOT
from lakebed.cli.parser import find


@pytest.fixture
def world(lake: str) -> str:
    """A lake with tables, the database ``serving`` (pinned: weekly), the repository ``analytics`` (tag v1)."""
    with kv.open(f"{lake}/serving.kv", durable=False) as database:
        database.put(b"k", b"v")
        database.create_checkpoint(kv.CheckpointOptions(name="weekly"))
    with lakebed.open(lake).open_repositories() as home:
        home.create("analytics").create_tag("v1")
    return lake


OLD: list[tuple[str, str]] = [
    ("clean LAKE --yes", "`lakebed clean` is now `lakebed collect`."),
    ("table create-tag LAKE flights --name new", "`lakebed table create-tag` is now `lakebed table tag`."),
    ("table tag LAKE flights --name new", "--name is now the argument TAG."),
    ("table rename-tag LAKE flights jan --to new", "--to is now the argument NEW."),
    ("--json table delete-tag LAKE flights --name jan", "`lakebed table delete-tag` is now `lakebed table drop-tag`."),
    ("kv --path LAKE/serving.kv list-checkpoints", "`lakebed kv list-checkpoints` is now `lakebed kv tags`."),
    ("repo branch delete LAKE analytics main", "`lakebed repo branch delete` is now `lakebed repo drop-branch`."),
    ("repo retention show LAKE analytics", "`lakebed repo retention show` is now `lakebed repo retention`."),
    ("repo gc LAKE analytics", "`lakebed repo gc` is now `lakebed repo collect`."),
    ("kv collect LAKE/serving.kv", "write `lakebed kv collect LAKE NAME...`"),
]


def test_an_old_spelling_is_refused_with_the_new_one(cli: Any, world: str, state_of: Any) -> None:
    """A command or option of before does nothing, and its error names what it is called now."""
    before = state_of(world)
    for old, new in OLD:
        answer = cli(*old.replace("LAKE", world).split())
        assert answer.code in (exits.USAGE, exits.NOT_FOUND), (old, answer)
        assert new in answer.err, (old, answer)
        assert answer.out == ""
    assert state_of(world) == before


def test_new_spellings_are_commands_and_old_ones_are_none() -> None:
    """What an error proposes exists, and no command that exists is called old."""
    for old, new in renamed._COMMANDS.items():
        assert find(ROOT, new.split()) is not None, new
        command = find(ROOT, old.split())
        assert command is None or old != " ".join(command.path), old
    for old, new in renamed._OPTIONS.items():
        *path, name = old.split()
        command = find(ROOT, path)
        assert command is not None, old
        options = [spelling for option in command.options for spelling in option.opts]
        assert name not in options, old
        assert new.split()[-1] in [*options, *(slot.human_readable_name for slot in command.arguments)], old


def test_the_environment_names_the_lake(cli: Any, world: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Commands leave the lake out; one that is given wins; an error says where the lake came from."""
    monkeypatch.setenv("LAKEBED_LAKE", world)
    for words in ("ls", "history flights", "table tags flights", "kv get serving k", "repo tags analytics", "pins"):
        left_out = cli(*words.split(), "--json")
        command = words.split()[:2] if words.split()[0] in ROOT.groups else words.split()[:1]
        given = cli(*command, world, *words.split()[len(command) :], "--json")
        assert left_out.code == exits.OK, (words, left_out.err)
        assert left_out.out == given.out
    missing = cli("table", "tags", "flihgts")
    assert missing.code == exits.NOT_FOUND
    assert f"The lake is LAKEBED_LAKE: {world}." in missing.err
    elsewhere = cli("ls", "./nowhere")
    assert "nowhere" in elsewhere.err
    assert "LAKEBED_LAKE" not in elsewhere.err


def test_a_missing_database_names_the_nearest(cli: Any, world: str) -> None:
    """A mistyped database is answered with those of the lake."""
    missing = cli("kv", "get", world, "servign", "k")
    assert missing.code == exits.NOT_FOUND
    assert "Did you mean serving?" in missing.err


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("0", "0 is out of range: use at least 1."),
        ("9" * 25, f"'{'9' * 25}' is out of range: use at least 1 and at most 9223372036854775807."),
        ("1.5", "'1.5' is not an integer."),
    ],
)
def test_a_number_says_whether_it_is_one(cli: Any, world: str, text: str, reason: str) -> None:
    """What is out of range is a number all the same, also beyond 64 bits."""
    refused = cli("kv", "scan", world, "serving", "--limit", text)
    assert refused.code == exits.USAGE
    assert reason in refused.err


def test_a_flag_and_its_opposite_are_refused_together(cli: Any, world: str) -> None:
    """A line that says both, in whatever order, does nothing; a flag that is repeated says what it says once."""
    for line, names in (
        ("kv drop LAKE serving --yes --soft --hard", "--hard or --soft"),
        ("kv drop LAKE serving --yes --hard --soft --hard", "--hard or --soft"),
        ("--disk ls LAKE --no-disk", "--disk or --no-disk"),
        ("ls LAKE --no-disk --disk --json", "--disk or --no-disk"),
    ):
        answer = cli(*line.replace("LAKE", world).split())
        assert (answer.code, answer.out) == (exits.USAGE, ""), (line, answer)
        assert f"Give {names}, not both." in answer.err, (line, answer)
        assert len(answer.err.splitlines()) == 1, (line, answer)
    assert cli("kv", "get", world, "serving", "k").out == "v\n"
    assert cli("ls", world, "--disk", "--disk").code == exits.OK
    cli("kv", "drop-tag", world, "serving", "weekly")
    assert "is marked as destroyed" in cli("kv", "drop", world, "serving", "--yes", "--soft", "--soft").out


@pytest.mark.parametrize("name", ["--version", "-V"])
def test_the_version_has_an_option(cli: Any, name: str) -> None:
    """As most programs have it."""
    assert cli(name).out == f"lakebed {lakebed.__version__}\n"


COMPLETED: list[tuple[str, set[str]]] = [
    ("lakebed ta", {"table"}),
    ("lakebed table drop-", {"drop-tag", "drop-branch", "drop-column"}),
    ("lakebed table tags LAKE ", {"flights", "db.events"}),
    ("lakebed table drop-tag LAKE flights j", {"jan"}),
    ("lakebed table drop-tag LAKE flights jan j", {"jan"}),
    ("lakebed table read LAKE flights --ta", {"--tag"}),
    ("lakebed table read LAKE flights --tag ", {"jan"}),
    ("lakebed kv get LAKE se", {"serving"}),
    ("lakebed kv restore LAKE serving ", {"weekly"}),
    ("lakebed kv scan LAKE serving --format ", {"text", "tsv", "jsonl"}),
    ("lakebed repo show LAKE analytics ", {"main", "v1"}),
    ("lakebed repo ls LAKE a", {"analytics"}),
    ("lakebed history LAKE ", {"flights", "db.events", "serving", "analytics"}),
    ("lakebed completion ", {"bash", "zsh", "fish"}),
    ("lakebed ls ", set()),
    ("lakebed table tags /nowhere ", set()),
    ("lakebed table tags 'LAKE", set()),
]


def test_what_may_come_next_is_offered(cli: Any, world: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Commands, options, choices and the names that are in the lake; nothing where a file may stand; never an error."""
    monkeypatch.setenv("_LAKEBED_COMPLETE", "bash_complete")
    for line, expected in COMPLETED:
        monkeypatch.setenv("COMP_WORDS", line.replace("LAKE", world))
        answer = cli()
        assert answer.code == exits.OK
        assert set(answer.out.split()) == expected, line
        assert answer.err == "", line
    monkeypatch.setenv("LAKEBED_LAKE", world)
    for line, expected in (
        ("tags ", {"flights", "db.events"}),
        ("drop-tag flights j", {"jan"}),
        ("tags /nowhere ", set()),
    ):
        monkeypatch.setenv("COMP_WORDS", f"lakebed table {line}")
        assert set(cli().out.split()) == expected, line


def test_bash_completes(tmp_path: Path, cli: Any, world: str) -> None:
    """A real bash that evaluated the script fills in what is asked for, behind a colon too."""
    script = tmp_path / "completion.bash"
    script.write_text(cli("completion", "bash").out)
    url = f"file://{world}"
    test = f"""
lakebed() {{ {sys.executable} -m lakebed.cli "$@"; }}
source {script}
COMP_LINE='lakebed kv get {url} se' COMP_WORDS=(lakebed kv get file : //{world} se) COMP_CWORD=6
COMP_POINT=${{#COMP_LINE}}
_lakebed_completion
printf '%s\\n' "${{COMPREPLY[@]}}"
"""
    done = subprocess.run(["bash", "-c", test], capture_output=True, text=True, check=True, env={**os.environ})
    assert done.stdout == "serving\n"


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_each_shell_has_a_script(cli: Any, shell: str) -> None:
    """What is printed is the script alone, and it asks by the environment variable."""
    assert f"_LAKEBED_COMPLETE={shell}_complete" in cli("completion", shell).out
