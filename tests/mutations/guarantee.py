"""What a guarantee is: a sentence, the defect that breaks it, and the tests that must find the defect.

Owns: reading them. A room is a module of `guarantees/`; a new guarantee is one more entry of its room's list.
"""

from __future__ import annotations

import importlib
import os
import sys
from dataclasses import dataclass
from pathlib import Path

from mutations.defects import Defect, DoesNotFit

ROOMS = tuple(sorted(path.stem for path in (Path(__file__).parent / "guarantees").glob("[a-z]*.py")))


@dataclass(frozen=True)
class Guarantee:
    """What users lose when the defect is in, the defect, and pytest node ids below ``tests`` of which one must fail.

    A failure counts if it is one of a test or an error of lakebed. One of Python's own, such as a TypeError, may be of
    the defect instead; where it is what the test finds, `error` names it. `is_long` leaves a guarantee to
    ``make test-long``.
    """

    sentence: str
    defect: Defect
    tests: str | tuple[str, ...]
    error: type[BaseException] | None = None
    is_long: bool = False

    @property
    def nodes(self) -> tuple[str, ...]:
        """The tests as pytest's node ids, relative to the checkout."""
        return tuple(f"tests/{node}" for node in ((self.tests,) if isinstance(self.tests, str) else self.tests))

    @property
    def id(self) -> str:
        """The sentence as part of a node id."""
        return self.sentence.rstrip(".").replace(" ", "-").replace("/", "-").replace("`", "")


def load_room(room: str) -> list[Guarantee]:
    """The guarantees of a room; an error of this import names the function that is gone."""
    module = importlib.import_module(f"mutations.guarantees.{room}")
    guarantees: list[Guarantee] = module.GUARANTEES
    return guarantees


def check() -> bool:
    """Put every defect in and print those that do not fit; whether there are any.

    Defects of different functions share a process, since a fork costs more than an edit.
    """
    rest = [guarantee for room in ROOMS for guarantee in load_room(room)]
    is_unfit = False
    while rest:
        batch: list[Guarantee] = []
        later: list[Guarantee] = []
        changed: set[str] = set()
        for guarantee in rest:
            symbols = set(guarantee.defect.symbol.split(", "))
            if changed.isdisjoint(symbols):
                batch.append(guarantee)
                changed |= symbols
            else:
                later.append(guarantee)
        is_unfit |= _has_unfit(batch)
        rest = later
    return is_unfit


def _has_unfit(guarantees: list[Guarantee]) -> bool:
    child = os.fork()
    if child:
        return bool(os.waitpid(child, 0)[1])
    unfit = 0
    for guarantee in guarantees:
        problems = [f"there is no {node}" for node in guarantee.nodes if not Path(node.partition("::")[0]).exists()]
        try:
            guarantee.defect.apply()
        except Exception as problem:
            problems.append(str(problem) if isinstance(problem, DoesNotFit) else repr(problem))
        if problems:
            unfit = 1
            print(f"{guarantee.sentence}\n    {problems[0]}", flush=True)
    os._exit(unfit)


def main() -> None:
    """Print every guarantee, the defect that breaks it, and the tests that find it."""
    for room in ROOMS:
        for guarantee in load_room(room):
            suffix = " (make test-long)" if guarantee.is_long else ""
            print(f"{room}: {guarantee.sentence}{suffix}\n    {guarantee.defect.symbol}: {guarantee.defect.words}")
            print("".join(f"    {node}\n" for node in guarantee.nodes), end="")


if __name__ == "__main__":
    if sys.argv[1:] == ["check"]:
        sys.exit(check())
    main()
