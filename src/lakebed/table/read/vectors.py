"""Deletion vectors: which rows of a data file are deleted, although the file still holds them.

Owns: the bytes of index files of vectors (`encode_vectors`, `load_positions`), where the vectors of a snapshot are
(`vectors_of`), and a data file without its deleted rows (`LiveRows`). An index file is a version byte and then vectors:
length, magic number, Roaring bitmap, and the CRC-32 of the last two. DO NOT CHANGE: on disk, shared with other clients.

Invariants:
- A position is the number of a row in its file, counted from 0, whatever row groups and columns are read.
- lakebed writes 32-bit bitmaps, and reads 64-bit ones too.
- A vector whose length, magic number or checksum is wrong is `Corruption`: a deleted row never returns.
- The index manifest decides which files have vectors. In a primary-key table the option must be set too: otherwise its
  index manifest names the keys of dynamic buckets, and is not read.
- In a primary-key table a compaction marks the older row of every key that it moves out of level 0 (`lookup`). So above
  level 0 a key has at most one row that is not marked.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

import lakebed.compute as pc
from lakebed.errors import Corruption
from lakebed.objects.open import place_of
from lakebed.objects.port import ObjectStore
from lakebed.table.branch.context import TableBranch
from lakebed.table.codec.avro_container import DamageError
from lakebed.table.codec.index_manifest import DELETION_VECTORS, IndexEntry, VectorRange
from lakebed.table.codec.roaring import Positions, decode_positions, decode_positions_64, encode_positions
from lakebed.table.files.data_file import OpenDataFile
from lakebed.table.files.planned_files import columns_of
from lakebed.table.model.layout import Layout
from lakebed.table.model.model import Snapshot, Split, TableSchema, VectorPlace

if TYPE_CHECKING:
    import pyarrow.parquet as pq

_VERSION: Final = b"\x01"
_MAGIC: Final = struct.pack(">I", 1_581_511_376)
_MAGIC_64: Final = struct.pack("<I", 1_681_511_377)
_NUMBER_BYTES: Final = 4
NO_POSITIONS: Final = np.zeros(0, np.int64)


# ---- index files


def encode_vectors(vectors: Mapping[str, Positions]) -> tuple[bytes, tuple[VectorRange, ...]]:
    """The bytes of an index file of these vectors, by name of the data file, and where each is."""
    body, ranges = bytearray(_VERSION), []
    for name, positions in vectors.items():
        content = _MAGIC + encode_positions(positions)
        ranges.append(VectorRange(name, len(body), len(content), len(positions)))
        body += struct.pack(">I", len(content)) + content + struct.pack(">I", zlib.crc32(content))
    return bytes(body), tuple(ranges)


def load_positions(store: ObjectStore, place: VectorPlace) -> Positions:
    """The positions of the deleted rows of a data file, ascending.

    Raises `NotFound`: the index file is gone; `Corruption`: its bytes are damaged. Cost: 1 GET of the vector's bytes.
    """
    end = min(place.file_size, place.offset + place.length + 2 * _NUMBER_BYTES)
    file_store, name = place_of(store, place.path)
    if end <= place.offset:
        raise _damage_error(place, "it ends before the vector")
    return decode_vector(bytes(file_store.get(name, byte_range=(place.offset, end))), place)


def decode_vector(body: bytes, place: VectorPlace) -> Positions:
    """Decode the positions from the bytes of an index file from `VectorPlace.offset` on. Raises `Corruption`."""
    try:
        (length,) = struct.unpack_from(">I", body)
        content = body[_NUMBER_BYTES : _NUMBER_BYTES + length]
        (checksum,) = struct.unpack_from(">I", body, _NUMBER_BYTES + length)
        magic = content[:_NUMBER_BYTES]
        # The length in the manifest excludes length and checksum for 32-bit vectors, and includes them for 64-bit ones.
        stated_length = {_MAGIC: place.length, _MAGIC_64: place.length - 2 * _NUMBER_BYTES}.get(magic)
        if stated_length != length:
            raise DamageError("no vector of the stated length is there")
        if checksum != zlib.crc32(content):
            raise DamageError("a checksum is wrong")
        decode = decode_positions if magic == _MAGIC else decode_positions_64
        return decode(content[_NUMBER_BYTES:])
    except (DamageError, struct.error) as error:
        raise _damage_error(place, str(error)) from error


def _damage_error(place: VectorPlace, why: str) -> Corruption:
    return Corruption(
        f"{place.path} does not hold the deletion vector that its manifest places at byte {place.offset}: {why}. The "
        "file was cut short or overwritten.",
        path=place.path,
    )


# ---- snapshots


def may_have_vectors(schema: TableSchema) -> bool:
    """Whether an index manifest of a table with this schema may name deletion vectors."""
    return not schema.primary_keys or has_option(schema)


def has_option(schema: TableSchema) -> bool:
    """Whether the table deletes rows by deletion vectors."""
    return schema.options.get("deletion-vectors.enabled", "false").strip().lower() == "true"


def skips_level_0(schema: TableSchema) -> bool:
    """Whether readers of a primary-key table leave out its files of level 0."""
    merges = schema.options.get("deletion-vectors.merge-on-read", "false").strip().lower() == "true"
    return has_option(schema) and not merges


def vectors_of(branch: TableBranch, snapshot: Snapshot | None) -> dict[str, VectorPlace]:
    """Where the vectors of a version are, by name of the data file.

    Cost: 1 GET of the index manifest when the version has one that may name vectors; none when it is cached.
    """
    if snapshot is None or snapshot.index_manifest is None or not may_have_vectors(branch.schema):
        return {}
    return places_of(branch.manifests.index_entries(snapshot.index_manifest), branch.layout)


def places_of(entries: Sequence[IndexEntry], layout: Layout) -> dict[str, VectorPlace]:
    """Where the vectors of some index files are, by name of the data file."""
    return {
        vector.data_file: VectorPlace(path, vector.offset, vector.length, vector.cardinality, entry.file_size)
        for entry in entries
        if entry.index_type == DELETION_VECTORS
        for path in [entry.external_path or layout.index(entry.file_name)]
        for vector in entry.ranges
    }


def with_vectors(splits: Sequence[Split], places: Mapping[str, VectorPlace]) -> list[Split]:
    """The splits with the vectors of their files.

    A split that needs no merge is divided into files with and without them.

    Cost: for splits of one plan, a scan of the column of names; `DataFile` objects are made only where vectors are.
    """
    if not places or not splits:
        return list(splits)
    groups, names = columns_of([split.files for split in splits], ("file_name",))
    has_vector = pc.is_in(names.column("file_name"), value_set=pa.array(places.keys(), pa.string()))
    touched_groups = set(groups[has_vector.to_numpy(zero_copy_only=False)].tolist())
    parts: list[Split] = []
    for number, split in enumerate(splits):
        if number not in touched_groups:
            parts.append(split)
            continue
        vectors = {file.file_name: places[file.file_name] for file in split.files if file.file_name in places}
        if split.needs_merge:
            parts.append(replace(split, vectors=vectors))
            continue
        for is_marked in (False, True):
            files = tuple(file for file in split.files if (file.file_name in places) == is_marked)
            row_count = sum(file.row_count for file in files)
            if files:
                parts.append(replace(split, files=files, row_count=row_count, vectors=vectors if is_marked else {}))
    return parts


def count_deleted(store: ObjectStore, split: Split) -> int:
    """How many rows of the files of a split are deleted by vectors. Cost: 1 GET a vector."""
    return sum(len(load_positions(store, place)) for place in split.vectors.values())


# ---- data files


class LiveRows:
    """A data file without its deleted rows, for code that reads an `OpenDataFile`.

    Args:
        opened: the file.
        deleted: positions of the deleted rows, ascending.
    """

    def __init__(self, opened: OpenDataFile, deleted: Positions) -> None:
        self._opened = opened
        self._deleted = deleted
        # Without a column, Arrow would lose the number of rows.
        self._least = opened.column_names[:1]
        self.column_names = opened.column_names

    @property
    def row_group_count(self) -> int:
        """Number of row groups."""
        return self._opened.row_group_count

    @property
    def metadata(self) -> pq.FileMetaData:
        """As `OpenDataFile.metadata`; it describes all rows, deleted ones included."""
        return self._opened.metadata

    def row_groups_for(self, condition: pc.Expression) -> list[int]:
        """As `OpenDataFile.row_groups_for`; a row group may have no live row."""
        return self._opened.row_groups_for(condition)

    def read(
        self, *, columns: Sequence[str], row_groups: Sequence[int] | None = None, threads: bool = False
    ) -> pa.Table:
        """As `OpenDataFile.read`."""
        table = self._opened.read(columns=columns or self._least, row_groups=row_groups, threads=threads)
        return table.filter(pa.array(self._is_live(self._positions(row_groups))))

    def batches(
        self, *, columns: Sequence[str], row_groups: Sequence[int] | None = None, batch_rows: int
    ) -> Iterator[pa.RecordBatch]:
        """As `OpenDataFile.batches`; a batch may be empty."""
        for _, batch in self.batches_with_positions(columns=columns, row_groups=row_groups, batch_rows=batch_rows):
            yield batch

    def batches_with_positions(
        self, *, columns: Sequence[str], row_groups: Sequence[int] | None = None, batch_rows: int
    ) -> Iterator[tuple[Positions, pa.RecordBatch]]:
        """As `batches`; each batch with the positions of its rows."""
        positions, start = self._positions(row_groups), 0
        batches = self._opened.batches(columns=columns or self._least, row_groups=row_groups, batch_rows=batch_rows)
        for batch in batches:
            end = start + batch.num_rows
            is_live = self._is_live(positions[start:end])
            yield positions[start:end][is_live], batch.filter(pa.array(is_live))
            start = end

    def positions(self, row_groups: Sequence[int] | None) -> Positions:
        """The positions of the rows that `read` returns."""
        positions = self._positions(row_groups)
        return positions[self._is_live(positions)]

    def _positions(self, row_groups: Sequence[int] | None) -> Positions:
        """The position in the file of every row of some row groups."""
        metadata = self._opened.metadata
        counts = [metadata.row_group(group).num_rows for group in range(metadata.num_row_groups)]
        if row_groups is None:
            return np.arange(sum(counts))
        starts = np.cumsum([0, *counts])
        return np.concatenate([NO_POSITIONS, *(np.arange(starts[group], starts[group + 1]) for group in row_groups)])

    def _is_live(self, positions: Positions) -> npt.NDArray[np.bool_]:
        """Which of some positions, ascending, are not deleted."""
        is_live = np.ones(len(positions), np.bool_)
        if len(positions):
            places = np.minimum(np.searchsorted(positions, self._deleted), len(positions) - 1)
            is_live[places[positions[places] == self._deleted]] = False
        return is_live
