"""Names of sorted files."""

from __future__ import annotations

import random

import pytest

from lakebed.errors import InternalError, InvalidRequest
from lakebed.lsm.file_id import file_id_at, file_id_time_ms, is_file_id, mint_file_id
from lakebed.runtime import Environment
from lakebed.testing.clock import ManualClock

NOW_MS = 1_700_000_000_000


def environment_at(now_ms: int, *, seed: int = 1) -> Environment:
    """A clock that stands still."""
    return Environment(clock=ManualClock(start_ms=now_ms), rng=random.Random(seed))


def test_ids_ascend_though_the_clock_does_not() -> None:
    """Each id is greater than the one it was minted after: with a clock that stands still, goes back, or is at zero."""
    last = None
    minted = []
    for now_ms in (NOW_MS, NOW_MS, NOW_MS, NOW_MS - 60_000, 0, NOW_MS + 1, NOW_MS):
        for _ in range(50):
            last = mint_file_id(last, environment=environment_at(now_ms))
            minted.append(last)
    assert minted == sorted(set(minted))
    assert {len(text) for text in minted} == {26}
    assert file_id_time_ms(minted[-1]) - NOW_MS < 3


def test_two_processes_do_not_mint_the_same_id() -> None:
    """After one and the same id, and with clocks behind it, two generators of random numbers go different ways."""
    after = file_id_at(NOW_MS)
    assert len({mint_file_id(after, environment=environment_at(0, seed=seed)) for seed in range(100)}) == 100


def test_time_of_an_id() -> None:
    """The time can be read back, and the smallest id of a time lies between those minted before and after."""
    minted = mint_file_id(environment=environment_at(NOW_MS))
    assert file_id_time_ms(minted) == NOW_MS
    assert file_id_at(NOW_MS) <= minted < file_id_at(NOW_MS + 1)
    assert file_id_at(-5) == file_id_at(0) == "0" * 26
    assert file_id_at(NOW_MS) == "01HF7YAT00" + "0" * 16


@pytest.mark.parametrize(
    "text", ["", "0" * 25, "0" * 27, "8" + "0" * 25, "0" * 25 + "U", "0" * 25 + "a", "0" * 25 + "é"]
)
def test_what_is_no_id(text: str) -> None:
    """An invalid id is refused with a sentence."""
    assert not is_file_id(text)
    with pytest.raises(InvalidRequest, match="not a valid file id"):
        file_id_time_ms(text)


def test_the_last_id() -> None:
    """There is an end, and it is an error, not an id that starts again from nothing."""
    with pytest.raises(InternalError, match="no file id is left"):
        mint_file_id("7" + "Z" * 25, environment=environment_at(NOW_MS))


@pytest.mark.parametrize("time_ms", [0, 1, (1 << 47) - 1, 1 << 47, (1 << 48) - 1])
def test_an_id_has_every_time_of_48_bits(time_ms: int) -> None:
    """What is before or behind counts as the first or the last."""
    assert file_id_time_ms(file_id_at(time_ms)) == time_ms
    assert file_id_time_ms(mint_file_id(environment=environment_at(time_ms))) == time_ms
    assert file_id_at(-1) == file_id_at(0)
    assert file_id_time_ms(file_id_at(1 << 48)) == (1 << 48) - 1
