"""A repository under random verbs of its facade is a dictionary of dictionaries: branches, tags, commits, all of it."""

from __future__ import annotations

import random
import uuid
from collections import Counter
from collections.abc import Callable
from typing import Any, ClassVar

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule, run_state_machine_as_test

from lakebed.errors import AlreadyExists, Conflict, InvalidRequest, NotFound
from lakebed.objects import open_store
from lakebed.repo import RangeOptions, Repositories, RepositoryOptions
from lakebed.repo.transport.catalog import LocalCatalog
from lakebed.runtime import Environment
from lakebed.testing import seed_count
from lakebed.testing.clock import ManualClock
from worlds.errors import raises
from worlds.memory_key_value import MemoryKeyValue
from worlds.repo.model import ancestors, chosen, difference, merged

PATHS = [folder + name for folder in ("", "a/", "a/b/", "ab/") for name in ("x", "y", "z")]
PREFIXES = ["", "a", "a/", "a/b/", "ab/", "nothing"]
BRANCHES = ["main", "one", "two", "three"]
TAGS = ["v1", "v2"]
ROUNDS_MAX = 5

paths = st.sampled_from(PATHS)
prefixes = st.sampled_from(PREFIXES)
texts = st.sampled_from([b"1", b"2", b"3"])
branches = st.sampled_from(BRANCHES)
any_seed = st.integers(min_value=0, max_value=2**32)

State = dict[str, bytes]


def unless_nothing_changes(act: Callable[[], Any]) -> Any:
    """What a verb returns; None when it was refused because nothing would change."""
    try:
        return act()
    except InvalidRequest as error:
        if error.kind != "no_changes":
            raise
        return None


class RepositoryMachine(RuleBasedStateMachine):
    """Verbs on a repository and on dictionaries."""

    met: ClassVar[Counter[str]] = Counter()

    def __init__(self) -> None:
        super().__init__()
        self.home: Any = None
        self.repo: Any = None
        self.commits: dict[str, tuple[tuple[str, ...], State]] = {}
        self.heads: dict[str, str] = {}
        self.shown: dict[str, State] = {}
        self.deleted: dict[str, str] = {}
        self.tags: dict[str, str] = {}

    @initialize(seed=any_seed)
    def begin(self, seed: int) -> None:
        """A repository with ranges of a few entries."""
        self.clock = ManualClock()
        environment = Environment(clock=self.clock, rng=random.Random(seed))
        self.home = Repositories(
            LocalCatalog(
                open_store(f"memory://{uuid.uuid4()}", environment=environment),
                MemoryKeyValue(environment=environment),
                options=RepositoryOptions(
                    ranges=RangeOptions(entry_count_min=1, raggedness=3, entry_count_max=4), background=False
                ),
                environment=environment,
            )
        )
        self.repo = self.home.create("model")
        main = self.repo.branch()
        first = main.head().id
        for path in PATHS[:6]:
            main.put(path, b"1")
        made = main.commit("begin")
        self.commits = {first: ((), {}), made.id: ((first,), dict.fromkeys(PATHS[:6], b"1"))}
        for name in ("main", "one"):
            if name != "main":
                self.repo.create_branch(name)
            self.heads[name], self.shown[name] = made.id, dict.fromkeys(PATHS[:6], b"1")

    def teardown(self) -> None:
        """Release the threads."""
        if self.home is not None:
            self.home.close()

    def head_state(self, branch: str) -> State:
        """What a branch's head holds."""
        return self.commits[self.heads[branch]][1]

    def is_dirty(self, branch: str) -> bool:
        """Whether a branch shows something else than its head."""
        return self.shown[branch] != self.head_state(branch)

    def moved(self, branch: str, made: Any, state: State, *parents: str) -> None:
        """A new commit at a branch's head."""
        assert made.parents == parents
        self.commits[made.id] = (parents, state)
        self.heads[branch] = made.id
        self.clock.advance(1)

    # ---- staging

    @rule(branch=branches, path=paths, text=texts)
    def put(self, branch: str, path: str, text: bytes) -> None:
        """A put; to a branch that is not there it is refused."""
        if branch not in self.heads:
            with pytest.raises(NotFound):
                self.repo.branch(branch).put(path, text)
            return
        self.repo.branch(branch).put(path, text)
        self.shown[branch][path] = text

    @rule(branch=branches, some=st.lists(paths, max_size=4))
    def delete_many(self, branch: str, some: list[str]) -> None:
        """Deletes; of how many is said."""
        if branch in self.heads:
            gone = self.repo.branch(branch).delete_many(some)
            assert gone == len(set(some) & set(self.shown[branch]))
            for path in some:
                self.shown[branch].pop(path, None)

    @rule(branch=branches, prefix=prefixes)
    def delete_prefix(self, branch: str, prefix: str) -> None:
        """Everything below a prefix."""
        if branch in self.heads:
            left = chosen(self.shown[branch], {}, lambda path: path.startswith(prefix))
            assert self.repo.branch(branch).delete_prefix(prefix) == (len(left) < len(self.shown[branch]))
            self.shown[branch] = left

    @rule(branch=branches)
    def compact(self, branch: str) -> None:
        """No read changes."""
        if branch in self.heads:
            self.met[self.repo.branch(branch).compact().outcome] += 1

    @rule(branch=branches, prefix=st.none() | prefixes)
    def reset(self, branch: str, prefix: str | None) -> None:
        """All of it, or what is below a prefix."""
        if branch in self.heads:
            self.repo.branch(branch).reset(prefix=prefix)
            head, shown = self.head_state(branch), self.shown[branch]
            self.shown[branch] = chosen(shown, head, lambda path: path.startswith(prefix or ""))

    # ---- commits

    @rule(branch=branches, prefix=st.none() | prefixes)
    def commit(self, branch: str, prefix: str | None) -> None:
        """All of it, or what is below a prefix; with nothing to commit it is refused."""
        if branch not in self.heads:
            return
        head, shown = self.head_state(branch), self.shown[branch]
        state = chosen(head, shown, lambda path: path.startswith(prefix or ""))
        act = self.repo.branch(branch).commit
        prefixes = None if prefix is None else [prefix]
        if state == head:
            with raises(InvalidRequest, "no_changes"):
                act("m", prefixes=prefixes)
            return
        self.moved(branch, act("m", prefixes=prefixes), state, self.heads[branch])
        self.met["commit"] += 1

    def ancestry(self, id: str) -> set[str]:
        """A commit and all before it."""
        return ancestors([id], lambda one: self.commits[one][0])

    @rule(branch=branches, path=paths, text=texts)
    def put_and_commit(self, branch: str, path: str, text: bytes) -> None:
        """A put that is committed at once, together with all that is staged."""
        self.put(branch, path, text)
        self.commit(branch, None)

    @rule(
        source=branches,
        into=branches,
        strategy=st.sampled_from([None, None, "source-wins", "dest-wins"]),
        clean=st.booleans(),
    )
    def merge(self, source: str, into: str, strategy: Any, clean: bool) -> None:
        """Three ways, path by path."""
        if source not in self.heads or into not in self.heads:
            return
        if clean:
            self.reset(into, None)
        left, right = self.heads[into], self.heads[source]
        act = self.repo.branch(into).merge
        if self.is_dirty(into):
            with pytest.raises(InvalidRequest) as refused:
                act(source, strategy=strategy)
            assert refused.value.kind in ("dirty_branch", "no_changes")
            return
        base_id = self.repo.merge_base(source, into)
        assert base_id in self.ancestry(left) & self.ancestry(right)
        base, ours, theirs = self.commits[base_id][1], self.commits[left][1], self.commits[right][1]
        after, conflicts = merged(base, theirs, ours, strategy=strategy)
        if conflicts and strategy is None:
            with pytest.raises(Conflict) as conflict:
                act(source)
            assert conflict.value.facts["paths"] == conflicts
            self.met["conflict"] += 1
            return
        made = unless_nothing_changes(lambda: act(source, strategy=strategy))
        if made is None:
            assert after == ours
            return
        assert right not in self.ancestry(left)
        self.moved(into, made, after, left, right)
        self.shown[into] = dict(after)
        self.met["merge"] += 1

    @rule(into=branches, path=paths, strategy=st.sampled_from([None, None, "source-wins", "dest-wins"]))
    def diverge_and_merge(self, into: str, path: str, strategy: Any) -> None:
        """Two branches change one path, and one of them is merged."""
        source = next((name for name in sorted(self.heads) if name != into), None)
        if source is not None and into in self.heads:
            self.put_and_commit(source, path, b"theirs")
            self.put_and_commit(into, path, b"ours")
            self.merge(source, into, strategy, clean=True)

    @rule(branch=branches, pick=any_seed)
    def hard_reset(self, branch: str, pick: int) -> None:
        """To any commit there ever was."""
        if branch in self.heads:
            id = sorted(self.commits)[pick % len(self.commits)]
            self.repo.branch(branch).hard_reset(id, force=True)
            self.heads[branch], self.shown[branch] = id, dict(self.commits[id][1])

    @rule(pick=any_seed)
    def restore(self, pick: int) -> None:
        """An older version becomes the newest, when nothing uncommitted is in its way."""
        versions = [version.id for version in self.repo.versions()]
        id = versions[pick % len(versions)]
        if self.is_dirty("main"):
            with pytest.raises(InvalidRequest):
                self.repo.restore(id)
            return
        self.repo.restore(id)
        self.moved("main", self.repo.branch().head(), dict(self.commits[id][1]), self.heads["main"])
        self.shown["main"] = dict(self.commits[id][1])
        self.met["restore"] += 1

    # ---- references

    @rule(name=branches, source=branches)
    def create_branch(self, name: str, source: str) -> None:
        """From a branch's head, with anything staged there."""
        if source in self.heads and name not in self.heads:
            self.repo.create_branch(name, version=source)
            self.heads[name], self.shown[name] = self.heads[source], dict(self.head_state(source))
        elif name in self.heads:
            with pytest.raises((AlreadyExists, NotFound)):
                self.repo.create_branch(name, version=source)

    @rule(name=branches, back=st.booleans())
    def delete_branch(self, name: str, back: bool) -> None:
        """What is staged goes, the head comes back."""
        if name == "main":
            with pytest.raises(InvalidRequest):
                self.repo.delete_branch(name)
        elif name in self.heads:
            self.repo.delete_branch(name)
            self.deleted[name] = self.heads.pop(name)
            del self.shown[name]
            self.clock.advance(1)
        if back and name in self.deleted and name not in self.heads:
            self.repo.undelete_branch(name)
            self.heads[name] = self.deleted[name]
            self.shown[name] = dict(self.head_state(name))
            self.clock.advance(1)
            self.met["undelete"] += 1

    @rule(name=st.sampled_from(TAGS), branch=branches)
    def tag(self, name: str, branch: str) -> None:
        """Created, or deleted."""
        if name in self.tags:
            self.repo.delete_tag(name)
            del self.tags[name]
        elif branch in self.heads:
            self.repo.create_tag(name, ref=branch)
            self.tags[name] = self.heads[branch]

    # ---- what is seen

    @invariant()
    def branches_are_as_the_model_says(self) -> None:
        """Heads, contents, and what is uncommitted, of every branch."""
        if self.repo is None:
            return
        assert dict(self.repo.branches()) == self.heads
        for name, shown in self.shown.items():
            branch = self.repo.branch(name)
            assert {entry.path: branch.get(entry.path) for entry in branch.list()} == shown
            head = self.head_state(name)
            differences = difference(head, shown)
            assert {entry.path: entry.kind for entry in branch.status()} == differences
            assert branch.is_dirty() == bool(differences)

    @invariant()
    def commits_stay_what_they_were(self) -> None:
        """Tags are where they were put, and a commit holds what it held."""
        if self.repo is None:
            return
        assert dict(self.repo.tags()) == self.tags
        for name, id in self.tags.items():
            reading = self.repo.ref(name)
            assert {entry.path: reading.get(entry.path) for entry in reading.list()} == self.commits[id][1]


def test_a_repository_is_a_dictionary_of_dictionaries() -> None:
    """Every verb does what it does to dictionaries, and nothing else changes."""
    RepositoryMachine.met.clear()
    for _ in range(ROUNDS_MAX):  # chance may spare something for a while
        run_state_machine_as_test(
            RepositoryMachine,
            settings=settings(
                max_examples=seed_count(8),
                stateful_step_count=40,
                deadline=None,
                suppress_health_check=list(HealthCheck),
            ),
        )
        if RepositoryMachine.met["commit"] and RepositoryMachine.met["merge"]:
            break
    assert RepositoryMachine.met["commit"]
    assert RepositoryMachine.met["merge"]
