"""Tables in branches of repositories, in Paimon's REST catalog: names, keys, and what a branch refuses."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

from lakebed import Table
from lakebed.errors import Conflict
from lakebed.server.reference_tables import Namespace, ReferenceTables, check_kept
from lakebed.table.codec.snapshot_json import encode_snapshot
from worlds.errors import raises

if TYPE_CHECKING:
    from conftest import Answer, Client
    from lakebed.repo import Repository
    from lakebed.server.lifecycle import Running

ROOT = "/paimon/v1/lake"
SCHEMA = pa.schema([("id", pa.int64()), ("day", pa.string())])
FIELDS = [{"id": 0, "name": "id", "type": "BIGINT"}, {"id": 1, "name": "day", "type": "STRING"}]


@pytest.fixture
def running(serve: Callable[..., Running], tmp_path: Path) -> Running:
    """A server with the S3 gateway, a repository ``analytics`` and its branches ``main`` and ``etl``."""
    made = serve(s3_key_file=str(tmp_path / "s3.key"))
    made.site.repositories.create("analytics").create_branch("etl")
    return made


@pytest.fixture
def analytics(running: Running) -> Repository:
    """The repository."""
    return running.site.repositories.repository("analytics")


@pytest.fixture
def client(running: Running, connect: Any) -> Client:
    """A client that may everything."""
    return connect(running)


def ask(client: Client, method: str, place: str, body: Any = None, status: int = 200) -> Answer:
    """One request below the catalog's prefix, and what it has to answer."""
    answer = client.ask_root(method, ROOT + place, body, None)
    assert answer.status == status, answer.body
    if status >= 400:
        assert set(answer.json) == {"message", "resourceType", "resourceName", "code"}
    return answer


def make(client: Client, database: str = "analytics.etl", name: str = "t", status: int = 200) -> Answer:
    """Create a table."""
    body = {"identifier": {"database": database, "object": name}, "schema": {"fields": FIELDS}}
    return ask(client, "POST", f"/databases/{database}/tables", body, status)


def table_of(analytics: Repository, reference: str = "etl") -> Table:
    """The table ``t`` of a branch, by lakebed."""
    return Table.open(analytics.branch(reference).store().sub("tables/t"), name="t")


def test_a_branch_is_a_database(client: Client, analytics: Repository) -> None:
    """Its tables are in the folder ``tables``, are read at tags and commits, and commits of the branch have them."""
    make(client)
    assert ask(client, "GET", "/databases").json["databases"] == ["analytics.etl", "analytics.main", "default"]
    assert ask(client, "GET", "/databases/analytics.etl").json["location"] == "s3://analytics/etl/tables"
    shown = ask(client, "GET", "/databases/analytics.etl/tables/t").json
    assert (shown["path"], shown["name"]) == ("s3://analytics/etl/tables/t", "t")
    make(client, status=409)
    table_of(analytics).append(pa.table({"id": [1], "day": ["a"]}, SCHEMA))
    ask(client, "POST", "/databases/analytics.etl/tables/t/tags", {"tagName": "first"})
    changes = {"changes": [{"action": "addColumn", "fieldNames": ["n"], "dataType": "INT", "move": None}]}
    ask(client, "POST", "/databases/analytics.etl/tables/t", changes)
    commit = analytics.branch("etl").commit("a table")
    table_of(analytics).append(pa.table({"id": [2], "day": ["b"], "n": [1]}, table_of(analytics).arrow_schema))
    analytics.create_tag("v1.0", ref=commit.id)
    for reference, id in (("etl", 2), ("v1.0", 1), (commit.id, 1)):
        newest = ask(client, "GET", f"/databases/analytics.{reference}/tables/t/snapshot").json["snapshot"]
        assert newest["snapshot"]["id"] == id
        assert ask(client, "GET", f"/databases/analytics.{reference}/tables").json["tables"] == ["t"]
    assert ask(client, "GET", "/databases/analytics.main/tables").json["tables"] == []
    ids = {ask(client, "GET", f"/databases/analytics.{name}/tables/t").json["id"] for name in ("etl", "v1.0")}
    assert len(ids) == 2  # a commit that was prepared for one is refused by the other


@pytest.mark.parametrize(
    ("status", "method", "place"),
    [
        (404, "GET", "/databases/analytics.none"),
        (404, "GET", "/databases/nothing.main/tables"),
        (404, "GET", "/databases/a.b/tables/t"),
        (404, "GET", "/databases/analytics.main/tables/none"),
        (404, "GET", "/databases/analytics.etl/tables/t$branch_none"),
        (404, "GET", "/databases/analytics.etl/tables/a.b"),
        (400, "GET", "/databases/analytics.etl/tables/a%1Fb"),
        (400, "GET", "/databases/analytics.%1F/tables"),
        (404, "GET", "/databases/analytics./tables/a%2Fb"),
        (501, "DELETE", "/databases/analytics.etl/tables/t"),
        (501, "DELETE", "/databases/analytics.etl"),
    ],
)
def test_what_a_branch_has_not(client: Client, status: int, method: str, place: str) -> None:
    """Unknown repositories, references and names, and what is done with a branch itself, are errors of the protocol."""
    make(client)
    ask(client, method, place, status=status)
    assert ask(client, "GET", "/databases/analytics.etl/tables").json["tables"] == ["t"]


def test_what_is_read_only_is_not_changed(client: Client, analytics: Repository) -> None:
    """Tags and commits, protected branches and read-only repositories take no table, tag or commit of a table."""
    make(client)
    table_of(analytics).append(pa.table({"id": [1], "day": ["a"]}, SCHEMA))
    commit = analytics.branch("etl").commit("a table")
    analytics.create_tag("v1", ref=commit.id)
    tag = {"tagName": "x"}
    assert "never changes" in ask(client, "POST", "/databases/analytics.v1/tables/t/tags", tag, 400).json["message"]
    make(client, "analytics.v1", "u", 400)
    analytics.protect("etl")
    ask(client, "POST", "/databases/analytics.etl/tables/t/tags", tag, 403)
    make(client, "analytics.etl", "u", 403)
    assert table_of(analytics).tags() == []
    ask(client, "POST", "/databases", {"name": "analytics.new"}, 501)
    ask(client, "POST", "/databases", {"name": "analytics.etl"}, 409)  # clients create it "if it does not exist"
    ask(client, "POST", "/databases/analytics.etl", {"updates": {"a": "1"}}, 501)
    assert [branch.name for branch in analytics.branches()] == ["etl", "main"]


def test_a_key_of_a_repository_sees_its_branches_alone(client: Client, running: Running) -> None:
    """Limits of repositories hold for the tables in them, and limits of tables reach no branch."""
    running.site.repositories.create("other")
    make(client)
    limited = client.new_key("write", repositories=["analytics"])
    assert ask(limited, "GET", "/databases").json["databases"] == ["analytics.etl", "analytics.main"]
    assert ask(limited, "GET", "/tables").json["tables"] == [{"database": "analytics.etl", "object": "t"}]
    make(limited, name="u")
    ask(limited, "GET", "/databases/other.main/tables", status=403)
    ask(limited, "GET", "/databases/default/tables", status=403)
    reader = client.new_key("read", repositories=["analytics"])
    make(reader, name="v", status=403)
    tables = client.new_key("admin", tables=["*"])
    assert ask(tables, "GET", "/databases").json["databases"] == ["default"]
    ask(tables, "GET", "/databases/analytics.etl/tables/t", status=404)
    ask(tables, "GET", "/databases/analytics.etl/tables/t/snapshot", status=403)


def test_a_branch_that_goes_meanwhile_spoils_no_list(
    client: Client, analytics: Repository, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The tables of all databases are listed though a branch is deleted between its listing and that of its tables."""
    make(client)
    make(client, "analytics.main", "kept")
    list_namespaces = ReferenceTables.namespaces

    def list_then_delete(tables: ReferenceTables) -> list[Namespace]:
        namespaces = list(list_namespaces(tables))
        analytics.delete_branch("etl")
        return namespaces

    monkeypatch.setattr(ReferenceTables, "namespaces", list_then_delete)
    assert ask(client, "GET", "/tables").json["tables"] == [{"database": "analytics.main", "object": "kept"}]


def test_a_repository_that_goes_meanwhile_spoils_no_list(running: Running) -> None:
    """One that is deleted between the names of repositories and its branches is left out; the others are listed."""
    repositories = running.site.repositories
    for name in ("bronze", "gold"):
        repositories.create(name)
    names = map(str, ReferenceTables(repositories, speaks_s3=True).namespaces())
    listed = [next(names)]
    repositories.delete("bronze")
    listed += names
    assert listed == ["analytics.etl", "analytics.main", "gold.main"]


def test_without_the_gateway_nothing_is_promised(serve: Callable[..., Running], connect: Any) -> None:
    """A server without S3 shows the branches, and says of their tables what is missing."""
    running = serve()
    running.site.repositories.create("analytics")
    client = connect(running)
    assert "--s3-key" in make(client, "analytics.main", status=501).json["message"]
    assert ask(client, "GET", "/databases/analytics.main/tables").json["tables"] == []


def test_a_commit_whose_files_a_reset_took_is_not_acknowledged(client: Client, analytics: Repository) -> None:
    """What is checked before the commit may be gone when it is made: then the client is told, and not that it is."""
    make(client)
    etl = analytics.branch("etl")
    etl.commit("an empty table")
    table = table_of(analytics)
    table.append(pa.table({"id": [1], "day": ["a"]}, SCHEMA))
    snapshot = table.latest()
    assert snapshot is not None
    check_kept(table, snapshot)
    path = table.context.layout.snapshot(snapshot.id)
    put = bytes(table.store.get(path))
    etl.reset()
    check_kept(table, snapshot)  # the reset came after the commit, and took all of it
    table.store.put(path, put, create_only=True)  # it came before, and took what the commit names
    with raises(Conflict, "branch_moved"):
        check_kept(table, snapshot)


def test_a_commit_whose_files_a_reset_took_before_it_is_not_made(client: Client, analytics: Repository) -> None:
    """A client that finds its commit after an error reports success: so none is made, and the table is whole."""
    make(client)
    etl = analytics.branch("etl")
    etl.commit("an empty table")
    table = table_of(analytics)
    table.append(pa.table({"id": [1], "day": ["a"]}, SCHEMA))
    prepared = table.latest()
    assert prepared is not None
    [data] = [meta.path for meta in table.store.list("bucket-0")]
    paths = [data, *(meta.path for meta in table.store.list("manifest"))]
    files = {path: bytes(table.store.get(path)) for path in paths}
    etl.reset()
    body = {"snapshot": json.loads(encode_snapshot(replace(prepared, properties={})))}
    for path in files.keys() - {data}:
        table.store.put(path, files[path])  # clients write these when they commit, and the data before
    answer = ask(client, "POST", "/databases/analytics.etl/tables/t/commit", body, 400)
    assert f"the file {data}" in answer.json["message"]
    assert "the branch was reset" in answer.json["message"]
    assert table_of(analytics).latest() is None
    table.store.put(data, files[data])
    assert ask(client, "POST", "/databases/analytics.etl/tables/t/commit", body).json == {"success": True}
    assert table_of(analytics).read().to_pylist() == [{"id": 1, "day": "a"}]


def test_files_that_a_later_commit_replaced_are_not_missed(client: Client, analytics: Repository) -> None:
    """A compaction and an expiry of another writer take files of a commit rightly."""
    make(client)
    table = table_of(analytics)
    for id in range(5):
        table.append(pa.table({"id": [id], "day": ["a"]}, SCHEMA))
    first = table.resolve(version=1)
    table.compact(full=True)
    check_kept(table, first)
    table.expire(retain_max=1, retain_min=1, older_than_ms=2**60)
    check_kept(table, first)
