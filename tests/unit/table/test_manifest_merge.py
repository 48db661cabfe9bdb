"""Which manifests a commit merges, against the rules of the options applied to every possible run."""

from __future__ import annotations

import random

import pytest

from lakebed.table.codec.manifest_merge import MergePlan, plan_merge
from lakebed.table.codec.stats import EMPTY_STATS
from lakebed.table.model.model import ManifestMeta


def metas_of(*sizes: int, deleting: tuple[int, ...] = ()) -> list[ManifestMeta]:
    """Manifests of some sizes; those at the places `deleting` have a DELETE."""
    return [
        ManifestMeta(f"m{place}", size, 1, int(place in deleting), EMPTY_STATS, 0, 1)
        for place, size in enumerate(sizes)
    ]


def planned(metas: list[ManifestMeta], count_min: int, target_bytes: int, full_threshold_bytes: int) -> MergePlan:
    return plan_merge(metas, count_min=count_min, target_bytes=target_bytes, full_threshold_bytes=full_threshold_bytes)


@pytest.mark.parametrize(
    ("sizes", "deleting", "threshold_bytes", "full"),
    [
        ((40, 60), (), 100, True),
        ((40, 60), (), 101, False),
        ((40, 100), (), 100, False),  # the second has reached the target
        ((40, 100), (1,), 140, True),  # it counts for its DELETE
        ((100, 100), (0, 1), 200, True),
        ((100, 100), (0,), 200, False),
        ((500,), (0,), 100, False),  # one alone is not rewritten
        ((), (), 0, False),
    ],
)
def test_all_are_folded_from_the_threshold_on(
    sizes: tuple[int, ...], deleting: tuple[int, ...], threshold_bytes: int, full: bool
) -> None:
    """What is small or has DELETEs counts, what has reached the target does not, and one manifest stays as it is."""
    plan = planned(metas_of(*sizes, deleting=deleting), 30, 100, threshold_bytes)
    assert plan.full is full
    assert not full or plan.runs == ((0, len(sizes)),)


def runs_by_the_rules(sizes: list[int], count_min: int, target_bytes: int) -> list[tuple[int, int]]:
    """The first run is the shortest beginning that reaches the target, the others those of what follows it."""
    for end in range(1, len(sizes) + 1):
        if sum(sizes[:end]) >= target_bytes:
            later = runs_by_the_rules(sizes[end:], count_min, target_bytes)
            return [(0, end)] * (end > 1) + [(start + end, stop + end) for start, stop in later]
    return [(0, len(sizes))] * (len(sizes) >= count_min and len(sizes) > 1)


@pytest.mark.parametrize("seed", range(10))
def test_runs_are_those_of_the_rules(seed: int) -> None:
    """Each run reaches the target with its last manifest; the rest is one where it is as many as the option says."""
    rng = random.Random(seed)
    for _ in range(60):
        sizes = [rng.choice((1, 30, 50, 99, 100, 250)) for _ in range(rng.randrange(9))]
        count_min = rng.choice((0, 1, 2, 3, 5))
        plan = planned(metas_of(*sizes), count_min, 100, 10_000)
        assert list(plan.runs) == runs_by_the_rules(sizes, count_min, 100), (sizes, count_min)
        assert not plan.full
