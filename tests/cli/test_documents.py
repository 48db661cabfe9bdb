"""The pages run as pasted: every block of the README, the guides and the reference, in order, in an empty folder."""

from __future__ import annotations

import code
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from worlds.modules import load_module

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
GUIDES = [ROOT / "README.md", *sorted(DOCS.glob("guide/*.md")), *sorted(DOCS.glob("reference/*.md"))]
PAGES = [
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


PROMPT = """
import os, runpy, shlex, sys
import pandas, pyarrow.compute, pyarrow.parquet
import lakebed.cli.main

def run_page(folder):
    os.chdir(folder)
    for descriptor, name in ((1, "printed"), (2, "errors")):
        os.dup2(os.open(name, os.O_WRONLY | os.O_CREAT), descriptor)
    runpy.run_path("quickstart.py", run_name="__main__")
    for line in open("quickstart.sh").read().splitlines()[1:]:
        code = lakebed.cli.main.run(shlex.split(line)[1:])
        if code:
            sys.exit(f"{line}: {code}")

for line in sys.stdin:
    child = os.fork()
    if child == 0:
        run_page(line.strip())
        break
    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
"""
"""A page's blocks of Python, then its commands, in a fork of its own: a start of Python, and imports, for each tell
nothing new after the README."""


@pytest.fixture(scope="module")
def run_page() -> Iterator[Callable[[Path], int]]:
    """Run what a folder has of a page: ``printed`` and ``errors`` in it say what came; the code of its process."""
    with subprocess.Popen([sys.executable, "-c", PROMPT], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        requests, replies = process.stdin, process.stdout
        assert requests is not None
        assert replies is not None

        def run(folder: Path) -> int:
            requests.write(b"%s\n" % os.fsencode(folder))
            requests.flush()
            return int(replies.readline())

        yield run
        requests.close()


def paste(page: str, folder: Path) -> Path:
    """A folder with the blocks of a page."""
    subprocess.run([sys.executable, ROOT / "tools" / "quickstart.py", ROOT / page, folder], check=True)
    return folder


def test_the_blocks_of_the_first_page_run(tmp_path: Path) -> None:
    """Python blocks first, then the lakebed commands, by a shell as a person pastes them; no errors."""
    scripts = str(Path(sys.executable).parent)
    done = subprocess.run(
        ["sh", "-e", "quickstart.sh"],
        cwd=paste("README.md", tmp_path / "paste"),
        env={**os.environ, "PATH": f"{scripts}{os.pathsep}{os.environ['PATH']}"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    assert done.stdout


@pytest.mark.parametrize("page", PAGES)
def test_the_blocks_of_a_page_run(tmp_path: Path, page: str, run_page: Callable[[Path], int]) -> None:
    """Python blocks first, then the lakebed commands; no errors."""
    folder = paste(page, tmp_path / "paste")
    code = run_page(folder)
    errors = (folder / "errors").read_text()
    assert code == 0, errors
    assert errors == ""
    assert (folder / "printed").read_text()
