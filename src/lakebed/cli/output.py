r"""What the command line prints, and how: tables and sentences for people, JSON for programs.

Invariants: results go to standard output, everything else (progress, questions, errors) to standard error; with
``--json`` standard output is one JSON document with stable keys, times in Unix milliseconds, sizes in bytes. Progress
bars appear only when standard error is a terminal. In a pipe nothing is shortened or wrapped; a terminal gets whole
words (`layout`). Bytes of an argument that are not UTF-8 are printed as ``\xff``.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import chain, islice
from typing import Any, Final, TextIO

import msgspec

from lakebed.cli import exits, layout, standard
from lakebed.cli.loading import load
from lakebed.clock import SystemClock
from lakebed.errors import LakebedError
from lakebed.texts import format_count, format_size

count = format_count

_COMMIT_ID: Final = re.compile(r"\b([0-9a-f]{12})[0-9a-f]{52}\b")

_CLOCK = SystemClock()
_MEASURED_ROW_COUNT = 500
"""The first rows of a longer table determine the widths of its columns; it is printed as rows arrive."""
_COLUMNS = 80
"""Width of a terminal that does not report it."""
_COLUMNS_MIN = 20
_SPANS = (("year", 31_557_600), ("month", 2_629_800), ("day", 86_400), ("hour", 3600), ("minute", 60), ("second", 1))


def document(value: Any) -> None:
    """Print one JSON document."""
    standard.binary_output().write(msgspec.json.format(_json(value)) + b"\n")


def sentence(text: str) -> None:
    """Print one line for a person; a terminal wraps it at words."""
    sys.stdout.write(_wrap(text, sys.stdout) + "\n")


def page(text: str) -> None:
    """Print a text of several lines as it is."""
    sys.stdout.write(text)


def say(text: str) -> None:
    """Print a text on standard error as it is, and a line feed unless it ends with one."""
    sys.stderr.write(text if text.endswith("\n") else f"{text}\n")
    sys.stderr.flush()


def json_line(value: Any) -> None:
    """Print one JSON document on a line of its own, as one of many."""
    standard.binary_output().write(_json(value) + b"\n")


def lines(texts: Iterable[str]) -> None:
    """Print each text on a line, unchanged: for texts that users copy from a terminal, such as commands."""
    sys.stdout.write("".join(f"{printable(text)}\n" for text in texts))


def notes(texts: Iterable[str], *, json: bool) -> None:
    """Print on standard error what to write instead of old spellings, or ``{"note"}`` lines."""
    for text in texts:
        if json:
            _say_json({"note": text})
        else:
            say(_wrap(f"lakebed: note: {text}", sys.stderr))


def flush() -> None:
    """Flush standard output, for a program that waits for it."""
    sys.stdout.flush()


def printable(text: str) -> str:
    r"""Return an argument or a path of this system in printable form: bytes that are not UTF-8 become ``\xff``."""
    if text.isascii():
        return text
    try:
        return text.encode("utf-8", "surrogateescape").decode("utf-8", "backslashreplace")
    except UnicodeEncodeError:  # half of a surrogate pair, which is not a byte of an argument either
        return text.encode("utf-8", "backslashreplace").decode()


def brief(text: str) -> str:
    """Return the first line of a message, with commits shortened to their first 12 digits."""
    return _COMMIT_ID.sub(r"\1", text.split("\n", 1)[0]) or "(no message)"


def _json(value: Any) -> bytes:
    try:
        return msgspec.json.encode(value, enc_hook=str)
    except UnicodeEncodeError:  # it holds an argument that is not UTF-8
        return msgspec.json.encode(_printable_parts(msgspec.to_builtins(value, enc_hook=str, str_keys=True)))


def _printable_parts(value: Any) -> Any:
    if isinstance(value, str):
        return printable(value)
    if isinstance(value, list):
        return [_printable_parts(part) for part in value]
    if isinstance(value, dict):
        return {printable(key): _printable_parts(part) for key, part in value.items()}
    return value


def result(json: bool, facts: Any, text: str) -> None:
    """Print the facts as JSON, or one line for a person."""
    if json:
        document(facts)
    else:
        sentence(text)


def grid(
    columns: Sequence[str],
    rows: Iterable[Sequence[str]],
    *,
    right: Collection[str] = (),
    less: Sequence[str] = (),
    sentences: Collection[str] = (),
    empty: str,
) -> None:
    """Print a table for a person. In a narrow terminal, omit some columns, or print a block for each row.

    Args:
        rows: cells, as many as headings. Any number of rows: few are in memory at a time.
        right: headings of columns that are aligned to the right.
        less: headings that a narrow terminal may leave out, the least important first. A line names them.
        sentences: headings of columns whose cells a narrow terminal may wrap at words.
        empty: the sentence that is printed instead of a table without rows.
    """
    coming = (tuple(map(printable, row)) for row in rows)
    first_rows = list(islice(coming, _MEASURED_ROW_COUNT))
    if not first_rows:
        sentence(empty)
        return
    width = _width(sys.stdout)
    arrangement = layout.fit(columns, first_rows, width=width, right=right, less=less, sentences=sentences)
    every = chain(first_rows, coming)
    if arrangement is None:
        _print_records(columns, every, width=width)
        return
    first, *rest = arrangement.head()
    *more_lines, rule = rest
    _print_lines(map(_bold, (first, *more_lines)))
    _print_lines([rule])
    for row in every:
        _print_lines(arrangement.row(row))
    if arrangement.left_out:
        left_out = f"Columns left out, as the terminal is narrow: {', '.join(arrangement.left_out)}. --json prints all."
        sentence(f"\n{left_out}")


def facts(pairs: Sequence[tuple[str, str]]) -> None:
    """Print the facts about one object, a line for each: name, value. A narrow terminal wraps the values at words."""
    width = _width(sys.stdout)
    columns = ("what", "value")
    if layout.fit(columns, pairs, width=width, right=(), less=(), sentences=("value",)):
        grid(columns, pairs, sentences=("value",), empty="")
    else:
        _print_records([name for name, _ in pairs], [[value for _, value in pairs]], width=width)


def _print_records(columns: Sequence[str], rows: Iterable[Sequence[str]], *, width: int | None) -> None:
    for number, record in enumerate(layout.records(columns, rows, width=width)):
        _print_lines(([""] if number else []) + record)


def _print_lines(texts: Iterable[str]) -> None:
    text = "".join(f"{text}\n" for text in texts)
    sys.stdout.write(text if _has_lines(sys.stdout) else text.replace(layout.RULE, "-"))


def _has_lines(stream: TextIO) -> bool:
    """Whether a stream can print the lines of tables."""
    try:
        layout.RULE.encode(stream.encoding)
    except UnicodeEncodeError:
        return False
    return True


def _bold(text: str) -> str:
    if not sys.stdout.isatty() or "NO_COLOR" in os.environ or os.environ.get("TERM") in (None, "", "dumb", "unknown"):
        return text
    return f"\x1b[1m{text}\x1b[0m"


def _width(stream: TextIO) -> int | None:
    """Return the width of a terminal in columns; None for a pipe or a file, which have no limit."""
    if not stream.isatty():
        return None
    set_width = os.environ.get("COLUMNS", "")
    try:
        columns = int(set_width) if set_width.isdecimal() else os.get_terminal_size(stream.fileno()).columns
    except OSError:
        columns = 0
    return max(columns or _COLUMNS, _COLUMNS_MIN)


def _wrap(text: str, stream: TextIO) -> str:
    return "\n".join(layout.wrap(layout.visible(printable(text)), _width(stream)))


def error(problem: LakebedError, *, json: bool) -> None:
    """Print an error: its sentences, or ``{"error": {"kind", "message", "facts"}}``."""
    message = " ".join(filter(None, (problem.message, *getattr(problem, "__notes__", ()))))
    if json:
        body = {"error": {"kind": problem.kind, "message": message, "facts": problem.facts}}
        _say_json(body)
    else:
        say(_wrap(f"lakebed: {message}", sys.stderr))


def _say_json(value: Any) -> None:
    sys.stderr.flush()
    sys.stderr.buffer.write(_json(value) + b"\n")
    sys.stderr.buffer.flush()


def ask(question: str | Callable[[], str], *, yes: bool, json: bool) -> None:
    """Continue only if the user at the terminal agrees. With ``--yes``, ``--json`` or no terminal, do not ask.

    Args:
        question: the question, or a function that makes it. The function, which may be costly or raise, is called only
            if the question is asked.

    Raises:
        Exit: the user declined; nothing was changed.
    """
    if yes or json or not (sys.stdin.isatty() and sys.stderr.isatty()):
        return
    sys.stderr.write(_wrap(f"{question if isinstance(question, str) else question()} [y/N]", sys.stderr) + " ")
    sys.stderr.flush()
    if sys.stdin.readline().strip().lower() not in {"y", "yes"}:
        say("Nothing was changed.")
        raise exits.Exit(exits.DECLINED)


@contextmanager
def progress(title: str) -> Iterator[Callable[[Any], None] | None]:
    """A progress bar while the block runs, as a callback that takes done and total counts; None without a terminal."""
    if not sys.stderr.isatty():
        yield None
        return
    with load("lakebed.cli.progress_bar").bar(title) as advance:
        yield advance


def ago(time_ms: int | None) -> str:
    """``3 minutes ago``, ``in 2 days``, ``just now``; ``-`` for None."""
    if time_ms is None:
        return "-"
    past_ms = _CLOCK.now_ms() - time_ms
    if abs(past_ms) < 1000:
        return "just now"
    return f"{span(past_ms)} ago" if past_ms > 0 else f"in {span(-past_ms)}"


def span(duration_ms: int) -> str:
    """Format a duration in its largest unit, rounded down except within its last hundredth: ``3 minutes``."""
    # A lifetime of 7 days that began a moment ago ends in 7 days, not in 6; and 3,650 days are 10 years.
    seconds = duration_ms * 1.01 / 1000
    for unit, length in _SPANS:
        if seconds >= length:
            number = int(seconds / length)
            return f"{number} {unit}{'' if number == 1 else 's'}"
    return f"{duration_ms} ms"


def size(size_bytes: int | None) -> str:
    """``1.4 MB`` (powers of 1000); ``-`` for None."""
    return "-" if size_bytes is None else format_size(size_bytes)


def options_text(options: Mapping[str, str]) -> str:
    """``a=1, b=2``; ``-`` for none."""
    return ", ".join(f"{key}={value}" for key, value in sorted(options.items())) or "-"
