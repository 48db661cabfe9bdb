"""The project's own source, parsed once for every tidiness test."""

from __future__ import annotations

import ast
import gc
import os
import subprocess
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@dataclass(frozen=True)
class Module:
    """One Python file: where it is, what Python calls it, its text and its tree."""

    path: Path
    name: str
    text: str
    tree: ast.Module

    @cached_property
    def nodes(self) -> list[ast.AST]:
        """All nodes of the tree but the contexts of names, which are a third of what `ast.walk` gives."""
        result: list[ast.AST] = []
        rest: list[ast.AST] = [self.tree]
        while rest:
            node = rest.pop()
            result.append(node)
            for field in node._fields:
                value = getattr(node, field)
                if isinstance(value, list):
                    rest.extend(item for item in value if isinstance(item, ast.AST))
                elif isinstance(value, ast.AST) and not isinstance(value, ast.expr_context):
                    rest.append(value)
        return result

    @property
    def package(self) -> str:
        """The first name below ``lakebed``, such as ``table``; empty for the package itself."""
        return ([*self.name.split("."), ""])[1]

    @property
    def shown(self) -> str:
        """The path as a person types it."""
        return str(self.path.relative_to(ROOT))


def parse(path: Path) -> Module:
    """Read one file; its module name is its path below ``src``, or below ``tests`` for the package ``worlds``."""
    text = path.read_text(encoding="utf-8")
    relative = path.relative_to(ROOT)
    parts = list(relative.with_suffix("").parts)
    name = ".".join(
        part
        for part in parts[1 if parts[0] == "src" or parts[:2] == ["tests", "worlds"] else 0 :]
        if part != "__init__"
    )
    return Module(path, name, text, ast.parse(text, filename=str(path)))


def parse_all(folder: str) -> list[Module]:
    """Read every Python file below a folder, in the order of paths.

    Millions of nodes live until the tests end: the garbage collector does not look at them again.
    """
    gc.disable()
    try:
        result = [parse(path) for path in sorted((ROOT / folder).rglob("*.py"))]
        for module in result:
            assert module.nodes
    finally:
        gc.freeze()
        gc.enable()
    return result


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """One worker runs all of these tests, so that the files are parsed once. Without workers there are no groups."""
    if not config.pluginmanager.hasplugin("xdist"):
        return
    for item in items:
        if str(item.path).startswith(f"{Path(__file__).parent}{os.sep}"):
            item.add_marker(pytest.mark.xdist_group("tidy"))


@pytest.fixture(scope="session")
def root() -> Path:
    """The checkout."""
    return ROOT


@pytest.fixture(scope="session")
def sources() -> list[Module]:
    """Every module of the package."""
    return parse_all("src")


@pytest.fixture(scope="session")
def test_modules() -> list[Module]:
    """Every module of the tests."""
    return parse_all("tests")


@pytest.fixture(scope="session")
def packages(sources: list[Module], test_modules: list[Module]) -> list[Module]:
    """Every module of the package, and of the package that tests share."""
    return [*sources, *(module for module in test_modules if module.name.split(".")[0] == "worlds")]


@pytest.fixture(scope="session")
def all_modules(sources: list[Module], test_modules: list[Module]) -> list[Module]:
    """Package, tests, benchmarks, demo and tools."""
    others = [module for folder in ("bench", "demo", "tools") for module in parse_all(folder)]
    return sources + test_modules + others


@pytest.fixture(scope="session")
def text_files() -> list[Path]:
    """Every text file that git knows or would know, except licences and lock files of data."""
    listed = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    ).stdout.splitlines()
    binary = {".parquet", ".avro", ".png", ".gz", ".xz", ".zip", ".orc", ".bin", ".arrow"}
    paths = [ROOT / name for name in listed]
    return [path for path in paths if path.is_file() and path.suffix not in binary and path.name != "LICENSE"]
