"""A tenant under random calls of its clients is a dictionary of timelines, whatever becomes of nodes and replies.

Rows are written and read through handles that are kept for long; timelines are made, branched, pinned, restored,
detached and dropped; meanwhile nodes die, stop and come back, the tenant moves, the control plane starts anew, and
replies are lost. Plain Python judges: a timeline is a list of rows with their LSNs.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field

from lakebed.errors import Conflict, InvalidRequest, LakebedError, NotFound, OutcomeUnknown, Unavailable
from lakebed.fleet.model import MAIN, Policy
from lakebed.fleet.timeline import Timeline, TimelineView
from lakebed.testing import seed_count
from worlds.fleet_in_process import FleetInProcess

KEYS = [b"\x00", b"a", b"a\x00", b"b", b"m/1", b"m/2", "ü".encode(), b"\xff", b"\xff\xff", b"k" * 900]
PREFIXES = [b"", b"a", b"m/", b"\xff"]
NAMES = ["b1", "b2", "b3", "p1", "p2"]
REPLIES = ["append", "bounds", "change_timeline", "checkpoint", "get", "get_many", "route", "scan", "timelines"]
STEPS = 60


@dataclass
class Rows:
    """What a timeline holds: its rows in the order of their LSNs; those of its parents are its own."""

    rows: list[tuple[bytes, bytes | None]] = field(default_factory=list)
    takes_rows: bool = True

    @property
    def lsn(self) -> int:
        """Of the last row."""
        return len(self.rows)

    def at(self, lsn: int) -> dict[bytes, bytes]:
        """The state as of an LSN."""
        state: dict[bytes, bytes] = {}
        for key, value in self.rows[:lsn]:
            state.pop(key, None)
            if value is not None:
                state[key] = value
        return state


class Machine:
    """One history."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.fleet = FleetInProcess(nodes=self.rng.randint(2, 3), seed=seed, retry_s=60)
        self.tenant = self.fleet.tenant()
        retained = self.rng.choice([0, 5, 1000])
        self.tenant.create(policy=Policy(commit_bytes=self.rng.choice([200, 32 << 20]), retain_rows=retained))
        self.timelines = {MAIN: Rows()}
        self.handles: dict[str, Timeline] = {}
        self.views: list[tuple[TimelineView, dict[bytes, bytes]]] = []
        self.met: Counter[str] = Counter()

    def choose(self, *, takes_rows: bool = False) -> str:
        """The name of a timeline."""
        return self.rng.choice([name for name, rows in self.timelines.items() if rows.takes_rows or not takes_rows])

    def free_name(self) -> str:
        """A name that no timeline has; perhaps one that another had."""
        return self.rng.choice([name for name in [*NAMES, f"n{self.rng.random():.9f}"] if name not in self.timelines])

    def handle(self, name: str) -> Timeline:
        """A handle of a timeline: that of before, whatever has the name since, or a new one of any client."""
        if name not in self.handles or self.rng.random() < 0.4:
            client = self.rng.choice([self.tenant, self.fleet.tenant()])
            self.handles[name] = client.timeline(name)
        return self.handles[name]

    # ---- rows

    def write(self) -> None:
        """Rows are durable with the LSNs that they get, and none is written where another LSN is expected."""
        name = self.choose(takes_rows=True)
        timeline, values = self.timelines[name], [None, b"", b"1", self.rng.randbytes(300)]
        rows = [(self.rng.choice(KEYS), self.rng.choice(values)) for _ in range(self.rng.randint(1, 6))]
        expected = self.rng.choice([None, None, None, timeline.lsn, timeline.lsn + 1])
        handle = self.handle(name)
        try:
            lsn = handle.write(rows, expected=expected)
        except Conflict as refused:  # also what a handle expects of a timeline that had the name
            if refused.kind != "unexpected_lsn" or expected is None:
                raise
            return
        timeline.rows += rows
        assert lsn == timeline.lsn
        assert expected in (None, lsn - len(rows))
        assert handle.get(rows[0][0]) == timeline.at(lsn).get(rows[0][0])
        self.met["write"] += 1

    def read(self) -> None:
        """Every row of any client, by key, in a range and below a prefix."""
        name = self.choose()
        handle, state = self.handle(name), self.timelines[name].at(self.timelines[name].lsn)
        assert handle.catch_up() == self.timelines[name].lsn
        asked = self.rng.choices(KEYS, k=4)
        assert handle.get_many(asked) == [state.get(key) for key in asked]
        start, end = sorted(self.rng.sample(KEYS, 2))
        assert dict(handle.scan(start, end)) == {key: value for key, value in state.items() if start <= key < end}
        prefix = self.rng.choice(PREFIXES)
        ordered = sorted((key, value) for key, value in state.items() if key.startswith(prefix))
        assert list(handle.scan(prefix=prefix)) == ordered

    def look_back(self) -> None:
        """An older state is what it was, or is not kept; a view stays what it was when its timeline loses its name."""
        if self.views and self.rng.random() < 0.5:
            view, state = self.rng.choice(self.views)
        else:
            name = self.choose()
            lsn = self.rng.randint(max(0, self.timelines[name].lsn - 8), self.timelines[name].lsn)
            view, state = self.fleet.tenant().timeline(name).at(lsn), self.timelines[name].at(lsn)
            self.views.append((view, state))
        try:
            assert dict(view.scan()) == state
        except InvalidRequest as refused:
            if refused.kind != "below_cutoff":
                raise
            self.views.remove((view, state))
        except NotFound:
            assert any(view is known for known, _ in self.views)
            self.views.remove((view, state))

    # ---- timelines

    def make(self) -> None:
        """A timeline without rows, a branch, a pin, or a restore, which keeps what it replaces."""
        name, made = self.choose(), self.free_name()
        parent, kind = self.timelines[name], self.rng.choice(["create", "branch", "pin", "restore"])
        lsn = self.rng.randint(max(0, parent.lsn - 5), parent.lsn)
        try:
            if kind == "create":
                self.tenant.create_timeline(made)
                self.timelines[made] = Rows()
            elif kind == "restore" and parent.takes_rows:
                self.handle(name).restore(lsn, kept_as=made)
                parent.takes_rows = False
                self.timelines[made], self.timelines[name] = parent, Rows(parent.rows[:lsn])
            elif kind in ("branch", "pin"):
                call = self.handle(name).branch if kind == "branch" else self.handle(name).pin
                call(made, lsn=lsn)
                self.timelines[made] = Rows(parent.rows[:lsn], takes_rows=kind == "branch")
        except InvalidRequest as refused:
            if refused.kind != "below_cutoff":
                raise
        self.met[kind] += 1

    def end(self) -> None:
        """A timeline is dropped by its name, and only it; or a branch becomes independent of its parent."""
        name = self.choose()
        if self.rng.random() < 0.5:
            self.handle(name).detach()
        elif name != MAIN:
            self.handle(name).drop()
            del self.timelines[name]

    # ---- the fleet

    def disturb(self) -> None:
        """A node dies, stops or comes back, the tenant moves, the control plane starts anew, or time passes."""
        fleet, name = self.fleet, self.rng.choice(sorted(self.fleet.locals))
        match self.rng.randrange(6):
            case 0 if name in fleet.nodes:
                fleet.kill(name)
                fleet.start(name)
            case 1 if len(fleet.stopped) + 1 < len(fleet.nodes):
                fleet.stopped.add(name)
            case 2:
                fleet.stopped.clear()
            case 3:
                with suppress(Conflict, InvalidRequest, NotFound, Unavailable):  # it is there, on its way, or unknown
                    fleet.control.migrate(self.tenant.name, name)
            case 4:
                fleet.restart_control()
            case _:
                fleet.wait(self.rng.choice([0.1, 1, 5]))

    def lose_replies(self) -> None:
        """Of some of the calls to come."""
        for call in self.rng.sample(REPLIES, 2):
            problem: LakebedError = self.rng.choice([OutcomeUnknown("no reply"), Unavailable("no answer")])
            self.fleet.lose.setdefault(call, []).append(problem)

    def run(self) -> None:
        """Some steps; a new client finds all timelines in between, whichever node answers."""
        deeds: dict[Callable[[], None], int] = {
            self.write: 10, self.read: 4, self.look_back: 3, self.make: 4, self.end: 2, self.disturb: 5,
            self.lose_replies: 2,
        }  # fmt: skip
        for deed in self.rng.choices(list(deeds), list(deeds.values()), k=STEPS):
            deed()
            listed = {timeline.name for timeline in self.fleet.tenant().timelines()}
            assert self.timelines.keys() <= listed, deed


def test_a_tenant_is_a_dictionary_of_timelines() -> None:
    """Clients see what plain Python says, through failovers, relocations and lost replies."""
    met: Counter[str] = Counter()
    for seed in range(seed_count(12)):
        machine = Machine(seed)
        machine.run()
        met += machine.met
    assert met["write"]
