"""lakebed ls, history, pins, why, clean, fsck."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import lakebed
from lakebed.cli import exits

Cli = Callable[..., Any]


def test_ls(cli: Cli, lake: str) -> None:
    """Every table with its newest version, rows, bytes and pins."""
    writes = {store["name"]: store for store in cli("ls", lake, "--json").json}
    assert set(writes) == {"flights", "db.events"}
    assert (writes["flights"]["version"], writes["flights"]["rows"], writes["flights"]["pins"]) == ("2", 4, 1)
    assert writes["flights"]["bytes"] > 0
    assert "flights" in cli("ls", lake).out


def test_ls_counts_the_pins_that_pins_lists(cli: Cli, lake: str) -> None:
    """Tags and branches of a table alike."""
    assert cli("table", "branch", lake, "flights", "dev").code == exits.OK
    listed = [pin["name"] for pin in cli("pins", lake, "flights", "--json").json]
    (flights,) = [store for store in cli("ls", lake, "--json").json if store["name"] == "flights"]
    assert ("dev" in listed, flights["pins"]) == (True, len(listed))


def test_ls_of_an_unreadable_table(cli: Cli, lake: str) -> None:
    """A broken table is listed as such, the others are listed whole, and the exit code says it."""
    (Path(lake) / "db.db" / "events" / "snapshot" / "snapshot-1").write_text("{broken")
    answer = cli("ls", lake, "--json")
    assert answer.code == exits.FAULTY
    problems = {store["name"]: store["problem"] for store in answer.json}
    assert problems["flights"] is None
    assert "snapshot-1" in problems["db.events"]


def test_history(cli: Cli, lake: str) -> None:
    """Versions of one table, or of all; expired ones that a tag pins included."""
    cli("table", "expire", lake, "flights", "--retain-max", "1", "--retain-min", "1")
    assert [row["version"] for row in cli("history", lake, "flights", "--json").json] == ["1", "2"]
    assert {row["store"] for row in cli("history", lake, "--json").json} == {"flights", "db.events"}
    assert "append" in cli("history", lake).out


def test_the_history_of_a_destroyed_database_does_not_say_that_it_never_was(cli: Cli, tmp_path: Path) -> None:
    """What has no version to read any more may have had some: that there were none is not claimed."""
    lake = str(tmp_path / "lake")
    assert cli("kv", "put", lake, "serving", "k", "v").code == 0
    assert cli("kv", "drop", lake, "serving", "--hard", "--yes").code == 0
    said = cli("history", lake, "serving")
    assert said.code == 0
    assert "destroyed" in said.out


def test_pins(cli: Cli, lake: str) -> None:
    """A tag with its version, and the bytes that it alone holds once its snapshot has expired."""
    (pin,) = cli("pins", lake, "--json").json
    assert (pin["store"], pin["kind"], pin["name"], pin["version"]) == ("flights", "tag", "jan", "1")
    assert pin["bytes_alone"] == 0
    cli("table", "compact", lake, "flights", "--full")
    cli("table", "expire", lake, "flights", "--retain-max", "1", "--retain-min", "1")
    (pin,) = cli("pins", lake, "flights", "--json").json
    assert pin["bytes_alone"] > 0
    assert "jan" in cli("pins", lake).out
    assert "Nothing pins" in cli("pins", lake, "db.events").out


def test_why(cli: Cli, lake: str) -> None:
    """Who needs a file, by path and by URL; what lies elsewhere is reported or refused."""
    cli("table", "expire", lake, "flights", "--retain-max", "1", "--retain-min", "1")
    path = next((Path(lake) / "default.db" / "flights" / "bucket-0").iterdir()).relative_to(lake)
    for where in (path, f"file://{lake}/{path}"):
        answer = cli("why", lake, where, "--json").json
        assert {"jan"} & {pin["name"] for pin in answer["pins"]} or answer["pins"]
    assert "marker" in cli("why", lake, "lakebed.json").out
    (Path(lake) / "mine").write_text("notes")
    assert "neither needs nor deletes" in cli("why", lake, "mine").out
    assert cli("why", lake, "file:///elsewhere/x").code == exits.USAGE


def test_why_looks_first(cli: Cli, lake: str, tmp_path: Path) -> None:
    """What is not there is said, with the nearest names; a folder too, and a file that is needed and missing."""
    file = next((Path(lake) / "default.db" / "flights" / "bucket-0").iterdir())
    path = str(file.relative_to(lake))
    objects = (
        str(item.relative_to(lake)) for item in (Path(lake) / "default.db" / "flights").rglob("*") if item.is_file()
    )
    first = min(objects)  # and no folder, which `why` would refuse too
    for mistyped, hint in (
        (path.replace(".parquet", ".parqet"), f"Did you mean {path}"),
        (path.replace("flights", "fligths"), "Did you mean default.db/flights?"),
        (f"file://{lake}/{path}x", f"Did you mean {path}"),
        ("defalt.db/flights/x", "Did you mean default.db?"),
        ("default.db/flights", f"It is a folder: name an object in it, such as {first}."),
        ("zzz", "It has "),
    ):
        answer = cli("why", lake, mistyped)
        assert (answer.code, answer.out) == (exits.NOT_FOUND, ""), mistyped
        assert answer.err.startswith("lakebed: There is no object "), answer.err
        assert hint in answer.err
        assert "lakebed.json" not in answer.err
    missing = cli("why", lake, path + "x", "--json").error
    assert missing["kind"] == "object_not_found"
    assert path in missing["facts"]["nearest"]
    file.rename(tmp_path / "gone")
    lost = cli("why", lake, path)
    assert lost.code == exits.NOT_FOUND
    assert "cannot be read without it" in lost.err


def test_clean(cli: Cli, lake: str, unchanged: Callable[[], bool]) -> None:
    """Expired tags, orphans and remains of dropped tables go; a dry run only reports."""
    orphan = Path(lake) / "db.db" / "events" / "bucket-0" / "data-nobody-0.parquet"
    orphan.parent.mkdir(exist_ok=True)
    orphan.write_bytes(b"lost")
    os.utime(orphan, (1_000_000_000, 1_000_000_000))
    document = cli("collect", lake, "--dry-run", "--json").json
    assert [entry["path"] for report in document for entry in report["objects"]] == ["bucket-0/data-nobody-0.parquet"]
    assert orphan.exists()
    assert cli("collect", lake).out.endswith("Freed 4 B.\n")
    assert not orphan.exists()
    assert unchanged()


@pytest.mark.parametrize("command", ["ls", "history", "pins", "collect", "fsck"])
def test_what_is_no_lake(cli: Cli, tmp_path: Path, command: str) -> None:
    """A missing or empty folder is not found; one with other things in it is refused; neither is written to."""
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "notes.txt").write_text("mine")
    (tmp_path / "empty").mkdir()
    assert cli(command, tmp_path / "missing").code == exits.NOT_FOUND
    assert cli(command, tmp_path / "empty").code == exits.NOT_FOUND
    answer = cli(command, tmp_path / "other", "--json")
    assert answer.code == exits.USAGE
    assert answer.error["kind"] == "not_a_lake"
    assert sorted(path.name for path in tmp_path.rglob("*")) == ["empty", "notes.txt", "other"]


@pytest.mark.parametrize("folder", ["other", "lake/default.db/t", "lake/default.db/t/deeper"])
@pytest.mark.parametrize(
    "words",
    [
        ("kv", "create", "LAKE", "serving"),
        ("kv", "put", "LAKE", "serving", "k", "v"),
        ("key", "create", "LAKE"),
        ("repo", "create", "LAKE", "analytics"),
        ("table", "create", "LAKE", "t", "--column", "id INT"),
    ],
)
def test_no_store_is_created_among_other_files(cli: Cli, tmp_path: Path, words: tuple[str, ...], folder: str) -> None:
    """A store of any kind is created in a lake or an empty folder, not among other files or in a table."""
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "notes.txt").write_text("mine")
    assert cli("table", "create", tmp_path / "lake", "t", "--column", "id INT").code == exits.OK
    before = sorted(tmp_path.rglob("*"))
    answer = cli(*(tmp_path / folder if word == "LAKE" else word for word in words), "--json")
    assert answer.code == exits.USAGE
    assert answer.error["kind"] == "not_a_lake"
    assert sorted(tmp_path.rglob("*")) == before


def test_a_newer_lake_is_refused(cli: Cli, lake: str) -> None:
    """A lake of a newer format is distinguished from a damaged one; both exit with 5."""
    marker = Path(lake) / "lakebed.json"
    marker.write_text(json.dumps({"format": 2, "min_reader": 2, "min_writer": 2, "features": []}))
    assert cli("ls", lake, "--json").error["kind"] == "unsupported_format"
    marker.write_text("{")
    answer = cli("ls", lake, "--json")
    assert answer.code == exits.FAULTY
    assert answer.error["kind"] == "corruption"


def test_fsck_of_a_lake_without_stores(cli: Cli, tmp_path: Path) -> None:
    """One plain sentence; "no fault in nothing" is none."""
    lakebed.open(str(tmp_path / "lake"))
    answer = cli("fsck", tmp_path / "lake")
    assert (answer.code, answer.out) == (
        exits.OK,
        f"file://{tmp_path / 'lake'}: there is no table, database, repository or tenant to check.\n",
    )


def test_fsck(cli: Cli, lake: str, unchanged: Callable[[], bool]) -> None:
    """A sound lake has no fault, orphans are only reported, and nothing is changed."""
    answer = cli("fsck", lake, "--deep", "--json")
    assert answer.code == exits.OK
    assert (answer.json["tables"], answer.json["errors"]) == (2, 0)
    assert "no fault" in cli("fsck", lake).out
    assert "no fault" in cli("fsck", f"{lake}/default.db/flights").out
    assert cli("fsck", lake, "nope").code == exits.NOT_FOUND
    assert unchanged()


def test_repair_statistics(cli: Cli, tmp_path: Path) -> None:
    """`fsck --repair-statistics` says what it would recompute, recomputes it, and then has nothing to do."""
    shutil.copytree(Path(__file__).parents[1] / "golden" / "float_bounds", tmp_path / "old")
    url = str(tmp_path / "old")
    foretold = cli("fsck", url, "--repair-statistics", "--dry-run", "--json").json
    assert [foretold["dry_run"], foretold["branches"][0]["wrong"], foretold["branches"][0]["snapshot"]] == [
        True,
        1,
        None,
    ]
    done = cli("fsck", url, "--repair-statistics", "--json").json
    assert [done["branches"][0][name] for name in ("described", "wrong", "snapshot")] == [1, 1, 4]
    assert "need no repair" in cli("fsck", url, "--repair-statistics").out
    assert cli("fsck", url, "--dry-run").code == exits.USAGE
