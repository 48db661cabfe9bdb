"""The public interface is written down, so that a change of it is seen in review."""

from __future__ import annotations

import difflib
import subprocess
import sys
from pathlib import Path


def test_the_public_interface_is_the_one_written_down(root: Path) -> None:
    """docs/reference/public.txt has every public name with its parameters."""
    written = (root / "docs" / "reference" / "public.txt").read_text().splitlines()
    command = [sys.executable, str(root / "tools" / "surface.py")]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    changes = [line for line in difflib.ndiff(written, done.stdout.splitlines()) if line[:1] in "+-"]
    shown = "\n".join(changes)
    assert not changes, f"python tools/surface.py > docs/reference/public.txt writes it anew. Changed:\n{shown}"
