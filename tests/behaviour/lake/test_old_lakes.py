"""Lakes that versions of long ago have written, and left as a process that is killed leaves them."""

from __future__ import annotations

import json
import tarfile
from datetime import timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import lakebed
from lakebed import kv, repo
from lakebed.fsck.check import check_lake

GOLDEN = Path(__file__).parents[2] / "golden" / "lakes"
NAMES = sorted(path.stem for path in GOLDEN.glob("*.json"))
OPTIONS = repo.RepositoryOptions(background=False)


@pytest.fixture(params=NAMES)
def old(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[Path, dict[str, Any]]:
    """The lake's folder, and what is in it."""
    folder = tmp_path / "lake"
    with tarfile.open(GOLDEN / f"{request.param}.tar.xz") as packed:
        packed.extraction_filter = getattr(tarfile, "data_filter", None)  # which Python 3.11.3 and older do not have
        packed.extractall(folder)
    return folder, json.loads((GOLDEN / f"{request.param}.json").read_text())


def read_tables(folder: Path) -> dict[str, Any]:
    """Rows of each table's newest version, tag and branch, but those that this module has put."""
    lake = lakebed.open(str(folder))

    def read(table: lakebed.Table, version: str | None = None) -> list[list[Any]]:
        rows = table.read(version=version, columns=["k", "v", "n"], where="k <> 500").to_pylist()
        return sorted([row["k"], row["v"], row["n"]] for row in rows)

    return {
        name: {
            "main": read(lake.table(name)),
            "kept": read(lake.table(name), "kept"),
            "side": read(lake.table(name, branch="side")),
        }
        for name in lake.tables()
    }


def read_database(folder: Path, checkpoint: str) -> dict[str, Any]:
    """Keys and values, now and as of the checkpoint."""
    contents: dict[str, Any] = {"checkpoint": checkpoint}
    for name, version in (("now", None), ("kept", checkpoint)):
        with kv.open_reader(folder / "serving.kv", version) as reader:
            contents[name] = {key.decode(): value.decode() for key, value in reader.scan()}
    return contents


def read_repository(folder: Path, lost_id: str) -> dict[str, Any]:
    """Objects by path, and the log."""
    with repo.open_all(folder, options=OPTIONS) as repositories:
        repository = repositories.repository("analytics")

        def read(reference: repo.Reference) -> dict[str, str]:
            return {row.path: reference.get(row.path).decode() for row in reference.list()}

        return {
            "main": read(repository.branch("main")),
            "dev": read(repository.branch("dev")),
            "v1": read(repository.ref("v1")),
            "lost": read(repository.ref(lost_id)),
            "lost_id": lost_id,
            "log": [commit.id for commit in repository.log("main")],
        }


def read_all(folder: Path, contents: dict[str, Any]) -> dict[str, Any]:
    """What `contents` says, as it is in the lake."""
    return {
        "tables": read_tables(folder),
        "database": read_database(folder, contents["database"]["checkpoint"]),
        "repository": read_repository(folder, contents["repository"]["lost_id"]),
    }


def test_an_old_lake_holds_what_it_held(old: tuple[Path, dict[str, Any]]) -> None:
    """Every version, checkpoint, branch and tag reads as it was written, what is in logs or staged too."""
    folder, contents = old
    assert read_all(folder, contents) == contents


def test_an_old_lake_is_written_and_collected_by_this_version(old: tuple[Path, dict[str, Any]]) -> None:
    """After writes, compactions, expiry and collections without grace all that was there is there, and is sound."""
    folder, contents = old
    lake = lakebed.open(str(folder))
    for name in lake.tables():
        table = lake.table(name)
        row = {"k": [500], "v": ["new"], "n": [1]} | ({"p": ["p1"]} if table.schema.partition_keys else {})
        rows = pa.table(row, schema=table.arrow_schema)
        (table.upsert if table.schema.primary_keys else table.append)(rows)
        table.compact(full=True)
        table.expire(retain_max=1, retain_min=1, older_than_ms=2**60)
        table.collect(grace_ms=0)
    with kv.open(folder / "serving.kv") as database:
        database.put(b"new", b"1")
        database.flush(memtable=True)
        database.compact(full=True)
    lake.database("serving").collect(kv.CollectorOptions(grace=timedelta(0)))
    with repo.open_all(folder, options=OPTIONS) as repositories:
        repository = repositories.repository("analytics")
        assert repository.collect(repo.CollectionOptions(grace=timedelta(0))).warnings == ()
        repository.branch("main").put("new", b"1")
        repository.branch("main").compact(force=True)
        repository.undelete_branch("old")
        assert repository.branch("old").commit_id == contents["repository"]["lost_id"]
    lake.collect(grace_ms=0)
    contents["database"]["now"]["new"] = contents["repository"]["main"]["new"] = "1"
    assert read_all(folder, contents) == contents
    assert check_lake(lake, deep=True).error_count == 0
