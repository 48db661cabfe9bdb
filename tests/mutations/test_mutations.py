"""Each defect of the catalog must be found by the tests that it names; ``make mutations`` prints the catalog.

A catalog file holds ``[[mutation]]`` tables with these keys:

    guarantee   what users lose when the defect is in, in one short sentence
    file        the file to change, relative to src/lakebed
    find        source text that occurs exactly once in that file
    replace     the text that takes its place
    tests       pytest node ids, relative to the checkout; at least one of them must fail
    slow        true where finding the defect takes over a second on two busy cores: run by make test-long

The defect is applied to a copy of the package and the tests run against the copy in a process of their own; nothing in
the checkout changes. That the same tests pass without the defect is shown by the rest of the suite.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "src" / "lakebed"
CATALOG = Path(__file__).parent / "catalog"
TESTS_FAILED = 1  # pytest's exit code; 0: all passed, anything else: the tests could not run


@dataclass(frozen=True)
class Mutation:
    """One entry of the catalog; the keys are described in the module's docstring."""

    guarantee: str
    file: str
    find: str
    replace: str
    tests: list[str]
    slow: bool = False


def load_catalog() -> list[tuple[str, Mutation]]:
    """Every mutation with the name of its catalog file, in the order of the files."""
    return [
        (path.stem, Mutation(**entry))
        for path in sorted(CATALOG.glob("*.toml"))
        for entry in tomllib.loads(path.read_text())["mutation"]
    ]


def write_mutated_package(mutation: Mutation, folder: Path) -> None:
    """Copy the package into `folder` and apply the defect to the copy."""
    source = (PACKAGE / mutation.file).read_text()
    count = source.count(mutation.find)
    assert count == 1, f"{mutation.file} contains the text to replace {count} times, not once:\n{mutation.find}"
    copy = folder / "lakebed"
    # With the compiled files: they are valid as long as times and sizes are the same. Without those that another run is
    # about to give their names, which may be gone when it is their turn.
    shutil.copytree(PACKAGE, copy, copy_function=_link, ignore=shutil.ignore_patterns("*.pyc.*", "*.new"))
    mutated = copy / mutation.file
    mutated.unlink()  # a link: writing to it would change the checkout
    mutated.write_text(source.replace(mutation.find, mutation.replace))


def _link(source: str, target: str) -> None:
    """Link a file, which takes a tenth of the time of a copy; copy it where the file systems differ."""
    try:
        os.link(source, target)
    except OSError:
        shutil.copy2(source, target)


@pytest.fixture(scope="module")
def runner() -> Iterator[subprocess.Popen[str]]:
    """The process whose forks run the tests; `runner.py` describes what it reads and writes."""
    environment = {**os.environ, "PYTHONDONTWRITEBYTECODE": "1"}
    for name in ("PYTEST_ADDOPTS", "PYTEST_DEBUG_TEMPROOT", "PYTHONPATH"):
        environment.pop(name, None)
    command = [sys.executable, str(Path(__file__).with_name("runner.py"))]
    with subprocess.Popen(
        command, cwd=ROOT, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        yield process
        assert process.stdin is not None
        process.stdin.close()


def ask(runner: subprocess.Popen[str], request: dict[str, object]) -> int:
    """Pytest's exit code for one request."""
    print(json.dumps(request), file=runner.stdin, flush=True)
    assert runner.stdout is not None
    return int(runner.stdout.readline())


def test_runs_share_no_folder(runner: subprocess.Popen[str], tmp_path: Path) -> None:
    """Each run has temporary folders of its own, and none of them is left."""
    probe = tmp_path / "test_probe.py"
    probe.write_text(PROBE)
    folders: set[Path] = set()
    for number in range(2):
        output = tmp_path / f"output-{number}"
        request = {"package": str(PACKAGE.parent), "tests": [str(probe)], "output": str(output)}
        assert ask(runner, request) == TESTS_FAILED
        places = [Path(line.removeprefix("at ")) for line in output.read_text().splitlines() if line.startswith("at ")]
        assert len(places) == 3
        (folder,) = {next(one for one in place.parents if one.name.startswith("lakebed-run-")) for place in places}
        assert not folder.exists()
        folders.add(folder)
    assert len(folders) == 2


PROBE = """
import tempfile
from hypothesis.configuration import storage_directory

def test_probe(tmp_path):
    for place in (tmp_path, tempfile.mkdtemp(), storage_directory("examples").path):
        print(f"at {place}")
    assert False
"""


@pytest.mark.parametrize(
    "mutation",
    [
        pytest.param(
            mutation,
            id=f"{area}-{mutation.guarantee.rstrip('.').replace(' ', '-')}",
            marks=[pytest.mark.long] if mutation.slow else [],
        )
        for area, mutation in load_catalog()
    ],
)
def test_the_defect_is_found(mutation: Mutation, runner: subprocess.Popen[str], tmp_path: Path) -> None:
    """With the defect in, one of the named tests fails."""
    write_mutated_package(mutation, tmp_path)
    output = tmp_path / "output"
    code = ask(runner, {"package": str(tmp_path), "tests": mutation.tests, "output": str(output)})
    assert code == TESTS_FAILED, f"pytest ended with {code}:\n{output.read_text()[-3000:]}"


if __name__ == "__main__":
    for area, mutation in load_catalog():
        print(f"{area}: {mutation.guarantee}\n    {mutation.file}: {' '.join(mutation.replace.split())[:100]}")
        print("".join(f"    {node}\n" for node in mutation.tests), end="")
