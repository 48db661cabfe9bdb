"""Short programs, each in a process of its own: what is loaded, or what memory is taken, is theirs alone."""

from __future__ import annotations

import fcntl
import os
import pty
import struct
import subprocess
import sys
import termios
from collections.abc import Sequence
from pathlib import Path


def run_script(program: str, *arguments: str) -> str:
    """Run a program; what it printed. Raises `AssertionError` with what it said when it failed."""
    command = [sys.executable, "-c", program, *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-5000:]
    return done.stdout


def run_at_terminal(command: Sequence[str | Path], *, width: int | None = None, **variables: str) -> str:
    """What a command prints at a pseudo-terminal of some width, standard output and error together."""
    shown_at, terminal = pty.openpty()
    if width is not None:
        fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", 24, width, 0, 0))
    environment = {name: value for name, value in os.environ.items() if name not in ("COLUMNS", "LINES")}
    environment |= {"TERM": "xterm-256color", **variables}
    child = subprocess.Popen(command, stdin=terminal, stdout=terminal, stderr=terminal, env=environment)
    os.close(terminal)
    shown = bytearray()
    try:
        while chunk := os.read(shown_at, 65536):
            shown += chunk
    except OSError:  # the terminal has no other end any more: the child is done
        pass
    os.close(shown_at)
    text = shown.decode(errors="replace")
    assert child.wait() == 0, text[-3000:]
    return text
