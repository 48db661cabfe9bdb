"""A storage belongs to one ledger: another one over it does not start, and a lost reply does not lock the owner out."""

from __future__ import annotations

import shutil
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from datetime import timedelta
from pathlib import Path

import msgspec
import pytest

import lakebed
from lakebed.errors import Conflict, Corruption, LakebedError, UnsupportedFormat
from lakebed.fleet import layout
from lakebed.fleet.control.claim import check_storage, claim_storage
from lakebed.fleet.control.serve import ControlSettings, start_control
from lakebed.fleet.ledger import Ledger
from lakebed.fleet.model import Floor, NodeRecord
from lakebed.fleet.ports import NodePort
from lakebed.key_value.open import open_key_value
from lakebed.objects import open_store
from lakebed.objects.port import ObjectStore
from lakebed.runtime import Environment
from lakebed.testing import Fault, FaultyStore
from worlds.errors import raises
from worlds.fleet_control import CountedKeyValue
from worlds.fleet_in_process import FleetInProcess
from worlds.memory_key_value import MemoryKeyValue, MemorySpace


@pytest.fixture
def storage(tmp_path: Path) -> ObjectStore:
    return open_store(str(tmp_path / "lake"))


def no_node(record: NodeRecord) -> NodePort:
    raise AssertionError(f"{record} is not called")


def claim(storage: ObjectStore, space: MemorySpace) -> None:
    claim_storage(storage, Ledger(MemoryKeyValue(space)), environment=Environment())


def test_a_second_ledger_is_refused_and_the_first_is_not(storage: ObjectStore) -> None:
    """Also when the object is made again for the first one."""
    first, second = MemorySpace(), MemorySpace()
    claim(storage, first)
    claim(storage, first)
    with raises(Conflict, "storage_of_another_ledger", match="belongs to a fleet with another ledger"):
        claim(storage, second)
    storage.delete([layout.OWNER_PATH])
    claim(storage, first)
    with pytest.raises(Conflict):
        claim(storage, second)


def test_of_ledgers_that_race_one_has_the_storage(storage: ObjectStore) -> None:
    """Several control planes of one ledger are the same owner."""
    spaces = [MemorySpace() for _ in range(4)]
    start = threading.Barrier(12)

    def race(number: int) -> int | None:
        start.wait()
        try:
            claim(storage, spaces[number % 4])
        except Conflict:
            return None
        return number % 4

    with ThreadPoolExecutor(12) as pool:
        owners = [owner for owner in pool.map(race, range(12)) if owner is not None]
    assert len(set(owners)) == 1
    assert len(owners) == 3


@pytest.mark.parametrize("fault", [Fault.LOST_REQUEST, Fault.LOST_REPLY, Fault.ERROR_BEFORE])
@pytest.mark.parametrize("at", range(3))
def test_a_lost_call_of_the_storage_does_not_lock_the_owner_out(storage: ObjectStore, fault: Fault, at: int) -> None:
    """The first claim may fail; it is repeated, and another ledger is refused."""
    space = MemorySpace()
    with suppress(LakebedError):
        claim(FaultyStore(storage, faults={at: fault}), space)
    claim(storage, space)
    with pytest.raises(Conflict):
        claim(storage, MemorySpace())


@pytest.mark.parametrize("happens", [True, False])
@pytest.mark.parametrize("at", range(3))
def test_a_lost_call_of_the_ledger_does_not_lock_the_owner_out(storage: ObjectStore, at: int, happens: bool) -> None:
    """The ledger has one id."""
    space = MemorySpace()
    key_value = CountedKeyValue(MemoryKeyValue(space))
    key_value.lost_at, key_value.happens = at, happens
    with suppress(LakebedError):
        claim_storage(storage, Ledger(key_value), environment=Environment())
    claim(storage, space)
    with pytest.raises(Conflict):
        claim(storage, MemorySpace())


def test_an_object_that_names_no_ledger_is_not_overwritten(storage: ObjectStore) -> None:
    """Damaged, or of a newer version."""
    for body, error in ((b"{", Corruption), (b'{"format": 2, "ledger": "x"}', UnsupportedFormat)):
        storage.put(layout.OWNER_PATH, body)
        with pytest.raises(error, match=r"owner\.json"):
            claim(storage, MemorySpace())
        assert bytes(storage.get(layout.OWNER_PATH)) == body


def test_a_control_plane_whose_ledger_was_lost_does_not_start(tmp_path: Path) -> None:
    """With the ledger back it starts."""
    lake = tmp_path / "lake"
    settings = ControlSettings(storage_url=str(lake), nodes=no_node, durable=False)
    with start_control(settings):
        pass
    owner = msgspec.json.decode((lake / layout.OWNER_PATH).read_bytes())
    assert owner["format"] == 1
    shutil.move(lake / layout.LEDGER_FOLDER, tmp_path / "kept")
    with pytest.raises(Conflict, match=owner["ledger"]):
        start_control(settings)
    shutil.rmtree(lake / layout.LEDGER_FOLDER)
    shutil.move(tmp_path / "kept", lake / layout.LEDGER_FOLDER)
    with start_control(settings):
        pass


def test_a_ledger_with_tenants_is_not_taken_for_a_storage_that_has_nothing_of_them(storage: ObjectStore) -> None:
    """A new, empty storage is refused, and so is one with a tenant of the same name; their own one is not."""
    fleet = FleetInProcess(nodes=1)
    tenant = fleet.tenant("orders")
    tenant.create()
    tenant.main.put(b"k", b"v")
    tenant.main.checkpoint()
    manifest = fleet.ledger.tenant("orders", fresh=True).manifest
    assert manifest is not None
    for others in ((), (manifest.path,)):
        for path in others:
            storage.put(path, b"another fleet's")
        with raises(Conflict, "storage_without_tenants", match=r"manifest\."):
            claim_storage(storage, fleet.ledger, environment=Environment())
        with raises(Conflict, "storage_without_tenants"):
            check_storage(storage, fleet.ledger)
    fleet.storage.delete([layout.OWNER_PATH])
    check_storage(fleet.storage, fleet.ledger)
    claim_storage(fleet.storage, fleet.ledger, environment=Environment())


def test_a_collection_by_another_fleets_ledger_deletes_nothing(tmp_path: Path) -> None:
    """There a tenant of the same name was dropped: all files of the one that lives here were taken for its remains."""
    lake = tmp_path / "lake"
    storage = open_store(str(lake))
    claim(storage, MemorySpace())
    path = layout.manifest_path("orders", 1, 1)
    storage.put(path, b"of the fleet that owns the storage")
    other = Ledger(open_key_value(str(lake / layout.LEDGER_FOLDER), environment=Environment()))
    other.key_value.write([(layout.floor_key("orders"), msgspec.json.encode(Floor(9, 9)))])
    other.close()
    for dry_run in (True, False):
        with raises(Conflict, "storage_of_another_ledger", match="was never this fleet's"):
            lakebed.open(lake).collect_tenants(dry_run=dry_run, grace=timedelta(0))
    assert list(storage.list("orders.tenant/"))
