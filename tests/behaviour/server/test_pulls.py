"""Pull requests, and the smaller operations that lakeFS's clients make."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from lakebed.repo.lakefs import committed_files
from lakebed.repo.lakefs.messages import decode_lakefs_entry, decode_lakefs_range, split_value
from lakebed.repo.lakefs.sstable import SSTable
from lakebed.repo.transport.transport import context_of


@pytest.fixture
def pull(client: Any) -> str:
    """A pull request of the branch dev, which has one commit more than main; its id."""
    client.put("a", b"main")
    client.commit()
    assert client.ask("POST", ":/branches", {"name": "dev", "source": "main"}).status == 201
    client.put("a", b"dev", branch="dev")
    client.commit("of dev", branch="dev")
    body = {"title": "Dev", "description": "what it is", "source_branch": "dev", "destination_branch": "main"}
    answer = client.ask("POST", ":/pulls", body)
    assert answer.status == 201
    return str(answer.json["id"])


def ids(client: Any, **query: Any) -> list[str]:
    """Of the pull requests that are listed."""
    return [row["id"] for row in client.ask("GET", ":/pulls", **query).json["results"]]


def test_a_pull_request_is_merged_once(client: Any, pull: str) -> None:
    """A merge is a commit of the destination, closes the pull request for good, and says so everywhere."""
    shown = client.ask("GET", f":/pulls/{pull}").json
    branches = {"source_branch": "dev", "destination_branch": "main"}
    expected = {"status": "open", "title": "Dev", "description": "what it is", **branches}
    assert {name: shown[name] for name in expected} == expected
    assert shown["author"] == client.ask("GET", "/user").json["user"]["id"]
    assert ids(client, status="open") == ids(client) == [pull]
    merged = client.ask("PUT", f":/pulls/{pull}/merge", {"message": "take it"})
    assert merged.status == 200
    assert client.get("a").body == b"dev"
    assert client.ask("GET", ":/commits/main").json["message"] == "take it"
    shown = client.ask("GET", f":/pulls/{pull}").json
    assert (shown["status"], shown["merged_commit_id"]) == ("merged", merged.json["reference"])
    assert "closed_date" in shown
    assert (ids(client, status="open"), ids(client, status="closed"), ids(client)) == ([], [pull], [pull])
    assert client.ask("PUT", f":/pulls/{pull}/merge").status == 400
    assert client.ask("PATCH", f":/pulls/{pull}", {"status": "open"}).status == 400
    assert client.ask("GET", ":/commits/main").json["id"] == merged.json["reference"]


def test_a_pull_request_is_changed_closed_and_opened(client: Any, pull: str) -> None:
    """What is given changes; a closed one is not merged until it is opened again; none is made merged by hand."""
    assert client.ask("PATCH", f":/pulls/{pull}", {"title": "Other"}).status == 204
    assert client.ask("PATCH", f":/pulls/{pull}", {"status": "closed", "description": "no"}).status == 204
    shown = client.ask("GET", f":/pulls/{pull}").json
    assert (shown["title"], shown["description"], shown["status"]) == ("Other", "no", "closed")
    assert client.ask("PUT", f":/pulls/{pull}/merge").status == 400
    assert client.get("a").body == b"main"
    assert client.ask("PATCH", f":/pulls/{pull}", {"status": "merged"}).status == 400
    assert client.ask("PATCH", f":/pulls/{pull}", {"status": "open"}).status == 204
    assert "closed_date" not in client.ask("GET", f":/pulls/{pull}").json
    assert client.ask("PUT", f":/pulls/{pull}/merge").status == 200


def test_a_conflict_leaves_a_pull_request_open(client: Any, pull: str) -> None:
    """A merge that is refused changes neither branch nor pull request."""
    client.put("a", b"changed here too")
    client.commit()
    assert client.ask("PUT", f":/pulls/{pull}/merge").status == 409
    assert client.ask("GET", f":/pulls/{pull}").json["status"] == "open"
    assert client.ask("PUT", f":/pulls/{pull}/merge", {"strategy": "source-wins"}).status == 200
    assert client.get("a").body == b"dev"


def test_of_merges_at_once_one_is_made(client: Any, pull: str) -> None:
    """Several that merge the same pull request make one commit; it is the one that the pull request names."""
    with ThreadPoolExecutor(4) as pool:
        answers = list(pool.map(lambda _: client.ask("PUT", f":/pulls/{pull}/merge"), range(4)))
    made = [answer.json["reference"] for answer in answers if answer.status == 200]
    assert len(made) == 1
    assert {answer.status for answer in answers} <= {200, 400, 409}
    assert client.ask("GET", f":/pulls/{pull}").json["merged_commit_id"] == made[0]
    assert [row["id"] for row in client.ask("GET", ":/refs/main/commits").json["results"]].count(made[0]) == 1


def test_of_merges_at_once_that_may_be_empty_one_is_made(client: Any, pull: str) -> None:
    """Also where an empty merge is allowed, so that each of them could make a commit."""
    before = len(client.ask("GET", ":/refs/main/commits").json["results"])
    with ThreadPoolExecutor(4) as pool:
        answers = list(pool.map(lambda _: client.ask("PUT", f":/pulls/{pull}/merge", {"allow_empty": True}), range(4)))
    assert sorted(answer.status for answer in answers) == [200, 400, 400, 400]
    assert len(client.ask("GET", ":/refs/main/commits").json["results"]) == before + 2


@pytest.mark.parametrize(
    ("body", "status"),
    [
        ({"source_branch": "main", "destination_branch": "main"}, 400),
        ({"source_branch": "missing", "destination_branch": "main"}, 404),
        ({"source_branch": "main", "destination_branch": "missing"}, 404),
        ({"source_branch": "main"}, 400),
        ({"source_branch": "main", "destination_branch": "dev", "description": "x" * 70_000}, 400),
    ],
)
def test_a_wrong_pull_request_is_refused(client: Any, pull: str, body: dict[str, str], status: int) -> None:
    """Without two branches that exist, or with too much text, there is none."""
    assert client.ask("POST", ":/pulls", {"title": "wrong", **body}).status == status
    assert ids(client) == [pull]
    assert client.ask("GET", ":/pulls/missing").status == 404
    assert client.ask("GET", ":/pulls", status="neither").status == 400


def test_metadata_of_an_object_is_replaced(client: Any) -> None:
    """Of a committed and of a staged object: the bytes stay, a commit has the change, older commits do not."""
    client.put("a", b"bytes", **{"x-lakefs-meta-old": "1"})
    client.commit()
    for metadata in ({"new": "2"}, {"newer": "3", "again": "ü"}, {}):
        place = ":/branches/main/objects/stat/user_metadata"
        assert client.ask("PUT", place, {"set": metadata}, path="a").status == 204
        shown = client.ask("GET", ":/refs/main/objects/stat", path="a").json
        assert (shown["metadata"], shown["size_bytes"]) == (metadata, 5)
        assert client.get("a").body == b"bytes"
        assert client.ask("GET", ":/branches/main/diff").json["results"][0]["type"] == "changed"
        client.commit()
    assert client.ask("GET", ":/refs/main~3/objects/stat", path="a").json["metadata"] == {"old": "1"}
    assert client.ask("PUT", ":/branches/main/objects/stat/user_metadata", {"set": {}}, path="none").status == 404
    large = {"set": {"x": "y" * 70_000}}
    assert client.ask("PUT", ":/branches/main/objects/stat/user_metadata", large, path="a").status == 400


def test_what_clients_ask_before_they_act(client: Any) -> None:
    """Versions, storage, setup and permissions are told; a set-up server makes no first credentials again."""
    config = client.ask("GET", "/config").json
    assert client.ask("GET", "/config/version").json == config["version_config"]
    assert client.ask("GET", "/config/storage").json == config["storage_config"]
    assert client.ask("GET", "/config/garbage-collection").json["grace_period"] > 0
    assert client.ask("GET", "/setup_lakefs").json["state"] == "initialized"
    assert client.ask("POST", "/setup_lakefs", {"username": "a"}).status == 409
    assert client.ask("GET", "/auth/capabilities").json == {"invite_user": False, "forgot_password": False}
    events = {"events": [{"class": "ui", "name": "click", "count": 1}]}
    assert client.ask("POST", "/statistics", events).status == 204
    assert client.ask("GET", ":/branches/main/objects/stage_allowed", path="a").status == 204
    assert client.ask("GET", ":/branches/none/objects/stage_allowed", path="a").status == 404
    client.put("a")
    assert client.ask("GET", ":/refs/main/objects/underlyingProperties", path="a").json == {}
    assert client.ask("GET", ":/refs/main/objects/underlyingProperties", path="b").status == 404


def test_settings_are_the_same_by_their_old_paths(client: Any) -> None:
    """What is set by one path is read by the other."""
    assert client.ask("POST", ":/branch_protection", {"pattern": "release-*"}).status == 204
    assert client.ask("GET", ":/branch_protection").json == [{"pattern": "release-*"}]
    assert client.ask("GET", ":/settings/branch_protection").json == [{"pattern": "release-*"}]
    assert client.ask("DELETE", ":/branch_protection", {"pattern": "release-*"}).status == 204
    assert client.ask("DELETE", ":/branch_protection", {"pattern": "release-*"}).status == 404
    rules = {"default_retention_days": 7, "branches": [{"branch_id": "main", "retention_days": 30}]}
    assert client.ask("POST", ":/gc/rules", rules).status == 204
    assert client.ask("GET", ":/gc/rules").json == client.ask("GET", ":/settings/gc_rules").json == rules
    assert client.ask("DELETE", ":/gc/rules").status == 204
    assert client.ask("GET", ":/gc/rules").status == 404
    for place in (":/branch_protection/set_allowed", ":/gc/rules/set_allowed"):
        assert client.ask("GET", place).status == 204


PREPARATIONS = [
    ("POST", ":/gc/prepare_uncommited", {}),
    ("POST", ":/gc/prepare_commits", None),
    ("POST", ":/gc/prepare_commits/async", None),
    ("GET", ":/gc/prepare_commits/status", None),
]
"""What lakeFS's job for collections asks for, in its order."""


def test_no_collection_of_another_program_is_prepared(client: Any, server: Any) -> None:
    """The job would delete what its lists do not name: it is refused with what to do, gets no list, and all stays."""
    client.put("committed")
    client.commit()
    client.put("staged")
    lake = Path(server.site.repositories.url.removeprefix("file://"))
    before = sorted(file for file in (lake / "analytics").rglob("*") if file.is_file())
    for method, place, body in PREPARATIONS:
        refused = client.ask(method, place, body, id="1")
        assert refused.status == 501
        assert "verbs/collect" in refused.message
        assert "lakebed repo collect" in refused.message
        assert client.new_key("write").ask(method, place, body, id="1").status == 403
    assert sorted(file for file in (lake / "analytics").rglob("*") if file.is_file()) == before
    assert client.ask("POST", ":/verbs/collect", {"grace_s": 0}).status == 200
    assert [client.get(path).body for path in ("committed", "staged")] == [b"content", b"content"]


def test_a_read_only_key_changes_no_pull_request(client: Any, pull: str) -> None:
    """Keys with the role read list and get; every change is refused."""
    reader = client.new_key("read")
    asked = [
        ("PUT", f":/pulls/{pull}/merge", {}),
        ("PATCH", f":/pulls/{pull}", {"title": "x"}),
        ("POST", ":/pulls", {"title": "x", "source_branch": "dev", "destination_branch": "main"}),
        ("PUT", ":/branches/main/objects/stat/user_metadata", {"set": {}}),
        ("GET", ":/branches/main/objects/stage_allowed", None),
        ("GET", ":/gc/rules/set_allowed", None),
        ("POST", ":/branch_protection", {"pattern": "x"}),
    ]
    for method, place, body in asked:
        assert reader.ask(method, place, body, path="a").status == 403, place
    assert reader.ask("GET", f":/pulls/{pull}").status == 200


def test_the_files_of_a_commit_can_be_read(client: Any) -> None:
    """Where the file of a commit's metarange is; what is in it and its range, in lakeFS's format; of others nothing."""
    client.put("a", b"four")
    client.put("b/ü", b"")
    metarange_id = client.commit()["meta_range_id"]
    location = client.ask("GET", f":/metadata/meta_range/{metarange_id}").json["location"]
    assert f"metaranges/{metarange_id}-" in location
    body = client.ask("GET", f":/metadata/object/meta_range/{metarange_id}")
    assert body.status == 200
    assert len(body.body) == int(body.headers["Content-Length"])
    [(last, value)] = SSTable(body.body, path="metarange").rows()
    listed = decode_lakefs_range(value)
    assert (listed.first_key, listed.last_key, last, listed.count) == (b"a", "b/ü".encode(), "b/ü".encode(), 2)
    found = SSTable(client.ask("GET", f":/metadata/object/range/{listed.id}").body, path="range")
    assert found.properties["type"] == "ranges"
    entries = {key.decode(): decode_lakefs_entry(split_value(value)[1]) for key, value in found.rows()}
    shown = {row["path"]: row for row in client.ask("GET", ":/refs/main/objects/ls").json["results"]}
    assert {path: (entry.etag, entry.size_bytes) for path, entry in entries.items()} == {
        path: (row["checksum"], row["size_bytes"]) for path, row in shown.items()
    }
    assert all(shown[path]["physical_address"].endswith(f"/{entry.address}") for path, entry in entries.items())
    assert f"ranges/{listed.id}-" in client.ask("GET", f":/metadata/range/{listed.id}").json["location"]
    assert client.ask("GET", f":/metadata/range/{metarange_id}").status == 404
    assert client.ask("GET", f":/metadata/object/other/{metarange_id}").status == 400
    for id in ("0" * 64, "..", metarange_id[:-1], "%2e%2e%2f_repository.json"):
        assert client.ask("GET", f":/metadata/meta_range/{id}").status == 404
        assert client.ask("GET", f":/metadata/object/meta_range/{id}").status == 404


def test_the_file_of_a_commit_without_objects_can_be_read(client: Any) -> None:
    """The first commit of a repository has no objects: it is a metarange without ranges, and not one that is lost."""
    metarange_id = client.ask("GET", ":/refs/main/commits").json["results"][0]["meta_range_id"]
    body = client.ask("GET", f":/metadata/object/meta_range/{metarange_id}")
    assert body.status == 200
    assert list(SSTable(body.body, path="metarange").rows()) == []


def test_a_file_that_a_collection_takes_meanwhile_is_read_from_its_twin(
    client: Any, server: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two commits of the same contents have files of the same id, of which one may be garbage."""
    client.put("a", b"four")
    metarange_id = client.commit()["meta_range_id"]
    store = context_of(server.site.repositories.repository("analytics")).store
    [path] = [meta.path for meta in store.list("metaranges")]
    twin = f"{path[:-26]}{'0' * 26}"
    find, looks = committed_files.find_file, []

    def find_then_collect(context: Any, kind: Any, id: str) -> str:
        looks.append(find(context, kind, id))
        if len(looks) == 1:
            store.delete([twin])
        return looks[-1]

    store.copy(path, twin)
    monkeypatch.setattr(committed_files, "find_file", find_then_collect)
    assert client.ask("GET", f":/metadata/object/meta_range/{metarange_id}").status == 200
    assert looks == [twin, path]
