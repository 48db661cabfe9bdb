"""The command line's entry point: runs one command, and turns errors into messages and exit codes.

Invariants: a user's mistake is one sentence on standard error and an exit code of `exits`, never a traceback; a closed
pipe (``| head``) silently ends a command that only prints, and no other one (`standard`); ``lakebed --help`` loads
neither Arrow nor Spark.
"""

from __future__ import annotations

import gc
import logging
import os
import sys
import traceback
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Final

import click
from click.exceptions import Exit, NoArgsIsHelpError
from typing_extensions import override

import lakebed
from lakebed import log
from lakebed.cli import exits, output, parser, standard
from lakebed.cli.command import Command
from lakebed.cli.commands import ROOT, is_answer
from lakebed.cli.grammar import LAKE_VARIABLE
from lakebed.cli.loading import load, load_arrow
from lakebed.cli.parser import Parsed
from lakebed.clock import SystemClock
from lakebed.errors import InternalError, InvalidRequest, LakebedError, NotFound, Unavailable
from lakebed.texts import format_value


def main() -> None:
    """Run the command in ``sys.argv`` and exit with its code."""
    standard.guard()
    arguments = sys.argv[1:]
    code = run(arguments, frames=False)
    standard.finish()
    gc.freeze()  # the collections at the interpreter's end then skip all objects: a tenth of a short command's time
    sys.exit(code)


def run(arguments: list[str], *, frames: bool = True) -> int:
    """Run one command and return its exit code.

    Args:
        frames: whether the process makes data frames, apart from those of pipelines.
    """
    json = "--json" in arguments
    standard.stops_with_output(True)  # help pages and completions answer too
    code = _outcome(arguments, json=json, frames=frames)
    with suppress(OSError):
        sys.stdout.flush()
    problem = standard.failure()
    if problem is None:
        return code
    sentence = f"The output could not be written: {problem}."
    if standard.has_stopped() and code == exits.OK:
        output.error(Unavailable(sentence, kind="output_not_written"), json=json)
        return exits.UNAVAILABLE
    output.notes([f"{sentence} The exit code {code} says how the command ended."], json=json)
    return code


def _outcome(arguments: list[str], *, json: bool, frames: bool) -> int:
    """Run a command, print its error if any, and return its exit code."""
    try:
        return _run(arguments, json=json, frames=frames)
    except exits.Exit as exit_request:
        return exit_request.code
    except KeyboardInterrupt:
        return _report_interrupt()
    except Exception as problem:
        if standard.has_stopped():
            return exits.OK
        if isinstance(problem.__cause__, KeyboardInterrupt):  # Python 3.11 wraps it where a class is being made
            return _report_interrupt()
        return _report(problem, json=json)


def _report_interrupt() -> int:
    output.say("\nlakebed: interrupted.")
    return exits.INTERRUPTED


def _report(problem: Exception, *, json: bool) -> int:
    """Print an error, and return its exit code."""
    if isinstance(problem, LakebedError):
        output.error(problem, json=json)
        return exits.exit_code(problem)
    if isinstance(problem, OSError):  # a file that cannot be opened, a full disk
        where = f" ({problem.filename})" if problem.filename else ""
        output.error(Unavailable(f"{problem.strerror or problem}{where}."), json=json)
        return exits.UNAVAILABLE
    if isinstance(problem, UnicodeEncodeError) and problem.encoding == "utf-8":  # only arguments can have such bytes
        sentence = f"{format_value(problem.object)} has bytes that are not UTF-8, which no name or text of a lake has."
        output.error(InvalidRequest(sentence, kind="not_utf8"), json=json)
        return exits.USAGE
    if json:
        output.error(InternalError(f"{type(problem).__name__}: {problem}"), json=True)
    else:  # a bug: print everything that a bug report needs
        output.say("".join(traceback.format_exception(problem)).rstrip())
        output.say(f"lakebed: this is a bug in lakebed {lakebed.__version__}; please report it.")
    return exits.BUG


_WITHOUT_ARROW: Final = {"version", "completion", "pipeline"}
"""Groups and commands that need either no Arrow, or Arrow with data frames."""

_COMPLETE: Final = "_LAKEBED_COMPLETE"
"""The environment variable with which a shell asks for completions (`completion`)."""
_CLOCK: Final = SystemClock()
_LOG: Final = log.logger("cli")


def _run(arguments: list[str], *, json: bool, frames: bool) -> int:
    if request := os.environ.get(_COMPLETE):
        output.page(load("lakebed.cli.completion").answer(ROOT, request))
        return exits.OK
    try:
        command = parser.read(ROOT, arguments)
    except Exit as exit_request:  # a help page was asked for
        return exit_request.exit_code
    except NoArgsIsHelpError as page:
        output.say(page.message)
        return exits.USAGE
    except click.UsageError as problem:
        raise parser.usage_error(problem, arguments) from None
    if not frames and command.spec.path[0] not in _WITHOUT_ARROW:
        load_arrow()
    _run_parsed(command, arguments, json=json)
    return exits.OK


def _run_parsed(parsed: Parsed, arguments: list[str], *, json: bool) -> None:
    """Run a command, and warn of secrets that other users can read."""
    standard.stops_with_output(is_answer(parsed.spec.path))
    command = parsed.command()
    notes = list(command.warnings())
    with _log_to_stderr(detailed=command.verbose > 1, json=json) if command.verbose else _note_warnings(json=json):
        if not json:
            output.notes(notes, json=False)
        started_s = _CLOCK.monotonic_s()
        try:
            command.run()
        except LakebedError as problem:
            for hint in _hints(problem, command, parsed.lake_from, arguments):
                problem.add_note(hint)
            raise
        finally:
            seconds = _CLOCK.monotonic_s() - started_s
            _LOG.info("ran", command=" ".join(("lakebed", *parsed.spec.path)), ms=round(1000 * seconds))
    if json:
        output.notes(notes, json=True)


@contextmanager
def _log_to_stderr(*, detailed: bool, json: bool) -> Iterator[None]:
    """Log to standard error while the block runs."""
    handler = log.write_to(sys.stderr, detailed=detailed, json=json)
    try:
        yield
    finally:
        log.remove(handler)


class _Notes(logging.Handler):
    """Prints records as notes."""

    def __init__(self, *, json: bool) -> None:
        super().__init__(logging.WARNING)
        self._is_json = json

    @override
    def emit(self, record: logging.LogRecord) -> None:
        values = ", ".join(map(str, getattr(record, "fields", {}).values()))
        output.notes([log.redact(f"{record.getMessage()}: {values}")], json=self._is_json)


@contextmanager
def _note_warnings(*, json: bool) -> Iterator[None]:
    """Print warnings while a block runs, such as that the command waits for a server."""
    handler = log.add(_Notes(json=json))
    try:
        yield
    finally:
        log.remove(handler)


def _hints(problem: LakebedError, command: Command, lake_from: str | None, arguments: list[str]) -> Iterator[str]:
    """Sentences that help with an error: similar names, where the lake's name came from, a new spelling."""
    yield from command.hints(problem)
    if isinstance(problem, NotFound | InvalidRequest):
        if lake_from is not None:
            yield f"The lake is {LAKE_VARIABLE}: {lake_from}."
        if new_spelling := load("lakebed.cli.renamed").hint(arguments):  # `repo branch list LAKE` names the lake `list`
            yield new_spelling
