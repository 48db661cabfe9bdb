"""Writes ``ledger.txt``: a key and a value of each kind of record in the ledger of a fleet, one line each.

Run it only for a new format: ``python tests/golden/fleet/write_ledger.py``.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

import msgspec

from lakebed.fleet import layout
from lakebed.fleet.model import (
    Attachment,
    AttachmentMode,
    CollectTask,
    Floor,
    Hold,
    LedgerId,
    ManifestRef,
    NodeRecord,
    Policy,
    Progress,
    Relocation,
    TenantRecord,
    Transaction,
    TransactionState,
)
from lakebed.fleet.ports import Event

FILE: Final = Path(__file__).with_name("ledger.txt")
MANIFEST: Final = ManifestRef("acme.tenant/0000000000000023/manifest.1", "0123456789abcdef" * 2, 4_096)
OPEN: Final = Transaction(24, 23, "b", 8, TransactionState.OPEN, 1_700_000_000_000, local_id="disk-b")

RECORDS: Final[list[tuple[bytes, Any]]] = [
    (layout.tenant_key("new"), TenantRecord("new", next_txn=1, next_generation=1)),
    (
        layout.tenant_key("acme"),
        TenantRecord(
            "acme",
            next_txn=26,
            next_generation=10,
            committed=23,
            manifest=MANIFEST,
            deadlist="acme.tenant/0000000000000023/deadlist.1",
            timelines={"main": Progress(96, 40), "p": Progress(70, 70, is_read_only=True)},
            names={"main": "main", "month-06": "p"},
            transactions=(
                Transaction(22, 21, "a", 7, TransactionState.REJECT_PENDING, 1_699_999_000_000, local_id="disk-a"),
                OPEN,
            ),
            attachments=(
                Attachment("b", 8, AttachmentMode.MULTI),
                Attachment("c", 9, AttachmentMode.MULTI),
                Attachment("d", 6, AttachmentMode.READER),
            ),
            preferred="b",
            relocation=Relocation("b", "c", 1_700_000_000_500, 1_700_000_005_500),
            holds=(Hold("reader:d:6", 21, 1_700_000_060_000),),
            policy=Policy(retain_rows=56, commit_bytes=1_048_576),
            created_ms=1_690_000_000_000,
            home="a",
        ),
    ),
    (
        layout.node_key("a"),
        NodeRecord("a", "http://127.0.0.1:8300", "run-1", "disk-a", 1_690_000_000_000, is_silent=True),
    ),
    (
        layout.transaction_key("acme", 23),
        Transaction(
            23,
            21,
            "b",
            8,
            TransactionState.COMMITTED,
            1_699_999_900_000,
            local_id="disk-b",
            manifest=MANIFEST,
            has_deadlist=True,
            ended_ms=1_700_000_000_000,
            main="main",
            main_lsn=96,
        ),
    ),
    (
        layout.collect_key("acme", 23),
        CollectTask(
            "acme",
            23,
            TransactionState.COMMITTED,
            since_ms=1_700_000_000_000,
            deadlist="acme.tenant/0000000000000023/deadlist.1",
            unneeded=("acme.tenant/0000000000000021/manifest.1",),
            timelines=("b1",),
        ),
    ),
    (
        layout.collect_key("acme", 20),
        CollectTask(
            "acme", 20, TransactionState.REJECT_ACKNOWLEDGED, since_ms=1_699_000_000_000, listed_ms=1_699_000_060_000
        ),
    ),
    (layout.floor_key("old"), Floor(41, 12)),
    (layout.LEDGER, LedgerId("0d9c8a52-4d0b-4f0a-9f5e-3a1c5b7d9e10")),
    (
        layout.event_key("1700000000000-0000002a"),
        Event(1_700_000_000_000, "node_silent", "a does not answer: its tenants are attached elsewhere.", node="a"),
    ),
]


def lines() -> bytes:
    """What the file holds."""
    return b"".join(key + b" " + msgspec.json.encode(value) + b"\n" for key, value in RECORDS)


if __name__ == "__main__":
    FILE.write_bytes(lines())
