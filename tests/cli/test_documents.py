"""The pages run as pasted: every block of the README, the guides and the reference, in order, in an empty folder."""

from __future__ import annotations

import code
import os
import subprocess
import sys
from pathlib import Path

import pytest

from worlds.modules import load_module

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
GUIDES = [ROOT / "README.md", *sorted(DOCS.glob("guide/*.md")), *sorted(DOCS.glob("reference/*.md"))]
PAGES = [
    "README.md",
    "docs/guide/quickstart.md",
    "docs/guide/tables.md",
    "docs/guide/databases.md",
    "docs/guide/repositories.md",
    "docs/guide/testing.md",
    "docs/reference/lake.md",
    "docs/reference/table.md",
    "docs/reference/database.md",
    "docs/reference/repository.md",
    "docs/reference/pipeline.md",
]


class Prompt(code.InteractiveConsole):
    """The plain Python prompt, which only parses: the blocks are run by the test below."""

    def __init__(self) -> None:
        super().__init__()
        self.mistakes: list[str] = []

    def runcode(self, code: object) -> None:
        """Run nothing."""

    def showsyntaxerror(self, *arguments: object, **options: object) -> None:
        """Remember a line that the prompt refuses."""
        self.mistakes.append(str(sys.exc_info()[1]))


def refused_by_the_prompt(block: str) -> list[str]:
    """What the prompt says to a block that is pasted into it, line by line."""
    prompt = Prompt()
    unfinished = False
    for line in block.split("\n"):
        unfinished = prompt.push(line)
    return [*prompt.mistakes, *(["the block is not finished"] if unfinished else [])]


def test_the_blocks_of_the_guides_can_be_pasted_into_the_prompt() -> None:
    """No block has an empty line inside a compound statement, or a line right behind one."""
    quickstart = load_module(ROOT / "tools" / "quickstart.py")
    assert refused_by_the_prompt("for one in []:\n    one\none\n")
    assert refused_by_the_prompt("with a:\n    b\n\n    c\n")
    wrong = {
        f"{page.name}, block {number}": mistakes
        for page in GUIDES
        for number, block in enumerate(quickstart.blocks_of(page.read_text(), "python"), start=1)
        if (mistakes := refused_by_the_prompt(block))
    }
    assert not wrong


COMMANDS = """
import runpy, shlex, sys
from lakebed.cli.main import run
runpy.run_path("quickstart.py", run_name="__main__")
for line in open("quickstart.sh").read().splitlines()[1:]:
    code = run(shlex.split(line)[1:])
    if code:
        sys.exit(f"{line}: {code}")
"""
"""A page's blocks of Python, then its commands, in one process: a start of Python for each tells nothing new after the
README."""


@pytest.mark.parametrize("page", PAGES)
def test_the_blocks_of_a_page_run(tmp_path: Path, page: str) -> None:
    """Python blocks first, then the lakebed commands, of the README by a shell as a person pastes them; no errors."""
    folder = tmp_path / "paste"
    subprocess.run([sys.executable, ROOT / "tools" / "quickstart.py", ROOT / page, folder], check=True)
    scripts = str(Path(sys.executable).parent)
    runs = [["sh", "-e", "quickstart.sh"]]
    if page != "README.md":
        runs = [[sys.executable, "-c", COMMANDS]]
    printed = ""
    for command in runs:
        done = subprocess.run(
            command,
            cwd=folder,
            env={**os.environ, "PATH": f"{scripts}{os.pathsep}{os.environ['PATH']}"},
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        assert done.stderr == ""
        printed += done.stdout
    assert printed
