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
    decommission,
    drain,
    kill,
    lose_log,
    migrate,
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
    )
}

SIMULATION: Final = Simulation(
    "fleet",
    SCENARIOS,
    (GENTLE, CALM, STORMY),
    lambda seed, faults, scenario: JudgedFleet(seed, faults=faults),
)
