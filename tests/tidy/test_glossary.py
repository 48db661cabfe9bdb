"""The glossary holds: no public name, command or option has a word that the glossary rules out."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

from lakebed.cli.commands import ROOT


def ruled_out(root: Path) -> Iterator[tuple[str, str]]:
    """Words of the glossary's last column with their term; those with brackets behind them depend on the sense."""
    for line in (root / "docs" / "glossary.md").read_text().splitlines():
        cells = [cell.strip() for cell in line.strip().strip("|").split(" | ")]
        if line.startswith("| **"):
            term = cells[0].replace("*", "")
            for word in cells[-1].split(", "):
                if re.fullmatch(r"[a-z]+(-[a-z]+)*", word):
                    yield word, term


def parts(name: str) -> set[str]:
    """The words of a name: of snake case, of words with hyphens, of capitalised words."""
    return {word.lower() for word in re.findall(r"[A-Z]?[a-z]+|[A-Z]+(?![a-z])", name)}


def test_no_public_name_has_a_word_that_is_ruled_out(root: Path) -> None:
    """Classes, functions and their parameters, as docs/reference/public.txt has them."""
    words = dict(ruled_out(root))
    assert len(words) > 20
    lines = (root / "docs" / "reference" / "public.txt").read_text().splitlines()
    names = [line for line in lines if not line.removeprefix("class ").startswith("lakebed.testing.")]
    faults = [f"{name}: {word}, say {words[word]}" for name in names for word in sorted(parts(name) & words.keys())]
    assert not faults, "\n".join(faults)


def test_no_command_has_a_word_that_is_ruled_out(root: Path) -> None:
    """Groups, commands and their options; spellings of before stand in `cli/renamed.py`, not here."""
    words = dict(ruled_out(root))
    names = [
        (" ".join(spec.path), name)
        for spec in ROOT.every()
        for name in (*spec.path, *(name for option in spec.options for name in (*option.opts, *option.secondary_opts)))
    ]
    assert len(names) > 300
    faults = [
        f"{path}: {name}, say {words[word]}" for path, name in names for word in sorted(parts(name) & words.keys())
    ]
    assert not faults, "\n".join(faults)
