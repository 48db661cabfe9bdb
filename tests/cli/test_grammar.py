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
from lakebed.cli import exits, shells
from lakebed.cli.commands import ROOT


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
    ("clean LAKE --dry-run", "collect LAKE --dry-run"),
    ("table create-tag LAKE flights --name #", "table tag LAKE flights #"),
    ("table rename-tag LAKE flights --name # --to #er", "table rename-tag LAKE flights # #er"),
    ("table delete-tag LAKE flights --name jan --name #er", "table drop-tag LAKE flights jan #er --if-exists"),
    ("table create-branch LAKE flights --name #", "table branch LAKE flights #"),
    ("table delete-branch LAKE flights --name #", "table drop-branch LAKE flights #"),
    ("table remove-orphan-files LAKE flights", "table collect LAKE flights"),
    ("kv --path LAKE/serving.kv get k", "kv get LAKE serving k"),
    ("kv --path LAKE/serving.kv list-checkpoints", "kv tags LAKE serving"),
    ("kv --path LAKE/serving.kv get k --checkpoint weekly", "kv get --checkpoint weekly LAKE serving k"),
    ("kv --path LAKE/serving.kv collect --dry-run", "kv collect LAKE serving --dry-run"),
    ("kv collect LAKE/serving.kv --dry-run", "kv collect LAKE --dry-run"),
    ("kv --path LAKE/serving.kv show-manifest", "kv manifest LAKE serving"),
    ("repo branch list LAKE analytics", "repo branches LAKE analytics"),
    ("repo tag list LAKE analytics", "repo tags LAKE analytics"),
    ("repo retention show LAKE analytics", "repo retention LAKE analytics"),
    ("repo gc LAKE analytics --dry-run", "repo collect LAKE analytics --dry-run"),
]


def test_an_old_spelling_does_what_the_new_one_does_and_says_so(cli: Any, world: str) -> None:
    """The same exit code and, but for names (#) that each makes, the same output; standard error names the new one."""
    for old, new in OLD:
        before = cli(*old.replace("LAKE", world).replace("#", "old").split())
        after = cli(*new.replace("LAKE", world).replace("#", "new").split())
        assert (before.code, after.code) == (exits.OK, exits.OK), (old, before.err, after.err)
        if "#" not in new:
            assert before.out == after.out, old
        assert "is now `" in before.err or "is now the argument" in before.err, old
        assert after.err == "", new


def test_the_note_of_an_old_spelling_does_not_break_json(cli: Any, world: str) -> None:
    """A failing command has its error alone on standard error, a good one the note as a line of JSON."""
    missing = cli("table", "delete-tag", world, "flights", "--name", "nope", "--json")
    assert missing.error["kind"] == "tag_not_found"
    done = cli("table", "create-tag", world, "flights", "--name", "n", "--json")
    assert done.json["tag"] == "n"
    assert [line[:8] for line in done.err.splitlines()] == ['{"note":', '{"note":']


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


MISTYPED: list[tuple[str, str]] = [
    ("table tags LAKE fligths", "Did you mean flights?"),
    ("table read LAKE flights --tag jna", "Did you mean jan?"),
    ("table read LAKE flights --version jna", "Did you mean jan?"),
    ("table drop-tag LAKE flights jna --dry-run", "Did you mean jan?"),
    ("table read LAKE flights --branch dve", "Did you mean dev?"),
    ("table read LAKE flights --version 99", "it has snapshots 1 to 2"),
    ("kv get LAKE serving k --checkpoint weekyl", "Did you mean weekly?"),
    ("repo show LAKE analytics mian", "Did you mean main?"),
    ("repo show LAKE anlytics main", "Did you mean analytics?"),
    ("repo drop-tag LAKE analytics v2 --yes", "Did you mean v1?"),
    ("history LAKE servign", "Did you mean serving?"),
]


def test_a_mistyped_name_is_answered_with_the_nearest(cli: Any, world: str) -> None:
    """Tables, tags, versions, branches, checkpoints, repositories and stores."""
    cli("table", "branch", world, "flights", "dev")
    for line, hint in MISTYPED:
        answer = cli(*line.replace("LAKE", world).split())
        assert answer.code == exits.NOT_FOUND, (line, answer.err)
        assert hint in answer.err, line


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
    ("lakebed nope ", set()),
]


def test_what_may_come_next_is_offered(cli: Any, world: str) -> None:
    """Commands, options, choices and the names that are in the lake; nothing where a file may stand; never an error."""
    for line, expected in COMPLETED:
        answer = cli(shells.COMPLETE, line.replace("LAKE", world))
        assert answer.code == exits.OK
        assert {text.partition("\t")[0] for text in answer.out.splitlines()} == expected, line
        assert answer.err == "", line


def test_bash_completes(tmp_path: Path, world: str) -> None:
    """A real bash that evaluated the script fills in what is asked for, behind a colon too."""
    script = tmp_path / "completion.bash"
    script.write_text(shells.SCRIPTS["bash"])
    test = f"""
lakebed() {{ {sys.executable} -m lakebed.cli "$@"; }}
source {script}
COMP_LINE='lakebed kv get {world} se' COMP_WORDS=(lakebed kv get {world} se) COMP_CWORD=4
COMP_POINT=${{#COMP_LINE}}
_lakebed
printf '%s\\n' "${{COMPREPLY[@]}}"
"""
    done = subprocess.run(["bash", "-c", test], capture_output=True, text=True, check=True, env={**os.environ})
    assert done.stdout == "serving\n"


@pytest.mark.parametrize("shell", shells.SCRIPTS)
def test_each_shell_has_a_script(cli: Any, shell: shells.Shell) -> None:
    """What is printed is the script alone, and it asks the hidden option."""
    answer = cli("completion", shell)
    assert answer.out == shells.SCRIPTS[shell]
    assert f"lakebed {shells.COMPLETE} " in answer.out
