"""Keys that are looked for together: every part of a batch, and every number made of keys, against key by key."""

from __future__ import annotations

from itertools import combinations, takewhile
from typing import Any

import numpy as np
import pytest

from lakebed.lsm.filter import hash_key
from lakebed.lsm.key_batch import KeyBatch, count_common, cut, records_at, words_at, words_of

BATCHES = {
    "equally long": [b"key-%02d-of-many" % number for number in (3, 1, 9, 1, 4, 7)],
    "short": [b"c", b"a", b"b", b"z", b"k", b"a"],
    "of all lengths": [b"\0", b"a", b"a\0", b"abcdefgh", b"abcdefghi", b"\xff" * 20],
    "one": [b"alone"],
}


def word(key: bytes, start: int) -> int:
    """Eight bytes of a key as a number."""
    return int.from_bytes(key[start : start + 8].ljust(8, b"\0"), "big")


def check(batch: KeyBatch, keys: list[bytes]) -> None:
    """A batch has these keys in this order, and what is made of them."""
    assert list(batch.keys) == keys
    assert len(batch) == len(keys)
    assert batch.hashes.tolist() == [hash_key(key) for key in keys]
    texts: Any = batch.texts
    if len(set(map(len, keys))) == 1:
        assert [bytes(text) for text in texts.tolist()] == keys
    else:
        assert texts is None
    for start in range(20):
        assert batch.words(start).tolist() == [word(key, start) for key in keys]


@pytest.mark.parametrize("is_computed", [True, False])
@pytest.mark.parametrize("name", BATCHES)
def test_a_part_of_a_batch_is_a_batch_of_the_part(name: str, is_computed: bool) -> None:
    """Whether hashes and texts were asked for before the part was taken, or after."""
    keys = BATCHES[name]
    for low, high in combinations(range(len(keys) + 1), 2):
        batch = KeyBatch(keys)
        if is_computed:
            check(batch, keys)
        check(batch.slice(low, high), keys[low:high])
        for places in ([*range(low, high)], [low, *range(low + 2, high)]):
            check(batch.select(np.array(places)), [keys[place] for place in places])


@pytest.mark.parametrize("name", BATCHES)
def test_pieces_of_a_text(name: str) -> None:
    """Keys that stand one behind another come apart again, and have the same numbers there."""
    keys = BATCHES[name]
    content = b"".join(keys)
    ends = np.cumsum([len(key) for key in keys])
    starts = ends - [len(key) for key in keys]
    assert cut(content, starts, ends) == cut(memoryview(content), starts, ends) == keys
    numbers = [word(key, 0) for key in keys]
    assert words_of(keys, 0).tolist() == words_at(content, starts, ends - starts).tolist() == numbers
    width = min(len(key) for key in keys)
    if width:
        assert records_at(content, width, starts).tolist() == [key[:width] for key in keys]


def test_how_much_two_keys_have_in_common() -> None:
    """As long as the prefix that both begin with, for every pair of keys."""
    keys = [key for name in BATCHES for key in BATCHES[name]]
    for left in keys:
        for right in keys:
            pairs = zip(left, right, strict=False)
            assert count_common(left, right) == len(list(takewhile(lambda pair: pair[0] == pair[1], pairs)))
