"""Write sorted tables for Pebble and RocksDB, in memory: the format that `lakebed.repo.lakefs.sstable` reads.

Owns: how rows become blocks. Invariants: keys are added in ascending order, each once. Blocks are compressed with
Snappy, and have xxHash64 checksums, the fastest of the format's in this process. The id of a range depends on its rows,
not on its blocks, so blocks need not be cut as Pebble would.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

import pyarrow as pa
import xxhash

from lakebed.errors import InternalError
from lakebed.repo.lakefs.sstable import FOOTER_BYTES, FORMAT_VERSION, INDEX_TYPE, MAGIC, PROPERTIES, PUT
from lakebed.repo.lakefs.wire import encode_varint

_BLOCK_BYTES: Final = 16 << 10
"""Size of a block before it is compressed."""
_RESTART_INTERVAL: Final = 16
"""Number of entries from one whole key to the next."""
_KEY_TAIL: Final = bytes((PUT, 0, 0, 0, 0, 0, 0, 0))
_SNAPPY: Final = b"\x01"
_PLAIN: Final = b"\x00"
_XXHASH_64: Final = b"\x03"


class _Block:
    """The entries of one block."""

    def __init__(self, restart_interval: int = _RESTART_INTERVAL) -> None:
        self._restart_interval = restart_interval
        self._pieces: list[bytes] = []
        self.size_bytes = 0
        self.count = 0
        self._starts: list[int] = []
        self._key = b""

    def add(self, key: bytes, value: bytes) -> None:
        shared_bytes = 0
        if self.count % self._restart_interval == 0:
            self._starts.append(self.size_bytes)
        else:
            shared_bytes = _shared_bytes(self._key, key)
        piece = b"".join(
            (
                encode_varint(shared_bytes),
                encode_varint(len(key) - shared_bytes),
                encode_varint(len(value)),
                key[shared_bytes:],
                value,
            )
        )
        self._pieces.append(piece)
        self.size_bytes += len(piece)
        self.count += 1
        self._key = key

    def finish(self) -> bytes:
        starts = self._starts or [0]
        numbers = [start.to_bytes(4, "little") for start in (*starts, len(starts))]
        return b"".join((*self._pieces, *numbers))


def encode_sstable(rows: Iterable[tuple[bytes, bytes]], *, properties: Mapping[str, str]) -> bytes:
    """Encode a table.

    Args:
        rows: keys and values, in ascending order of keys, each once.
        properties: the writer's properties, such as ``type``.

    Cost: about 3 us a row.
    """
    table = _Table()
    for key, value in rows:
        table.add(key, value)
    return table.finish(properties)


class _Table:
    def __init__(self) -> None:
        self._content = bytearray()
        self._block = _Block()
        self._index = _Block(restart_interval=1)
        self._last_key: bytes | None = None
        self._row_count = self._key_bytes = self._value_bytes = 0
        self._codec = pa.Codec("snappy")

    def add(self, key: bytes, value: bytes) -> None:
        if self._last_key is not None and key <= self._last_key:
            raise InternalError(f"keys of a table are not sorted: {key!r} came after {self._last_key!r}")
        self._block.add(key + _KEY_TAIL, value)
        self._last_key = key
        self._row_count += 1
        self._key_bytes += len(key) + len(_KEY_TAIL)
        self._value_bytes += len(value)
        if self._block.size_bytes >= _BLOCK_BYTES:
            self._end_block()

    def finish(self, properties: Mapping[str, str]) -> bytes:
        if self._block.count or not self._index.count:
            self._end_block()
        data_bytes = len(self._content)
        index = self._index.finish()
        index_handle = self._write(index)
        table_properties = self._properties(data_bytes, index_bytes=len(index))
        texts = {key.encode(): value.encode(errors="surrogateescape") for key, value in properties.items()}
        block = _Block()
        for key, value in sorted((table_properties | texts).items()):
            block.add(key, value)
        meta = _Block(restart_interval=1)
        meta.add(PROPERTIES, self._write(block.finish(), compress=False))
        meta_handle = self._write(meta.finish(), compress=False)
        handles = (_XXHASH_64 + meta_handle + index_handle).ljust(FOOTER_BYTES - 12, b"\0")
        return bytes(self._content + handles + FORMAT_VERSION.to_bytes(4, "little") + MAGIC)

    def _end_block(self) -> None:
        handle = self._write(self._block.finish())
        # The index also names the block of an empty table, by a key that no row has.
        self._index.add((self._last_key or b"") + _KEY_TAIL, handle)
        self._block = _Block()

    def _write(self, block: bytes, *, compress: bool = True) -> bytes:
        """Write a block, and return its handle."""
        kind = _PLAIN
        if compress:
            compressed = self._codec.compress(block, asbytes=True)
            if len(compressed) < len(block):
                block, kind = compressed, _SNAPPY
        checksum = xxhash.xxh64_intdigest(block + kind) & 0xFFFFFFFF
        handle = encode_varint(len(self._content)) + encode_varint(len(block))
        self._content += block + kind + checksum.to_bytes(4, "little")
        return handle

    def _properties(self, data_bytes: int, *, index_bytes: int) -> dict[bytes, bytes]:
        """The properties that readers of the format use."""
        return {
            INDEX_TYPE: bytes(4),
            b"rocksdb.column.family.id": encode_varint((1 << 31) - 1),
            b"rocksdb.comparator": b"leveldb.BytewiseComparator",
            b"rocksdb.compression": b"Snappy",
            b"rocksdb.data.size": encode_varint(data_bytes),
            b"rocksdb.deleted.keys": encode_varint(0),
            b"rocksdb.filter.size": encode_varint(0),
            b"rocksdb.fixed.key.length": encode_varint(0),
            b"rocksdb.format.version": encode_varint(0),
            b"rocksdb.index.key.is.user.key": encode_varint(0),
            b"rocksdb.index.size": encode_varint(index_bytes + 5),
            b"rocksdb.index.value.is.delta.encoded": encode_varint(0),
            b"rocksdb.merge.operands": encode_varint(0),
            b"rocksdb.merge.operator": b"pebble.concatenate",
            b"rocksdb.num.data.blocks": encode_varint(self._index.count),
            b"rocksdb.num.entries": encode_varint(self._row_count),
            b"rocksdb.num.range-deletions": encode_varint(0),
            b"rocksdb.prefix.extractor.name": b"nullptr",
            b"rocksdb.property.collectors": b"[static]",
            b"rocksdb.raw.key.size": encode_varint(self._key_bytes),
            b"rocksdb.raw.value.size": encode_varint(self._value_bytes),
        }


def _shared_bytes(left: bytes, right: bytes) -> int:
    """The length of the common prefix of two keys."""
    end = min(len(left), len(right))
    if left[:end] == right[:end]:
        return end
    low, high = 0, end  # left[:low] == right[:low], and left[:high] != right[:high]
    while high - low > 1:
        middle = (low + high) // 2
        if left[low:middle] == right[low:middle]:
            low = middle
        else:
            high = middle
    return low
