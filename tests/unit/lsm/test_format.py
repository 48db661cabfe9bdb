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
from lakebed.lsm.filter import hash_keys
from lakebed.lsm.format import read_meta
from lakebed.lsm.memtable import batch_of
from lakebed.lsm.model import FileMeta, Kind, Row
from lakebed.objects import open_store

SECTIONS = ("filter", "index", "pages", "statistics")
ROWS = [Row(b"%05d" % number, number, int(Kind.PUT), b"value", None) for number in range(20)]


class Parts:
    """A sorted file taken apart; `joined` puts it together again with right places and checksums."""

    def __init__(self) -> None:
        self.store = open_store(f"memory://{uuid.uuid4().hex}")
        writer = FileWriter(
            self.store, "x", file_id="x", options=FileOptions(block_bytes=200, page_bytes=60, compression=None)
        )
        writer.write(batch_of(ROWS))
        self.meta = writer.finish()
        body = bytes(self.store.get("x"))
        (length,) = struct.unpack("<I", body[-20:-16])
        footer = json.loads(body[-20 - length : -20])
        places = [footer[name] for name in SECTIONS]
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

    @property
    def pages(self) -> dict[str, list[int]]:
        """The numbers of the directory of pages, by column."""
        body, columns, at = self.sections[2], {}, 4
        blocks, count = self.index.num_rows, int.from_bytes(self.sections[2][:4], "little")
        for name, size, letter in (
            ("page_count", blocks, "I"),
            ("prefix_bytes", blocks, "I"),
            ("end", count, "I"),
            ("raw_length", count, "I"),
            ("separator_end", count, "I"),
            ("checksum", count, "Q"),
        ):
            columns[name] = list(struct.unpack_from(f"<{size}{letter}", body, at))
            at += struct.calcsize(f"<{size}{letter}")
        return columns

    def pages_column(self, name: str, change: Callable[[list[int]], list[int]]) -> None:
        """Change a column of the directory of pages."""
        columns = self.pages
        texts = self.sections[2][-columns["separator_end"][-1] :] if columns["separator_end"][-1] else b""
        columns[name] = change(columns[name])
        body = len(columns["end"]).to_bytes(4, "little")
        for column, numbers in columns.items():
            body += struct.pack(f"<{len(numbers)}{'Q' if column == 'checksum' else 'I'}", *numbers)
        self.sections[2] = body + texts

    def put_page(self, page: bytes) -> None:
        """Change what is stored of the first page, which stays as long, with right checksums."""
        assert len(page) == self.pages["end"][0]
        self.blocks = page + self.blocks[len(page) :]
        self.pages_column("checksum", lambda column: [xxh3_64_intdigest(page, seed=0), *column[1:]])
        block = self.blocks[: self.index.to_pylist()[0]["length"]]
        self.column("checksum", lambda column: [xxh3_64_intdigest(block, seed=0), *column[1:]])

    def joined(self) -> FileReader:
        """The file, to be read."""
        body, footer = self.blocks, {"format": 2, "min_reader": 2, "features": []}
        for name, section in zip(SECTIONS, self.sections, strict=True):
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
    "a directory of pages without bytes": lambda parts: parts.sections.__setitem__(2, b""),
    "a directory without pages": lambda parts: parts.sections.__setitem__(2, bytes(len(parts.sections[2]))),
    "a directory that is cut": lambda parts: parts.sections.__setitem__(2, parts.sections[2][:-1]),
    "a directory with more pages": lambda parts: parts.sections.__setitem__(2, b"\xff" * 4 + parts.sections[2][4:]),
    "a block without pages": lambda parts: parts.pages_column(
        "page_count", lambda column: [0, sum(column[:2]), *column[2:]]
    ),
    "a block with a page too many": lambda parts: parts.pages_column(
        "page_count", lambda column: [column[0] + 1, *column[1:]]
    ),
    "pages of another block": lambda parts: parts.pages_column(
        "page_count", lambda column: [column[0] + 1, column[1] - 1, *column[2:]]
    ),
    "a page that ends before it begins": lambda parts: parts.pages_column(
        "end", lambda column: [column[1] + 1, *column[1:]]
    ),
    "a page without bytes": lambda parts: parts.pages_column("end", lambda column: [0, *column[1:]]),
    "pages that end too early": lambda parts: parts.pages_column("end", lambda column: [*column[:-1], column[-1] - 1]),
    "a separator that ends before it begins": lambda parts: parts.pages_column(
        "separator_end", lambda column: [column[-1], *column[1:]]
    ),
    "separators that end too early": lambda parts: parts.pages_column(
        "separator_end", lambda column: [*column[:-1], column[-1] - 1]
    ),
    "a prefix longer than the key": lambda parts: parts.pages_column("prefix_bytes", lambda column: [6, *column[1:]]),
    "blocks with a gap": lambda parts: parts.column("offset", lambda column: [*column[:-1], column[-1] + 1]),
    "blocks that end too early": lambda parts: parts.column("length", lambda column: [*column[:-1], column[-1] - 1]),
    "too many rows": lambda parts: parts.column("row_count", lambda column: [column[0] + 1, *column[1:]]),
    "rows of another block": lambda parts: parts.column(
        "row_count", lambda column: [column[0] + 1, column[1] - 1, *column[2:]]
    ),
    "keys out of order": lambda parts: parts.column("first_key", lambda column: [column[0], *column[:0:-1]]),
    "another first key": lambda parts: parts.column("first_key", lambda column: [b"0", *column[1:]]),
    "statistics that are none": lambda parts: parts.sections.__setitem__(3, b"{}"),
    "a footer that is none": lambda parts: setattr(parts, "footer", lambda _: b"[]"),
    "a footer without sections": lambda parts: setattr(
        parts, "footer", lambda _: b'{"format": 2, "min_reader": 2, "features": []}'
    ),
    "sections elsewhere": lambda parts: setattr(parts, "footer", moved),
    "bytes that belong to nothing": lambda parts: setattr(parts, "gap", b"?"),
}

DIRECTORY, PAGE_ENDS = "its directory of pages has", "the pages of a block do not follow each other up to its end"
SENTENCES = {
    "a filter of odd length": "its filter has 33 bytes, no whole number of blocks",
    "an index that is none": "its index cannot be read",
    "an index with other columns": "its index has 4 rows of ['first_key', 'offset', 'length', 'row_count', 'checksum',",
    "an index without rows": "its index cannot be read",
    "a directory of pages without bytes": f"{DIRECTORY} 0 bytes, and 0 pages",
    "a directory without pages": f"{DIRECTORY} 200 bytes, and 0 pages",
    "a directory that is cut": "the keys between pages do not follow each other up to its end",
    "a directory with more pages": f"{DIRECTORY} 200 bytes, and 4,294,967,295 pages",
    "a block without pages": "its blocks have 8 pages, and 8 are named",
    "a block with a page too many": "its blocks have 9 pages, and 8 are named",
    "pages of another block": PAGE_ENDS,
    "a page that ends before it begins": PAGE_ENDS,
    "a page without bytes": PAGE_ENDS,
    "pages that end too early": PAGE_ENDS,
    "a separator that ends before it begins": "the keys between pages do not follow each other up to its end",
    "separators that end too early": "the keys between pages do not follow each other up to its end",
    "a prefix longer than the key": "the pages of a block share more than its first key has",
    "blocks with a gap": "its blocks do not follow each other up to its tail",
    "blocks that end too early": "its blocks do not follow each other up to its tail",
    "too many rows": "its blocks have 21 rows, and the file 20",
    "rows of another block": "The block at byte 0 of x is damaged: it has 5 rows, and the index says 6",
    "keys out of order": "its blocks are not in the order of their keys",
    "another first key": "its blocks are not in the order of their keys",
    "statistics that are none": "its statistics cannot be read",
    "a footer that is none": "its footer cannot be read",
    "a footer without sections": "its footer cannot be read",
    "sections elsewhere": "its index is said to be at 585,",
    "bytes that belong to nothing": "there are bytes between its statistics and its footer",
}
"""What is wrong, with the numbers that are in the file of `Parts`: 4 blocks of 2 pages, 20 rows."""


def test_a_file_says_what_a_version_remembers_of_it() -> None:
    """All is in its statistics, for a reader with no version; one other byte of these or of the footer is damage."""
    parts = Parts()
    body = bytes(parts.store.get("x"))
    assert read_meta(memoryview(body), path="x") == parts.meta
    at = body.index(parts.sections[-1])
    for place in (at, at + len(parts.sections[-1]) - 1, len(body) - 30, len(body) - 1):
        damaged = bytearray(body)
        damaged[place] ^= 1
        with pytest.raises(Corruption):
            read_meta(memoryview(damaged), path="x")
    for end in (0, 10, len(body) - 1):
        with pytest.raises(Corruption):
            read_meta(memoryview(body[:end]), path="x")


def test_statistics_that_are_elsewhere() -> None:
    """Where a footer that is whole puts them outside of the file, that is damage too."""
    parts = Parts()
    for offset, length in ((1 << 40, 5), (-1, 5), (0, -1)):

        def move(footer: dict[str, Any], *, offset: int = offset, length: int = length) -> bytes:
            footer["statistics"] |= {"offset": offset, "length": length}
            return json.dumps(footer).encode()

        parts.footer = move
        with pytest.raises(Corruption):
            read_meta(memoryview(bytes(parts.store.get(parts.joined().path))), path="x")


def test_parts_make_a_file() -> None:
    """Taken apart and put together again a file reads as before, so what the other tests see is what they changed."""
    assert sum(block.row_count for block in Parts().joined().batches()) == len(ROWS)


@pytest.mark.parametrize("fault", FAULTS)
def test_faults_behind_right_checksums(fault: str) -> None:
    """What contradicts itself is `Corruption` that says so, with path and offset, though every checksum is right."""
    parts = Parts()
    FAULTS[fault](parts)
    with pytest.raises(Corruption) as caught:
        list(parts.joined().batches())
    assert SENTENCES[fault] in str(caught.value)
    if fault != "rows of another block":  # of which a get reads none
        with pytest.raises(Corruption):
            parts.joined().get(ROWS[0].key)
    assert caught.value.facts["path"] == "x"
    assert caught.value.facts["offset"] >= 0


def test_a_page_that_is_none() -> None:
    """Bytes that are no page, though their checksums are right, are `Corruption` with a place, in every read."""
    for codec in (0, 1, 2):
        parts = Parts()
        if codec:
            parts.pages_column("raw_length", lambda column: [1 << 10] * len(column))
        parts.put_page(b"\xff" * parts.pages["end"][0])
        parts.column("codec", lambda column, codec=codec: [codec] * len(column))
        reader = parts.joined()
        reads: list[Callable[[], object]] = [
            lambda reader=reader: list(reader.batches()),
            lambda reader=reader: reader.get(ROWS[0].key),
            lambda reader=reader: reader.get_many([ROWS[0].key], hashes=hash_keys([ROWS[0].key])),
        ]
        for read in reads:
            with pytest.raises(Corruption, match=r"cannot be decoded|contradicts itself") as caught:
                read()
            assert caught.value.facts["offset"] == 0


@pytest.mark.parametrize("field", range(5))
def test_a_page_that_contradicts_itself(field: int) -> None:
    """A page whose header promises other rows, keys or values than it has is `Corruption`, or reads as before."""
    parts = Parts()
    size_bytes = parts.pages["end"][0]
    parts.column("codec", lambda column: [0] * len(column))
    header = list(struct.unpack("<IIIIQ", parts.blocks[:24]))
    header[field] += 1
    parts.put_page(struct.pack("<IIIIQ", *header) + parts.blocks[24:size_bytes])
    reader = parts.joined()
    if field == 4:  # the base of the sequences: every page is right by itself
        assert [row.sequence for row in reader.get(ROWS[0].key)] == [ROWS[0].sequence + 1]
        return
    for read in (lambda: list(reader.batches()), lambda: reader.get(ROWS[0].key)):
        with pytest.raises(Corruption):
            read()


def test_an_unknown_codec() -> None:
    """A block compressed in a way that is not known is refused as unsupported, with its place."""
    parts = Parts()
    parts.column("codec", lambda column: [*column[:-1], 9])
    with pytest.raises(UnsupportedFormat, match="codec 9"):
        list(parts.joined().batches())
