"""The processes of a simulated fleet: control planes, nodes, clients, operators, and what befalls them.

Owns: one function for each kind of process, which spawns it. Invariants: what a client is told is judged by the oracle
at once; errors that are part of life end nothing but that one call.
"""

from __future__ import annotations

import random
import uuid
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Final

from msgspec.structs import replace

from lakebed.errors import AlreadyExists, Conflict, LakebedError, OutcomeUnknown, Unavailable
from lakebed.fleet.layout import by_id, log_key
from lakebed.fleet.log.port import rows_of
from lakebed.fleet.model import MAIN, Policy
from lakebed.fleet.ports import Route, TimelineChange
from worlds.fleet.oracle import Appended
from worlds.fleet.world import POLICY, FleetWorld
from worlds.promise import PromiseBroken

TICK_S: Final = 0.1
IDLE_S: Final = 0.05
HEARTBEAT_S: Final = 0.5
TRIES_MAX: Final = 12


def begin(world: FleetWorld, *tenants: str, policy: Policy = POLICY) -> None:
    """Have tenants before the first process starts, not attached anywhere."""
    plane = world.make_control()
    for tenant in tenants:
        world.tenants.append(tenant)
        world.timelines[log_key(tenant, MAIN)] = None
        plane.create_tenant(tenant, policy)


# ---- control planes and nodes


def control(world: FleetWorld, name: str = "control", *, lives: int = 2) -> None:
    """A control plane that ticks as long as someone works."""

    def live(process: str, rng: random.Random) -> None:
        actor = world.scheduler.current
        assert actor is not None
        world.mains[process] = actor
        plane = world.make_control()
        world.controls[process] = plane
        while world.working:
            world.expecting(plane.tick_once)
            world.environment.clock.sleep(TICK_S)

    world.process(name, live, lives=lives)


def node(world: FleetWorld, name: str, *, lives: int = 2, forgets: float = 0.2, process: str = "") -> None:
    """A node that works as long as someone does; each life may find its local state lost."""
    if name not in world.node_names:
        world.node_names.append(name)

    def live(process: str, rng: random.Random) -> None:
        actor = world.scheduler.current
        assert actor is not None
        run_node(world, name, process, keeps_local=rng.random() >= forgets)

    world.process(process or name, live, lives=lives)


def run_node(world: FleetWorld, name: str, process: str, *, keeps_local: bool) -> None:
    """The life of one process of a node."""
    actor = world.scheduler.current
    assert actor is not None
    made = world.make_node(name, process, keeps_local=keeps_local)
    try:
        made.start()
    except Conflict as error:
        world.counts[f"not started: {error.kind}"] += 1
        return
    world.mains[process] = actor
    world.node_processes[name] = process
    world.nodes[process] = made
    world.counts["node lives"] += 1

    def beat() -> None:
        while world.working:
            try:
                made.heartbeat_once()
            except Conflict as error:
                world.met(error)
            world.environment.clock.sleep(HEARTBEAT_S)

    world.scheduler.spawn(f"{process} heart", beat, process=process)
    while world.working:
        if not made.work_once():
            world.environment.clock.sleep(IDLE_S)


# ---- clients


class Client:
    """One client of one tenant.

    Args:
        world: where it lives.
        tenant: what it works on.
        rng: its own randomness.
        verbs: what it does.
    """

    def __init__(self, world: FleetWorld, tenant: str, rng: random.Random, *, verbs: Collection[str]) -> None:
        self.world = world
        self.verbs = verbs
        self.tenant = tenant
        self.rng = rng
        self.log = world.log()
        self.control = world.control()
        self.main = world.main_of(tenant)
        self.life = world.monitor.lives[tenant]
        """Which tenant of the name it is a client of."""
        self.known: dict[str, int] = {self.main: 0}
        """Timelines, by id, with the last LSN that it knows of."""
        self.names: dict[str, str] = {self.main: MAIN}
        self.read_only: set[str] = set()

    def pick(self, *, writable: bool = False) -> str:
        """Any timeline."""
        ids = [item for item in self.known if not (writable and item in self.read_only)]
        return self.rng.choice(ids)

    def append(self) -> None:
        """Append rows; ask again with the same write id until there is an answer, or give up."""
        id = self.pick(writable=True)
        timeline = log_key(self.tenant, id)
        keys = self.rng.sample(self.world.keys, self.rng.choice((1, 1, 2, 3)))
        number = next(self.world.numbers)
        values = [None if self.rng.random() < 0.15 else b"%s=%d" % (key, number) for key in keys]
        write_id = str(uuid.UUID(int=self.rng.getrandbits(128), version=4))
        expected = self.known[id] if self.rng.random() < 0.1 else None
        closed = frozenset(self.world.closed)
        for _ in range(TRIES_MAX):
            try:
                last = self.log.append(timeline, rows_of(keys, values), write_id=write_id, expected=expected)
            except (OutcomeUnknown, Unavailable):
                self.world.environment.clock.sleep(0.05)
                continue
            self.world.acknowledge(timeline, last, list(map(Appended, keys, values)), closed=closed)
            self.known[id] = last
            self.world.counts["appends"] += 1
            return
        self.world.counts["appends given up"] += 1

    def _route(self) -> Route:
        route = self.control.route(self.tenant)
        self.world.tell_names(self.tenant, route.names)
        if route.node is None:
            raise Unavailable("the tenant is nowhere", kind="not_attached")
        return route

    def get(self) -> None:
        """Read one key, at the newest LSN or an older one; the answer sees what this client wrote."""
        id = self.pick()
        timeline, key = log_key(self.tenant, id), self.rng.choice(self.world.keys)
        port = self.world.node(self._route().node or "")
        if self.rng.random() < 0.4 and self.known[id]:
            lsn = max(0, self.known[id] - self.rng.randrange(6))
            value = port.get(self.tenant, by_id(id), key, lsn=lsn)
            if value.lsn != lsn:
                raise PromiseBroken(f"I10: asked at {lsn} and answered at {value.lsn}")
        else:
            value = port.get(self.tenant, by_id(id), key, at_least=self.known[id])
            if value.lsn < self.known[id]:
                raise PromiseBroken(f"I10: asked at least at {self.known[id]} and answered at {value.lsn}")
        self.world.oracle.check_value(timeline, key, value.lsn, value.value, what="get")
        self.world.counts["reads"] += 1

    def read_anywhere(self) -> None:
        """Read at any node that has the tenant, also one that only follows it."""
        port = self.world.node(self.rng.choice(self.world.node_names))
        key = self.rng.choice(self.world.keys)
        value = port.get(self.tenant, by_id(self.main), key)
        self.world.oracle.check_value(log_key(self.tenant, self.main), key, value.lsn, value.value, what="get anywhere")
        self.world.counts["reads anywhere"] += 1

    def scan(self) -> None:
        """Read everything at one LSN."""
        id = self.pick()
        port = self.world.node(self._route().node or "")
        batches = list(port.scan(self.tenant, by_id(id), at_least=self.known[id]))
        metadata = batches[0].schema.metadata or {}
        lsn = int(metadata[b"lsn"])
        rows = {key: value for batch in batches for key, value in zip(*map(_listed, batch.columns), strict=True)}
        self.world.oracle.check(log_key(self.tenant, id), lsn, rows, what="scan")
        self.world.counts["scans"] += 1

    def change(self, change: TimelineChange) -> bool:
        """Change the set of timelines; the same request until there is an answer, or give up."""
        asked_ms = self.world.now_ms()
        for _ in range(TRIES_MAX):
            try:
                messages = self.control.change_timeline(self.tenant, change)
            except (OutcomeUnknown, Unavailable):
                self.world.environment.clock.sleep(0.1)
                continue
            self.world.counts[change.kind] += 1
            if change.kind in ("restore", "delete") and change.id:
                self.world.tell_change(log_key(self.tenant, change.id), is_deleted=change.kind == "delete")
            if change.kind in ("branch", "pin", "restore"):
                self._told(change, messages.id, messages.branch_lsn, asked_ms)
            return True
        self.world.counts[f"{change.kind} given up"] += 1
        return False

    def _told(self, change: TimelineChange, id: str, branch_lsn: int, asked_ms: int) -> None:
        """I6: it was acknowledged."""
        world = self.world
        if world.monitor.lives[self.tenant] != self.life or self.tenant not in world.monitor.records:
            return  # the tenant that was told of is deleted
        if id != change.id or (change.lsn is not None and branch_lsn != change.lsn):
            raise PromiseBroken(f"{change} was answered by {id} at {branch_lsn}")
        known = world.oracle.parents.get(log_key(self.tenant, id))
        if known is None or known[1] != branch_lsn:
            raise PromiseBroken(f"I6: {change} was acknowledged, and no manifest has had it at {branch_lsn}: {known}")
        record = world.monitor.records[self.tenant]
        if id not in record.timelines:
            raise PromiseBroken(f"I6: {change} was acknowledged, and the last committed manifest does not have it")
        if change.kept_as and change.kept_as not in record.names:
            raise PromiseBroken(f"I6: {change} was acknowledged, and what it replaces is not kept: {record.names}")
        expires_ms = None if change.lifetime_ms is None else asked_ms + change.lifetime_ms
        world.monitor.promised.setdefault(self.tenant, {})[id] = (change.name, expires_ms)
        self.known[id], self.names[id] = branch_lsn, change.name
        if change.kind == "pin":
            self.read_only.add(id)

    def _new(self, parent: str) -> tuple[str, int | None]:
        """The id of a timeline that will be made, and the LSN at which: the newest committed one or a little before."""
        id = f"t{next(self.world.numbers)}"
        self.world.timelines[log_key(self.tenant, id)] = None
        return id, max(0, self.known[parent] - self.rng.randrange(8)) if self.rng.random() < 0.6 else None

    def branch(self, kind: str = "branch", *, parent: str | None = None, lifetime_ms: int | None = None) -> None:
        """Branch or pin a timeline."""
        parent = parent or self.pick()
        id, lsn = self._new(parent)
        self.change(TimelineChange(kind, f"{kind}-{id}", id=id, parent=by_id(parent), lsn=lsn, lifetime_ms=lifetime_ms))

    def branch_deeper(self) -> None:
        """Branch what was branched last, so that branches have branches."""
        self.branch(parent=next(reversed(self.known)))

    def lease(self) -> None:
        """Pin a timeline for a while."""
        self.branch("pin", lifetime_ms=500 + self.rng.randrange(6_000))

    def restore(self) -> None:
        """Restore a timeline to an earlier LSN; what it was is kept under another name."""
        parent = self.pick(writable=True)
        id, lsn = self._new(parent)
        name = self.names[parent]
        asked = TimelineChange("restore", name, id=id, parent=by_id(parent), lsn=lsn, kept_as=f"kept-{id}")
        if self.change(asked) and id in self.known:
            self.names[parent] = asked.kept_as

    def delete_parent(self) -> None:
        """Delete a timeline that others were branched from, if there is one."""
        parents = {parent for parent, _ in self.world.oracle.parents.values()}
        ids = [id for id in self.known if id != self.main and log_key(self.tenant, id) in parents]
        if ids:
            self.delete(ids)

    def set_policy(self) -> None:
        """Keep fewer or more states, so that the cutoff moves at another pace."""
        self.control.set_policy(self.tenant, replace(POLICY, retain_rows=self.rng.choice((0, 0, 2, 8))))
        self.world.counts["policies"] += 1

    def delete(self, among: Sequence[str] | None = None) -> None:
        """Delete a timeline other than the first, and than the one that has its name after a restore."""
        ids = [item for item in among or self.known if item != self.main and self.names[item] != MAIN]
        if not ids:
            return
        id = self.rng.choice(ids)
        self.world.monitor.promised.get(self.tenant, {}).pop(id, None)
        name = self.names[id]
        del self.known[id], self.names[id]
        self.change(TimelineChange("delete", name, id=self._id_or_name(id, name)))

    def detach(self) -> None:
        """Make a branch independent of its parent."""
        ids = [item for item in self.known if item != self.main and item not in self.read_only]
        if ids:
            id = self.rng.choice(ids)
            self.change(TimelineChange("detach", self.names[id], id=self._id_or_name(id, self.names[id])))

    def _id_or_name(self, id: str, name: str) -> str:
        """The id, or as chance has it none, where no restore of another client can have moved the name."""
        return self.rng.choice((id, "")) if name.endswith(f"-{id}") and "restore" not in self.verbs else id

    def checkpoint(self) -> None:
        """Flush and commit."""
        self.world.node(self._route().node or "").checkpoint(self.tenant)
        self.world.counts["checkpoints"] += 1

    def compact(self) -> None:
        """Merge all files of a timeline."""
        self.world.node(self._route().node or "").compact(self.tenant, by_id(self.pick(writable=True)))

    def linger(self) -> None:
        """Let time pass."""
        self.world.environment.clock.sleep(self.rng.random() * 0.8)


def _listed(column: object) -> list[bytes]:
    listed: list[bytes] = column.to_pylist()  # type: ignore[attr-defined]
    return listed


ACTIONS: Final[dict[str, Callable[[Client], None]]] = {
    "append": Client.append,
    "get": Client.get,
    "scan": Client.scan,
    "read anywhere": Client.read_anywhere,
    "branch": lambda client: client.branch(),
    "pin": lambda client: client.branch("pin"),
    "branch deeper": Client.branch_deeper,
    "lease": Client.lease,
    "restore": Client.restore,
    "set policy": Client.set_policy,
    "delete": lambda client: client.delete(),
    "delete parent": Client.delete_parent,
    "detach": Client.detach,
    "checkpoint": Client.checkpoint,
    "compact": Client.compact,
    "linger": Client.linger,
}

USING: Final = {"append": 8, "get": 4, "scan": 2, "linger": 3, "checkpoint": 1}


def client(world: FleetWorld, tenant: str, name: str, *, verbs: Mapping[str, int] = USING, count: int = 20) -> None:
    """A client that does one thing after another."""

    def work(rng: random.Random) -> None:
        use(world, tenant, rng, verbs=verbs, count=count)

    worker(world, name, work)


def use(world: FleetWorld, tenant: str, rng: random.Random, *, verbs: Mapping[str, int], count: int) -> None:
    """What a client does, in the process that calls."""
    using = Client(world, tenant, rng, verbs=verbs)
    for _ in range(count):
        verb = rng.choices(list(verbs), list(verbs.values()))[0]
        world.expecting(lambda verb=verb: ACTIONS[verb](using))  # type: ignore[misc]


def named_client(world: FleetWorld, tenant: str, name: str, *, count: int = 20) -> None:
    """A client as users have it: it writes to the name, with a route that it keeps as long as it may."""

    def work(rng: random.Random) -> None:
        main = world.tenant(tenant).main

        def put() -> None:
            key, value = rng.choice(world.keys), b"named %d" % next(world.numbers)
            closed = frozenset(world.closed)
            lsn = main.put(key, value)
            timeline = log_key(tenant, main.known_id or "")
            world.acknowledge(timeline, lsn, [Appended(key, value)], closed=closed)
            world.counts["appends by name"] += 1
            main.get(key)

        for _ in range(count):
            world.environment.clock.sleep(rng.random() * 0.6)
            world.expecting(put)

    worker(world, name, work)


def worker(world: FleetWorld, name: str, work: Callable[[random.Random], None]) -> None:
    """A process that does something and ends; the fleet runs as long as one works."""
    world.working += 1

    def live(process: str, rng: random.Random) -> None:
        try:
            work(rng)
        finally:
            world.working -= 1

    world.process(name, live)


# ---- operators, and what befalls processes


Deed = Callable[[FleetWorld, random.Random], None]


def operator(world: FleetWorld, name: str, *steps: Deed, pause_s: float = 1.0) -> None:
    """Someone who takes steps with pauses."""

    def work(rng: random.Random) -> None:
        for step in steps:
            world.environment.clock.sleep(rng.random() * 2 * pause_s)
            world.expecting(lambda step=step: step(world, rng))  # type: ignore[misc]

    worker(world, name, work)


def stand_still(world: FleetWorld, process: str, seconds: float) -> None:
    """Stop a process for a while; it goes on even if who stopped it crashes."""
    world.freeze(process)
    try:
        world.environment.clock.sleep(seconds)
    finally:
        world.thaw(process)


def stop(name: str, *, seconds: float = 4.0) -> Deed:
    """A node's process stands still for longer than detection takes, and goes on."""

    def step(world: FleetWorld, rng: random.Random) -> None:
        process = world.node_processes.get(name, "")
        if not world.is_alive(process):
            return
        stand_still(world, process, seconds * (0.6 + rng.random()))

    return step


def stop_control(*, seconds: float = 4.0) -> Deed:
    """A control plane's process stands still, and goes on."""

    def step(world: FleetWorld, rng: random.Random) -> None:
        running = [process for process in world.controls if world.is_alive(process)]
        if running:
            stand_still(world, rng.choice(running), seconds)

    return step


def attach_reader(tenant: str) -> Deed:
    """Let any node follow a tenant."""

    def step(world: FleetWorld, rng: random.Random) -> None:
        world.control().attach_reader(tenant, rng.choice(world.node_names))
        world.counts["readers"] += 1

    return step


def create_again(tenant: str, *, verbs: Mapping[str, int] = USING, count: int = 10) -> Deed:
    """Delete a tenant, create another one of its name as soon as that is possible, and be a client of it."""

    def is_made(world: FleetWorld) -> bool:
        try:
            world.control().create_tenant(tenant, POLICY)
        except AlreadyExists:
            return True
        return True

    def step(world: FleetWorld, rng: random.Random) -> None:
        life = world.monitor.lives[tenant]
        if _told(world, lambda: world.control().delete_tenant(tenant)):
            world.tell_end(tenant, life)
        for _ in range(200):
            if world.expecting(lambda: is_made(world)):
                world.counts["created again"] += 1
                use(world, tenant, rng, verbs=verbs, count=count)
                return
            world.environment.clock.sleep(0.2)
        world.counts["not created again"] += 1

    return step


def _told(world: FleetWorld, call: Callable[[], None]) -> bool:
    """Call until there is an answer, or give up; whether there was one."""
    for _ in range(TRIES_MAX):
        try:
            call()
        except (OutcomeUnknown, Unavailable) as error:
            world.met(error)
            world.environment.clock.sleep(0.2)
        else:
            return True
    return False


def lose_log(tenant: str) -> Deed:
    """The log of a tenant forgets what it acknowledged in some seconds, as an engine that breaks its promise."""

    def step(world: FleetWorld, rng: random.Random) -> None:
        timeline = log_key(tenant, MAIN)
        kept = world.log_rows(timeline)
        world.environment.clock.sleep(0.3 + 2 * rng.random())
        world.lose_log(timeline, kept)

    return step


def kill(name: str) -> Deed:
    """A node's process is gone."""

    def step(world: FleetWorld, rng: random.Random) -> None:
        process = world.node_processes.get(name, "")
        if world.is_alive(process):
            world.scheduler.crash(process)

    return step


def migrate(tenant: str) -> Deed:
    """Move a tenant to any node."""

    def step(world: FleetWorld, rng: random.Random) -> None:
        world.control().migrate(tenant, rng.choice(world.node_names))
        world.counts["migrations"] += 1

    return step


def drain(name: str) -> Deed:
    """Move all tenants off a node, and back after a while."""

    def step(world: FleetWorld, rng: random.Random) -> None:
        world.control().drain(name)
        world.environment.clock.sleep(2.0)
        world.control().drain(name, undo=True)
        world.counts["drains"] += 1

    return step


def decommission(name: str) -> Deed:
    """Revoke a node's credentials, and let its transactions be acknowledged for it."""

    def step(world: FleetWorld, rng: random.Random) -> None:
        world.revoked.add(name)
        for _ in range(TRIES_MAX):
            try:
                world.control().decommission(name)
            except LakebedError as error:
                world.met(error)
                world.environment.clock.sleep(0.2)
                continue
            break
        else:
            return
        world.counts["decommissions"] += 1

    return step


def second_process(name: str) -> Deed:
    """A node's process stands still, and another one of the same node is started."""

    def step(world: FleetWorld, rng: random.Random) -> None:
        old = world.node_processes.get(name, "")
        if not world.is_alive(old):
            return
        process = f"{name}.second{next(world.numbers)}"
        keeps_local = rng.random() < 0.7

        def start_second() -> None:
            world.environment.clock.sleep(rng.random())
            run_node(world, name, process, keeps_local=keeps_local)

        world.scheduler.spawn(process, start_second, process=process)
        stand_still(world, old, 4.0 * rng.random())

    return step
