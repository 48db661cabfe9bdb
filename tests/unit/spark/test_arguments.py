"""Arguments of procedures: what a text stands for, by its parameter's type."""

from __future__ import annotations

from typing import Any

import pytest

from lakebed.errors import InvalidRequest
from lakebed.spark.catalog.arguments import Parameter, arguments_of

LONG_MAX = 2**63 - 1


@pytest.mark.parametrize(
    ("kind", "value", "expected"),
    [
        ("bigint", 7, 7),
        ("bigint", " -7 ", -7),
        ("bigint", "7.000", 7),
        ("bigint", "9.223372036854775807E18", LONG_MAX),
        ("bigint", str(-LONG_MAX - 1), -LONG_MAX - 1),
        ("int", str(2**31 - 1), 2**31 - 1),
        ("boolean", True, True),
        ("boolean", "No ", False),
        ("boolean", "1", True),
        ("string", 5, "5"),
        ("string", "", ""),
        ("int", None, None),
        ("timestamp", "2025-11-02T05:00:00.123Z", 1_762_059_600_123),
        ("timestamp", " 2025-11-02 06:00:00+01:00", 1_762_059_600_000),
        ("timestamp", "1762059600123", 1_762_059_600_123),
        ("timestamp", 1_762_059_600_123, 1_762_059_600_123),
    ],
)
def test_values_get_their_types(kind: str, value: Any, expected: Any) -> None:
    """Numbers and truths may be written as texts; nothing is rounded on the way."""
    result = arguments_of("p", [Parameter("x", kind)], {"x": value})["x"]
    assert (type(result), result) == (type(expected), expected)


@pytest.mark.parametrize(
    ("kind", "values"),
    [
        ("bigint", ["", "abc", "1.5", "NaN", "Infinity", "1e999999999", "1_0", "\u0661", str(LONG_MAX + 1), True]),
        ("int", [2**31, "-2147483649", "0x10"]),
        ("boolean", ["", "abc", "2", 1.5, "maybe"]),
    ],
)
def test_other_values_are_refused_with_a_sentence(kind: str, values: list[Any]) -> None:
    """It has the value, the type, and what to give."""
    for value in values:
        with pytest.raises(InvalidRequest, match=f"The argument x of p is .*, and its type is {kind}: give ") as raised:
            arguments_of("p", [Parameter("x", kind)], {"x": value})
        assert raised.value.kind == "invalid_argument", value


def test_a_required_argument_is_given() -> None:
    """Null is none."""
    with pytest.raises(InvalidRequest, match="The argument x of p is null: give a value"):
        arguments_of("p", [Parameter("x", "int", is_optional=False)], {"x": None})


@pytest.mark.parametrize("text", ["2025-11-02T05:00:00", "2025-11-02", "20251102T050000", "yesterday", ""])
def test_a_time_without_a_zone_is_refused(text: str) -> None:
    """Spark gives its session's zone to what it reads; another reading here would be another instant."""
    with pytest.raises(InvalidRequest, match="is not a valid time: write it like"):
        arguments_of("p", [Parameter("x", "timestamp")], {"x": text})
