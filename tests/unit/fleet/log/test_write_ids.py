"""What a log remembers of write ids, over many appends: against a plain list with the time of each."""

from __future__ import annotations

import random
from itertools import pairwise

from lakebed.fleet.log.write_ids import WriteIdLimits, WriteIds


def id_of(number: int) -> bytes:
    """The write id of an append."""
    return number.to_bytes(16)


def test_a_trim_after_a_burst_is_short() -> None:
    """After a burst one trim forgets a few thousand ids, not all that are old; more of them forget the others."""
    limits = WriteIdLimits(kept=100, window_s=120)
    known = WriteIds()
    for number in range(1, 50_001):
        known.add(id_of(number), number)
    known.settle(0, limits)
    known.trim(100, limits)
    assert (len(known), known.first_lsn) == (50_000, 1)
    sizes = [len(known)]
    while known.trim(200, limits):
        sizes.append(len(known))
        assert known.first_lsn == 50_001 - sizes[-1]
    assert max(before - after for before, after in pairwise(sizes)) <= 5_000
    assert len(sizes) > 10
    assert len(known) == 100
    assert (known.get(id_of(49_900)), known.get(id_of(49_901))) == (None, 49_901)


def test_old_ids_do_not_gather_however_many_come_at_once() -> None:
    """Where each change brings more ids than a trim forgets, as where another process appends, old ones still go."""
    limits = WriteIdLimits(kept=100, window_s=10)
    known = WriteIds()
    number = 0
    for round_number in range(12):
        for _ in range(10_000):
            number += 1
            known.add(id_of(number), number)
        known.settle(20.0 * round_number, limits)
        assert len(known) <= 20_000


def test_an_id_is_forgotten_when_it_is_old_and_many_follow() -> None:
    """No id is forgotten before its time, or while it is one of the newest; later none but these are left."""
    for seed in range(30):
        drawn = random.Random(seed)
        limits = WriteIdLimits(kept=drawn.choice([1, 5, 40]), window_s=drawn.choice([1, 10, 60]))
        known, learned = WriteIds(), []
        now_s = number = 0.0
        for _ in range(200):
            now_s += drawn.choice([0, 0.3, 1, 5])
            for _ in range(drawn.choice([0, 1, 3, 30])):
                number += 1
                known.add(id_of(int(number)), int(number))
                learned.append((int(number), now_s))
            known.settle(now_s, limits)
            for lsn, learned_s in learned[-500:]:
                is_needed = now_s - learned_s < limits.window_s or lsn > number - limits.kept
                if is_needed:
                    assert known.get(id_of(lsn)) == lsn, (seed, lsn)
        known.settle(now_s + limits.window_s + 2, limits)
        assert len(known) == min(limits.kept, len(learned))
        assert known.last_lsn == number
