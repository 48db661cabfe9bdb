"""The reserve of a disk: which puts it gives way to, and how large it is afterwards."""

from __future__ import annotations

import random
import uuid
from pathlib import Path
from typing import Any

import pytest

from lakebed.errors import Unavailable
from lakebed.objects import StoreLimits, open_store
from lakebed.objects.accounting import AccountedStore
from lakebed.objects.local import LocalDriver
from lakebed.objects.memory import MemoryDriver
from lakebed.objects.reserve import (
    DATABASE_RESERVE_BYTES,
    RESERVE_BYTES,
    RESERVE_PATH,
    drop_reserve,
    freeing_space,
    give_up_reserve,
    keep_reserve,
)
from lakebed.runtime import Environment
from lakebed.testing import ManualClock

ROOM_BYTES = 1000
"""What is free next to the reserve."""


class SmallDisk(MemoryDriver):
    """A driver whose objects have a bound in all."""

    def put(self, path: str, body: memoryview, **settings: Any) -> None:
        """PUT, if there is room."""
        used = sum(meta.size_bytes for meta in self._metas("", None) if meta.path != path)
        if used + len(body) > RESERVE_BYTES + ROOM_BYTES:
            raise Unavailable("the disk is full", kind="disk_full", path=path)
        super().put(path, body, **settings)


@pytest.fixture
def store() -> AccountedStore:
    """A disk with a reserve, and little room besides."""
    clock = ManualClock()
    driver = SmallDisk(uuid.uuid4().hex, prefix="", clock=clock)
    opened = AccountedStore(driver, environment=Environment(clock=clock, rng=random.Random(1)), limits=StoreLimits())
    opened.put(RESERVE_PATH, bytes(RESERVE_BYTES))
    return opened


def reserve_bytes(store: AccountedStore) -> int:
    """The size of the reserve; 0 when there is none."""
    return sum(meta.size_bytes for meta in store.list() if meta.path == RESERVE_PATH)


def test_a_write_that_frees_nothing_leaves_the_reserve(store: AccountedStore) -> None:
    """It fails, as on any full disk; so does one after a deletion."""
    for _ in range(2):
        with pytest.raises(Unavailable, match="full"):
            store.put("table/data", bytes(ROOM_BYTES + 1))
        assert reserve_bytes(store) == RESERVE_BYTES
        with freeing_space():
            store.put("table/plan", bytes(ROOM_BYTES))


@pytest.mark.parametrize("size_bytes", [ROOM_BYTES + 1, 200_000, 500_000, 700_000, 900_000])
def test_the_reserve_is_as_large_as_there_is_room(store: AccountedStore, size_bytes: int) -> None:
    """At least seven eighths of the room, and none where that is too little for a database."""
    with freeing_space():
        store.put("table/plan", bytes(size_bytes))
        assert reserve_bytes(store) == 0
    room_bytes = RESERVE_BYTES + ROOM_BYTES - size_bytes
    if room_bytes < DATABASE_RESERVE_BYTES:
        assert reserve_bytes(store) == 0
    else:
        assert room_bytes * 7 // 8 - 1 <= reserve_bytes(store) <= room_bytes


def test_the_reserve_is_whole_after_a_deletion_that_frees_enough(store: AccountedStore) -> None:
    """Also when another deletion is part of it: the outer one gives the reserve back."""
    with freeing_space():
        with freeing_space():
            store.put("table/plan", bytes(500_000))
        assert reserve_bytes(store) == 0
        store.delete(["table/plan"])
    assert reserve_bytes(store) == RESERVE_BYTES


def test_a_reserve_above_the_root_is_given_up(tmp_path: Path) -> None:
    """A database that is opened by a path of its own frees space with the reserve of its lake; it is put back there."""
    reserve = tmp_path / RESERVE_PATH
    reserve.parent.mkdir(exist_ok=True, parents=True)
    reserve.write_bytes(bytes(DATABASE_RESERVE_BYTES))
    (tmp_path / "databases" / "orders").mkdir(parents=True)
    driver = LocalDriver(str(tmp_path / "databases" / "orders"), environment=Environment(), folder_memory_count_max=1)
    with freeing_space():
        assert give_up_reserve(driver, "manifest/7")
        assert not reserve.exists()
    assert reserve.stat().st_size == DATABASE_RESERVE_BYTES


def test_the_nearest_reserve_is_given_up(store: AccountedStore) -> None:
    """That of a database before that of its lake, and both if one is not enough."""
    mine = f"database/{RESERVE_PATH}"
    store.put(RESERVE_PATH, bytes(RESERVE_BYTES - DATABASE_RESERVE_BYTES))
    store.put(mine, bytes(DATABASE_RESERVE_BYTES))
    with freeing_space():
        store.put("database/manifest/7", bytes(5000))
        assert {meta.path for meta in store.list()} == {"database/manifest/7", RESERVE_PATH}
        store.delete(["database/manifest/7"])
    assert {meta.path: meta.size_bytes for meta in store.list()} == {
        RESERVE_PATH: RESERVE_BYTES - DATABASE_RESERVE_BYTES,
        mine: DATABASE_RESERVE_BYTES,
    }


def test_a_reserve_that_another_process_made_meanwhile_is_no_error(store: AccountedStore) -> None:
    """The deletion ends as it would have, and the reserve is there."""
    with freeing_space():
        store.put("table/plan", bytes(ROOM_BYTES + 1))
        assert reserve_bytes(store) == 0
        store.delete(["table/plan"])
        store.put(RESERVE_PATH, bytes(DATABASE_RESERVE_BYTES))
    assert reserve_bytes(store) == RESERVE_BYTES


@pytest.mark.parametrize("size_bytes", [0, 1, 999, 1000])
def test_a_reserve_that_is_short_is_made_whole(tmp_path: Path, size_bytes: int) -> None:
    """On a local folder, and one that is whole is left as it is; dropped, it is gone."""
    opened = open_store(str(tmp_path), durable=False)
    reserve = tmp_path / RESERVE_PATH
    if size_bytes:
        opened.put(RESERVE_PATH, bytes(size_bytes))
    keep_reserve(opened, size_bytes=1000)
    assert reserve.stat().st_size == 1000
    assert (reserve.read_bytes() == bytes(1000)) == (size_bytes == 1000)
    drop_reserve(opened)
    assert not reserve.exists()
    keep_reserve(opened)
    assert reserve.stat().st_size == RESERVE_BYTES == 1_048_576


def test_what_is_not_a_disk_has_no_reserve(store: AccountedStore) -> None:
    """Memory and buckets never fill: nothing is written there, and nothing deleted."""
    store.delete([RESERVE_PATH])
    keep_reserve(store)
    assert reserve_bytes(store) == 0
    store.put(RESERVE_PATH, b"someone's")
    drop_reserve(store)
    assert reserve_bytes(store) == 9
