"""The expected table after any day: computed from the published CSV alone, by pandas.

Owns: the independent result, and `checksum`, which compares it with what lakebed reads. Uses the rules of the upstream
(see `upstream`), none of its files, and no code of lakebed.
"""

from __future__ import annotations

import hashlib
import io
from dataclasses import dataclass

import pandas as pd
import pyarrow as pa
from pyarrow import csv

from demo.source import KEY, load_frame
from demo.upstream import CAP_MINUTES, CORRECTED_AFTER, WITHDRAWN_AFTER

__all__ = ["Truth", "checksum"]

_DELAYS = ["dep_delay", "arr_delay"]


@dataclass(frozen=True, slots=True)
class Truth:
    """The published year."""

    flights: pd.DataFrame
    """As `source.load_frame` gives it."""

    @classmethod
    def load(cls) -> Truth:
        """Read the published CSV."""
        return cls(load_frame())

    def after(self, day: str) -> pd.DataFrame:
        """Return the flights as known at the end of a day (``2013-01-31``), sorted by key."""
        today = pd.Timestamp(day)
        age = (today - self.flights["date"]).dt.days
        never_left = self.flights["dep_time"].isna()
        known = self.flights[(age >= 0) & ~(never_left & (age >= WITHDRAWN_AFTER))].copy()
        not_yet_corrected = (today - known["date"]).dt.days < CORRECTED_AFTER
        for name in _DELAYS:
            # An unknown delay stays unknown: the comparison gives null, which does not cap.
            too_long = (known[name] > CAP_MINUTES).fillna(False) & not_yet_corrected
            known.loc[too_long, name] = CAP_MINUTES
        return known.drop(columns="date")

    def compare(self, before: str, after: str) -> tuple[int, int, int]:
        """Flights added, removed and changed between the ends of two days."""
        old, new = (self.after(day).set_index(list(KEY)) for day in (before, after))
        both = old.index.intersection(new.index)
        changed = old.loc[both, _DELAYS].fillna(-9999).ne(new.loc[both, _DELAYS].fillna(-9999)).any(axis=1)
        return len(new.index.difference(old.index)), len(old.index.difference(new.index)), int(changed.sum())


def checksum(rows: pa.Table | pd.DataFrame) -> str:
    """SHA-256 (16 hex digits) of the rows as CSV text, sorted by key, columns in the published order.

    Each side converts its rows to text in its own way, so that no library's types matter.
    """
    if isinstance(rows, pd.DataFrame):
        rows = pa.Table.from_pandas(rows, preserve_index=False)
    rows = rows.sort_by([(name, "ascending") for name in KEY])
    columns = [_plain(rows[name]) for name in rows.column_names]
    text = io.BytesIO()
    csv.write_csv(pa.table(columns, names=rows.column_names), text)
    return hashlib.sha256(text.getbuffer()).hexdigest()[:16]


def _plain(column: pa.ChunkedArray) -> pa.ChunkedArray:
    """Whole numbers as int64, times as seconds of Unix time, texts as they are."""
    kind = column.type
    if pa.types.is_timestamp(kind):
        return column.cast(pa.timestamp("s", tz=kind.tz)).cast(pa.int64())
    if pa.types.is_integer(kind):
        return column.cast(pa.int64())
    return column.cast(pa.string())
