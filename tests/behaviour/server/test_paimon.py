"""Paimon's REST catalog over HTTP: names, pages, roles, errors in the protocol's form, and requests that are wrong."""

from __future__ import annotations

import base64
import gzip
import json
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

import lakebed
from lakebed import Lake, Table
from lakebed.server.paimon.routes import ROUTES
from lakebed.table.codec.manifest import encode_manifest_list
from lakebed.table.table import branch_of
from worlds.waiting import wait_until

if TYPE_CHECKING:
    from conftest import Answer, Client
    from lakebed.server.lifecycle import Running

ROOT = "/paimon/v1/lake"
FIELDS = [{"id": 0, "name": "id", "type": "BIGINT NOT NULL"}, {"id": 1, "name": "day", "type": "STRING"}]


class Paimon:
    """Requests below the prefix of the catalog."""

    def __init__(self, client: Client, folder: Path) -> None:
        self.client, self.folder = client, folder

    def ask(self, method: str, place: str, body: Any = None, **query: Any) -> Answer:
        """One request; a place that begins with ``:`` is below the table ``db.t``."""
        place = place.replace(":", "/databases/db/tables/t", 1) if place.startswith(":") else place
        return self.client.ask_root(method, ROOT + place, body, None, **query)

    def refuse(self, status: int, method: str, place: str, body: Any = None, **query: Any) -> dict[str, Any]:
        """The protocol's error, in one sentence."""
        answer = self.ask(method, place, body, **query)
        assert answer.status == status, answer.body
        error = answer.json
        assert set(error) == {"message", "resourceType", "resourceName", "code"}
        assert error["code"] == status
        assert error["message"].endswith(".")
        return error

    def done(self, method: str, place: str, body: Any = None, **query: Any) -> Any:
        """The reply of a request that succeeds."""
        answer = self.ask(method, place, body, **query)
        assert answer.status == 200, answer.body
        return json.loads(answer.body) if answer.body else None

    @property
    def lake(self) -> Lake:
        """The same tables, by lakebed."""
        return lakebed.open(str(self.folder))

    def create(self, name: str, **schema: Any) -> None:
        """Create a table in ``db``."""
        body = {"identifier": {"database": "db", "object": name}, "schema": {"fields": FIELDS, **schema}}
        self.done("POST", "/databases/db/tables", body)

    def fill(self) -> Table:
        """Create ``db.t`` with three snapshots."""
        self.create("t", partitionKeys=["day"])
        table = self.lake.table("db.t")
        for number, day in enumerate("aab"):
            table.append(pa.table({"id": pa.array([number], pa.int64()), "day": [day]}, schema=table.arrow_schema))
        return table


@pytest.fixture
def paimon(client: Client, tmp_path: Path) -> Paimon:
    """The catalog, with a database ``db``."""
    made = Paimon(client, tmp_path / "lake")
    made.done("POST", "/databases", {"name": "db", "options": {"team": "flights"}})
    return made


def test_config_and_databases(paimon: Paimon) -> None:
    """Config gives the prefix; databases have properties, exist without tables, and are dropped when nothing pins."""
    config = paimon.client.ask_root("GET", "/paimon/v1/config", None, None, warehouse="lake")
    assert config.json == {"defaults": {"prefix": "lake"}, "overrides": {}}
    assert paimon.client.ask_root("GET", "/paimon/v1/config", None, None, warehouse="other").status == 404
    assert paimon.done("GET", "/databases")["databases"] == ["analytics.main", "db", "default"]
    changes = {"removals": ["team", "none"], "updates": {"a": "1"}}
    assert paimon.done("POST", "/databases/db", changes) == {"removed": ["team"], "updated": ["a"], "missing": ["none"]}
    assert paimon.done("GET", "/databases/db")["options"] == {"a": "1"}
    assert paimon.refuse(409, "POST", "/databases", {"name": "db"})["resourceType"] == "DATABASE"
    paimon.fill().create_tag("keep")
    assert "tag keep" in paimon.refuse(400, "DELETE", "/databases/db")["message"]
    paimon.done("DELETE", ":/tags/keep")
    paimon.done("DELETE", "/databases/db")
    assert paimon.refuse(404, "GET", "/databases/db")["resourceType"] == "DATABASE"
    assert paimon.lake.tables() == []


@pytest.mark.parametrize("size", [1, 100])
def test_partitions_whose_names_are_equal_are_all_listed(paimon: Paimon, size: int) -> None:
    """Values with slashes, and an empty one beside null, in pages of any size: no partition hides another."""
    fields = [FIELDS[0], {"id": 1, "name": "a", "type": "STRING"}, {"id": 2, "name": "b", "type": "STRING"}]
    paimon.create("t", fields=fields, partitionKeys=["a", "b"])
    table = paimon.lake.table("db.t")
    values = [("1/b=2", "3"), ("1", "2/b=3"), ("", "z"), (None, "z"), ("é", "y")]
    rows = {"id": [*range(5)], "a": [a for a, _ in values], "b": [b for _, b in values]}
    table.append(pa.table(rows, schema=table.arrow_schema))
    listed: list[dict[str, Any]] = []
    page: dict[str, Any] = {"nextPageToken": ""}
    while page["nextPageToken"] is not None:
        page = paimon.done("GET", ":/partitions", None, maxResults=size, pageToken=page["nextPageToken"])
        listed += page["partitions"]
    null = "__DEFAULT_PARTITION__"
    expected = [("1", "2/b=3"), ("1/b=2", "3"), (null, "z"), (null, "z"), ("é", "y")]
    assert sorted(tuple(row["spec"].values()) for row in listed) == expected
    assert [row["recordCount"] for row in listed] == [1] * 5
    named = paimon.done("GET", ":/partitions", None, partitionNamePattern="a=1/b=2/b=_")
    assert len(named["partitions"]) == 2


def test_the_only_column_of_a_table_is_moved_to_the_end(paimon: Paimon) -> None:
    """It is there already: the change is made, and a column that does not exist is still an error."""
    paimon.create("t", fields=FIELDS[1:])
    for kind in ("LAST", "FIRST"):
        move = {"action": "updateColumnPosition", "move": {"fieldName": "day", "type": kind}}
        paimon.done("POST", ":", {"changes": [move]})
    assert [field["name"] for field in paimon.done("GET", ":")["schema"]["fields"]] == ["day"]
    missing = {"action": "updateColumnPosition", "move": {"fieldName": "none", "type": "LAST"}}
    assert paimon.refuse(404, "POST", ":", {"changes": [missing]})["resourceType"] == "COLUMN"


def test_fields_of_an_added_column_have_ids_of_their_own(paimon: Paimon) -> None:
    """Clients number them from 0: the table gives its own, so that a field that comes later does not show another's."""
    paimon.create("t")
    members = [{"id": number, "name": name, "type": "INT"} for number, name in enumerate("abcd")]
    added = {"action": "addColumn", "fieldNames": ["n"], "dataType": {"type": "ROW", "fields": members}}
    paimon.done("POST", ":", {"changes": [added]})
    fields = paimon.done("GET", ":")["schema"]["fields"]
    ids = [field["id"] for field in [*fields, *fields[-1]["type"]["fields"]]]
    assert sorted(ids) == list(range(len(ids)))
    table = paimon.lake.table("db.t")
    row = {"id": 1, "day": "x", "n": dict.fromkeys("abcd", 7)}
    table.append(pa.Table.from_pylist([row], schema=table.arrow_schema))
    paimon.done("POST", ":", {"changes": [{"action": "addColumn", "fieldNames": ["n", "later"], "dataType": "INT"}]})
    table = paimon.lake.table("db.t")
    assert table.read().to_pylist() == [{**row, "n": {**dict.fromkeys("abcd", 7), "later": None}}]


@pytest.mark.parametrize("kind", ["BEFORE", "AFTER"])
def test_a_column_is_not_moved_next_to_itself(paimon: Paimon, kind: str) -> None:
    """It stays where it is: before itself it came to the front."""
    paimon.create("t")
    name = FIELDS[-1]["name"]
    move = {"fieldName": name, "referenceFieldName": name, "type": kind}
    paimon.refuse(400, "POST", ":", {"changes": [{"action": "updateColumnPosition", "move": move}]})
    assert paimon.done("GET", ":")["schema"]["fields"] == FIELDS


def test_a_table_is_altered_whole_or_not(paimon: Paimon) -> None:
    """Schema changes of one request make one schema; one that is refused changes nothing; the id stays."""
    paimon.create("t", comment="flights", options={"file.format": "parquet"})
    made = paimon.done("GET", ":")
    assert (made["name"], made["schemaId"], made["schema"]["fields"]) == ("t", 0, FIELDS)
    assert made["schema"]["comment"] == "flights"
    paimon.create("plain")
    assert paimon.done("GET", "/databases/db/tables/plain")["schema"]["comment"] is None
    objects = {"identifier": {"database": "db", "object": "objects"}, "schema": {"fields": []}}
    assert "has no columns" in paimon.refuse(400, "POST", "/databases/db/tables", objects)["message"]
    assert made["path"] == paimon.lake.table("db.t").url
    changes = [
        {"action": "addColumn", "fieldNames": ["n"], "dataType": "INT", "comment": "c", "move": None},
        {"action": "renameColumn", "fieldNames": ["n"], "newName": "m"},
        {"action": "updateColumnType", "fieldNames": ["m"], "newDataType": "BIGINT"},
        {"action": "updateColumnPosition", "move": {"fieldName": "m", "referenceFieldName": "day", "type": "BEFORE"}},
        {"action": "updateColumnNullability", "fieldNames": ["id"], "newNullability": True},
        {"action": "updateColumnComment", "fieldNames": ["day"], "newComment": "d"},
        {"action": "updateComment", "comment": "x"},
        {"action": "setOption", "key": "snapshot.num-retained.max", "value": "9"},
        {"action": "removeOption", "key": "file.format"},
    ]
    paimon.done("POST", ":", {"changes": changes})
    refused = {"action": "updateColumnDefaultValue", "fieldNames": ["m"], "newDefaultValue": "1"}
    paimon.refuse(400, "POST", ":", {"changes": [{"action": "dropColumn", "fieldNames": ["m"]}, refused]})
    missing = {"action": "dropColumn", "fieldNames": ["none"]}
    assert paimon.refuse(404, "POST", ":", {"changes": [missing]})["resourceType"] == "COLUMN"
    added = {"action": "addColumn", "fieldNames": ["day"], "dataType": "INT"}
    for taken in (added, {"action": "renameColumn", "fieldNames": ["m"], "newName": "day"}):
        error = paimon.refuse(409, "POST", ":", {"changes": [taken]})
        assert (error["resourceType"], error["resourceName"]) == ("COLUMN", "day")
    now = paimon.done("GET", ":")
    assert (now["id"], now["schemaId"]) == (made["id"], 1)
    assert [(field["name"], field["type"]) for field in now["schema"]["fields"]] == [
        ("id", "BIGINT"),
        ("m", "BIGINT"),
        ("day", "STRING"),
    ]
    assert now["schema"]["fields"][2]["description"] == "d"
    assert (now["schema"]["comment"], now["schema"]["options"]["snapshot.num-retained.max"]) == ("x", "9")
    assert (
        "atomic rename"
        in paimon.refuse(
            501,
            "POST",
            "/tables/rename",
            {"source": {"database": "db", "object": "t"}, "destination": {"database": "db", "object": "u"}},
        )["message"]
    )
    paimon.done("DELETE", ":")
    paimon.create("t", comment="flights", options={"file.format": "parquet"})
    assert paimon.done("GET", ":")["id"] != made["id"]


def test_lists_are_paged_and_tokens_belong_to_their_list(paimon: Paimon) -> None:
    """Pages hold every name once; a pattern chooses names; a token of another list or pattern is refused."""
    names = ["a_1", "a_2", "ab1", "b"]
    for name in names:
        paimon.create(name)
    pages, token = [], None
    while True:
        query = {"maxResults": 3} | ({"pageToken": token} if token else {})
        page = paimon.done("GET", "/databases/db/tables", **query)
        pages.append(page["tables"])
        token = page["nextPageToken"]
        if token is None:
            break
        kept = token
    assert pages == [names[:3], names[3:]]
    assert paimon.done("GET", "/databases/db/tables", tableNamePattern=r"a\__")["tables"] == ["a_1", "a_2"]
    details = paimon.done("GET", "/databases/db/table-details", tableNamePattern="%b%")["tableDetails"]
    assert [row["name"] for row in details] == ["ab1", "b"]
    everywhere = paimon.done("GET", "/tables", databaseNamePattern="d_", tableNamePattern="b")["tables"]
    assert everywhere == [{"database": "db", "object": "b"}]
    for place, query in (
        ("/databases/db/tables", {"tableNamePattern": "a%"}),
        ("/databases/db/table-details", {}),
        ("/databases", {}),
    ):
        assert "another list" in paimon.refuse(400, "GET", place, pageToken=kept, **query)["message"]
    for wrong in ("x", "AAAA", "%00", "é" * 3, "A" * 10_000):
        paimon.refuse(400, "GET", "/databases/db/tables", pageToken=wrong)
    assert paimon.done("GET", "/databases/db/views") == {"views": [], "nextPageToken": None}
    assert paimon.refuse(404, "GET", "/databases/db/functions/f")["resourceType"] == "FUNCTION"
    paimon.refuse(501, "GET", "/databases/db/tables/b/token")


def test_snapshots_tags_branches_partitions(paimon: Paimon) -> None:
    """Versions are shown as lakebed has them, and its verbs make and delete tags and branches."""
    table = paimon.fill()
    newest = paimon.done("GET", ":/snapshot")["snapshot"]
    assert (newest["snapshot"]["id"], newest["recordCount"], newest["fileCount"]) == (3, 3, 3)
    assert paimon.done("GET", ":/snapshots/EARLIEST")["snapshot"]["id"] == 1
    assert paimon.done("GET", ":/snapshots/2")["snapshot"]["id"] == 2
    assert [row["id"] for row in paimon.done("GET", ":/snapshots", maxResults=2)["snapshots"]] == [1, 2]
    for version in ("99", "none"):  # of another resource it would read as a missing table
        assert paimon.refuse(404, "GET", f":/snapshots/{version}")["resourceType"] == "SNAPSHOT"
    paimon.done("POST", ":/tags", {"tagName": "a b+c", "snapshotId": 2, "timeRetained": "7 d"})
    tag = paimon.done("GET", ":/tags/a+b%2Bc")
    assert (tag["tagName"], tag["snapshot"]["id"], tag["tagTimeRetained"]) == ("a b+c", 2, "PT168H")
    assert paimon.refuse(409, "POST", ":/tags", {"tagName": "a b+c"})["resourceType"] == "TAG"
    assert paimon.refuse(404, "POST", ":/tags", {"tagName": "x", "snapshotId": 99})["resourceType"] == "SNAPSHOT"
    assert paimon.done("GET", ":/tags", tagNamePrefix="a")["tags"] == ["a b+c"]
    assert paimon.refuse(404, "GET", ":/tags/none")["resourceType"] == "TAG"
    paimon.done("POST", ":/branches", {"branch": "dev", "fromTag": None})
    assert paimon.refuse(409, "POST", ":/branches", {"branch": "dev"})["resourceType"] == "BRANCH"
    on_branch = paimon.done("GET", ":$branch_dev")
    assert on_branch["schema"]["options"]["branch"] == "dev"
    branch_of(table, "dev").append(pa.table({"id": pa.array([9], pa.int64()), "day": ["z"]}, schema=table.arrow_schema))
    paimon.done("POST", ":/branches/dev/forward", {})
    assert table.scan().count() == 4
    paimon.done("POST", ":/branches", {"branch": "taken"})
    refused = paimon.refuse(409, "POST", ":/branches/dev/rename", {"toBranch": "taken"})
    assert (refused["resourceType"], refused["resourceName"]) == ("BRANCH", "taken")
    refused = paimon.refuse(404, "POST", ":/branches/none/rename", {"toBranch": "other"})
    assert (refused["resourceType"], refused["resourceName"]) == ("BRANCH", "none")
    for old, new in (("main", "other"), ("dev", "main"), ("dev", "7"), ("dev", "a/b"), ("dev", "")):
        paimon.refuse(400, "POST", f":/branches/{old}/rename", {"toBranch": new})
    paimon.done("POST", ":/branches/dev/rename", {"toBranch": "other"})
    assert paimon.done("GET", ":/branches")["branches"] == ["other", "taken"]
    assert paimon.done("GET", ":$branch_other")["schema"]["options"]["branch"] == "other"
    assert paimon.refuse(404, "GET", ":$branch_dev/snapshot")["code"] == 404
    paimon.done("POST", ":/branches/other/rename", {"toBranch": "dev"})
    paimon.done("DELETE", ":/branches/taken")
    assert paimon.done("GET", ":/branches")["branches"] == ["dev"]
    partitions = paimon.done("GET", ":/partitions")["partitions"]
    assert [(row["spec"], row["recordCount"]) for row in partitions] == [
        ({"day": "a"}, 2),
        ({"day": "b"}, 1),
        ({"day": "z"}, 1),
    ]
    named = paimon.done("POST", ":/partitions/list-by-names", {"specs": [{"day": "b"}, {"day": "none"}]})
    assert [row["spec"] for row in named["partitions"]] == [{"day": "b"}]
    asked = {"partitionSpecs": [{"day": "b"}, {"day": "new"}]}
    assert paimon.done("POST", ":/partitions", asked) == {"created": [{"day": "new"}], "existed": [{"day": "b"}]}
    paimon.refuse(400, "POST", ":/partitions", {"partitionSpecs": [{"other": "b"}]})
    paimon.done("DELETE", ":/branches/dev")
    assert paimon.refuse(404, "GET", ":$branch_dev")["resourceType"] == "TABLE"
    assert paimon.refuse(404, "DELETE", ":/branches/dev")["resourceType"] == "BRANCH"


def test_rollbacks(paimon: Paimon) -> None:
    """A rollback goes to a snapshot or a tag; one that names another newest snapshot changes nothing."""
    table = paimon.fill()
    back = {"instant": {"type": "snapshot", "snapshotId": 1}, "fromSnapshot": 2}
    paimon.refuse(409, "POST", ":/rollback", back)
    assert table.scan().count() == 3
    paimon.done("POST", ":/rollback", {**back, "fromSnapshot": 3})
    assert table.scan().count() == 1
    gone = {"instant": {"type": "tag", "tagName": "none"}}
    assert paimon.refuse(404, "POST", ":/rollback", gone)["resourceType"] == "TAG"
    paimon.refuse(400, "POST", ":/rollback", {"instant": {"type": "moon"}})


def test_a_compressed_body_is_refused_as_such(paimon: Paimon) -> None:
    """The status and the form of the protocol, and nothing is created."""
    body = gzip.compress(json.dumps({"name": "lab"}).encode())
    answer = paimon.client.ask_root("POST", f"{ROOT}/databases", body, {"Content-Encoding": "gzip"})
    assert (answer.status, answer.json["code"]) == (415, 415)
    assert "Content-Encoding" in answer.json["message"]
    assert "lab" not in paimon.done("GET", "/databases")["databases"]


def test_commits_that_are_refused(paimon: Paimon) -> None:
    """A commit for another table, on an old base, with unknown members or with missing lists changes nothing."""
    table = paimon.fill()
    head = table.resolve()
    snapshot = paimon.done("GET", ":/snapshot")["snapshot"]["snapshot"]
    table_id = paimon.done("GET", ":")["id"]
    mine = {**snapshot, "id": 4, "uuid": None, "properties": {}}  # what only lakebed writes is refused
    commit = {"tableId": table_id, "snapshot": mine, "statistics": []}
    other = {**commit, "tableId": "00000000-0000-0000-0000-000000000000"}
    assert "dropped and created again" in paimon.refuse(400, "POST", ":/commit", other)["message"]
    old = {**commit, "snapshot": {**snapshot, "id": 2, "deltaManifestList": "manifest-list-new-1"}}
    assert paimon.done("POST", ":/commit", old) == {"success": False}
    for members in (
        {"baseManifestList": "../x"},
        {"deltaManifestList": "none"},
        {"unheard": 1},
        {"version": 4},
        {"id": 9},
        {"commitKind": "MERGE"},
        {"commitUser": None},
    ):
        paimon.refuse(400, "POST", ":/commit", {**commit, "snapshot": {**commit["snapshot"], **members}})
    for body in ({}, {"snapshot": 7}, {**commit, "statistics": [{"spec": 1}]}, b"{", b"[]"):
        paimon.refuse(400, "POST", ":/commit", body)
    # The newest snapshot sent as the next one: its base list lacks what its delta brings.
    assert "live files" in paimon.refuse(400, "POST", ":/commit", commit)["message"]
    assert table.resolve() == head


def test_a_table_that_another_process_drops_is_gone_here_too(paimon: Paimon) -> None:
    """What the server keeps of an opened table: its newest snapshot, and a commit, are of the table that is there."""
    table = paimon.fill()
    snapshot = paimon.done("GET", ":/snapshot")["snapshot"]["snapshot"]
    commit = {
        "tableId": paimon.done("GET", ":")["id"],
        "snapshot": {**snapshot, "id": 4, "uuid": None, "properties": {}},
        "statistics": [],
    }
    paimon.lake.drop_table("db.t")
    for method, place, body in (("GET", ":/snapshot", None), ("POST", ":/commit", commit)):
        assert paimon.refuse(404, method, place, body)["resourceType"] == "TABLE"
    again = paimon.lake.create_table("db.t", pa.schema([("id", pa.int64())]))
    assert paimon.refuse(404, "GET", ":/snapshot")["resourceType"] == "SNAPSHOT"
    for _ in range(2):
        assert "created again" in paimon.refuse(400, "POST", ":/commit", commit)["message"]
    assert again.latest() is None
    again.append(pa.table({"id": pa.array([7], pa.int64())}))
    assert paimon.done("GET", ":/snapshot")["snapshot"]["recordCount"] == 1
    assert table.url == again.url, "or this is no test of another table in the same place"


def test_a_commit_says_who_made_it(paimon: Paimon) -> None:
    """The snapshot of a commit names the key; the audit log and the hint for clients of the files follow the reply."""
    table = paimon.fill()
    head = table.resolve()
    names = [f"manifest-list-{part}" for part in ("base", "delta")]
    for name, metas in zip(names, (table.context.manifests.all_metas(head), []), strict=True):
        table.store.put(f"manifest/{name}", encode_manifest_list(metas))
    snapshot = {**paimon.done("GET", ":/snapshot")["snapshot"]["snapshot"], "id": head.id + 1, "properties": {}}
    snapshot |= {"uuid": None, "baseManifestList": names[0], "deltaManifestList": names[1]}
    snapshot |= {"baseManifestListSize": None, "deltaManifestListSize": None}
    assert paimon.done("POST", ":/commit", {"snapshot": snapshot}) == {"success": True}
    committed = table.resolve()
    key = base64.b64decode(paimon.client.headers["authorization"].split()[1]).decode().partition(":")[0]
    assert committed.id == head.id + 1
    assert committed.properties["lakebed.committer"] == key

    def lines() -> list[tuple[str, str]]:
        rows = paimon.client.ask("GET", "/auth/audit").json["results"]
        return [(row["action"], row["access_key_id"]) for row in rows]

    wait_until(lambda: ("paimonCommit", key) in lines())
    wait_until(lambda: bytes(table.store.get("snapshot/LATEST")) == str(committed.id).encode())


def test_errors_do_not_say_where_the_lake_is(paimon: Paimon) -> None:
    """No error of the catalogs has the path of the lake's folder, though tables are told with theirs."""
    paimon.fill()
    folder = str(paimon.folder)
    refused = [
        paimon.refuse(409, "POST", "/databases/db/tables", body)["message"]
        for body in ({"identifier": {"database": "db", "object": "t"}, "schema": {"fields": FIELDS}},)
    ]
    snapshot = paimon.done("GET", ":/snapshot")["snapshot"]["snapshot"]
    gone = {**snapshot, "id": 4, "uuid": None, "properties": {}, "deltaManifestList": "none"}
    refused.append(paimon.refuse(400, "POST", ":/commit", {"snapshot": gone})["message"])
    assert "local://" in refused[0]
    assert not [message for message in refused if folder in message]


@pytest.mark.parametrize(
    ("status", "place"),
    [
        (404, "/databases/db/tables/a%2Fb"),
        (404, "/databases/db/tables/t%24snapshots"),
        (404, "/databases/none/tables"),
        (404, "/databases/a.b/tables/t"),
        (404, "/databases/db/tables/a.b"),
        (400, "/databases/db/tables/a%1Fb"),
        (404, "/databases/db/tables/%2E%2E"),
        (400, "/databases/db%5C/tables/t"),
        (404, "/databases/db/tables/none"),
        (404, "/nothing/of/the/kind"),
    ],
)
def test_names_that_are_none(paimon: Paimon, status: int, place: str) -> None:
    """Dots, slashes, separators and names that do not exist are errors of the protocol."""
    paimon.refuse(status, "GET", place)


def test_prefixes_keys_and_bodies(paimon: Paimon, tmp_path: Path) -> None:
    """Another prefix, no key, a key that may not, a huge body: the error of the protocol."""
    paimon.create("t")
    client = paimon.client
    wrong = client.ask_root("GET", "/paimon/v1/other/databases", None, None)
    assert (wrong.status, wrong.json["code"]) == (404, 404)
    for headers in ({"authorization": ""}, {"authorization": "Bearer x.y"}):
        answer = client.ask_root("GET", f"{ROOT}/databases", None, headers)
        assert (answer.status, answer.json["code"]) == (401, 401)
    reader, writer = (Paimon(client.new_key(role), tmp_path / "lake") for role in ("read", "write"))
    assert reader.done("GET", ":")["name"] == "t"
    reader.refuse(403, "POST", ":/tags", {"tagName": "x"})
    writer.refuse(403, "DELETE", ":")
    limited = Paimon(client.new_key("write", repositories=["analytics"]), tmp_path / "lake")
    assert "may not use" in limited.refuse(404, "GET", ":")["message"]
    assert "may not use" in limited.refuse(403, "GET", ":/snapshot")["message"]
    huge = client.ask_root("POST", f"{ROOT}/databases/db/tables/t/commit", None, {"content-length": str(100 << 20)})
    assert (huge.status, huge.json["code"]) == (413, 413)


def test_a_key_sees_its_tables_alone(paimon: Paimon) -> None:
    """Lists of a limited key have only what it may see, and it creates, changes and drops within its limits alone."""
    client = paimon.client
    for database in ("other", "whole"):
        paimon.done("POST", "/databases", {"name": database})
        body = {"identifier": {"database": database, "object": "t"}, "schema": {"fields": FIELDS}}
        paimon.done("POST", f"/databases/{database}/tables", body)
    paimon.fill()
    paimon.create("u")
    limited = Paimon(client.new_key("admin", tables=["db.t", "db.made", "whole.*"]), paimon.folder)
    assert limited.done("GET", "/databases")["databases"] == ["db", "whole"]
    assert limited.done("GET", "/databases/db/tables")["tables"] == ["t"]
    assert [row["name"] for row in limited.done("GET", "/databases/db/table-details")["tableDetails"]] == ["t"]
    shown = [f"{row['database']}.{row['object']}" for row in limited.done("GET", "/tables")["tables"]]
    assert shown == ["db.t", "whole.t"]
    limited.done("POST", ":/branches", {"branch": "dev"})
    assert limited.done("GET", ":$branch_dev")["schema"]["options"]["branch"] == "dev"
    limited.create("made")
    with pytest.raises(AssertionError, match=r"may not use the table db\.unmade"):
        limited.create("unmade")
    for status, method, place, named in (
        (404, "GET", "/databases/other", {}),
        (403, "DELETE", "/databases/other", {}),
        (403, "DELETE", "/databases/db", {}),
        (403, "POST", "/databases/db", {"updates": {"a": "1"}}),
        (403, "POST", "/databases", {"name": "fresh"}),
        (404, "GET", "/databases/db/tables/u", {}),
        (404, "GET", "/databases/db/tables/u$branch_dev", {}),
        (404, "GET", "/databases/db/tables/none", {}),
    ):
        message = limited.refuse(status, method, place, named)["message"]
        assert "may not use" in message or "limited" in message
    assert limited.client.ask("GET", "/repositories").json["results"] == []
    assert limited.client.ask("GET", "/repositories/analytics").status == 403
    assert limited.client.ask("POST", "/auth/keys", {"role": "read"}).status == 403
    limited.done("DELETE", "/databases/db/tables/made")
    limited.done("DELETE", "/databases/whole")
    everything = Paimon(client.new_key("read", tables=["*"]), paimon.folder)
    assert everything.done("GET", "/databases")["databases"] == ["db", "default", "other"]
    assert everything.client.ask("GET", "/repositories").json["results"] == []


def test_no_route_shows_another_ones_table(paimon: Paimon) -> None:
    """Every route below a database or table refuses a key that may not see it, before it looks whether it exists."""
    paimon.fill()
    limited = Paimon(paimon.client.new_key("admin", tables=["db.mine"], repositories=["analytics"]), paimon.folder)
    bodies = {
        "identifier": {"database": "db", "object": "t"},
        "schema": {"fields": FIELDS},
        "changes": [],
        "snapshot": {},
        "instant": {"type": "snapshot", "snapshotId": 1},
        "tagName": "a",
        "branch": "a",
        "toBranch": "b",
        "specs": [],
        "partitionSpecs": [],
        "removals": [],
    }
    count = 0
    for route in ROUTES:
        endpoint = route.endpoint
        if "{database}" not in endpoint.path:
            continue
        for table in ("t", "none") if "{table}" in endpoint.path else ("",):
            path = endpoint.path.removeprefix("/v1/{prefix}").replace("{table}", table)
            path = path.replace("{database}", "db" if table else "other")
            for name in ("tag", "branch", "version", "view", "function"):
                path = path.replace(f"{{{name}}}", "a")
            body = bodies if endpoint.takes or endpoint.method == "POST" else None
            status = 404 if endpoint.name in ("paimonGetTable", "paimonGetDatabase") else 403
            message = limited.refuse(status, endpoint.method, path, body)["message"]
            assert "may not use" in message or "limited" in message
            count += 1
    assert count > 40
    assert limited.client.ask("GET", "/repositories/analytics").status == 200


def test_a_name_is_checked_as_it_is_used(paimon: Paimon) -> None:
    """A plus and a space are two names: a key of one never reaches the other, however the path is written."""
    for name in ("a b", "a+b"):
        paimon.create(name)
    limited = Paimon(paimon.client.new_key("read", tables=["db.a+b"]), paimon.folder)
    assert limited.done("GET", "/databases/db/tables/a%2Bb")["name"] == "a+b"
    for place in ("a+b", "a%20b"):
        limited.refuse(404, "GET", f"/databases/db/tables/{place}")


def test_no_member_of_a_table_is_null(paimon: Paimon) -> None:
    """Clients put these members into the table's options, and Flink reads no table that has an option without value."""
    paimon.fill()
    members = ("owner", "createdAt", "createdBy", "updatedAt", "updatedBy")
    details = paimon.done("GET", "/databases/db/table-details")["tableDetails"]
    for shown in (paimon.done("GET", ":"), *details, paimon.done("GET", "/databases/db")):
        assert None not in [shown[name] for name in members]


def test_clients_are_told_to_expire_nothing(paimon: Paimon) -> None:
    """Clients see the limit 0 for the snapshots of an expiry, also of branches; lakebed has the table's own limit."""
    paimon.create("t", options={"snapshot.expire.limit": "7"})
    table = paimon.lake.table("db.t")
    table.append(pa.table({"id": pa.array([1], pa.int64()), "day": ["a"]}, schema=table.arrow_schema))
    paimon.done("POST", ":/branches", {"branch": "dev"})
    (listed,) = paimon.done("GET", "/databases/db/table-details")["tableDetails"]
    for shown in (paimon.done("GET", ":"), paimon.done("GET", ":$branch_dev"), listed):
        assert shown["schema"]["options"]["snapshot.expire.limit"] == "0"
    changes = [{"action": "setOption", "key": "snapshot.num-retained.min", "value": "3"}]
    paimon.done("POST", ":", {"changes": changes})
    assert paimon.lake.table("db.t").schema.options["snapshot.expire.limit"] == "7"


def test_a_name_with_a_dot_is_of_no_table_for_every_key(paimon: Paimon) -> None:
    """Flink looks for a table that has the name of a database, also with a key that may not see the place."""
    limited = Paimon(paimon.client.new_key("write", tables=["other.*"]), paimon.folder)
    for catalog in (paimon, limited):
        error = catalog.refuse(404, "GET", "/databases/db/tables/analytics.etl")
        assert (error["resourceType"], error["resourceName"]) == ("TABLE", "analytics.etl")


def test_a_server_that_starts_again_knows_the_same(serve: Callable[..., Running], connect: Any, tmp_path: Path) -> None:
    """Ids of tables and properties of databases survive the server."""
    first = serve()
    client = connect(first)
    paimon = Paimon(client, tmp_path / "lake")
    paimon.done("POST", "/databases", {"name": "db", "options": {"a": "1"}})
    paimon.create("t")
    table_id = paimon.done("GET", ":")["id"]
    first.stop()
    client.endpoint = serve().started.endpoint
    assert paimon.done("GET", ":")["id"] == table_id
    assert paimon.done("GET", "/databases/db")["options"] == {"a": "1"}
