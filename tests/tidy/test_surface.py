"""The public interface is written down, so that a change of it is seen in review."""

from __future__ import annotations

import difflib
import runpy
from pathlib import Path

import pytest


@pytest.mark.parametrize(
    ("tool", "function", "page"),
    [("surface.py", "surface", "public.txt"), ("command_line.py", "make_page", "command-line.md")],
)
def test_the_public_interface_is_the_one_written_down(root: Path, tool: str, function: str, page: str) -> None:
    """docs/reference has every public name of Python with its parameters, and every command with its options."""
    written = (root / "docs" / "reference" / page).read_text().splitlines()
    present = runpy.run_path(str(root / "tools" / tool))[function]().splitlines()
    changes = [line for line in difflib.ndiff(written, present) if line[:1] in "+-"]
    shown = "\n".join(changes)
    assert not changes, f"python tools/{tool} > docs/reference/{page} writes it anew. Changed:\n{shown}"
