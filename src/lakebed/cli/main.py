"""The command line's entry point: runs one command, and turns errors into messages and exit codes.

Invariants: a user's mistake is one sentence on standard error and an exit code of `exits`, never a traceback; a closed
pipe (``| head``) silently ends a command that only prints, and no other one (`standard`); ``lakebed --help`` loads
neither Arrow nor Spark.
"""

from __future__ import annotations

import gc
import sys
import traceback
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext, suppress
from typing import Final

import lakebed
from lakebed import log
from lakebed.cli import exits, help, output, parser, standard
from lakebed.cli.command import Command
from lakebed.cli.commands import ROOT, is_answer
from lakebed.cli.grammar import LAKE_VARIABLE
from lakebed.cli.loading import load, load_arrow
from lakebed.cli.parser import Parsed
from lakebed.cli.shells import COMPLETE
from lakebed.clock import SystemClock
from lakebed.errors import InternalError, InvalidRequest, LakebedError, NotFound, Unavailable
from lakebed.texts import format_value


def main() -> None:
    """Run the command in ``sys.argv`` and exit with its code."""
    standard.guard()
    arguments = sys.argv[1:]
    code = run(arguments, frames=False)
    standard.finish()
    gc.freeze()  # the collections of the interpreter's end look at no object: a tenth of a short command
    sys.exit(code)


def run(arguments: list[str], *, frames: bool = True) -> int:
    """Run one command and return its exit code.

    Args:
        frames: the process makes data frames, besides those of pipelines.
    """
    json = "--json" in arguments
    standard.stops_with_output(True)  # help pages and completions answer too
    code = _outcome(arguments, json=json, frames=frames)
    with suppress(OSError):
        sys.stdout.flush()
    problem = standard.failure()
    if problem is None:
        return code
    what = f"The output could not be written: {problem}."
    if standard.has_stopped() and code == exits.OK:
        output.error(Unavailable(what, kind="output_not_written"), json=json)
        return exits.UNAVAILABLE
    output.notes([f"{what} The exit code {code} says how the command ended."], json=json)
    return code


def _outcome(arguments: list[str], *, json: bool, frames: bool) -> int:
    """The exit code of a command, whose errors are printed."""
    try:
        return _run(arguments, json=json, frames=frames)
    except exits.Exit as done:
        return done.code
    except KeyboardInterrupt:
        output.say("\nlakebed: interrupted.")
        return exits.INTERRUPTED
    except Exception as problem:
        if standard.has_stopped():
            return exits.OK
        return _report(problem, json=json)


def _report(problem: Exception, *, json: bool) -> int:
    """Print an error, and return its exit code."""
    if isinstance(problem, LakebedError):
        output.error(problem, json=json)
        return exits.exit_code(problem)
    if isinstance(problem, OSError):  # a file that cannot be opened, a full disk
        where = f" ({problem.filename})" if problem.filename else ""
        output.error(Unavailable(f"{problem.strerror or problem}{where}."), json=json)
        return exits.UNAVAILABLE
    if isinstance(problem, UnicodeEncodeError) and problem.encoding == "utf-8":  # only an argument can have such bytes
        what = f"{format_value(problem.object)} has bytes that are not UTF-8, which no name or text of a lake has."
        output.error(InvalidRequest(what, kind="not_utf8"), json=json)
        return exits.USAGE
    if json:
        output.error(InternalError(f"{type(problem).__name__}: {problem}"), json=True)
    else:  # with everything that a report of it needs
        output.say("".join(traceback.format_exception(problem)).rstrip())
        output.say(f"lakebed: this is a bug in lakebed {lakebed.__version__}; please report it.")
    return exits.BUG


_VERSION: Final = ("--version", "-V")
_HELP: Final = {"--help", "-h"}
_WITHOUT_ARROW: Final = {"version", "completion", "pipeline"}
"""Groups and commands that need no Arrow, or Arrow with data frames."""
_CLOCK: Final = SystemClock()
_LOG: Final = log.logger("cli")


def _run(arguments: list[str], *, json: bool, frames: bool) -> int:
    if arguments[:1] == [COMPLETE]:
        output.lines(load("lakebed.cli.completion").candidates(ROOT, " ".join(arguments[1:])))
        return exits.OK
    words = parser.in_order(ROOT, arguments)
    if words[:1] and words[0] in _VERSION:
        words[0] = "version"
    if words[:1] and words[0].startswith("-"):
        if not _HELP.isdisjoint(words):
            output.page(help.page_of_group(ROOT))
            return exits.OK
        raise parser.usage_error(f"{words[0]} comes before a command, and there is none.", "lakebed")
    group, spec, used, old = parser.find(ROOT, _names(words))
    rest = words[used:]
    if spec is None:
        asked = not _HELP.isdisjoint(rest)
        (output.page if asked else output.say)(help.page_of_group(group))
        return exits.OK if asked else exits.USAGE
    parsed = parser.parse(spec, rest, old=old)
    if parsed is None:
        output.page(help.page_of_command(spec))
        return exits.OK
    if not frames and parsed.spec.path[0] not in _WITHOUT_ARROW:
        load_arrow()
    _run_parsed(parsed, json=json)
    return exits.OK


def _names(words: list[str]) -> list[str]:
    """The words before the first option."""
    end = next((position for position, word in enumerate(words) if word.startswith("-")), len(words))
    return words[:end]


def _run_parsed(parsed: Parsed, *, json: bool) -> None:
    """Run a command; name the new spelling of each old one that was used, and secrets that others can read."""
    standard.stops_with_output(is_answer(parsed.spec.path))
    command = parsed.command()
    notes = [*parsed.notes, *command.warnings()]
    verbosity = len(command.verbose or ())
    with _log_to_stderr(detailed=verbosity > 1, json=json) if verbosity else nullcontext():
        if not json:
            output.notes(notes, json=False)
        started_s = _CLOCK.monotonic_s()
        try:
            command.run()
        except LakebedError as problem:
            for hint in _hints(problem, command, parsed.lake_from):
                problem.add_note(hint)
            raise
        finally:
            seconds = _CLOCK.monotonic_s() - started_s
            _LOG.info("ran", command=parsed.spec.name, ms=round(1000 * seconds))
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


def _hints(problem: LakebedError, command: Command, lake_from: str | None) -> Iterator[str]:
    """What else helps with an error: similar names, and where the lake's name came from."""
    yield from command.hints(problem)
    if lake_from is not None and isinstance(problem, NotFound | InvalidRequest):
        yield f"The lake is {LAKE_VARIABLE}: {lake_from}."
