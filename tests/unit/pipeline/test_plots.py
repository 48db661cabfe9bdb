"""The report's plots: axes that people can read, text that cannot break the page."""

from __future__ import annotations

import re

import pytest

from lakebed.pipeline.plots import Area, Bars, Flag, Line, Tick, plot, timeline


def labels(html: str) -> list[str]:
    """Texts of the left axis."""
    return re.findall(r"<span[^>]*>([^<]*)</span>", html.split('class="box"')[0])


@pytest.mark.parametrize(
    ("highest", "steps"),
    [
        (0, ["0"]),
        (1, ["0", "0.25", "0.5", "0.75", "1"]),
        (37, ["0", "10", "20", "30", "40"]),
        (980, ["0", "250", "500", "750", "1000"]),
        (1001, ["0", "500", "1000", "1500"]),
    ],
)
def test_an_axis_has_round_steps_and_covers_the_highest_value(highest: float, steps: list[str]) -> None:
    """Three to five labels at 1, 2, 2.5 or 5 times a power of ten."""
    html = plot([Bars([highest], ["one"])], label="x", x_max=1, ticks=[], format_y=lambda value: f"{value:g}")
    assert labels(html) == steps


def test_text_is_escaped() -> None:
    """A step may be called anything."""
    html = plot(
        [Bars([1.0], ["<b> & 'x'"])],
        label='say "hi" <i>',
        x_max=1,
        ticks=[Tick(0.5, "<tick>")],
        format_y=str,
    )
    assert "<b>" not in html
    assert "<i>" not in html
    assert "<tick>" not in html
    assert "&lt;tick&gt;" in html


def test_a_stepped_line_holds_its_value() -> None:
    """Between two commits the table is what the first one left."""
    html = plot([Line([(0, 0), (5, 10)], stepped=True)], label="x", x_max=10, ticks=[], format_y=str)
    assert 'd="M0.00 100.00L500.00 100.00L500.00 0.00"' in html


def test_an_area_is_closed_at_zero() -> None:
    """Whatever its points are."""
    html = plot([Area([(2, 5), (8, 10)])], label="x", x_max=10, ticks=[], format_y=str)
    assert 'd="M200.00 100L200.00 50.00L800.00 0.00L800.00 100Z"' in html


@pytest.mark.parametrize("count", [2, 20, 31, 400])
def test_labels_below_a_plot_never_cover_each_other(count: int) -> None:
    """In boxes of a phone, of a small window and of a large one; each is whole and stays inside of the box."""
    ticks = [Tick(n + 0.5, f"2026-10-{n:02d}") for n in range(count)]
    html = plot([], label="x", x_max=count, ticks=ticks, format_y=str)
    for css, width in (("narrow", 220), ("middle", 460), ("wide", 840)):
        layer = html.split(f'class="xs {css}"')[1].split("</div>")[0]
        matches = re.findall(r'<span(?: class="(\w+)")? style="left:([\d.]+)%">([^<]*)', layer)
        assert len(matches) >= min(count, width // 110)
        end = 0.0
        for side, left, label in matches:
            assert label in {tick.label for tick in ticks}
            size = 7 * len(label)
            start = float(left) / 100 * width - {"start": 0, "": size / 2, "end": size}[side]
            assert start >= end, label
            end = start + size
        assert end <= width + 1


def test_a_timeline_without_tags_has_no_room_for_them() -> None:
    """The band of snapshots fills it; with one tag there is space for its flag."""
    bare = timeline([(0.5, "alive", "one")], [], label="x", x_max=1, axis=[])
    assert 'class="plot timeline bare"' in bare
    assert 'd="M500.00 0V100"' in bare
    tagged = timeline([(0.5, "alive", "one")], [Flag(0.5, "first")], label="x", x_max=1, axis=[])
    assert 'class="plot timeline"' in tagged
