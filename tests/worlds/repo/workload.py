"""Workloads on real repositories that know at every moment what must be there, through crashes and lost replies.

Owns: what a workload does and what it expects. Each workload alone writes below a prefix (or on a branch) of its own,
so what must be seen there is one dictionary, whatever the others do. Before a step a workload records what the state
will be, after it whether it was acknowledged, in a file that outlives its process; so the process that follows a killed
one knows that the state is the one before or the one after, and nothing else. As a program it is one owner of a storage
with eight workloads: ``python -m worlds.repo.workload URL FOLDER SEED SECONDS STORAGE_OPTIONS``.

Does not know: whether it runs in process or over HTTP (`RepositoryClient`), or which process is killed when.
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
from lakebed.repo.model.options import Access
from lakebed.repo.opening import open_repositories
from lakebed.repo.staging.cleanup import clean_once
from lakebed.repo.transport.transport import context_of
from worlds.promise import PromiseBroken
from worlds.repo.client import (
    EAGER,
    EVERYTHING,
    Expected,
    LibraryClient,
    Refused,
    RepositoryClient,
    Unclear,
    body_of,
    checksum_of,
    told,
)
from worlds.waiting import pause

_CLOCK: Final = SystemClock()
_PATIENCE_S: Final = 60.0
_LOST_RACES: Final = {"branch_moved", "upload_expired", "unexpected_value"}


class Step(NamedTuple):
    """What a step is called, the state after it, how it is made, and which refusals are allowed."""

    name: str
    after: Expected
    make: Callable[[], None]
    refusals: set[str]


class Workload:
    """A writer that knows what must be there.

    Args:
        client: of the repository.
        said: folder of records.
        name: of the workload; its file, and the prefix of everything that it writes.
        seed: of what it does.
    """

    references: tuple[str, ...] = ()
    """Where its state is seen."""

    def __init__(self, client: RepositoryClient, said: Path, name: str, seed: int) -> None:
        self.client = client
        self.name = name
        self.prefix = f"{name}/"
        self.rng = random.Random(f"{name} {seed}")
        self._file = said / f"workload.{name}"
        self.state: Expected = {reference: {} for reference in self.references}
        self.number = 0
        self.counts: dict[str, int] = {}
        self.patience_s = _PATIENCE_S
        self._open: tuple[str, Expected] | None = None
        self._load()

    def _load(self) -> None:
        lines = self._file.read_bytes() if self._file.exists() else b""
        end = lines.rfind(b"\n") + 1
        if end < len(lines):
            os.truncate(self._file, end)  # a kill can end a write between two pages; what it announced was not begun
        for line in lines[:end].splitlines():
            said = json.loads(line)
            self.number = said["n"]
            if "want" in said:
                self._open = (said["step"], said["want"])
            else:
                self._open = None
                self.state = said["is"]

    def _say(self, **facts: Any) -> None:
        """Record it where it outlives this process."""
        descriptor = os.open(self._file, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        try:
            os.write(descriptor, json.dumps({"n": self.number, **facts}).encode() + b"\n")
        finally:
            os.close(descriptor)

    # ---- what each kind of workload says

    def prepare(self) -> None:
        """Create what the workload needs, if it is not there."""

    def observe(self) -> Expected:
        """What is there."""
        return {reference: self.client.show(reference, self.prefix) for reference in self.references}

    def next_step(self) -> Step:
        """What to do now."""
        raise NotImplementedError

    # ---- a step

    def step(self) -> None:
        """Make a step, and resolve its outcome; sometimes check everything. Raises `PromiseBroken`."""
        self.number += 1
        step = self.next_step()
        self._say(step=step.name, want=step.after)
        try:
            step.make()
        except Refused as error:
            if error.args[0] not in step.refusals:
                raise PromiseBroken(f"{self.name}: {step.name} was refused: {error}") from error
            self._settled(f"{step.name} refused", self.state)
        except Unclear:
            self._open = (step.name, step.after)
            self.settle()
        else:
            self._settled(step.name, step.after)
            if self.rng.random() < 0.3:
                self.check()

    def settle(self) -> None:
        """Resolve a step without a clear outcome: what there is must be the state before it or after it."""
        if self._open is None:
            return
        name, after = self._open
        seen = self._patiently(self.observe)
        if seen not in (self.state, after):
            raise PromiseBroken(f"{self.name}: after an unclear {name}: {difference(seen, self.state, after)}")
        self._settled(f"{name} unclear", after if seen == after else self.state)

    def _settled(self, what: str, state: Expected) -> None:
        self.state = state
        self._open = None
        self._say(**{"is": state})
        self.counts[what] = self.counts.get(what, 0) + 1

    def check(self, *, bodies: bool = False) -> None:
        """Everything that must be there is there, and nothing else. Raises `PromiseBroken`."""
        seen = self._patiently(self.observe)
        if seen != self.state:
            raise PromiseBroken(f"{self.name}: {difference(seen, self.state)}")
        for reference in self.references if bodies else ():
            read = self._patiently(partial(self.client.show, reference, self.prefix, bodies=True))
            if read != self.state[reference]:
                changes = difference({reference: read}, {reference: self.state[reference]})
                raise PromiseBroken(f"{self.name}: bytes at {reference}: {changes}")

    def _patiently(self, look: Callable[[], Any]) -> Any:
        """Read, and try again until a server answers."""
        since_s = _CLOCK.monotonic_s()
        while True:
            try:
                return look()
            except Unclear:
                if _CLOCK.monotonic_s() - since_s > self.patience_s:
                    raise
            pause(0.05)

    # ---- for steps of every kind

    def _paths(self, count: int) -> list[str]:
        return [f"{self.prefix}{self.rng.choice('abc')}/{self.rng.randrange(8)}" for _ in range(count)]

    def _written(self, branch: str, shown: str) -> Step:
        """A write on a branch, seen at `shown`."""
        client, before = self.client, self.state[shown]
        kinds = ("put", "put", "put", "put if absent", "put many", "delete", "delete many", "clear")
        kind = self.rng.choice([item for item in kinds if client.puts_many or item != "put many"])
        paths = self._paths(1 if kind in ("put", "put if absent", "delete") else 4)
        bodies = {path: body_of(path, self.number) for path in paths}
        refusals = set(_LOST_RACES)
        make: Callable[[], None]
        if kind.startswith("put"):
            after = {**before, **{path: checksum_of(body) for path, body in bodies.items()}}
            (path, body) = next(iter(bodies.items()))
            if kind == "put many":
                make = lambda: client.put_many(branch, bodies)  # noqa: E731
            elif kind == "put":
                make = lambda: client.put(branch, path, body)  # noqa: E731
            else:
                make = lambda: client.put(branch, path, body, only_if_absent=True)  # noqa: E731
                if path in before:
                    after, refusals = before, refusals | {"path_exists", "precondition_failed"}
                    make = lambda: refused(lambda: client.put(branch, path, body, only_if_absent=True))  # noqa: E731
        elif kind == "clear":
            below = f"{self.prefix}{self.rng.choice('abc')}/"
            after = {path: sum_ for path, sum_ in before.items() if not path.startswith(below)}
            make = lambda: client.clear(branch, below)  # noqa: E731
        else:
            after = {path: sum_ for path, sum_ in before.items() if path not in paths}
            make = lambda: client.delete(branch, paths)  # noqa: E731
        return Step(kind, {**self.state, shown: after}, make, refusals)


def refused(call: Callable[[], None]) -> None:
    """Make a call that must be refused. Raises `PromiseBroken` when it succeeds."""
    call()
    raise PromiseBroken("a conditional put replaced what was there")


def difference(seen: Expected, *wanted: Expected) -> str:
    """What differs, in a line."""
    words = []
    for want in wanted:
        for ref in seen.keys() | want.keys():
            here, value = seen.get(ref, {}), want.get(ref, {})
            lost = sorted(value.keys() - here.keys())[:5]
            more = sorted(here.keys() - value.keys())[:5]
            other = sorted(path for path in here.keys() & value.keys() if here[path] != value[path])[:5]
            if lost or more or other:
                words.append(f"at {ref} lost {lost}, invented {more}, other {other}")
    return "; or ".join(words)


class MainBranchWorkload(Workload):
    """Writes below its prefix on the default branch, which others write, commit and compact too."""

    references = ("main",)

    def next_step(self) -> Step:
        """Write, or commit the branch: then the commit holds exactly what this workload has written."""
        if self.rng.random() < 0.8:
            return self._written("main", "main")
        return Step("commit", self.state, self._commit, {*_LOST_RACES, "no_changes"})

    def _commit(self) -> None:
        id = self.client.commit("main", f"{self.name} {self.number}")
        reply = self._patiently(lambda: self.client.show(id, self.prefix))
        if reply != self.state["main"]:
            raise PromiseBroken(f"{self.name}: commit {id}: {difference({'main': reply}, self.state)}")


class OwnBranchWorkload(Workload):
    """Uses a branch of its own, which it writes, commits, resets, reverts, and merges into a common trunk."""

    trunk: Final = "trunk"

    def __init__(self, client: RepositoryClient, said: Path, name: str, seed: int) -> None:
        self.branch = f"b-{name}"
        self.references = (self.branch, f"{self.branch}@", self.trunk)
        self._before: tuple[str, dict[str, str]] | None = None
        super().__init__(client, said, name, seed)

    def prepare(self) -> None:
        """Make its branch, and the trunk."""
        for item in (self.trunk, self.branch):
            try:
                self._patiently(partial(self.client.create_branch, item, "main~0"))
            except Refused as error:
                if error.args[0] != "branch_exists":
                    raise

    def next_step(self) -> Step:
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
            return Step(kind, {**self.state, head: shown}, self._commit, refusals)
        if kind == "merge":
            refusals = lost | {"no_changes", "commit_expired"}
            after = {**self.state, self.trunk: committed}
            return Step(kind, after, lambda: self.client.merge(branch, self.trunk), refusals)
        if kind == "revert":
            assert self._before is not None
            id, before = self._before
            self._before = None
            after = {**self.state, branch: before, head: before}
            return Step(kind, after, lambda: self.client.revert(branch, id), lost | {"no_changes", "commit_expired"})
        if kind == "reset prefix":
            below = f"{self.prefix}{self.rng.choice('abc')}/"
            kept = {path: sum_ for path, sum_ in shown.items() if not path.startswith(below)}
            back = {path: sum_ for path, sum_ in committed.items() if path.startswith(below)}
            after = {**self.state, branch: {**kept, **back}}
            return Step(kind, after, lambda: self.client.reset(branch, prefix=below), lost)
        make: Callable[[], None] = lambda: self.client.reset(branch, hard=kind == "hard reset")  # noqa: E731
        return Step(kind, {**self.state, branch: committed}, make, lost)

    def _commit(self) -> None:
        before = self.state[f"{self.branch}@"]
        self._before = None
        self._before = (self.client.commit(self.branch, f"{self.name} {self.number}"), before)


class NamesWorkload(Workload):
    """Makes and deletes tags and branches; what a tag holds never changes, and is never collected."""

    references = ("tag", "branch")

    def observe(self) -> Expected:
        """Commits by name."""
        return {kind: self.client.names(kind, f"{self.name}-") for kind in self.references}

    def check(self, *, bodies: bool = False) -> None:
        """Also read everything that a tag holds."""
        super().check()
        for name in sorted(self.state["tag"])[:: 1 if bodies else 4]:
            paths = sorted(self._patiently(partial(self.client.show, name, "")))
            # Folder by folder, one of them where time is short: a server may not live long enough for all of them.
            folders = sorted({path.rpartition("/")[0] + "/" for path in paths})
            for folder in folders if bodies or not folders else [self.rng.choice(folders)]:
                reply = self._patiently(partial(self.client.show, name, folder))
                read = self._patiently(partial(self.client.show, name, folder, bodies=True))
                if reply != read:
                    raise PromiseBroken(f"{self.name}: tag {name}: {difference({name: read}, {name: reply})}")

    def next_step(self) -> Step:
        """Make or delete one."""
        kind = self.rng.choice(self.references)
        present = self.state[kind]
        if present and self.rng.random() < len(present) / 12:
            name = self.rng.choice(sorted(present))
            delete = self.client.delete_tag if kind == "tag" else self.client.delete_branch
            after = {item: id for item, id in present.items() if item != name}
            return Step(f"delete {kind}", {**self.state, kind: after}, lambda: delete(name), set(_LOST_RACES))
        name, id = f"{self.name}-{self.number}", self._patiently(lambda: self.client.head("main"))
        create = self.client.create_tag if kind == "tag" else self.client.create_branch
        after = {**present, name: id}
        refusals = {*_LOST_RACES, "commit_expired"}
        return Step(f"create {kind}", {**self.state, kind: after}, lambda: create(name, id), refusals)


class MaintenanceWorkload(Workload):
    """Compacts, collects, cleans and changes the rules of retention, without effect on the other workloads."""

    references = ()

    def __init__(self, client: LibraryClient, said: Path, name: str, seed: int) -> None:
        super().__init__(client, said, name, seed)
        self._repository = client.repository

    def next_step(self) -> Step:
        """One step of any of them."""
        repository = self._repository
        branches = [item.name for item in repository.branches()]
        branch = self.rng.choice(branches)

        def collect() -> None:
            report = repository.collect(EVERYTHING)
            bad = [warning for warning in report.warnings if "older than the rules" not in warning]
            if bad:
                raise PromiseBroken(f"a collection: {bad}")

        kinds: dict[str, Callable[[], object]] = {
            "compact": lambda: repository.branch(branch).compact(),
            "collect": collect,
            "clean": lambda: clean_once(context_of(repository)),
            "expire": lambda: repository.set_retention(default_days=0),
            "keep": repository.delete_retention,
        }
        kind = self.rng.choice([*kinds, "collect", "compact"])

        def make() -> None:
            with told():
                kinds[kind]()

        return Step(kind, {}, make, {*_LOST_RACES, "branch_not_found"})


def start_workloads(
    client: RepositoryClient, said: Path, seed: int, *, names: Mapping[str, type[Workload]]
) -> list[Workload]:
    """Workloads by name, prepared and resolved."""
    workloads = [kind(client, said, name, seed) for name, kind in names.items()]
    for workload in workloads:
        workload.prepare()
        workload.settle()
        workload.check()
    return workloads


def run_workloads(workloads: list[Workload], *, stop: threading.Event) -> list[str]:
    """Run workloads in threads until `stop` or a broken promise; what was wrong."""
    violations: list[str] = []

    def run(workload: Workload) -> None:
        try:
            while not stop.is_set():
                workload.step()
        except BaseException as error:
            violations.append(f"{workload.name}: " + "".join(traceback.format_exception(error))[-6_000:])
            stop.set()

    threads = [threading.Thread(target=run, args=(workload,), name=workload.name) for workload in workloads]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return violations


LIBRARY_WORKLOADS: Final[Mapping[str, type[Workload]]] = {
    "m0": MainBranchWorkload,
    "m1": MainBranchWorkload,
    "m2": MainBranchWorkload,
    "p0": OwnBranchWorkload,
    "p1": OwnBranchWorkload,
    "p2": OwnBranchWorkload,
    "names": NamesWorkload,
    "maintenance": MaintenanceWorkload,
}


def run_owner(
    url: str, said: Path, seed: int, *, seconds: float, storage_options: Mapping[str, str] | None = None
) -> None:
    """Run one owner with eight threads and report what went wrong; it may be killed at any time."""
    with open_repositories(url, options=EAGER, access=Access(take_over=True), storage_options=storage_options) as home:
        repository = home.repository("storm") if home.exists("storm") else home.create("storm")
        workloads = start_workloads(LibraryClient(repository), said, seed, names=LIBRARY_WORKLOADS)
        stop = threading.Event()
        timer = threading.Timer(seconds, stop.set)
        timer.start()
        sys.stdout.write("ready\n")
        sys.stdout.flush()
        violations = run_workloads(workloads, stop=stop)
        timer.cancel()
        if home.last_failure is not None:
            violations.append(f"the background: {home.last_failure!r}")
        (said / f"report.{os.getpid()}").write_text(
            json.dumps({workload.name: workload.counts for workload in workloads})
        )
    if violations:
        (said / f"violations.{os.getpid()}").write_text("\n".join(violations))
        sys.exit(1)


if __name__ == "__main__":
    run_owner(
        sys.argv[1],
        Path(sys.argv[2]),
        int(sys.argv[3]),
        seconds=float(sys.argv[4]),
        storage_options=json.loads(sys.argv[5]) or None,
    )
