"""Every later version opens the files of every released format, and finds the same in them."""

from __future__ import annotations

import pathlib
import random
import uuid
from types import ModuleType

import pytest

from lakebed.kv.database_location import DatabaseLocation
from lakebed.kv.lease import Process, read_lease
from lakebed.kv.manifest import decode_manifest, encode_manifest
from lakebed.kv.wal_record import FENCE_BYTES, decode_record
from lakebed.objects import open_store
from lakebed.runtime import Environment
from lakebed.testing import ManualClock
from worlds.modules import load_module

FOLDER = pathlib.Path(__file__).parents[2] / "golden" / "kv"


@pytest.fixture(scope="module")
def written() -> ModuleType:
    """The script that wrote the files, for what it put into them."""
    return load_module(FOLDER / "write.py")


@pytest.mark.parametrize(("name", "constant"), [("first.manifest", "FIRST"), ("full.manifest", "FULL")])
def test_manifests_of_format_1(written: ModuleType, name: str, constant: str) -> None:
    """A manifest of format 1 is read as what it was, and written as the same bytes."""
    body = (FOLDER / name).read_bytes()
    decoded = decode_manifest(body, path=name)
    assert decoded.manifest == getattr(written, constant)
    assert encode_manifest(decoded.manifest) == body


def test_log_records_of_version_1(written: ModuleType) -> None:
    """Rows of every kind, and a fence."""
    record = decode_record((FOLDER / "rows.wal").read_bytes(), path="rows.wal", id=7)
    assert (record.epoch, record.first_sequence, record.last_sequence) == (3, 5, 8)
    assert record.write_id == "01234567-89ab-4def-8123-456789abcdef"
    assert record.rows == written.rows().log(0, 4)
    body = (FOLDER / "fence.wal").read_bytes()
    fence = decode_record(body, path="fence.wal", id=8)
    assert (fence.is_fence, fence.epoch, len(body)) == (True, 4, FENCE_BYTES)


def test_leases_of_format_1() -> None:
    """A lease of format 1 says whose the database is."""
    store = open_store(f"memory://{uuid.uuid4().hex}/db")
    store.put("lease.json", (FOLDER / "lease.json").read_bytes())
    place = DatabaseLocation(store, Environment(clock=ManualClock(), rng=random.Random(1)), open_store)
    owner = read_lease(place, process=Process("elsewhere", 1, None, None, lambda pid: True)).owner
    assert owner is not None
    assert (owner.host, owner.pid, owner.epoch, owner.endpoint) == ("host", 7, 3, "http://host:1")
