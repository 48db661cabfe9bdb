"""Dumps and restores through lakeFS's interface: a repository is moved with its history, and nothing is lost."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import lakebed.repo
from lakebed.objects import open_store
from lakebed.repo.records.tasks import record_task
from lakebed.repo.transport.transport import context_of
from worlds.waiting import wait_until


def wait_for(client: Any, place: str, task_id: str) -> Any:
    """The status of a task once it is done."""
    status: dict[str, Any] = {}

    def is_done() -> bool:
        answer = client.ask("GET", place, task_id=task_id)
        assert answer.status == 200, answer.body
        status.update(answer.json)
        return bool(status["done"])

    wait_until(is_done)
    return status


def make_history(client: Any) -> None:
    """Some commits, a branch and a tag."""
    for number in range(3):
        client.put(f"data/{number}.csv", b"%d" % number, **{"x-lakefs-meta-n": str(number)})
        client.commit(f"day {number}", metadata={"n": str(number)})
    assert client.ask("POST", ":/branches", {"name": "dev", "source": "main~1"}).status == 201
    client.put("data/dev.csv", b"dev", branch="dev")
    client.commit("on dev", branch="dev")
    assert client.ask("POST", ":/tags", {"id": "v1", "ref": "main"}).status == 201


def history(client: Any, ref: str = "main") -> list[Any]:
    """What a log says of commits, but for their ids."""
    rows = client.ask("GET", f":/refs/{ref}/commits").json["results"]
    return [[row[name] for name in ("message", "metadata", "committer", "creation_date")] for row in rows]


def test_a_dump_is_restored_into_a_bare_repository(client: Any, tmp_path: Path) -> None:
    """Commits, branches, tags and objects are as they were; a second restore is refused, and changes nothing."""
    make_history(client)
    assert client.ask("GET", ":/dump", task_id="missing").status == 404
    started = client.ask("POST", ":/dump")
    assert started.status == 202
    status = wait_for(client, ":/dump", started.json["id"])
    assert client.ask("GET", ":/restore", task_id=started.json["id"]).status == 404
    # The namespace of lakeFS that this makes is one that is not in use here.
    namespace = tmp_path / "lake" / "moved"
    with lakebed.repo.open(f"{client.endpoint}/analytics", access=lakebed.repo.Access(**_access(client))) as analytics:
        assert analytics.dump_refs().refs.commits_meta_range_id == status["refs"]["commits_meta_range_id"]
    copy_folder(tmp_path / "lake" / "analytics", namespace)
    expected = history(client)
    moved = _repository(client, "moved")
    created = client.ask("POST", "/repositories", {"name": "moved", "storage_namespace": "local://moved"}, bare="true")
    assert created.status == 201, created.body
    assert moved.ask("GET", ":/branches").json["results"] == []
    assert moved.ask("GET", ":/branches/main").status == 404
    started = moved.ask("POST", ":/restore", status["refs"])
    assert started.status == 202
    assert wait_for(moved, ":/restore", started.json["id"]).get("error") is None
    assert history(moved) == expected
    assert [row["id"] for row in moved.ask("GET", ":/branches").json["results"]] == ["dev", "main"]
    assert moved.ask("GET", ":/tags/v1").json["commit_id"] == moved.ask("GET", ":/branches/main").json["commit_id"]
    assert moved.get("data/2.csv").body == b"2"
    assert moved.get("data/dev.csv", ref="dev").body == b"dev"
    assert moved.ask("GET", ":/refs/v1/objects/stat", path="data/1.csv").json["metadata"] == {"n": "1"}
    again = moved.ask("POST", ":/restore", status["refs"])
    assert again.status == 400
    assert "bare repository" in again.message
    moved.put("data/new.csv", b"new")
    moved.commit("goes on")
    assert moved.listed() == ["data/0.csv", "data/1.csv", "data/2.csv", "data/new.csv"]


def copy_folder(source: Path, target: Path) -> None:
    """A namespace as lakeFS has it: objects under names of lakeFS's, and its own files."""
    store = open_store(source)
    target.mkdir()
    other = open_store(target)
    for meta in store.list():
        if not meta.path.startswith(("ranges/", "metaranges/", "_repository", "_clock")):
            other.put(meta.path, store.get(meta.path))


def _repository(client: Any, name: str) -> Any:
    """The same client of another repository."""
    other = type(client)(client.endpoint, client.headers, client.pool)
    other.repository = name
    return other


def _access(client: Any) -> dict[str, str]:
    """A new key, as the facade takes it."""
    made = client.ask("POST", "/auth/keys", {"role": "admin"}).json
    return {"access_key": made["access_key_id"], "secret": made["secret_access_key"]}


@pytest.mark.parametrize(
    ("body", "status"),
    [
        ({"commits_meta_range_id": "x", "tags_meta_range_id": "x", "branches_meta_range_id": "x"}, 400),
        ({"commits_meta_range_id": "0" * 64}, 400),
    ],
)
def test_a_wrong_restore_is_refused(client: Any, body: dict[str, str], status: int) -> None:
    """Ids that are none, and a part of them."""
    made = client.ask("POST", "/repositories", {"name": "empty", "storage_namespace": "local://empty"}, bare="true")
    assert made.status == 201
    empty = _repository(client, "empty")
    assert empty.ask("POST", ":/restore", body).status == status
    assert empty.ask("PUT", ":/refs/restore", body).status == status


def test_a_restore_without_its_files_fails_and_can_be_done_later(client: Any) -> None:
    """The status says what is missing; the repository stays bare, and takes a restore that is whole."""
    made = client.ask("POST", "/repositories", {"name": "empty", "storage_namespace": "local://empty"}, bare="true")
    assert made.status == 201
    empty = _repository(client, "empty")
    ids = dict.fromkeys(("commits_meta_range_id", "tags_meta_range_id", "branches_meta_range_id"), "0" * 64)
    status = wait_for(empty, ":/restore", empty.ask("POST", ":/restore", ids).json["id"])
    assert "0" * 64 in status["error"]
    assert empty.ask("PUT", ":/refs/restore", ids).status == 404
    assert empty.ask("GET", ":/branches").json["results"] == []


def test_tasks_of_a_server_that_ended_are_done_by_the_next(
    serve: Callable[..., Any], connect: Callable[[Any], Any], tmp_path: Path
) -> None:
    """A task is a record: a server that starts does what one before it has left."""
    first = serve()
    client = connect(first)
    assert (
        client.ask("POST", "/repositories", {"name": "analytics", "storage_namespace": "local://analytics"}).status
        == 201
    )
    first.stop()
    with lakebed.repo.open_all(tmp_path / "lake") as repositories:
        task = record_task(context_of(repositories.repository("analytics")), "dump")
    second = serve()
    client = type(client)(second.started.endpoint, client.headers)
    status = wait_for(client, ":/dump", task.id)
    assert set(json.loads((tmp_path / "lake/analytics/_lakefs/refs_manifest.json").read_text())) == set(status["refs"])


def test_a_limited_key_makes_no_bare_repository(client: Any) -> None:
    """It could take over what lakeFS left of another repository: refused over both interfaces."""
    limited = client.new_key("write", repositories=["mine"])
    body = {"name": "mine", "storage_namespace": "local://mine"}
    assert limited.ask("POST", "/repositories", body, bare="true").status == 403
    assert limited.ask("POST", "/verbs/create", {"name": "mine", "bare": True}).status == 403
    assert limited.ask("POST", "/repositories", body).status == 201


def test_sample_data_and_symlinks(client: Any, tmp_path: Path) -> None:
    """A repository with sample data has a commit of them; a list of addresses names every object of its folder."""
    body = {"name": "sample", "storage_namespace": "local://sample", "sample_data": True}
    assert client.ask("POST", "/repositories", {**body, "read_only": True}).status == 400
    assert client.ask("POST", "/repositories", body).status == 201
    sample = _repository(client, "sample")
    assert sample.listed() == ["README.md", "lakes.csv", "tables/lakes.parquet"]
    assert sample.ask("GET", ":/refs/main/commits").json["results"][0]["message"] == "Add sample data"
    assert sample.ask("GET", ":/branches/main/diff").json["results"] == []
    made = sample.ask("POST", ":/refs/main/symlink")
    assert (made.status, made.json["location"].rpartition("/")[2]) == (201, "symlinks")
    folder = tmp_path / "lake" / "sample" / "symlinks" / "sample" / "main"
    [address] = (folder / "tables" / "symlink.txt").read_text().splitlines()
    assert Path(address.removeprefix("file://")).read_bytes() == sample.get("tables/lakes.parquet").body
    assert len((folder / "symlink.txt").read_text().splitlines()) == 2
    assert sample.ask("POST", ":/refs/missing/symlink").status == 404


def test_a_list_of_addresses_has_every_object_of_its_folder(client: Any, tmp_path: Path) -> None:
    """Also those whose paths come behind the ones of a folder inside of it, in the order of paths."""
    paths = ["a", "a-b/x", "a/1", "a/b/2", "a/b/c/3", "a/b/d", "a/c", "a/d/4", "a/e", "b", "c/d/5", "z"]
    for path in paths:
        client.put(path, path.encode())
    assert client.ask("POST", ":/refs/main/symlink").status == 201
    expected: dict[str, list[str]] = {}
    for row in client.ask("GET", ":/refs/main/objects/ls").json["results"]:
        expected.setdefault(row["path"].rpartition("/")[0], []).append(row["physical_address"])
    root = tmp_path / "lake" / "analytics" / "symlinks" / "analytics" / "main"
    assert sorted(len(addresses) for addresses in expected.values()) == [1, 1, 1, 1, 2, 3, 3]
    assert {
        str(file.parent.relative_to(root)).removeprefix("."): file.read_text().splitlines()
        for file in root.rglob("symlink.txt")
    } == expected
