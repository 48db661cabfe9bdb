"""The files around the source: dependencies, commands in documents, words that do not belong."""

from __future__ import annotations

import ast
import re
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest

# Joined here so that this file does not hold what it looks for.
REGISTRIES = [
    ".".join(parts) for parts in (("pypi", "org"), ("pythonhosted", "org"), ("npmjs", "org"), ("maven", "org"))
]
UNFINISHED = re.compile(r"\b(" + "|".join(("TO" + "DO", "FIX" + "ME", "XX" + "X", "HA" + "CK")) + r")\b|^[<>]{7} ")
ONE_MACHINE = re.compile(r"(?<![\w.$}])/" + r"(?:work|root|home/\w+|Users/\w+)/")

# Import names that differ from the name of the package that brings them.
IMPORT_NAMES = {
    "yaml": "pyyaml",
    "typing_extensions": "typing-extensions",
    "pypaimon_rust": "pypaimon-rust",
    "python_multipart": "python-multipart",
}


def documents(root: Path) -> list[Path]:
    """Every page that a person reads."""
    return [*sorted(root.glob("*.md")), *sorted((root / "docs").rglob("*.md"))]


def test_every_dependency_has_its_reason(root: Path) -> None:
    """Nothing is depended on without a comment that says what for."""
    inside = False
    wrong = []
    for number, line in enumerate((root / "pyproject.toml").read_text().splitlines(), 1):
        if re.match(r"^(dependencies|[a-z]+) = \[$", line):
            inside = True
        elif line.startswith("]"):
            inside = False
        elif inside and re.match(r'^    "[A-Za-z].*[>=<]', line) and not re.search(r'",?\s+# \S', line):
            wrong.append(f"pyproject.toml:{number}: {line.strip()}")
    assert not wrong, "\n".join(wrong)


def test_imports_are_declared(root: Path, sources: list[Any]) -> None:
    """What the package imports, it depends on (an extra counts)."""
    project = tomllib.loads((root / "pyproject.toml").read_text())["project"]
    declared = [
        *project["dependencies"],
        *(name for extra in project["optional-dependencies"].values() for name in extra),
    ]
    names = {re.split(r"[\[<>=!~ ;]", name)[0].lower() for name in declared} | {"lakebed", "py4j"}
    known = set(sys.stdlib_module_names)
    wrong = set()
    for module in sources:
        for node in module.nodes:
            roots = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            roots += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            for name in {entry.split(".")[0] for entry in roots} - known:
                if IMPORT_NAMES.get(name, name).lower() not in names:
                    wrong.add(f"{module.shown}: {name}")
    assert not wrong, "\n".join(sorted(wrong))


def test_commands_in_documents_exist(root: Path) -> None:
    """Every `make` target that a page names is a target."""
    targets = set(re.findall(r"^([a-z-]+):", (root / "Makefile").read_text(), re.MULTILINE))
    wrong = []
    for page in documents(root):
        for target in re.findall(r"(?:`|^\s*\$?\s*)make ([a-z][a-z-]*)", page.read_text(), re.MULTILINE):
            if target not in targets:
                wrong.append(f"{page.relative_to(root)}: make {target}")
    assert not wrong, "\n".join(wrong)


def test_links_between_documents_lead_somewhere(root: Path) -> None:
    """A relative link in a page names a file that is there."""
    wrong = []
    for page in documents(root):
        for target in re.findall(r"\]\(([^)#\s]+)[^)]*\)", page.read_text()):
            if "://" not in target and not (page.parent / target).exists():
                wrong.append(f"{page.relative_to(root)}: {target}")
    assert not wrong, "\n".join(wrong)


def test_no_registry_is_named(root: Path, text_files: list[Path]) -> None:
    """Packages come from wherever the user's own configuration says."""
    wrong = [str(path.relative_to(root)) for path in text_files if any(name in read(path) for name in REGISTRIES)]
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize("pattern", [UNFINISHED, ONE_MACHINE], ids=["unfinished", "one-machine"])
def test_words_that_do_not_belong(root: Path, text_files: list[Path], pattern: re.Pattern[str]) -> None:
    """No marks of unfinished work or of a merge that was not solved, and no path of one machine."""
    wrong = []
    for path in text_files:
        for number, line in enumerate(read(path).splitlines(), 1):
            if pattern.search(line):
                wrong.append(f"{path.relative_to(root)}:{number}: {line.strip()[:100]}")
    assert not wrong, "\n".join(wrong)


def read(path: Path) -> str:
    """A file's text; bytes that are not text are shown as marks."""
    return path.read_text(encoding="utf-8", errors="replace")


def test_files_that_documents_name_exist(root: Path) -> None:
    """Every source file that ARCHITECTURE.md names is there; a section names files of the packages in its heading."""
    text = (root / "ARCHITECTURE.md").read_text()
    sources = root / "src" / "lakebed"
    named = 0
    for section in text.split("\n## "):
        heading, _, body = section.partition("\n")
        folders = [sources, *(sources / package for package in re.findall(r"`(\w+)/`", heading))]
        for name in re.findall(r"`((?:\w+/)*\w+\.py)`", body):
            named += 1
            places = [root] if name.startswith("tests/") else folders
            assert any((folder / name).exists() for folder in places), name
    assert named > 40
