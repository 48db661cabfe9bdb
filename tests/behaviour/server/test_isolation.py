"""Isolation: no key names or reads what it may not, and no reply reveals what its caller may not see."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from lakebed.errors import InvalidRequest
from lakebed.lake import names
from lakebed.metrics import default_registry
from lakebed.repo.heads.compact import run_compactor_once
from lakebed.repo.heads.write import stage
from lakebed.repo.model.columns import ARROW_STREAM, columns_of, stream_of
from lakebed.repo.model.entry import new_address
from lakebed.repo.model.model import Entry
from lakebed.repo.model.options import RepositoryOptions
from lakebed.repo.outside.foreign import ForeignStores
from lakebed.repo.outside.namespace import METADATA_FOLDER, STORE_SUFFIXES
from lakebed.repo.transport.transport import context_of
from lakebed.server.lifecycle import Running
from lakebed.server.options import ServerOptions
from lakebed.server.serve import start_server
from worlds.errors import raises
from worlds.listener import Reply, Request, listen

SECRET = b"S3CR3T: others may read it"


@dataclass
class Ground:
    """A served lake, with what is in it and around it."""

    folder: Path
    running: Running
    admin: Any
    limited: Any
    """A client with a key for the repository ``mine`` alone, role admin."""

    @property
    def lake(self) -> Path:
        """The storage."""
        return self.folder / "lake"

    def attempts(self, key: Any, url: str, *, repository: str = "mine") -> dict[str, Any]:
        """The replies of every operation that turns a URL into an entry."""
        client = replace(key, repository=repository)
        columns = columns_of([("in/x", Entry(url, len(SECRET), "", 0))])
        row = {"path": "in/x", "address": url, "size_bytes": len(SECRET), "checksum": "", "modified_ms": 0}
        object_source = {"type": "object", "path": url, "destination": "in/x"}
        folder_source = {"type": "common_prefix", "path": url, "destination": "in/"}
        commit = {"message": "m"}
        verbs, branch = ":/verbs/", ":/branches/main"
        linked = {"branch": "main", "path": "in/x", "url": url, "content_type": "text/plain"}
        staged = {"physical_address": url, "checksum": "", "size_bytes": len(SECRET)}
        put = {"staging": {"physical_address": url}, "checksum": "", "size_bytes": len(SECRET)}

        def importing(kind: str) -> dict[str, Any]:
            source = {"url": url, "destination": "in/x" if kind == "object" else "in/", "kind": kind}
            return {"branch": "main", "sources": [source], "message": "m"}

        return {
            "stageObject": client.ask("PUT", branch + "/objects", staged, path="in/x"),
            "linkPhysicalAddress": client.ask("PUT", branch + "/staging/backing", put, path="in/x"),
            "link": client.ask("POST", verbs + "link", linked),
            "link if absent": client.ask("POST", verbs + "link", {**linked, "only_if_absent": True}),
            "stage_many rows": client.ask("POST", verbs + "stage_many", [row], branch="main"),
            "stage_many columns": client.ask(
                "POST", verbs + "stage_many", stream_of(columns), {"content-type": ARROW_STREAM}, branch="main"
            ),
            "importStart of an object": client.ask(
                "POST", branch + "/import", {"paths": [object_source], "commit": commit}
            ),
            "importStart of a folder": client.ask(
                "POST", branch + "/import", {"paths": [folder_source], "commit": commit}
            ),
            "import_objects of an object": client.ask("POST", verbs + "import_objects", importing("object")),
            "import_objects of a folder": client.ask("POST", verbs + "import_objects", importing("prefix")),
        }


@pytest.fixture(scope="module")
def ground(tmp_path_factory: pytest.TempPathFactory, connect: Callable[[Running], Any]) -> Iterator[Ground]:
    """A server whose operator has allowed three places, one of them inside the lake and one for ``mine`` alone."""
    folder = tmp_path_factory.mktemp("ground")
    lake = folder / "lake"
    files = [
        lake / "orders.kv/wal/1", lake / "sales.db/t/data", lake / "plain/x", lake / "incoming/x",
        folder / "allowed/x", folder / "allowed/deep/x", folder / "of-mine/x", folder / "private/x",
        folder / "allowed-not/x",
    ]  # fmt: skip
    for file in files:
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(SECRET)
    for place in (folder / "allowed", lake / "incoming"):
        (place / "to-private").symlink_to(folder / "private")
        (place / "to-records").symlink_to(lake / "_repositories")
        (place / "to-theirs").symlink_to(lake / "theirs")
        (place / "file-link").symlink_to(folder / "private/x")
    places = [str(folder / "allowed"), f"mine={folder / 'of-mine'}", str(lake / "incoming")]
    with start_server(lake, options=ServerOptions(durable=False, import_from=places)) as running:
        admin = connect(running)
        for name in ("mine", "theirs"):
            answer = admin.ask("POST", "/repositories", {"name": name, "storage_namespace": f"local://{name}"})
            assert answer.status == 201, answer.body
        replace(admin, repository="theirs").put("secret", SECRET)
        replace(admin, repository="theirs").commit("secret")
        limited = admin.new_key("admin", repositories=["mine"])
        yield Ground(folder, running, admin, replace(limited, repository="mine"))


def forbidden(ground: Ground) -> dict[str, str]:
    """URLs that are never allowed, by what they are."""
    folder, lake = ground.folder, ground.lake
    stat = replace(ground.admin, repository="theirs").ask("GET", ":/refs/main/objects/stat", path="secret").json
    record = next(path for path in sorted((lake / METADATA_FOLDER).rglob("*")) if path.is_file())
    real = Path(stat["physical_address"].removeprefix("file://"))
    assert real.read_bytes() == SECRET
    relative = os.path.relpath(real, lake)
    return {
        "an object of another repository": f"file://{real}",
        "the same as clients write it": f"local://{real}",
        "by way of an allowed folder": f"file://{folder}/allowed/../lake/{relative}",
        "by way of the own namespace": f"file://{lake}/mine/../{relative}",
        "with empty segments": f"file://{lake}//{relative}",
        "with dots": f"file://{lake}/./{relative}",
        "in other letters": f"file://{lake}/{relative.replace('theirs', 'THEIRS')}",
        "in a scheme of other letters": f"FILE://{real}",
        "with one slash": f"file:{real}",
        "with a host": f"file://localhost{real}",
        "percent-encoded": f"file://{lake}/%74heirs/{relative.partition('/')[2]}",
        "by a link in an allowed folder": f"file://{folder}/allowed/to-theirs/{relative.partition('/')[2]}",
        "by a link in an allowed folder of the lake": f"file://{lake}/incoming/to-theirs/data",
        "a folder of another repository": f"file://{lake}/theirs/data",
        "a whole namespace": f"file://{lake}/theirs",
        "ranges of another repository": f"file://{lake}/theirs/ranges",
        "its own namespace as a folder": f"file://{lake}/mine/metaranges",
        "the records": f"file://{record}",
        "the folder of records": f"file://{lake}/{METADATA_FOLDER}",
        "the folder of records in other letters": f"file://{lake}/_Repositories",
        "the records by a link": f"file://{folder}/allowed/to-records/{record.name}",
        "the folder of records by a link": f"file://{lake}/incoming/to-records",
        "a database": f"file://{lake}/orders.kv/wal/1",
        "a table": f"file://{lake}/sales.db/t/data",
        "another folder of the lake": f"file://{lake}/plain/x",
        "the lake": f"file://{lake}",
        "what the lake lies in": f"file://{folder}",
        "everything": "file:///",
        "a private file": f"file://{folder}/private/x",
        "a private file by a link to its folder": f"file://{folder}/allowed/to-private/x",
        "a private file by a link": f"file://{folder}/allowed/file-link",
        "a folder whose name begins alike": f"file://{folder}/allowed-not/x",
        "the home folder of the server": "file://~/.profile",
        "memory": "memory://x/y",
        "a bucket": "s3://bucket/key",
        "an upload of nobody's form": f"data/../../theirs/{relative.partition('/')[2]}",
        "an upload of another repository": f"../{relative}",
    }


def test_no_key_names_what_nobody_allowed(ground: Ground) -> None:
    """Import, link and stage_many, each in every form, refuse every spelling of every such place, for every key."""
    wrong = []
    wanted = forbidden(ground)
    del wanted["a private file by a link"]  # which is not looked at before it is read: see the test of reading
    for what, url in wanted.items():
        for key in (ground.admin, ground.limited):
            for way, answer in ground.attempts(key, url).items():
                if not 400 <= answer.status < 500:
                    wrong.append(f"{way} of {what} ({url}): {answer.status} {answer.body[:200]}")
    assert not wrong, "\n".join(wrong)
    assert replace(ground.admin, repository="mine").listed() == []


def test_what_is_allowed_is_imported_and_linked(ground: Ground) -> None:
    """Places without a repository are for unlimited keys; a limited key has those of its own, and reads all."""
    client = replace(ground.admin, repository="mine")
    client.ask("POST", ":/branches", {"name": "allowed", "source": "main"})

    def link(key: Any, path: Path) -> int:
        body = {"branch": "allowed", "path": "x", "url": f"file://{path}", "content_type": "text/plain"}
        return int(key.ask("POST", ":/verbs/link", body).status)

    for place, by_limited in (
        (ground.folder / "allowed/deep/x", 400),
        (ground.lake / "incoming/x", 400),
        (ground.folder / "of-mine/x", 200),
    ):
        assert link(client, place) == 200, place
        assert ground.limited.get("x", ref="allowed").body == SECRET  # what an administrator linked is read
        assert link(ground.limited, place) == by_limited, place
    assert link(replace(ground.admin, repository="theirs"), ground.folder / "of-mine/x") == 400
    refused = ground.attempts(ground.limited, f"file://{ground.folder}/allowed/x")["link"]
    assert "--import-from mine=" in refused.message


def test_an_entry_that_names_what_is_not_allowed_is_not_read(ground: Ground) -> None:
    """However it came into a repository, as by an older version: its bytes are neither read nor copied nor signed."""
    home = context_of(ground.running.site.repositories.repository("mine"))
    unguarded = replace(home, foreign=ForeignStores())
    client = replace(ground.admin, repository="mine")
    client.ask("POST", ":/branches", {"name": "poisoned", "source": "main"})
    wanted = forbidden(ground)
    named = [what for what, url in wanted.items() if url.startswith("file:///") and Path(url[7:]).is_file()]
    assert len(named) > 8
    for what in named:
        stage(unguarded, branch="poisoned", path="p", entry=Entry(wanted[what], len(SECRET), "", 0))
        for key in (client, ground.limited):
            for answer in (
                key.get("p", ref="poisoned"),
                key.get("p", ref="poisoned", Range="bytes=0-3"),
                key.ask("GET", ":/refs/poisoned/objects", path="p", presign="true"),
                key.ask("GET", ":/verbs/read", ref="poisoned", path="p", start=0, end=4),
                key.ask("GET", ":/verbs/read", ref="poisoned", path="p", address=wanted[what], size=5),
                key.ask("POST", ":/branches/poisoned/objects/copy", {"src_path": "p"}, dest_path="q"),
                key.ask("POST", ":/verbs/copy", {"branch": "poisoned", "source": "p", "path": "q"}),
            ):
                assert 400 <= answer.status < 500, (what, answer.status, answer.body)
                assert SECRET[:4] not in answer.body
    assert client.listed(ref="poisoned") == ["p"]


@pytest.mark.parametrize(
    "namespace",
    [
        "_repositories", "_Repositories/x", "local://_repositories/x", "orders.kv/inside", "sales.db/t/new",
        "Sales.DB/new", "other.repo/x", "theirs", "theirs/data", "theirs/new", "local://../outside", "../outside", "..",
        "", ".", "incoming", "incoming/to-private/new", "file:///etc", "/etc/lakebed",
    ],
)  # fmt: skip
def test_a_namespace_is_in_no_other_store(ground: Ground, namespace: str) -> None:
    """A repository is made neither in another store or the records, nor through a link, nor outside of the lake."""
    key = ground.admin.new_key("write", repositories=["fresh"])
    before = sorted(ground.folder.rglob("*"))
    for body, place in (
        ({"name": "fresh", "storage_namespace": namespace}, "/repositories"),
        ({"name": "fresh", "namespace": namespace}, "/verbs/create"),
    ):
        answer = key.ask("POST", place, body)
        assert 400 <= answer.status < 500, answer.body
        if namespace not in ("", "."):
            assert b"theirs" not in answer.body.replace(namespace.encode(), b"")
        assert str(ground.folder).encode() not in answer.body
    assert [path for path in sorted(ground.folder.rglob("*")) if METADATA_FOLDER not in path.parts] == [
        path for path in before if METADATA_FOLDER not in path.parts
    ]


def test_names_of_stores_are_those_of_the_lake() -> None:
    """What the guard takes for a store is what a lake takes for one."""
    assert set(STORE_SUFFIXES) >= {names.DATABASE_SUFFIX, names.WAREHOUSE_SUFFIX}


def test_many_objects_are_checked_by_folder(ground: Ground, monkeypatch: pytest.MonkeyPatch) -> None:
    """A hundred thousand addresses of one folder cost one check of it; a wrong one refuses all."""
    home = context_of(ground.running.site.repositories.repository("mine"))
    looks = 0
    real = os.path.realpath

    def counted(*arguments: Any, **settings: Any) -> Any:
        nonlocal looks
        looks += 1
        return real(*arguments, **settings)

    monkeypatch.setattr(os.path, "realpath", counted)
    good = [f"file://{ground.folder}/allowed/{number}" for number in range(1000)]
    home.foreign.check(good)
    assert looks <= 2
    table = pa.table({"address": [*good, f"file://{ground.folder}/allowed/..", new_address(home.environment)]})
    with pytest.raises(Exception, match="cannot be imported"):
        home.foreign.check(address for address in table.column(0).to_pylist() if "://" in address)


def test_a_404_tells_neither_paths_nor_other_names(ground: Ground) -> None:
    """A missing repository: no reply shows where the storage is, or which repositories exist."""
    missing = ground.admin.new_key("admin", repositories=["their"])
    for key in (ground.admin, missing):
        client = replace(key, repository="their")
        for method, place, body in (
            ("GET", ":", None),
            ("GET", ":/branches", None),
            ("DELETE", ":", None),
            ("GET", ":/refs/main/objects", None),
            ("POST", ":/verbs/describe", {}),
            ("POST", ":/branches/main/commits", {"message": "m"}),
        ):
            answer = client.ask(method, place, body, path="x")
            assert answer.status == 404, answer.body
            assert "'their'" in answer.message
            assert b"theirs" not in answer.body
            assert b"mine" not in answer.body
            assert str(ground.folder).encode() not in answer.body
    answer = ground.admin.ask("POST", "/verbs/set_metadata", {"name": "their", "metadata": {}})
    assert (answer.status, b"theirs" in answer.body) == (404, False)


def test_errors_do_not_tell_where_the_storage_is(ground: Ground) -> None:
    """Also for an import that fails after its reply, and a store that cannot be written: local:// replaces the path."""
    client = replace(ground.admin, repository="mine")
    source = {"type": "common_prefix", "path": f"file://{ground.lake}/incoming/none", "destination": "in/"}
    started = client.ask("POST", ":/branches/main/import", {"paths": [source], "commit": {"message": "m"}})
    assert started.status == 202, started.body
    document: dict[str, Any] = {}
    while "error" not in document:
        document = client.ask("GET", ":/branches/main/import", id=started.json["id"]).json
    assert "local://incoming/none" in document["error"]["message"]
    assert str(ground.folder) not in document["error"]["message"]
    theirs = replace(ground.admin, repository="theirs")
    staged = {"physical_address": "data/" + "0" * 26, "checksum": "", "size_bytes": 1}
    missing = theirs.ask("PUT", ":/branches/main/objects", staged, path="x")
    assert missing.status in (400, 404)
    assert str(ground.folder).encode() not in missing.body


def test_metrics_name_nothing_without_a_key(ground: Ground) -> None:
    """Without a key, or with a limited one, no repository, branch or bucket is shown; a key for all shows them."""
    client = replace(ground.admin, repository="mine")
    client.ask("POST", ":/branches", {"name": "a-private-branch", "source": "main"})
    client.put("x", branch="a-private-branch")
    run_compactor_once(context_of(ground.running.site.repositories.repository("mine")))
    default_registry.counter("lakebed_test_total", help_text="A test.", label_names=("store",)).add(1, "s3://a-bucket")

    def page(headers: dict[str, str]) -> Any:
        return replace(client, headers=headers).ask_root("GET", "/metrics")

    for headers in ({}, ground.limited.headers):
        text = page(headers).body.decode()
        assert "lakebed_http_requests_total{" in text
        for name in ("a-private-branch", "mine", "theirs", "a-bucket", str(ground.folder)):
            assert name not in text
    text = page(client.headers).body.decode()
    assert 'lakebed_repo_staged_entries{repository="mine",branch="a-private-branch"} 1' in text
    assert "a-bucket" in text
    assert page({"authorization": "Basic eDp5"}).status == 401


def test_webhooks_reach_this_machine_only_when_it_is_listed(
    serve: Callable[..., Any], connect: Callable[[Any], Any]
) -> None:
    """An administrator of a repository sends nothing to loopback; with --allow-webhook the listed port is reached."""
    items: list[bytes] = []

    def answer(request: Request) -> Reply:
        items.append(request.body)
        return Reply()

    with listen(answer) as port:
        hook = {"name": "gate", "url": f"http://127.0.0.1:{port}/x", "events": ["pre-commit"]}
        listed = f"127.0.0.1:{port}"
        first = None
        for allow, status in (((), 412), ((listed,), 201)):
            running = serve(repository_options=RepositoryOptions(webhook_hosts=tuple(allow)))
            # The first start prints the key, and the second serves the same records.
            first = replace(first, endpoint=running.started.endpoint) if first else connect(running)
            first.ask("POST", "/repositories", {"name": "analytics", "storage_namespace": "local://analytics"})
            assert first.ask("POST", ":/verbs/set_webhooks", {"hooks": [hook]}).status == 204
            first.put("a", str(status).encode())
            answer_of_commit = first.ask("POST", ":/branches/main/commits", {"message": "m"})
            assert answer_of_commit.status == status, answer_of_commit.body
            assert bool(items) is (status == 201)
            running.stop()
    with raises(InvalidRequest, "invalid_webhook_host"):
        serve(repository_options=RepositoryOptions(webhook_hosts=("no host",)))
