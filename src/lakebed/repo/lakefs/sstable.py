"""Read sorted tables of Pebble and RocksDB, each as a whole: format 2 of block-based tables, which lakeFS uses.

Owns: the layout of a table: blocks with shared prefixes of keys, an index of one or two levels, properties, a footer
of 53 bytes. Invariants: keys are returned without the 8 bytes that Pebble puts behind each. Only puts are accepted,
because lakeFS writes nothing else. Checksums of blocks are not verified here: `lakebed.repo.lakefs.metaranges` compares
the contents of a table with the hash in its name.

Layout, little-endian; a handle is two varints, offset and size; behind each block are a byte for its compression (0:
none, 1: Snappy) and 4 bytes of checksum:

    block    entries: varints shared, unshared, size of the value; unshared bytes of the key; the value
             then an array of u32, where entries with whole keys begin, and a u32 with its length
    footer   u8 kind of checksum, handle of the meta index, handle of the index, zeros up to 41 bytes, u32 2, u64 magic
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import pyarrow as pa

from lakebed.errors import Corruption, UnsupportedFormat
from lakebed.repo.lakefs.wire import read_varint

FOOTER_BYTES: Final = 53
MAGIC: Final = bytes.fromhex("f7cff485b741e288")
FORMAT_VERSION: Final = 2
TRAILER_BYTES: Final = 5
"""Bytes behind each block."""
KEY_TAIL_BYTES: Final = 8
"""Bytes behind each key: the kind, then 7 bytes of the sequence number."""
PUT: Final = 1
PROPERTIES: Final = b"rocksdb.properties"
INDEX_TYPE: Final = b"rocksdb.block.based.table.index.type"
TWO_LEVELS: Final = 2

_NOT_COMPRESSED: Final = 0
_SNAPPY: Final = 1
_BLOCK_BYTES_MAX: Final = 256 << 20
"""Largest block after decompression. A limit is needed because the file states the size."""


class SSTable:
    """A table in memory.

    Args:
        content: the bytes of the whole file.
        path: its path, for errors.

    Raises:
        UnsupportedFormat: it is of another format or version.
        Corruption: it is damaged.
    """

    def __init__(self, content: bytes, *, path: str) -> None:
        self._content = content
        self._path = path
        footer = content[-FOOTER_BYTES:]
        if len(footer) < FOOTER_BYTES or footer[-8:] != MAGIC:
            raise Corruption(f"{path} is not a sorted table: its {len(content):,} bytes do not end in one.", path=path)
        version = int.from_bytes(footer[-12:-8], "little")
        if version != FORMAT_VERSION:
            raise UnsupportedFormat(
                f"{path} is a sorted table of version {version}, and version {FORMAT_VERSION} is read.", path=path
            )
        with _reading(path):
            position = 1
            handles = []
            for _ in range(2):
                offset, position = read_varint(footer, position)
                size, position = read_varint(footer, position)
                handles.append((offset, size))
            meta_index, self._index = handles
            blocks = {key: _handle(value) for key, value in _entries(self._block(*meta_index))}
            self._all_properties = dict(_entries(self._block(*blocks[PROPERTIES]))) if PROPERTIES in blocks else {}

    @property
    def properties(self) -> dict[str, str]:
        """The properties that the table's writer added to those of the format, such as ``type``."""
        with _reading(self._path):
            return {
                key.decode(): value.decode(errors="surrogateescape")
                for key, value in self._all_properties.items()
                if not key.startswith((b"rocksdb.", b"pebble."))
            }

    def rows(self) -> Iterator[tuple[bytes, bytes]]:
        """Iterate over keys and values, in the order of keys. Raises `Corruption`. Cost: about 2 us a row."""
        with _reading(self._path):
            before: bytes | None = None
            for offset, size in self._data_handles():
                for key, value in _entries(self._block(offset, size)):
                    if len(key) < KEY_TAIL_BYTES or key[-KEY_TAIL_BYTES] != PUT:
                        raise Corruption(f"{self._path} has a row that is not a put, at {key!r}.", path=self._path)
                    user_key = key[:-KEY_TAIL_BYTES]
                    if before is not None and user_key <= before:
                        raise Corruption(
                            f"{self._path} is not sorted: {user_key!r} follows {before!r}.", path=self._path
                        )
                    before = user_key
                    yield user_key, value

    def _data_handles(self) -> Iterator[tuple[int, int]]:
        is_deep = int.from_bytes(self._all_properties.get(INDEX_TYPE, b""), "little") == TWO_LEVELS
        for _, value in _entries(self._block(*self._index)):
            if is_deep:
                yield from (_handle(inner) for _, inner in _entries(self._block(*_handle(value))))
            else:
                yield _handle(value)

    def _block(self, offset: int, size: int) -> bytes:
        end = offset + size
        if end + TRAILER_BYTES > len(self._content):
            raise Corruption(
                f"{self._path} has {len(self._content):,} bytes, and one of its blocks ends at {end:,}.",
                path=self._path,
            )
        content = self._content[offset:end]
        compression = self._content[end]
        if compression == _NOT_COMPRESSED:
            return content
        if compression != _SNAPPY:
            raise UnsupportedFormat(
                f"{self._path} has a block with the compression {compression}, and none and Snappy (1) are read.",
                path=self._path,
            )
        plain_bytes, _ = read_varint(content, 0)
        if plain_bytes > _BLOCK_BYTES_MAX:
            raise Corruption(f"{self._path} has a block of {plain_bytes:,} bytes.", path=self._path)
        plain_content: bytes = pa.Codec("snappy").decompress(content, decompressed_size=plain_bytes, asbytes=True)
        return plain_content


class _reading:  # noqa: N801  # a context manager, which reads as a verb
    """Turn errors in reading a file's bytes into errors that name the file."""

    def __init__(self, path: str) -> None:
        self._path = path

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> None:
        if isinstance(error, Corruption) and "path" in error.facts:
            return
        if isinstance(error, (Corruption, IndexError, ValueError, OverflowError, pa.ArrowException, OSError)):
            raise Corruption(f"{self._path} is damaged: {error}", path=self._path) from error


def _handle(value: bytes) -> tuple[int, int]:
    offset, position = read_varint(value, 0)
    size, _ = read_varint(value, position)
    return offset, size


def _entries(block: bytes) -> Iterator[tuple[bytes, bytes]]:
    restart_count = int.from_bytes(block[-4:], "little")
    end = len(block) - 4 - 4 * restart_count
    if end < 0:
        raise Corruption(f"A block of {len(block):,} bytes has {restart_count:,} starts.")
    position = 0
    key = b""
    while position < end:
        shared_bytes, unshared, size = block[position], block[position + 1], block[position + 2]
        if shared_bytes < 0x80 and unshared < 0x80 and size < 0x80:
            position += 3
        else:
            shared_bytes, position = read_varint(block, position)
            unshared, position = read_varint(block, position)
            size, position = read_varint(block, position)
        middle = position + unshared
        stop = middle + size
        if shared_bytes > len(key) or stop > end:
            raise Corruption("An entry of a block is longer than the block.")
        key = key[:shared_bytes] + block[position:middle]
        yield key, block[middle:stop]
        position = stop
