"""Merge new rows of a primary-key table, and find the older rows that they replace, in bounded memory.

Owns: `Lookup`. In a table with deletion vectors a compaction does not rewrite the older files of a bucket: it looks up
the keys of new rows in them, and marks the rows that are replaced. Readers then need no merge.

Invariants:
- A row is marked exactly when the merge writes another row of its key in its place, or none.
- The result is that of a merge of all files: older rows take part with their sequence numbers, and with their values
  where the merge engine computes rows from them. Where an older row wins, it stays where it is, and the new one is left
  out.
- New and older files are read in parallel in key order, as `read.merge_windows` does.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from lakebed.objects.port import ObjectStore
from lakebed.table.codec.roaring import Positions, encode_positions
from lakebed.table.engines.merge import Codes, group_by_key, is_strictly_increasing
from lakebed.table.files.splits import sort_into_runs
from lakebed.table.model.model import DataFile, Split
from lakebed.table.read.read import FILE, POSITION, ReadPlan, cut_complete, run_cursor, sequences_of, without_deletes
from lakebed.table.read.vectors import count_deleted


class Lookup:
    """One merge of new files with a lookup in older ones. Its `marks` are complete when `windows` is exhausted.

    Args:
        store: the table's store.
        newer: the files to merge, in merge order.
        older: files of the same bucket in the levels below the output; their deleted rows are left out.
        plan: schemas and the window's size; its columns and predicate are ignored.
    """

    def __init__(self, store: ObjectStore, newer: Split, older: Split, *, plan: ReadPlan) -> None:
        self._store, self._older = store, older
        self._engine = engine = plan.engine
        newer_runs = sort_into_runs(newer.files, schema=plan.schema)
        older_runs = sort_into_runs(older.files, schema=plan.schema)
        window_bytes = max(1, plan.window_bytes // (len(newer_runs) + len(older_runs)))
        fields = plan.schema.fields
        needed_names = {*plan.schema.trimmed_primary_keys, *(engine.order.columns if engine.order is not None else ())}
        # An engine that keeps rows unchanged needs the older ones only to compare them.
        looked_up = tuple(field for field in fields if field.name in needed_names) if engine.replaces_rows else fields
        self._newer, self._lower = (
            [
                run_cursor(store, split, run, plan=plan, fields=columns, window_bytes=window_bytes, numbered=numbered)
                for run in runs
            ]
            for split, runs, columns, numbered in (
                (newer, newer_runs, fields, False),
                (older, older_runs, looked_up, True),
            )
        )
        self._keys = [key.name for key in plan.keys]
        self._marked: dict[int, list[Positions]] = defaultdict(list)

    def windows(self, *, keep_deletes: bool) -> Iterator[pa.Table]:
        """As `read.merge_windows`, for the keys of the new files, merged with their older rows."""
        newer, older = self._newer, self._lower
        while True:
            for cursor in (*newer, *older):
                cursor.fill()
            newer = [cursor for cursor in newer if cursor.rows.num_rows]
            older = [cursor for cursor in older if cursor.rows.num_rows]
            if not newer:
                return
            parts = cut_complete([*newer, *older], self._keys)
            new_parts = [(rows, codes) for rows, codes in parts[: len(newer)] if rows.num_rows]
            if not new_parts:
                continue
            window = self._merge_rows(new_parts, parts[len(newer) :])
            if not keep_deletes:
                window = without_deletes(window)
            if window.num_rows:
                yield window

    def marks(self) -> tuple[dict[str, bytes], list[DataFile]]:
        """The rows to mark, by name of their file, as `BucketChange.vectors`; and the files in which no row is left.

        Cost: 1 GET for each of these files that has a vector.
        """
        vectors: dict[str, bytes] = {}
        emptied: list[DataFile] = []
        for number, parts in sorted(self._marked.items()):
            file = self._older.files[number]
            positions = np.unique(np.concatenate(parts))
            alone = {name: place for name, place in self._older.vectors.items() if name == file.file_name}
            already = count_deleted(self._store, replace(self._older, vectors=alone))
            if already + len(positions) == file.row_count:
                emptied.append(file)
            else:
                vectors[file.file_name] = encode_positions(positions)
        return vectors, emptied

    def _merge_rows(
        self, new_rows: Sequence[tuple[pa.Table, Codes]], lower: Sequence[tuple[pa.Table, Codes]]
    ) -> pa.Table:
        """Merge the new rows with the older rows of their keys, and note the older rows that are replaced."""
        keys = np.unique(np.concatenate([codes for _, codes in new_rows]))
        matches = [match for match in (_of_keys(rows, codes, keys) for rows, codes in lower) if match.rows.num_rows]
        order = self._engine.order
        tables = [rows for rows, _ in new_rows]
        runs = [codes for _, codes in new_rows]
        if matches and not self._engine.replaces_rows:
            for match in matches:
                self._note(match.rows)
            tables = [*(match.rows.drop_columns([FILE, POSITION]) for match in matches), *tables]
            runs = [*(match.codes for match in matches), *runs]
        if len(tables) == 1 and is_strictly_increasing(runs[0]):
            window = tables[0]
        else:
            groups = group_by_key(runs, sequences=sequences_of(tables, order))
            window = self._engine.merge(pa.concat_tables(tables).combine_chunks(), groups)
        if not matches or not self._engine.replaces_rows:
            return window
        sequences = sequences_of([*(match.rows for match in matches), window], order)
        masks = self._engine.survivors([*(match.codes for match in matches), keys], sequences=sequences)
        assert masks is not None, "an engine that replaces rows keeps them unchanged"
        for match, survives in zip(matches, masks, strict=False):
            if survives is not None:
                self._note(match.rows.filter(pa.array(~survives)))
        return window if masks[-1] is None else window.filter(pa.array(masks[-1]))

    def _note(self, rows: pa.Table) -> None:
        """Note rows of older files to be marked."""
        files, positions = (rows.column(name).to_numpy() for name in (FILE, POSITION))
        for number in np.unique(files).tolist():
            self._marked[number].append(positions[files == number])


@dataclass(frozen=True, slots=True)
class _Met:
    """Older rows, and the codes of their keys."""

    rows: pa.Table
    codes: Codes


def _of_keys(rows: pa.Table, codes: Codes, keys: Codes) -> _Met:
    """The rows of some keys; `keys` ascend."""
    positions = np.minimum(np.searchsorted(keys, codes), len(keys) - 1)
    is_match: npt.NDArray[np.bool_] = keys[positions] == codes
    return _Met(rows.filter(pa.array(is_match)), codes[is_match])
