"""A branch behind a server as an object-storage port: the port's own contract, unchanged, over HTTP."""

from __future__ import annotations

import itertools
import pickle
from collections.abc import Callable, Iterator
from typing import Any

import pyarrow as pa
import pytest

import lakebed.repo
from lakebed import Table
from lakebed.errors import InvalidRequest, NotFound
from lakebed.objects import ObjectStore
from lakebed.repo import RepositoryOptions
from lakebed.repo.objects.task_store import EntryStore
from lakebed.repo.repository import Repository
from lakebed.repo.transport.transport import transport_of
from lakebed.server.options import ServerOptions
from lakebed.server.serve import start_server
from worlds.errors import raises
from worlds.modules import object_store_tests

FOLDERS = itertools.count()


globals().update(object_store_tests())


@pytest.fixture(scope="module")
def repo(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Repository]:
    """A repository behind a server, for all tests of the module: each has a folder of its own."""
    options = RepositoryOptions(background=False)
    with start_server(
        tmp_path_factory.mktemp("served"), options=ServerOptions(durable=False, repository_options=options)
    ) as running:
        messages = running.started
        home: Any = lakebed.repo.open_all(
            messages.endpoint, access=lakebed.repo.Access(access_key=messages.access_key, secret=messages.secret)
        )
        with home:
            yield home.create("analytics")


@pytest.fixture
def opened(repo: Repository) -> Callable[..., Any]:
    """Opens one folder of a branch again and again; what was there before is gone."""
    folder = f"some/prefix-{next(FOLDERS)}"
    outside = repo.branch().store("some")
    outside.put(f"{folder.removeprefix('some/')}-beside", b"not seen")
    return lambda **_: repo.branch().store(folder)


def test_it_is_a_store_of_entries(repo: Repository) -> None:
    """It names itself by its URL, can be pickled, and shows neither key nor secret."""
    store = repo.branch().store("a/")
    assert isinstance(store, ObjectStore)
    assert isinstance(store, EntryStore)
    assert store.is_versioned
    assert store.root_url == f"{transport_of(repo).url}/main/a"
    store.put("b", b"body")
    assert bytes(pickle.loads(pickle.dumps(store)).get("b")) == b"body"
    assert store.url("b").startswith(f"{transport_of(repo).url}/data/")
    with pytest.raises(NotFound):
        repo.branch("nothing").store()


def test_other_references_are_read(repo: Repository) -> None:
    """A tag or commit reads as it was, a branch's name as it is; none of them can be written to."""
    branch = repo.create_branch("read")
    branch.store("r").put("x", b"1")
    branch.commit("one")
    repo.create_tag("v1", ref="read")
    at_tag, live = repo.ref("v1").store("r"), repo.ref("read").store("r")
    branch.store("r").put("x", b"2")
    assert bytes(at_tag.get("x")) == bytes(repo.ref("read@").store("r").get("x")) == b"1"
    assert bytes(live.get("x")) == b"2"
    for store in (at_tag, live):
        with raises(InvalidRequest, "read_only"):
            store.put("x", b"3")
    with pytest.raises(NotFound):
        repo.ref("never").store()


def test_a_table_lives_behind_a_server(repo: Repository) -> None:
    """A table is made, upserted, tagged, compacted, expired and merged through the server alone."""
    dev = repo.create_branch("tables", version=repo.create_branch("target"))
    schema = pa.schema([pa.field("id", pa.int64(), nullable=False), ("note", pa.string())])
    table = Table.create(
        dev.store("t/trips"), name="trips", schema=schema, primary_keys=["id"], options={"bucket": "2"}
    )
    expected: dict[int, str] = {}
    for number in range(4):
        rows = dict.fromkeys(range(number, number + 5), f"{number}")
        table.upsert(pa.table({"id": list(rows), "note": list(rows.values())}))
        expected |= rows
        if number == 1:
            table.create_tag("two")
            then = dict(expected)
    table.compact(full=True)
    table.expire(retain_max=1, retain_min=1, older_than_ms=2**50)
    dev.commit("a table")
    repo.branch("target").merge("tables")
    merged = Table.open(repo.ref("target").store("t/trips"), name="trips")
    for version, rows in ((None, expected), ("two", then)):
        result = merged.read(version=version).to_pydict()
        assert dict(zip(result["id"], result["note"], strict=True)) == rows


def test_an_expression_means_what_it_meant_when_it_was_opened(repo: Repository) -> None:
    """A store over ``branch@`` stays at the commit that was its head, even when the branch moves."""
    branch = repo.create_branch("moves")
    branch.put("m/x", b"1")
    branch.commit("one")
    then = repo.ref("moves@").store("m")
    branch.put("m/x", b"2")
    branch.commit("two")
    assert bytes(then.get("x")) == b"1"
    assert bytes(repo.ref("moves@").store("m").get("x")) == b"2"


def test_a_job_may_look_up_as_many_files_as_a_request_names(opened: Callable[..., Any]) -> None:
    """The paths of one request together are larger than any other message to the server may be."""
    store = opened()
    store.put("here", b"bytes")
    paths = [f"{number:06d}/{'x' * 900}" for number in range(10_000)]
    assert set(store.entries([*paths, "here"])) == {"here"}
