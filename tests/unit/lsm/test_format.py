"""Sorted files whose checksums are right and whose content is not: what a faulty writer might leave behind."""

from __future__ import annotations

import json
import struct
import uuid
from collections.abc import Callable
from typing import Any

import msgspec
import pyarrow as pa
import pytest
from xxhash import xxh3_64_intdigest

from lakebed.errors import Corruption, UnsupportedFormat
from lakebed.lsm.cache import BlockCache
from lakebed.lsm.file_reader import FileReader
from lakebed.lsm.file_writer import FileOptions, FileWriter
from lakebed.lsm.memtable import batch_of
from lakebed.lsm.model import FileMeta, Kind, Row
from lakebed.objects import open_store

ROWS = [Row(b"%05d" % number, number, int(Kind.PUT), b"value", None) for number in range(20)]


class Parts:
    """A sorted file taken apart; `joined` puts it together again with right places and checksums."""

    def __init__(self) -> None:
        self.store = open_store(f"memory://{uuid.uuid4().hex}")
        writer = FileWriter(self.store, "x", file_id="x", options=FileOptions(block_bytes=200, compression=None))
        writer.write(batch_of(ROWS))
        self.meta = writer.finish()
        body = bytes(self.store.get("x"))
        (length,) = struct.unpack("<I", body[-20:-16])
        footer = json.loads(body[-20 - length : -20])
        places = [footer[name] for name in ("filter", "index", "statistics")]
        self.blocks = body[: self.meta.tail_offset]
        self.sections = [body[place["offset"] : place["offset"] + place["length"]] for place in places]
        self.footer: Callable[[dict[str, Any]], bytes] = lambda footer: json.dumps(footer).encode()
        self.gap = b""

    @property
    def index(self) -> pa.Table:
        """The index as a table."""
        return pa.ipc.open_stream(self.sections[1]).read_all()

    @index.setter
    def index(self, table: pa.Table) -> None:
        sink = pa.BufferOutputStream()
        with pa.ipc.new_stream(sink, table.schema) as writer:
            writer.write_table(table)
        self.sections[1] = sink.getvalue().to_pybytes()

    def column(self, name: str, change: Callable[[list[Any]], list[Any]]) -> None:
        """Change a column of the index."""
        table = self.index
        place = table.schema.get_field_index(name)
        field = table.schema.field(place)
        self.index = table.set_column(place, field, pa.array(change(table[name].to_pylist()), field.type))

    def joined(self) -> FileReader:
        """The file, to be read."""
        body, footer = self.blocks, {"format": 1, "min_reader": 1, "features": []}
        for name, section in zip(("filter", "index", "statistics"), self.sections, strict=True):
            checksum = xxh3_64_intdigest(section, seed=len(body))
            footer[name] = {"offset": len(body), "length": len(section), "checksum": checksum}
            body += section
        body += self.gap
        text = self.footer(footer)
        body += text + struct.pack("<IQ8s", len(text), xxh3_64_intdigest(text, seed=len(body)), b"lakebed\x01")
        self.store.put("x", body)
        meta: FileMeta = msgspec.structs.replace(self.meta, size_bytes=len(body))
        return FileReader(self.store, "x", meta=meta, cache=BlockCache(0))


def moved(footer: dict[str, Any]) -> bytes:
    """A footer that says that the index is one byte further on."""
    footer["index"]["offset"] += 1
    return json.dumps(footer).encode()


FAULTS: dict[str, Callable[[Parts], object]] = {
    "a filter of odd length": lambda parts: parts.sections.__setitem__(0, b"x" * 33),
    "an index that is none": lambda parts: parts.sections.__setitem__(1, b"nothing of the kind"),
    "an index with other columns": lambda parts: setattr(parts, "index", parts.index.drop(["flags"])),
    "an index without rows": lambda parts: setattr(parts, "index", parts.index.slice(0, 0)),
    "blocks with a gap": lambda parts: parts.column("offset", lambda column: [*column[:-1], column[-1] + 1]),
    "blocks that end too early": lambda parts: parts.column("length", lambda column: [*column[:-1], column[-1] - 1]),
    "too many rows": lambda parts: parts.column("row_count", lambda column: [column[0] + 1, *column[1:]]),
    "rows of another block": lambda parts: parts.column(
        "row_count", lambda column: [column[0] + 1, column[1] - 1, *column[2:]]
    ),
    "keys out of order": lambda parts: parts.column("first_key", lambda column: [column[0], *column[:0:-1]]),
    "another first key": lambda parts: parts.column("first_key", lambda column: [b"0", *column[1:]]),
    "statistics that are none": lambda parts: parts.sections.__setitem__(2, b"{}"),
    "a footer that is none": lambda parts: setattr(parts, "footer", lambda _: b"[]"),
    "a footer without sections": lambda parts: setattr(
        parts, "footer", lambda _: b'{"format": 1, "min_reader": 1, "features": []}'
    ),
    "sections elsewhere": lambda parts: setattr(parts, "footer", moved),
    "bytes that belong to nothing": lambda parts: setattr(parts, "gap", b"?"),
}


def test_parts_make_a_file() -> None:
    """Taken apart and put together again a file reads as before, so what the other tests see is what they changed."""
    assert sum(block.row_count for block in Parts().joined().batches()) == len(ROWS)


@pytest.mark.parametrize("fault", FAULTS)
def test_faults_behind_right_checksums(fault: str) -> None:
    """What contradicts itself is `Corruption` with path and offset, though every checksum is right."""
    parts = Parts()
    FAULTS[fault](parts)
    with pytest.raises(Corruption) as caught:
        list(parts.joined().batches())
    assert caught.value.facts["path"] == "x"
    assert caught.value.facts["offset"] >= 0


def test_a_block_that_is_none() -> None:
    """Bytes that are not a record batch, in a block with a right checksum, are `Corruption` with the block's offset."""
    parts = Parts()
    first = parts.index.to_pylist()[0]
    garbage = b"\xff\xff\xff\xff" + bytes(first["length"] - 4)
    parts.blocks = garbage + parts.blocks[len(garbage) :]
    checksum = xxh3_64_intdigest(garbage, seed=0)
    parts.column("checksum", lambda column: [checksum, *column[1:]])
    for codec in (0, 1, 2):
        parts.column("codec", lambda column, codec=codec: [codec, *column[1:]])
        with pytest.raises(Corruption, match="cannot be decoded") as caught:
            list(parts.joined().batches())
        assert caught.value.facts["offset"] == 0


def test_an_unknown_codec() -> None:
    """A block compressed in a way that is not known is refused as unsupported, with its place."""
    parts = Parts()
    parts.column("codec", lambda column: [*column[:-1], 9])
    with pytest.raises(UnsupportedFormat, match="codec 9"):
        list(parts.joined().batches())
