"""Plots as inline SVG with HTML labels: sharp at every width, readable on a phone, light and dark, no script.

Owns: marks and axes; their markup is in `page.html.jinja`. The SVG of a plot is stretched to its box (strokes do not
scale), so it contains only shapes; all text is HTML over it and keeps its size. Colours are CSS variables that the page
defines. Pure: numbers -> text.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from lakebed.pipeline.page_parts import draw

_WIDTH, _HEIGHT = 1000, 100
Shape = tuple[str, str, str | None]
"""Class, path, and what is shown on hover."""
Label = tuple[str, str, str]
"""Classes, the place from the left in percent, text."""


@dataclass(frozen=True, slots=True)
class Tick:
    """A label below the plot, at `x` of its domain."""

    x: float
    label: str


@dataclass(frozen=True, slots=True)
class Bars:
    """One bar for each value, at x = 0, 1, 2, ...; `hints` are shown on hover."""

    values: Sequence[float]
    hints: Sequence[str]
    css: str = "bar"
    marked: Sequence[bool] = ()
    """Bars that stand out; empty: none."""


@dataclass(frozen=True, slots=True)
class Line:
    """A line through (x, y) points; `stepped` holds a value until the next point."""

    points: Sequence[tuple[float, float]]
    css: str = "line"
    stepped: bool = False


@dataclass(frozen=True, slots=True)
class Area:
    """As a line, filled down to zero."""

    points: Sequence[tuple[float, float]]
    css: str = "area"
    stepped: bool = False


def plot(
    marks: Sequence[Bars | Line | Area],
    *,
    label: str,
    x_max: float,
    ticks: Sequence[Tick],
    format_y: Callable[[float], str],
    verticals: Sequence[Tick] = (),
    tall: bool = False,
    whole: bool = False,
) -> str:
    """Return a plot from zero upwards.

    Args:
        marks: drawn in order, first at the bottom.
        label: a description for screen readers.
        x_max: the domain is [0, x_max].
        ticks: labels below.
        format_y: text of a value on the left axis.
        verticals: dashed lines with a label at their top (empty: none).
        whole: values are whole numbers, and so are the steps of the left axis.
    """
    top, steps = _nice(
        max((value for mark in marks for value in _heights(mark)), default=0.0), step_min=1.0 if whole else 0.0
    )

    def x_of(x: float) -> float:
        return _WIDTH * x / max(x_max, 1e-9)

    def y_of(y: float) -> float:
        return _HEIGHT * (1 - y / top)

    shapes: list[Shape] = [("grid", f"M0 {y_of(step):.2f}H{_WIDTH}", None) for step in steps]
    for mark in marks:
        shapes += _shapes(mark, x_of, y_of)
    shapes += [("vertical", f"M{x_of(mark.x):.2f} 0V{_HEIGHT}", None) for mark in verticals]
    labels = [(f"{100 * (1 - step / top):.2f}", format_y(step)) for step in steps]
    tops = [(f"{100 * mark.x / max(x_max, 1e-9):.2f}", mark.label) for mark in verticals if mark.label]
    return draw("plot", label, tall, labels, shapes, tops, _x_axis(ticks, x_max))


@dataclass(frozen=True, slots=True)
class Flag:
    """A tag on the timeline."""

    x: float
    label: str
    css: str = "flag"


def timeline(
    ticks: Sequence[tuple[float, str, str]],
    flags: Sequence[Flag],
    *,
    label: str,
    x_max: float,
    axis: Sequence[Tick],
) -> str:
    """Return snapshots as fine strokes on a band, with tags as flags above it; without tags only the band.

    Args:
        ticks: (x, CSS class, hint) of each snapshot.
        flags: tags, in order of x. Each has a pole. Labels are in two rows, as many as fit: first those of wrong tags,
            then the last, then from the left.
    """
    top = 62 if flags else 0
    shapes: list[Shape] = [("band", f"M0 {top}H{_WIDTH}V{_HEIGHT}H0Z", None)]
    shapes += [(css, f"M{_WIDTH * x / max(x_max, 1e-9):.2f} {top}V{_HEIGHT}", hint) for x, css, hint in ticks]
    shapes += [("pole", f"M{_WIDTH * flag.x / max(x_max, 1e-9):.2f} 36V62", flag.label) for flag in flags]
    labels = [(css, _flag_labels(flags, x_max, width)) for css, width in _LABEL_WIDTHS.items()]
    return draw("timeline", label, shapes, labels, _x_axis(axis, x_max), not flags)


_LABEL_WIDTHS = {"narrow": 220.0, "middle": 460.0, "wide": 840.0}
"""The least width of a plot in CSS pixels, by the class of the labels that are shown at that width (see `page.css`)."""
_LABEL_PADDING, _LABEL_GAP, _LETTER_WIDTH = 14.0, 8.0, 7.6
"""Widths in CSS pixels: the padding of a flag, the gap between labels of an axis, and a letter (few are wider)."""


def _flag_labels(flags: Sequence[Flag], x_max: float, width: float) -> list[Label]:
    """Return the labels that fit into a box of `width` pixels without overlap."""
    order = sorted(range(len(flags)), key=lambda n: (flags[n].css == "flag", n != len(flags) - 1, n))
    rows_taken: tuple[list[tuple[float, float]], ...] = ([], [])
    labels: list[Label] = []
    for number in order:
        flag = flags[number]
        share = flag.x / max(x_max, 1e-9)
        size = _LABEL_PADDING + _LETTER_WIDTH * len(flag.label)
        at_end = share * width + size > width
        left = share * width - (size if at_end else 0.0)
        row = next(
            (row for row in (0, 1) if all(left >= end or left + size <= start for start, end in rows_taken[row])), None
        )
        if row is None or left < 0:
            continue
        rows_taken[row].append((left, left + size))
        labels.append((f"{flag.css} row{row}{' end' if at_end else ''}", f"{100 * share:.2f}", flag.label))
    return labels


def _shapes(mark: Bars | Line | Area, x_of: Callable[[float], float], y_of: Callable[[float], float]) -> list[Shape]:
    if isinstance(mark, Bars):
        count = max(len(mark.values), 1)
        gap = 0.2 if count <= 60 else 0.12
        marks = mark.marked or [False] * len(mark.values)
        bars = zip(mark.values, mark.hints, marks, strict=True)
        return [
            (
                f"{mark.css}{' marked' if is_marked else ''}",
                f"M{x_of(number + gap / 2):.2f} {_HEIGHT}V{y_of(value):.2f}"
                f"H{x_of(number + 1 - gap / 2):.2f}V{_HEIGHT}Z",
                hint,
            )
            for number, (value, hint, is_marked) in enumerate(bars)
        ]
    if not mark.points:
        return []
    points = _step_points(mark.points) if mark.stepped else list(mark.points)
    path = "L".join(f"{x_of(x):.2f} {y_of(y):.2f}" for x, y in points)
    if isinstance(mark, Area):
        left, right = x_of(points[0][0]), x_of(points[-1][0])
        return [(mark.css, f"M{left:.2f} {_HEIGHT}L{path}L{right:.2f} {_HEIGHT}Z", None)]
    return [(mark.css, f"M{path}", None)]


def _step_points(points: Sequence[tuple[float, float]]) -> list[tuple[float, float]]:
    result = [points[0]]
    for x, y in points[1:]:
        result += [(x, result[-1][1]), (x, y)]
    return result


def _heights(mark: Bars | Line | Area) -> list[float]:
    return list(mark.values) if isinstance(mark, Bars) else [y for _, y in mark.points]


def _nice(highest: float, *, step_min: float = 0.0) -> tuple[float, list[float]]:
    """Return the top of an axis and its labelled steps (at most 5), at 1, 2, 2.5 or 5 times a power of ten."""
    if highest <= 0:
        return 1.0, [0.0]
    rough = highest / 4
    power = 10.0 ** math.floor(math.log10(rough))
    step = max(next(factor * power for factor in (1, 2, 2.5, 5, 10) if factor * power >= rough), step_min)
    if step_min and step == 2.5:
        step = 5.0  # half of five is not a whole number
    count = math.ceil(highest / step - 1e-9)
    return count * step, [number * step for number in range(count + 1)]


def _x_axis(ticks: Sequence[Tick], x_max: float) -> list[tuple[str, list[Label]]]:
    return [(css, _x_labels(ticks, x_max, width)) for css, width in _LABEL_WIDTHS.items()]


def _x_labels(ticks: Sequence[Tick], x_max: float, width: float) -> list[Label]:
    """Return the labels that fit into a box of `width` pixels, from the left.

    A label that would cross a border begins or ends at its tick. A label longer than half the box is cut.
    """
    letters_max = int(width / 2 / _LETTER_WIDTH)
    labels: list[Label] = []
    right_edge = 0.0
    for tick in ticks:
        label = tick.label if len(tick.label) <= letters_max else tick.label[: letters_max - 1] + "…"
        size, place = _LETTER_WIDTH * len(label), width * tick.x / max(x_max, 1e-9)
        at_start, at_end = place < size / 2, place + size / 2 > width
        left = place if at_start else place - size if at_end else place - size / 2
        if left < right_edge:
            continue
        right_edge = left + size + _LABEL_GAP
        labels.append(("start" if at_start else "end" if at_end else "", f"{100 * place / width:.2f}", label))
    return labels
