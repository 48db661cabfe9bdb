"""Rows of input files that do not fit their schema: the file, the line and the reason, in one sentence.

Owns: `BadRow`, finding a record's line in a file (`find_lines`), and explaining why a record does not fit
(`reason_of`). Spark's reader decides that a row is bad; this module only explains it. Starts nothing.
"""

from __future__ import annotations

import bz2
import csv
import gzip
import io
import json
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, TextIO
from urllib.parse import unquote, urlsplit

_TEXT_MAX = 120


@dataclass(frozen=True, slots=True)
class BadRow:
    """One row that does not fit its schema."""

    file: str
    line: int | None
    """Line at which the record begins, from 1; None: the file is not local, or has other line separators."""
    text: str
    reason: str
    """Empty: not known."""

    def sentence(self) -> str:
        """Return the row for a message."""
        place = self.file if self.line is None else f"{self.file}, line {self.line}"
        excerpt = self.text if len(self.text) <= _TEXT_MAX else self.text[: _TEXT_MAX - 1] + "…"
        return f"{place}: {' '.join(excerpt.splitlines())}" + (f" ({self.reason})" if self.reason else "")


@dataclass(frozen=True, slots=True)
class BadRows:
    """The result of checking some files."""

    row_count: int
    """Number of all rows, including the bad ones."""
    bad_count: int = 0
    first: tuple[BadRow, ...] = ()

    def sentence(self) -> str:
        """Return the number of bad rows and the first of them, for a message."""
        verb = "does" if self.bad_count == 1 else "do"
        sentences = "; ".join(row.sentence() for row in self.first)
        more_text = f"; and {self.bad_count - len(self.first):,} more" if self.bad_count > len(self.first) else ""
        return f"{self.bad_count:,} of {self.row_count:,} rows {verb} not fit the schema: {sentences}{more_text}"


def local_path(url: str) -> str | None:
    """Return the path of a ``file:`` URL, as Spark names a file it read; None for any other URL."""
    parts = urlsplit(url)
    return unquote(parts.path) if parts.scheme == "file" else None


def find_lines(path: str, records: Sequence[str], *, encoding: str = "utf-8") -> list[int | None]:
    """Return the line of each record, from 1. Records with the same text are different lines, in order.

    Args:
        path: a local file, also gzip or bzip2.
        records: whole lines without their ends, or several lines if the reader allows that.

    Cost: one pass over the file, until all are found.
    """
    record_lines = [record.splitlines() or [""] for record in records]
    numbers: list[int | None] = [None] * len(records)
    window: deque[str] = deque(maxlen=max(map(len, record_lines), default=1))
    missing = len(records)
    with _open_lines(path, encoding) as lines:
        for number, line in enumerate(lines, start=1):
            window.append(line.rstrip("\n"))
            for position, parts in enumerate(record_lines):
                if numbers[position] is None and list(window)[-len(parts) :] == parts:
                    numbers[position] = number - len(parts) + 1
                    missing -= 1
                    break
            if not missing:
                break
    return numbers


@contextmanager
def _open_lines(path: str, encoding: str) -> Iterator[TextIO]:
    encoding = "utf-8-sig" if encoding.lower() in ("utf-8", "utf8") else encoding
    openers: dict[str, Callable[[str], Any]] = {".gz": gzip.open, ".bz2": bz2.open}
    # Spark ends a line where Python's universal newlines do: at a line feed, a carriage return, or both.
    opener = openers.get(Path(path).suffix.lower(), _open)
    with opener(path) as raw, io.TextIOWrapper(raw, encoding=encoding, errors="replace", newline=None) as text:
        yield text


def _open(path: str) -> IO[bytes]:
    return open(path, "rb")


def reason_of(
    text: str, *, file_format: str, schema: Mapping[str, str], values: Mapping[str, Any], options: Mapping[str, str]
) -> str:
    """Return why a record does not fit, in a few words; empty when the record does not show it.

    Args:
        values: what Spark read of it: null in each column whose value does not fit.
    """
    fields = _json_values(text) if file_format == "json" else _csv_values(text, options)
    if fields is None:
        return "it is not a JSON object" if file_format == "json" else ""
    if not isinstance(fields, dict):
        if len(fields) != len(schema):
            return f"{len(fields)} {'value' if len(fields) == 1 else 'values'} for {len(schema)} columns"
        fields = dict(zip(schema, fields, strict=True))
    wrong = [name for name in schema if values.get(name) is None and fields.get(name) not in (None, "")]
    null = {name.lower(): value for name, value in options.items()}.get("nullvalue", "")
    return ", ".join(
        f"{name} = {fields[name]!r} is not a valid {schema[name]}" for name in wrong if fields[name] != null
    )


def _csv_values(text: str, options: Mapping[str, str]) -> list[str] | None:
    by_name = {name.lower(): value for name, value in options.items()}
    separator = by_name.get("sep", by_name.get("delimiter", ","))
    quote, escape = by_name.get("quote", '"'), by_name.get("escape", '"')
    if len(separator) != 1 or len(quote) != 1 or len(escape) != 1:
        return None
    rows: Iterable[list[str]] = csv.reader(
        [text], delimiter=separator, quotechar=quote, escapechar=None if escape == quote else escape
    )
    try:
        return next(iter(rows), None)
    except csv.Error:
        return None


def _json_values(text: str) -> dict[str, Any] | None:
    try:
        value = json.loads(text)
    except ValueError:
        return None
    return value if isinstance(value, dict) else None
