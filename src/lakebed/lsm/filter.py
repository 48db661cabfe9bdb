"""A split-block Bloom filter over 64-bit hashes of keys. A key sets one bit in each of the eight words of one block.

Owns: the hash of a key, which bits it sets, and their layout. Layout (on disk: DO NOT CHANGE): blocks of 32 bytes, that
is eight little-endian 32-bit words. With h = xxh3-64 of the key, the key's block is
``((h >> 40) * block_count) >> 24``, and in word i the key sets bit ``(h >> 5 * i) & 31``. So the low 40 bits of h
choose the bits, and the high 24 bits the block.

Invariants: the filter lets every added key pass. With twelve bits for each key it also lets about one in two hundred
other keys pass.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Sequence
from itertools import accumulate, pairwise, repeat
from operator import lt
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from typing_extensions import Buffer
from xxhash import xxh3_64_digest, xxh3_64_intdigest

from lakebed.lsm.columns import keys_of

BITS_PER_KEY: Final = 12
"""Default for new files. With ten bits, more than twice as many absent keys pass, and each of these reads a page."""

FILTER_BLOCK_BYTES: Final = 32  # on disk: DO NOT CHANGE
_BLOCK_BITS: Final = 8 * FILTER_BLOCK_BYTES
_BLOCK_SHIFT: Final = 40  # on disk: DO NOT CHANGE
_BLOCK_INDEX_BITS: Final = 24  # on disk: DO NOT CHANGE
_BLOCK_COUNT_MAX: Final = 1 << _BLOCK_INDEX_BITS
_WORD_COUNT: Final = 8
_FEW_KEYS: Final = 512
"""Up to this count, a step over arrays takes about the same time, however many keys there are."""
# Arrays without a dimension, because scalars take longer in each operation.
_BLOCK_SHIFT_64: Final = np.array(_BLOCK_SHIFT, np.uint64)
_BLOCK_INDEX_BITS_64: Final = np.array(_BLOCK_INDEX_BITS, np.uint64)
_FILTER_BLOCK_BYTES: Final = np.array(FILTER_BLOCK_BYTES, np.int64)
_UINT64: Final = np.dtype(np.uint64)
_INT64: Final = np.dtype(np.int64)
_DIGEST: Final = np.dtype(">u8")
_PAIR: Final = np.dtype("<u8")
_PAIR_COUNT: Final = _WORD_COUNT // 2
_PAIR_SHIFTS: Final = 10 * np.arange(_PAIR_COUNT, dtype=np.uint64)
_PAIR_SHIFTS_OF_KEYS: Final = np.tile(_PAIR_SHIFTS, _FEW_KEYS)
_PAIRS_SET: Final = np.dtype(np.uint32)
_ALL_PAIRS_SET: Final = np.array(0x01010101, np.uint32)
"""Four true booleans, as one number."""

_KEYS_AT_ONCE: Final = 1 << 16
"""Hashes whose bits are computed together: few enough to stay in the processor's cache."""

_TINY_BYTES_MAX, _SHORT_BYTES_MAX, _LONG_BYTES_MAX = 8, 16, 32
_HASHED_AT_ONCE: Final = 1 << 13
_HALF: Final = np.uint64(32)
_LOW_HALF: Final = np.uint64(0xFFFFFFFF)
_SHORT_SECRETS: Final = np.array([0x6782737BEA4239B9, 0xAF56BC3B0996523A], np.uint64)
_LONG_SECRETS: Final = np.array(
    [0xBE4BA423396CFEB8, 0x1CAD21F72C81017C, 0xDB979083E96DD4DE, 0x1F67B3B7A4A44072], np.uint64
)
_LENGTH_FACTOR: Final = np.uint64(0x9E3779B185EBCA87)
_SPREAD_FACTOR: Final = np.uint64(0x165667919E3779F9)

_PAIR_BITS: Final = tuple(1 << (low & 31) | 1 << (32 + (low >> 5)) for low in range(1024))
"""For each value of ten bits of a hash, the bits that it sets in two neighbouring words, as one 64-bit number."""
_PAIR_BIT_ARRAY: Final = np.array(_PAIR_BITS, np.uint64)
_PAIR_MASK: Final = np.array(len(_PAIR_BITS) - 1, np.uint64)


def hash_keys(keys: Sequence[bytes]) -> npt.NDArray[np.uint64]:
    """Return the hash of each key, in order: uint64, xxh3-64 with seed 0. Cost: about 0.06 us a key."""
    return np.frombuffer(b"".join(map(xxh3_64_digest, keys)), _DIGEST).astype(_UINT64)


def hash_key_column(keys: pa.BinaryArray) -> npt.NDArray[np.uint64]:
    """As `hash_keys`, of a column without nulls. Use arrays if all keys have 9 to 16 bytes, or all 17 to 32.

    Cost: about 0.02 us for each key of these lengths, 0.1 us for others.
    """
    count = len(keys)
    offsets = np.frombuffer(keys.buffers()[1], np.int32, count + 1, 4 * keys.offset) if count else np.zeros(1, np.int32)
    lengths = np.diff(offsets)
    shortest, longest = int(lengths.min(initial=_LONG_BYTES_MAX)), int(lengths.max(initial=0))
    if count and shortest > _TINY_BYTES_MAX and longest <= _SHORT_BYTES_MAX:
        hash_some = _hash_short
    elif count and shortest > _SHORT_BYTES_MAX and longest <= _LONG_BYTES_MAX:
        hash_some = _hash_long
    else:
        return hash_keys(keys_of(keys))
    content = keys.buffers()[2]
    words = np.ndarray((content.size - 7,), "<u8", content, strides=(1,))
    hashes = np.empty(count, np.uint64)
    for start in range(0, count, _HASHED_AT_ONCE):
        end = start + _HASHED_AT_ONCE
        begins = offsets[:-1][start:end].astype(np.int64)
        hashes[start:end] = hash_some(words, begins, lengths[start:end].astype(np.int64))
    return hashes


# Source: the specification of xxh3-64 for inputs of 9 to 16 and of 17 to 128 bytes, with seed 0.
def _hash_short(
    words: npt.NDArray[np.uint64], begins: npt.NDArray[np.int64], lengths: npt.NDArray[np.int64]
) -> npt.NDArray[np.uint64]:
    first, last = words[begins], words[begins + (lengths - 8)]
    first ^= _SHORT_SECRETS[0]
    last ^= _SHORT_SECRETS[1]
    state = _multiply_and_fold(first, last)
    state += first.byteswap()
    state += last
    state += lengths.view(np.uint64)
    return _spread_bits(state)


def _hash_long(
    words: npt.NDArray[np.uint64], begins: npt.NDArray[np.int64], lengths: npt.NDArray[np.int64]
) -> npt.NDArray[np.uint64]:
    state = lengths.view(np.uint64) * _LENGTH_FACTOR
    ends = begins + lengths
    for places, secrets in ((begins, _LONG_SECRETS[:2]), (ends - 16, _LONG_SECRETS[2:])):
        state += _multiply_and_fold(words[places] ^ secrets[0], words[places + 8] ^ secrets[1])
    return _spread_bits(state)


def _multiply_and_fold(left: npt.NDArray[np.uint64], right: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint64]:
    """Combine the upper and the lower 64 bits of the products."""
    left_low, left_high = left & _LOW_HALF, left >> _HALF
    right_low, right_high = right & _LOW_HALF, right >> _HALF
    middle = left_low * right_low
    middle >>= _HALF
    middle += left_high * right_low
    left_low *= right_high
    left_low += middle & _LOW_HALF
    left_high *= right_high
    middle >>= _HALF
    left_low >>= _HALF
    left_high += middle
    left_high += left_low
    left_high ^= left * right
    return left_high


def _spread_bits(mixed: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint64]:
    mixed ^= mixed >> np.uint64(37)
    mixed *= _SPREAD_FACTOR
    mixed ^= mixed >> _HALF
    return mixed


hash_key: Final = xxh3_64_intdigest
"""The hash of one key as a number. Compute it once for all files in which the key is looked up. A call into C."""


def build_filter(hashes: npt.NDArray[np.uint64], *, bits_per_key: int) -> bytes:
    """Return the filter's bytes.

    Args:
        hashes: the hashes of the keys, in any order; equal neighbours count once.
        bits_per_key: 0: no filter, ``b""``.
    """
    if bits_per_key <= 0 or not len(hashes):
        return b""
    distinct_count = 1 + int(np.count_nonzero(hashes[1:] != hashes[:-1]))
    block_count = min(max(1, -(-distinct_count * bits_per_key // _BLOCK_BITS)), _BLOCK_COUNT_MAX)
    blocks = np.zeros((block_count, _PAIR_COUNT), np.uint64)
    # Ascending hashes have ascending blocks, so the hashes of one block are a run. One call joins the runs of many
    # blocks.
    sorted_hashes = np.sort(hashes)
    for start in range(0, len(sorted_hashes), _KEYS_AT_ONCE):
        batch = sorted_hashes[start : start + _KEYS_AT_ONCE]
        numbers = ((batch >> _BLOCK_SHIFT_64) * np.uint64(block_count) >> _BLOCK_INDEX_BITS_64).view(np.int64)
        starts = np.flatnonzero(np.diff(numbers, prepend=-1))
        places = numbers.take(starts)
        for pair, shift in enumerate(_PAIR_SHIFTS[:, None]):
            bits = _PAIR_BIT_ARRAY.take((batch >> shift & _PAIR_MASK).view(np.int64))
            blocks[places, pair] |= np.bitwise_or.reduceat(bits, starts)
    return blocks.astype("<u8", copy=False).tobytes()


class Filter:
    """A filter that reads its bytes where they are, without a copy.

    Args:
        body: a whole number of blocks; empty: every key passes.
    """

    __slots__ = ("_block_count", "_blocks", "_pairs", "_view", "may_contain")

    may_contain: Callable[[int], bool]
    """Return False if the key with this hash was certainly not added. Cost: about 0.3 us.

    The first two of the eight words exclude three in four absent keys.
    """

    def __init__(self, body: Buffer) -> None:
        self._view = memoryview(body).cast("B")
        block_count = len(self._view) // FILTER_BLOCK_BYTES
        self._block_count = np.array(block_count, np.uint64)
        # Records, because they may be at any address: numpy copies all numbers at an odd address before taking some.
        self._blocks = np.frombuffer(self._view, np.dtype((np.void, FILTER_BLOCK_BYTES)))
        self._pairs = self._view[: block_count * FILTER_BLOCK_BYTES].cast("Q")
        self.may_contain = _make_probe(self._pairs)

    @property
    def is_empty(self) -> bool:
        """Whether every key passes."""
        return not self._pairs

    @property
    def size_bytes(self) -> int:
        """Bytes of the filter."""
        return len(self._view)

    def select(self, hashes: npt.NDArray[np.uint64]) -> npt.NDArray[np.int64]:
        """Return the ascending places of the hashes (`hash_keys`) that pass. Cost: 5 us, and 0.03 us for each hash."""
        passed: npt.NDArray[np.int64]
        if not self._block_count:
            return np.arange(len(hashes))
        blocks = hashes >> _BLOCK_SHIFT_64
        blocks *= self._block_count
        blocks >>= _BLOCK_INDEX_BITS_64
        words = self._blocks.take(blocks.view(_INT64)).view(_PAIR)
        if len(hashes) > _FEW_KEYS:
            places = hashes >> _PAIR_SHIFTS[:, None] & _PAIR_MASK
            bits = _PAIR_BIT_ARRAY.take(places.view(_INT64))
            (passed,) = np.logical_and.reduce(words.reshape(-1, _PAIR_COUNT).T & bits == bits).nonzero()
            return passed
        # As below, in fewer and faster steps: the pairs of a key are neighbours.
        bits = _pair_bits_of(hashes)
        words &= bits
        (passed,) = ((words == bits).view(_PAIRS_SET) == _ALL_PAIRS_SET).nonzero()
        return passed


class LevelsFilter:
    """The filters of all files of some levels, used together. In each level only one file may contain a given key.

    Args:
        levels: for each level the last keys and the filters of its files, in the order of their keys. No filter is
            empty. The filters are read where they are, without a copy.
    """

    __slots__ = ("_block_counts", "_blocks", "_levels", "_starts")

    def __init__(self, levels: Sequence[tuple[Sequence[bytes], Sequence[Filter]]]) -> None:
        filters = [file_filter for _, filters in levels for file_filter in filters]
        ends = accumulate(len(filters) for _, filters in levels)
        # A key behind all files of a level is checked in the filter of the last file.
        self._levels = [(end - len(keys), keys[:-1]) for end, (keys, _) in zip(ends, levels, strict=True)]
        """For each level the number of its first file, and the last keys of its files except the last one."""
        addresses = [np.frombuffer(file_filter._view, np.uint8).ctypes.data for file_filter in filters]
        first = min(addresses)
        end = max(address + file_filter.size_bytes for address, file_filter in zip(addresses, filters, strict=True))
        # Each block of each filter is an element of one array. The other elements of this array are never read.
        self._blocks = np.asarray(_Memory(first, end - first, filters))
        self._starts = np.array(addresses, np.int64) - first
        self._block_counts = np.array(
            [file_filter.size_bytes // FILTER_BLOCK_BYTES for file_filter in filters], np.uint64
        )

    def select(self, keys: Sequence[bytes]) -> list[list[int]]:
        """Return for each level the ascending places of the keys that its filters let pass.

        Cost: 15 us, 0.1 us for each key, and for each key and level 0.02 us, or 0.06 us if the level has several files.
        """
        if len(keys) > _FEW_KEYS:
            places_by_level: list[list[int]] = [[] for _ in self._levels]
            for start in range(0, len(keys), _FEW_KEYS):
                for places, some in zip(places_by_level, self.select(keys[start : start + _FEW_KEYS]), strict=True):
                    places += [start + place for place in some]
            return places_by_level
        hashes, count, level_count = hash_keys(keys), len(keys), len(self._levels)
        files, *further_levels = [_choose_files(keys, bounds, first=first) for first, bounds in self._levels]
        blocks, bits = hashes >> _BLOCK_SHIFT_64, _pair_bits_of(hashes)
        if further_levels:
            files = np.concatenate([files, *further_levels])
            blocks, bits = np.concatenate([blocks] * level_count), np.concatenate([bits] * level_count)
        blocks *= self._block_counts[files]
        blocks >>= _BLOCK_INDEX_BITS_64
        starts = blocks.view(_INT64)
        starts *= _FILTER_BLOCK_BYTES
        starts += self._starts[files]
        words = self._blocks[starts].view(_PAIR)
        words &= bits
        (places,) = ((words == bits).view(_PAIRS_SET) == _ALL_PAIRS_SET).nonzero()
        if level_count == 1:
            return [places.tolist()]
        ends = places.searchsorted(np.arange(count, level_count * count + 1, count)).tolist()
        return [(places[low:high] % count).tolist() for low, high in pairwise([0, *ends])]


def _choose_files(keys: Sequence[bytes], bounds: Sequence[bytes], *, first: int) -> npt.NDArray[np.int64]:
    """For each key, the number of the file of a level that may contain it; `bounds`: last keys except the last one."""
    if not bounds:
        files = np.zeros(len(keys), _INT64)
    elif len(bounds) == 1:  # a comparison takes less time than a bisection
        files = np.frombuffer(bytes(map(lt, repeat(bounds[0]), keys)), np.uint8).astype(_INT64)
    elif len(bounds) < 256:  # and bytes take less time than numbers
        files = np.frombuffer(bytes(map(bisect_left, repeat(bounds), keys)), np.uint8).astype(_INT64)
    else:
        files = np.fromiter(map(bisect_left, repeat(bounds), keys), _INT64, len(keys))
    if first:
        files += first
    return files


class _Memory:
    """An array of the blocks that begin at each byte of a memory range. It keeps the owner of the range alive."""

    __slots__ = ("__array_interface__", "_kept")

    def __init__(self, address: int, size_bytes: int, kept: object) -> None:
        self._kept = kept
        self.__array_interface__: dict[str, Any] = {
            "data": (address, True),
            "shape": (size_bytes - FILTER_BLOCK_BYTES + 1,),
            "strides": (1,),
            "typestr": f"|V{FILTER_BLOCK_BYTES}",
            "version": 3,
        }


def _pair_bits_of(hashes: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint64]:
    """Return the bits that at most `_FEW_KEYS` hashes set: four word pairs for each hash, in order."""
    places = hashes.repeat(_PAIR_COUNT)
    places >>= _PAIR_SHIFTS_OF_KEYS[: len(places)]
    places &= _PAIR_MASK
    return _PAIR_BIT_ARRAY.take(places.view(_INT64))


def _words_of(pairs: memoryview) -> tuple[Sequence[int], Sequence[int], Sequence[int], Sequence[int], int]:
    """Return the words of a filter's blocks, as pairs of neighbours in a block, and the number of blocks."""
    first, second, third, fourth = (pairs[pair::_PAIR_COUNT] for pair in range(_PAIR_COUNT))
    return first, second, third, fourth, len(first)


def _make_probe(pairs: memoryview) -> Callable[[int], bool]:
    """Make `Filter.may_contain` over a filter's words, two at a time. A closure is fast to call: every get calls it."""
    if not pairs:
        return lambda key_hash: True
    (first, second, third, fourth, block_count), pair_bits = _words_of(pairs), _PAIR_BITS

    def may_contain(key_hash: int) -> bool:
        block = (key_hash >> _BLOCK_SHIFT) * block_count >> _BLOCK_INDEX_BITS
        bits = pair_bits[key_hash & 1023]
        if first[block] & bits != bits:
            return False
        bits = pair_bits[key_hash >> 10 & 1023]
        if second[block] & bits != bits:
            return False
        bits = pair_bits[key_hash >> 20 & 1023]
        if third[block] & bits != bits:
            return False
        bits = pair_bits[key_hash >> 30 & 1023]
        return fourth[block] & bits == bits

    return may_contain


def make_finder(
    levels: Sequence[tuple[Sequence[bytes], Sequence[Filter]]],
) -> Callable[[bytes], tuple[int, int] | None]:
    """Make a function that returns the first of some levels, at least one, whose filter lets a key pass.

    Args:
        levels: for each level the last keys and the filters of its files, in the order of their keys. No filter is
            empty.

    Returns:
        A closure, which is fast to call: every get calls it. It returns the hash of the key and the number of the
        level, or None: the key is absent. Cost: about 0.3 us a level. Of several files it checks the file with the
        smallest last key that is not below the key. For a key behind all files it checks the last file.
    """
    if len(levels) == 1:
        return _make_finder_of_level(*levels[0])
    asks = [(last_keys[:-1], [file_filter.may_contain for file_filter in filters]) for last_keys, filters in levels]

    def find_first(key: bytes) -> tuple[int, int] | None:
        key_hash = hash_key(key)
        for number, (bounds, may_contain) in enumerate(asks):
            if may_contain[bisect_left(bounds, key)](key_hash):
                return key_hash, number
        return None

    return find_first


def _make_finder_of_level(
    last_keys: Sequence[bytes], filters: Sequence[Filter]
) -> Callable[[bytes], tuple[int, int] | None]:
    """As `make_finder`, of one level, as most databases have. It saves one call by including `may_contain`."""
    bounds, words, pair_bits = last_keys[:-1], [_words_of(file_filter._pairs) for file_filter in filters], _PAIR_BITS
    only = words[0] if len(words) == 1 else None

    def find(key: bytes) -> tuple[int, int] | None:
        key_hash = hash_key(key)
        first, second, third, fourth, block_count = only or words[bisect_left(bounds, key)]
        block = (key_hash >> _BLOCK_SHIFT) * block_count >> _BLOCK_INDEX_BITS
        bits = pair_bits[key_hash & 1023]
        if first[block] & bits != bits:
            return None
        bits = pair_bits[key_hash >> 10 & 1023]
        if second[block] & bits != bits:
            return None
        bits = pair_bits[key_hash >> 20 & 1023]
        if third[block] & bits != bits:
            return None
        bits = pair_bits[key_hash >> 30 & 1023]
        return (key_hash, 0) if fourth[block] & bits == bits else None

    return find
