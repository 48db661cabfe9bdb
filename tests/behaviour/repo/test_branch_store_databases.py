"""Databases inside branches: they open, write, fork with their branch, and are merged whole."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

import lakebed.kv
from lakebed.errors import Conflict, Fenced, InvalidRequest
from lakebed.kv import Database, DatabaseOptions
from lakebed.repo.records.context import RepositoryContext
from lakebed.repo.references.branches import create_branch
from lakebed.repo.transport.local_objects import local_store
from worlds.errors import raises
from worlds.repo.memory_repository import MemoryRepository, open_context
from worlds.repo.operations import commit, merge

QUIET = DatabaseOptions(background=False)


@pytest.fixture
def home() -> Iterator[RepositoryContext]:
    """A repository whose ``main`` holds a database of fifty rows, closed."""
    with open_context(MemoryRepository()) as opened:
        with database(opened, "main") as made:
            for number in range(50):
                made.put(b"k%03d" % number, b"%d" % number)
            made.flush(memtable=True)
            made.put(b"last", b"in the log")
        yield opened


def database(home: RepositoryContext, reference: str, *, take_over: bool = False) -> Database:
    """The database as a reference has it."""
    return lakebed.kv.open(local_store(home, reference, "db"), options=QUIET, take_over=take_over)


def test_it_opens_writes_closes_and_opens_again(home: RepositoryContext) -> None:
    """What was put is there after closing, with one owner at a time, as on any store."""
    with database(home, "main") as opened:
        assert opened.get(b"k007") == b"7"
        assert opened.get(b"last") == b"in the log"
        assert len(list(opened.scan())) == 51
        with raises(Conflict, "owned"):
            database(home, "main")
    with database(home, "main") as opened:
        opened.put(b"again", b"opened")
    first = database(home, "main")
    with database(home, "main", take_over=True) as second:
        second.put(b"second", b"owner")
    with pytest.raises(Fenced):
        first.put(b"first", b"owner")
    first.close()
    with database(home, "main") as opened:
        assert [opened.get(key) for key in (b"again", b"second", b"first")] == [b"opened", b"owner", None]


def test_a_commit_holds_what_was_acknowledged(home: RepositoryContext) -> None:
    """A branch made of a commit that was taken under a running writer has its rows, and goes its own way."""
    with database(home, "main") as writer:
        writer.put(b"before", b"1")
        commit(home, "main", message="under a writer")
        writer.put(b"after", b"1")
        create_branch(home, "dev", source="main@")
        with database(home, "dev", take_over=True) as forked:
            assert (forked.get(b"before"), forked.get(b"after")) == (b"1", None)
            forked.put(b"only", b"dev")
        assert writer.get(b"only") is None
        writer.put(b"still", b"mine")
    with database(home, "main") as again:
        assert (again.get(b"after"), again.get(b"still"), again.get(b"only")) == (b"1", b"mine", None)


def test_it_is_merged_whole(home: RepositoryContext) -> None:
    """Two sides that wrote are one conflict; a strategy takes the database of one side, and it opens."""
    commit(home, "main", message="base")
    create_branch(home, "dev", source="main")
    for branch in ("main", "dev"):
        with database(home, branch, take_over=True) as opened:
            opened.put(branch.encode(), b"1")
        commit(home, branch, message=branch)
    with pytest.raises(Conflict) as caught:
        merge(home, "dev", into="main")
    assert caught.value.facts["paths"] == ["db/"]
    merge(home, "dev", into="main", strategy="source-wins")
    with database(home, "main", take_over=True) as merged:
        assert (merged.get(b"dev"), merged.get(b"main"), merged.get(b"k049")) == (b"1", None, b"49")


def test_a_commit_is_not_opened(home: RepositoryContext) -> None:
    """Opening is writing, also for a reader, which pins what it reads: over a commit a sentence says where to."""
    commit(home, "main", message="base")
    for ask in (
        lambda: database(home, "main@", take_over=True),
        lambda: lakebed.kv.open_reader(local_store(home, "main@", "db")),
    ):
        with raises(InvalidRequest, "read_only", match="write to a branch"):
            ask()
    with lakebed.kv.open_reader(local_store(home, "main", "db")) as reader:
        assert reader.get(b"last") == b"in the log"
