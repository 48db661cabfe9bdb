"""Rows of a table without a primary key that UPDATE, DELETE or MERGE found, by file and position. Imports no PySpark.

Owns: the columns with a row's place, `FoundRows`, which a task returns, and `positions_of`, which joins the `FoundRows`
of a job. Invariant: each row is found only once, so a statement never replaces one row with two.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final

import numpy as np
import pyarrow as pa

from lakebed.errors import InvalidRequest
from lakebed.table.codec.roaring import Positions, decode_positions, encode_positions

FILE_COLUMN: Final = pa.field("_file", pa.string(), nullable=False)
"""The column with the name of each row's data file."""

POSITION_COLUMN: Final = pa.field("_pos", pa.int64(), nullable=False)
"""The column with the number of each row in its data file, from 0 on."""


@dataclass(frozen=True, slots=True)
class FoundRows:
    """Rows of one data file."""

    file_name: str
    positions: bytes
    """The positions, encoded by `roaring.encode_positions`."""


def found_rows(places: Iterable[pa.Table]) -> list[FoundRows]:
    """Return the rows of a task.

    Args:
        places: tables with the columns `FILE_COLUMN` and `POSITION_COLUMN`.

    Raises `InvalidRequest`: a row is there twice.
    """
    parts: dict[str, list[Positions]] = {}
    for table in places:
        files = table[FILE_COLUMN.name].combine_chunks().dictionary_encode()
        positions = table[POSITION_COLUMN.name].to_numpy()
        codes = files.indices.to_numpy()
        for code, name in enumerate(files.dictionary.to_pylist()):
            parts.setdefault(name, []).append(positions[codes == code])
    return [FoundRows(name, encode_positions(_once(part))) for name, part in parts.items()]


def positions_of(all_rows: Iterable[FoundRows]) -> Mapping[str, Positions]:
    """Return the positions in each file, ascending. Raises `InvalidRequest`: two tasks found one row."""
    parts: dict[str, list[Positions]] = {}
    for rows in all_rows:
        parts.setdefault(rows.file_name, []).append(decode_positions(rows.positions))
    return {name: _once(positions) for name, positions in parts.items()}


def _once(parts: list[Positions]) -> Positions:
    every = np.concatenate(parts).astype(np.int64)
    positions: Positions = np.unique(every)
    if len(positions) != len(every):
        raise InvalidRequest(
            "The statement changes a row of the table twice, so its result is not defined: let each row of the table "
            "match one row of the source.",
            kind="row_changed_twice",
        )
    return positions
