"""What a merge engine decides: which rows of one key survive, and with which values.

Owns: the protocol `MergeEngine` with the enumerations `Increments` and `Deletes`. Reading, writing, compaction and
`changes` know engines only by this protocol. Each engine is a file of this folder; `registry.ENGINES` lists them by the
value of the option ``merge-engine``.
"""

from __future__ import annotations

import enum
from collections.abc import Sequence
from typing import ClassVar, Protocol

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from lakebed.table.engines.merge import Codes, KeyGroups, Mask
from lakebed.table.engines.sequence import SequenceOrder
from lakebed.table.model.model import TableSchema


class Increments(enum.Enum):
    """What the rows that some snapshots wrote, merged with each other, say about the table after those snapshots."""

    CURRENT = "current"
    """They are the table's rows of their keys."""
    COMPARED = "compared"
    """Each is the table's row of its key, unless the table has one that wins by `MergeEngine.wins`."""
    UNKNOWN = "unknown"
    """Nothing: a row of the table also depends on rows written earlier. `changes` refuses such a table."""


class Deletes(enum.Enum):
    """What a delete of a key does, when its rows are merged."""

    REMOVE = "remove"
    """The row is removed."""
    RETRACT = "retract"
    """Its values are taken back, column by column; the row stays. So there are no deletes by key or predicate."""
    IGNORE = "ignore"
    """Nothing: writers leave deletes out."""
    REFUSED = "refused"
    """Writers refuse deletes."""


class MergeEngine(Protocol):
    """How the rows of one key become one row. An instance belongs to one schema of a primary-key table.

    The caller orders rows by key, then by the columns of `order`, then by sequence number (ties: the later run). A row
    of the kinds -U and -D deletes its key; after the merge the caller drops such rows where no merge can need them.

    Laws on which the caller relies:

    - The merge of a single row is that row. So a file without deletes, whose keys no other file of its bucket has, can
      be read by plain Parquet readers, and can be moved to another level unchanged.
    - Merging is associative where `merges_apart` says so: rows that a batch or a partial compaction merged may be
      merged again with older and with newer rows. Elsewhere rows are merged together with all older rows of their
      keys. A merged row takes the sequence number and the columns of `order` of one of its rows, so that it keeps its
      place among the others.
    """

    replaces_rows: ClassVar[bool]
    """Whether a written row replaces the row of its key, so that rows can be updated by writing them again."""
    keeps_levels_apart: ClassVar[bool]
    """Whether a key may be in only one of the levels above 0, because other clients read these without a merge."""

    @classmethod
    def of(cls, schema: TableSchema) -> MergeEngine:
        """The engine of a table. Raises `InvalidRequest`: options that contradict each other or the schema."""

    @property
    def follows_commits(self) -> bool:
        """Whether rows must be merged in the order of their commits: it matters, and no column determines it."""

    def optional(self, given: frozenset[str]) -> frozenset[str]:
        """Columns that rows with the columns `given` may lack, because nulls there change no value; by default none."""
        return frozenset()

    @property
    def order(self) -> SequenceOrder | None:
        """Columns that order the rows of a key; None: the order of arrival alone."""

    @property
    def deletes(self) -> Deletes:
        """What deletes do."""

    def merges_apart(self, *, with_deletes: bool) -> bool:
        """Whether newer rows of a key may be merged with each other before they are merged with older ones.

        Args:
            with_deletes: whether there are deletes among the newer rows.
        """

    @property
    def drops_deletes(self) -> bool:
        """Whether a compaction into the highest level drops deletes, because no row written later needs them."""

    @property
    def ignores_repeats(self) -> bool:
        """Whether writing rows a second time, at any later moment, changes nothing."""

    @property
    def increments(self) -> Increments:
        """What written rows say about the table; see `Increments`."""

    def columns(self, wanted: frozenset[str]) -> frozenset[str]:
        """Columns that `merge` needs to compute `wanted`, in addition to these, the key and the columns of `order`."""
        return frozenset()

    def merge(self, rows: pa.Table, groups: KeyGroups) -> pa.Table:
        """One row a key, in key order.

        Args:
            rows: any columns of the table, `data_file.KIND_COLUMN`, and `data_file.SEQUENCE_COLUMN` if the caller
                needs it. The result has the same columns.
            groups: which rows are of one key, oldest first.

        Raises `InvalidRequest`: values that cannot be merged, such as a sum that is too large for its column. Cost: a
        few passes over whole columns; never a loop over rows.
        """

    def check_retracts(self, rows: pa.Table) -> None:
        """Refuse, before they are written, rows that take values back which no merge could take back.

        Args:
            rows: all columns of the table; possibly only the key columns have values.

        Raises `InvalidRequest`.
        """
        return

    def survivors(
        self, codes: Sequence[Codes], *, sequences: Sequence[npt.NDArray[np.int64]] | None
    ) -> list[Mask | None] | None:
        """The rows of each run that `merge` would keep, where it keeps rows unchanged; None: it makes new rows.

        A read that needs no order across runs uses this to avoid sorting and moving rows.

        Args:
            codes: of the keys of each run, strictly increasing; runs oldest first.
            sequences: greater for later rows of a key, in the shape of `codes`; None when each run is later than all
                runs before it.

        Returns:
            For each run a mask of its rows, or None when all its rows survive.
        """
        return None

    def wins(self, theirs: npt.NDArray[np.int64], ours: npt.NDArray[np.int64]) -> Mask:
        """For each pair of sequence numbers whether the first row survives. Called only for `Increments.COMPARED`."""
        raise AssertionError("asked only where increments are compared")
