"""The guides to the server, as a person would follow them: every block in its order, with the clients they name."""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from worlds.ports import free_port

ROOT = Path(__file__).parents[3]
PAGE = ROOT / "docs" / "guide" / "server.md"
MOVING = ROOT / "docs" / "guide" / "from-lakefs.md"
GOLDEN = ROOT / "tests" / "golden" / "lakefs"
"""What lakeFS's server has written."""
PORT = "8000"
_BLOCK = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)

INTERPRETER = """
import contextlib, json, sys, traceback
names, answers = {}, sys.stdout
for line in sys.stdin:
    answer = {}
    try:
        with contextlib.redirect_stdout(sys.stderr):
            exec(compile(json.loads(line), "block", "exec"), names)
    except Exception:
        answer = {"error": traceback.format_exc()}
    print(json.dumps(answer), file=answers, flush=True)
"""


class Reader:
    """A person with a terminal, one Python with the clients, and one with lakebed."""

    def __init__(self, folder: Path, clients: Path) -> None:
        self.folder = folder
        self.environment = {**os.environ, "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"}
        self.environment["LAKECTL_CONFIG_FILE"] = str(folder / "no-such-file")
        self.told: dict[str, str] = {}
        self.pythons = {"clients": clients, "lakebed": Path(sys.executable)}
        self.running: dict[str, subprocess.Popen[str]] = {}

    def follow(self, language: str, block: str) -> bool:
        """Do what a block says; whether it was one to follow."""
        if language == "sh":
            for line in block.splitlines():
                self._type(line)
        elif language == "python":
            self._run("lakebed" if "from lakebed" in block else "clients", block)
        return language in ("sh", "python")

    def _type(self, line: str) -> None:
        words = shlex.split(line)
        if words[0] == "export":
            name, _, value = words[1].partition("=")
            known = self.told["secret" if "SECRET" in name else "access key"] if value == "..." else value
            self.environment[name] = known
        elif words[:2] == ["lakebed", "serve"]:
            self._serve(words)
        elif words[0] == "lakebed":
            done = subprocess.run(
                words, cwd=self.folder, env=self.environment, capture_output=True, text=True, check=False
            )
            assert (done.returncode, done.stderr) == (0, ""), f"{line}\n{done.stderr}"
            assert done.stdout
        else:
            assert words[0] == "pip", f"nobody knows how to run {line!r}"

    def _serve(self, words: list[str]) -> None:
        with (self.folder / "server.log").open("w") as log:
            process = subprocess.Popen(
                words, cwd=self.folder, env=self.environment, stdout=subprocess.PIPE, stderr=log, text=True
            )
        self.running["server"] = process
        assert process.stdout is not None
        for line in process.stdout:
            found = re.fullmatch(r"  (access key|secret) +(\S+)\n", line)
            if found is not None:
                self.told[found[1]] = found[2]
            if len(self.told) == 2:
                return
        pytest.fail((self.folder / "server.log").read_text())

    def _run(self, name: str, block: str) -> None:
        if name not in self.running:
            with (self.folder / f"{name}.log").open("w") as log:
                self.running[name] = subprocess.Popen(
                    [str(self.pythons[name]), "-c", INTERPRETER],
                    cwd=self.folder,
                    env=self.environment,
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    stderr=log,
                    text=True,
                )
        process = self.running[name]
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write(json.dumps(block) + "\n")
        process.stdin.flush()
        answer = json.loads(process.stdout.readline() or '{"error": "the interpreter ended"}')
        assert answer == {}, f"{block}\n{answer['error']}"

    def leave(self) -> None:
        """End what was started."""
        for process in self.running.values():
            if process.stdin is not None:
                process.stdin.close()
            process.terminate()
            process.wait(60)
            assert process.stdout is not None
            process.stdout.close()


@pytest.fixture
def reader(tmp_path: Path, clients_python: Path) -> Iterator[Reader]:
    """A reader who follows the page in an empty folder."""
    person = Reader(tmp_path, clients_python)
    yield person
    person.leave()


def follow(reader: Reader, page: Path) -> list[str]:
    """Follow every block of a page; the languages of those that were followed."""
    text = page.read_text(encoding="utf-8").replace(PORT, str(free_port()))  # the one of the page may be in use here
    return [language for language, block in _BLOCK.findall(text) if reader.follow(language, block)]


@pytest.mark.xdist_group("lakefs-guide")
def test_the_guide_works_as_pasted(reader: Reader) -> None:
    """From the first start of a server to its last block, nothing fails and nothing is left out."""
    assert follow(reader, PAGE).count("python") >= 4
    assert (reader.folder / "lake" / "analytics").is_dir()


@pytest.mark.xdist_group("lakefs-guide")
def test_the_guide_of_moving_works_as_pasted(reader: Reader) -> None:
    """With a dump and a namespace of lakeFS's own server: imported, served, gone on with, and exported again."""
    shutil.copytree(GOLDEN / "namespace", reader.folder / "lakefs" / "analytics")
    shutil.copy(GOLDEN / "refs.json", reader.folder)
    assert follow(reader, MOVING) == ["sh", "sh", "python", "sh"]
    history = json.loads((GOLDEN / "history.json").read_text())
    new_ids = json.loads((reader.folder / "ids.json").read_text())
    kept = [commit["message"] for id, commit in history["commits"].items() if id not in new_ids]
    assert kept == ["Repository created"]  # which has no files; the namespace is another one
    assert (reader.folder / "back" / "analytics" / "_lakefs" / "refs_manifest.json").is_file()
