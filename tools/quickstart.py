"""Writes the code blocks of a page, as a person would paste them, into a folder: ``quickstart.sh`` runs them all.

    python tools/quickstart.py README.md FOLDER

Python blocks become one program, shell blocks that call lakebed follow it. Blocks that install or call make are left
out: that is done before this runs. Continuous integration runs the result with an installed wheel and nothing else.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

_BLOCK = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def blocks_of(page: str, language: str) -> list[str]:
    """The code blocks of a page in one language, in order."""
    return [body for found, body in _BLOCK.findall(page) if found == language]


def program_of(page: str) -> str:
    """All Python blocks of a page as one program."""
    return "\n".join(blocks_of(page, "python"))


def commands_of(page: str) -> str:
    """The lakebed commands of a page's shell blocks."""
    return "".join(body for body in blocks_of(page, "sh") if body.startswith("lakebed "))


def main() -> None:
    """Write the blocks of the page named first into the folder named second."""
    page, folder = Path(sys.argv[1]).read_text(encoding="utf-8"), Path(sys.argv[2])
    folder.mkdir(parents=True)
    (folder / "quickstart.py").write_text(program_of(page), encoding="utf-8")
    (folder / "quickstart.sh").write_text("python quickstart.py\n" + commands_of(page), encoding="utf-8")


if __name__ == "__main__":
    main()
