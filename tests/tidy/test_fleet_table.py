"""The table of the fleet's requirements names tests that exist, and leaves nothing out."""

from __future__ import annotations

import ast
import re
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parents[2]
TABLE = ROOT / "docs" / "design" / "0044-fleet-requirements.md"


@cache
def functions_of(path: str) -> frozenset[str]:
    """The test functions of a file."""
    tree = ast.parse((ROOT / path).read_text())
    return frozenset(node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef))


def test_every_named_test_exists() -> None:
    """Each pointer is a function of its file."""
    named = re.findall(r"`(tests/[^`:]+\.py)::(test_\w+)`", TABLE.read_text())
    assert len(named) > 80
    missing = [f"{path}::{name}" for path, name in named if name not in functions_of(path)]
    assert not missing


def test_every_row_names_a_test() -> None:
    """A row of a table ends with at least one pointer."""
    rows = [line for line in TABLE.read_text().splitlines() if line.startswith("| ") and "held by" not in line]
    empty = [row for row in rows if "---" not in row and "::test_" not in row.rpartition(" | ")[2]]
    assert not empty


def test_no_requirement_is_left_out() -> None:
    """R1 to R30, I1 to I11, L1 and L2, and the thirteen repairs."""
    rows = {line.split("|")[1].strip() for line in TABLE.read_text().splitlines() if line.startswith("| ")}
    wanted = [f"R{number}" for number in range(1, 31)] + [f"I{number}" for number in range(1, 12)]
    wanted += ["L1", "L2", *(str(number) for number in range(1, 14))]
    assert not [item for item in wanted if item not in rows]
