"""The guide of imports and exports runs as pasted."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[3]


def test_the_blocks_of_the_guide_run(tmp_path: Path) -> None:
    """Python blocks first, then the lakebed commands, in an empty folder; none prints an error."""
    folder, page = tmp_path / "paste", ROOT / "docs" / "guide" / "coming-and-leaving.md"
    subprocess.run([sys.executable, ROOT / "tools" / "quickstart.py", page, folder], check=True)
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
    assert done.stdout.splitlines()[3:6] == ["[(3,)]", "4", "4"]
