"""Writes `repo/`: ranges and a metarange with fixed content. Run once for each release that adds a format."""

from __future__ import annotations

import json
import pathlib
import random
import uuid

import msgspec

from lakebed.lsm.cache import BlockCache
from lakebed.objects import open_store
from lakebed.repo.committed.store import Committed
from lakebed.repo.model.entry import encode_entry
from lakebed.repo.model.model import Entry
from lakebed.repo.model.options import RangeOptions
from lakebed.repo.model.rows import rows_of
from lakebed.runtime import Environment
from lakebed.testing import ManualClock

ENTRIES = {
    b"": Entry("s3://elsewhere/no-name", 0, "", 0, "", {}),
    b"a\x00": Entry("data/01HF7YAT000000000000000001", 127, "d41d8cd98f00b204e9800998ecf8427e", 1_700_000_000_000),
    **{
        b"data/part-%03d.parquet" % number: Entry(
            f"data/01HF7YAT{number:018}", number * 40_000, f"{number:032x}", 1_700_000_000_000 + number, metadata={}
        )
        for number in range(60)
    },
    "data/größe".encode(): Entry("gs://elsewhere/" + "x" * 300, 2**40, "etag-1", 1, "text/csv", {"b": "2", "a": "1"}),
    b"\xff\xff": Entry("data/01HF7YAT000000000000000002", 1, "", 2, "x/y", {"k": "v" * 300}),
}
OPTIONS = RangeOptions(entry_count_min=3, raggedness=10, entry_count_max=25, block_bytes=1024)


def main() -> None:
    """Write every object that is not there yet, the reference that opens them, and what they hold."""
    folder = pathlib.Path(__file__).parent / "repo"
    folder.mkdir(exist_ok=True)
    store = open_store(f"memory://{uuid.uuid4().hex}")
    environment = Environment(clock=ManualClock(), rng=random.Random(14))
    committed = Committed(store, options=OPTIONS, cache=BlockCache(), environment=environment)
    rows = {path: encode_entry(entry) for path, entry in sorted(ENTRIES.items())}
    writer = committed.writer()
    writer.write_rows(rows_of(list(rows), list(rows.values())))
    ref = writer.finish()
    committed.close()
    if not (folder / "metarange.json").exists():
        for item in store.list():
            target = folder / item.path
            target.parent.mkdir(exist_ok=True)
            target.write_bytes(bytes(memoryview(store.get(item.path))))
        (folder / "metarange.json").write_bytes(msgspec.json.format(msgspec.json.encode(ref)) + b"\n")
    said = [[path.hex(), value.hex(), msgspec.to_builtins(ENTRIES[path])] for path, value in rows.items()]
    (folder / "rows.json").write_text(json.dumps(said, indent=1) + "\n")


if __name__ == "__main__":
    main()
