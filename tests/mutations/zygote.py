"""Runs the tests of guarantees in forks of one process, which has imported and collected everything before.

Owns: the protocol. A line on stdin is a room and the number of a guarantee in it; the line on stdout that answers is a
JSON object with ``outcome`` ("found", "missed", "broken", "unfit" or "skipped"), ``details`` and ``seconds`` of a
processor. Its tests run in a fork with the defect, where one must fail. ``control`` before the room runs them as the
code is, where all must pass ("passed"). The suite that a guarantee is part of runs all of them but the long ones, so
without the word only a long one that found the defect is controlled. The first answer comes when the tests are
collected.

What most forks would import or compute is there before the first one (`warm_up`). A fork's temporary folder ends with
it. Hypothesis keeps its examples in a folder of the zygote, since those that a defect yields are no use to other runs,
and does not look for a smaller one than the first that fails.
"""

from __future__ import annotations

import importlib
import inspect
import json
import os
import resource
import signal
import sys
import tempfile
import traceback
from collections.abc import Sequence
from contextlib import suppress
from typing import Any, TextIO

import pytest
from hypothesis import Phase, settings

from mutations.defects import DoesNotFit
from mutations.guarantee import Guarantee, load_room
from worlds import waiting

SECONDS_MAX = 300
EXAMPLES_MIN = 400  # of Hypothesis, until one fails
HANG_S = 8  # instead of `worlds.waiting.HANG_S`, in a test that is to fail
OF_PYTHON = (AttributeError, ImportError, NameError, SyntaxError, TypeError)  # may be mistakes of the defect itself
# What libraries import at the first use of a function, which would be once in every fork.
MODULES_OF_FORKS = ("pandas", "pyarrow.compute", "pyarrow.parquet", "numpy.ma", "difflib", "multiprocessing.connection")
# Warnings about the runner: what it imported ahead, and what pytest's cleaning leaves when a test is stopped.
RUNNERS_OWN = (
    *("-W", "ignore:Module already imported:pytest.PytestAssertRewriteWarning"),
    *("-W", "ignore:unclosed scandir iterator:ResourceWarning"),
)


class Zygote:
    """A plugin of pytest that answers requests instead of running all that was collected."""

    def __init__(self, rooms: Sequence[str], requests: TextIO, replies: TextIO) -> None:
        self._rooms, self._requests, self._replies = rooms, requests, replies
        self._failure: tuple[BaseException, str, str] | None = None
        self._skipped: str | None = None
        self._passing: set[str] = set()

    # ---- what pytest calls

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(self, item: pytest.Item, call: pytest.CallInfo[None]) -> Any:
        """Note the first error that makes a test fail, and why one was skipped."""
        report = yield
        if report.skipped and call.excinfo is not None:
            self._skipped = str(call.excinfo.value)
        if report.failed and call.excinfo is not None and self._failure is None:
            self._failure = call.excinfo.value, f"{item.nodeid}\n{report.longreprtext}", item.nodeid
        return report

    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        """Answer requests until they end."""
        if session.testsfailed:
            self._reply("broken", "the tests could not be collected")
            return True
        guarantees = {room: load_room(room) for room in self._rooms}
        warm_up(session.items)
        self._reply("ready", f"{len(session.items)} tests")
        for line in self._requests:
            *control, room, number = line.split()
            guarantee = guarantees[room][int(number)]
            start_s = seconds_of_children()
            items = _items_of(session.items, guarantee.nodes)
            outcome = self._control(items) if control else self._judge(guarantee, items)
            self._reply(*outcome, seconds=seconds_of_children() - start_s)
        return True

    # ---- one guarantee

    def _judge(self, guarantee: Guarantee, items: Sequence[pytest.Item]) -> tuple[str, str]:
        """Run the tests with the defect, those that are long last; one of these that fails has to pass without it."""
        is_long = {item.nodeid: item.get_closest_marker("long") is not None for item in items}
        outcome, details, failing = self._fork(sorted(items, key=lambda item: is_long[item.nodeid]), guarantee)
        if outcome == "failed" and is_long[failing]:
            control = self._control([item for item in items if item.nodeid == failing])
            if control[0] != "passed":
                return control
        return {"passed": "missed", "failed": "found"}.get(outcome, outcome), details

    def _control(self, items: Sequence[pytest.Item]) -> tuple[str, str]:
        """Run tests as the code is, each once in the life of this process."""
        before = [item for item in items if item.nodeid not in self._passing]
        if not before:
            return "passed", ""
        outcome, details, _ = self._fork(before, None)
        if outcome == "passed":
            self._passing |= {item.nodeid for item in before}
        elif outcome != "skipped":
            return "broken", f"without the defect the tests do not pass ({outcome}):\n{details}"
        return outcome, details

    def _fork(self, items: Sequence[pytest.Item], guarantee: Guarantee | None) -> tuple[str, str, str]:
        """Run tests in a process of their own, with a defect or without.

        Returns: "passed", "failed", or why that is unknown; details; and the test that failed.
        """
        with tempfile.TemporaryDirectory(prefix="lakebed-run-", ignore_cleanup_errors=True) as folder:
            os.chmod(folder, 0o755)  # the programs of PostgreSQL run as another user
            result = os.path.join(folder, "result")
            child = os.fork()
            if child == 0:
                self._become(items, guarantee, folder, result)
            status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
            if status == -signal.SIGALRM:
                return "broken", f"no test ended within {SECONDS_MAX} s", ""
            if not os.path.exists(result):
                return "broken", f"the process of the tests ended with {status}", ""
            with open(result) as file:
                outcome, details, failing = json.load(file)
            return outcome, details, failing

    def _become(self, items: Sequence[pytest.Item], guarantee: Guarantee | None, folder: str, result: str) -> None:
        """Run the tests in this process, write what came of it to a file, and end."""
        outcome = "broken", "the process was ended"
        try:
            signal.alarm(SECONDS_MAX)
            os.environ["TMPDIR"] = tempfile.tempdir = folder
            outcome = self._run(items, guarantee)
        except BaseException:
            outcome = "broken", traceback.format_exc()
        finally:
            with open(f"{result}.new", "w") as file:
                json.dump((*outcome, self._failure[2] if self._failure else ""), file)
            os.rename(f"{result}.new", result)
            os._exit(0)

    def _run(self, items: Sequence[pytest.Item], guarantee: Guarantee | None) -> tuple[str, str]:
        if guarantee is not None:
            shorten_waits()
            try:
                guarantee.defect.apply()
            except DoesNotFit as misfit:
                return "unfit", str(misfit)
        for item, following in zip(items, [*items[1:], None], strict=True):
            item.ihook.pytest_runtest_protocol(item=item, nextitem=following)
            if self._failure is not None:
                with suppress(Exception):
                    item.session._setupstate.teardown_exact(None)  # or servers of fixtures would be left
                return self._judge_failure(*self._failure[:2], None if guarantee is None else guarantee.error)
        return ("passed", "") if self._skipped is None else ("skipped", self._skipped)

    def _judge_failure(self, problem: BaseException, text: str, error: type[BaseException] | None) -> tuple[str, str]:
        if isinstance(problem, OF_PYTHON) and not (error is not None and isinstance(problem, error)):
            return "broken", f"a mistake of the defect, or state it as its error:\n{text[-3000:]}"
        return "failed", text[-3000:]

    def _reply(self, outcome: str, details: str, seconds: float = 0) -> None:
        reply = {"outcome": outcome, "details": details, "seconds": seconds}
        print(json.dumps(reply), file=self._replies, flush=True)


def seconds_of_children() -> float:
    """The processor time of all forks that have ended, in seconds."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def warm_up(items: Sequence[pytest.Item]) -> None:
    """Do what every fork would do again: import, and list the modules that errors are shown with."""
    for name in MODULES_OF_FORKS:
        importlib.import_module(name)
    inspect.getmodule(warm_up.__code__)  # reads the path of every module
    for item in items:
        function = getattr(item, "function", None)
        limits = getattr(function, "_hypothesis_internal_use_settings", None)
        if limits is not None:
            phases = [phase for phase in limits.phases if phase not in (Phase.shrink, Phase.explain)]
            examples = max(limits.max_examples, EXAMPLES_MIN)
            function._hypothesis_internal_use_settings = settings(limits, phases=phases, max_examples=examples)


def shorten_waits() -> None:
    """Let a test that is to fail wait less: many defects are found by a wait that does not end."""
    for function in vars(waiting).values():
        defaults = getattr(function, "__kwdefaults__", None)
        if defaults and defaults.get("timeout_s") == waiting.HANG_S:
            defaults["timeout_s"] = HANG_S


def share_what_hypothesis_computed(folder: str) -> None:
    """Let a folder for Hypothesis begin with what depends on code alone: seconds of parsing every module."""
    for name in ("constants", "unicode_data"):
        common = os.path.abspath(os.path.join(os.environ.get("HYPOTHESIS_STORAGE_DIRECTORY", ".hypothesis"), name))
        os.makedirs(common, exist_ok=True)
        os.symlink(common, os.path.join(folder, name))


def _items_of(items: Sequence[pytest.Item], nodes: Sequence[str]) -> list[pytest.Item]:
    choice = [
        item
        for item in items
        if any(item.nodeid == node or item.nodeid.startswith((f"{node}[", f"{node}::")) for node in nodes)
    ]
    assert choice, f"no test is called {nodes}"
    return choice


def main(output: str, *rooms: str) -> None:
    """Serve rooms; what pytest prints goes to the file `output`."""
    replies = os.fdopen(os.dup(1), "w")
    printed = os.open(output, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    for target in (1, 2):
        os.dup2(printed, target)
    requests = os.fdopen(os.dup(0))
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)  # tests do not read requests
    nodes = sorted({node for room in rooms for guarantee in load_room(room) for node in guarantee.nodes})
    with tempfile.TemporaryDirectory(prefix="lakebed-zygote-") as folder:
        share_what_hypothesis_computed(folder)
        os.environ["HYPOTHESIS_STORAGE_DIRECTORY"] = folder
        arguments = ["-q", "--tb=native", "-p", "no:cacheprovider", "-p", "no:xdist", *RUNNERS_OWN, *nodes]
        pytest.main(arguments, plugins=[Zygote(rooms, requests, replies)])


if __name__ == "__main__":
    main(*sys.argv[1:])
