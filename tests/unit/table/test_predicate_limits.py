"""Filters of any size and depth: they work or are refused with a sentence, in bounded time and stack."""

from __future__ import annotations

import pickle
import subprocess
import sys
import uuid
from contextlib import suppress
from decimal import Decimal
from functools import reduce
from operator import and_, or_
from typing import Any

import hypothesis.strategies as st
import pyarrow as pa
import pytest
from hypothesis import example, given

from lakebed.errors import InvalidRequest, LakebedError
from lakebed.objects.open import open_store
from lakebed.table.model import predicate_tree
from lakebed.table.model.literal import bind_comparison
from lakebed.table.model.predicate import bind, to_arrow
from lakebed.table.model.predicate_text import TEXT_LENGTH_MAX, parse_predicate
from lakebed.table.model.predicate_tree import DEPTH_MAX, Compare, Not, OneOf, Predicate, column
from lakebed.table.table import Table

SCHEMA = pa.schema([("x", pa.int64()), ("y", pa.int64()), ("f", pa.float64())])


def found(where: Predicate | str) -> list[int]:
    """The rows 0 to 9 that a filter keeps in a table of three files."""
    table = Table.create(open_store(f"memory://limits-{uuid.uuid4()}"), name="t", schema=SCHEMA)
    for start in (0, 4, 8):
        numbers = pa.array(range(start, min(start + 4, 10)), pa.int64())
        table.write(pa.table([numbers, numbers, numbers.cast(pa.float64())], schema=SCHEMA))
    rows: list[int] = sorted(table.read(where=where).column("x").to_pylist())
    return rows


def test_ten_thousand_terms() -> None:
    """A filter of 10,000 terms, of one column or of several, keeps the rows it should.

    Those of one column become a list, as in `test_predicates_built_in_a_loop`: here they are fewer.
    """
    assert found(" or ".join(f"x = {number}" for number in range(5, 2_005))) == [5, 6, 7, 8, 9]
    mixed = " or ".join(f"{'xyf'[number % 3]} > {number}" for number in range(7, 10_007))
    assert found(mixed) == [8, 9]
    assert found(" and ".join(f"x <> {number}" for number in range(3, 2_003))) == [0, 1, 2]


def test_a_large_filter_does_not_end_the_process() -> None:
    """A filter of 10,000 comparisons of several columns, in a process of its own: a crash is one failed test."""
    script = """
import pyarrow as pa
from lakebed.table.model.predicate_text import parse_predicate
from lakebed.table.read.read import filter_rows
text = " or ".join(f"{'xy'[number % 2]} > {number}" for number in range(7, 10_007))
print(filter_rows(pa.table({"x": range(10), "y": range(10)}), parse_predicate(text)).num_rows)
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, "2\n"), done.stderr[-500:]


def test_predicates_built_in_a_loop() -> None:
    """10,000 steps of ``|`` or ``&`` make one level, which pickles, prints and keeps the right rows."""
    either = reduce(or_, [column("x") == number for number in range(7, 10_007)])
    assert (either.depth, either.terms) == (2, 10_000)  # type: ignore[attr-defined]
    assert found(pickle.loads(pickle.dumps(either))) == [7, 8, 9]
    assert parse_predicate(str(either)) == either
    assert found(reduce(and_, [column("x") > number for number in range(-10_000, 5)])) == [5, 6, 7, 8, 9]


@pytest.mark.parametrize("values", [range(8, 100_008), [float(n) for n in range(8, 100_008)]], ids=["int", "float"])
def test_long_lists(values: Any) -> None:
    """100,000 values of an IN are one term, of whole numbers and of floats."""
    assert found(column("x").is_in(values)) == [8, 9]
    assert found(~column("f").is_in(values)) == [0, 1, 2, 3, 4, 5, 6, 7]


def test_a_long_list_as_text() -> None:
    """A list as text is read."""
    assert found(f"x in ({', '.join(map(str, range(9, 20_009)))})") == [9]


def test_depth_is_bounded() -> None:
    """Parentheses and alternating operators have a limit, and a sentence that names it; NOT NOT is not a level."""
    assert found("(" * DEPTH_MAX + "x = 1" + ")" * DEPTH_MAX) == [1]
    with pytest.raises(InvalidRequest, match=f"at most {DEPTH_MAX} parentheses"):
        parse_predicate("(" * 3000 + "x = 1" + ")" * 3000)
    assert found("not " * 10_000 + "x = 1") == [1]
    item = column("x") == 1
    with pytest.raises(InvalidRequest, match="levels deep; at most 100 levels"):
        reduce(lambda tree, _: (tree & item) | item, range(200), item)
    with pytest.raises(InvalidRequest, match="levels deep"):
        reduce(lambda tree, _: Not(tree), range(200), item)


def test_length_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """Texts and numbers of comparisons beyond the limit are refused; the error does not repeat the text."""
    with pytest.raises(InvalidRequest, match="characters long"):
        parse_predicate(" " * (TEXT_LENGTH_MAX + 1))
    monkeypatch.setattr(predicate_tree, "TERMS_MAX", 1_000)
    parse_predicate(" or ".join(["x > 1"] * 1_000))
    with pytest.raises(InvalidRequest, match="1,001 comparisons long; at most"):
        parse_predicate(" or ".join(["x > 1"] * 1_001))
    with pytest.raises(InvalidRequest) as refused:
        parse_predicate("x = " + "1 " * 100_000)
    assert len(str(refused.value)) < 500


@pytest.mark.parametrize(
    ("text", "rows"),
    [
        ("x < " + "9" * 5000, list(range(10))),
        ("x > -" + "9" * 5000, list(range(10))),
        ("x = " + "9" * 5000, []),
        ("x > 1e999999", []),
        ("x > 7.99999999999999999999999999999999999999999999999999", [8, 9]),
        ("f < 1e400", list(range(10))),
    ],
)
def test_numbers_of_any_length(text: str, rows: list[int]) -> None:
    """A number beyond every type is compared, not converted."""
    assert found(text) == rows


@pytest.mark.parametrize(
    ("op", "value", "expected"),
    [
        *((">", 2**53 + 0.0, [2**53 + 1, 2**63 - 1]), (">=", Decimal(2**53) + Decimal("0.5"), [2**53 + 1, 2**63 - 1])),
        *(("=", 2**53 + 1, [2**53 + 1]), ("=", Decimal(2**53) + Decimal("0.5"), []), ("<", 2**63, None)),
        *((">=", float(2**63), []), ("<=", Decimal("9223372036854775806.5"), [-(2**63), 0, 2**53, 2**53 + 1])),
    ],
)
def test_whole_numbers_are_compared_exactly(op: Any, value: Any, expected: list[int] | None) -> None:
    """64-bit numbers are never rounded to doubles, in rows, row groups and bounds."""
    numbers = [-(2**63), 0, 2**53, 2**53 + 1, 2**63 - 1]
    table = Table.create(open_store(f"memory://exact-{uuid.uuid4()}"), name="t", schema=pa.schema([("x", pa.int64())]))
    for number in numbers:
        table.write(pa.table({"x": [number]}))
    where = Compare("x", op, value)
    assert sorted(table.read(where=where).column("x").to_pylist()) == (numbers if expected is None else expected)
    table.compact(full=True)
    assert sorted(table.read(where=where).column("x").to_pylist()) == (numbers if expected is None else expected)


@pytest.mark.parametrize("kind", [pa.float32(), pa.float64()], ids=str)
def test_lists_of_floats(kind: pa.DataType) -> None:
    """IN and NOT IN hold the zeros equal and NaN unequal to everything, for both widths; null makes NOT IN unknown."""
    rows = pa.table({"x": pa.array([0.0, -0.0, float("nan"), 1.0, None], kind), "n": range(5)})

    def kept(predicate: Predicate) -> list[int]:
        numbers: list[int] = rows.filter(to_arrow(predicate, rows.schema)).column("n").to_pylist()
        return numbers

    x, nan = column("x"), float("nan")
    assert kept(x.is_in([0.0])) == kept(x.is_in([-0.0])) == [0, 1]
    assert kept(~x.is_in([-0.0])) == [2, 3]
    assert (kept(x.is_in([nan])), kept(~x.is_in([nan])), kept(~x.is_in([nan, None]))) == ([], [0, 1, 2, 3], [])
    assert (kept(x == nan), kept(x != nan), kept(x <= nan)) == ([], [0, 1, 2, 3], [])
    assert kept(x.is_in([None])) == kept(~x.is_in([None])) == []


@pytest.mark.parametrize(
    ("text", "nanos"),
    [
        ("2013-01-02 12:00:00.123456789", 123456789),
        ("2013-01-02T12:00:00.1234567891", None),
        ("2013-01-02 13:00:00.000000001+01:00", 1),
    ],
)
def test_literals_of_nanoseconds(text: str, nanos: int | None) -> None:
    """A literal for TIMESTAMP(9) keeps nine digits; more lie between two values of the column."""
    rows = pa.table({"at": pa.array([1357128000 * 10**9 + (nanos or 123456789)], pa.timestamp("ns"))})
    equal = rows.filter(to_arrow(parse_predicate(f"at = '{text}'"), rows.schema)).num_rows
    assert equal == (0 if nanos is None else 1)
    assert rows.filter(to_arrow(parse_predicate(f"at < '{text}'"), rows.schema)).num_rows == (1 if nanos is None else 0)


def test_binding_twice_changes_nothing() -> None:
    """What was bound is bound again as it is."""
    once = bind(column("x").is_in([1, 2]) & (column("f") > 0.5) & ~(column("x") == 2**70), SCHEMA)
    twice = bind(once, SCHEMA)
    assert str(once) == str(twice)
    assert isinstance(bind(column("x").is_in([1, None]), SCHEMA), OneOf)


NAMES = "x y f and or not in ( ) , = < > is null like between 1 -1 1e9 1e99999 'a' ' ` \"x\" true date '2013-01-01' %"
WORDS = st.sampled_from([*NAMES.split(), "9" * 5000, "timestamp", "\0", "\ud800"])


@given(st.lists(WORDS, max_size=14).map(" ".join) | st.text(max_size=40))
@example("x in (" + "1," * 3000 + "'a')")
@example("` \ud800 `")
def test_any_text(text: str) -> None:
    """Whatever the text is, the only errors are lakebed's own."""
    with suppress(LakebedError):
        to_arrow(parse_predicate(text), SCHEMA)


KINDS = [pa.int8(), pa.int64(), pa.float32(), pa.decimal128(5, 2), pa.timestamp("ns"), pa.timestamp("ms", tz="UTC")]
KINDS += [pa.date32(), pa.time32("ms"), pa.string(), pa.binary(), pa.bool_()]
VALUES = st.one_of(
    *(st.integers(), st.floats(), st.decimals(), st.text(max_size=30), st.binary(max_size=5), st.booleans()),
    *(st.datetimes(), st.dates(), st.times(), st.timedeltas(), st.none(), st.just(10**5000), st.just([1]), st.just({})),
)


@given(st.sampled_from(KINDS), VALUES, st.sampled_from(["=", "<>", "<", "<=", ">", ">="]))
def test_any_value(kind: pa.DataType, value: Any, op: Any) -> None:
    """Whatever the value and the column's type are, the only errors are lakebed's own."""
    with suppress(LakebedError):
        bind_comparison("x", op, value, kind)
