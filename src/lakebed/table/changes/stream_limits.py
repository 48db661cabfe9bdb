"""How much a batch of a stream reads: units of snapshots, and limits on files, rows, bytes and snapshots. Pure."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
import pyarrow as pa


@dataclass(frozen=True, slots=True)
class Limits:
    """How much a batch may read, except that a single unit is always read; None: any number."""

    files: int | None = None
    rows: int | None = None
    bytes: int | None = None
    snapshots: int | None = None


@dataclass(frozen=True, slots=True)
class Content:
    """Entries in the order of their units; and where each unit starts, with the end of the last."""

    entries: pa.Table
    starts: npt.NDArray[np.int64]

    @property
    def count(self) -> int:
        """The number of units."""
        return len(self.starts) - 1

    def slice(self, start: int, end: int | None) -> pa.Table:
        """The entries from one unit up to another one; None: to the end."""
        first, last = self.starts[start], self.starts[self.count if end is None else end]
        return self.entries.slice(first, last - first)


@dataclass(slots=True)
class Taken:
    """What a batch contains so far."""

    limits: Limits
    snapshots: int = 0
    sums: dict[str, int] = field(default_factory=dict)

    def take(self, content: Content, start: int) -> int:
        """Return the unit of a snapshot's content up to which the batch goes."""
        end = content.count
        if self.snapshots == self.limits.snapshots:
            return start
        for name, bound in (
            ("files", self.limits.files),
            ("row_count", self.limits.rows),
            ("file_size", self.limits.bytes),
        ):
            if bound is None:
                continue
            totals = np.concatenate([[0], np.cumsum(_weights(content.entries, name))])[content.starts]
            sum_before = self.sums.get(name, 0)
            end = min(end, int(np.searchsorted(totals - totals[start] + sum_before, bound, side="right")) - 1)
        if end <= start and self.snapshots == 0 and content.count > start:
            end = start + 1
        for name in ("files", "row_count", "file_size"):
            weights = _weights(content.slice(start, max(start, end)), name)
            self.sums[name] = self.sums.get(name, 0) + int(weights.sum())
        self.snapshots += 1
        return max(start, end)


def _weights(entries: pa.Table, name: str) -> npt.NDArray[np.int64]:
    if name == "files":
        return np.ones(entries.num_rows, np.int64)
    weights: npt.NDArray[np.int64] = entries.column(name).to_numpy().astype(np.int64)
    return weights
