"""Arguments that no one means: one sentence and the exit code of a mistake, at every command."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from lakebed.cli import exits

RUNNER = Path(__file__).parent / "nasty_arguments.py"


DURATIONS = (
    *("kv put LAKE s k v --ttl", "kv tag LAKE s --lifetime", "kv collect LAKE --yes --grace"),
    *(
        "kv collect LAKE --yes --destroyed-grace",
        "kv collect LAKE --watch --interval",
        "kv compact LAKE s --watch --interval",
    ),
    *("kv restore LAKE s 1 --yes --lifetime", "repo collect LAKE rep --yes --grace", "fleet collect LAKE --grace"),
)


def test_a_duration_beyond_every_date_is_refused(cli: Any, lake: str) -> None:
    """What Python's durations cannot hold is a wrong argument, in one sentence, and nothing is done."""
    assert cli("kv", "create", lake, "s").code == exits.OK
    before = sorted(path.name for path in Path(lake).rglob("*"))
    for words in DURATIONS:
        for duration in ("292000000 years", "99999999999 d", "PT99999999999999H"):
            answer = cli(*(lake if word == "LAKE" else word for word in words.split(" ")), duration)
            assert answer.code == exits.USAGE, (words, duration, answer)
            assert len(answer.err.splitlines()) == 1
    assert sorted(path.name for path in Path(lake).rglob("*")) == before


def test_a_name_that_is_not_text_makes_no_store(cli: Any, lake: str) -> None:
    """A store named in bytes that are not UTF-8 would make every listing of its lake fail."""
    for words in (
        ["kv", "put", lake, "a\udcff", "k", "v"],
        ["kv", "create", lake, "\udcff"],
        ["repo", "create", lake, "\udcff"],
    ):
        assert cli(*words).code == exits.USAGE
    assert cli("table", "create", lake, "\udcff", "--column", "a INT").code == exits.USAGE
    assert cli("collect", lake, "--yes").code == exits.OK


def test_an_argument_that_is_not_text_is_a_mistake(cli: Any, lake: str) -> None:
    """Bytes that are not UTF-8 end in one sentence wherever a text is searched, compared or recorded."""
    cli("repo", "create", lake, "rep")
    for words in (
        ["repo", "branches", lake, "rep", "--prefix", "é\udc80"],
        ["table", "tag", lake, "flights", "\udcff"],
    ):
        answer = cli(*words)
        assert answer.code == exits.USAGE, answer
        assert len(answer.err.splitlines()) == 1


def test_a_folder_that_is_not_text_has_no_clones(cli: Any, tmp_path: Path) -> None:
    """A database in a folder whose name is not UTF-8 works; what would have to record the name says why it does not."""
    lake = os.fsdecode(bytes(tmp_path) + b"/\xff")
    assert cli("kv", "put", lake, "s", "k", "v").code == exits.OK
    assert cli("kv", "get", lake, "s", "k").out == "v\n"
    refused = cli("kv", "branch", lake, "s", "copy")
    assert refused.code == exits.USAGE
    assert "not UTF-8" in refused.err
    assert cli("kv", "get", lake, "s", "k").out == "v\n"


def test_a_message_moves_no_cursor(cli: Any, lake: str) -> None:
    """Control characters of an argument are escaped wherever it is repeated."""
    for words in (["ls", "\x1b[31m"], ["table", "tags", lake, "\x1b]0;x\x07"], ["why", lake, "\x1b[2J"]):
        answer = cli(*words)
        assert "\x1b" not in answer.out + answer.err
        assert answer.code != exits.BUG


@pytest.mark.long
@pytest.mark.parametrize("seed", range(3))
def test_no_argument_is_a_bug(tmp_path: Path, seed: int) -> None:
    """Empty, endless and broken texts, numbers and times out of range at every command: no traceback."""
    done = subprocess.run(
        [sys.executable, RUNNER, tmp_path, str(seed), "6"],
        capture_output=True,
        text=True,
        check=False,
        errors="replace",
    )
    assert done.returncode == 0, done.stdout[-5000:] + done.stderr[-2000:]
