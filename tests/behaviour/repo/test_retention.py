"""Retention: age counts from when a commit was made, of two rules the longer wins, and everything staged is kept."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import replace
from datetime import timedelta

import msgspec
import pytest

from lakebed.errors import InvalidRequest, Rejected
from lakebed.repo.collect.collect import collect_garbage
from lakebed.repo.heads import actions
from lakebed.repo.heads.heads import seal
from lakebed.repo.heads.write import delete, stage
from lakebed.repo.model.layout import DATA_FOLDER
from lakebed.repo.model.model import Commit
from lakebed.repo.model.options import CollectionOptions, RepositoryOptions
from lakebed.repo.objects import data
from lakebed.repo.records.context import RepositoryContext
from lakebed.repo.records.records import decode_record, encode_record
from lakebed.repo.records.retention import store_retention
from lakebed.repo.references.branches import create_branch, delete_branch, list_branches
from lakebed.repo.references.commits import load_commit
from lakebed.repo.verbs.versions import Restore
from lakebed.runtime import Environment
from lakebed.testing.clock import ManualClock
from worlds.errors import raises
from worlds.repo.memory_repository import MemoryRepository, bodies, open_context
from worlds.repo.operations import commit, log, merge

DAY_S = 86_400
LONG_AGO_MS = 1_000_000_000  # January 1970
FAR_AHEAD_MS = 32_000_000_000_000  # the year 2984
SOON = CollectionOptions(grace=timedelta(0))


OPTIONS = RepositoryOptions(committer="ada", undelete_days=0)
"""Without the days for which the reference log keeps every head."""


ACTION = b"""
name: checks
on:
  pre-merge:
hooks:
  - id: check
    type: webhook
    properties: {url: "http://127.0.0.1:1/"}
"""


class WallClock(ManualClock):
    """A clock whose wall time an administrator can set."""

    offset_s = 0

    def now_ms(self) -> int:
        """Unix time in milliseconds, UTC."""
        return super().now_ms() + self.offset_s * 1000


@pytest.fixture
def clock() -> WallClock:
    """Time."""
    return WallClock()


@pytest.fixture
def home(clock: WallClock) -> Iterator[RepositoryContext]:
    """A repository whose clock is moved by hand."""
    environment = Environment(clock=clock, rng=random.Random(1))
    with open_context(MemoryRepository(environment=environment, options=OPTIONS)) as opened:
        yield opened


def put(home: RepositoryContext, path: str, body: bytes, *, branch: str = "main") -> str:
    """Upload and stage; the address."""
    entry = data.upload(home, body)
    stage(home, branch=branch, path=path, entry=entry)
    return entry.address


def stored(home: RepositoryContext) -> set[str]:
    """Addresses of the objects that are there."""
    return {meta.path for meta in home.store.list(DATA_FOLDER)}


def forget_time(home: RepositoryContext, commit_id: str) -> None:
    """Make the record of a commit what an older version wrote."""
    key = home.keys.commit(commit_id)
    raw = home.key_value.get(key)
    assert raw is not None
    old = msgspec.structs.replace(decode_record(raw, Commit, key=key), stored_at_ms=None)
    assert b"stored_at_ms" not in encode_record(old)
    home.key_value.set(key, encode_record(old))


@pytest.mark.parametrize("date_ms", [0, LONG_AGO_MS, -62_135_596_800_000])
def test_a_backfilled_date_does_not_age_a_commit(home: RepositoryContext, clock: WallClock, date_ms: int) -> None:
    """A commit with a date of long ago keeps what it follows as long as any other commit does."""
    put(home, "a", b"one")
    first = commit(home, "main", message="1")
    clock.advance(DAY_S)
    put(home, "a", b"two")
    second = commit(home, "main", message="2", created_at_ms=date_ms)
    assert second.created_at_ms == date_ms
    clock.advance(2 * DAY_S)
    put(home, "a", b"three")
    commit(home, "main", message="3", created_at_ms=date_ms)
    clock.advance(1)
    store_retention(home, default_days=5)
    collect_garbage(home)
    assert bodies(home, first.id) == {"a": b"one"}
    assert bodies(home, second.id) == {"a": b"two"}
    clock.advance(4 * DAY_S)  # the second commit is six days old, the third four
    collect_garbage(home)
    assert bodies(home, second.id) == {"a": b"two"}
    assert len(stored(home)) == 2


def test_a_future_date_does_not_keep_a_commit(home: RepositoryContext, clock: WallClock) -> None:
    """A date that is ahead is a label too: what the commit follows expires by the rule."""
    old = put(home, "a", b"one")
    commit(home, "main", message="1")
    new = put(home, "a", b"two")
    commit(home, "main", message="2", created_at_ms=FAR_AHEAD_MS)
    clock.advance(1)
    store_retention(home, default_days=5)
    collect_garbage(home)
    assert stored(home) == {old, new}
    clock.advance(6 * DAY_S)
    collect_garbage(home)
    assert stored(home) == {new}


def test_commits_of_older_versions_are_kept(home: RepositoryContext, clock: WallClock) -> None:
    """A record without its own time keeps what it follows, until a record with one that follows it is too old."""
    old = put(home, "a", b"one")
    first = commit(home, "main", message="1", created_at_ms=LONG_AGO_MS)
    newer = put(home, "a", b"two")
    second = commit(home, "main", message="2", created_at_ms=LONG_AGO_MS + 1)
    for id in (first.id, second.id, *load_commit(home, first.id).parents):
        forget_time(home, id)
    store_retention(home, default_days=5)
    clock.advance(400 * DAY_S)
    collect_garbage(home)
    assert stored(home) == {old, newer}
    delete(home, branch="main", path="a")
    third = commit(home, "main", message="3")
    assert third.commit.stored_at_ms == home.now_ms()
    clock.advance(4 * DAY_S)
    collect_garbage(home)
    assert stored(home) == {old, newer}
    clock.advance(2 * DAY_S)
    collect_garbage(home)
    assert stored(home) == set()


def test_a_clock_that_was_set_back_ages_no_commit(home: RepositoryContext, clock: WallClock) -> None:
    """A commit that is made while the clock is years behind counts as young as the commit it follows."""
    clock.advance(1000 * DAY_S)
    old = put(home, "a", b"one")
    commit(home, "main", message="1")
    clock.offset_s = -900 * DAY_S
    new = put(home, "a", b"two")
    late = commit(home, "main", message="2")
    assert late.created_at_ms == home.now_ms()
    clock.offset_s = 0
    clock.advance(3 * DAY_S)
    store_retention(home, default_days=5)
    collect_garbage(home)
    assert stored(home) == {old, new}


@pytest.mark.parametrize("longer", ["main", "zebra"])
def test_of_two_rules_for_one_commit_the_longer_wins(home: RepositoryContext, clock: WallClock, longer: str) -> None:
    """Two branches at one commit: what it follows is kept for the longer of their rules, in either order."""
    old = put(home, "a", b"one")
    commit(home, "main", message="1")
    new = put(home, "a", b"two")
    commit(home, "main", message="2")
    create_branch(home, "zebra", source="main")
    rules = {"main": 1, "zebra": 1, longer: 30}
    store_retention(home, default_days=0, branch_days=rules)
    clock.advance(20 * DAY_S)
    collect_garbage(home)
    assert stored(home) == {old, new}
    clock.advance(20 * DAY_S)
    collect_garbage(home)
    assert stored(home) == {new}


@pytest.mark.parametrize("days", [None, 60])
@pytest.mark.parametrize("merged", [False, True])
def test_every_side_of_a_history_with_merges_is_kept(
    home: RepositoryContext, clock: WallClock, merged: bool, days: int | None
) -> None:
    """Of branches that share a past, and of one into which the others were merged, nothing goes."""
    contents: dict[str, dict[str, bytes]] = {}

    put(home, "main", b"0")
    contents[commit(home, "main", message="0").id] = {"main": b"0"}
    for branch in ("x", "y", "z"):
        create_branch(home, branch, source="main")
    for number in (b"1", b"2"):
        for branch in ("main", "x", "y", "z"):
            put(home, branch, number, branch=branch)
            made = commit(home, branch, message=f"{branch} {number!r}").id
            contents[made] = bodies(home, made)
    if merged:
        for source, into in (("x", "y"), ("y", "z"), ("z", "main")):
            made = merge(home, source, into=into).id
            contents[made] = bodies(home, made)
        for branch in ("x", "y", "z"):
            delete_branch(home, branch)
    if days is not None:
        store_retention(home, default_days=days)
    clock.advance(30 * DAY_S)
    collect_garbage(home, options=SOON)
    assert {id: bodies(home, id) for id in contents} == contents
    logged = {made.id for name, _ in list_branches(home) for made in log(home, name)}
    assert contents.keys() <= logged


def test_hidden_branches_keep_their_objects(home: RepositoryContext, clock: WallClock) -> None:
    """A hidden branch, as a transaction makes one, keeps what is staged on it and what only it has committed."""
    create_branch(home, "transaction", source="main", hidden=True)
    committed = put(home, "a", b"one", branch="transaction")
    commit(home, "transaction", message="1")
    staged = put(home, "b", b"two", branch="transaction")
    assert "transaction" not in [name for name, _ in list_branches(home)]
    clock.advance(30 * DAY_S)
    collect_garbage(home, options=SOON)
    assert stored(home) == {committed, staged}
    assert bodies(home, "transaction") == {"a": b"one", "b": b"two"}


def test_sealed_tokens_keep_their_objects(home: RepositoryContext, clock: WallClock) -> None:
    """What was staged before a branch was sealed is kept, and committed afterwards."""
    first = put(home, "a", b"one")
    seal(home, "main")
    second = put(home, "b", b"two")
    sealed = seal(home, "main")
    assert len(sealed.record.sealed) == 2
    clock.advance(30 * DAY_S)
    collect_garbage(home, options=SOON)
    assert stored(home) == {first, second}
    commit(home, "main", message="1")
    assert bodies(home, "main") == {"a": b"one", "b": b"two"}


def test_an_expired_commit_is_called_so_where_its_actions_cannot_be_read(clock: WallClock) -> None:
    """A branch or tag of it, and a commit that brings it back, are refused as without actions."""
    environment = Environment(clock=clock, rng=random.Random(1))
    options = replace(OPTIONS, run_actions=True)
    with open_context(MemoryRepository(environment=environment, options=options)) as home:
        put(home, "_lakefs_actions/a.yaml", b"name: a")
        with pytest.raises(Rejected):
            commit(home, "main", message="it cannot be used")
        delete(home, branch="main", path="_lakefs_actions/a.yaml")
        put(home, "_lakefs_actions/a.yaml", ACTION)
        old = commit(home, "main", message="old").id
        delete(home, branch="main", path="_lakefs_actions/a.yaml")
        put(home, "x", b"new")
        clock.advance(1)
        commit(home, "main", message="new")
        clock.advance(2 * DAY_S)
        store_retention(home, default_days=1)
        assert collect_garbage(home, options=SOON).deleted_count
        for refer in (
            lambda: actions.create_branch(home, "dev", source=old),
            lambda: actions.create_tag(home, "v1", commit_id=old),
            lambda: Restore(version=old).run(home),
        ):
            with raises(InvalidRequest, "commit_expired"):
                refer()
