"""Every mistake that a user can make, at the library and on the command line: one sentence, and nothing has changed."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from lakebed.cli.main import run
from lakebed.errors import LakebedError
from lakebed.repo import Repositories, open_all
from lakebed.repo.repositories import local_catalog
from lakebed.repo.transport.transport import context_of
from worlds.repo.client import QUIET


def everything(home: Repositories) -> dict[str, bytes]:
    """All records, and the name and size of every object of every repository."""
    with local_catalog(home).key_value.snapshot() as snapshot:
        digests = {key.decode(errors="replace"): hashlib.sha256(value).digest() for key, value in snapshot.scan()}
    for repository in home.list():
        for meta in context_of(repository).store.list():
            digests[f"{repository.url}/{meta.path}"] = b"%d" % meta.size_bytes
    return digests


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Repositories]:
    """Two branches in conflict, one that is dirty, one that is protected, a tag."""
    with open_all(tmp_path_factory.mktemp("mistakes") / "lake", options=QUIET, durable=False) as home:
        repository = home.create("analytics")
        main = repository.branch("main")
        main.put("same", b"0")
        main.commit("first")
        for name in ("dev", "dirty", "release"):
            repository.create_branch(name)
        dev = repository.branch("dev")
        dev.put("same", b"1")
        dev.commit("dev")
        main.put("same", b"2")
        main.commit("main")
        repository.branch("dirty").put("staged", b"x")
        repository.create_tag("v1", ref="main")
        repository.protect("release")
        yield home


LONG = "x" * 2_000
MISTAKES: dict[str, Callable[[Repositories], Any]] = {
    "unknown repository": lambda home: home.repository("missing"),
    "unknown repository deleted": lambda home: home.delete("missing"),
    "invalid repository": lambda home: home.repository("Wrong_Name"),
    "repository twice": lambda home: home.create("analytics"),
    "repository invalid": lambda home: home.create("A"),
    "repository dots": lambda home: home.create("../../etc"),
    "namespace in use": lambda home: home.create("other", namespace="analytics.repo"),
    "namespace below": lambda home: home.create("other", namespace="analytics.repo/below"),
    "namespace above": lambda home: home.create("other", namespace=""),
    "namespace outside": lambda home: home.create("other", namespace="../other"),
    "namespace of records": lambda home: home.create("other", namespace="_repositories"),
    "namespace elsewhere": lambda home: home.create("other", namespace="s3://bucket/x"),
    "default branch invalid": lambda home: home.create("other", default_branch="a b"),
    "repository metadata": lambda home: home.create("other", metadata={"k": "x" * 2_000_000}),
    **{
        name: (lambda home, call=call: call(home.repository("analytics")))
        for name, call in {
            "unknown branch": lambda repo: repo.branch("missing").put("a", b"x"),
            "unknown branch large": lambda repo: repo.branch("missing").put("a", iter([b"x"] * 3)),
            "unknown branch read": lambda repo: list(repo.branch("missing").list()),
            "unknown branch deleted": lambda repo: repo.delete_branch("missing"),
            "unknown branch commit": lambda repo: repo.branch("missing").commit("m"),
            "unknown branch reset": lambda repo: repo.branch("missing").reset(),
            "unknown tag": lambda repo: repo.delete_tag("missing"),
            "unknown commit": lambda repo: repo.ref("0" * 64).head(),
            "unknown reference": lambda repo: list(repo.ref("main~99").list()),
            "unknown path": lambda repo: repo.ref("main").get("missing"),
            "unknown diff": lambda repo: list(repo.diff("main", "missing")),
            "unknown merge": lambda repo: repo.branch("main").merge("missing"),
            "unknown revert": lambda repo: repo.branch("main").revert("missing"),
            "unknown pick": lambda repo: repo.branch("main").cherry_pick("missing"),
            "unknown hard reset": lambda repo: repo.branch("main").hard_reset("missing"),
            "unknown undelete": lambda repo: repo.undelete_branch("never"),
            "unknown rule": lambda repo: repo.unprotect("never"),
            "invalid branch": lambda repo: repo.create_branch("a b"),
            "invalid branch dash": lambda repo: repo.create_branch("-x"),
            "invalid branch dots": lambda repo: repo.create_branch(".."),
            "invalid branch long": lambda repo: repo.create_branch(LONG),
            "invalid tag": lambda repo: repo.create_tag("a\0b", ref="main"),
            "branch twice": lambda repo: repo.create_branch("dev"),
            "branch like a tag": lambda repo: repo.create_branch("v1"),
            "tag twice": lambda repo: repo.create_tag("v1", ref="dev"),
            "tag like a branch": lambda repo: repo.create_tag("dev", ref="main"),
            "path empty": lambda repo: repo.branch("main").put("", b"x"),
            "path dots": lambda repo: repo.branch("main").put("a/../b", b"x"),
            "path dots alone": lambda repo: repo.branch("main").put("..", b"x"),
            "path NUL": lambda repo: repo.branch("main").put("a\0b", b"x"),
            "path surrogate": lambda repo: repo.branch("main").put("\ud800", b"x"),
            "path long": lambda repo: repo.branch("main").put(LONG, b"x"),
            "path no text": lambda repo: repo.branch("main").put(b"a", b"x"),
            "path reserved": lambda repo: repo.branch("main").put("_lakefs/x", b"x"),
            "path reserved deep": lambda repo: repo.branch("main").put("_lakebed/x/y", b"x"),
            "body text": lambda repo: repo.branch("main").put("a", "text"),
            "body none": lambda repo: repo.branch("main").put("a", None),
            "body breaks": lambda repo: repo.branch("main").put("a", iter([b"x", "text"])),
            "metadata large": lambda repo: repo.branch("main").put("a", b"x", metadata={"k": "x" * 100_000}),
            "metadata no text": lambda repo: repo.branch("main").put("a", b"x", metadata={"k": 1}),
            "put over": lambda repo: repo.branch("main").put("same", b"x", only_if_absent=True),
            "range past the end": lambda repo: repo.ref("main").get("same", byte_range=(5, 6)),
            "range backwards": lambda repo: repo.ref("main").get("same", byte_range=(1, 0)),
            "commit nothing": lambda repo: repo.branch("main").commit("m"),
            "commit no message": lambda repo: repo.branch("dirty").commit(""),
            "commit long message": lambda repo: repo.branch("dirty").commit("x" * 2_000_000),
            "commit metadata": lambda repo: repo.branch("dirty").commit("m", metadata={"k": "x" * 2_000_000}),
            "merge conflict": lambda repo: repo.branch("main").merge("dev"),
            "merge dirty": lambda repo: repo.branch("dirty").merge("main"),
            "merge nothing": lambda repo: repo.branch("main").merge("main"),
            "merge strategy": lambda repo: repo.branch("main").merge("dev", strategy="mine"),
            "revert dirty": lambda repo: repo.branch("dirty").revert("main"),
            "revert parent": lambda repo: repo.branch("main").revert("main", parent_number=7),
            "pick dirty": lambda repo: repo.branch("dirty").cherry_pick("dev"),
            "pick conflict": lambda repo: repo.branch("main").cherry_pick("dev"),
            "rebase dirty": lambda repo: repo.branch("dirty").rebase("main"),
            "hard reset dirty": lambda repo: repo.branch("dirty").hard_reset("main"),
            "delete default": lambda repo: repo.delete_branch("main"),
            "delete protected": lambda repo: repo.delete_branch("release"),
            "put protected": lambda repo: repo.branch("release").put("a", b"x"),
            "commit protected": lambda repo: repo.branch("release").commit("m"),
            "reset two": lambda repo: repo.branch("dirty").reset(path="a", prefix="b"),
            "retention": lambda repo: repo.set_retention(default_days=-1),
            "protect nothing": lambda repo: repo.protect(""),
            "list amount": lambda repo: list(repo.ref("main").list(amount=-1)),
            "import nowhere": lambda repo: repo.branch("main").import_objects([]),
        }.items()
    },
}


@pytest.mark.parametrize("name", MISTAKES)
def test_a_mistake_at_the_library(home: Repositories, name: str) -> None:
    """Every invalid request is refused in one sentence with a kind; no record and no object has changed."""
    before = everything(home)
    with pytest.raises(LakebedError) as caught:
        MISTAKES[name](home)
    error = caught.value
    assert error.kind not in ("internal_error", "corruption"), repr(error)
    assert 20 < len(error.message) < 1_500, error.message
    assert "\n" not in error.message
    if name in ("merge conflict", "pick conflict"):
        assert "same" in error.message
    after = everything(home)
    # Looking at what is staged may seal it, and what was sealed may be applied; no visible state differs.
    changed = {key for key in before.keys() | after.keys() if before.get(key) != after.get(key)}
    allowed = ("/branches/dirty", "/data/", "/range", "/meta", "/staging/", "/cleanup/")
    assert all(any(part in key for part in allowed) for key in changed), changed
    assert not any("/data/" in key for key in changed) or name == "body breaks", changed
    assert bytes(home.repository("analytics").branch("dirty").get("staged")) == b"x"
    assert [difference.path for difference in home.repository("analytics").branch("dirty").status()] == ["staged"]


COMMANDS = [
    ["list", "{lake}/missing"],
    ["ls", "{lake}", "missing", "main"],
    ["ls", "{lake}", "analytics", "missing"],
    ["get", "{lake}", "analytics", "main", "missing", "{out}"],
    ["put", "{lake}", "analytics", "missing", "{file}", "a"],
    ["put", "{lake}", "analytics", "main", "{file}", "../a"],
    ["put", "{lake}", "analytics", "main", "{file}", "_lakefs/a"],
    ["put", "{lake}", "analytics", "main", "{out}/missing", "a"],
    ["rm", "{lake}", "analytics", "missing", "a"],
    ["commit", "{lake}", "analytics", "main", "-m", "nothing"],
    ["commit", "{lake}", "analytics", "missing", "-m", "nothing"],
    ["log", "{lake}", "analytics", "missing"],
    ["diff", "{lake}", "analytics", "main", "missing"],
    ["merge", "{lake}", "analytics", "missing", "main"],
    ["revert", "{lake}", "analytics", "main", "missing"],
    ["cherry-pick", "{lake}", "analytics", "main", "missing"],
    ["branch", "{lake}", "analytics", "a b"],
    ["drop-branch", "{lake}", "analytics", "main", "--yes"],
    ["tag", "{lake}", "analytics", "main", "missing"],
    ["drop-tag", "{lake}", "analytics", "missing", "--yes"],
    ["create", "{lake}", "analytics"],
    ["create", "{lake}", "A"],
    ["collect", "{lake}", "missing"],
    ["create", "{lake}\0", "nul"],
    ["list", "ftp://host/x"],
]


@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
def test_a_mistake_on_the_command_line(
    tmp_path_factory: pytest.TempPathFactory, capsys: pytest.CaptureFixture[str], command: list[str]
) -> None:
    """A command that cannot be done ends with a code of its own and a sentence; nothing has changed."""
    folder = tmp_path_factory.mktemp("commands")
    (folder / "file").write_bytes(b"1")
    with open_all(folder / "lake", options=QUIET, durable=False) as home:
        home.create("analytics").branch("main").put("a", b"1")
        home.repository("analytics").branch("main").commit("first")
        before = everything(home)
    words = {"lake": str(folder / "lake"), "file": str(folder / "file"), "out": str(folder / "out")}
    code = run(["repo", *(word.format(**words) for word in command)])
    messages = capsys.readouterr()
    assert code not in (0, 1), messages
    assert "Traceback" not in messages.err
    assert len(messages.err) > 20
    assert messages.out == ""
    assert not (folder / "out").exists()
    with open_all(folder / "lake", options=QUIET, durable=False) as home:
        assert everything(home) == before


def test_folders_that_are_no_storage(tmp_path: Path) -> None:
    """A file, a folder that may not be, or an odd URL in place of a storage is refused, and nothing is made."""
    (tmp_path / "file").write_bytes(b"1")
    for wrong in (
        str(tmp_path / "file"),
        str(tmp_path / "file" / "below"),
        "",
        "gopher://x/y",
        str(tmp_path) + "/a\0b",
    ):
        with pytest.raises(LakebedError):
            open_all(wrong)
    assert [path.name for path in tmp_path.iterdir()] == ["file"]
