"""A full disk can be freed: every deleting verb works on a real file system without a free byte."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Callable, Iterator
from contextlib import suppress
from datetime import timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from lakebed import repo
from lakebed.cli import exits
from lakebed.cli.main import run
from lakebed.errors import InvalidRequest, OutcomeUnknown, Unavailable
from lakebed.fsck.check import check_lake
from lakebed.kv import Database, DatabaseAdmin
from lakebed.kv.database_location import DatabaseLocation
from lakebed.kv.options import CollectorOptions, DatabaseOptions, ReaderOptions
from lakebed.kv.reader import DatabaseReader
from lakebed.lake.lake import Lake
from lakebed.objects import open_store
from lakebed.objects.reserve import (
    DATABASE_RESERVE_BYTES,
    RESERVE_BYTES,
    RESERVE_PATH,
    freeing_space,
    give_up_reserve,
)
from lakebed.server.options import ServerOptions
from lakebed.server.serve import start_server
from worlds.lakefs_history import LakefsClient
from worlds.waiting import pause

SCHEMA = pa.schema([pa.field("id", pa.int64(), nullable=False), pa.field("x", pa.float64())])
DISK_BYTES = 24 << 20
MODIFICATION_TIME_STEP_SECONDS = 0.02
"""More than what the modification times of a file are behind the clock: they go by the timer's steps of up to 10 ms."""
KEPT = {"snapshot.num-retained.min": "1", "snapshot.num-retained.max": "100000"}
OPTIONS = {"bucket": "1", **KEPT}


def rows(seed: int, count: int = 20_000) -> pa.Table:
    """Rows that do not compress."""
    values = np.random.default_rng(seed).random(count)
    return pa.table({"id": np.arange(count), "x": values}, schema=SCHEMA)


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    """A small file system of its own, where that may be had."""
    folder = tmp_path / "disk"
    folder.mkdir()
    mount = shutil.which("mount")
    command = [mount or "mount", "-t", "tmpfs", "-o", f"size={DISK_BYTES}", "tmpfs", str(folder)]
    if mount is None or subprocess.run(command, capture_output=True, check=False).returncode:
        pytest.skip("only root may mount a file system, and not everywhere")
    try:
        yield folder
    finally:
        subprocess.run(["umount", "-l", str(folder)], check=True)


def fill(folder: Path) -> None:
    """Leave no free block."""
    with (folder / "filler").open("wb", buffering=0) as file, pytest.raises(OSError, match="No space"):
        file.writelines(os.urandom(4096) for _ in range(DISK_BYTES // 4096 + 1))


def free_bytes(folder: Path) -> int:
    """What the file system has left."""
    state = os.statvfs(folder)
    return state.f_bavail * state.f_frsize


def make(folder: Path) -> Lake:
    """A lake with a table of many versions on a disk that is full."""
    lake = Lake.open(open_store(str(folder / "lake"), create=True))
    table = lake.create_table("t", SCHEMA, primary_keys=["id"], options=OPTIONS)
    for seed in range(6):
        table.upsert(rows(seed))
        table.compact(full=True)
        table.create_tag(f"tag{seed}")
    fill(folder)
    with pytest.raises((Unavailable, OutcomeUnknown), match="disk is full"):
        table.upsert(rows(99))
    return lake


def drop_tags(lake: Lake) -> None:
    """Delete all tags but one, then expire."""
    table = lake.table("t")
    for seed in range(5):
        table.delete_tag(f"tag{seed}")
    table.expire(retain_max=1, retain_min=1)


FREEING: dict[str, Callable[[Lake], object]] = {
    "tags and expiry": drop_tags,
    "rollback": lambda lake: lake.table("t").rollback_to("tag0"),
    "drop": lambda lake: lake.drop_table("t", force=True),
}


@pytest.mark.parametrize("name", FREEING)
def test_a_full_disk_is_freed(disk: Path, name: str) -> None:
    """Deleting works on a full disk, gives space back, restores the reserve, and loses nothing that stays."""
    lake = make(disk)
    assert free_bytes(disk) < 8192
    FREEING[name](lake)
    assert free_bytes(disk) > 500_000
    assert (disk / "lake" / RESERVE_PATH).stat().st_size == RESERVE_BYTES
    if name != "drop":
        tag = "tag0" if name == "rollback" else "tag5"
        expected = rows(int(tag[-1]))
        assert lake.table("t").read(version=tag).sort_by("id").equals(expected)
        assert check_lake(lake).error_count == 0
        lake.table("t").upsert(rows(100, 10))


def test_files_that_nothing_references_are_deleted_on_a_full_disk(disk: Path) -> None:
    """A collection of one table asks its store for the time, with an object that finds space too."""
    lake = Lake.open(open_store(str(disk / "lake"), create=True))
    table = lake.create_table("t", SCHEMA, options=KEPT)
    table.append(rows(1))
    (live,) = (disk / "lake").rglob("bucket-0/*.parquet")
    live.with_name("data-of-a-writer-that-died-0.parquet").write_bytes(bytes(1 << 20))
    fill(disk)
    assert table.collect(grace_ms=0).deleted_count == 1
    assert free_bytes(disk) > 500_000
    assert table.read().num_rows == 20_000


def test_an_expiry_whose_plan_is_too_large_goes_in_steps(disk: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With space for the plan of some snapshots only, those expire; calling again frees the rest."""
    lake = Lake.open(open_store(str(disk / "lake"), create=True))
    table = lake.create_table("t", SCHEMA, options=KEPT)
    for seed in range(40):
        table.overwrite(rows(seed, 2_000))
    (disk / "lake" / RESERVE_PATH).write_bytes(bytes(20 << 10))
    fill(disk)
    ids = [snapshot.id for snapshot in table.snapshots()]
    for _ in range(10):
        table.expire(retain_max=1, retain_min=1)
    assert len([snapshot.id for snapshot in table.snapshots()]) == 1
    assert len(ids) == 40
    assert table.read().sort_by("id").equals(rows(39, 2_000))


def test_databases_are_collected_on_a_full_disk(disk: Path) -> None:
    """A database's collector writes manifests; these find space too, and a clean database is left."""
    lake = Lake.open(open_store(str(disk / "lake"), create=True))
    with lake.database("d").open(options=DatabaseOptions(background=False)) as db:
        for _ in range(4):
            for key in range(100):
                db.put(b"%d" % key, os.urandom(10_000))
            db.flush(memtable=True)
    lake.database("d").compact(full=True)
    fill(disk)
    before = free_bytes(disk)
    report = lake.database("d").collect(CollectorOptions(grace=timedelta(0)))
    assert report.deleted_count
    assert free_bytes(disk) > before + 500_000
    with lake.database("d").reader() as reader:
        assert len(list(reader.scan())) == 100


def fill_database(folder: Path, place: str, *, lake: bool) -> DatabaseLocation:
    """A database of four files and one that replaces them, on a disk that is full then; by its own path."""
    if lake:
        Lake.open(open_store(str(folder / "lake"), create=True)).database(place).open().close()
        path = next(item.parent for item in (folder / "lake").rglob("lease.json"))
    else:
        path = folder / place
    location = DatabaseLocation.at(str(path))
    with Database.open(location, options=DatabaseOptions(background=False)) as db:
        for _ in range(4):
            for key in range(100):
                db.put(b"%d" % key, os.urandom(10_000), await_durable=False)
            db.flush(memtable=True)
    DatabaseAdmin(location).compact(full=True)
    fill(folder)
    with pytest.raises((Unavailable, OutcomeUnknown), match="disk is full"):
        DatabaseAdmin(location).create_checkpoint()
    return location


@pytest.mark.parametrize("lake", [True, False])
def test_a_database_by_its_own_path_is_collected_on_a_full_disk(disk: Path, lake: bool) -> None:
    """In a lake it gives up the lake's reserve, elsewhere its own, and has it again afterwards."""
    location = fill_database(disk, "d", lake=lake)
    before = free_bytes(disk)
    assert DatabaseAdmin(location).collect(CollectorOptions(grace=timedelta(0))).deleted_count
    assert free_bytes(disk) > before + 500_000
    with DatabaseAdmin(location).reader() as reader:
        assert len(list(reader.scan())) == 100
    mine = location.url.rpartition("/")[2]
    reserves = {path.parent.parent.name: path.stat().st_size for path in disk.rglob(RESERVE_PATH)}
    assert reserves == ({"lake": RESERVE_BYTES} if lake else {}) | {mine: DATABASE_RESERVE_BYTES}


@pytest.mark.parametrize("lake", [True, False])
@pytest.mark.parametrize("soft", [True, False])
def test_a_database_by_its_own_path_is_destroyed_on_a_full_disk(disk: Path, lake: bool, soft: bool) -> None:
    """At once, or softly and by a collection; no reserve of its own is left, and another database has room there.

    The stamp of a soft destruction takes the lake's reserve and frees nothing: what is left of it is the reserve again.
    """
    location = fill_database(disk, "d", lake=lake)
    before = free_bytes(disk)
    admin = DatabaseAdmin(location)
    admin.destroy(soft=soft, take_over=True)
    if soft:
        pause(MODIFICATION_TIME_STEP_SECONDS)  # a grace is over when our clock and the disk's say so
        admin.collect(CollectorOptions(grace=timedelta(0), destroyed_grace=timedelta(0)))
    assert free_bytes(disk) > before + 1_000_000
    assert [path.parent.parent.name for path in disk.rglob(RESERVE_PATH)] == (["lake"] if lake else [])
    with pytest.raises(InvalidRequest, match="destroyed"):
        Database.open(location)
    with Database.open(DatabaseLocation.at(str(disk / "other"))) as db:
        db.put(b"k", b"v")


@pytest.mark.parametrize("lake", [True, False])
def test_a_reader_reads_on_a_full_disk(disk: Path, lake: bool) -> None:
    """It opens without a checkpoint, for which there is no room, and makes one as soon as there is."""
    location = fill_database(disk, "d", lake=lake)
    with DatabaseReader.open(location, options=ReaderOptions(background=False)) as reader:
        assert reader.checkpoint is None
        assert len(list(reader.scan())) == 100
        assert reader.get(b"7") is not None
        reader.poll_once()
        assert reader.checkpoint is None
        (disk / "filler").unlink()
        reader.poll_once()
        assert reader.checkpoint is not None
        DatabaseAdmin(location).collect(CollectorOptions(grace=timedelta(0)))
        assert len(list(reader.scan())) == 100


def fill_repository(folder: Path) -> str:
    """A repository with an object that stays, and a megabyte that is staged; the lake."""
    lake = str(folder / "lake")
    with repo.open(f"{lake}/analytics.repo", options=repo.RepositoryOptions(background=False)) as analytics:
        main = analytics.branch("main")
        main.put("kept", b"kept")
        main.commit("what stays")
        for number in range(20):
            main.put(f"junk/{number}", os.urandom(50_000))
    return lake


def test_a_repository_without_an_owner_is_freed_on_a_full_disk(disk: Path) -> None:
    """Becoming its owner writes, too: commands that give up objects or collect them have the reserve for that."""
    lake = fill_repository(disk)
    fill(disk)
    assert run(["repo", "put", lake, "analytics", "main", "more", str(disk / "filler")]) == exits.UNAVAILABLE
    assert run(["repo", "reset", lake, "analytics", "main", "--yes"]) == 0
    assert run(["repo", "collect", lake, "analytics", "--grace", "0s", "--yes"]) == 0
    assert free_bytes(disk) > 500_000
    with repo.open(f"{lake}/analytics.repo") as analytics:
        assert analytics.branch("main").get("kept") == b"kept"
    assert run(["collect", lake, "--yes"]) == 0
    assert list(disk.rglob(RESERVE_PATH))


def test_a_repository_is_dropped_on_a_full_disk(disk: Path) -> None:
    """It is given up, and a collection of the lake runs; that gets what it held a day later."""
    lake = fill_repository(disk)
    fill(disk)
    assert run(["repo", "drop", lake, "analytics", "--yes"]) == 0
    assert run(["collect", lake, "--yes"]) == 0
    assert run(["repo", "create", lake, "another"]) == 0


def test_a_server_starts_on_a_full_disk(disk: Path) -> None:
    """Again and again, and reads; a collection still frees the disk.

    A server that ends there may find no room to give up its lease, and says so.
    """
    lake = fill_repository(disk)
    server = start_server(lake, options=ServerOptions())
    server.stop()
    access = repo.Access(access_key=server.started.access_key, secret=server.started.secret)
    fill(disk)
    for starts_left in range(2, -1, -1):
        server = start_server(lake, options=ServerOptions(take_over=True))
        try:
            with repo.open(f"{server.started.endpoint}/analytics", create=False, access=access) as analytics:
                assert analytics.branch("main").get("kept") == b"kept"
                if not starts_left:
                    analytics.branch("main").reset(prefix="junk/")
                    assert analytics.collect(repo.CollectionOptions(grace=timedelta(0))).deleted_count >= 20
        finally:
            with suppress(Unavailable):
                server.stop()
    assert free_bytes(disk) > 500_000


@pytest.mark.parametrize("key_recheck_s", [0, 600], ids=["key read again", "key known"])
def test_a_served_repository_is_freed_on_a_full_disk(disk: Path, key_recheck_s: float) -> None:
    """A change whose outcome is unknown keeps reads waiting, those of keys too, and not what frees space."""
    lake = fill_repository(disk)
    server = start_server(lake, options=ServerOptions(key_recheck_s=key_recheck_s))
    started = server.started
    try:
        access = repo.Access(access_key=started.access_key, secret=started.secret)
        with repo.open(f"{started.endpoint}/analytics", create=False, access=access) as analytics:
            main = analytics.branch("main")
            fill(disk)
            for _ in range(2):
                with pytest.raises((Unavailable, OutcomeUnknown), match="disk is full"):
                    main.delete("kept")
            main.reset(prefix="junk/")
            assert analytics.collect(repo.CollectionOptions(grace=timedelta(0))).deleted_count >= 20
            assert free_bytes(disk) > 500_000
            main.put("kept", b"again")
            assert main.get("kept") == b"again"
    finally:
        server.stop()


@pytest.mark.parametrize(
    "request_of",
    [
        ("DELETE", "branches/other", None),
        pytest.param(("DELETE", "tags/old", None), marks=pytest.mark.long),
        pytest.param(("PUT", "branches/main", {"type": "reset"}), marks=pytest.mark.long),
        ("PUT", "settings/gc_rules", {"default_retention_days": 1, "branches": []}),
    ],
    ids=["branch", "tag", "reset", "retention"],
)
def test_requests_of_lakefs_that_give_up_objects_work_on_a_full_disk(
    disk: Path, request_of: tuple[str, str, dict[str, Any] | None]
) -> None:
    """Also after a change whose outcome is unknown: looks at key and repository, and the change, have the reserve."""
    lake = fill_repository(disk)
    with repo.open(f"{lake}/analytics.repo", options=repo.RepositoryOptions(background=False)) as analytics:
        analytics.create_branch("other")
        analytics.create_tag("old")
    server = start_server(lake, options=ServerOptions(key_recheck_s=0))
    started = server.started
    try:
        client = LakefsClient(started.endpoint, started.access_key, started.secret)
        fill(disk)
        for _ in range(2):
            with pytest.raises(AssertionError, match="503"):
                client.send("DELETE", ":/branches/main/objects", path="kept")
        method, place, body = request_of
        client.send(method, f":/{place}", body)
    finally:
        server.stop()


def test_only_deletions_give_the_reserve_up(tmp_path: Path) -> None:
    """An ordinary write on a full disk fails and leaves the reserve; so does a deletion's when there is none."""
    lake = Lake.open(open_store(str(tmp_path / "lake"), create=True))
    driver = lake.store._driver  # type: ignore[attr-defined]
    assert not give_up_reserve(driver, "t/snapshot/1")
    with freeing_space():
        assert give_up_reserve(driver, "t/snapshot/1")
        assert not give_up_reserve(driver, "t/snapshot/1")
        assert not (tmp_path / "lake" / RESERVE_PATH).exists()
    assert (tmp_path / "lake" / RESERVE_PATH).stat().st_size == RESERVE_BYTES
    assert "held back" in lake.why(RESERVE_PATH).sentence
