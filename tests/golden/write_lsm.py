"""Writes `lsm/`: one sorted file of every kind, with fixed content. Run once for each release that adds a format."""

from __future__ import annotations

import json
import pathlib
import uuid

import msgspec

from lakebed.lsm.block import Compression
from lakebed.lsm.file_writer import FileOptions, FileWriter
from lakebed.lsm.memtable import batch_of
from lakebed.lsm.model import Kind, Row
from lakebed.objects import open_store

ROWS = [
    Row(b"\x00", 1, int(Kind.PUT), b"", None),
    Row(b"counter", 12, int(Kind.MERGE), b"+2", None),
    Row(b"counter", 11, int(Kind.MERGE), b"+1", 1_700_000_000_000),
    Row(b"counter", 4, int(Kind.PUT), b"40", None),
    Row(b"gone", 2**64 - 1, int(Kind.DELETE), b"", None),
    *(Row(b"key %03d" % number, 100 + number, int(Kind.PUT), b"value %d" % number, None) for number in range(200)),
    Row(b"large", 7, int(Kind.PUT), b"large " * 500, None),
    Row(b"session", 9, int(Kind.PUT), b"ends", 1_700_000_000_123),
    Row(b"\xff" * 20, 8, int(Kind.PUT), bytes(range(256)), None),
]
COMPRESSIONS: dict[str, Compression | None] = {
    "01HF7YAT000000000000000001": "lz4",
    "01HF7YAT000000000000000002": "zstd",
    "01HF7YAT000000000000000003": None,
    # Those before are of version 1, which is no longer written; these are of version 2.
    "01HF7YAT000000000000000004": "lz4",
    "01HF7YAT000000000000000005": "zstd",
    "01HF7YAT000000000000000006": None,
}


def main() -> None:
    """Write every missing file, and next to it what a version remembers of it."""
    folder = pathlib.Path(__file__).parent / "lsm"
    folder.mkdir(exist_ok=True)
    store = open_store(f"memory://{uuid.uuid4().hex}")
    for file_id, compression in COMPRESSIONS.items():
        options = FileOptions(block_bytes=1024, page_bytes=256, compression=compression)
        writer = FileWriter(store, file_id, file_id=file_id, options=options)
        writer.write(batch_of(ROWS))
        meta = writer.finish()
        if not (folder / f"{file_id}.sst").exists():
            (folder / f"{file_id}.sst").write_bytes(bytes(store.get(file_id)))
            (folder / f"{file_id}.json").write_bytes(msgspec.json.format(msgspec.json.encode(meta)) + b"\n")
    (folder / "rows.json").write_text(
        json.dumps([[row.key.hex(), row.sequence, row.kind, row.value.hex(), row.expires_at_ms] for row in ROWS]) + "\n"
    )


if __name__ == "__main__":
    main()
