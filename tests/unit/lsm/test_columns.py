"""Columns of Arrow from and to Python, with pandas and without: the columns are Arrow's own, the items a list's."""

from __future__ import annotations

import sys

import pyarrow as pa
import pytest

from lakebed.lsm.columns import column_of, keys_of


@pytest.mark.parametrize("with_pandas", [True, False])
@pytest.mark.parametrize(
    "items",
    [
        [],
        [b""],
        [b"", b""],
        [b"ab", b"cd"],
        [b"\0\0", b"a\0", b"\0b"],
        [b"a", b""],
        [b"", b"abc"],
        [b"%05d" % number for number in range(1000)],
        [b"x" * (number % 40) for number in range(1000)],
        [b"%05d" % number * (number % 90) for number in range(6000)],
    ],
    ids=["none", "empty", "empties", "equal", "zeros", "end", "begin", "many-equal", "many", "large"],
)
def test_keys_are_what_the_column_was_made_of(
    items: list[bytes], with_pandas: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of one length or several, empty or of zeros, of the whole or of a part."""
    column = pa.array(items, pa.binary())
    if not with_pandas:
        monkeypatch.delitem(sys.modules, "pandas", raising=False)
    assert column_of(items).equals(column)
    for start in range(min(len(items), 4)):
        assert keys_of(column.slice(start, 3)) == items[start : start + 3]
    assert keys_of(column) == items
    assert all(type(key) is bytes for key in keys_of(column))
