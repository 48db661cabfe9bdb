"""Measures how much of a room's code its tests guard: mutates it with Cosmic Ray and counts what they notice.

    python tools/mutate.py ROOM [--sample 100] [--seed 0]

A room is an entry of ``tests/mutations/rooms.toml``. The mutations are Cosmic Ray's; of all of them a sample is drawn,
the same for the same seed. What stands in annotations is left out: nothing runs it. The code is mutated in a copy of
the checkout, in a temporary folder. Each mutation costs one run of the room's tests, up to the first that fails; a run
that takes five times as long as without a mutation counts as noticed. Prints the mutations that survived, and the
score: the share that was noticed. Standard error counts those that were tried.
"""

from __future__ import annotations

import argparse
import ast
import os
import random
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
import time
import tomllib
from collections.abc import Iterator, Sequence
from pathlib import Path

from cosmic_ray.commands.init import init
from cosmic_ray.mutating import mutate_and_test
from cosmic_ray.work_db import use_db
from cosmic_ray.work_item import MutationSpec, TestOutcome

ROOT = Path(__file__).parents[1]
ROOMS = ROOT / "tests" / "mutations" / "rooms.toml"
SECONDS_MIN = 20


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
        command = test_command(room["tests"])
        limit_s = SECONDS_MIN + 5 * seconds_of(command)
        modules = sorted(path for pattern in room["code"] for path in modules_of(Path("src/lakebed") / pattern))
        every = mutations_of(modules)
        every.sort(key=lambda one: (one.module_path, one.start_pos, one.operator_name, one.occurrence))
        chosen = random.Random(arguments.seed).sample(every, min(arguments.sample, len(every)))
        survived = []
        for number, mutation in enumerate(chosen, 1):
            if survives(mutation, command, limit_s):
                survived.append(mutation)
            print(f"{arguments.room}: {number} of {len(chosen)} tried", end="\r", file=sys.stderr, flush=True)
    noticed = len(chosen) - len(survived)
    print(
        f"{arguments.room}: {noticed} of {len(chosen)} mutations noticed ({noticed / len(chosen):.0%}), "
        f"drawn from {len(every)} with seed {arguments.seed}"
    )


def copy_checkout(folder: Path) -> None:
    """Copy what git knows of the code and the tests."""
    listed = subprocess.run(
        ["git", "ls-files", "-z", "src", "tests", "docs", "pyproject.toml"],
        cwd=ROOT, capture_output=True, text=True, check=True,
    )  # fmt: skip
    for name in filter(None, listed.stdout.split("\0")):
        if (ROOT / name).is_file():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, folder / name)


def test_command(tests: Sequence[str]) -> str:
    """The command that runs the room's tests up to the first failure."""
    options = ("-x", "-q", "-p", "no:cacheprovider", "-p", "no:xdist", "-m", "not long and not spark")
    return shlex.join([sys.executable, "-m", "pytest", *options, *(f"tests/{one}" for one in tests)])


def seconds_of(command: str) -> float:
    """How long the tests take as the code is, where they have to pass."""
    start_s = time.monotonic()
    run = subprocess.run(shlex.split(command), capture_output=True, text=True, check=False)
    if run.returncode:
        sys.exit(f"Without a mutation the tests do not pass:\n{run.stdout[-3000:]}{run.stderr[-1000:]}")
    return time.monotonic() - start_s


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
    """Every position, line and column, within an annotation of a module, and of the ``*`` before keywords."""
    text = module.read_text()
    for number, line in enumerate(text.splitlines(), 1):
        yield from ((number, found.start()) for found in re.finditer(r"\*,", line))
    for node in ast.walk(ast.parse(text)):
        annotation = getattr(node, "annotation", None) or getattr(node, "returns", None)
        if annotation is None:
            continue
        for line in range(annotation.lineno, annotation.end_lineno + 1):
            first = annotation.col_offset if line == annotation.lineno else 0
            last = annotation.end_col_offset if line == annotation.end_lineno else 200
            yield from ((line, column) for column in range(first, last))


def survives(mutation: MutationSpec, command: str, limit_s: float) -> bool:
    """Whether every test passes with a mutation; says which one it was."""
    result = mutate_and_test([mutation], command, limit_s)
    if result.test_outcome is not TestOutcome.SURVIVED:
        return False
    lines = (result.diff or "").splitlines()
    changed = [line for line in lines if line.startswith(("-", "+")) and not line.startswith(("---", "+++"))]
    print(f"survived: {mutation.module_path}:{mutation.start_pos[0]}", *changed, sep="\n    ", flush=True)
    return True


if __name__ == "__main__":
    main()
