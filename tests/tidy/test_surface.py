"""The public interface is written down, so that a change of it is seen in review."""

from __future__ import annotations

import difflib
import re
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


CALLED_BY_LAKEBED = {"lakebed.kv.WriteBatch.columns", "lakebed.kv.WriteBatch.operands"}


def test_every_verb_has_an_example(root: Path) -> None:
    """Each public function and method is called in a Python block of the README, a guide or the reference."""
    docs = root / "docs"
    pages = [root / "README.md", *docs.glob("guide/*.md"), *docs.glob("reference/*.md")]
    block = re.compile(r"^```py(?:thon)?\n(.*?)^```$", re.MULTILINE | re.DOTALL)
    examples = "\n".join(body for page in pages for body in block.findall(page.read_text(encoding="utf-8")))
    called = set(re.findall(r"(\w+)\(", examples))
    public = (docs / "reference" / "public.txt").read_text(encoding="utf-8")
    verbs = re.findall(r"^(lakebed\.(?!testing)[\w.]+)\(", public, re.MULTILINE)
    assert len(verbs) > 200
    missing = [verb for verb in verbs if verb.rpartition(".")[2] not in called and verb not in CALLED_BY_LAKEBED]
    assert not missing, f"Show how these are called, on their page of docs/reference: {missing}"
