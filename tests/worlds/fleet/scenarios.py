"""Scenarios of fleets: which processes run, and what they do. Each is small, and dense in failures of one kind.

Owns: `SCENARIOS`, by name, and `SIMULATION`, which runs one from a seed. A scenario only spawns processes
(`worlds.fleet.actors`); what is judged, and how, is the world's.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from lakebed.testing.scheduled_calls import FaultRates
from worlds.fleet.actors import (
    USING,
    attach_reader,
    begin,
    client,
    control,
    create_again,
    decommission,
    drain,
    kill,
    lose_log,
    migrate,
    named_client,
    node,
    operator,
    second_process,
    stop,
    stop_control,
)
from worlds.fleet.rest import JudgedFleet
from worlds.fleet.world import FleetWorld
from worlds.simulation import Simulation

GENTLE: Final = FaultRates(
    error_before=0.002, lost_request=0.002, lost_reply=0.003, late=0.003, repeated=0.004, crash=0.0004, pause=0.01,
    pause_steps_max=150,
)  # fmt: skip
CALM: Final = FaultRates(pause=0.02, pause_steps_max=200)
STORMY: Final = FaultRates(
    error_before=0.006, lost_request=0.005, lost_reply=0.008, late=0.008, repeated=0.01, crash=0.001, pause=0.03,
    pause_steps_max=300,
)  # fmt: skip

BRANCHING: Final = {"append": 8, "get": 2, "scan": 2, "branch": 3, "pin": 2, "delete": 1, "detach": 1, "linger": 3}
WRITING: Final = {"append": 10, "get": 2, "linger": 4, "checkpoint": 2, "compact": 1}


def failover(world: FleetWorld) -> None:
    """A node dies for good; its tenants are served elsewhere."""
    begin(world, "a", "b")
    control(world)
    node(world, "n1", lives=1)
    node(world, "n2")
    client(world, "a", "client a")
    client(world, "b", "client b", count=12)
    world.gone.add("n1")
    operator(world, "fate", kill("n1"), pause_s=1.5)


def zombies(world: FleetWorld) -> None:
    """Nodes stand still past detection, and go on as if nothing had happened."""
    begin(world, "a")
    control(world)
    node(world, "n1")
    node(world, "n2")
    client(world, "a", "client 1", verbs=WRITING)
    client(world, "a", "client 2", count=12)
    operator(world, "fate 1", stop("n1"), stop("n1", seconds=2.0))
    operator(world, "fate 2", stop("n2"), pause_s=3.0)


def relocation(world: FleetWorld) -> None:
    """A tenant is moved under load, back and forth, and nodes are drained."""
    begin(world, "a")
    control(world)
    node(world, "n1")
    node(world, "n2")
    client(world, "a", "client 1", verbs=WRITING, count=25)
    client(world, "a", "client 2", count=15)
    operator(world, "operator", migrate("a"), drain("n1"), migrate("a"))


def branches_and_collection(world: FleetWorld) -> None:
    """Branches and pins of a tenant whose layers are compacted and collected, and moved meanwhile."""
    begin(world, "a")
    control(world)
    node(world, "n1")
    node(world, "n2")
    client(world, "a", "client 1", verbs=BRANCHING, count=25)
    client(world, "a", "client 2", verbs={**USING, "compact": 2}, count=15)
    operator(world, "fate", world.rng.choice((stop("n1"), migrate("a"), kill("n2"))))


def control_twice(world: FleetWorld) -> None:
    """Two control planes that know nothing of each other decide at once."""
    begin(world, "a")
    control(world, "control 1", lives=3)
    control(world, "control 2", lives=3)
    node(world, "n1")
    node(world, "n2")
    client(world, "a", "client 1", verbs=BRANCHING)
    client(world, "a", "client 2", verbs=WRITING, count=15)
    operator(world, "operator", migrate("a"), stop("n2"))


def restarts(world: FleetWorld) -> None:
    """Processes die often and start again, with and without their local state, also while the old one stands still."""
    begin(world, "a")
    control(world, lives=4)
    node(world, "n1", lives=4, forgets=0.3)
    node(world, "n2", lives=4, forgets=0.3)
    client(world, "a", "client 1", verbs=WRITING, count=25)
    fates = (kill("n1"), second_process("n1"), kill("n2"), second_process("n2"))
    operator(world, "fate", *(world.rng.choice(fates) for _ in range(3)), pause_s=0.8)


def decommissioning(world: FleetWorld) -> None:
    """A node that stands still, or is dead, is decommissioned: its transactions are acknowledged for it."""
    begin(world, "a", "b")
    control(world)
    node(world, "n1", lives=1)
    node(world, "n2")
    node(world, "n3")
    client(world, "a", "client a", verbs=WRITING)
    client(world, "b", "client b", verbs=WRITING)
    operator(world, "fate", world.rng.choice((kill("n1"), stop("n1"))), pause_s=0.5)
    operator(world, "operator", decommission("n1"), pause_s=2.0)


def log_loss(world: FleetWorld) -> None:
    """A log engine breaks its promise: what follows is another history, and no state has rows of both."""
    begin(world, "a")
    control(world)
    node(world, "n1")
    node(world, "n2")
    client(world, "a", "client 1", verbs={**WRITING, "linger": 8}, count=30)
    client(world, "a", "client 2", count=20)
    operator(world, "fate", lose_log("a"), world.rng.choice((kill("n1"), stop("n1"), migrate("a"))))


def readers(world: FleetWorld) -> None:
    """Nodes follow a tenant read-only, while its layers are compacted and collected by any control plane."""
    begin(world, "a")
    control(world, "control 1")
    control(world, "control 2")
    node(world, "n1")
    node(world, "n2")
    client(world, "a", "client 1", verbs={**WRITING, "compact": 4}, count=25)
    client(world, "a", "client 2", verbs={**USING, "read anywhere": 6}, count=20)
    operator(world, "operator", attach_reader("a"), attach_reader("a"), migrate("a"))


def control_sleeps(world: FleetWorld) -> None:
    """The only control plane stands still; its nodes are well, and keep their tenants."""
    world.set_faults(CALM)
    world.forbidden_events = {"node_silent"}
    begin(world, "a", "b")
    control(world)
    node(world, "n1")
    node(world, "n2")
    client(world, "a", "client a", count=12)
    client(world, "b", "client b", count=12)
    operator(world, "fate", stop_control(), stop_control(seconds=8.0))


def restores(world: FleetWorld) -> None:
    """Timelines are restored to earlier LSNs, again and again, while others write to them and the tenant moves."""
    begin(world, "a")
    control(world)
    node(world, "n1")
    node(world, "n2")
    client(world, "a", "client 1", verbs={**BRANCHING, "restore": 5, "checkpoint": 2}, count=25)
    client(world, "a", "client 2", verbs={**WRITING, "restore": 1}, count=15)
    operator(world, "fate", world.rng.choice((stop("n1"), migrate("a"), kill("n2"))))


def names_that_move(world: FleetWorld) -> None:
    """Names get other timelines and tenants, while clients write that have looked them up long before."""
    begin(world, "a")
    control(world, "control 1")
    control(world, "control 2")
    node(world, "n1")
    node(world, "n2")
    verbs = {"append": 8, "branch": 2, "restore": 5, "delete": 2, "checkpoint": 3, "get": 2, "linger": 3}
    client(world, "a", "client 1", verbs=verbs, count=12)
    client(world, "a", "client 2", verbs={"append": 8, "linger": 8, "restore": 1}, count=15)
    named_client(world, "a", "client 3", count=12)
    operator(world, "operator", create_again("a", count=3), pause_s=3.0)
    operator(world, "fate", world.rng.choice((stop_control(), stop("n1"))), pause_s=2.0)


def deeper_branches(world: FleetWorld) -> None:
    """Branches of branches, whose parents are deleted and collected below them."""
    begin(world, "a")
    control(world)
    node(world, "n1")
    node(world, "n2")
    verbs = {"append": 9, "branch deeper": 5, "delete parent": 4, "get": 2, "scan": 3, "checkpoint": 3, "compact": 2}
    client(world, "a", "client 1", verbs={**verbs, "detach": 1, "linger": 3}, count=45)
    client(world, "a", "client 2", verbs={**USING, "compact": 2}, count=12)
    operator(world, "fate", world.rng.choice((stop("n1"), migrate("a"), kill("n1"))), pause_s=2.0)


def pins_and_cutoff(world: FleetWorld) -> None:
    """Pins with and without a lifetime are taken while the cutoff moves and what died is collected."""
    begin(world, "a")
    control(world, "control 1")
    control(world, "control 2")
    node(world, "n1")
    node(world, "n2")
    verbs = {"append": 9, "pin": 4, "lease": 4, "delete": 1, "get": 4, "scan": 2, "set policy": 2, "checkpoint": 3}
    client(world, "a", "client 1", verbs={**verbs, "linger": 2}, count=35)
    client(world, "a", "client 2", verbs={**WRITING, "compact": 5}, count=20)
    operator(world, "fate", stop_control(), world.rng.choice((stop("n1"), migrate("a"))))


def tenants_created_again(world: FleetWorld) -> None:
    """Tenants are deleted and created again under their names, while nodes and collectors stand still."""
    begin(world, "a", "b")
    control(world, "control 1")
    control(world, "control 2")
    node(world, "n1")
    node(world, "n2")
    client(world, "a", "client a", verbs={**BRANCHING, "checkpoint": 2})
    client(world, "b", "client b", count=12)
    operator(world, "operator", create_again("a", verbs=BRANCHING), create_again("a"))
    operator(world, "fate", stop_control(seconds=6.0), stop("n1"), stop_control(), pause_s=2.0)


def power(world: FleetWorld) -> None:
    """The power of all machines fails once; disks and bucket keep what was durable, and everything starts again."""

    def start(life: str) -> None:
        control(world, f"control{life}")
        node(world, "n1", forgets=0, process=f"n1{life}")
        node(world, "n2", forgets=0, process=f"n2{life}")
        client(world, "a", f"client 1{life}", verbs={**WRITING, "branch": 1, "compact": 2})
        client(world, "a", f"client 2{life}", verbs=BRANCHING, count=12)

    begin(world, "a")
    start("")
    world.power_lost_at = world.rng.randrange(200, 2_000)

    def revive() -> None:
        world.lose_local_power()
        start(" again")

    world.revive = revive


def controls_in_turn(world: FleetWorld) -> None:
    """Three control planes decide at once, and each stands still or dies; nodes die and tenants move meanwhile."""
    begin(world, "a", "b")
    for number in range(3):
        control(world, f"control {number}", lives=3)
    node(world, "n1")
    node(world, "n2")
    node(world, "n3")
    client(world, "a", "client a", verbs=WRITING, count=25)
    client(world, "b", "client b", count=12)
    operator(world, "fate", stop_control(), stop_control(), stop_control())
    operator(world, "operator", migrate("a"), kill("n1"), migrate("b"), drain("n2"))


def reader_far_behind(world: FleetWorld) -> None:
    """A node that follows a tenant stands still while others commit and the log is pruned, and is asked again."""
    begin(world, "a")
    control(world)
    node(world, "n1")
    node(world, "n2")
    node(world, "n3")
    client(world, "a", "client 1", verbs={**WRITING, "checkpoint": 4, "compact": 2}, count=35)
    client(world, "a", "client 2", verbs={"append": 4, "read anywhere": 8, "linger": 4}, count=25)
    steps = [step for name in world.node_names for step in (attach_reader("a"), stop(name, seconds=3.0))]
    operator(world, "operator", *steps, pause_s=0.4)


SCENARIOS: Final[dict[str, Callable[[FleetWorld], None]]] = {
    scenario.__name__: scenario
    for scenario in (
        failover,
        zombies,
        relocation,
        branches_and_collection,
        control_twice,
        restarts,
        decommissioning,
        log_loss,
        readers,
        control_sleeps,
        restores,
        names_that_move,
        deeper_branches,
        pins_and_cutoff,
        tenants_created_again,
        power,
        controls_in_turn,
        reader_far_behind,
    )
}

SIMULATION: Final = Simulation(
    "fleet",
    SCENARIOS,
    (GENTLE, CALM, STORMY),
    lambda seed, faults, scenario: JudgedFleet(seed, faults=faults),
)
