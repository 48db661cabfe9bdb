"""Measures how much of a room's code its tests guard: mutates it with Cosmic Ray and counts what they notice.

    python tools/mutate.py ROOM [--sample 100] [--seed 0]

A room is an entry of ``tests/mutations/rooms.toml``. The mutations are Cosmic Ray's; of all of them a sample is drawn,
the same for the same seed. What stands in annotations, and whether a dataclass is frozen or has slots, is left out: a
checker of types asks that, and nothing runs it. The code is mutated in a copy of
the checkout, in a temporary folder. Each mutation costs one run of those of the room's tests that ran its line, the
quickest first, up to the first that fails; one that none of them notices, one run of the others too. A run is a fork of
this process, which has imported what the tests use, but nothing of the code. A run
that takes five times as long as without a mutation, and a minute more, counts as noticed: on a busy machine that may
be the machine's doing. Prints the mutations that survived and those that ran out of time, and the score: the share that
was noticed. Standard error counts those that were tried.
"""

from __future__ import annotations

import argparse
import ast
import difflib
import importlib
import multiprocessing
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import tomllib
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import coverage
import pytest
from cosmic_ray.commands.init import init
from cosmic_ray.mutating import use_mutation
from cosmic_ray.plugins import get_operator
from cosmic_ray.work_db import use_db
from cosmic_ray.work_item import MutationSpec

ROOT = Path(__file__).parents[1]
ROOMS = ROOT / "tests" / "mutations" / "rooms.toml"
SERVERS = ROOT / "tests" / "servers" / "node_modules"
SECONDS_MIN = 60


def main() -> None:
    """Mutate a room and print its score."""
    rooms = tomllib.loads(ROOMS.read_text())
    parser = argparse.ArgumentParser()
    parser.add_argument("room", choices=sorted(rooms))
    parser.add_argument("--sample", type=int, default=100)
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    room = rooms[arguments.room]
    with tempfile.TemporaryDirectory(prefix="lakebed-mutate-") as folder:
        copy_checkout(Path(folder))
        os.chdir(folder)
        os.environ["PYTHONPATH"] = os.path.join(folder, "src")
        os.environ.pop("PYTHONDONTWRITEBYTECODE", None)  # or each run would compile all again
        record = record_tests([f"tests/{path}" for path in room["tests"]])
        modules = sorted(path for pattern in room["code"] for path in modules_of(Path("src/lakebed") / pattern))
        every = mutations_of(modules)
        for name in MODULES_OF_FORKS:
            importlib.import_module(name)
        every.sort(key=lambda one: (one.module_path, one.start_pos, one.operator_name, one.occurrence))
        chosen = random.Random(arguments.seed).sample(every, min(arguments.sample, len(every)))
        survived = []
        for number, mutation in enumerate(chosen, 1):
            if survives(mutation, record):
                survived.append(mutation)
            print(f"{arguments.room}: {number} of {len(chosen)} tried", end="\r", file=sys.stderr, flush=True)
    noticed = len(chosen) - len(survived)
    print(
        f"{arguments.room}: {noticed} of {len(chosen)} mutations noticed ({noticed / len(chosen):.0%}), "
        f"drawn from {len(every)} with seed {arguments.seed}"
    )


def copy_checkout(folder: Path) -> None:
    """Copy what git knows of the code and the tests, and link the servers that are installed for them."""
    listed = subprocess.run(
        ["git", "ls-files", "-z", "src", "tests", "docs", "bench", "pyproject.toml"],
        cwd=ROOT, capture_output=True, text=True, check=True,
    )  # fmt: skip
    for name in filter(None, listed.stdout.split("\0")):
        if (ROOT / name).is_file():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, folder / name)
    if SERVERS.exists():  # else their tests are skipped, and notice nothing
        (folder / SERVERS.relative_to(ROOT)).symlink_to(SERVERS.resolve())


@dataclass
class TestRecord:
    """What the room's tests do without a mutation: their paths, seconds, and which of them run each line."""

    paths: list[str]
    seconds: dict[str, float] = field(default_factory=lambda: defaultdict(float))
    ids: dict[tuple[Path, int], set[str]] = field(default_factory=lambda: defaultdict(set))

    def list_covering(self, mutation: MutationSpec) -> list[str]:
        """The tests that run a mutation's statement, the quickest first."""
        path = Path(mutation.module_path)
        lines = statement_lines(path.read_text(), mutation.start_pos[0])
        ids = set().union(*(self.ids.get((path, line), ()) for line in lines))
        return sorted(ids, key=lambda test: (self.seconds[test], test))


class Recorder:
    """A plug-in of pytest that tells a coverage measurement which test runs."""

    def __init__(self, measurement: coverage.Coverage) -> None:
        self.measurement = measurement
        self.seconds: dict[str, float] = defaultdict(float)

    def pytest_runtest_logstart(self, nodeid: str) -> None:
        self.measurement.switch_context(nodeid)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self.seconds[report.nodeid] += report.duration


OPTIONS = (
    *("-x", "-q", "-p", "no:cacheprovider", "-p", "no:xdist", "-m", "not long and not spark"),
    *("-W", "ignore:Module already imported:pytest.PytestAssertRewriteWarning"),  # ahead of the forks
)
MODULES_OF_FORKS = ("hypothesis", "msgspec", "numpy", "pandas", "pyarrow.compute", "pyarrow.parquet")
"""What most tests import, and a fork need not."""


def record_tests(paths: list[str]) -> TestRecord:
    """Run the tests once as the code is, where they have to pass, and record which lines each runs."""
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        record = pool.apply(measure_tests, (paths,))
    if isinstance(record, int):
        sys.exit(f"Without a mutation the tests do not pass (pytest ended with {record}).")
    return record


def measure_tests(paths: list[str]) -> TestRecord | int:
    """The record of the tests, or pytest's exit code when it is not 0; for a process of its own."""
    sys.path.insert(0, os.path.abspath("src"))  # before the checkout that the parent's path names
    measurement = coverage.Coverage(data_file="tests.coverage", source=["src/lakebed"])
    recorder = Recorder(measurement)
    measurement.start()
    with open(os.devnull, "w") as nowhere:
        sys.stdout, kept = nowhere, sys.stdout
        code = pytest.main([*OPTIONS, *paths], plugins=[recorder])
        sys.stdout = kept
    measurement.stop()
    if code:
        return int(code)
    record = TestRecord(paths)
    record.seconds.update(recorder.seconds)
    data = measurement.get_data()
    for name in data.measured_files():
        path = Path(name).relative_to(Path.cwd())
        for line, contexts in data.contexts_by_lineno(name).items():
            record.ids[path, line] |= set(filter(None, contexts))
    return record


def statement_lines(text: str, line: int) -> range:
    """The lines of the innermost statement at a line; of one with a body, those before the body."""
    lines = range(line, line + 1)
    for node in ast.walk(ast.parse(text)):  # outer ones come first
        if isinstance(node, ast.stmt):
            body = getattr(node, "body", None)
            end = body[0].lineno if body else (node.end_lineno or node.lineno) + 1
            if node.lineno <= line < max(end, node.lineno + 1):
                lines = range(node.lineno, max(end, node.lineno + 1))
    return lines


def modules_of(pattern: Path) -> Iterator[Path]:
    """The modules of a package, or those that a pattern names."""
    yield from sorted(pattern.rglob("*.py")) if pattern.is_dir() else sorted(Path().glob(str(pattern)))


def mutations_of(modules: Sequence[Path]) -> list[MutationSpec]:
    """Every mutation of code that runs."""
    unused = {module: frozenset(idle_positions(module)) for module in modules}
    with use_db("session.sqlite") as database:
        init(modules, database, {})
        every = [mutation for item in database.work_items for mutation in item.mutations]
    return [one for one in every if (one.start_pos[0], one.start_pos[1]) not in unused[one.module_path]]


def idle_positions(module: Path) -> Iterator[tuple[int, int]]:
    """Every position, line and column, of what nothing runs in a module.

    That is annotations, the ``*`` before keywords, and ``frozen`` and ``slots`` of dataclasses.
    """
    text = module.read_text()
    for number, line in enumerate(text.splitlines(), 1):
        yield from ((number, found.start()) for found in re.finditer(r"\*,", line))
        if line.startswith(("@dataclass(", "    @dataclass(")):
            yield from ((number, found.start(1)) for found in re.finditer(r"(?:frozen|slots)=(True)", line))
    for node in ast.walk(ast.parse(text)):
        annotation = getattr(node, "annotation", None) or getattr(node, "returns", None)
        if annotation is None:
            continue
        for line in range(annotation.lineno, annotation.end_lineno + 1):
            first = annotation.col_offset if line == annotation.lineno else 0
            last = annotation.end_col_offset if line == annotation.end_lineno else 200
            yield from ((line, column) for column in range(first, last))


def survives(mutation: MutationSpec, record: TestRecord) -> bool:
    """Whether every test passes with a mutation; prints it then, and when the tests run out of time."""
    covering = record.list_covering(mutation)
    others = sorted(record.seconds.keys() - set(covering), key=list(record.seconds).index)
    operator = get_operator(mutation.operator_name)(**(mutation.operator_args or {}))
    have_passed: bool | None = True
    with use_mutation(mutation.module_path, operator, mutation.occurrence) as (before, after):
        for tests in filter(None, (covering, others)):
            limit_s = SECONDS_MIN + 5 * sum(record.seconds[test] for test in tests)
            have_passed = pass_all(tests, limit_s=limit_s)
            if not have_passed:
                break
    if have_passed is not False:
        lines = difflib.unified_diff(before.splitlines(), (after or "").splitlines(), n=0, lineterm="")
        changed = [line for line in lines if not line.startswith(("---", "+++", "@@"))]
        outcome = "survived" if have_passed else "out of time"
        print(f"{outcome}: {mutation.module_path}:{mutation.start_pos[0]}", *changed, sep="\n    ", flush=True)
    return bool(have_passed)


def pass_all(tests: Sequence[str], *, limit_s: float) -> bool | None:
    """Whether tests pass in a fork of this process; None: they ran out of time."""
    Path("tests.txt").write_text("\n".join(tests))
    run = multiprocessing.get_context("fork").Process(target=run_tests, args=(["@tests.txt"],))
    run.start()
    run.join(limit_s)
    if run.exitcode is None:
        os.killpg(run.pid, signal.SIGKILL)  # and the servers that it started
        run.join()
        return None
    return run.exitcode == 0


def run_tests(arguments: Sequence[str]) -> None:
    """Run tests in this process, and end it. Bytecode of a mutation is not written: its file changes too soon again."""
    os.setsid()
    nowhere = os.open(os.devnull, os.O_RDWR)
    for target in (0, 1, 2):
        os.dup2(nowhere, target)
    sys.path.insert(0, os.path.abspath("src"))
    sys.dont_write_bytecode = True
    os.environ["PYTHONDONTWRITEBYTECODE"] = "1"
    code: int = pytest.ExitCode.INTERNAL_ERROR
    try:
        code = pytest.main([*OPTIONS, *arguments])
    finally:
        os._exit(code)  # waits for no thread that a test has left


if __name__ == "__main__":
    main()
