"""A dry run refuses what the command itself refuses, with the same code and the same sentence."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import lakebed
import lakebed.repo
from lakebed import kv
from lakebed.cli import exits

Cli = Callable[..., Any]

REPOSITORY = [
    (("drop-branch", "main"), exits.USAGE, "default branch"),
    (("drop-branch", "kept"), exits.USAGE, "protected"),
    (("drop-branch", "nosuch"), exits.NOT_FOUND, "no branch"),
    (("drop-branch", "v1"), exits.NOT_FOUND, "no branch"),
    (("drop-tag", "main"), exits.NOT_FOUND, "no tag"),
    (("drop-tag", "v2"), exits.NOT_FOUND, "Did you mean v1?"),
    (("drop-tag", "no//name"), exits.USAGE, "no//name"),
    (("rm", "main", "nosuch"), exits.NOT_FOUND, "no object"),
    (("rm", "main", "nosuch/", "--recursive"), exits.NOT_FOUND, "no path begins with"),
    (("rm", "v1", "a"), exits.NOT_FOUND, "no branch"),
    (("rm", "kept", "a"), exits.USAGE, "protected"),
    (("reset", "kept"), exits.USAGE, "protected"),
    (("reset", "kept", "--hard", "main"), exits.USAGE, "protected"),
    (("reset", "main", "--hard", "v1"), exits.USAGE, "uncommitted changes"),
    (("upload", "kept", "FOLDER"), exits.USAGE, "protected"),
    (("upload", "nosuch", "FOLDER"), exits.NOT_FOUND, "no branch"),
]
READ_ONLY = [("drop-tag", "v1"), ("reset", "main"), ("drop",)]
TABLE = [
    (("drop-branch", "main"), exits.USAGE, "main branch"),
    (("drop-branch", "nosuch"), exits.NOT_FOUND, "nosuch"),
    (("drop-tag", "nosuch"), exits.NOT_FOUND, "nosuch"),
    (("rollback", "--version", "dev"), exits.USAGE, "is a branch"),
    (("rollback", "--version", "dev", "--as-latest"), exits.USAGE, "is a branch"),
    (("rollback", "--tag", "nosuch"), exits.NOT_FOUND, "nosuch"),
    (("drop",), exits.USAGE, "pin"),
    (("delete", "--where", "nosuch = 1"), exits.USAGE, "nosuch"),
]


def check(cli: Cli, *words: object, code: int, says: str) -> None:
    """The command and its dry run end alike."""
    real, dry = cli(*words, "--yes"), cli(*words, "--dry-run")
    assert (real.code, real.out) == (code, ""), real.err
    assert says in real.err
    assert (dry.code, dry.out, dry.err) == (real.code, real.out, real.err)


@pytest.fixture
def home(tmp_path: Path) -> str:
    """``ops``: branches main (with a change that is not committed), dev and kept (protected), tag v1, object a."""
    with lakebed.repo.open(tmp_path / "lake" / "ops.repo") as ops:
        main = ops.branch("main")
        main.put("a", b"1")
        main.commit("first")
        ops.create_tag("v1")
        for name in ("dev", "kept"):
            ops.create_branch(name)
        ops.protect("kept")
        main.put("b", b"2")
    return str(tmp_path / "lake")


def test_dry_runs_of_repositories(cli: Cli, home: str, tmp_path: Path) -> None:
    """Names that are not there, the default branch, protected branches, uncommitted changes in the way."""
    folder = tmp_path / "folder"
    folder.mkdir()
    (folder / "new").write_bytes(b"x")
    for words, code, says in REPOSITORY:
        arguments = [str(folder) if word == "FOLDER" else word for word in words[1:]]
        check(cli, "repo", words[0], home, "ops", *arguments, code=code, says=says)


def test_dry_runs_of_a_read_only_repository(cli: Cli, tmp_path: Path) -> None:
    """Nothing in it can be changed; with --force the dry run of a drop names it, and the real run drops it."""
    lake = tmp_path / "lake"
    with lakebed.repo.open_all(lake) as repositories:
        repositories.create("ops", read_only=True)
    for words in READ_ONLY:
        check(cli, "repo", words[0], lake, "ops", *words[1:], code=exits.USAGE, says="is read-only")
    assert "Would drop ops" in cli("repo", "drop", lake, "ops", "--force", "--dry-run").out
    assert cli("repo", "drop", lake, "ops", "--force", "--yes").code == exits.OK
    assert cli("repo", "branches", lake, "ops").code == exits.NOT_FOUND


def test_dry_runs_of_tables(cli: Cli, lake: str) -> None:
    """The main branch, names that are not there, a branch to go back to, a pinned table, an unknown column."""
    assert cli("table", "branch", lake, "flights", "dev", "--tag", "jan").code == exits.OK
    for words, code, says in TABLE:
        check(cli, "table", words[0], lake, "flights", *words[1:], code=code, says=says)


def test_dry_runs_of_databases(cli: Cli, tmp_path: Path) -> None:
    """A checkpoint that is not there, one that a clone holds, a database with checkpoints, one that is not there."""
    lake = tmp_path / "lake"
    assert cli("kv", "put", lake, "main", "k", "v").code == exits.OK
    kv.admin.create_clone(f"{lake}/fork.kv", f"{lake}/main.kv")
    (pin,) = kv.admin.list_checkpoints(f"{lake}/main.kv")
    check(cli, "kv", "drop-tag", lake, "main", pin.id, code=exits.USAGE, says="--force")
    check(cli, "kv", "drop-tag", lake, "main", "nosuch", code=exits.NOT_FOUND, says="nosuch")
    check(cli, "kv", "drop", lake, "main", "--hard", code=exits.USAGE, says="live checkpoint")
    for command, *rest in (("drop-tag", "first"), ("delete", "k"), ("drop",)):
        check(cli, "kv", command, lake, "nosuch", *rest, code=exits.NOT_FOUND, says="nosuch")


def test_dry_runs_of_a_database_that_is_owned(cli: Cli, tmp_path: Path) -> None:
    """Another writer's lease is respected, unless the command takes over."""
    lake = tmp_path / "lake"
    with kv.open(f"{lake}/main.kv") as database:
        database.put(b"k", b"v")
        for words in (("drop",), ("drop", "--hard"), ("delete", "k")):
            arguments = (lake, "main", *words[1:])
            check(cli, "kv", words[0], *arguments, code=exits.CONFLICT, says="is owned by process")
            assert cli("kv", words[0], *arguments, "--take-over", "--dry-run").code == exits.OK
        assert database.get(b"k", linearizable=True) == b"v"
    assert cli("kv", "drop", lake, "main", "--yes").code == exits.OK


def test_a_dry_run_names_a_checkpoint_that_has_expired(cli: Cli, tmp_path: Path) -> None:
    """It is removed like any other."""
    lake = tmp_path / "lake"
    assert cli("kv", "put", lake, "main", "k", "v").code == exits.OK
    kv.admin.create_checkpoint(
        f"{lake}/main.kv", kv.CheckpointOptions(name="brief", lifetime=timedelta(milliseconds=1))
    )
    assert "brief" in cli("kv", "drop-tag", lake, "main", "brief", "--dry-run").out
    assert cli("kv", "drop-tag", lake, "main", "brief", "--yes").code == exits.OK


def test_the_last_key_of_an_administrator_stays(cli: Cli, tmp_path: Path) -> None:
    """Its dry run says so too."""
    key = cli("key", "create", tmp_path / "lake", "--role", "admin", "--json").json["access_key_id"]
    check(cli, "key", "revoke", tmp_path / "lake", key, code=exits.USAGE, says="last access key")


def test_a_dry_collection_of_a_repository_owns_nothing(cli: Cli, home: str) -> None:
    """It works while another process owns the repositories."""
    with lakebed.repo.open_all(home):
        report = cli("repo", "collect", home, "ops", "--dry-run")
        assert (report.code, report.err) == (0, "")


@pytest.mark.parametrize("engine", ["partial-update", "aggregation", "first-row"])
def test_rows_that_no_delete_removes(cli: Cli, tmp_path: Path, engine: str) -> None:
    """Where the merge engine takes no deletes, a dry run does not promise some."""
    columns = pa.schema([("id", pa.int64()), ("v", pa.int64())])
    options = {"merge-engine": engine}
    table = lakebed.open(tmp_path).create_table("t", columns, primary_keys="id", options=options)
    table.upsert(pa.table({"id": [1], "v": [1]}))
    words = ("table", "delete", tmp_path, "t", "--where", "id = 1")
    check(cli, *words, code=exits.USAGE, says=f"merges rows by the engine {engine!r}")
