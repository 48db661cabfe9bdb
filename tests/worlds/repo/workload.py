"""Lanes: writers on real repositories that know at every moment what must be there, through crashes and lost replies.

Owns: what a lane does and what it witnesses. Each lane alone writes below a prefix (or on a branch) of its own, so what
must be seen there is one dictionary, whatever all the others do. Before a step a lane writes down what the state will
be, after it whether it was acknowledged, in a file that outlives its process; so whoever comes after a killed process
knows that the state is the one before or the one after, and nothing else. As a program it is one owner of a storage
with eight lanes: ``python -m worlds.repo.workload URL FOLDER SEED SECONDS STORAGE_OPTIONS``.

Does not know: whether it speaks with a library or a server (`Way`), or who is killed when.
"""

from __future__ import annotations

import json
import os
import random
import sys
import threading
import traceback
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any, Final, NamedTuple

from lakebed.clock import SystemClock
from lakebed.repo.opening import open_repositories
from lakebed.repo.staging.cleanup import clean_once
from worlds.repo.client import (
    EAGER,
    EVERYTHING,
    Library,
    Refused,
    State,
    Unclear,
    Way,
    Wrong,
    body_of,
    checksum_of,
    told,
)

__all__ = [
    "LIBRARY_LANES",
    "BranchLane",
    "Gardener",
    "Lane",
    "MainLane",
    "Move",
    "NameLane",
    "blow",
    "lanes_of",
    "run_lanes",
]

_CLOCK: Final = SystemClock()
_PATIENCE_S: Final = 60.0
_LOST_RACES: Final = {"branch_moved", "upload_expired", "unexpected_value"}


class Move(NamedTuple):
    """A step: what it is called, what will be, how it is made, and which refusals are no wrong."""

    name: str
    after: State
    make: Callable[[], None]
    refusals: set[str]


class Lane:
    """A writer and its witness.

    Args:
        way: to the repository.
        said: folder of witnesses.
        name: of the lane; its file, and the prefix of everything that it writes.
        seed: of what it does.
    """

    references: tuple[str, ...] = ()
    """Where its state is seen."""

    def __init__(self, way: Way, said: Path, name: str, seed: int) -> None:
        self.way = way
        self.name = name
        self.prefix = f"{name}/"
        self.rng = random.Random(f"{name} {seed}")
        self._file = said / f"lane.{name}"
        self.state: State = {one: {} for one in self.references}
        self.number = 0
        self.counts: dict[str, int] = {}
        self.patience_s = _PATIENCE_S
        self._open: tuple[str, State] | None = None
        self._load()

    def _load(self) -> None:
        for line in self._file.read_text().splitlines() if self._file.exists() else ():
            said = json.loads(line)
            self.number = said["n"]
            if "want" in said:
                self._open = (said["move"], said["want"])
            else:
                self._open = None
                self.state = said["is"]

    def _say(self, **facts: Any) -> None:
        """Where no death of this process can take it away."""
        descriptor = os.open(self._file, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        try:
            os.write(descriptor, json.dumps({"n": self.number, **facts}).encode() + b"\n")
        finally:
            os.close(descriptor)

    # ---- to be said by each kind of lane

    def prepare(self) -> None:
        """Make what the lane stands on, if it is not there."""

    def observe(self) -> State:
        """What is there."""
        return {one: self.way.show(one, self.prefix) for one in self.references}

    def next_move(self) -> Move:
        """What to do now."""
        raise NotImplementedError

    # ---- a step

    def step(self) -> None:
        """Make a move, and learn what became of it; sometimes look at everything. Raises `Wrong`."""
        self.number += 1
        move = self.next_move()
        self._say(move=move.name, want=move.after)
        try:
            move.make()
        except Refused as error:
            if error.args[0] not in move.refusals:
                raise Wrong(f"{self.name}: {move.name} was refused: {error}") from error
            self._settled(f"{move.name} refused", self.state)
        except Unclear:
            self._open = (move.name, move.after)
            self.settle()
        else:
            self._settled(move.name, move.after)
            if self.rng.random() < 0.3:
                self.check()

    def settle(self) -> None:
        """After a move without a clear end: what there is must be the state before it or after it."""
        if self._open is None:
            return
        name, after = self._open
        seen = self._patiently(self.observe)
        if seen not in (self.state, after):
            raise Wrong(f"{self.name}: after an unclear {name}: {difference(seen, self.state, after)}")
        self._settled(f"{name} unclear", after if seen == after else self.state)

    def _settled(self, what: str, state: State) -> None:
        self.state = state
        self._open = None
        self._say(**{"is": state})
        self.counts[what] = self.counts.get(what, 0) + 1

    def check(self, *, bodies: bool = False) -> None:
        """Everything that must be there is there, and nothing else. Raises `Wrong`."""
        seen = self._patiently(self.observe)
        if seen != self.state:
            raise Wrong(f"{self.name}: {difference(seen, self.state)}")
        for one in self.references if bodies else ():
            read = self._patiently(partial(self.way.show, one, self.prefix, bodies=True))
            if read != self.state[one]:
                raise Wrong(f"{self.name}: bytes at {one}: {difference({one: read}, {one: self.state[one]})}")

    def _patiently(self, look: Callable[[], Any]) -> Any:
        """A read that is tried until somebody answers."""
        since_s = _CLOCK.monotonic_s()
        while True:
            try:
                return look()
            except Unclear:
                if _CLOCK.monotonic_s() - since_s > self.patience_s:
                    raise
            _CLOCK.sleep(0.05)

    # ---- words for moves

    def _paths(self, count: int) -> list[str]:
        return [f"{self.prefix}{self.rng.choice('abc')}/{self.rng.randrange(8)}" for _ in range(count)]

    def _written(self, branch: str, shown: str) -> Move:
        """A write on a branch, seen at `shown`."""
        way, before = self.way, self.state[shown]
        kinds = ("put", "put", "put", "put if absent", "put many", "delete", "delete many", "clear")
        kind = self.rng.choice([one for one in kinds if way.puts_many or one != "put many"])
        paths = self._paths(1 if kind in ("put", "put if absent", "delete") else 4)
        bodies = {path: body_of(path, self.number) for path in paths}
        refusals = set(_LOST_RACES)
        make: Callable[[], None]
        if kind.startswith("put"):
            after = {**before, **{path: checksum_of(body) for path, body in bodies.items()}}
            (path, body) = next(iter(bodies.items()))
            if kind == "put many":
                make = lambda: way.put_many(branch, bodies)  # noqa: E731
            elif kind == "put":
                make = lambda: way.put(branch, path, body)  # noqa: E731
            else:
                make = lambda: way.put(branch, path, body, only_if_absent=True)  # noqa: E731
                if path in before:
                    after, refusals = before, refusals | {"path_exists", "precondition_failed"}
                    make = lambda: refused(lambda: way.put(branch, path, body, only_if_absent=True))  # noqa: E731
        elif kind == "clear":
            below = f"{self.prefix}{self.rng.choice('abc')}/"
            after = {path: sum_ for path, sum_ in before.items() if not path.startswith(below)}
            make = lambda: way.clear(branch, below)  # noqa: E731
        else:
            after = {path: sum_ for path, sum_ in before.items() if path not in paths}
            make = lambda: way.delete(branch, paths)  # noqa: E731
        return Move(kind, {**self.state, shown: after}, make, refusals)


def refused(call: Callable[[], None]) -> None:
    """Make a call that must be refused. Raises `Wrong` when it succeeds."""
    call()
    raise Wrong("a conditional put replaced what was there")


def difference(seen: State, *wanted: State) -> str:
    """What differs, in a line."""
    words = []
    for want in wanted:
        for ref in seen.keys() | want.keys():
            here, there = seen.get(ref, {}), want.get(ref, {})
            lost = sorted(there.keys() - here.keys())[:5]
            more = sorted(here.keys() - there.keys())[:5]
            other = sorted(path for path in here.keys() & there.keys() if here[path] != there[path])[:5]
            if lost or more or other:
                words.append(f"at {ref} lost {lost}, invented {more}, other {other}")
    return "; or ".join(words)


class MainLane(Lane):
    """Writes below its prefix on the default branch, which others write, commit and compact too."""

    references = ("main",)

    def next_move(self) -> Move:
        """Write, or commit the branch: then the commit holds exactly what this lane has written."""
        if self.rng.random() < 0.8:
            return self._written("main", "main")
        return Move("commit", self.state, self._commit, {*_LOST_RACES, "no_changes"})

    def _commit(self) -> None:
        id = self.way.commit("main", f"{self.name} {self.number}")
        held = self._patiently(lambda: self.way.show(id, self.prefix))
        if held != self.state["main"]:
            raise Wrong(f"{self.name}: commit {id}: {difference({'main': held}, self.state)}")


class BranchLane(Lane):
    """Has a branch of its own, which it writes, commits, resets, reverts, and merges into a common trunk."""

    trunk: Final = "trunk"

    def __init__(self, way: Way, said: Path, name: str, seed: int) -> None:
        self.branch = f"b-{name}"
        self.references = (self.branch, f"{self.branch}@", self.trunk)
        self._before: tuple[str, dict[str, str]] | None = None
        super().__init__(way, said, name, seed)

    def prepare(self) -> None:
        """Make its branch, and the trunk."""
        for one in (self.trunk, self.branch):
            try:
                self._patiently(partial(self.way.create_branch, one, "main~0"))
            except Refused as error:
                if error.args[0] != "branch_exists":
                    raise

    def next_move(self) -> Move:
        """Mostly write."""
        branch, head = self.branch, f"{self.branch}@"
        shown, committed = self.state[branch], self.state[head]
        is_clean = shown == committed
        kinds = ["write"] * 8 + ["commit"] * 3 + ["reset", "reset prefix", "hard reset"]
        kinds += ["merge"] * 3 + (["revert"] if is_clean and self._before else [])
        kind = self.rng.choice(kinds)
        lost = set(_LOST_RACES)
        if kind == "write":
            return self._written(branch, branch)
        if kind == "commit":
            refusals = lost | {"no_changes"} if is_clean else lost
            return Move(kind, {**self.state, head: shown}, self._commit, refusals)
        if kind == "merge":
            refusals = lost | {"no_changes", "commit_expired"}
            after = {**self.state, self.trunk: committed}
            return Move(kind, after, lambda: self.way.merge(branch, self.trunk), refusals)
        if kind == "revert":
            assert self._before is not None
            id, before = self._before
            self._before = None
            after = {**self.state, branch: before, head: before}
            return Move(kind, after, lambda: self.way.revert(branch, id), lost | {"no_changes", "commit_expired"})
        if kind == "reset prefix":
            below = f"{self.prefix}{self.rng.choice('abc')}/"
            kept = {path: sum_ for path, sum_ in shown.items() if not path.startswith(below)}
            back = {path: sum_ for path, sum_ in committed.items() if path.startswith(below)}
            after = {**self.state, branch: {**kept, **back}}
            return Move(kind, after, lambda: self.way.reset(branch, prefix=below), lost)
        make: Callable[[], None] = lambda: self.way.reset(branch, hard=kind == "hard reset")  # noqa: E731
        return Move(kind, {**self.state, branch: committed}, make, lost)

    def _commit(self) -> None:
        before = self.state[f"{self.branch}@"]
        self._before = None
        self._before = (self.way.commit(self.branch, f"{self.name} {self.number}"), before)


class NameLane(Lane):
    """Makes and deletes tags and branches; what a tag holds never changes, and is never collected."""

    references = ("tag", "branch")

    def observe(self) -> State:
        """Commits by name."""
        return {kind: self.way.names(kind, f"{self.name}-") for kind in self.references}

    def check(self, *, bodies: bool = False) -> None:
        """Also read everything that a tag holds."""
        super().check()
        for name in sorted(self.state["tag"])[:: 1 if bodies else 4]:
            paths = sorted(self._patiently(partial(self.way.show, name, "")))
            # Folder by folder, one of them where time is short: a server may not live long enough for all of them.
            folders = sorted({path.rpartition("/")[0] + "/" for path in paths})
            for folder in folders if bodies or not folders else [self.rng.choice(folders)]:
                found = self._patiently(partial(self.way.show, name, folder))
                read = self._patiently(partial(self.way.show, name, folder, bodies=True))
                if found != read:
                    raise Wrong(f"{self.name}: tag {name}: {difference({name: read}, {name: found})}")

    def next_move(self) -> Move:
        """Make or delete one."""
        kind = self.rng.choice(self.references)
        there = self.state[kind]
        if there and self.rng.random() < len(there) / 12:
            name = self.rng.choice(sorted(there))
            delete = self.way.delete_tag if kind == "tag" else self.way.delete_branch
            after = {one: id for one, id in there.items() if one != name}
            return Move(f"delete {kind}", {**self.state, kind: after}, lambda: delete(name), set(_LOST_RACES))
        name, id = f"{self.name}-{self.number}", self._patiently(lambda: self.way.head("main"))
        create = self.way.create_tag if kind == "tag" else self.way.create_branch
        after = {**there, name: id}
        refusals = {*_LOST_RACES, "commit_expired"}
        return Move(f"create {kind}", {**self.state, kind: after}, lambda: create(name, id), refusals)


class Gardener(Lane):
    """Compacts, collects, cleans and changes the rules of retention; nobody must notice."""

    references = ()

    def __init__(self, way: Library, said: Path, name: str, seed: int) -> None:
        super().__init__(way, said, name, seed)
        self._repository = way.repository

    def next_move(self) -> Move:
        """One step of any of them."""
        repository = self._repository
        branches = [one.name for one in repository.branches()]
        branch = self.rng.choice(branches)

        def collect() -> None:
            report = repository.collect_garbage(EVERYTHING)
            bad = [one for one in report.warnings if "older than the rules" not in one]
            if bad:
                raise Wrong(f"a collection: {bad}")

        kinds: dict[str, Callable[[], object]] = {
            "compact": lambda: repository.branch(branch).compact(),
            "collect": collect,
            "clean": lambda: clean_once(repository.context),
            "expire": lambda: repository.set_retention(default_days=0),
            "keep": repository.delete_retention,
        }
        kind = self.rng.choice([*kinds, "collect", "compact"])

        def make() -> None:
            with told():
                kinds[kind]()

        return Move(kind, {}, make, {*_LOST_RACES, "branch_not_found"})


def lanes_of(way: Way, said: Path, seed: int, *, names: Mapping[str, type[Lane]]) -> list[Lane]:
    """Lanes by name, prepared and settled."""
    lanes = [kind(way, said, name, seed) for name, kind in names.items()]
    for lane in lanes:
        lane.prepare()
        lane.settle()
        lane.check()
    return lanes


def run_lanes(lanes: list[Lane], *, stop: threading.Event) -> list[str]:
    """Run lanes in threads until told to stop, or one meets a wrong; what was wrong."""
    wrongs: list[str] = []

    def run(lane: Lane) -> None:
        try:
            while not stop.is_set():
                lane.step()
        except BaseException as error:
            wrongs.append(f"{lane.name}: " + "".join(traceback.format_exception(error))[-6_000:])
            stop.set()

    threads = [threading.Thread(target=run, args=(lane,), name=lane.name) for lane in lanes]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return wrongs


LIBRARY_LANES: Final[Mapping[str, type[Lane]]] = {
    "m0": MainLane,
    "m1": MainLane,
    "m2": MainLane,
    "p0": BranchLane,
    "p1": BranchLane,
    "p2": BranchLane,
    "names": NameLane,
    "gardener": Gardener,
}


def blow(url: str, said: Path, seed: int, *, seconds: float, storage_options: Mapping[str, str] | None = None) -> None:
    """Be one owner with eight threads; say at the end what went wrong. Whoever wants may kill it any time."""
    with open_repositories(url, options=EAGER, take_over=True, storage_options=storage_options) as home:
        repository = home.repository("storm") if home.exists("storm") else home.create("storm")
        lanes = lanes_of(Library(repository), said, seed, names=LIBRARY_LANES)
        stop = threading.Event()
        timer = threading.Timer(seconds, stop.set)
        timer.start()
        sys.stdout.write("ready\n")
        sys.stdout.flush()
        wrongs = run_lanes(lanes, stop=stop)
        timer.cancel()
        if home.last_failure is not None:
            wrongs.append(f"the background: {home.last_failure!r}")
        (said / f"report.{os.getpid()}").write_text(json.dumps({lane.name: lane.counts for lane in lanes}))
    if wrongs:
        (said / f"wrongs.{os.getpid()}").write_text("\n".join(wrongs))
        sys.exit(1)


if __name__ == "__main__":
    blow(
        sys.argv[1],
        Path(sys.argv[2]),
        int(sys.argv[3]),
        seconds=float(sys.argv[4]),
        storage_options=json.loads(sys.argv[5]) or None,
    )
