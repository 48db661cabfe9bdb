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
    """Put every defect in, each in a process of its own, and print those that do not fit; whether there are any."""
    unfit = [guarantee for room in ROOMS for guarantee in load_room(room) if _is_unfit(guarantee)]
    return bool(unfit)


def _is_unfit(guarantee: Guarantee) -> bool:
    missing = [node for node in guarantee.nodes if not Path(node.partition("::")[0]).exists()]
    if missing:
        print(f"{guarantee.sentence}\n    there is no {missing[0]}", flush=True)
    child = os.fork()
    if child == 0:
        try:
            guarantee.defect.apply()
        except DoesNotFit as misfit:
            print(f"{guarantee.sentence}\n    {misfit}", flush=True)
            os._exit(1)
        os._exit(0)
    return bool(missing) | bool(os.waitpid(child, 0)[1])


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
