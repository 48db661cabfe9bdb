"""Writes the golden files of databases: one object of every format. Run once for each release that adds a format."""

from __future__ import annotations

import pathlib

import msgspec

from lakebed.kv.manifest import encode_manifest
from lakebed.kv.model import Checkpoint, CloneSource, ExternalDatabase, Job, Manifest, Owner
from lakebed.kv.wal_record import encode_fence, encode_record
from lakebed.lsm.memtable import Memtable
from lakebed.lsm.model import FileMeta, Run

FOLDER = pathlib.Path(__file__).parent
FILE = FileMeta(
    id="01HF7YAT00000000000000000A",
    size_bytes=1234,
    tail_offset=1000,
    row_count=3,
    first_key=b"\x00first",
    last_key=b"\xfflast",
    min_sequence=1,
    max_sequence=40,
    tombstone_count=1,
    merge_count=1,
    expiring_count=1,
)
FIRST = Manifest(
    manifest_id=1,
    write_id="00000000-0000-4000-8000-000000000001",
    created_at_ms=1_700_000_000_000,
    initialized=True,
    writer_epoch=0,
    compactor_epoch=0,
    replay_after_wal_id=0,
    wal_id_last_seen=0,
    last_sequence=0,
    newest_l0_id="01HF7YAT000000000000000000",
    content_since=1,
)
FULL = msgspec.structs.replace(
    FIRST,
    manifest_id=7,
    write_id="00000000-0000-4000-8000-000000000007",
    writer_epoch=3,
    compactor_epoch=2,
    replay_after_wal_id=5,
    wal_id_last_seen=9,
    last_sequence=40,
    content_since=6,
    readable_since=4,
    destroyed_at_ms=1_700_000_000_999,
    l0=(FILE,),
    runs=(Run("01HF7YAT00000000000000000B", (msgspec.structs.replace(FILE, id="01HF7YAT00000000000000000C"),)),),
    jobs=(Job("00000000-0000-4000-8000-00000000000a", "load", "01HF7YAT00000000000000000D", 3, 1_700_000_000_001),),
    checkpoints=(
        Checkpoint("00000000-0000-4000-8000-00000000000b", 6, 1_700_000_000_002, Owner("user"), None, "nightly ✓"),
        Checkpoint("00000000-0000-4000-8000-00000000000c", 7, 1_700_000_000_003, Owner("writer", epoch=3)),
        Checkpoint(
            "00000000-0000-4000-8000-00000000000d",
            5,
            1_700_000_000_004,
            Owner("reader", host="host", pid=7),
            1_700_000_600_004,
        ),
        Checkpoint(
            "00000000-0000-4000-8000-00000000000e", 5, 1_700_000_000_005, Owner("clone", url="s3://bucket/clone")
        ),
    ),
    external_databases=(
        ExternalDatabase(
            "s3://bucket/parent",
            "00000000-0000-4000-8000-00000000000f",
            "00000000-0000-4000-8000-000000000010",
            ("01HF7YAT00000000000000000C",),
        ),
    ),
    source=CloneSource("s3://bucket/parent", "00000000-0000-4000-8000-00000000000f"),
    merge_operator="add_int64",
    wal_enabled=False,
    previous_write_ids=("00000000-0000-4000-8000-000000000006", "00000000-0000-4000-8000-000000000005"),
)


def rows() -> Memtable:
    """A row of every kind, from sequence 5 on."""
    table = Memtable(5)
    table.put(b"a", b"1")
    table.delete(b"b")
    table.merge(b"c", b"2")
    table.put(b"d", b"", 1_700_000_000_000)
    return table


def main() -> None:
    """Write every file that is not there yet."""
    write_id = "01234567-89ab-4def-8123-456789abcdef"
    bodies = {
        "first.manifest": encode_manifest(FIRST),
        "full.manifest": encode_manifest(FULL),
        "rows.wal": encode_record(rows().log(0, 4), id=7, epoch=3, write_id=write_id),
        "fence.wal": encode_fence(id=8, epoch=4, write_id=write_id),
        "lease.json": (
            b'{"format":1,"endpoint":"http://host:1","host":"host","pid":7,"boot":"boot/1","epoch":3,'
            b'"taken_at_ms":1700000000000,"expires_at_ms":1700000030000}\n'
        ),
    }
    for name, body in bodies.items():
        if not (FOLDER / name).exists():
            (FOLDER / name).write_bytes(body)


if __name__ == "__main__":
    main()
