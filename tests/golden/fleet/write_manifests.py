"""Writes the golden manifests and deadlists of tenants. Run once for each release that adds a format."""

from __future__ import annotations

import pathlib

import msgspec

from lakebed.fleet.manifest import Deadlist, encode_deadlist, encode_manifest
from lakebed.fleet.model import LogMark, Manifest, TimelineIndex, first_manifest
from lakebed.lsm.model import FileMeta, FileSet, Run

FOLDER = pathlib.Path(__file__).parent
FILE = FileMeta(
    id="01HF7YAT00000000000000000A",
    size_bytes=1234,
    tail_offset=1000,
    row_count=3,
    first_key=b"\x00first",
    last_key=b"\xfflast",
    min_sequence=1,
    max_sequence=96,
    tombstone_count=1,
)
RUN_FILE = msgspec.structs.replace(FILE, id="01HF7YAT00000000000000000C", max_sequence=40)
CEILING = msgspec.structs.replace(FILE, through_sequence=70)
FIRST = first_manifest("acme", created_ms=1_700_000_000_000)
FULL = Manifest(
    tenant="acme",
    txn=23,
    base=21,
    timelines=(
        TimelineIndex(
            id="main",
            name="main",
            created_ms=1_700_000_000_000,
            lsn=96,
            cutoff=60,
            mark=LogMark(lsn=96, checksum="00ff00ff00ff00ff"),
            files=FileSet((FILE,), (Run("01HF7YAT00000000000000000B", (RUN_FILE,)),)),
            origins={"23/main": (FILE.id,), "7/main": (RUN_FILE.id,)},
        ),
        TimelineIndex(
            id="0123456789abcdef",
            name="nightly",
            created_ms=1_700_000_000_001,
            lsn=70,
            cutoff=60,
            mark=LogMark(lsn=70),
            parent="main",
            branch_lsn=70,
            files=FileSet((CEILING,), (Run("01HF7YAT00000000000000000B", (RUN_FILE,)),)),
            origins={"23/main": (FILE.id,), "7/main": (RUN_FILE.id,)},
        ),
        TimelineIndex(
            id="fedcba9876543210",
            name="pin",
            created_ms=1_700_000_000_002,
            lsn=70,
            cutoff=70,
            mark=LogMark(lsn=70),
            parent="main",
            branch_lsn=70,
            is_read_only=True,
            expires_ms=1_700_000_999_999,
            files=FileSet((CEILING,)),
            origins={"23/main": (FILE.id,)},
        ),
    ),
)
DEADLIST = Deadlist(
    tenant="acme",
    txn=23,
    paths=(
        "acme.tenant/0000000000000007/timelines/main/01HF7YAT00000000000000000D.sst",
        "acme.tenant/0000000000000023/timelines/main/01HF7YAT00000000000000000E.sst",
    ),
)


def write() -> None:
    """Write what is not there."""
    for name, body in (
        ("first.manifest", encode_manifest(FIRST)),
        ("full.manifest", encode_manifest(FULL)),
        ("full.deadlist", encode_deadlist(DEADLIST)),
    ):
        if not (FOLDER / name).exists():
            (FOLDER / name).write_bytes(body)


if __name__ == "__main__":
    write()
