r"""The layout of tables and sentences in a terminal of some width: text in, lines out.

Invariants: a word (the text between spaces) is never broken, so that names, ids and numbers can be read and copied.
A word wider than the terminal is on its own line. Without a width nothing is left out and nothing is wrapped. Control
characters become ``\x1b``; line feeds break a cell into lines. This module prints nothing.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from typing import Final

from lakebed.cli.loading import load

RULE: Final = "─"
_GAPS: Final = (3, 2)
"""Spaces between two columns: with enough room, and without."""
_SENTENCE_COLUMNS_MIN: Final = 20
"""A column of sentences is wrapped at this width or more. A table without this room leaves out other columns."""
_INDENT: Final = 2
_CONTROL: Final = re.compile(r"[\x00-\x09\x0b-\x1f\x7f-\x9f]")
_WORDS: Final = re.compile(r"( *)([^ ]+)")


def width_of(text: str) -> int:
    """Return how many columns of a terminal a text without line feeds takes."""
    if text.isascii():
        return len(text)
    return int(load("rich.cells").cell_len(text))  # a character may take two columns


def wrap(text: str, width: int | None) -> list[str]:
    """Return the lines of a text, at most `width` columns wide unless a word is wider, with the text's indentation."""
    return [line for part in text.split("\n") for line in _wrap_line(part, width)]


def _wrap_line(text: str, width: int | None) -> list[str]:
    if width is None or width_of(text) <= width:
        return [text]
    indent = text[: len(text) - len(text.lstrip(" "))]
    lines: list[str] = []
    line = ""
    for blank, word in _WORDS.findall(text):
        if not line:
            line = indent + word
        elif width_of(line) + len(blank) + width_of(word) <= width:
            line += blank + word
        else:
            lines.append(line)
            line = indent + word
    return [*lines, line]


@dataclass(frozen=True)
class Columns:
    """The printed columns of a table.

    Attributes:
        shown: positions of the columns that are printed.
        gap: spaces between two columns.
        right: headings of columns that are aligned to the right.
        wraps: whether a row that was not measured is wrapped if it is wider.
    """

    headings: Sequence[str]
    shown: Sequence[int]
    widths: Sequence[int]
    gap: int
    right: Collection[str]
    wraps: bool

    @property
    def left_out(self) -> list[str]:
        """Headings of the columns that are not printed."""
        return [heading for position, heading in enumerate(self.headings) if position not in self.shown]

    def head(self) -> list[str]:
        """Return the headings, and the line below them."""
        return [*self.row(self.headings), RULE * (sum(self.widths) + self.gap * (len(self.widths) - 1))]

    def row(self, cells: Sequence[str]) -> list[str]:
        """Return a row's lines. A word wider than its column moves the rest of its line."""
        columns = [
            _cell_lines(cells[position], width if self.wraps else None)
            for position, width in zip(self.shown, self.widths, strict=True)
        ]
        return [self._line(parts) for parts in zip_longest(*columns, fillvalue="")]

    def _line(self, parts: Sequence[str]) -> str:
        line = []
        for position, part, width in zip(self.shown, parts, self.widths, strict=True):
            blank = " " * (width - width_of(part))
            line.append(blank + part if self.headings[position] in self.right else part + blank)
        return (" " * self.gap).join(line).rstrip(" ")


def fit(
    headings: Sequence[str],
    rows: Sequence[Sequence[str]],
    *,
    width: int | None,
    right: Collection[str],
    less: Sequence[str],
    sentences: Collection[str],
) -> Columns | None:
    """Choose the columns of a table that fit a terminal.

    Args:
        width: width of the terminal; None: everything fits.
        less: headings that may be left out, the least important first.
        sentences: headings of columns whose cells may be wrapped.

    Returns:
        The columns; None if the table is too wide even without the columns in `less`.
    """
    natural = [max(map(_widest_line, cells)) for cells in zip(headings, *rows, strict=True)]
    every = range(len(headings))
    if width is None or sum(natural) + _GAPS[0] * (len(natural) - 1) <= width:
        return Columns(headings, every, natural, _GAPS[0], right, wraps=width is not None)
    least_widths = [
        _least(heading, [row[position] for row in rows], wraps=heading in sentences)
        for position, heading in enumerate(headings)
    ]
    for count in range(len(less) + 1):
        positions = [position for position in every if headings[position] not in less[:count]]
        spare = width - sum(least_widths[position] for position in positions) - _GAPS[1] * (len(positions) - 1)
        if spare >= 0:
            return Columns(
                headings, positions, _share_out(positions, least_widths, natural, spare), _GAPS[1], right, wraps=True
            )
    return None


def _share_out(positions: Sequence[int], least_widths: Sequence[int], natural: Sequence[int], spare: int) -> list[int]:
    """Return the widths of the shown columns: the least width of each, plus the spare room, from the last column on."""
    widths = {}
    for position in reversed(positions):
        extra = min(spare, natural[position] - least_widths[position])
        widths[position] = least_widths[position] + extra
        spare -= extra
    return [widths[position] for position in positions]


def _least(heading: str, cells: Sequence[str], *, wraps: bool) -> int:
    """Return the least width of a column. Headings are wrapped, and so are cells of sentences."""
    head = max(map(width_of, heading.split(" ")))
    widest = max(map(_widest_line, cells), default=0)
    if not wraps:
        return max(head, widest)
    word = max((width_of(word) for cell in cells for word in cell.split()), default=0)
    return max(head, word, min(widest, _SENTENCE_COLUMNS_MIN))


def records(headings: Sequence[str], rows: Iterable[Sequence[str]], *, width: int | None) -> Iterator[list[str]]:
    """Yield each row as a block of lines, one for each column: heading, cell. An empty cell has no line."""
    margin = max(map(width_of, headings)) + _INDENT
    for row in rows:
        lines = []
        for heading, cell in zip(headings, row, strict=True):
            if not cell:
                continue
            room = None if width is None else width - margin
            values = _cell_lines(cell, room)
            if room is not None and any(width_of(value) > room for value in values):  # then put them on their own lines
                lines.append(heading)
                lines += (" " * _INDENT + value for value in _cell_lines(cell, room + margin - _INDENT))
                continue
            labels = [heading + " " * (margin - width_of(heading)), *[" " * margin] * (len(values) - 1)]
            lines += (label + value for label, value in zip(labels, values, strict=True))
        yield lines


def _cell_lines(cell: str, width: int | None) -> list[str]:
    return wrap(visible(cell), width)


def _widest_line(cell: str) -> int:
    return max(map(width_of, visible(cell).split("\n")))


def visible(cell: str) -> str:
    """Escape the control characters of a text, except line feeds."""
    if cell.isprintable():
        return cell
    return _CONTROL.sub(lambda match: repr(match.group())[1:-1], cell)
