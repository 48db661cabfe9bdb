"""Repositories that move between lakeFS's own server and this one, both ways: each shows what the other has shown."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from lakebed.server.options import ServerOptions
from lakebed.server.serve import start_server
from worlds.lakefs_history import LakefsClient, describe, make_history

sys.path.insert(0, str(Path(__file__).parents[3] / "bench" / "peers"))
peer = pytest.importorskip("lakefs_server", reason="what starts lakeFS's server is not there")

pytestmark = [
    pytest.mark.long,
    pytest.mark.xdist_group("lakefs-moving"),
    pytest.mark.skipif(not (peer.BUILT / "lakefs").exists(), reason="lakeFS is not built: run `make lakefs`"),
]


@pytest.fixture
def theirs(tmp_path: Path) -> Iterator[LakefsClient]:
    """A client of lakeFS's server, whose objects are in the folder ``lakefs/objects``."""
    with peer.lakefs_server(tmp_path / "lakefs") as place:
        yield LakefsClient(place.endpoint, place.access_key, place.secret)


@contextmanager
def ours(lake: Path, *import_from: Path) -> Iterator[LakefsClient]:
    """A client of our server."""
    options = ServerOptions(durable=False, import_from=list(map(str, import_from)))
    with start_server(lake, options=options) as running:
        started = running.started
        access_key, secret = started.access_key, started.secret
        if access_key is None:  # it was printed at the first start
            access_key, secret = json.loads((lake.parent / "key.json").read_text())
        else:
            (lake.parent / "key.json").write_text(json.dumps([access_key, secret]))
        yield LakefsClient(started.endpoint, access_key, secret)


def lakebed(*words: object) -> Any:
    """What a command prints as JSON."""
    command = [sys.executable, "-m", "lakebed.cli", *map(str, words), "--json"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def lakectl(client: LakefsClient, *words: object) -> str:
    """What lakeFS's own command prints."""
    environment = {
        **os.environ,
        "LAKECTL_SERVER_ENDPOINT_URL": client.endpoint,
        "LAKECTL_CREDENTIALS_ACCESS_KEY_ID": client.access_key,
        "LAKECTL_CREDENTIALS_SECRET_ACCESS_KEY": client.secret,
        "LAKECTL_CONFIG_FILE": "/no/such/file",
        "HOME": "/no/such/folder",
    }
    done = subprocess.run(
        [str(peer.BUILT / "lakectl"), *map(str, words)], capture_output=True, text=True, env=environment, check=False
    )
    assert done.returncode == 0, f"{words}\n{done.stdout}\n{done.stderr}"
    return done.stdout


def test_there_and_back_with_the_same_ids(theirs: LakefsClient, tmp_path: Path) -> None:
    """By `lakectl` and our commands: imported, gone on with, and restored by lakeFS, old commits have their ids."""
    make_history(theirs, namespace="local://analytics", object_count=2_500)  # so many that an index has two levels
    expected = describe(theirs)
    (tmp_path / "refs.json").write_text(lakectl(theirs, "refs-dump", "lakefs://analytics"))
    namespace, lake = tmp_path / "lakefs" / "objects" / "analytics", tmp_path / "lake"
    arguments = ("repo", "import-lakefs", lake, "analytics", "--from", namespace, "--refs", tmp_path / "refs.json")
    assert lakebed(*arguments)["commits"] == len(expected["commits"])
    with ours(lake, namespace) as client:
        assert describe(client) == expected
        client.put("data/changing.csv", b"changed there")
        client.put("dev/2.csv", b"of the other server", branch="dev")
        client.commit("there", branch="dev")
        client.commit("there too")
        moved_on = describe(client, ids=False)
    exported = lakebed(
        *("repo", "export-lakefs", lake, "analytics", "--to", namespace, "--refs", tmp_path / "back.json")
    )
    assert exported["changed_commit_ids"] == 2
    theirs.send("DELETE", ":")
    lakectl(theirs, "repo", "create-bare", "lakefs://analytics", "local://analytics")
    lakectl(theirs, "refs-restore", "lakefs://analytics", "--manifest", tmp_path / "back.json")
    back = describe(theirs)
    assert {id: back["commits"][id] for id in expected["commits"]} == expected["commits"]
    assert describe(theirs, ids=False) == moved_on
    theirs.put("data/again.csv", b"and here")
    theirs.commit("goes on")
    theirs.ask("POST", ":/refs/dev/merge/main", {"message": "merged"})
    assert theirs.send("GET", ":/refs/main/objects", path="dev/2.csv") == b"of the other server"


def test_a_repository_of_ours_goes_to_lakefs(theirs: LakefsClient, tmp_path: Path) -> None:
    """Exported into a namespace with its objects, restored by `lakectl`, it shows all but our ids, which are mapped."""
    lake, ids = tmp_path / "lake", tmp_path / "ids.json"
    with ours(lake) as client:
        make_history(client, namespace="local://analytics", object_count=300)
        mine, expected = describe(client), describe(client, ids=False)
    lakebed(
        *("repo", "export-lakefs", lake, "analytics", "--to", tmp_path / "lakefs" / "objects" / "moved"),
        *("--refs", tmp_path / "refs.json", "--commit-ids", ids),
    )
    lakectl(theirs, "repo", "create-bare", "lakefs://analytics", "local://moved")
    lakectl(theirs, "refs-restore", "lakefs://analytics", "--manifest", tmp_path / "refs.json")
    shown = describe(theirs, ids=False)
    # Our server shows the first commit without its committer, as lakeFS makes it; the record has one.
    assert shown["commits"]["Repository created"].pop("committer")
    assert not expected["commits"]["Repository created"].pop("committer")
    assert shown == expected
    new_ids = json.loads(ids.read_text())
    assert {new_ids.get(id, id) for id in mine["commits"]} == set(describe(theirs)["commits"])
    theirs.put("data/changing.csv", b"there")
    theirs.commit("goes on")
    assert theirs.send("GET", ":/refs/main/objects", path="data/changing.csv") == b"there"
    assert theirs.send("GET", ":/refs/v1.0/objects", path="data/changing.csv") == b"version 3"


def test_lakectl_moves_a_repository_in_place(theirs: LakefsClient, tmp_path: Path) -> None:
    """Our server over the folder of lakeFS's: `lakectl` dumps there, restores here, and dumps again."""
    make_history(theirs, namespace="local://analytics")
    expected = describe(theirs)
    (tmp_path / "refs.json").write_text(lakectl(theirs, "refs-dump", "lakefs://analytics"))
    with ours(tmp_path / "lakefs" / "objects") as client:
        lakectl(client, "repo", "create-bare", "lakefs://analytics", "local://analytics")
        lakectl(client, "refs-restore", "lakefs://analytics", "--manifest", tmp_path / "refs.json")
        assert describe(client) == expected
        client.put("data/here.csv", b"here")
        client.commit("goes on")
        moved_on = describe(client)
        (tmp_path / "back.json").write_text(lakectl(client, "refs-dump", "lakefs://analytics"))
    theirs.send("DELETE", ":")
    lakectl(theirs, "repo", "create-bare", "lakefs://analytics", "local://analytics")
    lakectl(theirs, "refs-restore", "lakefs://analytics", "--manifest", tmp_path / "back.json")
    back = describe(theirs, ids=False)
    assert {message: back["commits"][message] for message in back["commits"]}.keys() == {
        row["message"] for row in moved_on["commits"].values()
    }
    assert set(expected["commits"]) < set(describe(theirs)["commits"])
    assert theirs.send("GET", ":/refs/main/objects", path="data/here.csv") == b"here"
