"""Verbs that lakeFS has not: what they take and give over HTTP, who may ask for them, and what is logged."""

from __future__ import annotations

import threading
from typing import Any

import msgspec
import pyarrow as pa
import pytest

from lakebed.repo.transport.transport import context_of
from lakebed.repo.verbs import CATALOG_VERBS, VERBS
from lakebed.server.app import description

STREAM = {"Content-Type": "application/vnd.apache.arrow.stream"}


def verb(client: Any, name: str, /, **message: Any) -> Any:
    """Ask for a verb; its reply, decoded."""
    answer = client.ask("POST", f":/verbs/{name}", message)
    assert answer.status in (200, 204), answer.body
    return answer.json if answer.body else None


def row(client: Any, path: str, *, of: str) -> dict[str, Any]:
    """What is staged as `path` with the bytes of another object."""
    entry = verb(client, "stat", ref="main", path=of)
    names = ("address", "size_bytes", "checksum", "modified_ms", "content_type", "metadata")
    return {"path": path, **dict(zip(names, entry, strict=True))}


def test_verbs_are_described() -> None:
    """Each is in the OpenAPI description with the tag lakebed, its message and its reply."""
    paths = description()["paths"]
    for name, item in VERBS.items():
        operation = paths[f"/api/v1/repositories/{{repository}}/verbs/{name}"]["post"]
        assert operation["tags"] == ["lakebed"]
        assert operation["summary"] == item.summary
        assert operation["requestBody"]["content"]["application/json"]["schema"]
        assert ("200" in operation["responses"]) == (item.gives is not None)
    assert all(f"/api/v1/verbs/{name}" in paths for name in CATALOG_VERBS)
    for name in ("put", "stage_many"):
        assert paths[f"/api/v1/repositories/{{repository}}/verbs/{name}"]["post"]["tags"] == ["lakebed"]
    assert paths["/api/v1/repositories/{repository}/verbs/read"]["get"]["tags"] == ["lakebed"]


def test_a_prefix_is_deleted_in_one_call(client: Any) -> None:
    """Everything below it is deleted at once, and the reply says whether anything was there."""
    for number in range(3):
        client.put(f"p/{number}")
    client.put("q")
    assert verb(client, "delete_prefix", branch="main", prefix="p/") is True
    assert verb(client, "delete_prefix", branch="main", prefix="p/") is False
    assert client.listed() == ["q"]


def test_rows_and_columns_are_staged(client: Any) -> None:
    """Many entries in one atomic call: JSON rows, or an Arrow stream; what cannot be is refused whole."""
    client.put("seed", b"bytes")
    rows = [row(client, f"json/{number}", of="seed") for number in range(3)]
    assert client.ask("POST", ":/verbs/stage_many", rows, branch="main").json == 3
    table = pa.Table.from_pylist([{**item, "path": f"arrow/{item['path']}"} for item in rows]).drop_columns("metadata")
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    stream = sink.getvalue().to_pybytes()
    assert client.ask("POST", ":/verbs/stage_many", stream, STREAM, branch="main").json == 3
    assert client.get("arrow/json/2").body == b"bytes"
    before = client.listed()
    bad: list[tuple[Any, dict[str, str]]] = [
        (b"[", {}),
        ([{"path": "a"}], {}),
        ([{**rows[0], "path": "../a"}], {}),
        ([rows[0], {**rows[1], "address": "data/none"}], {}),
        (stream[: len(stream) // 2], STREAM),
        (b"", STREAM),
        (b"ARROW1", STREAM),
        (stream, {"Content-Type": "application/json"}),
    ]
    for body, headers in bad:
        answer = client.ask("POST", ":/verbs/stage_many", body, headers, branch="main")
        assert answer.status == 400, (body, answer.body)
        assert answer.message
    assert client.ask("POST", ":/verbs/stage_many", rows, branch="nothing").status == 404
    assert client.ask("POST", ":/verbs/stage_many", rows).status == 400
    assert client.listed() == before


def test_a_branch_is_rebased_compacted_and_brought_back(client: Any) -> None:
    """What the command line does on a folder, a program does over HTTP."""
    client.put("a")
    client.commit("base")
    verb(client, "create_branch", name="dev")
    client.put("b", branch="dev")
    client.commit("own", branch="dev")
    client.put("c")
    onto = client.commit("moved on")["id"]
    made = verb(client, "rebase", branch="dev", onto="main")
    assert (made[1]["message"], made[1]["parents"]) == ("own", [onto])
    assert verb(client, "blame_many", ref="dev", paths=["b"])["b"][0] == made[0]
    client.put("d", branch="dev")
    assert verb(client, "compact", branch="dev")["outcome"] == "published"
    assert client.ask("DELETE", ":/branches/dev").status == 204
    assert verb(client, "undelete_branch", name="dev") is None
    assert client.ask("GET", ":/branches/dev").json["commit_id"] == made[0]


def test_a_collection_runs_beside_other_requests(client: Any, server: Any) -> None:
    """However long it takes, other requests are answered meanwhile; then it reports what went."""
    client.put("a", b"first")
    client.put("a", b"second")
    home = context_of(server.site.repositories.repository("analytics"))
    inside, go_on = threading.Event(), threading.Event()
    listing = home.store.list

    def slow(*args: Any, **named: Any) -> Any:
        inside.set()
        assert go_on.wait(60)
        return listing(*args, **named)

    items: list[Any] = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(type(home.store), "list", lambda store, *args, **named: slow(*args, **named))
        collecting = threading.Thread(target=lambda: items.append(verb(client, "collect", grace_s=0, dry_run=True)))
        collecting.start()
        assert inside.wait(60)
        assert client.get("a").body == b"second"
        client.put("b")
        assert client.listed() == ["a", "b"]
        client.commit("while it runs")
        go_on.set()
        collecting.join()
    assert items[0]["dry_run"] is True
    assert verb(client, "collect", grace_s=0)["deleted_count"] >= 1
    assert client.get("a").body == b"second"
    assert client.ask("POST", ":/verbs/collect", {"grace_s": -1}).status == 400


def test_roles_are_checked(client: Any) -> None:
    """Each verb needs its role, and a key for other repositories sees nothing of this one."""
    by_role = {role: client.new_key(role) for role in ("read", "write", "admin")}
    stranger = client.new_key("admin", repositories=["other-one"])
    nobody = client.with_key("nobody", "wrong")
    ranks = ("read", "write", "admin")
    for name, item in VERBS.items():
        for role, asking in by_role.items():
            answer = asking.ask("POST", f":/verbs/{name}", b"{broken")
            allowed = ranks.index(role) >= ranks.index(item.role)
            assert answer.status == (400 if allowed else 403), (name, role, answer.body)
        assert stranger.ask("POST", f":/verbs/{name}", {}).status == 403
        assert nobody.ask("POST", f":/verbs/{name}", {}).status == 401
    for method, place, role in (("POST", "put", "write"), ("POST", "stage_many", "write"), ("GET", "read", "read")):
        assert nobody.ask(method, f":/verbs/{place}").status == 401
        assert (by_role["read"].ask(method, f":/verbs/{place}").status == 403) == (role == "write")
    listed = stranger.ask("POST", "/verbs/list", {}).json
    assert listed == []
    assert stranger.ask("POST", "/verbs/create", {"name": "analytics"}).status == 403
    assert by_role["read"].ask("POST", "/verbs/create", {"name": "another"}).status == 403
    assert by_role["write"].ask("POST", "/verbs/deleted", {}).status == 403


def test_only_administrators_name_others(client: Any) -> None:
    """Who commits is the access key; an administrator may say who it was for."""
    writer = client.new_key("write")
    writer.put("a")
    made = verb(writer, "commit", branch="main", message="own")
    assert made[1]["committer"].startswith("LAKEBED")
    refused = writer.ask("POST", ":/verbs/commit", {"branch": "main", "message": "x", "committer": "ann"})
    assert (refused.status, "may not name" in refused.message) == (403, True)
    made = verb(client, "commit", branch="main", message="for ann", committer="ann", allow_empty=True)
    assert made[1]["committer"] == "ann"


def test_changes_are_audited_and_reads_are_not(client: Any) -> None:
    """The log has access key, branch and verb of a change."""
    client.put("seed")
    before = len(client.ask("GET", "/auth/audit", amount=1000).json["results"])
    client.ask("POST", ":/verbs/stage_many", [row(client, "b", of="seed")], branch="main")
    verb(client, "commit", branch="main", message="x")
    verb(client, "create_branch", name="dev")
    verb(client, "list", ref="main")
    verb(client, "webhooks")
    client.ask("POST", ":/verbs/commit", {"branch": "main", "message": "nothing"})
    rows = client.ask("GET", "/auth/audit", amount=1000).json["results"]
    new = [(item["action"], item["subject"]) for item in rows[: len(rows) - before]]
    assert new[::-1] == [("verbStageMany", "main"), ("verbCommit", "main"), ("verbCreateBranch", "dev")]


def test_bodies_of_put_that_are_none(client: Any) -> None:
    """A line of JSON precedes the bytes; a body without one is refused, and nothing is stored."""
    for body in (b"", b"no line", b"{}", b"[]\n", b"\xff\n", b'{"path": 5}\nx', b"x" * (2 << 20)):
        answer = client.ask("POST", ":/verbs/put", body, branch="main")
        assert answer.status == 400, body[:10]
        assert answer.message
    line = msgspec.json.encode({"path": "a", "metadata": {"k": "v" * 100}, "content_type": "text/x"})
    entry = client.ask("POST", ":/verbs/put", line + b"\nbytes\nand more", branch="main").json
    assert entry[1] == len(b"bytes\nand more")
    assert client.get("a").body == b"bytes\nand more"
    assert client.ask("POST", ":/verbs/put", line + b"\n", branch="main", only_ask="true").json is None
    assert client.ask("POST", ":/verbs/put", line + b"\n", branch="no", only_ask="true").status == 404


def test_reading_by_address_stays_inside(client: Any, tmp_path: Any) -> None:
    """An address that is named is one of this repository's objects, or what the path has: never another file."""
    client.put("a", b"first")
    address = verb(client, "stat", ref="main", path="a")[0]
    client.put("a", b"second")

    def read(**query: Any) -> Any:
        return client.ask("GET", ":/verbs/read", **{"ref": "main", "path": "a", **query})

    assert read().body == b"second"
    assert read(start=1, end=3).body == b"ec"
    assert read(address=address, size=5, start=0, end=5).body == b"first"
    secret = tmp_path / "secret"
    secret.write_bytes(b"secret")
    for wrong in (f"file://{secret}", "_repository.json", "data/../_repository.json", f"{address}/../../x", "data/x"):
        answer = read(address=wrong, size=6, start=0, end=6)
        assert (answer.status, b"secret" in answer.body) == (409, False), (wrong, answer.body)
    assert read(start=100, end=200).status == 400
    assert read(start="x").status == 400
    assert read(path="nothing").status == 404
