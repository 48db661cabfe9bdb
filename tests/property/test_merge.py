"""Law: a merge of any runs equals replaying their rows, in sequence order, into a dictionary."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
from hypothesis import given, settings
from hypothesis import strategies as st

from lakebed.table.engines.deduplicate import Deduplicate
from lakebed.table.engines.merge import encode_keys, group_by_key


@st.composite
def runs(draw: st.DrawFn) -> list[list[tuple[tuple[Any, ...], int]]]:
    """Some runs of (key, sequence), all keys of one shape; sequence numbers are distinct but in any order."""
    shape = draw(st.sampled_from([0, 1, 2, 3]))
    key = [
        st.tuples(st.integers(-20, 20)),
        st.tuples(st.text("ab\0é", max_size=3)),
        st.tuples(st.integers(-(2**62), 2**62 - 1), st.text("ab", max_size=2)),
        st.tuples(st.sampled_from([-1.5, 1.0, 2.0]), st.booleans(), st.binary(max_size=2)),
    ][shape]
    keys = [draw(st.lists(key, min_size=1, max_size=12, unique=True)) for _ in range(draw(st.integers(1, 4)))]
    numbers = iter(draw(st.permutations(range(sum(map(len, keys))))))
    return [[(value, next(numbers)) for value in run] for run in keys]


def _codes(unsorted: list[list[tuple[tuple[Any, ...], int]]]) -> list[np.ndarray]:
    columns = [[pa.array([key[i] for key, _ in run]) for i in range(len(run[0][0]))] for run in unsorted]
    return encode_keys(columns)


@settings(deadline=None)
@given(runs())
def test_merge_equals_replay(case: list[list[tuple[tuple[Any, ...], int]]]) -> None:
    """Both merges keep exactly the rows that a dictionary fed in sequence order keeps, the ordered one in key order."""
    codes = _codes(case)
    orders = [np.argsort(run) for run in codes]
    codes = [run[order] for run, order in zip(codes, orders, strict=True)]
    rows = [[run[i] for i in order] for run, order in zip(case, orders, strict=True)]
    sequences = [np.array([number for _, number in run], np.int64) for run in rows]
    expected: dict[tuple[Any, ...], int] = {}
    for key, number in sorted((row for run in rows for row in run), key=lambda row: row[1]):
        expected[key] = number
    flat = [row for run in rows for row in run]
    merged = [flat[i] for i in group_by_key(codes, sequences=sequences).last]
    assert merged == sorted(expected.items(), key=lambda row: tuple(_bytes(part) for part in row[0]))
    masks = Deduplicate().survivors(codes, sequences=sequences)
    assert masks is not None
    kept = [
        row for run, mask in zip(rows, masks, strict=True) for i, row in enumerate(run) if mask is None or bool(mask[i])
    ]
    assert sorted(kept, key=lambda row: row[1]) == sorted(merged, key=lambda row: row[1])


@settings(deadline=None)
@given(st.lists(st.integers(-5, 5)))
def test_groups_equal_a_dictionary(keys: list[int]) -> None:
    """The last row of each group of a batch is the last row of its key, in key order."""
    positions = group_by_key([np.array(keys, np.int64)]).last.tolist()
    assert [(keys[i], i) for i in positions] == sorted({key: i for i, key in enumerate(keys)}.items())


def _bytes(part: Any) -> Any:
    return part.encode() if isinstance(part, str) else part
