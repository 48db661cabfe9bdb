"""Iceberg's REST catalog over HTTP: names, pages, roles, refusals in the protocol's form, and wrong requests."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.request import Request, urlopen

import pyarrow as pa
import pytest

import lakebed
from lakebed.server.options import ServerOptions
from lakebed.server.serve import start_server

if TYPE_CHECKING:
    from conftest import Answer, Client

ROOT = "/iceberg/v1/lake"
ROWS = pa.schema([("id", pa.int64())])


class Iceberg:
    """Requests below the prefix of the catalog."""

    def __init__(self, client: Client) -> None:
        self.client = client

    def ask(self, method: str, place: str, body: Any = None, **query: Any) -> Answer:
        """One request; a place that begins with ``:`` is below the table ``db.t``."""
        place = place.replace(":", "/namespaces/db/tables/t", 1) if place.startswith(":") else place
        return self.client.ask_root(method, ROOT + place, body, None, **query)

    def refuse(self, status: int, kind: str, method: str, place: str, body: Any = None, **query: Any) -> str:
        """The message of the protocol's error, one sentence."""
        answer = self.ask(method, place, body, **query)
        assert answer.status == status, answer.body
        assert set(answer.json) == {"error"}
        error = answer.json["error"]
        assert (error["type"], error["code"], set(error)) == (kind, status, {"message", "type", "code"})
        assert error["message"].endswith(".")
        return str(error["message"])

    def done(self, place: str, **query: Any) -> Any:
        """The reply of a GET that succeeds."""
        answer = self.ask("GET", place, **query)
        assert answer.status == 200, answer.body
        return json.loads(answer.body)


@pytest.fixture
def iceberg(client: Client, tmp_path: Path) -> Iceberg:
    """The catalog, with the tables ``db.t`` of two snapshots and ``db.u`` of none."""
    lake = lakebed.open(str(tmp_path / "lake"))
    table = lake.create_table("db.t", ROWS)
    for number in range(2):
        table.append(pa.table({"id": [number]}, ROWS))
    lake.create_table("db.u", ROWS)
    return Iceberg(client)


def test_config(iceberg: Iceberg) -> None:
    """The prefix, and which endpoints there are: none that changes anything."""
    answer = iceberg.client.ask_root("GET", "/iceberg/v1/config", None, None, warehouse="lake")
    assert answer.json["overrides"] == {"prefix": "lake"}
    assert "GET /v1/{prefix}/namespaces/{namespace}/tables/{table}" in answer.json["endpoints"]
    changing = [line for line in answer.json["endpoints"] if not line.startswith(("GET ", "HEAD "))]
    assert changing == ["POST /v1/{prefix}/namespaces/{namespace}/tables/{table}/metrics"]
    other = iceberg.client.ask_root("GET", "/iceberg/v1/config", None, None, warehouse="other")
    assert (other.status, other.json["error"]["type"]) == (404, "NotFoundException")
    nobody = iceberg.client.ask_root("GET", "/iceberg/v1/config", None, {"authorization": "Bearer nobody"})
    assert (nobody.status, nobody.json["error"]["type"]) == (401, "NotAuthorizedException")


def test_lists_and_pages(iceberg: Iceberg) -> None:
    """Lists are whole without a token, and in pages with one; a token of another list is refused."""
    names = [["analytics"], ["db"], ["default"]]
    assert iceberg.done("/namespaces") == {"namespaces": names, "next-page-token": None}
    assert iceberg.done("/namespaces", parent="db")["namespaces"] == []
    assert iceberg.done("/namespaces", parent="analytics")["namespaces"] == [["analytics", "main"]]
    assert iceberg.done("/namespaces/db") == {"namespace": ["db"], "properties": {}}
    tables = iceberg.done("/namespaces/db/tables")
    assert [row["name"] for row in tables["identifiers"]] == ["t", "u"]
    assert iceberg.done("/namespaces/db/views") == {"identifiers": [], "next-page-token": None}
    first = iceberg.done("/namespaces/db/tables", pageSize=1, pageToken="")
    rest = iceberg.done("/namespaces/db/tables", pageSize=1, pageToken=first["next-page-token"])
    assert [row["name"] for page in (first, rest) for row in page["identifiers"]] == ["t", "u"]
    assert rest["next-page-token"] is None
    token = first["next-page-token"]
    for place in ("/namespaces", "/namespaces/default/tables", "/namespaces/db/views"):
        assert "another list" in iceberg.refuse(400, "BadRequestException", "GET", place, pageToken=token)
    iceberg.refuse(400, "BadRequestException", "GET", "/namespaces", pageToken="no token")
    iceberg.refuse(400, "BadRequestException", "GET", "/namespaces", pageSize="many")


def test_names_that_are_wrong(iceberg: Iceberg) -> None:
    """Dots, slashes, unit separators, branches: the protocol's 404 of what the name would be."""
    for name in ("other", "a.b", "db%1Ft", "%00", "d%20b", "db.db"):
        iceberg.refuse(404, "NoSuchNamespaceException", "GET", f"/namespaces/{name}/tables")
        assert iceberg.ask("HEAD", f"/namespaces/{name}").status == 404
        iceberg.refuse(404, "NoSuchTableException", "GET", f"/namespaces/{name}/tables/t")
    for name in ("other", "a.b", "t%1Fu", "t$snapshots", "t$branch_x", "%00"):
        iceberg.refuse(404, "NoSuchTableException", "GET", f"/namespaces/db/tables/{name}")
        assert iceberg.ask("HEAD", f"/namespaces/db/tables/{name}").status == 404
    for parent, shown in (("db\x1ft", "db.t"), ("other", "other"), ("a\tb", "'a\\tb'")):
        answer = iceberg.ask("GET", "/namespaces", parent=parent)
        error = {"message": f"Namespace does not exist: {shown}", "type": "NoSuchNamespaceException", "code": 404}
        assert (answer.status, answer.json["error"]) == (404, error)  # the whole message, as Iceberg's kit has it
    missing = iceberg.refuse(404, "NoSuchTableException", "GET", "/namespaces/db/tables/other")
    assert missing.startswith("Table does not exist: db.other. ")
    wrong = iceberg.client.ask_root("GET", "/iceberg/v1/other/namespaces", None, None)
    assert (wrong.status, wrong.json["error"]["type"]) == (404, "NotFoundException")
    for place in (
        ":/u",
        "/namespaces/db%2Fx/tables/t",
        "/namespaces/db/tables/t%2Fu",
        "/namespaces/db/tables/%2E%2E%2Ft",
    ):
        assert "slash" in iceberg.refuse(404, "NotFoundException", "GET", place)


def test_loading(iceberg: Iceberg, tmp_path: Path) -> None:
    """Metadata of now and of references; an ETag; what is read again is not written again."""
    folder = tmp_path / "lake" / "db.db" / "t" / "lakebed" / "iceberg"
    assert iceberg.ask("HEAD", ":").status == 204
    assert not folder.exists()  # nothing is written when no table was loaded
    answer = iceberg.ask("GET", ":")
    loaded = answer.json
    assert [snapshot["snapshot-id"] for snapshot in loaded["metadata"]["snapshots"]] == [1, 2]
    written = sorted(folder.rglob("*"))
    location = Path(loaded["metadata-location"].removeprefix("file://"))
    assert json.loads(location.read_bytes()) == loaded["metadata"]
    assert iceberg.done(":") == loaded
    narrow = iceberg.done(":", snapshots="refs")
    assert [snapshot["snapshot-id"] for snapshot in narrow["metadata"]["snapshots"]] == [2]
    assert sorted(folder.rglob("*")) == written
    empty = iceberg.done("/namespaces/db/tables/u")
    assert (empty["metadata-location"], empty["metadata"]["snapshots"]) == (None, [])
    assert iceberg.ask("POST", ":/metrics", {"report-type": "scan-report"}).status == 204
    assert iceberg.done(":/credentials") == {"storage-credentials": []}
    lakebed.open(str(tmp_path / "lake")).table("db.t").create_tag("kept")
    assert set(iceberg.done(":")["metadata"]["refs"]) == {"main", "kept"}


def test_refusals(iceberg: Iceberg) -> None:
    """What would change something, and views: the protocol's errors, and nothing changed."""
    for method, place in (
        ("POST", "/namespaces"),
        ("DELETE", "/namespaces/db"),
        ("POST", "/namespaces/db/properties"),
        ("POST", "/namespaces/db/tables"),
        ("POST", "/namespaces/db/register"),
        ("POST", ":"),
        ("DELETE", ":"),
        ("POST", ":/plan"),
        ("POST", "/tables/rename"),
        ("POST", "/transactions/commit"),
        ("POST", "/namespaces/db/views"),
        ("DELETE", "/namespaces/db/views/v"),
    ):
        iceberg.refuse(406, "UnsupportedOperationException", method, place, {"name": "x"} if method == "POST" else None)
    iceberg.refuse(404, "NoSuchViewException", "GET", "/namespaces/db/views/v")
    iceberg.refuse(400, "BadRequestException", "POST", ":/metrics", [1])
    metrics = f"{ROOT}/namespaces/db/tables/t/metrics"
    answer = iceberg.client.ask_root("POST", metrics, gzip.compress(b"{}"), {"Content-Encoding": "gzip"})
    assert (answer.status, answer.json["error"]["type"]) == (415, "BadRequestException")
    assert [row["name"] for row in iceberg.done("/namespaces/db/tables")["identifiers"]] == ["t", "u"]


def test_tokens(iceberg: Iceberg) -> None:
    """A client that asks for a token is told which one to use, in the form of OAuth's errors; the secret stays out."""
    headers = {"content-type": "application/x-www-form-urlencoded", "authorization": "none"}
    body = b"grant_type=client_credentials&client_id=a&client_secret=hidden&scope=catalog"
    answer = iceberg.client.ask_root("POST", "/iceberg/v1/oauth/tokens", body, headers)
    assert (answer.status, answer.json["error"]) == (400, "unsupported_grant_type")
    assert "as its token" in answer.json["error_description"]
    assert b"hidden" not in answer.body


def test_a_name_that_is_no_word_of_a_path(tmp_path: Path) -> None:
    """The prefix is the lake's name as a path has it: clients put it into their paths as it is."""
    lake = lakebed.open(tmp_path / "a lake of 100%20")
    lake.create_table("db.t", ROWS)
    with start_server(tmp_path / "a lake of 100%20", options=ServerOptions(durable=False)) as running:
        started = running.started
        headers = {"authorization": f"Bearer {started.access_key}.{started.secret}"}

        def get(path: str) -> Any:
            with urlopen(Request(f"{started.endpoint}/iceberg/v1/{path}", headers=headers)) as reply:
                return json.load(reply)

        prefix = get("config")["overrides"]["prefix"]
        assert prefix == "a%20lake%20of%20100%2520"
        assert get(f"{prefix}/namespaces/db/tables")["identifiers"] == [{"namespace": ["db"], "name": "t"}]


def test_keys_that_are_limited(iceberg: Iceberg) -> None:
    """A key of one table sees that table alone, and a key of repositories none."""
    limited = Iceberg(iceberg.client.new_key("read", tables=["db.u"]))
    assert limited.done("/namespaces")["namespaces"] == [["db"]]
    assert [row["name"] for row in limited.done("/namespaces/db/tables")["identifiers"]] == ["u"]
    assert limited.ask("GET", "/namespaces/db/tables/u").status == 200
    limited.refuse(403, "ForbiddenException", "GET", ":")
    limited.refuse(403, "ForbiddenException", "GET", "/namespaces/default")
    limited.refuse(403, "ForbiddenException", "GET", "/namespaces/other/tables/none")
    limited.refuse(403, "ForbiddenException", "GET", "/namespaces/analytics.main")
    limited.refuse(403, "ForbiddenException", "GET", "/namespaces/analytics%1Fmain/tables/t")
    limited.refuse(403, "ForbiddenException", "GET", "/namespaces", parent="analytics")
    other = Iceberg(iceberg.client.new_key("admin", repositories=["flights"]))
    assert other.done("/namespaces")["namespaces"] == []
    other.refuse(403, "ForbiddenException", "GET", "/namespaces/db")
    other.refuse(403, "ForbiddenException", "GET", "/namespaces/analytics%1Fmain/tables/t")
    analyst = Iceberg(iceberg.client.new_key("read", repositories=["analytics"]))
    assert analyst.done("/namespaces")["namespaces"] == [["analytics"]]
    assert analyst.done("/namespaces", parent="analytics")["namespaces"] == [["analytics", "main"]]
    for name in ("analytics.main", "analytics%1Fmain"):
        assert analyst.done(f"/namespaces/{name}/tables")["identifiers"] == []
        analyst.refuse(404, "NoSuchTableException", "GET", f"/namespaces/{name}/tables/t")
    analyst.refuse(404, "NoSuchNamespaceException", "GET", "/namespaces/analytics.none")
