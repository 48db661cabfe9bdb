"""What is visible, and what compaction keeps: the rules one by one; tests/property/test_lsm_merge.py has the laws."""

from __future__ import annotations

import pyarrow as pa
import pytest

from lakebed.errors import InvalidRequest
from lakebed.lsm.model import ROW_SCHEMA, Kind, Row
from lakebed.lsm.operators import MergeOperator, find_operator
from lakebed.lsm.resolve import compact_rows, resolve_row, visible
from lakebed.lsm.row_merge import newest_first, rows_of_batch
from worlds.rows import resolve_rows

NOW_MS = 100
APPEND = find_operator("append")
ADD = find_operator("add_int64")
PAIRS = MergeOperator("pairs", lambda key, base, operands: b"(%b)" % b"".join([base or b"", *operands]))


def put(sequence: int, value: bytes = b"v", expires_at_ms: int | None = None) -> Row:
    """A PUT of the key k."""
    return Row(b"k", sequence, Kind.PUT, value, expires_at_ms)


def operand(sequence: int, value: bytes, expires_at_ms: int | None = None) -> Row:
    """An operand of the key k."""
    return Row(b"k", sequence, Kind.MERGE, value, expires_at_ms)


def tombstone(sequence: int) -> Row:
    """A DELETE of the key k."""
    return Row(b"k", sequence, Kind.DELETE, b"", None)


def table(*rows: Row) -> pa.Table:
    """A window of these rows, in their order."""
    return pa.Table.from_pylist([row._asdict() for row in rows], schema=ROW_SCHEMA)


def kept(
    *rows: Row, bottom: bool = False, since: int | None = None, operator: MergeOperator | None = APPEND
) -> list[Row]:
    """What compaction keeps."""
    result = compact_rows(table(*rows), now_ms=NOW_MS, bottom=bottom, retain_since_sequence=since, operator=operator)
    assert result.schema.equals(ROW_SCHEMA)
    return [Row(**row) for row in result.to_pylist()]


def test_the_end_is_exclusive() -> None:
    """A row is readable before its end, and gone from then on."""
    for now_ms, expected in ((99, b"v"), (100, None), (101, None)):
        assert resolve_rows([put(1, b"v", 100)], now_ms=now_ms, operator=None) == expected
        result = visible(table(put(1, b"v", 100)), sequence=None, now_ms=now_ms, operator=None)
        assert result.column("value").to_pylist() == ([] if expected is None else [expected])


def test_an_older_version_does_not_shine_through() -> None:
    """An expired row, and a tombstone, hide what is below them."""
    for newest in (put(2, b"new", 50), tombstone(2)):
        assert resolve_rows([newest, put(1)], now_ms=NOW_MS, operator=None) is None
        assert visible(table(newest, put(1)), sequence=None, now_ms=NOW_MS, operator=None).num_rows == 0
        assert visible(table(newest, put(1)), sequence=1, now_ms=NOW_MS, operator=None).num_rows == 1


def test_a_combined_row_has_the_newest_sequence() -> None:
    """It is a PUT without an end, as of the newest operand."""
    rows = [operand(5, b"c"), operand(4, b"b"), put(3, b"a", 200), put(2)]
    assert resolve_row(rows, now_ms=NOW_MS, operator=APPEND) == put(5, b"abc")
    columns = ("sequence", "expires_at_ms", "value", "key")
    result = visible(table(*rows), sequence=None, now_ms=NOW_MS, operator=APPEND, columns=columns)
    assert result.column_names == list(columns)
    assert result.to_pylist() == [{"sequence": 5, "expires_at_ms": None, "value": b"abc", "key": b"k"}]
    ended = [operand(5, b"c", 100), put(3, b"a", 200)]
    assert resolve_row(ended, now_ms=NOW_MS, operator=APPEND) == put(5, b"a", 200)
    assert resolve_row([operand(5, b"c", 100)], now_ms=NOW_MS, operator=APPEND) is None
    assert resolve_row([], now_ms=NOW_MS, operator=None) is None


def test_operands_without_an_operator() -> None:
    """Reading them is a clear error; keys without operands are read all the same."""
    with pytest.raises(InvalidRequest, match=r"key b'k' has operands .* open it with the merge operator") as refused:
        resolve_rows([operand(1, b"x")], now_ms=NOW_MS, operator=None)
    assert refused.value.kind == "no_operator"
    with pytest.raises(InvalidRequest):
        visible(table(operand(1, b"x")), sequence=None, now_ms=NOW_MS, operator=None)
    hidden = table(put(2), operand(1, b"x"))
    assert visible(hidden, sequence=None, now_ms=NOW_MS, operator=None).column("value").to_pylist() == [b"v"]


def test_repeated_rows_are_one_row() -> None:
    """The same operand from two sources counts once; one that was combined already wins over its parts."""
    twice = [operand(2, b"b"), operand(2, b"b"), put(1, b"a"), put(1, b"a")]
    assert resolve_rows(twice, now_ms=NOW_MS, operator=APPEND) == b"ab"
    for rows in ([operand(2, b"b"), put(2, b"ab"), put(1, b"a")], [put(2, b"ab"), operand(2, b"b"), put(1, b"a")]):
        result = visible(table(*rows), sequence=None, now_ms=NOW_MS, operator=APPEND)
        assert result.column("value").to_pylist() == [b"ab"]
        assert kept(*rows) == [put(2, b"ab")]
        assert kept(*rows, since=0) == [put(2, b"ab"), put(1, b"a")]
        newest_first(rows)
        assert resolve_rows(rows, now_ms=NOW_MS, operator=APPEND) == b"ab"


def test_compaction_of_puts_and_tombstones() -> None:
    """The newest stays; tombstones go at the bottom only; an expired row becomes one, or goes at the bottom."""
    assert kept() == []
    assert kept(put(3), put(2), tombstone(1)) == [put(3)]
    assert kept(tombstone(3), put(2)) == [tombstone(3)]
    assert kept(tombstone(3), put(2), bottom=True) == []
    assert kept(put(3, b"v", 100), put(2)) == [tombstone(3)]
    assert kept(put(3, b"v", 100), put(2), bottom=True) == []
    assert kept(put(3, b"v", 101), put(2)) == [put(3, b"v", 101)]


def test_compaction_keeps_history() -> None:
    """Versions above the promised sequence stay as they are, and of the others the newest."""
    rows = [put(9), tombstone(7), put(5), put(3), put(1)]
    assert kept(*rows, since=5) == [put(9), tombstone(7), put(5)]
    assert kept(*rows, since=4) == [put(9), tombstone(7), put(5), put(3)]
    assert kept(*rows, since=0) == rows
    assert kept(*rows, since=9) == [put(9)]
    assert kept(put(9, b"v", 50), tombstone(7), put(5), since=8, bottom=True) == [put(9, b"v", 50)]


def test_compaction_of_operands() -> None:
    """They are combined with a base that stays; otherwise with each other, if their operator can."""
    b, c = operand(2, b"b"), operand(3, b"c")
    assert kept(c, b, put(1, b"a")) == [put(3, b"abc")]
    assert kept(c, b, tombstone(1)) == [put(3, b"bc")]
    assert kept(c, b, put(1, b"a", 50)) == [put(3, b"bc")]
    assert kept(c, b, bottom=True) == [put(3, b"bc")]
    assert kept(c, b) == [operand(3, b"bc")]
    assert kept(c, b, put(1, b"a", 200)) == [operand(3, b"bc"), put(1, b"a", 200)]
    assert kept(c, b, operator=PAIRS) == [c, b]
    assert kept(c, b, put(1, b"a"), operator=PAIRS) == [put(3, b"(abc)")]
    assert kept(c, b, put(1, b"a"), since=2) == [c, put(2, b"ab")]


def test_compaction_leaves_what_it_cannot_combine() -> None:
    """Without the operator, or where it refuses, rows stay; what they cannot reach goes."""
    b, c = operand(2, b"b"), operand(3, b"c")
    assert kept(c, b, put(1, b"a"), put(0), operator=None) == [c, b, put(1, b"a")]
    assert kept(c, b, tombstone(1), put(0), operator=None) == [c, b, tombstone(1)]
    assert kept(c, b, tombstone(1), operator=None, bottom=True) == [c, b]
    assert kept(c, b, put(1, b"wrong"), operator=ADD) == [c, b, put(1, b"wrong")]
    ending = operand(2, b"b", 200)
    assert kept(c, ending, put(1, b"a")) == [c, ending, put(1, b"a")]


def test_compaction_makes_no_value_that_could_not_be_written(monkeypatch: pytest.MonkeyPatch) -> None:
    """Operands that together are larger than a value may be stay apart."""
    monkeypatch.setattr("lakebed.lsm.resolve.VALUE_BYTES_MAX", 2)
    b, c = operand(2, b"b"), operand(3, b"c")
    assert kept(c, b, put(1, b"a")) == [c, b, put(1, b"a")]
    assert kept(c, b) == [operand(3, b"bc")]


def test_rows_of_a_batch() -> None:
    """Arrow's columns and Python's rows say the same, in slices too."""
    rows = [put(4, b"x", 9), operand(3, b"y"), tombstone(2), put(1, b"")]
    whole = table(*rows).to_batches()[0]
    assert rows_of_batch(whole) == rows
    assert rows_of_batch(whole.slice(1, 2)) == rows[1:3]
    assert rows_of_batch(whole.slice(2, 0)) == []
