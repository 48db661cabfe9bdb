"""The source system of the airports: one CSV file a day, with typical corrections.

- A day's flights come that evening, but delays of more than an hour are first reported as one hour.
- `CORRECTED_AFTER` days later such flights come again, with the delay they really had.
- Flights that never left are withdrawn `WITHDRAWN_AFTER` days later (``withdrawn`` is true).
- Two additional deliveries: ``damaged.csv`` (with mistakes that rules find) and ``careless.csv`` (plausible values
  that are wrong).

Owns: the deliveries. Knows nothing of lakebed.
"""

from __future__ import annotations

import datetime
import shutil
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import csv

__all__ = ["CAP_MINUTES", "CORRECTED_AFTER", "WITHDRAWN_AFTER", "YEAR_DAYS", "deliver_year"]

CAP_MINUTES = 60
CORRECTED_AFTER = 3
WITHDRAWN_AFTER = 7
YEAR_DAYS = 365

_DELAYS = ("dep_delay", "arr_delay")
_FIRST_DAY = datetime.date(2013, 1, 1)


def deliver_year(flights: pa.Table, folder: Path, *, days: int = YEAR_DAYS) -> int:
    """Write the deliveries of the year's first `days` days, and the two bad ones about the last of them.

    Args:
        flights: the year as text, see `source.load_text`.
        folder: made anew.

    Returns:
        Rows in the daily files.
    """
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    number = _day_number(flights)
    flights = flights.append_column("withdrawn", pa.array(np.full(flights.num_rows, "false")))
    delays = {name: _minutes(flights[name]) for name in _DELAYS}
    late = np.logical_or.reduce([values > CAP_MINUTES for values in delays.values()])
    cancelled = np.asarray(pc.equal(flights["dep_time"], "NA"))
    first = flights
    for name, values in delays.items():
        first = _with(first, name, pc.if_else(pa.array(values > CAP_MINUTES), str(CAP_MINUTES), flights[name]))
    withdrawn = _with(flights, "withdrawn", pa.array(np.full(flights.num_rows, "true")))
    by_day = np.argsort(number, kind="stable")
    starts = np.searchsorted(number[by_day], np.arange(days + 1))
    rows = 0
    for day in range(days):
        parts = [first.take(by_day[starts[day] : starts[day + 1]])]
        for source, chosen, delay in ((flights, late, CORRECTED_AFTER), (withdrawn, cancelled, WITHDRAWN_AFTER)):
            if day >= delay:
                indices = by_day[starts[day - delay] : starts[day - delay + 1]]
                parts.append(source.take(indices[chosen[indices]]))
        delivery = pa.concat_tables(parts)
        rows += delivery.num_rows
        _write(delivery, folder / f"{_FIRST_DAY + datetime.timedelta(days=day)}.csv")
    _write(_damaged(first, number, last=days - 1), folder / "damaged.csv")
    _write(_careless(flights, number, last=days - 1), folder / "careless.csv")
    return rows


def _damaged(flights: pa.Table, number: np.ndarray, *, last: int) -> pa.Table:
    """The last day again, with columns shifted in some rows and miles in others below zero."""
    day = flights.filter(pa.array(number == last))
    position = np.arange(day.num_rows)
    day = _with(day, "origin", pc.if_else(pa.array(position % 25 == 0), day["dest"], day["origin"]))
    return _with(day, "distance", pc.if_else(pa.array(position % 40 == 0), "-1", day["distance"]))


def _careless(flights: pa.Table, number: np.ndarray, *, last: int) -> pa.Table:
    """Three days of the week before once more: every flight that left, left and came in on time.

    (Of a whole year: Christmas.)
    """
    days = flights.filter(pa.array((number >= last - 7) & (number <= last - 5)))
    for name in _DELAYS:
        days = _with(days, name, pc.if_else(pc.equal(days[name], "NA"), "NA", "0"))
    return days


def _day_number(flights: pa.Table) -> np.ndarray:
    """Days since the first of January, of each flight."""
    month = np.asarray(flights["month"].cast(pa.int64()))
    day = np.asarray(flights["day"].cast(pa.int64()))
    before = np.array([(datetime.date(2013, one, 1) - _FIRST_DAY).days for one in range(1, 13)])
    return before[month - 1] + day - 1


def _minutes(texts: pa.ChunkedArray) -> np.ndarray:
    """Numbers, NaN for ``NA``."""
    known = pc.if_else(pc.equal(texts, "NA"), None, texts)
    return np.asarray(known.cast(pa.float64()).to_numpy())


def _with(table: pa.Table, name: str, column: pa.Array | pa.ChunkedArray) -> pa.Table:
    return table.set_column(table.schema.get_field_index(name), name, column)


def _write(delivery: pa.Table, path: Path) -> None:
    csv.write_csv(delivery, path, csv.WriteOptions(quoting_style="none"))
