"""A folder that is renamed, removed or replaced under an open database: no write is acknowledged that is not found."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest

import lakebed
from lakebed import kv
from lakebed.errors import Corruption, LakebedError, OutcomeUnknown, Unavailable
from worlds.errors import raises


def rename(folder: Path) -> None:
    folder.rename(folder.with_name("elsewhere"))


def remove(folder: Path) -> None:
    shutil.rmtree(folder)


def replace(folder: Path) -> None:
    rename(folder)
    folder.mkdir()


def restore_a_copy(folder: Path) -> None:
    rename(folder)
    shutil.copytree(folder.with_name("elsewhere"), folder)


@pytest.mark.parametrize("move", [rename, remove, replace, restore_a_copy])
@pytest.mark.parametrize("in_lake", [False, True])
def test_a_write_to_a_folder_that_is_gone_is_not_acknowledged(
    tmp_path: Path, *, in_lake: bool, move: Callable[[Path], None]
) -> None:
    """The folder was made anew under the old name, and the rows were never seen again."""
    folder = tmp_path / ("orders.kv" if in_lake else "orders")
    database = lakebed.open(tmp_path).database("orders").open() if in_lake else kv.open(folder)
    database.put(b"before", b"v")
    move(folder)
    before = sorted(folder.rglob("*")) if folder.exists() else None
    for change in (
        lambda: database.put(b"k", b"v"),
        lambda: database.flush(memtable=True),
        lambda: database.create_checkpoint(),
        database.close,
    ):
        with raises(OutcomeUnknown, "folder_moved", match="move it back"):
            change()
    assert (sorted(folder.rglob("*")) if folder.exists() else None) == before
    if move is not remove:
        with kv.open(folder.with_name("elsewhere"), take_over=True) as moved:
            assert dict(moved.scan()) == {b"before": b"v"}


def test_a_database_whose_folder_comes_back_goes_on(tmp_path: Path) -> None:
    """What could not be written waits, and becomes durable with the next write."""
    folder = tmp_path / "orders"
    with kv.open(folder) as database:
        rename(folder)
        with raises(OutcomeUnknown, "folder_moved"):
            database.put(b"waits", b"v")
        folder.with_name("elsewhere").rename(folder)
        database.put(b"after", b"v")
    with kv.open(folder) as database:
        assert dict(database.scan()) == {b"waits": b"v", b"after": b"v"}


def test_a_lake_that_is_renamed_is_not_made_anew(tmp_path: Path) -> None:
    """What makes a store in it says so."""
    lake = lakebed.open(tmp_path / "lake")
    rename(tmp_path / "lake")
    with raises(Unavailable, "folder_moved", match="lake is not there any more"):
        lake.database("orders").open()
    assert not (tmp_path / "lake").exists()


def test_a_closed_database_and_a_reader_hold_no_folder(tmp_path: Path) -> None:
    """A process may open many, one after the other, and keep what it has closed."""
    folder = tmp_path / "orders"

    def count() -> int:
        return len([name for name in os.listdir("/proc/self/fd") if os.path.islink(f"/proc/self/fd/{name}")])

    before, kept = count(), []
    for _ in range(20):
        database = kv.open(folder)
        database.put(b"k", b"v")
        reader = kv.open_reader(folder)
        assert reader.get(b"k") == b"v"
        reader.close()
        database.close()
        kept += [database, reader]
        remove(folder)
    assert count() < before + 10


def test_a_reader_does_not_make_the_folder_anew(tmp_path: Path) -> None:
    """Its checkpoint would be all that is there."""
    folder = tmp_path / "orders"
    with kv.open(folder) as database:
        database.put(b"k", b"v")
        with kv.open_reader(folder) as reader:
            rename(folder)
            for _ in range(3):
                with suppress(LakebedError):
                    reader.poll_once()
            assert not folder.exists()
            folder.with_name("elsewhere").rename(folder)
            assert reader.get(b"k") == b"v"


def test_manifests_that_are_older_than_the_log_are_said_to_be(tmp_path: Path) -> None:
    """A backup that was restored in parts: a reader said that the database moves too fast, for ever."""
    folder, kept = tmp_path / "orders", tmp_path / "kept"
    with kv.open(folder) as database:
        database.put(b"k", b"1")
    shutil.copytree(folder / "manifest", kept)
    for value in (b"2", b"3"):
        with kv.open(folder) as database:
            database.put(b"k", value)
    shutil.rmtree(folder / "manifest")
    shutil.copytree(kept, folder / "manifest")
    for _ in range(2):
        with raises(Corruption, "manifests_older", match="of epoch 1, and wal/.*wal is of epoch 2"):
            kv.open_reader(folder)
    with kv.open(folder) as database:
        assert database.get(b"k") == b"3"
        database.flush(memtable=True)
        with kv.open_reader(folder) as reader:
            assert reader.get(b"k") == b"3"
