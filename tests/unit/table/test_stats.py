"""Statistics: bounds that bound, counts that count."""

from __future__ import annotations

import pyarrow as pa
import pytest

from lakebed.table.codec.stats import EMPTY_STATS, compute_stats
from lakebed.table.model.model import DataField
from worlds.binary_rows import decode_row
from worlds.nasty import texts_of


def bounds(
    values: list[object], type_text: str, kind: pa.DataType, **arguments: object
) -> tuple[object, object, object]:
    """Minimum, maximum, null count of one column."""
    stats = compute_stats(pa.table({"c": pa.array(values, kind)}), [DataField(0, "c", type_text)], **arguments)  # type: ignore[arg-type]
    assert stats.null_counts is not None
    return (
        decode_row(stats.min_values, [type_text])[0],
        decode_row(stats.max_values, [type_text])[0],
        stats.null_counts[0],
    )


@pytest.mark.parametrize(
    ("values", "type_text", "kind", "expected"),
    [
        ([3, None, -1], "BIGINT", pa.int64(), (-1, 3, 1)),
        ([None, None], "BIGINT", pa.int64(), (None, None, 2)),
        ([], "BIGINT", pa.int64(), (None, None, 0)),
        ([1.0, float("nan")], "DOUBLE", pa.float64(), (None, None, 0)),
        ([[1], None], "ARRAY<INT>", pa.list_(pa.int32()), (None, None, 1)),
        (["b" * 20, "a" * 20], "STRING", pa.string(), ("a" * 16, "b" * 15 + "c", 0)),
        (["\U0010ffff" * 17], "STRING", pa.string(), ("\U0010ffff" * 16, None, 0)),
        (["a" * 15 + "\ud7ff" + "x"], "STRING", pa.string(), ("a" * 15 + "\ud7ff", "a" * 15 + "\ue000", 0)),
        ([b"\x7f" * 17], "BYTES", pa.binary(), (b"\x7f" * 16, None, 0)),
        ([b"a\x7f" + b"\x7f" * 17], "BYTES", pa.binary(), (b"a" + b"\x7f" * 15, b"b", 0)),
        ([b"a", b"\x80", None], "BYTES", pa.binary(), (None, None, 1)),
    ],
)
def test_bounds(values: list[object], type_text: str, kind: pa.DataType, expected: tuple[object, ...]) -> None:
    """Each kind of column has the bounds it can have, and unknown ones are null."""
    assert bounds(values, type_text, kind) == expected


def test_keys_are_whole() -> None:
    """Bounds of keys are exact."""
    assert bounds(["b" * 20, "a" * 20], "STRING", pa.string(), truncate=None) == ("a" * 20, "b" * 20, 0)


def test_no_columns() -> None:
    """No columns, the empty statistics."""
    assert compute_stats(pa.table({"c": [1]}), []) == EMPTY_STATS


def test_texts_of_other_writers_may_not_be_utf8() -> None:
    """A column with such a text has no bounds, and its rows can be compacted."""
    stats = compute_stats(pa.table({"c": texts_of(b"a", b"\xff", None)}), [DataField(0, "c", "STRING")])
    assert decode_row(stats.min_values, ["STRING"]) == decode_row(stats.max_values, ["STRING"]) == (None,)
    assert stats.null_counts == (1,)


@pytest.mark.parametrize("kind", ["FLOAT", "DOUBLE"])
def test_a_bound_of_zero_admits_both_zeros(kind: str) -> None:
    """Other engines order -0.0 below 0.0: the minimum is -0.0 and the maximum 0.0."""
    arrow = pa.float32() if kind == "FLOAT" else pa.float64()
    for values in ([0.0], [-0.0], [-0.0, 0.0]):
        assert repr(bounds(values, kind, arrow)) == "(-0.0, 0.0, 0)"
    assert repr(bounds([-1.0, -0.0], kind, arrow)) == "(-1.0, 0.0, 0)"
    assert repr(bounds([0.0, 1.0], kind, arrow)) == "(-0.0, 1.0, 0)"
