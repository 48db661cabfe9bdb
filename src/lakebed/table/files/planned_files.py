"""The files of a split as rows of a planned table: described by columns, and made into objects only when used.

Owns: `PlannedFiles`, and `columns_of`, which describes many files without making objects. A plan of 100,000 files holds
one Arrow table and, for each split, the positions of its files. A `DataFile` costs about 20 us, so only a process that
reads a split makes its files.

Invariants: behaves as the tuple of its files, also in comparison, hashing and pickling. The table is immutable.
Thread-safe: if two threads use it at once, both may make the files, and these are equal.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, overload

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from lakebed.table.codec.manifest import ENTRY_SCHEMA, files_of
from lakebed.table.model.model import DataFile


class PlannedFiles(Sequence[DataFile]):
    """The files of some manifest entries, as a sequence of objects made when first used.

    Args:
        entries: `manifest.ENTRY_SCHEMA`, shared by all splits of a plan.
        rows: positions in `entries`, in the order of the sequence.
    """

    __slots__ = ("_entries", "_files", "_rows")

    def __init__(self, entries: pa.Table, rows: npt.NDArray[np.int64]) -> None:
        self._entries = entries
        self._rows = rows
        self._files: tuple[DataFile, ...] | None = None

    @property
    def files(self) -> tuple[DataFile, ...]:
        """All of them. Cost: about 20 us a file, once."""
        if self._files is None:
            self._files = tuple(files_of(self._entries.take(pa.array(self._rows))))
        return self._files

    def __len__(self) -> int:
        return len(self._rows)

    @overload
    def __getitem__(self, index: int) -> DataFile: ...

    @overload
    def __getitem__(self, index: slice) -> tuple[DataFile, ...]: ...

    def __getitem__(self, index: int | slice) -> DataFile | tuple[DataFile, ...]:
        return self.files[index]

    def __iter__(self) -> Iterator[DataFile]:
        return iter(self.files)

    def __eq__(self, other: object) -> bool:
        if isinstance(other, PlannedFiles):
            return self is other or self.files == other.files
        return self.files == other if isinstance(other, tuple) else NotImplemented

    def __hash__(self) -> int:
        return hash(self.files)

    def __repr__(self) -> str:
        return repr(self.files)

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickled as the tuple: another process needs these files, not the whole plan."""
        return tuple, (self.files,)


def columns_of(groups: Sequence[Sequence[DataFile]], names: Sequence[str]) -> tuple[npt.NDArray[np.int64], pa.Table]:
    """Some columns of the files of many groups, in order, and the position of the group of each file.

    Args:
        names: columns of `manifest.ENTRY_SCHEMA` that are also attributes of `DataFile`.

    Cost: for groups of one plan, a copy of the columns; no `DataFile` is made.
    """
    group_of = np.repeat(np.arange(len(groups)), [len(group) for group in groups])
    first = groups[0] if groups else None
    if isinstance(first, PlannedFiles):
        rows = [group._rows for group in groups if isinstance(group, PlannedFiles) and group._entries is first._entries]
        if len(rows) == len(groups):
            return group_of, first._entries.select(list(names)).take(pa.array(np.concatenate(rows)))
    files = [file for group in groups for file in group]
    schema = pa.schema([ENTRY_SCHEMA.field(name) for name in names])
    return group_of, pa.table([[getattr(file, name) for file in files] for name in names], schema=schema)
