"""lakebed table history, branches, rollback, expire, compact, remove-orphan-files, fsck, system."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

from lakebed.cli import exits

Cli = Callable[..., Any]


def snapshots(cli: Cli, lake: str) -> list[int]:
    """Ids of the snapshots of flights."""
    return [row["snapshot"] for row in cli("table", "history", lake, "flights", "--json").json]


def test_history(cli: Cli, lake: str) -> None:
    """Snapshots oldest first with rows and tags; --limit keeps the newest."""
    document = cli("table", "history", lake, "flights", "--json").json
    assert [(item["snapshot"], item["rows_delta"], item["tags"]) for item in document] == [(1, 3, ["jan"]), (2, 2, [])]
    assert len(cli("table", "history", lake, "flights", "--limit", "1", "--json").json) == 1
    assert (
        "ago" in cli("table", "history", lake, "flights").out
        or "just now" in cli("table", "history", lake, "flights").out
    )


def test_rollback(cli: Cli, lake: str, unchanged: Callable[[], bool]) -> None:
    """A dry run reports what would go; then the old rows are back and what came later is gone."""
    document = cli("table", "rollback", lake, "flights", "--tag", "jan", "--dry-run", "--json").json
    assert document["snapshot"] == 1
    assert "snapshot/snapshot-2" in document["versions"]
    assert unchanged()
    made = cli("table", "rollback", lake, "flights", "--tag", "jan", "--json").json
    assert made["snapshot"] == 3
    assert snapshots(cli, lake) == [1, 3]
    assert cli("table", "read", lake, "flights", "--count").out == "3\n"
    assert cli("fsck", lake, "--deep").code == exits.OK


def test_rollback_as_latest(cli: Cli, lake: str) -> None:
    """With --as-latest the old rows are back and the history is kept."""
    assert cli("table", "rollback", lake, "flights", "--version", "1", "--as-latest").code == exits.OK
    assert snapshots(cli, lake) == [1, 2, 3]
    assert cli("table", "read", lake, "flights", "--count").out == "3\n"


def test_expire(cli: Cli, lake: str, unchanged: Callable[[], bool]) -> None:
    """A dry run lists; expiring keeps what is asked, and what a tag pins stays readable."""
    options = ("--retain-max", "1", "--retain-min", "1")
    document = cli("table", "expire", lake, "flights", *options, "--dry-run", "--json").json
    assert document["dry_run"]
    assert document["versions"] == ["snapshot/snapshot-1"]
    assert unchanged()
    assert cli("table", "expire", lake, "flights", "--retain-max", "0").code == exits.USAGE
    done = cli("table", "expire", lake, "flights", *options, "--json").json
    assert done["hidden"] == 1
    assert snapshots(cli, lake) == [2]
    assert cli("table", "read", lake, "flights", "--tag", "jan", "--count").out == "3\n"


def test_compact(cli: Cli, lake: str, unchanged: Callable[[], bool]) -> None:
    """Files become fewer, rows stay; a dry run changes nothing."""
    document = cli("table", "compact", lake, "flights", "--full", "--dry-run", "--json").json
    assert document["snapshot"] is None
    assert document["files_before"] == 2
    assert unchanged()
    done = cli("table", "compact", lake, "flights", "--full", "--json").json
    assert (done["files_after"], done["snapshot"]["kind"]) == (1, "COMPACT")
    assert cli("table", "read", lake, "flights", "--count").out == "4\n"
    assert "nothing to compact" in cli("table", "compact", lake, "flights", "--full").out


def test_branches(cli: Cli, lake: str, tmp_path: Path) -> None:
    """A branch starts from a tag, is written on its own, and goes."""
    assert cli("table", "branch", lake, "flights", "dev", "--tag", "jan", "--json").json["snapshot"] == 1
    (tmp_path / "new.csv").write_text("id,carrier,delay\n50,XX,0\n")
    assert cli("table", "upsert", lake, "flights", tmp_path / "new.csv", "--branch", "dev").code == exits.OK
    assert cli("table", "read", lake, "flights", "--branch", "dev", "--count").out == "4\n"
    assert cli("table", "read", lake, "flights", "--version", "dev", "--count").out == "4\n"
    assert cli("table", "read", lake, "flights", "--where", "id = 50", "--count").out == "0\n"
    assert [row["branch"] for row in cli("table", "branches", lake, "flights", "--json").json] == ["dev"]
    assert cli("table", "branch", lake, "flights", "dev").code == exits.CONFLICT
    assert cli("table", "rename-branch", lake, "flights", "dev", "dev").code == exits.CONFLICT
    assert cli("table", "rename-branch", lake, "flights", "main", "other").code == exits.USAGE
    assert cli("table", "rename-branch", lake, "flights", "absent", "other").code == exits.NOT_FOUND
    renamed = cli("table", "rename-branch", lake, "flights", "dev", "other", "--json").json
    assert renamed == {"branch": "other", "renamed_from": "dev"}
    assert cli("table", "read", lake, "flights", "--branch", "other", "--count").out == "4\n"
    assert cli("table", "read", lake, "flights", "--branch", "dev").code == exits.NOT_FOUND
    assert "is called dev now" in cli("table", "rename-branch", lake, "flights", "other", "dev").out
    assert cli("table", "drop", lake, "flights").code == exits.USAGE
    assert cli("fsck", lake, "--deep").code == exits.OK
    assert cli("table", "drop-branch", lake, "flights", "dev").code == exits.OK
    assert cli("table", "drop-branch", lake, "flights", "dev").code == exits.NOT_FOUND
    assert cli("table", "history", lake, "flights", "--branch", "dev").code == exits.NOT_FOUND


def test_remove_orphan_files(cli: Cli, lake: str) -> None:
    """Files that nothing names go once they are old enough; a dry run lists them."""
    orphan = Path(lake) / "default.db" / "flights" / "bucket-0" / "data-nobody-0.parquet"
    orphan.write_bytes(b"lost")
    os.utime(orphan, (1_000_000_000, 1_000_000_000))
    document = cli("table", "collect", lake, "flights", "--dry-run", "--json").json
    assert [entry["path"] for entry in document["objects"]] == ["bucket-0/data-nobody-0.parquet"]
    assert orphan.exists()
    assert cli("table", "collect", lake, "flights").code == exits.OK
    assert not orphan.exists()
    assert cli("table", "read", lake, "flights", "--count").out == "4\n"


def test_fsck_of_one_table(cli: Cli, lake: str) -> None:
    """A sound table has no fault; a lost file is a fault with exit code 5."""
    assert cli("table", "fsck", lake, "flights", "--deep").code == exits.OK
    next((Path(lake) / "default.db" / "flights").rglob("*.parquet")).unlink()
    answer = cli("table", "fsck", lake, "flights", "--json")
    assert answer.code == exits.FAULTY
    assert {finding["kind"] for finding in answer.json["findings"]} == {"missing"}


def test_system_tables(cli: Cli, lake: str) -> None:
    """Each system table prints for people and for programs."""
    for name in ("snapshots", "tags", "schemas", "files", "manifests", "options", "partitions"):
        assert cli("table", "system", lake, "flights", name).code == exits.OK
        assert isinstance(cli("table", "system", lake, "flights", f"${name}", "--json").json, list)


def test_a_branch_is_deleted_dry_first(cli: Callable[..., Any], lake: str) -> None:
    """--dry-run names the snapshots and tags of the branch and deletes nothing; the real run takes the branch."""
    cli("table", "branch", lake, "flights", "dev")
    cli("table", "tag", lake, "flights", "mine", "--branch", "dev")
    words = ("table", "drop-branch", lake, "flights", "dev")
    foretold = cli(*words, "--dry-run", "--json").json
    assert (foretold["snapshots"], foretold["tags"], foretold["deleted"]) == ([2], ["mine"], False)
    assert "1 snapshot and 1 tag: mine" in cli(*words, "--dry-run").out
    assert cli("table", "branches", lake, "flights", "--json").json
    assert cli(*words).code == exits.OK
    assert cli("table", "branches", lake, "flights", "--json").json == []
    assert cli(*words, "--dry-run").code == exits.NOT_FOUND


def test_versions_and_times_out_of_range(cli: Cli, lake: str) -> None:
    """A number that no version or time can have is refused in a sentence of readable length."""
    for words in (("--version", "9" * 5000), ("--version", "a" * 5000), ("--timestamp", "9" * 5000)):
        for command in (["read", lake, "flights"], ["rollback", lake, "flights", "--yes"]):
            answer = cli("table", *command, *words)
            assert answer.code in (exits.USAGE, exits.NOT_FOUND)
            assert len(answer.err) < 600
            assert answer.err.startswith("lakebed: ")
