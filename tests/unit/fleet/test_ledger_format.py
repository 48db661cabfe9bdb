"""The bytes of the ledger's records: a golden file of each kind."""

from __future__ import annotations

import pathlib
from types import ModuleType
from typing import Any

import msgspec
import pytest

from lakebed.errors import UnsupportedFormat
from lakebed.fleet import layout
from lakebed.fleet.ledger import Ledger
from worlds.memory_key_value import MemoryKeyValue
from worlds.modules import load_module

FOLDER = pathlib.Path(__file__).parents[2] / "golden" / "fleet"


@pytest.fixture(scope="module")
def written() -> ModuleType:
    """The script that wrote the file, for what it put into it."""
    return load_module(FOLDER / "write_ledger.py")


def golden() -> dict[bytes, bytes]:
    """Keys and values of the file."""
    return dict(line.split(b" ", 1) for line in (FOLDER / "ledger.txt").read_bytes().splitlines())


def test_records_are_written_as_the_same_bytes(written: ModuleType) -> None:
    """Every field has the name and the place that it had."""
    assert written.lines() == (FOLDER / "ledger.txt").read_bytes()


def test_records_are_read_as_what_they_were(written: ModuleType) -> None:
    """Through the ledger, from their keys."""
    key_value = MemoryKeyValue()
    key_value.write(list(golden().items()))
    ledger, records = Ledger(key_value), dict[bytes, Any](written.RECORDS)
    assert ledger.tenant("acme") == records[b"tenant/acme"]
    assert ledger.tenant("new") == records[b"tenant/new"]
    assert ledger.node("a") == records[b"node/a"]
    assert ledger.finished("acme", 23) == records[layout.transaction_key("acme", 23)]
    assert list(ledger.tasks()) == [records[layout.collect_key("acme", txn)] for txn in (20, 23)]
    assert ledger.floor("old") == records[b"gone/old"]
    assert ledger.identity("another") == records[b"ledger"].id
    assert ledger.events(limit=9) == [("1700000000000-0000002a", records[b"event/1700000000000-0000002a"])]


def test_a_member_of_a_newer_format_is_refused() -> None:
    """What is not known is not dropped by the next write."""
    body = golden()[b"tenant/new"]
    newer = msgspec.json.encode({**msgspec.json.decode(body), "is_frozen": True})
    key_value = MemoryKeyValue()
    key_value.set(b"tenant/new", newer)
    with pytest.raises(UnsupportedFormat, match=r"'is_frozen'.*upgrade lakebed"):
        Ledger(key_value).tenant("new")
