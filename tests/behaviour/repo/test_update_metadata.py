"""New metadata of an object: what it must never do to the object itself, whoever writes meanwhile."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest

from lakebed.errors import InvalidRequest, NotFound
from lakebed.repo.collect.collect import collect_garbage
from lakebed.repo.heads import write
from lakebed.repo.heads.compact import compact_once
from lakebed.repo.model.model import Entry
from lakebed.repo.model.options import CollectionOptions
from lakebed.repo.objects import data
from lakebed.repo.records.context import RepositoryContext
from lakebed.repo.staging.view import read_reference
from worlds.errors import raises
from worlds.repo.operations import commit


def upload(home: RepositoryContext, body: bytes) -> Entry:
    """An object at ``a`` of main, staged."""
    entry = data.upload(home, body, metadata={"of": body.decode()})
    write.stage(home, branch="main", path="a", entry=entry)
    return entry


def read(home: RepositoryContext, ref: str = "main") -> tuple[bytes, dict[str, str]]:
    """Bytes and metadata of ``a``."""
    entry = read_reference(home, ref, lambda view: view.get("a"))
    assert entry is not None
    return bytes(data.read(home, entry)), entry.metadata


def between(patch: pytest.MonkeyPatch, act: Callable[[], Any]) -> None:
    """Do something once, between the next look of an update at the branch and its write."""
    real, acts = write.check_entry, [act]

    def check(entry: Entry, path: str) -> Any:
        if acts and entry.metadata == {"new": "1"}:
            acts.pop()()
        return real(entry, path)

    patch.setattr(write, "check_entry", check)


@pytest.mark.parametrize("is_committed", [False, True])
def test_a_write_meanwhile_keeps_its_bytes(
    home: RepositoryContext, monkeypatch: pytest.MonkeyPatch, is_committed: bool
) -> None:
    """An object that is overwritten while its metadata are replaced has the new bytes, and then the new metadata."""
    upload(home, b"first")
    if is_committed:
        commit(home, "main", message="first")
    between(monkeypatch, lambda: upload(home, b"second"))
    write.update_metadata(home, branch="main", path="a", metadata={"new": "1"})
    assert read(home) == (b"second", {"new": "1"})


@pytest.mark.parametrize("is_committed", [False, True])
def test_a_deletion_meanwhile_is_not_undone(
    home: RepositoryContext, monkeypatch: pytest.MonkeyPatch, is_committed: bool
) -> None:
    """An object that is deleted while its metadata are replaced stays deleted."""
    upload(home, b"first")
    if is_committed:
        commit(home, "main", message="first")
    between(monkeypatch, lambda: write.delete(home, branch="main", path="a"))
    with raises(NotFound, "path_not_found"):
        write.update_metadata(home, branch="main", path="a", metadata={"new": "1"})
    assert read_reference(home, "main", lambda view: view.get("a")) is None


@pytest.mark.parametrize("how", ["commit", "compaction"])
def test_a_branch_that_moves_meanwhile_loses_nothing(
    home: RepositoryContext, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    """A commit or compaction in between: the update is made on what the branch shows then."""
    upload(home, b"first")
    act: Callable[[], Any] = lambda: commit(home, "main", message="first")  # noqa: E731
    between(monkeypatch, act if how == "commit" else lambda: compact_once(home, branch="main", force=True))
    write.update_metadata(home, branch="main", path="a", metadata={"new": "1"})
    assert read(home) == (b"first", {"new": "1"})
    commit(home, "main", message="second")
    assert read(home, "main@") == (b"first", {"new": "1"})


def test_an_old_object_is_updated_and_kept(home: RepositoryContext) -> None:
    """An object that is older than a collection's boundary can have new metadata, and no collection takes its bytes."""
    upload(home, b"first")
    commit(home, "main", message="first")
    collect_garbage(home, options=CollectionOptions(grace=timedelta()))
    write.update_metadata(home, branch="main", path="a", metadata={"new": "1"})
    collect_garbage(home, options=CollectionOptions(grace=timedelta()))
    assert read(home) == (b"first", {"new": "1"})


def test_what_cannot_have_metadata_is_refused(home: RepositoryContext) -> None:
    """Neither missing objects, nor branches, nor paths of the system, nor too much metadata."""
    upload(home, b"first")
    with pytest.raises(NotFound):
        write.update_metadata(home, branch="missing", path="a", metadata={})
    with pytest.raises(NotFound):
        write.update_metadata(home, branch="main", path="b", metadata={})
    with pytest.raises(InvalidRequest):
        write.update_metadata(home, branch="main", path="_lakebed/a", metadata={})
    with raises(InvalidRequest, "oversized_metadata"):
        write.update_metadata(home, branch="main", path="a", metadata={"x": "y" * 70_000})
    assert read(home) == (b"first", {"of": "first"})
