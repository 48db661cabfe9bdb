"""Every verb that moves a branch, in random order, against dictionaries: over memory, and over a database.

The dictionaries are all that is believed: the model has commits of its own and works merges, reverts and rebases out by
itself. Where more than one answer is right, as of a merge with two best bases, it accepts each of them and no other.
"""

from __future__ import annotations

import itertools
import random
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from lakebed.errors import LakebedError
from lakebed.repo.heads.compact import compact_once
from lakebed.repo.heads.write import delete_prefix
from lakebed.repo.records.context import RepositoryContext
from lakebed.repo.references.branches import create_branch, load_branch
from lakebed.repo.references.commits import load_commit
from lakebed.repo.staging.cleanup import clean_once
from worlds.errors import raises
from worlds.repo.memory_repository import (
    MemoryRepository,
    committed_contents,
    contents,
    head_of,
    open_context,
    put,
    put_many,
    remove,
    uncommitted_of,
)
from worlds.repo.model import ancestors, chosen, difference, merge_bases, merged
from worlds.repo.operations import commit, hard_reset, merge, rebase, reset, reset_path, reset_prefix, revert

Contents = dict[str, str]
BRANCHES = ("main", "dev")
ORDERS_MAX = 50
"""Orders of one rebase that are tried, where its commits come from lines that do not descend from one another."""


@dataclass(frozen=True, eq=False)
class Made:
    """A commit of the model."""

    parents: tuple[Made, ...]
    texts: Contents

    @property
    def generation(self) -> int:
        """Length of the longest line back to the first commit."""
        return 1 + max((parent.generation for parent in self.parents), default=0)


Outcome = tuple[str | None, Made | None]
"""The kind of the error, or the new head."""


@dataclass
class Model:
    """What each branch shows, and the commit that is its head."""

    shown: dict[str, Contents] = field(default_factory=lambda: {branch: {} for branch in BRANCHES})
    head: dict[str, Made] = field(default_factory=lambda: dict.fromkeys(BRANCHES, Made((), {})))
    ids: dict[Made, str] = field(default_factory=dict)
    """Which commit of the repository is which of the model."""
    done: dict[str, int] = field(default_factory=dict)
    """How often each verb did something, for honest counts."""


def parents_of(made: Made) -> tuple[Made, ...]:
    """What a commit was made on."""
    return made.parents


def merge_outcomes(source: Made, into: Made, strategy: str | None) -> Iterator[Outcome]:
    """What a merge may do: one answer for each best base."""
    for base in merge_bases(source, into, parents_of):
        texts, conflicts = merged(base.texts, source.texts, into.texts, strategy=strategy)
        if base is source:
            yield "no_changes", None
        else:
            yield ("merge_conflict", None) if conflicts and strategy is None else (None, Made((into, source), texts))


def rebase_outcomes(head: Made, onto: Made) -> Iterator[Outcome]:
    """What a rebase may do: one answer for each order in which no commit comes before a parent."""
    if onto in ancestors([head], parents_of):
        yield "no_changes", None
        return
    mine = [
        ancestor
        for ancestor in ancestors([head], parents_of) - ancestors([onto], parents_of)
        if len(ancestor.parents) < 2
    ]
    ages = [
        [element for element in mine if element.generation == age]
        for age in sorted({element.generation for element in mine})
    ]
    for order in itertools.islice(itertools.product(*map(itertools.permutations, ages)), ORDERS_MAX):
        last: Made = onto
        for item in itertools.chain.from_iterable(order):
            texts, conflicts = merged(item.parents[0].texts if item.parents else {}, item.texts, last.texts)
            if conflicts:
                yield "merge_conflict", None
                break
            if texts != last.texts:
                last = Made((last,), texts)
        else:
            yield None, last


def revert_outcome(head: Made) -> Outcome:
    """What reverting the head does: the state before it is back."""
    if len(head.parents) > 1:
        return "parent_number_needed", None
    before = head.parents[0].texts if head.parents else {}
    return ("no_changes", None) if before == head.texts else (None, Made((head,), before))


def is_made_so(home: RepositoryContext, commit_id: str, made: Made, ids: dict[Made, str]) -> bool:
    """Whether a commit, and those before it that are new, hold what the model's do; adds to `ids` what it looked at."""
    if made in ids:
        return ids[made] == commit_id
    ids[made] = commit_id
    commit = load_commit(home, commit_id)
    if len(commit.parents) != len(made.parents) or committed_contents(home, commit.metarange) != made.texts:
        return False
    return all(is_made_so(home, id, parent, ids) for id, parent in zip(commit.parents, made.parents, strict=True))


class Walk:
    """One walk: each step does something to a branch and to the model."""

    def __init__(self, home: RepositoryContext, model: Model, rng: random.Random) -> None:
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

    def grow(self) -> bool:
        """A commit of its own on a branch: mostly on paths that the other branch leaves alone."""
        path = f"{self.branch if self.rng.random() < 0.9 else 'both'}/{self.rng.randrange(8)}"
        text = self.text()
        put(self.home, self.branch, path, text)
        self.model.shown[self.branch] = self.model.shown[self.branch] | {path: text}
        return self.commit()

    def move(self) -> None:
        """Something that makes history, on any branch."""
        self.branch = self.rng.choice(BRANCHES)
        verb = self.rng.choice([self.grow] * 6 + [self.merge] * 3 + [self.rebase] * 3 + [self.revert, self.hard_reset])
        if verb():
            self.model.done[verb.__name__] = self.model.done.get(verb.__name__, 0) + 1

    def check(self) -> None:
        """Both branches are as the model says, and differ from their heads where it does."""
        for branch in BRANCHES:
            shown, head = self.model.shown[branch], self.model.head[branch].texts
            assert contents(self.home, branch) == shown
            assert head_of(self.home, branch) == head
            assert uncommitted_of(self.home, branch) == difference(head, shown)

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
        self.model.shown[self.branch] = {item: text for item, text in before.items() if item != path}
        return path in before

    def delete_prefix(self) -> bool:
        prefix = self.prefix()
        delete_prefix(self.home, branch=self.branch, prefix=prefix)
        before = self.model.shown[self.branch]
        self.model.shown[self.branch] = chosen(before, {}, lambda path: path.startswith(prefix))
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
        with raises(LakebedError, kind):
            verb(self.home, *arguments, **named)  # type: ignore[operator]
        return False

    def committed(self, texts: Contents) -> None:
        """The head has a child that holds this."""
        made = self.model.head[self.branch] = Made((self.model.head[self.branch],), texts)
        assert is_made_so(self.home, load_branch(self.home, self.branch)[0].commit_id, made, self.model.ids)

    def commit(self) -> bool:
        done = self.expect("no_changes" if self.is_clean() else None, commit, self.branch, message="m")
        if done:
            self.committed(self.model.shown[self.branch])
        return done

    def commit_some(self) -> bool:
        prefix = self.prefix()
        shown, head = self.model.shown[self.branch], self.model.head[self.branch].texts
        after = chosen(head, shown, lambda path: path.startswith(prefix))
        done = self.expect("no_changes" if after == head else None, commit, self.branch, message="m", prefixes=[prefix])
        if done:
            self.committed(after)
        return done

    def reset(self) -> bool:
        reset(self.home, self.branch)
        before, self.model.shown[self.branch] = self.model.shown[self.branch], self.model.head[self.branch].texts
        return before != self.model.shown[self.branch]

    def reset_prefix(self) -> bool:
        prefix = self.prefix()
        reset_prefix(self.home, self.branch, prefix=prefix)
        before = self.model.shown[self.branch]
        self.model.shown[self.branch] = chosen(
            before, self.model.head[self.branch].texts, lambda path: path.startswith(prefix)
        )
        return before != self.model.shown[self.branch]

    def reset_path(self) -> bool:
        path = self.path()
        reset_path(self.home, self.branch, path=path)
        before, head = self.model.shown[self.branch], self.model.head[self.branch].texts
        self.model.shown[self.branch] = chosen(before, head, lambda one: one == path)
        return before != self.model.shown[self.branch]

    def is_clean(self) -> bool:
        return self.model.shown[self.branch] == self.model.head[self.branch].texts

    def settle(self) -> None:
        """Commit what would be in the way of the next verb, mostly."""
        if not self.is_clean() and self.rng.random() < 0.7:
            self.commit()

    def moved(self, outcomes: Iterator[Outcome], verb: object, *arguments: object, **named: object) -> bool:
        """Run a verb that needs a clean branch; it does one of the things that the model says, or nothing."""
        possible = list(outcomes)
        if not self.is_clean():
            possible = [state for state in possible if state[0] == "parent_number_needed"] or [("dirty_branch", None)]
        kind = None
        try:
            verb(self.home, *arguments, **named)  # type: ignore[operator]
        except LakebedError as error:
            kind = error.kind
        if kind is not None:
            assert (kind, None) in possible
            return False
        head_id = load_branch(self.home, self.branch)[0].commit_id
        for _, head in possible:
            ids = dict(self.model.ids)
            if head is not None and is_made_so(self.home, head_id, head, ids):
                self.model.ids, self.model.head[self.branch] = ids, head
                self.model.shown[self.branch] = head.texts
                return True
        pytest.fail(f"{head_of(self.home, self.branch)} is not among {possible}")

    @property
    def other(self) -> str:
        return "dev" if self.branch == "main" else "main"

    def merge(self) -> bool:
        strategy = self.rng.choice([None, "source-wins", "dest-wins"])
        self.settle()
        heads = self.model.head
        outcomes = merge_outcomes(heads[self.other], heads[self.branch], strategy)
        return self.moved(outcomes, merge, self.other, into=self.branch, strategy=strategy)

    def revert(self) -> bool:
        self.settle()
        outcomes = iter([revert_outcome(self.model.head[self.branch])])
        return self.moved(outcomes, revert, self.branch, ref=self.branch)

    def rebase(self) -> bool:
        self.settle()
        outcomes = rebase_outcomes(self.model.head[self.branch], self.model.head[self.other])
        return self.moved(outcomes, rebase, self.branch, onto=self.other)

    def hard_reset(self) -> bool:
        self.settle()
        outcomes: Iterator[Outcome] = iter([(None, self.model.head[self.other])])
        return self.moved(outcomes, hard_reset, self.branch, ref=self.other)


def walk(place: MemoryRepository, *, seed: int, step_count: int, reopen_every: int) -> Model:
    """Random steps, each checked; the place is closed and opened again now and then."""
    rng = random.Random(seed)
    model = Model()
    with open_context(place) as home:
        create_branch(home, "dev", source="main")
    for _ in range(0, step_count, reopen_every):
        with open_context(place) as home:
            steps = Walk(home, model, rng)
            for _ in range(reopen_every):
                steps.step()
                steps.check()
                assert len(load_branch(home, steps.branch)[0].sealed) <= home.options.sealed_tokens_max
    return model


@pytest.mark.parametrize(
    "seeds", [(4,), pytest.param(tuple(range(100, 120)), marks=pytest.mark.long)], ids=["one seed", "many seeds"]
)
def test_in_memory_everything_is_as_the_model_says(seeds: tuple[int, ...]) -> None:
    """In any order of verbs, layers and processes; every verb did its work at least twice."""
    done: Counter[str] = Counter()
    for seed in seeds:
        done.update(walk(MemoryRepository(), seed=seed, step_count=300, reopen_every=20).done)
    assert len(done) == 16
    assert min(done.values()) >= 2, done


def test_histories_are_as_the_model_says() -> None:
    """Commits, merges, rebases, reverts and hard resets by turns: every new commit is one that the model has made."""
    done: Counter[str] = Counter()
    for seed in range(5):
        place, model = MemoryRepository(), Model()
        with open_context(place) as home:
            create_branch(home, "dev", source="main")
            steps = Walk(home, model, random.Random(seed))
            for _ in range(40):
                steps.move()
        done.update(model.done)
    assert len(done) == 5
    assert min(done.values()) >= 2, done


def test_over_a_database_everything_is_as_the_model_says(tmp_path: Path) -> None:
    """The same over the database that a home has by default, which is opened anew by each process."""
    model = walk(MemoryRepository(records_url=str(tmp_path / "records")), seed=11, step_count=160, reopen_every=20)
    assert len(model.done) >= 10, model.done
