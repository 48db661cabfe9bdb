"""What cannot be served: the status of the interface, one clear sentence, and nothing changed."""

from __future__ import annotations

import socket
import urllib.parse
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from lakebed.server.lifecycle import Running
from lakebed.server.options import ServerOptions
from lakebed.server.serve import start_server

COMMIT = ":/branches/main/commits"


@pytest.fixture(scope="module")
def unchanged(tmp_path_factory: pytest.TempPathFactory, connect: Callable[[Running], Any]) -> Iterator[Any]:
    """One server for all mistakes, since none of them changes anything: a repository with one commit."""
    with start_server(tmp_path_factory.mktemp("lake"), options=ServerOptions(durable=False)) as running:
        client = connect(running)
        client.ask("POST", "/repositories", {"name": "analytics", "storage_namespace": "local://analytics"})
        client.put("staged")
        client.commit()
        yield client


@pytest.mark.parametrize(
    ("method", "place", "body", "query", "status"),
    [
        ("GET", "/repositories/missing", None, {}, 404),
        ("GET", "/repositories/missing/branches", None, {}, 404),
        ("DELETE", "/repositories/missing", None, {}, 404),
        ("GET", "/repositories/Wrong_Name", None, {}, 400),
        ("GET", ":/branches/missing", None, {}, 404),
        ("DELETE", ":/branches/missing", None, {}, 404),
        ("DELETE", ":/branches/main", None, {}, 403),
        ("POST", ":/branches", {"name": "dev", "source": "missing"}, {}, 404),
        ("POST", ":/branches", {"name": "main", "source": "main"}, {}, 409),
        ("POST", ":/branches", {"name": "no space", "source": "main"}, {}, 400),
        ("POST", ":/branches", {"name": "-x", "source": "main"}, {}, 400),
        ("GET", ":/tags/missing", None, {}, 404),
        ("DELETE", ":/tags/missing", None, {}, 404),
        ("POST", ":/tags", {"id": "t", "ref": "missing"}, {}, 404),
        ("POST", ":/tags", {"id": "a b", "ref": "main"}, {}, 400),
        ("GET", ":/commits/missing", None, {}, 404),
        ("GET", ":/commits/main~99", None, {}, 404),
        ("GET", ":/refs/missing/commits", None, {}, 404),
        ("GET", ":/refs/main/commits", None, {"since": "yesterday"}, 400),
        ("GET", ":/refs/missing/objects/ls", None, {}, 404),
        ("GET", ":/refs/main/objects", None, {"path": "missing"}, 404),
        ("GET", ":/refs/main/objects/stat", None, {"path": "missing"}, 404),
        ("GET", ":/refs/main/objects/stat", None, {}, 400),
        ("GET", ":/refs/main/objects", None, {"path": "a/../b"}, 400),
        ("GET", ":/refs/main/objects", None, {"path": ""}, 400),
        ("POST", ":/branches/main/objects", b"x", {"path": "../b"}, 400),
        ("POST", ":/branches/main/objects", b"x", {"path": ".."}, 400),
        ("POST", ":/branches/main/objects", b"x", {}, 400),
        ("POST", ":/branches/main/objects", b"x", {"path": "x" * 1_025}, 400),
        ("POST", ":/branches/main/objects", b"x", {"path": "_lakefs/x"}, 400),
        ("POST", ":/branches/missing/objects", b"x", {"path": "a"}, 404),
        ("POST", ":/branches/missing/objects", b"x" * 3_000_000, {"path": "a"}, 404),
        ("DELETE", ":/branches/missing/objects", None, {"path": "a"}, 404),
        ("POST", ":/branches/missing/objects/delete", {"paths": ["a"]}, {}, 404),
        ("POST", ":/branches/main/objects/copy", {"src_path": "missing"}, {"dest_path": "b"}, 404),
        ("POST", ":/branches/main/objects/copy", {"src_path": "missing"}, {"dest_path": "../b"}, 400),
        ("POST", COMMIT, {"message": "nothing to commit"}, {}, 400),
        ("POST", COMMIT, {"message": "m", "metadata": {"k": "x" * 100_000}}, {}, 413),
        ("POST", COMMIT, {"message": "x" * 2_000_000}, {}, 413),
        ("POST", COMMIT, {"message": 1}, {}, 400),
        ("POST", COMMIT, {"message": None}, {}, 400),
        ("POST", COMMIT, {"message": "m", "date": -1}, {}, 400),
        ("POST", COMMIT, {"message": "m", "date": 10**30}, {}, 400),
        ("POST", COMMIT, {"message": "m", "metadata": {"k": 1}}, {}, 400),
        ("POST", COMMIT, {}, {}, 400),
        ("POST", COMMIT, [], {}, 400),
        ("POST", COMMIT, b"", {}, 400),
        ("POST", COMMIT, b"{", {}, 400),
        ("POST", COMMIT, b"\xff\xfe", {}, 400),
        ("POST", COMMIT, b'{"message": "\\ud800"}', {}, 400),
        ("POST", COMMIT, b"[" * 100_000, {}, 400),
        ("POST", ":/refs/missing/merge/main", {}, {}, 404),
        ("POST", ":/refs/main/merge/missing", {}, {}, 404),
        ("POST", ":/refs/main/merge/main", {"strategy": "mine"}, {}, 400),
        ("GET", ":/refs/main/merge/missing", None, {}, 404),
        ("GET", ":/refs/main/diff/missing", None, {}, 404),
        ("GET", ":/refs/main/diff/main", None, {"type": "four_dot"}, 400),
        ("GET", ":/branches/missing/diff", None, {}, 404),
        ("PUT", ":/branches/main", {"type": "everything"}, {}, 400),
        ("PUT", ":/branches/main", {"type": "object"}, {}, 400),
        ("PUT", ":/branches/missing", {"type": "reset"}, {}, 404),
        ("PUT", ":/branches/main/hard_reset", None, {}, 400),
        ("PUT", ":/branches/main/hard_reset", None, {"ref": "missing"}, 404),
        ("POST", ":/branches/main/revert", {"ref": "missing", "parent_number": 0}, {}, 404),
        ("POST", ":/branches/main/revert", {"ref": "main", "parent_number": 7}, {}, 400),
        ("POST", ":/branches/main/revert", {"ref": "main"}, {}, 400),
        ("POST", ":/branches/main/cherry-pick", {"ref": "missing"}, {}, 404),
        ("GET", ":/branches", None, {"amount": "many"}, 400),
        ("GET", ":/branches", None, {"amount": 1_001}, 400),
        ("GET", ":/branches", None, {"amount": -2}, 400),
        ("GET", ":/branches", None, {"show_hidden": "maybe"}, 400),
        ("GET", ":/branches/main/import", None, {"id": "missing"}, 404),
        ("DELETE", ":/branches/main/import", None, {"id": "missing"}, 404),
        ("POST", ":/branches/main/import", {"paths": [], "commit": {"message": ""}}, {}, 400),
        ("GET", ":/settings/gc_rules", None, {}, 404),
        ("PUT", ":/settings/gc_rules", {"default_retention_days": -1, "branches": []}, {}, 400),
        ("PUT", ":/settings/branch_protection", [{"pattern": ""}], {}, 400),
        ("POST", "/repositories", {"name": "analytics", "storage_namespace": "local://b"}, {}, 409),
        ("POST", "/repositories", {"name": "second", "storage_namespace": "local://analytics"}, {}, 400),
        ("POST", "/repositories", {"name": "second", "storage_namespace": "local://analytics/below"}, {}, 400),
        ("POST", "/repositories", {"name": "second", "storage_namespace": "local://../outside"}, {}, 400),
        ("POST", "/repositories", {"name": "second", "storage_namespace": "local://"}, {}, 400),
        ("POST", "/repositories", {"name": "second", "storage_namespace": "local:///etc/../.."}, {}, 400),
        ("POST", "/repositories", {"name": "second", "storage_namespace": "s3://bucket/x"}, {}, 400),
        ("POST", "/repositories", {"name": "second", "storage_namespace": "ftp://host/x"}, {}, 400),
        ("POST", "/repositories", {"name": "a", "storage_namespace": "local://a"}, {}, 400),
        ("POST", "/repositories", {"name": "second"}, {}, 400),
        ("GET", "/nothing", None, {}, 404),
        ("GET", "/repositories/analytics/nothing", None, {}, 404),
        ("DELETE", "/repositories", None, {}, 405),
        ("PUT", "/user", None, {}, 405),
    ],
)  # fmt: skip
def test_a_mistake_gets_its_status_and_one_sentence(
    unchanged: Any, method: str, place: str, body: Any, query: dict[str, Any], status: int
) -> None:
    """Every bad request is refused in one sentence with the right status, and changes nothing."""
    client = unchanged
    answer = client.ask(method, place, body, **query)
    assert answer.status == status, answer.body
    assert len(answer.message) > 20
    assert len(answer.message) < 2_000
    assert "Traceback" not in answer.message
    assert answer.headers["Content-Type"] == "application/json"
    assert client.listed() == ["staged"]
    assert len(client.ask("GET", "/repositories").json["results"]) == 1
    assert [row["id"] for row in client.ask("GET", ":/branches").json["results"]] == ["main"]
    assert len(client.ask("GET", ":/refs/main/commits").json["results"]) == 2


@pytest.mark.parametrize(
    "target",
    ["/api/v1/repositories/analytics/refs/main/objects?path=%ff", "/api/v1/repositories/analytics/refs/%ff/objects/ls",
     "/api/v1/repositories/%00/branches", "/api/v1/repositories/analytics/refs/../../x", "//", "/%2e%2e/%2e%2e",
     "/api/v1/repositories/analytics/branches/..%2f..%2fx", "/api/v1/repositories/analytics/refs/main/objects?path=%00",
     "/api/v1/repositories/analytics/refs//objects/ls", "/api/v1/repositories//branches", "/api/v1",
     "/api/v1/repositories/analytics/refs/main/objects/ls?prefix=%ed%a0%80",
     "/api/v1/repositories/analytics/refs/" + "a" * 5_000 + "/objects/ls", "/api/v1/user?" + "a=1&" * 2_000],
)  # fmt: skip
def test_targets_that_no_client_sends_are_refused(client: Any, target: str) -> None:
    """Bytes that are not text, `..`, empty and endless names are refused cleanly, and the server keeps running."""
    where = urllib.parse.urlsplit(client.endpoint)
    with socket.create_connection((where.hostname, where.port), timeout=30) as line:
        head = f"GET {target} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n"
        line.sendall(f"{head}Authorization: {client.headers['authorization']}\r\n\r\n".encode())
        reply = line.makefile("rb").read()
    assert reply.split(b" ")[1] in {b"200", b"400", b"404"}, reply
    assert (reply.split(b" ")[1] == b"200") == ("user" in target) or b"query" in reply
    assert client.ask("GET", "/user").status == 200


def test_a_merge_conflict_names_its_paths(client: Any) -> None:
    """Both sides changed the same path: 409 with the path, and the branch stays as it was; a strategy decides."""
    client.ask("POST", ":/branches", {"name": "dev", "source": "main"})
    client.put("same", b"1")
    client.commit()
    client.put("same", b"2", branch="dev")
    client.commit(branch="dev")
    answer = client.ask("POST", ":/refs/dev/merge/main", {})
    assert answer.status == 409
    assert "same" in answer.message
    assert client.get("same").body == b"1"
    assert client.ask("POST", ":/refs/dev/merge/main", {"strategy": "source-wins"}).status == 200
    assert client.get("same").body == b"2"


def test_a_dirty_branch_is_not_merged_into(client: Any) -> None:
    """Uncommitted changes block a merge, a revert, a cherry-pick and a hard reset: 400, and they stay."""
    client.put("a")
    first = client.commit()["id"]
    client.ask("POST", ":/branches", {"name": "dev", "source": "main"})
    client.put("b", branch="dev")
    client.commit(branch="dev")
    client.put("c")
    for method, place, body, query in (
        ("POST", ":/refs/dev/merge/main", {}, {}),
        ("POST", ":/branches/main/revert", {"ref": first, "parent_number": 0}, {}),
        ("POST", ":/branches/main/cherry-pick", {"ref": "dev"}, {}),
        ("PUT", ":/branches/main/hard_reset", None, {"ref": "main~1"}),
    ):
        assert client.ask(method, place, body, **query).status == 400, place
    assert client.listed() == ["a", "c"]


def test_a_protected_branch_takes_merges_only(client: Any) -> None:
    """Writes and commits on a protected branch get 403; a merge succeeds."""
    client.ask("POST", ":/branches", {"name": "dev", "source": "main"})
    client.ask("PUT", ":/settings/branch_protection", [{"pattern": "ma*"}])
    for method, place, body, query in (
        ("POST", ":/branches/main/objects", b"x", {"path": "a"}),
        ("DELETE", ":/branches/main/objects", None, {"path": "a"}),
        ("POST", COMMIT, {"message": "m"}, {}),
    ):
        answer = client.ask(method, place, body, **query)
        assert answer.status == 403, place
        assert "protected" in answer.message
    client.put("a", branch="dev")
    client.commit(branch="dev")
    assert client.ask("POST", ":/refs/dev/merge/main", {}).status == 200


def test_a_bug_is_told_without_its_inside(client: Any, server: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """A bug is a 500 with the request's id; the traceback is in the log, and the server keeps running."""

    def broken(*arguments: object, **settings: object) -> None:
        raise ZeroDivisionError("a secret inside")

    monkeypatch.setattr("lakebed.server.routes.commits.Commit.run", broken)
    answer = client.ask("POST", COMMIT, {"message": "m"})
    assert answer.status == 500
    assert answer.headers["X-Request-Id"] in answer.message
    assert "secret" not in answer.message
    assert client.ask("GET", "/user").status == 200
