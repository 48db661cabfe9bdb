"""The question before something is deleted, asked at a real (pseudo) terminal."""

from __future__ import annotations

import os
import pty
import subprocess
import sys
from pathlib import Path

import pytest

import lakebed
from lakebed.cli import exits


def at_a_terminal(answer: str, *arguments: str, columns: int = 200) -> tuple[int, str]:
    """Run a command at a terminal where a person types `answer`; exit code and what the terminal showed."""
    environment = {**os.environ, "COLUMNS": str(columns)}
    person, terminal = pty.openpty()
    try:
        process = subprocess.Popen(
            [sys.executable, "-m", "lakebed.cli", *arguments],
            stdin=terminal,
            stdout=subprocess.PIPE,
            stderr=terminal,
            env=environment,
        )
        os.write(person, f"{answer}\n".encode())
        assert process.stdout is not None
        process.stdout.read()
        process.stdout.close()
        code = process.wait()
        shown = os.read(person, 100_000).decode()
    finally:
        os.close(person)
        os.close(terminal)
    return code, shown


@pytest.mark.parametrize(("answer", "code"), [("", exits.DECLINED), ("y", exits.OK)])
def test_a_person_is_asked(lake: str, answer: str, code: int) -> None:
    """Only a yes deletes; anything else changes nothing and exits with 8."""
    ended, shown = at_a_terminal(answer, "table", "drop-tag", lake, "flights", "jan")
    assert ended == code
    assert "[y/N]" in shown
    kept = [tag.name for tag in lakebed.open(lake).table("flights").tags()]
    assert kept == ([] if code == exits.OK else ["jan"])


def test_a_question_fits_the_terminal(lake: str) -> None:
    """It wraps at words, as all sentences do."""
    ended, shown = at_a_terminal("n", "table", "delete", lake, "flights", "--where", "id > 1 AND id < 4", columns=30)
    question, _, _ = shown.partition(" Nothing")
    assert ended == exits.DECLINED
    assert max(map(len, question.splitlines())) <= 30
    assert " ".join(question.split()).endswith("where id > 1 AND id < 4? [y/N]")


def test_yes_is_not_asked(lake: str) -> None:
    """--yes goes on without a question, at a terminal too."""
    ended, shown = at_a_terminal("n", "table", "drop", lake, "flights", "--force", "--yes")
    assert ended == exits.OK
    assert "[y/N]" not in shown
    assert not (Path(lake) / "default.db" / "flights" / "schema" / "schema-0").exists()


def test_a_rollback_is_asked_about_with_what_it_deletes(lake: str) -> None:
    """The tags that go are named; what would be refused is refused before the question."""
    flights = lakebed.open(lake).table("flights")
    flights.create_tag("audit")
    ended, shown = at_a_terminal("n", "table", "rollback", lake, "flights", "--version", "1")
    assert ended == exits.DECLINED
    assert "back to snapshot 1 and delete 1 later version and 1 tag (audit)? [y/N]" in shown
    flights.create_branch("dev")
    ended, shown = at_a_terminal("n", "table", "rollback", lake, "flights", "--version", "1")
    assert ended == exits.USAGE
    assert "[y/N]" not in shown
