"""Every verb that moves a branch, in random order, against dictionaries: over memory, and over a database."""

from __future__ import annotations

import random
import uuid
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from lakebed.errors import LakebedError
from lakebed.repo.branches import create_branch, load_branch
from lakebed.repo.commit import commit
from lakebed.repo.compact import compact_once
from lakebed.repo.home import Home
from lakebed.repo.merge import merge
from lakebed.repo.model import DiffKind
from lakebed.repo.pick import revert
from lakebed.repo.rebase import rebase
from lakebed.repo.reset import hard_reset, reset, reset_path, reset_prefix
from lakebed.repo.staging.cleanup import clean_once
from lakebed.repo.staging.write import delete_prefix
from lakebed.testing.repo_homes import Place, contents, head_of, open_home, put, put_many, remove, uncommitted_of

Contents = dict[str, str]
BRANCHES = ("main", "dev")


@dataclass
class Model:
    """What each branch shows, and what its head holds."""

    shown: dict[str, Contents] = field(default_factory=lambda: {branch: {} for branch in BRANCHES})
    head: dict[str, Contents] = field(default_factory=lambda: {branch: {} for branch in BRANCHES})
    done: dict[str, int] = field(default_factory=dict)
    """How often each verb did something, for honest counts."""


def below(held: Contents, prefix: str) -> Contents:
    """The paths that begin so."""
    return {path: text for path, text in held.items() if path.startswith(prefix)}


def without(held: Contents, prefix: str) -> Contents:
    """The paths that do not."""
    return {path: text for path, text in held.items() if not path.startswith(prefix)}


class Walk:
    """One walk: each step does something to a branch and to the model."""

    def __init__(self, home: Home, model: Model, rng: random.Random) -> None:
        self.home, self.model, self.rng = home, model, rng
        self.branch = "main"

    def path(self) -> str:
        return f"{self.rng.choice('abc')}/{self.rng.randrange(8)}"

    def prefix(self) -> str:
        return self.rng.choice(["a/", "b/", "c/", "a/1", "nothing/"])

    def text(self) -> str:
        return self.rng.choice("xyz")

    def step(self) -> None:
        """Anything at all, on any branch."""
        self.branch = self.rng.choice(BRANCHES)
        writes = [self.put, self.put, self.put_many, self.remove, self.remove, self.delete_prefix, self.refused]
        moves = [self.compact, self.commit, self.commit_some, self.reset, self.reset_prefix, self.reset_path]
        whole = [self.merge, self.revert, self.hard_reset, self.rebase, self.clean]
        verb = self.rng.choice(writes * 2 + moves + whole)
        if verb():
            name = verb.__name__
            self.model.done[name] = self.model.done.get(name, 0) + 1

    def check(self) -> None:
        """Both branches are as the model says, and differ from their heads where it does."""
        for branch in BRANCHES:
            shown, head = self.model.shown[branch], self.model.head[branch]
            assert contents(self.home, branch) == shown
            assert head_of(self.home, branch) == head
            kinds = {
                path: DiffKind.ADDED
                if path not in head
                else DiffKind.REMOVED
                if path not in shown
                else DiffKind.CHANGED
                for path in shown.keys() | head.keys()
                if shown.get(path) != head.get(path)
            }
            assert uncommitted_of(self.home, branch) == kinds

    def put(self) -> bool:
        path, text = self.path(), self.text()
        put(self.home, self.branch, path, text)
        self.model.shown[self.branch] = self.model.shown[self.branch] | {path: text}
        return True

    def put_many(self) -> bool:
        texts = {self.path(): self.text() for _ in range(10)}
        put_many(self.home, self.branch, texts)
        self.model.shown[self.branch] = self.model.shown[self.branch] | texts
        return True

    def remove(self) -> bool:
        path = self.path()
        remove(self.home, self.branch, path)
        before = self.model.shown[self.branch]
        self.model.shown[self.branch] = {one: text for one, text in before.items() if one != path}
        return path in before

    def delete_prefix(self) -> bool:
        prefix = self.prefix()
        delete_prefix(self.home, branch=self.branch, prefix=prefix)
        before = self.model.shown[self.branch]
        self.model.shown[self.branch] = without(before, prefix)
        return self.model.shown[self.branch] != before

    def compact(self) -> bool:
        return compact_once(self.home, self.branch, force=True).outcome == "published"

    def clean(self) -> bool:
        return clean_once(self.home).row_count > 0

    def refused(self) -> bool:
        """A commit that a hook refuses."""

        def refuse(call: object) -> None:
            raise ValueError("no")

        self.home.hooks.register("pre-commit", refuse)
        with pytest.raises(LakebedError) as caught:
            commit(self.home, self.branch, message="refused")
        self.home.hooks.remove(refuse)
        return caught.value.kind == "hook_rejected"

    def expect(self, kind: str | None, verb: object, *arguments: object, **named: object) -> bool:
        """Run a verb that must be refused with a kind, or must not; whether it was done."""
        if kind is None:
            verb(self.home, *arguments, **named)  # type: ignore[operator]
            return True
        with pytest.raises(LakebedError) as caught:
            verb(self.home, *arguments, **named)  # type: ignore[operator]
        assert caught.value.kind == kind
        return False

    def commit(self) -> bool:
        kind = "no_changes" if self.model.shown[self.branch] == self.model.head[self.branch] else None
        if done := self.expect(kind, commit, self.branch, message="m"):
            self.model.head[self.branch] = self.model.shown[self.branch]
        return done

    def commit_some(self) -> bool:
        prefix = self.prefix()
        shown, head = self.model.shown[self.branch], self.model.head[self.branch]
        after = without(head, prefix) | below(shown, prefix)
        done = self.expect("no_changes" if after == head else None, commit, self.branch, message="m", prefixes=[prefix])
        if done:
            self.model.head[self.branch] = after
        return done

    def reset(self) -> bool:
        reset(self.home, self.branch)
        before, self.model.shown[self.branch] = self.model.shown[self.branch], self.model.head[self.branch]
        return before != self.model.shown[self.branch]

    def reset_prefix(self) -> bool:
        prefix = self.prefix()
        reset_prefix(self.home, self.branch, prefix=prefix)
        before = self.model.shown[self.branch]
        self.model.shown[self.branch] = without(before, prefix) | below(self.model.head[self.branch], prefix)
        return before != self.model.shown[self.branch]

    def reset_path(self) -> bool:
        path = self.path()
        reset_path(self.home, self.branch, path=path)
        before, head = self.model.shown[self.branch], self.model.head[self.branch]
        after = {one: text for one, text in before.items() if one != path}
        self.model.shown[self.branch] = after | ({path: head[path]} if path in head else {})
        return before != self.model.shown[self.branch]

    def is_clean(self) -> bool:
        return self.model.shown[self.branch] == self.model.head[self.branch]

    def moved(self, verb: object, *arguments: object, **named: object) -> bool:
        """A verb that needs a clean branch, and whose outcome is read from the head: staging is tested here."""
        if not self.is_clean() and self.rng.random() < 0.7:
            self.commit()
        try:
            verb(self.home, *arguments, **named)  # type: ignore[operator]
        except LakebedError as error:
            kind = error.kind
        else:
            kind = None
        if kind != "parent_number_needed":
            assert (kind == "dirty_branch") == (not self.is_clean())
        assert kind in (None, "dirty_branch", "no_changes", "merge_conflict", "parent_number_needed")
        if kind is None:
            self.model.head[self.branch] = self.model.shown[self.branch] = head_of(self.home, self.branch)
        return kind is None

    def merge(self) -> bool:
        other = "dev" if self.branch == "main" else "main"
        return self.moved(merge, other, into=self.branch, strategy=self.rng.choice([None, "source-wins", "dest-wins"]))

    def revert(self) -> bool:
        return self.moved(revert, self.branch, ref=self.branch)

    def rebase(self) -> bool:
        return self.moved(rebase, self.branch, onto="dev" if self.branch == "main" else "main")

    def hard_reset(self) -> bool:
        other = "dev" if self.branch == "main" else "main"
        return self.moved(hard_reset, self.branch, ref=other)


def walk(place: Place, *, seed: int, step_count: int, reopen_every: int) -> Model:
    """Random steps, each checked; the place is closed and opened again now and then."""
    rng = random.Random(seed)
    model = Model()
    with open_home(place) as home:
        create_branch(home, "dev", source="main")
    for _ in range(0, step_count, reopen_every):
        with open_home(place) as home:
            steps = Walk(home, model, rng)
            for _ in range(reopen_every):
                steps.step()
                steps.check()
                assert len(load_branch(home, steps.branch)[0].sealed) <= home.options.sealed_tokens_max
    return model


def test_in_memory_everything_is_as_the_model_says() -> None:
    """Whatever the order of verbs, layers and processes; every verb did its work at least three times."""
    done: Counter[str] = Counter()
    for seed in range(4):
        done.update(walk(Place(), seed=seed, step_count=250, reopen_every=20).done)
    assert len(done) == 16
    assert min(done.values()) >= 3, done


@pytest.mark.parametrize("kind", ["memory", "local"])
def test_over_a_database_everything_is_as_the_model_says(kind: str, tmp_path: Path) -> None:
    """The same over the database that a home has by default, which is opened anew by each process."""
    url = f"memory://{uuid.uuid4().hex}/records" if kind == "memory" else str(tmp_path / "records")
    model = walk(Place(records_url=url), seed=11, step_count=160, reopen_every=20)
    assert len(model.done) >= 10, model.done
