"""What lakeFS's clients rely on, request by request: headers, conditions, statuses, filters, pages."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from lakebed.server.lifecycle import Running
from lakebed.server.options import ServerOptions
from lakebed.server.serve import start_server

_numbers = itertools.count()
LARGE = 3 << 20


@pytest.fixture(scope="module")
def outside(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of the storage that may be imported from."""
    folder = tmp_path_factory.mktemp("storage") / "incoming"
    folder.mkdir()
    (folder / "one").write_bytes(b"1")
    return folder


@pytest.fixture(scope="module")
def one_server(outside: Path) -> Iterator[Running]:
    """One server for all tests here; each has a repository of its own."""
    with start_server(outside.parent, options=ServerOptions(durable=False, import_from=[str(outside)])) as running:
        yield running


@pytest.fixture
def client(one_server: Running, connect: Callable[[Running], Any]) -> Iterator[Any]:
    """A client that may do everything, and its own new repository."""
    made = connect(one_server)
    made.repository = f"lakefs-{next(_numbers)}"
    body = {"name": made.repository, "storage_namespace": f"local://{made.repository}"}
    assert made.ask("POST", "/repositories", body).status == 201
    yield made
    made.pool.clear()


def upload(client: Any, path: str, body: bytes = b"1", *, branch: str = "main", **headers: str) -> Any:
    """The answer to an upload."""
    return client.ask("POST", f":/branches/{branch}/objects", body, headers, path=path)


def stat(client: Any, path: str, **query: Any) -> Any:
    """The metadata of an object."""
    return client.ask("GET", ":/refs/main/objects/stat", path=path, **query).json


def test_internal_headers_are_metadata(client: Any) -> None:
    """``x-lakefs-internal-NAME`` is kept as ``::lakefs::NAME``, in every way to write and to read it."""
    large = b"x" * LARGE
    for path, body in (("small", b"1"), ("large", large)):
        answer = upload(
            client,
            path,
            body,
            **{
                "X-Lakefs-Internal-Client-Mtime": "1700000000",
                "x-lakefs-internal-symlink-target": "ü/日".encode().decode("latin-1"),
                "x-lakefs-meta-owner": "é",
            },
        )
        kept = {"::lakefs::client-mtime": "1700000000", "::lakefs::symlink-target": "ü/日", "owner": "é"}
        assert answer.status == 201
        assert answer.json["metadata"] == kept
        assert stat(client, path)["metadata"] == kept
    client.commit()
    rows = client.ask("GET", ":/refs/main/objects/ls", user_metadata="true").json["results"]
    assert [row["metadata"] for row in rows] == [kept, kept]
    assert "metadata" not in client.ask("GET", ":/refs/main/objects/ls", user_metadata="false").json["results"][0]
    assert upload(client, "small", b"1", **{"x-lakefs-internal-client-mtime": "1700000001"}).status == 201
    assert [row["path"] for row in client.ask("GET", ":/branches/main/diff").json["results"]] == ["small"]


def test_a_linked_object_has_the_time_of_its_client(client: Any) -> None:
    """``mtime`` and metadata of a link are kept."""
    place = client.ask("GET", ":/branches/main/staging/backing", path="a", presign="true").json
    client.pool.request("PUT", place["presigned_url"], body=b"1")
    link = {"staging": place, "checksum": "x", "size_bytes": 1, "mtime": 1_600_000_000}
    link["user_metadata"] = {"::lakefs::client-mtime": "1600000000"}
    answer = client.ask("PUT", ":/branches/main/staging/backing", link, path="a")
    assert answer.status == 200
    for messages in (answer.json, stat(client, "a")):
        assert (messages["mtime"], messages["metadata"]) == (1_600_000_000, {"::lakefs::client-mtime": "1600000000"})


def test_objects_are_not_kept_by_browsers_or_proxies(client: Any) -> None:
    """Downloads name a disposition and forbid caches; what a browser cannot show is an attachment."""
    upload(client, "page", **{"Content-Type": "text/html"})
    upload(client, "blob", **{"Content-Type": "application/x-unknown"})
    for method in ("GET", "HEAD"):
        for path, disposition in (("page", "inline"), ("blob", "attachment")):
            headers = client.ask(method, ":/refs/main/objects", path=path).headers
            assert headers["content-disposition"] == disposition
            assert headers["cache-control"] == "no-store, must-revalidate"
            assert headers["expires"] == "0"


def test_an_upload_can_expect_what_is_there(client: Any) -> None:
    """If-Match overwrites the object with that ETag and no other, for any size; a missing one never matches."""
    first = upload(client, "a").json["checksum"]
    assert upload(client, "b", **{"If-Match": "*"}).status == 412
    assert upload(client, "a", b"2", **{"If-Match": '"other"'}).status == 412
    assert upload(client, "a", b"2", **{"If-Match": f'W/"{first}"'}).status == 412
    assert upload(client, "a", b"x" * LARGE, **{"If-Match": '"other"'}).status == 412
    assert upload(client, "a", b"2", **{"If-Match": f'"other", "{first}"'}).status == 201
    assert upload(client, "a", b"3", **{"If-Match": f'"{first}"'}).status == 412
    assert upload(client, "a", b"4", **{"If-Match": "*", "If-None-Match": "*"}).status == 400
    assert client.get("a").body == b"2"
    client.commit()
    second = stat(client, "a")["checksum"]
    assert upload(client, "a", b"x" * LARGE, **{"If-Match": f'"{second}"'}).status == 201
    client.ask("DELETE", ":/branches/main/objects", path="a")
    assert upload(client, "a", b"5", **{"If-Match": f'"{second}"'}).status == 412
    assert upload(client, "a", b"5", **{"If-Match": "*"}).status == 412


def test_of_many_that_expect_the_same_one_writes(client: Any) -> None:
    """Uploads with one ETag at once: the first is stored, the others are refused, and none is lost."""
    tag = upload(client, "a", b"start").json["checksum"]

    def write(number: int) -> int:
        status: int = upload(client, "a", b"%d" % number, **{"If-Match": f'"{tag}"'}).status
        return status

    with ThreadPoolExecutor(8) as pool:
        statuses = list(pool.map(write, range(8)))
    assert sorted(statuses) == [201, *[412] * 7]
    assert client.get("a").body == b"%d" % statuses.index(201)


def test_force_changes_a_read_only_repository(client: Any, outside: Path) -> None:
    """Every verb refuses a read-only repository with 403, and makes the change with force."""
    name = f"{client.repository}-ro"
    body = {"name": name, "storage_namespace": f"local://{name}", "read_only": True}
    assert client.ask("POST", "/repositories", body).status == 201
    frozen = replace(client, repository=name)
    link = {"physical_address": f"file://{outside / 'one'}", "checksum": "x", "size_bytes": 1}
    place = {"paths": [{"type": "common_prefix", "path": "local://incoming/", "destination": "in/"}]}
    verbs: list[tuple[str, str, Any, dict[str, str]]] = [
        ("POST", ":/branches", {"name": "dev", "source": "main"}, {}),
        ("POST", ":/branches/dev/objects", b"1", {"path": "a"}),
        ("POST", ":/branches/dev/objects/copy", {"src_path": "a"}, {"dest_path": "b"}),
        ("PUT", ":/branches/dev/objects", link, {"path": "c"}),
        ("DELETE", ":/branches/dev/objects", None, {"path": "b"}),
        ("POST", ":/branches/dev/objects/delete", {"paths": ["c"]}, {}),
        ("POST", ":/branches/dev/commits", {"message": "m"}, {}),
        ("POST", ":/refs/dev/merge/main", {}, {}),
        ("POST", ":/tags", {"id": "t", "ref": "main"}, {}),
        ("DELETE", ":/tags/t", None, {}),
        ("POST", ":/branches/main/revert", {"ref": "main", "parent_number": 1}, {}),
        ("POST", ":/branches/main/cherry-pick", {"ref": "dev"}, {}),
        ("PUT", ":/branches/main", {"type": "reset"}, {}),
        ("PUT", ":/branches/main/hard_reset", None, {"ref": "main~1"}),
        ("POST", ":/branches/main/import", {**place, "commit": {"message": "m"}}, {}),
        ("DELETE", ":/branches/dev", None, {}),
        ("DELETE", ":", None, {}),
    ]
    for method, path, body, query in verbs:
        refused = frozen.ask(method, path, body, **query)
        assert (refused.status, method, path) == (403, method, path), refused.body
        forced = isinstance(body, dict)
        asked = {**body, "force": True} if forced else body
        done = frozen.ask(method, path, asked, **query, force="true")
        assert done.status < 300, (method, path, done.body)
        if path.endswith("import"):
            for _ in range(10_000):
                document = frozen.ask("GET", path, id=done.json["id"]).json
                assert "error" not in document, document
                if document["completed"]:
                    break
            assert frozen.listed() == ["in/one"]


def test_rules_of_protection_have_an_etag(client: Any) -> None:
    """A change of rules that were changed since they were read is refused, and no rule is lost."""
    place = ":/settings/branch_protection"

    def store(patterns: list[str], **headers: str) -> int:
        status: int = client.ask("PUT", place, [{"pattern": pattern} for pattern in patterns], headers).status
        return status

    def read() -> tuple[list[str], str]:
        answer = client.ask("GET", place)
        return [rule["pattern"] for rule in answer.json], answer.headers["etag"]

    none, before = read()
    assert none == []
    assert store(["a"], **{"If-Match": before}) == 204
    assert store(["b"], **{"If-Match": before}) == 412
    first, tag = read()
    assert first == ["a"]
    assert tag != before
    assert store(["a", "b"], **{"If-Match": tag}) == 204
    assert store(["c"], **{"If-Match": tag}) == 412
    assert store(["c"], **{"If-Match": ""}) == 412
    assert read()[0] == ["a", "b"]
    assert store(["d", "d"]) == 204  # without a condition, and a client may repeat a pattern
    assert read()[0] == ["d"]


def test_a_folder_of_the_storage_is_imported(client: Any) -> None:
    """``local://folder`` is relative to the storage, as in namespaces; other schemes stay as they are."""
    for path, kind in (("local://incoming/", "common_prefix"), ("local://incoming/one", "object")):
        location = {"type": kind, "path": path, "destination": f"{kind}/"}
        location["destination"] += "" if kind == "common_prefix" else "one"
        body = {"paths": [location], "commit": {"message": "m"}}
        done = client.ask("POST", ":/branches/main/import", body)
        assert done.status == 202, done.body
        for _ in range(10_000):
            document = client.ask("GET", ":/branches/main/import", id=done.json["id"]).json
            assert "error" not in document, document
            if document["completed"]:
                break
    assert client.listed() == ["common_prefix/one", "object/one"]


def test_an_import_is_of_its_branch(client: Any) -> None:
    """Under another branch, which decides what a user may do, an import is neither shown nor cancelled."""
    client.ask("POST", ":/branches", {"name": "dev", "source": "main"})
    location = {"type": "common_prefix", "path": "local://incoming/", "destination": "a/"}
    id = client.ask("POST", ":/branches/main/import", {"paths": [location], "commit": {"message": "m"}}).json["id"]
    for branch in ("dev", "none", "main~0"):
        for method in ("GET", "DELETE"):
            assert client.ask(method, f":/branches/{branch}/import", id=id).status == 404, (method, branch)
    while not client.ask("GET", ":/branches/main/import", id=id).json["completed"]:
        pass
    assert client.listed() == ["a/one"]


def test_listings_go_on_inside_a_folder(client: Any) -> None:
    """A folder in which there is more behind ``after`` is listed; one whose last path it is, or itself, is not."""
    for path in ("a/1", "a/2", "b/1", "c"):
        client.put(path)
    for after, rest in (
        ("a/1", ["a/", "b/", "c"]),
        ("a/2", ["b/", "c"]),
        ("a/", ["b/", "c"]),
        ("a", ["a/", "b/", "c"]),
    ):
        assert client.listed(delimiter="/", after=after) == rest
        rows = client.ask("GET", ":/branches/main/diff", delimiter="/", after=after).json["results"]
        assert [row["path"] for row in rows] == rest


def test_staged_references_are_refused_where_a_commit_is_meant(client: Any) -> None:
    """``main$`` is not a commit: merge, tag, reset, log and the others say so and change nothing."""
    client.ask("POST", ":/branches", {"name": "dev", "source": "main"})
    client.put("a", branch="dev")
    head = client.commit(branch="dev")["id"]
    place = {"ref": "dev$", "parent_number": 0}
    for method, path, body, query in (
        ("POST", ":/refs/dev$/merge/main", {}, {}),
        ("GET", ":/refs/dev$/merge/main", None, {}),
        ("POST", ":/tags", {"id": "t", "ref": "dev$"}, {}),
        ("POST", ":/branches", {"name": "new", "source": "dev$"}, {}),
        ("PUT", ":/branches/main/hard_reset", None, {"ref": "dev$"}),
        ("GET", ":/refs/dev$/commits", None, {}),
        ("GET", ":/refs/dev/commits", None, {"stop_at": "main$"}),
        ("GET", ":/commits/dev$", None, {}),
        ("GET", ":/refs/main/diff/dev$", None, {}),
        ("POST", ":/branches/main/revert", place, {}),
        ("POST", ":/branches/main/cherry-pick", place, {}),
        ("POST", ":/verbs/blame_many", {"ref": "dev$", "paths": ["a"]}, {}),
        ("POST", ":/verbs/rebase", {"branch": "main", "onto": "dev$"}, {}),
    ):
        answer = client.ask(method, path, body, **query)
        assert (answer.status, path) == (400, path), answer.body
        assert "$" in answer.message
    assert client.listed() == []
    assert client.ask("GET", ":/branches/dev").json["commit_id"] == head
    assert client.listed(ref="dev$") == ["a"]


def test_a_difference_tells_the_right_side(client: Any) -> None:
    """``include_right_stats`` adds checksum, time, type and metadata of what is there on the right."""
    client.put("gone")
    client.commit()
    client.ask("POST", ":/branches", {"name": "dev", "source": "main"})
    upload(client, "new", b"22", branch="dev", **{"x-lakefs-meta-k": "v", "Content-Type": "text/x"})
    client.ask("DELETE", ":/branches/dev/objects", path="gone")
    client.commit(branch="dev")
    made = client.ask("GET", ":/refs/dev/objects/stat", path="new").json
    right = {key: made[key] for key in ("checksum", "mtime", "metadata", "content_type")}
    rows = client.ask("GET", ":/refs/main/diff/dev", include_right_stats="true").json["results"]
    assert [(row["path"], row.get("right")) for row in rows] == [("gone", None), ("new", right)]
    plain = client.ask("GET", ":/refs/main/diff/dev").json["results"]
    assert all("right" not in row for row in plain)
    folded = client.ask("GET", ":/refs/main/diff/dev", include_right_stats="true", delimiter="e").json["results"]
    assert "right" not in folded[-1]


def test_statuses_are_those_that_clients_expect(client: Any) -> None:
    """A revert of a merge needs a parent: 409; a cherry-pick of one: 400; metadata is set: 204; a user has an email."""
    client.ask("POST", ":/branches", {"name": "dev", "source": "main"})
    client.put("a", branch="dev")
    client.commit(branch="dev")
    merged = client.ask("POST", ":/refs/dev/merge/main", {}).json["reference"]
    answer = client.ask("POST", ":/branches/main/revert", {"ref": merged, "parent_number": 0})
    assert (answer.status, answer.headers["x-lakebed-error"]) == (409, "parent_number_needed")
    assert client.ask("POST", ":/branches/main/cherry-pick", {"ref": merged}).status == 400
    assert client.ask("POST", ":/branches/main/revert", {"ref": merged, "parent_number": 3}).status == 400
    assert client.ask("POST", ":/branches/main/revert", {"ref": merged, "parent_number": 1}).status == 204
    assert client.ask("POST", ":/metadata", {"metadata": {"k": "v"}}).status == 204
    user = client.ask("GET", "/user").json["user"]
    assert (user["email"], user["friendly_name"]) == ("", user["id"])


def test_metadata_of_a_repository_loses_no_key(client: Any) -> None:
    """Clients that set and remove keys of a repository's metadata at once keep each other's."""

    def work(number: int) -> None:
        for key in ("a", "b", "gone"):
            assert client.ask("POST", ":/metadata", {"metadata": {f"{key}{number}": "1"}}).status == 204
        assert client.ask("DELETE", ":/metadata", {"keys": [f"gone{number}", "missing"]}).status == 204

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(work, range(8)))
    wanted = {f"{key}{number}": "1" for key in "ab" for number in range(8)}
    assert client.ask("GET", ":/metadata").json == wanted
    assert client.ask("DELETE", ":/metadata", {}).status == 400


@pytest.mark.parametrize("namespace", ["foo", "foo/bar", "local:/x", "local:x", "/abs", "", "://x"])
def test_a_namespace_is_a_url(client: Any, namespace: str) -> None:
    """Anything else is refused with a sentence, and nothing is made."""
    name = f"{client.repository}-n"
    answer = client.ask("POST", "/repositories", {"name": name, "storage_namespace": namespace})
    assert answer.status == 400
    assert answer.message
    assert client.ask("GET", f"/repositories/{name}").status == 404


def test_pages_of_a_log_go_on_where_they_ended(client: Any) -> None:
    """Pages make the log of the first page's moment although the head moves; a commit's id is a position too."""
    ids = [client.commit(f"{number}", allow_empty=True)["id"] for number in range(6)]
    for side in ("dev", "side"):
        client.ask("POST", ":/branches", {"name": side, "source": "main~3"})
        client.commit(side, branch=side, allow_empty=True)
        client.ask("POST", f":/refs/{side}/merge/main", {})
    whole = [row["id"] for row in client.ask("GET", ":/refs/main/commits").json["results"]]
    assert set(ids) < set(whole)
    for amount in (1, 2, 3):
        lines: list[str] = []
        after = ""
        while True:
            page = client.ask("GET", ":/refs/main/commits", amount=amount, after=after).json
            lines += [row["id"] for row in page["results"]]
            after = page["pagination"]["next_offset"]
            assert page["pagination"]["has_more"] == bool(after)
            if not after:
                break
            if amount == 3:
                client.commit("meanwhile", allow_empty=True)
        assert lines == whole
    rest = client.ask("GET", f":/refs/{whole[0]}/commits", after=whole[3]).json["results"]
    assert [row["id"] for row in rest] == whole[4:]
    for wrong, status in (("x.y", 400), (f"{whole[0]}.{'A' * 43}", 404), ("x." + "A" * 44, 400)):
        assert client.ask("GET", ":/refs/main/commits", after=wrong).status == status
