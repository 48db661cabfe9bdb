"""Which entries of which manifests are live in a snapshot: `Fold`, moved from one snapshot to the next.

A manifest of the table keeps its name and bytes, and a DELETE in a later manifest removes entries from it. Iceberg has
no such entries: a manifest whose files were deleted is written again without them. So the fold returns, for each
manifest, the positions that remain. Cost of a move: the entries of the manifests that are new; where manifests were
merged, all entries once.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from lakebed.table.branch.manifest_reader import ManifestReader
from lakebed.table.codec.manifest import ADD, IDENTITY
from lakebed.table.model.model import ManifestMeta

Rows = npt.NDArray[np.int32]
Identity = tuple[bytes, int, int, str]


class Fold:
    """The live entries of the snapshot that it was last moved to, or of its manifests up to an unreadable one."""

    def __init__(self, manifests: ManifestReader) -> None:
        self._manifests = manifests
        self._names: list[str] = []
        self._live: dict[Identity, tuple[str, int]] = {}
        self._rows: dict[str, set[int]] = {}
        self._arrays: dict[str, Rows] = {}

    def move_to(self, metas: Sequence[ManifestMeta]) -> None:
        """Move to a snapshot with these manifests, in their order. Raises as `ManifestReader.entries`."""
        names = [meta.file_name for meta in metas]
        known_count = len(self._names)
        if names[:known_count] != self._names:
            self._names, self._live, self._rows, self._arrays = [], {}, {}, {}
            known_count = 0
        for meta in metas[known_count:]:
            self._take(meta.file_name, self._manifests.entries(meta))
            self._names.append(meta.file_name)  # one by one: the next may be unreadable

    def rows(self, name: str) -> Rows:
        """Positions in a manifest whose files are live, ascending."""
        rows = self._arrays.get(name)
        if rows is None:
            rows = self._arrays[name] = np.array(sorted(self._rows[name]), np.int32)
        return rows

    def _take(self, name: str, entries: pa.Table) -> None:
        rows = self._rows[name] = set()
        columns = (entries.column(column).to_pylist() for column in ("kind", *IDENTITY))
        for row, (kind, *key) in enumerate(zip(*columns, strict=True)):
            identity: Identity = tuple(key)
            place = self._live.pop(identity, None)
            if place is not None:
                holder, position = place
                self._rows[holder].discard(position)
                self._arrays.pop(holder, None)
            if kind == ADD:
                self._live[identity] = (name, row)
                rows.add(row)
