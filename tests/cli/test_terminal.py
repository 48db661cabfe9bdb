"""Every command of the reference page at a real terminal of 60 columns, and in a pipe."""

from __future__ import annotations

import json
import os
import re
import runpy
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from lakebed.cli import exits
from lakebed.cli.commands import ROOT, is_answer
from lakebed.cli.parser import find
from worlds.scripts import run_at_terminal

RUNNER = Path(__file__).parent / "every_command.py"
COMMANDS: list[tuple[str, int]] = runpy.run_path(str(RUNNER))["COMMANDS"]
COLOR = re.compile(r"\x1b\[[0-9;]*(3[0-7]|9[0-7]|4[0-7]|38|48)[0-9;]*m")
TABLE_LINE = re.compile(r"─{10,}")


def test_the_story_has_every_command() -> None:
    """A command that is added is run here too."""
    paths = {result.path for line, _ in COMMANDS if (result := find(ROOT, line.split(" "))) is not None}
    assert paths == {command.path for command in ROOT.every()}


def test_every_command_at_a_terminal(tmp_path: Path) -> None:
    """It ends as it should, no table is wider than the terminal, and there are no colors where none are wanted."""
    shown = run_at_terminal([sys.executable, RUNNER, tmp_path, "60"], NO_COLOR="1")
    (codes,) = json.loads((tmp_path / "codes.json").read_text()).values()
    parts = shown.split("\x1e")
    wrong = [
        (line, code, part[-500:])
        for (line, expected), code, part in zip(COMMANDS, codes, parts, strict=False)
        if code != expected
    ]
    assert not wrong
    for (line, _), part in zip(COMMANDS, parts, strict=False):
        assert "Traceback" not in part, part
        for text in part.splitlines():
            assert not TABLE_LINE.search(text) or len(text) <= 60, (line, text)
    assert not COLOR.search(shown)
    assert "\x1b[?25l" in shown, "progress was shown: the cursor was hidden for it"


def test_every_command_in_a_pipe(tmp_path: Path) -> None:
    """It ends as at a terminal, whatever the encoding lacks, and nothing of a terminal's is in its output."""
    done = subprocess.run(
        [sys.executable, RUNNER, tmp_path, "0"],
        capture_output=True,
        text=True,
        check=False,
        env=os.environ | {"PYTHONIOENCODING": "ascii"},
    )
    assert done.returncode == 0, done.stderr[-3000:]
    (codes,) = json.loads((tmp_path / "codes.json").read_text()).values()
    for (line, expected), code, part in zip(COMMANDS, codes, done.stdout.split("\x1e"), strict=False):
        assert code == expected, (line, part, done.stderr[-2000:])
    assert "\x1b" not in done.stdout + done.stderr
    assert "Traceback" not in done.stderr
    assert "v\\xe4lue 7" in done.stdout, "a table is in the encoding of the pipe"
    json.loads(done.stdout.split("\x1e")[[line for line, _ in COMMANDS].index("ls LAKE --json")])


def run_every_command(folder: Path, redirections: str) -> None:
    """Run every command with redirected standard streams, and check how each ends."""
    runs = shlex.join([sys.executable, str(RUNNER), str(folder), "0"])
    done = subprocess.run(["sh", "-c", f"{runs} {redirections}"], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    (codes,) = json.loads((folder / "codes.json").read_text()).values()
    is_lost = not {">/dev/full", ">&-"}.isdisjoint(redirections.split(" "))
    for (line, expected), code in zip(COMMANDS, codes, strict=True):
        command = find(ROOT, line.split(" "))
        assert command is not None
        is_failed = is_lost and expected == exits.OK and is_answer(command.path)
        assert code == (exits.UNAVAILABLE if is_failed else expected), (line, code, done.stderr[-2000:])
    assert "Traceback" not in done.stderr


def test_no_command_depends_on_whether_it_can_print(tmp_path: Path) -> None:
    """With a full output and neither input nor errors, what changes something ends as always, what answers with 6."""
    run_every_command(tmp_path, ">/dev/full 2>&- <&-")


@pytest.mark.long
@pytest.mark.parametrize(
    "redirections",
    ["<&-", ">&-", "2>&-", ">/dev/full", "2>/dev/full", "| head -1", ">&- 2>&- <&-", "2>/dev/full | true"],
)
def test_no_command_depends_on_a_standard_stream(tmp_path: Path, redirections: str) -> None:
    """The same of each stream that is closed, full or gone."""
    run_every_command(tmp_path, redirections)
