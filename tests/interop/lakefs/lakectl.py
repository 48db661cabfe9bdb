"""Run lakectl against lakeFS and against `lakebed serve`, and compare how its commands end and what they print.

    .venv/bin/python tests/interop/lakefs/lakectl.py [--show]

``make lakefs`` builds lakectl and lakeFS. ``lakectl.txt`` has the commands, ``lakectl.toml`` the lines of it that
differ, with their reasons: a command that differs and is not listed, or is listed and does not differ, is an error.
What no two servers have in common is left out of the comparison: ids of commits, times, addresses, keys, ports. Of an
error the status counts, and not its sentence, which says here what to do.
"""

from __future__ import annotations

import argparse
import os
import re
import shlex
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

sys.path.insert(0, str(Path(__file__).parents[3] / "bench" / "peers"))

from lakefs_server import BUILT, Place, lakebed_server, lakefs_server

_COMMANDS: Final = Path(__file__).with_suffix(".txt")
_KNOWN: Final = Path(__file__).with_suffix(".toml")
_SECONDS_MAX: Final = 60
_USER: Final = "admin"
"""Who acts on lakeFS; here it is the access key."""

_LEFT_OUT: Final = (
    (re.compile(r"\b[0-9a-f]{64}\b"), "<commit>"),
    (re.compile(r"\b[0-9a-f]{32}\b"), "<checksum>"),
    (re.compile(r"\b[0-9a-f]{8,16}\b"), "<commit>"),
    (re.compile(r"\d{4}-\d\d-\d\d[ T]\d\d:\d\d:\d\d(\.\d+)? ?([-+]\d{4}( \w+)?|Z)"), "<time>"),
    (re.compile(r"(?i)\b(request[ _]id:?) ?\S+"), r"\1 <id>"),
    (re.compile(r"\b\d+(\.\d+)? ?[mµ]?s\b"), "<duration>"),
)


_STATUS: Final = re.compile(r"^[45]\d\d [A-Z][A-Za-z ]+$", re.MULTILINE)
"""The last line of what lakectl says of an error that a server answered."""


@dataclass(frozen=True)
class Ending:
    """How a command ended."""

    code: int
    output: str
    problem: str


class Shell:
    """Runs the commands against one server, in a folder of its own."""

    def __init__(self, place: Place, folder: Path) -> None:
        self._place = place
        self._folder = folder
        self._namespaces = 0
        folder.mkdir()
        settings = {
            "LAKECTL_SERVER_ENDPOINT_URL": place.endpoint,
            "LAKECTL_CREDENTIALS_ACCESS_KEY_ID": place.access_key,
            "LAKECTL_CREDENTIALS_SECRET_ACCESS_KEY": place.secret,
            "LAKECTL_INTERACTIVE": "false",
            "HOME": str(folder),
            "TZ": "UTC",
        }
        self._environment = {**os.environ, **settings}

    def run(self, command: str) -> Ending:
        """Run a line of the list."""
        if "{namespace}" in command:
            self._namespaces += 1
            command = command.replace("{namespace}", f"local://compared-{self._namespaces}")
        words = (
            ["sh", "-c", command[1:]] if command.startswith("!") else [str(BUILT / "lakectl"), *shlex.split(command)]
        )
        done = subprocess.run(
            words,
            cwd=self._folder,
            env=self._environment,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=_SECONDS_MAX,
            check=False,
        )
        problem = self._without_ids(done.stderr)
        statuses = _STATUS.findall(problem) if done.returncode else []
        return Ending(done.returncode, self._without_ids(done.stdout), statuses[-1] if statuses else problem)

    def _without_ids(self, text: str) -> str:
        for name, word in (
            (str(self._folder), "<folder>"),
            (self._place.endpoint, "<endpoint>"),
            (self._place.access_key, _USER),
        ):
            text = text.replace(name, word)
        text = re.sub(r"(?m)^(Physical Address: ).*$", r"\1<address>", text)
        for pattern, word in _LEFT_OUT:
            text = pattern.sub(word, text)
        # Several files are moved at once, and each is told when it ends.
        text = re.sub(r"(?m)(^.* \.\.\. done!\n)+", lambda lines: "".join(sorted(lines[0].splitlines(True))), text)
        # Tables are as wide as what is in them.
        return re.sub(r"[ \t]+", " ", re.sub(r"[-─]{4,}", "----", text))


def commands() -> list[str]:
    """The lines of the list."""
    lines = _COMMANDS.read_text().splitlines()
    return [line for line in lines if line and not line.startswith("#")]


def compare(folder: Path) -> Iterator[tuple[int, str, Ending, Ending]]:
    """Every command with how it ended on lakeFS and here; its number counts from 1."""
    with lakefs_server(folder / "lakefs") as theirs, lakebed_server(folder / "lakebed") as ours:
        peer, shell = Shell(theirs, folder / "with-lakefs"), Shell(ours, folder / "with-lakebed")
        for number, command in enumerate(commands(), 1):
            yield number, command, peer.run(command), shell.run(command)


def main() -> int:
    """Compare, print what differs and is not listed, and the score; the exit code is 1 when something is."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--show", action="store_true", help="Print both sides of every command that differs.")
    arguments = parser.parse_args()
    listed: dict[str, str] = tomllib.loads(_KNOWN.read_text())["differences"]
    alike = count = 0
    problems: list[str] = []
    differing: set[str] = set()
    with tempfile.TemporaryDirectory() as folder:
        for number, command, theirs, ours in compare(Path(folder)):
            is_alike = theirs == ours
            if not command.startswith("!"):
                count += 1
                alike += is_alike
            if is_alike:
                continue
            differing.add(command)
            if command not in listed:
                problems.append(f"{command} differs, and is not listed")
            if arguments.show or command not in listed:
                print(f"{number} {command}\n  lakeFS  {theirs}\n  lakebed {ours}")
    problems += [f"{command} does not differ, and is listed" for command in sorted(listed.keys() - differing)]
    print("\n".join(problems))
    print(f"{alike} of {count} commands end alike.")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
