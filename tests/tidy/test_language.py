"""Words of an older vocabulary do not come back."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

# Joined here so that this file does not hold what it looks for.
BANNED = {
    "no" + "body": "name who: no reader, no other process",
    "who" + "ever": "name who: the caller, a process that",
    "be" + "side": "next to, in addition to, together with, while",
    "u" + "pon": "on",
    "is told" + " by": "is detected by",
    "comes to" + " stand": "is placed",
    "of nothing" + " there": "an empty ... has none",
    "gar" + "dener": "maintenance",
    "vanda" + "lise": "corrupt",
}
"""A word, and what to write."""

PATTERN = re.compile(r"\b(" + "|".join(BANNED) + r")\b", re.IGNORECASE)


@pytest.mark.parametrize("folder", ["src", "docs", "bench", "demo", "tools", "."])
def test_words_of_the_field_are_used(root: Path, text_files: list[Path], folder: str) -> None:
    """Source, documents, benchmarks, demo and tools use the field's words: `BANNED` says which."""
    wrong = []
    for path in text_files:
        relative = path.relative_to(root)
        if path.suffix not in {".py", ".md"} or (relative.parts[0] if len(relative.parts) > 1 else ".") != folder:
            continue
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
            for match in PATTERN.finditer(line):
                wrong.append(f"{relative}:{number}: {match[0]}: {BANNED[match[0].lower()]}")
    assert not wrong, "\n".join(wrong)
