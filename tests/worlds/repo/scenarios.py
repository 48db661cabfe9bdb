"""Scenarios of a repository: which processes run, and what they do. Each is dense in one kind of race.

Owns: `SCENARIOS`, by name, and `SIMULATION`, which runs one from a seed. Does not know: how processes are judged.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from lakebed.testing.scheduled_calls import FaultRates
from worlds.repo.actors import Weights, begin, crew, worker
from worlds.repo.world import RepositoryWorld
from worlds.simulation import Simulation
from worlds.world import FAULTS

STORMY: Final = FaultRates(
    error_before=0.01, lost_request=0.008, lost_reply=0.015, late=0.012, crash=0.008, pause=0.06, pause_steps_max=300
)
CALM: Final = FaultRates(pause=0.05, pause_steps_max=300)

LOSSY: Final = FaultRates(lost_reply=0.05, late=0.03, pause=0.1, pause_steps_max=120)
SLEEPY: Final = FaultRates(lost_reply=0.003, late=0.003, crash=0.001, pause=0.2, pause_steps_max=400)
"""Little is lost, and every process pauses where it does most harm."""

WRITING: Final[Weights] = {"put": 6, "put_many": 2, "delete": 4, "put_if_absent": 1}
READING: Final[Weights] = {"get": 3, "list": 4, "differ": 3, "look_back": 1}
COMPACTING: Final[Weights] = {"compact": 4, "clean": 2}
BACKGROUND: Final[Weights] = {"sense": 3, "clean": 2}


def staging(world: RepositoryWorld) -> None:
    """Writers and deleters, while others commit, compact and clean up."""
    begin(world)
    worker(world, "writer 1", WRITING, count=9, lives=2)
    worker(world, "writer 2", WRITING, count=9)
    worker(world, "committer", {"commit": 3, "commit_some": 1, "put": 1}, count=5, lives=2)
    worker(world, "compactor", COMPACTING, count=5)
    worker(world, "reader", READING, count=6)


def rivals(world: RepositoryWorld) -> None:
    """Several processes try to create one path, while it is sealed, committed, compacted and deleted."""
    world.paths = world.paths[:2]
    for number in range(3):
        worker(world, f"rival {number}", {"put_if_absent": 6, "delete": 5, "get": 1}, count=9)
    worker(world, "mover", {"commit": 3, "compact": 2, "reset": 1}, count=8)
    worker(world, "compactor", {"compact": 1}, count=4)


def insisters(world: RepositoryWorld) -> None:
    """Replies are lost, and what was written is sealed, committed and swept before its writer can look it up."""
    world.set_faults(LOSSY)
    world.paths = world.paths[:4]
    for number in range(2):
        worker(world, f"insister {number}", {"put_if_absent": 4, "put": 1, "put_many": 1, "delete": 3}, count=9)
    for number in range(2):
        worker(world, f"mover {number}", {"commit": 3, "compact_now": 1}, count=14)
        worker(world, f"sweeper {number}", {"sweep": 1}, count=20)


def deleters(world: RepositoryWorld) -> None:
    """Few paths are put and deleted again and again over commits and compactions, and differences are asked for."""
    world.paths = world.paths[:3]
    world.texts = world.texts[:2]
    begin(world)
    crew(world, "crew", [{"put": 3, "delete": 4, "differ": 2}, {"compact": 3, "commit": 1, "clean": 1}], count=9)
    worker(world, "deleter", {"delete": 4, "put": 3, "differ": 2}, count=9)
    worker(world, "reader", {"differ": 3, "list": 2, "get": 1}, count=6)


def prefixes(world: RepositoryWorld) -> None:
    """Prefixes are deleted under writers, with compactions, commits and listings."""
    begin(world)
    worker(world, "writer", {"put": 4, "put_many": 2, "delete": 1}, count=10)
    worker(world, "deleter", {"delete_prefix": 4, "put": 2}, count=6, lives=2)
    worker(world, "mover", {"compact": 3, "commit": 2, "commit_some": 2, "reset_some": 2, "clean": 1}, count=7)
    worker(world, "reader", {"list": 3, "differ": 3, "get": 1}, count=6)


def movers(world: RepositoryWorld) -> None:
    """All processes move one head: commits, resets, subsets, compactions, with a writer."""
    begin(world)
    moving = {"commit": 3, "commit_some": 3, "reset": 1, "reset_some": 3, "compact": 3, "hard_reset": 2, "put_many": 3}
    worker(world, "mover 1", moving, count=8, lives=2)
    worker(world, "mover 2", moving, count=8)
    worker(world, "writer", WRITING, count=9)
    worker(world, "reader", READING, count=4)


def merges(world: RepositoryWorld) -> None:
    """Branches are written to, committed and merged into each other in every way."""
    begin(world, others=("dev", "fix"))
    all_of = ("main", "dev", "fix")
    working: Weights = {"advance": 4, "merge": 5, "reset": 1, "rebase": 2, "pick": 3}
    for number, branches in enumerate((("main",), ("dev", "fix"), all_of)):
        worker(world, f"worker {number}", working, branches=branches, count=7, lives=2)
    worker(world, "writer", {"put": 1, "compact": 1, "commit": 2}, branches=all_of, count=3)
    worker(world, "reader", {"list": 1, "look_back": 3}, branches=all_of, count=3)


def branches(world: RepositoryWorld) -> None:
    """Branches come, go and come back under their writers; what they leave is cleaned up."""
    begin(world, others=("dev",))
    both = ("dev", "fix")
    for number in range(2):
        making = {"create_branch": 5, "delete_branch": 3, "undelete_branch": 2, "tag": 1, "put": 2}
        worker(world, f"maker {number}", making, branches=both, count=8)
    for number in range(2):
        writing = {"put": 4, "delete_prefix": 2, "delete": 1, "commit": 2, "compact": 1}
        worker(world, f"writer {number}", writing, branches=both, count=8)
    worker(world, "cleaner", {"clean": 3, "sense": 1}, branches=both, count=5)
    worker(world, "reader", READING, branches=both, count=4)


def imports(world: RepositoryWorld) -> None:
    """Imports that are run by several processes and repeated, with commits and resets."""
    begin(world)
    worker(world, "importer 1", {"import_objects": 3, "commit": 1, "reset": 1}, count=5, lives=3)
    worker(world, "importer 2", {"import_objects": 3, "put": 1}, count=4)
    worker(world, "canceller", {"cancel_import": 1}, count=2)
    worker(world, "mover", {"commit": 2, "reset": 2, "compact": 1, "delete_prefix": 1}, count=5)


def garbage(world: RepositoryWorld) -> None:
    """Uploads, resets, dropped branches and compactions, and collectors that wait for no age."""
    begin(world, others=("dev",))
    both = ("main", "dev")
    worker(world, "writer 1", {"put": 5, "put_many": 2, "delete": 2, "reset": 1}, branches=both, count=8, lives=2)
    worker(world, "writer 2", {"put": 4, "put_if_absent": 2, "commit": 2, "compact": 2}, branches=both, count=8)
    making = {"create_branch": 4, "delete_branch": 2, "undelete_branch": 2, "reset_some": 2, "commit_some": 2}
    worker(world, "maker", making, branches=("dev",), count=6)
    worker(world, "mover", {"advance": 2, "merge": 2, "hard_reset": 2, "reset": 1}, branches=both, count=4)
    worker(world, "collector 1", {"collect": 3, "clean": 1}, count=4, lives=2)
    worker(world, "collector 2", {"collect": 3, "clean": 1, "compact": 1}, count=3)
    worker(world, "reader", {"get": 4, "look_back": 1, "list": 1}, branches=both, count=6)


def sweepers(world: RepositoryWorld) -> None:
    """Everything that is dropped is swept away at once, under readers that pause."""
    world.set_faults(SLEEPY)
    world.paths = world.paths[:4]
    begin(world)
    for number in range(3):
        worker(world, f"reader {number}", {"list": 2, "get": 1, "differ": 1}, count=6)
    worker(world, "writer", {"put": 2, "put_many": 1}, count=10)
    worker(world, "mover", {"commit": 3, "compact": 3, "reset_some": 1}, count=8)
    for number in range(2):
        worker(world, f"sweeper {number}", {"clean": 1}, count=8)


def replaced(world: RepositoryWorld) -> None:
    """What is compacted is replaced, and collected when it is old enough or at once, under readers that pause."""
    world.set_faults(SLEEPY)
    world.give_grace(20 if world.seed % 2 else 0)
    begin(world)
    for number in range(2):
        worker(world, f"reader {number}", {"get_many": 5, "list": 3, "differ": 2, "get": 1}, count=8)
    worker(world, "writer", {"put": 2, "put_many": 2, "delete": 1, "put_if_absent": 1, "doze": 2}, count=10)
    moving = {"compact": 2, "compact_now": 3, "reset_some": 1, "commit_some": 1, "commit": 1, "reset": 1, "doze": 2}
    for number in range(2):
        worker(world, f"mover {number}", moving, count=8)
    for number in range(2):
        worker(world, f"collector {number}", {"collect": 3, "doze": 2}, count=7)


def sleepers(world: RepositoryWorld) -> None:
    """Writers that pause between upload and staging, and collectors that pause anywhere."""
    world.set_faults(SLEEPY)
    world.dawdling = 0.95
    world.paths = world.paths[:3]
    for number in range(4):
        worker(world, f"writer {number}", {"put": 6, "put_if_absent": 1}, count=7)
    for number in range(3):
        worker(world, f"collector {number}", {"collect": 1}, count=4)
    worker(world, "mover", {"commit": 1, "compact": 1, "reset": 1}, count=3)


def expiry(world: RepositoryWorld) -> None:
    """Commits that are no longer needed are tagged, branched and returned to, while they expire."""
    begin(world, others=("dev",), count=4)
    both = ("main", "dev")
    making = {"tag": 4, "create_branch": 2, "branch_anywhere": 5, "delete_branch": 4, "undelete_branch": 3, "pick": 2}
    for number in range(3):
        worker(world, f"maker {number}", making, branches=("dev", "fix", "old"), count=8)
    worker(world, "mover", {"advance": 2, "hard_reset": 2}, branches=both, count=5)
    for number in range(2):
        worker(world, f"collector {number}", {"sleep": 2, "collect": 3}, count=6)


def retention(world: RepositoryWorld) -> None:
    """Commits expire while others tag them, return to them, revert and undelete."""
    begin(world, others=("dev",), count=3)
    both = ("main", "dev")
    moving = {"advance": 4, "hard_reset": 4, "pick": 4, "reset": 1, "merge": 2, "rebase": 1}
    worker(world, "mover", moving, branches=both, count=7, lives=2)
    making = {"tag": 5, "create_branch": 4, "delete_branch": 2, "undelete_branch": 3}
    worker(world, "maker 1", making, branches=("dev", "fix"), count=9)
    worker(world, "maker 2", making, branches=("dev", "fix"), count=9)
    worker(world, "collector 1", {"collect": 3, "sleep": 2}, count=6, lives=2)
    worker(world, "collector 2", {"collect": 2, "sleep": 1}, count=4)
    worker(world, "reader", {"get": 2, "look_back": 1}, branches=both, count=4)


def sensors(world: RepositoryWorld) -> None:
    """Threads of one process, as a server has them, with its background; and another process."""
    begin(world, others=("dev",))
    both = ("main", "dev")
    threads = (
        WRITING,
        {**WRITING, "delete_prefix": 1},
        READING,
        {"commit": 2, "merge": 1, "reset_some": 1},
        BACKGROUND,
    )
    crew(world, "server", threads, branches=both, count=6, lives=2)
    worker(world, "job", {"put_many": 3, "sense": 2, "commit": 1}, branches=both, count=6)


def crowd(world: RepositoryWorld) -> None:
    """Everything at once."""
    begin(world, others=("dev",))
    every: Weights = {
        **WRITING,
        **READING,
        "advance": 3,
        "delete_prefix": 1,
        "commit": 2,
        "commit_some": 1,
        "merge": 3,
        "reset": 1,
        "reset_some": 1,
        "hard_reset": 1,
        "pick": 1,
        "rebase": 1,
        "import_objects": 1,
        "create_branch": 2,
        "delete_branch": 1,
        "undelete_branch": 1,
        "tag": 1,
        "compact": 1,
        "sense": 1,
        "clean": 1,
        "collect": 2,
        "sleep": 1,
    }
    both = ("main", "dev")
    crew(world, "crew", [every, every], branches=both, count=8)
    for number in range(3):
        worker(world, f"worker {number}", every, branches=both, count=8, lives=2)


def power(world: RepositoryWorld) -> None:
    """All processes lose power; what was referred to is there."""
    garbage(world)
    world.power_lost_at = world.rng.randrange(100, 1200)

    def revive() -> None:
        worker(world, "survivor", {**WRITING, **READING, "commit": 2, "compact": 1}, count=8)
        worker(world, "late collector", {"collect": 3, "clean": 1}, count=3)

    world.revive = revive


SCENARIOS: Final[dict[str, Callable[[RepositoryWorld], None]]] = {
    scenario.__name__: scenario
    for scenario in (
        staging,
        rivals,
        insisters,
        deleters,
        prefixes,
        movers,
        merges,
        branches,
        imports,
        garbage,
        sweepers,
        replaced,
        sleepers,
        retention,
        expiry,
        sensors,
        crowd,
        power,
    )
}

_RETENTION_DAYS: Final = {"retention": 1, "expiry": 0, "crowd": 1}

SIMULATION: Final = Simulation(
    "repo",
    SCENARIOS,
    (FAULTS, CALM, STORMY),
    lambda seed, faults, scenario: RepositoryWorld(seed, faults=faults, retention_days=_RETENTION_DAYS.get(scenario)),
)
