"""Resets: what they give up, what they leave, and what races with them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from typing import TypeVar

import pyarrow as pa
import pytest

from lakebed import Table
from lakebed.errors import InvalidRequest, NotFound, OutcomeUnknown
from lakebed.key_value.port import KeyValue
from lakebed.repo.heads.compact import compact_once
from lakebed.repo.heads.heads import seal
from lakebed.repo.heads.write import delete_prefix
from lakebed.repo.model.layout import Keys, metarange_path
from lakebed.repo.records.context import RepositoryContext
from lakebed.repo.records.protection import protect
from lakebed.repo.references.branches import create_branch, load_branch
from lakebed.repo.staging.cleanup import clean_once
from lakebed.repo.transport.local_objects import local_store
from lakebed.testing.between import Between
from worlds.errors import raises
from worlds.key_value_wrapper import KeyValueCall, KeyValueWrapper
from worlds.repo.memory_repository import (
    MemoryRepository,
    Pause,
    contents,
    head_of,
    open_context,
    put,
    put_many,
    remove,
    uncommitted_of,
)
from worlds.repo.operations import (
    cherry_pick,
    commit,
    commit_text,
    hard_reset,
    merge,
    reset,
    reset_path,
    reset_prefix,
    revert,
)

R = TypeVar("R")


class Always(KeyValueWrapper):
    """A key-value store in which another process acts before each write."""

    def __init__(self, inner: KeyValue, act: Callable[[], object]) -> None:
        super().__init__(inner)
        self._act = act

    def intercept(self, call: KeyValueCall, perform: Callable[[], R]) -> R:
        """Let the other act first."""
        if call.changes:
            self._act()
        return perform()


BASE = {f"{folder}/{n}": "old" for folder in "abc" for n in range(8)}


@pytest.fixture
def home() -> Iterator[RepositoryContext]:
    """A repository with three folders committed."""
    with open_context(MemoryRepository()) as opened:
        put_many(opened, "main", BASE)
        commit(opened, "main", message="base")
        yield opened


def stage_layers(home: RepositoryContext) -> None:
    """Changes in every folder, in a compacted layer, a sealed token and the staging token."""
    put_many(home, "main", {"a/0": "1", "b/0": "1", "b/new": "1", "d/0": "1"})
    remove(home, "main", "c/0")
    compact_once(home, "main", force=True)
    put_many(home, "main", {"a/1": "2", "b/1": "2"})
    remove(home, "main", "b/2")
    delete_prefix(home, branch="main", prefix="c/")
    put_many(home, "main", {"a/2": "3", "b/new": "3", "c/5": "3"})


def test_a_reset_gives_up_everything(home: RepositoryContext) -> None:
    """Every layer goes, and the rows of dropped tokens are cleaned up; the head stays."""
    stage_layers(home)
    head = load_branch(home, "main")[0].commit_id
    assert reset(home, "main").id == head
    assert contents(home, "main") == BASE
    assert uncommitted_of(home, "main") == {}
    record, _ = load_branch(home, "main")
    assert (record.sealed, record.compacted) == ((), None)
    clean_once(home)
    with home.key_value.snapshot() as snapshot:
        staging = Keys("01").staging()
        assert list(snapshot.scan(staging, staging + b"\xff")) == []


def test_a_reset_reads_nothing_of_what_it_gives_up(home: RepositoryContext) -> None:
    """However long the list of tokens is, and even when the compacted metarange is lost."""
    put_many(home, "main", {f"x/{n}": "1" for n in range(50)})
    compact_once(home, "main", force=True)
    for number in range(home.options.sealed_tokens_max + 3):
        put(home, "main", f"p/{number}", "x")
        delete_prefix(home, branch="main", prefix="p/")
    compacted = load_branch(home, "main")[0].compacted
    assert compacted is not None
    assert compacted.file is not None
    home.store.delete([metarange_path(compacted.file.id)])
    with home.committed.count() as counts:
        reset(home, "main")
    assert counts.ranges_read == 0
    assert contents(home, "main") == BASE


def test_a_reset_of_a_prefix_is_computed_against_the_commit(home: RepositoryContext) -> None:
    """Paths below it come back as they were committed, compacted or not; all others stay as they are shown."""
    stage_layers(home)
    before = contents(home, "main")
    reset_prefix(home, "main", prefix="b/")
    expected = {path: text for path, text in before.items() if not path.startswith("b/")}
    expected |= {path: text for path, text in BASE.items() if path.startswith("b/")}
    assert contents(home, "main") == expected
    assert not [path for path in uncommitted_of(home, "main") if path.startswith("b/")]
    reset_prefix(home, "main", prefix="c/")
    assert {path: text for path, text in contents(home, "main").items() if path < "d"} == {
        **{path: text for path, text in BASE.items() if not path.startswith("a/")},
        **{path: text for path, text in before.items() if path.startswith("a/")},
    }


@pytest.mark.parametrize("path", ["a/0", "a/1", "a/2", "b/new", "b/2", "c/0", "c/5", "c/6", "d/0", "a/7", "nothing"])
def test_a_reset_of_a_path_leaves_all_others(home: RepositoryContext, path: str) -> None:
    """In each layer that changed it: added, changed or deleted."""
    stage_layers(home)
    expected = contents(home, "main")
    expected.pop(path, None)
    if path in BASE:
        expected[path] = BASE[path]
    reset_path(home, "main", path=path)
    assert contents(home, "main") == expected
    commit(home, "main", message="the rest")
    assert head_of(home, "main") == expected


def test_the_last_path_reset_leaves_a_clean_branch(home: RepositoryContext) -> None:
    """Nothing compacted is kept when it says what the head says."""
    put(home, "main", "a/0", "1")
    compact_once(home, "main", force=True)
    reset_path(home, "main", path="a/0")
    record, _ = load_branch(home, "main")
    assert (record.sealed, record.compacted) == ((), None)


def test_a_clean_branch_can_be_reset(home: RepositoryContext) -> None:
    """Nothing happens, and no token is left sealed."""
    for _ in range(3):
        reset(home, "main")
        reset_path(home, "main", path="a/0")
        reset_prefix(home, "main", prefix="a/")
    assert contents(home, "main") == BASE
    assert load_branch(home, "main")[0].sealed == ()


def test_a_hard_reset_moves_the_head(home: RepositoryContext) -> None:
    """Back and forth again; what was staged has to go first, or is given up by force."""
    second = commit_text(home, "main", "a/0", "1", message="second")
    put(home, "main", "x", "1")
    with raises(InvalidRequest, "dirty_branch"):
        hard_reset(home, "main", ref="main~1")
    compact_once(home, "main", force=True)
    hard_reset(home, "main", ref="main~1", force=True)
    assert contents(home, "main") == BASE
    assert load_branch(home, "main")[0].compacted is None
    seen = {load_branch(home, "main")[1]}
    for _ in range(3):
        hard_reset(home, "main", ref=second.id)
        seen.add(load_branch(home, "main")[1])
        hard_reset(home, "main", ref=f"{second.id}~1")
        seen.add(load_branch(home, "main")[1])
    assert len(seen) == 7  # no record of a branch is ever there twice
    with pytest.raises(NotFound):
        hard_reset(home, "main", ref="nowhere")


def test_a_protected_branch_is_not_reset(home: RepositoryContext) -> None:
    """Neither its staging area nor its head."""
    put(home, "main", "x", "1")
    protect(home, "main")
    for attempt in (
        lambda: reset(home, "main"),
        lambda: reset_path(home, "main", path="x"),
        lambda: hard_reset(home, "main", ref="main~1"),
    ):
        with raises(InvalidRequest, "protected_branch"):
            attempt()
    assert contents(home, "main")["x"] == "1"


def test_expired_commits_are_not_referred_to_again(home: RepositoryContext) -> None:
    """A verb that would bring their entries back is refused, and nothing moves."""
    old = commit_text(home, "main", "a/0", "1", message="old")
    create_branch(home, "dev", source="main")
    expired = commit_text(home, "dev", "a/1", "1", message="expired")
    child = commit_text(home, "dev", "a/2", "1", message="child")
    home.key_value.set(home.keys.expired(expired.id), b"1")
    before = load_branch(home, "main")[0]
    for attempt in (
        lambda: hard_reset(home, "main", ref=expired.id),
        lambda: merge(home, expired.id, into="main"),
        lambda: cherry_pick(home, "main", ref=expired.id),
        lambda: revert(home, "dev", ref=child.id),
    ):
        with raises(InvalidRequest, "commit_expired") as caught:
            attempt()
        assert expired.id in str(caught.value)
    assert load_branch(home, "main")[0].commit_id == before.commit_id == old.id


def test_a_collection_that_begins_makes_an_operation_begin_again(home: RepositoryContext) -> None:
    """A boundary that moved between plan and publish: the plan is made anew, once more, and the commit is there."""
    tries = []

    def move_boundary(call: object) -> None:
        tries.append(call)
        if len(tries) < 3:
            home.key_value.set(home.keys.boundary, f"{len(tries):026}".encode())

    home.hooks.register("pre-commit", move_boundary)
    commit_text(home, "main", "x", "1", message="m")
    assert len(tries) == 3
    assert head_of(home, "main")["x"] == "1"


def append(home: RepositoryContext, *ids: int) -> None:
    """Commit rows to the table ``t`` in the branch."""
    Table.open(local_store(home, "main", "t"), name="t").append(pa.table({"id": ids}))


def append_and_seal(home: RepositoryContext, *ids: int) -> None:
    """As `append`, and an operation that fails begins between the files and the snapshot."""
    store = Between(local_store(home, "main", "t"), kind="put", prefix="manifest/", happens=lambda: seal(home, "main"))
    Table.open(store, name="t").append(pa.table({"id": ids}))
    assert store.happened


@pytest.mark.parametrize(
    ("verb", "write"),
    [
        (reset, append),
        (reset, append_and_seal),
        (partial(reset_prefix, prefix="t/"), append),
        (partial(hard_reset, ref="main", force=True), append),
    ],
    ids=["all", "sealed", "table", "hard"],
)
def test_a_commit_of_a_table_during_a_reset_leaves_a_table_that_can_be_read(
    verb: Callable[[RepositoryContext, str], object], write: Callable[..., None]
) -> None:
    """Before whichever step of the reset it comes, it goes whole or lies on what the reset left."""
    at = 0
    while True:
        place, rows = MemoryRepository(), pa.table({"id": [1]})
        with open_context(place) as home:
            Table.create(local_store(home, "main", "t"), name="t", schema=rows.schema).append(rows)
            commit(home, "main", message="a row")
            append(home, 2)
            pause = Pause(at, partial(write, home, 3))
            with open_context(place, trap=pause) as slow:
                verb(slow, "main")
            table = Table.open(local_store(home, "main", "t"), name="t")
            left = table.read()["id"].to_pylist()
            append(home, 4)
            assert table.read()["id"].to_pylist() == [*left, 4]
        if not pause.has_sprung:
            assert left == [1]
            break
        assert left in ([1], [1, 3]), at
        at += 1
    assert at > 5


def test_a_reset_of_a_prefix_that_others_stage_below_all_the_time_says_so(home: RepositoryContext) -> None:
    """What they stage may rest on what went; each time it was reset again."""
    staged = 0

    def stage_more() -> None:
        nonlocal staged
        staged += 1
        put(home, "main", "a/0", str(staged))

    stage_more()
    racing = replace(home, key_value=Always(home.key_value, stage_more))
    with raises(OutcomeUnknown, "outcome_unknown"):
        reset_prefix(racing, "main", prefix="a/")
    assert staged > home.options.publish_tries_max
    reset_prefix(home, "main", prefix="a/")
    assert contents(home, "main") == BASE
