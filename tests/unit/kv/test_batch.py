"""Write batches by themselves: rows, columns, and the way back to nothing."""

from __future__ import annotations

from datetime import timedelta

import numpy as np
import pyarrow as pa
import pytest

from lakebed.errors import InvalidRequest
from lakebed.kv import WriteBatch
from lakebed.kv.batch import lifetime_ms
from lakebed.lsm.model import VALUE_BYTES_MAX, Kind


def test_rows_keep_their_order() -> None:
    """Every row in the order of its call, a delete as None."""
    batch = WriteBatch()
    batch.put(b"a", b"1")
    batch.delete(b"a")
    batch.put_many([b"b", b"c"], (b"2", b"3"))
    assert (batch.keys, batch.values) == ([b"a", b"a", b"b", b"c"], [b"1", None, b"2", b"3"])
    assert batch.columns(now_ms=5) == (None, None), "plain rows need no further columns"
    assert len(batch) == 4


def test_lifetimes_count_from_the_write() -> None:
    """Ends are computed when the batch is written, so one that waits loses nothing."""
    batch = WriteBatch()
    batch.put(b"a", b"1", ttl=timedelta(seconds=2))
    batch.merge(b"b", b"2")
    batch.delete(b"c")
    kinds, expires = batch.columns(now_ms=1_000)
    assert kinds == [Kind.PUT, Kind.MERGE, Kind.DELETE]
    assert expires == [3_000, None, None]
    assert batch.columns(now_ms=5_000)[1] == [7_000, None, None]
    assert batch.operands() == [b"2"]


@pytest.mark.parametrize(
    ("keys", "values"),
    [
        (pa.array([b"k1", b"k2"]), pa.array([b"v1", b"v2"])),
        (pa.array(["k1", "k2"]), pa.array(["v1", "v2"], pa.large_string())),
        (pa.chunked_array([[b"k1"], [b"k2"]]), [b"v1", b"v2"]),
        (np.array([b"k1", b"k2"], dtype=object), iter([b"v1", b"v2"])),
    ],
)
def test_columns_of_many_kinds(keys: object, values: object) -> None:
    """Sequences, iterators and Arrow columns of bytes or text."""
    batch = WriteBatch()
    batch.put_many(keys, values)
    assert (batch.keys, batch.values) == ([b"k1", b"k2"], [b"v1", b"v2"])


def test_a_refused_row_leaves_the_batch_as_it_was() -> None:
    """No half row stays behind, for any kind of mistake."""
    batch = WriteBatch()
    batch.put(b"a", b"1")
    for call in (
        lambda: batch.put(b"", b"1"),
        lambda: batch.put(b"b", "1"),  # type: ignore[arg-type]
        lambda: batch.put(b"b", b"1", ttl=timedelta(0)),
        lambda: batch.put(b"b", bytes(VALUE_BYTES_MAX + 1)),
        lambda: batch.delete(""),  # type: ignore[arg-type]
        lambda: batch.merge(b"b", None),  # type: ignore[arg-type]
        lambda: batch.merge(b"", b"1"),
        lambda: batch.put_many(pa.array([b"b", None]), [b"1", b"2"]),
        lambda: batch.put_many([b"b", "c"], [b"1", b"2"]),
        lambda: batch.put_many([b"b", b"c"], [b"1", "2"]),
        lambda: batch.put_many([b"b", b"c"], [b"1", None]),
        lambda: batch.put_many([b"b", b"c"], [b"1", bytes(VALUE_BYTES_MAX + 1)]),
        lambda: batch.put_many(5, [b"1"]),  # type: ignore[arg-type]
    ):
        with pytest.raises(InvalidRequest):
            call()
        assert (batch.keys, batch.values, batch.special) == ([b"a"], [b"1"], {})


def test_a_cleared_batch_is_empty() -> None:
    """Nothing of before is written again."""
    batch = WriteBatch()
    batch.put(b"a", b"1", ttl=timedelta(1))
    batch.clear()
    batch.put(b"b", b"2")
    assert (batch.keys, batch.values, batch.columns(0)) == ([b"b"], [b"2"], (None, None))


def test_lifetimes() -> None:
    """Milliseconds, rounded down; what is less than one is refused."""
    assert lifetime_ms(timedelta(days=1)) == 86_400_000
    assert lifetime_ms(timedelta(microseconds=1_999)) == 1
    with pytest.raises(InvalidRequest, match="at least one millisecond"):
        lifetime_ms(timedelta(microseconds=999))
