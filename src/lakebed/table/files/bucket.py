"""The bucket of each row. Vectorised over whole columns. Pure.

Owns: the bucket functions of the format (DO NOT CHANGE: other clients place rows by them). The default is Murmur3 (32
bit, seed 42) over the 4-byte words of the key's BinaryRow without its arity, then ``|hash % bucket_count|`` with the
sign rule of C. ``mod`` is the remainder of a single integer. Invariant: rows are never materialised; the words of all
rows are mixed column by column.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

import lakebed.compute as pc
from lakebed.errors import InvalidRequest
from lakebed.table.codec.binary_row import Slots, header_bytes, slots_of
from lakebed.table.codec.ragged import I64, U64

U32 = npt.NDArray[np.uint32]
_SEED: Final = 42
_C1, _C2 = np.uint32(0xCC9E2D51), np.uint32(0x1B873593)
_BLOCK_ROWS: Final = 32_768
"""Rows hashed at once: their state and words stay in the second-level cache."""


def bucket_of(
    columns: Sequence[pa.Array | pa.ChunkedArray],
    types: Sequence[str],
    *,
    bucket_count: int,
    function: str = "default",
) -> npt.NDArray[np.int32]:
    """The bucket of each row.

    Args:
        columns: the bucket keys in their declared order, equally long.
        types: their Paimon type texts.
        bucket_count: >= 1.
        function: value of the option ``bucket-function.type``: ``default`` (the hash), or ``mod`` for one column of
            type INT or BIGINT (the remainder of its value, never negative; null counts as 0).

    Raises `InvalidRequest`: `bucket_count` < 1, no column, or a column of a nested type. Cost: about 10 ms a million
    int64 keys.
    """
    if bucket_count < 1 or not columns:
        raise InvalidRequest(f"Cannot place rows into {bucket_count} buckets by {len(columns)} columns.")
    if function == "mod":
        numbers = pc.fill_null(columns[0].cast(pa.int64()), 0).to_numpy(zero_copy_only=False)
        remainders: npt.NDArray[np.int32] = np.mod(numbers, np.int64(bucket_count)).astype(np.int32)
        return remainders
    if function != "default":
        raise InvalidRequest(f"The bucket function {function!r} is not supported by this version of lakebed.")
    buckets: npt.NDArray[np.int32] = np.abs(np.fmod(key_hashes(columns, types), np.int32(bucket_count)))
    return buckets


def key_hashes(columns: Sequence[pa.Array | pa.ChunkedArray], types: Sequence[str]) -> npt.NDArray[np.int32]:
    """The hash of each row's key, which decides its bucket.

    Args:
        columns: at least one, equally long.
        types: their Paimon type texts.
    """
    parts = [slots_of(column, text) for column, text in zip(columns, types, strict=True)]
    count = len(parts[0].words)
    hashes = np.empty(count, dtype=np.int32)
    for start in range(0, count, _BLOCK_ROWS):
        block = slice(start, min(start + _BLOCK_ROWS, count))
        hashes[block] = _hash(parts, block).view(np.int32)
    return hashes


def _hash(parts: list[Slots], block: slice) -> U32:
    rows = np.arange(block.start, block.stop, dtype=np.int64)
    arity = len(parts)
    state = np.full(len(rows), _SEED, dtype=np.uint32)
    for word in _header_words(parts, block):
        _mix(state, word)
    total: I64 = np.full(len(rows), header_bytes(arity) + 8 * arity, dtype=np.int64)
    for part in parts:
        words = part.words[block]
        if part.tail_lengths is not None:
            tail = part.tail_lengths[block]
            words = np.where(tail > 0, words | (total.astype(np.uint64) << np.uint64(32)), words)
            total = total + tail
        _mix_word(state, words)
    for part in parts:
        if part.tail_lengths is not None:
            _mix_tail(state, part, rows)
    return _finish(state, total.astype(np.uint32))


def _header_words(parts: list[Slots], block: slice) -> list[U32 | np.uint32]:
    """The null bits as 4-byte words: constants while no row has a null there."""
    words: list[U32 | np.uint32] = [np.uint32(0)] * (header_bytes(len(parts)) // 4)
    for index, part in enumerate(parts):
        if part.valid is None or part.valid[block].all():
            continue
        word, bit = divmod(index + 8, 32)
        nulls = (~part.valid[block]).astype(np.uint32) << np.uint32(bit)
        words[word] = nulls | words[word]
    return words


def _mix_word(state: U32, words: U64) -> None:
    halves = np.ascontiguousarray(words).view("<u4")
    _mix(state, halves[::2])
    _mix(state, halves[1::2])


def _mix(state: U32, word: U32 | np.uint32) -> None:
    """One Murmur3 round, in place."""
    if isinstance(word, np.ndarray):
        mixed = word * _C1
        mixed = (mixed << np.uint32(15)) | (mixed >> np.uint32(17))
        mixed *= _C2
        state ^= mixed
    # A constant word is always zero here, and zero mixes to zero.
    high = state >> np.uint32(19)
    state <<= np.uint32(13)
    state |= high
    state *= np.uint32(5)
    state += np.uint32(0xE6546B64)


def _mix_tail(state: U32, part: Slots, rows: I64) -> None:
    """The variable parts of one column, word by word, over the rows that still have one."""
    assert part.tail_lengths is not None
    lengths = part.tail_lengths[rows]
    active, word_index = np.flatnonzero(lengths), 0
    while len(active):
        active_state = state[active]
        _mix_word(active_state, part.tail_words(rows[active], word_index))
        state[active] = active_state
        word_index += 1
        active = active[lengths[active] > 8 * word_index]


def _finish(state: U32, length: U32) -> U32:
    state ^= length
    state ^= state >> np.uint32(16)
    state *= np.uint32(0x85EBCA6B)
    state ^= state >> np.uint32(13)
    state *= np.uint32(0xC2B2AE35)
    state ^= state >> np.uint32(16)
    return state
