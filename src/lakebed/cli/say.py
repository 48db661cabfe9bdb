r"""What the command line prints, and how: tables and sentences for people, JSON for programs.

Invariants: results go to standard output, everything else (progress, questions, errors) to standard error; with
``--json`` standard output is one JSON document with stable keys, times in Unix milliseconds, sizes in bytes. Progress
bars appear only when standard error is a terminal. Bytes of an argument that are no UTF-8 are printed as ``\xff``.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import chain, islice
from typing import Any, Final

import msgspec

from lakebed.cli import exits
from lakebed.cli.grammar import Exit
from lakebed.clock import SystemClock
from lakebed.errors import LakebedError

__all__ = [
    "ago",
    "ask",
    "brief",
    "count",
    "document",
    "error",
    "flush",
    "grid",
    "lines",
    "notes",
    "printable",
    "progress",
    "result",
    "sentence",
    "size",
    "span",
]

_COMMIT_ID: Final = re.compile(r"\b([0-9a-f]{12})[0-9a-f]{52}\b")

_CLOCK = SystemClock()
_MEASURED_ROW_COUNT = 500
"""A table of more rows is as wide as the first of them need, and is printed as the rows come."""
_SPANS = (("year", 31_557_600), ("month", 2_629_800), ("day", 86_400), ("hour", 3600), ("minute", 60), ("second", 1))


def document(value: Any) -> None:
    """Print one JSON document."""
    sys.stdout.write(msgspec.json.format(_json(value)).decode() + "\n")


def sentence(text: str) -> None:
    """Print one line for a person."""
    sys.stdout.write(printable(text) + "\n")


def lines(texts: Iterable[str]) -> None:
    """Print one line each."""
    sys.stdout.write("".join(f"{printable(text)}\n" for text in texts))


def notes(texts: Iterable[str], *, json: bool) -> None:
    """Print on standard error what to write in place of old spellings, or ``{"note"}`` lines."""
    for text in texts:
        sys.stderr.write(f"{_json({'note': text}).decode()}\n" if json else f"lakebed: note: {printable(text)}\n")


def flush() -> None:
    """Hand over what was printed, to who waits for it."""
    sys.stdout.flush()


def printable(text: str) -> str:
    r"""An argument or a path of this system as it can be printed: bytes that are no UTF-8 become ``\xff``."""
    return text if text.isascii() else text.encode("utf-8", "surrogateescape").decode("utf-8", "backslashreplace")


def brief(text: str) -> str:
    """The first line of a message, with the beginnings of the commits that it names: no terminal has room for them."""
    return _COMMIT_ID.sub(r"\1", text.split("\n", 1)[0]) or "(no message)"


def _json(value: Any) -> bytes:
    try:
        return msgspec.json.encode(value, enc_hook=str)
    except UnicodeEncodeError:  # an argument that is no UTF-8 stands in it
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


def grid(columns: Sequence[str], rows: Iterable[Sequence[str]], *, right: Iterable[str] = (), empty: str) -> None:
    """Print a table for a person.

    Args:
        columns: headings.
        rows: cells, as many as headings. Any number: few are held at a time.
        right: headings of columns that are aligned to the right.
        empty: the sentence that stands in place of a table without rows.
    """
    coming = iter(rows)
    cells = [tuple(row) for row in islice(coming, _MEASURED_ROW_COUNT + 1)]
    if not cells:
        sentence(empty)
    elif len(cells) > _MEASURED_ROW_COUNT:
        _print_long(columns, chain(cells, coming), measured=cells, right=set(right))
    elif not sys.stdout.isatty() and all(cell.isprintable() for row in cells for cell in row):
        _print_long(columns, cells, measured=cells, right=set(right))  # there is no width to fold at
    else:
        _print_short(columns, cells, right=set(right))


def _print_long(
    columns: Sequence[str], rows: Iterable[Sequence[str]], *, measured: Sequence[Sequence[str]], right: set[str]
) -> None:
    """Row by row, in columns as wide as the measured rows need; a longer cell moves the rest of its line."""

    def cell_len(text: str) -> int:
        if text.isascii():
            return len(text)
        from rich.cells import cell_len as columns_of  # a character may be two columns wide

        return columns_of(text)

    widths = [max(map(cell_len, cells)) for cells in zip(columns, *measured, strict=True)]
    last = len(columns) - 1

    def line(cells: Sequence[str]) -> str:
        parts = []
        for position, (column, cell, width) in enumerate(zip(columns, cells, widths, strict=True)):
            blank = " " * (width - cell_len(cell))
            parts.append(blank + cell if column in right else cell if position == last else cell + blank)
        return "   ".join(parts) + "\n"

    sys.stdout.write(line(columns) + "─" * (sum(widths) + 3 * last) + "\n")
    for row in rows:
        sys.stdout.write(line(row))


def _print_short(columns: Sequence[str], cells: Sequence[Sequence[str]], *, right: set[str]) -> None:
    from rich import box  # rich takes a third of the start-up time, and only tables need it
    from rich.console import Console
    from rich.table import Table

    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False, header_style="bold")
    for column in columns:
        table.add_column(column, justify="right" if column in right else "left", overflow="fold")
    for row in cells:
        table.add_row(*(_escape(cell) for cell in row))
    # Into a pipe there is no width to fold at; rich would assume 80 columns.
    wide = None if sys.stdout.isatty() else 10_000
    Console(file=sys.stdout, width=wide, highlight=False, soft_wrap=not sys.stdout.isatty()).print(table)


def error(problem: LakebedError, *, json: bool) -> None:
    """Print an error: its sentences, or ``{"error": {"kind", "message", "facts"}}``."""
    message = " ".join(filter(None, (problem.message, *getattr(problem, "__notes__", ()))))
    if json:
        body = {"error": {"kind": problem.kind, "message": message, "facts": problem.facts}}
        sys.stderr.write(_json(body).decode() + "\n")
    else:
        sys.stderr.write(f"lakebed: {printable(message)}\n")


def ask(question: str, *, yes: bool, json: bool) -> None:
    """Go on only when the person at the terminal agrees. With ``--yes``, ``--json`` or no terminal nobody is asked.

    Raises:
        Exit: they said no; nothing was changed.
    """
    if yes or json or not (sys.stdin.isatty() and sys.stderr.isatty()):
        return
    sys.stderr.write(f"{question} [y/N] ")
    sys.stderr.flush()
    if sys.stdin.readline().strip().lower() not in {"y", "yes"}:
        sys.stderr.write("Nothing was changed.\n")
        raise Exit(exits.DECLINED)


@contextmanager
def progress(title: str) -> Iterator[Callable[[Any], None] | None]:
    """A progress bar while the block runs, as a callback that takes done and total counts; None without a terminal."""
    if not sys.stderr.isatty():
        yield None
        return
    from rich.console import Console
    from rich.progress import Progress

    with Progress(console=Console(stderr=True), transient=True) as bars:
        bar = bars.add_task(title, total=None)

        def advance(state: Any) -> None:
            bars.update(bar, completed=state.done_count, total=state.total_count)

        yield advance


def ago(time_ms: int | None) -> str:
    """``3 minutes ago``, ``in 2 days``, ``just now``; ``-`` for None."""
    if time_ms is None:
        return "-"
    past_ms = _CLOCK.now_ms() - time_ms
    if abs(past_ms) < 1000:
        return "just now"
    # A lifetime of 7 days that began a moment ago ends in 7 days, not in 6.
    return f"{span(past_ms)} ago" if past_ms > 0 else f"in {span(-past_ms * 101 // 100)}"


def span(duration_ms: int) -> str:
    """A duration in its largest unit: ``3 minutes``, ``1 day``."""
    seconds = duration_ms / 1000
    for unit, length in _SPANS:
        if seconds >= length:
            number = int(seconds / length)
            return f"{number} {unit}{'' if number == 1 else 's'}"
    return f"{duration_ms} ms"


def size(size_bytes: int | None) -> str:
    """``1.4 MB`` (powers of 1000); ``-`` for None."""
    if size_bytes is None:
        return "-"
    number = float(size_bytes)
    for unit in ("B", "kB", "MB", "GB", "TB"):
        if number < 999.5 or unit == "TB":
            return f"{number:.0f} {unit}" if unit == "B" or number >= 100 else f"{number:.1f} {unit}"
        number /= 1000
    raise AssertionError("unreachable")


def count(number: int, noun: str, plural: str | None = None) -> str:
    """``1 file``, ``1,234 files``."""
    return f"{number:,} {noun if number == 1 else plural or noun + 's'}"


def options_text(options: Mapping[str, str]) -> str:
    """``a=1, b=2``; ``-`` for none."""
    return ", ".join(f"{key}={value}" for key, value in sorted(options.items())) or "-"


def _escape(text: str) -> str:
    return printable(text).replace("[", r"\[")
