"""A namespace that lakeFS's own server has written: moved in, it answers as lakeFS did, with the same ids."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import lakebed.errors
import lakebed.repo
from worlds.lakefs_history import LakefsClient, describe

GOLDEN = Path(__file__).parents[2] / "golden" / "lakefs"
"""Written by lakeFS 1.84.0, with `tests/golden/write_lakefs.py`."""
HISTORY = json.loads((GOLDEN / "history.json").read_text())
REFS = json.loads((GOLDEN / "refs.json").read_text())


def client_of(running: Any) -> LakefsClient:
    """A client with the first access key."""
    started = running.started
    return LakefsClient(started.endpoint, started.access_key, started.secret)


def test_a_repository_is_imported_where_it_is(serve: Callable[..., Any], tmp_path: Path) -> None:
    """References, commits with lakeFS's ids, and objects are those that lakeFS has shown; no byte is copied."""
    theirs = tmp_path / "theirs"
    shutil.copytree(GOLDEN / "namespace", theirs)
    running = serve(import_from=[str(theirs)])
    client = client_of(running)
    access = lakebed.repo.Access(access_key=client.access_key, secret=client.secret)
    with lakebed.repo.open_all(running.started.endpoint, access=access) as repositories:
        moved = repositories.create("analytics", bare=True)
        report = moved.restore_refs(lakebed.repo.RefsDump(**REFS), url=str(theirs))
    assert (report.branch_count, report.tag_count, report.commit_count) == (3, 1, len(HISTORY["commits"]))
    assert describe(client) == HISTORY
    assert not list((tmp_path / "lake" / "analytics.repo").glob("data/*"))
    client.put("data/changing.csv", b"changed here")
    client.commit("goes on")
    assert client.send("GET", ":/refs/main/objects", path="data/changing.csv") == b"changed here"
    assert client.send("GET", ":/refs/main~1/objects", path="data/changing.csv") == b"version 3"


def test_a_namespace_that_may_not_be_read_is_refused(serve: Callable[..., Any], tmp_path: Path) -> None:
    """A server that was not told of it reads neither the dump nor an object."""
    shutil.copytree(GOLDEN / "namespace", tmp_path / "theirs")
    running = serve()
    client = client_of(running)
    access = lakebed.repo.Access(access_key=client.access_key, secret=client.secret)
    with lakebed.repo.open_all(running.started.endpoint, access=access) as repositories:
        moved = repositories.create("analytics", bare=True)
        with pytest.raises(lakebed.errors.InvalidRequest, match="cannot be imported"):
            moved.restore_refs(lakebed.repo.RefsDump(**REFS), url=str(tmp_path / "theirs"))


def test_a_repository_is_restored_in_its_namespace(serve: Callable[..., Any], tmp_path: Path) -> None:
    """A bare repository over lakeFS's folder takes the dump, as `lakectl` does it; others cannot read the folder."""
    running = serve()
    shutil.copytree(GOLDEN / "namespace", tmp_path / "lake" / "theirs")
    client = client_of(running)
    client.restore(REFS, namespace="local://theirs")
    assert describe(client) == HISTORY
    client.put("data/changing.csv", b"changed here")
    client.commit("goes on")
    other = LakefsClient(client.endpoint, client.access_key, client.secret, "other")
    other.ask("POST", "/repositories", {"name": "other", "storage_namespace": "local://other"})
    objects = [path for path in (tmp_path / "lake/theirs/data").rglob("*") if path.is_file()]
    for place in (objects[0], tmp_path / "lake/theirs/_lakefs" / REFS["tags_meta_range_id"]):
        staged = {"physical_address": f"local://{place}", "checksum": "x", "size_bytes": place.stat().st_size}
        with pytest.raises(AssertionError, match="cannot be imported"):
            other.ask("PUT", ":/branches/main/objects", staged, path="stolen")
    again = client.dump()
    kept = LakefsClient(client.endpoint, client.access_key, client.secret, "kept")
    shutil.copytree(tmp_path / "lake/theirs", tmp_path / "lake/kept", ignore=shutil.ignore_patterns("_repository.json"))
    kept.restore(again, namespace="local://kept")
    shown = describe(kept)
    assert {id: shown["commits"][id] for id in HISTORY["commits"]} == HISTORY["commits"]
    assert len(shown["commits"]) == len(HISTORY["commits"]) + 1
