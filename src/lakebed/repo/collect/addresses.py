"""Addresses of objects as columns: what ranges and staged rows name, and which of the listed objects are unreferenced.

Owns: the set algebra of a collection, in columns. Spark runs the same functions on shares of the ranges. Invariants:
only addresses of uploads (``data/<ulid>``) appear. An address that cannot be read is an error, and is never left out:
its object would be deleted. Pure, except `addresses_of_ranges`, which reads.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, Final, cast

import numpy as np
import pyarrow as pa

import lakebed.compute as pc
from lakebed.errors import UnsupportedFormat
from lakebed.lsm.block import offsets_of
from lakebed.lsm.file_id import FILE_ID_CHARACTERS
from lakebed.repo.committed.metarange import Metarange
from lakebed.repo.model.entry import IDENTITY_BYTES, address_ulid, decode_entry
from lakebed.repo.model.layout import DATA_FOLDER
from lakebed.repo.model.model import RangeMeta

ADDRESS_SCHEMA: Final = pa.schema([pa.field("ulid", pa.string(), nullable=False)])
"""Addresses, as ULIDs, perhaps with duplicates."""

LISTED_SCHEMA: Final = pa.schema(
    [
        pa.field("ulid", pa.string(), nullable=False),
        pa.field("size_bytes", pa.int64(), nullable=False),
    ]
)
"""Objects below ``data/``, from a listing."""

_START: Final = f"{DATA_FOLDER}/".encode()
_ADDRESS_BYTES: Final = len(_START) + FILE_ID_CHARACTERS
_FIXED_STR: Final = 0xA0
"""MessagePack: a text of up to 31 bytes, whose length is in the low bits."""
_LONGER: Final = np.isin(np.arange(256), [*range(0x97, 0xA0), 0xDC, 0xDD])
"""For each byte, whether it begins an array of more elements than an entry has."""
_HEADER: Final = np.frombuffer(bytes([_FIXED_STR | _ADDRESS_BYTES]) + _START, np.uint8)
_BEFORE: Final = IDENTITY_BYTES + 1
"""Bytes before the address's header: the identity, and the byte that marks an entry as an array."""


def addresses_of(values: pa.BinaryArray, *, where: str) -> pa.RecordBatch:
    """The addresses of uploads in a column of encoded entries.

    Args:
        values: without nulls; tombstones name nothing.
        where: the source of the column, for the error.

    Returns:
        A batch of `ADDRESS_SCHEMA`, in the order of the values.

    Raises:
        Corruption: a value is not an entry.
        UnsupportedFormat: an entry has more elements than are known here. They may name objects, too.
    Cost: 0.1 us for an upload's address; 1 us for an entry of another shape, which is decoded.
    """
    count = len(values)
    lengths = np.diff(offsets_of(values)) if count else np.zeros(0, np.int64)
    rows = np.flatnonzero(lengths)
    if not len(rows):
        return _batch([])
    begins = offsets_of(values)[:-1].astype(np.int64)[rows] + _BEFORE
    content = np.frombuffer(values.buffers()[2], np.uint8)
    if _LONGER[content[begins[lengths[rows] >= _BEFORE] - 1]].any():
        raise UnsupportedFormat(
            f"An entry of {where} has more elements than this lakebed knows: upgrade lakebed.", path=where
        )
    is_long = lengths[rows] >= _BEFORE + len(_HEADER) + FILE_ID_CHARACTERS
    heads = content[np.where(is_long, begins, 0)[:, None] + np.arange(len(_HEADER))]
    is_ours = is_long & (heads == _HEADER).all(axis=1)
    characters = content[begins[is_ours][:, None] + len(_HEADER) + np.arange(FILE_ID_CHARACTERS)]
    ulids = cast(Any, np.ascontiguousarray(characters)).view(f"S{FILE_ID_CHARACTERS}").ravel().astype(str).tolist()
    for row in rows[~is_ours].tolist():
        ulid = address_ulid(decode_entry(values[row].as_py(), where=where).address)
        if ulid is not None:
            ulids.append(ulid)
    return _batch(ulids)


def addresses_of_ranges(metarange: Metarange, ranges: Iterable[RangeMeta]) -> Iterator[pa.RecordBatch]:
    """The addresses that ranges name: batches of `ADDRESS_SCHEMA`, one or more a range.

    Raises:
        Corruption: a range is damaged or missing; then nothing may be deleted.
    Cost: 1 GET a range.
    """
    for meta in ranges:
        for batch in metarange.rows_of(meta):
            yield addresses_of(batch.column(1), where=f"the range {meta.file.id}")


def drop_named(listed: pa.Table, named: pa.Array | pa.ChunkedArray) -> pa.Table:
    """The listed objects that nothing names.

    Args:
        listed: of `LISTED_SCHEMA`.
        named: ULIDs, in any order.

    Cost: a hash table of the names; 0.1 us an object.
    """
    if isinstance(named, pa.ChunkedArray):
        named = named.combine_chunks()
    return listed.filter(pc.invert(pc.is_in(listed.column("ulid"), value_set=named)))


def _batch(ulids: list[str]) -> pa.RecordBatch:
    return pa.RecordBatch.from_arrays([pa.array(ulids, pa.string())], schema=ADDRESS_SCHEMA)
