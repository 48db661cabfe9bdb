"""The processes of a simulated repository, and threads of one process, that draw verbs by weight.

Owns: `worker`, `crew`, and `begin`, the history with which a scenario starts. Invariants: what a life draws is decided
by its name, its number and the seed. Does not know: what the verbs do (`worlds.repo.handles`).
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from functools import partial

from lakebed.repo.references.branches import create_branch
from worlds.repo.handles import Process
from worlds.repo.model_verbs import BranchCreation
from worlds.repo.world import RepositoryWorld

Weights = Mapping[str, int]
"""Method of `Process` -> how often it is drawn."""


def use(process: Process, rng: random.Random, weights: Weights, count: int) -> None:
    """Draw so many verbs."""
    names, amounts = list(weights), list(weights.values())
    for _ in range(count):
        [name] = rng.choices(names, amounts)
        getattr(process, name)(rng)


def begin(world: RepositoryWorld, *, others: Sequence[str] = (), count: int = 2) -> None:
    """Some commits, other branches with commits of their own, and perhaps something staged, without faults."""
    rng = random.Random(f"begin {world.seed}")
    process = Process(world, "beginner")
    for _ in range(rng.randrange(count + 1)):
        process.advance(rng)
    for branch in others:
        verb = BranchCreation(name="create branch", branch=branch, by="beginner", source="main")
        process.perform(verb, partial(create_branch, name=branch, source="main"))
    process.branches = ("main", *others)
    for _ in range(rng.randrange(2 * count * len(others) + 1)):
        process.advance(rng)
    if rng.random() < 0.5:
        use(process, rng, {"put_many": 3, "delete": 2, "compact": 1}, 2)


def worker(
    world: RepositoryWorld,
    name: str,
    weights: Weights,
    *,
    branches: Sequence[str] = ("main",),
    count: int = 6,
    lives: int = 1,
) -> None:
    """A process of its own."""

    def live(life: str, rng: random.Random) -> None:
        use(Process(world, life, branches=branches), rng, weights, count)

    world.process(name, live, lives=lives)


def crew(
    world: RepositoryWorld,
    name: str,
    threads: Sequence[Weights],
    *,
    branches: Sequence[str] = ("main",),
    count: int = 6,
    lives: int = 1,
) -> None:
    """A process whose threads share one context."""

    def live(life: str, rng: random.Random) -> None:
        process = Process(world, life, branches=branches)
        for number, weights in enumerate(threads):
            mine = random.Random(rng.random())
            world.scheduler.spawn(f"{life}/{number}", partial(use, process, mine, weights, count))

    world.process(name, live, lives=lives)
