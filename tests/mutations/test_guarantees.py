"""Each guarantee has a test that fails when the defect is in which breaks it; ``make mutations`` prints them.

The tests run in forks of one process (`zygote.py`): most of what they cost is to import and collect. Nothing in the
checkout changes.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from mutations.defects import Defect, DoesNotFit, answer, never, raise_nothing, replace, returns, see
from mutations.guarantee import ROOMS, load_room

ROOT = Path(__file__).parents[2]


class Runner:
    """The process that answers whether defects are found."""

    def __init__(self, folder: Path) -> None:
        self._output = folder / "output"
        environment = {**os.environ, "PYTHONDONTWRITEBYTECODE": "1"}
        for name in ("PYTEST_ADDOPTS", "PYTEST_DEBUG_TEMPROOT"):
            environment.pop(name, None)
        environment["PYTHONPATH"] = os.pathsep.join(map(str, (ROOT / "src", ROOT / "tests")))
        command = [sys.executable, "-m", "mutations.zygote", str(self._output), *ROOMS]
        self.process = subprocess.Popen(
            command, cwd=ROOT, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        assert self._reply()["outcome"] == "ready"

    def ask(self, room: str, number: int) -> dict[str, str]:
        """Whether the defect of a guarantee is found, by its number in its room."""
        print(room, number, file=self.process.stdin, flush=True)
        return self._reply()

    def control(self, room: str, number: int) -> dict[str, str]:
        """Whether the tests of a guarantee pass without its defect."""
        print("control", room, number, file=self.process.stdin, flush=True)
        return self._reply()

    def _reply(self) -> dict[str, str]:
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        assert line, f"the process of the tests ended:\n{self._output.read_text()[-3000:]}"
        reply: dict[str, str] = json.loads(line)
        assert reply["outcome"] != "broken" or reply["details"] != "the tests could not be collected", (
            self._output.read_text()[-3000:]
        )
        return reply


@pytest.fixture(scope="module")
def runner(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Runner]:
    """The process of all rooms."""
    result = Runner(tmp_path_factory.mktemp("guarantees"))
    yield result
    assert result.process.stdin is not None
    result.process.stdin.close()
    result.process.wait(30)
    assert result.process.stdout is not None
    result.process.stdout.close()


@pytest.mark.parametrize(
    ("room", "number"),
    [
        pytest.param(
            room,
            number,
            id=f"{room}-{guarantee.id}",
            marks=[pytest.mark.long] if guarantee.is_long else [],
        )
        for room in ROOMS
        for number, guarantee in enumerate(load_room(room))
    ],
)
@pytest.mark.xdist_group("guarantees")
def test_the_defect_is_found(room: str, number: int, runner: Runner) -> None:
    """With the defect in, one of the named tests fails."""
    reply = runner.ask(room, number)
    if reply["outcome"] == "skipped":
        pytest.skip(reply["details"])
    assert reply["outcome"] == "found", f"{reply['outcome']}: {reply['details']}"


@pytest.mark.long
@pytest.mark.xdist_group("controls")
@pytest.mark.parametrize("room", ROOMS)
def test_the_tests_pass_without_a_defect(room: str, runner: Runner) -> None:
    """In forks of one process, as with a defect: what fails there fails for the defect."""
    for number, guarantee in enumerate(load_room(room)):
        reply = runner.control(room, number)
        assert reply["outcome"] in ("passed", "skipped"), f"{guarantee.sentence}\n{reply['details']}"


# ---- the edits themselves


def limit_number(number: int, *, limit: int = 3) -> int:
    """Something to put defects into."""
    if number < 0 or number > limit:
        raise ValueError(f"{number} is not in range")
    return double(number)


def double(number: int) -> int:
    """Something that is called."""
    return 2 * number


def in_a_fork(defect: Defect, expression: str) -> str:
    """What an expression gives with a defect in, in a process of its own."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            defect.apply()
            text = repr(eval(expression))
        except Exception as error:
            text = f"{type(error).__name__}: {error}"
        os.write(writing, text.encode())
        os._exit(0)
    os.close(writing)
    with os.fdopen(reading) as file:
        text = file.read()
    os.waitpid(child, 0)
    return text


@pytest.mark.parametrize(
    ("defect", "expression", "result"),
    [
        (returns(limit_number, 7), "limit_number(1)", "7"),
        (replace(limit_number, lambda original, number, *, limit=3: -original(number)), "limit_number(1)", "-2"),
        (raise_nothing(limit_number), "limit_number(9)", "18"),
        (answer(limit_number, double, lambda original, number: original(number) + 1), "limit_number(1)", "3"),
        (never(limit_number, ValueError), "limit_number(1)", "DoesNotFit: "),
        (see(limit_number, double, len), "limit_number(1)", "TypeError: object of type 'int' has no len()"),
        (replace(limit_number, lambda original, number: number), "limit_number(1)", "DoesNotFit: "),
    ],
)
def test_what_an_edit_does(defect: Defect, expression: str, result: str) -> None:
    """A defect is in the function object itself, and one that does not fit says so."""
    assert in_a_fork(defect, expression).startswith(result)
    assert limit_number(1) == 2, "nothing is changed here"


def test_a_function_that_lost_what_a_defect_is_about_is_named() -> None:
    """The error names the function and what it lacks."""
    with pytest.raises(DoesNotFit, match=r"limit_number does not call len"):
        answer(limit_number, len, lambda original, number: 0).apply()
