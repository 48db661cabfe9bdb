"""Runs pytest many times over, each time in a fork of one process that has imported what never changes.

Owns: the requests on stdin and the exit codes on stdout, one line each. A request is a JSON object with ``package``
(the folder to import lakebed from), ``tests`` (pytest node ids) and ``output`` (a file for what pytest prints). A fork
imports lakebed itself, so that it sees the package of its request and no other; it saves the second and a half in which
a new process imports pytest, hypothesis and Arrow.

What a fork writes besides its output is in a temporary folder of its own, which ends with it: pytest's folder of
temporary files, from which each run deletes what others left, and the examples that Hypothesis keeps, of which those
that a defect yields are no use to other runs.
"""

from __future__ import annotations

import importlib
import json
import os
import signal
import sys
import tempfile
import traceback

SECONDS_MAX = 240
HANG_S = 8  # `worlds.waiting.HANG_S` of a test that is to fail
UNCHANGING = (
    "pytest",
    "hypothesis.strategies",
    "numpy",
    "pandas",
    "pyarrow.compute",
    "pyarrow.parquet",
    "pyarrow.orc",
    "psycopg",
    "fastavro",
    "starlette.applications",
    "msgspec",
    "yaml",
    "zstandard",
)
# Warnings about the runner: what it imported ahead, and what pytest's cleaning leaves when a test is stopped.
RUNNERS_OWN = (
    *("-W", "ignore:Module already imported:pytest.PytestAssertRewriteWarning"),
    *("-W", "ignore:unclosed scandir iterator:ResourceWarning"),
)


def run(request: dict[str, object]) -> int:
    """Pytest's exit code for one request; a negative number is the signal that ended it."""
    with tempfile.TemporaryDirectory(prefix="lakebed-run-", ignore_cleanup_errors=True) as folder:
        child = os.fork()
        if child == 0:
            _become(request, folder)
        return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def _become(request: dict[str, object], folder: str) -> None:
    """Run the tests of a request in this process and end it."""
    import pytest

    code = 70  # neither passed nor failed
    try:
        signal.alarm(SECONDS_MAX)
        output = os.open(str(request["output"]), os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        null = os.open(os.devnull, os.O_RDONLY)
        for target, source in ((0, null), (1, output), (2, output)):
            os.dup2(source, target)
        os.environ["PYTHONPATH"] = str(request["package"])
        os.environ["LAKEBED_TESTS_HANG_S"] = str(HANG_S)
        os.environ["TMPDIR"] = tempfile.tempdir = folder
        os.environ["HYPOTHESIS_STORAGE_DIRECTORY"] = os.path.join(folder, "hypothesis")
        sys.path.insert(0, str(request["package"]))
        code = int(
            pytest.main(["-x", "-q", "-p", "no:cacheprovider", "-p", "no:xdist", *RUNNERS_OWN, *request["tests"]])
        )  # type: ignore[misc]
    except pytest.PytestUnhandledThreadExceptionWarning:
        # A thread of a test ended with an error after the last test: pytest raises that where it ends.
        traceback.print_exc()
        code = int(pytest.ExitCode.TESTS_FAILED)
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def main() -> None:
    """Serve requests until stdin ends."""
    for name in UNCHANGING:
        importlib.import_module(name)
    assert "lakebed" not in sys.modules, "a fork would not see its own package"
    for line in sys.stdin:
        print(run(json.loads(line)), flush=True)


if __name__ == "__main__":
    main()
