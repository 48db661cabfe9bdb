"""Rows of listings that are kept as JSON: the right ones, and within their bound."""

from __future__ import annotations

import pyarrow as pa
import pytest

from lakebed.repo.model.rows import rows_of
from lakebed.server.encoded_rows import EncodedRows


class Encoder:
    """Encodes a row as its path, and counts."""

    def __init__(self) -> None:
        self.count = 0

    def __call__(self, batch: pa.RecordBatch) -> list[bytes]:
        self.count += batch.num_rows
        return list(batch.column(0).to_pylist())


def block_of(name: str, *, count: int = 100) -> pa.RecordBatch:
    """Rows in memory of their own."""
    return rows_of([b"%s/%03d" % (name.encode(), row) for row in range(count)], [b"value"] * count)


@pytest.mark.parametrize("bytes_max", [1 << 20, 0])
def test_any_slices_of_blocks_have_their_own_rows(bytes_max: int) -> None:
    """Whatever slices were asked for before, in whatever order, with and without anything kept."""
    kept, encode = EncodedRows(bytes_max), Encoder()
    blocks = [block_of("a"), block_of("b")]
    for start, count in ((50, 10), (0, 100), (55, 45), (99, 1), (0, 1), (90, 10)):
        for block in blocks:
            rows = block.slice(start, count)
            assert list(kept.rows(rows, shape="", encode=encode)) == rows.column(0).to_pylist()


def test_a_kept_row_is_not_encoded_again() -> None:
    """Nor are parts of what was listed; another shape is."""
    kept, encode = EncodedRows(1 << 20), Encoder()
    block = block_of("a")
    kept.rows(block, shape="", encode=encode)
    kept.rows(block.slice(10, 20), shape="", encode=encode)
    assert encode.count == 100
    kept.rows(block.slice(10, 20), shape="other", encode=encode)
    assert encode.count == 120


def test_the_bound_holds_and_memory_that_is_used_again_is_not_mistaken() -> None:
    """Blocks come and go, so that memory is used again: each shows its rows, and the sum stays within the bound."""
    kept, encode = EncodedRows(50_000), Encoder()
    for number in range(200):
        block = block_of(f"block{number}")
        rows = kept.rows(block, shape="", encode=encode)
        assert list(rows) == block.column(0).to_pylist()
        assert 0 < kept.cache.size_bytes <= 50_000
