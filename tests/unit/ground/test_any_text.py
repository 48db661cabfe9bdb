"""Every parser of text that users give: whatever the text, the only errors are lakebed's own, and they are short."""

from __future__ import annotations

import datetime
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import hypothesis.strategies as st
import pyarrow as pa
import pytest
from hypothesis import given

from lakebed.cli import arguments
from lakebed.duration import parse_duration_ms, parse_size_bytes
from lakebed.errors import InvalidRequest, LakebedError
from lakebed.lake.names import parse_store_name, parse_table_name
from lakebed.objects.path import parse_url
from lakebed.pipeline.parse import parse
from lakebed.repo.model.names import parse_reference
from lakebed.table.branch.travel import parse_time_ms
from lakebed.table.model.options import check_options
from lakebed.table.model.predicate_text import parse_predicate
from lakebed.table.model.types import arrow_type, type_of_arrow
from lakebed.texts import LONG_MAX, format_value, whole_number

DIGITS = "9" * 5000
NASTY_TEXTS = [
    *(DIGITS, f"-{DIGITS}", "--5", "²", "٣", "", " ", "\0", "\ud800", "a" * 5000, "(" * 5000, "<" * 5000, "[" * 5000),
    *("ROW<a: " * 3000 + "INT" + ">" * 3000, "ARRAY<" * 3000, f"DECIMAL({DIGITS})", f"main~{DIGITS}", "main~1" * 5000),
    *(f"{DIGITS} d", f"P{DIGITS}D", "9" * 1_100_000 + " y", f"{DIGITS} mb", "0001-01-01T00:00:00+14:00", "- " * 3000),
    *("a: &a [*a]", "9999-12-31T23:59:59-14:00", "? [a]\n: b", "'" * 999, f"x = {DIGITS}", "x > 1e" + DIGITS, "P1DT"),
    "a: &a [1,1]\n" + "".join(f"b{n}: &b{n} [*{'a' if n == 0 else f'b{n - 1}'}, *a]\n" for n in range(60)),
    *(f"name: x\nlake: y\nsteps:\n- for: {{n: {{from: 1, to: {DIGITS}}}}}\n  do: []\n", "name: 2013-13-45", "{" * 900),
]
PARSERS: dict[str, Callable[[str], Any]] = {
    "type": arrow_type,
    "duration": parse_duration_ms,
    "size": parse_size_bytes,
    "reference": parse_reference,
    "time": parse_time_ms,
    "duration of the command line": arguments.duration_ms,
    "filter": parse_predicate,
    "table": parse_table_name,
    "store": parse_store_name,
    "url": parse_url,
    "pipeline": parse,
    "number of an option": lambda text: check_options({"snapshot.num-retained.min": text}),
    "duration of an option": lambda text: check_options({"snapshot.time-retained": text}),
}


@pytest.mark.parametrize("name", PARSERS)
def test_nasty_texts(name: str) -> None:
    """Long, deep and odd texts are read or refused with a sentence."""
    for text in NASTY_TEXTS:
        with suppress(LakebedError):
            PARSERS[name](text)


@pytest.mark.parametrize("name", PARSERS)
@given(text=st.one_of(st.text(max_size=30), st.text("0123456789.-~^ dhmPT<>(),:[]{}&*'\"\nROWINT", max_size=30)))
def test_any_text(name: str, text: str) -> None:
    """So is any other."""
    with suppress(LakebedError):
        PARSERS[name](text)


@pytest.mark.parametrize("name", ["type", "duration", "size", "time", "filter"])
def test_errors_do_not_repeat_long_texts(name: str) -> None:
    """An error stays readable, whatever it is about."""
    with pytest.raises(InvalidRequest) as refused:
        PARSERS[name]("?" * 100_000)
    assert len(str(refused.value)) < 600


def test_depth_of_types() -> None:
    """Types nest to a limit, as text and from Arrow."""
    assert arrow_type("ARRAY<" * 60 + "INT" + ">" * 60)
    with pytest.raises(InvalidRequest, match="levels"):
        arrow_type("ARRAY<" * 65 + "INT" + ">" * 65)
    deep = pa.int32()
    for _ in range(900):
        deep = pa.struct([("a", deep)])
    with pytest.raises(InvalidRequest, match="levels"):
        type_of_arrow(deep)


@pytest.mark.parametrize(
    ("text", "number"),
    [
        *(("7", 7), (" 007 ", 7), ("-1", None), (str(LONG_MAX), LONG_MAX), (str(LONG_MAX + 1), None), ("²", None)),
        *(("٣", None), ("1_0", None), ("", None), ("-", None), ("0" * 5000 + "5", 5), (DIGITS, None), ("+1", None)),
    ],
)
def test_whole_numbers(text: str, number: int | None) -> None:
    """ASCII digits inside the limits, nothing else."""
    assert whole_number(text) == number


@pytest.mark.parametrize(
    "value", [10**5000, "x" * 10**6, datetime.datetime.max, [1] * 10**5], ids=lambda one: type(one).__name__
)
def test_shown_values_are_short(value: object) -> None:
    """A value in an error is shortened, also a number that Python does not print."""
    assert len(format_value(value)) < 200
