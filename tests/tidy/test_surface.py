"""The public interface is written down, so that a change of it is seen in review."""

from __future__ import annotations

import difflib
import inspect
import re
import runpy
from pathlib import Path
from typing import Any

import pytest

import lakebed
from lakebed.repo.branch import Branch
from lakebed.repo.verbs.pick import PickOptions
from lakebed.table.branch.travel import SourceOptions
from lakebed.table.collect.expire import ExpireRules
from lakebed.table.commit.commit import CommitOptions
from lakebed.table.read.scan import ReadOptions, RowOptions
from lakebed.table.versions.versions import TableView


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


@pytest.mark.parametrize("kind", [lakebed.Table, TableView, Branch])
def test_help_at_the_prompt_names_every_keyword(kind: type) -> None:
    """A method that takes keywords names each in its docstring, or refers to a method that does."""
    missing = []
    for name, method in inspect.getmembers(kind, inspect.isfunction):
        text = str(inspect.getdoc(method))
        if other := re.search(r"\bas `(\w+)`", text):
            text += str(inspect.getdoc(getattr(kind, other[1], None)))
        for parameter in inspect.signature(method).parameters.values():
            if parameter.kind is parameter.VAR_KEYWORD and not name.startswith("_"):
                keywords = KEYWORDS[parameter.annotation].__annotations__
                missing += [f"{name}: {keyword}" for keyword in keywords if f"`{keyword}`" not in text]
    assert not missing


KEYWORDS: dict[str, Any] = {
    f"Unpack[{kind.__name__}]": kind
    for kind in (CommitOptions, ExpireRules, PickOptions, ReadOptions, RowOptions, SourceOptions)
}
"""What declares keywords, by the annotation of methods that take them."""


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
