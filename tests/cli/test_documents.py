"""The pages run as pasted: every block of the README and the guides, in order, in an empty folder."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGES = [
    "README.md",
    "docs/guide/quickstart.md",
    "docs/guide/tables.md",
    "docs/guide/databases.md",
    "docs/guide/repositories.md",
]


@pytest.mark.parametrize("page", PAGES)
def test_the_blocks_of_a_page_run(tmp_path: Path, page: str) -> None:
    """Python blocks first, then the lakebed commands, each as a person pastes them; none prints an error."""
    folder = tmp_path / "paste"
    subprocess.run([sys.executable, ROOT / "tools" / "quickstart.py", ROOT / page, folder], check=True)
    scripts = str(Path(sys.executable).parent)
    done = subprocess.run(
        ["sh", "-e", "quickstart.sh"],
        cwd=folder,
        env={**os.environ, "PATH": f"{scripts}{os.pathsep}{os.environ['PATH']}"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    assert done.stdout
